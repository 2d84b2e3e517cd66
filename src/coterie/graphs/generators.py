"""Graphs of a given shape, regular or random, before there is any data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .. import _checks
from ..errors import ParameterError
from .graph import Graph, Ints
from .regular import regular_edges


def empty(n: int) -> Graph:
    """`n` agents on their own.

    Examples
    --------
    >>> empty(3)
    Graph(n=3, edges=0, components=3, isolated=3)
    """
    return Graph.from_edges(n, [], [])


def complete(n: int, weight: float = 1.0) -> Graph:
    """Every agent tied to every other.

    Examples
    --------
    >>> complete(4).n_edges
    6
    """
    n, weight = _checks.integer("n", n), _checks.positive("weight", weight)
    return Graph.from_edges(n, *np.triu_indices(n, k=1), weight)


def ring(n: int, neighbours: int = 1, weight: float = 1.0) -> Graph:
    """Agents in a circle, each tied to the nearest `neighbours` on either side.

    Where the two sides meet, a pair is still tied once: the graph is then complete.

    Examples
    --------
    >>> ring(10, neighbours=2).neighbours(0)
    array([1, 2, 8, 9])
    >>> ring(4, neighbours=2) == complete(4)
    True
    """
    n, weight = _checks.integer("n", n), _checks.positive("weight", weight)
    # Half a turn reaches everyone; further steps would only come back from the other side.
    reach = min(_checks.integer("neighbours", neighbours), n // 2)
    i, step = np.divmod(np.arange(n * reach), max(reach, 1))
    return Graph.from_edges(n, i, (i + step + 1) % n, weight)


def path(n: int) -> Graph:
    """Agents in a line, each tied to the next.

    Examples
    --------
    >>> path(4).n_neighbours
    array([1, 2, 2, 1])
    """
    agents = np.arange(_checks.integer("n", n))
    return Graph.from_edges(n, agents[:-1], agents[1:])


def star(n: int, center: int = 0) -> Graph:
    """One agent, number `center`, tied to every other, as a server is to its clients.

    Examples
    --------
    >>> star(4).n_neighbours
    array([3, 1, 1, 1])
    >>> star(4, center=2).neighbours(2)
    array([0, 1, 3])
    """
    n, center = _checks.integer("n", n), _checks.integer("center", center, 0)
    if center >= n:
        raise ParameterError(f"center={center} must be the number of an agent: they go from 0 to {n - 1}")
    others = np.delete(np.arange(n), center)
    return Graph.from_edges(n, np.full_like(others, center), others)


def grid(rows: int, columns: int) -> Graph:
    """Agents on a grid, each tied to those above, below, left and right; numbered row by row.

    Examples
    --------
    >>> grid(2, 3).neighbours(1)
    array([0, 2, 4])
    """
    rows, columns = _checks.integer("rows", rows), _checks.integer("columns", columns)
    agents = np.arange(rows * columns).reshape(rows, columns)
    i = np.concatenate((agents[:, :-1].ravel(), agents[:-1].ravel()))
    j = np.concatenate((agents[:, 1:].ravel(), agents[1:].ravel()))
    return Graph.from_edges(agents.size, i, j)


def erdos_renyi(n: int, probability: float, seed: int | np.random.Generator) -> Graph:
    """Each pair of agents tied with the same probability, independently of the others.

    The time and memory grow with the number of edges, not of pairs.

    Examples
    --------
    >>> erdos_renyi(100, 0.05, seed=0) == erdos_renyi(100, 0.05, seed=0)
    True

    References
    ----------
    Batagelj, Brandes, "Efficient generation of large random networks", Physical Review E 71, 2005.
    """
    n, probability = _checks.integer("n", n), _checks.probability("probability", probability)
    random = _checks.generator(seed)
    agents = np.arange(n, dtype=np.int64)
    # The pairs (i, j) with j < i, numbered row by row: row i begins at i (i - 1) / 2.
    begins = agents * (agents - 1) // 2
    pairs = n * (n - 1) // 2
    chosen = _coin_flips(pairs, probability, random)
    i = np.searchsorted(begins, chosen, side="right") - 1
    return Graph.from_edges(n, i, chosen - begins[i])


def _coin_flips(flips: int, probability: float, random: np.random.Generator) -> Ints:
    """Which of many flips of one coin came up heads, skipping from each head to the next."""
    if probability == 0:
        return np.empty(0, dtype=np.int64)
    expected = flips * probability
    enough = int(expected + 4 * math.sqrt(expected)) + 1  # for one batch, nearly always
    heads, last = [], -1
    while last < flips:
        # A gap past the end is cut short, lest the sum of astronomic gaps overflow.
        gaps = np.minimum(random.geometric(probability, size=enough), flips + 1)
        heads.append(last + np.cumsum(gaps, dtype=np.int64))
        last = int(heads[-1][-1])
    found = np.concatenate(heads)
    return found[found < flips]


def random_regular(n: int, degree: int, seed: int | np.random.Generator) -> Graph:
    """Every agent tied to `degree` others, drawn at random among all such graphs (asymptotically uniform).

    The time and memory grow with the number of ties.

    Examples
    --------
    >>> random_regular(10, 3, seed=0).n_neighbours
    array([3, 3, 3, 3, 3, 3, 3, 3, 3, 3])
    """
    n, degree = _checks.integer("n", n), _checks.integer("degree", degree, least=0)
    if degree >= n:
        raise ParameterError(f"degree = {degree} with n = {n}: an agent has at most {n - 1} neighbours")
    if n * degree % 2:
        raise ParameterError(f"degree = {degree} with n = {n}: every tie has two ends, so n * degree must be even")
    random = _checks.generator(seed)
    if 2 * degree < n:
        return Graph.from_edges(n, *regular_edges(n, degree, random))
    # Who is not tied to whom is a regular graph, too, and a sparser one.
    apart = Graph.from_edges(n, *regular_edges(n, n - 1 - degree, random))
    tied = np.ones((n, n), dtype=bool)
    tied[np.repeat(np.arange(n), apart.n_neighbours), apart.peer] = False
    return Graph.from_edges(n, *np.nonzero(np.triu(tied, k=1)))


def clusters(sizes: Sequence[int], inside: float = 1.0, between: float = 0.0) -> Graph:
    """Groups of agents, all tied within their group, and all across groups when `between` is not zero.

    Ties across make for all n (n - 1) / 2 pairs; without them, time and memory grow with the pairs inside.

    Examples
    --------
    >>> clusters([3, 2])
    Graph(n=5, edges=4, components=2, isolated=0)
    >>> clusters([2, 1], between=0.1).W.toarray()
    array([[0. , 1. , 0.1],
           [1. , 0. , 0.1],
           [0.1, 0.1, 0. ]])
    """
    counts = [_checks.integer(f"sizes[{k}]", size) for k, size in enumerate(sizes)]
    if not counts:
        raise ParameterError("sizes is empty: expected the number of agents in each cluster")
    inside, between = _checks.nonnegative("inside", inside), _checks.nonnegative("between", between)
    n = sum(counts)
    if between:
        cluster = np.repeat(np.arange(len(counts)), counts)
        i, j = np.triu_indices(n, k=1)
        return Graph.from_edges(n, i, j, np.where(cluster[i] == cluster[j], inside, between))
    # Without ties across, only the pairs inside are ever listed: many small clusters stay cheap.
    first, pairs = np.cumsum([0, *counts[:-1]]), []
    for size in sorted(set(counts)):
        i, j = np.triu_indices(size, k=1)
        begins = first[np.equal(counts, size), None]
        pairs.append(((begins + i).ravel(), (begins + j).ravel()))
    i, j = np.concatenate(pairs, axis=1)
    return Graph.from_edges(n, i, j, inside)
