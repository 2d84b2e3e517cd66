"""Ray actors that host parts of some work, any of which may die, and their communication with this process.

Every part is hosted by one actor at a time. When an actor dies, its parts are assigned to the remaining actors, which
begin them anew. Answers come with the log records of the actor, which are logged in this process.
"""

from __future__ import annotations

import logging
import re
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .errors import ClusterError, CoterieError, about

log = logging.getLogger("coterie")

#: A log record of a worker: name of the logger, level, message.
Record = tuple[str, int, str]
#: Ray's messages about a module or name that a worker cannot import.
UNKNOWN = re.compile(r"No module named '([\w.]+)'|ImportError: (.+)")
#: Number of actors of a pool that may die.
MAX_DEATHS = 20
#: Seconds: for a new actor to begin, if no other is left; for an unreachable actor to answer; and before the log says
#: that the cluster is busy.
BEGIN_SECONDS, ANSWER_SECONDS, BUSY_SECONDS = 120.0, 3.0, 20.0

#: Pending answers: the actor's number and the parts of each.
Waiting = dict[Any, tuple[int, list[int]]]


class Host:
    """An actor that hosts parts; a subclass implements ``begin``, and a method for each call."""

    def __init__(self, level: int):
        self._log, self._parts = WorkerLog(level), dict[int, Any]()

    def begin(self, part: int, *given: Any) -> tuple[Any, Any]:
        """Return the object to host for a part, which may be hosted already, and the answer to send back."""
        raise NotImplementedError

    def hosted(self) -> tuple[list[int], list[Record]]:
        """Return the numbers of the hosted parts."""
        return list(self._parts), self._log.take()

    def host(self, part: int, *given: Any) -> tuple[dict[int, Any], list[Record]]:
        """Host a part."""
        self._parts[part], answer = self.begin(part, *given)
        return {part: answer}, self._log.take()

    def call(self, name: str, given: Mapping[int, tuple[Any, ...]]) -> tuple[dict[int, Any], list[Record]]:
        """Return the answers of a method for some parts, each with arguments of its own."""
        return {part: getattr(self, name)(part, *arguments) for part, arguments in given.items()}, self._log.take()


