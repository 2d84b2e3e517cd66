"""What fitted models of all kinds have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .families import LARGEST, Family, Student


@dataclass(frozen=True)
class Fitted:
    """Latent values are in units in which labels have mean ``center`` and standard deviation ``scale``."""

    family: Family
    center: float
    scale: float
    evidence: dict[str, float]  # of everything that was tried

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
