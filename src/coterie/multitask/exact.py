"""The exact W-step of multi-task relationship learning: the reference that DMTRL is measured against.

Given the covariance Sigma of the tasks, it minimises over their weights, the rows of W (m x d),

    P(W) = sum_i 1/n_i sum_j l(w_i . x_ij, y_ij) + lam/2 tr(W' Sigma^+ W)

where the columns of W lie in the range of Sigma, which may be singular: its inverse is never formed (erratum 29). With
``Sigma = R R'`` and ``w_i = V' R_i``, the penalty is ``lam/2 |V|^2``, which gives a ridge problem in V (r x d) with the
features ``R_i kron x_ij``. The connected components of the nonzero covariances are independent problems.

Losses that are twice differentiable (squared, logistic) are minimised by Newton's method. The Hessian is computed from
the Gram matrices of the tasks, without the long features ``R_i kron x_ij``:

    H = lam I + sum_i (R_i R_i') kron (1/n_i sum_j l''_ij x_ij x_ij')

Piecewise quadratic losses (hinge, smoothed hinge, Huber) are minimised by the interior point method of
:mod:`coterie.problem.exact`, with the long features. If that would take minutes, Newton's method is used for those with
a gradient, too, and stops by the duality gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg, sparse
from scipy.sparse import csgraph

from .._checks import positive
from .._conjugate import conjugate_gradients
from .._threads import one_thread
from ..core.linear import MAX_WORK_ENTRIES, DenseRows, SparseRows, frozen, gram_kernel, margins_kernel, scatter_kernel
from ..core.losses import resolve_loss
from ..data import AgentData
from ..errors import ConvergenceError, ParameterError
from ..graphs import empty
from ..problem.exact import Objective, minimise
from ..problem.exact.newton import in_pieces, newton
from ..problem.exact.systems import InexactSolver, everything
from ..problem.problem import _lay_out
from .covariance import Covariance, LowRank, checked_covariance

__all__ = ["exact_weights"]

#: Largest number of unknowns, rank of Sigma times features, for which a Hessian is factorised.
MAX_UNKNOWNS = 6000
#: Largest number of multiplications for one linear system of the interior point method.
MAX_SYSTEM_WORK = 2_000_000_000
#: Eigenvalues of Sigma below this fraction of the largest are rounding errors.
RANK_TOLERANCE = 1e-14
#: Advice in messages about problems that are too large for the exact solver.
SDCA_ADVICE = 'use method="sdca", which ends with a duality gap for a certificate'


@one_thread()
def exact_weights(
    data: AgentData,
    loss: Any,
    lam: float,
    covariance: ArrayLike | tuple[ArrayLike, ArrayLike, float] | Covariance,
) -> np.ndarray:
    """Return the weights of all tasks that minimise P, to a relative accuracy of about 1e-12.

    Parameters
    ----------
    data : AgentData
        Every agent is a task. The weights of a task without rows are determined by its covariances.
    loss : loss or name
    lam : float
        Weight of the penalty, > 0.
    covariance : (m, m) array_like, or (Q, s, c)
        Sigma: symmetric and positive semidefinite, with one row for each task; or factors, ``Q diag(s) Q' + c I``.

    Returns
    -------
    (m, d) ndarray
        One row for each task; zero where ``sigma_ii = 0``.

    Raises
    ------
    ParameterError
        If ``covariance`` or ``lam`` is invalid, or if the rank of Sigma times the number of features is too large to
        factorise a Hessian.

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[1.0], [1.0]], [1.0, 3.0], agents=[0, 1])
    >>> exact_weights(data, "squared", 1.0, [[0.5, 0.0], [0.0, 0.5]]).ravel().round(4).tolist()  # each on its own
    [0.3333, 1.0]
    >>> exact_weights(data, "squared", 1.0, [[0.5, 0.5], [0.5, 0.5]]).ravel().round(4).tolist()  # one for both
    [1.0, 1.0]
    """
    loss, lam = resolve_loss(loss), positive("lam", lam)
    if not isinstance(data, AgentData):
        raise ParameterError(f"multi-task learning needs an AgentData; found {type(data).__name__}")
    given = checked_covariance(covariance, data.members, unit=False)
    labels = _lay_out(data, loss)[2]  # checks labels, too, while messages can still name rows
    weights = np.zeros((data.n, data.p))
    if not labels.size:
        return weights
    if isinstance(given, LowRank) and given.rest == 0.0 and len(given.sizes) < data.n:
        tasks = _vary(given.diagonal())
        part = data.only(np.flatnonzero(tasks))
        if part.n_rows:
            kept = given.sizes > RANK_TOLERANCE * data.n * given.sizes.max()
            weights[tasks] = _joint_weights(
                part, loss, lam, given.directions[tasks][:, kept] * np.sqrt(given.sizes[kept])
            )
        return weights
    sigma = given.dense()
    some = _vary(np.diagonal(sigma))
    # Since |sigma_ij|^2 <= sigma_ii sigma_jj, all other entries are rounding errors.
    sigma = np.where(some[:, None] & some, sigma, 0.0)
    _, group = csgraph.connected_components(sparse.csr_array(sigma != 0), directed=False)
    unrelated = (np.bincount(group) == 1)[group] & _vary(np.diagonal(sigma))
    if unrelated.any():
        part, ridge = data.only(np.flatnonzero(unrelated)), 0.5 * lam / np.diagonal(sigma)[unrelated][:, None]
        rows, start, own = _lay_out(part, loss)
        separate = Objective(rows, start, own, loss, _row_weights(part, start), ridge, empty(part.n), 0.0, part.p)
        weights[unrelated] = minimise(separate)  # tasks related to no other: penalty lam / (2 sigma_ii) |w_i|^2
    for k in np.flatnonzero(np.bincount(group) > 1):
        tasks = group == k
        part = data.only(np.flatnonzero(tasks))
        if part.n_rows:
            if isinstance(given, LowRank):  # rest > 0, so the rank is full: no need to compute it
                _check_unknowns(part.n, part.p)
            weights[tasks] = _joint_weights(part, loss, lam, _root(sigma[np.ix_(tasks, tasks)]))
    return weights


def _vary(variances: np.ndarray) -> np.ndarray:
    """Mark the tasks whose standard deviation exceeds the rounding errors in a row of a factor of Sigma."""
    return variances > RANK_TOLERANCE**2 * variances.max(initial=0.0)


def _row_weights(data: AgentData, start: np.ndarray) -> np.ndarray:
    """Return ``1/n_i`` for every example."""
    return np.repeat(1.0 / np.maximum(data.sizes, 1), np.diff(start))


def _root(sigma: np.ndarray) -> np.ndarray:
    """Return R (m, r) with ``R R' = Sigma``, with r the rank of Sigma."""
    values, vectors = np.linalg.eigh(sigma)
    kept = values > max(RANK_TOLERANCE, len(sigma) * np.finfo(float).eps) * values[-1]
    return vectors[:, kept] * np.sqrt(values[kept])


