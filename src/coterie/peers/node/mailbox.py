"""What comes to a peer and what it sends: a queue of bounded length, and packets, numbered, signed and counted."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from typing import NamedTuple

from ...core.arrays import EVERYONE
from ...core.messages import Contents
from ...engines.peer import Outgoing
from ..group.charter import Charter
from ..wire.gate import Gate
from ..wire.packet import HELLO, ROSTER, VERSION, WELCOME, Packet, Refused, write_packet
from .freshness import Freshness

#: What has come and was not looked at yet: more messages, or bytes, are dropped; and more than so many seconds' worth of
#: one sender's, or lists of members.
INBOX, INBOX_BYTES, INBOX_SECONDS, INBOX_ROSTERS = 10_000, 1 << 26, 4.0, 8
#: Whose lists of members are.
NOBODY = -1


class Send(NamedTuple):
    """What to send to whom: a packet; or the list of members, which anybody may bring, as the admin has signed it."""

    to: int  # address, or EVERYONE
    data: bytes
    roster: bool = False


class Mailbox:
    """Lets packets in that are good and of now, and makes those that go out."""

    def __init__(self, charter: Charter, address: int, sign: Callable[[bytes], bytes], random: Callable[[int], bytes]):
        self._run, self._address, self._sign = bytes.fromhex(charter.run), address, sign
        self.gate = Gate(self._run, address, charter.message_bytes, charter.messages_per_second, charter.max_rows)
        self.fresh = Freshness(self.gate, random)
        self.sent: Counter[str] = Counter()  # messages, packets, bytes
        self.received: Counter[str] = Counter()  # messages, notices
        self.messages_by: Counter[int] = Counter()  # that were taken in, by sender
        self.last_refusal = ""

    def take(self, now: float, owner: int, data: bytes) -> Packet:
        """The packet that came by a key of ``owner``, if it passes the gate and its sender speaks now; or Refused."""
        packet = self.gate.check(now, owner, data)
        if self.fresh.is_current(packet):
            self.fresh.heard[owner] = now
        elif packet.kind not in (HELLO, WELCOME, ROSTER):  # which are good at any time
            self.fresh.ask(now, owner)
            raise Refused("unproven", f"{owner} has not answered with session {packet.session:x} yet")
        return packet

    def refuse(self, refusal: Refused, owner: int = NOBODY, what: str = "") -> None:
        """What does not pass is counted, and that is all."""
        self.gate.count(refusal.reason, owner)
        self.last_refusal = f"{what}{refusal}"

    def packet(self, to: int, kind: int, content: bytes, largest: int) -> Send:
        """Sign, with the next number."""
        fresh = self.fresh
        fresh.sequence += 1
        packet = Packet(VERSION, self._run, self._address, to, fresh.session, fresh.sequence, largest, kind, content)
        data = write_packet(packet, self._sign)
        self.sent["packets"] += 1
        self.sent["bytes"] += len(data)
        return Send(to, data)

    def addressed(
        self, messages: Iterable[Outgoing], contents: Contents, members: Container[int], edges: Collection[int]
    ) -> Iterator[tuple[list[int], list[int], int, bytes]]:
        """Messages of the method by what they hold: whom to address, who gets it, its kind and its content.

        Those that all neighbours get alike are addressed to everyone, once for all of them.
        """
        copies: dict[tuple[int, bytes], list[int]] = {}
        for message in messages:
            if message.to in members:
                copies.setdefault((message.kind, contents.write(message.kind, message.text)), []).append(message.to)
        for (kind, content), to in copies.items():
            self.sent["messages"] += len(to)
            yield [EVERYONE] if len(to) > 1 and set(to) == set(edges) else to, to, kind, content


class Inbox:
    """A queue that no sender can fill for the others: so many of each may wait."""

    def __init__(self, per_sender: int):
        self._items: list[tuple[int, bytes]] = []
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # rung for who waits
        self._lock = threading.Lock()
        self._asleep = False
        self._waiting: dict[int, int] = {}
        self._bytes = 0
        self._limit = per_sender
        self.dropped: Counter[int] = Counter()  # by whose they were: members, and NOBODY

    def __len__(self) -> int:
        return len(self._items)

    def put(self, owner: int, data: bytes) -> bool:
        """Whether there was room."""
        with self._lock:
            waiting = self._waiting.get(owner, 0)
            limit = INBOX_ROSTERS if owner == NOBODY else self._limit
            full = len(self._items) >= INBOX or self._bytes + len(data) > INBOX_BYTES
            if full or waiting >= limit:
                self.dropped[owner] += 1
                return False
            self._waiting[owner] = waiting + 1
            self._bytes += len(data)
            self._items.append((owner, data))
            ring, self._asleep = self._asleep, False
        if ring:
            self._bell.put(None)
        return True

    def wake(self) -> None:
        """Let whoever waits go on. May be called from a signal handler."""
        self._bell.put(None)

    def wait(self, seconds: float) -> None:
        """Until there is something, or :meth:`wake`, or so many seconds have passed."""
        with self._lock:
            if self._items or seconds <= 0.0:
                return
            self._asleep = True
        with contextlib.suppress(queue.Empty):
            self._bell.get(timeout=seconds)
        self._asleep = False

    def take(self) -> list[tuple[int, bytes]]:
        """All that there is."""
        with self._lock:
            items, self._items = self._items, []
            self._waiting.clear()
            self._bytes = 0
        return items
