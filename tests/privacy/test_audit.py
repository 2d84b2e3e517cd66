"""The audit passes the right code, and fails planted bugs: most of them in the library's own code, as compiled."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import coterie as ct
from coterie.core.linear import frozen
from coterie.engines.peer import Outgoing, Peer
from coterie.engines.wire import decode
from coterie.errors import MismatchError, ParameterError
from coterie.privacy import Ledger, Plan, epsilon_of, gdp_delta
from coterie.privacy.auditing import SCENARIOS, Audit, _bound, _guess, _scores, audit, clopper_pearson

GAUSSIAN = ct.Private("cd", epsilon=1.0, delta=1e-5, wakes_per_agent=5)
LAPLACE = ct.Private("cd", epsilon=1.0, delta=1e-5, wakes_per_agent=5, mechanism="laplace")
ONCE = ct.Private("cd", epsilon=1.0, delta=1e-5, wakes_per_agent=1, mechanism="laplace")
PROPAGATION = ct.Private("propagation", epsilon=1.0, delta=1e-5)
P = 64


# Bugs in the library's own peers


def with_noise(method, noise, **terms):
    """The same method with other noise, and a plan that is true of it."""
    claim = method.plan
    epsilon = epsilon_of(noise, claim.delta, mechanism=claim.mechanism, accountant=claim.accountant)
    plan = Plan(claim.mechanism, epsilon * (1 + 1e-9), claim.delta, claim.accountant, noise)
    given = {"noise": frozen(plan.noise), "cost": frozen(plan.cost), "limit": plan.limit, "epsilon": plan.epsilon}
    return method._replace(terms=method.terms._replace(**given, **terms))


def posing(mutant):
    """A peer that runs one method and claims to run another."""

    def agent(method, arrays, theta, ledger):
        if not hasattr(ledger, "true"):
            ledger.true = Ledger(mutant.plan)
        return Peer(mutant, arrays, theta, ledger.true)

    return agent


def without_clipping(method):
    """A clip that nothing reaches, with noise that is as large as before."""
    much = 1e5
    return posing(with_noise(method, method.plan.noise / much, clip=much * method.terms.clip))


def forgetful(method, arrays, theta, ledger):
    """The budget comes back at every restart."""
    return Peer(method, arrays, theta, Ledger(method.plan))


class SameNoise(Peer):
    """The key of the first wake, for ever."""

    key = None

    def wake(self, dice=None):
        self.key = dice if self.key is None else self.key
        return super().wake(self.key)


class CleanState(Peer):
    """What is sent has noise; what the next step starts from has not."""

    def __init__(self, method, arrays, theta, ledger):
        super().__init__(method, arrays, theta, ledger)
        clear = with_noise(method, method.plan.noise / 1e4)
        self.clear = Peer(clear, arrays, theta, Ledger(clear.plan))

    def wake(self, dice=None):
        self._own.theta[:] = self.clear._own.theta
        self.clear.wake(dice)
        return super().wake(dice)

    def receive(self, frame):
        self.clear.receive(frame)
        return super().receive(frame)


class LastInTheClear(Peer):
    """The last release has no noise to speak of."""

    def __init__(self, method, arrays, theta, ledger):
        noise = method.plan.noise.copy()
        noise[-1] /= 1e4
        mutant = with_noise(method, noise)
        if not hasattr(ledger, "true"):
            ledger.true = Ledger(mutant.plan)
        super().__init__(mutant, arrays, theta, ledger.true)


class WarmGreeting(Peer):
    """A greeting with a model that was learned alone."""

    def greet(self):
        values = self.arrays.rows.values
        return [Outgoing(0, 1, 0, values.mean(axis=0))]


def steps_by_data(method, arrays, theta, ledger):
    """The bound on rows is the longest of them."""
    longest = np.linalg.norm(arrays.rows.values, axis=1).max()
    return Peer(method._replace(terms=method.terms._replace(row_norm=float(longest))), arrays, theta, ledger)


# Bugs in an agent of our own, with real numbers for noise


class Reference:
    """Private coordinate descent as CD (6) has it, on one's own."""

    def __init__(self, method, arrays, theta, ledger, seed):
        self.terms, self.arrays, self.ledger = method.terms, arrays, ledger
        self.theta, self.heard = theta.copy(), theta.copy()
        self.rng = np.random.default_rng(seed)
        self.laplace = method.plan.mechanism == "laplace"

    def greet(self):
        return [Outgoing(0, 1, 0, self.theta)]

    def receive(self, frame):
        self.heard = decode(frame)[2]
        return []

    def wake(self, dice=None):
        if self.ledger.exhausted:
            return []
        z = self.terms.noise[self.ledger.debit()]
        X, y = self.arrays.rows.values, self.arrays.labels
        total = self.clipped((X @ self.theta - y)[:, None] * X) + self.noise(2 * self.terms.clip * z, len(self.theta))
        a = self.arrays.loss_weight[0]  # of degree 1
        gradient = a * total / len(y) + self.theta - self.heard
        self.theta = self.theta - gradient / (1.0 + a * self.terms.row_norm**2)
        return [Outgoing(0, 1, 0, self.theta)]

    def norms(self, gradients):
        return np.linalg.norm(gradients, axis=-1, ord=1 if self.laplace else 2)

    def clipped(self, gradients):
        return (gradients * np.minimum(1.0, self.terms.clip / self.norms(gradients))[:, None]).sum(axis=0)

    def noise(self, scale, size):
        return self.rng.laplace(0, scale, size) if self.laplace else self.rng.normal(0, scale, size)


