"""Rows of agents, grouped by agent, and the shard of rows that one process of a fit holds.

A fit computes on its shards (:mod:`.sums`) statistics of columns, sums over a sample of the agents, and numbers for
each agent, such as its rank by size and labels. A fit in one process has a single shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from .._threads import in_threads
from ..core.batches import batches, jobs, padded
from ..data.ids import grouping, is_sorted
from . import designs
from .blocks import AgentBatch
from .designs import Design, Values
from .sample import Sample
from .sums import Sums

#: Number of folds in which agents are held out.
FOLDS = 10


def dense(A: Any) -> np.ndarray:
    """Return a sparse matrix as an array."""
    return A if isinstance(A, np.ndarray) else A.toarray()


def stack(first: Any, second: Any) -> Any:
    """Stack rows, dense or sparse."""
    if isinstance(first, np.ndarray):
        return np.concatenate([first, dense(second)])
    from scipy import sparse

    return sparse.vstack([first, sparse.csr_array(second)], format="csr")


class Ranked(NamedTuple):
    """Agents in an order that does not depend on their names."""

    order: np.ndarray  # (n,) see ranking()
    sizes: np.ndarray  # (n,) number of rows of each agent

    def sample(self, max_agents: int) -> np.ndarray:
        """Return at most `max_agents` agents with rows, evenly spaced in the order of sizes and labels."""
        ranked = self.order[self.sizes[self.order] > 0]  # agents without rows are skipped
        if len(ranked) > max_agents:
            ranked = ranked[np.linspace(0, len(ranked) - 1, max_agents).astype(int)]
        return np.sort(ranked)

    def folds(self, agents: np.ndarray) -> np.ndarray:
        """Return the fold of each of some agents, assigned in turn in the order of sizes and labels."""
        rank = np.empty(len(self.order), dtype=np.int64)
        rank[self.order] = np.arange(len(self.order))
        return np.argsort(np.argsort(rank[agents])) % min(FOLDS, len(agents))


def ranking(sizes: np.ndarray, sums: np.ndarray, lengths: Callable[[], np.ndarray]) -> np.ndarray:
    """Order agents by their sizes, then by the sums of their labels, then, for equal sums, by their features."""
    order = np.lexsort((sums, sizes))
    if np.all((np.diff(sums[order]) != 0.0) | (np.diff(sizes[order]) != 0)):
        return order
    return np.lexsort((lengths(), sums, sizes))


class Grouped(NamedTuple):
    """Rows of features and labels, grouped by agent."""

    X: Any  # (rows, p), dense; or sparse, for many columns
    y: np.ndarray  # (rows,) in standard units
    weight: np.ndarray | None  # (rows,)
    start: np.ndarray  # (n + 1,) index of each agent's first row
    order: np.ndarray | None = None  # the order of agents that ranked() returns

    @classmethod
    def of(cls, X: np.ndarray, y: np.ndarray, codes: np.ndarray, n: int, weight: np.ndarray | None) -> Grouped:
        """Return a grouped copy of the rows; `codes` are the numbers of their agents."""
        codes = np.asarray(codes)
        start = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=n))])
        if is_sorted(codes):
            return cls(X.copy(), y.copy(), None if weight is None else weight.copy(), start)
        order = grouping(codes, n)
        return cls(X[order], y[order], None if weight is None else weight[order], start)

    @classmethod
    def nothing(cls, n: int, columns: int) -> Grouped:
        """Return no rows of `n` agents."""
        return cls(np.empty((0, columns)), np.empty(0), None, np.zeros(n + 1, dtype=np.int64))

    def with_rows(self, X: Any, y: np.ndarray, codes: np.ndarray, n: int, weight: np.ndarray | None) -> Grouped:
        """Return these rows and further ones, of known or new agents."""
        weights = None
        if self.weight is not None or weight is not None:
            weights = np.concatenate([self.weights, np.ones(len(y)) if weight is None else weight])
        labels, whose = np.concatenate([self.y, y]), np.concatenate([self.codes, codes])
        return Grouped.of(stack(self.X, X), labels, whose, n, weights)

    @property
    def n(self) -> int:
        """Number of agents."""
        return len(self.start) - 1

    @property
    def sizes(self) -> np.ndarray:
        """Number of rows of each agent."""
        return np.diff(self.start)

    @property
    def codes(self) -> np.ndarray:
        """Number of the agent of every row."""
        return np.repeat(np.arange(self.n), self.sizes)

    @property
    def weights(self) -> np.ndarray:
        """Weights of the rows, 1 by default."""
        return np.ones(len(self.y)) if self.weight is None else self.weight

    def some(self, which: np.ndarray) -> Grouped:
        """Return some of the rows, with all agents."""
        weight = None if self.weight is None else self.weight[which]
        start = np.concatenate([[0], np.cumsum(np.bincount(self.codes[which], minlength=self.n))])
        return Grouped(self.X[which], self.y[which], weight, start)

    def only(self, agents: np.ndarray) -> Grouped:
        """Return the rows of some agents, given in ascending order, renumbered from 0."""
        part = self.some(np.isin(self.codes, agents))
        return part._replace(start=np.concatenate([[0], np.cumsum(self.sizes[agents])]))

    @property
    def total(self) -> float:
        """Number of rows; a weight of 2 counts as two."""
        return float(len(self.y) if self.weight is None else self.weight.sum())

    def batches(self, design: Design, agents: np.ndarray) -> Iterator[AgentBatch]:
        """Generate the rows of some agents in columns of the design; agents are numbered as listed."""
        return (make() for make in self.parts(design, agents))

    def parts(self, design: Design, agents: np.ndarray) -> Iterator[Callable[[], AgentBatch]]:
        """Generate functions that make the batches: threads make them when needed, so that few are in memory."""
        sizes, start = self.sizes[agents], self.start[agents]
        for k, width in batches(sizes, design.size):
            yield partial(self._batch, design, k, start[k], sizes[k], width)

    def _batch(
        self, design: Design, agents: np.ndarray, start: np.ndarray, sizes: np.ndarray, width: int
    ) -> AgentBatch:
        rows, real = padded(start, sizes, width)
        X = design.columns(self.X[rows.ravel()]).reshape(*rows.shape, -1)
        weight = real.astype(float) if self.weight is None else np.where(real, self.weight[rows], 0.0)
        return AgentBatch(agents, X, self.y[rows], weight)

    def constant(self) -> np.ndarray:
        """Return whether each column is constant inside every agent."""
        if not len(self.X):
            return np.ones(self.X.shape[1], bool)
        first = self.X[np.minimum(self.start[:-1], len(self.X) - 1)]
        return ~np.any(np.repeat(first, self.sizes, axis=0) != self.X, axis=0)

    def ranges(self, agents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return smallest and largest values of every column for some agents; infinite for agents without rows."""
        low = np.full((len(agents), self.X.shape[1]), np.inf)
        high = -low
        sizes, start = self.sizes[agents], self.start[agents]
        for k, width in batches(sizes, low.shape[1]):
            rows, _ = padded(start[k], sizes[k], width)  # padding repeats the first row
            low[k], high[k] = self.X[rows].min(axis=1), self.X[rows].max(axis=1)
        return low, high

    def rows(self, agents: np.ndarray) -> Any:
        """Return an index of the rows of some agents; a full slice, which makes no copy, for all agents."""
        if len(agents) == self.n:
            return slice(None)
        mine = np.zeros(self.n, bool)
        mine[agents] = True
        return np.repeat(mine, self.sizes)

    def ranked(self, n_jobs: int | None = 1) -> np.ndarray:
        """Order agents by their sizes, then by the sums of their labels, then, for equal sums, by their features.

        The order does not depend on units and on the order of rows, and neither does any choice that uses it.
        """
        if self.order is not None:
            return self.order
        return ranking(*self.totals(), lambda: self.sums_of_lengths(*self.standards(n_jobs), n_jobs))

    def totals(self) -> tuple[np.ndarray, np.ndarray]:
        """Return for each agent the number of rows (a weight of 2 counts as two) and the absolute sum of the labels."""
        if self.weight is None:
            return self.sizes, np.abs(self._sums(self.y))
        return self._sums(self.weight), np.abs(self._sums(self.weight * self.y))

    def standards(self, n_jobs: int | None = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and scale of the columns."""
        return designs.standards(self.X, self.weight, n_jobs)

    def sums_of_lengths(self, mean: np.ndarray, scale: np.ndarray, n_jobs: int | None = 1) -> np.ndarray:
        """Return for each agent the sum of squared lengths of its rows, in standard units."""
        lengths = self.lengths(mean, scale, n_jobs)
        return self._sums(lengths if self.weight is None else self.weight * lengths)

    def lengths(self, mean: np.ndarray, scale: np.ndarray, n_jobs: int | None = 1) -> np.ndarray:
        """Return the squared length of every row in standard units, computed in blocks to save memory."""
        out = np.empty(len(self.y))

        def measure(block: slice) -> None:
            out[block] = np.sum(((self.X[block] - mean) / scale) ** 2, axis=1)

        in_threads(measure, designs.blocks_of(self.X), n_jobs)
        return out

    def _sums(self, values: np.ndarray) -> np.ndarray:
        """Return sums over the rows of each agent, rounded to remove rounding errors."""
        return np.round(np.add.reduceat(np.append(values, 0.0), self.start[:-1]) * (self.sizes > 0), 9)


def counted(
    X: Any, targets: list[np.ndarray], codes: np.ndarray, weight: np.ndarray | None
) -> tuple[Any, list[np.ndarray], np.ndarray, np.ndarray | None]:
    """Drop rows of weight zero."""
    if weight is None or weight.all():
        return X, targets, codes, weight
    there = weight > 0.0
    return X[there], [y[there] for y in targets], codes[there], weight[there]


class Models(NamedTuple):
    """Models of all agents, with their rows or a summary of the rows that suffices for posteriors."""

    D: np.ndarray  # (n, q) deviations
    grouped: Grouped
    kept: Any = None


class Agents(Sums, Protocol):
    """The agents of a fit, with rows in shards: one shard in this process, or several in other processes."""

    @property
    def n(self) -> int:
        """Number of agents."""

    def forget(self, name: Any) -> None:
        """Delete what shards hold under this name."""

    def models(self, name: Any, task: int, agents: np.ndarray, design: Design, population: Any, tell: Any) -> Models:
        """Compute the models of all agents, each from its own rows.

        The population was learned from the sample of `agents` that shards hold under this name; ``tell()`` reports
        progress.
        """


class Shard:
    """The rows of some agents of a fit; ``numbers`` are these agents' sorted numbers, by default all agents.

    ``targets`` are labels of the rows, one array for each output. ``held`` stores named objects for the fit.
    """

    def __init__(
        self,
        X: np.ndarray,
        targets: list[np.ndarray],
        codes: np.ndarray,
        n: int,
        weight: np.ndarray | None = None,
        n_jobs: int | None = 1,
        numbers: np.ndarray | None = None,
    ):
        X, targets, codes, weight = counted(X, targets, codes, weight)
        self.numbers, self.n_jobs = np.arange(n) if numbers is None else numbers, n_jobs
        self.threads = jobs(n_jobs, X.size)
        self.rows = Grouped.of(X, np.arange(len(codes)), codes, n, weight)  # copied once; targets share the rows
        self.tasks: list[Grouped] = []
        labels = [Values(y.astype(np.float64, copy=False)[:, None], weight) for y in targets]
        self.held: dict[Any, Any] = {("labels", k): each for k, each in enumerate(labels)}
        self.held["rows"] = Values(self.rows.X, self.rows.weight, self.threads)

    def standardise(self, units: list[tuple[float, float]]) -> None:
        """Convert every target to standard units, given centers and scales; repeated calls change nothing."""
        self.tasks = self.tasks or [
            self.rows._replace(y=((self.held.pop(("labels", k)).X[:, 0] - center) / scale)[self.rows.y])
            for k, (center, scale) in enumerate(units)
        ]

    def facts(self) -> np.ndarray:
        """Return the number of rows, the number of agents with rows, and the total weight."""
        return np.array([len(self.rows.y), np.count_nonzero(self.rows.sizes), self.rows.total])

    def constant(self) -> np.ndarray:
        """Return whether each column is constant inside every agent."""
        return self.rows.constant()

    def ranks(self) -> tuple[np.ndarray, ...]:
        """Return for each agent the number of rows, their weight, and the absolute sum of the first target's labels."""
        return self.rows.sizes, *self.tasks[0].totals()

    def lengths(self, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Return for each agent the sum of squared lengths of its rows, in standard units."""
        return self.rows.sums_of_lengths(mean, scale, self.threads)

    def here(self, agents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return, for those of the given agents that this shard holds, their places among these and their local
        numbers.
        """
        place = np.flatnonzero(np.isin(agents, self.numbers, assume_unique=True))
        return place, np.searchsorted(self.numbers, agents[place])

    def hold_values(self, name: Any, agents: np.ndarray) -> None:
        """Hold the features and the labels of some agents."""
        mine = self.here(agents)[1]
        rows = self.rows.rows(mine)
        weight = None if self.rows.weight is None else self.rows.weight[rows]
        held = self.held[name] = Values(self.rows.X[rows], weight)
        held.labels, held.sizes = np.column_stack([task.y[rows] for task in self.tasks]), self.rows.sizes[mine]

    def hold_sample(self, name: Any, task: int, design: Design, agents: np.ndarray) -> None:
        """Hold the rows of some agents in columns of a design."""
        place, mine = self.here(agents)
        self.held[name] = Sample(list(self.tasks[task].batches(design, mine)), len(mine), place, self.n_jobs)

    def drop(self, name: Any) -> None:
        """Delete what is held under this name."""
        self.held.pop(name, None)

    def numbered(self, work: Callable[..., Any], *given: Any) -> tuple[np.ndarray, Any]:
        """Return the numbers of the agents, and the result of a function for each agent."""
        return self.numbers, work(self, *given)


class HeldByShards:
    """Objects that shards hold under a name, for sums over shards."""

    def __init__(self, agents: Agents, name: Any):
        self.agents, self.name = agents, name

    def each(self, work: Callable[..., Any], *given: Any, again: bool = True) -> list[Any]:
        """Return ``work(held, *given)`` of every shard."""
        return self.agents.each(_of_part, self.name, work, *given, again=again)

    def remember(self, name: Any, work: Callable[..., Any], *given: Any) -> None:
        """Store a request that a process repeats when it takes over agents."""
        self.agents.remember((self.name, name), _of_part, self.name, work, *given)


def _of_part(shard: Shard, name: Any, work: Callable[..., Any], *given: Any) -> Any:
    return work(shard.held[name], *given)


def hold(agents: Agents, name: Any, work: Callable[..., None], *given: Any) -> HeldByShards:
    """Let all shards hold an object, and also processes that take over their agents."""
    agents.remember(name, work, name, *given)
    agents.each(work, name, *given)
    return HeldByShards(agents, name)


def of_agents(agents: Agents, work: Callable[..., Any], *given: Any) -> list[np.ndarray]:
    """Return results for each agent, collected from all shards in the order of all agents; one array or several."""
    found = agents.each(Shard.numbered, work, *given)
    parts = [(numbers, answer if isinstance(answer, tuple) else (answer,)) for numbers, answer in found]
    if len(parts) == 1:
        return list(parts[0][1])
    out = [np.empty((agents.n, *each.shape[1:]), each.dtype) for each in parts[0][1]]
    for numbers, answers in parts:
        for whole, each in zip(out, answers, strict=True):
            whole[numbers] = each
    return out
