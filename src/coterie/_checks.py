"""What numbers may be: each check returns the value in its working type, or says why not."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import ParameterError


def integer(name: str, value: Any, least: int = 1) -> int:
    """An integer not below `least`; floats are refused, even whole ones."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ParameterError(f"{name} = {value!r}: expected an integer >= {least}")
    return number


def positive(name: str, value: Any) -> float:
    """A finite number above zero."""
    return _real(name, value, "a positive finite number", lambda x: 0 < x < math.inf)


def nonnegative(name: str, value: Any) -> float:
    """A finite number, zero or above."""
    return _real(name, value, "a nonnegative finite number", lambda x: 0 <= x < math.inf)


def probability(name: str, value: Any) -> float:
    """A number in the closed interval [0, 1]."""
    return _real(name, value, "a number in [0, 1]", lambda x: 0 <= x <= 1)


def fraction(name: str, value: Any) -> float:
    """A number strictly between zero and one."""
    return _real(name, value, "a number strictly between 0 and 1", lambda x: 0 < x < 1)


def ascending(name: str, ends: Any) -> tuple[float, float]:
    """Two positive finite numbers, the first not above the second."""
    low, high = ends
    if not 0 < low <= high < math.inf:
        raise ParameterError(f"{name} = {ends!r}: expected two positive finite numbers, the smaller one first")
    return low, high


def _real(name: str, value: Any, expected: str, accepts: Callable[[float], bool]) -> float:
    try:
        number = float(+value)  # the plus refuses text, which float() alone would read
    except (TypeError, ValueError):
        number = math.nan  # which no interval accepts
    if not accepts(number):
        raise ParameterError(f"{name} = {value!r}: expected {expected}")
    return number


def generator(seed: Any) -> np.random.Generator:
    """A generator from an explicit seed. None is refused: a graph nobody can draw again is of little use."""
    if isinstance(seed, np.random.Generator):
        return seed
    try:
        return np.random.default_rng(integer("seed", seed, least=0))
    except ParameterError as error:
        raise ParameterError(f"{error} or a numpy.random.Generator") from None


def points(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """One row of finite numbers per agent."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"{name} must be an array of numbers, one row per agent: {error}") from None
    if array.ndim != 2 or 0 in array.shape:
        raise ParameterError(f"{name} has shape {array.shape}: expected (agents, columns), one row per agent")
    bad = ~np.isfinite(array)
    if bad.any():
        agent, column = np.unravel_index(bad.argmax(), bad.shape)
        raise ParameterError(
            f"{name}: agent {agent} has {array[agent, column]} in column {column}: expected finite numbers"
        )
    return array


def floats(name: str, values: Any) -> np.ndarray:
    try:
        return np.array(values, dtype=float, order="C")
    except (TypeError, ValueError):
        raise ParameterError(f"{name} must be numbers; found {values!r}") from None
