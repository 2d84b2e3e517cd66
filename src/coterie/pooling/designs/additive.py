"""A curve for every feature: quadratic splines replace columns with more than a few values.

Knots are at quantiles; curves are continued as straight lines beyond the outermost knots. Every agent has curves of its
own, which deviate from the common ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from ..sums import Sums
from .base import Design, Given
from .values import MAX_LINEAR_VALUES, Values, quantiles_of, standards_of

#: Number of quantile knots of a spline, including both ends. With 8 knots, a split by time gave poor predictions.
KNOTS_PER_SPLINE = 5
SHARES = np.linspace(0.0, 1.0, KNOTS_PER_SPLINE)
#: Splines make fewer columns than this in all, unless they are asked for by name; those that explain most come first.
MAX_SPLINE_COLUMNS = 150
#: Number of columns that splines may add in any case, however many features there are.
MIN_ADDED_COLUMNS = 40


class Spline(NamedTuple):
    """Quadratic B-splines of one column, without the last one, since all of them sum to one."""

    knots: np.ndarray  # with two further knots beyond each end

    @classmethod
    def through(cls, quantiles: np.ndarray) -> Spline:
        """Return the spline with these knots; equal knots count once."""
        inner = np.unique(quantiles)
        left, right = inner[1] - inner[0], inner[-1] - inner[-2]
        ends = np.array([1.0, 2.0])
        return cls(np.concatenate([inner[0] - left * ends[::-1], inner, inner[-1] + right * ends]))

    @property
    def size(self) -> int:
        """Number of columns of the spline."""
        return len(self.knots) - 4

    def columns(self, x: np.ndarray) -> np.ndarray:
        """Return the basis at x, (rows, size), continued as straight lines beyond the outermost knots."""
        low, high = self.knots[2], self.knots[-3]
        inside = np.clip(x, low, high)
        out = self._basis(inside, 2)[:, :-1]
        beyond = (x - inside)[:, None]
        if np.any(beyond):
            out = out + beyond * self._slope(inside)[:, :-1]
        return out

    def line(self) -> np.ndarray:
        """Return the coefficients of x itself, up to a constant: splines contain every line (Marsden's identity)."""
        sites = 0.5 * (self.knots[1:-2] + self.knots[2:-1])
        return sites[:-1] - sites[-1]

    def _basis(self, x: np.ndarray, degree: int) -> np.ndarray:
        """Return the B-spline basis by the recursion of Cox and de Boor."""
        t, last = self.knots, len(self.knots) - 4
        # The last interval is closed on the right, so that the largest value belongs to an interval.
        cell = np.clip(np.searchsorted(t, x, side="right") - 1, 2, last)
        B = np.zeros((len(x), len(t) - 1))
        B[np.arange(len(x)), cell] = 1.0
        for d in range(1, degree + 1):
            count = len(t) - 1 - d
            left = (x[:, None] - t[:count]) / (t[d : d + count] - t[:count])
            right = (t[d + 1 : d + 1 + count] - x[:, None]) / (t[d + 1 : d + 1 + count] - t[1 : 1 + count])
            B = left * B[:, :count] + right * B[:, 1 : count + 1]
        return B

    def _slope(self, x: np.ndarray) -> np.ndarray:
        """Return derivatives of the basis."""
        t, B = self.knots, self._basis(x, 1)
        part = B / (t[2:] - t[:-2])
        return 2.0 * (part[:, :-1] - part[:, 1:])


@dataclass(frozen=True)
class Additive(Design):
    """Design with splines: columns are the features that stay linear, then the splines of the others."""

    name = "additive"
    part = "spline"

    splines: dict[int, Spline] = field(default_factory=dict)  # by the number of the feature

    @classmethod
    def learn(cls, given: Given) -> Additive | None:
        """Learn knots and scales from the rows of some agents; return None if no column gets a spline."""
        return additive_of(given.some(), given.fixed(), None if given.named else MAX_SPLINE_COLUMNS)

    def unscaled(self, X: np.ndarray) -> np.ndarray:
        """Return features with splines in place of some."""
        kept = [k for k in range(X.shape[1]) if k not in self.splines]
        return np.hstack([X[:, kept], *(spline.columns(X[:, k]) for k, spline in self.splines.items())])

    def line(self, feature: int) -> Any:
        """Return the coefficients with which a feature's columns equal the feature, plus a constant."""
        return self.splines[feature].line() if feature in self.splines else 1.0

    def to_arrays(self) -> dict[str, Any]:
        """Return arrays for a file, including the knots."""
        knots = [spline.knots for spline in self.splines.values()]
        return super().to_arrays() | {
            "design_bent": np.array(list(self.splines), dtype=np.int64),
            "design_knots": np.concatenate(knots),
            "design_lengths": np.array([len(each) for each in knots], dtype=np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Any) -> Self:
        """Return a design from arrays of a file."""
        knots = np.split(arrays["design_knots"], np.cumsum(arrays["design_lengths"])[:-1])
        splines = {int(k): Spline(t) for k, t in zip(arrays["design_bent"], knots, strict=True)}
        return replace(super().from_arrays(arrays), splines=splines)


def additive_of(
    values: Sums, keep_linear: np.ndarray | None = None, max_columns: int | None = MAX_SPLINE_COLUMNS
) -> Additive | None:
    """Return splines for columns with more than a few values; None if there are none.

    If these made `max_columns` or more, only the columns that explain most get splines. These add at least
    :data:`MIN_ADDED_COLUMNS` columns, if there are so many.
    """
    few = [len(np.unique(np.concatenate(found))) for found in zip(*values.each(Values.few), strict=True)]
    bent = [
        k for k, found in enumerate(few) if found > MAX_LINEAR_VALUES and (keep_linear is None or not keep_linear[k])
    ]
    splines = {k: Spline.through(knots) for k, knots in zip(bent, quantiles_of(values, bent, SHARES), strict=True)}
    splines = {k: spline for k, spline in splines.items() if spline.size > 2}
    if not splines:
        return None
    if max_columns is not None and len(source_of(len(few), splines)) >= max_columns:
        splines = earning(values, splines, max(max_columns - 1 - len(few), MIN_ADDED_COLUMNS))
    source = source_of(len(few), splines)
    design = Additive(np.zeros(len(source)), np.ones(len(source)), source, splines)
    mean, scale = standards_of(values, design)
    return replace(design, mean=mean, scale=scale)


def earning(values: Sums, splines: dict[int, Spline], room: int) -> dict[int, Spline]:
    """Choose the splines that explain most beyond a line, as many as add at most `room` columns.

    What one explains is measured in squares of labels about the means of their agents, by this column alone, with the
    same curve for all agents.
    """
    parts = {k: spline.columns for k, spline in splines.items()}
    found = zip(*values.each(Values.products, parts), strict=True)
    gain = {}
    for (k, spline), places in zip(splines.items(), found, strict=True):
        G, g = (sum(each) for each in zip(*places, strict=True))
        line = spline.line()
        bent = float(np.sum(g * (np.linalg.pinv(G, hermitian=True) @ g)))
        gain[k] = bent - float(np.sum((line @ g) ** 2)) / max(float(line @ G @ line), 1e-300)
    kept = []
    for k in sorted(splines, key=lambda k: -gain[k]):
        if splines[k].size - 1 <= room:
            kept.append(k)
            room -= splines[k].size - 1
    return {k: splines[k] for k in sorted(kept)}


def source_of(features: int, splines: dict[int, Spline]) -> np.ndarray:
    """Return the feature of each column: features that stay linear, then those of the splines."""
    kept = [k for k in range(features) if k not in splines]
    return np.concatenate([kept, *(np.full(spline.size, k) for k, spline in splines.items())]).astype(np.int64)
