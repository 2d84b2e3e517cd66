"""What solvers are compared with: losses and the objective written out again, and rows of agents drawn at random.

Nothing here is shared with the library: formulas are those of the papers, in NumPy, an agent at a time.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg, optimize, sparse, special

import coterie as ct

SIGNED = (ct.Logistic, ct.Hinge, ct.SmoothHinge)


def examples(loss, z, y):
    """Loss, slope and curvature of examples with margins z and labels y; at a kink, the flat side."""
    z, y = np.asarray(z, float), np.asarray(y, float)
    match loss:
        case ct.Location():
            return examples(loss.loss, z, y)
        case ct.Squared():
            return (z - y) ** 2 / 2, z - y, np.ones(z.shape)
        case ct.Logistic():
            other = special.expit(-y * z)
            return np.logaddexp(0.0, -y * z), -y * other, other * (1 - other)
        case ct.Hinge():
            return np.maximum(0.0, 1 - y * z), np.where(y * z < 1, -y, 0.0), np.zeros(z.shape)
        case ct.SmoothHinge():
            gamma, short = loss.gamma, np.maximum(0.0, 1 - y * z)
            value = np.where(short <= gamma, short**2 / (2 * gamma), short - gamma / 2)
            return value, -y * np.minimum(1.0, short / gamma), ((short > 0) & (short < gamma)) / gamma
        case ct.Huber():
            r = np.abs(z - y)
            value = np.where(r <= loss.delta, r * r / 2, loss.delta * (r - loss.delta / 2))
            return value, np.clip(z - y, -loss.delta, loss.delta), (r < loss.delta) * 1.0


class Naive:
    """Q(Theta) = s sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_i a_i f_i(theta_i), one loop for each sum."""

    def __init__(self, kind, blocks, W, loss, mu=1.0, ridge=0.0, confidence=None):
        self.W, self.loss, self.n, self.p = W, loss, len(blocks), blocks[0][0].shape[1]
        self.D = W.sum(axis=1)
        self.m = np.array([len(X) for X, _ in blocks])
        self.s = 1.0 if kind == "collaborative" else 0.5
        c = np.ones(self.n) if confidence is None else np.asarray(confidence, dtype=float)
        self.a = {"collaborative": mu * self.D, "personalized": mu * self.D * c, "separate": np.ones(self.n)}[kind]
        self.r = np.zeros(self.n) + ridge
        self.each = np.array([1.0 if kind == "collaborative" else 1 / max(1, m) for m in self.m])
        self.rows = blocks  # features and labels of every scalar loss of an agent
        if isinstance(loss, ct.Location):
            self.rows = [(np.tile(np.eye(self.p), (len(X), 1)), X.ravel()) for X, _ in blocks]

    def examples(self, i, t):
        X, y = self.rows[i]
        return X, *(self.each[i] * part for part in examples(self.loss, X @ t, y))

    def f(self, i, t):
        return self.examples(i, t)[1].sum() + self.r[i] * float(t @ t)

    def f_gradient(self, i, t):
        X, _, slope, _ = self.examples(i, t)
        return X.T @ slope + 2 * self.r[i] * t

    def value(self, theta):
        apart = [
            self.W[i, j] * float(((theta[i] - theta[j]) ** 2).sum())
            for i in range(self.n)
            for j in range(i + 1, self.n)
        ]
        return self.s * sum(apart) + sum(self.a[i] * self.f(i, theta[i]) for i in range(self.n))

    def gradient(self, theta):
        out = np.zeros((self.n, self.p))
        for i in range(self.n):
            out[i] = self.a[i] * self.f_gradient(i, theta[i])
            for j in np.flatnonzero(self.W[i]):
                out[i] += 2 * self.s * self.W[i, j] * (theta[i] - theta[j])
        return out

    def quadratic(self):
        """The Hessian of smoothness and ridges, (n p, n p)."""
        H = np.kron(2 * self.s * (np.diag(self.D) - self.W), np.eye(self.p))
        return H + np.kron(np.diag(2 * self.a * self.r), np.eye(self.p))

    def hessian(self, theta):
        H = self.quadratic()
        for i in range(self.n):
            here = slice(i * self.p, (i + 1) * self.p)
            X, _, _, bend = self.examples(i, theta[i])
            H[here, here] += self.a[i] * (X.T * bend) @ X
        return H

    def minimise(self):
        """By L-BFGS-B from zero, then by damped Newton steps, with SciPy and NumPy only."""
        shape = (self.n, self.p)
        rough = optimize.minimize(
            lambda t: self.value(t.reshape(shape)),
            np.zeros(self.n * self.p),
            jac=lambda t: self.gradient(t.reshape(shape)).ravel(),
            method="L-BFGS-B",
            options={"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-10},
        )
        theta = rough.x.reshape(shape)
        best = self.value(theta)
        for _ in range(30):
            step = linalg.lstsq(self.hessian(theta), self.gradient(theta).ravel())[0].reshape(shape)
            length = 1.0
            while length > 1e-3 and not self.value(theta - length * step) < best:
                length /= 2
            if length <= 1e-3:
                break
            theta = theta - length * step
            best = self.value(theta)
        return theta

    def scale(self):
        """Size of the gradient's terms at zero, to compare a gradient with."""
        return np.abs(self.gradient(np.zeros((self.n, self.p)))).max()


