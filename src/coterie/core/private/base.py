"""What private methods share: the terms they run under, and what can be asked of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import VACANT
from ..linear import copy_to
from ..messages import Vector, is_sound
from ..method import NamedTuple
from ..methods.descent import MODEL, CoordinateDescent
from .final import anchors, own_models
from .limits import check_private
from .loss_report import loss_report_of
from .noise import KEY, SIZE

#: No honest model holds a larger number; with larger ones, a step might not be finite.
FARTHEST = 1e100


def public_curvature(arrays, row_norm):
    """Curvature of each agent's losses, from what everybody may know: how many rows, and a bound on their norm."""
    return arrays.row_weight * np.diff(arrays.row_start) * arrays.loss.smoothness * row_norm * row_norm


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
        """Refuse a problem whose messages could not be private."""
        check_private(self, problem)


class PrivateBroadcast(PrivateMethod):
    """A private method that sends its model, as it is published, to all neighbours, and remembers theirs."""

    messages = {MODEL: Vector()}
    max_messages = broadcasts = 1
    dice = KEY  # that noise is made from
    copies, exchanges = True, False

    def scratch_size(self, arrays, p):
        """Numbers of scratch paper that a handler needs."""
        return 2 * p + SIZE

    def _finish(self, arrays, own, edge):
        """The models that agents keep to themselves."""
        return own_models(arrays, anchors(arrays, np.asarray(edge.copy)), public_curvature(arrays, self.terms.row_norm))

    open, greet = CoordinateDescent.open, CoordinateDescent.greet  # models are public here

    def receive(self, data, me, edges, message, outbox):
        """Remember the neighbour's model, if it is one."""
        if message.slot != VACANT and is_sound(message.text, FARTHEST):
            copy_to(message.text, edges.copy[message.slot])
