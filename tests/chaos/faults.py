"""Faults by name, each with the demands that must be met when it is over."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coterie.core.arrays import EVERYONE
from coterie.engines.wire import read_numbers, write_numbers
from coterie.peers.group.roster import read_roster, sign_roster
from coterie.peers.node.mailbox import Send
from coterie.peers.node.node import Node
from coterie.peers.wire.packet import HELLO, read_packet, write_hello

from .tasks import Task

if TYPE_CHECKING:
    from .simulated import Chaos

#: Approximate error of a wrong clock in seconds: two years.
CLOCK_ERROR = 6e7


class Fault:
    """A fault, and the demands that must be met afterwards.

    Each fault has random numbers of its own, so that adding or removing a fault leaves the rest of a seed unchanged.
    """

    def __init__(self, chaos: Chaos, rng: np.random.Generator):
        self.chaos, self.rng = chaos, rng

    @staticmethod
    def fits(task: Task) -> bool:
        """Return whether the fault can occur with this task."""
        return True

    def begin(self) -> None:
        """Schedule the events of the fault."""

    def said(self, i: int, node: Node, send: Send) -> Send:
        """Return what member i really sends."""
        return send

    def calm(self) -> None:
        """Called when the other faults are over."""

    @property
    def over(self) -> bool:
        """Return whether the fault is over, and has left no traces."""
        return True

    def time(self, earliest: float = 0.1, latest: float = 0.6) -> float:
        """Draw a time, as a share of the duration of the faults."""
        return float(self.rng.uniform(earliest, latest)) * self.chaos.faulty_seconds

    def some(self, most: int) -> list[int]:
        """Draw a few of the members that are present from beginning to end."""
        count = 1 + int(self.rng.integers(most))
        return [int(i) for i in self.rng.permutation(sorted(self.chaos.steady))[:count]]


class Liars(Fault):
    """Members that send lies that pass every check: signed, new, finite, within the radius."""

    LIES = ("opposite", "far", "noise", "shift")

    def begin(self) -> None:
        """Choose a fifth of the members, and a kind of lie for each."""
        chaos, rng = self.chaos, self.rng
        chaos.liars = {int(i) for i in rng.permutation(chaos.n)[: max(1, chaos.n // 5)]}
        self._lie = {i: str(rng.choice(self.LIES)) for i in sorted(chaos.liars)}
        self._way = {i: rng.normal(size=chaos.p) for i in self._lie}
        self._size = {i: float(rng.uniform(0.3, 3.0)) for i in self._lie}
        self.told = 0

    @staticmethod
    def fits(task: Task) -> bool:
        """Return whether honest members can resist liars in this task."""
        return task.resists

    def said(self, i: int, node: Node, send: Send) -> Send:
        """Replace every message of the method by a lie."""
        if i not in self._lie or send.roster:
            return send
        packet = read_packet(send.data)[0]
        if packet.kind < 0:
            return send
        text = read_numbers(packet.content).copy()
        text[: self.chaos.p] = self._changed(i, text[: self.chaos.p])
        self.told += 1
        return Send(send.to, self.chaos.signed(i, packet, write_numbers(text)))

    def _changed(self, i: int, model: np.ndarray) -> np.ndarray:
        rng, way, radius = self.rng, self._way[i], 0.99 * self.chaos.charter.radius
        match self._lie[i]:
            case "opposite":
                lie = -10.0 * model
            case "far":
                lie = radius * way / np.linalg.norm(way)
            case "noise":
                lie = 10.0 ** rng.uniform(-1, 2) * rng.normal(size=model.shape)
            case _:
                lie = model + self._size[i] * way / np.linalg.norm(way)
        return lie * min(1.0, radius / max(float(np.linalg.norm(lie)), 1e-300))

    @property
    def over(self) -> bool:
        """Return True, because liars never stop: the other members must resist them."""
        return self.told > 0


class Floods(Fault):
    """A member that sends a hundred times as much as it should: greetings, and repeated messages."""

    EVERY = 0.25
    TIMES = 100

    def begin(self) -> None:
        """Flood for some seconds."""
        self._member = self.some(1)[0]
        self._until = self.time(0.5, 0.8)
        self._reached = False  # whether the flood had receivers
        self.chaos.at(self.time(0.1, 0.4), self._flood)

    def _flood(self) -> None:
        chaos, i = self.chaos, self._member
        node = chaos.nodes[i]
        if node is not None:
            messages = [message for message in node.peer.greet()[:1] if not chaos.method.remembers]
            for k in range(int(self.TIMES * self.EVERY * chaos.charter.rate)):
                if k % 2 == 0 or not messages:
                    hello = write_hello(bytes(self.rng.bytes(16)), node.group.roster.version)
                    data = chaos.forged(i, EVERYONE, kind=HELLO, content=hello)
                else:
                    data = chaos.forged(i, EVERYONE, kind=messages[0].kind, text=messages[0].text)
                for j in node.edges:
                    self._reached = self._reached or chaos.nodes[j] is not None
                    chaos.deliver(i, j, Send(j, data), honest=True)
        if chaos.now < self._until:
            chaos.at(chaos.now + self.EVERY, self._flood)

    @property
    def over(self) -> bool:
        """Demand that the gates have refused most of the flood."""
        return self.chaos.refused_for("rate") > 0 or not self._reached


class WrongClocks(Fault):
    """A peer starts with a clock that is years wrong, perhaps without its state; later it starts with a right clock."""

    def begin(self) -> None:
        """Do so twice for some peers."""
        for i in self.some(2):
            wrong = float(self.rng.choice([-1.0, 1.0])) * self.rng.uniform(0.5, 2.0) * CLOCK_ERROR
            lost = self.rng.random(2) < 0.5
            first, second = sorted((self.time(0.1, 0.5), self.time(0.5, 0.95)))
            self.chaos.at(first, partial(self._again, i, wrong, bool(lost[0])))
            self.chaos.at(second, partial(self._again, i, 0.0, bool(lost[1])))

    def _again(self, i: int, wrong: float, lost: bool) -> None:
        self.chaos.crash(i)
        self.chaos.set_clock(i, wrong)
        if lost:
            self.chaos.disks[i].content = None


class FullDisks(Fault):
    """A disk refuses all writes for a long time, and then works again."""

    def begin(self) -> None:
        """Choose some disks."""
        for i in self.some(2):
            self.chaos.at(self.time(0.1, 0.4), partial(self._fill, i, True))
            self.chaos.at(self.time(0.6, 0.95), partial(self._fill, i, False))

    def _fill(self, i: int, full: bool) -> None:
        self.chaos.disks[i].full = full

    def calm(self) -> None:
        """Let the disk work again."""
        for disk in self.chaos.disks:
            disk.full = False


class Backups(Fault):
    """The folder of a peer is restored from an older backup."""

    def begin(self) -> None:
        """Restore some folders. A ledger is never in a backup, because it would be refused."""
        for i in self.some(2):
            first, second = sorted((self.time(0.05, 0.4), self.time(0.4, 0.9)))
            self.chaos.at(first, partial(self._copy, i, second))

    def _copy(self, i: int, when: float) -> None:
        chaos = self.chaos
        content, signed = chaos.disks[i].content, chaos.lists[i]
        chaos.at(when, lambda: self._restore(i, content, signed))

    def _restore(self, i: int, content: bytes | None, signed: bytes) -> None:
        chaos = self.chaos
        chaos.crash(i)
        chaos.disks[i].content = content
        chaos.lists[i] = signed


class ForkedLists(Fault):
    """The admin goes on from a backup, so that two rosters have the same version. Peers detect this, and the admin
    heals it.
    """

    PATIENCE = 240.0

    def begin(self) -> None:
        """Copy the roster, and sign another version from the copy later; when all members know of the fork, heal it."""
        self._backup = self.chaos.roster
        self._healed = False
        self.chaos.at(self.time(0.1, 0.5), self._change)
        self.chaos.at(self.time(0.5, 0.95), self._part)

    def _change(self) -> None:
        """Sign an honest change that the backup lacks."""
        self.chaos.publish(self.chaos.roster)

    def _part(self) -> None:
        chaos = self.chaos
        if chaos.roster.version <= self._backup.version:
            self._change()
        first, second = (member.address for member in self._backup.members[:2])
        self.other = sign_roster(self._backup.with_edge(first, second, 3.0), chaos.admin)
        chaos.tell(self.some(1)[0], self.other)

    def calm(self) -> None:
        """Heal the fork some time later, after all members have had time to detect it."""
        chaos = self.chaos
        chaos.tell(self.some(1)[0], self.other)  # all members that knew of the fork may have crashed
        chaos.at(chaos.now + self.PATIENCE, self._heal)

    def _heal(self) -> None:
        chaos = self.chaos
        for i in sorted(chaos.present):
            node = chaos.nodes[i]
            chaos.demand(node is None or "fork" in node.errors.alerts, f"{i} has no alert of the fork of the roster")
        chaos.publish(chaos.roster.healing(read_roster(self.other, chaos.charter)), healed=True)
        self._healed = True

    @property
    def over(self) -> bool:
        """Return whether no member holds another roster or has an alert of a fork."""
        nodes = [self.chaos.nodes[i] for i in self.chaos.present]
        return self._healed and all(node is not None and "fork" not in node.errors.alerts for node in nodes)


class Removal(Fault):
    """A member is removed while it is down. It comes back with its old state, and must learn of the removal."""

    @staticmethod
    def fits(task: Task) -> bool:
        """Return whether the task tolerates fewer members: among liars, it would raise the share of liars."""
        return not task.resists

    def begin(self) -> None:
        """Choose a member."""
        self._member = self.some(1)[0]
        down = self.time(0.1, 0.6)
        self.chaos.at(down, self._remove)
        self.chaos.at(self.time(0.7, 1.3), self._return)

    def _remove(self) -> None:
        self.chaos.remove(self._member)

    def _return(self) -> None:
        self.chaos.start(self._member)

    @property
    def over(self) -> bool:
        """Return whether the removed member knows it."""
        return self._member in self.chaos.notified


#: Faults beside the background faults, by name.
FAULTS: dict[str, type[Fault]] = {
    "liars": Liars,
    "floods": Floods,
    "clocks": WrongClocks,
    "disks": FullDisks,
    "backups": Backups,
    "fork": ForkedLists,
    "removal": Removal,
}
