"""Partial pooling: a common model, personal deviations from it, and strengths of both learned from the rows."""

from .families import FAMILIES
from .fitted import Pooled, fit
from .results import Fitted
from .wide import Wide

__all__ = ["FAMILIES", "Fitted", "Pooled", "Wide", "fit"]
