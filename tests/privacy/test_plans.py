"""Plans: how a budget is shared, what is refused, what comes back from a file."""

import copy
import json
import math
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from scipy.optimize import minimize

from coterie.accounting.accountants import ACCOUNTANTS, calibrate, composition_bound, epsilon_of, exponential_mu, gdp_mu
from coterie.accounting.plans import Plan, allocation_weights, make_plan
from coterie.errors import ParameterError

EVERY = [(m, a) for m, names in ACCOUNTANTS.items() for a in names]
# Enough of them for the roots of the bound to be less than the sum; few where each takes long.
STEPS = {"gdp": 6, "bound": 150, "pld": 3}


def plan_of(mechanism, accountant, **more):
    if accountant == "pld":
        pytest.importorskip("dp_accounting")
    return make_plan(0.9, 1e-4, STEPS[accountant], mechanism, accountant, **more)


# Allocations


@pytest.mark.parametrize(("mechanism", "power"), [("laplace", 1), ("exponential", 1), ("gaussian", 2)])
@pytest.mark.parametrize("rate", [0.5, 0.9])
def test_decreasing_noise_minimises_what_reaches_the_end(mechanism, power, rate):
    steps = 7
    worth = rate ** np.arange(steps)[::-1]

    def objective(log_shares):  # sum_t rate^(T-1-t) / c_t^2 with sum_t c_t^power = T
        shares = np.exp(log_shares)
        shares = shares * (steps / (shares**power).sum()) ** (1 / power)
        return (worth / shares**2).sum()

    best = minimize(objective, np.zeros(steps), method="BFGS", options={"gtol": 1e-9})
    found = np.exp(best.x)
    np.testing.assert_allclose(
        allocation_weights(steps, "decreasing", rate, mechanism), found / found.mean(), rtol=1e-4
    )


@pytest.mark.parametrize("mechanism", ACCOUNTANTS)
@pytest.mark.parametrize("allocation", ["equal", "decreasing", "as-printed", [1, 2, 3, 4, 5]])
def test_shares_have_mean_one(mechanism, allocation):
    weights = allocation_weights(5, allocation, 0.7, mechanism)
    assert weights.shape == (5,)
    assert (weights > 0).all()
    assert weights.mean() == pytest.approx(1.0, rel=1e-14)


def test_directions_of_the_allocations():
    decreasing = allocation_weights(6, "decreasing", 0.8, "laplace")
    np.testing.assert_allclose(decreasing[1:] / decreasing[:-1], 0.8 ** (-1 / 3))
    gaussian = allocation_weights(6, "decreasing", 0.8)
    np.testing.assert_allclose(gaussian[1:] / gaussian[:-1], 0.8 ** (-1 / 4))
    np.testing.assert_allclose(allocation_weights(6, "as-printed", 0.8, "laplace"), decreasing[::-1])
    assert allocation_weights(6, "equal", 0.8).tolist() == [1.0] * 6
    assert allocation_weights(6, "decreasing", 1).tolist() == [1.0] * 6
    assert (np.diff(make_plan(1.0, 1e-5, 6, allocation="decreasing").noise) < 0).all()
    assert (np.diff(make_plan(1.0, 1e-5, 6, allocation="as-printed").noise) > 0).all()


def test_shares_of_ones_own_at_any_scale():
    for scale in (1.0, 5e307, 1e-310):  # whose sum is too large, or too small, for a float
        np.testing.assert_allclose(allocation_weights(2, [scale, 3 * scale]), [0.5, 1.5], rtol=1e-12)


def test_allocations_refused():
    with pytest.raises(ParameterError, match=r"allocation = 'up': expected 'equal', 'decreasing' or 'as-printed'"):
        allocation_weights(3, "up")
    with pytest.raises(ParameterError, match=r"allocation has shape \(2,\): .* steps=3"):
        allocation_weights(3, [1.0, 2.0])
    with pytest.raises(ParameterError, match=r"allocation\[1\] = 0.0: expected a positive finite number"):
        allocation_weights(2, [1.0, 0.0])
    with pytest.raises(ParameterError, match=r"allocation = None: expected"):
        allocation_weights(2, None)
    for rate in (0, 1.0001, -0.5, math.nan, "a", True):
        with pytest.raises(ParameterError, match=r"rate = .*: expected a number in \(0, 1\]"):
            allocation_weights(3, rate=rate)
    with pytest.raises(ParameterError, match=r"rate = 1e-09 leaves some of steps=1000"):
        allocation_weights(1000, "decreasing", 1e-9)
    with pytest.raises(ParameterError, match=r"steps = 2.0: expected an integer"):
        allocation_weights(2.0)
    with pytest.raises(ParameterError, match=r"mechanism = 'cauchy': expected"):
        allocation_weights(2, mechanism="cauchy")


