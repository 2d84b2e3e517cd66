"""Methods without a server that train, against the formulas of their papers in NumPy, and against their claims."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

import coterie as ct
from coterie.core import loop
from coterie.core.arrays import PERSONAL, SHARED, TIED, pick_rows
from coterie.engines.drivers import Synchronous, seeds
from coterie.errors import MismatchError, ParameterError

N, ROWS, P, RIDGE = 6, 10, 4, 0.05
EDGES = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (2, 4), (3, 4), (4, 5)])


def graph_of(ends):
    return ct.Graph.from_edges(N, ends[:, 0], ends[:, 1], np.linspace(0.2, 2.0, len(ends)))


def graph():
    """Degrees from 1 to 3."""
    return graph_of(EDGES)


class Linear:
    """Logistic regression of agents who differ, by hand; the last coefficient is personal if asked for."""

    def __init__(self, edges=None, personal=False, seed=0):
        edges, rng = graph() if edges is None else edges, np.random.default_rng(seed)
        n = edges.n
        self.X = rng.normal(size=(n, ROWS, P))
        models = rng.normal(size=P) + 0.7 * rng.normal(size=(n, P))
        self.y = np.sign(np.einsum("nmp,np->nm", self.X, models) + 0.3 * rng.normal(size=(n, ROWS)))
        data = ct.AgentData(self.X.reshape(-1, P), self.y.ravel(), agents=np.repeat(np.arange(n), ROWS))
        self.problem = ct.Problem.differentiable(data, edges, "logistic", ridge=RIDGE)
        if personal:
            self.problem.roles = np.array([SHARED, TIED, TIED, PERSONAL], np.int8)
        self.sent = self.problem.roles != PERSONAL
        self.start = rng.normal(size=(n, P))

    def gradient(self, i, theta, pick=slice(None)):
        X, y = self.X[i, pick], self.y[i, pick]
        return -(y / (1.0 + np.exp(y * (X @ theta)))) @ X / len(y) + 2.0 * RIDGE * theta

    def gradients(self, theta):
        return np.array([self.gradient(i, theta[i]) for i in range(len(theta))])

    def best(self):
        """The minimum of the mean loss."""
        X, y = self.X.reshape(-1, P), self.y.ravel()
        theta = np.zeros(P)
        for _ in range(50):  # Newton
            s = 1.0 / (1.0 + np.exp(y * (X @ theta)))
            H = (X * (s * (1 - s))[:, None]).T @ X / len(y) + 2.0 * RIDGE * np.eye(P)
            theta = theta - np.linalg.solve(H, -(y * s) @ X / len(y) + 2.0 * RIDGE * theta)
        return theta


def metropolis(graph):
    """The mixing matrix of the neighbours' numbers."""
    A = graph.W.toarray() > 0
    d = A.sum(axis=1)
    W = A / (1.0 + np.maximum(d[:, None], d))
    return W + np.diag(1.0 - W.sum(axis=1))


def picks(method, n, rounds, seed):
    """The rows of the minibatches of each round, agent and step, from the dice of a run."""
    [fate] = seeds(seed, 1)
    pick = np.empty(method.local.batch, np.int64)
    for _ in range(rounds):
        found = []
        for dice in fate.random((n, method.dice)):
            found.append([])
            for die in dice:
                pick_rows(die, ROWS, pick)
                found[-1].append(pick.copy())
        yield found


pytestmark = pytest.mark.plain


@pytest.mark.parametrize("kind", [ct.gossip.DPSGD, ct.gossip.LocalSGD])
@pytest.mark.parametrize("personal", [False, True], ids=["all", "personal"])
def test_dpsgd_and_local_sgd_are_those_of_their_papers(kind, personal):
    """With minibatches, several steps, and a personal parameter, to rounding."""
    task, W = Linear(personal=personal), metropolis(graph())
    method, rounds = kind(ct.optim.SGD(0.2, steps=3, batch=4)), 12
    run = ct.simulate(task.problem, method, rounds=rounds, seed=5, start=task.start)
    x, sent = task.start.copy(), task.sent
    for pick in picks(method, N, rounds, 5):
        mixed = np.where(sent, W @ x, x)
        trained = (x if kind is ct.gossip.DPSGD else mixed).copy()
        before = trained.copy()
        for i in range(N):
            for rows in pick[i]:
                trained[i] = trained[i] - 0.2 * task.gradient(i, trained[i], rows)
        x = mixed + trained - before
    shown = x if kind is ct.gossip.DPSGD else np.where(sent, W @ x, x)  # Koloskova et al. end a round with the average
    assert_allclose(run.theta, shown, rtol=0, atol=1e-12)


