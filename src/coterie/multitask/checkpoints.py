"""Checkpoints of a run, from which it can be resumed; synchronous rounds continue bit for bit.

Every worker writes the state of its tasks, in files with the number of the checkpoint. The server's state, with that
number, is written last, so a checkpoint with a server's file is complete. Files hold arrays and json, no pickle.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._archive import packed, reading, unpacked
from .._files import write_atomic
from ..errors import FileError, ParameterError
from .covariance import Covariance

log = logging.getLogger("coterie")

#: Least seconds between two checkpoints, and least multiple of the time that a checkpoint takes.
MIN_INTERVAL_SECONDS, MIN_INTERVAL_FACTOR = 10.0, 20.0
#: Version of the file format.
VERSION = 1

Packed = dict[str, Any]  # arrays and json values, by name


def write_state(path: Path, state: Packed, *, durable: bool = False) -> None:
    """Write arrays and json values into one file, whole or not at all."""
    arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
    content = packed(arrays, {name: value for name, value in state.items() if name not in arrays})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content, durable=durable, one_writer=True)


def read_state(path: Path) -> Packed:
    """Read a file written by :func:`write_state`."""
    with reading(f"{path}: not a checkpoint of coterie", FileError):
        arrays, plain = unpacked(path.read_bytes())
        return {**arrays, **plain}


class Parts:
    """The files of a worker: the current state of each part of its tasks, and numbered checkpoints.

    If files cannot be written, for example on a full disk, the run continues without them, and logs one warning.
    """

    def __init__(self, folder: Path, run: str):
        self.folder, self._run, self._complained = folder, run, False

    def _file(self, part: int, number: int | None) -> Path:
        return self.folder / (f"part-{part}.npz" if number is None else f"part-{part}.{number}.npz")

    def save(self, part: int, number: int | None, kept: Sequence[int], packed: Packed) -> bool:
        """Write a part; return whether that worked. Checkpoints with numbers not in ``kept`` are deleted."""
        try:
            write_state(self._file(part, number), packed | {"run": self._run})
            if number is not None:
                stay = {self._file(part, each) for each in (number, *kept)}
                for path in self.folder.glob(f"part-{part}.*.npz"):
                    if path not in stay:
                        path.unlink(missing_ok=True)
        except OSError as error:
            if not self._complained:
                log.warning("checkpoints cannot be written, the run goes on without: %s", error)
            self._complained = True
            return False
        return True

    def load(self, part: int, number: int | None) -> Packed | None:
        """Return the state of a part that this run has written, or None if it is missing or damaged."""
        path = self._file(part, number)
        try:
            packed = read_state(path) if path.exists() else None
        except FileError as error:
            log.warning("a checkpoint is lost: %s", error)
            return None
        return packed if packed is not None and packed.pop("run", None) == self._run else None

    def forget(self, part: int) -> None:
        """Remove the files of a part."""
        for path in (self._file(part, None), *self.folder.glob(f"part-{part}.*.npz")):
            path.unlink(missing_ok=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


class Checkpoints:
    """The checkpoints of one run: the last one is held in memory and, if the user named a folder, in that folder.

    ``about``, the ids of the tasks and a given covariance identify the run: a run can only be resumed with the same
    values.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        about: Mapping[str, Any],
        members: Sequence[Any],
        covariance: Covariance | None,
    ):
        self.folder, self.about = None if folder is None else Path(folder), dict(about) | {"version": VERSION}
        self.number, self._next, self._complained = 0, time.monotonic() + MIN_INTERVAL_SECONDS, False
        self.last: Packed | None = None
        #: Id of the run, stored in all files, which distinguishes them from files of other runs in the same folder.
        self.run, self._written = uuid.uuid4().hex, 0
        if self.folder is None:
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise ParameterError(f"resume={str(self.folder)!r} is a file: name a folder for checkpoints")
        self.about |= {"number of tasks": len(members), "ids of tasks": _digest("\n".join(map(repr, members)).encode())}
        factors = () if covariance is None else covariance.factors
        self.about["covariance"] = [_digest(np.asarray(part).tobytes()) for part in factors]
        if self._file.exists():
            self.last = read_state(self._file)
            self._check(self.last.pop("about", {}))
            self.number, self.run = int(self.last["number"]), str(self.last["run"])
            self._written = self.number

    @property
    def _file(self) -> Path:
        assert self.folder is not None
        return self.folder / "server.npz"

    def _check(self, found: Mapping[str, Any]) -> None:
        here = json.loads(json.dumps(self.about))
        other = [name for name in here | dict(found) if found.get(name) != here.get(name)]
        if other:
            said = ", ".join(f"{name} is {found.get(name)!r} there and {here.get(name)!r} here" for name in other[:3])
            raise ParameterError(
                f"resume={str(self.folder)!r} holds a checkpoint of another run: {said}. Use the settings of that run, "
                "name another folder, or remove this one to begin anew"
            )

    def keep_if_due(self, training: Any) -> None:
        """Make a checkpoint if the last one is old enough."""
        if time.monotonic() < self._next:
            return
        began = time.monotonic()
        state = training.checkpoint(self.number + 1, [self.number, self._written])
        if state is not None:
            self.number += 1
            self.last = state | {"number": self.number, "run": self.run}
            self._write()
        self._next = time.monotonic() + max(MIN_INTERVAL_SECONDS, MIN_INTERVAL_FACTOR * (time.monotonic() - began))

    def _write(self) -> None:
        if self.folder is None:
            return
        try:
            write_state(self._file, {**(self.last or {}), "about": self.about}, durable=True)
            self._written = self.number
        except OSError as error:
            if not self._complained:
                log.warning("checkpoints cannot be written, the run goes on without: %s", error)
            self._complained = True

    def parts(self) -> Parts | None:
        """Return the files of workers in this process."""
        return None if self.folder is None else Parts(self.folder, self.run)

    def clear(self) -> None:
        """Remove the files of the finished run."""
        if self.folder is not None:
            remove_files(self.folder)


def remove_files(folder: Path) -> None:
    """Remove the files of a run, and the folder if it is then empty."""
    if not folder.is_dir():
        return
    for path in [folder / "server.npz", *folder.glob("part-*.npz"), *folder.glob(".part-*"), *folder.glob(".server*")]:
        path.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        shutil.rmtree(folder, ignore_errors=True)
