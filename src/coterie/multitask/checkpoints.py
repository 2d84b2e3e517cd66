"""Checkpoints of a run: enough to go on, in rounds bit by bit.

Every worker writes what it knows of its tasks, under the number of the checkpoint; then the server's state is written,
with that number: so a checkpoint of which the server's file is there is whole. Files hold arrays and json, no pickle.
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

#: Seconds between two checkpoints; where they take long, this many times as long as one takes.
EVERY, PAUSES = 10.0, 20.0
#: Of the file: raised when it changes.
VERSION = 1

Packed = dict[str, Any]  # arrays, and numbers, texts and lists of such that json can hold


def write_state(path: Path, state: Packed, *, durable: bool = False) -> None:
    """Write arrays and plain values into one file, whole or not at all."""
    arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
    content = packed(arrays, {name: value for name, value in state.items() if name not in arrays})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content, durable=durable, one_writer=True)


def read_state(path: Path) -> Packed:
    """The way back."""
    with reading(f"{path}: not a checkpoint of coterie", FileError):
        arrays, plain = unpacked(path.read_bytes())
        return {**arrays, **plain}


class Parts:
    """The files of a worker, one for each part of the tasks: as it is now, and in checkpoints that have numbers.

    A disk that is full does not end a run: that is logged once, and the run goes on without.
    """

    def __init__(self, folder: Path, run: str):
        self.folder, self._run, self._complained = folder, run, False

    def _file(self, part: int, number: int | None) -> Path:
        return self.folder / (f"part-{part}.npz" if number is None else f"part-{part}.{number}.npz")

    def save(self, part: int, number: int | None, kept: Sequence[int], packed: Packed) -> bool:
        """Whether it could be written. Of checkpoints, those of the numbers ``kept`` stay, and older ones go."""
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
        """What this run has written, if it is there and whole."""
        path = self._file(part, number)
        try:
            packed = read_state(path) if path.exists() else None
        except FileError as error:
            log.warning("a checkpoint is lost: %s", error)
            return None
        return packed if packed is not None and packed.pop("run", None) == self._run else None

    def forget(self, part: int) -> None:
        """Remove what was written of a part."""
        for path in (self._file(part, None), *self.folder.glob(f"part-{part}.*.npz")):
            path.unlink(missing_ok=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


class Checkpoints:
    """Those of one run: the last one, here and in the folder that the user has named, if any.

    ``about``, the ids of the tasks and a given covariance say which run it is: they must be the same for another one to
    go on with it.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        about: Mapping[str, Any],
        members: Sequence[Any],
        covariance: Covariance | None,
    ):
        self.folder, self.about = None if folder is None else Path(folder), dict(about) | {"version": VERSION}
        self.number, self._next, self._complained = 0, time.monotonic() + EVERY, False
        self.last: Packed | None = None
        #: Its name is in all files, so that those of another run in the same folder are not taken for its own.
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
                f"resume={str(self.folder)!r} holds a checkpoint of another run: {said}. Give what was given then, "
                "name another folder, or remove this one to begin anew"
            )

    def keep_if_due(self, training: Any) -> None:
        """Make a checkpoint, if the last one is old enough."""
        if time.monotonic() < self._next:
            return
        began = time.monotonic()
        state = training.checkpoint(self.number + 1, [self.number, self._written])
        if state is not None:
            self.number += 1
            self.last = state | {"number": self.number, "run": self.run}
            self._write()
        self._next = time.monotonic() + max(EVERY, PAUSES * (time.monotonic() - began))

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
        """The files of workers in this process."""
        return None if self.folder is None else Parts(self.folder, self.run)

    def clear(self) -> None:
        """Remove what was written: the run is done."""
        if self.folder is not None:
            remove_files(self.folder)


def remove_files(folder: Path) -> None:
    """Remove the files of a run, and the folder if nothing else is in it."""
    if not folder.is_dir():
        return
    for path in [folder / "server.npz", *folder.glob("part-*.npz"), *folder.glob(".part-*"), *folder.glob(".server*")]:
        path.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        shutil.rmtree(folder, ignore_errors=True)
