"""What a paper says, what we see, and a verdict in one word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from coterie.errors import ParameterError

REPRODUCED, BETTER, NOT_REPRODUCED = "reproduced", "better", "not reproduced"

#: How many standard errors of ours may lie between two numbers that are called the same.
ERRORS = 2.0


@dataclass(frozen=True)
class Claim:
    """One number or one statement of a paper, beside ours.

    Attributes
    ----------
    what : str
        What is measured.
    paper : str
        What the paper has, as it is shown.
    ours : float
        Our mean.
    error : float
        Its standard error; nan if there is but one value, or none is meant.
    verdict : str
        "reproduced", "better" or "not reproduced".
    reason : str
        Why it is not reproduced, or what else must be known to read the line.
    published : float or None
        The paper's number, if it gives one.
    form : str
        How our number is shown, as in :func:`format`.
    """

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
        """Our number with its standard error.

        Examples
        --------
        >>> compared("win ratio", 0.85, [0.84, 0.86], tolerance=0.02, form=".2f").seen
        '0.85 ± 0.01'
        """
        shown = format(self.ours, self.form)
        return shown if np.isnan(self.error) else f"{shown} ± {format(self.error, self.form)}"


def compared(
    what: str,
    published: float,
    values: ArrayLike,
    *,
    tolerance: float,
    better: str | None = None,
    reason: str = "",
    note: str = "",
    form: str = ".3g",
    paper: str | None = None,
) -> Claim:
    """The paper gives a number: is ours the same?

    Parameters
    ----------
    what : str
        What is measured.
    published : float
        The paper's number.
    values : (runs,) array_like
        Ours, one of each independent run: their mean is compared. A single one has no standard error.
    tolerance : float
        How exactly the paper's number is known: its rounding, its own standard error, or what can be read from a plot.
        Two of our standard errors are added.
    better : {"higher", "lower"}, optional
        Where a number that is further away would be an improvement.
    reason : str
        Why ours is another, which is shown if it is.
    note : str
        What must be known to read the line, which is always shown.
    form : str
        How numbers are shown.
    paper : str, optional
        How the paper's number is shown, if not as ours.

    Returns
    -------
    Claim

    Examples
    --------
    >>> compared("accuracy", 0.95, [0.94, 0.95, 0.96], tolerance=0.005).verdict
    'reproduced'
    >>> compared("error", 10.23, 10.09, tolerance=0.07, better="lower").verdict
    'better'
    >>> compared("error", 11.1, 10.27, tolerance=0.07).verdict
    'not reproduced'
    """
    if better not in (None, "higher", "lower"):
        raise ParameterError(f"better={better!r} must be 'higher', 'lower' or None")
    mean, error = _summary(values)
    beyond = mean - published
    if abs(beyond) <= tolerance + ERRORS * np.nan_to_num(error):
        verdict = REPRODUCED
    elif better is not None and (beyond > 0) == (better == "higher"):
        verdict = BETTER
    else:
        verdict = NOT_REPRODUCED
    shown = format(published, form) if paper is None else paper
    return Claim(what, shown, mean, error, verdict, _why(verdict, reason, note), float(published), form)


def ordered(
    what: str, paper: str, difference: ArrayLike, *, reason: str = "", note: str = "", form: str = ".3g"
) -> Claim:
    """The paper says that something is more than something else: is the difference positive?

    Parameters
    ----------
    what : str
        What is subtracted from what.
    paper : str
        What the paper says, in few words.
    difference : (runs,) array_like
        What must be positive, one of each independent run: their mean, by more than two standard errors.
    reason : str
        Why it is not, which is shown if it is not.
    note : str
        What must be known to read the line, which is always shown.
    form : str
        How our number is shown.

    Returns
    -------
    Claim

    Examples
    --------
    >>> ordered("together - alone", "together is better", [0.1, 0.2, 0.1]).verdict
    'reproduced'
    >>> ordered("together - alone", "together is better", [0.1, -0.2, 0.1]).verdict
    'not reproduced'
    """
    mean, error = _summary(difference)
    verdict = REPRODUCED if mean - ERRORS * np.nan_to_num(error) > 0.0 else NOT_REPRODUCED
    return Claim(what, paper, mean, error, verdict, _why(verdict, reason, note), None, form)


def alike(
    what: str,
    paper: str,
    values: ArrayLike,
    target: float,
    within: float,
    *,
    reason: str = "",
    note: str = "",
    form: str = ".3g",
) -> Claim:
    """The paper says in words that something is about so much, such as "almost as good": is it?

    Parameters
    ----------
    what : str
        What is measured.
    paper : str
        What the paper says, in few words.
    values : (runs,) array_like
        Ours, one of each independent run.
    target : float
        What that means.
    within : float
        How far from it our mean may be. Whoever writes the claim chooses it, so standard errors do not widen it.
    reason, note, form : str
        As in :func:`compared`.

    Returns
    -------
    Claim

    Examples
    --------
    >>> alike("time, ours / theirs", "as fast", [1.1, 1.2], target=1.0, within=0.2).verdict
    'reproduced'
    """
    mean, error = _summary(values)
    verdict = REPRODUCED if abs(mean - target) <= within else NOT_REPRODUCED
    return Claim(what, paper, mean, error, verdict, _why(verdict, reason, note), None, form)


def _why(verdict: str, reason: str, note: str) -> str:
    return " ".join(text for text in ("" if verdict == REPRODUCED else reason, note) if text)


def _summary(values: Any) -> tuple[float, float]:
    """Mean and standard error."""
    found = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if not found.size or not np.isfinite(found).all():
        raise ParameterError(f"values={values!r} must be finite numbers, one at least")
    return float(found.mean()), float(found.std(ddof=1) / np.sqrt(found.size)) if found.size > 1 else float("nan")
