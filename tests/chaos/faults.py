"""Faults by name, each with what must hold once they are over."""

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

#: Seconds of the wrong clocks, about: two years.
YEARS = 6e7


class Fault:
    """Something that goes wrong, and what is demanded afterwards.

    It has a stream of random numbers of its own, so that one fault more or less leaves the rest of a seed as it is.
    """

    def __init__(self, chaos: Chaos, rng: np.random.Generator):
        self.chaos, self.rng = chaos, rng

    @staticmethod
    def fits(task: Task) -> bool:
        """Whether it can come with this task."""
        return True

    def begin(self) -> None:
        """Make appointments."""

    def said(self, i: int, node: Node, send: Send) -> Send:
        """What member i really sends."""
        return send

    def calm(self) -> None:
        """The other faults are over."""

    @property
    def over(self) -> bool:
        """Whether this one is, and its traces are gone."""
        return True

    def time(self, earliest: float = 0.1, latest: float = 0.6) -> float:
        """A random moment, as parts of the time of faults."""
        return float(self.rng.uniform(earliest, latest)) * self.chaos.faulty_seconds

    def some(self, most: int) -> list[int]:
        """A few of the members that are there from beginning to end."""
        count = 1 + int(self.rng.integers(most))
        return [int(i) for i in self.rng.permutation(sorted(self.chaos.steady))[:count]]


class Liars(Fault):
    """Members whose own code sends lies, which pass every check: signed, new, finite, within the radius."""

    LIES = ("opposite", "far", "noise", "shift")

    def begin(self) -> None:
        """A fifth of them, each with a lie of its own."""
        chaos, rng = self.chaos, self.rng
        chaos.liars = {int(i) for i in rng.permutation(chaos.n)[: max(1, chaos.n // 5)]}
        self._lie = {i: str(rng.choice(self.LIES)) for i in sorted(chaos.liars)}
        self._way = {i: rng.normal(size=chaos.p) for i in self._lie}
        self._size = {i: float(rng.uniform(0.3, 3.0)) for i in self._lie}
        self.told = 0

    @staticmethod
    def fits(task: Task) -> bool:
        """Only where members can resist."""
        return task.resists

    def said(self, i: int, node: Node, send: Send) -> Send:
        """A lie in place of every message of the method."""
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
        """They never stop: the others must come to live with it."""
        return self.told > 0


class Floods(Fault):
    """A member that sends a hundred times as much as it should: greetings, and messages that it has sent before."""

    EVERY = 0.25
    TIMES = 100

    def begin(self) -> None:
        """For some seconds."""
        self._member = self.some(1)[0]
        self._until = self.time(0.5, 0.8)
        self._reached = False  # whether there was somebody to reach
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
        """The flood did not get through as it was sent."""
        return self.chaos.refused_for("rate") > 0 or not self._reached


class WrongClocks(Fault):
    """A peer starts with a clock that is years ahead or behind, perhaps without its state; later, with a right one."""

    def begin(self) -> None:
        """Twice, for some of them."""
        for i in self.some(2):
            wrong = float(self.rng.choice([-1.0, 1.0])) * self.rng.uniform(0.5, 2.0) * YEARS
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
    """A disk refuses everything for a long while, and then works again."""

    def begin(self) -> None:
        """Some disks."""
        for i in self.some(2):
            self.chaos.at(self.time(0.1, 0.4), partial(self._fill, i, True))
            self.chaos.at(self.time(0.6, 0.95), partial(self._fill, i, False))

    def _fill(self, i: int, full: bool) -> None:
        self.chaos.disks[i].full = full

    def calm(self) -> None:
        """There is room again."""
        for disk in self.chaos.disks:
            disk.full = False


class Backups(Fault):
    """The folder of a peer is put back to what it was some time before, as from a backup."""

    def begin(self) -> None:
        """For some of them. A ledger is never in a backup: it would be refused."""
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
    """The admin goes on from a backup: two lists of members with one number. Peers name it, the admin heals it."""

    PATIENCE = 240.0

    def begin(self) -> None:
        """A copy of the list now, and another list made from it later; once everybody knows, it is healed."""
        self._backup = self.chaos.roster
        self._healed = False
        self.chaos.at(self.time(0.1, 0.5), self._change)
        self.chaos.at(self.time(0.5, 0.95), self._part)

    def _change(self) -> None:
        """An honest change, so that there is something which the backup lacks."""
        self.chaos.publish(self.chaos.roster)

    def _part(self) -> None:
        chaos = self.chaos
        if chaos.roster.version <= self._backup.version:
            self._change()
        first, second = (member.address for member in self._backup.members[:2])
        self.other = sign_roster(self._backup.with_edge(first, second, 3.0), chaos.admin)
        chaos.tell(self.some(1)[0], self.other)

    def calm(self) -> None:
        """The admin heals it some time later: until then, everybody has heard that there is another list."""
        chaos = self.chaos
        chaos.tell(self.some(1)[0], self.other)  # those who knew of it may all have crashed
        chaos.at(chaos.now + self.PATIENCE, self._heal)

    def _heal(self) -> None:
        chaos = self.chaos
        for i in sorted(chaos.present):
            node = chaos.nodes[i]
            chaos.demand(node is None or "fork" in node.errors.alerts, f"{i} says nothing of the fork of the list")
        chaos.publish(chaos.roster.healing(read_roster(self.other, chaos.charter)), healed=True)
        self._healed = True

    @property
    def over(self) -> bool:
        """Healed: nobody has another list, nobody speaks of a fork."""
        nodes = [self.chaos.nodes[i] for i in self.chaos.present]
        return self._healed and all(node is not None and "fork" not in node.errors.alerts for node in nodes)


class Removal(Fault):
    """A member is removed while it is down. It comes back with what it had, and must be told."""

    @staticmethod
    def fits(task: Task) -> bool:
        """Where fewer members do not mean more liars."""
        return not task.resists

    def begin(self) -> None:
        """One of them."""
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
        """It knows."""
        return self._member in self.chaos.notified


#: Whatever may go wrong beside the weather, by name.
FAULTS: dict[str, type[Fault]] = {
    "liars": Liars,
    "floods": Floods,
    "clocks": WrongClocks,
    "disks": FullDisks,
    "backups": Backups,
    "fork": ForkedLists,
    "removal": Removal,
}
