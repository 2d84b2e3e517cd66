"""One file for each published method; all of them read alike: symbols, state, rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import MismatchError, ParameterError
from ..method import Method
from .admm import CollaborativeADMM
from .boosting import FrankWolfeBoosting
from .descent import CoordinateDescent
from .djam import DJAM
from .pooling import GossipPooling
from .propagation import ModelPropagation
from .resilient import ResilientPooling

#: Every method that runs on a given graph, by the name used on the command line. Adding one here adds its tests.
METHODS: dict[str, Any] = {
    "cd": CoordinateDescent(),
    "propagation": ModelPropagation(),
    "admm": CollaborativeADMM(),
    "djam": DJAM(),
    "boosting": FrankWolfeBoosting(),
    "gossip-pooling": GossipPooling(),
    "resilient-pooling": ResilientPooling(),
}


def resolve_method(method: Any) -> Any:
    """A method given as a value or by its name."""
    if isinstance(method, str):
        if method not in METHODS:
            raise ParameterError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}")
        return METHODS[method]
    if not isinstance(method, Method):
        raise ParameterError(
            f"{method!r} is not a method that agents can run: pass one of {', '.join(METHODS)}, or a value such as "
            "ct.CoordinateDescent(), of a class decorated with @ct.method"
        )
    return method


def check_fit(method: Any, problem: Any) -> None:
    """Refuse, by a MismatchError, a problem that a method cannot solve."""
    if np.isfinite(problem.radius) and not method.on_balls:
        raise MismatchError(
            f"{method!r} does not keep models in a ball, which Problem.{problem.name} asks for: "
            "use ct.FrankWolfeBoosting()"
        )
    method.fit_for(problem)


__all__ = [
    "DJAM",
    "METHODS",
    "CollaborativeADMM",
    "CoordinateDescent",
    "FrankWolfeBoosting",
    "GossipPooling",
    "ModelPropagation",
    "ResilientPooling",
    "check_fit",
    "resolve_method",
]
