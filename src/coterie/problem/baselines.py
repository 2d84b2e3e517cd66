"""Baselines to compare methods with: models that are not personal, and personal models that do not use the graph.

Every baseline minimises a sum of the weighted losses ``t_i f_i``, exactly and in one process. t_i is a_i without the
degree (``problem.loss_weight``: mu c_i for MP and CD, mu for CL, 1 for DJAM), since only ``ComponentModels`` uses
edges.

====================  ==============================================================  =============================
baseline              minimises                                                       over
====================  ==============================================================  =============================
``LocalModels``       f_i(theta_i)                                                    theta_i of each agent
``GlobalModel``       sum_i t_i f_i(theta)                                            one theta for all
``ComponentModels``   sum_{i in C} t_i f_i(theta_C)                                   theta_C of each component C
``RidgeToMean``       sum_i t_i f_i(theta_i) + strength sum_i |theta_i - mean|^2      theta_i of each agent
====================  ==============================================================  =============================

``mean`` is sum_j theta_j / n. RidgeToMean is mean-regularised multi-task learning: Evgeniou, Pontil (2004).
The conventions are those of :class:`coterie.Problem`: an agent without edges is a component of its own and has its
local model, and a model without any training data is zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._checks import named, positive
from ..core import methods
from ..core.linear import frozen, rows_of
from ..core.methods import METHODS
from ..errors import MismatchError
from ..graphs import empty, star
from .exact import Objective, minimise, minimise_on_balls
from .problem import Problem


class Baseline:
    """Base class of models that are computed in one process, without wakes and messages."""

    def models(self, problem: Problem, n_jobs: int | None = None) -> np.ndarray:
        """Return one model for each agent, (n, p), computed in `n_jobs` threads."""
        raise NotImplementedError


@dataclass(frozen=True)
class LocalModels(Baseline):
    """Every agent trains on its own rows only, ``argmin f_i``.

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[0.0], [2.0], [5.0]], agents=["a", "a", "b"])
    >>> problem = ct.Problem.separate(data, ct.graphs.complete(2), loss=ct.Location(ct.Squared()))
    >>> LocalModels().models(problem).ravel().tolist()
    [1.0, 5.0]
    """

    def models(self, problem: Problem, n_jobs: int | None = None) -> np.ndarray:
        """Return the local model of each agent, see :meth:`coterie.Problem.local`."""
        _expect_linear(problem, "a model of every agent alone")
        return problem.local(n_jobs)


@dataclass(frozen=True)
class GlobalModel(Baseline):
    """One model for all agents, ``argmin sum_i t_i f_i``; edges are ignored.

    Without a ridge, on ``Problem.collaborative`` and on ``Problem.personalized`` with ``confidence="size"``, this is
    the model trained on the rows of all agents together.

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[1.0], [1.0], [1.0]], [0.0, 3.0, 9.0], agents=["a", "a", "b"])
    >>> problem = ct.Problem.collaborative(data, ct.graphs.complete(2), loss="squared")
    >>> GlobalModel().models(problem).ravel().round(9).tolist()
    [4.0, 4.0]
    """

    def models(self, problem: Problem, n_jobs: int | None = None) -> np.ndarray:
        """Return the common model once for each agent."""
        return _pooled(problem, np.zeros(problem.n, dtype=np.int64), n_jobs)


@dataclass(frozen=True)
class ComponentModels(Baseline):
    """One model for every connected component of the graph, ``argmin sum_{i in C} t_i f_i``.

    Examples
    --------
    >>> import coterie as ct
    >>> graph = ct.Graph.from_edges(4, [0], [2])
    >>> problem = ct.Problem.propagation([[0.0], [5.0], [2.0], [7.0]], graph)
    >>> ComponentModels().models(problem).ravel().round(9).tolist()
    [1.0, 5.0, 1.0, 7.0]
    """

    def models(self, problem: Problem, n_jobs: int | None = None) -> np.ndarray:
        """Return for each agent the model of its component."""
        theta = _pooled(problem, problem.graph.components, n_jobs)
        isolated = problem.graph.isolated
        if isolated.any():
            theta[isolated] = problem.local(n_jobs)[isolated]  # also if t_i is zero, as in Problem.solve
        return theta


@dataclass(frozen=True)
class RidgeToMean(Baseline):
    """Personal models shrunk towards their mean; edges are ignored.

    Minimises ``sum_i t_i f_i(theta_i) + strength sum_i |theta_i - mean|^2``: a small `strength` gives the local
    models, a large one the global model.

    Parameters
    ----------
    strength : float
        Weight of the distances to the mean, > 0.

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.separate(
    ...     ct.AgentData([[0.0], [3.0]], agents=["a", "b"]), ct.graphs.empty(2), loss=ct.Location(ct.Squared())
    ... )
    >>> RidgeToMean(0.5).models(problem).ravel().round(9).tolist()  # each moves halfway to the mean
    [0.75, 2.25]
    """

    strength: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", positive("strength", self.strength))

    def models(self, problem: Problem, n_jobs: int | None = None) -> np.ndarray:
        """Return one model for each agent; an agent without rows and without a ridge has the mean."""
        _expect_linear(problem, "RidgeToMean")
        alone = problem._objective(problem.loss_weight, n_jobs=n_jobs)
        if not isinstance(alone, Objective):
            raise MismatchError(
                "RidgeToMean is not for boosting: models shrunk towards their mean may leave their l1 ball"
            )
        # sum_i |theta_i - theta_0|^2 is least where theta_0 is the mean: agent 0 of a star, without data, is the mean.
        objective = replace(
            alone,
            start=frozen(np.concatenate([[0], alone.start])),
            scale=np.concatenate([np.zeros((1, 1)), alone.scale]),
            ridge=np.concatenate([np.zeros((1, 1)), alone.ridge]),
            graph=star(problem.n + 1),
            smooth=self.strength,
        )
        return minimise(objective)[1:]


#: Every baseline, by its name.
BASELINES = {
    "local": LocalModels(),
    "global": GlobalModel(),
    "component": ComponentModels(),
    "ridge-to-mean": RidgeToMean(),
}


def resolve_method(method: Any) -> Any:
    """Return a method or a baseline, given as a value or by its name."""
    method = named("method", method, METHODS | BASELINES)
    return method if isinstance(method, Baseline) else methods.resolve_method(method)


def _expect_linear(problem: Problem, what: str) -> None:
    """Refuse a model that is not linear: the exact minimiser of such a model cannot be computed."""
    if not problem.is_linear:
        raise MismatchError(
            f"{what} is computed exactly, which only works for linear models, not for {problem.model!r}: train the "
            "models with ct.gossip.TiedSGD() on problem.on(graph=ct.graphs.empty(n)) for every agent alone, or with "
            "ct.gossip.LocalSGD() on a complete graph for one model of all agents"
        )


def _boosted(problem: Problem, group: np.ndarray) -> np.ndarray:
    """Return the pooled models (:func:`_pooled`) for boosting: one agent holds all the rows of a group."""
    data, parts = problem.data, problem.outputs
    position = np.arange(data.owner.shape[0]) - data.start[data.owner]
    output = position * parts // np.maximum(data.sizes[data.owner], 1)
    order = np.lexsort((output, group[data.owner]))  # by group, then by output
    count = np.bincount(group, weights=data.sizes).astype(np.int64)
    objective: Any = replace(
        problem._objective(np.ones(count.shape[0])),
        rows=rows_of(data.X[order]),
        start=frozen(np.concatenate([[0], np.cumsum(count)])),
        labels=frozen(np.asarray(data.y)[order]),
        graph=empty(count.shape[0]),
    )
    return minimise_on_balls(objective)[group]


def _pooled(problem: Problem, group: np.ndarray, n_jobs: int | None) -> np.ndarray:
    """Return for each agent ``argmin sum_i t_i f_i(theta)`` over its group; groups are numbered from 0 without gaps."""
    _expect_linear(problem, "one model for several agents")
    if np.isfinite(problem.radius):
        return _boosted(problem, group)
    order = np.argsort(group, kind="stable")
    sorted_problem = problem.relabel(order)  # the rows of a group are consecutive, as the rows of one agent
    each: Any = sorted_problem._objective(sorted_problem.loss_weight, n_jobs=n_jobs)
    ends = np.concatenate([[0], np.cumsum(np.bincount(group))])
    objective = replace(
        each,
        start=frozen(each.start[ends]),
        scale=each.row_scale,
        ridge=np.bincount(group[order], weights=each.ridge[:, 0])[:, None],
        graph=empty(ends.shape[0] - 1),
    )
    return minimise(objective)[group]
