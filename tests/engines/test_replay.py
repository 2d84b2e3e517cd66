"""Every method event by event, against references in plain NumPy written from the papers' own equations."""

from __future__ import annotations

import functools
import itertools
import tracemalloc
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from by_hand import (
    LONELY,
    LOSSES,
    SILENT,
    Copies,
    Multipliers,
    N,
    P,
    Personal,
    Setting,
    assert_optimal,
    descent,
    example,
    weights,
)
from scipy import sparse, stats
from scipy.special import expit

import coterie as ct
from coterie.core import proximal
from coterie.core.arrays import VACANT, choose
from coterie.core.linear import rows_of
from coterie.core.methods import admm
from coterie.engines.wire import message_size
from coterie.errors import MismatchError, ParameterError

OBJECTIVES = ("collaborative", "personalized", "separate")
PAIRS = [("propagation", "location"), *itertools.product(OBJECTIVES, LOSSES)]
SMOOTH = [pair for pair in PAIRS if pair[1] != "hinge"]
MP, DJAM, CD = ct.ModelPropagation(), ct.DJAM(), ct.CoordinateDescent()
ADMM = ct.CollaborativeADMM


#: Each loss is compiled for each method. These take the same paths as the others: they are for `pytest -m slow`.
SELDOM = ("smooth-hinge", "huber", "location-huber")


def over(pairs, often=LOSSES):
    seldom = {pair for pair in pairs if pair[1] in SELDOM or pair[1] not in often}
    cases = [pytest.param(*pair, marks=pytest.mark.slow if pair in seldom else ()) for pair in pairs]
    return pytest.mark.parametrize(("objective", "loss"), cases)


def beginning(setting, seed):
    """Any models, and that of its own for the agent without edges."""
    start = np.random.default_rng(seed).normal(size=(N, P))
    start[LONELY] = setting.alone(LONELY)
    return start


def meetings(W, count, seed, lonely=True):
    """Who wakes and whom it talks to; -1 for an agent without edges."""
    rng = np.random.default_rng(seed)
    able = np.flatnonzero(W.any(axis=1) | lonely)
    wakes = rng.choice(able, count)
    return np.array([(i, rng.choice(np.flatnonzero(W[i])) if W[i].any() else -1) for i in wakes])


def followed(problem, method, **options):
    """A run, and the models after each event or round."""
    seen = []
    options = {"every": 1, "observe": {"seen": lambda theta: seen.append(theta.copy()) or len(seen)}} | options
    run = ct.simulate(problem, method, **options)
    return run, np.array(seen)[~run.trace["wakes"].duplicated(keep="last")]


def assert_same(found, expected, loss="squared"):
    assert found.shape == expected.shape
    assert np.abs(found[0] - found[-1]).max() > 1e-3  # something happens
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 if loss == "hinge" else 1e-9)


