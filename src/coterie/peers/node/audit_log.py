"""The audit log of a peer: one JSON object per line, each with the hash of the line before.

So changed, deleted and inserted lines are detected. Lines deleted at the end are not, unless their number was noted
elsewhere. A line that was torn by a crash stays, and the next line marks it.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._files import Where
from ..._journal import Link, LogFile, Record, hash_of, parsed
from ..._version import __version__
from ...errors import DataError
from .checks import mover

if TYPE_CHECKING:
    from .program import Program

FILE = "audit.log"
#: Maximal bytes of a line.
MAX_LINE_BYTES = 16_384
#: Value of "before" in the first line.
NO_HASH = ""
LINK = Link("before", NO_HASH, lambda line, _: hash_of(line))


class Entry(NamedTuple):
    """A line: its number, its time, the event, and further fields."""

    number: int
    at: float
    event: str
    fields: dict[str, Any]


class Audit(NamedTuple):
    """Content of a log. ``broken`` names the first line that does not follow the one before."""

    entries: list[Entry]
    torn: int  # number of lines that a crash has torn
    broken: str | None
    head: str  # hash of the last line, which can be noted elsewhere to detect deleted lines later


class AuditLog:
    """Appends events to a file, durably, from any number of processes. An error of the disk is logged, not raised."""

    def __init__(self, path: Where):
        self.path = Path(path)
        self.failed = 0  # number of events that could not be written

    def __call__(self, event: str, **fields: Any) -> bool:
        """Append an event, and return whether it is on disk."""
        try:
            with LogFile(self.path) as log:
                log.lock(wait=True)
                number, before = self._tail(log)
                log.append(_line(number + 1, event, fields, before))
        except OSError as error:
            self.failed += 1
            logging.getLogger("coterie").warning("%s cannot be written: %s", self.path, error.strerror or error)
            return False
        return True

    def _tail(self, log: LogFile) -> tuple[int, str]:
        """Return the number and the hash of the last line. A line that a crash has torn is marked first."""
        if not log.size:
            return 0, NO_HASH
        start = max(0, log.size - 2 * MAX_LINE_BYTES)
        log.file.seek(start)
        tail = log.file.read(log.size - start) or b""
        torn = not tail.endswith(b"\n")
        *lines, last = (tail if torn else tail[:-1]).split(b"\n")
        entry = _entry(parsed(last))
        if torn:
            log.append(b"\n")
        if entry is not None:  # complete, except perhaps for the end of the line
            return entry.number, hash_of(last)
        known = next((found for line in reversed(lines) if (found := _entry(parsed(line))) is not None), None)
        number = 1 if known is None else known.number + 1
        note = _line(number, "torn", {"bytes": len(last)}, hash_of(last))
        log.append(note)
        return number, hash_of(note[:-1])


def _line(number: int, event: str, fields: dict[str, Any], before: str) -> bytes:
    """Return a line of the log, with its newline."""
    head = {"number": number, "at": round(time.time(), 3), "event": event}
    line = json.dumps(head | fields | {"before": before}, default=str).encode()
    if len(line) >= MAX_LINE_BYTES:
        line = json.dumps(head | {"left_out": "too long", "before": before}).encode()
    return line + b"\n"


def _entry(record: Record | None) -> Entry | None:
    """Return the event in a line, or None."""
    try:
        found = dict(record or {})
        number, at, event, _ = (found.pop(name) for name in ("number", "at", "event", "before"))
        return Entry(int(number), float(at), str(event), found)
    except (ValueError, KeyError, TypeError):
        return None


def read_audit(path: Where) -> Audit:
    """Read a log, and check that every line follows the one before."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise DataError(f"there is no {path}: nothing has happened to this peer yet, or the log was lost") from None
    *lines, last = content.split(b"\n")  # `last` is empty if the log ends with a newline
    entries: list[Entry] = []
    torn, broken, head, number = 0, None, NO_HASH, 0
    for k, (record, follows, head) in enumerate(LINK.follow(lines), 1):  # noqa: B007 - the last one is the head
        entry = _entry(record)
        if entry is None:
            follower = _entry(parsed(lines[k])) if k < len(lines) else None
            if follower is None or follower.event != "torn":
                broken = broken or f"line {k} is not an event"
            else:
                torn += 1
            # The next line has the hash of the torn line, which is checked above.
        else:
            if not follows:
                broken = broken or f"line {k} does not follow line {k - 1}"
            elif entry.number != number + 1:
                broken = broken or f"line {k} has the number {entry.number}, after {number}"
            number = entry.number
            entries.append(entry)
    if last:
        torn += 1  # from a crash; the next event will mark it
    return Audit(entries, torn, broken, head)


# -- of a running peer ------------------------------------------------------------------------------------------------


class Chronicle:
    """Logs changes of a running peer: members, releases, mutes, the certificate, and the model in use.

    Changes are detected by comparing the present with the last look.
    """

    def __init__(self, program: Program, audit: AuditLog):
        self._program, self.audit = program, audit
        self._known: dict[str, Any] = {}

    def _now(self) -> dict[str, Any]:
        program = self._program
        node, ledger = program.node, program.node.ledger
        return {
            "roster": node.group.roster.version,
            "members": {member.name for member in node.group.roster.members},
            "releases": 0 if ledger is None else ledger.releases,
            "muted": {node.group.name_of(j) for j in node.group.muted},
            "certificate": program.expires,
            "served": program.status.get("served"),
        }

    def start(self) -> None:
        """Log the start of the peer."""
        node, self._known = self._program.node, self._now()
        told = {name: self._known[name] for name in ("roster", "releases", "certificate")}
        told |= {"muted": sorted(self._known["muted"]), "members": len(self._known["members"])}
        self.audit(
            "start", version=__version__, run=node.charter.run, session=node.fresh.session, pid=os.getpid(), **told
        )

    def look(self) -> None:
        """Log what has changed since the last look, or the start."""
        if not self._known:
            return
        before, self._known = self._known, self._now()
        now, audit = self._known, self.audit
        if now["roster"] != before["roster"]:
            came, gone = sorted(now["members"] - before["members"]), sorted(before["members"] - now["members"])
            audit("members", version=now["roster"], before_it=before["roster"], joined=came, removed=gone)
        for number in range(before["releases"] + 1, now["releases"] + 1):
            audit("release", release=number, left=self._program.node.ledger.left)
        for name in sorted(now["muted"] - before["muted"]):
            audit("muted", name=name)
        for name in sorted(before["muted"] - now["muted"]):
            audit("heard again", name=name)
        if now["certificate"] != before["certificate"]:
            audit("certificate", expires=now["certificate"])
        if now["served"] != before["served"]:
            self._served(before["served"], now["served"])

    def _served(self, before: str | None, now: str | None) -> None:
        """Log that another model is used, also in the peer's own log."""
        if before is None and now != "alone":
            return
        self.audit("served", model=now, instead_of=before)
        most, folder = mover(self._program.status), self._program.folder
        advice = {"moves_most": most, "advice": f"coterie peer mute {folder} {most}"} if most and now == "alone" else {}
        self._program.log("served", model=now, instead_of=before, **advice)

    def stop(self, why: str) -> None:
        """Log the end of the peer, if it has started."""
        if not self._known:
            return
        self.look()
        if self._program.node.errors["removed"]:
            self.audit("removed", what=self._program.node.errors.last)
        self.audit("stop", why=why, wakes=self._program.node.wakes)
