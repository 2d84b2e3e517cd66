"""What a fitted model has to tell: who gains, which features differ, who stands out, what was chosen and why.

Everything here is computed when :meth:`report` is called, never at fit.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import special, stats
from threadpoolctl import threadpool_limits

from .. import pooling
from ..encoding import agent_numbers
from ..errors import DataError, ParameterError
from ..pooling import designs, fitted
from ..pooling.blocks import Batch, InRows, batches, one_plus, padded, root, times
from ..pooling.designs import Design
from ..pooling.families import FAMILIES, LARGEST, Student, expit
from ..pooling.fitted import Pooled
from ..pooling.population import Population
from ..pooling.wide import Wide, dense
from ..tuning import folds as deal
from .collaborative import Linear, _labels

#: Agents and rows that gains are measured with, at most.
AGENTS, ROWS = 300, 20_000
#: Share of agents that are expected to be named an outlier wrongly, among those named.
FALSE_DISCOVERIES = 0.05
#: Directions of a deviation count if an agent's rows settle at least this share of the population's variance in them.
RESOLVED = 0.1
#: Strengths of a regression alone: variances of its slopes, in units of the noise for numbers, else as they are.
STRENGTHS = {"squared": np.logspace(-3.0, 3.0, 13), "logistic": np.logspace(-3.0, 1.5, 10)}
STRENGTHS["poisson"] = STRENGTHS["logistic"]
#: Variance of the intercept of a regression alone: about as one half of a row of each class, or half a count, more.
INTERCEPT = {"logistic": 6.25, "poisson": 25.0}
#: Measures of error, and their names.
MEASURES = {
    "rmse": "root mean squared error",
    "log_loss": "log-loss",
    "deviance": "Poisson deviance",
    "wrong": "share of wrong classes",
}
#: Lines of a table that are printed.
SHOWN = 12


@dataclass(frozen=True, repr=False, eq=False)
class Report:
    """The outcome of :meth:`coterie.CollaborativeRegressor.report`; printing it shows it all.

    Attributes
    ----------
    summary : dict
        Numbers of agents and rows, and the gains over all agents: of "together" against "alone" and against "one_model",
        each with its mean, standard error, 95 % interval, relative size, and the share of agents that gain.
    gains : DataFrame or None
        For each agent: rows, errors on held-out rows alone, with one model for all, and together. None if they could not
        be measured; ``notes`` says why.
    features : DataFrame or None
        For each column (and class, for more than two): its common coefficient, its effect (standard deviation of what the
        common model makes of it), the standard deviation of personal deviations with a 90 % interval, and its importance:
        its share of the predictor's variance between agents. Of a curve, deviations are root mean squares over the rows,
        in units of the label. The intercept is that where columns have their means.
    outliers : DataFrame or None
        Agents whose coefficients are further from the common model, or whose rows fit worse, than the population explains:
        at most 5 % of those named are expected to be named by chance.
    choices : DataFrame or None
        The evidence of everything that was tried, and how far it is from what was chosen, in nats.
    columns : list of str
        What was done to the columns.
    notes : list of str
        What to know to read the rest.
    """

    summary: dict[str, Any]
    gains: pd.DataFrame | None
    features: pd.DataFrame | None
    outliers: pd.DataFrame | None
    choices: pd.DataFrame | None
    columns: list[str]
    notes: list[str]

    def __repr__(self) -> str:
        parts = [_head(self.summary), _gains_text(self), _features_text(self.features), _outliers_text(self.outliers)]
        parts += [_choices_text(self), _listed("What was done to columns", self.columns or ["nothing: all are numbers"])]
        return "\n\n".join(part for part in [*parts, _listed("Notes", self.notes)] if part)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and text, as json has them; None for what is not a finite number.

        Returns
        -------
        dict
        """
        tables = {name: getattr(self, name) for name in ("gains", "features", "outliers", "choices")}
        found = {name: None if table is None else table.to_dict(orient="records") for name, table in tables.items()}
        return _plain({"summary": self.summary} | found | {"columns": self.columns, "notes": self.notes})


class Rows(NamedTuple):
    """Encoded rows, those of one agent side by side."""

    X: Any
    y: np.ndarray  # numbers, or numbers of classes
    codes: np.ndarray  # ascending
    weight: np.ndarray | None

    def some(self, which: np.ndarray) -> Rows:
        """Some of the rows."""
        return Rows(*(None if part is None else part[which] for part in self))

    @property
    def weights(self) -> np.ndarray:
        """One for each row."""
        return np.ones(len(self.y)) if self.weight is None else self.weight


