"""One block of agents, as an actor of a cluster: it builds its part of the problem, and runs the loop of one process.

Agents of the block are numbered from 0 in its arrays, and the neighbours that they have elsewhere, in the order of their
numbers, come after them. Those of one other shard stand side by side, and the other shard has the same list: so what
goes from shard to shard need not say much.

The last messages of a method that ``publishes`` are stored once (:class:`~coterie.core.arrays.Heard`), those from
elsewhere as well: one row for each agent that has spoken goes to each shard where it has a neighbour. All other messages
go one by one, as they are.
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

#: Messages in the box of a shard, which is emptied when the next event might fill it.
BOX = 4096
#: Wakes of all agents that are drawn at a time.
CHUNK = 1 << 17


class Facts(NamedTuple):
    """What the other shards, and the driver, need to know of a part."""

    n_features: int
    largest: int  # the most rows of an agent
    edges: np.ndarray  # (shards,) how many there are to each
    in_balls: bool  # whether models stay in balls


class Summary(NamedTuple):
    """What a shard says after a step."""

    account: np.ndarray
    sent: int  # messages, or rows, that it hands out
    records: list[Record]  # what it has logged


class Rows(NamedTuple):
    """What agents of one shard have published, for another."""

    place: np.ndarray  # (rows,) whose it is: place among those that are tied to the other shard
    text: np.ndarray  # (rows, p)


Edges = tuple[np.ndarray, np.ndarray, np.ndarray]


class Batch(NamedTuple):
    """Messages from one shard to another."""

    sender: np.ndarray  # (messages,) number of the agent
    to: np.ndarray  # (messages,) likewise
    kind: np.ndarray  # (messages,)
    length: np.ndarray  # (messages,)
    text: np.ndarray  # the numbers of all messages, one after the other


class Shard:
    """A block of agents. What it refuses comes out of its methods as it is: making it refuses nothing."""

    def __init__(self, level: int):
        self.log = WorkerLog(level)

    def ready(self) -> None:
        """Nothing; but who is answered knows that the shard has its CPUs."""

    # -- its part of the problem -----------------------------------------------------------------------------------

    def load(self, block: Block | ShardedProblem, pose: Pose, cuts: np.ndarray, k: int, method: Any) -> Facts:
        """Take in the agents, or build them; the shards are cut at ``cuts``, and this is number ``k`` of them."""
        self.method, self.cuts, self.first, self.last = method, cuts, int(cuts[k]), int(cuts[k + 1])
        built = isinstance(block, ShardedProblem)
        if isinstance(block, ShardedProblem):
            block = block.block(self.first, self.last)
        self.part = assembled(block, pose, self.first, self.last)
        number, here, problem = self.part.number, self.part.here, self.part.problem
        if built:  # of a problem that comes from one place, all of it has been judged there
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
        """Edges to agents of shard k, sorted: this end, the other end, and weights."""
        there = np.flatnonzero((self.peer >= self.cuts[k]) & (self.peer < self.cuts[k + 1]))
        graph, here = self.part.problem.graph, self.part.here
        weight = graph.weight[graph.start[here.start] : graph.start[here.stop]]
        return self.owner[there], self.peer[there], weight[there]

    def compare(self, k: int, edges: Edges) -> None:
        """Raise unless the edges of shard k to this one are those of this one to shard k."""
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
        """Make the agents' arrays, and the state of the method in it."""
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
        room = max(BOX, self.most) if self.most else 0
        self.egress = loop.new_egress(room, longest(lengths_of(method.messages, problem.p)))
        self.out: list[Any] = []
        # Who is tied to each goal, and where those of the goal stand in the list of who is elsewhere.
        goal = self._shard_of(self.peer)
        self.tied = [np.unique(self.owner[goal == k]) - self.first for k in goals]
        self.spans = [tuple(np.searchsorted(self.away, self.cuts[k : k + 2]).tolist()) for k in goals]
        self.spoke = np.zeros(self.size, bool)
        # All shards draw the same chance, and each takes what is for its agents.
        self.who, _, self.fate = seeds(seed, 3)
        self.done = 0
        parallel = jobs > 1 and traffic.publishes and traffic.footprint
        self.team = Team(jobs, self.part.number.shape[0]) if parallel else None

    def _arrays(self, problem: Problem, choice: str | np.ndarray) -> AgentArrays:
        """The agents' arrays of the block: its agents first, then who is elsewhere."""
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
        """Take in messages, one batch from each goal; let ``count`` agents of all shards wake, those that are here.

        Returns a summary; if messages are to be sent, followed by those to each goal.
        """
        for goal, batch in enumerate(batches):
            (self._read if self.method.traffic.publishes else self._accept)(goal, batch)
        for randomness in self._draws(count):
            self._wake(*randomness)
        if not send:
            return self._summary(0)
        parts = self._published() if self.method.traffic.publishes else self._messages()
        summary = self._summary(sum(len(part[0]) for part in parts))
        return (summary, *parts) if parts else summary

    def _draws(self, count: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Who wakes here, with which dice, and when: of so many wakes of all agents."""
        while count:
            some = min(count, CHUNK)
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
            randomness = (part[now] for part in events)
            done += loop.run(*self._agents(), *randomness, *self._boxes(), loop.NO_LIMIT)
            self.settle()

    def settle(self) -> bool:
        """Raise if a message was refused, and make room where an agent needs it. Says whether one did."""
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

    def _published(self) -> list[Rows]:
        """For each goal, the last messages of those who may have spoken since the last time."""
        message, parts = self.edge[0].message, []
        for tied in self.tied:
            place = np.flatnonzero(self.spoke[tied])
            parts.append(Rows(place.astype(np.int32), message[tied[place]]))
        self.spoke[:] = False
        return parts

    def _read(self, goal: int, rows: Rows) -> None:
        """Take in what agents of a goal have published."""
        self.edge[0].message[self.size + self.spans[goal][0] + rows.place] = rows.text

    # -- other messages ---------------------------------------------------------------------------------------------

    def _room(self) -> int:
        """How many events the box has room for, whatever they send; at least one."""
        if not self.most:
            return CHUNK
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

    def _messages(self) -> list[Batch]:
        """The messages to each goal, in the order in which they were posted."""
        self._empty()
        none = (np.zeros(0, np.int64),) * 4
        parts, self.out = self.out or [(*none, np.zeros(0))], []
        sender, to, kind, length, text = map(np.concatenate, zip(*parts, strict=True))
        lost = np.flatnonzero((to < 0) | (to >= self.part.number.shape[0]))
        if lost.size:
            raise CapacityError(
                f"{self.method!r} posted a message that cannot be delivered: to no agent's address, {to[lost[0]]}"
            )
        begin = np.concatenate([[0], np.cumsum(length)])
        number = np.min_scalar_type(self.n)
        batches = []
        for first, last in self.spans:
            mine = np.flatnonzero((to >= self.size + first) & (to < self.size + last))
            entries = np.repeat(begin[mine] - np.cumsum(length[mine]) + length[mine], length[mine])
            batches.append(
                Batch(
                    (sender[mine] + self.first).astype(number),
                    self.away[to[mine] - self.size].astype(number),
                    kind[mine].astype(np.uint8),
                    length[mine].astype(np.int32),
                    text[entries + np.arange(entries.shape[0])],
                )
            )
        return batches

    def _accept(self, goal: int, batch: Batch) -> None:
        """Take in messages of agents of a goal."""
        sender = self.size + np.searchsorted(self.away, batch.sender.astype(np.int64))
        to, kind, length = (part.astype(np.int64) for part in (batch.to, batch.kind, batch.length))
        to -= self.first
        text = np.zeros((to.shape[0], self.outbox.text.shape[1]))  # a handler may write on a message
        text[_used(text, length)] = batch.text
        done = 0
        while done < to.shape[0]:
            now = slice(done, done + self._room())
            messages = (part[now] for part in (sender, to, kind, length, text))
            done += loop.accept(*self._agents(), *self._boxes(), *messages)
            self.settle()

    # -- what can be asked of it -----------------------------------------------------------------------------------

    @property
    def theta(self) -> np.ndarray:
        """Models as agents would use them now."""
        return shown_by(*self._agents())

    def border(self) -> Any:
        """Models of those who are tied to each goal, as they are now."""
        theta = self.theta
        parts = tuple(theta[tied] for tied in self.tied)
        return parts if len(parts) != 1 else parts[0]

    def measure(self, *borders: np.ndarray) -> tuple[float, float]:
        """The part of the objective that belongs to the agents of this block, and of its gap where models are in balls.

        An edge counts for its lower end.
        """
        problem, here = self.problem, self.part.here
        away = np.zeros((self.away.shape[0], problem.p))
        for (first, last), border in zip(self.spans, borders, strict=True):
            away[first:last] = border
        theta = np.concatenate([away[: here.start], self.theta, away[here.start :]])
        value = float(problem.values(theta)[here].sum())
        return value, float(problem.gaps(theta)[here].sum()) if np.isfinite(problem.radius) else 0.0

    def models(self, final: bool) -> np.ndarray:
        """Models of the agents: as they are, or those that the agents have in the end."""
        return finished_by(*self._agents()) if final else self.theta.copy()

    def call(self, function: Callable[[int, np.ndarray], Any]) -> Any:
        """What a function makes of the number of the first agent, and of the models that they have in the end."""
        return function(self.first, self.models(True))

    def population(self) -> tuple[np.ndarray, ...]:
        """What the agents take for the population."""
        found: tuple[np.ndarray, ...] = self.method.inspection.population(self.arrays, self.own, self.edge)
        return found


def _models(problem: Problem, start: str | np.ndarray, here: slice) -> np.ndarray:
    """Models before the first wake."""
    if isinstance(start, str):
        return problem.local()[here] if start == "local" else np.zeros((here.stop - here.start, problem.p))
    whole = np.zeros((problem.n, problem.p))
    if start.shape[1] != problem.p:
        raise ParameterError(f"start has models of {start.shape[1]} numbers; the agents have {problem.p} features")
    whole[here] = start
    return problem.checked(whole)[here]


def _told(method: Any, largest: int) -> Any:
    """The same method, where terms of privacy that ask for the most rows of an agent are told: it may be elsewhere."""
    if isinstance(method, Terms):
        return method if method.max_rows else method._replace(max_rows=largest)
    if not hasattr(method, "_fields"):
        return method
    return method._make(_told(part, largest) for part in method)  # as it is: parameters have been checked


def _used(text: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Which numbers of a box are those of messages of some lengths."""
    used: np.ndarray = np.arange(text.shape[1]) < length[:, None]
    return used
