"""What agents gain by learning together: errors on held-out rows, alone, with one model for all, and together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from .. import graphs, pooling
from .._folds import split
from .._laplace import expit, moderated
from ..data.table import labels_of, more_labelled
from ..errors import DataError
from ..evaluation import gain
from ..pooling.blocks import Batch, InRows, batches, one_plus, padded, times
from ..pooling.classes import softmax
from ..pooling.designs import PLAIN, Design
from ..pooling.designs import Linear as Lines
from ..pooling.families import FAMILIES, LARGEST
from ..pooling.population import Population
from ..pooling.posterior import posterior
from ..pooling.wide import Wide, dense
from .collaborative import CollaborativeClassifier, CollaborativeRegressor, Linear
from .tuning import folds as deal

#: Agents and rows that gains are measured with, at most.
AGENTS, ROWS = 300, 20_000
#: The same of boosted and relationship estimators, which take many times as long.
SLOW_AGENTS, SLOW_ROWS = 60, 3_000
#: Strengths of a regression alone: variances of its slopes, in units of the noise for numbers, else as they are.
STRENGTHS = {"squared": np.logspace(-2.0, 3.0, 11), "logistic": np.logspace(-3.0, 1.5, 10)}
STRENGTHS["poisson"] = STRENGTHS["logistic"]
#: Variance of the intercept of a regression alone: about as one half of a row of each class, or half a count, more.
INTERCEPT = {"logistic": 6.25, "poisson": 25.0}


class Rows(NamedTuple):
    """Encoded rows, those of one agent side by side."""

    X: Any
    y: np.ndarray  # numbers, or numbers of classes
    codes: np.ndarray  # ascending
    weight: np.ndarray | None

    def some(self, which: np.ndarray) -> Rows:
        """Some of the rows."""
        weight = None if self.weight is None else self.weight[which]
        return Rows(self.X[which], self.y[which], self.codes[which], weight)

    @property
    def weights(self) -> np.ndarray:
        """One for each row."""
        return np.ones(len(self.y)) if self.weight is None else self.weight


def objects(values: Sequence[Any]) -> np.ndarray:
    """An array of any values, tuples, too."""
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


# -- rows -------------------------------------------------------------------------------------------------------------


def pools(model: Any) -> bool:
    """Whether it has a population: models by ``method="pooling"`` have."""
    return isinstance(getattr(model, "_models", None), list)


def is_linear(model: Any) -> bool:
    """Whether models without a population are linear in the columns: not boosted, and without a feature map."""
    return not hasattr(model, "base_") and getattr(model, "features_", None) is None


def kept_rows(model: Any) -> Rows | None:
    """The rows that a model was fitted with, if it has them."""
    if not pools(model):
        found = model._kept_rows()
        return None if found is None else by_agent(*found)
    first = model._models[0]
    if isinstance(first, Wide):
        X = first.grouped.X
        X = X * first.spread + first.mean if isinstance(X, np.ndarray) else X * first.spread[0]
    elif first.kept is None:
        X = first.grouped.X
    else:
        return None
    codes, labels, weight = first.grouped.codes, [part.grouped.y for part in model._models], first.grouped.weight
    weight = None if weight is None or np.all(weight == 1.0) else weight
    if len(labels) > 1:
        return Rows(X, np.argmax(np.stack(labels), axis=0), codes, weight)
    y = labels[0] * first.scale + first.center
    return Rows(X, y.astype(np.int64) if model._kind == "classifier" else y, codes, weight)


def by_agent(X: Any, y: np.ndarray, codes: np.ndarray) -> Rows:
    """Rows in any order, put side by side."""
    order = np.argsort(codes, kind="stable")
    return Rows(X[order], y[order], codes[order], None)


def given_rows(model: Any, X: Any, y: Any, agents: Any) -> tuple[Rows, np.ndarray]:
    """Rows that were passed, as the model has them; and which of those passed each of them is."""
    X, y, agents = more_labelled(X, y, agents, model._agent_column, model._target_column, type(model).__name__)
    table = model._rows(X, agents)
    matrix, codes = table.X, table.codes
    if len(codes) and codes.min() < 0:
        raise DataError(f"row {int(np.argmin(codes))} belongs to an agent that the model never met")
    targets = model._encode_more(labels_of(y, len(codes), codes, model.agents_))
    order = np.argsort(codes, kind="stable")
    labels = targets[0] if len(targets) == 1 else np.argmax(np.stack(targets), axis=0)
    labels = labels.astype(np.int64) if model._kind == "classifier" else labels
    return Rows(matrix[order], labels[order], codes[order], None), order


# -- gains ------------------------------------------------------------------------------------------------------------


def gains(model: Any, rows: Rows, folds: int, seed: int, notes: list[str]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Errors of every agent on held-out rows of its own, and what they say of all agents."""
    if len(model.agents_) == 1:
        raise DataError("there is only one agent, with no others to learn from; agents= of fit says whose row it is")
    classifies, said = model._kind == "classifier", list[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the fits of folds: their warnings were those of the fit already
        part = _sampled(model, rows, seed, said)
        fold = deal(part.codes, folds, seed, part.y if classifies else None)
        single = int(np.sum(np.bincount(part.codes) == 1))
        if single:
            lonely = "1 agent" if single == 1 else f"{single} agents"
            said.append(f"{lonely} with one row, which is always trained on: their gain is not known")
        if not np.any(fold >= 0):
            raise DataError("no agent has two rows, one of them to test on")
        notes += said
        measure, shape = _measure(model), (len(part.y), len(model.classes_)) if classifies else (len(part.y),)
        found = {name: np.full(shape, np.nan) for name in ("alone", "one_model", "together")}
        for kept, held in split(fold):
            train, test = part.some(kept), part.some(held)
            together = _together(model, train)
            found["together"][held] = _predicted(model, together, test, test.codes)
            found["one_model"][held] = _predicted(model, _one_model(model, train), test, None)
            if pools(model) or is_linear(model):
                found["alone"][held] = alone(model, together, train, test)
            else:
                found["alone"][held] = _predicted(model, _everybody_alone(model, train), test, test.codes)
    tested = fold >= 0
    codes, weight = part.codes[tested], part.weights[tested]
    who = np.unique(part.codes)
    sizes, total = np.bincount(part.codes)[who], np.bincount(codes, weight, len(model.agents_))[who]
    table = pd.DataFrame({"agent": objects([model.agents_[k] for k in who]), "rows": sizes})
    for name, predicted in found.items():
        each = _losses(measure, part.y[tested], predicted[tested])
        mean = np.bincount(codes, weight * each, len(model.agents_))[who] / np.where(total > 0.0, total, np.nan)
        table[name] = np.sqrt(mean) if measure == "rmse" else mean
    table["gain_alone"], table["gain_one_model"] = (
        table["alone"] - table["together"],
        table["one_model"] - table["together"],
    )
    errors = {name: float(table[name].mean()) for name in found}
    against = {
        name: gain((table[name] - table["together"]).to_numpy(), errors[name]) for name in ("alone", "one_model")
    }
    return table, {"measure": measure, "folds": int(folds), "errors": errors, "gains": against}


def compared(model: Any, X: Any, y: Any, agents: Any) -> dict[str, dict[str, float]]:
    """Agents alone, one model for all, and a pooled model: score and error of each on rows that it was not fitted with.

    The score is accuracy or R^2, the error as :func:`gains` has it, over all rows. Every agent of these rows must have
    had some in the fit.
    """
    train, (test, order) = kept_rows(model), given_rows(model, X, y, agents)
    if train is None:
        raise DataError("the model does not have its rows: compare it before it is saved, or fit it anew")
    as_given = Rows(X, test.y, test.codes, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit's own warnings were given by it
        predicted = {
            "alone": alone(model, model, train, test),
            "one model": _predicted(model, _one_model(model, train), test, None),
            "together": _predicted(model, model, as_given, agents)[order],
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


def _sampled(model: Any, rows: Rows, seed: int, notes: list[str]) -> Rows:
    """All rows, or those of a sample of agents."""
    agents, most = (AGENTS, ROWS) if hasattr(model, "_models") else (SLOW_AGENTS, SLOW_ROWS)
    sizes = np.bincount(rows.codes)
    who = np.flatnonzero(sizes)
    if len(who) <= agents and len(rows.y) <= most:
        return rows
    order = np.random.default_rng(seed).permutation(who)
    some = order[: max(10, min(agents, int(np.searchsorted(np.cumsum(sizes[order]), most, side="right"))))]
    notes.append(
        f"gains are measured on a sample of {len(some)} of {len(who)} agents, who learn among themselves: with "
        "everybody, together is rather better"
    )
    return rows.some(np.isin(rows.codes, some))


def _together(model: Any, train: Rows) -> Any:
    """The estimator itself, with its own parameters, on the rows of a fold."""
    weight = {} if train.weight is None else {"sample_weight": train.weight}
    return type(model)(**_settings(model, train)).fit(train.X, _named(model, train.y), agents=train.codes, **weight)


def _settings(model: Any, train: Rows) -> dict[str, Any]:
    """Parameters for the agents of these rows, whose ids are their numbers."""
    settings = model.get_params(deep=False)
    if "members" in settings:
        settings["members"] = None
    graph = settings.get("graph")
    if not (graph is None or isinstance(graph, str) or hasattr(graph, "lam")):
        settings["members"] = range(len(model.agents_))  # a graph that is given is one of all agents
        if hasattr(graph, "nodes"):
            settings["graph"] = graphs.from_networkx(graph, members=model.agents_)
    if settings.get("covariance") is not None:
        from ..multitask.covariance import checked_covariance

        sub = checked_covariance(settings["covariance"], model.agents_).take(np.unique(train.codes))
        Q, s, c = sub.scaled(1.0 / float(sub.diagonal().sum())).factors
        settings["covariance"] = (Q, s, c)
    if not pools(model) and "engine" in settings:
        settings["engine"] = None  # the rows are here
    return settings


def _everybody_alone(model: Any, train: Rows) -> Any:
    """The same estimator, for agents that learn by themselves."""
    n = len(model.agents_)
    changes: dict[str, Any] = {"method": "single-task", "covariance": None}
    if hasattr(model, "base_"):
        changes = {"method": "local", "graph": graphs.empty(n), "members": range(n)}
    settings = _settings(model, train) | changes
    return type(model)(**settings).fit(train.X, _named(model, train.y), agents=train.codes)


def _one_model(model: Any, train: Rows) -> Any:
    """One model for all rows, whoever they belong to: a regression whose strength is learned, or else the same kind."""
    labels = _named(model, train.y)
    if pools(model) or is_linear(model):
        settings = {"design": model.design, "loss": model.loss} if pools(model) else {"design": PLAIN}
        kind = CollaborativeClassifier if model._kind == "classifier" else CollaborativeRegressor
        deviations = "scalar" if train.X.shape[1] <= pooling.WIDE else "auto"
        return kind(deviations=deviations, **settings).fit(train.X, labels, sample_weight=train.weight)
    settings = model.get_params(deep=False)
    changes: dict[str, Any] = {"graph": "learn", "members": None, "confidence": None, "covariance": None}
    changes |= {"engine": None}
    return type(model)(**settings | {name: changes[name] for name in settings if name in changes}).fit(train.X, labels)


def _named(model: Any, y: np.ndarray) -> np.ndarray:
    return model.classes_[y] if model._kind == "classifier" else y


def _measure(model: Any) -> str:
    if model._kind == "regressor":
        return "deviance" if pools(model) and model.loss == "poisson" else "rmse"
    return "log_loss" if _has_probabilities(model) else "wrong"


def _has_probabilities(model: Any) -> bool:
    if not hasattr(model, "_models"):
        return bool(model._has_probabilities)
    return not isinstance(model._models, Linear) or model.loss is None or "ogistic" in repr(model.loss)


def _predicted(model: Any, found: Any, test: Rows, agents: np.ndarray | None) -> np.ndarray:
    """Numbers, or probabilities of the classes of the model; 0 and 1 of the one predicted where there are none."""
    if model._kind == "regressor":
        return np.asarray(found.predict(test.X, agents))
    out = np.zeros((len(test.y), len(model.classes_)))
    place = np.searchsorted(model.classes_, found.classes_)  # a rare class may be missing in a fold
    if _has_probabilities(found):
        out[:, place] = found.predict_proba(test.X, agents)
    else:
        out[np.arange(len(out)), np.searchsorted(model.classes_, found.predict(test.X, agents))] = 1.0
    return out


def _losses(measure: str, y: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """The error of every row."""
    if measure == "rmse":
        return (predicted - y) ** 2
    if measure == "deviance":
        rate = np.maximum(predicted, 1e-9)
        return np.asarray(2.0 * (special.xlogy(y, y / rate) - y + rate))
    if measure == "wrong":
        return (predicted.argmax(axis=1) != y).astype(float)
    return -np.log(np.clip(predicted[np.arange(len(y)), y], 1e-9, 1.0))


# -- everybody alone --------------------------------------------------------------------------------------------------


def alone(model: Any, together: Any, train: Rows, test: Rows) -> np.ndarray:
    """Predictions of regressions of which each knows the rows of one agent.

    Their strengths are averaged over by their evidence, which is fairer to few rows than to pick one; where curves were
    chosen together, an agent alone has the choice of lines and curves. Scales of columns and knots are those of all
    rows.
    """
    who = np.unique(train.codes)
    train, test = (
        train._replace(codes=np.searchsorted(who, train.codes)),
        test._replace(codes=np.searchsorted(who, test.codes)),
    )
    made: list[Design] = [Lines.of(train.X, train.weight)]
    if pools(together) and together.design_ != PLAIN:
        made.append(together._models[0].design)
    if model._kind == "classifier":
        number = len(model.classes_)
        chosen = [1] if number == 2 else range(number)
        parts = [_averaged(train._replace(y=(train.y == k).astype(float)), test, made, "logistic") for k in chosen]
        if number == 2:
            return np.stack([1.0 - parts[0], parts[0]], axis=1)
        scores = np.stack(parts, axis=1)
        # Made to sum up to one they are too cautious for many rows, by a softmax too sure for few: the mean of both.
        cautious = scores / scores.sum(axis=1, keepdims=True)
        return 0.5 * (cautious + softmax(np.log(scores) - np.log1p(-scores)))
    family = together._models[0].family.name if pools(together) else "squared"
    if family == "student":
        return _each_student(train, test, made[-1].name)
    return _averaged(train, test, made, family)


def _averaged(train: Rows, test: Rows, made: list[Design], family: str) -> np.ndarray:
    """Predictions averaged over designs and strengths, by the evidence of each agent's own rows."""
    n = int(train.codes.max()) + 1
    begin, tested = (np.searchsorted(rows.codes, np.arange(n + 1)) for rows in (train, test))
    candidates = _ridges if family == "squared" else _classes_or_counts
    found = [candidates(train, test, begin, tested, design, family) for design in made]
    predicted = np.concatenate([part[0] for part in found])  # (candidates, rows)
    evidence = np.concatenate([part[1] for part in found])  # (candidates, agents)
    return np.asarray(np.sum(_shares(evidence)[:, test.codes] * predicted, axis=0))


def _shares(evidence: np.ndarray) -> np.ndarray:
    """Of the candidates, by the evidence of each agent."""
    share = np.exp(evidence - evidence.max(axis=0))
    return np.asarray(share / share.sum(axis=0))


def alone_models(part: Any, rows: Rows, n: int) -> np.ndarray:
    """Models of agents alone, (n, q), as :attr:`Pooled.design` has the columns; nothing for those without rows.

    In units of the label (log-odds, logarithms of counts), and averaged over strengths by their evidence.
    """
    who = np.unique(rows.codes)
    rows = rows._replace(codes=np.searchsorted(who, rows.codes))
    begin = np.searchsorted(rows.codes, np.arange(len(who) + 1))
    family = "squared" if part.family.noisy else part.family.name
    candidates = _ridges if family == "squared" else _classes_or_counts
    _, evidence, models = candidates(rows, rows, begin, begin, part.design, family)
    out = np.full((n, part.design.size), np.nan)
    out[who] = np.einsum("gn,gnq->nq", _shares(evidence), models)
    return out


def _ridges(
    train: Rows, test: Rows, begin: np.ndarray, tested: np.ndarray, design: Design, family: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ridge regressions of numbers: the intercept is free, and the noise integrated out."""
    precision = 1.0 / STRENGTHS[family][:, None]
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
    train: Rows, test: Rows, begin: np.ndarray, tested: np.ndarray, design: Design, family: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Penalised regressions of classes or counts and Laplace's evidence, for many agents at once.

    The intercept has a broad prior, so that rows of one class, or no counts, leave some room for others.
    """
    kind, q = FAMILIES[family], design.size
    grid, n = STRENGTHS[family], len(begin) - 1
    predicted, evidence, models = (
        np.zeros((len(grid), len(test.y))),
        np.zeros((len(grid), n)),
        np.zeros((len(grid), n, q)),
    )
    sizes, asked, weights = np.diff(begin), np.diff(tested), train.weights
    for k, width in batches(sizes, q):
        rows, real = padded(begin[k], sizes[k], width)
        X = design.columns(dense(train.X[rows.ravel()])).reshape(*rows.shape, q)
        batch = Batch(np.arange(len(k)), X, train.y[rows], np.where(real, weights[rows], 0.0))
        most = int(asked[k].max())
        if not most:
            continue
        to, there = padded(np.minimum(tested[k], len(test.y) - 1), asked[k], most)
        Z = design.columns(dense(test.X[to.ravel()])).reshape(*to.shape, q)
        for g, v in enumerate(grid):
            V = np.append(np.full(q - 1, v), INTERCEPT[family])
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
            else:  # an exponential beyond all counts seen is not what anybody would bet on
                largest = 2.0 * np.where(real, batch.y, 0.0).max(axis=1, keepdims=True) + 1.0
                out = np.minimum(np.exp(np.minimum(z + 0.5 * np.minimum(variance, 2.0), LARGEST)), largest)
            predicted[g, to[there]] = out[there]
    return predicted, evidence, models


def _each_student(train: Rows, test: Rows, design: str) -> np.ndarray:
    """Regressions with heavy-tailed noise, one by one."""
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
