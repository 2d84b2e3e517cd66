"""Decentralised Frank-Wolfe boosting (DADA): Zantedeschi, Bellet, Tommasi (2020), Section 3.

Minimises ``Q(Theta) = mu_1/2 sum_{k<l} w_kl |alpha_k - alpha_l|^2 + sum_k d_k c_k L_k(alpha_k)`` over
``|alpha_k|_1 <= beta``. An agent that wakes adds one base predictor to its model, the best for its own reweighted
examples and for its neighbours, and tells them which, with which sign, and with what step: three numbers, whatever the
size of the dictionary.

=============================  ========================================================================
paper                          here
=============================  ========================================================================
alpha_k                        ``me.theta``
A_k alpha_k                    ``me.cache``, without the labels
alpha_l as k last heard it     ``ties.entry[slot]``, ``ties.value[slot]`` with ``data.peer[slot] == l``
w_kl, d_k                      ``data.weight[slot]``, ``degree``
mu_1                           ``2 * data.smooth``
j_k, sign, gamma               a ``STEP`` letter
t                              ``clock``
=============================  ========================================================================

A model has at most one entry for each step, most of a dictionary has none: what an agent remembers of its neighbours'
models, and what it sends of its own, are pairs of index and value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._checks import nonnegative
from ...errors import MismatchError
from ..compile import inline
from ..letters import Choices, Counter, Number, Pairs
from ..linear import are_pairs, axpy, fill, margins_kernel, total, write_pairs
from ..losses import pooled_slopes
from ..method import NamedTuple, method
from ..rules import Word, checked
from ..world import EVERYONE, NEEDS_ROOM, VACANT, Ragged, importance, owners, send

#: Kinds of letters: a whole model; one step of it; and a request for the whole, by one who has missed a step.
WHOLE, STEP, MISSED = 0, 1, 2
#: How many entries more than twice those of the largest model there is room for.
ROOM = 16
#: How many more steps of a neighbour to wait for before asking again: the answer may be on its way.
PATIENCE = 2.0
#: Which clock sets the step: my own wakes, or everybody's.
CLOCKS = ("local", "global")


class Own(NamedTuple):
    """State of the agents."""

    theta: np.ndarray  # (n, p) my model
    cache: Any  # margins z_r = sum_j theta_j h_j(x_r) of my examples
    steps: np.ndarray  # (n, 1) steps that I have taken


class Tie(NamedTuple):
    """State of the ties."""

    entry: np.ndarray  # (ties, room) the neighbour's model as far as I have heard: which entries, ...
    value: np.ndarray  # (ties, room) ... and their values
    size: np.ndarray  # (ties,) how many entries
    heard: np.ndarray  # (ties,) how many of its steps are in it; -1 before the first letter
    asked: np.ndarray  # (ties,) its step after which I asked for the whole model


@inline
def pull_of(data, me, ties, gradient):
    """``gradient = mu_1 (d_k alpha_k - sum_l w_kl alpha_l)``, the neighbours' part of it: there are no data in it."""
    fill(0.0, gradient)
    axpy(2.0 * data.smooth * total(data.weight), me.theta, gradient)
    for k in range(data.peer.shape[0]):
        for e in range(ties.size[k]):
            gradient[ties.entry[k, e]] -= 2.0 * data.smooth * data.weight[k] * ties.value[k, e]


@inline
def add_losses(data, me, slope, gradient):
    """``gradient -= d_k c_k A_k' eta_k``, the part of my examples; their slopes are left in ``slope``."""
    a, m = importance(data, total(data.weight)), slope.shape[0] // data.outputs
    for o in range(data.outputs):
        mine = me.cache[o * m : (o + 1) * m], data.labels[o * m : (o + 1) * m]
        pooled_slopes(data.loss, mine[0], mine[1], data.row_weight, slope[o * m : (o + 1) * m])
    for r in range(slope.shape[0]):
        data.rows.add(r, a * slope[r], gradient)


@inline
def gradient_of(data, me, ties, scratch):
    """``[grad f]_k = -d_k c_k A_k' eta_k + mu_1 (d_k alpha_k - sum_l w_kl alpha_l)``, below DADA (3)."""
    p, examples = me.theta.shape[0], me.cache.shape[0]
    gradient = scratch[:p]
    pull_of(data, me, ties, gradient)
    add_losses(data, me, scratch[p : p + examples], gradient)
    return gradient


