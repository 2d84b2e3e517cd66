"""Learned graphs: every method together with a graph rule, what it costs, where edges live, and the graph alone."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import coterie as ct
from coterie.core import loop
from coterie.core.arrays import VACANT, widened
from coterie.core.messages import Bounds, bits_of
from coterie.core.methods.fixed import FixedModels, KnownLoss
from coterie.core.wrap.graph_objective import paper_lipschitz
from coterie.core.wrap.learned import ANSWER, ANSWER_LENGTH, ASK, OFFSET, WEIGHT
from coterie.engines.drivers import Immediate
from coterie.errors import DataError, MismatchError, ParameterError
from coterie.graphs.exact import exact_edge_weights, graph_objective
from coterie.testing import hard_problem
from coterie.testing.graph_rules import held
from coterie.testing.shared import hosted

pytestmark = pytest.mark.compiled

RULE = ct.GraphRule(lam=0.5, kappa=3)


# -- models and graph together ----------------------------------------------------------------------------------------


def two_groups():
    """Model propagation; nobody is connected to anybody. With what a unit of degree costs each agent, c_k L_k."""
    rng = np.random.default_rng(0)
    models = rng.normal(size=(10, 2)) + 4.0 * (np.arange(10) % 2)[:, None]
    confidence = rng.random(10)
    problem = ct.Problem.propagation(models, ct.graphs.empty(10), alpha=0.7, confidence=confidence)

    def costs(theta):
        return (0.3 / 0.7) * confidence * 0.5 * np.square(theta - models).sum(axis=1)

    return problem, costs


def classifiers():
    """Logistic regression with a ridge, and an agent without data; agents begin with edges that do not pay."""
    problem = hard_problem()

    def costs(theta):
        loss = np.zeros(9)
        for k in range(9):
            X, y = problem.data.rows_of(k)
            if len(y):
                loss[k] = np.log1p(np.exp(-y * (X @ theta[k]))).mean() + theta[k] @ theta[k] / len(y)
        return 0.8 * np.maximum(problem.data.sizes / 7, 1e-9) * loss

    return problem, costs


def voters():
    """Boosting on six base predictors; the loss is the log of a sum."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 4))
    y, owner = np.sign(X[:, 0] + 0.3 * rng.normal(size=60)), np.arange(60) % 10
    data = ct.AgentData(X, y, agents=owner, members=range(10))
    votes = np.hstack([X, -0.5 * X[:, :2]])
    problem = ct.Problem.boosting(
        data, ct.graphs.empty(10), base=lambda Z: np.hstack([Z, -0.5 * Z[:, :2]]), beta=2.0, mu=0.8
    )

    def costs(theta):
        return np.log(np.bincount(owner, np.exp(-y * np.einsum("rj,rj->r", votes, theta[owner]))))

    return problem, costs


CASES = {
    "cd": (classifiers, 20_000, 1e-9),
    "djam": (two_groups, 20_000, 1e-9),
    "admm": (two_groups, 20_000, 1e-9),
    "propagation": (two_groups, 20_000, 1e-9),
    "boosting": (voters, 100_000, 2e-3),  # Frank-Wolfe is sublinear
}
#: Wakes in plain Python.
ENOUGH = 6_000
BAD = ct.Conditions(latency=1.0, loss=0.1, duplication=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wakes", "conditions"),
    [
        *((name, CASES[name][1] if name in ("cd", "boosting") else ENOUGH, None) for name in CASES),
        pytest.param("cd", ENOUGH, BAD, marks=pytest.mark.plain),
        *((name, CASES[name][1], BAD) for name in CASES),
    ],
    ids=str,
)
def test_graph_and_models_are_each_the_best_for_the_other(name, wakes, conditions):
    """Neither can get better alone, at the end of a run, also by bad mail."""
    make, _, tolerance = CASES[name]
    problem, costs = make()
    method = ct.Learned(name, RULE, every=problem.n)
    start = "zeros" if name == "boosting" else "local"
    run = ct.simulate(problem, method, wakes, seed=1, start=start, conditions=conditions)
    own, mu = costs(run.theta), 2.0 * problem.smooth
    square = np.square(run.theta[:, None] - run.theta).sum(axis=2)
    best = exact_edge_weights(own[:, None] + own + 0.5 * mu * square, mu, RULE.lam, RULE.delta)
    assert np.count_nonzero(best) >= 2 * problem.n  # there is a graph to find
    np.testing.assert_allclose(run.graph.W.toarray(), best, rtol=0, atol=tolerance)
    optimum = run.problem.solve()
    np.testing.assert_allclose(run.theta, optimum, rtol=0, atol=tolerance)
    assert run.problem.value(run.theta) - run.problem.value(optimum) <= tolerance * abs(run.problem.value(optimum))
    assert run.value == pytest.approx(run.problem.value(run.theta) + RULE.regularizer(run.problem), rel=1e-12)
    if conditions is not None:
        assert run.lost > 1000
        assert run.duplicated > 1000


