"""One block of agents, as an actor of a cluster: it builds its part of the problem, and runs the loop of one process.

Agents of the block are numbered from 0 in its arrays; neighbours on other shards follow, in the order of their numbers.
Neighbours on one other shard are contiguous, and the other shard has an equal list, so that messages between shards
can refer to positions in this list.

The last messages of a method that ``publishes`` are stored once (:class:`~coterie.core.arrays.Heard`), including those
from other shards: one row for each agent that has sent something goes to each shard where it has a neighbour. All other
messages are sent one by one, unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .._workers import Record, WorkerLog
from ..core import loop
from ..core.arrays import EVERYONE, NEEDS_ROOM, REFUSED, VACANT, AgentArrays, Heard, new_outbox, stored_once
from ..core.linear import frozen
from ..core.messages import lengths_of, longest
from ..core.method import finished_by, shown_by
from ..core.methods import check_fit
from ..core.private.terms import Terms
from ..errors import CapacityError, GraphError, ParameterError
from ..problem import Problem
from ..problem.sharded import Block, Pose, ShardedProblem, assembled, asymmetry
from .arrays import arrays_of, part_of
from .cluster import check_importable
from .drivers import seeds, undeliverable
from .parallel import Team

#: Capacity of a shard's outgoing buffer, in messages; it is emptied when the next event might fill it.
BUFFER_MESSAGES = 4096
#: Number of wakes, of all agents, that are drawn at a time.
WAKES_PER_DRAW = 1 << 17


class Facts(NamedTuple):
    """Facts about a part of the problem, for other shards and the driver."""

    n_features: int
    largest: int  # largest number of rows of an agent
    edges: np.ndarray  # (shards,) number of edges to each shard
    in_balls: bool  # whether models stay in balls


class Summary(NamedTuple):
    """Result of a step of a shard."""

    account: np.ndarray
    sent: int  # number of messages, or rows, sent to other shards
    records: list[Record]  # log records


class PublishedRows(NamedTuple):
    """What agents of one shard have published, for another."""

    place: np.ndarray  # (rows,) agent, as a position among those with neighbours on the other shard
    text: np.ndarray  # (rows, p)


Edges = tuple[np.ndarray, np.ndarray, np.ndarray]


class MessageBatch(NamedTuple):
    """Messages from one shard to another."""

    sender: np.ndarray  # (messages,) number of the sending agent
    to: np.ndarray  # (messages,) number of the receiving agent
    kind: np.ndarray  # (messages,)
    length: np.ndarray  # (messages,)
    text: np.ndarray  # numbers of all messages, one after the other


class Shard:
    """A block of agents. Errors are raised by its methods, never by its constructor."""

    def __init__(self, level: int):
        self.log = WorkerLog(level)

    def ready(self) -> None:
        """Do nothing: the answer shows that the shard has its CPUs."""

    # -- the part of the problem -----------------------------------------------------------------------------------

    def load(self, block: Block | ShardedProblem, pose: Pose, cuts: np.ndarray, k: int, method: Any) -> Facts:
        """Store the agents, or build them; the shards are cut at ``cuts``, and this is shard ``k``."""
        self.method, self.cuts, self.first, self.last = method, cuts, int(cuts[k]), int(cuts[k + 1])
        built = isinstance(block, ShardedProblem)
        if isinstance(block, ShardedProblem):
            block = block.block(self.first, self.last)
        self.part = assembled(block, pose, self.first, self.last)
        number, here, problem = self.part.number, self.part.here, self.part.problem
        if built:  # a problem from one process was checked there
            check_importable(problem.loss)
            check_fit(method, self.part.fitting())
        self.size = self.last - self.first
        self.away = np.concatenate([number[: here.start], number[here.stop :]])
        start, peer = problem.graph.start, problem.graph.peer
        self.peer = number[peer[start[here.start] : start[here.stop]]]
        self.owner = np.repeat(np.arange(self.first, self.last), np.diff(start[here.start : here.stop + 1]))
        edges = np.bincount(self._shard_of(self.peer), minlength=cuts.shape[0] - 1)
        edges[k] = 0
        return Facts(problem.p, int(problem.data.sizes.max(initial=1)), edges, bool(np.isfinite(problem.radius)))

    def edges_to(self, k: int) -> Edges:
        """Return edges to agents of shard k, sorted: this end, the other end, and weights."""
        there = np.flatnonzero((self.peer >= self.cuts[k]) & (self.peer < self.cuts[k + 1]))
        graph, here = self.part.problem.graph, self.part.here
        weight = graph.weight[graph.start[here.start] : graph.start[here.stop]]
        return self.owner[there], self.peer[there], weight[there]

    def compare(self, k: int, edges: Edges) -> None:
        """Raise unless the edges of shard k to this shard equal those of this shard to shard k."""
        order = np.lexsort((edges[0], edges[1]))
        theirs, mine = (edges[1][order], edges[0][order], edges[2][order]), self.edges_to(k)
        if all(map(np.array_equal, mine, theirs)):
            return
        weights: list[dict[Any, float]] = []
        for i, j, weight in (mine, theirs):
            weights.append(dict(zip(zip(i.tolist(), j.tolist(), strict=True), weight.tolist(), strict=True)))
        here, there = weights
        i, j = min(ends for ends in here.keys() | there.keys() if here.get(ends) != there.get(ends))
        raise GraphError(asymmetry(i, j, here.get((i, j), 0.0), there.get((i, j), 0.0)))

    def begin(
        self,
        n: int,
        largest: int,
        start: str | np.ndarray,
        choice: str | np.ndarray,
        goals: np.ndarray,
        seed: Any,
        jobs: int,
    ) -> None:
        """Create the agents' arrays, and the state of the method."""
        here, self.n, self.goals = self.part.here, n, goals
        self.method = method = _told(self.method, largest)
        self.problem = problem = self.part.problem.among(largest)
        theta = _models(problem, start, here)
        self.arrays = self._arrays(problem, choice)
        traffic = method.traffic
        if traffic.publishes:
            everyone = np.zeros((self.part.number.shape[0], problem.p))
            everyone[: self.size] = theta
            self.own, self.edge = stored_once(method, self.arrays, theta)
            self.edge = type(self.edge)(Heard(everyone, self.arrays.peer))
        else:
            self.own, self.edge = method.start(self.arrays, theta)
        self.outbox = new_outbox(method, self.arrays, problem.p, traffic.max_messages)
        self.account = loop.new_account(method)
        abroad = np.bincount(self.owner[self.arrays.peer >= self.size] - self.first, minlength=self.size)
        self.most = 0 if traffic.publishes else int(traffic.max_messages + traffic.broadcasts * abroad.max())
        room = max(BUFFER_MESSAGES, self.most) if self.most else 0
        self.egress = loop.new_egress(room, longest(lengths_of(method.messages, problem.p)))
        self.out: list[Any] = []
        # Agents with neighbours on each goal, and positions of the goal's agents in the list of agents elsewhere.
        goal = self._shard_of(self.peer)
        self.bordering = [np.unique(self.owner[goal == k]) - self.first for k in goals]
        self.spans = [tuple(np.searchsorted(self.away, self.cuts[k : k + 2]).tolist()) for k in goals]
        self.spoke = np.zeros(self.size, bool)
        # All shards draw equal random numbers, and each keeps those of its agents.
        self.who, _, self.fate = seeds(seed, 3)
        self.done = 0
        parallel = jobs > 1 and traffic.publishes and traffic.footprint
        self.team = Team(jobs, self.part.number.shape[0]) if parallel else None

    def _arrays(self, problem: Problem, choice: str | np.ndarray) -> AgentArrays:
        """Return the arrays of the block: its own agents first, then neighbours elsewhere."""
        once, here = self.method.traffic.publishes, self.part.here
        word = choice if isinstance(choice, str) else "uniform"
        arrays = part_of(arrays_of(problem, word, once=once, batch=self.method.training.batch), here.start, here.stop)
        peer = np.where(
            (arrays.peer >= here.start) & (arrays.peer < here.stop),
            arrays.peer - here.start,
            arrays.peer + np.where(arrays.peer < here.start, self.size, 0),
        )
        if not (isinstance(choice, str) or once):
            arrays = arrays._replace(choice=np.array(choice))
        return arrays._replace(peer=peer, address=frozen(np.arange(self.size)), n_agents=self.n)

    def _shard_of(self, agents: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.cuts, agents, side="right") - 1

    # -- wakes -----------------------------------------------------------------------------------------------------

    def greet(self) -> Summary:
        """Let every agent greet its neighbours."""
        count, dice = self.size, self.method.traffic.dice
        self._wake(np.arange(count), np.full(count, EVERYONE), np.zeros((count, dice)), np.zeros(count))
        return self._summary(0)

    def step(self, count: int, send: bool, *batches: Any) -> Any:
        """Deliver messages, one batch from each goal; then run this block's share of the next ``count`` wakes.

        Return a summary; if messages are to be sent, followed by the batches for each goal.
        """
        for goal, batch in enumerate(batches):
            (self._read if self.method.traffic.publishes else self._accept)(goal, batch)
        for events in self._draws(count):
            self._wake(*events)
        if not send:
            return self._summary(0)
        parts = self._published() if self.method.traffic.publishes else self._messages()
        summary = self._summary(sum(len(part[0]) for part in parts))
        return (summary, *parts) if parts else summary

    def _draws(self, count: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield agents, random numbers and times of this block's wakes among `count` wakes of all agents."""
        while count:
            some = min(count, WAKES_PER_DRAW)
            order, dice = self.who.integers(0, self.n, some), self.fate.random((some, self.method.traffic.dice))
            mine = np.flatnonzero((order >= self.first) & (order < self.last))
            yield order[mine] - self.first, np.full(mine.shape[0], VACANT), dice[mine], (self.done + mine) / self.n
            self.done += some
            count -= some

    def _wake(self, *events: np.ndarray) -> None:
        order = events[0]
        self.spoke[order] = True
        done = 0 if self.team is None else self.team.run(self, events, loop.NO_LIMIT)  # type: ignore[arg-type]
        while done < order.shape[0]:
            now = slice(done, done + self._room())
            part = (column[now] for column in events)
            done += loop.run(*self._agents(), *part, *self._boxes(), loop.NO_LIMIT)
            self.settle()

    def settle(self) -> bool:
        """Raise if a message was refused, and make room where an agent needs it. Return whether one did."""
        if self.outbox.cursor[REFUSED] or self.egress.counter[1]:
            raise undeliverable(self.method, self.outbox)
        short = bool(self.outbox.cursor[NEEDS_ROOM])
        if short:
            self.arrays, self.edge = loop.widen(self.method, self.arrays, self.edge, self.outbox)
        return short

    def _agents(self) -> tuple[Any, ...]:
        return self.method, self.arrays, self.own, self.edge

    def _boxes(self) -> tuple[Any, ...]:
        return self.outbox, self.egress, self.account

    def _summary(self, sent: int) -> Summary:
        return Summary(self.account.copy(), sent, self.log.take())

    # -- messages of a method that publishes ------------------------------------------------------------------------

    def _published(self) -> list[PublishedRows]:
        """Return, for each goal, the last messages of agents that may have sent something since the last time."""
        message, parts = self.edge[0].message, []
        for agents in self.bordering:
            place = np.flatnonzero(self.spoke[agents])
            parts.append(PublishedRows(place.astype(np.int32), message[agents[place]]))
        self.spoke[:] = False
        return parts

    def _read(self, goal: int, rows: PublishedRows) -> None:
        """Store published models of agents of a goal."""
        self.edge[0].message[self.size + self.spans[goal][0] + rows.place] = rows.text

    # -- other messages ---------------------------------------------------------------------------------------------

    def _room(self) -> int:
        """Return how many events fit into the buffer, whatever they send; at least one."""
        if not self.most:
            return WAKES_PER_DRAW
        if self.egress.to.shape[0] - self.egress.counter[0] < self.most:
            self._empty()
        return int((self.egress.to.shape[0] - self.egress.counter[0]) // self.most)

    def _empty(self) -> None:
        egress, count = self.egress, self.egress.counter[0]
        if count:
            parts = (egress.sender, egress.to, egress.kind, egress.length)
            text = egress.text[:count][_used(egress.text, egress.length[:count])]
            self.out.append((*(part[:count].copy() for part in parts), text))
        egress.counter[0] = 0

    def _messages(self) -> list[MessageBatch]:
        """Return the messages to each goal, in the order in which they were posted."""
        self._empty()
        none = (np.zeros(0, np.int64),) * 4
        parts, self.out = self.out or [(*none, np.zeros(0))], []
        sender, to, kind, length, text = map(np.concatenate, zip(*parts, strict=True))
        lost = np.flatnonzero((to < 0) | (to >= self.part.number.shape[0]))
        if lost.size:
            raise CapacityError(
                f"{self.method!r} posted a message that cannot be delivered: {to[lost[0]]} is no agent's address"
            )
        begin = np.concatenate([[0], np.cumsum(length)])
        number = np.min_scalar_type(self.n)
        batches = []
        for first, last in self.spans:
            mine = np.flatnonzero((to >= self.size + first) & (to < self.size + last))
            entries = np.repeat(begin[mine] - np.cumsum(length[mine]) + length[mine], length[mine])
            batches.append(
                MessageBatch(
                    (sender[mine] + self.first).astype(number),
                    self.away[to[mine] - self.size].astype(number),
                    kind[mine].astype(np.uint8),
                    length[mine].astype(np.int32),
                    text[entries + np.arange(entries.shape[0])],
                )
            )
        return batches

    def _accept(self, goal: int, batch: MessageBatch) -> None:
        """Deliver messages from agents of a goal."""
        sender = self.size + np.searchsorted(self.away, batch.sender.astype(np.int64))
        to, kind, length = (part.astype(np.int64) for part in (batch.to, batch.kind, batch.length))
        to -= self.first
        text = np.zeros((to.shape[0], self.outbox.text.shape[1]))  # a copy: a handler may write into a message
        text[_used(text, length)] = batch.text
        done = 0
        while done < to.shape[0]:
            now = slice(done, done + self._room())
            messages = (part[now] for part in (sender, to, kind, length, text))
            done += loop.accept(*self._agents(), *self._boxes(), *messages)
            self.settle()

    # -- results ---------------------------------------------------------------------------------------------------

    @property
    def theta(self) -> np.ndarray:
        """Return models as agents would use them now."""
        return shown_by(*self._agents())

    def border(self) -> Any:
        """Return current models of agents with neighbours on each goal."""
        theta = self.theta
        parts = tuple(theta[agents] for agents in self.bordering)
        return parts if len(parts) != 1 else parts[0]

    def measure(self, *borders: np.ndarray) -> tuple[float, float]:
        """Return the block's part of the objective, and of its gap if models are in balls.

        An edge belongs to the block of its lower end.
        """
        problem, here = self.problem, self.part.here
        away = np.zeros((self.away.shape[0], problem.p))
        for (first, last), border in zip(self.spans, borders, strict=True):
            away[first:last] = border
        theta = np.concatenate([away[: here.start], self.theta, away[here.start :]])
        value = float(problem.values(theta)[here].sum())
        return value, float(problem.gaps(theta)[here].sum()) if np.isfinite(problem.radius) else 0.0

    def models(self, final: bool) -> np.ndarray:
        """Return the agents' models: as they are now, or their final models."""
        return finished_by(*self._agents()) if final else self.theta.copy()

    def call(self, function: Callable[[int, np.ndarray], Any]) -> Any:
        """Return the result of a function of the number of the first agent, and of the final models."""
        return function(self.first, self.models(True))

    def population(self) -> tuple[np.ndarray, ...]:
        """Return the agents' estimates of the population."""
        found: tuple[np.ndarray, ...] = self.method.inspection.population(self.arrays, self.own, self.edge)
        return found


def _models(problem: Problem, start: str | np.ndarray, here: slice) -> np.ndarray:
    """Return models before the first wake."""
    if isinstance(start, str):
        return problem.local()[here] if start == "local" else np.zeros((here.stop - here.start, problem.p))
    whole = np.zeros((problem.n, problem.p))
    if start.shape[1] != problem.p:
        raise ParameterError(f"start has models of {start.shape[1]} numbers; the agents have {problem.p} features")
    whole[here] = start
    return problem.checked(whole)[here]


def _told(method: Any, largest: int) -> Any:
    """Return the method with the largest number of rows of any agent in its privacy terms, if these lack it."""
    if isinstance(method, Terms):
        return method if method.max_rows else method._replace(max_rows=largest)
    if not hasattr(method, "_fields"):
        return method
    return method._make(_told(part, largest) for part in method)  # as it is: parameters have been checked


def _used(text: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return a mask of the numbers in a buffer that belong to messages of the given lengths."""
    used: np.ndarray = np.arange(text.shape[1]) < length[:, None]
    return used
