"""The collaboration graph: agents, edges and weights (docs/math.md, section 1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from .. import _checks
from ..errors import GraphError, ParameterError

if TYPE_CHECKING:
    import networkx as nx

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Locked = TypeVar("Locked", Ints, Floats)

ROUNDING = 1e-12
"""Largest relative difference of W[i, j] and W[j, i] that counts as rounding."""


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Graph:
    """Symmetric, nonnegative weights between agents, without edges of an agent to itself.

    A graph never changes: its arrays are read-only. The edges of agent ``i`` are the entries
    ``start[i]:start[i + 1]`` of `peer` and `weight`, in increasing order of the peer.

    Parameters
    ----------
    W : sparse matrix or array, or dense array-like, shape (n, n)
        The weights; copied. Stored zeros are dropped, duplicate entries are summed, and weights that differ by
        rounding (1e-12, relative) are replaced by the larger of the two.

    Attributes
    ----------
    start : (n + 1,) int64
        Index of the first edge of each agent.
    peer : (2 n_edges,) int64
        The agent at the other end of each edge.
    weight : (2 n_edges,) float64
        W_ij > 0 of each edge.
    degrees : (n,) float64
        D_ii, the sum of each agent's weights.

    Raises
    ------
    GraphError
        If `W` is not square, numeric, finite, nonnegative, zero on the diagonal and symmetric; the message names the
        first offending entry.

    Examples
    --------
    >>> graph = Graph([[0, 2, 0], [2, 0, 1], [0, 1, 0]])
    >>> graph
    Graph(n=3, edges=2, components=1, isolated=0)
    >>> graph.degrees
    array([2., 3., 1.])
    >>> graph.neighbours(1)
    array([0, 2])
    """

    start: Ints
    peer: Ints
    weight: Floats
    degrees: Floats
    digest_parts = ("start", "peer", "weight")

    def __init__(self, W: Any) -> None:
        self._fill(*_validated(W))

    def _fill(self, start: Ints, peer: Ints, weight: Floats) -> None:
        # Attributes of a frozen dataclass can only be set this way.
        object.__setattr__(self, "start", _locked(start))
        object.__setattr__(self, "peer", _locked(peer))
        object.__setattr__(self, "weight", _locked(weight))
        object.__setattr__(self, "degrees", _locked(_degrees(start, weight)))

    @classmethod
    def _of(cls, start: Ints, peer: Ints, weight: Floats) -> Graph:
        """Return the graph of compressed rows known to be symmetric, sorted and positive, without copies or checks."""
        graph = cls.__new__(cls)
        graph._fill(start, peer, weight)
        return graph

    @classmethod
    def from_arrays(cls, start: Ints, peer: Ints, weight: Floats) -> Graph:
        """Return the graph with the given arrays, read from a file."""
        i = owners(start)
        once = i < peer
        return cls.from_edges(start.shape[0] - 1, i[once], peer[once], weight[once])

    @classmethod
    def from_edges(cls, n: int, i: ArrayLike, j: ArrayLike, weight: ArrayLike = 1.0) -> Graph:
        """Return the graph of `n` agents with the given undirected edges.

        Parameters
        ----------
        n : int
            Number of agents.
        i, j : (edges,) int
            The two ends of each edge, in either order. An edge may be given more than once, in either direction, if
            its weights are equal.
        weight : float or (edges,) float
            Weight of each edge. Edges of weight zero are dropped.

        Examples
        --------
        >>> graph = Graph.from_edges(4, [0, 1], [1, 2], [0.5, 2.0])
        >>> graph.isolated
        array([False, False, False,  True])
        """
        n, i, j, weights = check_edges(n, i, j, weight, "edge")
        if (loops := i == j).any():
            edge = loops.argmax()
            raise GraphError(f"edge {edge} joins agent {i[edge]} to itself: leave it out")
        refuse_bad_weights(i, j, weights)

        pair = np.minimum(i, j) * n + np.maximum(i, j)
        # The sort is stable: equal pairs keep the order of the arguments.
        order = np.argsort(pair, kind="stable")
        pair, weights = pair[order], weights[order]
        low, high = np.divmod(pair, n)
        again = np.flatnonzero(pair[1:] == pair[:-1]) + 1
        conflict = again[weights[again] != weights[again - 1]]
        if conflict.size:
            k = conflict[0]
            raise GraphError(
                f"edge {order[k]} joins agents {low[k]} and {high[k]} with weight {weights[k]}, "
                f"but edge {order[k - 1]} gave them {weights[k - 1]}: give each pair one weight"
            )
        kept = weights != 0.0
        kept[again] = False
        if not kept.all():
            low, high, weights = low[kept], high[kept], weights[kept]
        # Pairs are sorted: each agent's peers with lower numbers come first, in order, and then its other peers.
        ends = np.concatenate((high, low)), np.concatenate((low, high))
        rows = sparse.coo_array((np.tile(weights, 2), ends), shape=(n, n)).tocsr()
        return cls._of(rows.indptr.astype(np.int64), rows.indices.astype(np.int64), rows.data)

    @property
    def n(self) -> int:
        """Number of agents."""
        return self.start.size - 1

    @property
    def directed(self) -> bool:
        """Whether edges are one-way, as in a :class:`coterie.DirectedGraph`: False."""
        return False

    @property
    def mutual(self) -> Graph:
        """The graph with symmetric weights: this graph."""
        return self

    @property
    def n_edges(self) -> int:
        """Number of undirected edges."""
        return self.peer.size // 2

    @property
    def n_neighbours(self) -> Ints:
        """Number of neighbours of each agent, shape (n,)."""
        return np.diff(self.start)

    @property
    def isolated(self) -> Bools:
        """Which agents have no neighbour, shape (n,)."""
        no_neighbour: Bools = self.n_neighbours == 0
        return no_neighbour

    @cached_property
    def components(self) -> Ints:
        """Connected component of each agent, shape (n,), numbered in the order of their first agents."""
        _, labels = connected_components(self.W, directed=False)
        return _locked(np.asarray(labels, dtype=np.int64))

    @property
    def n_components(self) -> int:
        """Number of connected components; an isolated agent is one."""
        return int(self.components.max()) + 1

    @property
    def W(self) -> sparse.csr_array:  # noqa: N802  the field's own name for weights
        """The weights as a SciPy array that shares the read-only memory of the graph; copy the array to change it."""
        return sparse.csr_array((self.weight, self.peer, self.start), shape=(self.n, self.n))

    def laplacian(self) -> sparse.csr_array:
        """Return the Laplacian, D - W.

        Examples
        --------
        >>> Graph([[0, 3], [3, 0]]).laplacian().toarray()
        array([[ 3., -3.],
               [-3.,  3.]])
        """
        return sparse.csr_array(sparse.diags_array(self.degrees, format="csr") - self.W)

    def edges(self) -> tuple[Ints, Ints, Floats]:
        """Return each undirected edge once, as arrays of its ends i < j and its weight.

        Examples
        --------
        >>> i, j, weight = Graph([[0, 2, 0], [2, 0, 1], [0, 1, 0]]).edges()
        >>> i, j, weight
        (array([0, 1]), array([1, 2]), array([2., 1.]))
        """
        i = owners(self.start)
        once = i < self.peer
        return i[once], self.peer[once], self.weight[once]

    def neighbours(self, i: int) -> Ints:
        """Return the neighbours of agent `i`, in increasing order.

        Examples
        --------
        >>> Graph([[0, 2, 0], [2, 0, 1], [0, 1, 0]]).neighbours(2)
        array([1])
        """
        i = _checks.integer("agent", i, least=0)
        if i >= self.n:
            raise ParameterError(f"agent = {i}: the agents are 0 to {self.n - 1}")
        return self.peer[self.start[i] : self.start[i + 1]]

    def relabel(self, order: ArrayLike) -> Graph:
        """Return the graph with renumbered agents: the new agent k is the old agent ``order[k]``.

        Examples
        --------
        >>> Graph([[0, 2, 0], [2, 0, 1], [0, 1, 0]]).relabel([1, 0, 2]).degrees
        array([3., 2., 1.])
        """
        permutation = _checks.integers("order", order, (self.n,), f"the {self.n} agents' integers")
        missing = np.setdiff1d(np.arange(self.n), permutation)
        if missing.size:
            raise ParameterError(
                f"order is no permutation of the agents 0 to {self.n - 1}: it misses agent {missing[0]}"
            )
        moved = self.W[permutation][:, permutation]
        moved.sort_indices()
        return self._of(moved.indptr.astype(np.int64), moved.indices.astype(np.int64), moved.data)

    def without(self, agents: ArrayLike) -> Graph:
        """Return the graph without the edges of some agents; all agents keep their numbers.

        Parameters
        ----------
        agents : (any,) int
            Agents whose edges are removed; they are isolated in the result.

        Examples
        --------
        >>> graph = Graph([[0, 2, 0], [2, 0, 1], [0, 1, 0]]).without([2])
        >>> graph
        Graph(n=3, edges=1, components=2, isolated=1)
        >>> graph.neighbours(1)
        array([0])
        """
        numbers = _checks.integers("agents", agents, (None,), "a list of agents' integers")
        outside = (numbers < 0) | (numbers >= self.n)
        if outside.any():
            raise ParameterError(f"agents holds {numbers[outside.argmax()]}: the agents are 0 to {self.n - 1}")
        stays = np.ones(self.n, dtype=bool)
        stays[numbers] = False
        i = owners(self.start)
        kept = stays[i] & stays[self.peer]
        start = np.concatenate(([0], np.cumsum(np.bincount(i[kept], minlength=self.n))))
        return self._of(start, self.peer[kept], self.weight[kept])

    def to_networkx(self) -> nx.Graph:
        """Return a ``networkx.Graph`` on nodes 0 to n - 1 with edge attribute ``weight``.

        A directed graph is returned as a ``networkx.DiGraph``.

        Examples
        --------
        >>> Graph([[0, 2], [2, 0]]).to_networkx().edges[0, 1]
        {'weight': 2.0}
        """
        import networkx as nx  # not above: only this method needs networkx

        graph = nx.DiGraph() if self.directed else nx.Graph()
        graph.add_nodes_from(range(self.n))
        graph.add_weighted_edges_from(zip(*(array.tolist() for array in self.edges()), strict=True))
        return graph

    def __repr__(self) -> str:
        isolated = np.count_nonzero(self.isolated)
        return f"Graph(n={self.n}, edges={self.n_edges}, components={self.n_components}, isolated={isolated})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        return self.directed == other.directed and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self.digest_parts
        )

    def __hash__(self) -> int:
        # Weights are never NaN or -0.0, so equal weights have equal bytes.
        return hash((self.start.tobytes(), self.peer.tobytes(), self.weight.tobytes()))


def _validated(W: Any) -> tuple[Ints, Ints, Floats]:
    """Return start, peer and weight of W, or raise a GraphError."""
    csr = compressed(W)
    n = csr.shape[0]
    i, j = owners(csr.indptr), csr.indices.astype(np.int64)
    refuse_bad_weights(i, j, csr.data)
    refuse_loops(i, j, csr.data)

    transpose = sparse.csr_array(csr.T)
    transpose.sort_indices()
    if not (np.array_equal(csr.indptr, transpose.indptr) and np.array_equal(j, transpose.indices)):
        # Each entry is encoded as one number, so that the smallest unmatched number is the first unmatched entry.
        ours, theirs = i * n + j, owners(transpose.indptr) * n + transpose.indices
        _refuse_asymmetry(csr, *divmod(int(np.setxor1d(ours, theirs, assume_unique=True)[0]), n))
    # The larger of the two weights, not their mean, which could overflow, or underflow to zero.
    weight = np.maximum(csr.data, transpose.data)
    uneven = np.abs(csr.data - transpose.data) > ROUNDING * weight
    if uneven.any():
        _refuse_asymmetry(csr, i[uneven.argmax()], j[uneven.argmax()])

    return csr.indptr.astype(np.int64), j, weight


def _degrees(start: Ints, weight: Floats) -> Floats:
    """Return the sum of each agent's weights."""
    degrees: Floats = np.bincount(owners(start), weights=weight, minlength=start.size - 1).astype(
        np.float64, copy=False
    )
    if np.isinf(degrees).any():
        raise GraphError(
            f"the weights of agent {np.isinf(degrees).argmax()} add up to more than a float can hold: "
            "divide all weights by a constant"
        )
    return degrees


