"""Partial pooling by gossip: it comes to the maximum of the marginal likelihood, whatever the mail does to messages."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

import coterie as ct
from coterie.core.messages import Bounds, Contents
from coterie.engines.arrays import arrays_of, part_of
from coterie.engines.peer import Peer
from coterie.engines.wire import encode, write_numbers
from coterie.errors import MismatchError, ParameterError
from coterie.peers.wire.gate import Refused, check_message
from coterie.peers.wire.packet import VERSION, Packet

BAD = ct.Conditions(latency=1.5, jitter=1.0, loss=0.3, duplication=0.3, outages=[(0, 5.0, 20.0)])


def rows(n=8, loss="squared", seed=0, least=8):
    """Agents with an intercept and a slope of their own; the last has no rows."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(n - 1), rng.integers(least, 2 * least, n - 1))
    X = np.column_stack([rng.normal(size=owner.size), np.ones(owner.size)])
    models = [1.0, -0.5] + [0.9, 0.6] * rng.normal(size=(n, 2))
    z = np.sum(X * models[owner], axis=1)
    if loss == "squared":
        return X, z + 0.5 * rng.normal(size=z.size), owner
    return X, np.where(rng.random(z.size) < expit(z), 1.0, -1.0), owner


def problem_of(X, y, owner, graph, loss="squared"):
    return ct.Problem.separate(ct.AgentData(X, y, agents=owner, members=range(graph.n)), graph, loss=loss)


def marginal_fit(X, y, owner, p=2):
    """Independent of the method: the Gaussian marginal likelihood of all rows, maximised as a function of numbers."""
    parts = [(X[owner == i], y[owner == i]) for i in np.unique(owner)]

    def cost(t):
        w, v, s2 = t[:p], np.exp(t[p : 2 * p]), np.exp(t[-1])
        total = 0.0
        for Z, labels in parts:
            K, r = (Z * v) @ Z.T + s2 * np.eye(len(Z)), labels - Z @ w
            total += 0.5 * np.linalg.slogdet(K)[1] + 0.5 * r @ np.linalg.solve(K, r)
        return total

    t = minimize(cost, np.zeros(2 * p + 1), method="BFGS", options={"gtol": 1e-7}).x
    w, v, s2 = t[:p], np.exp(t[p : 2 * p]), np.exp(t[-1])
    models = [
        w + v * (Z.T @ np.linalg.solve((Z * v) @ Z.T + s2 * np.eye(len(Z)), labels - Z @ w)) for Z, labels in parts
    ]
    return w, v, s2, np.array(models)


def laplace_fit(X, y, owner, p=2, rounds=400):
    """Laplace's EM for classes, with everything in one place."""
    parts = [(X[owner == i], (y[owner == i] + 1) / 2) for i in np.unique(owner)]
    w, v, models = np.zeros(p), np.ones(p), np.zeros((len(parts), p))
    for _ in range(rounds):
        spread = np.zeros((len(parts), p))
        for i, (Z, labels) in enumerate(parts):
            for _ in range(30):
                q = expit(Z @ models[i])
                A = (Z.T * (q * (1 - q))) @ Z + np.diag(1 / v)
                models[i] -= np.linalg.solve(A, Z.T @ (q - labels) + (models[i] - w) / v)
            spread[i] = np.diag(np.linalg.inv(A))
        w = models.mean(0)
        v = ((models - w) ** 2 + spread).mean(0)
    return w, v, 1.0, models


