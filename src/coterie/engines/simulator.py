"""Simulate a network of agents with Poisson clocks, exact accounts, and any observers."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, cast

import numpy as np
import pandas as pd

from .._checks import flag, floats
from .._digest import digest_of
from ..core import loop
from ..core.methods import check_fit
from ..errors import MismatchError, ParameterError
from ..problem import Problem, ShardedProblem
from ..problem.baselines import Baseline, resolve_method
from .drivers import Asked, Driver, Immediate, Synchronous, Timed, options_of, seeds
from .run import CLAIM, Run
from .shards import Shards, check_engine
from .state import MAX_KEPT_BYTES, State
from .watching import Notifier, watchers_of, watching

Observer = Callable[[np.ndarray], float]
#: Beginning of the note that noise was simulated.
SIMULATED = "simulated noise"
Changes = Sequence[tuple[int, Problem]]

#: Columns of a trace, whose names observers cannot use.
COLUMNS = ("wakes", "time", "value", "vectors", "bytes", "gap", "neighbours", "honest_loss", "disagreement")
#: Number of wakes per agent within which some agent must have sent a message.
MAX_SILENT_WAKES_PER_AGENT = 1000
#: Largest number of steps in one call of a kernel.
MAX_STEPS_PER_CALL = 1 << 20


def simulate(
    problem: Problem | ShardedProblem,
    method: Any,
    wakes: int | None = None,
    seed: Any = 0,
    start: Any = None,
    *,
    rounds: int | None = None,
    vectors: int | None = None,
    bytes: int | None = None,
    observe: Observer | Mapping[str, Observer] | None = None,
    every: int | None = None,
    until: Callable[[np.ndarray], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
    changes: Changes = (),
    keep_state: bool | None = None,
    watch: Any = None,
    **options: Any,
) -> Run:
    """Run a method on the agents of a problem, and observe the run.

    Every agent wakes at the times of its own Poisson clock of rate 1. Before the first wake, neighbours exchange their
    models once, which the account includes.

    Give the length of the run in one of four units: ``wakes``, ``rounds``, ``vectors`` or ``bytes``; ``every``,
    ``changes`` and ``progress`` use this unit. A run that continues another one (``start=run``) is longer by this
    length.

    Parameters
    ----------
    problem : Problem or ShardedProblem
        A ShardedProblem is built in parts on the shards of ``engine``; without an engine, as a whole in this process.
    method : rule or str
        Such as ``ct.CoordinateDescent()`` or ``"cd"``. A baseline (``ct.baselines.GlobalModel()``, ``"global"``, ...)
        is computed at once, without messages.
    wakes : int, optional
        Total number of wakes of all agents. Optional if ``events`` are given, and for a private method
        whose budget is split over a number of wakes of each agent: then every agent wakes that often, in random order.
    seed : int
        One seed gives the same bits on one machine, whatever ``every`` and ``observe`` are.
    start : "local", "zeros", (n, p) array_like, Run or WarmStart, optional
        Models before the first wake: trained locally, the default; zeros, the default of a private method; or given.
        The budget of a :class:`coterie.privacy.WarmStart` is added to that of a private method. A run continues where
        it stopped, exactly as if it had not, if it is a run of this method on this problem and has kept its state;
        trace, account and random numbers continue, too, whatever ``seed`` is. Otherwise only its models are used, and
        ``notes`` say why. To begin anew from its models, pass ``run.theta``.
    rounds : int, optional
        Number of synchronous rounds, in which all agents act at once, for a method that supports them.
    vectors, bytes : int, optional
        Run until this many vectors of p numbers, or bytes, have been sent; the wake that reaches this number is the
        last.
    observe : callable, or mapping of names to callables, optional
        Functions of Theta (n, p, read-only) whose values become columns of the trace.
    every : int, optional
        Distance between two rows of the trace. Default: only a first and a last row.
    until : callable, optional
        Function of Theta, called at every row of the trace: the run ends early when it returns True.
    progress : callable, optional
        Called regularly with (amount done, total amount).
    changes : sequence of (moment, Problem)
        Changes of the problem during the run: new examples, agents that join or leave. Each problem has the same agents
        in the same order; see :meth:`coterie.Problem.on`.
    keep_state : bool, optional
        Whether the run keeps the state needed to continue it later: all that agents know of each other, messages in
        transit, random generators. Default: if the state is at most 64 MB. Not supported on a cluster.
    watch : observer, or sequence of them, optional
        Receives every row of the trace, and the end of the run: see :mod:`coterie.observers`.
    **options
        Options of some kinds of runs, listed below; other runs raise an error.

    Other Parameters
    ----------------
    events : (T,) or (T, 2) array_like of int, optional
        Agent numbers of the wakes, in place of Poisson clocks, to replay a schedule. A second column holds the
        neighbour that each agent exchanges models with (-1 for an agent without neighbours).
    conditions : Conditions, optional
        Latency, loss, duplication, reordering, outages, stragglers, partial participation; with ``rounds``, only
        participation. Default: messages arrive at once, and all agents take part.
    capacity : int, optional
        Largest number of messages in transit. Default: unlimited.
    choice : "uniform", "weight" or (n, n) array or sparse matrix
        Probability with which agent i chooses neighbour j for an exchange (pi_i^j in MP): equal, proportional to
        the weights, or row i of a matrix.
    n_jobs : int, optional
        Number of threads that run wakes which do not touch each other; the result does not depend on it. Default:
        one for each core from 10,000 agents on, otherwise one; -1 for all cores. Learned graphs, ``conditions`` and
        ``rounds`` use one thread, a shard of an ``engine`` as many as it has CPUs.
    lock_free : bool
        Let threads run all wakes in parallel, also those that touch each other, without reproducible results: for
        dense graphs, where few wakes are independent. Refused for a private method, whose noise must follow its plan.
    engine : Cluster, optional
        Run on a cluster, a block of agents on each of its shards: messages between shards arrive up to n
        wakes late, about one wake of each agent. Seed and number of shards determine the result. After the last wake
        all messages in transit are delivered, and answers to these, unless ``until`` ends the run. Needs ``wakes`` and
        a method that keeps the graph; ``events``, ``conditions``, ``changes`` and ``capacity`` are not supported.
        Without a length, a private method runs for as many wakes as its budget is split over, by Poisson clocks.
        Default: run in this process.
    fetch : bool or callable, optional
        On a cluster: whether the models of all agents are copied to this process, as ``run.theta``. Default: True for a
        Problem. Models of a ShardedProblem stay on the shards, so that this process needs little memory, unless
        ``observe`` or ``until`` need models. A function ``fetch(first, theta)`` is called on every shard with the
        number of its first agent and its agents' models, to write or evaluate them there; its results
        are listed in ``run.fetched``.

    Returns
    -------
    Run
        Its ``problem`` is the final one.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation(np.eye(3), ct.graphs.ring(3), alpha=0.5)
    >>> run = ct.simulate(problem, "cd", events=[0, 1, 2, 0], observe=np.max, every=2)
    >>> run.trace[["wakes", "vectors", "max"]].round(3).values.tolist()
    [[0.0, 6.0, 1.0], [2.0, 10.0, 1.0], [4.0, 14.0, 0.641]]
    >>> run.vectors  # six in the initial exchange, two in each wake
    14

    Agent 2 leaves after 100 wakes: the others agree without it.

    >>> alone = problem.on(graph=problem.graph.without([2]))
    >>> run = ct.simulate(problem, "propagation", wakes=400, changes=[(100, alone)])
    >>> bool(abs(run.theta - alone.solve()).max() < 1e-9)
    True

    Half of the wakes now, and the others later:

    >>> half = ct.simulate(problem, "cd", wakes=50, seed=3)
    >>> both = ct.simulate(problem, "cd", wakes=50, start=half)
    >>> whole = ct.simulate(problem, "cd", wakes=100, seed=3)
    >>> bool((both.theta == whole.theta).all()), both.vectors == whole.vectors
    (True, True)
    """
    if not isinstance(problem, Problem | ShardedProblem):
        raise ParameterError(f"simulate needs a Problem; found {type(problem).__name__}")
    method = resolve_method(method)
    observers, watchers, given = observers_of(observe), watchers_of(watch), options_of(options)
    if keep_state is not None:
        flag("keep_state", keep_state)
    if not isinstance(changes, Sequence):
        raise ParameterError(f"changes={changes!r} must be a list of (moment, Problem)")
    lengths = {"wakes": wakes, "rounds": rounds, "vectors": vectors, "bytes": bytes}
    kind: type[Driver] = Immediate if given.conditions is None else Timed
    if rounds is not None or given.engine is not None:
        kind = Synchronous if given.engine is None else Shards
    if kind is Shards:
        check_engine(method, problem, given, lengths | {"changes": list(changes) or None})
    elif isinstance(problem, ShardedProblem):
        problem = problem.whole()
    if isinstance(method, Baseline):
        with watching(watchers) as told:
            run = _computed(changes[-1][1] if len(changes) else cast(Problem, problem), method, observers)
            told.rows(run.trace.to_dict("records"))
            return told.end(run)
    kind.refuse(given, problem.n)
    often = method.privacy.wakes_per_agent
    if often is not None and given.events is None and all(length is None for length in lengths.values()):
        if kind is Immediate:
            # Every agent wakes as often as its budget allows: Poisson clocks, conditional on these numbers.
            given = given._replace(events=seeds(seed, 4)[3].permutation(np.repeat(np.arange(problem.n), often)))
        else:
            lengths["wakes"] = often * problem.n
    unit, total = _length(lengths, given.events)
    setting = digest_of(given.choice, given.conditions)
    old, why_not = _gone_on(start, problem, method, kind, setting)
    if old is not None:
        _check_going_on(cast(Run, start), old, method, seed, given.events, changes)
        seed = cast(Run, start).seed
    if not (until is None or callable(until)):
        raise ParameterError(f"until={until!r} must be a function of the models")
    if every is not None and not (isinstance(every, Integral) and every >= 1):
        raise ParameterError(f"every={every!r} must be a whole number of {unit}, at least 1")
    if method.edges.spare and not (isinstance(given.choice, str) and given.choice == "uniform"):
        raise ParameterError("choice is for a given graph: a learned graph chooses neighbours uniformly")
    stages = _stages(problem, method, changes, unit, total)
    models = _start(problem, method, start if old is None else start.published)
    asked = Asked(problem, method, unit, total, tuple(stages), models, seed, old)
    settings = kind.settings(asked, given)
    if method.privacy.plan is not None:
        _check_claim(asked, start, settings.get("schedule"))
    with watching(watchers) as told, kind(asked, **settings) as driver:
        if old is not None:
            driver.go_on(old)
        earlier = None if old is None else cast(Run, start)
        fetch = isinstance(problem, Problem) if given.fetch is None else given.fetch
        run = _watched(driver, asked, observers, every, until, progress, fetch, earlier, told)
        if kind is not Shards and keep_state is not False:
            state = driver.state(setting)
            run = replace(run, state=state if keep_state or state.size <= MAX_KEPT_BYTES else None)
        if run.plan is not None:
            run = _with_claim(run, start, old is not None)
        return told.end(replace(run, notes=(*run.notes, why_not)) if why_not else run)


def _watched(
    driver: Driver,
    asked: Asked,
    observers: Mapping[str, Observer],
    every: int | None,
    until: Callable[[np.ndarray], bool] | None,
    progress: Callable[[int, int], None] | None,
    fetch: bool | Callable[[int, np.ndarray], Any],
    earlier: Run | None,
    told: Notifier,
) -> Run:
    """Run a driver to its end, and record the trace; `earlier` is the run that this one continues."""
    unit, total, stages = asked.unit, asked.total, asked.stages

    def measured() -> int:
        return int(driver.done if unit in ("wakes", "rounds") else getattr(driver, unit))

    records: list[dict[str, Any]] = []

    def note() -> None:
        records.append(_record(driver, observers))
        told.rows(records[-1:])

    if earlier is None:
        note()
    seen = _moment(driver)
    first = 0 if earlier is None else measured()  # the length counts from here
    total += first

    def look() -> None:
        nonlocal seen
        if seen != _moment(driver):
            note()
            seen = _moment(driver)

    def turn() -> None:
        """Continue with the problem that is valid from now on."""
        look()
        driver.change(coming.pop(0)[1])
        note()

    coming = [(first + moment, problem) for moment, problem in stages[1:]]
    while coming and measured() >= coming[0][0]:
        turn()
    pace = driver.pace  # steps in one call
    longest = max(MAX_STEPS_PER_CALL, pace)
    bounded = unit in ("vectors", "bytes")
    quiet = 0  # steps since the last message was sent
    ended = until is not None and until(driver.theta)
    while measured() < total and not ended:
        mark = total if every is None else min(total, measured() + every - measured() % every)
        goal = min(mark, coming[0][0]) if coming else mark
        began, before = clock.perf_counter(), (driver.done, driver.account[loop.MESSAGES] if bounded else 0)
        steps = min(pace, goal - measured()) if unit in ("wakes", "rounds") else pace
        driver.advance(steps, driver.budget(unit, goal))
        took = clock.perf_counter() - began
        if took > 0.5:
            pace = max(1, pace // 2)
        elif took < 0.1 and driver.done - before[0] == steps == pace:
            pace = min(2 * pace, longest)
        if bounded:
            quiet = 0 if driver.account[loop.MESSAGES] > before[1] else quiet + driver.done - before[0]
        if quiet > MAX_SILENT_WAKES_PER_AGENT * stages[0][1].n:
            raise ParameterError(f"{unit}={total - first} cannot be reached: agents have stopped sending messages")
        if progress is not None:
            progress(min(measured(), total) - first, total - first)
        while coming and measured() >= coming[0][0]:
            turn()
        if measured() >= mark:
            look()
            ended = until is not None and until(driver.theta)
    here, liars = fetch is True, ", ".join(map(str, driver.method.inspection.liars))
    traces = ([] if earlier is None else [earlier.trace]) + ([pd.DataFrame(records)] if records else [])
    return Run(
        **{name: getattr(driver, name) for name in ("problem", "method", "wakes", "time", "vectors", "bytes")},
        theta=driver.final if here else cast(np.ndarray, None),
        trace=pd.concat(traces, ignore_index=True),
        messages=int(driver.account[loop.MESSAGES]),
        seed=asked.seed,
        tally=driver.account[loop.KINDS :].reshape(-1, 2).copy(),
        lost=int(driver.account[loop.LOST]),
        duplicated=int(driver.account[loop.DUPLICATED]),
        notes=(*_notes(driver.problem), *((f"agents {liars} lied: run.honest leaves them out",) if liars else ())),
        plan=driver.method.privacy.plan,
        published=driver.theta.copy() if here else None,
        population=driver.population if here else None,
        fetched=driver.call(fetch) if isinstance(driver, Shards) and callable(fetch) else (),
    )


def _gone_on(start: Any, problem: Any, method: Any, kind: type[Driver], setting: str) -> tuple[State | None, str]:
    """Return the state that a run continues from; or the reason why it begins with the given run's models."""
    if not isinstance(start, Run):
        return None, ""
    if start.state is None:
        why = "it kept no state (keep_state=True keeps it)"
    elif kind is Shards or not isinstance(problem, Problem):
        why = "runs on a cluster do not"
    else:
        why = start.state.reason_against(problem, method, kind.__name__, setting)
        if not why:
            return start.state, ""
    return None, f"begins with the models of the given run, and does not continue where it stopped: {why}"