class WrongNorm(Reference):
    def norms(self, gradients):
        return np.linalg.norm(gradients, axis=-1)


class EachCoordinate(Reference):
    def clipped(self, gradients):
        return np.clip(gradients, -self.terms.clip, self.terms.clip).sum(axis=0)


class WholeSum(Reference):
    def clipped(self, gradients):
        total = gradients.sum(axis=0)
        return total * min(1.0, len(gradients) * self.terms.clip / np.linalg.norm(total))


class OneCoordinateInTheClear(Reference):
    def noise(self, scale, size):
        noise = super().noise(scale, size)
        noise[3] = 0.0
        return noise


def numbered(kind):
    """A factory that gives every agent noise of its own."""
    seeds = np.random.SeedSequence(5)
    return lambda *given: kind(*given, seeds.spawn(1)[0])


Z, ZL = GAUSSIAN.plan.noise, LAPLACE.plan.noise
#: Name: what is claimed, what is run, where it must be seen, and how many runs it takes.
MUTANTS = {
    "half the noise": (GAUSSIAN, posing(with_noise(GAUSSIAN, Z / 2)), "restart", None),
    "half the noise, Laplace": (LAPLACE, posing(with_noise(LAPLACE, ZL / 2)), "restart", None),
    "budget reset at restart": (GAUSSIAN, forgetful, "restart", None),
    "budget reset at restart, Laplace": (LAPLACE, forgetful, "restart", None),
    "variance as standard deviation": (GAUSSIAN, posing(with_noise(GAUSSIAN, np.sqrt(Z))), "restart", 128),
    "missing 1/m": (GAUSSIAN, posing(with_noise(GAUSSIAN, Z / P)), "restart", 64),
    "no clipping": (GAUSSIAN, without_clipping(GAUSSIAN), "huge norm", 64),
    "no clipping, Laplace": (LAPLACE, without_clipping(LAPLACE), "huge norm", 64),
    "noise reuse": (GAUSSIAN, SameNoise, "noise reuse", 64),
    "noise reuse, Laplace": (LAPLACE, SameNoise, "noise reuse", 64),
    "clean hidden state": (GAUSSIAN, CleanState, "memory", 128),
    "clean hidden state, Laplace": (LAPLACE, CleanState, "memory", 128),
    "L2 clipping with Laplace noise": (ONCE, numbered(WrongNorm), "dense", None),
    "an L1 clip as long as L2 clipping": (ONCE, posing(with_noise(ONCE, ONCE.plan.noise / 8, clip=8.0)), "dense", None),
    "no noise on the last release": (GAUSSIAN, LastInTheClear, "memory", 64),
    "a greeting with the local model": (GAUSSIAN, WarmGreeting, "restart", 64),
    "steps set by data": (GAUSSIAN, steps_by_data, "step size", 200),
    "clipping of each coordinate": (GAUSSIAN, numbered(EachCoordinate), "dense", 64),
    "clipping of the sum": (GAUSSIAN, numbered(WholeSum), "huge norm", 128),
    "no noise on one coordinate": (GAUSSIAN, numbered(OneCoordinateInTheClear), "restart", 128),
}


