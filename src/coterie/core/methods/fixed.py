"""Constant models, for learning only the graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..losses import REALS, loss
from ..method import NamedTuple, method
from .descent import Own


@loss(labels=REALS, smoothness=0.0, lipschitz=0.0)
class KnownLoss(NamedTuple):
    """A loss that is known already: its value is the label, for every model."""

    def value(self, margin, label):
        """Return the label."""
        return label

    def derivative(self, margin, label):
        """The loss does not depend on the model."""
        return 0.0

    def curvature(self, margin, label):
        """The loss does not depend on the model."""
        return 0.0

    def prox(self, center, step, label):
        """Return the center: the loss does not depend on the model."""
        return center

    def conjugate(self, dual, label):
        """``-label`` at slope 0, infinite elsewhere."""
        return -label

    def domain(self, label):
        """The interval that holds only slope 0."""
        return 0.0, 0.0


class Edge(NamedTuple):
    """State of the edges."""

    nothing: np.ndarray  # (edges, 0)


@method
class FixedModels(NamedTuple):
    """The method of agents that keep their models, and send nothing."""

    messages = dict[int, Any]()
    max_messages = 0
    on_balls = True

    def scratch_size(self, arrays, p):
        return 0

    def start(self, arrays, theta):
        return Own(theta.copy()), Edge(np.zeros((arrays.peer.shape[0], 0)))

    def open(self, data, me, edges, slot):
        """No state."""

    def wake(self, data, me, edges, randomness, outbox):
        """Do nothing."""

    def receive(self, data, me, edges, message, outbox):
        """Do nothing: no messages are sent."""
