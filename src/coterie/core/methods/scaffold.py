"""SCAFFOLD: Karimireddy et al. (2020), Algorithm 1, option II: control variates remove the drift of local steps.

    y_i  <- y_i - rate (g_i(y_i) - c_i + c), repeated, from x           (line 10)
    c_i  <- c_i - c + (x - y_i) / (steps rate)                          (line 12, option II)
    x    <- x + server_rate mean_i (y_i - x) over the cohort            (lines 16 and 17)
    c    <- c + 1/N sum_i (change of c_i) over the cohort

A client sends c_i itself, not its change, and the server stores the last c_i of each client: messages have the size of
the paper's, and a lost message does not corrupt c for good. Clients have equal weights, as in the paper.

=============================  =====================================================
paper                          here
=============================  =====================================================
x, y_i                         ``me.theta[data.sent]``, ``me.job.theta``
c - c_i                        ``me.job.correction``
c_i; c                         ``me.control`` of a client; of the server
=============================  =====================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._checks import positive
from ..linear import axpy, copy_to, fill, gather, scatter
from ..messages import Counter, Vector
from ..method import NamedTuple
from ..training import SGD, Job, new_job
from . import server


class Own(NamedTuple):
    """State of the agents."""

    theta: np.ndarray  # (n, p) the server's model as last received, with the client's personal parameters
    control: np.ndarray  # (n, q) c_i, or c
    job: Job
    round: server.Round


class Edge(NamedTuple):
    """State of the edges of the server."""

    asked: np.ndarray  # (edges,) IDLE, LATE or ASKED
    control: np.ndarray  # (edges, q) c_i as last received


@server.served(plain=True, server_rate=positive)
class SCAFFOLD(NamedTuple):
    """FedAvg with control variates, which correct the steps of clients towards those on the data of all clients.

    A message holds a model and a control variate, twice the size of a message of FedAvg.

    Parameters
    ----------
    local : SGD
        Without momentum: control variates are computed from the steps.
    clients : int, optional
        As in :class:`coterie.federated.FedAvg`.
    server_rate : float
        Step of the server towards the average, > 0.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.federated.SCAFFOLD(ct.optim.SGD(0.1, momentum=0.9))
    Traceback (most recent call last):
    ...
    coterie.errors.ParameterError: SCAFFOLD: local=SGD(rate=0.1, steps=1, batch=0, momentum=0.9) has a memory, ...

    References
    ----------
    Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: stochastic controlled averaging for federated learning",
    ICML 2020.
    """

    local: Any = SGD()
    clients: int = 0
    server_rate: float = 1.0

    messages = {server.UP: (Vector(2), Counter()), server.DOWN: Vector(2)}

    def scratch_size(self, arrays, p):
        return 2 * p + 1

    def start(self, arrays, theta):
        """All control variates are 0."""
        n, q = theta.shape[0], arrays.sent.shape[0]
        job = new_job(self.local, theta, correction=True)
        own = Own(theta.copy(), np.zeros((n, q)), job, server.new_round(self, arrays, q))
        return own, Edge(server.new_edges(arrays).asked, np.zeros((arrays.peer.shape[0], q)))

    def tell(self, data, me, edges, out):
        """Write the server's model and control variate."""
        q = data.sent.shape[0]
        gather(me.theta, data.sent, out)
        copy_to(me.control, out[q:])
        return 2 * q

    def hear(self, data, me, text):
        """Store the model, and correct the client's steps by the difference of the control variates."""
        q = data.sent.shape[0]
        if text.shape[0] != 2 * q:
            return False
        scatter(text[:q], data.sent, me.theta)
        fill(0.0, me.job.correction)
        for c in range(q):
            me.job.correction[data.sent[c]] = text[q + c] - me.control[c]
        return True

    def answer(self, data, me, out):
        """Write the change of the model, the new control variate, and a weight of one."""
        q = data.sent.shape[0]
        for c in range(q):
            k = data.sent[c]
            out[c] = me.job.theta[k] - me.theta[k]
            if data.labels.shape[0] > 0:
                me.control[c] = -me.job.correction[k] - out[c] / (self.local.steps * self.local.rate)
            out[q + c] = me.control[c]
        server.keep_personal(data, me.job.theta, me.theta)
        out[2 * q] = server.weight_of(data, False)
        return 2 * q + 1

    def collect(self, data, me, edges, message):
        """Add a client's change of the model to the sum, and the change of its control variate to the server's."""
        q = data.sent.shape[0]
        if message.text.shape[0] != 2 * q + 1:
            return False
        axpy(message.text[2 * q], message.text[:q], me.round.sum)
        for c in range(q):
            me.control[c] += (message.text[q + c] - edges.control[message.slot, c]) / data.peer.shape[0]
            edges.control[message.slot, c] = message.text[q + c]
        return True

    def average(self, data, me, edges):
        """Take a step along the mean change."""
        for c in range(data.sent.shape[0]):
            me.theta[data.sent[c]] += self.server_rate * me.round.sum[c] / me.round.weight[0]
