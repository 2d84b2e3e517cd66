"""The compiled models: against NumPy, scikit-learn, their own source in plain Python, differences, and sparse rows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.linear_model import LogisticRegression

import coterie as ct
from coterie.core.arrays import all_gradients, all_losses
from coterie.core.models import NETWORK_BLOCK_ROWS, tanh
from coterie.engines.arrays import arrays_of

#: None, one, not a multiple of four, one block and a bit, two and a bit.
SIZES = [0, 1, 7, NETWORK_BLOCK_ROWS + 1, 2 * NETWORK_BLOCK_ROWS + 3]
CLASSES = 3
MODELS = {
    "softmax": ct.models.Softmax(6, CLASSES),
    "network of one output": ct.models.TwoLayer(6, 5, 1),
    "network of three": ct.models.TwoLayer(6, 5, CLASSES),
}


def problem(name, convert=np.asarray, **more):
    rng, model = np.random.default_rng(0), MODELS[name]
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    y = rng.normal(size=owner.size) if "one" in name else rng.integers(0, CLASSES, owner.size)
    data = ct.AgentData(convert(rng.normal(size=(owner.size, 6))), y, agents=owner, members=range(len(SIZES)))
    given = ct.Problem.differentiable(data, ct.graphs.ring(len(SIZES)), model, coupling=0.0, **more)
    return given, np.random.default_rng(1).normal(size=(given.n, given.p))


@pytest.mark.parametrize("name", MODELS)
def test_losses_are_those_of_the_predictions(name):
    given, theta = problem(name)
    data = given.data
    for i in range(given.n):
        rows = slice(*data.start[i : i + 2])
        z, y = given.model.predict(theta[i], data.X[rows]), data.y[rows]
        if "one" in name:
            losses = 0.5 * (z - y) ** 2
        else:
            losses = np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(y)), y.astype(int)]
        expected = losses.mean() if len(y) else 0.0
        assert given.losses(theta)[i] == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_finite_differences_and_of_plain_python(name):
    given, theta = problem(name)
    arrays, step = arrays_of(given), 1e-6
    compiled, plain, losses = np.zeros_like(theta), np.zeros_like(theta), np.zeros((2, given.n))
    all_gradients(arrays, theta, compiled)
    all_gradients.python(arrays, theta, plain)
    assert_array_equal(compiled, plain)  # the same bits
    for k in range(given.p):
        for way, out in zip((step, -step), losses, strict=True):
            all_losses(arrays, theta + way * np.eye(given.p)[k], out)
        assert_allclose(compiled[:, k], (losses[0] - losses[1]) / (2 * step), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["softmax", "network of three"])
def test_sparse_rows_give_the_same(name):
    (dense, theta), (thin, _) = problem(name), problem(name, sparse.csr_array)
    assert_allclose(thin.gradient(theta), dense.gradient(theta), rtol=0, atol=1e-14)
    assert_allclose(thin.local_lipschitz, dense.local_lipschitz, rtol=1e-10)


def test_tanh_is_that_of_numpy():
    x = np.concatenate([np.linspace(-20.0, 20.0, 1001), [1e-300, 1e-9, -1e3, np.inf, -np.inf]])
    assert_allclose([tanh(v) for v in x], np.tanh(x), rtol=0, atol=3e-16)
    assert np.isnan(tanh(np.nan))


def test_its_bound_on_the_curvature_holds_and_is_not_far_off():
    given, _ = problem("softmax", ridge=0.1)
    data, bounds = given.data, given.local_lipschitz
    assert bounds[0] == pytest.approx(0.2)  # nothing but the ridge, without rows
    for i in range(1, given.n):
        X = data.X[data.start[i] : data.start[i + 1]]
        X = np.column_stack([X, np.ones(len(X))])
        p = np.array([0.5, 0.5, 0.0])  # where cross entropy bends most
        curved = np.kron(np.diag(p) - np.outer(p, p), X.T @ X / len(X))
        largest = np.linalg.eigvalsh(curved)[-1] + 0.2
        assert largest <= bounds[i] * (1 + 1e-12)
        assert bounds[i] <= 2 * largest


def test_one_agent_alone_finds_the_model_of_scikit_learn():
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(60, 4)), rng.integers(0, CLASSES, 60)
    ridge = 0.05
    data = ct.AgentData(X, y, agents=np.zeros(60, int))
    given = ct.Problem.differentiable(data, ct.graphs.empty(1), ct.models.Softmax(4, CLASSES), ridge=ridge)
    run = ct.simulate(given, ct.CoordinateDescent(), wakes=3000)
    ours = given.model.predict(run.theta[0], X)
    ones = np.column_stack([X, np.ones(60)])  # our ridge is on the bias, too
    theirs = LogisticRegression(C=1 / (2 * ridge * 60), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(ones, y)
    expected = ones @ theirs.coef_.T
    assert_allclose(ours - ours.mean(axis=1)[:, None], expected - expected.mean(axis=1)[:, None], atol=1e-5)


def test_what_it_cannot_take_is_refused():
    for sizes, what in (
        ((0, 3), "inputs = 0"),
        ((4, 1), "classes = 1: expected an integer >= 2"),
        ((4, True), "classes"),
    ):
        with pytest.raises(ct.errors.ParameterError, match=what):
            ct.models.Softmax(*sizes)
    data, graph = ct.AgentData(np.eye(3), [0, 1, 3], agents=["a", "a", "b"]), ct.graphs.ring(2)
    for pose, what in (
        (lambda: ct.Problem.differentiable(data, graph, ct.models.Softmax(3, 3)), "takes classes 0 to 2"),
        (lambda: ct.Problem.federated(data, "logistic"), r"takes labels -1 or \+1 .*ct\.models\.Softmax"),
        (lambda: ct.Problem.personalized(data, graph), r"takes labels -1 or \+1 .*ct\.models\.Softmax"),
    ):
        with pytest.raises(ct.errors.DataError, match=what):
            pose()
