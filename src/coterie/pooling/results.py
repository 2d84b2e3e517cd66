"""What fitted models of all kinds have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .families import FAMILIES, LARGEST, NOISY, Family, Student


@dataclass(frozen=True)
class Fitted:
    """Latent values are in units in which labels have mean ``center`` and standard deviation ``scale``."""

    family: Family
    center: float
    scale: float
    evidence: dict[str, float]  # of everything that was tried, on the rows it was tried on
    held_out: dict[str, float]  # mean loss of rows left out one at a time, where designs were compared by it, too

    def to_dict(self) -> dict[str, Any]:
        """For a file: what json can hold."""
        return {
            "family": self.family.name,
            "center": self.center,
            "scale": self.scale,
            "evidence": {name: float(value) for name, value in self.evidence.items()},
            "held_out": {name: float(value) for name, value in self.held_out.items()},
        }

    @classmethod
    def from_dict(cls, packed: dict[str, Any]) -> Fitted:
        """Back from a file."""
        return Fitted(
            FAMILIES[packed["family"]], *(packed[name] for name in ("center", "scale", "evidence", "held_out"))
        )

    def interval(self, mean: np.ndarray, variance: np.ndarray, s2: float, coverage: float) -> np.ndarray:
        """Ends of central intervals of new labels, (rows, 2), from the moments of their predictors."""
        from scipy import stats

        tails = (0.5 - 0.5 * coverage, 0.5 + 0.5 * coverage)
        if self.family.name == "poisson":
            # A gamma rate with the moments of exp(z) makes counts negative binomial.
            v = np.expm1(np.clip(variance, 1e-9, 2.0))
            rate = np.exp(np.minimum(mean + 0.5 * np.minimum(variance, 2.0), LARGEST))
            return np.stack([stats.nbinom.ppf(tail, 1.0 / v, 1.0 / (1.0 + v * rate)) for tail in tails], axis=1)
        law = stats.t(self.family.dof) if isinstance(self.family, Student) else stats.norm()
        half = np.sqrt(variance + s2)[:, None] * law.ppf(tails)
        return self.center + self.scale * (mean[:, None] + half)


class AroundCommon:
    """What models have that are a common one and everybody's deviation from it, however they were learned."""

    #: How a file calls models of this kind.
    form: ClassVar[str]
    #: Whether each coefficient has an interval, and rows are tested for what the population does not explain.
    has_intervals: ClassVar[bool]

    # What kinds of models have, each in its own way.
    family: Family
    center: float
    scale: float
    D: Any  # (n, q) deviations
    w: Any  # (q,) the common model; the intercept is last
    population: Any  # what was learned of all agents: .variances, .s2, .log_evidence, .log_sd, .rounds
    grouped: Any  # the rows, as the model has them

    @property
    def units(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and scale of the columns, without the ones."""
        raise NotImplementedError

    @property
    def source(self) -> np.ndarray:
        """The feature that each column is made of."""
        raise NotImplementedError

    def features(self) -> Any:
        """The rows in the units of their features; None if there are none."""
        raise NotImplementedError

    @property
    def log_evidence(self) -> float:
        """Of the rows that the population was learned from."""
        return float(self.population.log_evidence)

    @property
    def rounds(self) -> int:
        """Steps of the strengths."""
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
        """How many agents."""
        return len(self.D)

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Common model (q,) and models of the agents (n, q), for columns of the design before it scales them.

        The intercept is last.
        """
        (mean, scale), both = self.units, self.w + np.vstack([np.zeros(self.D.shape[1]), self.D])
        slopes = both[:, :-1] / scale
        out = np.column_stack([slopes, both[:, -1] - slopes @ mean]) * self.scale
        out[:, -1] += self.center
        return out[0], out[1:]

    def variances(self) -> tuple[np.ndarray, np.ndarray]:
        """Variances of deviations in the units of :meth:`coefficients`, and the sd of their logarithms, (q,).

        That of the intercept, the last, is where the columns have their means.
        """
        unit = self.scale / np.append(self.units[1], 1.0)
        return self.population.variances * unit**2, self.population.log_sd

    def deviations(self) -> np.ndarray:
        """In standard deviations of the population; of coefficients that differ."""
        v = self.population.variances
        free = v > 1e-12
        return np.asarray(self.D[:, free] / np.sqrt(v[free]))
