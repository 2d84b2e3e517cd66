"""Checks of a peer's health, for ``coterie peer check``, ``/healthz`` and other callers.

A *warning* should be looked at soon. *Critical* means that the peer cannot work, or soon will not be able to. *Info* is
neither. Checks need only a status and its age, so they can run inside the peer and outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ..._files import Where
from .process import running, stopped
from .settings import read_settings

#: Levels from the best to the worst; the index is the exit code of ``coterie peer check``. Info counts as ok.
LEVELS = ("ok", "warning", "critical")
#: Number of periods after which a status is stale; and the default period in seconds.
STALE_PERIODS, DEFAULT_PERIOD = 3.0, 5.0
#: Days before a certificate expires: for a warning, and for a critical finding.
EXPIRY_WARNING_DAYS, EXPIRY_CRITICAL_DAYS = 30.0, 7.0
#: Free megabytes, and free entries of the file system: below the first there is a warning, below the second the disk is
#: full.
WARNING_FREE_MB, CRITICAL_FREE_MB = 200.0, 20.0
WARNING_FREE_ENTRIES, CRITICAL_FREE_ENTRIES = 1000, 20
#: Seconds for which an error is reported, and for which a starting peer may be without neighbours.
NEWS_SECONDS, GRACE_SECONDS = 900.0, 120.0
#: Alerts that any one member can cause with false claims. They are warnings, so that ``/healthz`` does not cause
#: restarts.
CLAIMED_ALERTS = ("duplicate",)
#: A saved state is too old after so many seconds and so many mean intervals between two wakes.
STATE_SECONDS, STATE_WAKES = 600.0, 50.0


class ErrorCounts(Counter[str]):
    """Counts of errors in a running peer, by kind; and alerts, which last as long as their cause."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""
        self.at: dict[str, float] = {}  # seconds since 1970
        self.alerts: dict[str, str] = {}

    def report(self, what: str, text: str | None = None, alert: bool = False) -> None:
        """Count an error of a kind."""
        self[what] += 1
        self.at[what] = round(time.time(), 1)
        if text is not None:
            self.last = text
            if alert:
                self.alerts[what] = text


class Finding(NamedTuple):
    """Result of a check."""

    level: str  # info, warning or critical
    check: str
    text: str


def worst(found: list[Finding]) -> str:
    """Return the worst level of some findings."""
    return max((one.level for one in found if one.level != "info"), key=LEVELS.index, default="ok")


def is_stale(status: Mapping[str, Any], age: float) -> bool:
    """Return whether a status of this age is too old, or from the future, to describe the present."""
    return abs(age) > STALE_PERIODS * float(status.get("period") or DEFAULT_PERIOD)


def mover(status: Mapping[str, Any]) -> str | None:
    """Return the name of the neighbour that moves the model most, or None if none does or the method cannot tell."""
    known = [edge for edge in status.get("edges", ()) if edge.get("influence")]
    return max(known, key=lambda edge: edge["influence"])["name"] if known else None


def disk_of(folder: Where) -> dict[str, Any]:
    """Free space on the disk of a folder."""
    try:
        found = os.statvfs(folder)
    except (OSError, AttributeError):
        return {}
    free = {"free_mb": round(found.f_bavail * found.f_frsize / 1e6, 1), "writable": os.access(folder, os.W_OK)}
    return free | ({"free_entries": found.f_favail} if found.f_files else {})


def findings(status: Mapping[str, Any], age: float, now: float | None = None) -> list[Finding]:
    """Return all findings about a running peer, from a status that was made `age` seconds ago."""
    now = time.time() if now is None else now
    found: list[Finding] = []
    if is_stale(status, age):
        found.append(Finding("critical", "status", f"its status is {age:.0f} s old: it hangs, or cannot write"))
    if status.get("status_error"):
        found.append(Finding("critical", "disk", f"its status cannot be written: {status['status_error']}"))
    found += _disk(status.get("disk") or {})
    found += _certificate(status.get("certificate_expires"), now)
    if "relay" not in status:
        found += _neighbours(status)
        found += _served(status)
        found += _errors(status, now)
        found += _learning(status)
    return found


def _disk(disk: Mapping[str, Any]) -> list[Finding]:
    free, entries = disk.get("free_mb"), disk.get("free_entries")
    if disk.get("writable") is False:
        return [Finding("critical", "disk", "the folder cannot be written to")]
    if (free is not None and free < CRITICAL_FREE_MB) or (entries is not None and entries < CRITICAL_FREE_ENTRIES):
        return [Finding("critical", "disk", f"the disk is full: {free:g} MB are left")]
    if (free is not None and free < WARNING_FREE_MB) or (entries is not None and entries < WARNING_FREE_ENTRIES):
        return [Finding("warning", "disk", f"the disk is nearly full: {free:g} MB are left")]
    return []


