"""Deviations smoothed over the edges of a graph: prior precision V^-1 (x) (I + g L) in place of V^-1 (x) I.

L is the Laplacian of the graph, scaled to a mean degree of one. The strength g of the edges is chosen by the loss on
held-out rows of the agents, and is 0 unless a larger one gains more than chance explains. Only deviations change: the
population was learned without edges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .._conjugate import conjugate_gradients
from .._folds import dealt, places, split
from .blocks import AgentBatch, root
from .fitted import Pooled
from .rows import Grouped

#: Candidate strengths of the edges.
STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0)
FOLDS = 5


class EdgeSmoothing(NamedTuple):
    """Strength with which deviations are smoothed over edges, and its gain."""

    strength: float  # g
    gain: float  # reduction of the mean loss of held-out rows, compared with no edges
    error: float  # standard error of the gain over agents


def laplacian(W: Any) -> Any:
    """Return the Laplacian of a sparse symmetric weight matrix, scaled to a mean degree of one."""
    from scipy import sparse

    degree = np.asarray(W.sum(axis=1)).ravel()
    return (sparse.diags_array(degree) - W) / max(float(degree.mean()), 1e-300)


def smooth(models: list[Pooled], weights: Callable[[list[np.ndarray]], Any]) -> tuple[list[Pooled], Any, EdgeSmoothing]:
    """Return models with deviations smoothed as strongly as held-out rows favour; unchanged models if nothing is
    gained.

    There is a model for each output. ``weights`` computes the weights of edges, an (n, n) sparse matrix, from the
    deviations of all outputs. Weights are computed again from the training rows of every fold, so that edges do not
    depend on the rows on which they are tested.
    """
    grouped = models[0].grouped
    fold = row_folds(grouped)
    losses: dict[float, Any] = {strength: np.zeros(grouped.n) for strength in (0.0, *STRENGTHS)}
    for kept, held in split(fold):
        train = [model.grouped.some(kept) for model in models]
        test = [model.grouped.some(held) for model in models]
        D = [mode(model, rows, None, 0.0, model.D) for model, rows in zip(models, train, strict=True)]
        L = laplacian(weights(D))
        for strength in losses:
            for k, model in enumerate(models):
                D[k] = mode(model, train[k], L, strength, D[k])
                losses[strength] += agent_losses(model, test[k], D[k])
    best = min(losses, key=lambda strength: float(losses[strength].sum()))
    gain = losses[0.0] - losses[best]
    error = float(np.sqrt(np.sum((gain - gain.mean()) ** 2))) / len(fold)
    found = EdgeSmoothing(best, float(gain.sum()) / len(fold), error)
    W = weights([model.D for model in models])
    if found.gain <= 2.0 * error:
        return models, W, EdgeSmoothing(0.0, found.gain, error)
    L = laplacian(W)
    return [replace(model, D=mode(model, model.grouped, L, best, model.D)) for model in models], W, found


def row_folds(grouped: Grouped) -> np.ndarray:
    """Return the fold of each row; an agent's rows are spread evenly, independent of row order, units and names."""
    place = places(grouped.codes, grouped.lengths(*grouped.standards()), np.round(np.abs(grouped.y), 9))
    # Multiples of the golden ratio spread agents' first rows over the folds.
    first = np.empty(grouped.n, dtype=np.int64)
    first[grouped.ranked()] = np.floor(np.arange(grouped.n) * 0.6180339887 % 1.0 * FOLDS)
    return dealt(grouped.codes, place, first, FOLDS)


def agent_losses(model: Pooled, grouped: Grouped, D: np.ndarray) -> np.ndarray:
    """Return the sum of the losses of each agent's rows."""
    out = np.zeros(grouped.n)
    for batch in grouped.batches(model.design, np.arange(grouped.n)):
        out[batch.agents] = batch.loss(model.population.w + D[batch.agents], model.family, model.s2)
    return out


def mode(model: Pooled, grouped: Grouped, L: Any, strength: float, D: np.ndarray) -> np.ndarray:
    """Return the deviations of all agents together, by Newton's method with conjugate gradients, starting from D.

    In units of V: with V = U U', d_i = U e_i has the prior precision (I + g L)_ij between e_i and e_j.
    """
    population, family = model.population, model.family
    w, s2, U = population.w, population.s2, root(population.V)
    U = np.diag(U) if U.ndim == 1 else U
    batches: list[AgentBatch] = list(grouped.batches(model.design, np.arange(grouped.n)))
    e = np.linalg.lstsq(U, D.T, rcond=None)[0].T

    def prior(e: np.ndarray) -> np.ndarray:
        return e + strength * (L @ e) if strength else e.copy()

    def value(e: np.ndarray) -> float:
        losses = sum(float(b.loss(w + e[b.agents] @ U.T, family, s2).sum()) for b in batches)
        return losses + 0.5 * float(np.sum(e * prior(e)))

    here = value(e)
    for _ in range(50):
        gradient = prior(e)
        curvatures = []
        for batch in batches:
            T = w + e[batch.agents] @ U.T
            gradient[batch.agents] += batch.gradient(T, family, s2) @ U
            curvatures.append(batch.weight * family.curvature(batch.latent(T), s2))

        def product(step: np.ndarray, curvatures: list[np.ndarray] = curvatures) -> np.ndarray:
            out = prior(step)
            for batch, curvature in zip(batches, curvatures, strict=True):
                z = curvature * batch.latent(step[batch.agents] @ U.T)
                out[batch.agents] += np.matmul(z[:, None, :], batch.X)[:, 0] @ U
            return out

        step, _ = conjugate_gradients(product, -gradient, 1e-8)
        length = 1.0
        while value(e + length * step) > here + 1e-12 * abs(here) and length > 1e-3:
            length *= 0.5
        e = e + length * step
        here = value(e)
        if np.abs(length * step).max() < 1e-8 or (family.quadratic and length == 1.0):
            break
    return e @ U.T
