"""Private pooling: one release, of which the rest is post-processing, and a posterior that stays at home."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

import coterie as ct
from coterie.core.linear import frozen
from coterie.core.loop import NO_LIMIT
from coterie.core.private.pooling import own_posterior
from coterie.engines.arrays import arrays_of, part_of
from coterie.engines.drivers import Immediate
from coterie.engines.peer import Peer
from coterie.engines.wire import decode, encode
from coterie.errors import MismatchError, ParameterError
from coterie.privacy import Ledger, audit

P = 3
BAD = ct.Conditions(latency=1.5, jitter=1.0, loss=0.3, duplication=0.3)


def private(**options):
    return ct.Private(ct.gossip.GossipPooling(), **{"epsilon": 3.0, "clip": 0.5, **options})


def problem_of(n=12, m=30, seed=0, spread=1.0, graph=None):
    """Classes by models around a common one; rows of norm 1 at most."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(n), m)
    X = rng.normal(size=(n * m, P))
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)
    models = [4.0, -3.0, 0.0] + spread * rng.normal(size=(n, P))
    y = np.where(rng.random(n * m) < expit(np.sum(X * models[owner], axis=1)), 1.0, -1.0)
    graph = ct.graphs.ring(n) if graph is None else graph
    return ct.Problem.personalized(ct.AgentData(X, y, agents=owner, members=range(n)), graph), models


def peer_of(problem, i=0, ledger=None, method=None):
    method = private() if method is None else method
    arrays = part_of(arrays_of(problem), i, i + 1)
    return Peer(method, arrays, np.zeros(P), Ledger(method.plan) if ledger is None else ledger)


def driver_of(problem, method, wakes, seed=0):
    driver = Immediate.of(problem, method, np.zeros((problem.n, P)), seed)
    driver.advance(wakes, NO_LIMIT)
    return driver


