"""Comparison of several methods at equal cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from threading import Event, Lock
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from . import plots
from ._checks import integer
from ._threads import in_threads, one_thread, threads
from .core.losses import LOSSES
from .core.methods import METHODS, check_fit, fits
from .core.proximal import is_mean
from .data import AgentData
from .engines.cluster import Cluster, check_cluster, check_importable
from .engines.conditions import Conditions
from .engines.run import Run
from .engines.simulator import COLUMNS, Observer, observers_of, simulate
from .errors import MismatchError, ParameterError
from .evaluation import Evaluator
from .graphs import Graph, complete
from .problem import Problem
from .problem.baselines import Baseline, resolve_method

#: Columns that a comparison adds to those of a trace.
SCORES = ("accuracy", "rmse", "worst_tenth", "gain")
RESERVED_COLUMNS = ("method", "seed", "point", "gap", "certificate", *SCORES, "value of the problem")


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of :func:`coterie.compare`.

    Attributes
    ----------
    problem : Problem
        The problem that defines the objective of all models.
    table : DataFrame
        One row for each observation of each run: method, seed, point (number of earlier observations), wakes, time,
        vectors, bytes, value (the objective), gap (its relative distance to the optimum), accuracy or rmse on test
        rows, worst_tenth and gain (as in :class:`coterie.studies.Evaluation`) if there are test rows, and the values of
        observers.
    optimum : dict
        The corresponding values at the exact optimum: value, accuracy or rmse, and values of observers. Empty where the
        optimum is not known: for a model that is not linear, or with parameters that are not tied.
    runs : dict
        A :class:`coterie.Run` for each (method, seed).
    unit : str
        The axis of cost: "wakes", "vectors" or "bytes".
    score : str or None
        "accuracy" or "rmse", if there are test rows.
    """

    problem: Problem
    table: pd.DataFrame
    optimum: dict[str, float]
    runs: dict[tuple[str, int], Run] = field(repr=False)
    unit: str
    score: str | None

    @property
    def summary(self) -> pd.DataFrame:
        """Means over seeds at the end of each run, one row for each method.

        Examples
        --------
        >>> import coterie as ct
        >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
        >>> ct.compare(["local", "propagation"], problem, vectors=60).summary.index.tolist()
        ['local', 'propagation']
        """
        ends = self.table.groupby(["method", "seed"], sort=False).last()
        return ends.groupby("method", sort=False).mean().drop(columns="point")

    def figure(self, gap: bool = False) -> Figure:
        """Plot objective, and score on test rows if there are any, against cost; the exact optimum is a dashed line.

        Parameters
        ----------
        gap : bool
            As in :func:`coterie.plots.comparison`.

        Returns
        -------
        Figure

        Examples
        --------
        >>> import coterie as ct
        >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
        >>> figure = ct.compare(["cd", "propagation"], problem, vectors=60).figure()
        >>> figure.axes[0].get_xlabel()
        'vectors sent'
        """
        return plots.comparison(self.table, self.unit, self.optimum, self.score, gap)

    def __repr__(self) -> str:
        shown = self.summary[[name for name in self.summary if name != "time"]]
        exact = ", ".join(f"{name} {number:.6g}" for name, number in self.optimum.items()) or "not known"
        return f"Comparison on {self.problem!r}, by {self.unit}\n{shown.to_string()}\nexact optimum: {exact}"


