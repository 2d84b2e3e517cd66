"""The population: a common model w, the covariance V of personal deviations, and the noise.

    theta_i = w + d_i,  d_i ~ N(0, V),  w ~ N(0, 1/r) on slopes, flat on the intercept,  y | theta_i by the family

See docs/math.md, section 6. The mode of (w, d_1, ..., d_n) is computed by Newton's method over blocks
(:mod:`.blocks`), with w from its Schur complement; the variances V, 1/r and the noise s2 are fixed points of the
Laplace evidence. One Newton step and one step of the variances alternate. No array is of size n q x n q, and nothing is
compiled.

V is full, shrunk (inverse Wishart, nu = q / 2) to a diagonal whose logarithms are pooled, log v_k ~ N(mu, tau2), with
mu and tau2 learned, too, so that no variance collapses where rows are uninformative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .blocks import times
from .families import NOISY, Family
from .sample import Sample, Seen, There
from .sums import LostError, Sums, total

#: Variance, in standard units, below which a coefficient is considered equal for all agents.
MIN_VARIANCE = 2e-9
#: Prior precision of the common intercept, which is nearly flat.
INTERCEPT_PRECISION = 1e-6
#: Over-relaxation of the fixed points: 1.5 converges, and 2 does not.
OVER_RELAXATION = 1.5
#: Gain of a round, in nats, below which a diagonal V is accurate enough to shrink a full V towards.
FULL_START_GAIN = 0.1


class Population(NamedTuple):
    """The parameters that all agents share, in the units of the design's columns."""

    family: Family
    w: np.ndarray  # (q,) the common model; the intercept is last
    V: np.ndarray  # (q,) variances of deviations, or their (q, q) covariance
    r: float  # prior precision of the common slopes
    s2: float  # variance of the noise; 1 for families without noise
    cov: np.ndarray  # (q, q) posterior covariance of w: the inverse of the Schur complement
    log_evidence: float
    log_sd: np.ndarray  # (q,) standard deviation of the estimate of log(v_k)
    rounds: int

    @property
    def variances(self) -> np.ndarray:
        """Variances of the deviations, one for each column."""
        return self.V if self.V.ndim == 1 else np.diag(self.V)


class Mode(NamedTuple):
    """The current iterate of Newton's method, and the curvature before the last step."""

    w: np.ndarray
    moved: float  # reduction of the objective by the last step
    C: np.ndarray  # (q, q) sum of C_i
    CSC: np.ndarray  # (q, q) sum of C_i S^-1 C_i
    cov: np.ndarray  # (q, q) S^-1
    log_evidence: float  # without the constant of the family
    there: There  # sums at the current iterate


def newton(
    sums: Sums, w: np.ndarray, V: np.ndarray, r: float, s2: float, family: Family, evidence: bool = False
) -> Mode:
    """Take one safeguarded Newton step on w, and on the deviations of a sample (:class:`.sample.Sample`), which keeps
    them.

    If `evidence` is true, the Laplace evidence before the step is computed. Two passes over the sample are made: for
    the sums of the blocks, and for the sums after a full step; further passes halve a step that increases the
    objective.
    """
    while True:
        try:
            return _newton(sums, w, V, r, s2, family, evidence)
        except LostError:  # a process was lost: its agents' deviations were computed again
            continue


