"""Estimators of relationship learning: what ct.relationship finds, behind scikit-learn's contract."""

from __future__ import annotations

import inspect

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_circles
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import FunctionTransformer

import coterie as ct
from coterie.core.offsets import Offset, with_offsets
from coterie.errors import DataError, MismatchError, ParameterError
from coterie.estimators.intercepts import random_intercepts, without_levels

pytestmark = pytest.mark.compiled

MODELS = {"classifier": ct.RelationshipClassifier, "regressor": ct.RelationshipRegressor}
NAMES = np.array(["ann", "bob", "cyd", "dan"])
LEVELS = np.array(["high", "low", "mid"])


@pytest.fixture(scope="module")
def rows():
    """Four tasks of three features: two alike, one the opposite, one of its own."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(4), [30, 25, 40, 35])
    weights = np.array([[2.0, -1.0, 0.0], [1.8, -1.2, 0.1], [-2.0, 1.0, 0.0], [0.0, 0.3, 2.0]])
    X = rng.normal(size=(130, 3))
    margins = np.einsum("rk,rk->r", X, weights[owner]) + 0.5
    order = rng.permutation(130)  # the rows of a task need not stand together
    return X[order], (margins + 0.3 * rng.normal(size=130))[order], NAMES[owner][order]


def labels(numbers, kind):
    return np.where(numbers > 0, "yes", "no") if kind == "classifier" else 5.0 + numbers


def levels(numbers):
    return LEVELS[np.digitize(numbers, [-0.7, 0.9])]


# -- the models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_models_are_those_of_the_function(rows, kind):
    """On standardised rows less a part of each task's mean, with an offset for each task; and a slope for all."""
    X, numbers, ids = rows
    y = labels(numbers, kind)
    given = {"lam": 0.03, "tol": 1e-9, "covariance": 0.05 * np.ones((4, 4)) + np.diag([0.1, 0.2, 0.3, 0.2])}
    model = MODELS[kind](**given).fit(X, y, agents=ids)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    targets = np.where(numbers > 0, 1.0, -1.0) if kind == "classifier" else (y - y.mean()) / y.std()
    data = ct.AgentData(Z, targets, agents=ids)
    level = random_intercepts(data.y, data.owner, 4, classes=kind == "classifier")
    data = data.with_features(without_levels(data.X, data, level.part))
    if kind == "classifier":
        loss, labelled = Offset(ct.Logistic()), with_offsets(data.y, level.own[data.owner])
    else:
        left = without_levels(data.y, data, level.part)
        loss, labelled = "squared", left / left.std()
    found = ct.relationship(data._like(y=labelled), loss, **given)
    assert model.agents_ == found.members == ("ann", "bob", "cyd", "dan")
    slopes = model.coef_ * X.std(axis=0) / found.weights
    np.testing.assert_allclose(slopes, slopes[0, 0], rtol=0.01)
    np.testing.assert_array_equal(model.covariance_, found.covariance)
    assert model.duality_gap_ == model.run_.gap <= 1e-9 * model.run_.value
    assert model.run_.value == pytest.approx(found.value, rel=1e-8)
    assert model.n_iter_ == model.run_.rounds > 0
    number = data.numbers(ids)
    margins = np.einsum("rk,rk->r", X, model.coef_[number]) + model.intercept_[number]
    if kind == "classifier":
        np.testing.assert_allclose(model.decision_function(X, agents=ids), margins)
        assert model.predict(X, agents=ids).tolist() == labels(margins, kind).tolist()
        np.testing.assert_allclose(model.predict_proba(X, agents=ids)[:, 1], 1 / (1 + np.exp(-margins)))
    else:
        np.testing.assert_allclose(model.predict(X, agents=ids), margins)
    assert model.score(X, y, agents=ids) > 0.9


@pytest.mark.parametrize(
    ("kind", "settings", "same"),
    [
        pytest.param(
            "classifier",
            {"loss": "hinge", "tol": 1e-3},
            {"loss": "hinge", "method": "sdca", "tol": 1e-3},
            marks=pytest.mark.slow,
        ),
        ("classifier", {"loss": ct.SmoothHinge(0.5)}, {"loss": ct.SmoothHinge(0.5), "method": "exact"}),
        ("classifier", {"method": "exact"}, {}),
        ("classifier", {"method": "sdca"}, {}),
        ("classifier", {"local_steps": 50, "rounds": 2, "max_iter": 4000}, {}),
        ("classifier", {"staleness": 2}, {}),
        ("regressor", {"loss": "huber"}, {"loss": "huber", "method": "sdca"}),
    ],
    ids=str,
)
def test_every_way_reaches_the_same_optimum(rows, kind, settings, same):
    X, numbers, ids = rows
    y = labels(numbers, kind)
    one, other = (MODELS[kind](lam=0.03, **each).fit(X, y, agents=ids) for each in (settings, same))
    near = 5e-3 if settings.get("loss") == "hinge" else 2e-4
    assert one.run_.value == pytest.approx(other.run_.value, rel=near)
    assert hasattr(one, "predict_proba") == (one.loss is None)
    assert one.score(X, y, agents=ids) > 0.85
    assert one.correlation_[0, 1] > 0.8
    assert one.correlation_[0, 2] < -0.8


