"""Graphs from the agents' models or positions, from a table of edges, or from a networkx graph.

The nearest neighbours are found exactly, or by an index for many agents. Seconds of CPU for 10 neighbours among 20,000
points (p = 20, ``benchmarks/nearest.py``): the exact search takes 1.2, and four times as long for twice the agents; the
index takes 1.3, and about twice as long for twice the agents, plus 30 for compilation in each process. So the index is
faster from some 110,000 agents on for the first graph, and from 20,000 on for later graphs; the default is between the
two. In few dimensions a tree is exact and fast, 0.4 s (p = 2) to 4 s (p = 5) among 100,000. Single precision would not
speed up the exact search: scikit-learn computes products of float32 in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from importlib.util import find_spec
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from .. import _checks
from ..errors import DataError, GraphError, MissingExtra, ParameterError
from .generators import empty
from .graph import Floats, Graph, Ints

if TYPE_CHECKING:
    import networkx as nx

#: Number of pairs whose squared distances are computed at a time.
PAIRS_PER_BLOCK = 1 << 16
#: The exact search is the default up to this number of agents, or up to this number of dimensions.
EXACT_AGENTS, EXACT_DIMENSIONS = 50_000, 5
#: Least number of neighbours that the index stores for each point; fewer lower its recall (.95 for .99, p = 20).
MIN_INDEX_NEIGHBOURS = 30


def knn(
    models: ArrayLike,
    neighbours: int = 10,
    kernel: Literal["uniform", "gaussian"] = "uniform",
    bandwidth: float | None = None,
    exact: bool | None = None,
    seed: int = 0,
) -> Graph:
    """Edges to the nearest models: two agents are neighbours if either is among the nearest of the other.

    Parameters
    ----------
    models : (n, p)
        One row per agent; distances are Euclidean.
    neighbours : int
        Number of nearest agents of each agent, less than n. Agents with equal models are at distance zero. A single
        agent (n = 1) has no neighbours, for every value.
    kernel : "uniform" or "gaussian"
        Weights are all 1, or exp(-d^2 / (2 bandwidth^2)) at distance d. Pairs whose Gaussian weight is too small for
        a float, beyond some 38 bandwidths, have no edge.
    bandwidth : float, optional
        Bandwidth of the Gaussian kernel. Default: the median distance of the agents to their nearest `neighbours`
        (1 if that is zero).
    exact : bool, optional
        Whether all distances are compared, in time that grows as n^2 (33 s for 100,000 models of 20 numbers), or an
        index is used, in time that grows as n log n; the index finds nearly all neighbours (99 % of ten, for models of
        20 numbers). Default: exact up to 50,000 agents, and for models of at most 5 numbers. The index needs
        ``pip install "coterie[index]"`` and, in each process, half a minute for compilation.
    seed : int
        Seed of the index; the result does not depend on the number of threads.

    Examples
    --------
    >>> knn([[0.0], [1.0], [1.5], [9.0]], neighbours=1).W.toarray()
    array([[0., 1., 0., 0.],
           [1., 0., 1., 0.],
           [0., 1., 0., 1.],
           [0., 0., 1., 0.]])
    """
    x = _checks.points("models", models)
    neighbours = _checks.integer("neighbours", neighbours)
    _checks.choice("kernel", kernel, ("uniform", "gaussian"))
    if bandwidth is not None:
        bandwidth = _checks.positive("bandwidth", bandwidth)
        if kernel == "uniform":
            raise ParameterError(f"bandwidth = {bandwidth}: only kernel='gaussian' has a bandwidth")
    n = len(x)
    if n == 1:
        return empty(1)
    if neighbours >= n:
        raise ParameterError(f"neighbours = {neighbours} with {n} agents: an agent has at most {n - 1} others")

    i, j = np.repeat(np.arange(n), neighbours), nearest(x, neighbours, exact, seed).ravel()
    if kernel == "uniform":
        return Graph.from_edges(n, i, j)
    distance = np.sqrt(squares(x, i, j))
    return Graph.from_edges(n, i, j, _gaussian(distance, bandwidth or float(np.median(distance)) or 1.0))


def kernel(points: ArrayLike, bandwidth: float, cut: float = 1e-3) -> Graph:
    """Gaussian weights ``W_ij = exp(-|x_i - x_j|^2 / (2 bandwidth^2))``; weights below `cut` are dropped.

    Parameters
    ----------
    points : (n, p)
        One row per agent.
    bandwidth : float
        The distance at which the weight is exp(-1/2).
    cut : float
        Pairs with a smaller weight have no edge. Time and memory grow with the number of edges.

    Examples
    --------
    >>> kernel([[0.0], [1.0], [9.0]], bandwidth=1.0).W.toarray().round(3)
    array([[0.   , 0.607, 0.   ],
           [0.607, 0.   , 0.   ],
           [0.   , 0.   , 0.   ]])
    """
    x = _checks.points("points", points)
    bandwidth, cut = _checks.positive("bandwidth", bandwidth), _checks.fraction("cut", cut)
    from sklearn.neighbors import NearestNeighbors

    # The radius is slightly larger than needed, so that only the comparison of weights below decides.
    radius = bandwidth * math.sqrt(-2 * math.log(cut)) * (1 + 1e-6)
    close = NearestNeighbors(radius=radius).fit(_centred(x)).radius_neighbors_graph().tocoo()
    i, j = close.row, close.col
    weight = _gaussian(np.sqrt(squares(x, i, j)), bandwidth)
    kept = weight >= cut
    return Graph.from_edges(len(x), i[kept], j[kept], weight[kept])


def angles(models: ArrayLike, gamma: float = 0.1, cut: float = 1e-3) -> Graph:
    """Weights ``W_ij = exp((cos phi_ij - 1) / gamma)``, where phi_ij is the angle between models i and j.

    The graph of the papers MP, CL and CD for collaborative linear classification, where the norm of a model does not
    matter and negligible weights are dropped.

    Parameters
    ----------
    models : (n, p)
        One row per agent, none of them zero.
    gamma : float
        Scale of the angles: the smaller, the faster the weights decrease with the angle.
    cut : float
        Pairs with a smaller weight have no edge.

    Examples
    --------
    >>> angles([[1.0, 0.0], [5.0, 0.0], [0.0, 1.0]], gamma=0.5).W.toarray().round(3)
    array([[0.   , 1.   , 0.135],
           [1.   , 0.   , 0.135],
           [0.135, 0.135, 0.   ]])
    """
    x = _checks.points("models", models)
    gamma = _checks.positive("gamma", gamma)
    largest = np.abs(x).max(axis=1, keepdims=True)
    if (largest == 0).any():
        raise ParameterError(f"models: agent {largest.argmin()} has the zero model, which has no angle")
    x = x / largest  # first, so that no square overflows or vanishes
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    # |u - v|^2 = 2 - 2 cos(u, v) for unit vectors, so the weight is a Gaussian of variance gamma of |u - v|, which
    # avoids the loss of digits in 1 - cos at small angles.
    return kernel(unit, bandwidth=math.sqrt(gamma), cut=cut)


def from_networkx(graph: nx.Graph, members: Iterable[Hashable] | None = None, weight: str = "weight") -> Graph:
    """Return the graph of an undirected ``networkx.Graph``.

    Parameters
    ----------
    graph : networkx.Graph
        An undirected graph without loops; multigraphs are refused.
    members : iterable of nodes, optional
        All nodes, each once, in the order of the agents. Default: the order of the graph.
    weight : str
        Name of the edge attribute that holds the weight; an edge without this attribute has weight 1.

    Examples
    --------
    >>> import networkx as nx
    >>> friends = nx.Graph([("ann", "bob"), ("bob", "cem")])
    >>> from_networkx(friends, members=["bob", "ann", "cem"]).neighbours(0)
    array([1, 2])
    """
    if graph.is_directed():
        raise GraphError("the graph is directed: edges are mutual, pass graph.to_undirected()")
    if graph.is_multigraph():
        raise GraphError("the graph is a multigraph: pass networkx.Graph(graph), one edge per pair")
    if not graph:
        raise GraphError("the graph has no nodes: expected at least one agent")
    for node in (node for node in graph if graph.has_edge(node, node)):
        raise GraphError(f"node {node!r} has an edge to itself: remove it with graph.remove_edge")

    order = list(graph.nodes if members is None else members)
    agent = {node: k for k, node in enumerate(order)}
    for node in order:
        if node not in graph:
            raise GraphError(f"members names {node!r}, which is not a node of the graph")
    for node in graph.nodes:
        if node not in agent:
            raise GraphError(f"members misses node {node!r} of the graph")
    if len(agent) < len(order):
        twice = next(node for k, node in enumerate(order) if agent[node] != k)
        raise GraphError(f"members names {twice!r} more than once")

    edges = list(graph.edges(data=weight, default=1.0))
    for u, v, value in edges:
        try:
            _checks.nonnegative(weight, value)
        except ParameterError as error:
            raise GraphError(f"edge ({u!r}, {v!r}) has {error}") from None
    i = [agent[u] for u, _, _ in edges]
    j = [agent[v] for _, v, _ in edges]
    return Graph.from_edges(len(order), i, j, [float(value) for _, _, value in edges])


def _centred(x: Floats) -> Floats:
    """Subtract the mean of the points: scikit-learn may expand |x - y|^2, which loses digits far from zero."""
    centred: Floats = x - x.mean(axis=0)
    return centred


def squares(x: Floats, i: Ints, j: Ints) -> Floats:
    """Return |x_i - x_j|^2 of each pair, bitwise equal for (i, j) and (j, i), and zero for duplicates.

    Pairs are processed in blocks, so that not all differences, p numbers per pair, are in memory at once.
    """
    parts = [slice(begin, begin + PAIRS_PER_BLOCK) for begin in range(0, len(i), PAIRS_PER_BLOCK)]
    return np.concatenate([np.square(x[i[part]] - x[j[part]]).sum(axis=1) for part in parts] or [np.zeros(0)])


def _gaussian(distance: Floats, bandwidth: float) -> Floats:
    weight: Floats = np.exp(-0.5 * (distance / bandwidth) ** 2)
    return weight


def nearest(x: Floats, neighbours: int, exact: bool | None = None, seed: Any = 0) -> Ints:
    """Return the nearest other points of each point, (n, neighbours), nearest first; `neighbours` is less than n.

    Equal points are at distance zero. If `exact` is None, the expected faster search is used.
    """
    if exact is None:
        exact = len(x) <= EXACT_AGENTS or x.shape[1] <= EXACT_DIMENSIONS
    x = _centred(x)
    if exact or len(x) <= MIN_INDEX_NEIGHBOURS + 1:
        from sklearn.neighbors import NearestNeighbors  # not above: the import takes a second

        # Without query points, scikit-learn excludes each point from its own neighbours by index, so that duplicates
        # are handled correctly.
        found: Ints = NearestNeighbors(n_neighbors=neighbours).fit(x).kneighbors(return_distance=False)
        return found
    return _by_index(x, neighbours, seed)


def _by_index(x: Floats, neighbours: int, seed: Any) -> Ints:
    """Return approximate nearest neighbours by nearest-neighbour descent, sorted by exact distances."""
    if find_spec("pynndescent") is None:
        raise MissingExtra(
            f"the nearest of {len(x)} agents with {x.shape[1]} coefficients are found by an index, which needs "
            'pynndescent: pip install "coterie[index]"; or pass exact=True to knn, which takes some '
            f"{33 * (len(x) / 1e5) ** 2:.0f} seconds and needs no further package"
        )
    from pynndescent import NNDescent

    breadth = min(max(MIN_INDEX_NEIGHBOURS, 2 * neighbours), len(x) - 1)
    state = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))
    # One thread: with several threads, the result would depend on their number.
    rough = NNDescent(x.astype(np.float32), n_neighbors=breadth, random_state=state, n_jobs=1, compressed=False)
    return _closest(x, rough.neighbor_graph[0].astype(np.int64), neighbours)


def _closest(x: Floats, candidates: Ints, neighbours: int, block: int = 1 << 12) -> Ints:
    """Return the nearest other points among each point's candidates; if there are too few, among all points."""
    found = np.empty((len(x), neighbours), dtype=np.int64)
    for begin in range(0, len(x), block):
        rows = np.arange(begin, min(begin + block, len(x)))
        among = candidates[rows]
        square = np.square(x[among] - x[rows, None]).sum(axis=2)
        square[(among == rows[:, None]) | (among < 0)] = np.inf
        order = np.argsort(square, axis=1, kind="stable")[:, :neighbours]
        found[rows] = np.take_along_axis(among, order, axis=1)
        for k in np.flatnonzero(np.isinf(np.take_along_axis(square, order, axis=1)).any(axis=1)):
            all_squares = np.square(x - x[rows[k]]).sum(axis=1)
            all_squares[rows[k]] = np.inf
            found[rows[k]] = np.argsort(all_squares, kind="stable")[:neighbours]
    return found


def read_edges(path: str | PathLike[str], members: Sequence[Hashable]) -> Graph:
    """Read a graph from a table of edges with columns agent and peer, and optionally weight (default 1)."""
    from ..data.ids import agent_numbers
    from ..data.sources.readers import ids_like, read_table  # not above: imports pandas

    table = read_table(path, ids=("agent", "peer"), as_text=True)
    missing = [name for name in ("agent", "peer") if name not in table.columns]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}: a table of edges has columns agent, peer and weight")
    number = {member: k for k, member in enumerate(members)}
    ends = {name: agent_numbers(ids_like(table[name], members), number) for name in ("agent", "peer")}
    for name, numbers in ends.items():
        unknown = np.flatnonzero(numbers < 0)
        if unknown.size:
            stranger = table[name].tolist()[unknown[0]]
            raise DataError(f"{path}, row {unknown[0]}: {stranger!r} is not an agent of the data")
    weight = table["weight"].to_numpy(float) if "weight" in table.columns else np.ones(len(table))
    bad = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0)))
    if bad.size:
        raise DataError(f"{path}, row {bad[0]}: weight {weight[bad[0]]:g} must be a finite number >= 0")
    return Graph.from_edges(len(members), ends["agent"], ends["peer"], weight)
