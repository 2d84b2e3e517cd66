"""Summaries of the pieces of a source, computed on workers or in this process, and combined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ...errors import DataError
from ..columns import Columns, decide, plain
from ..frames import hint
from ..gaps import infinite_rows
from ..raw import Names, RawTable, label_of, read, sparse_means
from ..summaries import Numbers, Texts, copies_by_prints, summarise
from .labels import Labels, LabelSummary
from .pieces import Piece, Reading
from .rows import PieceRows, for_rows

#: Maximum number of pieces, and of their bytes, in one task of a worker. The result does not depend on the bundles.
MAX_BUNDLE_PIECES, MAX_BUNDLE_BYTES = 128, 16_000_000
#: Up to this number of agents, the agents of a piece are stored; also up to 1/16 of all agents.
MIN_STORED_AGENTS = 4096
#: Maximum number of bad agents that a message lists.
MAX_LISTED_AGENTS = 20

# -- agents whose rows cannot be used ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """Reason why an agent, or a piece without a single agent, cannot be used."""

    piece: int | None  # number of the piece
    agent: Hashable  # id as read; None if not known
    reason: str
    harmless: bool = False  # whether the other rows of the piece can be used


@dataclass(frozen=True)
class BadAgents:
    """Agents and pieces that cannot be used, or that are left out."""

    problems: Sequence[Fault] = ()

    @property
    def agents(self) -> set[Hashable]:
        """Ids, as read, of the bad agents."""
        return {problem.agent for problem in self.problems if problem.agent is not None}

    @property
    def pieces(self) -> set[int]:
        """Numbers of the pieces that cannot be used at all."""
        return {p.piece for p in self.problems if p.agent is None and p.piece is not None and not p.harmless}

    def titles(self, pieces: Sequence[Piece]) -> dict[str, tuple[Hashable, str]]:
        """Return for each bad agent or piece its name in messages, its id, and the first reason."""
        found: dict[Hashable, tuple[str, str]] = {}
        for problem in self.problems:
            name = "" if problem.piece is None else pieces[problem.piece].name
            key = name if problem.agent is None else problem.agent
            title = name if problem.agent is None else title_of(problem.agent, name)
            found.setdefault(key, (title, problem.reason))
        return {title: (key, reason) for key, (title, reason) in found.items()}

    def error(self, pieces: Sequence[Piece], others: bool) -> DataError:
        """Return one error that lists them all; if `others` can be used, with advice on how to leave these out."""
        titles = self.titles(pieces)
        lines = [f"{title}: {reason}" for title, (_, reason) in titles.items()]
        skip = '; correct what is wrong, or leave such agents out: ct.data.Source(..., bad_agents="skip")'
        advice = skip if others else ""
        if len(lines) == 1:
            return DataError(lines[0] + advice)
        if len({reason for _, reason in titles.values()}) == 1:
            return DataError(f"{len(lines)} times the same problem, first in {lines[0]}{advice}")
        more = f"\n  and {len(lines) - MAX_LISTED_AGENTS} more" if len(lines) > MAX_LISTED_AGENTS else ""
        listed = "".join(f"\n  {line}" for line in lines[:MAX_LISTED_AGENTS])
        return DataError(f"{len(lines)} agents or files cannot be used{advice}:{listed}{more}")


def title_of(agent: Hashable, name: str) -> str:
    """Name an agent, and the place of its rows, in an error."""
    if agent is None:
        return name
    shown = repr(str(agent)) if isinstance(agent, str) else repr(agent)
    return f"agent {shown} ({name})" if name else f"agent {shown}"


# -- columns of pieces from several places -----------------------------------------------------------------------------


@dataclass
class ColumnSet:
    """Summary of the columns of pieces with the same columns, in any order."""

    names: Names
    columns: list[Any]  # summary of each column: Numbers or Texts
    kinds: list[dict[str, str]]  # of each column: the kinds found, each with the name of a piece with it
    pieces: list[int]
    single: bool  # whether all pieces have single precision
    sparse: bool  # whether any piece is a sparse matrix

    def add(self, other: ColumnSet) -> None:
        """Add the columns of other pieces, matched by name."""
        order = list(range(len(other.columns)))
        if self.names != other.names:
            place = {name: j for j, name in enumerate(other.names or ())}
            order = [place[name] for name in self.names or ()]
        self.columns = [_added(mine, other.columns[j]) for mine, j in zip(self.columns, order, strict=True)]
        self.kinds = [other.kinds[j] | mine for mine, j in zip(self.kinds, order, strict=True)]
        self.pieces += other.pieces
        self.single, self.sparse = self.single and other.single, self.sparse or other.sparse


def _added(one: Any, other: Any) -> Any:
    """Return the summary of both columns; a column of gaps fits any. Incompatible kinds are reported later."""
    if isinstance(one, Numbers) == isinstance(other, Numbers):
        return one + other
    for empty, some in ((one, other), (other, one)):
        if empty.gaps == empty.rows:
            if isinstance(some, Numbers):
                return Numbers(empty.rows, empty.rows, 0.0, True, gaps_print=empty.gaps_print) + some
            return Texts(empty.rows, empty.rows, {}, True, {}, empty.gaps_print) + some
    return one


def difference(one: ColumnSet, reference: ColumnSet, pieces: Sequence[Piece]) -> str:
    """Describe how the columns of a piece differ from those of most other pieces."""
    other = pieces[reference.pieces[0]]
    example = other.name or f"agent {other.agent!r}"
    if one.names is None or reference.names is None:
        return f"{len(one.columns)} features, but {example} has {len(reference.columns)}; all need the same"
    if lost := [name for name in reference.names if name not in one.names]:
        return f"no column {lost[0]!r}, which {example} has; {hint(lost[0], one.names)}"
    more = [name for name in one.names if name not in reference.names]
    return f"a column {more[0]!r} that {example} does not have; name the features: ct.data.Source(..., columns=[...])"


def columns_of(found: ColumnSet, missing: str, drop: bool) -> Columns:
    """Decide how the columns of all pieces are encoded."""
    if found.sparse:
        for j, column in enumerate(found.columns):
            if isinstance(column, Texts) or column.gaps:
                what = "text" if isinstance(column, Texts) else "gaps"
                raise DataError(
                    f"column {label_of(j, found.names)} holds {what}, and the rows of other agents are sparse matrices,"
                    " which hold numbers only"
                )
        return plain([column.mean for column in found.columns], missing)
    for j, kinds in enumerate(found.kinds):
        numbers = kinds.keys() & {"number", "written number", "written bool"}
        texts = kinds.keys() & {"text", "category", "written text"}
        if numbers and texts:
            one, other = next(iter(numbers)), next(iter(texts))
            raise DataError(
                f"column {label_of(j, found.names)} holds numbers in {kinds[one]} and"
                f" {'a category' if other == 'category' else 'text'} in {kinds[other]}; make it one of them"
            )
    copies = partial(copies_by_prints, found.columns, found.single)
    return decide(found.names, found.columns, missing, copies, drop)


# -- summaries of pieces ----------------------------------------------------------------------------------------------


@dataclass
class Found:
    """Summary of some pieces."""

    sets: dict[Any, ColumnSet] = field(default_factory=dict)
    agents: dict[Hashable, int] = field(default_factory=dict)  # ids as read, numbered in order of appearance
    sizes: list[int] = field(default_factory=list)
    holds: dict[int, Any] = field(default_factory=dict)  # agents of each piece with several agents; None if too many
    labels: LabelSummary = field(default_factory=LabelSummary)
    problems: list[Fault] = field(default_factory=list)

    def add(self, other: Found) -> None:
        """Add the summary of the next pieces."""
        for key, columns in other.sets.items():
            self.add_columns(key, columns)
        numbers = np.array([self.count(*each) for each in zip(other.agents, other.sizes, strict=True)], np.int64)
        for piece, held in other.holds.items():
            self.hold(piece, None if held is None else numbers[held])
        self.labels = self.labels + other.labels
        self.problems += other.problems

    def add_columns(self, key: Any, columns: ColumnSet) -> None:
        """Add a set of columns; sets with the same key are merged."""
        if key in self.sets:
            self.sets[key].add(columns)
        else:
            self.sets[key] = columns

    def count(self, raw: Hashable, rows: int) -> int:
        """Add some rows of an agent, and return its number."""
        k = self.agents.setdefault(raw, len(self.agents))
        if k == len(self.sizes):
            self.sizes.append(0)
        self.sizes[k] += rows
        return k

    def hold(self, piece: int, agents: Any) -> None:
        """Store which agents have rows in a piece, or None for too many agents: the piece is then always read."""
        before = self.holds.get(piece, np.zeros(0, np.int32))
        both = None if agents is None or before is None else np.union1d(before, agents).astype(np.int32)
        self.holds[piece] = None if both is None or both.size > max(MIN_STORED_AGENTS, len(self.agents) // 16) else both

    def conflicts(self, reading: Reading, labels: str) -> frozenset[str]:
        """Return columns of csv files and paths that must be read as text."""
        found: dict[str, set[str]] = defaultdict(set)
        for each in self.sets.values():
            for name, kinds in zip(each.names or (), each.kinds, strict=False):
                found[name].update(kinds)
        if reading.target is not None and labels != "number":
            found[reading.target].update(self.labels.kinds)
        numbers = {"written number", "written bool"}
        return frozenset(
            name
            for name, those in found.items()
            if name not in reading.text
            and (len(those & {*numbers, "written text"}) > 1 or (those & numbers and "text" in those))
        )

    def bad(self, pieces: Sequence[Piece], out: BadAgents) -> BadAgents:
        """Return all agents and pieces that cannot be used."""
        problems = list(self.problems)
        reference = self.reference()
        for each in self.sets.values():
            if reference is None or each is reference:
                continue
            # Columns of arrays have no names, and are matched by number.
            unnamed = each.names is None or reference.names is None
            if not unnamed or len(each.columns) != len(reference.columns):
                reason = difference(each, reference, pieces)
                problems += [Fault(k, pieces[k].agent, reason) for k in dict.fromkeys(each.pieces)]
        known = {problem.agent for problem in problems} | out.agents
        for k, piece in enumerate(pieces):
            if piece.agent is not None and piece.agent not in self.agents and piece.agent not in known:
                known.add(piece.agent)
                problems.append(Fault(k, piece.agent, "no rows"))
        return BadAgents(problems)

    def reference(self) -> ColumnSet | None:
        """Return the columns that most pieces have; columns with names are preferred to those of arrays."""
        return max(self.sets.values(), key=lambda each: (each.names is not None, len(set(each.pieces))), default=None)

    def leaves(self, bad: BadAgents) -> bool:
        """Return whether any agent is left without the bad ones."""
        return not bad.agents.issuperset(self.agents)

    def counts(self, bad: BadAgents) -> bool:
        """Return whether the summary includes rows of the bad agents or pieces."""
        pieces = {k for each in self.sets.values() for k in each.pieces}
        return not bad.agents.isdisjoint(self.agents) or not bad.pieces.isdisjoint(pieces)


def look_at(
    bundle: Sequence[tuple[int, Piece]],
    *,
    reading: Reading,
    labels: str,
    missing: str,
    owner: str,
    out: set[Hashable],
) -> Found:
    """Summarise some numbered pieces; this runs on a worker."""
    found = Found()
    pieces = dict(bundle)
    first = bundle[0][0] << 40 if bundle else 0  # number of the first row, for fingerprints: unique to the bundle

    def use(rows: PieceRows) -> None:
        nonlocal first
        problems = [
            Fault(k, None, f"row {row}: the agent is missing" + (f", as in {n - 1} more" if n > 1 else ""), True)
            for k, row, n in rows.orphans
        ]
        if out and not out.isdisjoint(rows.ids):
            gone = np.array([raw in out for raw in rows.ids])
            rows = rows.take(np.flatnonzero(~gone[rows.codes]))
        if not len(rows.codes):
            found.problems += problems
            return
        said = Labels.read(rows.y)
        table, bad = _checked(rows, said, labels, missing, owner)
        if bad:
            worst: dict[int, int] = {}
            for row in sorted(bad):
                worst.setdefault(int(rows.codes[row]), row)
            problems += [
                Fault(int(rows.pieces[row]), rows.ids[code], f"row {rows.places[row]}: {bad[row]}")
                for code, row in worst.items()
            ]
            keep = np.flatnonzero(~np.isin(rows.codes, list(worst)))
            rows, said = rows.take(keep), said.take(keep)
            if keep.size:
                table = read(rows.X, owner)
        if len(rows.codes):
            _add(found, rows, table, said, labels, pieces, first)
            first += len(rows.codes)
        found.problems += problems

    def failed(number: int, reason: str) -> None:
        found.problems.append(Fault(number, pieces[number].agent, reason))

    for_rows(bundle, reading, use, failed)
    return found


def _checked(rows: PieceRows, said: Labels, labels: str, missing: str, owner: str) -> tuple[RawTable, dict[int, str]]:
    """Return the features, and the rows that cannot be used, with reasons."""
    bad = said.unusable(labels, rows.written is None)
    table = read(rows.X, owner)
    if table.sparse is not None:
        return table, bad
    for row, j, value in infinite_rows(table):
        reason = f"column {label_of(j, table.names)} is {value}; numbers must be finite: correct it, or make it a gap"
        bad.setdefault(row, reason)
    if missing == "error":
        for j in range(table.width):
            for row in np.flatnonzero(table.gaps(j)).tolist():
                bad.setdefault(row, f"column {label_of(j, table.names)} is missing (NaN); fill it in, or drop the row")
    return table, bad


def _add(
    found: Found, rows: PieceRows, table: RawTable, said: Labels, labels: str, pieces: dict[int, Piece], first: int
) -> None:
    """Add rows that can be used to the summary."""
    numbers = np.unique(rows.pieces).tolist()
    name = pieces[numbers[0]].name or f"agent {pieces[numbers[0]].agent!r}"
    if table.sparse is not None:
        columns: list[Any] = [Numbers(table.rows, 0, mean, False) for mean in sparse_means(table.sparse)]
        kinds: list[dict[str, str]] = [{"number": name} for _ in columns]
    else:
        columns = summarise(table, first)
        kinds = [_kind(rows, table, j, column, name) for j, column in enumerate(columns)]
    single = table.sparse is None and table.dtype == np.float32
    mine = ColumnSet(table.names, columns, kinds, numbers, single, table.sparse is not None)
    key = table.width if table.names is None else frozenset(table.names)
    kind = said.kind if said.kind != "bool" or rows.written is None else "number"
    tag = f"written {kind}" if rows.written is None else kind
    summary = LabelSummary.of(said, labels, tag, name)
    # All checks are done: a piece that was refused has not changed the summary.
    found.add_columns(key, mine)
    found.labels = found.labels + summary
    sizes = np.bincount(rows.codes, minlength=len(rows.ids))
    members = [found.count(*each) for each in zip(rows.ids, sizes.tolist(), strict=True)]
    if pieces[numbers[0]].agent is None:
        places = np.array(members, np.int64)
        holder, code = np.divmod(np.unique(rows.pieces * len(members) + rows.codes), len(members))
        for number in numbers:
            found.hold(number, places[code[holder == number]])


def _kind(rows: PieceRows, table: RawTable, j: int, column: Numbers | Texts, name: str) -> dict[str, str]:
    """Return the kind of a column and the name of its piece; empty if all values are missing."""
    if column.gaps == column.rows:
        return {}
    written = table.names is not None and (rows.written is None or table.names[j] in rows.written)
    if isinstance(column, Texts):
        kind = "category" if column.declared else "text"
    else:
        kind = "number"
        values = rows.X.iloc[:, j] if written else None
        if values is not None and values.dtype.kind in "bO" and isinstance(values.dropna().iloc[0], bool | np.bool_):
            kind = "bool"
    return {f"written {kind}" if written else kind: name}


def bundles(pieces: Sequence[Piece], out: BadAgents) -> list[list[tuple[int, Piece]]]:
    """Return numbered pieces in bundles of several small pieces."""
    found: list[list[tuple[int, Piece]]] = []
    room, agents, gone = 0, out.agents, out.pieces
    for k, piece in enumerate(pieces):
        if k in gone or piece.agent in agents:
            continue
        if not found or room <= 0 or len(found[-1]) >= MAX_BUNDLE_PIECES:
            found.append([])
            room = MAX_BUNDLE_BYTES
        found[-1].append((k, piece))
        room -= piece.size
    return found
