"""Drivers run the compiled loops of a simulation: they draw clocks and random numbers, and change the problem.

A driver holds the agents' arrays, the state of a method, and the account of what was sent. All kinds of runs share the
interface :class:`Driver`, whose main method is :meth:`Driver.advance`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from numbers import Integral
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np

from .._archive import filled, flat
from .._checks import flag
from .._threads import threads
from ..core import events, loop
from ..core.arrays import NEEDS_ROOM, REFUSED, SHARED, VACANT, AgentArrays, new_outbox, owners, stored_once
from ..core.levels import stranger
from ..core.method import finished_by, shown_by
from ..core.wrap.parts import has_inside
from ..errors import CapacityError, ConvergenceError, MismatchError, ParameterError
from ..graphs import Graph
from ..problem import Problem
from .arrays import arrays_of
from .conditions import Conditions
from .parallel import MANY_AGENTS, Team
from .state import State, edges_of, restored, with_edges
from .together import round_in_python
from .wire import prices


class Asked(NamedTuple):
    """Arguments that all kinds of runs need."""

    problem: Any  # a Problem, or a ShardedProblem
    method: Any
    unit: str
    total: int  # number of wakes, rounds, vectors or bytes
    stages: tuple[tuple[int, Problem], ...]  # all problems, each with the time from which it holds
    models: str | np.ndarray  # before the first wake, or a word for these
    seed: Any
    old: State | None  # state of a stopped run that this run continues

    @property
    def theta(self) -> np.ndarray:
        """Models before the first wake."""
        if isinstance(self.models, str):
            problem: Problem = self.problem
            return problem.local() if self.models == "local" else np.zeros((problem.n, problem.p))
        return self.models


class Options(NamedTuple):
    """Options for some kinds of runs only: see :attr:`Driver.refuses`."""

    events: Any = None
    conditions: Any = None
    capacity: Any = None
    choice: Any = "uniform"
    n_jobs: Any = None
    lock_free: bool = False
    engine: Any = None
    fetch: Any = None


def options_of(given: Mapping[str, Any]) -> Options:
    """Return options by name, with defaults for missing ones."""
    for name in given:
        if name not in Options._fields:
            raise MismatchError(f"simulate takes no {name}=...: its options are {', '.join(Options._fields)}")
    options = Options(**given)
    if not (options.fetch is None or isinstance(options.fetch, bool) or callable(options.fetch)):
        raise ParameterError(f"fetch={options.fetch!r} must be True, False, or a function of a number and of models")
    flag("lock_free", options.lock_free)
    if options.conditions is not None and not isinstance(options.conditions, Conditions):
        raise ParameterError(f"conditions={options.conditions!r} must be a ct.Conditions")
    if not (options.capacity is None or isinstance(options.capacity, Integral)):
        raise ParameterError(f"capacity={options.capacity!r} must be a whole number of messages")
    return options._replace(events=None if options.events is None else _array(options.events))


#: Reasons why most kinds of runs refuse an option.
USUAL_REFUSALS = {
    "lock_free": "lock_free=True is for wakes whose messages arrive at once: leave it out",
    "fetch": "fetch=... is for models on a cluster: leave it out, or pass engine=ct.Cluster(...)",
}
IN_ROUNDS = (
    "rounds are synchronous: latency, loss, duplication and capacity are for agents that wake by themselves; "
    "conditions for rounds set which agents take part. Pass wakes=... in place of rounds: {n} wakes are about one "
    "round. For a comparison without loss, pass wakes, too: wakes and rounds end in different models"
)


class Driver(ABC):
    """Base of all drivers: arrays, state of the method, and account; ``capacity`` is that of the outbox.

    If no message is late or lost, messages of a method that publishes may be stored `once`, not for each neighbour.
    """

    #: Options that this kind of run refuses, with reasons; ``n_jobs`` is for runs that process single wakes.
    refuses: Mapping[str, str]
    #: Attributes needed to continue a run later, besides random generators: numbers, arrays, tuples of arrays.
    kept: tuple[str, ...] = ("own", "edge", "account", "done", "time")
    #: Initial number of steps per call; it grows while calls are short, so that a user can watch and interrupt.
    pace = 64

    @classmethod
    def refuse(cls, options: Options, n: int) -> None:
        """Refuse options that this kind of run does not support."""
        for name, why in cls.refuses.items():
            value = getattr(options, name)
            if not (value is None or (name == "fetch" and value is True) or (name == "lock_free" and not value)):
                raise ParameterError(why.format(n=n))

    @classmethod
    def of(
        cls,
        problem: Any,
        method: Any,
        models: Any = "local",
        seed: Any = 0,
        total: int = 0,
        changing: bool = False,
        **given: Any,
    ) -> Self:
        """Make a driver for `total` wakes from these starting models; `changing`: room for a problem that is replaced
        during the run.
        """
        options = options_of(given)
        total = total if options.events is None else len(options.events)
        asked = Asked(problem, method, "wakes", total, ((0, problem),) * (1 + changing), models, seed, None)
        return cls(asked, **cls.settings(asked, options))

    @classmethod
    def settings(cls, asked: Asked, options: Options) -> dict[str, Any]:
        """Check the options of this kind of run, and return the driver's further arguments."""
        threads(options.n_jobs)
        capacity, least = options.capacity, asked.method.traffic.max_messages
        if capacity is not None and capacity < least:
            raise CapacityError(
                f"capacity={capacity} is too small: {asked.method!r} may post {least} message(s) in one event"
            )
        return {"choice": options.choice}

    def __init__(self, asked: Asked, choice: Any, capacity: int, once: bool = False):
        problem, method, theta = asked.problem, asked.method, asked.theta
        self.method, self.choice, self.capacity, self.once = method, choice, capacity, once
        self._problem, self.p = problem, problem.p
        self.arrays = arrays_of(problem, choice, method.edges.spare, once, method.training.batch)
        self.own, self.edge = stored_once(method, self.arrays, theta) if once else method.start(self.arrays, theta)
        self.outbox = new_outbox(method, self.arrays, problem.p, capacity)
        self.egress, self.account = loop.new_egress(0, 1), loop.new_account(method)
        self.done, self.time = 0, 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Release threads and machines."""

    @property
    def problem(self) -> Problem:
        """The problem as it is now, on the learned graph if agents learn one."""
        if self.method.edges.spare:
            graph = graph_of(self.arrays)
            if graph != self._problem.graph:
                self._problem = self._problem.on(graph=graph)
        return self._problem

    @property
    def agents(self) -> Any:
        """Arguments of kernels: the method, the agents' arrays, and its state of agents and of edges."""
        return self.method, self.arrays, self.own, self.edge

    @property
    def theta(self) -> np.ndarray:
        """Models as agents would use them now, read-only."""
        view = shown_by(*self.agents).view()
        view.flags.writeable = False
        return view

    @property
    def final(self) -> np.ndarray:
        """Final models of the agents: :attr:`theta`, or the results of a final step, which agents keep private."""
        return finished_by(*self.agents)

    @property
    def population(self) -> Any:
        """The agents' estimates of the population, for a method that learns one; else None."""
        if self.method.inspection.population is None:
            return None
        return self.method.inspection.population(self.arrays, self.own, self.edge)

    def measures(self) -> dict[str, float]:
        """Return the measures of a trace: the objective, and its gap to the optimum if that is cheap."""
        problem, theta = self.problem, self.theta
        if not np.all(np.isfinite(theta)):
            lost = int(np.argmax(~np.isfinite(theta).all(axis=1)))
            raise ConvergenceError(
                f"{self.method!r} has diverged: after {self.wakes} wakes the model of agent "
                f"{problem.members[lost]!r} is not finite; take smaller steps"
            )
        learned, liars = self.method.edges.spare > 0, self.method.inspection.liars
        value = problem.value(theta)
        if self.method.training.jobs and np.isnan(value):
            raise ConvergenceError(
                f"{self.method!r} has diverged: after {self.wakes} wakes the models are too large to have a loss; take "
                "smaller steps"
            )
        return {
            "value": value + (self.method.rule.regularizer(problem) if learned else 0.0),
            **({"gap": problem.gap(theta)} if np.isfinite(problem.radius) else {}),
            **({"honest_loss": float(np.delete(problem.losses(theta), liars).mean())} if len(liars) else {}),
            **({"neighbours": 2.0 * problem.graph.n_edges / problem.n} if learned else {}),
            **({"disagreement": disagreement(problem, theta)} if np.any(problem.roles == SHARED) else {}),
        }

    @property
    def wakes(self) -> int:
        """Number of wakes of agents."""
        return self.done

    @property
    def vectors(self) -> int:
        """Number of vectors of p numbers sent."""
        return int(self.account[loop.NUMBERS]) // self.p

    @property
    def bytes(self) -> int:
        """Number of bytes sent."""
        return round(loop.cost_of(self.account, *self.prices))

    @property
    def prices(self) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of a message of each kind, and of each number in it, in addition."""
        return prices(self.method.messages, self.shared)

    @property
    def shared(self) -> int:
        """Number of parameters that are not personal, and so may be sent."""
        return int(self.arrays.sent.shape[0])

    def budget(self, unit: str, limit: float) -> loop.Budget:
        """Return the limit on vectors or bytes sent; no limit for other units."""
        if unit == "vectors":
            kinds = len(self.method.messages)
            return loop.Budget(np.zeros(kinds), np.ones(kinds), float(limit * self.p))
        if unit == "bytes":
            return loop.Budget(*self.prices, float(limit))
        return loop.NO_LIMIT

    @abstractmethod
    def advance(self, steps: int, budget: loop.Budget) -> None:
        """Take at most `steps` steps, and stop when the budget is spent."""

    def meet(self, arrays: AgentArrays, who: np.ndarray | None = None) -> None:
        """Let the agents, or the given ones, greet their neighbours in these arrays."""
        loop.meet(self.method, arrays, self.own, self.edge, self.outbox, self.egress, self.account, who=who)
        self.settle()

    def change(self, problem: Problem) -> None:
        """Continue with another problem for the same agents: other data, other edges.

        Models and the state of remaining edges are kept; results computed from data (fields called ``cache``) are
        recomputed; new neighbours greet each other. Learned edges are kept.
        """
        before, own, edge = self.arrays, self.own, self.edge
        self._problem = problem.on(graph=graph_of(before)) if self.method.edges.spare else problem
        self.arrays = arrays_of(self._problem, self.choice, self.method.edges.spare, batch=self.method.training.batch)
        new_own, new_edge = self.method.start(self.arrays, own.theta)
        self.own = loop.moved(own, new_own, slice(None), slice(None), skip=loop.RECOMPUTED_FIELDS)
        (old, there), (new, here) = _ends(before), _ends(self.arrays)
        _, one, other = np.intersect1d(old, new, assume_unique=True, return_indices=True)
        there, here = there[one], here[other]
        self.edge = loop.moved(edge, new_edge, there, here, skip=loop.RECOMPUTED_FIELDS)
        self.outbox = new_outbox(self.method, self.arrays, problem.p, self.capacity)
        strangers = self.arrays.peer.copy()
        if self.method.edges.greets_all:
            n, kept = self._problem.n, np.bincount(owners(self.arrays.edge_start)[here], minlength=self._problem.n)
            same = (np.bincount(old // n, minlength=n) == kept) & (np.bincount(new // n, minlength=n) == kept)
            self.meet(self.arrays, np.flatnonzero(~same))
            return
        strangers[here] = VACANT
        self.meet(self.arrays._replace(peer=strangers))

    def state(self, setting: str) -> State:
        """Return the current state. It shares arrays with the driver, which must not run any further."""
        numbers: dict[str, Any] = {name: rng.bit_generator.state for name, rng in self._generators().items()}
        kept = edges_of(self.arrays) if self.method.edges.spare else {}
        for name in self.kept:
            value = getattr(self, name)
            if isinstance(value, int | float):
                numbers[name] = value
            else:
                kept |= dict(flat(name, value))
        return State(type(self).__name__, setting, self.once, kept, numbers, self.problem, self.method)

    def go_on(self, state: State) -> None:
        """Continue from where a run of the same kind has stopped."""
        if self.method.edges.spare:
            self.arrays = with_edges(self.arrays, state.arrays)
        for name in self.kept:
            value = getattr(self, name)
            if isinstance(value, int | float):
                setattr(self, name, type(value)(state.numbers[name]))
            else:
                setattr(self, name, filled(name, value, partial(restored, state.arrays)))
        for name, rng in self._generators().items():
            rng.bit_generator.state = state.numbers[name]

    def _generators(self) -> dict[str, np.random.Generator]:
        return {name: value for name, value in vars(self).items() if isinstance(value, np.random.Generator)}

    def widen(self) -> None:
        """Double the edge slots of agents that lack free ones."""
        self.arrays, self.edge = loop.widen(self.method, self.arrays, self.edge, self.outbox)

    def check(self) -> None:
        """Raise if a message was refused."""
        if self.outbox.cursor[REFUSED]:
            raise undeliverable(self.method, self.outbox)

    def settle(self) -> bool:
        """Raise if a message was refused, and make room where an agent needs it. Return whether one did."""
        self.outbox.cursor[REFUSED] += self.egress.counter[1]  # there is no other process
        self.check()
        short = bool(self.outbox.cursor[NEEDS_ROOM])
        if short:
            self.widen()
        return short


def undeliverable(method: Any, outbox: Any) -> CapacityError:
    """Return the error for a message that was refused."""
    return CapacityError(
        f"{method!r} posted a message that cannot be delivered: more, or longer, than the "
        f"{method.traffic.max_messages} of {outbox.text.shape[1]} numbers that it declares for one event, or to "
        "no agent's address"
    )


def disagreement(problem: Problem, theta: np.ndarray) -> float:
    """Return the mean squared distance of shared parameters from their mean over agents.

    The objective does not include this: it evaluates each agent's own parameters.
    """
    shared = theta[:, problem.roles == SHARED]
    return float(np.square(shared - shared.mean(axis=0)).sum(axis=1).mean())


def graph_of(arrays: AgentArrays) -> Graph:
    """Return the graph of the edges in agents' arrays; if the ends hold different weights, with their mean."""
    n, linked = arrays.address.shape[0], arrays.peer != VACANT
    i, j, w = owners(arrays.edge_start)[linked], arrays.peer[linked], arrays.weight[linked]
    low, high = np.minimum(i, j), np.maximum(i, j)
    ends, edge = np.unique(low * n + high, return_inverse=True)
    weight = 0.5 * np.bincount(edge, weights=w, minlength=ends.shape[0])
    return Graph.from_edges(n, ends // n, ends % n, weight)


def _ends(arrays: AgentArrays) -> tuple[np.ndarray, np.ndarray]:
    """Return one number for each edge, equal at both ends; and its slot."""
    slots = np.flatnonzero(arrays.peer != VACANT)
    return owners(arrays.edge_start)[slots] * arrays.address.shape[0] + arrays.peer[slots], slots


class Immediate(Driver):
    """Simulation in which messages arrive before the next agent wakes.

    Messages of a method that publishes are stored once, unless the problem will change: then they are carried over from
    edge to edge. With several `jobs`, wakes run in parallel.
    """

    refuses: Mapping[str, str] = MappingProxyType({"fetch": USUAL_REFUSALS["fetch"]})
    kept = (*Driver.kept, "elapsed", "drawn")

    @classmethod
    def settings(cls, asked: Asked, options: Options) -> dict[str, Any]:
        """Check the schedule, and choose the number of threads."""
        found = super().settings(asked, options) | {"capacity": options.capacity, "lock_free": options.lock_free}
        found["schedule"] = _schedule(options.events, asked)
        return found | {"jobs": _jobs(asked.problem, asked.method, options.n_jobs, options.lock_free)}

    def __init__(self, asked: Asked, choice: Any, capacity: Any, schedule: Any, jobs: int, lock_free: bool):
        changing = len(asked.stages) > 1 or (asked.old is not None and not asked.old.once)
        method = asked.method
        super().__init__(
            asked, choice, capacity or method.traffic.max_messages, method.traffic.publishes and not changing
        )
        self.schedule = schedule
        self.who, self.when, self.fate = seeds(asked.seed, 3)
        self.asked, self.elapsed = 0, 0.0
        self.drawn = self._draw(0)
        self.meet(self.arrays)
        self.team = Team(jobs, asked.problem.n, lock_free) if jobs > 1 else None

    def close(self) -> None:
        """Stop the threads."""
        if self.team is not None:
            self.team.close()

    def _draw(self, count: int) -> list[np.ndarray]:
        """Draw which agents wake, their neighbours for exchanges, random numbers, and times."""
        n, dice = self._problem.n, self.fate.random((count, self.method.traffic.dice))
        if self.schedule is None:
            intervals = self.when.standard_exponential(count)
            return [self.who.integers(0, n, count), np.full(count, VACANT), dice, intervals]
        order, peers = self.schedule[:, self.asked : self.asked + count]
        self.asked += count
        return [order, peers, dice, np.ones(count)]

    def advance(self, steps: int, budget: loop.Budget) -> None:
        """Take at most `steps` steps, and stop when the budget is spent."""
        if steps > len(self.drawn[0]):  # unused draws come first, so that draws do not depend on budgets
            more = self._draw(steps - len(self.drawn[0]))
            self.drawn = [np.concatenate(pair) for pair in zip(self.drawn, more, strict=True)]
        order, peers, dice, intervals = (part[:steps] for part in self.drawn)
        events = order, peers, dice, (self.done + np.arange(steps)) / self._problem.n
        done = 0 if self.team is None else self.team.run(self, events, budget)
        while True:
            rest = (part[done:] for part in events)
            done += loop.run(*self.agents, *rest, self.outbox, self.egress, self.account, budget)
            if not self.settle():
                break
        # Added one by one, so that sums do not depend on how a run is divided.
        self.elapsed = float(np.cumsum(np.append(self.elapsed, intervals[:done]))[-1])
        self.time = self.elapsed / self._problem.n
        self.done += done
        self.drawn = [part[done:] for part in self.drawn]


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


def _schedule(given: np.ndarray | None, asked: Asked) -> np.ndarray | None:
    """Return waking agents and their neighbours as two rows; VACANT to let the agent choose."""
    if given is None:
        return None
    stages, total = asked.stages, asked.total
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
    if not asked.method.traffic.exchanges:
        raise ParameterError(
            f"events with neighbours: {asked.method!r} does not exchange with one neighbour; leave them out"
        )
    peers = given[:, 1].astype(np.int64)
    for (first, stage), last in zip(stages, [moment for moment, _ in stages[1:]] + [total], strict=True):
        t = stranger(order, peers, stage.graph.start, stage.graph.peer, first, last)
        if t < last:
            raise ParameterError(f"event {t}: agents number {order[t]} and {peers[t]} are not neighbours")
    return np.stack([order, peers])


def _jobs(problem: Problem, method: Any, n_jobs: Any, lock_free: bool) -> int:
    """Return the number of threads for wakes."""
    if lock_free and method.privacy.plan is not None:
        raise MismatchError(
            f"{method!r}: in lock-free runs a wake may read a model while another thread writes it, which the "
            "privacy proof does not cover; leave lock_free out: threads run without it, too"
        )
    if lock_free and method.traffic.footprint is None:
        raise MismatchError(
            f"{method!r} does not declare a footprint, the state that a wake touches: two threads might change one "
            "list of edges at once; leave lock_free out"
        )
    if n_jobs is None and problem.n < MANY_AGENTS:
        return 1
    in_python = hasattr(problem.model, "gradients")  # models in Python run in one thread
    return threads(n_jobs) if method.traffic.footprint is not None and not in_python else 1


class Synchronous(Driver):
    """Synchronous rounds: all agents act, or those that the `conditions` select, then all messages are delivered."""

    refuses = {"capacity": IN_ROUNDS} | USUAL_REFUSALS
    kept = (*Driver.kept, "acted")

    @classmethod
    def settings(cls, asked: Asked, options: Options) -> dict[str, Any]:
        """Check that the method has rounds, and that conditions fit rounds."""
        if not asked.method.training.synchronous:
            raise MismatchError(f"{asked.method!r} has no synchronous form: pass wakes=..., vectors=... or bytes=...")
        conditions: Conditions | None = options.conditions
        if conditions is not None:
            if not conditions.for_rounds:
                raise ParameterError(IN_ROUNDS.format(n=asked.problem.n))
            conditions.check(asked.problem.n, asked.unit)
        return super().settings(asked, options) | {"conditions": conditions}

    def __init__(self, asked: Asked, choice: Any, conditions: Conditions | None):
        problem = asked.problem
        messages = problem.n + problem.graph.peer.shape[0]  # a broadcast of each agent, or one message along each edge
        super().__init__(asked, choice, messages)
        self.fate, self.who = seeds(asked.seed, 2)
        self.conditions, self.acted = conditions, 0
        self.meet(self.arrays)

    @property
    def wakes(self) -> int:
        """Number of times that an agent acted."""
        return self.acted

    def change(self, problem: Problem) -> None:
        self.capacity = problem.n + problem.graph.peer.shape[0]
        super().change(problem)

    def advance(self, steps: int, budget: loop.Budget) -> None:
        if self.method.training.jobs or self.conditions is not None:
            self._one_by_one(steps, budget)
            return
        while True:
            done = loop.rounds(*self.agents, steps, self.outbox, self.egress, self.account, budget)
            self.done += done
            self.acted += done * self._problem.n
            steps -= done
            if not self.settle():
                break
        self.time = float(self.done)

    def _one_by_one(self, steps: int, budget: loop.Budget) -> None:
        """As :meth:`advance`, round by round: for methods with random numbers, and for participation."""
        n = self._problem.n
        for _ in range(steps):
            if loop.spent(self.account, budget):
                break
            present = np.ones(n, bool) if self.conditions is None else self.conditions.present(n, self.done, self.who)
            post = self.outbox, self.egress, self.account
            if self.method.training.jobs:  # models that can train all agents at once do so
                dice = self.fate.random((n, self.method.traffic.dice))
                act: Any = round_in_python if hasattr(self.arrays.model, "gradients") else loop.training_round
                act(*self.agents, present, dice, float(self.done), *post)
            else:
                loop.partial_round(*self.agents, present, *post)
            self.settle()
            self.done += 1
            self.acted += int(np.count_nonzero(present))
        self.time = float(self.done)


class Timed(Driver):
    """Simulation in which messages take time, or never arrive."""

    refuses = {"events": "events replay a schedule and conditions draw one: pass one of the two"} | USUAL_REFUSALS
    kept = (*Driver.kept, "queue")

    @classmethod
    def settings(cls, asked: Asked, options: Options) -> dict[str, Any]:
        """Check the conditions, and that they suit the method."""
        conditions, method = options.conditions, asked.method
        conditions.check(asked.problem.n, asked.unit)
        if method.traffic.sums and (why := conditions.breaks_sums):
            instead = (
                "pass ct.compression.Compressed(..., whole_every=...), so that some messages hold whole models"
                if has_inside(method, "whole_every")
                else "remove this from the conditions (a latency with jitter=0 and participation=... are fine), or "
                "use a method whose messages may be lost, on mutual edges: ct.gossip.GradientTracking(...), "
                "ct.gossip.DPSGD(...)"
            )
            raise MismatchError(
                f"{method!r}: neighbours sum up what it sends, and {why} would corrupt the sums; {instead}"
            )
        return super().settings(asked, options) | {"conditions": conditions, "capacity": options.capacity}

    def __init__(self, asked: Asked, choice: Any, conditions: Conditions, capacity: Any):
        problem, method = asked.problem, asked.method
        super().__init__(asked, choice, method.traffic.max_messages)
        self.most = capacity
        self.broadcasts = method.traffic.broadcasts
        need = self._need(self.arrays)
        self.channel = conditions.channel(problem.n)
        [self.rng] = seeds(asked.seed, 1)
        self.dice = np.zeros(method.traffic.dice)
        size = self.outbox.text.shape[1]
        self.queue = events.new_queue(problem.n, capacity or max(need, 1024), size, self.broadcasts)
        events.begin(self.queue, self.channel, self.rng)
        self.meet(self.arrays)

    def _need(self, arrays: AgentArrays) -> int:
        """Return the largest number of messages that one event may put in transit."""
        edges = int(np.diff(arrays.edge_start).max(initial=0))
        need = 2 * (self.method.traffic.max_messages + self.broadcasts * edges)
        if self.most is not None and self.most < need:
            raise CapacityError(
                f"capacity={self.most} is too small: one event may send {need} messages along {edges} edges, each "
                "delivered twice"
            )
        return need

    def change(self, problem: Problem) -> None:
        self._need(arrays_of(problem, spare=self.method.edges.spare))
        super().change(problem)

    def widen(self) -> None:
        super().widen()
        self._need(self.arrays)

    def meet(self, arrays: AgentArrays, who: np.ndarray | None = None) -> None:
        """Let all agents greet their neighbours in these arrays, since messages may be lost."""
        ready = 0
        while ready < self._problem.n:
            agents = self.method, arrays, self.own, self.edge
            ready = events.meet(*agents, self.outbox, self.queue, self.channel, self.rng, self.account, ready)
            self.check()
            if ready < self._problem.n:
                self._grow()

    def _grow(self) -> None:
        if self.most is not None:
            raise CapacityError(
                f"more than capacity={self.most} messages are in transit at time {self.queue.clock[0]:.3g}, "
                f"after {self.done} wakes: raise it, or leave it out"
            )
        self.queue = events.grown(self.queue)

    def advance(self, steps: int, budget: loop.Budget) -> None:
        while steps > 0:
            post = self.outbox, self.queue, self.channel, self.rng, self.account
            done = events.run(*self.agents, *post, budget, steps, self.dice)
            self.check()
            self.done += done
            steps -= done
            if steps > 0:
                if loop.spent(self.account, budget):
                    break
                if self.outbox.cursor[NEEDS_ROOM]:
                    self.widen()
                else:
                    self._grow()
        self.time = float(self.queue.clock[0])


def seeds(seed: Any, count: int) -> list[np.random.Generator]:
    """Return independent generators, so that the draw of wakes does not depend on other draws."""
    try:
        return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(count)]
    except (TypeError, ValueError):
        raise ParameterError(f"seed={seed!r} must be a whole number >= 0") from None
