"""From columns of features to columns of a model: as they are, or as splines; in standard units, with ones at the end.

A design is learned from the rows of a fit and applied to any others. *Linear* keeps the columns; *additive* replaces
each that has more than a few values by a quadratic spline with quantile knots, linear beyond the outermost: a curve for
every agent, that deviates from a common curve.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._threads import in_threads

#: Quantile knots of a spline, the two ends included. With 8 a split in time broke.
KNOTS = 5
#: A column with more values than this gets a spline.
FEW = 6


class Spline(NamedTuple):
    """Quadratic B-splines of one column; without the last of them, since all of them sum up to one."""

    knots: np.ndarray  # extended by two beyond each end

    @classmethod
    def of(cls, x: np.ndarray, weight: np.ndarray | None = None) -> Spline:
        """With knots at quantiles of the values; those that coincide count once."""
        inner = np.unique(quantiles(x, np.linspace(0.0, 1.0, KNOTS), weight))
        left, right = inner[1] - inner[0], inner[-1] - inner[-2]
        ends = np.array([1.0, 2.0])
        return cls(np.concatenate([inner[0] - left * ends[::-1], inner, inner[-1] + right * ends]))

    @property
    def size(self) -> int:
        """How many columns it makes."""
        return len(self.knots) - 4

    def columns(self, x: np.ndarray) -> np.ndarray:
        """The basis at x, (rows, size); beyond the outermost knots, lines that go on as they left."""
        low, high = self.knots[2], self.knots[-3]
        inside = np.clip(x, low, high)
        out = self._basis(inside, 2)[:, :-1]
        beyond = (x - inside)[:, None]
        if np.any(beyond):
            out = out + beyond * self._slope(inside)[:, :-1]
        return out

    def line(self) -> np.ndarray:
        """Coefficients of x itself, up to a constant: splines hold every line (Marsden's identity)."""
        sites = 0.5 * (self.knots[1:-2] + self.knots[2:-1])
        return sites[:-1] - sites[-1]

    def _basis(self, x: np.ndarray, degree: int) -> np.ndarray:
        """The recursion of Cox and de Boor."""
        t, last = self.knots, len(self.knots) - 4
        # The last interval is closed on the right, or the largest value would belong to none.
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
        """Derivatives of the basis."""
        t, B = self.knots, self._basis(x, 1)
        part = B / (t[2:] - t[:-2])
        return 2.0 * (part[:, :-1] - part[:, 1:])


class Design(NamedTuple):
    """How features become columns of the model: splines of some, and mean and scale of each of the outcome."""

    splines: dict[int, Spline]  # by the column they replace
    mean: np.ndarray  # of the columns, splines included, without the ones
    scale: np.ndarray
    source: np.ndarray  # the feature that each column is made of

    @property
    def name(self) -> str:
        """Either "linear" or "additive"."""
        return "additive" if self.splines else "linear"

    @property
    def size(self) -> int:
        """How many columns, the ones included."""
        return len(self.mean) + 1

    def unscaled(self, X: np.ndarray) -> np.ndarray:
        """Features with splines in place of some, not yet scaled."""
        if not self.splines:
            return X
        kept = [k for k in range(X.shape[1]) if k not in self.splines]
        return np.hstack([X[:, kept], *(spline.columns(X[:, k]) for k, spline in self.splines.items())])

    def columns(self, X: np.ndarray) -> np.ndarray:
        """The columns of the model for rows of features."""
        out = np.empty((len(X), self.size))
        np.subtract(self.unscaled(X), self.mean, out=out[:, :-1])
        out[:, :-1] /= self.scale
        out[:, -1] = 1.0
        return out

    def lines(self) -> np.ndarray:
        """(size, p + 1): a linear model of the features (ones last) as a model of the columns of this design."""
        p = len(self.splines) + int(np.sum(np.isin(self.source, list(self.splines), invert=True)))
        out = np.zeros((self.size, p + 1))
        for k in range(p):
            out[:-1, k][self.source == k] = self.splines[k].line() if k in self.splines else 1.0
            # Whatever constant is missing: the value at the origin of the features, taken off below.
        out[:-1] *= self.scale[:, None]
        origin = self.columns(np.zeros((1, p)))[0]
        out[-1, :-1] = -(origin @ out[:, :-1])
        out[-1, -1] = 1.0
        return out

    def units(self) -> np.ndarray:
        """(size, size): a model of the scaled columns as a model of the columns before that; ones are last."""
        out = np.diag(1.0 / np.append(self.scale, 1.0))
        out[-1, :-1] = -self.mean / self.scale
        return out

    def to_arrays(self) -> dict[str, Any]:
        """For a file: plain arrays."""
        knots = list(self.splines.values())
        return {
            "design_mean": self.mean,
            "design_scale": self.scale,
            "design_source": self.source,
            "design_bent": np.array(list(self.splines), dtype=np.int64),
            "design_knots": np.concatenate([spline.knots for spline in knots]) if knots else np.empty(0),
            "design_lengths": np.array([len(spline.knots) for spline in knots], dtype=np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Any) -> Design:
        """Back from a file."""
        ends = np.cumsum(arrays["design_lengths"])[:-1]
        knots = np.split(arrays["design_knots"], ends) if len(arrays["design_lengths"]) else []
        splines = {int(k): Spline(t) for k, t in zip(arrays["design_bent"], knots, strict=True)}
        return cls(splines, arrays["design_mean"], arrays["design_scale"], arrays["design_source"])


def linear(X: Any, weight: np.ndarray | None = None, n_jobs: int | None = 1) -> Design:
    """The columns as they are, in standard units."""
    return Design({}, *standards(X, weight, n_jobs), np.arange(X.shape[1]))


def additive(
    X: np.ndarray, weight: np.ndarray | None = None, keep_linear: np.ndarray | None = None, max_columns: int = 150
) -> Design | None:
    """Splines in place of columns with more than a few values; None if there are none, or `max_columns` or more."""
    bent = [k for k in range(X.shape[1]) if _many(X[:, k]) and (keep_linear is None or not keep_linear[k])]
    splines = {k: Spline.of(X[:, k], weight) for k in bent}
    splines = {k: spline for k, spline in splines.items() if spline.size > 2}
    kept = [k for k in range(X.shape[1]) if k not in splines]
    size = len(kept) + sum(spline.size for spline in splines.values())
    if not splines or size >= max_columns:
        return None
    source = np.concatenate([kept, *(np.full(spline.size, k) for k, spline in splines.items())]).astype(np.int64)
    design = Design(splines, np.zeros(size), np.ones(size), source)
    return Design(splines, *standards(design.unscaled(X), weight), source)


def blocks_of(X: np.ndarray) -> list[slice]:
    """Blocks of rows of so many numbers that what is computed of one is small beside X."""
    step = max(1, 4_000_000 // max(1, X.shape[1]))
    return [slice(first, first + step) for first in range(0, len(X), step)]


def standards(X: Any, weight: np.ndarray | None = None, n_jobs: int | None = 1) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of columns, in blocks of rows: no copy of X is made. A constant has scale 1.

    Sparse columns are not centred, which would fill them: zeros, and their root mean squares.
    """
    if not isinstance(X, np.ndarray):
        X = X.astype(np.float64, copy=False)
        scale = np.sqrt(np.asarray(X.multiply(X).mean(axis=0)).ravel())
        return np.zeros(X.shape[1]), np.where(scale > 0.0, scale, 1.0)
    total = float(len(X) if weight is None else weight.sum())
    mean, square = np.zeros(X.shape[1]), np.zeros(X.shape[1])

    def sums(part: np.ndarray, block: slice) -> np.ndarray:
        return np.asarray(part.sum(axis=0) if weight is None else weight[block] @ part)

    blocks = blocks_of(X)
    for found in in_threads(lambda block: sums(X[block].astype(np.float64, copy=False), block), blocks, n_jobs):
        mean += found
    mean /= max(total, 1e-300)
    for found in in_threads(lambda block: sums((X[block] - mean) ** 2, block), blocks, n_jobs):
        square += found
    scale = np.sqrt(square / max(total, 1e-300))
    scale[scale <= 1e-9 * (1e-300 + np.abs(mean))] = 1.0
    scale[scale == 0.0] = 1.0
    return mean, scale


def quantiles(x: np.ndarray, shares: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """Quantiles of x; a weight of 2 counts as two rows."""
    x = x.astype(np.float64, copy=False)
    if weight is None:
        return np.quantile(x, shares)
    order = np.argsort(x, kind="stable")
    order = order[weight[order] > 0.0]
    weight = weight / min(1.0, float(weight[order].min()))  # none counts as less than a row
    upto, place = np.cumsum(weight[order]), shares * (weight.sum() - 1.0)
    below = np.floor(place)
    low, high = (
        x[order[np.minimum(np.searchsorted(upto, at + 1e-9, side="right"), len(order) - 1)]]
        for at in (below, below + 1.0)
    )
    return low + (place - below) * (high - low)


def _many(x: np.ndarray) -> bool:
    """Whether a column has more than a few values; a few thousand rows decide most of the time."""
    return len(np.unique(x[:2000])) > FEW or len(np.unique(x)) > FEW
