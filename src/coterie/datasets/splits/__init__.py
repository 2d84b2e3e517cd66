"""Heterogeneity between agents: splits by label, quantity skew, shifts, clusters, drift.

Splits divide the rows of arrays ``X, y`` among agents. Shifts change the rows of given agents. All take a seed, and
return :class:`coterie.AgentData`.
"""

from .labels import dirichlet, iid, pathological, train_test
from .shifts import Drift, Shifted, clusters, concept_shift, drift, feature_shift
from .sizes import DirichletSizes, LogNormalSizes, PowerLawSizes

__all__ = [
    "DirichletSizes",
    "Drift",
    "LogNormalSizes",
    "PowerLawSizes",
    "Shifted",
    "clusters",
    "concept_shift",
    "dirichlet",
    "drift",
    "feature_shift",
    "iid",
    "pathological",
    "train_test",
]


def __dir__() -> list[str]:
    return sorted(__all__)
