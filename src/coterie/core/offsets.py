"""Losses of classes with an offset that is known for every row: ``l(z + o, y)``."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from .losses import REALS, Logistic, loss
from .rules import NamedTuple

#: Offsets are smaller than this; a label is its sign times the sum of both.
FAR = 1024.0


def with_offsets(labels: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Labels -1 and +1, and offsets, as labels of :class:`Offset`."""
    return labels * (FAR + np.clip(offsets, -0.5 * FAR, 0.5 * FAR))


@loss(labels=REALS)  # signs and offsets are numbers
class Offset(NamedTuple):
    """``l(z + o, y)`` for a loss l of classes, with o in the label: see :func:`with_offsets`."""

    loss: Any = Logistic()

    def value(self, margin, label):
        """That of the inner loss, at the margin with its offset."""
        return self.loss.value(margin + (abs(label) - FAR), 1.0 if label > 0.0 else -1.0)

    def derivative(self, margin, label):
        """That of the inner loss, at the margin with its offset."""
        return self.loss.derivative(margin + (abs(label) - FAR), 1.0 if label > 0.0 else -1.0)

    def curvature(self, margin, label):
        """That of the inner loss, at the margin with its offset."""
        return self.loss.curvature(margin + (abs(label) - FAR), 1.0 if label > 0.0 else -1.0)

    def prox(self, center, step, label):
        """That of the inner loss, shifted."""
        offset = abs(label) - FAR
        return self.loss.prox(center + offset, step, 1.0 if label > 0.0 else -1.0) - offset

    def conjugate(self, dual, label):
        """``l*(u, y) - u o``."""
        return self.loss.conjugate(dual, 1.0 if label > 0.0 else -1.0) - dual * (abs(label) - FAR)

    def domain(self, label):
        """That of the inner loss."""
        return self.loss.domain(1.0 if label > 0.0 else -1.0)

    smoothness, lipschitz = property(attrgetter("loss.smoothness")), property(attrgetter("loss.lipschitz"))
