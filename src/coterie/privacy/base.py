"""What private methods share: the terms they run under, and what can be asked of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._compile import inline
from .final import anchors, own_models
from .limits import check_private
from .terms import FINALS
from .tolls import toll_of

#: No honest model holds a larger number; with larger ones, a step might not be finite.
FARTHEST = 1e100


@inline
def is_model(text):
    """Could an honest neighbour have sent this?"""
    honest = True
    for k in range(text.shape[0]):
        honest = honest and abs(text[k]) <= FARTHEST  # false for NaN
    return honest


def public_curvature(world, bound):
    """Curvature of each agent's losses, from what everybody may know: how many rows, and a bound on their norm."""
    return world.share * np.diff(world.row_start) * world.loss.smoothness * bound * bound


class PrivateMethod(NamedTuple):
    """A method and the terms that it runs under. See :func:`coterie.Private`."""

    method: Any
    terms: Any

    def __repr__(self):
        return f"Private({self.method!r}, {self.terms.words()})"

    @property
    def plan(self):
        """The claim, and the noise that makes it true."""
        return self.terms.plan

    @property
    def wakes_per_agent(self):
        """How many wakes of an agent say something; None for any number."""
        return self.terms.noise.shape[0]

    @property
    def final(self):
        """What an agent does for itself in the end."""
        return FINALS[self.terms.final]

    @property
    def toll(self):
        """What an agent tells of its loss to those who learn a graph."""
        return toll_of(self.terms)

    def fit_for(self, problem):
        """Refuse a problem whose letters could not be private."""
        check_private(self, problem)

    def finish(self, world, own, tie):
        """The models that agents keep to themselves."""
        return own_models(world, anchors(world, tie.copy), public_curvature(world, self.terms.bound))
