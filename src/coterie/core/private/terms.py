"""The terms of a private run: the claim, and the public numbers of the mechanism.

All terms are fixed before the run, and none depends on any agent's data.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from ..._checks import integer, positive, within
from ...accounting.plans import Plan
from ...errors import ParameterError
from ..compile import inline
from ..linear import frozen
from ..rules import rule
from .noise import LAPLACE, LARGEST

#: Distributions of the noise, by number: compiled code cannot use strings.
MECHANISMS = ("gaussian", "laplace", "exponential")
EXPONENTIAL = 2
#: Accountants, by number.
NAMES = ("gdp", "bound", "pld")
FINALS = (None, "local")
#: Number of grid steps in one clip. One example changes a clipped sum by at most twice this number.
GRID = 1 << 20
#: Smallest width of noise, in grid steps, for which the accounting of continuous noise is accurate.
MIN_WIDTH = 1 << 10
#: Bound on norms and their reciprocals, so that products do not overflow.
MAX_NORM = 1e100


@rule
class Terms(NamedTuple):
    """Terms of a private method: see :func:`coterie.Private`."""

    epsilon: float
    delta: float
    mechanism: int
    accountant: int
    clip: float  # largest norm of one example's contribution
    row_norm: float  # largest norm of a row, assumed for step sizes
    max_rows: int  # number of rows above which releases are fully reliable; 0 for the largest number of any agent
    loss_fraction: float  # fraction of every release's budget that is spent on the loss
    final: int
    noise: np.ndarray  # (T,) noise multiplier of every release
    cost: np.ndarray  # (T,) cost of every release, see Plan
    limit: float

    @property
    def plan(self):
        """The claim, and the noise that achieves it."""
        words = MECHANISMS[self.mechanism], NAMES[self.accountant]
        return _plan(words[0], self.epsilon, self.delta, words[1], self.noise.tobytes())

    def words(self):
        """Return the terms as the caller gave them, for a repr."""
        plan = [f"epsilon={self.epsilon:g}", f"delta={self.delta:g}"]
        plan += [f"mechanism={MECHANISMS[self.mechanism]!r}"]
        plan += [] if self.mechanism == EXPONENTIAL else [f"clip={self.clip:g}"]
        plan += [f"wakes_per_agent={self.noise.shape[0]}"]
        return ", ".join([*plan, f"final={FINALS[self.final]!r}"])


@functools.lru_cache(maxsize=128)
def _plan(mechanism: str, epsilon: float, delta: float, accountant: str, noise: bytes) -> Plan:
    return Plan(mechanism, epsilon, delta, accountant, np.frombuffer(noise))  # cached, since the checks may take long


@inline
def width_of(terms, release, share, sensitivity):
    """Return the width of the noise in grid steps, for a query with this share of a release's budget."""
    # Shares are of eps_t for Laplace noise, and of mu_t^2 for Gaussian: both sum to the release's budget.
    part = share if terms.mechanism == LAPLACE else math.sqrt(share)
    # One step more than needed: the grid worsens Gaussian noise by 1 / width^2, and the step improves it by 1 / width.
    return int(math.ceil(terms.noise[release] / part * sensitivity)) + 1  # noqa: RUF046 - compiled, ceil is a float


def make_terms(plan: Plan, clip: Any, row_norm: Any, max_rows: Any, loss_fraction: Any, final: Any) -> Terms:
    """Check the public numbers of the mechanism, and that it can produce the noise of a plan."""
    for name, value in (("clip", clip), ("row_norm", row_norm)):
        positive(name, value)
        if not 1.0 / MAX_NORM <= value <= MAX_NORM:
            raise ParameterError(f"{name} = {value!r}: expected {1 / MAX_NORM:g} to {MAX_NORM:g}; scale the features")
    max_rows = 0 if max_rows is None else integer("max_rows", max_rows)
    within("loss_fraction", loss_fraction, 0, 1, "[)")
    if final not in FINALS:
        raise ParameterError(f'final={final!r} must be "local" or None')
    words = MECHANISMS.index(plan.mechanism), NAMES.index(plan.accountant)
    public: Any = (float(clip), float(row_norm), max_rows, float(loss_fraction), FINALS.index(final))
    made: Any = (frozen(plan.noise), frozen(plan.cost), plan.limit)
    terms = Terms(*(plan.epsilon, plan.delta, *words, *public, *made))
    queries = [(1.0 - terms.loss_fraction, 2 * GRID), *([(terms.loss_fraction, GRID)] if terms.loss_fraction else [])]
    for share, sensitivity in queries:
        widths = [width_of(terms, k, share, sensitivity) for k in range(plan.steps)]
        if min(widths) < MIN_WIDTH or max(widths) > LARGEST:
            raise ParameterError(
                f"epsilon={plan.epsilon!r} in {plan.steps} releases with loss_fraction={loss_fraction!r} needs noise "
                f"of {min(widths) / sensitivity:.3g} to {max(widths) / sensitivity:.3g} times the sensitivity: the "
                f"mechanism supports {MIN_WIDTH / sensitivity:.1g} to {LARGEST / sensitivity:.1g}"
            )
    return terms
