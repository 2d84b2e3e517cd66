"""Checks of arguments: each returns the value in its working type, or raises an error that names the argument."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import ParameterError


def integer(name: str, value: Any, least: int = 1) -> int:
    """Check an integer that is at least `least`; floats, even whole ones, and booleans are refused."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ParameterError(f"{name} = {value!r}: expected an integer >= {least}")
    return number


def positive(name: str, value: Any) -> float:
    """Check a finite number above zero."""
    return _real(name, value, "a positive finite number", lambda x: 0 < x < math.inf)


def nonnegative(name: str, value: Any) -> float:
    """Check a finite number, zero or above."""
    return _real(name, value, "a nonnegative finite number", lambda x: 0 <= x < math.inf)


def probability(name: str, value: Any) -> float:
    """Check a number in the closed interval [0, 1]."""
    return within(name, value, 0, 1)


def fraction(name: str, value: Any) -> float:
    """Check a number strictly between zero and one."""
    return _real(name, value, "a number strictly between 0 and 1", lambda x: 0 < x < 1)


def within(name: str, value: Any, low: float, high: float, ends: str = "[]") -> float:
    """Check a number in an interval; `ends` tells which ends are included: "[)" stands for low <= value < high."""
    left, right = ends[0], ends[1]

    def accepts(x: float) -> bool:
        return low < x < high or (x == low and left == "[") or (x == high and right == "]")

    return _real(name, value, f"a number in {left}{low:g}, {high:g}{right}", accepts)


def ascending(name: str, ends: Any) -> tuple[float, float]:
    """Check two positive finite numbers, the first not above the second."""
    low, high = ends
    if not 0 < low <= high < math.inf:
        raise ParameterError(f"{name} = {ends!r}: expected two positive finite numbers, the smaller one first")
    return low, high


def _real(name: str, value: Any, expected: str, accepts: Callable[[float], bool]) -> float:
    number = math.nan  # which no interval accepts
    if not isinstance(value, bool | np.bool_) and getattr(value, "ndim", 0) == 0:
        with suppress(TypeError, ValueError, OverflowError):  # the last of an integer too large for a float
            number = float(+value)  # the plus refuses text, which float() alone would read
    if not accepts(number):
        raise ParameterError(f"{name} = {value!r}: expected {expected}")
    return number


def flag(name: str, value: Any) -> bool:
    """Check True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ParameterError(f"{name} = {value!r}: expected True or False")
    return bool(value)


def choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """Check a name that must be one of the allowed names."""
    names = tuple(allowed)
    if not isinstance(value, str) or value not in names:
        raise ParameterError(f"{name} = {value!r}: expected {', '.join(map(repr, names[:-1]))} or {names[-1]!r}")
    return value


def named(what: str, value: Any, known: Mapping[str, Any], more: str = "") -> Any:
    """Return the value that a name stands for in `known`; a value that is not text is returned unchanged."""
    if not isinstance(value, str):
        return value
    if value not in known:
        raise ParameterError(f"unknown {what} {value!r}: choose one of {', '.join(known)}{more}")
    return known[value]


def numbers(name: str, values: Any, zero: bool = False) -> NDArray[np.float64]:
    """Check an array of any shape of positive finite numbers; zeros are allowed if `zero` is true."""
    expected = f"a {'nonnegative' if zero else 'positive'} finite number"
    try:
        array = np.asarray(values)
        # NumPy takes the True of [1.0, True] for 1.0.
        mixed = not isinstance(values, np.ndarray) and any(
            isinstance(value, bool | np.bool_) for value in np.asarray(values, dtype=object).ravel()
        )
    except (TypeError, ValueError):  # rows of different lengths
        array, mixed = np.asarray(None), False
    if mixed or array.dtype.kind not in "iuf":
        raise ParameterError(f"{name} = {values!r}: expected {expected}, or an array of such")
    array = array.astype(np.float64)
    good = np.isfinite(array) & ((array > 0) | (zero & (array == 0)))
    if not good.all():
        where = tuple(int(i) for i in np.argwhere(~good)[0])
        place = f"[{', '.join(map(str, where))}]" if where else ""
        raise ParameterError(f"{name}{place} = {float(array[where])!r}: expected {expected}")
    return array


def integers(
    name: str, values: Any, shape: tuple[int | None, ...], expected: str, error: type[Exception] = ParameterError
) -> NDArray[np.int64]:
    """Check an array of integers of a given shape, in which None stands for any length."""
    array = np.asarray(values)
    fits = array.ndim == len(shape) and all(
        each in (None, found) for each, found in zip(shape, array.shape, strict=True)
    )
    if not fits or (array.dtype.kind not in "iu" and array.size):  # [] is an array of floats
        raise error(f"{name} has shape {array.shape} and type {array.dtype}: expected {expected}")
    return np.ascontiguousarray(array, dtype=np.int64)


def generator(seed: Any) -> np.random.Generator:
    """Return a generator from an explicit seed; None is refused, because results must be reproducible."""
    if isinstance(seed, np.random.Generator):
        return seed
    try:
        return np.random.default_rng(integer("seed", seed, least=0))
    except ParameterError as error:
        raise ParameterError(f"{error} or a numpy.random.Generator") from None


def points(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Check an array with one row of finite numbers per agent."""
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
    """Check an array of numbers; return a copy as float64."""
    try:
        return np.array(values, dtype=float, order="C")
    except (TypeError, ValueError):
        raise ParameterError(f"{name} must be numbers; found {values!r}") from None


def per_agent(name: str, values: Any, n: int, least: float = -math.inf) -> NDArray[np.float64]:
    """Check one finite number for each agent, at least `least`."""
    array = floats(name, values)
    if array.shape != (n,):
        raise ParameterError(f"{name} must hold one number for each of the {n} agents; found shape {array.shape}")
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= least)))
    if bad.size:
        bound = f" >= {least:g}" if math.isfinite(least) else ""
        raise ParameterError(f"{name} of agent number {bad[0]} is {array[bad[0]]}: it must be a finite number{bound}")
    return array
