"""Losses, gradients and roles of problems with nonlinear models, or with personal or shared parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.arrays import PERSONAL, SHARED, TIED, AgentArrays, all_gradients, all_losses, paper
from ..core.linear import frozen
from ..core.losses import resolve_loss
from ..core.models import Inside
from ..errors import DataError, ParameterError

if TYPE_CHECKING:
    from ..data.agent_data import AgentData
    from .problem import Problem

#: Attributes that every model must have.
MODEL_ATTRIBUTES = ("size", "scratch", "parts", "initial", "predict", "value", "gradient")
#: Number of rows that a model in Python is tried on.
TRIAL_ROWS = 3


def model_of(model: Any) -> tuple[Any, Any]:
    """Return the loss and the model of a problem, from a model, a loss or its name; a linear model is None."""
    if isinstance(model, str) or (isinstance(model, tuple) and hasattr(model, "smoothness")):
        return resolve_loss(model), None
    missing = [name for name in MODEL_ATTRIBUTES if not hasattr(model, name)]
    if missing:
        raise ParameterError(
            f"{model!r} is not a model: it has no {missing[0]}. Pass ct.models.Torch(module, loss), "
            'ct.models.Function(...), ct.models.TwoLayer(...), or a loss such as "logistic" for a linear model'
        )
    return Inside(), model


def check_rows(model: Any, data: AgentData) -> None:
    """Refuse rows that a model cannot take; compiled code does not check them."""
    inputs = getattr(model, "inputs", 0)
    if inputs and inputs != data.p:
        raise ParameterError(f"{model!r} takes {inputs} features, and the data has {data.p}")
    if data.y is None:
        raise DataError(f"{model!r} needs labels: make the data with y")
    if hasattr(model, "check"):
        some = data.X[:TRIAL_ROWS]
        model.check(some.toarray() if data.is_sparse else some, data.y[:TRIAL_ROWS])
    classes = getattr(model, "classes", 0)
    if classes:
        refuse_labels(data, ~np.isin(data.y, np.arange(classes)), f"{model!r} takes classes 0 to {classes - 1}")


def refuse_labels(data: AgentData, bad: np.ndarray, why: str) -> None:
    """Raise a DataError about the first row marked `bad`, if there is one."""
    if bad.any():
        row = int(bad.argmax())
        raise DataError(f"{data.where(row)} has label {np.asarray(data.y)[row]:g}: {why}")


#: Id of the agent that :meth:`Problem.federated` adds.
SERVER = "server"


def roles_of(model: Any, p: int, personal: Any, shared: Any, tied: Any, rest: int | None = None) -> np.ndarray:
    """Return the role of each parameter, (p,), from beginnings of parameter names.

    Parameters that are not named have the role `rest`; by default personal if no parameter is named personal,
    otherwise shared if some are named tied, otherwise tied.
    """
    given = {role: _words(words) for role, words in ((PERSONAL, personal), (SHARED, shared), (TIED, tied))}
    if not any(given.values()):
        return np.full(p, TIED if rest is None else rest, np.int8)
    parts = {"theta": slice(0, p)} if model is None else model.parts
    if rest is None:
        rest = PERSONAL if not given[PERSONAL] else SHARED if given[TIED] else TIED
    roles = np.full(p, rest, np.int8)
    seen: dict[str, str] = {}
    for role, words in given.items():
        for word in words:
            found = [name for name in parts if name.startswith(word)]
            if not found:
                raise ParameterError(f"no parameter begins with {word!r}: they are {', '.join(parts)}")
            for name in found:
                if name in seen and seen[name] != word:
                    raise ParameterError(f"the parameter {name!r} is named twice, by {seen[name]!r} and {word!r}")
                seen[name] = word
                roles[parts[name]] = role
    return roles


def _words(words: Any) -> tuple[str, ...]:
    if isinstance(words, str):
        return (words,)
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise ParameterError(f"{words!r} must be the beginning of a parameter's name, or several of them")
    return tuple(words)


def losses_of(problem: Problem, theta: np.ndarray) -> np.ndarray:
    """Return f_i(theta_i) of each agent."""
    arrays, agents = untied_arrays(problem), np.arange(problem.n)
    if hasattr(problem.model, "values"):
        ridge = problem.ridge * np.square(theta).sum(axis=1)
        return np.asarray(problem.model.values(arrays, theta, agents) + ridge)
    found = np.zeros(problem.n)
    all_losses(arrays, theta, found)
    return found


def gradients_of(problem: Problem, theta: np.ndarray) -> np.ndarray:
    """Return ``dQ / dTheta``; edges act on the tied parameters only."""
    arrays, agents = untied_arrays(problem), np.arange(problem.n)
    if hasattr(problem.model, "gradients"):
        found = problem.model.gradients(arrays, theta, agents, None) + 2.0 * problem.ridge[:, None] * theta
    else:
        found = np.zeros_like(theta)
        all_gradients(arrays, theta, found)
    found *= problem.a[:, None]
    tied = np.where(problem.roles == TIED, theta, 0.0)
    return np.asarray(found + 2.0 * problem.smooth * (problem.graph.laplacian() @ tied))


#: Attributes of a problem that are copied into the agents' arrays.
COPIED = (
    "loss",
    "rows",
    "labels",
    "row_weight",
    "ridge",
    "loss_weight",
    "smooth",
    "scaled",
    "radius",
    "outputs",
    "roles",
)


def untied_arrays(problem: Problem, batch: int = 0) -> AgentArrays:
    """Return arrays of all agents without edges and curvature bounds, with buffers for minibatches of `batch` rows."""
    whole, number = np.zeros(0, np.int64), np.zeros(0)
    arrays = AgentArrays(
        **{name: getattr(problem, name) for name in COPIED},
        row_start=problem.start,
        edge_start=frozen(np.zeros(problem.n + 1, np.int64)),
        peer=whole,
        inverse=whole,
        weight=number,
        choice=number,
        curvature=problem.ridge,  # not used
        address=frozen(np.arange(problem.n)),
        n_agents=problem.n,
        sent=frozen(np.flatnonzero(problem.roles != PERSONAL)),
    )
    return paper(arrays, problem.model, batch)
