"""The linear design: features in standard units."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import Design, Given
from .values import standards, standards_of


class Linear(Design):
    """Design in which every feature is a column."""

    name = "linear"

    @classmethod
    def learn(cls, given: Given) -> Linear:
        """Learn means and scales from the rows of all agents."""
        mean, scale = standards_of(given.rows)
        return cls(mean, scale, np.arange(len(mean)))

    @classmethod
    def of(cls, X: Any, weight: np.ndarray | None = None) -> Linear:
        """Return the design of rows in this process, dense or sparse."""
        return cls(*standards(X, weight), np.arange(X.shape[1]))

    def unscaled(self, X: np.ndarray) -> np.ndarray:
        """Return the features themselves."""
        return X
