"""What private methods share: the terms they run under, and what can be asked of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..letters import Vector, is_sound
from ..linear import copy_to
from ..method import NamedTuple
from ..methods.descent import MODEL, CoordinateDescent
from ..world import VACANT
from .final import anchors, own_models
from .limits import check_private
from .loss_report import loss_report_of
from .noise import KEY, SIZE

#: No honest model holds a larger number; with larger ones, a step might not be finite.
FARTHEST = 1e100


def public_curvature(world, row_norm):
    """Curvature of each agent's losses, from what everybody may know: how many rows, and a bound on their norm."""
    return world.row_weight * np.diff(world.row_start) * world.loss.smoothness * row_norm * row_norm


class PrivateMethod(NamedTuple):
    """A method and the terms that it runs under. See :func:`coterie.Private`."""

    method: Any
    terms: Any

    def __repr__(self):
        return f"Private({self.method!r}, {self.terms.words()})"

    #: Nothing of the method inside says anything by itself: what is not stated private here is not there.
    any_model = synchronous = False
    round = prepare = publish = None
    plan = property(lambda self: self.terms.plan)
    finish = property(lambda self: self._finish if self.terms.final else None)

    @property
    def wakes_per_agent(self):
        """How many wakes of an agent say something; None for any number."""
        return self.terms.noise.shape[0]

    @property
    def loss_report(self):
        """What an agent tells of its loss to those who learn a graph."""
        return loss_report_of(self.terms)

    def fit_for(self, problem):
        """Refuse a problem whose letters could not be private."""
        check_private(self, problem)


class PrivateBroadcast(PrivateMethod):
    """A private method that sends its model, as it is published, to all neighbours, and remembers theirs."""

    letters = {MODEL: Vector()}
    max_letters = broadcasts = 1
    dice = KEY  # that noise is made from
    copies, exchanges = True, False

    def scratch_size(self, world, p):
        """Numbers of scratch paper that a handler needs."""
        return 2 * p + SIZE

    def _finish(self, world, own, tie):
        """The models that agents keep to themselves."""
        return own_models(world, anchors(world, np.asarray(tie.copy)), public_curvature(world, self.terms.row_norm))

    open, greet = CoordinateDescent.open, CoordinateDescent.greet  # models are public here

    def receive(self, data, me, ties, letter, outbox):
        """Remember the neighbour's model, if it is one."""
        if letter.slot != VACANT and is_sound(letter.text, FARTHEST):
            copy_to(letter.text, ties.copy[letter.slot])
