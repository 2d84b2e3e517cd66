"""Decentralised parallel stochastic gradient descent (D-PSGD): Lian et al. (2017), Algorithm 1.

Every agent averages its model with those of its neighbours, and adds the gradient steps taken at its own model:

    x_i <- sum_j W_ij x_j - rate g_i(x_i)        (lines 2 to 5)

The method finds no optimum of the problem: agents reach approximate consensus on one model; a constant rate leaves a
distance to the optimum of the mean loss.

=============================  =====================================================
paper                          here
=============================  =====================================================
x_i                            ``me.theta``
x_j as i last received it      ``edges.copy[t]`` with ``data.peer[t] == j``, parameters that are not personal
W_ij                           ``mixing_weight(...)``, Metropolis weights or those of the graph
g_i                            the steps of ``me.job``
=============================  =====================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..linear import axpy, copy_to, gather, scatter
from ..method import NamedTuple, method
from ..mixing import MESSAGES, UNKNOWN, average, check_mixing, hear, mixes, new_edges, open_edge, tell
from ..training import SGD, Job, new_job


class Own(NamedTuple):
    """State of the agents."""

    theta: np.ndarray  # (n, p) my model
    job: Job
    told: np.ndarray  # (n, 1) number of neighbours that the agent has announced, or UNKNOWN


@mixes
@method
class DPSGD(NamedTuple):
    """Decentralised SGD on a graph: average with the neighbours, and add local gradient steps (Lian et al. 2017).

    All agents approach one common model, except for personal parameters, which never leave their agent. A wake sends
    one vector to each neighbour.

    Parameters
    ----------
    local : SGD or Adam
        Steps of an agent between two averages.
    mixing : "metropolis" or "weights"
        Weights of neighbours in an average. "metropolis": one over one plus the larger number of neighbours of the two
        agents, which agents announce to each other. "weights": those of the graph, which must sum to at most 1 per
        agent.

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[0.0], [1.0], [5.0]], agents=[0, 1, 2])
    >>> problem = ct.Problem.separate(data, ct.graphs.complete(3), loss="location")
    >>> run = ct.simulate(problem, ct.gossip.DPSGD(ct.optim.SGD(0.01)), rounds=1000)
    >>> run.theta.ravel().round(1).tolist()  # near the mean
    [2.0, 2.0, 2.0]
    """

    local: Any = SGD()
    mixing: Any = "metropolis"

    messages = MESSAGES
    max_messages = 2
    minimises = None
    copies = True
    footprint = "edges"
    greets_all = True  # a message tells how many neighbours the sender has

    def fit_for(self, problem):
        """Raise a MismatchError for a graph whose weights cannot be used for averages."""
        check_mixing(self, problem)

    def scratch_size(self, arrays, p):
        return max(2 * p, 2)

    def start(self, arrays, theta):
        told = np.full((theta.shape[0], 1), UNKNOWN)
        return Own(theta.copy(), self.first_job(theta), told), new_edges(arrays, theta)

    def first_job(self, theta):
        """Return jobs without a center."""
        return new_job(self.local, theta)

    def open(self, data, me, edges, slot):
        open_edge(data, me.theta, edges, slot)

    def greet(self, data, me, edges, outbox):
        me.told[0] = UNKNOWN
        tell(self.mixing, data, me.theta, me.told, edges, outbox)

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """Line 3: the gradient at the agent's current model."""
        if phase > 0:
            return False
        copy_to(me.theta, me.job.theta)
        return True

    def publish(self, data, me, edges, randomness, outbox):
        """Lines 4 and 5: the average, plus the agent's own steps."""
        q = data.sent.shape[0]
        mean, part = outbox.scratch[:q], outbox.scratch[q : 2 * q]
        # sum_j W_ij x_j + (trained parameters - x_i), for parameters that are not personal
        average(self.mixing, data, me.theta, edges, mean)
        gather(me.job.theta, data.sent, part)
        axpy(1.0, part, mean)
        gather(me.theta, data.sent, part)
        axpy(-1.0, part, mean)
        copy_to(me.job.theta, me.theta)
        scatter(mean, data.sent, me.theta)
        tell(self.mixing, data, me.theta, me.told, edges, outbox)

    def receive(self, data, me, edges, message, outbox):
        """Store the neighbour's parameters."""
        hear(data, edges, message)
