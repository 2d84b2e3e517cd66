"""References of tests, in plain NumPy, written from the papers' own equations; none uses the library.

An agent's loss f_i with its derivatives; the argmin of f_i plus a quadratic by a solver of another kind than the
library's (linear systems, Newton's method, enumeration of active sets); then each method with dictionaries of copies,
edge variables and multipliers as docs/math.md has them; and problems that have the same data as these.

An agent without edges has nobody to agree with: by convention it keeps the model that it trains alone, so it starts
there, is woken now and then (event (i, -1)), and must stay.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import numpy as np
from scipy import sparse

import coterie as ct
from references import examples

GAMMA, DELTA = 0.5, 0.4
LOSSES = {
    "squared": ct.Squared(),
    "logistic": ct.Logistic(),
    "hinge": ct.Hinge(),
    "smooth-hinge": ct.SmoothHinge(GAMMA),
    "huber": ct.Huber(DELTA),
    "location": ct.Location(ct.Squared()),
    "location-huber": ct.Location(ct.Huber(DELTA)),
}
#: Features are sparse here: few, because each pair of a loss and a kind of features is compiled once.
SPARSE = {("separate", "squared"), ("collaborative", "logistic")}
N, P, SILENT, LONELY = 7, 3, 3, 6
SIZES = np.array([5, 1, 4, 0, 2, 3, 4])


# ---------------------------------------------------------------- reference: the loss of an agent


class Personal:
    """f_i: ``each`` times the sum of the losses of the agent's examples, and ``ridge |t|^2``."""

    def __init__(self, loss, X, y, each, ridge):
        self.loss, self.X, self.y, self.each, self.ridge = loss, X, y, each, ridge

    def __call__(self, t):
        """Value, gradient, Hessian."""
        if self.loss.startswith("location"):
            value, slope, bend = examples(LOSSES[self.loss], np.broadcast_to(t, self.X.shape), self.X)
            gradient, hessian = slope.sum(axis=0), np.diag(bend.sum(axis=0))
        else:
            value, slope, bend = examples(LOSSES[self.loss], self.X @ t, self.y)
            gradient, hessian = self.X.T @ slope, self.X.T @ (bend[:, None] * self.X)
        return (
            self.each * value.sum() + self.ridge * t @ t,
            self.each * gradient + 2 * self.ridge * t,
            self.each * hessian + 2 * self.ridge * np.eye(len(t)),
        )

    def smoothness(self):
        """L_i^loc, from the largest eigenvalue of X'X."""
        most = {"logistic": 0.25, "smooth-hinge": 1 / GAMMA}.get(self.loss, 1.0)
        if self.loss.startswith("location"):  # p examples for each point, with unit vectors for features
            top = len(self.X)
        else:
            top = np.linalg.norm(self.X, 2) ** 2 if len(self.X) else 0.0
        return self.each * most * top + 2 * self.ridge


def argmin(f, a, H, g, p):
    """argmin over x of ``x'Hx/2 - g'x + a f(first p of x)``, accurate to about 1e-12."""
    if f.loss == "hinge":
        S, h = eliminated(H, g, p)
        np.testing.assert_allclose(S, S[0, 0] * np.eye(p), atol=1e-12)
        return completed(H, g, hinge(f, a, S[0, 0], h))
    x = np.zeros(len(g))
    for _ in range(60):
        value, gradient, hessian = f(x[:p])
        slope, bend = H @ x - g, H.copy()
        slope[:p] += a * gradient
        bend[:p, :p] += a * hessian
        if f.loss in ("squared", "location"):
            return x - np.linalg.solve(bend, slope)
        if np.abs(slope).max() <= 1e-13 * (1 + np.abs(g).max()):
            return x
        move = -np.linalg.solve(bend, slope)
        before = x @ H @ x / 2 - g @ x + a * value
        noise = 1e-13 * (1 + abs(before))
        for step in 0.5 ** np.arange(40):
            y = x + step * move
            if y @ H @ y / 2 - g @ y + a * f(y[:p])[0] <= before + 1e-4 * step * slope @ move + noise:
                break
        x = y
    assert np.abs(slope).max() <= 1e-11 * (1 + np.abs(g).max()), "the reference does not converge"
    return x


