"""Statistics of the columns of rows in this or other processes, from which designs are learned."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._threads import in_threads
from ..sums import Here, Sums, total

if TYPE_CHECKING:
    from .base import Design

#: Number of distinct values above which a column gets a spline.
MAX_LINEAR_VALUES = 6
#: Number of parts into which the range of a quantile is divided per round, if values are in several processes.
QUANTILE_PARTS = 16


class Values:
    """Rows of features that one process holds, with the statistics that designs need."""

    labels: Any = None  # (rows, outputs), if they are held, too
    sizes: Any = None  # number of rows of each agent, if labels are held

    def __init__(self, X: np.ndarray, weight: np.ndarray | None = None, n_jobs: int | None = 1):
        self.X, self.weight, self.n_jobs = X, weight, n_jobs
        self._ordered: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._unscaled: np.ndarray | None = None

    @cached_property
    def rows(self) -> float:
        """Number of rows; a weight of 2 counts as two."""
        return float(len(self.X) if self.weight is None else self.weight.sum())

    def columns(self, design: Design | None) -> np.ndarray:
        """Return the rows in unscaled columns of a design, computed once."""
        if design is None:
            return self.X
        if self._unscaled is None:
            self._unscaled = design.unscaled(self.X)
        return self._unscaled

    def sums(self, design: Design | None) -> tuple[float, np.ndarray]:
        """Return the number of rows, and sums of their columns."""
        X = self.columns(design)
        return self.rows, self._sum(X, lambda block: X[block].astype(np.float64, copy=False))

    def squares(self, design: Design | None, mean: np.ndarray) -> np.ndarray:
        """Return sums of squares around a mean."""
        X = self.columns(design)
        return self._sum(X, lambda block: (X[block] - mean) ** 2)

    def _sum(self, X: np.ndarray, part: Any) -> np.ndarray:
        """Return sums over blocks of rows, so that no copy of X is made."""

        def sums(block: slice) -> np.ndarray:
            rows = part(block)
            return np.asarray(rows.sum(axis=0) if self.weight is None else self.weight[block] @ rows)

        out = np.zeros(X.shape[1])
        for found in in_threads(sums, blocks_of(X), self.n_jobs):
            out += found
        return out

    def products(self, parts: dict[int, Callable[[np.ndarray], np.ndarray]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return, for what each part makes of its column, products with itself and with the labels.

        All are taken about the means of their agents.
        """
        weight = np.ones((len(self.X), 1)) if self.weight is None else self.weight[:, None]
        sizes = self.sizes[self.sizes > 0]
        start = np.cumsum(sizes) - sizes

        def about_means(A: np.ndarray) -> np.ndarray:
            sums = (np.add.reduceat(each, start) if len(start) else each for each in (weight * A, weight))
            return A - np.repeat(np.divide(*sums), sizes, axis=0)

        labels, out = weight * about_means(self.labels), []
        for k, part in parts.items():
            B = about_means(part(self.X[:, k]))
            out.append(((weight * B).T @ B, B.T @ labels))
        return out

    def few(self) -> list[np.ndarray]:
        """Return the distinct values of every column, at most ``MAX_LINEAR_VALUES + 1`` of them."""
        return [_few(self.X[:, k]) for k in range(self.X.shape[1])]

    def least_weight(self) -> float:
        """Return the smallest positive weight of a row."""
        return 1.0 if self.weight is None else float(np.min(self.weight[self.weight > 0.0], initial=np.inf))

    def counted(self, unit: float) -> float:
        """Return the number of rows, if a weight of `unit` counts as one."""
        return float(len(self.X) if self.weight is None else (self.weight / unit).sum())

    def ordered(self, k: int, unit: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the sorted values of a column, and the cumulative weights."""
        if k not in self._ordered:
            x = self.X[:, k].astype(np.float64, copy=False)
            if self.weight is None:
                self._ordered[k] = np.sort(x), np.arange(1.0, len(x) + 1.0)
            else:
                order = np.argsort(x, kind="stable")
                order = order[self.weight[order] > 0.0]
                self._ordered[k] = x[order], np.cumsum((self.weight / unit)[order])
        return self._ordered[k]

    def reached(self, columns: list[int], unit: float, sought: np.ndarray, rows: float) -> tuple[np.ndarray, Any]:
        """Return the values at which cumulative weights exceed `sought`, if all rows were like those here, (columns,
        sought).

        Returns a lower and an upper value, which differ by rounding; NaN if there are no rows.
        """
        share = self.counted(unit) / rows
        slack = 0.0 if share == 1.0 else 1e-9 * rows
        out = np.full((2, len(columns), len(sought)), np.nan)
        for i, k in enumerate(columns):
            x, upto = self.ordered(k, unit)
            for side, at in enumerate((sought - slack, sought + slack)):
                if len(x):
                    out[side, i] = x[np.minimum(np.searchsorted(upto, share * at, side="right"), len(x) - 1)]
        return out[0], out[1]

    def upto(self, columns: list[int], unit: float, at: np.ndarray) -> np.ndarray:
        """Return the cumulative weights up to some values, (columns, ...)."""
        out = np.zeros(at.shape)
        for i, k in enumerate(columns):
            x, upto = self.ordered(k, unit)
            out[i] = np.append(0.0, upto)[np.searchsorted(x, at[i], side="right")]
        return out


def blocks_of(X: np.ndarray) -> list[slice]:
    """Return blocks of rows that are small compared with X."""
    step = max(1, 4_000_000 // max(1, X.shape[1]))
    return [slice(first, first + step) for first in range(0, len(X), step)]


def standards(X: Any, weight: np.ndarray | None = None, n_jobs: int | None = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of columns. A constant column has scale 1.

    Sparse columns are not centred, which would fill them: their means are 0, and their scales are root mean squares.
    """
    if not isinstance(X, np.ndarray):
        X = X.astype(np.float64, copy=False)
        scale = np.sqrt(np.asarray(X.multiply(X).mean(axis=0)).ravel())
        return np.zeros(X.shape[1]), np.where(scale > 0.0, scale, 1.0)
    return standards_of(Here(Values(X, weight, n_jobs)))


def standards_of(values: Sums, design: Design | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and scale of the columns of :class:`Values`, or of a design's columns, over all processes."""
    rows, mean = total(values, Values.sums, design)
    mean = mean / max(rows, 1e-300)
    scale = np.sqrt(total(values, Values.squares, design, mean) / max(rows, 1e-300))
    scale[scale <= 1e-9 * (1e-300 + np.abs(mean))] = 1.0
    scale[scale == 0.0] = 1.0
    return mean, scale


def quantiles_of(values: Sums, columns: list[int], shares: np.ndarray) -> np.ndarray:
    """Return quantiles of columns of :class:`Values`, (columns, shares), equal to the quantiles of all rows in one
    process.

    A weight of 2 counts as two rows.
    """
    unit = min(1.0, *values.each(Values.least_weight))  # so that no row counts less than one
    rows = total(values, Values.counted, unit)
    place = shares * (rows - 1.0)
    below = np.floor(place)
    sought = np.concatenate([below, below + 1.0]) + 1e-9
    # The value at which cumulative weights exceed `sought` lies between those of the processes.
    found = zip(*values.each(Values.reached, columns, unit, sought, rows), strict=True)
    low, high = (side.reduce(each) for side, each in zip((np.fmin, np.fmax), found, strict=True))
    # Floats are bisected as integers of the same order: each round leaves a sixteenth of the range.
    first, last = _number(low), _number(high)
    while np.any(first < last):
        step = np.maximum((last - first) // np.uint64(QUANTILE_PARTS), np.uint64(1))[..., None]
        cuts = np.minimum(first[..., None] + step * np.arange(QUANTILE_PARTS, dtype=np.uint64), last[..., None])
        enough = total(values, Values.upto, columns, unit, _float(cuts)) > sought[:, None]
        at = np.where(enough.any(axis=-1), enough.argmax(axis=-1), QUANTILE_PARTS)
        upper = np.take_along_axis(cuts, np.minimum(at, QUANTILE_PARTS - 1)[..., None], axis=-1)[..., 0]
        lower = np.take_along_axis(cuts, np.maximum(at - 1, 0)[..., None], axis=-1)[..., 0] + np.uint64(1)
        first, last = np.where(at > 0, np.minimum(lower, last), first), np.where(at < QUANTILE_PARTS, upper, last)
    low, high = np.split(_float(last), 2, axis=1)
    part = place - below
    # NumPy's interpolation.
    return np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1.0 - part))


def _number(x: np.ndarray) -> np.ndarray:
    """Return integers in the order of floats."""
    bits = (x + 0.0).view(np.uint64)  # -0.0 is 0.0
    return np.where(bits >> np.uint64(63), ~bits, bits | np.uint64(1 << 63))


def _float(number: np.ndarray) -> np.ndarray:
    """Invert :func:`_number`."""
    return np.where(number >> np.uint64(63), number & np.uint64((1 << 63) - 1), ~number).view(np.float64)


def _few(x: np.ndarray) -> np.ndarray:
    """Return the distinct values of a column, at most ``MAX_LINEAR_VALUES + 1`` of them."""
    first = np.unique(x[:2000])
    return (first if len(first) > MAX_LINEAR_VALUES else np.unique(x))[: MAX_LINEAR_VALUES + 1]
