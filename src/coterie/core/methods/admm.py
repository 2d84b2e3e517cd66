"""Collaborative learning by ADMM (CL): Vanhaesebrouck, Bellet, Tommasi (2017), Section 4.2 and Appendix D.

Minimises ``Q(Theta) = s sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_i a_i f_i(theta_i)`` (CL (7) for s = 1 and
a_i = mu D_ii). Agent i holds its own model T_i^i and an opinion T_i^j of each neighbour's model; the edge e = (i, j)
makes both ends agree on both models by variables Z_e and multipliers L_ei, L_ej.

Both an agent and its neighbour use Z and L only in the combination ``U = Z - L / rho``. With
``L_ei + L_ej = 0``, which holds from the start and after every exchange, steps 2 and 3 of the paper are

    Z_e <- (T_i + T_j) / 2,   L_ei <- L_ei + rho (T_i - Z_e)     <=>     U_ei <- 1/2 U_ei + 1/2 (2 T_j - U_ej).

In this form (Douglas-Rachford splitting) an end of an edge needs no state of the time of the exchange, so messages may
be late, lost or duplicated: each message that arrives is one averaged step of a nonexpansive map, and a lost message
omits half of it. The messages are those of the paper: four vectors in each direction.

=============================  =====================================================
paper                          here
=============================  =====================================================
Theta_i^i                      ``me.theta``
Theta_i^j                      :func:`opinion`, computed when it is sent
Z_ei^i - Lambda_ei^i / rho     ``edges.mine[slot]``
Z_ei^j - Lambda_ei^j / rho     ``edges.theirs[slot]`` with ``data.peer[slot] == j``
rho                            ``edges.rho[slot]``
s W_ij                         ``data.smooth * data.weight[slot]``: each end has half of the smoothness term
=============================  =====================================================
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ..._checks import integer, positive
from ...errors import MismatchError
from .. import proximal
from ..arrays import VACANT, choose, importance, owners, send
from ..compile import inline
from ..linear import axpy, copy_to, fill, total
from ..messages import Number, Vector
from ..method import NamedTuple, method
from ..rules import Or, checked
from .djam import ANSWER, ASK, DJAM, MODEL, Own

#: Value of ``rho`` if the method adapts it.
AUTO = 0.0
#: Largest rho, and inverse of the smallest, that an honest peer uses.
MAX_RHO = 1e12
#: Residual balancing: ratio of the squared residuals of an edge at which its rho changes, the factor of the change, and
#: the growth of the interval until the next check (ADMM converges if rho converges).
MAX_RESIDUAL_RATIO, RHO_FACTOR, INTERVAL_GROWTH = 4.0, 2.0, 1.2
#: Lower bound for the size of an edge's multipliers, relative to rho times its models.
MIN_MULTIPLIER_RATIO = 0.3
#: Entries of ``edges.cache``: primal and dual residuals since the last check of rho, number of exchanges since, and
#: when to check next.
WATCH = 4


class Edge(NamedTuple):
    """State of the edges."""

    mine: np.ndarray  # (edges, p) U_ei^i
    theirs: np.ndarray  # (edges, p) U_ei^j
    rho: np.ndarray  # (edges,)
    cache: np.ndarray  # (edges, WATCH) for residual balancing


@inline
def primal(data, me, edges, scratch):
    """Step 1. With the T_i^j eliminated, which follow from T_i^i, the augmented Lagrangian is

    a_i f_i(T) + 1/2 sum_j [ rho |T - U_ei^i|^2 + s W_ij rho / (s W_ij + rho) |T - U_ei^j|^2 ].
    """
    p = me.theta.shape[0]
    center, rest = scratch[:p], scratch[p:]
    fill(0.0, center)
    weight = 0.0
    for k in range(data.peer.shape[0]):
        if data.peer[k] == VACANT:
            continue
        rho, pull = edges.rho[k], data.smooth * data.weight[k]
        axpy(rho, edges.mine[k], center)
        axpy(pull / (1.0 + pull / rho), edges.theirs[k], center)
        weight += rho + pull / (1.0 + pull / rho)
    if weight > 0.0:
        for k in range(p):
            center[k] /= weight
    else:
        weight = proximal.isolated_pull(me, center)
    me.cache.solver.minimise(data, importance(data, total(data.weight)), weight, center, me.theta, rest)


@inline
def opinion(data, me, edges, slot, out):
    """The rest of step 1:  T_i^j = (s W_ij T_i^i + rho U_ei^j) / (s W_ij + rho)."""
    rho, pull = edges.rho[slot], data.smooth * data.weight[slot]
    for k in range(out.shape[0]):
        out[k] = (pull * me.theta[k] + rho * edges.theirs[slot, k]) / (pull + rho)


@inline
def write(rho, data, me, edges, slot, out):
    """Write an agent's end of an edge: T_i^i, T_i^j, U_ei^i, U_ei^j; and rho, if the method adapts it."""
    p = me.theta.shape[0]
    copy_to(me.theta, out[:p])
    opinion(data, me, edges, slot, out[p : 2 * p])
    copy_to(edges.mine[slot], out[2 * p : 3 * p])
    copy_to(edges.theirs[slot], out[3 * p : 4 * p])
    if rho != AUTO:
        return out[: 4 * p]
    out[4 * p] = edges.rho[slot]
    return out[: 4 * p + 1]


