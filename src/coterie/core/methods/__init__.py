"""Published methods, one file each, all with one structure: table of symbols, state, update rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._checks import named
from ...errors import MismatchError, ParameterError
from ..arrays import TIED
from ..method import Method
from .admm import CollaborativeADMM as CollaborativeADMM
from .apfl import APFL as APFL
from .boosting import FrankWolfeBoosting as FrankWolfeBoosting
from .descent import CoordinateDescent as CoordinateDescent
from .ditto import Ditto as Ditto
from .djam import DJAM as DJAM
from .dpsgd import DPSGD as DPSGD
from .fedavg import FedAvg as FedAvg
from .fedavg import FedProx as FedProx
from .fedper import FedPer as FedPer
from .fedper import FedRep as FedRep
from .gradient_tracking import GradientTracking as GradientTracking
from .ifca import IFCA as IFCA
from .local_sgd import LocalSGD as LocalSGD
from .pfedme import PFedMe as PFedMe
from .pooling import GossipPooling as GossipPooling
from .propagation import ModelPropagation as ModelPropagation
from .push_sum import PushSum as PushSum
from .resilient import ResilientPooling as ResilientPooling
from .scaffold import SCAFFOLD as SCAFFOLD
from .tied_sgd import TiedSGD as TiedSGD

#: Every method that runs on a given graph, by the name used on the command line. A method added here is tested
#: automatically.
METHODS: dict[str, Any] = {
    "cd": CoordinateDescent(),
    "propagation": ModelPropagation(),
    "admm": CollaborativeADMM(),
    "djam": DJAM(),
    "boosting": FrankWolfeBoosting(),
    "gossip-pooling": GossipPooling(),
    "resilient-pooling": ResilientPooling(),
    "dpsgd": DPSGD(),
    "local-sgd": LocalSGD(),
    "gradient-tracking": GradientTracking(),
    "push-sum": PushSum(),
    "tied-sgd": TiedSGD(),
    "fedavg": FedAvg(),
    "fedprox": FedProx(),
    "scaffold": SCAFFOLD(),
    "fedper": FedPer(),
    "fedrep": FedRep(),
    "ditto": Ditto(),
    "pfedme": PFedMe(),
    "apfl": APFL(),
    "ifca": IFCA(),
}


def resolve_method(method: Any) -> Any:
    """Return a method, given as a value or by its name."""
    method = named("method", method, METHODS)
    if not isinstance(method, Method):
        raise ParameterError(
            f"{method!r} is not a method that agents can run: pass one of {', '.join(METHODS)}, or a value such as "
            "ct.CoordinateDescent(), of a class decorated with @ct.method"
        )
    return method


def check_fit(method: Any, problem: Any) -> None:
    """Raise a MismatchError for a problem that a method cannot solve."""
    if np.isfinite(problem.radius) and not method.promises.on_balls:
        raise MismatchError(
            f"{method!r} does not keep models in a ball, which Problem.{problem.name} asks for: "
            "use ct.FrankWolfeBoosting()"
        )
    if not problem.is_linear:
        _check_model(method, problem)
    if method.training.jobs and problem.loss.pooled:
        raise MismatchError(
            f"{method!r} sums gradients of examples, and {problem.loss!r} is one loss of all examples together: use "
            "ct.FrankWolfeBoosting()"
        )
    if not method.training.jobs and np.any(problem.roles != TIED):
        raise MismatchError(
            f"{method!r} draws all parameters to the neighbours' values, and some parameters of this problem are "
            "personal or shared: use a method that trains, such as ct.gossip.TiedSGD()"
        )
    if problem.graph.directed and not method.edges.directed:
        raise MismatchError(
            f"{method!r} needs mutual edges, and those of {problem.graph!r} are one-way: pass "
            "problem.on(graph=problem.graph.mutual), or use a method for directed graphs"
        )
    if method.training.jobs and not method.training.batch and getattr(problem.model, "random", False):
        raise MismatchError(
            f"{problem.model!r} draws random numbers in training, such as those of dropout, which come with "
            f"minibatches, and {method!r} has none: give its optimiser a batch, as ct.optim.SGD(batch=16)"
        )
    method.fit_for(problem)


def fits(method: Any, problem: Any) -> bool:
    """Return whether a method can solve a problem."""
    try:
        check_fit(method, problem)
    except MismatchError:
        return False
    return True


def _check_model(method: Any, problem: Any) -> None:
    """Raise a MismatchError if a method uses parts that the problem's model does not have."""
    if not method.promises.any_model:
        raise MismatchError(
            f"{method!r} is for linear models, not for {problem.model!r}: use a method that trains, such as "
            "ct.gossip.TiedSGD() or ct.gossip.DPSGD(), or ct.CoordinateDescent()"
        )
    if not method.training.jobs and problem.curvature is None and not hasattr(problem.model, "curvatures"):
        raise MismatchError(
            f"{method!r} takes steps of one over the curvature of a loss, and the curvature of {problem.model!r} "
            "is not known: pass Problem.differentiable(..., curvature=...), or use a method that trains, such as "
            "ct.gossip.TiedSGD()"
        )
