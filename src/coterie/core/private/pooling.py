"""One private release per agent, gossip averages of all releases, and a final posterior that stays with the agent.

At its first wake an agent publishes one noisy model: a step from zero along the mean of its clipped gradients,

    r_i = -1/c (mean of clipped gradients at 0 + noise),        c = smoothness row_norm^2,

in which the noise has the known variance N_i in every coordinate. With ``r_i ~ N(u, U + N_i)``, u and U are estimated
from averages over all agents of

    z_i = a_i ( r_i,  r_i^2,  N_i,  a_i N_i,  1 )          2 p + 3 numbers,     a_i = 1 / (N_i + C^2 / (c^2 p m_i)),

which are computed by flows as in :mod:`coterie.core.methods.pooling`. All of this is post-processing, and costs no
privacy for any number of messages. U includes the uncertainty of models with few rows, whose variance is unknown.

In the end, an agent computes its posterior from its exact rows, and keeps it to itself. For uncorrelated features,
u is the common model in other units: ``w_k = u_k row_norm^2 / E x_k^2``, with E from the agent's own rows, or with
``E x_k^2 = row_norm^2 / p``, as if all features had one size. Clipping and large margins make models look too short.
Therefore there are several candidate priors, and broad ones that ignore other agents; an agent weighs these by the
evidence of its own rows, and mixes their posteriors. A population that contradicts an agent's rows loses its weight.

=============================  =====================================================
above                          here
=============================  =====================================================
r_i                            ``me.released``
z_i                            ``me.shared``
N_i, a_i                       ``me.cache.noise``, ``me.cache.weight``
=============================  =====================================================
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..._laplace import logistic_mode
from ..arrays import VACANT, choose, send
from ..compile import inline
from ..linear import axpy, copy_to, fill, matrix_of
from ..losses import GAUSSIAN
from ..messages import Vector, is_sound
from ..method import method
from ..methods.pooling import FLOW, MAX_NUMBER, Edge, Population, ask, estimates, exchange
from .account import ACCOUNT, NOTHING, debit
from .base import PrivateMethod
from .limits import check_private_arrays
from .mechanism import noisy_gradient
from .noise import KEY, LAPLACE, SIZE
from .terms import GRID, width_of

#: Kinds of messages: a release, for the record; a flow and an estimate, to be answered; and the answer.
RELEASE, ASK, ANSWER = 0, 1, 2
#: Candidate priors of the final step: factors on the length of models, and on their variances.
LENGTHS, SPREADS = (1.0, 2.0), (0.25, 1.0, 4.0, 16.0)
#: Broad priors around zero: variances of the contribution of a feature of usual size to a margin, and variances of the
#: noise of labels, relative to their mean square.
BROAD, NOISES = (0.05, 0.3, 2.0), (1.0, 0.5, 0.25, 0.1, 0.05, 0.02)
#: Weight of the usual size of features in their mean squares, in rows.
USUAL_SIZE_ROWS = 10.0


class Public(NamedTuple):
    """Public facts about an agent."""

    step: np.ndarray  # (n,) 1 / c
    noise: np.ndarray  # (n,) N_i
    weight: np.ndarray  # (n,) a_i


class Own(NamedTuple):
    """State of the agents."""

    theta: np.ndarray  # (n, p) the agent's model, as public
    released: np.ndarray  # (n, p) the released model; zeros before the release
    said: np.ndarray  # (n, 1) whether the model has been released
    shared: np.ndarray  # (n, 2 p + 3) z_i
    account: np.ndarray  # (n, ACCOUNT) the agent's privacy account
    cache: Any  # Public


@inline
def share(me):
    """Compute the values to average, from the release alone: nothing else needs to be stored."""
    p = me.theta.shape[0]
    a = me.cache.weight if me.said[0] > 0.0 else 0.0
    for k in range(p):
        me.shared[k] = a * me.released[k]
        me.shared[p + k] = a * me.released[k] * me.released[k]
    me.shared[2 * p] = a * me.cache.noise
    me.shared[2 * p + 1] = a * a * me.cache.noise
    me.shared[2 * p + 2] = a


@inline
def publish(me, average):
    """Compute the agent's public model: the release, shrunk towards u according to its share of noise."""
    p = me.theta.shape[0]
    weight = average[2 * p + 2]
    if not weight > 0.0:
        return
    for k in range(p):
        mean = average[k] / weight
        spread = max(average[p + k] / weight - mean * mean - average[2 * p] / weight, 0.0)
        part = spread / (spread + me.cache.noise) if me.said[0] > 0.0 and spread > 0.0 else 0.0
        me.theta[k] = mean + part * (me.released[k] - mean)