def _check_going_on(run: Run, old: State, method: Any, seed: Any, events: Any, changes: Any) -> None:
    """Refuse options that contradict a run that continues another one."""
    if seed not in (0, run.seed):
        raise ParameterError(
            f"seed={seed!r}: the run given as start continues with the random numbers of its own seed, "
            f"{run.seed!r}; leave seed out, or begin anew from its models with start=run.theta"
        )
    if len(changes) and old.once:
        raise ParameterError(
            "changes=...: the run given as start has stored messages once for all neighbours, which cannot be "
            "carried over to other edges; begin anew from its models with start=run.theta"
        )
    if method.privacy.plan is not None and events is not None:
        raise ParameterError(
            "a private run that continues another cannot count earlier wakes of each agent by events: say wakes=..."
        )


def _check_claim(asked: Asked, start: Any, schedule: np.ndarray | None) -> None:
    """Refuse a run of a private method for which the claim would not hold, or which is longer than its plan."""
    problem, old = asked.problem, asked.old
    total = asked.total + (0 if old is None else int(old.numbers["done"]))
    if isinstance(start, str) and start == "local":
        raise ParameterError(
            'start="local": locally trained models would be sent as they are, in the initial exchange; leave start '
            "out, or pass a ct.privacy.warm_start(...)"
        )
    often = asked.method.privacy.wakes_per_agent
    if often is None:
        return
    if asked.unit == "wakes" and total > often * problem.n:
        raise ParameterError(
            f"wakes={total}: the budget was split over {often} wakes of each of {problem.n} agents, "
            f"{often * problem.n} in all; a method with wakes_per_agent={-(-total // problem.n)} has more noise in each"
        )
    if schedule is not None:
        count = np.bincount(schedule[0, :total], minlength=problem.n)
        if count.max(initial=0) > often:
            most = int(np.argmax(count))
            who = problem.members[most]
            raise ParameterError(f"events wake agent {who!r} {count[most]} times: the budget was split over {often}")