def eliminated(H, g, p):
    """What is left of ``x'Hx/2 - g'x`` for the first p of x when the others take their best values."""
    rest = np.linalg.solve(H[p:, p:], np.column_stack([H[p:, :p], g[p:]])) if len(g) > p else np.zeros((0, p + 1))
    return H[:p, :p] - H[:p, p:] @ rest[:, :p], g[:p] - H[:p, p:] @ rest[:, p]


def completed(H, g, t):
    """x whose first entries are t, and the others the best for it."""
    p = len(t)
    return np.concatenate([t, np.linalg.solve(H[p:, p:], g[p:] - H[p:, :p] @ t)]) if len(g) > p else t


def hinge(f, a, w, h):
    """argmin ``a f(t) + w |t|^2 / 2 - h't``: examples are short of the margin, on it, or beyond; try all cases."""
    kappa, pull = w + 2 * a * f.ridge, a * f.each
    Z, m = f.y[:, None] * f.X, len(f.X)
    for kind in sorted(itertools.product((0, 1, 2), repeat=m), key=lambda kind: kind.count(1)):
        short, on = np.array(kind, int) == 2, np.array(kind, int) == 1
        t = (h + pull * Z[short].sum(axis=0)) / kappa
        if on.any():
            gram = Z[on] @ Z[on].T * pull / kappa
            if np.linalg.matrix_rank(gram, tol=1e-10) < on.sum():
                continue
            u = np.linalg.solve(gram, 1 - Z[on] @ t)
            if (u < -1e-9).any() or (u > 1 + 1e-9).any():
                continue
            t = t + pull / kappa * Z[on].T @ u
        margin = Z @ t
        if (margin[short] <= 1 + 1e-9).all() and (margin[~short & ~on] >= 1 - 1e-9).all():
            return t
    raise AssertionError("no case fits")


# ---------------------------------------------------------------- reference: the methods


class Setting(NamedTuple):
    """``s sum_{i<j} W_ij |t_i - t_j|^2 + sum_i a_i f_i(t_i)``."""

    W: np.ndarray
    s: float
    a: np.ndarray
    f: list

    def neighbours(self, i):
        return [int(j) for j in np.flatnonzero(self.W[i])]

    def copies(self, theta, known=None):
        """The initial swap; of an edge that is there already, what is known stays."""
        known = known or {}
        return {
            i: {j: known.get(i, {}).get(j, theta[j].copy()) for j in self.neighbours(i)} for i in range(len(self.W))
        }

    def alone(self, i):
        p = self.f[i].X.shape[1]
        return argmin(self.f[i], 1.0, np.zeros((p, p)), np.zeros(p), p)


def djam_step(setting, copies, i):
    """DJAM (4): argmin of s sum_k W_ik |t - copy_k|^2 + a_i f_i(t)."""
    p = setting.f[i].X.shape[1]
    H = 2 * setting.s * setting.W[i].sum() * np.eye(p)
    g = 2 * setting.s * sum(setting.W[i, k] * copies[k] for k in copies)
    return argmin(setting.f[i], setting.a[i], H, g, p)


class Copies:
    """MP (5) and (6) and DJAM (4): copies[i][j] is what i has heard of j; ``step`` makes a model of them."""

    def __init__(self, setting, start, step=djam_step):
        self.theta, self.copies, self.step = start.copy(), {}, step
        self.change(setting)

    def change(self, setting):
        """Other data and edges: new neighbours swap their models."""
        self.setting, self.copies = setting, setting.copies(self.theta, self.copies)

    def gossip(self, events):
        """i and j swap models, then both update."""
        theta, copies = self.theta, self.copies
        for i, j in events:
            if j >= 0:
                copies[i][j], copies[j][i] = theta[j].copy(), theta[i].copy()
                theta[[i, j]] = [self.step(self.setting, copies[k], k) for k in (i, j)]
            yield theta.copy()

    def rounds(self, count):
        """All update from the models of the last round."""
        for _ in range(count):
            copies = self.setting.copies(self.theta)
            for i in copies:
                if copies[i]:
                    self.theta[i] = self.step(self.setting, copies[i], i)
            yield self.theta.copy()


