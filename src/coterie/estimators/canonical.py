"""A canonical order of rows and agents, which does not depend on the order and names in the input.

Rounding, random numbers and the order of wakes depend on the numbers of rows and agents. Estimators number rows and
agents by their contents, so that the order of the rows, the names of the agents and the units of the columns do not
change what is learned.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..data import AgentData
from ..multitask.sources import Tasks
from .task_rows import TaskRows, deviations, look, mean_squares

#: Decimals to which keys are rounded, in standard deviations: beyond them, keys depend on the columns' units.
KEY_DECIMALS = 9

__all__ = ["by_content"]


@dataclass(frozen=True)
class Keys:
    """Key of a row: one number, a fixed combination of its label and columns."""

    label_mean: float
    label_unit: float
    label_weight: float
    column_weights: np.ndarray
    level: float  # of the weighted columns
    unit: float  # negative if the order of keys is reversed

    def of(self, data: AgentData, which: Any = None) -> np.ndarray:
        """Return the key of every row."""
        labels = standard_units(data.y, self.label_mean, self.label_unit)
        return (self.label_weight * labels + data.X @ self.column_weights - self.level) / self.unit


@dataclass(frozen=True)
class OrderedTasks(Tasks):
    """Tasks in another order, the rows of each ordered by key; task k is task ``order[k]`` of the original ones."""

    order: np.ndarray
    keys: Keys

    @cached_property
    def members(self) -> tuple[Hashable, ...]:  # type: ignore[override]  # once
        """Ids of the tasks."""
        return tuple(self.found.members[k] for k in self.order.tolist())

    @property
    def sizes(self) -> np.ndarray:
        """Number of rows of each task."""
        sizes: np.ndarray = self.found.sizes[self.order]
        return sizes

    def load(self, which: ArrayLike) -> AgentData:
        """Return the rows of the given tasks."""
        numbers = self.order[np.asarray(which)]
        held = np.argsort(numbers)
        data, place = self.found.load(numbers[held]), np.argsort(held)
        rows = np.lexsort([_rounded(self.keys.of(data)), held[data.owner]])
        return data._rows(rows, data.sizes[place], members=tuple(data.members[k] for k in place.tolist()))


def by_content(rows: TaskRows) -> tuple[TaskRows, np.ndarray]:
    """Order rows and agents by features and labels alone; agent k of the result is agent ``order[k]`` of `rows`.

    The key of a row is a fixed combination of its standardised columns. Agents are ordered by their number of rows,
    then by the first three moments of their rows' keys. Scaling, shifting or negating a column, or the labels, does not
    change the keys. Agents with identical rows, or without rows, keep their order.
    """
    keys, key = _keys(rows)
    size, owner = np.maximum(rows.sizes, 1), rows.owner
    moments = [_rounded(np.bincount(owner, weights=key**k, minlength=rows.n) / size) for k in (3, 2, 1)]
    order = np.lexsort([*moments, rows.sizes])
    return rows.become(OrderedTasks(rows.tasks, order, keys)), order


def standard_units(values: Any, mean: float, unit: float) -> np.ndarray:
    """Return numbers minus their mean, in standard deviations; zeros if the deviation is 0."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.zeros_like(numbers) if unit == 0.0 else (numbers - mean) / unit


def _keys(rows: TaskRows) -> tuple[Keys, np.ndarray]:
    """Return the keys' parameters and the key of every row; keys have mean 0 and standard deviation 1."""
    found = look(rows)
    at, unit = float(found.labels.mean()), float(found.labels.std() or 1.0)
    squares, products = zip(
        *rows.collect(partial(_second, mean=found.mean, label_mean=at, label_unit=unit)), strict=True
    )
    mean, deviation = found.mean, deviations(found, rows.averaged(squares))
    total = ((found.labels - at) / unit).sum()
    weights = np.random.default_rng(0).uniform(0.5, 1.5, len(mean) + 1)
    # A column's weight has the sign of its correlation with the labels: negating the column does not change the key.
    along = (sum(products) - mean * total) / (deviation * max(1, rows.n_rows))
    columns = weights[1:] * np.where(along < -1e-9, -1.0, 1.0) / deviation
    keys = Keys(at, unit, float(weights[0]), columns, float(mean @ columns), 1.0)
    key = rows.joined(rows.collect(keys.of))
    size = float(np.std(key) or 1.0)
    size = -size if np.mean((key / size) ** 3) < -1e-9 else size
    return replace(keys, unit=size), key / size


def _second(
    data: AgentData, which: np.ndarray, mean: np.ndarray, label_mean: float, label_unit: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean squares of the columns, and their products with the labels."""
    return mean_squares(data.X, mean), data.X.T @ standard_units(data.y, label_mean, label_unit)


def _rounded(keys: np.ndarray) -> np.ndarray:
    return np.round(keys, KEY_DECIMALS) + 0.0  # no negative zeros
