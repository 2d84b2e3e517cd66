"""A sample of agents from which a population is learned (or the part held by one process), and sums over its rows.

A sample stores and updates the deviations D of its agents. Results are sums over agents, unless stated otherwise; no
result is about a single row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._threads import in_threads
from ..core.batches import jobs
from .blocks import AgentBatch, Block, times
from .families import NOISY, Family
from .posterior import posterior, solve

if TYPE_CHECKING:
    from .population import Population

#: Variance of a predictor at which the correction of Laplace's gradients is halved. Without this bound, two or three
#: rows of a rare class would let V diverge.
SATURATION_VARIANCE = 4.0


class Seen(NamedTuple):
    """Sums over the blocks of a sample, and of its objective, before a Newton step."""

    C: np.ndarray  # (q, q) of C_i
    pull: np.ndarray  # (q,) of C_i (V g_i + d_i)
    gradient: np.ndarray  # (q,) of g_i, the gradients of the losses
    correction: np.ndarray  # (q,) of b_i, see laplace_correction()
    loss: float
    penalty: float  # of d_i' V^-1 d_i
    log_det: float  # of log |I + V H_i|, if requested


class There(NamedTuple):
    """Sums over a sample after a step: of its objective, and those from which variances are learned."""

    loss: float
    penalty: float
    squares: np.ndarray  # of d_ik^2, (q,); or of d_i d_i' for a full V, in personal coordinates
    cross: np.ndarray  # of b_ik d_ik; or of b_i d_i'
    excess: float  # of squared residuals, weighted as in the estimate of the noise


class Step(NamedTuple):
    """A Newton step in progress: its start and its direction."""

    family: Family
    w: np.ndarray
    V: np.ndarray
    s2: float
    D: np.ndarray
    a: np.ndarray  # V^-1 D, zero where V is zero
    gradients: np.ndarray  # (n, q)
    correction: np.ndarray  # (n, q) the b_i
    E: np.ndarray  # (n, q): V g_i + d_i
    blocks: list[Block]
    dw: Any = None
    da: Any = None  # V^-1 times the step of D


class Sample:
    """Batches of ``n`` agents, whose places among all agents of the population's sample are ``place``.

    Batches are processed by several threads, and their sums are added in the order of the batches.
    """

    def __init__(self, batches: list[AgentBatch], n: int, place: np.ndarray | None = None, n_jobs: int | None = 1):
        self.batches, self.n, self.place = batches, n, np.arange(n) if place is None else place
        self.n_jobs = jobs(n_jobs, sum(batch.X.size for batch in batches))
        self.D = np.zeros((n, batches[0].X.shape[2] if batches else 0))
        self.step: Step | None = None
        self._combined: tuple[np.ndarray | None, np.ndarray, list[np.ndarray]] | None = None

    def each(self, work: Callable[..., Any], *given: Any, again: bool = True) -> list[Any]:
        """Return the only answer, since this process holds the whole sample; see :class:`.sums.Sums`."""
        return [work(self, *given)]

    def remember(self, name: Any, work: Callable[..., Any], *given: Any) -> None:
        """Do nothing: no other process takes over from this one."""

    def begin(self, q: int) -> tuple[float, float]:
        """Set deviations to zero; return the number of rows (a weight of 2 counts as two) and the sum of labels."""
        self.D = np.zeros((self.n, q))
        rows = sum(float(batch.weight.sum()) for batch in self.batches)
        return rows, sum(float((batch.weight * batch.y).sum()) for batch in self.batches)

    def restart(self, population: Population) -> None:
        """Set the most likely deviations given a population."""
        self.D = np.zeros((self.n, len(population.w)))
        for batch in self.batches:
            self.D[batch.agents] = posterior(batch, population)

    def variation(self, q: int) -> tuple[np.ndarray, np.ndarray]:
        """Return for every column the sums of squares around agents' means, and of squares, (q,)."""
        inside, square = np.zeros(q), np.zeros(q)
        for batch in self.batches:
            weight = batch.weight[..., None]
            own = np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
            mean = np.sum(weight * batch.X, axis=1, keepdims=True) / own
            inside += np.sum(weight * (batch.X - mean) ** 2, axis=(0, 1))
            square += np.sum(weight * batch.X**2, axis=(0, 1))
        return inside, square

    def look(self, family: Family, w: np.ndarray, V: np.ndarray, s2: float, evidence: bool = False) -> Seen:
        """Compute the sums that a Newton step needs, and store the step."""
        D, q = self.D, len(w)
        a = solve(V, D)
        gradients, correction, E = np.zeros_like(D), np.zeros_like(D), D.copy()  # C_i = 0 for agents without rows

        def work(batch: AgentBatch) -> tuple[Block, np.ndarray, np.ndarray, float, float]:
            k = batch.agents
            T = w + D[k]
            block = batch.block(T, family, s2, V)
            gradients[k] = batch.gradient(T, family, s2)
            E[k] = times(V, gradients[k]) + D[k]
            correction[k] = laplace_correction(batch, T, block, family, V)
            loss = float(batch.loss(T, family, s2).sum())
            return block, block.sum(), block.apply(E[k]).sum(axis=0), loss, block.log_det() if evidence else 0.0

        C, pull, loss, log_det, blocks = np.zeros((q, q)), np.zeros(q), 0.0, 0.0, []
        for block, own, towards, lost, determinant in in_threads(work, self.batches, self.n_jobs):
            C += own
            pull += towards
            loss += lost
            log_det += determinant
            blocks.append(block)
        self.step = Step(family, w, V, s2, D, a, gradients, correction, E, blocks)
        penalty = float(np.sum(a * D))
        return Seen(C, pull, gradients.sum(axis=0), correction.sum(axis=0), loss, penalty, log_det)

    def move(self, dw: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, There]:
        """Take the full step; return the sum of C_i S^-1 C_i of the blocks before it, and the sums after it."""
        step = self.step
        assert step is not None
        # d <- -E + V C (E - dw), written as V times a vector, so that V^-1 d is known without an inverse.
        da = -step.gradients - step.a

        def work(pair: tuple[AgentBatch, Block]) -> np.ndarray:
            batch, block = pair
            k = batch.agents
            da[k] += block.apply(step.E[k] - dw)
            return block.sandwich(cov)

        CSC = np.zeros_like(cov)
        for inner in in_threads(work, zip(self.batches, step.blocks, strict=True), self.n_jobs):
            CSC += inner
        self.step = step._replace(dw=dw, da=da, blocks=[])
        return CSC, self.retreat(1.0)

    def retreat(self, t: float) -> There:
        """Take the step with length t instead of the previous length."""
        step = self.step
        assert step is not None
        family, s2, w = step.family, step.s2, step.w + t * step.dw
        self.D = D = step.D + t * times(step.V, step.da)

        def work(batch: AgentBatch) -> tuple[float, float]:
            z = batch.latent(w + D[batch.agents])
            excess = float((batch.weight * family.excess(z, batch.y, s2)).sum()) if isinstance(family, NOISY) else 0.0
            return float((batch.weight * family.loss(z, batch.y, s2)).sum(axis=1).sum()), excess

        found = in_threads(work, self.batches, self.n_jobs)
        loss, excess = sum(lost for lost, _ in found), math.fsum(own for _, own in found)
        penalty, b = float(np.sum((step.a + t * step.da) * D)), step.correction
        if step.V.ndim == 1:
            return There(loss, penalty, np.sum(D**2, axis=0), np.sum(b * D, axis=0), excess)
        personal = np.flatnonzero(np.diag(step.V) > 0.0)
        d = D[:, personal]
        return There(loss, penalty, d.T @ d, b[:, personal].T @ d, excess)

    def constant(self, family: Family, s2: float) -> float:
        """Return the part of the log-likelihood that the losses omit."""
        return sum(float((batch.weight * family.constant(batch.y, s2)).sum()) for batch in self.batches)

    def left_out(self, population: Population) -> tuple[float, float]:
        """Return the sum of the losses of rows left out one at a time, and their weight."""
        loss, weights = 0.0, 0.0
        for batch in self.batches:
            z, _ = left_out(batch, population, self.D[batch.agents])
            loss += float((batch.weight * population.family.loss(z, batch.y, 1.0)).sum())
            weights += float(batch.weight.sum())
        return loss, weights

    def combined(self, basis: np.ndarray | None, unit: np.ndarray) -> list[np.ndarray]:
        """Return the batches' rows times a basis (q, k), if given, in units (k,); the last result is cached."""
        known = self._combined
        if known is None or not (_same(known[0], basis) and np.array_equal(known[1], unit)):
            rows = [(batch.X if basis is None else batch.X @ basis) * unit for batch in self.batches]
            known = self._combined = basis, unit, rows
        return known[2]


