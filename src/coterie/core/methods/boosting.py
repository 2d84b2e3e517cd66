"""Decentralised Frank-Wolfe boosting (DADA): Zantedeschi, Bellet, Tommasi (2020), Section 3.

Minimises ``Q(Theta) = mu_1/2 sum_{k<l} w_kl |alpha_k - alpha_l|^2 + sum_k d_k c_k L_k(alpha_k)`` over
``|alpha_k|_1 <= beta``. An agent that wakes adds one base predictor to its model: the one with the largest decrease of
its reweighted losses and of the distance to its neighbours. It sends the index, the sign and the step: three numbers,
whatever the size of the dictionary.

=============================  ========================================================================
paper                          here
=============================  ========================================================================
alpha_k                        ``me.theta``
A_k alpha_k                    ``me.cache``, without the labels
alpha_l as k last heard it     ``edges.entry[slot]``, ``edges.value[slot]`` with ``data.peer[slot] == l``
w_kl, d_k                      ``data.weight[slot]``, ``degree``
mu_1                           ``2 * data.smooth``
j_k, sign, gamma               a ``STEP`` message
t                              ``clock``
=============================  ========================================================================

A model has at most one nonzero entry per step, far fewer than the dictionary. An agent therefore stores its neighbours'
models, and sends its own, as pairs of index and value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._checks import nonnegative
from ...errors import MismatchError
from ..arrays import EVERYONE, NEEDS_ROOM, VACANT, Ragged, importance, owners, send
from ..compile import inline
from ..linear import are_pairs, axpy, fill, margins_kernel, total, write_pairs
from ..losses import pooled_slopes
from ..messages import Choices, Counter, Number, Pairs
from ..method import NamedTuple, method
from ..rules import Word, checked

#: Kinds of messages: a whole model; one step; and a request for the whole model, by an agent that has missed a step.
WHOLE, STEP, MISSED = 0, 1, 2
#: Number of spare entries, beyond twice the number of entries of the largest model.
SPARE_ENTRIES = 16
#: Number of further steps of a neighbour to wait for before repeating a request, whose answer may be in transit.
STEPS_BEFORE_REPEAT = 2.0
#: Values of ``clock``: the step size depends on the agent's own wakes, or on those of all agents.
CLOCKS = ("local", "global")


class Own(NamedTuple):
    """State of the agents."""

    theta: np.ndarray  # (n, p) my model
    cache: Any  # margins z_r = sum_j theta_j h_j(x_r) of the agent's examples
    steps: np.ndarray  # (n, 1) number of steps that the agent has taken


class Edge(NamedTuple):
    """State of the edges."""

    entry: np.ndarray  # (edges, capacity) indices of the nonzero entries of the neighbour's model, as last received
    value: np.ndarray  # (edges, capacity) values of these entries
    size: np.ndarray  # (edges,) number of these entries
    heard: np.ndarray  # (edges,) number of the neighbour's steps in the copy; -1 before the first message
    asked: np.ndarray  # (edges,) number of the neighbour's step after which the whole model was requested


@inline
def pull_of(data, me, edges, gradient):
    """``gradient = mu_1 (d_k alpha_k - sum_l w_kl alpha_l)``, the part of the gradient that is independent of data."""
    fill(0.0, gradient)
    axpy(2.0 * data.smooth * total(data.weight), me.theta, gradient)
    for k in range(data.peer.shape[0]):
        for e in range(edges.size[k]):
            gradient[edges.entry[k, e]] -= 2.0 * data.smooth * data.weight[k] * edges.value[k, e]


@inline
def add_losses(data, me, slope, gradient):
    """``gradient -= d_k c_k A_k' eta_k``, the part of the agent's examples; leaves their slopes in ``slope``."""
    a, m = importance(data, total(data.weight)), slope.shape[0] // data.outputs
    for o in range(data.outputs):
        mine = me.cache[o * m : (o + 1) * m], data.labels[o * m : (o + 1) * m]
        pooled_slopes(data.loss, mine[0], mine[1], data.row_weight, slope[o * m : (o + 1) * m])
    for r in range(slope.shape[0]):
        data.rows.add(r, a * slope[r], gradient)


@inline
def gradient_of(data, me, edges, scratch):
    """``[grad f]_k = -d_k c_k A_k' eta_k + mu_1 (d_k alpha_k - sum_l w_kl alpha_l)``, below DADA (3)."""
    p, examples = me.theta.shape[0], me.cache.shape[0]
    gradient = scratch[:p]
    pull_of(data, me, edges, gradient)
    add_losses(data, me, scratch[p : p + examples], gradient)
    return gradient