@inline
def settle(edges, slot, text):
    """Steps 2 and 3:  U_ei <- 1/2 U_ei + 1/2 (2 T_j - U_ej), for both models of the edge."""
    p = edges.mine.shape[1]
    for k in range(p):
        edges.theirs[slot, k] += 0.5 * (2.0 * text[k] - text[2 * p + k] - edges.theirs[slot, k])
        edges.mine[slot, k] += 0.5 * (2.0 * text[p + k] - text[3 * p + k] - edges.mine[slot, k])


@inline
def convert(edges, slot, text, mean):
    """Express both ends of an edge with one rho if they differ, because a message was lost.

    U = Z - L / rho, and the ends have opposite multipliers, so  Z = (rho_i U_ei + rho_j U_ej) / (rho_i + rho_j).
    """
    p = edges.mine.shape[1]
    mine, theirs = edges.rho[slot], text[4 * p]
    for k in range(p):
        z = (mine * edges.mine[slot, k] + theirs * text[3 * p + k]) / (mine + theirs)
        edges.mine[slot, k] = z - mine / mean * (z - edges.mine[slot, k])
        text[3 * p + k] = z - theirs / mean * (z - text[3 * p + k])
        z = (mine * edges.theirs[slot, k] + theirs * text[2 * p + k]) / (mine + theirs)
        edges.theirs[slot, k] = z - mine / mean * (z - edges.theirs[slot, k])
        text[2 * p + k] = z - theirs / mean * (z - text[2 * p + k])


@inline
def settle_and_balance(data, me, edges, slot, text, copy):
    """Steps 2 and 3, then residual balancing: both ends know the same four vectors of each end, and compute one rho.

    With Z = (U_ei + U_ej) / 2 before and Z' = (T_i + T_j) / 2 after, the residuals of the edge are |T_i - T_j|^2 / 2
    (primal) and 2 rho^2 |Z' - Z|^2 (dual). Each is divided by a reference size: that of the models (primal), and that
    of the multipliers (dual).
    """
    p = edges.mine.shape[1]
    opinion(data, me, edges, slot, copy)
    rho = edges.rho[slot]
    if rho != text[4 * p]:
        rho = math.sqrt(rho) * math.sqrt(text[4 * p])
        convert(edges, slot, text, rho)
    edges.rho[slot] = rho
    primal, dual, models, multipliers = 0.0, 0.0, 0.0, 0.0
    for k in range(p):
        for one, other, u, v in (
            (me.theta[k], text[p + k], edges.mine[slot, k], text[3 * p + k]),
            (copy[k], text[k], edges.theirs[slot, k], text[2 * p + k]),
        ):
            step = 0.5 * (one + other - u - v)
            primal += 0.5 * (one - other) * (one - other)
            dual += 2.0 * rho * rho * step * step
            models += one * one + other * other
            multipliers += 0.5 * rho * rho * (u - v) * (u - v)
    settle(edges, slot, text)
    watch = edges.cache[slot]
    watch[0] += primal / (models + 1e-300)
    # Where neighbours agree, multipliers vanish: then the reference is a fraction of rho times the models.
    watch[1] += dual / (multipliers + MIN_MULTIPLIER_RATIO * rho * rho * models + 1e-300)
    watch[2] += 1.0
    if watch[2] < watch[3]:
        return
    new = rho
    if watch[0] > MAX_RESIDUAL_RATIO * watch[1]:
        new = RHO_FACTOR * rho
    elif watch[1] > MAX_RESIDUAL_RATIO * watch[0]:
        new = rho / RHO_FACTOR
    watch[0], watch[1], watch[2] = 0.0, 0.0, 0.0
    watch[3] *= INTERVAL_GROWTH
    if new != rho:
        for k in range(p):
            z = 0.5 * (me.theta[k] + text[p + k])
            edges.mine[slot, k] = z - rho / new * (z - edges.mine[slot, k])
            z = 0.5 * (copy[k] + text[k])
            edges.theirs[slot, k] = z - rho / new * (z - edges.theirs[slot, k])
        edges.rho[slot] = new


