"""Cross-validation inside each agent's own rows."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.metadata_routing import MetadataRequest

import coterie as ct
from coterie.errors import DataError, ParameterError
from coterie.estimators.tuning import GRID, WithinAgents, folds, tune

# ------------------------------------------------------------------------------------------------ estimators


class Shrunk(RegressorMixin, BaseEstimator):
    """Every agent predicts the mean of its own rows, times ``keep``."""

    def __init__(self, keep=1.0, note="none"):
        self.keep, self.note = keep, note

    def fit(self, X, y, agents):
        if self.keep < 0:
            raise ParameterError(f"keep={self.keep} must not be negative")
        if self.note == "odd":
            warnings.warn("something else", UserWarning, stacklevel=2)
        self.means_ = {agent: self.keep * np.mean(y[agents == agent]) for agent in set(agents.tolist())}
        return self

    def predict(self, X, agents):
        return np.array([self.means_[agent] for agent in agents.tolist()])


class Spy(Shrunk):
    """Remembers the first feature of the rows it was shown, as the number of the row."""

    log: list = []  # noqa: RUF012 - clones share it on purpose

    def fit(self, X, y, agents):
        X = X.toarray() if sparse.issparse(X) else np.asarray(X)
        self.seen_ = X[:, 0].astype(int).tolist()
        self.log.append(("fit", self.seen_, y.tolist(), agents.tolist()))
        return super().fit(X, y, agents)

    def predict(self, X, agents):
        X = X.toarray() if sparse.issparse(X) else np.asarray(X)
        self.log.append(("predict", X[:, 0].astype(int).tolist(), None, agents.tolist()))
        return super().predict(X, agents)


class Sure(ClassifierMixin, BaseEstimator):
    """Every agent predicts the class that most of its rows have, and is so sure of it."""

    def __init__(self, sure=0.9, rule="most"):
        self.sure, self.rule = sure, rule

    def fit(self, X, y, agents):
        self.classes_ = np.unique(y)
        pick = np.argmax if self.rule == "most" else np.argmin
        self.pick_ = {
            agent: pick([np.sum(y[agents == agent] == name) for name in self.classes_])
            for agent in set(agents.tolist())
        }
        return self

    def predict_proba(self, X, agents):
        rest = (1.0 - self.sure) / (len(self.classes_) - 1)
        shares = np.full((len(agents), len(self.classes_)), rest)
        shares[np.arange(len(agents)), [self.pick_[agent] for agent in agents.tolist()]] = self.sure
        return shares

    def predict(self, X, agents):
        return self.classes_[[self.pick_[agent] for agent in agents.tolist()]]


# ----------------------------------------------------------------------------------------------------- folds


def test_folds_are_those_that_results_were_measured_with():
    """Of reports and of papers: the first rows of each agent's permutation, dealt out from a fold of its own."""
    ids = np.repeat(list("abc"), [5, 3, 1])
    assert folds(ids).tolist() == [1, 2, 2, 0, 1, 1, 2, 0, -1]
    assert folds(ids, 2, 7, y=[0, 1, 0, 1, 1, 0, 0, 1, 1]).tolist() == [1, 1, 0, 0, 1, 0, 1, 1, -1]


def test_small_agents_do_not_share_the_first_fold():
    fold = folds(np.repeat(np.arange(300), 2), 3).reshape(300, 2)
    assert np.all(fold[:, 0] != fold[:, 1])
    assert np.bincount(fold.ravel()).min() > 150  # 200 each, on average


def test_folds_refuses():
    with pytest.raises(ParameterError, match="count = 1: expected an integer >= 2"):
        folds(["a", "a"], 1)
    with pytest.raises(DataError, match="no rows to split"):
        folds([])
    with pytest.raises(DataError, match=r"y has shape \(1,\) for 2 rows"):
        folds(["a", "a"], y=[1])


# ---------------------------------------------------------------------------------------------- WithinAgents


@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=6).filter(lambda sizes: max(sizes) >= 4),
    n_splits=st.integers(2, 4),
    shuffle=st.booleans(),
    seed=st.integers(0, 5),
    classes=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_splits_are_inside_agents(sizes, n_splits, shuffle, seed, classes):
    rng = np.random.default_rng(seed)
    ids = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    y = rng.integers(0, 2, len(ids)) if classes else rng.normal(size=len(ids))
    splitter = WithinAgents(n_splits, shuffle=shuffle, random_state=seed)
    splits = list(splitter.split(ids, y, ids))
    again = list(clone(splitter, safe=False).split(None, y, groups=ids.tolist()))
    assert len(splits) == splitter.get_n_splits() == n_splits
    times = np.zeros(len(ids), int)
    for (train, test), (same_train, same_test) in zip(splits, again, strict=True):
        assert np.array_equal(train, same_train)
        assert np.array_equal(test, same_test)
        assert sorted([*train, *test]) == list(range(len(ids)))  # disjoint, and nothing is left out
        assert set(ids[train]) == set(range(len(sizes)))  # nobody is a stranger
        times[test] += 1
    for agent, size in enumerate(sizes):
        assert (times[ids == agent] == (size > 1)).all()
        tested = [np.sum(ids[test] == agent) for _, test in splits]
        assert max(tested) - min(tested) <= 1


