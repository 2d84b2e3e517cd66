"""Sums over agents, with rows in this or other processes.

Everything that partial pooling learns from rows is a sum over agents, or a number for each agent. The rows of different
agents can therefore be in different processes: each computes its own sums, and one process adds them. A request is a
function of what a process holds, and returns arrays, numbers, or tuples of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


class LostError(Exception):
    """A process was lost and others have taken over its agents; the computation in progress must be started again."""


class Sums(Protocol):
    """Objects with rows, held by this process or by several."""

    def each(self, work: Callable[..., Any], *given: Any, again: bool = True) -> list[Any]:
        """Return ``work(held, *given)`` of every process, in a fixed order; `held` is the process's object.

        If a process is lost, the processes that take over its agents answer instead. With ``again=False``, for work
        that depends on the state that earlier work has left, a LostError is raised.
        """

    def remember(self, name: Any, work: Callable[..., Any], *given: Any) -> None:
        """Store a request that a process repeats when it takes over agents, in the order in which names were new."""


class Here:
    """An object held by this process alone."""

    def __init__(self, held: Any):
        self.held = held

    def each(self, work: Callable[..., Any], *given: Any, again: bool = True) -> list[Any]:
        """Return the only answer."""
        return [work(self.held, *given)]

    def remember(self, name: Any, work: Callable[..., Any], *given: Any) -> None:
        """Do nothing: no other process takes over from this one."""


def added(parts: list[Any]) -> Any:
    """Return the sum of several answers in their order; tuples are added element by element."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, tuple):
        sums = [added(list(each)) for each in zip(*parts, strict=True)]
        return type(first)(*sums) if hasattr(first, "_fields") else tuple(sums)
    if first is None:
        return None
    total = first + parts[1]
    for part in parts[2:]:
        total = total + part
    return total


def total(sums: Sums, work: Callable[..., Any], *given: Any, again: bool = True) -> Any:
    """Return the sum of the answers of all processes."""
    return added(sums.each(work, *given, again=again))


def every(sums: Sums, work: Callable[..., Any], *given: Any) -> np.ndarray:
    """Return whether the answers of all processes are true, elementwise."""
    return np.logical_and.reduce(sums.each(work, *given))
