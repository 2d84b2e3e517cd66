"""Asynchronous block coordinate descent (CD): Bellet, Guerraoui, Taziki, Tommasi (2017), Section 3.2.

Minimises ``Q(Theta) = s sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_i a_i f_i(theta_i)`` (CD (3) for s = 1/2 and
a_i = mu D_ii c_i). An agent that wakes takes one gradient step on its own block, with the last models it has
*received* from its neighbours, and broadcasts the result.

=============================  =====================================================
paper                          here
=============================  =====================================================
Theta_i                        ``me.theta``
Theta_j as i last received it  ``edges.copy[k]`` with ``data.peer[k] == j``
W_ij, D_ii                     ``data.weight[k]``, ``degree``
mu D_ii c_i                    ``importance(data, degree)``, a_i
L_i^loc                        ``data.curvature``
L_i                            ``lipschitz``, in :func:`descend`
=============================  =====================================================
"""

from __future__ import annotations

import numpy as np

from ...errors import MismatchError
from ..arrays import EVERYONE, VACANT, add_loss_gradient, importance, owners, send
from ..compile import inline
from ..linear import add_all, axpy, copy_to, fill, total
from ..messages import Vector
from ..method import NamedTuple, method

#: The only kind of message: the sender's model.
MODEL = 0


class Own(NamedTuple):
    """State of the agents."""

    theta: np.ndarray  # (n, p) my model


class Edge(NamedTuple):
    """State of the edges."""

    copy: np.ndarray  # (edges, p) the last model received from the neighbour


@inline
def add_pull(data, theta, edges, degree, gradient):
    """``gradient += 2 s (D_ii theta_i - sum_j W_ij theta_j)``, the neighbours' part of CD (4)."""
    axpy(2.0 * data.smooth * degree, theta, gradient)
    add_all(-2.0 * data.smooth, data.weight, edges.copy, data.peer.shape[0], gradient)


@inline
def descend(data, degree, a, curvature, gradient, theta):
    """CD (5):  ``theta_i <- theta_i - [grad Q]_i / L_i``,  with  ``L_i = 2 s D_ii + a_i L_i^loc``."""
    lipschitz = 2.0 * data.smooth * degree + a * curvature
    if lipschitz > 0.0:
        axpy(-1.0 / lipschitz, gradient, theta)


@method
class CoordinateDescent(NamedTuple):
    """Asynchronous block coordinate descent with broadcasts, CD (5). It has no parameters.

    Needs a smooth loss. A wake sends one vector to each neighbour.

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
    >>> run = ct.simulate(problem, ct.CoordinateDescent(), wakes=200, seed=0)
    >>> run.theta.ravel().round(6).tolist()
    [0.666667, 1.333333]
    """

    messages = {MODEL: Vector()}
    copies = True
    publishes = True
    any_model = True
    footprint = "edges"

    def fit_for(self, problem):
        if not np.isfinite(problem.loss.smoothness):
            raise MismatchError(
                f"CoordinateDescent takes gradient steps, and {problem.loss!r} has a kink: "
                "use a smooth loss, such as ct.SmoothHinge(), or a method with proximal steps"
            )

    def scratch_size(self, arrays, p):
        return p

    def start(self, arrays, theta):
        """The copy of each neighbour's model starts at the agent's own model."""
        owner = owners(arrays.edge_start)
        return Own(theta.copy()), Edge(theta[owner])

    def open(self, data, me, edges, slot):
        """The copy of the new neighbour's model starts at the agent's own model."""
        copy_to(me.theta, edges.copy[slot])

    def greet(self, data, me, edges, outbox):
        send(outbox, EVERYONE, MODEL, me.theta)

    def wake(self, data, me, edges, randomness, outbox):
        """Take one gradient step on the agent's own block, then broadcast the model."""
        theta, gradient = me.theta, outbox.scratch[: me.theta.shape[0]]
        degree = total(data.weight)
        a = importance(data, degree)
        # CD (4):  [grad Q]_i = 2 s (D_ii theta_i - sum_j W_ij theta_j) + a_i grad f_i(theta_i)
        fill(0.0, gradient)
        add_pull(data, theta, edges, degree, gradient)
        add_loss_gradient(data, theta, a, gradient)
        descend(data, degree, a, data.curvature, gradient, theta)
        send(outbox, EVERYONE, MODEL, theta)

    def receive(self, data, me, edges, message, outbox):
        """Store the neighbour's model."""
        if message.slot != VACANT:
            copy_to(message.text, edges.copy[message.slot])
