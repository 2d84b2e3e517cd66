"""Ditto: Li, Hu, Beirami, Smith (2021), Algorithm 1: a personal model beside the common one, drawn to it.

    w_k <- steps of SGD on f_k, from w, which the server averages                        (FedAvg)
    v_k <- v_k - rate (grad f_k(v_k) + lambda (v_k - w)), the pull as a proximal step    (the personal model)

=============================  =====================================================
paper                          here
=============================  =====================================================
v_k                            ``me.theta``
w^t                            ``me.job.center``, for the server ``me.theta``
w_k                            ``me.job.theta`` after the second job
lambda                         ``pull``
=============================  =====================================================
"""

from __future__ import annotations

from typing import Any

from ..._checks import nonnegative
from ..linear import copy_to
from ..method import NamedTuple
from ..training import PULL, SGD, new_job
from . import server


@server.served(pull=nonnegative)
class Ditto(NamedTuple):
    """A personal model for each client, drawn to the common one that FedAvg learns at the same time.

    A client's row of theta is its personal model; only the common one is ever sent.

    Parameters
    ----------
    local, clients, by_rows
        As in :class:`coterie.federated.FedAvg`; both models take these steps.
    pull : float
        lambda, how strongly personal models are drawn to the common one, >= 0: 0 for models trained alone.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.federated.Ditto(ct.optim.SGD(0.1, steps=5, batch=8), pull=0.5)
    Ditto(local=SGD(rate=0.1, steps=5, batch=8, momentum=0.0), clients=0, by_rows=True, pull=0.5)

    References
    ----------
    Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021.
    """

    local: Any = SGD()
    clients: int = 0
    by_rows: bool = True
    pull: float = 0.1

    jobs = 2

    def first_job(self, theta):
        """What clients train, with a center."""
        return new_job(self.local, theta, center=True)

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """My personal model, then the common one: both begin at what the server has sent."""
        if phase == 0 and server.has_work(data, me, randomness):
            copy_to(me.theta, me.job.theta)
            me.job.plan[PULL] = self.pull
            return True
        if phase == 1:
            copy_to(me.job.theta, me.theta)
            copy_to(me.job.center, me.job.theta)
            me.job.plan[PULL] = 0.0
            return True
        return False

    def hear(self, data, me, text):
        """The server's model is what my own is drawn to."""
        return server.take_over(data, text, me.job.center)

    def answer(self, data, me, out):
        """The common model as I have trained it; its personal parameters, if there are any, stay with it."""
        server.keep_personal(data, me.job.theta, me.job.center)
        return server.write(data, me.job.theta, self.by_rows, out)