@inline
def vertex(gradient):
    """DADA (3): the base predictor and sign of the best vertex of the ball, as ``sign (j + 1)``; 0 for none.

    Where the gradient is zero, every point of the ball is as good: an agent that knows nothing stays where it is.
    """
    best = 0
    for j in range(1, gradient.shape[0]):
        if abs(gradient[j]) > abs(gradient[best]):
            best = j
    if gradient[best] == 0.0:
        return 0
    return -(best + 1) if gradient[best] > 0.0 else best + 1


@inline
def put(data, ties, slot, entry, value, outbox):
    """Add to one entry of a neighbour's model. Says whether there was room; asks for more before there is none."""
    size = ties.size[slot]
    for e in range(size):
        if ties.entry[slot, e] == entry:
            ties.value[slot, e] += value
            return True
    if size == ties.entry.shape[1]:
        return False
    ties.entry[slot, size], ties.value[slot, size] = entry, value
    ties.size[slot] = size + 1
    if size + 1 + data.outputs > ties.entry.shape[1]:  # what one more step may need
        outbox.cursor[NEEDS_ROOM] = 1
    return True


@inline
def move(data, me, part, goal, step):
    """``alpha <- (1 - gamma) alpha + gamma s`` in one output's part of my model, with the margins of its examples."""
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
    """The length of a step, gamma."""
    return 2.0 / (clock + rule.head + 2.0)


@inline
def take_step(rule, data, me, ties, clock, scratch):
    """One Frank-Wolfe step on my own block. Returns the letter that says which."""
    p, examples = me.theta.shape[0], me.cache.shape[0]
    gradient, letter = gradient_of(data, me, ties, scratch), scratch[p + examples :]
    step, size = stride(rule, clock), p // data.outputs
    for o in range(data.outputs):
        goal = vertex(gradient[o * size : (o + 1) * size])
        move(data, me, o, goal, step)
        letter[2 + o] = goal
    me.steps[0] += 1.0
    letter[0], letter[1] = me.steps[0], step
    return letter[: 2 + data.outputs]


@inline
def whole(me, out):
    """My whole model as a letter, with how many steps are in it."""
    out[0] = me.steps[0]
    return out[: 1 + write_pairs(me.theta, out[1:])]


@inline
def remember(data, ties, slot, text, outbox):
    """A neighbour's whole model. One that does not fit is forgotten, and asked for again."""
    ties.size[slot] = 0
    fits = True
    for k in range(1, text.shape[0], 2):
        fits = fits and put(data, ties, slot, int(text[k]), text[k + 1], outbox)
    ties.heard[slot] = text[0] if fits else -1.0


