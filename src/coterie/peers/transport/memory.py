"""Transports inside one process, for tests and examples."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable

from ...core.arrays import EVERYONE
from ...errors import ParameterError
from . import Contact, Deliver, DeliverRoster, Reachable

log = logging.getLogger("coterie")

#: Maximal number of packets that wait on an exchange; further packets are dropped.
MAX_WAITING_PACKETS = 100_000


class Exchange:
    """The hub between :class:`Memory` transports. Packets arrive in the order in which they were sent.

    ``deliver`` is never called inside ``send``: packets wait in a queue, which is emptied by a thread of the exchange,
    or with ``by_hand`` by calls of :meth:`run`. Runs by hand can be repeated exactly.
    """

    def __init__(self, by_hand: bool = False):
        self._by_hand = by_hand
        self._here: dict[int, Memory] = {}
        self._waiting: deque[tuple[Memory, Callable[[], None]]] = deque()
        self._lock = threading.Condition()
        self._thread: threading.Thread | None = None

    def run(self, limit: int | None = None) -> int:
        """Deliver waiting packets and those sent meanwhile, at most `limit`. Return the number of delivered packets."""
        done = 0
        while limit is None or done < limit:
            with self._lock:
                if not self._waiting:
                    break
                goal, act = self._waiting.popleft()
            done += goal._receive(act)
        return done

    def __len__(self) -> int:
        """Number of waiting packets."""
        return len(self._waiting)

    def _join(self, member: Memory) -> None:
        with self._lock:
            if self._here.get(member.contact.address, member) is not member:
                raise ParameterError(f"address {member.contact.address} is taken on this exchange")
            self._here[member.contact.address] = member
            if not self._by_hand and self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="coterie-exchange", daemon=True)
                self._thread.start()

    def _leave(self, member: Memory) -> None:
        with self._lock:
            if self._here.get(member.contact.address) is member:
                del self._here[member.contact.address]
            self._lock.notify_all()

    def _post(self, goal: Memory, act: Callable[[], None]) -> bool:
        with self._lock:
            if len(self._waiting) >= MAX_WAITING_PACKETS:
                return False
            self._waiting.append((goal, act))
            self._lock.notify_all()
        return True

    def _serve(self) -> None:
        """Deliver packets until all members have left."""
        while True:
            with self._lock:
                while self._here and not self._waiting:
                    self._lock.wait()
                if not self._here:
                    self._waiting.clear()
                    self._thread = None
                    return
            self.run(limit=100)


class Memory:
    """A transport to the other members on an :class:`Exchange`. Implements :class:`Transport`."""

    def __init__(self, exchange: Exchange, name: str, address: int, message_bytes: int = 200_000):
        self.contact = Contact(name, address, None)
        self.serial = f"{address + 1:x}"  # stands for the serial number of a certificate
        self._exchange = exchange
        self._message_bytes = message_bytes
        self._linked: dict[int, Contact] = {}
        self._admitted: set[int] | None = None  # None: all members of the exchange
        self._deliver: Deliver | None = None
        self._roster: DeliverRoster | None = None
        self._counts: Counter[str] = Counter()
        self._dropped: dict[int, Counter[str]] = {}
        self._revoked: frozenset[str] = frozenset()
        self._kept: bytes | None = None  # the roster for non-members
        # By address of a non-member: the rosters that were exchanged.
        self._visited: dict[int, tuple[bytes | None, bytes | None]] = {}
        self._counting = threading.Lock()
        self._receiving = threading.RLock()  # held while a packet is delivered, so that close can wait for it

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of packets sent, received, and dropped by reason."""
        with self._counting:
            return dict(self._counts)

    def open(self, deliver: Deliver, roster: DeliverRoster | None = None) -> None:
        """Start, and join the exchange."""
        if self._deliver is not None:
            raise ParameterError(f"{self.contact.name} is open already")
        self._exchange._join(self)
        self._deliver, self._roster = deliver, roster

    def dropped(self) -> dict[int, dict[str, int]]:
        """Packets that were dropped, by member."""
        with self._counting:
            return {address: dict(counts) for address, counts in self._dropped.items()}

    def strangers(self) -> dict[str, dict[str, int]]:
        """Return no failures, because there are no connections."""
        return {}

    def admit(self, contacts: Iterable[Contact], revoked: Iterable[str] = ()) -> None:
        """Set the admitted members. Before the first call, all members of the exchange are admitted."""
        self._admitted, self._revoked = {contact.address for contact in contacts}, frozenset(revoked)

    def keep_roster(self, signed: bytes) -> None:
        """Set the roster for non-members."""
        self._kept = signed

    def reload(self) -> None:
        """Do nothing, because there are no certificates."""

    def link(self, contacts: Iterable[Contact]) -> None:
        """Set the neighbours for broadcasts."""
        self._linked = {contact.address: contact for contact in contacts}
        for address in self._linked:
            goal = self._exchange._here.get(address)
            if goal is not None and self._deliver is not None and not goal._lets_in(self):
                self._visit(goal)

    def _knows(self, address: int) -> bool:
        return self._admitted is None or address in self._admitted or address in self._linked

    def _lets_in(self, other: Memory) -> bool:
        return self._knows(other.contact.address) and other.serial not in self._revoked

    def _visit(self, goal: Memory) -> None:
        """Exchange rosters with a member that does not admit this one, once for each pair of rosters."""
        me, rosters = self.contact.address, (self._kept, goal._kept)
        if goal._visited.get(me) != rosters and self.serial not in goal._revoked:
            goal._visited[me] = rosters
            for to, signed in ((goal, self._kept), (self, goal._kept)):
                if signed is not None:
                    self._exchange._post(to, lambda to=to, signed=signed: to._roster(signed) if to._roster else None)  # type: ignore[misc]

    def send(self, to: int, data: bytes) -> None:
        """Send a packet at most once."""
        for goal in list(self._linked) if to == EVERYONE else [to]:
            outcome = self._sent(goal, bytes(data))
            self._count(outcome, goal if outcome != "sent" else None, "to")

    def _sent(self, to: int, data: bytes) -> str:
        me = self.contact.address
        if self._deliver is None:
            return "dropped: closed"
        if len(data) > self._message_bytes:
            return "dropped: too large"
        if to == me or not self._knows(to):
            return "dropped: unknown address"
        goal = self._exchange._here.get(to)
        if goal is None:
            return "dropped: absent"

        def act() -> None:
            if not goal._lets_in(self):
                goal._count("dropped: not admitted", me, "from")
                self._visit(goal)
            elif goal._deliver is not None:
                goal._count("received")
                goal._deliver(me, data)

        return "sent" if self._exchange._post(goal, act) else "dropped: queue full"

    def use_relays(self, relays: Iterable[Reachable]) -> None:
        """Do nothing, because all members are on one exchange."""

    def publish_roster(self, signed: bytes, to: int = EVERYONE) -> None:
        """Give a signed roster to all linked neighbours, or to one member."""
        for address in list(self._linked) if to == EVERYONE else [to]:
            goal = self._exchange._here.get(address)
            if goal is not None and self._deliver is not None:
                self._exchange._post(goal, lambda to=goal: to._roster(signed) if to._roster else None)  # type: ignore[misc]

    def alive(self) -> set[int]:
        """Addresses of the members that admit this one and are open."""
        if self._deliver is None:
            return set()
        with self._exchange._lock:
            here = dict(self._exchange._here)
        me = self.contact.address
        return {address for address, other in here.items() if address != me and self._lets_in(other)}

    def close(self) -> None:
        """Stop. May be called twice."""
        self._exchange._leave(self)
        with self._receiving:
            self._deliver = self._roster = None

    def _receive(self, act: Callable[[], None]) -> bool:
        with self._receiving:
            if self._deliver is None:
                return False
            try:
                act()
            except Exception:
                log.exception("%s could not take a packet", self.contact.name)
                self._count("dropped: deliver failed")
        return True

    def _count(self, what: str, whose: int | None = None, way: str = "") -> None:
        with self._counting:
            self._counts[what] += 1
            if whose is not None and self._knows(whose):
                self._dropped.setdefault(whose, Counter())[what.replace("dropped", way, 1)] += 1
