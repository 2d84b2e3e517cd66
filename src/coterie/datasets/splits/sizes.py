"""Numbers of rows of agents: quantity skew, independent of the content of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from ..._checks import integer, nonnegative, positive
from ...errors import DataError, ParameterError

__all__ = ["DirichletSizes", "LogNormalSizes", "PowerLawSizes", "SizeRule"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class SizeRule(Protocol):
    """Protocol of rules for the share of rows of each agent."""

    def shares(self, n: int, rng: np.random.Generator) -> Floats:
        """Return positive numbers, one for each agent; only their ratios matter."""


@dataclass(frozen=True)
class LogNormalSizes:
    """Sizes whose logarithms are normal (the synthetic sets of FedProx; Li et al. 2020).

    Parameters
    ----------
    sigma : float
        Standard deviation of the logarithm; 0 for equal sizes.

    Examples
    --------
    >>> LogNormalSizes(0.0).shares(3, np.random.default_rng(0))
    array([1., 1., 1.])
    """

    sigma: float = 1.0

    def __post_init__(self) -> None:
        nonnegative("sigma", self.sigma)

    def shares(self, n: int, rng: np.random.Generator) -> Floats:
        """Return a share for each agent."""
        logarithm = self.sigma * rng.standard_normal(n)
        return np.exp(logarithm - logarithm.max())  # the largest is 1, which prevents overflow


@dataclass(frozen=True)
class PowerLawSizes:
    """Sizes in proportion to ``k ** -exponent`` for the k-th largest agent; the order of agents is random.

    Parameters
    ----------
    exponent : float
        0 for equal sizes.

    Examples
    --------
    >>> np.sort(PowerLawSizes(1.0).shares(4, np.random.default_rng(0))).round(2)
    array([0.25, 0.33, 0.5 , 1.  ])
    """

    exponent: float = 1.0

    def __post_init__(self) -> None:
        nonnegative("exponent", self.exponent)

    def shares(self, n: int, rng: np.random.Generator) -> Floats:
        """Return a share for each agent."""
        return rng.permutation(np.arange(1, n + 1)) ** -float(self.exponent)


@dataclass(frozen=True)
class DirichletSizes:
    """Shares drawn from a symmetric Dirichlet distribution (quantity skew of NIID-Bench; Li et al. 2022).

    Parameters
    ----------
    alpha : float
        Concentration: small values give a few large agents, large values equal sizes.

    Examples
    --------
    >>> bool(abs(DirichletSizes(1e9).shares(4, np.random.default_rng(0)) - 0.25).max() < 1e-3)
    True
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        positive("alpha", self.alpha)

    def shares(self, n: int, rng: np.random.Generator) -> Floats:
        """Return a share for each agent."""
        return softmax(draw_dirichlet(np.full((1, n), float(self.alpha)), rng), axis=1)[0]


def draw_dirichlet(alpha: NDArray[Any], rng: np.random.Generator) -> Floats:
    """Draw one vector for each row of parameters; return logarithms up to a constant, which softmax turns into shares.

    log Gamma(a) is computed as log Gamma(a + 1) + log(U) / a, which does not underflow for small a.
    """
    alpha = np.maximum(alpha, 1e-300)
    return np.log(rng.standard_gamma(alpha + 1.0)) + np.log(1.0 - rng.random(alpha.shape)) / alpha


def sizes_of(
    sizes: SizeRule | Sequence[int] | None, n: int, rows: int, min_rows: int, rng: np.random.Generator
) -> Integers:
    """Return the number of rows of each agent: as given, or `min_rows` and a share of the other rows."""
    check_enough(n, rows, min_rows)
    if sizes is not None and not hasattr(sizes, "shares"):
        return _given(sizes, n, rows, min_rows)
    shares = shares_of(sizes, n, rng)
    return min_rows + apportion(np.array([rows - n * min_rows]), shares, np.zeros(n, np.int64), rng)


def shares_of(sizes: Any, n: int, rng: np.random.Generator) -> Floats:
    """Return the share of rows of each agent."""
    if sizes is None:
        return np.ones(n)
    shares = np.asarray(sizes.shares(n, rng) if hasattr(sizes, "shares") else sizes, dtype=np.float64)
    if shares.shape != (n,) or not np.isfinite(shares).all() or (shares < 0).any() or shares.sum() <= 0:
        raise ParameterError(f"sizes = {sizes!r}: expected a nonnegative finite share for each of {n} agents")
    return shares


def check_enough(n: int, rows: int, min_rows: int) -> None:
    """Refuse too few rows for all agents."""
    integer("n_agents", n)
    integer("min_rows", min_rows, least=0)
    if n * min_rows > rows:
        raise DataError(
            f"{rows} rows are too few: {n} agents with min_rows={min_rows} need {n * min_rows}; "
            "take fewer agents, or a smaller min_rows"
        )


def _given(sizes: Any, n: int, rows: int, min_rows: int) -> Integers:
    array = np.asarray(sizes)
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise ParameterError(
            f"sizes = {sizes!r}: expected a whole number of rows for each of {n} agents, or a rule such as "
            "ct.splits.LogNormalSizes(1.0)"
        )
    array = array.astype(np.int64)
    if array.min() < min_rows:
        raise ParameterError(f"sizes[{array.argmin()}] = {array.min()}: expected at least min_rows = {min_rows}")
    if array.sum() > rows:
        raise DataError(f"sizes add up to {array.sum()} rows, and there are only {rows}: give smaller sizes")
    return array


def apportion(totals: Integers, weights: NDArray[Any], owner: Integers, rng: np.random.Generator) -> Integers:
    """Return whole numbers in proportion to weights, with the given total for each owner.

    Largest remainders are rounded up, equal ones at random: no number differs from its exact share by 1 or more.
    """
    whole = np.bincount(owner, weights, minlength=totals.size)
    exact = weights * (totals / np.where(whole > 0, whole, 1.0))[owner]
    parts = np.floor(exact).astype(np.int64)
    missing = totals - np.bincount(owner, parts, minlength=totals.size).astype(np.int64)
    # Rounded, so that rounding errors do not make equal remainders differ.
    order = np.lexsort((rng.random(owner.size), -(exact - parts).round(9), owner))
    first = np.searchsorted(owner[order], np.arange(totals.size))
    rank = np.arange(owner.size) - first[owner[order]]
    parts[order] += rank < missing[owner[order]]
    return parts
