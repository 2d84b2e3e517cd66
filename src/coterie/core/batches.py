"""Agents with about as many rows, together: batches for NumPy's algebra, small enough to stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

#: Numbers in the rows of one batch, at most.
NUMBERS = 200_000


def batches(sizes: np.ndarray, columns: int) -> Iterator[tuple[np.ndarray, int]]:
    """Agents grouped by their number of rows, rounded up to 1 ... 8, 10, 12, 14, 16, 20, ...; and that number.

    So few batches hold everybody, at most a fifth of what is computed is padding, and none is too large for the cache.
    """
    largest = int(sizes.max(initial=0))
    steps = [0]
    while steps[-1] < largest:
        power = 1 << max(0, steps[-1].bit_length() - 1)
        steps.append(steps[-1] + max(1, power // 4))
    group = np.searchsorted(steps, sizes)
    for k in np.unique(group):
        width = steps[k]
        if width:
            agents = np.flatnonzero(group == k)
            step = max(1, NUMBERS // (width * max(1, columns)))
            for first in range(0, len(agents), step):
                yield agents[first : first + step], width


def padded(start: np.ndarray, sizes: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers (k, width) of agents whose rows begin at `start`, and which of them are rows and not padding."""
    place = np.arange(width)
    real = place < sizes[:, None]
    return np.where(real, start[:, None] + place, start[:, None]), real


def jobs(n_jobs: int | None, numbers: float) -> int | None:
    """How many threads to ask for: without a wish, one only where rows of so many numbers fill no two batches."""
    return 1 if n_jobs is None and numbers < 2 * NUMBERS else n_jobs