def _joint_weights(data: AgentData, loss: Any, lam: float, root: np.ndarray) -> np.ndarray:
    """Return the weights of all tasks of `data`, with the covariance ``R R'``."""
    rows, start, labels = _lay_out(data, loss)
    whole, p = np.array([0, start[-1]]), root.shape[1] * data.p
    _check_unknowns(root.shape[1], data.p)
    ridge = np.array([[0.5 * lam]])
    objective = TaskObjective(
        rows, whole, labels, loss, _row_weights(data, start), ridge, empty(1), 0.0, p, start, frozen(root)
    )
    return objective.weights(_minimiser(objective))


def _check_unknowns(rank: int, d: int) -> None:
    if rank * d > MAX_UNKNOWNS:
        raise ParameterError(
            f"{rank * d} unknowns (the rank of the covariance, {rank}, times {d} features) are too many for the exact "
            f"solver, which takes at most {MAX_UNKNOWNS}: {SDCA_ADVICE}"
        )


def _minimiser(objective: TaskObjective) -> np.ndarray:
    """Return V as one row, with the method chosen by loss and size."""
    loss, rows = objective.loss, objective.rows
    if not in_pieces(loss):
        return _newton(objective)
    stored = np.diff(rows.start) if isinstance(rows, SparseRows) else np.full(len(objective.labels), objective.d)
    work = float(np.square(stored * objective.root.shape[1], dtype=float).sum()) + float(objective.p) ** 3
    if work <= MAX_SYSTEM_WORK:
        return minimise(objective.spelled_out())
    if np.isfinite(loss.smoothness):
        return _newton(objective)
    raise ParameterError(
        f"{len(objective.labels)} rows and {objective.p} unknowns (the rank of the covariance times the features) are "
        f"too many for the exact solver with {loss!r}: {SDCA_ADVICE}"
    )


