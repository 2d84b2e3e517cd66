"""Relationship learning: DMTRL and its baselines in one function."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from .. import _checks
from .._threads import one_thread
from ..core.losses import resolve_loss
from ..data import AgentData
from ..engines.cluster import Cluster, check_cluster
from ..errors import ParameterError
from .actors import RemoteTraining, remote_training
from .alternation import Alternation
from .certificate import Certificate
from .checkpoints import Checkpoints
from .covariance import (
    BOUNDS,
    Covariance,
    best_covariance,
    checked_covariance,
    joint_penalty,
    penalty,
    penalty_of_weights,
    unrelated,
)
from .exact import exact_weights
from .results import Relationship
from .server import State
from .sources import Tasks, tasks_of
from .spectrum import singular_values
from .training import Options, Result, Training, relative_gap
from .worker import Worker
from .workers import local_workers

Progress = Callable[[int, float], None]

#: Names of the methods.
SOLVERS = ("dmtrl", "single-task", "exact", "sdca")
#: Largest number of alternations of the exact method, after which the ridge of the Omega-step is negligible.
MAX_EXACT_ALTERNATIONS = 300
#: Seconds between two calls of ``progress``.
PROGRESS_SECONDS = 0.2
#: Default relative tolerances for a given and for a learned covariance.
GIVEN_TOL, LEARNED_TOL = 1e-7, 5e-5


def relationship(
    data: Any,
    loss: Any = "logistic",
    lam: float = 1e-2,
    alternations: int = 5000,
    rounds: int | None = None,
    local_steps: int | None = None,
    covariance: ArrayLike | tuple[ArrayLike, ArrayLike, float] | Covariance | None = None,
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
    target: str | None = "y",
    agents: str | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Relationship:
    """Learn the weights of many tasks and the covariance of the tasks: DMTRL.

    Minimises ``sum_i 1/n_i sum_j l(w_i . x_ij, y_ij) + lam/2 tr(W' Sigma^-1 W)`` over the weights W, (tasks, features),
    and, unless `covariance` is given, over the covariance Sigma of the tasks, positive semidefinite of trace one. At
    the best covariance the penalty is ``lam/2 |W|_*^2``.

    Workers hold the rows of the tasks and solve their parts of the dual problem; a server holds the covariance and
    sends weights to the workers. Messages only contain ``w_i`` and changes of ``b_i``, vectors of d numbers.

    Parameters
    ----------
    data : AgentData; or a path, a mapping, a Ray Dataset, a DataFrame or a Source
        Every agent is a task. In an AgentData, class labels are -1 and +1. All other types are sources of rows, see
        :class:`coterie.data.Source`: two classes of any kind are encoded as -1 and +1, in sorted order; text and
        missing values are encoded as numbers, and other features stay unchanged. On a cluster, workers load the rows of
        their tasks.
    loss : str or rule
        "logistic", "hinge", "smooth-hinge", "squared", "huber", or a user-defined loss.
    lam : float
        Weight of the penalty.
    alternations : int
        Largest number of fits of the covariance to the weights.
    rounds : int, optional
        Largest number of rounds of communication with the same covariance. Default: 1 for a learned covariance, the
        most reliable choice; 10,000 for a given covariance.
    local_steps : int, optional
        H of DMTRL, Algorithm 2: number of local steps of each task in a round. Default: ``passes`` times the number of
        rows of the task.
    covariance : (m, m) array_like, or (Q, s, c), optional
        Use this covariance instead of learning one. Tasks are in the order of ``data.members``, or of the mapping.
        Factors Q (m, r), s (r,) and a number c stand for ``Q diag(s) Q' + c I``; they suit many tasks, since the m x m
        matrix is never made.
    seed : int
        Seed of the order in which workers visit their rows. Results do not depend on the number of workers, bit for
        bit.
    engine : Cluster, optional
        Run on a Ray cluster. Default: in this process.
    method : {"dmtrl", "single-task", "exact", "sdca"}
        "dmtrl": the published method. "single-task": every task alone, with the penalty ``lam/2 |w_i|^2``. "exact":
        all rows in one process, with weights to machine precision (Newton, interior point) for each of at most 300
        covariances; for a few thousand unknowns, and with a loose bound if the loss has a kink. "sdca": all rows in one
        process, task after task, each with weights that include all previous steps.
    passes : float
        Number of local steps in a round for each row of a task.
    tol : float, optional
        Stop when the duality gap is at most `tol` times the objective. Default: 1e-7 for a given covariance, 5e-5 for a
        learned one.
    rho : {"eigenvalue", "lemma10"} or float
        Factor of the curvature that makes simultaneous steps safe: the largest eigenvalue of the correlation matrix,
        the larger bound of DMTRL, Lemma 10, or a number.
    eta : float
        Fraction of the workers' steps that is applied, in (0, 1].
    momentum : bool
        Whether rounds and Omega-steps use momentum. Without momentum, rounds are those of Algorithm 1.
    staleness : int, optional
        Use asynchronous rounds, in which a worker may be at most `staleness` rounds ahead of the slowest. Default:
        synchronous rounds.
    target : str
        Column of the labels, if rows are tables.
    agents : str, optional
        Column, or hive partition, with the task of each row, if rows are tables. Default: the only partition, or else
        the name of the file.
    resume : path, optional
        Folder for checkpoints, written about every ten seconds. If the folder holds a checkpoint of an interrupted run,
        the run continues from there; with synchronous rounds, the result is the same, bit for bit, as without the
        interruption. The same call can be repeated until it succeeds, and the folder is then removed. On a cluster, use
        a folder that all machines can access; a worker that does not find its checkpoint continues from the weights of
        the last checkpoint.
    progress : callable, optional
        Called now and then with the number of rounds done and the relative duality gap.

    Returns
    -------
    Relationship

    Examples
    --------
    >>> import coterie as ct
    >>> task = ct.datasets.related_tasks(n=6, p=5, rows=60, seed=0)
    >>> found = ct.relationship(task.train, "logistic", lam=0.01)
    >>> found.weights.shape, found.covariance.shape, found.converged
    ((6, 5), (6, 6), True)
    >>> bool(found.trace["gap"].min() >= 0)
    True
    """
    check_parameters(dict(locals()))
    loss = resolve_loss(loss)
    if covariance is not None and method == "single-task":
        raise ParameterError('method="single-task" has no covariance: leave it out')
    with ExitStack() as until:
        spread: dict[str, Any] = {}
        if engine is not None:
            ray = until.enter_context(engine.connect())
            spread = {"map": partial(engine.map, ray), "put": ray.put}
        tasks = tasks_of(data, loss, target, agents, **spread)
        members = tasks.members
        m = len(members)
        if m == 1 and covariance is None:
            covariance = [[1.0]]  # a single task has no relationship to learn
        given = None if covariance is None else checked_covariance(covariance, members)
        if method == "single-task":
            given = unrelated(m).scaled(m)
        tol = (LEARNED_TOL if given is None else GIVEN_TOL) if tol is None else float(tol)
        thorough = rounds is not None
        if rounds is None:
            # Late answers belong to the covariance of their request, so the covariance must not change too often.
            rounds = 10_000 if given is not None else 1 if staleness is None else staleness + 3
        kind = "sequential" if method == "sdca" else "synchronous" if staleness is None else "asynchronous"
        rho = rho if isinstance(rho, str) else float(rho)
        server = {"kind": kind, "staleness": int(staleness or 0), "rho": rho, "eta": float(eta)}
        server["momentum"] = bool(momentum)
        options = Options(m, float(lam), given, int(alternations), int(rounds), thorough, tol, bool(momentum), server)
        steps = None if local_steps is None else int(local_steps)
        work: dict[str, Any] = {"passes": float(passes), "local_steps": steps, "seed": int(seed)}
        if method == "exact":
            result = _exactly(tasks.load(np.arange(m)), loss, options, progress)
        else:
            about = work | server | {"method": method, "lam": float(lam), "loss": repr(loss)}
            about["cluster"] = engine is not None
            checkpoints = Checkpoints(resume, about, members, given)
            training: Training | RemoteTraining
            if engine is not None:
                training = until.enter_context(remote_training(engine, tasks, loss, options, work, checkpoints))
            else:
                training = _training_here(tasks, loss, options, work, checkpoints)
            result = _trained(training, progress, checkpoints if engine is not None or resume is not None else None)
            checkpoints.clear()
    return _relationship(result, members, method, options, loss)


def _relationship(result: Result, members: Any, method: str, options: Options, loss: Any) -> Relationship:
    found = result._asdict()
    covariance, notes = found.pop("covariance"), result.notes
    if method == "single-task":
        covariance = unrelated(len(covariance))
    if not result.converged:
        gap = (result.value - result.bound) / max(abs(result.value), 1e-300)
        advice = "; raise alternations, rounds or passes, or scale features that differ much in size"
        more = "" if method == "exact" else advice
        near = f"within {options.tol:g} of its optimum: it may be {gap:.1e} above"
        notes = (*notes, f"stopped before the objective was {near}{more}")
    trace = pd.DataFrame(result.trace, columns=State._fields)
    found |= {"weights": result.weights.copy(), "trace": trace, "notes": notes}
    return Relationship(
        _covariance=covariance, members=tuple(members), method=method, lam=options.lam, loss=loss, **found
    )


@one_thread()
def _exactly(data: AgentData, loss: Any, options: Options, progress: Progress | None) -> Result:
    """Alternate between weights to machine precision (Newton or interior point) and Omega-steps."""
    worker = Worker(data, loss, range(data.n), passes=1.0, local_steps=None, seed=0)
    smooth = np.isfinite(loss.smoothness)
    best, value, bound = np.zeros((data.n, data.p)), math.inf, -math.inf
    certificate = Certificate(options.lam)
    budget = min(options.alternations, MAX_EXACT_ALTERNATIONS)
    steps, covariance, trace = Alternation(budget, exact=True, momentum=options.momentum), options.start, []
    for k in range(budget):
        weights = exact_weights(data, loss, options.lam, covariance)
        # A dual variable is minus the slope of the loss; at a kink, this is one of many possible values.
        worker.set_dual_of(weights)
        losses, conjugates, _ = worker.evaluate(weights).sum(axis=0)
        vectors = worker.state().vectors
        if options.covariance is not None:
            value = losses + penalty_of_weights(weights, covariance, options.lam)
            bound = -penalty(vectors, covariance, options.lam) - conjugates if smooth else value
            best = weights
        else:
            sizes = singular_values(weights)
            reached = losses + joint_penalty(sizes, options.lam)
            best, value = (weights, reached) if reached < value else (best, value)
            certificate.add(vectors, float(conjugates))
            bound = max(bound, certificate.joint)
        gap = relative_gap(value, bound)
        trace.append(State(k, k, value, min(bound, value), max(0.0, value - bound), 0))
        if progress is not None:
            progress(k + 1, gap)
        if options.covariance is not None or gap <= options.tol:
            break
        loss_now, bound_with = float(losses), certificate.smoothed
        covariance = steps.step(weights, sizes, loss_now, bound_with, lam=options.lam, gap=min(1.0, gap), rounds=1)
    fitted = best_covariance(best) if options.covariance is None else options.start
    converged = options.covariance is not None or gap <= options.tol
    notes = () if smooth or options.covariance is not None else ("the bound is loose for a loss with a kink",)
    return Result(best, fitted, trace, float(value), float(bound), bool(converged), k + 1, k, 0, notes)


def _training_here(
    tasks: Tasks, loss: Any, options: Options, work: dict[str, Any], checkpoints: Checkpoints
) -> Training:
    """Return training in this process, from the last checkpoint if there is one."""
    kind, data = options.server["kind"], tasks.load(np.arange(options.tasks))
    single, late = kind != "synchronous", kind == "asynchronous"
    workers = local_workers(data, loss, one_per_task=single, asynchronous=late, files=checkpoints.parts(), **work)
    if checkpoints.last is not None:
        workers.restore(checkpoints.number)
    return Training(workers, options, checkpoints.last)


def _trained(training: Training | RemoteTraining, progress: Progress | None, checkpoints: Checkpoints | None) -> Result:
    """Train to the end, report progress, and make checkpoints."""
    done = False
    while not done:
        rounds, gap, done = training.advance(PROGRESS_SECONDS)
        if progress is not None:
            progress(rounds, gap)
        if checkpoints is not None and not done:
            checkpoints.keep_if_due(training)
    return training.result()


def check_parameters(given: Mapping[str, Any]) -> None:
    """Refuse invalid arguments of :func:`relationship`; arguments that are not given have their defaults."""
    given = {name: each.default for name, each in inspect.signature(relationship).parameters.items()} | dict(given)
    for name, least in {"alternations": 1, "rounds": 1, "local_steps": 1, "staleness": 0, "seed": 0}.items():
        if given[name] is not None or name in ("alternations", "seed"):
            _checks.integer(name, given[name], least)
    for name in ("lam", "passes", "tol"):
        if given[name] is not None or name != "tol":
            _checks.positive(name, given[name])
    eta = _checks.within("eta", given["eta"], 0, 1, "(]")
    rho = given["rho"]
    if isinstance(rho, str):
        _checks.choice("rho", rho, BOUNDS)
    else:
        _checks.positive("rho", rho)
    method, engine, staleness = _checks.choice("method", given["method"], SOLVERS), given["engine"], given["staleness"]
    check_cluster(engine)
    if eta < 1 and (method in ("exact", "sdca") or staleness is not None):
        raise ParameterError("eta is for workers that take their steps at the same time: leave it out here")
    if method == "exact" and given["resume"] is not None:
        raise ParameterError('method="exact" makes no checkpoints: leave resume out')
    if method in ("exact", "sdca"):
        if engine is not None:
            raise ParameterError(f"method={method!r} has all rows in one place: leave engine out")
        if staleness is not None:
            raise ParameterError(f"method={method!r} has no workers that could be ahead: leave staleness out")
