"""The exact minimiser: the reference that every method is measured against.

It minimises, over the models Theta (n x p),

    F(Theta) = s sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_r c_r l(x_r . theta_i(r), y_r) + sum_i R_i |theta_i|^2

by Newton's method on all agents at once. The connected components of the graph are independent problems: each has
its own line search and its own stopping test. Linear systems are solved by a Cholesky factorisation while n p is
small, and beyond that by conjugate gradients that never form the Hessian, preconditioned by the agents' own blocks.
A loss with a kink (the hinge) is followed by the method of multipliers on its Moreau envelope: the duality gap
certifies the result.

Where F has several minimisers, Newton from zero picks the one of least norm. Where the infimum is not attained
(separable data without a ridge), it stops within the tolerance of the infimum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg
from scipy.sparse import linalg as splinalg

from ._compile import kernel
from .errors import ConvergenceError
from .graphs import Graph
from .linear import (
    DenseRows,
    SparseRows,
    diagonal_kernel,
    gram_kernel,
    margins_kernel,
    one_thread,
    scatter_kernel,
)

#: Relative accuracy of the objective at which Newton's method may stop.
TOLERANCE = 1e-13
#: Up to this many unknowns, linear systems are solved by a dense factorisation.
DENSE = 1500
#: Preconditioner blocks are kept whole (n p^2 numbers) up to this size, and as diagonals beyond it.
BLOCKS = 40_000_000


@kernel
def loss_kernel(loss, margins, labels, value, slope, curvature):  # type: ignore[no-untyped-def]
    """Loss, first and second derivative of every example."""
    for r in range(margins.shape[0]):
        value[r] = loss.value(margins[r], labels[r])
        slope[r] = loss.derivative(margins[r], labels[r])
        curvature[r] = loss.curvature(margins[r], labels[r])


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
    """

    rows: DenseRows | SparseRows
    start: np.ndarray
    labels: np.ndarray
    loss: Any
    scale: np.ndarray
    ridge: np.ndarray
    graph: Graph
    smooth: float

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
        pull = self.graph.degrees[:, None] * theta - self.graph.W @ theta
        return 2.0 * self.smooth * pull + 2.0 * self.ridge[:, None] * theta

    def value(self, theta: np.ndarray) -> np.ndarray:
        """F split over the agents, (n,)."""
        losses = self.examples(self.margins(theta))[0]
        return self.quadratic(theta) + self.by_agent(self.scale * losses)

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """``dF / dTheta``, (n, p)."""
        slope = self.examples(self.margins(theta))[1]
        return self.quadratic_gradient(theta) + self.scatter(self.scale * slope, theta.shape)

    def by_agent(self, per_row: np.ndarray) -> np.ndarray:
        """Sum a number per row over each agent."""
        return np.bincount(self.owner, weights=per_row, minlength=self.start.shape[0] - 1)

    @property
    def owner(self) -> np.ndarray:
        """The agent of each row."""
        return np.repeat(np.arange(self.start.shape[0] - 1), np.diff(self.start))

    def by_component(self, per_agent: np.ndarray) -> np.ndarray:
        """Sum a number per agent over each connected component."""
        return np.bincount(self.graph.components, weights=per_agent, minlength=self.graph.n_components)


@one_thread
def minimise(objective: Objective, p: int) -> np.ndarray:
    """Minimise F to machine precision.

    Parameters
    ----------
    objective : Objective
    p : int
        Number of features.

    Returns
    -------
    (n, p) ndarray
    """
    theta = np.zeros((objective.start.shape[0] - 1, p))
    if np.isfinite(objective.loss.smoothness):
        return _newton(objective, theta)[0]
    return _multipliers(objective, theta)