def test_tasks_alone_are_regressions_with_an_intercept(rows):
    """Of tasks whose levels are far apart, nearly all of it is their own: ridge regression of centred rows."""
    X, numbers, ids = rows
    y = numbers + 100.0 * np.searchsorted(NAMES, ids)
    model = ct.RelationshipRegressor(method="single-task", lam=1e-4, tol=1e-7).fit(X, y, agents=ids)
    for k, name in enumerate(model.agents_):
        own = ids == name
        plain = LinearRegression().fit(X[own], y[own])
        np.testing.assert_allclose(model.coef_[k], plain.coef_, atol=0.01)
        np.testing.assert_allclose(model.intercept_[k], plain.intercept_, atol=0.02)
    np.testing.assert_array_equal(model.covariance_, np.eye(4) / 4)


@pytest.mark.slow
def test_every_class_against_the_rest_has_a_covariance_of_its_own(rows):
    X, numbers, ids = rows
    y = levels(numbers)
    model = ct.RelationshipClassifier(lam=0.03).fit(X, y, agents=ids)
    assert model.classes_.tolist() == sorted(LEVELS)
    assert model.coef_.shape == (4, 3, 3)
    assert model.intercept_.shape == (4, 3)
    assert model.covariance_.shape == model.correlation_.shape == (3, 4, 4)
    for k, name in enumerate(model.classes_):
        alone = ct.RelationshipClassifier(lam=0.03).fit(X, y == name, agents=ids)
        np.testing.assert_allclose(model.covariance_[k], alone.covariance_, atol=0.01)
        np.testing.assert_allclose(model.correlation_[k], alone.correlation_, atol=0.05)
        assert model.run_[k].value == pytest.approx(alone.run_.value, rel=1e-4)
    assert model.duality_gap_ == max(run.gap for run in model.run_)
    assert model.n_iter_ == max(run.rounds for run in model.run_)
    margins = model.decision_function(X, agents=ids)
    assert margins.shape == (130, 3)
    assert np.array_equal(model.predict(X, agents=ids), model.classes_[margins.argmax(axis=1)])
    np.testing.assert_allclose(model.predict_proba(X, agents=ids).sum(axis=1), 1.0)
    assert model.score(X, y, agents=ids) > 0.7


def test_without_agents_there_is_one_task(rows):
    X, numbers, _ = rows
    model = ct.RelationshipRegressor(lam=0.05, tol=1e-10).fit(X, numbers)
    Z, y = X - X.mean(axis=0), numbers - numbers.mean()
    ridge = np.linalg.solve(Z.T @ Z / 130 + 0.05 * np.diag(X.var(axis=0)), Z.T @ y / 130)
    np.testing.assert_allclose(model.coef_[0], ridge, atol=1e-4)
    np.testing.assert_allclose(model.intercept_[0], numbers.mean() - X.mean(axis=0) @ ridge, atol=1e-4)
    assert model.covariance_.tolist() == model.correlation_.tolist() == [[1.0]]
    assert model.predict(X).shape == (130,)


