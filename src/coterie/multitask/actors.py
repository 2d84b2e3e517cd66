"""Workers and server as Ray actors, any of which may die.

A worker loads the rows of its tasks itself. Before each answer it writes its dual variables to its local disk. Tasks
are grouped into parts, several for each worker. When a worker dies, its parts are assigned to the remaining workers,
which load the rows, and continue from the written dual variables. If these are lost, the workers continue from the dual
variables that belong to the current weights. In both cases the run reaches the same optimum.

Checkpoints of the whole run are written now and then (:mod:`.checkpoints`). The process that started the run holds the
server's checkpoint: if the server dies, a new server continues from there, and so does a resumed run.
"""

from __future__ import annotations

import logging
import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._workers import MAX_DEATHS, Host, Pool, Record, Waiting, WorkerLog, causes, death_of, gone, replay
from ..data.sources.survey import deal
from ..engines.cluster import Cluster
from ..errors import ClusterError
from .checkpoints import Checkpoints, Packed, Parts, remove_files
from .sources import Tasks
from .training import Options, Result, Training
from .worker import Request, Update, Worker, WorkerState

log = logging.getLogger("coterie")

#: Number of parts of the tasks for each worker, so that the parts of a dead worker can be assigned evenly.
PARTS_PER_WORKER = 4
#: Seconds between two fetches of the server's log records.
LOG_SECONDS = 0.5


class Shipment(NamedTuple):
    """Settings of a run that are sent to workers."""

    tasks: list[Any]  # a Ray reference to the tasks; in a list, because Ray would fetch a plain reference at every call
    loss: Any
    work: dict[str, Any]
    folder: str
    run: str


class Crew(NamedTuple):
    """The workers of a run, and their tasks."""

    actors: list[Any]
    tasks: list[np.ndarray]  # numbers of the tasks of each part
    rows: np.ndarray  # number of rows of each task
    shipment: Shipment


class WorkerActor(Host):
    """A worker in a Ray actor, which hosts some parts of the tasks."""

    _files: Parts | None = None

    def begin(
        self, part: int, numbers: np.ndarray, shipment: Shipment, number: int | None, weights: np.ndarray | None
    ) -> tuple[Worker, WorkerState]:
        """Host a part, beginning with the checkpoint `number`, or the last written state, or `weights`, or zero."""
        import ray

        files = self._files = self._files or Parts(Path(shipment.folder), shipment.run)
        if part in self._parts:
            data = self._parts.pop(part).data
        else:
            [tasks] = ray.get(shipment.tasks)
            data = tasks.load(numbers)
        worker = Worker(data, shipment.loss, numbers, **shipment.work)
        if weights is None:
            files.forget(part)
        packed = files.load(part, number)
        if packed is not None and number is not None:
            worker.unpack(packed)
        elif packed is not None and packed["dual"].shape == worker.dual.shape:
            worker.dual = packed["dual"]
        elif weights is not None:
            worker.set_dual_of(weights)
        return worker, worker.state()

    def improve(self, part: int, request: Request) -> Update:
        """Run one round of a part; the dual variables are written before the answer, so that no answer is lost."""
        update = self._parts[part].improve(request)
        self._write(part, None, [], {"dual": self._parts[part].dual})
        return update

    def evaluate(self, part: int, weights: np.ndarray, keep: float) -> np.ndarray:
        """Return loss, conjugate and slack of the tasks of a part."""
        return self._parts[part].evaluate(weights, keep)

    def save(self, part: int, number: int, kept: list[int]) -> bool:
        """Write a part of checkpoint `number`, and delete all checkpoints not in `kept`; return whether that worked."""
        return self._write(part, number, kept, self._parts[part].pack())

    def _write(self, part: int, number: int | None, kept: list[int], packed: Packed) -> bool:
        assert self._files is not None
        return self._files.save(part, number, kept, packed)

    def remove_files(self) -> None:
        """Remove the files that this worker has written."""
        if self._files is not None:
            remove_files(self._files.folder)