def test_given_weights_are_a_mixing_matrix():
    W = metropolis(graph())
    given = ct.Graph(W - np.diag(np.diag(W)))
    task = Linear(given)
    run = ct.simulate(task.problem, ct.gossip.DPSGD(ct.optim.SGD(0.2), mixing="weights"), rounds=10, start=task.start)
    same = ct.simulate(task.problem, ct.gossip.DPSGD(ct.optim.SGD(0.2)), rounds=10, start=task.start)
    assert_allclose(run.theta, same.theta, rtol=0, atol=1e-12)
    assert run.messages == 2 * len(EDGES) * 11  # and there is nothing else to tell
    assert same.messages == run.messages + 2 * len(EDGES)  # how many neighbours one has, once
    with pytest.raises(MismatchError, match="weights are a mixing matrix: those of agent 4 sum to"):
        ct.simulate(Linear().problem, ct.gossip.DPSGD(mixing="weights"), rounds=1)
    with pytest.raises(ParameterError, match="mixing = 'even': expected 'metropolis' or 'weights'"):
        ct.gossip.DPSGD(mixing="even")
    assert repr(ct.gossip.TiedSGD(mixing="weights")) == f"TiedSGD({ct.optim.SGD()!r}, mixing='weights')"


def test_gradient_tracking_is_diging_on_a_regular_graph():
    """Nedic, Olshevsky and Shi (2017), (2a) and (2b), from y(0) = 0, the gradient before the first."""
    ring = ct.graphs.ring(N)
    task, W = Linear(ring, personal=True), metropolis(ring)
    run = ct.simulate(task.problem, ct.gossip.GradientTracking(ct.optim.SGD(0.2)), rounds=15, start=task.start)
    x, y, g, sent = task.start.copy(), np.zeros((N, P)), np.zeros((N, P)), task.sent
    for _ in range(15):
        x = np.where(sent, W @ x - 0.2 * y, x)
        new = task.gradients(x)
        y, g = W @ y + new - g, new
        x = np.where(sent, x, x - 0.2 * new)
    assert_allclose(run.theta, x, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"rounds": 600},
        {"wakes": 900 * N},
        {"wakes": 1500 * N, "conditions": ct.Conditions(latency=0.7, jitter=1.0, loss=0.2, duplication=0.2)},
    ],
    ids=["rounds", "wakes", "lossy wakes"],
)
def test_gradient_tracking_reaches_the_minimum_where_dpsgd_does_not(how):
    """With one constant rate, on a graph where agents have different numbers of neighbours."""
    task = Linear()
    best = task.best()
    tracked = ct.simulate(task.problem, ct.gossip.GradientTracking(ct.optim.SGD(0.3)), start="zeros", seed=1, **how)
    assert np.abs(tracked.theta - best).max() < 1e-9
    if "rounds" in how:
        plain = ct.simulate(task.problem, ct.gossip.DPSGD(ct.optim.SGD(0.3)), start="zeros", **how)
        assert np.abs(plain.theta - best).max() > 1e-2
        moves = [(7, task.problem.on(graph=ct.graphs.ring(N))), (20, task.problem)]
        again = ct.simulate(task.problem, ct.gossip.GradientTracking(ct.optim.SGD(0.3)), rounds=620, changes=moves)
        assert np.abs(again.theta - best).max() < 1e-9


@pytest.mark.slow
def test_gradient_tracking_reaches_it_on_graphs_that_change_all_the_time():
    """Nedic, Olshevsky and Shi (2017) are about these: here a graph is never connected, and two in turn are."""
    task = Linear()
    halves = [task.problem.on(graph=graph_of(EDGES[part])) for part in (slice(0, None, 2), slice(1, None, 2))]
    moves = [(k, halves[k % 2]) for k in range(1, 1200)]
    run = ct.simulate(
        halves[0], ct.gossip.GradientTracking(ct.optim.SGD(0.1)), rounds=1200, changes=moves, start="zeros"
    )
    assert np.abs(run.theta - task.best()).max() < 1e-8


