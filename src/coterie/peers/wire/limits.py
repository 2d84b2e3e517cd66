"""Bounds on what other peers may cost: rates, and the resources that a transport spends on them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Container, Hashable
from typing import NamedTuple

from ..._files import MAX_BYTES

try:
    import resource
except ImportError:  # pragma: no cover - not on this platform
    resource = None  # type: ignore[assignment]


class Bucket:
    """Token bucket: lets ``rate`` events pass per second, and ``capacity`` at once."""

    __slots__ = ("_left", "_then", "capacity", "rate")

    def __init__(self, rate: float, capacity: float):
        self.rate, self.capacity, self._left, self._then = rate, capacity, capacity, 0.0

    def take(self, now: float) -> bool:
        """Take a token, and return whether there was one."""
        self._fill(now)
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def spend(self, now: float, amount: float) -> float:
        """Take an amount of tokens, even if there are fewer. Return the seconds to wait before the next."""
        self._fill(now)
        self._left -= amount
        return max(0.0, -self._left / self.rate)

    def _fill(self, now: float) -> None:
        self._left = min(self.capacity, self._left + max(0.0, now - self._then) * self.rate)
        self._then = now


class Buckets:
    """A :class:`Bucket` for each name or address; with ``most``, only for the most recently used ones."""

    def __init__(self, rate: float, capacity: float, most: int | None = None):
        self._rate, self._capacity, self._most = rate, capacity, most
        self._of: OrderedDict[Hashable, Bucket] = OrderedDict()

    def take(self, whose: Hashable, now: float) -> bool:
        """Take a token of a name or address, and return whether there was one."""
        bucket = self._of.get(whose)
        if bucket is None:
            bucket = self._of[whose] = Bucket(self._rate, self._capacity)
        if self._most is not None:
            self._of.move_to_end(whose)
            if len(self._of) > self._most:
                self._of.popitem(last=False)
        return bucket.take(now)

    def keep(self, known: Container[Hashable]) -> None:
        """Forget all other names or addresses."""
        for whose in [whose for whose in self._of if whose not in known]:
            del self._of[whose]


def once(last: dict[int, float], j: int, now: float, every: float) -> bool:
    """Return whether something was last done for j at least `every` seconds ago, and if so, note that it is
    done now.
    """
    if now < last.get(j, -math.inf) + every:
        return False
    last[j] = now
    return True


class Limits(NamedTuple):
    """Bounds of one transport: seconds, bytes, and counts."""

    message: int = 200_000  # bytes of a message
    roster: int = MAX_BYTES  # bytes of a roster
    # Per second from one member, above which the member is read more slowly; None: no bound.
    messages: float | None = None
    queue: int = 256  # frames that wait for one neighbour; the oldest is dropped
    queue_bytes: int = 1 << 23
    high: int = 65_536  # bytes handed to the operating system before the queue holds back more
    ping: float = 1.0  # seconds without a frame sent, after which a ping is sent
    dead: float = 3.0  # seconds without a frame received, after which the connection is closed
    first: float = 0.1  # seconds between two tries to connect: at first, and at most
    longest: float = 2.0
    waiting: int = 16  # frames that wait while a connection to one member is made, and for how many seconds
    wait: float = 3.0
    # Connections to members that are not neighbours, and the seconds after which an unused one is closed.
    spare: int = 32
    idle: float = 10.0
    leave_alone: float = 5.0  # seconds without a new try, after a member that is no neighbour was unreachable
    # -- before a name is proven
    handshake: float = 3.0  # seconds from accepting or dialling a connection to a proven name
    early: int = 16_384
    silent: int = 256  # connections that have sent nothing yet: in total, and from one address
    silent_address: int = 64
    begun: int = 256  # handshakes in progress: in total, and from one address
    begun_address: int = 64
    starts: float = 400.0  # handshakes begun per second: in total, and from one address
    starts_address: float = 100.0
    preauths: float = 1000.0  # signatures of pre-authentications that are verified per second
    sources: int = 1024  # addresses whose failures are remembered
    backlog: int = 512
    # -- non-members, and connections in total
    non_members: int = 8  # connections at a time, and seconds of each
    visit: float = 5.0
    channels: int = 4096  # connections with members

    def within(self, descriptors: int) -> Limits:
        """Return these bounds for a process that may open so many files. A quarter of the files is left for
        other uses.
        """
        return self._replace(
            silent=min(self.silent, max(8, descriptors // 8)),
            silent_address=min(self.silent_address, max(4, descriptors // 16)),
            begun=min(self.begun, max(8, descriptors // 8)),
            begun_address=min(self.begun_address, max(4, descriptors // 16)),
            spare=min(self.spare, max(2, descriptors // 16)),
            channels=min(self.channels, max(8, descriptors // 2)),
        )


def descriptors() -> int:
    """Number of files that this process may open."""
    if resource is None:  # pragma: no cover - not on this platform
        return 2048
    return min(1 << 16, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def raise_descriptors() -> int:
    """Raise the number of files that this process may open as far as the system allows, and return that number."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        goal = 1 << 16 if hard == resource.RLIM_INFINITY else min(hard, 1 << 16)
        if soft < goal:
            resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
    return descriptors()
