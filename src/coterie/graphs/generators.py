"""Graphs of a given shape, regular or random, and graphs that change with time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .. import _checks
from ..errors import ParameterError
from .graph import Bools, Graph, Ints

#: Largest number of rounds of repair before the ends are joined anew; one or two suffice, or twenty for degree n/2.
MAX_REPAIR_ROUNDS = 200
#: Largest number of edges of a graph that is mixed by further random switches, and number of switches for each edge.
MAX_SWITCHED_EDGES, SWITCHES_PER_EDGE = 5_000, 10


def empty(n: int) -> Graph:
    """`n` agents without edges.

    Examples
    --------
    >>> empty(3)
    Graph(n=3, edges=0, components=3, isolated=3)
    """
    return Graph.from_edges(n, [], [])


def complete(n: int, weight: float = 1.0) -> Graph:
    """Edges between all pairs of agents.

    Examples
    --------
    >>> complete(4).n_edges
    6
    """
    n, weight = _checks.integer("n", n), _checks.positive("weight", weight)
    return Graph.from_edges(n, *np.triu_indices(n, k=1), weight)


def ring(n: int, neighbours: int = 1, weight: float = 1.0) -> Graph:
    """Agents in a circle, each connected to the nearest `neighbours` on either side.

    If the two sides overlap, each pair has one edge, and the graph is complete.

    Examples
    --------
    >>> ring(10, neighbours=2).neighbours(0)
    array([1, 2, 8, 9])
    >>> ring(4, neighbours=2) == complete(4)
    True
    """
    n, weight = _checks.integer("n", n), _checks.positive("weight", weight)
    # n // 2 steps reach all agents; further steps would repeat edges from the other side.
    reach = min(_checks.integer("neighbours", neighbours), n // 2)
    i, step = np.divmod(np.arange(n * reach), max(reach, 1))
    return Graph.from_edges(n, i, (i + step + 1) % n, weight)


def path(n: int) -> Graph:
    """Agents in a line, each connected to the next.

    Examples
    --------
    >>> path(4).n_neighbours
    array([1, 2, 2, 1])
    """
    agents = np.arange(_checks.integer("n", n))
    return Graph.from_edges(n, agents[:-1], agents[1:])


def star(n: int, center: int = 0) -> Graph:
    """One agent, number `center`, connected to all others, like a server to its clients.

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
    """Agents on a grid, each connected to the agents above, below, left and right; numbered row by row.

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
    """Each pair of agents has an edge with the given probability, independently of all other pairs.

    Time and memory grow with the number of edges, not with the number of pairs.

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
    """Return the positions of heads among independent coin flips, by drawing the gaps between heads."""
    if probability == 0:
        return np.empty(0, dtype=np.int64)
    expected = flips * probability
    enough = int(expected + 4 * math.sqrt(expected)) + 1  # one batch nearly always suffices
    heads, last = [], -1
    while last < flips:
        # Gaps beyond the end are truncated, so that the sum of very large gaps does not overflow.
        gaps = np.minimum(random.geometric(probability, size=enough), flips + 1)
        heads.append(last + np.cumsum(gaps, dtype=np.int64))
        last = int(heads[-1][-1])
    found = np.concatenate(heads)
    return found[found < flips]


def random_regular(n: int, degree: int, seed: int | np.random.Generator) -> Graph:
    """Every agent is connected to `degree` others; the graph is drawn at random (asymptotically uniform).

    Time and memory grow with the number of edges.

    Examples
    --------
    >>> random_regular(10, 3, seed=0).n_neighbours
    array([3, 3, 3, 3, 3, 3, 3, 3, 3, 3])
    """
    n, degree = _checks.integer("n", n), _checks.integer("degree", degree, least=0)
    if degree >= n:
        raise ParameterError(f"degree = {degree} with n = {n}: an agent has at most {n - 1} neighbours")
    if n * degree % 2:
        raise ParameterError(f"degree = {degree} with n = {n}: every edge has two ends, so n * degree must be even")
    random = _checks.generator(seed)
    if 2 * degree < n:
        return Graph.from_edges(n, *_regular_edges(n, degree, random))
    # The complement of a dense regular graph is a sparser regular graph.
    complement = Graph.from_edges(n, *_regular_edges(n, n - 1 - degree, random))
    connected = np.ones((n, n), dtype=bool)
    connected[np.repeat(np.arange(n), complement.n_neighbours), complement.peer] = False
    return Graph.from_edges(n, *np.nonzero(np.triu(connected, k=1)))


