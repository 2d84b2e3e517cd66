"""Dates and times are refused: which number they stand for, days since a start or a weekday, is not for us to guess."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence

import numpy as np

from ..errors import DataError

ADVICE = "take the days since a start, or the month or the weekday, as a number"
#: Types of Python and NumPy that hold dates or times; a Period of pandas is known by its name.
TIMES = (dt.date, dt.time, dt.timedelta, np.datetime64, np.timedelta64)
_DATE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}(?:[T ]|$)")


def is_time(kind: type) -> bool:
    """Whether values of this type are dates or times."""
    return issubclass(kind, TIMES) or kind.__name__ == "Period"


def are_dates(texts: Sequence[str]) -> bool:
    """Whether all of several texts look like dates."""
    return len(texts) > 2 and all(_DATE.match(text) for text in texts)


def date_error(label: str, found: str) -> DataError:
    """What is raised for a column of dates."""
    return DataError(f"column {label} holds dates or times ({found}); {ADVICE}")
