"""Agents never met: from the common model, or from one model of all rows, whichever predicts held-out agents better.

The common model w weighs what happens *inside* agents. Where agents with larger features also have larger intercepts,
one regression over all rows predicts a new agent better, although it fits nobody: the model's assumption that deviations
have nothing to do with features does not hold. So agents are left out in folds, both predict their rows, and strangers
get the mixture that did best; the common model, unless another is better beyond chance.

Leaving out a fold needs no fit: one Newton step without its gradients and Hessians is exact for squared errors, and close
otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .blocks import Batch, times
from .families import LARGEST, Family, expit
from .population import FLAT, Population

FOLDS = 10
#: Shares of the one model that are tried.
SHARES = np.linspace(0.0, 1.0, 5)


class Stranger(NamedTuple):
    """How an agent never met is predicted."""

    w: np.ndarray  # (q,)
    share: float  # of the one model of all rows; 0: the common model alone
    inflation: float  # of the variance of a label, as held-out agents had it

    def variance(self, A: np.ndarray, population: Population) -> np.ndarray:
        """Of the linear predictors of rows: what deviations and the common model leave open."""
        spread = np.einsum("ij,ij->i", times(population.V, A) + A @ population.cov, A)
        if not population.family.noisy:
            return (1.0 - self.share) * spread
        return np.maximum(self.inflation * (spread + population.s2) - population.s2, 0.0)


def predictive_loss(family: Family, z: np.ndarray, variance: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Squared errors, or minus log-likelihoods of predictions that are moderated by their variance."""
    if family.name == "logistic":
        p = np.clip(expit(z / np.sqrt(1.0 + np.pi / 8.0 * variance)), 1e-9, 1.0 - 1e-9)
        return -(y * np.log(p) + (1.0 - y) * np.log1p(-p))
    if family.name == "poisson":
        z = np.minimum(z + 0.5 * np.minimum(variance, 2.0), LARGEST)
        return np.exp(z) - y * z
    return (z - y) ** 2


def choose(batches: list[Batch], folds: np.ndarray, population: Population, D: np.ndarray) -> Stranger:
    """How strangers are predicted best, from the rows of the agents that the population was learned from.

    Parameters
    ----------
    batches : list of Batch
    folds : (n,) int array
        The fold in which an agent is held out.
    population : Population
    D : (n, q) array
        Deviations.
    """
    family, w, V, s2, q = population.family, population.w, population.V, population.s2, len(population.w)
    R = np.append(np.full(q - 1, population.r), FLAT)
    plain = Stranger(w, 0.0, 1.0)
    count = int(folds.max(initial=-1)) + 1
    if count < 5:
        return plain
    single, H1, g1 = one_model(batches, folds, count, population)
    C, G = np.zeros((count, q, q)), np.zeros((count, q))
    for batch in batches:
        T = w + D[batch.agents]
        block, gradient = batch.block(T, family, s2, V), batch.gradient(T, family, s2)
        fold = folds[batch.agents]
        for f in np.unique(fold):
            G[f] += gradient[fold == f].sum(axis=0)
            C[f] += block.some(fold == f).sum()
    S = np.diag(R) + C.sum(axis=0)
    common = np.stack([w + np.linalg.solve(S - C[f], G[f]) for f in range(count)])
    total = np.diag(R) + H1.sum(axis=0)
    other = np.stack([single + np.linalg.solve(total - H1[f], g1[f]) for f in range(count)])
    losses, weights, spreads = [], [], []
    for batch in batches:
        fold = folds[batch.agents]
        z0, z1 = batch.latent(common[fold]), batch.latent(other[fold])
        spread = np.einsum("kmq,kmq->km", times(V, batch.X) + batch.X @ population.cov, batch.X)
        each = [
            predictive_loss(family, (1.0 - share) * z0 + share * z1, (1.0 - share) * spread, batch.y)
            for share in SHARES
        ]
        losses.append((batch.weight * np.stack(each)).sum(axis=2))
        weights.append(batch.weight.sum(axis=1))
        spreads.append((batch.weight * (spread + s2)).sum(axis=1))
    loss = np.concatenate(losses, axis=1)  # (shares, agents)
    best = int(np.argmin(loss.sum(axis=1)))
    gain = loss[0] - loss[best]
    if gain.sum() <= 2.0 * np.sqrt(np.sum((gain - gain.mean()) ** 2)):
        best = 0
    inflation = 1.0
    if family.noisy:
        inflation = float(np.clip(loss[best].sum() / np.concatenate(spreads).sum(), 0.5, 10.0))
    share = float(SHARES[best])
    return Stranger((1.0 - share) * w + share * single, share, inflation)


def one_model(
    batches: list[Batch], folds: np.ndarray, count: int, population: Population
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One model of all rows by Newton's method, with Hessians and gradients of the folds there."""
    family, q, s2 = population.family, len(population.w), population.s2
    R = np.append(np.full(q - 1, population.r), FLAT)
    t = population.w.copy()

    def value(t: np.ndarray) -> float:
        z = sum(float((b.weight * family.loss(b.X @ t, b.y, s2)).sum()) for b in batches)
        return z + 0.5 * float(R @ (t * t))

    here = value(t)
    for _ in range(30):
        H, g = np.zeros((count, q, q)), np.zeros((count, q))
        for batch in batches:
            z, fold = batch.X @ t, folds[batch.agents]
            slope = batch.weight * family.slope(z, batch.y, s2)
            root = np.sqrt(batch.weight * family.curvature(z, s2))
            for f in np.unique(fold):
                mine = fold == f
                scaled = (batch.X[mine] * root[mine][..., None]).reshape(-1, q)
                H[f] += scaled.T @ scaled
                g[f] += slope[mine].ravel() @ batch.X[mine].reshape(-1, q)
        step = np.linalg.solve(np.diag(R) + H.sum(axis=0), -(g.sum(axis=0) + R * t))
        if np.abs(step).max() < 1e-8:
            break
        length = 1.0
        while value(t + length * step) > here + 1e-9 * abs(here) and length > 1e-3:
            length *= 0.5
        t = t + length * step
        here = value(t)
    return t, H, g
