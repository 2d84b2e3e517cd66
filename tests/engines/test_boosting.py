"""Decentralised boosting (DADA, Section 3) against plain NumPy: every step, the certificate, the messages.

The references are at the top: gradient, vertex and step as the paper prints them, on dense matrices; and the optimum by
SciPy's SLSQP in split variables. None uses the library. Base predictors have real outputs, so that no two of them are
equally good: with outputs -1 and +1 the best vertex is often not unique, and trajectories cannot be compared.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

import coterie as ct
from coterie.core.arrays import VACANT
from coterie.core.loop import NO_LIMIT
from coterie.engines.drivers import Timed
from coterie.errors import DataError, MismatchError, ParameterError

FW = ct.FrankWolfeBoosting()
WHOLE, STEP, MISSED = 0, 1, 2
LOSSES = ("adaboost", "squared")
#: For what is compiled for one loss alone, where the other one takes the same path: that is for `pytest -m slow`.
FIRST = ("adaboost", pytest.param("squared", marks=pytest.mark.slow))
#: The last agent has no edges.
EDGES = ((0, 1, 0.7), (1, 2, 1.3), (2, 3, 0.4), (0, 3, 1.0), (0, 2, 0.25))
SIZES = np.array([4, 1, 6, 3, 5])


# ---------------------------------------------------------------- reference: the objective, and Frank-Wolfe on it


class Reference(NamedTuple):
    """``mu/2 sum_{k<l} W_kl |t_k - t_l|^2 + sum_k a_k L_k(t_k)`` with one matrix of base outputs for each agent."""

    W: np.ndarray
    H: list
    y: list
    mu: float
    beta: float
    loss: str

    @property
    def a(self):
        """d_k c_k; for an agent without edges, 1: it has only itself to please."""
        degree, size = self.W.sum(axis=1), np.array([len(y) for y in self.y])
        return np.where(degree > 0, degree * size / size.max(), 1.0)

    def own(self, k, theta):
        """L_k: log sum exp of minus the margins, or the mean of halved squares."""
        z = self.H[k] @ theta
        return logsumexp(-self.y[k] * z) if self.loss == "adaboost" else np.mean((z - self.y[k]) ** 2) / 2

    def value(self, theta, everybody=False):
        """The objective of the paper leaves out agents without edges: their degree is zero."""
        square = np.square(theta[:, None] - theta[None]).sum(axis=2)
        heard = np.flatnonzero((self.W.sum(axis=1) > 0) | everybody)
        return self.mu / 4 * (self.W * square).sum() + sum(self.a[k] * self.own(k, theta[k]) for k in heard)

    def gradient(self, k, theta):
        """``-d_k c_k A_k' eta + mu (d_k t_k - sum_l w_kl t_l)``."""
        z, y = self.H[k] @ theta[k], self.y[k]
        slope = -y * softmax(-y * z) if self.loss == "adaboost" else (z - y) / len(y)
        return self.a[k] * self.H[k].T @ slope + self.mu * (self.W[k].sum() * theta[k] - self.W[k] @ theta)

    def moved(self, k, theta, step):
        """The model of agent k after a step towards the best vertex of its ball."""
        g = self.gradient(k, theta)
        size = np.sort(np.abs(g))
        assert size[-1] - size[-2] > 1e-9, "the best vertex is not unique: nothing to compare"
        s = np.zeros_like(g)
        s[np.abs(g).argmax()] = -self.beta * np.sign(g[np.abs(g).argmax()])
        return (1 - step) * theta[k] + step * s

    def replay(self, events, start, clock="local", head=0.0):
        theta, woken = np.array(start, dtype=float), np.zeros(len(self.W))
        for t, k in enumerate(events):
            now = woken[k] if clock == "local" else t / len(self.W)
            theta[k] = self.moved(k, theta, 2 / (now + head + 2))
            woken[k] += 1
        return theta

    def rounds(self, count, start):
        theta = np.array(start, dtype=float)
        for t in range(count):
            theta = np.array([self.moved(k, theta, 2 / (t + 2)) for k in range(len(theta))])
        return theta

    def optimum(self):
        """The best models, t = u - v with u, v >= 0 and sum(u + v) <= beta for each agent; nobody is left out."""
        n, p = len(self.W), self.H[0].shape[1]

        def split(x):
            return x.reshape(2, n, p)[0] - x.reshape(2, n, p)[1]

        def slope(x):
            g = np.array([self.gradient(k, split(x)) for k in range(n)])
            return np.stack([g, -g]).ravel()

        room = -np.tile(np.repeat(np.eye(n), p, axis=1), 2)
        inside = {"type": "ineq", "fun": lambda x: self.beta + room @ x, "jac": lambda x: room}
        found = minimize(
            lambda x: self.value(split(x), everybody=True),
            np.full(2 * n * p, self.beta / (4 * p)),
            jac=slope,
            bounds=[(0, None)] * (2 * n * p),
            constraints=[inside],
            method="SLSQP",
            options={"maxiter": 2000, "ftol": 1e-14},
        )
        assert found.success, found.message
        return split(found.x)


