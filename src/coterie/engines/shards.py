"""Blocks of agents as actors of a cluster: each runs the compiled loop of :mod:`coterie.core.loop`.

Time is divided into supersteps of n wakes, in which every agent wakes about once. The order of wakes depends on the
seed alone: all shards draw equal wakes, and each runs those of its agents. A message within a shard arrives before the
next agent there wakes; a message to another shard leaves at the end of the superstep and arrives at the beginning of
the next, at most n wakes late, whatever the speed of the machines. There is no other difference to one process, and
none at all with one shard. The ends of supersteps do not depend on observations.

Rows, edges, messages and models stay on the shards (:mod:`coterie.engines.shard`); this process handles references and
sums only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from .._workers import await_all, causes, gone, replay
from ..core import loop
from ..errors import ClusterError, CoterieError, DataError, MismatchError, ParameterError
from ..problem import Problem
from ..problem import ShardedProblem as ShardedProblem
from ..problem.baselines import Baseline
from ..problem.sharded import block_of, pose_of
from .arrays import check_choice, choices
from .cluster import Cluster, check_cluster, check_importable
from .drivers import USUAL_REFUSALS, Asked, Driver, Options, seeds
from .shard import Facts, Shard, Summary

log = logging.getLogger("coterie")

#: Number of supersteps submitted ahead of the first unfinished one.
SUPERSTEPS_AHEAD = 8
#: Number of wakes whose times are drawn at a time.
WAKES_PER_DRAW = 1 << 17
IN_WAKES = "{name}=... does not go with engine=ct.Cluster(...): pass wakes=... instead"


class Shards(Driver):
    """Agents on the shards of a cluster, which hold parts of this process's problem, or build their own."""

    refuses = {"lock_free": USUAL_REFUSALS["lock_free"]} | {
        name: IN_WAKES.format(name=name) for name in ("events", "conditions", "capacity")
    }

    @classmethod
    def settings(cls, asked: Asked, options: Options) -> dict[str, Any]:
        """Check the engine."""
        return super().settings(asked, options) | {"engine": options.engine}

    def __init__(self, asked: Asked, choice: Any, engine: Cluster):
        # The base class is not initialised: the state of the agents is on the shards.
        self.method, self.n, self.pace = asked.method, asked.problem.n, asked.problem.n
        self._posed, self.total = asked.problem, asked.total
        self.when = seeds(asked.seed, 3)[1]
        self.done, self.time, self.elapsed = 0, 0.0, 0.0
        self._sent, self._handed = 0, 0
        self._models: np.ndarray | None = None
        self._until = ExitStack()
        self.ray = self._until.enter_context(engine.connect())
        self.shards: list[Any] = []
        try:
            self._start(asked, choice, engine)
        except BaseException:
            self.close()
            raise

    def _start(self, asked: Asked, choice: Any, engine: Cluster) -> None:
        """Start the shards, and let every agent greet its neighbours."""
        ray = self.ray
        count = engine.count(ray, self.n)
        self.cuts = np.linspace(0, self.n, count + 1).astype(np.int64)
        self.inbox: list[list[Any]] = [[] for _ in range(count)]
        self.accounts = [loop.new_account(self.method) for _ in range(count)]
        self.pending: list[list[Any]] = []  # summaries not read yet; None for a shard without work
        actor = ray.remote(num_cpus=engine.cpus, scheduling_strategy="SPREAD")(Shard)
        self.shards = [actor.remote(log.getEffectiveLevel()) for _ in range(count)]
        facts = self._load(engine.cpus)
        self.p, self.in_balls = facts[0].n_features, facts[0].in_balls
        self._begin(facts, asked, choice, max(1, int(engine.cpus)))
        self.meet(None)

    def close(self) -> None:
        """Release the CPUs."""
        log.info("%d messages went between shards in %d wakes", self._handed, self.done)
        for shard in self.shards:
            self.ray.kill(shard)
        self.shards = []
        self._until.close()

    # -- the parts of the problem ----------------------------------------------------------------------------------

    def _load(self, cpus: float) -> list[Facts]:
        """Let every shard store its agents, or build them."""
        await_all(self.ray, [shard.ready.remote() for shard in self.shards], f"shard(s) of {cpus:g} CPU(s) each")
        problem, loaded = self._posed, []
        pose = problem.pose if isinstance(problem, ShardedProblem) else pose_of(problem)
        for k, shard in enumerate(self.shards):
            whole = isinstance(problem, ShardedProblem)
            block = problem if whole else block_of(problem, int(self.cuts[k]), int(self.cuts[k + 1]))
            loaded.append(shard.load.remote(block, pose, self.cuts, k, self.method))
        facts: list[Facts] = self._get(loaded)
        for k, fact in enumerate(facts):
            if fact.n_features != facts[0].n_features:
                raise DataError(
                    f"agents from {self.cuts[k]} on have {fact.n_features} features, and those from 0 on "
                    f"{facts[0].n_features}: build must return equal numbers of features"
                )
        return facts

    def _begin(self, facts: list[Facts], asked: Asked, choice: Any, jobs: int) -> None:
        """Compare edges, and let the shards create their agents' arrays."""
        edges = np.stack([fact.edges for fact in facts])
        connected = (edges + edges.T) > 0
        self.goals = [np.flatnonzero(row) for row in connected]  # shards to exchange messages with: edges have two ends
        if isinstance(self._posed, ShardedProblem):
            self._get(
                [
                    self.shards[b].compare.remote(a, self.shards[a].edges_to.remote(b))
                    for a, b in np.argwhere(np.triu(connected)).tolist()
                ]
            )
        probabilities = choice if isinstance(choice, str) else choices(choice, self._posed)
        begun = []
        for k, shard in enumerate(self.shards):
            first, last = self.cuts[k], self.cuts[k + 1]
            choosing = probabilities
            if not isinstance(probabilities, str):
                choosing = probabilities[self._posed.graph.start[first] : self._posed.graph.start[last]]
            models = asked.models if isinstance(asked.models, str) else asked.models[first:last]
            largest = max(fact.largest for fact in facts)
            begun.append(shard.begin.remote(self.n, largest, models, choosing, self.goals[k], asked.seed, jobs))
        self._get(begun)

    @property
    def problem(self) -> Any:
        """The problem, or the description that it is built from."""
        return self._posed.with_features(self.p) if isinstance(self._posed, ShardedProblem) else self._posed

    # -- results ---------------------------------------------------------------------------------------------------

    @property
    def shared(self) -> int:
        """Number of parameters of a model that may be sent: all."""
        return int(self.p)

    @property  # type: ignore[override]  # read-only: a sum over the shards
    def account(self) -> np.ndarray:
        """The account of what was sent, up to the last requested wake."""
        self._read(0)
        total: np.ndarray = np.sum(self.accounts, axis=0)
        return total

    @property
    def theta(self) -> np.ndarray:
        if self._models is None:
            self._models = self._fetched(False)
            self._models.flags.writeable = False
        return self._models

    @property
    def final(self) -> np.ndarray:
        return self.theta.copy() if self.method.privacy.finish is None else self._fetched(True)

    def _fetched(self, final: bool) -> np.ndarray:
        return np.concatenate(self._get([shard.models.remote(final) for shard in self.shards]))

    def call(self, function: Any) -> tuple[Any, ...]:
        """Return the results of a function of the models on each shard."""
        return tuple(self._get([shard.call.remote(function) for shard in self.shards]))

    @property
    def population(self) -> Any:
        if self.method.inspection.population is None:
            return None
        parts = self._get([shard.population.remote() for shard in self.shards])
        return type(parts[0])(*map(np.concatenate, zip(*parts, strict=True)))

    def measures(self) -> dict[str, float]:
        """Return the objective, summed over the shards: models are sent to neighbours' shards only."""
        borders: list[list[Any]] = [[] for _ in self.shards]
        for goals, shard in zip(self.goals, self.shards, strict=True):
            if len(goals):
                found = shard.border.options(num_returns=len(goals)).remote()
                for goal, part in zip(goals, found if len(goals) > 1 else [found], strict=True):
                    borders[goal].append(part)
        parts = self._get([shard.measure.remote(*mine) for shard, mine in zip(self.shards, borders, strict=True)])
        value, gap = (float(sum(part)) for part in zip(*parts, strict=True))
        return {"value": value, **({"gap": gap} if self.in_balls else {})}

    # -- wakes -----------------------------------------------------------------------------------------------------

    def meet(self, arrays: Any, who: Any = None) -> None:
        self.pending.append([shard.greet.remote() for shard in self.shards])
        self._deliver_all()

    def change(self, problem: Problem) -> None:
        """Raise an error: not supported on a cluster."""
        raise ParameterError("a cluster cannot change the problem during a run: leave changes out, or engine")

    def advance(self, steps: int, budget: loop.Budget) -> None:
        """Take `steps` steps; the cluster supports no other budget."""
        at = 0
        while at < steps:
            begun = self.done % self.n
            count = min(steps - at, self.n - begun)
            self._step(begun == 0, begun + count == self.n, count)
            at, self.done = at + count, self.done + count
        for first in range(0, steps, WAKES_PER_DRAW):
            intervals = self.when.standard_exponential(min(WAKES_PER_DRAW, steps - first))
            # Added one by one, so that sums do not depend on how a run is divided.
            self.elapsed = float(np.cumsum(np.append(self.elapsed, intervals))[-1])
        self.time = self.elapsed / self.n
        if self.done >= self.total:
            self._deliver_all()

    def _step(self, receive: bool, send: bool, count: int) -> None:
        """Run a superstep, or a part of it: messages are received at its beginning and sent at its end."""
        self._models = None
        inbox, sent = self.inbox, [[] for _ in self.shards] if send else self.inbox
        summaries: list[Any] = []
        for k, actor in enumerate(self.shards):
            batches: Sequence[Any] = inbox[k] if receive else ()
            returns = 1 + len(self.goals[k]) * send
            made = actor.step.options(num_returns=returns).remote(count, send, *batches)
            summary, *messages = made if returns > 1 else [made]
            summaries.append(summary)
            if send:
                for goal, batch in zip(self.goals[k], messages, strict=True):
                    sent[goal].append(batch)  # a reference: the messages themselves go between shards
        self.inbox = sent
        self.pending.append(summaries)
        self._read(SUPERSTEPS_AHEAD)

    def _deliver_all(self) -> None:
        """Deliver messages until none is in transit."""
        # Within a superstep all received messages have been read, and messages to send are still on the shards.
        receive = self.done % self.n == 0
        while True:
            self._step(receive, True, 0)
            receive = True
            self._read(0)
            if not self._sent:
                return

    def _read(self, behind: int) -> None:
        """Read summaries until at most `behind` are left."""
        while len(self.pending) > behind:
            summaries: list[Summary] = self._get(self.pending.pop(0))
            self._sent = sum(summary.sent for summary in summaries)
            self._handed += self._sent
            self.accounts = [summary.account for summary in summaries]
            for summary in summaries:
                replay(summary.records)

    def _get(self, references: list[Any]) -> list[Any]:
        """Return the answers of shards; raise their errors as they were."""
        try:
            with causes(self.ray):
                return list(self.ray.get(references))
        except CoterieError as error:
            for reference in self.ray.wait(references, num_returns=len(references), timeout=1.0)[0]:
                with suppress(Exception):  # usually an equal error; Ray prints errors that are not fetched
                    self.ray.get(reference)
            cause: Any = error.__cause__
            while isinstance(cause, self.ray.exceptions.RayTaskError) and isinstance(cause.cause, BaseException):
                cause = cause.cause
            if isinstance(cause, gone(self.ray)):  # or its machine, with messages of the shard
                raise ClusterError(
                    "a shard is gone, and its agents with it: a simulation keeps no checkpoints, start it again "
                    f"({cause})"
                ) from error
            raise


