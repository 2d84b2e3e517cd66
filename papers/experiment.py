"""What one figure or table is made of."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from coterie.datasets.sources import find

from .claims import Claim

#: What a piece was asked and what it found, in one dictionary that json can hold.
Row = dict[str, Any]

#: Yields the settings of pieces that can be worked out side by side, and is sent what they found.
Plan = Generator[list[dict[str, Any]], list[Row], Any]


@dataclass(frozen=True)
class Experiment:
    """One figure or table of a paper.

    Attributes
    ----------
    name : str
        What it is called on the command line, such as "dada-figure-1".
    title : str
        What it shows, in one line.
    plan : callable
        ``plan(quick)`` is a generator. It yields a list of settings, one dictionary for each independent piece, and is
        sent the rows of these pieces, in the same order; then it may yield more, such as the pieces whose
        hyper-parameters were tuned by the first ones.
    work : callable
        ``work(**settings)`` works out one piece: a dictionary of numbers, strings and lists, without any name of the
        settings. A function of a module, for it may run in another process.
    claims : callable
        ``claims(rows)``: what the paper says, beside the rows of all pieces.
    draw : callable
        ``draw(rows)``: the figure.
    minutes : float
        About how long it takes at full size on one core.
    tables : callable, optional
        ``tables(rows)``: further tables to print, by their titles.
    data : sequence of str
        Real datasets that are needed, by their names in :mod:`coterie.datasets`.
    """

    name: str
    title: str
    plan: Callable[[bool], Plan]
    work: Callable[..., Row]
    claims: Callable[[list[Row]], Sequence[Claim]]
    draw: Callable[[list[Row]], Figure]
    minutes: float
    tables: Callable[[list[Row]], Mapping[str, pd.DataFrame]] | None = None
    data: Sequence[str] = ()

    @property
    def paper(self) -> str:
        """The name without what it is in the paper.

        Examples
        --------
        >>> from papers import find
        >>> find("djam-figure-1")[0].paper
        'djam'
        """
        return self.name.rsplit("-figure-", 1)[0].rsplit("-table-", 1)[0]

    @property
    def missing(self) -> list[str]:
        """Real datasets that are needed and not there.

        Examples
        --------
        >>> from papers import find
        >>> find("propagation-admm-figure-4")[0].missing
        []
        """
        return [name for name in self.data if find(name) is None]


def where(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The rows whose settings, or numbers, are these.

    Parameters
    ----------
    rows : sequence of dict
    **wanted
        Values by name. A row without such a name is left out.

    Returns
    -------
    list of dict

    Examples
    --------
    >>> where([{"p": 2, "seed": 0}, {"p": 50, "seed": 0}, {"seed": 1}], p=2)
    [{'p': 2, 'seed': 0}]
    """
    return [row for row in rows if all(name in row and row[name] == value for name, value in wanted.items())]


def column(rows: Sequence[Row], name: str, **wanted: Any) -> list[Any]:
    """One number of each of the rows :func:`where` finds.

    Parameters
    ----------
    rows : sequence of dict
    name : str
    **wanted

    Returns
    -------
    list

    Examples
    --------
    >>> column([{"p": 2, "error": 0.1}, {"p": 50, "error": 0.3}], "error", p=50)
    [0.3]
    """
    return [row[name] for row in where(rows, **wanted)]


def best(rows: Sequence[Row], score: str, *names: str, highest: bool = True) -> tuple[Any, ...]:
    """The settings whose mean score over the rows is best: tuning, by instances or folds that nothing is reported of.

    Parameters
    ----------
    rows : sequence of dict
    score : str
        Name of what is averaged.
    *names : str
        The settings to choose.
    highest : bool
        Whether more is better.

    Returns
    -------
    tuple
        One value for each name. Of equal scores the first wins.

    Examples
    --------
    >>> rows = [{"mu": 1, "error": 0.2}, {"mu": 1, "error": 0.4}, {"mu": 9, "error": 0.1}]
    >>> best(rows, "error", "mu", highest=False)
    (9,)
    """
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row[score])
    sign = 1.0 if highest else -1.0
    return max(groups, key=lambda key: sign * sum(groups[key]) / len(groups[key]))
