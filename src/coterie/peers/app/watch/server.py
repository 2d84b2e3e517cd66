"""The server of the page and its data, for this machine only.

Every address begins with a random token, which a viewer has to know. The name of the host is checked as well, so that
a page from elsewhere cannot reach this one (DNS rebinding). Only GET is answered, nothing is written, and the page may
load nothing but its own files.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from socket import socket
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ....errors import ParameterError
from ..metrics import Answers
from .history import History
from .sources import Source, View

#: Type and name of each file of the page. No other file is ever read.
PAGE = {
    "": ("text/html; charset=utf-8", "index.html"),
    "watch.js": ("text/javascript; charset=utf-8", "watch.js"),
    "watch.css": ("text/css; charset=utf-8", "watch.css"),
    "icon.svg": ("image/svg+xml", "icon.svg"),
}
#: Seconds between two checks whether to stop serving.
POLL_SECONDS = 0.05
#: Headers that forbid the browser everything that the page does not need.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
#: Seconds between two looks, and seconds without a request after which the page counts as closed.
EVERY, CLOSED_AFTER = 1.0, 10.0
#: Maximal number of requests at a time, and seconds that one may take.
MAX_REQUESTS, REQUEST_TIMEOUT = 64, 3.0


class Watch:
    """Looks at a source every second, and keeps the data for the page."""

    def __init__(self, source: Source, every: float = EVERY):
        self._source, self._every = source, every
        self._lock = threading.Lock()
        self._view, self._history, self._last = View("peer", ""), History(), -1.0
        self._edges: tuple[int, str] = (0, "")
        self._asked_at = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Look for the first time, and then periodically in a thread."""
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(REQUEST_TIMEOUT)

    def look(self) -> None:
        """Look once."""
        view = self._source.look(asked=time.monotonic() < self._asked_at + CLOSED_AFTER)
        edges = json.dumps(view.edges)
        with self._lock:
            if view.facts.get("run") != self._view.facts.get("run"):
                self._begin_anew()  # another group, or another lab in the same folder
            self._view = view
            if edges != self._edges[1]:
                self._edges = self._edges[0] + 1, edges
            for moment, scores in view.scores:
                if moment < self._last:  # a recording that has started again, or a clock that was corrected
                    self._begin_anew()
                if moment > self._last:
                    self._history.add(moment, scores)
                self._last = moment

    def _begin_anew(self) -> None:
        self._history, self._last = History(generation=self._history.generation + 1), -1.0

    def _run(self) -> None:
        wait = self._every
        while not self._stop.wait(wait):
            began = time.monotonic()
            # A damaged file must not end the page; the next look may succeed.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                self.look()
            wait = max(self._every, 4.0 * (time.monotonic() - began))  # at most a fifth of a core

    # -- answers ------------------------------------------------------------------------------------------------------

    def answer(self, name: str, query: dict[str, list[str]]) -> Any:
        """Return the data of a name, or None if there is none."""

        def given(key: str, otherwise: str = "") -> str:
            return query.get(key, [otherwise])[0]

        self._asked_at = time.monotonic()
        with self._lock:
            view, history = self._view, self._history
            if name == "state.json":
                return view.facts | {"agents": view.agents, "edges_version": self._edges[0]}
            if name == "edges.json":
                return {"version": self._edges[0], "edges": view.edges}
            if name == "history.json":
                return history.since(_whole(given("generation", "-1")), _whole(given("begin", "0")))
            if name == "agent.json":
                return history.of(given("name")) | {"senders": view.senders.get(given("name"), [])}
            if name == "senders.json":
                return {"senders": summed(view)}
        return None


def summed(view: View) -> list[dict[str, Any]]:
    """Return messages and refusals by sender, summed over all watched receivers."""
    total: dict[str, dict[str, Any]] = {}
    for rows in view.senders.values():
        for row in rows:
            into = total.setdefault(row["name"], {"name": row["name"], "receivers": 0, "messages": 0, "refused": {}})
            into["receivers"] += 1
            into["messages"] += row["messages"]
            for reason, count in row["refused"].items():
                into["refused"][reason] = into["refused"].get(reason, 0) + count
    return list(total.values())