def _with_claim(run: Run, start: Any, goes_on: bool) -> Run:
    """Return a run with its claim; a run that continues another keeps that claim, since its plan covers both."""
    if goes_on:
        said = [note for note in start.notes if note.startswith((CLAIM, SIMULATED))]
        return replace(run, notes=(*run.notes, *said), epsilon=start.epsilon, delta=start.delta)
    plans = (run.plan, *getattr(start, "plans", ()))
    epsilon, delta = (sum(getattr(plan, name) for plan in plans) for name in ("epsilon", "delta"))
    given = start is not None and not isinstance(start, str) and not hasattr(start, "plans")
    but = ", but for the given initial models," if given else ""
    notes = (
        f"{CLAIM}{but} is ({epsilon:g}, {delta:g})-differentially private for each of its examples",
        f"{SIMULATED}: it was drawn from the seed, and whoever knows the seed can take it away",
    )
    return replace(run, notes=(*run.notes, *notes), epsilon=epsilon, delta=delta)


def _moment(driver: Driver) -> tuple[Any, ...]:
    """Return what distinguishes two rows of a trace."""
    return driver.wakes, driver.time, driver.vectors, driver.bytes


def _computed(problem: Problem, method: Any, observers: Mapping[str, Observer]) -> Run:
    """Return the run of a baseline, without a simulation."""
    theta = method.models(problem)
    record = {"wakes": 0, "time": 0.0, "value": problem.value(theta), "vectors": 0, "bytes": 0}
    record.update({name: _seen(name, observer(theta)) for name, observer in observers.items()})
    note = "computed in one place, from everybody's data: nothing was sent"
    return Run(problem, method, theta, pd.DataFrame([record]), 0, 0.0, 0, 0, 0, None, notes=(note, *_notes(problem)))


