"""Finding and opening files: on this machine, or behind a URL with pyarrow and fsspec."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from ...errors import DataError, MissingExtra

#: Endings of files that can be read.
SUFFIXES = (".csv", ".csv.gz", ".parquet", ".feather", ".npz")
NO_FILE = f"no file there ends in {', '.join(SUFFIXES)}"
UNKNOWN_KIND = f"unknown kind of file; known are {', '.join(SUFFIXES)}"
#: Schemes of URLs that pyarrow opens, with the name of a bucket at the beginning of the path.
BUCKETS = ("s3", "gs", "gcs", "abfs", "abfss")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://")
_WILD = re.compile(r"[*?\[]")
_KEY = re.compile(r"([^=/\\]+)=([^/\\]*)")


@dataclass(frozen=True)
class File:
    """A file that was found."""

    path: str  # on this machine, or a URL
    size: int  # in bytes
    keys: tuple[tuple[str, str], ...] = ()  # hive partitions: ("store", "12") for .../store=12/part-0.parquet

    @property
    def stem(self) -> str:
        """Name of the file without folders and ending."""
        return _name(self.path)[: -len(suffix_of(self.path) or "") or None]


def suffix_of(path: str) -> str | None:
    """Return the longest known ending of a path; None if there is none."""
    lower = path.lower()
    return max((suffix for suffix in SUFFIXES if lower.endswith(suffix)), key=len, default=None)


def is_url(path: str) -> bool:
    """Return whether a path is a URL, such as s3://bucket/visits."""
    return _URL.match(path) is not None


def has_wildcard(path: str) -> bool:
    """Return whether a path contains wildcards."""
    return _WILD.search(path) is not None


def find_files(paths: Sequence[str]) -> list[File]:
    """Find all files of directories, globs and paths, in the given order; files of one directory or glob are sorted.

    Folders such as ``store=12`` are partitions if they lie below the directory, the glob's first wildcard, or the
    common folder of all paths of a list.
    """
    found: list[File] = []
    paths = [plain_path(path) for path in paths]
    places = [_root(path) + "/" if _WILD.search(path) else path.rstrip("/") for path in paths]
    common = _common(places) if len(paths) > 1 else ""
    for path in paths:
        matches = _remote(path) if is_url(path) else _local(path)
        root = common or (_root(path) if _WILD.search(path) else path)
        found.extend(File(name, size, _keys(name, root)) for name, size in matches)
    if not found:
        raise DataError(f"no files: {', '.join(map(repr, paths))} names none")
    return list(dict.fromkeys(found))


def plain_path(path: str) -> str:
    """Return a path of this machine without ``file://`` and ``~``; a URL is unchanged."""
    path = unquote(path.removeprefix("file://")) if path.startswith("file://") else path
    return path if is_url(path) else os.path.expanduser(path)


def open_file(path: str) -> Any:
    """Open a file for reading bytes, with seek."""
    if is_url(path):
        system, inside = file_system(path)
        return system.open_input_file(inside)
    return open(path, "rb")


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL (pyarrow's, or fsspec's) and the path in it; credentials are found by these."""
    scheme, _, inside = url.partition("://")
    host = inside.partition("/")[0]
    system = _of_pyarrow(f"{scheme}://{host}")
    if system is not None:
        return system, inside if scheme in BUCKETS else inside.removeprefix(host)
    from pyarrow import fs

    try:
        import fsspec
    except ImportError as error:
        raise MissingExtra(f"reading {scheme}:// needs fsspec: pip install 'coterie[pyarrow]'") from error
    try:
        found, path = fsspec.core.url_to_fs(url)
        return fs.PyFileSystem(fs.FSSpecHandler(found)), path
    except ImportError as error:  # fsspec names the package that is missing
        raise MissingExtra(f"reading {scheme}:// needs another package: {error}") from error
    except ValueError as error:
        raise DataError(f"{url}: unknown kind of URL: {error}") from error


@lru_cache(maxsize=32)
def _of_pyarrow(url: str) -> Any:
    """Return pyarrow's file system for a URL; None if pyarrow does not know its scheme."""
    try:
        from pyarrow import fs
    except ImportError as error:
        raise MissingExtra(f"reading {url} needs pyarrow: pip install 'coterie[pyarrow]'") from error
    if url.partition("://")[0] not in (*BUCKETS, "hdfs", "viewfs"):
        return None
    try:
        return fs.FileSystem.from_uri(url)[0]
    except (ValueError, NotImplementedError):
        return None  # pyarrow was built without this file system
    except OSError as error:
        raise DataError(f"{url}: cannot be reached: {error}") from error


