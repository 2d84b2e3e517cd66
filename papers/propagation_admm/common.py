"""Model propagation and collaborative learning by ADMM (MP, CL): the two tasks, and what several figures measure.

Costs are pairwise communications, as the paper counts them: a message from one agent to another is one, whether it
holds one vector (MP) or four (ADMM). So an exchange is 2, and a synchronous round 2 |E|. The paper says nothing of
the swap of models that gossip begins with, 2 |E| more; where it matters, numbers are given with it and without it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from coterie import datasets
from coterie.core.losses import Location, Squared
from coterie.errors import ConvergenceError
from coterie.graphs import knn
from coterie.problem import Problem

from .._experiment import Row

#: Seeds of the instances that parameters are chosen on; those of the reported ones start at 0.
HELD_OUT = 1000
#: The dimension of linear classification where one is enough.
P = 50
ALPHAS = (0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
MUS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
RHOS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)

#: Why a difference is not called positive; why numbers of small instances may be others.
NOT_CLEARLY = "Not by more than two of our standard errors."
FEW_AGENTS = "Instances of this size differ from the paper's."


def averages(task: datasets.MeanTask) -> np.ndarray:
    """Return the solitary models of mean estimation: the average of each agent's points."""
    return Problem.separate(task.points, task.graph, loss=Location(Squared())).local()


def smoothed(task: datasets.MeanTask, alone: np.ndarray, alpha: float, confident: bool) -> Problem:
    """Return MP (3) with the drawn confidences, or with their mean, 1/2, for all agents (erratum 10)."""
    confidence = task.confidence if confident else np.full(task.points.n, 0.5)
    return Problem.propagation(alone, task.graph, alpha, confidence)


def classification(n: int, p: int, seed: int, neighbours: int = 0) -> datasets.LinearTask:
    """Return the task of CL, Section 5.2; with `neighbours`, edges of weight 1 to the nearest, as in Appendix E."""
    task = datasets.linear_classification(n=n, p=p, seed=seed, rows=(1, 20))
    if not neighbours:
        return task
    unit = task.targets / np.linalg.norm(task.targets, axis=1, keepdims=True)  # nearest chord: smallest angle
    return datasets.LinearTask(task.train, task.test, knn(unit, neighbours), task.targets)


def learnt(task: datasets.LinearTask, mu: float) -> Problem:
    """CL (7) with the hinge loss."""
    return Problem.collaborative(task.train, task.graph, loss="hinge", mu=mu)


def spread_out(task: datasets.LinearTask, alone: np.ndarray, alpha: float) -> Problem:
    """MP (3), with confidences m_i / max_j m_j."""
    return Problem.propagation(alone, task.graph, alpha, task.train.sizes / task.train.sizes.max())


def scored(task: datasets.LinearTask) -> Callable[[np.ndarray], float]:
    return lambda theta: float(task.accuracy(theta).mean())


def reached(costs: ArrayLike, values: ArrayLike, level: float) -> float:
    """The cost at which a trace first comes up to a level, on the line between two observations; inf if never."""
    costs, values = np.asarray(costs), np.asarray(values)
    above = np.flatnonzero(values >= level)
    if not above.size:
        return float("inf")
    k = int(above[0])
    if k == 0:
        return float(costs[0])
    return float(np.interp(level, [values[k - 1], values[k]], [costs[k - 1], costs[k]]))


def ended(cost: float, what: str) -> float:
    """A cost that was reached: a run that is too short must not count as if it had come there at its end."""
    if not np.isfinite(cost):
        raise ConvergenceError(f"{what} never comes to the level at which costs are compared: it must be longer")
    return cost


def tuning_of_separators(n: int, p: int, seed: int, neighbours: int = 0) -> Row:
    task = classification(n, p, seed, neighbours)
    alone, score = learnt(task, 1.0).local(), scored(task)
    return {
        "mp": [score(spread_out(task, alone, alpha).solve()) for alpha in ALPHAS],
        "cl": [score(learnt(task, mu).solve()) for mu in MUS],
    }