def assert_account(run, edges, exchanges, each):
    """2 |E| vectors in the initial swap, ``each`` in an exchange of two messages."""
    assert run.messages == 2 * edges + 2 * exchanges
    assert run.vectors == 2 * edges + each * exchanges
    assert run.bytes == 2 * edges * message_size(P) + 2 * exchanges * message_size(each * P // 2)


def replays_gossip(objective, loss, method, reference, each):
    """A run of exchanges is that of the reference, event by event, and so is its account."""
    problem, setting = example(objective, loss)
    start, events = beginning(setting, 1), meetings(setting.W, 80, 2)
    run, found = followed(problem, method, events=events, start=start)
    assert_same(found, np.array([start, *reference(setting, start).gossip(events)]), loss)
    assert_account(run, problem.graph.n_edges, np.count_nonzero(events[:, 1] >= 0), each)


# ---------------------------------------------------------------- model propagation


def mp_matrices(setting, alpha=0.6):
    """P and C of MP, from W and a_i = mu D_ii c_i, without the agents that have no edges."""
    tied = setting.W.any(axis=1)
    W = setting.W[np.ix_(tied, tied)]
    D = W.sum(axis=1)
    return tied, W / D[:, None], setting.a[tied] / D * alpha / (1 - alpha)


def test_mp_closed_form():
    """MP (4)."""
    problem, setting = example("propagation", "location")
    alpha, models = 0.6, np.vstack([f.X for f in setting.f])
    tied, Pr, c = mp_matrices(setting)
    matrix = np.eye(len(c)) - (1 - alpha) * (np.eye(len(c)) - np.diag(c)) - alpha * Pr
    expected = models.copy()
    expected[tied] = np.linalg.solve(matrix, (1 - alpha) * c[:, None] * models[tied])
    np.testing.assert_allclose(problem.solve(), expected, rtol=0, atol=1e-12)
    for length in ({"wakes": 4000}, {"rounds": 1000}):
        np.testing.assert_allclose(ct.simulate(problem, MP, **length).theta, expected, rtol=0, atol=1e-10)


def mp_step(setting, copies, i, alpha=0.6):
    """MP (6), as printed, for l = i."""
    D = setting.W[i].sum()
    c = setting.a[i] / D * alpha / (1 - alpha)
    mean = sum(setting.W[i, k] / D * copies[k] for k in copies)
    return (alpha * mean + (1 - alpha) * c * setting.f[i].X[0]) / (alpha + (1 - alpha) * c)


def test_mp_synchronous():
    """MP (5), in matrices."""
    problem, setting = example("propagation", "location")
    alpha, start, rounds = 0.6, beginning(setting, 4), 30
    tied, Pr, c = mp_matrices(setting)
    expected = [start]
    for _ in range(rounds):
        theta = start.copy()
        fixed = (1 - alpha) * c[:, None] * np.vstack([f.X for f in setting.f])[tied]
        theta[tied] = np.linalg.solve(np.diag(alpha + (1 - alpha) * c), alpha * Pr @ expected[-1][tied] + fixed)
        expected.append(theta)
    run, found = followed(problem, MP, rounds=rounds, start=start)
    assert_same(found, np.array(expected))
    edges = problem.graph.n_edges
    assert run.wakes == rounds * N
    assert run.vectors == run.messages == 2 * edges + rounds * 2 * edges
    assert run.bytes == run.vectors * message_size(P)


@over([pair for pair in PAIRS if pair[1] == "location"])
def test_mp_on_other_objectives(objective, loss):
    """Several points, or none, and a ridge: the minimiser over a block is still a mean."""
    problem, setting = example(objective, loss)
    start, events = beginning(setting, 5), meetings(setting.W, 60, 6)
    for length, expected in (
        ({"events": events}, Copies(setting, start).gossip(events)),
        ({"rounds": 12}, Copies(setting, start).rounds(12)),
    ):
        assert_same(followed(problem, MP, start=start, **length)[1], np.array([start, *expected]))


# ---------------------------------------------------------------- DJAM


MODELS = functools.partial(Copies, step=mp_step)


@pytest.mark.parametrize("method", [MP, DJAM], ids=["mp", "djam"])
def test_mp_gossip(method):
    """MP (6), and DJAM on the same problem."""
    replays_gossip("propagation", "location", method, MODELS, 2)


@over(PAIRS)
def test_djam(objective, loss):
    replays_gossip(objective, loss, DJAM, Copies, 2)


# ---------------------------------------------------------------- ADMM

PENALTIES = pytest.mark.parametrize("rho", [0.3, 2.0])


@pytest.mark.plain
@PENALTIES
@over(PAIRS)
def test_admm_gossip(objective, loss, rho):
    replays_gossip(objective, loss, ADMM(rho), functools.partial(Multipliers, rho=rho), 8)


@pytest.mark.plain
@PENALTIES
@over(PAIRS, often=("logistic",))
def test_admm_synchronous(objective, loss, rho):
    problem, setting = example(objective, loss)
    start, rounds, edges = beginning(setting, 11), 15, problem.graph.n_edges
    run, found = followed(problem, ADMM(rho), rounds=rounds, start=start)
    assert_same(found, np.array([start, *Multipliers(setting, start, rho).rounds(rounds)]), loss)
    assert_account(run, edges, rounds * edges, 8)
    assert run.wakes == rounds * N


@pytest.mark.plain
@over(SMOOTH, often=("logistic",))
def test_admm_with_gradient_steps(objective, loss):
    """Ten of them on the primal problem without the T_i^j, from the last model, as in CD's comparison."""
    replays_gossip(objective, loss, ADMM(0.3, steps=10), functools.partial(Multipliers, rho=0.3, steps=10), 8)


# ---------------------------------------------------------------- coordinate descent


@over(SMOOTH)
def test_coordinate_descent(objective, loss):
    problem, setting = example(objective, loss)
    start, events = beginning(setting, 16), meetings(setting.W, 100, 17)[:, 0]
    run, found = followed(problem, CD, events=events, start=start)
    assert_same(found, descent(setting, start, events))
    assert run.vectors == run.messages == problem.graph.n_neighbours.sum() + problem.graph.n_neighbours[events].sum()
    assert run.bytes == run.vectors * message_size(P)
    assert run.value == pytest.approx(problem.value(found[-1]), rel=1e-12)


# ---------------------------------------------------------------- convergence


@functools.cache
def gaps():
    """How far above the optimum, relative, each rho is after every 150 wakes."""
    rng = np.random.default_rng(20)
    n, p = 30, 5
    sizes = rng.integers(1, 12, n)
    X, target = rng.normal(size=(sizes.sum(), p)), rng.normal(size=p)
    owner = np.repeat(np.arange(n), sizes)
    y = np.where((X * (target + 0.3 * rng.normal(size=(n, p))[owner])).sum(axis=1) > 0, 1.0, -1.0)
    graph = ct.graphs.ring(n, neighbours=2)
    problem = ct.Problem.personalized(ct.AgentData(X, y, agents=owner), graph, loss="logistic", mu=0.5)
    best = problem.value(problem.solve())

    def gap(rho):
        trace = ct.simulate(problem, ADMM(rho), wakes=9000, seed=21, every=150).trace
        return trace["value"].to_numpy() / best - 1

    return gap("auto"), np.array([gap(rho) for rho in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)])


@pytest.mark.slow
def test_admm_finds_a_good_rho():
    """At equal wakes, "auto" is no worse than ten times the best of a grid over three decades, down to a gap of 1e-6.

    Further down that says less and less: both converge linearly, so that the ratio of gaps grows however close their
    rates are (57 after 3000 wakes here), until both are below 1e-12. The next test compares rates.
    """
    auto, grid = gaps()
    best = grid.min(axis=0)
    assert best[10] < 2e-6
    assert (auto[:11] <= 10 * best[:11]).all()
    assert max(auto[40], best[40]) <= 1e-12  # after 6000 wakes
    assert grid[:, 10].max() > 1e4 * best[10]  # rho matters


