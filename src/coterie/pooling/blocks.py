"""The rows of many agents in batches, and the algebra of one agent's block, for all agents of a batch at once.

With theta_i = w + d_i, d_i ~ N(0, V), and H_i the Hessian of agent i's loss, everything that the model of docs/math.md
(section 6) asks of a block can be said by

    C_i = (V + H_i^-1)^-1 = H_i - H_i A_i^-1 H_i,    A_i = H_i + V^-1:

its covariance given w is A_i^-1 = V - V C_i V, its gain J_i = A_i^-1 H_i = V C_i, its part of the Schur complement of w
is C_i itself. No inverse of V is ever needed, so that coordinates in which nobody differs simply have variance zero.
C_i = X_i' K_i X_i with K_i as large as the agent has rows: where these are fewer than columns, only K_i is formed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..core.batches import batches, padded
from .families import Family

__all__ = ["Batch", "Block", "InColumns", "InRows", "Joint", "Summary", "batches", "in_rows", "one_plus", "padded"]
__all__ += ["root", "times"]


def times(V: np.ndarray, x: np.ndarray) -> np.ndarray:
    """V x for every vector x in the last axis; V is a vector (diagonal) or a symmetric matrix."""
    return x * V if V.ndim == 1 else x @ V


def root(V: np.ndarray) -> np.ndarray:
    """L with V = L L', a vector for a diagonal V; right also where V is singular."""
    if V.ndim == 1:
        return np.sqrt(V)
    e, U = np.linalg.eigh(V)
    return U * np.sqrt(np.maximum(e, 0.0))


def one_plus(gram: np.ndarray, u: np.ndarray) -> np.ndarray:
    """I + U G U for every matrix G (..., m, m), with U = diag(u)."""
    Q = gram * u[..., :, None] * u[..., None, :]
    m = np.arange(u.shape[-1])
    Q[..., m, m] += 1.0
    return Q


def in_rows(gram: np.ndarray, u: np.ndarray) -> np.ndarray:
    """(U^-2 + G)^-1 = U (I + U G U)^-1 U for every matrix G (..., m, m), with U = diag(u)."""
    return np.linalg.inv(one_plus(gram, u)) * u[..., :, None] * u[..., None, :]


class InRows(NamedTuple):
    """C_i = X_i' K_i X_i by way of K_i: for agents with fewer rows than columns."""

    X: np.ndarray  # (k, m, q)
    gram: np.ndarray  # (k, m, m): X V X'
    u: np.ndarray  # (k, m) roots of the rows' curvatures
    K: np.ndarray  # (k, m, m)
    Z: np.ndarray  # (k, m, q): K X

    @classmethod
    def of(cls, X: np.ndarray, curvature: np.ndarray, V: np.ndarray) -> InRows:
        """From rows (k, m, q) and their curvatures (k, m)."""
        u, gram = np.sqrt(curvature), np.matmul(times(V, X), X.transpose(0, 2, 1))
        K = in_rows(gram, u)
        return cls(X, gram, u, K, np.matmul(K, X))

    def log_det(self) -> float:
        """Sum over agents of log |I + V H_i|."""
        return float(np.linalg.slogdet(one_plus(self.gram, self.u))[1].sum())

    def leverage(self, X: np.ndarray, V: np.ndarray) -> np.ndarray:
        """x_j' A_i^-1 x_j = x_j' (V - V C_i V) x_j of its rows: variances of their predictors given w, (k, m)."""
        removed = np.einsum("kij,kij->ki", np.matmul(self.gram, self.K), self.gram)
        return np.maximum(np.einsum("kii->ki", self.gram) - removed, 0.0)

    def apply(self, x: np.ndarray) -> np.ndarray:
        """C_i x, x (k, q)."""
        return np.matmul(self.Z.transpose(0, 2, 1), np.matmul(self.X, x[..., None]))[..., 0]

    def rows(self, x: np.ndarray) -> np.ndarray:
        """C_i x for several vectors of each agent, x (k, r, q)."""
        return np.matmul(np.matmul(x, self.X.transpose(0, 2, 1)), self.Z)

    def some(self, which: np.ndarray) -> InRows:
        """The blocks of some of the agents."""
        return InRows(*(part[which] for part in self))

    def sum(self) -> np.ndarray:
        """Sum of C_i over agents."""
        q = self.X.shape[2]
        return self.X.reshape(-1, q).T @ self.Z.reshape(-1, q)

    def sandwich(self, S: np.ndarray) -> np.ndarray:
        """Sum of C_i S C_i over agents."""
        q = self.X.shape[2]
        inner = np.matmul(np.matmul(self.X @ S, self.X.transpose(0, 2, 1)), self.Z)
        return self.Z.reshape(-1, q).T @ inner.reshape(-1, q)