# -- the account ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_message_is_accounted_for():
    """An independent count of a run of ADMM, whose greetings are a kind of their own, by the edges after each wake."""
    problem, _ = two_groups()
    problem = problem.on(graph=ct.graphs.ring(10))
    driver = Immediate.of(problem, ct.Learned("admm", RULE, every=1), problem.local(), 3)
    order = np.random.default_rng(np.random.SeedSequence(3).spawn(3)[0]).integers(0, 10, 400)
    before = held(driver.arrays, driver.arrays.weight)
    changed = begun = exchanged = 0
    for agent in order:
        exchanged += before[agent].any()
        driver.advance(1, loop.NO_LIMIT)
        after = held(driver.arrays, driver.arrays.weight)
        changed += np.count_nonzero(np.triu(after != before))
        begun += np.count_nonzero(np.triu((after > 0) & (before == 0)))
        others = np.delete(np.arange(10), agent)
        assert np.array_equal(after[np.ix_(others, others)], before[np.ix_(others, others)])  # one agent's edges move
        before = after
    messages, numbers = driver.account[loop.KINDS :].reshape(-1, 2).T
    assert begun > 20
    assert messages[ASK] == messages[ANSWER] == 400 * RULE.kappa  # every question is answered
    assert messages[WEIGHT] == changed  # and one word is said about a weight that changes
    greetings, questions, answers = messages[OFFSET:]
    assert greetings == 20 + 2 * begun  # both ends of an edge greet each other
    assert questions == answers == exchanged
    p = problem.p
    graph_part = 400 * RULE.kappa * (2 + p) + changed
    models = (20 + 2 * begun) * p + 2 * exchanged * (4 * p + 1)
    bits = bits_of_all(driver.method, messages, numbers, problem)
    assert bits == 32 * (graph_part + models)
    assert driver.bytes == 16 * messages.sum() + 8 * (
        400 * RULE.kappa * (4 + 6 + p) + 3 * changed + models  # on the wire there are stamps, rounds and distances
    )


def bits_of_all(method, messages, numbers, problem):
    """What all messages say, as Run.bits counts it, at 32 bits a number."""
    bounds = Bounds(problem.p, outputs=problem.outputs)
    return sum(
        bits_of(method.messages[kind], *of, bounds, 32) for kind, of in enumerate(zip(messages, numbers, strict=True))
    )


class Spy(ct.Learned):
    """Notes all messages; for plain Python."""

    def receive(self, data, me, edges, message, outbox):
        NOTED.append((message.kind, message.text.copy()))
        super().receive(data, me, edges, message, outbox)


NOTED: list[tuple[int, np.ndarray]] = []


def test_sparse_models_cost_what_is_in_them():
    """DADA, Section D, from the messages themselves: an index takes log2 of the dictionary, a step a sign bit more."""
    rng = np.random.default_rng(5)
    n, p, wakes, bits = 6, 64, 60, 32
    margins = [np.where(rng.random((5, p)) < 0.5, 1.0, -1.0) for _ in range(n)]
    problem = ct.Problem.boosting(None, ct.graphs.empty(n), base=margins, beta=2.0)
    spy = Spy("boosting", ct.GraphRule(kappa=2), 3 * n)
    NOTED.clear()
    events = rng.integers(0, n, wakes), np.full(wakes, VACANT), rng.random((wakes, spy.dice)), np.zeros(wakes)
    account = hosted(spy, problem, np.zeros((n, p)), events, compiled=False).account
    index, expected = np.log2(p), 0.0
    for kind, text in NOTED:
        if kind == ANSWER:  # degree and loss, and a model
            expected += 2 * bits + (len(text) - ANSWER_LENGTH) // 2 * (bits + index)
        elif kind == WEIGHT:
            expected += bits
        elif kind == OFFSET:  # a whole model
            expected += (len(text) - 1) // 2 * (bits + index)
        elif kind == OFFSET + 1:  # a step: how far, which way, and whether there or back
            expected += bits + index + 1
    messages, numbers = account[loop.KINDS :].reshape(-1, 2).T.astype(float)
    assert messages.sum() == len(NOTED)
    assert min(messages[k] for k in (ASK, ANSWER, WEIGHT, OFFSET, OFFSET + 1)) > 0
    assert bits_of_all(spy, messages, numbers, problem) == pytest.approx(expected, rel=1e-12)


