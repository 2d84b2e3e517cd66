"""Products with the rows of many agents in many columns, and with M = (C^-1 + K)^-1: see :mod:`.wide`.

C are curvatures of the rows, K their prior covariance. Where columns are fewer than rows, with B the part of M^-1
inside agents, M = B^-1 - B^-1 X S^-1 X' B^-1, S = U^-1 + X' B^-1 X: nothing is of size rows x rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..core.batches import batches, padded
from .blocks import InRows, in_rows, one_plus
from .rows import Grouped, dense

#: Maximum number of rows from which variances are learned, and of columns of which a square matrix is made.
MAX_GRAM_ROWS = 1500
#: Maximum count of numbers in the matrices of all agents, (own rows x own rows) each.
MAX_SQUARE_NUMBERS = 5e7


def kernel(A: Any, v: np.ndarray, B: Any) -> np.ndarray:
    """Return A diag(v) B' + v_0 for rows A and B, dense or sparse, without a column of ones; v_0 is the last of v."""
    return dense((A * v[:-1] if isinstance(A, np.ndarray) else A.multiply(v[:-1]).tocsr()) @ B.T) + v[-1]


def diagonal(B: Any, K: np.ndarray) -> np.ndarray:
    """Return the diagonal of B' K B, K symmetric, as if rows B had a further column of ones at the end."""
    KB = (B.T @ K).T  # B first: it may be sparse
    parts = (
        np.einsum("ij,ij->j", B, KB) if isinstance(B, np.ndarray) else np.asarray(B.multiply(KB).sum(axis=0)).ravel()
    )
    return np.append(parts, K.sum())


def transposed(B: Any, z: np.ndarray) -> np.ndarray:
    """Return B' z, as if rows B had a further column of ones at the end."""
    return np.append(B.T @ z, z.sum())


class Span:
    """The rows of many agents, without a column of ones, and products with them."""

    def __init__(self, grouped: Grouped):
        from scipy import sparse

        self.X, self.who, self.n = grouped.X, grouped.codes, grouped.n
        self.start, self.sizes = grouped.start, grouped.sizes
        self.rows, self.columns = self.X.shape
        squares = float(np.sum(self.sizes.astype(float) ** 2))
        self.few = self.columns < min(self.rows, MAX_GRAM_ROWS) and squares <= MAX_SQUARE_NUMBERS
        X = sparse.csr_array(self.X)
        column = X.indices.astype(np.int64) + self.columns * np.repeat(self.who, np.diff(X.indptr))
        self.own = sparse.csr_array((X.data, column, X.indptr), shape=(self.rows, self.n * self.columns))

    def times(self, w: np.ndarray, D: np.ndarray) -> np.ndarray:
        """Return the linear predictors of the rows, from a common model w and deviations D of each agent."""
        return self.X @ w[:-1] + w[-1] + self.own @ D[:, :-1].ravel() + D[self.who, -1]

    def transposed(self, z: np.ndarray) -> np.ndarray:
        """Return X_i' z_i of every agent, (n, p + 1); the sum over agents is X' z."""
        out = (self.own.T @ z).reshape(self.n, self.columns)
        return np.column_stack([out, np.bincount(self.who, z, self.n)])

    def prior(self, z: np.ndarray, v: np.ndarray, u: np.ndarray) -> np.ndarray:
        """Return K z."""
        own = self.transposed(z)
        return self.times(u * own.sum(axis=0), v * own)

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Generate the numbers of the rows of some agents, (k, m), and the rows, with ones last.

        Padding has the number of rows as its number, one too large.
        """
        for k, width in batches(self.sizes, self.columns + 1):
            rows, real = padded(self.start[k], self.sizes[k], width)
            A = np.ones((*rows.shape, self.columns + 1))
            A[..., :-1] = dense(self.X[rows.ravel()]).reshape(*rows.shape, -1)
            yield np.where(real, rows, self.rows), A


class OfRows:
    """M, computed directly: for no more rows than columns."""

    def __init__(self, span: Span, curvature: np.ndarray, v: np.ndarray, u: np.ndarray):
        self.span, self.c = span, np.sqrt(curvature)
        self.own = [slice(a, a + m) for a, m in zip(span.start, span.sizes, strict=False) if m]
        self.K = kernel(span.X, u, span.X)
        for rows in self.own:
            B = span.X[rows]
            self.K[rows, rows] += kernel(B, v, B)
        self.M = in_rows(self.K, self.c)

    def times(self, z: np.ndarray) -> np.ndarray:
        """Return M z."""
        return np.asarray(self.M @ z)

    def diagonals(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the diagonals of M, of X' M X, and of the sum of X_i' M_ii X_i over agents."""
        inside = sum(diagonal(self.span.X[rows], self.M[rows, rows]) for rows in self.own)
        return np.diag(self.M), diagonal(self.span.X, self.M), np.asarray(inside)

    def log_det(self) -> float:
        """Return log |I + C K|."""
        return float(np.linalg.slogdet(one_plus(self.K, self.c))[1])


class OfColumns:
    """M, computed from S: for more rows than columns."""

    def __init__(self, span: Span, curvature: np.ndarray, v: np.ndarray, u: np.ndarray):
        self.span, self.v, self.u = span, v, u
        self.curvature, self.parts = np.append(curvature, 0.0), []
        self.C, self.log_inside = np.zeros((len(v), len(v))), 0.0
        for at, A in span.batches():
            block = InRows.of(A, self.curvature[at], v)
            self.parts.append((at, block.K))
            self.C += block.sum()
            self.log_inside += block.log_det()
        self.S = self.C + np.diag(1.0 / u)

    def _inside(self, z: np.ndarray) -> np.ndarray:
        out, z = np.zeros(len(z) + 1), np.append(z, 0.0)
        for at, K in self.parts:
            out[at] = np.matmul(K, z[at][..., None])[..., 0]
        return out[:-1]

    def times(self, z: np.ndarray) -> np.ndarray:
        """Return M z."""
        return self.solve(z)[1]

    def solve(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the common model of the labels z, w = U X' M z, and M z; S^-1 X' B^-1 z keeps more digits of w."""
        own = self._inside(z)
        w = np.linalg.solve(self.S, transposed(self.span.X, own))
        return w, own - self._inside(self.span.X @ w[:-1] + w[-1])

    def diagonals(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the diagonals of M, of X' M X, and of the sum of X_i' M_ii X_i over agents."""
        cov, own, inside = np.linalg.inv(self.S), np.zeros(self.span.rows + 1), np.diag(self.C).copy()
        for at, A in self.span.batches():
            block = InRows.of(A, self.curvature[at], self.v)
            Acov = A @ cov
            own[at] = np.einsum("kii->ki", block.K) - np.einsum("kmq,kmq->km", np.matmul(block.K, Acov), block.Z)
            inside -= np.einsum("kmq,kmq->q", block.Z, np.matmul(np.matmul(Acov, A.transpose(0, 2, 1)), block.Z))
        return own[:-1], np.diag(self.C) - np.einsum("ij,ij->i", self.C @ cov, self.C), inside

    def log_det(self) -> float:
        """Return log |I + C K|."""
        return self.log_inside + float(np.linalg.slogdet(self.S)[1] + np.log(self.u).sum())
