"""pFedMe: T. Dinh, Tran, Nguyen (2020), Algorithm 1: personal models by Moreau envelopes.

    theta_i <- steps on f_i(theta) + lambda/2 |theta - w_i|^2, so many times:        (line 7)
    w_i     <- w_i - rate lambda (w_i - theta_i)                                     (line 8)
    w       <- (1 - beta) w + beta mean_i w_i over the cohort                        (line 11)

The steps of line 7 go on from the theta_i there was; each has a minibatch of its own.

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
    """pFedMe: each client's personal model minimises its loss and a pull to the common one, which follows them.

    A client's row of theta is its personal model.

    Parameters
    ----------
    local : SGD or Adam
        How a client finds its personal model for a given common one.
    clients : int, optional
        As in :class:`coterie.federated.FedAvg`.
    by_rows : bool
        Whether a client counts by the number of its rows. Default: all alike, as in the paper.
    pull : float
        lambda > 0, how strongly a personal model is drawn to the common one.
    rate : float
        eta > 0, of the common model; ``rate * pull`` should be at most 1.
    mixing : float
        beta > 0, how far the server goes to the average.
    repeats : int
        R, how many times a client does both in a round.

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
        """What clients train, with a pull."""
        return new_job(self.local, theta, center=True, pull=self.pull)

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """My personal model, from where it was; and after it a step of the common one."""
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
        """The server's model is where mine of the common one begins."""
        return server.take_over(data, text, me.job.center)

    def answer(self, data, me, out):
        """w_i, and its weight."""
        return server.write(data, me.job.center, self.by_rows, out)

    def average(self, data, me, edges):
        """A step to the mean of answers."""
        for c in range(data.sent.shape[0]):
            k = data.sent[c]
            me.theta[k] += self.mixing * (me.round.sum[c] / me.round.weight[0] - me.theta[k])
