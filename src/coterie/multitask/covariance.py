"""What couples the tasks: a covariance matrix Sigma, positive semidefinite, of trace one.

Weights W and the vectors B of the dual are (m, d) here, one row for each task, and ``W = Sigma B / lam``. Sigma may be
singular, and is whenever d < m: its inverse is never formed (erratum 29).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..errors import ParameterError

#: How far a given covariance may be from what it must be, for rounding.
ROUNDING = 1e-8

#: Bounds on rho, how much steps of all tasks at once may get in each other's way.
BOUNDS = ("eigenvalue", "lemma10")


def checked_covariance(covariance: ArrayLike, members: Sequence[Any], *, unit: bool = True) -> np.ndarray:
    """A given covariance matrix, if it is one: symmetric, positive semidefinite and, if ``unit``, of trace one."""
    m = len(members)
    try:
        matrix = np.array(covariance, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParameterError(f"covariance must be a matrix of numbers; found {type(covariance).__name__}") from None
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
            f"and {matrix[j, i]:.6g} the other way round"
        )
    matrix = 0.5 * (matrix + matrix.T)
    sizes, directions = np.linalg.eigh(matrix)
    if sizes[0] < -ROUNDING * np.abs(sizes).max():
        raise ParameterError(f"covariance is not positive semidefinite: its smallest eigenvalue is {_short(sizes[0])}")
    trace = float(np.trace(matrix))
    if unit and abs(trace - 1.0) > ROUNDING * m:
        raise ParameterError(f"covariance has trace {_short(trace)}: it must be 1; divide it by its trace")
    if sizes[0] < 0.0:  # rounding: the bound on rho and the regulariser need a matrix that is semidefinite
        matrix = (directions * np.maximum(sizes, 0.0)) @ directions.T
    return matrix


def _short(number: float) -> str:
    return f"{number:.6g}"


def correlation(covariance: np.ndarray) -> np.ndarray:
    """The correlation matrix of a covariance; a task of variance zero is correlated with no other."""
    scale = np.sqrt(np.diagonal(covariance))
    unit = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    matrix = np.clip(covariance * (unit[:, None] * unit), -1.0, 1.0)
    matrix[np.diag_indices_from(matrix)] = 1.0
    return matrix


def separability(covariance: np.ndarray, bound: str = "eigenvalue") -> float:
    """Rho with eta = 1: what the curvature of a task is multiplied by, for steps of all tasks at once to be safe.

    The largest eigenvalue of the correlation matrix (erratum 28), or, with "lemma10", the bound
    ``max_i sum_k |sigma_ik| / sigma_ii`` of DMTRL, Lemma 10, which is never smaller.
    """
    if bound == "lemma10":
        live = np.diagonal(covariance) > 0
        part = covariance[np.ix_(live, live)]
        return float(np.max(np.abs(part).sum(axis=1) / np.diagonal(part), initial=1.0))
    return float(np.linalg.eigvalsh(correlation(covariance))[-1])


def best_covariance(weights: np.ndarray, ridge: float = 0.0) -> np.ndarray:
    """The Omega-step: the covariance that fits given weights best, ``(W W' + ridge^2 I)^(1/2)`` over its trace.

    Without a ridge it minimises ``tr(W' Sigma^+ W)``, which is then the square of the nuclear norm of W. A ridge keeps
    every direction alive: once W had lost one, it would never come back (erratum 27). By SVD of W, since the square
    root of an eigenvalue of ``W W'`` would keep half of the digits (erratum 30).
    """
    m = weights.shape[0]
    directions, sizes, _ = np.linalg.svd(weights, full_matrices=False)
    above = np.hypot(sizes, ridge) - ridge  # in all other directions there is the ridge alone
    total = above.sum() + m * ridge
    if not total > 0:  # no weights, no relations: where DMTRL begins
        return np.eye(m) / m
    matrix = (directions * (above / total)) @ directions.T + ridge / total * np.eye(m)
    return 0.5 * (matrix + matrix.T)


def nuclear_norm(weights: np.ndarray) -> float:
    """The sum of the singular values."""
    return float(np.linalg.svd(weights, compute_uv=False).sum())


def penalty(vectors: np.ndarray, covariance: np.ndarray, lam: float) -> float:
    """``lam/2 tr(W' Sigma^+ W)`` for ``W = Sigma B / lam``, which is ``tr(B' Sigma B) / (2 lam)`` (erratum 29)."""
    return max(0.0, float(np.sum(vectors * (covariance @ vectors)))) / (2.0 * lam)


def penalty_of_weights(weights: np.ndarray, covariance: np.ndarray, lam: float) -> float:
    """``lam/2 tr(W' Sigma^+ W)`` of weights in the range of Sigma; where B is known, :func:`penalty` is more exact."""
    sizes, directions = np.linalg.eigh(covariance)
    live = sizes > 1e-14 * len(sizes) * sizes[-1]
    along = directions[:, live].T @ weights
    return 0.5 * lam * float(np.sum(along**2 / sizes[live][:, None]))


def joint_penalty(weights: np.ndarray, lam: float) -> float:
    """``lam/2 |W|_*^2``: the penalty of weights with the covariance that fits them best."""
    return 0.5 * lam * nuclear_norm(weights) ** 2


def joint_conjugate(vectors: np.ndarray, lam: float) -> float:
    """``|B|^2 / (2 lam)`` in the spectral norm: the conjugate of :func:`joint_penalty`.

    So ``-sum_i 1/n_i sum_j l*(-a_ij) - joint_conjugate(B)`` bounds the joint optimum from below, whatever the
    covariance is at the moment.
    """
    return float(np.linalg.norm(vectors, 2)) ** 2 / (2.0 * lam)
