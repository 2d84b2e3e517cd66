"""The connections of a peer: links to neighbours, others on demand, and relays where there is no other way."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..group.identity import split_endpoint
from ..wire.limits import Buckets
from . import Contact
from .channel import FORWARD, LIST, MESSAGE, PRESENT, Channel, forward, frame, read_forward
from .hub import HostPort, Hub
from .proofs import Seals

log = logging.getLogger("coterie")

#: Seconds after which an unreachable neighbour is sought through relays, and the minimal seconds for which relays are
#: kept.
RELAY_AFTER, RELAY_KEEP = 1.0, 30.0
#: Ratio of the frames per second that a relay may send to those that a member may send.
RELAY_RATE_FACTOR = 32.0
#: Maximal number of frames that wait for connections, in total.
MAX_WAITING_FRAMES = 1024
#: Rosters that are sent to one name through a relay: per second, and at once.
ROSTERS_PER_SECOND, ROSTERS_AT_ONCE = 0.1, 2.0


class _Waiting(NamedTuple):
    """Frames for a member that is not connected yet."""

    until: float
    frames: deque[tuple[int, bytes]]


class PeerHub(Hub):
    """Connections of a peer, which carry messages."""

    def __init__(self, *given: Any, deliver: Callable[[str, bytes], None], seals: Seals | None, reachable: bool):
        super().__init__(*given)
        self._deliver, self._seals, self._reachable = deliver, seals, reachable
        self.contacts: dict[str, Contact] = {}
        self.links: dict[str, Contact] = {}
        self.relays: dict[str, HostPort] = {}
        self.present: dict[str, frozenset[str]] = {}  # by relay: names of the members connected with it
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self._apart: dict[str, float] = {}  # by neighbour: time since when it is not connected
        self._relays_until = 0.0
        self._alone_until: dict[str, float] = {}  # by member that is no neighbour: time until which no new try is made
        self._given = Buckets(ROSTERS_PER_SECOND, ROSTERS_AT_ONCE, self.limits.sources)

    # -- members

    def know(self, contacts: dict[str, Contact], links: dict[str, Contact], revoked: frozenset[str]) -> None:
        """Set the admitted members, and those of them to stay connected with."""
        old, self.contacts, self.links = self.contacts, contacts, links
        now = self.loop.time()
        if self._seals is not None:
            self._seals.forget({contact.key for contact in contacts.values() if contact.key is not None})
        keys = {name: contact.key for name, contact in contacts.items()}
        self.admit(keys | dict.fromkeys(self.relays), revoked)
        self._apart = {name: self._apart.get(name, now) for name in links if name not in self.channels}
        self._alone_until = {name: until for name, until in self._alone_until.items() if name in contacts}
        for name, contact in contacts.items():
            moved = name in old and old[name].endpoint != contact.endpoint
            if name in links:
                self.dial(name, anew=moved or name not in old)

    def use_relays(self, relays: dict[str, HostPort]) -> None:
        """Replace the relays."""
        gone = set(self.relays) - set(relays)
        self.relays = relays
        self.present = {name: names for name, names in self.present.items() if name in relays}
        self.know(self.contacts, self.links, self.revoked)  # because relays are admitted, too
        for name in gone:
            if name in self.channels and name not in self.contacts:
                self.channels[name].finish("no longer a relay")
        self._look_for_relays(self.loop.time())

    def rate(self, name: str) -> float | None:
        """Maximal number of frames per second from a member, or from a relay, which forwards for many members."""
        each = self.limits.messages
        return each if each is None or name not in self.relays else RELAY_RATE_FACTOR * each

    def alive(self) -> set[str]:
        """Names of the members that are connected with this peer or with one of its relays."""
        here = {name for name in list(self.channels) if name in self.contacts}
        for names in list(self.present.values()):
            here |= names & self.contacts.keys()
        return here

    # -- sending

    def send_message(self, names: Iterable[str], message: bytes) -> None:
        """Send a message to some members."""
        data = frame(MESSAGE, message)
        for name in names:
            channel = self.channels.get(name)
            if channel is not None:
                self._push(channel, name, MESSAGE, data)
            else:
                self.send(name, MESSAGE, message)

    def send(self, name: str, kind: int, body: bytes) -> None:
        """Send a frame to one member, directly or through a relay. Without a connection, the frame waits for one."""
        channel = self.channels.get(name)
        if channel is not None:
            self._push(channel, name, kind, frame(kind, body))
            return
        for relay, names in self.present.items():
            if name in names and self._through(relay, name, kind, body):
                return
        self._wait(name, kind, body)

    def _push(self, channel: Channel, name: str, kind: int, data: bytes) -> None:
        channel.used = self.loop.time()
        if kind == MESSAGE:
            self.counts["sent"] += 1
        if not channel.push(data):
            self.drop("to", name, "queue full")

    def _through(self, relay: str, name: str, kind: int, body: bytes) -> bool:
        channel, contact = self.channels.get(relay), self.contacts.get(name)
        if channel is None:
            return False
        if kind == MESSAGE:
            if self._seals is None or contact is None or contact.key is None:
                return False
            body = self._seals.seal(name, contact.key, body)
        self._push(channel, name, kind, frame(FORWARD, forward(name, kind, body)))
        return True

    def _wait(self, name: str, kind: int, body: bytes) -> None:
        """Keep a frame for a connection that is being made."""
        now = self.loop.time()
        place = self.place(name)
        linked = name in self.links
        if (place is None and not self.relays) and not linked:
            self.drop("to", name, "unreachable")
            return
        if not linked and now < self._alone_until.get(name, 0.0):
            self.drop("to", name, "unreachable")
            return
        waiting = self._waiting.get(name)
        if waiting is None:
            waiting = self._waiting[name] = _Waiting(now + self.limits.wait, deque())
        waiting.frames.append((kind, body))
        if len(waiting.frames) > self.limits.waiting:
            waiting.frames.popleft()
            self.drop("to", name, "queue full")
        if len(self._waiting) * self.limits.waiting > MAX_WAITING_FRAMES:
            self._give_up(next(iter(self._waiting)), "queue full")
        if place is None:
            self._relays_until = now + RELAY_KEEP
            self._look_for_relays(now)
        elif not linked:
            self.dial(name)

    def _give_up(self, name: str, reason: str) -> None:
        waiting = self._waiting.pop(name, None)
        for _ in () if waiting is None else waiting.frames:
            self.drop("to", name, reason)

    def _flush(self, name: str) -> None:
        waiting = self._waiting.pop(name, None)
        for kind, body in () if waiting is None else waiting.frames:
            self.send(name, kind, body)

    def publish(self, signed: bytes) -> None:
        """Send a roster to all connected members, and to neighbours that are connected with a relay."""
        super().publish(signed)
        for name in self.links.keys() - self.channels.keys():
            if any(name in names for names in self.present.values()):
                self.send(name, LIST, signed)

    # -- receiving

    def take_up(self, channel: Channel, kind: int, body: bytes) -> None:
        """Take a frame on a link."""
        name = channel.name or ""
        if kind == MESSAGE and name in self.contacts:
            channel.used = channel.last_in
            self._receive(name, body)
        elif kind == FORWARD and name in self.relays:
            self._forwarded(name, body)
        elif kind == PRESENT and name in self.relays:
            names = frozenset(body.decode("ascii", "replace").split("\n")) - {self.me, ""}
            new = names - self.present.get(name, frozenset())
            self.present[name] = names
            for one in new & self._waiting.keys():
                self._flush(one)
        else:
            super().take_up(channel, kind, body)

    def _receive(self, name: str, body: bytes) -> None:
        try:
            self._deliver(name, body)
        except Exception:
            log.exception("%s could not take a message", self.me)
            self.counts["dropped: deliver failed"] += 1

    def _forwarded(self, relay: str, body: bytes) -> None:
        """Take a forwarded frame. Its sender is believed only if that member has sealed it."""
        found = read_forward(body)
        if found is None:
            self.counts["dropped: out of place"] += 1
            return
        name, kind, content = found
        contact = self.contacts.get(name)
        if kind == LIST:
            self.take_list(content)
            if content != self.kept:
                self._give(relay, name)
        elif kind != MESSAGE or self._seals is None:
            self.counts["dropped: out of place"] += 1
        elif contact is None or contact.key is None:
            self.counts["dropped: not admitted"] += 1
            self._give(relay, name)  # the sender may be newer than the roster held here, or removed
        else:
            message = self._seals.open(name, contact.key, content)
            if message is None:
                self.counts["dropped: not sealed"] += 1
            else:
                self._receive(name, message)

    def _give(self, relay: str, name: str) -> None:
        """Send the roster through a relay, in place of the exchange of rosters on a connection."""
        if self.kept is not None and self._given.take(name, self.loop.time()):
            self._through(relay, name, LIST, self.kept)

    # -- connections

    def wants(self, name: str) -> bool:
        """Whether a connection is needed: to neighbours, to members with waiting frames, and to relays in use."""
        if name in self.relays:
            return not self._reachable or self.loop.time() < self._relays_until
        return name in self.links or name in self._waiting

    def place(self, name: str) -> HostPort | None:
        """Return host and port of a member or a relay, or None."""
        if name in self.relays:
            return self.relays[name]
        contact = self.contacts.get(name)
        return None if contact is None or contact.endpoint is None else split_endpoint(contact.endpoint)

    def connected(self, name: str, channel: Channel) -> None:
        """Send the frames that wait for a member."""
        self._apart.pop(name, None)
        self._alone_until.pop(name, None)
        self._flush(name)

    def disconnected(self, name: str) -> None:
        """Note since when a neighbour is not connected."""
        self.present.pop(name, None)
        if name in self.links:
            self._apart[name] = self.loop.time()

    def missed(self, name: str) -> None:
        """Handle a failed try. A member that is no neighbour is not tried again for a while, except through relays."""
        if name in self._waiting and name not in self.links:
            self._alone_until[name] = self.loop.time() + self.limits.leave_alone
            if self.relays:
                self._relays_until = self.loop.time() + RELAY_KEEP
                self._look_for_relays(self.loop.time())
            else:
                self._give_up(name, "unreachable")

    def look(self, now: float) -> None:
        """Drop frames that have waited too long, close unused connections, and look for relays if they are needed."""
        for name in [name for name, waiting in self._waiting.items() if waiting.until < now]:
            self._give_up(name, "no connection")
        if any(now - since > RELAY_AFTER for since in self._apart.values()):
            self._relays_until = now + RELAY_KEEP
        self._look_for_relays(now)
        spare = [c for name, c in self.channels.items() if c.expect is not None and not self.wants(name)]
        spare.sort(key=lambda channel: channel.used)
        for k, channel in enumerate(spare):
            if now - channel.used > self.limits.idle or len(spare) - k > self.limits.spare:
                channel.finish("idle")

    def _look_for_relays(self, now: float) -> None:
        for name in self.relays:
            if name not in self.channels and self.wants(name):
                self.dial(name)


def named(contacts: Iterable[Contact]) -> dict[str, Contact]:
    """Return contacts by name."""
    return {contact.name: contact for contact in contacts}
