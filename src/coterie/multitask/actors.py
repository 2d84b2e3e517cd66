"""Workers and server as Ray actors.

A worker loads the rows of its tasks itself, and keeps its dual variables in a checkpoint on its own disk, written
before each answer. When it dies, Ray starts it again; it loads its rows and its checkpoint, and tells the server where
it stands. Where the checkpoint is lost, too, it begins at zero, and the run still reaches the same optimum.
"""

from __future__ import annotations

import io
import logging
import math
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .._files import write_atomic
from ..data import AgentData
from ..engines.cluster import Cluster
from ..errors import ClusterError, CoterieError, DataError
from .course import Course, Outcome, Plan
from .sources import gather
from .worker import Order, Report, Standing, Worker, check_tasks

log = logging.getLogger("coterie")

#: How many times a worker may die, and within how many seconds it must be back.
RESTARTS, REVIVAL = 10, 300.0


class TaskActor:
    """A worker in a process of its own. One that has just begun, or begun again, knows nothing until it is told to
    :meth:`stand`, and answers anything else with None.
    """

    def __init__(self, tasks: np.ndarray, loss: Any, target: str, work: dict[str, Any], path: str):
        self._given, self._path = (tasks, loss, target, work), Path(path)
        self._worker: Worker | None = None

    def stand(self, part: list[Any]) -> Standing:
        """Where this worker stands, after it has loaded its rows and its checkpoint, if there is one."""
        if self._worker is None:
            import ray

            tasks, loss, target, work = self._given
            [data] = ray.get(part)
            if not isinstance(data, AgentData):
                data = gather(data, target)
            check_tasks(data, loss)
            worker = Worker(data, loss, tasks, **work)
            if self._path.exists():
                worker.dual = np.load(self._path, allow_pickle=False)
            self._worker = worker
        return self._worker.stand()

    def improve(self, order: Order) -> Report | None:
        """One round. The checkpoint is written first: what was answered is never lost."""
        if self._worker is None:
            return None
        report = self._worker.improve(order)
        content = io.BytesIO()
        np.save(content, self._worker.dual, allow_pickle=False)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self._path, content.getvalue(), durable=False, one_writer=True)
        return report

    def evaluate(self, weights: np.ndarray, keep: float) -> np.ndarray | None:
        """Loss, conjugate and slack of its tasks."""
        return None if self._worker is None else self._worker.evaluate(weights, keep)

    def retire(self) -> None:
        """Remove the checkpoint."""
        shutil.rmtree(self._path.parent, ignore_errors=True)


