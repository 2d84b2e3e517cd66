"""What a fitted model has to tell: who gains, which features differ, who stands out, what was chosen and why.

Everything here is computed when :meth:`report` is called, never at fit.
"""

from __future__ import annotations

import copy
import math
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import special, stats

from .. import pooling
from .._laplace import expit, moderated
from .._threads import one_thread
from ..errors import DataError, ParameterError
from ..pooling import fitted
from ..pooling.blocks import Batch, root, times
from ..pooling.families import LARGEST, Student
from ..pooling.fitted import Pooled
from ..pooling.population import Population
from ..pooling.posterior import posterior
from ..pooling.rows import Grouped, dense
from .gains import gains, given_rows, objects

#: Share of agents that are expected to be named an outlier wrongly, among those named.
FALSE_DISCOVERIES = 0.05
#: Directions of a deviation count if an agent's rows settle at least this share of the population's variance in them.
RESOLVED = 0.1
#: Measures of error, and their names.
MEASURES = {
    "rmse": "root mean squared error",
    "log_loss": "log-loss",
    "deviance": "Poisson deviance",
    "wrong": "share of wrong classes",
}
#: An interval from e^-7 to e^7 times its middle, or wider, says that nothing is known.
UNKNOWN = 7.0
#: Lines of a table that are printed.
SHOWN = 12


