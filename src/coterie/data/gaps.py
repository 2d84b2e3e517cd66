"""Missing values among numbers: their number, the means that replace them, and errors for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .levels import Levels
from .raw import FIRST_BLOCK, Names, RawTable, blocks, label_of


@dataclass
class Statistics:
    """Number of missing values, mean of the others, and whether these are all equal, for columns of numbers."""

    gaps: NDArray[np.int64]
    mean: NDArray[np.float64]
    constant: NDArray[np.bool_]


def statistics(table: RawTable, wanted: Sequence[int], names: Names, only_gaps: bool = False) -> Statistics:
    """Return missing values, means and constancy of columns of numbers; refuse infinities."""
    if table.columns is None or len(wanted) == 0:
        return _matrix_statistics(table, wanted, names, only_gaps)
    each = [_matrix_statistics(table, [j], names, only_gaps) for j in wanted]
    return Statistics(
        np.concatenate([s.gaps for s in each]),
        np.concatenate([s.mean for s in each]),
        np.concatenate([s.constant for s in each]),
    )


def _matrix_statistics(table: RawTable, wanted: Sequence[int], names: Names, only_gaps: bool) -> Statistics:
    p, rows = len(wanted), table.rows
    total = np.zeros(p)
    # Large finite numbers may overflow here; such columns are processed again below.
    with np.errstate(all="ignore"):
        for block in blocks(rows, p):
            total += table.numbers(wanted, block).sum(axis=0, dtype=np.float64)
    gaps = np.zeros(p, np.int64)
    mean = total / rows
    constant = np.zeros(p, np.bool_)
    # If the sum of a column is finite, so are all its values: most tables need no second pass.
    dirty = np.flatnonzero(~np.isfinite(total))
    if dirty.size:
        again = [wanted[k] for k in dirty.tolist()]
        gaps[dirty], mean[dirty], constant[dirty] = _with_gaps(table, again, names)
    if not only_gaps:
        clean = np.flatnonzero(np.isfinite(total))
        constant[clean] = _constant(table, [wanted[k] for k in clean.tolist()])
        # The mean of equal numbers may differ from them by rounding.
        for k in clean[constant[clean]].tolist():
            mean[k] = table.column(wanted[k])[0]
    return Statistics(gaps, mean, constant)


def _with_gaps(table: RawTable, wanted: Sequence[int], names: Names) -> tuple[Any, Any, Any]:
    """Return missing values, means and constancy of columns that may hold NaN."""
    p = len(wanted)
    gaps = np.zeros(p, np.int64)
    total, low, high = np.zeros(p), np.full(p, np.inf), np.full(p, -np.inf)
    for rows in blocks(table.rows, p):
        block = table.numbers(wanted, rows)
        infinite = np.isinf(block)
        if infinite.any():
            row, k = np.argwhere(infinite)[0]
            raise DataError(
                f"row {rows.start + row}: column {label_of(wanted[k], names)} is {block[row, k]};"
                " numbers must be finite: correct it, drop the row, or make it a gap (NaN)"
            )
        gap = np.isnan(block)
        gaps += gap.sum(axis=0)
        with np.errstate(over="ignore"):
            total += np.where(gap, 0.0, block).sum(axis=0, dtype=np.float64)
        low = np.minimum(low, np.where(gap, np.inf, block).min(axis=0))
        high = np.maximum(high, np.where(gap, -np.inf, block).max(axis=0))
    there = table.rows - gaps
    mean = total / np.maximum(there, 1)
    for k in np.flatnonzero(~np.isfinite(mean)).tolist():
        column = np.asarray(table.column(wanted[k]), np.float64)
        mean[k] = np.sum(column[~np.isnan(column)] / there[k])
    some = there > 0
    mean[some] = np.clip(mean[some], low[some], high[some])
    return gaps, mean, low == high


def infinite_rows(table: RawTable) -> list[tuple[int, int, float]]:
    """Return the row, column and value of infinities among numbers."""
    found = []
    for j in range(table.width):
        column = table.column(j)
        if isinstance(column, Levels):
            continue
        with np.errstate(all="ignore"):  # if the sum is finite, so are all values of the column
            clean = np.isfinite(np.sum(column, dtype=np.float64))
        if not clean:
            found += [(row, j, float(column[row])) for row in np.flatnonzero(np.isinf(column)).tolist()]
    return found


def _constant(table: RawTable, wanted: Sequence[int]) -> NDArray[np.bool_]:
    """Return whether columns without gaps are constant; most are decided by the first rows."""
    result = np.ones(len(wanted), np.bool_)
    candidates = np.arange(len(wanted))
    if not candidates.size:
        return result
    head = table.numbers(wanted, slice(0, 1))[0]
    for rows in blocks(table.rows, len(wanted), FIRST_BLOCK):
        block = table.numbers([wanted[k] for k in candidates.tolist()], rows)
        varies = (block != head[candidates]).any(axis=0)
        result[candidates[varies]] = False
        candidates = candidates[~varies]
        if not candidates.size:
            break
    return result


def refuse_gaps(
    table: RawTable, wanted: Iterable[int], names: Names, missing: str, where: Callable[[int], str]
) -> None:
    """Raise an error for the first missing value of these columns, with advice; `where` names a row."""
    first: tuple[int, int] | None = None
    for j in wanted:
        gap = table.gaps(j)
        row = int(np.argmax(gap))
        if gap[row] and (first is None or row < first[0]):
            first = (row, j)
    if first:
        row, j = first
        advice = "fill it in, or drop the row"
        if missing == "error":
            advice = 'fill it in, drop the row, or use missing="fill" to replace missing values by the mean'
        raise DataError(f"{where(row)}: column {label_of(j, names)} is missing (NaN); {advice}")
