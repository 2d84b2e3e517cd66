"""Columns of pieces that come from many places: which go together, and how those of all become numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import DataError
from .columns import Columns, decide, plain
from .frames import hint
from .pieces import Piece
from .raw import Names, label_of
from .summaries import Numbers, Texts, copies_by_prints


@dataclass
class ColumnSet:
    """Columns of pieces that have the same ones, whatever their order."""

    names: Names
    columns: list[Any]  # what is known of each: Numbers or Texts
    kinds: list[dict[str, str]]  # of each column: kinds that were found, and a piece that has them
    pieces: list[int]
    single: bool  # whether all are in single precision
    sparse: bool  # whether any is a sparse matrix

    def add(self, other: ColumnSet) -> None:
        """Take in the columns of other pieces, by their names."""
        order = list(range(len(other.columns)))
        if self.names != other.names:
            place = {name: j for j, name in enumerate(other.names or ())}
            order = [place[name] for name in self.names or ()]
        self.columns = [_added(mine, other.columns[j]) for mine, j in zip(self.columns, order, strict=True)]
        self.kinds = [other.kinds[j] | mine for mine, j in zip(self.kinds, order, strict=True)]
        self.pieces += other.pieces
        self.single, self.sparse = self.single and other.single, self.sparse or other.sparse


def _added(one: Any, other: Any) -> Any:
    """The summary of both; a column that is all gaps goes with any. Kinds that do not go together are told later."""
    if isinstance(one, Numbers) == isinstance(other, Numbers):
        return one + other
    for empty, some in ((one, other), (other, one)):
        if empty.gaps == empty.rows:
            return _like(empty, some) + some
    return one


def _like(empty: Any, some: Any) -> Any:
    """Gaps as those of a column of the other kind."""
    if isinstance(some, Numbers):
        return Numbers(empty.rows, empty.rows, 0.0, True, gaps_print=empty.gaps_print)
    return Texts(empty.rows, empty.rows, {}, True, {}, empty.gaps_print)


def goes_with(one: ColumnSet, reference: ColumnSet) -> bool:
    """Whether columns are the same by their number alone: those of arrays have no names."""
    return (one.names is None or reference.names is None) and len(one.columns) == len(reference.columns)


def difference(one: ColumnSet, reference: ColumnSet, pieces: Sequence[Piece]) -> str:
    """What tells the columns of a piece from those that most others have."""
    other = pieces[reference.pieces[0]]
    example = other.name or f"agent {other.agent!r}"
    if one.names is None or reference.names is None:
        return f"{len(one.columns)} features, but {example} has {len(reference.columns)}; all need the same"
    if lost := [name for name in reference.names if name not in one.names]:
        return f"no column {lost[0]!r}, which {example} has; {hint(lost[0], one.names)}"
    more = [name for name in one.names if name not in reference.names]
    return f"a column {more[0]!r} that {example} does not have; name the features: ct.Source(..., columns=[...])"


def columns_of(found: ColumnSet, missing: str, drop: bool) -> Columns:
    """How the columns of all pieces become numbers."""
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
