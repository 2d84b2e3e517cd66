"""Decorators of loops and their helpers: compiled by Numba or, in plain mode, the Python that they are written in.

Plain mode is for a process that runs one agent: set the environment variable ``COTERIE_PLAIN=1`` before coterie is
imported, and nothing in it imports Numba.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

#: Whether loops run as plain Python.
PLAIN = os.environ.get("COTERIE_PLAIN", "0") not in ("", "0")

if TYPE_CHECKING or not PLAIN:
    from .numba_backend import (
        class_of,
        each_field,
        expose,
        inline,
        inline_sum,
        kernel,
        noinline,
        or_numpy,
        overload,
        packed,
        register,
    )
else:
    from .plain_backend import (
        class_of,
        each_field,
        expose,
        inline,
        inline_sum,
        kernel,
        noinline,
        or_numpy,
        overload,
        packed,
        register,
    )

__all__ = [
    "PLAIN",
    "class_of",
    "each_field",
    "expose",
    "inline",
    "inline_sum",
    "kernel",
    "noinline",
    "or_numpy",
    "overload",
    "packed",
    "register",
]
