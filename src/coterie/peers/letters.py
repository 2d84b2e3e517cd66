"""Sealed letters: what really travels between peers.

A letter of a method is a frame (:mod:`coterie.engines.wire`). A peer puts it in an envelope that says who sends it to
whom, in which run, with a number, and signs the whole with its Ed25519 key: 64 bytes of signature, then the envelope as
msgpack. So a letter is known for its sender's whichever way it came, also through a relay.

Peers also have a few things of their own to say, of which a method never hears: they are the other topics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from ..errors import DataError, MissingExtra

try:
    import msgspec
    from msgspec import Meta
except ImportError as error:
    raise MissingExtra("real peers need msgspec: pip install 'coterie[network]'") from error

VERSION = 1
#: Bytes of a signature.
SIGNATURE = 64
#: Bytes around what a letter carries, at most: signature, envelope, header of a frame.
ENVELOPE = 256
#: What is signed begins with this, so that no signature of a letter is good for anything else.
CONTEXT = b"coterie letter 1\n"
#: Topics: a letter of the method; "I have begun, are you there?"; the answer to that; "I go"; the list of members.
LETTER, HELLO, WELCOME, BYE, ROSTER = 0, 1, 2, 3, 4

#: Numbers that a double holds exactly.
Whole = Annotated[int, Meta(ge=0, lt=1 << 53)]
Counter = Annotated[int, Meta(ge=1, lt=1 << 53)]
Nonce = Annotated[bytes, Meta(min_length=16, max_length=16)]


class Envelope(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A letter, with what a receiver must know to believe it. New fields come last, and have a default."""

    version: Annotated[int, Meta(ge=0, le=255)]
    run: Annotated[bytes, Meta(min_length=16, max_length=16)]
    sender: Whole  # address
    to: Annotated[int, Meta(ge=-2, lt=1 << 53)]  # address, or EVERYONE
    boot: Counter  # how often the sender has been started
    sequence: Counter  # of its letters since then
    topic: Annotated[int, Meta(ge=0, le=255)]
    body: bytes
    largest: Whole = 0  # rows of the largest data set that the sender has heard of; 0 where that is not gossiped


class Hello(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a peer says to begin with."""

    nonce: Nonce  # to be echoed: the answer to it is no old letter
    roster: Whole  # version of the list of members that the sender has


_encode = msgspec.msgpack.Encoder().encode
_envelope = msgspec.msgpack.Decoder(Envelope).decode
_hello = msgspec.msgpack.Decoder(Hello).decode


def seal(envelope: Envelope, sign: Callable[[bytes], bytes]) -> bytes:
    """A letter as it travels.

    Parameters
    ----------
    envelope : Envelope
    sign : callable
        Bytes to an Ed25519 signature of 64 bytes.

    Returns
    -------
    bytes

    Examples
    --------
    >>> sealed = seal(Envelope(1, bytes(16), 0, 1, 1, 1, LETTER, b"hello"), sign=lambda text: bytes(64))
    >>> unseal(sealed)[0].body
    b'hello'
    """
    text = _encode(envelope)
    return sign(CONTEXT + text) + text


def unseal(sealed: bytes) -> tuple[Envelope, bytes, bytes]:
    """What a sealed letter claims; nothing is verified yet.

    Parameters
    ----------
    sealed : bytes

    Returns
    -------
    envelope : Envelope
    signature : bytes
    signed : bytes
        What the signature must be of.

    Raises
    ------
    DataError
        If it is no sealed letter.

    Examples
    --------
    >>> unseal(b"too short")
    Traceback (most recent call last):
    ...
    coterie.errors.DataError: 9 bytes are no sealed letter
    """
    if len(sealed) <= SIGNATURE:
        raise DataError(f"{len(sealed)} bytes are no sealed letter")
    try:
        return _envelope(sealed[SIGNATURE:]), sealed[:SIGNATURE], CONTEXT + sealed[SIGNATURE:]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DataError(f"not a sealed letter: {error}") from None


def write_hello(nonce: bytes, roster: int) -> bytes:
    """The body of a greeting between peers, and of its answer.

    Examples
    --------
    >>> read_hello(write_hello(bytes(16), 3)).roster
    3
    """
    return _encode(Hello(nonce, roster))


def read_hello(body: bytes) -> Hello:
    """The other way round; a :class:`~coterie.errors.DataError` for anything else.

    Examples
    --------
    >>> read_hello(b"?")
    Traceback (most recent call last):
    ...
    coterie.errors.DataError: not a greeting: ...
    """
    try:
        return _hello(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DataError(f"not a greeting: {error}") from None
