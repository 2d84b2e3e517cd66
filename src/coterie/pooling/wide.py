"""Partial pooling with many columns, dense or sparse: computed in the span of the rows, with a diagonal V.

The linear predictors f of all rows have the prior covariance K = X U X' + [same agent] X V X' (and the analogous terms
of the intercepts), N x N for N rows, for any number of columns. With M = (W^-1 + K)^-1, W the rows' curvatures, and
alpha = K^-1 f at the mode: d_i = V X_i' alpha_i, w = U X' alpha, and for the fixed points of the variances
gamma_k = v_k sum_i diag(X_i' M_ii X_i)_k, and u_k diag(X' M X)_k for w. U is diagonal like V, with logarithms pooled
like those of V: with one prior variance for all common slopes, important common slopes would be attributed to the
deviations.

The variances are learned in this way from at most :data:`MAX_GRAM_ROWS` rows. The mode of all rows is then computed by
Newton's method with conjugate gradients, which only multiplies rows by vectors. Where columns are fewer than rows, M
is computed from a matrix of the size of the columns, and Newton's steps are, too: see :mod:`.span`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from .._conjugate import conjugate_gradients
from .blocks import in_rows, one_plus
from .designs import PLAIN, standards
from .families import FAMILIES, NOISY, Family
from .population import INTERCEPT_PRECISION, PooledLogs
from .results import AroundCommon, Fitted
from .rows import Grouped, Ranked, dense, ranking
from .sample import SATURATION_VARIANCE
from .span import MAX_GRAM_ROWS, OfColumns, OfRows, Span, diagonal, kernel

#: Number of rows of each agent from which variances are learned, if it has so many: fewer say nothing of deviations.
MIN_ROWS_PER_AGENT = 3
#: Attributes of a model that a file holds in addition to its rows and variances.
SAVED_PARTS = ("mean", "spread", "w", "D", "precision")
#: Prior variance of the common intercept while variances are learned.
INTERCEPT_PRIOR_VARIANCE = 1e3


class Strengths(NamedTuple):
    """The population, learned from the rows of a Gram matrix."""

    v: np.ndarray  # (p + 1,) variances of deviations; the intercept's is last
    u: np.ndarray  # (p + 1,) prior variances of the common model
    s2: float
    log_evidence: float
    log_sd: np.ndarray
    rounds: int

    @property
    def variances(self) -> np.ndarray:
        """Variances of the deviations, one for each column."""
        return self.v


@dataclass(frozen=True)
class Wide(AroundCommon, Fitted):
    """A fitted model of many columns, with the attributes and methods of :class:`.fitted.Pooled`."""

    grouped: Grouped  # columns are scaled, without ones; dense or sparse
    mean: np.ndarray  # of the columns of the input
    spread: np.ndarray
    strengths: Strengths
    w: np.ndarray  # (p + 1,)
    D: np.ndarray  # (n, p + 1)
    precision: np.ndarray  # (p + 1,) diagonal of the Schur complement of w

    form = "wide"
    has_intervals = False
    #: Models are linear, since there are many columns already, and new agents are predicted by the common model.
    design_name, curves, new_share, sampled = PLAIN, (), 0.0, False

    @property
    def population(self) -> Strengths:  # type: ignore[override]
        """The parameters that all agents share."""
        return self.strengths

    @property
    def covariance(self) -> np.ndarray:
        """Variances of deviations, (p + 1,)."""
        return self.strengths.v

    @property
    def units(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and scale of the columns, without the ones."""
        return self.mean, self.spread

    @property
    def source(self) -> np.ndarray:
        """The feature from which each column is made: every feature is a column."""
        return np.arange(len(self.mean))

    def features(self) -> Any:
        """Return the rows in the units of their features."""
        X = self.grouped.X
        return X * self.spread + self.mean if isinstance(X, np.ndarray) else X * self.spread[0]

    @property
    def sizes(self) -> np.ndarray:
        """Number of rows of each agent."""
        return self.grouped.sizes

    def names(self, features: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the columns of the model, without the intercept."""
        return features

    def outside(self, X: Any, codes: np.ndarray) -> dict[int, float]:
        """Return an empty dict: with many columns, every row lies outside the range of some column."""
        return {}

    def latent(
        self, X: Any, codes: np.ndarray, spread: bool = True, n_jobs: int | None = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances of the linear predictors of rows; the code -1 stands for a new agent.

        `n_jobs` is ignored: one thread is used. Variances given w are exact; the variance of w uses the diagonal of the
        Schur complement.
        """
        return self.latent_of(self._standard(X), codes, spread)

    def _standard(self, X: Any) -> Any:
        """Return new rows in the units of the model's rows, and dense if these are; sparse rows are not centred."""
        return standard(dense(X) if isinstance(self.grouped.X, np.ndarray) else X, self.mean, self.spread)

    def fitted_to(self, rows: Grouped) -> Wide:
        """Return a model of other rows with the same variances."""
        w, D, precision = mode(rows, self.family, self.strengths)
        return replace(self, grouped=rows, w=w, D=D, precision=precision)

    def latent_of(self, X: Any, codes: np.ndarray, spread: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances of the linear predictors of rows in standard units."""
        V, s2, grouped, weights = self.strengths.v, self.strengths.s2, self.grouped, self.grouped.weights
        mean, variance = X @ self.w[:-1] + self.w[-1], np.zeros(X.shape[0])
        for agent, rows in _by_agent(codes):
            Z = X[rows]
            own = slice(*grouped.start[agent : agent + 2]) if agent >= 0 else slice(0, 0)
            if agent >= 0:
                mean[rows] += Z @ self.D[agent, :-1] + self.D[agent, -1]
            if spread:
                known, weight = grouped.X[own][:MAX_GRAM_ROWS], weights[own][:MAX_GRAM_ROWS]
                model = self.w + (self.D[agent] if agent >= 0 else 0.0)
                u = np.sqrt(weight * self.family.curvature(known @ model[:-1] + model[-1], s2))
                cross = kernel(Z, V, known)  # x' V X_i'
                inner = one_plus(kernel(known, V, known), u)
                solved = np.linalg.solve(inner, u[:, None] * cross.T) * u[:, None]  # K_i X_i V x
                left = dense(Z) - (known.T @ solved).T  # (I - J_i)' x
                square = Z * Z if isinstance(Z, np.ndarray) else Z.multiply(Z)
                variance[rows] = square @ V[:-1] + V[-1] - np.sum(cross * solved.T, axis=1)
                variance[rows] += left**2 @ (1.0 / self.precision[:-1])
                variance[rows] += (1.0 - solved.sum(axis=0)) ** 2 / self.precision[-1]
        return mean, np.maximum(variance, 0.0)

    def with_rows(self, X: Any, y: np.ndarray, codes: np.ndarray, n: int, weight: np.ndarray | None) -> Wide:
        """Add rows of known or new agents and update only these agents' posteriors; the population is unchanged."""
        grouped = self.grouped.with_rows(self._standard(X), (y - self.center) / self.scale, codes, n, weight)
        D = np.vstack([self.D, np.zeros((n - self.n, len(self.w)))])
        for agent in np.unique(codes):
            D[agent] = mode(grouped.only(np.array([agent])), self.family, self.strengths, common=self.w)[1][0]
        return replace(self, grouped=grouped, D=D)

    def to_arrays(self) -> dict[str, Any]:
        """Return arrays for a file, including the rows, in whose span the model is computed."""
        v, u, s2, log_evidence, log_sd, rounds = self.strengths
        X, y, weight, start = self.grouped.X, self.grouped.y, self.grouped.weights, self.grouped.start
        sparse = not isinstance(X, np.ndarray)
        rows = {"X_data": X.data, "X_indices": X.indices, "X_indptr": X.indptr} if sparse else {"X": X}
        return {
            **rows,
            "numbers": np.array([s2, log_evidence, rounds]),
            "u": u,
            "v": v,
            "log_sd": log_sd,
            **{"y": y, "weight": weight, "start": start},
            **{name: getattr(self, name) for name in SAVED_PARTS},
        }

    @classmethod
    def from_arrays(cls, fitted: Fitted, arrays: Any) -> Wide:
        """Return a model from arrays of a file."""
        if "X" in arrays:
            X = arrays["X"]
        else:
            from scipy import sparse

            shape = (len(arrays["y"]), len(arrays["mean"]))
            X = sparse.csr_array((arrays["X_data"], arrays["X_indices"], arrays["X_indptr"]), shape=shape)
        s2, log_evidence, rounds = arrays["numbers"].tolist()
        strengths = Strengths(arrays["v"], arrays["u"], s2, log_evidence, arrays["log_sd"], int(rounds))
        parts = {name: arrays[name] for name in SAVED_PARTS}
        grouped = Grouped(X, arrays["y"], arrays["weight"], arrays["start"])
        if parts["D"].shape != (grouped.n, len(parts["w"])) or len(strengths.v) != len(parts["w"]):
            raise ValueError(
                f"D has shape {parts['D'].shape}, expected ({grouped.n}, {len(parts['w'])}), and as many variances"
            )
        return cls(**vars(fitted), grouped=grouped, strengths=strengths, **parts)


def standard(X: Any, mean: np.ndarray, spread: np.ndarray) -> Any:
    """Return columns in standard units; sparse columns share one scale, and are not centred."""
    if isinstance(X, np.ndarray):
        return (X - mean) / spread
    return X.astype(np.float64, copy=False) * (1.0 / spread[0]) if len(spread) else X


def _by_agent(codes: np.ndarray, max_rows: int = 500) -> Iterator[tuple[int, np.ndarray]]:
    """Generate agents with at most `max_rows` of their rows at a time."""
    for agent in np.unique(codes).tolist():
        rows = np.flatnonzero(codes == agent)
        for first in range(0, len(rows), max_rows):
            yield agent, rows[first : first + max_rows]


def fit_wide(
    X: Any,
    y: np.ndarray,
    codes: np.ndarray,
    n: int,
    loss: str,
    weight: np.ndarray | None = None,
    progress: Callable[[], None] | None = None,
) -> Wide:
    """Learn the variances in the span of the rows, and then all agents' models."""
    family = FAMILIES["squared" if loss == "auto" else loss]
    rows, p = X.shape
    weights = np.ones(rows) if weight is None else weight
    total = weights.sum()
    if isinstance(X, np.ndarray):
        mean, spread = standards(X, weights)
    else:
        X = X.astype(np.float64, copy=False)
        squares = float(weights @ row_squares(X))
        mean, spread = np.zeros(p), np.full(p, np.sqrt(max(squares / (total * p), 1e-300)))
    center, scale = 0.0, 1.0
    if family.noisy:
        center = float(weights @ y / total)
        scale = float(np.sqrt(weights @ (y - center) ** 2 / total)) or 1.0
    grouped = Grouped.of(standard(X, mean, spread), (y - center) / scale, codes, n, weight)
    strengths = strengths_of(some_of(grouped, chosen(grouped, MAX_GRAM_ROWS)), family, progress)
    w, D, precision = mode(grouped, family, strengths)
    evidence = {PLAIN: strengths.log_evidence}
    return Wide(family, center, scale, evidence, {}, grouped, mean, spread, strengths, w, D, precision)


def chosen(grouped: Grouped, max_rows: int) -> np.ndarray:
    """Choose at most `max_rows` rows, grouped by agent: of every agent its share, at least one, evenly over labels.

    With many agents, rows of only a sample of them are chosen, so that at least a few rows of each are left.
    """
    sizes = grouped.sizes
    each = min(MIN_ROWS_PER_AGENT, -(-len(grouped.y) // max(1, int(np.count_nonzero(sizes)))))
    order = ranking(*grouped.totals(), lambda: np.bincount(grouped.codes, row_squares(grouped.X), grouped.n).round(9))
    sizes = np.where(np.isin(np.arange(grouped.n), Ranked(order, sizes).sample(max_rows // max(each, 1))), sizes, 0)
    keep = np.minimum(sizes, np.maximum(1, (sizes * min(1.0, max_rows / max(sizes.sum(), 1))).astype(int)))
    rows = ordered(grouped, grouped.codes)
    places = [first + np.arange(k) * m // k for first, m, k in zip(grouped.start, sizes, keep, strict=False) if k]
    return rows[np.concatenate([np.empty(0, np.int64), *places]).astype(np.int64)]


def some_of(grouped: Grouped, rows: np.ndarray) -> Grouped:
    """Return some of the rows, with only the agents that have some of these."""
    part = grouped.some(rows)
    return part.only(np.flatnonzero(part.sizes))


def ordered(grouped: Grouped, groups: np.ndarray) -> np.ndarray:
    """Order rows by group, then by label, then by length, independent of the order of the input."""
    return np.lexsort((row_squares(grouped.X), grouped.y, groups))


def row_squares(X: Any) -> np.ndarray:
    """Return squared lengths of rows, dense or sparse."""
    squares = X**2 if isinstance(X, np.ndarray) else X.multiply(X)
    return np.asarray(squares.sum(axis=1)).ravel()


def strengths_of(
    grouped: Grouped, family: Family, progress: Callable[[], None] | None = None, rounds: int = 50, tol: float = 2e-2
) -> Strengths:
    """Learn variances, prior precision and noise by fixed points of the evidence."""
    X, y, weight, n = grouped.X, grouped.y, grouped.weights, grouped.n
    N, p = X.shape
    span = Span(grouped)
    total = float(weight.sum())
    size = max(float(weight @ row_squares(X)) / total, 1e-12)  # mean squared length of a row
    v = np.append(np.full(p, 1.0 / size), 1.0)
    u = np.append(np.full(p, 1.0 / size), INTERCEPT_PRIOR_VARIANCE)
    s2, f = 1.0, np.zeros(N)
    if family.name == "poisson":
        f[:] = np.log(max(float(weight @ y) / total, 1e-3))
    logs, common = (PooledLogs(np.ones(p, bool), count, scalar=False) for count in (n, 1))
    logs.mu = common.mu = float(-np.log(size))
    base, alpha = f.copy(), np.zeros(N)  # the mean of the prior, and the start at that mean

    def value(f: np.ndarray, alpha: np.ndarray) -> float:
        return float((weight * family.loss(f, y, s2)).sum()) + 0.5 * float(alpha @ (f - base))

    for k in range(rounds):
        if progress is not None:
            progress()
        restart = k == 0
        if not family.noisy:  # for classes and counts, the old alpha may overshoot with larger variances
            f = base + span.prior(alpha, v, u)
            restart = restart or not value(f, alpha) <= value(base, np.zeros(N))
            if restart:
                f, alpha = base.copy(), np.zeros(N)
        for _ in range(30 if restart else 1):
            c = np.maximum(weight * family.curvature(f, s2), 1e-12)
            M = (OfColumns if span.few else OfRows)(span, c, v, u)
            new, before, t = M.times(f - base - weight * family.slope(f, y, s2) / c), f, 1.0
            there, here = base + span.prior(new, v, u), value(f, alpha)
            while not (
                family.noisy or value(f + t * (there - f), alpha + t * (new - alpha)) <= here + 1e-9 * abs(here)
            ):
                t *= 0.5
                if t < 1e-3:
                    break
            f, alpha = f + t * (there - f), alpha + t * (new - alpha)
            if family.quadratic or np.abs(f - before).max() < 1e-3:
                break
        # The step of PooledLogs, with D = V X' alpha and G = sum_i X_i' M_ii X_i.
        inverse, shown, trace = M.diagonals()
        s = np.maximum(1.0 / c - inverse / c**2, 0.0)  # K - K M K
        h = M.times(0.5 * weight * family.third(f) * s / (1.0 + s / SATURATION_VARIANCE) / c)  # (I - M K) c_i
        own, corrections = span.transposed(alpha), span.transposed(h)
        score = np.maximum(own * own - 2.0 * own * corrections, 0.3 * own * own).sum(axis=0)
        new, change = logs.step(v, trace, score * v * v, np.zeros(p + 1))
        a, correction = own.sum(axis=0), corrections.sum(axis=0)
        wide, gained = common.step(
            u, shown, np.maximum(a * a - 2.0 * a * correction, 0.3 * a * a) * u * u, np.zeros(p + 1)
        )
        wide[-1] = INTERCEPT_PRIOR_VARIANCE
        change += gained
        noise = s2
        if isinstance(family, NOISY):
            left = total - N + float(np.sum(inverse / c))  # residual degrees of freedom
            e2 = float((weight * family.excess(f, y, s2)).sum())
            ratio = e2 / left if left > 0.1 * total else (e2 + total - left) / total
            noise = max(s2 * float(np.exp(np.clip(np.log(max(ratio, 1e-9)), -1.0, 0.5))), 1e-7)
            change += 0.25 * total * np.log(noise / s2) ** 2
        if change < tol * max(1.0, n / 50.0) and k > 3:
            break
        v, u, s2 = new, wide, noise
    information = (v * trace) ** 2 / (2.0 * n)
    log = -float((weight * (family.loss(f, y, s2) - family.constant(y, s2))).sum())
    log += 0.5 * np.log(INTERCEPT_PRIOR_VARIANCE) - 0.5 * float(alpha @ (f - base)) - 0.5 * M.log_det()
    log += logs.log_prior(v, information) + common.log_prior(u, (u * shown) ** 2 / 2.0)
    log_sd = 1.0 / np.sqrt(np.maximum(information + logs.precision(), 1e-12))
    return Strengths(v, np.append(u[:-1], 1.0 / INTERCEPT_PRECISION), s2, log, log_sd, k + 1)


def mode(
    grouped: Grouped, family: Family, strengths: Strengths, common: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute w, D and the diagonal of the Schur complement of w, by Newton's method with conjugate gradients.

    Variables are in units of prior standard deviations, so that the Hessian is the identity without rows. With a given
    ``common`` model, only deviations are computed.
    """
    X, y, weight, n, p = grouped.X, grouped.y, grouped.weights, grouped.n, grouped.X.shape[1]
    s2, v = strengths.s2, strengths.v
    root = np.sqrt(strengths.u) if common is None else np.zeros(p + 1)
    deviation = np.sqrt(v)
    span = Span(grouped)
    offset = np.zeros(len(y)) if common is None else X @ common[:-1] + common[-1]
    if common is None and family.name == "poisson":
        offset[:] = np.log(max(float(weight @ y / weight.sum()), 1e-3))

    def predictors(t: np.ndarray) -> np.ndarray:
        """Return linear predictors of (w, D) in units of prior standard deviations."""
        return span.times(t[: p + 1] * root, t[p + 1 :].reshape(n, p + 1) * deviation)

    def gradient_of(z: np.ndarray) -> np.ndarray:
        """Apply the transpose of :func:`predictors`."""
        own = span.transposed(z)
        return np.vstack([own.sum(axis=0) * root, own * deviation]).ravel()

    t = np.zeros((n + 1) * (p + 1))
    z, M = offset.copy(), None
    value = float((weight * family.loss(z, y, s2)).sum())
    for _ in range(50):
        gradient = gradient_of(weight * family.slope(z, y, s2)) + t
        curvature = weight * family.curvature(z, s2)

        def product(d: np.ndarray, curvature: np.ndarray = curvature) -> np.ndarray:
            return gradient_of(curvature * predictors(d)) + d

        if span.few and common is None:
            if M is None or not family.quadratic:
                c = np.maximum(curvature, 1e-12)
                M = OfColumns(span, c, v, strengths.u)
            found, alpha = M.solve(z - offset - weight * family.slope(z, y, s2) / c)
            step = np.append(found / np.sqrt(strengths.u), deviation * span.transposed(alpha)) - t
        else:
            step, _ = conjugate_gradients(product, -gradient, 1e-10)
        dz, length = predictors(step), 1.0
        for _ in range(20):
            new, there = t + length * step, z + length * dz
            after = float((weight * family.loss(there, y, s2)).sum()) + 0.5 * float(new @ new)
            if after <= value + 1e-12 * abs(value):
                break
            length *= 0.5
        t, z, value = new, there, after
        if np.abs(length * dz).max(initial=0.0) < 1e-9:
            break
    w = t[: p + 1] * root if common is None else common
    if common is None:
        w[-1] += offset[0] if len(offset) else 0.0
    D = t[p + 1 :].reshape(n, p + 1) * deviation
    if M is not None:
        return w, D, np.diag(M.S)
    precision = 1.0 / strengths.u
    for i in np.flatnonzero(grouped.sizes) if common is None else []:
        rows = slice(grouped.start[i], grouped.start[i + 1])
        B, u = X[rows][:MAX_GRAM_ROWS], np.sqrt((weight * family.curvature(z, s2))[rows][:MAX_GRAM_ROWS])
        precision += diagonal(B, in_rows(kernel(B, v, B), u))
    return w, D, precision
