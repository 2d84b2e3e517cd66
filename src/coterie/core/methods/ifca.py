"""Iterative federated clustering (IFCA): Ghosh, Chung, Yin, Ramchandran (2020), Algorithm 1, by averages of models.

    j_i     <- the model j of k with the smallest f_i(theta_j)      (line 6)
    theta_i <- steps of SGD on f_i, from that model                 (line 15)
    theta_j <- mean of theta_i over those of the cohort with j_i = j; as it was if there are none    (line 19)

=============================  =====================================================
paper                          here
=============================  =====================================================
theta_1 ... theta_k            ``me.models``, one after the other
j_i                            ``me.choice``
the model of my cluster        ``me.theta``
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

    theta: np.ndarray  # (n, p) the model of my cluster, with my personal parameters; the mean of all for the server
    models: np.ndarray  # (n, k q) those of all clusters, as I last heard them
    choice: np.ndarray  # (n, 1) my cluster
    least: np.ndarray  # (n, 1) my loss with its model
    job: Job
    round: server.Round


@inline
def take_model(data, me, which, out):
    """My personal parameters with the model of a cluster."""
    q = data.sent.shape[0]
    copy_to(me.theta, out)
    scatter(me.models[which * q : (which + 1) * q], data.sent, out)


@server.served(clusters=integer, spread=nonnegative, seed=partial(integer, least=0))
class IFCA(NamedTuple):
    """Clients in clusters: the server keeps a model for each, and a client trains the one that fits it best.

    A client's row of theta is the model of its cluster. A message to a client holds the models of all clusters.

    Parameters
    ----------
    local, clients
        As in :class:`coterie.federated.FedAvg`.
    by_rows : bool
        Whether a client counts by the number of its rows. Default: all alike, as in the paper.
    clusters : int
        k, how many models.
    spread : float
        How far apart they begin: normal noise of this standard deviation around the server's first model. From one and
        the same model, all clients would choose alike for ever.
    seed : int
        Of that noise. Where a bad start leaves a cluster empty, try another.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.federated.IFCA(ct.optim.SGD(0.1, steps=5), clusters=3).jobs  # three losses are looked at, and one model is trained
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
        """Numbers of scratch paper that a handler needs."""
        return self.clusters * p + 2

    def start(self, arrays, theta):
        """State before the first letter: the server's models are apart."""
        n, q = theta.shape[0], arrays.sent.shape[0]
        models = np.tile(theta[:, arrays.sent], (1, self.clusters))
        leads = server.servers(arrays)
        models[leads] += self.spread * np.random.default_rng(self.seed).standard_normal(self.clusters * q)
        post = server.new_round(self, arrays, self.clusters * (q + 1))
        own = Own(theta.copy(), models, np.zeros((n, 1)), np.zeros((n, 1)), new_job(self.local, theta), post)
        return own, server.new_edges(arrays)

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """The loss of each model, and then the best one, by all steps."""
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
        """All models."""
        copy_to(me.models, out)
        return me.models.shape[0]

    def hear(self, data, me, text):
        """All models; mine is that of my cluster."""
        if text.shape[0] != me.models.shape[0]:
            return False
        copy_to(text, me.models)
        take_model(data, me, int(me.choice[0]), me.theta)
        return True

    def answer(self, data, me, out):
        """The trained model, its cluster, and its weight."""
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
        """The mean of each cluster that somebody has chosen; my own row is the mean of all clusters."""
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
