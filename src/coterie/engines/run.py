"""The result of a run: models, a trace, and the account of what was sent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from ..core.messages import Bounds, bits_of
from ..core.wrap.learned import Learned
from ..errors import ParameterError
from ..graphs import Graph
from ..problem import ShardedProblem
from .state import State

#: Beginning of the note about the claim of a private run.
CLAIM = "everything an agent sent"


@dataclass(frozen=True, repr=False)
class Run:
    """The result of :func:`coterie.simulate`.

    Attributes
    ----------
    problem : Problem, or ShardedProblem for runs on a cluster
    method : rule
    theta : (n, p) ndarray
        Final models, one row for each of ``problem.members``. None if they were left on a cluster.
    trace : DataFrame
        One row for each observation: wakes, time, value (the objective), vectors, bytes, and observed values.
    wakes : int
        Number of wakes of agents.
    time : float
        Simulated time, in mean intervals between two wakes of one agent.
    messages, vectors, bytes : int
        Amount sent by agents, including the initial exchange: messages, vectors of p numbers, bytes on the wire.
    tally : (kinds, 2) ndarray
        Messages and numbers sent, for each kind of message of the method.
    lost, duplicated : int
        Messages that the network lost or delivered twice (see :class:`coterie.Conditions`).
    seed : int or None
    before : Run or None
        Earlier part of the run, if this is the second part (:meth:`after`): its messages are in the account, not in the
        tally.
    plan : coterie.privacy.Plan or None
        For private methods: the claim, and the noise of every release.
    epsilon, delta : float or None
        For private methods: the guarantee for everything that an agent sent, including a warm start, but not initial
        models that were given. None after a run without privacy (:meth:`after`).
    published : (n, p) ndarray or None
        Models as last sent. The trace is about these models; ``theta`` holds the agents' own models, which
        are equal unless a private method has a final step.
    fetched : tuple
        Results of the function given as ``fetch`` on each shard, in the order of the agents.
    population : Population or None
        For pooling by gossip: each agent's final estimate of the population, with ``mean`` (n, p), the common model,
        ``variance`` (n, p), the variance of personal models about it, and ``noise`` (n,).
    state : State or None
        State for ``simulate(..., start=run)`` to continue from; None if it was not kept.
    """

    problem: Any
    method: Any
    theta: np.ndarray
    trace: pd.DataFrame
    wakes: int
    time: float
    messages: int
    vectors: int
    bytes: int
    seed: Any
    tally: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    lost: int = 0
    duplicated: int = 0
    notes: tuple[str, ...] = field(default=())
    before: Run | None = None
    plan: Any = None
    published: np.ndarray | None = None
    epsilon: float | None = None
    delta: float | None = None
    population: Any = None
    fetched: tuple[Any, ...] = ()
    state: State | None = field(default=None, compare=False)

    def after(self, before: Run) -> Run:
        """Join this run, as second part, to an earlier one: one trace, one account.

        Parameters
        ----------
        before : Run
            Run of the same agents.

        Returns
        -------
        Run

        Examples
        --------
        >>> import coterie as ct
        >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2))
        >>> first = ct.simulate(problem, "cd", wakes=3)
        >>> ct.simulate(problem, "cd", wakes=4, start=first.theta).after(first).wakes
        7
        """
        # A learned graph has a price of its own, which is kept.
        cost = before.method.rule.regularizer(self.problem) if isinstance(before.method, Learned) else 0.0
        trace = self.trace.assign(
            value=self.trace["value"] + cost,
            **{c: self.trace[c] + getattr(before, c) for c in ("wakes", "time", "vectors", "bytes")},
        )
        if "neighbours" in before.trace:
            trace["neighbours"] = before.trace["neighbours"].iloc[-1]
        sums = ("wakes", "time", "messages", "vectors", "bytes", "lost", "duplicated")
        both = self.epsilon is not None and before.epsilon is not None
        claim: dict[str, Any] = {
            name: getattr(self, name) + getattr(before, name) if both else None for name in ("epsilon", "delta")
        }
        notes = [note for note in self.notes if not note.startswith(CLAIM)]
        if both:
            notes.append(f"{CLAIM} in both halves is ({claim['epsilon']:g}, {claim['delta']:g})-differentially private")
        return replace(
            self,
            before=before,
            notes=tuple(notes),
            **claim,
            trace=pd.concat([before.trace, trace], ignore_index=True),
            **{name: getattr(self, name) + getattr(before, name) for name in sums},
        )

    @property
    def value(self) -> float:
        """Final value of the objective."""
        return float(self.trace["value"].iloc[-1])

    @property
    def honest(self) -> np.ndarray:
        """Agents that follow the method, (n,) of bool: all but the liars of :class:`coterie.robust.Attacked`."""
        return ~np.isin(np.arange(self.problem.n), self.method.inspection.liars)

    @property
    def graph(self) -> Graph:
        """Final graph: learned, or as given. Not available for a ShardedProblem."""
        return self.problem.graph

    def bits(self, number_bits: int = 64) -> float:
        """Return the information sent, in bits, as counted in DADA, Section D: contents only, an index as log2 p.

        Parameters
        ----------
        number_bits : int
            Number of bits of a real number, Z in the paper, which uses 32.

        Returns
        -------
        float

        Examples
        --------
        >>> import coterie as ct
        >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2))
        >>> ct.simulate(problem, "cd", wakes=3).bits(32)  # two initial models, and one for each wake
        160.0
        """
        bounds, bits = Bounds(self.problem.p, outputs=self.problem.outputs), 0.0
        for kind, (messages, numbers) in enumerate(self.tally.tolist()):  # empty for a baseline
            bits += bits_of(self.method.messages[kind], messages, numbers, bounds, number_bits)
        return bits + (self.before.bits(number_bits) if self.before else 0.0)

    def model(self, agent: Any) -> np.ndarray:
        """Return the model of one agent.

        Parameters
        ----------
        agent : hashable
            Id of the agent; for a ShardedProblem, its number.

        Returns
        -------
        (p,) ndarray

        Examples
        --------
        >>> import coterie as ct
        >>> data = ct.AgentData([[0.0], [3.0]], agents=["ann", "bob"])
        >>> problem = ct.Problem.separate(data, ct.graphs.complete(2), loss=ct.Location(ct.Squared()))
        >>> ct.simulate(problem, "cd", wakes=100, seed=0).model("bob").round(6).tolist()
        [2.0]
        """
        if self.theta is None:
            raise ParameterError("the models were left on the cluster: pass fetch=True to simulate")
        if isinstance(self.problem, ShardedProblem):
            return self.theta[agent].copy()
        return self.theta[self.problem.data.index(agent)].copy()

    def __repr__(self) -> str:
        lines = [
            f"Run of {self.method!r} on {self.problem.n} agents, {self.wakes} wakes",
            f"  objective {self.trace['value'].iloc[0]:.6g} -> {self.value:.6g}",
            f"  sent {self.vectors} vectors in {self.messages} messages, {self.bytes} bytes",
        ]
        if self.lost or self.duplicated:
            lines.append(f"  the network lost {self.lost} messages and delivered {self.duplicated} twice")
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])
