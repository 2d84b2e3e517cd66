"""Omega-steps that reach the joint optimum.

Alternating with the exact Omega-step stalls: once the weights have lost a direction, the covariance never gives it back
(erratum 27). So the step has a ridge, of :func:`.covariance.best_covariance`, that keeps every direction alive. A ridge
makes the alternation solve a smoothed problem, and it has to go; but a direction that is wanted and has become small
grows back only slowly, so it must not go too fast. What to do is known, because both problems have a bound
(:mod:`coterie.multitask.certificate`): where the smoothed one is solved, as far as the distance to the joint optimum
goes, it is the ridge that is in the way, and it shrinks; where it is not, it stays, except in the second half of the
steps that there may be at most.

An alternation goes towards its goal in a straight line, on the logarithm of the covariance, by steps that shrink: there
momentum works as it does for gradients, and an exponential is always positive definite. Logarithms are in factors, too:
in all directions but the weights' own they have one value, and that drops out when the exponential is divided by its
trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .covariance import LowRank, best_covariance, joint_penalty, low_rank, unrelated
from .spectrum import singular_values

#: The first ridge, as a part of the nuclear norm of the weights.
FIRST = 0.1
#: A ridge of this part is as good as gone, and one of the next is never needed.
GONE, LAST = 1e-6, 1e-9
#: These ridges are for so many tasks. The penalty has them in all m directions: of more tasks they are smaller.
FEW = 16
#: Between which two numbers the ridge is multiplied after every round, and which part of the distance to the joint
#: optimum that to the smoothed one is where it begins to shrink. Found by trial on School and Landmine data and on
#: related tasks of three losses, for a distance of 5e-5: with 0.85 and more, some of them do not get there.
INEXACT, EXACT, SOLVED = (0.95, 1.0), (0.9, 0.95), 0.5


#: What of an alternation changes from step to step, beside the last logarithm.
CHANGING = ("_steps", "_part", "_largest", "_pace", "_value")


class Logarithm(NamedTuple):
    """The logarithm of a covariance, up to a multiple of I: ``Q diag(above) Q'``."""

    directions: np.ndarray  # (m, r) Q, orthonormal
    above: np.ndarray  # (r,) by how much it is larger there than in all other directions


class Alternation:
    """A sequence of Omega-steps: after ``budget`` of them the ridge is gone.

    ``exact`` says that weights are the best there are for each covariance, not just a round better than before.
    """

    def __init__(self, budget: int = 5000, exact: bool = False, momentum: bool = True):
        self.momentum, self._per_round = momentum, EXACT if exact else INEXACT
        self._budget, self._steps = budget, 0
        self._part, self._largest = FIRST, 0.0  # the ridge, as a part of the largest nuclear norm so far
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
        """The next covariance.

        ``sizes`` are the singular values of the latest weights of which the loss is known; ``bound`` is a lower bound
        on the smoothed optimum for a ridge; ``gap`` is how far the joint objective may be from its optimum, as a part
        of itself; ``rounds`` how many there were since the last step.
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
        """The ridge for m tasks. It grows with the weights, which begin at zero."""
        return self._part * _share(m) * self._largest

    def _shrink(self, factor: float, rounds: int) -> None:
        """Multiply the ridge by about this factor, and see to it that it is gone in time."""
        fastest, slowest = (each**rounds for each in self._per_round)
        if 2 * self._steps > self._budget and self._part > GONE:
            slowest = min(slowest, (GONE / self._part) ** (1.0 / max(1, self._budget - self._steps - 1)))
        self._part = max(self._part * min(slowest, max(fastest, 0.5, factor)), LAST)

    def pack(self) -> dict[str, Any]:
        """All that changes from step to step, for a checkpoint."""
        last = {} if self._last is None else self._last._asdict()
        return last | {name: getattr(self, name) for name in CHANGING}

    def unpack(self, packed: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        for name in CHANGING:
            setattr(self, name, packed[name])
        self._last = Logarithm(packed["directions"], packed["above"]) if "above" in packed else None


def _smoothed(sizes: np.ndarray, ridge: float, loss: float, lam: float, m: int) -> float:
    """The objective with a ridge, ``losses + lam/2 (sum_k sqrt(sigma_k^2 + r^2))^2`` over all m directions."""
    total = float(np.hypot(sizes, ridge).sum()) + ridge * (m - len(sizes))
    return loss + 0.5 * lam * total**2


def _share(m: int) -> float:
    """What ridges are multiplied by, so that those of many tasks do not weigh more than those of :data:`FEW`."""
    return min(1.0, FEW / m)


def _log(covariance: LowRank) -> Logarithm:
    """The logarithm. Eigenvalues that are as good as zero are taken to be :data:`LAST` of the largest."""
    values, rest = covariance.sizes + covariance.rest, covariance.rest
    least = LAST * _share(len(covariance)) * max(float(values.max(initial=0.0)), rest)
    return Logarithm(covariance.directions, np.log(np.maximum(values, least)) - math.log(max(rest, least)))


def _beyond(last: Logarithm, goal: Logarithm, momentum: float) -> Logarithm:
    """``goal + momentum (goal - last)``: in the directions of both, made orthonormal, it is a small matrix."""
    both = np.hstack([goal.directions, last.directions])
    above = np.concatenate([(1.0 + momentum) * goal.above, -momentum * last.above])
    directions, R = np.linalg.qr(both)
    sizes, turn = np.linalg.eigh((R * above) @ R.T)
    return Logarithm(directions @ turn, sizes)


def _exp(logarithm: Logarithm) -> LowRank:
    """The exponential, divided by its trace."""
    directions, above = logarithm
    m, r = directions.shape
    top = float(above.max(initial=0.0 if r < m else -math.inf))
    values, rest = np.exp(above - top), math.exp(-top)
    total = values.sum() + (m - r) * rest
    return low_rank(directions, values / total, rest / total)
