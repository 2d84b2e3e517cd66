"""Models that stay as they are, for learning the graph alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..losses import REALS, loss
from ..method import NamedTuple, method
from .descent import Own


@loss(labels=REALS, smoothness=0.0, lipschitz=0.0)
class KnownLoss(NamedTuple):
    """A loss that is known already: its value is the label, whatever the model."""

    def value(self, margin, label):
        """The label."""
        return label

    def derivative(self, margin, label):
        """It does not depend on the model."""
        return 0.0

    def curvature(self, margin, label):
        """It does not depend on the model."""
        return 0.0

    def prox(self, center, step, label):
        """There is nothing to move for."""
        return center

    def conjugate(self, dual, label):
        """``-label`` at the only slope there is."""
        return -label

    def domain(self, label):
        """The only slope."""
        return 0.0, 0.0


class Edge(NamedTuple):
    """State of the edges."""

    nothing: np.ndarray  # (edges, 0)


@method
class FixedModels(NamedTuple):
    """The method of agents that are content with their models, and do not talk about them."""

    messages = dict[int, Any]()
    max_messages = 0
    on_balls = True

    def scratch_size(self, arrays, p):
        """Nothing to write."""
        return 0

    def start(self, arrays, theta):
        """State before the first letter."""
        return Own(theta.copy()), Edge(np.zeros((arrays.peer.shape[0], 0)))

    def open(self, data, me, edges, slot):
        """Nothing to remember of a neighbour."""

    def wake(self, data, me, edges, randomness, outbox):
        """Nothing to do."""

    def receive(self, data, me, edges, message, outbox):
        """Nothing comes."""
