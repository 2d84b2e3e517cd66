"""Accuracy or error of all methods on all real datasets, for all agents and the worst tenth; bytes; CPU time.

Pooling and mixed models learn their strengths; all else is tuned by 3-fold cross-validation on training rows. Descent,
ADMM and DJAM reach the optimum of the same objective, so that the three share what was tuned for it; they differ in
what they send and compute. Beside our methods are those that people use for grouped data, see :mod:`.rivals`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.spatial.distance import pdist, squareform
from sklearn.base import clone, is_classifier
from sklearn.decomposition import TruncatedSVD
from sklearn.exceptions import ConvergenceWarning

from coterie import datasets, graphs
from coterie.datasets import RealTask
from coterie.datasets.real import agent_scores
from coterie.datasets.sources import find, missing, source_of
from coterie.engines.wire import messages_size
from coterie.errors import CoterieError, ExtrapolationWarning, MissingDataError
from coterie.estimators import CollaborativeClassifier, CollaborativeRegressor
from coterie.estimators.boosted import BoostedClassifier, BoostedRegressor
from coterie.estimators.relationship import RelationshipClassifier, RelationshipRegressor
from coterie.estimators.tuning import tune
from coterie.graphs import Graph
from coterie.plots import BLUE, GREY, RED

from .._experiment import Plan, Row, where
from .._figures import sheet
from .rivals import Gossip, Mixed, OneHot, Trees, installed

MINUTES = 30.0
#: Real datasets: the file, and how it is loaded. Sizes are such that everything ends on a laptop.
TASKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "school": ("school", "school", {}),
    "parkinsons": ("parkinsons", "parkinsons", {"train_size": 0.2}),
    "school pass": ("school", "school_pass", {}),
    "computers": ("computers", "computer_buyers", {}),
    "harws": ("harws", "human_activity", {"train_size": 0.05}),
    "vehicle": ("vehicle_ditto_train", "vehicle_sensor", {"train_size": 0.5}),
    "landmine": ("landmine", "landmine", {"train_size": 0.2}),
    "mnist": ("mnist", "mnist_one_vs_all", {"rows": 100}),
    "sentiment 4": ("mds4", "sentiment", {"domains": 4, "train_size": 0.1}),
    "sentiment 14": ("mds14", "sentiment", {"domains": 14, "train_size": 0.1}),
}
#: More features than this are replaced by so many singular directions: the exact solvers look at p x p matrices.
MANY, COMPONENTS = 100, 50
#: These have more; pooling takes them as they are, too.
WIDE = ("harws", "mnist", "sentiment 4", "sentiment 14")
QUICK = ("vehicle", "parkinsons")

#: Methods that need no graph, in some of their forms; and those that do, each on each kind of graph.
WITHOUT = (
    ("pooling", ""),
    ("pooling", "linear"),
    ("pooling", "all"),
    ("gossip", ""),
    ("local", ""),
    ("global", ""),
    ("one-hot", ""),
    ("mixed", "gpboost"),
    ("mixed", "statsmodels"),
    ("trees", "category"),
    ("trees", "each"),
    ("relationship", ""),
)
ON_GRAPHS = ("propagation", "admm", "cd", "djam", "boosting")
KINDS = ("given", "knn", "learn")
#: Methods by whose hyper-parameters they use.
FAMILY = {"admm": "cd", "djam": "cd"}
#: What is tried. Methods that are not here have nothing to tune.
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "local": {"ridge": ("1/m", 0.01, 0.1, 1.0)},
    "global": {"ridge": (1e-4, 1e-2, 0.1)},
    "one-hot": {"ridge": (0.1, 1.0, 10.0, 100.0)},
    "trees": {"leaf": (3, 10, 30), "rounds": (30, 200)},
    "relationship": {"lam": (1e-3, 1e-2, 0.1)},
    "propagation": {"coupling": (1 / 0.03, 1 / 0.3, 1 / 3, 1 / 30)},
    "cd": {"coupling": (10.0, 1.0, 0.1, 0.01)},
    "boosting": {"beta": (1.0, 10.0), "coupling": (0.1, 1.0)},
}
#: Packages that a method needs beside ours, by its form.
PACKAGES = {"gpboost": "gpboost", "statsmodels": "statsmodels", "category": "lightgbm", "each": "lightgbm"}
#: What is for some datasets only: forms for many columns, and for numbers to predict; and a method that takes too long
#: on others, where tasks have rows of one class only.
ONLY = {
    "all": WIDE,
    "statsmodels": ("school", "parkinsons"),
    "relationship": tuple(name for name in TASKS if name not in ("computers", "harws", "vehicle")),
}
#: Relative distance to the optimum at which a fit ends; wakes of each agent, at most; stumps, and wakes, of boosting.
TOLERANCE, WAKES, STUMPS, STEPS = 1e-3, 2_000, 200, 400
GREEN, ORANGE = "#3a9a5b", "#e08a1e"
NAMES = {
    "gossip": "pooling by gossip",
    "one-hot": "pooled + one-hot",
    "mixed": "mixed model",
    "trees": "LightGBM",
    "cd": "descent",
    "admm": "ADMM",
    "djam": "DJAM",
    "all": "all columns",
    "gpboost": "GPBoost",
    "category": "agent as category",
    "each": "per agent",
    "knn": "k-NN",
    "learn": "learned",
}


def load(dataset: str, reduced: bool = True) -> RealTask:
    """A dataset with features of mean 0 and variance 1; many become the first singular directions of training rows."""
    _, loader, options = TASKS[dataset]
    task: RealTask = getattr(datasets, loader)(**options)
    if not task.train.is_sparse:
        task = task.scaled()
    if reduced and task.train.p > MANY:
        found = TruncatedSVD(COMPONENTS, random_state=0).fit(task.train.X)
        train, test = (data.with_features(found.transform(data.X)) for data in (task.train, task.test))
        task = replace(task, train=train, test=test, feature_names=None).scaled()
    return task


def given(task: RealTask) -> Graph:
    """A graph that is known before any model: of agents with similar covariates, or of all with all."""
    covariates = task.auxiliary.get("covariates")
    if covariates is None:
        return graphs.complete(task.train.n)
    spread = covariates.std(axis=0)
    apart = squareform(pdist(covariates[:, spread > 0] / spread[spread > 0]))
    np.fill_diagonal(apart, np.inf)
    reach = np.sort(apart, axis=1)[:, min(5, task.train.n - 1) - 1]
    return Graph((apart <= np.maximum.outer(reach, reach)).astype(float))  # all that are as near as the fifth


def estimator(task: RealTask, method: str, kind: str) -> Any:
    """The estimator of a method on a kind of graph, or in one of its forms, before anything is tuned."""
    classes = task.kind == "classification"
    linear = CollaborativeClassifier if classes else CollaborativeRegressor
    if method == "pooling":
        return linear(design="linear" if kind == "linear" else "auto")
    if method == "trees":
        return Trees(classes, each=kind == "each")
    if method == "mixed":
        return Mixed(classes, package=kind)
    if method in ("gossip", "one-hot"):
        return Gossip(classes) if method == "gossip" else OneHot(classes)
    if method == "relationship":
        return RelationshipClassifier(tol=TOLERANCE) if classes else RelationshipRegressor(tol=TOLERANCE)
    graph: Any = given(task) if kind == "given" else kind
    if method == "boosting":
        boosted = BoostedClassifier if classes else BoostedRegressor
        return boosted(base=STUMPS, graph=graph, max_iter=STEPS)
    options = {"graph": graph} if kind else {}
    return linear(method=method, tol=TOLERANCE, max_iter=WAKES, **options)


def parts(data: Any) -> tuple[Any, Any, np.ndarray]:
    """Rows, labels, and agents."""
    return data.X, data.y, np.asarray(data.members)[data.owner]


def entrants() -> list[tuple[str, str]]:
    """Methods, and their forms or kinds of graphs, that take part."""
    return [*WITHOUT, *((method, kind) for method in ON_GRAPHS for kind in KINDS)]


def _asked(name: str, method: str, kind: str) -> Row:
    """Settings of a piece. One that needs another package has its version, or its absence, among them."""
    settings = {"dataset": name, "method": method, "kind": kind}
    if kind in PACKAGES:
        settings["package"] = installed(PACKAGES[kind])
    return settings


def plan(quick: bool) -> Plan:
    names = [name for name in (QUICK if quick else TASKS) if find(TASKS[name][0]) is not None]
    if not names:
        raise MissingDataError(f"no dataset of the leaderboard is there: {missing(source_of(TASKS[QUICK[0]][0]))}")
    chosen = [
        (name, method, kind)
        for name in names
        for method, kind in entrants()
        if name in ONLY.get(kind or method, names) and not (quick and kind in ("given", "knn"))
    ]
    tuned = yield [
        {"stage": "tune", "values": 2 if quick else 9, **_asked(*each)} for each in chosen if each[1] in GRIDS
    ]
    settings = {(row["dataset"], row["method"], row["kind"]): row["parameters"] for row in tuned}
    pieces = []
    for name, method, kind in chosen:
        parameters = settings.get((name, FAMILY.get(method, method), kind), {})
        if parameters is not None:
            pieces.append({"stage": "test", **_asked(name, method, kind), "parameters": parameters})
    yield pieces


def work(
    stage: str,
    dataset: str,
    method: str,
    kind: str,
    values: int = 0,
    parameters: Mapping[str, Any] | None = None,
    package: str = "",
) -> Row:
    if "not installed" in package:
        return {"refused": package} | ({"parameters": None} if stage == "tune" else {})
    task = load(dataset, reduced=kind != "all")
    model = estimator(task, method, kind)
    if stage == "tune":
        grid = {name: tried[:values] for name, tried in GRIDS[method].items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            try:
                found = tune(model, *parts(task.train), grid, scoring=_over_agents, refit=False)
            except CoterieError as error:
                return {"parameters": None, "refused": str(error)}
        return {"parameters": found.best_params_, "validation": found.best_score_}
    model.set_params(**(parameters or {}))
    X, y, agents = parts(task.train)
    if method == "gossip":  # compiled before it is timed, as those are that were tuned
        clone(model).set_params(wakes=1).fit(X, y, agents=agents)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ConvergenceWarning)
        start = time.process_time()
        model.fit(X, y, agents=agents)
        seconds = time.process_time() - start
    X, y, agents = parts(task.test)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExtrapolationWarning)  # all methods are asked for the same rows
        scores = agent_scores(task.test, model.predict(X, agents=agents), task.kind)
    scores = scores[task.test.sizes > 0]
    worst = np.sort(scores)[:: 1 if task.kind == "classification" else -1][: int(np.ceil(scores.size / 10))]
    return {
        "metric": "accuracy" if task.kind == "classification" else "rmse",
        "score": scores.mean(),
        "error": scores.std(ddof=1) / np.sqrt(scores.size),
        "worst tenth": worst.mean(),
        "bytes": _sent(task, method, kind, model),
        "cpu seconds": seconds,
        "converged": not any(issubclass(each.category, ConvergenceWarning) for each in said),
        "chosen": model.design_ if method == "pooling" else getattr(model, "chosen_", ""),
    }


def _sent(task: RealTask, method: str, kind: str, model: Any) -> int | None:
    """Return the bytes sent by all agents; None if the method needs rows of all agents in one place."""
    if method == "local" or kind == "each":
        return 0
    if method in ("pooling", "global", "one-hot", "mixed", "trees"):
        return None
    # Nearest neighbours are found among the models of all: somebody has to see them.
    n, p = model.run_.theta.shape if kind == "knn" else (0, 0)
    search = messages_size(n * (n - 1), n * (n - 1) * p)
    return int(model.run_.bytes) + search


def _over_agents(model: Any, X: Any, y: np.ndarray, agents: np.ndarray) -> float:
    """The mean over agents of their accuracy, or of minus their root mean squared error: what the table shows."""
    found = model.predict(X, agents=agents)
    wrong = found != y if is_classifier(model) else np.square(found - y)
    _, who = np.unique(agents, return_inverse=True)
    mean = np.bincount(who, weights=wrong) / np.bincount(who)
    return float(np.mean(1.0 - mean if is_classifier(model) else -np.sqrt(mean)))


CLAIMS = ()  # no paper has made any


def _label(method: str, kind: str) -> str:
    return NAMES.get(method, method) + (f", {NAMES.get(kind, kind)}" if kind else "")


def _tests(rows: list[Row], dataset: str) -> list[Row]:
    """Results on a dataset."""
    return [row for row in where(rows, stage="test", dataset=dataset) if "score" in row]


def tables(rows: list[Row]) -> dict[str, pd.DataFrame]:
    """For each dataset, a line for each method."""
    found = {}
    for name in dict.fromkeys(row["dataset"] for row in rows):
        lines = []
        for row in _tests(rows, name):
            tuned = [
                f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
                for key, value in row["parameters"].items()
            ]
            lines.append(
                {
                    "method": _label(row["method"], row["kind"]),
                    row["metric"]: row["score"],
                    "±": row["error"],
                    "worst tenth": row["worst tenth"],
                    "MB sent": np.nan if row["bytes"] is None else row["bytes"] / 1e6,
                    "CPU s": row["cpu seconds"],
                    "tuned or learned": ", ".join(tuned) or row["chosen"],
                    "converged": "yes" if row["converged"] else "no",
                }
            )
        for row in where(rows, dataset=name):
            if "refused" in row:
                told = f"left out: {row['refused']}"
                lines.append({"method": _label(row["method"], row["kind"]), "tuned or learned": told})
        found[name] = pd.DataFrame(lines).fillna({"converged": ""})
    return found


def draw(rows: list[Row]) -> Figure:
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    across = min(5, len(names))
    down = int(np.ceil(len(names) / across))
    figure, panels = sheet(3.0 * across + 1.5, 5.2 * down, down, across, sharey=True)
    panels = panels.ravel()
    order = [_label(*each) for each in entrants() if any((row["method"], row["kind"]) == each for row in rows)]
    colours = {"given": RED, "knn": GREEN, "learn": BLUE}
    for axes, name in zip(panels, names, strict=False):
        tests = _tests(rows, name)
        for row in tests:
            at = -order.index(_label(row["method"], row["kind"]))
            colour = colours.get(row["kind"], ORANGE if row["method"] in ("pooling", "gossip") else GREY)
            mean, worst = row["score"], row["worst tenth"]
            axes.plot([mean, worst], [at, at], color=colour, linewidth=0.8, alpha=0.6)
            axes.plot(mean, at, "o", color=colour, markersize=5)
            axes.plot(worst, at, "o", color=colour, markersize=4, markerfacecolor="white")
        rmse = tests[0]["metric"] == "rmse"
        axes.set_title(f"{name} ({'RMSE' if rmse else 'accuracy'})")
        if rmse:
            axes.invert_xaxis()  # the better, the further to the right, in all panels
        axes.set_yticks([-k for k in range(len(order))], order)
        axes.grid(alpha=0.3)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    named = {"pooling": ORANGE, "no graph": GREY, "given graph": RED, "k-NN graph": GREEN, "learned graph": BLUE}
    handles = [Line2D([], [], color=colour, marker="o", linestyle="", label=label) for label, colour in named.items()]
    handles.append(
        Line2D([], [], color=GREY, marker="o", markerfacecolor="white", linestyle="", label="worst tenth of the agents")
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=6)
    return figure
