"""Partial pooling in which no member has to be believed: the honest gain, liars do not, and units do not matter."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import multivariate_normal

import coterie as ct
from coterie.core.arrays import TAIL, data_of
from coterie.core.laplace import Steps, find_mode
from coterie.core.messages import Bounds, Contents
from coterie.engines.arrays import arrays_of, part_of
from coterie.engines.peer import Peer
from coterie.engines.wire import encode
from coterie.errors import MismatchError, ParameterError
from coterie.peers.node.state import pack, restored

UNITS, SHIFTS = np.array([10.0, 100.0, 1.0]), np.array([50.0, 500.0, 0.0])


def population(n=20, loss="squared", rows=8, seed=0):
    """Agents with two slopes and an intercept of their own, in raw units: train and test rows, and true models."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(n), rows)
    true = [1.0, -0.8, 0.5] + rng.normal(size=(n, 3)) * [0.4, 0.2, 0.8]

    def draw(owner):
        X = np.column_stack([rng.normal(size=(owner.size, 2)), np.ones(owner.size)])
        z = np.sum(X * true[owner], axis=1)
        if loss == "squared":
            return X * UNITS + SHIFTS, 15_000.0 + 200.0 * (z + 0.7 * rng.normal(size=z.size)), owner
        return X * UNITS + SHIFTS, np.where(rng.random(z.size) < expit(2 * z), 1.0, -1.0), owner

    return draw(owner), draw(np.repeat(np.arange(n), 50))


def problem_of(X, y, owner, graph, loss="squared"):
    return ct.Problem.separate(ct.AgentData(X, y, agents=owner, members=range(graph.n)), graph, loss=loss)


def errors(theta, X, y, owner, loss="squared"):
    """Of every agent: mean squared error, or how often it is wrong."""
    z = np.sum(X * theta[owner], axis=1)
    each = (z - y) ** 2 if loss == "squared" else (np.where(z >= 0, 1.0, -1.0) != y).astype(float)
    return np.bincount(owner, each) / np.bincount(owner)


def alone(problem):
    method, arrays = ct.gossip.ResilientPooling(), arrays_of(problem)
    return method.posterior(arrays, *method.start(arrays, np.zeros((problem.n, problem.p)))).mean


@ct.method
class Lying(NamedTuple):
    """Some agents send ``times`` their w plus a shift, and ``spread`` times their variances."""

    method: Any
    liars: np.ndarray  # (n,) addresses that lie
    times: float
    shift: np.ndarray  # (p,)
    spread: float

    def greet(self, data, me, edges, outbox):
        self.method.greet(data, me, edges, outbox)
        self._lie(data, outbox, me.theta.shape[0])

    def wake(self, data, me, edges, randomness, outbox):
        self.method.wake(data, me, edges, randomness, outbox)
        self._lie(data, outbox, me.theta.shape[0])

    def _lie(self, data, outbox, p):
        if data.address in self.liars:
            for h in range(outbox.cursor[TAIL]):
                outbox.text[h, :p] = self.times * outbox.text[h, :p] + self.shift
                outbox.text[h, p : 2 * p] *= self.spread


def shifted(size):
    """Every coordinate of w by so many spreads of the labels, about the middle of the rows."""
    move = 200.0 * size * np.array([1.0, -1.0, 1.0]) / UNITS
    move[2] -= SHIFTS[:2] @ move[:2]
    return move


#: times, shift, spread.
GROSS = {
    "times -10": (-10.0, np.zeros(3), 1.0),
    "shift": (1.0, shifted(10.0), 1.0),
    "shift, sure": (1.0, shifted(10.0), 1e-9),
    "far": (1.0, shifted(1e6), 1.0),
    "huge": (1e30, np.full(3, 1e30), 1e20),
}


def lied_to(problem, lie, wakes=40, liars=(1, 6, 11, 16), **options):
    method = Lying(ct.gossip.ResilientPooling(), np.array(liars), *lie)
    return ct.simulate(problem, method, wakes=wakes * problem.n, seed=0, start="zeros", **options)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.plain