@pytest.mark.plain
def test_the_noise_of_a_release_has_the_variance_it_is_said_to_have():
    problem, _ = problem_of(150, 5, spread=0.0)
    driver = driver_of(problem, private(), 150 * 6)
    own, X, y = driver.own, problem.data.X, problem.data.y
    clean = 0.5 * (y[:, None] * X).reshape(150, 5, P).mean(axis=1) / 0.25
    said = own.said[:, 0] > 0
    assert said.sum() > 140
    apart = (own.released - clean)[said]
    assert own.cache.noise[0] == pytest.approx((2 * 0.5 * driver.method.plan.noise[0] / 5 / 0.25) ** 2, rel=1e-5)
    assert np.mean(apart**2) == pytest.approx(own.cache.noise[0], rel=0.2)  # 3 standard errors
    assert (own.account[said, 0] == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("conditions", [None, BAD], ids=["good mail", "bad mail"])
@pytest.mark.plain
def test_everybody_learns_the_population_of_releases(conditions):
    n = 16
    problem, _ = problem_of(n, 30, graph=ct.graphs.random_regular(n, 4, seed=0))
    run = ct.simulate(problem, private(), wakes=120 * n, seed=0, conditions=conditions)
    assert np.ptp(run.population.mean, axis=0).max() < 1e-3
    assert (run.epsilon, run.delta) == (3.0, 1e-5)
    clean = 2.0 * (problem.data.y[:, None] * problem.data.X).reshape(n, 30, P).mean(axis=(0, 1))
    noise = 2 * 0.5 * private().plan.noise[0] / 30 / 0.25 / np.sqrt(n)
    assert np.abs(run.population.mean[0] - clean).max() < 4 * noise


@pytest.mark.plain
def test_with_hardly_any_noise_the_moments_are_those_of_the_releases():
    n = 8
    problem, _ = problem_of(n, 20)
    driver = driver_of(problem, private(epsilon=500.0, delta=0.5), 200 * n)
    found = driver.population
    assert np.allclose(found.mean, driver.own.released.mean(axis=0), atol=1e-6)
    variance = driver.own.released.var(axis=0) - driver.own.cache.noise[0]
    assert np.allclose(found.variance, variance, rtol=1e-4)


@pytest.mark.plain
def test_it_helps_and_models_stay_at_home():
    n = 40
    problem, models = problem_of(n, 12, spread=0.5, graph=ct.graphs.random_regular(40, 4, seed=0))
    run = ct.simulate(problem, private(), wakes=20 * n, seed=0)
    rows = [problem.data.rows_of(i) for i in range(n)]
    alone = np.array([own_posterior(ct.Logistic(), X, y, np.zeros(P), None, 1.0) for X, y in rows])
    angle = lambda theta: np.mean(np.sum(theta * models, axis=1) / np.linalg.norm(theta, axis=1))  # noqa: E731
    assert angle(run.theta) > angle(alone) + 0.1
    assert not np.isclose(run.theta, run.published).any()


@pytest.mark.plain
def test_after_the_release_messages_know_nothing_of_the_rows():
    problem, _ = problem_of()
    dice = np.random.default_rng(0).random((6, private().dice))
    frames = []
    for other in (False, True):
        peer = peer_of(problem)
        said = [post.data for post in peer.wake(dice[0], 1)]
        if other:
            arrays = peer.arrays
            rows = type(arrays.rows)(frozen(-7.0 * arrays.rows.values))
            peer.resume(arrays._replace(rows=rows, labels=frozen(-arrays.labels)), peer.own, peer.edge)
        for k in range(1, 6):
            said += [post.data for post in peer.wake(dice[k], 1 if k % 2 else 11)]
            said += [post.data for post in peer.receive(encode(1, 1, np.linspace(0.1, 1.0, 4 * P + 6)))]
        frames.append(said)
    assert frames[0] == frames[1]
    assert len(frames[0]) == 2 + 5 + 5


@pytest.mark.plain
def test_a_peer_made_anew_says_nothing_new_and_takes_over_what_it_has_said():
    problem, _ = problem_of()
    ledger = Ledger(private().plan)
    first = peer_of(problem, ledger=ledger)
    [release, _] = first.wake()
    again = peer_of(problem, ledger=ledger)
    [ask] = again.wake()
    assert not decode(ask.data)[2].any()  # it does not remember, and must not make another
    again = peer_of(problem, ledger=ledger)
    again.recover()
    [ask] = again.wake()
    assert np.array_equal(again.own.released[0], decode(release.data)[2])
    assert np.array_equal(again.own.shared, first.own.shared)
    assert ledger.releases == 1


def test_nonsense_loses_its_say():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, P))
    y = np.where(rng.random(40) < expit(X @ [2.0, -1.0, 0.0]), 1.0, -1.0)
    alone = own_posterior(ct.Logistic(), X, y, np.zeros(P), None, 2.0)
    for u, spread in (([-50.0, 50.0, 9.0], 1e-3), ([1e99] * 3, 1e150), ([1e3, 0.0, 0.0], 1.0)):
        model = own_posterior(ct.Logistic(), X, y, np.array(u), np.full(P, spread), 2.0)
        assert np.isfinite(model).all()
        assert np.linalg.norm(model - alone) < 0.7 * np.linalg.norm(alone)
    assert np.isfinite(own_posterior(ct.Squared(), 1e200 * X, y, np.ones(P), np.ones(P), 1.0)).all()
    none = own_posterior(ct.Squared(), X[:0], y[:0], np.arange(P), np.ones(P), 1.0)
    assert none.tolist() == (P * np.arange(P)).tolist()  # no rows: features are taken to be of usual size


@pytest.mark.slow
@pytest.mark.plain
def test_the_audit_passes_it_and_fails_those_who_forget():
    method = private(epsilon=1.0, clip=1.0)
    options = {"features": 64, "runs": 128, "scenarios": ["restart"]}
    assert audit(method, **options).passed
    forgetful = lambda method, arrays, theta, ledger: Peer(method, arrays, theta, Ledger(method.plan))  # noqa: E731
    assert not audit(method, agent=forgetful, **options).passed

    class Clear(Peer):
        """Averages what it has in the clear."""

        def wake(self, dice=None, peer=None, moment=0.0):
            posts = super().wake(dice, peer, moment)
            self._own.released[0] = self.arrays.labels @ self.arrays.rows.values / self.arrays.labels.size
            return posts

    assert not audit(method, agent=Clear, features=16, runs=64, scenarios=["memory"]).passed


def test_what_does_not_apply_is_refused():
    with pytest.raises(ParameterError, match="pooling makes one release"):
        private(wakes_per_agent=2)
    with pytest.raises(ParameterError, match="private pooling tells nothing"):
        private(loss_fraction=0.1)
    with pytest.raises(MismatchError, match="all connected graphs are"):
        ct.Learned(private())
    with pytest.raises(MismatchError, match="no models of several neighbours"):
        ct.robust.Trimmed(private())
    problem, _ = problem_of()
    with pytest.raises(MismatchError, match="SmoothHinge"):
        ct.simulate(ct.Problem.personalized(problem.data, problem.graph, loss="smooth-hinge"), private(), wakes=2)
    with pytest.raises(ParameterError, match="start"):
        ct.simulate(problem, private(), wakes=2, start="local")
