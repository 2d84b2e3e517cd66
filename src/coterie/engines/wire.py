"""Letters as bytes: the one place that knows how long a letter is on the wire.

A frame is a fixed header (version, kind, sender, how many numbers) followed by the numbers as little-endian doubles.
The simulator counts bytes with :func:`letters_size`; peers send what :func:`encode` returns.
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


def frame_size(count: int) -> int:
    """Bytes on the wire of a letter of ``count`` numbers."""
    return letters_size(1, count)


def letters_size(letters: int, numbers: int) -> int:
    """Bytes on the wire of several letters that hold so many numbers together."""
    return HEADER_SIZE * letters + NUMBER_SIZE * numbers


def encode(sender: int, kind: int, text: np.ndarray) -> bytes:
    """A letter as bytes."""
    return _HEADER.pack(VERSION, 0, kind, sender, text.shape[0]) + text.astype("<f8", copy=False).tobytes()


def decode(frame: bytes) -> tuple[int, int, np.ndarray]:
    """Sender, kind and text of a frame; a :class:`~coterie.errors.DataError` for anything else."""
    if len(frame) < HEADER_SIZE:
        raise DataError(f"a frame of {len(frame)} bytes is shorter than its header of {HEADER_SIZE}")
    version, _, kind, sender, count = _HEADER.unpack_from(frame)
    if sender >= 1 << 63:
        raise DataError(f"a frame from {sender}, which is no address")
    if version != VERSION:
        raise DataError(f"a frame of version {version}; this is version {VERSION}")
    if len(frame) != frame_size(count):
        raise DataError(f"a frame of {len(frame)} bytes that announces {count} numbers, {frame_size(count)} bytes")
    text = np.frombuffer(frame, "<f8", count, HEADER_SIZE).astype(np.float64)
    # A sum that is finite has only finite numbers in it, and is quick; one that is not may have come too far.
    if not math.isfinite(sum(text.tolist())) and not np.all(np.isfinite(text)):
        raise DataError("a letter holds a number that is not finite")
    return sender, kind, text
