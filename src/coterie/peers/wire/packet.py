"""Packets: the bytes that peers exchange.

A packet is a message with a header: sender, receiver, run and number. It is signed with the sender's Ed25519 key: 64
bytes of signature, then header and content as msgpack. So a receiver can verify the sender of a packet whichever way it
came, also through a relay.

Messages of a method are packets with kinds of their own, and hold numbers. Peers also have messages of their own
protocol, which the method does not see. Their kinds are negative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from ...errors import DataError

VERSION = 2
#: Bytes of a signature.
SIGNATURE_BYTES = 64
#: Maximal bytes of signature and header.
OVERHEAD_BYTES = 256
#: Prefix of every signed packet, so that the signature is not valid for anything else.
CONTEXT = b"coterie packet 2\n"
#: Kinds of the peers' own protocol: a question whether the receiver is live; the answer; a goodbye; the roster; health
#: records (:mod:`~coterie.peers.node.health`); announcements of the admin; a notice that two processes use one
#: identity.
HELLO, WELCOME, BYE, ROSTER, HEALTH, ANNOUNCEMENT, DUPLICATE = -1, -2, -3, -4, -5, -6, -7

#: Whole numbers that a double represents exactly.
Whole = Annotated[int, Meta(ge=0, lt=1 << 53)]
Counter = Annotated[int, Meta(ge=1, lt=1 << 53)]
Content = TypeVar("Content")
Nonce = Annotated[bytes, Meta(min_length=16, max_length=16)]


class Refused(DataError):  # noqa: N818 - it says what happened
    """Raised for a packet that a check refuses. ``reason`` is one of the reasons of :mod:`~coterie.peers.wire.gate`."""

    def __init__(self, reason: str, text: str):
        super().__init__(f"{reason}: {text}")
        self.reason = reason


class Packet(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message with the header that a receiver needs to check it. New fields come last, and have a default."""

    version: Annotated[int, Meta(ge=0, le=255)]
    run: Annotated[bytes, Meta(min_length=16, max_length=16)]
    sender: Whole  # address of the member
    to: Annotated[int, Meta(ge=-2, lt=1 << 53)]  # address, or EVERYONE
    session: Counter  # random number of the sender's process
    sequence: Counter  # number of the packet in its session
    largest: Whole  # largest number of rows that the sender has heard of; 0 if this is not gossiped
    # Code of the method's message, or negative for the peers' own protocol.
    kind: Annotated[int, Meta(ge=-128, lt=1 << 16)]
    content: bytes  # of a method's message: numbers as coterie.engines.wire writes them

    @property
    def number(self) -> tuple[int, int]:
        """Key that orders the packets of one sender."""
        return self.session, self.sequence


class Hello(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Content of HELLO and WELCOME."""

    nonce: Nonce  # echoed by the answer, which proves that the answer is new
    roster: Whole  # version of the roster that the sender holds
    digest: Annotated[bytes, Meta(max_length=16)] = b""  # hash of that roster
    announcements: Annotated[bytes, Meta(max_length=8)] = b""  # digest of the announcements that the sender holds


class Duplicate(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Content of DUPLICATE: two sessions of the receiver, both of which have been proved."""

    one: Counter
    other: Counter


_encode = msgspec.msgpack.Encoder().encode
_packet = msgspec.msgpack.Decoder(Packet).decode
_hello = msgspec.msgpack.Decoder(Hello).decode
_duplicate = msgspec.msgpack.Decoder(Duplicate).decode


def write_packet(packet: Packet, sign: Callable[[bytes], bytes]) -> bytes:
    """Return the bytes of a packet. ``sign`` maps bytes to an Ed25519 signature."""
    text = _encode(packet)
    return sign(CONTEXT + text) + text


def parsed(decode: Callable[[bytes], Content], content: bytes, what: str) -> Content:
    """Decode bytes that others have written. Raise :class:`Refused` with ``what`` if this fails."""
    try:
        return decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Refused("format", f"{what}: {error}") from None


def read_packet(data: bytes) -> tuple[Packet, bytes, bytes]:
    """Return a packet, its signature, and the bytes that must be signed. Nothing is verified."""
    if len(data) <= SIGNATURE_BYTES:
        raise Refused("format", f"{len(data)} bytes are not a packet")
    return (
        parsed(_packet, data[SIGNATURE_BYTES:], "not a packet"),
        data[:SIGNATURE_BYTES],
        CONTEXT + data[SIGNATURE_BYTES:],
    )


def write_hello(nonce: bytes, roster: int, digest: bytes = b"", announcements: bytes = b"") -> bytes:
    """Return the content of a HELLO or WELCOME."""
    return _encode(Hello(nonce, roster, digest, announcements))


def read_hello(content: bytes) -> Hello:
    """Read the content of a HELLO or WELCOME, or raise :class:`Refused`."""
    return parsed(_hello, content, "not a greeting")


def write_duplicate(one: int, other: int) -> bytes:
    """Return the content of a DUPLICATE."""
    return _encode(Duplicate(one, other))


def read_duplicate(content: bytes) -> Duplicate:
    """Read the content of a DUPLICATE, or raise :class:`Refused`."""
    return parsed(_duplicate, content, "not two sessions")
