"""Stochastic dual coordinate ascent on the tasks of one worker (DMTRL, Algorithm 2), and its loss reports."""

from __future__ import annotations

import numpy as np

from .compile import inline, kernel


@inline
def scrambled(state):
    """Return the next number of the SplitMix64 generator."""
    z = state + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel
def ascend_kernel(loss, smooth, rows, start, labels, square, bend, steps, seeds, number, dual, models, order):
    """Take local steps of SDCA on one task after the other, DMTRL (4): each step maximises over one dual variable.

    With ``v`` the local model and ``q = rho sigma_ii |x|^2 / (lam n_i)``, the optimal slope of the loss is found by its
    proximal step from ``x . v + q slope``; the dual variable is minus that slope. Rows are visited in a random
    order, each once before any is repeated.
    """
    for k in range(start.shape[0] - 1):
        first, count, model = start[k], start[k + 1] - start[k], models[k]
        state = scrambled(seeds[k] + np.uint64(number))
        for r in range(count):
            order[r] = r
        for h in range(steps[k]):
            t = h % count
            state = scrambled(state)
            other = t + np.int64(state % np.uint64(count - t))  # next step of a shuffle
            order[t], order[other] = order[other], order[t]
            r = first + order[t]
            q = bend[k] * square[r]
            margin = rows.dot(r, model)
            goal = loss.prox(margin - q * dual[r], q, labels[r])
            if q == 0.0 or (smooth and q <= 1.0):
                slope = loss.derivative(goal, labels[r])
            else:  # at kinks, and for slopes far smaller than labels: from the step, clipped to the domain
                low, high = loss.domain(labels[r])
                slope = min(max((margin - goal) / q - dual[r], low), high)
            change = -slope - dual[r]
            dual[r] = -slope
            rows.add(r, bend[k] * change, model)


@kernel
def keep_kernel(loss, labels, keep, after, out):
    """``out += keep (after - out)``, clipped to the domain of the conjugate, which rounding could leave."""
    for r in range(out.shape[0]):
        low, high = loss.domain(labels[r])
        out[r] = -min(max(-(out[r] + keep * (after[r] - out[r])), low), high)


@kernel
def evaluate_kernel(loss, rows, start, labels, row_weight, dual, weights, out):
    """Write each task's mean loss, mean conjugate and mean of ``l(z) + l*(-a) + a z >= 0``, which sum to its gap.

    As a sum of nonnegative terms, the gap keeps its precision where primal and dual are nearly equal.
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
    """Write the slope of the loss of every row."""
    for r in range(margins.shape[0]):
        out[r] = loss.derivative(margins[r], labels[r])


@kernel
def conjugate_kernel(loss, start, labels, row_weight, dual, out):
    """Write the mean of ``l*(-a)`` of each task."""
    for k in range(start.shape[0] - 1):
        for r in range(start[k], start[k + 1]):
            out[k] += row_weight[k] * loss.conjugate(-dual[r], labels[r])
