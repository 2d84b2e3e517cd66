"""Predictor for new agents: the common model, one model of all rows, or a mixture, chosen on held-out agents.

The common model w is determined mostly by differences *inside* agents. Where agents with larger features also have
larger intercepts, one regression over all rows predicts a new agent better, although it fits no agent: the assumption
that deviations are independent of features does not hold. Agents are therefore held out in folds, both models predict
their rows, and new agents get the best mixture; the common model is kept unless the gain is larger than chance.

Leaving out a fold needs no fit: one Newton step without the fold's gradients and Hessians is exact for squared errors,
and close otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._laplace import expit, moderated
from .blocks import times
from .families import MAX_LOG_RATE, NOISY, Family
from .population import INTERCEPT_PRECISION, Learner, Population
from .sample import Sample
from .sums import Sums, total

#: Candidate shares of the one model in the mixture.
SHARES = (0.25, 0.5, 0.75, 1.0)


class LinearModels(NamedTuple):
    """Linear models for comparison, if columns are splines."""

    basis: np.ndarray  # (q, p + 1): linear models as models of the columns, see Design.lines
    units: np.ndarray  # (p + 1, p + 1): models of the linear design in the units of the features
    learned: tuple[Learner, Population] | None = None  # the population in the linear design, if it was learned


class NewAgent(NamedTuple):
    """Predictor for agents that were not in the training rows."""

    w: np.ndarray  # (q,)
    share: float  # of the one model of all rows; 0 for the common model alone
    inflation: float  # factor of the model's variance of a label, if the share is 0
    residual: float  # variance of held-out agents' labels, if the share is not 0; both for numbers only

    def variance(self, A: np.ndarray, population: Population) -> np.ndarray:
        """Return variances of the linear predictors of rows, due to deviations and the common model."""
        spread = np.einsum("ij,ij->i", times(population.V, A) + A @ population.cov, A)
        if not isinstance(population.family, NOISY):
            return (1.0 - self.share) * spread
        noise = population.family.variance(population.s2)
        label = self.inflation * (spread + noise) if self.share == 0.0 else np.full(len(A), self.residual)
        return np.maximum(label - noise, 0.0)


def predictive_loss(family: Family, z: np.ndarray, variance: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return squared errors, or minus log-likelihoods of predictions moderated by their variance."""
    if family.name == "logistic":
        p = np.clip(expit(moderated(z, variance)), 1e-9, 1.0 - 1e-9)
        return -(y * np.log(p) + (1.0 - y) * np.log1p(-p))
    if family.name == "poisson":
        z = np.minimum(z + 0.5 * np.minimum(variance, 2.0), MAX_LOG_RATE)
        return np.exp(z) - y * z
    return (z - y) ** 2


def best_for_new_agents(
    learner: Learner, population: Population, folds: np.ndarray, linear: LinearModels | None = None
) -> NewAgent:
    """Choose the predictor for new agents, on the agents from which the population was learned.

    ``folds`` (n,) holds the fold in which each agent is held out. If columns are splines, linear models are candidates,
    too.
    """
    sums, family, w, s2 = learner.sums, population.family, population.w, population.s2
    count = int(folds.max(initial=-1)) + 1
    if count < 5:
        return NewAgent(w, 0.0, 1.0, s2)
    common = held_out(sums, population, folds, count)
    others = [(1.0, *one_model(sums, folds, count, population))]
    if linear is not None:
        others.append((1.0, *one_model(sums, folds, count, population, linear.basis)))
        if linear.learned is not None:
            models = np.vstack([linear.learned[1].w, held_out(linear.learned[0].sums, linear.learned[1], folds, count)])
            models = models @ linear.units.T @ linear.basis.T
            others.append((0.0, models[0], models[1:]))
    candidates = [(0.0, w, common)]
    for alone, whole, without in others:
        for share in SHARES:
            candidates.append(
                (share * alone, (1.0 - share) * w + share * whole, (1.0 - share) * common + share * without)
            )
    shares, models = [share for share, _, _ in candidates], np.stack([models for _, _, models in candidates])
    parts = zip(*sums.each(_losses, population, folds, shares, models), strict=True)
    loss, size, spread = (np.concatenate(each, axis=-1) for each in parts)  # (candidates, agents); (agents,)
    # For numbers, agents' errors are compared by logarithms: a single agent with large errors must not decide.
    compared = np.log(loss / size + 1e-3 * loss[0].sum() / size.sum() + 1e-300) if family.noisy else loss
    best = int(np.argmin(compared.sum(axis=1)))
    gain = compared[0] - compared[best]
    if gain.sum() <= np.sqrt(np.sum((gain - gain.mean()) ** 2)):  # the gain is below one standard error
        best = 0
    share, model, _ = candidates[best]
    if not isinstance(family, NOISY):
        return NewAgent(model, share, 1.0, s2)
    inflation = float(np.clip(loss[best].sum() / spread.sum(), 0.02, 20.0))
    return NewAgent(model, share, inflation, float(loss[best].sum() / size.sum()))


