"""One private release per agent, then propagation of the released models.

At its first wake an agent publishes one noisy gradient of its loss at the initial model; the model that one step along
it leads to represents the agent from then on. All propagation over the graph is post-processing, and costs no privacy
for any number of messages: MP (3), by broadcasts as in CD, Appendix B. A wake computes the minimiser over the agent's
block, given the received models,

    ( 2 s sum_k W_ik copy_i[k] + a_i r_i released_i ) / ( 2 s D_ii + a_i r_i )

where r_i is the share of signal in a released model. Its noise has the variance 4 C^2 z^2 / m_i^2 in each of p
coordinates; the mean of m_i clipped gradients has a variance of at most C^2 / m_i in total. Releases of agents with
more rows are therefore more reliable, by more than the confidence c_i in a_i expresses.

=============================  =====================================================
paper                          here
=============================  =====================================================
Theta_i^i                      ``me.theta``
Theta_i^k                      ``edges.copy[slot]`` with ``data.peer[slot] == k``
theta_i^sol                    ``me.released``
c_i                            ``importance(data, degree) * me.cache.reliability``
=============================  =====================================================
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..arrays import EVERYONE, importance, owners, send
from ..compile import inline
from ..linear import axpy, copy_to, fill, total
from ..method import method
from ..methods.descent import MODEL, Edge
from .account import ACCOUNT, NOTHING, debit
from .base import PrivateBroadcast, public_curvature
from .limits import check_private_arrays
from .mechanism import noisy_gradient
from .noise import LAPLACE
from .terms import GRID, width_of


class Public(NamedTuple):
    """Public facts about an agent."""

    curvature: np.ndarray  # (n,) bound on the curvature of its losses
    reliability: np.ndarray  # (n,) r_i


class Own(NamedTuple):
    """State of the agents."""

    theta: np.ndarray  # (n, p) the agent's model
    released: np.ndarray  # (n, p) the released model; before the release, the initial model
    said: np.ndarray  # (n, 1) whether it has been released; 0 for a peer that restarts on a used ledger
    account: np.ndarray  # (n, ACCOUNT) the agent's privacy account
    loss: np.ndarray  # (n, 1) the agent's losses, as far as published
    cache: Any  # Public


@inline
def smooth(data, me, edges):
    """Minimise smoothness and the distance to the released model over the agent's own block, MP (3)."""
    degree = total(data.weight)
    own = importance(data, degree) * me.cache.reliability if me.said[0] > 0.0 else 0.0
    whole = 2.0 * data.smooth * degree + own
    if whole > 0.0:
        for c in range(me.theta.shape[0]):
            me.theta[c] = own / whole * me.released[c]
        for k in range(data.peer.shape[0]):
            axpy(2.0 * data.smooth * data.weight[k] / whole, edges.copy[k], me.theta)


@method
class PrivatePropagation(PrivateBroadcast):
    """See :func:`coterie.Private`."""

    publishes = True
    footprint = "edges"

    wakes_per_agent = None  # unlimited: only the first wake uses private data

    def start(self, arrays, theta):
        check_private_arrays(self, arrays)
        n, terms = theta.shape[0], self.terms
        owner = owners(arrays.edge_start)
        sizes = np.diff(arrays.row_start)
        most = terms.max_rows if terms.max_rows else max(1, int(sizes.max(initial=1)))
        # p coordinates of noise, with variance (2 C z)^2, against m gradients of norm C
        z = width_of(terms, 0, 1.0 - terms.loss_fraction, 2 * GRID) / (2 * GRID)
        noise = 4.0 * theta.shape[1] * z * z * (2.0 if terms.mechanism == LAPLACE else 1.0)
        size = np.minimum(sizes, most)
        reliability = size * (most + noise) / (most * (size + noise))
        public = Public(public_curvature(arrays, terms.row_norm), reliability)
        said, account, loss = np.zeros((n, 1)), np.zeros((n, ACCOUNT)), np.zeros((n, 1))
        return Own(theta.copy(), theta.copy(), said, account, loss, public), Edge(theta[owner])

    def wake(self, data, me, edges, randomness, outbox):
        """Make the release, if there is none yet; otherwise minimise over the agent's own block. Then broadcast."""
        release = debit(me.account, self.terms.cost, self.terms.limit)
        if release != NOTHING and data.labels.shape[0] > 0:
            gradient, draft = outbox.scratch[: me.theta.shape[0]], outbox.scratch[me.theta.shape[0] :]
            fill(0.0, gradient)
            scale = data.row_weight
            me.loss[0] = noisy_gradient(self.terms, data, me.released, release, randomness.dice, scale, draft, gradient)
            axpy(-1.0 / me.cache.curvature, gradient, me.released)
            copy_to(me.released, me.theta)
            me.said[0] = 1.0
        else:
            smooth(data, me, edges)
        send(outbox, EVERYONE, MODEL, me.theta)