def clusters(sizes: Sequence[int], inside: float = 1.0, between: float = 0.0) -> Graph:
    """Groups of agents with edges between all members of a group, and across all groups if `between` is not zero.

    With edges across groups, all n (n - 1) / 2 pairs have edges; without them, time and memory grow with the number of
    pairs inside the groups.

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
    # Without edges across groups, only the pairs inside are listed, so that many small clusters are cheap.
    first, pairs = np.cumsum([0, *counts[:-1]]), []
    for size in sorted(set(counts)):
        i, j = np.triu_indices(size, k=1)
        begins = first[np.equal(counts, size), None]
        pairs.append(((begins + i).ravel(), (begins + j).ravel()))
    i, j = np.concatenate(pairs, axis=1)
    return Graph.from_edges(n, i, j, inside)


# -- random regular graphs ---------------------------------------------------------------------------------------------
#
# The configuration model joins n * degree ends at random. A few of its pairs are loops or duplicates: about
# degree^2 / 4, independently of n. Each of these is switched with another pair, (a, b), (c, e) -> (a, e), (c, b), which
# leaves all degrees unchanged. The result favours some graphs slightly, by an amount that vanishes as n grows; small
# graphs are mixed by further random switches, a Markov chain whose stationary distribution is uniform over all simple
# graphs of these degrees.


def _regular_edges(n: int, degree: int, random: np.random.Generator) -> tuple[Ints, Ints]:
    """Return the two ends of each edge, for a degree below n / 2 with n * degree even, in O(n * degree) time."""
    edges = n * degree // 2
    while True:
        ends = np.repeat(np.arange(n, dtype=np.int64), degree)
        random.shuffle(ends)
        a, b = ends[:edges], ends[edges:]
        if _repair(a, b, n, random):
            break
    if edges <= MAX_SWITCHED_EDGES:
        _walk(a, b, random)
    return a, b


def _keys(a: Ints, b: Ints, n: int) -> Ints:
    """Return one number for each unordered pair."""
    keys: Ints = np.minimum(a, b) * n + np.maximum(a, b)
    return keys


def _repair(a: Ints, b: Ints, n: int, random: np.random.Generator) -> bool:
    """Switch loops and duplicate pairs, in place; return whether none is left."""
    for _ in range(MAX_REPAIR_ROUNDS):
        keys = _keys(a, b, n)
        order = np.argsort(keys, kind="stable")
        there = keys[order]
        bad: Bools = a == b
        bad[order[1:]] |= there[1:] == there[:-1]  # the first of equal pairs stays
        wrong = np.flatnonzero(bad)
        if not wrong.size:
            return True
        random.shuffle(wrong)
        partner = random.integers(a.size, size=wrong.size)
        turned = random.random(wrong.size) < 0.5
        c, e = np.where(turned, b[partner], a[partner]), np.where(turned, a[partner], b[partner])
        new = np.stack((_keys(a[wrong], e, n), _keys(c, b[wrong], n)))
        at = np.minimum(np.searchsorted(there, new), a.size - 1)
        fine = ~bad[partner] & (a[wrong] != e) & (c != b[wrong]) & (there[at] != new).all(axis=0)
        wrong, partner, c, e, new = wrong[fine], partner[fine], c[fine], e[fine], new[:, fine]
        # Switches are made at once: of switches with the same partner or the same new pair, only the first is made.
        claims = np.concatenate((new[0], new[1], n * n + partner))
        _, first, claim = np.unique(claims, return_index=True, return_inverse=True)
        mine = np.tile(np.arange(wrong.size), 3)
        earliest = np.full(first.size, wrong.size)
        np.minimum.at(earliest, claim.ravel(), mine)
        chosen = (earliest[claim.ravel()] == mine).reshape(3, -1).all(axis=0) & (new[0] != new[1])
        wrong, partner, c, e = wrong[chosen], partner[chosen], c[chosen], e[chosen]
        b[wrong], b[partner], a[partner] = e, b[wrong], c
    return False


def _walk(a: Ints, b: Ints, random: np.random.Generator) -> None:
    """Make random switches, in place; a switch that would make a loop or a duplicate is skipped, but counted."""
    edges, steps = a.size, SWITCHES_PER_EDGE * a.size
    ends = [a.tolist(), b.tolist()]
    there = {frozenset(pair) for pair in zip(*ends, strict=True)}
    pairs, turns = random.integers(edges, size=(steps, 2)).tolist(), random.integers(2, size=steps).tolist()
    for (k, other), turn in zip(pairs, turns, strict=True):
        u, v, c, e = ends[0][k], ends[1][k], ends[turn][other], ends[1 - turn][other]
        one, two = frozenset((u, e)), frozenset((c, v))
        if k == other or len(one) == 1 or len(two) == 1 or one == two or one in there or two in there:
            continue
        there -= {frozenset((u, v)), frozenset((c, e))}
        there |= {one, two}
        ends[1][k], ends[turn][other], ends[1 - turn][other] = e, c, v
    a[:], b[:] = ends


# -- graphs that change with time ----------------------------------------------------------------------------------


def matchings(n: int, count: int, seed: int | np.random.Generator) -> list[Graph]:
    """`count` random matchings: every agent has one neighbour, except one agent if n is odd.

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
    """Return the argument ``changes`` of :func:`coterie.simulate` for a graph that changes with time.

    The run begins on the graph of the problem, which is replaced after every `every` rounds (or wakes, if the run is
    measured in wakes). Agents that become neighbours exchange their models, and these messages are counted.

    Parameters
    ----------
    problem : Problem
        The problem to solve, on the first graph.
    graphs : iterable of Graph, or function of a number
        The following graphs. An iterable is repeated from its beginning when it ends; a function is called with 1, 2,
        3, ...
    until : int
        Length of the run; changes take place before `until` only.
    every : int
        Length of the run on each graph.

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
            raise ParameterError("graphs is empty: expected the graphs that follow the graph of the problem")
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