class RayWorkers:
    """Workers that are Ray actors.

    ``start``, if given, starts another actor when none is left. ``number`` is the number of the checkpoint to begin
    with, and ``weights`` are the weights of all tasks in that checkpoint.
    """

    def __init__(
        self, crew: Crew, start: Callable[[], Any] | None, number: int | None = None, weights: np.ndarray | None = None
    ):
        import ray

        self.tasks, self._shipment, self._number = crew.tasks, crew.shipment, number
        self._weights = [None if weights is None else weights[each] for each in self.tasks]
        sizes, counts = [int(crew.rows[each].sum()) for each in self.tasks], [len(each) for each in self.tasks]
        self._pool = Pool(ray, crew.actors, sizes, counts, self._given, "task(s)", start)
        self._outgoing: dict[int, tuple[Request]] = {}
        self._waiting: Waiting = {}
        self._answers: deque[tuple[int, Any]] = deque()

    def _given(self, part: int) -> tuple[Any, ...]:
        """Return the arguments of :meth:`WorkerActor.begin` for a part."""
        return self.tasks[part], self._shipment, self._number, self._weights[part]

    @property
    def deaths(self) -> int:
        """Number of workers that have died."""
        return self._pool.deaths

    def states(self) -> list[WorkerState]:
        """Assign all parts, preferably to workers that host them already, and return the state of every part."""
        states = self._pool.settle()
        missing = [part for part, state in enumerate(states) if not state.restored] if self._number is not None else []
        if missing:
            log.warning(
                "%d task(s) have no checkpoint here: they continue from the weights of the last checkpoint",
                sum(len(self.tasks[part]) for part in missing),
            )
        self._number = None  # a part that is lost from now on is newer than the checkpoint
        return states

    def send(self, part: int, request: Request) -> None:
        """Send a request without waiting; requests to the same worker are sent together."""
        self._weights[part] = request.weights
        self._outgoing[part] = (request,)

    def receive(self) -> tuple[int, Update | WorkerState]:
        """Return the next answer and its part; the answer is a WorkerState if the part moved to another worker."""
        self._waiting |= self._pool.ask("improve", self._outgoing)
        self._outgoing = {}
        while not self._answers:
            self._answers.extend(self._pool.next(self._waiting))
        return self._answers.popleft()

    def evaluate(self, weights: list[np.ndarray], keep: np.ndarray) -> list[Any]:
        """Return loss, conjugate and slack of the tasks of every part, or a WorkerState for a part that moved."""
        self._weights = list(weights)
        given = {part: (w, float(k)) for part, (w, k) in enumerate(zip(weights, keep, strict=True))}
        return self._pool.gather("evaluate", given)

    def save(self, number: int, kept: list[int]) -> list[Any]:
        """Write a checkpoint; return for every part whether that worked, or a WorkerState for a part that moved."""
        return self._pool.gather("save", dict.fromkeys(range(len(self.tasks)), (number, kept)))


class ServerActor:
    """The server in a Ray actor; another thread can fetch its log records while it works."""

    def __init__(self, level: int, crew: Crew, options: Options, saved: Packed | None, cpus: float):
        self._log, self._cpus, self._level = WorkerLog(level), cpus, level
        self._given = crew, options, saved
        self._training: Training | None = None

    def advance(self, seconds: float) -> tuple[int, float, Result | None]:
        """Continue the training for about `seconds`; return the rounds done, the gap, and the result if finished."""
        if self._training is None:
            crew, options, saved = self._given
            known = () if saved is None else (saved["number"], saved["server.weights"])
            self._training = Training(RayWorkers(crew, self._start, *known), options, saved)
        rounds, gap, done = self._training.advance(seconds)
        return rounds, gap, self._training.result() if done else None

    def _start(self) -> Any:
        import ray

        return worker_class(ray, self._cpus).remote(self._level)

    def checkpoint(self, number: int, kept: list[int]) -> Packed | None:
        """Return the state that is needed to continue from here."""
        return None if self._training is None else self._training.checkpoint(number, kept)

    def records(self) -> list[Record]:
        """Return the log records of the server and its workers."""
        return self._log.take()


