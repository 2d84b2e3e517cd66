"""Families: how a label depends on the linear predictor z of its row, with one loss for each kind of label.

A family has the loss of a row (minus the log-likelihood, up to a constant) and its first three derivatives in z. ``s2``
is the variance of the noise for labels that are numbers; other families ignore it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .._laplace import expit

#: Largest exponent of an expected count, which prevents overflow.
MAX_LOG_RATE = 30.0


class Squared(NamedTuple):
    """Numbers with normal noise of variance s2."""

    name: str = "squared"
    noisy: bool = True
    quadratic: bool = True

    def loss(self, z: np.ndarray, y: np.ndarray, s2: float) -> np.ndarray:
        """Return minus the log-likelihood of the rows, without its constant."""
        return 0.5 * (z - y) ** 2 / s2

    def slope(self, z: np.ndarray, y: np.ndarray, s2: float) -> np.ndarray:
        """Return the first derivative in z."""
        return (z - y) / s2

    def curvature(self, z: np.ndarray, s2: float) -> np.ndarray:
        """Return the second derivative in z."""
        return np.full(z.shape, 1.0 / s2)

    def third(self, z: np.ndarray) -> np.ndarray:
        """Return the third derivative in z."""
        return np.zeros(z.shape)

    def excess(self, z: np.ndarray, y: np.ndarray, s2: float) -> np.ndarray:
        """Return squared residuals in units of s2, weighted as in the estimate of s2."""
        return (z - y) ** 2 / s2

    def constant(self, y: np.ndarray, s2: float) -> np.ndarray:
        """Return the part of every row's log-likelihood that the loss omits."""
        return np.full(y.shape, -0.5 * math.log(2.0 * math.pi * s2))

    def variance(self, s2: float) -> float:
        """Return the variance of a label around its predictor."""
        return s2


class Student(NamedTuple):
    """Numbers with heavy-tailed noise: Student's t of scale s2. The curvature is the expected one, never negative."""

    dof: float = 4.0
    name: str = "student"
    noisy: bool = True
    quadratic: bool = False

    def loss(self, z: np.ndarray, y: np.ndarray, s2: float) -> np.ndarray:
        """Return minus the log-likelihood of the rows, without its constant."""
        return 0.5 * (self.dof + 1.0) * np.log1p((z - y) ** 2 / (s2 * self.dof))

    def slope(self, z: np.ndarray, y: np.ndarray, s2: float) -> np.ndarray:
        """Return the first derivative in z."""
        return (z - y) / s2 * (self.dof + 1.0) / (self.dof + (z - y) ** 2 / s2)

    def curvature(self, z: np.ndarray, s2: float) -> np.ndarray:
        """Return the second derivative in z, expected over labels."""
        return np.full(z.shape, (self.dof + 1.0) / (self.dof + 3.0) / s2)

    def third(self, z: np.ndarray) -> np.ndarray:
        """Return the third derivative in z, expected over labels."""
        return np.zeros(z.shape)

    def excess(self, z: np.ndarray, y: np.ndarray, s2: float) -> np.ndarray:
        """Return squared residuals in units of s2, weighted as in the estimate of s2: outliers have little weight."""
        e2 = (z - y) ** 2 / s2
        return e2 * (self.dof + 1.0) / (self.dof + e2)

    def constant(self, y: np.ndarray, s2: float) -> np.ndarray:
        """Return the part of every row's log-likelihood that the loss omits."""
        log = math.lgamma(0.5 * (self.dof + 1.0)) - math.lgamma(0.5 * self.dof)
        return np.full(y.shape, log - 0.5 * math.log(self.dof * math.pi * s2))

    def variance(self, s2: float) -> float:
        """Return the variance of a label around its predictor."""
        return s2 * self.dof / (self.dof - 2.0)


class Logistic(NamedTuple):
    """Classes 0 and 1, with log-odds z."""

    name: str = "logistic"
    noisy: bool = False
    quadratic: bool = False

    def loss(self, z: np.ndarray, y: np.ndarray, s2: float) -> np.ndarray:
        """Return minus the log-likelihood of the rows."""
        return np.logaddexp(0.0, z) - y * z

    def slope(self, z: np.ndarray, y: np.ndarray, s2: float) -> np.ndarray:
        """Return the first derivative in z."""
        return expit(z) - y

    def curvature(self, z: np.ndarray, s2: float) -> np.ndarray:
        """Return the second derivative in z."""
        return expit(z) * expit(-z)

    def third(self, z: np.ndarray) -> np.ndarray:
        """Return the third derivative in z."""
        return expit(z) * expit(-z) * (1.0 - 2.0 * expit(z))

    def constant(self, y: np.ndarray, s2: float) -> np.ndarray:
        """Return the part of every row's log-likelihood that the loss omits."""
        return np.zeros(y.shape)


class Poisson(NamedTuple):
    """Counts; z is the logarithm of the expected count."""

    name: str = "poisson"
    noisy: bool = False
    quadratic: bool = False

    def loss(self, z: np.ndarray, y: np.ndarray, s2: float) -> np.ndarray:
        """Return minus the log-likelihood of the rows, without its constant."""
        return np.exp(np.minimum(z, MAX_LOG_RATE)) - y * z

    def slope(self, z: np.ndarray, y: np.ndarray, s2: float) -> np.ndarray:
        """Return the first derivative in z."""
        return np.exp(np.minimum(z, MAX_LOG_RATE)) - y

    def curvature(self, z: np.ndarray, s2: float) -> np.ndarray:
        """Return the second derivative in z."""
        return np.exp(np.minimum(z, MAX_LOG_RATE))

    def third(self, z: np.ndarray) -> np.ndarray:
        """Return the third derivative in z."""
        return np.exp(np.minimum(z, MAX_LOG_RATE))

    def constant(self, y: np.ndarray, s2: float) -> np.ndarray:
        """Return the part of every row's log-likelihood that the loss omits."""
        whole, where = np.unique(y, return_inverse=True)
        return np.array([-math.lgamma(value + 1.0) for value in whole.tolist()])[where].reshape(y.shape)


Family = Squared | Student | Logistic | Poisson
#: Families of numbers, whose noise has a variance.
NOISY = (Squared, Student)

#: Families by the names that estimators and commands use.
FAMILIES: dict[str, Family] = {family.name: family for family in (Squared(), Student(), Logistic(), Poisson())}
