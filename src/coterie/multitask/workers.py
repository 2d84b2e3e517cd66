"""The workers of a server: in this process, in turn or as if each took its own time.

Workers take requests and return updates. :mod:`coterie.multitask.actors` has those that are Ray actors.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

import numpy as np

from .worker import Request, Update, Worker, WorkerState


class Workers(Protocol):
    """What a server needs of its workers. A shard is the tasks of one worker."""

    @property
    def tasks(self) -> list[np.ndarray]:
        """Numbers of the tasks of each shard."""

    def states(self) -> list[WorkerState]:
        """The state of every worker."""

    def send(self, shard: int, request: Request) -> None:
        """Send a request, and do not wait."""

    def receive(self) -> tuple[int, Update | WorkerState]:
        """The next answer to come, and whose it is; a WorkerState if that worker died and began again."""

    def evaluate(self, weights: list[np.ndarray], keep: np.ndarray) -> list[Any]:
        """Loss, conjugate and slack of the tasks of every shard, (k, 3); a WorkerState as above."""


class LocalWorkers:
    """Workers of this process, one after the other.

    With a generator, how long each answer takes is drawn from it, one unit of time on average, and they come in that
    order, as from workers that run at the same time. Without, they come in the order of the requests.
    """

    def __init__(self, workers: Sequence[Worker], tasks: list[np.ndarray], rng: np.random.Generator | None = None):
        self.workers, self.tasks, self._rng = list(workers), tasks, rng
        self._waiting: list[tuple[float, int, int, Request]] = []
        self._clock, self._requests = 0.0, 0

    def states(self) -> list[WorkerState]:
        """The state of every worker."""
        return [worker.state() for worker in self.workers]

    def send(self, shard: int, request: Request) -> None:
        """Send a request, and do not wait."""
        took = 0.0 if self._rng is None else self._rng.standard_exponential()
        self._requests += 1
        heappush(self._waiting, (self._clock + took, self._requests, shard, request))

    def receive(self) -> tuple[int, Update | WorkerState]:
        """The next answer to come, and whose it is."""
        self._clock, _, shard, request = heappop(self._waiting)
        return shard, self.workers[shard].improve(request)

    def evaluate(self, weights: list[np.ndarray], keep: np.ndarray) -> list[np.ndarray]:
        """Loss, conjugate and slack of the tasks of every shard."""
        return [worker.evaluate(w, k) for worker, w, k in zip(self.workers, weights, keep, strict=True)]


def local_workers(
    data: Any, loss: Any, *, one_per_task: bool, asynchronous: bool, seed: int, **settings: Any
) -> LocalWorkers:
    """All tasks on one worker of this process, or each on its own; if asynchronous, answers come in a random order."""
    tasks = [np.array([i]) for i in range(data.n)] if one_per_task else [np.arange(data.n)]
    workers = [Worker(data.only(numbers), loss, numbers, seed=seed, **settings) for numbers in tasks]
    rng = np.random.default_rng(np.random.SeedSequence([seed, 1])) if asynchronous else None
    return LocalWorkers(workers, tasks, rng)