def test_an_honest_group_gains(loss):
    (X, y, owner), test = population(loss=loss, rows=5)
    problem = problem_of(X, y, owner, ct.graphs.random_regular(20, 6, seed=0), loss)
    run = ct.simulate(problem, ct.gossip.ResilientPooling(), wakes=20 * 40, seed=0, start="zeros")
    together, apart = errors(run.theta, *test, loss).mean(), errors(alone(problem), *test, loss).mean()
    assert together < 0.9 * apart
    local = errors(problem.local(), *test, loss).mean()
    assert apart < 1.05 * local  # what it calls alone is no straw man
    assert np.all(run.population.noise > 0)


@pytest.mark.slow
@pytest.mark.parametrize("lie", GROSS)
@pytest.mark.plain
def test_gross_lies_leave_the_honest_as_good_as_alone(lie):
    (X, y, owner), test = population()
    problem = problem_of(X, y, owner, ct.graphs.random_regular(20, 6, seed=0))
    honest = ~np.isin(np.arange(20), [1, 6, 11, 16])
    error, apart = errors(lied_to(problem, GROSS[lie]).theta, *test), errors(alone(problem), *test)
    assert error[honest].mean() < 1.02 * apart[honest].mean()
    assert np.all(error[honest] < 1.5 * apart[honest])


@pytest.mark.slow
@pytest.mark.plain
def test_a_population_that_is_told_to_be_wide_leaves_the_honest_as_good_as_alone():
    ratios = []
    for seed in range(2):
        train, (X, y, owner) = population(10, "logistic", seed=seed)
        problem = problem_of(*train, ct.graphs.random_regular(10, 6, seed=seed), "logistic")
        run = lied_to(problem, (1.0, np.zeros(3), 1e40), wakes=30, liars=(1, 6))

        def far_off(theta, X=X, y=y, owner=owner):
            each = (expit(np.sum(X * theta[owner], axis=1)) - (y > 0)) ** 2
            return np.delete(np.bincount(owner, each) / np.bincount(owner), (1, 6)).mean()

        ratios.append(far_off(run.theta) / far_off(alone(problem)))
    assert np.mean(ratios) < 1.02


