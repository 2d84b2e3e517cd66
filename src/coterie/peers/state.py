"""What a peer keeps across restarts, as one file: versioned, checksummed, replaced in one piece.

The file is a magic word, the SHA-256 of the rest, and a msgpack record of names and arrays. Nothing in it is code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .._files import with_checksum, without_checksum, write_atomic
from ..core.loop import ANEW
from ..errors import DataError, MissingExtra, StateError

try:
    import msgspec
except ImportError as error:
    raise MissingExtra("real peers need msgspec: pip install 'coterie[network]'") from error

MAGIC = b"coterie state 2\n"
#: No state is larger.
LARGEST = 1 << 30


class Record(msgspec.Struct, frozen=True):
    """What is kept."""

    run: str
    address: int
    boot: int  # how often the peer has been started
    largest: int  # rows of the largest data set heard of
    wakes: int
    last: dict[str, tuple[int, int]]  # by public key, in hex: number of the last packet taken in
    gone: list[int]  # members that have left for good
    arrays: dict[str, tuple[str, list[int], bytes]]  # dtype, shape, content


class Store(Protocol):
    """Where a state is kept."""

    def load(self) -> bytes | None:
        """The last content saved, or None."""

    def save(self, content: bytes) -> None:
        """Replace it. When this returns, the content is safe; when it raises OSError, the old or the new one is."""


class MemoryStore:
    """A state in memory, for simulations.

    Examples
    --------
    >>> store = MemoryStore()
    >>> store.save(b"content")
    >>> store.load()
    b'content'
    """

    def __init__(self) -> None:
        self._content: bytes | None = None

    def load(self) -> bytes | None:
        """The last content saved, or None."""
        return self._content

    def save(self, content: bytes) -> None:
        """Replace it."""
        self._content = content


class FileStore:
    """A state on disk, for its owner's eyes only.

    Parameters
    ----------
    path : path

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     store = FileStore(f"{folder}/state")
    ...     store.save(b"content")
    ...     store.load()
    b'content'
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self._known = False  # whether the name of the file is on disk, too

    def load(self) -> bytes | None:
        """The last content saved, or None."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"cannot read {self.path}: {error.strerror}") from None

    def save(self, content: bytes) -> None:
        """Replace it: a new file, on disk before it takes the old one's name. Nobody else writes here."""
        write_atomic(self.path, content, private=True, one_writer=True, sync_name=not self._known)
        self._known = True


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def write_record(record: Record) -> bytes:
    """A record as the content of a file.

    Examples
    --------
    >>> record = Record("00", 0, 1, 0, 0, {}, [], pack("own", {"theta": np.zeros(2)}))
    >>> read_record(write_record(record)).boot
    1
    """
    text = _encode(record)
    return with_checksum(MAGIC, text)


def read_record(content: bytes, name: str = "the state") -> Record:
    """The other way round.

    Raises
    ------
    StateError
        If one bit of it is not as it was written.

    Examples
    --------
    >>> read_record(b"something else")
    Traceback (most recent call last):
    ...
    coterie.errors.StateError: the state is not a state of a peer, or one of another version of coterie
    """
    try:
        text = without_checksum(MAGIC, content if len(content) <= LARGEST else b"")
    except DataError:
        raise StateError(f"{name} is not a state of a peer, or one of another version of coterie") from None
    if text is None:
        raise StateError(
            f"{name} is damaged: its checksum is wrong. Without that file, the peer begins again from its data"
        )
    try:
        return _decode(text)
    except msgspec.MsgspecError as error:
        raise StateError(f"{name} cannot be read: {error}") from None


