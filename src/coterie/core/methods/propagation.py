"""Model propagation (MP): Vanhaesebrouck, Bellet, Tommasi (2017), Section 3.

Minimises ``Q(Theta) = 1/2 sum_{i<j} W_ij |theta_i - theta_j|^2 + mu/2 sum_i D_ii c_i |theta_i - theta_i^sol|^2``,
MP (3). The closed form (4) is ``Problem.propagation(...).solve()``; here are the two iterations that reach it by
messages: synchronous rounds (5), and asynchronous gossip (6), where an agent and one neighbour exchange models and then
both update from the last models received from their neighbours.

Both updates are the minimiser over one block of a quadratic, which is the proximal step of DJAM (4): with
mu = abar / alpha and weight D_ii,

    ( alpha sum_k W_ik / D_ii copy_i[k] + abar c_i theta_i^sol ) / ( alpha + abar c_i )
        = argmin_theta  1/2 sum_k W_ik |theta - copy_i[k]|^2 + mu/2 D_ii c_i |theta - theta_i^sol|^2.

=============================  =====================================================
paper                          here
=============================  =====================================================
Theta_i^i                      ``me.theta``
Theta_i^k                      ``edges.copy[slot]`` with ``data.peer[slot] == k``
theta_i^sol                    the only example of agent i
pi_i^j                         ``data.choice[slot]``, up to a factor
=============================  =====================================================
"""

from __future__ import annotations

from ...errors import MismatchError
from ..arrays import EVERYONE, send
from ..method import method
from ..proximal import is_mean
from .djam import DJAM, MODEL, update


@method
class ModelPropagation(DJAM):
    """Gossip of locally trained models, MP (6), and its synchronous rounds, MP (5). No parameters.

    For ``Location(Squared())``, the loss of :meth:`coterie.Problem.propagation`. A wake exchanges two vectors, a round
    sends one along every edge in both directions.

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
    >>> ct.simulate(problem, ct.ModelPropagation(), wakes=50, seed=0).theta.ravel().round(6).tolist()
    [0.666667, 1.333333]
    >>> run = ct.simulate(problem, ct.ModelPropagation(), rounds=50)
    >>> run.theta.ravel().round(6).tolist(), run.vectors
    ([0.666667, 1.333333], 102)
    """

    def fit_for(self, problem):
        if not is_mean(problem.loss):
            raise MismatchError(
                f"ModelPropagation smooths locally trained models under a squared distance, not under "
                f"{problem.loss!r}: make ct.Problem.propagation(problem.local(), problem.graph), or use another method"
            )

    def round(self, data, me, edges, outbox):
        """MP (5): update from the neighbours' models of the last round, and send the result to all neighbours."""
        update(data, me, edges, outbox.scratch)
        send(outbox, EVERYONE, MODEL, me.theta)
