"""Accountants: closed forms, an independent implementation, and the safe side of every inverse."""

import math
import sys

import numpy as np
import pytest
from scipy.special import expit, ndtr, ndtri

from coterie.accounting import accountants
from coterie.accounting.accountants import calibrate, composition_bound, delta_of, epsilon_of, exponential_mu, gdp_delta
from coterie.errors import MissingExtra, ParameterError

PAPER_DELTA = math.exp(-5.0)


# Gaussian differential privacy


def test_profile_is_the_direct_formula_where_that_is_harmless():
    for mu in (0.3, 0.5, 1.0, 3.0):
        for epsilon in (0.0, 0.2, 1.0, 3.0):
            direct = ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon) * ndtr(-epsilon / mu - mu / 2)
            assert gdp_delta(epsilon, mu) == pytest.approx(direct, rel=1e-10)


@pytest.mark.parametrize(
    ("epsilon", "mu"),
    [
        (1e-9, 1e-9),
        (1e-4, 1e-5),
        (1.0, 0.03),
        (0.0, 1e-300),
        (1e-3, 0.4999999),
        (3.0, 0.5),
        (700.0, 20.0),
        (800.0, 40.0),
        (5000.0, 100.0),
        (5000.0, 90.0),
        (1.0, 10.0),
        (1.0, 9.999),
        (50.0, 1000.0),
        (12.0, 0.35),
        (13.0, 0.35),
    ],
)
def test_profile_keeps_its_digits_at_extreme_values(epsilon, mu):
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(700):  # of a number near 1e-300 that is a difference of numbers near 1
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        exact = mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)
        assert exact > 0
        assert abs(mpmath.mpf(gdp_delta(epsilon, mu)) / exact - 1) < 1e-10


def test_profile_at_the_ends_of_the_range():
    assert gdp_delta(1.0, 1e-300) == 0.0
    assert gdp_delta(1.0, 1e300) == 1.0
    assert gdp_delta(1e300, 1e-300) == 0.0
    assert gdp_delta(0.0, 0.0) == 0.0


def test_profile_of_many_epsilons_is_that_of_each():
    epsilons = np.array([[0.0, 0.5], [2.0, 900.0]])
    for mu in (0.1, 0.7, 45.0):
        together = gdp_delta(epsilons, mu)
        assert together.shape == (2, 2)
        each = [[gdp_delta(float(e), mu) for e in row] for row in epsilons]
        np.testing.assert_allclose(together, each, rtol=1e-14)
    assert isinstance(gdp_delta(1.0, 1.0), float)


def test_profile_falls_with_epsilon_and_grows_with_mu():
    epsilons = np.linspace(0.0, 6.0, 200)
    profiles = np.array([gdp_delta(epsilons, mu) for mu in (0.2, 0.49, 0.51, 1.0, 2.0, 12.0)])
    assert (np.diff(profiles, axis=1) < 0).all()
    assert (np.diff(profiles, axis=0) > 0).all()


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 8.0, 300.0])
@pytest.mark.parametrize("delta", [1e-300, 1e-10, 1e-5, 0.1, 0.9])
def test_mu_is_the_largest_that_gives_the_guarantee(epsilon, delta):
    mu = accountants.gdp_mu(epsilon, delta)
    assert gdp_delta(epsilon, mu) <= delta < gdp_delta(epsilon, mu * (1 + 1e-11))


# The exponential mechanism


def corners(epsilon, count=4001):
    """Power and size of pairs of two outcomes, of log-likelihood ratios t and t - epsilon, t between."""
    t = np.linspace(0.0, epsilon, count + 2)[1:-1]
    q = np.expm1(epsilon - t) / np.expm1(epsilon)  # solves e^t q + e^(t - epsilon) (1 - q) = 1
    return np.exp(t) * q, q


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 4.0, 10.0])
def test_no_pair_of_bounded_range_needs_a_larger_mu(epsilon):
    p, q = corners(epsilon)
    np.testing.assert_allclose(np.log(p / (1 - p)) - np.log(q / (1 - q)), epsilon, rtol=1e-8)
    needed = ndtri(p) - ndtri(q)
    mu = exponential_mu(epsilon)
    assert needed.max() <= mu * (1 + 1e-9)
    assert needed.max() >= mu * (1 - 1e-5)  # and one pair needs all of it


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_profile_of_bounded_range_is_below_that_of_its_mu(epsilon):
    p, q = corners(epsilon, count=301)
    at = np.linspace(0.0, epsilon, 101)[:, None]
    for high, low in ((p, q), (1 - q, 1 - p)):  # both directions of the pair
        sticks = np.maximum(high - np.exp(at) * low, 0.0) + np.maximum((1 - high) - np.exp(at) * (1 - low), 0.0)
        assert (sticks <= gdp_delta(at, exponential_mu(epsilon)) + 1e-15).all()
    assert sticks.max() > 0.5 * gdp_delta(0.0, exponential_mu(epsilon))


