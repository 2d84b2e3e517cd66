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
from ..data.sources.survey import deal
from ..engines.cluster import Cluster, Record, WorkerLog, causes, reason_of, replay
from ..errors import ClusterError
from ..pooling import targets_of
from ..pooling.designs import Design
from ..pooling.fitted import models_of
from ..pooling.rows import Models, Shard
from ..pooling.sums import LostError
from ..pooling.wide import dense

log = logging.getLogger("coterie")


class Rows(NamedTuple):
    """Rows of some agents, by their place among these."""

    X: Any
    y: np.ndarray  # numbers, or numbers of classes
    codes: np.ndarray
    weight: np.ndarray | None = None


class Loader(Protocol):
    """Where workers get the rows of their agents from; it is sent to each of them."""

    def load(self, which: np.ndarray) -> Rows:
        """The rows of these agents, by their numbers, which are in order."""


class StoredRows:
    """Rows that the fitting process had in memory, in Ray's object store: parts of some agents each."""

    def __init__(self, parts: list[tuple[np.ndarray, list[Any]]]):
        self.parts = parts  # whose rows, and a reference; in a list, or Ray would send the rows with every call

    @classmethod
    def put(cls, ray: Any, rows: Rows, shards: list[np.ndarray]) -> StoredRows:
        """Store rows, one part for each shard."""
        of = np.empty(sum(map(len, shards)), dtype=np.int64)
        for number, which in enumerate(shards):
            of[which] = number
        owner = of[rows.codes]
        return cls([(which, [ray.put(_some(rows, owner == k, which))]) for k, which in enumerate(shards)])

    def load(self, which: np.ndarray) -> Rows:
        """The rows of these agents."""
        import ray

        found = []
        for whose, reference in self.parts:
            if np.isin(which, whose, assume_unique=True).any():
                rows = ray.get(reference[0])
                codes = whose[rows.codes]
                found.append(_some(rows._replace(codes=codes), np.isin(codes, which), which))
        if len(found) == 1:
            return found[0]
        from scipy import sparse

        X = [rows.X for rows in found]
        together = np.concatenate(X) if isinstance(X[0], np.ndarray) else sparse.vstack(X, format="csr")
        weight = None if found[0].weight is None else np.concatenate([rows.weight for rows in found])
        y, codes = (np.concatenate([part[k] for part in found]) for k in (1, 2))
        return Rows(together, y, codes, weight)


def _some(rows: Rows, chosen: np.ndarray, which: np.ndarray) -> Rows:
    """Chosen rows, whose agents are all among `which`, by their places there."""
    weight = None if rows.weight is None else rows.weight[chosen]
    return Rows(rows.X[chosen], rows.y[chosen], np.searchsorted(which, rows.codes[chosen]), weight)


class PoolingWorker:
    """A process that holds shards: its own, and what it took over."""

    def __init__(self, loader: Loader, classes: int, n_jobs: int, level: int):
        self._loader, self._classes, self._n_jobs = loader, classes, n_jobs
        self._shards: dict[int, Shard] = {}
        self._log = WorkerLog(level)
        self._alone = one_thread(None)  # as in one process, as long as this one lives
        self._alone.__enter__()

    def take(self, number: int, which: np.ndarray) -> tuple[None, list[Record]]:
        """Load the rows of some agents, and hold them as a shard of this number."""
        rows = self._loader.load(which)
        targets = targets_of(rows.y, self._classes)
        self._shards[number] = Shard(
            dense(rows.X), targets, rows.codes, len(which), rows.weight, self._n_jobs, np.asarray(which)
        )
        return None, self._log.take()

    def work(self, number: int, work: Callable[..., Any], given: tuple[Any, ...]) -> tuple[Any, list[Record]]:
        """What is asked of a shard."""
        return work(self._shards[number], *given), self._log.take()


class _Held(NamedTuple):
    """A shard, and the worker that holds it."""

    number: int
    worker: int
    which: np.ndarray


class _GoneError(Exception):
    """A worker does not answer any more."""


