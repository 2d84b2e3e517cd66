"""The exact minimiser: the reference that every method is measured against.

It minimises, over the models Theta (n x p),

    F(Theta) = s sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_r c_r l(x_r . theta_i(r), y_r) + sum_i R_i |theta_i|^2

on all agents at once; the connected components of the graph are independent problems, each with its own steps and its
own stopping test. Newton's method minimises losses that are twice differentiable (squared, logistic), and piecewise
quadratic losses (smoothed hinge, Huber) if all agents have a ridge. Without a ridge, and for the hinge loss, a
primal-dual interior point method works for all losses whose conjugate is quadratic on an interval.
:mod:`coterie.problem.exact.certificate` proves an upper bound of ``F - min F``.

Both methods solve linear systems ``(2 s (D - W) + 2 R + X' diag(weights) X) x = target``: agent by agent if there are
no edges, by a dense factorisation if n p is small, and otherwise by conjugate gradients, preconditioned by the agents'
own blocks.

If F has several minimisers, the result is the minimiser of least norm: exactly if all rows are zero along a direction,
and roughly if a loss is flat. If the infimum is not attained (separable data, logistic loss, no ridge), the result is
within 1e-12 F(0) of the infimum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..._threads import one_thread
from ...core.batches import MAX_BATCH_ENTRIES
from ...errors import ConvergenceError
from .apart import newton_apart
from .ball import BallObjective, minimise_on_balls, project
from .certificate import gap, lower_bound
from .interior import interior_point
from .newton import VANISHED, flat_directions, in_pieces, newton_connected
from .objective import Objective
from .systems import least_decrement, system

#: Largest number of features for which agents without edges are solved in batches (:func:`newton_apart`).
MAX_BATCHED_FEATURES = 400
#: Numbers, rows and blocks, of a group of agents without edges that the general solver works on at once.
MAX_GROUP_NUMBERS = 10 * MAX_BATCH_ENTRIES

__all__ = [
    "BallObjective",
    "Objective",
    "gap",
    "lower_bound",
    "minimise",
    "minimise_on_balls",
    "project",
    "suboptimality",
]


@one_thread()
def minimise(objective: Objective, slopes: np.ndarray | None = None) -> np.ndarray:
    """Return the minimiser of F, to machine precision.

    ``slopes``, an array with one number for each row, is filled by the interior point method with the slopes that
    prove a lower bound of F (:func:`coterie.problem.exact.certificate.lower_bound`).
    """
    pieces, connected = in_pieces(objective.loss), objective.graph.n_edges > 0
    if not pieces or (np.isfinite(objective.loss.smoothness) and objective.ridge.min() > 0):
        try:
            if not connected and objective.in_batches and objective.p <= MAX_BATCHED_FEATURES:
                return newton_apart(objective)
            return (
                newton_connected(objective)
                if connected
                else _few_at_a_time(objective, lambda part, _: newton_connected(part))
            )
        except ConvergenceError:
            if not pieces:
                raise
    if slopes is None:
        slopes = np.empty(objective.labels.shape[0])

    def solve(part: Objective, first: int = 0) -> np.ndarray:
        theta, slopes[first : first + part.labels.shape[0]] = interior_point(part)
        return theta

    return solve(objective) if connected else _few_at_a_time(objective, solve)


def _few_at_a_time(objective: Objective, solve: Callable[[Objective, int], np.ndarray]) -> np.ndarray:
    """Return the minimiser of F for agents without edges, a group that fits in the cache at a time."""
    theta = np.zeros((objective.n, objective.p))
    numbers = (objective.start[1:] + np.arange(1, objective.n + 1) * objective.p) * objective.p
    groups = np.split(np.arange(objective.n), np.flatnonzero(np.diff(numbers // MAX_GROUP_NUMBERS)) + 1)

    def work(agents: np.ndarray) -> None:
        first, last = int(agents[0]), int(agents[-1]) + 1
        part = replace(objective.part(first, last), n_jobs=1)
        theta[first:last] = solve(part, int(objective.start[first]))

    objective.in_threads(work, groups)
    return theta


@one_thread()
def suboptimality(objective: Objective, theta: np.ndarray, enough: float = np.inf) -> float:
    """Estimate ``(F(theta) - min F) / F(theta)`` by half of Newton's decrement: exact for a quadratic F."""
    project = flat_directions(objective)
    here = objective.sweep(theta)
    gradient = project(here.gradient)
    level = float(max(here.value.sum(), VANISHED * objective.value(np.zeros_like(theta)).sum(), 1e-300))
    if (
        np.isfinite(enough)
        and (least := 0.5 * least_decrement(objective, here.bend, gradient, project) / level) > enough
    ):
        return least
    step = system(objective, here.bend, project)(gradient, 1e-6)
    return 0.5 * abs(float(np.sum(gradient * step))) / level
