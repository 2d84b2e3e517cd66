"""Exact solutions of many agents: batches, threads, pieces, single precision, and proofs of optimality.

Optima come from SciPy and NumPy, agent by agent; what must not depend on how work is cut is compared to the last bit.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize

import coterie as ct
from coterie.core import batches as batches_module
from coterie.core.linear import DenseRows, frozen, gram_norms
from coterie.graphs import empty
from coterie.problem import exact
from coterie.problem.exact import certificate
from coterie.problem.exact import objective as objective_module
from references import examples

LOSSES = ["squared", "logistic", "huber", "smooth-hinge", "hinge"]
SIGNED = ("logistic", "hinge", "smooth-hinge")


def ring(n, rng, apart=1):
    """A circle of edges, and some across; `apart` circles that are not connected to each other."""
    i = np.arange(n)
    j = i // apart * apart + (i + 1) % apart if apart > 1 else (i + 1) % n
    k = (i * 7 + 3) % n if apart == 1 else i
    a, b = np.concatenate([i, i]), np.concatenate([j, k])
    once = np.unique(np.stack([np.minimum(a, b), np.maximum(a, b)])[:, a != b], axis=1)
    return ct.Graph.from_edges(n, *once, rng.uniform(0.5, 1.5, once.shape[1]))


def make(loss, n=40, p=4, seed=0, least=1, most=25, **more):
    rng = np.random.default_rng([seed, n, p])
    sizes = rng.integers(least, most + 1, n)
    owner = np.repeat(np.arange(n), sizes)
    X = rng.normal(size=(owner.shape[0], p))
    theta = rng.normal(size=p) + 0.5 * rng.normal(size=(n, p))
    z = (X * theta[owner]).sum(axis=1) + 0.5 * rng.normal(size=owner.shape[0])
    data = ct.AgentData(X, np.where(z > 0, 1.0, -1.0) if loss in SIGNED else z, agents=owner, members=range(n))
    return ct.Problem.personalized(data, ring(n, rng), loss=loss, **more)


@pytest.fixture
def small_blocks(monkeypatch):
    """Everything is cut into many parts, as large problems are."""
    for module in (batches_module, objective_module):
        monkeypatch.setattr(module, "MAX_BATCH_ENTRIES", 50)
    monkeypatch.setattr(objective_module, "AGENTS_PER_SPAN", 8)
    monkeypatch.setattr(exact, "MAX_GROUP_NUMBERS", 1000)


# ---------------------------------------------------------------- models trained alone


def alone(problem, i):
    """f_i and its gradient, written out again."""
    mine, m = slice(problem.start[i], problem.start[i + 1]), max(1, problem.data.sizes[i])
    X, y, r = problem.data.X[mine], problem.labels[mine], problem.ridge[i]

    def value(t):
        loss, slope, _ = examples(problem.loss, X @ t, y)
        return loss.sum() / m + r * t @ t, X.T @ slope / m + 2 * r * t

    return value


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber", "smooth-hinge"])
def test_local_models_are_those_of_another_solver(loss):
    problem = make(loss, n=30)
    for i, theta in enumerate(problem.local()):
        value = alone(problem, i)
        other = optimize.minimize(value, np.zeros(problem.p), jac=True, options={"gtol": 1e-9}).x
        assert np.abs(value(theta)[1]).max() < 1e-12
        assert value(theta)[0] <= value(other)[0] + 1e-12
        np.testing.assert_allclose(theta, other, atol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_local_model_does_not_depend_on_the_others(loss):
    problem = make(loss, n=25)
    theta = problem.local()
    for i in (0, 7, 24):
        one = ct.Problem.personalized(problem.data.only([i]), ct.graphs.empty(1), loss=loss)
        np.testing.assert_allclose(theta[i], one.local()[0], atol=1e-8)


@pytest.mark.parametrize("scales", [np.ones(6), 10.0 ** np.arange(-6, 6, 2)], ids=["alike", "far apart"])
def test_of_several_local_models_the_one_of_least_norm(scales):
    """Fewer rows than features, a feature that nobody has, and two that are the same; no ridge."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 12, 60)
    owner = np.repeat(np.arange(60), sizes)
    X = rng.normal(size=(owner.shape[0], 6)) * scales
    X[:, 3], X[:, 4] = 0.0, X[:, 1]
    y = rng.normal(size=owner.shape[0])
    problem = ct.Problem.separate(ct.AgentData(X, y, agents=owner), ct.graphs.empty(60), loss="squared")
    for i, theta in enumerate(problem.local()):
        A, b = X[owner == i], y[owner == i]
        residual = A @ theta - b
        assert np.abs(A.T @ residual).max() <= 1e-9 * np.abs(A.T @ b).max()
        assert abs(theta[3]) <= 1e-7 * np.abs(theta).max()
        if scales[0] == scales[-1]:
            np.testing.assert_allclose(theta, np.linalg.pinv(A, rcond=1e-12) @ b, atol=1e-9)
        else:
            assert theta[1] == pytest.approx(theta[4], rel=1e-6)  # the same feature


