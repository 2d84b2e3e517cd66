"""What drives the compiled loops of a simulation: clocks, seeds, and problems that change on the way.

A driver holds the agents' arrays, the state of a method in it, and the account of what was sent. It knows one thing:
:meth:`Driver.advance`.
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
from .together import together
from .wire import prices


class Asked(NamedTuple):
    """What is asked of a run, of whichever kind it is."""

    problem: Any  # a Problem, or a ShardedProblem
    method: Any
    unit: str
    total: int  # so many of the unit
    stages: tuple[tuple[int, Problem], ...]  # all problems, each with the moment from which it holds
    models: str | np.ndarray  # before the first wake, or a word for them
    seed: Any
    old: State | None  # where a run has stopped that this one goes on from

    @property
    def theta(self) -> np.ndarray:
        """Models before the first wake."""
        if isinstance(self.models, str):
            problem: Problem = self.problem
            return problem.local() if self.models == "local" else np.zeros((problem.n, problem.p))
        return self.models


class Options(NamedTuple):
    """What only some kinds of runs take: see :attr:`Driver.refuses`."""

    events: Any = None
    conditions: Any = None
    capacity: Any = None
    choice: Any = "uniform"
    n_jobs: Any = None
    lock_free: bool = False
    engine: Any = None
    fetch: Any = None


def options_of(given: Mapping[str, Any]) -> Options:
    """Options by name, those left out as usual."""
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


#: Why most kinds of runs do not take an option.
ELSEWHERE = {
    "lock_free": "lock_free=True is for wakes whose messages arrive at once: leave it out",
    "fetch": "fetch=... is for models on a cluster: leave it out, or say engine=ct.Cluster(...)",
}
IN_ROUNDS = (
    "rounds are synchronous: latency, loss, duplication and capacity are for agents that wake by themselves; "
    "conditions for rounds say who takes part. Say wakes=... in place of rounds: {n} wakes are about one round. "
    "Without loss, say wakes, too, to compare: wakes and rounds end elsewhere"
)


class Driver(ABC):
    """What all drivers share: arrays, state of the method in it, and account; ``capacity`` is that of the outbox.

    Where no message is late or lost, those of a method that publishes may be stored `once`, not for each neighbour.
    """

    #: Options that this kind of run does not take, and why; ``n_jobs`` is for those that take wakes one by one.
    refuses: Mapping[str, str]
    #: What a run has to have when it goes on later, beside random generators: numbers, arrays, tuples of arrays.
    kept: tuple[str, ...] = ("own", "edge", "account", "done", "time")
    #: Steps to ask for at first; more and more follow while calls are short, so that one can look and interrupt.
    pace = 64

    @classmethod
    def refuse(cls, options: Options, n: int) -> None:
        """Refuse the options that this kind of run does not take."""
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
        """A driver by itself, of a problem that may be `changing`."""
        options = options_of(given)
        total = total if options.events is None else len(options.events)
        asked = Asked(problem, method, "wakes", total, ((0, problem),) * (1 + changing), models, seed, None)
        return cls(asked, **cls.settings(asked, options))

    @classmethod
    def settings(cls, asked: Asked, options: Options) -> dict[str, Any]:
        """Check the options of this kind of run: how to make a driver, beside what is asked of it."""
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
        """Let go of threads and machines."""

    @property
    def problem(self) -> Problem:
        """The problem as it is now: on the graph that the agents have learned so far, if they do."""
        if self.method.edges.spare:
            graph = graph_of(self.arrays)
            if graph != self._problem.graph:
                self._problem = self._problem.on(graph=graph)
        return self._problem

    @property
    def agents(self) -> Any:
        """What kernels know of the agents: the method, their arrays, and its state of each and of each edge."""
        return self.method, self.arrays, self.own, self.edge

    @property
    def theta(self) -> np.ndarray:
        """Models as agents would use them now, read-only."""
        view = shown_by(*self.agents).view()
        view.flags.writeable = False
        return view

    @property
    def final(self) -> np.ndarray:
        """Models that the agents have in the end: those of :attr:`theta`, or what they keep to themselves."""
        return finished_by(*self.agents)

    @property
    def population(self) -> Any:
        """What each agent takes for the population, of a method that learns one; else None."""
        if self.method.inspection.population is None:
            return None
        return self.method.inspection.population(self.arrays, self.own, self.edge)

    def measures(self) -> dict[str, float]:
        """What a trace tells of the models: the objective, and how far it is above its optimum where that is cheap."""
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
        """How many times an agent woke."""
        return self.done

    @property
    def vectors(self) -> int:
        """How many vectors of p numbers were sent."""
        return int(self.account[loop.NUMBERS]) // self.p

    @property
    def bytes(self) -> int:
        """How many bytes were sent."""
        return round(loop.cost_of(self.account, *self.prices))

    @property
    def prices(self) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of a message of each kind, and of each number in it beside."""
        return prices(self.method.messages, self.shared)

    @property
    def shared(self) -> int:
        """How many numbers of a model are not personal, and so may be sent."""
        return int(self.arrays.sent.shape[0])

    def budget(self, unit: str, limit: float) -> loop.Budget:
        """A limit on the vectors or bytes sent; none for other units."""
        if unit == "vectors":
            kinds = len(self.method.messages)
            return loop.Budget(np.zeros(kinds), np.ones(kinds), float(limit * self.p))
        if unit == "bytes":
            return loop.Budget(*self.prices, float(limit))
        return loop.NO_LIMIT

    @abstractmethod
    def advance(self, steps: int, budget: loop.Budget) -> None:
        """Take at most so many steps, and stop when the budget is spent."""

    def meet(self, arrays: AgentArrays, who: np.ndarray | None = None) -> None:
        """Let the agents, or those that are named, greet those they are tied to in these arrays."""
        loop.meet(self.method, arrays, self.own, self.edge, self.outbox, self.egress, self.account, who=who)
        self.settle()

    def change(self, problem: Problem) -> None:
        """Go on with another problem for the same agents: other data, other edges.

        Models, and all that agents know of neighbours they keep, carry over; what a method works out from data
        and watches on the way (fields called ``cache``) is made anew; new neighbours greet each other. Edges that the
        agents have learned stay.
        """
        before, own, edge = self.arrays, self.own, self.edge
        self._problem = problem.on(graph=graph_of(before)) if self.method.edges.spare else problem
        self.arrays = arrays_of(self._problem, self.choice, self.method.edges.spare, batch=self.method.training.batch)
        new_own, new_edge = self.method.start(self.arrays, own.theta)
        self.own = loop.moved(own, new_own, slice(None), slice(None), skip=loop.ANEW)
        (old, there), (new, here) = _ends(before), _ends(self.arrays)
        _, one, other = np.intersect1d(old, new, assume_unique=True, return_indices=True)
        there, here = there[one], here[other]
        self.edge = loop.moved(edge, new_edge, there, here, skip=loop.ANEW)
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
        """Where it is now. The kept are the driver's own: for when it has come to its end."""
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
        """Be where a run of the same kind has stopped."""
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
        """Give agents that are short of slots for new edges twice as many."""
        self.arrays, self.edge = loop.widen(self.method, self.arrays, self.edge, self.outbox)

    def check(self) -> None:
        """Raise if a message was refused."""
        if self.outbox.cursor[REFUSED]:
            raise undeliverable(self.method, self.outbox)

    def settle(self) -> bool:
        """Raise if a message was refused, and make room where an agent needs it. Says whether one did."""
        self.outbox.cursor[REFUSED] += self.egress.counter[1]  # there is no other host
        self.check()
        short = bool(self.outbox.cursor[NEEDS_ROOM])
        if short:
            self.widen()
        return short


