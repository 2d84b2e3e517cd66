"""Relationship estimators on a Ray cluster, with rows that only workers load: the models of one process.

References: the same fit without an engine, to 1e-10.
"""

from __future__ import annotations

import functools
import os

import numpy as np
import pandas as pd
import pytest
from sklearn.kernel_approximation import RBFSampler

import coterie as ct
from coterie.errors import DataError, ParameterError

TASKS, SIZES = np.array(["g", "f", "e", "d", "c", "b", "a"]), [20, 25, 1, 18, 30, 2, 15]
#: Rough optima do: the rounds on the way are the same ones.
ROUGH = {"lam": 0.03, "tol": 0.05}
FEATURES = ["dose", "age", "unit", "city"]


def visits():
    """Seven tasks, with text, gaps and a column that is constant; one task of one row, and one of one class."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(7), SIZES)
    X = rng.normal(size=(len(owner), 2)) * [1.0, 20.0] + [0.0, 45.0]
    frame = pd.DataFrame(X, columns=["dose", "age"]).assign(unit=3.0)
    frame["city"] = rng.choice(["rome", "oslo", "bonn"], len(owner))
    level = X[:, 0] * rng.normal(size=7)[owner] + (X[:, 1] - 45.0) / 20.0 + rng.normal(size=7)[owner]
    level += 0.5 * (frame["city"] == "oslo")
    frame.loc[rng.random(len(owner)) < 0.1, "age"] = np.nan
    frame.loc[rng.random(len(owner)) < 0.1, "city"] = None
    frame["clinic"], frame["cost"] = TASKS[owner], 100.0 + 5.0 * level
    frame["ill"] = np.where((level > 0) | (owner == 5), "yes", "no")
    frame["state"] = np.array(["bad", "fair", "good"])[np.digitize(level, [-1.0, 1.0])]
    return frame.sample(frac=1.0, random_state=0).reset_index(drop=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Rows of a task are in several files."""
    folder, frame = tmp_path_factory.mktemp("visits"), visits()
    for k in range(4):
        frame.iloc[k::4].to_parquet(folder / f"{k}.parquet")
    return folder


@pytest.fixture(scope="module")
def cluster(ray):
    return functools.partial(ct.Cluster, shards=2, cpus=0.5)


def agree(one, other, frame):
    """Two models are the same, and say the same of rows."""
    assert one.agents_ == other.agents_
    assert one.n_iter_ == other.n_iter_
    for name in ("coef_", "intercept_", "covariance_"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-10, atol=1e-10, err_msg=name)
    runs = zip(*(model.run_ if isinstance(model.run_, list) else [model.run_] for model in (one, other)), strict=True)
    for mine, theirs in runs:
        assert mine.members == theirs.members
        for a, b in zip(mine.factors, theirs.factors, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    assert one.n_features_in_ == other.n_features_in_
    assert (
        getattr(one, "feature_names_in_", np.zeros(0)).tolist()
        == getattr(other, "feature_names_in_", np.zeros(0)).tolist()
    )
    asked = [getattr(model, "decision_function", model.predict)(frame) for model in (one, other)]
    np.testing.assert_allclose(*asked, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cost", "ill", "state"])
def test_tasks_of_files(cluster, files, target, tmp_path):
    source = ct.data.Source(files, columns=FEATURES)
    kind = ct.RelationshipRegressor if target == "cost" else ct.RelationshipClassifier
    one, two = (kind(**ROUGH, engine=engine).fit(source, target, agents="clinic") for engine in (None, cluster()))
    frame = visits()[[*FEATURES, "clinic"]]
    agree(two, one, frame)
    assert one.feature_names_in_.tolist() == FEATURES
    if target == "cost":
        assert one.coef_.shape == (7, 7)  # gaps of two columns, and two cities more than the most frequent one
        agree(one, kind(**ROUGH).fit(frame, visits()["cost"], agents="clinic"), frame)
        return
    assert two.classes_.tolist() == one.classes_.tolist() == sorted(set(visits()[target]))
    np.testing.assert_allclose(two.predict_proba(frame), one.predict_proba(frame), rtol=0, atol=1e-10)
    again = ct.load(ct.save(two, tmp_path))
    assert np.array_equal(again.predict_proba(frame), two.predict_proba(frame))


@pytest.mark.slow
def test_rows_that_are_here(cluster):
    """They are sent to the workers, and every bit is the same."""
    frame = visits()
    for estimator, target in ((ct.RelationshipRegressor, "cost"), (ct.RelationshipClassifier, "ill")):
        one, two = (
            estimator(**ROUGH, engine=engine).fit(frame[[*FEATURES, "clinic"]], frame[target], agents="clinic")
            for engine in (None, cluster())
        )
        assert np.array_equal(one.coef_, two.coef_)
        assert np.array_equal(one.intercept_, two.intercept_)
        assert np.array_equal(one.covariance_, two.covariance_)


@pytest.mark.slow
def test_rows_are_loaded_by_workers_only(cluster, tmp_path):
    """Arrays that functions return, float32, with a feature map and a covariance that are given."""
    frame = visits()

    def function(task):
        rows = frame[frame["clinic"] == task]
        X, y = rows[["dose", "unit"]].to_numpy(np.float32), rows["ill"].to_numpy(str)
        note = tmp_path / "pids"

        def load():
            with note.open("a") as file:
                file.write(f"{os.getpid()}\n")
            return X, y

        return load

    source = {task: function(task) for task in TASKS.tolist()}
    given = {
        "features": RBFSampler(n_components=8, random_state=0),
        "covariance": np.eye(7) / 14 + np.ones((7, 7)) / 14,
    }
    two = ct.RelationshipClassifier(**ROUGH, **given, engine=cluster()).fit(source, None)
    assert str(os.getpid()) not in (tmp_path / "pids").read_text().split()
    one = ct.RelationshipClassifier(**ROUGH, **given).fit(source, None)
    assert one.agents_ == two.agents_ == tuple(TASKS)  # the order of the mapping
    for name in ("coef_", "intercept_", "covariance_"):
        np.testing.assert_allclose(getattr(two, name), getattr(one, name), rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.slow
def test_what_cannot_be_fitted(cluster, files):
    """Errors are those of one process, before anything is learned."""
    engine, regressor, classifier = cluster(), ct.RelationshipRegressor, ct.RelationshipClassifier
    with pytest.raises(DataError, match="y must be the name of a column"):
        regressor(engine=engine).fit(files, visits()["cost"], agents="clinic")
    with pytest.raises(DataError, match="one class only, 3"):
        classifier(engine=engine).fit(ct.data.Source(files, columns=["dose"]), "unit", agents="clinic")
    with pytest.raises(ParameterError, match="has all rows in one place: leave engine out"):
        regressor(engine=engine, method="sdca").fit(files, "cost", agents="clinic")
    with pytest.raises(ParameterError, match="covariance must be 7 x 7"):
        regressor(engine=engine, covariance=np.eye(3)).fit(
            ct.data.Source(files, columns=["dose"]), "cost", agents="clinic"
        )
    gaps = {"a": (np.array([[1.0, 2.0], [3.0, np.nan]]), [1.0, 2.0]), "b": (np.eye(2), [3.0, 5.0])}
    with pytest.raises(DataError, match=r"agent 'a'.*row 1: column 1 is missing"):
        regressor(engine=engine).fit(gaps, None)
    with pytest.raises(DataError, match=r"agent 'a'\): column 1 is missing"):
        regressor().fit(gaps, None)