@dataclass(frozen=True, repr=False, eq=False)
class Report:
    """What ``model.report()`` returns; printing it shows it all, and :meth:`save` writes it as a page for a browser.

    Attributes
    ----------
    summary : dict
        Numbers of agents and rows, and the gains over all agents: of "together" against "alone" and against
        "one_model", each with its mean, standard error, 95 % interval, relative size, and share of agents that gain.
    gains : DataFrame or None
        For each agent: rows, errors on held-out rows alone, with one model for all, and together. None if they could
        not be measured; ``notes`` says why.
    features : DataFrame or None
        For each column (and class, for more than two): its common coefficient, its effect (standard deviation of what
        the common model makes of it), the standard deviation of personal deviations with a 90 % interval, and its
        importance: its share of the predictor's variance between agents. Of a curve, deviations are root mean squares
        over the rows, in units of the label. The intercept is that where columns have their means. Intervals never
        reach 0: a small deviation with a wide interval says that nothing was found. Models without a posterior have
        no intervals: their standard deviation is that of the coefficients as they were learned.
    outliers : DataFrame or None
        Agents whose coefficients are further from the common model, or whose rows fit worse, than the population
        explains: at most 5 % of those named are expected to be named by chance.
    choices : DataFrame or None
        The evidence of everything that was tried, and how far it is from what was chosen, in nats.
    sent : dict
        What agents sent while they learned, where that was counted (wakes, messages, vectors, bytes, rounds), what
        privacy was spent (epsilon, delta), and "words", the same in sentences.
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
    sent: dict[str, Any]
    columns: list[str]
    notes: list[str]
    _model: Any  # as it was
    _rows: Grouped | None
    _tests: pd.DataFrame | None  # of all agents

    def __repr__(self) -> str:
        parts = [_head(self.summary), _gains_text(self), _features_text(self.features), _outliers_text(self.outliers)]
        parts += [
            _choices_text(self.choices),
            _listed("What was done to columns", self.columns or ["nothing: all are numbers"]),
        ]
        parts += [_listed("What was sent", self.sent["words"]) if "vectors" in self.sent else ""]
        return "\n\n".join(part for part in [*parts, _listed("Notes", self.notes)] if part)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as a page for a browser: one HTML file that needs nothing else, no network either.

        It holds names, numbers of rows, errors and models of all agents, and the ranges of their columns; no rows, but
        models of few rows tell what these were: share it with those who may see the data.

        Parameters
        ----------
        path : path
            Of the file, such as "report.html"; one that is there is replaced.

        Returns
        -------
        Path

        Examples
        --------
        >>> import tempfile
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], [0.0, 2.1, 3.9, 6.0], ["ann", "bob", "ann", "bob"]
        >>> report = ct.CollaborativeRegressor().fit(X, y, agents=ids).report(folds=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report.save(f"{folder}/report.html").name
        'report.html'
        """
        from .page import write

        return write(self, path)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and text, as json has them; None for what is not a finite number."""
        tables = {name: getattr(self, name) for name in ("gains", "features", "outliers", "choices")}
        found = {name: None if table is None else table.to_dict(orient="records") for name, table in tables.items()}
        rest = {"sent": self.sent, "columns": self.columns, "notes": self.notes}
        return plain({"summary": self.summary} | found | rest)


def report(
    model: Any,
    path: str | os.PathLike[str] | None = None,
    folds: int = 5,
    random_state: int = 0,
    X: Any = None,
    y: Any = None,
    agents: Any = None,
) -> Report:
    """See :meth:`coterie.CollaborativeRegressor.report`."""
    model._check_fitted()
    if path is not None:
        from .page import check_path

        check_path(path)  # before minutes of work
    if (X is None) != (y is None):
        raise ParameterError("report takes X and y together, or neither")
    parts = model._models.parts
    rows = model._models.rows() if X is None else given_rows(model, X, y, agents)[0]
    notes: list[str] = []
    with one_thread():
        try:
            if rows is None:
                raise DataError(
                    "a model from a file has no rows, nor has one from a cluster; to measure them, give the rows "
                    "of the fit: report(X=X, y=y, agents=agents), or coterie inspect MODEL --data TABLE"
                )
            table, measured = gains(model, rows, folds, random_state, notes)
        except DataError as error:
            table, measured = None, {}
            notes.append(f"gains are not available: {error}")
        found = features(model) if parts else _features_without_posterior(model, rows)
        tested = tests(model) if parts and parts[0].has_intervals else None
        chosen = choices(model, rows) if parts else None
    notes += _notes(model) if parts else _notes_without_posterior(model, found)
    told = Report(
        _summary(model, rows) | measured,
        table,
        found,
        None if tested is None else outliers(model, tested),
        chosen,
        sent(model),
        list(model._columns.notes),
        notes,
        copy.copy(model),  # a fit anew does not change what is told
        rows,
        tested,
    )
    if path is not None:
        told.save(path)
    return told


def _summary(model: Any, rows: Grouped | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "estimator": type(model).__name__,
        "method": str(model.method),
        "agents": len(model.agents_),
        "columns": len(model._columns.names),
        **model._models.summary(),
    }
    if model._models.parts and model._kind == "regressor":
        found["noise"] = model.noise_
    if model._kind == "classifier" and len(model.classes_) == 2:
        found["log_odds_of"] = str(model.classes_[1])
    names = {"agents": "agent_column", "target": "target"}
    found |= {names[of]: name for of, name in model._given_names.items()}
    sizes = sizes_of(model, rows)
    if sizes is not None:
        found |= {"rows": int(sizes.sum()), "median_rows": float(np.median(sizes))}
    return found


def sizes_of(model: Any, rows: Grouped | None) -> np.ndarray | None:
    """Rows of each agent, if they are known."""
    if model._models.parts:
        return np.asarray(model._models.parts[0].sizes)
    return None if rows is None else rows.sizes


def _notes(model: Any) -> list[str]:
    """How agents never met are predicted, and where the approximation ends."""
    first, edges, classifies = model._models.parts[0], model._models.edges, model._kind == "classifier"
    low, high = (end(part.new_share for part in model._models.parts) for end in (min, max))
    by = "one model of all rows: that did best for held-out agents"
    if high == 0.0:
        by = "the common model"
    elif low < 1.0:
        parts = " to ".join(dict.fromkeys(f"{100 * end:.0f} %" for end in (low, high)))
        by = f"a mixture of the common model and, {parts}, {by}"
    notes = {
        "there is one agent, so nothing is known of how agents differ; its own model is in coef_": first.n == 1,
        "no agent has two rows, so differences between agents cannot be told from noise: the sd between agents, the "
        "noise, and how far each agent's model is from the common one are a guess": (
            first.n > 1 and _differences_are_a_guess(model)
        ),
        f"an agent never met is predicted by {by}": True,
        "for classes and counts, intervals of the sd between agents are rough: with a dozen rows an agent they hold "
        "the truth less often than they say": not first.family.noisy,
    }
    if edges is not None:
        paid = f"of strength {edges.strength:g}" if edges.strength > 0.0 else "not used, since they did not pay"
        gain, error = number_in_words(edges.gain), number_in_words(edges.error)
        fell = f"the mean loss of held-out rows fell by {gain} (standard error {error})"
        notes[f"edges between agents are {paid}: {fell}"] = True
    notes |= {
        "most agents have at most 3 rows: variances between agents are underestimated for classes (Laplace's "
        "approximation ends there); common model and predictions are still sound": (
            classifies and np.median(first.sizes) <= 3
        ),
        "the model has no rows of its own, so outliers are looked for by coefficients, and not by residuals": (
            first.has_intervals and model._models.rows() is None
        ),
        "with so many columns, outliers are not looked for, and there are no intervals of coefficients": (
            not first.has_intervals
        ),
    }
    return [note for note, holds in notes.items() if holds]


def _notes_without_posterior(model: Any, found: pd.DataFrame | None) -> list[str]:
    """What such models cannot tell, and how the others are predicted."""
    unnamed = "nothing is said of features: what the models are made of has no names, or there are no rows"
    return [
        f"method={model.method!r} has no population and no posterior: there are no intervals of coefficients, no tests "
        "for outliers and no evidence",
        *([unnamed] if found is None else []),
        "an agent never met is predicted by the mean of all models, by rows",
    ]


def sent(model: Any) -> dict[str, Any]:
    """What was sent, and what privacy was spent."""
    runs, on_cluster = model._models.runs, model.get_params(deep=False).get("engine") is not None
    if not runs:
        if not model._models.parts:
            unknown = "What was sent is not known: a model from a file does not keep its run."
        elif on_cluster:
            unknown = "Rows stayed with the workers of the cluster: models and sums travelled, and were not counted."
        elif model._models.rows() is None:
            unknown = "Whether anything was sent is not known: a model from a file does not say where its rows were."
        else:
            unknown = "Nothing was sent: all rows were in one place, and the models were learned there."
        return {"words": [unknown, _NOT_PRIVATE]}
    counted = ("wakes", "rounds", "messages", "vectors", "bytes", "lost", "duplicated")
    found: dict[str, Any] = {
        name: int(sum(getattr(run, name) for run in runs)) for name in counted if hasattr(runs[0], name)
    }
    epsilon, delta = (getattr(runs[0], name, None) for name in ("epsilon", "delta"))
    private = epsilon is not None and delta is not None
    if private:
        found |= {"epsilon": epsilon, "delta": delta}
    words = _sent_words(found, max(1, len(model.agents_)))
    if found["vectors"] and not on_cluster:
        words.append("That is a simulation in one process: messages were counted, and nothing left this computer.")
    if found["vectors"] and model._kind == "classifier" and model._takes_long:
        words.append("The runs that calibrate probabilities are not counted.")
    claim = f"Everything that an agent sent is ({epsilon:g}, {delta:g})-differentially private." if private else ""
    return found | {"words": [*words, claim or _NOT_PRIVATE]}


def _sent_words(found: dict[str, Any], n: int) -> list[str]:
    """What was counted, in sentences."""
    if not found["vectors"]:
        return ["Nothing was sent: the models were learned in one place."]
    total = f"{_bytes(found['bytes'])} in all, {_bytes(found['bytes'] / n)} for each agent."
    if "wakes" not in found:
        rounds, vectors = f"{found['rounds']:,}", f"{found['vectors']:,}"
        return [f"In {rounds} rounds, server and workers sent each other {vectors} vectors: {total}"]
    woke = f"Agents woke {found['wakes']:,} times, {found['wakes'] / n:,.0f} each"
    words = [f"{woke}, and sent {found['vectors']:,} vectors in {found['messages']:,} messages: {total}"]
    if found["lost"] or found["duplicated"]:
        words.append(f"The network lost {found['lost']:,} messages, and delivered {found['duplicated']:,} twice.")
    return words


_NOT_PRIVATE = "No privacy budget was spent: the models were learned in the clear, and claim no differential privacy."


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.3g} {unit}"
    return f"{count:,.0f} bytes"


# -- features ---------------------------------------------------------------------------------------------------------


#: Rows that say how columns vary, at most.
VARYING = 20_000


def _features_without_posterior(model: Any, rows: Grouped | None) -> pd.DataFrame | None:
    """As :func:`features`, of coefficients as they were learned: there are no intervals."""
    inputs, (own, levels) = model._models.inputs, model._models.weights()
    groups = inputs.groups(model._columns.names)
    if groups is None or (rows is None and not inputs.are_columns):
        return None
    means, blocks = None, [np.full((len(at), len(at)), math.nan) for _, at in groups]
    if rows is not None:
        some = np.random.default_rng(0).permutation(len(rows.y))[:VARYING]
        means, blocks = _varying(inputs.of(rows.X[some]), [at for _, at in groups])
    tables = []
    for k in range(own.shape[1]):
        weight, lines = own[:, k], []
        level = levels[:, k] if means is None else levels[:, k] + weight @ means
        apart = weight[:-1] - weight[:-1].mean(axis=0)
        for (name, at), G in zip(groups, blocks, strict=True):
            total = float(np.mean(np.einsum("ij,jk,ik->i", apart[:, at], G, apart[:, at])))
            effect = math.sqrt(max(0.0, float(weight[-1, at] @ G @ weight[-1, at]))) if rows is not None else math.nan
            curve = inputs.stumps is not None
            sd = math.sqrt(max(0.0, total)) if curve else float(np.std(weight[:-1, at[0]]))
            value = math.nan if curve else float(weight[-1, at[0]])
            lines.append((name, "curve" if curve else "line", value, effect, sd, math.nan, math.nan, total))
        sd, total = float(np.std(level[:-1])), float(np.var(level[:-1])) if rows is not None else math.nan
        lines.append(("intercept", "intercept", float(level[-1]), math.nan, sd, math.nan, math.nan, total))
        tables.append(lines)
    return _feature_table(model, tables)


def _feature_table(model: Any, outputs: list[list[tuple[Any, ...]]]) -> pd.DataFrame:
    """Features of each output, in the order of their shares of what differs between agents."""
    columns, tables = ["feature", "kind", "common", "effect", "sd", "low", "high", "importance"], []
    for k, lines in enumerate(outputs):
        table = pd.DataFrame(lines, columns=columns)
        table["importance"] /= max(float(table["importance"].sum()), 1e-300)
        if len(outputs) > 1:
            table.insert(0, "class", objects([model.classes_[k]] * len(table)))
        tables.append(table.sort_values("importance", ascending=False, kind="stable", ignore_index=True))
    return pd.concat(tables, ignore_index=True)


def _varying(Z: Any, groups: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Means of inputs, and covariances of those that belong together."""
    means = np.asarray(Z.mean(axis=0)).ravel()
    blocks = []
    for at in groups:
        part = dense(Z[:, at]) - means[at]
        blocks.append(part.T @ part / len(part))
    return means, blocks


