"""Graphs that change with time: lists of them, and what :func:`coterie.simulate` makes of a list."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .. import _checks
from ..errors import ParameterError
from .graph import Graph


def matchings(n: int, count: int, seed: int | np.random.Generator) -> list[Graph]:
    """So many random matchings: in each, everybody has one neighbour; if n is odd, but one agent.

    Examples
    --------
    >>> one, other = matchings(6, 2, seed=0)
    >>> one.n_neighbours.tolist(), one == other
    ([1, 1, 1, 1, 1, 1], False)
    """
    n, random = _checks.integer("n", n, least=2), _checks.generator(seed)
    orders = [random.permutation(n) for _ in range(_checks.integer("count", count, least=0))]
    return [Graph.from_edges(n, order[: n // 2], order[n // 2 : 2 * (n // 2)]) for order in orders]


def sequence(problem: Any, graphs: Iterable[Graph] | Callable[[int], Graph], until: int, every: int = 1) -> list[Any]:
    """What to pass to :func:`coterie.simulate` as ``changes`` for a graph that changes with time.

    The problem's own graph is the first one; then, every so many rounds (or wakes, or whatever else a run is measured
    in), another takes its place. Agents who become neighbours swap their models when they do, and the account counts
    that.

    Parameters
    ----------
    problem : Problem
        What the agents learn, on the graph to begin with.
    graphs : iterable of Graph, or function of a number
        The graphs that follow; a list is taken again from its beginning when it ends. A function gets 1, 2, 3, ...
    until : int
        The length of the run: no change comes at or after it.
    every : int
        How long each graph lasts.

    Returns
    -------
    list of (int, Problem)

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [1.0], [2.0], [3.0]], ct.graphs.ring(4), alpha=0.5)
    >>> changes = ct.graphs.sequence(problem, ct.graphs.matchings(4, 3, seed=0), until=50, every=10)
    >>> [moment for moment, _ in changes]
    [10, 20, 30, 40]
    >>> ct.simulate(problem, "propagation", rounds=50, changes=changes).graph == changes[-1][1].graph
    True
    """
    until, every = _checks.integer("until", until, least=0), _checks.integer("every", every)
    moments = range(every, until, every)
    if callable(graphs):
        following: Iterable[Graph] = map(graphs, itertools.count(1))
    else:
        listed = list(graphs)
        if not listed:
            raise ParameterError("graphs is empty: expected the graphs that follow that of the problem")
        following = itertools.cycle(listed)
    known: dict[Graph, Any] = {}  # a problem for each graph, made once
    changes = []
    for moment, graph in zip(moments, following, strict=False):
        if not isinstance(graph, Graph):
            raise ParameterError(f"graphs holds {graph!r}: expected a ct.Graph for every change")
        if graph not in known:
            known[graph] = problem.on(graph=graph)
        changes.append((moment, known[graph]))
    return changes
