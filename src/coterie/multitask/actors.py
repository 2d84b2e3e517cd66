"""Workers and server as Ray actors, of which any may die.

A worker loads the rows of its tasks itself. Before each answer it writes its dual variables to its own disk. Tasks are
in parts, several for each worker: when a worker dies, its parts are dealt out to those that are left, which load their
rows, and go on from what it has written. Where that is gone, too, they go on from the dual variables that belong to the
weights of the moment. Either way the run reaches the same optimum.

Now and then there is a checkpoint of everything (:mod:`.checkpoints`). The process that has started the run keeps the
server's part of it: if the server dies, another one goes on from there, and so does a run that is started anew.
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

#: Parts of the tasks for each worker, so that those of a dead one can be dealt out evenly.
PARTS = 4
#: Seconds between two looks at what the server has logged, while it is at work.
LOOK = 0.5


class Shipment(NamedTuple):
    """What a worker needs to know of a run."""

    tasks: list[Any]  # where the rows are, as a reference; in a list, since Ray would fetch it for every call otherwise
    loss: Any
    work: dict[str, Any]
    folder: str
    run: str


class Crew(NamedTuple):
    """The workers of a run, and what they are to do."""

    actors: list[Any]
    tasks: list[np.ndarray]  # of each part
    rows: np.ndarray  # of each task
    shipment: Shipment


class WorkerActor(Host):
    """A worker in a process of its own, which hosts some parts of the tasks."""

    _files: Parts | None = None

    def begin(
        self, part: int, numbers: np.ndarray, shipment: Shipment, number: int | None, weights: np.ndarray | None
    ) -> tuple[Worker, WorkerState]:
        """Host a part: from the checkpoint of this number, or what was written last, or weights; else from nothing."""
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
        """One round of a part. What it knows is written first: what was answered is never lost."""
        update = self._parts[part].improve(request)
        self._write(part, None, [], {"dual": self._parts[part].dual})
        return update

    def evaluate(self, part: int, weights: np.ndarray, keep: float) -> np.ndarray:
        """Loss, conjugate and slack of the tasks of a part."""
        return self._parts[part].evaluate(weights, keep)

    def save(self, part: int, number: int, kept: list[int]) -> bool:
        """Write a part into the checkpoint of a number, and keep those of others. Whether that could be done."""
        return self._write(part, number, kept, self._parts[part].pack())

    def _write(self, part: int, number: int | None, kept: list[int], packed: Packed) -> bool:
        assert self._files is not None
        return self._files.save(part, number, kept, packed)

    def remove_files(self) -> None:
        """Remove what it has written."""
        if self._files is not None:
            remove_files(self._files.folder)


class RayWorkers:
    """Workers that are Ray actors. ``start``, if there is one, starts another for when none is left.

    ``number`` is that of the checkpoint to begin with, and ``weights`` are those of all tasks then.
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
        """What a worker is told that is to host a part."""
        return self.tasks[part], self._shipment, self._number, self._weights[part]

    @property
    def deaths(self) -> int:
        """How many workers have died so far."""
        return self._pool.deaths

    def states(self) -> list[WorkerState]:
        """The state of every part; they are dealt out first, to workers that host them already if there are any."""
        states = self._pool.settle()
        missing = [part for part, state in enumerate(states) if not state.restored] if self._number is not None else []
        if missing:
            log.warning(
                "of %d task(s) there is no checkpoint here: they go on from the weights of the last one",
                sum(len(self.tasks[part]) for part in missing),
            )
        self._number = None  # a part that is lost from now on is newer than the checkpoint
        return states

    def send(self, part: int, request: Request) -> None:
        """Send a request, and do not wait: those to the same worker go together."""
        self._weights[part] = request.weights
        self._outgoing[part] = (request,)

    def receive(self) -> tuple[int, Update | WorkerState]:
        """The next answer to come, and whose it is; a WorkerState if its worker died and another one took over."""
        self._waiting |= self._pool.ask("improve", self._outgoing)
        self._outgoing = {}
        while not self._answers:
            self._answers.extend(self._pool.next(self._waiting))
        return self._answers.popleft()

    def evaluate(self, weights: list[np.ndarray], keep: np.ndarray) -> list[Any]:
        """Loss, conjugate and slack of the tasks of every part; a WorkerState in place of them as above."""
        self._weights = list(weights)
        given = {part: (w, float(k)) for part, (w, k) in enumerate(zip(weights, keep, strict=True))}
        return self._pool.gather("evaluate", given)

    def save(self, number: int, kept: list[int]) -> list[Any]:
        """Write a checkpoint: for every part, whether that could be done; a WorkerState as above."""
        return self._pool.gather("save", dict.fromkeys(range(len(self.tasks)), (number, kept)))


