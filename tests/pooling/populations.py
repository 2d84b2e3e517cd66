"""Generated populations, and answers to the same questions by dense algebra: slow, short, and hard to get wrong."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from scipy.special import expit

from coterie.pooling import population
from coterie.pooling.blocks import AgentBatch
from coterie.pooling.families import FAMILIES
from coterie.pooling.population import INTERCEPT_PRECISION, Learner
from coterie.pooling.rows import Grouped
from coterie.pooling.sample import Sample


def covariance(rng, q, kind):
    """A covariance V of deviations, as blocks take it."""
    v = rng.uniform(0.2, 2.0, size=q)
    if kind == "diagonal":
        return v
    if kind == "zeros":
        return np.where(np.arange(q) % 2, 0.0, v)
    root = rng.normal(size=(q, q))
    V = root @ root.T / q + 0.1 * np.eye(q)
    if kind == "full":
        return V
    if kind == "full with zeros":
        V[::2], V[:, ::2] = 0.0, 0.0
        return V
    assert kind == "low rank"
    return root[:, : q - 1] @ root[:, : q - 1].T


KINDS = ("diagonal", "zeros", "full", "full with zeros", "low rank")


def matrix(V):
    return np.diag(V) if V.ndim == 1 else V


def drawn(rng, n, m, q, family="squared", w=None, V=None, s2=0.3, sizes=None):
    """Rows of n agents of the model itself, ones last: X (rows, q), y, codes, models (n, q)."""
    w = rng.normal(size=q) if w is None else np.asarray(w, dtype=float)
    V = np.full(q, 0.5) if V is None else np.asarray(V, dtype=float)
    theta = w + rng.multivariate_normal(np.zeros(q), matrix(V), size=n)
    codes = np.repeat(np.arange(n), m if sizes is None else sizes)
    X = np.column_stack([rng.normal(size=(len(codes), q - 1)), np.ones(len(codes))])
    return X, labels(rng, np.einsum("ij,ij->i", X, theta[codes]), family, s2), codes, theta


def labels(rng, z, family, s2=0.3):
    if family == "logistic":
        return (rng.uniform(size=len(z)) < expit(z)).astype(float)
    if family == "poisson":
        return rng.poisson(np.exp(np.minimum(z, 10.0))).astype(float)
    return z + np.sqrt(s2) * rng.normal(size=len(z))


class Plain:
    """A design that takes the columns as they are, the ones included."""

    def __init__(self, q):
        self.size = q

    def columns(self, X):
        return X


def batched(X, y, codes, n, weight=None):
    """Rows in batches, as a fit has them."""
    grouped = Grouped.of(X, y, codes, n, weight)
    return list(grouped.batches(Plain(X.shape[1]), np.arange(n)))


def one_batch(X, y, codes, n, weight=None):
    """Everybody in one batch, padded to the longest."""
    sizes = np.bincount(codes, minlength=n)
    m = sizes.max()
    out = AgentBatch(np.arange(n), np.zeros((n, m, X.shape[1])), np.zeros((n, m)), np.zeros((n, m)))
    for i in range(n):
        mine = codes == i
        out.X[i, : sizes[i]], out.y[i, : sizes[i]] = X[mine], y[mine]
        out.weight[i, : sizes[i]] = 1.0 if weight is None else weight[mine]
    return out


def learner(X, y, codes, n, family="squared", deviations="diagonal", weight=None):
    sample = Sample(batched(X, y, codes, n, weight), n)
    return Learner(sample, n, np.ones(X.shape[1], bool), FAMILIES[family], deviations)


def newton(batches, w, D, V, r, s2, family, evidence=False):
    """One Newton step from (w, D), with the deviations after it."""
    sample = Sample(batches, len(D))
    sample.D = D
    mode = population.newton(sample, w, V, r, s2, family, evidence)
    return SimpleNamespace(**mode._asdict(), D=sample.D, b=sample.step.correction)


def joint(X, codes, n, free):
    """Z with Z @ (w, d_1, ..., d_n) the predictors of all rows; of deviations, coordinates that are free."""
    rows, q = X.shape
    Z = np.zeros((rows, q + n * q))
    Z[:, :q] = X
    for row, i in enumerate(codes):
        if i >= 0:
            Z[row, q + i * q : q + (i + 1) * q] = X[row]
    keep = np.concatenate([np.ones(q, bool), np.tile(free, n)])
    return Z[:, keep]


def prior(n, V, r, free):
    """Precision of (w, d_1, ..., d_n)."""
    q = len(free)
    inverse = np.linalg.inv(matrix(V)[np.ix_(free, free)])
    k = len(inverse)
    P = np.zeros((q + n * k, q + n * k))
    P[:q, :q] = np.diag(np.append(np.full(q - 1, r), INTERCEPT_PRECISION))
    for i in range(n):
        at = slice(q + i * k, q + (i + 1) * k)
        P[at, at] = inverse
    return P


def gaussian(X, y, codes, n, V, r, s2, weight=None):
    """Mean and covariance of (w, d_1, ..., d_n) of squared losses, dense; deviations of variance zero left out."""
    free = np.diag(matrix(V)) > 0.0
    Z, P = joint(X, codes, n, free), prior(n, V, r, free)
    weight = np.ones(len(y)) if weight is None else weight
    cov = np.linalg.inv(P + (Z * weight[:, None]).T @ Z / s2)
    return cov @ (Z.T @ (weight * y)) / s2, cov


def split(t, n, q, free=None):
    """(w, D) of a dense vector of them."""
    free = np.ones(q, bool) if free is None else free
    D = np.zeros((n, q))
    D[:, free] = t[q:].reshape(n, -1)
    return t[:q], D