@pytest.mark.slow
@pytest.mark.plain
@pytest.mark.parametrize("goal", [1e-3, 1e-6, 1e-9, 1e-12])
def test_admm_loses_little_time_by_finding_rho(goal):
    """To any accuracy, "auto" takes at most 1.5 times the wakes of the best of the grid."""
    auto, grid = gaps()

    def wakes(gap):
        return 150 * np.argmax(gap <= goal) if (gap <= goal).any() else np.inf

    assert 0 < wakes(auto) <= 1.5 * min(wakes(gap) for gap in grid)


def test_newton_ends_where_the_gradient_is_zero(monkeypatch):
    """What dual ascent falls back on: ``a sum_r l(z_r) + kappa/2 |t|^2 - weight center . t``, kappa with the ridge."""
    monkeypatch.setattr(proximal, "SWEEPS_BEFORE_NEWTON", 0)
    rng = np.random.default_rng(24)
    X, y, center = rng.normal(size=(20, P)), rng.choice([-1.0, 1.0], 20), rng.normal(size=P)
    a, weight, ridge, theta = 0.5, 0.3, 0.6, np.zeros(P)
    kappa = weight + 2.0 * a * ridge
    data = SimpleNamespace(rows=rows_of(X), labels=y, loss=ct.Logistic(), row_weight=1.0, ridge=ridge)
    solver = proximal.DualAscent(np.sum(X * X, axis=1), np.zeros(20), np.zeros(P * P))
    solver.minimise(data, a, weight, center, theta, np.zeros(6 * P))
    gradient = a * X.T @ (-y * expit(-y * (X @ theta))) + kappa * theta - weight * center
    np.testing.assert_allclose(gradient, 0.0, atol=1e-12)


class Edge(NamedTuple):
    """One end of an edge and a message from the other, made of Z, multipliers L and -L, and the T of both ends.

    Arrays have a line for the model of this end, and one for that of the other.
    """

    data: SimpleNamespace
    me: SimpleNamespace
    edges: SimpleNamespace
    text: np.ndarray
    Z: np.ndarray
    L: np.ndarray
    T: np.ndarray  # (2 models, 2 ends, p)


def edge(rho, other_rho, watch=(0.0, 0.0, 0.0, 2.0)):
    rng, pull = np.random.default_rng(23), 0.6
    Z, L, T = rng.normal(size=(2, P)), rng.normal(size=(2, P)), rng.normal(size=(2, 2, P))
    U = Z - L / rho
    T[1, 0] = (pull * T[0, 0] + rho * U[1]) / (pull + rho)  # what this end thinks of the other's model, step 1
    data, me = SimpleNamespace(smooth=0.5, weight=np.array([2 * pull])), SimpleNamespace(theta=T[0, 0])
    edges = SimpleNamespace(mine=U[:1], theirs=U[1:], rho=np.array([rho]), cache=np.array([watch]))
    V = Z + L / other_rho
    return Edge(data, me, edges, np.concatenate([T[1, 1], T[0, 1], V[1], V[0], [other_rho]]), Z, L, T)


def test_ends_of_an_edge_with_two_rho_keep_its_z_and_its_multipliers():
    """Where a message was lost, U = Z - L / rho is written with one rho again; Z and L stay what they are."""
    e, mean = edge(0.5, 8.0), 2.0
    admm.convert(e.edges, 0, e.text, mean)
    np.testing.assert_allclose(np.vstack([e.edges.mine, e.edges.theirs]), e.Z - e.L / mean, rtol=1e-13)
    np.testing.assert_allclose([e.text[3 * P : 4 * P], e.text[2 * P : 3 * P]], e.Z + e.L / mean, rtol=1e-13)


@pytest.mark.plain
@pytest.mark.parametrize(("ends", "rho"), [((1.7, 1.7), 1.7), ((0.5, 8.0), 2.0)], ids=["one rho", "two"])
def test_residuals_of_an_edge_are_those_of_admm(ends, rho):
    """Primal |T - Z'|^2 and dual rho^2 |Z' - Z|^2 at both ends, beside models and multipliers; then steps 2 and 3."""
    e = edge(*ends)
    after = e.T.mean(axis=1)
    primal = np.sum((e.T - after[:, None]) ** 2)
    dual, multipliers, models = 2 * rho**2 * np.sum((after - e.Z) ** 2), 2 * np.sum(e.L**2), np.sum(e.T**2)
    admm.settle_and_balance(e.data, e.me, e.edges, 0, e.text, np.zeros(P))
    np.testing.assert_allclose(e.edges.cache[0, 0], primal / models, rtol=1e-12)
    np.testing.assert_allclose(
        e.edges.cache[0, 1], dual / (multipliers + admm.MIN_MULTIPLIER_RATIO * rho**2 * models), rtol=1e-12
    )
    assert (e.edges.cache[0, 2], e.edges.rho[0]) == (1.0, pytest.approx(rho))
    multiplier = e.L + rho * (e.T[:, 0] - after)
    np.testing.assert_allclose(np.vstack([e.edges.mine, e.edges.theirs]), after - multiplier / rho, atol=1e-13)


