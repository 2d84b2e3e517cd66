"""pFedMe: T. Dinh, Tran, Nguyen (2020), Algorithm 1: personal models by Moreau envelopes.

    theta_i <- steps on f_i(theta) + lambda/2 |theta - w_i|^2                        (line 7)
    w_i     <- w_i - rate lambda (w_i - theta_i)                                     (line 8)
    w       <- (1 - beta) w + beta mean_i w_i over the cohort                        (line 11)

The steps of line 7 start at the previous theta_i; each has a minibatch of its own.

=============================  =====================================================
paper                          here
=============================  =====================================================
theta_i                        ``me.theta``
w_i                            ``me.job.center``
w                              ``me.theta`` of the server
lambda, eta, beta, R           ``pull``, ``rate``, ``mixing``, ``repeats``
K, the inner steps             ``local.steps``
=============================  =====================================================
"""

from __future__ import annotations

from typing import Any

from ..._checks import integer, positive
from ..linear import copy_to
from ..method import NamedTuple
from ..training import SGD, new_job
from . import server


@server.served(pull=positive, rate=positive, mixing=positive, repeats=integer)
class PFedMe(NamedTuple):
    """Each client's personal model minimises its loss plus a pull to the common model, which follows the personal ones.

    A client's row of ``theta`` is its personal model.

    Parameters
    ----------
    local : SGD or Adam
        Steps of a client on its personal model, for a fixed common model.
    clients : int, optional
        As in :class:`coterie.federated.FedAvg`.
    by_rows : bool
        Whether a client's weight in the average is the number of its rows. Default: equal weights, as in the paper.
    pull : float
        lambda > 0, the weight of the pull of a personal model to the common one.
    rate : float
        eta > 0, learning rate of the common model; ``rate * pull`` should be at most 1.
    mixing : float
        beta > 0, step of the server towards the average.
    repeats : int
        R, number of alternations of both updates in a round.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.federated.PFedMe(ct.optim.SGD(0.1, steps=5), pull=15.0, rate=0.01, repeats=10).jobs
    10

    References
    ----------
    T. Dinh, Tran, Nguyen, "Personalized federated learning with Moreau envelopes", NeurIPS 2020.
    """

    local: Any = SGD(0.1, 5)
    clients: int = 0
    by_rows: bool = False
    pull: float = 15.0
    rate: float = 0.01
    mixing: float = 1.0
    repeats: int = 5

    jobs = property(lambda self: self.repeats)

    def first_job(self, theta):
        """Return jobs with a pull to the common model."""
        return new_job(self.local, theta, center=True, pull=self.pull)

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """Train the personal model from its last value; then take a step of the common model."""
        if phase == 0:
            if not server.has_work(data, me, randomness):
                return False
            copy_to(me.theta, me.job.theta)
            return True
        for c in range(data.sent.shape[0]):
            k = data.sent[c]
            me.job.center[k] -= self.rate * self.pull * (me.job.center[k] - me.job.theta[k])
        copy_to(me.job.theta, me.theta)
        return phase < self.repeats

    def hear(self, data, me, text):
        """Start the agent's copy of the common model at the server's model."""
        return server.take_over(data, text, me.job.center)

    def answer(self, data, me, out):
        """Write w_i, and its weight."""
        return server.write(data, me.job.center, self.by_rows, out)

    def average(self, data, me, edges):
        """Take a step towards the mean of the answers."""
        for c in range(data.sent.shape[0]):
            k = data.sent[c]
            me.theta[k] += self.mixing * (me.round.sum[c] / me.round.weight[0] - me.theta[k])
