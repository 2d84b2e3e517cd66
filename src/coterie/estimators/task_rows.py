"""Rows of many tasks, in parts: one part in this process, or several that workers of a cluster load.

A fit computes what it needs from every part and combines the results here, by the same code wherever the rows are. From
rows on workers, only sums of columns and one number for each row are sent.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from ..data import AgentData
from ..data.agent_data import spans
from ..data.sources.survey import deal
from ..multitask.sources import Tasks, TasksHere

__all__ = ["Look", "TaskRows", "deviations", "look", "mean_squares", "spread"]

#: A function that calls another with each of many items, in order.
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class TaskRows:
    """Rows of tasks, divided into parts of some tasks each."""

    tasks: Tasks
    parts: Sequence[np.ndarray]  # numbers of the tasks of each part
    map: Map = builtins.map

    @classmethod
    def here(cls, data: AgentData) -> TaskRows:
        """Return rows in this process, in one part."""
        return cls(TasksHere(data), [np.arange(data.n)])

    @property
    def data(self) -> AgentData:
        """All rows, in this process."""
        return self.tasks.load(np.arange(self.n))

    @property
    def are_here(self) -> bool:
        """Whether the rows are in this process."""
        return isinstance(self.tasks, TasksHere)

    @property
    def n(self) -> int:
        """Number of tasks."""
        return len(self.tasks.members)

    @property
    def sizes(self) -> np.ndarray:
        """Number of rows of each task."""
        return self.tasks.sizes

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.sizes.sum())

    @property
    def owner(self) -> np.ndarray:
        """Number of the task of every row."""
        return np.repeat(np.arange(self.n), self.sizes)

    def become(self, tasks: Tasks) -> TaskRows:
        """Return the rows of tasks derived from these: computed at once in this process, otherwise where they are
        loaded.
        """
        if self.are_here:
            return TaskRows.here(tasks.load(np.arange(len(tasks.members))))
        return TaskRows(tasks, deal(tasks.sizes, len(self.parts)), self.map)

    def collect(self, function: Callable[..., Any], *of_tasks: np.ndarray) -> list[Any]:
        """Return ``function(data, numbers, ...)`` of every part; `of_tasks` are indexed by the tasks of the part."""
        items = [(which, *(each[which] for each in of_tasks)) for which in self.parts]
        return list(self.map(partial(_call, self.tasks, function), items))

    def joined(self, found: Iterable[np.ndarray]) -> np.ndarray:
        """Join the parts' values, one for each row, in the order of all rows."""
        start, out = np.cumsum(self.sizes) - self.sizes, np.empty(self.n_rows)
        for which, values in zip(self.parts, found, strict=True):
            out[spans(start[which], self.sizes[which])] = values
        return out

    def averaged(self, found: Sequence[np.ndarray], rows: Any = None) -> np.ndarray:
        """Average the parts' means over all rows; `rows` are the numbers of rows in each mean, by default all."""
        counts = np.array([self.sizes[which].sum() for which in self.parts] if rows is None else rows, dtype=float)
        shares = counts / np.maximum(counts.sum(axis=0), 1.0)
        # With one part, the result is its mean, bit by bit.
        return np.asarray(sum(share[..., None] * mean for share, mean in zip(shares, found, strict=True)))

    def sample(self, most: int) -> Any:
        """Return the features of all rows, or of `most` rows at equal distances if there are more."""
        chosen = np.unique(np.linspace(0, self.n_rows - 1, min(most, self.n_rows)).astype(np.int64))
        start = np.cumsum(self.sizes) - self.sizes
        found = self.collect(partial(_some, chosen=chosen, start=start))
        places, parts = zip(*found, strict=True)
        order = np.argsort(np.concatenate(places))
        stack = partial(sparse.vstack, format="csr") if sparse.issparse(parts[0]) else np.concatenate
        return stack(parts)[order]


def _call(tasks: Tasks, function: Callable[..., Any], item: tuple[Any, ...]) -> Any:
    which, *given = item
    return function(tasks.load(which), which, *given)


def _some(data: AgentData, which: np.ndarray, chosen: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, Any]:
    place = spans(start[which], data.sizes)
    mine = np.flatnonzero(np.isin(place, chosen, assume_unique=True))
    return place[mine], data.X[mine]


# -- means and deviations --------------------------------------------------------------------------------------------


class Look(NamedTuple):
    """Labels and column means of all rows."""

    labels: np.ndarray  # of every row
    mean: np.ndarray  # of every column
    square: np.ndarray | None  # mean squares of sparse columns, which are not centred; None for dense ones


def look(rows: TaskRows) -> Look:
    """Return labels of all rows, and means of columns."""
    labels, means = zip(*rows.collect(_first), strict=True)
    mean, *square = rows.averaged(means)
    return Look(rows.joined(labels), mean, square[0] if square else None)


def _first(data: AgentData, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    X, powers = data.X, [data.X]
    if sparse.issparse(X):
        powers.append(X.multiply(X))
    return np.asarray(data.y), np.stack([np.asarray(each.mean(axis=0)).ravel() for each in powers])


def mean_squares(X: Any, center: np.ndarray) -> np.ndarray:
    """Return mean squared distances of columns from the given centers; zeros for sparse columns."""
    if sparse.issparse(X):
        return np.zeros(X.shape[1])
    around = X - center
    around *= around
    return around.mean(axis=0)


def deviations(found: Look, squares: np.ndarray) -> np.ndarray:
    """Return standard deviations of columns from mean squares around the mean; 1 for a constant column."""
    if found.square is None:
        deviation, size = np.sqrt(squares), np.abs(found.mean)
    else:
        deviation, size = np.sqrt(np.maximum(found.square - found.mean**2, 0.0)), np.sqrt(found.square)
    return np.where(deviation <= 1e-12 * size, 1.0, deviation)


def spread(rows: TaskRows) -> tuple[Look, np.ndarray]:
    """Return labels and means of all rows, and standard deviations of columns."""
    found = look(rows)
    if found.square is not None:
        return found, deviations(found, found.square)
    return found, deviations(found, rows.averaged(rows.collect(partial(_squares, center=found.mean))))


def _squares(data: AgentData, which: np.ndarray, center: np.ndarray) -> np.ndarray:
    return mean_squares(data.X, center)
