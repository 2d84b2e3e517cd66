"""The algebra of blocks against dense formulas."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from populations import KINDS, batched, covariance, drawn, matrix, one_batch
from scipy import optimize

from coterie.pooling.blocks import (
    AgentBatch,
    InColumns,
    InRows,
    Joint,
    Summary,
    batches,
    of_hessians,
    padded,
    root,
    times,
)
from coterie.pooling.families import FAMILIES
from coterie.pooling.fitted import posterior
from coterie.pooling.population import Population

K, M, Q = 4, 3, 5  # agents, rows, columns


def dense(X, curvature, V):
    """C_i = (I + H_i V)^-1 H_i, which is (V + H_i^-1)^-1 where these inverses exist."""
    H = np.einsum("kmq,km,kmr->kqr", X, curvature, X)
    return H, np.linalg.solve(np.eye(X.shape[2]) + H @ matrix(V), H)


def blocks(rng, m, kind):
    X, curvature, V = rng.normal(size=(K, m, Q)), rng.uniform(0.1, 2.0, size=(K, m)), covariance(rng, Q, kind)
    H, C = dense(X, curvature, V)
    return X, V, H, C, {"rows": InRows.of(X, curvature, V), "columns": InColumns.of(H, V)}


@pytest.mark.parametrize("form", ["rows", "columns"])
@pytest.mark.parametrize("m", [1, 3, 9])
@pytest.mark.parametrize("kind", KINDS)
def test_both_forms_are_the_dense_formula(kind, m, form):
    rng = np.random.default_rng(0)
    X, V, H, C, both = blocks(rng, m, kind)
    block, dense_v = both[form], matrix(V)
    if m > Q and kind in ("diagonal", "full"):
        np.testing.assert_allclose(C, np.linalg.inv(dense_v + np.linalg.inv(H)), atol=1e-10)
    vectors, several, S = rng.normal(size=(K, Q)), rng.normal(size=(K, 2, Q)), matrix(covariance(rng, Q, "full"))
    np.testing.assert_allclose(block.apply(vectors), np.einsum("kqr,kr->kq", C, vectors), atol=1e-10)
    np.testing.assert_allclose(block.rows(several), np.einsum("kqr,ksr->ksq", C, several), atol=1e-10)
    np.testing.assert_allclose(block.sum(), C.sum(axis=0), atol=1e-10)
    np.testing.assert_allclose(block.sandwich(S), (C @ S @ C).sum(axis=0), atol=1e-10)
    np.testing.assert_allclose(block.log_det(), np.linalg.slogdet(np.eye(Q) + dense_v @ H)[1].sum(), atol=1e-10)
    cov = dense_v - dense_v @ C @ dense_v
    np.testing.assert_allclose(block.leverage(X, V), np.einsum("kmq,kqr,kmr->km", X, cov, X), atol=1e-10)
    some = np.array([2, 0])
    np.testing.assert_allclose(block.some(some).apply(vectors[some]), block.apply(vectors)[some], atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_roots_and_products(kind):
    rng = np.random.default_rng(2)
    V, x = covariance(rng, Q, kind), rng.normal(size=(3, 2, Q))
    L = matrix(root(V)) if V.ndim == 1 else root(V)
    np.testing.assert_allclose(L @ L.T, matrix(V), atol=1e-10)
    np.testing.assert_allclose(times(V, x), x @ matrix(V), atol=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_derivatives_of_losses(name):
    """Against differences; Student's curvature is the expected one: tested by its integral below."""
    family, s2, h = FAMILIES[name], 0.7, 1e-5
    z = np.linspace(-2.0, 2.0, 9)
    y = {"logistic": np.arange(9) % 2, "poisson": np.arange(9)}.get(name, np.linspace(1.0, -3.0, 9)).astype(float)
    slope = (family.loss(z + h, y, s2) - family.loss(z - h, y, s2)) / (2.0 * h)
    np.testing.assert_allclose(family.slope(z, y, s2), slope, atol=1e-7)
    if name != "student":
        curvature = (family.slope(z + h, y, s2) - family.slope(z - h, y, s2)) / (2.0 * h)
        np.testing.assert_allclose(family.curvature(z, s2), curvature, atol=1e-7)
        third = (family.curvature(z + h, s2) - family.curvature(z - h, s2)) / (2.0 * h)
        np.testing.assert_allclose(family.third(z), third, atol=1e-7)


