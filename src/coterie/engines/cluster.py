"""Where to run on many machines: a Ray cluster, or the Ray of this one."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from ..errors import ClusterError, MissingExtra, ParameterError

#: What keeps newer versions of Ray from connecting, without saying so.
TOKEN = "RAY_AUTH_MODE and RAY_AUTH_TOKEN must be the same here as where it was started"
#: Seconds in which a cluster must answer.
KNOCK = 10.0


@dataclass(frozen=True)
class Cluster:
    """A cluster of machines, for ``engine=``: shards of the work run there as Ray actors.

    Needs the extra ``ray``. The workers import coterie, and the modules that your own rules are from: both must be
    installed there.

    Parameters
    ----------
    address : str, optional
        Of a running cluster: ``"10.0.0.1:6379"``, ``"auto"`` for the one that this machine belongs to, or
        ``"ray://10.0.0.1:10001"`` from a machine outside it (this needs ``ray[client]``). Default: the Ray that this
        process is connected to already; if there is none, one is started on this machine and ended with the call.
    shards : int, optional
        How many workers. Default: one for each CPU of the cluster; never more than there are agents or tasks.
    cpus : float
        CPUs that each shard reserves for the time of the call. Other work on the cluster has to wait when all are
        reserved: less than 1 leaves some free.
    folder : path, optional
        Where workers of relationship learning keep checkpoints. Default: a temporary folder on each machine. One that
        all machines see lets a worker go on on another.

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
        if self.shards is not None and not (_whole(self.shards) and self.shards >= 1):
            raise ParameterError(f"Cluster(shards={self.shards!r}): shards must be a whole number >= 1, or None")
        number = isinstance(self.cpus, Real) and not isinstance(self.cpus, bool)
        if not (number and math.isfinite(self.cpus) and self.cpus > 0):
            raise ParameterError(f"Cluster(cpus={self.cpus!r}): cpus must be a number > 0")
        if self.cpus > 1 and not float(self.cpus).is_integer():
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
                    _knock(self.address)
                    ray.init(address=self.address, **quiet)
            except Exception as error:
                what = "start Ray on this machine" if self.address is None else f"reach a cluster at {self.address!r}"
                hint = "" if self.address is None else f" (if it is up: {TOKEN})"
                raise ClusterError(f"cannot {what}: {error}{hint}") from error
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


def _knock(address: str) -> None:
    """Raise if nobody answers: Ray itself goes on trying for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK).close()


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
