"""Singular values and eigenvalues of tall and of low-rank matrices, without anything m x m."""

from __future__ import annotations

import numpy as np
from scipy import optimize

#: How far above the largest eigenvalue its bound may be, as a part of itself.
TIGHT = 1e-10
#: The same, where eigenvalues have to be counted.
BISECT = 1e-4


def singular_values(matrix: np.ndarray) -> np.ndarray:
    """Singular values, the largest first.

    Of the matrix, not as roots of eigenvalues of its Gram matrix, which have half of the digits (erratum 30).
    """
    return np.linalg.svd(matrix, compute_uv=False)


def spectral_norm(matrix: np.ndarray) -> float:
    """The largest singular value. It keeps its digits in the Gram matrix, of the shorter side."""
    gram = matrix.T @ matrix if matrix.shape[0] > matrix.shape[1] else matrix @ matrix.T
    return float(np.sqrt(max(0.0, np.linalg.eigvalsh(gram)[-1]))) if gram.size else 0.0


def largest_eigenvalue(diagonal: np.ndarray, factor: np.ndarray, signs: np.ndarray) -> float:
    """The largest eigenvalue of ``diag(p) + F J F'``, J = diag(signs), or a little more.

    F is (m, r), and r small. For x above all of p, ``x - diag(p) - F J F'`` has as many negative eigenvalues as
    ``J - F' (x - diag(p))^-1 F``, an r x r matrix, has more than J (Haynsworth's inertia formula). So the number is
    where one of its eigenvalues crosses zero: an upper bound that is sure, where iterations of Lanczos would give lower
    ones, and may miss the largest eigenvalue if the start is orthogonal to its vector. If negative signs leave every
    eigenvalue below the largest of p, eigenvalues above x are counted, by the same formula, and x is bisected.
    """
    pole = float(diagonal.max())
    entries = diagonal + np.square(factor) @ signs
    low = max(pole, float(entries.max())) * (1.0 + TIGHT)  # the largest is at least any entry of the diagonal
    positive = factor[:, signs > 0]
    high = (pole + spectral_norm(positive) ** 2) * (1.0 + TIGHT)
    negative, J = int(np.sum(signs < 0)), np.diag(signs)

    def room(x: float) -> float:
        inner = (factor / (x - diagonal)[:, None]).T @ factor
        return x * float(np.linalg.eigvalsh(J - inner)[negative])  # nearly linear in x

    def above(x: float) -> int:
        """How many eigenvalues are larger."""
        space = x - diagonal
        inner = (factor / np.where(space == 0.0, 1e-300, space)[:, None]).T @ factor
        return int(np.sum(space < 0.0) + np.sum(np.linalg.eigvalsh(J - inner) < 0.0)) - negative

    if not positive.size or high <= low or room(low) >= 0.0:
        least = float(entries.max())
        if pole <= least * (1.0 + BISECT):
            return low
        while low - least > BISECT * low:
            middle = 0.5 * (least + low)
            least, low = (middle, low) if above(middle) > 0 else (least, middle)
        return low
    if room(high) <= 0.0:  # by rounding
        return high
    return float(optimize.brentq(room, low, high, xtol=TIGHT * low, rtol=TIGHT)) * (1.0 + 2.0 * TIGHT)
