"""Stochastic gradient push: Assran, Loizou, Ballas and Rabbat (2019), Algorithm 1; push-sum is of Kempe et al. (2003).

For graphs with one-way edges. Every agent holds a mass, x_i, and its weight, w_i; its model is the ratio z_i. An agent
takes gradient steps on the mass, keeps an equal share of mass and weight, and sends one share to each neighbour that it
can reach:

    x_i <- x_i - rate g_i(z_i)                       (lines 2 and 3)
    x_i <- sum_j P_ij x_j,   w_i <- sum_j P_ij w_j   (lines 5 and 6),  columns of P sum to 1
    z_i <- x_i / w_i                                 (line 7)

Weight is conserved: the sum of all weights is n. All models therefore approach their mean, though no agent knows which
agents receive its messages with which weight.

An agent that has received nothing since it last gave shares away gives nothing: otherwise agents that wake often would
lose all weight. The graph may change at any time. A lost or duplicated message would change the sum for good.

=============================  =====================================================
paper                          here
=============================  =====================================================
x_i, w_i                       ``me.mass``: the parameters that are not personal, then the weight
z_i                            ``me.theta``
sum_j P_ij x_j, ...            ``me.arrived``, added to ``me.mass`` at the next wake
g_i                            the steps of ``me.job``
=============================  =====================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import EVERYONE, send
from ..compile import inline
from ..linear import axpy, copy_to, fill, gather, scatter
from ..messages import Number, Vector
from ..method import NamedTuple, method
from ..mixing import count_neighbours
from ..training import SGD, Job, new_job
from .fixed import Edge, FixedModels

#: The only kind of message: a share of the sender's mass, and of its weight.
MASS = 0


class Own(NamedTuple):
    """State of the agents. Mass consists of the parameters that are not personal, followed by the weight."""

    theta: np.ndarray  # (n, p) my model
    job: Job
    mass: np.ndarray  # (n, q + 1) mass and weight
    arrived: np.ndarray  # (n, q + 1) shares received since the last wake
    news: np.ndarray  # (n, 1) whether a share has arrived since the agent last gave shares away


@inline
def _show(data, me, scratch):
    """Line 7: z_i = x_i / w_i."""
    q = data.sent.shape[0]
    model, weight = scratch[:q], me.mass[q]
    copy_to(me.mass[:q], model)
    axpy(1.0 / weight - 1.0, model, model)
    scatter(model, data.sent, me.theta)


@method
class PushSum(NamedTuple):
    """Stochastic gradient push, for graphs with one-way edges (Assran et al. 2019).

    All agents approach one common model, except for personal parameters, which never leave their agent. A wake sends
    one vector and one number to each neighbour that the agent can reach.

    Parameters
    ----------
    local : SGD or Adam
        Steps of an agent between two messages.

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[0.0], [1.0], [5.0]], agents=[0, 1, 2])
    >>> problem = ct.Problem.separate(data, ct.graphs.complete(3), loss="location")
    >>> run = ct.simulate(problem, ct.gossip.PushSum(ct.optim.SGD(0.01)), rounds=1000)
    >>> run.theta.ravel().round(1).tolist()  # near the mean
    [2.0, 2.0, 2.0]
    """

    local: Any = SGD()

    messages = {MASS: (Vector(), Number(0.0))}
    minimises = None
    directed = True
    sums = True

    def scratch_size(self, arrays, p):
        return p + 1

    def start(self, arrays, theta):
        """All weights are 1."""
        n, q = theta.shape[0], arrays.sent.shape[0]
        mass = np.column_stack([theta[:, arrays.sent], np.ones(n)])
        own = Own(theta.copy(), new_job(self.local, theta), mass, np.zeros((n, q + 1)), np.ones((n, 1)))
        return own, Edge(np.zeros((arrays.peer.shape[0], 0)))

    def shown(self, arrays, own, edge):
        """Line 7, including shares received since an agent woke."""
        q, theta = arrays.sent.shape[0], own.theta.copy()
        mass = own.mass + own.arrived
        theta[:, arrays.sent] = mass[:, :q] / mass[:, q:]
        return theta

    open = FixedModels.open

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """Lines 5 to 7, with the shares received since the last wake; then the agent's steps from the result."""
        if phase > 0:
            return False
        axpy(1.0, me.arrived, me.mass)
        fill(0.0, me.arrived)
        _show(data, me, outbox.scratch)
        copy_to(me.theta, me.job.theta)
        return True

    def publish(self, data, me, edges, randomness, outbox):
        """Lines 2 to 4: apply the agent's steps to the mass, keep an equal share, and send the others."""
        q, mass = data.sent.shape[0], me.mass
        part = outbox.scratch[:q]
        gather(me.job.theta, data.sent, part)
        axpy(1.0, part, mass[:q])
        gather(me.theta, data.sent, part)
        axpy(-1.0, part, mass[:q])
        copy_to(me.job.theta, me.theta)
        _show(data, me, outbox.scratch)
        if me.news[0] > 0.0 and q > 0:
            me.news[0] = 0.0
            axpy(1.0 / (1.0 + count_neighbours(data)) - 1.0, mass, mass)
            send(outbox, EVERYONE, MASS, mass)

    def receive(self, data, me, edges, message, outbox):
        """Add the received share to those of the next wake."""
        q = data.sent.shape[0]
        if message.kind == MASS and message.text.shape[0] == q + 1 and message.text[q] > 0.0:
            axpy(1.0, message.text, me.arrived)
            me.news[0] = 1.0
