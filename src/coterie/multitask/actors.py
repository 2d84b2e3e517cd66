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
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..data.sources.survey import deal
from ..engines.cluster import Cluster, Record, WorkerLog, causes, reason_of, replay
from ..errors import ClusterError
from .checkpoints import Checkpoints, Packed, Parts, remove_files
from .sources import Tasks
from .training import Options, Result, Training
from .worker import Request, Update, Worker, WorkerState

log = logging.getLogger("coterie")

#: Parts of the tasks for each worker, so that those of a dead one can be dealt out evenly.
PARTS = 4
#: How many workers, or servers, may die in one run.
MAX_DEATHS = 20
#: Seconds in which a worker must begin, if there is none left; and in which one that was out of reach must answer.
BEGIN_SECONDS, ANSWER_SECONDS = 120.0, 3.0
#: Seconds between two looks at what the server has logged, while it is at work; and after which to say that it waits.
LOOK, WAIT = 0.5, 20.0


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


class WorkerActor:
    """A worker in a process of its own, which hosts some parts of the tasks."""

    def __init__(self, level: int):
        self._log, self._parts = WorkerLog(level), dict[int, Worker]()
        self._files: Parts | None = None

    def hosted(self) -> tuple[list[int], list[Record]]:
        """Which parts it hosts."""
        return list(self._parts), self._log.take()

    def host(
        self, part: int, numbers: np.ndarray, shipment: Shipment, number: int | None, weights: np.ndarray | None
    ) -> tuple[dict[int, WorkerState], list[Record]]:
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
        self._parts[part] = worker
        return {part: worker.state()}, self._log.take()

    def improve(self, requests: dict[int, Request]) -> tuple[dict[int, Update], list[Record]]:
        """One round of some parts. What they know is written first: what was answered is never lost."""
        assert self._files is not None
        updates = {}
        for part, request in requests.items():
            worker = self._parts[part]
            updates[part] = worker.improve(request)
            self._files.save(part, None, [], {"dual": worker.dual})
        return updates, self._log.take()

    def evaluate(self, given: dict[int, tuple[np.ndarray, float]]) -> tuple[dict[int, np.ndarray], list[Record]]:
        """Loss, conjugate and slack of the tasks of some parts."""
        return {part: self._parts[part].evaluate(*each) for part, each in given.items()}, self._log.take()

    def save(self, given: dict[int, tuple[int, list[int]]]) -> tuple[dict[int, bool], list[Record]]:
        """Write some parts into the checkpoint of a number, and keep those of others. Whether that could be done."""
        assert self._files is not None
        saved = {part: self._files.save(part, *each, self._parts[part].pack()) for part, each in given.items()}
        return saved, self._log.take()

    def states(self, parts: Sequence[int]) -> tuple[dict[int, WorkerState], list[Record]]:
        """The states of some parts."""
        return {part: self._parts[part].state() for part in parts}, self._log.take()

    def remove_files(self) -> None:
        """Remove what it has written."""
        if self._files is not None:
            remove_files(self._files.folder)


