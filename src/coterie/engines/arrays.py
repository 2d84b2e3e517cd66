"""Agents' arrays made from a problem: of all agents, or of some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.arrays import VACANT, AgentArrays, paper, widened
from ..core.linear import frozen
from ..errors import ParameterError
from ..graphs import Graph
from ..problem.modelled import untied_arrays

if TYPE_CHECKING:  # problems read tables, which a peer does not need
    from ..problem import Problem


def arrays_of(
    problem: Problem, choice: Any = "uniform", spare: int = 0, once: bool = False, batch: int = 0
) -> AgentArrays:
    """Return the arrays of all agents of a problem, with room for minibatches of `batch` rows.

    If messages are stored `once`, edges are neither searched nor chosen.
    """
    probabilities = choices(choice, problem)
    arrays = untied_arrays(problem, batch)._replace(
        edge_start=frozen(problem.graph.start),
        peer=np.array(problem.graph.peer),  # a copy: agents may change their edges
        inverse=np.zeros(0, np.int64) if once else _inverse(problem.graph),
        weight=np.array(problem.graph.weight),
        choice=np.zeros(0) if once else probabilities,
        curvature=problem.local_lipschitz,
    )
    return widened(arrays, np.diff(arrays.edge_start) + spare)[0] if spare else arrays


def check_choice(choice: Any) -> None:
    """Raise a ParameterError for an unknown word for how neighbours are chosen."""
    if isinstance(choice, str) and choice not in ("uniform", "weight"):
        raise ParameterError(f'choice={choice!r} must be "uniform", "weight", or an (n, n) matrix of probabilities')


def choices(choice: Any, problem: Problem) -> np.ndarray:
    """Return how likely each edge is chosen for an exchange, up to a factor for each agent."""
    graph = problem.graph
    check_choice(choice)
    if isinstance(choice, str):
        return np.ones_like(graph.weight) if choice == "uniform" else np.array(graph.weight)
    from scipy import sparse  # imported here: a peer does not need SciPy

    try:
        given = sparse.csr_array(choice, dtype=float)
    except (TypeError, ValueError):
        raise ParameterError(f"choice must be a word or an (n, n) matrix of probabilities; found {choice!r}") from None
    if given.shape != (graph.n, graph.n):
        raise ParameterError(f"choice must have shape ({graph.n}, {graph.n}); found {given.shape}")
    if not np.all((given.data >= 0) & np.isfinite(given.data)):
        raise ParameterError("choice holds a number that is negative or not finite: probabilities are needed")
    owner = np.repeat(np.arange(graph.n), np.diff(graph.start))
    chosen = np.asarray(given[owner, graph.peer]).ravel() if owner.size else np.zeros(0)
    if graph.directed:
        return chosen
    back = np.empty_like(chosen)
    back[np.lexsort((graph.peer, owner))] = chosen[np.lexsort((owner, graph.peer))]
    unused = np.flatnonzero((chosen == 0) & (back == 0))
    if unused.size:
        i, j = (problem.members[k] for k in (owner[unused[0]], graph.peer[unused[0]]))
        raise ParameterError(f"choice never uses the edge between agents {i!r} and {j!r}: neither chooses the other")
    return chosen


def _inverse(graph: Graph) -> np.ndarray:
    from scipy import sparse  # imported here: a peer does not need SciPy

    if graph.directed:  # one-way edges: receivers search for the slot
        return np.full(graph.peer.shape[0], VACANT)
    # Edges are sorted by owner, then by peer; sorted by peer first, position k holds the reverse edge.
    edges = sparse.csr_array((np.arange(graph.peer.shape[0]), graph.peer, graph.start), shape=(graph.n, graph.n))
    inverse: np.ndarray = edges.tocsc().data.astype(np.int64, copy=False) - graph.start[graph.peer]
    return inverse


def part_of(arrays: AgentArrays, first: int, last: int) -> AgentArrays:
    """Return the arrays of agents ``first`` to ``last - 1``, sharing nothing that changes with the given arrays."""
    a, b = arrays.row_start[first], arrays.row_start[last]
    c, d = arrays.edge_start[first], arrays.edge_start[last]
    part = arrays._replace(
        rows=arrays.rows.take(a, b),
        labels=arrays.labels[a:b],
        row_start=frozen(arrays.row_start[first : last + 1] - a),
        edge_start=frozen(arrays.edge_start[first : last + 1] - c),
        **{name: getattr(arrays, name)[c:d].copy() for name in ("peer", "inverse", "weight", "choice")},
        **{
            name: getattr(arrays, name)[first:last]
            for name in ("row_weight", "ridge", "loss_weight", "curvature", "address")
        },
    )
    return paper(part, arrays.model, arrays.picked.pick.shape[0])
