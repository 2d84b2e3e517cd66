"""SGD on the objective of the problem itself: parts of a model shared by all, parts tied over the graph.

Descends  ``Q(Theta) = s sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_i a_i f_i(theta_i)``  (:mod:`coterie.problem`), the
distances over tied parameters, with the shared ones equal for all. Of an agent with its neighbours as they are, the
part of Q over a_i is

    f_i(theta) + pull/2 |theta - center|^2  + constant,   pull = 2 s D_ii / a_i,   center = sum_j W_ij theta_j / D_ii

so a wake takes steps on f_i, each with a proximal step towards the center (an explicit one would diverge for agents
with little weight). Where all parameters are tied and a step takes all rows, agents rest at the minimum of Q, whatever
the rate: there ``grad f_i + pull (theta - center) = 0`` for all of them. Shared parameters are averaged as in
:class:`coterie.gossip.LocalSGD`: a common body with a graph of personal heads.

=============================  =====================================================
objective                      here
=============================  =====================================================
theta_i                        ``me.theta``
theta_j as i last heard it     ``edges.copy[t]`` with ``data.peer[t] == j``, parameters that are not personal
W_ij, D_ii                     ``data.weight[t]``, ``degree``
a_i                            ``importance(data, degree)``
center, pull                   ``me.job.center``, ``me.job.plan[PULL]``
=============================  =====================================================
"""

from __future__ import annotations

from ..arrays import SHARED, TIED, VACANT, importance
from ..linear import axpy, copy_to, fill, scatter, total
from ..method import method
from ..mixing import average
from ..training import DRAWN, PULL, new_job
from .dpsgd import DPSGD
from .local_sgd import LocalSGD

#: The pull of an agent whose own loss weighs nothing: it takes over what its neighbours say.
ALL_THE_WAY = 1e300


@method
class TiedSGD(DPSGD):
    """SGD on the problem's own objective: tied parameters drawn to the neighbours', shared ones averaged with them.

    Which are which, the problem says: :meth:`coterie.Problem.differentiable`. Personal ones never leave their agent. A
    wake sends one vector to each neighbour.

    Parameters
    ----------
    local : SGD or Adam
        The steps of an agent between two messages.
    mixing : "metropolis" or "weights"
        What averages of shared parameters weigh neighbours with, as in :class:`coterie.gossip.DPSGD`. Tied ones are
        drawn by the weights of the graph.

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
    >>> run = ct.simulate(problem, ct.gossip.TiedSGD(ct.optim.SGD(0.1)), wakes=400, seed=0)
    >>> run.theta.ravel().round(6).tolist()
    [0.666667, 1.333333]
    """

    footprint = "edges"

    def fit_for(self, problem):
        """Refuse a graph whose weights are to be averaged with, and cannot."""
        if (problem.roles == SHARED).any():
            DPSGD.fit_for(self, problem)

    def first_job(self, theta):
        """What agents train, with a center."""
        return new_job(self.local, theta, center=True)

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """My model, its shared parameters averaged; and what its tied ones are drawn to, how strongly."""
        if phase > 0:
            return False
        job, degree, mean = me.job, total(data.weight), outbox.scratch[: data.sent.shape[0]]
        average(self.mixing, data, me.theta, edges, mean)
        copy_to(me.theta, job.theta)
        scatter(mean, data.sent, job.theta)
        for k in range(job.theta.shape[0]):
            if data.roles[k] == TIED:
                job.theta[k] = me.theta[k]
        job.plan[DRAWN], job.plan[PULL] = TIED, 0.0
        if degree > 0.0:
            # center = sum_j W_ij theta_j / D_ii
            fill(0.0, mean)
            for t in range(data.peer.shape[0]):
                if data.peer[t] != VACANT:
                    axpy(data.weight[t] / degree, edges.copy[t], mean)
            scatter(mean, data.sent, job.center)
            # pull = 2 s D_ii / a_i
            a, edges_pull = importance(data, degree), 2.0 * data.smooth * degree
            job.plan[PULL] = min(edges_pull / a, ALL_THE_WAY) if a > 0.0 else ALL_THE_WAY * (edges_pull > 0.0)
        return True

    publish = LocalSGD.publish
