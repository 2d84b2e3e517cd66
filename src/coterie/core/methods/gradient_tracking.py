"""Gradient tracking: DIGing (Nedic, Olshevsky and Shi 2017), with stochastic gradients (Pu and Nedic 2020).

Beside its model, every agent keeps y_i, which tracks the mean gradient of all agents. A constant rate therefore leads
to the minimum of the mean loss, where D-PSGD stays at a distance:

    x_i <- sum_j A_ij x_j - rate y_i
    y_i <- sum_j B_ij y_j + g_i(x_i new) - g_i(x_i old)

If every column of B sums to 1, the sum of all y_i always equals the sum of all g_i. This is the push-pull form (Pu,
Shi, Xu and Nedic 2021, Algorithm 1): rows of A sum to 1, since an agent takes an equal mean; columns of B sum to 1,
since it gives away equal shares. No agent needs the number of neighbours of others. If all numbers are equal, A = B:
DIGing.

An agent sends the running sum of what it has given away, as in push-sum on lossy links (Hadjicostis, Vaidya and
Dominguez-Garcia 2016): the next message makes up for a lost one, and a duplicated or late message adds nothing. Agents
may wake in any order. The graph and the data may change: a new neighbour's sum counts from its greeting.

=============================  =====================================================
paper                          here
=============================  =====================================================
x_i                            ``me.theta``, parameters that are not personal
x_j as i last received it      ``edges.copy[t]`` with ``data.peer[t] == j``
y_i                            ``me.tracked``
B_ii                           ``me.kept``
sum_j B_ij y_j, j not i        ``me.arrived``
g_i(x_i)                       ``me.slope``, from the one step of ``me.job``
=============================  =====================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import ParameterError
from ..arrays import EVERYONE, VACANT, owners, send
from ..compile import inline
from ..linear import axpy, copy_to, fill, gather, scatter
from ..messages import Counter, Vector
from ..method import NamedTuple, method
from ..mixing import count_neighbours
from ..rules import checked
from ..training import SGD, Job, new_job

#: Kinds of messages, all with this content: the parameters that are not personal, the sum given to each neighbour so
#: far, and the number of earlier messages.
MODEL, GREETING = 0, 1


class Own(NamedTuple):
    """State of the agents; q parameters are not personal."""

    theta: np.ndarray  # (n, p) my model
    job: Job
    messages: np.ndarray  # (n, 1) number of messages sent, without greetings
    tracked: np.ndarray  # (n, q) y_i
    kept: np.ndarray  # (n, 1) fraction of y_i that the agent keeps
    slope: np.ndarray  # (n, q) last gradient
    given: np.ndarray  # (n, q) sum of the shares given to each neighbour
    arrived: np.ndarray  # (n, q) shares received from neighbours since the last wake


class Edge(NamedTuple):
    """State of the edges."""

    copy: np.ndarray  # (edges, q) the last parameters received from the neighbour, without personal ones
    given: np.ndarray  # (edges, q) sum given by the neighbour, as last received
    heard: np.ndarray  # (edges,) number of that message, or -1
    late: np.ndarray  # (edges,) whether the edge began after the agent started: earlier shares were not for it


def _one_step(name, local):
    """Refuse an optimiser whose step is not a multiple of the gradient."""
    if not isinstance(local, SGD) or local.steps != 1 or local.momentum > 0.0:
        raise ParameterError(
            f"{name}={local!r} must be one plain step, ct.optim.SGD(rate, batch=...), whose gradient is tracked; for "
            "several steps, or another optimiser, see ct.gossip.LocalSGD or ct.gossip.DPSGD"
        )
    return local


@inline
def _tell(data, me, kind, outbox):
    """Send the agent's model and the sum it has given, with the number of the message."""
    q = data.sent.shape[0]
    if q > 0:
        text = outbox.scratch[: 2 * q + 1]
        gather(me.theta, data.sent, text[:q])
        copy_to(me.given, text[q : 2 * q])
        text[2 * q] = me.messages[0]
        send(outbox, EVERYONE, kind, text)


