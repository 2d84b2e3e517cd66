"""What all models in Python share: the plain loop runs them, and rounds ask for all agents at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from ..core.arrays import NO_DIE as NO_DIE
from ..core.linear import matrix_of


def code_of(function: Any) -> tuple[Any, ...]:
    """What a function does, as far as its own code says: functions of one name may differ."""
    code = getattr(function, "__code__", None)
    if code is None:
        return (repr(type(function)), getattr(function, "__qualname__", ""))
    kept = getattr(function, "__closure__", None) or ()
    constants = [each for each in code.co_consts if isinstance(each, int | float | complex | str | bytes)]
    return (code.co_code, code.co_names, constants, function.__defaults__, [cell.cell_contents for cell in kept])


class Opaque(ABC):
    """A model that only Python can call. A subclass gives :meth:`total` and :meth:`slope`, or more.

    Attributes
    ----------
    size : int
        How many parameters.
    parts : dict
        Where each named one lies in the vector.
    """

    #: What tells two models apart, for runs that go on, and studies.
    digest_parts = ("size", "laid_out", "written")
    #: Compiled loops run as plain Python where they meet one.
    opaque = True
    #: It has its own memory.
    scratch = 0
    size: int
    inputs: int
    parts: dict[str, slice]

    @property
    def laid_out(self) -> tuple[Any, ...]:
        """Where parameters lie, and where they begin."""
        return tuple((name, part.start, part.stop) for name, part in self.parts.items()), self.initial()

    @property
    @abstractmethod
    def written(self) -> tuple[Any, ...]:
        """What the model is made of, in words and code: see :func:`code_of`."""

    @abstractmethod
    def initial(self, seed: Any = 0) -> np.ndarray:
        """Parameters to start from, the same for all agents: else, averaging them means nothing."""

    @abstractmethod
    def predict(self, theta: np.ndarray, X: Any) -> np.ndarray:
        """Scores of rows."""

    @abstractmethod
    def total(self, theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> float:
        """Sum of the losses of rows."""

    @abstractmethod
    def slope(self, theta: np.ndarray, X: np.ndarray, y: np.ndarray, die: float = NO_DIE) -> np.ndarray:
        """Gradient of that. With a die, of a minibatch in training: what is random then comes from the die."""

    def check(self, X: np.ndarray, y: np.ndarray) -> None:  # noqa: B027 - a default
        """Refuse rows or labels that the model cannot take. Default: it takes all."""

    def value(self, data: Any, theta: np.ndarray) -> float:
        """The losses of the agent's rows, times their weight."""
        if data.labels.shape[0] == 0:
            return 0.0
        return float(data.row_weight * self.total(theta, matrix_of(data.rows, self.inputs), data.labels))

    def gradient(self, data: Any, theta: np.ndarray, scale: float, out: np.ndarray) -> None:
        """``out += scale * grad`` of that."""
        if data.labels.shape[0] > 0:
            found = self.slope(theta, matrix_of(data.rows, self.inputs), data.labels, data.die)
            out += scale * data.row_weight * found

    def values(self, arrays: Any, theta: np.ndarray, who: np.ndarray) -> np.ndarray:
        """The losses of these agents' rows, given a model for each of them."""
        return self._each(0, arrays, theta, who)

    def gradients(
        self, arrays: Any, theta: np.ndarray, who: np.ndarray, pick: np.ndarray | None, dice: np.ndarray | None = None
    ) -> np.ndarray:
        """Gradients for these agents, each on all its rows, or on those that are picked for it by its die."""
        return self._each(1, arrays, theta, who, pick, dice)

    def _each(
        self, order: int, arrays: Any, theta: np.ndarray, who: np.ndarray, pick: Any = None, dice: Any = None
    ) -> np.ndarray:
        """Values (0) or gradients (1) of these agents, one after the other."""
        X, start = matrix_of(arrays.rows, self.inputs), arrays.row_start
        found = np.zeros((len(who), self.size) if order else len(who))
        for k, i in enumerate(who):
            m = int(start[i + 1] - start[i])
            if m > 0:
                rows = slice(start[i], start[i + 1]) if pick is None else pick[k]
                weight = arrays.row_weight[i] * (1.0 if pick is None else m / pick.shape[1])
                given = theta[k], X[rows], arrays.labels[rows]
                die = NO_DIE if dice is None else dice[k]
                found[k] = weight * (self.slope(*given, die) if order else self.total(*given))
        return found