def _local(path: str) -> list[tuple[str, int]]:
    """Find the files of a directory, a glob or a path on this machine."""
    if os.path.isdir(path):
        return _known(_walk(path), path)
    if _WILD.search(path) and not os.path.exists(path):
        matches = sorted(glob.glob(path, recursive=True), key=_natural)
        if not matches:
            raise DataError(f"{path}: no file matches")
        folders = [match for match in matches if os.path.isdir(match)]
        inside = [each for folder in folders for each in _walk(folder)]
        return _known([*filter(os.path.isfile, matches), *inside], path)
    if suffix_of(path) is None:
        found = "unknown kind of file" if os.path.exists(path) else "no such file or directory"
        raise DataError(f"{path}: {found}; known are directories, and files that end in {', '.join(SUFFIXES)}")
    # A missing file is reported by its reader, which knows the agent.
    return [(path, os.path.getsize(path) if os.path.isfile(path) else 0)]


def _walk(folder: str) -> Iterator[str]:
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _hidden(name))
        yield from (os.path.join(base, name) for name in names)


def _known(names: Iterable[str], where: str) -> list[tuple[str, int]]:
    """Return the files that can be read, in a fixed order; other files, such as a README, are skipped."""
    good = {name for name in names if suffix_of(name) and not _hidden(_name(name))}
    if not good:
        raise DataError(f"{where}: {NO_FILE}")
    return [(name, os.path.getsize(name)) for name in sorted(good, key=_natural)]


def _remote(url: str) -> list[tuple[str, int]]:
    """Find the files of a directory, a glob or a path behind a URL."""
    url = url.rstrip("/")
    system, inside = file_system(url)
    from pyarrow import fs

    prefix = url.removesuffix(inside.lstrip("/"))
    wild = _WILD.search(inside)
    root = _root(inside) if wild else inside.rstrip("/")
    try:
        info = system.get_file_info(root)
        if not wild and info.type == fs.FileType.File:
            if suffix_of(url) is None:
                raise DataError(f"{url}: {UNKNOWN_KIND}")
            return [(url, info.size or 0)]
        if not wild and suffix_of(url) is not None:
            return [(url, 0)]  # a missing file is reported by its reader
        listed = system.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    except OSError as error:
        raise DataError(f"{url}: cannot be listed: {error}") from error
    match = _pattern(inside.lstrip("/")) if wild else None
    found = []
    for each in listed:
        name = each.path.lstrip("/")
        below = name[len(root.lstrip("/")) :].split("/")
        if each.type != fs.FileType.File or suffix_of(name) is None or any(_hidden(part) for part in below):
            continue
        if match is None or match.match(name):
            found.append((prefix + name, each.size or 0))
    if not found:
        raise DataError(f"{url}: {'nothing matches' if wild else NO_FILE}")
    return sorted(found, key=lambda each: _natural(each[0]))


def _pattern(inside: str) -> re.Pattern[str]:
    """Return the regular expression of a glob: "*" matches within a folder, and "**" across folders."""
    meaning = {"*": "[^/]*", "?": "[^/]"}
    text = ""
    *folders, last = inside.split("/")
    for part in (*folders, "*" if last == "**" else last):
        if part == "**":
            text += "(?:[^/]+/)*"
            continue
        for token in re.split(r"(\*|\?|\[[^\]]*\])", part):
            text += meaning.get(token, token.replace("[!", "[^") if token.startswith("[") else re.escape(token))
        text += "/"
    return re.compile(text.removesuffix("/") + "(?:/.*)?$")


def _root(path: str) -> str:
    """Return the folders of a glob before its first wildcard."""
    match = _WILD.search(path)
    return path if match is None else path[: match.start()].rpartition("/")[0]


def _common(paths: Sequence[str]) -> str:
    try:
        return os.path.commonpath([os.path.dirname(path) or "." for path in paths])
    except ValueError:  # on different drives, or only one of them absolute
        return ""


def _keys(path: str, root: str) -> tuple[tuple[str, str], ...]:
    """Return hive partitions among the folders below a root."""
    folders = re.split(r"[/\\]", path.removeprefix(root))[:-1]
    matches = [_KEY.fullmatch(folder) for folder in folders]
    return tuple((match[1], unquote(match[2])) for match in matches if match)


def _name(path: str) -> str:
    return re.split(r"[/\\]", path)[-1]


def _hidden(name: str) -> bool:
    """Return whether a file is hidden or written by other programs among tables: _SUCCESS, _metadata, .crc."""
    return name.startswith((".", "_")) and "=" not in name


def _natural(path: str) -> list[Any]:
    """Return a sort key that orders numbers in names by value: 2 before 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path)]
