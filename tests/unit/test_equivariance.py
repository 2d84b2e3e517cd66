"""Units, names and orders do not matter: predictions of partial pooling are the same to 1e-6 without them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

import coterie as ct
from coterie.pooling import fitted

KINDS = ("numbers", "student", "classes", "counts")
DESIGNS = ("linear", "additive", "auto")


def estimator(kind, design="auto", **settings):
    if kind == "classes":
        return ct.CollaborativeClassifier(design=design, **settings)
    loss = {"numbers": None, "student": "student", "counts": "poisson"}[kind]
    return ct.CollaborativeRegressor(design=design, loss=loss, **settings)


def table(kind, seed=0, n=16, least=4):
    """Rows of n agents with 4 to 11 rows (or more): two wavy columns, one that is 0 or 1, one of the agent itself."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(n), least + rng.integers(0, 8, size=n))
    X = rng.normal(size=(len(ids), 4))
    X[:, 2] = X[:, 2] > 0.3
    X[:, 3] = rng.normal(size=n)[ids]
    own = rng.normal(size=(n, 3))
    z = X[:, 0] * (1.0 + 0.5 * own[ids, 0]) + np.sin(2.0 * X[:, 1]) + 0.5 * X[:, 2]
    z += 0.7 * own[ids, 1] + 0.3 * X[:, 3]
    if kind == "classes":
        y = np.where(rng.uniform(size=len(z)) < expit(2.0 * z), "yes", "no")
    elif kind == "counts":
        y = rng.poisson(np.exp(0.5 * z + 0.5)).astype(float)
    else:
        y = z + 0.3 * rng.normal(size=len(z))
    return X, y, ids


def predictions(model, X, ids, strangers=True):
    """All that it says of rows: of their agents, and of agents never met."""
    out = []
    for agents in (ids, np.full(len(ids), -1)) if strangers else (ids,):
        if isinstance(model, ct.CollaborativeClassifier):
            out += [*model.predict_proba(X, agents=agents).T, model.decision_function(X, agents=agents)]
        else:
            mean, std = model.predict(X, agents=agents, return_std=True)
            out += [mean, std, *model.predict_interval(X, agents=agents).T]
    return np.array(out)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("kind", KINDS)
