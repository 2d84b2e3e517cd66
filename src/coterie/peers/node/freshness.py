"""Which sessions are live: sessions and numbers of packets, and the questions whose answers prove a session.

Packets of a sender are numbered: (session, sequence). A session is a random number, drawn when a peer starts, so no
number is used twice, whatever happens to the peer's clock and files. A receiver accepts messages of one session of each
sender: the one that was last proved to be live. To get a proof, the receiver sends a HELLO with a random nonce, which
is for one sender and one question. The signed WELCOME that echoes the nonce proves the session of its packet, and gives
the sequence from which on packets are accepted. A packet of another session is refused, and makes the receiver ask. So
an old packet is never accepted: in the proven session sequences grow, and another session can only prove itself by
answering a question that was asked after the last proof.

There is one open question for each sender. It becomes void when it is answered, and when its sender counts as gone. If
a session proves itself again after a later session has, two processes use one identity: neighbours detect this, and
tell the member.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Iterator

from ..wire.gate import Gate
from ..wire.limits import Buckets, once
from ..wire.packet import Packet

#: Seconds until an unanswered question is repeated: the first time, and at most.
FIRST_WAIT, MAX_WAIT = 0.5, 8.0
#: Questions per second to a sender of packets from another session, and at once.
ASK_RATE, ASK_BURST = 2.0, 4.0
#: Seconds between two questions after which a member that is no neighbour is not asked again.
MAX_STRANGER_WAIT = 4.0
#: Number of sessions of a member that are remembered; seconds between two reports of two processes; and how long they
#: last.
MAX_SESSIONS, DOUBLED_EVERY, DOUBLED_LASTS = 4, 5.0, 600.0


class Freshness:
    """The numbers of one peer's packets, and the proven sessions of other peers."""

    def __init__(self, gate: Gate, random: Callable[[int], bytes]):
        self._gate, self._random = gate, random
        self.session = 1 + int.from_bytes(random(8), "little") % (2**53 - 1)
        self.sequence = 0
        self.heard: dict[int, float] = {}  # when a member was last heard
        self.proven: set[int] = set()  # members that have proved a session; the gate knows the session
        self._asked: dict[int, bytes] = {}  # nonces of open questions
        self._next: dict[int, tuple[float, float]] = {}  # time of the next question, and the wait after it
        self._prompt = Buckets(ASK_RATE, ASK_BURST)
        self._sessions: dict[int, deque[int]] = {}  # of each member: earlier proven sessions
        self._doubled: dict[int, float] = {}  # when two processes of a member were last reported

    @property
    def next_time(self) -> float:
        """Time of the next question; infinity if there is none."""
        return min((at for at, _ in self._next.values()), default=math.inf)

    def is_current(self, packet: Packet) -> bool:
        """Return whether a packet is of its sender's proven session."""
        return packet.sender in self.proven and self._gate.session_of(packet.sender) == packet.session

    def nonce_for(self, j: int) -> bytes:
        """Return the nonce of the open question to j, or of a new one."""
        return self._asked.get(j) or self._asked.setdefault(j, self._random(16))

    def is_answer(self, j: int, nonce: bytes) -> bool:
        """Return whether a nonce answers the open question to j."""
        return self._asked.get(j) == nonce

    def ask(self, now: float, j: int, at_once: bool = False) -> None:
        """Schedule a question to j, unless there is one. Other packets may be replays, so questions are rationed."""
        if at_once or j not in self._next:
            soon = at_once or self._prompt.take(j, now)
            self._next[j] = (now if soon else now + FIRST_WAIT, FIRST_WAIT)

    def due(self, now: float, edges: Container[int]) -> Iterator[tuple[int, bool]]:
        """Yield members to ask now, at growing intervals, and whether an earlier question was not answered."""
        for j, (at, wait) in list(self._next.items()):
            if at > now:
                continue
            if j not in edges and wait > MAX_STRANGER_WAIT:
                del self._next[j]
                continue
            self._next[j] = (now + wait, min(2.0 * wait, MAX_WAIT))
            yield j, wait > FIRST_WAIT

    def count_out(self, j: int) -> None:
        """Forget the proof of a member that has gone, and its open question."""
        self.proven.discard(j)
        self._asked.pop(j, None)
        self._next.pop(j, None)

    def keep(self, members: Container[int]) -> None:
        """Forget proofs and questions of all other members."""
        for j in {*self.proven, *self._asked, *self._next}:
            if j not in members:
                self.count_out(j)

    def prove(self, now: float, packet: Packet) -> tuple[bool, int | None]:
        """Take in the answer to the open question: its session is the sender's proven session from now on.

        Return whether the session is new; and, if the session had been proved before another one, that other session:
        then there are two processes.
        """
        j, before, fresh = packet.sender, self._gate.session_of(packet.sender), not self.is_current(packet)
        del self._asked[j]
        self._next.pop(j, None)
        self._gate.prove(packet)
        self.proven.add(j)
        self.heard[j] = now
        twin = None
        if before is not None and before != packet.session:
            known = self._sessions.setdefault(j, deque(maxlen=MAX_SESSIONS))
            twin = before if packet.session in known else None
            known.append(before)
        return fresh, twin

    def doubled(self, now: float, j: int, every: float = DOUBLED_EVERY) -> bool:
        """Note that two processes use the identity of j, and return whether this is to be reported."""
        return once(self._doubled, j, now, every)

    def doubles_are_over(self, now: float) -> bool:
        """Return True once when no second process has been detected for a long time."""
        over = bool(self._doubled) and now > max(self._doubled.values()) + DOUBLED_LASTS
        if over:
            self._doubled.clear()
        return over
