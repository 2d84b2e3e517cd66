"""What fitted models of all kinds have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .families import FAMILIES, LARGEST, Family, Student


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