@pytest.mark.plain
@pytest.mark.parametrize(("every", "period"), [(1, 1), (10, 1), (14, 1), (30, 3), (47, 5)])
def test_the_graph_is_looked_at_every_so_many_wakes(every, period):
    problem, _ = two_groups()
    events = np.random.default_rng(4).integers(0, 10, 300)
    run = ct.simulate(problem, ct.Learned("djam", RULE, every=every), events=events)
    looks = int(np.sum(np.bincount(events, minlength=10) // period))
    assert run.tally[ASK, 0] == run.tally[ANSWER, 0] == RULE.kappa * looks


# -- edges and their slots ---------------------------------------------------------------------------------------------


def standing(theta, losses=None, rule=RULE, graph=None, seed=0):
    """Agents whose models stay as they are, before the first wake."""
    n = len(theta)
    losses = np.zeros(n) if losses is None else losses
    data = ct.AgentData(np.zeros_like(theta), losses, agents=np.arange(n), members=range(n))
    graph = ct.graphs.empty(n) if graph is None else graph
    problem = ct.Problem(data, graph, KnownLoss(), smooth=0.5, loss_weight=1.0, scaled=True, mean=True, name="graph")
    return Immediate.of(problem, ct.Learned(FixedModels(), rule, every=1), theta, seed)


def test_slots_grow_without_a_trace():
    """Everybody becomes connected to everybody: as with room for all from the start."""
    theta = 0.1 * np.random.default_rng(6).normal(size=(60, 2))
    rule = ct.GraphRule(lam=100.0, kappa=5)
    narrow, wide = standing(theta, rule=rule), standing(theta, rule=rule)
    wide.arrays, _ = widened(wide.arrays, np.full(60, 80))
    _, wide.edge = wide.method.start(wide.arrays, theta)
    for driver in (narrow, wide):
        driver.advance(60 * 60, loop.NO_LIMIT)
    assert np.diff(wide.arrays.edge_start).max() == 80  # never short of slots
    one, other = held(narrow.arrays, narrow.arrays.weight), held(wide.arrays, wide.arrays.weight)
    assert np.all(one[~np.eye(60, dtype=bool)] > 0)
    # Sums over slots are made in an order that depends on how many there are.
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=0)
    assert np.array_equal(narrow.account, wide.account)


def test_few_edges_take_little_room():
    n = 2000
    theta = np.random.default_rng(7).normal(size=(n, 2))
    driver = standing(theta, rule=ct.GraphRule(lam=1e-3, kappa=5))
    driver.advance(30 * n, loop.NO_LIMIT)
    edges = np.count_nonzero(driver.arrays.peer != VACANT)
    assert n < edges < 20 * n
    assert driver.arrays.peer.shape[0] < n * n / 50


def test_few_and_near():
    """Remark 1: at most three edges each, after every wake, and those are to the nearest that have room."""
    n = 24
    place = np.random.default_rng(3).random(n)
    driver = standing(np.column_stack([0.1 * place, np.zeros(n)]), rule=ct.GraphRule(kappa=3, max_edges=3))
    for _ in range(600):
        driver.advance(1, loop.NO_LIMIT)
        weights = held(driver.arrays, driver.arrays.weight)
        assert np.count_nonzero(weights, axis=1).max() <= 3
        assert np.array_equal(weights, weights.T)
    apart = np.abs(place[:, None] - place)
    greedy = np.zeros((n, n), bool)  # the nearest pair first: the only graph in which no two would rather have an edge
    for i, j in zip(*np.unravel_index(np.argsort(apart, axis=None), apart.shape), strict=True):
        if i < j and max(greedy[i].sum(), greedy[j].sum()) < 3:
            greedy[i, j] = greedy[j, i] = True
    driver.advance(200 * n, loop.NO_LIMIT)
    shares = []
    for _ in range(20):  # an agent lets a neighbour go before it knows whether a nearer one has room
        driver.advance(n, loop.NO_LIMIT)
        tied = held(driver.arrays, driver.arrays.weight) > 0
        shares.append((np.count_nonzero(tied & greedy) / np.count_nonzero(greedy), apart[tied].mean()))
    present, distance = np.mean(shares, axis=0)
    assert present > 0.8
    assert distance < 0.25 * apart.mean()


def test_a_graph_to_begin_with_counts():
    """A run that begins where another ended stays there; edges that do not pay are given up."""
    rng = np.random.default_rng(8)
    theta, losses = rng.normal(size=(10, 2)), 0.2 * rng.normal(size=10)
    best = ct.exact_graph(theta, losses, lam=0.1)
    run = ct.learn_graph(theta, losses, lam=0.1, kappa=3, wakes=100, graph=best)
    assert abs(run.graph.W - best.W).max() < 1e-10
    run = ct.learn_graph(theta, losses, lam=0.1, kappa=3, graph=ct.graphs.complete(10))
    assert run.graph.n_edges == best.n_edges < 45


# -- what is refused --------------------------------------------------------------------------------------------------


BAD_RULES = {
    "lam = -1.0: expected a positive finite number": {"lam": -1.0},
    "not unique": {"lam": 0.0},
    "mu = -2.0": {"mu": -2.0},
    "delta = 0.0: expected a positive": {"delta": 0.0},
    "delta = -0.1: expected a positive": {"delta": -0.1},
    "kappa = 0: expected an integer": {"kappa": 0},
    "kappa = 2.5: expected an integer": {"kappa": 2.5},
    "'exact', 'local' or 'paper'": {"step": "long"},
    "max_edges = 0": {"max_edges": 0},
}
BAD_LEARNERS = {
    "unknown method .local.: choose one of cd": ("local",),
    "not a method that agents can run": (ct.baselines.GlobalModel(),),
    "unknown method": ("nobody",),
    "learns its graph already": (ct.Learned("cd"),),
    r"must be a ct\.GraphRule": ("cd", "exact"),
    "every = 0: expected a positive": ("cd", RULE, 0),
    "every = inf: expected a positive": ("cd", RULE, np.inf),
    "unknown sampling 'gossip': choose one of uniform, shuffle": ("cd", RULE, 100, "gossip"),
}


@pytest.mark.parametrize(
    ("error", "message", "make"),
    [
        *((ParameterError, message, lambda bad=bad: ct.GraphRule(**bad)) for message, bad in BAD_RULES.items()),
        *((ParameterError, message, lambda bad=bad: ct.Learned(*bad)) for message, bad in BAD_LEARNERS.items()),
        (MismatchError, "Wolfe.* is for", lambda: ct.simulate(two_groups()[0], ct.Learned("boosting"), wakes=1)),
        (MismatchError, "pass mu > 0", lambda: ct.simulate(aloof(), ct.Learned("boosting"), wakes=1)),
        (DataError, "one number for each of the 4 agents", lambda: ct.learn_graph(np.zeros((4, 1)), np.zeros(3))),
        (DataError, r"\(n, p\) array", lambda: ct.learn_graph(np.zeros(4), np.zeros(4))),
        (ParameterError, "ask so many.* 4 agents", lambda: ct.learn_graph(np.zeros((4, 1)), np.zeros(4), kappa=4)),
    ],
)
def test_what_cannot_be_learned_is_refused(error, message, make):
    with pytest.raises(error, match=message):
        make()


def aloof():
    return ct.Problem.boosting(None, ct.graphs.empty(6), base=[np.ones((1, 2))] * 6, mu=0.0)


def test_copies_are_alike():
    method = ct.Learned("admm", ct.GraphRule(mu=0.5, max_edges=4, step="local"), every=20, sampling="shuffle")
    copy = pickle.loads(pickle.dumps(method))
    assert copy == method
    assert type(copy) is type(method)
    assert repr(copy) == repr(method)
    assert copy.rule.max_edges == 4


# -- the graph alone --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "kappa"), [(2, 1), (5, 1), (5, 3), (30, 1), (30, 3), (30, 5)])
def test_the_exact_graph_is_found(n, kappa):
    """With losses of both signs, confidences, and parameters that all matter."""
    rng = np.random.default_rng(n + kappa)
    models, losses, confidence = rng.normal(size=(n, 3)), rng.normal(size=n), rng.random(n)
    options = {"confidence": confidence, "mu": 0.6, "lam": 0.3, "delta": 0.02}
    best = ct.exact_graph(models, losses, **options)
    run = ct.learn_graph(models, losses, kappa=kappa, **options)
    assert abs(run.graph.W - best.W).max() < 1e-6
    h = graph_objective(best, models, losses, **options)
    assert run.value == pytest.approx(h, abs=1e-9)
    if n > 2:
        assert 0 < best.n_edges < n * (n - 1) // 2
        assert losses.min() < 0 < losses.max()
        without = ct.exact_graph(models, losses, None, 0.6, 0.3, 0.02)
        assert abs(without.W - best.W).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("n", "kappa"), [(101, 1), (150, 5), (600, 5)])