@pytest.mark.parametrize("name", FAMILIES)
def test_losses_and_constants_make_up_a_likelihood(name):
    """It integrates to one over labels; and the moments of Student's t are what it says."""
    family, s2, z = FAMILIES[name], 0.7, 0.4
    y = np.arange(2.0) if name == "logistic" else np.arange(60.0)
    step = 1.0
    if family.noisy:
        y, step = np.linspace(z - 400.0, z + 400.0, 400_001, retstep=True)
    probability = np.exp(family.constant(y, s2) - family.loss(np.full(len(y), z), y, s2)) * step
    assert probability.sum() == pytest.approx(1.0, abs=1e-6)
    if family.noisy:
        slope = family.slope(np.full(len(y), z), y, s2)
        assert probability @ slope**2 == pytest.approx(family.curvature(np.array([z]), s2)[0], rel=1e-4)
        assert probability @ (y - z) ** 2 == pytest.approx(family.variance(s2), rel=1e-3)
        assert probability @ family.excess(np.full(len(y), z), y, s2) == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("columns", [3, 400])
def test_batches_hold_everybody_once(columns):
    sizes = np.random.default_rng(3).integers(0, 300, size=500)
    seen = np.zeros(500, int)
    for agents, width in batches(sizes, columns):
        seen[agents] += 1
        assert np.all(sizes[agents] <= width)
        assert np.all(sizes[agents] > 0.74 * width - 1.0)  # little padding
        assert len(agents) == 1 or len(agents) * width * columns <= 200_000
    assert np.array_equal(seen, sizes > 0)
    assert list(batches(np.zeros(3, int), 2)) == []


def test_padding_is_no_row():
    start, sizes = np.array([0, 2, 5]), np.array([2, 3, 1])
    rows, real = padded(start, sizes, 4)
    assert rows[real].tolist() == [0, 1, 2, 3, 4, 5]
    assert np.array_equal(real.sum(axis=1), sizes)
    assert np.array_equal(rows[~real], np.repeat(start, 4 - sizes))


@pytest.mark.parametrize("family", ["squared", "student", "logistic", "poisson"])
@pytest.mark.parametrize("m", [2, 8])
def test_rows_of_weight_zero_change_nothing(family, m):
    rng = np.random.default_rng(4)
    X, y, codes, theta = drawn(rng, 3, m, 4, family)
    V, rule = covariance(rng, 4, "full"), FAMILIES[family]
    plain = one_batch(X, y, codes, 3)
    wide = plain._replace(
        X=np.concatenate([plain.X, rng.normal(size=(3, 6, 4))], axis=1),
        y=np.concatenate([plain.y, rng.integers(0, 2, size=(3, 6))], axis=1),
        weight=np.concatenate([plain.weight, np.zeros((3, 6))], axis=1),
    )
    for name in ("loss", "gradient", "hessian"):
        one, other = (getattr(batch, name)(theta, rule, 0.5) for batch in (plain, wide))
        np.testing.assert_allclose(other, one, atol=1e-12)
    one, other = (batch.block(theta, rule, 0.5, V) for batch in (plain, wide))
    x = rng.normal(size=(3, 4))
    np.testing.assert_allclose(other.apply(x), one.apply(x), atol=1e-10)
    assert other.log_det() == pytest.approx(one.log_det(), abs=1e-10)
    np.testing.assert_allclose(other.leverage(wide.X, V)[:, :m], one.leverage(plain.X, V), atol=1e-10)


def of(family, w, V, s2=0.5):
    return Population(FAMILIES[family], w, V, 1.0, s2, np.eye(len(w)), 0.0, np.ones(len(w)), 0)


