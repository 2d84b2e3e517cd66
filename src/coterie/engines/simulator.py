"""Simulate a network of agents: Poisson clocks, exact accounts, any observer."""

from __future__ import annotations

import time as clock
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from ..errors import CapacityError, ParameterError
from ..methods import resolve_method
from ..problem import Problem
from ..results import Run
from ..wire import letters_size
from ..world import REFUSED, Mail, new_mail, world_of
from . import events as mail_of_time
from . import host
from .events import Conditions

Observer = Callable[[np.ndarray], float]

#: Columns of a trace that an observer may not take.
COLUMNS = ("wakes", "time", "value", "vectors", "bytes")


def simulate(
    problem: Problem,
    method: Any,
    wakes: int | None = None,
    seed: Any = 0,
    start: str | ArrayLike = "local",
    events: ArrayLike | None = None,
    observe: Observer | Mapping[str, Observer] | None = None,
    every: int | None = None,
    until: Callable[[np.ndarray], bool] | None = None,
    conditions: Conditions | None = None,
    capacity: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Let the agents of a problem run a method, and watch.

    Every agent wakes at the times of its own Poisson clock of rate 1. Before the first wake, neighbours swap their
    models once; the account counts that.

    Parameters
    ----------
    problem : Problem
    method : rule or str
        Such as ``ct.CoordinateDescent()`` or ``"cd"``.
    wakes : int, optional
        How many times some agent wakes, in all. May be left out when ``events`` are given.
    seed : int
        Same seed, same machine, same bits; whatever ``every`` and ``observe`` are.
    start : "local", "zeros" or (n, p) array_like
        Models before the first wake: trained alone, zeros, or given.
    events : (T,) array_like of int, optional
        Who wakes, by agent number, in place of the Poisson clocks: replays a schedule.
    observe : callable, or mapping of names to callables, optional
        Functions of Theta (n, p, read-only) whose values become columns of the trace.
    every : int, optional
        Wakes between two rows of the trace. Default: only a first and a last row.
    until : callable, optional
        Function of Theta, asked at every row of the trace: the run ends early when it says True.
    conditions : Conditions, optional
        Latency, loss, duplication, reordering, outages. Default: letters arrive at once.
    capacity : int, optional
        Bound on the letters in the mail. Default: as many as it takes.
    progress : callable, optional
        Called with (wakes done, wakes in all) now and then.

    Returns
    -------
    Run

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
    """
    if not isinstance(problem, Problem):
        raise ParameterError(f"simulate needs a Problem; found {type(problem).__name__}")
    method = resolve_method(method)
    method.fit_for(problem)
    order = _explicit(events, problem, conditions)
    total = _total(wakes, order)
    observers = _observers(observe)
    if not (until is None or callable(until)):
        raise ParameterError(f"until={until!r} must be a function of the models")
    if every is not None and not (isinstance(every, Integral) and every >= 1):
        raise ParameterError(f"every={every!r} must be a whole number of wakes, at least 1")
    if conditions is not None and not isinstance(conditions, Conditions):
        raise ParameterError(f"conditions={conditions!r} must be a ct.Conditions")
    if not (capacity is None or isinstance(capacity, Integral)):
        raise ParameterError(f"capacity={capacity!r} must be a whole number of letters")
    if capacity is not None and capacity < method.letters:
        raise CapacityError(
            f"capacity={capacity} is too small: {method!r} may post {method.letters} letter(s) in one event"
        )
    theta = _start(problem, start)  # the first work, after all that can be refused
    engine: _Engine
    if conditions is None:
        engine = _Immediate(problem, method, theta, order, seed, capacity)
    else:
        engine = _Timed(problem, method, theta, conditions, seed, capacity)

    records = [_record(engine, problem, observers)]
    pace = 256  # wakes in one call of the kernel: grows while calls are short, so that one can look and interrupt
    ended = until is not None and until(engine.theta)
    while engine.done < total and not ended:
        mark = total if every is None else min(total, engine.done + every - engine.done % every)
        began = clock.perf_counter()
        engine.advance(min(pace, mark - engine.done))
        if clock.perf_counter() - began < 0.1:
            pace *= 2
        if progress is not None:
            progress(engine.done, total)
        if engine.done == mark:
            records.append(_record(engine, problem, observers))
            ended = until is not None and until(engine.theta)
    last = records[-1]
    return Run(
        problem=problem,
        method=method,
        theta=engine.theta.copy(),
        trace=pd.DataFrame(records),
        wakes=engine.done,
        time=last["time"],
        letters=int(engine.account[host.LETTERS]),
        vectors=last["vectors"],
        bytes=last["bytes"],
        seed=seed,
        lost=int(engine.account[mail_of_time.LOST]),
        duplicated=int(engine.account[mail_of_time.DUPLICATED]),
        notes=_notes(problem),
    )


class _Engine(ABC):
    """What both engines share: the world, its state, the account."""

    def __init__(self, problem: Problem, method: Any, theta: np.ndarray, capacity: int | None):
        self.method, self.p = method, problem.p
        self.world = world_of(problem)
        self.own, self.tie = method.start(self.world, theta)
        self.size = max(method.lengths(problem.p))
        self.account = np.zeros(4, np.int64)
        self.done, self.time = 0, 0.0
        self.mail: Mail = new_mail(method.letters if capacity is None else capacity, self.size)

    @property
    def theta(self) -> np.ndarray:
        view: np.ndarray = self.own.theta.view()
        view.flags.writeable = False
        return view

    @abstractmethod
    def advance(self, wakes: int) -> None:
        """Let so many agents wake."""

    def check(self) -> None:
        if self.mail.cursor[REFUSED]:
            raise CapacityError(
                f"{self.method!r} posted a letter that cannot be delivered: more, or longer, than the "
                f"{self.method.letters} of {self.size} numbers that it announces for one event, or to nobody's address"
            )


class _Immediate(_Engine):
    """Letters arrive before the next agent wakes."""

    def __init__(self, problem, method, theta, order, seed, capacity):  # type: ignore[no-untyped-def]
        super().__init__(problem, method, theta, capacity)
        self.order, self.elapsed = order, 0.0
        self.who, self.when, self.fate = _seeds(seed, 3)
        self.away = host.new_away(0, self.size)
        host.meet(method, self.world, self.own, self.tie, self.mail, self.away, self.account)
        self.check()

    def advance(self, wakes: int) -> None:
        n = self.world.address.shape[0]
        if self.order is None:
            order = self.who.integers(0, n, wakes)
            # Added one by one: sums do not depend on how a run is divided.
            self.elapsed = float(np.cumsum(np.append(self.elapsed, self.when.standard_exponential(wakes)))[-1])
            self.time = self.elapsed / n
        else:
            order = self.order[self.done : self.done + wakes]
            self.time = (self.done + wakes) / n
        dice = self.fate.random((wakes, self.method.dice))
        self.done += host.run(
            self.method, self.world, self.own, self.tie, order, dice, self.mail, self.away, self.account
        )
        self.mail.cursor[REFUSED] += self.away.counter[1]  # there is no other host
        self.check()


class _Timed(_Engine):
    """Letters take their time, or never arrive."""

    def __init__(self, problem, method, theta, conditions, seed, capacity):  # type: ignore[no-untyped-def]
        super().__init__(problem, method, theta, None)
        most = max(1, int(problem.graph.n_neighbours.max(initial=0)))
        need = 2 * method.letters * most
        if capacity is not None and capacity < need:
            raise CapacityError(
                f"capacity={capacity} is too small: one broadcast along {most} ties, delivered twice, is {need} letters"
            )
        self.capacity = capacity
        self.weather = conditions.weather(problem.n)
        [self.rng] = _seeds(seed, 1)
        self.dice = np.zeros(method.dice)
        self.agenda = mail_of_time.new_agenda(problem.n, capacity or max(need, 1024), self.size)
        ready = 0
        while ready < problem.n:
            ready = mail_of_time.begin(*self._state(), ready)
            self.check()
            if ready < problem.n:
                self._grow()

    def _state(self) -> tuple[Any, ...]:
        return (
            self.method,
            self.world,
            self.own,
            self.tie,
            self.mail,
            self.agenda,
            self.weather,
            self.rng,
            self.account,
        )

    def _grow(self) -> None:
        if self.capacity is not None:
            raise CapacityError(
                f"more than capacity={self.capacity} letters are under way at time {self.agenda.clock[0]:.3g}, "
                f"after {self.done} wakes: raise it, or leave it out"
            )
        self.agenda = mail_of_time.grown(self.agenda)

    def advance(self, wakes: int) -> None:
        while wakes > 0:
            done = mail_of_time.run(*self._state(), wakes, self.dice)
            self.check()
            self.done += done
            wakes -= done
            if wakes > 0:
                self._grow()
        self.time = float(self.agenda.clock[0])


def _record(engine: _Engine, problem: Problem, observers: Mapping[str, Observer]) -> dict[str, Any]:
    letters, numbers = int(engine.account[host.LETTERS]), int(engine.account[host.NUMBERS])
    return {
        "wakes": engine.done,
        "time": engine.time,
        "value": problem.value(engine.theta),
        "vectors": numbers // engine.p,
        "bytes": letters_size(letters, numbers),
        **{name: _seen(name, observer(engine.theta)) for name, observer in observers.items()},
    }


def _seen(name: str, value: Any) -> Any:
    if np.ndim(value) != 0:
        raise ParameterError(f"observer {name!r} gave an array of shape {np.shape(value)}: it must give one number")
    return value


def _start(problem: Problem, start: Any) -> np.ndarray:
    if isinstance(start, str):
        if start == "local":
            return problem.local()
        if start == "zeros":
            return np.zeros((problem.n, problem.p))
        raise ParameterError(f'start={start!r} must be "local", "zeros", or an array of models')
    return problem.checked(start)


def _explicit(events: Any, problem: Problem, conditions: Conditions | None) -> np.ndarray | None:
    if events is None:
        return None
    if conditions is not None:
        raise ParameterError("events replay a schedule and conditions draw one: pass one of the two")
    order = np.asarray(events)
    if order.ndim != 1:
        raise ParameterError(f"events must be a list of agent numbers, shape (T,); found shape {order.shape}")
    if order.size and order.dtype.kind not in "iu":
        raise ParameterError(f"events must be agent numbers, whole numbers; found {order.dtype}")
    bad = np.flatnonzero((order < 0) | (order >= problem.n))
    if bad.size:
        raise ParameterError(f"event {bad[0]} wakes agent number {order[bad[0]]}: they go from 0 to {problem.n - 1}")
    return order.astype(np.int64)


def _total(wakes: int | None, order: np.ndarray | None) -> int:
    if wakes is None:
        if order is None:
            raise ParameterError("say how long to run: wakes=..., or events=...")
        return len(order)
    if not (isinstance(wakes, Real) and 0 <= wakes < np.inf and wakes == int(wakes)):
        raise ParameterError(f"wakes={wakes!r} must be a whole number >= 0")
    if order is not None and wakes > len(order):
        raise ParameterError(f"wakes={wakes} is more than the {len(order)} events given")
    return int(wakes)


def _observers(observe: Any) -> Mapping[str, Observer]:
    if observe is None:
        return {}
    if callable(observe):
        name = getattr(observe, "__name__", type(observe).__name__)
        observe = {"observed" if name == "<lambda>" else name: observe}
    if not isinstance(observe, Mapping):
        raise ParameterError("observe must be a function of the models, or a mapping of names to functions")
    for name, observer in observe.items():
        if name in COLUMNS:
            raise ParameterError(f"an observer may not be called {name!r}: the trace has that column already")
        if not callable(observer):
            raise ParameterError(f"observer {name!r} is {observer!r}, not a function of the models")
    return observe


def _seeds(seed: Any, count: int) -> list[np.random.Generator]:
    """Independent generators, so that who wakes does not depend on what else is drawn."""
    try:
        return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(count)]
    except (TypeError, ValueError):
        raise ParameterError(f"seed={seed!r} must be a whole number >= 0") from None


def _notes(problem: Problem) -> tuple[str, ...]:
    silent = np.bincount(problem.graph.components, weights=problem.data.sizes) == 0
    count = int(silent[problem.graph.components].sum())
    return (f"{count} agent(s) are in a component without any data: their models mean nothing",) if count else ()
