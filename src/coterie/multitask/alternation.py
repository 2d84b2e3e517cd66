"""Omega-steps that reach the joint optimum of weights and covariance.

Alternating with the exact Omega-step stalls: a direction that the weights have lost stays lost in the covariance
(erratum 27). The step therefore has a ridge, see :func:`.covariance.best_covariance`, that keeps every direction
positive. With a ridge the alternation solves a smoothed problem, so the ridge has to vanish in the end; but a small
direction of the optimum grows back slowly, so the ridge must not vanish too fast. Lower bounds of both problems
(:mod:`coterie.multitask.certificate`) decide: the ridge shrinks once the smoothed problem is solved accurately enough,
relative to the distance to the joint optimum, and stays constant otherwise, except in the second half of the largest
allowed number of steps.

Momentum is applied to the logarithm of the covariance, where it works as in gradient methods, because an exponential is
always positive definite. Logarithms are stored in factors: they have one common value in all directions orthogonal to
the columns of Q, and that value cancels when the exponential is divided by its trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .covariance import LowRank, best_covariance, joint_penalty, low_rank, unrelated
from .spectrum import singular_values

#: The first ridge, relative to the nuclear norm of the weights.
FIRST_RIDGE = 0.1
#: A ridge that is negligible, and the smallest ridge, both relative to the nuclear norm of the weights.
NEGLIGIBLE_RIDGE, LAST_RIDGE = 1e-6, 1e-9
#: Largest number of tasks with these ridges. The penalty has the ridge in all m directions, so ridges of more tasks are
#: smaller.
FULL_RIDGE_TASKS = 16
#: Smallest and largest factor of the ridge after every round, for inexact and for exact W-steps; and the fraction of
#: the distance to the joint optimum below which the smoothed problem counts as solved. Tuned on School and Landmine
#: data and on related tasks of three losses, for a distance of 5e-5: with 0.85 and more, some runs do not reach it.
INEXACT, EXACT, SOLVED = (0.95, 1.0), (0.9, 0.95), 0.5


#: Attributes of an alternation that change from step to step, besides the last logarithm.
CHANGING = ("_steps", "_part", "_largest", "_pace", "_value")


class Logarithm(NamedTuple):
    """The logarithm of a covariance, up to a multiple of I: ``Q diag(above) Q'``."""

    directions: np.ndarray  # (m, r) Q, orthonormal
    above: np.ndarray  # (r,) logarithm in these directions, minus the common value in all other directions


class Alternation:
    """A sequence of Omega-steps; after ``budget`` steps the ridge is negligible.

    ``exact`` tells that the weights are optimal for each covariance, rather than one round better than before.
    """

    def __init__(self, budget: int = 5000, exact: bool = False, momentum: bool = True):
        self.momentum, self._per_round = momentum, EXACT if exact else INEXACT
        self._budget, self._steps = budget, 0
        self._part, self._largest = FIRST_RIDGE, 0.0  # the ridge, relative to the largest nuclear norm so far
        self._last: Logarithm | None = None
        self._pace, self._value = 1.0, math.inf

    def step(
        self,
        weights: np.ndarray,
        sizes: np.ndarray,
        loss: float,
        bound: Callable[[float], float],
        *,
        lam: float,
        gap: float,
        rounds: int,
    ) -> LowRank:
        """Return the next covariance.

        ``sizes`` are the singular values of the latest weights with a known loss; ``bound`` maps a ridge to a lower
        bound of the smoothed optimum; ``gap`` is the relative distance of the joint objective to its optimum, at most;
        ``rounds`` is the number of rounds since the last step.
        """
        total = float(sizes.sum()) or float(singular_values(weights).sum())
        m = len(weights)
        if not total > 0:
            return unrelated(m)
        if self._steps > 0:
            ridge = self.ridge(m)
            left = gap * (loss + joint_penalty(sizes, lam))
            unsolved = (_smoothed(sizes, ridge, loss, lam, m) - bound(ridge)) / left if 0 < left < math.inf else 1.0
            self._shrink(unsolved / SOLVED, rounds)
        self._steps += 1
        self._largest = max(self._largest, total)
        ridge = self.ridge(m)
        value = _smoothed(sizes, ridge, loss, lam, m)
        goal = _log(best_covariance(weights, ridge))
        if value > self._value or not self.momentum:
            self._last, self._pace = None, 1.0
        pace = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * self._pace**2))
        ahead = goal if self._last is None else _beyond(self._last, goal, (self._pace - 1.0) / pace)
        self._last, self._pace, self._value = goal, pace, value
        return _exp(ahead)

    def ridge(self, m: int) -> float:
        """Return the ridge for m tasks; the ridge grows with the weights, which begin at zero."""
        return self._part * _share(m) * self._largest

    def _shrink(self, factor: float, rounds: int) -> None:
        """Multiply the ridge by about `factor`, so that it is negligible when the budget ends."""
        fastest, slowest = (each**rounds for each in self._per_round)
        if 2 * self._steps > self._budget and self._part > NEGLIGIBLE_RIDGE:
            slowest = min(slowest, (NEGLIGIBLE_RIDGE / self._part) ** (1.0 / max(1, self._budget - self._steps - 1)))
        self._part = max(self._part * min(slowest, max(fastest, 0.5, factor)), LAST_RIDGE)

    def pack(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        last = {} if self._last is None else self._last._asdict()
        return last | {name: getattr(self, name) for name in CHANGING}

    def unpack(self, packed: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        for name in CHANGING:
            setattr(self, name, packed[name])
        self._last = Logarithm(packed["directions"], packed["above"]) if "above" in packed else None


def _smoothed(sizes: np.ndarray, ridge: float, loss: float, lam: float, m: int) -> float:
    """Return the smoothed objective, ``losses + lam/2 (sum_k sqrt(sigma_k^2 + r^2))^2`` over all m directions."""
    total = float(np.hypot(sizes, ridge).sum()) + ridge * (m - len(sizes))
    return loss + 0.5 * lam * total**2


def _share(m: int) -> float:
    """Return the factor of ridges that keeps their total weight that of :data:`FULL_RIDGE_TASKS` tasks."""
    return min(1.0, FULL_RIDGE_TASKS / m)


def _log(covariance: LowRank) -> Logarithm:
    """Return the logarithm; eigenvalues are raised to at least :data:`LAST_RIDGE` times the largest."""
    values, rest = covariance.sizes + covariance.rest, covariance.rest
    least = LAST_RIDGE * _share(len(covariance)) * max(float(values.max(initial=0.0)), rest)
    return Logarithm(covariance.directions, np.log(np.maximum(values, least)) - math.log(max(rest, least)))


def _beyond(last: Logarithm, goal: Logarithm, momentum: float) -> Logarithm:
    """Return ``goal + momentum (goal - last)``, computed as a small matrix in an orthonormal basis of both."""
    both = np.hstack([goal.directions, last.directions])
    above = np.concatenate([(1.0 + momentum) * goal.above, -momentum * last.above])
    directions, R = np.linalg.qr(both)
    sizes, turn = np.linalg.eigh((R * above) @ R.T)
    return Logarithm(directions @ turn, sizes)


def _exp(logarithm: Logarithm) -> LowRank:
    """Return the exponential, divided by its trace."""
    directions, above = logarithm
    m, r = directions.shape
    top = float(above.max(initial=0.0 if r < m else -math.inf))
    values, rest = np.exp(above - top), math.exp(-top)
    total = values.sum() + (m - r) * rest
    return low_rank(directions, values / total, rest / total)
