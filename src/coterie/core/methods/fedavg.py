"""Federated averaging (FedAvg), McMahan et al. (2017), Algorithm 1; with a proximal term (FedProx), Li et al. (2020).

    w_i <- steps of SGD on f_i (FedProx: on f_i + mu/2 |w_i - w|^2), from w     (ClientUpdate; FedProx, Algorithm 2)
    w   <- sum_i m_i w_i / sum_i m_i over the cohort                            (the server)

Neither method minimises the objective of the problem: with several local steps, clients with different data drift
apart.

=============================  =====================================================
paper                          here
=============================  =====================================================
w (w_t)                        ``me.theta`` of the server; of a client, as last received
w_i (w_{t+1}^k)                ``me.job.theta``
n_k                            the number of rows, last in a message UP
S_t                            ``edges.asked`` of the server
mu                             ``mu``, taken as a proximal step
=============================  =====================================================
"""

from __future__ import annotations

from typing import Any

from ..._checks import nonnegative
from ..method import NamedTuple
from ..training import SGD, new_job
from . import server


@server.served()
class FedAvg(NamedTuple):
    """Federated averaging: clients train the server's model on their rows, and the server averages what they send.

    For a problem with a server, :meth:`coterie.Problem.federated`. Personal parameters stay with their clients. A
    client's row of ``theta`` is the server's model as last received, with the client's personal parameters; the
    server's row is the average.

    Parameters
    ----------
    local : SGD or Adam
        Steps of a client on the model in a round.
    clients : int, optional
        Number of clients of a round, drawn without replacement. Default: all.
    by_rows : bool
        Whether a client's weight in the average is the number of its rows; otherwise all weights are equal.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 3))
    >>> data = ct.AgentData(X, np.sign(X @ [1.0, -2.0, 0.5]), agents=np.arange(60) % 6)
    >>> problem = ct.Problem.federated(data, "logistic")
    >>> method = ct.federated.FedAvg(ct.optim.SGD(0.5, steps=5, batch=4), clients=3)
    >>> run = ct.simulate(problem, method, rounds=20, start="zeros")
    >>> run.messages  # a model to three clients before the first round; in each, three up and three down
    123

    References
    ----------
    McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-efficient learning of deep networks from
    decentralized data", AISTATS 2017.
    """

    local: Any = SGD()
    clients: int = 0
    by_rows: bool = True


@server.served(mu=nonnegative)
class FedProx(NamedTuple):
    """FedAvg with a pull of clients to the server's model, ``mu/2 |w_i - w|^2``, so that clients drift less.

    The pull is a proximal step after each gradient step, see ``coterie.core.training``; with ``mu=0`` this is
    :class:`coterie.federated.FedAvg`.

    Parameters
    ----------
    local, clients, by_rows
        As in :class:`coterie.federated.FedAvg`.
    mu : float
        Weight of the pull, >= 0.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.federated.FedProx(ct.optim.SGD(0.1, steps=10), mu=0.5)
    FedProx(local=SGD(rate=0.1, steps=10, batch=0, momentum=0.0), clients=0, by_rows=True, mu=0.5)

    References
    ----------
    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated optimization in heterogeneous networks", MLSys 2020.
    """

    local: Any = SGD()
    clients: int = 0
    by_rows: bool = True
    mu: float = 0.1

    def first_job(self, theta):
        """Return jobs with a pull to the server's model."""
        return new_job(self.local, theta, center=True, pull=self.mu)