def test_what_is_tracked_is_never_lost_when_edges_and_rows_come_and_go():
    """The sum of what is tracked is that of the gradients, round after round."""
    task = Linear(seed=3)
    driver = Synchronous.of(task.problem, ct.gossip.GradientTracking(ct.optim.SGD(0.1)), task.start)
    rng = np.random.default_rng(1)
    for t in range(40):
        if t % 4 == 3:
            ends = EDGES[rng.random(len(EDGES)) < 0.6]
            more = task.problem.data.with_rows(rng.normal(size=(1, P)), [1.0], agents=[t % N])
            driver.change(task.problem.on(graph=graph_of(ends), data=more))
        driver.advance(1, loop.NO_LIMIT)
        own = driver.own
        given = (own.kept * own.tracked).sum(axis=0) + own.arrived.sum(axis=0)
        assert_allclose(given, own.slope.sum(axis=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("local", [ct.optim.SGD(steps=2), ct.optim.SGD(momentum=0.5), ct.optim.Adam()])
def test_gradient_tracking_needs_plain_gradients(local):
    with pytest.raises(ParameterError, match="must be one plain step"):
        ct.gossip.GradientTracking(local)


def one_way():
    """Strongly connected, with one to three neighbours to send to."""
    W = np.zeros((N, N))
    for i, j in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3), (0, 4), (2, 0)]:
        W[i, j] = 1.0
    return ct.DirectedGraph(W)


def test_push_sum_is_that_of_the_paper_on_a_directed_graph():
    """Assran et al. (2019), Algorithm 1, with a personal parameter."""
    task = Linear(one_way(), personal=True)
    rounds, rate, sent = 15, 0.1, task.sent
    run = ct.simulate(task.problem, ct.gossip.PushSum(ct.optim.SGD(rate)), rounds=rounds, start=task.start)
    A = one_way().W.toarray().T + np.eye(N)  # A[j, i]: i sends to j
    M = A / A.sum(axis=0)
    x, w, z = task.start.copy(), np.ones(N), task.start.copy()
    for _ in range(rounds):
        step = -rate * task.gradients(z)
        x, w = M @ (x + step), M @ w
        z = np.where(sent, x / w[:, None], z + step)
    assert_allclose(run.theta, z, rtol=0, atol=1e-12)


@pytest.mark.parametrize("edges", [one_way(), ct.graphs.directed_ring(7), ct.graphs.directed_random(8, 3, seed=1)])
def test_push_sum_keeps_the_mass_and_reaches_the_mean(edges):
    task, method = Linear(edges), ct.gossip.PushSum(ct.optim.SGD(1e-14))
    mean = np.tile(task.start.mean(axis=0), (edges.n, 1))
    run = ct.simulate(task.problem, method, wakes=600 * edges.n, seed=2, start=task.start)
    assert_allclose(run.theta, mean, rtol=0, atol=1e-9)
    driver = Synchronous.of(task.problem, method, task.start, 0)
    for _ in range(300):
        driver.advance(1, loop.NO_LIMIT)
        whole = (driver.own.mass + driver.own.arrived).sum(axis=0)
        assert_allclose(whole, [*task.start.sum(axis=0), edges.n], rtol=0, atol=1e-11)
    assert_allclose(driver.theta, mean, rtol=0, atol=1e-9)
    assert driver.account[loop.MESSAGES] == 300 * edges.n_neighbours.sum()  # one way


def test_push_sum_on_exponential_graphs_of_one_neighbour_has_the_mean_after_log_n_rounds():
    """Assran et al. (2019), Appendix A: with 2^k agents, the mean is exact after k rounds."""
    graphs = ct.graphs.one_peer_exponential(8)
    task = Linear(graphs[0])
    still = ct.gossip.PushSum(ct.optim.SGD(1e-14))
    moves = [(k, task.problem.on(graph=graphs[k % len(graphs)])) for k in range(1, 4)]
    run = ct.simulate(task.problem, still, rounds=4, changes=moves, start=task.start)
    assert_allclose(run.theta, np.tile(task.start.mean(axis=0), (8, 1)), rtol=0, atol=1e-12)


def test_push_sum_alone_goes_where_messages_go_one_way_and_says_what_breaks_it():
    task = Linear(one_way())
    for method in (ct.gossip.DPSGD(), ct.gossip.LocalSGD(), ct.gossip.GradientTracking(), ct.gossip.TiedSGD()):
        with pytest.raises(MismatchError, match="mutual"):
            ct.simulate(task.problem, method, rounds=1)
    with pytest.raises(MismatchError, match=r"sum up what it sends, .*lost.*use a method whose messages may be lost"):
        ct.simulate(task.problem, ct.gossip.PushSum(), wakes=10, conditions=ct.Conditions(loss=0.1))


