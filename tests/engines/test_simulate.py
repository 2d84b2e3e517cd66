"""simulate: coordinate descent replayed by hand, exact accounts, clocks, bad outbox, and what is refused.

The replay is CD (5) of math.md, written with dictionaries of copies; the references are those of Problem.solve, which
tests/unit/test_problem.py checks on its own.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from scipy import sparse, stats

import coterie as ct
from coterie.core import loop
from coterie.engines.wire import letter_size
from coterie.errors import CapacityError, MismatchError, ParameterError

CD = ct.CoordinateDescent()

# (objective, loss, kind of rows): few, because each pair of a loss and a kind of rows is compiled once.
COMBINATIONS = [
    ("propagation", None, "dense"),
    ("collaborative", ct.Squared(), "dense"),
    ("separate", ct.Squared(), "sparse"),
    ("personalized", ct.Logistic(), "dense"),
    ("collaborative", ct.Logistic(), "sparse"),
    ("personalized", ct.SmoothHinge(0.5), "dense"),
    ("separate", ct.Huber(0.4), "dense"),
    ("separate", ct.Location(ct.Huber(0.4)), "dense"),
    ("collaborative", ct.Location(ct.Squared()), "dense"),
]
combinations = pytest.mark.parametrize("which", range(len(COMBINATIONS)), ids=[str(c) for c in COMBINATIONS])
N, P = 6, 3


def weights():
    """A ring of five agents with chords of various weights, and agent 5 alone."""
    W = np.zeros((N, N))
    for i, j, w in [(0, 1, 1.0), (1, 2, 0.3), (2, 3, 2.0), (3, 4, 0.7), (4, 0, 1.5), (0, 2, 0.1)]:
        W[i, j] = W[j, i] = w
    return W


@functools.cache
def example(which):
    """A problem with an agent without rows (3) and one without ties (5), and what the replay needs to know."""
    objective, loss, kind = COMBINATIONS[which]
    rng = np.random.default_rng(which)
    W, mu = weights(), 0.6
    D, c = W.sum(axis=1), rng.uniform(0.3, 1.0, N)
    if objective == "propagation":
        models, alpha = rng.normal(size=(N, P)), 0.6
        problem = ct.Problem.propagation(models, ct.Graph(W), alpha=alpha, confidence=c)
        return problem, Replay(W, 0.5, (1 - alpha) / alpha * c * D, [models[[i]] for i in range(N)], None, None, 0.0)
    sizes = [5, 1, 4, 0, 9, 6]
    X = [np.where(rng.random((m, P)) < 0.7, rng.normal(size=(m, P)), 0.0) for m in sizes]
    y = [x @ rng.normal(size=P) + rng.normal(size=len(x)) for x in X]
    ridge = np.array([0.1, 0.2, 0.05, 0.0, 0.1, 0.3])
    if isinstance(loss, ct.Logistic | ct.SmoothHinge):
        y = [np.where(z > 0, 1.0, -1.0) for z in y]
    rows = np.vstack(X)
    data = ct.AgentData(
        sparse.csr_array(rows) if kind == "sparse" else rows,
        None if isinstance(loss, ct.Location) else np.concatenate(y),
        agents=np.repeat(np.arange(N), sizes),
        members=range(N),
    )
    options = {
        "collaborative": {"mu": mu},
        "personalized": {"mu": mu, "confidence": c},
        "separate": {},
    }[objective]
    problem = getattr(ct.Problem, objective)(data, ct.Graph(W), loss=loss, ridge=ridge, **options)
    a = {"collaborative": mu * D, "personalized": mu * D * c, "separate": np.ones(N)}[objective]
    s = 1.0 if objective == "collaborative" else 0.5
    return problem, Replay(W, s, a, X, y, loss, ridge, objective != "collaborative")


class Replay:
    """CD (5) in terms of (s, a_i, f_i): a step 1 / L_i along block i of the gradient, then a broadcast."""

    def __init__(self, W, s, a, X, y, loss, ridge, mean=True):
        self.W, self.s, self.a, self.X, self.y, self.loss = W, s, a, X, y, loss
        self.ridge = np.zeros(len(W)) + ridge
        self.each = [1 / max(1, len(x)) if mean else 1.0 for x in X]
        self.L = [self.smoothness(i) for i in range(len(W))]

    def smoothness(self, i):
        X, most = self.X[i], {ct.Logistic: 0.25}.get(type(self.loss), 1.0)
        if isinstance(self.loss, ct.SmoothHinge):
            most = 1 / self.loss.gamma
        if self.loss is None or isinstance(self.loss, ct.Location):  # the features are unit vectors
            top = float(len(X))
        else:
            top = np.linalg.eigvalsh(X.T @ X)[-1]
        return most * top * self.each[i] + 2 * self.ridge[i]

    def slope(self, i, t):
        """The gradient of f_i."""
        X, loss, out = self.X[i], self.loss, 2 * self.ridge[i] * t
        for k, x in enumerate(X):
            if loss is None or loss == ct.Location(ct.Squared()):
                pull = t - x
            elif isinstance(loss, ct.Location):
                pull = np.clip(t - x, -loss.loss.delta, loss.loss.delta)
            else:
                z, y = float(x @ t), self.y[i][k]
                match loss:
                    case ct.Squared():
                        pull = (z - y) * x
                    case ct.Logistic():
                        pull = -y / (1 + math.exp(y * z)) * x
                    case ct.SmoothHinge():
                        pull = -y * min(1.0, max(0.0, 1 - y * z) / loss.gamma) * x
                    case ct.Huber():
                        pull = max(-loss.delta, min(loss.delta, z - y)) * x
            out = out + self.each[i] * pull
        return out

    def run(self, start, events):
        n = len(self.W)
        neighbours = [np.flatnonzero(self.W[i]) for i in range(n)]
        theta = {i: np.array(start[i], dtype=float) for i in range(n)}
        copies = {i: {j: theta[j].copy() for j in neighbours[i]} for i in range(n)}  # the initial swap
        vectors = sum(len(peers) for peers in neighbours)
        for i in events:
            D = self.W[i].sum()
            if D:
                mix = sum(self.W[i, j] / D * copies[i][j] for j in neighbours[i])
                loss_weight = self.a[i] / (2 * self.s * D)  # mu c_i of the paper for s = 1/2
                a = 1 / (1 + loss_weight * self.L[i])
                theta[i] = (1 - a) * theta[i] + a * (mix - loss_weight * self.slope(i, theta[i]))
            elif self.L[i]:  # nobody to agree with: gradient descent on its own loss
                theta[i] = theta[i] - self.slope(i, theta[i]) / self.L[i]
            for j in neighbours[i]:
                copies[j][i] = theta[i].copy()
                vectors += 1
        return np.array([theta[i] for i in range(n)]), vectors


def assert_converged(problem, theta):
    """Objective within 1e-8, relative; models within 1e-6 where they are determined."""
    best = problem.solve()
    value = problem.value(best)
    assert problem.value(theta) - value <= 1e-8 * abs(value)
    assert np.abs(theta - best)[problem.determined].max() <= 1e-6


@functools.cache
def propagation(n=12, degree=4, seed=0, alpha=0.5):
    """Of the quickest kind: given models on a random graph without isolated agents."""
    rng = np.random.default_rng(seed)
    W = np.zeros((n, n))
    for i in range(n):
        for j in [(i + 1) % n, *rng.choice(n, degree // 2 - 1, replace=False)]:
            if i != j:
                W[i, j] = W[j, i] = rng.uniform(0.5, 1.5)
    return ct.Problem.propagation(rng.normal(size=(n, 2)), ct.Graph(W), alpha=alpha)


# ---------------------------------------------------------------- what it computes


@combinations
def test_replay(which):
    problem, replay = example(which)
    rng = np.random.default_rng(100 + which)
    start, events = rng.normal(size=(N, P)), rng.integers(0, N, 300)
    for count in (0, 1, 7, 300):
        run = ct.simulate(problem, CD, events=events[:count], start=start)
        expected, vectors = replay.run(start, events[:count])
        np.testing.assert_allclose(run.theta, expected, rtol=0, atol=1e-9)
        assert run.wakes == count
        assert run.vectors == run.letters == vectors
        assert run.bytes == vectors * letter_size(P)
        assert run.value == pytest.approx(problem.value(expected), rel=1e-9)


@pytest.mark.slow
@pytest.mark.compiled
@combinations
def test_converges_to_the_exact_minimiser(which):
    problem, _ = example(which)
    for start in ("local", "zeros", np.full((N, P), 3.0)):
        run = ct.simulate(problem, CD, wakes=30_000, seed=which, start=start)
        assert_converged(problem, run.theta)
        assert run.value == problem.value(run.theta)


@combinations
def test_the_optimum_is_a_fixed_point(which):
    problem, _ = example(which)
    best = problem.solve()
    run = ct.simulate(problem, CD, wakes=60, start=best)
    np.testing.assert_allclose(run.theta, best, rtol=0, atol=1e-7)


def test_an_isolated_agent_keeps_its_local_model():
    problem, _ = example(3)
    run = ct.simulate(problem, CD, wakes=500)
    np.testing.assert_allclose(run.theta[5], problem.local()[5], rtol=0, atol=1e-8)


def test_by_name():
    problem = propagation()
    by_name, by_value = (ct.simulate(problem, m, wakes=50) for m in ("cd", CD))
    np.testing.assert_array_equal(by_name.theta, by_value.theta)


def test_the_objective_never_rises_without_faults():
    """Letters arrive at once, so every wake is an exact block step of length 1 / L_i."""
    problem, _ = example(3)
    values = ct.simulate(problem, CD, wakes=300, start="zeros", every=1).trace["value"].to_numpy()
    assert len(values) == 301
    assert (np.diff(values) <= 1e-12 * values[0]).all()
    assert values[-1] < 0.9 * values[0]


# ---------------------------------------------------------------- start


def test_forms_of_start():
    problem, _ = example(1)
    given = np.arange(float(N * P)).reshape(N, P)
    for start, expected in [("local", problem.local()), ("zeros", np.zeros((N, P))), (given, given)]:
        run = ct.simulate(problem, CD, wakes=0, start=start)
        np.testing.assert_array_equal(run.theta, expected)
    np.testing.assert_array_equal(ct.simulate(problem, CD, wakes=0).theta, problem.local())
    np.testing.assert_array_equal(ct.simulate(problem, CD, wakes=0, start=given.tolist()).theta, given)


def test_the_given_start_is_left_alone():
    problem = propagation()
    start = np.ones((12, 2))
    ct.simulate(problem, CD, wakes=100, start=start)
    np.testing.assert_array_equal(start, 1.0)


# ---------------------------------------------------------------- the trace and the seed


@pytest.mark.parametrize(
    "conditions", [None, ct.Conditions(latency=0.5, loss=0.1, duplication=0.2)], ids=["calm", "bad"]
)
def test_watching_changes_nothing(conditions):
    problem = propagation()
    plain = ct.simulate(problem, CD, wakes=137, seed=5, conditions=conditions)
    for every in (1, 10, 137, 1000):
        watched = ct.simulate(
            problem, CD, wakes=137, seed=5, every=every, observe={"top": np.max}, conditions=conditions
        )
        np.testing.assert_array_equal(watched.theta, plain.theta)
        for count in ("wakes", "time", "letters", "vectors", "bytes", "lost", "duplicated"):
            assert getattr(watched, count) == getattr(plain, count), count


def test_same_seed_same_bits():
    problem = propagation()
    for conditions in (None, ct.Conditions(latency=1.0, loss=0.1)):
        a, b, other = (ct.simulate(problem, CD, wakes=40, seed=s, conditions=conditions) for s in (3, 3, 4))
        np.testing.assert_array_equal(a.theta, b.theta)
        assert a.time == b.time
        assert np.abs(a.theta - other.theta).max() > 1e-6
        assert a.time != other.time


def test_the_trace():
    problem = propagation()
    degree = problem.graph.n_neighbours
    events = np.random.default_rng(1).integers(0, 12, 25)
    seen = []

    def norm(theta):
        seen.append(theta.copy())
        return float(np.linalg.norm(theta))

    run = ct.simulate(problem, CD, events=events, every=10, observe={"size": norm, "top": np.max})
    trace = run.trace
    assert list(trace["wakes"]) == [0, 10, 20, 25]
    assert list(trace.columns) == ["wakes", "time", "value", "vectors", "bytes", "size", "top"]
    for row, theta in zip(trace.itertuples(), seen, strict=True):
        woken = events[: row.wakes]
        again = ct.simulate(problem, CD, events=woken)
        np.testing.assert_array_equal(theta, again.theta)
        assert row.value == problem.value(theta)
        assert row.vectors == degree.sum() + degree[woken].sum()
        assert row.bytes == row.vectors * letter_size(2)
        assert row.size == np.linalg.norm(theta)
        assert row.top == theta.max()
    assert run.vectors == trace["vectors"].iloc[-1]
    assert list(ct.simulate(problem, CD, events=events).trace["wakes"]) == [0, 25]


def test_observers_may_not_write():
    problem = propagation()
    with pytest.raises(ValueError, match="read-only"):
        ct.simulate(problem, CD, wakes=3, observe=lambda theta: theta.fill(0.0))


def test_progress_is_reported():
    calls = []
    ct.simulate(propagation(), CD, wakes=1000, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (1000, 1000)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_models_by_agent():
    problem = propagation()
    run = ct.simulate(problem, CD, wakes=20)
    np.testing.assert_array_equal(run.model(problem.members[7]), run.theta[7])


# ---------------------------------------------------------------- Poisson clocks


@pytest.mark.slow
@pytest.mark.parametrize("conditions", [None, ct.Conditions(latency=0.3)], ids=["calm", "latency"])
def test_agents_wake_equally_often(conditions):
    """The number of vectors in a wake tells who woke: agent k of a caterpillar has its own number of neighbours.

    Chi-square over eight agents, error rate 1e-4 for each of the two cases; the seed is fixed.
    """
    n = 8
    W = np.zeros((n, n))
    for i in range(n):  # a half graph: neighbours i, j with i + j >= n - 1; degrees 1 .. n - 1, one of them twice
        for j in range(i):
            W[i, j] = W[j, i] = float(i + j >= n - 1)
    degree = W.sum(axis=1).astype(int)
    problem = ct.Problem.propagation(np.zeros((n, 1)), ct.Graph(W))
    wakes = 20_000
    trace = ct.simulate(problem, CD, wakes=wakes, seed=11, every=1, conditions=conditions).trace
    sent = np.diff(trace["vectors"])
    values, counts = np.unique(sent, return_counts=True)
    agents = np.array([(degree == v).sum() for v in values])
    assert agents.sum() == n
    assert stats.chisquare(counts, wakes * agents / n).pvalue > 1e-4
    # and one wake says nothing about the next (error rate 1e-4)
    pairs = np.unique(sent[:-1] * 100 + sent[1:], return_counts=True)[1]
    share = np.outer(agents, agents).ravel() / n**2
    assert len(pairs) == len(share)
    assert stats.chisquare(pairs, (wakes - 1) * share).pvalue > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("conditions", [None, ct.Conditions(latency=0.3)], ids=["calm", "latency"])
def test_time_is_that_of_poisson_clocks(conditions):
    """The time of wake T is Gamma(T) / n: mean T / n, standard deviation sqrt(T) / n. Error rate 6e-7 (five sd)."""
    n, wakes = 12, 10_000
    run = ct.simulate(propagation(n), CD, wakes=wakes, seed=12, every=1, conditions=conditions)
    assert abs(run.time - wakes / n) <= 5 * math.sqrt(wakes) / n
    gaps = np.diff(run.trace["time"])
    assert (gaps >= 0).all()
    # exponential gaps of rate n, Kolmogorov-Smirnov, error rate 1e-4
    assert stats.kstest(gaps, "expon", args=(0, 1 / n)).pvalue > 1e-4


# ---------------------------------------------------------------- bad mail


CONDITIONS = {
    "nothing bad": ct.Conditions(),
    "latency": ct.Conditions(latency=2.0),
    "constant latency": ct.Conditions(latency=1.0, jitter=0.0),
    "loss": ct.Conditions(loss=0.4),
    "duplication": ct.Conditions(duplication=1.0, latency=0.5),
    "outages": ct.Conditions(outages=[(0, 1.0, 30.0), (4, 10.0, 40.0), (4, 35.0, 60.0)]),
    "all": ct.Conditions(latency=1.5, jitter=0.5, loss=0.3, duplication=0.3, outages=[(1, 5.0, 50.0)]),
}


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("which", [0, 3])
def test_converges_whatever_the_mail(which, name):
    problem, _ = example(which)
    run = ct.simulate(problem, CD, wakes=60_000, seed=1, conditions=CONDITIONS[name])
    assert_converged(problem, run.theta)


def test_accounts_are_exact_whatever_the_mail():
    """A wake sends as many letters as the agent has neighbours, whatever happens to them afterwards."""
    problem = propagation(degree=2)  # a ring: every agent has two neighbours
    assert (problem.graph.n_neighbours == 2).all()
    for conditions in CONDITIONS.values():
        run = ct.simulate(problem, CD, wakes=777, seed=2, conditions=conditions)
        assert run.letters == run.vectors == 24 + 2 * 777
        assert run.bytes == run.vectors * letter_size(2)


@pytest.mark.compiled
@pytest.mark.parametrize("rate", [0.05, 0.5])
@pytest.mark.parametrize("what", ["loss", "duplication"])
def test_faults_are_as_frequent_as_asked(what, rate):
    """Binomial, two-sided, error rate 1e-5 for each case; the seed is fixed."""
    problem = propagation()
    run = ct.simulate(problem, CD, wakes=5000, seed=3, conditions=ct.Conditions(latency=0.2, **{what: rate}))
    hit, spared = (run.lost, run.duplicated) if what == "loss" else (run.duplicated, run.lost)
    assert spared == 0
    assert stats.binomtest(hit, run.letters, rate).pvalue > 1e-5


def test_calm_mail_loses_nothing():
    run = ct.simulate(propagation(), CD, wakes=500)
    assert run.lost == run.duplicated == 0


@pytest.mark.slow
@pytest.mark.parametrize("end", [1e9, np.inf])
def test_an_agent_that_is_away_for_good(end):
    """It neither wakes nor changes, and the others find the optimum given the model it greeted them with."""
    problem = propagation(alpha=0.6)
    n, p, away = 12, 2, 4
    start = np.random.default_rng(4).normal(size=(n, p))
    run = ct.simulate(problem, CD, wakes=20_000, start=start, conditions=ct.Conditions(outages=[(away, 1e-9, end)]))
    np.testing.assert_array_equal(run.theta[away], start[away])
    assert run.wakes == 20_000
    degree = problem.graph.n_neighbours
    assert run.lost > 0
    assert run.letters - degree.sum() >= 20_000 * np.delete(degree, away).min()
    # stationarity of the others: (D + a) theta = W theta + a models, with s = 1/2
    W, a = problem.graph.W.toarray(), problem.a
    rest = np.delete(np.arange(n), away)
    H = np.diag(W.sum(axis=1) + a) - W
    b = a[:, None] * problem.local() - np.outer(H[:, away], start[away])
    np.testing.assert_allclose(run.theta[rest], np.linalg.solve(H[np.ix_(rest, rest)], b[rest]), rtol=0, atol=1e-6)


def test_an_agent_away_at_the_start_does_not_greet():
    problem = propagation(degree=2)
    run = ct.simulate(problem, CD, wakes=0, conditions=ct.Conditions(outages=[(4, 0.0, 5.0)]))
    assert run.letters == 24 - 2


@pytest.mark.compiled
def test_an_agent_that_comes_back():
    """Away from 0 to 50: unchanged until then, at the optimum later."""
    problem = propagation()
    start = np.full((12, 2), 7.0)
    run = ct.simulate(
        problem,
        CD,
        wakes=20_000,
        seed=5,
        start=start,
        every=10,
        observe={"away": lambda theta: theta[4, 0]},
        conditions=ct.Conditions(outages=[(4, 0.0, 50.0)]),
    )
    before = run.trace["time"] < 50
    assert before.sum() > 20
    assert (run.trace["away"][before] == 7.0).all()
    assert_converged(problem, run.theta)


def test_everybody_is_away_for_a_while():
    """No wake before time 20, and none is lost from the count."""
    problem = propagation()
    run = ct.simulate(
        problem, CD, wakes=30, every=1, conditions=ct.Conditions(outages=[(i, 0.0, 20.0) for i in range(12)])
    )
    assert run.wakes == 30
    assert run.trace["time"].iloc[1] >= 20


@pytest.mark.compiled
def test_letters_under_way_grow_beyond_what_was_foreseen():
    """Latency 50 on 200 agents keeps about 50 * 200 * 4 letters under way; none is forgotten or counted twice."""
    n, wakes = 200, 30_000
    problem = propagation(n, degree=2)
    run = ct.simulate(problem, CD, wakes=wakes, seed=6, conditions=ct.Conditions(latency=50.0, duplication=0.5))
    assert run.letters == run.vectors == 2 * n + 2 * wakes
    assert run.bytes == run.vectors * letter_size(2)
    assert run.lost == 0
    assert stats.binomtest(run.duplicated, run.letters, 0.5).pvalue > 1e-5
    assert np.isfinite(run.theta).all()


def test_latency_beyond_the_run_leaves_agents_alone():
    """No letter arrives: an unheard neighbour is taken to hold the agent's own start, so with mu = 1 and c_i = 1 each
    agent ends halfway between its start and its own model, whatever the others do.
    """
    problem = propagation()
    start = np.random.default_rng(8).normal(size=(12, 2))
    run = ct.simulate(problem, CD, wakes=5000, seed=7, start=start, conditions=ct.Conditions(latency=1e9, jitter=0.0))
    np.testing.assert_allclose(run.theta, (start + problem.local()) / 2, rtol=0, atol=1e-9)


# ---------------------------------------------------------------- what is refused


def go(**options):
    return ct.simulate(propagation(), options.pop("method", CD), **({"wakes": 5} | options))


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("unknown method 'foo'", {"method": "foo"}),
        ("3 is not a method", {"method": 3}),
        ("not a method", {"method": ct.CoordinateDescent}),
        ("wakes=", {"wakes": None}),
        ("wakes=-1", {"wakes": -1}),
        ("wakes=1.5", {"wakes": 1.5}),
        ("wakes=3", {"wakes": 3, "events": [0, 1]}),
        ("event 1 wakes agent number 12", {"wakes": None, "events": [0, 12]}),
        ("event 0 wakes agent number -1", {"wakes": None, "events": [-1]}),
        ("events", {"wakes": None, "events": [0.5]}),
        ("events", {"wakes": None, "events": [True, False]}),
        ("events", {"wakes": None, "events": [[0, 1]]}),
        ("events", {"wakes": None, "events": [np.nan]}),
        ("conditions", {"wakes": None, "events": [0], "conditions": ct.Conditions()}),
        ("conditions", {"conditions": 3}),
        ("'value'", {"observe": {"value": np.max}}),
        ("'wakes'", {"observe": {"wakes": np.max}}),
        ("'bytes'", {"observe": {"bytes": np.max}}),
        ("observe", {"observe": 3}),
        ("observe", {"observe": {"top": 3}}),
        ("every=0", {"every": 0}),
        ("every=-2", {"every": -2}),
        ("every=1.5", {"every": 1.5}),
        ("start='x'", {"start": "x"}),
        (r"\(3, 2\)", {"start": np.zeros((3, 2))}),
        ("nan", {"start": np.full((12, 2), np.nan)}),
        ("inf", {"start": np.full((12, 2), np.inf)}),
        ("seed=-1", {"seed": -1}),
        ("seed=1.5", {"seed": 1.5}),
    ],
)
def test_refusals(match, options):
    with pytest.raises(ParameterError, match=match):
        go(**options)


def test_a_kink_is_refused():
    data = ct.AgentData(np.eye(2), [1.0, -1.0], agents=[0, 1])
    problem = ct.Problem.personalized(data, ct.graphs.complete(2), loss="hinge")
    with pytest.raises(MismatchError, match="Hinge"):
        ct.simulate(problem, CD, wakes=1)


@pytest.mark.parametrize("options", [{"capacity": 0}, {"capacity": -1}, {"capacity": 1, "conditions": ct.Conditions()}])
def test_too_small_a_capacity_is_refused(options):
    with pytest.raises(CapacityError, match=f"capacity={options['capacity']}"):
        go(**options)


def test_capacity_bounds_the_letters_under_way():
    """With latency 100 nothing has arrived when the outbox of 60 is full: 48 letters of the swap, then six wakes."""
    with pytest.raises(CapacityError, match="60"):
        go(wakes=500, capacity=60, conditions=ct.Conditions(latency=100.0))


@pytest.mark.parametrize(
    "options",
    [
        {"latency": -1.0},
        {"latency": np.nan},
        {"latency": np.inf},
        {"latency": "soon"},
        {"jitter": 1.1},
        {"jitter": -0.1},
        {"loss": 1.0},
        {"loss": -0.1},
        {"loss": np.nan},
        {"duplication": 1.1},
        {"duplication": np.nan},
    ],
)
def test_bad_conditions_are_refused(options):
    ((name, value),) = options.items()
    with pytest.raises(ParameterError, match=f"{name}={value!r}"):
        ct.Conditions(**options)


@pytest.mark.parametrize(
    "outage", [(12, 0.0, 1.0), (-1, 0.0, 1.0), (0.5, 0.0, 1.0), (0, 2.0, 1.0), (0, np.nan, 1.0), (0, 1.0), 3]
)
def test_bad_outages_are_refused(outage):
    with pytest.raises(ParameterError, match="outage"):
        go(conditions=ct.Conditions(outages=[outage]))


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("method", [ct.CoordinateDescent(), ct.DJAM(), ct.CollaborativeADMM()])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_what_is_loaded_ahead_changes_nothing(method, form):
    """Of many agents, memory of the next wakes is loaded while one works; not so if each wake is a call of its own."""
    rng, n = np.random.default_rng(0), loop.MANY + 7
    sizes = rng.integers(0, 4, n)  # some have no rows, and the last of them no ties
    X = rng.normal(size=(sizes.sum(), 3)) * (rng.random((sizes.sum(), 3)) < 0.6)
    X, y = form(X), rng.normal(size=sizes.sum())
    data = ct.AgentData(X, y, agents=np.repeat(np.arange(n), sizes), members=range(n))
    ends = np.arange(n - 3)
    graph = ct.Graph.from_edges(n, ends, ends + 1, np.ones(n - 3))
    problem = ct.Problem.separate(data, graph, loss="squared", ridge=0.1)
    events = np.append(rng.integers(0, n, 40), [n - 1, 0, n - 2, 0, 1, 0, 1])
    at_once, one_by_one = (
        ct.simulate(problem, method, events=events, start="zeros", every=every, n_jobs=1) for every in (None, 1)
    )
    np.testing.assert_array_equal(at_once.theta, one_by_one.theta)
    assert at_once.letters == one_by_one.letters
