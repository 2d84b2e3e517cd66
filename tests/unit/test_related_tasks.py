"""Related tasks: families with signs, sizes, labels of the model they claim, and a signal that is no certainty."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import expit

from coterie.datasets import related_tasks
from coterie.errors import ParameterError


@pytest.fixture(scope="module")
def paper():
    return related_tasks(seed=0)


def margins(data, theta):
    return np.einsum("rk,rk->r", data.X, theta[data.owner])


def test_shape_of_the_paper(paper):
    assert (paper.train.n, paper.train.p, paper.test.n, paper.test.p) == (16, 100, 16, 100)
    assert paper.train.members == paper.test.members == tuple(range(16))
    assert (paper.targets.shape, paper.correlation.shape) == ((16, 100), (16, 16))
    assert (paper.train.n_rows, paper.test.n_rows) == (16 * 1894, 16 * 811)  # 43 280 in all, as in Table 1
    for data, mean in ((paper.train, 1894), (paper.test, 811)):
        assert len(set(data.sizes.tolist())) == 16
        assert 0.5 * mean <= data.sizes.min() < 0.52 * mean
        assert 1.48 * mean < data.sizes.max() <= 1.5 * mean
        assert set(data.y) == {-1.0, 1.0}
    np.testing.assert_array_equal(np.argsort(paper.train.sizes), np.argsort(paper.test.sizes))


@pytest.mark.parametrize("seed", range(5))
def test_correlations_are_blocks_with_signs(seed):
    task = related_tasks(rows=1, test_rows=1, seed=seed)
    np.testing.assert_array_equal(task.parent[[0, 5, 10]], [0, 5, 10])
    np.testing.assert_array_equal(task.sign[[0, 5, 10]], 1.0)
    assert set(task.parent) == {0, 5, 10}
    assert set(task.sign) == {-1.0, 1.0}
    same = task.parent[:, None] == task.parent
    signed = task.correlation * np.outer(task.sign, task.sign)
    # Expected: 1 / (1 + noise^2) = 0.99 within a family. Between two, cosines of random directions: sd 0.1 for the 3
    # pairs of parents, which their children hardly change, so five sd have error rate 2e-6 for each seed.
    assert signed[same].min() > 0.9
    assert np.abs(task.correlation[~same]).max() < 0.5
    np.testing.assert_allclose(task.correlation, 1.0 - pairwise_cosine_distances(task.targets), atol=1e-12)
    np.testing.assert_array_equal(task.correlation, task.correlation.T)
    np.testing.assert_array_equal(np.diag(task.correlation), 1.0)


def pairwise_cosine_distances(rows):
    return np.array([[1.0 - a @ b / np.sqrt((a @ a) * (b @ b)) for b in rows] for a in rows])


def test_noise_and_scale_of_the_weights():
    task = related_tasks(n=60, p=500, rows=1, test_rows=1, parents=4, noise=0.25, scale=2.0, seed=3)
    assert np.unique(task.parent).tolist() == [0, 15, 30, 45]
    child = task.parent != np.arange(60)
    np.testing.assert_allclose(np.linalg.norm(task.targets[~child], axis=1), 2.0)
    off = (task.targets - task.sign[:, None] * task.targets[task.parent])[child]
    # Of 56 * 500 normal draws: the sum of squares is chi-square, two-sided, error rate 1e-5.
    low, high = stats.chi2.ppf([0.5e-5, 1.0 - 0.5e-5], df=off.size)
    assert low < np.sum(np.square(off / (0.25 * 2.0 / np.sqrt(500.0)))) < high
    exact = related_tasks(rows=1, test_rows=1, noise=0.0)
    np.testing.assert_array_equal(exact.targets, exact.sign[:, None] * exact.targets[exact.parent])


def test_parents_and_signs_are_picked_evenly():
    task = related_tasks(n=3003, p=1, rows=1, test_rows=1, seed=4)
    child = task.parent != np.arange(3003)
    picked = [np.sum((task.parent[child] == k) & (task.sign[child] == s)) for k in (0, 1001, 2002) for s in (-1, 1)]
    assert sum(picked) == 3000
    assert stats.chisquare(picked).pvalue > 1e-5  # chi-square over the six vectors, error rate 1e-5


def test_given_parents():
    parents_of = [2, 2, 2, 3, 2, 3]
    task = related_tasks(n=6, rows=1, test_rows=1, parents_of=parents_of, noise=0.01, seed=1)
    np.testing.assert_array_equal(task.parent, parents_of)
    same = np.equal.outer(parents_of, parents_of)
    np.testing.assert_array_equal(np.abs(task.correlation) > 0.9, same)
    np.testing.assert_array_equal(task.sign[[2, 3]], 1.0)


def test_labels_follow_the_logistic_model(paper):
    """In twenty groups of equal size by margin, the number of +1 is a sum of Bernoulli draws of known means.

    Chi-square of the standardised counts, error rate 1e-5 for each of the two parts; the seed is fixed.
    """
    for data in (paper.train, paper.test):
        probability = expit(margins(data, paper.targets))
        groups = np.array_split(np.argsort(probability), 20)
        z = [
            (np.sum(data.y[g] > 0) - probability[g].sum()) / np.sqrt(np.sum(probability[g] * (1.0 - probability[g])))
            for g in groups
        ]
        assert stats.chi2.sf(np.sum(np.square(z)), df=20) > 1e-5
        # The test can tell: with margins a quarter larger it fails.
        other = expit(1.25 * margins(data, paper.targets))
        z = [(np.sum(data.y[g] > 0) - other[g].sum()) / np.sqrt(np.sum(other[g] * (1.0 - other[g]))) for g in groups]
        assert stats.chi2.sf(np.sum(np.square(z)), df=20) < 1e-5


def test_labels_are_informative_but_not_separable(paper):
    # The rate at which the best rule errs is E[expit(-|3 z|)] = 0.164, z normal; of 12 976 rows its sd is 0.0033.
    wrong = np.average(paper.error(paper.targets), weights=paper.test.sizes)
    assert abs(wrong - 0.164) < 5 * 0.0033
    assert abs(np.mean(paper.train.y)) < 0.05
    smallest = int(np.argmin(paper.train.sizes))
    X, y = paper.train.rows_of(smallest)
    # The largest t such that y x.w >= t for some w in the unit cube: more than 0 if and only if w separates.
    least = np.column_stack([-y[:, None] * X, np.ones(len(y))])
    best = optimize.linprog(
        np.eye(101)[100] * -1.0, A_ub=least, b_ub=np.zeros(len(y)), bounds=[(-1, 1)] * 100 + [(0, None)]
    )
    assert best.status == 0
    assert -best.fun < 1e-9


def test_real_labels_are_margins_plus_standard_normal_noise():
    task = related_tasks(n=6, p=20, rows=300, test_rows=500, loss="squared", seed=5)
    for data in (task.train, task.test):
        # Kolmogorov-Smirnov, error rate 1e-5 for each of the two parts
        assert stats.kstest(data.y - margins(data, task.targets), "norm").pvalue > 1e-5
    residuals = task.test.y - margins(task.test, task.targets)
    expected = [np.sqrt(np.mean(residuals[task.test.owner == k] ** 2)) for k in range(6)]
    np.testing.assert_allclose(task.error(task.targets), expected)


def test_error_is_the_share_of_wrong_labels():
    task = related_tasks(n=4, p=3, rows=5, test_rows=40, seed=6)
    theta = np.random.default_rng(0).normal(size=(4, 3))
    for k in range(4):
        X, y = task.test.rows_of(k)
        assert task.error(theta)[k] == pytest.approx(np.mean(np.sign(X @ theta[k]) != y))
    with pytest.raises(ParameterError, match=r"theta has shape \(3,\): expected \(4, 3\), a row per task"):
        task.error(np.ones(3))


@pytest.mark.parametrize("n", [1, 2, 3, 16, 37])
@pytest.mark.parametrize("rows", [1, 2, 3, 10, 811])
def test_sizes_have_the_mean_that_was_asked_for(n, rows):
    task = related_tasks(n=n, p=1, parents=1, rows=rows, test_rows=1)
    assert task.train.n_rows == n * rows
    assert 0.5 * rows <= task.train.sizes.min() <= task.train.sizes.max() <= 1.5 * rows


def test_sizes_as_given():
    task = related_tasks(n=4, p=2, rows=[3, 9, 1, 4], test_rows=np.array([2, 1, 5, 7]))
    np.testing.assert_array_equal(task.train.sizes, [3, 9, 1, 4])
    np.testing.assert_array_equal(task.test.sizes, [2, 1, 5, 7])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"n": 0}, "n = 0: expected an integer >= 1"),
        ({"p": 0}, "p = 0: expected an integer >= 1"),
        ({"rows": 0}, "rows=0 must be a whole number >= 1, or 16 of them"),
        ({"rows": 2.5}, "rows=2.5 must be a whole number"),
        ({"rows": [3, 4]}, r"rows=\[3, 4\] must be a whole number >= 1, or 16 of them"),
        ({"test_rows": [0] * 16}, "test_rows="),
        ({"parents": 0}, "parents=0 must lie between 1 and the number of tasks, 16"),
        ({"parents": 17}, "parents=17 must lie between 1"),
        ({"noise": -0.1}, "noise = -0.1: expected a nonnegative finite number"),
        ({"noise": np.nan}, "noise = nan: expected"),
        ({"scale": 0.0}, "scale = 0.0: expected a positive finite number"),
        ({"loss": "hinge"}, "loss = 'hinge': expected 'logistic' or 'squared'"),
        ({"parents_of": [0, 1]}, r"parents_of=\[0, 1\] must be 16 numbers of tasks"),
        ({"parents_of": [0.0] * 16}, "must be 16 numbers of tasks"),
        ({"parents_of": [16] * 16}, "from 0 to 15"),
        ({"parents_of": [0, 0, 1] + [0] * 13}, r"parents_of\[2\] = 1 is no parent: parents_of\[1\] must be itself"),
    ],
)
def test_refusals(bad, message):
    with pytest.raises(ParameterError, match=message):
        related_tasks(**bad)
