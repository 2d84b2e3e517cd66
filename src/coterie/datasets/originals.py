"""Original files of a dataset in folders and archives, and helpers for their readers: stacking rows, counting words.

Nothing is downloaded or unpickled.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from ..errors import DataError
from .sources import Arrays

__all__ = ["Originals", "bag_of_words", "stacked"]

#: Minimum number of reviews in which a word must occur to be a feature.
MIN_WORD_REVIEWS = 10


class Originals:
    """Files found by the end of their names: given directly, in folders, or in zip or tar archives."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self.paths = [Path(path) for path in paths]
        #: Function that reads each file, by the file's full name with "/".
        self._files: dict[str, Callable[[], bytes]] = {}
        if not self.paths:
            raise DataError("no files are given: name the original files, or their folder")
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
            if member.endswith(".zip"):  # UCI puts archives inside archives
                self._add_zip(f"{name}/{member}", archive.read(member))
            elif not member.endswith("/"):
                self._files[f"{name}/{member}"] = lambda member=member: archive.read(member)  # type: ignore[misc]

    def read(self, *names: str) -> bytes:
        """Return the content of the only file whose name ends with one of these, with or without ``.gz``."""
        ends = [f"/{name}{suffix}" for name in names for suffix in ("", ".gz")]
        found = [file for file in self._files if f"/{file}".endswith(tuple(ends))]
        if len(found) != 1:
            given = ", ".join(map(str, self.paths))
            what = f"more than one {names[0]}: {', '.join(found[:3])}" if found else f"no {names[0]}"
            raise DataError(f"there is {what} in {given}")
        return self.content(found[0])

    def inside(self, folder: str, suffix: str) -> list[str]:
        """Return the full names of the files with this suffix in the only folder of this name."""
        found = [file for file in self._files if f"/{file}".endswith(suffix) and file.split("/")[-2:-1] == [folder]]
        homes = sorted({file.rpartition("/")[0] for file in found})
        if len(homes) != 1:
            given = ", ".join(map(str, self.paths))
            what = f"more than one folder {folder}: {', '.join(homes[:3])}" if homes else f"no {folder}/*{suffix}"
            raise DataError(f"there is {what} in {given}")
        return sorted(found)

    def content(self, name: str) -> bytes:
        """Return the content of the file of this full name, unpacked if it ends with ``.gz``."""
        try:
            content = self._files[name]()
            return gzip.decompress(content) if name.endswith(".gz") else content
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{name} cannot be read: {error}") from error


def stacked(parts: Iterable[tuple[str, np.ndarray, np.ndarray]]) -> Arrays:
    """Stack rows and labels of many parts, each with its name for errors; nested rows are flattened."""
    features, labels, shape = [], [], None
    for who, x, y in parts:
        shape = x.shape[1:] if shape is None else shape
        if x.shape[1:] != shape:
            raise DataError(f"{who} has rows of shape {x.shape[1:]}, and others of shape {shape}")
        features.append(x.reshape(len(x), -1).astype(np.float32, copy=False))
        labels.append(y.ravel().astype(np.float64, copy=False))
    return {
        "X": np.concatenate(features),
        "y": np.concatenate(labels),
        "row_shape": np.array(shape, dtype=np.int64),
    }


def bag_of_words(reviews: Iterable[Counter[str]]) -> Arrays:
    """Return counts (at most 255) of the words in at least ``MIN_WORD_REVIEWS`` reviews, as CSR with sorted words."""
    reviews = list(reviews)
    met = Counter(word for words in reviews for word in words)
    kept = sorted(word for word, times in met.items() if times >= MIN_WORD_REVIEWS)
    column = {word: k for k, word in enumerate(kept)}
    rows = [sorted((column[word], count) for word, count in words.items() if word in column) for words in reviews]
    entries = np.array([entry for row in rows for entry in row], dtype=np.int64).reshape(-1, 2)
    return {
        "X_data": np.minimum(entries[:, 1], 255).astype(np.uint8),
        "X_indices": entries[:, 0].astype(np.int32),
        "X_indptr": np.cumsum([0, *map(len, rows)]).astype(np.int32),
        "X_shape": np.array([len(reviews), len(kept)], dtype=np.int64),
        "feature_names": np.array(kept, dtype=str),
    }
