"""The saved state of a peer, as one file: versioned, checksummed, saved completely or not at all.

A record is a magic word, the SHA-256 of the rest, and a msgpack record of names and arrays. It holds no code. The file
has room for two records (:class:`FileStore`).
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
#: Maximal bytes of a state.
MAX_STATE_BYTES = 1 << 30
#: Layout of the file: a page with this magic word and the size of a slot; then two slots. A slot has a number, a
#: length, a CRC that covers the number, and the content. (A record has a stronger checksum of its own.)
FILE_MAGIC, PAGE_BYTES = b"coterie states 1\n", 4096
_SLOT = struct.Struct("<QQI")
_FLAGS = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Record(msgspec.Struct, frozen=True):
    """The saved state."""

    run: str
    address: int
    starts: int  # number of times that the peer was started
    largest: int  # rows of the largest data set heard of
    wakes: int
    gone: list[int]  # members that have left for good
    arrays: dict[str, tuple[str, list[int], bytes]]  # dtype, shape, content


class Store(Protocol):
    """Storage of a state."""

    def load(self) -> bytes | None:
        """Return the last saved content, or None."""

    def save(self, content: bytes) -> None:
        """Replace the content. After return, the new content is safe; after an OSError, either the old or the new one
        is.
        """


class FileStore:
    """A state on disk, readable by its owner only: a file with two slots, for the last saved content and the one
    before.

    A save overwrites the older slot in place, so it costs one write and one sync, and neither creates nor renames a
    file. Slots are numbered and checksummed; if a save is cut off, the other slot is still valid.
    """

    def __init__(self, path: Where):
        self.path = Path(path)
        self._room = self._number = self._file = 0  # size of a slot; number of the last save; inode of the file

    def load(self) -> bytes | None:
        """Return the last saved content, or None."""
        try:
            found = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"cannot read {self.path}: {error.strerror}") from None
        if not found.startswith(FILE_MAGIC) or len(found) < PAGE_BYTES:
            return found  # the reader reports what is wrong
        room = int.from_bytes(found[len(FILE_MAGIC) : len(FILE_MAGIC) + 8], "little")
        kept = [_read_slot(found[at : at + room]) for at in (PAGE_BYTES, PAGE_BYTES + room)]
        good = [one for one in kept if one is not None]
        if not good:
            raise damaged(str(self.path))
        return max(good)[1]

    def save(self, content: bytes) -> None:
        """Overwrite the older slot. There must be no other writer."""
        number = self._number + 1
        slot = _SLOT.pack(number, len(content), zlib.crc32(content, number & 0xFFFFFFFF)) + content
        if len(slot) > self._room or not self._overwrite(slot, number % 2):
            number, slot = 1, _SLOT.pack(1, len(content), zlib.crc32(content, 1)) + content
            self._make(slot)
        self._number = number

    def _overwrite(self, slot: bytes, place: int) -> bool:
        """Overwrite a slot. Return False if the file was replaced or deleted."""
        with naming(self.path):
            try:
                fd = os.open(self.path, _FLAGS)
            except FileNotFoundError:
                return False
            try:
                if os.fstat(fd).st_ino != self._file:  # another process has replaced the file
                    return False
                write_all(fd, slot, PAGE_BYTES + place * self._room)
                sync(fd)
            finally:
                os.close(fd)
        return True

    def _make(self, slot: bytes) -> None:
        """Write a new file with room to grow. It is synced to disk, with its name, before it replaces the old one."""
        self._room = 0
        room = PAGE_BYTES * (1 + (len(slot) + len(slot) // 4) // PAGE_BYTES)
        head = (FILE_MAGIC + room.to_bytes(8, "little")).ljust(PAGE_BYTES, b"\0")
        write_atomic(self.path, head + bytes(room) + slot.ljust(room, b"\0"), private=True, one_writer=True)
        self._room, self._file = room, self.path.stat().st_ino


def _read_slot(slot: bytes) -> tuple[int, bytes] | None:
    """Return number and content of a slot, or None if it was not written completely."""
    if len(slot) < _SLOT.size:
        return None
    number, length, checksum = _SLOT.unpack_from(slot)
    content = slot[_SLOT.size : _SLOT.size + length]
    whole = number > 0 and len(content) == length and zlib.crc32(content, number & 0xFFFFFFFF) == checksum
    return (number, content) if whole else None


def damaged(name: str) -> StateError:
    """Return the error for a file whose checksum is wrong."""
    return StateError(
        f"{name} is damaged: its checksum is wrong. Without that file, the peer begins again from its data"
    )


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def write_record(record: Record) -> bytes:
    """Return a record as the content of a file."""
    text = _encode(record)
    return with_checksum(MAGIC, text)


def read_record(content: bytes, name: str = "the state") -> Record:
    """Read a record: the inverse of :func:`write_record`. Raise a :class:`~coterie.errors.StateError` if a bit is
    wrong.
    """
    try:
        text = without_checksum(MAGIC, content if len(content) <= MAX_STATE_BYTES else b"")
    except DataError:
        raise StateError(
            f"{name} is not a state of a peer, or one of another version of coterie: move the file away, and the peer "
            "begins again from its data"
        ) from None
    if text is None:
        raise damaged(name)
    try:
        return _decode(text)
    except msgspec.MsgspecError as error:
        raise StateError(f"{name} cannot be read: {error}") from None


def fields(group: Any, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of a (nested) tuple or dictionary with their paths, except those named ``cache``."""
    return _archive.flat(name, group, ".", RECOMPUTED_FIELDS)


