"""A peer without input or output: its reactions to time, messages, its start and its end.

Time, randomness, storage and transport are passed in, so the same code runs over a real network, in memory, and in the
fault simulator (``tests/chaos``), where a failure can be replayed. Every call returns the packets to send.

A node's knowledge of other peers has three parts: the members of the group (:mod:`.membership`), the proof that a
sender is live (:mod:`.freshness`), and the packets received and sent (:mod:`.mailbox`).

Messages get lost. A peer that has just started gets the method's initial message again. And from time to time a peer
sends a HELLO to one neighbour after another, so that a lost message is replaced in the end, even if the neighbour has
nothing new to send.
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

#: Mean number of wakes between two HELLOs to members that have answered already.
WAKES_PER_HELLO = 16.0
#: One in so many of these HELLOs goes to a member that is no neighbour.
HELLOS_PER_STRANGER = 4
#: Content of a BYE: the peer will be back, or leaves for good.
STOPS, LEAVES = b"stops", b"leaves"


class Node:
    """The protocol of one peer, without clock and transport.

    Parameters
    ----------
    charter : Charter
    signed_roster : bytes
        The roster, as an admin has signed it.
    address : int
        This peer's address in the roster.
    method : rule
        The method of the charter, made by :func:`coterie.peers.model.tables.method_of`.
    work : Work
    sign : callable
        Maps bytes to an Ed25519 signature.
    store : Store
        Storage of the state.
    ledger : coterie.privacy.Ledger, optional
        Ledger of a private method.
    random : callable
        Maps a number of bytes to as many random bytes. Real peers use the operating system's generator.
    dice : callable
        Maps a count to as many uniform numbers for the method. Default: the operating system's generator, which a
        ledger on disk requires.
    share_health : bool
        Whether to share this peer's health with the group: see :mod:`~coterie.peers.node.health`.
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
        self._stale = False  # whether a larger data set was heard of since the agents' arrays were made
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
        """Accept packets of the members."""
        self.mail.gate.muted = self.group.muted
        self.mail.gate.admit(self.group.keys)
        self.health.admit(self.group.keys)
        self.fresh.keep(self.group.keys)

    def _recall(self, record: Record) -> None:
        """Take over what was saved beside the method's own state."""
        path = getattr(self._store, "path", "the state")
        if record.run != self.charter.run:
            raise StateError(
                f"{path} is of run {record.run}, and the charter beside it of run {self.charter.run}. If the admin "
                "has amended the charter, go on from the model with: coterie peer accept FOLDER. If not, move the "
                "state file away, and the peer begins again from its data"
            )
        if record.address != self.address:
            raise StateError(
                f"{path} is of member {record.address}, and this is {self.address}, since it was invited again: move "
                "the state file away, and the peer begins again from its data"
            )
        self.starts, self.wakes = record.starts, record.wakes
        self._largest = max(self._largest, record.largest)
        self.group.gone = set(record.gone)

    # -- knowledge ----------------------------------------------------------------------------------------------------

    @property
    def learns(self) -> bool:
        """Whether the edges are learned."""
        return self.charter.learned is not None

    @property
    def edges(self) -> dict[int, float]:
        """Weights of this peer's edges, by the neighbours' addresses."""
        arrays = self.peer.arrays
        return {j: w for j, w in zip(arrays.peer.tolist(), arrays.weight.tolist(), strict=True) if j != VACANT}

    @property
    def theta(self) -> np.ndarray:
        """The model as other peers may see it."""
        return self.peer.theta

    @property
    def largest(self) -> int:
        """The largest number of rows M in the confidences m/M: the charter's bound, or the largest number heard of."""
        return self._largest if self.charter.confidence == "gossip" else self.charter.max_rows

    @property
    def next_time(self) -> float:
        """Latest time of the next call of :meth:`tick`."""
        return min(self._wake_at, self._refresh_at, self.health.next_time, self.fresh.next_time)

    def _arrays(self) -> Any:
        """The agents' arrays of this peer: own rows, and edges to members that have not left."""
        return self._arrays_with(self.edges if self.learns else self.group.roster.neighbours(self.address))

    def _arrays_with(self, known: dict[int, float]) -> Any:
        edges = {j: w for j, w in known.items() if j in self.group.keys and j not in self.group.gone}
        n_agents = max(self.group.keys) + 1
        room = 4 * self.method.edges.spare
        return arrays_of_one(self.work, self.address, edges, n_agents, self.largest, room, self.method.training.batch)

    # -- events -------------------------------------------------------------------------------------------------------

    def open(self, now: float) -> list[Send]:
        """Start. The state is on disk before anything is sent; a StateError is raised if it cannot be saved."""
        try:
            self._store.save(self.record())
        except OSError as error:
            raise StateError(f"the peer cannot begin, because its state cannot be saved: {error}") from error
        self._opened, self._started = True, now
        self.health.open(now, self.starts)
        self._wake_at = now + self._pause(self.charter.rate)
        self._refresh_at = now + self._pause(self.charter.rate / WAKES_PER_HELLO)
        for j in self.edges:
            self.fresh.ask(now, j, at_once=True)
        return self._say_hello(now)

    def tick(self, now: float) -> list[Send]:
        """Do everything that is due, and return the packets to send."""
        out = self._say_hello(now)
        if self.fresh.doubles_are_over(now):
            self.errors.alerts.pop("duplicate", None)
        if now >= self._refresh_at:
            self._refresh_at = now + self._pause(self.charter.rate / WAKES_PER_HELLO)
            self._refresh_view()
            edges = sorted(self.edges)
            self._turn += 1
            if edges:
                out.append(self._question(edges[self._turn % len(edges)]))
            others = sorted(set(self.group.keys) - set(edges) - {self.address})
            if others and (self._turn % HELLOS_PER_STRANGER == 0 or not edges):
                # News of members must also reach a peer whose neighbours have all left.
                out.append(self._question(others[self._draw(len(others))]))
        if now >= self._wake_at:
            self._wake_at = now + self._pause(self.charter.rate)
            out += self._wake(now)
        if now >= self.health.next_time:
            out += self._tell_health(now)
        return out

    def _tell_health(self, now: float) -> list[Send]:
        """Send health records to all neighbours and to one other member, because the graph may not be connected."""
        told, edges = self.health.batch(now), set(self.edges)
        if told is None:
            return []
        others = sorted(set(self.group.keys) - edges - {self.address})
        to = [EVERYONE] if edges else []
        to += [others[self._draw(len(others))]] if others else []
        return [self._packet(j, wire.HEALTH, told) for j in to]

    def receive(self, now: float, owner: int, data: bytes) -> list[Send]:
        """Take in a packet that came under a key of ``owner``. A packet that the gate refuses is counted and
        dropped.
        """
        try:
            packet = self.mail.take(now, owner, data)
            return self._take_message(now, packet) if packet.kind >= 0 else self._take_notice(now, packet)
        except Refused as refusal:
            self.mail.refuse(refusal, owner)
            return []

    def mute(self, now: float, addresses: Iterable[int]) -> None:
        """Mute exactly these members: drop their edges and what came from them, and refuse what they send."""
        self.group.mute(addresses)
        self._admit()
        self._renew_edges(now)
        if self._opened:
            self._save()

    def take_announcements(self, now: float, announcements: Iterable[bytes], by: int | None = None) -> list[Send]:
        """Keep new announcements of the admin, from a member or from this machine, and pass them on."""
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
        """Take in a package that came as a roster, from any sender: a roster, announcements, or both."""
        try:
            roster, announcements = unpackaged(data)
        except DataError as error:
            self.mail.refuse(Refused("format", str(error)))
            return []
        out = self.take_announcements(now, announcements, by=NOBODY)
        if not roster or (announcements and (CHARTER, self.charter.run) in self.group.board.held):
            return out  # the roster in the package is of a later run
        return out + self.take_roster(now, roster, by=NOBODY)

    def take_roster(self, now: float, signed: bytes, by: int | None = None) -> list[Send]:
        """Take in a roster from any sender: see :meth:`~coterie.peers.node.membership.Members.take`."""
        group = self.group
        try:
            news = group.take(now, signed, by)
        except Refused as refusal:
            self.mail.refuse(refusal, NOBODY if by is None else by)
            return []
        if news.what == "fork" and group.fork is not None:
            self.errors.report("fork", described(group.fork, self.charter), alert=True)
            # Both rosters go to the neighbours, so that all members and the admin can detect the fork.
            return [self._packet(j, wire.ROSTER, one) for j in self._near() for one in (group.signed, signed)]
        if news.what == "removed":
            version = f"roster, version {news.roster.version}"
            self.errors.report("removed", f"the admin has removed this peer from the group ({version})", alert=True)
        if news.what != "newer":
            return []
        removed = set(self.edges) - {member.address for member in news.roster.members}
        if group.fork is None:
            self.errors.alerts.pop("fork", None)
        self._admit()
        self._renew_edges(now)
        # Otherwise a removed member would not learn why nobody answers.
        told = [Send(j, signed, roster=True) for j in removed]
        return told + [send for j in self._near() for send in self._bring(now, j)]

    def _near(self) -> list[int]:
        """Neighbours that have proved that they are live."""
        return [j for j in self.edges if j in self.fresh.proven]

    def take_work(self, work: Work) -> None:
        """Go on with other rows of this peer, from the learned model and what is remembered of the neighbours.

        A private peer stays within its budget: every release is debited, whichever rows it used. So no row that was
        ever in the file loses more privacy than the whole budget allows.
        """
        if work.p != self.work.p:
            raise DataError(f"the new rows have {work.p} columns, and the model has {self.work.p} parameters")
        self.work = work._replace(model=self.work.model)
        self._largest = max(self._largest, min(work.size, self.charter.max_rows))
        self.peer.renew(self._arrays())
        self._save()

    def close(self, leave: bool = False) -> list[Send]:
        """Save the state, and send a BYE to the neighbours. With ``leave``, the BYE says that this peer leaves for
        good.
        """
        if not (self._opened and self._save() and self.edges):
            return []
        return [self._packet(EVERYONE, wire.BYE, LEAVES if leave else STOPS)]

    # -- time ---------------------------------------------------------------------------------------------------------

    def _pause(self, rate: float) -> float:
        """Draw the time until the next tick of a Poisson clock."""
        uniform = int.from_bytes(self._random(7), "little") / 256.0**7
        return -math.log1p(-uniform) / rate

    def _draw(self, count: int) -> int:
        """Draw a random number below ``count``."""
        return int.from_bytes(self._random(7), "little") % count

    def _wake(self, now: float) -> list[Send]:
        """Run one wake of the method. The changed state is on disk before any message leaves."""
        if not self.ready:
            return []
        if self._stale:
            self._stale = False
            self.peer.renew(self._arrays())
        dice = None if self._dice is None else self._dice(self.method.traffic.dice)
        messages = self.peer.wake(dice, moment=(now - self._started) * self.charter.rate)
        self.wakes += 1
        if self.learns and not self.edges.keys() <= self.group.keys.keys() - self.group.gone:
            self.peer.renew(self._arrays())  # a peer that was asked has left since, and its answer made an edge
        theta = self.peer.theta
        norm = float(np.linalg.norm(theta[self.peer.arrays.sent]))  # of the part that neighbours see
        if not (np.isfinite(norm) and np.isfinite(theta).all()):
            self._revert()
            return []
        if norm > self.charter.radius:
            self.errors.report(
                "radius",
                f"the model's norm is {norm:.4g}, and neighbours refuse models with a norm above "
                f"{self.charter.radius:g}: scale the data, or agree on a larger radius",
            )
        return self._packets(now, messages) if self._save() else []

    @property
    def ready(self) -> bool:
        """Whether to wake. A private peer waits until half of its neighbours are live, to save its budget."""
        if self.ledger is None or self.ledger.exhausted:
            return True
        here = len(self.fresh.proven) if self.learns else len(self._near())
        return here >= (1 if self.learns else max(1, (len(self.edges) + 1) // 2))

    def _revert(self) -> None:
        """Go back to the last saved state, after a received message has made the model infinite or NaN."""
        self.errors.report("reverted", "the model was not finite, and was reset to the last saved one")
        saved = self._store.load()
        if saved is not None:
            self.peer.resume(*restored(self.peer, read_record(saved).arrays))
            self.peer.renew(self._arrays())

    def _say_hello(self, now: float) -> list[Send]:
        """Send HELLO to members that have not answered yet, at growing intervals."""
        out = []
        for j, in_vain in self.fresh.due(now, self.edges):
            out.append(self._question(j))
            if in_vain and self.group.may_bring(now, j):  # the receiver may hold a roster without this member
                out.append(Send(j, self.group.signed, roster=True))
        return out

    def _bring(self, now: float, j: int) -> list[Send]:
        """Send the roster to a member that holds an older one."""
        return [self._packet(j, wire.ROSTER, self.group.signed)] if self.group.may_bring(now, j) else []

    # -- messages ------------------------------------------------------------------------------------------------------

    def _take_message(self, now: float, packet: Packet) -> list[Send]:
        """Take in a message of the method."""
        j = packet.sender
        text = check_message(self._contents, self.group.keys, packet)
        self._learn_largest(packet.largest)
        try:
            replies = self.peer.take(j, packet.kind, text)
        except (ArithmeticError, ValueError, IndexError, CapacityError) as error:
            # Drop the messages that the method was about to send.
            self.peer.resume(self.peer.arrays, self.peer.own, self.peer.edge)
            raise Refused("method", f"{self.method!r} raised {error!r} at a message from {j}") from error
        self.mail.received["messages"] += 1
        self.mail.messages_by[j] += 1
        return self._packets(now, replies)

    def _take_notice(self, now: float, packet: Packet) -> list[Send]:
        """Take in a message of the peers' own protocol."""
        j, content, out = packet.sender, packet.content, list[Send]()
        if packet.kind in (wire.HELLO, wire.WELCOME):
            out = self._take_hello(now, packet)
        elif packet.kind == wire.BYE:
            if content == LEAVES:
                self.group.leaves(now, j)
                self.fresh.count_out(j)
                self._renew_edges(now)
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

    # -- proof of live senders ----------------------------------------------------------------------------------------

    def _take_hello(self, now: float, packet: Packet) -> list[Send]:
        """Take in a HELLO or a WELCOME, and send its sender what it lacks."""
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
            raise Refused("unproven", f"the answer of {j} is not to an open question")
        apart = hello.roster == group.roster.version and hello.digest not in (b"", group.digest)
        if hello.roster < group.roster.version or apart:
            out += self._bring(now, j)
        elif group.fork is not None and group.may_bring(now, j):  # repeated, because messages may be lost
            out.append(self._packet(j, wire.ROSTER, group.fork.other))
        if hello.announcements != group.board.digest:
            content = group.board.answer(now, j)
            out += [] if content is None else [self._packet(j, wire.ANNOUNCEMENT, content)]
        if self.fresh.is_current(packet):
            self._learn_largest(packet.largest)
        return out

    def _question(self, j: int) -> Send:
        """Return a HELLO with the nonce of the open question to j, or of a new one."""
        return self._greeting(wire.HELLO, j, self.fresh.nonce_for(j))

    def _take_proof(self, now: float, packet: Packet) -> list[Send]:
        """Take in the answer to an open question: from now on packets of this session are accepted from its sender."""
        j, out = packet.sender, list[Send]()
        is_new, twin = self.fresh.prove(now, packet)
        # Both processes learn of it, whichever one gets the message.
        if twin is not None and self.fresh.doubled(now, j):
            sessions = f"sessions {packet.session:x} and {twin:x}"
            text = f"two processes run with the identity of {self.group.name_of(j)} ({sessions})"
            self.errors.report("duplicate", text, alert=True)
            out.append(self._packet(j, wire.DUPLICATE, wire.write_duplicate(packet.session, twin)))
        if j in self.group.gone:
            self.group.gone.discard(j)
            self._renew_edges(now)
        return out + (self._packets(now, self._greetings(j)) if is_new else [])

    def _hear_of_duplicate(self, now: float, packet: Packet) -> None:
        """Take in a neighbour's claim that two processes run with this identity. The alert names the neighbour."""
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
        """Return the method's initial message to one neighbour, which has just started or may have missed messages.

        A method with memory of an edge beyond the model would lose this memory, so it sends nothing: its next message
        holds everything.
        """
        messages = (
            [] if self.method.promises.remembers else [message for message in self.peer.greet() if message.to == j]
        )
        if not self.learns:
            return messages
        # The edge's weight as this end has it, or zero, because the other end may have missed a change.
        slots = np.flatnonzero(self.peer.arrays.peer == j)
        text = np.zeros(WEIGHT_LENGTH)
        if slots.size:
            edge, k = self.peer.edge, int(slots[0])
            text[:] = self.peer.arrays.weight[k], edge.stamp[k], edge.square[k]
        return [Outgoing(self.address, j, WEIGHT, text), *messages]

    def _refresh_view(self) -> None:
        """Put a random member into the view of a sampler that swaps views, because views that are lost do not come
        back.
        """
        view = getattr(getattr(self.peer.own, "known", None), "address", None)
        if view is None:
            return
        strangers = sorted(set(self.group.keys) - {self.address} - set(view[0].tolist()))
        if strangers:
            vacant = np.flatnonzero(view[0] == VACANT)
            place = int(vacant[0]) if vacant.size else self._draw(view.shape[1])
            view[0, place], self.peer.own.known.age[0, place] = strangers[self._draw(len(strangers))], 0

    def _packets(self, now: float, messages: Iterable[Outgoing]) -> list[Send]:
        """Turn messages of the method into packets."""
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

    # -- storage ------------------------------------------------------------------------------------------------------

    def _learn_largest(self, largest: int) -> None:
        """Update the largest number of rows heard of, to which confidences are relative."""
        if self.charter.confidence == "gossip" and largest > self._largest:
            self._largest, self._stale = largest, True

    def _renew_edges(self, now: float) -> None:
        """Renew the edges after members have come or left. Edges that stay keep their state."""
        before = set(self.edges)
        self.peer.renew(self._arrays())
        for j in set(self.edges) - before:
            self.fresh.ask(now, j)

    def _save(self) -> bool:
        """Save the state, and return whether this succeeded."""
        try:
            self._store.save(self.record())
        except OSError as error:
            self.errors.report("disk", f"the state could not be saved: {error}")
            return False
        return True

    def record(self) -> bytes:
        """Return everything that is saved, as the content of a file."""
        arrays = self.peer.arrays
        edges = {name: getattr(arrays, name) for name in ("peer", "inverse", "weight", "choice")}
        packed = pack("own", self.peer.own) | pack("edge", self.peer.edge) | pack("arrays", edges)
        gone = sorted(self.group.gone)
        return write_record(
            Record(self.charter.run, self.address, self.starts, self._largest, self.wakes, gone, packed)
        )
