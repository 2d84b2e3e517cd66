"""A program that forwards letters between members that cannot connect to each other.

It sees who writes to whom, when, and how much; and can drop letters. It can neither read them, for they are sealed, nor
pass off one as another member's. Lists of members are not sealed: it has them itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ...errors import ParameterError
from ..group.identity import check_name, split_endpoint
from ..wire.limits import Buckets, Limits, descriptors
from . import Contact, DeliverRoster
from .channel import FORWARD, LETTER, LIST, PRESENT, Channel, forward, frame, read_forward
from .hub import Hub
from .loops import LoopThread
from .over_tls import checked_run, given_credentials
from .peer_hub import MANY
from .proofs import OVERHEAD, Credentials, Papers

#: Bytes that wait for one member.
QUEUE_BYTES = 1 << 20
#: Bytes a second, of all that are told who is here: who comes and goes all the time must not make it tell more.
PRESENCE_BYTES = 1 << 20


class RelayHub(Hub):
    """A hub that passes on what members send each other."""

    def __init__(self, *given: Any, letters_per_second: float):
        super().__init__(*given)
        self._rate = letters_per_second
        self._ways: dict[str, Buckets] = {}  # by sender, for each that it writes to
        self._told: frozenset[str] = frozenset()
        self._tell_at = 0.0

    def take_up(self, channel: Channel, kind: int, body: bytes) -> None:
        """A frame from a member."""
        if kind != FORWARD:
            super().take_up(channel, kind, body)
            return
        sender, found = channel.name or "", read_forward(body)
        if found is None or found[1] not in (LETTER, LIST):
            self.dropped_from(sender, "out of place")
            return
        name, inner, content = found
        goal = self.channels.get(name)
        ways = self._ways.setdefault(sender, Buckets(self._rate, 4.0 * self._rate))
        if goal is None:
            self.dropped_from(sender, "absent")
        elif inner == LETTER and len(content) > self.limits.letter + OVERHEAD:
            self.dropped_from(sender, "too large")
        elif not ways.take(name, channel.last_in):
            self.dropped_from(sender, "too many")
        else:
            self.counts["forwarded"] += 1
            if not goal.push(frame(FORWARD, forward(sender, inner, content))):
                self.dropped_to(name, "queue full")

    def connected(self, name: str, channel: Channel) -> None:
        """Tell it who is here; the others hear of it soon."""
        channel.push(self._presence())

    def disconnected(self, name: str) -> None:
        """It writes to nobody any more."""
        self._ways.pop(name, None)

    def look(self, now: float) -> None:
        """Tell everybody who is here, if that has changed."""
        here = frozenset(self.channels)
        if here != self._told and now >= self._tell_at:
            self._told, text = here, self._presence()
            self._tell_at = now + len(text) * len(here) / PRESENCE_BYTES
            for channel in self.channels.values():
                channel.push(text)

    def _presence(self) -> bytes:
        return frame(PRESENT, "\n".join(self.channels).encode())

    def publish(self, signed: bytes) -> None:
        """A list of members to everybody."""
        for channel in self.channels.values():
            channel.push(frame(LIST, signed))


class TlsRelay:
    """Listens, and forwards in the background. Its certificate must not have the name of a member."""

    def __init__(
        self,
        run: str,
        name: str,
        listen: str,
        folder: str | Path | None = None,
        *,
        credentials: Credentials | None = None,
        contacts: Iterable[Contact] = (),
        letter_bytes: int = 200_000,
        letters_per_second: float = 1000.0,
        limits: Limits | None = None,
        uvloop: bool | None = None,
    ):
        self.name, self.endpoint, self._listen = check_name(name), listen, split_endpoint(listen, "listen")
        checked_run(run)
        self._uvloop, self._rate = uvloop, 2.0 * letters_per_second
        self._papers = Papers(given_credentials(folder, credentials), run)
        self._limits = (limits or Limits())._replace(
            letter=letter_bytes, letters=MANY * self._rate, queue_bytes=QUEUE_BYTES
        )
        self._keys: dict[str, bytes | None] = {}
        self._revoked: frozenset[str] = frozenset()
        self._kept: bytes | None = None
        self._roster: DeliverRoster | None = None
        self._changing = threading.RLock()
        self._thread: LoopThread | None = None
        self._hub: RelayHub | None = None
        self.admit(contacts)

    def admit(self, contacts: Iterable[Contact], revoked: Iterable[str] = ()) -> None:
        """Whom to serve, instead of those of before; and certificates that are no good any more."""
        keys = {check_name(contact.name): contact.key for contact in contacts}
        if self.name in keys:
            raise ParameterError(f"a relay must not have the name of a member: {self.name}")
        self._keys, self._revoked = keys, frozenset(revoked)
        state = keys, self._revoked
        self._do(lambda hub: hub.admit(*state))

    def keep_roster(self, signed: bytes) -> None:
        """The list of members to hand to those who are not on it."""
        self._kept = signed

        def keep(hub: RelayHub) -> None:
            hub.kept = signed

        self._do(keep)

    def publish_roster(self, signed: bytes) -> None:
        """Give a list of members to everybody connected."""
        self._do(lambda hub: hub.publish(signed))

    def listen(self, roster: DeliverRoster) -> None:
        """Call a function with every list of members that comes. Unchecked: verify it."""
        self._roster = roster

    def reload(self) -> None:
        """Read certificates anew, for connections that are made from now on."""
        self._papers.load()

    @property
    def counts(self) -> dict[str, int]:
        """How many letters were forwarded, and dropped by reason; and how connections ended."""
        hub = self._hub
        return {} if hub is None else dict(hub.counts)

    def dropped(self) -> dict[str, dict[str, int]]:
        """What was dropped of letters from and to members, by name."""
        hub = self._hub
        return {} if hub is None else {name: dict(counts) for name, counts in dict(hub.dropped).items()}

    def strangers(self) -> dict[str, dict[str, int]]:
        """Connections that came to nothing before a name was proven, by source and reason."""
        hub = self._hub
        return {} if hub is None else {source: dict(counts) for source, counts in list(hub.front.failures.items())}

    def alive(self) -> set[str]:
        """Names of the members that are connected."""
        hub = self._hub
        return set() if hub is None else set(hub.channels)

    def open(self) -> None:
        """Listen, and forward in the background."""
        with self._changing:
            if self._thread is not None:
                raise ParameterError(f"{self.name} is open already")
            thread = LoopThread(f"coterie-{self.name}", self._uvloop)
            limits = self._limits.within(descriptors())
            hub = RelayHub(
                thread.loop,
                self.name,
                self._papers,
                limits,
                self._take_roster,
                letters_per_second=self._rate,
            )
            hub.kept = self._kept

            def begin() -> None:
                hub.open(self._listen)
                hub.admit(self._keys, self._revoked)

            try:
                thread.start(begin)
            except OSError as error:
                raise ParameterError(f"{self.name} cannot open {self.endpoint}: {error.strerror or error}") from error
            self._thread, self._hub = thread, hub

    def close(self) -> None:
        """Stop. Twice is fine; never raises."""
        with self._changing:
            thread, hub = self._thread, self._hub
            self._thread = self._hub = None
        if thread is not None and hub is not None:
            thread.end(hub.close, hub.abandon)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take_roster(self, signed: bytes) -> None:
        if self._roster is not None:
            self._roster(signed)

    def _do(self, act: Callable[[RelayHub], object]) -> None:
        hub, thread = self._hub, self._thread
        if hub is not None and thread is not None:
            thread.call(act, hub)
