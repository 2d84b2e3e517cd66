"""One private release, then free propagation.

At its first wake an agent publishes one noisy gradient of its loss, taken where everybody starts: the model that one
step along it leads to stands for the agent from then on. Whatever becomes of it on the graph is post-processing, and
costs no privacy however long it takes: MP (3), by broadcasts as in CD, Appendix B. A wake takes the best model for
those that it has heard,

    ( 2 s sum_k W_ik copy_i[k] + a_i r_i released_i ) / ( 2 s D_ii + a_i r_i )

where r_i says how much of a released model is signal. Its noise has the variance 4 C^2 z^2 / m_i^2 in every one of p
coordinates, the mean of m_i clipped gradients one of C^2 / m_i at most, in all: the larger agent's is the more
reliable, by more than the confidence c_i in a_i says.

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
    """What everybody may know of an agent."""

    curvature: np.ndarray  # (n,) a bound on the curvature of its losses
    reliability: np.ndarray  # (n,) r_i


class Own(NamedTuple):
    """State of the agents."""

    theta: np.ndarray  # (n, p) my model
    released: np.ndarray  # (n, p) the model that stands for my data; before the release, where I started
    said: np.ndarray  # (n, 1) whether it does: a peer that begins again on a used ledger has only what it starts from
    account: np.ndarray  # (n, ACCOUNT) what I have spent
    loss: np.ndarray  # (n, 1) my losses, as far as I have published them
    cache: Any  # Public


@inline
def smooth(data, me, edges):
    """The minimiser over my own block of the models' smoothness and their distance to the released one, MP (3)."""
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

    wakes_per_agent = None  # any number: only the first says something new

    def start(self, arrays, theta):
        """State before the first letter: until a neighbour is heard, it is taken to agree."""
        check_private_arrays(self, arrays)
        n, terms = theta.shape[0], self.terms
        owner = owners(arrays.edge_start)
        sizes = np.diff(arrays.row_start)
        most = terms.max_rows if terms.max_rows else max(1, int(sizes.max(initial=1)))
        # p coordinates of noise, of variance (2 C z)^2, against m gradients of norm C.
        z = width_of(terms, 0, 1.0 - terms.loss_fraction, 2 * GRID) / (2 * GRID)
        noise = 4.0 * theta.shape[1] * z * z * (2.0 if terms.mechanism == LAPLACE else 1.0)
        size = np.minimum(sizes, most)
        reliability = size * (most + noise) / (most * (size + noise))
        public = Public(public_curvature(arrays, terms.row_norm), reliability)
        said, account, loss = np.zeros((n, 1)), np.zeros((n, ACCOUNT)), np.zeros((n, 1))
        return Own(theta.copy(), theta.copy(), said, account, loss, public), Edge(theta[owner])

    def wake(self, data, me, edges, randomness, outbox):
        """The release, if it was not made yet; else the best model for those of my neighbours. Then a broadcast."""
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
