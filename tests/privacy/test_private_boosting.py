"""Private boosting against plain NumPy: how often each vertex is chosen, what one example can change, what is sent.

The reference at the top computes scores and probabilities in floating point from the definition, without the library.
Tests of frequencies are seeded; of all seeds, one in 10,000 would fail them.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from scipy.special import expit, softmax
from scipy.stats import chisquare

import coterie as ct
from coterie.core import loop
from coterie.core.arrays import REFUSED, data_of, row, rows
from coterie.core.linear import rows_of
from coterie.core.methods.boosting import MISSED, STEP, WHOLE, move
from coterie.core.private.account import RELEASES
from coterie.core.private.boosting import MAX_SCORE, SENSITIVITY, clipped_votes, drawn_vertex, score_all
from coterie.core.private.noise import KEY
from coterie.core.private.terms import GRID
from coterie.engines.arrays import arrays_of
from coterie.engines.drivers import Immediate
from coterie.errors import MismatchError, ParameterError
from coterie.testing.shared import hosted, same

FW = ct.FrankWolfeBoosting()


# ---------------------------------------------------------------- reference


class Reference(NamedTuple):
    """One agent with examples (H, y), importance a, and neighbours' models at weights w."""

    H: np.ndarray
    y: np.ndarray
    a: float
    w: np.ndarray
    heard: np.ndarray
    mu: float

    def parts(self, theta, clip=np.inf):
        """The gradient of each example's logistic loss, each coordinate clipped."""
        slope = -self.y * expit(-self.y * (self.H @ theta))
        return np.clip(slope[:, None] * self.H, -clip, clip)

    def gradient(self, theta, clip=np.inf):
        pull = self.mu * (self.w.sum() * theta - self.w @ self.heard)
        return self.a * self.parts(theta, clip).mean(axis=0) + pull

    def probabilities(self, theta, clip, epsilon, unclipped=False):
        """Of +e_1, ..., +e_p, -e_1, ..., -e_p: ``exp(epsilon q / (2 Delta))``, where ``Delta = 2 a clip / m``."""
        g = self.gradient(theta, np.inf if unclipped else clip)
        return softmax(np.concatenate([-g, g]) * epsilon / (2 * 2 * self.a * clip / len(self.y)))


def boosting(H, y, graph, loss="logistic", **options):
    owner = np.repeat(np.arange(len(y)), [len(part) for part in y])
    data = ct.AgentData(np.concatenate(H), np.concatenate(y), agents=owner, members=range(len(y)))
    return ct.Problem.boosting(data, graph, base=lambda X: X, loss=loss, **options)


def instance(n=5, p=6, rows=(3, 9), seed=0, scale=1.0, **options):
    """A problem whose base predictors are columns of a table; the last agent has no examples."""
    rng = np.random.default_rng(seed)
    sizes = [*rng.integers(*rows, n - 1), 0]
    H = [scale * rng.normal(size=(m, p)) for m in sizes]
    truth = rng.normal(size=p)
    y = [np.where(each @ truth + 0.3 * rng.normal(size=len(each)) > 0, 1.0, -1.0) for each in H]
    return boosting(H, y, ct.graphs.ring(n), **{"mu": 0.3, "beta": 2.5} | options)


def private(epsilon=1.0, wakes_per_agent=4, method=FW, **options):
    return ct.Private(method, epsilon=epsilon, delta=1e-5, wakes_per_agent=wakes_per_agent, **options)


def one(problem, method, k, theta):
    """What agent k sees when everybody is at ``theta`` and has been heard: data, its own state, its edges."""
    arrays = arrays_of(problem)
    own, edge = method.start(arrays, theta)
    a, b = arrays.edge_start[k], arrays.edge_start[k + 1]
    for slot in range(a, b):
        peer = theta[arrays.peer[slot]]
        (entry,) = np.nonzero(peer)
        edge.size[slot] = len(entry)
        edge.entry[slot, : len(entry)], edge.value[slot, : len(entry)] = entry, peer[entry]
    return data_of(arrays, k), row(own, k), rows(edge, a, b)


def scores_of(data, me, edges, clip):
    pull, scores = np.zeros(len(me.theta)), np.zeros(2 * len(me.theta), np.int64)
    return score_all(data, me, edges, clip, pull, scores), scores, pull


# ---------------------------------------------------------------- the choice


