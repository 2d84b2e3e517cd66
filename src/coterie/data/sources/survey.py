"""One look at all rows, wherever they are: who the agents are, how columns become numbers, what the labels are.

Pieces are looked at one by one, on a cluster by its workers, and what is known of them is added up. So neither memory
here nor what travels grows with the number of rows.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapreplace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from ..._checks import choice
from ...errors import DataError, ParameterError
from ..columns import Columns
from ..frames import is_frame
from ..ids import Integers, as_read, grouping, in_order, reading_of
from ..raw import Names
from ..table import Table
from . import Source, as_source
from .labels import Labels
from .look import SHOWN, BadAgents, ColumnSet, Found, bundles, columns_of, look_at, title_of
from .pieces import Piece, Reading, pieces_of
from .rows import Rows, for_rows

__all__ = ["Survey", "collected", "survey"]

log = logging.getLogger("coterie")

#: What labels are: numbers; classes, which are numbered; or left as they are.
LABELS = ("number", "class", "any")
#: In place of the member of all rows of a piece: rows of several, and of nobody that is left.
SEVERAL, NOBODY = -1, -2


def survey(
    source: Any,
    *,
    target: str | None,
    agents: str | None = None,
    missing: str = "fill",
    labels: str = "number",
    drop: bool = True,
    map: Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]] = builtins.map,
    owner: str = "Survey",
) -> Survey:
    """Look once at all rows of a source.

    Parameters
    ----------
    source : Source, or what one is made of
    target : str or None
        Column of the labels; None if no piece is a table.
    agents : str, optional
        Column, or hive partition, that says whose row it is. Default: the only partition, else the name of the file.
    missing : {"fill", "error"}
        What happens to gaps among the features: an agent that has some is a bad one with "error".
    labels : {"number", "class", "any"}
        What labels are: numbers; classes; or whatever they are, left alone.
    drop : bool
        Whether columns of numbers that are constant, or a copy of another one, are left out.
    map : callable
        Calls a function with each of many things, in order: :func:`builtins.map`, or workers of a cluster.
    owner : str
        Who asks, for messages.

    Returns
    -------
    Survey

    Raises
    ------
    DataError
        If agents are bad, with all of them, unless the source says to skip them; or if columns of different pieces do
        not go together.

    Examples
    --------
    >>> found = survey({"north": ([[1.0], [2.0]], [0, 1]), "south": ([[3.0]], [1])}, target=None)
    >>> found.members, found.sizes, found.label_mean
    (('north', 'south'), array([2, 1]), 0.6666666666666666)
    >>> found.load(np.array([1])).X
    array([[3.]])
    """
    if not (target is None or isinstance(target, str)):
        raise DataError(f"y must be the name of a column where X is a source of rows, not {type(target).__name__}")
    choice("missing", missing, ("fill", "error"))
    choice("labels", labels, LABELS)
    source = as_source(source)
    for name in (target, agents):
        if name is not None and name in (source.columns or ()):
            raise ParameterError(f"columns= names the features, but {name!r} is the column of the labels or the agents")
    pieces, column = pieces_of(source, agents)
    reading = Reading(target, column, source.columns)
    out = BadAgents()
    while True:
        look = partial(look_at, reading=reading, labels=labels, missing=missing, owner=owner, out=out.agents)
        found = Found()
        for part in map(look, bundles(pieces, out)):
            found.add(part)
        if text := found.conflicts(reading, labels):
            # As in one csv file with all rows, a column is text if any of it is.
            reading = replace(reading, text=reading.text | text)
            continue
        bad = found.bad(pieces, out)
        if not bad.problems:
            break
        others = found.leaves(bad)
        if source.bad_agents == "raise" or not others:
            raise bad.error(pieces, others)
        out = BadAgents([*out.problems, *bad.problems])
        if not found.counts(bad):
            break
    told = [f"{title}: {reason}" for title, (_, reason) in out.titles(pieces).items()]
    if told:
        more = f"; and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
        log.warning("left out %d: %s%s", len(told), "; ".join(told[:SHOWN]), more)
    columns = partial(columns_of, missing=missing, drop=drop)
    return _together(found, pieces, reading, source, out, columns, labels, owner)


@dataclass(frozen=True, eq=False)
class Survey:
    """What one look at all rows has found; small enough to send to every worker, which then loads its own rows.

    Attributes
    ----------
    members : tuple
        Agent ids, in the order of results: sorted, or as a mapping has them.
    sizes : (n,) ndarray
        Rows of each.
    columns : Columns
        How the features become numbers: what ``Columns.learn`` finds with all rows in one place.
    classes : ndarray or None
        The classes, sorted, if labels are classes.
    label_mean, label_scale : float or None
        Mean and standard deviation of labels that are numbers.
    left_out : dict
        Why agents, and pieces that are nobody's, were left out.
    agent_column : str or None
        The column, or the partition, that holds the ids.
    names : tuple of str or None
        Names of the features as they are found; None for arrays.
    is_sparse : bool
        Whether the features are a sparse matrix.
    """

    members: tuple[Hashable, ...]
    sizes: Integers
    columns: Columns
    classes: NDArray[Any] | None
    label_mean: float | None
    label_scale: float | None
    left_out: dict[Hashable, str]
    agent_column: str | None
    _pieces: tuple[Piece, ...] = field(repr=False)
    _owner: Integers = field(repr=False)  # member of all rows of a piece, or SEVERAL, or NOBODY
    _holds: dict[int, NDArray[Any]] = field(repr=False)  # members of a piece of several; all, if it is not here
    _reading: Reading = field(repr=False)
    names: Names = field(repr=False)
    _labels: str = field(repr=False)
    _ids: type = field(repr=False)
    is_sparse: bool = field(repr=False)
    _asked_by: str = field(repr=False)

    @property
    def n(self) -> int:
        """Number of agents."""
        return len(self.members)

    def load(self, which: ArrayLike) -> Table:
        """The rows of some members, by their numbers, encoded; on whichever machine this is called.

        Rows of one agent are side by side, in the order of pieces and in each piece, in the order of `which`. Labels
        are numbers of classes, numbers, or what they were.

        Parameters
        ----------
        which : (k,) array_like of int

        Returns
        -------
        Table
            Its members are these k, with codes 0..k-1.
        """
        chosen = np.asarray(which, dtype=np.int64)
        parts, y, codes, order = self.gather(chosen, self._encoded)
        matrix = _stacked(parts) if parts else np.zeros((0, len(self.columns.names)))
        # In the order of reading, then grouped: what is read together depends on who reads.
        place = order[grouping(codes[order], max(1, chosen.size))]
        members = tuple(self.members[k] for k in chosen.tolist())
        return Table(matrix[place], codes[place], members, self.columns, self.agent_column, y[place])

    def gather(
        self, chosen: Integers, features: Callable[[Any], Any]
    ) -> tuple[list[Any], NDArray[Any], Integers, Integers]:
        """All rows of some members: what `features` makes of their columns, in parts; their labels, the number of the
        member among these, and in which order they were read.
        """
        place = np.full(self.n, -1, np.int64)
        place[chosen] = np.arange(chosen.size)
        number = {member: k for k, member in enumerate(self.members)}
        found: list[tuple[Any, NDArray[Any], Integers, Integers]] = []

        def some(rows: Rows) -> None:
            theirs = np.array([number.get(as_read(raw, self._ids), -1) for raw in rows.ids], np.int64)
            mine = np.where(theirs < 0, -1, place[theirs])[rows.codes]
            keep = np.flatnonzero(mine >= 0)
            if keep.size:
                rows = rows if keep.size == mine.size else rows.take(keep)
                found.append((features(rows.X), self._label_values(rows), mine[keep], rows.order))

        def failed(k: int, reason: str) -> None:
            piece = self._pieces[k]
            raise DataError(f"{title_of(piece.agent, piece.name)}: {reason}; it could be read before")

        def wanted(k: int, owner: int) -> bool:
            if owner != SEVERAL:
                return owner >= 0 and bool(place[owner] >= 0)
            return k not in self._holds or bool((place[self._holds[k]] >= 0).any())

        pieces = ((k, self._pieces[k]) for k, owner in enumerate(self._owner.tolist()) if wanted(k, owner))
        for_rows(pieces, self._reading, some, failed)
        if not found:
            return [], np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64)
        parts, *others = zip(*found, strict=True)
        y, codes, order = map(np.concatenate, others)
        return list(parts), y, codes, np.argsort(order, kind="stable")

    def _encoded(self, X: Any) -> Any:
        if is_frame(X):
            X = X[list(self.names or ())]
        if self.is_sparse:
            return sparse.csr_array(self.columns.apply(np.asarray(X, np.float64) if is_frame(X) else X, self._asked_by))
        if self.names is not None and not is_frame(X):
            X = pd.DataFrame(X, columns=list(self.names), copy=False)
        return self.columns.apply(X, self._asked_by)

    def _label_values(self, rows: Rows) -> NDArray[Any]:
        found = Labels.read(rows.y)
        found.unusable(self._labels, rows.written is None)
        if self._labels == "number":
            return found.values.astype(np.float64)
        if self._labels == "any" or self.classes is None:
            return found.values
        values = found.values.astype(self.classes.dtype)
        return np.searchsorted(self.classes, values).astype(np.int64)

    def _named(self, X: Any) -> Any:
        """Columns as they were found: a frame of pandas if they have names, else the array."""
        if is_frame(X):
            X = X[list(self.names or ())]
            return X if isinstance(X, pd.DataFrame) else X.to_pandas()
        return X if self.names is None or self.is_sparse else pd.DataFrame(X, columns=list(self.names))

    def __repr__(self) -> str:
        left = f", {len(self.left_out)} left out" if self.left_out else ""
        return f"Survey({self.n} agents{left}, {int(self.sizes.sum())} rows, {self.columns!r})"


def collected(source: Any, target: Any, agents: Any, owner: str = "collected") -> tuple[Any, Any, Any, tuple[Any, ...]]:
    """Features, labels, agents and members of a source, all rows in one place: as they are, none of them encoded.

    The agents are the name of a column of the features where a column or a partition holds them, else an id for each
    row. Bad agents are refused or left out as the source says.
    """
    found = survey(source, target=target, agents=agents, labels="any", owner=owner)
    parts, y, codes, order = found.gather(np.arange(found.n), found._named)
    if is_frame(parts[0]) and not found.is_sparse:
        # Frames of different categories would lose them.
        kinds = zip(found.names or (), found.columns.kinds, strict=False)
        declared = [name for name, kind in kinds if kind == "category"]
        parts = [part.astype(dict.fromkeys(declared, object)) for part in parts]
        X = pd.concat(parts, ignore_index=True).astype(dict.fromkeys(declared, "category"))
        X = X.iloc[order].reset_index(drop=True)
    else:
        X = _stacked(parts)[order]
    ids = [found.members[k] for k in codes[order].tolist()]
    if found.agent_column is None:
        return X, y[order], ids, found.members
    return X.assign(**{found.agent_column: ids}), y[order], found.agent_column, found.members


def _stacked(parts: Sequence[Any]) -> Any:
    if any(map(sparse.issparse, parts)):
        return sparse.vstack([sparse.csr_array(part) for part in parts], format="csr")
    return np.concatenate(parts)


def deal(sizes: ArrayLike, count: int) -> list[Integers]:
    """Numbers 0, 1, ... dealt out to so many: large sizes first, each to the one with the least."""
    weights = np.asarray(sizes)
    hands: list[list[int]] = [[] for _ in range(max(1, min(count, weights.size)))]
    least = [(0, hand) for hand in range(len(hands))]
    for k in np.argsort(-weights, kind="stable").tolist():
        load, hand = least[0]
        hands[hand].append(k)
        heapreplace(least, (load + int(weights[k]), hand))
    return [np.array(sorted(hand), dtype=np.int64) for hand in hands if hand]


def _together(
    found: Found,
    pieces: Sequence[Piece],
    reading: Reading,
    source: Source,
    out: BadAgents,
    columns: Callable[[ColumnSet], Columns],
    labels: str,
    owner: str,
) -> Survey:
    """Everything that was found, put together."""
    kept = found.reference()
    if kept is None:
        raise DataError(f"no rows in {source!r}")
    for each in found.sets.values():
        if each is not kept:
            kept.add(replace(each, names=kept.names))  # columns of arrays, which have no names
    found.labels.check(repr(reading.target or "y"))
    # Those that are left out count, too: what others are called does not depend on it.
    known = (piece.agent for piece in pieces if piece.agent is not None)
    kind = reading_of([*found.agents, *out.agents, *known])
    ids = [as_read(raw, kind) for raw in found.agents]
    if isinstance(source.data, Mapping):  # its own order
        members = tuple(dict.fromkeys(piece.agent for piece in pieces if piece.agent in found.agents))
    else:
        members = in_order(list(dict.fromkeys(ids)))
    number = {member: k for k, member in enumerate(members)}
    place = np.array([number[each] for each in ids], np.int64)  # an id may be there twice: as written, and as a number
    sizes = np.zeros(len(members), np.int64)
    np.add.at(sizes, place, found.sizes)
    holder = np.full(len(pieces), NOBODY, np.int64)
    holds = {}
    for k, piece in enumerate(pieces):
        if piece.agent in found.agents:
            holder[k] = place[found.agents[piece.agent]]
        elif k in found.holds:
            holder[k] = SEVERAL
            if found.holds[k] is not None:
                holds[k] = np.unique(place[found.holds[k]]).astype(np.int32)
    numbers = labels == "number"
    return Survey(
        members=members,
        sizes=sizes,
        columns=columns(kept),
        classes=found.labels.classes(repr(reading.target or "y")) if labels == "class" else None,
        label_mean=found.labels.mean if numbers else None,
        label_scale=found.labels.scale if numbers else None,
        left_out={as_read(key, kind): reason for key, reason in out.titles(pieces).values()},
        agent_column=reading.agents,
        _pieces=tuple(pieces),
        _owner=holder,
        _holds=holds,
        _reading=reading,
        names=kept.names,
        _labels=labels,
        _ids=kind,
        is_sparse=kept.sparse,
        _asked_by=owner,
    )