class Actors:
    """Workers that are Ray actors: a crew.

    Parameters
    ----------
    actors : list of handles
    tasks : list of ndarray
        Numbers of the tasks of each worker.
    parts : list of [ref]
        What each worker loads, AgentData or sources. In lists, since Ray would pass on the rows themselves otherwise;
        kept here, for those that begin again.
    """

    def __init__(self, actors: list[Any], tasks: list[np.ndarray], parts: list[list[Any]]):
        self.actors, self.tasks, self._parts = actors, tasks, parts
        self._pending: dict[Any, int] = {}

    def stand(self) -> list[Standing]:
        """Where every worker stands."""
        return self._all("stand", [(part,) for part in self._parts])

    def evaluate(self, weights: list[np.ndarray], keep: np.ndarray) -> list[Any]:
        """Loss, conjugate and slack of the tasks of every shard; a Standing in place of them if that worker died."""
        return self._all("evaluate", [(w, float(k)) for w, k in zip(weights, keep, strict=True)])

    def _all(self, name: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        refs = [getattr(actor, name).remote(*each) for actor, each in zip(self.actors, arguments, strict=True)]
        return [self._get(ref, shard) for shard, ref in enumerate(refs)]

    def ask(self, shard: int, order: Order) -> None:
        """Give an order, and do not wait."""
        self._pending[self.actors[shard].improve.remote(order)] = shard

    def answer(self) -> tuple[int, Report | Standing]:
        """The next answer to come, and whose it is; a Standing if that worker died and began again."""
        import ray

        [ref], _ = ray.wait(list(self._pending), num_returns=1)
        shard = self._pending.pop(ref)
        return shard, self._get(ref, shard)

    def _get(self, ref: Any, shard: int) -> Any:
        """The answer; or, if the worker has died, where it stands now that it has begun again."""
        import ray

        names, until = self.tasks[shard].tolist(), math.inf
        while True:
            try:
                answer = ray.get(ref)
                if answer is not None:
                    return answer
            except ray.exceptions.RayTaskError as error:
                raise _cause(error) from None
            except ray.exceptions.RayActorError as error:  # it died, or is being started again
                gone = math.isfinite(until) and isinstance(error, ray.exceptions.ActorDiedError)
                if gone or time.monotonic() > until:
                    raise ClusterError(f"the worker of tasks number {names} is lost: {error}") from error
                if math.isinf(until):
                    log.warning("the worker of tasks number %s died; it begins again", names)
                    until = time.monotonic() + REVIVAL
                time.sleep(0.1)
            ref = self.actors[shard].stand.remote(self._parts[shard])


class CourseActor:
    """The server, in a process of its own."""

    def __init__(self, actors: list[Any], tasks: list[np.ndarray], parts: list[list[Any]], plan: Plan):
        self._given, self._plan = (actors, tasks, parts), plan
        self._course: Course | None = None

    def advance(self, seconds: float) -> tuple[int, float, bool]:
        """Go on for about so long."""
        if self._course is None:
            self._course = Course(Actors(*self._given), self._plan)
        return self._course.advance(seconds)

    def outcome(self) -> Outcome:
        """What came out."""
        assert self._course is not None
        return self._course.outcome()


class _Remote:
    """A course that runs on the cluster."""

    def __init__(self, ray: Any, actor: Any):
        self._ray, self._actor = ray, actor

    def _get(self, ref: Any) -> Any:
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            raise _cause(error) from None
        except self._ray.exceptions.RayActorError as error:
            raise ClusterError(f"the server of the run died, and what it knew with it: {error}") from error

    def advance(self, seconds: float) -> tuple[int, float, bool]:
        """Go on for about so long."""
        return self._get(self._actor.advance.remote(seconds))

    def outcome(self) -> Outcome:
        """What came out."""
        return self._get(self._actor.outcome.remote())


def _cause(error: Any) -> Exception:
    """The error of ours that an actor raised, or else what Ray says of it."""
    cause = error.cause
    while cause is not None and not isinstance(cause, CoterieError):
        cause = getattr(cause, "cause", None)
    return cause if cause is not None else ClusterError(f"a worker failed: {error}")


@contextmanager
def serving(
    engine: Cluster, data: Any, members: Any, loss: Any, target: str, plan: Plan, work: dict[str, Any]
) -> Iterator[_Remote]:
    """A course on a cluster, for the time of a ``with``."""
    with engine.connect() as ray:
        tasks = shards_of(data, len(members), engine.count(ray, len(members)))
        run = f"coterie-{uuid.uuid4().hex}"
        folder = Path(tempfile.gettempdir() if engine.folder is None else engine.folder) / run
        worker = ray.remote(num_cpus=engine.cpus, max_restarts=RESTARTS, max_task_retries=0)(TaskActor)
        parts = [[_stored(ray, data, members, numbers)] for numbers in tasks]
        actors = [
            worker.remote(numbers, loss, target, work, str(folder / f"shard-{shard}.npy"))
            for shard, numbers in enumerate(tasks)
        ]
        # The server reserves no CPU: it waits for its workers most of the time.
        server = ray.remote(num_cpus=0)(CourseActor).remote(actors, tasks, parts, plan)
        try:
            yield _Remote(ray, server)
        finally:
            ray.kill(server)  # first, or it would give further orders
            try:
                ray.wait([actor.retire.remote() for actor in actors], num_returns=len(actors), timeout=5.0)
            finally:
                for actor in actors:
                    ray.kill(actor)
                shutil.rmtree(folder, ignore_errors=True)


def _stored(ray: Any, data: Any, members: Any, numbers: np.ndarray) -> Any:
    """What the worker of these tasks needs, their sources or their rows, where it can fetch it."""
    if not isinstance(data, Mapping):
        return ray.put(data.only(numbers))
    for i in numbers:
        try:
            ray.put(data[members[i]])
        except Exception as error:  # Ray raises whatever the parts of a source raise
            raise DataError(
                f"the source of task {members[i]!r} cannot be sent to a worker: {error}; give a path, or a function "
                "that opens what it needs itself"
            ) from error
    return ray.put({members[i]: data[members[i]] for i in numbers})


def shards_of(data: Any, m: int, count: int) -> list[np.ndarray]:
    """Which tasks go to which worker: large ones first, each to the worker with the least to do.

    Parameters
    ----------
    data : AgentData, or mapping
        Of a mapping the sizes are not known: its tasks are dealt out in turn.
    m : int
        How many tasks.
    count : int
        How many workers.

    Returns
    -------
    list of ndarray

    Examples
    --------
    >>> data = AgentData(np.ones((6, 1)), agents=[0, 0, 0, 1, 1, 2])
    >>> [tasks.tolist() for tasks in shards_of(data, 3, 2)]
    [[0], [1, 2]]
    """
    sizes = np.ones(m) if isinstance(data, Mapping) else data.sizes
    load = np.zeros(count)
    shards: list[list[int]] = [[] for _ in range(count)]
    for task in np.argsort(-sizes, kind="stable"):
        shard = int(np.argmin(load))
        shards[shard].append(int(task))
        load[shard] += sizes[task]
    return [np.array(sorted(tasks), dtype=np.int64) for tasks in shards if tasks]
