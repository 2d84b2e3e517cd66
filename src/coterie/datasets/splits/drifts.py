"""Drift over time: a shift that comes step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._checks import integer
from ...data.agent_data import AgentData
from ...errors import ParameterError
from ...problem import Problem
from .shifts import Shifted, feature_shift

__all__ = ["Drift", "drift"]

#: What a part of the way is, of the parameters that have parts.
PARTS: Mapping[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "turn": lambda angle, part: part * angle,
    "offset": lambda offset, part: part * offset,
    "noise": lambda noise, part: part * noise,
    "scale": lambda scale, part: scale**part,
}


@dataclass(frozen=True, repr=False, eq=False)
class Drift:
    """A sequence of data, from what it was to what it becomes; each is made when it is asked for.

    Attributes
    ----------
    data : AgentData
        At the beginning.
    end : Shifted
        At the end: data, groups and parameters.
    steps : int
        How many steps there are between them.
    """

    data: AgentData
    end: Shifted
    steps: int
    _stream: int = 0

    def __len__(self) -> int:
        return self.steps + 1

    def __getitem__(self, step: int) -> AgentData:
        place = step + len(self) if step < 0 else step
        if not 0 <= place <= self.steps:
            raise IndexError(f"step {step} of a drift in {self.steps} steps: they go from 0 to {self.steps}")
        if place == 0:
            return self.data
        partly = {name: PARTS[name](value, place / self.steps) for name, value in self.end.parameters.items()}
        return self.end.apply(self.data, partly, self._stream)

    def __iter__(self) -> Iterator[AgentData]:
        return (self[step] for step in range(len(self)))

    def on(self, other: AgentData) -> Drift:
        """The same drift of other rows of these agents, such as rows for testing; noise is drawn anew.

        Examples
        --------
        >>> import coterie as ct
        >>> turning = ct.splits.drift(ct.AgentData([[1.0, 0.0]]), steps=2, turn=[90])
        >>> turning.on(ct.AgentData([[0.0, 2.0]]))[2].X.round(12)
        array([[-2.,  0.]])
        """
        return Drift(other, self.end.on(other), self.steps, 1)

    def changes(self, problem: Problem, every: int) -> list[tuple[int, Problem]]:
        """What ``ct.simulate(problem, ..., changes=)`` takes: a step after every so many wakes (or rounds, ...).

        Examples
        --------
        >>> import coterie as ct
        >>> data = ct.AgentData(np.eye(2), y=[1.0, 2.0], agents=[0, 1])
        >>> problem = ct.Problem.personalized(data, ct.graphs.complete(2), loss="squared")
        >>> [moment for moment, _ in ct.splits.drift(data, 3, turn=[90, 90]).changes(problem, every=100)]
        [100, 200, 300]
        """
        integer("every", every)
        return [(step * every, problem.on(data=self[step])) for step in range(1, len(self))]

    def __repr__(self) -> str:
        return f"Drift({self.steps} steps to {self.end!r})"


def drift(
    data: AgentData,
    steps: int,
    shift: Callable[..., Shifted] = feature_shift,
    *,
    seed: int | np.random.Generator = 0,
    **how: Any,
) -> Drift:
    """A shift that comes step by step: what labels depend on turns, or grows, or moves.

    After step t of T, angles, offsets and noise are t / T of what they are in the end, and factors are to the power
    of t / T. Where features turn and labels stay, everybody's concept turns with them.

    Parameters
    ----------
    data : AgentData
        At the beginning.
    steps : int
    shift : callable
        :func:`feature_shift`, or :func:`concept_shift` whose `turn` is for regressions.
    seed : int or Generator
        Of what is drawn, once for the whole drift.
    **how
        What `shift` takes: what it is in the end. Permutations, flips and quarter turns have no parts, and are refused.

    Returns
    -------
    Drift
        ``steps + 1`` data, the first of which is `data`; ``drift.changes(problem, every)`` is for ``ct.simulate``.

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[1.0, 0.0]], y=[1.0])
    >>> turning = ct.splits.drift(data, steps=2, turn=[90])
    >>> [(each.X.round(3) + 0.0).tolist() for each in turning]
    [[[1.0, 0.0]], [[0.707, 0.707]], [[0.0, 1.0]]]
    """
    integer("steps", steps)
    end = shift(data, seed=seed, **how)
    jumps = sorted(set(end.parameters) - set(PARTS))
    if jumps or not end.parameters:
        what = f"{jumps[0]} has no parts" if jumps else "nothing is said to drift"
        raise ParameterError(f"{what}: expected some of {', '.join(PARTS)}")
    if "scale" in end.parameters and end.parameters["scale"].min() <= 0.0:
        raise ParameterError(f"scale = {end.parameters['scale'].min()}: a drift needs positive factors")
    return Drift(data, end, steps)
