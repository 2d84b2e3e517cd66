"""A look at some pieces of a source, on a worker or here, and what is known of all of them together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .bad_agents import BadAgents, LeftOut, Problem
from .column_sets import ColumnSet, difference, goes_with
from .gaps import infinite_rows
from .labels import Labels, LabelSummary
from .levels import Levels
from .pieces import Piece, Reading, Rows, for_rows
from .raw import RawTable, label_of, read, sparse_means
from .summaries import Numbers, Texts, summarise

#: Pieces, and bytes of them, that a worker looks at in one go. What is found does not depend on who looks.
BUNDLE, BUNDLE_BYTES = 128, 16_000_000
#: Agents of one piece that are remembered, at least.
MANY = 4096


@dataclass
class Found:
    """What is known of some pieces."""

    sets: dict[Any, ColumnSet] = field(default_factory=dict)
    agents: dict[Hashable, int] = field(default_factory=dict)  # raw ids, numbered as they come
    sizes: list[int] = field(default_factory=list)
    holds: dict[int, Any] = field(default_factory=dict)  # agents of pieces that are not one agent's; None: of many
    labels: LabelSummary = field(default_factory=LabelSummary)
    problems: list[Problem] = field(default_factory=list)

    def add(self, other: Found) -> None:
        """Take in what is known of the next pieces."""
        for key, columns in other.sets.items():
            if key in self.sets:
                self.sets[key].add(columns)
            else:
                self.sets[key] = columns
        numbers = np.array([self.count(*each) for each in zip(other.agents, other.sizes, strict=True)], np.int64)
        for piece, held in other.holds.items():
            self.hold(piece, None if held is None else numbers[held])
        self.labels = self.labels + other.labels
        self.problems += other.problems

    def count(self, raw: Hashable, rows: int) -> int:
        """Take in some rows of an agent, and return its number."""
        k = self.agents.setdefault(raw, len(self.agents))
        if k == len(self.sizes):
            self.sizes.append(0)
        self.sizes[k] += rows
        return k

    def hold(self, piece: int, agents: Any) -> None:
        """Remember which agents a piece has rows of; not, if they are many: it will be read in any case."""
        before = self.holds.get(piece, np.zeros(0, np.int32))
        both = None if agents is None or before is None else np.union1d(before, agents).astype(np.int32)
        self.holds[piece] = None if both is None or both.size > max(MANY, len(self.agents) // 16) else both

    def conflicts(self, reading: Reading, labels: str) -> frozenset[str]:
        """Columns of csv files and paths that must be read as text."""
        kinds = [
            (name, kinds)
            for each in self.sets.values()
            for name, kinds in zip(each.names or (), each.kinds, strict=False)
        ]
        if reading.target is not None and labels != "number":
            kinds.append((reading.target, self.labels.kinds))
        found: dict[str, set[str]] = {}
        for name, those in kinds:
            found.setdefault(name, set()).update(those)
        return frozenset(
            name
            for name, those in found.items()
            if name not in reading.text
            and (
                len(those & {"written number", "written bool", "written text"}) > 1
                or (those & {"written number", "written bool"} and those & {"text"})
            )
        )

    def bad(self, pieces: Sequence[Piece], out: LeftOut) -> BadAgents:
        """All agents and pieces that cannot be used."""
        problems = list(self.problems)
        reference = self.reference()
        for each in self.sets.values():
            if reference is None or each is reference or goes_with(each, reference):
                continue
            reason = difference(each, reference, pieces)
            problems += [Problem(k, pieces[k].agent, reason) for k in dict.fromkeys(each.pieces)]
        known = {problem.agent for problem in problems} | out.agents
        for k, piece in enumerate(pieces):
            if piece.agent is not None and piece.agent not in self.agents and piece.agent not in known:
                known.add(piece.agent)
                problems.append(Problem(k, piece.agent, "no rows"))
        return BadAgents(problems)

    def reference(self) -> ColumnSet | None:
        """The columns that most pieces have; those of arrays have no names, and are taken for them."""
        return max(self.sets.values(), key=lambda each: (each.names is not None, len(set(each.pieces))), default=None)

    def leaves(self, bad: BadAgents) -> bool:
        """Whether anybody is left without these."""
        return not bad.agents.issuperset(self.agents)

    def counts(self, bad: BadAgents) -> bool:
        """Whether rows of these are among what was found."""
        pieces = {k for each in self.sets.values() for k in each.pieces}
        return not bad.agents.isdisjoint(self.agents) or not bad.pieces.isdisjoint(pieces)


def look_at(
    bundle: Sequence[tuple[int, Piece]],
    *,
    reading: Reading,
    labels: str,
    missing: str,
    owner: str,
    out: frozenset[Hashable],
) -> Found:
    """What is known of some numbered pieces: this runs on a worker."""
    found = Found()
    pieces = dict(bundle)
    first = bundle[0][0] << 40 if bundle else 0  # of the rows' numbers, for fingerprints: no two bundles share any

    def use(rows: Rows) -> None:
        nonlocal first
        problems = [
            Problem(k, None, f"row {row}: the agent is missing" + (f", as in {n - 1} more" if n > 1 else ""), True)
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
                Problem(rows.piece(row), rows.ids[code], f"row {rows.places[row]}: {bad[row]}")
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
        found.problems.append(Problem(number, pieces[number].agent, reason))

    for_rows(bundle, reading, use, failed)
    return found


def _checked(rows: Rows, said: Labels, labels: str, missing: str, owner: str) -> tuple[RawTable, dict[int, str]]:
    """The features, and rows that cannot be used, with why."""
    bad = said.unusable(labels, rows.written is None)
    table = read(rows.X, owner)
    if table.sparse is not None:
        return table, bad
    for row, j, value in infinite_rows(table):
        reason = f"column {label_of(j, table.names)} is {value}; numbers must be finite: correct it, or make it a gap"
        bad.setdefault(row, reason)
    if missing == "error":
        for j in range(table.width):
            column = table.column(j)
            gaps = column.codes < 0 if isinstance(column, Levels) else np.isnan(column)
            for row in np.flatnonzero(gaps).tolist():
                bad.setdefault(row, f"column {label_of(j, table.names)} is missing (NaN); fill it in, or drop the row")
    return table, bad


def _add(
    found: Found, rows: Rows, table: RawTable, said: Labels, labels: str, pieces: dict[int, Piece], first: int
) -> None:
    """Take in rows that can be used."""
    numbers = [k for k, _ in rows.parts]
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
    # From here on nothing can fail: what is refused leaves no trace.
    if key in found.sets:
        found.sets[key].add(mine)
    else:
        found.sets[key] = mine
    found.labels = found.labels + summary
    sizes = np.bincount(rows.codes, minlength=len(rows.ids))
    members = [found.count(*each) for each in zip(rows.ids, sizes.tolist(), strict=True)]
    if pieces[numbers[0]].agent is None:
        places = np.array(members, np.int64)
        start = 0
        for number, count in rows.parts:
            held = np.unique(rows.codes[start : start + count])
            found.hold(number, places[held])
            start += count


def _kind(rows: Rows, table: RawTable, j: int, column: Numbers | Texts, name: str) -> dict[str, str]:
    """What a column holds, and where; nothing if all of it is missing."""
    if column.gaps == column.rows:
        return {}
    written = table.names is not None and rows.is_written(table.names[j])
    if isinstance(column, Texts):
        kind = "category" if column.declared else "text"
    else:
        kind = "number"
        values = rows.X.iloc[:, j] if written else None
        if values is not None and values.dtype.kind in "bO" and isinstance(values.dropna().iloc[0], bool | np.bool_):
            kind = "bool"
    return {f"written {kind}" if written else kind: name}


def merged(parts: Iterable[Found]) -> Found:
    """What is known of all parts, taken in in their order."""
    found = Found()
    for part in parts:
        found.add(part)
    return found


def bundles(pieces: Sequence[Piece], out: LeftOut) -> list[list[tuple[int, Piece]]]:
    """Numbered pieces, several small ones together."""
    found: list[list[tuple[int, Piece]]] = []
    room = 0
    for k, piece in enumerate(pieces):
        if k in out.pieces or piece.agent in out.agents:
            continue
        if not found or room <= 0 or len(found[-1]) >= BUNDLE:
            found.append([])
            room = BUNDLE_BYTES
        found[-1].append((k, piece))
        room -= piece.size
    return found
