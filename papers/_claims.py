"""Claims of a paper as rows of a table, with our numbers and a verdict in one word.

A row is of one of three kinds: the paper gives a number (:class:`Compared`), or claims that a difference is positive
(:class:`Ordered`), or describes a size in words (:class:`Alike`). ``ours`` is the name of our number. Texts may contain
numbers, too: ``{gain:.1f}`` is shown as the mean of ``gain``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from coterie.errors import ParameterError

REPRODUCED, BETTER, NOT_REPRODUCED = "reproduced", "better", "not reproduced"

#: Number of our standard errors that two equal numbers may differ by.
MAX_STANDARD_ERRORS = 2.0


@dataclass(frozen=True)
class Claim:
    """One row with its verdict. The error is nan for a single value; ``published`` is the paper's number, if any."""

    what: str
    paper: str
    ours: float
    error: float
    verdict: str
    reason: str = ""
    published: float | None = None
    form: str = ".3g"

    @property
    def seen(self) -> str:
        """Our number with its standard error."""
        shown = format(self.ours, self.form)
        return shown if np.isnan(self.error) else f"{shown} ± {format(self.error, self.form)}"


class Unseen(NamedTuple):
    """Replaces a number for which the runs were too short: a preliminary value, and the reason."""

    ours: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class Says:
    """Base class of rows: a reason, shown if the claim does not hold, and a note, always shown."""

    reason: str = ""
    note: str = ""
    form: str = ".3g"

    def verdict(self, mean: float, error: float, numbers: Mapping[Any, Any]) -> str:
        """Return one of the three verdicts."""
        raise NotImplementedError

    @property
    def published(self) -> float | None:
        """The paper's number, if it gives one."""
        return None


@dataclass(frozen=True)
class Compared(Says):
    """The paper gives a number; ours must agree within the tolerance and two of our standard errors.

    The tolerance is the accuracy of the paper's number: its rounding, its standard error, or the resolution of a plot;
    or the name of one of our numbers. ``better`` is the direction, "higher" or "lower", of an improvement.
    """

    what: str
    number: float
    ours: Hashable
    tolerance: float | str
    better: str | None = None
    paper: str | None = None

    def verdict(self, mean: float, error: float, numbers: Mapping[Any, Any]) -> str:
        """Return whether our number agrees with the paper's, or is better or worse."""
        if self.better not in (None, "higher", "lower"):
            raise ParameterError(f"better={self.better!r} must be 'higher', 'lower' or None")
        tolerance = numbers[self.tolerance] if isinstance(self.tolerance, str) else self.tolerance
        beyond = mean - self.number
        if abs(beyond) <= tolerance + MAX_STANDARD_ERRORS * np.nan_to_num(error):
            return REPRODUCED
        return BETTER if self.better and (beyond > 0) == (self.better == "higher") else NOT_REPRODUCED

    @property
    def published(self) -> float:
        """The paper's number."""
        return float(self.number)


@dataclass(frozen=True)
class Ordered(Says):
    """The paper claims that a difference is positive; ours must be positive by two standard errors."""

    what: str
    paper: str
    ours: Hashable

    def verdict(self, mean: float, error: float, numbers: Mapping[Any, Any]) -> str:
        """Return whether the claim holds for our number."""
        return REPRODUCED if mean - MAX_STANDARD_ERRORS * np.nan_to_num(error) > 0.0 else NOT_REPRODUCED


@dataclass(frozen=True)
class Alike(Says):
    """The paper describes a size in words; ours must be within a chosen range around a target.

    The range is chosen for each row, so standard errors do not widen it.
    """

    what: str
    paper: str
    ours: Hashable
    target: float
    within: float

    def verdict(self, mean: float, error: float, numbers: Mapping[Any, Any]) -> str:
        """Return whether the claim holds for our number."""
        return REPRODUCED if abs(mean - self.target) <= self.within else NOT_REPRODUCED


def judged(table: Sequence[Any], numbers: Mapping[Any, Any]) -> list[Claim]:
    """Return the judged rows of a table; rows without a measured number are skipped."""
    shown = {name: _Mean(value) for name, value in numbers.items() if isinstance(name, str)}
    return [_judged(row, numbers, shown) for row in table if row.ours in numbers]


def _judged(row: Any, numbers: Mapping[Any, Any], shown: Mapping[str, _Mean]) -> Claim:
    found = numbers[row.ours]
    what = row.what.format_map(shown)
    paper = format(row.number, row.form) if row.paper is None else row.paper.format_map(shown)
    if isinstance(found, Unseen):
        return Claim(what, paper, found.ours, float("nan"), NOT_REPRODUCED, found.reason, row.published, row.form)
    mean, error = _summary(found)
    verdict = row.verdict(mean, error, numbers)
    why = [row.note] if verdict == REPRODUCED else [row.reason, row.note]
    text = " ".join(text.format_map(shown) for text in why if text)
    return Claim(what, paper, mean, error, verdict, text, row.published, row.form)


def _summary(values: Any) -> tuple[float, float]:
    """Return mean and standard error."""
    found = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if not found.size or not np.isfinite(found).all():
        raise ParameterError(f"values={values!r} must be finite numbers, one at least")
    return float(found.mean()), float(found.std(ddof=1) / np.sqrt(found.size)) if found.size > 1 else float("nan")


class _Mean(NamedTuple):
    """Numbers that are formatted as their mean."""

    value: Any

    def __format__(self, form: str) -> str:
        return format(float(np.mean(self.value)), form) if form else str(self.value)
