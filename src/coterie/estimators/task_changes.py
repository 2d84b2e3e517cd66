"""What a fit makes of the rows of tasks, on the machine that has loaded them: a few small parameters go there."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..core.offsets import with_offsets
from ..data import AgentData
from ..data.columns import Where
from ..data.matrix import as_features, nonfinite
from ..errors import DataError
from ..multitask.sources import Tasks
from .canonical import standard_units
from .intercepts import fold_numbers, some_rows, without_levels
from .models import products
from .over_graph import scaled
from .task_rows import TaskRows

# What changes rows is a function of them, with a few parameters first that :func:`functools.partial` takes up.


def encoded(label_mean: float, label_unit: float, data: AgentData, which: np.ndarray) -> AgentData:
    """Features in double precision, and labels in standard units; all 0 if the unit is."""
    return data._like(X=data.X.astype(np.float64, copy=False), y=standard_units(data.y, label_mean, label_unit))


def in_units(center: np.ndarray, scale: np.ndarray, data: AgentData, which: np.ndarray) -> AgentData:
    """Columns in standard units; sparse ones are not centred."""
    return data.with_features(scaled(data.X, center, scale))


def with_map(features: Any, data: AgentData, which: np.ndarray) -> AgentData:
    """What a fitted feature map makes of rows."""
    return data.with_features(mapped(features, data.X.copy(), data.where))


class Levels(NamedTuple):
    """What the levels of tasks explain of one output."""

    output: int | None  # the class that is told from the rest
    center: np.ndarray | None  # of all columns; None if they are sparse
    part: np.ndarray  # of its mean that each task is less
    own: np.ndarray  # level of each task
    numbers: tuple[float, float] | None  # mean and unit of labels that are numbers


def without_task_levels(levels: Levels, data: AgentData, which: np.ndarray) -> AgentData:
    """Rows and labels of one output, less what the levels of their tasks explain.

    Labels -1 and +1 carry their task's level as an offset. Numbers are less a part of their task's mean, as features
    are; less their task's level, if these are sparse.
    """
    part, own = levels.part[which], levels.own[which][data.owner]
    labels = labels_of(data.y, levels.output)
    X = data.X if data.is_sparse else without_levels(data.X, data, part, levels.center)
    if levels.numbers is None:
        return data._like(X=X, y=with_offsets(labels, own))
    mean, unit = levels.numbers
    left = labels - own if data.is_sparse else without_levels(labels, data, part, mean)
    return data._like(X=X, y=left / unit)


@dataclass(frozen=True)
class TrainingTasks(Tasks):
    """Tasks with the rows that are not of one fold; tasks of which none is left are left out."""

    fold: int
    numbers: np.ndarray  # of the tasks
    left: np.ndarray  # rows of each

    @classmethod
    def of(cls, rows: TaskRows, folds: np.ndarray, fold: int) -> TrainingTasks:
        """All but one fold, by the fold of every row."""
        sizes = np.bincount(rows.owner[folds != fold], minlength=rows.n)
        numbers = np.flatnonzero(sizes)
        return cls(rows.tasks, fold, numbers, sizes[numbers])

    @cached_property
    def members(self) -> tuple[Hashable, ...]:  # type: ignore[override]  # once
        """Ids of the tasks."""
        return tuple(self.found.members[k] for k in self.numbers.tolist())

    @property
    def sizes(self) -> np.ndarray:
        """Rows of each task."""
        return self.left

    def load(self, which: ArrayLike) -> AgentData:
        """The rows of some tasks."""
        numbers = self.numbers[np.asarray(which)]
        folds = fold_numbers(self.found.sizes, numbers)
        return some_rows(self.found.load(numbers), folds != self.fold)


# -- what is asked of rows -------------------------------------------------------------------------------------------


def centers(rows: TaskRows, folds: int) -> np.ndarray:
    """Means of columns, (1 + folds, p): of all rows; and, for each of so many folds, of the rows that are not of it."""
    means, counts = zip(*rows.collect(partial(_means, rows.sizes, folds)), strict=True)
    return rows.averaged(means, counts)


def _means(sizes: np.ndarray, folds: int, data: AgentData, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    means, counts = np.zeros((1 + folds, data.p)), np.zeros(1 + folds)
    means[0], counts[0] = data.X.mean(axis=0), data.n_rows
    numbers = fold_numbers(sizes, which)
    for k in range(folds):
        train = np.flatnonzero(numbers != k)
        if train.size:
            means[1 + k], counts[1 + k] = data.X[train].mean(axis=0), train.size
    return means, counts


def held_out_margins(rows: TaskRows, models: np.ndarray) -> np.ndarray:
    """``x . w`` of every row, by the models (m, FOLDS, d) that have not seen its fold."""
    return rows.joined(rows.collect(partial(_held_out, rows.sizes), models))


def _held_out(sizes: np.ndarray, data: AgentData, which: np.ndarray, models: np.ndarray) -> np.ndarray:
    return products(data.X, models[data.owner, fold_numbers(sizes, which)])


def margins(rows: TaskRows, models: np.ndarray) -> np.ndarray:
    """``x . w_i`` of every row, by the models (m, d) of the tasks."""
    return rows.joined(rows.collect(_margins, models))


def _margins(data: AgentData, which: np.ndarray, models: np.ndarray) -> np.ndarray:
    return products(data.X, models[data.owner])


# -- one row after the other -----------------------------------------------------------------------------------------


def labels_of(y: Any, output: int | None) -> np.ndarray:
    """Labels of one output: -1 and +1 by the number of a class, or what they are if there is only one."""
    return np.asarray(y) if output is None else np.where(np.asarray(y) == output, 1.0, -1.0)


def mapped(features: Any, X: Any, where: Where) -> Any:
    """What a fitted feature map makes of rows, checked."""
    count, (matrix, _) = X.shape[0], as_features(features.transform(X))
    if matrix.shape[0] != count:
        raise DataError(f"{features!r} made {matrix.shape[0]} rows of {count}: expected one for each")
    rows, _ = nonfinite(matrix)
    if rows.size:
        raise DataError(f"{where(int(rows[0]))}: {features!r} makes NaN or infinity of it")
    return matrix
