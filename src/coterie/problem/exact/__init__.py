"""The exact minimiser: the reference that every method is measured against.

It minimises, over the models Theta (n x p),

    F(Theta) = s sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_r c_r l(x_r . theta_i(r), y_r) + sum_i R_i |theta_i|^2

on all agents at once; the connected components of the graph are independent problems, each with its own steps and its
own stopping test. Losses that are twice differentiable (squared, logistic) are minimised by Newton's method, and so are
those that are quadratic in pieces (smoothed hinge, Huber) where everybody has a ridge. Without one, and with a kink
(hinge), a primal-dual interior point method works for all losses whose conjugate is quadratic on an interval.
:mod:`coterie.problem.exact.certificate` proves how far from its minimum F can be.

Both solve linear systems ``(2 s (D - W) + 2 R + X' diag(weights) X) x = target``: agent by agent where there are no
edges, by a dense factorisation while n p is small, and beyond that by conjugate gradients, preconditioned by the agents'
own blocks.

Where F has several minimisers, the result is the one of least norm: exactly where rows leave a direction unseen, and
roughly where a loss is flat. Where the infimum is not attained (separable data, logistic loss, no ridge), the result is
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
from .newton import VANISHED, flat_directions, in_pieces, newton_tied
from .objective import Objective
from .systems import least_decrement, system

#: Agents without edges that have more features than this go through the general solver.
MANY = 400
#: Numbers that agents without edges may have, rows and blocks, to be worked on together by the general solver.
FEW = 10 * MAX_BATCH_ENTRIES

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
    """Minimise F to machine precision.

    ``slopes``, an array with a number for each row, is filled by the interior point method: they prove how far F can
    fall (:func:`coterie.problem.exact.certificate.lower_bound`).
    """
    pieces, tied = in_pieces(objective.loss), objective.graph.n_edges > 0
    if not pieces or (np.isfinite(objective.loss.smoothness) and objective.ridge.min() > 0):
        try:
            if not tied and objective.in_batches and objective.p <= MANY:
                return newton_apart(objective)
            return newton_tied(objective) if tied else _few_at_a_time(objective, lambda part, _: newton_tied(part))
        except ConvergenceError:
            if not pieces:
                raise
    if slopes is None:
        slopes = np.empty(objective.labels.shape[0])

    def solve(part: Objective, first: int = 0) -> np.ndarray:
        theta, slopes[first : first + part.labels.shape[0]] = interior_point(part)
        return theta

    return solve(objective) if tied else _few_at_a_time(objective, solve)


def _few_at_a_time(objective: Objective, solve: Callable[[Objective, int], np.ndarray]) -> np.ndarray:
    """Minimise F of agents without edges, so many at a time as fit in the cache."""
    theta = np.zeros((objective.n, objective.p))
    numbers = (objective.start[1:] + np.arange(1, objective.n + 1) * objective.p) * objective.p
    groups = np.split(np.arange(objective.n), np.flatnonzero(np.diff(numbers // FEW)) + 1)

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
