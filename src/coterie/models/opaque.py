"""Base class of models in Python: wakes run them in uncompiled loops, and rounds call them for all agents at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from ..core.arrays import NO_DIE as NO_DIE
from ..core.linear import matrix_of


def code_of(function: Any) -> tuple[Any, ...]:
    """Return values that identify a function by its code, because functions with the same name may differ."""
    code = getattr(function, "__code__", None)
    if code is None:
        return (repr(type(function)), getattr(function, "__qualname__", ""))
    kept = getattr(function, "__closure__", None) or ()
    constants = [each for each in code.co_consts if isinstance(each, int | float | complex | str | bytes)]
    return (code.co_code, code.co_names, constants, function.__defaults__, [cell.cell_contents for cell in kept])


class Opaque(ABC):
    """A model that cannot be compiled. A subclass implements at least :meth:`total` and :meth:`slope`.

    Attributes
    ----------
    size : int
        Number of parameters.
    parts : dict
        Slice of the vector theta for each parameter name.
    """

    #: Attributes that identify a model, for resumed runs and studies.
    digest_parts = ("size", "laid_out", "written")
    #: Loops over this model run as plain Python, uncompiled.
    opaque = True
    #: The model needs no scratch memory from the caller.
    scratch = 0
    size: int
    inputs: int
    parts: dict[str, slice]

    @property
    def laid_out(self) -> tuple[Any, ...]:
        """Slices of the parameters, and their values at the start."""
        return tuple((name, part.start, part.stop) for name, part in self.parts.items()), self.initial()

    @property
    @abstractmethod
    def written(self) -> tuple[Any, ...]:
        """Values that identify the model: descriptions and code, see :func:`code_of`."""

    @abstractmethod
    def initial(self, seed: Any = 0) -> np.ndarray:
        """Return the parameters to start from, equal for all agents, so that averages of models are meaningful."""

    @abstractmethod
    def predict(self, theta: np.ndarray, X: Any) -> np.ndarray:
        """Return scores of rows."""

    @abstractmethod
    def total(self, theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> float:
        """Return the sum of the losses of the rows."""

    @abstractmethod
    def slope(self, theta: np.ndarray, X: np.ndarray, y: np.ndarray, die: float = NO_DIE) -> np.ndarray:
        """Return the gradient of :meth:`total`.

        A nonnegative `die` marks a minibatch in training, and is the seed of the model's random numbers.
        """

    def check(self, X: np.ndarray, y: np.ndarray) -> None:  # noqa: B027 - a default
        """Refuse rows or labels that the model cannot take. Default: accept all."""

    def value(self, data: Any, theta: np.ndarray) -> float:
        """Return the weighted sum of the losses of the agent's rows."""
        if data.labels.shape[0] == 0:
            return 0.0
        return float(data.row_weight * self.total(theta, matrix_of(data.rows, self.inputs), data.labels))

    def gradient(self, data: Any, theta: np.ndarray, scale: float, out: np.ndarray) -> None:
        """Add `scale` times the gradient of :meth:`value` to `out`."""
        if data.labels.shape[0] > 0:
            found = self.slope(theta, matrix_of(data.rows, self.inputs), data.labels, data.die)
            out += scale * data.row_weight * found

    def values(self, arrays: Any, theta: np.ndarray, who: np.ndarray) -> np.ndarray:
        """Return the loss of each agent in `who` at its row of `theta`."""
        return self._each(0, arrays, theta, who)

    def gradients(
        self, arrays: Any, theta: np.ndarray, who: np.ndarray, pick: np.ndarray | None, dice: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the gradient of each agent in `who`, on all its rows, or on the rows in `pick`, with seeds `dice`."""
        return self._each(1, arrays, theta, who, pick, dice)

    def _each(
        self, order: int, arrays: Any, theta: np.ndarray, who: np.ndarray, pick: Any = None, dice: Any = None
    ) -> np.ndarray:
        """Return values (order 0) or gradients (order 1) of the agents in `who`, computed one after the other."""
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
