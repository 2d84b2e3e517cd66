"""Designs: how features become columns of a model, one file for each kind.

To add a design, write a class like that in :mod:`.additive`, and list it in ``DESIGNS``.
"""

from typing import Any

from ...errors import DataError
from .additive import Additive
from .base import Design, Given
from .linear import Linear
from .values import Values, blocks_of, standards, standards_of

#: Designs by the names that estimators use; the plain design is first, and others are chosen only if better.
DESIGNS: dict[str, type[Design]] = {kind.name: kind for kind in (Linear, Additive)}
#: Name of the plain design, which is always possible.
PLAIN = Linear.name


def design_from(arrays: Any) -> Design:
    """Return a design of any kind from arrays of a file."""
    if "design" in arrays:
        name = str(arrays["design"])
        if name not in DESIGNS:
            raise DataError(f"there is no design {name!r}; known are {', '.join(DESIGNS)}")
        return DESIGNS[name].from_arrays(arrays)
    # Files of older versions hold no name of the design; their linear designs have no knots of splines.
    return (Additive if len(arrays["design_bent"]) else Linear).from_arrays(arrays)


__all__ = [
    "DESIGNS",
    "PLAIN",
    "Additive",
    "Design",
    "Given",
    "Linear",
    "Values",
    "blocks_of",
    "design_from",
    "standards",
    "standards_of",
]
