"""Sums over agents, wherever their rows are.

Everything that partial pooling learns of rows is a sum over agents, or a number for each of them. So the rows of some
agents can be in one process and those of others in another: each works out its own sums, and one process adds them up.
What is asked is a function of what a process holds; it answers with arrays, numbers, or tuples of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


class LostError(Exception):
    """A process is gone, others have taken its agents over, and what was begun has to be begun again."""


class Sums(Protocol):
    """Whatever holds rows: in this process, or in several."""

    def each(self, work: Callable[..., Any], *given: Any, again: bool = True) -> list[Any]:
        """``work(held, *given)`` of every process, in a fixed order; `held` is what it holds.

        Where a process is lost, those that take its agents over are asked in its place; a LostError is raised instead
        if not ``again``, for work that needs what earlier work has left behind.
        """

    def remember(self, name: Any, work: Callable[..., Any], *given: Any) -> None:
        """What a process that takes over agents has to do first, in the order in which names were new."""


class Here:
    """Something that this process holds, alone."""

    def __init__(self, held: Any):
        self.held = held

    def each(self, work: Callable[..., Any], *given: Any, again: bool = True) -> list[Any]:
        """The only answer."""
        return [work(self.held, *given)]

    def remember(self, name: Any, work: Callable[..., Any], *given: Any) -> None:
        """Nothing: nobody takes over from this process."""


def added(parts: list[Any]) -> Any:
    """The sum of several answers, part by part where they are tuples; in their order."""
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
    """The sum of what every process answers."""
    return added(sums.each(work, *given, again=again))


def every(sums: Sums, work: Callable[..., Any], *given: Any) -> np.ndarray:
    """Whether the answer of every process is true, entry by entry."""
    return np.logical_and.reduce(sums.each(work, *given))
