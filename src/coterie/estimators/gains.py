"""Errors on held-out rows of agents alone, of one model for all agents, and of agents that learn together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from .. import graphs, pooling
from .._folds import split
from .._laplace import expit, moderated
from ..data.table import labels_of
from ..errors import DataError
from ..evaluation import gain
from ..pooling.blocks import AgentBatch, InRows, batches, one_plus, padded, times
from ..pooling.designs import PLAIN, Design
from ..pooling.designs import Linear as Lines
from ..pooling.families import FAMILIES, MAX_LOG_RATE
from ..pooling.population import Population
from ..pooling.posterior import posterior
from ..pooling.rows import Grouped, dense
from .collaborative import CollaborativeClassifier, CollaborativeRegressor
from .tuning import folds as deal

#: Maximum numbers of agents and rows in the sample on which gains are measured.
MAX_SAMPLE_AGENTS, MAX_SAMPLE_ROWS = 300, 20_000
#: Maximum numbers of agents and rows in the sample for boosted and relationship estimators, which take longer.
MAX_SLOW_SAMPLE_AGENTS, MAX_SLOW_SAMPLE_ROWS = 60, 3_000
#: Grid of variances of the slopes of a regression alone: in units of the noise for numbers, absolute otherwise.
SLOPE_VARIANCES = {"squared": np.logspace(-2.0, 3.0, 11), "logistic": np.logspace(-3.0, 1.5, 10)}
SLOPE_VARIANCES["poisson"] = SLOPE_VARIANCES["logistic"]
#: Variance of the intercept of a regression alone: about as strong as half a row of each class, or half a count.
INTERCEPT_VARIANCE = {"logistic": 6.25, "poisson": 25.0}


def objects(values: Sequence[Any]) -> np.ndarray:
    """Return an array of any values, including tuples."""
    return np.fromiter(values, dtype=object, count=len(values))


# -- rows -------------------------------------------------------------------------------------------------------------


def given_rows(model: Any, X: Any, y: Any, agents: Any) -> tuple[Grouped, np.ndarray]:
    """Return the given rows as the model encodes them, grouped by agent, and the index of each among those given."""
    X, y, agents = model._labelled(X, y, agents)
    table = model._rows(X, agents)
    if len(table.codes) and table.codes.min() < 0:
        raise DataError(f"row {int(np.argmin(table.codes))} belongs to an agent that was not in the training rows")
    labels = model._encode_more(labels_of(y, len(table.codes), table.codes, model.agents_))
    rows = Grouped.of(table.X, labels, table.codes, len(model.agents_), None)
    return rows, np.argsort(table.codes, kind="stable")


# -- gains ------------------------------------------------------------------------------------------------------------


def gains(model: Any, rows: Grouped, folds: int, seed: int, notes: list[str]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the errors of every agent on its own held-out rows, and a summary over all agents."""
    if len(model.agents_) == 1:
        raise DataError("there is only one agent: gains need two or more; pass each row's agent to fit as agents=")
    classifies, said = model._kind == "classifier", list[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit has given these warnings already
        part = _sampled(model, rows, seed, said)
        fold = deal(part.codes, folds, seed, part.y if classifies else None)
        single = int(np.sum(np.bincount(part.codes) == 1))
        if single:
            lonely = "1 agent" if single == 1 else f"{single} agents"
            said.append(f"{lonely} with one row, which is always used for training: their gain is not known")
        if not np.any(fold >= 0):
            raise DataError("no agent has two rows: gains need a row to train on and a row to test on")
        notes += said
        measure, shape = _measure(model), (len(part.y), len(model.classes_)) if classifies else (len(part.y),)
        found = {name: np.full(shape, np.nan) for name in ("alone", "one_model", "together")}
        for kept, held in split(fold):
            train, test = part.some(kept), part.some(held)
            together = _anew(model, train, {})
            found["together"][held] = _predicted(model, together, test.X, test.codes)
            found["one_model"][held] = _predicted(model, _one_model(model, train), test.X, None)
            if model._models.inputs.are_columns:
                found["alone"][held] = alone(model, together, train, test)
            else:
                found["alone"][held] = _predicted(model, _anew(model, train, model._alone()), test.X, test.codes)
    tested = fold >= 0
    codes, weight = part.codes[tested], part.weights[tested]
    who = np.unique(part.codes)
    sizes, total = np.bincount(part.codes)[who], np.bincount(codes, weight, len(model.agents_))[who]
    table = pd.DataFrame({"agent": objects([model.agents_[k] for k in who]), "rows": sizes})
    for name, predicted in found.items():
        each = _losses(measure, part.y[tested], predicted[tested])
        mean = np.bincount(codes, weight * each, len(model.agents_))[who] / np.where(total > 0.0, total, np.nan)
        table[name] = np.sqrt(mean) if measure == "rmse" else mean
    errors = {name: float(table[name].mean()) for name in found}
    against = {}
    for name in ("alone", "one_model"):
        table[f"gain_{name}"] = table[name] - table["together"]
        against[name] = gain(table[f"gain_{name}"].to_numpy(), errors[name])
    return table, {"measure": measure, "folds": int(folds), "errors": errors, "gains": against}


def compared(model: Any, X: Any, y: Any, agents: Any) -> dict[str, dict[str, float]]:
    """Return score and error of agents alone, of one model for all, and of a pooled model, on new rows.

    The score is accuracy or R^2, and the error is the measure of :func:`gains`, over all rows. Every agent of these
    rows must have had rows in the fit.
    """
    train, (test, order) = model._models.rows(), given_rows(model, X, y, agents)
    if train is None:
        raise DataError("the model does not have its training rows: compare before saving, or fit again")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit has given these warnings already
        predicted = {
            "alone": alone(model, model, train, test),
            "one model": _predicted(model, _one_model(model, train), test.X, None),
            "together": _predicted(model, model, X, agents)[order],
        }
    measure, found = _measure(model), {}
    spread = float(np.sum((test.y - test.y.mean()) ** 2)) or 1.0
    for name, values in predicted.items():
        error = float(np.mean(_losses(measure, test.y, values)))
        if model._kind == "classifier":
            score = float(np.mean(values.argmax(axis=1) == test.y))
        else:
            score = 1.0 - float(np.sum((values - test.y) ** 2)) / spread
        found[name] = {"score": score, "error": math.sqrt(error) if measure == "rmse" else error}
    return found


def _sampled(model: Any, rows: Grouped, seed: int, notes: list[str]) -> Grouped:
    """Return all rows, or the rows of a sample of agents."""
    agents, most = (
        (MAX_SLOW_SAMPLE_AGENTS, MAX_SLOW_SAMPLE_ROWS) if model._takes_long else (MAX_SAMPLE_AGENTS, MAX_SAMPLE_ROWS)
    )
    sizes = np.bincount(rows.codes)
    who = np.flatnonzero(sizes)
    if len(who) <= agents and len(rows.y) <= most:
        return rows
    order = np.random.default_rng(seed).permutation(who)
    some = order[: max(10, min(agents, int(np.searchsorted(np.cumsum(sizes[order]), most, side="right"))))]
    notes.append(
        f"gains are measured on a sample of {len(some)} of {len(who)} agents, which learn among themselves: with "
        "all agents, together is rather better"
    )
    return rows.some(np.isin(rows.codes, some))


def _anew(model: Any, train: Grouped, changes: dict[str, Any]) -> Any:
    """Fit a new estimator with the model's parameters, except for `changes`, to the rows of a fold."""
    weight = {} if train.weight is None else {"sample_weight": train.weight}
    fresh = type(model)(**_settings(model, train) | changes)
    return fresh.fit(train.X, _named(model, train.y), agents=train.codes, **weight)


def _settings(model: Any, train: Grouped) -> dict[str, Any]:
    """Return the parameters for the agents of these rows, whose ids are their numbers."""
    settings = model.get_params(deep=False)
    if "members" in settings:
        settings["members"] = None
    graph = settings.get("graph")
    if not (graph is None or isinstance(graph, str) or hasattr(graph, "lam")):
        settings["members"] = range(len(model.agents_))  # a given graph has all agents
        if hasattr(graph, "nodes"):
            settings["graph"] = graphs.from_networkx(graph, members=model.agents_)
    if settings.get("covariance") is not None:
        from ..multitask.covariance import checked_covariance

        sub = checked_covariance(settings["covariance"], model.agents_).take(np.unique(train.codes))
        Q, s, c = sub.scaled(1.0 / float(sub.diagonal().sum())).factors
        settings["covariance"] = (Q, s, c)
    if not model._models.parts and "engine" in settings:
        settings["engine"] = None  # the rows are in this process
    return settings


def _one_model(model: Any, train: Grouped) -> Any:
    """Fit one model to all rows: a regression whose strength is learned, or an estimator of the model's own type."""
    labels = _named(model, train.y)
    if model._models.inputs.are_columns:
        settings = {"design": model.design, "loss": model.loss} if model._models.parts else {"design": PLAIN}
        kind = CollaborativeClassifier if model._kind == "classifier" else CollaborativeRegressor
        deviations = "scalar" if train.X.shape[1] <= pooling.MAX_DENSE_COLUMNS else "auto"
        return kind(deviations=deviations, **settings).fit(train.X, labels, sample_weight=train.weight)
    settings = model.get_params(deep=False)
    changes: dict[str, Any] = {"graph": "learn", "members": None, "confidence": None, "covariance": None}
    changes |= {"engine": None}
    return type(model)(**settings | {name: changes[name] for name in settings if name in changes}).fit(train.X, labels)


def _named(model: Any, y: np.ndarray) -> np.ndarray:
    return model.classes_[y] if model._kind == "classifier" else y


def _measure(model: Any) -> str:
    if model._kind == "regressor":
        return "deviance" if any(part.family.name == "poisson" for part in model._models.parts) else "rmse"
    return "log_loss" if model._has_probabilities else "wrong"


def _predicted(model: Any, found: Any, X: Any, agents: Any) -> np.ndarray:
    """Return predicted numbers, or probabilities of classes; without probabilities, 1 for the predicted class and 0."""
    if model._kind == "regressor":
        return np.asarray(found.predict(X, agents))
    out = np.zeros((X.shape[0], len(model.classes_)))
    place = np.searchsorted(model.classes_, found.classes_)  # a rare class may be missing in a fold
    if found._has_probabilities:
        out[:, place] = found.predict_proba(X, agents)
    else:
        out[np.arange(len(out)), np.searchsorted(model.classes_, found.predict(X, agents))] = 1.0
    return out


def _losses(measure: str, y: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return the error of every row."""
    if measure == "rmse":
        return (predicted - y) ** 2
    if measure == "deviance":
        rate = np.maximum(predicted, 1e-9)
        return np.asarray(2.0 * (special.xlogy(y, y / rate) - y + rate))
    if measure == "wrong":
        return (predicted.argmax(axis=1) != y).astype(float)
    return -np.log(np.clip(predicted[np.arange(len(y)), y], 1e-9, 1.0))


# -- each agent alone -------------------------------------------------------------------------------------------------


def alone(model: Any, together: Any, train: Grouped, test: Grouped) -> np.ndarray:
    """Return the predictions of regressions, each of which is fitted to the rows of one agent.

    Predictions are averaged over a grid of strengths, weighted by their evidence, which is fairer to agents with few
    rows than choosing one strength. Where the model chose curves, an agent alone may choose between linear models and
    curves. Columns are scaled, and knots placed, by all rows.
    """
    who, parts = np.flatnonzero(train.sizes), together._models.parts
    train, test = train.only(who), test.only(who)
    made: list[Design] = [Lines.of(train.X, train.weight)]
    if parts and parts[0].design_name != PLAIN:
        made.append(parts[0].design)
    if model._kind == "classifier":
        number = len(model.classes_)
        chosen = [1] if number == 2 else range(number)
        found = [_averaged(train._replace(y=(train.y == k).astype(float)), test, made, "logistic") for k in chosen]
        if number == 2:
            return np.stack([1.0 - found[0], found[0]], axis=1)
        scores = np.stack(found, axis=1)
        # Normalised scores are too cautious for many rows, and a softmax is too confident for few: return the mean.
        cautious = scores / scores.sum(axis=1, keepdims=True)
        return 0.5 * (cautious + special.softmax(np.log(scores) - np.log1p(-scores), axis=1))
    family = parts[0].family.name if parts else "squared"
    if family == "student":
        return _each_student(train, test, made[-1].name)
    return _averaged(train, test, made, family)


def _averaged(train: Grouped, test: Grouped, made: list[Design], family: str) -> np.ndarray:
    """Return predictions averaged over designs and strengths, weighted by the evidence of each agent's own rows."""
    candidates = _ridges if family == "squared" else _classes_or_counts
    found = [candidates(train, test, design, family) for design in made]
    predicted = np.concatenate([part[0] for part in found])  # (candidates, rows)
    evidence = np.concatenate([part[1] for part in found])  # (candidates, agents)
    return np.asarray(np.sum(special.softmax(evidence, axis=0)[:, test.codes] * predicted, axis=0))


def alone_models(part: Any, rows: Grouped, n: int) -> np.ndarray:
    """Return models of agents alone, (n, q), in the columns of :attr:`Pooled.design`; NaN for agents without rows.

    Models are in units of the label (log-odds, logarithms of counts), averaged over strengths weighted by their
    evidence.
    """
    who = np.flatnonzero(rows.sizes)
    rows = rows.only(who)
    family = "squared" if part.family.noisy else part.family.name
    candidates = _ridges if family == "squared" else _classes_or_counts
    _, evidence, models = candidates(rows, rows, part.design, family)
    out = np.full((n, part.design.size), np.nan)
    out[who] = np.einsum("gn,gnq->nq", special.softmax(evidence, axis=0), models)
    return out


def _ridges(train: Grouped, test: Grouped, design: Design, family: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ridge regressions of numbers: predictions, evidence (noise integrated out) and models; intercepts are
    free.
    """
    begin, tested, precision = train.start, test.start, 1.0 / SLOPE_VARIANCES[family][:, None]
    predicted, evidence = np.zeros((len(precision), len(test.y))), np.zeros((len(precision), len(begin) - 1))
    models, weights = np.zeros((*evidence.shape, design.size)), train.weights
    for i in np.unique(test.codes):
        own, asked = slice(begin[i], begin[i + 1]), slice(tested[i], tested[i + 1])
        A, B = (design.columns(dense(rows.X[part]))[:, :-1] for rows, part in ((train, own), (test, asked)))
        weight = weights[own] if weights[own].sum() > 0.0 else np.ones(own.stop - own.start)
        mean, middle = np.average(A, axis=0, weights=weight), np.average(train.y[own], weights=weight)
        half, y = np.sqrt(weight), train.y[own] - middle
        U, S, right = np.linalg.svd(half[:, None] * (A - mean), full_matrices=False)
        keep = np.greater(S, 1e-9 * max(S.max(initial=0.0), 1e-300))
        S, right, along = S[keep], right[keep], U[:, keep].T @ (half * y)
        squares = float(weight @ y**2)
        left = squares - np.sum(along**2 * (S**2 / (S**2 + precision)), axis=1)
        left = np.log(np.maximum(left, 1e-9 * squares) + 1e-300)
        evidence[:, i] = -0.5 * np.sum(np.log1p(S**2 / precision), axis=1) - 0.5 * (weight.sum() - 1.0) * left
        slopes = (along * S / (S**2 + precision)) @ right
        models[:, i] = np.column_stack([slopes, middle - slopes @ mean])
        predicted[:, asked] = middle + slopes @ (B - mean).T
    return predicted, evidence, models


def _classes_or_counts(
    train: Grouped, test: Grouped, design: Design, family: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return penalised regressions of classes or counts with Laplace's evidence, for batches of agents.

    The intercept has a broad prior, so that an agent with rows of one class, or no counts, still predicts others.
    """
    kind, q, begin, tested = FAMILIES[family], design.size, train.start, test.start
    grid, n = SLOPE_VARIANCES[family], len(begin) - 1
    predicted, evidence, models = (
        np.zeros((len(grid), len(test.y))),
        np.zeros((len(grid), n)),
        np.zeros((len(grid), n, q)),
    )
    sizes, asked, weights = np.diff(begin), np.diff(tested), train.weights
    for k, width in batches(sizes, q):
        rows, real = padded(begin[k], sizes[k], width)
        X = design.columns(dense(train.X[rows.ravel()])).reshape(*rows.shape, q)
        batch = AgentBatch(np.arange(len(k)), X, train.y[rows], np.where(real, weights[rows], 0.0))
        most = int(asked[k].max())
        if not most:
            continue
        to, there = padded(np.minimum(tested[k], len(test.y) - 1), asked[k], most)
        Z = design.columns(dense(test.X[to.ravel()])).reshape(*to.shape, q)
        for g, v in enumerate(grid):
            V = np.append(np.full(q - 1, v), INTERCEPT_VARIANCE[family])
            prior = Population(kind, np.zeros(q), V, 1.0, 1.0, np.zeros((q, q)), 0.0, np.zeros(q), 0)
            models[g, k] = D = posterior(batch, prior)
            block = batch.block(D, kind, 1.0, V)
            inner = one_plus(block.gram, block.u) if isinstance(block, InRows) else block.Q
            log = -batch.loss(D, kind, 1.0) - 0.5 * np.sum(D * D / V, axis=1)
            evidence[g, k] = log - 0.5 * np.linalg.slogdet(inner)[1]
            VZ, z = times(V, Z), np.einsum("kmq,kq->km", Z, D)
            variance = np.maximum(np.einsum("kmq,kmq->km", VZ, Z - block.rows(VZ)), 0.0)
            if family == "logistic":
                out = expit(moderated(z, variance))
            else:  # limit predicted counts to about twice the largest count seen
                largest = 2.0 * np.where(real, batch.y, 0.0).max(axis=1, keepdims=True) + 1.0
                out = np.minimum(np.exp(np.minimum(z + 0.5 * np.minimum(variance, 2.0), MAX_LOG_RATE)), largest)
            predicted[g, to[there]] = out[there]
    return predicted, evidence, models


def _each_student(train: Grouped, test: Grouped, design: str) -> np.ndarray:
    """Return regressions with heavy-tailed noise, one agent after the other."""
    out = np.zeros(len(test.y))
    for i in np.unique(test.codes):
        own, asked = train.some(train.codes == i), test.codes == i
        if np.ptp(own.y) == 0.0:
            out[asked] = own.y[0]
            continue
        zeros = np.zeros(len(own.y), dtype=np.int64)
        choice = design if design == PLAIN else "auto"
        model = pooling.fit(own.X, [own.y], zeros, 1, "student", choice, "scalar", own.weight)[0]
        out[asked] = model.latent(test.X[asked], zeros[:1].repeat(asked.sum()), False)[0] * model.scale + model.center
    return out
