"""Network conditions and participation: latency, loss, duplication, stragglers, and agents that are away."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np

from .._checks import nonnegative, positive, probability
from ..core.events import Channel
from ..errors import FileError, ParameterError


@dataclass(frozen=True)
class Conditions:
    """Network conditions, and which agents take part.

    Parameters
    ----------
    latency : float
        Mean travel time of a message, in mean intervals between two wakes of one agent.
    jitter : float
        Between 0 (every message takes exactly ``latency``, order is kept) and 1 (exponential: messages overtake each
        other).
    loss : float
        Probability that a message is lost, in [0, 1).
    duplication : float
        Probability that a message arrives twice, in [0, 1].
    outages : sequence of (agent, begin, end)
        Agent numbers and times: between these times, the agent does not wake, and messages to it are lost.
    participation : float or int
        Probability that an agent takes part when its turn comes, in (0, 1]; or, in rounds, the number of agents in
        each round. An agent that does not take part neither acts nor sends, but receives messages.
    always : sequence of int
        Agents that always take part, such as a server; not counted in a number given as ``participation``.
    slow : mapping of int to float
        Stragglers, agent number to factor: the agent's intervals between wakes are longer by this factor. In rounds,
        the agent takes part in one round out of this number.
    available : sequence of (agent, begin, end), or path
        Times when agents are available: agents in the list are away at all other times. A file is a csv with a header
        line, then these three numbers in each line.

    Notes
    -----
    In rounds, time is the number of earlier rounds; latency, loss and duplication cannot be used, and an agent that is
    away does not act, but receives messages.

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
    >>> bad = ct.Conditions(latency=2.0, loss=0.3, duplication=0.1, outages=[(1, 3.0, 20.0)])
    >>> run = ct.simulate(problem, ct.CoordinateDescent(), wakes=2000, seed=0, conditions=bad)
    >>> run.theta.ravel().round(6).tolist()
    [0.666667, 1.333333]
    >>> some = ct.Conditions(participation=0.3)
    >>> run = ct.simulate(problem, ct.ModelPropagation(), rounds=100, seed=0, conditions=some)
    >>> run.theta.ravel().round(6).tolist(), run.wakes
    ([0.666667, 1.333333], 64)
    """

    latency: float = 0.0
    jitter: float = 1.0
    loss: float = 0.0
    duplication: float = 0.0
    outages: Sequence[tuple[int, float, float]] = field(default=())
    participation: float = 1.0
    always: Sequence[int] = field(default=())
    slow: Mapping[int, float] = field(default_factory=dict)
    available: Any = ()

    def __post_init__(self) -> None:
        nonnegative("latency", self.latency)
        for name in ("jitter", "loss", "duplication"):
            probability(name, getattr(self, name))
        if self.loss == 1.0:
            raise ParameterError("loss=1.0: no message would ever arrive; it must be below 1")
        if isinstance(self.available, str | os.PathLike):
            object.__setattr__(self, "available", _read_trace(self.available))
        for name in ("outages", "available"):
            for times in getattr(self, name):
                if not (isinstance(times, Sequence) and len(times) == 3 and all(isinstance(x, Real) for x in times)):
                    what = "outage" if name == "outages" else "available: time"
                    raise ParameterError(f"{what} {times!r} must be (agent number, begin, end)")
        part = self.participation
        if isinstance(part, bool) or not (
            part >= 1 if isinstance(part, Integral) else isinstance(part, Real) and 0.0 < part <= 1.0
        ):
            raise ParameterError(
                f"participation={part!r} must be a probability in (0, 1], or a whole number of agents in each round"
            )
        if not isinstance(self.slow, Mapping):
            raise ParameterError(f"slow={self.slow!r} must be a mapping of agent numbers to factors")
        for agent, factor in self.slow.items():
            positive(f"slow: the factor of agent {agent!r}", factor)

    def check(self, n: int, unit: str) -> None:
        """Raise an error if the conditions do not fit n agents, or the unit in which a run is measured.

        Parameters
        ----------
        n : int
        unit : str
            "rounds", or another.

        Examples
        --------
        >>> Conditions(participation=3).check(5, "wakes")
        Traceback (most recent call last):
        ...
        coterie.errors.ParameterError: participation=3 is a number per round: pass a probability
        """
        if self._count and unit != "rounds":
            raise ParameterError(f"participation={self.participation} is a number per round: pass a probability")
        if self._count > n - len(set(self.always)):
            raise ParameterError(
                f"participation={self.participation} agents, and {len(set(self.always))} always: there are {n} agents"
            )
        for name, agents in (("always", self.always), ("slow", self.slow)):
            for agent in agents:
                if isinstance(agent, bool) or not (isinstance(agent, Integral) and 0 <= agent < n):
                    raise ParameterError(f"{name}: there is no agent number {agent!r}, they go from 0 to {n - 1}")
        if unit == "rounds" and any(factor < 1 for factor in self.slow.values()):
            raise ParameterError(
                "slow: no agent takes part in a round more than once; in rounds, factors must be at least 1"
            )
        self._away(n)

    @property
    def _count(self) -> int:
        """Return the number of agents in each round; 0 if each agent takes part with a probability."""
        return int(self.participation) if isinstance(self.participation, Integral) else 0

    @property
    def for_rounds(self) -> bool:
        """Return whether the conditions only concern participation, not messages."""
        everybody = self.participation == 1.0 and not isinstance(self.participation, Integral)
        some = not everybody or len(self.slow) or len(self.outages) or len(self.available)
        return bool(some) and not (self.latency > 0 or self.loss > 0 or self.duplication > 0)

    @property
    def breaks_sums(self) -> str:
        """The messages (lost, duplicated, reordered) by which these conditions would corrupt running sums; or empty."""
        reasons = {
            "messages that are lost": self.loss > 0,
            "messages that arrive twice": self.duplication > 0,
            "messages that overtake each other": self.latency > 0 and self.jitter > 0,
            "messages that are lost while their receiver is away": bool(len(self.outages) or len(self.available)),
        }
        return next((why for why, given in reasons.items() if given), "")

    def _away(self, n: int) -> list[tuple[int, float, float]]:
        """Return the times when agents are away, checked against n agents."""
        for name, listed in (("outage", self.outages), ("available", self.available)):
            for times in listed:
                agent, begin, end = times
                if not (0 <= agent < n and agent == int(agent)):
                    raise ParameterError(f"{name} {times}: there is no agent number {agent}, they go from 0 to {n - 1}")
                if not (0.0 <= begin < end):
                    raise ParameterError(f"{name} {times}: it must begin at a time >= 0 and end later")
        away = [(int(agent), float(begin), float(end)) for agent, begin, end in self.outages]
        for agent in sorted({int(agent) for agent, _, _ in self.available}):
            last = 0.0
            for begin, end in sorted((b, e) for k, b, e in self.available if k == agent):
                away += [(agent, last, begin)] if begin > last else []
                last = max(last, end)
            away += [(agent, last, math.inf)] if math.isfinite(last) else []
        if len({agent for agent, _, end in away if math.isinf(end)}) == n:
            raise ParameterError("outages keep every agent away to the end of the run: at least one must return")
        return away

    def present(self, n: int, round: int, random: np.random.Generator) -> np.ndarray:
        """Return which agents take part in a round.

        Parameters
        ----------
        n : int
        round : int
            Number of earlier rounds.
        random : Generator

        Returns
        -------
        (n,) ndarray of bool

        Examples
        --------
        >>> slow = Conditions(slow={1: 2.0}, outages=[(2, 0.0, 3.0)])
        >>> [slow.present(3, t, np.random.default_rng(0)).tolist() for t in (0, 3)]
        [[True, False, False], [True, True, True]]
        """
        there = np.ones(n, bool)
        always = np.array(list(self.always), np.int64)
        if self._count:
            there[:] = False
            there[random.choice(np.setdiff1d(np.arange(n), always), self._count, replace=False)] = True
        elif self.participation < 1.0:
            there = random.random(n) < self.participation
        there[always] = True
        for agent, factor in self.slow.items():
            there[agent] &= math.floor((round + 1) / factor) > math.floor(round / factor)
        for agent, begin, end in self._away(n):
            there[agent] &= not begin <= round < end
        return there

    def channel(self, n: int) -> Channel:
        """Return these conditions in the form that kernels read, checked against n agents.

        Parameters
        ----------
        n : int

        Returns
        -------
        Channel

        Examples
        --------
        >>> channel = Conditions(outages=[(1, 3.0, 20.0)]).channel(2)
        >>> channel.moment.tolist(), channel.agent.tolist(), channel.change.tolist()
        ([3.0, 20.0], [1, 1], [1, -1])
        """
        away = self._away(n)
        moments = [(begin, agent, 1) for agent, begin, _ in away]
        moments += [(end, agent, -1) for agent, _, end in away if math.isfinite(end)]
        times, agents, changes = zip(*sorted(moments), strict=True) if moments else ((), (), ())
        part, interval = np.full(n, float(self.participation)), np.ones(n)
        part[np.array(list(self.always), np.int64)] = 1.0
        for agent, factor in self.slow.items():
            interval[agent] = factor
        absences = np.array(times, float), np.array(agents, np.int64), np.array(changes, np.int64)
        latency, jitter, loss = float(self.latency), float(self.jitter), float(self.loss)
        return Channel(latency, jitter, loss, float(self.duplication), *absences, part, interval)


def _read_trace(path: str | os.PathLike[str]) -> list[tuple[int, float, float]]:
    """Return the lines of a csv file of agent, begin and end."""
    try:
        table = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2, dtype=float)
    except OSError as error:
        raise FileError(error.errno, f"{os.fspath(path)} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ParameterError(f"{os.fspath(path)}: lines must hold agent, begin and end; {error}") from None
    if table.shape[1] != 3:
        raise ParameterError(f"{os.fspath(path)} has {table.shape[1]} columns: expected agent, begin and end")
    return [(int(agent), begin, end) for agent, begin, end in table.tolist()]
