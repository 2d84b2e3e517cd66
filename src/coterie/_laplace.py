"""Laplace's approximation in NumPy: the mode of a penalised regression of classes, and moderated log-odds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

#: Steps of Newton's method, at most, and what is left to gain when they end.
STEPS, SETTLED = 50, 1e-10


def expit(z: Any) -> Any:
    """1 / (1 + exp(-z)), without overflow and without SciPy, which takes longer to import than a fit."""
    return 0.5 * (1.0 + np.tanh(0.5 * z))


def moderated(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Log-odds that allow for what is not known: those of the mean probability, nearly (MacKay, 1992)."""
    return mean / np.sqrt(1.0 + np.pi / 8.0 * variance)


class LogisticMode(NamedTuple):
    """The most likely coefficients of a logistic regression under a normal prior."""

    theta: np.ndarray  # (p,)
    cost: float  # minus the logarithm of likelihood times prior, without the constants of the prior
    hessian: np.ndarray  # (p, p) of the cost


def logistic_mode(
    X: np.ndarray, signs: np.ndarray, mean: np.ndarray, precision: np.ndarray, offset: Any = 0.0, steps: int = STEPS
) -> LogisticMode:
    """The mode for labels -1 and 1 whose log-odds are ``offset + X theta``, by Newton's method with a line search."""

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
        if gain < SETTLED:
            break
    return LogisticMode(theta, cost(theta), hessian)
