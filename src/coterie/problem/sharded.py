"""Problems in parts: the agents of one block with all their edges, and as much of others as they need.

A part is a :class:`~coterie.problem.problem.Problem` of its own. It has the agents of the block, and, without any rows,
the neighbours that they have elsewhere, all in the order of their numbers: so sums over the edges of an agent are those
of the whole problem, bit for bit.
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

#: Poses a problem: of data, graph, and what else there is one number of for each agent.
Pose = Callable[..., Problem]


class Block(NamedTuple):
    """What agents ``first`` to ``last - 1`` bring along."""

    data: Any  # AgentData; or, for Problem.propagation, their models
    edges: sparse.csr_array  # (last - first, n) their rows of W
    each: Mapping[str, np.ndarray]  # further arguments of the objective, one number for each of them


class ShardedProblem:
    """A problem that nobody holds as a whole: every shard of a cluster builds its own part.

    Parameters
    ----------
    build : callable
        ``build(first, last)`` gives the rows and the edges of the agents ``first`` to ``last - 1``, wherever it is
        called: it draws them, or reads them from files that all machines see. It returns two things, or three:

        * :class:`coterie.AgentData` of these agents in this order (``members=range(first, last)``); for
          ``ct.Problem.propagation`` the array of their models;
        * their rows of the weight matrix W, a sparse matrix of shape (last - first, n). Edges are mutual:
          ``W[i, j] == W[j, i]``, also where i and j are in two blocks, which is checked;
        * a mapping of further arguments of the objective with one number for each of these agents, such as
          ``{"confidence": c}``.
    n : int
        How many agents there are, numbered from 0.
    objective : callable
        Such as ``ct.Problem.collaborative``. Default: ``ct.Problem.personalized``.
    **settings
        Its arguments beside data and graph, the same for all: ``loss="logistic"``, ``mu=1.0``, ...

    Attributes
    ----------
    n : int
    p : int or None
        Number of features; None before somebody has built a part.

    Examples
    --------
    A ring of agents, each with four rows that are drawn where they are needed:

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

    On a cluster no process holds more than its part::

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
                    f"{name} is an array: settings are for all agents; what each has of its own comes from build, as "
                    f'its third result, {{"{name}": ...}}'
                )
        self.build, self.n, self.objective, self.settings = build, integer("n", n), objective, settings
        self.p: int | None = None

    def with_features(self, p: int) -> ShardedProblem:
        """The same, with what those who have built it know: how many features there are.

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
        """How many parts a model has."""
        return int(self.settings.get("outputs", 1))

    @property
    def pose(self) -> Pose:
        """Makes a problem of data, graph, and what each agent has of its own."""
        return partial(self.objective, **self.settings)

    def block(self, first: int, last: int) -> Block:
        """What ``build`` gives for some agents, checked.

        Parameters
        ----------
        first, last : int
            Number of the first agent, and of the one after the last.

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
                f"{who} gave {count} agents and must give {last - first}: say members=range(first, last), so that "
                "those without rows are among them"
            )
        if not isinstance(each, Mapping):
            raise DataError(f"{who}: the third result must map names to numbers; found {type(each).__name__}")
        each = {name: floats(f"{name} of {who}", value) for name, value in each.items()}
        for name, value in each.items():
            if value.shape != (count,):
                raise DataError(f"{who}: {name} has shape {value.shape}; there are {count} agents")
        return Block(data, _rows_of_edges(who, edges, first, last, self.n), each)

    def whole(self) -> Problem:
        """The problem in one piece, in this process: for as many agents as it holds.

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
    """Rows of W, checked as far as one block can be: what :class:`~coterie.graphs.Graph` asks of all of W."""
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
    """What is wrong with two ends of an edge that do not agree."""
    return f"W[{i}, {j}] = {here:g} but W[{j}, {i}] = {there:g}: edges are mutual, and build must give both the same"


class Part(NamedTuple):
    """The problem of a block of agents, and of the neighbours that they have elsewhere."""

    problem: Problem  # of all of them, in the order of their numbers
    number: np.ndarray  # (union,) in the whole problem
    here: slice  # where those of the block are

    def fitting(self) -> Problem:
        """The problem as methods are to judge it: who is elsewhere has rows there, and so a ridge of "1/m"."""
        if not isinstance(self.problem._recipe["ridge"], str):
            return self.problem
        judged = copy(self.problem)
        judged.ridge = np.ones(self.number.shape[0])
        judged.ridge[self.here] = self.problem.ridge[self.here]
        return judged


def assembled(block: Block, pose: Pose, first: int, last: int) -> Part:
    """The part that a block makes."""
    W = block.edges
    away = np.setdiff1d(W.indices, np.arange(first, last, dtype=W.indices.dtype))
    number = np.concatenate([away[away < first], np.arange(first, last), away[away >= last]]).astype(np.int64)
    low = int(np.count_nonzero(away < first))
    here = slice(low, low + last - first)
    i = np.repeat(np.arange(here.start, here.stop), np.diff(W.indptr))
    j = np.searchsorted(number, W.indices)
    back = (j < here.start) | (j >= here.stop)  # edges to elsewhere, whose other ends are not among the rows
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
            f"{problem.base!r} places its thresholds by the rows it sees, which are others on every shard: give a "
            "public range, base=ct.Stumps(count, low=..., high=...)"
        )
    return Part(problem, number, here)


def _with_others(values: np.ndarray, here: slice, size: int, fill: float) -> np.ndarray:
    """Numbers of the agents of a block, with something for those elsewhere."""
    if values.shape[0] == size:
        return values
    whole = np.full((size, *values.shape[1:]), fill, values.dtype)
    whole[here] = values
    return whole


def block_of(problem: Problem, first: int, last: int) -> Block:
    """The block of some agents of a problem that this process holds."""
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
    """What makes the same problem of its parts."""
    return partial(Problem, **problem._kept)
