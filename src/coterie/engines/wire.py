"""Letters as bytes: the one place that knows how long a letter is, and how numbers are written.

A letter is a header of 16 bytes (version, kind, sender, how many numbers) followed by its numbers: little-endian
doubles, unless the method declares a part that is written otherwise (:mod:`coterie.core.letters`). The simulator counts
bytes with :func:`prices`; what :func:`encode` returns is as long. Peers on a network sign a header of their own
(:mod:`coterie.peers.wire.packet`), followed by the same numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core.letters import NUMBER_SIZE, Contents, finite, prices_of
from ..errors import DataError

VERSION = 1
_HEADER = struct.Struct("<BBHQI")  # version, reserved, kind, sender, count
HEADER_SIZE = _HEADER.size


def prices(letters: Mapping[int, Any], p: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of a letter of each kind, and of each number in it beside, where models have p numbers."""
    letter, number = prices_of(letters, p)
    return HEADER_SIZE + letter, number


def letter_size(count: int) -> int:
    """Bytes of a letter of ``count`` numbers."""
    return letters_size(1, count)


def letters_size(letters: int, numbers: int) -> int:
    """Bytes of several letters that hold so many numbers together."""
    return HEADER_SIZE * letters + NUMBER_SIZE * numbers


def write_numbers(text: np.ndarray) -> bytes:
    """Numbers as little-endian doubles."""
    return text.astype("<f8", copy=False).tobytes()


def read_numbers(data: bytes, offset: int = 0) -> np.ndarray:
    """The numbers from ``offset`` on; a :class:`~coterie.errors.DataError` if they are not whole, or not finite."""
    if (len(data) - offset) % NUMBER_SIZE:
        raise DataError(f"{len(data) - offset} bytes are not a whole number of doubles")
    return finite(np.frombuffer(data, "<f8", -1, offset).astype(np.float64) if len(data) > offset else np.zeros(0))


def encode(sender: int, kind: int, text: np.ndarray, contents: Contents | None = None) -> bytes:
    """A letter as bytes: the sender's address, the method's code for this kind of letter, and its numbers.

    They are written as ``contents`` says; without it, as doubles.
    """
    body = write_numbers(text) if contents is None else contents.write(kind, text)
    return _HEADER.pack(VERSION, 0, kind, sender, text.shape[0]) + body


def decode(data: bytes, contents: Contents | None = None) -> tuple[int, int, np.ndarray]:
    """Sender, kind and numbers of a letter; a :class:`~coterie.errors.DataError` for anything else."""
    if len(data) < HEADER_SIZE:
        raise DataError(f"a letter of {len(data)} bytes is shorter than its header of {HEADER_SIZE}")
    version, _, kind, sender, count = _HEADER.unpack_from(data)
    if sender >= 1 << 63:
        raise DataError(f"a letter from {sender}, which is no address")
    if version != VERSION:
        raise DataError(f"a letter of version {version}; this is version {VERSION}")
    if contents is not None:
        return sender, kind, finite(contents.restore(kind, count, data[HEADER_SIZE:]))
    if len(data) != letter_size(count):
        raise DataError(f"a letter of {len(data)} bytes that announces {count} numbers, {letter_size(count)} bytes")
    return sender, kind, read_numbers(data, HEADER_SIZE)
