"""Shifts change what they say and nothing else, can be undone, and come step by step."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse, stats
from sklearn.datasets import load_digits

import coterie as ct
from coterie.datasets.splits import clusters, concept_shift, drift, feature_shift
from coterie.errors import DataError, ParameterError

N, P = 6, 4


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, P))
    return ct.AgentData(X, rng.integers(0, 3, 60), agents=rng.integers(0, N, 60), members=range(N))


def apart(a, b):
    return float(abs(a.X - b.X).max())


# -- features -------------------------------------------------------------------------------------------------------


GIVEN = np.random.default_rng(1)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("there", "back"),
    [
        ({"turn": (angles := GIVEN.uniform(-180, 180, N))}, {"turn": -angles}),
        ({"turn": angles, "columns": [(3, 1), (0, 2)]}, {"turn": -angles, "columns": [(3, 1), (0, 2)]}),
        ({"scale": (factors := GIVEN.uniform(0.5, 2, (N, P)))}, {"scale": 1 / factors}),
        ({"offset": (offsets := GIVEN.normal(size=(N, P)))}, {"offset": -offsets}),
        ({"scale": factors, "offset": offsets}, {"scale": 1 / factors, "offset": -offsets / factors}),
        ({"rotate": (quarters := GIVEN.integers(0, 4, N))}, {"rotate": -quarters}),
        ({"rotate": quarters, "channels": 4}, {"rotate": -quarters, "channels": 4}),
    ],
)
def test_feature_shifts_can_be_undone_and_leave_labels_alone(data, there, back):
    found = feature_shift(data, **there)
    assert "channels" in there or apart(found.data, data) > 0.1
    assert apart(feature_shift(found.data, **back).data, data) < 1e-12
    np.testing.assert_array_equal(found.data.y, data.y)
    np.testing.assert_array_equal(found.data.origin, data.origin)
    assert found.data.members == data.members


def test_a_turn_keeps_lengths_and_other_columns(data):
    found = feature_shift(data, turn=90.0, columns=[(1, 3)], seed=0).data
    np.testing.assert_array_equal(found.X[:, [0, 2]], data.X[:, [0, 2]])
    np.testing.assert_allclose(np.hypot(*found.X[:, [1, 3]].T), np.hypot(*data.X[:, [1, 3]].T))


def test_an_image_is_rotated_as_numpy_rotates_it():
    X = np.arange(2 * 3 * 16, dtype=float).reshape(2, 48)
    data = ct.AgentData(X, agents=[0, 1])
    found = feature_shift(data, rotate=True, channels=3).data.X
    np.testing.assert_array_equal(found[0], X[0])
    expected = [np.rot90(channel) for channel in X[1].reshape(3, 4, 4)]
    np.testing.assert_array_equal(found[1], np.ravel(expected))


def test_four_quarter_turns_are_none():
    X, y = load_digits(return_X_y=True)
    data = ct.AgentData(X[:40], y[:40], agents=np.arange(40) % 8)
    found = feature_shift(data, rotate=True)
    assert found.parameters["rotate"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    for k in range(8):
        assert np.array_equal(found.data.rows_of(k)[0], data.rows_of(k)[0]) == (k % 4 == 0)


def test_draws_spread_as_they_say():
    """Kolmogorov-Smirnov tests at 1e-4 of 500 agents' factors, offsets and angles."""
    data = ct.AgentData(np.ones((500, 2)), agents=np.arange(500))
    found = feature_shift(data, scale=0.5, offset=2.0, turn=30.0, noise=0.0, seed=0).parameters
    assert stats.kstest(np.log(found["scale"]).ravel() / 0.5, "norm").pvalue > 1e-4
    assert stats.kstest(found["offset"].ravel() / 2.0, "norm").pvalue > 1e-4
    assert stats.kstest(found["turn"], stats.uniform(-30, 60).cdf).pvalue > 1e-4