@inline
def vertex(gradient):
    """DADA (3): return base predictor and sign of the best vertex of the ball, as ``sign (j + 1)``; 0 for none.

    If the gradient is zero, every point of the ball is optimal, and the agent does not move.
    """
    best = 0
    for j in range(1, gradient.shape[0]):
        if abs(gradient[j]) > abs(gradient[best]):
            best = j
    if gradient[best] == 0.0:
        return 0
    return -(best + 1) if gradient[best] > 0.0 else best + 1


@inline
def put(data, edges, slot, entry, value, outbox):
    """Add to one entry of the copy of a neighbour's model.

    Return whether there was room; request more before it runs out.
    """
    size = edges.size[slot]
    for e in range(size):
        if edges.entry[slot, e] == entry:
            edges.value[slot, e] += value
            return True
    if size == edges.entry.shape[1]:
        return False
    edges.entry[slot, size], edges.value[slot, size] = entry, value
    edges.size[slot] = size + 1
    if size + 1 + data.outputs > edges.entry.shape[1]:  # room that one more step may need
        outbox.cursor[NEEDS_ROOM] = 1
    return True


@inline
def move(data, me, part, goal, step):
    """``alpha <- (1 - gamma) alpha + gamma s`` for one output's part of the model, and the same for the margins."""
    if goal == 0:
        return
    size, m = me.theta.shape[0] // data.outputs, me.cache.shape[0] // data.outputs
    column, added = part * size + abs(goal) - 1, step * (data.radius if goal > 0 else -data.radius)
    for k in range(part * size, (part + 1) * size):
        me.theta[k] *= 1.0 - step
    me.theta[column] += added
    for r in range(part * m, (part + 1) * m):
        me.cache[r] = (1.0 - step) * me.cache[r] + added * data.rows.at(r, column)


@inline
def stride(rule, clock):
    """Return the step size gamma."""
    return 2.0 / (clock + rule.head + 2.0)


@inline
def take_step(rule, data, me, edges, clock, scratch):
    """Take one Frank-Wolfe step on the agent's own block. Return the message that describes the step."""
    p, examples = me.theta.shape[0], me.cache.shape[0]
    gradient, message = gradient_of(data, me, edges, scratch), scratch[p + examples :]
    step, size = stride(rule, clock), p // data.outputs
    for o in range(data.outputs):
        goal = vertex(gradient[o * size : (o + 1) * size])
        move(data, me, o, goal, step)
        message[2 + o] = goal
    me.steps[0] += 1.0
    message[0], message[1] = me.steps[0], step
    return message[: 2 + data.outputs]


@inline
def whole(me, out):
    """Write the agent's whole model as a message, with the number of its steps."""
    out[0] = me.steps[0]
    return out[: 1 + write_pairs(me.theta, out[1:])]


@inline
def remember(data, edges, slot, text, outbox):
    """Store a neighbour's whole model. A model that does not fit is dropped, and requested again."""
    edges.size[slot] = 0
    fits = True
    for k in range(1, text.shape[0], 2):
        fits = fits and put(data, edges, slot, int(text[k]), text[k + 1], outbox)
    edges.heard[slot] = text[0] if fits else -1.0


