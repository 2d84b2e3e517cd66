"""Simulate a network of agents: Poisson clocks, exact accounts, any observer."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from .._checks import floats
from .._digest import digest_of
from .._threads import threads
from ..core import loop
from ..core.levels import stranger
from ..core.methods import check_fit
from ..core.world import VACANT
from ..core.wrap.parts import has_inside
from ..errors import CapacityError, MismatchError, ParameterError
from ..problem import Problem, ShardedProblem
from ..problem.baselines import Baseline, resolve_method
from .cluster import Cluster
from .conditions import Conditions
from .drivers import Driver, Immediate, Synchronous, Timed, seeds
from .parallel import MANY_AGENTS, Team
from .run import CLAIM, Run
from .shards import Shards, check_engine
from .state import SMALL, State
from .watching import Told, watchers_of, watching

Observer = Callable[[np.ndarray], float]
#: How the note begins that tells that noise was simulated.
SIMULATED = "simulated noise"
Changes = Sequence[tuple[int, Problem]]

#: Columns of a trace that an observer may not take.
COLUMNS = ("wakes", "time", "value", "vectors", "bytes", "gap", "neighbours", "honest_loss", "disagreement")
#: In so many wakes for each agent, somebody must have sent something.
PATIENCE = 1000
#: The most steps in one call of a kernel.
LONGEST = 1 << 20


def simulate(
    problem: Problem | ShardedProblem,
    method: Any,
    wakes: int | None = None,
    seed: Any = 0,
    start: Any = None,
    events: ArrayLike | None = None,
    observe: Observer | Mapping[str, Observer] | None = None,
    every: int | None = None,
    until: Callable[[np.ndarray], bool] | None = None,
    conditions: Conditions | None = None,
    capacity: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    rounds: int | None = None,
    vectors: int | None = None,
    bytes: int | None = None,
    choice: Any = "uniform",
    changes: Changes = (),
    engine: Cluster | None = None,
    fetch: bool | Callable[[int, np.ndarray], Any] | None = None,
    n_jobs: int | None = None,
    lock_free: bool = False,
    keep_state: bool | None = None,
    watch: Any = None,
) -> Run:
    """Let the agents of a problem run a method, and watch.

    Every agent wakes at the times of its own Poisson clock of rate 1. Before the first wake, neighbours swap their
    models once; the account counts that.

    Say how long in one of four units: ``wakes``, ``rounds``, ``vectors`` or ``bytes``; ``every``, ``changes`` and
    ``progress`` are in the same unit. A run that goes on from another (``start=run``) counts from there: so much more.

    Parameters
    ----------
    problem : Problem or ShardedProblem
        The latter is built in parts on the shards of ``engine``; without one, as a whole in this process.
    method : rule or str
        Such as ``ct.CoordinateDescent()`` or ``"cd"``. A baseline (``ct.GlobalModel()``, ``"global"``, ...) is
        computed at once, and nothing is sent.
    wakes : int, optional
        How many times some agent wakes, in all. May be left out when ``events`` are given, and for a private method
        whose budget is split for so many wakes of each agent: then every agent wakes as often, in random order.
    seed : int
        Same seed, same machine, same bits; whatever ``every`` and ``observe`` are.
    start : "local", "zeros", (n, p) array_like, Run or WarmStart, optional
        Models before the first wake: trained alone, the default; zeros, the default of a private method; or given. Of
        a :class:`coterie.privacy.WarmStart` the budget is added to that of a private method. A run goes on where it
        stopped, to the last bit as if it had not, if it was one of this method on this problem and has kept its state;
        trace and account go on, too, and so do random numbers, whatever ``seed``. Else it gives its models, and
        ``notes`` say why. To begin anew from its models, pass ``run.theta``.
    events : (T,) or (T, 2) array_like of int, optional
        Who wakes, by agent number, in place of the Poisson clocks: replays a schedule. With two columns, also which
        neighbour it exchanges models with (-1 for an agent that has none).
    observe : callable, or mapping of names to callables, optional
        Functions of Theta (n, p, read-only) whose values become columns of the trace.
    every : int, optional
        How much lies between two rows of the trace. Default: only a first and a last row.
    until : callable, optional
        Function of Theta, asked at every row of the trace: the run ends early when it says True.
    conditions : Conditions, optional
        Latency, loss, duplication, reordering, outages, stragglers, partial participation; with ``rounds``, only who
        takes part. Default: letters arrive at once, and everybody takes part.
    capacity : int, optional
        Bound on the letters under way. Default: as many as it takes.
    progress : callable, optional
        Called with (how much is done, how much in all) now and then.
    rounds : int, optional
        How many synchronous rounds, for a method that has such a form: all agents act at once.
    vectors, bytes : int, optional
        Run until so many vectors of p numbers, or bytes, have been sent; the wake that reaches it is the last.
    choice : "uniform", "weight" or (n, n) array or sparse matrix
        With which probability agent i chooses neighbour j for an exchange (pi_i^j in MP): all alike, in proportion to
        the weights, or to row i of a matrix.
    changes : sequence of (moment, Problem)
        What becomes of the problem on the way: new examples, agents that join or leave. Same agents in the same
        order; see :meth:`coterie.Problem.on`.
    engine : Cluster, optional
        Run on a cluster, a block of agents on each of its shards: letters from one shard to another arrive up to n
        wakes late, about one of each agent. Same seed, same number of shards, same bits. With the last wake all letters
        under way are delivered, and answers to them; not so when ``until`` ends the run. Goes with ``wakes`` and a
        method that keeps the ties as they are, not with ``events``, ``conditions``, ``changes`` or ``capacity``.
        A private method that is not told how long runs for as many wakes as its budget is split for, by Poisson clocks.
        Default: in this process.
    fetch : bool or callable, optional
        On a cluster: whether the models of all agents come here in the end, as ``run.theta``. Default: for a Problem.
        Of a ShardedProblem they stay where they are, and this process is small however many agents there are, unless
        ``observe`` or ``until`` ask for models. A function ``fetch(first, theta)`` is called on every shard with the
        number of its first agent and their models, to write them to a file or to judge them there; what it returns
        is listed in ``run.fetched``.
    n_jobs : int, optional
        How many threads take wakes that do not touch each other at the same time; same bits, whatever it is. Default:
        one for each core from 10,000 agents on, else one; -1 for all cores. Learned graphs, ``conditions`` and
        ``rounds`` take one, a shard of an ``engine`` as many as it has CPUs.
    lock_free : bool
        Let threads take wakes as they come, also those that touch each other, without the promise of same bits: for
        dense graphs, where few wakes do not. Refused for a private method, whose noise must be as it was planned.
    keep_state : bool, optional
        Whether the run keeps what it takes to go on later: all that agents know of each other, letters under way,
        random generators. Default: if that is no more than 64 MB. Not on a cluster.
    watch : observer, or sequence of them, optional
        Told every row of the trace as it comes, and of the end: :mod:`coterie.observers` has some.

    Returns
    -------
    Run
        Its ``problem`` is the last one.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation(np.eye(3), ct.graphs.ring(3), alpha=0.5)
    >>> run = ct.simulate(problem, "cd", events=[0, 1, 2, 0], observe=np.max, every=2)
    >>> run.trace[["wakes", "vectors", "max"]].round(3).values.tolist()
    [[0.0, 6.0, 1.0], [2.0, 10.0, 1.0], [4.0, 14.0, 0.641]]
    >>> run.vectors  # six in the initial swap, two in each wake
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
    observers = observers_of(observe)
    watchers = watchers_of(watch)
    if not (keep_state is None or isinstance(keep_state, bool)):
        raise ParameterError(f"keep_state={keep_state!r} must be True, False, or None")
    if not (fetch is None or isinstance(fetch, bool) or callable(fetch)):
        raise ParameterError(f"fetch={fetch!r} must be True, False, or a function of a number and of models")
    if engine is None:
        if callable(fetch) or fetch is False:
            raise ParameterError("fetch=... is for models on a cluster: leave it out, or say engine=ct.Cluster(...)")
        problem = problem.whole() if isinstance(problem, ShardedProblem) else problem
    if not isinstance(changes, Sequence):
        raise ParameterError(f"changes={changes!r} must be a list of (moment, Problem)")
    others = {"events": events, "conditions": conditions, "capacity": capacity, "changes": list(changes) or None}
    check_engine(engine, method, problem, choice, others | {"rounds": rounds, "vectors": vectors, "bytes": bytes})
    if isinstance(method, Baseline):
        with watching(watchers) as told:
            run = _computed(changes[-1][1] if len(changes) else cast(Problem, problem), method, observers)
            told.rows(run.trace.to_dict("records"))
            return told.end(run)
    events = None if events is None else _array(events)
    often = method.privacy.wakes_per_agent
    if often is not None and all(given is None for given in (wakes, events, rounds, vectors, bytes)):
        if conditions is None and engine is None:
            # Every agent as often as a private method has something to say: Poisson clocks, given that it is so often.
            events = seeds(seed, 4)[3].permutation(np.repeat(np.arange(problem.n), often))
        else:
            wakes = often * problem.n
    unit, total = _length(wakes, rounds, vectors, bytes, events)
    setting = digest_of(choice, conditions)
    old, why_not = _gone_on(start, problem, method, unit, conditions, engine, setting)
    if old is not None:
        _check_going_on(cast(Run, start), old, method, seed, events, changes)
        seed = cast(Run, start).seed
    stages = _stages(problem, method, changes, unit, total)
    schedule = _schedule(events, stages, method, conditions, total)
    if not (until is None or callable(until)):
        raise ParameterError(f"until={until!r} must be a function of the models")
    if every is not None and not (isinstance(every, Integral) and every >= 1):
        raise ParameterError(f"every={every!r} must be a whole number of {unit}, at least 1")
    if conditions is not None and not isinstance(conditions, Conditions):
        raise ParameterError(f"conditions={conditions!r} must be a ct.Conditions")
    if not (capacity is None or isinstance(capacity, Integral)):
        raise ParameterError(f"capacity={capacity!r} must be a whole number of letters")
    if capacity is not None and capacity < method.traffic.max_letters:
        raise CapacityError(
            f"capacity={capacity} is too small: {method!r} may post {method.traffic.max_letters} letter(s) in one event"
        )
    if method.ties.spare and not (isinstance(choice, str) and choice == "uniform"):
        raise ParameterError("choice is for a given graph: with a learned one, all neighbours are alike")
    if unit == "rounds":
        if not method.training.synchronous:
            raise MismatchError(f"{method!r} has no synchronous form: say wakes=..., vectors=... or bytes=...")
        if capacity is not None or not (conditions is None or conditions.for_rounds):
            raise ParameterError(
                "rounds are synchronous: latency, loss, duplication and capacity are for agents that wake by "
                f"themselves; conditions for rounds say who takes part. Say wakes=... in place of rounds: {problem.n} "
                "wakes are about one round. Without loss, say wakes, too, to compare: wakes and rounds end elsewhere"
            )
    if conditions is not None:
        conditions.check(problem.n, unit)
        if method.traffic.sums and unit != "rounds" and (why := conditions.breaks_sums):
            instead = (
                "say ct.Compressed(..., whole_every=...), so that every so many letters one is whole"
                if has_inside(method, "whole_every")
                else "leave that out of the conditions (a latency with jitter=0 and participation=... are fine), or "
                "use a method whose letters may be lost, on mutual ties: ct.GradientTracking(...), ct.DPSGD(...)"
            )
            raise MismatchError(
                f"{method!r}: neighbours add up what it sends, and with {why} the sums would be wrong from then on; "
                f"{instead}"
            )
    if method.privacy.plan is not None:
        _check_claim(problem, method, start, unit, total + (0 if old is None else int(old.numbers["done"])), schedule)
    immediate = unit != "rounds" and engine is None and conditions is None
    jobs = _jobs(problem, method, n_jobs, lock_free, immediate)
    models = _start(problem, method, start if old is None else start.published)
    with ExitStack() as stack:
        told = stack.enter_context(watching(watchers))
        driver: Driver
        if engine is not None:
            ray = stack.enter_context(engine.connect())
            driver = stack.enter_context(Shards(problem, method, models, choice, seed, engine, ray, total))
        else:
            given = cast(Problem, problem)
            theta = _models(given, models)  # the first work, after all that can be refused
            if unit == "rounds":
                driver = Synchronous(given, method, theta, choice, seed, conditions)
            elif conditions is None:
                team = stack.enter_context(Team(jobs, given.n, lock_free)) if jobs > 1 else None
                changing = len(stages) > 1 or (old is not None and not old.once)
                driver = Immediate(given, method, theta, choice, schedule, seed, capacity, changing, team)
            else:
                driver = Timed(given, method, theta, choice, conditions, seed, capacity)
        fetch = isinstance(problem, Problem) if fetch is None else fetch
        if old is not None:
            driver.go_on(old)
        earlier = None if old is None else cast(Run, start)
        run = _watched(driver, unit, total, stages, observers, every, until, progress, seed, fetch, earlier, told)
        if engine is None and keep_state is not False:
            state = driver.state(setting)
            run = replace(run, state=state if keep_state or state.size <= SMALL else None)
        if run.plan is not None:
            run = _with_claim(run, start, old is not None)
        return told.end(replace(run, notes=(*run.notes, why_not)) if why_not else run)