@dataclass(frozen=True)
class TaskObjective(Objective):
    """P as a ridge problem of one agent with the model V (p entries), stored with the short features ``x_ij``."""

    tasks: np.ndarray  # (m + 1,): rows ``tasks[i]`` to ``tasks[i + 1] - 1`` belong to task i
    root: np.ndarray  # (m, r): R

    @property
    def d(self) -> int:
        """Number of features."""
        return self.p // self.root.shape[1]

    def weights(self, theta: np.ndarray) -> np.ndarray:
        """Return ``W = R V``, (m, d)."""
        return self.root @ theta.reshape(self.root.shape[1], -1)

    def margins(self, theta: np.ndarray) -> np.ndarray:
        """Return ``x_ij . w_i`` for every row."""
        out = np.zeros(self.labels.shape[0])
        margins_kernel(self.rows, self.tasks, self.weights(theta), out)
        return out

    def scatter(self, weights: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """Return ``sum_i R_i kron sum_j weights_ij x_ij``."""
        sums = np.zeros((self.root.shape[0], self.d))
        scatter_kernel(self.rows, self.tasks, weights, sums)
        return (self.root.T @ sums).reshape(shape)

    @property
    def in_batches(self) -> bool:
        """False: all quantities are computed for single rows."""
        return False

    @property
    def bend_shape(self) -> int:
        """1: the second derivative of the losses is stored as weights of rows."""
        return 1

    def hessian(self, bend: np.ndarray) -> np.ndarray:
        """Return ``lam I + sum_i (R_i R_i') kron sum_j bend_ij x_ij x_ij'``, (p, p)."""
        (m, r), d = self.root.shape, self.d
        out = np.zeros((r, d, r, d))
        at_once = max(1, MAX_WORK_ENTRIES // d**2)
        for first in range(0, m, at_once):
            root, tasks = self.root[first : first + at_once], self.tasks[first : first + at_once + 1]
            a, b = tasks[0], tasks[-1]
            grams = np.zeros((root.shape[0], d, d))
            gram_kernel(self.rows.take(a, b), frozen(tasks - a), bend[a:b], np.arange(root.shape[0]), grams)
            for k in range(r):
                pairs = (root[:, k, None] * root).T @ grams.reshape(-1, d * d)
                out[k] += pairs.reshape(r, d, d).transpose(1, 0, 2)
        hessian = out.reshape(self.p, self.p)
        hessian[np.diag_indices(self.p)] += 2.0 * self.ridge[0, 0]
        return hessian

    def spelled_out(self) -> Objective:
        """Return the objective with the long features ``R_i kron x_ij``."""
        r, root = self.root.shape[1], np.repeat(self.root, np.diff(self.tasks), axis=0)
        if isinstance(self.rows, SparseRows):
            root = np.repeat(root, np.diff(self.rows.start), axis=0)
            column = self.rows.column[:, None] + np.int32(self.d) * np.arange(r, dtype=np.int32)
            values = self.rows.values[:, None] * root
            rows: Any = SparseRows(frozen(self.rows.start * r), frozen(column.ravel()), frozen(values.ravel()))
        else:
            long = root[:, :, None] * self.rows.values[:, None, :]
            rows = DenseRows(frozen(long.reshape(-1, self.p)))
        return Objective(
            rows, self.start, self.labels, self.loss, self.scale, self.ridge, self.graph, self.smooth, self.p
        )


def _newton(objective: TaskObjective) -> np.ndarray:
    """Return the minimiser of P, for a loss with a gradient."""
    kept: list[Any] = [np.zeros(0), None]

    def solver(bend: np.ndarray) -> Any:
        if not np.array_equal(kept[0], bend):  # the squared loss only needs one factorisation
            kept[:] = bend, _system(objective, bend)
        return kept[1]

    try:
        return newton(objective, everything, solver)
    except ConvergenceError as error:
        raise ConvergenceError(f"{error} Or do covariances? If not, {SDCA_ADVICE}") from None


def _system(objective: TaskObjective, bend: np.ndarray) -> InexactSolver:
    """Return a solver of ``H x = target``: a Cholesky factor, refined by conjugate gradients."""

    def product(v: np.ndarray) -> np.ndarray:
        return objective.quadratic_gradient(v) + objective.scatter(bend * objective.margins(v), v.shape)

    for damping in (0.0, 1e-14, 1e-12, 1e-10, 1e-8):
        hessian = objective.hessian(bend)
        hessian[np.diag_indices(objective.p)] *= 1.0 + damping
        try:  # the transpose is in LAPACK's memory order, so it is not copied
            factor = linalg.cho_factor(hessian.T, lower=True, overwrite_a=True, check_finite=False)
        except linalg.LinAlgError:
            continue

        def precondition(v: np.ndarray, factor: Any = factor) -> np.ndarray:
            return linalg.cho_solve(factor, v.ravel(), check_finite=False).reshape(v.shape)

        return lambda target, _: conjugate_gradients(product, target, 1e-13, 10, precondition=precondition)[0]
    raise ConvergenceError("the Hessian is not positive semidefinite: is a loss not convex?")
