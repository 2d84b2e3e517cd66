"""What a running peer tells about itself: a status file, Prometheus text on loopback, and a log of bounded length."""

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

from ..errors import ParameterError

#: Lines of one kind that may be logged in a minute; what is more is counted, and the count is logged with the next.
LINES = 6.0
#: What tells of a peer's data.
TELLING = ("score", "score_alone", "objective")


class Log:
    """One json object a line, with a bound on how many of a kind there are in a minute."""

    def __init__(self, stream: TextIO = sys.stderr, clock: Callable[[], float] = time.time):
        self._stream, self._clock = stream, clock
        self._left: dict[str, tuple[float, float]] = {}
        self.silenced: dict[str, int] = {}

    def take_over(self) -> None:
        """What the library logs comes here, too."""
        logger = logging.getLogger("coterie")
        logger.handlers = [_Handler(self)]
        logger.propagate = False

    def __call__(self, event: str, **fields: Any) -> None:
        """Log an event, if there were not too many of its kind."""
        now = self._clock()
        left, then = self._left.get(event, (LINES, now))
        left = min(LINES, left + max(0.0, now - then) * LINES / 60.0)  # a clock may go back
        if left < 1.0:
            self._left[event] = (left, now)
            self.silenced[event] = self.silenced.get(event, 0) + 1
            return
        self._left[event] = (left - 1.0, now)
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
    labels = {"name": status["name"], "run": status["run"]}
    lines: list[str] = []

    def add(metric: str, kind: str, values: Mapping[tuple[tuple[str, str], ...], float]) -> None:
        lines.append(f"# TYPE coterie_{metric} {kind}")
        for extra, value in values.items():
            inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in (labels | dict(extra)).items())
            lines.append(f"coterie_{metric}{{{inside}}} {value}")

    for field, metric, kind in (
        ("wakes", "wakes_total", "counter"),
        ("boot", "boot", "gauge"),
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
    ):
        if field in TELLING and "epsilon" in status:
            continue  # of a private peer: any user of this machine may ask here
        if isinstance(status.get(field), int | float):
            add(metric, kind, {(): status[field]})
    for field, metric, key in (("refused", "refused_total", "reason"), ("trouble", "trouble_total", "kind")):
        if status.get(field):
            add(metric, "counter", {((key, name),): count for name, count in status[field].items()})
    if status.get("ties"):
        for metric, field in (("tie_weight", "weight"), ("tie_connected", "alive"), ("tie_heard_seconds", "heard")):
            known = {tie["name"]: tie[field] for tie in status["ties"] if tie.get(field) is not None}
            add(metric, "gauge", {(("peer", name),): float(value) for name, value in known.items()})
    return "\n".join(lines) + "\n"


def _escaped(text: Any) -> str:
    return str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Metrics:
    """Serves a text at http://127.0.0.1:port/metrics, to this machine alone; port 0 for any that is free."""

    def __init__(self, port: int, text: Callable[[], str]):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path == "/metrics"
                body = text().encode() if found else b"look at /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
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
