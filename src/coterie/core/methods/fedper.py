"""A common body under personal heads: FedPer (Arivazhagan et al. 2019) and FedRep (Collins et al. 2021).

Personal parameters, as declared by the problem, never leave their client; the server averages the others.

    FedPer  body and head by joint steps, as in FedAvg                      (Algorithms 1 and 2)
    FedRep  the head by tau steps with the received body fixed, then the body   (Algorithm 1)

=============================  =====================================================
paper                          here
=============================  =====================================================
W_B, phi                       ``me.theta[data.sent]``
W_P, h                         the other parameters of ``me.theta``
tau                            ``local.steps``
=============================  =====================================================
"""

from __future__ import annotations

from typing import Any

from ..._checks import integer
from ...errors import ParameterError
from ..linear import copy_to
from ..method import NamedTuple
from ..training import COMMON, EVERY, OWN, PART, SGD, STEPS
from . import server


@server.served()
class FedPer(NamedTuple):
    """FedAvg on a problem with personal parts, such as heads; raises a MismatchError for a problem without.

    Parameters
    ----------
    local, clients, by_rows
        As in :class:`coterie.federated.FedAvg`.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> rng = np.random.default_rng(0)
    >>> data = ct.AgentData(rng.normal(size=(30, 4)), rng.integers(0, 2, 30), agents=np.arange(30) % 3)
    >>> ct.simulate(ct.Problem.federated(data, ct.models.TwoLayer(4, 3, 2)), ct.federated.FedPer(), rounds=1)
    Traceback (most recent call last):
    ...
    coterie.errors.MismatchError: FedPer is for models with personal parts, and here nothing is personal: ...

    References
    ----------
    Arivazhagan, Aggarwal, Singh, Choudhary, "Federated learning with personalization layers", arXiv:1912.00818, 2019.
    """

    local: Any = SGD()
    clients: int = 0
    by_rows: bool = True

    fit_for = server.fit_personal


def _check_steps(made):
    """Refuse more steps of the body than there are random numbers for minibatches."""
    if made.body_steps > made.local.steps:
        raise ParameterError(
            f"FedRep: body_steps={made.body_steps} must be at most local.steps={made.local.steps}, the steps of the "
            "head"
        )


@server.served(_check_steps, body_steps=integer)
class FedRep(NamedTuple):
    """Personal heads on a common body: in a round, a client first fits its head, then improves the body for this head.

    Parameters
    ----------
    local : SGD or Adam
        Optimiser; its ``steps`` are those of the head.
    clients : int, optional
        As in :class:`coterie.federated.FedAvg`.
    by_rows : bool
        Whether a client's weight in the average is the number of its rows. Default: equal weights, as in the paper.
    body_steps : int
        Number of steps of the body, at most ``local.steps``.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.federated.FedRep(ct.optim.SGD(0.1, steps=10), body_steps=2)
    FedRep(local=SGD(rate=0.1, steps=10, batch=0, momentum=0.0), clients=0, by_rows=False, body_steps=2)

    References
    ----------
    Collins, Hassani, Mokhtari, Shakkottai, "Exploiting shared representations for personalized federated learning",
    ICML 2021.
    """

    local: Any = SGD(0.1, 10)
    clients: int = 0
    by_rows: bool = False
    body_steps: int = 1

    jobs = 2
    fit_for = server.fit_personal

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """Train the head, then the body."""
        if phase > 1 or (phase == 0 and not server.has_work(data, me, randomness)):
            return False
        if phase == 0:
            copy_to(me.theta, me.job.theta)
            me.job.plan[PART], me.job.plan[STEPS] = OWN, EVERY
        else:
            me.job.plan[PART], me.job.plan[STEPS] = COMMON, float(self.body_steps)
        return True
