"""How much an agent's own loss counts, by how many rows it has: the confidences c_i of MP, CD and DADA."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Confidence of an agent without rows: small enough not to be heard, and not zero, so that c_i stays in (0, 1].
WHISPER = 1e-9


def confidences(sizes: Any, largest: int) -> np.ndarray:
    """``c_i = m_i / M``, at most 1, where M is the largest size, or a public number."""
    sizes = np.asarray(sizes)
    return np.where(sizes > 0, np.minimum(1.0, sizes / max(1, largest)), WHISPER)