@pytest.mark.parametrize(("before", "factor"), [((9.0, 0.0), 2.0), ((0.0, 9.0), 0.5), ((9.0, 9.0), 1.0)], ids=str)
def test_a_new_rho_keeps_the_multipliers_of_an_edge(before, factor):
    """More of the primal residual: a larger rho, and the other way round; U follows, Z and L do not."""
    e, rho = edge(1.7, 1.7, (*before, 1.0, 2.0)), 1.7
    admm.settle_and_balance(e.data, e.me, e.edges, 0, e.text, np.zeros(P))
    after = e.T.mean(axis=1)
    multiplier = e.L + rho * (e.T[:, 0] - after)
    assert e.edges.rho[0] == factor * rho
    np.testing.assert_allclose(
        np.vstack([e.edges.mine, e.edges.theirs]), after - multiplier / (factor * rho), atol=1e-13
    )
    assert e.edges.cache[0].tolist() == [0.0, 0.0, 0.0, 2.0 * admm.INTERVAL_GROWTH]


# ---------------------------------------------------------------- which problems a method takes


def flat(loss, ridge=0.0, graph=None):
    """A problem of two pairs of agents."""
    rng = np.random.default_rng(22)
    X = rng.normal(size=(8, 2))
    y = None if loss.startswith("location") else np.sign(X[:, 0])
    graph = graph or ct.Graph.from_edges(4, [0, 2], [1, 3])
    data = ct.AgentData(X, y, agents=np.repeat(["ann", "bob", "cy", "dan"], 2))
    return ct.Problem.separate(data, graph, loss=LOSSES[loss], ridge=ridge)


REFUSED = [
    (CD, "hinge"),
    *[(MP, loss) for loss in LOSSES if loss != "location"],
    *[(DJAM, loss) for loss in ("hinge", "smooth-hinge", "huber", "location-huber")],
    (ADMM(steps=10), "hinge"),
    (ADMM(1.0, steps=10), "hinge"),
]


@pytest.mark.parametrize(("method", "loss"), REFUSED, ids=[f"{type(m).__name__}-{loss}" for m, loss in REFUSED])
def test_a_loss_that_does_not_fit_is_refused(method, loss):
    problem = flat(loss)
    for ask in (method.fit_for, lambda problem: ct.simulate(problem, method, wakes=1)):
        with pytest.raises(MismatchError) as refusal:
            ask(problem)
        assert repr(LOSSES[loss]) in str(refusal.value)
        assert type(method).__name__ in str(refusal.value)


FITTING = [(DJAM, loss, ridge) for loss in ("squared", "logistic", "location") for ridge in (0.0, 0.1)]
FITTING += [(DJAM, loss, 0.1) for loss in LOSSES] + [(ADMM(), loss, 0.0) for loss in LOSSES]
FITTING += [(m, loss, 0.0) for m in (CD, ADMM(steps=10)) for loss in LOSSES if loss != "hinge"]
FITTING += [(MP, "location", 0.0)]


def test_losses_that_fit_are_accepted():
    for method, loss, ridge in FITTING:
        method.fit_for(flat(loss, ridge))


def test_djam_wants_a_ridge_in_every_component():
    ridge = np.array([0.0, 0.1, 0.0, 0.0])  # bob's holds ann, too; cy and dan have none
    with pytest.raises(MismatchError, match=r"'cy'.*Huber\(delta=0.4\)"):
        DJAM.fit_for(flat("huber", ridge))
    DJAM.fit_for(flat("huber", ridge, ct.graphs.path(4)))
    DJAM.fit_for(flat("huber", ridge, ct.Graph.from_edges(4, [0], [1])))  # agents without edges swap nothing


# ---------------------------------------------------------------- whom an agent chooses


class Count(NamedTuple):
    theta: np.ndarray  # (n, n) how many times agent i chose agent j


class Nothing(NamedTuple):
    nothing: np.ndarray


@ct.method
class Census(NamedTuple):
    """Counts whom it chooses, in its model."""

    messages = {}
    dice = 1

    def scratch_size(self, arrays, p):
        return 0

    def start(self, arrays, theta):
        return Count(theta.copy()), Nothing(np.zeros(arrays.peer.shape[0]))

    def wake(self, data, me, edges, randomness, outbox):
        slot = choose(data, randomness)
        if slot != VACANT:
            me.theta[data.peer[slot]] += 1.0

    def receive(self, data, me, edges, message, outbox):
        pass


WAKES = 40_000


def chosen(W, choice, conditions=None):
    n = len(W)
    problem = ct.Problem.propagation(np.zeros((n, n)), ct.Graph(W))
    run = ct.simulate(problem, Census(), wakes=WAKES, seed=23, start="zeros", choice=choice, conditions=conditions)
    return run.theta


def star():
    W = np.zeros((6, 6))
    W[0, 1:] = W[1:, 0] = [0.2, 0.5, 1.0, 2.0, 4.0]
    return W


def lopsided(W):
    """Any probabilities: not symmetric, and some edges are used from one end only."""
    choice = np.where(W > 0, np.random.default_rng(24).uniform(0.1, 3.0, W.shape), 0.0)
    choice[0, 1] = 0.0
    return choice


