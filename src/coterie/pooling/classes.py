"""Probabilities of classes from log-odds.

Log-odds are moderated by their variances. The log-odds of several classes, each learned against the rest, go through
one softmax, since merely normalised probabilities are too cautious. The sharpness of the softmax maximises the
likelihood of left-out rows. For new agents no rows can be left out, and their probabilities are normalised only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._folds import split
from .._laplace import expit, moderated
from .fitted import rank
from .rows import Agents, Grouped, Ranked, Shard
from .sample import left_out
from .span import MAX_GRAM_ROWS
from .sums import total
from .wide import Wide, chosen, ordered, some_of

#: Approximate maximum number of rows from which the sharpness is learned.
MAX_SHARPNESS_ROWS = 10_000
#: Log-likelihood, in nats, that a sharpness other than 1 must gain.
MIN_SHARPNESS_GAIN = 3.0
SHARPNESSES = np.exp(np.linspace(np.log(0.5), np.log(5.0), 47))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities of classes, (rows, classes)."""
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def one_against_rest(log_odds: np.ndarray) -> np.ndarray:
    """Return probabilities of two classes, or normalised ones of several classes scored one against the rest."""
    if log_odds.ndim == 1:
        return np.stack([expit(-log_odds), expit(log_odds)], axis=1)
    return _to_one(expit(log_odds))


def _to_one(scores: np.ndarray) -> np.ndarray:
    return np.asarray(scores / scores.sum(axis=1, keepdims=True))


def probabilities(odds: np.ndarray, sharpness: float, known: np.ndarray) -> np.ndarray:
    """Return probabilities from moderated log-odds, (rows,) or (rows, classes); `known` marks rows of known agents."""
    both = np.stack([-0.5 * odds, 0.5 * odds], axis=1) if odds.ndim == 1 else odds
    out = softmax(sharpness * both)
    if not known.all():
        each = _to_one(softmax(both)) if odds.ndim == 1 else one_against_rest(odds)
        out[~known] = each[~known]
    return out


def targets_of(y: np.ndarray, classes: int = 0) -> list[np.ndarray]:
    """Return the labels of every output: numbers unchanged; for classes, 1 and 0 for each class against the rest.

    Two classes have one output, for the second class.
    """
    if not classes:
        return [y]
    return [(y == k).astype(np.float64) for k in ([1] if classes == 2 else range(classes))]


def sharpness(models: Sequence[Any], agents: Agents | None = None) -> float:
    """Return the factor of moderated log-odds that makes probabilities of known agents' rows most likely.

    ``agents`` gives access to the rows if the models do not have them.
    """
    if isinstance(models[0], Wide):
        losses = _losses(_of_wide(models))
    else:
        # Rows of some agents, the same agents for all models, are left out one at a time.
        first = models[0].grouped
        ranked = Ranked(first.ranked(), first.sizes) if agents is None else rank(agents)
        weight = first.total if agents is None else total(agents, Shard.facts)[2]
        n = len(ranked.order)
        some = ranked.sample(max(50, int(MAX_SHARPNESS_ROWS * n / max(1.0, weight))))
        known = [(model.design, model.population, model.D[some]) for model in models]
        if agents is None:
            losses = _losses(_of_pooled([model.grouped for model in models], some, known))
        else:
            losses = total(agents, _of_shard, some, known)
    best = int(np.argmin(losses[:-1]))
    return float(SHARPNESSES[best]) if losses[best] < losses[-1] - MIN_SHARPNESS_GAIN else 1.0


class _Held(NamedTuple):
    """Held-out rows."""

    parts: list[tuple[np.ndarray, np.ndarray]]  # for each model: moderated log-odds, and labels of its class
    weight: np.ndarray


def _losses(held: _Held) -> np.ndarray:
    """Return the loss of the rows for each candidate sharpness, and for a sharpness of 1."""
    logits, truth = (np.stack(parts, axis=1) for parts in zip(*held.parts, strict=True))
    if len(held.parts) == 1:
        logits, truth = np.hstack([-0.5 * logits, 0.5 * logits]), np.hstack([1.0 - truth, truth])
    picked = np.arange(len(truth)), truth.argmax(axis=1)
    return np.array(
        [-(held.weight @ np.log(np.maximum(softmax(sharp * logits)[picked], 1e-12))) for sharp in (*SHARPNESSES, 1.0)]
    )


def _of_shard(shard: Shard, agents: np.ndarray, known: list[tuple[Any, Any, np.ndarray]]) -> np.ndarray:
    """Return the losses of the given agents, for the rows held by this shard."""
    place, mine = shard.here(agents)
    own = [(design, population, D[place]) for design, population, D in known]
    return _losses(_of_pooled(shard.tasks, mine, own))


def _of_pooled(tasks: list[Grouped], agents: np.ndarray, known: list[tuple[Any, Any, np.ndarray]]) -> _Held:
    """Return left-out predictions of some agents' rows, for each model's design, population and deviations."""
    parts = []
    for grouped, (design, population, D) in zip(tasks, known, strict=True):
        logits, labels, weights = [np.empty(0)], [np.empty(0)], [np.empty(0)]
        for batch in grouped.batches(design, agents):
            z, s = left_out(batch, population, D[batch.agents])
            real = batch.weight > 0.0
            logits.append(moderated(z, s)[real])
            labels.append(batch.y[real])
            weights.append(batch.weight[real])
        parts.append((np.concatenate(logits), np.concatenate(labels)))
    return _Held(parts, np.concatenate(weights))


def _of_wide(models: Sequence[Wide], folds: int = 3) -> _Held:
    """Return held-out predictions of some rows, in folds: leaving out single rows is too slow for many columns."""
    kept, parts = chosen(models[0].grouped, MAX_GRAM_ROWS), []
    first = some_of(models[0].grouped, kept)
    fold = np.argsort(ordered(first, np.zeros(len(first.y)))) % folds  # independent of agents' names
    for model in models:
        rows = some_of(model.grouped, kept)
        logits = np.empty(len(fold))
        for train, test in split(fold):
            without = model.fitted_to(rows.some(train))
            logits[test] = moderated(*without.latent_of(rows.X[test], rows.codes[test]))
        parts.append((logits, rows.y))
    return _Held(parts, rows.weights)
