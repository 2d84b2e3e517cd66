from . import comparison, datasets, errors, graphs, multitask, observers, plots, privacy, testing
from ._progress import progress_bar
from ._version import __version__
from .comparison import Comparison, compare
from .core.losses import Hinge, Huber, Location, Logistic, LogSumExp, SmoothHinge, Squared, loss
from .core.method import method
from .core.methods import (
    APFL,
    DJAM,
    DPSGD,
    IFCA,
    SCAFFOLD,
    CollaborativeADMM,
    CoordinateDescent,
    Ditto,
    FedAvg,
    FedPer,
    FedProx,
    FedRep,
    FrankWolfeBoosting,
    GossipPooling,
    GradientTracking,
    LocalSGD,
    ModelPropagation,
    PFedMe,
    PushSum,
    ResilientPooling,
    TiedSGD,
)
from .core.models import Softmax, TwoLayer
from .core.rules import rule
from .core.training import SGD, Adam
from .core.wrap.aggregation import Clipping, Consensus, GeometricMedian, Krum, Median, TrimmedMean
from .core.wrap.attacked import Attacked, Lie
from .core.wrap.compressed import Compressed
from .core.wrap.compression import Float32, Quantised, TopK
from .core.wrap.graph_rule import GraphRule
from .core.wrap.learned import Learned
from .core.wrap.robust import Robust, Trimmed
from .core.wrap.sampling import Candidates, Friends, Ideal, Shuffle
from .data import AgentData, flip_labels
from .data.dictionaries import Stumps
from .data.sources import Source
from .datasets import splits
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
from .estimators.report import Report
from .estimators.storage import load, save
from .estimators.tuning import WithinAgents, tune
from .evaluation import Evaluation, Evaluator, evaluate
from .graphs import DirectedGraph, Graph, exact_graph
from .models import Function, Torch
from .multitask import Relationship, relationship
from .privacy import Private
from .problem import Problem, ShardedProblem
from .problem.baselines import ComponentModels, GlobalModel, LocalModels, RidgeToMean
from .studies.grid import study
from .studies.results import Study

__all__ = [
    "APFL",
    "DJAM",
    "DPSGD",
    "IFCA",
    "SCAFFOLD",
    "SGD",
    "Adam",
    "AgentData",
    "Attacked",
    "BoostedClassifier",
    "BoostedRegressor",
    "Candidates",
    "Clipping",
    "Cluster",
    "CollaborativeADMM",
    "CollaborativeClassifier",
    "CollaborativeRegressor",
    "Comparison",
    "ComponentModels",
    "Compressed",
    "Conditions",
    "Consensus",
    "CoordinateDescent",
    "DirectedGraph",
    "Ditto",
    "Evaluation",
    "Evaluator",
    "FedAvg",
    "FedPer",
    "FedProx",
    "FedRep",
    "Float32",
    "FrankWolfeBoosting",
    "Friends",
    "Function",
    "GeometricMedian",
    "GlobalModel",
    "GossipPooling",
    "GradientTracking",
    "Graph",
    "GraphRule",
    "Hinge",
    "Huber",
    "Ideal",
    "Krum",
    "Learned",
    "Lie",
    "LocalModels",
    "LocalSGD",
    "Location",
    "LogSumExp",
    "Logistic",
    "Median",
    "ModelPropagation",
    "PFedMe",
    "Private",
    "Problem",
    "PushSum",
    "Quantised",
    "Recorder",
    "Relationship",
    "RelationshipClassifier",
    "RelationshipRegressor",
    "Report",
    "ResilientPooling",
    "RidgeToMean",
    "Robust",
    "Run",
    "ShardedProblem",
    "Shuffle",
    "SmoothHinge",
    "Softmax",
    "Source",
    "Squared",
    "Study",
    "Stumps",
    "TiedSGD",
    "TopK",
    "Torch",
    "Trimmed",
    "TrimmedMean",
    "TwoLayer",
    "WithinAgents",
    "__version__",
    "compare",
    "comparison",
    "datasets",
    "errors",
    "evaluate",
    "exact_graph",
    "flip_labels",
    "graphs",
    "learn_graph",
    "load",
    "loss",
    "method",
    "multitask",
    "observers",
    "plots",
    "privacy",
    "progress_bar",
    "relationship",
    "rule",
    "save",
    "simulate",
    "splits",
    "study",
    "testing",
    "tune",
]
