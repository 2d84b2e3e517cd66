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

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import linalg

from ._compile import kernel
from .errors import ConvergenceError
from .graphs import Graph, empty
from .linear import (
    DenseRows,
    SparseRows,
    diagonal_kernel,
    frozen,
    gram_kernel,
    margins_kernel,
    one_thread,
    row_norms_kernel,
    scatter_kernel,
)

#: Relative accuracy of the objective at which an iteration may stop.
TOLERANCE = 1e-13
#: Where F has fallen to this part of F(0), it has vanished: the fit is exact, or the infimum 0 is not attained.
VANISHED = 1e-12
#: Up to this many unknowns, systems of tied agents are solved by a dense factorisation.
DENSE = 1500
#: The agents' p x p blocks are kept up to this many numbers in all, and only their diagonals beyond it.
BLOCKS = 40_000_000

Solver = Callable[[np.ndarray], np.ndarray]


@kernel
def loss_kernel(loss, margins, labels, value, slope, curvature):  # type: ignore[no-untyped-def]
    """Loss, first and second derivative of every example."""
    for r in range(margins.shape[0]):
        value[r] = loss.value(margins[r], labels[r])
        slope[r] = loss.derivative(margins[r], labels[r])
        curvature[r] = loss.curvature(margins[r], labels[r])


@kernel
def pull_kernel(start, peer, weight, scale, theta, out):  # type: ignore[no-untyped-def]
    """``out_i += scale sum_j W_ij (theta_i - theta_j)``; differences, because neighbours are nearly equal."""
    for i in range(start.shape[0] - 1):
        for e in range(start[i], start[i + 1]):
            for k in range(theta.shape[1]):
                out[i, k] += scale * weight[e] * (theta[i, k] - theta[peer[e], k])