@checked(rho=Or("auto", positive, AUTO), steps=partial(integer, least=0))
@method
class CollaborativeADMM(NamedTuple):
    """Alternating directions over the edges, CL Section 4.2 (gossip) and Appendix D (synchronous rounds).

    For every convex loss. A wake exchanges eight vectors with one neighbour, a round exchanges eight along every edge.

    Parameters
    ----------
    rho : float or "auto"
        Penalty on disagreement about the models of an edge, > 0. The value changes the speed by more than ten times,
        not the result. "auto": both ends of every edge adapt one value by balancing residuals that both know; a message
        then holds one number more, rho.
    steps : int
        Gradient steps in place of the exact primal step, as in the comparison with CD (CD, (10)); 0 for the exact step.

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[1.0], [1.0], [1.0]], [1.0, 3.0, 0.0], agents=["a", "a", "b"])
    >>> problem = ct.Problem.collaborative(data, ct.graphs.complete(2), loss="squared")
    >>> ct.simulate(problem, ct.CollaborativeADMM(rho=1.0), wakes=100, seed=0).theta.ravel().round(6).tolist()
    [1.5, 1.0]
    """

    rho: Any = "auto"
    steps: int = 0

    max_messages = 2
    dice = 1  # for the choice of the neighbour
    exchanges = True
    footprint = "partner"
    remembers = True  # multipliers
    any_model = property(lambda self: self.steps > 0)

    def __repr__(self):
        return f"CollaborativeADMM(rho={self.__getnewargs__()[0]!r}{f', steps={self.steps}' if self.steps else ''})"

    @property
    def messages(self):
        """A model; and an agent's end of an edge: four models, and rho if the method adapts it."""
        end = (Vector(4), Number(1.0 / MAX_RHO, MAX_RHO)) if self.rho == AUTO else Vector(4)
        return {MODEL: Vector(), ASK: end, ANSWER: end}

    def fit_for(self, problem):
        if self.steps > 0 and not np.isfinite(problem.loss.smoothness):
            raise MismatchError(
                f"{self!r} takes gradient steps, and {problem.loss!r} has a kink: use a smooth loss, such as "
                "ct.SmoothHinge(), or the exact primal step, steps=0"
            )

    def scratch_size(self, arrays, p):
        return max(5 * p + 1, p + proximal.scratch(arrays, p))

    def start(self, arrays, theta):
        """No multipliers; the copies of a neighbour start at the agent's own model."""
        owner = owners(arrays.edge_start)
        # Each edge of an agent pulls with strength s W_ij: a rho of that size gives both terms equal weight.
        rho = np.full(owner.shape[0], self.rho) if self.rho != AUTO else arrays.smooth * arrays.weight
        watch = np.tile([0.0] * (WATCH - 1) + [2.0], (owner.shape[0], 1))
        own = Own(theta.copy(), proximal.prepare(arrays, theta.shape[1], self.steps))
        return own, Edge(theta[owner], theta[owner], rho, watch)

    def open(self, data, me, edges, slot):
        copy_to(me.theta, edges.mine[slot])
        copy_to(me.theta, edges.theirs[slot])
        edges.rho[slot] = self.rho if self.rho != AUTO else data.smooth * data.weight[slot]
        for k in range(WATCH):
            edges.cache[slot, k] = 2.0 if k == WATCH - 1 else 0.0

    greet = DJAM.greet

    def wake(self, data, me, edges, randomness, outbox):
        """Step 1, then a message that asks the neighbour for an exchange."""
        slot = choose(data, randomness)
        primal(data, me, edges, outbox.scratch)
        if slot != VACANT:
            send(outbox, data.peer[slot], ASK, write(self.rho, data, me, edges, slot, outbox.scratch), slot)

    def receive(self, data, me, edges, message, outbox):
        """Step 1 and an answer if the neighbour asks for one; then steps 2 and 3."""
        if message.slot == VACANT:
            return
        if message.kind == MODEL:
            copy_to(message.text, edges.theirs[message.slot])
            return
        if message.kind == ASK:
            primal(data, me, edges, outbox.scratch)
            text = write(self.rho, data, me, edges, message.slot, outbox.scratch)
            send(outbox, message.sender, ANSWER, text, message.slot)
        if self.rho != AUTO:
            settle(edges, message.slot, message.text)
        else:
            settle_and_balance(data, me, edges, message.slot, message.text, outbox.scratch[: me.theta.shape[0]])

    def round(self, data, me, edges, outbox):
        """Step 1; steps 2 and 3 follow when the messages of all neighbours arrive."""
        primal(data, me, edges, outbox.scratch)
        for slot in range(data.peer.shape[0]):
            if data.peer[slot] != VACANT:
                send(outbox, data.peer[slot], ANSWER, write(self.rho, data, me, edges, slot, outbox.scratch), slot)
