"""Lower bounds on the joint optimum over weights and covariances: how sure it is.

Dual variables of any kind, with ``b_i = 1/n_i sum_j a_ij x_ij`` and ``C = sum_i 1/n_i sum_j l*(-a_ij)``, bound it by
``-C - |B|^2 / (2 lam)`` in the spectral norm, whatever the covariance is. So do their means over rounds, since C is
convex: and these are better, because momentum makes the singular values of B swing about where they belong.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import optimize

from .spectrum import singular_values

#: How much of a mean is the round that was added last: a short mean, and a long one.
NEWEST = (0.1, 0.03)


class Certificate:
    """Bounds by the dual variables of the last round, and by means over rounds."""

    def __init__(self, lam: float):
        self.lam = lam
        #: B and C: of the last round, and their means.
        self.vectors: list[np.ndarray] = []
        self.conjugates: list[float] = []
        self._sizes: list[np.ndarray] = []

    def add(self, vectors: np.ndarray, conjugate: float) -> None:
        """Take in the dual variables of a round."""
        if not self.vectors:
            self.vectors, self.conjugates = [vectors] * (1 + len(NEWEST)), [conjugate] * (1 + len(NEWEST))
        for k, part in enumerate((1.0, *NEWEST)):
            self.vectors[k] = (1.0 - part) * self.vectors[k] + part * vectors
            self.conjugates[k] = (1.0 - part) * self.conjugates[k] + part * conjugate
        self._sizes = [singular_values(each) for each in self.vectors]

    def pack(self) -> dict[str, np.ndarray]:
        """All that changes from round to round, for a checkpoint."""
        return {"vectors": np.array(self.vectors), "conjugates": np.array(self.conjugates)} if self.vectors else {}

    def unpack(self, packed: Mapping[str, np.ndarray]) -> None:
        """Go on from a checkpoint."""
        if packed:
            self.vectors, self.conjugates = list(packed["vectors"]), packed["conjugates"].tolist()
            self._sizes = [singular_values(each) for each in self.vectors]

    @property
    def joint(self) -> float:
        """A lower bound on the joint optimum."""
        return max(
            -conjugate - float(sizes[0]) ** 2 / (2.0 * self.lam)
            for sizes, conjugate in zip(self._sizes, self.conjugates, strict=True)
        )

    def smoothed(self, ridge: float) -> float:
        """A lower bound on the optimum with a ridge r, of ``losses + lam/2 (sum_k sqrt(sigma_k^2 + r^2))^2``.

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
    """The largest ``r sum_k sqrt(tau^2 - b_k^2) - tau^2 / (2 lam)``, which is concave in tau."""

    def slope(tau: float) -> float:
        return ridge * (tau * float(np.sum(1.0 / np.sqrt(tau * tau - sizes * sizes))) + others) - tau / lam

    high = max(2.0 * float(sizes[0]), 1.2 * lam * ridge * (len(sizes) + others))  # 2 / sqrt(3) < 1.2: no slope is left
    low = max((1.0 + 1e-12) * float(sizes[0]), 1e-9 * high)
    if not high > 0.0:  # nothing at all
        return 0.0
    tau = float(optimize.brentq(slope, low, high)) if slope(low) > 0.0 else low
    rest = float(np.sum(np.sqrt(tau * tau - sizes * sizes))) + others * tau
    return ridge * rest - tau * tau / (2.0 * lam)