def test_columns_in_other_units(kind, design):
    X, y, ids = table(kind)
    scale, shift = np.array([1e3, 0.01, 7.0, 1e-4]), np.array([5.0, -3.0, 100.0, 0.0])
    one, other = (predictions(estimator(kind, design).fit(Z, y, agents=ids), Z, ids) for Z in (X, X * scale + shift))
    np.testing.assert_allclose(other, one, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_mirrored(kind):
    """Of a linear design: splines have one basis function less at one end."""
    X, y, ids = table(kind)
    one, other = (
        predictions(estimator(kind, "linear").fit(Z, y, agents=ids), Z, ids) for Z in (X, X * [-1.0, 2.0, -1.0, -0.1])
    )
    np.testing.assert_allclose(other, one, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_in_another_order(kind):
    X, y, ids = table(kind)
    order = [2, 0, 3, 1]
    one, other = (predictions(estimator(kind).fit(Z, y, agents=ids), Z, ids) for Z in (X, X[:, order]))
    np.testing.assert_allclose(other, one, atol=1e-6)


@pytest.mark.parametrize("design", ["linear", "auto"])
@pytest.mark.parametrize("kind", ["numbers", "student"])
@pytest.mark.parametrize("a", [1000.0, -0.01])
def test_labels_in_other_units(kind, design, a):
    X, y, ids = table(kind)
    one, other = (
        predictions(estimator(kind, design).fit(X, labels, agents=ids), X, ids) for labels in (y, a * y + 5.0)
    )
    back = (other - 5.0) / a
    back[[1, 5]] = other[[1, 5]] / abs(a)  # standard deviations
    if a < 0.0:
        back[[2, 3, 6, 7]] = back[[3, 2, 7, 6]]  # ends of intervals
    np.testing.assert_allclose(back, one, atol=1e-6)


@pytest.mark.parametrize("most", [2000, 11])
@pytest.mark.parametrize("kind", KINDS)
def test_agents_and_rows_in_another_order_and_other_names(kind, most, monkeypatch):
    """Also where the population is learned from a sample of the agents."""
    monkeypatch.setattr(fitted, "MAX_SAMPLE_AGENTS", most)
    X, y, ids = table(kind)
    rng = np.random.default_rng(1)
    one = predictions(estimator(kind).fit(X, y, agents=ids), X, ids)
    order, names = rng.permutation(len(y)), rng.permutation(16)
    other = estimator(kind).fit(X[order], y[order], agents=names[ids][order])
    np.testing.assert_allclose(predictions(other, X, names[ids]), one, atol=1e-6)
    words = np.array([f"agent {k}" for k in names])
    other = estimator(kind).fit(X[order], y[order], agents=words[ids][order])
    # An id of another type than those of all agents would be warned of.
    known, never = predictions(other, X, words[ids], strangers=False), np.full(len(ids), "nobody")
    np.testing.assert_allclose(known, one[: len(known)], atol=1e-6)
    if kind == "classes":
        np.testing.assert_allclose(other.predict_proba(X, agents=never).T, one[3:5], atol=1e-6)


@pytest.mark.parametrize("most", [2000, 11])
@pytest.mark.parametrize("design", ["linear", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_repeated_rows(kind, design, most, monkeypatch):
    """With rows enough that those which are said twice are not taken for agents' arrays without noise."""
    monkeypatch.setattr(fitted, "MAX_SAMPLE_AGENTS", most)
    X, y, ids = table(kind, least=25)
    weight = np.random.default_rng(2).integers(0, 4, size=len(y))
    weight[np.unique(ids, return_index=True)[1]] = 1  # everybody has a row
    again = np.repeat(np.arange(len(y)), weight)
    weighted = estimator(kind, design).fit(X, y, agents=ids, sample_weight=weight)
    repeated = estimator(kind, design).fit(X[again], y[again], agents=ids[again])
    np.testing.assert_allclose(predictions(weighted, X, ids), predictions(repeated, X, ids), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numbers", "classes"])
@pytest.mark.parametrize("columns", [8, 170])
def test_many_columns(kind, columns, monkeypatch):
    """The model in the span of the rows: units, orders, names and weights."""
    monkeypatch.setattr(fitted, "MAX_DENSE_COLUMNS", 7)
    rng = np.random.default_rng(3)
    X, y, ids = table(kind, n=9, least=8)
    X = np.column_stack([X[:, :2], rng.normal(size=(len(y), columns - 2))])
    one = predictions(estimator(kind).fit(X, y, agents=ids), X, ids)
    Z = X * np.exp(rng.normal(size=columns)) + rng.normal(size=columns)
    np.testing.assert_allclose(predictions(estimator(kind).fit(Z, y, agents=ids), Z, ids), one, atol=1e-6)
    order, names = rng.permutation(len(y)), rng.permutation(9)
    other = estimator(kind).fit(X[order], y[order], agents=names[ids][order])
    np.testing.assert_allclose(predictions(other, X, names[ids]), one, atol=1e-6)
    if kind == "numbers":
        other = estimator(kind).fit(X, 5.0 - 10.0 * y, agents=ids)
        np.testing.assert_allclose((5.0 - other.predict(X, agents=ids)) / 10.0, one[0], atol=1e-6)
    if columns < 10:
        weight = rng.integers(1, 3, size=len(y))
        again = np.repeat(np.arange(len(y)), weight)
        weighted = estimator(kind).fit(X, y, agents=ids, sample_weight=weight)
        repeated = estimator(kind).fit(X[again], y[again], agents=ids[again])
        ask = "predict" if kind == "numbers" else "decision_function"  # folds that sharpen odds cannot be the same
        one, other = (getattr(model, ask)(X, agents=ids) for model in (weighted, repeated))
        np.testing.assert_allclose(other, one, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_edges_of_agents(kind):
    """With a graph of three camps; another name of an agent is another place in the graph."""
    X, _, ids = table(kind, n=36, least=4)
    rng = np.random.default_rng(4)
    camp = np.arange(36) % 3
    W = np.where((camp[:, None] == camp) & ~np.eye(36, dtype=bool), 1.0, 0.0)
    z = np.sum(X[:, :2] * (3.0 * rng.normal(size=(3, 2)))[camp[ids]], axis=1) + 2.0 * rng.normal(size=len(ids))
    y = z if kind == "numbers" else np.where(z > 0.0, "yes", "no")
    rng = np.random.default_rng(5)
    model = estimator(kind, "linear", graph=W).fit(X, y, agents=ids)
    one = predictions(model, X, ids)
    Z = X * [100.0, 0.1, 1.0, 3.0] - 5.0
    order, names = rng.permutation(len(y)), rng.permutation(36)
    places = np.argsort(names)
    other = estimator(kind, "linear", graph=W[np.ix_(places, places)])
    other.fit(Z[order], y[order], agents=names[ids][order])
    assert other.edges_.strength == model.edges_.strength
    assert other.edges_.gain == pytest.approx(model.edges_.gain, abs=1e-6)
    np.testing.assert_allclose(predictions(other, Z, names[ids]), one, atol=1e-5)
    if kind == "numbers":
        assert model.edges_.strength > 0.0
        back = estimator(kind, "linear", graph=W).fit(X, 5.0 - 2.0 * y, agents=ids)
        np.testing.assert_allclose((5.0 - back.predict(X, agents=ids)) / 2.0, one[0], atol=1e-5)