def _watched(
    driver: Driver,
    unit: str,
    total: int,
    stages: Sequence[tuple[int, Problem]],
    observers: Mapping[str, Observer],
    every: int | None,
    until: Callable[[np.ndarray], bool] | None,
    progress: Callable[[int, int], None] | None,
    seed: Any,
    fetch: bool | Callable[[int, np.ndarray], Any],
    earlier: Run | None,
    told: Told,
) -> Run:
    """Let a driver run to the end, and look at it on the way; `earlier` is the run that it goes on from."""

    def measured() -> int:
        return int(driver.done if unit in ("wakes", "rounds") else getattr(driver, unit))

    records: list[dict[str, Any]] = []

    def note() -> None:
        records.append(_record(driver, observers))
        told.rows(records[-1:])

    if earlier is None:
        note()
    seen = _moment(driver)
    first = 0 if earlier is None else measured()  # what comes is counted from there
    total += first

    def look() -> None:
        nonlocal seen
        if seen != _moment(driver):
            note()
            seen = _moment(driver)

    def turn() -> None:
        """Go on with the problem as it is from now on."""
        look()
        driver.change(coming.pop(0)[1])
        note()

    coming = [(first + moment, problem) for moment, problem in stages[1:]]
    while coming and measured() >= coming[0][0]:
        turn()
    pace = driver.pace  # steps in one call
    longest = max(LONGEST, pace)
    bounded = unit in ("vectors", "bytes")
    quiet = 0  # steps since something was sent
    ended = until is not None and until(driver.theta)
    while measured() < total and not ended:
        mark = total if every is None else min(total, measured() + every - measured() % every)
        goal = min(mark, coming[0][0]) if coming else mark
        began, before = clock.perf_counter(), (driver.done, driver.account[loop.LETTERS] if bounded else 0)
        steps = min(pace, goal - measured()) if unit in ("wakes", "rounds") else pace
        driver.advance(steps, driver.budget(unit, goal))
        took = clock.perf_counter() - began
        if took > 0.5:
            pace = max(1, pace // 2)
        elif took < 0.1 and driver.done - before[0] == steps == pace:
            pace = min(2 * pace, longest)
        if bounded:
            quiet = 0 if driver.account[loop.LETTERS] > before[1] else quiet + driver.done - before[0]
        if quiet > PATIENCE * stages[0][1].n:
            raise ParameterError(f"{unit}={total - first} cannot be reached: agents have stopped sending letters")
        if progress is not None:
            progress(min(measured(), total) - first, total - first)
        while coming and measured() >= coming[0][0]:
            turn()
        if measured() >= mark:
            look()
            ended = until is not None and until(driver.theta)
    here = fetch is True
    return Run(
        problem=driver.problem,
        method=driver.method,
        theta=driver.final if here else cast(np.ndarray, None),
        trace=_trace(earlier, records),
        wakes=driver.wakes,
        time=driver.time,
        letters=int(driver.account[loop.LETTERS]),
        vectors=driver.vectors,
        bytes=driver.bytes,
        seed=seed,
        tally=driver.account[loop.KINDS :].reshape(-1, 2).copy(),
        lost=int(driver.account[loop.LOST]),
        duplicated=int(driver.account[loop.DUPLICATED]),
        notes=(*(_notes(driver.problem) if isinstance(driver.problem, Problem) else ()), *_liars(driver.method)),
        plan=driver.method.privacy.plan,
        published=driver.theta.copy() if here else None,
        population=driver.population if here else None,
        fetched=driver.call(fetch) if isinstance(driver, Shards) and callable(fetch) else (),
    )


def _trace(earlier: Run | None, records: list[dict[str, Any]]) -> pd.DataFrame:
    """The trace, after that of the run that it goes on from."""
    parts = ([] if earlier is None else [earlier.trace]) + ([pd.DataFrame(records)] if records else [])
    return parts[0].copy() if len(parts) == 1 else pd.concat(parts, ignore_index=True)


def _gone_on(
    start: Any, problem: Any, method: Any, unit: str, conditions: Any, engine: Any, setting: str
) -> tuple[State | None, str]:
    """The state that a run goes on from; or why it begins with the models of a run that was given."""
    if not isinstance(start, Run):
        return None, ""
    kind = Synchronous if unit == "rounds" else Immediate if conditions is None else Timed
    if start.state is None:
        why = "it kept no state (keep_state=True keeps it)"
    elif engine is not None or not isinstance(problem, Problem):
        why = "runs on a cluster do not"
    else:
        why = start.state.reason_against(problem, method, kind.__name__, setting)
        if not why:
            return start.state, ""
    return None, f"begins with the models of the run it was given, and does not go on where that stopped: {why}"


def _check_going_on(run: Run, old: State, method: Any, seed: Any, events: Any, changes: Any) -> None:
    """Refuse what does not go with a run that goes on."""
    if seed not in (0, run.seed):
        raise ParameterError(
            f"seed={seed!r}: the run that was given as start goes on with the random numbers of its own seed, "
            f"{run.seed!r}; leave seed out, or begin anew from its models with start=run.theta"
        )
    if len(changes) and old.once:
        raise ParameterError(
            "changes=...: the run that was given as start has stored letters once for all neighbours, which cannot be "
            "carried over to other ties; begin anew from its models with start=run.theta"
        )
    if method.privacy.plan is not None and events is not None:
        raise ParameterError(
            "a private run that goes on cannot count how often events have woken each agent before: say wakes=..."
        )


def _jobs(problem: Problem | ShardedProblem, method: Any, n_jobs: Any, lock_free: Any, immediate: bool) -> int:
    """How many threads take wakes."""
    if not isinstance(lock_free, (bool, np.bool_)):
        raise ParameterError(f"lock_free={lock_free!r} must be True or False")
    if lock_free and not immediate:
        raise ParameterError("lock_free=True is for wakes whose letters arrive at once: leave it out")
    if lock_free and method.privacy.plan is not None:
        raise MismatchError(
            f"{method!r}: a wake that reads a model while another thread writes it is not the one that its privacy was "
            "proved for; leave lock_free out: threads run without it, too"
        )
    if lock_free and method.traffic.footprint is None:
        raise MismatchError(
            f"{method!r} does not declare a footprint, which state a wake touches: two threads might change one list "
            "of ties at once; leave lock_free out"
        )
    if n_jobs is None and problem.n < MANY_AGENTS:
        return 1
    count = threads(n_jobs)
    in_python = isinstance(problem, Problem) and hasattr(problem.model, "gradients")  # one thread at a time
    return count if immediate and method.traffic.footprint is not None and not in_python else 1


def _check_claim(
    problem: Problem | ShardedProblem, method: Any, start: Any, unit: str, total: int, schedule: np.ndarray | None
) -> None:
    """Refuse a run of a private method whose claim would not hold, or that asks for more than it was made for."""
    if isinstance(start, str) and start == "local":
        raise ParameterError(
            'start="local": models trained alone would be sent as they are, in the initial swap; leave start out, or '
            "pass a ct.privacy.warm_start(...)"
        )
    often = method.privacy.wakes_per_agent
    if often is None:
        return
    if unit == "wakes" and total > often * problem.n:
        raise ParameterError(
            f"wakes={total}: the budget was split for {often} wakes of each of {problem.n} agents, "
            f"{often * problem.n} in all; a method with wakes_per_agent={-(-total // problem.n)} has more noise in each"
        )
    if schedule is not None:
        count = np.bincount(schedule[0, :total], minlength=problem.n)
        if count.max(initial=0) > often:
            most = int(np.argmax(count))
            who = cast(Problem, problem).members[most]
            raise ParameterError(f"events wake agent {who!r} {count[most]} times: the budget was split for {often}")


def _with_claim(run: Run, start: Any, goes_on: bool) -> Run:
    """A run with what it may claim: of one that goes on, what it claimed before, since its plan is for all of it."""
    if goes_on:
        said = [note for note in start.notes if note.startswith((CLAIM, SIMULATED))]
        return replace(run, notes=(*run.notes, *said), epsilon=start.epsilon, delta=start.delta)
    plans = (run.plan, *getattr(start, "plans", ()))
    epsilon, delta = (sum(getattr(plan, name) for plan in plans) for name in ("epsilon", "delta"))
    given = start is not None and not isinstance(start, str) and not hasattr(start, "plans")
    but = ", but for the models it was given to start from," if given else ""
    notes = (
        f"{CLAIM}{but} is ({epsilon:g}, {delta:g})-differentially private for each of its examples",
        f"{SIMULATED}: it was drawn from the seed, and whoever knows the seed can take it away",
    )
    return replace(run, notes=(*run.notes, *notes), epsilon=epsilon, delta=delta)


def _moment(driver: Driver) -> tuple[Any, ...]:
    """What tells two rows of a trace apart."""
    return driver.wakes, driver.time, driver.vectors, driver.bytes


def _computed(problem: Problem, method: Any, observers: Mapping[str, Observer]) -> Run:
    """The run of a baseline: there is nothing to simulate."""
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
    """Models before the first wake, checked; or a word for them."""
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


def _models(problem: Problem, start: str | np.ndarray) -> np.ndarray:
    if isinstance(start, str):
        return problem.local() if start == "local" else np.zeros((problem.n, problem.p))
    return start


def _array(events: Any) -> np.ndarray:
    try:
        given = np.asarray(events)
    except ValueError:
        given = np.zeros(())
    if given.ndim not in (1, 2) or (given.ndim == 2 and given.shape[1] != 2):
        raise ParameterError(
            "events must be agent numbers, shape (T,), or pairs of agent and neighbour, shape (T, 2); "
            f"found {'shape ' + str(given.shape) if given.ndim else repr(events)}"
        )
    return given


def _length(wakes: Any, rounds: Any, vectors: Any, bytes: Any, events: Any) -> tuple[str, int]:
    """In which unit, and how much of it."""
    units = {"wakes": wakes, "rounds": rounds, "vectors": vectors, "bytes": bytes}
    given = {name: amount for name, amount in units.items() if amount is not None}
    if events is not None:
        if set(given) - {"wakes"}:
            raise ParameterError(
                f"events say who wakes, and when it ends: leave {next(iter(set(given) - {'wakes'}))} out"
            )
        given.setdefault("wakes", len(events))
    if len(given) != 1:
        raise ParameterError(
            "say how long to run: wakes=..., rounds=..., vectors=..., bytes=..., or events=..."
            + (f"; one of them, not {' and '.join(given)}" if given else "")
        )
    [(unit, amount)] = given.items()
    if not (isinstance(amount, Real) and 0 <= float(amount) < np.inf and float(amount).is_integer()):
        raise ParameterError(f"{unit}={amount!r} must be a whole number >= 0")
    if events is not None and float(amount) > len(events):
        raise ParameterError(f"wakes={amount} is more than the {len(events)} events given")
    return unit, int(float(amount))


def _kind(loss: Any) -> tuple[Any, ...]:
    """What a kernel is compiled for: the class of a loss, and of those in it."""
    return type(loss), *(_kind(part) for part in loss if isinstance(part, tuple))


def _stages(
    problem: Problem | ShardedProblem, method: Any, changes: Any, unit: str, total: int
) -> list[tuple[int, Problem]]:
    """All problems, each with the moment from which it holds."""
    stages = [(0, cast(Problem, problem))]
    if isinstance(problem, ShardedProblem):  # whether it fits is for the shards to say: they have it
        return stages
    for change in changes:
        if not (isinstance(change, Sequence) and len(change) == 2 and isinstance(change[1], Problem)):
            raise ParameterError(f"a change must be (moment, Problem); found {change!r}")
        moment, changed = change
        if not (isinstance(moment, Integral) and stages[-1][0] <= int(moment) <= total):
            raise ParameterError(
                f"a change at {moment!r} {unit}: moments must be whole numbers up to {total}, none before another"
            )
        same = changed.members == problem.members and changed.p == problem.p
        same = same and changed.radius == problem.radius and changed.outputs == problem.outputs
        if not same or _kind(changed.loss) != _kind(problem.loss):
            raise MismatchError(
                f"the change at {moment} {unit} must be a problem of the same agents in the same order, with the same "
                "features, loss and ball: those that have not come yet, or have left, are agents without ties"
            )
        stages.append((int(moment), changed))
    for _, stage in stages:
        check_fit(method, stage)
    return stages


def _schedule(events: Any, stages: Any, method: Any, conditions: Any, total: int) -> np.ndarray | None:
    """Who wakes and whom it talks to, as two rows; VACANT for one that chooses for itself."""
    if events is None:
        return None
    if conditions is not None:
        raise ParameterError("events replay a schedule and conditions draw one: pass one of the two")
    given = events
    if given.size and given.dtype.kind not in "iu":
        raise ParameterError(f"events must be agent numbers, whole numbers; found {given.dtype}")
    pairs = given.ndim == 2
    order = (given[:, 0] if pairs else given).astype(np.int64)
    n = stages[0][1].n
    if order.min(initial=0) < 0 or order.max(initial=0) >= n:
        bad = int(np.argmax((order < 0) | (order >= n)))
        raise ParameterError(f"event {bad} wakes agent number {order[bad]}: they go from 0 to {n - 1}")
    if not pairs:
        return np.stack([order, np.full_like(order, VACANT)])
    if not method.traffic.exchanges:
        raise ParameterError(f"events with neighbours: {method!r} does not exchange with one neighbour; leave them out")
    peers = given[:, 1].astype(np.int64)
    for (first, stage), last in zip(stages, [moment for moment, _ in stages[1:]] + [total], strict=True):
        t = stranger(order, peers, stage.graph.start, stage.graph.peer, first, last)
        if t < last:
            raise ParameterError(f"event {t}: agents number {order[t]} and {peers[t]} are not neighbours")
    return np.stack([order, peers])


def observers_of(observe: Any, taken: Sequence[str] = COLUMNS) -> dict[str, Observer]:
    """Observers by name, checked."""
    if observe is None:
        return {}
    if callable(observe):
        name = getattr(observe, "__name__", type(observe).__name__)
        observe = {"observed" if name == "<lambda>" else name: observe}
    if not isinstance(observe, Mapping):
        raise ParameterError("observe must be a function of the models, or a mapping of names to functions")
    for name, observer in observe.items():
        if name in taken:
            raise ParameterError(f"an observer may not be called {name!r}: the trace has that column already")
        if not callable(observer):
            raise ParameterError(f"observer {name!r} is {observer!r}, not a function of the models")
    return dict(observe)


def _liars(method: Any) -> tuple[str, ...]:
    """Who lied, in words."""
    names = ", ".join(map(str, method.inspection.liars))
    return (f"agents {names} lied: run.honest leaves them out",) if names else ()


def _notes(problem: Problem) -> tuple[str, ...]:
    silent = np.bincount(problem.graph.components, weights=problem.data.sizes) == 0
    count = int(silent[problem.graph.components].sum())
    return (f"{count} agent(s) are in a component without any data: their models mean nothing",) if count else ()
