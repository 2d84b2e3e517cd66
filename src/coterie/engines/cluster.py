"""Run on many machines: a Ray cluster, or Ray on this machine."""

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

#: Advice for a failed connection: newer versions of Ray do not say that a token is missing.
TOKEN = "RAY_AUTH_MODE and RAY_AUTH_TOKEN must be those with which the cluster was started"
#: Words in error messages of a failed connection, with advice; the default advice is about the token.
HINTS = {
    "Version mismatch": "install the versions of Ray and Python that the cluster has",
    "Invalid address": 'pass host and port, such as "10.0.0.1:6379", or "auto"',
    "ray[client]": "an address with ray:// needs this package",
    "refused": "nothing listens there: is the cluster started, with this port as ray start --port?",
    "timed out": "nothing answers: is the port open to this machine?",
}
#: Seconds within which a cluster must answer.
CONNECT_TIMEOUT_SECONDS = 10.0
#: Tasks submitted ahead of the first unfinished one, for each task that the cluster can run at a time.
TASKS_AHEAD = 2
#: Attribute of a failed task's error that carries the task's log records and warnings.
LOG_ATTRIBUTE = "_coterie_said"

#: Whether this code runs inside a task of :meth:`Cluster.map`.
_in_task: ContextVar[bool] = ContextVar("coterie_in_task", default=False)


@dataclass(frozen=True)
class Cluster:
    """A cluster of machines, for ``engine=``: the work runs there as Ray actors and tasks.

    Needs the extra ``ray``. Workers import coterie, and the modules of your own rules: both must be
    installed there.

    Parameters
    ----------
    address : str, optional
        Address of a running cluster: ``"10.0.0.1:6379"``, ``"auto"`` for the cluster of this machine, or
        ``"ray://10.0.0.1:10001"`` from a machine outside the cluster (this needs ``ray[client]``). Default: the Ray
        that this process is connected to; if there is none, Ray is started on this machine and ended with the call.
    shards : int, optional
        Number of workers, or of tasks at a time. Default: one for each CPU of the cluster; never more than there are
        agents or tasks.
    cpus : float
        CPUs that each shard reserves during the call. Other work on the cluster must wait if all are
        reserved: a number below 1 leaves some free.
    folder : path, optional
        Folder in which workers of relationship learning store their state. Default: a temporary folder on each machine.
        A folder that all machines share lets another worker continue from that state.

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
        """Connect to the cluster, as a context manager.

        An existing connection is used, whatever the address, and stays open.

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
        # Read when Ray is imported: no usage statistics unless the user has asked for these.
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
                    # Ray's workers have low priority by default; on a busy machine they would hardly start.
                    os.environ.setdefault("RAY_worker_niceness", "0")
                    # Not None, which would also look for a running cluster of another user.
                    ray.init(address="local", include_dashboard=False, **quiet)
                else:
                    _check_reachable(self.address)
                    ray.init(address=self.address, **quiet)
            except Exception as error:
                what = "start Ray on this machine" if self.address is None else f"reach a cluster at {self.address!r}"
                hint = next((hint for words, hint in HINTS.items() if words in str(error)), f"if it is up: {TOKEN}")
                raise ClusterError(f"cannot {what}: {error}" + (f" ({hint})" if self.address else "")) from error
            yield ray
        finally:
            ray.shutdown()  # ends a Ray started above; of a cluster, only the connection

    def count(self, ray: Any, most: int) -> int:
        """Return the number of shards to start.

        Parameters
        ----------
        ray : module
            The module that :meth:`connect` yields.
        most : int
            Number of agents or tasks.

        Returns
        -------
        int
            Number of shards, at least 1.
        """
        sizes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
        # A shard needs one machine: CPUs left on different machines do not add up. Ray counts in parts of 1/10,000.
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
        """Yield ``function(item)`` for every item, as plain Ray tasks, in the order of the items.

        The function is stored on the cluster once, with all data it refers to: keep rows there, not in items. Each
        task reserves ``cpus``, and Ray runs it again if its worker or machine dies; at most ``shards`` tasks run at a
        time. When the iteration ends for any reason, running tasks are cancelled: close it, as ``contextlib.closing``
        does.

        An error of coterie is raised as it was, any other error as a ClusterError; of several, that of the first item.
        Log records and warnings of tasks are repeated in this process, a warning once.

        Parameters
        ----------
        ray : module
            The module that :meth:`connect` yields.
        function : callable
            Function of one item.
        items : iterable
        progress : callable, optional
            Called with (number of finished items, number of items).
        name : callable, optional
            Name of an item in an error message.

        Yields
        ------
        object
            Result of the function.
        """
        items, told, done, turn = list(items), _TaskResults(), {}, 0
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
        """As :meth:`map`, but in the order in which tasks finish, with the index of each item.

        Parameters
        ----------
        ray, function, items, progress, name
            As in :meth:`map`.

        Yields
        ------
        (int, object)
            Index of the item, from 0, and the result of the function.
        """
        items, told = list(items), _TaskResults()
        with closing(self._finished(ray, function, items, progress)) as finished:
            for place, reference in finished:
                yield place, told.get(ray, reference, items[place], name)

    def _finished(
        self, ray: Any, function: Any, items: list[Any], progress: Callable[[int, int], None] | None
    ) -> Generator[tuple[int, Any], None, None]:
        """Yield indices and references of tasks as they end, with or without an error."""
        if not items:
            return
        limit = self.count(ray, len(items)) * (TASKS_AHEAD if self.shards is None else 1)
        task = ray.remote(num_cpus=self.cpus, max_retries=3)(_recorded)
        try:
            function = ray.put(function)
        except ray.exceptions.RayError:
            raise
        except Exception as error:  # pickling may raise any error
            raise ParameterError(f"the function or an item cannot be sent to the cluster: {error}") from error
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
    """Refuse an engine that is not a Cluster, and options that cannot be combined with one."""
    if engine is not None and not isinstance(engine, Cluster):
        raise ParameterError(f"engine={engine!r} must be a ct.Cluster, or None for this process")
    for name, value in others.items():
        if engine is not None and value is not None:
            raise ParameterError(
                f"{name}={value!r} does not go with engine=ct.Cluster(...), whose shards set how much runs at a time: "
                "leave one of them out"
            )


