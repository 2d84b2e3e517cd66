"""Local differential privacy: noise on every row and on every label."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import sparse, stats

import coterie as ct
from coterie.core.private.terms import GRID
from coterie.errors import DataError, ParameterError
from coterie.privacy.local import perturbed


def make(rows=4000, p=5, bound=1.0, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.dirichlet(np.ones(p), size=rows) * rng.choice([-1.0, 1.0], size=(rows, p)) * bound * 0.9
    return ct.AgentData(X, rng.choice([-1.0, 1.0], size=rows), agents=rng.integers(0, 20, size=rows))


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize(("epsilon", "bound"), [(0.5, 1.0), (2.0, 3.0), (20.0, 0.1)])
def test_noise_on_features_is_laplace_of_the_right_scale(epsilon, bound):
    data = make(bound=bound)
    noise = perturbed(data, epsilon, bound, seed=1).X - data.X
    # 20000 draws: fails by chance once in 10^5 times; an error of 5 % in the scale makes p-values near 1e-10.
    scale = 2.0 * bound / (0.5 * epsilon)
    assert stats.kstest(noise.ravel(), stats.laplace(scale=scale).cdf).pvalue > 1e-5
    # Mean absolute value, of standard deviation scale / sqrt(20000): once in 10^5 times off by 4.42 of it.
    assert abs(np.abs(noise).mean() / scale - 1.0) < 4.42 / math.sqrt(noise.size)
    assert np.unique(noise.ravel().round(9)).size > 0.99 * noise.size  # no noise twice


@pytest.mark.compiled
@pytest.mark.parametrize("epsilon", [0.1, 2.0, 6.0])
def test_labels_are_turned_as_often_as_they_should_be(epsilon):
    data = make(rows=20000, p=1)
    turned = perturbed(data, epsilon, seed=2).y != data.y
    probability = 1.0 / (1.0 + math.exp(epsilon / 2))
    # Each of these fails by chance once in 10^5 times.
    assert stats.binomtest(int(turned.sum()), turned.size, probability).pvalue > 1e-5
    plus = data.y == 1.0
    assert stats.binomtest(int(turned[plus].sum()), int(plus.sum()), probability).pvalue > 1e-5


@pytest.mark.slow
def test_labels_are_turned_whatever_the_noise_on_the_row():
    data = make(rows=20000, p=1)
    noisy = perturbed(data, 2.0, seed=3)
    turned, high = noisy.y != data.y, noisy.X[:, 0] > data.X[:, 0]
    table = [[np.sum(turned & high), np.sum(turned & ~high)], [np.sum(~turned & high), np.sum(~turned & ~high)]]
    assert stats.fisher_exact(table).pvalue > 1e-5


@pytest.mark.compiled
def test_two_rows_are_never_farther_apart_than_the_noise_is_made_for():
    # With the same seed the noise is the same, and cancels: what is left is the rows, on their grid.
    rng = np.random.default_rng(4)
    rows, p, bound, y = 2000, 7, 0.3, np.ones(2000)
    X, Z = (rng.standard_cauchy(size=(rows, p)) * rng.lognormal(-3, 3, size=(rows, 1)) for _ in range(2))
    X[:10], Z[:10] = np.eye(p)[0] * 5.0, -np.eye(p)[0] * 1e308
    X[10:20], Z[10:20] = 1e308, -1e300
    one, other = (perturbed(ct.AgentData(part, y), 1.0, bound).X for part in (X, Z))
    steps = (one - other) * (GRID / bound)
    assert np.abs(steps - np.rint(steps)).max() < 1e-3
    distance = np.abs(np.rint(steps)).sum(axis=1)
    assert distance.max() <= 2 * GRID
    np.testing.assert_array_equal(distance[:10], 2 * GRID)
    assert distance[10:20].min() >= 2 * GRID - 2 * p


def test_rows_are_only_scaled_down_and_only_if_they_are_too_long():
    data = ct.AgentData([[0.25, -0.5], [3.0, -1.0], [0.0, 0.0], [1e-300, 0.0]], [1, -1, 1, 1])
    # At this epsilon, noise is a few steps of the grid.
    noisy = perturbed(data, 1e6)
    np.testing.assert_allclose(noisy.X, [[0.25, -0.5], [0.75, -0.25], [0.0, 0.0], [0.0, 0.0]], atol=1e-4)
    np.testing.assert_array_equal(noisy.y, data.y)


def test_agents_stay_who_they_are():
    frame = pd.DataFrame({"a": [0.1, 0.2, 0.3], "b": [0.0, 0.5, 0.0], "y": [1, -1, 1], "who": ["bo", "anna", "bo"]})
    data = ct.AgentData(frame, y="y", agents="who", members=["bo", "zoe", "anna"])
    before = data.X.copy()
    noisy = perturbed(data, 1.0)
    assert noisy.members == data.members
    assert noisy.feature_names == ("a", "b")
    for name in ("start", "sizes", "owner", "origin"):
        np.testing.assert_array_equal(getattr(noisy, name), getattr(data, name))
    np.testing.assert_array_equal(data.X, before)
    assert not noisy.X.flags.writeable
    # A part of the agents remembers where its rows came from.
    np.testing.assert_array_equal(perturbed(data.only([2]), 1.0).origin, [1])


def test_sparse_data_become_dense():
    data = make(rows=50)
    thin = ct.AgentData(sparse.csr_array(data.X), data.y, agents=data.owner)
    noisy = perturbed(thin, 1.0)
    assert not noisy.is_sparse
    np.testing.assert_array_equal(noisy.X, perturbed(ct.AgentData(data.X, data.y, agents=data.owner), 1.0).X)


def test_seeds():
    data = make(rows=50)
    one, again, other = (perturbed(data, 1.0, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.X, again.X)
    np.testing.assert_array_equal(one.y, again.y)
    assert np.all(one.X != other.X)
    assert np.any(one.y != other.y)


@pytest.mark.slow
def test_a_model_can_be_learned_from_it():
    task = ct.datasets.linear_classification(n=20, p=5, seed=0)

    def accuracy(epsilon):
        noisy = perturbed(task.train, epsilon, row_norm=3.0)
        return task.accuracy(ct.Problem.personalized(noisy, task.graph).local()).mean()

    clean = task.accuracy(ct.Problem.personalized(task.train, task.graph).local()).mean()
    assert accuracy(1000.0) > clean - 0.05
    assert accuracy(0.5) < clean - 0.1  # Figure 4: what is left is noise


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"epsilon": 0.0}, r"epsilon = 0\.0: expected"),
        ({"epsilon": math.inf}, "epsilon = inf: expected"),
        ({"epsilon": True}, "epsilon = True: expected"),
        ({"epsilon": 1e-12}, "epsilon = 1e-12: expected at least"),
        ({"row_norm": -1.0}, r"row_norm = -1\.0: expected"),
        ({"row_norm": math.nan}, "row_norm = nan: expected"),
        ({"seed": 0.5}, r"seed = 0\.5: expected"),
    ],
)
def test_what_is_out_of_range_is_named(named, said):
    with pytest.raises(ParameterError, match=said):
        perturbed(make(rows=5), **{"epsilon": 1.0, **named})


def test_data_that_do_not_fit_are_refused():
    with pytest.raises(ParameterError, match="must be an AgentData; found ndarray"):
        perturbed(np.ones((2, 2)), 1.0)
    with pytest.raises(DataError, match="no labels"):
        perturbed(ct.AgentData([[1.0]]), 1.0)
    bad = ct.AgentData(np.ones((4, 1)), [1, 0, 2, -1], agents=["b", "b", "a", "a"])
    with pytest.raises(DataError, match=r"row 1 \(agent 'b'\) has label 0: labels must be -1 or \+1"):
        perturbed(bad, 1.0)
