"""simulate: starts and traces, clocks, bad mail, and what is refused. What it computes is in test_replay.py."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from by_hand import N, P, assert_optimal, example
from scipy import sparse, stats

import coterie as ct
from coterie.core import loop
from coterie.engines.wire import message_size
from coterie.errors import CapacityError, ParameterError

CD = ct.CoordinateDescent()


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


def test_the_objective_never_rises_without_faults():
    """Messages arrive at once, so every wake is an exact block step of length 1 / L_i."""
    problem, _ = example("personalized", "logistic")
    values = ct.simulate(problem, CD, wakes=300, start="zeros", every=1).trace["value"].to_numpy()
    assert len(values) == 301
    assert (np.diff(values) <= 1e-12 * values[0]).all()
    assert values[-1] < 0.9 * values[0]


# ---------------------------------------------------------------- start


def test_forms_of_start():
    problem, _ = example("collaborative", "squared")
    given = np.arange(float(N * P)).reshape(N, P)
    for start, expected in [("local", problem.local()), ("zeros", np.zeros((N, P))), (given, given)]:
        run = ct.simulate(problem, CD, wakes=0, start=start)
        np.testing.assert_array_equal(run.theta, expected)
    ct.simulate(problem, CD, wakes=100, start=given)
    np.testing.assert_array_equal(given, np.arange(float(N * P)).reshape(N, P))  # it is left alone
    np.testing.assert_array_equal(ct.simulate(problem, CD, wakes=0).theta, problem.local())
    np.testing.assert_array_equal(ct.simulate(problem, CD, wakes=0, start=given.tolist()).theta, given)


# ---------------------------------------------------------------- the trace and the seed


def test_watching_changes_nothing_in_bad_mail():
    problem, bad = propagation(), ct.Conditions(latency=0.5, loss=0.1, duplication=0.2)
    plain = ct.simulate(problem, CD, wakes=137, seed=5, conditions=bad)
    for every in (1, 10, 137, 1000):
        watched = ct.simulate(problem, CD, wakes=137, seed=5, every=every, observe={"top": np.max}, conditions=bad)
        np.testing.assert_array_equal(watched.theta, plain.theta)
        for count in ("wakes", "time", "messages", "vectors", "bytes", "lost", "duplicated"):
            assert getattr(watched, count) == getattr(plain, count), count


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
        assert row.bytes == row.vectors * message_size(2)
        assert row.size == np.linalg.norm(theta)
        assert row.top == theta.max()
    assert run.vectors == trace["vectors"].iloc[-1]
    assert list(ct.simulate(problem, CD, events=events).trace["wakes"]) == [0, 25]


def test_progress_is_reported_models_are_found_by_agent_and_observers_may_not_write():
    problem, calls = propagation(), []
    run = ct.simulate(problem, CD, wakes=1000, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (1000, 1000)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert run.lost == run.duplicated == 0  # calm mail loses nothing
    np.testing.assert_array_equal(run.model(problem.members[7]), run.theta[7])
    with pytest.raises(ValueError, match="read-only"):
        ct.simulate(problem, CD, wakes=3, observe=lambda theta: theta.fill(0.0))


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


def test_accounts_are_exact_whatever_the_mail():
    """A wake sends as many messages as the agent has neighbours, whatever happens to them afterwards."""
    problem = propagation(degree=2)  # a ring: every agent has two neighbours
    assert (problem.graph.n_neighbours == 2).all()
    for conditions in CONDITIONS.values():
        run = ct.simulate(problem, CD, wakes=777, seed=2, conditions=conditions)
        assert run.messages == run.vectors == 24 + 2 * 777
        assert run.bytes == run.vectors * message_size(2)


@pytest.mark.compiled
@pytest.mark.parametrize("rate", [0.05, 0.5])
@pytest.mark.parametrize("what", ["loss", "duplication"])
def test_faults_are_as_frequent_as_asked(what, rate):
    """Binomial, two-sided, error rate 1e-5 for each case; the seed is fixed."""
    problem = propagation()
    run = ct.simulate(problem, CD, wakes=5000, seed=3, conditions=ct.Conditions(latency=0.2, **{what: rate}))
    hit, spared = (run.lost, run.duplicated) if what == "loss" else (run.duplicated, run.lost)
    assert spared == 0
    assert stats.binomtest(hit, run.messages, rate).pvalue > 1e-5


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
    assert run.messages - degree.sum() >= 20_000 * np.delete(degree, away).min()
    # stationarity of the others: (D + a) theta = W theta + a models, with s = 1/2
    W, a = problem.graph.W.toarray(), problem.a
    rest = np.delete(np.arange(n), away)
    H = np.diag(W.sum(axis=1) + a) - W
    b = a[:, None] * problem.local() - np.outer(H[:, away], start[away])
    np.testing.assert_allclose(run.theta[rest], np.linalg.solve(H[np.ix_(rest, rest)], b[rest]), rtol=0, atol=1e-6)


def test_an_agent_away_at_the_start_does_not_greet():
    problem = propagation(degree=2)
    run = ct.simulate(problem, CD, wakes=0, conditions=ct.Conditions(outages=[(4, 0.0, 5.0)]))
    assert run.messages == 24 - 2


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
    assert_optimal(problem, run.theta)


def test_everybody_is_away_for_a_while():
    """No wake before time 20, and none is lost from the count."""
    problem = propagation()
    run = ct.simulate(
        problem, CD, wakes=30, every=1, conditions=ct.Conditions(outages=[(i, 0.0, 20.0) for i in range(12)])
    )
    assert run.wakes == 30
    assert run.trace["time"].iloc[1] >= 20


@pytest.mark.compiled
def test_messages_under_way_grow_beyond_what_was_foreseen():
    """Latency 50 on 200 agents keeps about 50 * 200 * 4 messages under way; none is forgotten or counted twice."""
    n, wakes = 200, 30_000
    problem = propagation(n, degree=2)
    run = ct.simulate(problem, CD, wakes=wakes, seed=6, conditions=ct.Conditions(latency=50.0, duplication=0.5))
    assert run.messages == run.vectors == 2 * n + 2 * wakes
    assert run.bytes == run.vectors * message_size(2)
    assert run.lost == 0
    assert stats.binomtest(run.duplicated, run.messages, 0.5).pvalue > 1e-5
    assert np.isfinite(run.theta).all()


def test_latency_beyond_the_run_leaves_agents_alone():
    """No message arrives: an unheard neighbour is taken to hold the agent's own start, so with mu = 1 and c_i = 1 each
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


