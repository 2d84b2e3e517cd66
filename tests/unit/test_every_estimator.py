"""What all estimators promise alike: scikit-learn's contract, rows of every kind, strangers, order, seeds, refusals."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import coterie as ct
from coterie.errors import DataError, ParameterError

N, SIZES = 6, np.array([12, 9, 15, 7, 11, 10])
NAMES = np.array(["ann", "bob", "cyd", "dan", "eve", "fay"])
GRAPH = ct.graphs.ring(N)

ESTIMATORS = {
    "pooling": (ct.CollaborativeRegressor, {"design": "linear"}),
    "pooling of classes": (ct.CollaborativeClassifier, {"design": "linear"}),
    "over a graph": (ct.CollaborativeRegressor, {"method": "cd", "graph": GRAPH, "tol": 1e-13}),
    "classes over a graph": (ct.CollaborativeClassifier, {"method": "cd", "graph": GRAPH, "tol": 1e-13}),
    "boosted": (ct.BoostedRegressor, {"base": 16, "graph": GRAPH}),
    "boosted classes": (ct.BoostedClassifier, {"base": 16, "graph": GRAPH}),
    "related": (ct.RelationshipRegressor, {"tol": 1e-9, "covariance": np.eye(N) / N}),
    "related classes": (ct.RelationshipClassifier, {"tol": 1e-9, "covariance": np.eye(N) / N}),
}
#: Those that take long in plain Python.
LONG = ("boosted", "boosted classes", "related", "related classes")
every = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.compiled] if name in LONG else []) for name in ESTIMATORS]
)


def rows(name, shuffled=True):
    """X, labels and agents; the rows of an agent need not stand together."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(N), SIZES)
    X = rng.normal(size=(len(owner), 3))
    theta = [1.0, -2.0, 0.5] + 0.3 * rng.normal(size=(N, 3))
    y = np.einsum("rk,rk->r", X, theta[owner]) + owner / 6 + 0.2 * rng.normal(size=len(owner))
    order = rng.permutation(len(owner)) if shuffled else np.arange(len(owner))
    y = np.where(y > 0, "yes", "no") if "classes" in name else y
    return X[order], y[order], NAMES[owner][order]


def estimator(name, **settings):
    kind, usual = ESTIMATORS[name]
    return kind(**usual | settings)


def answers(model, X, agents):
    """Numbers, or what classes are decided by."""
    return getattr(model, "decision_function", model.predict)(X, agents=agents)


# -- scikit-learn -----------------------------------------------------------------------------------------------------

SILENT = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::sklearn.exceptions.SkipTestWarning",
    "ignore:Estimator .* does not inherit",
)
with warnings.catch_warnings():
    # scikit-learn warns of estimators that do not inherit from its own: importing it takes too long.
    warnings.filterwarnings("ignore", message="Estimator .* does not inherit")
    front_door = parametrize_with_checks([ct.CollaborativeClassifier(), ct.CollaborativeRegressor()])


@SILENT
@front_door
def test_scikit_learns_contract_at_the_front_door(estimator, check):
    """All of them apply but check_array_api_input, which scikit-learn skips: coterie computes with NumPy only."""
    check(estimator)


@pytest.mark.compiled
@SILENT
@parametrize_with_checks(
    [
        ct.BoostedClassifier(base=8),
        # Four stumps for each of the ten features of check_regressors_train, which asks for an R^2 of 0.5.
        ct.BoostedRegressor(base=40),
        ct.RelationshipClassifier(max_iter=60),
        ct.RelationshipRegressor(max_iter=60),
    ]
)
def test_scikit_learns_contract(estimator, check):
    check(estimator)


@every
def test_pipelines_and_searches_pass_agents_on(name):
    X, y, agents = rows(name)
    with sklearn.config_context(enable_metadata_routing=True):
        model = estimator(name).set_fit_request(agents=True).set_score_request(agents=True)
        model = model.set_predict_request(agents=True)
        pipeline = make_pipeline(StandardScaler(), model).fit(X, y, agents=agents)
        direct = estimator(name).fit(X, y, agents=agents)
        assert pipeline.score(X, y, agents=agents) == pytest.approx(direct.score(X, y, agents=agents), abs=0.03)
        if "pooling" in name or "graph" in name:
            search = GridSearchCV(model.set_params(members=list(NAMES)), {"coupling": [0.1, 10.0]}, cv=2)
            assert search.fit(X, y, agents=agents).best_params_["coupling"] in (0.1, 10.0)
        with pytest.raises((TypeError, AttributeError), match="colour"):
            model.set_fit_request(colour=True)
    assert not hasattr(clone(direct), "agents_")
    assert repr(clone(direct)) == repr(direct)


# -- rows -------------------------------------------------------------------------------------------------------------


