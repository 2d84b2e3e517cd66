"""Wakes in parallel, and messages that are stored once: the bits of one thread, and of a copy at each neighbour."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import coterie as ct
from coterie.core import loop
from coterie.core.arrays import VACANT, stored_once
from coterie.core.compile import PLAIN
from coterie.core.levels import arrange
from coterie.engines import parallel
from coterie.engines.arrays import arrays_of
from coterie.engines.drivers import Immediate
from coterie.errors import MismatchError, ParameterError

GRAPHS = {
    "ring": ct.graphs.ring(40),
    "star": ct.graphs.star(25),
    "complete": ct.graphs.complete(9),
    "regular": ct.graphs.random_regular(60, 4, seed=1),
    "isolated": ct.Graph.from_edges(30, np.arange(10), np.arange(10) + 10, np.linspace(0.1, 2.0, 10)),
}
#: Noise is drawn exactly, which takes long in plain Python.
WAKES, JOBS = (2, (2, 7)) if PLAIN else (6, (2, 3, 7))
METHODS = {
    "cd": "cd",
    "admm": "admm",
    "djam": "djam",
    "propagation": "propagation",
    "boosting": "boosting",
    "gossip-pooling": "gossip-pooling",
    "resilient-pooling": "resilient-pooling",
    "private cd": ct.Private("cd", epsilon=1.0, delta=1e-5, wakes_per_agent=WAKES),
    "trimmed cd": ct.robust.Trimmed("cd", 0.25),
}


def problem_on(name, graph, storage="dense", loss="logistic", seed=0):
    """Rows of different numbers, some agents without any; what the method asks for."""
    rng, n, p = np.random.default_rng(seed), graph.n, 3
    owner = np.repeat(np.arange(n), rng.integers(0, 6, n))
    X = rng.normal(size=(owner.size, p))
    y = np.where(X[:, 0] + rng.normal(size=owner.size) > 0, 1.0, -1.0)
    data = ct.AgentData(sparse.csr_array(X) if storage == "sparse" else X, y, agents=owner, members=range(n))
    if name == "propagation":
        return ct.Problem.propagation(rng.normal(size=(n, p)), graph, alpha=0.7)
    if name == "boosting":
        return ct.Problem.boosting(data, graph, base=lambda X: np.tile(X, 10), mu=0.5, beta=1.5)
    return ct.Problem.personalized(data, graph, loss, mu=0.8, ridge=0.1)


def same(one, other):
    """All that two runs say, bit for bit."""
    parts = ("theta", "published", "tally")
    assert all(np.array_equal(getattr(one, part), getattr(other, part)) for part in parts)
    assert one.trace.equals(other.trace)
    assert (one.wakes, one.time, one.messages, one.bytes) == (other.wakes, other.time, other.messages, other.bytes)


@pytest.fixture
def fine(monkeypatch):
    """No level is too small for several threads, and spans are short."""
    monkeypatch.setattr(parallel, "MIN_WAKES_PER_CALL", 1)
    monkeypatch.setattr(parallel, "MAX_ARRANGED_WAKES", 50)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.usefixtures("fine")
def test_same_bits_with_any_number_of_threads(name, graph):
    problem = problem_on(name, GRAPHS[graph])
    wakes = WAKES * problem.n if name.startswith("private") else 600
    options = {"seed": 4, "every": 90, "observe": np.max, "start": "zeros"}
    alone = ct.simulate(problem, METHODS[name], wakes=wakes, n_jobs=1, **options)
    for jobs in JOBS:
        same(alone, ct.simulate(problem, METHODS[name], wakes=wakes, n_jobs=jobs, **options))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cd", "djam"])
@pytest.mark.usefixtures("fine")
def test_budgets_end_with_the_same_wake(name):
    problem = problem_on(name, GRAPHS["regular"])
    for budget in ({"vectors": 1501}, {"bytes": 33333}, {"vectors": 1500, "every": 77}, {"wakes": 0}):
        alone = ct.simulate(problem, name, **budget, seed=5, n_jobs=1)
        for jobs in (2, 3):
            same(alone, ct.simulate(problem, name, **budget, seed=5, n_jobs=jobs))


@pytest.mark.usefixtures("fine")
def test_given_events_and_changes_run_in_parallel():
    graph = GRAPHS["regular"]
    rng = np.random.default_rng(0)
    who = rng.integers(0, graph.n, 500)
    whom = np.array([rng.choice(graph.neighbours(i)) for i in who])
    for name, events in (("cd", who), ("djam", np.column_stack([who, whom]))):
        problem = problem_on(name, graph)
        later = problem.on(graph=ct.graphs.ring(graph.n)) if name == "cd" else problem
        options = {"events": events, "changes": [(250, later)]}
        same(ct.simulate(problem, name, **options, n_jobs=1), ct.simulate(problem, name, **options, n_jobs=3))


def levels_by_definition(graph, order, partners):
    """One more than the largest level of an earlier wake that touches the same: looked for in all of them."""
    level = []
    for t, i in enumerate(order):
        near = {i, partners[t]} - {VACANT} if partners is not None else {i, *graph.neighbours(i)}
        touch = [
            s for s in range(t) if near & ({order[s], partners[s]} - {VACANT} if partners is not None else {order[s]})
        ]
        level.append(max((level[s] + 1 for s in touch), default=0))
    return np.array(level)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("partner", [False, True])
def test_levels_are_those_of_the_definition(graph, partner):
    graph = GRAPHS[graph]
    rng = np.random.default_rng(1)
    order = rng.integers(0, graph.n, 200)
    whom = [rng.choice(graph.neighbours(i)) if len(graph.neighbours(i)) else VACANT for i in order]
    peers, dice, choice = np.array(whom), np.zeros((200, 1)), np.ones(graph.peer.size)
    last, floor = np.zeros(graph.n, np.int32), 0
    for part in (slice(0, 120), slice(120, 200)):  # the second schedule begins anew, with what the first left behind
        size = order[part].size
        level, first, place = np.empty(size, np.int32), np.empty(size + 1, np.int32), np.empty(size, np.int64)
        edges = graph.start, np.array(graph.peer), choice
        events = order[part], peers[part], dice[part]
        depth = arrange(*events, *edges, partner, floor, last, level, first, place)
        wanted = levels_by_definition(graph, order[part].tolist(), peers[part].tolist() if partner else None)
        assert np.array_equal(level, wanted)
        assert np.array_equal(place, np.argsort(wanted, kind="stable"))
        assert np.array_equal(first[: depth + 1], np.concatenate([[0], np.cumsum(np.bincount(wanted))]))
        floor += depth


def backwards(problem, method, ignored):
    """Models after a run whose levels are each taken from the last wake to the first; the rule may `ignore` edges."""
    driver = Immediate.of(problem, method, np.zeros((problem.n, problem.p)), 3)
    order, peers, dice, _ = driver._draw(400)
    plain = np.arange(400)
    arrays = driver.arrays._replace(edge_start=np.zeros_like(driver.arrays.edge_start)) if ignored else driver.arrays
    place, first = parallel.in_levels(method, arrays, order, peers, dice, np.zeros(problem.n, np.int32))
    backwards = np.concatenate([part[::-1] for part in np.split(place, first[1:-1])])
    models = []
    for place in (plain, backwards):
        driver = Immediate.of(problem, method, np.zeros((problem.n, problem.p)), 3)
        events = order[place], peers[place], dice[place], plain[place] / problem.n
        state = driver.method, driver.arrays, driver.own, driver.edge
        loop.run(*state, *events, driver.outbox, driver.egress, driver.account, loop.NO_LIMIT)
        models.append(driver.theta.copy())
    return np.array_equal(*models)


def test_a_rule_that_forgets_edges_would_be_found():
    """In one thread, so that it is found every time: wakes of one level may be taken in any order, and others not."""
    problem = problem_on("cd", GRAPHS["regular"])
    assert backwards(problem, ct.CoordinateDescent(), ignored=False)
    assert not backwards(problem, ct.CoordinateDescent(), ignored=True)


@pytest.mark.slow
@pytest.mark.usefixtures("fine")
def test_lock_free_runs_converge_and_say_what_they_cannot_do():
    problem = problem_on("cd", GRAPHS["ring"])
    run = ct.simulate(problem, "cd", wakes=400 * problem.n, n_jobs=3, lock_free=True)
    assert problem.suboptimality(run.theta) < 1e-6
    assert run.vectors == 2 * problem.n * 401  # nothing is lost
    same(*(ct.simulate(problem, "cd", wakes=99, n_jobs=1, lock_free=free) for free in (True, False)))
    with pytest.raises(MismatchError, match="privacy proof does not cover"):
        ct.simulate(problem, METHODS["private cd"], lock_free=True)
    with pytest.raises(MismatchError, match="does not declare a footprint"):
        ct.simulate(problem, ct.Learned("cd", ct.GraphRule()), wakes=1, lock_free=True)
    with pytest.raises(ParameterError, match="messages arrive at once"):
        ct.simulate(problem, "cd", wakes=1, conditions=ct.Conditions(loss=0.1), lock_free=True)
    with pytest.raises(ParameterError, match="n_jobs=0"):
        ct.simulate(problem, "cd", wakes=1, n_jobs=0)


def test_messages_stored_once_take_no_room_along_edges():
    problem = problem_on("cd", GRAPHS["complete"])
    arrays = arrays_of(problem, once=True)
    assert arrays.inverse.size == arrays.choice.size == 0
    _, edge = stored_once(ct.CoordinateDescent(), arrays, np.zeros((problem.n, problem.p)))
    assert edge.copy.message.shape == (problem.n, problem.p)
    assert np.shares_memory(edge.copy.peer, arrays.peer)


def test_a_subclass_with_handlers_of_its_own_says_anew_what_they_touch():
    @ct.method
    class Other(ct.CoordinateDescent):
        def receive(self, data, me, edges, message, outbox):
            pass

    @ct.method
    class Renamed(ct.CoordinateDescent):
        accuracy = 1e-6

    assert (Other().publishes, Other().footprint) == (False, None)
    assert (Renamed().publishes, Renamed().footprint) == (True, "edges")