PAIRS = 20_000


@pytest.fixture(scope="module")
def choices():
    """What 20,000 agents choose at their first wake, all with the same examples, model and neighbour.

    Even agents have the examples, and each is connected to an odd one that has none. The first step has length 1: the
    model is the vertex.
    """
    rng = np.random.default_rng(3)
    H, y, clip, beta, mu, w = rng.normal(size=(3, 4)), np.array([1.0, -1.0, 1.0]), 0.25, 2.0, 0.08, 0.7
    theta = np.array([[0.5, -0.2, 0.0, 0.3], [-0.4, 0.0, 0.9, 0.1]])
    even = 2 * np.arange(PAIRS)
    graph = ct.Graph.from_edges(2 * PAIRS, even, even + 1, np.full(PAIRS, w))
    data = ct.AgentData(np.tile(H, (PAIRS, 1)), np.tile(y, PAIRS), agents=np.repeat(even, 3), members=range(2 * PAIRS))
    problem = ct.Problem.boosting(data, graph, base=lambda X: X, mu=mu, beta=beta, loss="logistic")
    method = private(6.0, 2, clip=clip, final=None)
    run = ct.simulate(problem, method, events=even, start=np.tile(theta, (PAIRS, 1)), seed=5)
    votes = run.theta[even]
    assert np.all(np.sort(np.abs(votes), axis=1) == [0.0, 0.0, 0.0, beta])
    found = np.concatenate([(votes > 0).sum(axis=0), (votes < 0).sum(axis=0)])
    reference = Reference(H, y, w, np.array([w]), theta[1:], mu)
    assert (np.abs(reference.parts(theta[0])) > clip).sum() >= 3  # there is something to clip
    assert np.abs(reference.gradient(theta[0]) - reference._replace(mu=0.0).gradient(theta[0])).max() > 0.03
    return reference, theta[0], clip, 1 / method.terms.noise[0], found


def level(found, probabilities):
    return chisquare(found, probabilities * found.sum()).pvalue


@pytest.mark.slow
def test_vertices_are_chosen_as_often_as_the_mechanism_says(choices):
    reference, theta, clip, epsilon, found = choices
    assert level(found, reference.probabilities(theta, clip, epsilon)) > 1e-4


@pytest.mark.slow
def test_the_frequencies_would_show_a_mistake(choices):
    reference, theta, clip, epsilon, found = choices
    for wrong in (
        reference.probabilities(theta, clip, 1.1 * epsilon),
        reference.probabilities(theta, clip, epsilon, unclipped=True),
        reference._replace(mu=0.0).probabilities(theta, clip, epsilon),
        np.roll(reference.probabilities(theta, clip, epsilon), 4),  # signs
    ):
        assert level(found, wrong) < 1e-8


def test_scores_are_those_of_the_definition():
    problem, clip = instance(), 0.6
    theta = 0.3 * np.random.default_rng(1).normal(size=(5, 6))
    weights = problem.graph.W.toarray()
    for k in range(4):
        data, me, edges = one(problem, private(), k, theta)
        X, y = problem.data.rows_of(k)
        reference = Reference(X, y, problem.a[k], weights[k], theta, 0.3)
        heard, scores, _ = scores_of(data, me, edges, clip)
        assert heard
        np.testing.assert_array_equal(scores[:6], -scores[6:])
        unit = problem.a[k] / len(y) * clip / GRID
        # Each example is cut by less than a grid step, and the public part rounded.
        np.testing.assert_allclose(scores[6:], reference.gradient(theta[k], clip) / unit, rtol=0, atol=len(y) + 1)


# ---------------------------------------------------------------- what one example can change


WILD = (0.0, 1.0, -1.0, 1e-300, -1e-9, 3.7, -250.0, 1e18, -1e160, 1.7e308)


