"""Partial pooling: a common model, personal deviations from it, and strengths of both learned from the rows."""

from .classes import moderated, one_against_rest, probabilities, sharpness
from .families import FAMILIES
from .fitted import WIDE, Pooled, fit
from .results import Fitted
from .wide import Wide

__all__ = [
    "FAMILIES",
    "WIDE",
    "Fitted",
    "Pooled",
    "Wide",
    "fit",
    "moderated",
    "one_against_rest",
    "probabilities",
    "sharpness",
]