def _newton(sums: Sums, w: np.ndarray, V: np.ndarray, r: float, s2: float, family: Family, evidence: bool) -> Mode:
    q = len(w)
    R = np.append(np.full(q - 1, r), INTERCEPT_PRECISION)
    seen: Seen = total(sums, Sample.look, family, w, V, s2, evidence)
    C = 0.5 * (seen.C + seen.C.T)
    S = np.diag(R) + C
    cov, b = np.linalg.inv(S), seen.correction
    dw = cov @ (seen.pull - seen.gradient - R * w - b)
    here = seen.loss + 0.5 * seen.penalty + 0.5 * float(R @ (w * w))
    log = np.nan
    if evidence:
        log_det = seen.log_det + np.linalg.slogdet(S)[1]
        log = -here + 0.5 * (q - 1) * np.log(r) - 0.5 * log_det

    def value(there: There, w: np.ndarray) -> float:
        return there.loss + 0.5 * there.penalty + 0.5 * float(R @ (w * w)) + float(b @ w)

    before, t = here + float(b @ w), 1.0
    CSC, there = total(sums, Sample.move, dw, cov, again=False)
    while True:
        after = value(there, w + t * dw)
        if family.quadratic or after <= before + 1e-9 * abs(before) or t < 1e-3:
            break
        t *= 0.5
        there = total(sums, Sample.retreat, t, again=False)
    return Mode(w + t * dw, before - after, C, CSC, cov, float(log), there)


class Learner:
    """Learns the population of ``n`` agents in rounds; a stopped learner can be continued.

    The learner knows only sums over a sample's rows (:class:`.sample.Sample`). Rows are in standard units, with a
    column of ones last. ``free`` (q,) marks the columns that vary inside agents, and the intercept: only these can have
    personal coefficients. V is "full", "diagonal", or "scalar" (one variance for all slopes).
    """

    def __init__(
        self,
        sums: Sums,
        n: int,
        free: np.ndarray,
        family: Family,
        deviations: str = "full",
        progress: Callable[[], None] | None = None,
    ):
        self.sums, self.n, self.free, self.family, self.progress = sums, n, free, family, progress
        q = len(free)
        self.V, self.r, self.s2, self.w = free.astype(float), 1.0, 1.0, np.zeros(q)
        self.rows, labels = total(sums, Sample.begin, q)
        sums.remember("deviations", Sample.begin, q)
        if family.name == "poisson":
            self.w[-1] = np.log(max(labels / max(self.rows, 1.0), 1e-3))
        self.logs = PooledLogs(free[:-1], n, deviations == "scalar")
        self.to_be_full = deviations == "full"
        self.psi, self.rounds = self.V, 0

    def run(self, tol: float = 3e-3, rounds: int = 150) -> Learner:
        """Run rounds until one gains less than `tol` nats of evidence (in proportion more for more than 50 agents)."""
        many, since = max(1.0, self.n / 50.0), self.rounds
        while self.rounds < since + rounds:
            change, k = self.round() / many, self.rounds - since
            if self.to_be_full and self.V.ndim == 1:
                if (change < FULL_START_GAIN and k > 4) or k > 31:
                    self.psi, self.V, since = self.V, np.diag(self.V), self.rounds
            elif change < tol and k > 4:
                break
        return self

    def round(self) -> float:
        """Take one Newton step (several in the first round) and one step of the variances; return the gain in nats."""
        if self.progress is not None:
            self.progress()
        family, r, slopes = self.family, self.r, slice(0, len(self.w) - 1)
        for _ in range(30 if self.rounds == 0 and not family.noisy else 1):
            mode = self.step()
            if mode.moved < 1e-3:
                break
        self.rounds += 1
        w, V = self.w, self.V
        G = mode.C - mode.CSC  # minus twice the gradient of the log-determinants in V
        own = float(np.maximum(1.0 - r * np.diag(mode.cov)[slopes], 1e-6).sum())
        used = float(np.sum(np.diag(G) * V if V.ndim == 1 else G * V))
        if V.ndim == 1:
            self.V, change = self.logs.step(V, np.diag(G), mode.there.squares, mode.there.cross)
        else:
            personal = np.flatnonzero(self.free)
            self.V, change = full_step(V, G, mode.there.squares, mode.there.cross, self.psi, personal, self.n)
        if len(w) > 1:
            self.r = float(np.clip(own / max(float(w[slopes] @ w[slopes]), 1e-12), 1e-4, 1e6))
            change += 0.25 * own * np.log(self.r / r) ** 2
        if isinstance(family, NOISY):
            rows, s2, e2, used = self.rows, self.s2, mode.there.excess, used + own + 1.0
            ratio = e2 / (rows - used) if used < 0.9 * rows else (e2 + used) / rows
            self.s2 = max(s2 * float(np.exp(np.clip(np.log(max(ratio, 1e-9)), -1.0, 0.5))), 1e-7)
            change += 0.25 * rows * np.log(self.s2 / s2) ** 2
        return change

    def step(self, evidence: bool = False) -> Mode:
        """Take one Newton step."""
        mode = newton(self.sums, self.w, self.V, self.r, self.s2, self.family, evidence)
        self.w = mode.w
        # A worker that takes over agents restarts from their most likely deviations: exact for squared losses.
        here = Population(self.family, self.w, self.V, self.r, self.s2, mode.cov, np.nan, np.empty(0), self.rounds)
        self.sums.remember("deviations", Sample.restart, here)
        return mode

    def result(self) -> Population:
        """Return the learned population, after converging the mode."""
        for _ in range(20):
            mode = self.step(evidence=True)
            if mode.moved < 1e-6:
                break
        V, n, family, personal = self.V, self.n, self.family, self.free
        v, G = V if V.ndim == 1 else np.diag(V), mode.C - mode.CSC
        counted = np.zeros(len(v))
        counted[personal] = np.clip(np.diag(times(V, times(V, G).T))[personal] / v[personal], 0.0, n)
        information = counted**2 / (2.0 * n)
        constant = total(self.sums, Sample.constant, family, self.s2)
        evidence = mode.log_evidence + constant + self.logs.log_prior(V if V.ndim == 1 else self.psi, information)
        log_sd = 1.0 / np.sqrt(np.maximum(information + self.logs.precision(), 1e-12))
        return Population(family, self.w, V, self.r, self.s2, mode.cov, evidence, log_sd, self.rounds)


