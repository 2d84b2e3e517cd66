"""What a running peer tells about itself: Prometheus text and its health on loopback, and a log of bounded length."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TextIO

from ...errors import ParameterError
from ..node.checks import LEVELS, expires_in, findings, worst
from ..wire.limits import Buckets

#: Lines of one kind that may be logged in a minute; what is more is counted, and the count is logged with the next.
LINES = 6.0
#: What tells of a peer's data. Of a private peer, nobody but its owner is told that.
TELLING = ("score", "score_alone", "objective", "served", "why", "influence")
#: Events that are logged at any level; what the library warns of is one, too.
LOUD = ("trouble", "removed", "refused", "served", "muted", "warning", "error", "critical")


class Log:
    """One json object a line, with a bound on how many of a kind there are in a minute."""

    def __init__(self, stream: TextIO = sys.stderr, clock: Callable[[], float] = time.time, level: str = "info"):
        self._stream, self._clock, self._all = stream, clock, level == "info"
        self._lines = Buckets(LINES / 60.0, LINES)
        self.silenced: dict[str, int] = {}

    def take_over(self) -> None:
        """What the library logs comes here, too."""
        logger = logging.getLogger("coterie")
        logger.handlers = [_Handler(self)]
        logger.propagate = False

    def __call__(self, event: str, **fields: Any) -> None:
        """Log an event, if there were not too many of its kind."""
        if not (self._all or event in LOUD):
            return
        now = self._clock()
        if not self._lines.take(event, now):
            self.silenced[event] = self.silenced.get(event, 0) + 1
            return
        silenced = self.silenced.pop(event, 0)
        if silenced:
            fields["not_logged"] = silenced
        line = json.dumps({"at": round(now, 3), "event": event, **fields}, default=str)
        with contextlib.suppress(OSError, ValueError):  # a closed terminal is no reason to stop
            print(line, file=self._stream, flush=True)


class _Handler(logging.Handler):
    """Records of the library's log as events."""

    def __init__(self, log: Log):
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log(record.levelname.lower(), what=record.getMessage())


def prometheus(status: Mapping[str, Any]) -> str:
    """A status as Prometheus text."""
    if not status.get("name"):
        return "\n"  # it has just begun
    private = "epsilon" in status  # any user of this machine may ask here
    labels = {"name": status["name"], "run": status["run"]}
    lines: list[str] = []

    def add(metric: str, kind: str, values: Mapping[tuple[tuple[str, str], ...], float]) -> None:
        lines.append(f"# TYPE coterie_{metric} {kind}")
        for extra, value in values.items():
            inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in (labels | dict(extra)).items())
            lines.append(f"coterie_{metric}{{{inside}}} {value}")

    for field, metric, kind in (
        ("wakes", "wakes_total", "counter"),
        ("starts", "starts_total", "counter"),
        ("uptime", "uptime_seconds", "gauge"),
        ("letters_in", "letters_received_total", "counter"),
        ("letters_out", "letters_sent_total", "counter"),
        ("bytes_out", "bytes_sent_total", "counter"),
        ("score", "score", "gauge"),
        ("score_alone", "score_alone", "gauge"),
        ("objective", "own_loss", "gauge"),
        ("releases", "releases_total", "counter"),
        ("releases_left", "releases_left", "gauge"),
        ("memory_mb", "memory_megabytes", "gauge"),
        ("roster", "roster_version", "gauge"),
        ("members", "members", "gauge"),
        ("rows", "rows", "gauge"),
        ("age", "status_age_seconds", "gauge"),
        ("state_age", "state_age_seconds", "gauge"),
    ):
        if field in TELLING and private:
            continue
        if isinstance(status.get(field), int | float):
            add(metric, kind, {(): status[field]})
    for field, metric, key in (("refused", "refused_total", "reason"), ("trouble", "trouble_total", "kind")):
        if status.get(field):
            add(metric, "counter", {((key, name),): count for name, count in status[field].items()})
    if status.get("refused_by"):
        by = status["refused_by"].items()
        add("refused_by_total", "counter", {_of(peer=j, reason=r): n for j, counts in by for r, n in counts.items()})
    if status.get("strangers"):
        add("strangers_total", "counter", {(): _total(status["strangers"])})
    now = time.time()
    expires = expires_in(status.get("certificate_expires"), now)
    if expires is not None:
        add("certificate_expires_seconds", "gauge", {(): round(expires)})
    if "status_error" in status:
        add("status_written", "gauge", {(): float(status["status_error"] is None)})
    if "free_mb" in (status.get("disk") or {}):
        add("disk_free_megabytes", "gauge", {(): status["disk"]["free_mb"]})
    if status.get("served") and not private:
        add("served_alone", "gauge", {(): float(status["served"] == "alone")})
    if status.get("muted"):
        add("muted", "gauge", {(("peer", name),): 1.0 for name in status["muted"]})
    if "at" in status:
        level = worst(findings(_told(status), status.get("age", 0.0), now))
        add("health", "gauge", {(): float(LEVELS.index(level))})
    if status.get("ties"):
        for metric, field in (
            ("tie_weight", "weight"),
            ("tie_connected", "alive"),
            ("tie_heard_seconds", "heard"),
            ("tie_influence", "influence"),
        ):
            known = {tie["name"]: tie[field] for tie in status["ties"] if tie.get(field) is not None}
            if known and not (field in TELLING and private):
                add(metric, "gauge", {(("peer", name),): float(value) for name, value in known.items()})
    return "\n".join(lines) + "\n"


def health(status: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Whether a peer does its work, and what ``/healthz`` says: the checks of ``coterie peer check``."""
    if not status.get("name"):
        return False, {"health": "critical", "findings": [{"check": "status", "text": "it has just begun"}]}
    found = findings(_told(status), status["age"])
    level = worst(found)
    return level != "critical", {"health": level, "name": status["name"], "findings": [one._asdict() for one in found]}


def _told(status: Mapping[str, Any]) -> dict[str, Any]:
    """What anybody on this machine may know."""
    left_out = TELLING if "epsilon" in status else ()
    return {name: value for name, value in status.items() if name not in left_out}


def _of(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(labels.items())


def _total(counts: Any) -> int:
    """The sum of counts, however they are grouped."""
    return sum(map(_total, counts.values())) if isinstance(counts, Mapping) else int(counts)


def _escaped(text: Any) -> str:
    return str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Metrics:
    """Serves ``/metrics`` and ``/healthz`` at http://127.0.0.1:port, to this machine alone; port 0 for any free one."""

    def __init__(self, port: int, text: Callable[[], str], health: Callable[[], tuple[bool, dict[str, Any]]]):
        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # seconds for a request: none holds a thread for long

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(200, "text/plain; version=0.0.4; charset=utf-8", text())
                elif self.path == "/healthz":
                    well, found = health()
                    self._answer(200 if well else 503, "application/json", json.dumps(found) + "\n")
                else:
                    self._answer(404, "text/plain; charset=utf-8", "look at /metrics or /healthz\n")

            def _answer(self, code: int, kind: str, content: str) -> None:
                body = content.encode()
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except OSError as error:
            raise ParameterError(f"cannot serve metrics on 127.0.0.1:{port}: {error.strerror}") from None
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
