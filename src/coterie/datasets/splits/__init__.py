"""What makes data differ between agents: splits by label, quantity skew, shifts, clusters, drift.

Splits deal the rows of arrays ``X, y`` out to agents. Shifts change the rows of agents that are there. All are seeded,
and what comes out is :class:`coterie.AgentData`.
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