def wild(rng, shape):
    return np.where(rng.random(shape) < 0.5, rng.normal(size=shape), rng.choice(WILD, size=shape))


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["logistic", "squared", "smooth-hinge"])
def test_no_example_changes_a_score_by_more_than_the_sensitivity(loss):
    """At the start and after steps, whatever the examples are and whatever neighbours have sent."""
    rng = np.random.default_rng(4)
    p, widest = 3, 0
    for trial in range(300):
        m, clip = int(rng.integers(1, 5)), float(10.0 ** rng.integers(-8, 9))
        H, y = wild(rng, (m, p)), rng.choice([-1.0, 1.0], m)
        other, label = H.copy(), y.copy()
        r = rng.integers(m)
        other[r], label[r] = wild(rng, p), rng.choice([-1.0, 1.0])
        theta = np.zeros((2, p)) if trial % 3 else np.array([[0.5, -1.0, 0.0], [0.0, 0.2, 1.0]])
        sent = wild(rng, p) if trial % 2 else rng.choice([np.nan, np.inf, -1e308, 5.0], size=p)
        goals = rng.choice([-3, -2, -1, 1, 2, 3], size=3)
        tame = boosting([np.ones((m, p)), np.zeros((0, p))], [y, np.zeros(0)], ct.graphs.complete(2), loss, beta=2.0)
        tables = []
        for X, labels in ((H, y), (other, label)):
            table = []
            with np.errstate(all="ignore"):
                data, me, edges = one(tame, private(), 0, theta)
                data = data._replace(rows=rows_of(X), labels=labels)
                me = me._replace(cache=np.array([data.rows.dot(k, theta[0]) for k in range(m)]))
                edges.size[0], edges.entry[0, :p], edges.value[0, :p] = p, np.arange(p), sent
                for t, goal in enumerate((0, *goals)):
                    move(data, me, 0, goal, 2 / (t + 2))  # what was published; at first nothing
                    heard, scores, _ = scores_of(data, me, edges, clip)
                    assert heard
                    table.append(scores)
            tables.append(np.array(table))
        assert np.abs(tables).max() <= MAX_SCORE
        change = int(np.abs(tables[0] - tables[1]).max())
        assert change <= SENSITIVITY == 2 * GRID
        widest = max(widest, change)
    assert widest == SENSITIVITY  # which it can reach


def test_absurd_examples_have_no_part():
    """A margin that is not finite counts as zero, and so do products that are no number."""
    problem = boosting([[[1.0, 2.0], [3.0, -4.0], [5.0, 6.0]]], [np.ones(3)], ct.graphs.empty(1))
    data = data_of(arrays_of(problem), 0)
    for bad in (np.nan, np.inf, -np.inf):
        total = np.zeros(2, np.int64)
        clipped_votes(data, np.array([bad, 0.0, bad]), 10.0, total)
        np.testing.assert_array_equal(total, [-int(0.15 * GRID), int(0.2 * GRID)])
    nothing = rows_of(np.array([[np.nan, 2.0], [np.inf, -4.0], [1.0, np.nan]]))
    total = np.zeros(2, np.int64)
    clipped_votes(data._replace(rows=nothing), np.zeros(3), 10.0, total)  # margins that are known without these entries
    np.testing.assert_array_equal(total, [-GRID - int(0.05 * GRID), -int(0.1 * GRID) + int(0.2 * GRID)])


# ---------------------------------------------------------------- who has nothing to hide


def test_an_agent_without_examples_goes_where_its_neighbours_pull():
    problem, method = instance(), private()
    theta = np.zeros((5, 6))
    theta[0], theta[3] = [0.0, 1.0, 0.0, 0.0, -0.2, 0.0], [0.0, -0.5, 0.0, 0.0, -1.9, 0.0]
    data, me, edges = one(problem, method, 4, theta)
    for seed in range(20):
        dice = np.random.default_rng(seed).random(KEY)
        assert drawn_vertex(method.terms, data, me, edges, 0, dice, np.zeros(50), np.zeros(6)) == -5
    data, me, edges = one(problem, method, 4, np.zeros((5, 6)))
    assert (
        drawn_vertex(method.terms, data, me, edges, 0, dice, np.zeros(50), np.zeros(6)) == 0
    )  # nobody pulls: it stays


def test_an_agent_whose_loss_has_no_weight_tells_nothing_of_it():
    problem, method = instance(confidence=[1.0, 0.0, 1.0, 1.0, 1.0]), private()
    theta = np.zeros((5, 6))
    theta[2, 3] = 1.0
    data, me, edges = one(problem, method, 1, theta)
    assert data.labels.size
    heard, _, pull = scores_of(data, me, edges, 1.0)
    assert not heard
    np.testing.assert_allclose(pull, -0.3 * theta[2], rtol=1e-12)
    assert {
        drawn_vertex(method.terms, data, me, edges, 0, np.full(KEY, u), np.zeros(50), np.zeros(6))
        for u in (0.1, 0.5, 0.9)
    } == {4}


