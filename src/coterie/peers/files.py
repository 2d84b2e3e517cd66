"""Files that are either the old ones or the new ones, whole; and secrets that nobody else may read."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import DataError, IdentityError

try:
    import fcntl
except ImportError:  # pragma: no cover - not on this platform
    fcntl = None  # type: ignore[assignment]

#: Nothing that is read here is longer.
MOST_BYTES = 4_000_000


def write(path: Path, content: bytes, *, secret: bool = False, durable: bool = True) -> Path:
    """Write a file whole or not at all; on the disk when this returns.

    Parameters
    ----------
    path : Path
    content : bytes
    secret : bool
        For the owner's eyes only.
    durable : bool
        Whether it must be on the disk when this returns.

    Returns
    -------
    Path
        The same path.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder, "a"), b"new").read_bytes()
    b'new'
    """
    with drafted(path, content, secret=secret, durable=durable) as draft:
        rename(draft, path, durable)
    return path


@contextlib.contextmanager
def drafted(path: Path, content: bytes, *, secret: bool = False, durable: bool = True) -> Iterator[Path]:
    """A file under another name in the same folder, on the disk, to be renamed; deleted if it is not.

    Parameters
    ----------
    path : Path
        What it is to become.
    content : bytes
    secret, durable : bool

    Yields
    ------
    Path

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with drafted(Path(folder, "a"), b"new"):
    ...         pass
    ...     os.listdir(folder)
    []
    """
    with _writing(path):
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600
    draft = Path(name)
    try:
        with _writing(path), os.fdopen(fd, "wb") as file:
            if not secret and os.name == "posix":
                os.fchmod(fd, 0o644)
            file.write(content)
            file.flush()
            if durable:
                os.fsync(fd)
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def rename(draft: Path, path: Path, durable: bool = True) -> None:
    """Give a draft its name; on the disk when this returns.

    Parameters
    ----------
    draft : Path
    path : Path
        In the same folder.
    durable : bool

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with drafted(Path(folder, "a"), b"new") as draft:
    ...         rename(draft, Path(folder, "a"))
    ...     os.listdir(folder)
    ['a']
    """
    with _writing(path):
        draft.replace(path)
        if durable:
            sync_folder(path.parent)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Name the file in an error of the operating system."""
    try:
        yield
    except OSError as error:
        raise IdentityError(f"{path} cannot be written: {error.strerror or error}") from error


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names of the files in a folder.

    Parameters
    ----------
    folder : Path

    Examples
    --------
    >>> sync_folder(Path("."))
    """
    if os.name != "posix":  # pragma: no cover - a folder cannot be opened there
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read(path: Path, *, secret: bool = False, most: int = MOST_BYTES) -> bytes:
    """What is in a file of bounded size.

    Parameters
    ----------
    path : Path
    secret : bool
        Refuse it if others than its owner may read or change it.
    most : int
        Refuse it if it is longer.

    Returns
    -------
    bytes

    Raises
    ------
    IdentityError
        Of a secret: it is missing or open to others.
    DataError
        Of another file: it is missing or too long.

    Examples
    --------
    >>> read(Path("no/such/file"))
    Traceback (most recent call last):
    ...
    coterie.errors.DataError: no/such/file cannot be read: No such file or directory
    """
    refusal = IdentityError if secret else DataError
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if secret and os.name == "posix" and mode & 0o077:
                raise IdentityError(
                    f"{path} is a secret, and others than its owner may use it (mode {mode & 0o777:04o}): "
                    f"chmod 600 {path}"
                )
            content = file.read(most + 1)
    except OSError as error:
        raise refusal(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > most:
        raise refusal(f"{path} is longer than {most} bytes: it is not what it should be")
    return content


def private_folder(path: str | os.PathLike[str]) -> Path:
    """A folder that only its owner can open, made if it does not exist.

    Parameters
    ----------
    path : path
        If it exists and is not empty, its permissions are not changed.

    Returns
    -------
    Path

    Raises
    ------
    IdentityError
        It holds files and is open to others, or it cannot be made.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     oct(private_folder(Path(parent, "ann")).stat().st_mode & 0o777)
    '0o700'
    """
    folder = Path(path)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.name == "posix" and folder.stat().st_mode & 0o077:
            if any(folder.iterdir()):
                raise IdentityError(f"{folder} is to hold secrets, and others can open it: chmod 700 {folder}")
            folder.chmod(0o700)
    except OSError as error:
        raise IdentityError(f"{folder} cannot be made a folder for secrets: {error.strerror or error}") from error
    return folder


def write_new(files: dict[Path, bytes], secrets: set[str]) -> None:
    """Write files where there are none: all of them, or, if something fails, none.

    Parameters
    ----------
    files : dict
        Content by path, in the order of writing.
    secrets : set of str
        Names of those that only the owner may read.

    Raises
    ------
    IdentityError
        One of them exists.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_new({Path(folder, "a.key"): b"1", Path(folder, "a"): b"2"}, {"a.key"})
    ...     sorted(os.listdir(folder))
    ['a', 'a.key']
    """
    for path in files:
        if os.path.lexists(path):
            raise IdentityError(f"{path} exists, and is never overwritten: choose another folder")
    done: list[Path] = []
    try:
        for path, content in files.items():
            done.append(path)
            write(path, content, secret=path.name in secrets)
    except BaseException:
        for path in done:
            path.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One writer at a time in a folder; a second one waits.

    Parameters
    ----------
    folder : Path

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, locked(Path(folder)):
    ...     pass
    """
    if fcntl is None:  # pragma: no cover - not on this platform
        yield
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # of the folder itself: no file to leave behind
        yield
    finally:
        os.close(fd)
