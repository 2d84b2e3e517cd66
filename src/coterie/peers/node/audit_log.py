"""What has happened to a peer, for good: one json object a line, each with the hash of the line before.

So a line that was changed, taken out or put in is noticed; lines taken off the end are not, unless their number was
noted elsewhere. A line that a crash has torn stays where it is, and the next one says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..._files import Where, sync, sync_folder, write_all
from ...errors import DataError

try:
    import fcntl
except ImportError:  # pragma: no cover - not on this platform
    fcntl = None  # type: ignore[assignment]

FILE = "audit.log"
#: No line is longer, in bytes.
LONGEST = 16_384
#: What is "before" the first line.
NOTHING = ""


class Entry(NamedTuple):
    """A line: its number, when it was written, what happened, and what belongs to it."""

    number: int
    at: float
    event: str
    fields: dict[str, Any]


class Audit(NamedTuple):
    """What a log says, and whether it can be believed: ``broken`` names the first line that does not fit."""

    entries: list[Entry]
    torn: int  # lines that a crash has cut off
    broken: str | None
    head: str  # hash of the last line: who notes it elsewhere can tell later whether lines are missing


class AuditLog:
    """Appends events to a file, durably; from any number of processes. It never raises because of the disk."""

    def __init__(self, path: Where):
        self.path = Path(path)
        self.failed = 0  # events that could not be written

    def __call__(self, event: str, **fields: Any) -> bool:
        """Append an event; whether it is on the disk."""
        try:
            with self._opened() as fd:
                end, number, before = self._tail(fd)
                line = _line(number + 1, event, fields, before)
                write_all(fd, line, end)
                sync(fd)
        except OSError as error:
            self.failed += 1
            logging.getLogger("coterie").warning("%s cannot be written: %s", self.path, error.strerror or error)
            return False
        return True

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The file, for one writer at a time."""
        new = not self.path.exists()
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            if fcntl is not None:
                fcntl.flock(fd, fcntl.LOCK_EX)
            if new:
                sync_folder(self.path.parent)
            yield fd
        finally:
            os.close(fd)

    def _tail(self, fd: int) -> tuple[int, int, str]:
        """Where the next line begins, the number of the last one, and its hash; mends an end that a crash has torn."""
        size = os.fstat(fd).st_size
        if not size:
            return 0, 0, NOTHING
        start = max(0, size - 2 * LONGEST)
        tail = os.pread(fd, size - start, start)
        torn = not tail.endswith(b"\n")
        *lines, last = (tail if torn else tail[:-1]).split(b"\n")
        entry = _parsed(last)
        if not torn and entry is not None:
            return size, entry.number, _hash(last)
        if torn:
            write_all(fd, b"\n", size)
            size += 1
        if entry is not None:  # all of it was there but the end of the line
            return size, entry.number, _hash(last)
        known = next((found for found in map(_parsed, reversed(lines)) if found is not None), None)
        number = 0 if known is None else known.number
        note = _line(number + 1, "torn", {"bytes": len(last)}, _hash(last))
        write_all(fd, note, size)
        return size + len(note), number + 1, _hash(note[:-1])


def _line(number: int, event: str, fields: dict[str, Any], before: str) -> bytes:
    """A line of the log, with its end."""
    head = {"number": number, "at": round(time.time(), 3), "event": event}
    line = json.dumps(head | fields | {"before": before}, default=str).encode()
    if len(line) >= LONGEST:
        line = json.dumps(head | {"left_out": "too long", "before": before}).encode()
    return line + b"\n"


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _parsed(line: bytes) -> Entry | None:
    try:
        found = json.loads(line)
        number, at, event, _ = found.pop("number"), found.pop("at"), found.pop("event"), found["before"]
        return Entry(int(number), float(at), str(event), found)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def read_audit(path: Where) -> Audit:
    """Read a log, and look whether every line fits the one before."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise DataError(f"there is no {path}: nothing has happened to this peer yet, or the log was lost") from None
    lines = content.split(b"\n")
    last = lines.pop()  # nothing, if the log ends as it should
    entries: list[Entry] = []
    torn, broken, before, number = 0, None, NOTHING, 0
    for k, line in enumerate(lines, 1):
        entry = _parsed(line)
        if entry is None:
            follower = _parsed(lines[k]) if k < len(lines) else None
            if follower is None or follower.event != "torn":
                broken = broken or f"line {k} is not an event"
            else:
                torn += 1
            # What the torn line said of the one before is lost with it; the next line has its hash.
        else:
            if entry.fields.pop("before") != before:
                broken = broken or f"line {k} does not follow line {k - 1}"
            elif entry.number != number + 1:
                broken = broken or f"line {k} has the number {entry.number}, after {number}"
            number = entry.number
            entries.append(entry)
        before = _hash(line)
    if last:
        torn += 1  # of a crash; the next event will mend it
    return Audit(entries, torn, broken, before)
