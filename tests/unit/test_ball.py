"""Models in l1 balls: objective, gradient, projection and certified optimum, against formulas written out again.

The objective is a loop over agents and outputs, and optima come from SciPy in the variables ``theta = u - v``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, sparse

import coterie as ct
from coterie.core.linear import rows_of
from coterie.errors import ConvergenceError, MismatchError, ParameterError
from coterie.graphs import Graph, empty
from coterie.problem.exact import Objective, minimise
from coterie.problem.exact import ball as ball_module
from coterie.problem.exact.ball import BallObjective, minimise_on_balls, project
from references import examples

LOSSES = {"boosting": ct.LogSumExp(), "squared": ct.Squared(), "logistic": ct.Logistic()}


def ring(n, rng):
    i = np.arange(n)
    return Graph.from_edges(n, i, (i + 1) % n, rng.uniform(0.2, 2.0, n))


def instance(
    seed, loss="boosting", sizes=(3, 5, 2, 4), p=6, radius=1.5, outputs=1, smooth=0.7, graph=None, stumps=True
):
    """Rows of output o are zero outside block o; ``sizes`` are rows per output."""
    rng = np.random.default_rng(seed)
    n, width = len(sizes), p // outputs
    blocks, labels = [], []
    for m in sizes:
        X = np.zeros((m * outputs, p))
        for o in range(outputs):
            values = rng.choice([-1.0, 1.0], (m, width)) if stumps else rng.normal(size=(m, width))
            X[o * m : (o + 1) * m, o * width : (o + 1) * width] = values
        blocks.append(X)
        labels.append(rng.choice([-1.0, 1.0], m * outputs))
    start = np.concatenate(([0], np.cumsum([len(X) for X in blocks]))).astype(np.int64)
    rows, importance = rows_of(np.concatenate(blocks)), rng.uniform(0.5, 2.0, n)
    edges = ring(n, rng) if graph is None else graph
    return BallObjective(
        rows, start, np.concatenate(labels), LOSSES[loss], importance, edges, smooth, p, radius, outputs
    )


def formula(objective, theta):
    """F, one agent and one output at a time."""
    W = objective.graph.W.toarray()
    total, X = 0.0, objective.rows.values
    for i in range(theta.shape[0]):
        for j in range(i):
            total += objective.smooth * W[i, j] * np.sum((theta[i] - theta[j]) ** 2)
        mine = np.arange(objective.start[i], objective.start[i + 1])
        for part in np.split(mine, objective.outputs):
            if part.size:
                z, y = X[part] @ theta[i], objective.labels[part]
                boosts = isinstance(objective.loss, ct.LogSumExp)
                pooled = np.log(np.sum(np.exp(-y * z))) if boosts else np.mean(examples(objective.loss, z, y)[0])
                total += objective.importance[i] * pooled
    return total


def slsqp(objective):
    """The optimum by another way: theta = u - v with u, v >= 0, and the sum of every block at most the radius."""
    n, p, q = objective.start.shape[0] - 1, objective.p, objective.outputs
    block = np.repeat(np.arange(n * q), p // q)
    sums = np.tile(block == np.arange(n * q)[:, None], 2).astype(float)

    def split(w):
        return (w[: n * p] - w[n * p :]).reshape(n, p)

    def slope(w):
        g = objective.gradient(split(w)).ravel()
        return np.concatenate((g, -g))

    result = optimize.minimize(
        lambda w: formula(objective, split(w)),
        np.full(2 * n * p, 0.1 * objective.radius / p),
        jac=slope,
        method="SLSQP",
        bounds=[(0, None)] * (2 * n * p),
        constraints={"type": "ineq", "fun": lambda w: objective.radius - sums @ w, "jac": lambda w: -sums},
        options={"maxiter": 2000, "ftol": 1e-13},
    )
    return split(result.x)


def norms(objective, theta):
    return np.abs(theta).reshape(theta.shape[0], objective.outputs, -1).sum(axis=2)


# ---------------------------------------------------------------- the projection


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("radius", [1e-3, 1.0, 4.0, 100.0])
def test_projection_meets_its_optimality_conditions(radius, outputs):
    rng = np.random.default_rng(1)
    theta = rng.normal(size=(40, 12)) * rng.choice([0.0, 0.1, 1.0, 1.0, 1e4], (40, 12))
    theta[:5] = rng.choice([-1.0, 1.0], (5, 12))  # edges
    projected = project(theta, radius, outputs)
    for x, y in zip(theta.reshape(40 * outputs, -1), projected.reshape(40 * outputs, -1), strict=True):
        if np.abs(x).sum() <= radius:
            np.testing.assert_array_equal(y, x)
            continue
        # y = sign(x) max(|x| - t, 0) with t > 0 and |y|_1 = radius, and that is enough to be the nearest point.
        k = np.abs(y).argmax()
        t = abs(x[k]) - abs(y[k])
        assert t > 0
        np.testing.assert_allclose(y, np.sign(x) * np.maximum(np.abs(x) - t, 0.0), atol=1e-13 * np.abs(x).max())
        np.testing.assert_allclose(np.abs(y).sum(), radius, rtol=1e-13, atol=1e-13 * np.abs(x).max())


def test_no_vertex_or_random_point_is_nearer_than_the_projection():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(1, 5))
    y = project(x, 0.8)
    points = np.concatenate((0.8 * np.eye(5), -0.8 * np.eye(5), project(rng.normal(size=(2000, 5)), 0.8)))
    assert np.all((points - y) @ (x - y).ravel() <= 1e-12)  # the variational inequality


# ---------------------------------------------------------------- value, gradient, gaps


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("loss", LOSSES)
def test_value_is_the_formula_and_gradient_and_hessian_its_derivatives(loss, outputs):
    objective = instance(3, loss, sizes=(3, 0, 5, 1), outputs=outputs, stumps=False)
    rng = np.random.default_rng(4)
    theta, way = rng.normal(size=(2, 4, 6))
    value = objective.value(theta)
    assert value.shape == (4,)
    np.testing.assert_allclose(value.sum(), formula(objective, theta), rtol=1e-12)
    slopes = optimize.approx_fprime(theta.ravel(), lambda x: formula(objective, x.reshape(4, 6)), 1e-7)
    np.testing.assert_allclose(objective.gradient(theta).ravel(), slopes, rtol=1e-5, atol=1e-5)
    step = 1e-5
    change = (objective.gradient(theta + step * way) - objective.gradient(theta - step * way)) / (2 * step)
    np.testing.assert_allclose(objective.hessian(theta)(way), change, rtol=1e-6, atol=1e-7)
    losses = objective.losses(theta)
    assert losses[1] == 0.0
    np.testing.assert_allclose(objective.unconstrained.quadratic(theta) + objective.importance * losses, value)


@pytest.mark.parametrize("loss", LOSSES)
def test_bounds_are_above_the_hessian(loss):
    objective = instance(5, loss, sizes=(3, 0, 5, 1))
    rng = np.random.default_rng(6)
    bound = objective.bounds()[:, None]
    for theta in rng.normal(size=(20, 4, 6)):
        times = objective.hessian(theta)
        full = np.array([times(e.reshape(4, 6)).ravel() for e in np.eye(24)])
        top = np.linalg.eigvalsh(np.diag((bound + np.zeros(6)).ravel()) - full)[0]
        assert top >= -1e-10


def test_log_sum_exp_of_huge_margins_does_not_overflow():
    objective = instance(7)
    theta = np.full((4, 6), 1e5)
    assert np.isfinite(objective.value(theta)).all()
    assert np.isfinite(objective.gradient(theta)).all()


def test_sparse_rows_are_dense_rows():
    dense = instance(8, outputs=2)
    rows = rows_of(sparse.csr_array(dense.rows.values))
    alike = replace(dense, rows=rows)
    theta = np.random.default_rng(9).normal(size=(4, 6))
    np.testing.assert_allclose(alike.gradient(theta), dense.gradient(theta), rtol=1e-12)
    np.testing.assert_allclose(
        alike.value(minimise_on_balls(alike)).sum(), dense.value(minimise_on_balls(dense)).sum(), rtol=1e-8
    )


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("loss", LOSSES)
def test_gaps_bound_the_suboptimality(loss, outputs):
    objective = instance(10, loss, outputs=outputs)
    least = objective.value(minimise_on_balls(objective)).sum()
    rng = np.random.default_rng(11)
    for theta in project(rng.normal(size=(50 * 4, 6)), objective.radius, outputs).reshape(50, 4, 6):
        gaps = objective.gaps(theta)
        assert np.all(gaps >= -1e-12)
        assert gaps.sum() >= objective.value(theta).sum() - least - 1e-9
        g, b = objective.gradient(theta).reshape(4, outputs, -1), theta.reshape(4, outputs, -1)
        by_hand = (b * g).sum(axis=(1, 2)) + objective.radius * np.abs(g).max(axis=2).sum(axis=1)
        np.testing.assert_allclose(gaps, by_hand, atol=1e-12)


# ---------------------------------------------------------------- the optimum


@pytest.mark.parametrize("stumps", [True, False])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("radius", [0.5, 3.0])
def test_optimum_is_that_of_another_solver(loss, outputs, radius, stumps):
    objective = instance(12, loss, sizes=(3, 5, 2), outputs=outputs, radius=radius, stumps=stumps)
    theta = minimise_on_balls(objective)
    assert np.all(norms(objective, theta) <= radius * (1 + 1e-12))
    ours, theirs = formula(objective, theta), formula(objective, slsqp(objective))
    assert ours <= theirs + 1e-9
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_two_outputs_are_two_problems(loss):
    both = instance(13, loss, sizes=(3, 5, 2, 4), outputs=2, p=8)
    theta, X = minimise_on_balls(both), both.rows.values
    sizes = np.diff(both.start) // 2
    start = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    total = 0.0
    for o in range(2):
        mine = np.concatenate([both.start[i] + o * m + np.arange(m) for i, m in enumerate(sizes)])
        rows = rows_of(X[mine, o * 4 : o * 4 + 4])
        one = replace(both, rows=rows, start=start, labels=both.labels[mine], p=4, outputs=1)
        alone = minimise_on_balls(one)
        least = one.value(alone).sum()
        np.testing.assert_allclose(one.value(theta[:, o * 4 : o * 4 + 4]).sum(), least, rtol=1e-7)
        total += least
    np.testing.assert_allclose(both.value(theta).sum(), total, rtol=1e-8)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_large_balls_are_no_constraint(loss):
    objective = instance(14, loss, sizes=(20, 30, 25, 30), radius=50.0, stumps=False)
    scale = np.repeat(objective.importance / objective.sizes, np.diff(objective.start))
    examples = (objective.rows, objective.start, objective.labels, objective.loss)
    free = Objective(*examples, scale, np.zeros((4, 1)), objective.graph, objective.smooth, objective.p)
    np.testing.assert_allclose(minimise_on_balls(objective, tol=1e-11), minimise(free), atol=1e-8)


def test_agents_without_rows_take_their_models_from_their_neighbours():
    graph = Graph([[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 3.0, 0.0], [0.0, 3.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    objective = instance(15, sizes=(4, 0, 3, 0), graph=graph)
    theta = minimise_on_balls(objective, tol=1e-11)
    np.testing.assert_allclose(theta[1], (theta[0] + 3.0 * theta[2]) / 4.0, atol=1e-4)
    np.testing.assert_array_equal(theta[3], 0.0)
    nobody = instance(16, sizes=(0, 0), graph=empty(2))
    np.testing.assert_array_equal(minimise_on_balls(nobody), 0.0)
    np.testing.assert_array_equal(nobody.hessian(np.zeros((2, 6)))(np.ones((2, 6))), 0.0)


def test_one_predictor_that_is_always_right_gets_all_the_weight():
    rng = np.random.default_rng(17)
    labels = rng.choice([-1.0, 1.0], 12)
    X = rng.choice([-1.0, 1.0], (12, 5))
    X[:, 0] = labels
    X[:, 1] = -labels * (np.arange(12) < 9)  # and no other is
    start, beta = np.array([0, 6, 12]), 4.0
    objective = BallObjective(
        rows_of(X), start, labels, ct.LogSumExp(), np.ones(2), ct.graphs.complete(2), 1.0, 5, beta
    )
    theta = minimise_on_balls(objective)
    np.testing.assert_allclose(theta, beta * np.eye(5)[[0, 0]], atol=1e-8)
    np.testing.assert_allclose(objective.losses(theta), np.log(6.0) - beta)


def test_a_linear_objective_ends_at_a_vertex():
    rows, start, one = rows_of(np.array([[1.0, -3.0, 2.0]])), np.array([0, 1]), np.ones(1)
    objective = BallObjective(rows, start, one, ct.LogSumExp(), one, empty(1), 1.0, 3, 2.0)
    np.testing.assert_allclose(minimise_on_balls(objective), [[0.0, -2.0, 0.0]])


def test_components_are_independent_and_each_is_certified():
    rng = np.random.default_rng(18)
    weights = np.zeros((6, 6))
    for i, j in ((0, 2), (2, 4), (1, 5)):
        weights[i, j] = weights[j, i] = rng.uniform(0.5, 2.0)
    objective = instance(19, sizes=(3, 6, 2, 5, 4, 2), graph=Graph(weights), p=20, radius=4.0)
    theta = minimise_on_balls(objective)
    gaps, values = objective.gaps(theta), objective.value(theta)
    weight = objective.importance
    for c in range(3):
        mine = objective.graph.components == c
        level = max(abs(values[mine].sum()), objective.value(np.zeros((6, 20)))[mine].sum(), weight[mine].sum())
        assert -1e-12 <= gaps[mine].sum() <= 1e-9 * level


@pytest.mark.compiled
@pytest.mark.parametrize(("n", "sizes", "beta"), [(100, (3, 15), 3.0), (5, (50, 50), 10.0), (30, (3, 15), 10.0)])
def test_stumps_are_solved_to_a_small_gap(n, sizes, beta):
    rng = np.random.default_rng(20)
    m = rng.integers(sizes[0], sizes[1] + 1, n)
    start = np.concatenate(([0], np.cumsum(m))).astype(np.int64)
    points = rng.normal(size=(start[-1], 2))
    X = np.where(points[:, rng.integers(0, 2, 200)] > rng.uniform(-4.0, 4.0, 200), 1.0, -1.0)  # many constant columns
    X[:, 150:] = X[:, :50]
    labels = np.where(points.sum(axis=1) + rng.normal(size=start[-1]) > 0, 1.0, -1.0)
    graph = ring(n, rng)
    objective = BallObjective(
        rows_of(X), start, labels, ct.LogSumExp(), np.asarray(graph.degrees), graph, 0.5, 200, beta
    )
    theta = minimise_on_balls(objective)
    assert np.all(norms(objective, theta) <= beta * (1 + 1e-12))
    level = max(abs(objective.value(theta).sum()), objective.value(np.zeros((n, 200))).sum())
    assert objective.gaps(theta).sum() <= 1e-9 * level


# ---------------------------------------------------------------- what is refused


def test_refusals(monkeypatch):
    with pytest.raises(ParameterError, match="radius = 0"):
        instance(21, radius=0.0)
    good = instance(21)
    for outputs, message in ((4, "outputs = 4"), (2, "agent 0 has 3 rows")):
        with pytest.raises(ParameterError, match=message):
            replace(good, outputs=outputs)
    with pytest.raises(MismatchError, match="not smooth"):
        minimise_on_balls(replace(good, loss=ct.Hinge()))
    monkeypatch.setattr(ball_module, "MAX_STEPS", 5)
    with pytest.raises(ConvergenceError, match="after 5 steps, the gap of the component of agent number 0"):
        minimise_on_balls(good)
