"""The same decorators without Numba: everything is the plain Python that it is written in.

A real peer wakes about once a second. It needs no compiled loops, and Numba would take most of its memory and of the
time it needs to start. Sums are added in another order here, so results agree with compiled ones to rounding.
"""

from __future__ import annotations

import functools

import numpy as np

#: Loops run as they are written.
PLAIN = True


def kernel(function):
    """The loop as it is; ``kernel.python`` is the same."""

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
    """For loops over one vector, which would be slow: `twin` does the same with NumPy."""
    return lambda function: functools.wraps(function)(twin)


def room(size):
    """A constant number of floats to write to, until the function that asks for them returns."""
    return np.empty(size)


def fetch(group, first, last):
    """Nothing to gain."""


def register(cls):
    """Nobody to tell."""


def expose(name, arguments):
    """Nobody to tell."""


def overload(function):
    """Nobody to tell."""
    return _as_it_is


#: Only compiled code asks for these.
class_of = packed = each_field = None
