"""Laplace's approximation, compiled: the mode of an agent's model under a normal prior, and the evidence of its rows.

    minimise  sum_r l((x_r - shift) . theta, y_r) / noise + |V^(-1/2) (theta - center)|^2 / 2,       V^(1/2) = diag root

by Newton's method in units of the prior, which never divides by a small variance: with theta = center + V^(1/2) d the
Hessian in d is  B = V^(1/2) H V^(1/2) / noise + I.  A coordinate whose root is 0 stays at the center.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .compile import class_of, inline, noinline, or_numpy, overload
from .linear import DenseRows, axpy, copy_to, dot, fill

#: Largest number of Newton steps per call; the next call continues.
MAX_NEWTON_STEPS = 30


class Steps(NamedTuple):
    """Thresholds on the gain of a Newton step: for a line search, and for the last step."""

    near: float  # a step that gains no more than this needs no line search
    enough: float  # the last step gains no more than ``enough (1 + part cost)``
    part: float


@or_numpy(lambda scale, x, out: np.add(out, scale * np.multiply.outer(x, x, dtype=np.float64).ravel(), out=out))
@inline
def add_square(scale, x, out):
    """``out += scale x x'``."""
    p = x.shape[0]
    for k in range(p):
        axpy(scale * x[k], x, out[k * p : (k + 1) * p])


def row_less(rows, r, shift, line):
    """Return row r minus the shift (None for no shift), written to `line` if there is a shift."""
    fill(0.0, line)
    rows.add(r, 1.0, line)
    if shift is not None:
        axpy(-1.0, shift, line)
    return line


@overload(row_less)
def _row_less(rows, r, shift, line):
    if class_of(rows) is DenseRows and not hasattr(shift, "ndim"):
        return lambda rows, r, shift, line: rows.values[r]
    return row_less


@inline
def square_error(data, shift, theta, line):
    """``sum_r (y_r - (x_r - shift) . theta)^2``."""
    result = 0.0
    for r in range(data.labels.shape[0]):
        error = data.labels[r] - dot(row_less(data.rows, r, shift, line), theta)
        result += error * error
    return result


@inline
def invert(matrix, q):
    """Invert a positive definite matrix of q * q numbers in place (Gauss-Jordan; it needs no pivots).

    Returns the logarithm of its determinant.
    """
    log_det = 0.0
    for k in range(q):
        pivot = matrix[k * q : (k + 1) * q]
        log_det += math.log(max(pivot[k], 1e-300))
        scale = 1.0 / pivot[k]
        pivot[k] = 1.0
        for c in range(q):
            pivot[c] *= scale
        for i in range(q):
            if i != k:
                line = matrix[i * q : (i + 1) * q]
                factor = line[k]
                line[k] = 0.0
                axpy(-factor, pivot, line)
    return log_det


@inline
def cost(data, noise, shift, center, root, theta, line):
    """Return the objective."""
    result = 0.0
    for k in range(theta.shape[0]):
        if root[k] > 0.0:
            distance = (theta[k] - center[k]) / root[k]
            result += 0.5 * distance * distance
    for r in range(data.labels.shape[0]):
        result += data.loss.value(dot(row_less(data.rows, r, shift, line), theta), data.labels[r]) / noise
    return result


@noinline
def find_mode(data, noise, shift, center, root, steps, theta, inverse, draft):
    """Move theta to the mode, and write ``B^-1``.

    Needs a smooth loss, p * p numbers of room for the inverse, and 4 p of scratch space. Returns the log evidence of
    the rows, up to a constant that depends on their number only; the result is not defined if no step evaluates the
    cost.
    """
    p, m = theta.shape[0], data.labels.shape[0]
    line, slope, step, trial = draft[:p], draft[p : 2 * p], draft[2 * p : 3 * p], draft[3 * p : 4 * p]
    level, log_det = 0.0, 0.0
    for k in range(p):
        if root[k] == 0.0:
            theta[k] = center[k]
    for _ in range(MAX_NEWTON_STEPS):
        fill(0.0, inverse)
        fill(0.0, slope)
        level = 0.0
        for r in range(m):
            x = row_less(data.rows, r, shift, line)
            z = dot(x, theta)
            if steps.part > 0.0:
                level += data.loss.value(z, data.labels[r]) / noise
            axpy(data.loss.derivative(z, data.labels[r]) / noise, x, slope)
            add_square(data.loss.curvature(z, data.labels[r]) / noise, x, inverse)
        for k in range(p):
            distance = (theta[k] - center[k]) / root[k] if root[k] > 0.0 else 0.0
            level += 0.5 * distance * distance
            slope[k] = root[k] * slope[k] + distance
            for c in range(p):
                inverse[k * p + c] *= root[k] * root[c]
            inverse[k * p + k] += 1.0
        log_det = invert(inverse, p)
        gain = 0.0
        for k in range(p):
            step[k] = dot(inverse[k * p : (k + 1) * p], slope)
            gain += slope[k] * step[k]
        for k in range(p):
            step[k] *= root[k]
        length = 1.0
        if gain > steps.near and steps.part == 0.0:
            level = cost(data, noise, shift, center, root, theta, line)
        while length > 1e-10 and gain > steps.near * (1.0 + steps.part * abs(level)):
            copy_to(theta, trial)
            axpy(-length, step, trial)
            if cost(data, noise, shift, center, root, trial, line) <= level - 1e-4 * length * gain:
                break
            length *= 0.5
        axpy(-length, step, theta)
        level -= 0.5 * gain
        if not gain > steps.enough * (1.0 + steps.part * abs(level)):
            break
    return -level - 0.5 * log_det - 0.5 * m * math.log(noise)


@inline
def in_raw_units(shift, theta, root, inverse, cov):
    """Convert the posterior of a model centred at `shift` to raw units: theta in place, and its covariance."""
    p = theta.shape[0]
    for k in range(p):
        for c in range(p):
            cov[k, c] = root[k] * root[c] * inverse[k * p + c]
    if shift is None:
        return
    theta[p - 1] -= dot(shift, theta)
    for c in range(p):  # the last coordinate of a raw model is that of the centred model minus  shift . theta
        for k in range(p - 1):
            cov[p - 1, c] -= shift[k] * cov[k, c]
    for k in range(p):
        for c in range(p - 1):
            cov[k, p - 1] -= shift[c] * cov[k, c]
