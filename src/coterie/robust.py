"""Attacks on learning together, and rules of aggregation that withstand them in :class:`coterie.Robust`."""

from .core.wrap.aggregation import Clipping, Consensus, GeometricMedian, Krum, Median, TrimmedMean
from .core.wrap.attacked import Attack, Attacked
from .core.wrap.robust import Trimmed
from .data import flip_labels

__all__ = [
    "Attack",
    "Attacked",
    "Clipping",
    "Consensus",
    "GeometricMedian",
    "Krum",
    "Median",
    "Trimmed",
    "TrimmedMean",
    "flip_labels",
]