class Pool:
    """Actors and the parts that each of them hosts; the largest parts are assigned first.

    ``sizes`` are the sizes of the parts, and ``counts`` their numbers of `units`, for messages. ``given(part)`` are the
    arguments of :meth:`Host.begin`. ``start`` starts another actor when none is left; without ``start``, a ClusterError
    is raised.
    """

    def __init__(
        self,
        ray: Any,
        actors: Sequence[Any],
        sizes: Sequence[int],
        counts: Sequence[int],
        given: Callable[[int], tuple[Any, ...]],
        units: str,
        start: Callable[[], Any] | None = None,
    ):
        self.ray, self.deaths, self._begun = ray, 0, len(actors)
        self._sizes, self._counts, self._given, self._units, self._start = sizes, counts, given, units, start
        self._alive: dict[int, Any] = dict(enumerate(actors))
        self._home: dict[int, int] = {}  # the actor of each part
        self._hosting: dict[int, Any] = {}  # parts that an actor has just been asked to host

    def settle(self) -> list[Any]:
        """Assign all parts, first to actors that host them already; return the answers of :meth:`Host.begin`."""
        asked = {actor.hosted.remote(): k for k, actor in self._alive.items()}
        await_all(self.ray, list(asked), "worker(s)")
        hosted: dict[int, int] = {}
        for reference, k in asked.items():
            hosted |= dict.fromkeys(self._fetch(reference, k) or [], k)
        for part, k in hosted.items():
            if k in self._alive:
                self._host(part, k)
        self._deal([part for part in range(len(self._sizes)) if part not in self._home])
        return self.gather("", dict.fromkeys(range(len(self._sizes)), ()))

    def ask(self, name: str, given: Mapping[int, tuple[Any, ...]]) -> Waiting:
        """Call the method `name` for some parts, each with arguments of its own, with one call for each actor.

        A part that an actor has just been asked to host is not called: the answer of :meth:`Host.begin` is used.
        """
        waiting: Waiting = {}
        calls: dict[int, dict[int, tuple[Any, ...]]] = {}
        for part, arguments in given.items():
            if part in self._hosting:
                self._await_host(part, waiting)
            else:
                calls.setdefault(self._home[part], {})[part] = arguments
        for k, each in calls.items():
            waiting[self._alive[k].call.remote(name, each)] = (k, list(each))
        return waiting

    def next(self, waiting: Waiting) -> list[tuple[int, Any]]:
        """Return the next answers, with their parts; none if the actor died, and its parts are begun anew."""
        [reference], _ = self.ray.wait(list(waiting), num_returns=1)
        k, parts = waiting.pop(reference)
        found = self._fetch(reference, k)
        if found is not None:
            return list(found.items())
        for part in parts:  # another actor hosts them now
            self._await_host(part, waiting)
        return []

    def gather(self, name: str, given: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        """Return the answers for some parts, in the order of `given`."""
        waiting, answers = self.ask(name, given), dict[int, Any]()
        while waiting:
            answers |= dict(self.next(waiting))
        return [answers[part] for part in given]

    def _await_host(self, part: int, waiting: Waiting) -> None:
        waiting[self._hosting.pop(part)] = (self._home[part], [part])

    def _fetch(self, reference: Any, k: int) -> Any:
        """Return an answer; None if the actor has died, after its parts have been assigned to others."""
        try:
            with causes(self.ray, but=gone(self.ray)):
                answer, records = self.ray.get(reference)
            replay(records)
            return answer
        except gone(self.ray) as error:
            if k in self._alive:
                death = death_of(self.ray, self._alive[k], self._alive[k].hosted, error)
                if death is not None:
                    self._bury(k, death)
                else:  # the actor was unreachable for a while, and its state is unknown
                    for part in [part for part, home in self._home.items() if home == k]:
                        self._host(part, k)
            return None

    def _bury(self, k: int, reason: str) -> None:
        """Assign the parts of an actor that has died to others."""
        del self._alive[k]
        self.deaths += 1
        parts = [part for part, home in self._home.items() if home == k]
        count = sum(self._counts[part] for part in parts)
        if self.deaths > MAX_DEATHS:
            raise ClusterError(f"{self.deaths} workers have died, which is too many; the last one: {reason}")
        if self._alive:
            goes = f"its {count} {self._units} go to" if count else f"it had no {self._units} yet, they go to"
            log.warning("a worker died: %s; %s the %d left", reason, goes, len(self._alive))
        elif self._start is None:
            raise ClusterError(f"all workers died; the last of them held {count} {self._units}: {reason}")
        else:
            log.warning(
                "a worker died, and none is left: %s; another one begins, for %d %s", reason, count, self._units
            )
            self._alive[self._begun] = self._another(reason)
            self._begun += 1
        self._deal(parts)

    def _another(self, reason: str) -> Any:
        assert self._start is not None
        actor = self._start()
        ready, _ = self.ray.wait([actor.hosted.remote()], timeout=BEGIN_SECONDS)
        if not ready:
            raise ClusterError(
                f"all workers have died, and for {BEGIN_SECONDS:g} s there was no room for another one; the last one: "
                f"{reason}"
            )
        return actor

    def _deal(self, parts: list[int]) -> None:
        """Assign each part to the actor with the smallest load."""
        load = dict.fromkeys(self._alive, 0)
        for part in self._home.keys() - parts:
            load[self._home[part]] += self._sizes[part]
        for part in sorted(parts, key=lambda part: -self._sizes[part]):
            k = min(load, key=lambda k: load[k])
            load[k] += self._sizes[part]
            self._host(part, k)

    def _host(self, part: int, k: int) -> None:
        self._home[part] = k
        self._hosting[part] = self._alive[k].host.remote(part, *self._given(part))


def await_all(ray: Any, references: list[Any], units: str) -> None:
    """Wait for all answers for a while, and log a warning if they take longer."""
    _, missing = ray.wait(references, num_returns=len(references), timeout=BUSY_SECONDS)
    if missing:
        log.warning("waiting for %d %s: the cluster is busy", len(missing), units)


# -- what was logged there --------------------------------------------------------------------------------------------


class WorkerLog(logging.Handler):
    """Collects the log records of coterie in a worker, from a level on."""

    def __init__(self, level: int = logging.WARNING):
        super().__init__(level)
        self._records: list[Record] = []
        log.setLevel(level)
        log.propagate = False  # otherwise records would be printed on the worker's machine
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Store one record."""
        self._records.append((record.name, record.levelno, record.getMessage()))

    def take(self) -> list[Record]:
        """Return the records logged since the last call."""
        records, self._records = self._records, []
        return records


def replay(records: Iterable[Record]) -> None:
    """Log the records of a worker in this process."""
    for name, level, message in records:
        logging.getLogger(name).log(level, "%s", message)


# -- what goes wrong there --------------------------------------------------------------------------------------------


@contextmanager
def causes(ray: Any, what: str = "", but: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
    """Raise a CoterieError of a worker as it is, and any other error as a ClusterError, except the types `but`.

    The message begins with `what`, if given.
    """
    try:
        yield
    except but:
        raise
    except ray.exceptions.RayTaskError as error:
        cause: Any = error.cause  # not the error itself: Ray makes it an instance of the class of its cause
        while cause is not None and not isinstance(cause, CoterieError):
            cause = getattr(cause, "cause", None)
        if cause is not None:
            raise about(cause, what) from None
        if found := UNKNOWN.search(str(error.cause)):
            raise ClusterError(
                f"workers cannot import {found[1] or found[2]}: install the same packages on all machines, for the "
                "Python that Ray was started with; a module of your own must be on its PYTHONPATH when it is started"
            ) from error
        raise about(ClusterError(f"a worker failed: {type(error.cause).__name__}: {error.cause}"), what) from error
    except ray.exceptions.RayError as error:
        raise about(ClusterError(f"the cluster failed: {error}{_logs(ray)}"), what) from error


def reason_of(error: BaseException) -> str:
    """Return Ray's reason for the death of a worker, in one line."""
    text = " ".join(str(getattr(error, "error_msg", None) or error).split())
    text = re.sub(r"(class_name|actor_id|pid|namespace|ip): \S+|The actor is dead because|actor [0-9a-f]{32}", "", text)
    text = " ".join(text.split()).partition("Some common causes")[0]
    return textwrap.shorten(text, 300, placeholder=" ...").strip(" .:") or type(error).__name__


def _logs(ray: Any) -> str:
    """Return a hint at the folder with the output of workers, if it is known."""
    try:
        folder = ray._private.worker._global_node.get_logs_dir_path()
    except AttributeError:  # connected from outside, or another version of Ray
        return ""
    return f" (Ray keeps what workers print in {folder} of the machine they were on: worker-*.err)"


def gone(ray: Any) -> tuple[type[BaseException], ...]:
    """Return the exceptions that Ray raises when an actor, or the machine with its answer, has died."""
    return ray.exceptions.RayActorError, ray.exceptions.ObjectLostError


def death_of(ray: Any, actor: Any, call: Any, error: BaseException) -> str | None:
    """Return the reason for an actor's death, in one line; None if the actor answers again."""
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
    ray.kill(actor)  # the actor may still live, and another actor takes over its work
    if isinstance(error, silent):
        return f"it cannot be reached any more, not within {ANSWER_SECONDS:g} s"
    return reason_of(error)
