"""Blocks of agents as actors of a cluster: the compiled loop of :mod:`coterie.core.loop` in each, letters between them.

Time goes in supersteps of n wakes, so that every agent wakes about once in each. Who wakes, and in which order, is
drawn in one place from the seed, and every shard wakes its own. A letter within a shard arrives before the next agent
there wakes; one to another shard leaves at the end of the superstep and arrives at the beginning of the next, at most
n wakes late, whatever the machines are doing. This is all that differs from one process, and with one shard nothing
does. Where a superstep ends does not depend on when somebody looks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core import loop
from ..core.letters import longest
from ..core.linear import frozen
from ..core.world import EVERYONE, REFUSED, VACANT, World, new_outbox
from ..errors import CapacityError, ClusterError, ParameterError
from ..problem import Problem
from ..problem.baselines import Baseline
from .cluster import Cluster
from .drivers import Driver, seeds
from .worlds import part_of, world_of

log = logging.getLogger("coterie")

#: Letters in the box of a shard, which is emptied when the next event might fill it.
BOX = 4096
#: Supersteps asked for before the first of them must be done.
AHEAD = 8
#: Seconds after which to say that shards are waiting for their CPUs.
WAIT = 20.0


class Batch(NamedTuple):
    """Letters from one shard to another."""

    sender: np.ndarray  # (letters,) address
    to: np.ndarray  # (letters,) address
    kind: np.ndarray  # (letters,)
    length: np.ndarray  # (letters,)
    text: np.ndarray  # (letters, size)


class Shard:
    """One block of agents. Lives in an actor; :meth:`build` makes it, so that what it refuses comes out as it is."""

    def build(
        self, method: Any, world: World, theta: np.ndarray, size: int, cuts: np.ndarray, goals: np.ndarray
    ) -> None:
        """Take in the agents: their world, their models, where the shards are cut, and which of them letters go to."""
        self.method, self.cuts, self.goals = method, cuts, goals
        # What came over the network is read-only throughout. The types must be those of one process, or
        # kernels are compiled again; part_of makes what agents may change their own.
        parts = {name: frozen(part) for name, part in world._asdict().items() if isinstance(part, np.ndarray)}
        rows = type(world.rows)(*[frozen(part) if isinstance(part, np.ndarray) else part for part in world.rows])
        self.world = part_of(world._replace(rows=rows, **parts), 0, size)
        self.own, self.tie = method.start(self.world, np.array(theta))
        self.outbox = new_outbox(method, self.world, theta.shape[1], method.max_letters)
        self.account = loop.new_account(method)
        first, last = self.world.address[0], self.world.address[-1] + 1
        abroad = (self.world.peer < first) | (self.world.peer >= last)
        owner = np.repeat(np.arange(size), np.diff(self.world.tie_start))
        self.most = int(method.max_letters + method.broadcasts * np.bincount(owner[abroad], minlength=size).max())
        self.egress = loop.new_egress(max(BOX, self.most), longest(method.lengths(theta.shape[1])))
        self.out: list[Batch] = []

    def greet(self) -> np.ndarray:
        """Let every agent greet its neighbours."""
        count = self.world.address.shape[0]
        dice = np.zeros((count, self.method.dice))
        self._wake(np.arange(count), np.full(count, EVERYONE), dice, np.zeros(count))
        return self._summary(0)

    def step(self, send: bool, order: np.ndarray, dice: np.ndarray, moments: np.ndarray, *batches: Batch) -> Any:
        """Take in letters, wake agents, and hand out the letters to each of ``goals`` if asked to.

        Returns a summary, followed by the letters.
        """
        for batch in batches:
            self._accept(batch)
        order = np.array(order)
        self._wake(order, np.full(order.shape[0], VACANT), np.array(dice), np.array(moments))
        if not send:
            return self._summary(0)
        parts = self._sorted()
        summary = self._summary(sum(part.to.shape[0] for part in parts))
        return (summary, *parts) if parts else summary

    def theta(self) -> np.ndarray:
        """Models of the agents."""
        models: np.ndarray = self.own.theta.copy()
        return models

    def population(self) -> tuple[np.ndarray, ...]:
        """What the agents take for the population."""
        found: tuple[np.ndarray, ...] = self.method.population(self.world, self.own, self.tie)
        return found

    def _summary(self, sent: int) -> np.ndarray:
        """The account so far, and how many letters are handed out."""
        return np.append(self.account, sent)

    def _wake(self, order: np.ndarray, peers: np.ndarray, dice: np.ndarray, moments: np.ndarray) -> None:
        done = 0
        while done < order.shape[0]:
            now = slice(done, done + self._room())
            chance = order[now], peers[now], dice[now], moments[now]
            done += loop.run(*self._agents(), *chance, *self._boxes(), loop.NO_LIMIT)
            self._check()

    def _accept(self, batch: Batch) -> None:
        batch = Batch(*map(np.array, batch))  # a handler may write on a letter, and the cluster's own are read-only
        done = 0
        while done < batch.to.shape[0]:
            now = slice(done, done + self._room())
            letters = (batch.sender[now], batch.to[now], batch.kind[now], batch.length[now], batch.text[now])
            loop.accept(*self._agents(), *self._boxes(), *letters)
            self._check()
            done = now.stop

    def _agents(self) -> tuple[Any, ...]:
        return self.method, self.world, self.own, self.tie

    def _boxes(self) -> tuple[Any, ...]:
        return self.outbox, self.egress, self.account

    def _room(self) -> int:
        """How many events the box has room for, whatever they send; at least one."""
        if self.egress.to.shape[0] - self.egress.counter[0] < self.most:
            self._empty()
        return int((self.egress.to.shape[0] - self.egress.counter[0]) // max(1, self.most))

    def _empty(self) -> None:
        egress, count = self.egress, self.egress.counter[0]
        if count:
            parts = (egress.sender, egress.to, egress.kind, egress.length, egress.text)
            self.out.append(Batch(*(part[:count].copy() for part in parts)))
        egress.counter[0] = 0

    def _check(self) -> None:
        if self.outbox.cursor[REFUSED] or self.egress.counter[1]:
            raise CapacityError(
                f"{self.method!r} posted a letter that cannot be delivered: more, or longer, than the "
                f"{self.method.max_letters} of {self.outbox.text.shape[1]} numbers that it announces for one event"
            )

    def _sorted(self) -> list[Batch]:
        """The letters to each of ``goals``, in the order in which they were posted."""
        self._empty()
        batches, self.out = self.out, []
        if not batches:
            size = self.outbox.text.shape[1]
            none = np.zeros(0, np.int64)
            return [Batch(none, none, none, none, np.zeros((0, size)))] * len(self.goals)
        whole = Batch(*map(np.concatenate, zip(*batches, strict=True)))
        goal = np.searchsorted(self.cuts, whole.to, side="right") - 1
        lost = np.flatnonzero(~np.isin(goal, self.goals))
        if lost.size:
            raise CapacityError(
                f"{self.method!r} posted a letter that cannot be delivered: to nobody's address, {whole.to[lost[0]]}"
            )
        return [Batch(*(part[goal == k] for part in whole)) for k in self.goals]


class Shards(Driver):
    """Agents on the shards of a cluster."""

    def __init__(
        self,
        problem: Problem,
        method: Any,
        theta: np.ndarray,
        choice: Any,
        seed: Any,
        engine: Cluster,
        ray: Any,
        total: int,
    ):
        # Not the base class's: the state of the agents is on their shards.
        self.method, self.choice, self.capacity = method, choice, method.max_letters
        self._problem, self.ray, self.total = problem, ray, total
        self.world = world_of(problem, choice)
        self.who, self.when, self.fate = seeds(seed, 3)
        self.done, self.time, self.elapsed = 0, 0.0, 0.0
        count = engine.count(ray, problem.n)
        self.cuts = np.linspace(0, problem.n, count + 1).astype(np.int64)
        owner = np.repeat(np.arange(problem.n), np.diff(self.world.tie_start))
        ends = np.stack([self._shard_of(owner), self._shard_of(self.world.peer)], axis=1)
        ends = np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0)  # letters go along ties, which have two ends
        self.goals = [ends[ends[:, 0] == k, 1] for k in range(count)]
        self.inbox: list[list[Any]] = [[] for _ in range(count)]
        self.accounts = [loop.new_account(method) for _ in range(count)]
        self.account = loop.new_account(method)
        self.pending: list[list[Any]] = []  # summaries that nobody has read yet, None where a shard had nothing to do
        self.models: np.ndarray | None = None
        actor = ray.remote(num_cpus=engine.cpus, scheduling_strategy="SPREAD")(Shard)
        self.shards = [actor.remote() for _ in range(count)]
        try:
            self._settle_in(theta, engine.cpus)
            self.meet(self.world)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Give the CPUs back."""
        for shard in self.shards:
            self.ray.kill(shard)
        self.shards = []

    @property
    def theta(self) -> np.ndarray:
        """Models, read-only; fetched once for each time that agents woke."""
        if self.models is None:
            self.models = np.concatenate(self._get([shard.theta.remote() for shard in self.shards]))
            self.models.flags.writeable = False
        return self.models

    @property
    def population(self) -> Any:
        """What each agent takes for the population, of a method that learns one; else None."""
        if self.method.population is None:
            return None
        parts = self._get([shard.population.remote() for shard in self.shards])
        return type(parts[0])(*map(np.concatenate, zip(*parts, strict=True)))

    def meet(self, world: World) -> None:
        """Let all agents greet their neighbours."""
        self.pending.append([shard.greet.remote() for shard in self.shards])
        self._deliver_all()

    def change(self, problem: Problem) -> None:
        """Not on a cluster."""
        raise ParameterError("a cluster goes on with the problem it began with: leave changes out, or engine")

    def advance(self, steps: int, budget: loop.Budget) -> None:
        """Take so many steps; a cluster has no budget but them."""
        n = self._problem.n
        order, dice = self.who.integers(0, n, steps), self.fate.random((steps, self.method.dice))
        intervals = self.when.standard_exponential(steps)
        moments = (self.done + np.arange(steps)) / n
        at = 0
        while at < steps:
            begun = self.done % n
            now = slice(at, min(steps, at + n - begun))
            count = now.stop - at
            self._step(begun == 0, begun + count == n, order[now], dice[now], moments[now])
            at, self.done = now.stop, self.done + count
        # Added one by one: sums do not depend on how a run is divided.
        self.elapsed = float(np.cumsum(np.append(self.elapsed, intervals))[-1])
        self.time = self.elapsed / n
        if self.done >= self.total:
            self._deliver_all()
        self._read(0)

    def _shard_of(self, agents: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.cuts, agents, side="right") - 1

    def _settle_in(self, theta: np.ndarray, cpus: float) -> None:
        """Send the agents to their shards."""
        built = []
        for k, (first, last) in enumerate(zip(self.cuts[:-1], self.cuts[1:], strict=True)):
            part = part_of(self.world, first, last)
            arguments = self.method, part, theta[first:last], int(last - first), self.cuts, self.goals[k]
            built.append(self.shards[k].build.remote(*arguments))
        _, missing = self.ray.wait(built, num_returns=len(built), timeout=WAIT)
        if missing:
            log.warning("waiting for %d shard(s) of %g CPU(s) each: the cluster is busy", len(missing), cpus)
        self._get(built)

    def _step(self, receive: bool, send: bool, order: np.ndarray, dice: np.ndarray, moments: np.ndarray) -> None:
        """A superstep, or a piece of one: letters are received where it begins and sent where it ends."""
        self.models = None
        inbox, sent = self.inbox, [[] for _ in self.shards] if send else self.inbox
        shard = self._shard_of(order)
        summaries: list[Any] = []
        for k, actor in enumerate(self.shards):
            mine = np.flatnonzero(shard == k)
            batches: Sequence[Any] = inbox[k] if receive else ()
            if not (mine.size or batches or send):
                summaries.append(None)
                continue
            returns = 1 + len(self.goals[k]) * send
            made = actor.step.options(num_returns=returns).remote(
                send, order[mine] - self.cuts[k], dice[mine], moments[mine], *batches
            )
            summary, *letters = made if returns > 1 else [made]
            summaries.append(summary)
            if send:
                for goal, batch in zip(self.goals[k], letters, strict=True):
                    sent[goal].append(batch)  # a reference: the letters themselves go from shard to shard
        self.inbox = sent
        self.pending.append(summaries)
        self._read(AHEAD)

    def _deliver_all(self) -> None:
        """Until no letter is under way."""
        none, dice = np.zeros(0, np.int64), np.zeros((0, self.method.dice))
        sent = 1
        # In the middle of a superstep all letters received have been read; those to send are still on the shards.
        receive = self.done % self._problem.n == 0
        while sent:
            self._step(receive, True, none, dice, np.zeros(0))
            receive = True
            sent = self._read(0)

    def _read(self, behind: int) -> int:
        """Read summaries until only so many are not read; returns how many letters the last one handed out."""
        sent = 0
        while len(self.pending) > behind:
            summaries = self.pending.pop(0)
            busy = [k for k, summary in enumerate(summaries) if summary is not None]
            sent = 0
            for k, summary in zip(busy, self._get([summaries[k] for k in busy]), strict=True):
                self.accounts[k] = summary[:-1]
                sent += int(summary[-1])
        self.account = np.sum(self.accounts, axis=0)
        return sent

    def _get(self, references: list[Any]) -> list[Any]:
        """What shards have answered; an error of theirs as it was."""
        errors = self.ray.exceptions
        try:
            return list(self.ray.get(references))
        except errors.RayTaskError as error:
            cause: BaseException = error
            while isinstance(cause, errors.RayTaskError) and isinstance(cause.cause, BaseException):
                cause = cause.cause
            if isinstance(cause, errors.RayError):
                raise _lost(cause) from error
            raise cause from error
        except errors.RayError as error:
            raise _lost(error) from error


def _lost(error: BaseException) -> ClusterError:
    return ClusterError(
        f"a shard is gone, and its agents with it: a simulation keeps no checkpoints, start it again ({error})"
    )


def check_engine(engine: Any, method: Any, problem: Problem, others: Mapping[str, Any]) -> None:
    """Refuse an engine that is none, and what a cluster cannot do."""
    if engine is None:
        return
    if not isinstance(engine, Cluster):
        raise ParameterError(f"engine={engine!r} must be a ct.Cluster, or None for this process")
    for name, value in others.items():
        if value is not None:
            raise ParameterError(
                f"{name}=... does not go with engine=ct.Cluster(...): say how long in wakes, and leave it out"
            )
    if isinstance(method, Baseline):
        raise ParameterError(f"engine=ct.Cluster(...): {method!r} is computed in one place: leave engine out")
    if method.spare:
        raise ParameterError(
            f"engine=ct.Cluster(...): {method!r} learns who is tied to whom, which shards cannot: leave engine out"
        )
    for part in (method, problem.loss):
        if type(part).__module__ == "__main__":
            raise ParameterError(
                f"engine=ct.Cluster(...): workers cannot import {type(part).__name__} from a script; "
                "move it to a module"
            )
