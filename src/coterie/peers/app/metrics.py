"""Prometheus metrics and health of a running peer on loopback, and a log of bounded length."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TextIO

from ...errors import ParameterError
from ..node.checks import LEVELS, expires_in, findings, worst
from ..wire.limits import Buckets

#: Lines of one event that are logged per minute. Further ones are counted, and the count is logged with the next line.
LINES_PER_MINUTE = 6.0
#: Fields of a status that depend on a peer's data. For a private peer, only its owner sees them.
DATA_FIELDS = ("score", "score_alone", "objective", "served", "why", "influence")
#: Metrics by the field of a status, and of each of its edges.
FIELDS = {
    "wakes": "wakes_total",
    "starts": "starts_total",
    "uptime": "uptime_seconds",
    "messages_in": "messages_received_total",
    "messages_out": "messages_sent_total",
    "bytes_out": "bytes_sent_total",
    "score": "score",
    "score_alone": "score_alone",
    "objective": "own_loss",
    "releases": "releases_total",
    "releases_left": "releases_left",
    "memory_mb": "memory_megabytes",
    "roster": "roster_version",
    "members": "members",
    "rows": "rows",
    "age": "status_age_seconds",
    "state_age": "state_age_seconds",
}
OF_EDGES = {
    "weight": "edge_weight",
    "alive": "edge_connected",
    "heard": "edge_heard_seconds",
    "influence": "edge_influence",
}
#: Events that are logged at any level. Warnings of the library are events, too.
ALWAYS_LOGGED = ("failure", "removed", "refused", "served", "muted", "warning", "error", "critical")


class Log(logging.Handler):
    """Log of one JSON object per line, with a bound on the lines per event and minute."""

    def __init__(self, stream: TextIO = sys.stderr, clock: Callable[[], float] = time.time, level: str = "info"):
        super().__init__(logging.INFO)
        self._stream, self._clock, self._all = stream, clock, level == "info"
        self._lines = Buckets(LINES_PER_MINUTE / 60.0, LINES_PER_MINUTE)
        self.silenced: dict[str, int] = {}

    def take_over(self) -> None:
        """Log what the library logs, too."""
        logger = logging.getLogger("coterie")
        logger.handlers = [self]
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record of the library's logger as an event."""
        self(record.levelname.lower(), what=record.getMessage())

    def __call__(self, event: str, **fields: Any) -> None:
        """Log an event, unless there were too many of its kind."""
        if not (self._all or event in ALWAYS_LOGGED):
            return
        now = self._clock()
        if not self._lines.take(event, now):
            self.silenced[event] = self.silenced.get(event, 0) + 1
            return
        silenced = self.silenced.pop(event, 0)
        if silenced:
            fields["not_logged"] = silenced
        line = json.dumps({"at": round(now, 3), "event": event, **fields}, default=str)
        with contextlib.suppress(OSError, ValueError):  # a closed terminal must not stop the peer
            print(line, file=self._stream, flush=True)


def prometheus(status: Mapping[str, Any]) -> str:
    """Return a status as Prometheus text."""
    if not status.get("name"):
        return "\n"  # the peer has just started
    told, now = _told(status), time.time()  # any user of this machine can read the metrics
    labels = {"name": status["name"], "run": status["run"]}
    lines: list[str] = []

    def add(metric: str, values: Iterable[tuple[Any, dict[str, str]]]) -> None:
        """Add known values, each with its own labels."""
        known = [(value, labels | own) for value, own in values if isinstance(value, int | float)]
        if known:
            lines.append(f"# TYPE coterie_{metric} {'counter' if metric.endswith('_total') else 'gauge'}")
        for value, all_labels in known:
            inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in all_labels.items())
            lines.append(f"coterie_{metric}{{{inside}}} {value}")

    for field, metric in FIELDS.items():
        add(metric, [(told.get(field), {})])
    for field, metric, key in (("refused", "refused_total", "reason"), ("errors", "errors_total", "kind")):
        add(metric, [(count, {key: name}) for name, count in (told.get(field) or {}).items()])
    by = (told.get("refused_by") or {}).items()
    add("refused_by_total", [(n, {"peer": j, "reason": reason}) for j, counts in by for reason, n in counts.items()])
    if told.get("strangers"):
        add("strangers_total", [(_total(told["strangers"]), {})])
    expires = expires_in(told.get("certificate_expires"), now)
    add("certificate_expires_seconds", [(None if expires is None else round(expires), {})])
    if "status_error" in told:
        add("status_written", [(float(told["status_error"] is None), {})])
    add("disk_free_megabytes", [((told.get("disk") or {}).get("free_mb"), {})])
    if told.get("served"):
        add("served_alone", [(float(told["served"] == "alone"), {})])
    add("muted", [(1.0, {"peer": name}) for name in told.get("muted") or ()])
    if "at" in told:
        add("health", [(float(LEVELS.index(worst(findings(told, told.get("age", 0.0), now)))), {})])
    for field, metric in OF_EDGES.items():
        if field not in DATA_FIELDS or "epsilon" not in told:
            known = [edge for edge in told.get("edges") or () if edge.get(field) is not None]
            add(metric, [(float(edge[field]), {"peer": edge["name"]}) for edge in known])
    return "\n".join(lines) + "\n"


def health(status: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Return whether a peer works, and the content of ``/healthz``, from the checks of ``coterie peer check``."""
    if not status.get("name"):
        return False, {"health": "critical", "findings": [{"check": "status", "text": "it has just begun"}]}
    found = findings(_told(status), status["age"])
    level = worst(found)
    return level != "critical", {"health": level, "name": status["name"], "findings": [one._asdict() for one in found]}


def _told(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a status that every user of this machine may know."""
    left_out = DATA_FIELDS if "epsilon" in status else ()
    return {name: value for name, value in status.items() if name not in left_out}


def _total(counts: Any) -> int:
    """Return the sum of nested counts."""
    return sum(map(_total, counts.values())) if isinstance(counts, Mapping) else int(counts)


def _escaped(text: Any) -> str:
    return str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Answers(BaseHTTPRequestHandler):
    """Base of handlers for local pages. Nothing is logged, because addresses may hold a secret."""

    def answer(self, status: int, kind: str, body: bytes, headers: Mapping[str, str] = {}) -> None:
        """Send a complete answer."""
        self.send_response(status)
        for name, value in {**headers, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):  # the client has gone
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class Metrics:
    """Serves ``/metrics`` and ``/healthz`` at http://127.0.0.1:port to this machine only. Port 0 chooses a free one."""

    def __init__(self, port: int, text: Callable[[], str], health: Callable[[], tuple[bool, dict[str, Any]]]):
        class Handler(Answers):
            timeout = 10  # seconds for a request, so that none holds a thread for long

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self.answer(200, "text/plain; version=0.0.4; charset=utf-8", text().encode())
                elif self.path == "/healthz":
                    well, found = health()
                    self.answer(200 if well else 503, "application/json", json.dumps(found).encode() + b"\n")
                else:
                    self.answer(404, "text/plain; charset=utf-8", b"look at /metrics or /healthz\n")

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except OSError as error:
            raise ParameterError(f"cannot serve metrics on 127.0.0.1:{port}: {error.strerror}") from None
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