@pytest.mark.slow
def test_shared_parameters_become_one_tied_ones_near_and_personal_ones_stay():
    task = Linear()
    task.problem.roles = np.array([SHARED, SHARED, TIED, PERSONAL], np.int8)
    run = ct.simulate(task.problem, ct.gossip.TiedSGD(ct.optim.SGD(0.02)), rounds=3000, start=task.start)
    apart = np.ptp(run.theta, axis=0)
    alone = task.problem.local()
    assert apart[:2].max() < 0.1  # up to what steps of a constant rate drive apart
    assert 0.1 < apart[2] < 0.8 * np.ptp(alone[:, 2])

    def objective(theta):
        """Q with its shared parameters in one place."""
        full = np.concatenate([np.tile(theta[:2], (N, 1)), theta[2:].reshape(N, 2)], axis=1)
        gradient = task.problem.gradient(full)
        return task.problem.value(full), np.concatenate([gradient[:, :2].sum(axis=0), gradient[:, 2:].ravel()])

    best = minimize(objective, np.zeros(2 + 2 * N), jac=True, options={"gtol": 1e-10}).x
    assert np.abs(run.theta[:, 2:] - best[2:].reshape(N, 2)).max() < 0.1


@pytest.mark.parametrize("kind", [ct.gossip.DPSGD, ct.gossip.LocalSGD, ct.gossip.TiedSGD])
def test_compositions_that_change_nothing_change_nothing(kind):
    """Nobody lies, nothing is trimmed, everything is sent: with a personal parameter, in wakes and in rounds."""
    task, method = Linear(personal=True), kind(ct.optim.SGD(0.1, steps=2, batch=3))
    wrapped = (
        ct.robust.Trimmed(method, 0.0),
        ct.compression.Compressed(method, ct.compression.TopK(1.0)),
        ct.robust.Attacked(method, []),
    )
    for length in ({"rounds": 6}, {"wakes": 30}):
        plain = ct.simulate(task.problem, method, seed=3, start=task.start, **length)
        for other in wrapped:
            run = ct.simulate(task.problem, other, seed=3, start=task.start, **length)
            assert_allclose(run.theta, plain.theta, rtol=0, atol=1e-12)
            assert run.messages == plain.messages


def test_compositions_that_change_something():
    task, method = Linear(), ct.gossip.DPSGD(ct.optim.SGD(0.1, batch=3))
    learned = ct.simulate(task.problem, ct.Learned(method, ct.GraphRule(kappa=2)), wakes=120, seed=0)
    assert learned.graph != task.problem.graph
    lies = ct.simulate(task.problem, ct.robust.Attacked(method, [0]), rounds=20, seed=0)
    honest = ct.simulate(task.problem, method, rounds=20, seed=0)
    assert np.abs(lies.theta - honest.theta)[1:].max() > 0.1  # it is believed, whatever it says of its neighbours
    short = ct.simulate(task.problem, ct.compression.Compressed(method, ct.compression.TopK(1)), rounds=20, seed=0)
    assert short.bytes < honest.bytes
    with pytest.raises(MismatchError, match="personal or shared"):
        ct.simulate(Linear(personal=True).problem, ct.Learned(method), wakes=1)
    with pytest.raises((MismatchError, ParameterError)):
        ct.Private("dpsgd")
    with pytest.raises(MismatchError, match="does more than send its model"):
        ct.compression.Compressed("gradient-tracking", ct.compression.TopK(1))


@pytest.mark.parametrize("name", ["gradient-tracking", "push-sum"])
def test_messages_that_hold_more_than_models_are_not_rewritten(name):
    with pytest.raises(MismatchError, match=r"keeps no copies.*DPSGD"):
        ct.Robust(name, ct.robust.Median())
    with pytest.raises(MismatchError, match=r"sends more than models.*flip_labels"):
        ct.robust.Attacked(name, [0])
    with pytest.raises(
        MismatchError, match=r"sends more than models.*ct\.compression\.Compressed\(ct\.robust\.Attacked"
    ):
        ct.robust.Attacked(
            ct.Robust(ct.compression.Compressed("dpsgd", ct.compression.TopK(1)), ct.robust.Median()), [0]
        )


def test_threads_do_not_share_the_scratch_paper_of_a_model():
    rng = np.random.default_rng(0)
    n = 600
    data = ct.AgentData(rng.normal(size=(4 * n, 3)), rng.integers(0, 2, 4 * n), agents=np.repeat(np.arange(n), 4))
    problem = ct.Problem.differentiable(data, ct.graphs.random_regular(n, 3, seed=0), ct.models.TwoLayer(3, 2, 2))
    method = ct.gossip.DPSGD(ct.optim.SGD(0.1, batch=2))
    runs = [ct.simulate(problem, method, wakes=3 * n, seed=0, n_jobs=jobs) for jobs in (1, 3)]
    assert np.array_equal(runs[0].theta, runs[1].theta)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ct.gossip.DPSGD, ct.gossip.LocalSGD, ct.gossip.PushSum])
