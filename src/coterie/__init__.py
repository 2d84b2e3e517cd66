"""coterie: decentralised collaborative learning of personalised models.

Many agents each hold a little private data, and each wants its own model. They get better ones by exchanging models,
never data, with a few similar peers.
"""

from typing import TYPE_CHECKING

from ._lazy import lazy
from ._version import __version__

if TYPE_CHECKING:
    from . import comparison, datasets, errors, graphs, multitask, plots, privacy, testing, ties
    from ._rules import rule
    from .boosted import BoostedClassifier, BoostedRegressor
    from .comparison import Comparison, compare
    from .data import AgentData
    from .dictionaries import Stumps
    from .engines.cluster import Cluster
    from .engines.events import Conditions
    from .engines.simulator import simulate
    from .estimators import CollaborativeClassifier, CollaborativeRegressor
    from .graphs import Graph
    from .learning import learn_graph
    from .losses import Hinge, Huber, Location, Logistic, LogSumExp, SmoothHinge, Squared
    from .methods import (
        DJAM,
        CollaborativeADMM,
        ComponentModels,
        CoordinateDescent,
        FrankWolfeBoosting,
        GlobalModel,
        GossipPooling,
        LocalModels,
        ModelPropagation,
        RidgeToMean,
    )
    from .methods.trimmed import Trimmed
    from .multitask import Relationship, relationship
    from .privacy import Private
    from .problem import Problem
    from .related import RelationshipClassifier, RelationshipRegressor
    from .results import Run
    from .storage import load, save
    from .ties import GraphRule, Learned, exact_graph
    from .tuning import tune
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "_rules": "rule",
            "boosted": "BoostedClassifier BoostedRegressor",
            "comparison": "Comparison compare",
            "data": "AgentData",
            "dictionaries": "Stumps",
            "engines.cluster": "Cluster",
            "engines.events": "Conditions",
            "engines.simulator": "simulate",
            "estimators": "CollaborativeClassifier CollaborativeRegressor",
            "graphs": "Graph",
            "learning": "learn_graph",
            "losses": "Hinge Huber Location Logistic LogSumExp SmoothHinge Squared",
            "methods": "DJAM CollaborativeADMM ComponentModels CoordinateDescent FrankWolfeBoosting GlobalModel "
            "GossipPooling LocalModels ModelPropagation RidgeToMean",
            "methods.trimmed": "Trimmed",
            "multitask": "Relationship relationship",
            "privacy": "Private",
            "problem": "Problem",
            "related": "RelationshipClassifier RelationshipRegressor",
            "results": "Run",
            "storage": "load save",
            "ties": "GraphRule Learned exact_graph",
            "tuning": "tune",
        },
    )

__all__ = [
    "DJAM",
    "AgentData",
    "BoostedClassifier",
    "BoostedRegressor",
    "Cluster",
    "CollaborativeADMM",
    "CollaborativeClassifier",
    "CollaborativeRegressor",
    "Comparison",
    "ComponentModels",
    "Conditions",
    "CoordinateDescent",
    "FrankWolfeBoosting",
    "GlobalModel",
    "GossipPooling",
    "Graph",
    "GraphRule",
    "Hinge",
    "Huber",
    "Learned",
    "LocalModels",
    "Location",
    "LogSumExp",
    "Logistic",
    "ModelPropagation",
    "Private",
    "Problem",
    "Relationship",
    "RelationshipClassifier",
    "RelationshipRegressor",
    "RidgeToMean",
    "Run",
    "SmoothHinge",
    "Squared",
    "Stumps",
    "Trimmed",
    "__version__",
    "compare",
    "comparison",
    "datasets",
    "errors",
    "exact_graph",
    "graphs",
    "learn_graph",
    "load",
    "multitask",
    "plots",
    "privacy",
    "relationship",
    "rule",
    "save",
    "simulate",
    "testing",
    "ties",
    "tune",
]
