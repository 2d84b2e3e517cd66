"""One file for each published method; all of them read alike: symbols, state, rule."""

from __future__ import annotations

from typing import Any

from ..errors import ParameterError
from .descent import CoordinateDescent

#: Every method that runs on a given graph, by the name used on the command line. Adding one here adds its tests.
METHODS = {"cd": CoordinateDescent()}


def resolve_method(method: Any) -> Any:
    """A method given as a rule or by its name.

    Parameters
    ----------
    method : rule or str

    Returns
    -------
    rule

    Examples
    --------
    >>> resolve_method("cd")
    CoordinateDescent()
    """
    if isinstance(method, str):
        if method not in METHODS:
            raise ParameterError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}")
        return METHODS[method]
    if isinstance(method, type) or not all(hasattr(method, name) for name in ("start", "greet", "wake", "receive")):
        raise ParameterError(
            f"{method!r} is not a method: pass one of {', '.join(METHODS)}, or a value such as ct.CoordinateDescent()"
        )
    return method


__all__ = ["METHODS", "CoordinateDescent", "resolve_method"]
