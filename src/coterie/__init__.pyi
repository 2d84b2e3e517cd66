from . import comparison, datasets, errors, graphs, multitask, plots, privacy, testing
from ._version import __version__
from .comparison import Comparison, compare
from .core.losses import Hinge, Huber, Location, Logistic, LogSumExp, SmoothHinge, Squared, loss
from .core.method import method
from .core.methods import (
    DJAM,
    CollaborativeADMM,
    CoordinateDescent,
    FrankWolfeBoosting,
    GossipPooling,
    ModelPropagation,
    ResilientPooling,
)
from .core.rules import rule
from .core.wrap.graph_rule import GraphRule
from .core.wrap.learned import Learned
from .core.wrap.sampling import Candidates, Friends, Ideal, Shuffle
from .core.wrap.trimmed import Trimmed
from .data import AgentData
from .data.dictionaries import Stumps
from .data.source import Source
from .engines.cluster import Cluster
from .engines.conditions import Conditions
from .engines.graph_learning import learn_graph
from .engines.recorder import Recorder
from .engines.run import Run
from .engines.simulator import simulate
from .estimators import (
    BoostedClassifier,
    BoostedRegressor,
    CollaborativeClassifier,
    CollaborativeRegressor,
    RelationshipClassifier,
    RelationshipRegressor,
)
from .estimators.storage import load, save
from .estimators.tuning import WithinAgents, tune
from .graphs import Graph, exact_graph
from .multitask import Relationship, relationship
from .privacy import Private
from .problem import Problem, ShardedProblem
from .problem.baselines import ComponentModels, GlobalModel, LocalModels, RidgeToMean

__all__ = [
    "DJAM",
    "AgentData",
    "BoostedClassifier",
    "BoostedRegressor",
    "Candidates",
    "Cluster",
    "CollaborativeADMM",
    "CollaborativeClassifier",
    "CollaborativeRegressor",
    "Comparison",
    "ComponentModels",
    "Conditions",
    "CoordinateDescent",
    "FrankWolfeBoosting",
    "Friends",
    "GlobalModel",
    "GossipPooling",
    "Graph",
    "GraphRule",
    "Hinge",
    "Huber",
    "Ideal",
    "Learned",
    "LocalModels",
    "Location",
    "LogSumExp",
    "Logistic",
    "ModelPropagation",
    "Private",
    "Problem",
    "Recorder",
    "Relationship",
    "RelationshipClassifier",
    "RelationshipRegressor",
    "ResilientPooling",
    "RidgeToMean",
    "Run",
    "ShardedProblem",
    "Shuffle",
    "SmoothHinge",
    "Source",
    "Squared",
    "Stumps",
    "Trimmed",
    "WithinAgents",
    "__version__",
    "compare",
    "comparison",
    "datasets",
    "errors",
    "exact_graph",
    "graphs",
    "learn_graph",
    "load",
    "loss",
    "method",
    "multitask",
    "plots",
    "privacy",
    "relationship",
    "rule",
    "save",
    "simulate",
    "testing",
    "tune",
]