def left_out_loss(learner: Learner, population: Population) -> float:
    """Return the mean loss of rows left out one at a time."""
    loss, weights = total(learner.sums, Sample.left_out, population)
    return float(loss / max(weights, 1e-300))


class PooledLogs:
    """Steps of a diagonal V with logarithms pooled over slopes, log v_k ~ N(mu, tau2); the intercept is separate."""

    def __init__(self, free: np.ndarray, n: int, scalar: bool):
        self.slopes, self.n, self.scalar = np.flatnonzero(free), n, scalar
        self.mu, self.tau2, self.intercept = 0.0, 1.0, len(free)
        self.pooled = not scalar and len(self.slopes) > 2

    def step(self, V: np.ndarray, G: np.ndarray, squares: np.ndarray, cross: np.ndarray) -> tuple[np.ndarray, float]:
        """Return V after one step, and the approximate gain in nats.

        MacKay's fixed point is v_k = squares_k / gamma_k, squares_k = sum_i d_ik^2, gamma_k = n - sum_i Var_ik / v_k =
        v_k G_k; for classes and counts, 2 v_k cross_k, cross_k = sum_i b_ik d_ik, is subtracted from the numerator.
        """
        n, personal = self.n, np.append(self.slopes, self.intercept)
        gamma, a = np.ones(len(V)), np.zeros(len(V))
        gamma[personal] = np.clip(V[personal] * G[personal], 1e-6 * n, n)
        scaled = np.maximum(squares[personal] / V[personal], 1e-12)
        a[personal] = scaled * (1.0 - np.clip(2.0 * cross[personal] / scaled, -2.0, 0.7))
        logs = np.log(V[personal])
        new = logs.copy()
        new[-1] += _towards(a[-1], gamma[-1])
        if len(self.slopes):
            each, known = a[self.slopes], gamma[self.slopes]
            if self.scalar:
                new[:-1] += _towards(each.sum(), known.sum())
            elif self.pooled:
                new[:-1] = self._together(logs[:-1], each, known)
            else:
                new[:-1] += _towards(each, known)
        change = 0.25 * float(np.sum(gamma[personal] * (new - logs) ** 2))
        out = V.copy()
        out[personal] = np.maximum(np.exp(new), MIN_VARIANCE)
        return out, change

    def _together(self, logs: np.ndarray, a: np.ndarray, gamma: np.ndarray) -> np.ndarray:
        """Update the common scale of all variances, then each variance, then mu and tau2."""
        common = float(_towards(a.sum(), gamma.sum()))
        logs, self.mu, a = logs + common, self.mu + common, a * np.exp(-common)
        curvature = 0.5 * gamma + 1.0 / self.tau2
        logs = logs + np.clip((0.5 * (a - gamma) - (logs - self.mu) / self.tau2) / curvature, -2.0, 2.0)
        logs = np.maximum(logs, np.log(MIN_VARIANCE))
        self.mu = float(logs.mean())
        spread = np.mean((logs - self.mu) ** 2 + 1.0 / (gamma**2 / (2.0 * self.n) + 1.0 / self.tau2))
        self.tau2 = float(np.clip(spread**2 / self.tau2, 1e-3, 25.0))
        return logs

    def log_prior(self, v: np.ndarray, information: np.ndarray) -> float:
        """Return Laplace's integral over log v_k."""
        if not self.pooled:
            return 0.0
        off = (np.log(v[self.slopes]) - self.mu) ** 2 / self.tau2
        return -0.5 * float(np.sum(np.log1p(self.tau2 * information[self.slopes]) + off))

    def precision(self) -> np.ndarray:
        """Return the prior precision of log v_k."""
        out = np.zeros(self.intercept + 1)
        if self.pooled:
            out[self.slopes] = 1.0 / self.tau2
        return out


