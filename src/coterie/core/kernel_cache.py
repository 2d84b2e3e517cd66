"""Where compiled kernels are kept: on disk, in a folder for this version of our sources and of code from outside.

Numba's own disk cache watches one source file, and so runs old code after an edit in a file that the loop calls.

What several threads or processes need at once, one of them compiles; the others wait, and load what it has kept.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import time
from contextvars import ContextVar

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

from .._files import cache_root
from . import foreign
from .fingerprint import DEBUG, digest

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

log = logging.getLogger("coterie")

#: Seconds to wait for another process: one that is stopped, and not killed, keeps its locks.
PATIENCE = 600.0

#: Classes from outside by their labels, while a kernel that meets them is read: how its types are found again.
reading: ContextVar[dict[str, type]] = ContextVar("reading")


def cache_directory(keys=()):
    """Where kernels are kept that meet code with these keys: below ``$COTERIE_CACHE``, or the user's cache folder."""
    more = [hashlib.sha256("".join(sorted(keys)).encode()).hexdigest()[:16]] if keys else []
    return cache_root() / "kernels" / "-".join([digest(), numba.__version__, *(["debug"] if DEBUG else []), *more])


@functools.cache
def _forget_old(directory):
    """Remove kernels of other versions that nobody has used for a month."""
    with contextlib.suppress(OSError):
        os.utime(directory)  # this one is in use
    for other in directory.parent.iterdir():
        with contextlib.suppress(OSError):
            if other != directory and time.time() - other.stat().st_mtime > 30 * 86400:
                shutil.rmtree(other, ignore_errors=True)


class _Place(_CacheLocator):
    """A folder, as Numba wants to be told of it."""

    def __init__(self, directory):
        self.directory = directory

    def get_cache_path(self):
        return str(self.directory)

    def get_source_stamp(self):
        return self.directory.name

    def get_disambiguator(self):
        return self._module

    def from_function(self, py_func, py_file):
        """The place, or None if nothing can be written there."""
        self._module = py_func.__module__
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        if not os.access(self.directory, os.W_OK):
            return None
        _forget_old(self.directory)
        return self


def _locked(file):
    """Whether the lock of a file is ours now; one that is killed loses it."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):  # what the one and the other say of a lock that is taken
        return False
    return True


@contextlib.contextmanager
def _alone(path, what):
    """One thread of one process at a time, as far as files can be locked here."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # of a disk without locks: then two may do the same work
            file = stack.enter_context(path.open("a"))
            end, pause = time.monotonic() + PATIENCE, 0.001
            while not _locked(file) and time.monotonic() < end:
                if 0.1 < pause < 0.2:
                    log.info("waiting for another process, which compiles %s", what)
                time.sleep(pause)
                pause = min(2.0 * pause, 0.2)
            if fcntl is not None:  # not by closing alone: a process forked meanwhile has the file open, too
                stack.callback(fcntl.flock, file, fcntl.LOCK_UN)
        yield


class KernelCache(FunctionCache):
    """The place of one kernel that meets some code from outside, or none."""

    def __init__(self, function, outside):
        self._outside = {thing: foreign.key(thing) for thing in outside}
        self._names = {foreign.label(thing): thing for thing in outside if isinstance(thing, type)}
        self._directory = cache_directory(self._outside.values())
        self._held = contextlib.ExitStack()
        places = {"_locator_classes": [_Place(self._directory)]}
        self._impl_class = type("_Impl", (CompileResultCacheImpl,), places)
        super().__init__(function)

    def _changed(self):
        """Whether something that code from outside refers to is another thing by now than when the key was made."""
        try:
            return any(foreign.key(thing) != known for thing, known in self._outside.items())
        except foreign.Opaque:
            return True

    def load_overload(self, sig, target_context):
        """What is kept for these types; or None, and then it is ours to compile until :meth:`let_go`."""
        if self._changed():
            return None
        token = reading.set(self._names)
        try:
            found = super().load_overload(sig, target_context)
            if found is None:
                name = self._py_func.__name__
                which = hashlib.sha256(f"{self._py_func.__module__}{sig}".encode()).hexdigest()[:16]
                self._held.enter_context(_alone(self._directory / f"{name}-{which}.lock", name))
                found = super().load_overload(sig, target_context)  # by somebody else, while we waited
            return found
        finally:
            reading.reset(token)

    def let_go(self):
        """Let others load, or compile in their turn where this has failed."""
        self._held.close()

    def save_overload(self, sig, data):
        """Keep what was compiled for these types."""
        if self._changed():
            return
        token = reading.set(self._names)
        try:
            # Two that save at once could mix up their entries in Numba's index.
            with _alone(self._directory / ".lock", self._py_func.__name__):
                super().save_overload(sig, data)
        except OSError as error:  # a full disk, say: it is compiled all the same
            log.warning("%s was compiled and cannot be kept: %s", self._py_func.__name__, error)
        finally:
            reading.reset(token)
