"""Problems that cannot be solved in private, and why."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import MismatchError
from ..losses import Location, LogSumExp


def check_private(method: Any, problem: Any) -> None:
    """Refuse a problem for which the claim of a private method would not hold."""
    if getattr(problem.base, "from_data", False):
        raise MismatchError(
            f"{method!r}: the thresholds of {problem.base!r} were placed by everybody's data, and tell of them; give a "
            "public range, base=ct.Stumps(count, low=..., high=...)"
        )
    check_private_world(method, problem)


def check_private_world(method: Any, world: Any) -> None:
    """The part of :func:`check_private` that every engine can ask for, and does when a run starts."""
    loss = world.loss
    if isinstance(loss, Location):
        raise MismatchError(
            f"{method!r} protects single examples, and here there are none with a gradient of their own ({loss!r}): "
            "pass the problem with the data, such as ct.Problem.personalized(data, graph)"
        )
    if isinstance(loss, LogSumExp):
        raise MismatchError(
            f"{method!r}: in {loss!r} one example can take all the weight, so that no noise would hide it; take the "
            'mean logistic loss, Problem.boosting(..., loss="logistic")'
        )
    if world.outputs > 1:
        raise MismatchError(
            f"{method!r}: with outputs={world.outputs} every example counts {world.outputs} times, and the budget "
            "is for one; use one output"
        )
    if not np.isfinite(loss.smoothness):
        raise MismatchError(f"{method!r} takes gradient steps, and {loss!r} has a kink: use a smooth loss")
