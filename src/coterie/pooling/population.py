"""The population: a common model w, the covariance V of personal deviations, and how strongly each is believed.

    theta_i = w + d_i,  d_i ~ N(0, V),  w ~ N(0, 1/r) on slopes, flat on the intercept,  y | theta_i as the family says

See docs/math.md, section 6. The mode of (w, d_1, ..., d_n) is found by Newton's method over blocks (:mod:`.blocks`),
with w by its Schur complement; the strengths V, r and the noise s2 by fixed points of the Laplace evidence, one Newton
step and one step of the strengths in turn. Nothing is of size n q x n q, and nothing is compiled.

V is full, shrunk (inverse Wishart, nu = q / 2) to a diagonal whose logarithms are themselves pooled,
log v_k ~ N(mu, tau2), with mu and tau2 learned, too: nothing collapses where rows say little.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .blocks import times
from .families import NOISY, Family
from .leaps import Leaps
from .sample import Sample, Seen, There
from .sums import LostError, Sums, total

#: Variance, in standard units, below which a coordinate is taken not to differ between agents.
SMALLEST = 2e-9
#: The same of the noise.
LEAST_NOISE = 1e-7
#: Precision of the common intercept: flat.
FLAT = 1e-6
#: Over-relaxation of the fixed points: 1.5 is safe and 2 is not.
RELAX = 1.5
#: A diagonal V is good enough to shrink a full one to it when a round gains less than this, in nats.
START_FULL = 0.1
#: What all rounds to come may gain, in units of what one may.
WHOLE = 2.0


class Population(NamedTuple):
    """What all agents have in common, in the units of the design's columns."""

    family: Family
    w: np.ndarray  # (q,) the common model; the intercept is last
    V: np.ndarray  # (q,) variances of deviations, or their (q, q) covariance
    r: float  # prior precision of the common slopes
    s2: float  # variance of the noise, 1 where there is none
    cov: np.ndarray  # (q, q) posterior covariance of w: the inverse of the Schur complement
    log_evidence: float
    log_sd: np.ndarray  # (q,) how uncertain log(v_k) is: one standard deviation
    rounds: int

    @property
    def variances(self) -> np.ndarray:
        """Of the deviations, one for each column."""
        return self.V if self.V.ndim == 1 else np.diag(self.V)


class Mode(NamedTuple):
    """Where Newton's method stands, and the curvature there (before the last step)."""

    w: np.ndarray
    moved: float  # by how much the last step lowered the objective
    C: np.ndarray  # (q, q) sum of C_i
    CSC: np.ndarray  # (q, q) sum of C_i S^-1 C_i
    cov: np.ndarray  # (q, q) S^-1
    log_evidence: float  # without the constant of the family
    there: There  # sums where it stands


def newton(
    sums: Sums, w: np.ndarray, V: np.ndarray, r: float, s2: float, family: Family, evidence: bool = False
) -> Mode:
    """One safeguarded Newton step on w, and on the deviations of a sample (:class:`.sample.Sample`), which it keeps.

    With the Laplace evidence before it, if asked for. It asks twice: for the sums of the blocks, and for those after a
    full step; more often where that goes too far.
    """
    while True:
        try:
            return _newton(sums, w, V, r, s2, family, evidence)
        except LostError:  # the deviations of some agents were found anew
            continue