def report(
    model: Any, folds: int = 5, seed: int = 0, X: Any = None, y: Any = None, agents: Any = None
) -> Report:
    """See :meth:`coterie.CollaborativeRegressor.report`."""
    model._check_fitted()
    if (X is None) != (y is None):
        raise ParameterError("report takes X and y together, or neither")
    rows = kept_rows(model) if X is None else given_rows(model, X, y, agents)
    pools, notes = not isinstance(model._models, Linear), []
    tells = pools and isinstance(model._models[0], Pooled)
    with threadpool_limits(1):
        try:
            if rows is None:
                raise DataError(_no_rows(pools))
            table, measured = gains(model, rows, folds, seed, notes)
        except DataError as error:
            table, measured = None, {}
            notes.append(f"gains are not available: {error}")
        found = features(model) if pools else None
        odd = outliers(model) if tells else None
        chosen = choices(model, rows) if pools else None
    if pools:
        notes += _notes(model)
        if not tells:
            notes.append("with so many columns, outliers are not looked for, and there are no intervals of coefficients")
    else:
        notes.append(
            f"method={model.method!r} has no population and no posterior: nothing is said of features, outliers and evidence"
        )
    return Report(_summary(model, rows) | measured, table, found, odd, chosen, list(model._columns.notes), notes)


def _no_rows(pools: bool) -> str:
    why = "a model from a file has no rows" if pools else "this method keeps no rows"
    return f"{why}; report(X=X, y=y, agents=agents) with the rows of the fit measures them"


def _summary(model: Any, rows: Rows | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "estimator": type(model).__name__,
        "method": str(model.method),
        "agents": len(model.agents_),
        "columns": len(model._columns.names),
    }
    if not isinstance(model._models, Linear):
        first = model._models[0]
        found |= {"design": model.design_, "loss": first.family.name, "log_evidence": model.log_evidence_}
        if model._kind == "regressor":
            found["noise"] = model.noise_
    if rows is not None:
        found |= {"rows": len(rows.y), "median_rows": float(np.median(np.bincount(rows.codes, minlength=found["agents"])))}
    return found


def _notes(model: Any) -> list[str]:
    """How agents never met are predicted, and where the approximation ends."""
    first, notes = model._models[0], []
    share = [part.stranger.share for part in model._models if isinstance(part, Pooled)]
    if not share or max(share) == 0.0:
        notes.append("an agent never met is predicted by the common model")
    else:
        parts = " to ".join(dict.fromkeys(f"{100 * end:.0f} %" for end in (min(share), max(share))))
        notes.append(
            f"an agent never met is predicted by a mixture of the common model and, {parts}, one model of all rows: that did "
            "best for held-out agents"
        )
    if model._kind == "classifier" and isinstance(first, Pooled) and first.kept is None:
        if np.median(first.sizes()) <= 3:
            notes.append(
                "most agents have at most 3 rows: variances between agents are underestimated for classes (Laplace's "
                "approximation ends there); common model and predictions are still sound"
            )
    return notes


# -- rows -------------------------------------------------------------------------------------------------------------


def kept_rows(model: Any) -> Rows | None:
    """The rows that a model was fitted with, if it has them."""
    if isinstance(model._models, Linear):
        return None
    first = model._models[0]
    if isinstance(first, Wide):
        X, weight = first.X, first.weight
        X = X * first.spread + first.mean if isinstance(X, np.ndarray) else X * first.spread[0]
        weight = None if np.all(weight == 1.0) else weight
        codes, labels = np.repeat(np.arange(first.n), first.sizes), [part.y for part in model._models]
    elif first.kept is None:
        X, weight, codes = first.grouped.X, first.grouped.weight, first.grouped.codes
        labels = [part.grouped.y for part in model._models]
    else:
        return None
    if len(labels) > 1:
        return Rows(X, np.argmax(np.stack(labels), axis=0), codes, weight)
    y = labels[0] * first.scale + first.center
    return Rows(X, y.astype(np.int64) if model._kind == "classifier" else y, codes, weight)


def given_rows(model: Any, X: Any, y: Any, agents: Any) -> Rows:
    """Rows that were passed, as the model has them."""
    X, ids = model._with_ids(X, agents)
    matrix = model._columns.apply(X, type(model).__name__)
    codes = np.zeros(matrix.shape[0], dtype=np.int64) if ids is None else agent_numbers(ids, model._number)
    if len(codes) != matrix.shape[0]:
        raise DataError(f"agents has {len(codes)} ids for {matrix.shape[0]} rows; one per row is needed")
    if len(codes) and codes.min() < 0:
        raise DataError(f"row {int(np.argmin(codes))} belongs to an agent that the model never met")
    targets = model._encode_more(_labels(y, len(codes), codes, model.agents_))
    order = np.argsort(codes, kind="stable")
    labels = targets[0] if len(targets) == 1 else np.argmax(np.stack(targets), axis=0)
    labels = labels.astype(np.int64) if model._kind == "classifier" else labels
    return Rows(matrix[order], labels[order], codes[order], None)


# -- gains ------------------------------------------------------------------------------------------------------------


