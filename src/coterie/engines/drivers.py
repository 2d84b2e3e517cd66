"""What drives the compiled loops of a simulation: clocks, seeds, and problems that change on the way.

A driver holds the world, the state of a method in it, and the account of what was sent. It knows one thing:
:meth:`Driver.advance`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import numpy as np

from .._archive import filled, flat
from ..core import events, loop
from ..core.world import NEEDS_ROOM, REFUSED, SHARED, VACANT, World, new_outbox, stored_once
from ..errors import CapacityError, ConvergenceError, ParameterError
from ..graphs import Graph
from ..problem import Problem
from .conditions import Conditions
from .parallel import Team
from .state import State, restored, ties_of, with_ties
from .together import together
from .wire import prices
from .worlds import world_of


class Driver(ABC):
    """What all drivers share: world, state of the method in it, and account; ``capacity`` is that of the outbox.

    Where no letter is late or lost, those of a method that publishes may be stored `once`, not for each neighbour.
    """

    #: What a run has to have when it goes on later, beside random generators: numbers, arrays, tuples of arrays.
    kept: tuple[str, ...] = ("own", "tie", "account", "done", "time")
    #: Steps to ask for at first; more and more follow while calls are short, so that one can look and interrupt.
    pace = 64

    def __init__(
        self, problem: Problem, method: Any, theta: np.ndarray, choice: Any, capacity: int, once: bool = False
    ):
        self.method, self.choice, self.capacity, self.once = method, choice, capacity, once
        self._problem, self.p = problem, problem.p
        self.world = world_of(problem, choice, method.ties.spare, once, method.training.batch)
        self.own, self.tie = stored_once(method, self.world, theta) if once else method.start(self.world, theta)
        self.outbox = new_outbox(method, self.world, problem.p, capacity)
        self.account = loop.new_account(method)
        self.done, self.time = 0, 0.0

    @property
    def problem(self) -> Problem:
        """The problem as it is now: on the graph that the agents have learned so far, if they do."""
        if self.method.ties.spare:
            graph = graph_of(self.world)
            if graph != self._problem.graph:
                self._problem = self._problem.on(graph=graph)
        return self._problem

    @property
    def theta(self) -> np.ndarray:
        """Models as agents would use them now, read-only."""
        if self.method.inspection.shown is None:
            view: np.ndarray = self.own.theta.view()
        else:
            view = self.method.inspection.shown(self.world, self.own, self.tie)
        view.flags.writeable = False
        return view

    @property
    def final(self) -> np.ndarray:
        """Models that the agents have in the end: those of :attr:`theta`, or what they keep to themselves."""
        if self.method.privacy.finish is None:
            return self.theta.copy()
        models: np.ndarray = self.method.privacy.finish(self.world, self.own, self.tie)
        return models

    @property
    def population(self) -> Any:
        """What each agent takes for the population, of a method that learns one; else None."""
        if self.method.inspection.population is None:
            return None
        return self.method.inspection.population(self.world, self.own, self.tie)

    def measures(self) -> dict[str, float]:
        """What a trace tells of the models: the objective, and how far it is above its optimum where that is cheap."""
        problem, theta = self.problem, self.theta
        if not np.all(np.isfinite(theta)):
            lost = int(np.argmax(~np.isfinite(theta).all(axis=1)))
            raise ConvergenceError(
                f"{self.method!r} has diverged: after {self.wakes} wakes the model of agent "
                f"{problem.members[lost]!r} is not finite; take smaller steps"
            )
        learned = self.method.ties.spare > 0
        value = problem.value(theta)
        if self.method.training.jobs and np.isnan(value):
            raise ConvergenceError(
                f"{self.method!r} has diverged: after {self.wakes} wakes the models are too large to have a loss; take "
                "smaller steps"
            )
        return {
            "value": value + (self.method.rule.regularizer(problem) if learned else 0.0),
            **({"gap": problem.gap(theta)} if np.isfinite(problem.radius) else {}),
            **(
                {"honest_loss": float(problem.losses(theta)[self._honest].mean())}
                if len(self.method.inspection.liars)
                else {}
            ),
            **({"neighbours": 2.0 * problem.graph.n_edges / problem.n} if learned else {}),
            **({"disagreement": disagreement(problem, theta)} if np.any(problem.roles == SHARED) else {}),
        }

    @property
    def _honest(self) -> np.ndarray:
        """The agents that are no liars."""
        return np.setdiff1d(np.arange(self._problem.n), self.method.inspection.liars)

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
        """Bytes of a letter of each kind, and of each number in it beside."""
        return prices(self.method.letters, self.shared)

    @property
    def shared(self) -> int:
        """How many numbers of a model are not personal, and so may be sent."""
        return int(self.world.sent.shape[0])

    def budget(self, unit: str, limit: float) -> loop.Budget:
        """A limit on the vectors or bytes sent; none for other units."""
        if unit == "vectors":
            kinds = len(self.method.letters)
            return loop.Budget(np.zeros(kinds), np.ones(kinds), float(limit * self.p))
        if unit == "bytes":
            return loop.Budget(*self.prices, float(limit))
        return loop.NO_LIMIT

    @abstractmethod
    def advance(self, steps: int, budget: loop.Budget) -> None:
        """Take at most so many steps, and stop when the budget is spent."""

    @abstractmethod
    def meet(self, world: World, who: np.ndarray | None = None) -> None:
        """Let the agents, or those that are named, greet those they are tied to in this world."""

    def change(self, problem: Problem) -> None:
        """Go on with another problem for the same agents: other data, other ties.

        Models, and all that agents know of neighbours they keep, carry over; what a method works out from data
        and watches on the way (fields called ``cache``) is made anew; new neighbours greet each other. Ties that the
        agents have learned stay.
        """
        before, own, tie = self.world, self.own, self.tie
        self._problem = problem.on(graph=graph_of(before)) if self.method.ties.spare else problem
        self.world = world_of(self._problem, self.choice, self.method.ties.spare, batch=self.method.training.batch)
        new_own, new_tie = self.method.start(self.world, own.theta)
        self.own = loop.moved(own, new_own, slice(None), slice(None), skip=loop.ANEW)
        (old, there), (new, here) = _ends(before), _ends(self.world)
        _, one, other = np.intersect1d(old, new, assume_unique=True, return_indices=True)
        there, here = there[one], here[other]
        self.tie = loop.moved(tie, new_tie, there, here, skip=loop.ANEW)
        self.outbox = new_outbox(self.method, self.world, problem.p, self.capacity)
        strangers = self.world.peer.copy()
        if self.method.ties.greets_all:
            n, kept = self._problem.n, np.bincount(_owners(self.world)[here], minlength=self._problem.n)
            same = (np.bincount(old // n, minlength=n) == kept) & (np.bincount(new // n, minlength=n) == kept)
            self.meet(self.world, np.flatnonzero(~same))
            return
        strangers[here] = VACANT
        self.meet(self.world._replace(peer=strangers))

    def state(self, setting: str) -> State:
        """Where it is now. The arrays are the driver's own: for when it has come to its end."""
        numbers: dict[str, Any] = {name: rng.bit_generator.state for name, rng in self._generators().items()}
        arrays = ties_of(self.world) if self.method.ties.spare else {}
        for name in self.kept:
            value = getattr(self, name)
            if isinstance(value, int | float):
                numbers[name] = value
            else:
                arrays |= dict(flat(name, value))
        return State(type(self).__name__, setting, self.once, arrays, numbers, self.problem, self.method)

    def go_on(self, state: State) -> None:
        """Be where a run of the same kind has stopped."""
        if self.method.ties.spare:
            self.world = with_ties(self.world, state.arrays)
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
        """Give agents that are short of slots for new ties twice as many."""
        self.world, self.tie = loop.widen(self.method, self.world, self.tie, self.outbox)

    def check(self) -> None:
        """Raise if a letter was refused."""
        if self.outbox.cursor[REFUSED]:
            raise CapacityError(
                f"{self.method!r} posted a letter that cannot be delivered: more, or longer, than the "
                f"{self.method.traffic.max_letters} of {self.outbox.text.shape[1]} numbers that it announces for one "
                "event, or to no agent's address"
            )