def compressed(W: Any) -> sparse.csr_array:
    """Return W as a square array of floats in compressed rows: sorted, without duplicates and stored zeros."""
    try:
        given: Any = W if sparse.issparse(W) else np.asarray(W)
    except ValueError as error:  # ragged rows
        raise GraphError(f"W is not an array: {error}") from None
    if given.ndim != 2 or given.shape[0] != given.shape[1] or given.shape[0] == 0:
        raise GraphError(f"W has shape {given.shape}: expected (n, n), one row and one column per agent")
    if given.dtype.kind not in "buif":
        raise GraphError(f"W has entries of type {given.dtype}: weights must be real numbers")
    # Cast to floats first: sums of duplicate small integers or booleans could overflow. The cast also copies.
    csr = sparse.csr_array(given.astype(np.float64))
    csr.sum_duplicates()
    csr.eliminate_zeros()
    return csr


def check_edges(n: Any, i: ArrayLike, j: ArrayLike, weight: ArrayLike, what: str) -> tuple[int, Ints, Ints, Floats]:
    """Check and return the number of agents, and the two ends and weights of all edges.

    `what` is the word for an edge in messages.
    """
    n = _checks.integer("n", n)
    i, j = _check_ends("i", i, n), _check_ends("j", j, n)
    if i.size != j.size:
        raise GraphError(f"i names {i.size} ends and j {j.size}: expected one of each for every {what}")
    try:
        return n, i, j, np.broadcast_to(np.asarray(weight, dtype=np.float64), i.shape)
    except (TypeError, ValueError):
        raise GraphError(f"weight must be a number, or one number for each of the {i.size} {what}s") from None