def test_the_curve_that_the_proof_needs_falls_away_from_zero():
    x = np.linspace(0.0, 30.0, 3001)  # Phi (1 - Phi) / phi
    curve = ndtr(x) * ndtr(-x) / np.exp(-x * x / 2)
    assert (np.diff(curve) < 0).all()


def test_mu_of_an_exponential_mechanism():
    for epsilon in (0.3, 1.0, 7.99, 8.0, 8.01, 30.0):
        assert exponential_mu(epsilon) == pytest.approx(2 * ndtri(expit(epsilon / 2)), rel=1e-9)
    assert exponential_mu(1e-12) == pytest.approx(1e-12 * math.sqrt(2 * math.pi) / 4, rel=1e-9)
    assert 50.0 < exponential_mu(2000.0) < math.sqrt(4 * 2000.0)
    assert exponential_mu([1.0, 9.0]).tolist() == [exponential_mu(1.0), exponential_mu(9.0)]


def test_exponential_steps_compose_like_vectors():
    mu = math.hypot(exponential_mu(0.5), exponential_mu(0.25))
    epsilon = epsilon_of([2.0, 4.0], 1e-4, mechanism="exponential")
    assert gdp_delta(epsilon, mu) == pytest.approx(1e-4, rel=1e-9)
    assert delta_of(0.7, [2.0, 4.0], mechanism="exponential") == pytest.approx(gdp_delta(0.7, mu), rel=1e-12)


# Laplace


def test_numbers_of_the_notes():
    for steps, step in ((20, 0.07498), (100, 0.03353)):
        noise = calibrate(1.0, PAPER_DELTA, steps=steps, mechanism="laplace")
        assert 1.0 / noise == pytest.approx(step, abs=5e-6)


def test_each_of_the_three_terms_can_be_the_smallest():
    assert composition_bound([0.5], 1e-9) == 0.5
    large, small = np.full(1000, 0.01), np.full(1000, 0.1)
    for steps, delta, root in (
        (large, 1e-3, lambda s2, d: math.log(math.e + math.sqrt(s2) / d)),
        (small, 1e-3, lambda s2, d: math.log(1 / d)),
    ):
        s2, a = (steps**2).sum(), (steps * np.tanh(steps / 2)).sum()
        assert composition_bound(steps, delta) == pytest.approx(a + math.sqrt(2 * s2 * root(s2, delta)), rel=1e-12)


def test_equal_steps_are_a_special_case_and_the_order_does_not_matter():
    assert composition_bound([0.1] * 30, 1e-4) == epsilon_of(10.0, 1e-4, steps=30, mechanism="laplace")
    assert composition_bound(0.3, 1e-4) == composition_bound([0.3], 1e-4)
    steps = np.geomspace(0.01, 0.3, 40)
    assert composition_bound(steps, 1e-4) == composition_bound(steps[::-1], 1e-4)


def test_bound_lies_between_the_numerical_account_and_the_sum():
    pytest.importorskip("dp_accounting")
    for noise in (np.full(3, 2.0), np.full(40, 15.0), np.geomspace(8.0, 30.0, 6)):
        for delta in (1e-6, 1e-2):
            bound = composition_bound(1 / noise, delta)
            assert bound >= epsilon_of(noise, delta, mechanism="laplace", accountant="pld") - 1e-3
            assert bound <= (1 / noise).sum() * (1 + 1e-15)


def test_one_laplace_step():
    assert epsilon_of(4.0, 0.0, mechanism="laplace") == 0.25
    assert calibrate(0.25, 0.0, mechanism="laplace") == pytest.approx(4.0, rel=1e-11)
    assert delta_of(0.25, 4.0, mechanism="laplace") == 0.0


def test_numerical_profile_of_one_laplace_step_is_the_closed_form():
    pytest.importorskip("dp_accounting")
    at = np.array([0.45, 0.0, 0.3, 0.5, 0.7, 800.0])  # in no order
    exact = np.maximum(-np.expm1((at - 0.5) / 2), 0.0)
    found = delta_of(at, 2.0, mechanism="laplace", accountant="pld")
    np.testing.assert_allclose(found, exact, atol=1e-7)
    assert (found >= exact - 1e-14).all()
    assert delta_of(0.3, 2.0, mechanism="laplace", accountant="pld") == found[2]