def features(model: Any, coverage: float = 0.9) -> pd.DataFrame:
    """How much every column differs between agents; of several classes, for each of them."""
    return _feature_table(model, [_features_of(model, part, coverage) for part in model._models.parts])


def _features_of(model: Any, part: Any, coverage: float) -> list[tuple[Any, ...]]:
    names = model._columns.names
    raw, log_sd = part.variances()
    w, V, source, curves = part.w, part.covariance, part.source, part.curves
    v = V if V.ndim == 1 else np.diag(V)
    if part.has_intervals:
        log_sd = _log_sd(part, model.deviations == "scalar")
    common = part.coefficients()[0]
    guess = _differences_are_a_guess(model)
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
        known = 0.5 * z * spread < UNKNOWN and not (guess and sd > 0.0)
        factor = math.exp(0.5 * z * spread) if known else math.inf
        lines.append((name, kind, value, effect, sd, sd / factor, sd * factor, total))
    return lines


def _differences_are_a_guess(model: Any) -> bool:
    """Whether rows cannot tell differences between agents from noise: of one agent, and of agents with one row each."""
    first = model._models.parts[0]
    return len(model.agents_) == 1 or (first.family.name != "poisson" and int(np.max(first.sizes)) <= 1)


def _log_sd(part: Pooled, scalar: bool) -> np.ndarray:
    """How uncertain the logarithms of variances are: one standard deviation.

    A full V is hardly shrunk, so that each is known as far as the agents tell. Those of a diagonal V are pooled,
    log v_k ~ N(mu, tau2): ``Population.log_sd`` takes mu as known; here it is not. One variance of all slopes is what
    all of them tell.
    """
    population, out = part.population, part.population.log_sd.copy()
    v, q = population.variances, part.design.size
    free = np.flatnonzero(v[:-1] > 0.0)
    if scalar:
        out[free] = 1.0 / np.sqrt(np.sum(out[free] ** -2.0)) if len(free) else 0.0
        return out
    G = np.zeros((q, q))
    for batch in part.batches(np.arange(part.n)):
        block = batch.block(population.w + part.D[batch.agents], population.family, population.s2, population.V)
        G += block.sum() - block.sandwich(population.cov)
    counted = np.clip(np.diag(times(population.V, times(population.V, G).T))[free] / v[free], 0.0, part.n)
    information = np.maximum(counted**2 / (2.0 * part.n), 1e-12)
    prior = np.maximum(out[free] ** -2.0 - information, 0.0)
    if population.V.ndim == 2:
        out[free] = 1.0 / np.sqrt(information)
    elif np.any(prior > 1e-6):
        mean = 1.0 / np.sum(1.0 / (1.0 / information + 1.0 / np.maximum(prior, 1e-12)))
        out[free] = np.sqrt(out[free] ** 2 + (prior / (information + prior)) ** 2 * mean)
    return out


