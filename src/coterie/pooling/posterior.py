"""The deviations of agents given a population, each from the agent's own rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .blocks import AgentBatch, one_plus, root, times
from .families import FAMILIES, Student

if TYPE_CHECKING:
    from .population import Population

#: Maximum number of Newton steps of one agent's posterior, and the tolerance that ends them.
MAX_NEWTON_STEPS, NEWTON_TOLERANCE = 50, 1e-9


def solve(V: np.ndarray, D: np.ndarray) -> np.ndarray:
    """Return V^-1 d for every row d of D, and zero in coordinates of variance zero."""
    free = (V if V.ndim == 1 else np.diag(V)) > 0.0
    out = np.zeros_like(D)
    if V.ndim == 1:
        out[:, free] = D[:, free] / V[free]
    else:
        out[:, free] = np.linalg.solve(V[np.ix_(free, free)], D[:, free].T).T
    return out


def posterior(batch: Any, population: Population) -> np.ndarray:
    """Return the deviations of the agents of a batch given the population, by Newton's method."""
    family, w, V, s2 = population.family, population.w, population.V, population.s2
    D = np.zeros((len(batch.agents), len(w)))
    if isinstance(family, Student):  # among several modes, the one reached from the squared loss's mode
        D = posterior(batch, population._replace(family=FAMILIES["squared"]))
    if isinstance(batch, AgentBatch) and batch.X.shape[1] < batch.X.shape[2]:
        return _posterior_in_rows(batch, population, D)
    if family.quadratic:
        return _of_squares(batch.hessian(w + D, family, s2), batch.gradient(w + D, family, s2), V)
    a, done = solve(V, D), np.zeros(len(D), bool)
    for _ in range(MAX_NEWTON_STEPS):
        gradient = batch.gradient(w + D, family, s2)
        block = batch.block(w + D, family, s2, V)
        da = block.apply(times(V, gradient) + D) - gradient - a
        dD = times(V, da)

        def value(t: Any, D: np.ndarray = D, a: np.ndarray = a, dD: np.ndarray = dD, da: np.ndarray = da) -> np.ndarray:
            own = 0.5 * np.sum((a + t * da) * (D + t * dD), axis=1)
            return batch.loss(w + D + t * dD, family, s2) + own

        t = _steps(value, done)
        a, D = a + t * da, D + t * dD
        done |= np.abs(t * dD).max(axis=1) < NEWTON_TOLERANCE
        if done.all():
            break
    return D


def _of_squares(H: np.ndarray, gradient: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Return the minimisers of ``gradient . d + d' H d / 2 + d' V^-1 d / 2``.

    The minimisers are L z, with V = L L' and (I + L' H L) z = -L' gradient. The formula C_i = H - H A^-1 H would lose
    all digits where rows are much more informative than V.
    """
    L, q = root(V), H.shape[1]
    inner = H * L * L[:, None] if L.ndim == 1 else np.matmul(L.T, H @ L)
    inner[:, np.arange(q), np.arange(q)] += 1.0
    z = np.linalg.solve(inner, -(gradient * L if L.ndim == 1 else gradient @ L)[..., None])[..., 0]
    return z * L if L.ndim == 1 else z @ L.T


def _posterior_in_rows(batch: AgentBatch, population: Population, D: np.ndarray) -> np.ndarray:
    """Return the deviations in the span of the rows, d = V X' alpha: a step costs m^3, for any number of columns."""
    family, s2 = population.family, population.s2
    VX = times(population.V, batch.X)
    gram = np.matmul(VX, batch.X.transpose(0, 2, 1))
    base = batch.X @ population.w
    z = base + batch.latent(D)
    alpha, done = np.zeros_like(base), np.zeros(len(base), bool)
    if isinstance(family, Student):  # start at the mode of the squared loss
        alpha = batch.weight * (batch.y - z) / s2
    for _ in range(MAX_NEWTON_STEPS):
        u = np.sqrt(batch.weight * family.curvature(z, s2))
        b = u * u * (z - base) - batch.weight * family.slope(z, batch.y, s2)
        right = u * np.matmul(gram, b[..., None])[..., 0]
        new = b - u * np.linalg.solve(one_plus(gram, u), right[..., None])[..., 0]
        step = new - alpha
        dz = np.matmul(gram, new[..., None])[..., 0] + base - z

        def value(t: Any, z: np.ndarray = z, alpha: np.ndarray = alpha, dz: Any = dz, step: Any = step) -> np.ndarray:
            there = z + t * dz
            own = 0.5 * np.sum((alpha + t * step) * (there - base), axis=1)
            return (batch.weight * family.loss(there, batch.y, s2)).sum(axis=1) + own

        t = 1.0 if family.quadratic else _steps(value, done)
        z, alpha = z + t * dz, alpha + t * step
        done |= np.abs(t * dz).max(axis=1) < NEWTON_TOLERANCE
        if family.quadratic or done.all():
            break
    return np.matmul(alpha[:, None, :], VX)[:, 0]


def _steps(value: Callable[[Any], np.ndarray], done: np.ndarray) -> np.ndarray:
    """Return a step length for each agent: 1, halved until the objective does not rise; 0 for agents that are done.

    Agents that are done do not move, so that no model depends on the other agents of the batch.
    """
    here, t = value(0.0), np.where(done, 0.0, 1.0)[:, None]
    for _ in range(12):
        worse = ~(value(t) <= here + 1e-9 * np.abs(here))
        if not worse.any():
            break
        t[worse] *= 0.5
    return t