def test_bound_profile_is_the_inverse_of_the_bound():
    noise = np.geomspace(12.0, 40.0, 50)
    least = (np.tanh(0.5 / noise) / noise).sum()
    for delta in (1e-12, 1e-5, 0.03, 0.4):
        epsilon = epsilon_of(noise, delta, mechanism="laplace")
        assert delta_of(epsilon, noise, mechanism="laplace") == pytest.approx(delta, rel=1e-9)
    total = composition_bound(1 / noise, 0.0)
    assert delta_of([0.5 * least, total, 9.0], noise, mechanism="laplace").tolist() == [1.0, 0.0, 0.0]
    assert delta_of(0.999 * total, noise, mechanism="laplace") > 0.0


# Against an independent implementation


@pytest.mark.parametrize(("steps", "noise"), [(1, 2.0), (5, 8.32), (100, 40.0)])
def test_gaussian_account_agrees_with_dp_accounting(steps, noise):
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    composed = pld.from_gaussian_mechanism(noise).self_compose(steps)
    for delta in (1e-8, 1e-5, 1e-2):
        assert epsilon_of(noise, delta, steps=steps) == pytest.approx(composed.get_epsilon_for_delta(delta), abs=1e-3)
    other = composed.get_epsilon_for_delta(1e-5)
    assert epsilon_of(noise, 1e-5, steps=steps, accountant="pld") == pytest.approx(other, abs=1e-6)


@pytest.mark.parametrize("delta", [1e-8, PAPER_DELTA])
def test_laplace_account_is_that_of_dp_accounting(delta):
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    made = [pld.from_laplace_mechanism(b) for b in (5.0, 9.0, 9.0)]
    other = made[0].compose(made[1]).compose(made[2]).get_epsilon_for_delta(delta)
    assert epsilon_of([9.0, 5.0, 9.0], delta, mechanism="laplace", accountant="pld") == pytest.approx(other, abs=1e-9)


def test_numerical_account_needs_less_noise_than_the_bound():
    pytest.importorskip("dp_accounting")
    bound = calibrate(1.0, PAPER_DELTA, steps=20, mechanism="laplace")
    numerical = calibrate(1.0, PAPER_DELTA, steps=20, mechanism="laplace", accountant="pld")
    assert 1.2 < bound / numerical < 1.9


# Inverses

EVERY = [(m, a) for m, names in accountants.ACCOUNTANTS.items() for a in names]
CLOSED = [(m, a) for m, a in EVERY if a != "pld"]


@pytest.mark.parametrize(("mechanism", "accountant"), CLOSED)
@pytest.mark.parametrize("steps", [1, 7, 400])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 12.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.2])
def test_calibration_is_tight_and_safe(mechanism, accountant, steps, epsilon, delta):
    for weights in (None, np.linspace(0.5, 1.5, steps)):
        noise = calibrate(epsilon, delta, steps, mechanism, accountant, weights)
        found = epsilon_of(noise, delta, steps, mechanism, accountant)
        assert epsilon * (1 - 1e-9) <= found <= epsilon
        if weights is not None:
            np.testing.assert_allclose(noise * weights, (noise * weights)[0], rtol=1e-14)
            assert noise.shape == (steps,)
        else:
            assert isinstance(noise, float)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "weights"), [("gaussian", None), ("laplace", None), ("laplace", [1.0, 2.0, 2.0, 3.0])]
)
def test_numerical_calibration_is_tight_and_safe(mechanism, weights):
    pytest.importorskip("dp_accounting")
    noise = calibrate(0.8, 1e-2, 4, mechanism, "pld", weights)
    assert 0.8 * (1 - 1e-9) <= epsilon_of(noise, 1e-2, 4, mechanism, "pld") <= 0.8


@pytest.mark.slow
def test_numerical_calibration_is_safe_where_its_rounding_shows():
    pytest.importorskip("dp_accounting")
    for epsilon, delta in ((0.2, 1e-10), (0.7962143411069947, 1e-12), (2.0, 1e-10)):
        noise = calibrate(epsilon, delta, 40, "laplace", "pld")
        assert epsilon * (1 - 1e-5) <= epsilon_of(noise, delta, 40, "laplace", "pld") <= epsilon