@pytest.mark.parametrize("family", ["squared", "logistic", "poisson"])
@pytest.mark.parametrize("kind", ["diagonal", "full"])
@pytest.mark.parametrize("m", [1, 3, 12])
def test_a_posterior_is_the_least_penalised_loss(family, kind, m):
    """By a general minimiser, agent by agent; few rows and many take different ways."""
    rng = np.random.default_rng(5)
    X, y, codes, _ = drawn(rng, 4, m, 4, family)
    w, V = 0.5 * rng.normal(size=4), covariance(rng, 4, kind)
    weight = rng.uniform(0.5, 2.0, size=len(y))
    batch = one_batch(X, y, codes, 4, weight)
    D, inverse, rule = posterior(batch, of(family, w, V)), np.linalg.inv(matrix(V)), FAMILIES[family]
    for i in range(4):
        mine = codes == i

        def value(d, mine=mine):
            return float(weight[mine] @ rule.loss(X[mine] @ (w + d), y[mine], 0.5)) + 0.5 * d @ inverse @ d

        def slope(d, mine=mine):
            return (weight[mine] * rule.slope(X[mine] @ (w + d), y[mine], 0.5)) @ X[mine] + inverse @ d

        found = optimize.minimize(value, np.zeros(4), jac=slope, method="BFGS", options={"gtol": 1e-9})
        np.testing.assert_allclose(D[i], found.x, atol=1e-6)
        np.testing.assert_allclose(slope(D[i]), 0.0, atol=1e-6)


def test_students_posterior_is_a_mode():
    rng = np.random.default_rng(6)
    X, y, codes, _ = drawn(rng, 3, 12, 3)
    y[::7] += 10.0
    V, rule = covariance(rng, 3, "full"), FAMILIES["student"]
    for rows in (np.arange(36), np.arange(36)[np.arange(36) % 12 < 2]):  # in columns, and in rows
        batch = one_batch(X[rows], y[rows], codes[rows], 3)
        D = posterior(batch, of("student", np.zeros(3), V))
        gradient = batch.gradient(D, rule, 0.5) + np.linalg.solve(V, D.T).T
        np.testing.assert_allclose(gradient, 0.0, atol=1e-4)  # by expected curvatures: not quadratic at the end


@pytest.mark.parametrize("kind", ["zeros", "full with zeros"])
@pytest.mark.parametrize("m", [2, 9])
def test_coordinates_of_variance_zero_do_not_deviate(kind, m):
    rng = np.random.default_rng(7)
    X, y, codes, _ = drawn(rng, 3, m, 4)
    w, V = rng.normal(size=4), covariance(rng, 4, kind)
    free = np.diag(matrix(V)) > 0.0
    D = posterior(one_batch(X, y, codes, 3), of("squared", w, V))
    assert np.all(D[:, ~free] == 0.0)
    rest = y - X @ w
    for i in range(3):
        mine = X[codes == i][:, free]
        exact = np.linalg.solve(
            mine.T @ mine / 0.5 + np.linalg.inv(matrix(V)[np.ix_(free, free)]), mine.T @ rest[codes == i] / 0.5
        )
        np.testing.assert_allclose(D[i, free], exact, atol=1e-8)