@pytest.mark.parametrize(
    ("loss", "conditions"),
    [
        pytest.param("squared", BAD, id="bad mail-squared"),
        pytest.param("logistic", None, id="good mail-logistic", marks=pytest.mark.slow),
        pytest.param("squared", None, id="good mail-squared", marks=pytest.mark.slow),
        pytest.param("logistic", BAD, id="bad mail-logistic", marks=pytest.mark.slow),
    ],
)
@pytest.mark.plain
def test_it_reaches_the_fit_of_all_rows_in_one_place(loss, conditions):
    n = 8
    X, y, owner = rows(n, loss, least=8 if loss == "squared" else 25)
    w, v, s2, models = (marginal_fit if loss == "squared" else laplace_fit)(X, y, owner)
    graph = ct.graphs.ring(n)
    wakes = 300 if conditions is None else 500
    run = ct.simulate(
        problem_of(X, y, owner, graph, loss), ct.gossip.GossipPooling(), wakes=wakes * n, seed=1, conditions=conditions
    )
    found = run.population
    assert np.allclose(found.mean, w, atol=1e-4)
    assert np.allclose(found.variance, v, rtol=2e-3)
    assert np.allclose(found.noise, s2, rtol=1e-4)
    assert np.allclose(run.theta[:-1], models, atol=1e-3)
    assert np.allclose(run.theta[-1], w, atol=1e-4)  # without rows: the common model
    if conditions is not None:
        assert run.lost > 100
        assert run.duplicated > 100


@pytest.mark.plain
def test_more_exchanges_come_nearer():
    n = 8
    X, y, owner = rows(n)
    models = marginal_fit(X, y, owner)[-1]
    problem = problem_of(X, y, owner, ct.graphs.ring(n))
    apart = [
        np.abs(ct.simulate(problem, ct.gossip.GossipPooling(), wakes=k * n, seed=0).theta[:-1] - models).max()
        for k in (5, 25, 100)
    ]
    assert apart[0] > 3 * apart[1] > 30 * apart[2]


@pytest.mark.plain
def test_units_do_not_matter():
    n = 8
    X, y, owner = rows(n)
    graph, units = ct.graphs.ring(n), np.array([1e3, 1e-2])
    one = ct.simulate(problem_of(X, y, owner, graph), ct.gossip.GossipPooling(), wakes=60 * n, seed=0)
    other = ct.simulate(problem_of(X * units, 50.0 * y, owner, graph), ct.gossip.GossipPooling(), wakes=60 * n, seed=0)
    assert np.allclose(other.theta * units / 50.0, one.theta, rtol=1e-6, atol=1e-9)
    assert np.allclose(other.population.noise / 2500.0, one.population.noise, rtol=1e-6)


@pytest.mark.plain
def test_weights_of_edges_do_not_matter():
    X, y, owner = rows(6)
    events = np.array([[0, 1], [3, 2], [4, 5], [1, 2], [5, 0]] * 8)
    even, uneven = ct.graphs.ring(6), ct.Graph(ct.graphs.ring(6).W * 7.0)
    one, other = (
        ct.simulate(problem_of(X, y, owner, graph), ct.gossip.GossipPooling(), events=events)
        for graph in (even, uneven)
    )
    assert np.array_equal(one.theta, other.theta)


@pytest.mark.plain
def test_messages_are_counted():
    n, p = 6, 2
    X, y, owner = rows(n)
    run = ct.simulate(problem_of(X, y, owner, ct.graphs.ring(n)), ct.gossip.GossipPooling(), wakes=50, seed=0)
    assert run.messages == 100  # no initial swap; a question and an answer in each wake
    assert run.tally.tolist() == [[50, 50 * (4 * p + 6)]] * 2


def peers_of(problem, damping=0.1):
    arrays = arrays_of(problem)
    method = ct.gossip.GossipPooling(damping)
    return [Peer(method, part_of(arrays, i, i + 1), np.zeros(problem.p)) for i in range(problem.n)]


def averages(peers):
    """Sum of the estimates, and of what was shared: the same, if nothing was lost."""
    flows = sum(peer.edge.flow.sum(axis=0) for peer in peers)
    shared = sum(peer.own.shared[0] for peer in peers)
    return shared - flows, shared


