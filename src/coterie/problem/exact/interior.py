"""A primal-dual interior point method, for losses whose conjugate is quadratic on an interval.

Such a loss is ``l(z, y) = max over u in [lo, hi] of u (z - y) - kappa u^2 / 2``: hinge, smoothed hinge, Huber. With H
the Hessian of the quadratic terms of F, the optimum is where ``H theta + X' (c u) = 0``, and in every row
``z - y - kappa u = p - q`` with p, q >= 0, ``p (hi - u) = 0`` and ``q (u - lo) = 0``. Mehrotra's method follows the
points where these products are equal and positive, and lets them tend to zero. The unknowns of every row are eliminated
by hand, which leaves one linear system in theta, of the same form as in Newton's method. At the end,
``-quadratic(theta) - sum_r c_r l*(u_r)`` is a lower bound of F.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...errors import ConvergenceError
from .newton import TOLERANCE, flat_directions
from .objective import Objective
from .systems import Solver, everything, system


class Point(NamedTuple):
    """An iterate of the method, or a direction of a step."""

    theta: np.ndarray  # (n, p)
    u: np.ndarray  # (rows,) the slopes of the loss
    above: np.ndarray  # (rows,) hi - u, stored because near a bound the difference would be lost in rounding
    below: np.ndarray  # (rows,) u - lo
    p: np.ndarray  # (rows,)
    q: np.ndarray  # (rows,)


class Progress(NamedTuple):
    """Distance of each component from the optimum, in units of the objective."""

    level: np.ndarray  # F
    products: np.ndarray  # c (p above + q below): the duality gap, if the other two conditions hold
    slip: np.ndarray  # violation of H theta + X' (c u) = 0, in the metric of the linear system
    tolerance: np.ndarray  # products and slips below this are negligible
    done: np.ndarray
    stiffness: np.ndarray  # (rows,)
    solve: Solver


def interior_point(given: Objective) -> tuple[np.ndarray, np.ndarray]:
    """Return the minimiser of F, for a loss with a conjugate quadratic on an interval, and the slopes of its losses."""
    if not given.scale.any():
        return np.zeros((given.n, given.p)), np.zeros(given.labels.shape[0])
    path = _Path(_barely_regularised(given))
    point = path.begin()
    best, patience = np.inf, 8
    for _ in range(100):
        progress = path.progress(point)
        worst = np.max(
            ((progress.products + progress.slip) / (progress.tolerance + 1e-300))[~progress.done], initial=0.0
        )
        best, patience = (worst, 8) if worst < 0.5 * best else (best, patience - 1)
        stuck = patience <= 0 and np.all(progress.products + progress.slip <= 1e3 * progress.tolerance)
        if progress.done.all() or stuck:
            break
        point = path.advance(point, progress)
    theta, short = point.theta, path.shortfall(point, given)
    if np.isfinite(given.loss.smoothness):
        theta, decrement = _polished(given, theta)
        short = np.minimum(short, decrement / path.scale_of(progress.level))
    if short.max() > 1e-7:
        agent = int(np.flatnonzero(given.graph.components == np.argmax(short))[0])
        raise ConvergenceError(
            f"the interior point method stopped at a relative duality gap of {short.max():.1e} around agent number "
            f"{agent}: do weights or features differ by very many orders of magnitude?"
        )
    return theta, np.clip(point.u, path.lo, path.hi)


class _Path:
    """The iterations of the method on one objective."""

    def __init__(self, objective: Objective):
        self.objective = objective
        self.kappa = objective.loss.dual_curvature
        labels, place = np.unique(objective.labels, return_inverse=True)
        self.lo, self.hi = np.array([objective.loss.domain(label) for label in labels]).reshape(-1, 2).T[:, place]
        self.live = objective.row_scale > 0
        self.first = objective.by_component(objective.value(np.zeros((objective.start.shape[0] - 1, objective.p))))

    def begin(self) -> Point:
        """Return the first iterate: slopes in the middle of their intervals, well away from all bounds."""
        u = 0.5 * (self.lo + self.hi)
        misfit = -self.objective.labels - self.kappa * u
        slack = np.maximum(1.0, np.abs(misfit))
        theta = np.zeros((self.objective.start.shape[0] - 1, self.objective.p))
        p, q = np.maximum(misfit, 0.0) + slack, np.maximum(-misfit, 0.0) + slack
        return Point(theta, u, self.hi - u, u - self.lo, p, q)

    def misfit(self, point: Point) -> np.ndarray:
        """Return ``z - y - kappa u`` for every row."""
        return self.objective.margins(point.theta) - self.objective.labels - self.kappa * point.u

    def products(self, point: Point) -> np.ndarray:
        """Return ``c (p (hi - u) + q (u - lo))``, summed over each component."""
        each = point.p * point.above + point.q * point.below
        return self.objective.rows_by_component(self.objective.row_scale * each)

    def progress(self, point: Point) -> Progress:
        """Return how far an iterate is from meeting the three optimality conditions."""
        objective, c = self.objective, self.objective.row_scale
        stiffness = self.kappa + point.p / point.above + point.q / point.below
        weights = np.where(self.live, c / stiffness, 0.0)
        inexact = system(objective, objective.bend(weights), everything)

        def solve(target: np.ndarray) -> np.ndarray:
            return inexact(target, 1e-13)

        slip = self.out_of_balance(objective, point, solve)
        unfit = objective.rows_by_component(c * np.abs(self.misfit(point) - point.p + point.q))
        level = objective.by_component(objective.value(point.theta))
        products = self.products(point)
        tolerance = TOLERANCE * np.abs(level) + 1e-16 * self.first
        done = (products <= tolerance) & (slip <= tolerance) & (unfit <= tolerance + 1e-13 * self.first)
        return Progress(level, products, slip, tolerance, done, stiffness, solve)

    def force(self, objective: Objective, point: Point) -> np.ndarray:
        """Return ``H theta + X' (c u)``, which is zero at the optimum."""
        pull = objective.quadratic_gradient(point.theta)
        return pull + objective.scatter(objective.row_scale * point.u, pull.shape)

    def out_of_balance(self, objective: Objective, point: Point, solve: Solver) -> np.ndarray:
        """Return Newton's estimate of the decrease of F from making ``H theta + X' (c u)`` zero."""
        force = self.force(objective, point)
        return np.abs(objective.by_component((force * solve(force)).sum(axis=1)))

    def advance(self, point: Point, progress: Progress) -> Point:
        """Take one predictor-corrector step of Mehrotra's method, with the largest step size of each component."""
        objective, c = self.objective, self.objective.row_scale
        nothing = np.zeros_like(c)
        straight = self.direction(point, progress, nothing, nothing)
        far = np.minimum(1.0, self.reach(point, straight))
        left = self.products(self.moved(point, straight, far)) / np.maximum(progress.products, 1e-300)
        # The target of the products is proportional to the cube of the share that the predictor leaves. Targets much
        # below the tolerance would only make the linear systems worse conditioned.
        goal = np.maximum(np.clip(left, 0.0, 1.0) ** 3 * progress.products, 0.1 * progress.tolerance)
        aim = (goal / (2.0 * np.maximum(objective.rows_by_component(c), 1e-300)))[objective.group]
        # The second-order correction is scaled by the square of the predictor's step size.
        bend = far[objective.group] ** 2 * straight.u
        bent = self.direction(point, progress, aim + straight.p * bend, aim - straight.q * bend)
        stride = np.where(progress.done, 0.0, np.minimum(1.0, 0.995 * self.reach(point, bent)))
        return self.moved(point, bent, stride)

    def direction(self, point: Point, progress: Progress, rp: np.ndarray, rq: np.ndarray) -> Point:
        """Return Newton's direction towards ``p (hi - u) = rp`` and ``q (u - lo) = rq``."""
        objective, c, stiffness = self.objective, self.objective.row_scale, progress.stiffness
        rho = self.misfit(point) - rp / point.above + rq / point.below
        target = objective.scatter(np.where(self.live, c * (point.u + rho / stiffness), 0.0), point.theta.shape)
        theta = -progress.solve(objective.quadratic_gradient(point.theta) + target)
        u = (rho + objective.margins(theta)) / stiffness
        p = rp / point.above - point.p + point.p / point.above * u
        q = rq / point.below - point.q - point.q / point.below * u
        return Point(theta, u, -u, u, p, q)

    def reach(self, point: Point, direction: Point) -> np.ndarray:
        """Return the largest step size of each component that keeps above, below, p and q nonnegative."""
        limits = np.full_like(point.u, np.inf)
        for now, change in zip(point[2:], direction[2:], strict=True):
            limits = np.minimum(limits, np.where(change < 0, now / np.where(change < 0, -change, 1.0), np.inf))
        return self.objective.least(np.where(self.live, limits, np.inf))

    def moved(self, point: Point, direction: Point, stride: np.ndarray) -> Point:
        """Return `point` plus `stride` times `direction`, with one stride for each component."""
        theta = point.theta + self.objective.spread(stride, direction.theta)
        along = stride[self.objective.group]
        above, below, p, q = (now + along * change for now, change in zip(point[2:], direction[2:], strict=True))
        return Point(theta, np.where(above < below, self.hi - above, self.lo + below), above, below, p, q)

    def scale_of(self, level: np.ndarray) -> np.ndarray:
        """Return the scale that a shortfall is divided by."""
        return np.abs(level) + 1e-4 * self.first + 1e-300

    def shortfall(self, point: Point, given: Objective) -> np.ndarray:
        """Return the relative distance of the given F, without the added ridge, to its lower bound."""
        u = point.u
        conjugate = u * given.labels + 0.5 * self.kappa * u * u
        # The dual value belongs to the models in balance with u, at distance H^-1 force; the slip is the second order.
        tilt = (self.force(given, point) * point.theta).sum(axis=1)
        lower = given.by_component(tilt - given.quadratic(point.theta)) - given.rows_by_component(
            given.row_scale * conjugate
        )
        level = given.by_component(given.value(point.theta))
        slip = self.out_of_balance(given, point, self.progress(point).solve)
        return (level - lower + slip) / self.scale_of(level)