def _losses(
    sample: Sample, population: Population, folds: np.ndarray, shares: list[float], models: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return losses, numbers of rows and predicted variances, for agents with rows.

    Losses (candidates, agents) are those of the models (candidates, folds, q) that were trained without the agent's
    fold; variances are sums over an agent's labels.
    """
    family, fold = population.family, folds[sample.place]
    noise = family.variance(population.s2) if isinstance(family, NOISY) else 0.0
    losses, sizes, spreads = [np.empty((len(shares), 0))], [np.empty(0)], [np.empty(0)]
    for batch in sample.batches:
        spread = np.einsum("kmq,kmq->km", times(population.V, batch.X) + batch.X @ population.cov, batch.X)
        each = [
            predictive_loss(family, batch.latent(without[fold[batch.agents]]), (1.0 - share) * spread, batch.y)
            for share, without in zip(shares, models, strict=True)
        ]
        losses.append((batch.weight * np.stack(each)).sum(axis=2))
        sizes.append(batch.weight.sum(axis=1))
        spreads.append((batch.weight * (spread + noise)).sum(axis=1))
    return np.concatenate(losses, axis=1), np.concatenate(sizes), np.concatenate(spreads)


def held_out(sums: Sums, population: Population, folds: np.ndarray, count: int) -> np.ndarray:
    """Return the common model without each fold, (count, q)."""
    w, q = population.w, len(population.w)
    C, G = total(sums, _by_fold, population, folds, count)
    S = np.diag(np.append(np.full(q - 1, population.r), INTERCEPT_PRECISION)) + C.sum(axis=0)
    return np.stack([w + np.linalg.solve(S - C[f], G[f]) for f in range(count)])


def _by_fold(sample: Sample, population: Population, folds: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of C_i and of gradients over the agents of each fold."""
    family, w, V, s2, q = population.family, population.w, population.V, population.s2, len(population.w)
    C, G = np.zeros((count, q, q)), np.zeros((count, q))
    for batch in sample.batches:
        T, fold = w + sample.D[batch.agents], folds[sample.place[batch.agents]]
        block, gradient = batch.block(T, family, s2, V), batch.gradient(T, family, s2)
        for f in np.unique(fold):
            G[f] += gradient[fold == f].sum(axis=0)
            C[f] += block.some(fold == f).sum()
    return C, G


def one_model(
    sums: Sums, folds: np.ndarray, count: int, population: Population, basis: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Fit one model to all rows by Newton's method; return it, (q,), and the model without each fold, (count, q).

    With a basis (q, k), the model is a combination of its columns, the last of which is the intercept.
    """
    family, q, s2 = population.family, len(population.w), population.s2
    B = np.eye(q) if basis is None else basis
    k = B.shape[1]
    squares, rows = total(sums, _squares, basis, k)
    size = np.sqrt(squares / rows)
    unit = np.where(size > 0.0, 1.0 / np.maximum(size, 1e-300), 1.0)  # so that one ridge suits all columns
    unit[-1] = 1.0
    B = B * unit
    R = np.append(np.full(k - 1, population.r), INTERCEPT_PRECISION)
    t = np.linalg.lstsq(B, population.w, rcond=None)[0]

    def at(t: np.ndarray, s2: float) -> tuple[float, np.ndarray, np.ndarray, float]:
        loss, H, g, residual = total(sums, _one_model_at, basis, unit, t, family, s2, folds, count)
        return loss + 0.5 * float(R @ (t * t)), H, g, residual

    here, H, g, _ = at(t, s2)
    for attempt in range(30):
        step = np.linalg.solve(np.diag(R) + H.sum(axis=0), -(g.sum(axis=0) + R * t))
        if np.abs(step).max() < 1e-8 and attempt > 1:
            break
        length = 1.0
        there = at(t + step, s2)
        while there[0] > here + 1e-9 * abs(here) and length > 1e-3:
            length *= 0.5
            there = at(t + length * step, s2)
        t = t + length * step
        if family.noisy and attempt == 0:  # all its residuals are noise, so that its ridge is stronger
            s2 = max(float(there[3] / rows), population.s2)
            there = at(t, s2)
        here, H, g, _ = there
    whole = np.diag(R) + H.sum(axis=0)
    without = np.stack([t + np.linalg.solve(whole - H[f], g[f]) for f in range(count)])
    return B @ t, without @ B.T


def _squares(sample: Sample, basis: np.ndarray | None, k: int) -> tuple[np.ndarray, float]:
    """Return the sums of squares of combined columns, (k,), over all rows, and the number of rows."""
    squares, rows = np.zeros(k), 0.0
    for batch, X in zip(sample.batches, sample.combined(basis, np.ones(k)), strict=True):
        squares += np.einsum("kmq,km->q", X**2, batch.weight)
        rows += float(batch.weight.sum())
    return squares, rows


def _one_model_at(
    sample: Sample,
    basis: np.ndarray | None,
    unit: np.ndarray,
    t: np.ndarray,
    family: Family,
    s2: float,
    folds: np.ndarray,
    count: int,
) -> tuple[float, np.ndarray, np.ndarray, float]:
    """Return the loss, each fold's Hessian and gradient, and the squared residuals of one model t of all rows."""
    k = len(t)
    H, g, loss, residual = np.zeros((count, k, k)), np.zeros((count, k)), 0.0, 0.0
    for batch, X in zip(sample.batches, sample.combined(basis, unit), strict=True):
        z, fold = X @ t, folds[sample.place[batch.agents]]
        loss += float((batch.weight * family.loss(z, batch.y, s2)).sum())
        residual += float((batch.weight * (z - batch.y) ** 2).sum())
        slope = batch.weight * family.slope(z, batch.y, s2)
        root = np.sqrt(batch.weight * family.curvature(z, s2))
        for f in np.unique(fold):
            mine = fold == f
            scaled = (X[mine] * root[mine][..., None]).reshape(-1, k)
            H[f] += scaled.T @ scaled
            g[f] += slope[mine].ravel() @ X[mine].reshape(-1, k)
    return loss, H, g, residual
