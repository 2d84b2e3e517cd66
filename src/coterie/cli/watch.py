"""``coterie watch``: a local web page that shows a peer, a lab or a simulation."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from .console import talk, until_signal


def watch(
    what: Annotated[
        Path,
        typer.Argument(
            help="The folder of a peer or of a lab; or a recording of ct.observers.FileRecorder, a .jsonl file."
        ),
    ],
    port: Annotated[int, typer.Option(help="On 127.0.0.1; 0 for any that is free.", min=0, max=65535)] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
) -> None:
    """Show a peer, a lab or a simulation live, as a web page on this machine. It only reads. Ctrl-C ends it."""
    from ..peers.app.watch.server import Server
    from ..peers.app.watch.sources import source_of

    with until_signal(signal.SIGINT, signal.SIGTERM) as stop, Server(source_of(what), port) as server:
        print(server.url, flush=True)
        talk.print(f"Watching {what}. Keep the address to yourself: it holds a secret. Ctrl-C ends.", soft_wrap=True)
        if not no_browser and _has_screen():
            import webbrowser

            threading.Thread(target=webbrowser.open, args=(server.ticket_url,), daemon=True).start()
        while not stop.wait(1.0):  # in steps: some systems deliver no signal to a thread that waits indefinitely
            pass


def _has_screen() -> bool:
    """Return whether a browser would open a window, rather than run in the terminal."""
    on_screen = "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return sys.platform in ("darwin", "win32") or on_screen
