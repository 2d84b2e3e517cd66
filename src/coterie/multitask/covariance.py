"""The covariance matrix Sigma of the tasks, positive semidefinite, of trace one.

Weights W and the vectors B of the dual are (m, d) here, one row for each task, and ``W = Sigma B / lam``. Sigma may be
singular, and is whenever d < m: its inverse is never formed (erratum 29).

A learned covariance is stored as ``Q diag(s) Q' + c I``, with r columns in Q, at most 2 d (:class:`LowRank`): products
take O(m r d), and the m x m matrix is only made on demand. A covariance given as a matrix is stored as a matrix
(:class:`Dense`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..errors import ParameterError
from .spectrum import largest_eigenvalue, spectral_norm

#: Relative tolerance of the checks of a given covariance.
ROUNDING = 1e-8

#: Bounds on rho, the factor of the curvature that makes simultaneous steps of all tasks safe.
BOUNDS = ("eigenvalue", "lemma10")

#: Largest number of tasks for which the matrix, of 2 GB, is made on demand.
MAX_DENSE_TASKS = 16_000
#: Number of numbers in a block of rows of a matrix that is processed in blocks.
NUMBERS_PER_BLOCK = 4_000_000
#: Eigenvalues below this number times the largest, times their count, are rounding errors.
RANK_TOLERANCE = 1e-14


class Factors(NamedTuple):
    """A covariance in factors: ``Sigma = Q diag(s) Q' + c I``.

    Attributes
    ----------
    directions : (m, r) ndarray
        Q: orthonormal columns, with one row for each task.
    sizes : (r,) ndarray
        s: the eigenvalues of these directions, minus c.
    rest : float
        c: the eigenvalue in all other directions.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> task = ct.datasets.related_tasks(n=6, p=2, rows=60, seed=0)
    >>> Q, s, c = ct.relationship(task.train, "logistic", lam=0.01).factors
    >>> Q.shape, s.shape, c
    ((6, 2), (2,), 0.0)
    """

    directions: np.ndarray
    sizes: np.ndarray
    rest: float


class Dense:
    """A covariance stored as a matrix."""

    def __init__(self, matrix: np.ndarray):
        self.matrix = matrix

    def __len__(self) -> int:
        return len(self.matrix)

    def __matmul__(self, vectors: np.ndarray) -> np.ndarray:
        return self.matrix @ vectors

    def diagonal(self) -> np.ndarray:
        """Return the variances of the tasks, (m,)."""
        return np.diagonal(self.matrix)

    def rows(self, tasks: Any) -> np.ndarray:
        """Return rows of the matrix, (k, m)."""
        return self.matrix[tasks]

    def take(self, tasks: Any) -> Dense:
        """Return the covariance of some tasks, in the order of `tasks`."""
        return Dense(self.matrix[np.ix_(tasks, tasks)])

    def scaled(self, factor: float) -> Dense:
        """Return the covariance times a number."""
        return Dense(factor * self.matrix)

    def dense(self) -> np.ndarray:
        """The matrix itself, (m, m)."""
        return self.matrix

    @property
    def factors(self) -> Factors:
        """The eigenvectors whose eigenvalues are more than rounding."""
        sizes, directions = np.linalg.eigh(self.matrix)
        live = np.flatnonzero(sizes > RANK_TOLERANCE * len(sizes) * sizes[-1])[::-1]
        return Factors(directions[:, live], sizes[live], 0.0)

    def summary(self, vectors: np.ndarray) -> np.ndarray:
        """Return the summary of V from which rows of ``Sigma V`` are computed: the whole product, (m, d)."""
        return self.matrix @ vectors

    def update(self, summary: np.ndarray, tasks: np.ndarray, change: np.ndarray) -> None:
        """Update a summary in place after a change of some tasks' vectors, in O(m k d)."""
        summary += self.matrix[:, tasks] @ change

    def product(self, summary: np.ndarray, vectors: np.ndarray, tasks: np.ndarray) -> np.ndarray:
        """Return rows of ``Sigma V`` for some tasks, (k, d), from the summary of V."""
        return summary[tasks]

    def correlation(self, tasks: Any = None) -> np.ndarray:
        """Return the correlations of some tasks, (k, k); by default of all tasks."""
        return correlation((self if tasks is None else self.take(tasks)).dense())

    def largest_correlation(self) -> float:
        """Return the largest eigenvalue of the correlation matrix."""
        return float(np.linalg.eigvalsh(correlation(self.matrix))[-1])


