"""Methods with a server: against their papers' algorithms in NumPy, their accounts, and what they survive."""

from __future__ import annotations

import itertools

import federated
import numpy as np
import pytest
from numpy.testing import assert_allclose

import coterie as ct
from coterie.core.arrays import AUTHOR, TAIL, Message, data_of, new_outbox, row, rows
from coterie.core.methods import server
from coterie.engines.arrays import arrays_of
from coterie.engines.wire import messages_size

SIZES = (7, 3, 12, 5, 9)
LOCAL = ct.optim.SGD(0.3, steps=3, batch=4)
METHODS = {
    federated.fedavg: [
        ct.federated.FedAvg(LOCAL, clients=3),
        ct.federated.FedAvg(LOCAL, by_rows=False),
        ct.federated.FedProx(LOCAL, clients=2, mu=0.7),
        ct.federated.FedPer(LOCAL, clients=3),
    ],
    federated.fedrep: [ct.federated.FedRep(LOCAL, clients=3, body_steps=2)],
    federated.scaffold: [ct.federated.SCAFFOLD(LOCAL, clients=3, server_rate=0.8)],
    federated.ditto: [ct.federated.Ditto(LOCAL, clients=3, pull=0.6)],
    federated.pfedme: [ct.federated.PFedMe(LOCAL, clients=3, pull=2.0, rate=0.2, mixing=0.9, repeats=2)],
    federated.apfl: [
        ct.federated.APFL(LOCAL, clients=3, alpha=0.4),
        ct.federated.APFL(LOCAL, alpha=0.4, alpha_rate=0.5, by_rows=True),
    ],
    federated.ifca: [
        ct.federated.IFCA(LOCAL, clients=3, clusters=3, spread=0.5),
        ct.federated.IFCA(LOCAL, by_rows=True, spread=0.5),
    ],
}
CASES = [
    pytest.param(reference, method, id=f"{type(method).__name__}-{k}")
    for reference, methods in METHODS.items()
    for k, method in enumerate(methods)
]
ALL = [method for methods in METHODS.values() for method in methods]


NETWORK = ct.models.TwoLayer(4, 3, 3)


