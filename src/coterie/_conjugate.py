"""Conjugate gradients, of one system or of many that do not touch: SciPy's have one length for all of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

#: Of a vector, another one.
Operator = Callable[[np.ndarray], np.ndarray]


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Inner product of the vectors of one system."""
    return np.array([np.vdot(a, b)])


def conjugate_gradients(
    product: Operator,
    target: np.ndarray,
    accuracy: float,
    rounds: int = 1000,
    *,
    precondition: Operator = np.copy,
    inner: Callable[[np.ndarray, np.ndarray], np.ndarray] = _dot,
    spread: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.multiply,
    flat: float = 0.0,
) -> tuple[np.ndarray, int]:
    """Solve ``product(x) = target`` for a positive semidefinite matrix: x, and the number of products it took.

    Parameters
    ----------
    product : callable
        Multiplies a vector with the matrix.
    target : ndarray
    accuracy : float
        Each system ends when its residual is at most this part of its target.
    rounds : int
        Most products.
    precondition : callable
        Multiplies a vector with roughly the inverse of the matrix. Default: none.
    inner, spread : callable
        Of several systems that do not touch, each with its own steps: the inner products of two vectors, one for
        each system, and the vector with the part of each system multiplied by its number. Default: one system.
    flat : float
        A direction d along which ``d' A d <= flat |d|^2`` has no minimum: its system ends there.
    """
    x, residual = np.zeros_like(target), target.copy()
    enough = accuracy**2 * inner(target, target)
    direction = precondition(residual)
    slope = inner(residual, direction)
    for step in range(rounds):
        image = product(direction)
        curvature = inner(direction, image)
        bent = curvature > (flat * inner(direction, direction) if flat else 0.0)
        going = (inner(residual, residual) > enough) & bent & (slope > 0)
        if not going.any():
            return x, step
        length = np.where(going, slope, 0.0) / np.where(going, curvature, 1.0)
        x += spread(length, direction)
        residual -= spread(length, image)
        ahead = precondition(residual)
        turn = np.where(going, inner(residual, ahead), 0.0)
        direction = spread(turn / np.where(going, slope, 1.0), direction)
        direction += ahead
        slope = turn
    return x, rounds