def check_engine(method: Any, problem: Any, options: Options, others: Mapping[str, Any]) -> None:
    """Refuse an engine that is not a Cluster, and what a cluster does not support; `others` must be left out."""
    engine, choice = options.engine, options.choice
    check_cluster(engine)
    Shards.refuse(options, problem.n)
    for name, value in others.items():
        if value is not None and name != "wakes":
            raise ParameterError(IN_WAKES.format(name=name))
    if isinstance(method, Baseline):
        raise ParameterError(f"engine=ct.Cluster(...): {method!r} is computed in one place: leave engine out")
    if method.edges.spare:
        raise ParameterError(
            f"engine=ct.Cluster(...): {method!r} learns the graph, and a shard only knows its agents' initial edges; "
            "leave engine out, or learn the graph first, with ct.learn_graph(...), and run "
            f"{method.method!r} on it"
        )
    if isinstance(problem, Problem) and not problem.has_optimum:
        raise MismatchError(
            "engine=ct.Cluster(...) runs only linear models whose parameters are all tied: leave engine out"
        )
    if method.traffic.sums or (isinstance(problem, Problem) and problem.graph.directed):
        raise ParameterError(
            f"engine=ct.Cluster(...): {method!r} sends running sums, or along one-way edges, and shards "
            "forward only the last message of each agent, along mutual edges; leave engine out"
        )
    check_choice(choice)
    if isinstance(problem, ShardedProblem):
        if not isinstance(choice, str):
            raise ParameterError(
                'choice must be "uniform" or "weight" for a ShardedProblem: no process has the edges of all agents'
            )
        check_importable(method)
    else:
        check_importable(method, problem.loss)
