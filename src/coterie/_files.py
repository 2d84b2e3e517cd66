"""Write files atomically, read files of bounded size, and find the cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import DataError, FileError, IdentityError

try:
    import fcntl
except ImportError:  # pragma: no cover - not on this platform
    fcntl = None  # type: ignore[assignment]

#: Default limit of the size of a file that is read, in bytes.
MAX_BYTES = 4_000_000

Where = str | os.PathLike[str]


def cache_root() -> Path:
    """Return ``$COTERIE_CACHE``, or the user's cache folder, for files that can be made or fetched again."""
    root = os.environ.get("COTERIE_CACHE")
    if root is not None:
        return Path(root)
    import platformdirs  # not above: only needed without COTERIE_CACHE

    return platformdirs.user_cache_path("coterie", appauthor=False)


# -- writing ---------------------------------------------------------------------------------------------------------


def write_atomic(
    path: Where,
    content: bytes,
    *,
    private: bool = False,
    durable: bool = True,
    sync_name: bool | None = None,
    one_writer: bool = False,
) -> Path:
    """Write a file whole or not at all; if `durable`, the file is on the disk when this returns.

    Errors of the operating system are raised as `FileError`. A `private` file is readable by its owner only (0600).
    `sync_name=False` saves time if the file's name is on the disk already. With `one_writer`, the draft that a crash
    leaves behind is overwritten by the next write.
    """
    with drafted(path, content, private=private, durable=durable, one_writer=one_writer) as draft:
        rename(draft, path, sync_name=durable if sync_name is None else sync_name)
    return Path(path)


@contextlib.contextmanager
def drafted(
    path: Where, content: bytes, *, private: bool = False, durable: bool = True, one_writer: bool = False
) -> Iterator[Path]:
    """Write the content to a draft in the same folder, to be renamed; a draft that is not renamed is deleted."""
    goal = Path(path)
    draft = goal.with_name(f".{goal.name}.{'draft' if one_writer else os.urandom(6).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if one_writer else os.O_EXCL) | getattr(os, "O_CLOEXEC", 0)
    try:
        with naming(goal):
            fd = os.open(draft, flags | getattr(os, "O_BINARY", 0), 0o600 if private else 0o666)
            try:
                write_all(fd, content)
                if durable:
                    sync(fd)
            finally:
                os.close(fd)
        yield draft
    finally:
        with contextlib.suppress(OSError):  # a draft that could not be written may not exist
            draft.unlink(missing_ok=True)


def rename(draft: Path, path: Where, *, sync_name: bool = True) -> None:
    """Rename a draft to its final name."""
    with naming(path):
        os.replace(draft, path)
        if sync_name:
            sync_folder(Path(path).parent)


def write_all(fd: int, content: bytes, start: int = 0) -> None:
    """Write all of the content, also if the system writes it in pieces."""
    if not hasattr(os, "pwrite"):  # pragma: no cover - not on this platform
        os.lseek(fd, start, os.SEEK_SET)
    done, rest = 0, memoryview(content)
    while done < len(content):
        pwrite = getattr(os, "pwrite", None)
        done += os.write(fd, rest[done:]) if pwrite is None else pwrite(fd, rest[done:], start + done)


def sync(fd: int) -> None:
    """Wait until the content of the file is on the disk, and not only in the disk's cache."""
    full = getattr(fcntl, "F_FULLFSYNC", None)  # macOS
    if full is not None:
        with contextlib.suppress(OSError):  # not on every file system
            fcntl.fcntl(fd, full)
            return
    os.fsync(fd)


def sync_folder(folder: Where) -> None:
    """Wait until the names of the files in a folder are on the disk."""
    if os.name != "posix":  # pragma: no cover - a folder cannot be opened there
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


def write_new(files: dict[Path, bytes], private: set[str], what: str) -> None:
    """Write new files: all of them, or none if one write fails; `what` describes the files in error messages."""
    for path in files:
        if os.path.lexists(path):
            raise IdentityError(
                f"{path.parent} holds {what} already ({path.name}), which is never overwritten: choose another folder"
            )
    done: list[Path] = []
    try:
        for path, content in files.items():
            done.append(path)
            write_atomic(path, content, private=path.name in private)
    except BaseException:
        for path in done:
            path.unlink(missing_ok=True)
        raise


# -- reading ---------------------------------------------------------------------------------------------------------


def read_bounded(path: Where, *, private: bool = False, limit: int = MAX_BYTES) -> bytes:
    """Return the content of a file of bounded size; refuse a `private` file that others than its owner can access."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if private and os.name == "posix" and mode & 0o077:
                raise IdentityError(
                    f"{path} is a secret, and others than its owner may use it (mode {mode & 0o777:04o}): "
                    f"chmod 600 {path}"
                )
            content = file.read(limit + 1)
    except OSError as error:
        raise FileError(error.errno, f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > limit:
        refusal = IdentityError if private else DataError
        raise refusal(f"{path} is longer than {limit} bytes: it is not what it should be")
    return content


def with_checksum(magic: bytes, body: bytes) -> bytes:
    """Return `magic`, the SHA-256 of the body, and the body, joined."""
    return magic + hashlib.sha256(body).digest() + body


def without_checksum(magic: bytes, content: bytes) -> bytes | None:
    """Return the body, or None if its checksum is wrong; refuse content that does not begin with `magic`."""
    start = len(magic) + hashlib.sha256().digest_size
    if not content.startswith(magic) or len(content) <= start:
        raise DataError(f"it does not begin with {magic!r}")
    body = content[start:]
    return body if hashlib.sha256(body).digest() == content[len(magic) : start] else None


# -- folders ---------------------------------------------------------------------------------------------------------


def private_folder(path: Where) -> Path:
    """Create a folder that only its owner can open; the mode of an existing folder is only changed if it is empty."""
    folder = Path(path)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.name == "posix" and folder.stat().st_mode & 0o077:
            if any(folder.iterdir()):
                raise IdentityError(f"{folder} is to hold secrets, and others can open it: chmod 700 {folder}")
            folder.chmod(0o700)
    except OSError as error:
        raise FileError(
            error.errno, f"{folder} cannot be made a folder for secrets: {error.strerror or error}"
        ) from error
    return folder


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for one writer; a second writer waits."""
    if fcntl is None:  # pragma: no cover - not on this platform
        yield
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # locks the folder itself, so that no lock file is left behind
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def naming(path: Where) -> Iterator[None]:
    """Name the file in an error of the operating system."""
    try:
        yield
    except OSError as error:
        raise FileError(error.errno, f"{path} cannot be written: {error.strerror or error}") from error


def plain(value: Any, text: bool = True) -> Any:
    """Convert a NumPy number or array for json; other values become text, or raise a TypeError if `text` is false."""
    if not (text or hasattr(value, "tolist")):
        raise TypeError(f"{value!r} is no number and no text")
    return value.tolist() if hasattr(value, "tolist") else str(value)