def clients(labels, p=4, seed=0):
    """Rows of five clients of different sizes, each with a model of its own."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    X = rng.normal(size=(owner.size, p))
    score = np.sum(X * rng.normal(size=(len(SIZES), p))[owner], axis=1)
    return ct.AgentData(X, labels(score), agents=owner)


def signs(score):
    return np.where(score > 0, 1.0, -1.0)


def classes(score):
    return np.digitize(score, [-0.7, 0.7])


def linear(model="logistic"):
    return ct.Problem.federated(clients(signs), model, ridge=0.05)


def small_network(model=NETWORK):
    return ct.Problem.federated(clients(classes), model, ridge=0.05, personal="head")


def kinds(method):
    """Problems that a method takes, with loss and gradient of their model."""
    yield small_network(), federated.network(3, 3)
    if not isinstance(method, ct.federated.FedPer | ct.federated.FedRep):
        yield linear(), (federated.logistic_loss, federated.logistic_gradient)


def start_of(problem, seed=1):
    return np.random.default_rng(seed).normal(size=(problem.n, problem.p))


# -- the algorithms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reference", "method"), CASES)
@pytest.mark.every_case
@pytest.mark.plain
def test_each_method_is_the_algorithm_of_its_paper(reference, method):
    for problem, (loss, gradient) in kinds(method):
        start = start_of(problem)
        run = ct.simulate(problem, method, rounds=6, seed=3, start=start)
        expected = reference(federated.Federation(problem, method, loss, gradient, 6, 3, start))
        assert_allclose(run.theta, expected, rtol=0, atol=1e-9)
        assert np.abs(run.theta - start).max() > 0.1


@pytest.mark.plain
def test_one_step_of_all_is_gradient_descent_on_the_mean_loss():
    problem = linear()
    X, y, theta = problem.data.X, problem.data.y, np.zeros(4)
    for _ in range(10):
        theta = theta - 0.5 * (federated.logistic_gradient(theta, X, y) + 2 * 0.05 * theta)
    run = ct.simulate(problem, ct.federated.FedAvg(ct.optim.SGD(0.5)), rounds=10, start="zeros")
    assert_allclose(run.theta, np.tile(theta, (6, 1)), rtol=0, atol=1e-12)


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ALL)
@pytest.mark.every_case
@pytest.mark.plain
def test_messages_are_what_a_round_costs(method):
    """Down to the cohort and up from it, and nobody else hears a thing."""
    problem = small_network()
    q = int((problem.roles != 0).sum())
    down, up = {"SCAFFOLD": (2 * q, 2 * q + 1), "IFCA": (getattr(method, "clusters", 0) * q, q + 2)}.get(
        type(method).__name__, (q, q + 1)
    )
    cohort, rounds = method.clients or 5, 4
    run = ct.simulate(problem, method, rounds=rounds, seed=0)
    assert run.tally[0].tolist() == [rounds * cohort, rounds * cohort * up]
    assert run.tally[1].tolist() == [(rounds + 1) * cohort, (rounds + 1) * cohort * down]
    assert run.bytes == messages_size(run.messages, int(run.tally[:, 1].sum()))


@pytest.mark.plain
def test_personal_parameters_never_leave_their_client():
    problem = small_network()
    own = problem.roles == 0
    start = np.tile(problem.model.initial(), (problem.n, 1))
    other = start.copy()
    other[2, own] += 1.0  # a client begins with another head: all that others know of it is the body
    one, two = (
        ct.simulate(problem, ct.federated.FedPer(ct.optim.SGD(0.1)), rounds=1, start=begin).theta
        for begin in (start, other)
    )
    assert np.array_equal(np.delete(one, 2, 0)[:, own], np.delete(two, 2, 0)[:, own])
    assert np.ptp(one[:, ~own], axis=0).max() == 0.0
    assert np.array_equal(one[0, own], start[0, own])


class Place:
    """One agent of a problem, to hand messages to."""

    def __init__(self, problem, method, agent):
        self.method, self.arrays = method, arrays_of(problem, batch=method.batch)
        self.own, self.edge = method.start(self.arrays, np.zeros((problem.n, problem.p)))
        self.outbox = new_outbox(method, self.arrays, problem.p, 50)
        self.outbox.cursor[AUTHOR] = agent
        edges = slice(self.arrays.edge_start[agent], self.arrays.edge_start[agent + 1])
        self.data, self.me = data_of(self.arrays, agent), row(self.own, agent)
        self.edges = rows(self.edge, edges.start, edges.stop)

    def greet(self):
        self.method.greet(self.data, self.me, self.edges, self.outbox)

    def give(self, slot, kind, text):
        message = Message(slot + 1, slot, kind, np.asarray(text, float))
        self.method.receive(self.data, self.me, self.edges, message, self.outbox)

    @property
    def asked(self):
        """Who was written to since the last look."""
        count = self.outbox.cursor[TAIL]
        self.outbox.cursor[TAIL] = 0
        return self.outbox.to[:count].tolist()


def test_bad_answers_do_not_spoil_the_average():
    place = Place(linear(), ct.federated.FedAvg(), 0)
    place.greet()
    assert place.asked == [-2]  # everyone
    good = [[1.0, 2.0, 3.0, 4.0, 1.0], [3.0, 2.0, 1.0, 0.0, 3.0]]
    place.give(-1, server.UP, [9.0] * 4 + [1.0])  # from nobody
    place.give(0, server.UP, good[0])
    place.give(0, server.UP, [9.0] * 5)  # a second time
    place.give(1, server.UP, [np.nan, 1.0, 1.0, 1.0, 1.0])
    place.give(2, server.UP, [1.0, 1.0, 1.0, 1.0, np.inf])
    place.give(3, server.UP, [1.0, 1.0, 1.0])  # of a wrong length
    place.give(3, server.DOWN, [1.0] * 4)  # not for a server
    assert place.asked == []
    place.give(4, server.UP, good[1])
    assert place.asked == [-2]
    assert place.me.theta.tolist() == [2.5, 2.0, 1.5, 1.0]


def test_a_client_trains_only_when_the_server_has_asked():
    place = Place(linear(), ct.federated.FedAvg(), 2)
    for kind, slot, text in ((1, -1, [1.0] * 4), (1, 0, [1.0] * 3), (1, 0, [np.nan] * 4), (0, 0, [1.0] * 5)):
        place.give(slot, kind, text)
        assert place.me.round.asked[0] == 0.0
        assert not place.me.theta.any()
    place.give(0, server.DOWN, [1.0, 2.0, 3.0, 4.0])
    assert place.me.round.asked[0] == 1.0
    assert place.me.theta.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_all_cohorts_are_alike():
    """Exactly: over a grid of dice, each set of two of five clients is asked equally often."""
    place = Place(linear(), ct.federated.FedAvg(clients=2), 0)
    grid, count = (np.arange(20) + 0.5) / 20, {}
    for dice in itertools.product(grid, grid):
        place.me.round.dice[:] = dice
        server.close(place.method, place.data, place.me, place.edges, place.outbox)
        cohort = frozenset(place.asked)
        count[cohort] = count.get(cohort, 0) + 1
    assert set(count) == {frozenset(pair) for pair in itertools.combinations(range(1, 6), 2)}
    assert set(count.values()) == {40}


@pytest.mark.slow
@pytest.mark.parametrize("method", ALL)
@pytest.mark.every_case
@pytest.mark.plain
def test_nothing_waits_for_ever(method):
    """By wakes, with messages that are late, lost or doubled: every client is asked again and again, and learns."""
    problem = small_network()
    late = ct.Conditions(latency=1.5, loss=0.3, duplication=0.2)
    run = ct.simulate(problem, method, wakes=1500, seed=0, conditions=late, every=500)
    messages = run.trace.vectors.diff().dropna()
    assert (messages > 0.5 * messages.max()).all()
    assert run.trace.value.iloc[-1] < 0.9 * run.trace.value.iloc[0]
    assert np.isfinite(run.theta).all()


@pytest.mark.plain
def test_wakes_in_turn_are_rounds():
    """Where clients wake one after the other, once each, the last answer ends the round."""
    problem, method = linear(), ct.federated.FedAvg(ct.optim.SGD(0.3, steps=3))
    by_wakes = ct.simulate(problem, method, events=np.tile(np.arange(6), 4), start="zeros")
    by_rounds = ct.simulate(problem, method, rounds=4, start="zeros")
    assert_allclose(by_wakes.theta, by_rounds.theta, rtol=0, atol=1e-14)
    assert by_wakes.bytes == by_rounds.bytes


@pytest.mark.plain
def test_clients_leave_and_join():
    """Who leaves is waited for once; who joins is asked at once. The optimum is that of those who are there."""
    problem = linear(ct.Squared())
    without = problem.on(graph=problem.graph.without([2]))
    run = ct.simulate(
        problem, ct.federated.FedAvg(ct.optim.SGD(0.2)), rounds=400, start="zeros", changes=[(3, without)]
    )
    back = ct.simulate(
        without, ct.federated.FedAvg(ct.optim.SGD(0.2)), rounds=400, start="zeros", changes=[(3, problem)]
    )
    there = problem.data.owner != 2
    for theta, kept in ((run.theta[0], there), (back.theta[0], there | True)):
        X, y = problem.data.X[kept], problem.data.y[kept]
        assert_allclose(theta, np.linalg.solve(X.T @ X / len(y) + 0.1 * np.eye(4), X.T @ y / len(y)), atol=1e-9)
    # Three rounds of five, one that four answer, one in which the server notices, and then rounds of four.
    assert run.messages == 5 + 3 * 10 + 4 + 4 + 395 * 8


@pytest.mark.plain
def test_a_client_without_rows_counts_for_nothing():
    data = clients(signs)
    empty = ct.AgentData(data.X, data.y, agents=data.owner, members=range(6))
    method = ct.federated.FedAvg(ct.optim.SGD(0.3, steps=3), by_rows=False)
    run, less = (
        ct.simulate(ct.Problem.federated(d, "logistic"), method, rounds=3, start="zeros") for d in (empty, data)
    )
    assert_allclose(run.theta[0], less.theta[0], rtol=0, atol=1e-15)
    assert np.array_equal(run.theta[6], run.theta[0])


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_federated_problem_has_a_server_in_front():
    data = clients(signs)
    problem = ct.Problem.federated(data, "logistic")
    assert problem.members == ("server", 0, 1, 2, 3, 4)
    assert problem.graph == ct.graphs.star(6)
    assert np.array_equal(problem.data.X, data.X)
    assert set(problem.roles) == {1}
    theta = np.ones((6, 4))
    assert problem.value(theta) == pytest.approx(
        sum(m / 12 * federated.logistic_loss(theta[0], *data.rows_of(k)) for k, m in enumerate(SIZES)), rel=1e-12
    )
    with pytest.raises(ct.errors.DataError, match="an agent 'server' already"):
        ct.Problem.federated(problem.data, "logistic")
    assert ct.graphs.star(5, center=3).n_neighbours.tolist() == [1, 1, 1, 4, 1]
    with pytest.raises(ct.errors.ParameterError, match="center=5 must be the number of an agent"):
        ct.graphs.star(5, center=5)


@pytest.mark.plain
def test_any_agent_may_be_the_server():
    problem, method = linear(), ct.federated.FedAvg(ct.optim.SGD(0.3, steps=3))
    order = [3, 1, 2, 0, 4, 5]
    run, moved = (ct.simulate(p, method, rounds=3, start="zeros").theta for p in (problem, problem.relabel(order)))
    assert_allclose(moved, run[order], rtol=0, atol=1e-14)


@pytest.mark.parametrize("method", ALL)
def test_a_graph_without_a_server_is_refused(method):
    data = clients(classes)
    model = NETWORK
    ring = ct.Problem.differentiable(data, ct.graphs.ring(5), model, personal="head")
    with pytest.raises(ct.errors.MismatchError, match=r"needs one server.*Problem\.federated"):
        ct.simulate(ring, method, rounds=1)
    busy = ct.Problem.differentiable(data, ct.graphs.star(5), model, personal="head")
    with pytest.raises(ct.errors.MismatchError, match="needs a server without rows in the middle, and agent 0 has 7"):
        ct.simulate(busy, method, rounds=1)


def test_problems_that_do_not_fit_are_refused():
    with pytest.raises(ct.errors.MismatchError, match="nothing is personal"):
        ct.simulate(linear(), ct.federated.FedPer(), rounds=1)
    alone = ct.Problem.federated(clients(classes), NETWORK, personal=("head", "body"))
    with pytest.raises(ct.errors.MismatchError, match="nothing to send"):
        ct.simulate(alone, ct.federated.FedRep(), rounds=1)
    with pytest.raises(ct.errors.MismatchError, match=r"clients=6.*has only 5 clients"):
        ct.simulate(linear(), ct.federated.FedAvg(clients=6), rounds=1)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: ct.federated.FedAvg(clients=-1), "FedAvg: clients"),
        (lambda: ct.federated.FedAvg(0.1), "local=0.1 must be an optimiser"),
        (lambda: ct.federated.FedAvg(by_rows="yes"), "by_rows = 'yes': expected True or False"),
        (lambda: ct.federated.FedProx(mu=-1.0), "FedProx: mu"),
        (
            lambda: ct.federated.FedRep(ct.optim.SGD(steps=2), body_steps=3),
            "body_steps=3 must be at most local.steps=2",
        ),
        (lambda: ct.federated.SCAFFOLD(ct.optim.Adam()), "SCAFFOLD: local=Adam.* has a memory"),
        (lambda: ct.federated.APFL(ct.optim.SGD(momentum=0.5)), "APFL: local=SGD.* has a memory"),
        (lambda: ct.federated.APFL(alpha=1.5), "APFL: alpha"),
        (lambda: ct.federated.PFedMe(pull=0.0), "PFedMe: pull"),
        (lambda: ct.federated.IFCA(clusters=0), "IFCA: clusters"),
    ],
)
def test_bad_parameters_are_refused(make, what):
    with pytest.raises(ct.errors.ParameterError, match=what):
        make()


def test_none_is_all_clients():
    assert ct.federated.FedAvg(clients=None) == ct.federated.FedAvg()


def test_an_average_without_a_server_shows_what_fedavg_shows():
    """Of clients alike, on a complete graph: the same models after every round, not before their average."""
    rng = np.random.default_rng(0)
    data = ct.AgentData(rng.normal(size=(24, 3)), rng.choice([-1.0, 1.0], 24), agents=np.arange(24) % 4)
    local, start = ct.optim.SGD(0.5, steps=3), np.zeros((5, 3))
    served = ct.simulate(
        ct.Problem.federated(data, "logistic"), ct.federated.FedAvg(local, by_rows=False), rounds=5, start=start
    )
    alone = ct.Problem.differentiable(data, ct.graphs.complete(4), "logistic")
    run = ct.simulate(alone, ct.gossip.LocalSGD(local), rounds=5, start=start[1:])
    np.testing.assert_allclose(run.theta, served.theta[1:], rtol=0, atol=1e-14)
    pushed = ct.simulate(alone, ct.gossip.PushSum(local), rounds=5, start=start[1:])
    np.testing.assert_allclose(pushed.theta, run.theta, rtol=0, atol=1e-14)


@pytest.mark.parametrize("rate", [1e300, 1e120])
def test_steps_that_are_far_too_long_are_said(rate):
    rng = np.random.default_rng(0)
    data = ct.AgentData(rng.normal(size=(24, 3)), rng.normal(size=24), agents=np.arange(24) % 4)
    problem = ct.Problem.federated(data, "squared")
    with pytest.raises(ct.errors.ConvergenceError, match="has diverged"):
        ct.simulate(problem, ct.federated.FedAvg(ct.optim.SGD(rate, steps=5)), rounds=5)


@pytest.mark.parametrize("method", ALL, ids=lambda method: type(method).__name__)
def test_what_goes_around_neighbours_says_that_there_is_a_server(method):
    for wrap, why in (
        (lambda method: ct.Robust(method, ct.robust.Median()), "adds up answers as they come.*LocalSGD"),
        (ct.robust.Trimmed, "adds up answers as they come.*LocalSGD"),
        (lambda method: ct.compression.Compressed(method, ct.compression.TopK(1)), "differ by kind.*LocalSGD"),
        (lambda method: ct.robust.Attacked(method, [1]), r"differ by kind.*flip_labels.*graphs\.complete\(n\)"),
    ):
        with pytest.raises(ct.errors.MismatchError, match=f"has a server.*{why}"):
            wrap(method)