@inline
def follow(data, me, ties, slot, text, outbox):
    """Take the step that a neighbour took. Says whether that was possible."""
    size, step = me.theta.shape[0] // data.outputs, text[1]
    for o in range(data.outputs):
        if not abs(text[2 + o]) <= size or not 0.0 <= step <= 1.0:
            return False
    for e in range(ties.size[slot]):
        if text[2 + ties.entry[slot, e] // size] != 0.0:
            ties.value[slot, e] *= 1.0 - step
    fits = True
    for o in range(data.outputs):
        goal = int(text[2 + o])
        if goal != 0:
            part = step * (data.radius if goal > 0 else -data.radius)
            fits = fits and put(data, ties, slot, o * size + abs(goal) - 1, part, outbox)
    ties.heard[slot] = text[0] if fits else -1.0
    return fits


@checked(clock=Word(*CLOCKS), head=nonnegative)
@method
class FrankWolfeBoosting(NamedTuple):
    """Asynchronous Frank-Wolfe steps on the models, DADA Section 3. For :meth:`coterie.Problem.boosting`.

    A step of ``2 / (t + 2)`` towards the best base predictor. A wake sends three numbers to each neighbour.

    Parameters
    ----------
    clock : "local" or "global"
        t: how many times the agent has woken; or how many times all agents have, divided by their number, as in the
        paper, which nobody can know without a coordinator.
    head : float
        How far t is ahead at the start. With 0, the first step forgets the model that an agent starts from.

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

    letters = {WHOLE: (Counter(), Pairs()), STEP: (Counter(), Number(0.0, 1.0), Choices()), MISSED: ()}
    max_letters = 2
    broadcasts = 1
    footprint = "ties"
    sparse = True
    on_balls = True
    accuracy = 5e-3  # it converges sublinearly

    def __repr__(self):
        clock, head = self.__getnewargs__()
        return f"FrankWolfeBoosting(clock={clock!r}{f', head={head:g}' if head else ''})"

    def fit_for(self, problem):
        """Refuse a problem that this method cannot solve."""
        if not np.isfinite(problem.radius):
            raise MismatchError(
                f"FrankWolfeBoosting is for Problem.boosting, whose models stay in a ball; this is {problem.name}"
            )
        if not np.isfinite(problem.loss.smoothness):
            raise MismatchError(f"FrankWolfeBoosting follows gradients, and {problem.loss!r} has a kink")

    def scratch_size(self, world, p):
        """Numbers of scratch paper that a handler needs."""
        return max(p + int(np.diff(world.row_start).max(initial=0)) + 2 + world.outputs, 2 * p + 1)

    def start(self, world, theta):
        """State before the first letter: until a neighbour is heard, it is taken to agree."""
        n = theta.shape[0]
        owner = owners(world.tie_start)
        margins = np.zeros(world.labels.shape[0])
        margins_kernel(world.rows, world.row_start, np.ascontiguousarray(theta), margins)
        own = Own(theta.copy(), Ragged(world.row_start, margins), np.zeros((n, 1)))
        ties, used = owner.shape[0], int(np.count_nonzero(theta, axis=1).max(initial=0))
        room = min(2 * used + ROOM, theta.shape[1]) + world.outputs
        i, k = np.nonzero(theta)
        place = np.arange(i.shape[0]) - np.searchsorted(i, i)  # among those of the same agent
        entry, value = np.zeros((n, room), np.int64), np.zeros((n, room))
        entry[i, place], value[i, place] = k, theta[i, k]
        size = np.bincount(i, minlength=n)
        known = entry[owner], value[owner], size[owner]
        return own, Tie(*known, np.full(ties, -1.0), np.full(ties, -1.0 - PATIENCE))

    def enlarge(self, world, tie):
        """Twice the room for neighbours' models, if one of them may need it soon."""
        room = tie.entry.shape[1]
        if tie.size.max(initial=0) + 1 + world.outputs <= room:
            return tie
        more = ((0, 0), (0, room))
        return tie._replace(entry=np.pad(tie.entry, more), value=np.pad(tie.value, more))

    def open(self, data, me, ties, slot):
        """A new tie: until the neighbour is heard, it is taken to agree."""
        size = 0
        for k in range(me.theta.shape[0]):
            if me.theta[k] != 0.0 and size < ties.entry.shape[1]:
                ties.entry[slot, size], ties.value[slot, size] = k, me.theta[k]
                size += 1
        ties.size[slot] = size
        ties.heard[slot], ties.asked[slot] = -1.0, -1.0 - PATIENCE

    def greet(self, data, me, ties, outbox):
        """My whole model."""
        send(outbox, EVERYONE, WHOLE, whole(me, outbox.scratch))

    def wake(self, data, me, ties, chance, outbox):
        """One step on my own block, and a word about it to everybody."""
        clock = me.steps[0] if self.clock == 0 else chance.moment
        send(outbox, EVERYONE, STEP, take_step(self, data, me, ties, clock, outbox.scratch))

    def receive(self, data, me, ties, letter, outbox):
        """Follow the neighbour; ask for the whole model where a step was missed."""
        slot = letter.slot
        if slot == VACANT:
            return
        if letter.kind == MISSED:
            send(outbox, letter.sender, WHOLE, whole(me, outbox.scratch))
        elif letter.kind == WHOLE:
            if letter.text[0] >= ties.heard[slot] and are_pairs(letter.text[1:], me.theta.shape[0]):
                remember(data, ties, slot, letter.text, outbox)
        elif letter.text[0] > ties.heard[slot]:
            next_one = letter.text[0] == ties.heard[slot] + 1.0 and letter.text.shape[0] == 2 + data.outputs
            lost = not next_one or not follow(data, me, ties, slot, letter.text, outbox)
            if lost and letter.text[0] > ties.asked[slot] + PATIENCE:
                ties.asked[slot] = letter.text[0]
                send(outbox, letter.sender, MISSED, letter.text[:0])

    def round(self, data, me, ties, outbox):
        """All agents take a step at once: Frank-Wolfe on all models together."""
        send(outbox, EVERYONE, STEP, take_step(self, data, me, ties, me.steps[0], outbox.scratch))
