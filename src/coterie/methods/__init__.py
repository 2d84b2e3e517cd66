"""One file for each published method; all of them read alike: symbols, state, rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._lazy import lazy
from ..errors import MismatchError, ParameterError
from .admm import CollaborativeADMM
from .boosting import FrankWolfeBoosting
from .descent import CoordinateDescent
from .djam import DJAM
from .pooling import GossipPooling
from .propagation import ModelPropagation

if TYPE_CHECKING:
    from .baselines import BASELINES, ComponentModels, GlobalModel, LocalModels, RidgeToMean
else:  # what a peer has no use for
    __getattr__, __dir__ = lazy(
        __name__, {"baselines": "BASELINES ComponentModels GlobalModel LocalModels RidgeToMean"}
    )

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
    """A method or baseline given as a value or by its name.

    Parameters
    ----------
    method : rule, baseline or str

    Returns
    -------
    rule or baseline

    Examples
    --------
    >>> resolve_method("cd")
    CoordinateDescent()
    """
    if isinstance(method, str):
        if method in METHODS:
            return METHODS[method]
        from .baselines import BASELINES

        known = METHODS | BASELINES
        if method not in known:
            raise ParameterError(f"unknown method {method!r}: choose one of {', '.join(known)}")
        return known[method]
    if hasattr(method, "models") and not isinstance(method, type):
        return method
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
    "BASELINES",
    "DJAM",
    "METHODS",
    "METHOD_PARTS",
    "CollaborativeADMM",
    "ComponentModels",
    "CoordinateDescent",
    "FrankWolfeBoosting",
    "GlobalModel",
    "GossipPooling",
    "LocalModels",
    "ModelPropagation",
    "RidgeToMean",
    "check_fit",
    "resolve_method",
]
