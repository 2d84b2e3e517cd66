"""All real datasets, all methods: how good the models are, for everybody and for those worst off, and what they cost.

Everything is tuned by 3-fold cross-validation on training rows. Descent, ADMM and DJAM reach the optimum of the same
objective, so that the three share what was tuned for it; they differ in what they send and compute.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.spatial.distance import pdist, squareform
from sklearn.decomposition import TruncatedSVD
from sklearn.exceptions import ConvergenceWarning

from .. import datasets, graphs
from ..boosted import BoostedClassifier, BoostedRegressor
from ..datasets import RealTask
from ..datasets.sources import find, missing, source_of
from ..errors import CoterieError, MissingDataError
from ..estimators import CollaborativeClassifier, CollaborativeRegressor
from ..graphs import Graph
from ..plots import BLUE, GREY, RED
from ..related import RelationshipClassifier, RelationshipRegressor
from ..tuning import tune
from ..wire import letters_size
from .claims import Claim
from .experiment import Experiment, Plan, Row, where

#: Real datasets: the file, and how it is loaded. Sizes are such that everything ends on a laptop.
TASKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "school": ("school", "school", {}),
    "parkinsons": ("parkinsons", "parkinsons", {"share": 0.2}),
    "school pass": ("school", "school_pass", {}),
    "computers": ("computers", "computer_buyers", {}),
    "harws": ("harws", "human_activity", {"share": 0.05}),
    "vehicle": ("vehicle_ditto_train", "vehicle_sensor", {"share": 0.5}),
    "landmine": ("landmine", "landmine", {"share": 0.2}),
    "mnist": ("mnist", "mnist_one_vs_all", {"rows": 100}),
    "sentiment 4": ("mds4", "sentiment", {"domains": 4, "share": 0.1}),
    "sentiment 14": ("mds14", "sentiment", {"domains": 14, "share": 0.1}),
}
#: More features than this are replaced by so many singular directions: the exact solvers look at p x p matrices.
MANY, COMPONENTS = 100, 50
QUICK = ("vehicle", "parkinsons")

#: Methods that need no graph; and those that do, each on each kind of graph.
WITHOUT = ("local", "global", "relationship")
ON_GRAPHS = ("propagation", "admm", "cd", "djam", "boosting")
KINDS = ("given", "knn", "learn")
#: Methods by whose hyper-parameters they use.
FAMILY = {"admm": "cd", "djam": "cd"}
#: What is tried.
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "local": {"ridge": ("1/m", 0.01, 0.1, 1.0)},
    "global": {"ridge": (1e-4, 1e-2, 0.1)},
    "relationship": {"lam": (1e-3, 1e-2, 0.1)},
    "propagation": {"mu": (0.03, 0.3, 3.0, 30.0)},
    "cd": {"mu": (0.1, 1.0, 10.0, 100.0)},
    "boosting": {"beta": (1.0, 10.0), "mu": (0.1, 1.0)},
}
#: Labels of regressions are numbers of tens: so is the loss.
SQUARED = {"lam": (0.1, 1.0, 10.0), "beta": (10.0, 100.0)}
#: Relative distance to the optimum at which a fit ends; wakes of each agent, at most; stumps, and wakes, of boosting.
TOLERANCE, WAKES, STUMPS, STEPS = 1e-3, 2_000, 200, 400
NAMES = {"cd": "descent", "admm": "ADMM", "djam": "DJAM", "knn": "k-NN", "learn": "learned"}


def load(dataset: str) -> RealTask:
    """A dataset with features of mean 0 and variance 1; of many, the first singular directions.

    Only training rows say how to scale, and which directions.

    Parameters
    ----------
    dataset : str
        One of :data:`TASKS`.

    Returns
    -------
    RealTask

    Examples
    --------
    >>> load("school")  # doctest: +SKIP
    RealTask(school: regression, 139 agents, 28 features, 11472 + 3890 rows)
    """
    _, loader, options = TASKS[dataset]
    task: RealTask = getattr(datasets, loader)(**options)
    if not task.train.is_sparse:
        task = task.scaled()
    if task.train.p > MANY:
        found = TruncatedSVD(COMPONENTS, random_state=0).fit(task.train.X)
        train, test = (data.with_features(found.transform(data.X)) for data in (task.train, task.test))
        task = replace(task, train=train, test=test, feature_names=None).scaled()
    return task


def given(task: RealTask) -> Graph:
    """A graph that is known before any model: of agents with similar covariates, or of all with all.

    Parameters
    ----------
    task : RealTask

    Returns
    -------
    Graph

    Examples
    --------
    >>> import coterie as ct
    >>> rows = ct.AgentData([[1.0], [2.0], [3.0]], y=[1, -1, 1], agents=["ann", "bob", "cyd"])
    >>> given(RealTask("three", rows, rows, "classification")).n_edges
    3
    """
    covariates = task.auxiliary.get("covariates")
    if covariates is None:
        return graphs.complete(task.train.n)
    spread = covariates.std(axis=0)
    apart = squareform(pdist(covariates[:, spread > 0] / spread[spread > 0]))
    np.fill_diagonal(apart, np.inf)
    reach = np.sort(apart, axis=1)[:, min(5, task.train.n - 1) - 1]
    return Graph((apart <= np.maximum.outer(reach, reach)).astype(float))  # all that are as near as the fifth


def estimator(task: RealTask, method: str, kind: str) -> Any:
    """The estimator of a method on a kind of graph, before anything is tuned.

    Parameters
    ----------
    task : RealTask
    method : str
    kind : {"given", "knn", "learn", ""}
        "" for a method without a graph.

    Returns
    -------
    estimator

    Examples
    --------
    >>> import coterie as ct
    >>> rows = ct.AgentData([[1.0], [2.0]], y=[1, -1], agents=["ann", "bob"])
    >>> estimator(RealTask("two", rows, rows, "classification"), "djam", "knn")
    CollaborativeClassifier(graph='knn', max_wakes=2000, method='djam', tol=0.001)
    """
    classes = task.kind == "classification"
    if method == "relationship":
        return RelationshipClassifier(tol=TOLERANCE) if classes else RelationshipRegressor(tol=TOLERANCE)
    graph: Any = given(task) if kind == "given" else kind
    if method == "boosting":
        boosted = BoostedClassifier if classes else BoostedRegressor
        return boosted(base=STUMPS, graph=graph, max_wakes=STEPS)
    linear = CollaborativeClassifier if classes else CollaborativeRegressor
    options = {"graph": graph} if kind else {}
    return linear(method=method, tol=TOLERANCE, max_wakes=WAKES, **options)


def _parts(data: Any) -> tuple[Any, Any, np.ndarray]:
    return data.X, data.y, np.asarray(data.members)[data.owner]


# -- the experiment ---------------------------------------------------------------------------------------------------


def entrants() -> list[tuple[str, str]]:
    """Methods and kinds of graphs that take part.

    Returns
    -------
    list of (str, str)

    Examples
    --------
    >>> entrants()[:3], len(entrants())
    ([('local', ''), ('global', ''), ('relationship', '')], 18)
    """
    return [(method, "") for method in WITHOUT] + [(method, kind) for method in ON_GRAPHS for kind in KINDS]


def _plan(quick: bool) -> Plan:
    names = [name for name in (QUICK if quick else TASKS) if find(TASKS[name][0]) is not None]
    if not names:
        raise MissingDataError(f"no dataset of the leaderboard is there: {missing(source_of(TASKS[QUICK[0]][0]))}")
    chosen = [each for each in entrants() if not quick or each[1] in ("", "learn")]
    tuned = yield [
        {"stage": "tune", "dataset": name, "method": method, "kind": kind, "values": 2 if quick else 9}
        for name in names
        for method, kind in chosen
        if method not in FAMILY
    ]
    settings = {(row["dataset"], row["method"], row["kind"]): row["parameters"] for row in tuned}
    yield [
        {
            "stage": "test",
            "dataset": name,
            "method": method,
            "kind": kind,
            "parameters": settings[name, FAMILY.get(method, method), kind],
        }
        for name in names
        for method, kind in chosen
        if settings[name, FAMILY.get(method, method), kind] is not None
    ]


def _work(
    stage: str,
    dataset: str,
    method: str,
    kind: str,
    values: int = 0,
    parameters: Mapping[str, Any] | None = None,
) -> Row:
    task = load(dataset)
    model = estimator(task, method, kind)
    if stage == "tune":
        grid = GRIDS[method] | {name: tried for name, tried in SQUARED.items() if task.kind == "regression"}
        grid = {name: grid[name][:values] for name in GRIDS[method]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            try:
                found = tune(model, *_parts(task.train), grid)
            except CoterieError as error:
                return {"parameters": None, "refused": str(error)}
        return {"parameters": found.parameters, "validation": found.score}
    model.set_params(**(parameters or {}))
    X, y, agents = _parts(task.train)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ConvergenceWarning)
        start = time.process_time()
        model.fit(X, y, agents=agents)
        seconds = time.process_time() - start
    X, y, agents = _parts(task.test)
    scores = _scores(task, model.predict(X, agents=agents))
    worst = np.sort(scores)[:: 1 if task.kind == "classification" else -1][: int(np.ceil(scores.size / 10))]
    return {
        "metric": "accuracy" if task.kind == "classification" else "rmse",
        "score": scores.mean(),
        "error": scores.std(ddof=1) / np.sqrt(scores.size),
        "worst tenth": worst.mean(),
        "bytes": _sent(task, method, kind, model),
        "cpu seconds": seconds,
        "converged": not any(issubclass(each.category, ConvergenceWarning) for each in said),
    }


def _sent(task: RealTask, method: str, kind: str, model: Any) -> int | None:
    """Bytes of all agents together; None where rows would have to be sent."""
    if method in ("local", "global"):
        return 0 if method == "local" else None
    # Nearest neighbours are found among the models of all: somebody has to see them.
    n, p = model.run_.theta.shape if kind == "knn" else (0, 0)
    search = letters_size(n * (n - 1), n * (n - 1) * p)
    return int(model.run_.bytes) + search


def _scores(task: RealTask, predicted: np.ndarray) -> np.ndarray:
    """Accuracy or root mean squared error of every agent that has test rows."""
    test = task.test
    wrong = predicted != test.y if task.kind == "classification" else np.square(predicted - test.y)
    mean = np.bincount(test.owner, weights=wrong, minlength=test.n)[test.sizes > 0] / test.sizes[test.sizes > 0]
    return 1.0 - mean if task.kind == "classification" else np.sqrt(mean)


def _claims(rows: list[Row]) -> Sequence[Claim]:
    return []


def _label(method: str, kind: str) -> str:
    return NAMES.get(method, method) + (f", {NAMES.get(kind, kind)}" if kind else "")


def _tables(rows: list[Row]) -> dict[str, pd.DataFrame]:
    """For each dataset, a line for each method."""
    found = {}
    for name in dict.fromkeys(row["dataset"] for row in rows):
        tests = where(rows, stage="test", dataset=name)
        lines = []
        for method, kind in dict.fromkeys((row["method"], row["kind"]) for row in tests):
            (row,) = where(tests, method=method, kind=kind)
            lines.append(
                {
                    "method": _label(method, kind),
                    row["metric"]: row["score"],
                    "±": row["error"],
                    "worst tenth": row["worst tenth"],
                    "MB sent": np.nan if row["bytes"] is None else row["bytes"] / 1e6,
                    "CPU s": row["cpu seconds"],
                    "tuned": ", ".join(
                        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                        for name, value in row["parameters"].items()
                    ),
                    "converged": "yes" if row["converged"] else "no",
                }
            )
        for row in where(rows, stage="tune", dataset=name, parameters=None):
            lines.append({"method": _label(row["method"], row["kind"]), "tuned": f"refused: {row['refused']}"})
        found[name] = pd.DataFrame(lines).fillna({"converged": ""})
    return found


def _draw(rows: list[Row]) -> Figure:
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    across = min(5, len(names))
    down = int(np.ceil(len(names) / across))
    figure = Figure(figsize=(3.0 * across + 1.5, 4.2 * down), layout="constrained")
    panels = np.atleast_1d(figure.subplots(down, across, sharey=True)).ravel()
    order = [_label(*each) for each in entrants() if any((row["method"], row["kind"]) == each for row in rows)]
    colours = {"": GREY, "given": RED, "knn": "#3a9a5b", "learn": BLUE}
    for axes, name in zip(panels, names, strict=False):
        tests = where(rows, stage="test", dataset=name)
        for method, kind in dict.fromkeys((row["method"], row["kind"]) for row in tests):
            (row,) = where(tests, method=method, kind=kind)
            at, colour = -order.index(_label(method, kind)), colours[kind]
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
    handles = [
        Line2D([], [], color=colour, marker="o", linestyle="", label=label)
        for label, colour in (
            ("no graph", GREY),
            ("given graph", RED),
            ("k-NN graph", "#3a9a5b"),
            ("learned graph", BLUE),
        )
    ]
    handles.append(
        Line2D([], [], color=GREY, marker="o", markerfacecolor="white", linestyle="", label="worst tenth of the agents")
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=5)
    return figure


EXPERIMENTS = (
    Experiment(
        "leaderboard",
        "accuracy or error of all methods on all real datasets, for all agents and the worst tenth; bytes; CPU time",
        _plan,
        _work,
        _claims,
        _draw,
        minutes=20.0,
        tables=_tables,
    ),
)