def _record(driver: Driver, observers: Mapping[str, Observer]) -> dict[str, Any]:
    measures = driver.measures()
    return {
        "wakes": driver.wakes,
        "time": driver.time,
        "value": measures.pop("value"),
        "vectors": driver.vectors,
        "bytes": driver.bytes,
        **measures,
        **{name: _seen(name, observer(driver.theta)) for name, observer in observers.items()},
    }


def _seen(name: str, value: Any) -> Any:
    if np.ndim(value) != 0:
        raise ParameterError(f"observer {name!r} gave an array of shape {np.shape(value)}: it must give one number")
    return value


def _start(problem: Problem | ShardedProblem, method: Any, start: Any) -> str | np.ndarray:
    """Return models before the first wake, checked; or a word for them."""
    if start is None:
        start = "local" if method.privacy.plan is None else "zeros"
    start = getattr(start, "theta", start)
    if isinstance(start, str):
        if start not in ("local", "zeros"):
            raise ParameterError(f'start={start!r} must be "local", "zeros", or an array of models')
        return start
    if isinstance(problem, Problem):
        return problem.checked(start)
    models = floats("models", start)
    if models.ndim != 2 or models.shape[0] != problem.n:  # the rest is checked on the shards
        raise ParameterError(f"models must have shape ({problem.n}, p), one row for each agent; found {models.shape}")
    return models


