"""Training: rounds, Omega-steps, and when to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..core.linear import one_thread
from .alternation import Alternation
from .covariance import best_covariance
from .server import Server, State
from .workers import Workers

#: A W-step may end when what it can still gain is this part of what the covariance can.
ENOUGH = 1e-3


@dataclass(frozen=True)
class Options:
    """What is to be learned, and for how long."""

    tasks: int
    lam: float
    covariance: np.ndarray | None  # to be kept; None to learn it
    alternations: int
    rounds: int  # in a W-step, at most
    thorough: bool  # whether a W-step goes on until there is little left to gain
    tol: float
    momentum: bool
    server: dict[str, Any] = field(default_factory=dict)  # arguments of the server

    @property
    def start(self) -> np.ndarray:
        """The covariance to begin with: tasks that have nothing to do with each other, DMTRL Algorithm 1, line 2."""
        return np.eye(self.tasks) / self.tasks if self.covariance is None else self.covariance


class Result(NamedTuple):
    """What was learned."""

    weights: np.ndarray  # (m, d)
    covariance: np.ndarray
    trace: list[State]
    value: float
    bound: float
    converged: bool
    rounds: int
    alternations: int
    vectors: int
    notes: tuple[str, ...] = ()


def relative_gap(value: float, bound: float) -> float:
    """How far an objective may be from its optimum, as a part of itself; 1 as long as nothing is known."""
    return max(0.0, value - bound) / max(abs(value), 1e-300) if math.isfinite(value) else 1.0


class Training:
    """A run that goes on for a while at a time, and can be looked at in between."""

    def __init__(self, workers: Workers, options: Options):
        self.options, self.server = options, Server(workers, options.lam, options.start, **options.server)
        self.value, self.bound = math.inf, -math.inf
        self.weights = self.server.weights.copy()
        self._steps = self._given_covariance() if options.covariance is not None else self._learned_covariance()

    @property
    def gap(self) -> float:
        """How far the objective may be from its optimum, as a part of itself."""
        return relative_gap(self.value, self.bound)

    @one_thread
    def advance(self, seconds: float) -> tuple[int, float, bool]:
        """Go on for about so long. Returns the rounds done, how far it may be from the optimum, and if it has ended."""
        until = time.monotonic() + seconds
        for _ in self._steps:
            if time.monotonic() >= until:
                return self.server.rounds, self.gap, False
        return self.server.rounds, self.gap, True

    def _near(self, gap: float, tol: float) -> bool:
        if self.server.stalled:
            return True
        return math.isfinite(gap) and gap <= tol * abs(self.server.trace[-1].primal)

    def _given_covariance(self) -> Iterator[None]:
        """One W-step: rounds with the same covariance, until primal and dual meet."""
        server, options, near = self.server, self.options, False
        for _ in range(options.rounds):
            near = self._near(server.round(), options.tol) and self._near(server.evaluate(), options.tol)
            if near:
                break
            if server.kind == "synchronous":  # at other times a worker may have evaluated weights that are old by now
                self._keep_best_given()
            yield
        if not near:
            server.evaluate()
        self._keep_best_given()

    def _keep_best_given(self) -> None:
        """Keep the best weights so far, and the best bound, for a given covariance."""
        if not math.isfinite(self.server.gap):
            return
        last = self.server.trace[-1]
        if last.primal <= self.value:
            self.value, self.weights = last.primal, self.server.evaluated.copy()
        self.bound = max(self.bound, last.dual)

    def _learned_covariance(self) -> Iterator[None]:
        """W-steps and Omega-steps in turn, until the joint optimum is enclosed."""
        server, options = self.server, self.options
        steps = Alternation(options.alternations, exact=options.thorough, momentum=options.momentum)
        for k in range(options.alternations):
            before = server.rounds
            for _ in range(options.rounds):
                enough = self._near(server.round(), max(ENOUGH * self.gap, 0.1 * options.tol))
                yield
                if enough and options.thorough:
                    break
            self._keep_best_joint()
            if self.gap <= options.tol or k + 1 == options.alternations:
                break
            covariance = steps.step(
                server.weights,
                server.evaluated,
                float(server.loss.sum()),
                lam=options.lam,
                gap=self.gap,
                rounds=1 if options.thorough else server.rounds - before,
            )
            server.alternation += 1
            server.set_covariance(covariance)
        server.evaluate()
        self._keep_best_joint()

    def _keep_best_joint(self) -> None:
        """Keep the best weights so far, and the best bound, where the covariance is learned."""
        if self.server.value < self.value:
            self.value, self.weights = self.server.value, self.server.evaluated.copy()
        self.bound = max(self.bound, self.server.bound)

    def result(self) -> Result:
        """What was learned so far."""
        server, kept = self.server, self.options.covariance
        died = f"workers died and began again, {server.restarts} time(s)"
        return Result(
            self.weights,
            best_covariance(self.weights) if kept is None else kept,
            server.trace,
            float(self.value),
            float(self.bound),
            self.gap <= self.options.tol,
            server.rounds,
            server.alternation,
            server.sent,
            (died,) if server.restarts else (),
        )
