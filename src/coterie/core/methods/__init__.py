"""One file for each published method; all of them read alike: symbols, state, rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import MismatchError, ParameterError
from .admm import CollaborativeADMM
from .boosting import FrankWolfeBoosting
from .descent import CoordinateDescent
from .djam import DJAM
from .pooling import GossipPooling
from .propagation import ModelPropagation

#: What a method must have.
METHOD_PARTS = ("start", "greet", "wake", "receive", "letters", "dice", "lengths", "scratch", "fit_for")

#: Every method that runs on a given graph, by the name used on the command line. Adding one here adds its tests.
METHODS = {
    "cd": CoordinateDescent(),
    "propagation": ModelPropagation(),
    "admm": CollaborativeADMM(),
    "djam": DJAM(),
    "boosting": FrankWolfeBoosting(),
    "gossip-pooling": GossipPooling(),
}


def resolve_method(method: Any) -> Any:
    """A method given as a value or by its name."""
    if isinstance(method, str):
        if method not in METHODS:
            raise ParameterError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}")
        return METHODS[method]
    missing = [name for name in METHOD_PARTS if not hasattr(method, name)]
    if isinstance(method, type) or missing:
        lacks = "a class" if isinstance(method, type) else f"without {missing[0]!r}"
        raise ParameterError(
            f"{method!r} is not a method ({lacks}): pass one of {', '.join(METHODS)}, or a value such as "
            "ct.CoordinateDescent()"
        )
    return method


def check_fit(method: Any, problem: Any) -> None:
    """Refuse a problem that a method cannot solve.

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
    >>> check_fit(ct.DJAM(), ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2)))
    """
    if np.isfinite(problem.radius) and not getattr(method, "on_balls", False):
        raise MismatchError(
            f"{method!r} does not keep models in a ball, which Problem.{problem.name} asks for: "
            "use ct.FrankWolfeBoosting()"
        )
    method.fit_for(problem)


__all__ = [
    "DJAM",
    "METHODS",
    "METHOD_PARTS",
    "CollaborativeADMM",
    "CoordinateDescent",
    "FrankWolfeBoosting",
    "GossipPooling",
    "ModelPropagation",
    "check_fit",
    "resolve_method",
]
