"""Linear systems of the exact minimiser, ``(2 s (D - W) + 2 R + X' diag(weights) X) x = target``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import linalg

from ...core.exact import coupled_kernel
from ...core.linear import SparseRows, diagonal_kernel, gram_kernel
from ...errors import ConvergenceError
from .objective import Objective

#: Up to this many unknowns, systems of tied agents are preconditioned by a dense factorisation.
DENSE = 1500
#: The agents' p x p blocks are kept up to this many numbers in all, and only their diagonals beyond it.
BLOCKS = 40_000_000

Solver = Callable[[np.ndarray], np.ndarray]


def everything(vector: np.ndarray) -> np.ndarray:
    """The projection onto the whole space."""
    return vector


def system(objective: Objective, weights: np.ndarray, tight: bool, project: Solver) -> Solver:
    """A solver of ``(2 s (D - W) + 2 R + X' diag(weights) X) x = target`` within the range of ``project``.

    Conjugate gradients, with the best preconditioner that is affordable: the inverse itself, of the agents' blocks
    where there are no ties or of the whole matrix while that is small; the inverse of the blocks; or of the diagonal.
    The matrix itself is never formed for products, which are more accurate for it.
    """
    n, p = objective.start.shape[0] - 1, objective.p
    exact = objective.graph.n_edges == 0
    apart = _apart(objective)
    if not exact and n * p <= DENSE:
        precondition, exact = _dense_inverse(objective, weights, n, p), True
    elif not apart and n * p * p <= BLOCKS:
        precondition = _block_inverse(objective, weights, n, p)
    else:
        precondition, exact = _diagonal_inverse(objective, weights, n, p), exact and apart

    product = _product(objective, weights)
    accuracy, rounds = 1e-13 if tight else 1e-6, 10 if exact else 5000
    return lambda target: _conjugate_gradients(
        objective, product, lambda v: project(precondition(v)), project(target), accuracy, rounds
    )


def least_decrement(objective: Objective, weights: np.ndarray, gradient: np.ndarray, project: Solver) -> float:
    """A lower bound of ``gradient' H^-1 gradient`` for the matrix H of :func:`system`, by one product with it.

    By Cauchy and Schwarz ``(g' d)^2 / (d' H d)`` for any direction d, in each component of the graph; here the
    gradient over the diagonal of H.
    """
    n, p = objective.start.shape[0] - 1, objective.p
    direction = project(_diagonal_inverse(objective, weights, n, p)(gradient))
    slope = objective.by_component((gradient * direction).sum(axis=1))
    curvature = objective.by_component((direction * _product(objective, weights)(direction)).sum(axis=1))
    curved = curvature > 0.0
    return float(np.sum(slope[curved] ** 2 / curvature[curved]))


def _apart(objective: Objective) -> bool:
    """Whether rows have one coordinate each (mean estimation, propagation), and so only add to the diagonal."""
    return isinstance(objective.rows, SparseRows) and bool(np.all(np.diff(objective.rows.start) <= 1))


def _product(objective: Objective, weights: np.ndarray) -> Solver:
    """Multiplication by the matrix."""
    apart, diagonal = _apart(objective), np.zeros((objective.start.shape[0] - 1, objective.p))
    if apart:
        diagonal_kernel(objective.rows, objective.start, weights, diagonal)
    diagonal += 2.0 * objective.ridge

    def product(v: np.ndarray) -> np.ndarray:
        graph, out = objective.graph, np.empty_like(v)
        coupled_kernel(graph.start, graph.peer, graph.weight, 2.0 * objective.smooth, diagonal, v, out)
        return out if apart else out + objective.scatter(weights * objective.margins(v), v.shape)

    return product


def _conjugate_gradients(
    objective: Objective, product: Solver, precondition: Solver, target: np.ndarray, accuracy: float, rounds: int
) -> np.ndarray:
    """Solve ``product(x) = target``; every component of the graph is a system of its own, with its own steps."""

    def inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return objective.by_component((a * b).sum(axis=1))

    x, residual = np.zeros_like(target), target
    enough = accuracy**2 * inner(target, target)
    direction = precondition(residual)
    slope = inner(residual, direction)
    for _ in range(rounds):
        image = product(direction)
        curvature = inner(direction, image)
        going = (inner(residual, residual) > enough) & (curvature > 0) & (slope > 0)
        if not going.any():
            break
        length = np.where(going, slope, 0.0) / np.where(going, curvature, 1.0)
        x = x + objective.spread(length, direction)
        residual = residual - objective.spread(length, image)
        ahead = precondition(residual)
        turn = np.where(going, inner(residual, ahead), 0.0)
        direction = ahead + objective.spread(turn / np.where(going, slope, 1.0), direction)
        slope = turn
    return x


def _diagonal_inverse(objective: Objective, weights: np.ndarray, n: int, p: int) -> Solver:
    """Division by the diagonal of the matrix."""
    diagonal = np.zeros((n, p))
    diagonal_kernel(objective.rows, objective.start, weights, diagonal)
    diagonal += 2.0 * objective.ridge + 2.0 * objective.smooth * objective.graph.degrees[:, None]
    diagonal[diagonal == 0.0] = 1.0  # a feature that the agent does not have
    return lambda v: v / diagonal


def _block_inverse(objective: Objective, weights: np.ndarray, n: int, p: int) -> Solver:
    """Multiplication by the inverses of the agents' own blocks."""
    blocks = _blocks(objective, weights, n, p)
    unit = 1.0 / np.sqrt(np.einsum("ikk->ik", blocks))  # features may differ by many orders of magnitude
    blocks *= unit[:, :, None] * unit[:, None, :]
    inverse = np.linalg.inv(blocks + 1e-12 * np.eye(p))
    inverse = 0.5 * (inverse + inverse.transpose(0, 2, 1))  # symmetric and positive definite, whatever the rounding
    inverse *= unit[:, :, None] * unit[:, None, :]
    return lambda v: np.einsum("ikl,il->ik", inverse, v)


def _blocks(objective: Objective, weights: np.ndarray, n: int, p: int) -> np.ndarray:
    """The agents' own p x p blocks."""
    blocks = np.zeros((n, p, p))
    gram_kernel(objective.rows, objective.start, weights, np.arange(n), blocks)
    diagonal = np.einsum("ikk->ik", blocks)  # a view
    diagonal += 2.0 * objective.ridge + 2.0 * objective.smooth * objective.graph.degrees[:, None]
    diagonal[diagonal == 0.0] = 1.0  # a feature that the agent does not have
    return blocks


def _dense_inverse(objective: Objective, weights: np.ndarray, n: int, p: int) -> Solver:
    """Multiplication by the inverse of the whole matrix, by its Cholesky factor."""
    whole = np.zeros((n, p, n, p))
    whole[np.arange(n), :, np.arange(n), :] = _blocks(objective, weights, n, p)
    i, j, w = objective.graph.edges()
    for k in range(p):
        whole[i, k, j, k] = whole[j, k, i, k] = -2.0 * objective.smooth * w
    matrix = whole.reshape(n * p, n * p)
    # Scaled to a unit diagonal: the agents' weights may differ by many orders of magnitude.
    unit = 1.0 / np.sqrt(np.diagonal(matrix))
    matrix *= unit[:, None] * unit
    for damping in (0.0, 1e-14, 1e-12, 1e-10, 1e-8):
        matrix[np.diag_indices(n * p)] = 1.0 + damping
        try:
            factor = linalg.cho_factor(matrix, lower=True, check_finite=False)
        except linalg.LinAlgError:
            continue
        return lambda v: (unit * linalg.cho_solve(factor, unit * v.ravel(), check_finite=False)).reshape(v.shape)
    raise ConvergenceError("the Hessian is not positive semidefinite: is a loss not convex?")
