"""How much anybody may cost: how often something may happen, and what a transport spends on others."""

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
    """Lets ``rate`` through in a second, and ``capacity`` at once."""

    __slots__ = ("_left", "_then", "capacity", "rate")

    def __init__(self, rate: float, capacity: float):
        self.rate, self.capacity, self._left, self._then = rate, capacity, capacity, 0.0

    def take(self, now: float) -> bool:
        """Whether one more may pass."""
        self._fill(now)
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def spend(self, now: float, amount: float) -> float:
        """Let so much through, whatever there is; the seconds to wait before more."""
        self._fill(now)
        self._left -= amount
        return max(0.0, -self._left / self.rate)

    def _fill(self, now: float) -> None:
        self._left = min(self.capacity, self._left + max(0.0, now - self._then) * self.rate)
        self._then = now


class Buckets:
    """A :class:`Bucket` for each name or address; those that were used last, if there may be only ``most``."""

    def __init__(self, rate: float, capacity: float, most: int | None = None):
        self._rate, self._capacity, self._most = rate, capacity, most
        self._of: OrderedDict[Hashable, Bucket] = OrderedDict()

    def take(self, whose: Hashable, now: float) -> bool:
        """Whether one more of theirs may pass."""
        bucket = self._of.get(whose)
        if bucket is None:
            bucket = self._of[whose] = Bucket(self._rate, self._capacity)
        if self._most is not None:
            self._of.move_to_end(whose)
            if len(self._of) > self._most:
                self._of.popitem(last=False)
        return bucket.take(now)

    def keep(self, known: Container[Hashable]) -> None:
        """Forget all others."""
        for whose in [whose for whose in self._of if whose not in known]:
            del self._of[whose]


def once(last: dict[int, float], j: int, now: float, every: float) -> bool:
    """Whether it is so long since something was last done for j; then it is done now."""
    if now < last.get(j, -math.inf) + every:
        return False
    last[j] = now
    return True


class Limits(NamedTuple):
    """Bounds of one transport. Seconds, bytes, and counts."""

    message: int = 200_000  # the longest message
    roster: int = MAX_BYTES  # the longest list of members
    messages: float | None = None  # a second from one member: who sends more is read more slowly; None: any
    queue: int = 256  # frames that wait for one neighbour; the oldest is dropped
    queue_bytes: int = 1 << 23
    high: int = 65_536  # bytes handed to the system's side before the queue holds them back
    ping: float = 1.0  # of silence from me
    dead: float = 3.0  # of silence from the other
    first: float = 0.1  # between two tries to connect, at first and at most
    longest: float = 2.0
    waiting: int = 16  # frames that wait for a connection to one member to be made, and for how long
    wait: float = 3.0
    spare: int = 32  # connections to members that are not linked, and how long one lives that is not used
    idle: float = 10.0
    leave_alone: float = 5.0  # a member that is not linked and could not be reached
    # -- before a name is proven
    handshake: float = 3.0  # from accepting, or dialling, to a proven name
    early: int = 16_384
    silent: int = 256  # connections that have said nothing yet, in all and of one address
    silent_address: int = 64
    begun: int = 256  # and handshakes under way
    begun_address: int = 64
    starts: float = 400.0  # handshakes begun in a second, in all and for one address
    starts_address: float = 100.0
    preauths: float = 1000.0  # signatures of pre-authentications that are looked at in a second
    sources: int = 1024  # addresses whose failures are remembered
    backlog: int = 512
    # -- names that are proven and not admitted
    non_members: int = 8  # at a time
    visit: float = 5.0
    channels: int = 4096  # connections of members

    def within(self, descriptors: int) -> Limits:
        """The same, for a process that may have so many files open. A quarter is left to everything else."""
        return self._replace(
            silent=min(self.silent, max(8, descriptors // 8)),
            silent_address=min(self.silent_address, max(4, descriptors // 16)),
            begun=min(self.begun, max(8, descriptors // 8)),
            begun_address=min(self.begun_address, max(4, descriptors // 16)),
            spare=min(self.spare, max(2, descriptors // 16)),
            channels=min(self.channels, max(8, descriptors // 2)),
        )


def descriptors() -> int:
    """How many files this process may have open."""
    if resource is None:  # pragma: no cover - not on this platform
        return 2048
    return min(1 << 16, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def raise_descriptors() -> int:
    """Have as many as the system lets a process have; how many that is."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        goal = 1 << 16 if hard == resource.RLIM_INFINITY else min(hard, 1 << 16)
        if soft < goal:
            resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
    return descriptors()
