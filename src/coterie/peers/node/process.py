"""The process of a peer: one for each folder, with signals that stop it, and the memory that it takes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import IdentityError

if TYPE_CHECKING:
    from .program import Program

try:
    import fcntl
except ImportError:  # pragma: no cover - not on this platform
    fcntl = None  # type: ignore[assignment]


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; an :class:`~coterie.errors.IdentityError` if another process does."""
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
            for draft in folder.glob(f".{name}.*"):  # what a kill has left unfinished
                draft.unlink(missing_ok=True)
        yield
    finally:
        os.close(handle)


def running(folder: str | os.PathLike[str]) -> int | None:
    """The process that runs the peer of a folder, or None."""
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
    """Whether a process is paused, where the system tells."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def begin_again() -> None:
    """Replace this process by a new one with the same command: same number, same supervisor."""
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


class Signals:
    """SIGTERM and SIGINT stop a program; SIGUSR1 stops it for good, as one who leaves.

    They may come before there is a program: then it stops as soon as it has begun.
    """

    def __init__(self) -> None:
        self._program: Program | None = None
        self._came: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGUSR1", signal.SIGTERM)):
            signal.signal(number, self._take)
        if hasattr(signal, "SIGUSR2"):
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # it asked for the status once, and would end the process now

    def _take(self, number: int, _frame: Any) -> None:
        self._came = number
        if self._program is not None:
            self._program.stop(leave=number not in (signal.SIGTERM, signal.SIGINT))

    def of(self, program: Program) -> None:
        """From now on, they are for this one."""
        self._program = program
        if self._came is not None:
            self._take(self._came, None)


def memory() -> float | None:
    """Resident megabytes of this process, where the system tells."""
    try:
        with open("/proc/self/statm") as file:
            return round(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
    except (OSError, ValueError):
        return None
