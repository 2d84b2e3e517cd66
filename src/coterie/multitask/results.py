"""The result of relationship learning."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..errors import DataError
from .covariance import Covariance, Factors, correlation


@dataclass(frozen=True, repr=False)
class Relationship:
    """The result of :func:`coterie.relationship`.

    Attributes
    ----------
    weights : (m, d) ndarray
        Weights of the tasks, one row for each of ``members``.
    factors : Factors
        The covariance of the tasks, ``Q diag(s) Q' + c I``: the given covariance, or the best covariance for the
        weights, or ``I / m`` for tasks that were learned alone. Unpack as ``Q, s, c = found.factors``.
    covariance, correlation : (m, m) ndarray
        Matrices, made on demand, for at most 16,000 tasks; for more tasks, see :meth:`correlation_of`.
    members : tuple
        Ids of the tasks.
    trace : DataFrame
        One row for each round in which all workers answered, and for each final evaluation of the weights:
        alternation, round, primal and dual objective and their gap with the current covariance, and the number of
        vectors of d numbers sent so far.
    value : float
        The final objective: P(W) for a given covariance, otherwise ``losses + lam/2 |W|_*^2``.
    bound : float
        A lower bound on the optimum of the objective.
    converged : bool
        Whether ``value - bound`` is within the tolerance.
    rounds, alternations : int
    vectors, bytes : int
        Communication between server and workers: number of vectors of d numbers, and their bytes.
    method : str
    lam : float
    loss : rule
    """

    weights: np.ndarray
    _covariance: Covariance
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
        """Upper bound of the distance of the objective to its optimum."""
        return max(0.0, self.value - self.bound)

    @property
    def bytes(self) -> int:
        """Bytes of the vectors that were sent."""
        return 8 * self.weights.shape[1] * self.vectors

    @cached_property
    def factors(self) -> Factors:
        """The covariance of the tasks in factors: ``Q diag(s) Q' + c I``."""
        return self._covariance.factors

    @cached_property
    def covariance(self) -> np.ndarray:
        """The covariance of the tasks as a matrix, (m, m)."""
        return self._covariance.dense()

    @property
    def correlation(self) -> np.ndarray:
        """Correlations of the tasks as a matrix, (m, m)."""
        return correlation(self.covariance)

    def correlation_of(self, tasks: Iterable[Hashable]) -> np.ndarray:
        """Return the correlations of some tasks, for any total number of tasks.

        Parameters
        ----------
        tasks : iterable of k hashables
            Ids of tasks.

        Returns
        -------
        (k, k) ndarray
            Correlations, in the order of `tasks`.

        Examples
        --------
        >>> import coterie as ct
        >>> data = ct.AgentData([[1.0]] * 3, [1.0, 3.0, -2.0], agents=["a", "b", "c"])
        >>> found = ct.relationship(data, "squared", lam=1e-3)
        >>> found.correlation_of(["c", "a"]).round(3).tolist()
        [[1.0, -1.0], [-1.0, 1.0]]
        """
        return self._covariance.correlation([self._place_of(task) for task in tasks])

    def model(self, task: Hashable) -> np.ndarray:
        """Return the weights of one task.

        Parameters
        ----------
        task : hashable
            Id of the task.

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
        return self.weights[self._place_of(task)].copy()

    @cached_property
    def _places(self) -> dict[Hashable, int]:
        return {task: place for place, task in enumerate(self.members)}

    def _place_of(self, task: Hashable) -> int:
        """Return the number of a task, in constant time."""
        if task not in self._places:
            raise DataError(f"no task {task!r}; there are {len(self.members)}, such as {self.members[0]!r}")
        return self._places[task]

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
