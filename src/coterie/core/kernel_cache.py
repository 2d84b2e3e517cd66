"""Where compiled kernels are kept: on disk, in a folder for this version of our sources and of code from outside.

Numba's own disk cache watches one source file, and so runs old code after an edit in a file that the loop calls.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import time
from contextvars import ContextVar

from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

from .._files import cache_root
from . import foreign
from .fingerprint import DEBUG, digest

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: Classes from outside by their labels, while a kernel that meets them is read: how its types are found again.
reading: ContextVar[dict[str, type]] = ContextVar("reading")


def cache_directory(keys=()):
    """Where kernels are kept that meet code with these keys: below ``$COTERIE_CACHE``, or the user's cache folder."""
    more = [hashlib.sha256("".join(sorted(keys)).encode()).hexdigest()[:16]] if keys else []
    return cache_root() / "kernels" / "-".join([digest(), *(["debug"] if DEBUG else []), *more])


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


class KernelCache(FunctionCache):
    """The place of one kernel that meets some code from outside, or none."""

    def __init__(self, function, outside):
        self._outside = {thing: foreign.key(thing) for thing in outside}
        self._names = {foreign.label(thing): thing for thing in outside if isinstance(thing, type)}
        self._directory = cache_directory(self._outside.values())
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
        """What is kept for these types, or None."""
        if self._changed():
            return None
        token = reading.set(self._names)
        try:
            return super().load_overload(sig, target_context)
        finally:
            reading.reset(token)

    def save_overload(self, sig, data):
        """Keep what was compiled for these types."""
        if self._changed():
            return
        token = reading.set(self._names)
        try:
            with self._alone():
                super().save_overload(sig, data)
        finally:
            reading.reset(token)

    @contextlib.contextmanager
    def _alone(self):
        """One process at a time: two that save at once could mix up their entries in Numba's index."""
        with contextlib.ExitStack() as stack:
            if fcntl is not None:
                lock = stack.enter_context((self._directory / ".lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
