"""The terms of a private run: what is claimed, and the public numbers that the mechanism works with.

They are all fixed before the run, and none of them depends on anybody's data.
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

#: What noise is drawn from, by number: compiled code knows no words.
MECHANISMS = ("gaussian", "laplace", "exponential")
EXPONENTIAL = 2
#: Accountants, likewise.
NAMES = ("gdp", "bound", "pld")
FINALS = (None, "local")
#: Steps of the grid that clipped sums live on, in one clip. No example changes a sum by more than twice that.
GRID = 1 << 20
#: Noise of fewer grid steps than this is too coarse for the accounting of continuous noise.
FINEST = 1 << 10
#: No norm is larger or smaller than this, or its reciprocal: products of such numbers are numbers.
FAR = 1e100


@rule
class Terms(NamedTuple):
    """What every private method carries: see :func:`coterie.Private`."""

    epsilon: float
    delta: float
    mechanism: int
    accountant: int
    clip: float  # the largest norm of what one example contributes
    row_norm: float  # of a row at most, as far as steps are concerned
    max_rows: int  # that make a released model reliable; 0 for the most in the world
    loss_fraction: float  # part of every release's budget that goes to the loss
    final: int
    noise: np.ndarray  # (T,) noise multiplier of every release
    cost: np.ndarray  # (T,) what it costs, see Plan
    limit: float

    @property
    def plan(self):
        """The claim, and the noise that makes it true."""
        words = MECHANISMS[self.mechanism], NAMES[self.accountant]
        return _plan(words[0], self.epsilon, self.delta, words[1], self.noise.tobytes())

    def words(self):
        """As a caller says it, for a repr."""
        plan = [f"epsilon={self.epsilon:g}", f"delta={self.delta:g}"]
        plan += [f"mechanism={MECHANISMS[self.mechanism]!r}"]
        plan += [] if self.mechanism == EXPONENTIAL else [f"clip={self.clip:g}"]
        plan += [f"wakes_per_agent={self.noise.shape[0]}"]
        return ", ".join([*plan, f"final={FINALS[self.final]!r}"])


@functools.lru_cache(maxsize=128)
def _plan(mechanism: str, epsilon: float, delta: float, accountant: str, noise: bytes) -> Plan:
    return Plan(mechanism, epsilon, delta, accountant, np.frombuffer(noise))  # checked, which may take its time


@inline
def width_of(terms, release, share, sensitivity):
    """Width of the noise in grid steps, for a query that gets this share of a release's budget."""
    # Shares are of eps_t for Laplace noise, and of mu_t^2 for Gaussian: both add up to the release's.
    part = share if terms.mechanism == LAPLACE else math.sqrt(share)
    # One step more than needed: a grid makes Gaussian noise worse by 1 / width^2, and the step better by 1 / width.
    return int(math.ceil(terms.noise[release] / part * sensitivity)) + 1  # noqa: RUF046 - compiled, ceil is a float


def make_terms(plan: Plan, clip: Any, row_norm: Any, max_rows: Any, loss_fraction: Any, final: Any) -> Terms:
    """Check the public numbers of the mechanism, and whether it can make the noise of a plan."""
    for name, value in (("clip", clip), ("row_norm", row_norm)):
        positive(name, value)
        if not 1.0 / FAR <= value <= FAR:
            raise ParameterError(f"{name} = {value!r}: expected {1 / FAR:g} to {FAR:g}, scale the features")
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
        if min(widths) < FINEST or max(widths) > LARGEST:
            raise ParameterError(
                f"epsilon={plan.epsilon!r} in {plan.steps} releases with loss_fraction={loss_fraction!r} needs noise "
                f"of {min(widths) / sensitivity:.3g} to {max(widths) / sensitivity:.3g} times the sensitivity: the "
                f"mechanism is made for {FINEST / sensitivity:.1g} to {LARGEST / sensitivity:.1g}"
            )
    return terms