def _newton(sums: Sums, w: np.ndarray, V: np.ndarray, r: float, s2: float, family: Family, evidence: bool) -> Mode:
    q = len(w)
    R = np.append(np.full(q - 1, r), FLAT)
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
    """Learns a population of ``n`` agents by rounds; where it stopped, it can go on.

    What it knows of their rows are sums of samples (:class:`.sample.Sample`). Rows are in standard units, with a column
    of ones last. ``free`` (q,) are columns that vary inside agents, and the intercept: only these can have personal
    coefficients. V is "full", "diagonal", or "scalar": one variance for all slopes.
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
        self.value, self.weights, self.leaps = -np.inf, np.empty(0), Leaps()  # see round()

    def run(self, tol: float = 3e-3, rounds: int = 150) -> Learner:
        """Rounds until one gains less than `tol` nats of evidence (more, in proportion, for more than 50 agents)."""
        many, since = max(1.0, self.n / 50.0), self.rounds
        while self.rounds < since + rounds:
            at = self.logarithms()
            change, k = self.round(self.leaps.ready) / many, self.rounds - since
            end = self.logarithms()
            # Of classes and counts, what the steps raise is no evidence: it is corrected.
            on = self.leaps.after(at, end, self.weights, self.value) if self.family.noisy else end
            if self.to_be_full and self.V.ndim == 1:
                if (change < START_FULL and k > 4) or k > 31:
                    self.psi, self.V, since, self.leaps = self.V, np.diag(self.V), self.rounds, Leaps()
                    continue
            elif change < tol and self.leaps.left < WHOLE * tol * many and k > 4:
                break
            if on is not end:
                self.set_logarithms(on)
        return self

    def logarithms(self) -> np.ndarray:
        """Of all strengths; of a full V, in units of the diagonal that it is shrunk to."""
        logs, k = self.logs, np.flatnonzero(self.free)
        rest = [np.log(self.r), np.log(self.s2)]
        if self.V.ndim == 1:
            return np.append(np.log(self.V[k]), [logs.mu, np.log(logs.tau2), *rest])
        unit = np.sqrt(self.psi[k])
        e, U = np.linalg.eigh(self.V[np.ix_(k, k)] / np.outer(unit, unit))
        return np.append((U * np.log(np.maximum(e, 1e-300))) @ U.T, rest)

    def set_logarithms(self, x: np.ndarray) -> None:
        """Strengths from these."""
        logs, k = self.logs, np.flatnonzero(self.free)
        self.r, self.s2 = float(np.clip(np.exp(x[-2]), 1e-4, 1e6)), max(float(np.exp(x[-1])), LEAST_NOISE)
        self.V = np.zeros_like(self.V)
        if self.V.ndim == 1:
            self.V[k] = np.maximum(np.exp(x[: len(k)]), SMALLEST)
            logs.mu, logs.tau2 = float(x[-4]), float(np.clip(np.exp(x[-3]), 1e-3, 25.0))
            return
        unit, (e, U) = np.sqrt(self.psi[k]), np.linalg.eigh(x[:-2].reshape(len(k), len(k)))
        self.V[np.ix_(k, k)] = (U * np.exp(e)) @ U.T * np.outer(unit, unit)

    def round(self, evidence: bool = False) -> float:
        """One Newton step (more, before the first) and one step of the strengths; about how many nats were gained.

        With the evidence of the strengths before it as ``value``, up to a constant, if asked for.
        """
        if self.progress is not None:
            self.progress()
        family, r, slopes = self.family, self.r, slice(0, len(self.w) - 1)
        for _ in range(30 if self.rounds == 0 and not family.noisy else 1):
            mode = self.step(evidence)
            if mode.moved < 1e-3:
                break
        self.rounds += 1
        w, V = self.w, self.V
        G = mode.C - mode.CSC  # minus twice the gradient of the log-determinants in V
        own = float(np.maximum(1.0 - r * np.diag(mode.cov)[slopes], 1e-6).sum())
        used = float(np.sum(np.diag(G) * V if V.ndim == 1 else G * V))
        weights = np.append(own + 1e-6, self.rows)
        self.value = mode.log_evidence + mode.moved - (0.5 * self.rows * np.log(self.s2) if family.noisy else 0.0)
        if V.ndim == 1:
            counted = np.diag(G) * V
            self.value += self.logs.log_prior(V, counted**2 / (2.0 * self.n))
            self.weights = np.concatenate([np.maximum(counted[self.free], 1e-6), [1e-6, 1e-6], weights])
            self.V, change = self.logs.step(V, np.diag(G), mode.there.squares, mode.there.cross)
        else:
            personal = np.flatnonzero(self.free)
            k = len(personal)
            logs = self.logarithms()[:-2].reshape(k, k)
            self.value -= 0.25 * k * float(np.trace(logs) + np.exp(-np.linalg.eigvalsh(logs)).sum())
            self.weights = np.append(np.full(k * k, max(used / k, 1e-6)), weights)
            self.V, change = full_step(V, G, mode.there.squares, mode.there.cross, self.psi, personal, self.n)
        if len(w) > 1:
            self.r = float(np.clip(own / max(float(w[slopes] @ w[slopes]), 1e-12), 1e-4, 1e6))
            change += 0.25 * own * np.log(self.r / r) ** 2
        if isinstance(family, NOISY):
            rows, s2, e2, used = self.rows, self.s2, mode.there.excess, used + own + 1.0
            ratio = e2 / (rows - used) if used < 0.9 * rows else (e2 + used) / rows
            self.s2 = max(s2 * float(np.exp(np.clip(np.log(max(ratio, 1e-9)), -1.0, 0.5))), LEAST_NOISE)
            change += 0.25 * rows * np.log(self.s2 / s2) ** 2
        return change

    def step(self, evidence: bool = False) -> Mode:
        """One Newton step."""
        mode = newton(self.sums, self.w, self.V, self.r, self.s2, self.family, evidence)
        self.w = mode.w
        # After a step, squared losses have the deviations that are most likely; others soon do.
        here = Population(self.family, self.w, self.V, self.r, self.s2, mode.cov, np.nan, np.empty(0), self.rounds)
        self.sums.remember("deviations", Sample.restart, here)
        return mode

    def result(self) -> Population:
        """The population as far as it is learned; the mode is converged first."""
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
    """Mean loss of rows left out one at a time."""
    loss, weights = total(learner.sums, Sample.left_out, population)
    return float(loss / max(weights, 1e-300))


class PooledLogs:
    """Steps of a diagonal V whose logarithms are pooled over slopes, log v_k ~ N(mu, tau2); the intercept is apart."""

    def __init__(self, free: np.ndarray, n: int, scalar: bool):
        self.slopes, self.n, self.scalar = np.flatnonzero(free), n, scalar
        self.mu, self.tau2, self.intercept = 0.0, 1.0, len(free)
        self.pooled = not scalar and len(self.slopes) > 2

    def step(self, V: np.ndarray, G: np.ndarray, squares: np.ndarray, cross: np.ndarray) -> tuple[np.ndarray, float]:
        """V after one step, and about how many nats it gained.

        MacKay's fixed point is v_k = squares_k / gamma_k, squares_k = sum_i d_ik^2, gamma_k = n - sum_i Var_ik / v_k =
        v_k G_k; classes and counts take 2 v_k cross_k, cross_k = sum_i b_ik d_ik, from the numerator.
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
        new = np.maximum(new, np.log(SMALLEST))  # what cannot fall any more gains nothing
        change = 0.25 * float(np.sum(gamma[personal] * (new - logs) ** 2))
        out = V.copy()
        out[personal] = np.maximum(np.exp(new), SMALLEST)
        return out, change

    def _together(self, logs: np.ndarray, a: np.ndarray, gamma: np.ndarray) -> np.ndarray:
        """First the scale that is common to all, then each; then mu and tau2."""
        common = float(_towards(a.sum(), gamma.sum()))
        logs, self.mu, a = logs + common, self.mu + common, a * np.exp(-common)
        curvature = 0.5 * gamma + 1.0 / self.tau2
        logs = logs + np.clip((0.5 * (a - gamma) - (logs - self.mu) / self.tau2) / curvature, -2.0, 2.0)
        logs = np.maximum(logs, np.log(SMALLEST))
        self.mu = float(logs.mean())
        spread = np.mean((logs - self.mu) ** 2 + 1.0 / (gamma**2 / (2.0 * self.n) + 1.0 / self.tau2))
        self.tau2 = float(np.clip(spread**2 / self.tau2, 1e-3, 25.0))
        return logs

    def log_prior(self, v: np.ndarray, information: np.ndarray) -> float:
        """Laplace's integral over log v_k."""
        if not self.pooled:
            return 0.0
        off = (np.log(v[self.slopes]) - self.mu) ** 2 / self.tau2
        return -0.5 * float(np.sum(np.log1p(self.tau2 * information[self.slopes]) + off))

    def precision(self) -> np.ndarray:
        """Of log v_k, a priori."""
        out = np.zeros(self.intercept + 1)
        if self.pooled:
            out[self.slopes] = 1.0 / self.tau2
        return out


