"""Laplace's approximation in NumPy: the mode of a penalised logistic regression, and moderated log-odds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

#: Largest number of Newton steps, and the Newton decrement at which they stop.
MAX_STEPS, MIN_DECREMENT = 50, 1e-10


def expit(z: Any) -> Any:
    """Return 1 / (1 + exp(-z)) without overflow, and without SciPy, whose import takes longer than a fit."""
    return 0.5 * (1.0 + np.tanh(0.5 * z))


def moderated(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return approximate log-odds of the mean probability, for normally distributed log-odds (MacKay, 1992)."""
    return mean / np.sqrt(1.0 + np.pi / 8.0 * variance)


class LogisticMode(NamedTuple):
    """The most likely coefficients of a logistic regression under a normal prior."""

    theta: np.ndarray  # (p,)
    cost: float  # minus the logarithm of likelihood times prior, without the constants of the prior
    hessian: np.ndarray  # (p, p) second derivative of the cost


def logistic_mode(
    X: np.ndarray, signs: np.ndarray, mean: np.ndarray, precision: np.ndarray, offset: Any = 0.0, steps: int = MAX_STEPS
) -> LogisticMode:
    """Return the mode for labels -1 and 1 with log-odds ``offset + X theta``, by Newton's method with a line search."""

    def cost(theta: np.ndarray) -> float:
        misfit = np.logaddexp(0.0, -signs * (offset + X @ theta)).sum()
        return float(misfit + 0.5 * precision @ (theta - mean) ** 2)

    theta, hessian = mean.copy(), np.diag(precision)
    for _ in range(steps):
        wrong = 0.5 * (1.0 - np.tanh(0.5 * signs * (offset + X @ theta)))
        slope = precision * (theta - mean) - X.T @ (wrong * signs)
        hessian = (X.T * (wrong * (1.0 - wrong))) @ X + np.diag(precision)
        step = np.linalg.solve(hessian, slope)
        gain, length, here = float(slope @ step), 1.0, cost(theta)
        while length > 1e-6 and cost(theta - length * step) > here - 1e-4 * length * gain:
            length *= 0.5
        theta = theta - length * step
        if gain < MIN_DECREMENT:
            break
    return LogisticMode(theta, cost(theta), hessian)