def gains(
    model: Any, rows: Rows, folds: int, seed: int, notes: list[str]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Errors of every agent on held-out rows of its own, and what they say of all agents."""
    if len(model.agents_) == 1:
        raise DataError("there is one agent only, with nobody to learn from")
    classifies = model._kind == "classifier"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the fits of folds: their warnings were those of the fit already
        part = _sampled(rows, seed, notes)
        fold = deal(part.codes, folds, seed, part.y if classifies else None)
        single = int(np.sum(np.bincount(part.codes) == 1))
        if single:
            notes.append(f"{single} agents have one row, which is always trained on: their gain is not known")
        if not np.any(fold >= 0):
            raise DataError("no agent has two rows, one of them to test on")
        measure, shape = _measure(model), (len(part.y), len(model.classes_)) if classifies else (len(part.y),)
        found = {name: np.full(shape, np.nan) for name in ("alone", "one_model", "together")}
        for k in np.unique(fold[fold >= 0]):
            train, test = part.some(fold != k), part.some(fold == k)
            together = _together(model, train)
            found["together"][fold == k] = _predicted(model, together, test, test.codes)
            found["one_model"][fold == k] = _predicted(model, _one_model(model, train), test, None)
            found["alone"][fold == k] = alone(model, together, train, test)
    tested = fold >= 0
    codes, weight = part.codes[tested], part.weights[tested]
    who = np.unique(part.codes)
    sizes, total = np.bincount(part.codes)[who], np.bincount(codes, weight, len(model.agents_))[who]
    table = pd.DataFrame({"agent": _objects([model.agents_[k] for k in who]), "rows": sizes})
    for name, predicted in found.items():
        each = _losses(measure, part.y[tested], predicted[tested])
        mean = np.bincount(codes, weight * each, len(model.agents_))[who] / np.where(total > 0.0, total, np.nan)
        table[name] = np.sqrt(mean) if measure == "rmse" else mean
    table["gain_alone"], table["gain_one_model"] = table["alone"] - table["together"], table["one_model"] - table["together"]
    errors = {name: float(table[name].mean()) for name in found}
    against = {name: _gain(table[name] - table["together"], errors[name]) for name in ("alone", "one_model")}
    return table, {"measure": measure, "folds": int(folds), "errors": errors, "gains": against}


def _gain(difference: pd.Series, error: float) -> dict[str, float]:
    """Of all agents: the mean, and how sure it is."""
    each = difference.dropna().to_numpy()
    mean = float(each.mean())
    se = float(each.std(ddof=1) / math.sqrt(len(each))) if len(each) > 1 else math.nan
    half = se * float(stats.t.ppf(0.975, len(each) - 1)) if len(each) > 1 else math.nan
    relative = mean / error if error > 0.0 else math.nan
    ends = {"low": mean - half, "high": mean + half}
    return {"mean": mean, "se": se} | ends | {"relative": relative, "share": float(np.mean(each > 0.0)), "agents": len(each)}


def _sampled(rows: Rows, seed: int, notes: list[str]) -> Rows:
    """All rows, or those of a sample of agents."""
    sizes = np.bincount(rows.codes)
    who = np.flatnonzero(sizes)
    if len(who) <= AGENTS and len(rows.y) <= ROWS:
        return rows
    order = np.random.default_rng(seed).permutation(who)
    some = order[: max(10, min(AGENTS, int(np.searchsorted(np.cumsum(sizes[order]), ROWS, side="right"))))]
    notes.append(
        f"gains are measured on a sample of {len(some)} of {len(who)} agents, who learn among themselves: with everybody, "
        "together is rather better"
    )
    return rows.some(np.isin(rows.codes, some))


def _together(model: Any, train: Rows) -> Any:
    """The estimator itself, with its own parameters, on the rows of a fold."""
    settings = model.get_params(deep=False) | {"members": None}
    if settings["graph"] is not None and not isinstance(settings["graph"], str):
        settings["members"] = range(len(model.agents_))
        if hasattr(settings["graph"], "nodes"):
            from ..graphs import from_networkx

            settings["graph"] = from_networkx(settings["graph"], members=model.agents_)
    weight = {} if train.weight is None else {"sample_weight": train.weight}
    return type(model)(**settings).fit(train.X, _named(model, train.y), agents=train.codes, **weight)


def _one_model(model: Any, train: Rows) -> Any:
    """One regression for all rows, whoever they belong to; its strength is learned."""
    pools = not isinstance(model._models, Linear)
    settings = {"design": model.design, "loss": model.loss} if pools else {"design": "linear"}
    one = type(model)(deviations="scalar", **settings)
    return one.fit(train.X, _named(model, train.y), sample_weight=train.weight)


def _named(model: Any, y: np.ndarray) -> np.ndarray:
    return model.classes_[y] if model._kind == "classifier" else y


def _measure(model: Any) -> str:
    if model._kind == "regressor":
        return "deviance" if model.loss == "poisson" else "rmse"
    return "log_loss" if _has_probabilities(model) else "wrong"


def _has_probabilities(model: Any) -> bool:
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
    chosen together, an agent alone has the choice of lines and curves. Scales of columns and knots are those of all rows.
    """
    who = np.unique(train.codes)
    train, test = train._replace(codes=np.searchsorted(who, train.codes)), test._replace(codes=np.searchsorted(who, test.codes))
    made = [_linear(train)]
    if not isinstance(together._models, Linear) and together.design_ == "additive":
        made.append(together._models[0].design)
    if model._kind == "classifier":
        number = len(model.classes_)
        chosen = [1] if number == 2 else range(number)
        parts = [_averaged(train._replace(y=(train.y == k).astype(float)), test, made, "logistic") for k in chosen]
        if number == 2:
            return np.stack([1.0 - parts[0], parts[0]], axis=1)
        scores = np.stack(parts, axis=1)
        return np.asarray(scores / scores.sum(axis=1, keepdims=True))
    family = together._models[0].family.name if not isinstance(together._models, Linear) else "squared"
    if family == "student":
        return _each_student(train, test, made[-1].name)
    return _averaged(train, test, made, family)


def _linear(rows: Rows) -> Design:
    """The columns in standard units; sparse ones are not centred."""
    if isinstance(rows.X, np.ndarray):
        return designs.linear(rows.X, rows.weight)
    p = rows.X.shape[1]
    scale = np.sqrt(np.asarray(rows.X.multiply(rows.X).mean(axis=0)).ravel())
    return Design({}, np.zeros(p), np.where(scale > 0.0, scale, 1.0), np.arange(p))


def _averaged(train: Rows, test: Rows, made: list[Design], family: str) -> np.ndarray:
    """Predictions averaged over designs and strengths, by the evidence of each agent's own rows."""
    n = int(train.codes.max()) + 1
    begins = [np.searchsorted(rows.codes, np.arange(n + 1)) for rows in (train, test)]
    candidates = _ridges if family == "squared" else _classes_or_counts
    found = [candidates(train, test, *begins, design, family) for design in made]
    predicted = np.concatenate([part[0] for part in found])  # (candidates, rows)
    evidence = np.concatenate([part[1] for part in found])  # (candidates, agents)
    share = np.exp(evidence - evidence.max(axis=0))
    share /= share.sum(axis=0)
    return np.asarray(np.sum(share[:, test.codes] * predicted, axis=0))


def _ridges(
    train: Rows, test: Rows, begin: np.ndarray, tested: np.ndarray, design: Design, family: str
) -> tuple[np.ndarray, np.ndarray]:
    """Ridge regressions of numbers: the intercept is free, and the noise integrated out."""
    precision = 1.0 / STRENGTHS[family][:, None]
    predicted, evidence = np.zeros((len(precision), len(test.y))), np.zeros((len(precision), len(begin) - 1))
    weights = train.weights
    for i in np.unique(test.codes):
        own, asked = slice(begin[i], begin[i + 1]), slice(tested[i], tested[i + 1])
        A, B = (design.columns(dense(rows.X[part]))[:, :-1] for rows, part in ((train, own), (test, asked)))
        weight = weights[own] if weights[own].sum() > 0.0 else np.ones(own.stop - own.start)
        mean, middle = np.average(A, axis=0, weights=weight), np.average(train.y[own], weights=weight)
        half, y = np.sqrt(weight), train.y[own] - middle
        U, S, right = np.linalg.svd(half[:, None] * (A - mean), full_matrices=False)
        keep = S > 1e-9 * max(S.max(initial=0.0), 1e-300)
        S, right, along = S[keep], right[keep], U[:, keep].T @ (half * y)
        squares = float(weight @ y**2)
        left = squares - np.sum(along**2 * (S**2 / (S**2 + precision)), axis=1)
        left = np.log(np.maximum(left, 1e-9 * squares) + 1e-300)
        evidence[:, i] = -0.5 * np.sum(np.log1p(S**2 / precision), axis=1) - 0.5 * (weight.sum() - 1.0) * left
        predicted[:, asked] = middle + (along * S / (S**2 + precision)) @ (right @ (B - mean).T)
    return predicted, evidence


def _classes_or_counts(
    train: Rows, test: Rows, begin: np.ndarray, tested: np.ndarray, design: Design, family: str
) -> tuple[np.ndarray, np.ndarray]:
    """Penalised regressions of classes or counts and Laplace's evidence, for many agents at once.

    The intercept has a broad prior, so that rows of one class, or no counts, leave some room for others.
    """
    kind, q = FAMILIES[family], design.size
    grid, n = STRENGTHS[family], len(begin) - 1
    predicted, evidence = np.zeros((len(grid), len(test.y))), np.zeros((len(grid), n))
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
            D = fitted.posterior(batch, prior)
            block = batch.block(D, kind, 1.0, V)
            inner = one_plus(block.gram, block.u) if isinstance(block, InRows) else block.Q
            log = -batch.loss(D, kind, 1.0) - 0.5 * np.sum(D * D / V, axis=1)
            evidence[g, k] = log - 0.5 * np.linalg.slogdet(inner)[1]
            VZ, z = times(V, Z), np.einsum("kmq,kq->km", Z, D)
            variance = np.maximum(np.einsum("kmq,kmq->km", VZ, Z - block.rows(VZ)), 0.0)
            if family == "logistic":
                out = expit(z / np.sqrt(1.0 + np.pi / 8.0 * variance))
            else:  # an exponential beyond all counts seen is not what anybody would bet on
                largest = 2.0 * np.where(real, batch.y, 0.0).max(axis=1, keepdims=True) + 1.0
                out = np.minimum(np.exp(np.minimum(z + 0.5 * np.minimum(variance, 2.0), LARGEST)), largest)
            predicted[g, to[there]] = out[there]
    return predicted, evidence


def _each_student(train: Rows, test: Rows, design: str) -> np.ndarray:
    """Regressions with heavy-tailed noise, one by one."""
    out = np.zeros(len(test.y))
    for i in np.unique(test.codes):
        own, asked = train.some(train.codes == i), test.codes == i
        if np.ptp(own.y) == 0.0:
            out[asked] = own.y[0]
            continue
        zeros = np.zeros(len(own.y), dtype=np.int64)
        choice = "auto" if design == "additive" else design
        model = pooling.fit(own.X, [own.y], zeros, 1, "student", choice, "scalar", own.weight)[0]
        out[asked] = model.latent(test.X[asked], zeros[:1].repeat(asked.sum()), False)[0] * model.scale + model.center
    return out


# -- features ---------------------------------------------------------------------------------------------------------


def features(model: Any, coverage: float = 0.9) -> pd.DataFrame:
    """How much every column differs between agents; of several classes, for each of them."""
    several = len(model._models) > 1
    tables = []
    for k, part in enumerate(model._models):
        table = _features_of(model, part, coverage)
        if several:
            table.insert(0, "class", _objects([model.classes_[k]] * len(table)))
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _features_of(model: Any, part: Any, coverage: float) -> pd.DataFrame:
    names = model._columns.names
    raw, log_sd = part.variances()
    if isinstance(part, Wide):
        w, V, source, curves = part.w, part.strengths.v, np.arange(len(names)), {}
    else:
        w, V, source, curves = part.population.w, part.population.V, part.design.source, part.design.splines
    v, log_sd = V if V.ndim == 1 else np.diag(V), log_sd.copy()
    if model.deviations == "scalar" and isinstance(part, Pooled):  # one variance, of which all slopes tell
        free = np.flatnonzero(v[:-1] > 0.0)
        log_sd[free] = 1.0 / np.sqrt(np.sum(log_sd[free] ** -2.0)) if len(free) else 0.0
    common = part.coefficients()[0]
    z, lines = float(stats.norm.ppf(0.5 + 0.5 * coverage)), []
    gram = _gram(part) if curves else np.eye(len(w))
    for f, name in enumerate((*names, "intercept")):
        at = np.flatnonzero(source == f) if f < len(names) else np.array([len(w) - 1])
        G, kind, value = gram[np.ix_(at, at)], "line", float(common[at[0]])
        diagonal = v[at] * np.diag(G)
        total = float(np.sum(np.diag(v[at]) * G if V.ndim == 1 else V[np.ix_(at, at)] * G))
        sd = math.sqrt(float(raw[at[0]]))
        spread = float(np.sqrt(np.sum((diagonal * log_sd[at]) ** 2)) / max(float(diagonal.sum()), 1e-300))
        effect = part.scale * math.sqrt(float(w[at] @ G @ w[at]))
        if f in curves:
            kind, value, sd = "curve", math.nan, part.scale * math.sqrt(max(total, 0.0))
        if f == len(names):
            kind, value, effect = "intercept", part.center + part.scale * float(w[-1]), math.nan
        if not np.any(v[at] > 0.0):
            kind, sd, spread = "cannot differ", 0.0, 0.0
        factor = math.exp(min(0.5 * z * spread, 300.0))
        lines.append((name, kind, value, effect, sd, sd / factor, sd * factor, total))
    table = pd.DataFrame(lines, columns=["feature", "kind", "common", "effect", "sd", "low", "high", "importance"])
    table["importance"] /= max(float(table["importance"].sum()), 1e-300)
    return table.sort_values("importance", ascending=False, kind="stable", ignore_index=True)


def _gram(part: Pooled) -> np.ndarray:
    """Mean of x x' over the rows, x as the design has it; without rows, weighted as the losses are curved."""
    q = part.design.size
    total = np.zeros((q, q))
    if part.kept is not None:
        total = part.kept.H.sum(axis=0)
        return total / max(float(total[-1, -1]), 1e-300)
    X, weight = part.grouped.X, part.grouped.weight
    for first in range(0, len(X), 20_000):
        A = part.design.columns(X[first : first + 20_000])
        total += (A if weight is None else A * weight[first : first + 20_000, None]).T @ A
    return total / max(float(total[-1, -1]), 1e-300)


# -- outliers ---------------------------------------------------------------------------------------------------------


def outliers(model: Any) -> pd.DataFrame:
    """Agents that the population does not explain, by their coefficients and by their residuals."""
    tables = []
    for k, part in enumerate(model._models):
        table = _tests(part, model._columns.names)
        if len(model._models) > 1:
            table.insert(1, "class", _objects([model.classes_[k]] * len(table)))
        tables.append(table)
    every = pd.concat(tables, ignore_index=True)
    every["q"] = adjusted(every["p"].to_numpy())
    found = every[every["q"] < FALSE_DISCOVERIES].sort_values("p", kind="stable", ignore_index=True)
    found["agent"] = _objects([model.agents_[k] for k in found["agent"]])
    return found


def adjusted(p: np.ndarray) -> np.ndarray:
    """p-values adjusted by Benjamini and Hochberg: the rate of false discoveries at which each is one."""
    order = np.argsort(p)[::-1]
    scaled = p[order] * len(p) / np.arange(len(p), 0, -1)
    out = np.empty(len(p))
    out[order] = np.minimum.accumulate(np.minimum(scaled, 1.0))
    return out


def _tests(part: Pooled, names: Sequence[str]) -> pd.DataFrame:
    """Both tests of every agent that has rows.

    The posterior mean of a deviation has the covariance V (C_i - C_i S^-1 C_i) V over all that could have been seen; its
    square in these units is chi2 with as many degrees of freedom as directions that the rows settle.
    """
    population, family = part.population, part.population.family
    w, V, s2, cov, q = population.w, population.V, population.s2, population.cov, len(population.w)
    full = V if V.ndim == 2 else np.diag(V)
    free = np.flatnonzero(np.diag(full) > 0.0)
    own = np.ix_(free, free)
    L = root(full[own])
    sources = [names[f] for f in part.design.source] + ["intercept"]
    columns = ["agent", "by", "statistic", "dof", "p", "feature", "z"]
    lines: list[tuple[Any, ...]] = []
    for batch in part.batches(np.arange(part.n)):
        k = batch.agents
        T = w + part.D[k]
        C = batch.block(T, family, s2, V).rows(np.broadcast_to(np.eye(q), (len(k), q, q)))
        known = np.trace(C, axis1=1, axis2=2) > 0.0
        M = (C - C @ cov @ C)[:, free][:, :, free]
        a = -batch.gradient(T, family, s2)[:, free]
        value, U = np.linalg.eigh(L.T @ M @ L)
        along = np.einsum("kij,ki->kj", U, a @ L) ** 2
        counts = value > RESOLVED
        statistic, dof = np.sum(np.where(counts, along / np.maximum(value, 1e-12), 0.0), axis=1), counts.sum(axis=1)
        p = np.where(dof > 0, stats.chi2.sf(statistic, np.maximum(dof, 1)), 1.0)
        spread = np.sqrt(np.maximum(np.einsum("ij,kjl,il->ki", full[own], M, full[own]), 1e-300))
        z = np.where(np.diag(full[own]) > 1e-8, (a @ full[own]) / spread, 0.0)
        most = np.abs(z).argmax(axis=1)
        for i in np.flatnonzero(known):
            feature, far = sources[free[most[i]]], float(z[i, most[i]])
            lines.append((int(k[i]), "coefficients", float(statistic[i]), float(dof[i]), float(p[i]), feature, far))
        if isinstance(batch, Batch):
            left = np.eye(q) - full @ C
            lines += _residuals(batch, T, population, left @ full + left @ cov @ left.transpose(0, 2, 1), known)
    return pd.DataFrame(lines, columns=columns).sort_values("agent", kind="stable", ignore_index=True)


def _residuals(
    batch: Batch, T: np.ndarray, population: Population, posterior: np.ndarray, known: np.ndarray
) -> list[tuple[Any, ...]]:
    """Whether the rows of agents fit worse than the noise explains: a chi2 with the mean and variance that it should have.

    ``z`` is how many times as large as expected.
    """
    family, s2, weight, y = population.family, population.s2, batch.weight, batch.y
    latent, m = batch.latent(T), batch.weight.sum(axis=1)
    if family.noisy:
        used = posterior @ batch.hessian(T, family, s2)
        trace, square = np.trace(used, axis1=1, axis2=2), np.einsum("kij,kji->k", used, used)
        factor = 1.0 if not isinstance(family, Student) else (family.dof / (family.dof + 3.0))
        observed = np.sum(weight * family.excess(latent, y, s2), axis=1)  # type: ignore[union-attr]
        mean, variance = m - trace, 2.0 * factor * (m - 2.0 * trace + square)
    else:
        spread = np.maximum(np.einsum("kmq,kqr,kmr->km", batch.X, posterior, batch.X), 0.0)
        if family.name == "logistic":
            latent = latent / np.sqrt(1.0 + np.pi / 8.0 * spread)
            p = np.clip(expit(latent), 1e-12, 1.0 - 1e-12)
            each, middle = family.loss(latent, y, s2), special.entr(p) + special.entr(1.0 - p)
            around = p * (1.0 - p) * np.log(p / (1.0 - p)) ** 2
        else:
            rate = np.exp(np.minimum(latent, LARGEST))
            each, middle, around = (y - rate) ** 2 / rate, np.ones_like(rate), 2.0 + 1.0 / rate
        observed, mean, variance = (np.sum(weight * part, axis=1) for part in (each, middle, around))
    lines: list[tuple[Any, ...]] = []
    for i in np.flatnonzero(known & (mean > 0.5) & (variance > 1e-9)):
        dof, scale = 2.0 * mean[i] ** 2 / variance[i], variance[i] / (2.0 * mean[i])
        p_value = float(stats.chi2.sf(observed[i] / scale, dof))
        ratio = float(observed[i] / mean[i])
        lines.append((int(batch.agents[i]), "residuals", float(observed[i] / scale), float(dof), p_value, "", ratio))
    return lines


# -- choices ----------------------------------------------------------------------------------------------------------


def choices(model: Any, rows: Rows | None) -> pd.DataFrame:
    """The evidence of every candidate; where they were compared on a sample only, the other design is fitted anew."""
    models = model._models
    first = models[0]
    heavy = first.family.name == "student" and model.loss == "auto"
    chosen = f"{first.design_name}, heavy tails" if heavy else first.design_name
    lines = []
    for name in first.evidence:
        if name.split(",")[0] == first.design_name:
            value = float(sum(part.evidence[name] for part in models))
        elif not _compared_on_sample(first, rows):
            value = float(first.evidence[name])
        elif rows is None:
            value = math.nan
        else:
            value = _evidence_of(model, name, rows)
        lines.append((name, value))
    table = pd.DataFrame(lines, columns=["candidate", "log_evidence"])
    table["nats"] = table["log_evidence"] - float(sum(part.log_evidence for part in models))
    table["chosen"] = table["candidate"] == chosen
    return table.sort_values("chosen", ascending=False, kind="stable", ignore_index=True)


def _compared_on_sample(first: Any, rows: Rows | None) -> bool:
    """Whether designs may have been compared on fewer agents than the population was learned from."""
    if isinstance(first, Wide) or first.n <= 100:
        return False
    if rows is None or first.kept is not None:
        return True
    design: Any = first.design
    if not design.splines:
        some = first.grouped.rows(first.grouped.sample(fitted.SAMPLE))
        weight = first.grouped.weight
        design = designs.additive(first.grouped.X[some], None if weight is None else weight[some])
    most = fitted.TRIAL / (max(1.0, len(rows.y) / first.n) * design.size**2)
    return bool(np.clip(most, 100, fitted.SAMPLE) < min(first.n, fitted.SAMPLE))


def _evidence_of(model: Any, design: str, rows: Rows) -> float:
    """Of another design, from the rows that the population was learned from."""
    number = len(model._models)
    targets = [rows.y.astype(float)] if number == 1 else [(rows.y == k).astype(float) for k in range(number)]
    loss = "squared" if model.loss == "auto" and model._kind == "regressor" else model._models[0].family.name
    deviations = "full" if model.deviations == "auto" else model.deviations
    found = pooling.fit(rows.X, targets, rows.codes, len(model.agents_), loss, design, deviations, rows.weight)
    return float(sum(part.log_evidence for part in found))


# -- text -------------------------------------------------------------------------------------------------------------


def _head(summary: dict[str, Any]) -> str:
    rows = f", {summary['rows']:,} rows (median {summary['median_rows']:g} an agent)" if "rows" in summary else ""
    design = f": {summary['design']} design, {summary['loss']} loss" if "design" in summary else ""
    noise = f", noise {_number(summary['noise'])}" if summary.get("noise") is not None else ""
    return (
        f"{summary['estimator']}, method {summary['method']}{design}{noise}\n"
        f"{summary['agents']:,} agents{rows}, {summary['columns']} columns"
    )


def _gains_text(report: Report) -> str:
    if report.gains is None:
        return ""
    summary, table = report.summary, report.gains.dropna(subset="gain_alone")
    errors = summary["errors"]
    lines = [
        f"Gains ({MEASURES[summary['measure']]} on held-out rows, {summary['folds']} folds inside each agent; mean over "
        f"{len(table)} agents)",
        *_table(
            ["", "error", "lowered by", "95 % interval", "relative", "agents that gain"],
            [
                *([name.replace("_", " "), _number(errors[name]), *_gain_cells(summary["gains"][name])] for name in summary["gains"]),
                ["together", _number(errors["together"]), "", "", "", ""],
            ],
        ),
    ]
    ranked = table.sort_values("gain_alone", ascending=False, kind="stable")
    shown = ranked if len(ranked) <= 6 else pd.concat([ranked.head(3), ranked.tail(3)])
    lines.append("  agents by their gain against alone" + ("" if len(ranked) <= 6 else ", the first and the last three"))
    cells = [
        [str(line.agent), f"{line.rows:,}", *(_number(getattr(line, name)) for name in ("alone", "one_model", "together"))]
        for line in shown.itertuples()
    ]
    return "\n".join([*lines, *_table(["agent", "rows", "alone", "one model", "together"], cells)])


def _gain_cells(gain: dict[str, float]) -> list[str]:
    ends = f"{_number(gain['low'])} to {_number(gain['high'])}" if math.isfinite(gain["low"]) else "-"
    count = f"{round(gain['share'] * gain['agents'])} of {gain['agents']}"
    return [_number(gain["mean"]), ends, f"{100 * gain['relative']:.1f} %", count]


def _features_text(table: pd.DataFrame | None) -> str:
    if table is None:
        return ""
    several = ["class"] if "class" in table else []
    shown = table.sort_values("importance", ascending=False, kind="stable").head(SHOWN)
    cells = [
        [
            *(str(getattr(line, "_1")) for _ in several),
            str(line.feature),
            _number(line.common) if math.isfinite(line.common) else "a curve",
            _number(line.sd) if line.kind != "cannot differ" else "cannot differ",
            f"{_number(line.low)} to {_number(line.high)}" if line.kind != "cannot differ" else "",
            f"{100 * line.importance:.1f} %",
        ]
        for line in shown.rename(columns={"class": "_1"}).itertuples()
    ]
    lines = _table([*several, "feature", "common", "sd between agents", "90 % interval", "importance"], cells)
    more = [f"  and {len(table) - len(shown)} more: see .features"] if len(table) > len(shown) else []
    return "\n".join(["Features, by how much of the differences between agents they make", *lines, *more])


def _outliers_text(table: pd.DataFrame | None) -> str:
    if table is None:
        return ""
    title = f"Outliers (at most {100 * FALSE_DISCOVERIES:g} % of those named are expected to be so by chance)"
    if not len(table):
        return f"{title}\n  none: the population explains all agents"
    shown = table.head(SHOWN)
    cells = [
        [
            str(line.agent),
            line.by,
            f"{line.feature} {line.z:+.1f} sd" if line.by == "coefficients" else f"{_number(line.z)} times what was expected",
            f"{line.p:.1e}",
        ]
        for line in shown.itertuples()
    ]
    more = [f"  and {len(table) - len(shown)} more: see .outliers"] if len(table) > len(shown) else []
    return "\n".join([title, *_table(["agent", "by its", "what stands out", "p"], cells), *more])


def _choices_text(report: Report) -> str:
    table = report.choices
    if table is None:
        return ""
    if len(table) == 1:
        candidate = table["candidate"][0]
        return f"Chosen: {candidate}; nothing else was tried (log evidence {_number(table['log_evidence'][0])})"
    cells = [
        [
            line.candidate,
            _number(line.log_evidence) if math.isfinite(line.log_evidence) else "not kept",
            "chosen" if line.chosen else f"{line.nats:+.1f} nats" if math.isfinite(line.nats) else "",
        ]
        for line in table.itertuples()
    ]
    lines = _table(["candidate", "log evidence", ""], cells)
    return "\n".join([f"Chosen by evidence (curves and heavy tails must win by {fitted.MARGIN:g} nats or more)", *lines])


def _listed(title: str, lines: list[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)]) if lines else ""


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: list[str]) -> str:
        rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return "  ".join(["", cells[0].ljust(widths[0]), *rest]).rstrip()

    return [line(head), *map(line, rows)]


def _number(value: float) -> str:
    """Four digits, and no exponent where it can be helped."""
    if value == 0.0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 1e-4 else f"{value:.1e}"


def _objects(values: Sequence[Any]) -> np.ndarray:
    """An array of any values, tuples, too."""
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _plain(value: Any) -> Any:
    """As json has it."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


_Candidates = Callable[..., tuple[np.ndarray, np.ndarray]]
