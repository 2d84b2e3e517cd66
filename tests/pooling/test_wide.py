"""Models in the span of the rows: the answer of the blocks, and what strengths learn of many columns."""

from __future__ import annotations

import numpy as np
import pytest
from populations import batched, drawn, gaussian, newton
from scipy import sparse, stats

import coterie as ct
from coterie._conjugate import conjugate_gradients
from coterie.pooling import fit
from coterie.pooling import sample as sample_module
from coterie.pooling.families import FAMILIES
from coterie.pooling.population import INTERCEPT_PRECISION
from coterie.pooling.rows import Grouped
from coterie.pooling.span import OfColumns, OfRows, Span, diagonal, kernel, transposed
from coterie.pooling.wide import INTERCEPT_PRIOR_VARIANCE, Strengths, fit_wide, strengths_of
from coterie.pooling.wide import mode as mode_of

SIZES = np.array([1, 7, 3, 12, 2])


def rows_of(X, y, codes, n, weight=None):
    """X with ones last, sorted by agents."""
    return Grouped.of(X[:, :-1], y, codes, n, weight)


@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
def test_products_with_a_column_of_ones_that_is_not_there(storage):
    rng = np.random.default_rng(0)
    A, B, v, z = rng.normal(size=(4, 3)), rng.normal(size=(5, 3)), rng.uniform(size=4), rng.normal(size=5)
    K = rng.normal(size=(5, 5))
    K = K + K.T
    ones = [np.column_stack([M, np.ones(len(M))]) for M in (A, B)]
    np.testing.assert_allclose(kernel(storage(A), v, storage(B)), ones[0] @ np.diag(v) @ ones[1].T, atol=1e-12)
    np.testing.assert_allclose(diagonal(storage(B), K), np.diag(ones[1].T @ K @ ones[1]), atol=1e-12)
    np.testing.assert_allclose(transposed(storage(B), z), ones[1].T @ z, atol=1e-12)


def test_conjugate_gradients_solve():
    rng = np.random.default_rng(1)
    A = rng.normal(size=(20, 20))
    A, b = A @ A.T + np.eye(20), rng.normal(size=20)
    for more in ({}, {"precondition": lambda v: v / np.diag(A)}):
        found = conjugate_gradients(lambda x: A @ x, b, 1e-10, **more)[0]
        np.testing.assert_allclose(found, np.linalg.solve(A, b), atol=1e-8)
    assert np.array_equal(conjugate_gradients(lambda x: A @ x, np.zeros(20), 1e-10)[0], np.zeros(20))
    # Two systems side by side, the second flat along what it is asked for: it stays where it is.
    both = np.stack([A, np.zeros((20, 20))])
    found, steps = conjugate_gradients(
        lambda x: (both @ x[..., None])[..., 0],
        np.stack([b, b]),
        1e-10,
        inner=lambda x, y: (x * y).sum(axis=1),
        spread=lambda length, x: length[:, None] * x,
        flat=1e-15,
    )
    np.testing.assert_allclose(found, [np.linalg.solve(A, b), np.zeros(20)], atol=1e-8)
    assert 10 < steps < 100


@pytest.mark.parametrize("family", ["squared", "student", "logistic", "poisson"])
def test_the_mode_is_that_of_the_blocks(family, monkeypatch):
    """For the same strengths. Blocks correct w for classes and counts, the span of the rows does not: switched off."""
    monkeypatch.setattr(sample_module, "laplace_correction", lambda batch, T, *rest: np.zeros_like(T))
    rng = np.random.default_rng(2)
    n, q = len(SIZES), 4
    X, y, codes, _ = drawn(rng, n, 0, q, family, w=[0.5, -0.3, 0.2, 0.4], sizes=SIZES)
    weight = rng.integers(1, 3, size=len(y)).astype(float)
    strengths = Strengths(
        np.array([0.5, 1.0, 0.2, 0.7]),
        np.append(np.full(3, 1.0 / 0.8), 1.0 / INTERCEPT_PRECISION),
        0.6,
        0.0,
        np.ones(q),
        0,
    )
    w, D, precision = mode_of(rows_of(X, y, codes, n, weight), FAMILIES[family], strengths)
    at = np.zeros(q), np.zeros((n, q))
    for _ in range(200):
        mode = newton(batched(X, y, codes, n, weight), *at, strengths.v, 0.8, strengths.s2, FAMILIES[family])
        at = mode.w, mode.D
    np.testing.assert_allclose(w, mode.w, atol=2e-5)
    np.testing.assert_allclose(D, mode.D, atol=2e-5)
    np.testing.assert_allclose(precision, np.diag(np.linalg.inv(mode.cov)), rtol=1e-4)