def _check_ends(name: str, agents: ArrayLike, n: int) -> Ints:
    """Check one end of every edge: numbers of agents in 0 .. n - 1."""
    ends = _checks.integers(name, agents, (None,), "one integer for every edge", GraphError)
    outside = (ends < 0) | (ends >= n)
    if outside.any():
        edge = outside.argmax()
        raise GraphError(f"edge {edge} has {name} = {ends[edge]}: the agents are 0 to {n - 1}")
    return ends


def refuse_loops(i: Ints, j: Ints, weight: Floats) -> None:
    """Refuse an edge of an agent to itself."""
    if (loops := i == j).any():
        k = loops.argmax()
        raise GraphError(
            f"agent {i[k]} has an edge to itself, W[{i[k]}, {i[k]}] = {weight[k]}: the diagonal must be zero"
        )


def refuse_bad_weights(i: Ints, j: Ints, weight: Floats) -> None:
    """Refuse weights that are not finite or are negative."""
    for bad, rule in ((~np.isfinite(weight), "finite"), (weight < 0, "nonnegative")):
        if bad.any():
            k = bad.argmax()
            raise GraphError(f"W[{i[k]}, {j[k]}] = {weight[k]}: weights must be {rule}")


def _refuse_asymmetry(W: sparse.csr_array, i: int, j: int) -> None:
    raise GraphError(
        f"W[{i}, {j}] = {W[i, j]} but W[{j}, {i}] = {W[j, i]}: edges are mutual, pass (W + W.T) / 2 to symmetrise"
    )


def owners(start: NDArray[Any]) -> Ints:
    """Return the row of each entry of a compressed array."""
    return np.repeat(np.arange(start.size - 1, dtype=np.int64), np.diff(start))


def _locked(array: Locked) -> Locked:
    """Make an array read-only, and return the array."""
    array.flags.writeable = False
    return array
