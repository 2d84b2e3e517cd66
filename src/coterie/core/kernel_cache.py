"""The disk cache of compiled kernels: a folder for each version of coterie's sources and of code from outside.

Numba's own disk cache watches one source file, and so runs old code after an edit in a file that the loop calls.

If several threads or processes need one kernel, one of them compiles it; the others wait, and load the cached result.
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

#: Seconds to wait for another process: one that is stopped, but not killed, keeps its locks.
LOCK_TIMEOUT_SECONDS = 600.0

#: Classes from outside, by label, while a kernel that uses these is loaded, to restore its types.
reading: ContextVar[dict[str, type]] = ContextVar("reading")


def cache_directory(keys=()):
    """Return the folder of kernels that use code with these keys: in ``$COTERIE_CACHE``, or the user's cache folder."""
    more = [hashlib.sha256("".join(sorted(keys)).encode()).hexdigest()[:16]] if keys else []
    return cache_root() / "kernels" / "-".join([digest(), numba.__version__, *(["debug"] if DEBUG else []), *more])


@functools.cache
def _forget_old(directory):
    """Remove kernels of other versions that were not used for a month."""
    with contextlib.suppress(OSError):
        os.utime(directory)  # mark this folder as in use
    for other in directory.parent.iterdir():
        with contextlib.suppress(OSError):
            if other != directory and time.time() - other.stat().st_mtime > 30 * 86400:
                shutil.rmtree(other, ignore_errors=True)


class _Place(_CacheLocator):
    """A cache folder, in the form that Numba expects."""

    def __init__(self, directory):
        self.directory = directory

    def get_cache_path(self):
        return str(self.directory)

    def get_source_stamp(self):
        return self.directory.name

    def get_disambiguator(self):
        return self._module

    def from_function(self, py_func, py_file):
        """Return the folder, or None if it cannot be written to."""
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
    """Try to lock a file, and return whether this succeeded; a process that is killed loses its lock."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):  # errors for a lock that is taken, on either system
        return False
    return True


@contextlib.contextmanager
def _alone(path, what):
    """Let one thread of one process enter at a time, if files can be locked here."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # on a disk without locks, two processes may compile the same kernel
            file = stack.enter_context(path.open("a"))
            end, pause = time.monotonic() + LOCK_TIMEOUT_SECONDS, 0.001
            while not _locked(file) and time.monotonic() < end:
                if 0.1 < pause < 0.2:
                    log.info("waiting for another process, which compiles %s", what)
                time.sleep(pause)
                pause = min(2.0 * pause, 0.2)
            if fcntl is not None:  # closing is not enough: a process forked meanwhile has the file open, too
                stack.callback(fcntl.flock, file, fcntl.LOCK_UN)
        yield


class KernelCache(FunctionCache):
    """The cache of one kernel for some code from outside, or for none."""

    def __init__(self, function, outside):
        self._outside = {thing: foreign.key(thing) for thing in outside}
        self._names = {foreign.label(thing): thing for thing in outside if isinstance(thing, type)}
        self._directory = cache_directory(self._outside.values())
        self._held = contextlib.ExitStack()
        places = {"_locator_classes": [_Place(self._directory)]}
        self._impl_class = type("_Impl", (CompileResultCacheImpl,), places)
        super().__init__(function)

    def _changed(self):
        """Return whether anything that code from outside refers to has changed since the key was computed."""
        try:
            return any(foreign.key(thing) != known for thing, known in self._outside.items())
        except foreign.Opaque:
            return True

    def load_overload(self, sig, target_context):
        """Return the cached result for these types; after None, this process must compile until :meth:`let_go`."""
        if self._changed():
            return None
        token = reading.set(self._names)
        try:
            found = super().load_overload(sig, target_context)
            if found is None:
                name = self._py_func.__name__
                which = hashlib.sha256(f"{self._py_func.__module__}{sig}".encode()).hexdigest()[:16]
                self._held.enter_context(_alone(self._directory / f"{name}-{which}.lock", name))
                found = super().load_overload(sig, target_context)  # cached by another process in the meantime
            return found
        finally:
            reading.reset(token)

    def let_go(self):
        """Let others load the result, or compile it if this process has failed."""
        self._held.close()

    def save_overload(self, sig, data):
        """Cache the result for these types."""
        if self._changed():
            return
        token = reading.set(self._names)
        try:
            # Concurrent saves could corrupt Numba's index.
            with _alone(self._directory / ".lock", self._py_func.__name__):
                super().save_overload(sig, data)
        except OSError as error:  # for example a full disk: the result is used all the same
            log.warning("%s was compiled and cannot be kept: %s", self._py_func.__name__, error)
        finally:
            reading.reset(token)