class LowRank:
    """``Q diag(s) Q' + c I``. Columns of Q are orthonormal, except for the covariance of a subset of the tasks."""

    def __init__(self, directions: np.ndarray, sizes: np.ndarray, rest: float):
        self.directions, self.sizes, self.rest = directions, sizes, float(rest)

    def __len__(self) -> int:
        return len(self.directions)

    def __matmul__(self, vectors: np.ndarray) -> np.ndarray:
        return self.directions @ self.summary(vectors) + self.rest * vectors

    def diagonal(self) -> np.ndarray:
        """Return the variances of the tasks, (m,)."""
        return np.maximum(0.0, np.square(self.directions) @ self.sizes + self.rest)

    def rows(self, tasks: Any) -> np.ndarray:
        """Return rows of the matrix, (k, m)."""
        numbers = np.arange(len(self))[tasks]
        out = (self.directions[numbers] * self.sizes) @ self.directions.T
        out[np.arange(len(numbers)), numbers] += self.rest
        return out

    def take(self, tasks: Any) -> LowRank:
        """Return the covariance of some tasks, in the order of `tasks`."""
        return LowRank(self.directions[tasks], self.sizes, self.rest)

    def scaled(self, factor: float) -> LowRank:
        """Return the covariance times a number."""
        return LowRank(self.directions, factor * self.sizes, factor * self.rest)

    def dense(self) -> np.ndarray:
        """Return the matrix, (m, m); refuse more than :data:`MAX_DENSE_TASKS` tasks."""
        m = len(self)
        if m > MAX_DENSE_TASKS:
            raise ParameterError(
                f"the covariance of {m:,} tasks as a matrix would take {8e-9 * m * m:.0f} GB, and is made for at most "
                f"{MAX_DENSE_TASKS:,}: use its factors, Q diag(s) Q' + c I, or ask for the correlation of some tasks"
            )
        matrix = self.rows(slice(None))
        return 0.5 * (matrix + matrix.T)

    @property
    def factors(self) -> Factors:
        """Q, s and c, with orthonormal columns of Q."""
        return Factors(*_orthonormal(self.directions, self.sizes), self.rest)

    def summary(self, vectors: np.ndarray) -> np.ndarray:
        """Return the summary of V from which rows of ``Sigma V`` are computed: ``diag(s) Q' V``, (r, d)."""
        return self.sizes[:, None] * (self.directions.T @ vectors)

    def update(self, summary: np.ndarray, tasks: np.ndarray, change: np.ndarray) -> None:
        """Update a summary in place after a change of some tasks' vectors, in O(k r d)."""
        summary += self.sizes[:, None] * (self.directions[tasks].T @ change)

    def product(self, summary: np.ndarray, vectors: np.ndarray, tasks: np.ndarray) -> np.ndarray:
        """Return rows of ``Sigma V`` for some tasks, (k, d), from the summary of V."""
        return self.directions[tasks] @ summary + self.rest * vectors[tasks]

    def correlation(self, tasks: Any = None) -> np.ndarray:
        """Return the correlations of some tasks, (k, k); by default of all tasks."""
        return correlation((self if tasks is None else self.take(tasks)).dense())

    def largest_correlation(self) -> float:
        """Return a tight upper bound of the largest eigenvalue of the correlation matrix, in O(m r^2)."""
        unit = _inverse_deviations(self.diagonal())
        factor = (np.sqrt(np.abs(self.sizes)) * self.directions) * unit[:, None]
        some = self.sizes != 0.0
        own = np.where(unit > 0, self.rest * unit**2, 1.0)  # a task of variance zero is only correlated with itself
        return largest_eigenvalue(own, factor[:, some], np.sign(self.sizes[some]))


#: A covariance of m tasks: what a server, a result and an estimator need of it.
Covariance = Dense | LowRank


