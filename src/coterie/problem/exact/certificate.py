"""Proven upper bounds of ``F - min F``; a small margin is added for rounding.

F is a quadratic ``Theta' H0 Theta / 2``, H0 = 2 s (D - W) + 2 R, plus losses. Slopes u of the losses, one for each row,
bound F from below (Fenchel duality). With ``g = H0 Theta + X' (c u)``,

    min F >= <g, Theta> - Theta' H0 Theta / 2 - sum_r c_r l*(u_r, y_r) - g' H0^-1 g / 2.

With u = l'(z) at Theta, g is the gradient of F there, and ``F(Theta) - min F <= g' H0^-1 g / 2``. For the squared loss
this holds as an equality, with the Hessian of F in place of H0.

No linear system has to be solved exactly: for any x, with r = g - H x,

    g' H^-1 g = <x, g> + <x, r> + r' H^-1 r,

and H is at least ``2 s (D - W) + diag(lam)``, where lam_i is 2 R_i, and for the squared loss the smallest eigenvalue
of the agent's own block. Such a matrix M has no positive entry off its diagonal, so that ``M >= diag(M w / w)`` for any
w > 0 (the difference is a sum of ``|M_ij| w_i w_j (v_i / w_i - v_j / w_j)^2``), and

    r' H^-1 r <= sum_i |r_i|^2 w_i / (M w)_i,    wherever w and M w are positive.

w = 1 gives ``M w = lam``; if some lam_i are zero, w is an approximate solution of M w = 1. For a component of the graph
in which all lam_i are zero, there is no such proof, and the bound is infinite; without rows, its minimum is zero.
"""

from __future__ import annotations

import numpy as np

from ..._conjugate import conjugate_gradients
from ..._threads import one_thread
from ...core.losses import LEAST_SQUARES, MEAN
from .objective import Objective
from .systems import everything, product_with, system

#: Margin for rounding, relative to F.
ROUNDING = 8.0 * float(np.finfo(float).eps)
#: Relative residuals of the linear systems, tried in turn until the residual adds less than a tenth to the bound.
ACCURACIES = (1e-2, 1e-4, 1e-7, 1e-10)


@one_thread()
def gap(objective: Objective, theta: np.ndarray) -> float:
    """Return an upper bound of ``F(theta) - min F``, for a loss with a gradient."""
    quadratic = objective.loss.proximal in (LEAST_SQUARES, MEAN)
    here = objective.sweep(theta, 2 if quadratic else 1)
    bend = here.bend if quadratic else np.zeros((objective.n, 1))
    level, silent = objective.by_component(here.value), _silent(objective)
    above = 0.5 * decrement(objective, here.gradient, bend)
    return float(np.where(silent, level, above + ROUNDING * level).sum())


@one_thread()
def lower_bound(objective: Objective, theta: np.ndarray, slopes: np.ndarray) -> float:
    """Return a lower bound of F from slopes u of the losses, for a loss whose conjugate is quadratic."""
    pull = objective.quadratic_gradient(theta) + objective.scatter(objective.row_scale * slopes, theta.shape)
    conjugate = slopes * objective.labels + 0.5 * objective.loss.dual_curvature * slopes * slopes
    balance = np.einsum("ik,ik->i", pull, theta) - objective.quadratic(theta)
    lower = objective.by_component(balance - objective.by_agent(objective.row_scale * conjugate))
    above, level = (
        decrement(objective, pull, np.zeros((objective.n, 1))),
        objective.by_component(objective.value(theta)),
    )
    return float(np.where(_silent(objective), 0.0, lower - 0.5 * above - ROUNDING * level).sum())


def decrement(objective: Objective, gradient: np.ndarray, bend: np.ndarray) -> np.ndarray:
    """Return an upper bound of ``g' H^-1 g`` for each component, with ``H = 2 s (D - W) + 2 R + bend``."""
    margin = _slack(objective, 2.0 * objective.ridge.min(axis=1) + _least(objective, bend))
    proven = objective.by_component(np.isinf(margin)) == 0
    gradient = objective.spread(proven.astype(float), gradient)
    solve, product = system(objective, bend, everything), product_with(objective, bend)
    found = np.zeros(objective.n_components)
    for accuracy in ACCURACIES:
        x = solve(gradient, accuracy)
        rest = gradient - product(x)
        known = objective.inner(x, gradient + rest)
        unknown = objective.by_component(np.where(np.isinf(margin), 0.0, margin) * np.square(rest).sum(axis=1))
        found = np.maximum(known + unknown, 0.0)
        if np.all(unknown <= 0.1 * found):
            break
    return np.where(proven, found, np.inf)


def _slack(objective: Objective, lam: np.ndarray) -> np.ndarray:
    """Return ``w_i / (M w)_i`` of each agent, for ``M = 2 s (D - W) + diag(lam)``; infinite where there is no proof."""
    missing = lam <= 0.0
    w, image = np.ones((objective.n, 1)), lam[:, None].copy()
    holes = (objective.by_component(missing) > 0) & (objective.by_component(lam) > 0)
    if holes.any():
        diagonal = lam + 2.0 * objective.smooth * objective.graph.degrees
        diagonal[diagonal == 0.0] = 1.0

        def product(v: np.ndarray) -> np.ndarray:
            out = lam[:, None] * v
            objective.add_edges(np.ascontiguousarray(v), 0, out)
            return out

        inside = objective.spread(holes.astype(float), np.ones((objective.n, 1)))
        found = np.zeros_like(inside)
        for _ in range(2):  # the second pass solves for the residual of the first
            found = (
                found
                + conjugate_gradients(
                    product,
                    inside - product(found),
                    1e-3,
                    5000,
                    precondition=lambda v: v / diagonal[:, None],
                    inner=objective.inner,
                    spread=objective.spread,
                )[0]
            )
        np.copyto(w, found, where=inside > 0)
        image = product(w)
    good = (w[:, 0] > 0) & (image[:, 0] > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(good, w[:, 0] / image[:, 0], np.inf)


def _least(objective: Objective, bend: np.ndarray) -> np.ndarray:
    """Return a lower bound of the smallest eigenvalue of each agent's block."""
    if bend.ndim == 2:
        return bend.min(axis=1)
    if bend.ndim == 1:
        return np.zeros(objective.n)
    out = np.zeros(objective.n)

    def work(span: tuple[int, int]) -> None:
        sizes = np.linalg.eigvalsh(bend[slice(*span)])
        rounding = 1e-14 * objective.p * np.abs(sizes[:, -1])
        out[slice(*span)] = np.maximum(sizes[:, 0] - rounding, 0.0)

    objective.in_threads(work, objective.spans)
    return out


def _silent(objective: Objective) -> np.ndarray:
    """Mark the components in which no loss has a positive weight: their minimum is zero."""
    heard = np.diff(objective.start) > 0
    if objective.scale.ndim == 2:
        heard &= objective.scale[:, 0] > 0
    return objective.by_component(heard) == 0
