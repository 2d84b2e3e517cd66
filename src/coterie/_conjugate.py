"""Conjugate gradients for one linear system, or many independent systems with a step size for each, unlike SciPy's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

#: A function of a vector that returns a vector.
Operator = Callable[[np.ndarray], np.ndarray]


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the inner product of the vectors of one system."""
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
    """Solve ``product(x) = target`` for a positive semidefinite matrix; return x and the number of products.

    Parameters
    ----------
    product : callable
        Multiplies a vector by the matrix.
    target : ndarray
    accuracy : float
        Each system ends when the norm of its residual is at most `accuracy` times the norm of its target.
    rounds : int
        Largest number of products.
    precondition : callable
        Multiplies a vector by an approximate inverse of the matrix. Default: none.
    inner, spread : callable
        For several independent systems, each with its own step sizes: ``inner(a, b)`` returns the inner product of two
        vectors for each system, and ``spread(numbers, v)`` multiplies the part of v of each system by its number.
        Default: one system.
    flat : float
        A system ends at a direction d with ``d' A d <= flat |d|^2``, along which the objective has no minimum.
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