def _towards(a: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    """The over-relaxed step of the logarithm of a variance."""
    return RELAX * np.clip(np.log(np.maximum(a, 1e-12) / gamma), -2.0, 2.0)


def full_step(
    V: np.ndarray, G: np.ndarray, squares: np.ndarray, cross: np.ndarray, psi: np.ndarray, personal: np.ndarray, n: int
) -> tuple[np.ndarray, float]:
    """One step of a full V, shrunk to the diagonal psi, and about how many nats it gained.

    Minorising the evidence in V gives V (G + nu V^-1) V = D'D + nu psi, solved by a matrix geometric mean. D'D and B'D
    are `squares` and `cross`, of personal coordinates.
    """
    f = np.ix_(personal, personal)
    V, nu = V[f], 0.5 * len(personal)
    cross = V @ cross
    M = G[f] + nu * np.linalg.inv(V)
    target = geometric_mean(np.linalg.inv(0.5 * (M + M.T)), squares + nu * np.diag(psi[personal]) - cross - cross.T)
    L = np.linalg.cholesky(V + 1e-12 * np.diag(np.diag(V)))
    inverse = np.linalg.inv(L)
    e, U = np.linalg.eigh(inverse @ target @ inverse.T)
    # The square of the mean's step is the fixed point's; bounded, so that it cannot overshoot by much.
    e, L = np.clip(e, 0.2, 5.0), L @ U
    new = (L * e**2) @ L.T
    out = np.zeros_like(G)
    out[f] = 0.5 * (new + new.T)
    return out, 0.25 * n * float(np.sum(np.log(e) ** 2))


def geometric_mean(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """The geometric mean of two positive matrices: what minimises tr(A^-1 V) + tr(V^-1 B)."""
    L = np.linalg.cholesky(A)
    inverse = np.linalg.inv(L)
    e, U = np.linalg.eigh(inverse @ B @ inverse.T)
    LU = L @ U
    return (LU * np.sqrt(np.maximum(e, 0.0))) @ LU.T
