"""The decorators of :mod:`.numba_backend` without Numba: all code runs as plain Python.

A real peer wakes about once a second. It needs no compiled loops, and Numba would take most of its memory and of its
start-up time. Sums are added in another order here, so results agree with compiled ones up to rounding.
"""

from __future__ import annotations

import functools

import numpy as np

#: Whether loops are compiled; false in this module.
PLAIN = True


def kernel(function):
    """Return the loop itself; ``kernel.python`` is the same loop."""

    @functools.wraps(function)
    def run(*arguments):
        with np.errstate(all="ignore"):  # compiled code does not warn, either
            return function(*arguments)

    run.python = function
    return run


def _as_it_is(thing):
    return thing


inline = inline_sum = noinline = _as_it_is


def or_numpy(twin):
    """Decorator of loops over one vector, which would be slow: replace these by the NumPy version `twin`."""
    return lambda function: functools.wraps(function)(twin)


def room(size):
    """Return an array of a constant number of floats."""
    return np.empty(size)


def fetch(group, first, last):
    """Do nothing: there is no prefetching in plain Python."""


def register(cls):
    """Do nothing."""


def expose(name, arguments):
    """Do nothing."""


def overload(function):
    """Do nothing."""
    return _as_it_is


#: Used by compiled code only.
class_of = packed = each_field = None
