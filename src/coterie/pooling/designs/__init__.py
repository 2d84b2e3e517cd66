"""Designs: how features become columns of a model, a file for each kind.

To add one, write a class as in :mod:`.additive`, and name it in ``DESIGNS``.
"""

from typing import Any

from ...errors import DataError
from .additive import Additive
from .base import Design, Given
from .linear import Linear
from .values import Values, blocks_of, standards, standards_of

#: By the names that estimators use; the plain one first, which others must beat.
DESIGNS: dict[str, type[Design]] = {kind.name: kind for kind in (Linear, Additive)}
#: The one that is always there.
PLAIN = Linear.name


def design_from(arrays: Any) -> Design:
    """A design of any kind, back from a file."""
    if "design" in arrays:
        name = str(arrays["design"])
        if name not in DESIGNS:
            raise DataError(f"there is no design {name!r}; known are {', '.join(DESIGNS)}")
        return DESIGNS[name].from_arrays(arrays)
    # Files of older versions hold no name, and of linear designs the knots of no splines.
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
