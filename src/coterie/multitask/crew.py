"""Who works for a server: workers in this process, in turn or as if each took its own time.

A crew takes orders and hands out answers. :mod:`coterie.multitask.actors` has the one whose workers are Ray actors.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

import numpy as np

from .worker import Order, Report, Standing, Worker


class Crew(Protocol):
    """What a server needs of its workers. A shard is the tasks of one worker."""

    @property
    def tasks(self) -> list[np.ndarray]:
        """Numbers of the tasks of each shard."""

    def stand(self) -> list[Standing]:
        """Where every worker stands."""

    def ask(self, shard: int, order: Order) -> None:
        """Give an order, and do not wait."""

    def answer(self) -> tuple[int, Report | Standing]:
        """The next answer to come, and whose it is; a Standing if that worker died and began again."""

    def evaluate(self, weights: list[np.ndarray], keep: np.ndarray) -> list[Any]:
        """Loss, conjugate and slack of the tasks of every shard, (k, 3); a Standing as above."""


class Here:
    """Workers of this process, one after the other.

    Parameters
    ----------
    workers : sequence of Worker
    tasks : list of ndarray
        Numbers of the tasks of each worker.
    rng : Generator, optional
        Draws how long each answer takes, one unit of time on average: they come in that order, as from workers that
        run at the same time. Default: in the order in which they were asked.

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[1.0], [2.0]], [1.0, 2.0], agents=["a", "b"])
    >>> worker = Worker(data, ct.Squared(), [0, 1], passes=1.0, local_steps=None, seed=0)
    >>> Here([worker], [np.arange(2)]).stand()[0].sizes.tolist()
    [1, 1]
    """

    def __init__(self, workers: Sequence[Worker], tasks: list[np.ndarray], rng: np.random.Generator | None = None):
        self.workers, self.tasks, self._rng = list(workers), tasks, rng
        self._waiting: list[tuple[float, int, int, Order]] = []
        self._clock, self._asked = 0.0, 0

    def stand(self) -> list[Standing]:
        """Where every worker stands."""
        return [worker.stand() for worker in self.workers]

    def ask(self, shard: int, order: Order) -> None:
        """Give an order, and do not wait."""
        took = 0.0 if self._rng is None else self._rng.standard_exponential()
        self._asked += 1
        heappush(self._waiting, (self._clock + took, self._asked, shard, order))

    def answer(self) -> tuple[int, Report | Standing]:
        """The next answer to come, and whose it is."""
        self._clock, _, shard, order = heappop(self._waiting)
        return shard, self.workers[shard].improve(order)

    def evaluate(self, weights: list[np.ndarray], keep: np.ndarray) -> list[np.ndarray]:
        """Loss, conjugate and slack of the tasks of every shard."""
        return [worker.evaluate(w, k) for worker, w, k in zip(self.workers, weights, keep, strict=True)]


def crew_here(data: Any, loss: Any, *, apart: bool, asynchronous: bool, seed: int, **settings: Any) -> Here:
    """All tasks on one worker of this process, or each on its own.

    Parameters
    ----------
    data : AgentData
    loss : rule
    apart : bool
        Whether each task has a worker of its own.
    asynchronous : bool
        Whether answers come in a random order.
    seed : int
    **settings
        Of :class:`Worker`.

    Returns
    -------
    Here

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[1.0], [2.0]], [1.0, 2.0], agents=["a", "b"])
    >>> crew = crew_here(data, ct.Squared(), apart=True, asynchronous=False, seed=0, passes=1.0, local_steps=None)
    >>> len(crew.workers)
    2
    """
    tasks = [np.array([i]) for i in range(data.n)] if apart else [np.arange(data.n)]
    workers = [Worker(data.only(numbers), loss, numbers, seed=seed, **settings) for numbers in tasks]
    rng = np.random.default_rng(np.random.SeedSequence([seed, 1])) if asynchronous else None
    return Here(workers, tasks, rng)
