"""A model given by functions of NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._checks import floats, integer
from ..errors import ParameterError
from .opaque import NO_DIE, Opaque, code_of


class Function(Opaque):
    """A model given by Python functions: the losses of rows, their gradient, and predictions.

    Parameters
    ----------
    size : int
        Number of parameters.
    value : callable
        ``value(theta, X, y)`` returns the mean loss of the rows, a number.
    gradient : callable
        ``gradient(theta, X, y)`` returns the gradient of the mean loss with respect to theta, (size,).
    predict : callable, optional
        ``predict(theta, X)`` returns scores of the rows, (rows,) or (rows, outputs).
    initial : (size,) array_like, optional
        Parameters of all agents at the start. Default: zeros.
    parts : mapping, optional
        Slices of theta by name, to declare parameters personal, shared or tied. Default: one part, ``"theta"``.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> def value(theta, X, y):
    ...     return 0.5 * np.mean((X @ theta - y) ** 2)
    >>> def gradient(theta, X, y):
    ...     return X.T @ (X @ theta - y) / len(y)
    >>> ct.models.Function(3, value, gradient, predict=lambda theta, X: X @ theta)
    Function(size=3)
    """

    def __init__(
        self,
        size: int,
        value: Callable[..., Any],
        gradient: Callable[..., Any],
        predict: Callable[..., Any] | None = None,
        initial: Any = None,
        parts: dict[str, slice] | None = None,
    ):
        self.size = integer("size", size)
        for name, given in (("value", value), ("gradient", gradient)):
            if not callable(given):
                raise ParameterError(f"{name}={given!r} must be a function of (theta, X, y)")
        self._value, self._gradient, self._predict = value, gradient, predict
        self._start = np.zeros(self.size) if initial is None else floats("initial", initial)
        if self._start.shape != (self.size,):
            raise ParameterError(f"initial must hold {self.size} numbers; found shape {self._start.shape}")
        self.parts = {"theta": slice(0, self.size)} if parts is None else dict(parts)
        self.inputs = 0

    def __repr__(self) -> str:
        return f"Function(size={self.size})"

    @property
    def written(self) -> tuple[Any, ...]:
        """Digests of the code of the functions."""
        return code_of(self._value), code_of(self._gradient), code_of(self._predict)

    def initial(self, seed: Any = 0) -> np.ndarray:
        """Return the parameters of all agents at the start."""
        return self._start.copy()

    def predict(self, theta: np.ndarray, X: Any) -> np.ndarray:
        """Return scores of rows."""
        if self._predict is None:
            raise ParameterError("this ct.models.Function was made without predict=: give it a function of (theta, X)")
        return np.asarray(self._predict(theta, X))

    def total(self, theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> float:
        """Return the sum of the losses of the rows."""
        return len(y) * float(self._value(theta, X, y))

    def slope(self, theta: np.ndarray, X: np.ndarray, y: np.ndarray, die: float = NO_DIE) -> np.ndarray:
        """Return the gradient of :meth:`total`."""
        found = np.asarray(self._gradient(theta, X, y), dtype=float)
        if found.shape != (self.size,):
            raise ParameterError(f"gradient gave shape {found.shape}: it must give {self.size} numbers, as theta has")
        return len(y) * found
