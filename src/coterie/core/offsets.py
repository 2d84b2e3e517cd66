"""Losses of classes with a known offset for every row: ``l(z + o, y)``."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, check-untyped-defs=False

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from .losses import REALS, Logistic, loss
from .rules import NamedTuple

#: Exclusive bound on offsets; a label is stored as its sign times (FAR + offset).
OFFSET_BOUND = 1024.0


def with_offsets(labels: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Encode labels -1 and +1, and offsets, as labels of :class:`Offset`."""
    return labels * (OFFSET_BOUND + np.clip(offsets, -0.5 * OFFSET_BOUND, 0.5 * OFFSET_BOUND))


@loss(labels=REALS)  # encoded signs and offsets
class Offset(NamedTuple):
    """``l(z + o, y)`` for a loss l of classes; the label encodes y and o, see :func:`with_offsets`."""

    loss: Any = Logistic()

    def value(self, margin, label):
        """Value of the inner loss at z + o."""
        return self.loss.value(margin + (abs(label) - OFFSET_BOUND), 1.0 if label > 0.0 else -1.0)

    def derivative(self, margin, label):
        """Derivative of the inner loss at z + o."""
        return self.loss.derivative(margin + (abs(label) - OFFSET_BOUND), 1.0 if label > 0.0 else -1.0)

    def curvature(self, margin, label):
        """Curvature of the inner loss at z + o."""
        return self.loss.curvature(margin + (abs(label) - OFFSET_BOUND), 1.0 if label > 0.0 else -1.0)

    def prox(self, center, step, label):
        """Prox of the inner loss, shifted by o."""
        offset = abs(label) - OFFSET_BOUND
        return self.loss.prox(center + offset, step, 1.0 if label > 0.0 else -1.0) - offset

    def conjugate(self, dual, label):
        """``l*(u, y) - u o``."""
        return self.loss.conjugate(dual, 1.0 if label > 0.0 else -1.0) - dual * (abs(label) - OFFSET_BOUND)

    def domain(self, label):
        """Domain of the inner loss."""
        return self.loss.domain(1.0 if label > 0.0 else -1.0)

    smoothness, lipschitz = property(attrgetter("loss.smoothness")), property(attrgetter("loss.lipschitz"))