# ---------------------------------------------------------------- a run


@pytest.mark.compiled
@pytest.mark.parametrize(
    "method",
    [FW, pytest.param(ct.FrankWolfeBoosting(clock="global", head=2.0), marks=pytest.mark.slow)],
    ids=["clocks", "one clock"],
)
def test_compiled_code_and_plain_python_agree(method):
    problem, method = instance(), private(3.0, 6, method)
    rng = np.random.default_rng(0)
    events = rng.integers(0, 5, 40), np.full(40, -1), rng.random((40, method.dice)), np.arange(40) / 5
    one, other = (hosted(method, problem, np.zeros((5, 6)), events, compiled) for compiled in (True, False))
    assert same(one[1:], other[1:])


def test_a_spent_budget_ends_in_silence():
    problem, method = instance(), private(wakes_per_agent=3)
    driver = Immediate.of(problem, method, np.zeros((5, 6)), 0)
    driver.advance(200, loop.NO_LIMIT)
    counts = driver.account[loop.KINDS :].reshape(-1, 2)
    assert counts[:, 0].tolist() == [10, 5 * 3 * 2, 0]  # the swap; three steps of each, to two neighbours; no repairs
    np.testing.assert_array_equal(driver.own.account[:, RELEASES], 3)
    np.testing.assert_array_equal(driver.own.steps[:, 0], 3)
    before = driver.theta.copy(), driver.account.copy()
    driver.advance(100, loop.NO_LIMIT)
    np.testing.assert_array_equal(driver.theta, before[0])
    np.testing.assert_array_equal(driver.account, before[1])


def test_messages_say_all_that_a_model_is():
    """Index, sign and a public step: a neighbour that has followed them holds the model, bit for bit."""
    problem, method = instance(), private(2.0, 5)
    driver = Immediate.of(problem, method, np.zeros((5, 6)), 1)
    driver.advance(25, loop.NO_LIMIT)
    assert np.abs(driver.theta).max() > 0
    for edge, peer in enumerate(driver.arrays.peer):
        copy, size = np.zeros(6), driver.edge.size[edge]
        copy[driver.edge.entry[edge, :size]] = driver.edge.value[edge, :size]
        np.testing.assert_array_equal(copy, driver.theta[peer])


def test_a_run_has_its_claim():
    problem, method = instance(n=8), private(2.0, 5)
    assert repr(method) == (
        "Private(FrankWolfeBoosting(clock='local'), epsilon=2, delta=1e-05, mechanism='exponential', "
        "wakes_per_agent=5, final='local')"
    )
    assert (method.on_balls, method.wakes_per_agent, method.finish is None) == (True, 5, False)
    run = ct.simulate(problem, method, seed=1)
    assert (run.wakes, run.epsilon, run.delta) == (40, 2.0, 1e-5)
    assert run.bits(32) > 0
    assert np.abs(run.published).sum(axis=1).max() <= 2.5 * (1 + 1e-12)
    again = ct.simulate(problem, method, seed=1)
    np.testing.assert_array_equal(run.published, again.published)
    np.testing.assert_array_equal(run.theta, again.theta)


def test_with_a_large_budget_it_is_boosting_and_with_a_small_one_noise():
    problem = instance(n=12, rows=(30, 40), beta=2.0)
    plain = ct.simulate(problem, FW, events=np.tile(np.arange(12), 40), start="zeros").value
    start, optimum = problem.value(np.zeros((12, 6))), problem.value(problem.solve())
    rich, poor = (
        ct.simulate(problem, private(epsilon, 40, final=None), events=np.tile(np.arange(12), 40)).value
        for epsilon in (1000.0, 0.01)
    )
    assert rich - optimum < 0.1 * (start - optimum)
    assert abs(rich - plain) < 0.1 * (start - optimum)
    assert poor > plain + 0.2 * (start - optimum)


# ---------------------------------------------------------------- hostile neighbours