def _gram(part: Pooled) -> np.ndarray:
    """Mean of x x' over the rows, x as the design has it; without rows, weighted as the losses are curved."""
    q = part.design.size
    total = np.zeros((q, q))
    if part.kept is not None:
        total = part.kept.curvature()
        return total / max(float(total[-1, -1]), 1e-300)
    X, weight = part.grouped.X, part.grouped.weight
    for first in range(0, len(X), 20_000):
        A = part.design.columns(X[first : first + 20_000])
        total += (A if weight is None else A * weight[first : first + 20_000, None]).T @ A
    return total / max(float(total[-1, -1]), 1e-300)


# -- outliers ---------------------------------------------------------------------------------------------------------


def tests(model: Any) -> pd.DataFrame:
    """Both tests of all agents, by their coefficients and by their residuals; agents by their numbers."""
    tables = []
    for k, part in enumerate(model._models.parts):
        table = _tests(part, model._columns.names, model._models.graph is not None)
        if len(model._models.parts) > 1:
            table.insert(1, "class", objects([model.classes_[k]] * len(table)))
        tables.append(table)
    every = pd.concat(tables, ignore_index=True)
    every["q"] = stats.false_discovery_control(every["p"])  # of Benjamini and Hochberg
    return every


def outliers(model: Any, tested: pd.DataFrame | None = None) -> pd.DataFrame:
    """Agents that the population does not explain."""
    every = tests(model) if tested is None else tested
    found = every[every["q"] < FALSE_DISCOVERIES].sort_values("p", kind="stable", ignore_index=True)
    found["agent"] = objects([model.agents_[k] for k in found["agent"]])
    return found


