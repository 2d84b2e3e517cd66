"""The confidences c_i of MP, CD and DADA: weights of the agents' losses by their numbers of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Confidence of an agent without rows: too small to have an effect, but positive, so that c_i stays in (0, 1].
MIN_CONFIDENCE = 1e-9


def confidences(sizes: Any, largest: int) -> np.ndarray:
    """Return ``c_i = min(1, m_i / largest)``; `largest` is the largest size, or a public number."""
    sizes = np.asarray(sizes)
    return np.where(sizes > 0, np.minimum(1.0, sizes / max(1, largest)), MIN_CONFIDENCE)
