"""Gradient tracking: DIGing (Nedic, Olshevsky and Shi 2017), with stochastic gradients (Pu and Nedic 2020).

Beside its model, every agent keeps y_i, which tracks the mean gradient of all. So a constant rate leads to the minimum
of the mean loss, where D-PSGD stays at a distance:

    x_i <- sum_j A_ij x_j - rate y_i
    y_i <- sum_j B_ij y_j + g_i(x_i new) - g_i(x_i old)

The sum of all y_i is that of all g_i at any time, if every column of B sums to 1. This is the push-pull form (Pu, Shi,
Xu and Nedic 2021, Algorithm 1): rows of A sum to 1, for an agent takes an even mean; columns of B do, for it gives an
even share away. Nobody needs to know how many neighbours others have. Where all have as many, A = B, and it is DIGing.

What an agent has given away is told as a running sum, as of push-sum on lossy links (Hadjicostis, Vaidya and
Dominguez-Garcia 2016): a message that is lost is made good by the next, one that comes twice or late adds nothing. So
agents may wake whenever they like. The graph and the data may change: a new neighbour's sum counts from its greeting.

=============================  =====================================================
paper                          here
=============================  =====================================================
x_i                            ``me.theta``, parameters that are not personal
x_j as i last heard it         ``edges.copy[t]`` with ``data.peer[t] == j``
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

#: Kinds of messages, of the same content: my parameters that are not personal, what I have given to each neighbour in
#: all, and how many messages went before.
MODEL, GREETING = 0, 1


class Own(NamedTuple):
    """State of the agents; q parameters are not personal."""

    theta: np.ndarray  # (n, p) my model
    job: Job
    messages: np.ndarray  # (n, 1) how many I have sent, greetings apart
    tracked: np.ndarray  # (n, q) y_i
    kept: np.ndarray  # (n, 1) the part of it that I have not given away
    slope: np.ndarray  # (n, q) my last gradient
    given: np.ndarray  # (n, q) sum of the shares that I have given to each neighbour
    arrived: np.ndarray  # (n, q) what neighbours have given me since I woke


class Edge(NamedTuple):
    """State of the edges."""

    copy: np.ndarray  # (edges, q) the last parameters heard from the neighbour, those that are not personal
    given: np.ndarray  # (edges, q) what it has given in all, as last heard
    heard: np.ndarray  # (edges,) the number of that message, or -1
    late: np.ndarray  # (edges,) whether the edge began after I did: what was given before is not for me


def _one_step(name, local):
    """Refuse an optimiser whose step is not the gradient."""
    if not isinstance(local, SGD) or local.steps != 1 or local.momentum > 0.0:
        raise ParameterError(
            f"{name}={local!r} must be one plain step, ct.optim.SGD(rate, batch=...): its gradient is what is tracked; for "
            "more steps, or others, see ct.gossip.LocalSGD or ct.gossip.DPSGD"
        )
    return local


@inline
def _tell(data, me, kind, outbox):
    """My model and what I have given, numbered."""
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

    With full batches; with minibatches they stay near it. A wake sends two vectors to each neighbour.

    Parameters
    ----------
    local : SGD
        Its rate, and rows of a minibatch; one step, without momentum.

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[0.0], [1.0], [5.0]], agents=[0, 1, 2])
    >>> problem = ct.Problem.separate(data, ct.graphs.complete(3), loss="location")
    >>> run = ct.simulate(problem, ct.gossip.GradientTracking(ct.optim.SGD(0.3)), rounds=100)
    >>> run.theta.ravel().round(6).tolist()  # the mean, not about it
    [2.0, 2.0, 2.0]
    """

    local: Any = SGD()

    messages = {MODEL: (Vector(2), Counter()), GREETING: (Vector(2), Counter())}
    minimises = None

    def scratch_size(self, arrays, p):
        """Numbers of scratch paper that a handler needs."""
        return 2 * p + 1

    def start(self, arrays, theta):
        """State before the first letter: neighbours are taken to agree, and nothing is tracked yet."""
        n, q, edges = theta.shape[0], arrays.sent.shape[0], arrays.peer.shape[0]
        owner = owners(arrays.edge_start)
        tracked, slope, given, arrived = (np.zeros((n, q)) for _ in range(4))
        number, kept = np.zeros((n, 1)), np.ones((n, 1))
        own = Own(theta.copy(), new_job(self.local, theta), number, tracked, kept, slope, given, arrived)
        copy = np.ascontiguousarray(theta[owner][:, arrays.sent])
        return own, Edge(copy, np.zeros((edges, q)), np.full(edges, -1.0), np.zeros(edges))

    def open(self, data, me, edges, slot):
        """A new edge: until the neighbour is heard, it is taken to agree."""
        gather(me.theta, data.sent, edges.copy[slot])
        fill(0.0, edges.given[slot])
        edges.heard[slot], edges.late[slot] = -1.0, 1.0

    def greet(self, data, me, edges, outbox):
        """The initial swap of models."""
        for t in range(data.peer.shape[0]):
            if data.peer[t] != VACANT and edges.heard[t] < 0.0 and me.messages[0] > 0.0:
                edges.late[t] = 1.0
        _tell(data, me, GREETING, outbox)

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """``x_i <- sum_j A_ij x_j - rate y_i``, and the gradient there."""
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
        # an even share for everybody, me included
        me.kept[0] = 1.0 / (1.0 + count_neighbours(data))
        axpy(me.kept[0], me.tracked, me.given)
        me.messages[0] += 1.0
        _tell(data, me, MODEL, outbox)

    def receive(self, data, me, edges, message, outbox):
        """Take in the neighbour's parameters and what it has given, unless a later message has come before."""
        q, t = data.sent.shape[0], message.slot
        known = message.kind == MODEL or message.kind == GREETING
        if t == VACANT or not known or message.text.shape[0] != 2 * q + 1 or not message.text[2 * q] > edges.heard[t]:
            return
        given = message.text[q : 2 * q]
        if edges.heard[t] < 0.0 and (message.kind == GREETING or edges.late[t] > 0.0):
            copy_to(given, edges.given[t])  # where its sum begins, for me
        axpy(1.0, given, me.arrived)
        axpy(-1.0, edges.given[t], me.arrived)
        copy_to(given, edges.given[t])
        copy_to(message.text[:q], edges.copy[t])
        edges.heard[t] = message.text[2 * q]