def cases():
    """Weights, a choice, and the probabilities it stands for, up to a factor for each agent."""
    for W in (star(), weights(np.random.default_rng(25))):
        yield W, "uniform", 1.0 * (W > 0)
        yield W, "weight", W
        for form in (np.array, sparse.coo_array):
            yield W, form(lopsided(W)), lopsided(W)
    lazy = lopsided(W)
    lazy[0] = 0.0  # chooses nobody, and waits to be chosen
    yield W, lazy, lazy


@pytest.mark.slow
@pytest.mark.parametrize("conditions", [None, ct.Conditions()], ids=["at once", "timed"])
def test_neighbours_are_chosen_with_the_given_probabilities(conditions):
    """Chi-square over all edges, given how often each agent woke: error rate 1e-5 for each of the 18 cases; the seed is
    fixed. One test for all, because a method of its own has kernels of its own.
    """
    for W, choice, odds in cases():
        counts = chosen(W, choice, conditions)
        assert counts[odds == 0].sum() == 0
        able = odds.any(axis=1)
        counts, odds = counts[able], odds[able]
        wakes, used = counts.sum(axis=1, keepdims=True), odds > 0
        expected = odds / odds.sum(axis=1, keepdims=True) * wakes
        assert np.abs(wakes - WAKES / len(W)).max() < 6 * np.sqrt(WAKES / len(W))  # six sd: error rate below 2e-9
        statistic = ((counts - expected)[used] ** 2 / expected[used]).sum()
        assert stats.chi2.sf(statistic, used.sum() - able.sum()) > 1e-5


@pytest.mark.slow
def test_the_optimum_is_reached_though_one_agent_chooses_nobody():
    W = star()
    choice = np.where(W > 0, 1.0, 0.0)
    choice[0] = 0.0
    problem = ct.Problem.propagation(np.random.default_rng(26).normal(size=(6, 2)), ct.Graph(W), alpha=0.5)
    for method in (MP, ADMM(0.5)):
        assert_optimal(problem, ct.simulate(problem, method, wakes=4000, choice=choice).theta)


@pytest.mark.parametrize("method", [MP, DJAM, ADMM(0.3)], ids=["mp", "djam", "admm"])
def test_methods_obey_the_choice(method):
    """Everybody must choose the next one on the ring: the run is the one of these events, bit for bit."""
    n, wakes, seed = 6, 200, 27
    problem = ct.Problem.propagation(np.random.default_rng(seed).normal(size=(n, P)), ct.graphs.ring(n))
    choice = np.roll(np.eye(n), 1, axis=1)
    order = np.random.default_rng(np.random.SeedSequence(seed).spawn(3)[0]).integers(0, n, wakes)
    run = ct.simulate(problem, method, wakes=wakes, seed=seed, choice=choice)
    again = ct.simulate(problem, method, events=np.column_stack([order, (order + 1) % n]))
    np.testing.assert_array_equal(run.theta, again.theta)
    other = ct.simulate(problem, method, events=np.column_stack([order, (order - 1) % n]))
    assert np.abs(run.theta - other.theta).max() > 1e-6


RING = ct.graphs.ring(4).W.toarray()


@pytest.mark.parametrize(
    ("match", "choice"),
    [
        ("'often' must be", "often"),
        ("negative or not finite", -RING),
        ("negative or not finite", np.where(RING > 0, np.nan, 0.0)),
        ("negative or not finite", np.where(RING > 0, np.inf, 0.0)),
        (r"shape \(4, 4\); found \(3, 3\)", np.ones((3, 3))),
        (r"never uses the edge between agents 0 and 1", np.where(np.add.outer(range(4), range(4)) == 1, 0.0, RING)),
        ("never uses the edge", np.zeros((4, 4))),
    ],
    ids=["word", "negative", "nan", "infinite", "shape", "unused edge", "zeros"],
)
def test_bad_choices_are_refused(match, choice):
    problem = ct.Problem.propagation(np.eye(4), ct.Graph(RING))
    with pytest.raises(ParameterError, match=match):
        ct.simulate(problem, MP, wakes=1, choice=choice)


# ---------------------------------------------------------------- events, rounds and budgets


def small(n=6, p=2, seed=28):
    rng = np.random.default_rng(seed)
    return ct.Problem.propagation(rng.normal(size=(n, p)), ct.graphs.ring(n), alpha=0.5)


