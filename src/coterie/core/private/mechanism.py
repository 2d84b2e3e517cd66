"""The mechanism: sums of clipped contributions on an integer grid, and discrete noise on that grid.

Each example's contribution to a sum is rounded towards zero to grid steps, and its norm checked in integers. Replacing
one example therefore changes the sum by a vector of norm at most 2 GRID, exactly: the accounting needs no term for
rounding errors, and the noisy sum, an integer, reveals nothing else. Everything computed from it is post-processing, in
floating point or not.
"""

from __future__ import annotations

import math

import numpy as np

from ..compile import inline, noinline
from ..linear import fill
from .noise import LAPLACE, SIZE, discrete_gaussian, discrete_laplace, open_stream
from .terms import GRID, width_of

#: Factor by which a vector is shortened that is a grid step too long because of rounding in its norm.
SHORTENING = 1.0 - 2.0**-30


@inline
def row_norm(rows, r, laplace):
    """Return the norm of a row that the mechanism needs: L1 for Laplace noise, L2 for Gaussian."""
    largest, size = 0.0, 0.0
    for k in range(rows.entries(r)):
        largest = max(largest, abs(rows.entry(r, k)[1]))
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    for k in range(rows.entries(r)):  # divide first: squares may underflow to zero
        value = abs(rows.entry(r, k)[1]) / largest
        size += value if laplace else value * value
    return largest * (size if laplace else math.sqrt(size))


@inline
def grid_size(rows, r, unit, laplace):
    """Return the L1 norm, or the square of the L2 norm, of ``unit * x_r`` in integers."""
    size = 0
    for k in range(rows.entries(r)):
        part = int(unit * rows.entry(r, k)[1])
        size += abs(part) if laplace else part * part
    return size


@noinline
def clipped_sum(data, theta, clip, laplace, total):
    """Add the clipped gradients of the agent's examples to ``total``, in units of clip / GRID (integers)."""
    limit = GRID if laplace else GRID * GRID
    for r in range(data.labels.shape[0]):
        margin = data.rows.dot(r, theta)
        norm = row_norm(data.rows, r, laplace)
        # Numbers that are not finite, for absurd rows or models, count as zero, before clipping.
        if not (math.isfinite(margin) and math.isfinite(norm)):
            continue
        slope = data.loss.derivative(margin, data.labels[r])
        if not math.isfinite(slope):
            continue
        unit = math.copysign(GRID / norm, slope) if abs(slope) * norm > clip else slope * (GRID / clip)
        if not math.isfinite(unit):  # no row can balance this slope
            continue
        if grid_size(data.rows, r, unit, laplace) > limit:
            unit *= SHORTENING
            if grid_size(data.rows, r, unit, laplace) > limit:  # cannot happen; if it did, the example would not count
                continue
        for k in range(data.rows.entries(r)):
            column, value = data.rows.entry(r, k)
            total[column] += int(unit * value)


@noinline
def clipped_loss(data, theta, clip):
    """Return the sum of the examples' losses, each clipped to [0, clip], as an integer in units of clip / GRID."""
    total = 0
    for r in range(data.labels.shape[0]):
        margin = data.rows.dot(r, theta)
        loss = data.loss.value(margin, data.labels[r]) / clip if math.isfinite(margin) else 0.0
        if loss > 0.0:  # false for NaN
            total += int(min(loss, 1.0) * GRID)
    return total


@inline
def draw(terms, stream, width):
    """Draw discrete noise of a width."""
    if terms.mechanism == LAPLACE:
        return discrete_laplace(stream, width)
    return discrete_gaussian(stream, width)


@noinline
def noisy_gradient(terms, data, theta, release, dice, scale, draft, out):
    """``out += scale * (sum of clipped gradients + noise)``.

    Return the noisy loss if it has a share of the budget, else 0.

    The first ``p + SIZE`` numbers of ``draft`` are scratch space.
    """
    p, whole = theta.shape[0], draft.view(np.int64)
    total, stream = whole[:p], whole[p : p + SIZE]
    fill(0, total)
    fill(0, stream)
    open_stream(dice, stream)
    clipped_sum(data, theta, terms.clip, terms.mechanism == LAPLACE, total)
    width, unit = width_of(terms, release, 1.0 - terms.loss_fraction, 2 * GRID), terms.clip / GRID
    for k in range(total.shape[0]):
        out[k] += scale * unit * (total[k] + draw(terms, stream, width))
    if terms.loss_fraction == 0.0:
        return 0.0
    noise = draw(terms, stream, width_of(terms, release, terms.loss_fraction, GRID))
    return data.row_weight * unit * (clipped_loss(data, theta, terms.clip) + noise)
