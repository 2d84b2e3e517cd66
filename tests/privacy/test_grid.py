"""Gaussian noise on a grid, against the account of continuous noise."""

import numpy as np
import pytest

from coterie.accounting.plans import make_plan
from coterie.core.private.mechanism import width_of
from coterie.core.private.terms import MIN_WIDTH, make_terms
from coterie.privacy import gdp_delta


def on_a_grid(width, shift, epsilons):
    """delta(epsilon) of discrete Gaussian noise, by its definition, for two sums that are `shift` steps apart."""
    x = np.arange(-13 * width - shift, 13 * width + shift + 1)
    p = np.exp(-(x**2) / (2.0 * width**2))
    p /= p.sum()
    loss = (2.0 * x * shift + shift**2) / (2.0 * width**2)
    return np.array([np.sum(p * np.maximum(0.0, -np.expm1(epsilon - loss))) for epsilon in epsilons])


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.7])
@pytest.mark.parametrize("width", [64, MIN_WIDTH])
def test_one_step_more_pays_for_the_grid(width, noise):
    """The mechanism draws noise one step wider than its plan says: then no delta is above the claim, on any grid."""
    epsilons = np.linspace(0.0, 6.0, 61)
    shift = int((width - 1) / noise)
    claimed = gdp_delta(epsilons, shift / (width - 1))
    assert np.all(on_a_grid(width, shift, epsilons) <= claimed * (1 + 1e-9) + 1e-15)
    if width == 64:
        # Without the extra step it would be: the test can see what it looks for.
        assert np.any(on_a_grid(width, shift, epsilons) > gdp_delta(epsilons, shift / width) * (1 + 1e-9) + 1e-15)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_shares_of_a_release_add_up_to_its_cost(mechanism):
    share = 0.3
    plan = make_plan(1.0, 1e-5, 3, mechanism, None, "decreasing", 0.5)
    terms = make_terms(plan, clip=1.0, row_norm=1.0, max_rows=None, loss_fraction=share, final=None)
    power = 2 if mechanism == "gaussian" else 1
    for release in range(3):
        parts = [(1 << 30) / width_of(terms, release, part, 1 << 30) for part in (share, 1 - share)]
        assert sum(part**power for part in parts) == pytest.approx(terms.noise[release] ** -power, rel=1e-6)
        assert sum(part**power for part in parts) <= terms.noise[release] ** -power