def worker_class(ray: Any, cpus: float) -> Any:
    """Return the actor class of workers; Ray does not restart dead workers, their tasks move to others at once."""
    return ray.remote(num_cpus=cpus, max_restarts=0, scheduling_strategy="SPREAD")(WorkerActor)


class RemoteTraining:
    """Training on a cluster, which continues with a new server if the server dies."""

    def __init__(self, ray: Any, start: Callable[[Packed | None], Any], checkpoints: Checkpoints):
        self._ray, self._start, self._checkpoints = ray, start, checkpoints
        self.server, self._deaths = start(checkpoints.last), 0
        self._result: Result | None = None

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Return an answer of the server, or None if the server has died and a new one has begun."""
        ray, server = self._ray, self.server
        try:
            with causes(ray, but=gone(ray)):
                ref = getattr(server, name).remote(*arguments)
                while not ray.wait([ref], timeout=LOG_SECONDS)[0]:
                    replay(ray.get(server.records.remote()))
                try:
                    return ray.get(ref)
                finally:
                    replay(ray.get(server.records.remote()))
        except gone(ray) as error:
            self._deaths += 1
            last, reason = self._checkpoints.last, death_of(ray, server, server.records, error) or "it was out of reach"
            if self._deaths > MAX_DEATHS:
                raise ClusterError(f"{self._deaths} servers have died, too many; the last one: {reason}") from error
            where = "from the beginning" if last is None else f"from round {last['server.rounds']}"
            log.warning("the server died: %s; another one goes on %s", reason, where)
            ray.kill(server)
            self.server = self._start(last)
            return None

    def advance(self, seconds: float) -> tuple[int, float, bool]:
        """Continue the training for about `seconds`; return the rounds done, the gap, and whether it has finished."""
        rounds, gap, self._result = self._ask("advance", seconds) or (0, 1.0, None)
        return rounds, gap, self._result is not None

    def checkpoint(self, number: int, kept: list[int]) -> Packed | None:
        """Return the state that is needed to continue from here."""
        return self._ask("checkpoint", number, kept)

    def result(self) -> Result:
        """Return the result of the finished training."""
        assert self._result is not None
        return self._result


@contextmanager
def remote_training(
    engine: Cluster, tasks: Tasks, loss: Any, options: Options, work: dict[str, Any], checkpoints: Checkpoints
) -> Iterator[RemoteTraining]:
    """Provide training on a cluster within a ``with`` block; workers load the rows of the ``tasks``."""
    with engine.connect() as ray:
        count = engine.count(ray, len(tasks.members))
        if checkpoints.last is None:
            # In asynchronous rounds, all parts of a worker answer at once, so fewer parts are better.
            parts = deal(tasks.sizes, count * (PARTS_PER_WORKER if options.server["kind"] == "synchronous" else 1))
        else:
            parts = np.split(checkpoints.last["tasks"], np.cumsum(checkpoints.last["part_sizes"])[:-1])
        kept = checkpoints.folder
        base = Path(tempfile.gettempdir() if engine.folder is None else engine.folder)
        folder = base / f"coterie-{uuid.uuid4().hex}" if kept is None else kept.absolute()
        level = log.getEffectiveLevel()
        actors = [worker_class(ray, engine.cpus).remote(level) for _ in range(count)]
        servers = ray.remote(num_cpus=0, max_concurrency=2)(ServerActor)
        crew = Crew(actors, parts, tasks.sizes, Shipment([ray.put(tasks)], loss, work, str(folder), checkpoints.run))

        def start(saved: Packed | None) -> Any:
            return servers.remote(level, crew, options, saved, engine.cpus)

        training, done = RemoteTraining(ray, start, checkpoints), False
        try:
            yield training
            done = True
        finally:
            ray.kill(training.server)  # first, otherwise it would send further requests
            try:
                if done or kept is None:
                    refs = [actor.remove_files.remote() for actor in actors]
                    ray.wait(refs, num_returns=len(refs), timeout=5.0)
            finally:
                for actor in actors:
                    ray.kill(actor)
                if done or kept is None:
                    remove_files(folder)  # only files of this run: the folder may be the user's
