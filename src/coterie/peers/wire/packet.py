"""Packets: what really travels between peers.

A packet is a message with one header that says who sends it to whom, in which run and with which number, signed with the
sender's Ed25519 key: 64 bytes of signature, then header and content as msgpack. So a packet is known for its sender's
whichever way it came, also through a relay.

Messages of a method are packets of its own kinds, and hold numbers. Peers also have a few things of their own to say, of
which a method never hears: those kinds are below zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from ...errors import DataError

VERSION = 2
#: Bytes of a signature.
SIGNATURE = 64
#: Bytes of signature and header, at most.
OVERHEAD = 256
#: What is signed begins with this, so that no signature of a packet is good for anything else.
CONTEXT = b"coterie packet 2\n"
#: What peers say themselves: "I have begun, are you there?"; the answer to that; "I go"; the list of members; how they
#: are doing (:mod:`~coterie.peers.node.health`); what else the admin has signed; "there are two of you".
HELLO, WELCOME, BYE, ROSTER, HEALTH, ANNOUNCEMENT, DUPLICATE = -1, -2, -3, -4, -5, -6, -7

#: Numbers that a double holds exactly.
Whole = Annotated[int, Meta(ge=0, lt=1 << 53)]
Counter = Annotated[int, Meta(ge=1, lt=1 << 53)]
Content = TypeVar("Content")
Nonce = Annotated[bytes, Meta(min_length=16, max_length=16)]


class Refused(DataError):  # noqa: N818 - it says what happened
    """Something that does not pass, and why: one of the reasons of :mod:`~coterie.peers.wire.gate`."""

    def __init__(self, reason: str, text: str):
        super().__init__(f"{reason}: {text}")
        self.reason = reason


class Packet(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message, with what a receiver must know to believe it. New fields come last, and have a default."""

    version: Annotated[int, Meta(ge=0, le=255)]
    run: Annotated[bytes, Meta(min_length=16, max_length=16)]
    sender: Whole  # address
    to: Annotated[int, Meta(ge=-2, lt=1 << 53)]  # address, or EVERYONE
    session: Counter  # which start of the sender this is of: a random number
    sequence: Counter  # of its packets since then
    largest: Whole  # rows of the largest data set that the sender has heard of; 0 where that is not gossiped
    kind: Annotated[int, Meta(ge=-128, lt=1 << 16)]  # the method's own code, or what peers say
    content: bytes  # of a method's kinds: numbers, as coterie.engines.wire writes them

    @property
    def number(self) -> tuple[int, int]:
        """What orders the packets of one sender."""
        return self.session, self.sequence


class Hello(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Content of HELLO and WELCOME."""

    nonce: Nonce  # to be echoed: the answer to it is no old packet
    roster: Whole  # version of the list of members that the sender has
    digest: Annotated[bytes, Meta(max_length=16)] = b""  # and its hash
    announcements: Annotated[bytes, Meta(max_length=8)] = b""  # digest of those that it has


class Duplicate(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Content of DUPLICATE: two sessions of the one it goes to, both of which have proved that they speak now."""

    one: Counter
    other: Counter


_encode = msgspec.msgpack.Encoder().encode
_packet = msgspec.msgpack.Decoder(Packet).decode
_hello = msgspec.msgpack.Decoder(Hello).decode
_duplicate = msgspec.msgpack.Decoder(Duplicate).decode


def write_packet(packet: Packet, sign: Callable[[bytes], bytes]) -> bytes:
    """A packet as it travels; ``sign`` turns bytes into an Ed25519 signature."""
    text = _encode(packet)
    return sign(CONTEXT + text) + text


def parsed(decode: Callable[[bytes], Content], content: bytes, what: str) -> Content:
    """What others have written; ``what`` says of anything else that it is :class:`Refused`."""
    try:
        return decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Refused("format", f"{what}: {error}") from None


def read_packet(data: bytes) -> tuple[Packet, bytes, bytes]:
    """What a packet claims, its signature, and what that must be a signature of: nothing is verified yet."""
    if len(data) <= SIGNATURE:
        raise Refused("format", f"{len(data)} bytes are not a packet")
    return parsed(_packet, data[SIGNATURE:], "not a packet"), data[:SIGNATURE], CONTEXT + data[SIGNATURE:]


def write_hello(nonce: bytes, roster: int, digest: bytes = b"", announcements: bytes = b"") -> bytes:
    """The content of a HELLO or WELCOME."""
    return _encode(Hello(nonce, roster, digest, announcements))


def read_hello(content: bytes) -> Hello:
    """The content of a HELLO or WELCOME; :class:`Refused` for anything else."""
    return parsed(_hello, content, "not a greeting")


def write_duplicate(one: int, other: int) -> bytes:
    """The content of a DUPLICATE."""
    return _encode(Duplicate(one, other))


def read_duplicate(content: bytes) -> Duplicate:
    """The content of a DUPLICATE; :class:`Refused` for anything else."""
    return parsed(_duplicate, content, "not two sessions")
