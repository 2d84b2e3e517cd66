"""Summaries of the columns of a table, which suffice to decide how columns are encoded.

Summaries of parts of a table add up to the summary of the whole table, so that no process has to hold all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .gaps import statistics
from .levels import Levels
from .raw import RawTable, blocks

#: Content of an encoded column: ("value", None), ("level", its text) or ("missing", None).
EncodedPart = tuple[str, str | None]
#: Fingerprint of a column: two sums modulo 2^64.
Print = tuple[int, int]

_MASK = (1 << 64) - 1
_NOTHING: Print = (0, 0)


@dataclass
class Numbers:
    """Summary of a column of numbers."""

    rows: int
    gaps: int
    mean: float  # of the values that are not missing; exactly the value if all are equal
    constant: bool  # whether all values that are not missing are equal
    values_print: Print = _NOTHING  # fingerprint of the values that are not missing
    gaps_print: Print = _NOTHING  # fingerprint of ones in the rows with missing values

    def __add__(self, other: Numbers) -> Numbers:
        """Return the summary of both parts."""
        prints = _sum(self.values_print, other.values_print), _sum(self.gaps_print, other.gaps_print)
        rows, gaps = self.rows + other.rows, self.gaps + other.gaps
        mine, theirs, there = self.rows - self.gaps, other.rows - other.gaps, rows - gaps
        if not mine or not theirs:
            some = other if not mine else self
            return Numbers(rows, gaps, some.mean, some.constant, *prints)
        if self.constant and other.constant and self.mean == other.mean:
            return Numbers(rows, gaps, self.mean, True, *prints)
        # Weights are applied first, so that sums of large numbers stay finite.
        mean = self.mean * (mine / there) + other.mean * (theirs / there)
        return Numbers(rows, gaps, mean, False, *prints)


@dataclass
class Texts:
    """Summary of a column of text or categories."""

    rows: int
    gaps: int
    counts: dict[str, int]
    declared: bool  # whether all parts with values are declared as categories
    level_prints: dict[str, Print] | None = None  # fingerprint of ones in the rows of each level; None if not needed
    gaps_print: Print = _NOTHING

    def __add__(self, other: Texts) -> Texts:
        """Return the summary of both parts; the dictionaries of the first part are reused."""
        counts, prints = self.counts, self.level_prints
        for text, count in other.counts.items():
            counts[text] = counts.get(text, 0) + count
        if prints is not None:
            for text, one in (other.level_prints or {}).items():
                prints[text] = _sum(prints.get(text, _NOTHING), one)
        declared = all(each.declared for each in (self, other) if each.gaps < each.rows)
        print_ = _sum(self.gaps_print, other.gaps_print)
        return Texts(self.rows + other.rows, self.gaps + other.gaps, counts, declared, prints, print_)


def summarise(table: RawTable, first: int | None = None) -> list[Numbers | Texts]:
    """Summarise each column of a table that is not sparse; refuse infinities.

    `first` is the number of the table's first row among all rows; if given, fingerprints are computed, too.
    """
    wanted = [j for j in range(table.width) if not isinstance(table.column(j), Levels)]
    found = statistics(table, wanted, table.names)
    keys = None if first is None else _keys(first, table.rows)
    values, gaps = ([_NOTHING] * len(wanted),) * 2 if keys is None else _number_prints(table, wanted, keys)
    columns: list[Any] = [None] * table.width
    for k, j in enumerate(wanted):
        numbers = table.rows, int(found.gaps[k]), float(found.mean[k]), bool(found.constant[k])
        columns[j] = Numbers(*numbers, values[k], gaps[k])
    for j in set(range(table.width)) - set(wanted):
        column = table.column(j)
        counts = np.bincount(column.codes + 1, minlength=len(column.texts) + 1).tolist()
        texts = Texts(table.rows, counts[0], dict(zip(column.texts, counts[1:], strict=True)), column.declared)
        if keys is not None:
            gap, *levels = _level_prints(column, keys)
            texts = replace(texts, level_prints=dict(zip(column.texts, levels, strict=True)), gaps_print=gap)
        columns[j] = texts
    return columns


# Fingerprints find encoded columns that are copies of others without comparing rows. A fingerprint is the sum over rows
# of a random odd number, the row's key, times the scrambled bits of the column's value in this row, for two keys. Sums
# add up over parts of a table; values that replace missing ones, and the ones of levels, are added when means and
# levels are known. Two different columns have equal fingerprints with a probability of about 2^-120.


def copies_by_prints(
    found: Sequence[Numbers | Texts],
    single: bool,
    source: Sequence[int],
    parts: Sequence[EncodedPart],
    means: Sequence[float | None],
) -> dict[int, int]:
    """Return, for each encoded column that equals an earlier one, this earlier column; `single` means float32."""
    one = _scrambled_number(1.0)
    first: dict[Print, int] = {}
    copies = {}
    for k, (j, (what, text)) in enumerate(zip(source, parts, strict=True)):
        column = found[j]
        if what == "missing":
            print_ = _times(one, column.gaps_print)
        elif isinstance(column, Texts):
            print_ = _times(one, (column.level_prints or {})[str(text)])
        else:
            fill = float(np.float32(means[j])) if single else float(means[j] or 0.0)
            print_ = _sum(column.values_print, _times(_scrambled_number(fill), column.gaps_print))
        if first.setdefault(print_, k) != k:
            copies[k] = first[print_]
    return copies


def _number_prints(table: RawTable, wanted: Sequence[int], keys: NDArray[np.uint64]) -> tuple[list[Print], list[Print]]:
    values = np.zeros((len(wanted), 2), np.uint64)
    gaps = np.zeros((len(wanted), 2), np.uint64)
    for rows in blocks(table.rows, max(len(wanted), 1)):
        block = table.numbers(wanted, rows).astype(np.float64)
        missing = np.isnan(block)
        block[missing] = 0.0
        block += 0.0  # -0.0 equals 0.0, but not in its bits
        bits = _scrambled(block.view(np.uint64))
        some = missing.any()
        for side in range(2):
            key = keys[rows, side, None]
            values[:, side] += (bits * key).sum(axis=0, dtype=np.uint64)
            if some:
                gaps[:, side] += np.where(missing, key, np.uint64(0)).sum(axis=0, dtype=np.uint64)
    return _pairs(values), _pairs(gaps)


def _level_prints(column: Levels, keys: NDArray[np.uint64]) -> list[Print]:
    """Return the fingerprints of the missing values, and of each level."""
    sums = np.zeros((len(column.texts) + 1, 2), np.uint64)
    np.add.at(sums, np.asarray(column.codes) + 1, keys)
    return _pairs(sums)


def _pairs(sums: NDArray[np.uint64]) -> list[Print]:
    return [(one, other) for one, other in sums.tolist()]


def _keys(first: int, rows: int) -> NDArray[np.uint64]:
    """Return two odd numbers for each row, which depend on the row's number only."""
    number = 2 * (np.uint64(first) + np.arange(rows, dtype=np.uint64))
    keys = np.stack([number + np.uint64(1), number + np.uint64(2)], axis=1) * np.uint64(0x9E3779B97F4A7C15)
    return _scrambled(keys) | np.uint64(1)


def _scrambled(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the mixing function of SplitMix64, which is one-to-one and maps 0 to 0."""
    bits = bits ^ (bits >> np.uint64(30))
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits


def _scrambled_number(value: float) -> int:
    return int(_scrambled(np.array([value + 0.0]).view(np.uint64))[0])


def _sum(one: Print, other: Print) -> Print:
    return (one[0] + other[0]) & _MASK, (one[1] + other[1]) & _MASK


def _times(factor: int, one: Print) -> Print:
    return (factor * one[0]) & _MASK, (factor * one[1]) & _MASK