class ClusterAgents:
    """Agents whose rows are with workers, see :class:`coterie.pooling.rows.Agents`."""

    def __init__(self, ray: Any, workers: list[Any], shards: list[np.ndarray], sizes: np.ndarray, columns: int):
        self.n, self._sizes, self._columns = len(sizes), sizes, columns
        self._ray, self._workers = ray, dict(enumerate(workers))
        self._memory: dict[Any, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        self._held = [_Held(k, k, which) for k, which in enumerate(shards)]
        self._numbers = len(shards)
        self._begin(self._held)

    def each(self, work: Callable[..., Any], *given: Any, again: bool = True) -> list[Any]:
        """``work(shard, *given)`` of every shard, in a fixed order."""
        answers: dict[int, Any] = {}
        while True:
            asked = [held for held in self._held if held.number not in answers]
            references = [self._workers[held.worker].work.remote(held.number, work, given) for held in asked]
            dead = {}
            for held, reference in zip(asked, references, strict=True):
                try:
                    answers[held.number] = self._get(reference)
                except _GoneError as error:
                    dead[held.worker] = error
            if not dead:
                return [answers[held.number] for held in self._held]
            self._hand_over(dead)
            if not again:
                raise LostError

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

    def _get(self, reference: Any) -> Any:
        """An answer; what was logged where it comes from is logged here."""
        gone = (self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError)
        try:
            with causes(self._ray):
                answer, records = self._ray.get(reference)
        except ClusterError as error:
            if isinstance(error.__cause__, gone):
                raise _GoneError(reason_of(error.__cause__)) from error
            raise
        replay(records)
        return answer

    def _begin(self, fresh: list[_Held]) -> None:
        """Let workers load shards, and catch up with what was asked of others."""
        while fresh:
            references = []
            for held in fresh:
                worker = self._workers[held.worker]
                first = worker.take.remote(held.number, held.which)
                references.append(
                    [first, *(worker.work.remote(held.number, *known) for known in self._memory.values())]
                )
            dead = {}
            for held, parts in zip(fresh, references, strict=True):
                try:
                    for reference in parts:
                        self._get(reference)
                except _GoneError as error:
                    dead[held.worker] = error
            # Those that came to nothing are dealt out again, and nobody else's are begun twice.
            fresh = self._dealt_out(dead) if dead else []

    def _hand_over(self, dead: dict[int, _GoneError]) -> None:
        self._begin(self._dealt_out(dead))

    def _dealt_out(self, dead: dict[int, _GoneError]) -> list[_Held]:
        """The agents of dead workers, dealt out to those left in place of the shards they were in."""
        reason = str(next(iter(dead.values())))
        self._workers = {k: worker for k, worker in self._workers.items() if k not in dead}
        agents = sum(len(held.which) for held in self._held if held.worker in dead)
        if not self._workers:
            raise ClusterError(f"all workers died; the last of them held {agents} agents: {reason}")
        log.warning(
            "%d worker(s) died: %s; the rows of their %d agents go to the %d left",
            len(dead),
            reason,
            agents,
            len(self._workers),
        )
        now: list[_Held] = []
        fresh: list[_Held] = []
        for held in self._held:
            if held.worker not in dead:
                now.append(held)
                continue
            parts = deal(self._sizes[held.which], len(self._workers))
            for worker, part in zip(self._workers, parts, strict=False):
                fresh.append(_Held(self._numbers, worker, held.which[part]))
                now.append(fresh[-1])
                self._numbers += 1
        self._held = now
        return fresh


@contextmanager
def cluster_agents(
    ray: Any, engine: Cluster, loader: Loader, shards: list[np.ndarray], sizes: np.ndarray, columns: int, classes: int
) -> Iterator[ClusterAgents]:
    """Agents dealt out to the workers of a cluster, for the time of a ``with``."""
    threads = max(1, int(engine.cpus))
    actor = ray.remote(num_cpus=engine.cpus)(PoolingWorker)
    shared = ray.put(loader)
    workers = [actor.remote(shared, classes, threads, log.getEffectiveLevel()) for _ in shards]
    try:
        yield ClusterAgents(ray, workers, shards, sizes, columns)
    finally:
        for worker in workers:
            ray.kill(worker)