@pytest.mark.parametrize("kind", ["diagonal", "full", "zeros"])
def test_a_summary_of_squared_losses_is_the_rows_themselves(kind):
    rng = np.random.default_rng(8)
    X, y, codes, _ = drawn(rng, 3, 9, 4)
    V, rule, at = covariance(rng, 4, kind), FAMILIES["squared"], rng.normal(size=(3, 4))
    early = np.arange(27) % 9 < 4
    whole, first, second = (one_batch(X[part], y[part], codes[part], 3) for part in (early | True, early, ~early))
    kept = Summary(first.agents, at, first.gradient(at, rule, 0.5), first.hessian(at, rule, 0.5))
    both, T, U = Joint(kept, second), rng.normal(size=(3, 4)), rng.normal(size=(3, 4))
    for name in ("gradient", "hessian"):
        np.testing.assert_allclose(getattr(both, name)(T, rule, 0.5), getattr(whole, name)(T, rule, 0.5), atol=1e-10)
    rise = [batch.loss(T, rule, 0.5) - batch.loss(U, rule, 0.5) for batch in (both, whole)]
    np.testing.assert_allclose(*rise, atol=1e-10)
    population = of("squared", rng.normal(size=4), V)
    np.testing.assert_allclose(posterior(both, population), posterior(whole, population), atol=1e-9)
    alone = Summary(whole.agents, at, whole.gradient(at, rule, 0.5), whole.hessian(at, rule, 0.5))
    np.testing.assert_allclose(posterior(alone, population), posterior(whole, population), atol=1e-9)
    assert np.array_equal(both.agents, whole.agents)


def test_batches_of_rows_are_the_rows():
    """Whatever the sizes of agents, and also in the order that rows were given."""
    rng = np.random.default_rng(9)
    sizes = np.array([5, 0, 1, 30, 9, 9])
    X, y, codes, _ = drawn(rng, 6, 0, 3, sizes=sizes)
    order = rng.permutation(len(y))
    weight = rng.uniform(size=len(y))
    seen = 0
    for batch in batched(X[order], y[order], codes[order], 6, weight[order]):
        for k, i in enumerate(batch.agents):
            real = batch.weight[k] > 0.0
            mine = order[codes[order] == i]
            assert np.array_equal(batch.X[k][real], X[mine])
            assert np.array_equal(batch.y[k][real], y[mine])
            assert np.array_equal(batch.weight[k][real], weight[mine])
            seen += real.sum()
    assert seen == len(y)


def solved_exactly(A, x):
    """A^-1 x by elimination in fractions."""
    rows = [[*map(Fraction, row), Fraction(value)] for row, value in zip(A, x, strict=True)]
    for k, pivot in enumerate(rows):
        for j, row in enumerate(rows):
            if j != k:
                factor = row[k] / pivot[k]
                rows[j] = [value - factor * other for value, other in zip(row, pivot, strict=True)]
    return [float(row[-1] / row[k]) for k, row in enumerate(rows)]


@pytest.mark.parametrize("m", [2, 9])
@pytest.mark.parametrize("curvature", [1.0, 1e8])
def test_a_hessian_has_the_block_of_its_rows(m, curvature):
    """Also where rows weigh much: what they leave open of a model, A^-1 = V - V C V, is not lost in rounding."""
    rng = np.random.default_rng(0)
    X, V = rng.integers(-4, 5, size=(K, m, Q)).astype(float), np.array([0.25, 0.5, 1.0, 2.0, 4.0])
    H = curvature * np.matmul(X.transpose(0, 2, 1), X)  # exactly
    block = of_hessians(H, V)
    x = rng.normal(size=(K, 1, Q))
    left = (x - block.rows(x * V))[:, 0] * V
    for k in range(K):
        exact = solved_exactly(H[k] + np.diag(1.0 / V), x[k, 0])
        np.testing.assert_allclose(left[k], exact, rtol=1e-6, atol=1e-14)


def test_a_posterior_does_not_depend_on_who_else_is_in_the_batch():
    """Of heavy tails, whose steps converge slowly: to the last digits that batches of other sizes have in common."""
    rng = np.random.default_rng(1)
    n, q = 40, 3
    X, y, codes, _ = drawn(rng, n, 8, q, "student", s2=0.5)
    V = np.array([0.5, 1.0, 0.3])
    population = Population(FAMILIES["student"], np.zeros(q), V, 1.0, 0.5, np.eye(q), 0.0, np.ones(q), 0)
    [batch] = batched(X, y, codes, n)
    together = posterior(batch, population)
    for i in range(n):
        alone = posterior(AgentBatch(np.arange(1), *(part[i : i + 1] for part in batch[1:])), population)
        np.testing.assert_allclose(alone[0], together[i], rtol=0, atol=1e-13)
