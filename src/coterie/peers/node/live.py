"""The status of a running peer, from its memory: a Unix socket in its folder, for its owner alone.

The file ``status.json`` is as old as the last write that went well; this tells what is so now, also on a full disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..._files import Where

FILE = "live"
#: Seconds: how long one who asks may take to listen, and how long the peer may take to answer.
PATIENCE, ANSWER = 2.0, 1.5
#: No status is longer.
MAX_BYTES = 1 << 24


class Live:
    """Answers whoever connects with what ``answer`` gives, as bytes; one after the other."""

    def __init__(self, folder: Where, answer: Callable[[], bytes]):
        self._path = Path(folder) / FILE
        self._path.unlink(missing_ok=True)  # of a process that was killed: the folder has one at a time
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _short(self._path) as name:
                self._socket.bind(name)
            self._path.chmod(0o600)
            self._socket.listen(4)
        except OSError:
            self._socket.close()
            raise
        self._answer, self._closed = answer, False
        threading.Thread(target=self._serve, name="live", daemon=True).start()

    def _serve(self) -> None:
        while not self._closed:
            try:
                one, _ = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                threading.Event().wait(0.1)  # such as no descriptor being left: not a reason to spin
                continue
            with contextlib.suppress(OSError), one:
                if self._closed:
                    return
                one.settimeout(PATIENCE)
                one.sendall(self._answer())

    def close(self) -> None:
        """Stop."""
        self._closed = True
        knock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(OSError), _short(self._path) as name, knock:  # let the thread see it
            knock.settimeout(PATIENCE)
            knock.connect(name)
        self._socket.close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def ask(folder: Where) -> dict[str, Any] | None:
    """The status of the peer that runs in a folder, or None if nobody answers."""
    if not hasattr(socket, "AF_UNIX"):  # pragma: no cover - not on this platform
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one, _short(Path(folder) / FILE) as name:
            one.settimeout(PATIENCE)
            one.connect(name)
            parts, size = [], 0
            while size < MAX_BYTES and (part := one.recv(1 << 16)):
                parts.append(part)
                size += len(part)
        found = json.loads(b"".join(parts))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "name" in found else None  # it has just begun


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name for a socket that the system takes: no longer than about a hundred bytes, whatever the folder is."""
    if len(os.fsencode(path)) < 100 or not os.path.isdir("/proc/self/fd"):
        yield str(path)
        return
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)


__all__ = ["Live", "ask"]
