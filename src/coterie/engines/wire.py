"""Messages as bytes: their lengths, and the encoding of numbers.

A message is a header of 16 bytes (version, kind, sender, count of numbers) followed by its numbers: little-endian
doubles, unless the method declares a part with another encoding (:mod:`coterie.core.messages`). The simulator counts
bytes with :func:`prices`, which agree with the length of :func:`encode`. Peers on a network sign another header
(:mod:`coterie.peers.wire.packet`), followed by equally encoded numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core.messages import NUMBER_SIZE, Contents, finite, prices_of
from ..errors import DataError

VERSION = 1
_HEADER = struct.Struct("<BBHQI")  # version, reserved, kind, sender, count
HEADER_SIZE = _HEADER.size


def prices(messages: Mapping[int, Any], p: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of a message of each kind, and of each number in it, in addition, for models of p numbers."""
    message, number = prices_of(messages, p)
    return HEADER_SIZE + message, number


def message_size(count: int) -> int:
    """Return the bytes of a message of ``count`` numbers."""
    return messages_size(1, count)


def messages_size(messages: int, numbers: int) -> int:
    """Return the bytes of several messages that hold `numbers` numbers together."""
    return HEADER_SIZE * messages + NUMBER_SIZE * numbers


def write_numbers(text: np.ndarray) -> bytes:
    """Encode numbers as little-endian doubles."""
    return text.astype("<f8", copy=False).tobytes()


def read_numbers(data: bytes, offset: int = 0) -> np.ndarray:
    """Decode the numbers from ``offset`` on; raise :class:`~coterie.errors.DataError` if they are damaged."""
    if (len(data) - offset) % NUMBER_SIZE:
        raise DataError(f"{len(data) - offset} bytes are not a whole number of doubles")
    return finite(np.frombuffer(data, "<f8", -1, offset).astype(np.float64) if len(data) > offset else np.zeros(0))


def encode(sender: int, kind: int, text: np.ndarray, contents: Contents | None = None) -> bytes:
    """Encode a message: the sender's address, the kind of the message, and its numbers.

    ``contents`` defines the encoding of the numbers; without it, they are doubles.
    """
    body = write_numbers(text) if contents is None else contents.write(kind, text)
    return _HEADER.pack(VERSION, 0, kind, sender, text.shape[0]) + body


def decode(data: bytes, contents: Contents | None = None) -> tuple[int, int, np.ndarray]:
    """Decode sender, kind and numbers of a message; raise a :class:`~coterie.errors.DataError` if it is not valid."""
    if len(data) < HEADER_SIZE:
        raise DataError(f"a message of {len(data)} bytes is shorter than its header of {HEADER_SIZE}")
    version, _, kind, sender, count = _HEADER.unpack_from(data)
    if sender >= 1 << 63:
        raise DataError(f"a message from {sender}, which is not an address")
    if version != VERSION:
        raise DataError(f"a message of version {version}; this is version {VERSION}")
    if contents is not None:
        return sender, kind, finite(contents.restore(kind, count, data[HEADER_SIZE:]))
    if len(data) != message_size(count):
        raise DataError(f"a message of {len(data)} bytes that announces {count} numbers, {message_size(count)} bytes")
    return sender, kind, read_numbers(data, HEADER_SIZE)