def undeliverable(method: Any, outbox: Any) -> CapacityError:
    """What to say of a message that was refused."""
    return CapacityError(
        f"{method!r} posted a message that cannot be delivered: more, or longer, than the {method.traffic.max_messages} "
        f"of {outbox.text.shape[1]} numbers that it announces for one event, or to no agent's address"
    )


def disagreement(problem: Problem, theta: np.ndarray) -> float:
    """How far agents are from sharing what they are to share: mean squared distance of it from its mean over agents.

    The objective does not know: it takes the parameters of each agent as they are.
    """
    shared = theta[:, problem.roles == SHARED]
    return float(np.square(shared - shared.mean(axis=0)).sum(axis=1).mean())


def graph_of(arrays: AgentArrays) -> Graph:
    """The graph of the edges of agents' arrays; where the two ends of an edge do not agree on its weight, the mean."""
    n, tied = arrays.address.shape[0], arrays.peer != VACANT
    i, j, w = owners(arrays.edge_start)[tied], arrays.peer[tied], arrays.weight[tied]
    low, high = np.minimum(i, j), np.maximum(i, j)
    ends, edge = np.unique(low * n + high, return_inverse=True)
    weight = 0.5 * np.bincount(edge, weights=w, minlength=ends.shape[0])
    return Graph.from_edges(n, ends // n, ends % n, weight)


def _ends(arrays: AgentArrays) -> tuple[np.ndarray, np.ndarray]:
    """One number for each edge, from both its ends; and its slot."""
    slots = np.flatnonzero(arrays.peer != VACANT)
    return owners(arrays.edge_start)[slots] * arrays.address.shape[0] + arrays.peer[slots], slots


class Immediate(Driver):
    """Messages arrive before the next agent wakes.

    Those of a method that publishes are stored once, unless the problem will change: then they are carried over from
    edge to edge. With several `jobs`, wakes run in parallel.
    """

    refuses: Mapping[str, str] = MappingProxyType({"fetch": ELSEWHERE["fetch"]})
    kept = (*Driver.kept, "elapsed", "drawn")

    @classmethod
    def settings(cls, asked: Asked, options: Options) -> dict[str, Any]:
        """Check the schedule, and how many threads there may be."""
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
        """Let the threads go."""
        if self.team is not None:
            self.team.close()

    def _draw(self, count: int) -> list[np.ndarray]:
        """Who wakes, talks to whom, with which dice, and how long it takes."""
        n, dice = self._problem.n, self.fate.random((count, self.method.traffic.dice))
        if self.schedule is None:
            intervals = self.when.standard_exponential(count)
            return [self.who.integers(0, n, count), np.full(count, VACANT), dice, intervals]
        order, peers = self.schedule[:, self.asked : self.asked + count]
        self.asked += count
        return [order, peers, dice, np.ones(count)]

    def advance(self, steps: int, budget: loop.Budget) -> None:
        """Take at most so many steps, and stop when the budget is spent."""
        if steps > len(self.drawn[0]):  # what was drawn and not used comes first: draws do not depend on budgets
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
        # Added one by one: sums do not depend on how a run is divided.
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
    """Who wakes and whom it talks to, as two rows; VACANT for one that chooses for itself."""
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
    """How many threads take wakes."""
    if lock_free and method.privacy.plan is not None:
        raise MismatchError(
            f"{method!r}: a wake that reads a model while another thread writes it is not the one that its privacy was "
            "proved for; leave lock_free out: threads run without it, too"
        )
    if lock_free and method.traffic.footprint is None:
        raise MismatchError(
            f"{method!r} does not declare a footprint, which state a wake touches: two threads might change one list "
            "of edges at once; leave lock_free out"
        )
    if n_jobs is None and problem.n < MANY_AGENTS:
        return 1
    in_python = hasattr(problem.model, "gradients")  # one thread at a time
    return threads(n_jobs) if method.traffic.footprint is not None and not in_python else 1


class Synchronous(Driver):
    """All agents act at once, or those that the `conditions` let take part, then all messages are delivered."""

    refuses = {"capacity": IN_ROUNDS} | ELSEWHERE
    kept = (*Driver.kept, "acted")

    @classmethod
    def settings(cls, asked: Asked, options: Options) -> dict[str, Any]:
        """Check that the method has rounds, and that conditions are for them."""
        if not asked.method.training.synchronous:
            raise MismatchError(f"{asked.method!r} has no synchronous form: say wakes=..., vectors=... or bytes=...")
        conditions: Conditions | None = options.conditions
        if conditions is not None:
            if not conditions.for_rounds:
                raise ParameterError(IN_ROUNDS.format(n=asked.problem.n))
            conditions.check(asked.problem.n, asked.unit)
        return super().settings(asked, options) | {"conditions": conditions}

    def __init__(self, asked: Asked, choice: Any, conditions: Conditions | None):
        problem = asked.problem
        messages = problem.n + problem.graph.peer.shape[0]  # a broadcast of each, or one message along each edge
        super().__init__(asked, choice, messages)
        self.fate, self.who = seeds(asked.seed, 2)
        self.conditions, self.acted = conditions, 0
        self.meet(self.arrays)

    @property
    def wakes(self) -> int:
        """How many times an agent acted."""
        return self.acted

    def change(self, problem: Problem) -> None:
        """Go on with another problem for the same agents."""
        self.capacity = problem.n + problem.graph.peer.shape[0]
        super().change(problem)

    def advance(self, steps: int, budget: loop.Budget) -> None:
        """Take at most so many steps, and stop when the budget is spent."""
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
        """The same, round by round: with dice, which methods that train need, and with whoever takes part."""
        n = self._problem.n
        for _ in range(steps):
            if loop.spent(self.account, budget):
                break
            present = np.ones(n, bool) if self.conditions is None else self.conditions.present(n, self.done, self.who)
            post = self.outbox, self.egress, self.account
            if self.method.training.jobs:  # where the model can, it trains all agents at once
                dice = self.fate.random((n, self.method.traffic.dice))
                act: Any = together if hasattr(self.arrays.model, "gradients") else loop.together
                act(*self.agents, present, dice, float(self.done), *post)
            else:
                loop.partial_round(*self.agents, present, *post)
            self.settle()
            self.done += 1
            self.acted += int(np.count_nonzero(present))
        self.time = float(self.done)


class Timed(Driver):
    """Messages take their time, or never arrive."""

    refuses = {"events": "events replay a schedule and conditions draw one: pass one of the two"} | ELSEWHERE
    kept = (*Driver.kept, "queue")

    @classmethod
    def settings(cls, asked: Asked, options: Options) -> dict[str, Any]:
        """Check the conditions, and that they suit the method."""
        conditions, method = options.conditions, asked.method
        conditions.check(asked.problem.n, asked.unit)
        if method.traffic.sums and (why := conditions.breaks_sums):
            instead = (
                "say ct.compression.Compressed(..., whole_every=...), so that every so many messages one is whole"
                if has_inside(method, "whole_every")
                else "leave that out of the conditions (a latency with jitter=0 and participation=... are fine), or "
                "use a method whose messages may be lost, on mutual edges: ct.gossip.GradientTracking(...), ct.gossip.DPSGD(...)"
            )
            raise MismatchError(
                f"{method!r}: neighbours add up what it sends, and with {why} the sums would be wrong from then on; "
                f"{instead}"
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
        """Messages that one event may put under way."""
        edges = int(np.diff(arrays.edge_start).max(initial=0))
        need = 2 * (self.method.traffic.max_messages + self.broadcasts * edges)
        if self.most is not None and self.most < need:
            raise CapacityError(
                f"capacity={self.most} is too small: what one event may send along {edges} edges, delivered twice, is "
                f"{need} messages"
            )
        return need

    def change(self, problem: Problem) -> None:
        """Go on with another problem for the same agents."""
        self._need(arrays_of(problem, spare=self.method.edges.spare))
        super().change(problem)

    def widen(self) -> None:
        """Give agents that are short of slots for new edges twice as many."""
        super().widen()
        self._need(self.arrays)

    def meet(self, arrays: AgentArrays, who: np.ndarray | None = None) -> None:
        """Let the agents greet those they are tied to in these arrays: all of them, since messages may be lost."""
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
                f"more than capacity={self.most} messages are under way at time {self.queue.clock[0]:.3g}, "
                f"after {self.done} wakes: raise it, or leave it out"
            )
        self.queue = events.grown(self.queue)

    def advance(self, steps: int, budget: loop.Budget) -> None:
        """Take at most so many steps, and stop when the budget is spent."""
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
    """Independent generators, so that who wakes does not depend on what else is drawn."""
    try:
        return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(count)]
    except (TypeError, ValueError):
        raise ParameterError(f"seed={seed!r} must be a whole number >= 0") from None