def expires_in(text: str | None, now: float) -> float | None:
    """Return the seconds until a time in ISO 8601, or None if the text is no time."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now


def _certificate(expires: str | None, now: float) -> list[Finding]:
    left = expires_in(expires, now)
    if left is None or left > 86400.0 * EXPIRY_WARNING_DAYS:
        return []
    days = left / 86400.0
    text = f"its certificate expires in {days:.0f} days" if days > 0 else "its certificate has expired"
    level = "critical" if days < EXPIRY_CRITICAL_DAYS else "warning"
    return [Finding(level, "certificate", f"{text}: the admin renews it")]


def _neighbours(status: Mapping[str, Any]) -> list[Finding]:
    edges, up = status.get("edges", ()), float(status.get("uptime") or 0.0)
    if not edges:
        return [Finding("warning", "neighbours", "it has no neighbours")] if up > GRACE_SECONDS else []
    minutes = float(status.get("silent_minutes") or 10.0)
    silent = min(up if edge.get("heard") is None else float(edge["heard"]) for edge in edges)
    if silent > 60.0 * minutes:
        return [Finding("critical", "neighbours", f"no neighbour was heard for {silent / 60.0:.0f} minutes")]
    return []


def _served(status: Mapping[str, Any]) -> list[Finding]:
    if status.get("served") != "alone":
        return []
    most = mover(status)
    advice = f"; {most} moves it most: coterie peer mute FOLDER {most}" if most else ""
    why = f" ({status['why']})" if status.get("why") else ""
    text = f"the model learned together is clearly worse than the one trained alone, which is used{why}{advice}"
    return [Finding("warning", "served", text)]


def _errors(status: Mapping[str, Any], now: float) -> list[Finding]:
    alerts, at = status.get("alerts") or {}, status.get("error_at") or {}
    found = [
        Finding("warning" if what in CLAIMED_ALERTS else "critical", what, str(text)) for what, text in alerts.items()
    ]
    last = str(status.get("last_error") or "")
    for what, count in (status.get("errors") or {}).items():
        if what in alerts:
            continue
        text = f"{what}, {count} times" + (f": {last}" if last else "")
        if now - float(at.get(what, now)) < NEWS_SECONDS:
            found.append(Finding("warning", what, text))
    return found


def _learning(status: Mapping[str, Any]) -> list[Finding]:
    found = []
    if status.get("releases_left") == 0:
        found.append(
            Finding("info", "privacy", "its privacy budget is spent: it still receives messages, but sends nothing new")
        )
    if status.get("proposal"):
        text = f"the admin proposes another charter: {status['proposal'].get('accept', 'coterie peer accept FOLDER')}"
        found.append(Finding("info", "charter", text))
    age, rate = status.get("state_age"), float(status.get("rate") or 1.0)
    if age is not None and not status.get("waits") and age > max(STATE_SECONDS, STATE_WAKES / rate):
        found.append(Finding("warning", "state", f"its state was last saved {age:.0f} s ago"))
    return found


# -- from outside -----------------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """A peer seen from outside: its process, and its newest status."""

    pid: int | None
    status: dict[str, Any] | None
    age: float
    stale: bool
    why: str  # why it is stale, if known


def look(folder: Where) -> Seen:
    """Return the status of a peer and its age: from the process if it answers, else from its file."""
    from .process import ask

    pid = running(folder)
    status = None if pid is None else ask(folder)
    if status is not None:
        age = float(status.pop("age", 0.0))
    else:
        try:
            status = json.loads((Path(folder) / "status.json").read_bytes())
        except (OSError, ValueError):
            return Seen(pid, None, 0.0, pid is not None, "")
        age = time.time() - float(status.get("at", 0.0))
    stale = pid is not None and (is_stale(status, age) or status.get("pid") != pid)
    why = ""
    if stale and pid is not None:
        disk = _disk(disk_of(folder))
        why = disk[0].text if disk else "the process hangs, or is starting"
        why = "the process is paused" if stopped(pid) else why
    return Seen(pid, status, age, stale, why)


def checked(folder: Where) -> tuple[list[Finding], Seen]:
    """Run all checks of a peer, which may be running or not."""
    seen, now = look(folder), time.time()
    found: list[Finding] = []
    if seen.pid is None:
        removed = ((seen.status or {}).get("alerts") or {}).get("removed")
        found.append(Finding("critical", "process", "it is not running" + (f": {removed}" if removed else "")))
        found += _disk(disk_of(folder))
        with contextlib.suppress(OSError, ValueError):
            from ..group.identity import read_certificate

            expires = read_certificate((Path(folder) / "tls.crt").read_bytes()).not_valid_after_utc
            found += _certificate(expires.isoformat(), now)
    elif seen.status is None:
        found.append(Finding("critical", "status", "it is running, but has not written a status yet"))
    else:
        status = seen.status | {"disk": disk_of(folder), "state_age": state_age(folder)}
        status.setdefault("silent_minutes", read_settings(folder).silent_minutes)
        found = [one for one in findings(status, seen.age, now) if not (seen.stale and one.check == "status")]
        if seen.stale:
            found.insert(0, Finding("critical", "status", f"its status is {seen.age:.0f} s old: {seen.why}"))
    return found, seen


def state_age(folder: Where) -> float | None:
    """Seconds since a peer's state was saved, or None."""
    try:
        return round(max(0.0, time.time() - (Path(folder) / "state").stat().st_mtime), 1)
    except OSError:
        return None