# -- rows of every kind ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_text_and_gaps_of_a_table_become_numbers(rows, kind, tmp_path):
    X, numbers, ids = rows
    rng = np.random.default_rng(1)
    city, gone, y = rng.choice(["rome", "oslo", "rome"], 130), rng.random(130) < 0.2, labels(numbers, kind)
    frame = pd.DataFrame({"a": np.where(gone, np.nan, X[:, 0]), "city": city, "c": X[:, 2], "one": 1.0, "who": ids})
    mean = X[~gone, 0].mean()
    plain = np.c_[np.where(gone, mean, X[:, 0]), gone, city == "oslo", X[:, 2], np.ones(130)]
    one, other = MODELS[kind]().fit(frame, y, agents="who"), MODELS[kind]().fit(plain, y, agents=ids)
    assert one.coef_names_ == ("a", "a missing", "city=oslo", "c", "one")
    assert other.coef_names_ == ("x0", "x1", "x2", "x3", "x4")
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=0, atol=1e-9)
    assert (one.n_features_in_, one.feature_names_in_.tolist()) == (4, ["a", "city", "c", "one"])
    new = pd.DataFrame(
        {"a": [None, 1.0], "city": ["oslo", "paris"], "c": [0.5, 0.5], "one": 1.0, "who": ["bob", "ann"]}
    )
    same = [[mean, 1.0, 1.0, 0.5, 1.0], [1.0, 0.0, 0.0, 0.5, 1.0]]
    asked = "predict" if kind == "regressor" else "predict_proba"
    said = getattr(one, asked)(new)
    np.testing.assert_allclose(said, getattr(other, asked)(same, agents=["bob", "ann"]), rtol=0, atol=1e-9)
    again = ct.load(ct.save(one, tmp_path))
    assert np.array_equal(getattr(again, asked)(new), said)
    assert again.coef_names_ == one.coef_names_
    with pytest.raises(DataError, match="column 'c' is 'x', but held numbers at fit"):
        one.predict(new.assign(c="x"))
    with pytest.raises(DataError, match="should match those that were passed during fit"):
        one.predict(new.drop(columns="c"))
    numbers_only = one.fit(frame[["c", "one", "who"]], y, agents="who")  # and nothing is left of before
    assert (numbers_only.coef_names_, numbers_only.n_features_in_) == (("c", "one"), 2)
    assert numbers_only.predict(frame[["c", "one", "who"]]).shape == (130,)


# -- feature maps ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def circles():
    """Whether a point is on the inner circle; for the last of three tasks, whether it is not."""
    X, y = make_circles(240, noise=0.08, factor=0.4, random_state=0)
    ids = np.arange(240) % 3
    return X, (y == 1) != (ids == 2), ids


@pytest.mark.slow
def test_random_features_learn_what_is_not_linear(circles):
    X, y, ids = circles
    train = np.arange(240) < 120
    phi = RBFSampler(gamma=1.0, n_components=100, random_state=0)
    scores = []
    for features in (None, phi):
        model = ct.RelationshipClassifier(features=features, lam=1e-3)
        scores.append(model.fit(X[train], y[train], agents=ids[train]).score(X[~train], y[~train], agents=ids[~train]))
    assert scores[0] < 0.7
    assert scores[1] > 0.95
    assert model.coef_.shape == (3, 100)
    assert model.n_features_in_ == 2
    assert model.correlation_[0, 1] > 0.5
    assert model.correlation_[0, 2] < -0.5
    assert not hasattr(phi, "random_weights_")  # a copy is fitted
    mapped = model.features_.transform((X - X[train].mean(axis=0)) / X[train].std(axis=0))
    expected = np.einsum("rk,rk->r", mapped, model.coef_[ids]) + model.intercept_[ids]
    np.testing.assert_allclose(model.decision_function(X, agents=ids), expected, atol=1e-10)


def test_a_map_of_sparse_rows(rows):
    X, numbers, ids = rows
    double = FunctionTransformer(lambda X: sparse.hstack([X, X]), accept_sparse=True)
    model = ct.RelationshipRegressor(features=double, lam=0.01).fit(sparse.csr_array(X), numbers, agents=ids)
    assert model.coef_.shape == (4, 6)
    assert model.score(sparse.csr_array(X), numbers, agents=ids) > 0.8


@pytest.mark.parametrize(
    ("features", "error", "message"),
    [
        ("rbf", ParameterError, "features='rbf' must be a transformer"),
        (RBFSampler, ParameterError, "must be a transformer"),
        (FunctionTransformer(lambda X: X[:5]), DataError, "made 5 rows of 130"),
        (FunctionTransformer(lambda X: X * np.where(X > 2.0, np.nan, 1.0)), DataError, "row .*NaN or infinity"),
    ],
    ids=["text", "class", "rows lost", "not finite"],
)
def test_maps_that_are_none_are_refused(rows, features, error, message):
    X, numbers, ids = rows
    with pytest.raises(error, match=message):
        ct.RelationshipRegressor(features=features).fit(X, numbers, agents=ids)


# -- scikit-learn ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_parameters_and_copies(kind):
    engine = ct.Cluster(shards=2)
    model = MODELS[kind](features=RBFSampler(gamma=0.5), lam=0.2, covariance=np.eye(2) / 2, engine=engine)
    again = clone(model)
    assert again.get_params()["features__gamma"] == 0.5
    assert again.lam == 0.2
    assert again.engine == engine
    again.set_params(features__gamma=0.7, lam=0.3, method="exact")
    assert (again.features.gamma, again.lam, again.method) == (0.7, 0.3, "exact")
    assert model.features.gamma == 0.5
    assert {"graph", "coupling", "ridge", "members", "n_neighbors"}.isdisjoint(MODELS[kind]().get_params())


