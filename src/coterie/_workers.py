"""Ray actors that host parts of some work, of which any may die; and what passes between them and this process.

A part is on one actor at a time. When an actor dies, its parts are dealt out to those that are left, each of which
begins it anew from what it is told. Answers come with what was logged on the way, which is logged here.
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

#: What a worker has logged: name of the logger, level, message.
Record = tuple[str, int, str]
#: Ray's words for what a worker does not find.
UNKNOWN = re.compile(r"No module named '([\w.]+)'|ImportError: (.+)")
#: How many actors of a pool may die.
MAX_DEATHS = 20
#: Seconds in which an actor must begin, if there is none left; in which one that was out of reach must answer; and
#: after which to say that the cluster is busy.
BEGIN_SECONDS, ANSWER_SECONDS, WAIT = 120.0, 3.0, 20.0

#: Answers that have not come yet: of which actor, and about which parts.
Waiting = dict[Any, tuple[int, list[int]]]


class Host:
    """An actor that hosts parts: a subclass says how to ``begin`` one, and has a method for whatever is asked of it."""

    def __init__(self, level: int):
        self._log, self._parts = WorkerLog(level), dict[int, Any]()

    def begin(self, part: int, *given: Any) -> tuple[Any, Any]:
        """What it hosts as this part, which it may host already, and what it answers."""
        raise NotImplementedError

    def hosted(self) -> tuple[list[int], list[Record]]:
        """Which parts it hosts."""
        return list(self._parts), self._log.take()

    def host(self, part: int, *given: Any) -> tuple[dict[int, Any], list[Record]]:
        """Host a part."""
        self._parts[part], answer = self.begin(part, *given)
        return {part: answer}, self._log.take()

    def call(self, name: str, given: Mapping[int, tuple[Any, ...]]) -> tuple[dict[int, Any], list[Record]]:
        """What a method answers about some parts, each with arguments of its own."""
        return {part: getattr(self, name)(part, *arguments) for part, arguments in given.items()}, self._log.take()


class Pool:
    """Actors, and the parts that each of them hosts; the largest parts are dealt out first.

    ``sizes`` are those of the parts, and ``counts`` how many `units` each of them is, for messages. ``given(part)`` are
    the arguments of :meth:`Host.begin`. ``start`` starts another actor when none is left; without it, that is the end.
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
        """Deal out all parts, first to actors that host them already. What each answers as it begins."""
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
        """Ask about some parts, each with arguments of its own: one call for each actor.

        A part that another actor has just been asked to host is not asked: what that one answers as it begins will do.
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
        """The next answers to come, with their parts; none if an actor died instead, and its parts are begun anew."""
        [reference], _ = self.ray.wait(list(waiting), num_returns=1)
        k, parts = waiting.pop(reference)
        found = self._fetch(reference, k)
        if found is not None:
            return list(found.items())
        for part in parts:  # they are somewhere else now
            self._await_host(part, waiting)
        return []

    def gather(self, name: str, given: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        """Answers about some parts, in their order here."""
        waiting, answers = self.ask(name, given), dict[int, Any]()
        while waiting:
            answers |= dict(self.next(waiting))
        return [answers[part] for part in given]

    def _await_host(self, part: int, waiting: Waiting) -> None:
        waiting[self._hosting.pop(part)] = (self._home[part], [part])

    def _fetch(self, reference: Any, k: int) -> Any:
        """An answer; None if the actor has died, after its parts have been dealt out."""
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
                else:  # it was out of reach for a while: nobody knows what it has done since
                    for part in [part for part, home in self._home.items() if home == k]:
                        self._host(part, k)
            return None

    def _bury(self, k: int, reason: str) -> None:
        """Deal out the parts of an actor that has died."""
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
        """Give each part to the actor with the least to do."""
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
    """Wait a while for all answers, and say so if they take longer."""
    _, missing = ray.wait(references, num_returns=len(references), timeout=WAIT)
    if missing:
        log.warning("waiting for %d %s: the cluster is busy", len(missing), units)


# -- what was logged there --------------------------------------------------------------------------------------------


class WorkerLog(logging.Handler):
    """Keeps what coterie logs in a worker, from a level on, until it is taken."""

    def __init__(self, level: int = logging.WARNING):
        super().__init__(level)
        self._records: list[Record] = []
        log.setLevel(level)
        log.propagate = False  # or it would be printed on the worker, where nobody looks
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record."""
        self._records.append((record.name, record.levelno, record.getMessage()))

    def take(self) -> list[Record]:
        """What was logged since the last time."""
        records, self._records = self._records, []
        return records


def replay(records: Iterable[Record]) -> None:
    """Log here what a worker has logged."""
    for name, level, message in records:
        logging.getLogger(name).log(level, "%s", message)


# -- what goes wrong there --------------------------------------------------------------------------------------------


@contextmanager
def causes(ray: Any, what: str = "", but: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
    """Let an error of ours come out of Ray as it was raised, and any other one as a ClusterError, ``but`` for some.

    Its message begins with `what`, if there are several things it could be about.
    """
    try:
        yield
    except but:
        raise
    except ray.exceptions.RayTaskError as error:
        cause: Any = error.cause  # not the error itself, which Ray makes an instance of its cause's class, too
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
    """Why a worker died, as far as Ray knows, in one line."""
    text = " ".join(str(getattr(error, "error_msg", None) or error).split())
    text = re.sub(r"(class_name|actor_id|pid|namespace|ip): \S+|The actor is dead because|actor [0-9a-f]{32}", "", text)
    text = " ".join(text.split()).partition("Some common causes")[0]
    return textwrap.shorten(text, 300, placeholder=" ...").strip(" .:") or type(error).__name__


def _logs(ray: Any) -> str:
    """Where to look for what a worker has said last, if it is known."""
    try:
        folder = ray._private.worker._global_node.get_logs_dir_path()
    except AttributeError:  # connected from outside, or another version of Ray
        return ""
    return f" (Ray keeps what workers print in {folder} of the machine they were on: worker-*.err)"


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
    ray.kill(actor)  # if it lives after all: what it would still do, another one is going to do
    if isinstance(error, silent):
        return f"it cannot be reached any more, not within {ANSWER_SECONDS:g} s"
    return reason_of(error)
