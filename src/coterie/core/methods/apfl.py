"""Adaptive personalised federated learning (APFL): Deng, Kamani, Mahdavi (2020), Algorithm 1.

A client uses a mixture ``alpha v + (1 - alpha) w`` of its own model v and its copy w of the common model.
A local step, with g the gradient of f_i at the mixture:

    v <- v - rate alpha g                      (own model, g at the mixture before the step)
    w <- w - rate grad f_i(w)                  (common model, averaged by the server)
    alpha <- alpha - alpha_rate <v - w, g>     (10), in the first step of a round only, clipped to [0, 1]

=============================  =====================================================
paper                          here
=============================  =====================================================
the mixture                    ``me.theta``
v_i, w_i                       ``me.personal``, ``me.common``; for the server, w is ``me.theta``
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
    """Each client mixes a personal model with the common one, with a weight that may be learned.

    A client's row of ``theta`` is its mixture.

    Parameters
    ----------
    local : SGD
        Without momentum: the two models take their steps alternately.
    clients : int, optional
        As in :class:`coterie.federated.FedAvg`.
    by_rows : bool
        Whether a client's weight in the average is the number of its rows. Default: equal weights, as in the paper.
    alpha : float
        Weight of the personal model, in [0, 1]; the initial weight, if it is learned.
    alpha_rate : float
        Learning rate of alpha, >= 0; with 0, alpha is constant.

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
        """Both models start at the given one. Every job is one step."""
        job = new_job(self.local, theta)
        job.plan[:, STEPS] = 1.0
        alpha = np.full((theta.shape[0], 1), self.alpha)
        post = server.new_round(self, arrays, arrays.sent.shape[0])
        return Own(theta.copy(), theta.copy(), theta.copy(), alpha, job, post), server.new_edges(arrays)

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """Alternate a step of the agent's own model, at the mixture, and a step of the common model."""
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
        """Copy the server's model into the agent's copy of the common model."""
        if not server.take_over(data, text, me.common):
            return False
        mix(me)
        return True

    def answer(self, data, me, out):
        """Write the agent's copy of the common model, and its weight."""
        return server.write(data, me.common, self.by_rows, out)
