"""A peer's own rows, from their file: read when it begins, and again when the file has changed.

A table is read in a process of its own, which needs far more memory than the peer, while letters go on being answered.
A file that is being written is left alone until it has been the same for two looks; one that cannot be read is
reported, and the rows that there were stay.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from ...errors import DataError
from ..model.work import Work, read_work

#: Seconds between two looks at the file, and that reading it may take.
LOOK_EVERY, LONGEST = 2.0, 600.0


def prepared(folder: Path, data: Path | None, holdout: float | None, model: Path | None = None) -> bytes:
    """The work of a peer as bytes, from its table; without a table, it has no rows. `model`: the file of its own."""
    share = "auto" if holdout is None else str(holdout)
    rows, own = ("" if path is None else str(path) for path in (data, model))
    command = [sys.executable, "-m", "coterie.peers.model.tables", str(folder), rows, share, own]
    try:
        done = subprocess.run(command, capture_output=True, timeout=LONGEST, env=os.environ | {"COTERIE_PLAIN": "1"})
    except subprocess.TimeoutExpired:
        raise DataError(f"{data} was not read after {LONGEST:g} s") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise DataError(said.splitlines()[-1] if done.returncode == 3 else f"{data} could not be read: {said[-2000:]}")
    return done.stdout


class Feed:
    """Watches the file of a peer's rows. :meth:`look` now and then; it never waits."""

    def __init__(
        self,
        folder: Path,
        data: Path,
        holdout: float | None,
        stamp: tuple[int, ...] | None,
        model: Path | None = None,
    ):
        self.folder, self.data, self.holdout, self.model = folder, data, holdout, model
        self._taken = self._seen = stamp  # of the file as it was when it was read, and looked at, last
        self._reader: threading.Thread | None = None
        self._work: Work | None = None
        self._error: DataError | None = None

    @staticmethod
    def stamp(data: Path) -> tuple[int, ...] | None:
        """What changes with a file; None if there is none."""
        try:
            found = data.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def look(self) -> Work | None:
        """The new work, once, after the file has changed and was read; a DataError says why it could not be."""
        if self._reader is not None:
            if self._reader.is_alive():
                return None
            self._reader = None
            work, error, self._work, self._error = self._work, self._error, None, None
            if error is not None:
                raise error
            return work
        now = self.stamp(self.data)
        if now is not None and now != self._taken and now == self._seen:
            self._taken = now
            self._reader = threading.Thread(target=self._read, name="rows", daemon=True)
            self._reader.start()
        gone, self._seen = now is None and self._seen is None and self._taken is not None, now
        if gone:
            self._taken = None  # said once; and it is read when it is back
            raise DataError(f"{self.data} is not there any more")
        return None

    def _read(self) -> None:
        try:
            self._work = read_work(prepared(self.folder, self.data, self.holdout, self.model))
        except (DataError, OSError) as error:
            self._error = error if isinstance(error, DataError) else DataError(str(error))