def _tests(part: Pooled, names: Sequence[str], tied: bool = False) -> pd.DataFrame:
    """Both tests of every agent that has rows; of deviations as they are without edges.

    The posterior mean of a deviation has the covariance V (C_i - C_i S^-1 C_i) V over all that could have been seen;
    its square in these units is chi2 with as many degrees of freedom as directions that the rows settle.
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
        T = w + (posterior(batch, population) if tied else part.D[k])
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
    """Whether the rows of agents fit worse than the noise explains: by a scaled chi2 of the right mean and variance.

    ``z`` says how many times as large as expected the squared residuals (or losses) are.
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
            latent = moderated(latent, spread)
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


def choices(model: Any, rows: Grouped | None) -> pd.DataFrame:
    """The evidence of every candidate; where they were compared on a sample only, the other design is fitted anew."""
    models = model._models.parts
    first = models[0]
    heavy = first.family.name == "student" and model.loss == "auto"
    chosen = f"{first.design_name}, heavy tails" if heavy else first.design_name
    lines = []
    for name in first.evidence:
        if name.split(",")[0] == first.design_name:
            value = float(sum(part.evidence[name] for part in models))
        elif not first.sampled:
            value = float(first.evidence[name])
        elif rows is None:
            value = math.nan
        else:
            value = _evidence_of(model, name, rows)
        lines.append((name, value))
    table = pd.DataFrame(lines, columns=["candidate", "log_evidence"])
    table["held_out_loss"] = [first.held_out.get(name, math.nan) for name in table["candidate"]]
    table["nats"] = table["log_evidence"] - float(sum(part.log_evidence for part in models))
    table["chosen"] = table["candidate"] == chosen
    return table.sort_values("chosen", ascending=False, kind="stable", ignore_index=True)


