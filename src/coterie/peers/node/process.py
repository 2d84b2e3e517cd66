"""The process of a peer: one for each folder, with signals that stop it, and its answers to other processes.

The file ``status.json`` may be old, if it could not be written. The process itself answers with its current status
(:func:`ask`), even on a full disk, over a Unix socket in its folder, which only its owner can use.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..._files import Where
from ...errors import IdentityError

try:
    import fcntl
except ImportError:  # pragma: no cover - not on this platform
    fcntl = None  # type: ignore[assignment]

LIVE = "live"
#: Seconds that an asking process may take to read, and that the peer may take to answer.
READ_TIMEOUT, ANSWER_TIMEOUT = 2.0, 1.5
#: Maximal bytes of a status.
MAX_STATUS_BYTES = 1 << 24


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. Raise an :class:`~coterie.errors.IdentityError` if another process holds it."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pid = os.read(handle, 20).decode(errors="replace").strip()
                raise IdentityError(f"the peer in {folder} is running already, as process {pid}") from None
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        for name in ("state", "status.json", "model.json", "roster"):
            for draft in folder.glob(f".{name}.*"):  # unfinished files of a killed process
                draft.unlink(missing_ok=True)
        yield
    finally:
        os.close(handle)


def running(folder: Where) -> int | None:
    """Return the id of the process that runs the peer of a folder, or None."""
    try:
        handle = os.open(Path(folder) / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None  # nobody holds it
    except OSError:
        return int(os.read(handle, 20) or 0) or None
    finally:
        os.close(handle)
    return None


def stopped(pid: int) -> bool:
    """Return whether a process is paused, on systems that tell."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def begin_again() -> None:
    """Replace this process by a new one with the same command. The process id stays, so a supervisor notices
    nothing.
    """
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


class Signals:
    """SIGTERM and SIGINT stop a program; with SIGUSR1 it also leaves the group's run for good.

    A signal that comes before there is a program stops the program as soon as it has started.
    """

    def __init__(self) -> None:
        self._stop: Callable[[bool], object] | None = None
        self._came: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGUSR1", signal.SIGTERM)):
            signal.signal(number, self._take)
        if hasattr(signal, "SIGUSR2"):
            # Earlier versions answered this signal, and scripts may still send it.
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)

    def _take(self, number: int, _frame: Any) -> None:
        self._came = number
        if self._stop is not None:
            self._stop(number not in (signal.SIGTERM, signal.SIGINT))

    def call(self, stop: Callable[[bool], object]) -> None:
        """Call `stop` on a signal from now on, with True if the peer is to leave for good."""
        self._stop = stop
        if self._came is not None:
            self._take(self._came, None)


def memory() -> float | None:
    """Resident megabytes of this process, on systems that tell."""
    try:
        with open("/proc/self/statm") as file:
            return round(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
    except (OSError, ValueError):
        return None


# -- what it tells others ---------------------------------------------------------------------------------------------


def notify(text: str) -> bool:
    """Notify the supervisor, if there is one: see sd_notify(3). Return whether it was notified."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if not name.startswith(("/", "@")) or not hasattr(socket, "AF_UNIX"):
        return False
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.setblocking(False)
        one.sendto(text.encode(), "\0" + name[1:] if name.startswith("@") else name)
        return True
    return False


class Live:
    """Answers every connection to the folder's socket with the bytes that ``answer`` returns."""

    def __init__(self, folder: Where, answer: Callable[[], bytes]):
        self._path = Path(folder) / LIVE
        self._path.unlink(missing_ok=True)  # a killed process may have left its socket
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
                threading.Event().wait(0.1)  # for example no free descriptor: wait instead of spinning
                continue
            with suppress(OSError), one:
                if self._closed:
                    return
                one.settimeout(READ_TIMEOUT)
                one.sendall(self._answer())

    def close(self) -> None:
        """Stop the thread, and delete the socket."""
        self._closed = True
        wake = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(OSError), _short(self._path) as name, wake:  # lets the thread see that it is closed
            wake.settimeout(READ_TIMEOUT)
            wake.connect(name)
        self._socket.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def ask(folder: Where) -> dict[str, Any] | None:
    """Return the status of the peer that runs in a folder, or None if there is no answer."""
    if not hasattr(socket, "AF_UNIX"):  # pragma: no cover - not on this platform
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one, _short(Path(folder) / LIVE) as name:
            one.settimeout(READ_TIMEOUT)
            one.connect(name)
            parts, size = [], 0
            while size < MAX_STATUS_BYTES and (part := one.recv(1 << 16)):
                parts.append(part)
                size += len(part)
        found = json.loads(b"".join(parts))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "name" in found else None  # an empty status: the peer has just started


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a name for a socket that the system accepts: at most about a hundred bytes, however long the path is."""
    if len(os.fsencode(path)) < 100 or not os.path.isdir("/proc/self/fd"):
        yield str(path)
        return
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)
