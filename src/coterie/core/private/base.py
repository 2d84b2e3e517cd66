"""Parts common to private methods: their terms and privacy claims."""

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

#: Largest number in the model of an honest agent; with larger ones, a step might not be finite.
MAX_NUMBER = 1e100


def public_curvature(arrays, row_norm):
    """Bound the curvature of each agent's losses from public facts: the number of rows, and a bound on their norm."""
    return arrays.row_weight * np.diff(arrays.row_start) * arrays.loss.smoothness * row_norm * row_norm


class PrivateMethod(NamedTuple):
    """A method and its privacy terms. See :func:`coterie.Private`."""

    method: Any
    terms: Any

    def __repr__(self):
        return f"Private({self.method!r}, {self.terms.words()})"

    #: Parts of the inner method that send anything are disabled, unless a private form is stated here.
    any_model = synchronous = False
    round = prepare = publish = None
    plan = property(lambda self: self.terms.plan)
    finish = property(lambda self: self._finish if self.terms.final else None)

    @property
    def wakes_per_agent(self):
        """Number of wakes of an agent that send something; None if unlimited."""
        return self.terms.noise.shape[0]

    @property
    def loss_report(self):
        """Mechanism for the loss that an agent reports to a rule that learns the graph."""
        return loss_report_of(self.terms)

    def fit_for(self, problem):
        """Raise a MismatchError for a problem whose messages could not be private."""
        check_private(self, problem)


class PrivateBroadcast(PrivateMethod):
    """A private method that sends its published model to all neighbours, and stores theirs."""

    messages = {MODEL: Vector()}
    max_messages = broadcasts = 1
    dice = KEY  # key of the noise
    copies, exchanges = True, False

    def scratch_size(self, arrays, p):
        return 2 * p + SIZE

    def _finish(self, arrays, own, edge):
        """Return the final models, which agents keep to themselves."""
        return own_models(arrays, anchors(arrays, np.asarray(edge.copy)), public_curvature(arrays, self.terms.row_norm))

    open, greet = CoordinateDescent.open, CoordinateDescent.greet  # models are public here

    def receive(self, data, me, edges, message, outbox):
        """Store the neighbour's model, if it is valid."""
        if message.slot != VACANT and is_sound(message.text, MAX_NUMBER):
            copy_to(message.text, edges.copy[message.slot])