def test_hostile_messages_do_no_harm():
    problem, method = instance(), private(wakes_per_agent=8)
    driver = Immediate.of(problem, method, np.zeros((5, 6)), 0)
    huge = (np.nan, np.inf, -np.inf, 1e308, -1e308, 1e18, -7.0, 0.5, 3.0)
    messages = [(STEP, [a, b, c]) for a, b, c in product((1.0, 9.0, np.inf, np.nan), huge, huge)]
    messages += [(WHOLE, [a, i, v, 2.0, w]) for a, i, v, w in product((0.0, 1e300), (0.0, 5.0), huge, huge)]
    messages += [(WHOLE, [2.0]), (MISSED, [])]
    for k, (kind, text) in enumerate(messages):
        padded = np.zeros((1, 13))
        padded[0, : len(text)] = text
        address = [np.array([each]) for each in (1, k % 2 * 2, kind, len(text))]  # from 1, to its neighbours 0 and 2
        loop.accept(
            method,
            driver.arrays,
            driver.own,
            driver.edge,
            driver.outbox,
            driver.egress,
            driver.account,
            *address,
            padded,
        )
        assert not driver.outbox.cursor[REFUSED]
        for edge in range(driver.edge.size.shape[0]):  # nobody is taken to be outside its ball
            assert np.abs(driver.edge.value[edge, : driver.edge.size[edge]]).sum() <= 2.5 * (1 + 1e-6)
        if k % 17 == 0:
            driver.advance(1, loop.NO_LIMIT)
    driver.advance(60, loop.NO_LIMIT)
    assert np.abs(driver.theta).sum(axis=1).max() <= 2.5 * (1 + 1e-12)
    assert np.abs(driver.final).sum(axis=1).max() <= 2.5 * (1 + 1e-12)


# ---------------------------------------------------------------- the final step


def own_losses(problem, theta):
    losses = []
    for k in range(problem.n):
        X, y = problem.data.rows_of(k)
        losses.append(np.logaddexp(0.0, -y * (X @ theta[k])).mean() if len(y) else 0.0)
    return np.array(losses)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("epsilon", [0.05, 50.0])
def test_the_final_step_helps_an_agent_and_stays_in_the_ball(epsilon):
    problem = instance(n=8, rows=(10, 20), seed=2)
    runs = [ct.simulate(problem, private(epsilon, 6, final=final), seed=3) for final in ("local", None)]
    np.testing.assert_array_equal(runs[0].published, runs[1].theta)  # nobody sees it
    assert runs[0].bytes == runs[1].bytes
    assert np.abs(runs[0].theta).sum(axis=1).max() <= 2.5 * (1 + 1e-12)
    before, after = own_losses(problem, runs[0].published)[:-1], own_losses(problem, runs[0].theta)[:-1]
    assert after.mean() < before.mean()
    if epsilon < 1:  # what neighbours say is noise, and an agent with ten examples notices
        alone = own_losses(problem, problem.on(graph=ct.graphs.empty(8)).solve())[:-1]
        assert after.mean() < alone.mean() + 0.5 * (before.mean() - alone.mean())


def test_one_example_is_too_few_to_choose():
    problem = boosting([[[1.0, 0.0]], [[0.0, 1.0]]], [[1.0], [1.0]], ct.graphs.complete(2), mu=1.0, beta=2.0)
    run = ct.simulate(problem, private(1.0, 3), seed=0)
    assert np.isfinite(run.theta).all()


# ---------------------------------------------------------------- problems that it is not for


def test_problems_that_cannot_be_private_are_refused():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(6, 3)), np.array([1.0, -1.0] * 3)
    data, graph = ct.AgentData(X, y, agents=[0, 1, 2] * 2), ct.graphs.complete(3)
    public = ct.Stumps(3, low=-1.0, high=1.0)
    classes = ct.Problem.boosting(data.with_labels([0, 1, 2] * 2), graph, base=public, loss="logistic", outputs=3)
    for problem, words in (
        (ct.Problem.boosting(data, graph, base=3, loss="logistic"), "computed from all agents' data"),
        (ct.Problem.boosting(data, graph, base=public), "one example can take all the weight"),
        (classes, "use one output"),
        (ct.Problem.boosting(data, graph, base=public, loss="hinge"), "kink"),
        (ct.Problem.personalized(data, graph), "is for Problem.boosting"),
    ):
        with pytest.raises(MismatchError, match=words):
            ct.simulate(problem, private())
    with pytest.raises(ParameterError, match="exponential"):
        private(mechanism="gaussian")
