"""The model that a peer learns from its own rows alone: a regression with a normal prior, in its own units.

Columns are centred and scaled by the peer's own rows, the intercept is free, and all slopes have one prior variance.
The variance is not chosen: models under several variances (and, for numbers, several noise levels) are weighted by
their evidence, and their posteriors are mixed. So units do not matter, and a few rows give a cautious model.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..._laplace import logistic_mode
from ...core.losses import GAUSSIAN

#: Prior variances of slopes, for columns and labels of variance one.
PRIOR_VARIANCES = (1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
#: Noise variances, relative to the variance of the labels.
NOISE_VARIANCES = tuple(10.0 ** (-0.5 * k) for k in range(15))
#: Prior variance of the intercept for classes, in squared nats, so that a few rows of one class do not give certainty.
INTERCEPT_VARIANCE = 4.0
#: Number of rows as which the population's variance of a column counts, where it is known.
STANDARD_ROWS = 3.0


class OwnModel(NamedTuple):
    """A model with its posterior."""

    theta: np.ndarray  # (p,)
    covariance: np.ndarray  # (p, p)
    noise: float  # variance of a label around its prediction; 1 for classes


def fit_own_rows(loss: Any, X: np.ndarray, y: np.ndarray, intercept: bool, standard: bool = False) -> OwnModel | None:
    """Return the model of a peer's own rows, or None without rows. With `intercept`, the last column is of ones.

    ``standard`` says that columns have a variance of about one in the population. Then this variance counts as much as
    a few rows do. Otherwise a column that hardly varies here, but varies elsewhere, as splines do, would get too large
    a slope.
    """
    m, p = X.shape
    if m == 0:
        return None
    q = p - intercept
    mean = X[:, :q].mean(axis=0) if intercept else np.zeros(q)
    Z = X[:, :q] - mean
    scale = np.sqrt((np.sum(Z * Z, axis=0) + STANDARD_ROWS * standard) / (m + STANDARD_ROWS * standard))
    scale[~(scale > 1e-12 * (np.abs(mean) + 1e-300))] = np.inf  # a constant column has no slope
    Z = Z / scale
    unit = np.where(np.isfinite(scale), scale, 1.0)
    U, s, Vt = np.linalg.svd(Z, full_matrices=False)
    kept = s > 1e-10 * max(1.0, float(s.max(initial=0.0)))
    U, s, Vt = U[:, kept], s[kept], Vt[kept]
    posteriors = _numbers if loss.likelihood == GAUSSIAN else _classes
    level, spread, noise, weight, means, inner = posteriors(U, s, y, intercept)
    # Slopes are in the basis Vt. Directions without data keep their prior.
    center = weight @ means
    apart = means - center
    C = np.einsum("k,kij->ij", weight, inner) + (apart.T * weight) @ apart
    rest = float(weight @ spread)
    slopes = Vt.T @ center
    covariance = np.zeros((p, p))
    covariance[:q, :q] = Vt.T @ (C - rest * np.eye(len(s))) @ Vt + rest * np.eye(q)
    theta = np.zeros(p)
    theta[:q] = slopes / unit
    covariance[:q, :q] /= np.outer(unit, unit)
    if intercept:
        # The level is at the means of the columns; move it to where the columns are zero.
        theta[q] = level[0] - mean @ theta[:q]
        move = -covariance[:q, :q] @ mean
        covariance[q, :q] = covariance[:q, q] = move
        covariance[q, q] = level[1] - mean @ move
    return OwnModel(theta, covariance, noise)


def _mixed(log: np.ndarray) -> np.ndarray:
    """Return weights of models from the logarithms of their evidences."""
    weight = np.exp(log - log.max())
    return np.asarray(weight / weight.sum())


def _numbers(U: np.ndarray, s: np.ndarray, y: np.ndarray, intercept: bool) -> Any:
    """Return posteriors under every prior and noise variance, for labels with normal noise."""
    m, r = len(y), len(s)
    center = float(y.mean()) if intercept else 0.0
    size = float(np.mean((y - center) ** 2))
    if not size > 1e-24 * float(np.mean(y * y)):  # one row, or equal labels: use their magnitude as the scale
        size = float(np.mean(y * y)) or 1.0
    e = y - center
    seen = U.T @ e
    left = max(float(e @ e) - float(seen @ seen), 0.0)
    free = m - r - intercept
    spread, noise = (np.ravel(part) * size for part in np.meshgrid(PRIOR_VARIANCES, NOISE_VARIANCES))
    K = spread[:, None] * s**2 + noise[:, None]
    log = -0.5 * (np.log(K).sum(axis=1) + (seen**2 / K).sum(axis=1) + free * np.log(noise) + left / noise)
    weight = _mixed(log)
    means = spread[:, None] * s * seen / K
    inner = np.zeros((len(spread), r, r))
    inner[:, range(r), range(r)] = spread[:, None] * noise[:, None] / K
    typical = float(weight @ noise)
    return (center, typical / m), spread, typical, weight, means, inner


def _classes(U: np.ndarray, s: np.ndarray, y: np.ndarray, intercept: bool) -> Any:
    """Return posteriors under every prior for classes -1 and 1, by Laplace's approximation."""
    m, r = len(y), len(s)
    Z = U * s
    share = (np.sum(y > 0) + 0.5) / (m + 1.0)
    base = math.log(share / (1.0 - share)) if intercept else 0.0
    columns = np.column_stack([Z, np.ones(m)]) if intercept else Z
    prior_mean = np.append(np.zeros(r), base)[: columns.shape[1]]
    spread = np.array(PRIOR_VARIANCES)
    logs, means, inner, levels = [], [], [], []
    for variance in spread:
        precision = np.append(np.full(r, 1.0 / variance), 1.0 / INTERCEPT_VARIANCE)[: columns.shape[1]]
        t, cost, hessian = logistic_mode(columns, y, prior_mean, precision)
        C = np.linalg.inv(hessian)
        logs.append(-cost + 0.5 * float(np.log(precision).sum()) - 0.5 * float(np.linalg.slogdet(hessian)[1]))
        means.append(t[:r])
        inner.append(C[:r, :r])
        levels.append((t[r], C[r, r]) if intercept else (0.0, 0.0))
    weight = _mixed(np.array(logs))
    found = np.array(levels)
    level = float(weight @ found[:, 0])
    apart = float(weight @ (found[:, 1] + (found[:, 0] - level) ** 2))
    k = len(spread)
    return (level, apart), spread, 1.0, weight, np.array(means).reshape(k, r), np.array(inner).reshape(k, r, r)
