"""Who speaks now: sessions and numbers of packets, and the questions whose answers prove them.

Packets of a sender are numbered: (session, sequence). A session is a random number, drawn when a peer starts; so no number is
used twice, whatever happened to its clock and its files. A receiver takes messages of one session of each sender: of the
one that has proved last that it speaks now. To ask for that, it says HELLO with a random nonce that it has for this one
sender and this one question; the signed WELCOME that echoes it proves the session that it is of, and says where its
numbers are: only what is newer is taken from then on. A packet of another session is not taken, but is a reason to ask.
Then an old packet never passes: of the proven session, numbers grow; another session cannot prove itself unless its process
answers to a question that was asked after the last proof, so after all that was ever taken of it.

So there is one question at a time for each sender, and it is void as soon as it is answered, and as soon as its sender
counts as not there. A session that proves itself after another one has, which itself came after it, is a second process
with the same identity: its neighbours notice, and tell it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Iterator

from ..wire.gate import Gate
from ..wire.limits import Buckets, once
from ..wire.packet import Packet

#: Seconds until a question that was not answered is asked again, the first time and at most.
PATIENCE, LONGEST_PATIENCE = 0.5, 8.0
#: How often in a second somebody is asked because of a packet of another session, and how often at once.
ASK_RATE, ASK_BURST = 2.0, 4.0
#: Who is no neighbour and does not answer is left alone after so many seconds' patience.
GIVE_UP = 4.0
#: Sessions of a member that are remembered; seconds between two notices that there are two, and how long they are news.
MOST_SESSIONS, DOUBLED_EVERY, DOUBLED_LASTS = 4, 5.0, 600.0


class Freshness:
    """The numbers of one peer's packets, and what it knows of those of others."""

    def __init__(self, gate: Gate, random: Callable[[int], bytes]):
        self._gate, self._random = gate, random
        self.session = 1 + int.from_bytes(random(8), "little") % (2**53 - 1)
        self.sequence = 0
        self.heard: dict[int, float] = {}  # when a member was last heard
        self.proven: set[int] = set()  # who has answered to this session: the gate knows with which of theirs
        self._asked: dict[int, bytes] = {}  # nonces that were not answered yet
        self._next: dict[int, tuple[float, float]] = {}  # when to ask, and how long to wait then
        self._prompt = Buckets(ASK_RATE, ASK_BURST)
        self._sessions: dict[int, deque[int]] = {}  # of members: those that have proved themselves, but the last
        self._doubled: dict[int, float] = {}  # when it was last news that there are two of a member

    @property
    def next_time(self) -> float:
        """When somebody is to be asked; infinity if nobody is."""
        return min((at for at, _ in self._next.values()), default=math.inf)

    def is_current(self, packet: Packet) -> bool:
        """Whether a packet is of the session of its sender that has proved last that it speaks now."""
        return packet.sender in self.proven and self._gate.session_of(packet.sender) == packet.session

    def nonce_for(self, j: int) -> bytes:
        """The nonce of the question to j that is open, or of a new one."""
        return self._asked.get(j) or self._asked.setdefault(j, self._random(16))

    def is_answer(self, j: int, nonce: bytes) -> bool:
        """Whether this is what j was asked for."""
        return self._asked.get(j) == nonce

    def ask(self, now: float, j: int, at_once: bool = False) -> None:
        """Ask for a sign of life, unless that is under way. Packets of other sessions may be old ones, and many."""
        if at_once or j not in self._next:
            soon = at_once or self._prompt.take(j, now)
            self._next[j] = (now if soon else now + PATIENCE, PATIENCE)

    def due(self, now: float, edges: Container[int]) -> Iterator[tuple[int, bool]]:
        """Whom to ask now, more and more rarely, and whether it was asked before in vain."""
        for j, (at, wait) in list(self._next.items()):
            if at > now:
                continue
            if j not in edges and wait > GIVE_UP:
                del self._next[j]
                continue
            self._next[j] = (now + wait, min(2.0 * wait, LONGEST_PATIENCE))
            yield j, wait > PATIENCE

    def count_out(self, j: int) -> None:
        """Somebody is not there any more: it has to prove again that it is, and not by an answer that is under way."""
        self.proven.discard(j)
        self._asked.pop(j, None)
        self._next.pop(j, None)

    def keep(self, members: Container[int]) -> None:
        """Count out all others."""
        for j in {*self.proven, *self._asked, *self._next}:
            if j not in members:
                self.count_out(j)

    def prove(self, now: float, packet: Packet) -> tuple[bool, int | None]:
        """The answer to an open question: from now on this session is its sender's.

        Whether it is a new one; and if it had given way to another session before, which that is: then there are two
        processes.
        """
        j, before, fresh = packet.sender, self._gate.session_of(packet.sender), not self.is_current(packet)
        del self._asked[j]
        self._next.pop(j, None)
        self._gate.prove(packet)
        self.proven.add(j)
        self.heard[j] = now
        twin = None
        if before is not None and before != packet.session:
            known = self._sessions.setdefault(j, deque(maxlen=MOST_SESSIONS))
            twin = before if packet.session in known else None
            known.append(before)
        return fresh, twin

    def doubled(self, now: float, j: int, every: float = DOUBLED_EVERY) -> bool:
        """Two processes run with the identity of j: whether that is news."""
        return once(self._doubled, j, now, every)

    def doubles_are_over(self, now: float) -> bool:
        """Whether there were two processes, and nobody has noticed any for long; said once."""
        over = bool(self._doubled) and now > max(self._doubled.values()) + DOUBLED_LASTS
        if over:
            self._doubled.clear()
        return over