#: One of each kind: of noise, of the budget, of clipping, of the dice. `make test-all` plants all.
OFTEN = ("half the noise", "budget reset at restart", "no clipping", "noise reuse")


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("right", "planted"),
    [
        pytest.param([(GAUSSIAN, None)], OFTEN, id="some"),
        pytest.param(
            [(GAUSSIAN, None), (LAPLACE, None), (PROPAGATION, 48)], tuple(MUTANTS), id="all", marks=pytest.mark.slow
        ),
    ],
)
def test_the_right_code_passes_and_every_planted_bug_fails(right, planted):
    wrong = []
    for method, runs in right:
        result = audit(method, features=P, runs=runs)
        assert result.table["scenario"].unique().tolist() == list(SCENARIOS)
        wrong += [] if result.passed else [f"{method!r}: {result!r}"]
    result = audit(GAUSSIAN, features=P, scenarios=["restart"], agent=numbered(Reference))
    wrong += [] if result.passed else [f"reference: {result!r}"]
    for name in planted:
        method, agent, scenario, runs = MUTANTS[name]
        result = audit(method, features=P, runs=runs, scenarios=[scenario], agent=agent)
        print(f"{name}: {result!r}")
        wrong += [f"{name}: {result!r}"] if result.passed else []
    assert not wrong, "\n".join(wrong)


def test_bounds_are_those_of_scipy():
    for successes, trials in ((0, 10), (1, 10), (5, 10), (10, 10), (300, 1000)):
        exact = stats.binomtest(successes, trials).proportion_ci(confidence_level=1 - 2e-4, method="exact")
        assert clopper_pearson(successes, trials, 1e-4) == pytest.approx((exact.low, exact.high), abs=1e-12)
    assert clopper_pearson(0, 0, 0.05) == (0.0, 1.0)
    low, high = clopper_pearson(30, 100, 0.01)
    assert stats.binom.sf(29, 100, low) == pytest.approx(0.01)
    assert stats.binom.cdf(30, 100, high) == pytest.approx(0.01)


def test_a_bound_of_the_leak_is_rarely_wrong_and_not_far_off():
    rng, trials, right, wrong = np.random.default_rng(0), 2000, 0.3, 0.1
    counts = rng.multinomial(trials, [right, wrong, 1 - right - wrong], size=2000)
    for epsilon in (0.0, 0.5):
        true = right - np.exp(epsilon) * wrong
        leaks = np.array([_bound(r, w, trials, 0.05).leak(epsilon) for r, w, _ in counts])
        assert np.mean(leaks > true) <= 0.05
        assert leaks.mean() > true - 0.08
    assert _bound(0, 0, 10, 0.01).leak(0.0) == 0.0
    # one case only: the same guesses, of half as many trials that matter
    assert _bound(300, 100, 2000, 0.05, sides=1).leak(0.5) == pytest.approx(2 * _bound(300, 100, 2000, 0.05).leak(0.5))


def gaussian_leak(mu, seed, claimed):
    """Does an audit of one Gaussian release of this mu see more than is claimed?"""
    rng = np.random.default_rng(seed)
    coins = rng.choice([-1.0, 1.0], size=(256, 64))
    messages = (0.5 * mu * coins + rng.normal(size=coins.shape))[:, None, :]
    scores = _scores(messages, coins, None, 128)
    epsilons = np.linspace(0.0, 1.5, 12)
    for epsilon in epsilons:
        count = _guess(scores, coins, 128, epsilon)
        bound = _bound(count.right, count.wrong, count.trials, 1e-3 / len(epsilons), count.sides)
        if bound.leak(epsilon) > gdp_delta(epsilon, claimed):
            return True
    return False


def test_a_mechanism_exactly_at_its_claim_passes_and_a_worse_one_fails():
    assert not any(gaussian_leak(0.6, seed, claimed=0.6) for seed in range(20))
    assert all(gaussian_leak(0.9, seed, claimed=0.6) for seed in range(20))


