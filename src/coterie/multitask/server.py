"""The server: it knows the covariance and the vectors ``b_i``, never a row.

A round sends every worker its weights and takes in how far the ``b_i`` went (the W-step, DMTRL Algorithm 1, lines 4 to
10). Between rounds the covariance may be fitted to the weights (the Omega-step, line 11). What the printed algorithm
gets wrong is put right here: a change counts once (erratum 25), and weights follow the covariance (erratum 26).

Three kinds of rounds:

========================  =============================================================================================
"together"                all workers at once; a step that lowers the dual is taken back
"in turn"                 one task after the other, each with weights that know all before it
"as they come"            every worker at its own pace, at most ``staleness`` rounds ahead of the slowest
========================  =============================================================================================

Steps that are applied one at a time need no rho to be safe: the server knows how the dual changes along a step, and
keeps the part of it that is best. So the dual never falls, however old the weights are that a step started from.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError
from .covariance import joint_charge, joint_penalty, penalty, separability
from .crew import Crew
from .worker import Order, Report, Standing

#: Rounds in a row that gain nothing, until there is nothing to gain. Many: with few local steps in a round, all of them
#: may fall on rows that are done.
PATIENCE = 1000
#: How much of what it is made of a difference of duals may be off, by rounding.
ROUNDING = 1e-15


class State(NamedTuple):
    """One row of the trace."""

    alternation: int
    round: int
    primal: float  # P(W), with the covariance of the moment
    dual: float  # D(a)
    gap: float
    vectors: int  # of d numbers, sent so far


class Server:
    """Weights and covariance of all tasks, and the workers that improve them.

    Parameters
    ----------
    crew : Crew
    lam : float
    covariance : (m, m) ndarray
        To begin with.
    kind : "together", "in turn" or "as they come"
    staleness : int
        For "as they come": how many rounds a worker may be ahead of the slowest.
    rho : "eigenvalue", "lemma10" or float
    eta : float
        Which part of their steps workers take, for "together"; rho grows with it.
    momentum : bool
        For "together": go on in the direction of the step before, and restart where that lowers the dual.
    """

    def __init__(
        self,
        crew: Crew,
        lam: float,
        covariance: np.ndarray,
        *,
        kind: str = "together",
        staleness: int = 0,
        rho: Any = "eigenvalue",
        eta: float = 1.0,
        momentum: bool = True,
    ):
        self.crew, self.lam, self.kind, self.staleness = crew, lam, kind, staleness
        self.bound_of_rho, self.eta, self.use_momentum = rho, eta, momentum
        standings = crew.stand()
        _check_features(standings)
        m, d = covariance.shape[0], standings[0].vectors.shape[1]
        self.vectors, self.conjugate, self.sizes = np.zeros((m, d)), np.zeros(m), np.zeros(m, np.int64)
        for tasks, standing in zip(crew.tasks, standings, strict=True):
            self._place(tasks, standing)
            self.sizes[tasks] = standing.sizes
        #: What the workers have judged: weights as they were sent, their losses, and their parts of the gap.
        self.seen, self.loss, self.slack = np.zeros((m, d)), np.full(m, np.inf), np.full(m, np.inf)
        self._sent_to = np.zeros((m, d))  # what they are judging at the moment
        shards = len(crew.tasks)
        self.keep, self.clock, self.busy = np.ones(shards), np.zeros(shards, np.int64), np.zeros(shards, bool)
        self.alternation, self.rounds, self.sent, self.revived, self.stuck = 0, 0, 0, 0, False
        self.trace: list[State] = []
        self.gap = math.inf
        self.relate(covariance)

    def _place(self, tasks: np.ndarray, standing: Standing) -> None:
        self.vectors[tasks], self.conjugate[tasks] = standing.vectors, standing.conjugate

    # -- what is known ---------------------------------------------------------------------------------------------

    @property
    def dual(self) -> float:
        """D(a) with the covariance of the moment, or a little less where conjugates are only bounded yet."""
        return self._dual_of(self.vectors, self.conjugate)

    def _dual_of(self, vectors: np.ndarray, conjugate: np.ndarray) -> float:
        return -penalty(vectors, self.covariance, self.lam) - float(conjugate.sum())

    @property
    def bound(self) -> float:
        """A lower bound on the joint optimum over weights and covariances."""
        return -joint_charge(self.vectors, self.lam) - float(self.conjugate.sum())

    @property
    def value(self) -> float:
        """The joint objective, ``losses + lam/2 |W|_*^2``, of the weights that the workers have judged."""
        return float(self.loss.sum()) + joint_penalty(self.seen, self.lam)

    @property
    def rho(self) -> np.ndarray:
        """How much steps at the same time may get in each other's way, for each task.

        All tasks, or, where answers are taken in one by one, those of the same worker.
        """
        if not isinstance(self.bound_of_rho, str):
            return np.full(len(self.covariance), float(self.bound_of_rho))
        if self.kind == "together":
            return np.full(len(self.covariance), self.eta * separability(self.covariance, self.bound_of_rho))
        rho = np.ones(len(self.covariance))
        for tasks in self.crew.tasks:
            if len(tasks) > 1:
                rho[tasks] = separability(self.covariance[np.ix_(tasks, tasks)], self.bound_of_rho)
        return rho

    def relate(self, covariance: np.ndarray) -> None:
        """Go on with another covariance: weights follow, ``W = Sigma B / lam`` (erratum 26)."""
        self.covariance = covariance
        self._stiffness = self.rho * np.diagonal(covariance) / self.lam
        self.slack[:], self._since = np.inf, self.clock + self.busy  # what is judged from now on counts
        self._refresh()

    def _refresh(self) -> None:
        self.weights = self.covariance @ self.vectors / self.lam
        self._dual, self._pace, self._ahead, self._vain, self.stuck = self.dual, 1.0, 0.0, 0, False

    # -- rounds ----------------------------------------------------------------------------------------------------

    def round(self) -> float:
        """One round. Returns the duality gap that it found: infinite as long as not all workers have answered."""
        before, self.gap = self._dual, math.inf
        if self.kind == "together":
            self._together()
        else:
            for _ in self.crew.tasks:
                self._one_more()
        self._vain = self._vain + 1 if self._dual <= before else 0
        self.stuck = self._vain >= PATIENCE
        self.rounds += 1
        return self.gap

    def _order(self, shard: int, momentum: float) -> None:
        tasks = self.crew.tasks[shard]
        order = Order(
            int(self.clock[shard]), self.weights[tasks], self._stiffness[tasks], float(self.keep[shard]), momentum
        )
        self.crew.ask(shard, order)
        self.busy[shard], self.keep[shard] = True, 1.0
        self._sent_to[tasks] = order.weights
        self.sent += len(tasks)

    def _together(self) -> None:
        """All workers at once: DMTRL, Algorithm 1, lines 5 to 9."""
        for shard in range(len(self.crew.tasks)):
            self._order(shard, self._ahead)
        vectors, before, conjugate, lost = self.vectors.copy(), self.conjugate.copy(), self.conjugate.copy(), False
        for _ in self.crew.tasks:
            shard, answer = self._answer()
            tasks = self.crew.tasks[shard]
            if isinstance(answer, Standing):
                vectors[tasks], conjugate[tasks], lost = answer.vectors, answer.conjugate, True
                self.revived += 1
                continue
            self._judged(shard, answer)
            vectors[tasks] += answer.change
            before[tasks], conjugate[tasks] = answer.before, answer.after
        if lost:  # a worker began again from its checkpoint, or from nothing: so does the momentum
            self.vectors, self.conjugate = vectors, conjugate
            self._refresh()
            return
        self.conjugate = before
        self._dual = max(self._dual, self.dual)
        self._record()
        change = vectors - self.vectors
        room = ROUNDING * (penalty(vectors, self.covariance, self.lam) + float(np.abs(conjugate).sum()))
        keep = self.eta
        if keep == 1.0 and self._dual_of(vectors, conjugate) < self._dual - room:
            # Momentum went too far: take the step back. Without it, rho is too small: keep the best part of the step.
            everyone = np.arange(len(change))
            best = self._best_part(change, before, conjugate, self.weights, everyone)
            keep = 0.0 if self._ahead > 0.0 else best
        self.keep[:] = keep
        self.vectors = vectors if keep == 1.0 else self.vectors + keep * change
        self.conjugate = before + keep * (conjugate - before)  # at least what it is: conjugates are convex
        self.weights = self.covariance @ self.vectors / self.lam
        self._dual = max(self._dual, self.dual)
        pace = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * self._pace**2)) if keep > 0.0 else 1.0
        self._ahead = (self._pace - 1.0) / pace if self.use_momentum and keep > 0.0 else 0.0
        self._pace = pace

    def _one_more(self) -> None:
        """Give orders to all that may have one, and take in the next answer."""
        idle = np.flatnonzero(~self.busy & (self.clock <= self.clock.min() + self.staleness))
        if self.kind == "in turn":
            idle = idle[:1] if not self.busy.any() else idle[:0]
        for shard in idle:
            self._order(int(shard), 0.0)
        self._apply(*self._answer())
        if self.clock.sum() % len(self.crew.tasks) == 0:
            self._record()

    def _apply(self, shard: int, answer: Report | Standing) -> None:
        """Take in one answer, of which the part is kept that is best for the dual."""
        tasks = self.crew.tasks[shard]
        if isinstance(answer, Standing):
            self._place(tasks, answer)
            self.revived += 1
            self._refresh()
            return
        self._judged(shard, answer)
        self.conjugate[tasks] = answer.before
        keep = self._best_part(answer.change, answer.before, answer.after, self.weights[tasks], tasks)
        self.keep[shard] = keep
        self.vectors[tasks] += keep * answer.change
        self.conjugate[tasks] = answer.before + keep * (answer.after - answer.before)
        self.weights += self.covariance[:, tasks] @ (keep / self.lam * answer.change)
        self._dual = max(self._dual, self.dual)

    def _best_part(
        self, change: np.ndarray, before: np.ndarray, after: np.ndarray, weights: np.ndarray, tasks: np.ndarray
    ) -> float:
        """Which part of a step of some tasks to keep, in [0, 1].

        Along the step the dual changes by at least ``-t (dC + W . dB) - t^2 tr(dB' Sigma dB) / (2 lam)``, since the
        conjugates are convex.
        """
        slope = -float(np.sum(after - before) + np.sum(weights * change))
        bend = 2.0 * penalty(change, self.covariance[np.ix_(tasks, tasks)], self.lam)
        if not slope > 0.0:
            return 0.0
        return 1.0 if slope >= bend else slope / bend

    def _answer(self) -> tuple[int, Report | Standing]:
        shard, answer = self.crew.answer()
        self.busy[shard] = False
        self.clock[shard] += 1
        self.sent += len(self.crew.tasks[shard])
        return shard, answer

    def _judged(self, shard: int, report: Report) -> None:
        tasks = self.crew.tasks[shard]
        self.seen[tasks], self.loss[tasks] = self._sent_to[tasks], report.loss
        if self._since[shard] < self.clock[shard]:  # asked with the covariance of now
            self.slack[tasks] = report.slack

    def _record(self) -> None:
        self.gap = float(self.slack.sum())
        if math.isfinite(self.gap):
            primal = self._dual + self.gap
            self.trace.append(State(self.alternation, self.rounds, primal, self._dual, self.gap, self.sent))

    def judge(self) -> float:
        """Let the workers judge the weights as they are now. Returns the duality gap, which is then exact."""
        while self.busy.any():
            self._apply(*self._answer())
        tasks = self.crew.tasks
        self.weights = self.covariance @ self.vectors / self.lam  # changes that were added up carry rounding
        found = self.crew.evaluate([self.weights[t] for t in tasks], self.keep)
        self.sent += len(self.weights)
        lost = [shard for shard, out in enumerate(found) if isinstance(out, Standing)]
        if lost:  # begun again: the others are where they were, and the weights are other ones now
            for shard in lost:
                self._place(tasks[shard], found[shard])
                self.keep[shard] = 1.0
            self.revived += len(lost)
            self._refresh()
            return self.judge()
        for t, out in zip(tasks, found, strict=True):
            self.loss[t], self.conjugate[t], self.slack[t] = out.T
        self.seen[:] = self.weights
        self._dual = max(self._dual, self.dual)
        self._record()
        return self.gap


def _check_features(standings: list[Standing]) -> None:
    """Refuse workers whose tasks have other features: the server alone sees them all."""
    first = standings[0]
    for other in standings[1:]:
        counts = first.vectors.shape[1], other.vectors.shape[1]
        if counts[0] != counts[1]:
            raise DataError(
                f"task {other.task!r} has {counts[1]} features, but task {first.task!r} has {counts[0]}: all tasks "
                "must have the same"
            )
        if first.columns and other.columns and first.columns != other.columns:
            k = next(k for k in range(counts[0]) if first.columns[k] != other.columns[k])
            raise DataError(
                f"column {k} of task {other.task!r} is {other.columns[k]!r}, but {first.columns[k]!r} in task "
                f"{first.task!r}: all tasks must have the same columns in the same order"
            )
