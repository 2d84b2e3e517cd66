"""Changes of the rows of tasks at fit, made where the rows are loaded; only small parameters are sent there."""

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

# Every change is a function of the rows, after a few parameters that :func:`functools.partial` sets.


def encoded(label_mean: float, label_unit: float, data: AgentData, which: np.ndarray) -> AgentData:
    """Return features in double precision, and labels in standard units; labels are 0 if the unit is."""
    return data._like(X=data.X.astype(np.float64, copy=False), y=standard_units(data.y, label_mean, label_unit))


def in_units(center: np.ndarray, scale: np.ndarray, data: AgentData, which: np.ndarray) -> AgentData:
    """Return columns in standard units; sparse columns are not centred."""
    return data.with_features(scaled(data.X, center, scale))


def with_map(features: Any, data: AgentData, which: np.ndarray) -> AgentData:
    """Return the columns that a fitted feature map makes."""
    return data.with_features(mapped(features, data.X.copy(), data.where))


class Levels(NamedTuple):
    """The part of one output that the levels (intercepts) of tasks explain."""

    output: int | None  # the class learned against the rest; None for the only output
    center: np.ndarray | None  # means of all columns; None if they are sparse
    part: np.ndarray  # part of each task's mean to subtract
    own: np.ndarray  # level of each task
    numbers: tuple[float, float] | None  # mean and unit of labels that are numbers


def without_task_levels(levels: Levels, data: AgentData, which: np.ndarray) -> AgentData:
    """Return rows and labels of one output, minus the part that the levels of their tasks explain.

    Labels -1 and +1 carry their task's level as an offset. From numbers, as from features, a part of their task's mean
    is subtracted; if features are sparse, the task's level is.
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
    """Tasks with the rows outside one fold; tasks without such rows are skipped."""

    fold: int
    numbers: np.ndarray  # of the tasks
    left: np.ndarray  # number of training rows of each task

    @classmethod
    def of(cls, rows: TaskRows, folds: np.ndarray, fold: int) -> TrainingTasks:
        """Return the tasks without the rows of one fold, given the fold of every row."""
        sizes = np.bincount(rows.owner[folds != fold], minlength=rows.n)
        numbers = np.flatnonzero(sizes)
        return cls(rows.tasks, fold, numbers, sizes[numbers])

    @cached_property
    def members(self) -> tuple[Hashable, ...]:  # type: ignore[override]  # once
        """Ids of the tasks."""
        return tuple(self.found.members[k] for k in self.numbers.tolist())

    @property
    def sizes(self) -> np.ndarray:
        """Number of rows of each task."""
        return self.left

    def load(self, which: ArrayLike) -> AgentData:
        """Return the rows of the given tasks."""
        numbers = self.numbers[np.asarray(which)]
        folds = fold_numbers(self.found.sizes, numbers)
        return some_rows(self.found.load(numbers), folds != self.fold)


# -- computations over all rows --------------------------------------------------------------------------------------


def centers(rows: TaskRows, folds: int) -> np.ndarray:
    """Return means of columns, (1 + folds, p): of all rows, and of the rows outside each fold."""
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
    """Return ``x . w`` of every row, by the models (m, FOLDS, d) that were trained without its fold."""
    return rows.joined(rows.collect(partial(_held_out, rows.sizes), models))


def _held_out(sizes: np.ndarray, data: AgentData, which: np.ndarray, models: np.ndarray) -> np.ndarray:
    return products(data.X, models[data.owner, fold_numbers(sizes, which)])


def margins(rows: TaskRows, models: np.ndarray) -> np.ndarray:
    """Return ``x . w_i`` of every row, by the models (m, d) of the tasks."""
    return rows.joined(rows.collect(_margins, models))


def _margins(data: AgentData, which: np.ndarray, models: np.ndarray) -> np.ndarray:
    return products(data.X, models[data.owner])


# -- one row after the other -----------------------------------------------------------------------------------------


def labels_of(y: Any, output: int | None) -> np.ndarray:
    """Return the labels of one output: -1 and +1 for a class against the rest, or unchanged if there is only one."""
    return np.asarray(y) if output is None else np.where(np.asarray(y) == output, 1.0, -1.0)


def mapped(features: Any, X: Any, where: Where) -> Any:
    """Return the columns that a fitted feature map makes, checked."""
    count, (matrix, _) = X.shape[0], as_features(features.transform(X))
    if matrix.shape[0] != count:
        raise DataError(f"{features!r} made {matrix.shape[0]} rows of {count}: expected one row for each")
    rows, _ = nonfinite(matrix)
    if rows.size:
        raise DataError(f"{where(int(rows[0]))}: {features!r} makes NaN or infinity of it")
    return matrix
