"""Partial pooling: a common model and personal deviations from it, whose variances are learned from the rows."""

from .._laplace import moderated
from .classes import one_against_rest, probabilities, sharpness, targets_of
from .families import FAMILIES
from .fitted import MAX_DENSE_COLUMNS, Counter, Pooled, fit, fit_agents
from .results import Fitted
from .wide import Wide

__all__ = [
    "FAMILIES",
    "MAX_DENSE_COLUMNS",
    "Counter",
    "Fitted",
    "Pooled",
    "Wide",
    "fit",
    "fit_agents",
    "moderated",
    "one_against_rest",
    "probabilities",
    "sharpness",
    "targets_of",
]
