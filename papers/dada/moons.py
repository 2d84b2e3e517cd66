"""Boosted personal models and learned graphs (DADA) on synthetic data: the methods of Figures 1 to 4, 6 and 7.

The moons have zeros on their empty axes: with random values there, as the paper's text has it, one model for all is
better than learned graphs, which Figure 1 also shows.

Dada          Frank-Wolfe on DADA (1), from zeros; on a learned graph it begins with the best graph of the models of
              Local-boost, and looks for better edges on the way
Local-boost   the same without edges: Frank-Wolfe on the loss of each user
Global-boost  the same, with all rows as those of one user
Perso-lin     the problem of CL, logistic, by coordinate descent; Local-lin and Global-lin are exact
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from coterie import datasets, graphs
from coterie.core.methods import CoordinateDescent, FrankWolfeBoosting
from coterie.core.wrap.graph_rule import GraphRule
from coterie.core.wrap.learned import Learned
from coterie.data import AgentData
from coterie.data.dictionaries import Stumps, resolve_base
from coterie.engines.simulator import simulate
from coterie.evaluation import Evaluator
from coterie.graphs import Graph
from coterie.graphs.exact import exact_graph
from coterie.problem import Problem
from coterie.problem.baselines import GlobalModel

from .._experiment import held_out
from .._figures import COLOURS

ORACLE, LEARNED, LOCAL, GLOBAL = "Dada-Oracle", "Dada-Learned", "Local-boost", "Global-boost"
LINEAR_ORACLE, LINEAR_LEARNED, LOCAL_LINEAR, GLOBAL_LINEAR = (
    "Perso-lin-Oracle",
    "Perso-lin-Learned",
    "Local-lin",
    "Global-lin",
)
#: All methods, in the order of legends; those that do not collaborate are straight lines.
METHODS = (ORACLE, LEARNED, GLOBAL, LOCAL, LINEAR_ORACLE, LINEAR_LEARNED, GLOBAL_LINEAR, LOCAL_LINEAR)
COLLABORATIVE = (ORACLE, LEARNED, LINEAR_ORACLE, LINEAR_LEARNED)
LINEAR = (LINEAR_ORACLE, LINEAR_LEARNED, GLOBAL_LINEAR, LOCAL_LINEAR)
COLOUR_OF = dict(zip(METHODS, (*COLOURS[:6], "black", COLOURS[6]), strict=True))

#: Base predictors, and peers that a user asks at a time.
STUMPS, KAPPA = 200, 5
#: Wakes of all users together.
WAKES = 20_000
#: Wakes between two steps on the graph (DADA, Sections 6 and E.5), and the generator, of each task.
PACE = {"Moons": 100, "Moons100": 200}
#: What Figures 1 and 6 choose, for the other figures of the same tasks: a test looks whether it is what they show.
CHOSEN: dict[str, dict[str, dict[str, float]]] = {
    "Moons": {
        ORACLE: {"beta": 3.0, "mu": 10.0, "lam": 1.0},
        LEARNED: {"beta": 3.0, "mu": 1.0, "lam": 1.0},
        LOCAL: {"beta": 3.0, "mu": 1.0, "lam": 1.0},
    },
    "Moons100": {
        LEARNED: {"beta": 3.0, "mu": 1.0, "lam": 1.0},
        LOCAL: {"beta": 10.0, "mu": 1.0, "lam": 1.0},
    },
}


class Rows(NamedTuple):
    """Training and test rows of the users."""

    train: AgentData
    test: AgentData
    graph: Graph


class Fit(NamedTuple):
    """Result of a method on some rows."""

    problem: Problem
    theta: np.ndarray
    trace: pd.DataFrame | None = None


def instance_of(task: str, seed: int, n: int, empty: str = "zeros") -> Any:
    make = datasets.clustered_moons if task == "Moons" else datasets.rotated_moons
    return make(n=n, seed=seed, empty=empty)


def score_on(problem: Problem, data: AgentData) -> Callable[[np.ndarray], float]:
    """Mean accuracy over users, of models of this problem."""
    return Evaluator(problem, data, score="accuracy", alone=False).observers()["accuracy"]


def fit(
    method: str,
    rows: Any,
    beta: float,
    mu: float,
    lam: float,
    wakes: int,
    pace: int,
    seed: int,
    stumps: int = STUMPS,
    points: int = 0,
) -> Fit:
    """Run one method on rows as :class:`Rows` has them; the trace has accuracies at so many points, if any."""
    train, alone = rows.train, graphs.empty(rows.train.n)
    if method in LINEAR:
        problem = Problem.collaborative(train, alone, loss="logistic", mu=mu)
        rule: Any = CoordinateDescent()
    else:
        base = resolve_base(Stumps(stumps), train.X)
        problem = Problem.boosting(train, alone, base=base, mu=mu, beta=beta)
        rule = FrankWolfeBoosting()
    if method == GLOBAL_LINEAR:
        return Fit(problem, GlobalModel().models(problem))
    if method == GLOBAL:
        one = AgentData(train.X, train.y, agents=np.zeros(train.n_rows, int))
        pooled = Problem.boosting(one, graphs.empty(1), base=problem.base, beta=beta)
        theta = simulate(pooled, rule, wakes=max(1, wakes // 10), seed=seed, start="zeros").theta
        return Fit(problem, np.repeat(theta, train.n, axis=0))
    if method in (LOCAL_LINEAR, LINEAR_LEARNED):
        local = problem.local()
    elif method in (LOCAL, LEARNED):
        local = simulate(problem, rule, wakes=wakes, seed=seed, start="zeros").theta
    if method in (LOCAL_LINEAR, LOCAL):
        return Fit(problem, local)
    if method in (LEARNED, LINEAR_LEARNED):
        # Section 6: the first graph is that of the local models.
        first = exact_graph(local, problem.losses(local), problem.loss_weight, 2.0 * problem.smooth, lam)
        rule = Learned(rule, GraphRule(lam=lam, kappa=KAPPA), every=pace)
        problem = problem.on(graph=first)
    else:
        problem = problem.on(graph=rows.graph)
    watched = {"train": score_on(problem, train), "test": score_on(problem, rows.test)} if points else None
    every = max(1, wakes // points) if points else None
    run = simulate(problem, rule, wakes=wakes, seed=seed, start="zeros", observe=watched, every=every)
    return Fit(run.problem, run.theta, run.trace)


def cross_validated(method: str, rows: Any, folds: int, **settings: Any) -> float:
    """Mean accuracy over folds of the training rows: each user is tested on some of its own."""
    scores = []
    for fold in range(folds):
        part = Rows(*held_out(rows.train, fold, folds), rows.graph)
        found = fit(method, part, **settings)
        scores.append(score_on(found.problem, part.test)(found.theta))
    return float(np.mean(scores))


def neighbours(graph: Graph) -> float:
    return 2.0 * graph.n_edges / graph.n
