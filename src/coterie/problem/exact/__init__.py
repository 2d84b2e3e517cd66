"""The exact minimiser: the reference that every method is measured against.

It minimises, over the models Theta (n x p),

    F(Theta) = s sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_r c_r l(x_r . theta_i(r), y_r) + sum_i R_i |theta_i|^2

on all agents at once; the connected components of the graph are independent problems, each with its own steps and its
own stopping test. Losses that are twice differentiable (squared, logistic) are minimised by Newton's method; those
whose conjugate is quadratic on an interval (hinge, smoothed hinge, Huber) by a primal-dual interior point method, which
ends with a duality gap for a certificate.

Both solve linear systems ``(2 s (D - W) + 2 R + X' diag(weights) X) x = target``: agent by agent where there are no
ties, by a dense factorisation while n p is small, and beyond that by conjugate gradients that never form the matrix,
preconditioned by the agents' own blocks.

Where F has several minimisers, the result is the one of least norm: exactly where rows leave a direction unseen, and
roughly where a loss is flat. Where the infimum is not attained (separable data, logistic loss, no ridge), the result is
within 1e-12 F(0) of the infimum.
"""

from __future__ import annotations

import numpy as np

from ...core.linear import one_thread
from ...core.losses import INTERIOR_POINT
from .ball import BallObjective, minimise_on_balls, project
from .interior import interior_point
from .newton import VANISHED, flat_directions, newton
from .objective import Objective
from .systems import BLOCKS, least_decrement, system

__all__ = ["BallObjective", "Objective", "minimise", "minimise_on_balls", "project", "suboptimality"]


@one_thread
def minimise(objective: Objective) -> np.ndarray:
    """Minimise F to machine precision."""
    n, at_once = objective.start.shape[0] - 1, max(1, BLOCKS // objective.p**2)
    if objective.graph.n_edges == 0 and n > at_once:  # nobody is tied to anybody: a few agents at a time
        return np.concatenate([minimise(objective.part(k, min(k + at_once, n))) for k in range(0, n, at_once)])
    return interior_point(objective) if objective.loss.exact_solver == INTERIOR_POINT else newton(objective)


@one_thread
def suboptimality(objective: Objective, theta: np.ndarray, enough: float = np.inf) -> float:
    """Estimate ``(F(theta) - min F) / F(theta)`` by half of Newton's decrement: exact for a quadratic F."""
    project = flat_directions(objective)
    gradient = project(objective.gradient(theta))
    curvature = objective.examples(objective.margins(theta))[2]
    weights = objective.scale * curvature
    level = float(max(objective.value(theta).sum(), VANISHED * objective.value(np.zeros_like(theta)).sum(), 1e-300))
    if np.isfinite(enough) and (least := 0.5 * least_decrement(objective, weights, gradient, project) / level) > enough:
        return least
    step = system(objective, weights, tight=False, project=project)(gradient)
    return 0.5 * abs(float(np.sum(gradient * step))) / level
