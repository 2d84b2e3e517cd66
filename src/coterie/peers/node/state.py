"""What a peer keeps across restarts, as one file: versioned, checksummed, saved whole or not at all.

A record is a magic word, the SHA-256 of the rest, and a msgpack record of names and arrays. Nothing in it is code. The
file has room for two of them (:class:`FileStore`).
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from ... import _archive
from ..._files import Where, naming, sync, with_checksum, without_checksum, write_all, write_atomic
from ...core.loop import RECOMPUTED_FIELDS
from ...errors import DataError, StateError

MAGIC = b"coterie state 3\n"
#: No state is larger.
LARGEST = 1 << 30
#: The file: a page with this and the bytes that each content has room for; then the two, each after its number, its
#: length and its CRC, which begins with the number. (A record has a stronger checksum of its own.)
FILE_MAGIC, PAGE = b"coterie states 1\n", 4096
_SLOT = struct.Struct("<QQI")
_FLAGS = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Record(msgspec.Struct, frozen=True):
    """What is kept."""

    run: str
    address: int
    starts: int  # how often the peer has been started
    largest: int  # rows of the largest data set heard of
    wakes: int
    gone: list[int]  # members that have left for good
    arrays: dict[str, tuple[str, list[int], bytes]]  # dtype, shape, content


class Store(Protocol):
    """Where a state is kept."""

    def load(self) -> bytes | None:
        """The last content saved, or None."""

    def save(self, content: bytes) -> None:
        """Replace it. When this returns, the content is safe; when it raises OSError, the old or the new one is."""


class FileStore:
    """A state on disk, for its owner's eyes only: a file with room for the last content saved, and the one before.

    The older one is overwritten where it is, so that a save costs one write and one wait for the disk: no file is made,
    and no name changes. Contents are numbered, and have a checksum each; of a save that was cut off, the other is left.
    """

    def __init__(self, path: Where):
        self.path = Path(path)
        self._room = self._number = self._file = 0  # bytes for each; the number of the last; which file that is

    def load(self) -> bytes | None:
        """The last content saved, or None."""
        try:
            found = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"cannot read {self.path}: {error.strerror}") from None
        if not found.startswith(FILE_MAGIC) or len(found) < PAGE:
            return found  # the reader will say what is wrong with it
        room = int.from_bytes(found[len(FILE_MAGIC) : len(FILE_MAGIC) + 8], "little")
        kept = [_read_slot(found[at : at + room]) for at in (PAGE, PAGE + room)]
        good = [one for one in kept if one is not None]
        if not good:
            raise damaged(str(self.path))
        return max(good)[1]

    def save(self, content: bytes) -> None:
        """Keep it in place of the one before the last. Nobody else writes here."""
        number = self._number + 1
        slot = _SLOT.pack(number, len(content), zlib.crc32(content, number & 0xFFFFFFFF)) + content
        if len(slot) > self._room or not self._overwrite(slot, number % 2):
            number, slot = 1, _SLOT.pack(1, len(content), zlib.crc32(content, 1)) + content
            self._make(slot)
        self._number = number

    def _overwrite(self, slot: bytes, place: int) -> bool:
        """False if the file is not there any more."""
        with naming(self.path):
            try:
                fd = os.open(self.path, _FLAGS)
            except FileNotFoundError:
                return False
            try:
                if os.fstat(fd).st_ino != self._file:  # somebody has put another one there
                    return False
                write_all(fd, slot, PAGE + place * self._room)
                sync(fd)
            finally:
                os.close(fd)
        return True

    def _make(self, slot: bytes) -> None:
        """A new file, with room to grow; it is on the disk, as its name is, before it takes the old one's place."""
        self._room = 0
        room = PAGE * (1 + (len(slot) + len(slot) // 4) // PAGE)
        head = (FILE_MAGIC + room.to_bytes(8, "little")).ljust(PAGE, b"\0")
        write_atomic(self.path, head + bytes(room) + slot.ljust(room, b"\0"), private=True, one_writer=True)
        self._room, self._file = room, self.path.stat().st_ino


def _read_slot(slot: bytes) -> tuple[int, bytes] | None:
    """Number and content, or None if it was not written to its end."""
    if len(slot) < _SLOT.size:
        return None
    number, length, checksum = _SLOT.unpack_from(slot)
    content = slot[_SLOT.size : _SLOT.size + length]
    whole = number > 0 and len(content) == length and zlib.crc32(content, number & 0xFFFFFFFF) == checksum
    return (number, content) if whole else None


def damaged(name: str) -> StateError:
    """What to say of a file that is not as it was written."""
    return StateError(
        f"{name} is damaged: its checksum is wrong. Without that file, the peer begins again from its data"
    )


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def write_record(record: Record) -> bytes:
    """A record as the content of a file."""
    text = _encode(record)
    return with_checksum(MAGIC, text)


def read_record(content: bytes, name: str = "the state") -> Record:
    """The other way round; a :class:`~coterie.errors.StateError` if one bit is not as it was written."""
    try:
        text = without_checksum(MAGIC, content if len(content) <= LARGEST else b"")
    except DataError:
        raise StateError(f"{name} is not a state of a peer, or one of another version of coterie") from None
    if text is None:
        raise damaged(name)
    try:
        return _decode(text)
    except msgspec.MsgspecError as error:
        raise StateError(f"{name} cannot be read: {error}") from None


def fields(group: Any, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a (nested) tuple or dictionary with their paths, without those called ``cache``."""
    return _archive.flat(name, group, ".", RECOMPUTED_FIELDS)


def pack(name: str, group: Any) -> dict[str, tuple[str, list[int], bytes]]:
    """Arrays of a (nested) tuple or dictionary, to be kept."""
    found = {}
    for path, array in fields(group, name):
        if sys.byteorder == "big":  # pragma: no cover - not on this machine
            array = array.astype(array.dtype.newbyteorder("<"))
        found[path] = (array.dtype.str, list(array.shape), array.tobytes())
    return found


def unpack(arrays: dict[str, tuple[str, list[int], bytes]], path: str) -> np.ndarray:
    """One array that was kept."""
    if path not in arrays:
        raise StateError(f"the state has no {path!r}")
    dtype, shape, content = arrays[path]
    if dtype not in ("<f8", "<i8"):
        raise StateError(f"{path!r} of the state holds {dtype!r}, which no method keeps")
    kind = np.dtype(dtype)
    if min(shape, default=1) < 0 or int(np.prod(shape, dtype=object)) * kind.itemsize != len(content):
        raise StateError(f"{path!r} of the state does not have the shape it announces")
    return np.frombuffer(content, kind).astype(kind.newbyteorder("=")).reshape(shape)


def restored(peer: Any, stored: dict[str, tuple[str, list[int], bytes]]) -> tuple[Any, Any, Any]:
    """World, own state and state of the edges as they were kept, for :meth:`coterie.engines.peer.Peer.resume`."""
    edges = {name: unpack(stored, f"arrays.{name}") for name in ("peer", "inverse", "weight", "choice")}
    arrays = peer.arrays._replace(edge_start=np.array([0, edges["peer"].shape[0]]), **edges)
    own, edge = peer.method.start(arrays, _like(unpack(stored, f"own.{theta_path(peer.own)}"), peer.theta[None, :]))
    return arrays, filled(own, stored, "own", None), filled(edge, stored, "edge", edges["peer"].shape[0])


def theta_path(own: Any) -> str:
    """Where the models are in the state of a method, which may be composed of others."""
    return "theta" if "theta" in own._fields else f"model.{theta_path(own.model)}"


def _like(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    if found.shape != expected.shape:
        raise StateError(f"the state has models of shape {found.shape}, and these are of shape {expected.shape}")
    return found


def filled(group: Any, arrays: dict[str, tuple[str, list[int], bytes]], name: str, slots: int | None = None) -> Any:
    """The same tuple with what was kept in place of its arrays."""

    def restored(path: str, part: np.ndarray) -> np.ndarray:
        kept = unpack(arrays, path)
        # What an edge has room for may have grown since it began.
        fits = kept.shape == part.shape if slots is None else kept.shape[:1] == (slots,) and kept.ndim == part.ndim
        if not fits or kept.dtype != part.dtype:
            raise StateError(f"{path} of the state is of shape {kept.shape}, and should be {part.shape}")
        return kept

    return _archive.filled(name, group, restored, ".", RECOMPUTED_FIELDS)
