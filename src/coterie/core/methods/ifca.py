"""Iterative federated clustering (IFCA): Ghosh, Chung, Yin, Ramchandran (2020), Algorithm 1, by averages of models.

    j_i     <- the model j of k with the smallest f_i(theta_j)      (line 6)
    theta_i <- steps of SGD on f_i, from that model                 (line 15)
    theta_j <- mean of theta_i over clients of the cohort with j_i = j; unchanged if there are none    (line 19)

=============================  =====================================================
paper                          here
=============================  =====================================================
theta_1 ... theta_k            ``me.models``, one after the other
j_i                            ``me.choice``
the model of the own cluster   ``me.theta``
=============================  =====================================================
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ..._checks import integer, nonnegative
from ..compile import inline
from ..linear import axpy, copy_to, gather, scatter
from ..messages import Counter, Vector
from ..method import NamedTuple
from ..training import EVERY, LOSS, SGD, STEPS, Job, new_job
from . import server


class Own(NamedTuple):
    """State of the agents."""

    theta: np.ndarray  # (n, p) model of the client's cluster, with personal parameters; the server's mean of all
    models: np.ndarray  # (n, k q) models of all clusters, as last received
    choice: np.ndarray  # (n, 1) the agent's cluster
    least: np.ndarray  # (n, 1) the agent's loss with the model of its cluster
    job: Job
    round: server.Round


@inline
def take_model(data, me, which, out):
    """Write the model of a cluster, with the agent's personal parameters."""
    q = data.sent.shape[0]
    copy_to(me.theta, out)
    scatter(me.models[which * q : (which + 1) * q], data.sent, out)


@server.served(clusters=integer, spread=nonnegative, seed=partial(integer, least=0))
class IFCA(NamedTuple):
    """Clustered clients: the server keeps a model for each cluster, and a client trains the one with the smallest loss.

    A client's row of ``theta`` is the model of its cluster. A message to a client holds the models of all clusters.

    Parameters
    ----------
    local, clients
        As in :class:`coterie.federated.FedAvg`.
    by_rows : bool
        Whether a client's weight in the average is the number of its rows. Default: equal weights, as in the paper.
    clusters : int
        Number of models, k.
    spread : float
        Standard deviation of the normal noise by which the initial models differ from the server's first model. From
        equal models, all clients would make equal choices for ever.
    seed : int
        Seed of this noise. If an unlucky start leaves a cluster empty, try another.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.federated.IFCA(ct.optim.SGD(0.1, steps=5), clusters=3).jobs  # three losses computed, and one model trained
    4

    References
    ----------
    Ghosh, Chung, Yin, Ramchandran, "An efficient framework for clustered federated learning", NeurIPS 2020.
    """

    local: Any = SGD()
    clients: int = 0
    by_rows: bool = False
    clusters: int = 2
    spread: float = 0.1
    seed: int = 0

    messages = property(lambda self: {server.UP: (Vector(), Counter(), Counter()), server.DOWN: Vector(self.clusters)})
    jobs = property(lambda self: self.clusters + 1)

    def scratch_size(self, arrays, p):
        return self.clusters * p + 2

    def start(self, arrays, theta):
        """The server's models differ by random noise."""
        n, q = theta.shape[0], arrays.sent.shape[0]
        models = np.tile(theta[:, arrays.sent], (1, self.clusters))
        leads = server.servers(arrays)
        models[leads] += self.spread * np.random.default_rng(self.seed).standard_normal(self.clusters * q)
        post = server.new_round(self, arrays, self.clusters * (q + 1))
        own = Own(theta.copy(), models, np.zeros((n, 1)), np.zeros((n, 1)), new_job(self.local, theta), post)
        return own, server.new_edges(arrays)

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """Compute the loss of each model, then train the best one with all steps."""
        if phase > self.clusters or (phase == 0 and not server.has_work(data, me, randomness)):
            return False
        loss = me.job.plan[LOSS]
        if phase == 1 or (phase > 1 and (loss < me.least[0] or math.isnan(me.least[0]))):
            me.choice[0], me.least[0] = phase - 1.0, loss
        if phase < self.clusters:
            take_model(data, me, phase, me.job.theta)
            me.job.plan[STEPS] = 0.0
        else:
            take_model(data, me, int(me.choice[0]), me.theta)
            copy_to(me.theta, me.job.theta)
            me.job.plan[STEPS] = EVERY
        return True

    def tell(self, data, me, edges, out):
        """Write all models."""
        copy_to(me.models, out)
        return me.models.shape[0]

    def hear(self, data, me, text):
        """Store all models, and use that of the agent's cluster."""
        if text.shape[0] != me.models.shape[0]:
            return False
        copy_to(text, me.models)
        take_model(data, me, int(me.choice[0]), me.theta)
        return True

    def answer(self, data, me, out):
        """Write the trained model, its cluster, and its weight."""
        q = data.sent.shape[0]
        server.keep_personal(data, me.job.theta, me.theta)
        gather(me.job.theta, data.sent, out)
        out[q], out[q + 1] = me.choice[0], server.weight_of(data, self.by_rows)
        return q + 2

    def collect(self, data, me, edges, message):
        """Add a model to the sum of its cluster."""
        q = data.sent.shape[0]
        if message.text.shape[0] != q + 2 or not 0.0 <= message.text[q] < self.clusters:
            return False
        first, weight = int(message.text[q]) * (q + 1), message.text[q + 1]
        axpy(weight, message.text[:q], me.round.sum[first : first + q])
        me.round.sum[first + q] += weight
        return True

    def average(self, data, me, edges):
        """Average each cluster that some client has chosen; the server's row is the mean of all clusters."""
        q = data.sent.shape[0]
        for j in range(self.clusters):
            first = j * (q + 1)
            weight = me.round.sum[first + q]
            if weight > 0.0:
                for c in range(q):
                    me.models[j * q + c] = me.round.sum[first + c] / weight
        for c in range(q):
            mean = 0.0
            for j in range(self.clusters):
                mean += me.models[j * q + c] / self.clusters
            me.theta[data.sent[c]] = mean
