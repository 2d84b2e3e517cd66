"""A peer without input or output: what to do when time passes, when a message comes, when it begins and when it ends.

Time, randomness, storage and transport come from outside, so the same code runs over a real network, in memory, and in
the fault simulator (``tests/chaos``), where a failure can be replayed. Every call answers with the packets to send.

What it knows of others is in three parts: who belongs to the group (:mod:`.membership`), who of them speaks now
(:mod:`.freshness`), and what comes and goes (:mod:`.mailbox`).

Messages get lost. Who has just begun is sent the model as the method greets everybody at the start; and now and then a
peer says HELLO to one neighbour after the other, so that what was lost comes again in the end, also from neighbours
that have nothing new to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ...core.arrays import EVERYONE, VACANT
from ...core.messages import Bounds
from ...core.wrap.learned import WEIGHT, WEIGHT_LENGTH
from ...engines.peer import Outgoing, Peer
from ...errors import CapacityError, DataError, StateError
from ..group.announcements import CHARTER, unbundled, unpackaged
from ..group.charter import Charter
from ..group.roster import described
from ..model.work import Work, arrays_of_one, wire_of
from ..wire import packet as wire
from ..wire.gate import check_message
from ..wire.packet import Packet, Refused
from .checks import ErrorCounts
from .health import HealthBoard
from .mailbox import NOBODY, Mailbox, Send
from .membership import Members
from .state import Record, Store, pack, read_record, restored, write_record

#: Mean wakes between two HELLOs to somebody who has answered already.
REFRESH = 16.0
#: One HELLO in so many goes to a member who is no neighbour.
STRANGERS = 4
#: What a peer says in a BYE: that it will be back, or not.
STOPS, LEAVES = b"stops", b"leaves"


class Node:
    """One peer, as its transport and its clock see it.

    Parameters
    ----------
    charter : Charter
    signed_roster : bytes
        The list of members, as the admin has signed it.
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
        self.charter, self.address, self.method, self.work, self.ledger = charter, address, method, work, ledger
        self._store, self._random, self._dice = store, random, dice
        self.group = Members(charter, signed_roster, address)
        self.mail = Mailbox(charter, address, sign, random)
        self.fresh = self.mail.fresh
        self.health = HealthBoard(
            bytes.fromhex(charter.run),
            address,
            sign,
            random,
            packet_bytes=charter.message_bytes,
            shares=share_health,
            private=charter.privacy is not None,
        )
        self.errors = ErrorCounts()
        self.wakes = self.starts = 0
        self._largest = min(work.size, charter.max_rows)
        self._stale = False  # whether the largest data set heard of is larger than the agents' arrays says
        self._opened = False
        self._started = self._wake_at = self._refresh_at = 0.0
        self._turn = 0
        saved = store.load()
        record = None if saved is None else read_record(saved, str(getattr(store, "path", "the state")))
        if record is not None:
            self._recall(record)
        self._admit()
        self.peer = Peer(method, self._arrays_with(self.group.roster.neighbours(address)), work.theta, ledger)
        if record is not None:
            self.peer.resume(*restored(self.peer, record.arrays))
            self.peer.renew(self._arrays())
        self.peer.recover()
        sent = self.peer.arrays.sent.shape[0]
        self._contents = wire_of(charter, method, Bounds(sent, charter.radius, work.radius, work.outputs))
        self.starts += 1

    def _admit(self) -> None:
        """Let the members in."""
        self.mail.gate.muted = self.group.muted
        self.mail.gate.admit(self.group.keys)
        self.health.admit(self.group.keys)
        self.fresh.keep(self.group.keys)

    def _recall(self, record: Record) -> None:
        """What was kept beside the method's own state."""
        path = getattr(self._store, "path", "the state")
        if record.run != self.charter.run:
            raise StateError(
                f"{path} is of run {record.run}, and the charter beside it of run {self.charter.run}. If the admin "
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
        self.group.gone = set(record.gone)

    # -- what it knows ------------------------------------------------------------------------------------------------

    @property
    def learns(self) -> bool:
        """Whether its edges are learned."""
        return self.charter.learned is not None

    @property
    def edges(self) -> dict[int, float]:
        """Its neighbours, and the weights of the edges."""
        arrays = self.peer.arrays
        return {j: w for j, w in zip(arrays.peer.tolist(), arrays.weight.tolist(), strict=True) if j != VACANT}

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
        return min(self._wake_at, self._refresh_at, self.health.next_time, self.fresh.next_time)

    def _arrays(self) -> Any:
        """The agents' arrays as it is now: own rows, and edges to those who are there."""
        return self._arrays_with(self.edges if self.learns else self.group.roster.neighbours(self.address))

    def _arrays_with(self, known: dict[int, float]) -> Any:
        edges = {j: w for j, w in known.items() if j in self.group.keys and j not in self.group.gone}
        n_agents = max(self.group.keys) + 1
        room = 4 * self.method.edges.spare
        return arrays_of_one(self.work, self.address, edges, n_agents, self.largest, room, self.method.training.batch)

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
        for j in self.edges:
            self.fresh.ask(now, j, at_once=True)
        return self._say_hello(now)

    def tick(self, now: float) -> list[Send]:
        """Do what is due."""
        out = self._say_hello(now)
        if self.fresh.doubles_are_over(now):
            self.errors.alerts.pop("duplicate", None)
        if now >= self._refresh_at:
            self._refresh_at = now + self._pause(self.charter.rate / REFRESH)
            self._refresh_view()
            edges = sorted(self.edges)
            self._turn += 1
            if edges:
                out.append(self._question(edges[self._turn % len(edges)]))
            others = sorted(set(self.group.keys) - set(edges) - {self.address})
            if others and (self._turn % STRANGERS == 0 or not edges):
                # News of members must also reach one whose neighbours have all gone.
                out.append(self._question(others[self._draw(len(others))]))
        if now >= self._wake_at:
            self._wake_at = now + self._pause(self.charter.rate)
            out += self._wake(now)
        if now >= self.health.next_time:
            out += self._tell_health(now)
        return out

    def _tell_health(self, now: float) -> list[Send]:
        """Records of health, to all neighbours and to one other member: edges may leave parts that no edge connects."""
        told, edges = self.health.batch(now), set(self.edges)
        if told is None:
            return []
        others = sorted(set(self.group.keys) - edges - {self.address})
        to = [EVERYONE] if edges else []
        to += [others[self._draw(len(others))]] if others else []
        return [self._packet(j, wire.HEALTH, told) for j in to]

    def receive(self, now: float, owner: int, data: bytes) -> list[Send]:
        """Take in what came by a key of ``owner``. What does not pass the gate is counted, and that is all."""
        try:
            packet = self.mail.take(now, owner, data)
            return self._take_message(now, packet) if packet.kind >= 0 else self._take_notice(now, packet)
        except Refused as refusal:
            self.mail.refuse(refusal, owner)
            return []

    def mute(self, now: float, addresses: Iterable[int]) -> None:
        """Listen to these no longer, and forget what came from them; to those that were muted before, again."""
        self.group.mute(addresses)
        self._admit()
        self._retie(now)
        if self._opened:
            self._save()

    def take_announcements(self, now: float, announcements: Iterable[bytes], by: int | None = None) -> list[Send]:
        """Announcements of the admin, from a member or from this machine: keep what is new, and pass it on."""
        board, new = self.group.board, []
        for signed in announcements:
            if board.knows(signed):
                continue
            if by is not None and not board.reads.take(by, now):
                self.mail.refuse(Refused("rate", f"announcements from {by}"), by)
                break
            try:
                board.take(signed)
                new.append(signed)
            except Refused as refusal:
                what = f"an announcement, {'here' if by is None else f'from {by}'}: "
                self.mail.refuse(refusal, NOBODY if by is None else by, what)
        goals = [j for j in self._near() if j != by]
        return [self._packet(j, wire.ANNOUNCEMENT, content) for content in board.packets(new) for j in goals]

    def take_signed(self, now: float, data: bytes) -> list[Send]:
        """What came in the way of lists of members, from anywhere: such a list, and announcements."""
        try:
            roster, announcements = unpackaged(data)
        except DataError as error:
            self.mail.refuse(Refused("format", str(error)))
            return []
        out = self.take_announcements(now, announcements, by=NOBODY)
        if not roster or (announcements and (CHARTER, self.charter.run) in self.group.board.held):
            return out  # the list beside it is of a later run
        return out + self.take_roster(now, roster, by=NOBODY)

    def take_roster(self, now: float, signed: bytes, by: int | None = None) -> list[Send]:
        """A list of members, from anywhere: see :meth:`~coterie.peers.node.membership.Members.take`."""
        group = self.group
        try:
            news = group.take(now, signed, by)
        except Refused as refusal:
            self.mail.refuse(refusal, NOBODY if by is None else by)
            return []
        if news.what == "fork" and group.fork is not None:
            self.errors.report("fork", described(group.fork, self.charter), alert=True)
            # Both lists go to the neighbours: so everybody, and the admin, can see them.
            return [self._packet(j, wire.ROSTER, one) for j in self._near() for one in (group.signed, signed)]
        if news.what == "removed":
            version = f"list of members, version {news.roster.version}"
            self.errors.report("removed", f"the admin has removed this peer from the group ({version})", alert=True)
        if news.what != "newer":
            return []
        removed = set(self.edges) - {member.address for member in news.roster.members}
        if group.fork is None:
            self.errors.alerts.pop("fork", None)
        self._admit()
        self._retie(now)
        told = [Send(j, signed, roster=True) for j in removed]  # it would not know why nobody answers
        return told + [send for j in self._near() for send in self._bring(now, j)]

    def _near(self) -> list[int]:
        """Neighbours that speak now."""
        return [j for j in self.edges if j in self.fresh.proven]

    def take_work(self, work: Work) -> None:
        """Other rows of its own: it goes on from what it has learned, and what it remembers of its neighbours.

        A private peer goes on within its budget: every release is debited, whatever rows it was made of, so that no
        row that ever was in the file is told more of than the whole budget allows.
        """
        if work.p != self.work.p:
            raise DataError(f"the new rows have {work.p} columns, and the model has {self.work.p} numbers")
        self.work = work._replace(model=self.work.model)
        self._largest = max(self._largest, min(work.size, self.charter.max_rows))
        self.peer.renew(self._arrays())
        self._save()

    def close(self, leave: bool = False) -> list[Send]:
        """End: keep the state, and tell the neighbours. With ``leave``, that it is for good."""
        if not (self._opened and self._save() and self.edges):
            return []
        return [self._packet(EVERYONE, wire.BYE, LEAVES if leave else STOPS)]

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
            self.peer.renew(self._arrays())
        dice = None if self._dice is None else self._dice(self.method.traffic.dice)
        messages = self.peer.wake(dice, moment=(now - self._started) * self.charter.rate)
        self.wakes += 1
        if self.learns and not self.edges.keys() <= self.group.keys.keys() - self.group.gone:
            self.peer.renew(self._arrays())  # it had asked somebody who has gone since, and edges itself to the answer
        theta = self.peer.theta
        norm = float(np.linalg.norm(theta[self.peer.arrays.sent]))  # of what neighbours see
        if not (np.isfinite(norm) and np.isfinite(theta).all()):
            self._revert()
            return []
        if norm > self.charter.radius:
            self.errors.report(
                "radius",
                f"the model's norm is {norm:.4g}, and no neighbour takes in one above {self.charter.radius:g}: "
                "scale the data, or agree on a larger radius",
            )
        return self._packets(now, messages) if self._save() else []

    @property
    def ready(self) -> bool:
        """Whether to wake. A private peer does not spend its budget on neighbours that are not there yet."""
        if self.ledger is None or self.ledger.exhausted:
            return True
        here = len(self.fresh.proven) if self.learns else len(self._near())
        return here >= (1 if self.learns else max(1, (len(self.edges) + 1) // 2))

    def _revert(self) -> None:
        """Go back to what was saved last: something that came has ruined what there is now."""
        self.errors.report("reverted", "the model was not finite, and is again what was saved last")
        saved = self._store.load()
        if saved is not None:
            self.peer.resume(*restored(self.peer, read_record(saved).arrays))
            self.peer.renew(self._arrays())

    def _say_hello(self, now: float) -> list[Send]:
        """To those who have not answered yet, more and more rarely."""
        out = []
        for j, in_vain in self.fresh.due(now, self.edges):
            out.append(self._question(j))
            if in_vain and self.group.may_bring(now, j):  # it may not know yet that there is such a member
                out.append(Send(j, self.group.signed, roster=True))
        return out

    def _bring(self, now: float, j: int) -> list[Send]:
        """The list of members, for one who has an older one."""
        return [self._packet(j, wire.ROSTER, self.group.signed)] if self.group.may_bring(now, j) else []

    # -- messages ------------------------------------------------------------------------------------------------------

    def _take_message(self, now: float, packet: Packet) -> list[Send]:
        """A message of the method."""
        j = packet.sender
        text = check_message(self._contents, self.group.keys, packet)
        self._learn_largest(packet.largest)
        try:
            replies = self.peer.take(j, packet.kind, text)
        except (ArithmeticError, ValueError, IndexError, CapacityError) as error:
            self.peer.resume(self.peer.arrays, self.peer.own, self.peer.edge)  # what it was about to send is gone
            raise Refused("method", f"{self.method!r} raised {error!r} at a message from {j}") from error
        self.mail.received["messages"] += 1
        self.mail.messages_by[j] += 1
        return self._packets(now, replies)

    def _take_notice(self, now: float, packet: Packet) -> list[Send]:
        """What peers say to each other."""
        j, content, out = packet.sender, packet.content, list[Send]()
        if packet.kind in (wire.HELLO, wire.WELCOME):
            out = self._take_hello(now, packet)
        elif packet.kind == wire.BYE:
            if content == LEAVES:
                self.group.leaves(now, j)
                self.fresh.count_out(j)
                self._retie(now)
                self._save()
        elif packet.kind == wire.ROSTER:
            out = self.take_roster(now, content, by=j)
        elif packet.kind == wire.DUPLICATE:
            self._hear_of_duplicate(now, packet)
        elif packet.kind == wire.HEALTH:
            self.health.take(now, j, content)
        elif packet.kind == wire.ANNOUNCEMENT:
            out = self.take_announcements(now, unbundled(content), j)
        else:
            raise Refused("format", f"kind {packet.kind} from {j}")
        self.mail.received["notices"] += 1
        return out

    # -- who speaks now -----------------------------------------------------------------------------------------------

    def _take_hello(self, now: float, packet: Packet) -> list[Send]:
        """A question, or an answer; and what its sender is to be told."""
        j, hello, group, out = packet.sender, wire.read_hello(packet.content), self.group, list[Send]()
        current = self.fresh.is_current(packet)
        if packet.kind == wire.HELLO:
            out.append(self._greeting(wire.WELCOME, j, hello.nonce))
            if current:
                out += self._packets(now, self._greetings(j))
            else:
                self.fresh.ask(now, j)
            out += self._say_hello(now)
        elif self.fresh.is_answer(j, hello.nonce):
            out += self._take_proof(now, packet)
        elif not current:
            self.fresh.ask(now, j)
            raise Refused("unproven", f"the answer of {j} is not to a question of now")
        apart = hello.roster == group.roster.version and hello.digest not in (b"", group.digest)
        if hello.roster < group.roster.version or apart:
            out += self._bring(now, j)
        elif group.fork is not None and group.may_bring(now, j):  # as long as it lasts: the first word may be lost
            out.append(self._packet(j, wire.ROSTER, group.fork.other))
        if hello.announcements != group.board.digest:
            content = group.board.answer(now, j)
            out += [] if content is None else [self._packet(j, wire.ANNOUNCEMENT, content)]
        if self.fresh.is_current(packet):
            self._learn_largest(packet.largest)
        return out

    def _question(self, j: int) -> Send:
        """A HELLO, with the nonce of the question to j that is open, or of a new one."""
        return self._greeting(wire.HELLO, j, self.fresh.nonce_for(j))

    def _take_proof(self, now: float, packet: Packet) -> list[Send]:
        """The answer to an open question: from now on this session is its sender's."""
        j, out = packet.sender, list[Send]()
        is_new, twin = self.fresh.prove(now, packet)
        if twin is not None and self.fresh.doubled(now, j):  # whichever of the two is told, it is news to both
            sessions = f"sessions {packet.session:x} and {twin:x}"
            text = f"two processes run with the identity of {self.group.name_of(j)} ({sessions})"
            self.errors.report("duplicate", text, alert=True)
            out.append(self._packet(j, wire.DUPLICATE, wire.write_duplicate(packet.session, twin)))
        if j in self.group.gone:
            self.group.gone.discard(j)
            self._retie(now)
        return out + (self._packets(now, self._greetings(j)) if is_new else [])

    def _hear_of_duplicate(self, now: float, packet: Packet) -> None:
        """A neighbour says that there are two of this peer. It may be wrong; so it is named."""
        told = wire.read_duplicate(packet.content)
        if told.one == told.other or self.fresh.session not in (told.one, told.other):
            return
        self.fresh.doubled(now, self.address, every=0.0)
        self.errors.report(
            "duplicate",
            f"another process runs with this identity (sessions {told.one:x} and {told.other:x}), says "
            f"{self.group.name_of(packet.sender)}: stop one of them; a copied folder needs an identity of its own",
            alert=True,
        )

    def _greetings(self, j: int) -> list[Outgoing]:
        """The method's greeting, to one neighbour: for who has just begun, or may have missed something.

        A method that remembers more of an edge than a model would forget it for that; its next exchange says it all.
        """
        messages = (
            [] if self.method.promises.remembers else [message for message in self.peer.greet() if message.to == j]
        )
        if not self.learns:
            return messages
        # An edge as this end knows it, or that there is none: one end may have missed a change.
        slots = np.flatnonzero(self.peer.arrays.peer == j)
        text = np.zeros(WEIGHT_LENGTH)
        if slots.size:
            edge, k = self.peer.edge, int(slots[0])
            text[:] = self.peer.arrays.weight[k], edge.stamp[k], edge.square[k]
        return [Outgoing(self.address, j, WEIGHT, text), *messages]

    def _refresh_view(self) -> None:
        """Put a random member into the view of a sampler that swaps views: what gets lost would not come back."""
        view = getattr(getattr(self.peer.own, "known", None), "address", None)
        if view is None:
            return
        strangers = sorted(set(self.group.keys) - {self.address} - set(view[0].tolist()))
        if strangers:
            vacant = np.flatnonzero(view[0] == VACANT)
            place = int(vacant[0]) if vacant.size else self._draw(view.shape[1])
            view[0, place], self.peer.own.known.age[0, place] = strangers[self._draw(len(strangers))], 0

    def _packets(self, now: float, messages: Iterable[Outgoing]) -> list[Send]:
        """Messages of the method, as packets."""
        out: list[Send] = []
        for goals, to, kind, content in self.mail.addressed(messages, self._contents, self.group.keys, self.edges):
            for j in to:
                if j not in self.fresh.proven:
                    self.fresh.ask(now, j)
            out += [self._packet(j, kind, content) for j in goals]
        return out

    def _greeting(self, kind: int, to: int, nonce: bytes) -> Send:
        group = self.group
        return self._packet(to, kind, wire.write_hello(nonce, group.roster.version, group.digest, group.board.digest))

    def _packet(self, to: int, kind: int, content: bytes) -> Send:
        return self.mail.packet(to, kind, content, self._largest if self.charter.confidence == "gossip" else 0)

    # -- what it keeps ------------------------------------------------------------------------------------------------

    def _learn_largest(self, largest: int) -> None:
        """The gossiped maximum of the sizes: confidences are relative to it."""
        if self.charter.confidence == "gossip" and largest > self._largest:
            self._largest, self._stale = largest, True

    def _retie(self, now: float) -> None:
        """Members have come or gone: edges as they are now; those that stay keep what they remember."""
        before = set(self.edges)
        self.peer.renew(self._arrays())
        for j in set(self.edges) - before:
            self.fresh.ask(now, j)

    def _save(self) -> bool:
        """Whether it could be kept."""
        try:
            self._store.save(self.record())
        except OSError as error:
            self.errors.report("disk", f"the state could not be saved: {error}")
            return False
        return True

    def record(self) -> bytes:
        """All that is kept, as the content of a file."""
        arrays = self.peer.arrays
        edges = {name: getattr(arrays, name) for name in ("peer", "inverse", "weight", "choice")}
        packed = pack("own", self.peer.own) | pack("edge", self.peer.edge) | pack("arrays", edges)
        gone = sorted(self.group.gone)
        return write_record(
            Record(self.charter.run, self.address, self.starts, self._largest, self.wakes, gone, packed)
        )
