"""Deviations smoothed over edges: the quadratic problem by a dense solve, and when smoothing pays."""

from __future__ import annotations

import numpy as np
import pytest
from populations import drawn, matrix
from scipy import sparse

from coterie.pooling import fit
from coterie.pooling.edges import laplacian, mode, row_folds, smooth


def ring(n, clusters):
    """Edges inside clusters."""
    same = clusters[:, None] == clusters
    return sparse.csr_array(np.where(same & ~np.eye(n, dtype=bool), 1.0, 0.0))


def planted(seed, n=40, m=8, family="squared"):
    """Five clusters of agents that are nearly alike inside."""
    rng = np.random.default_rng(seed)
    clusters = np.arange(n) % 5
    theta = (2.0 if family == "logistic" else 1.0) * rng.normal(size=(5, 4))[clusters] + 0.1 * rng.normal(size=(n, 4))
    codes = np.repeat(np.arange(n), m)
    X = np.column_stack([rng.normal(size=(n * m, 3)), np.ones(n * m)])
    z = np.einsum("ij,ij->i", X, theta[codes])
    y = (rng.uniform(size=n * m) < 1 / (1 + np.exp(-z))).astype(float) if family == "logistic" else z
    y = y + (1.0 * rng.normal(size=n * m) if family == "squared" else 0.0)
    return X[:, :-1], y, codes, clusters, theta


def test_a_laplacian_has_a_mean_degree_of_one():
    W = ring(6, np.array([0, 0, 0, 1, 1, 1])) * 7.0
    L = laplacian(W).toarray()
    np.testing.assert_allclose(L.sum(axis=1), 0.0, atol=1e-12)
    assert np.trace(L) == pytest.approx(6.0)
    assert laplacian(sparse.csr_array((3, 3))).toarray().sum() == 0.0


@pytest.mark.parametrize("deviations", ["diagonal", "full"])
@pytest.mark.parametrize("strength", [0.3, 10.0])
def test_the_mode_is_the_dense_solution(deviations, strength):
    """Of squared losses: (Z'Z / s2 + (I + g L) (x) V^-1) d = Z'(y - X w) / s2."""
    X, y, codes, clusters, _ = planted(0, n=8)
    [model] = fit(X, [y], codes, 8, "squared", "linear", deviations)
    L = laplacian(ring(8, clusters % 3))
    D = mode(model, model.grouped, L, strength, model.D)
    found, q, n = model.population, 4, 8
    A, labels = model.design.columns(model.grouped.X), model.grouped.y
    Z = np.zeros((len(labels), n * q))
    for row, i in enumerate(model.grouped.codes):
        Z[row, i * q : (i + 1) * q] = A[row]
    P = np.kron(np.eye(n) + strength * L.toarray(), np.linalg.inv(matrix(found.V)))
    exact = np.linalg.solve(Z.T @ Z / found.s2 + P, Z.T @ (labels - A @ found.w) / found.s2)
    np.testing.assert_allclose(D, exact.reshape(n, q), atol=1e-6)


@pytest.mark.parametrize("family", ["squared", "logistic"])
def test_without_strength_everybody_is_as_before(family):
    X, y, codes, clusters, _ = planted(1, family=family)
    [model] = fit(X, [y], codes, 40, family, "linear")
    for start in (model.D, np.zeros_like(model.D)):
        D = mode(model, model.grouped, laplacian(ring(40, clusters)), 0.0, start)
        np.testing.assert_allclose(D, model.D, atol=1e-5)


@pytest.mark.parametrize("family", ["squared", "logistic"])
def test_edges_that_are_there_pay(family):
    X, y, codes, clusters, theta = planted(2, m=6 if family == "squared" else 15, family=family)
    models = fit(X, [y], codes, 40, family, "linear")
    W = ring(40, clusters)
    smoothed, used, tied = smooth(models, lambda D: W)
    assert tied.strength > 0.0
    assert tied.gain > 2.0 * tied.error
    assert used is W
    errors = [np.mean((found.coefficients()[1] - theta) ** 2) for found in (models[0], smoothed[0])]
    assert errors[1] < 0.75 * errors[0]


@pytest.mark.slow
def test_edges_at_random_are_not_used():
    """A gain of two standard errors is asked for: of ten sets, at most two take edges that mean nothing."""
    taken = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        X, y, codes, _ = drawn(rng, 30, 8, 3)
        models = fit(X[:, :-1], [y], codes, 30, "squared", "linear")
        W = ring(30, rng.permutation(30) % 6)
        smoothed, _, tied = smooth(models, lambda D, W=W: W)
        taken += tied.strength > 0.0
        if tied.strength == 0.0:
            assert smoothed[0] is models[0]
    assert taken <= 2


def test_edges_are_asked_for_without_the_rows_they_are_tested_on():
    """Once for every fold, from deviations of the other rows; and once for all rows."""
    X, y, codes, clusters, _ = planted(3)
    models = fit(X, [y], codes, 40, "squared", "linear")
    seen = []

    def weights(D):
        seen.append(D[0])
        return ring(40, clusters)

    smooth(models, weights)
    assert len(seen) == 6
    assert np.array_equal(seen[-1], models[0].D)
    for held, D in enumerate(seen[:-1]):
        part = models[0].grouped.some(row_folds(models[0].grouped) != held)
        expected = mode(models[0], part, None, 0.0, np.zeros_like(D))
        np.testing.assert_allclose(D, expected, atol=1e-6)


def test_folds_of_rows_are_even_and_do_not_depend_on_their_order():
    X, y, codes, _, _ = planted(4)
    [model] = fit(X, [y], codes, 40, "squared", "linear")
    fold = row_folds(model.grouped)
    assert np.ptp(np.bincount(fold)) <= 0.1 * len(y)
    for i in range(40):
        assert np.ptp(np.bincount(fold[model.grouped.codes == i], minlength=5)) <= 1
    order = np.random.default_rng(0).permutation(len(y))
    [other] = fit(X[order], [y[order]], codes[order], 40, "squared", "linear")
    where = {label: k for label, k in zip(model.grouped.y, fold, strict=True)}
    near = np.array(list(where))
    for label, k in zip(other.grouped.y, row_folds(other.grouped), strict=True):
        assert where[near[np.argmin(np.abs(near - label))]] == k
