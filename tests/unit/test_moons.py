"""Clustered and rotated moons: geometry undone by hand, weights by formula, noise within its binomial bounds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import make_moons

from coterie.datasets import clustered_moons, rotated_moons
from coterie.errors import ParameterError

both = pytest.mark.parametrize("make", [clustered_moons, rotated_moons])


def unrotated(data, task, pivot=(0.0, 0.0)):
    """Points of the plane, turned back, as complex numbers where scikit-learn has them."""
    z = data.X[:, 0] + 1j * data.X[:, 1]
    return z * np.exp(-1j * np.deg2rad(task.angles[data.owner])) + complex(*pivot)


def to_moon(z, y):
    """Distance of each point from the moon of its label."""
    upper = np.abs(np.abs(z) - 1.0) + np.maximum(-z.imag, 0.0)
    w = 1.0 + 0.5j - z  # the lower moon is the upper one turned by half a turn around the centre
    lower = np.abs(np.abs(w) - 1.0) + np.maximum(-w.imag, 0.0)
    return np.where(y < 0, upper, lower)


def test_shape_of_the_task():
    task = clustered_moons(seed=0)
    assert (task.train.n, task.train.p, task.test.n, task.test.p) == (100, 20, 100, 20)
    assert task.train.members == task.test.members == tuple(range(100))
    np.testing.assert_array_equal(task.test.sizes, 100)
    assert task.graph.n == 100
    assert set(task.train.y) == set(task.test.y) == {-1.0, 1.0}
    assert set(task.train.sizes) == set(range(3, 16))  # a missing size has probability < 13 (12/13)^100 = 0.005


@pytest.mark.parametrize(
    ("n", "clusters", "sizes"),
    [
        (100, (0.1, 0.2, 0.3, 0.4), [10, 20, 30, 40]),
        (20, (0.1, 0.2, 0.3, 0.4), [2, 4, 6, 8]),
        (20, (1, 2, 3, 4), [2, 4, 6, 8]),
        (10, (1, 1, 1), [3, 4, 3]),
        (1, (0.1, 0.2, 0.3, 0.4), [0, 0, 1]),
    ],
)
def test_cluster_sizes(n, clusters, sizes):
    task = clustered_moons(n=n, clusters=clusters, test_rows=2)
    np.testing.assert_array_equal(np.bincount(task.cluster), sizes)
    assert (np.diff(task.cluster) >= 0).all()


def test_angles_gather_around_the_centres():
    task = clustered_moons(n=400, test_rows=1, seed=3)
    off = task.angles - np.array([45.0, 135.0, 225.0, 315.0])[task.cluster]
    # Two-sided bounds of a normal mean and of a chi-square, which a right sample passes with probability 1 - 2e-4.
    assert abs(off.mean()) < stats.norm.isf(0.5e-4) * 5.0 / 20.0
    low, high = stats.chi2.ppf([0.5e-4, 1 - 0.5e-4], df=400)
    assert low < (off / 5.0) @ (off / 5.0) < high
    exact = clustered_moons(spread=0.0, test_rows=1)
    np.testing.assert_array_equal(exact.angles, np.array([45.0, 135.0, 225.0, 315.0])[exact.cluster])


@both
@pytest.mark.parametrize("pivot", [(0.5, 0.25), (0.0, 0.0), (-1.0, 2.0)])
def test_turned_back_the_points_are_on_the_moon_of_their_label(make, pivot):
    task = make(noise=0.0, moon_noise=0.0, pivot=pivot, seed=1)
    for data in (task.train, task.test):
        assert to_moon(unrotated(data, task, pivot), data.y).max() < 1e-12
        # The other moon is elsewhere, so this does not hold for any labels.
        assert np.median(to_moon(unrotated(data, task, pivot), -data.y)) > 0.3


@both
def test_the_points_are_those_of_scikit_learn(make):
    task = make(n=5, moon_noise=0.0, seed=2)
    expected, _ = make_moons(100, noise=None)
    for k in range(5):
        z = np.sort_complex(unrotated(task.test, task)[task.test.owner == k].round(9))
        np.testing.assert_allclose(z, np.sort_complex((expected[:, 0] + 1j * expected[:, 1]).round(9)), atol=1e-8)


def test_noise_of_the_moons():
    task = clustered_moons(moon_noise=0.02, seed=4)
    z = unrotated(task.test, task)
    inside = (task.test.y < 0) & (z.imag > 0.2)  # away from the ends, where the distance is that from the circle
    off = np.abs(z[inside]) - 1.0
    assert 0.019 < off.std() < 0.021  # of about 4000 normal numbers: within 4.5 standard errors, 1e-5


def test_everybody_has_both_classes():
    task = clustered_moons(n=300, rows=(2, 4), noise=0.0, test_rows=2, seed=5)
    for data in (task.train, task.test):
        positive = np.bincount(data.owner, weights=data.y > 0, minlength=300)
        np.testing.assert_array_equal(positive, (data.sizes + 1) // 2)
    # Shuffled: neither class always comes first.
    first = task.train.y[task.train.start[:-1]]
    assert 50 < (first > 0).sum() < 250
    assert clustered_moons(n=3, rows=(1, 1), noise=0.0).train.n_rows == 3


@both
def test_rate_of_the_flipped_labels(make):
    # A label is flipped if and only if its point lies on the other moon.
    task = make(n=600, p=2, moon_noise=0.0, test_rows=10, noise=0.05, seed=6)
    flipped = to_moon(unrotated(task.train, task), task.train.y) > 1e-9
    low, high = stats.binom.ppf([0.5e-4, 1 - 0.5e-4], flipped.size, 0.05)  # a right sample fails with probability 1e-4
    assert low <= flipped.sum() <= high
    assert to_moon(unrotated(task.test, task), task.test.y).max() < 1e-9  # never in the test rows
    everything = make(n=20, moon_noise=0.0, noise=1.0)
    assert (to_moon(unrotated(everything.train, everything), everything.train.y) > 1e-9).all()


@both
def test_empty_axes(make):
    for data in (make(seed=0).train, make(seed=0).test):
        assert not data.X[:, 2:].any()
    filled = make(seed=0, empty="random")
    for data in (filled.train, filled.test):
        rest = data.X[:, 2:]
        assert np.abs(rest).max() <= 1.0
        # P(p-value of a right sample < 1e-4) = 1e-4 for each of the two
        assert stats.kstest(rest.ravel(), stats.uniform(-1, 2).cdf).pvalue > 1e-4
    assert make(p=2, n=4).train.p == 2


def test_the_oracle_keeps_the_clusters_apart():
    task = clustered_moons(spread=2.0, cut=0.01, seed=8)
    i, j, _ = task.graph.edges()
    np.testing.assert_array_equal(task.cluster[i], task.cluster[j])
    assert task.graph.n_components == 4


def test_no_two_agents_have_the_same_points():
    task = clustered_moons(n=20, seed=1)
    assert np.unique(unrotated(task.test, task).reshape(20, 100).sum(axis=1).round(9)).size == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n = 0: expected an integer >= 1"),
        ({"p": 1}, "p=1: the moons lie in the first two dimensions"),
        ({"rows": (0, 5)}, r"rows = \(0, 5\): expected two positive finite numbers"),
        ({"rows": (6, 5)}, r"rows = \(6, 5\): expected two positive finite numbers"),
        ({"test_rows": 0}, "test_rows = 0: expected an integer >= 1"),
        ({"noise": 1.5}, r"noise = 1\.5: expected a number in \[0, 1\]"),
        ({"noise": -0.1}, r"noise = -0\.1: expected a number in \[0, 1\]"),
        ({"noise": np.nan}, r"noise = nan: expected a number in \[0, 1\]"),
        ({"empty": "ones"}, "empty = 'ones': expected 'zeros' or 'random'"),
        ({"spread": -1.0}, r"spread = -1\.0: expected a nonnegative finite number"),
        ({"moon_noise": np.inf}, "moon_noise = inf: expected a nonnegative finite number"),
        ({"sigma": 0.0}, r"sigma = 0\.0: expected a positive finite number"),
        ({"cut": 0.0}, r"cut = 0\.0: expected a number strictly between 0 and 1"),
        ({"cut": 1.0}, r"cut = 1\.0: expected a number strictly between 0 and 1"),
        ({"clusters": ()}, r"clusters=\(\) must be shares"),
        ({"clusters": (0.5, 0.0)}, r"clusters=\(0\.5, 0\.0\) must be shares"),
        ({"clusters": (0.5, np.nan)}, "must be shares"),
        ({"pivot": (1.0,)}, r"pivot=\(1\.0,\) must be a point of the plane"),
        ({"pivot": (1.0, np.nan)}, "must be a point of the plane"),
    ],
)
def test_bad_arguments(arguments, message):
    for make in (clustered_moons, rotated_moons):
        if make is clustered_moons or not arguments.keys() & {"spread", "clusters"}:
            with pytest.raises(ParameterError, match=message):
                make(**arguments)