def _towards(a: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    """Return the over-relaxed step of the logarithm of a variance."""
    return OVER_RELAXATION * np.clip(np.log(np.maximum(a, 1e-12) / gamma), -2.0, 2.0)


def full_step(
    V: np.ndarray, G: np.ndarray, squares: np.ndarray, cross: np.ndarray, psi: np.ndarray, personal: np.ndarray, n: int
) -> tuple[np.ndarray, float]:
    """Take one step of a full V, shrunk to the diagonal psi; return V and the approximate gain in nats.

    Minorising the evidence in V gives V (G + nu V^-1) V = D'D + nu psi, solved by a matrix geometric mean. D'D and B'D
    are `squares` and `cross`, for the personal coordinates.
    """
    f = np.ix_(personal, personal)
    V, nu = V[f], 0.5 * len(personal)
    cross = V @ cross
    M = G[f] + nu * np.linalg.inv(V)
    target = geometric_mean(np.linalg.inv(0.5 * (M + M.T)), squares + nu * np.diag(psi[personal]) - cross - cross.T)
    L = np.linalg.cholesky(V + 1e-12 * np.diag(np.diag(V)))
    inverse = np.linalg.inv(L)
    e, U = np.linalg.eigh(inverse @ target @ inverse.T)
    # The square of the geometric mean's step is the fixed point's step; bounds prevent overshooting.
    e, L = np.clip(e, 0.2, 5.0), L @ U
    new = (L * e**2) @ L.T
    out = np.zeros_like(G)
    out[f] = 0.5 * (new + new.T)
    return out, 0.25 * n * float(np.sum(np.log(e) ** 2))


def geometric_mean(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return the geometric mean of two positive matrices, which minimises tr(A^-1 V) + tr(V^-1 B) over V."""
    L = np.linalg.cholesky(A)
    inverse = np.linalg.inv(L)
    e, U = np.linalg.eigh(inverse @ B @ inverse.T)
    LU = L @ U
    return (LU * np.sqrt(np.maximum(e, 0.0))) @ LU.T