@checked(local=_one_step)
@method
class GradientTracking(NamedTuple):
    """Gradient tracking: all agents reach the minimum of the mean loss, with a constant rate (DIGing, push-pull).

    The minimum is exact with full batches, and approximate with minibatches. A wake sends two vectors to each
    neighbour.

    Parameters
    ----------
    local : SGD
        One step without momentum: learning rate, and rows of a minibatch.

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[0.0], [1.0], [5.0]], agents=[0, 1, 2])
    >>> problem = ct.Problem.separate(data, ct.graphs.complete(3), loss="location")
    >>> run = ct.simulate(problem, ct.gossip.GradientTracking(ct.optim.SGD(0.3)), rounds=100)
    >>> run.theta.ravel().round(6).tolist()  # exactly the mean
    [2.0, 2.0, 2.0]
    """

    local: Any = SGD()

    messages = {MODEL: (Vector(2), Counter()), GREETING: (Vector(2), Counter())}
    minimises = None

    def scratch_size(self, arrays, p):
        return 2 * p + 1

    def start(self, arrays, theta):
        """Copies of neighbours start at the agent's own model; tracked gradients start at zero."""
        n, q, edges = theta.shape[0], arrays.sent.shape[0], arrays.peer.shape[0]
        owner = owners(arrays.edge_start)
        tracked, slope, given, arrived = (np.zeros((n, q)) for _ in range(4))
        number, kept = np.zeros((n, 1)), np.ones((n, 1))
        own = Own(theta.copy(), new_job(self.local, theta), number, tracked, kept, slope, given, arrived)
        copy = np.ascontiguousarray(theta[owner][:, arrays.sent])
        return own, Edge(copy, np.zeros((edges, q)), np.full(edges, -1.0), np.zeros(edges))

    def open(self, data, me, edges, slot):
        gather(me.theta, data.sent, edges.copy[slot])
        fill(0.0, edges.given[slot])
        edges.heard[slot], edges.late[slot] = -1.0, 1.0

    def greet(self, data, me, edges, outbox):
        for t in range(data.peer.shape[0]):
            if data.peer[t] != VACANT and edges.heard[t] < 0.0 and me.messages[0] > 0.0:
                edges.late[t] = 1.0
        _tell(data, me, GREETING, outbox)

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """``x_i <- sum_j A_ij x_j - rate y_i``, and a job for the gradient at the result."""
        if phase > 0:
            return False
        mean, share = outbox.scratch[: data.sent.shape[0]], 1.0 / (1.0 + count_neighbours(data))
        gather(me.theta, data.sent, mean)
        axpy(share - 1.0, mean, mean)
        for t in range(data.peer.shape[0]):
            if data.peer[t] != VACANT:
                axpy(share, edges.copy[t], mean)
        axpy(-self.local.rate, me.tracked, mean)
        scatter(mean, data.sent, me.theta)
        copy_to(me.theta, me.job.theta)
        return True

    def publish(self, data, me, edges, randomness, outbox):
        """``y_i <- sum_j B_ij y_j + g_i(x_i new) - g_i(x_i old)``; personal parameters take their own step."""
        q = data.sent.shape[0]
        slope, after = outbox.scratch[:q], outbox.scratch[q : 2 * q]
        # sum_j B_ij y_j
        axpy(me.kept[0] - 1.0, me.tracked, me.tracked)
        axpy(1.0, me.arrived, me.tracked)
        fill(0.0, me.arrived)
        # g_i = (x_i - x_i after the step) / rate
        gather(me.theta, data.sent, slope)
        gather(me.job.theta, data.sent, after)
        copy_to(me.job.theta, me.theta)
        scatter(slope, data.sent, me.theta)
        axpy(-1.0, after, slope)
        axpy(1.0 / self.local.rate - 1.0, slope, slope)
        axpy(1.0, slope, me.tracked)
        axpy(-1.0, me.slope, me.tracked)
        copy_to(slope, me.slope)
        # an equal share for each neighbour and for the agent itself
        me.kept[0] = 1.0 / (1.0 + count_neighbours(data))
        axpy(me.kept[0], me.tracked, me.given)
        me.messages[0] += 1.0
        _tell(data, me, MODEL, outbox)

    def receive(self, data, me, edges, message, outbox):
        """Store the neighbour's parameters and sum, unless a later message has arrived before."""
        q, t = data.sent.shape[0], message.slot
        known = message.kind == MODEL or message.kind == GREETING
        if t == VACANT or not known or message.text.shape[0] != 2 * q + 1 or not message.text[2 * q] > edges.heard[t]:
            return
        given = message.text[q : 2 * q]
        if edges.heard[t] < 0.0 and (message.kind == GREETING or edges.late[t] > 0.0):
            copy_to(given, edges.given[t])  # initial value of the neighbour's sum: earlier shares do not count
        axpy(1.0, given, me.arrived)
        axpy(-1.0, edges.given[t], me.arrived)
        copy_to(given, edges.given[t])
        copy_to(message.text[:q], edges.copy[t])
        edges.heard[t] = message.text[2 * q]