def pack(name: str, group: Any) -> dict[str, tuple[str, list[int], bytes]]:
    """Return the arrays of a (nested) tuple or dictionary in the form in which they are saved."""
    found = {}
    for path, array in fields(group, name):
        if sys.byteorder == "big":  # pragma: no cover - not on this machine
            array = array.astype(array.dtype.newbyteorder("<"))
        found[path] = (array.dtype.str, list(array.shape), array.tobytes())
    return found


def unpack(arrays: dict[str, tuple[str, list[int], bytes]], path: str) -> np.ndarray:
    """Return one saved array."""
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
    """Return the agents' arrays, own state and edges' state as saved, for :meth:`coterie.engines.peer.Peer.resume`."""
    edges = {name: unpack(stored, f"arrays.{name}") for name in ("peer", "inverse", "weight", "choice")}
    arrays = peer.arrays._replace(edge_start=np.array([0, edges["peer"].shape[0]]), **edges)
    own, edge = peer.method.start(arrays, _like(unpack(stored, f"own.{theta_path(peer.own)}"), peer.theta[None, :]))
    return arrays, filled(own, stored, "own", None), filled(edge, stored, "edge", edges["peer"].shape[0])


def theta_path(own: Any) -> str:
    """Return the path of the models in the state of a method, which may be composed of other methods."""
    return "theta" if "theta" in own._fields else f"model.{theta_path(own.model)}"


def _like(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    if found.shape != expected.shape:
        raise StateError(f"the state has models of shape {found.shape}, and these are of shape {expected.shape}")
    return found


def filled(group: Any, arrays: dict[str, tuple[str, list[int], bytes]], name: str, slots: int | None = None) -> Any:
    """Return a tuple of this structure with saved arrays in place of its own."""

    def restored(path: str, part: np.ndarray) -> np.ndarray:
        kept = unpack(arrays, path)
        # The number of columns may have grown since an edge was made.
        fits = kept.shape == part.shape if slots is None else kept.shape[:1] == (slots,) and kept.ndim == part.ndim
        if not fits or kept.dtype != part.dtype:
            raise StateError(f"{path} of the state is of shape {kept.shape}, and should be {part.shape}")
        return kept

    return _archive.filled(name, group, restored, ".", RECOMPUTED_FIELDS)