def hinge_bound(H, A, cap):
    """A lower bound on min_t t'Ht/2 + cap . max(0, 1 - A t): the dual at any 0 <= u <= cap, here at a good one.

    The dual is 1'u - |F u|^2 / 2 with F = L^-1 A', H = L L'. SciPy's L-BFGS-B, then Newton steps on the free set.
    """
    F = linalg.solve_triangular(linalg.cholesky(H, lower=True), A.T, lower=True)
    K = F.T @ F

    def bound(u):
        u = np.clip(u, 0, cap)
        return u.sum() - 0.5 * float(u @ K @ u), u

    u = optimize.minimize(
        lambda u: 0.5 * float(u @ K @ u) - u.sum(),
        cap / 2,
        jac=lambda u: K @ u - 1,
        method="L-BFGS-B",
        bounds=[(0, c) for c in cap],
        options={"maxiter": 20000, "maxfun": 20000, "ftol": 0.0, "gtol": 1e-12, "maxcor": 50},
    ).x
    best, u = bound(u)
    for _ in range(50):
        free = (u > 1e-9 * cap) & (u < cap - 1e-9 * cap)
        if not free.any():
            break
        rest = np.where(free, 0.0, np.where(u > cap / 2, cap, 0.0))
        new = rest.copy()
        new[free] = np.linalg.lstsq(K[np.ix_(free, free)], 1 - K[free] @ rest, rcond=1e-12)[0]
        length, found = 1.0, False
        while length > 1e-4 and not found:
            value, candidate = bound(u + length * (new - u))
            found = value > best
            length /= 2
        if not found:
            break
        best, u = value, candidate
    return best


def random_weights(rng, n, low=0.2, high=2.0, chords=0.3):
    """Connected: a path, plus some chords."""
    W = np.triu(rng.random((n, n)) < chords, 2) * rng.uniform(low, high, (n, n))
    W[np.arange(n - 1), np.arange(1, n)] = rng.uniform(low, high, n - 1)
    return W + W.T


def random_blocks(rng, sizes, p, loss, noise=0.5):
    """Features and labels of each agent, whose models lie around a common one."""
    centre = rng.normal(size=p)
    blocks = []
    for m in sizes:
        X = np.where(rng.random((m, p)) < 0.8, rng.normal(size=(m, p)), 0.0)  # some zeros for CSR to skip
        z = X @ (centre + 0.5 * rng.normal(size=p)) + noise * rng.normal(size=m)
        blocks.append((X, np.where(z > 0, 1.0, -1.0) if isinstance(loss, SIGNED) else z))
    return blocks


def dense(data):
    return data.X.toarray() if data.is_sparse else np.asarray(data.X)


def assert_same_rows(a, b):
    """Two AgentData hold the same, in the same places; one may be sparse."""
    assert a.members == b.members
    assert a.feature_names == b.feature_names
    assert all(data.X.has_canonical_format for data in (a, b) if data.is_sparse)
    np.testing.assert_array_equal(dense(a), dense(b))
    for name in ("start", "sizes", "owner", "origin"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
        assert getattr(a, name).dtype == getattr(b, name).dtype == np.int64, name
    assert (a.y is None) == (b.y is None)
    if a.y is not None:
        np.testing.assert_array_equal(a.y, b.y)


def loads(data, a):
    """``b_i = 1/n_i sum_j a_ij x_ij`` of dual variables, for each task."""
    b = np.zeros((data.n, data.p))
    np.add.at(b, data.owner, (a / data.sizes[data.owner])[:, None] * dense(data))
    return b


def as_data(blocks, loss, kind="dense"):
    X = np.vstack([X for X, _ in blocks])
    y = None if isinstance(loss, ct.Location) else np.concatenate([y for _, y in blocks])
    owners = np.repeat(np.arange(len(blocks)), [len(X) for X, _ in blocks])
    return ct.AgentData(sparse.csr_array(X) if kind == "sparse" else X, y, agents=owners, members=range(len(blocks)))
