"""A log of which every line, a json object, names the hash of the line before; and the file that it is appended to.

So a line that was changed, taken out or put in is noticed. Lines taken off the end are not, unless the number or the
hash of the last one was noted elsewhere.
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
    """A file, for its owner alone, that is only appended to: by one writer at a time, durably."""

    def __init__(self, path: Where, *, make: bool = True):
        new = make and not os.path.exists(path)
        flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | (os.O_CREAT if make else 0)
        self.path, self.file = path, io.FileIO(os.open(path, flags, 0o600), "r+")
        self.size = os.fstat(self.file.fileno()).st_size  # where the next line begins
        if new:
            sync_folder(Path(path).parent)

    def lock(self, *, wait: bool) -> None:
        """Be the only writer. If there is another one, wait for it or raise BlockingIOError."""
        if fcntl is not None:
            fcntl.flock(self.file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.size = os.fstat(self.file.fileno()).st_size

    @property
    def in_place(self) -> bool:
        """Whether the file is still the one at its path."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.file.fileno()))
        except FileNotFoundError:
            return False

    def append(self, content: bytes) -> None:
        """Write at the end. It is on the disk when this returns."""
        fd = self.file.fileno()
        write_all(fd, content, self.size)
        sync(fd)
        self.size += len(content)

    def close(self) -> None:
        """Give up the lock, also for forks that share it."""
        if not self.file.closed:
            if fcntl is not None:
                fcntl.flock(self.file, fcntl.LOCK_UN)
            self.file.close()

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Link(NamedTuple):
    """How a line names the one before: in which field, what the first line has there, and which hash that is."""

    field: str
    origin: str
    hash_of: Callable[[bytes, Record | None], str]

    def follow(self, lines: Iterable[bytes]) -> Iterator[tuple[Record | None, bool, str]]:
        """Of each line the record (None if it is none), whether it names the hash of the line before, and its hash."""
        before = self.origin
        for line in lines:
            record = parsed(line)
            follows = record is not None and record.get(self.field) == before
            before = self.hash_of(line, record)
            yield record, follows, before


def hash_of(content: bytes) -> str:
    """SHA-256."""
    return hashlib.sha256(content).hexdigest()


def parsed(line: bytes) -> Record | None:
    """The json object of a line, or None if it is none."""
    try:
        record = json.loads(line.decode("ascii"))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
