"""SGD on the objective of the problem: shared parts of a model equal for all agents, tied parts similar over the graph.

Descends  ``Q(Theta) = s sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_i a_i f_i(theta_i)``  (:mod:`coterie.problem`),
with distances over tied parameters, and shared parameters equal for all agents. With the neighbours fixed, agent i's
part of Q, divided by a_i, is

    f_i(theta) + pull/2 |theta - center|^2  + constant,   pull = 2 s D_ii / a_i,   center = sum_j W_ij theta_j / D_ii

so a wake takes steps on f_i, each with a proximal step towards the center (an explicit step would diverge for agents
with little weight). If all parameters are tied and a step uses all rows, the only fixed point is the minimum of Q, for
any rate: there ``grad f_i + pull (theta - center) = 0`` for all agents. Shared parameters are averaged as in
:class:`coterie.gossip.LocalSGD`: a common body with personal heads connected by a graph.

=============================  =====================================================
objective                      here
=============================  =====================================================
theta_i                        ``me.theta``
theta_j as i last received it  ``edges.copy[t]`` with ``data.peer[t] == j``, parameters that are not personal
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

#: Pull of an agent whose loss has weight zero: the agent copies the center.
MAX_PULL = 1e300


@method
class TiedSGD(DPSGD):
    """SGD on the problem's objective: tied parameters pulled to the neighbours' values, shared ones averaged with them.

    The problem declares the role of each parameter: :meth:`coterie.Problem.differentiable`. Personal parameters never
    leave their agent. A wake sends one vector to each neighbour.

    Parameters
    ----------
    local : SGD or Adam
        Steps of an agent between two messages.
    mixing : "metropolis" or "weights"
        Weights of neighbours in averages of shared parameters, as in :class:`coterie.gossip.DPSGD`. Tied parameters are
        pulled with the weights of the graph.

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
        if (problem.roles == SHARED).any():
            DPSGD.fit_for(self, problem)

    def first_job(self, theta):
        """Return jobs with a center."""
        return new_job(self.local, theta, center=True)

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """Average the shared parameters; compute center and pull of the tied ones."""
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
            job.plan[PULL] = min(edges_pull / a, MAX_PULL) if a > 0.0 else MAX_PULL * (edges_pull > 0.0)
        return True

    publish = LocalSGD.publish