def weights(edges, n):
    W = np.zeros((n, n))
    for i, j, w in edges:
        W[i, j] = W[j, i] = w
    return W


def instance(loss="adaboost", p=7, mu=0.6, beta=2.5, sizes=SIZES, edges=EDGES, seed=0):
    """The reference, and the same as a Problem, whose base predictors are columns of a table."""
    rng = np.random.default_rng(seed)
    H = [rng.normal(size=(m, p)) for m in sizes]
    y = [rng.choice([-1.0, 1.0], size=m) if loss == "adaboost" else 2 * rng.normal(size=m) for m in sizes]
    W = weights(edges, len(sizes))
    return Reference(W, H, y, mu, beta, loss), boosting(W, H, y, base=lambda X: X, mu=mu, beta=beta, loss=loss)


def boosting(W, H, y, **options):
    owner = np.repeat(np.arange(len(y)), [len(part) for part in y])
    data = ct.AgentData(np.concatenate(H), np.concatenate(y), agents=owner, members=range(len(y)))
    return ct.Problem.boosting(data, ct.Graph(W), **options)


def schedule(n, length, seed=1):
    return np.random.default_rng(seed).integers(0, n, length)


def in_the_ball(n, p, beta, seed=2):
    theta = np.random.default_rng(seed).normal(size=(n, p))
    return 0.8 * beta * theta / np.abs(theta).sum(axis=1, keepdims=True)