@method
class PrivatePooling(PrivateMethod):
    """See :func:`coterie.Private`."""

    messages = {RELEASE: Vector(), ASK: FLOW, ANSWER: FLOW}
    max_messages = 3
    broadcasts = 1
    exchanges, footprint = True, "partner"
    dice = 1 + KEY  # for the choice of the neighbour, and the key of the noise
    posterior = None
    wakes_per_agent = None  # unlimited: only the first wake uses private data

    def fit_for(self, problem):
        """Raise a MismatchError for a problem that the method cannot solve, or whose messages could not be private."""
        self.method.fit_for(problem)
        PrivateMethod.fit_for(self, problem)

    def scratch_size(self, arrays, p):
        return max(4 * p + 6, 2 * p + SIZE)

    def start(self, arrays, theta):
        """No flows yet."""
        check_private_arrays(self, arrays)
        (n, p), terms = theta.shape, self.terms
        sizes = np.maximum(np.diff(arrays.row_start), 1)
        step = 1.0 / (arrays.loss.smoothness * terms.row_norm**2)
        z = width_of(terms, 0, 1.0, 2 * GRID) / (2 * GRID) * (math.sqrt(2.0) if terms.mechanism == LAPLACE else 1.0)
        noise = np.square(2.0 * terms.clip * z * step / sizes)
        weight = 1.0 / (noise + np.square(terms.clip * step) / (p * sizes))
        released, said, shared, account = (np.zeros((n, size)) for size in (p, 1, 2 * p + 3, ACCOUNT))
        own = Own(theta.copy(), released, said, shared, account, Public(np.full(n, step), noise, weight))
        return own, Edge(np.zeros((arrays.peer.shape[0], 2 * p + 3)))

    def greet(self, data, me, edges, outbox):
        """Send nothing: an agent has no information for its neighbours yet."""

    def wake(self, data, me, edges, randomness, outbox):
        """Make the release, if there is none yet; then ask a neighbour for an exchange."""
        slot = choose(data, randomness)
        release = debit(me.account, self.terms.cost, self.terms.limit)
        if release != NOTHING and data.labels.shape[0] > 0:
            p = me.theta.shape[0]
            gradient, scale = outbox.scratch[:p], 1.0 / data.labels.shape[0]
            fill(0.0, me.released)
            fill(0.0, gradient)
            noisy_gradient(
                self.terms, data, me.released, release, randomness.dice[1:], scale, outbox.scratch[p:], gradient
            )
            axpy(-me.cache.step, gradient, me.released)
            copy_to(me.released, me.theta)
            me.said[0] = 1.0
            if slot != VACANT:
                send(outbox, data.peer[slot], RELEASE, me.released)
        share(me)
        if slot != VACANT:
            ask(data, me, edges, slot, ASK, outbox)

    def receive(self, data, me, edges, message, outbox):
        """Copy the flow; if asked, let half of the difference flow and answer.

        Releases need no action: they are in the averages.
        """
        if message.slot == VACANT or message.kind == RELEASE or not is_sound(message.text, MAX_NUMBER):
            return
        share(me)
        publish(me, exchange(data, me, edges, message, message.kind == ASK, ANSWER, outbox))

    def population(self, arrays, own, edge):
        """Return the agents' estimates of the population, in units of the releases: u and U."""
        n, p = own.theta.shape
        average = estimates(arrays, own.shared, edge.flow)
        with np.errstate(all="ignore"):
            part = average / np.where(average[:, -1:] > 0, average[:, -1:], np.nan)
        mean = part[:, :p]
        variance = np.maximum(part[:, p : 2 * p] - mean**2 - part[:, 2 * p, None], 0.0)
        return Population(mean, variance, np.full(n, np.nan))

    def _finish(self, arrays, own, edge):
        n, p = own.theta.shape
        known = self.population(arrays, own, edge)
        average = estimates(arrays, own.shared, edge.flow)
        models = np.empty((n, p))
        for i in range(n):
            first, last = arrays.row_start[i], arrays.row_start[i + 1]
            X, y = np.asarray(matrix_of(arrays.rows.take(first, last), p), float), arrays.labels[first:last]
            u, spread = np.zeros(p), None
            if np.any(arrays.peer[arrays.edge_start[i] : arrays.edge_start[i + 1]] != VACANT) and average[i, -1] > 0:
                # The mean of n releases has noise, too: shrink it as James and Stein do.
                error = average[i, 2 * p + 1] / (average[i, -1] ** 2 * arrays.n_agents)
                square = float(np.sum(known.mean[i] ** 2))
                kept = max(0.0, 1.0 - p * error / square) if square > 0 else 0.0
                u, spread = kept * known.mean[i], known.variance[i] + kept * error
            models[i] = own_posterior(arrays.loss, X, y, u, spread, self.terms.row_norm)
        return models


