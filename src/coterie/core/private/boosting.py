"""Differentially private boosting. This goes beyond the paper: DADA has no private form.

It is :class:`~coterie.FrankWolfeBoosting` with one change: which base predictor to add, and with which sign, is not the
best by DADA (3), but drawn by the exponential mechanism among 2p candidates, with the probability

    P(j, sign)  proportional to  exp( eps_t q(j, sign) / (2 Delta) ),        q(j, sign) = -sign [grad f]_j .

Only that part of the gradient holds anything private which comes from the agent's examples. Each coordinate of each
example's part is clipped and cut to whole steps of a grid, so that replacing one example changes every score by
``Delta = 2 GRID`` steps at most, exactly. Nothing else is sent of a step that is not public: a clock sets its length.
When its budget is spent, an agent says no more.

=============================  =====================================================
DADA                           here
=============================  =====================================================
alpha_k                        ``me.theta``, as published
A_k alpha_k                    ``me.cache``, without the labels: used in the mechanism alone
t                              ``me.steps``, or the time
j_k, sign                      drawn in :func:`drawn_vertex`
eps_t                          ``1 / terms.noise[release]``
=============================  =====================================================

The dictionary must be public, too: :class:`coterie.Stumps` with ``low`` and ``high``, or base predictors that were not
fitted to the agents' data.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..arrays import EVERYONE, data_of, importance, row, rows, send
from ..compile import inline, kernel, noinline
from ..linear import fill, total
from ..method import method
from ..methods.boosting import STEP, WHOLE, gradient_of, move, pull_of, stride, vertex
from .account import ACCOUNT, NOTHING, debit
from .base import PrivateMethod
from .final import best_of
from .limits import check_private, check_private_arrays
from .noise import KEY, SIZE, exponential_choice, open_stream
from .terms import GRID

#: By how much one example can change a score, in grid steps.
SENSITIVITY = 2 * GRID
#: Scores stay within this, and so whole numbers do not overflow, whatever neighbours send.
HIGHEST = 1 << 55
#: How far, by rounding, an honest model may be outside its ball.
OUTSIDE = 1.0 + 1e-6
#: Steps that an agent takes for itself in the end, and in trials before.
STEPS, TRIAL = 300, 100
#: How much of their weight neighbours may keep then: what they have published may be mostly noise.
HEED = (1.0, 0.1, 0.01, 0.0)


class Own(NamedTuple):
    """State of the agents."""

    theta: np.ndarray  # (n, p) my model, as I have published it
    cache: Any  # margins z_r = sum_j theta_j h_j(x_r) of my examples, at that model
    steps: np.ndarray  # (n, 1) steps that I have taken
    account: np.ndarray  # (n, ACCOUNT) what I have spent


@inline
def clamped(value, limit):
    """The nearest number that is not beyond the limit."""
    return min(max(value, -limit), limit)


@noinline
def clipped_votes(data, margins, clip, out):
    """Sum of the gradients of my examples' losses, each coordinate of each clipped, in units of clip / GRID.

    It is added to ``out``, in whole numbers: no example has a larger part than GRID in any of them.
    """
    for r in range(data.labels.shape[0]):
        # What is not finite, for a row is absurd, counts as zero: before clipping.
        if not math.isfinite(margins[r]):
            continue
        slope = data.loss.derivative(margins[r], data.labels[r]) / clip
        if not math.isfinite(slope):
            continue
        for k in range(data.rows.entries(r)):
            column, value = data.rows.entry(r, k)
            part = slope * value * GRID
            if not math.isnan(part):
                out[column] += int(clamped(part, float(GRID)))  # towards zero


@noinline
def score_all(data, me, edges, clip, pull, scores):
    """The scores of all candidates, ``+e_1, ..., +e_p, -e_1, ..., -e_p``, in units of a_k share clip / GRID.

    What pulls me to my neighbours is left in ``pull``. Says whether my examples have any weight: if not, there are no
    scores, and ``pull`` is all there is.
    """
    p = pull.shape[0]
    pull_of(data, me, edges, pull)
    for j in range(p):
        pull[j] = pull[j] if math.isfinite(pull[j]) else 0.0
    unit = importance(data, total(data.weight)) * data.row_weight * clip / GRID
    if data.labels.shape[0] == 0 or not unit > 0.0:
        return False
    for j in range(p):
        scores[j] = 0
    clipped_votes(data, me.cache, clip, scores[:p])
    for j in range(p):
        public = int(math.floor(clamped(pull[j] / unit, 0.5 * HIGHEST) + 0.5))  # noqa: RUF046 - compiled, a float
        slope = clamped(scores[j] + public, HIGHEST)  # no farther from that of a neighbouring dataset than before
        scores[j], scores[p + j] = -slope, slope
    return True


@noinline
def drawn_vertex(terms, data, me, edges, release, dice, draft, pull):
    """The vertex of the ball to go to, as ``sign (j + 1)``, by the exponential mechanism; 0 for none.

    An agent without examples has nothing to hide: it goes where its neighbours pull it. The first ``2 p + SIZE``
    numbers of ``draft`` are scratch paper.
    """
    p, whole = pull.shape[0], draft.view(np.int64)
    scores, stream = whole[: 2 * p], whole[2 * p : 2 * p + SIZE]
    fill(0, stream)
    if not score_all(data, me, edges, terms.clip, pull, scores):
        return vertex(pull)
    open_stream(dice, stream)
    scale = int(math.ceil(terms.noise[release] * (2 * SENSITIVITY)))  # noqa: RUF046 - compiled, ceil gives a float
    choice = exponential_choice(stream, scores, 2 * p, scale)
    return choice + 1 if choice < p else p - choice - 1


@inline
def in_ball(pairs, radius):
    """Could this be the model of an honest neighbour?"""
    size = 0.0
    for k in range(1, pairs.shape[0], 2):
        size += abs(pairs[k])
    return size <= radius * OUTSIDE  # false for NaN


@kernel
def train(arrays, own, edge, steps, scratch):
    """Frank-Wolfe on the block of each agent, with its examples in the clear and its neighbours as last heard."""
    for k in range(arrays.address.shape[0]):
        data, me = data_of(arrays, k), row(own, k)
        edges = rows(edge, arrays.edge_start[k], arrays.edge_start[k + 1])
        for t in range(steps):
            move(data, me, 0, vertex(gradient_of(data, me, edges, scratch)), 2.0 / (t + 2.0))


def trained(inner, arrays, theta, edge, heed, steps):
    """Models that agents train in the clear, with so much of the usual weight on their neighbours."""
    own, _ = inner.start(arrays, theta)
    scaled = arrays._replace(smooth=heed * arrays.smooth)
    train(scaled, own, edge, steps, np.zeros(inner.scratch_size(arrays, theta.shape[1])))
    return own.theta


def own_votes(inner, arrays, theta, edge):
    """What each agent makes of its own data and of what it has heard, for its own use.

    How far to heed its neighbours, it finds out by cross-validation on its own examples.
    """
    sizes = np.diff(arrays.row_start)
    trials = [lambda seen, heed=heed: trained(inner, seen, theta, edge, heed, TRIAL) for heed in HEED]
    choice = np.where(sizes < 2, 0, best_of(arrays, trials))  # too few to choose
    models = np.stack([trained(inner, arrays, theta, edge, heed, STEPS) for heed in HEED])
    return models[choice, np.arange(sizes.shape[0])]


@method
class PrivateBoosting(PrivateMethod):
    """See :func:`coterie.Private`."""

    dice = KEY  # that the choice is made from
    footprint = "edges"
    synchronous = False

    def fit_for(self, problem):
        """Refuse a problem whose messages could not be private, or that has no ball."""
        check_private(self, problem)
        self.method.fit_for(problem)

    def scratch_size(self, arrays, p):
        """Numbers of scratch paper that a handler needs."""
        return max(self.method.scratch_size(arrays, p), 3 * p + 3 + SIZE)

    def start(self, arrays, theta):
        """State before the first letter: until a neighbour is heard, it is taken to agree."""
        check_private_arrays(self, arrays)
        n = theta.shape[0]
        own, edge = self.method.start(arrays, theta)
        return Own(*own, np.zeros((n, ACCOUNT))), edge

    def _finish(self, arrays, own, edge):
        """The models that agents keep to themselves."""
        return own_votes(self.method, arrays, own.theta, edge)

    def wake(self, data, me, edges, randomness, outbox):
        """One step on my own block, to a vertex drawn in private, and a word about it; nothing without a budget."""
        release = debit(me.account, self.terms.cost, self.terms.limit)
        if release == NOTHING:
            return
        p = me.theta.shape[0]
        message = outbox.scratch[p : p + 3]
        step = stride(self.method, me.steps[0] if self.method.clock == 0 else randomness.moment)
        pull, draft = outbox.scratch[:p], outbox.scratch[p + 3 :]
        goal = drawn_vertex(self.terms, data, me, edges, release, randomness.dice, draft, pull)
        move(data, me, 0, goal, step)
        me.steps[0] += 1.0
        message[0], message[1], message[2] = me.steps[0], step, goal
        send(outbox, EVERYONE, STEP, message)

    def receive(self, data, me, edges, message, outbox):
        """Follow the neighbour; ask for the whole model where a step was missed. One outside the ball is none."""
        if message.kind != WHOLE or in_ball(message.text[1:], data.radius):
            self.method.receive(data, me, edges, message, outbox)
