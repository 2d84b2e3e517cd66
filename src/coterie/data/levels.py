"""Text and categories: the levels of a column, the levels that get a column of their own, and the reference.

Dates and times are refused: whether days since a start or a weekday is meant cannot be guessed.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

ADVICE = "take the days since a start, or the month or the weekday, as a number"
#: Types of Python and NumPy that hold dates or times; a Period of pandas is recognised by its name.
TIMES = (dt.date, dt.time, dt.timedelta, np.datetime64, np.timedelta64)
_DATE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}(?:[T ]|$)")
#: Maximum number of levels of one text column that get a column of their own.
MAX_LEVELS = 50
#: Maximum number of distinct texts of a column of levels: all of them have to be counted.
MAX_TEXTS = 1_000_000


@dataclass
class Levels:
    """Text of one column: the index in `texts` of each row, -1 for a missing value. All texts occur."""

    codes: NDArray[Any]
    texts: list[str]
    declared: bool


def declared_levels(codes: NDArray[Any], categories: list[Any], label: str) -> Levels:
    """Return the occurring levels of a column of categories, converted to text."""
    counts = np.bincount(codes[codes >= 0], minlength=len(categories))
    occurring = np.flatnonzero(counts)
    texts: dict[str, Any] = {}
    for code in occurring:
        value = categories[code]
        text = level_text(value)
        if text in texts:
            raise DataError(
                f"column {label}: the levels {texts[text]!r} and {value!r} are equal as text; rename one of them"
            )
        texts[text] = value
    renumbered = np.full(len(categories) + 1, -1, np.int64)
    renumbered[occurring] = np.arange(occurring.size)
    return Levels(renumbered[codes], list(texts), declared=True)


def level_text(value: Any) -> str:
    """Return a level as text: 1 and 1.0 are one level, since missing values turn whole numbers into floats."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def text_levels(column: NDArray[Any], missing: NDArray[np.bool_]) -> Levels:
    """Return the levels of a column of text, numbered in order of appearance."""
    there = [str.__str__(value) for value in column[~missing].tolist()]
    number = {text: code for code, text in enumerate(dict.fromkeys(there))}
    codes = np.full(column.size, -1, np.int64)
    codes[~missing] = np.fromiter(map(number.__getitem__, there), np.int64, len(there))
    return Levels(codes, list(number), declared=False)


def choose_levels(counts: Mapping[str, int], label: str) -> tuple[list[str], str | None]:
    """Return the levels that get a column, sorted, and the reference; None if many levels are the reference."""
    there = sum(counts.values())
    # Sorted by frequency, then by text, so that the order of the rows does not matter.
    ranked = sorted(counts, key=lambda text: (-counts[text], text))
    if len(ranked) > 2 and all(map(_DATE.match, ranked)):
        raise date_error(label, f"text such as {ranked[0]!r}")
    if len(ranked) <= MAX_LEVELS:
        return sorted(ranked[1:]), ranked[0] if ranked else None
    if 2 * len(ranked) > there or len(ranked) > MAX_TEXTS:
        example = min(ranked)
        if not np.isnan(number_of(example)):
            advice = "if these are numbers, convert them first (astype(float))"
        else:
            advice = "an id or free text does not help to predict new rows: drop the column, or give it as agents="
        raise DataError(
            f"column {label}: {len(ranked)} different texts in {there} values, such as {example!r}; {advice}"
        )
    return sorted(ranked[:MAX_LEVELS]), None


def number_of(text: str) -> float:
    """Return the number written as a text; NaN if the text is no number."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def is_time(kind: type) -> bool:
    """Return whether values of this type are dates or times."""
    return issubclass(kind, TIMES) or kind.__name__ == "Period"


def date_error(label: str, found: str) -> DataError:
    """Return the error for a column of dates."""
    return DataError(f"column {label} holds dates or times ({found}); {ADVICE}")
