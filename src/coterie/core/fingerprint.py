"""What this process runs: compiled or plain code, with or without checks of bounds; and the fingerprint of it all."""

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
#: Whether compiled code checks the bounds of every array: ``COTERIE_DEBUG=1``, for who writes a rule.
DEBUG = _asked("COTERIE_DEBUG")
#: The newest Numba whose internals :mod:`.pipelines` was tried with; a newer one compiles kernels in its own way.
NEWEST_NUMBA = (0, 68)


@functools.cache
def digest():
    """Fingerprint of this folder: everything that may end up in a kernel of ours, and nothing else."""
    state = hashlib.sha256()
    for path in sorted(HERE.rglob("*.py")):
        state.update(str(path.relative_to(HERE)).encode() + path.read_bytes())
    return state.hexdigest()[:16]