@pytest.mark.parametrize(
    ("match", "method", "options"),
    [
        (r"found shape \(2, 3\)", MP, {"events": [[0, 1, 2], [1, 2, 3]]}),
        (r"found shape \(1, 1, 2\)", MP, {"events": [[[0, 1]]]}),
        ("event 1: agents number 0 and 2 are not neighbours", MP, {"events": [[0, 1], [0, 2]]}),
        ("event 0: agents number 3 and 3 are not neighbours", ADMM(), {"events": [[3, 3]]}),
        ("event 0: agents number 0 and -1 are not neighbours", DJAM, {"events": [[0, -1]]}),
        ("event 0: agents number 0 and 6 are not neighbours", DJAM, {"events": [[0, 6]]}),
        ("event 0: agents number 0 and 7 are not neighbours", DJAM, {"events": [[0, 7]]}),
        ("event 1 wakes agent number 6", MP, {"events": [[0, 1], [6, 0]]}),
        ("whole numbers; found float64", MP, {"events": [[0.0, 1.0]]}),
        ("whole numbers; found bool", MP, {"events": [[False, True]]}),
        ("does not exchange", CD, {"events": [[0, 1]]}),
        ("leave rounds out", MP, {"events": [[0, 1]], "rounds": 1}),
        ("leave vectors out", MP, {"events": [[0, 1]], "vectors": 10}),
        ("not wakes and rounds", MP, {"wakes": 1, "rounds": 1}),
        ("not wakes and vectors", MP, {"wakes": 1, "vectors": 1}),
        ("not vectors and bytes", MP, {"vectors": 1, "bytes": 1}),
        ("pass the length", MP, {}),
        ("vectors=-1", MP, {"vectors": -1}),
        ("bytes=0.5", MP, {"bytes": 0.5}),
        ("rounds=inf", MP, {"rounds": np.inf}),
        ("every=0 must be a whole number of bytes", MP, {"bytes": 10, "every": 0}),
        ("rounds are synchronous", MP, {"rounds": 1, "conditions": ct.Conditions()}),
        ("rounds are synchronous", MP, {"rounds": 1, "capacity": 100}),
        ("no synchronous form", CD, {"rounds": 1}),
        ("no synchronous form", DJAM, {"rounds": 1}),
    ],
)
def test_refusals(match, method, options):
    with pytest.raises((ParameterError, MismatchError), match=match):
        ct.simulate(small(), method, **options)


def test_an_agent_without_edges_has_no_neighbour_to_talk_to():
    problem, _ = example("propagation", "location")
    ct.simulate(problem, MP, events=[[LONELY, -1]])
    with pytest.raises(ParameterError, match="event 0: agents number 6 and 0 are not neighbours"):
        ct.simulate(problem, MP, events=[[LONELY, 0]])


@pytest.mark.parametrize(
    ("method", "messages", "vectors"),
    [(CD, 2, 1), (MP, 2, 1), (DJAM, 2, 1), (ADMM(0.5), 2, 4), (ADMM(), 2, 4.5)],
    ids=["cd", "mp", "djam", "admm", "admm-auto"],
)
@pytest.mark.parametrize("unit", ["vectors", "bytes"])
def test_budgets(method, messages, vectors, unit):
    """An event of this ring of six sends ``messages`` messages of ``vectors`` vectors; the initial swap 12 of one."""
    problem = small()
    start = 12 if unit == "vectors" else 12 * message_size(2)
    cost = messages * (vectors if unit == "vectors" else message_size(round(2 * vectors)))
    for limit in (0, start, start + 1, int(start + 3 * cost), int(start + 3 * cost) + 1, start + 1001):
        run = ct.simulate(problem, method, seed=29, **{unit: limit})
        assert run.wakes == np.ceil(max(0, limit - start) / cost)
        assert limit <= getattr(run, unit) < max(limit, start + 0.5) + cost
        same = ct.simulate(problem, method, seed=29, wakes=run.wakes)
        np.testing.assert_array_equal(run.theta, same.theta)
        assert (run.vectors, run.bytes, run.time) == (same.vectors, same.bytes, same.time)


@pytest.mark.parametrize(
    ("method", "unit"),
    [
        pytest.param(method, unit, id=f"{name}-{unit}")
        for name, method in (("cd", CD), ("mp", MP), ("djam", DJAM), ("admm", ADMM(0.5)), ("admm-auto", ADMM()))
        for unit in ("wakes", "vectors", "bytes", *(["rounds"] if name not in ("cd", "djam") else []))
    ],
)
def test_every_changes_nothing(method, unit):
    length = {unit: {"wakes": 150, "rounds": 20, "vectors": 52, "bytes": 52 * message_size(2)}[unit]}
    plain = ct.simulate(small(), method, seed=30, **length)
    scale = message_size(2) if unit == "bytes" else 1
    for every in (1, 7, 10_000):
        run = ct.simulate(small(), method, seed=30, every=every * scale, **length)
        np.testing.assert_array_equal(run.theta, plain.theta)
        for count in ("wakes", "messages", "vectors", "bytes", "time"):
            assert getattr(run, count) == getattr(plain, count), count
    assert len(plain.trace) == 2
    assert len(ct.simulate(small(), method, seed=30, every=7 * scale, **length).trace) > 2


def test_watching_a_budget_closely_is_cheap():
    """Twenty wakes draw twenty wakes' worth of chance, however often one looks at them."""
    ct.simulate(small(), MP, seed=30, vectors=52, every=20)  # compiled before it is measured
    tracemalloc.start()
    try:
        run = ct.simulate(small(), MP, seed=30, vectors=52, every=2)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()
    assert run.wakes == 20
    assert len(run.trace) == 21


def test_budgets_in_time():
    """Messages under way are counted when they are sent; an event sends at most one vector here."""
    problem, late = small(), ct.Conditions(latency=0.7)
    for limit in (12, 13, 100, 333):
        run = ct.simulate(problem, MP, seed=31, vectors=limit, conditions=late)
        assert run.vectors == limit
        more = ct.simulate(problem, MP, seed=31, vectors=limit, conditions=late, every=5)
        np.testing.assert_array_equal(run.theta, more.theta)


