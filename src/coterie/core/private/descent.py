"""Differentially private coordinate descent (DP-CD): Bellet, Guerraoui, Taziki, Tommasi (2017), Section 4, corrected.

CD (6), corrected so that its Theorem 1 holds: an agent that wakes adds noise to the clipped gradient of its own loss,
takes the step of CD (5) with the result, and broadcasts the new model, from which its next step starts. Step sizes come
from public bounds. An agent whose budget is spent sends nothing more.

=============================  =====================================================
paper                          here
=============================  =====================================================
Theta_i, noisy                 ``me.theta``
t_i, number of wakes so far    ``me.account[RELEASES]``
eta_i(t), s_i(t)               drawn in :func:`noisy_gradient`, ``terms.noise[release]``
L_0                            ``terms.clip``
L_i^loc                        ``me.cache``, a public bound
=============================  =====================================================
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..arrays import EVERYONE, importance, owners, send
from ..linear import axpy, fill, total
from ..method import method
from ..methods.descent import MODEL, Edge, add_pull, descend
from .account import ACCOUNT, NOTHING, debit
from .base import PrivateBroadcast, public_curvature
from .limits import check_private_arrays
from .mechanism import noisy_gradient


class Own(NamedTuple):
    """State of the agents."""

    theta: np.ndarray  # (n, p) the agent's model, as published
    account: np.ndarray  # (n, ACCOUNT) the agent's privacy account
    loss: np.ndarray  # (n, 1) the agent's losses, as far as published
    cache: np.ndarray  # (n,) a public bound on the curvature of f_i


@method
class PrivateDescent(PrivateBroadcast):
    """See :func:`coterie.Private`."""

    publishes = True
    footprint = "edges"

    def start(self, arrays, theta):
        check_private_arrays(self, arrays)
        n = theta.shape[0]
        owner = owners(arrays.edge_start)
        bends = public_curvature(arrays, self.terms.row_norm) + 2.0 * arrays.ridge
        return Own(theta.copy(), np.zeros((n, ACCOUNT)), np.zeros((n, 1)), bends), Edge(theta[owner])

    def wake(self, data, me, edges, randomness, outbox):
        """Take one noisy step on the agent's own block, then broadcast; do nothing once the budget is spent."""
        release = debit(me.account, self.terms.cost, self.terms.limit)
        if release == NOTHING:
            return
        theta, p = me.theta, me.theta.shape[0]
        gradient, draft = outbox.scratch[:p], outbox.scratch[p:]
        degree = total(data.weight)
        a = importance(data, degree)
        # CD (6):  theta_i <- (1 - alpha) theta_i + alpha ( sum_j W_ij / D_ii theta_j - mu c_i (grad L_i + eta_i) )
        fill(0.0, gradient)
        if data.labels.shape[0] > 0:
            scale = a * data.row_weight
            me.loss[0] = noisy_gradient(self.terms, data, theta, release, randomness.dice, scale, draft, gradient)
        add_pull(data, theta, edges, degree, gradient)  # after the noise, like the ridge: both contain no data
        axpy(2.0 * a * data.ridge, theta, gradient)
        descend(data, degree, a, me.cache, gradient, theta)
        send(outbox, EVERYONE, MODEL, theta)