def _evidence_of(model: Any, design: str, rows: Grouped) -> float:
    """Of another design, from the rows that the population was learned from."""
    number = len(model._models.parts)
    targets = [rows.y.astype(float)] if number == 1 else [(rows.y == k).astype(float) for k in range(number)]
    loss = "squared" if model.loss == "auto" and model._kind == "regressor" else model._models.parts[0].family.name
    deviations = "full" if model.deviations == "auto" else model.deviations
    found = pooling.fit(rows.X, targets, rows.codes, len(model.agents_), loss, design, deviations, rows.weight)
    return float(sum(part.log_evidence for part in found))


# -- text -------------------------------------------------------------------------------------------------------------


def _head(summary: dict[str, Any]) -> str:
    rows = f", {summary['rows']:,} rows (median {summary['median_rows']:g} an agent)" if "rows" in summary else ""
    design = f": {summary['design']} design, {summary['loss']} loss" if "design" in summary else ""
    noise = f", noise {number_in_words(summary['noise'])}" if summary.get("noise") is not None else ""
    if "log_odds_of" in summary:
        noise = f", log-odds of {summary['log_odds_of']!r}"
    return (
        f"{summary['estimator']}, method {summary['method']}{design}{noise}\n"
        f"{summary['agents']:,} agent{'s' if summary['agents'] > 1 else ''}{rows}, {summary['columns']} columns"
    )


def _gains_text(report: Report) -> str:
    if report.gains is None:
        return ""
    summary, table = report.summary, report.gains.dropna(subset="gain_alone")
    cells = [["together", number_in_words(summary["errors"]["together"]), "", "", "", ""]]
    for name, gain in reversed(summary["gains"].items()):
        interval, count = (
            _interval(gain["low"], gain["high"]),
            f"{round(gain['share'] * gain['agents'])} of {gain['agents']}",
        )
        told = [number_in_words(gain["mean"]), interval, f"{100 * gain['relative']:.1f} %", count]
        cells.insert(0, [name.replace("_", " "), number_in_words(summary["errors"][name]), *told])
    ranked, few = table.sort_values("gain_alone", ascending=False, kind="stable"), len(table) <= 6
    shown = ranked if few else pd.concat([ranked.head(3), ranked.tail(3)])
    names = ["alone", "one_model", "together"]
    agents = [
        [str(line["agent"]), f"{line['rows']:,}", *(number_in_words(line[name]) for name in names)]
        for line in shown.to_dict(orient="records")
    ]
    return "\n".join(
        [
            f"Gains ({MEASURES[summary['measure']]} on held-out rows, {summary['folds']} folds inside each agent; mean "
            f"over {len(table)} agents)",
            *_table(["", "error", "lowered by", "95 % interval", "relative", "agents that gain"], cells),
            "  agents by their gain against alone" + ("" if few else ", the first and the last three"),
            *_table(["agent", "rows", "alone", "one model", "together"], agents),
        ]
    )


