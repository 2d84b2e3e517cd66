"""Operations on vectors and on rows of features, dense or CSR.

Kernels use ``dot`` and ``add`` of a row and do not depend on its storage, so every loop over examples is written once.
This is the only module whose sums may be reordered.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._threads import in_threads, one_thread
from .batches import MAX_BATCH_ENTRIES
from .compile import fetch, inline, inline_sum, kernel, noinline, or_numpy
from .rules import NamedTuple, remake, rule


@or_numpy(lambda a, b: a @ b[: a.shape[0]])
@inline_sum
def dot(a, b):
    """``sum_k a_k b_k``."""
    total = 0.0
    for k in range(a.shape[0]):
        total += a[k] * b[k]
    return total


@or_numpy(lambda scale, x, out: np.add(out, np.multiply(scale, x[: out.shape[0]], dtype=np.float64), out=out))
@inline_sum
def axpy(scale, x, out):
    """``out += scale * x``."""
    for k in range(out.shape[0]):
        out[k] += scale * x[k]


@or_numpy(lambda a, b, c, d, x: (a @ x, b @ x, c @ x, d @ x))
@inline_sum
def dot_four(a, b, c, d, x):
    """Return four products with one vector: the sums are independent, and x is read once."""
    first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
    for k in range(x.shape[0]):
        first += a[k] * x[k]
        second += b[k] * x[k]
        third += c[k] * x[k]
        fourth += d[k] * x[k]
    return first, second, third, fourth


@inline_sum
def axpy_four(s, a, t, b, u, c, v, d, out):
    """``out += s a + t b + u c + v d``: reads and writes out once for four vectors."""
    for k in range(out.shape[0]):
        out[k] += (s * a[k] + t * b[k]) + (u * c[k] + v * d[k])


def _add_all(factor, scale, vectors, count, out):
    """NumPy version of :func:`add_all`, for the process of one agent."""
    for k in range(count):
        axpy(factor * scale[k], vectors[k], out)


@or_numpy(_add_all)
@inline
def add_all(factor, scale, vectors, count, out):
    """``out += factor sum_k scale_k vectors_k`` over the first ``count`` of an indexable collection of vectors."""
    four = count - count % 4
    for k in range(0, four, 4):
        s, t, u, v = factor * scale[k], factor * scale[k + 1], factor * scale[k + 2], factor * scale[k + 3]
        axpy_four(s, vectors[k], t, vectors[k + 1], u, vectors[k + 2], v, vectors[k + 3], out)
    for k in range(four, count):
        axpy(factor * scale[k], vectors[k], out)


@or_numpy(lambda matrix, vector, out: np.dot(matrix.reshape(out.shape[0], vector.shape[0]), vector, out=out))
@inline
def times(matrix, vector, out):
    """``out = matrix vector``, for a matrix stored as one vector, row by row."""
    q, four = vector.shape[0], out.shape[0] - out.shape[0] % 4
    for k in range(0, four, 4):
        a, b, c, d = k * q, (k + 1) * q, (k + 2) * q, (k + 3) * q
        out[k], out[k + 1], out[k + 2], out[k + 3] = dot_four(
            matrix[a : a + q], matrix[b : b + q], matrix[c : c + q], matrix[d : d + q], vector
        )
    for k in range(four, out.shape[0]):
        out[k] = dot(matrix[k * q : (k + 1) * q], vector)


@inline
def total(x):
    """``sum_k x_k`` as four interleaved partial sums: appended zeros do not change the result in any bit."""
    first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
    four = x.shape[0] - x.shape[0] % 4
    for k in range(0, four, 4):
        first += x[k]
        second += x[k + 1]
        third += x[k + 2]
        fourth += x[k + 3]
    if four < x.shape[0]:
        first += x[four]
    if four + 1 < x.shape[0]:
        second += x[four + 1]
    if four + 2 < x.shape[0]:
        third += x[four + 2]
    return (first + second) + (third + fourth)


@or_numpy(lambda index, values, vector: values[: index.shape[0]] @ vector[index])
@inline_sum
def sparse_dot(index, values, vector):
    """``sum_k values_k vector[index_k]``."""
    result = 0.0
    for k in range(index.shape[0]):
        result += values[k] * vector[index[k]]
    return result


@or_numpy(
    lambda scale, index, values, out: np.add.at(
        out, index, np.multiply(scale, values[: index.shape[0]], dtype=np.float64)
    )
)
@inline_sum
def sparse_axpy(scale, index, values, out):
    """``out[index_k] += scale * values_k``."""
    for k in range(index.shape[0]):
        out[index[k]] += scale * values[k]


@or_numpy(lambda value, out: out.fill(value))
@inline_sum  # compiled even if the loop around it is plain Python: models may be long
def fill(value, out):
    """``out[:] = value``, as a loop: slice assignment was most of the overhead in kernels."""
    for k in range(out.shape[0]):
        out[k] = value


@or_numpy(lambda x, out: np.copyto(out[: x.shape[0]], x))
@inline_sum
def copy_to(x, out):
    """``out[:len(x)] = x``."""
    for k in range(x.shape[0]):
        out[k] = x[k]


@or_numpy(lambda x, index, out: np.copyto(out[: index.shape[0]], x[index]))
@inline_sum
def gather(x, index, out):
    """``out_k = x[index_k]``."""
    for k in range(index.shape[0]):
        out[k] = x[index[k]]


@or_numpy(lambda x, index, out: out.__setitem__(index, x[: index.shape[0]]))
@inline_sum
def scatter(x, index, out):
    """``out[index_k] = x_k``."""
    for k in range(index.shape[0]):
        out[index[k]] = x[k]


@inline
def write_pairs(x, out):
    """Write the nonzero entries of a vector as pairs of index and value. Return how many numbers were written."""
    end = 0
    for k in range(x.shape[0]):
        if x[k] != 0.0:
            out[end], out[end + 1] = k, x[k]
            end += 2
    return end


@inline
def are_pairs(text, size):
    """Return whether :func:`write_pairs` could have written this text for a vector of `size` entries."""
    good = text.shape[0] % 2 == 0
    for k in range(0, text.shape[0], 2):
        good = good and 0 <= text[k] < size
    return good


@inline
def read_pairs(text, out):
    """Restore the vector from its pairs of index and value."""
    fill(0.0, out)
    for k in range(0, text.shape[0], 2):
        out[int(text[k])] = text[k + 1]


@noinline
def fetch_part(values, part, parts):
    """Prefetch one of `parts` equal parts of an array into the cache."""
    m = values.shape[0]
    fetch(values, m * part // parts, m * (part + 1) // parts)


@rule
class DenseRows(NamedTuple):
    """Rows of a C-contiguous matrix of float64 or float32; all arithmetic is in float64."""

    values: np.ndarray  # (rows, p)

    def dot(self, row, vector):
        """``x_row . vector``."""
        return dot(self.values[row], vector)

    def add(self, row, scale, out):
        """``out += scale * x_row``."""
        axpy(scale, self.values[row], out)

    def dots(self, first, last, vector, out):
        """``out_r = x_{first + r} . vector``, up to row ``last - 1``."""
        x = self.values
        four = last - (last - first) % 4
        for r in range(first, four, 4):
            k = r - first
            out[k], out[k + 1], out[k + 2], out[k + 3] = dot_four(x[r], x[r + 1], x[r + 2], x[r + 3], vector)
        for r in range(four, last):
            out[r - first] = dot(x[r], vector)

    def add_all(self, first, last, factor, scale, out):
        """``out += factor sum_r scale_r x_{first + r}``, up to row ``last - 1``."""
        add_all(factor, scale, self.values[first:last], last - first, out)

    def entries(self, row):
        """Return the number of stored coordinates of the row."""
        return self.values.shape[1]

    def entry(self, row, k):
        """Return the index and the value of the k-th stored coordinate."""
        return k, np.float64(self.values[row, k])

    def at(self, row, column):
        """Return one coordinate of the row."""
        return np.float64(self.values[row, column])

    def take(self, first, last):
        """Return a view of rows ``first`` to ``last - 1``."""
        return remake(self, (self.values[first:last],))

    def fetch(self, part, parts):
        """Prefetch one of `parts` equal parts of the rows into the cache."""
        fetch_part(self.values, part, parts)


@rule
class SparseRows(NamedTuple):
    """Rows in CSR form. ``start`` holds positions in ``column`` and ``values``, so that a view needs no copy."""

    start: np.ndarray  # (rows + 1,)
    column: np.ndarray  # (stored,) int32
    values: np.ndarray  # (stored,) float64 or float32

    def dot(self, row, vector):
        """``x_row . vector``."""
        a, b = self.start[row], self.start[row + 1]
        return sparse_dot(self.column[a:b], self.values[a:b], vector)

    def add(self, row, scale, out):
        """``out += scale * x_row``."""
        a, b = self.start[row], self.start[row + 1]
        sparse_axpy(scale, self.column[a:b], self.values[a:b], out)

    def dots(self, first, last, vector, out):
        """``out_r = x_{first + r} . vector``, up to row ``last - 1``."""
        for r in range(first, last):
            out[r - first] = self.dot(r, vector)

    def add_all(self, first, last, factor, scale, out):
        """``out += factor sum_r scale_r x_{first + r}``, up to row ``last - 1``."""
        for r in range(first, last):
            self.add(r, factor * scale[r - first], out)

    def entries(self, row):
        """Return the number of stored coordinates of the row."""
        return self.start[row + 1] - self.start[row]

    def entry(self, row, k):
        """Return the index and the value of the k-th stored coordinate."""
        position = self.start[row] + k
        return np.int64(self.column[position]), np.float64(self.values[position])

    def at(self, row, column):
        """Return one coordinate of the row."""
        value = 0.0
        for position in range(self.start[row], self.start[row + 1]):
            if self.column[position] == column:
                value += np.float64(self.values[position])
        return value

    def take(self, first, last):
        """Return a view of rows ``first`` to ``last - 1``."""
        return remake(self, (self.start[first : last + 1], self.column, self.values))

    def fetch(self, part, parts):
        """Prefetch one of `parts` equal parts of the rows into the cache."""
        m = self.start.shape[0] - 1
        a, b = self.start[m * part // parts], self.start[m * (part + 1) // parts]
        fetch((self.column, self.values), a, b)


@rule
class PickedRows(NamedTuple):
    """A selection of rows, in any order and with repetition: a minibatch, without a copy."""

    rows: Any
    pick: np.ndarray  # (rows,) int64

    def dot(self, row, vector):
        """``x_row . vector``."""
        return self.rows.dot(self.pick[row], vector)

    def add(self, row, scale, out):
        """``out += scale * x_row``."""
        self.rows.add(self.pick[row], scale, out)

    dots, add_all = SparseRows.dots, SparseRows.add_all

    def entries(self, row):
        """Return the number of stored coordinates of the row."""
        return self.rows.entries(self.pick[row])

    def entry(self, row, k):
        """Return the index and the value of the k-th stored coordinate."""
        return self.rows.entry(self.pick[row], k)

    def at(self, row, column):
        """Return one coordinate of the row."""
        return self.rows.at(self.pick[row], column)


def matrix_of(rows, p):
    """Return rows of p features as a matrix, for models in Python."""
    if isinstance(rows, PickedRows):
        return matrix_of(rows.rows, p)[rows.pick]
    if isinstance(rows, DenseRows):
        return rows.values
    from scipy import sparse

    a, b = rows.start[0], rows.start[-1]
    shape = (rows.start.shape[0] - 1, p)
    return sparse.csr_array((rows.values[a:b], rows.column[a:b], rows.start - a), shape).toarray()


def rows_of(matrix):
    """Return the rows of a dense or sparse matrix in the form that kernels read; float32 is kept, to save memory."""
    if isinstance(matrix, np.ndarray):
        return DenseRows(frozen(matrix, stored_dtype(matrix)))
    from scipy import sparse  # imported here: a peer with dense rows does not need SciPy's sparse module

    if sparse.issparse(matrix):
        csr = sparse.csr_array(matrix)
        # Column indices fit in int32 and row starts may not: fix both types, whichever SciPy has chosen.
        return SparseRows(
            frozen(csr.indptr, np.int64), frozen(csr.indices, np.int32), frozen(csr.data, stored_dtype(csr))
        )
    return DenseRows(frozen(matrix, np.float64))


def stored_dtype(matrix):
    """Return the type in which the numbers of a matrix are stored: float32 is kept, all others become float64."""
    return np.float32 if matrix.dtype == np.float32 else np.float64


def frozen(array, dtype=None):
    """Return a read-only view of an array, copied only if its type or layout must change.

    Arrays that describe a problem are read-only everywhere: a handler that writes to one does not compile, and kernels
    are compiled for one array type, not two.
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


