"""Rows of agents, dealt out to folds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def places(owner: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """The place of every row among those of its agent, in the order of the keys; the last key counts most."""
    order = np.lexsort((*keys, owner))
    sizes = np.bincount(owner)
    out = np.empty(len(owner), dtype=np.int64)
    out[order] = np.arange(len(owner)) - (np.cumsum(sizes) - sizes)[owner[order]]
    return out


def dealt(owner: np.ndarray, place: np.ndarray, first: np.ndarray, folds: int) -> np.ndarray:
    """The fold of every row: the rows of each agent in turn, by their places, from the agent's first fold."""
    return np.asarray((place + first[owner]) % folds)


def split(fold: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each fold, which rows are not of it, to train on, and which are, to test on; rows of fold -1 are never."""
    for k in np.unique(fold[fold >= 0]).tolist():
        yield fold != k, fold == k