@pytest.mark.parametrize(("mechanism", "accountant"), EVERY)
def test_more_noise_fewer_steps_or_more_delta_cost_less(mechanism, accountant):
    if accountant == "pld":
        pytest.importorskip("dp_accounting")

    def epsilon(noise=16.0, delta=1e-5, steps=99):
        return epsilon_of(noise, delta, steps, mechanism, accountant)

    assert epsilon(noise=16.1) < epsilon()
    assert epsilon(steps=98) < epsilon()
    assert epsilon(delta=2e-5) < epsilon()
    profile = delta_of(np.linspace(0.3, 2.5, 9), 16.0, 99, mechanism, accountant)
    assert (np.diff(profile) < 0).all()
    assert delta_of(epsilon(), 16.0, 99, mechanism, accountant) == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize("delta", [1e-200, 1e-9, 1e-3, 0.3])
def test_epsilon_is_the_smallest_and_its_guarantee_holds(delta):
    for noise in np.geomspace(0.05, 1.0, 40):
        epsilon = epsilon_of(float(noise), delta)
        assert gdp_delta(epsilon, 1 / noise) <= delta < gdp_delta(epsilon * (1 - 1e-11), 1 / noise)


def test_costs_added_up_in_any_way_stay_in_the_budget():
    for epsilon in np.geomspace(0.05, 5.0, 40):
        noise = calibrate(epsilon, 1e-5, 60, weights=np.linspace(1.0, 2.0, 60))
        for order in (noise, noise[::-1], np.sort(noise)):
            assert np.cumsum(1 / order**2)[-1] <= accountants.gdp_mu(epsilon, 1e-5) ** 2


def test_gaussian_is_exact_for_one_step_of_the_whole_budget():
    assert epsilon_of([4.0, 4.0, 4.0, 4.0], 1e-5) == pytest.approx(epsilon_of(2.0, 1e-5), rel=1e-12)
    assert delta_of(1.0, 2.0) == gdp_delta(1.0, 0.5)


def test_delta_may_be_enough_by_itself():
    assert epsilon_of(100.0, 0.5) == 0.0
    assert epsilon_of(100.0, 0.5, mechanism="exponential") == 0.0
    edge = gdp_delta(0.0, 0.01)
    assert epsilon_of(100.0, edge) == 0.0
    assert epsilon_of(100.0, edge * (1 - 1e-6)) > 0.0


def test_next_to_no_noise_promises_nothing():
    for mechanism in ("gaussian", "laplace"):
        for noise in (1e-309, 1e-308):  # infinite each, or in sum
            assert epsilon_of(noise, 1e-5, 3, mechanism) == math.inf
            assert delta_of(1.0, noise, 3, mechanism) == 1.0
    assert epsilon_of(1e-200, 1e-5, 2, "laplace") == 2e200


# Errors


