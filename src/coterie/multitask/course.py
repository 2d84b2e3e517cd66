"""The course of a run: rounds, Omega-steps, and when to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..core.linear import one_thread
from .alternation import Alternation
from .covariance import related
from .crew import Crew
from .server import Server, State

#: A W-step may end when what it can still gain is this part of what the covariance can.
ENOUGH = 1e-3


@dataclass(frozen=True)
class Plan:
    """What is to be done."""

    tasks: int
    lam: float
    covariance: np.ndarray | None  # to be kept; None to learn it
    alternations: int
    rounds: int  # in a W-step, at most
    thorough: bool  # whether a W-step goes on until there is little left to gain
    tol: float
    momentum: bool
    settings: dict[str, Any] = field(default_factory=dict)  # of the server

    @property
    def start(self) -> np.ndarray:
        """The covariance to begin with: tasks that have nothing to do with each other, DMTRL Algorithm 1, line 2."""
        return np.eye(self.tasks) / self.tasks if self.covariance is None else self.covariance


class Outcome(NamedTuple):
    """What came out."""

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


class Course:
    """A run that can be followed.

    Parameters
    ----------
    crew : Crew
    plan : Plan

    Examples
    --------
    >>> import coterie as ct
    >>> from coterie.multitask.crew import crew_here
    >>> data = ct.AgentData([[1.0], [1.0]], [1.0, 3.0], agents=["a", "b"])
    >>> crew = crew_here(data, ct.Squared(), apart=False, asynchronous=False, seed=0, passes=1.0, local_steps=None)
    >>> course = Course(crew, Plan(2, 1.0, np.eye(2), 1, 100, True, 1e-9, True))
    >>> rounds, apart, done = course.advance(60.0)
    >>> done, course.outcome().weights.round(6).ravel().tolist()
    (True, [0.5, 1.5])
    """

    def __init__(self, crew: Crew, plan: Plan):
        self.plan, self.server = plan, Server(crew, plan.lam, plan.start, **plan.settings)
        self.value, self.bound = math.inf, -math.inf
        self.weights = self.server.weights.copy()
        self._steps = self._fixed() if plan.covariance is not None else self._learned()

    @property
    def apart(self) -> float:
        """How far the objective may be from its optimum, as a part of itself."""
        if not math.isfinite(self.value):
            return 1.0
        return max(0.0, self.value - self.bound) / max(abs(self.value), 1e-300)

    @one_thread
    def advance(self, seconds: float) -> tuple[int, float, bool]:
        """Go on for about so long. Returns the rounds done, how far it may be from the optimum, and if it has ended."""
        until = time.monotonic() + seconds
        for _ in self._steps:
            if time.monotonic() >= until:
                return self.server.rounds, self.apart, False
        return self.server.rounds, self.apart, True

    def _near(self, gap: float, tol: float) -> bool:
        if self.server.stuck:
            return True
        return math.isfinite(gap) and gap <= tol * abs(self.server.trace[-1].primal)

    def _fixed(self) -> Iterator[None]:
        """One W-step: rounds with the same covariance, until primal and dual meet."""
        server, judged = self.server, False
        for _ in range(self.plan.rounds):
            judged = self._near(server.round(), self.plan.tol) and self._near(server.judge(), self.plan.tol)
            if judged:
                break
            if server.kind == "together":  # at other times a worker may have judged weights that are old by now
                self._take()
            yield
        if not judged:
            server.judge()
        self._take()

    def _take(self) -> None:
        """Keep the best weights so far, and the best bound, for a given covariance."""
        if not math.isfinite(self.server.gap):
            return
        last = self.server.trace[-1]
        if last.primal <= self.value:
            self.value, self.weights = last.primal, self.server.seen.copy()
        self.bound = max(self.bound, last.dual)

    def _learned(self) -> Iterator[None]:
        """W-steps and Omega-steps in turn, until the joint optimum is enclosed."""
        server, plan = self.server, self.plan
        steps = Alternation(plan.alternations, exact=plan.thorough, momentum=plan.momentum)
        for k in range(plan.alternations):
            before = server.rounds
            for _ in range(plan.rounds):
                enough = self._near(server.round(), max(ENOUGH * self.apart, 0.1 * plan.tol))
                yield
                if enough and plan.thorough:
                    break
            self._look()
            if self.apart <= plan.tol or k + 1 == plan.alternations:
                break
            covariance = steps.step(
                server.weights,
                server.seen,
                float(server.loss.sum()),
                lam=plan.lam,
                apart=self.apart,
                rounds=1 if plan.thorough else server.rounds - before,
            )
            server.alternation += 1
            server.relate(covariance)
        server.judge()
        self._look()

    def _look(self) -> None:
        """Keep the best weights so far, and the best bound."""
        if self.server.value < self.value:
            self.value, self.weights = self.server.value, self.server.seen.copy()
        self.bound = max(self.bound, self.server.bound)

    def outcome(self) -> Outcome:
        """What came out."""
        server, kept = self.server, self.plan.covariance
        died = f"workers died and began again, {server.revived} time(s)"
        return Outcome(
            self.weights,
            related(self.weights) if kept is None else kept,
            server.trace,
            float(self.value),
            float(self.bound),
            self.apart <= self.plan.tol,
            server.rounds,
            server.alternation,
            server.sent,
            (died,) if server.revived else (),
        )
