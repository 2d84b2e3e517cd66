"""The packets that a peer receives and sends: a bounded queue for received packets; numbering, signing and counting."""

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

#: Bounds of the queue of received packets: packets, bytes, seconds' worth of one sender's packets, and rosters. What
#: exceeds a bound is dropped.
INBOX_PACKETS, INBOX_BYTES, INBOX_SECONDS, INBOX_ROSTERS = 10_000, 1 << 26, 4.0, 8
#: Owner of rosters, which have no sender.
NOBODY = -1


class Send(NamedTuple):
    """A packet to send, or a signed roster, which any peer may pass on."""

    to: int  # address, or EVERYONE
    data: bytes
    roster: bool = False


class Mailbox:
    """Accepts packets that are valid and from a live session, and makes packets to send."""

    def __init__(self, charter: Charter, address: int, sign: Callable[[bytes], bytes], random: Callable[[int], bytes]):
        self._run, self._address, self._sign = bytes.fromhex(charter.run), address, sign
        self.gate = Gate(self._run, address, charter.message_bytes, charter.messages_per_second, charter.max_rows)
        self.fresh = Freshness(self.gate, random)
        self.sent: Counter[str] = Counter()  # numbers of messages, packets, bytes
        self.received: Counter[str] = Counter()  # numbers of messages, notices
        self.messages_by: Counter[int] = Counter()  # numbers of messages taken in, by sender
        self.last_refusal = ""

    def take(self, now: float, owner: int, data: bytes) -> Packet:
        """Return the packet that came under a key of ``owner``. Raise Refused if the gate refuses it or its session is
        unproven.
        """
        packet = self.gate.check(now, owner, data)
        if self.fresh.is_current(packet):
            self.fresh.heard[owner] = now
        elif packet.kind not in (HELLO, WELCOME, ROSTER):  # these kinds are valid in any session
            self.fresh.ask(now, owner)
            raise Refused("unproven", f"{owner} has not answered with session {packet.session:x} yet")
        return packet

    def refuse(self, refusal: Refused, owner: int = NOBODY, what: str = "") -> None:
        """Count a refusal."""
        self.gate.count(refusal.reason, owner)
        self.last_refusal = f"{what}{refusal}"

    def packet(self, to: int, kind: int, content: bytes, largest: int) -> Send:
        """Number and sign a packet."""
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
        """Group the method's messages by content, and yield for each content: address, receivers, kind and content.

        A message that all neighbours get is addressed to EVERYONE, and is written once.
        """
        copies: dict[tuple[int, bytes], list[int]] = {}
        for message in messages:
            if message.to in members:
                copies.setdefault((message.kind, contents.write(message.kind, message.text)), []).append(message.to)
        for (kind, content), to in copies.items():
            self.sent["messages"] += len(to)
            yield [EVERYONE] if len(to) > 1 and set(to) == set(edges) else to, to, kind, content


class Inbox:
    """A queue that one sender cannot fill: the number of waiting packets of each sender is bounded."""

    def __init__(self, per_sender: int):
        self._items: list[tuple[int, bytes]] = []
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # wakes the waiting thread
        self._lock = threading.Lock()
        self._asleep = False
        self._waiting: dict[int, int] = {}
        self._bytes = 0
        self._limit = per_sender
        self.dropped: Counter[int] = Counter()  # by owner: members, and NOBODY

    def __len__(self) -> int:
        return len(self._items)

    def put(self, owner: int, data: bytes) -> bool:
        """Append a packet, and return whether there was room."""
        with self._lock:
            waiting = self._waiting.get(owner, 0)
            limit = INBOX_ROSTERS if owner == NOBODY else self._limit
            full = len(self._items) >= INBOX_PACKETS or self._bytes + len(data) > INBOX_BYTES
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
        """Make :meth:`wait` return. May be called from a signal handler."""
        self._bell.put(None)

    def wait(self, seconds: float) -> None:
        """Wait for a packet, for :meth:`wake`, or until the time is over."""
        with self._lock:
            if self._items or seconds <= 0.0:
                return
            self._asleep = True
        with contextlib.suppress(queue.Empty):
            self._bell.get(timeout=seconds)
        self._asleep = False

    def take(self) -> list[tuple[int, bytes]]:
        """Return and remove all packets."""
        with self._lock:
            items, self._items = self._items, []
            self._waiting.clear()
            self._bytes = 0
        return items
