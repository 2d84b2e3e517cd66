"""Vectors, and rows of features: dense and CSR behind one accessor.

A kernel asks a row for ``dot`` and ``add`` and never learns how it is stored, so every loop over examples in
coterie is written once. This is the only module with reordered arithmetic.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from .compile import inline, inline_sum, kernel, or_numpy
from .rules import remake, rule


@or_numpy(lambda a, b: a @ b[: a.shape[0]])
@inline_sum
def dot(a, b):
    """``sum_k a_k b_k``."""
    total = 0.0
    for k in range(a.shape[0]):
        total += a[k] * b[k]
    return total


@or_numpy(lambda scale, x, out: np.add(out, scale * x[: out.shape[0]], out=out))
@inline_sum
def axpy(scale, x, out):
    """``out += scale * x``."""
    for k in range(out.shape[0]):
        out[k] += scale * x[k]


@inline
def total(x):
    """``sum_k x_k``, from the first to the last: zeros at the end change nothing, not even the last bit."""
    result = 0.0
    for k in range(x.shape[0]):
        result += x[k]
    return result


@or_numpy(lambda index, values, vector: values[: index.shape[0]] @ vector[index])
@inline_sum
def sparse_dot(index, values, vector):
    """``sum_k values_k vector[index_k]``."""
    result = 0.0
    for k in range(index.shape[0]):
        result += values[k] * vector[index[k]]
    return result


@or_numpy(lambda scale, index, values, out: np.add.at(out, index, scale * values[: index.shape[0]]))
@inline_sum
def sparse_axpy(scale, index, values, out):
    """``out[index_k] += scale * values_k``."""
    for k in range(index.shape[0]):
        out[index[k]] += scale * values[k]


@or_numpy(lambda value, out: out.fill(value))
@inline
def fill(value, out):
    """``out[:] = value``, as a loop: slice assignment was most of the overhead in kernels."""
    for k in range(out.shape[0]):
        out[k] = value


@or_numpy(lambda x, out: np.copyto(out[: x.shape[0]], x))
@inline
def copy_to(x, out):
    """``out[:len(x)] = x``."""
    for k in range(x.shape[0]):
        out[k] = x[k]


@inline
def write_pairs(x, out):
    """The nonzero entries of a vector, as pairs of index and value. Returns how many numbers that takes."""
    end = 0
    for k in range(x.shape[0]):
        if x[k] != 0.0:
            out[end], out[end + 1] = k, x[k]
            end += 2
    return end


@inline
def are_pairs(text, size):
    """Could :func:`write_pairs` have written this of a vector of so many entries?"""
    good = text.shape[0] % 2 == 0
    for k in range(0, text.shape[0], 2):
        good = good and 0 <= text[k] < size
    return good


@inline
def read_pairs(text, out):
    """The vector that pairs of index and value stand for."""
    fill(0.0, out)
    for k in range(0, text.shape[0], 2):
        out[int(text[k])] = text[k + 1]


@rule
class DenseRows(NamedTuple):
    """Rows of a C-contiguous matrix."""

    values: np.ndarray  # (rows, p)

    def dot(self, row, vector):
        """``x_row . vector``."""
        return dot(self.values[row], vector)

    def add(self, row, scale, out):
        """``out += scale * x_row``."""
        axpy(scale, self.values[row], out)

    def entries(self, row):
        """How many coordinates of the row are stored."""
        return self.values.shape[1]

    def entry(self, row, k):
        """The k-th stored coordinate and its value."""
        return k, self.values[row, k]

    def at(self, row, column):
        """One coordinate of the row."""
        return self.values[row, column]

    def take(self, first, last):
        """A view of rows ``first`` to ``last - 1``."""
        return remake(self, (self.values[first:last],))


@rule
class SparseRows(NamedTuple):
    """Rows in CSR form. ``start`` points into ``column`` and ``values``, so that a view needs no copy."""

    start: np.ndarray  # (rows + 1,)
    column: np.ndarray  # (stored,)
    values: np.ndarray  # (stored,)

    def dot(self, row, vector):
        """``x_row . vector``."""
        a, b = self.start[row], self.start[row + 1]
        return sparse_dot(self.column[a:b], self.values[a:b], vector)

    def add(self, row, scale, out):
        """``out += scale * x_row``."""
        a, b = self.start[row], self.start[row + 1]
        sparse_axpy(scale, self.column[a:b], self.values[a:b], out)

    def entries(self, row):
        """How many coordinates of the row are stored."""
        return self.start[row + 1] - self.start[row]

    def entry(self, row, k):
        """The k-th stored coordinate and its value."""
        position = self.start[row] + k
        return self.column[position], self.values[position]

    def at(self, row, column):
        """One coordinate of the row."""
        value = 0.0
        for position in range(self.start[row], self.start[row + 1]):
            if self.column[position] == column:
                value += self.values[position]
        return value

    def take(self, first, last):
        """A view of rows ``first`` to ``last - 1``."""
        return remake(self, (self.start[first : last + 1], self.column, self.values))


def rows_of(matrix):
    """Rows of a dense or sparse matrix, ready for kernels."""
    if isinstance(matrix, np.ndarray):
        return DenseRows(frozen(matrix, np.float64))
    from scipy import sparse  # not above: a peer with dense rows needs none of it

    if sparse.issparse(matrix):
        csr = sparse.csr_array(matrix)
        return SparseRows(frozen(csr.indptr, np.int64), frozen(csr.indices, np.int64), frozen(csr.data, np.float64))
    return DenseRows(frozen(matrix, np.float64))


def frozen(array, dtype=None):
    """A read-only view of an array, copied only where it must be converted.

    What describes a problem is read-only everywhere: a handler that writes to it does not compile, and kernels meet
    one array type, not two.
    """
    view = np.ascontiguousarray(array, dtype=dtype).view()
    view.flags.writeable = False
    return view


@kernel
def margins_kernel(rows, start, theta, out):
    """``out_r = x_r . theta_i`` for every row r of every agent i."""
    for i in range(start.shape[0] - 1):
        for r in range(start[i], start[i + 1]):
            out[r] = rows.dot(r, theta[i])


@kernel
def scatter_kernel(rows, start, scale, out):
    """``out_i += sum_r scale_r x_r`` over the rows r of agent i."""
    for i in range(start.shape[0] - 1):
        for r in range(start[i], start[i + 1]):
            rows.add(r, scale[r], out[i])


@kernel
def gram_kernel(rows, start, scale, into, out):
    """``out_g += sum_r scale_r x_r x_r'`` over the rows r of all agents i with ``into_i == g``."""
    for i in range(start.shape[0] - 1):
        block = out[into[i]]
        for r in range(start[i], start[i + 1]):
            if scale[r] != 0.0:
                for k in range(rows.entries(r)):
                    column, value = rows.entry(r, k)
                    rows.add(r, scale[r] * value, block[column])


