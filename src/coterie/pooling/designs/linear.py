"""The columns as they are, in standard units."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import Design, Given
from .values import standards, standards_of


class Linear(Design):
    """Every feature is a column."""

    name = "linear"

    @classmethod
    def learn(cls, given: Given) -> Linear:
        """Means and scales of the rows of all agents."""
        mean, scale = standards_of(given.rows)
        return cls(mean, scale, np.arange(len(mean)))

    @classmethod
    def of(cls, X: Any, weight: np.ndarray | None = None) -> Linear:
        """Of rows that are here, dense or sparse."""
        return cls(*standards(X, weight), np.arange(X.shape[1]))

    def unscaled(self, X: np.ndarray) -> np.ndarray:
        """The features themselves."""
        return X