class ServerActor:
    """The server, in a process of its own; while it is at work, what it has logged can be fetched by another thread."""

    def __init__(self, level: int, crew: Crew, options: Options, saved: Packed | None, cpus: float):
        self._log, self._cpus, self._level = WorkerLog(level), cpus, level
        self._given = crew, options, saved
        self._training: Training | None = None

    def advance(self, seconds: float) -> tuple[int, float, Result | None]:
        """Go on for about so long."""
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
        """All that is needed to go on from here."""
        return None if self._training is None else self._training.checkpoint(number, kept)

    def records(self) -> list[Record]:
        """What it, and its workers, have logged."""
        return self._log.take()


def worker_class(ray: Any, cpus: float) -> Any:
    """The class of workers. Ray does not start them again: their tasks go to others at once."""
    return ray.remote(num_cpus=cpus, max_restarts=0, scheduling_strategy="SPREAD")(WorkerActor)


class RemoteTraining:
    """Training that runs on the cluster, and goes on with another server if the first one dies."""

    def __init__(self, ray: Any, start: Callable[[Packed | None], Any], checkpoints: Checkpoints):
        self._ray, self._start, self._checkpoints = ray, start, checkpoints
        self.server, self._deaths = start(checkpoints.last), 0
        self._result: Result | None = None

    def _ask(self, name: str, *arguments: Any) -> Any:
        """An answer of the server; None if it has died, and another one has begun."""
        ray, server = self._ray, self.server
        try:
            with causes(ray, but=gone(ray)):
                ref = getattr(server, name).remote(*arguments)
                while not ray.wait([ref], timeout=LOOK)[0]:
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
        """Go on for about so long."""
        rounds, gap, self._result = self._ask("advance", seconds) or (0, 1.0, None)
        return rounds, gap, self._result is not None

    def checkpoint(self, number: int, kept: list[int]) -> Packed | None:
        """All that is needed to go on from here."""
        return self._ask("checkpoint", number, kept)

    def result(self) -> Result:
        """What was learned."""
        assert self._result is not None
        return self._result


@contextmanager
def remote_training(
    engine: Cluster, tasks: Tasks, loss: Any, options: Options, work: dict[str, Any], checkpoints: Checkpoints
) -> Iterator[RemoteTraining]:
    """Training on a cluster, for the time of a ``with``; ``tasks`` say where their rows are."""
    with engine.connect() as ray:
        count = engine.count(ray, len(tasks.members))
        if checkpoints.last is None:
            # Where nobody waits, all parts of a worker answer at once, and so the fewer the better.
            parts = deal(tasks.sizes, count * (PARTS if options.server["kind"] == "synchronous" else 1))
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
            ray.kill(training.server)  # first, or it would send further requests
            try:
                if done or kept is None:
                    refs = [actor.remove_files.remote() for actor in actors]
                    ray.wait(refs, num_returns=len(refs), timeout=5.0)
            finally:
                for actor in actors:
                    ray.kill(actor)
                if done or kept is None:
                    remove_files(folder)  # these and no others: the folder is the user's
