"""Problems that cannot be solved in private, and why."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import MismatchError


def check_private(method: Any, problem: Any) -> None:
    """Refuse a problem for which the claim of a private method would not hold.

    Parameters
    ----------
    method : rule
    problem : Problem

    Raises
    ------
    MismatchError

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2))
    >>> check_private(ct.Private("cd", wakes_per_agent=5), problem)
    Traceback (most recent call last):
    ...
    coterie.errors.MismatchError: ...
    """
    if getattr(problem.base, "from_data", False):
        raise MismatchError(
            f"{method!r}: the thresholds of {problem.base!r} were placed by everybody's data, and tell of them; give a "
            "public range, base=ct.Stumps(count, low=..., high=...)"
        )
    check_private_world(method, problem)


def check_private_world(method: Any, world: Any) -> None:
    """The part of :func:`check_private` that every engine can ask for, and does when a run starts.

    Parameters
    ----------
    method : rule
    world : World or Problem

    Raises
    ------
    MismatchError

    Examples
    --------
    >>> import coterie as ct
    >>> from coterie.engines.worlds import world_of
    >>> data = ct.AgentData([[1.0]], [1.0], agents=["a"])
    >>> world = world_of(ct.Problem.personalized(data, ct.graphs.empty(1), loss="hinge"))
    >>> check_private_world(ct.Private("cd"), world)
    Traceback (most recent call last):
    ...
    coterie.errors.MismatchError: ... takes gradient steps, and Hinge() has a kink: use a smooth loss
    """
    loss = world.loss
    if loss.not_private is not None:
        raise MismatchError(f"{method!r} is not for {loss!r}: {loss.not_private}")
    if world.outputs > 1:
        raise MismatchError(
            f"{method!r}: with outputs={world.outputs} every example counts {world.outputs} times, and the budget "
            "is for one; use one output"
        )
    if not np.isfinite(loss.smoothness):
        raise MismatchError(f"{method!r} takes gradient steps, and {loss!r} has a kink: use a smooth loss")