def test_guesses_of_one_case_only():
    coins = np.tile([1.0, -1.0], (2000, 1))
    scores = np.where(coins > 0, np.arange(2000)[:, None] % 2, 0.0)  # half of one case give themselves away
    count = _guess(scores, coins, 1000, 2.0)
    assert count == (500, 0, 2000, 1)
    assert 0.35 < _bound(count.right, count.wrong, count.trials, 1e-3, count.sides).leak(2.0) < 0.5


def test_silent_agents_and_messages_of_odd_lengths():
    class Silent:
        def __init__(self, *given):
            pass

        def greet(self):
            return []

        def receive(self, frame):
            return []

        def wake(self, dice):
            return []

    class Chatty(Peer):
        """Tells one of its rows in a long message."""

        def wake(self, dice=None):
            row = self.arrays.rows.values.sum(axis=0)
            return [Outgoing(0, 1, 0, np.concatenate([np.zeros(4), row, [1.0, 2.0]]))]

    result = audit(GAUSSIAN, features=4, runs=4, agent=Silent)
    assert result.passed
    assert result.epsilon_lower == 0.0
    result = audit(GAUSSIAN, features=4, runs=64, scenarios=["restart"], agent=Chatty)
    assert not result.passed
    assert result.epsilon_lower > 2.0


@pytest.mark.slow
def test_what_an_audit_says():
    seen = []
    scenarios = ["dense", "restart"]
    result = audit(GAUSSIAN, features=20, runs=32, scenarios=scenarios, progress=lambda *now: seen.append(now))
    assert isinstance(result, Audit)
    assert seen == [(k, 64) for k in range(1, 65)]
    assert result.table.columns.tolist() == ["scenario", "epsilon", "claimed", "leak", "trials", "tpr", "fpr", "lower"]
    assert result.table["scenario"].unique().tolist() == scenarios
    assert result.table.groupby("scenario")["trials"].first().to_dict() == {"dense": 16 * 16, "restart": 16 * 20}
    np.testing.assert_allclose(result.table["claimed"], result.plan.profile(result.table["epsilon"].to_numpy()))
    assert result.plan == GAUSSIAN.plan
    assert repr(result).startswith(
        "Audit passed: in 576 trials of 2 scenarios (dense, restart), the messages did not tell"
    )
    again = audit(GAUSSIAN, features=20, runs=32, scenarios=scenarios)
    assert again.table.equals(result.table)

    failed = audit(GAUSSIAN, features=20, runs=64, scenarios="huge norm", agent=without_clipping(GAUSSIAN))
    assert not failed.passed
    row = failed.worst
    assert row["leak"] - row["claimed"] == (failed.table["leak"] - failed.table["claimed"]).max()
    assert repr(failed).startswith("Audit FAILED in scenario 'huge norm': the messages tell (TPR 1, FPR 0) more than")
    assert failed.epsilon_lower > 1.0


@pytest.mark.slow
@pytest.mark.plain
def test_private_boosting():
    method = ct.Private("boosting", wakes_per_agent=3)
    result = audit(method, runs=128)
    assert result.passed
    assert result.table["scenario"].unique().tolist() == ["restart", "huge norm"]
    blatant = posing(with_noise(method, method.plan.noise / 100))
    assert not audit(method, runs=128, scenarios=["restart"], agent=blatant).passed


def test_what_is_refused():
    with pytest.raises(MismatchError, match="claims nothing"):
        audit(ct.CoordinateDescent())
    with pytest.raises(MismatchError, match="method inside"):
        audit(ct.Private(ct.Learned("cd")))
    for name, value in (("features", 1), ("features", 2.0), ("runs", 1), ("runs", True), ("error", 0.0), ("seed", -1)):
        with pytest.raises(ParameterError, match=f"{name} = {value!r}"):
            audit(GAUSSIAN, **{name: value})
    with pytest.raises(ParameterError, match="there is no 'walk', but restart"):
        audit(GAUSSIAN, scenarios=["walk"])
    with pytest.raises(ParameterError, match="expected some of"):
        audit(GAUSSIAN, scenarios=[])
