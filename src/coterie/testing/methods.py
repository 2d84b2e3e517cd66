"""Contract checks for methods."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import graphs
from ..core import loop
from ..core.arrays import (
    AUTHOR,
    EVERYONE,
    HEAD,
    NEEDS_ROOM,
    REFUSED,
    TAIL,
    VACANT,
    Message,
    Randomness,
    data_of,
    new_outbox,
    row,
    rows,
)
from ..core.messages import Bounds, Contents, Unsound
from ..core.method import Method, Promises
from ..core.methods import fits
from ..core.models import TwoLayer
from ..data import AgentData
from ..engines.arrays import arrays_of
from ..engines.parallel import in_levels
from ..engines.simulator import simulate
from ..errors import ContractError, ConvergenceError, MismatchError
from ..models import Function
from ..problem import Problem
from ..problem.exact import project
from .problems import NETWORK_SIZES, calm, checkable, hard_problem, network, posed
from .shared import BAD_CONDITIONS, Crowd, Hosted, arrays, check_all, demand, hosted, promise, same

#: All checks of a method, in order.
METHOD_CHECKS: dict[str, Callable[[Any], None]] = {}


def _has_a_goal(method: Any) -> bool:
    return method.promises.minimises is not None


def _minimises(method: Any) -> bool:
    return bool(method.promises.minimises)


def _trains(method: Any) -> bool:
    return bool(method.training.jobs)


class _Goal:
    """The target of a method: the optimum, or the limit of a long undisturbed run."""

    def __init__(self, method: Any, problem: Problem):
        self.problem, self.solved = problem, method.promises.minimises
        self.name = "the optimum" if self.solved else "the limit of an undisturbed run"
        if self.solved:
            self.theta, self.judged = problem.solve(), problem.determined
        else:  # agents without edges have no limit
            start = problem.local() + 1.0
            self.theta = simulate(problem, method, wakes=4000 * problem.n, seed=14, start=start).theta
            self.judged = ~problem.graph.isolated

    def distance(self, theta: np.ndarray) -> tuple[float, float]:
        """Return the relative suboptimality, if the method minimises, and the largest distance, if unique."""
        apart = float(np.abs(theta - self.theta)[self.judged].max(initial=0.0))
        if not self.solved:
            return 0.0, apart
        optimum = self.problem.value(self.theta)
        return (self.problem.value(theta) - optimum) / max(abs(optimum), 1e-300), apart


class Replay:
    """Events and random numbers of a run, for replay in several engines."""

    def __init__(self, method: Any, problem: Problem, wakes: int, seed: int):
        self.method, self.problem, rng = method, problem, np.random.default_rng(seed)
        self.order = rng.integers(0, problem.n, wakes)
        self.dice = rng.random((wakes, method.traffic.dice))
        self.peers = np.full(wakes, VACANT)
        if method.traffic.exchanges:
            edges = [problem.graph.neighbours(i) for i in self.order]
            self.peers[:] = [rng.choice(peers) if len(peers) else VACANT for peers in edges]
        self.events = np.column_stack([self.order, self.peers]) if np.any(self.peers != VACANT) else self.order
        self.start = problem.local() + rng.normal(size=(problem.n, problem.p))
        if np.isfinite(problem.radius):
            self.start = project(self.start, problem.radius, problem.outputs)
        self.parts = self.order, self.peers, self.dice, np.arange(wakes) / problem.n

    def hosted(self, compiled: bool = True, once: bool = False, place: Any = slice(None)) -> Hosted:
        """Return the final state on one host, with the wakes in this order."""
        events = [part[place] for part in self.parts]
        return hosted(self.method, self.problem, self.start, events, compiled, once)


class _Guarded(np.ndarray):
    """An array that raises an error for indices beyond its ends, which compiled code would not."""

    def _check(self, key: Any) -> None:
        size = self.shape[0] if self.ndim else 0
        ends = {"entries from": key.start, "entries up to": key.stop} if isinstance(key, slice) else {"entry": key}
        for words, at in ends.items():
            if isinstance(at, int | np.integer) and not -size <= at < size + isinstance(key, slice):
                raise IndexError(f"{words} {at} of an array of {size}")

    def __getitem__(self, key: Any) -> Any:
        self._check(key)
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._check(key)
        super().__setitem__(key, value)


class _Watched:
    """Agents run in plain Python, whose handlers get exactly what the method declares.

    Addresses start far from 0, so that they differ from slots and from positions in arrays.
    """

    FIRST = 1000

    def __init__(self, method: Any, problem: Problem, start: np.ndarray):
        arrays, first = arrays_of(problem, batch=method.training.batch), 0 if method.edges.spare else self.FIRST
        self.arrays = arrays._replace(
            address=arrays.address + first, peer=np.where(arrays.peer == VACANT, VACANT, arrays.peer + first)
        )
        self.method, self.members, self.first = method, set(self.arrays.address.tolist()), first
        self.own, self.edge = method.start(self.arrays, start)
        traffic = method.traffic
        demand(
            0 <= traffic.broadcasts <= traffic.max_messages,
            f"an event posts at most max_messages={traffic.max_messages} messages, and at most broadcasts="
            f"{traffic.broadcasts} of these to all neighbours",
        )
        outbox = new_outbox(method, self.arrays, problem.p, traffic.max_messages)
        self.outbox = outbox._replace(scratch=outbox.scratch.view(_Guarded))
        told = self.arrays.sent.shape[0] or problem.p  # personal parameters are never sent
        self.contents = Contents(method.messages, Bounds(told, ball=problem.radius, outputs=problem.outputs))

    def call(self, handler: Any, k: int, *more: Any, lenient: bool = False) -> list[tuple[int, Message]]:
        """Call a handler of agent k. Return the messages that it posts, with their recipients, unless `lenient`."""
        if self.outbox.cursor[NEEDS_ROOM]:
            self.arrays, self.edge = loop.widen(self.method, self.arrays, self.edge, self.outbox)
        a, b = self.arrays.edge_start[k], self.arrays.edge_start[k + 1]
        self.outbox.cursor[[HEAD, TAIL]], self.outbox.cursor[AUTHOR] = 0, k
        state = data_of(self.arrays, k), row(self.own, k), rows(self.edge, a, b)
        try:
            handler(*state, *more, self.outbox)
        except IndexError as error:
            raise ContractError(
                f"{handler.__name__} reads or writes beyond the end of an array, {error}: does it use more than dice="
                f"{self.method.traffic.dice} random numbers, or more scratch than the "
                f"{self.outbox.scratch.shape[0]} numbers of scratch_size?"
            ) from error
        demand(
            not self.outbox.cursor[REFUSED],
            f"{handler.__name__} posts more than max_messages = {self.method.traffic.max_messages} messages, or one of "
            f"more than {self.outbox.text.shape[1]} numbers",
        )
        posted = range(0 if lenient else self.outbox.cursor[TAIL])
        return [message for h in posted for message in self._posted(handler.__name__, k, h)]

    def _posted(self, handler: str, k: int, h: int) -> Iterator[tuple[int, Message]]:
        to, kind, sender = int(self.outbox.to[h]), int(self.outbox.kind[h]), int(self.arrays.address[k])
        text = self.outbox.text[h, : self.outbox.length[h]].copy()
        edges = self.arrays.peer[self.arrays.edge_start[k] : self.arrays.edge_start[k + 1]]
        demand(
            to in (EVERYONE, VACANT) or to in self.members,
            f"{handler} sends a message to {to}, which is no agent's address: to a slot? Send to data.peer[slot], to "
            "message.sender or to EVERYONE",
        )
        try:
            self.contents.check(kind, text, self.members)
        except Unsound as error:
            raise ContractError(f"{handler} posts what 'messages' does not declare: {error}: {text}") from error
        for peer in edges[edges != VACANT].tolist() if to == EVERYONE else [to] * (to != VACANT):
            there = self.arrays.peer[slice(*self.arrays.edge_start[peer - self.first : peer - self.first + 2])]
            yield peer, Message(sender, int(next(iter(np.flatnonzero(there == sender)), VACANT)), kind, text.copy())

    def deliver(self, messages: list[tuple[int, Message]]) -> None:
        """Deliver messages, and those that they cause."""
        queue = deque(messages)
        while queue:
            to, message = queue.popleft()
            queue.extend(self.call(self.method.receive, to - self.first, message))


@promise(METHOD_CHECKS)
def _keeps_to_what_it_declares(method: Any) -> None:  # first: compiled code would read and write elsewhere
    """Handlers use no more random numbers and scratch than declared, and post messages as declared, to addresses."""
    for problem in posed(method):
        replay = Replay(method, problem, 100, seed=2)
        agents = _Watched(method, problem, replay.start)
        for k in range(problem.n):
            agents.deliver(agents.call(method.greet, k))
        for t, (k, dice) in enumerate(zip(replay.order, replay.dice, strict=True)):
            agents.deliver(agents.call(method.wake, k, Randomness(dice.view(_Guarded), VACANT, t / problem.n)))
        if method.training.synchronous and not method.training.jobs:
            messages: list[tuple[int, Message]] = []
            agents.outbox = agents.outbox._replace(**_larger(agents.outbox, problem))
            for k in range(problem.n):
                messages += agents.call(method.round, k)
            agents.deliver(messages)


def _larger(outbox: Any, problem: Problem) -> dict[str, np.ndarray]:
    """Return room for the messages that one agent may post in a round: one along each edge."""
    most = max(1, int(problem.graph.n_neighbours.max()))
    messages = {name: part for name, part in outbox._asdict().items() if name not in ("cursor", "scratch")}
    return {name: np.zeros((most, *part.shape[1:]), part.dtype) for name, part in messages.items()}


@promise(METHOD_CHECKS)
def _compiled_equals_python(method: Any) -> None:
    _demand_same_bits(method, checkable(method))


@promise(METHOD_CHECKS)
def _compiled_equals_python_with_a_network(method: Any) -> None:
    problem = network(method)
    if problem is not None:
        _demand_same_bits(method, problem)


def _demand_same_bits(method: Any, problem: Problem) -> None:
    replay = Replay(method, problem, 200, seed=1)
    compiled, plain = (replay.hosted(compiled) for compiled in (True, False))
    demand(same(compiled[1:3], plain[1:3]), "compiled code and plain Python disagree")
    demand(np.array_equal(compiled.account, plain.account), "compiled code and plain Python count messages differently")


@promise(METHOD_CHECKS, lambda method: method.traffic.footprint and not method.edges.spare)
def _touches_what_its_footprint_says(method: Any) -> None:
    problem = checkable(method)
    for given in (True, False):
        replay = Replay(method, problem, 200, seed=7)
        if not given:  # neighbours are chosen by the random numbers
            replay.peers[:] = VACANT
        place, first = in_levels(method, arrays_of(problem), *replay.parts[:3], np.zeros(problem.n, np.int32))
        backwards = np.concatenate([level[::-1] for level in np.split(place, first[1:-1])])
        plain = replay.hosted()
        for order in (place, backwards):
            demand(
                same(plain[1:], replay.hosted(place=order)[1:]),
                f'with footprint = "{method.traffic.footprint}" wakes may change places that do not commute',
            )


@promise(METHOD_CHECKS, lambda method: method.traffic.publishes and not method.edges.spare)
def _may_be_stored_once(method: Any) -> None:
    replay = Replay(method, checkable(method), 200, seed=8)
    copies, once = replay.hosted(), replay.hosted(once=True)
    alike = same((copies.own, copies.account), (once.own, once.account))
    alike = alike and np.array_equal(copies.edge.copy, once.edge.copy)
    demand(alike, "publishes = True, but messages stored once give another run than a copy at each neighbour")


@promise(METHOD_CHECKS)
def _announces_its_messages(method: Any) -> None:
    Replay(method, checkable(method), 100, seed=2).hosted()


def _converge(method: Any, goal: _Goal, run: Callable[[int], Any], where: str = "") -> np.ndarray:
    """Run with increasing length until the target is reached, and demand that it is."""
    for patience in (400, 2000, 8000):
        theta: np.ndarray = run(patience).theta
        gap, apart = goal.distance(theta)
        if gap <= 0.1 * method.promises.accuracy and apart <= 1e-7:
            break
    demand(gap <= method.promises.accuracy, f"the objective stays {gap:.1e} (relative) above the optimum{where}")
    demand(apart <= 1e-6, f"the models stay {apart:.1e} away from {goal.name}{where}")
    return theta


def _wakes(method: Any, problem: Problem, **options: Any) -> Callable[[int], Any]:
    """Return a function that runs a number of wakes of each agent."""
    return lambda patience: simulate(problem, method, wakes=patience * problem.n, seed=3, **options)


@promise(METHOD_CHECKS, _has_a_goal)
def _stays_at_the_optimum(method: Any) -> None:
    if method.promises.accuracy > Promises().accuracy:
        return  # its steps decrease at any point
    problem = calm(method)
    goal, n = _Goal(method, problem), problem.n
    best = goal.theta
    if method.promises.remembers or not method.promises.minimises:  # the state is more than models: it must return
        apart = {"apart": lambda theta: float(np.abs(theta - best)[goal.judged].max())}
        run = simulate(problem, method, wakes=2020 * n, start=best, seed=4, observe=apart, every=20 * n)
        demand(run.trace["apart"].tail(2).max() <= 1e-8, f"it leaves {goal.name}, or does not return to it")
        return
    theta = simulate(problem, method, wakes=20 * n, start=best, seed=4).theta
    demand(np.allclose(theta, best, rtol=0, atol=1e-9), "it leaves the optimum when it starts there")


@promise(METHOD_CHECKS, _has_a_goal)
def _reaches_the_optimum(method: Any) -> None:
    problem = calm(method)
    _converge(method, _Goal(method, problem), _wakes(method, problem, start="zeros"))


@promise(METHOD_CHECKS, _has_a_goal)
def _its_rounds_reach_the_optimum(method: Any) -> None:
    if method.training.synchronous:
        problem = calm(method)
        rounds = functools.partial(simulate, problem, method, start="zeros")
        _converge(method, _Goal(method, problem), lambda patience: rounds(rounds=patience), " in synchronous rounds")


@promise(METHOD_CHECKS, _has_a_goal)
def _follows_changes(method: Any) -> None:
    """Agents leave, join and get new data during a run; the models reach the optimum of the final problem."""
    problem = calm(method)
    n, p = problem.n, problem.p
    fewer = problem.on(graph=problem.graph.without([2, 5]))
    if problem.name == "propagation":
        more = problem.on(graph=problem.graph.without([0]))
    else:
        rng = np.random.default_rng(12)
        X, members = rng.normal(size=(8, p)), rng.integers(0, n, 8)
        data = hard_problem().data if method.promises.minimises else problem.data
        more = problem.on(data=data.with_rows(X, np.sign(X[:, 0]), agents=members))

    def run(patience: int) -> Any:
        changes = [(200 * n, fewer), (400 * n, more)]
        return simulate(problem, method, wakes=(400 + patience) * n, seed=13, changes=changes)

    _converge(method, _Goal(method, more), run, " after agents left and joined, and data changed")


@promise(METHOD_CHECKS, _minimises)
def _solves_other_objectives(method: Any) -> None:
    rng = np.random.default_rng(5)
    models, graph = rng.normal(size=(6, 2)), graphs.ring(6)
    points = AgentData(rng.normal(size=(12, 2)), agents=np.arange(12) % 6)
    labelled = AgentData(rng.normal(size=(24, 2)), rng.normal(size=24), agents=np.arange(24) % 6)
    for problem in (
        Problem.propagation(models, graph, alpha=0.7, confidence=[1.0, 0.2, 0.0, 0.5, 0.1, 1.0]),
        Problem.separate(points, graph, loss="location"),
        Problem.collaborative(labelled, graph, loss="squared", mu=0.3),
    ):
        if fits(method, problem):
            _converge(method, _Goal(method, problem), _wakes(method, problem), f" on Problem.{problem.name}")


@promise(METHOD_CHECKS)
def _ignores_names(method: Any) -> None:
    problem = checkable(method)
    replay = Replay(method, problem, 300, seed=6)
    order = np.random.default_rng(7).permutation(problem.n)
    renamed = np.where(replay.events == VACANT, VACANT, np.argsort(order)[replay.events])
    one = simulate(problem, method, events=replay.events, start=replay.start)
    other = simulate(problem.relabel(order), method, events=renamed, start=replay.start[order])
    demand(
        np.allclose(one.theta[order], other.theta, rtol=0, atol=1e-10),
        "relabelling the agents changes their models",
    )
    demand(one.vectors == other.vectors, "relabelling the agents changes what they send")


@promise(METHOD_CHECKS, _has_a_goal)
def _leaves_the_isolated_alone(method: Any) -> None:
    problem = checkable(method)
    local = problem.local()[problem.graph.isolated]
    if method.promises.accuracy > Promises().accuracy:
        return  # covered by the check of the optimum
    theta = simulate(problem, method, wakes=50 * problem.n, seed=8).theta[problem.graph.isolated]
    demand(np.allclose(theta, local, rtol=0, atol=1e-9), "an agent without edges does not keep its local model")
    if not method.promises.minimises:
        return  # the method defines its own model without edges
    theta = simulate(problem, method, wakes=2000 * problem.n, seed=8, start="zeros").theta[problem.graph.isolated]
    demand(np.allclose(theta, local, rtol=0, atol=1e-6), "an agent without edges does not find its local model")


@promise(METHOD_CHECKS, _minimises)
def _teaches_those_without_data(method: Any) -> None:
    problem = checkable(method)
    theta = _converge(method, _Goal(method, problem), _wakes(method, problem))
    silent = int(np.flatnonzero(problem.data.sizes == 0)[0])
    mean = (problem.graph.W @ theta)[silent] / problem.graph.degrees[silent]
    demand(
        np.allclose(theta[silent], mean, rtol=0, atol=max(1e-6, 10 * method.promises.accuracy)),
        "an agent without data does not get its neighbours' model",
    )


@promise(METHOD_CHECKS)
def _reads_sparse_rows(method: Any) -> None:
    dense, csr = checkable(method), checkable(method, "sparse")
    if dense.name in ("propagation", "boosting"):
        return  # it does not use features
    replay = Replay(method, dense, 300, seed=9)
    one, other = (simulate(p, method, events=replay.events, start=replay.start).theta for p in (dense, csr))
    demand(np.allclose(one, other, rtol=0, atol=1e-10), "sparse and dense features give different models")


@promise(METHOD_CHECKS, _has_a_goal)
def _survives_late_and_lost_messages(method: Any) -> None:
    if not method.traffic.sums:  # otherwise simulate refuses such conditions
        problem = calm(method)
        where = " when messages are late, lost, duplicated and out of order"
        _converge(method, _Goal(method, problem), _wakes(method, problem, conditions=BAD_CONDITIONS), where)


@promise(METHOD_CHECKS)
def _runs_on_peers(method: Any) -> None:
    """Simulator and peers that exchange encoded bytes agree bit for bit, and count equally."""
    for problem in posed(method):
        _demand_peers(method, problem)


def _demand_peers(method: Any, problem: Problem) -> None:
    replay = Replay(method, problem, 200, seed=10)
    arrays = arrays_of(problem, batch=method.training.batch)
    host, crowd = replay.hosted(), Crowd(method, arrays, replay.start).replay(replay.parts)
    theirs = [peer.own.theta[0] for peer in crowd.peers]
    demand(np.array_equal(host.own.theta, theirs), "simulator and peers that exchange bytes disagree")
    demand(int(host.account[loop.MESSAGES]) == crowd.messages, "the simulator counts other messages than peers send")
    if method.traffic.dice == 0 or replay.events.ndim == 2:
        counted = simulate(problem, method, events=replay.events, start=replay.start)
        alike = counted.messages == crowd.messages and counted.bytes == crowd.size
        demand(alike, "the account differs from the messages of peers")


# -- for methods that train


def _finite_run(problem: Problem, method: Any, **options: Any) -> Any:
    """Return a run, and demand that its models stay finite."""
    try:
        return simulate(problem, method, **options)
    except ConvergenceError as error:
        raise ContractError(f"with {', '.join(options)} models grow without bound: {error}") from error


def _alone(problem: Problem, agent: int) -> Problem:
    """Return the problem of one agent alone."""
    mine = problem.data.owner == agent
    rows = (problem.data.X[mine], np.asarray(problem.data.y)[mine])
    return Problem(
        AgentData(*rows, agents=np.zeros(int(mine.sum()), int), members=[0]),
        graphs.empty(1),
        problem.loss,
        smooth=problem.smooth,
        loss_weight=problem.loss_weight[agent],
        scaled=problem.scaled,
        mean=True,
        ridge=problem.ridge[agent],
        model=None if problem.is_linear else problem.model,
        roles=problem.roles,
    )


@promise(METHOD_CHECKS, _trains)
def _trains_alone_without_edges(method: Any) -> None:
    """An agent without edges trains as on a graph of one agent, and sends nothing."""
    for problem in posed(method):
        start = problem.local() + np.random.default_rng(16).normal(size=(problem.n, problem.p))
        for agent in np.flatnonzero(problem.graph.isolated).tolist():
            here = _finite_run(problem, method, events=np.full(20, agent), start=start).theta[agent]
            alone = _finite_run(_alone(problem, agent), method, events=np.zeros(20, int), start=start[[agent]])
            demand(np.array_equal(here, alone.theta[0]), "an agent without edges does not train as it would alone")
            demand(alone.messages == 0, "an agent without edges sends a message")


@promise(METHOD_CHECKS, _trains)
def _repeats_itself(method: Any) -> None:
    """Runs with one seed are equal bit for bit, however they are divided."""
    for problem in posed(method):
        lengths: tuple[dict[str, Any], ...] = ({"wakes": 12 * problem.n}, {"rounds": 12})
        for length in lengths:
            runs = [_finite_run(problem, method, seed=17, every=every, **length) for every in (None, 5)]
            same = np.array_equal(runs[0].theta, runs[1].theta) and runs[0].bytes == runs[1].bytes
            demand(same, f"observing a run of {next(iter(length))} on the way changes it")


@promise(METHOD_CHECKS, _trains)
def _bears_with_the_network(method: Any) -> None:
    """Models stay finite when messages are late, lost, duplicated or out of order, and every message is counted."""
    for problem in posed(method):
        try:
            runs = [
                _finite_run(problem, method, wakes=60 * problem.n, seed=18, conditions=BAD_CONDITIONS) for _ in range(2)
            ]
        except MismatchError:
            return  # the method refuses such conditions
        demand(np.array_equal(runs[0].theta, runs[1].theta), "late and lost messages differ in a second run")
        counted = runs[0].messages == runs[0].tally[:, 0].sum() and 0 < runs[0].lost < runs[0].messages
        demand(counted or not runs[0].messages, "counts by kind do not sum to all messages, or more are lost than sent")


@promise(METHOD_CHECKS, _trains)
def _goes_on_after_changes(method: Any) -> None:
    """Agents leave and return during a run, in wakes and in rounds."""
    for problem in posed(method):
        fewer = problem.on(graph=problem.graph.without([2, 5]))
        lengths: tuple[tuple[dict[str, Any], int], ...] = (
            ({"wakes": 30 * problem.n}, 10 * problem.n),
            ({"rounds": 30}, 10),
        )
        for length, when in lengths:
            try:
                _finite_run(problem, method, seed=19, changes=[(when, fewer), (2 * when, problem)], **length)
            except MismatchError:
                return  # the method refuses the graph of the remaining agents


@promise(METHOD_CHECKS, _trains)
def _trains_all_at_once(method: Any) -> None:
    """Rounds in which a model in Python trains all agents in one call equal those of the compiled model."""
    problem, twin = network(method), network(method, _python_network())
    if problem is None or twin is None:
        return
    start = problem.local() + 0.1 * np.random.default_rng(20).normal(size=(problem.n, problem.p))
    one, other = (_finite_run(posed, method, rounds=6, seed=21, start=start) for posed in (problem, twin))
    apart = float(np.abs(one.theta - other.theta).max())
    demand(apart <= 1e-9, f"models trained all at once are {apart:.1e} away from models trained one by one")
    demand(one.bytes == other.bytes, "agents trained all at once send other messages")


def _python_network() -> Function:
    """Return the network of :func:`network` as a model in Python."""
    rule = TwoLayer(*NETWORK_SIZES)

    def alone(X: np.ndarray, y: np.ndarray) -> Problem:
        data = AgentData(X, y, agents=np.zeros(len(y), int))
        return Problem.differentiable(data, graphs.empty(1), rule, ridge=0.0)

    def value(theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> float:
        return float(alone(X, y).losses(theta[None])[0])

    def gradient(theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        slope: np.ndarray = alone(X, y).gradient(theta[None])[0]
        return slope

    return Function(rule.size, value, gradient, rule.predict, rule.initial(), rule.parts)


@promise(METHOD_CHECKS, _trains)
def _ignores_bad_messages(method: Any) -> None:
    """A message of a wrong length or kind changes nothing, and no message stops an agent."""
    for problem in posed(method):
        start = problem.local()
        agents = _Watched(method, problem, start)
        posted = [agents.call(method.greet, k) for k in range(problem.n)]
        dice = np.full(method.traffic.dice, 0.5)
        posted += [agents.call(method.wake, k, Randomness(dice, VACANT, 0.0)) for k in range(problem.n)]
        seen: dict[int, tuple[int, Message]] = {}
        for to, message in (one for messages in posted for one in messages):
            if message.slot == 0:  # an overflow is found with the next message
                seen.setdefault(message.kind, (to, message))
        for kind, (to, message) in seen.items():
            for size in {0, 1, len(message.text) - 1, len(message.text) + 1, 2 * len(message.text)} - {
                len(message.text)
            }:
                bad = message._replace(text=np.resize(message.text, max(size, 0)))
                _demand_unmoved(agents, to, bad, f"a message of kind {kind} with {size} numbers in place of "
                                f"{len(message.text)}")  # fmt: skip
            _demand_unmoved(agents, to, message._replace(kind=len(method.messages)), "a message of an unknown kind")
            stranger = message._replace(sender=agents.first + problem.n, slot=VACANT)
            for text in (message.text, np.full_like(message.text, np.nan), np.full_like(message.text, np.inf)):
                for other in (message, stranger):  # these may be accepted, but must not stop an agent
                    agents.call(method.receive, to - agents.first, other._replace(text=text.copy()))
                    with np.errstate(all="ignore"):
                        agents.call(method.wake, to - agents.first, Randomness(dice, VACANT, 0.0), lenient=True)


def _demand_unmoved(agents: _Watched, to: int, message: Message, what: str) -> None:
    before = [part.copy() for part in arrays((agents.own, agents.edge))]
    try:
        agents.call(agents.method.receive, to - agents.first, message)
    except (ValueError, IndexError) as error:
        raise ContractError(f"{what} stops the agent that receives it: {error}") from error
    demand(
        same(before, (agents.own, agents.edge)),
        f"{what} changes the state of an agent: compare message.text.shape[0] before reading the message",
    )


def check_method(method: Any) -> None:
    """Check the contract of a method; see ``METHOD_CHECKS``.

    A method defined outside the package is compiled for the check, which takes about a minute.

    Parameters
    ----------
    method : rule

    Raises
    ------
    ContractError

    Examples
    --------
    >>> import coterie as ct
    >>> from coterie.testing import check_method
    >>> check_method(ct.CoordinateDescent())
    """
    demand(isinstance(method, Method), f"{method!r} is not a value of a class decorated with @ct.method")
    check_all(METHOD_CHECKS, lambda check: check(method), repr(method))
