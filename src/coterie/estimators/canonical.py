"""One order of rows and agents, whatever order and names they came with.

Rounding, seeds and clocks see rows and agents by their numbers. Estimators number them by what they hold, so that the
order of the rows, the names of the agents and the units of the columns do not change what is learned.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from ..data import AgentData

#: Keys that are nearer than this, in standard deviations, are the same: rounding depends on the units.
DIGITS = 9

__all__ = ["by_content", "spread"]


def by_content(data: AgentData) -> tuple[AgentData, np.ndarray]:
    """The same rows and agents, ordered by features and labels alone; agent k of the result was agent ``order[k]``.

    A row's key is a fixed combination of its standardised columns; an agent's keys are how many rows it has, and the
    first moments of their keys. Columns that are scaled, shifted or negated have the same keys, and so have labels.
    Agents with the same rows, or with none, keep their order.
    """
    key = _keys(data)
    size = np.maximum(data.sizes, 1)
    moments = [_rounded(np.bincount(data.owner, weights=key**k, minlength=data.n) / size) for k in (3, 2, 1)]
    order = np.lexsort([*moments, data.sizes])
    rows = np.lexsort([_rounded(key), np.argsort(order)[data.owner]])
    return data._rows(rows, data.sizes[order], members=tuple(data.members[k] for k in order)), order


def spread(X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of columns; 1 in place of the deviation of a column that does not vary."""
    mean = np.asarray(X.mean(axis=0)).ravel()
    if sparse.issparse(X):
        square = np.asarray(X.multiply(X).mean(axis=0)).ravel()
        deviation = np.sqrt(np.maximum(square - mean**2, 0.0))
        size = np.sqrt(square)
    else:
        deviation, size = np.std(X, axis=0), np.abs(mean)
    return mean, np.where(deviation <= 1e-12 * size, 1.0, deviation)


def _keys(data: AgentData) -> np.ndarray:
    """A number for each row that says nearly all about it, of mean zero and in units of its own deviation."""
    mean, deviation = spread(data.X)
    labels = np.asarray(data.y, dtype=np.float64)
    labels = (labels - labels.mean()) / (labels.std() or 1.0)
    weights = np.random.default_rng(0).uniform(0.5, 1.5, data.p + 1)
    # A column counts with the sign with which it goes along with the labels: a negated one counts the same.
    along = (data.X.T @ labels - mean * labels.sum()) / (deviation * max(1, data.n_rows))
    columns = weights[1:] * np.where(along < -1e-9, -1.0, 1.0) / deviation
    key = weights[0] * labels + data.X @ columns - mean @ columns
    key = key / (np.std(key) or 1.0)
    return -key if np.mean(key**3) < -1e-9 else key


def _rounded(keys: np.ndarray) -> np.ndarray:
    return np.round(keys, DIGITS) + 0.0  # no negative zeros
