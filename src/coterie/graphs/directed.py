"""Graphs of one-way edges: an edge from i to j allows messages from agent i to agent j only."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from .. import _checks
from ..errors import GraphError, ParameterError
from .graph import Floats, Graph, Ints, check_edges, compressed, owners, refuse_bad_weights, refuse_loops


class DirectedGraph(Graph):
    """Nonnegative weights of one-way edges: ``W[i, j] > 0`` means that agent i sends to agent j.

    The edges of an agent are its outgoing edges; an agent learns about incoming edges from the messages that arrive.
    Only methods with ``directed = True``, such as push-sum, take directed graphs; all other methods need mutual edges.
    The smoothness term of a problem uses the symmetric weights ``(W + W.T) / 2``.

    Parameters
    ----------
    W : sparse matrix or array, or dense array-like, shape (n, n)
        The weights; copied. Stored zeros are dropped, and duplicate entries are summed.

    Attributes
    ----------
    start, peer, weight : ndarray
        As in :class:`Graph`: the outgoing edges of agent i are entries ``start[i]:start[i + 1]``.
    degrees : (n,) float64
        Sum of the weights of each agent's outgoing edges.

    Raises
    ------
    GraphError
        If `W` is not square, numeric, finite, nonnegative and zero on the diagonal; the message names the first
        offending entry.

    Examples
    --------
    >>> import coterie as ct
    >>> graph = ct.DirectedGraph([[0, 1, 0], [0, 0, 1], [1, 1, 0]])
    >>> graph
    DirectedGraph(n=3, edges=4, strongly connected)
    >>> graph.neighbours(2), graph.in_degrees.tolist()
    (array([0, 1]), [1, 2, 1])
    >>> graph.mutual.W.toarray().tolist()
    [[0.0, 0.5, 0.5], [0.5, 0.0, 1.0], [0.5, 1.0, 0.0]]
    """

    def __init__(self, W: Any) -> None:
        csr = compressed(W)
        i, j = owners(csr.indptr), csr.indices.astype(np.int64)
        refuse_bad_weights(i, j, csr.data)
        refuse_loops(i, j, csr.data)
        self._fill(csr.indptr.astype(np.int64), j, csr.data)

    @classmethod
    def from_edges(cls, n: int, i: ArrayLike, j: ArrayLike, weight: ArrayLike = 1.0) -> DirectedGraph:
        """Return the graph of `n` agents with one-way edges from ``i[k]`` to ``j[k]``.

        Parameters
        ----------
        n : int
            Number of agents.
        i, j : (edges,) int
            Senders and receivers of the edges; no edge may be given twice.
        weight : float or (edges,) float
            Weight of each edge.

        Examples
        --------
        >>> DirectedGraph.from_edges(3, [0, 1], [1, 2]).neighbours(0)
        array([1])
        """
        n, source, goal, weights = check_edges(n, i, j, weight, "edge")
        if np.unique(source * n + goal).size != source.size:
            raise GraphError("an edge is there twice: give each ordered pair of agents once")
        return cls(sparse.coo_array((weights, (source, goal)), shape=(n, n)))

    @classmethod
    def from_arrays(cls, start: Ints, peer: Ints, weight: Floats) -> DirectedGraph:
        """Return the graph with the given arrays, read from a file."""
        return cls.from_edges(start.shape[0] - 1, owners(start), peer, weight)

    @property
    def directed(self) -> bool:
        """Whether edges are one-way: always True."""
        return True

    @property
    def n_edges(self) -> int:
        """Number of one-way edges."""
        return int(self.peer.size)

    @property
    def in_degrees(self) -> Ints:
        """Number of incoming edges of each agent, shape (n,)."""
        return np.bincount(self.peer, minlength=self.n)

    @property
    def strongly_connected(self) -> bool:
        """Whether every agent can be reached from every other along edges, which push-sum needs for averaging."""
        return int(connected_components(self.W, directed=True, connection="strong")[0]) == 1

    @cached_property
    def mutual(self) -> Graph:
        """The symmetric graph of weights (W + W.T) / 2."""
        return Graph((self.W + self.W.T) / 2.0)

    def edges(self) -> tuple[Ints, Ints, Floats]:
        """Return senders, receivers and weights of all edges.

        Examples
        --------
        >>> DirectedGraph([[0, 2, 0], [0, 0, 1], [0, 0, 0]]).edges()
        (array([0, 1]), array([1, 2]), array([2., 1.]))
        """
        return owners(self.start), self.peer, self.weight

    def __repr__(self) -> str:
        connected = "strongly connected" if self.strongly_connected else "not strongly connected"
        return f"DirectedGraph(n={self.n}, edges={self.n_edges}, {connected})"


def directed_ring(n: int) -> DirectedGraph:
    """Agents in a circle, each with an edge to the next.

    Examples
    --------
    >>> directed_ring(4).neighbours(3)
    array([0])
    """
    agents = np.arange(_checks.integer("n", n, least=2))
    return DirectedGraph.from_edges(agents.size, agents, (agents + 1) % agents.size)


def directed_random(n: int, degree: int, seed: int | np.random.Generator) -> DirectedGraph:
    """Every agent has edges to `degree` others: to the next agent in a circle, and to others drawn at random.

    Because of the circle, the graph is strongly connected.

    Examples
    --------
    >>> graph = directed_random(20, 3, seed=0)
    >>> graph.n_neighbours.tolist() == [3] * 20, graph.strongly_connected
    (True, True)
    """
    n, degree = _checks.integer("n", n, least=2), _checks.integer("degree", degree)
    if degree >= n:
        raise ParameterError(f"degree = {degree} with n = {n}: an agent has at most {n - 1} neighbours")
    random = _checks.generator(seed)
    # Steps ahead of the sender: 1, and distinct others from 2 to n - 1.
    steps = [np.append(1, 2 + random.choice(n - 2, degree - 1, replace=False)) if degree > 1 else [1] for _ in range(n)]
    i = np.repeat(np.arange(n), degree)
    return DirectedGraph.from_edges(n, i, (i + np.concatenate(steps).astype(np.int64)) % n)


def directed_exponential(n: int) -> DirectedGraph:
    """Every agent has edges to the agents 1, 2, 4, 8, ... steps ahead in a circle.

    Examples
    --------
    >>> directed_exponential(10).neighbours(0)
    array([1, 2, 4, 8])

    References
    ----------
    Assran, Loizou, Ballas, Rabbat, "Stochastic gradient push for distributed deep learning", ICML 2019.
    """
    steps = _powers(n)
    i = np.repeat(np.arange(n), steps.size)
    return DirectedGraph.from_edges(n, i, (i + np.tile(steps, n)) % n)


def one_peer_exponential(n: int) -> list[DirectedGraph]:
    """The edges of :func:`directed_exponential`, in turn: graph k has edges to the agent 2^k steps ahead.

    If n is a power of two, averaging once with the sender of the incoming edge, in each graph of the list, gives every
    agent the mean over all agents.

    Examples
    --------
    >>> [graph.neighbours(0).tolist() for graph in one_peer_exponential(8)]
    [[1], [2], [4]]

    References
    ----------
    Ying, Yuan, Chen, Hu, Pan, Yin, "Exponential graph is provably efficient for decentralized deep training", 2021.
    """
    agents = np.arange(_checks.integer("n", n, least=2))
    return [DirectedGraph.from_edges(n, agents, (agents + step) % n) for step in _powers(n)]


def _powers(n: int) -> Ints:
    """Return 1, 2, 4, ..., below n."""
    return 2 ** np.arange(math.ceil(math.log2(_checks.integer("n", n, least=2))))
