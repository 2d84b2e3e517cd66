"""Accepting connections: bounds on strangers before they have proven a name, and the order in which they are closed.

A *stranger* is a connection without a proven name. It costs a descriptor and a few hundred bytes. Its first byte
decides. A TLS handshake is allowed at a bounded rate per address, and for all addresses together. A pre-authentication
(:mod:`.proofs`) with a member's valid signature is exempt from these bounds. Any other connection is closed. If there
are too many strangers, those that have been silent longest are closed first.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..wire.limits import Bucket, Buckets, Limits
from .proofs import MAX_PREAUTH_BYTES, PREAUTH, TLS, Preauths, length

if TYPE_CHECKING:
    from .channel import Channel

#: Connections accepted in one go, so that existing connections have their turn in between.
MAX_ACCEPTS = 64
#: Seconds without accepting connections after the system has run out of descriptors.
PAUSE_SECONDS = 0.1
#: Handshakes at once and pre-authentications per second of one member.
MAX_PREAUTHENTICATED, PREAUTHS_A_SECOND = 3, 4.0

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def source_of(address: str) -> str:
    """Return the source of an address: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address or "?"
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, 64), strict=False))
        return str(found.ipv4_mapped)
    return str(found)


class Stranger:
    """A connection that has not proven a name."""

    __slots__ = ("born", "channel", "held", "preauthenticated", "sock", "source")

    def __init__(self, sock: socket.socket, source: str, born: float):
        self.sock, self.source, self.born = sock, source, born
        self.held = b""  # received bytes, before their kind is known
        self.channel: Channel | None = None  # once there is a handshake
        self.preauthenticated: str | None = None  # name of the member whose pre-authentication was valid


#: Strangers in order of arrival: of one kind, in total or from one source.
StrangerQueue = OrderedDict[Stranger, None]


