"""Random intercepts of many agents by empirical Bayes, and calibration of probabilities.

    eta_r = z_r + a + b_i,   b_i ~ N(0, v)

for the rows r of agent i, with margins z_r that a model gives; a is free. The variance v is learned from all agents
(empirical Bayes): agents with many rows have an intercept of their own, and the intercepts of agents with one row, or
with rows of one class, are near the common one. Labels are classes with log-odds eta, or numbers with mean eta and a
noise that is learned.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit

from .._folds import dealt, places
from ..data import AgentData

#: Maximum number of rounds; each is a step of Newton's method and an update of the variances.
MAX_ROUNDS = 200
#: Number of folds of rows; each fold is predicted by models of the other folds.
FOLDS = 5
#: Maximum standard deviation of intercepts, in log-odds or in standard deviations of the labels.
MAX_INTERCEPT_STD = 3.0
#: Minimum variance of the noise.
MIN_NOISE = 1e-12

__all__ = ["Intercepts", "calibrated", "fold_numbers", "random_intercepts", "some_rows", "without_levels"]


class Intercepts(NamedTuple):
    """Result of :func:`random_intercepts`."""

    own: np.ndarray  # (n,) a + b_i
    common: float  # a
    #: (n,) part of the mean of its rows that an agent's intercept takes: rows and labels minus this part of their means
    #: have independent errors.
    part: np.ndarray


def random_intercepts(
    labels: np.ndarray, owner: np.ndarray, n: int, margins: np.ndarray | None = None, classes: bool = True
) -> Intercepts:
    """Estimate intercepts by empirical Bayes, for labels -1 and +1, or numbers of variance about 1; margins default to
    0.

    Agents without rows get the common intercept.
    """
    z = np.zeros(len(labels)) if margins is None else margins
    y = 0.5 * (1.0 + labels) if classes else labels
    rows = np.bincount(owner, minlength=n)
    pooled = rows.max(initial=0) < 2 or np.count_nonzero(rows) < 2  # intercepts and noise cannot be told apart
    a, b, v = (0.0 if classes else float(np.mean(y - z))), np.zeros(n), (0.0 if pooled else 0.3)
    noise = 1.0 if classes else max(float(np.var(y - z)), MIN_NOISE)
    level: np.ndarray = np.zeros(n)
    for _ in range(MAX_ROUNDS):
        eta = z + a + b[owner]
        p = expit(eta) if classes else eta
        bend = np.maximum(p * (1.0 - p), 1e-9) if classes else np.full(len(y), 1.0 / noise)
        pull, level = (np.bincount(owner, weights=w, minlength=n) for w in ((p - y) / noise, bend))
        known = level * v / (1.0 + level * v)  # the part of an agent's intercept that its rows determine
        # Newton's step on a and all b: the b, which add b / v to the pull, are eliminated.
        free = level * (1.0 - known)
        step = -float(np.sum(pull * (1.0 - known) - b * free)) / np.sum(free)
        move = -(v * pull + b + v * level * step) / (1.0 + level * v)
        length = min(1.0, 2.0 / max(abs(step), np.abs(move).max(initial=0.0), MIN_NOISE))
        a, b = a + length * step, b + length * move
        change = max(abs(step), np.abs(move).max(initial=0.0))
        if not classes:
            residual = y - z - a - b[owner]
            counted = np.sum(known) - _taken(known, v, free)
            new = max(float(residual @ residual) / max(len(y) - 1.0 - counted, 1.0), MIN_NOISE)
            change, noise = max(change, abs(np.log(new / noise))), new
        if v > 0:
            # MacKay's step, over-relaxed: the number of intercepts that rows determine, minus those the common one
            # takes.
            ratio = float(b @ b) / max(np.sum(known) - _taken(known, v, free), 1e-3) / v
            new = float(np.clip(v * max(ratio, MIN_NOISE) ** 1.5, 1e-8, MAX_INTERCEPT_STD**2))
            change, v = max(change, abs(new - v)), new
        if change < 1e-10:
            break
    return Intercepts(a + b, float(a), 1.0 - 1.0 / np.sqrt(1.0 + level * v))


def _taken(known: np.ndarray, v: float, free: np.ndarray) -> float:
    """Return how many intercepts the common one takes: Var(b_i) = v (1 - known_i) + known_i^2 / sum(free)."""
    return float(np.sum(known**2) / (v * np.sum(free))) if v > 0.0 else 0.0


def calibrated(labels: np.ndarray, owner: np.ndarray, n: int, log_odds: np.ndarray) -> tuple[float, np.ndarray]:
    """Return a slope and intercepts with which log-odds of held-out rows are right on average.

    The prior of log(slope) is N(0, 1): a slope of 1 is expected, and e is one standard deviation away.
    """
    everybody = np.zeros_like(owner)

    def eta(log: float) -> np.ndarray:
        """Return the log-odds with a slope exp(log), and the best common intercept."""
        sloped = np.exp(log) * log_odds
        return sloped + random_intercepts(labels, everybody, 1, sloped).common

    def surprise(log: float) -> float:
        return float(np.logaddexp(0.0, -labels * eta(log)).sum()) + 0.5 * log**2

    def rise(log: float) -> float:
        """Return the derivative of `surprise`; the intercept is optimal, so that its derivative is 0."""
        return float(-(labels * expit(-labels * eta(log))) @ (np.exp(log) * log_odds)) + log

    best = float(minimize_scalar(surprise, bounds=(-7.0, 7.0), method="bounded", options={"xatol": 1e-6}).x)
    low, high = best - 1e-3, best + 1e-3
    if rise(low) < 0.0 < rise(high):  # refine by the derivative: values alone give half of the digits
        best = float(brentq(rise, low, high, xtol=1e-14))
    slope = float(np.exp(best))
    return slope, random_intercepts(labels, owner, n, slope * log_odds).own


def without_levels(values: np.ndarray, data: Any, part: np.ndarray, mean: Any = None) -> np.ndarray:
    """Return columns minus their mean, and minus the given part of each agent's mean of the remainder.

    `data` says which agent each row belongs to; `mean` is the mean of `values`, computed if None.
    """
    around = values - (values.mean(axis=0) if mean is None else mean)
    sums = np.zeros((data.n, *values.shape[1:]))
    np.add.at(sums, data.owner, around)
    shape = (data.n, *[1] * (values.ndim - 1))
    means = sums * (part / np.maximum(data.sizes, 1)).reshape(shape)
    return np.ascontiguousarray(around - means[data.owner])


def fold_numbers(sizes: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Return the fold of every row of the agents `which`; the folds do not depend on which other agents are asked for.

    Folds are random, but the rows of each agent are divided evenly. They are not stratified by class: stratified
    training rows would give away the classes of the test rows.
    """
    start = np.cumsum(sizes) - sizes
    runs = np.split(which, np.flatnonzero(np.diff(which) != 1) + 1)  # runs of consecutive agents
    probabilities = []
    for run in (run for run in runs if run.size):
        generator = np.random.PCG64(0)
        generator.advance(int(start[run[0]]))  # skip the random numbers of the agents before
        probabilities.append(np.random.Generator(generator).uniform(size=int(sizes[run].sum())))
    owner = np.repeat(np.arange(len(which)), sizes[which])
    return dealt(owner, places(owner, np.concatenate([np.zeros(0), *probabilities])), start[which], FOLDS)


def some_rows(data: AgentData, rows: np.ndarray) -> AgentData:
    """Return some of the rows, with all agents."""
    return data._rows(np.flatnonzero(rows), np.bincount(data.owner[rows], minlength=data.n))
