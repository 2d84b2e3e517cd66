"""Partial pooling without a coordinator: every agent learns its own model and the population's, by pairwise gossip.

Agent i's model is drawn from a population, ``theta_i ~ N(w, V)`` with V diagonal, and its labels follow from the model
as the loss says, with noise of variance s2 for real labels. w, V and s2 are unknown. To estimate these, an agent needs
averages over all agents of

    z_i = ( theta_i,  theta_i^2 + Var_i,  E|y_i - X_i theta_i|^2,  m_i,  1 )          2 p + 3 numbers,

with zeros for an agent without rows: w and V are the mean and the variance of the first two divided by the last, s2 is
the third divided by the fourth. Given (w, V, s2), the agent's posterior is that of a ridge regression towards w
(Laplace's approximation for the logistic loss), which gives a new z_i. A consensus at which nothing changes is a fixed
point of EM for the marginal likelihood of all rows. The weights of edges have no effect, only the connections.

Averages are computed by flow updating (Jesus, Baquero, Almeida, 2009, "Fault-tolerant aggregation by flow updating"):
an agent never gives away its value, but records for each edge how much has flowed along it, and

    e_i = z_i - sum_j flow_ij ,      flow_ij = -flow_ji

is its estimate of the average. A message holds the sender's side of the flow, and its estimate. The receiver copies the
flow, so that the next message makes up for a lost, duplicated or late one; lets half of the difference flow, so that
both estimates become their mean; and answers. An agent that leaves takes its z_i with it. Then both ends compute their
posteriors, and move their z_i by the fraction ``damping`` towards the new value: an agent sees all of its own change at
once, and the average only 1/n of it, so that without damping the two oscillate.

=============================  =====================================================
above                          here
=============================  =====================================================
theta_i                        ``me.theta``
z_i, as moved so far           ``me.shared``
flow_ij                        ``edges.flow[slot]`` with ``data.peer[slot] == j``
e_i                            :func:`estimate`
w, V^(1/2), s2                 ``center``, ``root``, ``noise``
=============================  =====================================================
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from ..._checks import within
from ...errors import MismatchError
from ..arrays import VACANT, choose, data_of, owners, send
from ..compile import inline, kernel
from ..laplace import Steps, find_mode, in_raw_units, square_error
from ..linear import axpy, copy_to, fill
from ..losses import GAUSSIAN
from ..messages import Average, Numbers, is_sound
from ..method import NamedTuple, Posterior, method
from ..rules import checked

#: Kinds of messages, each with a flow and an estimate: one to answer, and the answer.
ASK, ANSWER = 0, 1
#: Accuracy of an agent's mode; the next exchange continues from it.
NEWTON_STEPS = Steps(near=1e-2, enough=1e-14, part=0.0)
#: Lower bound for the variance of the noise, as a fraction of the mean square of an agent's labels.
MIN_NOISE_RATIO = 1e-9
#: Largest number in the messages of an honest agent; squares of larger ones may not be finite.
MAX_NUMBER = 1e100
#: Content of a message: the sender's side of a flow, and its estimate of the average.
FLOW = (Numbers(2, 3, MAX_NUMBER), Average(2, 3, MAX_NUMBER))


class Population(NamedTuple):
    """The agents' estimates of the population, one row for each agent; NaN for an agent that knows of no rows yet."""

    mean: np.ndarray  # (n, p) w, the common model
    variance: np.ndarray  # (n, p) diagonal of V, the variances of personal models about w
    noise: np.ndarray  # (n,) s2, the variance of the labels' noise; 1 for classes


class Own(NamedTuple):
    """State of the agents."""

    theta: np.ndarray  # (n, p) my model
    shared: np.ndarray  # (n, 2 p + 3) the agent's z_i, as moved so far
    ready: np.ndarray  # (n, 1) whether z_i has been computed
    cache: np.ndarray  # (n,) mean square of the agent's labels if these are real; 0 for classes


class Edge(NamedTuple):
    """State of the edges."""

    flow: np.ndarray  # (edges, 2 p + 3) sum of what has flowed from the agent to the neighbour


@inline
def estimate(data, me, edges, out):
    """``e_i = z_i - sum_j flow_ij``."""
    copy_to(me.shared, out)
    for k in range(data.peer.shape[0]):
        if data.peer[k] != VACANT:
            axpy(-1.0, edges.flow[k], out)


@inline
def ask(data, me, edges, slot, kind, outbox):
    """Send the agent's side of a flow, and its estimate."""
    q = me.shared.shape[0]
    copy_to(edges.flow[slot], outbox.scratch[:q])
    estimate(data, me, edges, outbox.scratch[q : 2 * q])
    send(outbox, data.peer[slot], kind, outbox.scratch[: 2 * q], slot)


