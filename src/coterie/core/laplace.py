"""Laplace's approximation, compiled: the mode of an agent's model under a normal prior, and the evidence of its rows.

    minimise  sum_r l((x_r - shift) . theta, y_r) / noise + |V^(-1/2) (theta - center)|^2 / 2,       V^(1/2) = diag root

by Newton's method in units of the prior, which never divides by a small variance: with theta = center + V^(1/2) d the
Hessian in d is  B = V^(1/2) H V^(1/2) / noise + I.  A coordinate whose root is 0 stays at the center.
"""

from __future__ import annotations

import math

import numpy as np

from .compile import inline, noinline, or_numpy
from .linear import axpy, copy_to, dot, fill

#: So many steps at most: the next call goes on from there.
STEPS = 30
#: A step that gains less than this, relative to the value of what is minimised, needs no line search.
NEAR = 1e-12


@or_numpy(lambda scale, x, out: np.add(out, scale * np.outer(x, x).ravel(), out=out))
@inline
def add_square(scale, x, out):
    """``out += scale x x'``."""
    p = x.shape[0]
    for k in range(p):
        if x[k] != 0.0:
            axpy(scale * x[k], x, out[k * p : (k + 1) * p])


@inline
def centred_row(data, r, shift, line):
    """Row r less the shift; an empty shift is none."""
    fill(0.0, line)
    data.rows.add(r, 1.0, line)
    if shift.shape[0] > 0:
        axpy(-1.0, shift, line)


@inline
def square_error(data, shift, theta, line):
    """``sum_r (y_r - (x_r - shift) . theta)^2``."""
    result = 0.0
    for r in range(data.labels.shape[0]):
        centred_row(data, r, shift, line)
        error = data.labels[r] - dot(line, theta)
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
    """What is minimised."""
    result = 0.0
    for k in range(theta.shape[0]):
        if root[k] > 0.0:
            distance = (theta[k] - center[k]) / root[k]
            result += 0.5 * distance * distance
    for r in range(data.labels.shape[0]):
        centred_row(data, r, shift, line)
        result += data.loss.value(dot(line, theta), data.labels[r]) / noise
    return result


@noinline
def find_mode(data, noise, shift, center, root, enough, part, theta, inverse, draft):
    """Bring theta to the mode, until a step gains no more than ``enough (1 + part cost)``, and leave ``B^-1``.

    Needs a smooth loss, p * p numbers of room for the inverse, and 4 p for drafts. Returns the log evidence of the
    rows, but for what depends on nothing but their number.
    """
    p, m = theta.shape[0], data.labels.shape[0]
    line, slope, step, trial = draft[:p], draft[p : 2 * p], draft[2 * p : 3 * p], draft[3 * p : 4 * p]
    level, log_det = 0.0, 0.0
    for k in range(p):
        if root[k] == 0.0:
            theta[k] = center[k]
    for _ in range(STEPS):
        level = cost(data, noise, shift, center, root, theta, line)
        fill(0.0, inverse)
        fill(0.0, slope)
        for r in range(m):
            centred_row(data, r, shift, line)
            z = dot(line, theta)
            axpy(data.loss.derivative(z, data.labels[r]) / noise, line, slope)
            add_square(data.loss.curvature(z, data.labels[r]) / noise, line, inverse)
        for k in range(p):
            slope[k] = root[k] * slope[k] + ((theta[k] - center[k]) / root[k] if root[k] > 0.0 else 0.0)
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
        while length > 1e-10 and gain > NEAR * (1.0 + abs(level)):
            copy_to(theta, trial)
            axpy(-length, step, trial)
            if cost(data, noise, shift, center, root, trial, line) <= level - 1e-4 * length * gain:
                break
            length *= 0.5
        axpy(-length, step, theta)
        level -= 0.5 * gain
        if not gain > enough * (1.0 + part * abs(level)):
            break
    return -level - 0.5 * log_det - 0.5 * m * math.log(noise)


@inline
def in_raw_units(shift, theta, root, inverse, cov):
    """The posterior of a model about a shift in raw units: theta in its place, and its covariance."""
    p = theta.shape[0]
    for k in range(p):
        for c in range(p):
            cov[k, c] = root[k] * root[c] * inverse[k * p + c]
    if shift.shape[0] == 0:
        return
    theta[p - 1] -= dot(shift, theta)
    for c in range(p):  # the last number of a raw model is that of a centred one less  shift . theta
        for k in range(p - 1):
            cov[p - 1, c] -= shift[k] * cov[k, c]
    for k in range(p):
        for c in range(p - 1):
            cov[k, p - 1] -= shift[c] * cov[k, c]