@pytest.mark.parametrize("options", [{"capacity": 0}, {"capacity": -1}, {"capacity": 1, "conditions": ct.Conditions()}])
def test_too_small_a_capacity_is_refused(options):
    with pytest.raises(CapacityError, match=f"capacity={options['capacity']}"):
        go(**options)


def test_capacity_bounds_the_messages_under_way():
    """With latency 100 nothing has arrived when the outbox of 60 is full: 48 messages of the swap, then six wakes."""
    with pytest.raises(CapacityError, match="60"):
        go(wakes=500, capacity=60, conditions=ct.Conditions(latency=100.0))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("latency", [-1.0, np.nan, np.inf, "soon"]),
        ("jitter", [1.1, -0.1]),
        ("loss", [1.0, -0.1, np.nan]),
        ("duplication", [1.1, np.nan]),
    ],
)
def test_bad_conditions_are_refused(name, values):
    for value in values:
        with pytest.raises(ParameterError, match=f"{name}( = |=){value!r}"):
            ct.Conditions(**{name: value})


def test_bad_outages_are_refused():
    for outage in ((12, 0.0, 1.0), (-1, 0.0, 1.0), (0.5, 0.0, 1.0), (0, 2.0, 1.0), (0, np.nan, 1.0), (0, 1.0), 3):
        with pytest.raises(ParameterError, match="outage"):
            go(conditions=ct.Conditions(outages=[outage]))


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("method", [ct.CoordinateDescent(), ct.DJAM(), ct.CollaborativeADMM()])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_what_is_loaded_ahead_changes_nothing(method, form):
    """Of many agents, memory of the next wakes is loaded while one works; not so if each wake is a call of its own."""
    rng, n = np.random.default_rng(0), loop.PREFETCH_MIN_AGENTS + 7
    sizes = rng.integers(0, 4, n)  # some have no rows, and the last of them no edges
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
    assert at_once.messages == one_by_one.messages
