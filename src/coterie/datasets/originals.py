"""Original files of a dataset, wherever they are: nothing is downloaded or unpickled."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import DataError

__all__ = ["Originals"]


class Originals:
    """Files by the ends of their names, wherever they are: given as such, in folders, in zip or tar archives."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self.paths = [Path(path) for path in paths]
        #: How to read each file, by its full name with "/" in it.
        self._files: dict[str, Callable[[], bytes]] = {}
        if not self.paths:
            raise DataError("no files are given: name the original files, or the folder that they are in")
        for path in self.paths:
            if path.is_dir():
                for file in sorted(path.rglob("*")):
                    if file.is_file():
                        self._files[file.as_posix()] = file.read_bytes
            elif path.is_file():
                self._add(path)
            else:
                raise DataError(f"{path}: no such file or folder")

    def _add(self, path: Path) -> None:
        name = path.as_posix()
        try:
            if name.endswith(".zip"):
                self._add_zip(name, path.read_bytes())
            elif name.endswith((".tar", ".tar.gz", ".tgz")):
                with tarfile.open(path) as archive:
                    for member in archive:
                        file = archive.extractfile(member) if member.isfile() else None
                        if file is not None:
                            content = file.read()
                            self._files[f"{name}/{member.name}"] = lambda content=content: content  # type: ignore[misc]
            else:
                self._files[name] = path.read_bytes
        except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{path} cannot be read: {error}") from error

    def _add_zip(self, name: str, content: bytes) -> None:
        archive = zipfile.ZipFile(io.BytesIO(content))
        for member in archive.namelist():
            if member.endswith(".zip"):  # UCI wraps its archives in another one
                self._add_zip(f"{name}/{member}", archive.read(member))
            elif not member.endswith("/"):
                self._files[f"{name}/{member}"] = lambda member=member: archive.read(member)  # type: ignore[misc]

    def read(self, *names: str) -> bytes:
        """The content of the one file whose name ends like one of these, without or with ``.gz``."""
        ends = [f"/{name}{suffix}" for name in names for suffix in ("", ".gz")]
        found = [file for file in self._files if f"/{file}".endswith(tuple(ends))]
        if len(found) != 1:
            given = ", ".join(map(str, self.paths))
            what = f"more than one {names[0]}: {', '.join(found[:3])}" if found else f"no {names[0]}"
            raise DataError(f"there is {what} in {given}")
        return self.content(found[0])

    def inside(self, folder: str, suffix: str) -> list[str]:
        """Full names of the files with such an end that are in the one folder of this name."""
        found = [file for file in self._files if f"/{file}".endswith(suffix) and file.split("/")[-2:-1] == [folder]]
        homes = sorted({file.rpartition("/")[0] for file in found})
        if len(homes) != 1:
            given = ", ".join(map(str, self.paths))
            what = f"more than one folder {folder}: {', '.join(homes[:3])}" if homes else f"no {folder}/*{suffix}"
            raise DataError(f"there is {what} in {given}")
        return sorted(found)

    def content(self, name: str) -> bytes:
        """The content of the file of this full name, unpacked if it ends in ``.gz``."""
        try:
            content = self._files[name]()
            return gzip.decompress(content) if name.endswith(".gz") else content
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{name} cannot be read: {error}") from error
