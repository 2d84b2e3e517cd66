"""Split the rows of agents into folds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def places(owner: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """Return the rank of every row among the rows of its agent, sorted by the keys; the last key is the primary key."""
    order = np.lexsort((*keys, owner))
    sizes = np.bincount(owner)
    out = np.empty(len(owner), dtype=np.int64)
    out[order] = np.arange(len(owner)) - (np.cumsum(sizes) - sizes)[owner[order]]
    return out


def dealt(owner: np.ndarray, place: np.ndarray, first: np.ndarray, folds: int) -> np.ndarray:
    """Return the fold of every row: the rows of an agent go to folds in turn, by place, from the agent's first fold."""
    return np.asarray((place + first[owner]) % folds)


def split(fold: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield masks of the training and test rows of each fold; rows of fold -1 are never tested."""
    for k in np.unique(fold[fold >= 0]).tolist():
        yield fold != k, fold == k