def fields(group: Any, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a (nested) tuple or dictionary with their paths, without those called ``cache``.

    Examples
    --------
    >>> [path for path, _ in fields({"theta": np.zeros(2), "cache": np.zeros(3)}, "own")]
    ['own.theta']
    """
    items = group.items() if isinstance(group, dict) else zip(group._fields, group, strict=True)
    for field, part in items:
        if field in ANEW:
            continue
        if isinstance(part, tuple):
            yield from fields(part, f"{name}.{field}")
        else:
            yield f"{name}.{field}", part


def pack(name: str, group: Any) -> dict[str, tuple[str, list[int], bytes]]:
    """Arrays of a (nested) tuple or dictionary, to be kept.

    Examples
    --------
    >>> pack("own", {"steps": np.ones((1, 1))})
    {'own.steps': ('<f8', [1, 1], b'...')}
    """
    return {
        path: (
            array.dtype.newbyteorder("<").str,
            list(array.shape),
            array.astype(array.dtype.newbyteorder("<")).tobytes(),
        )
        for path, array in fields(group, name)
    }


def unpack(arrays: dict[str, tuple[str, list[int], bytes]], path: str) -> np.ndarray:
    """One array that was kept.

    Examples
    --------
    >>> unpack(pack("own", {"steps": np.ones((1, 2))}), "own.steps")
    array([[1., 1.]])
    """
    if path not in arrays:
        raise StateError(f"the state has no {path!r}")
    dtype, shape, content = arrays[path]
    if dtype not in ("<f8", "<i8"):
        raise StateError(f"{path!r} of the state holds {dtype!r}, which no method keeps")
    kind = np.dtype(dtype)
    if min(shape, default=1) < 0 or int(np.prod(shape, dtype=object)) * kind.itemsize != len(content):
        raise StateError(f"{path!r} of the state does not have the shape it announces")
    return np.frombuffer(content, kind).astype(kind.newbyteorder("=")).reshape(shape)


def restored(peer: Any, arrays: dict[str, tuple[str, list[int], bytes]]) -> tuple[Any, Any, Any]:
    """World, own state and state of the ties of a peer as they were kept: for :meth:`coterie.engines.peer.Peer.resume`.

    Parameters
    ----------
    peer : Peer
        Newly made, of the same method.
    arrays : dict
        As packed.

    Returns
    -------
    world, own, tie

    Raises
    ------
    StateError
        If they are of another method, or of models of another size.
    """
    ties = {name: unpack(arrays, f"world.{name}") for name in ("peer", "inverse", "weight", "choice")}
    world = peer.world._replace(tie_start=np.array([0, ties["peer"].shape[0]]), **ties)
    own, tie = peer.method.start(world, _like(unpack(arrays, f"own.{theta_path(peer.own)}"), peer.theta[None, :]))
    return world, _filled(own, arrays, "own", None), _filled(tie, arrays, "tie", ties["peer"].shape[0])


def theta_path(own: Any) -> str:
    """Where the models are in the state of a method, which may be composed of others.

    Examples
    --------
    >>> from coterie.core.methods.descent import Own
    >>> theta_path(Own(np.zeros((1, 2))))
    'theta'
    """
    return "theta" if "theta" in own._fields else f"model.{theta_path(own.model)}"


def _like(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    if found.shape != expected.shape:
        raise StateError(f"the state has models of shape {found.shape}, and these are of shape {expected.shape}")
    return found


def _filled(group: Any, arrays: dict[str, tuple[str, list[int], bytes]], name: str, slots: int | None) -> Any:
    """The same tuple with what was kept in place of its arrays."""
    parts = []
    for field, part in zip(group._fields, group, strict=True):
        if field in ANEW:
            parts.append(part)
        elif isinstance(part, tuple):
            parts.append(_filled(part, arrays, f"{name}.{field}", slots))
        else:
            kept = unpack(arrays, f"{name}.{field}")
            # What a tie has room for may have grown since it began.
            fits = kept.shape == part.shape if slots is None else kept.shape[:1] == (slots,) and kept.ndim == part.ndim
            if not fits or kept.dtype != part.dtype:
                raise StateError(f"{name}.{field} of the state is of shape {kept.shape}, and should be {part.shape}")
            parts.append(kept)
    return type(group)(*parts)