@pytest.mark.plain
def test_no_message_can_take_away_or_add_to_the_sum():
    """Lost answers, messages that come twice, and late: the next exchange along the edge makes it good."""
    X, y, owner = rows(4)
    peers = peers_of(problem_of(X, y, owner, ct.graphs.ring(4)))
    for peer in peers:
        peer.greet()
    die = np.zeros(1)
    [ask] = peers[0].wake(die, 1)
    peers[1].receive(ask.data)  # the answer is lost: one end has half of a flow
    sums = averages(peers)
    assert not np.allclose(*sums, rtol=1e-12, atol=0)
    [ask] = peers[1].wake(die, 0)
    [answer] = peers[0].receive(ask.data)
    for _ in range(3):
        peers[1].receive(answer.data)  # and comes again
    sums = averages(peers)
    assert np.allclose(*sums, rtol=1e-12, atol=1e-12)
    [old] = peers[2].wake(die, 3)
    [answer] = peers[3].receive(old.data)
    peers[2].receive(answer.data)
    peers[3].receive(old.data)  # the question again, when the flow has gone on
    [ask] = peers[2].wake(die, 3)
    [answer] = peers[3].receive(ask.data)
    peers[2].receive(answer.data)
    sums = averages(peers)
    assert np.allclose(*sums, rtol=1e-12, atol=1e-12)


@pytest.mark.plain
def test_who_leaves_takes_its_rows_along():
    n = 6
    X, y, owner = rows(n)
    full = problem_of(X, y, owner, ct.graphs.complete(n))
    fewer = full.on(graph=full.graph.without([1]))
    run = ct.simulate(full, ct.gossip.GossipPooling(), wakes=400 * n, seed=0, changes=[(100 * n, fewer)])
    stay = owner != 1
    w, v, _, _ = marginal_fit(X[stay], y[stay], owner[stay])
    here = np.arange(n) != 1
    assert np.allclose(run.population.mean[here], w, atol=1e-4)
    assert np.allclose(run.population.variance[here], v, rtol=2e-3)


@pytest.mark.plain
def test_absurd_messages_change_nothing():
    X, y, owner = rows(4)
    peer = peers_of(problem_of(X, y, owner, ct.graphs.ring(4)))[0]
    peer.greet()
    before = peer.own.shared.copy(), peer.edge.flow.copy(), peer.theta
    for number in (1e200, -1e150):
        assert peer.receive(encode(1, 0, np.full(14, number))) == []
    assert peer.receive(encode(2, 0, np.ones(14))) == []  # from somebody without an edge
    assert all(map(np.array_equal, before, (peer.own.shared, peer.edge.flow, peer.theta)))


def packet(text):
    return Packet(VERSION, bytes(16), 1, 0, 1, 1, 0, 0, write_numbers(text))


def test_the_gate_looks_at_the_common_model():
    terms = Contents(ct.gossip.GossipPooling().messages, Bounds(2, radius=10.0))
    text = np.zeros(14)
    text[:7], text[7:] = 1e6, [3.0, 4.0, 1e6, 1e6, 500.0, 40.0, 0.5]  # flows and squares may be large
    assert check_message(terms, {1}, packet(text)).tolist() == text.tolist()
    text[7] = 300.0
    with pytest.raises(Refused, match="norm"):
        check_message(terms, {1}, packet(text))
    text[7], text[0] = 3.0, 1e120
    with pytest.raises(Refused, match="range"):
        check_message(terms, {1}, packet(text))


def test_what_does_not_apply_is_refused_with_advice():
    X, y, owner = rows(4)
    graph = ct.graphs.ring(4)
    with pytest.raises(MismatchError, match=r"Hinge.*logistic"):
        ct.simulate(problem_of(X, np.sign(y), owner, graph, "hinge"), ct.gossip.GossipPooling(), wakes=4)
    with pytest.raises(MismatchError, match=r"all connected graphs are.*random_regular"):
        ct.Learned(ct.gossip.GossipPooling())
    with pytest.raises(MismatchError, match=r"no models of several neighbours.*CoordinateDescent"):
        ct.robust.Trimmed(ct.gossip.GossipPooling())
    with pytest.raises(MismatchError, match="minimises no objective"):
        ct.CollaborativeRegressor(method=ct.gossip.GossipPooling()).fit(X, y, agents=owner)
    with pytest.raises(MismatchError, match="synchronous"):
        ct.simulate(problem_of(X, y, owner, graph), ct.gossip.GossipPooling(), rounds=4)
    for damping in (0.0, -1.0, 1.5, "much", True):
        with pytest.raises(ParameterError, match="damping"):
            ct.gossip.GossipPooling(damping)


@pytest.mark.plain
def test_the_methods_that_minimise_have_no_population():
    problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2))
    assert ct.simulate(problem, "cd", wakes=1).population is None
