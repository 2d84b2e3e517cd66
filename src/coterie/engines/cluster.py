"""Where to run on many machines: a Ray cluster, or the Ray of this one."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from .._checks import integer, positive
from .._version import __version__
from .._workers import Record, WorkerLog, causes, replay
from ..errors import ClusterError, MissingExtra, ParameterError

log = logging.getLogger("coterie")

Item = TypeVar("Item")
Result = TypeVar("Result")
#: A Python warning of a worker: category, message, file, line.
Warned = tuple[type[Warning], str, str, int]

#: What keeps newer versions of Ray from connecting, without saying so.
TOKEN = "RAY_AUTH_MODE and RAY_AUTH_TOKEN must be the same here as where it was started"
#: Words of errors when connecting, and what to do about them; where there are none, it is likely the token.
HINTS = {
    "Version mismatch": "install the same Ray and Python here as there",
    "Invalid address": 'say host and port, such as "10.0.0.1:6379", or "auto"',
    "ray[client]": "an address with ray:// needs it",
    "refused": "nothing listens there: is it started, and the port the one of ray start --port?",
    "timed out": "nothing answers: is the port open to this machine?",
}
#: Seconds in which a cluster must answer.
PREAUTH = 10.0
#: Tasks that are asked for before the first of them is done, for each one that the cluster can run at a time.
AHEAD = 2
#: Where a failed task's log records and warnings travel: an attribute of its error.
SAID = "_coterie_said"

#: Whether this is a task of :meth:`Cluster.map`.
_in_task: ContextVar[bool] = ContextVar("coterie_in_task", default=False)


@dataclass(frozen=True)
class Cluster:
    """A cluster of machines, for ``engine=``: the work runs there as Ray actors and tasks.

    Needs the extra ``ray``. The workers import coterie, and the modules that your own rules are from: both must be
    installed there.

    Parameters
    ----------
    address : str, optional
        Of a running cluster: ``"10.0.0.1:6379"``, ``"auto"`` for the one that this machine belongs to, or
        ``"ray://10.0.0.1:10001"`` from a machine outside it (this needs ``ray[client]``). Default: the Ray that this
        process is connected to already; if there is none, one is started on this machine and ended with the call.
    shards : int, optional
        How many workers, or tasks at a time. Default: one for each CPU of the cluster; never more than there are agents
        or tasks.
    cpus : float
        CPUs that each shard reserves for the time of the call. Other work on the cluster has to wait when all are
        reserved: less than 1 leaves some free.
    folder : path, optional
        Where workers of relationship learning keep what they know. Default: a temporary folder on each machine. One
        that all machines see lets another worker go on from there.

    Examples
    --------
    Two shards on this machine::

        run = ct.simulate(problem, "cd", wakes=10_000, engine=ct.Cluster(shards=2))

    >>> import coterie as ct
    >>> ct.Cluster("10.0.0.1:6379", shards=8).shards
    8
    """

    address: str | None = None
    shards: int | None = None
    cpus: float = 1.0
    folder: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if not (self.address is None or (isinstance(self.address, str) and self.address.strip())):
            raise ParameterError(
                f'Cluster(address={self.address!r}): address must be a text such as "10.0.0.1:6379" or "auto", or None'
            )
        if self.shards is not None:
            integer("Cluster: shards", self.shards)
        if positive("Cluster: cpus", self.cpus) > 1 and not float(self.cpus).is_integer():
            raise ParameterError(f"Cluster(cpus={self.cpus!r}): above 1, cpus must be a whole number")
        if not (self.folder is None or (isinstance(self.folder, str | os.PathLike) and os.fspath(self.folder))):
            raise ParameterError(f"Cluster(folder={self.folder!r}): folder must be a path, or None")

    @contextmanager
    def connect(self) -> Iterator[Any]:
        """Be connected to the cluster, for the time of a ``with``.

        A connection that was there before is used, whatever the address, and left as it is.

        Yields
        ------
        module
            ``ray``, ready for use.
        """
        if _in_task.get():
            raise ParameterError(
                "engine=ct.Cluster(...) inside a task of engine=ct.Cluster(...): the inner one could wait for ever for "
                "CPUs that the outer one holds; leave engine out of one of them"
            )
        # Read when Ray is imported: nobody is told about this run unless the user has said so.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            raise MissingExtra("engine=ct.Cluster(...) needs Ray: pip install 'coterie[ray]'") from error
        if ray.is_initialized():
            yield ray
            return
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        try:
            try:
                if self.address is None:
                    # Ray's workers are nice to others by default; on a busy machine they would hardly ever begin.
                    os.environ.setdefault("RAY_worker_niceness", "0")
                    # Not None: that would also look for a cluster that somebody else has left running.
                    ray.init(address="local", include_dashboard=False, **quiet)
                else:
                    _preauth(self.address)
                    ray.init(address=self.address, **quiet)
            except Exception as error:
                what = "start Ray on this machine" if self.address is None else f"reach a cluster at {self.address!r}"
                hint = next((hint for words, hint in HINTS.items() if words in str(error)), f"if it is up: {TOKEN}")
                raise ClusterError(f"cannot {what}: {error}" + (f" ({hint})" if self.address else "")) from error
            yield ray
        finally:
            ray.shutdown()  # ends what was started above; of a cluster, only the connection

    def count(self, ray: Any, most: int) -> int:
        """How many shards to start.

        Parameters
        ----------
        ray : module
            As :meth:`connect` gives it.
        most : int
            How many agents or tasks there are.

        Returns
        -------
        int
            At least 1.
        """
        sizes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
        # A shard is on one machine: what is left on two of them does not add up. Ray counts in parts of 1/10,000.
        room = sum(int((size + 1e-6) // self.cpus) for size in sizes)
        if self.shards is None:
            wanted = max(1, min(most, int(sum(sizes)), room))
        else:
            wanted = min(int(self.shards), max(1, most))
        if wanted > room:
            raise ClusterError(
                f"{wanted} shard(s) of {self.cpus:g} CPU(s) each do not fit: the cluster has "
                f"{sum(sizes):g} CPU(s) on {len(sizes)} machine(s), room for {room}; ask for fewer shards, or "
                "smaller cpus"
            )
        return wanted

    def map(
        self,
        ray: Any,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        progress: Callable[[int, int], None] | None = None,
        name: Callable[[Item], str] | None = None,
    ) -> Generator[Result, None, None]:
        """``function(item)`` for every item, as plain Ray tasks, in the order of the items.

        The function is stored on the cluster once, with all that it holds: rows belong in there, not in items. Each
        task reserves ``cpus``, and Ray runs it again if its worker or machine dies; at most ``shards`` of them run at a
        time. Whatever ends the iteration cancels what is still running: close it, as ``contextlib.closing`` does.

        An error of ours comes out as it was, any other one as a ClusterError, and the first item's first, whichever
        was the first to fail. What tasks log is logged here, and what they warn of is a warning here, once.

        Parameters
        ----------
        ray : module
            As :meth:`connect` gives it.
        function : callable
            Of one item.
        items : iterable
        progress : callable, optional
            Called with (items done, items in all).
        name : callable, optional
            What to call an item in an error.

        Yields
        ------
        object
            What the function returned.
        """
        items, told, done, turn = list(items), _Told(), {}, 0
        with closing(self._finished(ray, function, items, progress)) as finished:
            for place, reference in finished:
                done[place] = reference
                while turn in done:
                    yield told.get(ray, done.pop(turn), items[turn], name)
                    turn += 1

    def as_completed(
        self,
        ray: Any,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        progress: Callable[[int, int], None] | None = None,
        name: Callable[[Item], str] | None = None,
    ) -> Generator[tuple[int, Result], None, None]:
        """As :meth:`map`, but each as soon as it is done, with its place among the items.

        Parameters
        ----------
        ray, function, items, progress, name
            As in :meth:`map`.

        Yields
        ------
        (int, object)
            The place, from 0, and what the function returned.
        """
        items, told = list(items), _Told()
        with closing(self._finished(ray, function, items, progress)) as finished:
            for place, reference in finished:
                yield place, told.get(ray, reference, items[place], name)

    def _finished(
        self, ray: Any, function: Any, items: list[Any], progress: Callable[[int, int], None] | None
    ) -> Generator[tuple[int, Any], None, None]:
        """Places and references of tasks as they end, well or not."""
        if not items:
            return
        limit = self.count(ray, len(items)) * (AHEAD if self.shards is None else 1)
        task = ray.remote(num_cpus=self.cpus, max_retries=3)(_recorded)
        try:
            function = ray.put(function)
        except ray.exceptions.RayError:
            raise
        except Exception as error:  # whatever its parts raise when they are copied
            raise ParameterError(f"what is to run on the cluster cannot be sent there: {error}") from error
        level, at, done = log.getEffectiveLevel(), 0, 0
        running: dict[Any, int] = {}
        try:
            while at < len(items) or running:
                while at < len(items) and len(running) < limit:
                    running[task.remote(function, items[at], level, __version__)] = at
                    at += 1
                [reference], _ = ray.wait(list(running), num_returns=1)
                place = running.pop(reference)
                done += 1
                if progress is not None:
                    progress(done, len(items))
                yield place, reference
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


def check_cluster(engine: Any, **others: Any) -> None:
    """Refuse an engine that is none, and what does not go with one."""
    if engine is not None and not isinstance(engine, Cluster):
        raise ParameterError(f"engine={engine!r} must be a ct.Cluster, or None for this process")
    for name, value in others.items():
        if engine is not None and value is not None:
            raise ParameterError(
                f"{name}={value!r} does not go with engine=ct.Cluster(...), whose shards say how much runs at a time: "
                "leave one of them out"
            )


def check_importable(*rules: Any) -> None:
    """Refuse rules of a script: what is compiled for a class is not found again by a worker that gets a copy of it."""
    for rule in rules:
        if type(rule).__module__ == "__main__":
            raise ParameterError(
                f"engine=ct.Cluster(...): workers cannot import {type(rule).__name__} from a script; "
                "move it to a module"
            )
        if isinstance(rule, tuple):
            check_importable(*rule)  # a method may wrap another


def _recorded(
    function: Callable[[Any], Any], item: Any, level: int, version: str
) -> tuple[Any, list[Record], list[Warned]]:
    """What a function returns, logs and warns of."""
    if version != __version__:
        raise ClusterError(
            f"the worker on {socket.gethostname()} has coterie {__version__}, and this process {version}: install the "
            "same on all machines"
        )
    worker_log, outside = WorkerLog(level), _in_task.set(True)
    warned: dict[Warned, None] = {}  # in order, each once

    def keep(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        warned[category, str(message), filename, lineno] = None

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")  # the filters that count are those of the process that asked
            warnings.showwarning = keep
            return function(item), worker_log.take(), list(warned)
    except Exception as error:
        setattr(error, SAID, (worker_log.take(), list(warned)))
        raise
    finally:
        _in_task.reset(outside)
        log.removeHandler(worker_log)


class _Told:
    """Results of tasks; what tasks say on the way is said here, a warning only once."""

    def __init__(self) -> None:
        self._warned: set[Warned] = set()

    def get(self, ray: Any, reference: Any, item: Any, name: Callable[[Any], str] | None) -> Any:
        """What a task returned, or its error."""
        with causes(ray, "" if name is None else name(item)):
            try:
                result, records, warned = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                self._say(*getattr(error.cause, SAID, ((), ())))
                raise
        self._say(records, warned)
        return result

    def _say(self, records: Iterable[Record], warned: Iterable[Warned]) -> None:
        replay(records)
        for category, text, filename, lineno in warned:
            if (category, text, filename, lineno) not in self._warned:
                self._warned.add((category, text, filename, lineno))
                warnings.warn_explicit(text, category, filename, lineno)


def _preauth(address: str) -> None:
    """Raise if nobody answers: Ray itself goes on trying for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=PREAUTH).close()