def disagreement(problem: Problem, theta: np.ndarray) -> float:
    """How far agents are from sharing what they are to share: mean squared distance of it from its mean over agents.

    The objective does not know: it takes the parameters of each agent as they are.
    """
    shared = theta[:, problem.roles == SHARED]
    return float(np.square(shared - shared.mean(axis=0)).sum(axis=1).mean())


def graph_of(world: World) -> Graph:
    """The graph of the ties of a world; where the two ends of a tie do not agree on its weight, the mean."""
    n, tied = world.address.shape[0], world.peer != VACANT
    i, j, w = _owners(world)[tied], world.peer[tied], world.weight[tied]
    low, high = np.minimum(i, j), np.maximum(i, j)
    ends, edge = np.unique(low * n + high, return_inverse=True)
    weight = 0.5 * np.bincount(edge, weights=w, minlength=ends.shape[0])
    return Graph.from_edges(n, ends // n, ends % n, weight)


def _owners(world: World) -> np.ndarray:
    return np.repeat(np.arange(world.address.shape[0]), np.diff(world.tie_start))


def _ends(world: World) -> tuple[np.ndarray, np.ndarray]:
    """One number for each tie, from both its ends; and its slot."""
    slots = np.flatnonzero(world.peer != VACANT)
    return _owners(world)[slots] * world.address.shape[0] + world.peer[slots], slots


class Immediate(Driver):
    """Letters arrive before the next agent wakes.

    Those of a method that publishes are stored once, unless the problem will `change`: then they are carried over from
    tie to tie. With a `team`, wakes run in parallel.
    """

    kept = (*Driver.kept, "elapsed", "drawn")

    def __init__(
        self,
        problem: Problem,
        method: Any,
        theta: np.ndarray,
        choice: Any,
        schedule: Any,
        seed: Any,
        capacity: Any,
        changes: bool = False,
        team: Team | None = None,
    ):
        once = method.traffic.publishes and not changes
        super().__init__(problem, method, theta, choice, capacity or method.traffic.max_letters, once)
        self.schedule, self.team = schedule, team
        self.who, self.when, self.fate = seeds(seed, 3)
        self.egress = loop.new_egress(0, 1)
        self.asked, self.elapsed = 0, 0.0
        self.drawn = self._draw(0)
        self.meet(self.world)

    def _draw(self, count: int) -> list[np.ndarray]:
        """Who wakes, talks to whom, with which dice, and how long it takes."""
        n, dice = self._problem.n, self.fate.random((count, self.method.traffic.dice))
        if self.schedule is None:
            intervals = self.when.standard_exponential(count)
            return [self.who.integers(0, n, count), np.full(count, VACANT), dice, intervals]
        order, peers = self.schedule[:, self.asked : self.asked + count]
        self.asked += count
        return [order, peers, dice, np.ones(count)]

    def meet(self, world: World, who: np.ndarray | None = None) -> None:
        """Let the agents, or those that are named, greet those they are tied to in this world."""
        loop.meet(self.method, world, self.own, self.tie, self.outbox, self.egress, self.account, who=who)
        self.settle()

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
            state = self.method, self.world, self.own, self.tie
            done += loop.run(*state, *rest, self.outbox, self.egress, self.account, budget)
            if not self.settle():
                break
        # Added one by one: sums do not depend on how a run is divided.
        self.elapsed = float(np.cumsum(np.append(self.elapsed, intervals[:done]))[-1])
        self.time = self.elapsed / self._problem.n
        self.done += done
        self.drawn = [part[done:] for part in self.drawn]

    def settle(self) -> bool:
        """Raise if a letter was refused, and make room where an agent needs it. Says whether one did."""
        self.outbox.cursor[REFUSED] += self.egress.counter[1]  # there is no other host
        self.check()
        short = bool(self.outbox.cursor[NEEDS_ROOM])
        if short:
            self.widen()
        return short


class Synchronous(Driver):
    """All agents act at once, or those that the `conditions` let take part, then all letters are delivered."""

    kept = (*Driver.kept, "acted")

    def __init__(
        self,
        problem: Problem,
        method: Any,
        theta: np.ndarray,
        choice: Any,
        seed: Any,
        conditions: Conditions | None = None,
    ):
        letters = problem.n + problem.graph.peer.shape[0]  # a broadcast of each, or one letter along each tie
        super().__init__(problem, method, theta, choice, letters)
        self.fate, self.who = seeds(seed, 2)
        self.conditions, self.acted = conditions, 0
        self.egress = loop.new_egress(0, 1)
        self.meet(self.world)

    @property
    def wakes(self) -> int:
        """How many times an agent acted."""
        return self.acted

    def change(self, problem: Problem) -> None:
        """Go on with another problem for the same agents."""
        self.capacity = problem.n + problem.graph.peer.shape[0]
        super().change(problem)

    def meet(self, world: World, who: np.ndarray | None = None) -> None:
        """Let the agents, or those that are named, greet those they are tied to in this world."""
        loop.meet(self.method, world, self.own, self.tie, self.outbox, self.egress, self.account, who=who)
        self.check()

    def advance(self, steps: int, budget: loop.Budget) -> None:
        """Take at most so many steps, and stop when the budget is spent."""
        if self.method.training.jobs or self.conditions is not None:
            self._one_by_one(steps, budget)
            return
        while True:
            done = loop.rounds(
                self.method, self.world, self.own, self.tie, steps, self.outbox, self.egress, self.account, budget
            )
            self.check()
            self.done += done
            self.acted += done * self._problem.n
            steps -= done
            if not self.outbox.cursor[NEEDS_ROOM]:
                break
            self.widen()
        self.time = float(self.done)

    def _one_by_one(self, steps: int, budget: loop.Budget) -> None:
        """The same, round by round: with dice, which methods that train need, and with whoever takes part."""
        n = self._problem.n
        for _ in range(steps):
            if loop.spent(self.account, budget):
                break
            present = np.ones(n, bool) if self.conditions is None else self.conditions.present(n, self.done, self.who)
            state = self.method, self.world, self.own, self.tie
            post = self.outbox, self.egress, self.account
            if self.method.training.jobs:  # where the model can, it trains all agents at once
                dice = self.fate.random((n, self.method.traffic.dice))
                act = together if hasattr(self.world.model, "gradients") else loop.together
                act(*state, present, dice, float(self.done), *post)
            else:
                loop.partial_round(*state, present, *post)
            self.check()
            self.done += 1
            self.acted += int(np.count_nonzero(present))
            if self.outbox.cursor[NEEDS_ROOM]:
                self.widen()
        self.time = float(self.done)


class Timed(Driver):
    """Letters take their time, or never arrive."""

    kept = (*Driver.kept, "queue")

    def __init__(
        self,
        problem: Problem,
        method: Any,
        theta: np.ndarray,
        choice: Any,
        conditions: Conditions,
        seed: Any,
        capacity: Any,
    ):
        super().__init__(problem, method, theta, choice, method.traffic.max_letters)
        self.most = capacity
        self.broadcasts = method.traffic.broadcasts
        need = self._need(self.world)
        self.channel = conditions.channel(problem.n)
        [self.rng] = seeds(seed, 1)
        self.dice = np.zeros(method.traffic.dice)
        size = self.outbox.text.shape[1]
        self.queue = events.new_queue(problem.n, capacity or max(need, 1024), size, self.broadcasts)
        events.begin(self.queue, self.channel, self.rng)
        self.meet(self.world)

    def _need(self, world: World) -> int:
        """Letters that one event may put under way."""
        ties = int(np.diff(world.tie_start).max(initial=0))
        need = 2 * (self.method.traffic.max_letters + self.broadcasts * ties)
        if self.most is not None and self.most < need:
            raise CapacityError(
                f"capacity={self.most} is too small: what one event may send along {ties} ties, delivered twice, is "
                f"{need} letters"
            )
        return need

    def change(self, problem: Problem) -> None:
        """Go on with another problem for the same agents."""
        self._need(world_of(problem, spare=self.method.ties.spare))
        super().change(problem)

    def widen(self) -> None:
        """Give agents that are short of slots for new ties twice as many."""
        super().widen()
        self._need(self.world)

    def meet(self, world: World, who: np.ndarray | None = None) -> None:
        """Let the agents greet those they are tied to in this world: all of them, since letters may be lost."""
        ready = 0
        while ready < self._problem.n:
            ready = events.meet(
                self.method,
                world,
                self.own,
                self.tie,
                self.outbox,
                self.queue,
                self.channel,
                self.rng,
                self.account,
                ready,
            )
            self.check()
            if ready < self._problem.n:
                self._grow()

    def _grow(self) -> None:
        if self.most is not None:
            raise CapacityError(
                f"more than capacity={self.most} letters are under way at time {self.queue.clock[0]:.3g}, "
                f"after {self.done} wakes: raise it, or leave it out"
            )
        self.queue = events.grown(self.queue)

    def advance(self, steps: int, budget: loop.Budget) -> None:
        """Take at most so many steps, and stop when the budget is spent."""
        while steps > 0:
            done = events.run(
                self.method,
                self.world,
                self.own,
                self.tie,
                self.outbox,
                self.queue,
                self.channel,
                self.rng,
                self.account,
                budget,
                steps,
                self.dice,
            )
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
