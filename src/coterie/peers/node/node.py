"""A peer without input or output: what to do when time passes, when a letter comes, when it begins and when it ends.

Time, randomness, storage and transport come from outside, so the same code runs over a real network, in memory, and in
the fault simulator (``tests/chaos``), where a failure can be replayed. Every call answers with the packets
to send.

Freshness
---------
Packets of a sender are numbered: (boot, sequence). A boot is a random number, drawn when a peer starts; so no number is
used twice, whatever happened to its clock and its files. A receiver takes letters of one boot of each sender: of the
one that has proved last that it speaks now. To ask for that, it says HELLO with a random nonce that it has for this one
sender and this one question; the signed WELCOME that echoes it proves the boot that it is of, and says where its
numbers are: only what is newer is taken from then on. A packet of another boot is not taken, but is a reason to ask.
Then an old packet never passes: of the proven boot, numbers grow; another boot cannot prove itself unless its process
answers to a question that was asked after the last proof, so after all that was ever taken of it.

So there is one question at a time for each sender, and it is void as soon as it is answered, and as soon as its sender
counts as not there. A boot that proves itself after another one has, which itself came after it, is a second process
with the same identity: its neighbours notice, and tell it.

Letters get lost. Who has just begun is sent the model as the method greets everybody at the start; and now and then a
peer says HELLO to one neighbour after the other, so that what was lost comes again in the end, also from neighbours
that have nothing new to say.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from ...core.letters import Bounds
from ...core.world import EVERYONE, VACANT
from ...core.wrap.learned import WEIGHT, WEIGHT_LENGTH
from ...engines.peer import Outgoing, Peer
from ...errors import CapacityError, DataError, SignatureError, StateError
from ..group.bulletins import CHARTER, Board, NotTaken, packaged, room, unbundled, unpackaged
from ..group.charter import Charter
from ..group.roster import Fork, Roster, described, read_roster, relation, signers
from ..model.work import Work, wire_of, world_of_one
from ..wire.gate import Gate, Refused, check_letter
from ..wire.limits import Bucket
from ..wire.packet import (
    BULLETIN,
    BYE,
    DUPLICATE,
    HEALTH,
    HELLO,
    ROSTER,
    VERSION,
    WELCOME,
    Packet,
    read_duplicate,
    read_hello,
    write_duplicate,
    write_hello,
    write_packet,
)
from .health import HealthBoard
from .inbox import NOBODY
from .state import Record, Store, pack, read_record, restored, write_record

#: Seconds until a HELLO that was not answered is said again, the first time and at most.
PATIENCE, LONGEST_PATIENCE = 0.5, 8.0
#: Mean wakes between two HELLOs to somebody who has answered already.
REFRESH = 16.0
#: How often in a second somebody is asked because of a packet of another boot, and how often at once.
ASK_RATE, ASK_BURST = 2.0, 4.0
#: Boots of a member that are remembered; seconds between two notices that there are two, and how long they are news.
MOST_BOOTS, DOUBLED_EVERY, DOUBLED_LASTS = 4, 5.0, 600.0
#: Who is no neighbour and does not answer is left alone after so many seconds' patience.
GIVE_UP = 4.0
#: Seconds: how often a member is brought the list of members at most, and how often one may leave.
BRING_EVERY, LEAVE_EVERY = 10.0, 60.0
#: How many lists of members are looked at in a second that one member brings, and that come without a name: visitors
#: and relays bring them. How many of them at once. So nobody can keep a list from those to whom others bring it.
ROSTERS_PER_SECOND, UNNAMED_PER_SECOND, ROSTERS_AT_ONCE = 1.0, 8.0, 8.0
#: Forks of the list of members that are remembered, so that each is told of once.
MOST_FORKS = 16
#: So many members that were removed are still known by their names.
MOST_FORMER = 1000
#: One HELLO in so many goes to a member who is no neighbour.
STRANGERS = 4
#: What a peer says in a BYE: that it will be back, or not.
STOPS, LEAVES = b"stops", b"leaves"


class Send(NamedTuple):
    """What to send to whom: a packet; or the list of members, which anybody may bring, as the steward has signed it."""

    to: int  # address, or EVERYONE
    data: bytes
    roster: bool = False


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
        What the charter says, made by :func:`coterie.peers.model.tables.method_of`.
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
    share_health : bool
        Whether the group may know how this peer is doing: see :mod:`~coterie.peers.node.health`.
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
        share_health: bool = False,
    ):
        self.charter, self.address, self.method, self.work = charter, address, method, work
        self.signed_roster, self.roster = signed_roster, read_roster(signed_roster, charter)
        self._digest = self.roster.digest
        self.key = self.roster.member(address).key  # or it raises
        self.fork: Fork | None = None  # two lists of members that do not go together
        self._forks: set[bytes] = set()  # those that were told of
        self._former: dict[int, str] = {}  # names of removed members by their addresses, which nobody gets again
        self.farewell: bytes | None = None  # the list of members that this peer is not on
        self.alarms: dict[str, str] = {}  # what somebody has to look at, as long as it lasts
        self.board = Board(signers(charter, self.roster), room(charter))
        self._sign, self._store, self._random, self._dice = sign, store, random, dice
        self.ledger = ledger
        self._run = bytes.fromhex(charter.run)
        self.gate = Gate(self._run, address, charter.letter_bytes, charter.letters_per_second, charter.max_rows)
        self.health = HealthBoard(
            self._run,
            address,
            sign,
            random,
            packet_bytes=charter.letter_bytes,
            shares=share_health,
            private=charter.privacy is not None,
        )
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.letters_by: Counter[int] = Counter()  # that were taken in, by sender
        self._rosters: dict[int, Bucket] = {}  # by who brings them
        self._brought: dict[int, float] = {}  # when a member was last given the list of members
        self._left: dict[int, float] = {}  # when a member last said that it leaves
        self._stale = False  # whether the largest data set heard of is larger than the world says
        self._opened = False
        self.heard: dict[int, float] = {}  # when a member was last heard
        self.proven: set[int] = set()  # who has answered to this boot: the gate knows with which of theirs
        self._asked: dict[int, bytes] = {}  # nonces that were not answered yet
        self._asking: dict[int, Bucket] = {}
        self._boots: dict[int, deque[int]] = {}  # of members: those that have proved themselves, but the last
        self._doubled: dict[int, float] = {}  # when it was last told that there are two of it
        self.gone: set[int] = set()  # who has left for good
        self.muted: frozenset[int] = frozenset()  # whom this peer does not want to hear
        self.trouble: Counter[str] = Counter()
        self.wakes = self.starts = self.sequence = 0
        self.boot = 1 + int.from_bytes(random(8), "little") % (2**53 - 1)
        self._largest = min(work.size, charter.max_rows)
        self._hello: dict[int, tuple[float, float]] = {}  # when to say it next, and how long to wait then
        self._started = self._wake_at = self._refresh_at = 0.0
        self._turn = 0
        self.last_refusal = self.last_trouble = ""
        saved = store.load()
        record = None if saved is None else read_record(saved, str(getattr(store, "path", "the state")))
        if record is not None:
            self._recall(record)
        self._admit()
        self.peer = Peer(method, self._world_with(self.roster.neighbours(address)), work.theta, ledger)
        if record is not None:
            self.peer.resume(*restored(self.peer, record.arrays))
            self.peer.renew(self._world())
        self.peer.recover()
        sent = self.peer.world.sent.shape[0]
        self._contents = wire_of(charter, method, Bounds(sent, charter.radius, work.radius, work.outputs))
        self.starts += 1

    def _admit(self) -> None:
        """Let the members in, and remember who they are."""
        self.members = {m.address: m.key for m in self.roster.members if m.address not in self.muted}
        self.gate.muted = self.muted
        self.gate.admit(self.members)
        self.health.admit(self.members)
        for j in {*self.proven, *self._asked, *self._hello} - set(self.members):
            self._count_out(j)

    def _recall(self, record: Record) -> None:
        """What was kept beside the method's own state."""
        path = getattr(self._store, "path", "the state")
        if record.run != self.charter.run:
            raise StateError(
                f"{path} is of run {record.run}, and the charter beside it of run {self.charter.run}. If the steward "
                "has amended the charter, go on from the model with: coterie peer accept FOLDER. If not, move that "
                "file away, and the peer begins again from its data"
            )
        if record.address != self.address:
            raise StateError(
                f"{path} is of member {record.address}, and this is {self.address}, since it was invited again: move "
                "that file away, and the peer begins again from its data"
            )
        self.starts, self.wakes = record.starts, record.wakes
        self._largest = max(self._largest, record.largest)
        self.gone = set(record.gone)

    # -- what it knows ------------------------------------------------------------------------------------------------

    def name_of(self, address: int) -> str:
        """What a member is called, or was when it left; of one that was never met, its address."""
        here = next((one.name for one in self.roster.members if one.address == address), None)
        return here or self._former.get(address) or str(address)

    @property
    def learns(self) -> bool:
        """Whether its ties are learned."""
        return self.charter.learned is not None

    @property
    def ties(self) -> dict[int, float]:
        """Its neighbours, and the weights of the ties."""
        world = self.peer.world
        return {j: w for j, w in zip(world.peer.tolist(), world.weight.tolist(), strict=True) if j != VACANT}

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
        return min([self._wake_at, self._refresh_at, self.health.next_time, *(at for at, _ in self._hello.values())])

    def _world(self) -> Any:
        """The world as it is now: own rows, and ties to those who are there."""
        return self._world_with(self.ties if self.learns else self.roster.neighbours(self.address))

    def _world_with(self, known: dict[int, float]) -> Any:
        ties = {j: w for j, w in known.items() if j in self.members and j not in self.gone}
        n_agents = max(self.members) + 1
        room = 4 * self.method.ties.spare
        return world_of_one(self.work, self.address, ties, n_agents, self.largest, room, self.method.training.batch)

    # -- what happens to it -------------------------------------------------------------------------------------------

    def open(self, now: float) -> list[Send]:
        """Begin. What it knows is on disk before anything is sent, or it raises a StateError."""
        try:
            self._store.save(self.record())
        except OSError as error:
            raise StateError(f"the peer cannot begin, because its state cannot be saved: {error}") from error
        self._opened, self._started = True, now
        self.health.open(now, self.starts)
        self._wake_at = now + self._pause(self.charter.rate)
        self._refresh_at = now + self._pause(self.charter.rate / REFRESH)
        for j in self.ties:
            self._hello[j] = (now, PATIENCE)
        return self._say_hello(now)

    def tick(self, now: float) -> list[Send]:
        """Do what is due."""
        out = self._say_hello(now)
        if self._doubled and now > max(self._doubled.values()) + DOUBLED_LASTS:
            self._doubled.clear()
            self.alarms.pop("duplicate", None)
        if now >= self._refresh_at:
            self._refresh_at = now + self._pause(self.charter.rate / REFRESH)
            self._refresh_view()
            ties = sorted(self.ties)
            self._turn += 1
            if ties:
                out.append(self._question(ties[self._turn % len(ties)]))
            others = sorted(set(self.members) - set(ties) - {self.address})
            if others and (self._turn % STRANGERS == 0 or not ties):
                # News of members must also reach one whose neighbours have all gone.
                out.append(self._question(others[self._draw(len(others))]))
        if now >= self._wake_at:
            self._wake_at = now + self._pause(self.charter.rate)
            out += self._wake(now)
        if now >= self.health.next_time:
            out += self._tell_health(now)
        return out

    def _tell_health(self, now: float) -> list[Send]:
        """Records of health, to all neighbours and to one other member: ties may leave parts that no tie connects."""
        told, ties = self.health.batch(now), set(self.ties)
        if told is None:
            return []
        others = sorted(set(self.members) - ties - {self.address})
        to = [EVERYONE] if ties else []
        to += [others[self._draw(len(others))]] if others else []
        return [self._packet(j, HEALTH, told) for j in to]

    def receive(self, now: float, owner: int, data: bytes) -> list[Send]:
        """Take in what came by a key of ``owner``. What does not pass the gate is counted, and that is all."""
        try:
            packet = self.gate.check(now, owner, data)
            if self._is_current(packet):
                self.heard[owner] = now
            elif packet.kind not in (HELLO, WELCOME, ROSTER):  # which are good at any time
                self._ask(now, owner)
                raise Refused("unproven", f"{owner} has not answered with boot {packet.boot:x} yet")
            return self._take_letter(now, packet) if packet.kind >= 0 else self._take_notice(now, packet)
        except Refused as refusal:
            self.gate.count(refusal.reason, owner)
            self.last_refusal = str(refusal)
            return []

    def mute(self, now: float, addresses: Iterable[int]) -> None:
        """Listen to these no longer, and forget what came from them; to those that were muted before, again."""
        self.muted = frozenset(addresses) - {self.address}
        self._admit()
        self._retie(now)
        if self._opened:
            self._save()

    def take_bulletins(self, now: float, bulletins: Iterable[bytes], by: int | None = None) -> list[Send]:
        """Bulletins of the steward, from a member or from this machine: keep what is new, and pass it on."""
        new = []
        for signed in bulletins:
            if self.board.knows(signed):
                continue
            if by is not None and not self.board.may_read(now, by):
                self.gate.count("rate", by)
                break
            try:
                self.board.take(signed)
                new.append(signed)
            except NotTaken as refusal:
                self.gate.count(refusal.reason, NOBODY if by is None else by)
                self.last_refusal = f"a bulletin, {'here' if by is None else f'from {by}'}: {refusal}"
        goals = [j for j in self.ties if j in self.proven and j != by]
        return [self._packet(j, BULLETIN, content) for content in self.board.packets(new) for j in goals]

    def take_signed(self, now: float, data: bytes) -> list[Send]:
        """What came in the way of lists of members, from anywhere: such a list, and bulletins."""
        try:
            roster, bulletins = unpackaged(data)
        except DataError as error:
            self.gate.refused["format"] += 1
            self.last_refusal = str(error)
            return []
        out = self.take_bulletins(now, bulletins, by=NOBODY)
        if not roster or (bulletins and (CHARTER, self.charter.run) in self.board.held):
            return out  # the list beside it is of a later run
        return out + self.take_roster(now, roster, by=NOBODY)

    @property
    def for_visitors(self) -> bytes:
        """What to hand to somebody who is no member, or still in a run that was amended: both are told why."""
        ended = [signed for (kind, run), signed in self.board.signed.items() if kind == CHARTER]
        return packaged(self.signed_roster, ended)

    def take_roster(self, now: float, signed: bytes, by: int | None = None) -> list[Send]:
        """A list of members, from anywhere: it is the steward's signature that counts, and that it is newer.

        ``by`` is the member that has brought it, or NOBODY; None: it is from this machine, and looked at in any case.
        """
        if signed == self.signed_roster or (self.fork is not None and signed == self.fork.other):
            return []
        if by is not None and not self._may_read_roster(now, by):
            self.gate.count("rate", by)
            return []
        if len(signed) > self.charter.letter_bytes:  # no letter could have carried it
            self.gate.count("size", NOBODY if by is None else by)
            return []
        try:
            roster = read_roster(signed, self.charter, held=self.roster)
        except DataError as error:
            # The steward's own, and of another run: somebody has not gone over to an amended charter yet.
            reason = "signature" if isinstance(error, SignatureError) else "run"
            self.gate.count(reason, NOBODY if by is None else by)
            self.last_refusal = f"a roster: {error}"
            return []
        what = relation(self.roster, roster)
        if what == "fork":
            return self._tell_of_fork(roster, signed)
        if what != "newer":
            return []
        if self.key not in {member.key for member in roster.members if member.address == self.address}:
            self.farewell = signed
            self.trouble["removed"] += 1
            self.last_trouble = self.alarms["removed"] = (
                f"the steward has removed this peer from the group (list of members, version {roster.version})"
            )
            return []
        here = {member.address for member in roster.members}
        self._former |= {one.address: one.name for one in self.roster.members if one.address not in here}
        while len(self._former) > MOST_FORMER:
            del self._former[next(iter(self._former))]
        removed = set(self.ties) - here
        self.roster, self.signed_roster, self._digest = roster, signed, roster.digest
        self._forks.clear()
        if self.fork is not None and relation(roster, read_roster(self.fork.other, self.charter)) != "fork":
            self.fork = None
            del self.alarms["fork"]
        self._admit()
        self.board.trust(signers(self.charter, roster))
        self._retie(now)
        told = [Send(j, signed, roster=True) for j in removed]  # it would not know why nobody answers
        return told + [send for j in self.ties if j in self.proven for send in self._bring(now, j)]

    def _may_read_roster(self, now: float, by: int) -> bool:
        """Whether one more list is to be looked at."""
        rate = UNNAMED_PER_SECOND if by == NOBODY else ROSTERS_PER_SECOND
        return self._rosters.setdefault(by, Bucket(rate, ROSTERS_AT_ONCE)).take(now)

    def _tell_of_fork(self, other: Roster, signed: bytes) -> list[Send]:
        """Keep what it holds, and give both lists to the neighbours: so everybody, and the steward, can see them."""
        digest = other.digest
        if digest in self._forks or len(self._forks) >= MOST_FORKS:
            return []
        self._forks.add(digest)
        self.trouble["fork"] += 1
        self.fork = Fork(self.signed_roster, signed)
        self.last_trouble = self.alarms["fork"] = described(self.fork, self.charter)
        near = [j for j in self.ties if j in self.proven]
        return [self._packet(j, ROSTER, one) for j in near for one in (self.signed_roster, signed)]

    def take_work(self, work: Work) -> None:
        """Other rows of its own: it goes on from what it has learned, and what it remembers of its neighbours.

        A private peer goes on within its budget: every release is debited, whatever rows it was made of, so that no
        row that ever was in the file is told more of than the whole budget allows.
        """
        if work.p != self.work.p:
            raise DataError(f"the new rows have {work.p} columns, and the model has {self.work.p} numbers")
        self.work = work._replace(model=self.work.model)
        self._largest = max(self._largest, min(work.size, self.charter.max_rows))
        self.peer.renew(self._world())
        self._save()

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
        dice = None if self._dice is None else self._dice(self.method.traffic.dice)
        letters = self.peer.wake(dice, moment=(now - self._started) * self.charter.rate)
        self.wakes += 1
        if self.learns and not self.ties.keys() <= self.members.keys() - self.gone:
            self.peer.renew(self._world())  # it had asked somebody who has gone since, and ties itself to the answer
        theta = self.peer.theta
        norm = float(np.linalg.norm(theta[self.peer.world.sent]))  # of what neighbours see
        if not (np.isfinite(norm) and np.isfinite(theta).all()):
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
            out.append(self._question(j))
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
        text = check_letter(self._contents, self.members, packet)
        self._learn_largest(packet.largest)
        try:
            replies = self.peer.take(j, packet.kind, text)
        except (ArithmeticError, ValueError, IndexError, CapacityError) as error:
            self.peer.resume(self.peer.world, self.peer.own, self.peer.tie)  # what it was about to send is gone
            raise Refused("method", f"{self.method!r} raised {error!r} at a letter from {j}") from error
        self.received["letters"] += 1
        self.letters_by[j] += 1
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
                if self._is_current(packet):
                    out += self._packets(now, self._greetings(j))
                else:
                    self._ask(now, j)
                out += self._say_hello(now)
            elif hello.nonce == self._asked.get(j):
                out += self._take_proof(now, packet)
            elif not self._is_current(packet):
                self._ask(now, j)
                raise Refused("unproven", f"the answer of {j} is not to a question of now")
            apart = hello.roster == self.roster.version and hello.digest not in (b"", self._digest)
            if hello.roster < self.roster.version or apart:
                out += self._bring(now, j)
            elif self.fork is not None and self._may_bring(now, j):  # as long as it lasts: the first word may be lost
                out.append(self._packet(j, ROSTER, self.fork.other))
            if hello.bulletins != self.board.digest:
                content = self.board.answer(now, j)
                out += [] if content is None else [self._packet(j, BULLETIN, content)]
            if self._is_current(packet):
                self._learn_largest(packet.largest)
        elif packet.kind == BYE:
            if packet.content == LEAVES:
                if now < self._left.get(j, -math.inf) + LEAVE_EVERY:
                    raise Refused("rate", f"{j} leaves again and again")
                self._left[j] = now
                self.gone.add(j)
                self._count_out(j)
                self._retie(now)
                self._save()
        elif packet.kind == ROSTER:
            out += self.take_roster(now, packet.content, by=j)
        elif packet.kind == DUPLICATE:
            self._hear_of_duplicate(now, packet)
        elif packet.kind == HEALTH:
            self.health.take(now, j, packet.content)
        elif packet.kind == BULLETIN:
            try:
                out += self.take_bulletins(now, unbundled(packet.content), j)
            except DataError as error:
                raise Refused("format", str(error)) from None
        else:
            raise Refused("format", f"kind {packet.kind} from {j}")
        self.received["notices"] += 1
        return out

    # -- who speaks now -----------------------------------------------------------------------------------------------

    def _is_current(self, packet: Packet) -> bool:
        """Whether a packet is of the boot of its sender that has proved last that it speaks now."""
        return packet.sender in self.proven and self.gate.boot_of(packet.sender) == packet.boot

    def _question(self, j: int) -> Send:
        """A HELLO, with the nonce of the question to j that is open, or of a new one."""
        nonce = self._asked.get(j)
        if nonce is None:
            nonce = self._asked[j] = self._random(16)
        return self._greeting(HELLO, j, nonce)

    def _ask(self, now: float, j: int) -> None:
        """Ask for a sign of life, unless that is under way. Packets of other boots may be old ones, and many."""
        if j not in self._hello:
            soon = self._asking.setdefault(j, Bucket(ASK_RATE, ASK_BURST)).take(now)
            self._hello[j] = (now if soon else now + PATIENCE, PATIENCE)

    def _count_out(self, j: int) -> None:
        """Somebody is not there any more: it has to prove again that it is, and not by an answer that is under way."""
        self.proven.discard(j)
        self._asked.pop(j, None)
        self._hello.pop(j, None)

    def _take_proof(self, now: float, packet: Packet) -> list[Send]:
        """The answer to an open question: from now on this boot is its sender's."""
        j, before = packet.sender, self.gate.boot_of(packet.sender)
        fresh = not self._is_current(packet)
        del self._asked[j]
        self._hello.pop(j, None)
        self.gate.prove(packet)
        self.proven.add(j)
        self.heard[j] = now
        out: list[Send] = []
        if before not in (None, packet.boot):
            known = self._boots.setdefault(j, deque(maxlen=MOST_BOOTS))
            if packet.boot in known:
                out += self._tell_of_duplicate(now, j, packet.boot, before)
            known.append(before)
        if j in self.gone:
            self.gone.discard(j)
            self._retie(now)
        return out + (self._packets(now, self._greetings(j)) if fresh else [])

    def _tell_of_duplicate(self, now: float, j: int, one: int, other: int) -> list[Send]:
        """Two processes run with the identity of j: whichever is told, it is news to both."""
        if now < self._doubled.get(j, -math.inf) + DOUBLED_EVERY:
            return []
        self._doubled[j] = now
        self.trouble["duplicate"] += 1
        self.last_trouble = self.alarms["duplicate"] = (
            f"two processes run with the identity of {self.name_of(j)} (boots {one:x} and {other:x})"
        )
        return [self._packet(j, DUPLICATE, write_duplicate(one, other))]

    def _hear_of_duplicate(self, now: float, packet: Packet) -> None:
        """A neighbour says that there are two of this peer. It may be wrong; so it is named."""
        try:
            told = read_duplicate(packet.content)
        except DataError as error:
            raise Refused("format", str(error)) from None
        if told.one == told.other or self.boot not in (told.one, told.other):
            return
        self._doubled[self.address] = now
        self.trouble["duplicate"] += 1
        self.last_trouble = self.alarms["duplicate"] = (
            f"another process runs with this identity (boots {told.one:x} and {told.other:x}), says "
            f"{self.name_of(packet.sender)}: stop one of them; a copied folder needs an identity of its own"
        )

    def _greetings(self, j: int) -> list[Outgoing]:
        """The method's greeting, to one neighbour: for who has just begun, or may have missed something.

        A method that remembers more of a tie than a model would forget it for that; its next exchange says it all.
        """
        letters = [] if self.method.promises.remembers else [letter for letter in self.peer.greet() if letter.to == j]
        return [self._tie_letter(j), *letters] if self.learns else letters

    def _tie_letter(self, j: int) -> Outgoing:
        """A tie of a learned graph as this end knows it, or that there is none: one end may have missed a change."""
        slots = np.flatnonzero(self.peer.world.peer == j)
        text = np.zeros(WEIGHT_LENGTH)
        if slots.size:
            tie, k = self.peer.tie, int(slots[0])
            text[:] = self.peer.world.weight[k], tie.stamp[k], tie.square[k]
        return Outgoing(self.address, j, WEIGHT, text)

    def _refresh_view(self) -> None:
        """Put a random member into the view of a sampler that swaps views: what gets lost would not come back."""
        view = getattr(getattr(self.peer.own, "known", None), "address", None)
        if view is None:
            return
        strangers = sorted(set(self.members) - {self.address} - set(view[0].tolist()))
        if strangers:
            vacant = np.flatnonzero(view[0] == VACANT)
            place = int(vacant[0]) if vacant.size else self._draw(view.shape[1])
            view[0, place], self.peer.own.known.age[0, place] = strangers[self._draw(len(strangers))], 0

    def _packets(self, now: float, letters: Iterable[Outgoing]) -> list[Send]:
        """Letters of the method, as packets: those that all neighbours get alike, once for all of them."""
        copies: dict[tuple[int, bytes], list[int]] = {}
        for letter in letters:
            if letter.to in self.members:
                copies.setdefault((letter.kind, self._contents.write(letter.kind, letter.text)), []).append(letter.to)
        out: list[Send] = []
        if not copies:
            return out
        everyone = set(self.ties)
        for (kind, content), to in copies.items():
            goals = [EVERYONE] if len(to) > 1 and set(to) == everyone else to
            for j in to:
                if j not in self.proven:
                    self._ask(now, j)
            out += [self._packet(j, kind, content) for j in goals]
            self.sent["letters"] += len(to)
        return out

    def _greeting(self, kind: int, to: int, nonce: bytes) -> Send:
        return self._packet(to, kind, write_hello(nonce, self.roster.version, self._digest, self.board.digest))

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
            self._ask(now, j)

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
        gone = sorted(self.gone)
        return write_record(
            Record(self.charter.run, self.address, self.starts, self._largest, self.wakes, gone, arrays)
        )
