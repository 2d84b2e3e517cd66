"""Omega-steps that reach the joint optimum.

Alternating with the exact Omega-step stalls: once the weights have lost a direction, the covariance never gives it back
(erratum 27). So the step has a ridge, of :func:`.covariance.best_covariance`, that keeps every direction alive. A ridge
makes the alternation solve a smoothed problem, and it has to go; but a direction that is wanted and has become small
grows back only slowly, so it must not go too fast. It follows the distance to the optimum that is still left, which is
known: :attr:`coterie.multitask.server.Server.value` and ``bound`` enclose the optimum.

An alternation goes towards its goal in a straight line, on the logarithm of the covariance, by steps that shrink: there
momentum works as it does for gradients, and an exponential is always positive definite.
"""

from __future__ import annotations

import math

import numpy as np

from .covariance import best_covariance, nuclear_norm

#: The first ridge, as a part of the nuclear norm of the weights.
FIRST = 0.1
#: A ridge of this part is as good as gone, and one of the next is never needed.
GONE, LAST = 1e-6, 1e-9
#: Between which two numbers the ridge is multiplied after every round, and which part of the distance to the optimum it
#: follows: the slower, the surer. Found by trial on School data and on synthetic tasks, for a distance of 1e-4.
INEXACT, EXACT, FOLLOW = (0.985, 0.999), (0.9, 0.95), 0.3


class Alternation:
    """A sequence of Omega-steps: after ``budget`` of them the ridge is gone.

    ``exact`` says that weights are the best there are for each covariance, not just a round better than before.
    """

    def __init__(self, budget: int = 5000, exact: bool = False, momentum: bool = True):
        self.momentum, self._per_round = momentum, EXACT if exact else INEXACT
        self._limit = (GONE / FIRST) ** (1.0 / max(1, budget - 2))
        self.ridge = math.inf
        self._last: np.ndarray | None = None
        self._pace, self._value = 1.0, math.inf

    def step(
        self, weights: np.ndarray, evaluated: np.ndarray, loss: float, *, lam: float, gap: float, rounds: int
    ) -> np.ndarray:
        """The next covariance, (m, m).

        ``evaluated`` are the latest weights of which the loss is known, ``gap`` is how far the joint objective may be
        from its optimum, as a part of itself, ``rounds`` how many there were since the last step.
        """
        sizes = np.linalg.svd(evaluated, compute_uv=False)
        total = float(sizes.sum()) or nuclear_norm(weights)
        if not total > 0:
            return best_covariance(weights)
        if math.isinf(self.ridge):
            self.ridge = FIRST * total
        else:
            fastest, slowest = (factor**rounds for factor in self._per_round)
            wanted = max(fastest, 0.5, FOLLOW * gap * total / self.ridge)
            self.ridge = max(self.ridge * min(slowest, self._limit, wanted), LAST * total)
        smoothed = np.hypot(sizes, self.ridge).sum() + self.ridge * (len(evaluated) - len(sizes))
        value = loss + 0.5 * lam * smoothed**2
        goal = _log(best_covariance(weights, self.ridge))
        if value > self._value or not self.momentum:
            self._last, self._pace = None, 1.0
        pace = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * self._pace**2))
        ahead = goal if self._last is None else goal + (self._pace - 1.0) / pace * (goal - self._last)
        self._last, self._pace, self._value = goal, pace, value
        return _exp(ahead)


def _log(matrix: np.ndarray) -> np.ndarray:
    sizes, directions = np.linalg.eigh(matrix)
    return (directions * np.log(np.maximum(sizes, LAST * sizes[-1]))) @ directions.T


def _exp(matrix: np.ndarray) -> np.ndarray:
    """The exponential, divided by its trace."""
    sizes, directions = np.linalg.eigh(0.5 * (matrix + matrix.T))
    sizes = np.exp(sizes - sizes[-1])
    result = (directions * (sizes / sizes.sum())) @ directions.T
    return 0.5 * (result + result.T)
