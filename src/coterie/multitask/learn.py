"""The front door of relationship learning: DMTRL and its baselines through one call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from ..core.linear import one_thread
from ..core.losses import resolve_loss
from ..data import AgentData
from ..engines.cluster import Cluster
from ..errors import DataError, ParameterError
from .actors import serving
from .alternation import Alternation
from .course import Course, Outcome, Plan
from .covariance import BOUNDS, checked_covariance, joint_charge, joint_penalty, penalty, penalty_of_weights, related
from .crew import crew_here
from .exact import exact_weights
from .results import Relationship
from .server import State
from .sources import gather
from .worker import Worker, check_tasks

Progress = Callable[[int, float], None]

#: Ways to solve the problem.
WAYS = ("dmtrl", "single-task", "exact", "sdca")
#: The most alternations of the exact method: the ridge of the Omega-step is gone by then.
EXACT = 300
#: Seconds between two calls of ``progress``.
LOOK = 0.2
#: How near the optimum of a given, and of a learned covariance, as a part of the objective.
TIGHT, JOINT = 1e-7, 5e-5


def relationship(
    data: AgentData | Mapping[Any, Any],
    loss: Any = "logistic",
    lam: float = 1e-2,
    alternations: int = 5000,
    rounds: int | None = None,
    local_steps: int | None = None,
    covariance: ArrayLike | None = None,
    seed: int = 0,
    engine: Cluster | None = None,
    *,
    method: str = "dmtrl",
    passes: float = 10.0,
    tol: float | None = None,
    rho: Any = "eigenvalue",
    eta: float = 1.0,
    momentum: bool = True,
    staleness: int | None = None,
    target: str = "y",
    progress: Progress | None = None,
) -> Relationship:
    """Learn the weights of many tasks, and how the tasks are related: DMTRL.

    Minimises ``sum_i 1/n_i sum_j l(w_i . x_ij, y_ij) + lam/2 tr(W Sigma^-1 W')`` over the weights W (d x m) and, unless
    it is given, over the covariance Sigma of the tasks, positive semidefinite of trace one. At the best covariance the
    penalty is ``lam/2 |W|_*^2``.

    Workers hold the rows of the tasks and solve their parts of the dual problem; a server knows the covariance, and
    sends weights back. Only ``w_i`` and changes of ``b_i``, vectors of d numbers, travel.

    Parameters
    ----------
    data : AgentData, or mapping of task ids to sources
        Every agent is a task; labels of classes are -1 and +1. A source is a function without arguments that returns
        ``(X, y)``, or the path of a table or of an ``.npz`` file (:func:`coterie.multitask.load_task`); on a cluster,
        the worker of the task loads it.
    loss : str or rule
        "logistic", "hinge", "smooth-hinge", "squared", "huber", or a loss of your own.
    lam : float
        Weight of the penalty.
    alternations : int
        How many times the covariance may be fitted to the weights.
    rounds : int, optional
        How many rounds of communication there may be with the same covariance. Default: 1 where it is learned, the
        surest way; 10,000 where it is given.
    local_steps : int, optional
        H of DMTRL, Algorithm 2: local steps of each task in a round, the same for all. Default: ``passes`` for each
        row that a task has, so that large tasks do more.
    covariance : (m, m) array_like, optional
        Keep this one. Tasks in the order of ``data.members``, or of the mapping.
    seed : int
        Of the order in which workers take their rows. Same seed, same bits, on however many workers.
    engine : Cluster, optional
        Run on a Ray cluster. Default: in this process.
    method : {"dmtrl", "single-task", "exact", "sdca"}
        "single-task": every task alone, with the penalty ``lam/2 |w_i|^2``. "exact": all rows in one place, and the
        weights to machine precision (Newton, interior point) for each of at most 300 covariances; for a few thousand
        unknowns, and with a loose bound if the loss has a kink. "sdca":
        all rows in one place, task after task, each with weights that know of all steps before.
    passes : float
        Local steps in a round for each row of a task.
    tol : float, optional
        Stop when the objective is within this part of itself of its optimum, by the duality gap. Default: 1e-7 for a
        given covariance, 5e-5 for a learned one.
    rho : {"eigenvalue", "lemma10"} or float
        How much steps at the same time may get in each other's way: the largest eigenvalue of the correlation matrix,
        the larger bound of DMTRL, Lemma 10, or a number.
    eta : float
        Which part of their steps workers take, in (0, 1].
    momentum : bool
        Whether rounds and Omega-steps build on those before. Without, rounds are those of Algorithm 1.
    staleness : int, optional
        Rounds without waiting: a worker may be so many rounds ahead of the slowest. Default: all wait for each other.
    target : str
        Column of the labels, where sources are tables.
    progress : callable, optional
        Called with (rounds done, part of the objective that it may be from its optimum) now and then.

    Returns
    -------
    Relationship

    Examples
    --------
    >>> import coterie as ct
    >>> task = ct.datasets.related_tasks(n=6, p=5, rows=60, seed=0)
    >>> found = ct.relationship(task.train, "logistic", lam=0.01)
    >>> found.weights.shape, found.covariance.shape, found.converged
    ((5, 6), (6, 6), True)
    >>> bool(found.trace["gap"].min() >= 0)
    True
    """
    _check_parameters(dict(locals()))
    loss = resolve_loss(loss)
    if covariance is not None and method == "single-task":
        raise ParameterError('method="single-task" has no covariance: leave it out')
    members = data.members if isinstance(data, AgentData) else _mapping(data)
    m = len(members)
    if m == 1 and covariance is None:
        covariance = [[1.0]]  # there is nothing to relate
    fixed = None if covariance is None else checked_covariance(covariance, members)
    if method == "single-task":
        fixed = np.eye(m)
    tol = (JOINT if fixed is None else TIGHT) if tol is None else float(tol)
    thorough = rounds is not None
    if rounds is None:
        # Answers that come late fit the covariance that they were asked with: it must not change too often.
        rounds = 10_000 if fixed is not None else 1 if staleness is None else staleness + 3
    if engine is None:
        data = data if isinstance(data, AgentData) else gather(data, target)
        check_tasks(data, loss)
    kind = "in turn" if method == "sdca" else "together" if staleness is None else "as they come"
    settings = {"kind": kind, "staleness": staleness or 0, "rho": rho, "eta": eta, "momentum": momentum}
    plan = Plan(m, float(lam), fixed, int(alternations), int(rounds), thorough, tol, bool(momentum), settings)
    work: dict[str, Any] = {"passes": float(passes), "local_steps": local_steps, "seed": int(seed)}
    if method == "exact":
        outcome = _exactly(data, loss, plan, progress)
    elif engine is not None:
        with serving(engine, data, members, loss, target, plan, work) as remote:
            outcome = _followed(remote, progress)
    else:
        crew = crew_here(data, loss, apart=kind != "together", asynchronous=kind == "as they come", **work)
        outcome = _followed(Course(crew, plan), progress)
    return _result(outcome, members, method, plan, loss)


def _result(outcome: Outcome, members: Any, method: str, plan: Plan, loss: Any) -> Relationship:
    weights, covariance = outcome.weights, outcome.covariance
    if method == "single-task":
        covariance = covariance / len(covariance)
    notes = outcome.notes
    if not outcome.converged:
        apart = (outcome.value - outcome.bound) / max(abs(outcome.value), 1e-300)
        advice = "; raise alternations, rounds or passes, or scale features that differ much in size"
        more = "" if method == "exact" else advice
        near = f"within {plan.tol:g} of its optimum: it may be {apart:.1e} above"
        notes = (*notes, f"stopped before the objective was {near}{more}")
    return Relationship(
        weights=weights.T.copy(),
        covariance=covariance,
        members=tuple(members),
        trace=pd.DataFrame(outcome.trace, columns=State._fields),
        value=outcome.value,
        bound=outcome.bound,
        converged=outcome.converged,
        rounds=outcome.rounds,
        alternations=outcome.alternations,
        vectors=outcome.vectors,
        method=method,
        lam=plan.lam,
        loss=loss,
        notes=notes,
    )


@one_thread
def _exactly(data: AgentData, loss: Any, plan: Plan, progress: Progress | None) -> Outcome:
    """Weights to machine precision for each covariance: Newton or interior point, then an Omega-step, and so on."""
    worker = Worker(data, loss, range(data.n), passes=1.0, local_steps=None, seed=0)
    smooth = np.isfinite(loss.smoothness)
    best, value, bound = np.zeros((data.n, data.p)), math.inf, -math.inf
    budget = min(plan.alternations, EXACT)
    steps, covariance, trace = Alternation(budget, exact=True, momentum=plan.momentum), plan.start, []
    for k in range(budget):
        weights = exact_weights(data, loss, plan.lam, covariance)
        worker.settle(weights)  # a dual variable is minus the slope of the loss; at a kink, this is one of many
        losses, conjugates, _ = worker.evaluate(weights).sum(axis=0)
        vectors = worker.stand().vectors
        if plan.covariance is not None:
            value = losses + penalty_of_weights(weights, covariance, plan.lam)
            bound = -penalty(vectors, covariance, plan.lam) - conjugates if smooth else value
            best = weights
        else:
            reached = losses + joint_penalty(weights, plan.lam)
            best, value = (weights, reached) if reached < value else (best, value)
            bound = max(bound, -joint_charge(vectors, plan.lam) - conjugates)
        apart = max(0.0, value - bound) / max(abs(value), 1e-300)
        trace.append(State(k, k, value, min(bound, value), max(0.0, value - bound), 0))
        if progress is not None:
            progress(k + 1, apart)
        if plan.covariance is not None or apart <= plan.tol:
            break
        covariance = steps.step(weights, weights, losses, lam=plan.lam, apart=min(1.0, apart), rounds=1)
    fitted = plan.covariance if plan.covariance is not None else related(best)
    sure = plan.covariance is not None or apart <= plan.tol
    notes = () if smooth or plan.covariance is not None else ("the bound is loose for a loss with a kink",)
    return Outcome(best, fitted, trace, float(value), float(bound), bool(sure), k + 1, k, 0, notes)


def _followed(course: Any, progress: Progress | None) -> Outcome:
    """Let a course run to its end, and tell how it goes."""
    done = False
    while not done:
        rounds, apart, done = course.advance(LOOK)
        if progress is not None:
            progress(rounds, apart)
    outcome: Outcome = course.outcome()
    return outcome


def _mapping(data: Any) -> tuple[Any, ...]:
    """Ids of the tasks of a mapping of sources."""
    if not isinstance(data, Mapping):
        raise DataError(f"data must be an AgentData, or a mapping of task ids to sources; found {type(data).__name__}")
    if not data:
        raise DataError("data is an empty mapping: at least one task is needed")
    return tuple(data)


def _check_parameters(given: Mapping[str, Any]) -> None:
    """Refuse a number or a name out of its range, before any work."""
    whole = {"alternations": 1, "rounds": 1, "local_steps": 1, "staleness": 0}
    for name, least in whole.items():
        value = given[name]
        optional = name != "alternations"
        if not ((optional and value is None) or (_whole(value) and value >= least)):
            raise ParameterError(f"{name}={value!r} must be a whole number >= {least}" + (", or None" * optional))
    if not (_whole(given["seed"]) and given["seed"] >= 0):
        raise ParameterError(f"seed={given['seed']!r} must be a whole number >= 0")
    for name in ("lam", "passes", "tol", "eta"):
        value = given[name]
        if value is None and name == "tol":
            continue
        if not (_number(value) and value > 0):
            raise ParameterError(f"{name}={value!r} must be a positive number")
    if given["eta"] > 1:
        raise ParameterError(f"eta={given['eta']!r} must be at most 1")
    rho = given["rho"]
    if not (rho in BOUNDS if isinstance(rho, str) else _number(rho) and rho > 0):
        raise ParameterError(f"rho={rho!r} must be one of {', '.join(map(repr, BOUNDS))}, or a positive number")
    method, engine, staleness = given["method"], given["engine"], given["staleness"]
    if method not in WAYS:
        raise ParameterError(f"method={method!r} must be one of {', '.join(map(repr, WAYS))}")
    if not (engine is None or isinstance(engine, Cluster)):
        raise ParameterError(f"engine={engine!r} must be a ct.Cluster, or None for this process")
    if given["eta"] < 1 and (method in ("exact", "sdca") or staleness is not None):
        raise ParameterError("eta is for workers that take their steps at the same time: leave it out here")
    if method in ("exact", "sdca"):
        if engine is not None:
            raise ParameterError(f"method={method!r} has all rows in one place: leave engine out")
        if staleness is not None:
            raise ParameterError(f"method={method!r} has no workers that could be ahead: leave staleness out")


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