def test_many_agents_find_the_exact_graph_over_their_nearest(n, kappa):
    """As well for many as for few: it is the number of candidates that counts."""
    rng = np.random.default_rng(n)
    models, losses, confidence = rng.normal(size=(n, 3)), 0.3 * rng.normal(size=n), rng.random(n)
    options = {"confidence": confidence, "mu": 0.6, "lam": 3.0, "delta": 0.02}
    best = ct.exact_graph(models, losses, **options, candidates=30)
    run = ct.learn_graph(models, losses, kappa=kappa, **options)
    assert abs(run.graph.W - best.W).max() < 1e-5
    h = graph_objective(best, models, losses, **options)
    assert run.value == pytest.approx(h, abs=1e-7 * n)
    # The lists matter: with all pairs there are other edges.
    assert n > 200 or graph_objective(ct.exact_graph(models, losses, **options), models, losses, **options) < h - 1e-3


def test_edges_to_begin_with_are_weighed_though_nobody_lists_them():
    rng = np.random.default_rng(3)
    models, losses, begin = rng.normal(size=(150, 2)), np.zeros(150), ct.graphs.random_regular(150, 6, seed=0)
    best = ct.exact_graph(models, losses, lam=0.1, candidates=30)
    assert best.n_edges == ct.exact_graph(models, losses, lam=0.1).n_edges  # so that no other edge pays
    run = ct.learn_graph(models, losses, lam=0.1, graph=begin)
    assert abs(run.graph.W - best.W).max() < 1e-6