def test_noise_has_the_level_of_each_agent():
    """The sample variance of 3,000 numbers of each agent: chi-square, two-sided, at 1e-4 / 3 each."""
    data = ct.AgentData(np.zeros((3000, 3)), agents=np.arange(3000) // 1000)
    found = feature_shift(data, noise=[0.0, 0.5, 2.0], seed=0).data
    assert (found.rows_of(0)[0] == 0).all()
    for k, level in ((1, 0.5), (2, 2.0)):
        tail = stats.chi2.cdf((found.rows_of(k)[0] ** 2).sum() / level**2, 3000)
        assert 1e-4 / 6 < tail < 1 - 1e-4 / 6


def test_groups_share_a_shift(data):
    group = [0, 1, 0, 1, 0, 1]
    added = feature_shift(data, offset=1.0, group=group, seed=5).data.X - data.X
    for k in range(N):
        own = added[data.owner == k]
        assert (abs(own - own[0]) < 1e-12).all()
        assert np.allclose(own[0], added[data.owner == k % 2][0])
    assert not np.allclose(added[data.owner == 0][0], added[data.owner == 1][0])


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("shift", "how"),
    [
        (feature_shift, {"offset": 1.0, "turn": 180.0, "scale": 0.3, "columns": [(1, 2)]}),
        (feature_shift, {"rotate": True, "channels": 1}),
        (concept_shift, {"permute": True}),
        (concept_shift, {"flip": 0.5}),
        (concept_shift, {"turn": 90.0, "columns": [(0, 3)]}),
    ],
)
def test_the_same_shift_of_other_rows(data, shift, how):
    """A part of the rows is shifted as it is among all rows; of classes, also where some are missing."""
    found = shift(data, group=[0, 1, 0, 1, 0, 1], seed=5, **how)
    y = np.empty(60)
    y[data.origin] = data.y
    mask = (np.arange(60) < 30) & (y != 1.0)
    part, expected = data.restrict(mask), found.data.restrict(mask)
    other = found.on(part)
    np.testing.assert_array_equal(other.data.X, expected.X)
    np.testing.assert_allclose(other.data.y, expected.y, atol=1e-12)
    assert other.group is found.group


def test_noise_of_other_rows_is_new_and_always_the_same(data):
    found = feature_shift(data, noise=1.0, seed=0)
    again, more = found.on(data), found.on(data)
    np.testing.assert_array_equal(again.data.X, more.data.X)
    # Independent: correlation of 240 pairs of normal numbers, two-sided at 1e-4.
    first, second = ((each.data.X - data.X).ravel() for each in (found, again))
    assert stats.pearsonr(first, second).pvalue > 1e-4


def test_other_rows_must_be_of_the_same_agents_and_classes(data):
    with pytest.raises(DataError, match="the shift is of 6 agents and the other rows are of 2"):
        feature_shift(data, offset=1.0).on(data.only([0, 1]))
    with pytest.raises(DataError, match="no class 7 among those that were permuted"):
        concept_shift(data, permute=True).on(data.with_labels(np.full(60, 7)))