@given(seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_how_many_rows_an_agent_tests_does_not_depend_on_the_order_of_the_rows(seed):
    ids = np.repeat(list("abcd"), [2, 5, 9, 3])
    order = np.random.default_rng(seed).permutation(len(ids))
    for shuffle in (True, False):
        one, other = (
            [sorted(names[test].tolist()) for _, test in WithinAgents(3, shuffle=shuffle).split(names, groups=names)]
            for names in (ids, ids[order])
        )
        assert one == other


def test_without_shuffling_rows_are_dealt_out_in_turn():
    agents = ["ann", "ann", "ann", "bob", "bob", "cyd"]
    splits = WithinAgents(2, shuffle=False).split(agents, groups=agents)
    assert [test.tolist() for _, test in splits] == [[0, 2, 4], [1, 3]]


def test_classes_are_spread_and_numbers_are_not_looked_at():
    ids = np.repeat(["ann", "bob"], 8)
    y = np.tile([0, 0, 0, 0, 0, 0, 1, 1], 2)
    for _, test in WithinAgents(2).split(ids, y, ids):
        assert [y[test][ids[test] == name].sum() for name in ("ann", "bob")] == [1, 1]
    one, other = (list(WithinAgents(2).split(ids, each, ids)) for each in (y + 0.5, None))
    assert all(np.array_equal(*tests) for tests in zip([t for _, t in one], [t for _, t in other], strict=True))


def test_scikit_learns_functions_take_it():
    rng = np.random.default_rng(0)
    X, ids = rng.normal(size=(30, 2)), np.repeat(list("abc"), 10)
    y = X @ [1.0, 2.0] + 0.1 * rng.normal(size=30)
    scores = cross_val_score(LinearRegression(), X, y, groups=ids, cv=ct.WithinAgents(n_splits=4))
    assert len(scores) == 4
    assert scores.min() > 0.9
    search = GridSearchCV(LinearRegression(), {"fit_intercept": [True, False]}, cv=ct.WithinAgents()).fit(
        X, y, groups=ids
    )
    assert search.n_splits_ == 3


@pytest.mark.parametrize(
    ("settings", "agents", "error", "message"),
    [
        ({"n_splits": 1}, "aabb", ParameterError, "n_splits = 1: expected an integer >= 2"),
        ({"n_splits": 2.0}, "aabb", ParameterError, "n_splits = 2.0"),
        ({"random_state": None}, "aabb", ParameterError, "random_state = None"),
        ({}, "abcd", DataError, "no agent has two rows"),
        ({"n_splits": 5}, "aaa", DataError, "n_splits=5 leaves a fold without rows to test"),
        ({}, None, DataError, "groups is missing"),
    ],
)
def test_a_split_that_cannot_be_is_refused_when_it_is_asked_for(settings, agents, error, message):
    splitter = WithinAgents(**settings)
    with pytest.raises(error, match=message):
        list(splitter.split(None, groups=agents and list(agents)))


# ------------------------------------------------------------------------------------------------------ tune


def two_agents():
    """Constant labels: a mean of an agent's own rows is the label itself, whatever the fold."""
    ids = np.repeat(["ann", "bob"], [9, 3])
    return np.arange(12.0)[:, None], np.where(ids == "ann", 1.0, 5.0), ids


def test_scores_are_known_and_the_best_is_chosen():
    X, y, ids = two_agents()
    estimator = Shrunk(note="kept")
    result = tune(estimator, X, y, ids, {"keep": [0.5, 0.9, 1.2]})
    # In every fold three rows of ann and one of bob are tested; an error is |1 - keep| times the label.
    mean = (3 * 1.0 + 25.0) / 4
    np.testing.assert_allclose(result.table["score"], [-(0.5**2) * mean, -(0.1**2) * mean, -(0.2**2) * mean])
    np.testing.assert_allclose(result.table["std"], 0.0, atol=1e-12)
    assert result.table["keep"].tolist() == [0.5, 0.9, 1.2]
    assert result.best_params_ == {"keep": 0.9}
    assert result.best_score_ == pytest.approx(-0.07)
    assert (result.best_estimator_.keep, result.best_estimator_.note) == (0.9, "kept")
    assert result.best_estimator_.means_ == pytest.approx({"ann": 0.9, "bob": 4.5})  # of all rows
    assert (estimator.keep, hasattr(estimator, "means_")) == (1.0, False)
    assert "keep=0.9 is best of 3, score -0.07" in repr(result)
    left = tune(estimator, X, y, ids, {"keep": [0.5, 0.9]}, refit=False)
    assert (left.best_estimator_.keep, hasattr(left.best_estimator_, "means_")) == (0.9, False)


def test_the_score_of_numbers_is_the_squared_error_over_the_rows_of_a_fold():
    ids = np.repeat([0, 1, 2], [2, 5, 12])
    y = np.random.default_rng(0).normal(size=19)
    fold, scores = folds(ids, 3, seed=8), []
    for k in range(3):
        means = np.array([y[(fold != k) & (ids == agent)].mean() for agent in range(3)])
        scores.append(-np.mean((y - means[ids])[fold == k] ** 2))
    [row] = tune(Shrunk(), y[:, None], y, ids, {"keep": [1.0]}, random_state=8).table.to_dict("records")
    assert row["score"] == pytest.approx(np.mean(scores))
    assert row["std"] == pytest.approx(np.std(scores))


#: ann has one row in six of the rare class, bob four in twelve: two rows and six in each half.
CLASSES = np.array(["no"] * 5 + ["yes"] + ["yes"] * 8 + ["no"] * 4), np.repeat(["ann", "bob"], [6, 12])


def test_classifiers_are_chosen_by_log_loss_where_accuracy_would_choose_otherwise():
    """Those who are too sure are as often right as those who know how sure to be, and come first in the grid."""
    (y, ids), X = CLASSES, np.zeros((18, 1))
    grid = {"sure": [1.0 - 1e-9, 0.7]}
    by_loss, by_hits = (tune(Sure(), X, y, ids, grid, n_splits=2, scoring=name) for name in (None, "accuracy"))
    assert by_hits.best_params_ == {"sure": 1.0 - 1e-9}
    assert by_hits.table["score"].tolist() == pytest.approx([13 / 18, 13 / 18])
    assert by_loss.best_params_ == {"sure": 0.7}
    assert by_loss.best_score_ == pytest.approx((13 * np.log(0.7) + 5 * np.log(0.3)) / 18)


def test_other_scores_of_scikit_learn_and_of_ones_own():
    (y, ids), X = CLASSES, np.zeros((18, 1))
    grid = {"rule": ["least", "most"]}
    for scoring in (None, "accuracy", "balanced_accuracy", "neg_log_loss"):
        assert tune(Sure(), X, y, ids, grid, n_splits=2, scoring=scoring).best_params_ == {"rule": "most"}

    def mistakes(model, X, y, agents):
        assert len(X) == len(y) == len(agents)
        return np.mean(model.predict(X, agents=agents) != y)

    assert tune(Sure(), X, y, ids, grid, n_splits=2, scoring=mistakes).best_params_ == {"rule": "least"}
    numbers = tune(Shrunk(), *two_agents(), {"keep": [0.5, 0.9]}, scoring="neg_mean_absolute_error")
    assert numbers.best_score_ == pytest.approx(-0.1 * 2.0)


def test_a_class_that_a_fold_did_not_train_on_counts_as_impossible():
    y, ids = np.array(["a", "b", "a", "b", "a", "c"]), np.repeat(["ann", "bob"], 3)
    result = tune(Sure(), np.zeros((6, 1)), y, ids, {"sure": [0.6, 0.9]}, n_splits=2)
    assert result.table["score"].between(np.log(1e-15), 0.0).all()
    assert result.best_score_ < np.log(1e-15) / 10


@pytest.mark.slow
def test_the_numbers_are_those_of_scikit_learns_search():
    random = np.random.default_rng(0)
    X, ids = random.normal(size=(50, 2)), random.permutation(np.repeat(list("abcde"), 10))
    y, grid = random.normal(size=50), {"keep": [0.2, 0.5, 1.0], "note": ["none", "kept"]}
    found = tune(Shrunk(), X, y, ids, grid, scoring="neg_mean_absolute_error", random_state=3)
    for n_jobs in (1, 2):
        again = tune(Shrunk(), X, y, ids, grid, scoring="neg_mean_absolute_error", random_state=3, n_jobs=n_jobs)
        pd.testing.assert_frame_equal(again.table, found.table, check_exact=True)

    def score(model, X, y, agents):
        return -np.mean(abs(model.predict(X, agents) - y))

    with config_context(enable_metadata_routing=True):
        search = GridSearchCV(
            Shrunk().set_fit_request(agents=True),
            grid,
            scoring=Routed(score),
            cv=list(WithinAgents(3, random_state=3).split(X, groups=ids)),
            refit=False,
        ).fit(X, y, agents=ids)
    assert found.best_params_ == search.best_params_
    assert list(found.best_params_) == list(search.best_params_)
    assert found.best_score_ == search.best_score_
    assert found.table[["keep", "note"]].to_dict("records") == search.cv_results_["params"]
    assert found.table["score"].tolist() == search.cv_results_["mean_test_score"].tolist()
    assert found.table["std"].tolist() == search.cv_results_["std_test_score"].tolist()


class Routed:
    """A score for which scikit-learn passes the agents on."""

    def __init__(self, score):
        self.score = score

    def __call__(self, model, X, y, agents):
        return self.score(model, X, y, agents)

    def get_metadata_routing(self):
        request = MetadataRequest(owner=self)
        request.score.add_request(param="agents", alias=True)
        return request


def test_a_score_that_is_no_number_is_the_worst():
    def odd(model, X, y, agents):
        return {0.5: np.nan, 0.6: -np.inf, 0.7: -3.0}[model.keep]

    for values, best in (([0.5, 0.6, 0.7], 0.7), ([0.5, 0.7], 0.7), ([0.5], 0.5)):
        with pytest.warns(UserWarning, match=r"some points is not finite(?s:.*)0.5"):
            assert tune(Shrunk(), *two_agents(), {"keep": values}, scoring=odd).best_params_ == {"keep": best}


def test_the_first_of_equals_wins():
    X, y, ids = two_agents()
    assert tune(Shrunk(), X, y, ids, {"keep": [1.25, 0.75]}).best_params_ == {"keep": 1.25}
    assert tune(Shrunk(), X, y, ids, {"keep": [0.75, 1.25]}).best_params_ == {"keep": 0.75}


def form(X, kind):
    columns = ["row", "other"]
    return {
        "array": lambda: X,
        "list": lambda: X.tolist(),
        "sparse": lambda: sparse.coo_array(X),
        "frame": lambda: pd.DataFrame(X, columns=columns, index=np.arange(len(X))[::-1]),
        "polars": lambda: pytest.importorskip("polars").DataFrame(X, schema=columns),
    }[kind]()


@pytest.mark.parametrize("kind", ["array", "list", "sparse", "frame", "polars"])
def test_fits_see_neither_the_rows_nor_the_labels_of_their_fold(kind):
    Spy.log.clear()
    random = np.random.default_rng(0)
    ids = random.permutation(np.repeat(["ann", "bob", "cyd"], [1, 4, 8]))
    X, y = np.stack([np.arange(13.0), np.ones(13)], axis=1), 100.25 + np.arange(13.0)
    tune(Spy(), form(X, kind), y, ids, {"keep": [0.5, 1.0]}, refit=False)
    assert [entry[0] for entry in Spy.log] == ["fit", "predict"] * 6
    for (_, seen, labels, owners), (_, asked, _, askers) in zip(Spy.log[::2], Spy.log[1::2], strict=True):
        assert sorted(seen + asked) == list(range(13))
        assert labels == y[seen].tolist()
        assert (owners, askers) == (ids[seen].tolist(), ids[asked].tolist())
    tested = np.concatenate([entry[1] for entry in Spy.log[1:6:2]])
    assert sorted(tested.tolist()) == np.flatnonzero(ids != "ann").tolist()
    for point in (Spy.log[:6], Spy.log[6:]):  # all points have the same folds
        assert [entry[1] for entry in point] == [entry[1] for entry in Spy.log[:6]]


def test_agents_may_be_a_column():
    X, y, ids = two_agents()
    frame = pd.DataFrame({"row": X[:, 0], "who": ids})
    model = ct.CollaborativeRegressor("local")
    by_name, given = (
        tune(model, *each, {"ridge": [0.1, 1.0]}) for each in ((frame, y, "who"), (frame[["row"]], y, ids))
    )
    pd.testing.assert_frame_equal(by_name.table, given.table)
    predicted = by_name.best_estimator_.predict(frame)  # it knows the column
    np.testing.assert_array_equal(predicted, given.best_estimator_.predict(frame[["row"]], agents=ids))
    with pytest.raises(DataError, match="no column 'whom'; did you mean 'who'"):
        tune(model, frame, y, "whom", {"ridge": [0.1]})


def test_warnings_are_passed_on():
    with pytest.warns(UserWarning, match="something else"):
        tune(Shrunk(), *two_agents(), {"note": ["odd"]})


def test_progress_counts_fits():
    calls = []
    tune(Shrunk(), *two_agents(), {"keep": [1.0, 2.0]}, progress=lambda *call: calls.append(call))
    assert calls == [(k, 6) for k in range(1, 7)]


def test_a_point_that_is_refused_says_why():
    with pytest.raises(ParameterError, match=r"keep=-1.0 must not be negative"):
        tune(Shrunk(), *two_agents(), {"keep": [0.9, -1.0]})


def test_an_interrupt_passes_through():
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(Shrunk(), *two_agents(), {"keep": [1.0]}, progress=interrupt)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({}, "at least one; Shrunk has keep, note"),
        ([0.1], "must map names of parameters"),
        ({"keep": []}, "'keep'.* non-empty"),
        ({"keep": 0.5}, "'keep'.* got 0.5"),
        ({"note": "slow"}, "'note'.* got 'slow'"),
        ({"mu": [1.0]}, "grid={'mu': .*Shrunk has keep, note"),
        (None, "at least one; Shrunk has keep, note"),
    ],
)
def test_a_bad_grid_is_refused(grid, message):
    with pytest.raises(ParameterError, match=message):
        tune(Shrunk(), *two_agents(), grid)


