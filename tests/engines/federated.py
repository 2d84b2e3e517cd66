"""Methods with a server as their papers write them, in plain NumPy: what coterie's are compared with.

Nothing of coterie's own methods is used. Shared is only what has to be: which rows a die picks, which clients a round
has, and which number of the seed's stream is whose.
"""

from __future__ import annotations

import numpy as np

from coterie.core.methods.server import GOLDEN_FRACTION
from coterie.engines.drivers import seeds


def logistic_gradient(theta, X, y):
    return X.T @ (-y / (1.0 + np.exp(y * (X @ theta)))) / len(y)


def logistic_loss(theta, X, y):
    return np.log1p(np.exp(-y * (X @ theta))).mean()


def network(hidden, classes):
    """Loss and gradient of two layers: tanh, then softmax and cross entropy."""

    def parts(theta, f):
        ends = np.cumsum([hidden * f, hidden, classes * hidden])
        w, b, v, c = np.split(theta, ends)
        return w.reshape(hidden, f), b, v.reshape(classes, hidden), c

    def forward(theta, X):
        w, b, v, c = parts(theta, X.shape[1])
        h = np.tanh(X @ w.T + b)
        score = h @ v.T + c
        score = score - score.max(axis=1, keepdims=True)
        return h, v, score - np.log(np.exp(score).sum(axis=1, keepdims=True))

    def loss(theta, X, y):
        return -forward(theta, X)[2][np.arange(len(y)), y.astype(int)].mean()

    def gradient(theta, X, y):
        h, v, log_p = forward(theta, X)
        d = (np.exp(log_p) - np.eye(classes)[y.astype(int)]) / len(y)
        back = d @ v * (1.0 - h * h)
        return np.concatenate([(back.T @ X).ravel(), back.sum(0), (d.T @ h).ravel(), d.sum(0)])

    return loss, gradient


def picked(die, m, count):
    """Rows of a minibatch, as docs/how-to/bring-a-model.md says: Lehmer's generator, begun by a die."""
    state, rows = 1 + int(die * (2**31 - 2)), []
    for _ in range(count):
        state = state * 48271 % (2**31 - 1)
        rows.append(int(state / (2**31 - 1) * m))
    return rows


class Federation:
    """Rows, dice and cohorts of a run; clients have numbers from 1 on."""

    def __init__(self, problem, method, loss, gradient, rounds, seed, start):
        self.data, self.ridge, self.method, self.local = problem.data, problem.ridge, method, method.local
        self.sent, self.start, self.rounds, self.seed = problem.roles != 0, start, rounds, seed
        self._loss, self._gradient = loss, gradient

    def rows(self, i):
        part = slice(self.data.start[i], self.data.start[i + 1])
        return self.data.X[part], self.data.y[part]

    def size(self, i):
        return int(self.data.sizes[i])

    def loss(self, i, theta):
        return self._loss(theta, *self.rows(i)) + self.ridge[i] * theta @ theta

    def gradient(self, i, theta, die):
        X, y = self.rows(i)
        if self.local.batch:
            pick = picked(die, len(y), self.local.batch)
            X, y = X[pick], y[pick]
        return self._gradient(theta, X, y) + 2.0 * self.ridge[i] * theta

    def descend(self, i, theta, dice, phase, steps=None, pull=0.0, center=None, correction=0.0, only=None):
        """Steps of plain gradient descent; a pull is a proximal step."""
        for s in range(self.local.steps if steps is None else steps):
            g = self.gradient(i, theta, dice[i, phase * self.local.steps + s] if self.local.batch else 0.0) + correction
            theta = theta - self.local.rate * (g if only is None else np.where(only, g, 0.0))
            if pull:
                drawn = (theta + self.local.rate * pull * center) / (1.0 + self.local.rate * pull)
                theta = np.where(self.sent, drawn, theta)
        return theta

    def cohorts(self):
        """Of each round, the clients that are asked and the dice; after the last one, who is asked then, and None."""
        n, k = self.data.n - 1, self.method.clients
        [stream] = seeds(self.seed, 1)
        draw = GOLDEN_FRACTION * np.arange(1, k + 1) % 1.0
        for r in range(self.rounds + 1):
            chosen = []
            for c in range(k):
                t = int(draw[c] * (n - k + c + 1))
                chosen.append(n - k + c if t in chosen else t)
            cohort = [1 + t for t in sorted(chosen)] if k else list(range(1, n + 1))
            if r == self.rounds:
                yield cohort, None
                return
            dice = stream.random((n + 1, self.method.dice))
            yield cohort, dice
            draw = dice[0, self.method.dice - k :]

    def mean(self, vectors, cohort):
        weights = [self.size(i) if getattr(self.method, "by_rows", False) else 1.0 for i in cohort]
        return np.average(vectors, axis=0, weights=weights)


def fedavg(f):
    """McMahan et al. 2017, Algorithm 1; with ``mu`` FedProx, Li et al. 2020; with personal parts FedPer."""
    theta, sent, mu = f.start.copy(), f.sent, getattr(f.method, "mu", 0.0)
    w = theta[0, sent].copy()
    for cohort, dice in f.cohorts():
        for i in cohort:
            theta[i, sent] = w
        if dice is not None:
            found = [f.descend(i, theta[i], dice, 0, pull=mu, center=theta[i]) for i in cohort]
            for i, v in zip(cohort, found, strict=True):
                theta[i, ~sent] = v[~sent]
            w = theta[0, sent] = f.mean([v[sent] for v in found], cohort)
    return theta