def compare(
    methods: Iterable[Any] | Mapping[str, Any],
    problem: Problem,
    *,
    wakes: int | None = None,
    vectors: int | None = None,
    bytes: int | None = None,
    points: int = 50,
    seeds: Sequence[int] = (0,),
    test: AgentData | None = None,
    observe: Observer | Mapping[str, Observer] | None = None,
    start: Any = None,
    conditions: Conditions | None = None,
    choice: Any = "uniform",
    progress: Callable[[int, int], None] | None = None,
    n_jobs: int | None = None,
    engine: Cluster | None = None,
) -> Comparison:
    """Run several methods to equal cost, and compare their results.

    Parameters
    ----------
    methods : iterable, or mapping of labels
        Methods and baselines, as values or names. A pair (method, Problem) runs on a problem of its own, such as
        propagation of local models; its models are still judged by ``problem``. The pair may have a
        ``Problem.federated`` of the same agents: ``(ct.federated.FedAvg(local), ct.Problem.federated(data, model))``.
        The server's model is not judged.
    problem : Problem
    wakes, vectors, bytes : int
        The cost of each run, on one axis: give exactly one of these.
    points : int
        Number of observations of each run, in addition to the first.
    seeds : sequence of int
        One run of each method for each seed.
    test : AgentData, optional
        Test rows of the same agents. Adds the mean over agents of the accuracy (labels -1 and +1) or of the root mean
        squared error, the mean of the worst tenth of the agents, and the gain over learning alone.
    observe : callable, or mapping of names to callables, optional
        Further functions of Theta, as in :func:`coterie.simulate`.
    start, conditions, choice
        As in :func:`coterie.simulate`.
    progress : callable, optional
        Called repeatedly with (cost so far, cost of all runs), by one thread at a time.
    n_jobs : int, optional
        Number of runs at a time, each in a thread. Default: one for each core. The results do not depend on it.
    engine : Cluster, optional
        Ray cluster whose tasks are the runs. The problem is sent once; the result is the same. Unlike in
        :func:`coterie.simulate`, where one run is distributed over shards, each run is in one process.

    Returns
    -------
    Comparison

    Examples
    --------
    >>> import coterie as ct
    >>> task = ct.datasets.linear_classification(n=50, p=20, seed=0)
    >>> problem = ct.Problem.personalized(task.train, task.graph)
    >>> result = ct.compare(["local", "global", "cd", "djam"], problem, vectors=20_000, test=task.test)
    >>> result.summary["accuracy"].round(2).to_dict()
    {'local': 0.83, 'global': 0.5, 'cd': 0.92, 'djam': 0.92}
    >>> bool(result.summary["gap"]["djam"] < 0.01)
    True
    """
    if not isinstance(problem, Problem):
        raise ParameterError(f"compare needs a Problem; found {type(problem).__name__}")
    unit, budget = _axis(wakes=wakes, vectors=vectors, bytes=bytes)
    integer("points", points)
    if not isinstance(seeds, Sequence | range) or not len(seeds) or len(set(seeds)) < len(seeds):
        raise ParameterError(f"seeds={seeds!r} must be a list of different seeds")
    entrants = _entrants(methods, problem)
    threads(n_jobs)  # refuses an invalid number of threads before any work
    check_cluster(engine, n_jobs=n_jobs)
    if engine is not None:
        check_importable(*((method, posed.loss) for method, posed in entrants.values()))
    evaluator = None if test is None else Evaluator(problem, test)
    observers = {} if evaluator is None else dict(evaluator.observers())
    observers |= observers_of(observe, COLUMNS + RESERVED_COLUMNS)
    observers["value of the problem"] = problem.value  # a method may run on a problem of its own
    optimum = {}
    if problem.has_optimum:
        exact = problem.solve()
        optimum = {name: float(observer(exact)) for name, observer in observers.items()}
        optimum = {"value": optimum.pop("value of the problem"), **optimum}

    turns = [
        (label, method, posed, seed)
        for label, (method, posed) in entrants.items()
        for seed in (seeds[:1] if isinstance(method, Baseline) else seeds)
    ]
    settings = {"start": start, "conditions": conditions, "choice": choice, "every": max(1, budget // int(points))}
    settings["keep_state"] = False  # saves memory: the runs are not continued
    runner = _Runner(problem, turns, settings | {"observe": observers, unit: budget})

    def tell(now: int) -> None:
        if progress is not None:
            progress(now, len(turns) * budget)

    found = (
        _on_cluster(engine, runner, tell, budget) if engine is not None else _in_threads(runner, n_jobs, tell, budget)
    )

    tables, runs = [], {}
    for (label, _, _, seed), run in zip(turns, found, strict=True):
        trace = run.trace.assign(value=run.trace["value of the problem"]).drop(columns="value of the problem")
        trace = trace.rename(columns={"gap": "certificate"})  # the trace's gap is a bound, and the one below is exact
        trace.insert(0, "method", label)
        trace.insert(1, "seed", seed)
        trace.insert(2, "point", np.arange(len(trace)))
        best = optimum.get("value", np.nan)
        gap = (trace["value"] - best) / max(abs(best), 1e-300)
        trace.insert(trace.columns.get_loc("value") + 1, "gap", gap)
        tables.append(trace)
        runs[label, seed] = run
    score = None if evaluator is None else evaluator.name
    return Comparison(problem, pd.concat(tables, ignore_index=True), optimum, runs, unit, score)


def _serves(posed: Problem, problem: Problem) -> bool:
    """Return whether `posed` has the agents of `problem`, preceded by a server."""
    return posed.name == "federated" and posed.members[1:] == problem.members


@dataclass(frozen=True, eq=False)
class _OfClients:
    """An observer of the clients' models only, where the first model is the server's."""

    observer: Observer

    def __call__(self, theta: np.ndarray) -> float:
        return self.observer(np.ascontiguousarray(theta[1:]))


@dataclass(frozen=True, eq=False)
class _Runner:
    """The runs of a comparison, by number; can be sent to other processes."""

    problem: Problem  # judges all models
    turns: list[tuple[str, Any, Problem, Any]]  # label, method, problem, seed
    settings: dict[str, Any]  # common arguments of simulate

    def run(self, k: int, **more: Any) -> Run:
        """Do one of the runs."""
        _, method, posed, seed = self.turns[k]
        settings = self.settings
        if _serves(posed, self.problem):
            observe = {name: _OfClients(observer) for name, observer in settings["observe"].items()}
            settings = settings | {"observe": observe}
        return simulate(posed, method, seed=seed, **settings, **more)

    def __call__(self, k: int) -> tuple[Run, Graph | None]:
        """Do one run in another process; return it without its problem, and the graph if one was learned."""
        with one_thread():
            run = self.run(k, n_jobs=1)
        left_out: Any = None
        return replace(run, problem=left_out), None if run.problem is self.turns[k][2] else run.graph

    def name(self, k: int) -> str:
        """Name a run in an error."""
        label, _, _, seed = self.turns[k]
        return f"{label}, seed {seed}"


def _in_threads(runner: _Runner, n_jobs: int | None, tell: Callable[[int], None], budget: int) -> list[Run]:
    done, one_at_a_time, stop = [0] * len(runner.turns), Lock(), Event()

    def count(k: int, now: int) -> None:
        if stop.is_set():  # another run has failed, or was interrupted
            raise KeyboardInterrupt
        with one_at_a_time:
            done[k] = now
            tell(sum(done))

    def take(k: int) -> Run:
        jobs = n_jobs if len(runner.turns) == 1 else 1  # threads are shared by runs, not inside one
        run = runner.run(k, n_jobs=jobs, progress=lambda now, _total: count(k, now))
        done[k] = budget
        return run

    with one_thread():  # all cores are used by runs, and none are left for a BLAS
        return in_threads(take, range(len(runner.turns)), n_jobs, stop)


def _on_cluster(engine: Cluster, runner: _Runner, tell: Callable[[int], None], budget: int) -> list[Run]:
    numbers = range(len(runner.turns))
    with (
        engine.connect() as ray,
        closing(engine.map(ray, runner, numbers, lambda now, _total: tell(now * budget), runner.name)) as found,
    ):
        return [
            replace(run, problem=posed if graph is None else posed.on(graph=graph))
            for (run, graph), (_, _, posed, _) in zip(found, runner.turns, strict=True)
        ]


def fitting() -> pd.DataFrame:
    """Return which method solves which objective with which loss, found by asking every method; without boosting.

    Returns
    -------
    DataFrame
        Rows (objective, loss), and a column for each method: "yes", "with a ridge", or "no". For the reason of a "no",
        see the :class:`~coterie.errors.MismatchError` of the method.

    Examples
    --------
    >>> fitting().loc["personalized"].loc["hinge"].to_dict()
    {'cd': 'no', 'propagation': 'no', 'admm': 'yes', 'djam': 'with a ridge'}
    """
    rows, graph = {}, complete(2)
    for objective in ("propagation", "collaborative", "personalized", "separate"):
        for name, loss in LOSSES.items():
            if loss.pooled or (objective == "propagation" and not is_mean(loss)):
                continue  # its examples are models
            data = AgentData([[1.0], [2.0]], None if loss.unlabelled else [1.0, -1.0], agents=[0, 1])
            posed = {"yes": Problem.propagation(data.X, graph)}
            if objective != "propagation":
                ridges, pose = {"yes": 0.0, "with a ridge": 0.1}, getattr(Problem, objective)
                posed = {word: pose(data, graph, loss, ridge=ridge) for word, ridge in ridges.items()}
            rows[objective, name] = {
                method: next((word for word, problem in posed.items() if fits(rule, problem)), "no")
                for method, rule in METHODS.items()
                if not rule.on_balls and rule.minimises
            }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["objective", "loss"])


def _axis(**units: Any) -> tuple[str, int]:
    given = {name: amount for name, amount in units.items() if amount is not None}
    if len(given) != 1:
        raise ParameterError("give exactly one of wakes=..., vectors=... or bytes=..., the cost of each run")
    [(unit, amount)] = given.items()
    return unit, integer(unit, amount)


def _entrants(methods: Any, problem: Problem) -> dict[str, tuple[Any, Problem]]:
    """Return the methods with the problems they run on, all checked before any work starts."""
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        raise ParameterError(f"methods must be a list of methods, or a mapping of labels to them; found {methods!r}")
    named = methods.items() if isinstance(methods, Mapping) else [(None, entrant) for entrant in methods]
    entrants: dict[str, tuple[Any, Problem]] = {}
    for label, entrant in named:
        paired = type(entrant) is tuple and len(entrant) == 2 and isinstance(entrant[1], Problem)
        given, posed = entrant if paired else (entrant, problem)
        method = resolve_method(given)
        if (posed.members != problem.members and not _serves(posed, problem)) or posed.p != problem.p:
            raise MismatchError(
                f"{given!r} comes with a problem of other agents, or other features: all problems must have the same, "
                "except for the server that Problem.federated adds"
            )
        if not isinstance(method, Baseline):
            check_fit(method, posed)
        name = str(label) if label is not None else given if isinstance(given, str) else repr(given)
        if name in entrants:
            raise ParameterError(f"two methods are called {name!r}: pass a mapping of labels to methods")
        entrants[name] = method, posed
    if not entrants:
        raise ParameterError("there is no method to compare")
    return entrants
