"""Stochastic gradient push: Assran, Loizou, Ballas and Rabbat (2019), Algorithm 1; push-sum is of Kempe et al. (2003).

For graphs on which messages go one way. Every agent holds a mass, x_i, and its weight, w_i; its model is their ratio,
z_i. It takes its steps on the mass, keeps an even share of mass and weight, and gives as much to each neighbour that it
can reach:

    x_i <- x_i - rate g_i(z_i)                       (lines 2 and 3)
    x_i <- sum_j P_ij x_j,   w_i <- sum_j P_ij w_j   (lines 5 and 6),  columns of P sum to 1
    z_i <- x_i / w_i                                 (line 7)

No weight is ever lost: they sum to n. So the models of all come to agree on the mean, though no agent knows who hears
it with which weight.

An agent to which nothing has come since it gave its share away gives nothing: else, those who wake often would be left
with no weight. The graph may change as it likes. A message that is lost, or comes twice, would change the sum for good.

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

#: The only kind of message: a share of my mass, and of its weight.
MASS = 0


class Own(NamedTuple):
    """State of the agents. Mass is that of the parameters that are not personal, and its weight, last."""

    theta: np.ndarray  # (n, p) my model
    job: Job
    mass: np.ndarray  # (n, q + 1) what I hold
    arrived: np.ndarray  # (n, q + 1) what has come since I woke
    news: np.ndarray  # (n, 1) whether something came since I gave a share away


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
    """Stochastic gradient push, for graphs on which messages go one way (Assran et al. 2019).

    All agents come to have about one model, but for its personal parameters, which never leave their agent. A wake
    sends one vector, and a number, to each neighbour that the agent can reach.

    Parameters
    ----------
    local : SGD or Adam
        The steps of an agent between two messages.

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[0.0], [1.0], [5.0]], agents=[0, 1, 2])
    >>> problem = ct.Problem.separate(data, ct.graphs.complete(3), loss="location")
    >>> run = ct.simulate(problem, ct.gossip.PushSum(ct.optim.SGD(0.01)), rounds=1000)
    >>> run.theta.ravel().round(1).tolist()  # about the mean
    [2.0, 2.0, 2.0]
    """

    local: Any = SGD()

    messages = {MASS: (Vector(), Number(0.0))}
    minimises = None
    directed = True
    sums = True

    def scratch_size(self, arrays, p):
        """Numbers of scratch paper that a handler needs."""
        return p + 1

    def start(self, arrays, theta):
        """State before the first letter: a weight of 1."""
        n, q = theta.shape[0], arrays.sent.shape[0]
        mass = np.column_stack([theta[:, arrays.sent], np.ones(n)])
        own = Own(theta.copy(), new_job(self.local, theta), mass, np.zeros((n, q + 1)), np.ones((n, 1)))
        return own, Edge(np.zeros((arrays.peer.shape[0], 0)))

    def shown(self, arrays, own, edge):
        """Line 7, with what has come since an agent woke."""
        q, theta = arrays.sent.shape[0], own.theta.copy()
        mass = own.mass + own.arrived
        theta[:, arrays.sent] = mass[:, :q] / mass[:, q:]
        return theta

    open = FixedModels.open

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """Lines 5 to 7, with what has come since the last time; then my steps from there."""
        if phase > 0:
            return False
        axpy(1.0, me.arrived, me.mass)
        fill(0.0, me.arrived)
        _show(data, me, outbox.scratch)
        copy_to(me.theta, me.job.theta)
        return True

    def publish(self, data, me, edges, randomness, outbox):
        """Lines 2 to 4: my steps on the mass, of which I keep an even share."""
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
        """Keep what somebody has given me until I wake."""
        q = data.sent.shape[0]
        if message.kind == MASS and message.text.shape[0] == q + 1 and message.text[q] > 0.0:
            axpy(1.0, message.text, me.arrived)
            me.news[0] = 1.0
