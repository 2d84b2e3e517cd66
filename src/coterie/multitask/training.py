"""Training: rounds, Omega-steps, and when to stop."""

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

#: A W-step may end when what it can still gain is this part of what the covariance can.
ENOUGH = 1e-3


@dataclass(frozen=True)
class Options:
    """What is to be learned, and for how long."""

    tasks: int
    lam: float
    covariance: Covariance | np.ndarray | None  # to be kept; None to learn it
    alternations: int
    rounds: int  # in a W-step, at most
    thorough: bool  # whether a W-step goes on until there is little left to gain
    tol: float
    momentum: bool
    server: dict[str, Any] = field(default_factory=dict)  # arguments of the server

    @property
    def start(self) -> Covariance:
        """The covariance to begin with: tasks that have nothing to do with each other, DMTRL Algorithm 1, line 2."""
        return unrelated(self.tasks) if self.covariance is None else as_covariance(self.covariance)


class Result(NamedTuple):
    """What was learned."""

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
    """What was saved of one part of a training."""
    return {name.removeprefix(f"{part}."): value for name, value in saved.items() if name.startswith(f"{part}.")}


def relative_gap(value: float, bound: float) -> float:
    """How far an objective may be from its optimum, as a part of itself; 1 as long as nothing is known."""
    return max(0.0, value - bound) / max(abs(value), 1e-300) if math.isfinite(value) else 1.0


class Training:
    """A run that goes on for a while at a time, and can be looked at, and kept in a checkpoint, in between.

    ``saved`` is what :meth:`checkpoint` has returned, of workers that are as they were then.
    """

    def __init__(self, workers: Workers, options: Options, saved: Packed | None = None):
        self.options, self.server = options, Server(workers, options.lam, options.start, **options.server)
        self.value, self.bound, self.certificate = math.inf, -math.inf, Certificate(options.lam)
        self.weights = self.server.weights.copy()
        self.alternation = Alternation(options.alternations, exact=options.thorough, momentum=options.momentum)
        self._turn = 0  # rounds with the covariance of the moment
        if saved is not None:
            self.value, self.bound, self._turn = (saved[name] for name in ("value", "bound", "turn"))
            self.weights = saved["weights"]
            for name, part in self._parts.items():
                part.unpack(_within(name, saved))

    @property
    def _parts(self) -> dict[str, Any]:
        """What changes in a run, beside the workers."""
        return {"server": self.server, "alternation": self.alternation, "certificate": self.certificate}

    @property
    def gap(self) -> float:
        """How far the objective may be from its optimum, as a part of itself."""
        return relative_gap(self.value, self.bound)

    @one_thread()
    def advance(self, seconds: float) -> tuple[int, float, bool]:
        """Go on for about so long. Returns the rounds done, how far it may be from the optimum, and if it has ended."""
        until, step = time.monotonic() + seconds, self._learn if self.options.covariance is None else self._keep_to
        done = step()
        while not done and time.monotonic() < until:
            done = step()
        return self.server.rounds, self.gap, done

    def checkpoint(self, number: int, kept: list[int]) -> Packed | None:
        """All that is needed to go on from here, when the workers have written theirs; None if one could not.

        Checkpoints of the numbers ``kept`` stay.
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
        """A round with the covariance that was given. Whether primal and dual have met, or there were enough rounds."""
        server, options = self.server, self.options
        near = self._near(server.round(), options.tol) and self._near(server.evaluate(), options.tol)
        self._turn += 1
        if server.kind == "synchronous":  # else a worker may have evaluated weights that are old by now
            self._keep_best_given()
        if not near and self._turn < options.rounds:
            return False
        if not near:
            server.evaluate()
        self._keep_best_given()
        return True

    def _keep_best_given(self) -> None:
        """Keep the best weights so far, and the best bound, for a given covariance."""
        if not math.isfinite(self.server.gap):
            return
        last = self.server.trace[-1]
        if last.primal <= self.value:
            self.value, self.weights = last.primal, self.server.evaluated.copy()
        self.bound = max(self.bound, last.dual)

    def _learn(self) -> bool:
        """A round, and an Omega-step if it was the last one with its covariance. Whether the optimum is enclosed."""
        server, options = self.server, self.options
        enough = self._near(server.round(), max(ENOUGH * self.gap, 0.1 * options.tol))
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
        """Keep the best weights so far, and the best bound, where the covariance is learned.

        Returns the singular values of the weights that were evaluated last.
        """
        value, sizes = self.server.joint_value()
        if value < self.value:
            self.value, self.weights = value, self.server.evaluated.copy()
        self.certificate.add(self.server.vectors, float(self.server.conjugate.sum()))
        self.bound = max(self.bound, self.certificate.joint)
        return sizes

    def result(self) -> Result:
        """What was learned so far."""
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
