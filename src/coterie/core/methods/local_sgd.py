"""Decentralised local SGD: Koloskova, Loizou, Boreiri, Jaggi and Stich (2020), Algorithm 1.

Every agent takes several local steps, and then averages its model with those of its neighbours:

    x_i <- x_i - rate g_i(x_i), repeated             (lines 3 and 4)
    x_i <- sum_j W_ij x_j                            (line 6)

On a complete graph, where all weights are 1/n, this is FedAvg (McMahan et al. 2017) without a server. A wake begins
with line 6, from the models that neighbours have sent at the end of their wakes; a run shows models after line 6, which
agents would use.

=============================  =====================================================
paper                          here
=============================  =====================================================
x_i after line 4               ``me.theta``
x_j after its line 4           ``edges.copy[t]`` with ``data.peer[t] == j``, parameters that are not personal
w_ij                           ``mixing_weight(...)``, Metropolis weights or those of the graph
g_i                            the steps of ``me.job``
=============================  =====================================================
"""

from __future__ import annotations

from ..linear import copy_to, scatter
from ..method import method
from ..mixing import average, averaged, tell
from .dpsgd import DPSGD


@method
class LocalSGD(DPSGD):
    """Local steps, then an average with the neighbours, as FedAvg without a server (Koloskova et al. 2020).

    Unlike in :class:`coterie.gossip.DPSGD`, an agent trains from the average, and sends the trained model. A wake sends
    one vector to each neighbour.

    Parameters
    ----------
    local : SGD or Adam
        Steps of an agent between two averages.
    mixing : "metropolis" or "weights"
        As in :class:`coterie.gossip.DPSGD`.

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[0.0], [1.0], [5.0]], agents=[0, 1, 2])
    >>> problem = ct.Problem.separate(data, ct.graphs.complete(3), loss="location")
    >>> run = ct.simulate(problem, ct.gossip.LocalSGD(ct.optim.SGD(0.01, steps=5)), rounds=200)
    >>> run.theta.mean().round(3)
    np.float64(2.0)
    """

    footprint = "edges"

    def shown(self, arrays, own, edge):
        """Line 6: return the averages, from which agents would train."""
        return averaged(self.mixing, arrays, own.theta, edge)

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """Lines 3 and 4, starting at the average of line 6."""
        if phase > 0:
            return False
        mean = outbox.scratch[: data.sent.shape[0]]
        average(self.mixing, data, me.theta, edges, mean)
        copy_to(me.theta, me.job.theta)
        scatter(mean, data.sent, me.job.theta)
        return True

    def publish(self, data, me, edges, randomness, outbox):
        """Send the trained parameters."""
        copy_to(me.job.theta, me.theta)
        tell(self.mixing, data, me.theta, me.told, edges, outbox)
