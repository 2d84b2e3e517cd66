"""Workers and server as Ray actors.

A worker loads the rows of its tasks itself, and keeps its dual variables in a checkpoint on its own disk, written
before each answer. When it dies, Ray starts it again; it loads its rows and its checkpoint, and sends the server its
state. Where the checkpoint is lost, too, it begins at zero, and the run still reaches the same optimum.
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
from .sources import gather
from .training import Options, Result, Training
from .worker import Request, Update, Worker, WorkerState, check_tasks

log = logging.getLogger("coterie")

#: How many times a worker may die, and within how many seconds it must be back.
MAX_RESTARTS, RESTART_SECONDS = 10, 300.0


class WorkerActor:
    """A worker in a process of its own. One that has just begun, or begun again, loads nothing until its :meth:`state`
    is asked for, and answers anything else with None.
    """

    def __init__(self, tasks: np.ndarray, loss: Any, target: str, work: dict[str, Any], path: str):
        self._given, self._path = (tasks, loss, target, work), Path(path)
        self._worker: Worker | None = None

    def state(self, part: list[Any]) -> WorkerState:
        """Its state, after it has loaded its rows and its checkpoint, if there is one."""
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
        return self._worker.state()

    def improve(self, request: Request) -> Update | None:
        """One round. The checkpoint is written first: what was answered is never lost."""
        if self._worker is None:
            return None
        update = self._worker.improve(request)
        content = io.BytesIO()
        np.save(content, self._worker.dual, allow_pickle=False)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self._path, content.getvalue(), durable=False, one_writer=True)
        return update

    def evaluate(self, weights: np.ndarray, keep: float) -> np.ndarray | None:
        """Loss, conjugate and slack of its tasks."""
        return None if self._worker is None else self._worker.evaluate(weights, keep)

    def remove_checkpoint(self) -> None:
        """Remove the checkpoint."""
        shutil.rmtree(self._path.parent, ignore_errors=True)


class RayWorkers:
    """Workers that are Ray actors.

    ``parts`` is what each of them loads, AgentData or sources: in lists, since Ray would pass on the rows themselves
    otherwise, and kept here for those that begin again.
    """

    def __init__(self, actors: list[Any], tasks: list[np.ndarray], parts: list[list[Any]]):
        self.actors, self.tasks, self._parts = actors, tasks, parts
        self._pending: dict[Any, int] = {}

    def states(self) -> list[WorkerState]:
        """The state of every worker."""
        return self._all("state", [(part,) for part in self._parts])

    def evaluate(self, weights: list[np.ndarray], keep: np.ndarray) -> list[Any]:
        """Loss, conjugate and slack of the tasks of every shard; a WorkerState in place of them if that worker died."""
        return self._all("evaluate", [(w, float(k)) for w, k in zip(weights, keep, strict=True)])

    def _all(self, name: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        refs = [getattr(actor, name).remote(*each) for actor, each in zip(self.actors, arguments, strict=True)]
        return [self._get(ref, shard) for shard, ref in enumerate(refs)]

    def send(self, shard: int, request: Request) -> None:
        """Send a request, and do not wait."""
        self._pending[self.actors[shard].improve.remote(request)] = shard

    def receive(self) -> tuple[int, Update | WorkerState]:
        """The next answer to come, and whose it is; a WorkerState if that worker died and began again."""
        import ray

        [ref], _ = ray.wait(list(self._pending), num_returns=1)
        shard = self._pending.pop(ref)
        return shard, self._get(ref, shard)

    def _get(self, ref: Any, shard: int) -> Any:
        """The answer; or, if the worker has died, its state now that it has begun again."""
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
                    until = time.monotonic() + RESTART_SECONDS
                time.sleep(0.1)
            ref = self.actors[shard].state.remote(self._parts[shard])


class ServerActor:
    """The server, in a process of its own."""

    def __init__(self, actors: list[Any], tasks: list[np.ndarray], parts: list[list[Any]], options: Options):
        self._given, self._options = (actors, tasks, parts), options
        self._training: Training | None = None

    def advance(self, seconds: float) -> tuple[int, float, bool]:
        """Go on for about so long."""
        if self._training is None:
            self._training = Training(RayWorkers(*self._given), self._options)
        return self._training.advance(seconds)

    def result(self) -> Result:
        """What was learned so far."""
        assert self._training is not None
        return self._training.result()


class _RemoteTraining:
    """Training that runs on the cluster."""

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

    def result(self) -> Result:
        """What was learned so far."""
        return self._get(self._actor.result.remote())


def _cause(error: Any) -> Exception:
    """The error of ours that an actor raised, or else what Ray says of it."""
    cause = error.cause
    while cause is not None and not isinstance(cause, CoterieError):
        cause = getattr(cause, "cause", None)
    return cause if cause is not None else ClusterError(f"a worker failed: {error}")


@contextmanager
def remote_training(
    engine: Cluster, data: Any, members: Any, loss: Any, target: str, options: Options, work: dict[str, Any]
) -> Iterator[_RemoteTraining]:
    """Training on a cluster, for the time of a ``with``."""
    with engine.connect() as ray:
        tasks = shards_of(data, len(members), engine.count(ray, len(members)))
        run = f"coterie-{uuid.uuid4().hex}"
        folder = Path(tempfile.gettempdir() if engine.folder is None else engine.folder) / run
        worker = ray.remote(num_cpus=engine.cpus, max_restarts=MAX_RESTARTS, max_task_retries=0)(WorkerActor)
        parts = [[_stored(ray, data, members, numbers)] for numbers in tasks]
        actors = [
            worker.remote(numbers, loss, target, work, str(folder / f"shard-{shard}.npy"))
            for shard, numbers in enumerate(tasks)
        ]
        # The server reserves no CPU: it waits for its workers most of the time.
        server = ray.remote(num_cpus=0)(ServerActor).remote(actors, tasks, parts, options)
        try:
            yield _RemoteTraining(ray, server)
        finally:
            ray.kill(server)  # first, or it would send further requests
            try:
                ray.wait([actor.remove_checkpoint.remote() for actor in actors], num_returns=len(actors), timeout=5.0)
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

    The sizes of sources are not known: they are dealt out in turn.
    """
    sizes = np.ones(m) if isinstance(data, Mapping) else data.sizes
    load = np.zeros(count)
    shards: list[list[int]] = [[] for _ in range(count)]
    for task in np.argsort(-sizes, kind="stable"):
        shard = int(np.argmin(load))
        shards[shard].append(int(task))
        load[shard] += sizes[task]
    return [np.array(sorted(tasks), dtype=np.int64) for tasks in shards if tasks]
