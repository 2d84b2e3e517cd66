"""Connections between peers: dialling, accepting, non-members, and detection of lost connections, in one event loop.

Both sides dial, so that no connection depends on one side being reachable. If there are two connections between two
peers, both keep the one dialled by the smaller name, and read the other one a while longer, so that nothing is lost. In
TLS 1.3 the dialling side finishes before the other side has checked its certificate. So the accepting side sends
ADMITTED, and only then there is a link. A peer with a valid certificate that is not admitted is sent VISITING. Then
both sides send each other their roster, once, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping

from ..wire.limits import Buckets, Limits
from .channel import ADMITTED, LIST, OVER, SHAKING, UP, VISIT, VISITING, WAITING, Channel, frame
from .front import Front, Stranger
from .proofs import Preauths, Proof, TlsContexts, write_preauth

log = logging.getLogger("coterie")

#: Seconds between two checks of all connections.
TICK_SECONDS = 0.25
#: Seconds between two checks, above which the process was stopped, so that silence is not the other peers' fault.
STOPPED_SECONDS = 2.0
#: Seconds for which the second of two connections is still read, and the maximal number of such connections per member.
DOUBLE_SECONDS, MAX_DOUBLES = 1.0, 3
#: Additional seconds that the greater name waits before it dials again.
GREATER_NAME_DELAY = 0.3
#: Connections of one non-member that are accepted per second, and at once.
VISITS_PER_SECOND, VISITS_AT_ONCE = 0.5, 4.0

HostPort = tuple[str, int]


class Hub:
    """Connections of a peer or a relay."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        me: str,
        contexts: TlsContexts,
        limits: Limits,
        roster: Callable[[bytes], None],
        sign: Callable[[bytes], bytes] | None = None,
    ):
        self.loop, self.me, self.contexts, self.limits = loop, me, contexts, limits
        self._roster, self._sign = roster, sign
        self.preauths = Preauths(me)
        self.front = Front(loop, limits, self.preauths, self._begin)
        # One for all channels, because each empties it before the next reads.
        self.buffer = memoryview(bytearray(65_536))
        self.counts: Counter[str] = Counter()
        self.dropped: dict[str, Counter[str]] = {}  # by name of the sender or receiver
        self.admitted: frozenset[str] = frozenset()
        self.revoked: frozenset[str] = frozenset()
        self.kept: bytes | None = None  # the roster for non-members
        self.channels: dict[str, Channel] = {}  # links
        self.opening: set[Channel] = set()  # dialled, and not admitted yet
        self.non_members: dict[str, Channel] = {}
        self._visits = Buckets(VISITS_PER_SECOND, VISITS_AT_ONCE, limits.sources)
        self._doubles: set[Channel] = set()
        self._dials: dict[str, asyncio.Task[None] | asyncio.TimerHandle] = {}  # a try, or the wait for the next one
        self.tries: dict[str, int] = {}
        self.closed = False
        self.leaving: set[asyncio.Transport] = set()  # closed, but with bytes still to be sent
        self._since = loop.time()
        self._tick: asyncio.TimerHandle | None = None

    # -- start and stop

    def open(self, listen: HostPort | None) -> None:
        """Start."""
        if listen is not None:
            self.front.open(*listen)
        self._since = self.loop.time()
        self._tick = self.loop.call_later(TICK_SECONDS, self.tick)

    def close(self) -> bool:
        """Close all connections. Return whether bytes are still to be sent."""
        if self._tick is not None:
            self._tick.cancel()
        self.front.close()
        self.closed = True
        for name in list(self._dials):
            self._forget_wait(name)
        for channel in (*self.channels.values(), *self.opening, *self.non_members.values(), *self._doubles):
            channel.finish("closed by us")
        return any(transport.get_write_buffer_size() for transport in self.leaving)

    def abandon(self) -> None:
        """Drop the bytes that are still to be sent."""
        for transport in list(self.leaving):
            transport.abort()

    # -- admission

    def admit(self, keys: Mapping[str, bytes | None], revoked: frozenset[str]) -> None:
        """Set the names that may connect, with their keys, and revoke certificates."""
        self.admitted, self.revoked = frozenset(keys), revoked
        self.preauths.admit({name: key for name, key in keys.items() if key is not None})
        self.front.admit(set(keys))
        self.dropped = {name: counts for name, counts in self.dropped.items() if name in keys}
        for channel in (*self.channels.values(), *self.opening, *self._doubles):
            name = channel.expect or channel.name
            if channel.proof is not None and channel.proof.serial in revoked:
                channel.fail("revoked")
            elif name not in self.admitted:
                # The last frame is the roster that removes the member.
                if channel.stage == UP and self.kept is not None:
                    channel.push(frame(LIST, self.kept))
                channel.finish("no longer admitted")
        for channel in list(self.non_members.values()):
            if channel.proof is not None and channel.proof.serial in revoked:
                channel.fail("revoked")
            elif channel.proof is not None and self._may_enter(channel.proof):
                del self.non_members[channel.proof.name]
                self._let_in(channel)

    def _may_enter(self, proof: Proof) -> bool:
        return proof.name in self.admitted and proof.same_run and proof.serial not in self.revoked

    def rate(self, name: str) -> float | None:
        """Maximal number of frames per second from a member; None: no bound."""
        return self.limits.messages

    # -- accepting

    def _begin(self, stranger: Stranger, first: bytes) -> None:
        """Begin a handshake with a stranger."""
        channel = stranger.channel = Channel(self, None, stranger, first)
        task = self.loop.create_task(self._take_up(channel, stranger))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _take_up(self, channel: Channel, stranger: Stranger) -> None:
        # From here on only the event loop closes the socket: a reused descriptor would be taken for the old socket.
        try:
            if channel.stage == OVER:
                stranger.sock.close()
            else:
                await self.loop.connect_accepted_socket(lambda: channel, stranger.sock)
        except OSError:
            stranger.sock.close()
            channel.fail("broken off")

    def proven(self, channel: Channel, proof: Proof) -> None:
        """Decide about a connection whose certificate has proven a name."""
        if channel.stranger is not None:
            self.front.proven(channel.stranger)
        if proof.name == self.me:
            channel.fail("my own name")
        elif proof.serial in self.revoked:
            channel.fail("revoked")
        elif channel.expect is not None:
            if proof.name != channel.expect:
                channel.fail("another name")
            elif proof.name not in self.admitted:
                channel.fail("no longer admitted")
            else:
                channel.stage = WAITING
        elif self._may_enter(proof):
            if len(self.channels) >= self.limits.channels and proof.name not in self.channels:
                channel.fail("no room")
            else:
                self._let_in(channel)
        else:
            self._receive_non_member(channel, proof.name)

    def _let_in(self, channel: Channel) -> None:
        channel.say(frame(ADMITTED))
        self._up(channel)

    def _receive_non_member(self, channel: Channel, name: str) -> None:
        """Exchange rosters with a peer that is not on this roster: a former member, or one from a newer roster."""
        if not self._visits.take(name, self.loop.time()):
            channel.fail("not admitted, too often")
            return
        old = self.non_members.pop(name, None)
        if old is not None:
            old.fail("visits again")
        if len(self.non_members) >= self.limits.non_members:
            next(iter(self.non_members.values())).fail("too many non-members")
        self.counts["non_members"] += 1
        self.non_members[name] = channel
        channel.stage, channel.deadline = VISIT, self.loop.time() + self.limits.visit
        channel.say(frame(VISITING))
        if self.kept is not None:
            channel.push(frame(LIST, self.kept))

    # -- frames

    def take(self, channel: Channel, kind: int, body: bytes) -> None:
        """Take a frame. Only few kinds are allowed before there is a link."""
        if channel.stage == UP:
            self.take_up(channel, kind, body)
        elif channel.expect is not None and kind == ADMITTED and channel.stage in (WAITING, VISIT):
            self._up(channel)
        elif channel.expect is not None and kind == VISITING and channel.stage == WAITING:
            channel.stage, channel.deadline = VISIT, self.loop.time() + self.limits.visit
            if self.kept is not None:
                channel.push(frame(LIST, self.kept))
        elif kind == LIST and channel.stage == VISIT:
            self.take_list(body)
        else:
            self.counts["dropped: out of place"] += 1

    def take_up(self, channel: Channel, kind: int, body: bytes) -> None:
        """Take a frame on a link."""
        if kind == LIST:
            self.take_list(body)
        else:
            self.drop("from", channel.name or "", "unknown kind")

    def take_list(self, signed: bytes) -> None:
        """Take a roster from any sender. The receiver verifies it."""
        self.counts["rosters"] += 1
        try:
            self._roster(signed)
        except Exception:
            log.exception("%s could not take a roster", self.me)

    def publish(self, signed: bytes) -> None:
        """Send a roster to all connected members."""
        for channel in self.channels.values():
            channel.push(frame(LIST, signed))

    def drop(self, way: str, name: str, reason: str) -> None:
        """Count a dropped frame "from" or "to" a member."""
        self.counts[f"dropped: {reason}"] += 1
        if name in self.admitted:
            self.dropped.setdefault(name, Counter())[f"{way}: {reason}"] += 1

    # -- links

    def _up(self, channel: Channel) -> None:
        """Make a channel the link to a member. If there is one already, both sides keep the same one of the two."""
        name = channel.name or ""
        self.opening.discard(channel)
        if channel.expect is not None:
            self._dials.pop(name, None)
            if not self.wants(name):
                channel.finish("no longer needed")
                return
        channel.stage = UP
        old, smaller = self.channels.get(name), min(self.me, name)
        if old is not None:
            new_is, old_is = ((self.me if one.expect else name) == smaller for one in (channel, old))
            fresh = self.loop.time() - old.last_in < 1.5 * self.limits.ping
            if old_is and not new_is and fresh:
                self._double(channel)
                return
            channel.take_over(old)
        self.channels[name] = channel
        if old is not None:
            self._double(old)  # may end the old channel, which is not the link any more
        else:
            self._forget_wait(name)
            self.connected(name, channel)

    def _double(self, channel: Channel) -> None:
        self._doubles.add(channel)
        if sum(other.name == channel.name for other in self._doubles) > MAX_DOUBLES:
            channel.finish("double")
        else:
            self.loop.call_later(DOUBLE_SECONDS, channel.finish, "double")

    def connected(self, name: str, channel: Channel) -> None:
        """Called when there is a link to a member."""

    def disconnected(self, name: str) -> None:
        """Called when the link to a member is lost."""

    def ended(self, channel: Channel, stage: str, reason: str) -> None:
        """Remove a connection that has ended."""
        self.opening.discard(channel)
        if channel in self._doubles:
            self._doubles.discard(channel)
            reason = "double"  # whichever side has closed the connection
        self.counts[f"ended: {reason}"] += 1
        if channel.stranger is not None and stage != UP and reason != "closed by us":
            self.front.failed(channel.stranger, reason if channel.name is None else f"{reason} ({channel.name})")
        name = channel.expect or channel.name
        if name is None:
            return
        if self.non_members.get(name) is channel:
            del self.non_members[name]
        if self.channels.get(name) is channel:
            del self.channels[name]
            if self.loop.time() - channel.born > 5.0:
                self.tries[name] = 0
            self.disconnected(name)
        elif channel.expect is not None and stage != UP:
            self._dials.pop(name, None)
            self.missed(name)
        self.again(name)

    # -- dialling

    def wants(self, name: str) -> bool:
        """Whether a connection to a member is needed."""
        return False

    def place(self, name: str) -> HostPort | None:
        """Return host and port of a member, or None."""
        return None

    def missed(self, name: str) -> None:
        """Called when a try to connect has failed."""

    def dial(self, name: str, anew: bool = False) -> None:
        """Connect, unless a try is in progress. With ``anew``, do not wait for the time of the next try."""
        if anew:
            self.tries[name] = 0
            self._forget_wait(name)
        place = self.place(name)
        if place is not None and name not in self.channels and name not in self._dials and self.wants(name):
            self._dials[name] = self.loop.create_task(self._dial(name, place))

    def _forget_wait(self, name: str) -> None:
        """Cancel the wait for the next try."""
        dial = self._dials.get(name)
        if dial is not None and not isinstance(dial, asyncio.Task):
            dial.cancel()
            del self._dials[name]

    async def _dial(self, name: str, place: HostPort) -> None:
        """Try once to connect. The channel schedules the next try when it fails or is lost."""
        channel = Channel(self, name)
        try:
            async with asyncio.timeout(self.limits.handshake):
                where = await self._address(name, place)
                if self._sign is not None:
                    channel.preauth = write_preauth(self.me, name, self._sign)
                await self.loop.create_connection(lambda: channel, *where)
            if self.closed:  # the hub was closed while this connection was unknown to it
                channel.fail("closed by us")
            elif channel.stage in (SHAKING, WAITING, VISIT):
                channel.deadline = self.loop.time() + self.limits.handshake
                self.opening.add(channel)
        except (OSError, TimeoutError, UnicodeError, IndexError):
            if channel.stage != OVER:
                channel.stage = OVER
                self.counts["failed: cannot connect"] += 1
                self._dials.pop(name, None)
                self.missed(name)
                self.again(name)

    async def _address(self, name: str, place: HostPort) -> HostPort:
        """Return one address of a host per try, because the first of several may not answer."""
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(place[0])
            return place  # an address needs no lookup, so it does not queue behind slow ones
        found = await self.loop.getaddrinfo(*place, type=socket.SOCK_STREAM)
        where = found[self.tries.get(name, 0) % len(found)][4]
        return str(where[0]), int(where[1])

    def again(self, name: str) -> None:
        """Schedule the next try, if the connection is still needed."""
        if self.closed or not self.wants(name) or name in self.channels or name in self._dials:
            return
        if self.place(name) is None:
            return
        tried = self.tries.get(name, 0)
        wait = min(self.limits.longest, self.limits.first * 2 ** min(tried, 20)) * random.uniform(0.5, 1.0)
        self.tries[name] = tried + 1

        def redial() -> None:
            self._dials.pop(name, None)
            self.dial(name)

        later = 0.0 if self.me < name else GREATER_NAME_DELAY  # the other side dials earlier
        self._dials[name] = self.loop.call_later(wait + later, redial)

    # -- periodic checks

    def tick(self) -> None:
        """Check all connections: pings, silence, deadlines and expired certificates."""
        now, today = self.loop.time(), time.time()
        late, self._since = now - self._since > STOPPED_SECONDS, now
        for channel in (*self.channels.values(), *self._doubles):
            if late or channel.throttled:
                channel.last_in = max(channel.last_in, now)  # this side did not read
            elif now - channel.last_in > self.limits.dead:
                channel.fail("silent")
                continue
            if channel.proof is not None and channel.proof.expires < today:
                channel.fail("its certificate has expired")
            elif now - channel.last_out > self.limits.ping - TICK_SECONDS:
                channel.ping()
        for channel in (*self.opening, *self.non_members.values()):
            if channel.deadline < now:
                channel.fail("too slow" if channel.stage != VISIT else "not admitted")
        self.front.late(now)
        self.look(now)
        self._tick = self.loop.call_later(TICK_SECONDS, self.tick)

    def look(self, now: float) -> None:
        """Further periodic work."""