@pytest.mark.parametrize("columns", [4, 30])
def test_moments_are_those_of_the_joint_posterior(columns):
    """Means exactly; variances as if the common model's errors went apart: never far from the exact ones. A broad
    common intercept, whose errors go with everything, is the same.
    """
    rng = np.random.default_rng(3)
    n = len(SIZES)
    X, y, codes, _ = drawn(rng, n, 0, columns + 1, w=np.zeros(columns + 1), sizes=SIZES)
    model = fit_wide(X[:, :-1], y, codes, n, "squared")
    A = np.column_stack([model.grouped.X, np.ones(len(y))])
    found = model.strengths
    mean, _ = gaussian(A, model.grouped.y, codes, n, found.v, 1.0 / found.u[:-1], found.s2)
    q = columns + 1
    np.testing.assert_allclose(model.w, mean[:q], atol=1e-6)
    np.testing.assert_allclose(model.D, mean[q:].reshape(n, q), atol=1e-6)
    new = np.column_stack([rng.normal(size=(20, columns)), np.ones(20)])
    whose = np.arange(20) % n
    z, variance = model.latent(new[:, :-1], whose)
    B = np.column_stack([(new[:, :-1] - model.mean) / model.spread, np.ones(20)])
    np.testing.assert_allclose(z, np.einsum("ij,ij->i", B, model.w + model.D[whose]), atol=1e-8)
    # Given w: x' (V - V C V) x, and (x - C V x) with the diagonal of the Schur complement.
    V = np.diag(found.v)
    for i in range(n):
        mine = A[codes == i]
        C = mine.T @ np.linalg.inv(found.s2 * np.eye(len(mine)) + mine @ V @ mine.T) @ mine
        x = B[whose == i]
        u = x - x @ V @ C
        expected = np.einsum("ij,ij->i", x @ V, u) + u**2 @ (1.0 / model.precision)
        np.testing.assert_allclose(variance[whose == i], expected, atol=1e-8)
    z, variance = model.latent(new[:, :-1], np.full(20, -1))
    np.testing.assert_allclose(z, B @ model.w, atol=1e-8)
    np.testing.assert_allclose(variance, B**2 @ (found.v + 1.0 / model.precision), atol=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_evidence_is_the_marginal_likelihood(weighted):
    """By the dense normal density; a broad intercept's constant is taken off, and what pools variances is left out by
    one column, which has nothing to pool.
    """
    rng = np.random.default_rng(4)
    n = len(SIZES)
    X, y, codes, _ = drawn(rng, n, 0, 2, sizes=SIZES)
    weight = rng.integers(1, 3, size=len(y)).astype(float) if weighted else np.ones(len(y))
    found = strengths_of(rows_of(X, y, codes, n, weight), FAMILIES["squared"])
    again = np.repeat(np.arange(len(y)), weight.astype(int))
    A, labels, whose = X[again], y[again], codes[again]
    K = A @ np.diag([found.u[0], INTERCEPT_PRIOR_VARIANCE]) @ A.T + found.s2 * np.eye(len(labels))
    K += (whose[:, None] == whose) * (A @ np.diag(found.v) @ A.T)
    exact = stats.multivariate_normal(np.zeros(len(labels)), K).logpdf(labels) + 0.5 * np.log(INTERCEPT_PRIOR_VARIANCE)
    assert found.log_evidence == pytest.approx(exact, abs=0.02)  # strengths move a little in the last round


@pytest.mark.parametrize("family", ["squared", "logistic"])
def test_strengths_are_nearly_those_of_the_blocks(family):
    """Both maximise the same evidence; pooled over columns in the same way."""
    rng = np.random.default_rng(5)
    X, y, codes, _ = drawn(rng, 16, 14, 5, family, w=[1.0, -1.0, 0.5, 0.0, 0.3], V=[0.5, 0.1, 0.3, 0.2, 0.8])
    wide = fit_wide(X[:, :-1], y, codes, 16, family)
    [pooled] = fit(X[:, :-1], [y], codes, 16, family, "linear", "diagonal")
    sd = np.sqrt(pooled.population.variances)
    np.testing.assert_allclose(np.sqrt(wide.strengths.v), sd, rtol=0.15, atol=0.02)
    assert wide.strengths.s2 == pytest.approx(pooled.population.s2, rel=0.05)
    np.testing.assert_allclose(wide.w, pooled.population.w, atol=0.1)


@pytest.mark.slow
def test_strengths_of_heavy_tails_are_those_of_the_blocks():
    rng = np.random.default_rng(6)
    X, y, codes, _ = drawn(rng, 20, 12, 6)
    y += np.where(rng.uniform(size=len(y)) < 0.05, 10.0, 0.0) * rng.normal(size=len(y))
    wide = fit_wide(X[:, :-1], y, codes, 20, "student")
    [pooled] = fit(X[:, :-1], [y], codes, 20, "student", "linear", "diagonal")
    assert wide.strengths.s2 == pytest.approx(pooled.population.s2, rel=0.05)


def wide_rows(seed, n=15, m=12, p=200, kind="numbers"):
    """More columns than rows; five matter, and two of them differ between agents."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(n), m)
    X = rng.normal(size=(n * m, p))
    own = rng.normal(size=(n, 2))
    z = X[:, :5] @ [1.0, -1.0, 1.0, 1.0, -1.0] + np.sum(X[:, :2] * own[codes], axis=1) + 0.5 * rng.normal(size=n)[codes]
    y = z + 0.3 * rng.normal(size=n * m) if kind == "numbers" else np.where(z > 0.0, "up", "down")
    return X, y, codes


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_more_columns_than_rows(kind):
    """200 columns that four factors are behind, 150 rows to learn from: held-out rows are predicted by what agents have
    in common and by what they have not. Measured .99 and .91 (by the common model: .63 and .85).
    """
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(15), 20)
    factors = rng.normal(size=(300, 4))
    X = factors @ rng.normal(size=(4, 200)) + 0.5 * rng.normal(size=(300, 200))
    z = np.sum(factors * ([1.0, -1.0, 1.0, 0.0] + 0.7 * rng.normal(size=(15, 4)))[codes], axis=1)
    y = z + 0.1 * rng.normal(size=300) if kind == "numbers" else np.where(z > 0.0, "up", "down")
    train = np.arange(300) % 20 < 10
    model = ct.CollaborativeRegressor() if kind == "numbers" else ct.CollaborativeClassifier()
    model.fit(X[train], y[train], agents=codes[train])
    assert model.coef_.shape == (15, 200)
    own = model.score(X[~train], y[~train], agents=codes[~train])
    common = model.score(X[~train], y[~train], agents=np.full(150, -1))
    assert own > (0.9 if kind == "numbers" else 0.87)
    assert own > common + 0.03


def test_columns_that_differ_between_agents_are_found():
    X, y, codes = wide_rows(1, n=20, m=12, p=20)
    v, log_sd = fit_wide(X, y, codes, 20, "squared").variances()
    assert set(np.argsort(v[:-1])[-2:]) == {0, 1}
    assert v[:2].min() > 3.0 * v[2:-1].max()
    assert np.all(log_sd > 0.0)


@pytest.mark.slow
def test_sparse_is_dense_up_to_its_scaling():
    """Sparse columns are not centred and share one scale: as dense columns of mean zero and of one scale."""
    rng = np.random.default_rng(7)
    X, y, codes = wide_rows(2, p=160)
    X = np.where(rng.uniform(size=X.shape) < 0.1, X, 0.0)
    X -= X.mean(axis=0)
    X /= np.sqrt(np.mean(X**2, axis=0))
    one = ct.CollaborativeRegressor().fit(X, y, agents=codes)
    other = ct.CollaborativeRegressor().fit(sparse.csr_array(X), y, agents=codes)
    asked = np.append(codes[:50], -1)
    for rows in (X[:51], sparse.csr_array(X[:51])):
        mean, std = other.predict(rows, agents=asked, return_std=True)
        expected = one.predict(X[:51], agents=asked, return_std=True)
        np.testing.assert_allclose(mean, expected[0], atol=1e-6)
        np.testing.assert_allclose(std, expected[1], atol=1e-6)


def test_a_sample_of_the_rows_is_enough_for_strengths(monkeypatch):
    """With rows of every agent, and of all labels; the mode is still that of all rows."""
    from coterie.pooling import wide as module

    X, y, codes = wide_rows(3, n=8, m=30, p=10)
    everything = fit_wide(X, y, codes, 8, "squared")
    monkeypatch.setattr(module, "MAX_GRAM_ROWS", 120)
    some = fit_wide(X, y, codes, 8, "squared")
    chosen = module.chosen(some.grouped, 120)
    assert len(np.unique(chosen)) == 120
    assert np.bincount(codes[chosen]).tolist() == [15] * 8
    assert some.strengths.s2 == pytest.approx(everything.strengths.s2, rel=0.5)
    assert np.corrcoef(some.D[:, :2].ravel(), everything.D[:, :2].ravel())[0, 1] > 0.97


@pytest.mark.slow
def test_more_rows_change_nobody_else():
    X, y, codes = wide_rows(4, p=160)
    model = fit_wide(X, y, codes, 15, "squared")
    rng = np.random.default_rng(8)
    new, labels = rng.normal(size=(6, 160)), rng.normal(size=6)
    more = model.with_rows(new, labels, np.array([3, 3, 15, 15, 15, 15]), 16, None)
    others = np.arange(15) != 3
    assert np.array_equal(more.D[:15][others], model.D[others])
    A = np.column_stack([more.grouped.X, np.ones(len(more.grouped.y))])
    for agent in (3, 15):
        own = slice(more.grouped.start[agent], more.grouped.start[agent + 1])
        K = A[own] @ np.diag(model.strengths.v) @ A[own].T + model.strengths.s2 * np.eye(own.stop - own.start)
        exact = model.strengths.v * (A[own].T @ np.linalg.solve(K, more.grouped.y[own] - A[own] @ model.w))
        np.testing.assert_allclose(more.D[agent], exact, atol=1e-7)


@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
def test_by_rows_and_by_columns_are_the_same(storage):
    """M = (C^-1 + K)^-1 itself, and by way of S."""
    rng = np.random.default_rng(9)
    X, y, codes, _ = drawn(rng, 5, 0, 4, sizes=SIZES)
    grouped = rows_of(X, y, codes, 5)
    span, v, u = Span(grouped._replace(X=storage(grouped.X))), rng.uniform(size=4), rng.uniform(size=4)
    assert span.few
    curvature, z = rng.uniform(size=len(y)), rng.normal(size=len(y))
    one, other = (kind(span, curvature, v, u) for kind in (OfRows, OfColumns))
    np.testing.assert_allclose(one.times(z), other.times(z), atol=1e-12)
    for mine, yours in zip(one.diagonals(), other.diagonals(), strict=True):
        np.testing.assert_allclose(mine, yours, atol=1e-12)
    assert one.log_det() == pytest.approx(other.log_det(), abs=1e-10)
    K = X @ np.diag(u) @ X.T + (codes[:, None] == codes) * (X @ np.diag(v) @ X.T)
    np.testing.assert_allclose(span.prior(z, v, u), K @ z, atol=1e-12)
    np.testing.assert_allclose(one.M, np.linalg.inv(np.diag(1.0 / curvature) + K), atol=1e-12)


def test_strengths_of_many_agents_are_learned_from_some(monkeypatch):
    """Of 2,000 agents, 100 with all of their three rows: nothing is of size agents x agents."""
    from coterie.pooling import wide as module

    X, y, codes = wide_rows(5, n=2000, m=3, p=20)
    monkeypatch.setattr(module, "MAX_GRAM_ROWS", 300)
    seen = []
    monkeypatch.setattr(module, "strengths_of", lambda rows, *more: seen.append(rows) or strengths_of(rows, *more))
    model = fit_wide(X, y, codes, 2000, "squared")
    [rows] = seen
    assert rows.sizes.tolist() == [3] * 100
    assert len(model.D) == 2000
    own = np.bincount(codes, y, 2000) / 3.0
    assert np.corrcoef(model.D[:, -1], own)[0, 1] > 0.2
