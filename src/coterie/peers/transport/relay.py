"""A program that forwards messages between members that cannot connect to each other.

A relay sees the sender, receiver, time and size of each message, and can drop messages. It cannot read them, because
they are sealed, nor forge the sender. Rosters are not sealed: the relay has them itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from ..._files import Where
from ...errors import ParameterError
from ..group.identity import check_name
from ..wire.limits import Buckets
from . import Contact, DeliverRoster
from .channel import FORWARD, LIST, MESSAGE, PRESENT, Channel, forward, frame, read_forward
from .hub import Hub
from .loops import Endpoint
from .peer_hub import RELAY_RATE_FACTOR
from .proofs import SEAL_BYTES

#: Maximal bytes that wait for one member.
QUEUE_BYTES = 1 << 20
#: Bytes per second of all notices of who is connected, so that frequent reconnections cannot cause more.
PRESENCE_BYTES = 1 << 20


class RelayHub(Hub):
    """Connections of a relay, which forwards frames between members."""

    def __init__(self, *given: Any, messages_per_second: float):
        super().__init__(*given)
        self._rate = messages_per_second
        self._ways: dict[str, Buckets] = {}  # by sender: a rate for each receiver
        self._told: frozenset[str] = frozenset()
        self._tell_at = 0.0

    def take_up(self, channel: Channel, kind: int, body: bytes) -> None:
        """Forward a frame from a member."""
        if kind != FORWARD:
            super().take_up(channel, kind, body)
            return
        sender, found = channel.name or "", read_forward(body)
        if found is None or found[1] not in (MESSAGE, LIST):
            self.drop("from", sender, "out of place")
            return
        name, inner, content = found
        goal = self.channels.get(name)
        ways = self._ways.setdefault(sender, Buckets(self._rate, 4.0 * self._rate))
        if goal is None:
            self.drop("from", sender, "absent")
        elif inner == MESSAGE and len(content) > self.limits.message + SEAL_BYTES:
            self.drop("from", sender, "too large")
        elif not ways.take(name, channel.last_in):
            self.drop("from", sender, "too many")
        else:
            self.counts["forwarded"] += 1
            if not goal.push(frame(FORWARD, forward(sender, inner, content))):
                self.drop("to", name, "queue full")

    def connected(self, name: str, channel: Channel) -> None:
        """Send a new member the names of all that are connected. The others are informed soon."""
        channel.push(self._presence())

    def disconnected(self, name: str) -> None:
        """Forget the rates of a member."""
        self._ways.pop(name, None)

    def look(self, now: float) -> None:
        """Send everybody the names of connected members, if they have changed."""
        here = frozenset(self.channels)
        if here != self._told and now >= self._tell_at:
            self._told, text = here, self._presence()
            self._tell_at = now + len(text) * len(here) / PRESENCE_BYTES
            for channel in self.channels.values():
                channel.push(text)

    def _presence(self) -> bytes:
        return frame(PRESENT, "\n".join(self.channels).encode())


class TlsRelay(Endpoint[RelayHub]):
    """Listens, and forwards in the background. Its name must not be the name of a member.

    The parameters folder, credentials, message_bytes, limits and uvloop are those of :class:`Endpoint`.
    """

    def __init__(
        self,
        run: str,
        name: str,
        listen: str,
        folder: Where | None = None,
        *,
        contacts: Iterable[Contact] = (),
        messages_per_second: float = 1000.0,
        **how: Any,
    ):
        super().__init__(run, name, listen, folder, **how)
        self._rate = 2.0 * messages_per_second
        self._limits = self._limits._replace(messages=RELAY_RATE_FACTOR * self._rate, queue_bytes=QUEUE_BYTES)
        self.endpoint = listen
        self._keys: dict[str, bytes | None] = {}
        self._roster: DeliverRoster = lambda signed: None
        self.admit(contacts)

    def admit(self, contacts: Iterable[Contact], revoked: Iterable[str] = ()) -> None:
        """Replace the members to serve, and revoke certificates."""
        keys = {check_name(contact.name): contact.key for contact in contacts}
        if self.name in keys:
            raise ParameterError(f"a relay must not have the name of a member: {self.name}")
        self._keys, self._revoked = keys, frozenset(revoked)
        state = keys, self._revoked
        self._do(lambda hub: hub.admit(*state))

    def publish_roster(self, signed: bytes) -> None:
        """Send a roster to all connected members."""
        self._do(lambda hub: hub.publish(signed))

    def listen(self, roster: DeliverRoster) -> None:
        """Call a function with every roster that arrives. It is not verified."""
        self._roster = roster

    def alive(self) -> set[str]:
        """Names of the members that are connected."""
        hub = self._hub
        return set() if hub is None else set(hub.channels)

    def open(self) -> None:
        """Listen, and forward in the background."""
        self._open(
            lambda loop, limits: RelayHub(
                loop, self.name, self._contexts, limits, self._take_roster, messages_per_second=self._rate
            ),
            lambda hub: hub.admit(self._keys, self._revoked),
        )

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_roster(self, signed: bytes) -> None:
        self._roster(signed)
