"""A peer without input or output: what to do when time passes, when a letter comes, when it begins and when it ends.

Time, randomness, storage and transport come from outside, so the same code runs over a real network, in memory, and in
the fault simulator (:mod:`coterie.testing.chaos`), where a failure can be replayed. Every call answers with the packets
to send.

Freshness
---------
Packets of a sender are numbered: (boot, sequence). A boot is never used twice, because it is on disk before the first
packet of it is sent; so nothing needs to be written for a single packet. A receiver takes a packet only if its number
is greater than the last one's. What it has heard between its last save and a crash it has forgotten, so after a restart
it believes nobody until they have proved that they speak now: it says HELLO with a random nonce, and the signed WELCOME
that echoes it says where its sender's numbers are.

Letters get lost. Who has just begun is sent the model as the method greets everybody at the start; and now and then a
peer says HELLO to one neighbour after the other, so that what was lost comes again in the end, also from neighbours
that have nothing new to say.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from ..core.world import EVERYONE, VACANT
from ..core.wrap.learned import WEIGHT, WEIGHT_LENGTH
from ..engines.peer import Outgoing, Peer
from ..engines.wire import write_numbers
from ..errors import CapacityError, DataError, StateError
from .agreement import Charter, newer, read_roster
from .gate import Bucket, Gate, Refused, Terms, check_letter
from .packet import BYE, HELLO, ROSTER, VERSION, WELCOME, Packet, read_hello, write_hello, write_packet
from .state import Record, Store, pack, read_record, restored, write_record
from .work import Work, world_of_one

#: Seconds until a HELLO that was not answered is said again, the first time and at most.
PATIENCE, LONGEST_PATIENCE = 0.5, 8.0
#: Mean wakes between two HELLOs to somebody who has answered already.
REFRESH = 16.0
#: Who is no neighbour and does not answer is left alone after so many seconds' patience.
GIVE_UP = 4.0
#: Seconds: how often a member is brought the list of members at most, how often one may leave, and the rate at which
#: lists are looked at, however many come.
BRING_EVERY, LEAVE_EVERY, ROSTERS_PER_SECOND = 10.0, 60.0, 1.0
#: One HELLO in so many goes to a member who is no neighbour.
STRANGERS = 4
#: What a peer says in a BYE: that it will be back, or not.
STOPS, LEAVES = b"stops", b"leaves"


class Send(NamedTuple):
    """What to send to whom: a packet; or the list of members, which anybody may bring, as the steward has signed it."""

    to: int  # address, or EVERYONE
    data: bytes
    roster: bool = False


def declared(method: Any, name: str, default: Any) -> Any:
    """A part that a method, or the one that it wraps, may have."""
    if hasattr(method, name):
        return getattr(method, name)
    return declared(method.method, name, default) if hasattr(method, "method") else default


class Node:
    """One peer, as its transport and its clock see it.

    Parameters
    ----------
    charter : Charter
    signed_roster : bytes
        The list of members, as the steward has signed it.
    address : int
        Which of them this peer is.
    method : rule
        What the charter says, made by :func:`coterie.peers.tables.method_of`.
    work : Work
    sign : callable
        Bytes to an Ed25519 signature.
    store : Store
        Where the state is kept.
    ledger : coterie.privacy.Ledger, optional
        Of a private method.
    random : callable
        A number of bytes to as many random ones. Real peers use the operating system's.
    dice : callable
        A number to as many uniform numbers, for the method. Default: the operating system's, which a ledger on disk
        insists on.
    epoch : int
        The number of the boot is at least this: seconds since 1970 let a peer that has lost its state be heard again.
    """

    def __init__(
        self,
        charter: Charter,
        signed_roster: bytes,
        address: int,
        method: Any,
        work: Work,
        sign: Callable[[bytes], bytes],
        store: Store,
        *,
        ledger: Any = None,
        random: Callable[[int], bytes],
        dice: Callable[[int], np.ndarray] | None = None,
        epoch: int = 0,
    ):
        self.charter, self.address, self.method, self.work = charter, address, method, work
        self.signed_roster, self.roster = signed_roster, read_roster(signed_roster, charter)
        self.roster.member(address)  # or it raises
        self._sign, self._store, self._random, self._dice = sign, store, random, dice
        self.ledger = ledger
        self._run = bytes.fromhex(charter.run)
        self.gate = Gate(self._run, address, charter.letter_bytes, charter.letters_per_second, charter.max_rows)
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self._rosters = Bucket(ROSTERS_PER_SECOND, 8.0)
        self._brought: dict[int, float] = {}  # when a member was last given the list of members
        self._left: dict[int, float] = {}  # when a member last said that it leaves
        self._stale = False  # whether the largest data set heard of is larger than the world says
        self._opened = False
        self.heard: dict[int, float] = {}  # when a member was last heard
        self.proven: set[int] = set()  # who has answered to this boot
        self.gone: set[int] = set()  # who has left for good
        self.trouble: Counter[str] = Counter()
        self.wakes = self.boot = self.sequence = 0
        self._largest = min(work.size, charter.max_rows)
        self._nonce = random(16)
        self._hello: dict[int, tuple[float, float]] = {}  # when to say it next, and how long to wait then
        self._started = self._wake_at = self._refresh_at = 0.0
        self._turn = 0
        self.last_refusal = self.last_trouble = ""
        saved = store.load()
        record = None if saved is None else read_record(saved, str(getattr(store, "path", "the state")))
        if record is not None:
            self._recall(record)
        self._remembers = declared(method, "remembers", False)
        self._admit()
        self.peer = Peer(method, self._world_with(self.roster.neighbours(address)), work.theta, ledger)
        if record is not None:
            self.peer.resume(*restored(self.peer, record.arrays))
            self.peer.renew(self._world())
        self.peer.recover()
        self._terms = Terms(method, self.peer.lengths, work.p, charter.radius, work.radius, work.outputs)
        self.boot = max(self.boot + 1, epoch)

    def _admit(self) -> None:
        """Let the members in, and remember who they are."""
        self.members = {member.address: member.key for member in self.roster.members}
        self.gate.admit(self.members)

    def _recall(self, record: Record) -> None:
        """What was kept beside the method's own state."""
        if record.run != self.charter.run:
            raise StateError(
                f"the state is of run {record.run}, and this is run {self.charter.run}: use another folder"
            )
        if record.address != self.address:
            raise StateError(f"the state is that of member {record.address}, and this is {self.address}")
        self.boot, self.wakes = record.boot, record.wakes
        self._largest = max(self._largest, record.largest)
        self.gone = set(record.gone)
        self.gate.last = {bytes.fromhex(key): number for key, number in record.last.items()}

    # -- what it knows ------------------------------------------------------------------------------------------------

    @property
    def learns(self) -> bool:
        """Whether its ties are learned."""
        return self.charter.learned is not None

    @property
    def ties(self) -> dict[int, float]:
        """Its neighbours, and the weights of the ties."""
        world = self.peer.world
        return {int(j): float(w) for j, w in zip(world.peer, world.weight, strict=True) if j != VACANT}

    @property
    def theta(self) -> np.ndarray:
        """The model as others may see it."""
        return self.peer.theta

    @property
    def largest(self) -> int:
        """M of the confidences: the public number, or the largest data set heard of."""
        return self._largest if self.charter.confidence == "gossip" else self.charter.max_rows

    @property
    def next_time(self) -> float:
        """When to call :meth:`tick` at the latest."""
        return min([self._wake_at, self._refresh_at, *(at for at, _ in self._hello.values())])

    def _world(self) -> Any:
        """The world as it is now: own rows, and ties to those who are there."""
        return self._world_with(self.ties if self.learns else self.roster.neighbours(self.address))

    def _world_with(self, known: dict[int, float]) -> Any:
        ties = {j: w for j, w in known.items() if j in self.members and j not in self.gone}
        n_agents = max(self.members) + 1
        spare = declared(self.method, "spare", 0)
        return world_of_one(self.work, self.address, ties, n_agents, self.largest, 4 * spare)

    # -- what happens to it -------------------------------------------------------------------------------------------

    def open(self, now: float) -> list[Send]:
        """Begin. The number of this boot is on disk before anything is sent, or it raises a StateError."""
        try:
            self._store.save(self.record())
        except OSError as error:
            raise StateError(f"the peer cannot begin, because its state cannot be saved: {error}") from error
        self._opened, self._started = True, now
        self._wake_at = now + self._pause(self.charter.rate)
        self._refresh_at = now + self._pause(self.charter.rate / REFRESH)
        for j in self.ties:
            self._hello[j] = (now, PATIENCE)
        return self._say_hello(now)

    def tick(self, now: float) -> list[Send]:
        """Do what is due."""
        out = self._say_hello(now)
        if now >= self._refresh_at:
            self._refresh_at = now + self._pause(self.charter.rate / REFRESH)
            self._look_around()
            ties = sorted(self.ties)
            self._turn += 1
            if ties:
                out.append(self._greeting(HELLO, ties[self._turn % len(ties)], self._nonce))
            others = sorted(set(self.members) - set(ties) - {self.address})
            if others and (self._turn % STRANGERS == 0 or not ties):
                # News of members must also reach one whose neighbours have all gone.
                out.append(self._greeting(HELLO, others[self._draw(len(others))], self._nonce))
        if now >= self._wake_at:
            self._wake_at = now + self._pause(self.charter.rate)
            out += self._wake(now)
        return out

    def receive(self, now: float, owner: int, data: bytes) -> list[Send]:
        """Take in what came by a key of ``owner``. What does not pass the gate is counted, and that is all."""
        try:
            packet = self.gate.check(now, owner, data)
            self.heard[owner] = now
            return self._take_letter(now, packet) if packet.kind >= 0 else self._take_notice(now, packet)
        except Refused as refusal:
            self.gate.refused[refusal.reason] += 1
            self.last_refusal = str(refusal)
            return []

    def take_roster(self, now: float, signed: bytes) -> list[Send]:
        """A list of members, from anywhere: it is the steward's signature that counts, and that it is newer."""
        if signed == self.signed_roster:
            return []
        if not self._rosters.take(now):
            self.gate.refused["rate"] += 1
            return []
        try:
            roster = read_roster(signed, self.charter)
        except DataError as error:
            self.gate.refused["signature"] += 1
            self.last_refusal = f"a roster: {error}"
            return []
        if not newer(self.roster, roster):
            return []
        if self.address not in {member.address for member in roster.members}:
            self.trouble["removed"] += 1
            self.last_trouble = "the steward has removed this peer from the group"
            return []
        removed = set(self.ties) - {member.address for member in roster.members}
        self.roster, self.signed_roster = roster, signed
        self._admit()
        self.proven &= set(self.members)
        self._hello = {j: at for j, at in self._hello.items() if j in self.members}
        self._retie(now)
        told = [Send(j, signed, roster=True) for j in removed]  # it would not know why nobody answers
        return told + [send for j in self.ties if j in self.proven for send in self._bring(now, j)]

    def close(self, leave: bool = False) -> list[Send]:
        """End: keep the state, and tell the neighbours. With ``leave``, that it is for good."""
        if not (self._opened and self._save() and self.ties):
            return []
        return [self._packet(EVERYONE, BYE, LEAVES if leave else STOPS)]

    # -- time ---------------------------------------------------------------------------------------------------------

    def _pause(self, rate: float) -> float:
        """Until the next tick of a Poisson clock."""
        uniform = int.from_bytes(self._random(7), "little") / 256.0**7
        return -math.log1p(-uniform) / rate

    def _draw(self, count: int) -> int:
        """A random number below ``count``."""
        return int.from_bytes(self._random(7), "little") % count

    def _wake(self, now: float) -> list[Send]:
        """A wake of the method. Nothing leaves before what it has changed is on disk."""
        if not self.ready:
            return []
        if self._stale:
            self._stale = False
            self.peer.renew(self._world())
        dice = None if self._dice is None else self._dice(self.method.dice)
        letters = self.peer.wake(dice, moment=(now - self._started) * self.charter.rate)
        self.wakes += 1
        norm = float(np.linalg.norm(self.peer.theta))
        if not np.isfinite(norm):
            self._revert()
            return []
        if norm > self.charter.radius:
            self.trouble["radius"] += 1
            self.last_trouble = (
                f"the model's norm is {norm:.4g}, and no neighbour takes in one above {self.charter.radius:g}: "
                "scale the data, or agree on a larger radius"
            )
        return self._packets(now, letters) if self._save() else []

    @property
    def ready(self) -> bool:
        """Whether to wake. A private peer does not spend its budget on neighbours that are not there yet."""
        if self.ledger is None or self.ledger.exhausted:
            return True
        here = len(self.proven) if self.learns else sum(j in self.proven for j in self.ties)
        return here >= (1 if self.learns else max(1, (len(self.ties) + 1) // 2))

    def _revert(self) -> None:
        """Go back to what was saved last: something that came has ruined what there is now."""
        self.trouble["reverted"] += 1
        self.last_trouble = "the model was not finite, and is again what was saved last"
        saved = self._store.load()
        if saved is not None:
            self.peer.resume(*restored(self.peer, read_record(saved).arrays))
            self.peer.renew(self._world())

    def _say_hello(self, now: float) -> list[Send]:
        """To those who have not answered yet, more and more rarely."""
        out, ties = [], self.ties
        for j, (at, wait) in list(self._hello.items()):
            if at > now:
                continue
            if j not in ties and wait > GIVE_UP:
                del self._hello[j]
                continue
            self._hello[j] = (now + wait, min(2.0 * wait, LONGEST_PATIENCE))
            out.append(self._greeting(HELLO, j, self._nonce))
            if wait > PATIENCE and self._may_bring(now, j):  # it may not know yet that there is such a member
                out.append(Send(j, self.signed_roster, roster=True))
        return out

    def _may_bring(self, now: float, to: int) -> bool:
        """Whether it is long enough since somebody was last given the list of members."""
        if now < self._brought.get(to, -math.inf) + BRING_EVERY:
            return False
        self._brought[to] = now
        return True

    def _bring(self, now: float, j: int) -> list[Send]:
        """The list of members, for one who has an older one."""
        return [self._packet(j, ROSTER, self.signed_roster)] if self._may_bring(now, j) else []

    # -- letters ------------------------------------------------------------------------------------------------------

    def _take_letter(self, now: float, packet: Packet) -> list[Send]:
        """A letter of the method."""
        j = packet.sender
        if j not in self.proven:
            self._prove(now, j)
            raise Refused("unproven", f"{j} has not answered to this boot yet")
        text = check_letter(self._terms, self.members, packet)
        self._learn_largest(packet.largest)
        try:
            replies = self.peer.take(j, packet.kind, text)
        except (ArithmeticError, ValueError, IndexError, CapacityError) as error:
            self.peer.resume(self.peer.world, self.peer.own, self.peer.tie)  # what it was about to send is gone
            raise Refused("method", f"{self.method!r} raised {error!r} at a letter from {j}") from error
        self.received["letters"] += 1
        return self._packets(now, replies)

    def _take_notice(self, now: float, packet: Packet) -> list[Send]:
        """What peers say to each other."""
        j, out = packet.sender, []
        if packet.kind in (HELLO, WELCOME):
            try:
                hello = read_hello(packet.content)
            except DataError as error:
                raise Refused("format", str(error)) from None
            if packet.kind == HELLO:
                out.append(self._greeting(WELCOME, j, hello.nonce))
                if j in self.gone:
                    self.gone.discard(j)
                    self._retie(now)
                if j not in self.proven:
                    self._prove(now, j)
                out += self._packets(now, self._greetings(j))
                out += self._say_hello(now)
            elif hello.nonce == self._nonce:
                fresh = j not in self.proven
                self.proven.add(j)
                self._hello.pop(j, None)
                out += self._packets(now, self._greetings(j)) if fresh else []
            if hello.roster < self.roster.version:
                out += self._bring(now, j)
            self._learn_largest(packet.largest)
        elif packet.kind == BYE:
            if j not in self.proven:
                self._prove(now, j)
                raise Refused("unproven", f"a goodbye of {j}, who has not answered to this boot yet")
            if packet.content == LEAVES:
                if now < self._left.get(j, -math.inf) + LEAVE_EVERY:
                    raise Refused("rate", f"{j} leaves again and again")
                self._left[j] = now
                self.gone.add(j)
                self.proven.discard(j)
                self._hello.pop(j, None)
                self._retie(now)
                self._save()
        elif packet.kind == ROSTER:
            out += self.take_roster(now, packet.content)
        else:
            raise Refused("format", f"kind {packet.kind} from {j}")
        self.received["notices"] += 1
        return out

    def _greetings(self, j: int) -> list[Outgoing]:
        """The method's greeting, to one neighbour: for who has just begun, or may have missed something.

        A method that remembers more of a tie than a model would forget it for that; its next exchange says it all.
        """
        letters = [] if self._remembers else [letter for letter in self.peer.greet() if letter.to == j]
        return [self._tie_letter(j), *letters] if self.learns else letters

    def _tie_letter(self, j: int) -> Outgoing:
        """A tie of a learned graph as this end knows it, or that there is none: one end may have missed a change."""
        slots = np.flatnonzero(self.peer.world.peer == j)
        text = np.zeros(WEIGHT_LENGTH)
        if slots.size:
            tie, k = self.peer.tie, int(slots[0])
            text[:] = self.peer.world.weight[k], tie.stamp[k], tie.square[k]
        return Outgoing(self.address, j, WEIGHT, text)

    def _look_around(self) -> None:
        """Put a random member into the view of a sampler that swaps views: what gets lost would not come back."""
        view = getattr(getattr(self.peer.own, "known", None), "address", None)
        if view is None:
            return
        strangers = sorted(set(self.members) - {self.address} - set(view[0].tolist()))
        if strangers:
            vacant = np.flatnonzero(view[0] == VACANT)
            place = int(vacant[0]) if vacant.size else self._draw(view.shape[1])
            view[0, place], self.peer.own.known.age[0, place] = strangers[self._draw(len(strangers))], 0

    def _prove(self, now: float, j: int) -> None:
        """Ask for a sign of life, unless that is under way."""
        self._hello.setdefault(j, (now, PATIENCE))

    def _packets(self, now: float, letters: Iterable[Outgoing]) -> list[Send]:
        """Letters of the method, as packets: those that all neighbours get alike, once for all of them."""
        copies: dict[tuple[int, bytes], list[int]] = {}
        for letter in letters:
            if letter.to in self.members:
                copies.setdefault((letter.kind, write_numbers(letter.text)), []).append(letter.to)
        out: list[Send] = []
        if not copies:
            return out
        everyone = set(self.ties)
        for (kind, content), to in copies.items():
            goals = [EVERYONE] if len(to) > 1 and set(to) == everyone else to
            for j in to:
                if j not in self.proven:
                    self._prove(now, j)
            out += [self._packet(j, kind, content) for j in goals]
            self.sent["letters"] += len(to)
        return out

    def _greeting(self, kind: int, to: int, nonce: bytes) -> Send:
        return self._packet(to, kind, write_hello(nonce, self.roster.version))

    def _packet(self, to: int, kind: int, content: bytes) -> Send:
        """Sign, with the next number."""
        self.sequence += 1
        largest = self._largest if self.charter.confidence == "gossip" else 0
        packet = Packet(VERSION, self._run, self.address, to, self.boot, self.sequence, largest, kind, content)
        data = write_packet(packet, self._sign)
        self.sent["packets"] += 1
        self.sent["bytes"] += len(data)
        return Send(to, data)

    # -- what it keeps ------------------------------------------------------------------------------------------------

    def _learn_largest(self, largest: int) -> None:
        """The gossiped maximum of the sizes: confidences are relative to it."""
        if self.charter.confidence == "gossip" and largest > self._largest:
            self._largest, self._stale = largest, True

    def _retie(self, now: float) -> None:
        """Members have come or gone: ties as they are now; those that stay keep what they remember."""
        before = set(self.ties)
        self.peer.renew(self._world())
        for j in set(self.ties) - before:
            self._prove(now, j)

    def _save(self) -> bool:
        """Whether it could be kept."""
        try:
            self._store.save(self.record())
        except OSError as error:
            self.trouble["disk"] += 1
            self.last_trouble = f"the state could not be saved: {error}"
            return False
        return True

    def record(self) -> bytes:
        """All that is kept, as the content of a file."""
        world = self.peer.world
        ties = {name: getattr(world, name) for name in ("peer", "inverse", "weight", "choice")}
        arrays = pack("own", self.peer.own) | pack("tie", self.peer.tie) | pack("world", ties)
        last = {key.hex(): number for key, number in self.gate.last.items()}
        gone = sorted(self.gone)
        return write_record(
            Record(self.charter.run, self.address, self.boot, self._largest, self.wakes, last, gone, arrays)
        )