def test_same_seed_same_bits(data):
    first, again, other = (feature_shift(data, scale=0.1, noise=0.1, seed=seed).data.X for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_single_precision_and_names_stay():
    import pandas as pd

    data = ct.AgentData(pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}), agents=[0, 1], dtype="float32")
    found = feature_shift(data, offset=[1, 2]).data
    assert found.X.dtype == np.float32
    assert found.feature_names == ("a", "b")
    assert found.X.tolist() == [[2, 4], [4, 6]]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("shift", "how", "message"),
    [
        (feature_shift, {"turn": 10, "columns": [(0, 4)]}, "expected different columns, from 0 to 3"),
        (feature_shift, {"turn": 10, "columns": [(0, 1), (1, 2)]}, "expected different columns"),
        (feature_shift, {"turn": 10, "columns": (0, 1)}, "expected pairs of columns"),
        (feature_shift, {"turn": [1.0, 2.0]}, r"turn: found float64 of shape \(2,\), expected numbers of shape \(6,\)"),
        (feature_shift, {"scale": -1.0}, r"scale = -1\.0: expected a nonnegative"),
        (feature_shift, {"offset": [np.nan] * N}, "offset: expected finite numbers, found nan"),
        (feature_shift, {"rotate": [0.5] * N}, "rotate: found float64 .* expected whole numbers"),
        (feature_shift, {"rotate": True, "channels": 3}, "4 features are not a square image with 3 channels"),
        (
            feature_shift,
            {"offset": 1.0, "group": [0, 1]},
            "group = .* expected a number from 0 on for each of 6 agents",
        ),
        (concept_shift, {"turn": 1.0, "permute": True}, "turn is for regressions, and permute for classes"),
        (concept_shift, {"target": lambda X: X[:, 0]}, "target needs turn"),
        (concept_shift, {"turn": 1.0, "target": lambda X: X}, r"target gave shape \(60, 4\) for 60 rows"),
        (concept_shift, {"permute": np.zeros((6, 2), int)}, r"found .* \(6, 2\), expected numbers of shape \(6, 3\)"),
        (concept_shift, {"flip": [0] * N}, "expected -1 for groups whose labels change sign"),
        (concept_shift, {"flip": 2}, "flip = 2"),
        (clusters, {"groups": [100, 1], "shift": concept_shift, "flip": 1.0}, "group 1 of 6 agents would have none"),
        (drift, {"steps": 3, "rotate": True}, "rotate cannot be gradual: expected some of turn, offset, noise, scale"),
        (drift, {"steps": 3}, "no parameter drifts"),
        (drift, {"steps": 3, "scale": -np.ones(N)}, r"scale = -1\.0: a drift needs positive factors"),
        (drift, {"steps": 3, "turn": 1.0, "seed": None}, "seed = None"),
        (clusters, {"groups": 7, "shift": concept_shift, "flip": 1.0}, "expected from 1 to 6 groups"),
    ],
)
def test_shifts_that_cannot_be(data, shift, how, message):
    with pytest.raises(ParameterError, match=message):
        shift(data, **how)


def test_data_that_cannot_be_shifted():
    with pytest.raises(DataError, match=r"a sparse matrix does not store: make it dense first"):
        feature_shift(ct.AgentData(sparse.eye_array(3)), offset=1.0)
    with pytest.raises(DataError, match="this data has no labels"):
        concept_shift(ct.AgentData([[1.0]]), flip=1.0)


# -- labels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"permute": True}, {"flip": 0.5}, {"turn": 90.0}])
def test_concept_shifts_change_labels_only(data, how):
    found = concept_shift(data, **how, seed=0).data
    assert found.X is data.X or np.array_equal(found.X, data.X)
    assert not np.array_equal(found.y, data.y)
    np.testing.assert_array_equal(found.origin, data.origin)


def test_permutations_differ_by_group_and_can_be_undone(data):
    found = concept_shift(data, permute=True, seed=0)
    names = found.parameters["permute"]
    assert names[0].tolist() == [0, 1, 2]
    assert len({tuple(row) for row in names}) == 6  # all permutations of three
    for k in range(N):
        np.testing.assert_array_equal(found.data.rows_of(k)[1], names[k][data.rows_of(k)[1].astype(int)])
    back = concept_shift(found.data, permute=np.argsort(names, axis=1))
    np.testing.assert_array_equal(back.data.y, data.y)