def test_the_distance_to_the_minimum_goes_with_the_rate(kind):
    """A constant rate leaves a distance that becomes as small as one likes with it.

    Lian et al. (2017), Theorem 1; Koloskova et al. (2020), Theorem 2; Assran et al. (2019), Theorem 1.
    """
    task = Linear(one_way() if kind is ct.gossip.PushSum else graph())
    best = task.best()
    apart = []
    for rate in (0.2, 0.04):
        run = ct.simulate(task.problem, kind(ct.optim.SGD(rate)), rounds=int(40 / rate), start=np.tile(best, (N, 1)))
        apart.append(np.abs(run.theta - best).max())
    assert apart[0] > 3.0 * apart[1] > 1e-3


@pytest.mark.slow
def test_more_local_steps_need_fewer_messages_where_agents_are_alike():
    """Koloskova et al. (2020): steps between averages save communication."""
    task = Linear(ct.graphs.ring(N))
    task.X[:], task.y[:] = task.X[0], task.y[0]  # everybody has the same rows
    data = ct.AgentData(task.X.reshape(-1, P), task.y.ravel(), agents=np.repeat(np.arange(N), ROWS))
    problem, best = task.problem.on(data=data), task.best()

    def messages(steps):
        method = ct.gossip.LocalSGD(ct.optim.SGD(0.3, steps=steps))
        near = {"until": lambda theta: np.abs(theta - best).max() < 1e-4, "every": 1}
        return ct.simulate(problem, method, rounds=5000, start=task.start, **near).messages

    assert messages(1) > 4 * messages(5) > 0


@pytest.mark.slow
def test_a_common_body_with_tied_heads_beats_one_model_and_everybody_alone():
    """Two groups name classes differently: a body can be common, a head cannot, and few rows do not do for one."""
    rng = np.random.default_rng(0)
    n, rows, classes = 20, 10, 4
    centers = 1.5 * rng.normal(size=(classes, 8))
    group = np.arange(n) % 2

    def draw(count):
        kind = rng.integers(0, classes, (n, count))
        X = centers[kind] + 1.5 * rng.normal(size=(n, count, 8))
        return X, np.where(group[:, None] == 0, kind, (kind + 1) % classes)

    (X, y), test = draw(rows), draw(200)
    data = ct.AgentData(X.reshape(-1, 8), y.ravel(), agents=np.repeat(np.arange(n), rows))
    edges = ct.Graph((group[:, None] == group).astype(float) - np.eye(n) + 1e-3 * (group[:, None] != group))
    model = ct.models.TwoLayer(8, 8, classes)

    def accuracy(problem, method):
        theta = ct.simulate(problem, method, rounds=100, seed=1).theta
        return np.mean([np.mean(model.predict(t, a).argmax(1) == b) for t, a, b in zip(theta, *test, strict=True)])

    local = ct.optim.SGD(0.2, steps=3, batch=5)
    alone = accuracy(ct.Problem.differentiable(data, ct.graphs.empty(n), model), ct.gossip.TiedSGD(local))
    common = accuracy(ct.Problem.differentiable(data, edges, model), ct.gossip.LocalSGD(local))
    split = ct.Problem.differentiable(data, edges, model, shared="body", tied="head", coupling=0.2)
    tied = accuracy(split, ct.gossip.TiedSGD(local))
    assert tied > max(alone, common) + 0.02, (tied, alone, common)


@pytest.mark.parametrize("every", [1, 2])
def test_a_graph_that_changes_again_and_again_keeps_the_mean(every):
    """Both ends of an edge know their numbers of neighbours before they average, also those that stay connected."""
    rng = np.random.default_rng(0)
    graphs = [ct.graphs.erdos_renyi(N, 0.6, seed=int(k)) for k in rng.integers(0, 1000, 12)]
    task = Linear(graphs[0])
    moves = [(every * (k + 1), task.problem.on(graph=each)) for k, each in enumerate(graphs[1:])]
    run = ct.simulate(
        task.problem, ct.gossip.DPSGD(ct.optim.SGD(1e-14)), rounds=14 * every, changes=moves, start=task.start
    )
    assert_allclose(run.theta.mean(axis=0), task.start.mean(axis=0), rtol=0, atol=1e-11)
