"""Partial pooling: a common model, personal deviations from it, and strengths of both learned from the rows."""

from .families import FAMILIES
from .fitted import Pooled, fit

__all__ = ["FAMILIES", "Pooled", "fit"]