def test_more_groups_than_permutations():
    data = ct.AgentData(np.ones((10, 1)), y=[0, 1] * 5, agents=np.arange(10) // 2)
    assert concept_shift(data, permute=True, seed=0).parameters["permute"].shape == (5, 2)


def test_half_of_the_groups_change_sign():
    data = ct.AgentData(np.ones((10, 1)), y=np.arange(1.0, 11), agents=np.arange(10))
    found = concept_shift(data, flip=0.3, seed=0)
    assert (found.data.y < 0).sum() == 3
    np.testing.assert_array_equal(abs(found.data.y), data.y)
    np.testing.assert_array_equal(concept_shift(found.data, flip=found.parameters["flip"]).data.y, data.y)


def test_a_turned_linear_concept_has_turned_coefficients():
    """y = X w exactly: labels of a turned concept are those of w turned back, whatever the target is said to be."""
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(80, 3)), np.array([1.0, -2.0, 0.5])
    data = ct.AgentData(X, X @ w + 3.0, agents=np.arange(80) // 20)
    angles = np.array([0.0, 30.0, 90.0, 180.0])
    for target in (None, lambda X: X @ w):
        found = concept_shift(data, turn=angles, columns=[(0, 2)], target=target).data
        for k, angle in enumerate(np.deg2rad(angles)):
            turn = np.eye(3)
            turn[np.ix_([0, 2], [0, 2])] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
            rows, labels = found.rows_of(k)
            np.testing.assert_allclose(labels, rows @ (turn.T @ w) + 3.0, atol=1e-9)


# -- clusters -------------------------------------------------------------------------------------------------------


def test_agents_of_a_cluster_are_drawn_and_alike(data):
    found = clusters(data, 3, feature_shift, offset=1.0, seed=0)
    assert np.bincount(found.group).tolist() == [2, 2, 2]
    assert found.n_groups == 3
    offsets = (found.data.X - data.X)[data.start[:-1]]
    for k in range(N):
        np.testing.assert_allclose(offsets[k], found.parameters["offset"][found.group[k]])
    groups = {tuple(clusters(data, 3, feature_shift, offset=1.0, seed=seed).group) for seed in range(20)}
    assert len(groups) > 10


def test_edges_are_those_of_the_groups(data):
    found = clusters(data, 3, feature_shift, offset=1.0, seed=4)
    alike = found.group[:, None] == found.group
    np.testing.assert_array_equal(found.graph().W.toarray(), alike & ~np.eye(N, dtype=bool))


def test_clusters_by_share(data):
    assert np.bincount(clusters(data, [3, 2, 1], concept_shift, flip=1.0).group).tolist() == [3, 2, 1]


# -- drift ----------------------------------------------------------------------------------------------------------


def test_a_drift_is_even_and_ends_where_it_says(data):
    how = {"turn": 120.0, "offset": 1.0, "scale": 0.2, "noise": 0.1}
    steps = 50
    turning = drift(data, steps, **how, seed=3)
    assert len(turning) == steps + 1
    assert turning[0] is data
    assert apart(turning[-1], turning.end.data) < 1e-12
    whole = apart(turning[0], turning[-1])
    longest = max(apart(turning[k], turning[k + 1]) for k in range(steps))
    assert 0 < longest < 4 * np.pi / 3 * abs(data.X).max() * 3 / steps < whole
    # Twice as many steps, half as long: continuous.
    finer = drift(data, 2 * steps, **how, seed=3)
    assert max(apart(finer[k], finer[k + 1]) for k in range(2 * steps)) < 0.6 * longest
    assert apart(finer[10], turning[5]) < 1e-12
    for each in turning:
        np.testing.assert_array_equal(each.y, data.y)
    with pytest.raises(IndexError):
        _ = turning[steps + 1]


def test_a_concept_drifts_in_its_labels():
    X = np.random.default_rng(0).normal(size=(20, 2))
    data = ct.AgentData(X, X[:, 0])
    turning = drift(data, 3, concept_shift, turn=[90.0])
    for k, each in enumerate(turning):
        angle = np.deg2rad(30.0 * k)
        np.testing.assert_allclose(each.y, np.cos(angle) * X[:, 0] - np.sin(angle) * X[:, 1], atol=1e-12)


def test_the_same_drift_of_other_rows(data):
    X = np.random.default_rng(0).normal(size=(30, 2))
    regression = ct.AgentData(X, X[:, 0] + 0.1 * X[:, 1] ** 2, agents=np.arange(30) % 3)
    mask = np.arange(30) < 12
    for shift in (feature_shift, concept_shift):
        turning = drift(regression, 4, shift, turn=60.0, seed=1)
        for whole, part in zip(turning, turning.on(regression.restrict(mask)), strict=True):
            np.testing.assert_allclose(part.X, whole.restrict(mask).X)
            np.testing.assert_allclose(part.y, whole.restrict(mask).y)


@pytest.mark.plain
def test_agents_follow_a_drift():
    """The run goes on with each step, and ends near the optimum of the last one, not of the first one."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    data = ct.AgentData(X, X[:, 0], agents=np.arange(40) // 10)
    problem = ct.Problem.personalized(data, ct.graphs.complete(4), loss="squared", mu=0.1, ridge=0.01)
    turning = drift(data, 3, turn=[90.0] * 4)
    run = ct.simulate(problem, "cd", wakes=1000, changes=turning.changes(problem, every=50), seed=0)
    last = problem.on(data=turning[-1]).solve()
    assert abs(run.theta - last).max() < 1e-3 < abs(problem.solve() - last).max()