def test_an_agent_without_rows_and_one_whose_classes_are_separate():
    X = np.array([[1.0, 0.0], [2.0, 1.0], [-1.0, 0.5]])
    data = ct.AgentData(X, [1.0, 1.0, -1.0], agents=[0, 0, 0], members=[0, 1])
    theta = ct.Problem.separate(data, ct.graphs.empty(2), loss="logistic").local()
    assert np.all(theta[1] == 0)
    assert np.logaddexp(0.0, -data.y * (X @ theta[0])).sum() < 1e-11  # the infimum is 0


# ---------------------------------------------------------------- how work is cut


@pytest.mark.slow
@pytest.mark.parametrize("loss", [*LOSSES, "location"])
def test_results_do_not_depend_on_the_number_of_threads(loss, small_blocks):
    def solved(n_jobs):
        if loss == "location":
            rng = np.random.default_rng(0)
            models, graph = rng.normal(size=(60, 5)), ring(60, rng)
            problem = ct.Problem.propagation(models, graph, confidence=rng.uniform(0.1, 1, 60))
        else:
            problem = make(loss, n=60)
        theta = problem.solve(n_jobs)
        gradient = problem._objective(problem.a, n_jobs=n_jobs).gradient(theta)
        return np.stack([problem.local(n_jobs), theta, gradient]), problem.value(theta), problem.gap(theta)

    first = solved(1)
    for n_jobs in (2, 3, 7):
        for one, other in zip(first, solved(n_jobs), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber", "location"])
def test_many_parts_are_one(loss, monkeypatch, request):
    """Blocks of agents, and the rows of one agent in pieces, up to the rounding of sums in another order."""

    def numbers():
        if loss == "location":
            rng = np.random.default_rng(0)
            data = ct.AgentData(rng.normal(size=(400, 4)), agents=np.sort(rng.integers(0, 30, 400)))
            problem = ct.Problem.separate(data, ring(data.n, rng), loss=ct.Location(ct.Squared()))
        else:
            problem = make(loss)
        theta = np.random.default_rng(1).normal(size=(problem.n, problem.p))
        models = np.stack([problem.local(), problem.solve(), problem.gradient(theta)])
        return models, problem.losses(theta), problem.value(theta)

    whole = numbers()
    request.getfixturevalue("small_blocks")
    monkeypatch.setattr(objective_module, "MAX_PIECE_NUMBERS", 20)
    for one, other in zip(whole, numbers(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_in_single_precision_are_summed_in_double(loss):
    problem = make(loss)
    single = problem.data.X.astype(np.float32)
    double = replace(problem._objective(problem.a), rows=DenseRows(frozen(single.astype(float))))
    theta = np.random.default_rng(3).normal(size=(problem.n, problem.p))
    half = replace(double, rows=DenseRows(frozen(single)))
    for one, other in zip(double.sweep(theta), half.sweep(theta), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(exact.minimise(double), exact.minimise(half), atol=1e-9)
    np.testing.assert_array_equal(
        gram_norms(double.rows, double.start, problem.p), gram_norms(half.rows, half.start, problem.p)
    )


def test_the_preconditioner_of_very_many_agents(monkeypatch):
    """In single precision, the solution is as exact."""
    best = make("logistic", n=500, most=10).solve()
    monkeypatch.setattr(exact.systems, "MAX_BLOCK_NUMBERS", 0)
    np.testing.assert_allclose(make("logistic", n=500, most=10).solve(), best, atol=1e-10)


# ---------------------------------------------------------------- proofs


def above(problem, theta, best):
    return problem.value(theta) - problem.value(best)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("ridge", ["everybody", "some"])
def test_the_gap_bounds_the_distance_to_the_optimum(loss, ridge):
    n, rng = 30, np.random.default_rng(5)
    r = np.full(n, 0.1) if ridge == "everybody" else np.where(np.arange(n) % 10 == 0, 0.2, 0.0)
    problem = make(loss, n=n, ridge=r, mu=0.7)
    best = problem.solve()
    value = problem.value(best)
    assert 0 <= problem.gap(best) <= 1e-10 * value
    if loss in ("squared", "logistic"):  # nothing is lower, as another solver finds
        shape = best.shape
        other = optimize.minimize(
            lambda t: problem.value(t.reshape(shape)),
            best.ravel() + 0.1,
            jac=lambda t: problem.gradient(t.reshape(shape)).ravel(),
            options={"gtol": 1e-10, "maxiter": 3000},
        ).x.reshape(shape)
        assert value - problem.value(other) <= problem.gap(best)
    for size in (1e-5, 1e-2, 1.0, 30.0):
        theta = best + size * rng.normal(size=best.shape)
        assert above(problem, theta, best) <= problem.gap(theta) < np.inf


def test_the_gap_of_the_squared_loss_is_exact_also_without_a_ridge():
    problem = make("squared", n=20, ridge=0.0)
    best = problem.solve()
    theta = best + np.random.default_rng(0).normal(size=best.shape)
    assert problem.gap(theta) == pytest.approx(above(problem, theta, best), rel=1e-9)


@pytest.mark.parametrize("ridge", [0.1, np.where(np.arange(30) == 4, 0.3, 0.0)], ids=["everybody", "one"])
def test_a_proof_does_not_need_a_solved_system(ridge, monkeypatch):
    """However rough the solution of its system, the bound holds: what is missing is bounded, too."""
    problem = make("logistic", n=30, ridge=ridge)
    best, rng = problem.solve(), np.random.default_rng(0)
    theta = best + rng.normal(size=best.shape)
    objective = problem._objective(problem.importance)
    g = problem.gradient(theta)
    D, W = np.diag(problem.graph.degrees), problem.graph.W.toarray()
    H = 2 * problem.smooth * (D - W) + np.diag(2 * problem.a * problem.ridge)
    exactly = float(np.sum(g * np.linalg.solve(H, g)))
    monkeypatch.setattr(certificate, "system", lambda *_: lambda target, accuracy: accuracy * target)
    for accuracies in ((0.0,), (1e-3,), (0.5, 0.1)):
        monkeypatch.setattr(certificate, "ACCURACIES", accuracies)
        assert certificate.decrement(objective, g, np.zeros((30, 1)))[0] >= exactly * (1 - 1e-12)
    monkeypatch.undo()
    assert certificate.decrement(objective, g, np.zeros((30, 1)))[0] == pytest.approx(exactly, rel=0.15)


def test_what_a_rough_solution_proves(monkeypatch):
    """With x = c H^-1 g, what is known is <x, g> + <x, g - H x> = c (2 - c) g' H^-1 g; ridges bound the rest."""
    problem, c = make("logistic", n=30, ridge=0.1), 0.7
    objective, g = problem._objective(problem.importance), np.random.default_rng(1).normal(size=(30, 4))
    lam = 2 * problem.a * problem.ridge
    H = 2 * problem.smooth * (np.diag(problem.graph.degrees) - problem.graph.W.toarray()) + np.diag(lam)
    monkeypatch.setattr(certificate, "system", lambda *_: lambda target, accuracy: c * np.linalg.solve(H, target))
    monkeypatch.setattr(certificate, "ACCURACIES", (1.0,))
    exactly, rest = np.sum(g * np.linalg.solve(H, g)), np.sum(np.square(g).sum(axis=1) / lam)
    expected = c * (2 - c) * exactly + (1 - c) ** 2 * rest
    assert certificate.decrement(objective, g, np.zeros((30, 1)))[0] == pytest.approx(expected, rel=1e-9)


def test_no_proof_is_claimed_where_there_is_none():
    assert make("logistic", ridge=0.0).gap(np.zeros((40, 4))) == np.inf
    assert make("hinge", ridge=0.0).gap(np.zeros((40, 4))) == np.inf
    two = make("logistic", n=4, ridge=np.array([0.1, 0.1, 0.0, 0.0]))
    apart = two.on(graph=ct.Graph.from_edges(4, [0, 2], [1, 3]))
    assert apart.gap(apart.solve()) == np.inf  # the second component has none
    rows = np.random.default_rng(0).normal(size=(3, 2))
    few = ct.Problem.separate(ct.AgentData(rows[:, :1] * [1.0, 2.0], rows[:, 1], agents=[0, 1, 2]), empty(3))
    assert few.gap(few.solve()) == np.inf  # squared, one row each: a direction is free


def test_a_component_without_rows_is_as_far_from_zero_as_it_is():
    data = ct.AgentData([[1.0]], [1.0], agents=[0], members=range(3))
    problem = ct.Problem.collaborative(data, ct.Graph.from_edges(3, [1], [2]), loss="logistic", ridge=[1.0, 0.0, 0.0])
    theta = problem.solve()
    theta[1:] = [[3.0], [5.0]]
    assert problem.gap(theta) == pytest.approx(4.0, rel=1e-9)  # s |3 - 5|^2


def test_the_log_tells_the_proof(caplog):
    with caplog.at_level(logging.INFO, "coterie"):
        make("logistic").solve()
    assert "personalized problem solved: at most" in caplog.text


@pytest.mark.slow
def test_propagation_among_a_million_agents():
    rng = np.random.default_rng(0)
    n = 1_000_000
    problem = ct.Problem.propagation(rng.normal(size=(n, 3)), ring(n, rng), alpha=0.9)
    best = problem.solve()
    assert problem.gap(best) <= 1e-12 * problem.value(best)
