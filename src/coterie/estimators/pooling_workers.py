"""Partial pooling on a cluster: workers hold the rows of their agents and return sums over them.

Workers are Ray actors. The fitting process asks each worker for the same sums (:mod:`coterie.pooling.sums`) and adds
them in a fixed order, so that the result equals the result of one process with all rows, up to rounding. For each agent
the fitting process keeps what a file keeps: the model, and the gradient and the Hessian of its loss. When a worker
dies, the other workers load the rows of its agents, compute their deviations again, and the current step is repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

from .._threads import one_thread
from .._workers import Host, Pool
from ..data.sources.survey import deal
from ..engines.cluster import Cluster
from ..pooling import targets_of
from ..pooling.designs import Design
from ..pooling.fitted import models_of
from ..pooling.rows import Grouped, Models, Shard, dense
from ..pooling.sums import LostError

log = logging.getLogger("coterie")

#: A request to a shard: a function of the shard, and its further arguments.
Asked = tuple[Callable[..., Any], tuple[Any, ...]]
#: Number of shards for each worker: the shards of a dead worker can then be distributed evenly.
SHARDS_PER_WORKER = 4


class Loader(Protocol):
    """Loads rows of agents; it is sent to every worker."""

    def load(self, which: np.ndarray) -> Grouped:
        """Return the rows of these agents, given by their sorted numbers."""


class StoredRows:
    """Rows that the fitting process held in memory, stored in Ray's object store in parts of some agents each."""

    def __init__(self, parts: list[tuple[np.ndarray, list[Any]]]):
        self.parts = parts  # agents and reference; a reference inside a list is not resolved with every call

    @classmethod
    def put(cls, ray: Any, rows: Grouped, shards: list[np.ndarray]) -> StoredRows:
        """Store rows, one part for each shard."""
        return cls([(which, [ray.put(rows.only(which))]) for which in shards])

    def load(self, which: np.ndarray) -> Grouped:
        """Return the rows of these agents."""
        import ray

        together = Grouped.nothing(len(which), 0)
        for whose, reference in self.parts:
            mine = np.flatnonzero(np.isin(whose, which, assume_unique=True))
            if mine.size:
                rows = ray.get(reference[0]).only(mine)
                codes = np.searchsorted(which, whose[mine])[rows.codes]
                if len(together.y):
                    together = together.with_rows(rows.X, rows.y, codes, len(which), rows.weight)
                else:
                    together = Grouped.of(rows.X, rows.y, codes, len(which), rows.weight)
        return together


class TakenOver(NamedTuple):
    """The answer of a worker that has begun to host a shard."""


class PoolingWorker(Host):
    """A process that holds shards of the agents."""

    def __init__(self, loader: Loader, classes: int, n_jobs: int, level: int):
        super().__init__(level)
        self._loader, self._classes, self._n_jobs = loader, classes, n_jobs
        self._alone = one_thread(None)  # as in one process, for the lifetime of this worker
        self._alone.__enter__()

    def begin(self, part: int, which: np.ndarray, memory: list[Asked]) -> tuple[Shard, TakenOver]:
        """Load the rows of some agents, and repeat the requests that other shards have answered before."""
        rows = self._loader.load(which)
        targets = targets_of(rows.y, self._classes)
        shard = Shard(dense(rows.X), targets, rows.codes, len(which), rows.weight, self._n_jobs, np.asarray(which))
        for work, given in memory:
            work(shard, *given)
        return shard, TakenOver()

    def work(self, part: int, work: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """Return the result of a request to a shard."""
        return work(self._parts[part], *given)


class ClusterAgents:
    """Agents whose rows are held by workers, see :class:`coterie.pooling.rows.Agents`."""

    def __init__(self, ray: Any, workers: list[Any], shards: list[np.ndarray], sizes: np.ndarray, columns: int):
        self.n, self._shards, self._columns = len(sizes), shards, columns
        self._memory: dict[Any, Asked] = {}
        rows, counts = [int(sizes[which].sum()) for which in shards], [len(which) for which in shards]
        self._pool = Pool(ray, workers, rows, counts, self._given, "agents")
        self._pool.settle()

    def _given(self, part: int) -> tuple[Any, ...]:
        """Return the arguments of :meth:`PoolingWorker.begin` for a worker that is to host a shard."""
        return self._shards[part], list(self._memory.values())

    def each(self, work: Callable[..., Any], *given: Any, again: bool = True) -> list[Any]:
        """Return ``work(shard, *given)`` of every shard, in a fixed order."""
        answers: dict[int, Any] = {}
        while left := [part for part in range(len(self._shards)) if part not in answers]:
            found = self._pool.gather("work", dict.fromkeys(left, (work, given)))
            answers |= {part: each for part, each in zip(left, found, strict=True) if not isinstance(each, TakenOver)}
            if len(answers) < len(self._shards) and not again:
                raise LostError
        return [answers[part] for part in range(len(self._shards))]

    def remember(self, name: Any, work: Callable[..., Any], *given: Any) -> None:
        """Store a request that a worker repeats when it takes over agents, in the order in which names were new."""
        self._memory[name] = work, given

    def forget(self, name: Any) -> None:
        """Delete what shards hold under this name."""
        for known in list(self._memory):
            if known == name or (isinstance(known, tuple) and known[0] == name):
                del self._memory[known]
        self.each(Shard.drop, name)

    def models(self, name: Any, task: int, agents: np.ndarray, design: Design, population: Any, tell: Any) -> Models:
        """Return the models of all agents, computed where their rows are."""
        return models_of(self, self._columns, task, design, population, tell)


@contextmanager
def cluster_agents(
    ray: Any,
    engine: Cluster,
    loader: Callable[[list[np.ndarray]], Loader],  # takes the agents of each shard
    sizes: np.ndarray,
    columns: int,
    classes: int,
) -> Iterator[ClusterAgents]:
    """Distribute agents to the workers of a cluster, for the duration of a ``with`` block."""
    most = int(np.count_nonzero(sizes))
    count = engine.count(ray, most)
    shards = deal(sizes, min(count * SHARDS_PER_WORKER, most))
    threads = max(1, int(engine.cpus))
    actor = ray.remote(num_cpus=engine.cpus)(PoolingWorker)
    shared = ray.put(loader(shards))
    workers = [actor.remote(shared, classes, threads, log.getEffectiveLevel()) for _ in range(count)]
    try:
        yield ClusterAgents(ray, workers, shards, sizes, columns)
    finally:
        for worker in workers:
            ray.kill(worker)