def _whole(text: str) -> int:
    return int(text) if text.lstrip("-").isdigit() and len(text) < 12 else -1


class Server:
    """Serves the page of a watch on 127.0.0.1 until it is closed.

    Parameters
    ----------
    source : Source
    port : int
        0 for any free port.
    every : float
        Seconds between two looks.
    """

    def __init__(self, source: Source, port: int = 0, every: float = EVERY):
        self.watch = Watch(source, every)
        self.token, self._ticket = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        try:
            self._http = _Http(("127.0.0.1", port), self._handler())
        except OSError as error:
            raise ParameterError(f"port {port} cannot be used: {error.strerror or error}") from None
        self.port = self._http.server_address[1]
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(POLL_SECONDS,), name="pages", daemon=True
        )

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://127.0.0.1:{self.port}/{self.token}/"

    @property
    def ticket_url(self) -> str:
        """Link to the page that works once, for a browser's command line, which other users can see."""
        return f"http://127.0.0.1:{self.port}/{self._ticket}"

    def start(self) -> None:
        """Start to look and to answer."""
        self.watch.start()
        self._thread.start()

    def close(self) -> None:
        """Stop looking and answering."""
        self.watch.stop()
        if self._thread.is_alive():
            self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _use_ticket(self, given: str) -> bool:
        good = bool(self._ticket) and _same(given, self._ticket)
        if good:
            self._ticket = ""
        return good

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self
        page = {name: (kind, files(__package__).joinpath(file).read_bytes()) for name, (kind, file) in PAGE.items()}

        class Handler(Answers):
            timeout = REQUEST_TIMEOUT
            server_version, sys_version = "coterie", ""

            def do_GET(self) -> None:  # noqa: N802 - the name that the base class calls
                if self.headers.get_all("Host", []) not in ([f"127.0.0.1:{server.port}"], [f"localhost:{server.port}"]):
                    self._say(HTTPStatus.FORBIDDEN, "This page is at 127.0.0.1 alone.")
                    return
                parts = urlsplit(self.path)
                token, _, name = parts.path.removeprefix("/").partition("/")
                if server._use_ticket(token):
                    self._send(HTTPStatus.SEE_OTHER, "text/plain", b"", {"Location": f"/{server.token}/"})
                elif not _same(token, server.token):
                    self._say(HTTPStatus.FORBIDDEN, "Use the address that coterie watch has printed.")
                elif name in page:
                    self._send(HTTPStatus.OK, *page[name])
                else:
                    found = server.watch.answer(name, parse_qs(parts.query, max_num_fields=8))
                    if found is None:
                        self._say(HTTPStatus.NOT_FOUND, "There is no such page.")
                    else:
                        self._send(HTTPStatus.OK, "application/json", json.dumps(found).encode())

            def _refuse(self) -> None:
                self._send(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"GET alone\n", {"Allow": "GET"})

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):  # any other method
                    return self._refuse
                raise AttributeError(name)

            def _say(self, status: HTTPStatus, text: str) -> None:
                self._send(status, "text/plain; charset=utf-8", text.encode() + b"\n")

            def _send(self, status: HTTPStatus, kind: str, body: bytes, more: Mapping[str, str] = {}) -> None:
                self.answer(status, kind, body, {**HEADERS, **more})

        return Handler


class _Http(ThreadingHTTPServer):
    """Answers a bounded number of requests at once. More are closed unread, and errors are not shown on the
    terminal.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    allow_reuse_address = False

    def __init__(self, *args: Any) -> None:
        self._free = threading.BoundedSemaphore(MAX_REQUESTS)
        super().__init__(*args)

    def process_request(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        if not self._free.acquire(timeout=REQUEST_TIMEOUT):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that go away."""


def _same(given: str, right: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(errors="replace"), right.encode())