#: Largest number of entries of a work array in batched dense algebra.
MAX_WORK_ENTRIES = 1 << 22


@one_thread()
def gram_norms(rows, start, p, n_jobs=None):
    """Return the largest eigenvalue of ``X_i' X_i`` for every agent i, to machine precision, for rows of p features."""
    sizes = np.diff(start)
    norms = np.zeros(sizes.shape[0])
    if isinstance(rows, SparseRows):
        if not np.any(np.diff(rows.start) > 1):  # at most one entry per row: the Gram matrices are diagonal
            diagonal = np.zeros((sizes.shape[0], p))
            diagonal_kernel(rows, start, np.ones(start[-1]), diagonal)
            return diagonal.max(axis=1)
        from scipy import sparse

        X = sparse.csr_array((rows.values.astype(np.float64, copy=False), rows.column, rows.start), (start[-1], p))
        for i in np.flatnonzero(sizes):
            norms[i] = _sparse_gram_norm(X[start[i] : start[i + 1]])
        return norms

    def work(part):
        agents, m = part
        X = rows.values[start[agents][:, None] + np.arange(m)].astype(np.float64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            gram = X @ X.transpose(0, 2, 1) if m < p else X.transpose(0, 2, 1) @ X
        tame = np.isfinite(gram).all(axis=(1, 2))
        norms[agents] = np.inf  # for rows so long that their squares overflow
        norms[agents[tame]] = np.linalg.eigvalsh(gram[tame])[:, -1]

    parts = []
    for m in np.unique(sizes[sizes > 0]):  # agents with equally many rows form batches for LAPACK
        agents, at_once = np.flatnonzero(sizes == m), max(1, MAX_BATCH_ENTRIES // (m * p))
        parts += [(agents[k : k + at_once], m) for k in range(0, agents.shape[0], at_once)]
    in_threads(work, parts, n_jobs if start[-1] * p > 4 * MAX_BATCH_ENTRIES else 1)
    return np.maximum(norms, 0.0)


def _sparse_gram_norm(X):
    small = X @ X.T if X.shape[0] < X.shape[1] else X.T @ X
    if small.shape[0] <= 500:
        return float(np.linalg.eigvalsh(small.toarray())[-1])
    from scipy.sparse import linalg

    return float(linalg.eigsh(small, k=1, tol=0.0, v0=np.ones(small.shape[0]), return_eigenvectors=False)[0])
