"""Graphs from what is known of the agents: their models, their positions, or a graph made elsewhere."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from .. import _checks
from ..errors import GraphError, ParameterError
from .generators import empty
from .graph import Floats, Graph, Ints
from .nearest import nearest

if TYPE_CHECKING:
    import networkx as nx


def knn(
    models: ArrayLike,
    neighbours: int = 10,
    kernel: Literal["uniform", "gaussian"] = "uniform",
    bandwidth: float | None = None,
    exact: bool | None = None,
    seed: int = 0,
) -> Graph:
    """Ties to the nearest models: two agents are tied when either is among the other's nearest.

    Parameters
    ----------
    models : (n, p)
        One row per agent; distances are Euclidean.
    neighbours : int
        How many nearest agents each agent proposes, fewer than n. Agents with the same model are
        neighbours at distance zero. A lone agent (n = 1) has none, whatever this number.
    kernel : "uniform" or "gaussian"
        Weights all 1, or exp(-d^2 / (2 bandwidth^2)) at distance d. A Gaussian weight too small for
        a float, beyond some 38 bandwidths, is no tie.
    bandwidth : float, optional
        Of the Gaussian; by default the median distance of the agents to their nearest `neighbours`
        (1 when that is zero).
    exact : bool, optional
        Whether all distances are compared, which takes time that grows as n^2 (33 s for 100,000 models of 20 numbers),
        or nearest neighbours are found by an index, which grows as n log n and finds nearly all of them (99 % of ten,
        20 numbers). Default: exact up to 50,000 agents, and where models have at most 5 numbers. The index needs
        ``pip install "coterie[index]"`` and, in each process, half a minute to get ready.
    seed : int
        Of the index, whose result depends on it, and not on the number of threads.

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
    distance = _distances(x, i, j)
    return Graph.from_edges(n, i, j, _gaussian(distance, bandwidth or float(np.median(distance)) or 1.0))


def kernel(points: ArrayLike, bandwidth: float, cut: float = 1e-3) -> Graph:
    """Gaussian weights ``W_ij = exp(-|x_i - x_j|^2 / (2 bandwidth^2))``, ignoring those below `cut`.

    Parameters
    ----------
    points : (n, p)
        One row per agent.
    bandwidth : float
        The distance at which the weight is exp(-1/2).
    cut : float
        Smaller weights are no ties. Time and memory grow with the ties that are left.

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

    # Look a little further than the cut, so that the weight alone decides on the border.
    radius = bandwidth * math.sqrt(-2 * math.log(cut)) * (1 + 1e-6)
    close = NearestNeighbors(radius=radius).fit(_centred(x)).radius_neighbors_graph().tocoo()
    i, j = close.row, close.col
    weight = _gaussian(_distances(x, i, j), bandwidth)
    kept = weight >= cut
    return Graph.from_edges(len(x), i[kept], j[kept], weight[kept])


def angles(models: ArrayLike, gamma: float = 0.1, cut: float = 1e-3) -> Graph:
    """Weights W_ij = exp((cos phi_ij - 1) / gamma), phi_ij the angle between models i and j.

    The graph of the papers MP, CL and CD for collaborative linear classification, where the length
    of a model does not matter and negligible weights are ignored.

    Parameters
    ----------
    models : (n, p)
        One row per agent, none of them zero.
    gamma : float
        How fast the weights fall with the angle.
    cut : float
        Smaller weights are no ties.

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
    # |u - v|^2 = 2 - 2 cos(u, v) for unit vectors: the weight is a Gaussian of variance gamma, and this
    # way keeps the digits that 1 - cos loses at small angles.
    return kernel(unit, bandwidth=math.sqrt(gamma), cut=cut)


def from_networkx(graph: nx.Graph, members: Iterable[Hashable] | None = None, weight: str = "weight") -> Graph:
    """Graph from an undirected ``networkx.Graph``.

    Parameters
    ----------
    graph : networkx.Graph
        Neither directed nor a multigraph, without loops.
    members : iterable of nodes, optional
        Every node once, in the order of the agents; by default the graph's own order.
    weight : str
        Edge attribute that holds the weight; an edge without it weighs 1.

    Examples
    --------
    >>> import networkx as nx
    >>> friends = nx.Graph([("ann", "bob"), ("bob", "cem")])
    >>> from_networkx(friends, members=["bob", "ann", "cem"]).neighbours(0)
    array([1, 2])
    """
    if graph.is_directed():
        raise GraphError("the graph is directed: ties are mutual, pass graph.to_undirected()")
    if graph.is_multigraph():
        raise GraphError("the graph is a multigraph: pass networkx.Graph(graph), one edge per pair")
    if not graph:
        raise GraphError("the graph has no nodes: expected at least one agent")
    for node in (node for node in graph if graph.has_edge(node, node)):
        raise GraphError(f"node {node!r} has a tie to itself: remove it with graph.remove_edge")

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
    """The points around their mean: scikit-learn may expand |x - y|^2, which loses digits far from zero."""
    centred: Floats = x - x.mean(axis=0)
    return centred


def _distances(x: Floats, i: Ints, j: Ints, block: int = 1 << 16) -> Floats:
    """|x_i - x_j| of each pair, exactly the same for (i, j) and (j, i), and zero for duplicates.

    Blocks keep the differences, p numbers per pair, from being in memory all at once.
    """
    distance = np.empty(len(i))
    for begin in range(0, len(i), block):
        pairs = slice(begin, begin + block)
        distance[pairs] = np.linalg.norm(x[i[pairs]] - x[j[pairs]], axis=1)
    return distance


def _gaussian(distance: Floats, bandwidth: float) -> Floats:
    weight: Floats = np.exp(-0.5 * (distance / bandwidth) ** 2)
    return weight
