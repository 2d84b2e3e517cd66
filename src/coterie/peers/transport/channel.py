"""One connection: TLS 1.3 over TCP, with frames inside.

TLS runs on ``ssl.MemoryBIO`` inside a plain protocol instead of asyncio's own TLS. So a stranger costs no task and no
large buffer, and all bounds before and during the handshake are set here. A frame is one byte for its kind, three bytes
for its length, and its body.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..wire.limits import Bucket
from .proofs import Proof

if TYPE_CHECKING:
    from .front import Stranger
    from .hub import Hub

#: Stages of a connection: handshake; dialled, and waiting to be admitted; exchange of rosters with a non-member; link;
#: over.
SHAKING, WAITING, VISIT, UP, OVER = "shaking", "waiting", "visit", "up", "over"
#: Approximate bytes of frames that share one TLS record.
RECORD_BYTES = 16_000
#: Seconds for sending queued frames when a connection is closed in order.
CLOSE_TIMEOUT = 1.0

_HEADER = struct.Struct(">I")
_SIZE = (1 << 24) - 1

PING = 0  # empty, because any bytes that arrive show that the sender is live
MESSAGE = 1
LIST = 2  # a signed roster
FORWARD = 3  # to a relay: receiver, and a sealed message or a roster; from a relay: sender, and the same
PRESENT = 4  # from a relay: the names of all members that are connected with it
ADMITTED = 5  # to the dialling side: it is admitted
VISITING = 6  # to the dialling side: it is not on the roster, and may send its own roster


def frame(kind: int, body: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    return _HEADER.pack(kind << 24 | len(body)) + body


def forward(name: str, kind: int, body: bytes) -> bytes:
    """Return the body of a FORWARD to or from a member."""
    plain = name.encode()
    return bytes([len(plain)]) + plain + bytes([kind]) + body


def read_forward(body: bytes) -> tuple[str, int, bytes] | None:
    """Return name, kind and body in a FORWARD, or None if the body is malformed."""
    size = body[0] if body else 0
    if len(body) < size + 2:
        return None
    try:
        return body[1 : size + 1].decode("ascii"), body[size + 1], body[size + 2 :]
    except UnicodeDecodeError:
        return None


class Reader:
    """Splits bytes into frames. A frame that is too long is skipped, and never stored."""

    def __init__(self, longest: Mapping[int, int]):
        self._longest = longest  # maximal bytes by kind; 0 for unknown kinds
        self._rest = bytearray()
        self._skip = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes | None]]:
        """Return the frames that are complete now: kind and body, or kind and None for a frame that is too long."""
        out: list[tuple[int, bytes | None]] = []
        rest = self._rest
        if self._skip:
            if len(data) <= self._skip:
                self._skip -= len(data)
                return out
            data, self._skip = data[self._skip :], 0
        if rest:
            rest += data
            if len(rest) < 4 or len(rest) - 4 < (_HEADER.unpack_from(rest)[0] & _SIZE):
                head = _HEADER.unpack_from(rest)[0] if len(rest) >= 4 else 0
                if head & _SIZE <= self._longest.get(head >> 24, 0):
                    return out  # the common case of a long frame: it is not complete yet
            data = bytes(rest)
            rest.clear()
        at, end = 0, len(data)
        while end - at >= 4:
            (head,) = _HEADER.unpack_from(data, at)
            kind, size = head >> 24, head & _SIZE
            if size > self._longest.get(kind, 0):
                out.append((kind, None))
                at += 4 + size
                if at > end:
                    self._skip = at - end
                    return out
                continue
            if end - at - 4 < size:
                break
            out.append((kind, data[at + 4 : at + 4 + size]))
            at += 4 + size
        if at < end:
            rest += data[at:]
        return out


_PING = frame(PING)


class Channel(asyncio.BufferedProtocol):
    """A connection that was accepted from a stranger, or dialled to the member ``expect``."""

    def __init__(self, hub: Hub, expect: str | None = None, stranger: Stranger | None = None, first: bytes = b""):
        self.hub, self.expect, self.stranger, self._first = hub, expect, stranger, first
        self.stage = SHAKING
        self.name: str | None = None  # once the certificate has proven it
        self.proof: Proof | None = None
        self.preauth = b""  # sent before the handshake
        self._buffer = hub.buffer
        self._transport: asyncio.Transport | None = None
        self._tls: ssl.SSLObject | None = None
        self._early = 0
        self._dirty = self.paused = self.throttled = False
        self._queue: deque[bytes] = deque()
        self._queued = 0
        limits = hub.limits
        self._bucket: Bucket | None = None
        self._lists = Bucket(2.0, 8.0)
        self._reader = Reader(
            {
                PING: 0,
                MESSAGE: limits.message,
                LIST: limits.roster,
                FORWARD: max(limits.message + 256, limits.roster + 256),
                PRESENT: limits.roster,
                ADMITTED: 0,
                VISITING: 0,
            }
        )
        self.born = self.last_in = self.last_out = self.used = hub.loop.time()
        self.deadline = self.born + limits.handshake

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the handshake."""
        self._transport = transport
        if self.stage == OVER or self.hub.closed:
            self.stage = OVER
            transport.abort()
            return
        transport.set_write_buffer_limits(high=self.hub.limits.high)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        contexts = self.hub.contexts
        context = contexts.dialling if self.expect is not None else contexts.accepting
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=self.expect is None)
        if self.expect is not None:
            transport.write(self.preauth)
            self._shake()
        elif self._first:
            self._early = len(self._first)
            self._incoming.write(self._first)
            self._first = b""
            self._shake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is lost."""
        if self._transport is not None:
            self.hub.leaving.discard(self._transport)
        self.fail("broken off" if self.name is None else "lost")

    def eof_received(self) -> bool:
        """Close the connection when the other side has closed it."""
        return False

    def fail(self, reason: str) -> None:
        """Close the connection at once."""
        if self.stage != OVER:
            before, self.stage = self.stage, OVER
            if self._transport is not None:  # otherwise it is aborted when it is made
                self._transport.abort()
            self._queue.clear()
            self.hub.ended(self, before, reason)

    def finish(self, reason: str) -> None:
        """Close the connection after sending what is queued."""
        if self.stage == OVER:
            return
        self._flush()
        before, self.stage = self.stage, OVER
        if self._transport is not None:
            transport = self._transport
            self.hub.leaving.add(transport)
            transport.close()
            self.hub.loop.call_later(CLOSE_TIMEOUT, transport.abort)
        self.hub.ended(self, before, reason)

    # -- receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for received bytes."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process received bytes."""
        if self.stage == OVER:
            return
        self.last_in = self.hub.loop.time()
        self._incoming.write(self._buffer[:nbytes])
        if self.stage != SHAKING:
            self._read()
            return
        self._early += nbytes
        self._shake()
        # Counted after the handshake, because a member's first messages may come together with its end.
        if self.stage == SHAKING and self._early > self.hub.limits.early:
            self.fail("too much before a name")

    def _shake(self) -> None:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._put_out()
            return
        except ssl.SSLError as error:
            self._put_out()  # sends the TLS alert
            self.fail((error.reason or "not TLS").lower().replace("_", " "))
            return
        self._put_out()
        proof = self.hub.contexts.proof(self._tls)
        if proof is None:
            self.fail("a certificate of another kind")
            return
        self.name, self.proof = proof.name, proof
        rate = self.hub.rate(proof.name)
        self._bucket = None if rate is None else Bucket(rate, 4.0 * rate)
        self.hub.proven(self, proof)
        if self.stage != OVER:
            self._read()

    def _read(self) -> None:
        tls, hub = self._tls, self.hub
        assert tls is not None
        try:
            while True:
                data = tls.read(65_536)
                if not data:
                    self.fail("lost")
                    return
                frames = self._reader.feed(data)
                if frames:
                    if self._bucket is not None:
                        wait = self._bucket.spend(self.last_in, len(frames))
                        if wait > 0.0:
                            self._throttle(wait)
                    for kind, body in frames:
                        if kind == PING:
                            continue
                        if body is None:
                            hub.drop("from", self.name or "", "too large")  # the frame was skipped
                        elif kind == LIST and not self._lists.take(self.last_in):
                            hub.drop("from", self.name or "", "too many rosters")
                        else:
                            hub.take(self, kind, body)
                        if self.stage == OVER:
                            return
                if not self._incoming.pending and not tls.pending():
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self.fail(f"TLS: {(error.reason or 'failed').lower().replace('_', ' ')}")
            return
        if self._outgoing.pending:
            self._put_out()

    def _throttle(self, wait: float) -> None:
        """Stop reading for a while, because the sender exceeds its rate. TCP then holds it back."""
        if not self.throttled and self._transport is not None:
            self.throttled = True
            self._transport.pause_reading()
            self.hub.counts["throttled"] += 1
            self.hub.loop.call_later(min(wait, 1.0), self._go_on)

    def _go_on(self) -> None:
        self.throttled = False
        if self.stage != OVER and self._transport is not None:
            self.last_in = self.hub.loop.time()
            self._transport.resume_reading()

    # -- sending

    def push(self, data: bytes) -> bool:
        """Queue a frame. Return False if an older one was dropped for it."""
        limits, fits = self.hub.limits, True
        self._queue.append(data)
        self._queued += len(data)
        while len(self._queue) > limits.queue or (self._queued > limits.queue_bytes and len(self._queue) > 1):
            self._queued -= len(self._queue.popleft())
            fits = False
        if not self._dirty and not self.paused:
            self._dirty = True
            self.hub.loop.call_soon(self._flush)  # frames of one moment share a TLS record and a system call
        return fits

    def take_over(self, other: Channel) -> None:
        """Queue the frames that another connection has not sent yet."""
        for data in other._queue:
            self.push(data)
        other._queue.clear()
        other._queued = 0

    def say(self, data: bytes) -> None:
        """Send a frame about this connection at once. No other connection may take it over."""
        self._encrypt(data)

    def ping(self) -> None:
        """Send a ping."""
        if not self.paused:
            self._encrypt(_PING)

    def _flush(self) -> None:
        self._dirty = False
        queue = self._queue
        while queue and not self.paused and self.stage != OVER:
            parts = [queue.popleft()]
            size = len(parts[0])
            while queue and size < RECORD_BYTES:
                parts.append(queue.popleft())
                size += len(parts[-1])
            self._queued -= size
            self._encrypt(parts[0] if len(parts) == 1 else b"".join(parts))

    def _encrypt(self, data: bytes) -> None:
        assert self._tls is not None
        try:
            done = self._tls.write(data)
            while done < len(data):
                done += self._tls.write(data[done:])
        except ssl.SSLError:
            self.fail("TLS: cannot write")
            return
        self.last_out = self.hub.loop.time()
        self._put_out()

    def _put_out(self) -> None:
        if self._outgoing.pending and self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())

    def pause_writing(self) -> None:
        """Stop sending while the operating system's buffer is full."""
        self.paused = True

    def resume_writing(self) -> None:
        """Go on sending."""
        self.paused = False
        if self.stage != OVER:
            self._flush()
