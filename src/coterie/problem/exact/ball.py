"""The exact minimiser where every model lies in l1 balls: the objective of decentralised boosting, DADA (3).

It minimises, over the models Theta (n x p) with ``|theta_i,o|_1 <= beta`` for every agent i and output o,

    F(Theta) = s sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_i a_i f_i(theta_i)

theta_i has one block of coordinates for each output, and f_i is the sum over the outputs of the loss of their rows:
``log sum_r exp(-y_r z_r)``, DADA (2), for a loss rule with ``pooled = True``, and the mean of ``l(z_r, y_r)`` for all
other losses.

Duplicate columns are common among base predictors, so minimisers are not unique, and the certificate is about the value
of F. F lies above its tangents, and the minimum of a linear function on a ball is at a vertex; so the Frank-Wolfe gap
``<theta, g> + beta |g|_inf``, with g the gradient of F, summed over all blocks, is never below ``F - min F``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..._conjugate import conjugate_gradients
from ..._threads import one_thread
from ...core.exact import project_kernel
from ...core.linear import DenseRows, SparseRows, gram_norms
from ...core.losses import LOG_SUM_EXP
from ...errors import ConvergenceError, MismatchError, ParameterError
from ...graphs import Graph
from .objective import Objective

#: Largest number of accelerated steps, and number of steps between two computations of the gap.
MAX_STEPS, STEPS_PER_GAP = 100_000, 20
#: Newton steps of one polish, conjugate gradient steps of each, and accelerated steps before the first polish.
MAX_NEWTON_STEPS, MAX_CG_STEPS, STEPS_BEFORE_POLISH = 6, 200, 400
#: Relative differences of F below this number are rounding errors.
ROUNDING = 1e-13


def project(theta: np.ndarray, radius: float, outputs: int = 1) -> np.ndarray:
    """Return the projection of models onto the l1 balls: each block has at most the l1 norm `radius`."""
    blocks = np.ascontiguousarray(theta, dtype=np.float64).reshape(theta.shape[0] * outputs, -1)
    out = np.empty_like(blocks)
    project_kernel(float(radius), blocks, out)
    return out.reshape(theta.shape)


@dataclass(frozen=True)
class BallObjective:
    """F of :mod:`coterie.problem.exact.ball`, with its derivatives and its certificate."""

    # Examples grouped by agent. Those of one agent are `outputs` groups of equal size, and the rows of a group are zero
    # outside the block of its output.
    rows: DenseRows | SparseRows
    start: np.ndarray
    labels: np.ndarray
    loss: Any
    importance: np.ndarray  # (n,) a_i, the weight of each agent's loss
    graph: Graph
    smooth: float  # s
    p: int  # coordinates of a model, over all outputs
    radius: float  # beta
    outputs: int = 1  # blocks of a model

    def __post_init__(self) -> None:
        if not (np.isfinite(self.radius) and self.radius > 0):
            raise ParameterError(f"radius = {self.radius}: the radius of an l1 ball must be a positive number")
        if self.outputs < 1 or self.p % self.outputs:
            raise ParameterError(f"outputs = {self.outputs}: {self.p} coordinates do not form that many equal blocks")
        if self.loss.pooled and self.loss.exact_solver != LOG_SUM_EXP:
            raise MismatchError(f"no exact solver is known for {self.loss!r}, which takes all examples together")
        odd = np.diff(self.start) % self.outputs != 0
        if odd.any():
            i = int(odd.argmax())
            raise ParameterError(
                f"agent {i} has {self.start[i + 1] - self.start[i]} rows: expected as many for each of the "
                f"{self.outputs} outputs"
            )

    @property
    def pooled(self) -> bool:
        """Whether the losses of an agent's rows are combined by log-sum-exp rather than by their mean."""
        return bool(self.loss.pooled)

    @cached_property
    def sizes(self) -> np.ndarray:
        """m_i, the number of rows of each agent for one output."""
        return np.diff(self.start) // self.outputs

    @cached_property
    def unconstrained(self) -> Objective:
        """The objective with the same rows and edges, without balls; its value is F if losses are averaged."""
        owner = np.repeat(np.arange(self.sizes.shape[0]), np.diff(self.start))
        scale = (self.importance / np.maximum(self.sizes, 1))[owner]
        ridge = np.zeros((self.sizes.shape[0], 1))
        return Objective(self.rows, self.start, self.labels, self.loss, scale, ridge, self.graph, self.smooth, self.p)

    @cached_property
    def first(self) -> np.ndarray:
        """First row of every pool that has rows; a pool is the rows of one agent for one output.

        Empty pools are skipped, because NumPy's reduceat misreads them.
        """
        some = self.sizes > 0
        inside = np.arange(self.outputs) * self.sizes[some, None]
        return (self.start[:-1][some, None] + inside).ravel()

    @cached_property
    def pool(self) -> np.ndarray:
        """Number of the pool of each row; empty pools are not counted."""
        return np.repeat(np.arange(self.first.shape[0]), np.diff(np.append(self.first, self.start[-1])))

    def softmax(self, margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``log sum_r exp(-y_r z_r)`` of every pool, and the share of each row in the sum: eta of DADA (4)."""
        if not self.first.size:
            return np.zeros(0), np.zeros(0)
        exponents = -self.labels * margins
        largest = np.maximum.reduceat(exponents, self.first)  # without it, exp would overflow
        parts = np.exp(exponents - largest[self.pool])
        sums = np.add.reduceat(parts, self.first)
        return largest + np.log(sums), parts / sums[self.pool]

    def losses(self, theta: np.ndarray) -> np.ndarray:
        """Return f_i of every agent, (n,), without the weight a_i; 0 for an agent without rows."""
        margins = self.unconstrained.margins(theta)
        if not self.pooled:
            return self.unconstrained.by_agent(self.unconstrained.examples(margins)[0]) / np.maximum(self.sizes, 1)
        out = np.zeros(self.sizes.shape[0])
        out[self.sizes > 0] = self.softmax(margins)[0].reshape(-1, self.outputs).sum(axis=1)
        return out

    def value(self, theta: np.ndarray) -> np.ndarray:
        """Return F split over the agents, (n,); the term of an edge counts for the agent with the lower number."""
        return self.unconstrained.quadratic(theta) + self.importance * self.losses(theta)

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """Return ``dF / dTheta``, (n, p); DADA (4)."""
        if not self.pooled:
            return self.unconstrained.gradient(theta)
        parts = self.softmax(self.unconstrained.margins(theta))[1]
        weights = -self.importance[self.unconstrained.owner] * self.labels * parts
        return self.unconstrained.quadratic_gradient(theta) + self.unconstrained.scatter(weights, theta.shape)

    def hessian(self, theta: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function that multiplies ``d2F / dTheta2`` by a vector of all models."""
        margins = self.unconstrained.margins(theta)
        if self.pooled:
            parts, weight = self.softmax(margins)[1], self.importance[self.unconstrained.owner]
        else:
            bend = self.unconstrained.scale * self.unconstrained.examples(margins)[2]

        def times(vector: np.ndarray) -> np.ndarray:
            along = self.unconstrained.margins(vector)
            if self.pooled and self.first.size:
                signed = self.labels * along
                mean = np.add.reduceat(parts * signed, self.first)[self.pool]
                weights = weight * self.labels * parts * (signed - mean)
            else:
                weights = along if self.pooled else bend * along
            return self.unconstrained.quadratic_gradient(vector) + self.unconstrained.scatter(weights, vector.shape)

        return times

    def gaps(self, theta: np.ndarray, gradient: np.ndarray | None = None) -> np.ndarray:
        """Return the Frank-Wolfe gap of every agent, (n,): nonnegative in the balls; the sum bounds ``F - min F``."""
        slope = self.gradient(theta) if gradient is None else gradient
        steepest = np.abs(slope).reshape(theta.shape[0], self.outputs, -1).max(axis=2)
        return (theta * slope).sum(axis=1) + self.radius * steepest.sum(axis=1)

    def bounds(self) -> np.ndarray:
        """Return L_i, (n,), such that the Hessian of F is at most ``blockdiag(L_i I)`` everywhere.

        The edges add at most ``4 s D_ii``, because the Laplacian D - W is at most 2 D. The Hessian of log-sum-exp is
        the covariance of the rows under eta, which is at most the largest squared norm of a row, and at most X' X / 2,
        because ``diag(eta) - eta eta'`` is at most 1/2.
        """
        norms = gram_norms(self.rows, self.start, self.p)
        if self.pooled:
            longest = np.zeros(self.sizes.shape[0])
            np.maximum.at(longest, self.unconstrained.owner, np.square(self.unconstrained.row_norms()))
            bend = np.minimum(longest, 0.5 * norms)
        else:
            bend = self.loss.smoothness * norms / np.maximum(self.sizes, 1)
        return 4.0 * self.smooth * np.asarray(self.graph.degrees) + self.importance * bend


@one_thread()
def minimise_on_balls(objective: BallObjective, tol: float = 1e-9) -> np.ndarray:
    """Return the minimiser of F over the balls, up to a certified gap.

    The method takes accelerated projected gradient steps, with one step size for each agent and one momentum for each
    connected component, which restarts if it points uphill, and now and then Newton steps on the face of the balls
    that contains the models. It ends when the gap of every component is below `tol` times the size of its objective:
    the largest of ``|F|``, ``|F(0)|`` and, for log-sum-exp, which may be near 0 anywhere, the sum of ``a_i q`` over its
    agents with rows, where q is the number of outputs.
    """
    if not (objective.pooled or np.isfinite(objective.loss.smoothness)):
        raise MismatchError(f"{objective.loss} is not smooth: minimise_on_balls needs a loss with bounded curvature")
    unconstrained, spread = objective.unconstrained, objective.graph.components
    theta = np.zeros((objective.sizes.shape[0], objective.p))
    slope = objective.gradient(theta)
    scale = np.abs(unconstrained.by_component(objective.value(theta)))
    if objective.pooled:
        scale = np.maximum(
            scale, unconstrained.by_component(objective.importance * (objective.sizes > 0)) * objective.outputs
        )
    # If F is linear, the bound is 0, and any step that crosses the ball is long enough.
    steep = np.abs(slope).max(axis=1)
    bound = np.maximum(objective.bounds(), 1e-6 * steep / objective.radius)
    bound = np.where(bound > 0, bound, 1.0)[:, None]

    ahead, momentum, best, gap = theta, np.ones(scale.shape[0]), theta.copy(), np.full(scale.shape[0], np.inf)
    done, due = np.zeros(scale.shape[0], dtype=bool), STEPS_BEFORE_POLISH
    for step in range(MAX_STEPS):
        if step % STEPS_PER_GAP == 0 or step == due:
            level = np.maximum(scale, np.abs(unconstrained.by_component(objective.value(theta))))
            gap = unconstrained.by_component(objective.gaps(theta))
            done = _keep(best, theta, done, gap <= tol * level, spread)
            if not done.all() and step >= due:
                polished, left, effort = _polish(objective, theta, done, tol * level)
                useful = left < 0.5 * gap  # for a smaller gain, keeping the momentum is better
                theta = np.where(useful[spread][:, None], polished, theta)
                ahead = np.where(useful[spread][:, None], polished, ahead)
                momentum = np.where(useful, 1.0, momentum)
                done = _keep(best, theta, done, np.where(useful, left, gap) <= tol * level, spread)
                due = step + max(STEPS_BEFORE_POLISH, effort)  # equal work for gradient steps and polishes
            if done.all():
                return best
        moved_to = project(ahead - objective.gradient(ahead) / bound, objective.radius, objective.outputs)
        uphill = unconstrained.by_component((bound * (ahead - moved_to) * (moved_to - theta)).sum(axis=1)) > 0
        momentum = np.where(uphill, 1.0, momentum)
        later = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum * momentum))
        ahead = moved_to + unconstrained.spread((momentum - 1.0) / later, moved_to - theta)
        theta, momentum = moved_to, later
    worst = int(np.argmax(np.where(done, -np.inf, gap / np.maximum(level, 1e-300))))
    raise ConvergenceError(
        f"after {MAX_STEPS} steps, the gap of the component of agent number {int(np.flatnonzero(spread == worst)[0])} "
        f"is only below {gap[worst]:.1e}, for an objective of size {level[worst]:.1e} and a relative tolerance of "
        f"{tol:g}: use a larger tolerance or a smaller radius, or bring the features to one scale"
    )


