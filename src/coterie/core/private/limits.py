"""Problems for which a method cannot be private, with reasons."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import MismatchError


def check_private(method: Any, problem: Any) -> None:
    """Raise a MismatchError for a problem for which the claim of a private method would not hold."""
    if getattr(problem.base, "from_data", False):
        raise MismatchError(
            f"{method!r}: the thresholds of {problem.base!r} were computed from all agents' data, and reveal some of "
            "these; pass a public range, base=ct.Stumps(count, low=..., high=...)"
        )
    check_private_arrays(method, problem)


def check_private_arrays(method: Any, arrays: Any) -> None:
    """The part of :func:`check_private` that needs only arrays, checked by every engine when a run starts."""
    loss = arrays.loss
    if loss.not_private is not None:
        raise MismatchError(f"{method!r} is not for {loss!r}: {loss.not_private}")
    if arrays.outputs > 1:
        raise MismatchError(
            f"{method!r}: with outputs={arrays.outputs} every example counts {arrays.outputs} times, and the privacy "
            "budget is for one; use one output"
        )
    if not np.isfinite(loss.smoothness):
        raise MismatchError(f"{method!r} takes gradient steps, and {loss!r} has a kink: use a smooth loss")
