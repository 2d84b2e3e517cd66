"""The front door: what the two estimators take, refuse, show, keep and give back."""

from __future__ import annotations

import datetime
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import coterie as ct
from coterie.errors import DataError, ExtrapolationWarning, MismatchError, NotFittedError, ParameterError

KINDS = ("numbers", "student", "counts", "classes", "three classes")


def estimator(kind, **settings):
    if "classes" in kind:
        return ct.CollaborativeClassifier(**settings)
    return ct.CollaborativeRegressor(loss={"student": "student", "counts": "poisson"}.get(kind), **settings)


def table(kind="numbers", seed=0, n=12, m=10, p=2):
    """Rows of n agents of the model itself: X, y, ids."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(n), m)
    X = rng.normal(size=(n * m, p))
    theta = rng.normal(size=p + 1) + 0.5 * rng.normal(size=(n, p + 1))
    z = np.sum(X * theta[ids, :p], axis=1) + theta[ids, p]
    if kind == "counts":
        return X, rng.poisson(np.exp(np.clip(0.5 * z, -3, 3))), ids
    if kind == "classes":
        return X, np.where(z + rng.logistic(size=n * m) > 0, "yes", "no"), ids
    if kind == "three classes":
        return X, np.digitize(z + rng.logistic(size=n * m), [-1.0, 1.0]), ids
    return X, z + 0.3 * rng.normal(size=n * m), ids


def answers(model, X, ids):
    if isinstance(model, ct.CollaborativeClassifier):
        return model.predict_proba(X, agents=ids)
    return np.column_stack([*model.predict(X, agents=ids, return_std=True), model.predict_interval(X, agents=ids)])


# -- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("design", ["linear", "additive"])
@pytest.mark.parametrize("kind", KINDS)
def test_coefficients_are_those_that_predict(kind, design):
    X, y, ids = table(kind)
    model = estimator(kind, design=design).fit(X, y, agents=ids)
    A = X if design == "linear" else model._models.parts[0].design.unscaled(X)
    own, b = model.coef_[ids], model.intercept_[ids]
    z = np.einsum("rj,r...j->r...", A, own) + b
    mean = model._latent(X, ids)[0].reshape(z.shape)
    scale, center = model._models.parts[0].scale, model._models.parts[0].center
    np.testing.assert_allclose(z, mean * scale + center, atol=1e-8)
    assert len(model.coef_names_) == A.shape[1] == model.common_coef_.shape[-1] == model.personal_variance_.shape[-1]
    assert model.design_ == design
    assert np.isfinite(model.log_evidence_)
    assert model.agents_ == tuple(range(12))
    assert model.n_features_in_ == 2
    if kind == "numbers" and design == "linear":
        np.testing.assert_allclose(model.predict(X, agents=ids), z, atol=1e-8)
        strangers = X @ model.common_coef_ + model.common_intercept_
        if model._models.parts[0].new_agent.share == 0.0:
            np.testing.assert_allclose(model.predict(X, agents=ids + 100), strangers, atol=1e-8)


def test_what_differs_between_agents_is_shown_in_their_units():
    """Slopes of the first column differ, those of the second do not; in units of y by units of x."""
    rng = np.random.default_rng(1)
    ids = np.repeat(np.arange(60), 15)
    X = rng.normal(size=(900, 2)) * [10.0, 0.1]
    y = X[:, 0] * (1.0 + 0.5 * rng.normal(size=60))[ids] + 20.0 * X[:, 1] + rng.normal(size=900)
    model = ct.CollaborativeRegressor(deviations="diagonal", design="linear").fit(X, y, agents=ids)
    assert model.personal_variance_[0] == pytest.approx(0.25, rel=0.5)
    assert np.sqrt(model.personal_variance_[1]) < 3.0
    assert model.noise_ == pytest.approx(1.0, rel=0.15)
    np.testing.assert_allclose(model.common_coef_, [1.0, 20.0], rtol=0.3)


# -- more rows ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_more_rows_are_a_fit_with_the_population_held(kind):
    """Agents with rows that came later have the posterior of all their rows; everybody else is the same to the bit."""
    X, y, ids = table(kind, n=14)
    early = (ids < 12) & ~((ids == 3) & (np.arange(len(ids)) % 10 > 4))
    model = estimator(kind, design="linear").fit(X[early], y[early], agents=ids[early])
    before = model.coef_.copy(), model.intercept_.copy(), model.common_coef_.copy(), model._models.parts
    model.partial_fit(X[~early], y[~early], agents=ids[~early])
    assert model.agents_ == tuple(range(14))
    others = np.setdiff1d(np.arange(12), [3])
    for now, then in zip((model.coef_, model.intercept_), before[:2], strict=True):
        assert np.array_equal(now[others], then[others])
        assert not np.allclose(now[3], then[3])
    assert np.array_equal(model.common_coef_, before[2])
    from coterie.pooling.fitted import posterior

    for now, old in zip(model._models.parts, before[3], strict=True):
        assert now.population is old.population
        everything = now.grouped.batches(now.design, np.arange(14))
        for batch in everything:
            D = posterior(batch, old.population)
            np.testing.assert_allclose(now.D[batch.agents], D, atol=1e-6 if kind == "student" else 1e-8)
    # The order in which rows come does not matter.
    other = estimator(kind, design="linear").fit(X[early], y[early], agents=ids[early])
    for row in np.flatnonzero(~early)[::-1]:
        other.partial_fit(X[[row]], y[[row]], agents=ids[[row]])
    order = [other.agents_.index(agent) for agent in model.agents_]
    np.testing.assert_allclose(other.coef_[order], model.coef_, atol=1e-6)


def test_more_rows_with_weights_are_more_rows():
    X, y, ids = table()
    one, other = (ct.CollaborativeRegressor().fit(X, y, agents=ids) for _ in range(2))
    one.partial_fit(X[:3], y[:3] + 1.0, agents=["new"] * 3, sample_weight=[2, 1, 3])
    again = [0, 0, 1, 2, 2, 2]
    other.partial_fit(X[again], y[again] + 1.0, agents=["new"] * 6)
    np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-8)
    np.testing.assert_allclose(answers(one, X[:5], ["new"] * 5), answers(other, X[:5], ["new"] * 5), atol=1e-8)


def test_the_first_partial_fit_is_a_fit():
    X, y, ids = table()
    one, other = ct.CollaborativeRegressor().fit(X, y, agents=ids), ct.CollaborativeRegressor()
    assert np.array_equal(other.partial_fit(X, y, agents=ids).coef_, one.coef_)


def test_more_rows_that_do_not_fit_are_refused():
    X, y, ids = table("classes")
    model = ct.CollaborativeClassifier().fit(X, y, agents=ids)
    with pytest.raises(DataError, match=r"row 1: the class 'maybe' was not in the training rows; .*'no', 'yes'"):
        model.partial_fit(X[:2], ["no", "maybe"], agents=[0, 0])
    with pytest.raises(DataError, match="agents is missing"):
        model.partial_fit(X[:2], ["no", "no"])
    with pytest.raises(DataError, match="3 features"):
        model.partial_fit(np.ones((1, 3)), ["no"], agents=[0])
    local = ct.CollaborativeClassifier("local").fit(X, y, agents=ids)
    with pytest.raises(MismatchError, match="cannot take more rows"):
        local.partial_fit(X, y, agents=ids)
    with pytest.raises(MismatchError, match="needs a posterior"):
        ct.CollaborativeRegressor("local").fit(X, X[:, 0], agents=ids).predict_interval(X, agents=ids)


# -- few rows, odd rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_members_without_rows_are_like_strangers_of_the_model(kind):
    X, y, ids = table(kind)
    model = estimator(kind, members=[*range(12), "idle"]).fit(X, y, agents=ids)
    assert model.agents_[-1] == "idle"
    assert model.coef_.shape[0] == 13
    found = answers(model, X[:4], ["idle"] * 4)
    assert np.isfinite(found).all()
    # As the population has it: w for its model, whatever strangers are predicted by.
    for fitted in model._models.parts:
        assert np.all(fitted.D[-1] == 0.0)
    same = estimator(kind).fit(X, y, agents=ids)
    np.testing.assert_allclose(answers(model, X, ids), answers(same, X, ids), atol=0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [1, 2])
def test_one_row_or_two_of_every_agent(kind, m):
    X, y, ids = table(kind, n=40, m=m)
    model = estimator(kind).fit(X, y, agents=ids)
    assert np.isfinite(answers(model, X, ids)).all()
    assert np.isfinite(answers(model, X, ids + 100)).all()


def test_constant_labels():
    X, _, ids = table()
    model = ct.CollaborativeRegressor().fit(X, np.full(len(X), 7.0), agents=ids)
    np.testing.assert_allclose(model.predict(X, agents=ids), 7.0, atol=1e-3)
    low, high = model.predict_interval(X, agents=ids).T
    assert np.all((low <= 7.0) & (high >= 7.0) & (high - low < 0.1))


def test_one_agent_is_a_ridge_regression():
    X, y, _ = table()
    model = ct.CollaborativeRegressor(design="linear").fit(X, y)
    assert model.agents_ == (0,)
    A = np.column_stack([X, np.ones(len(X))])
    np.testing.assert_allclose(model.predict(X), A @ np.linalg.lstsq(A, y, rcond=None)[0], atol=0.1)
    assert model.predict_interval(X).shape == (len(X), 2)
    assert ct.CollaborativeRegressor().fit([[1.0]], [2.0]).predict([[1.0]]) == pytest.approx([2.0])


def test_columns_that_say_nothing_are_left_out():
    X, y, ids = table()
    wide = np.column_stack([X, np.full(len(X), 3.0), X[:, 0]])
    one, other = (ct.CollaborativeRegressor().fit(Z, y, agents=ids) for Z in (X, wide))
    assert other.coef_names_ == one.coef_names_
    np.testing.assert_allclose(other.predict(wide, agents=ids), one.predict(X, agents=ids), atol=1e-9)
    nothing = ct.CollaborativeRegressor().fit(np.ones((len(X), 1)), y, agents=ids)  # intercepts only
    assert nothing.coef_.shape == (12, 0)
    means = np.array([y[ids == k].mean() for k in range(12)])
    assert np.corrcoef(nothing.intercept_, means)[0, 1] > 0.99


# -- tables -----------------------------------------------------------------------------------------------------------


def frame():
    rng = np.random.default_rng(2)
    ids = np.repeat(["ann", "bob", "cyd", "dan"], 25)
    data = pd.DataFrame(
        {"age": rng.normal(40, 9, 100), "town": np.array(["Rome", "Oslo", "Bern"])[rng.integers(0, 3, 100)]}
    )
    data["member"] = rng.uniform(size=100) < 0.4
    y = (
        0.1 * data["age"]
        + 2.0 * (data["town"] == "Oslo")
        + data["member"]
        + (ids == "bob")
        + 0.1 * rng.normal(size=100)
    )
    data.loc[::9, "age"] = np.nan
    data.loc[3::11, "town"] = None
    return data.assign(who=ids), y.to_numpy()


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_text_gaps_and_booleans_in_pandas_and_polars(kind):
    polars = pytest.importorskip("polars")
    data, y = frame()
    y = y if kind == "numbers" else np.where(y > np.median(y), "high", "low")
    model = estimator(kind).fit(data, y, agents="who")
    assert {"age", "age missing", "member"} <= {name.partition(" spline")[0] for name in model.coef_names_}
    assert any(name.startswith("town=") for name in model.coef_names_)
    assert model.score(data, y) > 0.6
    assert list(model.feature_names_in_) == ["age", "town", "member"]
    again = estimator(kind).fit(polars.from_pandas(data), y, agents="who")
    np.testing.assert_allclose(answers(again, polars.from_pandas(data), "who"), answers(model, data, "who"), atol=1e-8)
    # A town never met is the reference, a column that is missing is refused.
    model.predict(data.assign(town="Paris"))
    with pytest.raises(DataError, match="age"):
        model.predict(data.drop(columns="age"))


def test_sparse_rows_are_the_same_as_dense():
    X, y, ids = table()
    one, other = (ct.CollaborativeRegressor().fit(Z, y, agents=ids) for Z in (X, sparse.csr_array(X)))
    np.testing.assert_allclose(other.predict(sparse.csr_array(X), agents=ids), one.predict(X, agents=ids), atol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": [[datetime.date(2020, 1, 1)]] * 4}, "dates or times"),
        ({"X": np.array([["2020-01-01"]] * 4, dtype="datetime64[D]")}, "dates or times"),
        ({"y": ["a", "b", "c", "d"]}, "y holds 'a': a regressor needs numbers"),
        ({"y": [1.0, 2.0]}, "2 labels for 4 rows"),
        ({"y": [1.0, np.nan, 2.0, 3.0]}, r"row 1 \(agent 'a'\): the label is missing"),
        ({"y": [1.0, np.nan, np.nan, 3.0]}, r"row 1 \(agent 'a'\) and 1 more: the label is missing"),
        ({"y": [1.0, np.inf, 2.0, 3.0]}, "row 1: the label is inf"),
        ({"y": None}, "y is missing"),
        ({"y": np.ones((4, 2))}, "1d array"),
        ({"y": [1j, 1.0, 2.0, 3.0]}, "Complex"),
        ({"agents": ["a"]}, "1 ids for 4 rows"),
        ({"agents": ["a", None, "a", "b"]}, "row 1|missing"),
        ({"X": [[1.0], [np.inf], [2.0], [3.0]]}, "row 1.*inf"),
        ({"sample_weight": [1.0, 2.0]}, "sample_weight.shape"),
        ({"sample_weight": [1.0, -1.0, 1.0, 1.0]}, "not negative"),
        ({"sample_weight": [0.0, 0.0, 0.0, 0.0]}, "zero for all rows"),
        ({"loss": "poisson", "y": [1.0, 2.0, -1.0, 0.0]}, "row 2: the label is -1.*counts"),
        ({"missing": "error", "X": [[1.0], [np.nan], [2.0], [3.0]]}, "row 1.*missing"),
    ],
)
def test_bad_rows_are_refused_by_place_and_the_model_stays(change, message):
    good = {"X": [[0.0], [1.0], [2.0], [4.0]], "y": [0.0, 1.0, 2.0, 4.5], "agents": ["a", "a", "b", "b"]}
    model = ct.CollaborativeRegressor().fit(**good)
    before = vars(model).copy()
    settings = {name: change[name] for name in ("loss", "missing") if name in change}
    model.set_params(**settings)
    with pytest.raises(DataError, match=message):
        model.fit(**(good | {name: value for name, value in change.items() if name not in settings}))
    assert {name: value for name, value in vars(model).items() if name not in settings} == {
        name: value for name, value in before.items() if name not in settings
    }
    model.set_params(**{name: before[name] for name in settings})
    assert np.isfinite(model.predict(good["X"], agents=good["agents"])).all()


def test_bad_classes_are_refused():
    X, _, ids = table()
    with pytest.raises(DataError, match=r"Unknown label type: continuous.*regressor"):
        ct.CollaborativeClassifier().fit(X, X[:, 0], agents=ids)
    with pytest.raises(DataError, match="one class only, 'yes'"):
        ct.CollaborativeClassifier().fit(X, ["yes"] * len(X), agents=ids)
    with pytest.raises(DataError, match="cannot be compared"):
        ct.CollaborativeClassifier().fit(X, np.array(["a", 1] * (len(X) // 2), dtype=object), agents=ids)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (ct.CollaborativeRegressor(design="curvy"), ParameterError, "design = 'curvy': expected 'auto', 'linear'"),
        (ct.CollaborativeRegressor(deviations="low rank"), ParameterError, "deviations = 'low rank': expected 'auto'"),
        (ct.CollaborativeRegressor(loss="hinge"), ParameterError, "loss='hinge'.*regressor.*takes auto, squared"),
        (
            ct.CollaborativeClassifier(loss="squared"),
            ParameterError,
            "loss='squared'.*classifier.*takes auto, logistic",
        ),
        (ct.CollaborativeRegressor(missing="drop"), ParameterError, "missing = 'drop': expected"),
        (ct.CollaborativeRegressor(method="sgd"), ParameterError, "unknown method 'sgd'"),
        (ct.CollaborativeRegressor(method="cd", design="additive"), MismatchError, 'design="additive" needs'),
        (ct.CollaborativeRegressor(method="cd", graph="auto"), ParameterError, 'graph="auto" is for'),
        (ct.CollaborativeRegressor(members=[0, 1]), DataError, r"agent 2\): this agent is not among members"),
    ],
)
def test_bad_settings_are_refused_by_name(model, error, message):
    X, y, ids = table()
    with pytest.raises(error, match=message):
        model.fit(X, y if model._kind == "regressor" else y > 0, agents=ids)
    assert not hasattr(model, "agents_")


def test_an_estimator_is_fitted_first():
    for name in ("predict", "predict_interval", "score"):
        with pytest.raises(NotFittedError, match="not fitted"):
            getattr(ct.CollaborativeRegressor(), name)([[1.0]], *([[1.0]] if name == "score" else []))
    for name in ("predict", "predict_proba", "decision_function"):
        with pytest.raises(NotFittedError, match="not fitted"):
            getattr(ct.CollaborativeClassifier(), name)([[1.0]])


# -- predicting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["numbers", "student", "counts"])
def test_intervals_grow_with_their_coverage(kind):
    X, y, ids = table(kind)
    model = estimator(kind).fit(X, y, agents=ids)
    widths = []
    for coverage in (0.1, 0.5, 0.9, 0.99):
        low, high = model.predict_interval(X, agents=ids, coverage=coverage).T
        widths.append(high - low)
    assert np.all(np.diff(widths, axis=0) >= 0.0)
    assert np.all(widths[-1] > widths[0])
    for coverage in (0.0, 1.0, 90):
        with pytest.raises(ParameterError, match="coverage = "):
            model.predict_interval(X, agents=ids, coverage=coverage)
    if kind == "numbers":
        mean, std = model.predict(X, agents=ids, return_std=True)
        ends = model.predict_interval(X, agents=ids, coverage=0.9)
        np.testing.assert_allclose(ends, mean[:, None] + std[:, None] * [-1.6448536, 1.6448536], atol=1e-6)


@pytest.mark.parametrize("design", ["linear", "auto"])
def test_extrapolation_is_warned_of_on_a_split_in_time_only(design):
    rng = np.random.default_rng(3)
    ids, time = np.repeat(np.arange(20), 30), np.tile(np.arange(30.0), 20)
    X = np.column_stack([time + 5.0 * rng.normal(size=20)[ids], rng.normal(size=600)])
    y = 0.1 * X[:, 0] + rng.normal(size=600)
    model = ct.CollaborativeRegressor(design=design).fit(X[time < 20], y[time < 20], agents=ids[time < 20])
    with pytest.warns(ExtrapolationWarning, match=r"'x0' \(100% of the rows\)") as caught:
        model.predict(X[time >= 20], agents=ids[time >= 20])
    assert "x1" not in str(caught[0].message)
    assert caught[0].filename == __file__
    train = rng.uniform(size=600) < 0.67
    model = ct.CollaborativeRegressor(design=design).fit(X[train], y[train], agents=ids[train])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(X[~train], agents=ids[~train])
        model.predict_interval(X[~train], agents=ids[~train])


def test_heavy_tails_are_chosen_where_there_are_any():
    """In all of three sets with outliers, and in none of three without; errors are smaller for it."""
    for seed in range(3):
        X, y, ids = table(seed=seed, n=20, m=15)
        clean = ct.CollaborativeRegressor(loss="auto", design="linear").fit(X, y, agents=ids)
        assert clean._models.parts[0].family.name == "squared"
        rng = np.random.default_rng(seed)
        wild = y + np.where(rng.uniform(size=len(y)) < 0.06, 10.0 * rng.normal(size=len(y)), 0.0)
        robust = ct.CollaborativeRegressor(loss="auto", design="linear").fit(X, wild, agents=ids)
        assert robust._models.parts[0].family.name == "student"
        plain = ct.CollaborativeRegressor(design="linear").fit(X, wild, agents=ids)
        errors = [np.mean((model.coef_ - clean.coef_) ** 2) for model in (robust, plain)]
        assert errors[0] < 0.5 * errors[1]


def test_counts_have_rates():
    X, y, ids = table("counts", n=30, m=12)
    model = ct.CollaborativeRegressor(loss="poisson", design="linear").fit(X, y, agents=ids)
    rate, std = model.predict(X, agents=ids, return_std=True)
    assert np.all(rate > 0.0)
    assert rate.mean() == pytest.approx(y.mean(), rel=0.1)
    assert np.all(std > np.sqrt(rate))
    assert model.noise_ is None
    ends = model.predict_interval(X, agents=ids)
    assert np.all(ends == np.round(ends))


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("design", ["linear", "additive"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_pooled_model_comes_back_from_a_file(tmp_path, kind, design):
    """Predictions, coefficients and what is warned of; of squared losses, also what more rows do."""
    X, y, ids = table(kind)
    model = estimator(kind, design=design).fit(X, y, agents=ids)
    again = ct.load(ct.save(model, tmp_path / "model"))
    asked = np.where(np.arange(len(ids)) % 7 == 0, 99, ids)
    np.testing.assert_allclose(answers(again, X, asked), answers(model, X, asked), atol=1e-9)
    for name in ("coef_", "intercept_", "common_coef_", "personal_variance_"):
        np.testing.assert_allclose(getattr(again, name), getattr(model, name), atol=1e-12)
    assert again.coef_names_ == model.coef_names_
    assert again.log_evidence_ == model.log_evidence_
    assert again.design_ == design
    both = [found.partial_fit(X[:30] + 0.1, y[:30], agents=[*ids[:20], *["new"] * 10]) for found in (model, again)]
    assert both[0].agents_ == both[1].agents_
    others = ids[20:] > 1
    np.testing.assert_allclose(*(answers(found, X[20:], ids[20:])[others] for found in both), atol=1e-9)
    if kind == "numbers":
        np.testing.assert_allclose(both[1].coef_, both[0].coef_, atol=1e-7)
        np.testing.assert_allclose(*(answers(found, X, asked) for found in both), atol=1e-7)
        twice = ct.load(ct.save(again, tmp_path / "twice"))
        np.testing.assert_allclose(answers(twice, X, asked), answers(model, X, asked), atol=1e-7)
    else:  # what was kept of the rows is a quadratic: near
        assert np.abs(both[1].coef_ - both[0].coef_).max() < 0.5


def test_a_loaded_model_still_warns_of_extrapolation(tmp_path):
    ids, time = np.repeat(np.arange(10), 30), np.tile(np.arange(30.0), 10)
    X, y = time[:, None], time + ids
    model = ct.CollaborativeRegressor(design="linear").fit(X[time < 20], y[time < 20], agents=ids[time < 20])
    again = ct.load(ct.save(model, tmp_path / "model"))
    with pytest.warns(ExtrapolationWarning):
        again.predict(X[time > 20], agents=ids[time > 20])


@pytest.mark.parametrize("graph", ["auto", "given"])
def test_a_model_with_edges_comes_back_from_a_file(tmp_path, graph):
    rng = np.random.default_rng(4)
    ids, cluster = np.repeat(np.arange(30), 8), np.arange(30) % 3
    theta = rng.normal(size=(3, 3))[cluster]
    X = rng.normal(size=(240, 2))
    y = np.sum(X * theta[ids, :2], axis=1) + theta[ids, 2] + rng.normal(size=240)
    edges = np.where((cluster[:, None] == cluster) & ~np.eye(30, dtype=bool), 1.0, 0.0)
    model = ct.CollaborativeRegressor(design="linear", graph="auto" if graph == "auto" else edges)
    model.fit(X, y, agents=ids)
    again = ct.load(ct.save(model, tmp_path / "model"))
    np.testing.assert_allclose(answers(again, X, ids), answers(model, X, ids), atol=1e-9)
    assert again.graph_ == model.graph_
    if graph == "given":
        assert model.edges_.strength > 0.0
        alone = ct.CollaborativeRegressor(design="linear").fit(X, y, agents=ids)
        errors = [np.mean((found.coef_ - theta[:, :2]) ** 2) for found in (model, alone)]
        assert errors[0] < errors[1]
        with pytest.raises(MismatchError, match="call fit with all rows"):
            model.partial_fit(X[:2], y[:2], agents=ids[:2])


# -- scikit-learn -----------------------------------------------------------------------------------------------------


def test_parameters_can_be_read_set_and_cloned():
    model = ct.CollaborativeRegressor(design="linear", members=[1, 2])
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy.set_params(design="additive", loss="student").design == "additive"
    assert repr(model) == "CollaborativeRegressor(design='linear', members=[1, 2])"
    with pytest.raises(ParameterError, match="Invalid parameter 'depth'"):
        model.set_params(depth=3)


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_searches_and_pipelines_pass_agents_and_weights_on(kind):
    X, y, ids = table(kind)
    with sklearn.config_context(enable_metadata_routing=True):
        model = estimator(kind).set_fit_request(agents=True, sample_weight=True)
        model = model.set_score_request(agents=True, sample_weight=True).set_predict_request(agents=True)
        weight = np.ones(len(y))
        search = GridSearchCV(model, {"design": ["linear", "additive"], "deviations": ["diagonal", "full"]}, cv=2)
        search.fit(X, y, agents=ids, sample_weight=weight)
        assert search.best_params_["design"] in ("linear", "additive")
        pipeline = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), model).fit(
            X, y, agents=ids, sample_weight=weight
        )
        direct = estimator(kind).fit(X, y, agents=ids)
        found, expected = pipeline.predict(X, agents=ids), direct.predict(X, agents=ids)
        if kind == "numbers":
            np.testing.assert_allclose(found, expected, atol=1e-6)
        else:
            assert np.array_equal(found, expected)
        assert pipeline.score(X, y, agents=ids) == pytest.approx(direct.score(X, y, agents=ids))
        with pytest.raises(TypeError, match="fit takes agents, sample_weight, not 'colour'"):
            model.set_fit_request(colour=True)


def test_progress_is_told():
    X, y, ids = table()
    seen = []
    ct.CollaborativeRegressor().fit(X, y, agents=ids, progress=seen.append)
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) > 5


def test_what_is_given_is_not_changed():
    X, y, ids = table()
    copies = X.copy(), y.copy(), ids.copy()
    model = ct.CollaborativeRegressor().fit(X, y, agents=ids)
    before = model.predict(X, agents=ids)
    X[:] = 0.0
    assert np.array_equal(y, copies[1])
    assert np.array_equal(ids, copies[2])
    assert np.array_equal(model.predict(copies[0], agents=ids), before)
    np.testing.assert_allclose(
        model.predict(copies[0], agents=ids, return_std=True)[1],
        ct.CollaborativeRegressor().fit(*copies[:2], agents=ids).predict(copies[0], agents=ids, return_std=True)[1],
    )


def test_a_first_fit_imports_next_to_nothing():
    code = (
        "import sys, numpy as np, coterie as ct\n"
        "rng = np.random.default_rng(0)\n"
        "X, ids = rng.normal(size=(60, 2)), np.repeat(np.arange(6), 10)\n"
        "model = ct.CollaborativeRegressor().fit(X, X[:, 0], agents=ids)\n"
        "model.predict(X, agents=ids, return_std=True)\n"
        "model.partial_fit(X[:2], X[:2, 0], agents=[7, 7])\n"
        "model = ct.CollaborativeClassifier().fit(X, X[:, 0] > 0, agents=ids)\n"
        "model.predict_proba(X, agents=ids)\n"
        "found = {'numba', 'sklearn', 'scipy', 'pandas', 'polars', 'networkx', 'matplotlib'} & set(sys.modules)\n"
        "found |= {'coterie.estimators.report'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