@pytest.mark.parametrize("unit", ["vectors", "bytes"])
@pytest.mark.parametrize("conditions", [None, ct.Conditions(latency=0.7)], ids=["at once", "late"])
def test_a_budget_that_nobody_spends(unit, conditions):
    problem = ct.Problem.propagation(np.eye(3), ct.graphs.empty(3))
    with pytest.raises(ParameterError, match=f"{unit}=5 cannot be reached"):
        ct.simulate(problem, MP, conditions=conditions, **{unit: 5})
    assert ct.simulate(problem, MP, **{unit: 0}).wakes == 0


# ---------------------------------------------------------------- problems that change


def shifted(W, seed):
    """Other edges of the same agents: one goes, one comes, one changes its weight."""
    rng = np.random.default_rng(seed)
    W = W.copy()
    tied = np.argwhere(np.triu(W) > 0)
    others = [(i, j) for i in range(N - 1) for j in range(i) if W[i, j] == 0]
    (i, j), (k, m) = rng.choice(tied, 2, replace=False)
    W[i, j] = W[j, i] = 0.0
    W[k, m] = W[m, k] = 1.3 * W[k, m]
    i, j = others[rng.integers(len(others))]
    W[i, j] = W[j, i] = rng.uniform(0.5, 1.5)
    return W


@functools.cache
def changing():
    """Problems of model propagation with other models, confidences and edges, all without a lonely agent that moves."""
    rng = np.random.default_rng(32)
    W, alpha, made = weights(rng), 0.6, []
    models, c = rng.normal(size=(N, P)), rng.uniform(0.2, 1.0, N)
    for stage in range(4):
        f = [Personal("location", models[[i]], None, 1.0, 0.0) for i in range(N)]
        problem = ct.Problem.propagation(models, ct.Graph(W), alpha=alpha, confidence=c)
        made.append((problem, Setting(W, 0.5, (1 - alpha) / alpha * c * W.sum(axis=1), f)))
        old, W = W, shifted(W, 33 + stage)
        if stage == 2:
            W = np.where((made[0][1].W > 0) | (old > 0), 1.0, 0.0)  # edges that went come back
        models = models.copy()
        models[:LONELY] = rng.normal(size=(LONELY, P))
        c = rng.uniform(0.2, 1.0, N)
    return made


def new_edges(before, after):
    return np.count_nonzero(np.triu((after > 0) & (before == 0)))


@pytest.mark.parametrize(
    ("method", "reference", "each", "unit"),
    [
        (MP, MODELS, 2, "events"),
        (DJAM, MODELS, 2, "events"),
        (ADMM(0.7), functools.partial(Multipliers, rho=0.7), 8, "events"),
        (MP, MODELS, 2, "rounds"),
        (ADMM(0.7), functools.partial(Multipliers, rho=0.7), 8, "rounds"),
    ],
    ids=["mp", "djam", "admm", "mp-rounds", "admm-rounds"],
)
def test_what_is_known_of_kept_neighbours_survives_a_change(method, reference, each, unit):
    """Through removed, added and changed edges and other models, step by step."""
    stages, length = changing(), 40 if unit == "events" else 8
    start = beginning(stages[0][1], 34)
    replayed, expected, events, exchanges = reference(stages[0][1], start), [start], [], 0
    for k, (problem, setting) in enumerate(stages):
        replayed.change(setting)
        events.extend(meetings(setting.W, length, 35 + k))
        expected.extend(replayed.gossip(events[-length:]) if unit == "events" else replayed.rounds(length))
        exchanges += length * problem.graph.n_edges
    changes = [(length * k, problem) for k, (problem, _) in enumerate(stages) if k]
    how = {"events": events} if unit == "events" else {"rounds": length * len(stages)}
    run, found = followed(stages[0][0], method, start=start, changes=changes, **how)
    assert_same(found, np.array(expected))
    assert run.problem is stages[-1][0]
    greetings = sum(2 * new_edges(a.W, b.W) for (_, a), (_, b) in itertools.pairwise(stages))
    assert greetings >= 2 * 3
    exchanges = sum(j >= 0 for _, j in events) if unit == "events" else exchanges
    assert run.vectors == 2 * stages[0][0].graph.n_edges + greetings + each * exchanges


def test_rows_that_arrive_are_learned_from():
    """DJAM and ADMM keep what they work out from the data: it must be made anew (squared loss, both forms)."""
    problem, setting = example("collaborative", "squared")
    rng = np.random.default_rng(38)
    X, y, owner = rng.normal(size=(6, P)), rng.normal(size=6), [0, 1, 1, SILENT, 5, 5]
    later = problem.on(problem.data.with_rows(X, y, agents=owner))
    f = [
        Personal(f.loss, np.vstack([f.X, X[np.equal(owner, i)]]), np.append(f.y, y[np.equal(owner, i)]), 1.0, f.ridge)
        for i, f in enumerate(setting.f)
    ]
    new = setting._replace(f=f)
    start, events = beginning(setting, 39), meetings(setting.W, 80, 40, lonely=False)
    admm = Multipliers(setting, start, 0.3)
    expected = [start, *admm.gossip(events[:40])]
    admm.change(new)
    expected.extend(admm.gossip(events[40:]))
    _, found = followed(problem, ADMM(0.3), events=events, start=start, changes=[(40, later)])
    assert_same(found, np.array(expected))


