"""How letters travel: latency, loss, duplication, and agents that are away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from ..core.events import Channel
from ..errors import ParameterError


@dataclass(frozen=True)
class Conditions:
    """How bad the network is.

    Parameters
    ----------
    latency : float
        Mean travelling time of a letter, in mean intervals between two wakes of one agent.
    jitter : float
        Between 0 (every letter takes exactly ``latency``, order is kept) and 1 (exponential: letters overtake).
    loss : float
        Probability that a letter vanishes, in [0, 1).
    duplication : float
        Probability that a letter arrives twice, in [0, 1].
    outages : sequence of (agent, begin, end)
        Agent numbers and times: in between, the agent does not wake, and letters that reach it are lost.

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
    >>> bad = ct.Conditions(latency=2.0, loss=0.3, duplication=0.1, outages=[(1, 3.0, 20.0)])
    >>> run = ct.simulate(problem, ct.CoordinateDescent(), wakes=2000, seed=0, conditions=bad)
    >>> run.theta.ravel().round(6).tolist()
    [0.666667, 1.333333]
    """

    latency: float = 0.0
    jitter: float = 1.0
    loss: float = 0.0
    duplication: float = 0.0
    outages: Sequence[tuple[int, float, float]] = field(default=())

    def __post_init__(self) -> None:
        for name, top in (("latency", math.inf), ("jitter", 1.0), ("loss", 1.0), ("duplication", 1.0)):
            value: Any = getattr(self, name)
            if not isinstance(value, Real) or not (0.0 <= float(value) <= top and math.isfinite(value)):
                raise ParameterError(f"{name}={value!r} must lie between 0 and {top:g}")
        if self.loss == 1.0:
            raise ParameterError("loss=1.0: no letter would ever arrive; it must be below 1")
        for outage in self.outages:
            if not (isinstance(outage, Sequence) and len(outage) == 3 and all(isinstance(x, Real) for x in outage)):
                raise ParameterError(f"outage {outage!r} must be (agent number, begin, end)")

    def channel(self, n: int) -> Channel:
        """These conditions as kernels see them, checked against n agents.

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
        for outage in self.outages:
            agent, begin, end = outage
            if not (0 <= agent < n and agent == int(agent)):
                raise ParameterError(f"outage {outage}: there is no agent number {agent}, they go from 0 to {n - 1}")
            if not (0.0 <= begin < end):
                raise ParameterError(f"outage {outage}: it must begin at a time >= 0 and end after that")
        if len({agent for agent, _, end in self.outages if math.isinf(end)}) == n:
            raise ParameterError("outages keep every agent away to the end of the run: at least one must return")
        moments = [(begin, agent, 1) for agent, begin, _ in self.outages]
        moments += [(end, agent, -1) for agent, _, end in self.outages if math.isfinite(end)]
        times, agents, changes = zip(*sorted(moments), strict=True) if moments else ((), (), ())
        return Channel(
            float(self.latency),
            float(self.jitter),
            float(self.loss),
            float(self.duplication),
            np.array(times, float),
            np.array(agents, np.int64),
            np.array(changes, np.int64),
        )
