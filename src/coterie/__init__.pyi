from . import (
    baselines,
    compression,
    data,
    datasets,
    dev,
    engines,
    errors,
    estimators,
    federated,
    gossip,
    graphs,
    models,
    multitask,
    observers,
    optim,
    plots,
    privacy,
    robust,
    sampling,
    studies,
    testing,
)
from ._version import __version__
from .comparison import compare
from .core.losses import Hinge, Huber, Location, Logistic, LogSumExp, SmoothHinge, Squared, loss
from .core.method import method
from .core.methods import DJAM, CollaborativeADMM, CoordinateDescent, FrankWolfeBoosting, ModelPropagation
from .core.rules import rule
from .core.wrap.graph_rule import GraphRule
from .core.wrap.learned import Learned
from .core.wrap.robust import Robust
from .data import AgentData
from .data.dictionaries import Stumps
from .datasets import splits
from .engines.cluster import Cluster
from .engines.conditions import Conditions
from .engines.graph_learning import learn_graph
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
from .evaluation import evaluate
from .graphs import DirectedGraph, Graph, exact_graph
from .multitask import relationship
from .privacy import Private
from .problem import Problem

__all__ = [
    "DJAM",
    "AgentData",
    "BoostedClassifier",
    "BoostedRegressor",
    "Cluster",
    "CollaborativeADMM",
    "CollaborativeClassifier",
    "CollaborativeRegressor",
    "Conditions",
    "CoordinateDescent",
    "DirectedGraph",
    "FrankWolfeBoosting",
    "Graph",
    "GraphRule",
    "Hinge",
    "Huber",
    "Learned",
    "Location",
    "LogSumExp",
    "Logistic",
    "ModelPropagation",
    "Private",
    "Problem",
    "RelationshipClassifier",
    "RelationshipRegressor",
    "Robust",
    "Run",
    "SmoothHinge",
    "Squared",
    "Stumps",
    "WithinAgents",
    "__version__",
    "baselines",
    "compare",
    "compression",
    "data",
    "datasets",
    "dev",
    "engines",
    "errors",
    "estimators",
    "evaluate",
    "exact_graph",
    "federated",
    "gossip",
    "graphs",
    "learn_graph",
    "load",
    "loss",
    "method",
    "models",
    "multitask",
    "observers",
    "optim",
    "plots",
    "privacy",
    "relationship",
    "robust",
    "rule",
    "sampling",
    "save",
    "simulate",
    "splits",
    "studies",
    "testing",
    "tune",
]
