"""The server: it knows the covariance and the vectors ``b_i``, never a row.

A round sends every worker its weights and takes in how far the ``b_i`` went (the W-step, DMTRL Algorithm 1, lines 4 to
10). Between rounds the covariance may be fitted to the weights (the Omega-step, line 11). What the printed algorithm
gets wrong is put right here: a change counts once (erratum 25), and weights follow the covariance (erratum 26).

Three kinds of rounds:

========================  =============================================================================================
"synchronous"                all workers at once; a step that lowers the dual is taken back
"sequential"                 one task after the other, each with weights that know all before it
"asynchronous"            every worker at its own pace, at most ``staleness`` rounds ahead of the slowest
========================  =============================================================================================

Steps that are applied one at a time need no rho to be safe: the server knows how the dual changes along a step, and
keeps the part of it that is best. So the dual never falls, however old the weights are that a step started from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError
from .covariance import Covariance, LowRank, as_covariance, joint_penalty, penalty, separability
from .spectrum import singular_values
from .worker import Request, Update, WorkerState
from .workers import Workers

#: Rounds in a row that gain nothing, until there is nothing to gain. Many: with few local steps in a round, all of them
#: may fall on rows that are done.
PATIENCE = 1000
#: How much of what it is made of a difference of duals may be off, by rounding.
ROUNDING = 1e-15


#: What of a server changes in a run, beside the trace and the covariance.
CHANGING = (
    *("vectors", "conjugate", "evaluated", "loss", "slack", "keep", "clock", "busy"),
    *("alternation", "rounds", "sent", "stalled", "gap"),
    *("_sent_to", "_since", "_curvature", "_dual", "_pace", "_momentum", "_in_vain"),
)


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

    ``eta`` is the part of their steps that workers take in synchronous rounds, rho grows with it. ``momentum`` goes on
    in the direction of the step before, and restarts where that lowers the dual.
    """

    def __init__(
        self,
        workers: Workers,
        lam: float,
        covariance: Covariance | np.ndarray,
        *,
        kind: str = "synchronous",
        staleness: int = 0,
        rho: Any = "eigenvalue",
        eta: float = 1.0,
        momentum: bool = True,
    ):
        self.workers, self.lam, self.kind, self.staleness = workers, lam, kind, staleness
        self.given_rho, self.eta, self.use_momentum = rho, eta, momentum
        states = self._states = workers.states()
        _check_features(states)
        m, d = len(covariance), states[0].vectors.shape[1]
        self.vectors, self.conjugate, self.sizes = np.zeros((m, d)), np.zeros(m), np.zeros(m, np.int64)
        for tasks, state in zip(workers.tasks, states, strict=True):
            self._take_state(tasks, state)
            self.sizes[tasks] = state.sizes
        #: What the workers have evaluated: weights as they were sent, their losses, and their parts of the gap.
        self.evaluated, self.loss, self.slack = np.zeros((m, d)), np.full(m, np.inf), np.full(m, np.inf)
        self._sent_to = np.zeros((m, d))  # what they are evaluating at the moment
        parts = len(workers.tasks)
        self.keep, self.clock, self.busy = np.ones(parts), np.zeros(parts, np.int64), np.zeros(parts, bool)
        self.alternation, self.rounds, self.sent, self.stalled = 0, 0, 0, False
        self.trace: list[State] = []
        self.covariance: Covariance
        #: Weights of all tasks, and what those of some are made of, while they are up to date.
        self._weights: np.ndarray | None = None
        self._summary: np.ndarray | None = None
        self.gap = math.inf
        self.set_covariance(covariance)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save(self, number: int, kept: list[int]) -> bool:
        """Let the workers write a checkpoint, between two rounds, and keep some. Whether all of them could."""
        while self.busy.any():
            self._apply(*self._receive())
        found = self.workers.save(number, kept)
        self._begin_again({part: state for part, state in enumerate(found) if isinstance(state, WorkerState)})
        return all(state is True for state in found)

    def pack(self) -> dict[str, Any]:
        """All that changes in a run, for a checkpoint; and the weights, which go with it."""
        packed: dict[str, Any] = {name: getattr(self, name) for name in CHANGING}
        packed |= {"trace": np.array(self.trace, dtype=np.float64), "weights": self.weights}
        if isinstance(self.covariance, LowRank):
            packed |= vars(self.covariance)
        return {
            name: value.item() if isinstance(value, np.generic) else np.array(value) if np.ndim(value) else value
            for name, value in packed.items()
        }

    def unpack(self, packed: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, with workers that have done so: bit by bit, but for those that could not."""
        states = {part: state for part, state in enumerate(self._states) if not state.restored}
        for name in CHANGING:
            value = packed[name]
            setattr(self, name, np.array(value) if isinstance(value, np.ndarray) else value)
        rows = packed["trace"].reshape(-1, len(State._fields)).tolist()
        self.trace = [State(int(a), int(r), primal, dual, gap, int(v)) for a, r, primal, dual, gap, v in rows]
        if isinstance(self.covariance, LowRank):
            self.covariance = LowRank(packed["directions"], packed["sizes"], packed["rest"])
        self._forget_weights()
        self._begin_again(states)

    def _begin_again(self, states: Mapping[int, WorkerState]) -> None:
        """Take in the states of workers that have begun again: the others are where they were."""
        for part, state in states.items():
            self._take_state(self.workers.tasks[part], state)
            self.keep[part] = 1.0
        if states:  # weights are other ones now, and the momentum of no use
            self._refresh()

    def _take_state(self, tasks: np.ndarray, state: WorkerState) -> None:
        self.vectors[tasks], self.conjugate[tasks] = state.vectors, state.conjugate

    # -- what is known ---------------------------------------------------------------------------------------------

    @property
    def dual(self) -> float:
        """D(a) with the covariance of the moment, or a little less where conjugates are only bounded yet."""
        return self._dual_of(self.vectors, self.conjugate)

    def _dual_of(self, vectors: np.ndarray, conjugate: np.ndarray) -> float:
        return -penalty(vectors, self.covariance, self.lam) - float(conjugate.sum())

    def joint_value(self) -> tuple[float, np.ndarray]:
        """The joint objective, ``losses + lam/2 |W|_*^2``, and the singular values of W.

        Of the weights that the workers have evaluated.
        """
        sizes = singular_values(self.evaluated)
        return float(self.loss.sum()) + joint_penalty(sizes, self.lam), sizes

    @property
    def weights(self) -> np.ndarray:
        """``W = Sigma B / lam``, of all tasks."""
        if self._weights is None:
            self._weights = self.covariance @ self.vectors / self.lam
        return self._weights

    def _weights_of(self, tasks: np.ndarray) -> np.ndarray:
        """Weights of some tasks. Where answers are taken in one by one, those of the others are not worked out."""
        if self.kind == "synchronous":
            return self.weights[tasks]
        if self._summary is None:
            self._summary = self.covariance.summary(self.vectors)
        return self.covariance.product(self._summary, self.vectors, tasks) / self.lam

    @property
    def rho(self) -> np.ndarray:
        """How much steps at the same time may get in each other's way, for each task.

        All tasks, or, where answers are taken in one by one, those of the same worker.
        """
        if not isinstance(self.given_rho, str):
            return np.full(len(self.covariance), float(self.given_rho))
        if self.kind == "synchronous":
            return np.full(len(self.covariance), self.eta * separability(self.covariance, self.given_rho))
        rho = np.ones(len(self.covariance))
        for tasks in self.workers.tasks:
            if len(tasks) > 1:
                rho[tasks] = separability(self.covariance.take(tasks), self.given_rho)
        return rho

    def set_covariance(self, covariance: Covariance | np.ndarray) -> None:
        """Go on with another covariance: weights follow, ``W = Sigma B / lam`` (erratum 26)."""
        self.covariance = as_covariance(covariance)
        self._curvature = self.rho * self.covariance.diagonal() / self.lam
        self.slack[:], self._since = np.inf, self.clock + self.busy  # what is evaluated from now on counts
        self._refresh()

    def _refresh(self) -> None:
        self._forget_weights()
        self._dual, self._pace, self._momentum, self._in_vain, self.stalled = self.dual, 1.0, 0.0, 0, False

    def _forget_weights(self) -> None:
        """Work weights out anew when they are next needed."""
        self._weights = self._summary = None

    # -- rounds ----------------------------------------------------------------------------------------------------

    def round(self) -> float:
        """One round. Returns the duality gap that it found: infinite as long as not all workers have answered."""
        before, self.gap = self._dual, math.inf
        if self.kind == "synchronous":
            self._synchronous_round()
        else:
            for _ in self.workers.tasks:
                self._next_update()
            self._dual = max(self._dual, self.dual)
        self._in_vain = self._in_vain + 1 if self._dual <= before else 0
        self.stalled = self._in_vain >= PATIENCE
        self.rounds += 1
        return self.gap

    def _send(self, part: int, momentum: float) -> None:
        tasks = self.workers.tasks[part]
        request = Request(
            int(self.clock[part]), self._weights_of(tasks), self._curvature[tasks], float(self.keep[part]), momentum
        )
        self.workers.send(part, request)
        self.busy[part], self.keep[part] = True, 1.0
        self._sent_to[tasks] = request.weights
        self.sent += len(tasks)

    def _synchronous_round(self) -> None:
        """All workers at once: DMTRL, Algorithm 1, lines 5 to 9."""
        for part in range(len(self.workers.tasks)):
            self._send(part, self._momentum)
        vectors, before, conjugate, lost = self.vectors.copy(), self.conjugate.copy(), self.conjugate.copy(), False
        for _ in self.workers.tasks:
            part, answer = self._receive()
            tasks = self.workers.tasks[part]
            if isinstance(answer, WorkerState):
                vectors[tasks], conjugate[tasks], lost = answer.vectors, answer.conjugate, True
                continue
            self._take_losses(part, answer)
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
            best = self._best_part(change, before, conjugate, self.weights, self.covariance)
            keep = 0.0 if self._momentum > 0.0 else best
        self.keep[:] = keep
        self.vectors = vectors if keep == 1.0 else self.vectors + keep * change
        self.conjugate = before + keep * (conjugate - before)  # at least what it is: conjugates are convex
        self._forget_weights()
        self._dual = max(self._dual, self.dual)
        pace = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * self._pace**2)) if keep > 0.0 else 1.0
        self._momentum = (self._pace - 1.0) / pace if self.use_momentum and keep > 0.0 else 0.0
        self._pace = pace

    def _next_update(self) -> None:
        """Send requests to all that may have one, and take in the next answer."""
        idle = np.flatnonzero(~self.busy & (self.clock <= self.clock.min() + self.staleness))
        if self.kind == "sequential":
            idle = idle[:1] if not self.busy.any() else idle[:0]
        for part in idle:
            self._send(int(part), 0.0)
        self._apply(*self._receive())
        if self.clock.sum() % len(self.workers.tasks) == 0:
            self._dual = max(self._dual, self.dual)
            self._record()

    def _apply(self, part: int, answer: Update | WorkerState) -> None:
        """Take in one answer, of which the part is kept that is best for the dual."""
        tasks = self.workers.tasks[part]
        if isinstance(answer, WorkerState):
            self._begin_again({part: answer})
            return
        self._take_losses(part, answer)
        self.conjugate[tasks] = answer.before
        weights, own = self._weights_of(tasks), self.covariance.take(tasks)
        keep = self._best_part(answer.change, answer.before, answer.after, weights, own)
        self.keep[part] = keep
        self.vectors[tasks] += keep * answer.change
        self.conjugate[tasks] = answer.before + keep * (answer.after - answer.before)
        self._weights = None
        if self._summary is not None:
            self.covariance.update(self._summary, tasks, keep * answer.change)

    def _best_part(
        self, change: np.ndarray, before: np.ndarray, after: np.ndarray, weights: np.ndarray, covariance: Covariance
    ) -> float:
        """Which part of a step of some tasks to keep, in [0, 1], for their weights and covariance.

        Along the step the dual changes by at least ``-t (dC + W . dB) - t^2 tr(dB' Sigma dB) / (2 lam)``, since the
        conjugates are convex.
        """
        slope = -float(np.sum(after - before) + np.sum(weights * change))
        bend = 2.0 * penalty(change, covariance, self.lam)
        if not slope > 0.0:
            return 0.0
        return 1.0 if slope >= bend else slope / bend

    def _receive(self) -> tuple[int, Update | WorkerState]:
        part, answer = self.workers.receive()
        self.busy[part] = False
        self.clock[part] += 1
        self.sent += len(self.workers.tasks[part])
        return part, answer

    def _take_losses(self, part: int, update: Update) -> None:
        tasks = self.workers.tasks[part]
        self.evaluated[tasks], self.loss[tasks] = self._sent_to[tasks], update.loss
        if self._since[part] < self.clock[part]:  # sent with the covariance of now
            self.slack[tasks] = update.slack

    def _record(self) -> None:
        self.gap = float(self.slack.sum())
        if math.isfinite(self.gap):
            primal = self._dual + self.gap
            self.trace.append(State(self.alternation, self.rounds, primal, self._dual, self.gap, self.sent))

    def evaluate(self) -> float:
        """Let the workers evaluate the weights as they are now. Returns the duality gap, which is then exact."""
        while self.busy.any():
            self._apply(*self._receive())
        tasks = self.workers.tasks
        self._forget_weights()  # changes that were added up carry rounding
        found = self.workers.evaluate([self.weights[t] for t in tasks], self.keep)
        self.sent += len(self.weights)
        lost = {part: out for part, out in enumerate(found) if isinstance(out, WorkerState)}
        if lost:
            self._begin_again(lost)
            return self.evaluate()
        for t, out in zip(tasks, found, strict=True):
            self.loss[t], self.conjugate[t], self.slack[t] = out.T
        self.evaluated[:] = self.weights
        self._dual = max(self._dual, self.dual)
        self._record()
        return self.gap


def _check_features(states: list[WorkerState]) -> None:
    """Refuse workers whose tasks have other features: the server alone sees them all."""
    first = states[0]
    for other in states[1:]:
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
