"""Linear systems of the exact minimiser, ``(2 s (D - W) + 2 R + X' diag(weights) X) x = target``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import linalg

from ..._conjugate import conjugate_gradients
from ...errors import ConvergenceError
from .objective import MAX_BLOCK_NUMBERS, Objective

#: Largest number of unknowns for which systems with edges are preconditioned by a dense factorisation.
MAX_DENSE_UNKNOWNS = 1500

Solver = Callable[[np.ndarray], np.ndarray]
#: A function of the right-hand side and its relative accuracy that returns the solution.
InexactSolver = Callable[[np.ndarray, float], np.ndarray]


def everything(vector: np.ndarray) -> np.ndarray:
    """Return the vector: the projection onto the whole space."""
    return vector


def system(objective: Objective, bend: np.ndarray, project: Solver) -> InexactSolver:
    """Return a solver of ``(2 s (D - W) + 2 R + bend) x = target`` within the range of ``project``.

    The solver uses conjugate gradients with the best affordable preconditioner: the inverse of the matrix, if there are
    no edges or the matrix is small; the inverse of the agents' blocks; or the inverse of the diagonal.
    """
    n, p = objective.n, objective.p
    exact = objective.graph.n_edges == 0
    if not exact and n * p <= MAX_DENSE_UNKNOWNS:
        precondition, exact = _dense_inverse(objective, bend, n, p), True
    elif bend.ndim == 3:
        precondition = _block_inverse(objective, bend)
    else:
        precondition, exact = _diagonal_inverse(objective, bend), exact and bend.ndim == 2
    product, rounds = product_with(objective, bend), 10 if exact else 5000

    def solve(target: np.ndarray, accuracy: float) -> np.ndarray:
        return conjugate_gradients(
            product,
            project(target),
            1e-13 if exact else accuracy,  # full accuracy costs almost nothing
            rounds,
            precondition=precondition if project is everything else lambda v: project(precondition(v)),
            inner=objective.inner,
            spread=objective.spread,
        )[0]

    return solve


def least_decrement(objective: Objective, bend: np.ndarray, gradient: np.ndarray, project: Solver) -> float:
    """Return a lower bound of ``gradient' H^-1 gradient`` for the matrix H of :func:`system`, by one product with H.

    By the Cauchy-Schwarz inequality, ``(g' d)^2 / (d' H d)`` is a lower bound for any direction d, in each component of
    the graph; here d is the gradient divided by the diagonal of H.
    """
    direction = project(_diagonal_inverse(objective, bend)(gradient))
    slope = objective.inner(gradient, direction)
    curvature = objective.inner(direction, product_with(objective, bend)(direction))
    curved = curvature > 0.0
    return float(np.sum(slope[curved] ** 2 / curvature[curved]))


def product_with(objective: Objective, bend: np.ndarray) -> Solver:
    """Return the function that multiplies by the matrix ``2 s (D - W) + 2 R + bend``."""

    def product(v: np.ndarray) -> np.ndarray:
        v, out = np.ascontiguousarray(v), np.empty(v.shape)

        def work(span: tuple[int, int]) -> None:
            some = slice(*span)
            np.multiply(2.0 * objective.ridge[some], v[some], out=out[some])
            if bend.ndim == 3:
                out[some] += np.matmul(bend[some], v[some, :, None])[..., 0]
            elif bend.ndim == 2:
                out[some] += bend[some] * v[some]
            objective.add_edges(v, span[0], out[some])

        objective.in_threads(work, objective.spans)
        return out if bend.ndim > 1 else out + objective.scatter(bend * objective.margins(v), v.shape)

    return product


def _diagonal_inverse(objective: Objective, bend: np.ndarray) -> Solver:
    """Return the function that divides by the diagonal of the matrix."""
    diagonal = 2.0 * objective.ridge + 2.0 * objective.smooth * objective.graph.degrees[:, None]
    diagonal = diagonal + (objective.diagonals(bend) if bend.ndim == 1 else _diagonal_of(bend))
    diagonal[diagonal == 0.0] = 1.0  # a feature that the agent does not have
    return lambda v: v / diagonal


def _diagonal_of(bend: np.ndarray) -> np.ndarray:
    """Return a view of the diagonals of blocks."""
    return bend if bend.ndim == 2 else np.einsum("ikk->ik", bend)


def _block_inverse(objective: Objective, bend: np.ndarray) -> Solver:
    """Return the function that multiplies by the inverses of the agents' own blocks."""
    # Many blocks are stored in single precision, with damping that keeps them positive definite despite rounding.
    kind, damping = (np.float64, 1e-12) if bend.size <= MAX_BLOCK_NUMBERS else (np.float32, 1e-6)
    inverse = np.empty(bend.shape, kind)

    def invert(span: tuple[int, int]) -> None:
        blocks = _blocks(objective, bend, *span)
        unit = 1.0 / np.sqrt(np.einsum("ikk->ik", blocks))  # features may differ by many orders of magnitude
        blocks *= unit[:, :, None] * unit[:, None, :]
        found = np.linalg.inv(blocks + damping * np.eye(objective.p))
        found = 0.5 * (found + found.transpose(0, 2, 1))  # symmetric and positive definite despite rounding
        inverse[slice(*span)] = found * (unit[:, :, None] * unit[:, None, :])

    short = [(k, min(k + 512, b)) for a, b in objective.spans for k in range(a, b, 512)]
    objective.in_threads(invert, short)

    def precondition(v: np.ndarray) -> np.ndarray:
        out = np.empty(v.shape)

        def work(span: tuple[int, int]) -> None:
            some = slice(*span)
            out[some] = np.matmul(inverse[some], v[some, :, None].astype(kind, copy=False))[..., 0]

        objective.in_threads(work, objective.spans)
        return out

    return precondition


def _blocks(objective: Objective, bend: np.ndarray, first: int, last: int) -> np.ndarray:
    """Return the p x p blocks of the matrix for agents ``first`` to ``last - 1``."""
    some = slice(first, last)
    blocks = bend[some].copy() if bend.ndim == 3 else bend[some, :, None] * np.eye(objective.p)
    diagonal = np.einsum("ikk->ik", blocks)  # a view
    diagonal += 2.0 * objective.ridge[some] + 2.0 * objective.smooth * objective.graph.degrees[some, None]
    diagonal[diagonal == 0.0] = 1.0  # a feature that the agent does not have
    return blocks


def _dense_inverse(objective: Objective, bend: np.ndarray, n: int, p: int) -> Solver:
    """Return the function that multiplies by the inverse of the whole matrix, from its Cholesky factor."""
    whole = np.zeros((n, p, n, p))
    whole[np.arange(n), :, np.arange(n), :] = _blocks(
        objective, objective.blocks(bend) if bend.ndim == 1 else bend, 0, n
    )
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