def _length(lengths: Mapping[str, Any], events: Any) -> tuple[str, int]:
    """Return the unit and the length of a run."""
    given = {name: amount for name, amount in lengths.items() if amount is not None}
    if events is not None:
        if set(given) - {"wakes"}:
            raise ParameterError(
                f"events determine the wakes and the end of the run: leave {next(iter(set(given) - {'wakes'}))} out"
            )
        given.setdefault("wakes", len(events))
    if len(given) != 1:
        raise ParameterError(
            "pass the length of the run: wakes=..., rounds=..., vectors=..., bytes=..., or events=..."
            + (f"; one of them, not {' and '.join(given)}" if given else "")
        )
    [(unit, amount)] = given.items()
    if not (isinstance(amount, Real) and 0 <= float(amount) < np.inf and float(amount).is_integer()):
        raise ParameterError(f"{unit}={amount!r} must be a whole number >= 0")
    if events is not None and float(amount) > len(events):
        raise ParameterError(f"wakes={amount} is more than the {len(events)} events given")
    return unit, int(float(amount))


def _kind(loss: Any) -> tuple[Any, ...]:
    """Return the key by which a kernel is compiled: the class of a loss, and of losses inside it."""
    return type(loss), *(_kind(part) for part in loss if isinstance(part, tuple))


