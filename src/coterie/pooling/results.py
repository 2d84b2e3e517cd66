"""Common parts of fitted models of all kinds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .families import FAMILIES, MAX_LOG_RATE, NOISY, Family, Student


@dataclass(frozen=True)
class Fitted:
    """Units and evidence of a fit; latent values have units in which labels have mean ``center`` and sd ``scale``."""

    family: Family
    center: float
    scale: float
    evidence: dict[str, float]  # of every candidate, on the rows on which it was fitted
    held_out: dict[str, float]  # mean loss of rows left out one at a time, if designs were compared by this loss

    def to_dict(self) -> dict[str, Any]:
        """Return values that JSON can hold, for a file."""
        return {
            "family": self.family.name,
            "center": self.center,
            "scale": self.scale,
            "evidence": {name: float(value) for name, value in self.evidence.items()},
            "held_out": {name: float(value) for name, value in self.held_out.items()},
        }

    @classmethod
    def from_dict(cls, packed: dict[str, Any]) -> Fitted:
        """Return the values of a file."""
        return Fitted(
            FAMILIES[packed["family"]], *(packed[name] for name in ("center", "scale", "evidence", "held_out"))
        )

    def interval(self, mean: np.ndarray, variance: np.ndarray, s2: float, coverage: float) -> np.ndarray:
        """Return central intervals of new labels, (rows, 2), from the moments of their predictors."""
        from scipy import stats

        tails = (0.5 - 0.5 * coverage, 0.5 + 0.5 * coverage)
        if self.family.name == "poisson":
            # A gamma rate with the moments of exp(z) makes counts negative binomial.
            v = np.expm1(np.clip(variance, 1e-9, 2.0))
            rate = np.exp(np.minimum(mean + 0.5 * np.minimum(variance, 2.0), MAX_LOG_RATE))
            return np.stack([stats.nbinom.ppf(tail, 1.0 / v, 1.0 / (1.0 + v * rate)) for tail in tails], axis=1)
        law = stats.t(self.family.dof) if isinstance(self.family, Student) else stats.norm()
        half = np.sqrt(variance + s2)[:, None] * law.ppf(tails)
        return self.center + self.scale * (mean[:, None] + half)


class AroundCommon:
    """Common base of models that consist of a common model and the agents' deviations."""

    #: Name of this kind of model in files.
    form: ClassVar[str]
    #: Whether each coefficient has an interval, and agents can be tested as outliers.
    has_intervals: ClassVar[bool]

    # Attributes that each kind of model defines in its own way.
    family: Family
    center: float
    scale: float
    D: Any  # (n, q) deviations
    w: Any  # (q,) the common model; the intercept is last
    population: Any  # has .variances, .s2, .log_evidence, .log_sd, .rounds
    grouped: Any  # the rows in the model's units

    @property
    def units(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and scale of the columns, without the ones."""
        raise NotImplementedError

    @property
    def source(self) -> np.ndarray:
        """The feature from which each column is made."""
        raise NotImplementedError

    def features(self) -> Any:
        """Return the rows in the units of their features; None if there are no rows."""
        raise NotImplementedError

    @property
    def log_evidence(self) -> float:
        """Log evidence of the rows from which the population was learned."""
        return float(self.population.log_evidence)

    @property
    def rounds(self) -> int:
        """Number of rounds of learning the population."""
        return int(self.population.rounds)

    @property
    def s2(self) -> float:
        """Variance of the noise, in standard units."""
        return float(self.population.s2)

    @property
    def noise(self) -> float | None:
        """Standard deviation of a label around its predictor, where labels are numbers."""
        return self.scale * math.sqrt(self.family.variance(self.s2)) if isinstance(self.family, NOISY) else None

    @property
    def n(self) -> int:
        """Number of agents."""
        return len(self.D)

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the common model (q,) and the agents' models (n, q), for unscaled columns of the design.

        The intercept is last.
        """
        (mean, scale), both = self.units, self.w + np.vstack([np.zeros(self.D.shape[1]), self.D])
        slopes = both[:, :-1] / scale
        out = np.column_stack([slopes, both[:, -1] - slopes @ mean]) * self.scale
        out[:, -1] += self.center
        return out[0], out[1:]

    def variances(self) -> tuple[np.ndarray, np.ndarray]:
        """Return variances of deviations in the units of :meth:`coefficients`, and the sd of their logarithms, (q,).

        The last one is the variance of the intercept at the means of the columns.
        """
        unit = self.scale / np.append(self.units[1], 1.0)
        return self.population.variances * unit**2, self.population.log_sd

    def deviations(self) -> np.ndarray:
        """Return deviations in standard deviations of the population, for coefficients that differ between agents."""
        v = self.population.variances
        free = v > 1e-12
        return np.asarray(self.D[:, free] / np.sqrt(v[free]))
