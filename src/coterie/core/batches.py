"""Batches of agents with about equally many rows, for NumPy's algebra, small enough for the cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

#: Largest number of entries in the rows of one batch.
MAX_BATCH_ENTRIES = 200_000


def batches(sizes: np.ndarray, columns: int) -> Iterator[tuple[np.ndarray, int]]:
    """Group agents by their number of rows, rounded up to 1 ... 8, 10, 12, 14, 16, 20, ...; yield agents and number.

    So there are few batches, at most a fifth of the computation is padding, and no batch is too large for the cache.
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
            step = max(1, MAX_BATCH_ENTRIES // (width * max(1, columns)))
            for first in range(0, len(agents), step):
                yield agents[first : first + step], width


def padded(start: np.ndarray, sizes: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return row numbers (k, width) of agents whose rows begin at `start`, and a mask of rows that are not padding."""
    place = np.arange(width)
    real = place < sizes[:, None]
    return np.where(real, start[:, None] + place, start[:, None]), real


def jobs(n_jobs: int | None, numbers: float) -> int | None:
    """Return the number of threads: by default, one if rows of `numbers` entries fill fewer than two batches."""
    return 1 if n_jobs is None and numbers < 2 * MAX_BATCH_ENTRIES else n_jobs