def descent(setting, start, events):
    """CD (5), with mu c_i = a_i / (2 s D_ii), and broadcasts."""
    theta, copies = start.copy(), setting.copies(start)
    seen = [theta.copy()]
    for i in events:
        D = setting.W[i].sum()
        if D > 0:
            trust = setting.a[i] / (2 * setting.s * D)
            step = 1 / (1 + trust * setting.f[i].smoothness())
            mean = sum(setting.W[i, j] / D * copies[i][j] for j in copies[i])
            theta[i] = (1 - step) * theta[i] + step * (mean - trust * setting.f[i](theta[i])[1])
        for j in copies[i]:
            copies[j][i] = theta[i].copy()
        seen.append(theta.copy())
    return np.array(seen)


class Multipliers:
    """CL-ADMM, Section 4.2 and Appendix D: T[i][k] is T_i^k; Z[i, j][k] is Z_ei^k and L[i, j][k] L_ei^k, e = (i, j)."""

    def __init__(self, setting, start, rho, steps=0):
        self.rho, self.steps = rho, steps
        self.T = [{i: start[i].copy()} for i in range(len(start))]
        self.Z, self.L = {}, {}
        self.change(setting)

    def change(self, setting):
        """Other data and edges: new neighbours start from a swap of their models and no multipliers."""
        self.setting = setting
        ends = [(i, j) for i in range(len(self.T)) for j in setting.neighbours(i)]
        self.Z = {(i, j): self.Z.get((i, j), {k: self.T[k][k].copy() for k in (i, j)}) for i, j in ends}
        self.L = {(i, j): self.L.get((i, j), {k: np.zeros_like(self.T[k][k]) for k in (i, j)}) for i, j in ends}

    @property
    def theta(self):
        return np.array([self.T[i][i] for i in range(len(self.T))])

    def primal(self, i):
        """Step 1, jointly in T_i^i and all T_i^j; an agent's share of the smoothness term is s/2."""
        setting, rho = self.setting, self.rho
        f, a, p = setting.f[i], setting.a[i], len(self.T[i][i])
        models = [i, *setting.neighbours(i)]
        H, g = np.zeros((len(models), len(models))), np.zeros((len(models), p))
        for k, j in enumerate(models[1:], start=1):
            pull = 2 * (setting.s / 2) * setting.W[i, j]  # the second derivative of s/2 W |T^i - T^j|^2
            H[0, 0] += pull + rho
            H[k, k] += pull + rho
            H[0, k] -= pull
            H[k, 0] -= pull
            g[0] += rho * self.Z[i, j][i] - self.L[i, j][i]
            g[k] += rho * self.Z[i, j][j] - self.L[i, j][j]
        H, g = np.kron(H, np.eye(p)), g.ravel()
        if self.steps:
            S, h = eliminated(H, g, p)
            t = self.T[i][i].copy()
            for _ in range(self.steps):
                t = t - (a * f(t)[1] + S @ t - h) / (S[0, 0] + a * f.smoothness())
            x = completed(H, g, t)
        else:
            x = argmin(f, a, H, g, p)
        self.T[i] = dict(zip(models, x.reshape(-1, p), strict=True))

    def settle(self, i, j):
        """Steps 2 and 3 on the edge of i and j, at both ends."""
        T, Z, L, rho = self.T, self.Z, self.L, self.rho
        for here, there in ((i, j), (j, i)):
            Z[here, there] = {
                k: ((L[here, there][k] + L[there, here][k]) / rho + T[here][k] + T[there][k]) / 2 for k in (i, j)
            }
        for k in (i, j):
            np.testing.assert_allclose(Z[i, j][k], Z[j, i][k], rtol=0, atol=1e-12)  # Z in C_E
        for here, there in ((i, j), (j, i)):
            for k in (i, j):
                L[here, there][k] = L[here, there][k] + rho * (T[here][k] - Z[here, there][k])

    def gossip(self, events):
        for i, j in events:
            if j >= 0:
                self.primal(i)
                self.primal(j)
                self.settle(i, j)
            yield self.theta

    def rounds(self, count):
        for _ in range(count):
            for i in range(len(self.T)):
                if self.setting.neighbours(i):
                    self.primal(i)
            for i, j in self.Z:
                if i < j:
                    self.settle(i, j)
            yield self.theta