@pytest.mark.plain
def test_two_of_six_cannot_move_what_is_a_typical_row():
    (X, y, owner), _ = population(n=7, rows=6)
    problem = problem_of(X, y, owner, ct.graphs.complete(7))
    peers = gossip(peers_of(problem), 1)
    for liar in (5, 6):
        peers[0].edge.heard[liar - 1, 6:8] = 1e50
    peers[0].wake(np.zeros(0))
    said = peers[0].edge.heard[:4, 6:8]
    means = np.vstack([said, X[owner == 0, :2].mean(axis=0)])
    assert np.all(peers[0].own.shared[0, 6:8] <= means.max(axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("size", [0.5, 1.0, 2.0, 3.0])
@pytest.mark.plain
def test_the_worst_moderate_lie_costs_at_most_a_third(size):
    (X, y, owner), test = population()
    problem = problem_of(X, y, owner, ct.graphs.random_regular(20, 6, seed=0))
    honest = ~np.isin(np.arange(20), [1, 6, 11, 16])
    error = errors(lied_to(problem, (1.0, shifted(size), 1e-2)).theta, *test)
    assert np.sqrt(error[honest]).mean() < 1.33 * np.sqrt(errors(alone(problem), *test)[honest]).mean()


@pytest.mark.plain
def test_one_liar_of_four_neighbours_does_not_move_the_population():
    (X, y, owner), _ = population(n=5)
    problem = problem_of(X, y, owner, ct.graphs.complete(5))
    lies = [lied_to(problem, (1.0, shifted(size), 0.1), liars=[2]).population.mean for size in (0.0, 3.0)]
    typical = np.append(SHIFTS[:2], 1.0)
    assert np.abs(np.delete(lies[1] - lies[0], 2, axis=0) @ typical).max() < 100.0  # half a spread; the lie is of six


@pytest.mark.slow
@pytest.mark.plain
def test_no_poison_outlives_its_liar():
    (X, y, owner), test = population()
    graph = ct.graphs.ring(20)  # two neighbours: nobody is left out, and every liar is heard
    problem = problem_of(X, y, owner, graph)
    liars = [1, 6, 11, 16]
    without = problem.on(graph=graph.without(liars))
    honest = ~np.isin(np.arange(20), liars)
    run = lied_to(problem, GROSS["huge"], wakes=120, changes=[(20 * 40, without)])
    never = ct.simulate(without, ct.gossip.ResilientPooling(), wakes=20 * 80, seed=0, start="zeros")
    assert errors(run.theta, *test)[honest].mean() < 1.02 * errors(never.theta, *test)[honest].mean()


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.plain
def test_neither_units_nor_origins_matter(loss):
    (X, y, owner), _ = population(n=8, loss=loss, rows=6)
    graph = ct.graphs.complete(8)
    scale, origin = np.array([1e-3, 70.0, 1.0]), np.array([-2.0, 1e3, 0.0])
    a, b = (0.01, -300.0) if loss == "squared" else (1.0, 0.0)
    one, other = (
        ct.simulate(
            problem_of(Z, labels, owner, graph, loss), ct.gossip.ResilientPooling(), wakes=60, seed=0, start="zeros"
        )
        for Z, labels in ((X, y), (X * scale + origin, a * y + b))
    )
    said, again = np.sum(X * one.theta[owner], axis=1), np.sum((X * scale + origin) * other.theta[owner], axis=1)
    assert np.allclose(again, a * said + b, rtol=1e-6, atol=1e-6 * np.abs(a * said + b).max())
    assert np.allclose(other.population.noise, a * a * one.population.noise, rtol=1e-6)


@pytest.mark.plain
def test_awkward_agents_break_nothing():
    """No rows, one, two, fewer than columns; labels all alike; a column that is constant for one agent, or for all."""
    rng = np.random.default_rng(0)
    sizes = [0, 1, 2, 3, 12, 12, 12, 5]
    owner = np.repeat(np.arange(8), sizes)
    X = np.column_stack([rng.normal(50.0, 10.0, (owner.size, 4)), np.full(owner.size, 0.1), np.ones(owner.size)])
    X[owner == 4, 0] = 3.3
    for loss in ("squared", "logistic"):
        y = X[:, 0] + rng.normal(size=owner.size)
        y = y if loss == "squared" else np.where(y > 50.0, 1.0, -1.0)
        y[owner == 5] = 1.0
        for graph in (ct.graphs.complete(8), ct.graphs.ring(8)):
            problem = problem_of(X, y, owner, graph, loss)
            method = ct.gossip.ResilientPooling()
            run = ct.simulate(problem, method, wakes=8 * 15, seed=0, start="zeros")
            assert np.all(np.isfinite(run.theta))
            assert all(np.all(np.isfinite(part)) for part in run.population)
            assert np.abs(X @ run.theta.T).max() < 1e4
    only = problem_of(X[owner == 1], y[owner == 1], owner[owner == 1], ct.graphs.complete(8), "logistic")
    assert np.all(np.isfinite(ct.simulate(only, ct.gossip.ResilientPooling(), wakes=40, seed=0, start="zeros").theta))


def peers_of(problem, method=None):
    method, arrays = method or ct.gossip.ResilientPooling(), arrays_of(problem)
    return [Peer(method, part_of(arrays, i, i + 1), np.zeros(problem.p)) for i in range(problem.n)]


def gossip(peers, times):
    for _ in range(times):
        for peer in peers:
            for message in peer.wake(np.zeros(0)):
                assert peers[message.to].receive(message.data) == []  # nobody answers: a flood costs no work
    return peers


@pytest.mark.plain
def test_what_agents_know_of_their_models():
    (X, y, owner), _ = population(n=8, rows=6)
    mine = owner != 7  # has no rows
    problem = problem_of(X[mine], y[mine], owner[mine], ct.graphs.complete(8))
    peers = gossip(peers_of(problem), 60)
    method, trust = peers[0].method, []
    for peer in peers:
        known = method.posterior(peer.arrays, peer.own, peer.edge)
        assert np.abs(X @ (known.mean[0] - peer.theta)).max() < 0.1 * np.sqrt(known.noise[0])
        assert np.linalg.eigvalsh(known.covariance[0])[0] > 0
        trust.append(known.trust[0])
        assert 0.2 < known.noise[0] / 140.0**2 < 3.0
    assert 0.0 <= min(trust) < max(trust) == 1.0
    assert np.mean(trust) > 0.6
    nobody = method.posterior(peers[7].arrays, peers[7].own, peers[7].edge)
    typical = np.append(SHIFTS[:2], 1.0)
    spread = np.sqrt(typical @ nobody.covariance[0] @ typical)
    assert nobody.trust[0] == 1.0
    assert 60.0 < spread < 400.0  # 160 is true: how much agents differ at a typical row
    fresh = peers_of(problem)[0]
    before = method.posterior(fresh.arrays, fresh.own, fresh.edge)
    assert before.trust[0] == 0.0  # nobody was heard


@pytest.mark.plain
def test_the_neighbour_that_moves_most_is_named():
    (X, y, owner), _ = population(n=4, rows=6)
    peers = gossip(peers_of(problem_of(X, y, owner, ct.graphs.complete(4))), 20)
    me = peers[0]
    calm = me.method.influence(me.arrays, me.own, me.edge)
    text = peers[2].wake(np.zeros(0))[0].text
    text[:3] += shifted(5.0)
    me.receive(encode(2, 0, text))
    moved = me.method.influence(me.arrays, me.own, me.edge)
    assert int(me.arrays.peer[np.argmax(moved)]) == 2
    assert moved.max() > 3 * calm.max()
    assert np.all(calm >= 0)


@pytest.mark.plain
def test_influence_of_other_methods_is_the_pull_of_their_copies():
    problem = ct.Problem.propagation([[0.0], [1.0], [5.0]], ct.graphs.complete(3))
    arrays = arrays_of(problem)
    for method in (ct.CoordinateDescent(), ct.robust.Trimmed("cd"), ct.Learned("cd")):
        own, edge = method.start(arrays, np.array([[1.0], [1.0], [5.0]]))
        inner = edge
        while "copy" not in inner._fields:
            inner = inner.model
        inner.copy[0] = 3.0
        found = method.influence(arrays, own, edge)
        assert found.shape == arrays.peer.shape
        assert found[0] == max(found[:2]) == 0.5 * 2.0
    assert ct.CollaborativeADMM().influence is None
    assert ct.CoordinateDescent().posterior is None
    assert ct.Private("gossip-pooling").influence is None


@pytest.mark.plain
def test_gossip_pooling_tells_its_posterior():
    (X, y, owner), _ = population(n=6, rows=6)
    problem = problem_of((X - SHIFTS) / UNITS, (y - 15_000.0) / 200.0, owner, ct.graphs.complete(6))
    method, arrays = ct.gossip.GossipPooling(), arrays_of(problem)
    assert np.all(method.posterior(arrays, *method.start(arrays, np.zeros((6, 3)))).trust == 0.0)
    peers = peers_of(problem, method)
    for _ in range(40):
        for i, peer in enumerate(peers):
            for ask in peer.wake(np.zeros(1), (i + 1) % 6):
                for answer in peers[ask.to].receive(ask.data):
                    peer.receive(answer.data)
    peer = peers[0]
    known, found = (getattr(method, part)(peer.arrays, peer.own, peer.edge) for part in ("posterior", "population"))
    Z = problem.data.rows_of(0)[0]
    truth = np.linalg.inv(Z.T @ Z / found.noise[0] + np.diag(1 / found.variance[0]))
    assert np.allclose(known.covariance[0], truth, rtol=1e-6, atol=1e-9)
    assert known.trust.tolist() == [1.0]


@pytest.mark.plain
def test_a_state_is_kept_and_edges_come_and_go():
    (X, y, owner), _ = population(n=5, rows=6)
    problem = problem_of(X, y, owner, ct.graphs.complete(5))
    peers = gossip(peers_of(problem), 5)
    arrays = pack("arrays", {name: getattr(peers[0].arrays, name) for name in ("peer", "inverse", "weight", "choice")})
    arrays |= pack("own", peers[0].own) | pack("edge", peers[0].edge)
    again = peers_of(problem)[0]
    again.resume(*restored(again, arrays))
    one, other = (peer.wake(np.zeros(0))[0].text for peer in (peers[0], again))
    assert np.array_equal(one, other)  # what is worked out from rows is worked out again
    fewer = problem.on(graph=problem.graph.without([3]))
    again.renew(part_of(arrays_of(fewer), 0, 1))
    assert 3 not in again.arrays.peer
    assert np.array_equal(again.edge.heard[0, :12], peers[0].edge.heard[0, :12])
    again.renew(part_of(arrays_of(problem), 0, 1))
    at = again.arrays.peer.tolist().index(3)
    assert not again.edge.heard[at].any()  # what it said went with it
    assert np.all(np.isfinite(again.wake(np.zeros(0))[0].text))


@pytest.mark.plain
def test_absurd_messages_change_nothing():
    (X, y, owner), _ = population(n=4, rows=6)
    peer = gossip(peers_of(problem_of(X, y, owner, ct.graphs.ring(4))), 3)[0]
    before = peer.edge.heard.copy()
    good = peer.wake(np.zeros(0))[0].text
    for k, number in ((0, 1e90), (3, -1.0), (9, -1e-3), (12, 0.0), (12, -1.0), (6, -1e80)):
        bad = good.copy()
        bad[k] = number
        assert peer.receive(encode(1, 0, bad)) == []
    peer.receive(encode(2, 0, good))  # from somebody without an edge
    assert np.array_equal(peer.edge.heard[:, :13], before[:, :13])
    terms = Contents(ct.gossip.ResilientPooling().messages, Bounds(3, radius=10.0))
    assert terms.lengths == (13,)
    assert terms.read(0, good, {1}) == ([], True)  # raw models have no public radius
    bad = good.copy()
    bad[3] = -1.0
    assert not terms.read(0, bad, {1})[1]


def test_what_does_not_apply_is_refused_with_advice():
    (X, y, owner), _ = population(n=4)
    graph = ct.graphs.ring(4)
    with pytest.raises(MismatchError, match=r"Hinge.*logistic"):
        ct.simulate(problem_of(X, np.sign(y - 15_000), owner, graph, "hinge"), ct.gossip.ResilientPooling(), wakes=4)
    with pytest.raises(MismatchError, match="all connected graphs are"):
        ct.Learned(ct.gossip.ResilientPooling())
    with pytest.raises(MismatchError, match="trim"):
        ct.robust.Trimmed(ct.gossip.ResilientPooling())
    for options in ({"anchor": 0.0}, {"anchor": True}, {"trim": 0.5}, {"trim": "no"}, {"doubt": 0.7}, {"intercept": 1}):
        with pytest.raises(ParameterError, match=next(iter(options))):
            ct.gossip.ResilientPooling(**options)


def test_evidence_and_mode_are_those_of_the_marginal_distribution():
    """What trust is made of: log N(y; Z w, s2 I + Z V Z'), and the mode by the normal equations, centred."""
    rng = np.random.default_rng(4)
    m, p, noise = 7, 3, 0.6
    X, y = np.column_stack([rng.normal(2.0, 3.0, size=(m, p - 1)), np.ones(m)]), rng.normal(5.0, 2.0, m)
    arrays = arrays_of(problem_of(X, y, np.zeros(m, int), ct.graphs.empty(1)))
    shift, center, root = np.array([2.0, -1.0, 0.0]), rng.normal(size=p), np.array([0.5, 0.0, 2.0])
    theta, room = np.zeros(p), (np.zeros(p * p), np.zeros(4 * p))
    level = find_mode(data_of(arrays, 0), noise, shift, center, root, Steps(1e-2, 1e-14, 1.0), theta, *room)
    Z, V = X - shift, np.diag(root**2)
    marginal = multivariate_normal(Z @ center, noise * np.eye(m) + Z @ V @ Z.T)
    assert level - m / 2 * np.log(2 * np.pi) == pytest.approx(marginal.logpdf(y), rel=1e-10)
    gain = V @ Z.T @ np.linalg.inv(noise * np.eye(m) + Z @ V @ Z.T)
    np.testing.assert_allclose(theta, center + gain @ (y - Z @ center), rtol=1e-9)
