"""Partial pooling on a cluster: workers hold the rows of their agents, and answer with sums of them.

Workers are Ray actors. The process that fits asks each of them for the same sums (:mod:`coterie.pooling.sums`) and adds
these up in a fixed order, so that it learns what one process with all rows would, up to rounding. What it keeps of an
agent is what a file keeps: its model, and the gradient and the Hessian of its loss. When a worker dies, those that are
left load the rows of its agents, find their deviations anew, and the step under way is repeated.
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

#: Something that a shard was asked: a function of the shard, and what else it is given.
Asked = tuple[Callable[..., Any], tuple[Any, ...]]
#: Shards for each worker, so that those of a dead one can be dealt out evenly.
SHARDS = 4


class Loader(Protocol):
    """Where workers get the rows of their agents from; it is sent to each of them."""

    def load(self, which: np.ndarray) -> Grouped:
        """The rows of these agents, by their numbers, which are in order."""


class StoredRows:
    """Rows that the fitting process had in memory, in Ray's object store: parts of some agents each."""

    def __init__(self, parts: list[tuple[np.ndarray, list[Any]]]):
        self.parts = parts  # whose rows, and a reference; in a list, or Ray would send the rows with every call

    @classmethod
    def put(cls, ray: Any, rows: Grouped, shards: list[np.ndarray]) -> StoredRows:
        """Store rows, one part for each shard."""
        return cls([(which, [ray.put(rows.only(which))]) for which in shards])

    def load(self, which: np.ndarray) -> Grouped:
        """The rows of these agents."""
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
    """What a worker answers when it begins to host a shard."""


class PoolingWorker(Host):
    """A process that holds shards of the agents."""

    def __init__(self, loader: Loader, classes: int, n_jobs: int, level: int):
        super().__init__(level)
        self._loader, self._classes, self._n_jobs = loader, classes, n_jobs
        self._alone = one_thread(None)  # as in one process, as long as this one lives
        self._alone.__enter__()

    def begin(self, part: int, which: np.ndarray, memory: list[Asked]) -> tuple[Shard, TakenOver]:
        """Load the rows of some agents, and catch up with what was asked of others."""
        rows = self._loader.load(which)
        targets = targets_of(rows.y, self._classes)
        shard = Shard(dense(rows.X), targets, rows.codes, len(which), rows.weight, self._n_jobs, np.asarray(which))
        for work, given in memory:
            work(shard, *given)
        return shard, TakenOver()

    def work(self, part: int, work: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """What is asked of a shard."""
        return work(self._parts[part], *given)


class ClusterAgents:
    """Agents whose rows are with workers, see :class:`coterie.pooling.rows.Agents`."""

    def __init__(self, ray: Any, workers: list[Any], shards: list[np.ndarray], sizes: np.ndarray, columns: int):
        self.n, self._shards, self._columns = len(sizes), shards, columns
        self._memory: dict[Any, Asked] = {}
        rows, counts = [int(sizes[which].sum()) for which in shards], [len(which) for which in shards]
        self._pool = Pool(ray, workers, rows, counts, self._given, "agents")
        self._pool.settle()

    def _given(self, part: int) -> tuple[Any, ...]:
        """What a worker is told that is to host a shard."""
        return self._shards[part], list(self._memory.values())

    def each(self, work: Callable[..., Any], *given: Any, again: bool = True) -> list[Any]:
        """``work(shard, *given)`` of every shard, in a fixed order."""
        answers: dict[int, Any] = {}
        while left := [part for part in range(len(self._shards)) if part not in answers]:
            found = self._pool.gather("work", dict.fromkeys(left, (work, given)))
            answers |= {part: each for part, each in zip(left, found, strict=True) if not isinstance(each, TakenOver)}
            if len(answers) < len(self._shards) and not again:
                raise LostError
        return [answers[part] for part in range(len(self._shards))]

    def remember(self, name: Any, work: Callable[..., Any], *given: Any) -> None:
        """What a worker that takes over agents has to do first, in the order in which names were new."""
        self._memory[name] = work, given

    def forget(self, name: Any) -> None:
        """Nobody needs what shards hold under this name any more."""
        for known in list(self._memory):
            if known == name or (isinstance(known, tuple) and known[0] == name):
                del self._memory[known]
        self.each(Shard.drop, name)

    def models(self, name: Any, task: int, agents: np.ndarray, design: Design, population: Any, tell: Any) -> Models:
        """Of all agents, each where its rows are."""
        return models_of(self, self._columns, task, design, population, tell)


@contextmanager
def cluster_agents(
    ray: Any,
    engine: Cluster,
    loader: Callable[[list[np.ndarray]], Loader],  # for these shards
    sizes: np.ndarray,
    columns: int,
    classes: int,
) -> Iterator[ClusterAgents]:
    """Agents dealt out to the workers of a cluster, for the time of a ``with``."""
    most = int(np.count_nonzero(sizes))
    count = engine.count(ray, most)
    shards = deal(sizes, min(count * SHARDS, most))
    threads = max(1, int(engine.cpus))
    actor = ray.remote(num_cpus=engine.cpus)(PoolingWorker)
    shared = ray.put(loader(shards))
    workers = [actor.remote(shared, classes, threads, log.getEffectiveLevel()) for _ in range(count)]
    try:
        yield ClusterAgents(ray, workers, shards, sizes, columns)
    finally:
        for worker in workers:
            ray.kill(worker)