@inline
def exchange(data, me, edges, message, asked, kind, outbox):
    """Copy the flow; if ``asked``, let half of the difference flow and answer. Return the agent's estimate."""
    q, slot = me.shared.shape[0], message.slot
    average = outbox.scratch[q : 2 * q]
    for k in range(q):
        edges.flow[slot, k] = -message.text[k]
    estimate(data, me, edges, average)
    if asked:
        for k in range(q):
            half = 0.5 * (average[k] - message.text[q + k])
            edges.flow[slot, k] += half
            average[k] -= half
        copy_to(edges.flow[slot], outbox.scratch[:q])
        send(outbox, message.sender, kind, outbox.scratch[: 2 * q], slot)
    return average


def estimates(arrays, shared, flow):
    """Return the estimates of all hosted agents."""
    owner = owners(arrays.edge_start)
    average = shared.copy()
    np.subtract.at(average, owner, np.where((arrays.peer == VACANT)[:, None], 0.0, flow))
    return average


@inline
def population(average, scale, center, root):
    """Compute w and the root of V from averages; return s2, or 0 if the averages hold no rows yet."""
    p = center.shape[0]
    agents = average[2 * p + 2]
    if not agents > 0.0:
        return 0.0
    for k in range(p):
        center[k] = average[k] / agents
        root[k] = math.sqrt(max(average[p + k] / agents - center[k] * center[k], 0.0))
    if scale == 0.0:
        return 1.0
    rows = average[2 * p + 1]
    return max(average[2 * p] / rows, MIN_NOISE_RATIO * scale) if rows > 0.0 else 0.0


@inline
def learn(data, me, noise, center, root, damping, scratch):
    """Compute the posterior given the population; move z_i by the fraction ``damping`` towards its new value."""
    p = me.theta.shape[0]
    m = data.labels.shape[0]
    if m == 0:
        copy_to(center, me.theta)  # an agent without rows: its z_i stays zero
        return
    inverse, rest = scratch[: p * p], scratch[p * p :]
    find_mode(data, noise, None, center, root, NEWTON_STEPS, me.theta, inverse, rest)
    shared, spread, residual = me.shared, 0.0, 0.0
    for k in range(p):
        known = inverse[k * p + k]  # Var_k / v_k
        spread += 1.0 - known
        square = me.theta[k] * me.theta[k] + root[k] * root[k] * known
        shared[k] += damping * (me.theta[k] - shared[k])
        shared[p + k] += damping * (square - shared[p + k])
    if me.cache > 0.0:
        residual = square_error(data, None, me.theta, rest[:p]) + noise * spread  # tr X Cov X'
    shared[2 * p] += damping * (residual - shared[2 * p])
    shared[2 * p + 1] += damping * (m - shared[2 * p + 1])
    shared[2 * p + 2] += damping * (1.0 - shared[2 * p + 2])


@inline
def begin(data, me, scratch):
    """Compute the first z_i, once: a ridge regression in the agent's own units, with the weight of one row.

    Changes no model.
    """
    if me.ready[0] > 0.0:
        return
    me.ready[0] = 1.0
    p, m = me.theta.shape[0], data.labels.shape[0]
    if m == 0:
        return
    scale = me.cache if me.cache > 0.0 else 1.0
    center, root, before, rest = scratch[:p], scratch[p : 2 * p], scratch[2 * p : 3 * p], scratch[3 * p :]
    fill(0.0, center)
    fill(0.0, root)
    for r in range(m):
        for e in range(data.rows.entries(r)):
            k, x = data.rows.entry(r, e)
            root[k] += x * x / m
    for k in range(p):
        root[k] = math.sqrt(scale / root[k]) if root[k] > 0.0 else 0.0
    copy_to(me.theta, before)
    fill(0.0, me.theta)
    learn(data, me, scale, center, root, 1.0, rest)
    copy_to(before, me.theta)


@kernel
def know_all(arrays, center, variance, noise, theta, cov, scratch):
    """Compute the posteriors of all agents for a known population; theta becomes their modes."""
    p = theta.shape[1]
    root, inverse, rest = scratch[:p], scratch[p : p + p * p], scratch[p + p * p :]
    for i in range(theta.shape[0]):
        if not noise[i] > 0.0:
            continue
        for k in range(p):
            root[k] = math.sqrt(variance[i, k])
        find_mode(data_of(arrays, i), noise[i], None, center[i], root, NEWTON_STEPS, theta[i], inverse, rest)
        in_raw_units(None, theta[i], root, inverse, cov[i])


def fits_likelihood(self, problem):
    """Raise a MismatchError for a loss without a likelihood, or for several outputs."""
    name = type(self).__qualname__
    if problem.loss.likelihood is None:
        raise MismatchError(
            f"{name} needs the likelihood of the squared or the logistic loss, and the loss is {problem.loss!r}: pass "
            'loss="squared" or loss="logistic"'
        )
    if problem.outputs > 1:
        raise MismatchError(f"{name} learns models of one output, and this problem has {problem.outputs}")