@inline
def follow(data, me, edges, slot, text, outbox):
    """Apply a neighbour's step to the copy of its model. Return whether this was possible."""
    size, step = me.theta.shape[0] // data.outputs, text[1]
    for o in range(data.outputs):
        if not abs(text[2 + o]) <= size or not 0.0 <= step <= 1.0:
            return False
    for e in range(edges.size[slot]):
        if text[2 + edges.entry[slot, e] // size] != 0.0:
            edges.value[slot, e] *= 1.0 - step
    fits = True
    for o in range(data.outputs):
        goal = int(text[2 + o])
        if goal != 0:
            part = step * (data.radius if goal > 0 else -data.radius)
            fits = fits and put(data, edges, slot, o * size + abs(goal) - 1, part, outbox)
    edges.heard[slot] = text[0] if fits else -1.0
    return fits


@checked(clock=Word(*CLOCKS), head=nonnegative)
@method
class FrankWolfeBoosting(NamedTuple):
    """Asynchronous Frank-Wolfe steps on the models, DADA Section 3. For :meth:`coterie.Problem.boosting`.

    Steps of size ``2 / (t + 2)`` towards the best base predictor. A wake sends three numbers to each neighbour.

    Parameters
    ----------
    clock : "local" or "global"
        t is the number of wakes of the agent, or the number of wakes of all agents divided by the number of agents. The
        paper uses the latter, which no agent can know without a coordinator.
    head : float
        Initial value of t. With 0, the first step replaces the initial model.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> margins = [np.array([[1.0, -1.0], [1.0, 1.0]]), np.array([[-1.0, 1.0]])]
    >>> problem = ct.Problem.boosting(None, ct.graphs.complete(2), base=margins, beta=2.0)
    >>> run = ct.simulate(problem, ct.FrankWolfeBoosting(), wakes=2000, start="zeros")
    >>> optimum = problem.value(problem.solve())
    >>> bool(0 <= run.value - optimum <= problem.gap(run.theta) < 0.01)
    True
    """

    clock: Any = "local"
    head: float = 0.0

    messages = {WHOLE: (Counter(), Pairs()), STEP: (Counter(), Number(0.0, 1.0), Choices()), MISSED: ()}
    max_messages = 2
    broadcasts = 1
    footprint = "edges"
    sparse = True
    on_balls = True
    accuracy = 5e-3  # sublinear convergence

    def __repr__(self):
        clock, head = self.__getnewargs__()
        return f"FrankWolfeBoosting(clock={clock!r}{f', head={head:g}' if head else ''})"

    def fit_for(self, problem):
        if not np.isfinite(problem.radius):
            raise MismatchError(
                f"FrankWolfeBoosting is for Problem.boosting, whose models stay in a ball; this is {problem.name}"
            )
        if not np.isfinite(problem.loss.smoothness):
            raise MismatchError(f"FrankWolfeBoosting follows gradients, and {problem.loss!r} has a kink")

    def scratch_size(self, arrays, p):
        return max(p + int(np.diff(arrays.row_start).max(initial=0)) + 2 + arrays.outputs, 2 * p + 1)

    def start(self, arrays, theta):
        n = theta.shape[0]
        owner = owners(arrays.edge_start)
        margins = np.zeros(arrays.labels.shape[0])
        margins_kernel(arrays.rows, arrays.row_start, np.ascontiguousarray(theta), margins)
        own = Own(theta.copy(), Ragged(arrays.row_start, margins), np.zeros((n, 1)))
        edges, used = owner.shape[0], int(np.count_nonzero(theta, axis=1).max(initial=0))
        room = min(2 * used + SPARE_ENTRIES, theta.shape[1]) + arrays.outputs
        i, k = np.nonzero(theta)
        place = np.arange(i.shape[0]) - np.searchsorted(i, i)  # position among the entries of the agent
        entry, value = np.zeros((n, room), np.int64), np.zeros((n, room))
        entry[i, place], value[i, place] = k, theta[i, k]
        size = np.bincount(i, minlength=n)
        known = entry[owner], value[owner], size[owner]
        return own, Edge(*known, np.full(edges, -1.0), np.full(edges, -1.0 - STEPS_BEFORE_REPEAT))

    def enlarge(self, arrays, edge):
        """Double the room for neighbours' models if one of them may soon need it."""
        room = edge.entry.shape[1]
        if edge.size.max(initial=0) + 1 + arrays.outputs <= room:
            return edge
        more = ((0, 0), (0, room))
        return edge._replace(entry=np.pad(edge.entry, more), value=np.pad(edge.value, more))

    def open(self, data, me, edges, slot):
        size = 0
        for k in range(me.theta.shape[0]):
            if me.theta[k] != 0.0 and size < edges.entry.shape[1]:
                edges.entry[slot, size], edges.value[slot, size] = k, me.theta[k]
                size += 1
        edges.size[slot] = size
        edges.heard[slot], edges.asked[slot] = -1.0, -1.0 - STEPS_BEFORE_REPEAT

    def greet(self, data, me, edges, outbox):
        """Send the agent's whole model."""
        send(outbox, EVERYONE, WHOLE, whole(me, outbox.scratch))

    def wake(self, data, me, edges, randomness, outbox):
        """Take one step on the agent's own block, and send it to all neighbours."""
        clock = me.steps[0] if self.clock == 0 else randomness.moment
        send(outbox, EVERYONE, STEP, take_step(self, data, me, edges, clock, outbox.scratch))

    def receive(self, data, me, edges, message, outbox):
        """Apply the neighbour's step; request its whole model if a step was missed."""
        slot = message.slot
        if slot == VACANT:
            return
        if message.kind == MISSED:
            send(outbox, message.sender, WHOLE, whole(me, outbox.scratch))
        elif message.kind == WHOLE:
            if message.text[0] >= edges.heard[slot] and are_pairs(message.text[1:], me.theta.shape[0]):
                remember(data, edges, slot, message.text, outbox)
        elif message.text[0] > edges.heard[slot]:
            next_one = message.text[0] == edges.heard[slot] + 1.0 and message.text.shape[0] == 2 + data.outputs
            lost = not next_one or not follow(data, me, edges, slot, message.text, outbox)
            if lost and message.text[0] > edges.asked[slot] + STEPS_BEFORE_REPEAT:
                edges.asked[slot] = message.text[0]
                send(outbox, message.sender, MISSED, message.text[:0])

    def round(self, data, me, edges, outbox):
        """Take a step: with all agents at once, this is Frank-Wolfe on all models together."""
        send(outbox, EVERYONE, STEP, take_step(self, data, me, edges, me.steps[0], outbox.scratch))
