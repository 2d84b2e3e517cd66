"""What this process runs: compiled or plain code, with or without bounds checks; and a fingerprint of the sources."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

HERE = Path(__file__).parent


def _asked(name):
    return os.environ.get(name, "0") not in ("", "0")


#: Whether loops run as plain Python: ``COTERIE_PLAIN=1``, set before coterie is imported.
PLAIN = _asked("COTERIE_PLAIN")
#: Whether compiled code checks the bounds of every array: ``COTERIE_DEBUG=1``, for authors of rules.
DEBUG = _asked("COTERIE_DEBUG")
#: The newest Numba with which :mod:`.pipelines` was tested; a newer one compiles kernels by its default pipeline.
NEWEST_NUMBA = (0, 68)


@functools.cache
def digest():
    """Return the fingerprint of this folder, which holds everything that may be part of a kernel."""
    state = hashlib.sha256()
    for path in sorted(HERE.rglob("*.py")):
        state.update(str(path.relative_to(HERE)).encode() + path.read_bytes())
    return state.hexdigest()[:16]
