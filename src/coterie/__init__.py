"""coterie: decentralised collaborative learning of personalised models.

Many agents each hold a little private data, and each wants its own model. They get better ones by exchanging models,
never data, with a few similar peers.
"""

from . import comparison, datasets, errors, graphs, plots, testing
from ._rules import rule
from ._version import __version__
from .comparison import Comparison, compare
from .data import AgentData
from .engines.events import Conditions
from .engines.simulator import simulate
from .estimators import CollaborativeClassifier, CollaborativeRegressor
from .graphs import Graph
from .losses import Hinge, Huber, Location, Logistic, SmoothHinge, Squared
from .methods import (
    DJAM,
    CollaborativeADMM,
    ComponentModels,
    CoordinateDescent,
    GlobalModel,
    LocalModels,
    ModelPropagation,
    RidgeToMean,
)
from .problem import Problem
from .results import Run
from .storage import load, save

__all__ = [
    "DJAM",
    "AgentData",
    "CollaborativeADMM",
    "CollaborativeClassifier",
    "CollaborativeRegressor",
    "Comparison",
    "ComponentModels",
    "Conditions",
    "CoordinateDescent",
    "GlobalModel",
    "Graph",
    "Hinge",
    "Huber",
    "LocalModels",
    "Location",
    "Logistic",
    "ModelPropagation",
    "Problem",
    "RidgeToMean",
    "Run",
    "SmoothHinge",
    "Squared",
    "__version__",
    "compare",
    "comparison",
    "datasets",
    "errors",
    "graphs",
    "load",
    "plots",
    "rule",
    "save",
    "simulate",
    "testing",
]
