"""Labels by the name of their column: taken out of a frame at fit, and left out of frames that come later."""

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.errors import DataError

ESTIMATORS = {
    "pooled numbers": (ct.CollaborativeRegressor(), "sales"),
    "pooled classes": (ct.CollaborativeClassifier(), "busy"),
    "over a graph": (ct.CollaborativeRegressor(method="cd", graph="knn", n_neighbors=2), "sales"),
    "boosted numbers": (ct.BoostedRegressor(base=6, graph="knn", n_neighbors=2, tol=1.0), "sales"),
    "boosted classes": (ct.BoostedClassifier(base=6, graph="knn", n_neighbors=2, tol=1.0), "busy"),
    "related numbers": (ct.RelationshipRegressor(), "sales"),
    "related classes": (ct.RelationshipClassifier(), "busy"),
}


def visits(target):
    rng = np.random.default_rng(0)
    store = np.repeat(["a", "b", "c", "d"], 20)
    frame = pd.DataFrame({"price": rng.normal(size=80), "store": store, "rain": rng.normal(size=80)})
    frame["sales"] = frame["price"] * np.repeat([1.0, 2.0, 3.0, -1.0], 20) + 0.1 * rng.normal(size=80)
    frame["busy"] = np.where(frame["sales"] > 0, "yes", "no")
    return frame[["price", target, "store", "rain"]]


@pytest.fixture(params=["pandas", "polars"])
def library(request):
    if request.param == "pandas":
        return lambda frame: frame
    return pytest.importorskip("polars").from_pandas


@pytest.mark.compiled
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_named_column_is_taken_out_and_ignored_afterwards(name, library, tmp_path):
    estimator, target = ESTIMATORS[name]
    plain = visits(target)
    frame, features = library(plain), library(plain.drop(columns=target))
    given = type(estimator)(**estimator.get_params()).fit(features, library(plain)[target], agents="store")
    named = type(estimator)(**estimator.get_params()).fit(frame, target, agents="store")
    np.testing.assert_array_equal(named.coef_, given.coef_)
    assert named.feature_names_in_.tolist() == ["price", "rain"]

    expected = given.predict(features)
    for model in (named, ct.load(ct.save(named, tmp_path / "model"))):
        np.testing.assert_array_equal(model.predict(frame), expected)
        np.testing.assert_array_equal(model.predict(features), expected)
        np.testing.assert_array_equal(
            model.predict(library(plain.drop(columns="store")), agents=plain["store"].tolist()), expected
        )
        score = given.score(features, plain[target])
        assert model.score(frame, target) == model.score(frame, plain[target]) == score
    assert given.score(frame, target) == score  # the name is enough, also where the fit had none
    with pytest.raises(DataError, match=target):
        given.predict(frame)


@pytest.mark.parametrize("target", ["sales", "busy"])
def test_what_else_reads_rows_knows_the_name(target, library):
    plain = visits(target)
    frame = library(plain)
    kind = ct.CollaborativeRegressor if target == "sales" else ct.CollaborativeClassifier
    named = kind().fit(frame, target, agents="store")
    given = kind().fit(plain.drop(columns=target), plain[target], agents="store")
    method = "predict_interval" if target == "sales" else "predict_proba"
    np.testing.assert_array_equal(getattr(named, method)(frame), getattr(given, method)(plain.drop(columns=target)))
    more = plain.head(7).assign(store="new")
    named.partial_fit(library(more), target)
    given.partial_fit(more.drop(columns=target), more[target])
    np.testing.assert_array_equal(named.coef_, given.coef_)
    again = kind().fit(frame, target, agents="store").partial_fit(library(more), more[target].to_numpy())
    np.testing.assert_array_equal(again.coef_, given.coef_)
    report = named.report(X=frame, y=target, folds=2)
    assert report.to_dict()["summary"]["gains"]


@pytest.mark.compiled
def test_another_fit_forgets_the_name():
    plain = visits("sales")
    model = ct.CollaborativeRegressor().fit(plain, "sales", agents="store")
    model.fit(plain.drop(columns="sales"), plain["sales"], agents="store")
    with pytest.raises(DataError, match="unseen at fit time"):
        model.predict(plain)
    related = ct.RelationshipRegressor().fit(plain, "sales", agents="store")
    related.fit(plain.drop(columns="sales"), plain["sales"], agents="store")
    with pytest.raises(DataError, match="unseen at fit time"):
        related.predict(plain)


@pytest.mark.compiled
def test_a_refused_fit_keeps_the_name():
    plain = visits("sales")
    for kind in (ct.CollaborativeRegressor, ct.RelationshipRegressor):
        model = kind().fit(plain, "sales", agents="store")
        with pytest.raises(DataError):
            model.fit(plain.drop(columns="sales"), plain["sales"].head(3), agents="store")
        assert model.predict(plain).shape == (80,)


@pytest.mark.parametrize("kind", [ct.CollaborativeRegressor, ct.RelationshipRegressor, ct.BoostedRegressor])
def test_names_that_cannot_be(kind):
    plain = visits("sales")
    with pytest.raises(DataError, match="no column 'sale'; did you mean 'sales'"):
        kind().fit(plain, "sale", agents="store")
    with pytest.raises(DataError, match=r"y='sales' is the name of a column, which needs a DataFrame.*X is ndarray"):
        kind().fit(plain[["price"]].to_numpy(), "sales", agents=plain["store"])


def test_tuning_takes_the_name():
    plain = visits("busy")
    model, grid = ct.CollaborativeClassifier(method="cd", graph="knn", n_neighbors=2), {"coupling": [0.1, 1.0]}
    named = ct.tune(model, plain, "busy", "store", grid)
    given = ct.tune(model, plain.drop(columns="busy"), plain["busy"], "store", grid)
    pd.testing.assert_frame_equal(named.table, given.table)
    assert named.best_estimator_.predict(plain).shape == (80,)


@pytest.mark.compiled
@pytest.mark.parametrize("kind", [ct.CollaborativeRegressor, ct.RelationshipRegressor])
def test_files_do_where_a_fit_has_taken_files(kind, tmp_path):
    plain = visits("sales")
    for k in range(2):
        plain.iloc[k::2].to_csv(tmp_path / f"{k}.csv", index=False)
    model = kind().fit(tmp_path, "sales", agents="store")
    score = model.score(plain, "sales")
    assert model.score(tmp_path, "sales") == pytest.approx(score)
    assert model.report(X=tmp_path, y="sales", folds=2).to_dict()["summary"]["gains"]
    with pytest.raises(DataError, match="X is a source of rows, but rows in memory are needed here: read them first"):
        model.predict(tmp_path)
    assert model.predict(pd.read_csv(tmp_path / "0.csv")).shape == (40,)


def test_more_rows_from_files(tmp_path):
    plain = visits("sales")
    model = ct.CollaborativeRegressor().fit(plain, "sales", agents="store")
    other = ct.CollaborativeRegressor().fit(plain, "sales", agents="store")
    more = plain.head(9).assign(store="new")
    more.to_csv(tmp_path / "more.csv", index=False)
    model.partial_fit(tmp_path, "sales")
    other.partial_fit(more, "sales")
    assert model.agents_ == other.agents_
    np.testing.assert_allclose(model.coef_, other.coef_)
    rows = {"east": more.drop(columns="store")}
    assert model.partial_fit(rows, "sales").agents_[-1] == "east"