@pytest.mark.parametrize("kind", MODELS)
def test_defaults_are_those_of_the_function(kind):
    function = inspect.signature(ct.relationship).parameters
    theirs = {"max_iter": "alternations", "random_state": "seed"}
    given = {theirs.get(name, name): value for name, value in MODELS[kind]().get_params().items()}
    assert set(given) - set(function) == {"features"}
    assert given == {name: function[name].default for name in given if name != "features"} | {
        "loss": None,
        "features": None,
    }


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "settings", "error", "message"),
    [
        ("classifier", {"lam": 0.0}, ParameterError, "lam = 0.0: expected a positive"),
        ("regressor", {"lam": -1.0}, ParameterError, "lam = -1.0: expected a positive"),
        ("regressor", {"loss": "logistic"}, MismatchError, "is for classes: a regressor needs"),
        ("classifier", {"loss": "squared"}, MismatchError, "a classifier needs a loss of labels -1 and"),
        ("classifier", {"loss": "nonsense"}, ParameterError, "unknown loss 'nonsense'"),
        ("classifier", {"loss": ct.LogSumExp()}, ParameterError, "is not a loss"),
        ("classifier", {"method": "cd"}, ParameterError, "method = 'cd': expected"),
        ("classifier", {"covariance": np.eye(3)}, ParameterError, "covariance must be 4 x 4"),
        ("classifier", {"covariance": np.eye(4)}, ParameterError, "trace 4"),
        ("regressor", {"engine": "ray"}, ParameterError, "engine='ray' must be a ct.Cluster"),
        ("classifier", {"method": "exact", "loss": "hinge"}, MismatchError, 'use method="sdca"'),
        ("regressor", {"max_iter": 0}, ParameterError, "max_iter = 0"),
        ("regressor", {"random_state": -1}, ParameterError, "random_state = -1"),
        ("regressor", {"tol": 0.0}, ParameterError, "tol = 0.0"),
    ],
    ids=str,
)
def test_parameters_out_of_their_range_are_refused(rows, kind, settings, error, message):
    X, numbers, ids = rows
    model = MODELS[kind](**settings)
    with pytest.raises(error, match=message):
        model.fit(X, labels(numbers, kind), agents=ids)
    assert not hasattr(model, "coef_")


@pytest.mark.parametrize("classes", [2, 3])
def test_a_fit_that_did_not_converge_warns(rows, classes):
    X, numbers, ids = rows
    y = numbers > 0 if classes == 2 else levels(numbers)
    with pytest.warns(ConvergenceWarning, match="raise max_iter, rounds or passes") as caught:
        model = ct.RelationshipClassifier(max_iter=2).fit(X, y, agents=ids)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert model.duality_gap_ > 0
    assert np.all(np.isfinite(model.coef_))


# -- covariances on demand -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classifier", "regressor", "classes"])
def test_matrices_are_made_when_they_are_asked_for(rows, kind):
    X, numbers, ids = rows
    y = levels(numbers) if kind == "classes" else labels(numbers, kind)
    estimator = ct.RelationshipRegressor if kind == "regressor" else ct.RelationshipClassifier
    model = estimator(lam=0.03)
    for name in ("covariance_", "correlation_", "factors_"):
        assert not hasattr(model, name)
    with pytest.raises(NotFittedError):
        model.correlation(["ann"])
    model.fit(X, y, agents=ids)
    assert not {"covariance_", "correlation_", "factors_"} & set(vars(model))
    covariances, factors = (
        (model.covariance_, model.factors_) if kind == "classes" else ([model.covariance_], [model.factors_])
    )
    for covariance, (Q, s, c) in zip(covariances, factors, strict=True):
        assert np.trace(covariance) == pytest.approx(1.0, abs=1e-12)
        np.testing.assert_allclose((Q * s) @ Q.T + c * np.eye(4), covariance, rtol=0, atol=1e-14)
    some = model.correlation(["dan", "ann", "cyd"])
    np.testing.assert_allclose(some, model.correlation_[..., [[3], [0], [2]], [3, 0, 2]], rtol=0, atol=1e-14)
    with pytest.raises(DataError, match="no agent 'eve'; there are 4, such as 'ann'"):
        model.correlation(["ann", "eve"])
    before = model.covariance_
    again = model.set_params(lam=0.3).fit(X, y, agents=ids).covariance_
    assert not np.array_equal(again, before)