def _barely_regularised(objective: Objective) -> Objective:
    """Add a tiny ridge to components without a ridge, which selects the minimiser of least norm."""
    spread, members = objective.graph.components, np.bincount(objective.graph.components)
    data = (
        np.stack([objective.by_component(column) for column in objective.diagonals(objective.row_scale).T], axis=1)
        / members[:, None]
    )
    # The ridge is small compared with the feature of the smallest scale, and with the weights of the edges.
    least = np.where(data > 0, data, np.inf).min(axis=1)
    edges = 2.0 * objective.smooth * objective.by_component(objective.graph.degrees) / members
    least = np.where(edges > 0, np.minimum(least, edges), least)
    free = (objective.by_component(objective.ridge.max(axis=1)) == 0) & np.isfinite(least)
    tiny = np.where(free, 1e-12 * np.where(free, least, 0.0), 0.0)
    return replace(objective, ridge=objective.ridge + tiny[spread][:, None])


def _polished(objective: Objective, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Take up to three Newton steps on the pieces found by the interior point method, while the gradient shrinks.

    Return the models, and an estimate of ``F - min F`` on these pieces.
    """
    project = flat_directions(objective)
    gradient = project(objective.gradient(theta))
    for _ in range(3):
        curvature = objective.examples(objective.margins(theta))[2]
        step = system(objective, objective.bend(objective.row_scale * curvature), project)(gradient, 1e-13)
        changed = project(objective.gradient(theta - step))
        better = objective.norm(changed) < objective.norm(gradient)
        decrement = objective.by_component((gradient * step).sum(axis=1))
        if not better.any():
            break
        theta = theta - objective.spread(better.astype(float), step)
        gradient = np.where(better[objective.graph.components][:, None], changed, gradient)
    return theta, np.abs(decrement)
