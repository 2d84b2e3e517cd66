"""What one figure or table is made of, and how its rows are picked."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from coterie.data import AgentData
from coterie.datasets.sources import find
from coterie.estimators.tuning import folds

from ._claims import Claim, judged

#: What a piece was asked and what it found, in one dictionary that json can hold.
Row = dict[str, Any]

#: Yields the settings of pieces that can be worked out side by side, and is sent what they found.
Plan = Generator[list[dict[str, Any]], list[Row], Any]


@dataclass(frozen=True)
class Experiment:
    """One figure or table of a paper."""

    name: str
    title: str
    #: ``plan(quick)`` is a generator. It yields a list of settings, a dictionary for each independent piece, and is
    #: sent the rows of these pieces, in the same order; then it may yield more, such as pieces with tuned parameters.
    plan: Callable[[bool], Plan]
    #: ``work(**settings)`` works out one piece: numbers, strings and lists by name, without any name of the settings.
    #: A function of a module, for it may run in another process.
    work: Callable[..., Row]
    #: ``claims(rows)``: what the paper says, beside the rows of all pieces.
    claims: Callable[[list[Row]], Sequence[Claim]]
    draw: Callable[[list[Row]], Figure]
    #: About how long it takes at full size on one core.
    minutes: float
    #: ``tables(rows)``: further tables to print, by their titles.
    tables: Callable[[list[Row]], Mapping[str, pd.DataFrame]] | None = None
    #: Real datasets that are needed, by their names in :mod:`coterie.datasets`.
    data: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, module: ModuleType) -> Experiment:
        """The experiment that a module is."""
        title = (module.__doc__ or "").splitlines()[0].removesuffix(".")
        claims = partial(_claims, module)
        tables, data = getattr(module, "tables", None), getattr(module, "DATA", ())
        return cls(name, title, module.plan, module.work, claims, module.draw, module.MINUTES, tables, data)

    @property
    def paper(self) -> str:
        """The name without what it is in the paper."""
        return self.name.rsplit("-figure-", 1)[0].rsplit("-table-", 1)[0]

    @property
    def missing(self) -> list[str]:
        """Real datasets that are needed and not there."""
        return [name for name in self.data if find(name) is None]


def _claims(module: Any, rows: list[Row]) -> list[Claim]:
    return judged(module.CLAIMS, module.numbers(rows)) if module.CLAIMS else []


def where(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The rows whose settings, or numbers, are these; a row without such a name is left out."""
    return [row for row in rows if all(name in row and row[name] == value for name, value in wanted.items())]


def column(rows: Sequence[Row], name: str, **wanted: Any) -> list[Any]:
    """One number of each of the rows :func:`where` finds."""
    return [row[name] for row in where(rows, **wanted)]


def values(rows: Sequence[Row], name: str, **wanted: Any) -> np.ndarray:
    """The same as an array."""
    return np.array(column(rows, name, **wanted))


def best(rows: Sequence[Row], score: str, *names: str, highest: bool = True) -> tuple[Any, ...]:
    """The settings whose mean score over the rows is best, one for each name; of equal ones the first.

    This is tuning, by instances or folds that nothing is reported of.
    """
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row[score])
    sign = 1.0 if highest else -1.0
    return max(groups, key=lambda key: sign * sum(groups[key]) / len(groups[key]))


def best_along(rows: Sequence[Row], score: str, grid: Sequence[Any]) -> Any:
    """The value of a grid whose mean score over the rows, each of which has a list along the grid, is the highest."""
    return grid[int(np.argmax(np.mean(column(rows, score), axis=0)))]


def held_out(data: AgentData, fold: int, count: int = 3, by_class: bool = True) -> tuple[AgentData, AgentData]:
    """Rows to train on and to test on, in one of some folds of everybody's own rows."""
    tested = np.empty(data.n_rows, dtype=bool)
    tested[data.origin] = folds(data.owner, count, 0, data.y if by_class else None) == fold  # masks: as in the input
    return data.restrict(~tested), data.restrict(tested)
