"""Survey of a source: one pass over all rows that finds agents, encodings of columns, and labels.

Pieces are summarised one at a time, on a cluster by its workers, and the summaries are added. Neither memory here nor
network traffic grows with the number of rows.
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
from .look import MAX_LISTED_AGENTS, BadAgents, ColumnSet, Found, bundles, columns_of, look_at, title_of
from .pieces import Piece, Reading, pieces_of
from .rows import PieceRows, for_rows

__all__ = ["Survey", "collected", "survey"]

log = logging.getLogger("coterie")

#: Kinds of labels: numbers; classes, which are numbered; or labels that are left unchanged.
LABELS = ("number", "class", "any")
#: In place of a piece's single member: the piece has rows of several members, or of no member that is left.
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
    """Summarise all rows of a source in one pass.

    Parameters
    ----------
    source : Source, or any value that a Source accepts
    target : str or None
        Column of the labels; None if no piece is a table.
    agents : str, optional
        Column, or hive partition, of the agents. Default: the only partition, otherwise the name of the file.
    missing : {"fill", "error"}
        Handling of missing values among the features: with "error", an agent with missing values is a bad one.
    labels : {"number", "class", "any"}
        Kind of the labels: numbers, classes, or labels that are left unchanged.
    drop : bool
        Whether columns of numbers that are constant or copies are dropped.
    map : callable
        A function that calls another with each of many items, in order: :func:`builtins.map`, or workers of a cluster.
    owner : str
        Name of the caller, for messages.

    Returns
    -------
    Survey

    Raises
    ------
    DataError
        If agents are bad, in one error that lists all of them, unless the source skips them; or if columns of different
        pieces are incompatible.

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
            # A column is text if it is text in any piece, as in one csv file with all rows.
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
        more = f"; and {len(told) - MAX_LISTED_AGENTS} more" if len(told) > MAX_LISTED_AGENTS else ""
        log.warning("left out %d: %s%s", len(told), "; ".join(told[:MAX_LISTED_AGENTS]), more)
    columns = partial(columns_of, missing=missing, drop=drop)
    return _together(found, pieces, reading, source, out, columns, labels, owner)


