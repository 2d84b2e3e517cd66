"""A primal-dual interior point method, for losses whose conjugate is quadratic on an interval.

Such a loss is ``l(z, y) = max over u in [lo, hi] of u (z - y) - kappa u^2 / 2``: hinge, smoothed hinge, Huber. With H
the Hessian of the quadratic terms of F, the optimum is where ``H theta + X' (c u) = 0``, and in every row
``z - y - kappa u = p - q`` with p, q >= 0, ``p (hi - u) = 0`` and ``q (u - lo) = 0``. Mehrotra's method follows the
points where those products are equal and positive down to zero. Every row's part is eliminated by hand, which leaves
one system in theta, of the same form as Newton's. At the end, ``-quadratic(theta) - sum_r c_r l*(u_r)`` bounds F from
below.
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
    """Where the method is, and likewise a direction in which it goes."""

    theta: np.ndarray  # (n, p)
    u: np.ndarray  # (rows,) the slopes of the loss
    above: np.ndarray  # (rows,) hi - u, kept beside u: near a bound, the difference would be lost in rounding
    below: np.ndarray  # (rows,) u - lo
    p: np.ndarray  # (rows,)
    q: np.ndarray  # (rows,)


class Progress(NamedTuple):
    """How far each component is from the optimum, in units of the objective."""

    level: np.ndarray  # F
    products: np.ndarray  # c (p above + q below): the duality gap, once the other two vanish
    slip: np.ndarray  # forces out of balance, in the metric of the system
    room: np.ndarray  # what is negligible
    done: np.ndarray
    stiffness: np.ndarray  # (rows,)
    solve: Solver


def interior_point(given: Objective) -> tuple[np.ndarray, np.ndarray]:
    """Minimise F for a loss whose conjugate is quadratic on an interval: models, and the slopes of the losses there."""
    if not given.scale.any():
        return np.zeros((given.n, given.p)), np.zeros(given.labels.shape[0])
    path = _Path(_barely_regularised(given))
    point = path.begin()
    best, patience = np.inf, 8
    for _ in range(100):
        progress = path.progress(point)
        worst = np.max(((progress.products + progress.slip) / (progress.room + 1e-300))[~progress.done], initial=0.0)
        best, patience = (worst, 8) if worst < 0.5 * best else (best, patience - 1)
        stuck = patience <= 0 and np.all(progress.products + progress.slip <= 1e3 * progress.room)
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
    """The path that the method follows, for one objective."""

    def __init__(self, objective: Objective):
        self.objective = objective
        self.kappa = objective.loss.dual_curvature
        labels, place = np.unique(objective.labels, return_inverse=True)
        self.lo, self.hi = np.array([objective.loss.domain(label) for label in labels]).reshape(-1, 2).T[:, place]
        self.live = objective.row_scale > 0
        self.first = objective.by_component(objective.value(np.zeros((objective.start.shape[0] - 1, objective.p))))

    def begin(self) -> Point:
        """In the middle of the intervals, well away from all bounds."""
        u = 0.5 * (self.lo + self.hi)
        misfit = -self.objective.labels - self.kappa * u
        slack = np.maximum(1.0, np.abs(misfit))
        theta = np.zeros((self.objective.start.shape[0] - 1, self.objective.p))
        p, q = np.maximum(misfit, 0.0) + slack, np.maximum(-misfit, 0.0) + slack
        return Point(theta, u, self.hi - u, u - self.lo, p, q)

    def misfit(self, point: Point) -> np.ndarray:
        """``z - y - kappa u`` in every row."""
        return self.objective.margins(point.theta) - self.objective.labels - self.kappa * point.u

    def products(self, point: Point) -> np.ndarray:
        """``c (p (hi - u) + q (u - lo))``, summed over each component."""
        each = point.p * point.above + point.q * point.below
        return self.objective.rows_by_component(self.objective.row_scale * each)

    def progress(self, point: Point) -> Progress:
        """What still separates F from its lower bound: products, forces out of balance, rows out of fit."""
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
        room = TOLERANCE * np.abs(level) + 1e-16 * self.first
        done = (products <= room) & (slip <= room) & (unfit <= room + 1e-13 * self.first)
        return Progress(level, products, slip, room, done, stiffness, solve)

    def force(self, objective: Objective, point: Point) -> np.ndarray:
        """``H theta + X' (c u)``: zero where models and slopes are in balance."""
        pull = objective.quadratic_gradient(point.theta)
        return pull + objective.scatter(objective.row_scale * point.u, pull.shape)

    def out_of_balance(self, objective: Objective, point: Point, solve: Solver) -> np.ndarray:
        """What balancing the forces could still gain, by Newton's estimate."""
        force = self.force(objective, point)
        return np.abs(objective.by_component((force * solve(force)).sum(axis=1)))

    def advance(self, point: Point, progress: Progress) -> Point:
        """One step of Mehrotra's predictor and corrector; every component goes as far as it can."""
        objective, c = self.objective, self.objective.row_scale
        nothing = np.zeros_like(c)
        straight = self.direction(point, progress, nothing, nothing)
        far = np.minimum(1.0, self.reach(point, straight))
        left = self.products(self.moved(point, straight, far)) / np.maximum(progress.products, 1e-300)
        # The aim falls with the cube of what the predictor leaves; much below the tolerance it would only make the
        # systems worse.
        goal = np.maximum(np.clip(left, 0.0, 1.0) ** 3 * progress.products, 0.1 * progress.room)
        aim = (goal / (2.0 * np.maximum(objective.rows_by_component(c), 1e-300)))[objective.group]
        # The second-order correction counts as far as the first order could be trusted.
        bend = far[objective.group] ** 2 * straight.u
        bent = self.direction(point, progress, aim + straight.p * bend, aim - straight.q * bend)
        stride = np.where(progress.done, 0.0, np.minimum(1.0, 0.995 * self.reach(point, bent)))
        return self.moved(point, bent, stride)

    def direction(self, point: Point, progress: Progress, rp: np.ndarray, rq: np.ndarray) -> Point:
        """Newton's direction towards ``p (hi - u) = rp`` and ``q (u - lo) = rq``."""
        objective, c, stiffness = self.objective, self.objective.row_scale, progress.stiffness
        rho = self.misfit(point) - rp / point.above + rq / point.below
        target = objective.scatter(np.where(self.live, c * (point.u + rho / stiffness), 0.0), point.theta.shape)
        theta = -progress.solve(objective.quadratic_gradient(point.theta) + target)
        u = (rho + objective.margins(theta)) / stiffness
        p = rp / point.above - point.p + point.p / point.above * u
        q = rq / point.below - point.q - point.q / point.below * u
        return Point(theta, u, -u, u, p, q)

    def reach(self, point: Point, direction: Point) -> np.ndarray:
        """How far each component can go before something turns negative."""
        limits = np.full_like(point.u, np.inf)
        for now, change in zip(point[2:], direction[2:], strict=True):
            limits = np.minimum(limits, np.where(change < 0, now / np.where(change < 0, -change, 1.0), np.inf))
        return self.objective.least(np.where(self.live, limits, np.inf))

    def moved(self, point: Point, direction: Point, stride: np.ndarray) -> Point:
        """The point a stride further, with one stride for each component."""
        theta = point.theta + self.objective.spread(stride, direction.theta)
        along = stride[self.objective.group]
        above, below, p, q = (now + along * change for now, change in zip(point[2:], direction[2:], strict=True))
        return Point(theta, np.where(above < below, self.hi - above, self.lo + below), above, below, p, q)

    def scale_of(self, level: np.ndarray) -> np.ndarray:
        """What a shortfall is measured against."""
        return np.abs(level) + 1e-4 * self.first + 1e-300

    def shortfall(self, point: Point, given: Objective) -> np.ndarray:
        """Relative distance of the given F, without the bare ridge, to its lower bound."""
        u = point.u
        conjugate = u * given.labels + 0.5 * self.kappa * u * u
        # The dual value is that of the models in balance with u, H^-1 (force) away; second order is the slip.
        tilt = (self.force(given, point) * point.theta).sum(axis=1)
        lower = given.by_component(tilt - given.quadratic(point.theta)) - given.rows_by_component(
            given.row_scale * conjugate
        )
        level = given.by_component(given.value(point.theta))
        slip = self.out_of_balance(given, point, self.progress(point).solve)
        return (level - lower + slip) / self.scale_of(level)


def _barely_regularised(objective: Objective) -> Objective:
    """Give components without a ridge one so small that it only chooses among minimisers, the one of least norm."""
    spread, members = objective.graph.components, np.bincount(objective.graph.components)
    data = (
        np.stack([objective.by_component(column) for column in objective.diagonals(objective.row_scale).T], axis=1)
        / members[:, None]
    )
    # Small beside the feature of the smallest scale, and beside the edges.
    least = np.where(data > 0, data, np.inf).min(axis=1)
    edges = 2.0 * objective.smooth * objective.by_component(objective.graph.degrees) / members
    least = np.where(edges > 0, np.minimum(least, edges), least)
    free = (objective.by_component(objective.ridge.max(axis=1)) == 0) & np.isfinite(least)
    tiny = np.where(free, 1e-12 * np.where(free, least, 0.0), 0.0)
    return replace(objective, ridge=objective.ridge + tiny[spread][:, None])


def _polished(objective: Objective, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A few Newton steps on the pieces that the interior point method has found, while they shorten the gradient.

    Returns the models, and how far F is from its minimum on those pieces.
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