def _features_text(table: pd.DataFrame | None) -> str:
    if table is None:
        return ""
    named, cells = [name for name in ("class", "feature") if name in table], []
    for line in table.sort_values("importance", ascending=False, kind="stable").head(SHOWN).to_dict(orient="records"):
        fixed = line["kind"] == "cannot differ"
        cells.append(
            [
                *(str(line[name]) for name in named),
                number_in_words(line["common"]) if math.isfinite(line["common"]) else "a curve",
                "cannot differ" if fixed else number_in_words(line["sd"]),
                _interval(line["low"], line["high"]) if not (fixed or math.isnan(line["low"])) else "",
                f"{100 * line['importance']:.1f} %" if math.isfinite(line["importance"]) else "",
            ]
        )
    head = [*named, "common", "sd between agents", "90 % interval", "importance"]
    return _section("Features, by how much of the differences between agents they make", head, cells, table, "features")


def _outliers_text(table: pd.DataFrame | None) -> str:
    if table is None:
        return ""
    title = f"Outliers (at most {100 * FALSE_DISCOVERIES:g} % of those named are expected to be so by chance)"
    cells = []
    for line in table.head(SHOWN).to_dict(orient="records"):
        told = f"{line['feature']} {line['z']:+.1f} sd"
        if line["by"] == "residuals":
            told = f"{number_in_words(line['z'])} times what was expected"
        of = f" of {line['class']}" if "class" in line else ""
        cells.append([str(line["agent"]), line["by"] + of, told, f"{line['p']:.1e}"])
    return _section(title, ["agent", "by its", "what stands out", "p"], cells, table, "outliers")


def _choices_text(table: pd.DataFrame | None) -> str:
    if table is None:
        return ""
    if len(table) == 1:
        candidate, evidence = table["candidate"][0], number_in_words(table["log_evidence"][0])
        return f"Chosen: {candidate}; nothing else was tried (log evidence {evidence})"
    head, cells = ["candidate", "log evidence", "loss of rows left out", ""], []
    for line in table.to_dict(orient="records"):
        known, loss = math.isfinite(line["log_evidence"]), line["held_out_loss"]
        evidence = number_in_words(line["log_evidence"]) if known else "not kept"
        verdict = "chosen" if line["chosen"] else f"{line['nats']:+.1f} nats" if known else ""
        cells.append([line["candidate"], evidence, number_in_words(loss) if math.isfinite(loss) else "", verdict])
    if table["held_out_loss"].isna().all():
        head, cells = [*head[:2], head[3]], [[*line[:2], line[3]] for line in cells]
    title = f"Chosen by evidence (curves and heavy tails must win by {fitted.MARGIN:g} nats or more"
    return _section(f"{title}, curves also on rows left out)", head, cells, table, "choices")


def _section(title: str, head: list[str], cells: list[list[str]], table: pd.DataFrame, name: str) -> str:
    """A title, the first lines of a table, and how many more there are."""
    if not cells:
        return f"{title}\n  none"
    more = [f"  and {len(table) - len(cells)} more: see .{name}"] if len(table) > len(cells) else []
    return "\n".join([title, *_table(head, cells), *more])


def _listed(title: str, lines: list[str]) -> str:
    """A title and lines below it, none of them too long for a terminal."""
    filled = [textwrap.fill(line, 110, initial_indent="  ", subsequent_indent="    ") for line in lines]
    return "\n".join([title, *filled]) if lines else ""


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: list[str]) -> str:
        rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return "  ".join(["", cells[0].ljust(widths[0]), *rest]).rstrip()

    return [line(head), *map(line, rows)]


def _interval(low: float, high: float) -> str:
    return f"{number_in_words(low)} to {number_in_words(high)}" if math.isfinite(high) else "not known"


def number_in_words(value: float) -> str:
    """Four digits, and no exponent where it can be helped."""
    if value == 0.0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 1e-4 else f"{value:.1e}"


def plain(value: Any) -> Any:
    """As json has it."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