# ---------------------------------------------------------------- every step


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("clock", "head", "start"),
    [("local", 0.0, "zeros"), ("global", 0.0, "zeros"), ("local", 3.0, "given"), ("global", 1.5, "given")],
)
def test_steps_are_those_of_the_paper(clock, head, start, loss):
    reference, problem = instance(loss)
    events = schedule(problem.n, 300)
    begin = np.zeros((5, 7)) if start == "zeros" else in_the_ball(5, 7, 2.5)
    run = ct.simulate(problem, ct.FrankWolfeBoosting(clock=clock, head=head), events=events, start=begin)
    expected = reference.replay(events, begin, clock, head)
    np.testing.assert_allclose(run.theta, expected, rtol=0, atol=1e-12)
    assert run.value == pytest.approx(reference.value(expected), rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_rounds_are_steps_of_all_agents_at_once(loss):
    reference, problem = instance(loss)
    begin = in_the_ball(5, 7, 2.5)
    run = ct.simulate(problem, FW, rounds=60, start=begin)
    np.testing.assert_allclose(run.theta, reference.rounds(60, begin), rtol=0, atol=1e-12)


def test_the_first_step_forgets_the_start_unless_it_has_a_head():
    _, problem = instance()
    for head, kept in ((0.0, 0.0), (2.0, 0.5)):
        begin = in_the_ball(5, 7, 2.5)
        run = ct.simulate(problem, ct.FrankWolfeBoosting(head=head), events=[2], start=begin)
        rest = run.theta[2] - kept * begin[2]
        np.testing.assert_allclose(np.sort(np.abs(rest)), [0.0] * 6 + [(1 - kept) * 2.5], rtol=0, atol=1e-12)


# ---------------------------------------------------------------- the certificate


@pytest.fixture(scope="module", params=LOSSES)
def solved(request):
    """A small connected instance with its optimum by another solver."""
    reference, problem = instance(request.param, p=5, sizes=SIZES[:4], edges=EDGES, seed=3)
    return reference, problem, reference.value(reference.optimum())


def test_the_solver_agrees_with_another(solved):
    reference, problem, optimum = solved
    best = problem.solve()
    assert np.abs(best).sum(axis=1).max() <= reference.beta * (1 + 1e-9)
    assert reference.value(best) == pytest.approx(optimum, abs=1e-6)
    assert problem.value(best) == pytest.approx(optimum, abs=1e-6)
    assert 0 <= problem.gap(best) < 1e-6


@pytest.mark.compiled
@pytest.mark.parametrize("clock", ["local", "global"])
def test_the_gap_bounds_how_far_the_optimum_is(solved, clock):
    _, problem, optimum = solved
    size = {"l1": lambda theta: np.abs(theta).sum(axis=1).max()}
    run = ct.simulate(
        problem, ct.FrankWolfeBoosting(clock=clock), wakes=100_000, start="zeros", every=500, observe=size
    )
    assert run.trace["l1"].max() <= 2.5 * (1 + 1e-12)  # models stay in their balls
    above, gap = run.trace["value"] - optimum, run.trace["gap"]
    assert (above >= -1e-9).all()
    assert (above <= gap + 1e-9).all()
    assert gap.iloc[-20:].max() < 5e-3 * gap.iloc[0]
    assert above.iloc[-1] < 2e-3 * above.iloc[0]


def test_the_gap_is_that_of_the_vertices(solved):
    """max over all vertices v of the balls of ``sum_k (t_k - v_k)' grad_k``, by trying them all."""
    reference, problem, _ = solved
    theta = in_the_ball(4, 5, reference.beta)
    expected = 0.0
    for k in range(4):
        g = reference.gradient(k, theta)
        expected += max((theta[k] - sign * reference.beta * e) @ g for e in np.eye(5) for sign in (-1, 1))
    assert problem.gap(theta) == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("clock", ["local", "global"])
def test_the_mean_over_seeds_keeps_the_bound_of_theorem_1(clock):
    """``E f(t) - f* <= 6 K (C + p0) / t``: for every accuracy, that many wakes are enough.

    C sums over the agents the largest ``(s - t)' Hessian (s - t)`` between two points of a ball. The Hessian of
    log-sum-exp is a covariance of entries of A_k (s - t), at most ``(2 beta max|A_k|)^2``, and that of the edges is at
    most ``mu d_k (2 beta)^2``: so ``C = 4 beta^2 sum_k d_k (c_k |A_k|^2 + mu)``, with |A_k| = max |A_k[r, j]|, the norm
    from l1 to l-infinity, is a bound, and a smaller one than with the l1 norms of the paper.
    """
    reference, problem = instance(p=5, sizes=SIZES[:4], edges=EDGES, seed=3)
    optimum = reference.value(reference.optimum())
    degree = reference.W.sum(axis=1)
    largest = np.array([np.abs(A).max() for A in reference.H])
    C = 4 * reference.beta**2 * (reference.a * largest**2 + reference.mu * degree).sum()
    method = ct.FrankWolfeBoosting(clock=clock)
    traces = [ct.simulate(problem, method, wakes=80_000, seed=k, start="zeros", every=400).trace for k in range(5)]
    t = traces[0]["wakes"].to_numpy(float)
    above = np.mean([trace["value"] for trace in traces], axis=0) - optimum
    assert (above[1:] <= 6 * problem.n * (C + above[0]) / t[1:]).all()
    # And not of a slower order: ten times as many wakes make it more than five times as small.
    assert above[-40:].mean() < above[20:24].mean() / 5


# ---------------------------------------------------------------- agents without edges, baselines


def test_the_objective_leaves_out_agents_without_edges_and_the_gap_does_not():
    reference, problem = instance()
    best = problem.solve()
    other = best.copy()
    other[4] = 0.0
    assert problem.value(other) == pytest.approx(problem.value(best), rel=1e-12)
    g = reference.gradient(4, other)
    assert problem.gap(other) == pytest.approx(problem.gap(best) + reference.beta * np.abs(g).max(), abs=1e-5)


def together(reference, agents):
    """One agent that holds the rows of several."""
    H, y = (np.concatenate([part[k] for k in agents]) for part in (reference.H, reference.y))
    one = boosting(np.zeros((1, 1)), [H], [y], base=lambda X: X, beta=reference.beta, loss=reference.loss)
    return one, reference._replace(W=np.zeros((1, 1)), H=[H], y=[y])


@pytest.mark.parametrize("loss", LOSSES)
def test_the_global_model_is_that_of_one_agent_with_all_rows(loss):
    reference, problem = instance(loss)
    one, pooled = together(reference, range(5))
    models = ct.baselines.GlobalModel().models(problem)
    np.testing.assert_array_equal(models, np.tile(models[0], (5, 1)))
    assert pooled.own(0, models[0]) == pytest.approx(pooled.own(0, pooled.optimum()[0]), abs=1e-6)
    np.testing.assert_allclose(models[0], one.local()[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_component_models_are_those_of_one_agent_with_the_rows_of_a_component(loss):
    reference, problem = instance(loss, edges=((0, 2, 1.0), (1, 4, 2.0)))
    models = ct.baselines.ComponentModels().models(problem)
    for component in ([0, 2], [1, 4], [3]):
        one, pooled = together(reference, component)
        least = pooled.own(0, pooled.optimum()[0])
        for k in component:
            assert pooled.own(0, models[k]) == pytest.approx(least, abs=1e-6)
            np.testing.assert_allclose(models[k], one.local()[0], rtol=0, atol=1e-4)


def test_models_drawn_to_their_mean_are_refused():
    with pytest.raises(MismatchError, match="RidgeToMean is not for boosting"):
        ct.baselines.RidgeToMean().models(instance()[1])


# ---------------------------------------------------------------- several classes


def classes(loss, seed=5):
    """A problem with three classes, and a binary one for each class against the rest."""
    rng = np.random.default_rng(seed)
    H, W = [rng.normal(size=(m, 6)) for m in SIZES], weights(EDGES, 5)
    y = [rng.integers(0, 3, m).astype(float) for m in SIZES]
    options = {"base": lambda X: X, "mu": 0.6, "beta": 2.5, "loss": loss}
    binary = [boosting(W, H, [np.where(part == c, 1.0, -1.0) for part in y], **options) for c in range(3)]
    return boosting(W, H, y, outputs=3, **options), binary


@pytest.mark.parametrize("loss", LOSSES)
def test_several_classes_are_as_many_problems_on_one_graph(loss):
    problem, binary = classes(loss)
    events, begin = schedule(5, 300), in_the_ball(5, 6, 2.5)
    run = ct.simulate(problem, FW, events=events, start=np.tile(begin, 3))
    runs = [ct.simulate(each, FW, events=events, start=begin) for each in binary]
    np.testing.assert_allclose(run.theta, np.hstack([each.theta for each in runs]), rtol=0, atol=1e-12)
    assert run.value == pytest.approx(sum(each.value for each in runs), rel=1e-12)
    gaps = [each.trace["gap"].iloc[-1] for each in runs]
    assert run.trace["gap"].iloc[-1] == pytest.approx(sum(gaps), rel=1e-9)


@pytest.mark.parametrize(
    "models", [ct.Problem.solve, ct.baselines.GlobalModel().models, ct.baselines.ComponentModels().models]
)
def test_exact_models_of_several_classes_are_those_of_each(models):
    problem, binary = classes("adaboost")
    theta = models(problem).reshape(5, 3, 6)
    for c, each in enumerate(binary):
        expected = models(each)
        assert each.value(theta[:, c]) == pytest.approx(each.value(expected), abs=1e-6)
        np.testing.assert_allclose(theta[:, c], expected, rtol=0, atol=1e-3)


# ---------------------------------------------------------------- messages


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_wake_sends_a_few_numbers_to_each_neighbour(outputs):
    problem = instance()[1] if outputs == 1 else classes("adaboost")[0]
    neighbours, events = (weights(EDGES, 5) > 0).sum(axis=1), [0, 1, 4, 2, 2, 3]
    run = ct.simulate(problem, FW, events=events, start="zeros", every=1)
    sent = neighbours[events].sum()
    assert run.tally.tolist() == [[10, 10], [sent, (2 + outputs) * sent], [0, 0]]
    assert run.messages == 10 + sent
    frame = 16 + 8 * (2 + outputs)
    assert np.diff(run.trace["bytes"]).tolist() == (frame * neighbours[events]).tolist()
    assert run.trace["bytes"].iloc[0] == 10 * (16 + 8)  # a model of zeros is a number of steps and nothing else
    assert run.bytes == 10 * 24 + frame * sent


def wide(start_of, p=200, seed=6):
    """200 base predictors, and models with some nonzero coordinates."""
    _, problem = instance(p=p, seed=seed)
    theta, rng = np.zeros((5, p)), np.random.default_rng(seed)
    for k, count in enumerate(start_of):
        theta[k, rng.choice(p, count, replace=False)] = 1.0 / max(count, 1)
    return problem, theta


@pytest.mark.parametrize("nonzero", [[3, 0, 99, 1, 7], [3, 0, 0, 0, 0], [100, 200, 0, 0, 0], [200, 200, 200, 200, 0]])
def test_messages_hold_what_is_not_zero_and_bits_are_those_of_section_d(nonzero):
    """Greetings are pairs, however many; a step is a real number, an index and a sign (whole models beside them)."""
    neighbours = (weights(EDGES, 5) > 0).sum(axis=1)
    problem, theta = wide(nonzero)
    pairs = (neighbours * nonzero).sum()
    run = ct.simulate(problem, FW, wakes=0, start=theta)
    assert run.tally.tolist() == [[10, 10 + 2 * pairs], [0, 0], [0, 0]]
    assert run.bytes == 16 * 10 + 8 * (10 + 2 * pairs)
    events = schedule(5, 400)
    run = ct.simulate(problem, FW, events=events, start=theta)
    for number_bits in (32, 64):
        steps = neighbours[events].sum() * (number_bits + np.log2(200) + 1)
        assert run.bits(number_bits) == pytest.approx(steps + pairs * (number_bits + np.log2(200)), rel=1e-12)


# ---------------------------------------------------------------- bad mail


def copies(driver):
    """Of every edge: whose model is copied, the copy, how many steps are in it, and how many its owner has taken."""
    tied = driver.arrays.peer != VACANT
    peer = driver.arrays.peer[tied]
    copy = np.zeros((len(peer), driver.theta.shape[1]))
    for row, edge in enumerate(np.flatnonzero(tied)):
        size = driver.edge.size[edge]
        copy[row, driver.edge.entry[edge, :size]] = driver.edge.value[edge, :size]
    return peer, copy, driver.edge.heard[tied], driver.own.steps[peer, 0]


def test_copies_are_repaired_once_the_mail_is_good():
    _, problem = instance(edges=(*EDGES, (3, 4, 0.9)))
    bad = ct.Conditions(loss=0.3, latency=1.0, duplication=0.1)
    driver = Timed.of(problem, FW, np.zeros((5, 7)), 0, conditions=bad)
    driver.advance(2000, NO_LIMIT)
    peer, copy, heard, taken = copies(driver)
    assert (heard < taken).any()
    assert np.abs(copy - driver.theta[peer]).max() > 1e-6  # so there is something to repair
    driver.channel = ct.Conditions().channel(5)
    driver.advance(200, NO_LIMIT)
    peer, copy, heard, taken = copies(driver)
    late = heard < taken  # the messages of the last wake are still in the mail
    assert len(set(peer[late])) <= 1
    np.testing.assert_array_equal(heard[late], taken[late] - 1)
    np.testing.assert_array_equal(copy[~late], driver.theta[peer[~late]])


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("solved", FIRST, indirect=True)
def test_lost_messages_do_not_keep_agents_from_the_optimum(solved):
    _, problem, optimum = solved
    bad = ct.Conditions(loss=0.3, latency=1.0)
    run = ct.simulate(problem, FW, wakes=100_000, start="zeros", conditions=bad)
    assert run.lost > 0.25 * run.messages
    assert run.tally[MISSED, 0] > 0
    assert run.tally[WHOLE, 0] > 10  # answers to them
    begin = run.trace["value"].iloc[0] - optimum
    assert -1e-9 <= run.value - optimum <= min(run.trace["gap"].iloc[-1] + 1e-9, 5e-3 * begin)


def test_good_mail_needs_no_repairs():
    _, problem = instance()
    slow = ct.Conditions(latency=3.0, jitter=0.0)  # late, and in order
    run = ct.simulate(problem, FW, wakes=3000, start="zeros", conditions=slow)
    assert run.tally[MISSED].tolist() == [0, 0]
    assert run.tally[WHOLE, 0] == 10


# ---------------------------------------------------------------- what describes a dictionary


def test_margin_matrices_are_the_same_as_a_function():
    reference, problem = instance()
    margins = [y[:, None] * H for y, H in zip(reference.y, reference.H, strict=True)]
    given = ct.Problem.boosting(None, problem.graph, base=margins, mu=0.6, beta=2.5)
    events = schedule(5, 300)
    runs = [ct.simulate(each, FW, events=events, start="zeros") for each in (problem, given)]
    np.testing.assert_allclose(runs[0].theta, runs[1].theta, rtol=0, atol=1e-12)
    assert given.value(runs[0].theta) == pytest.approx(reference.value(runs[0].theta), rel=1e-12)
    assert given.gap(runs[0].theta) == pytest.approx(problem.gap(runs[0].theta), rel=1e-9)


def test_more_rows_do_not_move_the_stumps():
    data = ct.AgentData([[0.0], [1.0], [2.0], [4.0]], [-1, 1, -1, 1], agents=["a", "b", "a", "b"])
    problem = ct.Problem.boosting(data, ct.graphs.complete(2), base=ct.Stumps(4), beta=2.0)
    np.testing.assert_array_equal(problem.base.threshold, [0.5, 1.5, 2.5, 3.5])
    later = problem.on(data=data.with_rows([[100.0], [-100.0], [1.7]], [1, -1, 1], agents=["a", "a", "b"]))
    np.testing.assert_array_equal(later.base.threshold, [0.5, 1.5, 2.5, 3.5])
    votes = {"a": [[-1] * 4, [1, 1, -1, -1], [1] * 4, [-1] * 4], "b": [[1, -1, -1, -1], [1] * 4, [1, 1, -1, -1]]}
    for agent, expected in votes.items():
        np.testing.assert_array_equal(later.data.rows_of(agent)[0], expected)
    theta = np.array([[0.1, 0.2, -0.3, 0.4], [0.5, 0.0, 0.0, -0.6]])
    margins = [np.array([-1, -1, 1, -1]) * (np.array(votes["a"]) @ theta[0]), np.array(votes["b"]) @ theta[1]]
    losses = [logsumexp(-each) for each in margins]  # all labels of b are 1
    expected = np.square(theta[0] - theta[1]).sum() / 2 + losses[0] + 0.75 * losses[1]
    assert later.value(theta) == pytest.approx(expected, rel=1e-12)


def test_a_run_goes_on_with_more_rows():
    """Margins that an agent keeps of its examples are made anew."""
    reference, problem = instance()
    rng = np.random.default_rng(9)
    X, y, agents = rng.normal(size=(4, 7)), np.array([1.0, -1.0, 1.0, 1.0]), np.array([1, 1, 3, 4])
    later = problem.on(data=problem.data.with_rows(X, y, agents=agents))
    events = schedule(5, 200)
    run = ct.simulate(problem, FW, events=events, start="zeros", changes=[(80, later)])
    theta, woken = np.zeros((5, 7)), np.zeros(5)
    grown = reference._replace(
        H=[np.vstack([H, X[agents == k]]) for k, H in enumerate(reference.H)],
        y=[np.concatenate([part, y[agents == k]]) for k, part in enumerate(reference.y)],
    )
    for t, k in enumerate(events):
        theta[k] = (reference if t < 80 else grown).moved(k, theta, 2 / (woken[k] + 2))
        woken[k] += 1
    np.testing.assert_allclose(run.theta, theta, rtol=0, atol=1e-12)


# ---------------------------------------------------------------- bad input


DATA = ct.AgentData(np.arange(12.0).reshape(6, 2), [1, -1, 1, -1, 1, -1], agents=["ann", "bob", "cy"] * 2)
TRIANGLE = ct.graphs.complete(3)


def broken(X):
    said = np.hstack([X, X])
    said[X[:, 0] == 8.0, 3] = np.nan  # the fifth row of the input, of bob
    return said


def posed(labels=DATA.y, base=4, data=DATA, **options):
    return ct.Problem.boosting(data and data.with_labels(labels), TRIANGLE, base=base, **options)


ONES = np.ones((2, 4))
NUMBER = "expected a positive finite number"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: posed(base=broken), DataError, r"row 4 \(agent 'bob'\): base predictor 3 says nan"),
        (lambda: posed(base=0), ParameterError, "count = 0: expected an integer >= 1"),
        (lambda: posed(base=[]), ParameterError, "at least one base predictor"),
        (lambda: posed(base=lambda X: np.zeros((len(X), 0))), DataError, "at least one base predictor"),
        (lambda: posed(beta=0.0), ParameterError, f"beta = 0.0: {NUMBER}"),
        (lambda: posed(beta=-1.0), ParameterError, f"beta = -1.0: {NUMBER}"),
        (lambda: posed(beta=np.nan), ParameterError, f"beta = nan: {NUMBER}"),
        (lambda: posed(beta=np.inf), ParameterError, f"beta = inf: {NUMBER}"),
        (lambda: posed(mu=-0.1), ParameterError, "mu = -0.1: expected a nonnegative finite number"),
        (lambda: posed(mu=np.nan), ParameterError, "mu = nan: expected a nonnegative finite number"),
        (lambda: posed(loss="ada"), ParameterError, "unknown loss 'ada'"),
        (lambda: ct.Stumps(0), ParameterError, "count = 0: expected an integer >= 1"),
        (lambda: posed(data=None, base=[np.zeros((2, 0))] * 3), DataError, "these margin matrices have no column"),
        (lambda: posed(data=None, base=[ONES, ONES[:, :3], ONES]), DataError, r"agent number 1 has shape \(2, 3\)"),
        (
            lambda: posed(data=None, base=[ONES, ONES[:1], np.where(np.eye(2, 4), np.nan, 1.0)]),
            DataError,
            "0 has margin nan on row 0 of agent number 2",
        ),
        (lambda: posed(data=None, base="margins"), DataError, "base must be a list of margin matrices"),
        (lambda: posed(data=None, base=[ONES] * 3, outputs=2), (ParameterError, MismatchError), "outputs"),
        (
            lambda: posed([1, -1, 1, -1, 0.5, -1]),
            DataError,
            r"row 4 \(agent 'bob'\) has label 0.5: .* labels -1 or \+1",
        ),
        (
            lambda: posed([1, 0, 1, 0, 1, 0]),
            DataError,
            r"row \d \(agent '\w+'\) has label 0: .*for 0 and 1, pass 2 \* y - 1",
        ),
        (
            lambda: posed([0, 1, 2, 3, 0, 1], outputs=3),
            DataError,
            r"row 3 \(agent 'ann'\) has label 3: outputs=3 takes 0 to 2",
        ),
        (lambda: posed([0, 1, 2, 1.5, 0, 1], outputs=3), DataError, r"row 3 \(agent 'ann'\) has label 1.5"),
        (lambda: posed(None), DataError, "needs labels"),
        (lambda: posed(None, outputs=3), DataError, "needs labels"),
        (lambda: posed(outputs=0), ParameterError, "outputs"),
        (lambda: posed(outputs=1.5), ParameterError, "outputs"),
        (lambda: posed(outputs="3"), ParameterError, "outputs"),
        (lambda: posed(outputs=None), ParameterError, "outputs"),
        (lambda: ct.FrankWolfeBoosting(clock="mine"), ParameterError, "FrankWolfeBoosting: clock ="),
        (lambda: ct.FrankWolfeBoosting(head=-1.0), ParameterError, "FrankWolfeBoosting: head ="),
        (lambda: ct.FrankWolfeBoosting(head=np.inf), ParameterError, "FrankWolfeBoosting: head ="),
        (lambda: ct.FrankWolfeBoosting(head="3"), ParameterError, "FrankWolfeBoosting: head ="),
    ],
)
def test_what_makes_no_sense_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_start_outside_the_balls_is_refused():
    problem = ct.Problem.boosting(DATA, TRIANGLE, base=4, beta=2.0)
    theta = np.zeros((3, 4))
    theta[1] = [-1.0, 0.5, 0.5, 0.1]
    with pytest.raises(ParameterError, match=r"agent 'bob' has l1 norm 2.1: models must stay within beta=2"):
        ct.simulate(problem, FW, wakes=1, start=theta)
    several = ct.Problem.boosting(DATA.with_labels([0, 1, 0, 1, 0, 1]), TRIANGLE, base=4, beta=2.0, outputs=2)
    theta = np.zeros((3, 8))
    theta[2] = [1.0, 1.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0]  # each part in its own ball
    assert several.checked(theta) is not None
    theta[2, 4] = 0.5
    with pytest.raises(ParameterError, match=r"agent 'cy' has l1 norm 2.5"):
        several.checked(theta)


@pytest.mark.parametrize("method", ["cd", "propagation", "djam", "admm", ct.Learned("cd", ct.GraphRule(kappa=1))])
def test_methods_that_leave_the_ball_are_refused(method):
    problem = ct.Problem.boosting(DATA, TRIANGLE, base=4)
    with pytest.raises(MismatchError, match="does not keep models in a ball"):
        ct.simulate(problem, method, wakes=1, start="zeros")


def test_problems_without_a_ball_are_refused():
    with pytest.raises(MismatchError, match=r"is for Problem.boosting.*this is personalized"):
        ct.simulate(ct.Problem.personalized(DATA, TRIANGLE), FW, wakes=1, start="zeros")
    with pytest.raises(MismatchError, match="has a kink"):
        ct.simulate(ct.Problem.boosting(DATA, TRIANGLE, base=4, loss="hinge"), FW, wakes=1, start="zeros")


def test_bits_of_a_step_of_several_classes():
    problem, _ = classes("adaboost")
    run = ct.simulate(problem, FW, events=[1], start="zeros")
    assert run.bits(32) == pytest.approx(2 * (32 + 3 * (np.log2(6) + 1)), rel=1e-12)