@dataclass(frozen=True)
class Objective:
    """F of the module's docstring, with its derivatives.

    Parameters
    ----------
    rows, start, labels
        Examples grouped by agent.
    loss : rule
    scale : (rows,) ndarray
        c_r, the weight of each example.
    ridge : (n,) ndarray
        R_i, the weight of each |theta_i|^2.
    graph : Graph
    smooth : float
        s, the weight of the smoothness term.
    p : int
        Number of features.
    """

    rows: DenseRows | SparseRows
    start: np.ndarray
    labels: np.ndarray
    loss: Any
    scale: np.ndarray
    ridge: np.ndarray
    graph: Graph
    smooth: float
    p: int

    def part(self, first: int, last: int) -> Objective:
        """The objective of agents ``first`` to ``last - 1``, where nobody is tied to anybody."""
        a, b = self.start[first], self.start[last]
        return Objective(
            self.rows.take(a, b),
            frozen(self.start[first : last + 1] - a),
            self.labels[a:b],
            self.loss,
            self.scale[a:b],
            self.ridge[first:last],
            empty(last - first),
            self.smooth,
            self.p,
        )

    def margins(self, theta: np.ndarray) -> np.ndarray:
        """``x_r . theta_i(r)`` for every row."""
        out = np.zeros(self.labels.shape[0])
        margins_kernel(self.rows, self.start, np.ascontiguousarray(theta), out)
        return out

    def scatter(self, weights: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """``sum_r weights_r x_r`` for every agent."""
        out = np.zeros(shape)
        scatter_kernel(self.rows, self.start, weights, out)
        return out

    def examples(self, margins: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Loss, slope and curvature of every example."""
        value, slope, curvature = np.zeros((3, margins.shape[0]))
        loss_kernel(self.loss, margins, self.labels, value, slope, curvature)
        return value, slope, curvature

    def quadratic(self, theta: np.ndarray) -> np.ndarray:
        """Smoothness and ridge terms, (n,): an edge counts for its lower end."""
        i, j, w = self.graph.edges()
        apart = np.empty(i.shape[0])
        for block in np.array_split(np.arange(i.shape[0]), max(1, i.shape[0] * theta.shape[1] >> 24)):
            apart[block] = np.square(theta[i[block]] - theta[j[block]]).sum(axis=1)
        coupling = np.bincount(i, weights=self.smooth * w * apart, minlength=theta.shape[0])
        return coupling + self.ridge * np.square(theta).sum(axis=1)

    def quadratic_gradient(self, theta: np.ndarray) -> np.ndarray:
        """Gradient of the smoothness and ridge terms: ``2 s (D - W) Theta + 2 R Theta``."""
        out = 2.0 * self.ridge[:, None] * theta
        pull_kernel(self.graph.start, self.graph.peer, self.graph.weight, 2.0 * self.smooth, theta, out)
        return out

    def value(self, theta: np.ndarray) -> np.ndarray:
        """F split over the agents, (n,)."""
        losses = self.examples(self.margins(theta))[0]
        return self.quadratic(theta) + self.by_agent(self.scale * losses)

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """``dF / dTheta``, (n, p)."""
        slope = self.examples(self.margins(theta))[1]
        return self.quadratic_gradient(theta) + self.scatter(self.scale * slope, theta.shape)

    def row_norms(self) -> np.ndarray:
        """``|x_r|`` for every row."""
        out = np.zeros(self.labels.shape[0])
        row_norms_kernel(self.rows, out)
        return out

    def norm(self, vectors: np.ndarray) -> np.ndarray:
        """Length of a vector of all models, for each connected component."""
        return np.sqrt(self.by_component(np.square(vectors).sum(axis=1)))

    def by_agent(self, per_row: np.ndarray) -> np.ndarray:
        """Sum a number per row over each agent."""
        return np.bincount(self.owner, weights=per_row, minlength=self.start.shape[0] - 1)

    @cached_property
    def owner(self) -> np.ndarray:
        """The agent of each row."""
        return np.repeat(np.arange(self.start.shape[0] - 1), np.diff(self.start))

    def by_component(self, per_agent: np.ndarray) -> np.ndarray:
        """Sum a number per agent over each connected component."""
        return np.bincount(self.graph.components, weights=per_agent, minlength=self.graph.n_components)


@one_thread
def minimise(objective: Objective) -> np.ndarray:
    """Minimise F to machine precision.

    Parameters
    ----------
    objective : Objective

    Returns
    -------
    (n, p) ndarray
    """
    n, p = objective.start.shape[0] - 1, objective.p
    at_once = max(1, BLOCKS // (p * p))
    if objective.graph.n_edges == 0 and n > at_once:  # nobody is tied to anybody: a few agents at a time
        return np.concatenate([minimise(objective.part(k, min(k + at_once, n))) for k in range(0, n, at_once)])
    quadratic_conjugate = objective.loss.dual_curvature is not None
    if quadratic_conjugate and np.all(np.isfinite(objective.loss.domain(1.0))):
        return _interior_point(objective, np.zeros((n, p)))
    return _newton(objective, np.zeros((n, p)))


# -- Newton's method --------------------------------------------------------------------------------------------------


def _newton(objective: Objective, theta: np.ndarray) -> np.ndarray:
    """Minimise a twice differentiable F."""
    spread, count = objective.graph.components, objective.graph.n_components
    project = _flat_directions(objective)
    margins = objective.margins(theta)
    first, polish = np.full(count, np.inf), np.zeros(count, int)
    for _ in range(200):
        value, slope, curvature = objective.examples(margins)
        level = objective.by_component(objective.quadratic(theta) + objective.by_agent(objective.scale * value))
        first = np.minimum(first, level) if np.isinf(first).all() else first
        pull = objective.scatter(objective.scale * slope, theta.shape)
        gradient = project(objective.quadratic_gradient(theta) + pull)
        step = -_system(objective, objective.scale * curvature, tight=bool(polish.any()), project=project)(gradient)
        decrement = -objective.by_component((gradient * step).sum(axis=1))
        length = np.where(polish < 3, _line_search(objective, theta, step, margins), 0.0)
        theta = theta + length[spread][:, None] * step
        margins = objective.margins(theta)
        # Once the objective is exact, a step or two more make the models exact, too.
        polish += (decrement <= TOLERANCE * np.abs(level)) | (level <= VANISHED * first)
        moved, size = _largest(np.abs(step), spread, count), _largest(np.abs(theta), spread, count)
        if np.all((polish >= 3) | ((polish > 0) & (moved <= 1e-9 * size))):
            return theta
    worst = int(np.argmax(np.where(polish > 0, -np.inf, decrement)))
    agent = int(np.flatnonzero(spread == worst)[0])
    raise ConvergenceError(
        f"Newton's method did not converge in 200 steps around agent number {agent}: do weights or features differ by "
        "very many orders of magnitude?"
    )


def _line_search(objective: Objective, theta: np.ndarray, step: np.ndarray, margins: np.ndarray) -> np.ndarray:
    """Step lengths in (0, 1], one for each component: 1, or near a zero of the directional derivative."""
    spread, count = objective.graph.components, objective.graph.n_components
    along = objective.margins(step)
    start = (objective.quadratic_gradient(theta) * step).sum(axis=1)
    bend = (objective.quadratic_gradient(step) * step).sum(axis=1)

    def slope(length: np.ndarray) -> np.ndarray:
        moved = margins + length[spread][objective.owner] * along
        losses = objective.by_agent(objective.scale * objective.examples(moved)[1] * along)
        return objective.by_component(start + length[spread] * bend + losses)

    low, high, length = np.zeros(count), np.ones(count), np.ones(count)
    at_low = slope(low)
    steep = np.where(at_low < 0, -at_low, np.inf)  # not downhill: only rounding is left, and any step will do
    now = slope(length)
    at_high = now
    for attempt in range(60):
        open_ = (now > 0.3 * steep) | ((now < -0.3 * steep) & (length < 1.0))
        if not np.any(open_):
            break
        with np.errstate(invalid="ignore", divide="ignore"):
            secant = low + (high - low) * at_low / (at_low - at_high)
        middle = 0.5 * (low + high)
        useful = (attempt % 2 == 0) & (low < secant) & (secant < high)
        length = np.where(open_, np.where(useful, secant, middle), length)
        now = np.where(open_, slope(length), now)
        low, at_low = np.where(now <= 0, length, low), np.where(now <= 0, now, at_low)
        high, at_high = np.where(now > 0, length, high), np.where(now > 0, now, at_high)
    return length


def _flat_directions(objective: Objective) -> Solver:
    """Remove from a vector what F cannot see: moving a whole component along a direction that none of its rows has.

    Without it, rounding would be amplified there; with it, Newton from zero ends at the minimiser of least norm.
    """
    spread, count, p = objective.graph.components, objective.graph.n_components, objective.p
    free = objective.by_component(objective.ridge) == 0
    if not free.any() or p > 1000 or count * p * p > BLOCKS:
        return _everything
    seen = np.zeros((count, p, p))
    gram_kernel(objective.rows, objective.start, objective.scale, spread, seen)
    sizes, directions = np.linalg.eigh(seen)
    flat = (sizes <= 1e-13 * p * sizes[:, -1:]) & free[:, None]
    if not flat.any():
        return _everything
    projector = (directions * flat[:, None, :]) @ directions.transpose(0, 2, 1)
    members = np.bincount(spread, minlength=count)

    def project(vector: np.ndarray) -> np.ndarray:
        mean = np.stack([objective.by_component(column) for column in vector.T], axis=1) / members[:, None]
        return vector - np.einsum("ckl,cl->ck", projector, mean)[spread]

    return project


def _everything(vector: np.ndarray) -> np.ndarray:
    return vector


# -- the interior point method ----------------------------------------------------------------------------------------


def _interior_point(objective: Objective, theta: np.ndarray) -> np.ndarray:
    """Minimise F for a loss ``l(z, y) = max over u in [lo, hi] of u (z - y) - kappa u^2 / 2``.

    With H the Hessian of the quadratic terms, the optimum is where ``H theta + X' (c u) = 0``, and in every row
    ``z - y - kappa u = p - q`` with p, q >= 0, ``p (hi - u) = 0`` and ``q (u - lo) = 0``. Mehrotra's method follows the
    points where those products are equal and positive down to zero. Every row's part is eliminated by hand, which
    leaves one system in theta, of the same form as Newton's.
    """
    spread, count = objective.graph.components, objective.graph.n_components
    if not objective.scale.any():
        return theta
    given, objective = objective, _barely_regularised(objective)
    loss, y, c = objective.loss, objective.labels, objective.scale
    kappa, live = loss.dual_curvature, c > 0
    lo, hi = np.array([loss.domain(label) for label in y]).T
    norms = objective.row_norms()
    group = spread[objective.owner]
    weight = np.maximum(objective.by_component(objective.by_agent(c)), 1e-300)

    u, margins = 0.5 * (lo + hi), np.zeros_like(y)
    above, below = hi - u, u - lo  # kept beside u: near its bounds, their difference would be lost in rounding
    gap = margins - y - kappa * u
    slack = np.maximum(1.0, np.abs(gap))
    p, q = np.maximum(gap, 0.0) + slack, np.maximum(-gap, 0.0) + slack
    first = objective.by_component(objective.value(theta))
    best, patience = np.inf, 8

    for _ in range(100):
        distance = objective.by_component(
            objective.by_agent(c * (p * above + q * below))
        )  # the gap, once residuals vanish
        # What still separates the objective from its lower bound: products, forces out of balance, rows out of fit.
        pull, size = objective.quadratic_gradient(theta), objective.norm(theta)
        slip = objective.norm(pull + objective.scatter(c * u, theta.shape)) * size
        rounding = (
            1e-14 * size * (objective.norm(pull) + objective.by_component(objective.by_agent(c * np.abs(u) * norms)))
        )
        misfit = objective.by_component(objective.by_agent(c * np.abs(margins - y - kappa * u - p + q)))
        level = objective.by_component(objective.value(theta))
        room = TOLERANCE * np.abs(level) + 1e-16 * first
        done = (distance <= room) & (slip <= room + rounding) & (misfit <= room + 1e-13 * first)
        worst = np.max(((distance + slip) / (room + 1e-300))[~done], initial=0.0)
        best, patience = (worst, 8) if worst < 0.5 * best else (best, patience - 1)
        if done.all() or (patience <= 0 and np.all(distance + slip <= 1e3 * room)):
            break
        stiffness = kappa + p / above + q / below
        solve = _system(objective, np.where(live, c / stiffness, 0.0), tight=True, project=_everything)

        def direction(rp, rq):  # type: ignore[no-untyped-def]
            """Newton's direction towards ``p (hi - u) = rp`` and ``q (u - lo) = rq``."""
            rho = margins - y - kappa * u - rp / above + rq / below  # noqa: B023 - used within this round
            target = objective.scatter(np.where(live, c * (u + rho / stiffness), 0.0), theta.shape)  # noqa: B023
            d_theta = -solve(objective.quadratic_gradient(theta) + target)  # noqa: B023
            d_u = (rho + objective.margins(d_theta)) / stiffness  # noqa: B023
            d_p = rp / above - p + p / above * d_u  # noqa: B023
            d_q = rq / below - q - q / below * d_u  # noqa: B023
            return d_theta, d_u, d_p, d_q

        def longest(d_u, d_p, d_q):  # type: ignore[no-untyped-def]
            """How far each component can go before something turns negative."""
            with np.errstate(divide="ignore", invalid="ignore"):
                limits = np.stack(
                    [
                        np.where(d_u > 0, above / d_u, np.inf),  # noqa: B023
                        np.where(d_u < 0, -below / d_u, np.inf),  # noqa: B023
                        np.where(d_p < 0, -p / d_p, np.inf),  # noqa: B023
                        np.where(d_q < 0, -q / d_q, np.inf),  # noqa: B023
                    ]
                ).min(axis=0)
            reach = np.full(count, np.inf)
            np.minimum.at(reach, group[live], limits[live])
            return reach

        zero = np.zeros_like(y)
        _, a_u, a_p, a_q = direction(zero, zero)
        far = np.minimum(1.0, longest(a_u, a_p, a_q))[group]
        after = c * ((p + far * a_p) * (above - far * a_u) + (q + far * a_q) * (below + far * a_u))
        shrink = (
            np.clip(objective.by_component(objective.by_agent(after)) / np.maximum(distance, 1e-300), 0.0, 1.0) ** 3
        )
        # An aim much below the tolerance would only make the systems worse.
        aim = (np.maximum(shrink * distance, 0.1 * room) / (2.0 * weight))[group]
        bend = far**2 * a_u  # the second-order correction, weighted by how far the first order could be trusted
        d_theta, d_u, d_p, d_q = direction(aim + a_p * bend, aim - a_q * bend)
        stride = np.where(done, 0.0, np.minimum(1.0, 0.995 * longest(d_u, d_p, d_q)))
        theta = theta + stride[spread][:, None] * d_theta
        along = stride[group]
        p, q, above, below = p + along * d_p, q + along * d_q, above - along * d_u, below + along * d_u
        u = np.where(above < below, hi - above, lo + below)
        margins = objective.margins(theta)

    conjugate = u * y + 0.5 * kappa * u * u
    lower = -objective.by_component(objective.quadratic(theta) + objective.by_agent(c * conjugate))
    level = objective.by_component(objective.value(theta))
    size = np.abs(level) + 1e-4 * first + 1e-300
    short = (level - lower + slip) / size
    if np.isfinite(loss.smoothness):
        theta = _polished(given, theta)
        short = np.minimum(short, given.norm(given.gradient(theta)) * given.norm(theta) / size)
    if short.max() > 1e-7:
        agent = int(np.flatnonzero(spread == np.argmax(short))[0])
        raise ConvergenceError(
            f"the interior point method stopped at a relative duality gap of {short.max():.1e} around agent number "
            f"{agent}: do weights or features differ by very many orders of magnitude?"
        )
    return theta


def _polished(objective: Objective, theta: np.ndarray) -> np.ndarray:
    """A few Newton steps on the pieces that the interior point method has found, while they shorten the gradient."""
    project = _flat_directions(objective)
    gradient = project(objective.gradient(theta))
    for _ in range(3):
        curvature = objective.examples(objective.margins(theta))[2]
        step = _system(objective, objective.scale * curvature, tight=True, project=project)(gradient)
        candidate = theta - step
        changed = project(objective.gradient(candidate))
        better = (objective.norm(changed) < objective.norm(gradient))[objective.graph.components][:, None]
        theta, gradient = np.where(better, candidate, theta), np.where(better, changed, gradient)
    return theta


def _barely_regularised(objective: Objective) -> Objective:
    """Give components without a ridge one so small that it only chooses among minimisers, the one of least norm."""
    members = np.bincount(objective.graph.components)
    data = objective.by_component(objective.by_agent(objective.scale * objective.row_norms() ** 2)) / members
    ties = 2.0 * objective.smooth * objective.by_component(objective.graph.degrees) / members
    least = np.where(ties > 0, np.minimum(data, ties), data)
    tiny = np.where(objective.by_component(objective.ridge) == 0, 1e-12 * least, 0.0)
    return replace(objective, ridge=objective.ridge + tiny[objective.graph.components])


def _largest(values: np.ndarray, spread: np.ndarray, count: int) -> np.ndarray:
    """The largest number of each component."""
    out = np.zeros(count)
    np.maximum.at(out, spread, values.max(axis=1, initial=0.0))
    return out


# -- linear systems ---------------------------------------------------------------------------------------------------


def _system(objective: Objective, weights: np.ndarray, tight: bool, project: Solver) -> Solver:
    """A solver of ``(2 s (D - W) + 2 R + X' diag(weights) X) x = target`` within the range of ``project``.

    Conjugate gradients, with the best preconditioner that is affordable: the inverse itself, of the agents' blocks
    where there are no ties or of the whole matrix while that is small; the inverse of the blocks; or of the diagonal.
    The matrix itself is never formed for products, which are more accurate for it.
    """
    n, p = objective.start.shape[0] - 1, objective.p
    exact = True
    if objective.graph.n_edges > 0 and n * p <= DENSE:
        precondition = _dense_inverse(objective, weights, n, p)
    elif n * p * p <= BLOCKS:
        inverse = np.linalg.inv(_blocks(objective, weights, n, p, damping=1e-12))
        inverse = 0.5 * (inverse + inverse.transpose(0, 2, 1))  # symmetric and positive definite, whatever the rounding
        exact = objective.graph.n_edges == 0

        def precondition(v: np.ndarray) -> np.ndarray:
            return np.einsum("ikl,il->ik", inverse, v)
    else:
        exact = False
        diagonal = np.zeros((n, p))
        diagonal_kernel(objective.rows, objective.start, weights, diagonal)
        diagonal += (2.0 * objective.ridge + 2.0 * objective.smooth * objective.graph.degrees)[:, None]
        diagonal[diagonal == 0.0] = 1.0

        def precondition(v: np.ndarray) -> np.ndarray:
            return v / diagonal

    def product(v: np.ndarray) -> np.ndarray:
        return objective.quadratic_gradient(v) + objective.scatter(weights * objective.margins(v), v.shape)

    accuracy, rounds = (1e-14, 10) if exact else (1e-13 if tight else 1e-6, 5000)
    return lambda target: _conjugate_gradients(
        objective, product, lambda v: project(precondition(v)), project(target), accuracy, rounds
    )


def _conjugate_gradients(
    objective: Objective, product: Solver, precondition: Solver, target: np.ndarray, accuracy: float, rounds: int
) -> np.ndarray:
    """Solve ``product(x) = target``; every component of the graph is a system of its own, with its own steps."""
    spread = objective.graph.components

    def inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return objective.by_component((a * b).sum(axis=1))

    x, residual = np.zeros_like(target), target
    enough = accuracy**2 * inner(target, target)
    direction = precondition(residual)
    slope = inner(residual, direction)
    for _ in range(rounds):
        image = product(direction)
        curvature = inner(direction, image)
        going = (inner(residual, residual) > enough) & (curvature > 0) & (slope > 0)
        if not going.any():
            break
        length = np.where(going, slope, 0.0) / np.where(going, curvature, 1.0)
        x = x + length[spread][:, None] * direction
        residual = residual - length[spread][:, None] * image
        ahead = precondition(residual)
        turn = np.where(going, inner(residual, ahead), 0.0)
        direction = ahead + (turn / np.where(going, slope, 1.0))[spread][:, None] * direction
        slope = turn
    return x


def _blocks(objective: Objective, weights: np.ndarray, n: int, p: int, damping: float) -> np.ndarray:
    """The agents' own p x p blocks, damped by a small part of their size."""
    blocks = np.zeros((n, p, p))
    gram_kernel(objective.rows, objective.start, weights, np.arange(n), blocks)
    diagonal = np.einsum("ikk->ik", blocks)  # a view
    diagonal += (2.0 * objective.ridge + 2.0 * objective.smooth * objective.graph.degrees)[:, None]
    diagonal += damping * diagonal.mean(axis=1)[:, None]
    diagonal[diagonal == 0.0] = 1.0  # a feature that the agent does not have
    return blocks


def _dense_inverse(objective: Objective, weights: np.ndarray, n: int, p: int) -> Solver:
    """Multiplication by the inverse of the whole matrix, by its Cholesky factor."""
    whole = np.zeros((n, p, n, p))
    whole[np.arange(n), :, np.arange(n), :] = _blocks(objective, weights, n, p, damping=0.0)
    i, j, w = objective.graph.edges()
    for k in range(p):
        whole[i, k, j, k] = whole[j, k, i, k] = -2.0 * objective.smooth * w
    matrix = whole.reshape(n * p, n * p)
    # Scaled to a unit diagonal: the agents' weights may differ by many orders of magnitude.
    unit = 1.0 / np.sqrt(np.diagonal(matrix))
    matrix *= unit[:, None] * unit
    for damping in (0.0, 1e-14, 1e-12, 1e-10, 1e-8):
        matrix[np.diag_indices(n * p)] = 1.0 + damping
        try:
            factor = linalg.cho_factor(matrix, lower=True, check_finite=False)
        except linalg.LinAlgError:
            continue
        return lambda v: (unit * linalg.cho_solve(factor, unit * v.ravel(), check_finite=False)).reshape(v.shape)
    raise ConvergenceError("the Hessian is not positive semidefinite: is a loss not convex?")
