"""Splits deal each row out once, in the proportions that they promise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse, stats

import coterie as ct
from coterie.errors import DataError, ParameterError

ROWS, CLASSES = 600, 5


def arrays(seed=0, rows=ROWS, classes=CLASSES, even=False):
    """Rows that tell who they are, and classes of uneven sizes."""
    rng = np.random.default_rng(seed)
    weights = np.ones(classes) if even else np.arange(1, classes + 1)
    y = np.repeat(np.arange(classes), (rows * weights / weights.sum()).astype(int))
    return np.arange(y.size, dtype=float)[:, None], rng.permutation(y)


SPLITS = {
    "iid": lambda X, y, **how: ct.splits.iid(X, y, 12, **how),
    "agent": lambda X, y, **how: ct.splits.dirichlet(X, y, 12, 0.3, **how),
    "class": lambda X, y, **how: ct.splits.dirichlet(X, y, 12, 0.3, each="class", **how),
    "shards": lambda X, y, **how: ct.splits.pathological(X, y, 12, 2, **how),
    "distinct": lambda X, y, **how: ct.splits.pathological(X, y, 12, 2, distinct=True, **how),
}
by_split = pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)


def table(data, classes=CLASSES):
    """How many rows of each class each agent has."""
    found = np.zeros((data.n, classes), dtype=int)
    np.add.at(found, (data.owner, data.y.astype(int)), 1)
    return found


# -- what all of them promise ---------------------------------------------------------------------------------------


@pytest.mark.every_case
@by_split
@pytest.mark.parametrize("seed", range(5))
def test_each_row_is_dealt_out_once_with_its_label(split, seed):
    X, y = arrays()
    data = split(X, y, seed=seed)
    assert data.members == tuple(range(12))
    np.testing.assert_array_equal(np.sort(data.X[:, 0]), X[:, 0])
    np.testing.assert_array_equal(data.y, y[data.X[:, 0].astype(int)])
    np.testing.assert_array_equal(data.X, X[data.origin])
    assert data.sizes.min() >= 1


@pytest.mark.every_case
@by_split
def test_same_seed_same_rows_whatever_the_types_and_other_seeds_other_rows(split):
    X, y = arrays()
    first = split(X, y, seed=3)
    for other_X, other_y in (
        (X.astype(np.float32), y.astype(np.float32)),
        (sparse.csr_matrix(X), y.astype(np.int8)),
        (X.tolist(), y.tolist()),
        (np.asfortranarray(X), y * 10 - 7),  # other names in the same order
    ):
        np.testing.assert_array_equal(split(other_X, other_y, seed=3).origin, first.origin)
    assert not np.array_equal(split(X, y, seed=4).origin, first.origin)
    from_generator = split(X, y, seed=np.random.default_rng(3))
    np.testing.assert_array_equal(from_generator.origin, first.origin)


@pytest.mark.every_case
@pytest.mark.parametrize("split", [SPLITS[name] for name in SPLITS if name != "iid"], ids=[*SPLITS][1:])
def test_how_many_rows_of_a_class_an_agent_has_does_not_depend_on_the_order_of_rows(split):
    X, y = arrays()
    order = np.random.default_rng(9).permutation(y.size)
    np.testing.assert_array_equal(table(split(X[order], y[order], seed=1)), table(split(X, y, seed=1)))


@pytest.mark.every_case
@by_split
@pytest.mark.parametrize("least", [0, 7, 20])
def test_min_rows(split, least):
    X, y = arrays()
    assert split(X, y, seed=0, min_rows=least).sizes.min() >= least


@pytest.mark.every_case
@by_split
def test_arguments_that_are_wrong(split):
    X, y = arrays()
    for rows, given, message in (
        (600, {"min_rows": 51}, r"600 rows are too few: 12 agents with min_rows=51 need 612; take fewer"),
        (599, {}, "y has 599 labels for 600 rows"),
        (600, {"seed": None}, "seed = None"),
        (600, {"min_rows": -1}, "min_rows = -1"),
    ):
        with pytest.raises((DataError, ParameterError), match=message):
            split(X, y[:rows], **given)


# -- the Dirichlet distribution -------------------------------------------------------------------------------------


def test_proportions_have_the_mean_and_variance_of_the_dirichlet_distribution():
    """Of 10 rows for each of 40 agents out of many, in 50 splits: nothing runs out, so agents are independent.

    A count of class c is beta-binomial: mean m q, variance m q (1 - q) (m + alpha) / (1 + alpha). The z-test of each of
    4 means, and that of variances by the spread of 2,000 squares, are two-sided at 1e-4 / 8: the test fails by chance
    for one seed in 10,000.
    """
    alpha, m, prior = 0.7, 10, np.array([0.1, 0.2, 0.3, 0.4])
    y = np.repeat(np.arange(4), (4000 * prior).astype(int))
    X = np.zeros((4000, 1))
    counts = np.vstack(
        [table(ct.splits.dirichlet(X, y, 40, alpha, seed=seed, sizes=[m] * 40), 4) for seed in range(50)]
    )
    assert (counts.sum(axis=1) == m).all()
    variance = m * prior * (1 - prior) * (m + alpha) / (1 + alpha)
    limit = stats.norm.isf(1e-4 / 8 / 2)
    z = (counts.mean(axis=0) - m * prior) / np.sqrt(variance / len(counts))
    assert abs(z).max() < limit
    squares = (counts - m * prior) ** 2
    z = (squares.mean(axis=0) - variance) / (squares.std(axis=0) / np.sqrt(len(counts)))
    assert abs(z).max() < limit


def test_shares_of_classes_have_the_mean_of_the_dirichlet_distribution():
    """With one class nobody is full before its rows are cut: shares of 5 agents are Dirichlet(alpha, ..., alpha).

    Mean 1/5, variance (1/5)(4/5) / (5 alpha + 1), over 400 seeds; rounding adds at most one row in 5,000. Five z-tests,
    two-sided, at 1e-4 / 5 each.
    """
    alpha, X, y = 0.5, np.zeros((5000, 1)), np.zeros(5000)
    shares = np.array(
        [ct.splits.dirichlet(X, y, 5, alpha, seed=seed, each="class", min_rows=0).sizes / 5000 for seed in range(400)]
    )
    z = (shares.mean(axis=0) - 0.2) / np.sqrt(0.16 / (5 * alpha + 1) / 400)
    assert abs(z).max() < stats.norm.isf(1e-4 / 5 / 2) + 1 / 5000 / np.sqrt(0.16 / 3.5 / 400)
    assert abs(shares.var(axis=0).mean() - 0.16 / 3.5) < 0.01


@pytest.mark.parametrize("each", ["agent", "class"])
def test_a_large_alpha_is_iid(each):
    """Chi-square test of independence between agents and classes, at 1e-4, over draws that cannot run out.

    With each="class" shares are fixed in the limit: counts are even, up to rounding.
    """
    X, y = arrays(rows=3000, even=True)
    found = table(ct.splits.dirichlet(X, y, 10, 1e9, each=each, seed=0))
    if each == "class":
        assert abs(found - 60).max() <= 1
    else:
        assert stats.chi2_contingency(found).pvalue > 1e-4
        assert found.std() > 1.0  # drawn, not dealt in turns


@pytest.mark.parametrize("alpha", [1e-3, 1e-9, 1e-300])
def test_a_small_alpha_is_one_class(alpha):
    X, y = arrays(rows=3000)
    # So few rows that no class runs out: the least common one has 200.
    found = table(ct.splits.dirichlet(X, y, 10, alpha, seed=2, sizes=[15] * 10))
    assert ((found > 0).sum(axis=1) == 1).all()
    # Each class goes to one agent, and most agents have nothing.
    found = table(ct.splits.dirichlet(X, y, 10, alpha, each="class", seed=2, min_rows=0))
    assert ((found > 0).sum(axis=0) == 1).mean() >= 0.8


def test_a_class_that_runs_out_is_replaced_by_what_is_left():
    X, y = arrays(rows=100, even=True)
    # Two agents fill a class: whoever comes too late has its second choice, and all have one class.
    data = ct.splits.dirichlet(X, y, 10, 1e-9, seed=0)
    np.testing.assert_array_equal(np.sort(table(data), axis=1), [[0, 0, 0, 0, 10]] * 10)
    assert table(data).sum(axis=0).tolist() == [20] * 5


def test_no_agent_is_the_last():
    """Everybody has the same chance, also when classes run out: how pure agents are does not depend on their number.

    Two-sided t-test between the first and the second half of the agents over 300 seeds, at 1e-4.
    """
    X, y = arrays(rows=300, even=True)
    largest = np.array([table(ct.splits.dirichlet(X, y, 10, 0.1, seed=seed)).max(axis=1) for seed in range(300)])
    assert largest.mean() > 25  # of 30
    assert stats.ttest_rel(largest[:, :5].mean(axis=1), largest[:, 5:].mean(axis=1)).pvalue > 1e-4


def test_an_agent_with_its_even_part_gets_no_further_class():
    X, y = arrays(even=True)
    for seed in range(20):
        sizes = ct.splits.dirichlet(X, y, 3, 0.01, seed=seed, each="class", min_rows=0).sizes
        assert sizes.max() < 200 + 120  # below its part of 200 before the last class, of 120, which it has got


# -- shards ---------------------------------------------------------------------------------------------------------


@pytest.mark.every_case
@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize(("agents", "classes"), [(12, 1), (12, 2), (7, 3), (40, 2), (5, 5), (3, 4)])
def test_nobody_has_more_classes_than_shards(agents, classes, distinct):
    X, y = arrays()
    for seed in range(5):
        found = table(ct.splits.pathological(X, y, agents, classes, seed=seed, distinct=distinct))
        kinds = (found > 0).sum(axis=1)
        assert kinds.max() <= classes
        assert not distinct or (kinds == classes).all()
        assert (found.sum(axis=0) > 0).all()


def test_shards_of_even_classes_are_even():
    X, y = arrays(even=True)
    assert ct.splits.pathological(X, y, 30, 2, seed=0).sizes.tolist() == [20] * 30


def test_shards_are_cut_by_the_weights_of_those_who_get_them():
    X, y = arrays(even=True)
    weights = np.where(np.arange(20) < 10, 1.0, 3.0)
    data = ct.splits.pathological(X, y, 20, 1, seed=0, sizes=weights)
    owner_class = table(data).argmax(axis=1)
    for k in range(CLASSES):
        held = weights[owner_class == k]
        assert abs(data.sizes[owner_class == k] - 120 * held / held.sum()).max() < 1


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda X, y: ct.splits.pathological(X, y, 2, 2), "2 agents with classes=2 hold 4 shards, and y has 5 classes"),
        (lambda X, y: ct.splits.pathological(X, y, 4, 6, distinct=True), "classes=6: y has only 5 classes"),
        (
            lambda X, y: ct.splits.pathological(X, y, 100, 7),
            "600 rows of 5 classes cannot be cut into 700 shards; take",
        ),
        (lambda X, y: ct.splits.pathological(X, y, 100, 5, distinct=True), "into 500 shards of different classes"),
        (lambda X, y: ct.splits.pathological(X, y, 6, min_rows=90), r"agent \d is left with \d+ rows, and min_rows=90"),
        (
            lambda X, y: ct.splits.dirichlet(X[:60], y[:60], 20, 0.01, each="class", min_rows=3),
            r'1000 draws left some agent with fewer than min_rows=3 rows .* each="agent"',
        ),
        (lambda X, y: ct.splits.dirichlet(X, y, 5, 0), "alpha = 0"),
        (lambda X, y: ct.splits.dirichlet(X, y, 5, 1.0, each="row"), "each = 'row': expected 'agent' or 'class'"),
        (lambda X, y: ct.splits.dirichlet(X, y, 5, 1.0, each="class", sizes=[1] * 5), 'sizes is for each="agent"'),
        (lambda X, y: ct.splits.dirichlet(X, None, 5, 1.0), r"y is None: .* ct\.splits\.iid"),
        (
            lambda X, y: ct.splits.dirichlet(X[:2], ["cat", "dog"], 2, 1.0),
            r"y holds text.*np\.unique\(y, return_inverse=True\)\[1\]",
        ),
        (lambda X, y: ct.splits.iid(X, y, 2, sizes=[1, 600]), "sizes add up to 601 rows, and there are only 600"),
        (lambda X, y: ct.splits.iid(X, y, 2, sizes=[1, 0]), r"sizes\[1\] = 0: expected at least min_rows = 1"),
        (
            lambda X, y: ct.splits.iid(X, y, 2, sizes=[0.5, 0.5]),
            r"expected a whole number of rows for each of 2 agents",
        ),
        (lambda X, y: ct.splits.LogNormalSizes(-1), "sigma = -1"),
        (lambda X, y: ct.splits.train_test(uneven(), 1.0), r"test = 1\.0: expected a number strictly between 0 and 1"),
    ],
)
def test_splits_that_cannot_be(call, message):
    with pytest.raises((DataError, ParameterError), match=message):
        call(*arrays())


# -- how many rows ----------------------------------------------------------------------------------------------------


RULES = [ct.splits.LogNormalSizes(1.0), ct.splits.PowerLawSizes(1.5), ct.splits.DirichletSizes(0.5)]


@pytest.mark.every_case
@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("split", [SPLITS[name] for name in ("iid", "agent")], ids=["iid", "agent"])
def test_uneven_sizes_add_up(rule, split):
    X, y = arrays()
    data = split(X, y, sizes=rule, min_rows=5, seed=0)
    assert data.n_rows == 600
    assert data.sizes.min() >= 5
    assert data.sizes.max() > 100 > 50 > data.sizes.min()


def test_sizes_follow_their_law():
    X = np.zeros((100_000, 1))
    sizes = ct.splits.iid(X, None, 50, sizes=ct.splits.PowerLawSizes(1.0), min_rows=0).sizes
    expected = 1 / np.arange(1, 51)
    assert abs(np.sort(sizes)[::-1] - 100_000 * expected / expected.sum()).max() < 1
    # Kolmogorov-Smirnov at 1e-4, of the standardised logarithms of 2,000 sizes.
    shares = ct.splits.LogNormalSizes(2.0).shares(2000, np.random.default_rng(0))
    assert stats.kstest(stats.zscore(np.log(shares)), "norm").pvalue > 1e-4
    assert abs(np.log(shares).std() - 2.0) < 0.15
    # A share of a symmetric Dirichlet distribution over 3 is Beta(alpha, 2 alpha).
    drawn = [ct.splits.DirichletSizes(0.3).shares(3, np.random.default_rng(seed))[0] for seed in range(1000)]
    assert stats.kstest(drawn, stats.beta(0.3, 0.6).cdf).pvalue > 1e-4


def test_given_sizes_are_kept_and_other_rows_left_out():
    X, y = arrays()
    given = [3, 0, 40]
    data = ct.splits.iid(X, y, 3, sizes=given, min_rows=0, seed=0)
    assert data.sizes.tolist() == given
    assert np.unique(data.X).size == 43
    np.testing.assert_array_equal(data.y, y[data.X[:, 0].astype(int)])
    assert sorted(data.origin) == list(range(43))


# -- rows for testing -------------------------------------------------------------------------------------------------


def uneven():
    X, y = arrays()
    return ct.splits.dirichlet(X, y, 12, 0.5, seed=0, sizes=ct.splits.LogNormalSizes(1.0))


def test_train_and_test_rows_are_all_rows_of_the_same_agents():
    data = uneven()
    train, test = ct.splits.train_test(data, 0.25, seed=1)
    assert train.members == test.members == data.members
    for k in range(data.n):
        both = np.concatenate([train.rows_of(k)[0], test.rows_of(k)[0]])[:, 0]
        np.testing.assert_array_equal(np.sort(both), np.sort(data.rows_of(k)[0][:, 0]))
    X, y = arrays()
    for part in (train, test):
        np.testing.assert_array_equal(part.X, X[part.origin])
        np.testing.assert_array_equal(part.y, y[part.origin])


@pytest.mark.parametrize("part", [0.1, 0.25, 0.5])
def test_every_label_has_its_share_of_test_rows(part):
    data = uneven()
    for seed in range(10):
        _, test = ct.splits.train_test(data, part, seed=seed)
        expected = np.clip(np.rint(part * data.sizes), 1, data.sizes - 1)
        np.testing.assert_array_equal(test.sizes, expected)
        assert abs(table(test) - table(data) * (expected / data.sizes)[:, None]).max() < 1


def test_every_row_is_tested_as_often():
    """A regression, where each label occurs once: 2 rows of 8 over 2,000 seeds; chi-square at 1e-4."""
    data = ct.AgentData(np.arange(8.0)[:, None], y=np.arange(8) / 3)
    often = np.zeros(8)
    for seed in range(2000):
        often[ct.splits.train_test(data, 0.25, seed=seed)[1].origin] += 1
    # Exactly 2 of 8 each time: counts have variance 2000 / 4 * 3 / 4 and covariances -1/7 of it.
    assert stats.chi2.sf(((often - 500) ** 2).sum() / (375 * 8 / 7), 7) > 1e-4


def test_agents_with_few_rows_train():
    data = ct.AgentData(np.ones((3, 1)), agents=["one", "two", "two"], members=["none", "one", "two"])
    for part in (0.01, 0.99):
        train, test = ct.splits.train_test(data, part)
        assert train.sizes.tolist() == [0, 1, 1]
        assert test.sizes.tolist() == [0, 0, 1]


def test_train_test_of_some_agents_of_sparse_rows():
    data = ct.AgentData(sparse.eye_array(10), y=np.arange(10), agents=np.arange(10) // 5).only([1])
    train, test = ct.splits.train_test(data, 0.4)
    assert test.is_sparse
    assert sorted([*train.origin, *test.origin]) == [5, 6, 7, 8, 9]
    np.testing.assert_array_equal(test.X.toarray().argmax(axis=1), test.y)