def test_bad_input_is_refused():
    X, y, ids = two_agents()
    grid = {"keep": [1.0]}
    with pytest.raises(ParameterError, match="n_splits = 1: expected an integer >= 2"):
        tune(Shrunk(), X, y, ids, grid, n_splits=1)
    with pytest.raises(DataError, match="no agent has two rows"):
        tune(Shrunk(), X, y, np.arange(12), grid)
    with pytest.raises(DataError, match="agents has 3 ids for 12 rows"):
        tune(Shrunk(), X, y, ids[:3], grid)
    with pytest.raises(DataError, match=r"y has shape \(3,\) for 12 rows"):
        tune(Shrunk(), X, y[:3], ids, grid)


# --------------------------------------------------------------------------------------------- the real thing


@pytest.fixture
def neighbours():
    """Four agents that want the same model, with too few rows to find it alone."""
    random = np.random.default_rng(3)
    X, ids = random.normal(size=(24, 4)), np.tile(["ann", "bob", "cyd", "dan"], 6)
    return X, X @ [1.0, -1.0, 2.0, 0.5] + 0.5 * random.normal(size=24), ids


def test_the_default_grid_is_of_what_the_estimator_has(neighbours):
    X, y, ids = neighbours
    result = tune(ct.CollaborativeClassifier("cd", graph=ct.graphs.complete(4)), X, y > 0, ids)
    assert sorted(set(result.table["coupling"])) == [0.1, 1, 10]
    assert set(result.best_params_) == {"coupling"}  # there is no graph to learn
    learns = tune(ct.CollaborativeClassifier("cd"), X, y > 0, ids, {"lam": [0.1, 1.0]})
    assert set(learns.best_params_) == {"lam"}
    assert set(GRID) < set(ct.BoostedClassifier().get_params())
    with pytest.raises(ParameterError, match="learns its strengths by itself"):
        tune(ct.CollaborativeClassifier(), X, y > 0, ids)


@pytest.mark.plain
def test_a_loss_without_probabilities_is_chosen_by_accuracy():
    random = np.random.default_rng(3)
    X, ids = random.normal(size=(40, 2)), np.repeat(np.arange(4), 10)
    model = ct.CollaborativeClassifier("local", loss="smooth-hinge")
    grid = {"ridge": [0.1, 1.0]}
    found, by_hits = (tune(model, X, X[:, 0] > 0, ids, grid, scoring=name) for name in (None, "accuracy"))
    assert found.best_score_ == by_hits.best_score_


def test_whole_numbers_of_a_regression_are_not_classes():
    """Rows are dealt alike, whatever the labels: those shifted by a half are no whole numbers."""
    random = np.random.default_rng(4)
    X, ids = random.normal(size=(40, 2)), np.repeat(np.arange(4), 10)
    y = np.round(3.0 * X[:, 0])
    scores = [tune(ct.CollaborativeRegressor("local"), X, y + shift, ids, {"ridge": [0.1]}) for shift in (0.0, 0.5)]
    assert scores[0].best_score_ == pytest.approx(scores[1].best_score_, rel=1e-9)
