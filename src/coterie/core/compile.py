"""Decorators of loops and their helpers: compiled by Numba or, in plain mode, run as plain Python.

Plain mode is for a process that runs one agent: set the environment variable ``COTERIE_PLAIN=1`` before importing
coterie, and Numba is never imported. Plain mode also serves as a fallback for a Numba that compiled mode does not
support.
"""

from __future__ import annotations

import logging
from typing import Any

from . import fingerprint
from .fingerprint import DEBUG as DEBUG
from .fingerprint import digest as digest


def _backend() -> Any:
    """Return the module that holds the decorators."""
    if not fingerprint.PLAIN:
        try:
            from . import numba_backend
        except (ImportError, AttributeError) as error:
            logging.getLogger("coterie").warning(
                "loops run as plain Python, and slowly, for coterie does not support this version of Numba (%s): "
                "install an older one, such as pip install 'numba<=%s.%s'",
                error,
                *fingerprint.NEWEST_NUMBA,
            )
        else:
            return numba_backend
    from . import plain_backend

    return plain_backend


_chosen = _backend()
#: Whether loops run as plain Python.
PLAIN: bool = _chosen.PLAIN
kernel, inline, inline_sum, noinline = _chosen.kernel, _chosen.inline, _chosen.inline_sum, _chosen.noinline
or_numpy, room, fetch = _chosen.or_numpy, _chosen.room, _chosen.fetch
register, expose = _chosen.register, _chosen.expose
overload, class_of, packed, each_field = _chosen.overload, _chosen.class_of, _chosen.packed, _chosen.each_field