BAD = (math.nan, "1", None, True)
SHARES, EMPTY = (-1e-9, [1.0, math.inf], [True], [[1.0], [1.0, 2.0]], *BAD), ([[1.0]], np.zeros(0))
PART, FROM_ZERO = (-0.1, 1.0, 2, [0.5], *BAD), "expected a nonnegative finite number"
#: What is said, of which values, given to which functions.
REFUSED = [
    ("epsilon = .*: expected", (0, -1.0, math.inf, 10**400, [1.0], *BAD), lambda x: calibrate(x, 1e-5)),
    ("epsilon = .*: expected", (0, -1.0, math.inf, 10**400, [1.0], *BAD), lambda x: accountants.gdp_mu(x, 1e-5)),
    (rf"epsilon(\[1\])? = .*: {FROM_ZERO}", SHARES, lambda x: delta_of(x, 1.0)),
    (rf"epsilon(\[1\])? = .*: {FROM_ZERO}", SHARES, lambda x: gdp_delta(x, 1.0)),
    ("epsilon.* = .*: expected a positive finite number", SHARES, exponential_mu),
    (r"delta = .*: expected a number in \(0, 1\)", PART, lambda x: epsilon_of(1.0, x)),
    (r"delta = .*: expected a number in \(0, 1\)", PART, lambda x: calibrate(1.0, x)),
    (r"delta = .*: expected a number in \(0, 1\)", (0, *PART), lambda x: accountants.gdp_mu(1.0, x)),
    (r"delta = .*: expected a number in \[0, 1\)", PART, lambda x: composition_bound(1.0, x)),
    (r"delta = .*: expected a number in \[0, 1\)", PART, lambda x: epsilon_of(1.0, x, mechanism="laplace")),
    ("delta = 0: expected .*Gaussian noise cannot give delta 0.*laplace", (0,), lambda x: calibrate(1.0, x)),
    ("delta = 0: expected .*accountant='bound'", (0,), lambda x: epsilon_of(1.0, x, 1, "laplace", "pld")),
    ("delta = 0: expected .*accountant='bound'", (0,), lambda x: epsilon_of(1.0, x, 1, "exponential")),
    ("noise = .*: expected a positive finite number", (0.0, -1.0, math.inf, *BAD), lambda x: epsilon_of(x, 1e-5)),
    ("noise = .*: expected a positive finite number", (0.0, -1.0, math.inf, *BAD), lambda x: delta_of(1.0, x)),
    ("noise", (0.0, -1.0, math.inf, *BAD), lambda x: epsilon_of([1.0, x], 1e-5)),
    (r"noise\[2\] = -3.0: expected", ([1.0, 2.0, -3.0],), lambda x: epsilon_of(x, 1e-5)),
    ("noise has shape", EMPTY, lambda x: epsilon_of(x, 1e-5)),
    ("epsilons has shape", EMPTY, lambda x: composition_bound(x, 1e-5)),
    (r"epsilons\[1\] = 0.0: expected", ([1.0, 0.0],), lambda x: composition_bound(x, 1e-5)),
    (r"weights\[0\] = 0.0: expected", ([0.0, 1.0],), lambda x: calibrate(1.0, 1e-5, 2, weights=x)),
    ("weights has shape .* steps=3", ([1.0, 2.0], 1.0, [[1.0] * 3]), lambda x: calibrate(1.0, 1e-5, 3, weights=x)),
    ("steps = .*: expected an integer >= 1", (0, -1, 2.0, *BAD), lambda x: epsilon_of(1.0, 1e-5, x)),
    ("steps = .*: expected an integer >= 1", (0, -1, 2.0, *BAD), lambda x: calibrate(1.0, 1e-5, x)),
    ("steps = 3: expected the length of noise, 2", (3,), lambda x: epsilon_of([1.0, 2.0], 1e-5, steps=x)),
    (f"mu = .*: {FROM_ZERO}", (-1.0, math.inf, *BAD), lambda x: gdp_delta(1.0, x)),
    (
        "mechanism = .*: expected 'gaussian', 'laplace' or 'exponential'",
        ("cauchy", None, ["gaussian"]),
        lambda x: epsilon_of(1.0, 1e-5, mechanism=x),
    ),
    (
        "accountant = .*: expected 'bound', 'gdp' or 'pld'",
        ("rdp", 3, ["gdp"]),
        lambda x: calibrate(1.0, 1e-5, accountant=x),
    ),
    (
        "accountant='(bound|gdp|pld)' cannot account for",
        (("gaussian", "bound"), ("laplace", "gdp"), ("exponential", "pld")),
        lambda x: delta_of(1.0, 1.0, 1, *x),
    ),
]


@pytest.mark.parametrize(("message", "values", "call"), REFUSED)
def test_what_is_out_of_range_is_named(message, values, call):
    for value in values:
        with pytest.raises(ParameterError, match=message):
            call(value)


def test_delta_too_small_for_the_numerical_account(monkeypatch):
    with pytest.raises(ParameterError, match=r"delta = 1e-13 is lost .*accountant='gdp'"):
        calibrate(1.0, 1e-13, accountant="pld")
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    lost = pytest.importorskip("dp_accounting.pld.common").DifferentialPrivacyParameters(1.0, 1e-11)
    made = pld.from_laplace_mechanism(2.0)
    monkeypatch.setattr(accountants, "_pld", lambda noise, mechanism: made.compose(pld.from_privacy_parameters(lost)))
    with pytest.raises(ParameterError, match=r"delta = 1e-12 is lost .* over 2 steps"):
        calibrate(1.0, 1e-12, 2, mechanism="laplace", accountant="pld")


def test_what_may_be_left_out():
    assert [accountants.accountant_of(m) for m in accountants.ACCOUNTANTS] == ["gdp", "bound", "gdp"]
    assert epsilon_of([1.0, 2.0], 1e-5, steps=2) == epsilon_of([1.0, 2.0], 1e-5)


def test_numerical_account_without_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    with pytest.raises(MissingExtra, match=r"pip install 'coterie\[privacy\]'"):
        epsilon_of(1.0, 1e-5, accountant="pld")
    assert epsilon_of(1.0, 1e-5) > 0.0
