"""Letters as bytes: the one place that knows how long a letter is, and how numbers are written.

A letter is a header of 16 bytes (version, kind, sender, how many numbers) followed by little-endian doubles. The
simulator counts bytes with :func:`letters_size`; what :func:`encode` returns is as long. Peers on a network sign a
header of their own (:mod:`coterie.peers.packet`), followed by the same doubles.
"""

from __future__ import annotations

import math
import struct

import numpy as np

from ..errors import DataError

VERSION = 1
_HEADER = struct.Struct("<BBHQI")  # version, reserved, kind, sender, count
HEADER_SIZE = _HEADER.size
NUMBER_SIZE = 8


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
    text = np.frombuffer(data, "<f8", -1, offset).astype(np.float64) if len(data) > offset else np.zeros(0)
    # A sum of squares that is finite has only finite numbers in it, and is quick (and np.vdot never warns).
    if not math.isfinite(np.vdot(text, text)) and not np.all(np.isfinite(text)):
        raise DataError("a letter holds a number that is not finite")
    return text


def encode(sender: int, kind: int, text: np.ndarray) -> bytes:
    """A letter as bytes: the sender's address, the method's code for this kind of letter, and its numbers."""
    return _HEADER.pack(VERSION, 0, kind, sender, text.shape[0]) + write_numbers(text)


def decode(data: bytes) -> tuple[int, int, np.ndarray]:
    """Sender, kind and numbers of a letter; a :class:`~coterie.errors.DataError` for anything else."""
    if len(data) < HEADER_SIZE:
        raise DataError(f"a letter of {len(data)} bytes is shorter than its header of {HEADER_SIZE}")
    version, _, kind, sender, count = _HEADER.unpack_from(data)
    if sender >= 1 << 63:
        raise DataError(f"a letter from {sender}, which is no address")
    if version != VERSION:
        raise DataError(f"a letter of version {version}; this is version {VERSION}")
    if len(data) != letter_size(count):
        raise DataError(f"a letter of {len(data)} bytes that announces {count} numbers, {letter_size(count)} bytes")
    return sender, kind, read_numbers(data, HEADER_SIZE)