# ---------------------------------------------------------------- problems


def weights(rng):
    """A ring with two chords; the last agent has no edges."""
    W = np.zeros((N, N))
    ring = [(i, (i + 1) % (N - 1)) for i in range(N - 1)]
    for i, j in [*ring, (0, 2), (1, 4)]:
        W[i, j] = W[j, i] = rng.uniform(0.3, 2.0)
    return W


@functools.cache
def example(objective, loss):
    """A problem with an agent without data and one without edges, and the same for the references."""
    rng = np.random.default_rng([len(objective), *loss.encode()])
    W, mu = weights(rng), 0.6
    D, ridge = W.sum(axis=1), rng.uniform(0.02, 0.2, N)
    if objective == "propagation":
        models, c, alpha = rng.normal(size=(N, P)), rng.uniform(0.2, 1.0, N), 0.6
        c[SILENT] = 0.0
        problem = ct.Problem.propagation(models, ct.Graph(W), alpha=alpha, confidence=c)
        f = [Personal(loss, models[[i]], None, 1.0, 0.0) for i in range(N)]
        return problem, Setting(W, 0.5, (1 - alpha) / alpha * c * D, f)
    X = [np.where(rng.random((m, P)) < 0.8, rng.normal(size=(m, P)), 0.0) for m in SIZES]
    y = [x @ rng.normal(size=P) + 0.5 * rng.normal(size=len(x)) for x in X]
    if LOSSES[loss].labels != ct.Squared().labels:
        y = [np.where(z > 0, 1.0, -1.0) for z in y]
    rows = np.vstack(X)
    data = ct.AgentData(
        sparse.csr_array(rows) if (objective, loss) in SPARSE else rows,
        None if loss.startswith("location") else np.concatenate(y),
        agents=np.repeat(np.arange(N), SIZES),
        members=range(N),
    )
    c = np.ones(N)
    options = {"loss": LOSSES[loss], "ridge": ridge}
    if objective != "separate":
        options["mu"] = mu
    if objective == "personalized":
        if loss == "logistic":  # confidence and ridge by the sizes
            options["ridge"] = "1/m"
            ridge = np.where(SIZES > 0, 1 / np.maximum(SIZES, 1), 0.0)
            c = np.where(SIZES > 0, SIZES / SIZES.max(), 1e-9)
        else:
            options["confidence"] = c = rng.uniform(0.2, 1.0, N)
    problem = getattr(ct.Problem, objective)(data, ct.Graph(W), **options)
    each = np.ones(N) if objective == "collaborative" else 1 / np.maximum(SIZES, 1)
    f = [Personal(loss, X[i], y[i], each[i], ridge[i]) for i in range(N)]
    a = np.ones(N) if objective == "separate" else mu * D * c
    return problem, Setting(W, 1.0 if objective == "collaborative" else 0.5, a, f)


def assert_optimal(problem, theta):
    """Objective within 1e-8, relative; models within 1e-6 where they are determined."""
    best = problem.solve()
    value = problem.value(best)
    assert problem.value(theta) - value <= 1e-8 * abs(value)
    assert problem.determined.any()
    assert np.abs(theta - best)[problem.determined].max() <= 1e-6