def _stages(
    problem: Problem | ShardedProblem, method: Any, changes: Any, unit: str, total: int
) -> list[tuple[int, Problem]]:
    """Return all problems, each with the time from which it is valid."""
    stages = [(0, cast(Problem, problem))]
    if isinstance(problem, ShardedProblem):  # shards check whether the method fits
        return stages
    for change in changes:
        if not (isinstance(change, Sequence) and len(change) == 2 and isinstance(change[1], Problem)):
            raise ParameterError(f"a change must be (moment, Problem); found {change!r}")
        moment, changed = change
        if not (isinstance(moment, Integral) and stages[-1][0] <= int(moment) <= total):
            raise ParameterError(
                f"a change at {moment!r} {unit}: times must be whole numbers up to {total}, in ascending order"
            )
        same = changed.members == problem.members and changed.p == problem.p
        same = same and changed.radius == problem.radius and changed.outputs == problem.outputs
        if not same or _kind(changed.loss) != _kind(problem.loss):
            raise MismatchError(
                f"the change at {moment} {unit} must be a problem of the same agents in the same order, with equal "
                "features, loss and ball: agents that have not joined yet, or have left, are agents without edges"
            )
        stages.append((int(moment), changed))
    for _, stage in stages:
        check_fit(method, stage)
    return stages


def observers_of(observe: Any, taken: Sequence[str] = COLUMNS) -> dict[str, Observer]:
    """Return observers by name, checked."""
    if observe is None:
        return {}
    if callable(observe):
        name = getattr(observe, "__name__", type(observe).__name__)
        observe = {"observed" if name == "<lambda>" else name: observe}
    if not isinstance(observe, Mapping):
        raise ParameterError("observe must be a function of the models, or a mapping of names to functions")
    for name, observer in observe.items():
        if name in taken:
            raise ParameterError(f"an observer cannot be called {name!r}: the trace has that column already")
        if not callable(observer):
            raise ParameterError(f"observer {name!r} is {observer!r}, not a function of the models")
    return dict(observe)


def _notes(problem: Problem | ShardedProblem) -> tuple[str, ...]:
    if isinstance(problem, ShardedProblem):
        return ()
    silent = np.bincount(problem.graph.components, weights=problem.data.sizes) == 0
    count = int(silent[problem.graph.components].sum())
    return (f"{count} agent(s) are in a component without any data: their models are meaningless",) if count else ()