# Plans


@pytest.mark.parametrize(("mechanism", "accountant"), EVERY)
@pytest.mark.parametrize("allocation", ["equal", "decreasing"])
def test_a_plan_spends_its_promise_and_no_more(mechanism, accountant, allocation):
    plan = plan_of(mechanism, accountant, allocation=allocation)
    spent = [plan.spent(k) for k in range(plan.steps + 1)]
    assert spent[0] == 0.0
    assert (np.diff(spent) > 0).all()
    assert 0.9 * (1 - 1e-9) <= spent[-1] <= 0.9
    assert spent[2] == epsilon_of(plan.noise[:2], 1e-4, mechanism=mechanism, accountant=accountant)
    assert plan.profile(spent[-1]) == pytest.approx(1e-4, rel=1e-6)
    # A ledger that adds the costs one by one gets to the last release.
    total = 0.0
    for cost in plan.cost:
        total += cost
        assert total <= plan.limit
    if accountant != "pld":
        assert total >= plan.limit * (1 - 1e-9)


def test_costs_and_limits():
    gaussian = Plan("gaussian", 9.0, 1e-5, "gdp", [2.0, 4.0])
    assert gaussian.cost.tolist() == [0.25, 0.0625]
    assert gaussian.limit == gdp_mu(9.0, 1e-5) ** 2
    exponential = Plan("exponential", 9.0, 1e-5, "gdp", [2.0, 4.0])
    assert exponential.cost.tolist() == [exponential_mu(0.5) ** 2, exponential_mu(0.25) ** 2]
    assert exponential.limit == gdp_mu(9.0, 1e-5) ** 2
    laplace = Plan("laplace", 9.0, 1e-5, "bound", [2.0, 4.0])
    assert laplace.cost.tolist() == [0.5, 0.25]
    assert laplace.limit == 0.75


def test_a_plan_is_calibrated_noise():
    noise = calibrate(1.0, 1e-5, 5)
    plan = make_plan(1.0, 1e-5, 5)
    assert plan.noise.tolist() == [noise] * 5
    assert (plan.mechanism, plan.epsilon, plan.delta, plan.accountant, plan.steps) == ("gaussian", 1.0, 1e-5, "gdp", 5)
    free = make_plan(1, 0, 4, "laplace", allocation=[1, 1, 1, 3])
    np.testing.assert_allclose(1 / free.noise, np.array([1, 1, 1, 3]) / 6)


def test_profile_of_one_and_of_many():
    plan = make_plan(1.0, 1e-5, 5)
    many = plan.profile([0.0, 0.5, 1.0])
    assert many.shape == (3,)
    assert plan.profile(0.5) == pytest.approx(many[1], rel=1e-14)
    assert many[2] <= 1e-5


def test_a_claim_that_the_noise_does_not_honour_is_refused():
    noise = calibrate(1.0, 1e-5, 5)
    with pytest.raises(ParameterError, match=r"epsilon = 1.0 is not kept by this noise, which gives epsilon 1\.\d+ at"):
        Plan("gaussian", 1.0, 1e-5, "gdp", [noise] * 6)
    with pytest.raises(ParameterError, match="not kept"):
        Plan("gaussian", 1.0, 1e-5, "gdp", [noise * (1 - 1e-8)] * 5)
    with pytest.raises(ParameterError, match="not kept"):
        Plan("gaussian", 1.0, 0.9e-5, "gdp", [noise] * 5)
    Plan("gaussian", 1.0, 1e-5, "gdp", [noise * (1 - 1e-12)] * 5)  # rounding is no breach
    steps = np.full(5, 0.2)
    with pytest.raises(ParameterError, match="which gives epsilon 1 at"):
        Plan("laplace", composition_bound(steps, 0.0) * 0.99, 0.0, "bound", 1 / steps)


def test_slack_does_not_leave_the_last_release_out():
    noise = calibrate(1.0, 1e-5, 5) * (1 - 1e-10)
    plan = Plan("gaussian", 1.0, 1e-5, "gdp", [noise] * 5)
    assert np.cumsum(plan.cost)[-1] > gdp_mu(1.0, 1e-5) ** 2
    assert np.cumsum(plan.cost)[-1] <= plan.limit


@pytest.mark.parametrize(("mechanism", "accountant"), [pair for pair in EVERY if pair != ("gaussian", "pld")])
def test_a_plan_comes_back_from_json_to_the_bit(mechanism, accountant):
    plan = plan_of(mechanism, accountant, allocation="decreasing")
    back = Plan.of(json.loads(json.dumps(plan.describe())))
    assert back == plan
    assert back.noise.tolist() == plan.noise.tolist()
    assert back.digest == plan.digest
    assert hash(back) == hash(plan)