def fedrep(f):
    """Collins et al. 2021, Algorithm 1."""
    theta, sent = f.start.copy(), f.sent
    w = theta[0, sent].copy()
    for cohort, dice in f.cohorts():
        for i in cohort:
            theta[i, sent] = w
        if dice is not None:
            bodies = []
            for i in cohort:
                v = f.descend(i, theta[i], dice, 0, only=~sent)
                v = f.descend(i, v, dice, 1, steps=f.method.body_steps, only=sent)
                theta[i, ~sent] = v[~sent]
                bodies.append(v[sent])
            w = theta[0, sent] = f.mean(bodies, cohort)
    return theta


def scaffold(f):
    """Karimireddy et al. 2020, Algorithm 1, option II: control variates by their changes, as published."""
    theta, sent, n = f.start.copy(), f.sent, f.data.n - 1
    x, c, mine = theta[0, sent].copy(), np.zeros(sent.sum()), np.zeros((n + 1, sent.sum()))
    for cohort, dice in f.cohorts():
        for i in cohort:
            theta[i, sent] = x
        if dice is None:
            break
        moves, changes = [], []
        for i in cohort:
            correction = np.zeros(sent.size)
            correction[sent] = c - mine[i]
            y = f.descend(i, theta[i], dice, 0, correction=correction)
            new = mine[i] - c + (x - y[sent]) / (f.local.steps * f.local.rate)
            moves.append(y[sent] - x)
            changes.append(new - mine[i])
            mine[i], theta[i, ~sent] = new, y[~sent]
        x = x + f.method.server_rate * np.mean(moves, axis=0)
        c = c + len(cohort) / n * np.mean(changes, axis=0)
        theta[0, sent] = x
    return theta


def ditto(f):
    """Li et al. 2021, Algorithm 1; the personal model takes the first dice, the common one the second."""
    theta, common, sent = f.start.copy(), f.start.copy(), f.sent
    for cohort, dice in f.cohorts():
        for i in cohort:
            common[i, sent] = common[0, sent]
        if dice is None:
            break
        answers = []
        for i in cohort:
            theta[i] = f.descend(i, theta[i], dice, 0, pull=f.method.pull, center=common[i])
            w = f.descend(i, common[i], dice, 1)
            common[i, ~sent] = w[~sent]
            answers.append(w[sent])
        common[0, sent] = theta[0, sent] = f.mean(answers, cohort)
    return theta


def pfedme(f):
    """T. Dinh et al. 2020, Algorithm 1."""
    theta, w, sent, m = f.start.copy(), f.start.copy(), f.sent, f.method
    for cohort, dice in f.cohorts():
        for i in cohort:
            w[i, sent] = w[0, sent]
        if dice is None:
            break
        for i in cohort:
            for r in range(m.repeats):
                theta[i] = f.descend(i, theta[i], dice, r, pull=m.pull, center=w[i])
                w[i, sent] = w[i, sent] - m.rate * m.pull * (w[i, sent] - theta[i, sent])
        w[0, sent] = (1.0 - m.mixing) * w[0, sent] + m.mixing * f.mean([w[i, sent] for i in cohort], cohort)
        theta[0, sent] = w[0, sent]
    return theta


def apfl(f):
    """Deng et al. 2020, Algorithm 1, alpha by (10)."""
    v, w, sent, m, rate = f.start.copy(), f.start.copy(), f.sent, f.method, f.local.rate
    alpha, theta = np.full(f.data.n, m.alpha), f.start.copy()
    for cohort, dice in f.cohorts():
        for i in cohort:
            w[i, sent] = w[0, sent]
            theta[i] = alpha[i] * v[i] + (1.0 - alpha[i]) * w[i]
        if dice is None:
            break
        for i in cohort:
            for s in range(f.local.steps):
                die = dice[i, [2 * s * f.local.steps, (2 * s + 1) * f.local.steps]] if f.local.batch else [0.0, 0.0]
                g = f.gradient(i, alpha[i] * v[i] + (1.0 - alpha[i]) * w[i], die[0])
                slope = (v[i] - w[i]) @ g
                v[i] = v[i] - rate * alpha[i] * g
                if s == 0:
                    alpha[i] = np.clip(alpha[i] - m.alpha_rate * slope, 0.0, 1.0)
                w[i] = w[i] - rate * f.gradient(i, w[i], die[1])
            theta[i] = alpha[i] * v[i] + (1.0 - alpha[i]) * w[i]
        w[0, sent] = theta[0, sent] = f.mean([w[i, sent] for i in cohort], cohort)
    return theta


def ifca(f):
    """Ghosh et al. 2020, Algorithm 1, by averages of models."""
    theta, sent, m = f.start.copy(), f.sent, f.method
    noise = np.random.default_rng(m.seed).standard_normal((m.clusters, sent.sum()))
    models = theta[0, sent] + m.spread * noise
    choice = np.zeros(f.data.n, int)
    for cohort, dice in f.cohorts():
        for i in cohort:
            theta[i, sent] = models[choice[i]]
        if dice is None:
            break
        members = [[] for _ in models]
        for i in cohort:
            tried = [theta[i].copy() for _ in models]
            for j, w in enumerate(tried):
                w[sent] = models[j]
            choice[i] = np.argmin([f.loss(i, w) for w in tried])
            theta[i] = tried[choice[i]]
            w = f.descend(i, theta[i], dice, m.clusters)
            theta[i, ~sent] = w[~sent]
            members[choice[i]].append((i, w[sent]))
        for j, answers in enumerate(members):
            if answers:
                models[j] = f.mean([w for _, w in answers], [i for i, _ in answers])
        theta[0, sent] = models.mean(axis=0)
    return theta
