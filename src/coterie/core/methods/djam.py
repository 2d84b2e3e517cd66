"""Distributed Jacobi asynchronous method (DJAM): Almeida, Xavier (2018), Section II.

Minimises ``Q(Theta) = s sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_i a_i f_i(theta_i)`` (DJAM (1) for s = 1/2 and
a_i = 1). An agent that wakes picks a neighbour; both send each other their models, and *then* both minimise over
their own block, with the last models they hold of all their neighbours.

=============================  =====================================================
paper                          here
=============================  =====================================================
Theta_i^i                      ``me.theta``
Theta_i^k                      ``edges.copy[slot]`` with ``data.peer[slot] == k``
W_ik                           ``data.weight[slot]``
argmin in (4)                  ``me.cache.solver``, see :mod:`coterie.core.proximal`
=============================  =====================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import MismatchError
from .. import proximal
from ..arrays import VACANT, choose, importance, owners, send
from ..compile import inline
from ..linear import add_all, copy_to, fill, total
from ..messages import Vector
from ..method import NamedTuple, method
from .descent import CoordinateDescent, Edge

#: Kinds of messages, each with a model: to store, to store and answer, and the answer.
MODEL, ASK, ANSWER = 0, 1, 2


class Own(NamedTuple):
    """State of the agents."""

    theta: np.ndarray  # (n, p) my model
    cache: Any  # cache of the solver


@inline
def update(data, me, edges, scratch):
    """DJAM (4):  theta_l <- argmin s sum_k W_lk |theta - copy_l[k]|^2 + a_l f_l(theta)."""
    p = me.theta.shape[0]
    center, rest = scratch[:p], scratch[p:]
    degree = total(data.weight)
    weight = 2.0 * data.smooth * degree
    if degree > 0.0:
        part = 1.0 / degree
        fill(0.0, center)
        add_all(part, data.weight, edges.copy, data.peer.shape[0], center)
    else:
        weight = proximal.isolated_pull(me, center)
    me.cache.solver.minimise(data, importance(data, degree), weight, center, me.theta, rest)


@method
class DJAM(NamedTuple):
    """Exact minimisation over the agent's own block after every exchange of models, DJAM (4). No parameters.

    Needs strongly convex f_i: a ridge, or a loss with positive curvature everywhere. A wake exchanges two vectors.

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[0.0], [3.0]], agents=["ann", "bob"])
    >>> problem = ct.Problem.separate(data, ct.graphs.complete(2), loss=ct.Location(ct.Huber(0.5)), ridge=0.1)
    >>> run = ct.simulate(problem, ct.DJAM(), wakes=200, seed=0)
    >>> bool(abs(run.theta - problem.solve()).max() < 1e-9)
    True
    """

    messages = {MODEL: Vector(), ASK: Vector(), ANSWER: Vector()}
    max_messages = 2
    dice = 1  # for the choice of the neighbour
    exchanges = True
    footprint = "partner"
    copies = True

    def fit_for(self, problem):
        if problem.loss.strictly_convex:
            return
        firm = np.bincount(problem.graph.components, weights=(problem.ridge > 0) & (problem.importance > 0)) > 0
        loose = ~firm[problem.graph.components] & ~problem.graph.isolated
        if loose.any():
            raise MismatchError(
                f"DJAM needs strongly convex losses. The loss of agent {problem.members[int(np.argmax(loose))]!r} "
                f"and those it is connected to is {problem.loss!r} without a ridge, which is flat in places, where two "
                "agents swap models without end; give a ridge > 0, or use ct.CollaborativeADMM()"
            )

    def scratch_size(self, arrays, p):
        return p + proximal.scratch(arrays, p)

    def start(self, arrays, theta):
        owner = owners(arrays.edge_start)
        return Own(theta.copy(), proximal.prepare(arrays, theta.shape[1])), Edge(theta[owner])

    open, greet = CoordinateDescent.open, CoordinateDescent.greet

    def wake(self, data, me, edges, randomness, outbox):
        """Send the agent's model to a neighbour, and ask for the neighbour's."""
        slot = choose(data, randomness)
        if slot != VACANT:
            send(outbox, data.peer[slot], ASK, me.theta, slot)
        elif total(data.weight) == 0.0:
            update(data, me, edges, outbox.scratch)

    def receive(self, data, me, edges, message, outbox):
        """Answer with the agent's current model, store the neighbour's, and only then update."""
        if message.slot == VACANT:
            return
        if message.kind == ASK:
            send(outbox, message.sender, ANSWER, me.theta, message.slot)
        copy_to(message.text, edges.copy[message.slot])
        if message.kind != MODEL:
            update(data, me, edges, outbox.scratch)
