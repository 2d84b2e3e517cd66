"""A hash-chained log: every line is a json object that contains the hash of the line before; and its file.

A line that was changed, removed or inserted is detected. Lines removed from the end are not detected, unless the number
or the hash of the last line is stored elsewhere.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ._files import Where, sync, sync_folder, write_all

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Record = dict[str, Any]


def lockable() -> bool:
    """Whether this platform can lock a file."""
    return fcntl is not None


class LogFile:
    """An append-only file, readable by its owner only, with one writer at a time and durable writes."""

    def __init__(self, path: Where, *, make: bool = True):
        new = make and not os.path.exists(path)
        flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | (os.O_CREAT if make else 0)
        self.path, self.file = path, io.FileIO(os.open(path, flags, 0o600), "r+")
        self.size = os.fstat(self.file.fileno()).st_size  # where the next line begins
        if new:
            sync_folder(Path(path).parent)

    def lock(self, *, wait: bool) -> None:
        """Become the only writer; if there is another writer, wait or, without `wait`, raise BlockingIOError."""
        if fcntl is not None:
            fcntl.flock(self.file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.size = os.fstat(self.file.fileno()).st_size

    @property
    def in_place(self) -> bool:
        """Whether the path still names this file."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.file.fileno()))
        except FileNotFoundError:
            return False

    def append(self, content: bytes) -> None:
        """Append the content; it is on the disk when this returns."""
        fd = self.file.fileno()
        write_all(fd, content, self.size)
        sync(fd)
        self.size += len(content)

    def close(self) -> None:
        """Close the file and release the lock, also for forked processes that share the lock."""
        if not self.file.closed:
            if fcntl is not None:
                fcntl.flock(self.file, fcntl.LOCK_UN)
            self.file.close()

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Link(NamedTuple):
    """Chaining of lines: the field with the hash of the line before, its value in line 1, and the hash function."""

    field: str
    origin: str
    hash_of: Callable[[bytes, Record | None], str]

    def follow(self, lines: Iterable[bytes]) -> Iterator[tuple[Record | None, bool, str]]:
        """Yield for each line its record (or None), whether it contains the hash of the line before, and its hash."""
        before = self.origin
        for line in lines:
            record = parsed(line)
            follows = record is not None and record.get(self.field) == before
            before = self.hash_of(line, record)
            yield record, follows, before


def hash_of(content: bytes) -> str:
    """Return the SHA-256 of the content, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def parsed(line: bytes) -> Record | None:
    """Return the json object of a line, or None if the line is not a json object."""
    try:
        record = json.loads(line.decode("ascii"))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