class RayWorkers:
    """Workers that are Ray actors. ``start`` starts another one, for when none is left.

    ``number`` is that of the checkpoint to begin with, and ``weights`` are those of all tasks then.
    """

    def __init__(
        self, crew: Crew, start: Callable[[], Any], number: int | None = None, weights: np.ndarray | None = None
    ):
        tasks, self._shipment, self._start, self.deaths = crew.tasks, crew.shipment, start, 0
        self.tasks, self._rows = tasks, [int(crew.rows[each].sum()) for each in tasks]
        self._alive: dict[int, Any] = dict(enumerate(crew.actors))
        self._home: dict[int, int] = {}  # the worker of each part
        self._weights: list[np.ndarray | None] = [None if weights is None else weights[each] for each in tasks]
        self._number = number
        self._adopted: dict[int, Any] = {}  # parts that a worker has just been asked to host
        self._outgoing: dict[int, dict[int, Request]] = {}
        self._pending: dict[Any, tuple[int, list[int]]] = {}  # whose answer it is, and of which parts
        self._answers: deque[tuple[int, Any]] = deque()

    # -- what the server asks for ----------------------------------------------------------------------------------

    def states(self) -> list[WorkerState]:
        """The state of every part; they are dealt out first, to workers that host them already if there are any."""
        asked = {actor.hosted.remote(): worker for worker, actor in self._alive.items()}
        hosted: dict[int, int] = {}
        late = time.monotonic() + WAIT
        while asked:
            import ray

            ready, _ = ray.wait(list(asked), num_returns=1, timeout=WAIT)
            if not ready:
                if late < time.monotonic():
                    log.warning("waiting for %d worker(s): the cluster is busy", len(asked))
                    late = float("inf")
                continue
            worker = asked.pop(ready[0])
            found = self._fetch(ready[0], worker)
            hosted |= dict.fromkeys(found or [], worker)
        self._deal([part for part in hosted if hosted[part] in self._alive], hosted)
        self._deal([part for part in range(len(self.tasks)) if part not in self._home])
        states = self._gather({})
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
        if part in self._adopted:  # its worker died while it had nothing to do: the server has to know its state
            self._pending[self._adopted.pop(part)] = (self._home[part], [part])
        else:
            self._outgoing.setdefault(self._home[part], {})[part] = request

    def receive(self) -> tuple[int, Update | WorkerState]:
        """The next answer to come, and whose it is; a WorkerState if its worker died and another one took over."""
        for worker, requests in self._outgoing.items():
            self._pending[self._alive[worker].improve.remote(requests)] = (worker, list(requests))
        self._outgoing = {}
        while not self._answers:
            self._answers.extend(self._next(self._pending))
        return self._answers.popleft()

    def evaluate(self, weights: list[np.ndarray], keep: np.ndarray) -> list[Any]:
        """Loss, conjugate and slack of the tasks of every part; a WorkerState in place of them as above."""
        self._weights = list(weights)
        given = {part: (w, float(k)) for part, (w, k) in enumerate(zip(weights, keep, strict=True))}
        return self._gather(given, "evaluate")

    def save(self, number: int, kept: list[int]) -> list[Any]:
        """Write a checkpoint: for every part, whether that could be done; a WorkerState as above."""
        return self._gather(dict.fromkeys(range(len(self.tasks)), (number, kept)), "save")

    # -- calls, and who dies ---------------------------------------------------------------------------------------

    def _gather(self, given: dict[int, Any], name: str = "") -> list[Any]:
        """The answers of all parts to one call; the states of those that are just being taken over."""
        waiting = {ref: (self._home[part], [part]) for part, ref in self._adopted.items()}
        calls: dict[int, dict[int, Any]] = {}
        for part, each in given.items():
            if part not in self._adopted:
                calls.setdefault(self._home[part], {})[part] = each
        self._adopted = {}
        for worker, arguments in calls.items():
            waiting[getattr(self._alive[worker], name).remote(arguments)] = (worker, list(arguments))
        answers: dict[int, Any] = {}
        while waiting:
            answers |= dict(self._next(waiting))
        return [answers[part] for part in range(len(self.tasks))]

    def _next(self, waiting: dict[Any, tuple[int, list[int]]]) -> list[tuple[int, Any]]:
        """The next answers to come, of parts whose calls are waiting; none if a worker died instead."""
        import ray

        [ref], _ = ray.wait(list(waiting), num_returns=1)
        worker, parts = waiting.pop(ref)
        found = self._fetch(ref, worker)
        if found is not None:
            return list(found.items())
        for part in parts:  # they are somewhere else now
            waiting[self._adopted.pop(part)] = (self._home[part], [part])
        return []

    def _fetch(self, ref: Any, worker: int) -> Any:
        """An answer; None if the worker has died, after its parts have been dealt out."""
        import ray

        try:
            with causes(ray, but=gone(ray)):
                answer, records = ray.get(ref)
            replay(records)
            return answer
        except gone(ray) as error:
            if worker in self._alive:
                death = death_of(ray, self._alive[worker], self._alive[worker].hosted, error)
                if death is not None:
                    self._bury(worker, death)
                else:  # it was out of reach for a while: nobody knows what it has done since
                    for part in [part for part, home in self._home.items() if home == worker]:
                        self._host(part, worker)
            return None

    def _bury(self, worker: int, reason: str) -> None:
        """Deal out the parts of a worker that has died."""
        del self._alive[worker]
        self.deaths += 1
        parts = [part for part, home in self._home.items() if home == worker]
        count = sum(len(self.tasks[part]) for part in parts)
        if self.deaths > MAX_DEATHS:
            raise ClusterError(f"{self.deaths} workers have died, which is too many; the last one: {reason}")
        if self._alive:
            goes = f"its {count} task(s) go to" if count else "it had no tasks yet, they go to"
            log.warning("a worker died: %s; %s the %d left", reason, goes, len(self._alive))
        else:
            log.warning("a worker died, and none is left: %s; another one begins, for %d task(s)", reason, count)
            self._alive[max(self._home.values(), default=0) + self.deaths + 1] = self._begin(reason)
        self._deal(parts)

    def _begin(self, reason: str) -> Any:
        import ray

        actor = self._start()
        ready, _ = ray.wait([actor.hosted.remote()], timeout=BEGIN_SECONDS)
        if not ready:
            raise ClusterError(
                f"all workers have died, and for {BEGIN_SECONDS:g} s there was no room for another one; the last one: "
                f"{reason}"
            )
        return actor

    def _deal(self, parts: list[int], hosted: dict[int, int] | None = None) -> None:
        """Give each part to the worker with the fewest rows, the largest first; or to the one that hosts it."""
        load = dict.fromkeys(self._alive, 0)
        moving = set(parts)
        for part, home in self._home.items():
            if part not in moving and home in load:
                load[home] += self._rows[part]
        for part in sorted(parts, key=lambda part: -self._rows[part]):
            worker = min(load, key=lambda worker: load[worker]) if hosted is None else hosted[part]
            load[worker] += self._rows[part]
            self._host(part, worker)

    def _host(self, part: int, worker: int) -> None:
        self._home[part] = worker
        given = self.tasks[part], self._shipment, self._number, self._weights[part]
        self._adopted[part] = self._alive[worker].host.remote(part, *given)


def gone(ray: Any) -> tuple[type[BaseException], ...]:
    """What Ray raises when an actor has died, or the machine on which its answer was."""
    return ray.exceptions.RayActorError, ray.exceptions.ObjectLostError


def death_of(ray: Any, actor: Any, call: Any, error: BaseException) -> str | None:
    """Why an actor died, in one line; None if it was only out of reach for a while, and answers a call again."""
    until = time.monotonic() + ANSWER_SECONDS
    silent = (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError)
    while isinstance(error, silent):
        try:
            ray.get(call.remote(), timeout=ANSWER_SECONDS)
            return None
        except ray.exceptions.RayError as later:  # by now Ray may know more
            error = later
        if time.monotonic() > until:
            break
        time.sleep(0.2)
    ray.kill(actor)  # if it lives after all: what it would still write, another one is going to write
    if isinstance(error, silent):
        return f"it cannot be reached any more, not within {ANSWER_SECONDS:g} s"
    return reason_of(error)


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