def own_posterior(loss: Any, X: np.ndarray, y: np.ndarray, u: np.ndarray, spread: Any, row_norm: float) -> np.ndarray:
    """Return the model that an agent computes from its rows and the population (none if ``spread`` is None)."""
    m, p = X.shape
    usual = row_norm * row_norm / p
    if m == 0:
        return u * row_norm * row_norm / usual
    with np.errstate(over="ignore"):
        square = (np.sum(X * X, axis=0) + USUAL_SIZE_ROWS * usual) / (m + USUAL_SIZE_ROWS)
        scale = max(float(np.mean(y * y)), 1e-300) if loss.likelihood == GAUSSIAN else 1.0
    noises = [scale * part for part in NOISES] if loss.likelihood == GAUSSIAN else [1.0]
    groups = [[(np.zeros(p), scale * part / square) for part in BROAD]]
    if spread is not None:
        units = [row_norm * row_norm / size for size in (np.full(p, usual), square)]
        groups.append([(a * b * u, c * np.square(a * b) * spread) for b in units for a in LENGTHS for c in SPREADS])
    models, evidence = [np.zeros(p)], [-1e300]  # for absurd rows, results may not be numbers
    with np.errstate(all="ignore"):
        for group in groups:
            for center, variance in group:
                for noise in noises:
                    model, log = _fit(loss, X, y, center, variance, noise)
                    if np.isfinite(model).all() and np.isfinite(log):
                        models.append(model)
                        evidence.append(log - math.log(len(group)))
        weight = np.exp(np.array(evidence) - max(evidence))
    mixed: np.ndarray = weight @ np.array(models) / weight.sum()
    return mixed


def _fit(loss: Any, X: np.ndarray, y: np.ndarray, center: np.ndarray, variance: np.ndarray, noise: float) -> Any:
    """Return posterior mode and log evidence (Laplace) under ``N(center, diag variance)``, up to a constant."""
    Z = X * np.sqrt(variance)
    if not (np.isfinite(Z @ Z.T).all() and np.isfinite(X @ center).all()):
        return center, -np.inf
    if loss.likelihood == GAUSSIAN:
        K, error = Z @ Z.T + noise * np.eye(len(y)), y - X @ center
        dual = np.linalg.solve(K, error)
        return center + np.sqrt(variance) * (Z.T @ dual), -0.5 * (np.linalg.slogdet(K)[1] + error @ dual)
    mode = logistic_mode(Z, y, np.zeros(len(center)), np.ones(len(center)), X @ center, steps=30)
    return center + np.sqrt(variance) * mode.theta, -mode.cost - 0.5 * np.linalg.slogdet(mode.hessian)[1]
