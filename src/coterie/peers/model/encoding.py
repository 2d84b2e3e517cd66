"""Turning the cells of a table into the columns of a model, by the public rules of a charter.

If the charter was taken from a fitted model, the columns are those of ``coterie fit``: the same
:class:`~coterie.data.columns.Columns` and :class:`~coterie.pooling.designs.Design` encode them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...data.columns import Columns
from ...errors import DataError
from ..group.charter import Charter
from .cells import Cells, column_of, label_of, numbers, texts


class EncodedRows(NamedTuple):
    """Rows that were read for a peer."""

    X: np.ndarray  # (m, width) columns of the model
    y: np.ndarray  # (m,) labels, -1 and 1 for classes
    fill: np.ndarray  # (features,) value of a gap in each numeric feature; NaN if unknown
    notes: list[str]  # notes on how the rows were read


def rows_of_cells(charter: Charter, cells: Cells, where: str) -> EncodedRows:
    """Return features and labels of a table. Rows without a label are left out, with a note."""
    target, notes = column_of(cells, charter.target, where, "the target"), []
    there = [row for row, cell in enumerate(target) if cell is not None]
    if len(there) < len(target):
        notes.append(f"{len(target) - len(there)} of {len(target)} rows have no {charter.target!r}, and are left out")
    if len(there) > charter.max_rows:
        raise DataError(
            f"{where} has {len(there)} rows; the charter allows {charter.max_rows} at most: give fewer, "
            "or agree on another charter"
        )
    values = [target[row] for row in there]
    if charter.labels is None:
        center, scale = charter.target_unit
        y = (numbers(target, charter.target, where)[there] - center) / scale
    else:
        found = [label_of(cell, charter.labels) for cell in values]
        for row, cell, label in zip(there, values, found, strict=True):
            if label is None:
                raise DataError(
                    f"{where}: {str(cell)!r} in column {charter.target!r}, row {row + 1}, is no class of the charter: "
                    f"{charter.labels}"
                )
        y = np.where(np.array(found, int) == 1, 1.0, -1.0)
    columns = {name: column_of(cells, name, where) for name in charter.features}
    some = {name: [column[row] for row in there] for name, column in columns.items()}
    fill = own_fill(charter, some, where)
    return EncodedRows(columns_of_cells(charter, some, where, fill, notes), y, fill, notes)


def own_fill(charter: Charter, cells: Cells, where: str) -> np.ndarray:
    """Return the value of a gap in each numeric feature: public if the charter has one, else the mean of the peer's
    rows.

    A private peer has no such mean: it would let one row change all rows with gaps, but the privacy bound is for one
    row.
    """
    fill = np.full(len(charter.features), np.nan)
    for j, name in enumerate(charter.features):
        if charter.columns is not None and (charter.columns.kinds[j] != "number"):
            continue
        public = None if charter.columns is None else charter.columns.fills[j]
        if public is None and charter.center is not None:
            public = charter.center[j]
        if public is not None:
            fill[j] = public
        elif charter.privacy is None and name in cells:
            values = numbers(cells[name], name, where)
            values = values[~np.isnan(values)]
            fill[j] = values.mean() if values.size else np.nan
    return fill


def columns_of_cells(
    charter: Charter, cells: Cells, where: str, fill: np.ndarray, notes: list[str] | None = None
) -> np.ndarray:
    """Return the columns of the model, (rows, width); with an intercept, the last column is of ones."""
    given = charter.columns
    count = len(next(iter(cells.values()), ()))
    table = np.empty((count, len(charter.features)), object)
    for j, name in enumerate(charter.features):
        column = column_of(cells, name, where)
        if given is None or given.kinds[j] == "number":
            values = numbers(column, name, where)
            gaps = np.flatnonzero(np.isnan(values))
            if gaps.size and np.isnan(fill[j]):
                raise DataError(
                    f"{where}: a missing value in column {name!r}, row {gaps[0] + 1}, and there is no value to fill it "
                    "with: give the rows without gaps, or agree on a charter with --center or --from"
                )
            if gaps.size and notes is not None:
                notes.append(f"{gaps.size} of {count} values of {name!r} are missing, and count as {fill[j]:.6g}")
            table[:, j] = values
        else:
            known = [text for k, (_, text) in zip(given.source, given.parts, strict=True) if k == j and text]
            reference = given.reference(j)
            if reference is None:
                table[:, j] = texts(column, known)
            else:
                table[:, j] = texts(column, [reference, *known], any_case=True)
                if notes is not None:
                    notes += _unlisted(table[:, j], name, [reference, *known])
    if not count:
        return np.empty((0, charter.width))
    X = _encoded(charter, table, fill)
    if charter.design is not None:
        return design_of(charter).columns(X)
    source = range(len(charter.features)) if given is None else given.source
    value = [given is None or given.parts[k][0] == "value" for k in range(X.shape[1])]
    if charter.center is not None:
        X -= [charter.center[j] if is_value else 0.0 for j, is_value in zip(source, value, strict=True)]
    if charter.scale is not None:
        X /= [charter.scale[j] if is_value else 1.0 for j, is_value in zip(source, value, strict=True)]
    return np.column_stack([X, np.ones(len(X))]) if charter.intercept else X


def _unlisted(column: np.ndarray, name: str, levels: Sequence[str]) -> list[str]:
    """Return a note on values that are not among the levels of a text, or no note if there are none."""
    others = Counter(text for text in column if text is not None and text not in levels)
    if not others:
        return []
    some = ", ".join(f"{text!r:.40}" for text, _ in others.most_common(5)) + (", ..." if len(others) > 5 else "")
    return [
        f"{others.total()} of {len(column)} values of {name!r} are none of {', '.join(levels)}, and count as "
        f"{levels[0]!r}: {some}"
    ]


def _encoded(charter: Charter, table: np.ndarray, fill: np.ndarray) -> np.ndarray:
    """Return the columns of values, of levels, and of flags for gaps."""
    given = charter.columns
    fills = np.where(np.isnan(fill), 0.0, fill)  # a feature without a value has no gaps
    if given is None:
        X = table.astype(float)
        return np.where(np.isnan(X), fills, X)
    kinds = given.kinds
    columns = Columns(
        names=tuple(map(str, range(len(given.parts)))),
        source=tuple(given.source),
        input_names=None,
        n_features_in=len(kinds),
        notes=[],
        missing="fill",
        kinds=tuple(kinds),
        means=tuple(float(fills[j]) if kind == "number" else None for j, kind in enumerate(kinds)),
        parts=tuple(given.parts),
    )
    encoded: np.ndarray = columns.apply(table, "coterie peer")
    return encoded


def design_of(charter: Charter) -> Any:
    """Return the design of a charter that has one."""
    from ...pooling.designs.additive import Additive, Spline, source_of

    given = charter.design
    assert given is not None
    splines = {k: Spline(np.array(knots)) for k, knots in given.knots}
    width = len(charter.features) if charter.columns is None else len(charter.columns.parts)
    return Additive(np.array(given.mean), np.array(given.scale), source_of(width, splines), splines)
