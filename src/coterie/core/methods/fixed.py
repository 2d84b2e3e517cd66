"""Models that stay as they are, for learning the graph alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..losses import REALS
from ..rules import rule


@rule
class KnownLoss(NamedTuple):
    """A loss that is known already: its value is the label."""

    @property
    def pooled(self):
        """It is one of single examples."""
        return False

    def value(self, margin, label):
        """The label."""
        return label

    def derivative(self, margin, label):
        """It does not depend on the model."""
        return 0.0

    def curvature(self, margin, label):
        """It does not depend on the model."""
        return 0.0

    @property
    def smoothness(self):
        """The largest curvature."""
        return 0.0

    @property
    def labels(self):
        """The labels it takes."""
        return REALS


class Own(NamedTuple):
    """State of the agents."""

    theta: np.ndarray  # (n, p) my model


class Tie(NamedTuple):
    """State of the ties."""

    nothing: np.ndarray  # (ties, 0)


@rule
class FixedModels(NamedTuple):
    """The method of agents that are content with their models, and do not talk about them."""

    @property
    def on_balls(self):
        """Its models stay where they are."""
        return True

    @property
    def dice(self):
        """Uniform numbers used by a wake."""
        return 0

    @property
    def letters(self):
        """Letters that one event may leave in the mail box, replies to them included."""
        return 0

    def fit_for(self, problem):
        """It fits every problem."""

    def lengths(self, p):
        """It writes no letters."""
        return ()

    def scratch(self, world, p):
        """Numbers of scratch paper that a handler needs."""
        return 0

    def start(self, world, theta):
        """State before the first letter."""
        return Own(theta.copy()), Tie(np.zeros((world.peer.shape[0], 0)))

    def open(self, data, me, ties, slot):
        """Nothing to remember of a neighbour."""

    def greet(self, data, me, ties, mail):
        """Nothing to say."""

    def wake(self, data, me, ties, chance, mail):
        """Nothing to do."""

    def receive(self, data, me, ties, letter, mail):
        """Nothing comes."""
