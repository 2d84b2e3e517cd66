"""Stochastic dual coordinate ascent on the tasks of one worker (DMTRL, Algorithm 2), and what it reports."""

from __future__ import annotations

import numpy as np

from .compile import inline, kernel


@inline
def scrambled(state):
    """The next number of SplitMix64."""
    z = state + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel
def ascend_kernel(loss, smooth, rows, start, labels, square, bend, steps, seeds, number, dual, models, order):
    """Local steps of SDCA on one task after the other, DMTRL (4): each makes one dual variable the best it can be.

    With ``v`` the local model and ``q = rho sigma_ii |x|^2 / (lam n_i)``, the best slope of the loss is the one that
    its proximal step from ``x . v + q slope`` finds; the dual variable is minus that slope. Rows are taken in a random
    order, all of them before any comes again.
    """
    for k in range(start.shape[0] - 1):
        first, count, model = start[k], start[k + 1] - start[k], models[k]
        state = scrambled(seeds[k] + np.uint64(number))
        for r in range(count):
            order[r] = r
        for h in range(steps[k]):
            t = h % count
            state = scrambled(state)
            other = t + np.int64(state % np.uint64(count - t))  # the next step of a shuffle
            order[t], order[other] = order[other], order[t]
            r = first + order[t]
            q = bend[k] * square[r]
            margin = rows.dot(r, model)
            goal = loss.prox(margin - q * dual[r], q, labels[r])
            if q == 0.0 or (smooth and q <= 1.0):
                slope = loss.derivative(goal, labels[r])
            else:  # at a kink, and where slopes are small beside labels, how far the step went tells; within the domain
                low, high = loss.domain(labels[r])
                slope = min(max((margin - goal) / q - dual[r], low), high)
            change = -slope - dual[r]
            dual[r] = -slope
            rows.add(r, bend[k] * change, model)


@kernel
def keep_kernel(loss, labels, keep, after, out):
    """``out += keep (after - out)``, within the domain of the conjugate, which rounding could leave."""
    for r in range(out.shape[0]):
        low, high = loss.domain(labels[r])
        out[r] = -min(max(-(out[r] + keep * (after[r] - out[r])), low), high)


@kernel
def evaluate_kernel(loss, rows, start, labels, row_weight, dual, weights, out):
    """Mean loss, mean conjugate, and mean of ``l(z) + l*(-a) + a z >= 0``, whose sum is the duality gap, of each task.

    Adding up what is not negative, the gap keeps its digits where primal and dual, all but equal, would lose them.
    """
    for k in range(start.shape[0] - 1):
        for r in range(start[k], start[k + 1]):
            margin = rows.dot(r, weights[k])
            value, conjugate = loss.value(margin, labels[r]), loss.conjugate(-dual[r], labels[r])
            out[k, 0] += row_weight[k] * value
            out[k, 1] += row_weight[k] * conjugate
            out[k, 2] += row_weight[k] * max(0.0, value + conjugate + dual[r] * margin)


@kernel
def slopes_kernel(loss, margins, labels, out):
    """The slope of the loss of every row."""
    for r in range(margins.shape[0]):
        out[r] = loss.derivative(margins[r], labels[r])


@kernel
def conjugate_kernel(loss, start, labels, row_weight, dual, out):
    """Mean of ``l*(-a)`` of each task."""
    for k in range(start.shape[0] - 1):
        for r in range(start[k], start[k + 1]):
            out[k] += row_weight[k] * loss.conjugate(-dual[r], labels[r])