@pytest.mark.parametrize("step", ["paper", "exact"])
def test_the_rate_of_theorem_2(step):
    """The mean over 20 seeds of h(w_T) - h* is below rho^T (h(w_0) - h*). Theirs is a bound on the expectation.

    The mean is less than half of the bound, with a standard error of 3 % where it is nearest: the error rate is far
    below 1e-6. A third of the rate would be noticed at T = 400.
    """
    rng = np.random.default_rng(10)
    K, kappa, mu, lam, delta = 10, 3, 1.0, 0.5, 1.0
    models, losses = 0.5 * rng.normal(size=(K, 2)), -0.5 + 0.5 * rng.normal(size=K)
    best = graph_objective(ct.exact_graph(models, losses, None, mu, lam, delta), models, losses, None, mu, lam, delta)
    start = graph_objective(ct.graphs.empty(K), models, losses, None, mu, lam, delta)
    sigma, longest = 2.0 * mu * lam, paper_lipschitz(kappa, mu, lam, delta)
    rho = 1.0 - 2.0 * kappa * sigma / (K * (K - 1) * longest)
    assert 0.98 < rho < 0.99
    above = np.zeros(10)
    for seed in range(20):
        run = ct.learn_graph(models, losses, None, mu, lam, delta, kappa, 400, seed, step=step, every=40)
        assert run.trace["wakes"].tolist() == list(range(0, 401, 40))
        above += (run.trace["value"].to_numpy()[1:] - best) / 20
    bound = rho ** np.arange(40, 401, 40) * (start - best)
    assert start - best > 1.0
    assert np.all(above >= -1e-9)
    assert np.all(above <= bound)