class Front:
    """Listens, and calls ``begin(stranger, first bytes)`` for each stranger that begins a handshake."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        preauths: Preauths,
        begin: Callable[[Stranger, bytes], None],
    ):
        self._loop, self._limits, self._preauths, self._begin = loop, limits, preauths, begin
        self._listening: list[socket.socket] = []
        self._silent: StrangerQueue = OrderedDict()
        self._begun: StrangerQueue = OrderedDict()
        self._by_source: dict[str, tuple[StrangerQueue, StrangerQueue]] = {}
        self._preauthenticated: dict[str, StrangerQueue] = {}
        self._starts = Bucket(limits.starts, limits.starts)
        self._verified = Bucket(limits.preauths, limits.preauths)
        self._starts_of = Buckets(limits.starts_address, 2 * limits.starts_address, limits.sources)
        self._preauths_of = Buckets(PREAUTHS_A_SECOND, 4 * PREAUTHS_A_SECOND)
        self.failures: OrderedDict[str, Counter[str]] = OrderedDict()  # by source

    def open(self, host: str, port: int) -> None:
        """Listen at every address of a host."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, place in dict.fromkeys(found):
                sock = socket.create_server(place[:2], family=family, backlog=self._limits.backlog)
                self._listening.append(sock)
                sock.setblocking(False)
        except OSError:
            self.close()
            raise
        self._start_accepting()

    def close(self) -> None:
        """Stop listening, and close all connections of strangers."""
        for sock in self._listening:
            self._loop.remove_reader(sock)
            sock.close()
        self._listening = []
        everybody = [*self._silent, *self._begun, *(one for queue in self._preauthenticated.values() for one in queue)]
        for stranger in everybody:
            self.refuse(stranger, "closed by us")

    def __len__(self) -> int:
        """Number of strangers."""
        return len(self._silent) + len(self._begun) + sum(map(len, self._preauthenticated.values()))

    # -- accepting

    def _start_accepting(self) -> None:
        for sock in self._listening:
            self._loop.add_reader(sock, self._accept, sock)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(MAX_ACCEPTS):
            try:
                sock, place = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    return
                # The bounds prevent this, unless something else in this process uses the descriptors.
                self._note("?", "no descriptor left")
                for one in list(self._silent)[: max(1, len(self._silent) // 2)]:
                    self.refuse(one, "no descriptor left")
                for each in self._listening:
                    self._loop.remove_reader(each)
                self._loop.call_later(PAUSE_SECONDS, self._start_accepting)
                return
            sock.setblocking(False)
            stranger = Stranger(sock, source_of(str(place[0])), self._loop.time())
            self._place(stranger, self._silent, 0)
            self._read(stranger)
            if stranger in self._silent:
                self._loop.add_reader(sock, self._read, stranger)
                self._make_room(stranger, self._silent, 0, self._limits.silent, self._limits.silent_address)

    def _place(self, stranger: Stranger, queue: StrangerQueue, kind: int) -> None:
        own = self._by_source.setdefault(stranger.source, (OrderedDict(), OrderedDict()))
        own[kind][stranger] = queue[stranger] = None

    def _make_room(self, stranger: Stranger, queue: StrangerQueue, kind: int, most: int, most_of_one: int) -> None:
        own = self._by_source[stranger.source][kind]
        if len(own) > most_of_one:
            oldest, reason = next(iter(own)), "too many at once from there"
        elif len(queue) > most:
            oldest, reason = next(iter(queue)), "too many at once"
        else:
            return
        if queue is self._silent:
            self._read(oldest)  # it may have sent something a moment ago
            if oldest not in queue:
                return
        self.refuse(oldest, reason)

    # -- the first bytes

    def _read(self, stranger: Stranger) -> None:
        try:
            data = stranger.sock.recv(MAX_PREAUTH_BYTES + 4096 - len(stranger.held))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.refuse(stranger, "broken off")
            return
        if not data:
            self.refuse(stranger, "said nothing" if not stranger.held else "broken off")
            return
        data = stranger.held = stranger.held + data
        if data[0] == TLS:
            self._start(stranger, data)
        elif data[0] != PREAUTH:
            self.refuse(stranger, "not TLS")
        elif length(data) > MAX_PREAUTH_BYTES:
            self.refuse(stranger, "not a pre-authentication")
        elif len(data) >= length(data) > 2:
            self._answer(stranger, data[: length(data)], data[length(data) :])

    def _answer(self, stranger: Stranger, preauth: bytes, rest: bytes) -> None:
        """Check a pre-authentication. A valid one of a member is exempt from the bounds; without one, the
        bounds apply.
        """
        now, name = self._loop.time(), self._preauths.claimed(preauth)
        if name is not None and self._verified.take(now):
            if not self._preauths.check(name, preauth):
                self.refuse(stranger, "a false pre-authentication")
                return
            if self._preauths_of.take(name, now):
                stranger.preauthenticated = name
        if rest and rest[0] != TLS:
            self.refuse(stranger, "not TLS")
            return
        self._start(stranger, rest)

    def _start(self, stranger: Stranger, data: bytes) -> None:
        """Begin a handshake, if the bounds allow one more."""
        now = self._loop.time()
        self._loop.remove_reader(stranger.sock)
        if stranger.preauthenticated is not None:
            self._forget(stranger)
            queue = self._preauthenticated.setdefault(stranger.preauthenticated, OrderedDict())
            queue[stranger] = None
            if len(queue) > MAX_PREAUTHENTICATED:
                self.refuse(next(iter(queue)), "pre-authenticated again")
        else:
            if not self._starts_of.take(stranger.source, now):
                self.refuse(stranger, "too many a second from there")
                return
            if not self._starts.take(now):
                self.refuse(stranger, "too many a second")
                return
            self._forget(stranger)
            self._place(stranger, self._begun, 1)
            self._make_room(stranger, self._begun, 1, self._limits.begun, self._limits.begun_address)
        stranger.held = b""
        self._begin(stranger, data)

    # -- closing

    def late(self, now: float) -> None:
        """Close connections whose time is over."""
        for queue in (self._silent, self._begun, *list(self._preauthenticated.values())):
            for stranger in [one for one in queue if now - one.born > self._limits.handshake]:
                self.refuse(stranger, "too slow")

    def refuse(self, stranger: Stranger, reason: str) -> None:
        """Close the connection of a stranger."""
        self._forget(stranger)
        if stranger.channel is not None:
            stranger.channel.fail(reason)  # notes the reason, too
            return
        self._note(stranger.source, reason)
        self._loop.remove_reader(stranger.sock)
        with contextlib.suppress(OSError):
            stranger.sock.close()

    def proven(self, stranger: Stranger) -> None:
        """Forget a stranger that has proven its name."""
        self._forget(stranger)
        stranger.channel = None

    def failed(self, stranger: Stranger, reason: str) -> None:
        """Note a failed handshake."""
        self._forget(stranger)
        stranger.channel = None  # no reference cycle, so that memory of the handshake is freed at once
        self._note(stranger.source, reason)

    def _forget(self, stranger: Stranger) -> None:
        """Remove a stranger from all groups."""
        if stranger.preauthenticated is not None:
            queue = self._preauthenticated.get(stranger.preauthenticated, OrderedDict())
            queue.pop(stranger, None)
            if not queue:
                self._preauthenticated.pop(stranger.preauthenticated, None)
        self._silent.pop(stranger, None)
        self._begun.pop(stranger, None)
        own = self._by_source.get(stranger.source)
        if own is not None:
            own[0].pop(stranger, None)
            own[1].pop(stranger, None)
            if not own[0] and not own[1]:
                del self._by_source[stranger.source]

    def _note(self, source: str, reason: str) -> None:
        seen = self.failures.pop(source, None)
        self.failures[source] = seen = Counter() if seen is None else seen
        seen[reason] += 1
        if len(self.failures) > self._limits.sources:
            self.failures.popitem(last=False)

    def admit(self, names: set[str]) -> None:
        """Set the names of members that may pre-authenticate."""
        self._preauths_of.keep(names)
