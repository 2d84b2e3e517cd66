"""Text and categories: the levels of a column, those that get a column of their own, and the reference.

Dates and times are refused: which number they stand for, days since a start or a weekday, is not for us to guess.
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
#: Types of Python and NumPy that hold dates or times; a Period of pandas is known by its name.
TIMES = (dt.date, dt.time, dt.timedelta, np.datetime64, np.timedelta64)
_DATE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}(?:[T ]|$)")
#: The most levels of one text column that get a column of their own.
MAX_LEVELS = 50
#: The most different texts that a column may hold and still be one of levels: all of them have to be counted.
MAX_TEXTS = 1_000_000


@dataclass
class Levels:
    """Text of one column: which of `texts` each row holds, -1 for a gap. All texts occur."""

    codes: NDArray[Any]
    texts: list[str]
    declared: bool


def declared_levels(codes: NDArray[Any], categories: list[Any], label: str) -> Levels:
    """Levels of a column that was declared to be a category: those that occur, whatever they are, as text."""
    counts = np.bincount(codes[codes >= 0], minlength=len(categories))
    occurring = np.flatnonzero(counts)
    texts: dict[str, Any] = {}
    for code in occurring:
        value = categories[code]
        text = level_text(value)
        if text in texts:
            raise DataError(f"column {label}: the levels {texts[text]!r} and {value!r} read alike; rename one of them")
        texts[text] = value
    renumbered = np.full(len(categories) + 1, -1, np.int64)
    renumbered[occurring] = np.arange(occurring.size)
    return Levels(renumbered[codes], list(texts), declared=True)


def level_text(value: Any) -> str:
    """A level in words: 1 and 1.0 are one level, since a gap turns whole numbers into floats."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def text_levels(column: NDArray[Any], missing: NDArray[np.bool_]) -> Levels:
    """Levels of a column of text, numbered as they appear."""
    there = [str.__str__(value) for value in column[~missing].tolist()]
    number = {text: code for code, text in enumerate(dict.fromkeys(there))}
    codes = np.full(column.size, -1, np.int64)
    codes[~missing] = np.fromiter(map(number.__getitem__, there), np.int64, len(there))
    return Levels(codes, list(number), declared=False)


def choose_levels(counts: Mapping[str, int], label: str) -> tuple[list[str], str | None]:
    """Levels that get a column, sorted, and the reference; None if that is many levels."""
    there = sum(counts.values())
    # Most frequent first and edges by text, so that the order of the rows plays no role.
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
            advice = "an id or free text says nothing about new rows: drop the column, or give it as agents="
        raise DataError(
            f"column {label}: {len(ranked)} different texts in {there} values, such as {example!r}; {advice}"
        )
    return sorted(ranked[:MAX_LEVELS]), None


def number_of(text: str) -> float:
    """The number that a text is written for; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def is_time(kind: type) -> bool:
    """Whether values of this type are dates or times."""
    return issubclass(kind, TIMES) or kind.__name__ == "Period"


def date_error(label: str, found: str) -> DataError:
    """What is raised for a column of dates."""
    return DataError(f"column {label} holds dates or times ({found}); {ADVICE}")