@dataclass(frozen=True, eq=False)
class Survey:
    """Result of one pass over all rows; small enough to be sent to every worker, which then loads its own rows.

    Attributes
    ----------
    members : tuple
        Agent ids, in the order of results: sorted, or in the order of a mapping.
    sizes : (n,) ndarray
        Number of rows of each agent.
    columns : Columns
        Encoding of the features, equal to that of ``Columns.learn`` with all rows in memory.
    classes : ndarray or None
        The classes, sorted, if labels are classes.
    label_mean, label_scale : float or None
        Mean and standard deviation of labels that are numbers.
    left_out : dict
        Reasons why agents, and pieces without a single agent, were left out.
    agent_column : str or None
        The column, or the partition, of the ids.
    names : tuple of str or None
        Names of the features in the pieces; None for arrays.
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
    _owner: Integers = field(repr=False)  # member of all rows of each piece, or SEVERAL, or NOBODY
    _holds: dict[int, NDArray[Any]] = field(repr=False)  # members of pieces of several; a missing piece has all
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
        """Load and encode the rows of some members, given by their numbers, in the process that calls this method.

        PieceRows are grouped by agent in the order of `which`; the rows of each agent are in the order of the pieces.
        Labels are indices of classes, numbers, or unchanged.

        Parameters
        ----------
        which : (k,) array_like of int

        Returns
        -------
        Table
            Table with these k members, and codes 0..k-1.
        """
        chosen = np.asarray(which, dtype=np.int64)
        parts, y, codes, order = self.gather(chosen, self._encoded)
        matrix = _stacked(parts) if parts else np.zeros((0, len(self.columns.names)))
        # In the order of the rows, then grouped by agent: the order of reading depends on the bundles.
        place = order[grouping(codes[order], max(1, chosen.size))]
        members = tuple(self.members[k] for k in chosen.tolist())
        return Table(matrix[place], codes[place], members, self.columns, self.agent_column, y[place])

    def gather(
        self, chosen: Integers, features: Callable[[Any], Any]
    ) -> tuple[list[Any], NDArray[Any], Integers, Integers]:
        """Return rows of some members: `features` of their columns, in parts, labels, codes and the order of rows.

        Codes are indices in `chosen`.
        """
        place = np.full(self.n, -1, np.int64)
        place[chosen] = np.arange(chosen.size)
        number = {member: k for k, member in enumerate(self.members)}
        found: list[tuple[Any, NDArray[Any], Integers, Integers]] = []

        def some(rows: PieceRows) -> None:
            theirs = np.array([number.get(as_read(raw, self._ids), -1) for raw in rows.ids], np.int64)
            mine = np.where(theirs < 0, -1, place[theirs])[rows.codes]
            keep = np.flatnonzero(mine >= 0)
            if keep.size:
                rows = rows if keep.size == mine.size else rows.take(keep)
                found.append((features(rows.X), self._label_values(rows), mine[keep], rows.order))

        def failed(k: int, reason: str) -> None:
            piece = self._pieces[k]
            raise DataError(f"{title_of(piece.agent, piece.name)}: {reason}; the survey could still read this piece")

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

    def _label_values(self, rows: PieceRows) -> NDArray[Any]:
        found = Labels.read(rows.y)
        found.unusable(self._labels, rows.written is None)
        if self._labels == "number":
            return found.values.astype(np.float64)
        if self._labels == "any" or self.classes is None:
            return found.values
        values = found.values.astype(self.classes.dtype)
        return np.searchsorted(self.classes, values).astype(np.int64)

    def _named(self, X: Any) -> Any:
        """Return the columns as found: a pandas frame if they have names, otherwise the array."""
        if is_frame(X):
            X = X[list(self.names or ())]
            return X if isinstance(X, pd.DataFrame) else X.to_pandas()
        return X if self.names is None or self.is_sparse else pd.DataFrame(X, columns=list(self.names))

    def __repr__(self) -> str:
        left = f", {len(self.left_out)} left out" if self.left_out else ""
        return f"Survey({self.n} agents{left}, {int(self.sizes.sum())} rows, {self.columns!r})"


def collected(source: Any, target: Any, agents: Any, owner: str = "collected") -> tuple[Any, Any, Any, tuple[Any, ...]]:
    """Read all rows of a source into this process; return features, labels, agents and members, not encoded.

    `agents` is the name of a column of the features if a column or a partition holds ids, otherwise an id for each row.
    Bad agents are refused or left out as the source's options say.
    """
    found = survey(source, target=target, agents=agents, labels="any", owner=owner)
    parts, y, codes, order = found.gather(np.arange(found.n), found._named)
    if is_frame(parts[0]) and not found.is_sparse:
        # Concatenating frames of different categories would lose these.
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
    """Divide the numbers 0, 1, ... into `count` groups of similar total size, large ones first, to the least group."""
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
    """Combine everything that was found."""
    kept = found.reference()
    if kept is None:
        raise DataError(f"no rows in {source!r}")
    for each in found.sets.values():
        if each is not kept:
            kept.add(replace(each, names=kept.names))  # columns of arrays have no names
    found.labels.check(repr(reading.target or "y"))
    # Ids that are left out count, too, so that the type of ids does not depend on what is left out.
    known = (piece.agent for piece in pieces if piece.agent is not None)
    kind = reading_of([*found.agents, *out.agents, *known])
    ids = [as_read(raw, kind) for raw in found.agents]
    if isinstance(source.data, Mapping):  # keeps the order of the mapping
        members = tuple(dict.fromkeys(piece.agent for piece in pieces if piece.agent in found.agents))
    else:
        members = in_order(list(dict.fromkeys(ids)))
    number = {member: k for k, member in enumerate(members)}
    place = np.array([number[each] for each in ids], np.int64)  # an id may occur both as text and as a number
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