@checked(damping=partial(within, low=0, high=1, ends="(]"))
@method
class GossipPooling(NamedTuple):
    """Partial pooling by gossip: personal models, the common model and their variance, without a coordinator.

    For the squared and the logistic loss. An agent that wakes exchanges two messages of ``4 p + 6`` numbers with one
    neighbour; after 40 to 100 wakes of each agent, scores equal those of pooled rows. The method does not minimise the
    objective of :class:`coterie.Problem`: it uses its rows, labels, loss, and connections. For an intercept, append a
    column of ones to the rows. The population that each agent has found is ``coterie.Run.population``.

    Parameters
    ----------
    Fraction of its change that an agent shares in one exchange, above 0 and at most 1. Values far above the default
    may not converge.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> rng = np.random.default_rng(0)
    >>> X, owner = rng.normal(size=(240, 1)), np.repeat(np.arange(24), 10)
    >>> slope = 3.0 + 0.5 * rng.normal(size=24)
    >>> data = ct.AgentData(X, slope[owner] * X[:, 0] + rng.normal(size=240), agents=owner)
    >>> problem = ct.Problem.separate(data, ct.graphs.ring(24), loss="squared")
    >>> run = ct.simulate(problem, ct.gossip.GossipPooling(), wakes=24 * 200, seed=0)
    >>> [float(part[0].round(1).item()) for part in run.population]  # 24 slopes are few: the truth is 3, 0.25, 1
    [3.2, 0.5, 1.0]
    """

    damping: float = 0.1

    messages = {ASK: FLOW, ANSWER: FLOW}
    max_messages = 2
    dice = 1  # for the choice of the neighbour
    exchanges = True
    footprint = "partner"
    minimises = False  # it converges to a fixed point of EM

    fit_for = fits_likelihood

    def scratch_size(self, arrays, p):
        return 4 * p + 6 + p * p + 6 * p

    def start(self, arrays, theta):
        """No flows yet."""
        n, p = theta.shape
        scale = np.zeros(n)
        if arrays.loss.likelihood == GAUSSIAN:
            owner, sizes = owners(arrays.row_start), np.diff(arrays.row_start)
            scale = np.bincount(owner, weights=np.square(arrays.labels), minlength=n) / np.maximum(sizes, 1)
            scale = np.where(scale > 0, scale, 1.0)
        own = Own(theta.copy(), np.zeros((n, 2 * p + 3)), np.zeros((n, 1)), scale)
        return own, Edge(np.zeros((arrays.peer.shape[0], 2 * p + 3)))

    def population(self, arrays, own, edge):
        n, p = own.theta.shape
        average = estimates(arrays, own.shared, edge.flow)
        mean, root, noise = np.full((n, p), np.nan), np.full((n, p), np.nan), np.full(n, np.nan)
        for i in range(n):
            found = population(average[i], own.cache[i], mean[i], root[i])
            noise[i] = found if found > 0.0 else np.nan
        return Population(mean, root * root, noise)

    def posterior(self, arrays, own, edge):
        """Return the posteriors, for the population that each agent has estimated so far."""
        n, p = own.theta.shape
        found = self.population(arrays, own, edge)
        known = Posterior(
            own.theta.copy(), np.full((n, p, p), np.nan), found.noise, np.where(found.noise > 0, 1.0, 0.0)
        )
        know_all(arrays, *found, known.mean, known.covariance, np.zeros(p * p + 5 * p))
        return known

    def greet(self, data, me, edges, outbox):
        """Send nothing: an agent has no information for its neighbours yet."""
        begin(data, me, outbox.scratch)

    def wake(self, data, me, edges, randomness, outbox):
        """Ask a neighbour for an exchange. An agent without edges keeps its model."""
        begin(data, me, outbox.scratch)
        slot = choose(data, randomness)
        if slot != VACANT:
            ask(data, me, edges, slot, ASK, outbox)

    def receive(self, data, me, edges, message, outbox):
        """Copy the flow; if asked, let half of the difference flow and answer; then update the posterior."""
        if message.slot == VACANT or not is_sound(message.text, MAX_NUMBER):
            return
        begin(data, me, outbox.scratch)
        average = exchange(data, me, edges, message, message.kind == ASK, ANSWER, outbox)
        p, rest = me.theta.shape[0], outbox.scratch[2 * me.shared.shape[0] :]
        center, root = rest[:p], rest[p : 2 * p]
        noise = population(average, me.cache, center, root)
        if noise > 0.0:
            learn(data, me, noise, center, root, self.damping, rest[2 * p :])
