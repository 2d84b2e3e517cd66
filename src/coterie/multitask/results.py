"""What relationship learning returns."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..errors import DataError
from .covariance import correlation


@dataclass(frozen=True, repr=False)
class Relationship:
    """The outcome of :func:`coterie.relationship`.

    Attributes
    ----------
    weights : (m, d) ndarray
        One row for each of ``members``: (tasks, features).
    covariance : (m, m) ndarray
        Of the tasks: given, or the one that fits the weights best; ``I / m`` for tasks that were learned alone.
    members : tuple
        Ids of the tasks.
    trace : DataFrame
        One row for each round in which all workers answered, and for each time that they evaluated the weights at the
        end: alternation, round, primal and dual objective and their gap with the covariance of the moment, and the
        vectors of d numbers sent so far.
    value : float
        The objective at the end: P(W) for a given covariance, else ``losses + lam/2 |W|_*^2``.
    bound : float
        A lower bound on its optimum.
    converged : bool
        Whether ``value - bound`` is as small as was asked for.
    rounds, alternations : int
    vectors, bytes : int
        What server and workers sent to each other: vectors of d numbers, and bytes of such.
    method : str
    lam : float
    loss : rule
    """

    weights: np.ndarray
    covariance: np.ndarray
    members: tuple[Hashable, ...]
    trace: pd.DataFrame
    value: float
    bound: float
    converged: bool
    rounds: int
    alternations: int
    vectors: int
    method: str
    lam: float
    loss: Any
    notes: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """How far the objective may be from its optimum."""
        return max(0.0, self.value - self.bound)

    @property
    def bytes(self) -> int:
        """Bytes of the vectors that were sent."""
        return 8 * self.weights.shape[1] * self.vectors

    @property
    def correlation(self) -> np.ndarray:
        """Of the tasks, (m, m)."""
        return correlation(self.covariance)

    def model(self, task: Hashable) -> np.ndarray:
        """The weights of one task.

        Parameters
        ----------
        task : hashable
            Its id.

        Returns
        -------
        (d,) ndarray

        Examples
        --------
        >>> import coterie as ct
        >>> data = ct.AgentData([[1.0], [1.0]], [1.0, 3.0], agents=["a", "b"])
        >>> ct.relationship(data, "squared", lam=1e-6, method="single-task").model("b").round(3).tolist()
        [3.0]
        """
        if task not in self.members:
            raise DataError(f"no task {task!r}; there are {len(self.members)}, such as {self.members[0]!r}")
        return self.weights[self.members.index(task)].copy()

    def __repr__(self) -> str:
        m, d = self.weights.shape
        relative = self.gap / max(abs(self.value), 1e-300)
        lines = [
            f"Relationship of {m} tasks with {d} features, method {self.method!r}, lam={self.lam:g}",
            f"  objective {self.value:.6g}, at most {relative:.1e} of it above the optimum"
            if np.isfinite(self.bound)
            else f"  objective {self.value:.6g}",
            f"  {self.rounds} rounds, {self.alternations} alternations, {self.vectors} vectors sent",
        ]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])
