"""Training: rounds, Omega-steps, and stopping rules."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .._threads import one_thread
from .alternation import Alternation
from .certificate import Certificate
from .checkpoints import Packed
from .covariance import Covariance, as_covariance, best_covariance, unrelated
from .server import Server, State
from .workers import Workers

#: A W-step ends when its relative gap is at most this fraction of the relative gap of the joint objective.
W_STEP_FRACTION = 1e-3


@dataclass(frozen=True)
class Options:
    """Settings of a training."""

    tasks: int
    lam: float
    covariance: Covariance | np.ndarray | None  # the given covariance; None to learn one
    alternations: int
    rounds: int  # largest number of rounds of a W-step
    thorough: bool  # whether a W-step continues until its gap is small
    tol: float
    momentum: bool
    server: dict[str, Any] = field(default_factory=dict)  # arguments of the server

    @property
    def start(self) -> Covariance:
        """The first covariance: by default of unrelated tasks, DMTRL Algorithm 1, line 2."""
        return unrelated(self.tasks) if self.covariance is None else as_covariance(self.covariance)


class Result(NamedTuple):
    """The result of a training."""

    weights: np.ndarray  # (m, d)
    covariance: Covariance
    trace: list[State]
    value: float
    bound: float
    converged: bool
    rounds: int
    alternations: int
    vectors: int
    notes: tuple[str, ...] = ()


def _within(part: str, saved: Packed) -> Packed:
    """Return the saved values of one part of a training, without the prefix of their names."""
    return {name.removeprefix(f"{part}."): value for name, value in saved.items() if name.startswith(f"{part}.")}


def relative_gap(value: float, bound: float) -> float:
    """Return the gap divided by the objective; 1 until a value is known."""
    return max(0.0, value - bound) / max(abs(value), 1e-300) if math.isfinite(value) else 1.0


class Training:
    """A run that advances in slices of time, with checkpoints in between.

    ``saved`` is a result of :meth:`checkpoint`; the workers must be restored from the same checkpoint.
    """

    def __init__(self, workers: Workers, options: Options, saved: Packed | None = None):
        self.options, self.server = options, Server(workers, options.lam, options.start, **options.server)
        self.value, self.bound, self.certificate = math.inf, -math.inf, Certificate(options.lam)
        self.weights = self.server.weights.copy()
        self.alternation = Alternation(options.alternations, exact=options.thorough, momentum=options.momentum)
        self._turn = 0  # rounds with the current covariance
        if saved is not None:
            self.value, self.bound, self._turn = (saved[name] for name in ("value", "bound", "turn"))
            self.weights = saved["weights"]
            for name, part in self._parts.items():
                part.unpack(_within(name, saved))

    @property
    def _parts(self) -> dict[str, Any]:
        """Objects that change in a run, besides the workers."""
        return {"server": self.server, "alternation": self.alternation, "certificate": self.certificate}

    @property
    def gap(self) -> float:
        """Relative gap between the objective and its lower bound."""
        return relative_gap(self.value, self.bound)

    @one_thread()
    def advance(self, seconds: float) -> tuple[int, float, bool]:
        """Continue for about `seconds`; return the number of rounds, the relative gap, and whether training is done."""
        until, step = time.monotonic() + seconds, self._learn if self.options.covariance is None else self._keep_to
        done = step()
        while not done and time.monotonic() < until:
            done = step()
        return self.server.rounds, self.gap, done

    def checkpoint(self, number: int, kept: list[int]) -> Packed | None:
        """Let the workers write a checkpoint, and return the state of the server; None if a worker could not write.

        Checkpoints with numbers in ``kept`` are not deleted.
        """
        if not self.server.save(number, kept):
            return None
        packed = {f"{part}.{name}": value for part, each in self._parts.items() for name, value in each.pack().items()}
        tasks = self.server.workers.tasks
        packed |= {"tasks": np.concatenate(tasks), "part_sizes": np.array([len(each) for each in tasks])}
        return packed | {"weights": self.weights, "value": self.value, "bound": self.bound, "turn": self._turn}

    def _near(self, gap: float, tol: float) -> bool:
        if self.server.stalled:
            return True
        return math.isfinite(gap) and gap <= tol * abs(self.server.trace[-1].primal)

    def _keep_to(self) -> bool:
        """Run a round with the given covariance; return whether the gap is small, or all rounds are done."""
        server, options = self.server, self.options
        near = self._near(server.round(), options.tol) and self._near(server.evaluate(), options.tol)
        self._turn += 1
        if server.kind == "synchronous":  # otherwise a worker may have evaluated old weights
            self._keep_best_given()
        if not near and self._turn < options.rounds:
            return False
        if not near:
            server.evaluate()
        self._keep_best_given()
        return True

    def _keep_best_given(self) -> None:
        """Store the best weights so far, and the best bound, for a given covariance."""
        if not math.isfinite(self.server.gap):
            return
        last = self.server.trace[-1]
        if last.primal <= self.value:
            self.value, self.weights = last.primal, self.server.evaluated.copy()
        self.bound = max(self.bound, last.dual)

    def _learn(self) -> bool:
        """Run a round, and an Omega-step after the last round of a W-step; return whether training is done."""
        server, options = self.server, self.options
        enough = self._near(server.round(), max(W_STEP_FRACTION * self.gap, 0.1 * options.tol))
        self._turn += 1
        if self._turn < options.rounds and not (enough and options.thorough):
            return False
        sizes = self._keep_best_joint()
        if self.gap <= options.tol or server.alternation + 1 >= options.alternations:
            server.evaluate()
            self._keep_best_joint()
            return True
        covariance = self.alternation.step(
            server.weights,
            sizes,
            float(server.loss.sum()),
            self.certificate.smoothed,
            lam=options.lam,
            gap=self.gap,
            rounds=1 if options.thorough else self._turn,
        )
        self._turn = 0
        server.alternation += 1
        server.set_covariance(covariance)
        return False

    def _keep_best_joint(self) -> np.ndarray:
        """Store the best weights so far, and the best bound, for a learned covariance.

        Return the singular values of the weights that were evaluated last.
        """
        value, sizes = self.server.joint_value()
        if value < self.value:
            self.value, self.weights = value, self.server.evaluated.copy()
        self.certificate.add(self.server.vectors, float(self.server.conjugate.sum()))
        self.bound = max(self.bound, self.certificate.joint)
        return sizes

    def result(self) -> Result:
        """Return the best result so far."""
        server, deaths = self.server, self.server.workers.deaths
        return Result(
            self.weights,
            best_covariance(self.weights) if self.options.covariance is None else self.options.start,
            server.trace,
            float(self.value),
            float(self.bound),
            self.gap <= self.options.tol,
            server.rounds,
            server.alternation,
            server.sent,
            (f"workers died, {deaths} time(s), and their tasks went to others",) if deaths else (),
        )