def _orthonormal(Q: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return factors of ``Q diag(s) Q'`` with orthonormal columns."""
    m, r = Q.shape
    if r <= m and np.abs(Q.T @ Q - np.eye(r)).max(initial=0.0) <= 1e-13:
        return Q, s
    Q, R = np.linalg.qr(Q)
    s, turn = np.linalg.eigh((R * s) @ R.T)
    return (Q @ turn)[:, ::-1], s[::-1]


def low_rank(directions: np.ndarray, values: np.ndarray, rest: float = 0.0) -> LowRank:
    """Return the covariance with eigenvalues `values` in orthonormal directions, and `rest` in all other directions."""
    rest = rest if directions.shape[1] < directions.shape[0] else 0.0
    return LowRank(directions, values - rest, rest)


def unrelated(m: int) -> LowRank:
    """Return the covariance of unrelated tasks, ``I / m``: the start of DMTRL (Algorithm 1, line 2)."""
    return low_rank(np.zeros((m, 0)), np.zeros(0), 1.0 / m)


def as_covariance(covariance: Covariance | np.ndarray) -> Covariance:
    """Return a covariance or a matrix as a Covariance."""
    return covariance if isinstance(covariance, Covariance) else Dense(np.asarray(covariance))


def checked_covariance(covariance: Any, members: Sequence[Any], *, unit: bool = True) -> Covariance:
    """Check that a given covariance is symmetric, positive semidefinite and, if ``unit``, of trace one.

    The covariance is a matrix, :class:`Factors`, or a tuple (Q, s, c) whose columns of Q need not be orthonormal.
    """
    if isinstance(covariance, Covariance):
        checked = covariance
        if len(checked) != len(members):
            raise ParameterError(f"covariance is of {len(checked)} tasks; there are {len(members)}")
    elif isinstance(covariance, tuple) and len(covariance) == 3 and _is_number(covariance[2]):
        checked = _checked_factors(*covariance, members)
    else:
        checked = _checked_matrix(covariance, members)
    trace = float(checked.diagonal().sum())
    if unit and abs(trace - 1.0) > ROUNDING * len(members):
        raise ParameterError(f"covariance has trace {_short(trace)}: it must be 1; divide it by its trace")
    return checked


def _is_number(value: Any) -> bool:
    """Whether the value is c of three factors, rather than the third row of a matrix."""
    return not isinstance(value, (list, tuple)) and np.ndim(value) == 0


def _checked_matrix(covariance: ArrayLike, members: Sequence[Any]) -> Dense:
    m = len(members)
    try:
        matrix = np.array(covariance, dtype=np.float64)
    except (TypeError, ValueError):
        found = type(covariance).__name__
        raise ParameterError(f"covariance must be a matrix of numbers, or factors (Q, s, c); found {found}") from None
    if matrix.shape != (m, m):
        raise ParameterError(f"covariance must be {m} x {m}, a row for each task; found shape {matrix.shape}")
    if not np.all(np.isfinite(matrix)):
        i, j = np.argwhere(~np.isfinite(matrix))[0]
        raise ParameterError(f"covariance of tasks {members[i]!r} and {members[j]!r} is {matrix[i, j]}: must be finite")
    skew = np.abs(matrix - matrix.T)
    if skew.max() > ROUNDING * np.abs(matrix).max():
        i, j = divmod(int(np.argmax(skew)), m)
        raise ParameterError(
            f"covariance is not symmetric: {matrix[i, j]:.6g} for tasks {members[i]!r} and {members[j]!r}, "
            f"and {matrix[j, i]:.6g} in the reverse order"
        )
    matrix = 0.5 * (matrix + matrix.T)
    sizes, directions = np.linalg.eigh(matrix)
    _refuse_negative(sizes)
    if sizes[0] < 0.0:  # rounding; the bound on rho and the penalty need a semidefinite matrix
        matrix = (directions * np.maximum(sizes, 0.0)) @ directions.T
    return Dense(matrix)


def _checked_factors(directions: Any, sizes: Any, rest: Any, members: Sequence[Any]) -> LowRank:
    m = len(members)
    try:
        Q, s, c = np.array(directions, np.float64), np.array(sizes, np.float64), float(rest)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"factors (Q, s, c) of the covariance must be numbers: {error}") from None
    if Q.ndim != 2 or len(Q) != m:
        raise ParameterError(f"Q of the covariance's factors must have {m} rows, one for each task; found {Q.shape}")
    if s.shape != Q.shape[1:]:
        raise ParameterError(
            f"s of the covariance's factors must have a number for each of the {Q.shape[1]} columns "
            f"of Q; found shape {s.shape}"
        )
    if not np.all(np.isfinite(Q)):
        i, k = np.argwhere(~np.isfinite(Q))[0]
        raise ParameterError(
            f"Q of the covariance's factors has {Q[i, k]} for task {members[i]!r}, column {k}: must be finite"
        )
    if not (np.all(np.isfinite(s)) and np.isfinite(c)):
        raise ParameterError(f"s and c of the covariance's factors must be finite; found {s} and {c}")
    Q, s = _orthonormal(Q, s)
    values = s + c
    _refuse_negative(np.sort(values if Q.shape[1] == m else np.append(values, c)))
    return low_rank(Q, np.maximum(values, 0.0), max(c, 0.0))


def _refuse_negative(sizes: np.ndarray) -> None:
    """Refuse eigenvalues, sorted, that are negative by more than rounding."""
    if sizes[0] < -ROUNDING * np.abs(sizes).max():
        raise ParameterError(f"covariance is not positive semidefinite: its smallest eigenvalue is {_short(sizes[0])}")