@kernel
def row_norms_kernel(rows, out):
    """``out_r = |x_r|``."""
    for r in range(out.shape[0]):
        square = 0.0
        for k in range(rows.entries(r)):
            _, value = rows.entry(r, k)
            square += value * value
        out[r] = math.sqrt(square)


@kernel
def diagonal_kernel(rows, start, scale, out):
    """``out_i += sum_r scale_r x_r * x_r`` over the rows r of agent i."""
    for i in range(start.shape[0] - 1):
        for r in range(start[i], start[i + 1]):
            for k in range(rows.entries(r)):
                column, value = rows.entry(r, k)
                out[i, column] += scale[r] * value * value


#: Work arrays of batched dense algebra stay below this many numbers.
BATCH = 1 << 22

#: Many small factorisations: the threads of a BLAS would spend their time waiting for each other, 40 times the work.
one_thread = threadpool_limits.wrap(limits=1, user_api="blas")


@one_thread
def gram_norms(rows, start, p):
    """Largest eigenvalue of ``X_i' X_i`` for every agent i, to machine precision, from rows of p features."""
    sizes = np.diff(start)
    norms = np.zeros(sizes.shape[0])
    if isinstance(rows, SparseRows):
        if not np.any(np.diff(rows.start) > 1):  # at most one entry a row: the Gram matrices are diagonal
            diagonal = np.zeros((sizes.shape[0], p))
            diagonal_kernel(rows, start, np.ones(start[-1]), diagonal)
            return diagonal.max(axis=1)
        from scipy import sparse

        X = sparse.csr_array((rows.values, rows.column, rows.start), shape=(start[-1], p))
        for i in np.flatnonzero(sizes):
            norms[i] = _sparse_gram_norm(X[start[i] : start[i + 1]])
        return norms
    for m in np.unique(sizes[sizes > 0]):  # agents of one size form one batch for LAPACK
        agents = np.flatnonzero(sizes == m)
        at_once = max(1, BATCH // (m * p))
        for chunk in np.split(agents, range(at_once, agents.shape[0], at_once)):
            X = rows.values[start[chunk][:, None] + np.arange(m)]
            with np.errstate(over="ignore", invalid="ignore"):
                gram = X @ X.transpose(0, 2, 1) if m < p else X.transpose(0, 2, 1) @ X
            tame = np.isfinite(gram).all(axis=(1, 2))
            norms[chunk] = np.inf  # of rows so long that their squares are not numbers
            norms[chunk[tame]] = np.linalg.eigvalsh(gram[tame])[:, -1]
    return np.maximum(norms, 0.0)


def _sparse_gram_norm(X):
    small = X @ X.T if X.shape[0] < X.shape[1] else X.T @ X
    if small.shape[0] <= 500:
        return float(np.linalg.eigvalsh(small.toarray())[-1])
    from scipy.sparse import linalg

    return float(linalg.eigsh(small, k=1, tol=0.0, v0=np.ones(small.shape[0]), return_eigenvectors=False)[0])
