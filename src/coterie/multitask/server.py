"""The server, which holds the covariance and the vectors ``b_i``, but no rows.

A round sends every worker its weights and receives the changes of the ``b_i`` (the W-step, DMTRL Algorithm 1, lines 4
to 10). Between rounds the covariance may be fitted to the weights (the Omega-step, line 11). Two errors of the printed
algorithm are corrected: a change counts once (erratum 25), and weights change with the covariance (erratum 26).

Three kinds of rounds:

========================  =============================================================================================
"synchronous"             all workers at once; a step that lowers the dual is undone
"sequential"              one task after the other, each with weights that include all previous changes
"asynchronous"            every worker at its own pace, at most ``staleness`` rounds ahead of the slowest
========================  =============================================================================================

Steps that are applied one at a time are safe without rho: the server knows how the dual changes along a step, and
applies the best fraction of the step. So the dual never decreases, even if a step started from old weights.
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

#: Number of consecutive rounds without gain after which training stops. The number is large, because with few local
#: steps in a round, all of them may fall on rows whose dual variables are optimal.
MAX_ROUNDS_WITHOUT_GAIN = 1000
#: Rounding error of a difference of duals, relative to the sum of the absolute values of its terms.
ROUNDING = 1e-15


#: Attributes of a server that change in a run, besides the trace and the covariance.
CHANGING = (
    *("vectors", "conjugate", "evaluated", "loss", "slack", "keep", "clock", "busy"),
    *("alternation", "rounds", "sent", "stalled", "gap"),
    *("_sent_to", "_since", "_curvature", "_dual", "_pace", "_momentum", "_in_vain"),
)


class State(NamedTuple):
    """One row of the trace."""

    alternation: int
    round: int
    primal: float  # P(W), with the current covariance
    dual: float  # D(a)
    gap: float
    vectors: int  # number of vectors of d numbers sent so far


class Server:
    """Weights and covariance of all tasks, and the workers that improve the weights.

    ``eta`` is the fraction of the workers' steps that is applied in synchronous rounds; rho is proportional to ``eta``.
    ``momentum`` extrapolates in the direction of the previous step, and restarts if that lowers the dual.
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
        #: Weights evaluated by the workers, their losses, and their parts of the duality gap.
        self.evaluated, self.loss, self.slack = np.zeros((m, d)), np.full(m, np.inf), np.full(m, np.inf)
        self._sent_to = np.zeros((m, d))  # weights that the workers are evaluating
        parts = len(workers.tasks)
        self.keep, self.clock, self.busy = np.ones(parts), np.zeros(parts, np.int64), np.zeros(parts, bool)
        self.alternation, self.rounds, self.sent, self.stalled = 0, 0, 0, False
        self.trace: list[State] = []
        self.covariance: Covariance
        #: Caches: weights of all tasks, and the summary from which weights of some tasks are computed.
        self._weights: np.ndarray | None = None
        self._summary: np.ndarray | None = None
        self.gap = math.inf
        self.set_covariance(covariance)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save(self, number: int, kept: list[int]) -> bool:
        """Let the workers write a checkpoint, and keep the checkpoints `kept`; return whether all workers could."""
        while self.busy.any():
            self._apply(*self._receive())
        found = self.workers.save(number, kept)
        self._begin_again({part: state for part, state in enumerate(found) if isinstance(state, WorkerState)})
        return all(state is True for state in found)

    def pack(self) -> dict[str, Any]:
        """Return the state for a checkpoint, including the weights."""
        packed: dict[str, Any] = {name: getattr(self, name) for name in CHANGING}
        packed |= {"trace": np.array(self.trace, dtype=np.float64), "weights": self.weights}
        if isinstance(self.covariance, LowRank):
            packed |= vars(self.covariance)
        return {
            name: value.item() if isinstance(value, np.generic) else np.array(value) if np.ndim(value) else value
            for name, value in packed.items()
        }

    def unpack(self, packed: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint, with restored workers; workers without a checkpoint begin again."""
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
        """Take over the states of workers that have begun again; all other workers are unchanged."""
        for part, state in states.items():
            self._take_state(self.workers.tasks[part], state)
            self.keep[part] = 1.0
        if states:  # the weights have changed, so the momentum restarts
            self._refresh()

    def _take_state(self, tasks: np.ndarray, state: WorkerState) -> None:
        self.vectors[tasks], self.conjugate[tasks] = state.vectors, state.conjugate

    # -- objectives and weights ------------------------------------------------------------------------------------

    @property
    def dual(self) -> float:
        """D(a) with the current covariance, or a lower bound of D(a) while some conjugates are only bounded."""
        return self._dual_of(self.vectors, self.conjugate)

    def _dual_of(self, vectors: np.ndarray, conjugate: np.ndarray) -> float:
        return -penalty(vectors, self.covariance, self.lam) - float(conjugate.sum())

    def joint_value(self) -> tuple[float, np.ndarray]:
        """Return the joint objective, ``losses + lam/2 |W|_*^2``, and the singular values of W.

        W are the weights last evaluated by the workers.
        """
        sizes = singular_values(self.evaluated)
        return float(self.loss.sum()) + joint_penalty(sizes, self.lam), sizes

    @property
    def weights(self) -> np.ndarray:
        """Weights of all tasks, ``W = Sigma B / lam``."""
        if self._weights is None:
            self._weights = self.covariance @ self.vectors / self.lam
        return self._weights

    def _weights_of(self, tasks: np.ndarray) -> np.ndarray:
        """Return the weights of some tasks; if answers are applied one by one, only these weights are computed."""
        if self.kind == "synchronous":
            return self.weights[tasks]
        if self._summary is None:
            self._summary = self.covariance.summary(self.vectors)
        return self.covariance.product(self._summary, self.vectors, tasks) / self.lam

    @property
    def rho(self) -> np.ndarray:
        """Factor of the curvature of each task that makes simultaneous steps safe.

        In synchronous rounds all tasks step simultaneously; otherwise only the tasks of one worker.
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
        """Replace the covariance, and with it the weights, ``W = Sigma B / lam`` (erratum 26)."""
        self.covariance = as_covariance(covariance)
        self._curvature = self.rho * self.covariance.diagonal() / self.lam
        self.slack[:], self._since = np.inf, self.clock + self.busy  # only slacks evaluated from now on are valid
        self._refresh()

    def _refresh(self) -> None:
        self._forget_weights()
        self._dual, self._pace, self._momentum, self._in_vain, self.stalled = self.dual, 1.0, 0.0, 0, False

    def _forget_weights(self) -> None:
        """Clear the cached weights."""
        self._weights = self._summary = None

    # -- rounds ----------------------------------------------------------------------------------------------------

    def round(self) -> float:
        """Run one round; return the duality gap, which is infinite until all workers have answered."""
        before, self.gap = self._dual, math.inf
        if self.kind == "synchronous":
            self._synchronous_round()
        else:
            for _ in self.workers.tasks:
                self._next_update()
            self._dual = max(self._dual, self.dual)
        self._in_vain = self._in_vain + 1 if self._dual <= before else 0
        self.stalled = self._in_vain >= MAX_ROUNDS_WITHOUT_GAIN
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
        """Run a round with all workers at once: DMTRL, Algorithm 1, lines 5 to 9."""
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
        if lost:  # a worker began again from its checkpoint or from zero, so the momentum restarts
            self.vectors, self.conjugate = vectors, conjugate
            self._refresh()
            return
        self.conjugate = before
        self._dual = max(self._dual, self.dual)
        self._record()
        change = vectors - self.vectors
        rounding = ROUNDING * (penalty(vectors, self.covariance, self.lam) + float(np.abs(conjugate).sum()))
        keep = self.eta
        if keep == 1.0 and self._dual_of(vectors, conjugate) < self._dual - rounding:
            # With momentum, the step went too far: undo it. Without momentum, rho is too small: keep the best fraction.
            best = self._best_part(change, before, conjugate, self.weights, self.covariance)
            keep = 0.0 if self._momentum > 0.0 else best
        self.keep[:] = keep
        self.vectors = vectors if keep == 1.0 else self.vectors + keep * change
        self.conjugate = before + keep * (conjugate - before)  # an upper bound, because conjugates are convex
        self._forget_weights()
        self._dual = max(self._dual, self.dual)
        pace = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * self._pace**2)) if keep > 0.0 else 1.0
        self._momentum = (self._pace - 1.0) / pace if self.use_momentum and keep > 0.0 else 0.0
        self._pace = pace

    def _next_update(self) -> None:
        """Send requests to all idle workers that may proceed, and apply the next answer."""
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
        """Apply the fraction of one answer that is best for the dual."""
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
        """Return the best fraction, in [0, 1], of a step of some tasks with the given weights and covariance.

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
        if self._since[part] < self.clock[part]:  # the request was sent with the current covariance
            self.slack[tasks] = update.slack

    def _record(self) -> None:
        self.gap = float(self.slack.sum())
        if math.isfinite(self.gap):
            primal = self._dual + self.gap
            self.trace.append(State(self.alternation, self.rounds, primal, self._dual, self.gap, self.sent))

    def evaluate(self) -> float:
        """Let the workers evaluate the current weights; return the exact duality gap."""
        while self.busy.any():
            self._apply(*self._receive())
        tasks = self.workers.tasks
        self._forget_weights()  # summed changes have accumulated rounding errors
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
    """Refuse workers whose tasks have different features; only the server can compare them."""
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
