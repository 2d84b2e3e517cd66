"""Statistics of the columns of rows, wherever these are: what designs are made of."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._threads import in_threads
from ..sums import Here, Sums, total

if TYPE_CHECKING:
    from .base import Design

#: A column with more values than this has many.
FEW = 6
#: Parts into which the range of a quantile is cut at a time, where values are in several places.
PARTS = 16


class Values:
    """Rows of features that one process holds, whose statistics a design is made of."""

    labels: Any = None  # (rows, outputs), if they are there
    sizes: Any = None  # how many rows each agent has, side by side, if labels are there

    def __init__(self, X: np.ndarray, weight: np.ndarray | None = None, n_jobs: int | None = 1):
        self.X, self.weight, self.n_jobs = X, weight, n_jobs
        self._ordered: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._unscaled: np.ndarray | None = None

    @cached_property
    def rows(self) -> float:
        """How many; a weight of 2 counts as two."""
        return float(len(self.X) if self.weight is None else self.weight.sum())

    def columns(self, design: Design | None) -> np.ndarray:
        """The rows as a design has them before it scales them; made once."""
        if design is None:
            return self.X
        if self._unscaled is None:
            self._unscaled = design.unscaled(self.X)
        return self._unscaled

    def sums(self, design: Design | None) -> tuple[float, np.ndarray]:
        """How many rows, and sums of their columns."""
        X = self.columns(design)
        return self.rows, self._sum(X, lambda block: X[block].astype(np.float64, copy=False))

    def squares(self, design: Design | None, mean: np.ndarray) -> np.ndarray:
        """Sums of squares about a mean."""
        X = self.columns(design)
        return self._sum(X, lambda block: (X[block] - mean) ** 2)

    def _sum(self, X: np.ndarray, part: Any) -> np.ndarray:
        """In blocks of rows, so that no copy of X is made."""

        def sums(block: slice) -> np.ndarray:
            rows = part(block)
            return np.asarray(rows.sum(axis=0) if self.weight is None else self.weight[block] @ rows)

        out = np.zeros(X.shape[1])
        for found in in_threads(sums, blocks_of(X), self.n_jobs):
            out += found
        return out

    def products(self, parts: dict[int, Callable[[np.ndarray], np.ndarray]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each column, what is made of it times itself and times the labels: all about the means of their agents."""
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
        """Values of every column, one more than a few of them at most; a few thousand rows decide most of the time."""
        return [_few(self.X[:, k]) for k in range(self.X.shape[1])]

    def least_weight(self) -> float:
        """Of a row that counts."""
        return 1.0 if self.weight is None else float(np.min(self.weight[self.weight > 0.0], initial=np.inf))

    def counted(self, unit: float) -> float:
        """How many rows, if a weight of `unit` counts as one."""
        return float(len(self.X) if self.weight is None else (self.weight / unit).sum())

    def ordered(self, k: int, unit: float) -> tuple[np.ndarray, np.ndarray]:
        """Values of a column in their order, and the weights up to each."""
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
        """The values at which the weights up to them exceed these, were all rows like those here, (columns, sought).

        From below and from above, in case of doubt; NaN where there are no rows.
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
        """The weights up to some values, (columns, ...)."""
        out = np.zeros(at.shape)
        for i, k in enumerate(columns):
            x, upto = self.ordered(k, unit)
            out[i] = np.append(0.0, upto)[np.searchsorted(x, at[i], side="right")]
        return out


def blocks_of(X: np.ndarray) -> list[slice]:
    """Blocks of rows of so many numbers that what is computed of one is small beside X."""
    step = max(1, 4_000_000 // max(1, X.shape[1]))
    return [slice(first, first + step) for first in range(0, len(X), step)]


def standards(X: Any, weight: np.ndarray | None = None, n_jobs: int | None = 1) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of columns. A constant has scale 1.

    Sparse columns are not centred, which would fill them: zeros, and their root mean squares.
    """
    if not isinstance(X, np.ndarray):
        X = X.astype(np.float64, copy=False)
        scale = np.sqrt(np.asarray(X.multiply(X).mean(axis=0)).ravel())
        return np.zeros(X.shape[1]), np.where(scale > 0.0, scale, 1.0)
    return standards_of(Here(Values(X, weight, n_jobs)))


def standards_of(values: Sums, design: Design | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The same of :class:`Values`, wherever they are; of the columns of a design, if there is one."""
    rows, mean = total(values, Values.sums, design)
    mean = mean / max(rows, 1e-300)
    scale = np.sqrt(total(values, Values.squares, design, mean) / max(rows, 1e-300))
    scale[scale <= 1e-9 * (1e-300 + np.abs(mean))] = 1.0
    scale[scale == 0.0] = 1.0
    return mean, scale


def quantiles_of(values: Sums, columns: list[int], shares: np.ndarray) -> np.ndarray:
    """Of columns of :class:`Values`, wherever they are, (columns, shares): exactly those of all rows in one place.

    A weight of 2 counts as two rows.
    """
    unit = min(1.0, *values.each(Values.least_weight))  # none counts as less than a row
    rows = total(values, Values.counted, unit)
    place = shares * (rows - 1.0)
    below = np.floor(place)
    sought = np.concatenate([below, below + 1.0]) + 1e-9
    # The value at which the weights up to it exceed what is sought is between those of every place.
    found = zip(*values.each(Values.reached, columns, unit, sought, rows), strict=True)
    low, high = (side.reduce(each) for side, each in zip((np.fmin, np.fmax), found, strict=True))
    # Floats in their order are whole numbers in their order: each round leaves a sixteenth of them.
    first, last = _number(low), _number(high)
    while np.any(first < last):
        step = np.maximum((last - first) // np.uint64(PARTS), np.uint64(1))[..., None]
        cuts = np.minimum(first[..., None] + step * np.arange(PARTS, dtype=np.uint64), last[..., None])
        enough = total(values, Values.upto, columns, unit, _float(cuts)) > sought[:, None]
        at = np.where(enough.any(axis=-1), enough.argmax(axis=-1), PARTS)
        upper = np.take_along_axis(cuts, np.minimum(at, PARTS - 1)[..., None], axis=-1)[..., 0]
        lower = np.take_along_axis(cuts, np.maximum(at - 1, 0)[..., None], axis=-1)[..., 0] + np.uint64(1)
        first, last = np.where(at > 0, np.minimum(lower, last), first), np.where(at < PARTS, upper, last)
    low, high = np.split(_float(last), 2, axis=1)
    part = place - below
    # As NumPy interpolates.
    return np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1.0 - part))


def _number(x: np.ndarray) -> np.ndarray:
    """Whole numbers in the order of floats."""
    bits = (x + 0.0).view(np.uint64)  # -0.0 is 0.0
    return np.where(bits >> np.uint64(63), ~bits, bits | np.uint64(1 << 63))


def _float(number: np.ndarray) -> np.ndarray:
    """Back from :func:`_number`."""
    return np.where(number >> np.uint64(63), number & np.uint64((1 << 63) - 1), ~number).view(np.float64)


def _few(x: np.ndarray) -> np.ndarray:
    """Values of a column, one more than a few at most."""
    first = np.unique(x[:2000])
    return (first if len(first) > FEW else np.unique(x))[: FEW + 1]
