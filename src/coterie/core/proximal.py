"""The problem of a single agent: its loss, and a pull towards a point.

    argmin_theta  scale f_i(theta) + weight/2 |theta - center|^2          scale >= 0, weight > 0

This is the proximal step of DJAM (4), and the primal step of CL-ADMM after elimination of the copies of the
neighbours' models. A loss declares the solver that fits it, as ``loss.proximal``:

===========================  ========================================================================================
``proximal``                 solver
===========================  ========================================================================================
``MEAN``                     closed form, coordinate by coordinate
``LEAST_SQUARES``            closed form; the inverse of the smaller Gram matrix is cached until the weights change
``DUAL_ASCENT``              dual coordinate ascent from the last solution, to :data:`TOLERANCE`, also for kinks;
                             if that is slow, Newton's method for smooth ones
any smooth loss, on request  a fixed number of gradient steps from the last model
===========================  ========================================================================================

No solver allocates memory.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .arrays import AgentArrays, Ragged, add_loss_gradient, ragged
from .compile import inline
from .laplace import Steps, find_mode, invert
from .linear import SparseRows, axpy, copy_to, fill, row_norms_kernel, scatter_kernel, times
from .losses import LEAST_SQUARES, MEAN
from .rules import rule

#: Dual ascent stops when no margin z moves by more than ``TOLERANCE (1 + |z|)`` in a sweep over the examples ...
TOLERANCE = 1e-12
#: ... or after this number of sweeps: the next step continues.
MAX_SWEEPS = 2_000
#: Number of sweeps after which a smooth loss with enough examples switches to Newton's method.
SWEEPS_BEFORE_NEWTON = 100
#: ... with these thresholds, since curvatures may jump. The error left after a step is about the square of its gain.
NEWTON_STEPS = Steps(near=1e-12, enough=1e-20, part=1.0)
#: Weight of the pull of an agent without edges to its own last model, as a fraction of its mean curvature.
ISOLATED_PULL_RATIO = 0.1


class Cache(NamedTuple):
    """Results that agents compute once from their data; recomputed when the data change."""

    alone: np.ndarray  # (n,) weight of a proximal step without neighbours
    solver: Any


def prepare(arrays: AgentArrays, p: int, steps: int = 0) -> Cache:
    """Return solvers for the hosted agents with p features; if `steps` > 0, that many gradient steps instead."""
    count = np.diff(arrays.row_start)
    norms = np.zeros(arrays.labels.shape[0])
    row_norms_kernel(arrays.rows, norms)
    squares, owner = norms * norms, np.repeat(np.arange(count.shape[0]), count)
    bend = arrays.loss.smoothness if np.isfinite(arrays.loss.smoothness) else 1.0
    loss_weight = 1.0 if arrays.scaled else arrays.loss_weight  # as importance() without edges
    mean = loss_weight * bend * arrays.row_weight * np.bincount(owner, weights=squares, minlength=count.shape[0]) / p
    alone = np.where(mean > 0, ISOLATED_PULL_RATIO * mean, 1.0)
    if steps > 0:
        return Cache(alone, GradientSteps(np.full(count.shape[0], steps)))
    if arrays.loss.proximal == MEAN:
        return Cache(alone, Pointwise(_moments(arrays, p), count / p))
    if arrays.loss.proximal == LEAST_SQUARES:
        stored = arrays.rows.start[arrays.row_start] if isinstance(arrays.rows, SparseRows) else p * arrays.row_start
        small = 2 * np.diff(stored) + count * count < p * p  # cost of a step with either matrix
        sides = np.where(small, count, p)
        return Cache(alone, LeastSquares(_moments(arrays, p), np.zeros((count.shape[0], 2)), ragged(sides * sides)))
    steep = p if np.isfinite(arrays.loss.smoothness) else 0  # Newton's method needs curvature and enough examples
    return Cache(
        alone,
        DualAscent(Ragged(arrays.row_start, squares), ragged(count), ragged(np.where(count >= p, steep * steep, 0))),
    )


def is_mean(loss: Any) -> bool:
    """Return whether a loss is the squared distance to points, whose minimiser is their mean."""
    return loss.proximal == MEAN


def scratch(arrays: AgentArrays, p: int) -> int:
    """Return how many numbers of scratch space any of the solvers needs."""
    return 6 * p


def _moments(arrays, p):
    moments = np.zeros((arrays.row_start.shape[0] - 1, p))
    scatter_kernel(arrays.rows, arrays.row_start, np.asarray(arrays.labels), moments)
    return moments


@rule
class Pointwise(NamedTuple):
    """Squared distances to points: the minimiser is a mean, MP (6)."""

    moment: np.ndarray  # (n, p) sum of the points
    points: np.ndarray  # (n,) number of points

    def minimise(self, data, scale, weight, center, theta, draft):
        """Set theta to the weighted mean of the points, the origin (ridge) and the center."""
        a = scale * data.row_weight
        part = 1.0 / (weight + a * self.points + 2.0 * scale * data.ridge)
        for k in range(theta.shape[0]):
            theta[k] = part * (weight * center[k] + a * self.moment[k])


@rule
class LeastSquares(NamedTuple):
    """Squared loss: a linear system, whose inverse is cached."""

    moment: np.ndarray  # (n, p) sum of y x
    key: np.ndarray  # (n, 2) the a and kappa that the inverse belongs to
    inverse: Any  # p * p numbers of (a X'X + kappa I)^-1, or m * m of (a X X' + kappa I)^-1 if that is less work

    def minimise(self, data, scale, weight, center, theta, draft):
        """``(a X'X + kappa I)^-1 (a X'y + weight center)``."""
        p, m = theta.shape[0], data.labels.shape[0]
        a, kappa = scale * data.row_weight, weight + 2.0 * scale * data.ridge
        q = m if self.inverse.shape[0] < p * p else p
        if self.key[0] != a or self.key[1] != kappa:
            self.key[0], self.key[1] = a, kappa
            gram(data, a, kappa, self.inverse, draft[:p])
            invert(self.inverse, q)
        if q < p:
            # theta = v + a X' (a X X' + kappa I)^-1 (y - X v)  with  v = weight center / kappa
            residual, dual = draft[:q], draft[q : 2 * q]
            for k in range(p):
                theta[k] = weight * center[k] / kappa
            data.rows.dots(0, m, theta, residual)
            for r in range(m):
                residual[r] = data.labels[r] - residual[r]
            times(self.inverse, residual, dual)
            data.rows.add_all(0, m, a, dual, theta)
        else:
            target = draft[:p]
            for k in range(p):
                target[k] = weight * center[k] + a * self.moment[k]
            times(self.inverse, target, theta)


@inline
def gram(data, a, kappa, out, line):
    """``a X'X + kappa I``, or ``a X X' + kappa I`` if there is no room for p * p numbers."""
    p, m = line.shape[0], data.labels.shape[0]
    q = m if out.shape[0] < p * p else p
    fill(0.0, out)
    for r in range(m):
        if q < p:
            fill(0.0, line)
            data.rows.add(r, a, line)
            for t in range(m):
                out[r * q + t] = data.rows.dot(t, line)
        else:
            for e in range(data.rows.entries(r)):
                k, value = data.rows.entry(r, e)
                data.rows.add(r, a * value, out[k * q : (k + 1) * q])
    for k in range(q):
        out[k * q + k] += kappa


@rule
class DualAscent(NamedTuple):
    """Any convex loss with a prox, by exact steps on one dual coordinate after the other.

    With a = scale row_weight, kappa = weight + 2 scale ridge and v = weight center / kappa, the solution is
    ``theta = v - a / kappa sum_r u_r x_r``, where u_r is a slope of the loss at the margin of example r. A step makes
    this true for one r: the margin becomes ``prox(z + q u)`` with ``q = a |x_r|^2 / kappa``.
    """

    square: Any  # |x_r|^2 of each example
    dual: Any  # u_r of each example: the warm start
    inverse: Any  # p * p numbers for Newton's method, or none

    def minimise(self, data, scale, weight, center, theta, draft):
        """Sweep over the examples until no margin moves."""
        m = data.labels.shape[0]
        a, kappa = scale * data.row_weight, weight + 2.0 * scale * data.ridge
        for k in range(theta.shape[0]):
            theta[k] = weight * center[k] / kappa
        if m == 0 or a == 0.0:
            return
        for r in range(m):
            data.rows.add(r, -a / kappa * self.dual[r], theta)
        for sweep in range(MAX_SWEEPS):
            if sweep >= SWEEPS_BEFORE_NEWTON and self.inverse.shape[0] > 0:
                p = theta.shape[0]
                middle, root, rest = draft[:p], draft[p : 2 * p], draft[2 * p :]
                for k in range(p):
                    middle[k], root[k] = weight * center[k] / kappa, math.sqrt(a / kappa)
                find_mode(data, 1.0, None, middle, root, NEWTON_STEPS, theta, self.inverse, rest)
                for r in range(m):
                    self.dual[r] = data.loss.derivative(data.rows.dot(r, theta), data.labels[r])
                break
            moved = 0.0
            for r in range(m):
                q = a / kappa * self.square[r]
                if q > 0.0:
                    margin = data.rows.dot(r, theta)
                    goal = data.loss.prox(margin + q * self.dual[r], q, data.labels[r])
                    change = (margin - goal) / q
                    self.dual[r] += change
                    data.rows.add(r, -a / kappa * change, theta)
                    moved = max(moved, abs(margin - goal) / (1.0 + abs(goal)))
            if moved <= TOLERANCE:
                break


@rule
class GradientSteps(NamedTuple):
    """A fixed number of gradient steps from the last model, as CD's comparison with ADMM takes them."""

    steps: np.ndarray  # (n,) number of steps

    def minimise(self, data, scale, weight, center, theta, draft):
        """``theta <- theta - (scale grad f(theta) + weight (theta - center)) / L``."""
        gradient = draft[: theta.shape[0]]
        step = 1.0 / (weight + scale * data.curvature)
        for _ in range(self.steps):
            for k in range(theta.shape[0]):
                gradient[k] = weight * (theta[k] - center[k])
            add_loss_gradient(data, theta, scale, gradient)
            axpy(-step, gradient, theta)


@inline
def isolated_pull(me, center):
    """Return center and weight for an agent without edges: a proximal step from its last model."""
    copy_to(me.theta, center)
    return me.cache.alone