def _multipliers(objective: Objective, theta: np.ndarray) -> np.ndarray:
    """Minimise a loss with a kink by the method of multipliers on its Moreau envelope.

    With multipliers u_r, one round minimises ``env_gamma(z_r + gamma u_r)`` in place of ``l(z_r)`` and sets
    ``u_r <- env_gamma'(z_r + gamma u_r)``. At the end of a round Theta minimises the Lagrangian of u, whose value
    ``-quadratic(Theta) - sum_r c_r l*(u_r)`` bounds F from below.
    """
    loss, labels, scale = objective.loss, objective.labels, objective.scale
    dual = np.zeros(labels.shape[0])
    best, best_gap = theta, np.inf
    for attempt in range(60):
        gamma = max(1e-3, 0.3**attempt)
        theta, margins = _newton(replace(objective, loss=loss.envelope(gamma)), theta, shift=gamma * dual)
        _, dual, _ = replace(objective, loss=loss.envelope(gamma)).examples(margins + gamma * dual)
        quadratic = objective.quadratic(theta)
        primal = objective.by_component(quadratic + objective.by_agent(scale * objective.examples(margins)[0]))
        # conjugate of the hinge on its domain [-1, 0]: rounding may leave it by one unit in the last place
        conjugate = np.array([loss.conjugate(u, y) for u, y in zip(dual, labels, strict=True)])
        lower = -objective.by_component(quadratic + objective.by_agent(scale * conjugate))
        size = np.maximum(np.abs(primal), 1e-3 * objective.by_component(objective.by_agent(scale)))
        gap = np.max((primal - lower) / np.where(size > 0, size, 1.0), initial=0.0)
        if gap < best_gap:
            best, best_gap = theta, gap
        if gap <= TOLERANCE or (gap <= 1e-11 and gap > 0.5 * best_gap and attempt > 12):
            return best
    if best_gap > 1e-10:
        raise ConvergenceError(f"the exact solver stopped at a relative duality gap of {best_gap:.1e}")
    return best