def _keep(best: np.ndarray, theta: np.ndarray, done: np.ndarray, now: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Copy the components that are finished now, and were not before, to ``best``; return all finished components."""
    fresh = (now & ~done)[spread]
    best[fresh] = theta[fresh]
    return done | now


def _polish(
    objective: BallObjective, theta: np.ndarray, done: np.ndarray, enough: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int]:
    """Take Newton steps on the face of the balls that contains the models; return models, gaps and the work done.

    On a face, zero coordinates stay zero, and models on the boundary of a ball keep their signs and their l1 norm.
    """
    unconstrained, spread = objective.unconstrained, objective.graph.components
    effort, open_ = 0, ~done
    value, slope = unconstrained.by_component(objective.value(theta)), objective.gradient(theta)
    gap = unconstrained.by_component(objective.gaps(theta, slope))
    for _ in range(MAX_NEWTON_STEPS):
        way, spent = _direction(objective, theta, slope * open_[spread][:, None])
        effort += spent
        length, better, before = open_.astype(float), np.zeros_like(done), gap
        for _ in range(6):
            trial = project(theta + unconstrained.spread(length, way), objective.radius, objective.outputs)
            new_value, new_slope = unconstrained.by_component(objective.value(trial)), objective.gradient(trial)
            new_gap, blur = (
                unconstrained.by_component(objective.gaps(trial, new_slope)),
                ROUNDING * (np.abs(value) + enough),
            )
            effort += 2
            fresh = open_ & ~better & ((new_value < value - blur) | ((new_value < value + blur) & (new_gap < gap)))
            agents = fresh[spread]
            theta, slope = (np.where(agents[:, None], new, old) for new, old in ((trial, theta), (new_slope, slope)))
            value, gap = np.where(fresh, new_value, value), np.where(fresh, new_gap, gap)
            better |= fresh
            length = np.where(better, 0.0, 0.25 * length)
            if np.all(better | ~open_):
                break
        # If a gap did not halve, the face is wrong, and gradient steps find the next face.
        open_ = better & (gap > enough) & (gap < 0.5 * before)
        if not open_.any():
            break
    return theta, gap, effort


def _direction(objective: BallObjective, theta: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, int]:
    """Return Newton's direction on the face of the balls that contains the models, and its number of products."""
    signs = np.sign(theta).reshape(-1, theta.shape[1] // objective.outputs)
    touched = np.abs(theta).reshape(signs.shape).sum(axis=1) >= objective.radius * (1.0 - 1e-12)
    share = np.where(touched, 1.0 / np.maximum(np.abs(signs).sum(axis=1), 1.0), 0.0)
    hessian = objective.hessian(theta)

    def on_face(vector: np.ndarray) -> np.ndarray:
        free = np.abs(signs) * vector.reshape(signs.shape)
        return (free - signs * (share * (signs * free).sum(axis=1))[:, None]).reshape(theta.shape)

    # A residual of 1e-8 is far below the change of the next face. Along a flat direction there is no minimum on the
    # face: conjugate gradients stop, and gradient steps move the models there.
    return conjugate_gradients(
        lambda vector: on_face(hessian(vector)),
        -on_face(slope),
        1e-8,
        MAX_CG_STEPS,
        inner=objective.unconstrained.inner,
        spread=objective.unconstrained.spread,
        flat=1e-15,
    )
