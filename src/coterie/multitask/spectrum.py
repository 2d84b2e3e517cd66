"""Singular values and eigenvalues of tall and of low-rank matrices, without m x m matrices."""

from __future__ import annotations

import numpy as np
from scipy import optimize

#: Relative distance of the bound to the largest eigenvalue.
ROOT_TOLERANCE = 1e-10
#: Relative distance of the bound to the largest eigenvalue, if it is found by bisection.
BISECTION_TOLERANCE = 1e-4


def singular_values(matrix: np.ndarray) -> np.ndarray:
    """Return the singular values, the largest first.

    They are computed from the matrix itself; roots of the eigenvalues of its Gram matrix would have half of the digits
    (erratum 30).
    """
    return np.linalg.svd(matrix, compute_uv=False)


def spectral_norm(matrix: np.ndarray) -> float:
    """Return the largest singular value, which can be computed from the smaller Gram matrix without loss of digits."""
    gram = matrix.T @ matrix if matrix.shape[0] > matrix.shape[1] else matrix @ matrix.T
    return float(np.sqrt(max(0.0, np.linalg.eigvalsh(gram)[-1]))) if gram.size else 0.0


def largest_eigenvalue(diagonal: np.ndarray, factor: np.ndarray, signs: np.ndarray) -> float:
    """Return a tight upper bound of the largest eigenvalue of ``diag(p) + F J F'``, J = diag(signs).

    F is (m, r), with small r. For x above all entries of p, the number of negative eigenvalues of
    ``x - diag(p) - F J F'`` is that of the r x r matrix ``J - F' (x - diag(p))^-1 F`` minus that of J (Haynsworth's
    inertia formula). So the largest eigenvalue is the x at which an eigenvalue of the r x r matrix crosses zero. This
    gives a guaranteed upper bound, whereas Lanczos iterations give lower bounds, and may miss the largest eigenvalue if
    the start is orthogonal to its eigenvector. If, because of negative signs, every eigenvalue is below the largest
    entry of p, eigenvalues above x are counted by the same formula, and x is bisected.
    """
    pole = float(diagonal.max())
    entries = diagonal + np.square(factor) @ signs
    # The largest eigenvalue is at least every diagonal entry.
    low = max(pole, float(entries.max())) * (1.0 + ROOT_TOLERANCE)
    positive = factor[:, signs > 0]
    high = (pole + spectral_norm(positive) ** 2) * (1.0 + ROOT_TOLERANCE)
    negative, J = int(np.sum(signs < 0)), np.diag(signs)

    def room(x: float) -> float:
        inner = (factor / (x - diagonal)[:, None]).T @ factor
        return x * float(np.linalg.eigvalsh(J - inner)[negative])  # nearly linear in x

    def above(x: float) -> int:
        """Return the number of eigenvalues above x."""
        space = x - diagonal
        inner = (factor / np.where(space == 0.0, 1e-300, space)[:, None]).T @ factor
        return int(np.sum(space < 0.0) + np.sum(np.linalg.eigvalsh(J - inner) < 0.0)) - negative

    if not positive.size or high <= low or room(low) >= 0.0:
        least = float(entries.max())
        if pole <= least * (1.0 + BISECTION_TOLERANCE):
            return low
        while low - least > BISECTION_TOLERANCE * low:
            middle = 0.5 * (least + low)
            least, low = (middle, low) if above(middle) > 0 else (least, middle)
        return low
    if room(high) <= 0.0:  # by rounding
        return high
    return float(optimize.brentq(room, low, high, xtol=ROOT_TOLERANCE * low, rtol=ROOT_TOLERANCE)) * (
        1.0 + 2.0 * ROOT_TOLERANCE
    )