class InColumns(NamedTuple):
    """C_i itself: for agents with at least as many rows as columns."""

    C: np.ndarray  # (k, q, q)
    Q: np.ndarray  # (k, q, q): I + H V

    @classmethod
    def of(cls, H: np.ndarray, V: np.ndarray) -> InColumns:
        """From Hessians (k, q, q)."""
        # As (I + H V)^-1 H: in H - H L (I + L' H L)^-1 L' H, digits are lost where rows say much more than V does.
        Q, q = H * V if V.ndim == 1 else H @ V, H.shape[1]
        Q[:, np.arange(q), np.arange(q)] += 1.0
        C = np.linalg.solve(Q, H)
        return cls(0.5 * (C + C.transpose(0, 2, 1)), Q)

    def log_det(self) -> float:
        """Sum over agents of log |I + V H_i|."""
        return float(np.linalg.slogdet(self.Q)[1].sum())

    def leverage(self, X: np.ndarray, V: np.ndarray) -> np.ndarray:
        """x_j' A_i^-1 x_j = x_j' (V - V C_i V) x_j of rows (k, m, q): variances of their predictors given w, (k, m)."""
        VX = times(V, X)
        return np.maximum(np.einsum("kmq,kmq->km", VX, X - self.rows(VX)), 0.0)

    def apply(self, x: np.ndarray) -> np.ndarray:
        """C_i x, x (k, q)."""
        return np.matmul(self.C, x[..., None])[..., 0]

    def rows(self, x: np.ndarray) -> np.ndarray:
        """C_i x for several vectors of each agent, x (k, r, q)."""
        return np.matmul(x, self.C)

    def some(self, which: np.ndarray) -> InColumns:
        """The blocks of some of the agents."""
        return InColumns(*(part[which] for part in self))

    def sum(self) -> np.ndarray:
        """Sum of C_i over agents."""
        return self.C.sum(axis=0)

    def sandwich(self, S: np.ndarray) -> np.ndarray:
        """Sum of C_i S C_i over agents."""
        q = len(S)
        return np.matmul(self.C, S).transpose(0, 2, 1).reshape(-1, q).T @ self.C.reshape(-1, q)


Block = InRows | InColumns


def of_hessians(H: np.ndarray, V: np.ndarray) -> Block:
    """C_i from Hessians (k, q, q) of agents whose rows are not there; each is that of q rows, its eigenvectors.

    An agent with few rows, or with little noise, has a Hessian of eigenvalues far apart: in columns, what is left of
    its variances would be lost in rounding.
    """
    h, U = np.linalg.eigh(H)
    return InRows.of(U.transpose(0, 2, 1), np.maximum(h, 0.0), V)


class Batch(NamedTuple):
    """Agents with about as many rows, padded to the same number by rows of weight zero."""

    agents: np.ndarray  # (k,) which ones
    X: np.ndarray  # (k, m, q)
    y: np.ndarray  # (k, m)
    weight: np.ndarray  # (k, m)

    def latent(self, T: np.ndarray) -> np.ndarray:
        """Linear predictors of the rows for models T (k, q)."""
        return np.matmul(self.X, T[..., None])[..., 0]

    def loss(self, T: np.ndarray, family: Family, s2: float) -> np.ndarray:
        """Sum of the losses of each agent."""
        return (self.weight * family.loss(self.latent(T), self.y, s2)).sum(axis=1)

    def gradient(self, T: np.ndarray, family: Family, s2: float) -> np.ndarray:
        """Of the sum of the losses of each agent, (k, q)."""
        slope = self.weight * family.slope(self.latent(T), self.y, s2)
        return np.matmul(slope[:, None, :], self.X)[:, 0]

    def hessian(self, T: np.ndarray, family: Family, s2: float) -> np.ndarray:
        """Of the sum of the losses of each agent, (k, q, q)."""
        curvature = self.weight * family.curvature(self.latent(T), s2)
        return np.matmul((self.X * curvature[..., None]).transpose(0, 2, 1), self.X)

    def block(self, T: np.ndarray, family: Family, s2: float, V: np.ndarray) -> Block:
        """C_i of each agent."""
        if self.X.shape[1] < self.X.shape[2]:
            return InRows.of(self.X, self.weight * family.curvature(self.latent(T), s2), V)
        return InColumns.of(self.hessian(T, family, s2), V)


class Summary(NamedTuple):
    """Agents whose rows are not kept: a quadratic in place of their loss, exact where it was squared.

    Same words as :class:`Batch`, as far as a posterior needs them.
    """

    agents: np.ndarray  # (k,)
    at: np.ndarray  # (k, q) models at which it was taken
    slope: np.ndarray  # (k, q) gradient there
    H: np.ndarray  # (k, q, q) Hessian there

    def loss(self, T: np.ndarray, family: Family, s2: float) -> np.ndarray:
        """Of each agent, up to a constant."""
        step = T - self.at
        return np.einsum("kq,kq->k", self.slope + 0.5 * np.einsum("kqr,kr->kq", self.H, step), step)

    def gradient(self, T: np.ndarray, family: Family, s2: float) -> np.ndarray:
        """Of each agent's loss, (k, q)."""
        return self.slope + np.einsum("kqr,kr->kq", self.H, T - self.at)

    def hessian(self, T: np.ndarray, family: Family, s2: float) -> np.ndarray:
        """Of each agent's loss, (k, q, q)."""
        return self.H

    def block(self, T: np.ndarray, family: Family, s2: float, V: np.ndarray) -> Block:
        """C_i of each agent."""
        return of_hessians(self.H, V)


class Joint(NamedTuple):
    """Agents known by two batches: what was kept of them, and rows that came later."""

    first: Any
    second: Any

    @property
    def agents(self) -> np.ndarray:
        """Which ones."""
        return self.first.agents

    def loss(self, T: np.ndarray, family: Family, s2: float) -> np.ndarray:
        """Of each agent."""
        return self.first.loss(T, family, s2) + self.second.loss(T, family, s2)

    def gradient(self, T: np.ndarray, family: Family, s2: float) -> np.ndarray:
        """Of each agent's loss, (k, q)."""
        return self.first.gradient(T, family, s2) + self.second.gradient(T, family, s2)

    def hessian(self, T: np.ndarray, family: Family, s2: float) -> np.ndarray:
        """Of each agent's loss, (k, q, q)."""
        return self.first.hessian(T, family, s2) + self.second.hessian(T, family, s2)

    def block(self, T: np.ndarray, family: Family, s2: float, V: np.ndarray) -> Block:
        """C_i of each agent."""
        return of_hessians(self.hessian(T, family, s2), V)
