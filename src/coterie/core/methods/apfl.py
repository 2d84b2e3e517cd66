"""Adaptive personalised federated learning (APFL): Deng, Kamani, Mahdavi (2020), Algorithm 1.

A client uses a mixture ``alpha v + (1 - alpha) w`` of its own model v and its copy of the common one w.
A local step, with g the gradient of f_i at the mixture:

    v <- v - rate alpha g                      (its own model, for the mixture as it was)
    w <- w - rate grad f_i(w)                  (which the server averages)
    alpha <- alpha - alpha_rate <v - w, g>     (10), once in a round, at its first step, and kept in [0, 1]

=============================  =====================================================
paper                          here
=============================  =====================================================
the mixture                    ``me.theta``
v_i, w_i                       ``me.personal``, ``me.common``; w of the server: ``me.theta``
alpha_i                        ``me.alpha``
tau                            ``local.steps``
=============================  =====================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._checks import nonnegative, probability
from ..compile import inline
from ..linear import copy_to
from ..method import NamedTuple
from ..training import SGD, STEPS, Job, new_job
from . import server


class Own(NamedTuple):
    """State of the agents."""

    theta: np.ndarray  # (n, p) the mixture
    personal: np.ndarray  # (n, p) v
    common: np.ndarray  # (n, p) w
    alpha: np.ndarray  # (n, 1)
    job: Job
    round: server.Round


@inline
def mix(me):
    """``theta = alpha v + (1 - alpha) w``."""
    alpha = me.alpha[0]
    for k in range(me.theta.shape[0]):
        me.theta[k] = alpha * me.personal[k] + (1.0 - alpha) * me.common[k]


@server.served(plain=True, alpha=probability, alpha_rate=nonnegative)
class APFL(NamedTuple):
    """A mixture of a personal and the common model for each client, with a weight that may be learned.

    A client's row of theta is its mixture.

    Parameters
    ----------
    local : SGD
        Without momentum: the two models take their steps by turns.
    clients : int, optional
        As in :class:`coterie.federated.FedAvg`.
    by_rows : bool
        Whether a client counts by the number of its rows. Default: all alike, as in the paper.
    alpha : float
        Weight of the personal model, in [0, 1]: at the start, if it is learned.
    alpha_rate : float
        Learning rate of alpha, >= 0; 0 keeps it.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.federated.APFL(ct.optim.SGD(0.1, steps=5), alpha=0.25)
    APFL(local=SGD(rate=0.1, steps=5, batch=0, momentum=0.0), clients=0, by_rows=False, alpha=0.25, alpha_rate=0.0)

    References
    ----------
    Deng, Kamani, Mahdavi, "Adaptive personalized federated learning", arXiv:2003.13461, 2020.
    """

    local: Any = SGD()
    clients: int = 0
    by_rows: bool = False
    alpha: float = 0.5
    alpha_rate: float = 0.0

    jobs = property(lambda self: 2 * self.local.steps)

    def start(self, arrays, theta):
        """State before the first letter: both models are the one given. Every job is one step."""
        job = new_job(self.local, theta)
        job.plan[:, STEPS] = 1.0
        alpha = np.full((theta.shape[0], 1), self.alpha)
        post = server.new_round(self, arrays, arrays.sent.shape[0])
        return Own(theta.copy(), theta.copy(), theta.copy(), alpha, job, post), server.new_edges(arrays)

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """By turns a step at the mixture, for my own model, and one of the common model."""
        if phase == 0 and not server.has_work(data, me, randomness):
            return False
        if phase % 2 == 0:
            if phase > 0:
                copy_to(me.job.theta, me.common)
                mix(me)
            copy_to(me.theta, me.job.theta)
            return phase < 2 * self.local.steps
        alpha, slope = me.alpha[0], 0.0
        for k in range(me.theta.shape[0]):
            change = me.job.theta[k] - me.theta[k]  # -rate g
            slope -= (me.personal[k] - me.common[k]) * change / self.local.rate
            me.personal[k] += alpha * change
        if phase == 1:
            me.alpha[0] = min(max(alpha - self.alpha_rate * slope, 0.0), 1.0)
        copy_to(me.common, me.job.theta)
        return True

    def hear(self, data, me, text):
        """The server's model is mine of the common one."""
        if not server.take_over(data, text, me.common):
            return False
        mix(me)
        return True

    def answer(self, data, me, out):
        """My copy of the common model, and its weight."""
        return server.write(data, me.common, self.by_rows, out)
