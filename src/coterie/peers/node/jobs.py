"""Jobs that a peer runs in processes of their own, while it goes on answering messages.

Rows are read when a peer starts, and again when their file has changed, because reading a table needs far more memory
than the peer. A file is read only when it has not changed between two looks. If it cannot be read, the error is
reported, and the old rows stay.

A private peer's final model is for its own use: the agent trains once more on its own rows, near what it has received
(:mod:`coterie.core.private.final`). That takes seconds of compiled code and minutes of plain Python, which a peer runs.
Nothing of the final model is ever sent.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ...errors import DataError, StateError
from ..group.charter import charter_json, read_charter
from ..model.work import Work, arrays_of_one, method_of, read_work, write_work

if TYPE_CHECKING:
    from .node import Node

#: Seconds between two looks at the file of the rows; maximal seconds for reading it; and for computing the final model.
LOOK_EVERY, READ_TIMEOUT, FINAL_TIMEOUT = 2.0, 600.0, 300.0


def _apart(module: str, *arguments: str, plain: bool, given: bytes = b"", seconds: float) -> tuple[int, bytes, str]:
    """Run a module of this library in another process. Return its exit code, its output, and its error output."""
    done = subprocess.run(
        [sys.executable, "-m", f"coterie.peers.{module}", *arguments],
        input=given,
        capture_output=True,
        timeout=seconds,
        env=os.environ | {"COTERIE_PLAIN": str(int(plain))},
    )
    return done.returncode, done.stdout, done.stderr.decode(errors="replace").strip()


# -- rows -------------------------------------------------------------------------------------------------------------


def prepared(folder: Path, data: Path | None, holdout: float | None, model: Path | None = None) -> bytes:
    """Read a peer's table, and return its work as bytes; without a table, it has no rows. `model` is the peer's own
    file.
    """
    share = "auto" if holdout is None else str(holdout)
    rows, own = ("" if path is None else str(path) for path in (data, model))
    try:
        code, work, said = _apart("model.tables", str(folder), rows, share, own, plain=True, seconds=READ_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise DataError(f"{data} was not read after {READ_TIMEOUT:g} s") from None
    if code:
        raise DataError(said.splitlines()[-1] if code == 3 else f"{data} could not be read: {said[-2000:]}")
    return work


class Feed:
    """Watches the file of a peer's rows. Call :meth:`look` repeatedly; it never blocks."""

    def __init__(self, folder: Path, data: Path, holdout: float | None, model: Path | None = None):
        self.folder, self.data, self.holdout, self.model = folder, data, holdout, model
        self._taken = self._seen = self._stamp()  # stamps of the file when it was last read, and last looked at
        self._reader: threading.Thread | None = None
        self._work: Work | None = None
        self._error: DataError | None = None

    def _stamp(self) -> tuple[int, ...] | None:
        """Return a value that changes with the file, or None if there is no file."""
        try:
            found = self.data.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def look(self) -> Work | None:
        """Return the new work once after the file has changed. Raise a DataError if it could not be read."""
        if self._reader is not None:
            if self._reader.is_alive():
                return None
            self._reader = None
            work, error, self._work, self._error = self._work, self._error, None, None
            if error is not None:
                raise error
            return work
        now = self._stamp()
        if now is not None and now != self._taken and now == self._seen:
            self._taken = now
            self._reader = threading.Thread(target=self._read, name="rows", daemon=True)
            self._reader.start()
        gone, self._seen = now is None and self._seen is None and self._taken is not None, now
        if gone:
            self._taken = None  # reported once, and read again when the file is back
            raise DataError(f"{self.data} is not there any more")
        return None

    def _read(self) -> None:
        try:
            self._work = read_work(prepared(self.folder, self.data, self.holdout, self.model))
        except (DataError, OSError) as error:
            self._error = error if isinstance(error, DataError) else DataError(str(error))


# -- the final model --------------------------------------------------------------------------------------------------


class Job(msgspec.Struct):
    """Input of the process that computes the final model."""

    charter: bytes
    work: bytes
    record: bytes
    largest: int


def job_of(node: Node) -> bytes:
    """Return a :class:`Job` as bytes."""
    job = Job(charter_json(node.charter), write_work(node.work), node.record(), node.largest)
    return msgspec.msgpack.encode(job)


def finished(job: bytes) -> np.ndarray:
    """Compute the final model in another process, and wait for it."""
    code, model, said = _apart("node.jobs", plain=False, given=job, seconds=FINAL_TIMEOUT)
    if code or not model:
        raise StateError(f"the final model could not be computed: {said[-500:]}")
    return np.frombuffer(model, "<f8").copy()


def main() -> None:
    """Read a job from standard input, and write the final model to standard output."""
    from ...engines.peer import Peer
    from ...privacy import Ledger
    from .state import read_record, restored

    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    charter = read_charter(job.charter)
    method, work, record = method_of(charter), read_work(job.work), read_record(job.record)
    arrays = arrays_of_one(work, record.address, {}, record.address + 1, job.largest)
    peer = Peer(method, arrays, work.theta, Ledger(method.privacy.plan))
    peer.resume(*restored(peer, record.arrays))
    sys.stdout.buffer.write(peer.final.astype("<f8").tobytes())


if __name__ == "__main__":
    main()
