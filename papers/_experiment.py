"""An experiment, one figure or table of a paper, and functions that select its rows."""

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

#: Settings and results of a piece, in one dictionary of json values.
Row = dict[str, Any]

#: A generator that yields lists of settings of independent pieces, and is sent their rows.
Plan = Generator[list[dict[str, Any]], list[Row], Any]


@dataclass(frozen=True)
class Experiment:
    """One figure or table of a paper."""

    name: str
    title: str
    #: ``plan(quick)`` is a generator. It yields a list of settings, a dictionary for each independent piece, and is
    #: sent the rows of these pieces, in the same order; then it may yield more, such as pieces with tuned parameters.
    plan: Callable[[bool], Plan]
    #: ``work(**settings)`` runs one piece, and returns numbers, strings and lists by name, without the settings. It
    #: must be a function of a module, because it may run in another process.
    work: Callable[..., Row]
    #: ``claims(rows)``: the paper's claims, judged by the rows of all pieces.
    claims: Callable[[list[Row]], Sequence[Claim]]
    draw: Callable[[list[Row]], Figure]
    #: Approximate minutes of one core at full size.
    minutes: float
    #: ``tables(rows)``: further tables to print, by their titles.
    tables: Callable[[list[Row]], Mapping[str, pd.DataFrame]] | None = None
    #: Real datasets that are needed, by their names in :mod:`coterie.datasets`.
    data: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, module: ModuleType) -> Experiment:
        """Return the experiment of a module."""
        title = (module.__doc__ or "").splitlines()[0].removesuffix(".")
        claims = partial(_claims, module)
        tables, data = getattr(module, "tables", None), getattr(module, "DATA", ())
        return cls(name, title, module.plan, module.work, claims, module.draw, module.MINUTES, tables, data)

    @property
    def paper(self) -> str:
        """Name of the paper."""
        return self.name.rsplit("-figure-", 1)[0].rsplit("-table-", 1)[0]

    @property
    def missing(self) -> list[str]:
        """Names of real datasets that are needed, but missing on this machine."""
        return [name for name in self.data if find(name) is None]


def _claims(module: Any, rows: list[Row]) -> list[Claim]:
    return judged(module.CLAIMS, module.numbers(rows)) if module.CLAIMS else []


def where(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """Return the rows with the given settings or numbers; rows without such a name are skipped."""
    return [row for row in rows if all(name in row and row[name] == value for name, value in wanted.items())]


def column(rows: Sequence[Row], name: str, **wanted: Any) -> list[Any]:
    """Return one number of each row found by :func:`where`."""
    return [row[name] for row in where(rows, **wanted)]


def values(rows: Sequence[Row], name: str, **wanted: Any) -> np.ndarray:
    """Return the numbers of :func:`column` as an array."""
    return np.array(column(rows, name, **wanted))


def best(rows: Sequence[Row], score: str, *names: str, highest: bool = True) -> tuple[Any, ...]:
    """Return the settings with the best mean score over the rows, one for each name; of equal ones the first.

    For tuning on instances or folds whose results are not reported.
    """
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row[score])
    sign = 1.0 if highest else -1.0
    return max(groups, key=lambda key: sign * sum(groups[key]) / len(groups[key]))


def best_along(rows: Sequence[Row], score: str, grid: Sequence[Any]) -> Any:
    """Return the value of a grid with the highest mean score; each row has a list of scores along the grid."""
    return grid[int(np.argmax(np.mean(column(rows, score), axis=0)))]


def held_out(data: AgentData, fold: int, count: int = 3, by_class: bool = True) -> tuple[AgentData, AgentData]:
    """Return training and test rows of one fold; the rows of every agent are split into `count` folds."""
    tested = np.empty(data.n_rows, dtype=bool)
    tested[data.origin] = folds(data.owner, count, 0, data.y if by_class else None) == fold  # masks: as in the input
    return data.restrict(~tested), data.restrict(tested)