def check_importable(*rules: Any) -> None:
    """Refuse rules defined in a script: a worker that gets a copy of such a class cannot find its compiled code."""
    for rule in rules:
        if type(rule).__module__ == "__main__":
            raise ParameterError(
                f"engine=ct.Cluster(...): workers cannot import {type(rule).__name__} from a script; "
                "move it to a module"
            )
        if isinstance(rule, tuple):
            check_importable(*rule)  # a method may contain another


def _recorded(
    function: Callable[[Any], Any], item: Any, level: int, version: str
) -> tuple[Any, list[Record], list[Warned]]:
    """Call a function, and return its result with log records and warnings."""
    if version != __version__:
        raise ClusterError(
            f"the worker on {socket.gethostname()} has coterie {__version__}, and this process {version}: install the "
            "same on all machines"
        )
    worker_log, outside = WorkerLog(level), _in_task.set(True)
    warned: dict[Warned, None] = {}  # in order of appearance, each once

    def keep(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        warned[category, str(message), filename, lineno] = None

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")  # the filters of the calling process decide
            warnings.showwarning = keep
            return function(item), worker_log.take(), list(warned)
    except Exception as error:
        setattr(error, LOG_ATTRIBUTE, (worker_log.take(), list(warned)))
        raise
    finally:
        _in_task.reset(outside)
        log.removeHandler(worker_log)


class _TaskResults:
    """Results of tasks; repeats their log records and warnings in this process, each warning once."""

    def __init__(self) -> None:
        self._warned: set[Warned] = set()

    def get(self, ray: Any, reference: Any, item: Any, name: Callable[[Any], str] | None) -> Any:
        """Return the result of a task, or raise its error."""
        with causes(ray, "" if name is None else name(item)):
            try:
                result, records, warned = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                self._say(*getattr(error.cause, LOG_ATTRIBUTE, ((), ())))
                raise
        self._say(records, warned)
        return result

    def _say(self, records: Iterable[Record], warned: Iterable[Warned]) -> None:
        replay(records)
        for category, text, filename, lineno in warned:
            if (category, text, filename, lineno) not in self._warned:
                self._warned.add((category, text, filename, lineno))
                warnings.warn_explicit(text, category, filename, lineno)


def _check_reachable(address: str) -> None:
    """Raise if the cluster does not answer: Ray itself would retry for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_SECONDS).close()
