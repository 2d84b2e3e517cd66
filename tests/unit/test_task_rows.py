"""Rows of tasks in parts: what is asked of each part and put together is what all rows in one place say."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
from scipy import sparse

import coterie as ct
from coterie.data.sources.survey import survey
from coterie.estimators import task_changes
from coterie.estimators.canonical import by_content
from coterie.estimators.intercepts import FOLDS, fold_numbers
from coterie.estimators.task_changes import TrainingTasks, centers, encoded, held_out_margins, in_units, margins
from coterie.estimators.task_rows import TaskRows, spread
from coterie.multitask.sources import ChangedTasks, Tasks, TasksElsewhere
from references import dense

SIZES = np.array([7, 1, 12, 2, 9, 30])
STORAGE = {"dense": np.asarray, "sparse": sparse.csr_array}


def shipped(function, items):
    """A map as a cluster's: function and items are sent."""
    return (pickle.loads(pickle.dumps(function))(pickle.loads(pickle.dumps(item))) for item in items)


@pytest.fixture(params=STORAGE)
def both(request):
    """The same rows in one part, in this process; and in three parts, to be loaded from a survey."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(SIZES.sum(), 4)) * [1.0, 50.0, 0.1, 1.0] + [0.0, 900.0, 3.0, 0.0]
    X[:, 3] = 7.0
    y = X[:, 0] + rng.normal(size=len(X))
    if request.param == "sparse":
        X[np.abs(X) < 1.0] = 0.0
    owner = np.repeat(np.arange(6), SIZES)
    store = STORAGE[request.param]
    found = survey({k: (store(X[owner == k]), y[owner == k]) for k in range(6)}, target=None, drop=False)
    parts = [np.array([0, 3]), np.array([5]), np.array([1, 2, 4])]
    here = TaskRows.here(ct.AgentData(store(X), y, agents=owner))
    return here, TaskRows(ChangedTasks(TasksElsewhere(found), partial(encoded, 0.0, 1.0)), parts, shipped)


def same(one, other, **near):
    """Two AgentData of the same rows."""
    assert one.members == other.members
    assert one.sizes.tolist() == other.sizes.tolist()
    np.testing.assert_allclose(dense(one), dense(other), **near)
    np.testing.assert_allclose(one.y, other.y, **near)


def test_means_and_deviations(both):
    here, apart = both
    X = dense(here.data)
    for rows in both:
        found, deviation = spread(rows)
        assert found.labels.tolist() == here.data.y.tolist()
        assert (found.square is None) == (not here.data.is_sparse)
        np.testing.assert_allclose(found.mean, X.mean(axis=0), rtol=1e-14)
        np.testing.assert_allclose(deviation, [*X[:, :3].std(axis=0), 1.0], rtol=1e-9)
    assert apart.n_rows == here.n_rows
    assert not apart.are_here


def test_one_order(both):
    (here, order), (apart, elsewhere) = map(by_content, both)
    assert order.tolist() == elsewhere.tolist() != list(range(6))
    assert isinstance(apart.tasks, Tasks)
    same(apart.data, here.data, rtol=0.0)
    assert apart.sizes.tolist() == here.sizes.tolist() == apart.data.sizes.tolist()
    some = np.array([4, 1, 2])  # in whichever order they are asked for
    same(apart.tasks.load(some), here.data.only(some), rtol=0.0)


def test_training_rows_are_all_but_a_fold(both):
    folds = fold_numbers(SIZES, np.arange(6))
    for k in range(FOLDS):
        here, apart = (rows.become(TrainingTasks.of(rows, folds, k)) for rows in both)
        same(apart.data, here.data, rtol=0.0)
        assert here.data.y.tolist() == both[0].data.y[folds != k].tolist()
        assert here.n == 6 - (folds[7] == k)  # the task of one row
        assert apart.tasks.members == here.data.members
        numbers = apart.parts[0]
        same(apart.tasks.load(numbers), here.data.only(numbers), rtol=0.0)


def test_centers_and_margins(both):
    here = both[0]
    rng = np.random.default_rng(1)
    if not here.data.is_sparse:
        folds = fold_numbers(SIZES, np.arange(6))
        wanted = [here.data.X.mean(axis=0), *(here.data.X[folds != k].mean(axis=0) for k in range(FOLDS))]
        for rows in both:
            np.testing.assert_allclose(centers(rows, FOLDS), wanted, rtol=1e-13)
            np.testing.assert_allclose(centers(rows, 0), wanted[:1], rtol=1e-13)
    models, one = rng.normal(size=(6, FOLDS, 4)), rng.normal(size=(6, 4))
    X = dense(here.data)
    own = models[here.owner, fold_numbers(SIZES, np.arange(6))]
    for rows in both:
        np.testing.assert_allclose(held_out_margins(rows, models), (X * own).sum(axis=1), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(margins(rows, one), (X * one[here.owner]).sum(axis=1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("numbers", [None, (0.3, 2.0)], ids=["classes", "numbers"])
def test_changes_are_those_of_whoever_has_all_rows(both, numbers):
    here = both[0]
    rng = np.random.default_rng(1)
    center = None if here.data.is_sparse else here.data.X.mean(axis=0)
    levels = task_changes.Levels(None, center, rng.uniform(size=6), rng.normal(size=6), numbers)
    change = partial(task_changes.without_task_levels, levels)
    scale = partial(in_units, np.zeros(4), np.array([1.0, 50.0, 0.1, 7.0]))
    one, other = (rows.become(ChangedTasks(ChangedTasks(rows.tasks, change), scale)) for rows in both)
    same(other.data, one.data, rtol=1e-9, atol=1e-9)
    part = np.array([1, 4])
    same(other.tasks.load(part), one.data.only(part), rtol=1e-9, atol=1e-9)


def test_a_sample_is_spread_over_all_rows(both):
    here = both[0]
    X = dense(here.data)
    for rows in both:
        some, everything = (rows.sample(count) for count in (20, 1000))
        some, everything = (each.toarray() if here.data.is_sparse else each for each in (some, everything))
        assert everything.tolist() == X.tolist()
        assert len(some) == 20
        places = [X.tolist().index(row) for row in some.tolist()]
        assert places == sorted(places)
        assert places[0] == 0
        assert places[-1] == 60
        assert np.diff(places).max() <= 4