def _newton(objective: Objective, theta: np.ndarray, shift: np.ndarray | float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Minimise a smooth F; ``shift`` is added to every margin. Returns the models and their margins."""
    spread = objective.graph.components
    margins = objective.margins(theta)
    first = None
    polish = 0
    for _ in range(300):
        value, slope, curvature = objective.examples(margins + shift)
        gradient = objective.quadratic_gradient(theta) + objective.scatter(objective.scale * slope, theta.shape)
        size = np.sqrt(objective.by_component(np.square(gradient).sum(axis=1)))
        first = size if first is None else np.maximum(first, size)
        # Where a piecewise loss has no curvature, borrow some of its largest: it bounds the step, and fades out.
        borrowed = np.minimum(1e-2, size / np.where(first > 0, first, 1.0))[spread] * objective.loss.smoothness
        curvature = np.maximum(curvature, borrowed[objective.owner])
        step = -_solve_hessian(objective, objective.scale * curvature, gradient, tight=polish > 0)
        along = objective.margins(step)
        decrement = -objective.by_component((gradient * step).sum(axis=1))
        level = objective.by_component(objective.quadratic(theta) + objective.by_agent(objective.scale * value))
        length = _line_search(objective, theta, step, margins + shift, along)
        theta = theta + length[spread][:, None] * step
        margins = objective.margins(theta)
        if np.all(decrement <= TOLERANCE * np.abs(level) + 1e-300):
            # The objective is exact by now; a few more steps make the models exact, too.
            polish += 1
            moved = np.max(np.abs(step), initial=0.0) / max(1.0, np.max(np.abs(theta), initial=0.0))
            if polish == 4 or moved <= 1e-12:
                return theta, margins
    raise ConvergenceError("the exact solver did not converge in 300 Newton steps: is the data badly scaled?")


def _line_search(objective, theta, step, margins, along):  # type: ignore[no-untyped-def]
    """One step length per component: a zero of the directional derivative, found by bracketing."""
    spread = objective.graph.components
    start = (objective.quadratic_gradient(theta) * step).sum(axis=1)
    bend = (objective.quadratic_gradient(step) * step).sum(axis=1)

    def slope(length: np.ndarray) -> np.ndarray:
        moved = margins + length[spread][objective.owner] * along
        losses = objective.by_agent(objective.scale * objective.examples(moved)[1] * along)
        return objective.by_component(start + length[spread] * bend + losses)

    count = objective.graph.n_components
    low, high, length = np.zeros(count), np.full(count, np.inf), np.ones(count)
    at_low = slope(low)
    steep = np.where(at_low < 0, -at_low, np.inf)  # not downhill: rounding is all that is left, and any step is good
    at_high = np.full(count, np.nan)
    for attempt in range(60):
        now = slope(length)
        open_ = np.abs(now) > 0.3 * steep
        if not np.any(open_):
            break
        low, at_low = np.where(now <= 0, length, low), np.where(now <= 0, now, at_low)
        high, at_high = np.where(now > 0, length, high), np.where(now > 0, now, at_high)
        bounded = np.isfinite(high)
        with np.errstate(invalid="ignore", divide="ignore"):
            middle = 0.5 * (low + high)
            secant = low + (high - low) * at_low / (at_low - at_high)
            inside = (attempt % 2 == 0) & (low < secant) & (secant < high)
        length = np.where(open_, np.where(bounded, np.where(inside, secant, middle), 2.0 * low), length)
    return length


def _solve_hessian(objective: Objective, weights: np.ndarray, target: np.ndarray, tight: bool) -> np.ndarray:
    """Solve ``H x = target`` with ``H = 2 s (D - W) (x) I + blocks(sum_r weights_r x_r x_r' + 2 R_i I)``."""
    n, p = target.shape
    own = 2.0 * objective.ridge + 2.0 * objective.smooth * objective.graph.degrees
    if n * p <= DENSE:
        return _solve_dense(objective, weights, own, target)
    precondition = _block_preconditioner(objective, weights, own, n, p)

    def product(flat: np.ndarray) -> np.ndarray:
        v = flat.reshape(n, p)
        curved = objective.scatter(weights * objective.margins(v), v.shape)
        return (objective.quadratic_gradient(v) + curved).ravel()

    solution, _ = splinalg.cg(
        splinalg.LinearOperator((n * p, n * p), matvec=product, dtype=float),
        target.ravel(),
        rtol=1e-12 if tight else 1e-6,
        maxiter=5000,
        M=splinalg.LinearOperator((n * p, n * p), matvec=precondition, dtype=float),
    )
    return solution.reshape(n, p)


def _blocks(objective, weights, own, n, p):  # type: ignore[no-untyped-def]
    """The agents' own p x p blocks of H, with a trace of damping that makes each positive definite."""
    blocks = np.zeros((n, p, p))
    gram_kernel(objective.rows, objective.start, weights, blocks)
    diagonal = np.einsum("ikk->ik", blocks)  # a view
    diagonal += own[:, None]
    size = diagonal.mean(axis=1)
    diagonal += np.where(size > 0, 1e-14 * size, 1.0)[:, None]
    return blocks


def _solve_dense(objective, weights, own, target):  # type: ignore[no-untyped-def]
    n, p = target.shape
    blocks = _blocks(objective, weights, own, n, p)
    hessian = np.zeros((n, p, n, p))
    hessian[np.arange(n), :, np.arange(n), :] = blocks
    i, j, w = objective.graph.edges()
    for k in range(p):
        hessian[i, k, j, k] = hessian[j, k, i, k] = -2.0 * objective.smooth * w
    hessian = hessian.reshape(n * p, n * p)
    # Scaled to a unit diagonal: agents' weights may differ by many orders of magnitude.
    unit = 1.0 / np.sqrt(np.diagonal(hessian))
    hessian *= unit[:, None] * unit
    for damping in (0.0, 1e-14, 1e-12, 1e-10, 1e-8):
        try:
            factor = linalg.cho_factor(hessian + damping * np.eye(n * p), lower=True, check_finite=False)
        except linalg.LinAlgError:
            continue
        scaled = target.ravel() * unit
        x = linalg.cho_solve(factor, scaled, check_finite=False)
        x += linalg.cho_solve(factor, scaled - hessian @ x, check_finite=False)
        return (x * unit).reshape(n, p)
    raise ConvergenceError("the Hessian is not positive semidefinite: is a loss not convex?")


def _block_preconditioner(objective, weights, own, n, p):  # type: ignore[no-untyped-def]
    if n * p * p <= BLOCKS:
        inverse = np.linalg.inv(_blocks(objective, weights, own, n, p))
        return lambda flat: np.einsum("ikl,il->ik", inverse, flat.reshape(n, p)).ravel()
    diagonal = np.zeros((n, p))
    diagonal_kernel(objective.rows, objective.start, weights, diagonal)
    diagonal += own[:, None]
    diagonal[diagonal == 0.0] = 1.0
    return lambda flat: flat / diagonal.ravel()
