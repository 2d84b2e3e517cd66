"""Lower bounds on the joint optimum over weights and covariances.

For any dual variables, with ``b_i = 1/n_i sum_j a_ij x_ij`` and ``C = sum_i 1/n_i sum_j l*(-a_ij)``, the joint optimum
is at least ``-C - |B|^2 / (2 lam)``, with the spectral norm, for every covariance. Means of dual variables over rounds
give valid bounds, too, since C is convex, and tighter ones, because momentum makes the singular values of B oscillate
around their limits.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import optimize

from .spectrum import singular_values

#: Weights of the latest round in the two running means, a short and a long one.
MEAN_RATES = (0.1, 0.03)


class Certificate:
    """Bounds from the dual variables of the last round, and from means over rounds."""

    def __init__(self, lam: float):
        self.lam = lam
        #: B and C of the last round, and their running means.
        self.vectors: list[np.ndarray] = []
        self.conjugates: list[float] = []
        self._sizes: list[np.ndarray] = []

    def add(self, vectors: np.ndarray, conjugate: float) -> None:
        """Add the dual variables of a round."""
        if not self.vectors:
            self.vectors, self.conjugates = [vectors] * (1 + len(MEAN_RATES)), [conjugate] * (1 + len(MEAN_RATES))
        for k, part in enumerate((1.0, *MEAN_RATES)):
            self.vectors[k] = (1.0 - part) * self.vectors[k] + part * vectors
            self.conjugates[k] = (1.0 - part) * self.conjugates[k] + part * conjugate
        self._sizes = [singular_values(each) for each in self.vectors]

    def pack(self) -> dict[str, np.ndarray]:
        """Return the state for a checkpoint."""
        return {"vectors": np.array(self.vectors), "conjugates": np.array(self.conjugates)} if self.vectors else {}

    def unpack(self, packed: Mapping[str, np.ndarray]) -> None:
        """Restore the state from a checkpoint."""
        if packed:
            self.vectors, self.conjugates = list(packed["vectors"]), packed["conjugates"].tolist()
            self._sizes = [singular_values(each) for each in self.vectors]

    @property
    def joint(self) -> float:
        """Lower bound on the joint optimum."""
        return max(
            -conjugate - float(sizes[0]) ** 2 / (2.0 * self.lam)
            for sizes, conjugate in zip(self._sizes, self.conjugates, strict=True)
        )

    def smoothed(self, ridge: float) -> float:
        """Return a lower bound on the minimum of ``losses + lam/2 (sum_k sqrt(sigma_k^2 + r^2))^2``, for a ridge r.

        The sum is over all m directions, in most of which sigma_k is zero. For every tau at least as large as all
        singular values b_k of B, ``lam/2 T^2 >= tau T - tau^2 / (2 lam)`` and ``tau sqrt(sigma^2 + r^2) - b sigma >=
        r sqrt(tau^2 - b^2)``. So ``r sum_k sqrt(tau^2 - b_k^2) - tau^2 / (2 lam) - C`` is a bound, for the best tau.
        """
        m = len(self.vectors[0])
        return max(
            _smoothed(sizes, m - len(sizes), ridge, self.lam) - conjugate
            for sizes, conjugate in zip(self._sizes, self.conjugates, strict=True)
        )


def _smoothed(sizes: np.ndarray, others: int, ridge: float, lam: float) -> float:
    """Return the maximum over tau of ``r sum_k sqrt(tau^2 - b_k^2) - tau^2 / (2 lam)``, a concave function."""

    def slope(tau: float) -> float:
        return ridge * (tau * float(np.sum(1.0 / np.sqrt(tau * tau - sizes * sizes))) + others) - tau / lam

    # 2 / sqrt(3) < 1.2: the slope is negative there.
    high = max(2.0 * float(sizes[0]), 1.2 * lam * ridge * (len(sizes) + others))
    low = max((1.0 + 1e-12) * float(sizes[0]), 1e-9 * high)
    if not high > 0.0:  # all singular values and the ridge are zero
        return 0.0
    tau = float(optimize.brentq(slope, low, high)) if slope(low) > 0.0 else low
    rest = float(np.sum(np.sqrt(tau * tau - sizes * sizes))) + others * tau
    return ridge * rest - tau * tau / (2.0 * lam)
