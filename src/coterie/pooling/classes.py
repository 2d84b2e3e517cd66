"""From log-odds to probabilities of classes.

Log-odds are moderated by their variances. Those of several classes, each learned against the rest, go through one
softmax: made to sum up to one by themselves, their probabilities are too cautious. How sharp they are is what gives
rows left out the largest likelihood; for agents never met, nobody can tell, and the cautious form stays.
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
from .span import GRAM
from .sums import total
from .wide import Wide, chosen, ordered, some_of

#: Rows that the temperature is learned from, at most, about.
ROWS = 10_000
#: Nats that a sharpness other than 1 must gain.
GAIN = 3.0
SHARPNESS = np.exp(np.linspace(np.log(0.5), np.log(5.0), 47))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of classes, (rows, classes)."""
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def one_against_rest(log_odds: np.ndarray) -> np.ndarray:
    """Probabilities of two classes, or of several that are scored one against the rest, made to sum up to one."""
    if log_odds.ndim == 1:
        return np.stack([expit(-log_odds), expit(log_odds)], axis=1)
    return _to_one(expit(log_odds))


def _to_one(scores: np.ndarray) -> np.ndarray:
    return np.asarray(scores / scores.sum(axis=1, keepdims=True))


def probabilities(odds: np.ndarray, sharpness: float, known: np.ndarray) -> np.ndarray:
    """Of moderated log-odds, (rows,) or (rows, classes); `known` says which rows are of agents that were met."""
    both = np.stack([-0.5 * odds, 0.5 * odds], axis=1) if odds.ndim == 1 else odds
    out = softmax(sharpness * both)
    if not known.all():
        each = _to_one(softmax(both)) if odds.ndim == 1 else one_against_rest(odds)
        out[~known] = each[~known]
    return out


def targets_of(y: np.ndarray, classes: int = 0) -> list[np.ndarray]:
    """Labels of every output: numbers themselves; of numbers of classes, whether a row is of the second of two, else of
    each of them.
    """
    if not classes:
        return [y]
    return [(y == k).astype(np.float64) for k in ([1] if classes == 2 else range(classes))]


def sharpness(models: Sequence[Any], agents: Agents | None = None) -> float:
    """By how much moderated log-odds are to be multiplied before they become probabilities of known agents' rows.

    ``agents`` is where the rows of the models are, if not with them.
    """
    if isinstance(models[0], Wide):
        losses = _losses(_of_wide(models))
    else:
        # Rows of some agents, the same for all models, left out one at a time.
        first = models[0].grouped
        ranked = Ranked(first.ranked(), first.sizes) if agents is None else rank(agents)
        weight = first.total if agents is None else total(agents, Shard.facts)[2]
        n = len(ranked.order)
        some = ranked.sample(max(50, int(ROWS * n / max(1.0, weight))))
        known = [(model.design, model.population, model.D[some]) for model in models]
        if agents is None:
            losses = _losses(_of_pooled([model.grouped for model in models], some, known))
        else:
            losses = total(agents, _of_shard, some, known)
    best = int(np.argmin(losses[:-1]))
    return float(SHARPNESS[best]) if losses[best] < losses[-1] - GAIN else 1.0


class _Held(NamedTuple):
    """Rows that were held out."""

    parts: list[tuple[np.ndarray, np.ndarray]]  # of each model: moderated log-odds, and whether they are of the class
    weight: np.ndarray


def _losses(held: _Held) -> np.ndarray:
    """Of the rows, for each sharpness that is tried, and for none."""
    logits, truth = (np.stack(parts, axis=1) for parts in zip(*held.parts, strict=True))
    if len(held.parts) == 1:
        logits, truth = np.hstack([-0.5 * logits, 0.5 * logits]), np.hstack([1.0 - truth, truth])
    picked = np.arange(len(truth)), truth.argmax(axis=1)
    return np.array(
        [-(held.weight @ np.log(np.maximum(softmax(sharp * logits)[picked], 1e-12))) for sharp in (*SHARPNESS, 1.0)]
    )


def _of_shard(shard: Shard, agents: np.ndarray, known: list[tuple[Any, Any, np.ndarray]]) -> np.ndarray:
    """Losses of those of some agents whose rows are here."""
    place, mine = shard.here(agents)
    own = [(design, population, D[place]) for design, population, D in known]
    return _losses(_of_pooled(shard.tasks, mine, own))


def _of_pooled(tasks: list[Grouped], agents: np.ndarray, known: list[tuple[Any, Any, np.ndarray]]) -> _Held:
    """Rows of some agents, of each model: by its design, its population, and their deviations."""
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
    """The same of some rows, in folds: there are too many columns to leave out one row at a time."""
    kept, parts = chosen(models[0].grouped, GRAM), []
    first = some_of(models[0].grouped, kept)
    fold = np.argsort(ordered(first, np.zeros(len(first.y)))) % folds  # whatever agents are called
    for model in models:
        rows = some_of(model.grouped, kept)
        logits = np.empty(len(fold))
        for train, test in split(fold):
            without = model.fitted_to(rows.some(train))
            logits[test] = moderated(*without.latent_of(rows.X[test], rows.codes[test]))
        parts.append((logits, rows.y))
    return _Held(parts, rows.weights)
