"""A simulated group, made from a seed: peers, their disks and clocks, the admin, messages, and time."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coterie.core.arrays import EVERYONE
from coterie.engines.wire import write_numbers
from coterie.errors import ContractError, ParameterError, StateError
from coterie.peers.group.roster import Member, Roster, sign_roster
from coterie.peers.model.tables import work_of
from coterie.peers.model.work import method_of
from coterie.peers.node.mailbox import Send
from coterie.peers.node.node import Node
from coterie.peers.node.state import read_record, theta_path, unpack
from coterie.peers.wire.packet import VERSION, Packet, read_packet, write_packet
from coterie.privacy import Ledger

from . import demands
from .faults import FAULTS, Fault
from .tasks import TASKS, charter_of, edges_of, rows_of
from .weather import Adversary, Disk, Weather

#: Seconds, at one wake per second: duration of the faults, and of the recovery at most.
FAULTY_SECONDS, RECOVERY_SECONDS = 40.0, 4000.0
#: Seconds for models without an optimum to settle: of private peers, which must reach all their neighbours, and among
#: liars.
PRIVATE_SECONDS, LIARS_SECONDS = 400.0, 80.0
#: Seconds between two checks whether all demands are met.
CHECK_EVERY = 40.0
#: Probability of each named fault in a seed.
FAULT_PROBABILITY = 0.25


class Report(NamedTuple):
    """Result of a seed."""

    seed: int
    task: str
    faults: tuple[str, ...]
    peers: int
    weather: Weather
    messages: int
    refused: dict[str, int]
    crashes: int
    seconds: float  # simulated seconds from the end of the faults until all demands were met
    gap: float  # relative distance from the optimum; NaN if there is none


class Chaos:
    """Peers with all faults of a seed. Task, number of peers and faults are drawn if they are not given."""

    def __init__(
        self, seed: int, task: str | None = None, peers: int | None = None, faults: Iterable[str] | None = None
    ):
        self.seed = seed
        self.rng, randomness = np.random.default_rng([seed, 7]), np.random.default_rng([seed, 13])
        chosen = None if faults is None else tuple(faults)
        self.task = task or _task_of(seed, chosen)
        self._task = TASKS[self.task]
        drawn = int(self.rng.integers(3, 11)) if seed % 97 else int(self.rng.integers(100, 200))
        self.n = peers or (drawn if not self._task.resists else int(self.rng.integers(8, 13)))
        self.weather = Weather.draw(self.rng)
        self.admin = Ed25519PrivateKey.from_private_bytes(self.rng.bytes(32))
        admin = self.admin.public_key().public_bytes_raw()
        self.charter = charter_of(self._task, f"chaos {seed}", admin)
        self._keys = [Ed25519PrivateKey.from_private_bytes(self.rng.bytes(32)) for _ in range(self.n)]
        self.rows, self.edges = rows_of(self.rng, self.n, self._task), edges_of(self.rng, self.n, self._task)
        self._draw_comings_and_goings()
        self.method = method_of(self.charter)
        self.p = work_of(self.charter, self.rows.X[0], self.rows.y[0]).p
        self.faulty, self.now, self.faulty_seconds = True, 0.0, FAULTY_SECONDS
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._side = np.zeros(self.n, int)  # side of the network partition
        self._used: list[dict[int, int]] = [{} for _ in range(self.n)]  # sessions, and the last number of each
        self._taken: list[set[tuple[int, tuple[int, int]]]] = [set() for _ in range(self.n)]
        self._ticking = [0] * self.n
        self.kept: list[set[bytes]] = [set() for _ in range(self.n)]  # messages of releases
        self.liars: set[int] = set()
        self.notified: set[int] = set()  # removed members that know it
        self.removed: set[int] = set()
        self.messages = self.crashes = 0
        self.refused: Counter[str] = Counter()
        self._adversary = Adversary(self)
        self.faults = {name: self._fault(name) for name in self._chosen(chosen, randomness)}
        self._begin()

    def _chosen(self, given: tuple[str, ...] | None, randomness: np.random.Generator) -> list[str]:
        """Return the faults of this seed, from those that fit its task."""
        fit = {name for name, fault in FAULTS.items() if fault.fits(self._task)}
        drawn = {
            name
            for name in FAULTS
            if randomness.random() < FAULT_PROBABILITY or (name == "liars" and self._task.resists)
        }
        if given is not None and not set(given) <= fit:
            raise ParameterError(f"{', '.join(sorted(set(given) - fit))} cannot come with the task {self.task!r}")
        return [name for name in FAULTS if name in (drawn & fit if given is None else given)]

    def _fault(self, name: str) -> Fault:
        return FAULTS[name](self, np.random.default_rng([self.seed, 17, list(FAULTS).index(name)]))

    def _draw_comings_and_goings(self) -> None:
        """Draw late joins and early departures. Enough members stay. Among liars all stay, so that liars are at most a
        fifth.
        """
        rng, n = self.rng, self.n
        some = rng.permutation(n)[: n // 4 if rng.random() < 0.5 and not self._task.resists else 0]
        self.late = {int(i): float(rng.uniform(5.0, 0.7 * FAULTY_SECONDS)) for i in some[::2]}
        self.early = {int(i): float(rng.uniform(5.0, 0.7 * FAULTY_SECONDS)) for i in some[1::2]}
        self.present = set(range(n)) - set(self.late)
        self.steady = self.present - set(self.early)

    # -- the admin ---------------------------------------------------------------------------------------------------

    def _list(self, base: Roster | None) -> Roster:
        """Update the present members after a change of the roster."""
        members = [
            Member(name=f"m{i}", address=i, key=self._keys[i].public_key().public_bytes_raw())
            for i in sorted(self.present)
        ]
        edges = [edge for edge in self.edges if edge[0] in self.present and edge[1] in self.present]
        roster = Roster(run=self.charter.run, version=1, members=members, edges=edges)
        return roster if base is None else roster.after(base)

    def publish(self, base: Roster, healed: bool = False) -> None:
        """Sign the next roster, and give it to one member, which passes it on."""
        self.roster = base if healed else self._list(base)
        self.signed_list = sign_roster(self.roster, self.admin)
        told = int(self.rng.choice(sorted(self.present)))
        self.at(self.now + 1.0, lambda: self.tell(told, None))

    def tell(self, i: int, signed: bytes | None) -> None:
        """Give a member a roster, by default the newest; if the member is down, later."""
        node = self.nodes[i]
        if node is None:
            self.at(self.now + 1.0, lambda: self.tell(i, signed))
        elif i in self.present:
            self._send(i, node.take_roster(self.clock(i), self.signed_list if signed is None else signed))
            self._look_at(i)

    def remove(self, i: int) -> None:
        """Remove a member from the roster while it is down."""
        self.crash(i, back=False)
        self.present.discard(i)
        self.removed.add(i)
        self.publish(self.roster)

    # -- life and death -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        rng, skew = self.rng, self.weather.skew
        self.nodes: list[Node | None] = [None] * self.n
        self._streams = [np.random.default_rng([self.seed, 11, i]) for i in range(self.n)]
        self._speed = 1.0 + skew * rng.uniform(-1, 1, self.n)
        self._offset = rng.uniform(-1e6, 1e6, self.n) if skew else np.zeros(self.n)
        self._wrong = np.zeros(self.n)
        self.disks = [Disk(self) for _ in range(self.n)]
        private = self.charter.privacy is not None
        self.ledgers = [Ledger(self.method.plan) if private else None for _ in range(self.n)]
        self.roster = self._list(None)
        self.signed_list = sign_roster(self.roster, self.admin)
        self.lists = [self.signed_list] * self.n  # each member's roster on disk
        for fault in self.faults.values():
            fault.begin()
        for i in sorted(self.present):
            self.start(i)
        for i, at in self.late.items():
            self.at(at, partial(self._join, i))
        for i, at in self.early.items():
            self.at(at, partial(self._leave, i))
        for rate, what in (
            (self.weather.crash * self.n, self._crash),
            (self.weather.split, self._split),
            (self.weather.hostile, self._adversary.attack),
        ):
            for at in self._times(rate):
                self.at(at, what)

    def _times(self, rate: float) -> Iterator[float]:
        at = 0.0
        while rate > 0.0 and (at := at + self.rng.exponential(1.0 / rate)) < FAULTY_SECONDS:
            yield at

    def clock(self, i: int, when: float | None = None) -> float:
        """Time of a peer's own clock."""
        return float(self._wrong[i] + self._offset[i] + self._speed[i] * (self.now if when is None else when))

    def set_clock(self, i: int, wrong: float) -> None:
        """Let a peer that is down start with a wrong clock."""
        self._wrong[i] = wrong

    def start(self, i: int) -> None:
        """Start a peer with the content of its disk."""
        if self.nodes[i] is not None or i in self.notified or not (i in self.present or i in self.removed):
            return
        stream, before = self._streams[i], self.disks[i].content
        work = work_of(self.charter, self.rows.X[i], self.rows.y[i])
        node = Node(
            self.charter, self.lists[i], i, self.method, work, self._keys[i].sign, self.disks[i],
            ledger=self.ledgers[i], random=stream.bytes, dice=stream.random,
        )  # fmt: skip
        if before is not None:
            kept = unpack(read_record(before).arrays, f"own.{theta_path(node.peer.own)}")[0]
            # A private peer takes over what it has published since an old state was saved.
            same = np.array_equal(node.theta, kept) or self.ledgers[i] is not None
            self.demand(same, f"peer {i} does not go on from the model that it had saved")
        try:
            sends = node.open(self.clock(i))
        except StateError:  # the peer does not start, because it could not save its state
            self.at(self.now + 1.0, lambda: self.start(i))
            return
        self.demand(node.fresh.session not in self._used[i], f"peer {i} uses session {node.fresh.session} again")
        self.nodes[i] = node
        self._send(i, sends)
        self._look_at(i)

    def _look_at(self, i: int) -> None:
        """After an event of a peer: check its messages, whether it ends, and when it is to be called again."""
        node = self.nodes[i]
        if node is None:
            return
        self.lists[i] = node.group.signed
        if node.group.farewell is not None:
            self.demand(i in self.removed, f"{i} believes that it was removed")
            self.notified.add(i)
            self._end(i)
            return
        self._ticking[i] += 1
        at = (node.next_time - self._offset[i] - self._wrong[i]) / self._speed[i]
        self.at(max(self.now, at), partial(self._tick, i, self._ticking[i]))

    def _tick(self, i: int, turn: int) -> None:
        node = self.nodes[i]
        if node is None or turn != self._ticking[i]:
            return
        self._send(i, node.tick(max(self.clock(i), node.next_time)))
        self._look_at(i)

    def _crash(self) -> None:
        self.crash(int(self.rng.integers(self.n)))

    def crash(self, i: int, back: bool = True) -> None:
        """Kill a peer, so that only its disk is left, and schedule its restart."""
        if self.nodes[i] is None:
            return
        self.crashes += 1
        self._end(i)
        if back:
            self.at(self.now + self.rng.exponential(3.0), lambda: self.start(i))

    def _end(self, i: int) -> None:
        node = self.nodes[i]
        if node is not None:
            self.refused += node.mail.gate.refused
        self.nodes[i] = None

    def refused_for(self, reason: str) -> int:
        """Number of messages refused for a reason so far."""
        return self.refused[reason] + sum(node.mail.gate.refused[reason] for node in self.nodes if node is not None)

    def _join(self, i: int) -> None:
        self.present.add(i)
        self.roster = self._list(self.roster)
        self.signed_list = self.lists[i] = sign_roster(self.roster, self.admin)
        self.start(i)

    def _leave(self, i: int) -> None:
        node = self.nodes[i]
        if node is None:
            self.at(self.now + 1.0, lambda: self._leave(i))
            return
        self._send(i, node.close(leave=True))
        self._end(i)
        self.present.discard(i)
        self.publish(self.roster)

    def _split(self) -> None:
        self._side = self.rng.integers(2, size=self.n)
        self.at(self.now + self.rng.exponential(5.0), self._heal)

    def _heal(self) -> None:
        self._side = np.zeros(self.n, int)

    # -- the mail -----------------------------------------------------------------------------------------------------

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Schedule an event."""
        heapq.heappush(self._events, (when, next(self._count), what))

    def signed(self, i: int, packet: Packet, content: bytes) -> bytes:
        """Return a member's packet with another content."""
        return write_packet(msgspec.structs.replace(packet, content=content), self._keys[i].sign)

    def forged(
        self,
        i: int,
        j: int,
        text: np.ndarray | None = None,
        kind: int = 0,
        run: bytes | None = None,
        content: bytes | None = None,
    ) -> bytes:
        """Return a packet signed by member i that its own code has not sent."""
        node, number = self.nodes[i], (1, 1)
        if run is None and node is not None:  # the member itself: the number must not be used by its next packet
            node.fresh.sequence += 1
            number = node.fresh.session, node.fresh.sequence
            self._used[i][node.fresh.session] = node.fresh.sequence
        body = content if content is not None else write_numbers(np.zeros(0) if text is None else text)
        run = run or bytes.fromhex(self.charter.run)
        return write_packet(Packet(VERSION, run, i, j, *number, 0, kind, body), self._keys[i].sign)

    def is_for(self, to: int, j: int) -> bool:
        """Return whether a packet with this address may reach j."""
        return to in (j, EVERYONE) and self.nodes[j] is not None

    def _send(self, i: int, sends: list[Send]) -> None:
        node = self.nodes[i]
        for send in sends:
            if not send.roster:
                self._watch(i, send.data)
            if node is not None:
                for fault in self.faults.values():
                    send = fault.said(i, node, send)
            goals = list(node.edges) if send.to == EVERYONE and node is not None else [send.to]
            for j in goals:
                if 0 <= j < self.n:
                    self.messages += 1
                    self._adversary.record(i, j, send.data)
                    self._carry(i, j, send)

    def _watch(self, i: int, data: bytes) -> None:
        """Check that a sent packet has a new number, and that a release is made once."""
        packet = read_packet(data)[0]
        last = self._used[i].get(packet.session, 0)
        current = next(reversed(self._used[i]), packet.session)
        self.demand(
            packet.sequence > last and (last == 0 or packet.session == current),
            f"peer {i} sends number {packet.number} after {(current, last)}",
        )
        self._used[i][packet.session] = packet.sequence
        demands.of_releases(self, i, packet)

    def _carry(self, i: int, j: int, send: Send) -> None:
        rng, w = self.rng, self.weather
        if self.faulty and (self._side[i] != self._side[j] or rng.random() < w.loss):
            return
        copies = 2 if self.faulty and rng.random() < w.duplication else 1
        for _ in range(copies):
            wait = rng.exponential(w.latency) if self.faulty and w.latency else 1e-3 * rng.random()
            self.at(self.now + wait, lambda: self.deliver(i, j, send, honest=True))

    def deliver(self, i: int, j: int, send: Send, honest: bool) -> None:
        """Deliver bytes on i's link. A non-member is given the roster, as a transport does."""
        node = self.nodes[j]
        if node is None:
            return
        if send.roster:
            self._send(j, node.take_roster(self.clock(j), send.data))
            self._look_at(j)
            return
        non_member = self.nodes[i]
        if honest and non_member is not None and i not in node.group.keys:
            self._send(i, non_member.take_roster(self.clock(i), node.group.signed))
            self._look_at(i)
            return
        before = node.mail.received["messages"]
        sends = node.receive(self.clock(j), i, send.data)
        if node.mail.received["messages"] > before:
            self.demand(honest, f"a hostile message by the key of {i} reached the method of {j}")
            packet = read_packet(send.data)[0]
            mark = (packet.sender, packet.number)
            self.demand(mark not in self._taken[j], f"message {mark} reached the method of {j} twice")
            self._taken[j].add(mark)
        self.demand(bool(np.all(np.isfinite(node.theta))), f"the model of {j} is not finite")
        self._send(j, sends)
        self._look_at(j)

    # -- from beginning to end -----------------------------------------------------------------------------------------

    def demand(self, holds: bool, what: str) -> None:
        """An invariant."""
        if not holds:
            faults = ", ".join(self.faults) or "no other faults"
            raise ContractError(f"seed {self.seed} ({self.task}, {self.n} peers, {faults}), at {self.now:.3f}: {what}")

    def advance(self, until: float) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = until

    def run(self) -> Report:
        """Run the faults and the recovery, and return the report."""
        self.advance(FAULTY_SECONDS)
        self.faulty = False
        self._heal()
        for i in sorted(self.present):
            self.start(i)
        for fault in self.faults.values():
            fault.calm()
        began, exact = self.now, np.isfinite(self._task.accuracy)
        least, most = (CHECK_EVERY, RECOVERY_SECONDS) if exact else (PRIVATE_SECONDS, 2.0 * PRIVATE_SECONDS)
        least = LIARS_SECONDS if self._task.resists else least
        left = "nothing was looked at"
        while left and self.now < began + most:
            self.advance(self.now + CHECK_EVERY)
            left = demands.missing(self, began) if self.now >= began + least else left
        self.demand(not left, left)
        demands.of_the_end(self)
        gap = demands.gap(self) if exact else np.nan
        for i in range(self.n):
            self._end(i)
        refused = {reason: count for reason, count in self.refused.items() if count}
        return Report(
            self.seed, self.task, tuple(self.faults), self.n, self.weather, self.messages, refused, self.crashes,
            self.now - began, gap,
        )  # fmt: skip


def _task_of(seed: int, faults: tuple[str, ...] | None) -> str:
    """Return the tasks in turn that all these faults fit."""
    fit = [name for name, task in TASKS.items() if all(FAULTS[fault].fits(task) for fault in faults or ())]
    if not fit:
        raise ParameterError(f"no task fits all of the faults {', '.join(faults or ())}")
    return fit[seed % len(fit)]


def run_seed(seed: int, task: str | None = None, faults: Iterable[str] | None = None) -> Report:
    """Run one seed. Raise a :class:`~coterie.errors.ContractError` if an invariant does not hold."""
    return Chaos(seed, task, faults=faults).run()
