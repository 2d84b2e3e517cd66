"""Problems that are split over several processes, each of which holds one block of agents.

The problem of a block is a :class:`~coterie.problem.problem.Problem` of its own. Its agents are the agents of the block
and, without any rows, their neighbours in other blocks, all in the order of their numbers. Sums over the edges of an
agent are therefore equal to those of the whole problem, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from .._checks import floats, integer
from ..data.agent_data import AgentData
from ..errors import CoterieError, DataError, GraphError, MismatchError, ParameterError
from ..graphs import Graph
from ..graphs.graph import owners, refuse_bad_weights, refuse_loops
from .confidence import confidences
from .problem import Problem

#: A function of data, graph and arguments with one number for each agent that returns a problem.
Pose = Callable[..., Problem]


class Block(NamedTuple):
    """Rows, edges and arguments of agents ``first`` to ``last - 1``."""

    data: Any  # AgentData; or, for Problem.propagation, the models of the agents
    edges: sparse.csr_array  # (last - first, n) rows of W
    each: Mapping[str, np.ndarray]  # further arguments of the objective, one number for each agent of the block


class ShardedProblem:
    """A problem that no process holds as a whole: every shard of a cluster builds its own block of agents.

    Parameters
    ----------
    build : callable
        ``build(first, last)`` returns the rows and the edges of the agents ``first`` to ``last - 1``. It is called on
        any machine, and must draw its results from seeds, or read them from files that all machines can read. It
        returns a tuple of two or three:

        * :class:`coterie.AgentData` of these agents in this order (``members=range(first, last)``); for
          ``ct.Problem.propagation`` the array of their models;
        * the agents' rows of the weight matrix W, a sparse matrix of shape (last - first, n). Edges are mutual:
          ``W[i, j] == W[j, i]``, which is checked, also if i and j are in different blocks;
        * a mapping of further arguments of the objective with one number for each of these agents, such as
          ``{"confidence": c}``.
    n : int
        Number of agents; they are numbered from 0.
    objective : callable
        Constructor of the problem, such as ``ct.Problem.collaborative``. Default: ``ct.Problem.personalized``.
    **settings
        Further arguments of `objective`, common to all agents: ``loss="logistic"``, ``mu=1.0``, ...

    Attributes
    ----------
    n : int
    p : int or None
        Number of features; None until a block has been built.

    Examples
    --------
    A ring of agents, each with four rows that are drawn where needed:

    >>> import numpy as np
    >>> import coterie as ct
    >>> from scipy import sparse
    >>> def build(first, last):
    ...     agents = np.arange(first, last)
    ...     rows = [np.random.default_rng([1, i]).normal(size=(4, 3)) for i in agents]
    ...     X = np.concatenate(rows)
    ...     data = ct.AgentData(X, np.sign(X[:, 0]), agents=np.repeat(agents, 4), members=agents.tolist())
    ...     here, there = np.tile(agents - first, 2), np.concatenate([agents - 1, agents + 1]) % 100
    ...     return data, sparse.csr_array((np.ones(len(here)), (here, there)), shape=(last - first, 100))
    >>> problem = ct.engines.ShardedProblem(build, 100, ct.Problem.personalized, loss="logistic", mu=0.5)
    >>> problem.whole()
    Problem.personalized(AgentData(agents=100, rows=400 (4 per agent), features=3, dense, labelled), ...

    On a cluster no process holds more than its block::

        run = ct.simulate(problem, "cd", wakes=10_000, engine=ct.Cluster(shards=2))
    """

    def __init__(self, build: Callable[[int, int], Any], n: int, objective: Pose | None = None, **settings: Any):
        if not callable(build):
            raise ParameterError(f"build={build!r} must be a function of the first agent and the one after the last")
        objective = Problem.personalized if objective is None else objective
        if not callable(objective):
            raise ParameterError(f"objective={objective!r} must be a constructor such as ct.Problem.personalized")
        for name, value in settings.items():
            if isinstance(value, np.ndarray) and value.ndim > 0:
                raise ParameterError(
                    f"{name} is an array: settings are common to all agents; return numbers for each agent from build, "
                    f'as the third result, {{"{name}": ...}}'
                )
        self.build, self.n, self.objective, self.settings = build, integer("n", n), objective, settings
        self.p: int | None = None

    def with_features(self, p: int) -> ShardedProblem:
        """Return a copy of this problem with the number of features `p`.

        Parameters
        ----------
        p : int

        Returns
        -------
        ShardedProblem
        """
        known = copy(self)
        known.p = p
        return known

    @property
    def outputs(self) -> int:
        """Number of parts of a model."""
        return int(self.settings.get("outputs", 1))

    @property
    def pose(self) -> Pose:
        """Function of data, graph and arguments with one number for each agent that returns a problem."""
        return partial(self.objective, **self.settings)

    def block(self, first: int, last: int) -> Block:
        """Return the checked result of ``build(first, last)``.

        Parameters
        ----------
        first, last : int
            Number of the first agent, and number after that of the last agent.

        Returns
        -------
        Block
        """
        who = f"build({first}, {last})"
        try:
            made = self.build(first, last)
        except CoterieError:
            raise
        except Exception as error:
            raise DataError(f"{who} failed: {type(error).__name__}: {error}") from error
        if not (isinstance(made, tuple) and len(made) in (2, 3)):
            raise DataError(f"{who} must return data and edges; found {type(made).__name__}")
        data, edges, each = (*made, {})[:3]
        count = data.n if isinstance(data, AgentData) else len(floats(f"the models of {who}", data))
        if count != last - first:
            raise DataError(
                f"{who} gave {count} agents and must give {last - first}: pass members=range(first, last) to "
                "AgentData, so that agents without rows are included"
            )
        if not isinstance(each, Mapping):
            raise DataError(f"{who}: the third result must map names to numbers; found {type(each).__name__}")
        each = {name: floats(f"{name} of {who}", value) for name, value in each.items()}
        for name, value in each.items():
            if value.shape != (count,):
                raise DataError(f"{who}: {name} has shape {value.shape}; there are {count} agents")
        return Block(data, _rows_of_edges(who, edges, first, last, self.n), each)

    def whole(self) -> Problem:
        """Return the whole problem as a :class:`coterie.Problem`, in the memory of this process.

        Returns
        -------
        Problem

        Examples
        --------
        >>> import coterie as ct
        >>> ring = ct.graphs.ring(4).W.tocsr()
        >>> models = lambda first, last: ([[float(i)] for i in range(first, last)], ring[first:last])
        >>> ct.engines.ShardedProblem(models, 4, ct.Problem.propagation, alpha=0.5).whole().n
        4
        """
        return assembled(self.block(0, self.n), self.pose, 0, self.n).problem

    def __repr__(self) -> str:
        told = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        name = getattr(self.objective, "__qualname__", repr(self.objective))
        return f"ShardedProblem({getattr(self.build, '__qualname__', self.build)}, {self.n}, {name}{told})"


def _rows_of_edges(who: str, edges: Any, first: int, last: int, n: int) -> sparse.csr_array:
    """Check rows of W as :class:`~coterie.graphs.Graph` does, except symmetry with rows of other blocks."""
    try:
        W = sparse.csr_array(edges, dtype=np.float64, copy=True)
    except (TypeError, ValueError):
        raise GraphError(f"{who}: edges must be a sparse matrix, rows of W; found {type(edges).__name__}") from None
    if W.shape != (last - first, n):
        raise GraphError(f"{who}: edges have shape {W.shape}; expected ({last - first}, {n}), a row for each agent")
    W.sum_duplicates()
    W.eliminate_zeros()
    i, j = first + owners(W.indptr), W.indices
    try:
        refuse_bad_weights(i, j, W.data)
        refuse_loops(i, j, W.data)
    except GraphError as error:
        raise GraphError(f"{who}: {error}") from None
    inside = W[:, first:last]
    uneven = sparse.coo_array(inside - inside.T)
    uneven.eliminate_zeros()
    if uneven.nnz:
        a, b = int(uneven.row[0]), int(uneven.col[0])
        raise GraphError(asymmetry(first + a, first + b, float(inside[a, b]), float(inside[b, a])))
    return W


def asymmetry(i: int, j: int, here: float, there: float) -> str:
    """Return the message about an edge whose two directions have different weights."""
    return f"W[{i}, {j}] = {here:g} but W[{j}, {i}] = {there:g}: edges are mutual, and build must give both the same"


class BlockProblem(NamedTuple):
    """The problem of a block of agents and their neighbours in other blocks."""

    problem: Problem  # of the agents of the block and their neighbours, in the order of their numbers
    number: np.ndarray  # (problem.n,) number of each agent in the whole problem
    here: slice  # positions of the agents of the block

    def fitting(self) -> Problem:
        """Return the problem for the checks of methods: agents of other blocks count as having a ridge "1/m"."""
        if not isinstance(self.problem._recipe["ridge"], str):
            return self.problem
        judged = copy(self.problem)
        judged.ridge = np.ones(self.number.shape[0])
        judged.ridge[self.here] = self.problem.ridge[self.here]
        return judged


def assembled(block: Block, pose: Pose, first: int, last: int) -> BlockProblem:
    """Return the problem of a block and the neighbours of its agents."""
    W = block.edges
    away = np.setdiff1d(W.indices, np.arange(first, last, dtype=W.indices.dtype))
    number = np.concatenate([away[away < first], np.arange(first, last), away[away >= last]]).astype(np.int64)
    low = int(np.count_nonzero(away < first))
    here = slice(low, low + last - first)
    i = np.repeat(np.arange(here.start, here.stop), np.diff(W.indptr))
    j = np.searchsorted(number, W.indices)
    # Edges to other blocks, whose reverse directions are not among the rows of W.
    back = (j < here.start) | (j >= here.stop)
    ends = np.concatenate([i, j[back]]), np.concatenate([j, i[back]])
    size = number.shape[0]
    edges = sparse.csr_array((np.concatenate([W.data, W.data[back]]), ends), shape=(size, size))
    edges.sort_indices()
    graph = Graph._of(edges.indptr.astype(np.int64), edges.indices.astype(np.int64), edges.data)
    each = {name: _with_others(value, here, size, 1.0) for name, value in block.each.items()}
    if isinstance(block.data, AgentData):
        members = (*number[: here.start].tolist(), *block.data.members, *number[here.stop :].tolist())
        data: Any = block.data._like(members=members, sizes=_with_others(block.data.sizes, here, size, 0))
    else:
        data = _with_others(np.asarray(block.data, np.float64), here, size, 0.0)
    problem = pose(data, graph, **each)
    if not isinstance(problem, Problem):
        raise ParameterError(f"objective must make a Problem; found {type(problem).__name__}")
    if size > last - first and getattr(problem.base, "from_data", False):
        raise MismatchError(
            f"{problem.base!r} places its thresholds by the rows it sees, which differ between shards: give a "
            "public range, base=ct.Stumps(count, low=..., high=...)"
        )
    return BlockProblem(problem, number, here)


def _with_others(values: np.ndarray, here: slice, size: int, fill: float) -> np.ndarray:
    """Extend an array of the agents of a block to all agents of its problem, with `fill` for the neighbours."""
    if values.shape[0] == size:
        return values
    whole = np.full((size, *values.shape[1:]), fill, values.dtype)
    whole[here] = values
    return whole


def block_of(problem: Problem, first: int, last: int) -> Block:
    """Return the block of agents ``first`` to ``last - 1`` of a problem in the memory of this process."""
    data, graph = problem.data, problem.graph
    a, b = data.start[first], data.start[last]
    part = data._like(
        X=data.X[a:b],
        y=None if data.y is None else data.y[a:b],
        members=data.members[first:last],
        sizes=data.sizes[first:last],
        order=None if data._order is None else data._order[a:b],
    )
    c, d = graph.start[first], graph.start[last]
    edges = sparse.csr_array(
        (graph.weight[c:d], graph.peer[c:d], graph.start[first : last + 1] - c), shape=(last - first, graph.n)
    )
    settings: dict[str, Any] = problem._recipe | {"ridge": problem.ridge}
    if isinstance(settings["confidence"], str):
        settings["confidence"] = confidences(data.sizes, int(data.sizes.max(initial=1)))
    return Block(part, edges, {name: value[first:last] for name, value in settings.items()})


def pose_of(problem: Problem) -> Pose:
    """Return the function that makes a problem like `problem` of data, graph and arguments for each agent."""
    return partial(Problem, **problem._kept)
