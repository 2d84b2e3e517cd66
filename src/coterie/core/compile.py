"""Decorators of loops and their helpers: compiled by Numba or, in plain mode, the Python that they are written in.

Plain mode is for a process that runs one agent: set the environment variable ``COTERIE_PLAIN=1`` before coterie is
imported, and nothing in it imports Numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .fingerprint import DEBUG, PLAIN, digest

if TYPE_CHECKING or not PLAIN:
    from .numba_backend import (
        class_of,
        each_field,
        expose,
        fetch,
        inline,
        inline_sum,
        kernel,
        noinline,
        or_numpy,
        overload,
        packed,
        register,
        room,
    )
else:
    from .plain_backend import (
        class_of,
        each_field,
        expose,
        fetch,
        inline,
        inline_sum,
        kernel,
        noinline,
        or_numpy,
        overload,
        packed,
        register,
        room,
    )

__all__ = [
    "DEBUG",
    "PLAIN",
    "class_of",
    "digest",
    "each_field",
    "expose",
    "fetch",
    "inline",
    "inline_sum",
    "kernel",
    "noinline",
    "or_numpy",
    "overload",
    "packed",
    "register",
    "room",
]