def test_digest_tells_plans_apart():
    described = make_plan(1.0, 1e-5, 2).describe()
    other = [
        described | {"epsilon": 1.5},
        described | {"delta": 2e-5},
        described | {"mechanism": "exponential"},
        described | {"noise": [described["noise"][0], math.nextafter(described["noise"][1], math.inf)]},
        described | {"noise": described["noise"][:1]},
    ]
    plans = [Plan.of(d) for d in (described, *other)]
    assert len({plan.digest for plan in plans}) == len(plans)
    assert all(plan != plans[0] for plan in plans[1:])
    assert plans[0] != described
    # The canonical form is an interface: ledgers keep it.
    known = Plan("laplace", 1, 0, "bound", [2, 2.5])
    assert known.digest == "391ecf2de64b8d664e1c3b3c62a404451c1267673ddc674790647af78320e33c"
    assert Plan("laplace", 1.0, -0.0, "bound", [2.0, 2.5]).digest == known.digest


def test_a_description_is_checked():
    described = make_plan(1.0, 1e-5, 2).describe()
    for wrong in (None, [], {}, described | {"more": 1}, {k: v for k, v in described.items() if k != "delta"}):
        with pytest.raises(ParameterError, match="expected mechanism, epsilon, delta, accountant, noise, and nothing"):
            Plan.of(wrong)
    with pytest.raises(ParameterError, match="not kept"):
        Plan.of(described | {"epsilon": 0.5})
    with pytest.raises(ParameterError, match=r"accountant = None: expected one of gdp, pld"):
        Plan.of(described | {"accountant": None})


def test_noise_of_a_plan_cannot_be_changed():
    mine = np.full(3, 20.0)
    plan = Plan("gaussian", 1.0, 1e-5, "gdp", mine)
    mine[0] = 0.1
    assert plan.noise.tolist() == [20.0] * 3
    for one in (plan, copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        assert one == plan
        with pytest.raises(ValueError, match="read-only"):
            one.noise[0] = 0.1
    with pytest.raises(FrozenInstanceError):
        plan.epsilon = 2.0


def test_releases_out_of_range():
    plan = make_plan(1.0, 1e-5, 3)
    for releases in (-1, 1.0, True, "1"):
        with pytest.raises(ParameterError, match=r"releases = .*: expected an integer >= 0"):
            plan.spent(releases)
    with pytest.raises(ParameterError, match=r"releases = 4: expected at most the steps of the plan, 3"):
        plan.spent(4)


def test_fields_out_of_range():
    good = {"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-5, "accountant": "gdp", "noise": [20.0]}
    assert Plan(**good).steps == 1
    for field, value in (
        ("mechanism", "cauchy"),
        ("epsilon", 0.0),
        ("epsilon", True),
        ("delta", 0.0),
        ("delta", "x"),
        ("accountant", "bound"),
        ("noise", []),
        ("noise", 20.0),
        ("noise", [[20.0]]),
        ("noise", [20.0, -1.0]),
        ("noise", ["20"]),
    ):
        with pytest.raises(ParameterError, match=f"^{field}"):
            Plan(**good | {field: value})
    with pytest.raises(ParameterError, match=r"epsilon = -1: expected a positive finite number"):
        make_plan(-1, 1e-5, 3)
    with pytest.raises(ParameterError, match=r"accountant='gdp' cannot account for mechanism='laplace'"):
        make_plan(1.0, 1e-5, 3, "laplace", "gdp")


def test_repr_is_one_line():
    assert repr(make_plan(1.0, 1e-5, 5)) == "Plan(gaussian, epsilon=1, delta=1e-05, steps=5, noise 8.34)"
    assert repr(make_plan(0.5, 0.0, 2, "laplace", allocation=[1, 3])) == (
        "Plan(laplace, epsilon=0.5, delta=0, steps=2, noise 2.67 to 8)"
    )
    assert repr(plan_of("laplace", "pld")).startswith("Plan(laplace by pld, epsilon=0.9, delta=0.0001, steps=3, ")


def test_the_exponential_mechanism_takes_the_better_account():
    """Over few steps pure composition is the better one, over many GDP; neither claims more than is true."""
    few, many = (make_plan(1.0, 1e-5, steps, "exponential") for steps in (1, 100))
    assert (few.accountant, many.accountant) == ("bound", "gdp")
    assert few.noise[0] == pytest.approx(1.0)  # one step of eps_t = epsilon
    assert few.cost[0] == pytest.approx(few.limit) == pytest.approx(1.0)
    for plan in (few, many):
        others = [make_plan(1.0, 1e-5, plan.steps, "exponential", name) for name in ACCOUNTANTS["exponential"]]
        assert plan.noise[0] == min(other.noise[0] for other in others)
