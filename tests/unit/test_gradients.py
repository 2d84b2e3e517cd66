"""Gradients of an agent's loss against NumPy, and the exponential in them against the C library."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse

import coterie as ct
from coterie.core.arrays import NO_DIE, TIED, Data, add_loss_gradient, loss_of
from coterie.core.compile import kernel
from coterie.core.exponential import MAX_EXPONENT, exp_minus
from coterie.core.linear import rows_of
from coterie.core.losses import LOSSES
from coterie.core.models import LINEAR_BLOCK_ROWS, Linear


@kernel
def exponentials(x, out):
    for k in range(x.shape[0]):
        out[k] = exp_minus(x[k])


@kernel
def gradient_of(data, theta, scale, out):
    add_loss_gradient(data, theta, scale, out)


def test_the_exponential_is_that_of_the_c_library_to_a_unit_or_two():
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [np.linspace(0.0, MAX_EXPONENT, 20_001), rng.exponential(1.0, 20_000), 10.0 ** rng.uniform(-18, 2, 20_000)]
    )
    out = np.zeros_like(x)
    exponentials(x, out)
    exact = np.array([math.exp(-v) for v in x])
    assert np.max(np.abs(out - exact) / np.spacing(exact)) <= 1.5
    assert np.array_equal(out[::20], [exp_minus(v) for v in x[::20]])  # compiled and plain, bit by bit


def test_the_exponential_at_its_ends():
    out = np.zeros(5)
    exponentials(np.array([0.0, MAX_EXPONENT, 1e300, math.inf, math.nan]), out)
    assert out[0] == 1.0
    assert out[1] == out[2] == out[3] == pytest.approx(math.exp(-MAX_EXPONENT), rel=1e-15)
    assert math.isnan(out[4])  # a model that is not a number has no gradient that is one


def data_with(X, y, loss, row_weight, ridge):
    none = np.zeros(0)
    modelled = Linear(), np.full(X.shape[1], TIED, np.int8), np.arange(X.shape[1]), np.zeros(X.shape[0]), none, NO_DIE
    return Data(loss, rows_of(X), y, none, none, none, row_weight, ridge, 1.0, 1.0, 0, 0.5, False, 1.0, 1, *modelled)


# No rows, fewer than four, four, one more; one block, one more row, several. One column, and more.
@pytest.mark.parametrize(
    "m", [0, 1, 3, 4, 5, LINEAR_BLOCK_ROWS - 1, LINEAR_BLOCK_ROWS, LINEAR_BLOCK_ROWS + 1, 3 * LINEAR_BLOCK_ROWS + 2]
)
@pytest.mark.parametrize("p", [1, 3, 20])
def test_gradients_are_those_of_numpy(m, p):
    rng = np.random.default_rng(100 * m + p)
    X, theta, before = rng.normal(size=(m, p)), rng.normal(size=p), rng.normal(size=p)
    y = np.where(rng.random(m) < 0.5, -1.0, 1.0)
    for name in ("logistic", "squared"):
        for dtype in (np.float64, np.float32):
            for shape in (np.asarray, sparse.csr_array):
                stored = X.astype(dtype)
                data = data_with(shape(stored), y, LOSSES[name], 0.3, 0.2)
                out = before.copy()
                gradient_of(data, theta, 0.7, out)
                z = stored.astype(np.float64) @ theta
                slopes = z - y if name == "squared" else -y / (1.0 + np.exp(y * z))
                exact = before + 0.7 * (0.3 * slopes @ stored.astype(np.float64) + 2.0 * 0.2 * theta)
                np.testing.assert_allclose(out, exact, rtol=0, atol=1e-12 * (1 + m))
                value = loss_of(data, theta)
                losses = 0.5 * (z - y) ** 2 if name == "squared" else np.log1p(np.exp(-y * z))
                assert value == pytest.approx(0.3 * losses.sum() + 0.2 * theta @ theta, rel=1e-12, abs=1e-13)


def test_a_wake_does_not_depend_on_where_its_rows_are():
    """The same rows among those of others, at any place in memory: the same bits."""
    rng = np.random.default_rng(5)
    X, y, theta = rng.normal(size=(200, 7)), np.where(rng.random(200) < 0.5, -1.0, 1.0), rng.normal(size=7)
    results = []
    for first in (0, 1, 13, 100):
        room = rng.normal(size=(200, 7))
        room[first : first + 70] = X[:70]
        labels = np.ones(200)
        labels[first : first + 70] = y[:70]
        data = data_with(room, labels, ct.Logistic(), 1.0, 0.1)
        data = data._replace(rows=data.rows.take(first, first + 70), labels=labels[first : first + 70])
        out = np.zeros(7)
        gradient_of(data, theta, 1.0, out)
        results.append(out.tobytes())
    assert len(set(results)) == 1