@pytest.mark.parametrize("moment", [0, 50])
def test_new_neighbours_greet(moment):
    """Nothing is sent at a change but the two models of each new edge."""
    (before, one), (after, other) = changing()[:2]
    same = [(moment, before)]
    for changes, greetings in ((same, 0), ([(moment, after)], 2 * new_edges(one.W, other.W))):
        for method, cost in ((MP, 2), (ADMM(0.5), 8)):
            events = meetings(np.where(other.W > 0, one.W, 0.0), 50, 41, lonely=False)
            run = ct.simulate(before, method, events=events, changes=changes)
            assert run.vectors == 2 * before.graph.n_edges + greetings + cost * len(events)
    assert greetings == 2


@pytest.mark.plain
def test_a_change_to_the_same_problem_changes_nothing():
    problem, _ = example("separate", "squared")
    for method in (DJAM, ADMM(0.3), CD):  # "auto" looks at its residuals afresh after a change
        plain = ct.simulate(problem, method, wakes=100, seed=42)
        run = ct.simulate(problem, method, wakes=100, seed=42, changes=[(30, problem), (30, problem), (100, problem)])
        np.testing.assert_allclose(run.theta, plain.theta, rtol=0, atol=1e-12)
        assert run.vectors == plain.vectors


def test_changes_in_other_units():
    """The moment is in the unit of the run; the trace has a row on both sides of it."""
    (before, one), (after, other) = changing()[:2]
    assert before.graph.n_edges == after.graph.n_edges == 8
    for unit, moment, total in (("rounds", 5, 10), ("vectors", 60, 200), ("bytes", 4000, 9000)):
        run = ct.simulate(before, MP, seed=46, changes=[(moment, after)], **{unit: total})
        first, last = run.trace.iloc[1], run.trace.iloc[2]
        assert first["wakes"] == last["wakes"]
        assert last["vectors"] - first["vectors"] == 2 * new_edges(one.W, other.W) == 2
        theta = ct.simulate(before, MP, seed=46, **{unit: moment}).theta
        assert first["value"] == before.value(theta)
        assert last["value"] == after.value(theta)
        if unit != "rounds":
            assert moment <= first[unit] < moment + 2 * (1 if unit == "vectors" else message_size(P))
            assert total <= getattr(run, unit) < total + 2 * (1 if unit == "vectors" else message_size(P))


def test_events_are_checked_against_the_problem_of_their_time():
    (before, one), (after, other) = changing()[:2]
    [(i, j)] = np.argwhere(np.triu((one.W > 0) & (other.W == 0)))
    [(k, m)] = np.argwhere(np.triu((one.W == 0) & (other.W > 0)))
    ct.simulate(before, MP, events=[(i, j), (k, m)], changes=[(1, after)])
    with pytest.raises(ParameterError, match=f"event 1: agents number {i} and {j} are not neighbours"):
        ct.simulate(before, MP, events=[(i, j), (i, j)], changes=[(1, after)])
    with pytest.raises(ParameterError, match=f"event 0: agents number {k} and {m} are not neighbours"):
        ct.simulate(before, MP, events=[(k, m), (k, m)], changes=[(1, after)])


def location(members, p=2, loss="location"):
    points = ct.AgentData(np.ones((4, p)), agents=list(members), members=list(members))
    return ct.Problem.separate(points, ct.graphs.ring(4), loss=LOSSES[loss], ridge=0.1)


@pytest.mark.parametrize(
    ("error", "match", "changes"),
    [
        (ParameterError, "at 3 wakes: times", [(5, location("abcd")), (3, location("abcd"))]),
        (ParameterError, "at 11 wakes: times must be whole numbers up to 10", [(11, location("abcd"))]),
        (ParameterError, "at -1 wakes", [(-1, location("abcd"))]),
        (ParameterError, "at 2.5 wakes", [(2.5, location("abcd"))]),
        (ParameterError, "a change must be", [(5, "a problem")]),
        (ParameterError, "a change must be", [(5, location("abcd"), 3)]),
        (ParameterError, "a change must be", [location("abcd")]),
        (MismatchError, "same agents in the same order", [(5, location("abce"))]),
        (MismatchError, "same agents in the same order", [(5, location("bacd"))]),
        (MismatchError, "features, loss and ball", [(5, location("abcd", p=3))]),
        (MismatchError, "features, loss and ball", [(5, flat("squared"))]),
    ],
)
def test_bad_changes_are_refused(error, match, changes):
    with pytest.raises(error, match=match):
        ct.simulate(location("abcd"), MP, wakes=10, changes=changes)


def test_a_change_must_fit_the_method():
    huber = location("abcd", loss="location-huber")  # not Location(Squared), though both are Location
    for method in (MP, CD, DJAM, ADMM()):
        with pytest.raises(MismatchError):
            ct.simulate(location("abcd"), method, wakes=10, changes=[(5, huber)])
    loose = flat("huber")
    with pytest.raises(MismatchError, match=r"Huber\(delta=0.4\)"):
        ct.simulate(flat("huber", 0.1), DJAM, wakes=10, changes=[(5, loose)])
