"""Ditto: Li, Hu, Beirami, Smith (2021), Algorithm 1: personal models with a pull to the common model.

    w_k <- steps of SGD on f_k, from w; the server averages the w_k                      (FedAvg)
    v_k <- v_k - rate (grad f_k(v_k) + lambda (v_k - w)), the pull as a proximal step    (the personal model)

=============================  =====================================================
paper                          here
=============================  =====================================================
v_k                            ``me.theta``
w^t                            ``me.job.center``; for the server, ``me.theta``
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
    """Each client learns a personal model with a pull to the common model, which FedAvg learns at the same time.

    A client's row of ``theta`` is its personal model; only the common model is sent.

    Parameters
    ----------
    local, clients, by_rows
        As in :class:`coterie.federated.FedAvg`; the personal and the common model take these steps.
    pull : float
        lambda, the weight of the pull of personal models to the common one, >= 0; with 0, clients train alone.

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
        """Return jobs with a center."""
        return new_job(self.local, theta, center=True)

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """Train the personal model, then the common model, from the server's model."""
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
        """Store the server's model as the center of the pull."""
        return server.take_over(data, text, me.job.center)

    def answer(self, data, me, out):
        """Write the common model as trained; its personal parameters, if there are any, stay at the client."""
        server.keep_personal(data, me.job.theta, me.job.center)
        return server.write(data, me.job.theta, self.by_rows, out)