def _same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is b or (a is not None and b is not None and np.array_equal(a, b))


def laplace_correction(batch: AgentBatch, T: np.ndarray, block: Block, family: Family, V: np.ndarray) -> np.ndarray:
    """Return b_i = (I - J_i)' c_i, c_i = 1/2 sum_j l'''_j s_j x_j: the gradient of log |A_i| / 2 in theta_i.

    Without this correction, w and V are too small for classes and counts: the bias of penalised quasi-likelihood.
    """
    if family.noisy:
        return np.zeros_like(T)
    s = block.leverage(batch.X, V)
    c = np.matmul(
        (0.5 * batch.weight * family.third(batch.latent(T)) * s / (1.0 + s / SATURATION_VARIANCE))[:, None], batch.X
    )
    return c[:, 0] - block.apply(times(V, c[:, 0]))


def left_out(batch: AgentBatch, population: Population, D: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return predictors of every row of a batch when the row is left out, and variances (k, m), with the same
    population.

    For a row of weight above one, weight one is left out. Without row j, whose predictor z_j has variance s_j,
    curvature c_j and slope g_j, z_j moves by s_j g_j / (1 - c_j s_j) and s_j grows to s_j / (1 - c_j s_j): exact for
    squared errors, close otherwise.
    """
    family, V, s2 = population.family, population.V, population.s2
    T = population.w + D
    VX = times(V, batch.X)
    u = batch.X - batch.block(T, family, s2, V).rows(VX)
    s = np.einsum("kmq,kmq->km", VX, u) + np.einsum("kmq,kmq->km", u @ population.cov, u)
    z = batch.latent(T)
    once = np.minimum(batch.weight, 1.0)
    left = 1.0 - np.minimum(once * family.curvature(z, s2) * s, 0.999)
    return z + once * family.slope(z, batch.y, s2) * s / left, s / left
