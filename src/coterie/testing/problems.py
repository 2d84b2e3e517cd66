"""Problems for contract checks of methods, with many difficult features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from .. import graphs
from ..core.losses import Logistic
from ..core.methods import fits
from ..core.models import TwoLayer
from ..data import AgentData
from ..errors import ContractError
from ..graphs import DirectedGraph, Graph
from ..problem import Problem


def hard_problem(seed: int = 0, storage: str = "dense", loss: Any = None) -> Problem:
    """Make a small personalised problem with many difficult features, for checks of methods.

    Two components, an agent without edges, an agent without data, weights over several orders of magnitude, different
    numbers of rows, a ridge that matters.

    Parameters
    ----------
    seed : int
    storage : "dense" or "sparse"
    loss : rule, optional
        Default: logistic.

    Returns
    -------
    Problem

    Examples
    --------
    >>> from coterie.testing import hard_problem
    >>> hard_problem().graph
    Graph(n=9, edges=11, components=3, isolated=1)
    """
    rng = np.random.default_rng(seed)
    n, p = 9, 3
    sizes = np.array([4, 1, 7, 0, 3, 5, 2, 6, 4])  # agent 3 has no data
    i = np.array([0, 0, 0, 1, 1, 2, 2, 3, 5, 5, 6])
    j = np.array([1, 2, 3, 2, 3, 3, 4, 4, 6, 7, 7])  # agent 8 has no edges, {5, 6, 7} form a component
    weight = np.array([1.0, 1e-3, 0.5, 2.0, 1.5, 30.0, 0.7, 1e-2, 1.0, 5.0, 1e-3])
    X = rng.normal(size=(sizes.sum(), p)) * (rng.random((sizes.sum(), p)) < 0.8)
    y = np.where(X @ rng.normal(size=p) + 0.5 * rng.normal(size=len(X)) >= 0, 1.0, -1.0)
    features = sparse.csr_array(X) if storage == "sparse" else X
    data = AgentData(features, y, agents=np.repeat(np.arange(n), sizes), members=range(n))
    loss = loss or Logistic()
    return Problem.personalized(data, Graph.from_edges(n, i, j, weight), loss, mu=0.8, ridge="1/m")


def checkable(method: Any, storage: str = "dense") -> Problem:
    """Return the problem to check a method on: :func:`hard_problem`, or another one that fits the method."""
    problem = hard_problem(storage=storage)
    models = np.random.default_rng(0).normal(size=(problem.n, problem.p))
    c = np.where(problem.data.sizes > 0, problem.data.sizes / 7, 0.0)
    star = problem.relabel([3, 0, 1, 2, 4, 5, 6, 7, 8]).on(graph=graphs.star(problem.n))  # no rows in the middle
    candidates = (
        problem,
        Problem.boosting(problem.data, problem.graph, base=lambda X: X, mu=0.5, beta=1.5),
        Problem.propagation(models, problem.graph, alpha=0.6, confidence=c),
        star,
        with_network(star),
    )
    found = next((candidate for candidate in candidates if fits(method, candidate)), None)
    if found is None:
        raise ContractError(f"{method!r} refuses every problem")
    return found


#: Features, hidden units and classes of the network for checks of methods.
NETWORK_SIZES = 3, 2, 3


def with_network(problem: Problem, model: Any = None) -> Problem:
    """Return the problem with a small network whose parts have different roles."""
    labels = np.random.default_rng(15).integers(0, NETWORK_SIZES[2], problem.data.n_rows)
    data = AgentData(problem.data.X, labels, agents=problem.data.owner, members=range(problem.n))
    roles: dict[str, Any] = {"personal": "head.bias", "shared": "body", "tied": "head.weight"}
    return Problem.differentiable(data, problem.graph, model or TwoLayer(*NETWORK_SIZES), ridge=0.01, **roles)


def network(method: Any, model: Any = None) -> Problem | None:
    """Return the problem of :func:`checkable` with a network, for a method that trains and accepts it; else None."""
    if not method.training.jobs:
        return None
    problem = with_network(checkable(method), model)
    return problem if fits(method, problem) else None


def posed(method: Any) -> Iterator[Problem]:
    """Yield all problems to check a method on: with a network if it trains, with one-way edges if supported."""
    problem, trained = checkable(method), network(method)
    yield problem
    if trained is not None:
        yield trained
    if method.edges.directed:
        W = problem.graph.W.tocoo()
        kept = (W.row < W.col) | ((W.row + W.col) % 3 > 0)
        edges = sparse.coo_array((W.data[kept], (W.row[kept], W.col[kept])), shape=W.shape)
        yield problem.on(graph=DirectedGraph(edges))


def calm(method: Any) -> Problem:
    """Return a problem on which a method has a limit: that of :func:`checkable`, if its limit there is an optimum.

    For a method with another limit, a problem with the same difficult graph, but with many rows, and with models and
    labels so different that all estimated quantities are well determined.
    """
    problem = checkable(method)
    if method.promises.minimises:
        return problem
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(problem.n), 40 + 4 * problem.data.sizes)
    owner = owner[problem.data.sizes[owner] > 0]  # agents without data own no rows
    X = rng.normal(size=(owner.size, problem.p))
    i, k = np.indices((problem.n, problem.p))
    models = 2.0 * ((i * (1 + k % 2) + k) % 3) - 1.0  # any three neighbours differ in every coordinate
    z = np.sum(X * models[owner], axis=1)
    y = np.where(rng.random(z.size) * (1.0 + np.exp(-z)) < 1.0, 1.0, -1.0)
    for loss, labels in (("logistic", y), ("squared", z + 0.5 * rng.normal(size=z.size))):
        posed = Problem.separate(AgentData(X, labels, agents=owner, members=range(problem.n)), problem.graph, loss=loss)
        if fits(method, posed):
            return posed
    raise ContractError(
        f"check_method has no problem for {method!r}: it minimises no objective, and takes neither the squared nor the "
        "logistic loss"
    )