def _short(number: float) -> str:
    return f"{number:.6g}"


def _inverse_deviations(variances: np.ndarray) -> np.ndarray:
    """Return ``1 / sqrt(sigma_ii)``; 0 for a task of variance zero."""
    scale = np.sqrt(variances)
    return np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)


def correlation(covariance: np.ndarray) -> np.ndarray:
    """Return the correlation matrix of a covariance; a task of variance zero is uncorrelated with all others."""
    unit = _inverse_deviations(np.diagonal(covariance))
    matrix = np.clip(covariance * (unit[:, None] * unit), -1.0, 1.0)
    matrix[np.diag_indices_from(matrix)] = 1.0
    return matrix


def separability(covariance: Covariance | np.ndarray, bound: str = "eigenvalue") -> float:
    """Return rho for eta = 1: the factor of a task's curvature that makes simultaneous steps of all tasks safe.

    It is the largest eigenvalue of the correlation matrix (erratum 28), or, with "lemma10", the bound
    ``max_i sum_k |sigma_ik| / sigma_ii`` of DMTRL, Lemma 10, which is never smaller, and takes O(m^2) time.
    """
    covariance = as_covariance(covariance)
    if bound == "lemma10":
        return _lemma10(covariance)
    return covariance.largest_correlation()


def _lemma10(covariance: Covariance) -> float:
    """Return ``max_i sum_k |sigma_ik| / sigma_ii`` over tasks of positive variance, a block of rows at a time."""
    variances = covariance.diagonal()
    live = np.flatnonzero(variances > 0)
    part, variances, largest = covariance.take(live), variances[live], 1.0
    each = max(1, NUMBERS_PER_BLOCK // max(1, len(live)))
    for first in range(0, len(live), each):
        rows = np.arange(first, min(first + each, len(live)))
        largest = max(largest, float(np.max(np.abs(part.rows(rows)).sum(axis=1) / variances[rows])))
    return largest


def best_covariance(weights: np.ndarray, ridge: float = 0.0) -> LowRank:
    """Return the best covariance for given weights (the Omega-step): ``(W W' + ridge^2 I)^(1/2)`` over its trace.

    Without a ridge it minimises ``tr(W' Sigma^+ W)``, whose minimum is the square of the nuclear norm of W. A ridge
    keeps every direction positive, because a direction that W has lost would stay lost (erratum 27). The covariance is
    computed from the SVD of W, since square roots of the eigenvalues of ``W W'`` lose half of the digits (erratum 30).
    """
    m = weights.shape[0]
    directions, sizes, _ = np.linalg.svd(weights, full_matrices=False)
    values = np.hypot(sizes, ridge)
    total = values.sum() + (m - len(sizes)) * ridge  # all other directions have the ridge only
    return low_rank(directions, values / total, ridge / total) if total > 0 else unrelated(m)


def penalty(vectors: np.ndarray, covariance: Covariance | np.ndarray, lam: float) -> float:
    """Return ``lam/2 tr(W' Sigma^+ W) = tr(B' Sigma B) / (2 lam)`` for ``W = Sigma B / lam`` (erratum 29)."""
    return max(0.0, float(np.sum(vectors * (covariance @ vectors)))) / (2.0 * lam)


def penalty_of_weights(weights: np.ndarray, covariance: Covariance | np.ndarray, lam: float) -> float:
    """Return ``lam/2 tr(W' Sigma^+ W)``, W in the range of Sigma; if B is known, :func:`penalty` is more exact."""
    Q, s, rest = as_covariance(covariance).factors
    values = s + rest
    live = values > RANK_TOLERANCE * len(Q) * values.max(initial=rest)
    along = Q.T @ weights
    inside = float(np.sum(along[live] ** 2 / values[live][:, None]))
    beside = float(np.sum((weights - Q @ along) ** 2)) / rest if rest > 0 else 0.0
    return 0.5 * lam * (inside + beside)


def joint_penalty(sizes: np.ndarray, lam: float) -> float:
    """Return ``lam/2 |W|_*^2`` from the singular values of W: the penalty with the best covariance for W."""
    return 0.5 * lam * float(sizes.sum()) ** 2


def joint_conjugate(vectors: np.ndarray, lam: float) -> float:
    """Return ``|B|^2 / (2 lam)``, with the spectral norm: the conjugate of :func:`joint_penalty`.

    ``-sum_i 1/n_i sum_j l*(-a_ij) - joint_conjugate(B)`` is a lower bound of the joint optimum, for every covariance.
    """
    return spectral_norm(vectors) ** 2 / (2.0 * lam)