@every
def test_rows_of_every_kind_give_the_same_models(name):
    """Frames name their columns and agents; sparse rows are not centred, where that matters they are only near."""
    polars = pytest.importorskip("polars")
    X, y, agents = rows(name)
    frame = pd.DataFrame(X, columns=list("abc")).assign(who=agents)
    reference = estimator(name).fit(X, y, agents=agents)
    for given in (frame, polars.from_pandas(frame)):
        model = estimator(name).fit(given, y, agents="who")
        np.testing.assert_allclose(model.coef_, reference.coef_, atol=1e-9)
        assert np.array_equal(model.predict(given), reference.predict(X, agents=agents))  # the column is known by now
        assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    thin = estimator(name).fit(sparse.csr_array(X), y, agents=agents)
    assert thin.score(sparse.csr_array(X), y, agents=agents) == pytest.approx(reference.score(X, y, agents), abs=0.03)


@every
def test_neither_order_nor_names_nor_units_matter(name):
    X, y, agents = rows(name)
    model = estimator(name).fit(X, y, agents=agents)
    order = np.random.default_rng(3).permutation(len(X))
    wild = X * [1.0, 1e3, 1e-2] + [0.0, 5.0, 1.0]
    renamed = np.char.add("x", agents)
    for given, labels, who, again in ((X[order], y[order], agents[order], order), (wild, y, renamed, slice(None))):
        found = answers(estimator(name).fit(given, labels, agents=who), given, who)
        np.testing.assert_allclose(found, answers(model, X, agents)[again], atol=2e-5)
    thin = [sparse.csr_array(Z) for Z in (X, X * [1.0, 1e3, 1e-2])]  # scaled, and not shifted
    found = [answers(estimator(name).fit(Z, y, agents=agents), Z, agents) for Z in thin]
    np.testing.assert_allclose(*found, atol=2e-5)


@every
def test_strangers_are_predicted_by_a_common_model_and_said_if_they_are_all(name):
    X, y, agents = rows(name)
    model = estimator(name).fit(X, y, agents=agents)
    if "pooling" not in name:  # the mean of all models, weighted by rows
        inputs = model.base_.transform(X) if "boosted" in name else X
        share = SIZES / SIZES.sum()
        expected = inputs @ (share @ model.coef_) + share @ model.intercept_
        np.testing.assert_allclose(answers(model, X[:2], ["ann", "nobody"])[1], expected[1])
    with pytest.warns(UserWarning, match=r"none of these agents was in the training rows.*right type") as caught:
        model.predict(X[:2], agents=[1, 2])
    if "classes" not in name:
        assert caught[0].filename == __file__


@every
def test_the_same_seed_gives_the_same_models_and_progress_is_told(name):
    X, y, agents = rows(name)
    told = []
    one = estimator(name).fit(X, y, agents=agents, progress=lambda *done: told.append(done))
    assert told
    assert all(0 <= done[0] <= (done[1] if len(done) > 1 and "related" not in name else np.inf) for done in told)
    again, other = (estimator(name, random_state=seed).fit(X, y, agents=agents) for seed in (0, 1))
    assert np.array_equal(one.coef_, again.coef_)
    assert np.array_equal(one.coef_, other.coef_) == ("pooling" in name)


# -- refusals ---------------------------------------------------------------------------------------------------------


@every
def test_bad_rows_are_refused_by_place_and_the_model_stays(name):
    X, y, agents = rows(name)
    classes = "classes" in name
    model = estimator(name)
    with pytest.raises(NotFittedError, match="not fitted"):
        model.predict(X, agents=agents)
    model.fit(X, y, agents=agents)
    before, state = answers(model, X, agents), {key for key in vars(model) if key.endswith("_")}
    gone = np.where(np.arange(len(y)) == 3, None if classes else np.nan, y)
    refused = [
        (X, gone, agents, rf"row 3 \(agent '{agents[3]}'\): the label is missing"),
        (X, y[:-1], agents, "labels for|inconsistent"),
        (X, y, agents[:-1], "ids for"),
        (np.empty((0, 3)), y[:0], agents[:0], "0 sample"),
        *([(X, np.full(len(y), "yes"), agents, "one class only, 'yes'")] if classes else []),
    ]
    broken = X.copy()
    broken[5, 1] = np.nan
    if name in LONG:  # which cannot fill gaps
        refused.append((broken, y, agents, rf"row 5 \(agent '{agents[5]}'\): column 1 is missing"))
        with pytest.raises(DataError, match=rf"row 5 \(agent '{agents[5]}'\): column 1 is missing"):
            model.predict(broken, agents=agents)
    for given, labels, who, message in refused:
        with pytest.raises(DataError, match=message):
            model.fit(given, labels, agents=who)
    model.set_params(**{"design": "curvy"} if "pooling" in name else {"random_state": -1})
    with pytest.raises(ParameterError):
        model.fit(X[:, :2], y, agents=agents)
    assert {key for key in vars(model) if key.endswith("_")} == state
    assert np.array_equal(answers(model, X, agents), before)
    with pytest.raises(DataError, match=f"X has 2 features, but {type(model).__name__} is expecting 3"):
        model.predict(X[:, :2], agents=agents)
    with pytest.raises(DataError, match=f"fitted for {N} agents: pass agents="):
        model.predict(X)
