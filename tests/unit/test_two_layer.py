"""The compiled network, by blocks of rows: against NumPy, its own source in plain Python, and sparse rows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import coterie as ct
from coterie.core.models import ROWS, tanh
from coterie.core.world import all_gradients, all_losses
from coterie.engines.worlds import world_of

#: None, one, not a multiple of four, one block and a bit, two and a bit.
SIZES = [0, 1, 7, ROWS + 1, 2 * ROWS + 3]


def problem(outputs, convert=np.asarray):
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    y = rng.normal(size=owner.size) if outputs == 1 else rng.integers(0, outputs, owner.size)
    data = ct.AgentData(convert(rng.normal(size=(owner.size, 6))), y, agents=owner, members=range(len(SIZES)))
    return ct.Problem.differentiable(data, ct.graphs.ring(len(SIZES)), ct.TwoLayer(6, 5, outputs), coupling=0.0)


def models(given):
    return np.random.default_rng(1).normal(size=(given.n, given.p))


@pytest.mark.parametrize("outputs", [1, 3])
def test_losses_are_those_of_the_predictions(outputs):
    given = problem(outputs)
    theta, data = models(given), given.data
    for i in range(given.n):
        rows = slice(*data.start[i : i + 2])
        z, y = given.model.predict(theta[i], data.X[rows]), data.y[rows]
        if outputs == 1:
            losses = 0.5 * (z - y) ** 2
        else:
            losses = np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(y)), y.astype(int)]
        expected = losses.mean() if len(y) else 0.0
        assert given.losses(theta)[i] == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("outputs", [1, 3])
def test_gradients_are_those_of_finite_differences_and_of_plain_python(outputs):
    given = problem(outputs)
    theta, world, step = models(given), world_of(given), 1e-6
    compiled, plain, losses = np.zeros_like(theta), np.zeros_like(theta), np.zeros((2, given.n))
    all_gradients(world, theta, compiled)
    all_gradients.python(world, theta, plain)
    assert_array_equal(compiled, plain)  # the same bits
    for k in range(given.p):
        for way, out in zip((step, -step), losses, strict=True):
            all_losses(world, theta + way * np.eye(given.p)[k], out)
        assert_allclose(compiled[:, k], (losses[0] - losses[1]) / (2 * step), rtol=0, atol=1e-8)


def test_sparse_rows_give_the_same():
    dense, thin = problem(3), problem(3, sparse.csr_array)
    theta = models(dense)
    assert_allclose(thin.gradient(theta), dense.gradient(theta), rtol=0, atol=1e-14)


def test_tanh_is_that_of_numpy():
    x = np.concatenate([np.linspace(-20.0, 20.0, 1001), [1e-300, 1e-9, -1e3, np.inf, -np.inf]])
    assert_allclose([tanh(v) for v in x], np.tanh(x), rtol=0, atol=3e-16)
    assert np.isnan(tanh(np.nan))
