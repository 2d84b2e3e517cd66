"""The workers of a server in this process, in turn or with simulated delays.

Workers take requests and return updates. Workers that are Ray actors are in :mod:`coterie.multitask.actors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

import numpy as np

from ..errors import FileError
from .checkpoints import Parts
from .worker import Request, Update, Worker, WorkerState


class Workers(Protocol):
    """Interface of the workers for the server. A part is a group of tasks on one worker."""

    @property
    def tasks(self) -> list[np.ndarray]:
        """Numbers of the tasks of each part."""

    @property
    def deaths(self) -> int:
        """Number of workers that have died."""

    def states(self) -> list[WorkerState]:
        """Return the state of every part."""

    def send(self, part: int, request: Request) -> None:
        """Send a request without waiting."""

    def receive(self) -> tuple[int, Update | WorkerState]:
        """Return the next answer and its part; the answer is a WorkerState if the worker died and began again."""

    def evaluate(self, weights: list[np.ndarray], keep: np.ndarray) -> list[Any]:
        """Return loss, conjugate and slack of the tasks of every part, (k, 3), or a WorkerState if it began again."""

    def save(self, number: int, kept: list[int]) -> list[Any]:
        """Write a checkpoint, and delete all not in `kept`; return for every part whether that worked, or its state."""


class LocalWorkers:
    """Workers in this process, one after the other.

    With a generator, the time of each answer is drawn from an exponential distribution of mean 1, and answers come in
    the order of these times, as from workers that run simultaneously. Otherwise answers come in the order of requests.
    """

    deaths = 0

    def __init__(
        self,
        workers: Sequence[Worker],
        tasks: list[np.ndarray],
        rng: np.random.Generator | None = None,
        files: Parts | None = None,
    ):
        self.workers, self.tasks, self._rng, self._files = list(workers), tasks, rng, files
        self._waiting: list[tuple[float, int, int, Request]] = []
        self._clock, self._requests = 0.0, 0

    def states(self) -> list[WorkerState]:
        """Return the state of every worker."""
        return [worker.state() for worker in self.workers]

    def send(self, part: int, request: Request) -> None:
        """Send a request without waiting."""
        took = 0.0 if self._rng is None else self._rng.standard_exponential()
        self._requests += 1
        heappush(self._waiting, (self._clock + took, self._requests, part, request))

    def receive(self) -> tuple[int, Update | WorkerState]:
        """Return the next answer and its part."""
        self._clock, _, part, request = heappop(self._waiting)
        return part, self.workers[part].improve(request)

    def evaluate(self, weights: list[np.ndarray], keep: np.ndarray) -> list[np.ndarray]:
        """Return loss, conjugate and slack of the tasks of every part."""
        return [worker.evaluate(w, k) for worker, w, k in zip(self.workers, weights, keep, strict=True)]

    def save(self, number: int, kept: list[int]) -> list[bool]:
        """Write a checkpoint, one file for all workers; return for every worker whether that worked."""
        assert self._files is not None
        packed = {f"{part}.{name}": value for part, w in enumerate(self.workers) for name, value in w.pack().items()}
        return [self._files.save(0, number, kept, packed)] * len(self.workers)

    def restore(self, number: int) -> None:
        """Restore all workers from a checkpoint."""
        assert self._files is not None
        packed = self._files.load(0, number)
        if packed is None:
            raise FileError(f"{self._files.folder}: checkpoint {number} is not whole; remove the folder to begin anew")
        for part, worker in enumerate(self.workers):
            worker.unpack({name: packed[f"{part}.{name}"] for name in worker.pack()})


def local_workers(
    data: Any,
    loss: Any,
    *,
    one_per_task: bool,
    asynchronous: bool,
    seed: int,
    files: Parts | None = None,
    **settings: Any,
) -> LocalWorkers:
    """Return one local worker for all tasks, or one for each task; asynchronous answers come in a random order."""
    tasks = [np.array([i]) for i in range(data.n)] if one_per_task else [np.arange(data.n)]
    workers = [Worker(data.only(numbers), loss, numbers, seed=seed, **settings) for numbers in tasks]
    rng = np.random.default_rng(np.random.SeedSequence([seed, 1])) if asynchronous else None
    return LocalWorkers(workers, tasks, rng, files)
