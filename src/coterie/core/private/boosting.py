"""Differentially private boosting. This extends the paper: DADA has no private form.

:class:`~coterie.FrankWolfeBoosting` with one change: base predictor and sign are not the best by DADA (3), but drawn by
the exponential mechanism among 2p candidates, with the probability

    P(j, sign)  proportional to  exp( eps_t q(j, sign) / (2 Delta) ),        q(j, sign) = -sign [grad f]_j .

Only the part of the gradient that comes from the agent's examples is private. Each coordinate of each example's part
is clipped and rounded towards zero on a grid, so that replacing one example changes every score by at most
``Delta = 2 GRID`` steps, exactly. Everything else that is sent of a step is public: a clock determines the step size.
An agent whose budget is spent sends nothing more.

=============================  =====================================================
DADA                           here
=============================  =====================================================
alpha_k                        ``me.theta``, as published
A_k alpha_k                    ``me.cache``, without the labels: used only in the mechanism
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

#: Largest change of a score when one example is replaced, in grid steps.
SENSITIVITY = 2 * GRID
#: Bound on scores, so that integers do not overflow, whatever neighbours send.
MAX_SCORE = 1 << 55
#: Relative tolerance for rounding in the norm of an honest model.
NORM_TOLERANCE = 1.0 + 1e-6
#: Number of steps of the final training, and of each trial before it.
FINAL_STEPS, TRIAL_STEPS = 300, 100
#: Candidate factors on the weight of neighbours in the final training, whose published models may be mostly noise.
NEIGHBOUR_FACTORS = (1.0, 0.1, 0.01, 0.0)


class Own(NamedTuple):
    """State of the agents."""

    theta: np.ndarray  # (n, p) the agent's model, as published
    cache: Any  # margins z_r = sum_j theta_j h_j(x_r) of the agent's examples, at that model
    steps: np.ndarray  # (n, 1) number of steps taken
    account: np.ndarray  # (n, ACCOUNT) the agent's privacy account


@inline
def clamped(value, limit):
    """Return the value, clipped to [-limit, limit]."""
    return min(max(value, -limit), limit)


@noinline
def clipped_votes(data, margins, clip, out):
    """Add the gradients of the agent's examples, each coordinate of each clipped, to ``out``, in units of clip / GRID.

    The result is in integers, and no example contributes more than GRID to any of them.
    """
    for r in range(data.labels.shape[0]):
        # Numbers that are not finite, for absurd rows, count as zero, before clipping.
        if not math.isfinite(margins[r]):
            continue
        slope = data.loss.derivative(margins[r], data.labels[r]) / clip
        if not math.isfinite(slope):
            continue
        for k in range(data.rows.entries(r)):
            column, value = data.rows.entry(r, k)
            part = slope * value * GRID
            if not math.isnan(part):
                out[column] += int(clamped(part, float(GRID)))  # rounds towards zero


@noinline
def score_all(data, me, edges, clip, pull, scores):
    """Compute the scores of all candidates, ``+e_1, ..., +e_p, -e_1, ..., -e_p``, in units of a_k share clip / GRID.

    ``pull`` receives the gradient's part from neighbours. Return whether the agent's examples have any weight: if not,
    there are no scores, and ``pull`` is the whole gradient.
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
        public = int(math.floor(clamped(pull[j] / unit, 0.5 * MAX_SCORE) + 0.5))  # noqa: RUF046 - compiled, a float
        slope = clamped(scores[j] + public, MAX_SCORE)  # the distance to a neighbouring dataset's score does not grow
        scores[j], scores[p + j] = -slope, slope
    return True


@noinline
def drawn_vertex(terms, data, me, edges, release, dice, draft, pull):
    """Draw a vertex of the ball, as ``sign (j + 1)``, by the exponential mechanism; 0 for none.

    An agent without examples has nothing to protect: it moves where its neighbours pull it. The first ``2 p + SIZE``
    numbers of ``draft`` are scratch space.
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
    """Return whether this could be the model of an honest neighbour."""
    size = 0.0
    for k in range(1, pairs.shape[0], 2):
        size += abs(pairs[k])
    return size <= radius * NORM_TOLERANCE  # false for NaN


@kernel
def train(arrays, own, edge, steps, scratch):
    """Take Frank-Wolfe steps on each agent's block, with exact examples and the models last received."""
    for k in range(arrays.address.shape[0]):
        data, me = data_of(arrays, k), row(own, k)
        edges = rows(edge, arrays.edge_start[k], arrays.edge_start[k + 1])
        for t in range(steps):
            move(data, me, 0, vertex(gradient_of(data, me, edges, scratch)), 2.0 / (t + 2.0))


def trained(inner, arrays, theta, edge, heed, steps):
    """Return models that agents train without noise, with the factor ``heed`` on the weight of their neighbours."""
    own, _ = inner.start(arrays, theta)
    scaled = arrays._replace(smooth=heed * arrays.smooth)
    train(scaled, own, edge, steps, np.zeros(inner.scratch_size(arrays, theta.shape[1])))
    return own.theta


def own_votes(inner, arrays, theta, edge):
    """Return the model that each agent trains for its own use, from its exact data and the received models.

    The weight of the neighbours is chosen by cross-validation on the agent's own examples.
    """
    sizes = np.diff(arrays.row_start)
    trials = [
        lambda seen, heed=heed: trained(inner, seen, theta, edge, heed, TRIAL_STEPS) for heed in NEIGHBOUR_FACTORS
    ]
    choice = np.where(sizes < 2, 0, best_of(arrays, trials))  # too few to choose
    models = np.stack([trained(inner, arrays, theta, edge, heed, FINAL_STEPS) for heed in NEIGHBOUR_FACTORS])
    return models[choice, np.arange(sizes.shape[0])]


@method
class PrivateBoosting(PrivateMethod):
    """See :func:`coterie.Private`."""

    dice = KEY  # key of the random choice
    footprint = "edges"
    synchronous = False

    def fit_for(self, problem):
        """Raise a MismatchError for a problem whose messages could not be private, or that has no ball."""
        check_private(self, problem)
        self.method.fit_for(problem)

    def scratch_size(self, arrays, p):
        return max(self.method.scratch_size(arrays, p), 3 * p + 3 + SIZE)

    def start(self, arrays, theta):
        check_private_arrays(self, arrays)
        n = theta.shape[0]
        own, edge = self.method.start(arrays, theta)
        return Own(*own, np.zeros((n, ACCOUNT))), edge

    def _finish(self, arrays, own, edge):
        return own_votes(self.method, arrays, own.theta, edge)

    def wake(self, data, me, edges, randomness, outbox):
        """Take one step to a privately drawn vertex, and send the step; do nothing once the budget is spent."""
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
        """Apply the neighbour's step; request its whole model if a step was missed. Ignore models outside the ball."""
        if message.kind != WHOLE or in_ball(message.text[1:], data.radius):
            self.method.receive(data, me, edges, message, outbox)
