"""Cross-validation inside each agent's own rows."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning

import coterie as ct
from coterie.errors import DataError, ParameterError
from coterie.estimators.tuning import folds, tune

# ------------------------------------------------------------------------------------------------ estimators


class Shrunk(RegressorMixin, BaseEstimator):
    """Every agent predicts the mean of its own rows, times ``keep``."""

    def __init__(self, keep=1.0, members=None, note="none"):
        self.keep, self.members, self.note = keep, members, note

    def fit(self, X, y, agents):
        if self.keep < 0:
            raise ParameterError(f"keep={self.keep} must not be negative")
        if self.note == "slow":
            warnings.warn("not there yet", ConvergenceWarning, stacklevel=2)
        if self.note == "odd":
            warnings.warn("something else", UserWarning, stacklevel=2)
        self.means_ = {agent: self.keep * np.mean(y[agents == agent]) for agent in set(agents.tolist())}
        return self

    def predict(self, X, agents):
        found = np.array([self.means_[agent] for agent in agents.tolist()])
        return found * np.nan if self.note == "nan" else found[:, None] if self.note == "column" else found


class Spy(Shrunk):
    """Remembers the first feature of the rows it was shown, as the number of the row."""

    log: list = []  # noqa: RUF012 - clones share it on purpose

    def fit(self, X, y, agents):
        X = X.toarray() if sparse.issparse(X) else np.asarray(X)
        self.seen_ = X[:, 0].astype(int).tolist()
        self.log.append(("fit", self.seen_, y.tolist(), agents.tolist(), self.members))
        return super().fit(X, y, agents)

    def predict(self, X, agents):
        X = X.toarray() if sparse.issparse(X) else np.asarray(X)
        self.log.append(("predict", X[:, 0].astype(int).tolist(), None, agents.tolist(), self.members))
        return super().predict(X, agents)


class Most(ClassifierMixin, BaseEstimator):
    """Every agent predicts its most frequent class, or the least frequent one."""

    def __init__(self, rule="most"):
        self.rule = rule

    def fit(self, X, y, agents):
        self.classes_ = np.unique(y)
        pick = np.argmax if self.rule == "most" else np.argmin
        self.pick_ = {
            agent: self.classes_[pick([np.sum(y[agents == agent] == name) for name in self.classes_])]
            for agent in set(agents.tolist())
        }
        return self

    def predict(self, X, agents):
        return np.array([self.pick_[agent] for agent in agents.tolist()])


# ----------------------------------------------------------------------------------------------------- folds


@pytest.mark.parametrize("count", [2, 3, 5])
def test_each_agents_rows_are_dealt_out_evenly(count):
    sizes = np.array([1, 2, 3, 4, 7, 30])
    ids = np.random.default_rng(0).permutation(np.repeat(list("abcdef"), sizes))
    fold = folds(ids, count)
    for agent, size in zip("abcdef", sizes, strict=True):
        own = fold[ids == agent]
        if size == 1:
            assert own.tolist() == [-1]
            continue
        tested = np.bincount(own, minlength=count)
        assert len(tested) == count
        assert tested.sum() == size  # every row is tested, once
        assert tested.max() - tested.min() <= 1
        assert tested.max() < size  # something is left to train on


def test_folds_follow_their_seed():
    ids = np.repeat(np.arange(20), 7)
    np.testing.assert_array_equal(folds(ids, seed=4), folds(ids, seed=4))
    assert (folds(ids, seed=4) != folds(ids, seed=5)).any()


def test_small_agents_do_not_share_the_first_fold():
    fold = folds(np.repeat(np.arange(300), 2), 3).reshape(300, 2)
    assert np.all(fold[:, 0] != fold[:, 1])
    assert np.bincount(fold.ravel()).min() > 150  # 200 each, on average


@pytest.mark.parametrize("names", [["no", "yes"], [0, 1], [3.5, None]])
def test_classes_are_spread_within_each_agent(names):
    random = np.random.default_rng(0)
    ids, codes = np.repeat(["ann", "bob"], 30), np.tile(np.arange(30) < 6, 2).astype(int)
    shuffled = random.permutation(60)
    ids, codes = ids[shuffled], codes[shuffled]
    fold = folds(ids, 3, y=np.array(names, dtype=object)[codes])
    for agent in ("ann", "bob"):
        for code, each in ((1, 2), (0, 8)):
            assert np.bincount(fold[(ids == agent) & (codes == code)]).tolist() == [each] * 3


def test_folds_refuses():
    with pytest.raises(ParameterError, match="count=1 must be an integer, at least 2"):
        folds(["a", "a"], 1)
    with pytest.raises(DataError, match="no rows to split"):
        folds([])
    with pytest.raises(DataError, match=r"y has shape \(1,\) for 2 rows"):
        folds(["a", "a"], y=[1])


# ------------------------------------------------------------------------------------------------------ tune


def two_agents():
    """Constant labels: a mean of an agent's own rows is the label itself, whatever the fold."""
    ids = np.repeat(["ann", "bob"], [9, 3])
    return np.arange(12.0)[:, None], np.where(ids == "ann", 1.0, 5.0), ids


def test_scores_are_known_and_the_best_is_chosen():
    X, y, ids = two_agents()
    estimator = Shrunk(note="kept")
    result = tune(estimator, X, y, ids, {"keep": [0.5, 0.9, 1.2]})
    # An agent's error is |1 - keep| times its label; agents count alike, however many rows they have.
    np.testing.assert_allclose(result.table["score"], [-0.5 * 3.0, -0.1 * 3.0, -0.2 * 3.0])
    np.testing.assert_allclose(result.table["std"], 0.0, atol=1e-12)
    assert result.table["keep"].tolist() == [0.5, 0.9, 1.2]
    assert result.table["failed"].tolist() == ["", "", ""]
    assert result.parameters == {"keep": 0.9}
    assert result.score == pytest.approx(-0.3)
    assert (result.estimator.keep, result.estimator.note, result.estimator.members) == (0.9, "kept", None)
    assert not hasattr(result.estimator, "means_")
    assert (estimator.keep, hasattr(estimator, "means_")) == (1.0, False)
    assert "keep=0.9 is best of 3, score -0.3" in repr(result)


def test_the_score_of_a_fold_is_the_mean_over_agents_of_root_mean_squares():
    random = np.random.default_rng(0)
    ids = np.repeat([0, 1, 2], [2, 5, 12])
    y = random.normal(size=19)
    fold, scores = folds(ids, 3, seed=8), []
    for k in range(3):
        test, errors = fold == k, []
        for agent in np.unique(ids[test]):
            mean = y[~test & (ids == agent)].mean()
            errors.append(np.sqrt(np.mean((y[test & (ids == agent)] - mean) ** 2)))
        scores.append(-np.mean(errors))
    [row] = tune(Shrunk(), y[:, None], y, ids, {"keep": [1.0]}, seed=8).table.to_dict("records")
    assert row["score"] == pytest.approx(np.mean(scores))
    assert row["std"] == pytest.approx(np.std(scores))


def test_classifiers_are_scored_by_accuracy():
    ids = np.repeat(["ann", "bob"], [6, 12])
    y = np.array(["no", "no", "no", "no", "no", "yes", *["yes"] * 8, *["no"] * 4])
    result = tune(Most(), np.zeros((18, 1)), y, ids, {"rule": ["least", "most"]}, count=2)
    # ann is right on 5 of 6 rows in all, 3 in a fold; bob on 8 of 12, 6 in a fold.
    assert result.parameters == {"rule": "most"}
    assert result.table["score"].tolist() == pytest.approx([(1 / 6 + 1 / 3) / 2, (5 / 6 + 2 / 3) / 2])


def test_the_first_of_equals_wins():
    X, y, ids = two_agents()
    assert tune(Shrunk(), X, y, ids, {"keep": [1.1, 0.9]}).parameters == {"keep": 1.1}
    assert tune(Shrunk(), X, y, ids, {"keep": [0.9, 1.1]}).parameters == {"keep": 0.9}


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
    X, y = np.stack([np.arange(13.0), np.ones(13)], axis=1), 100.0 + np.arange(13.0)
    tune(Spy(), form(X, kind), y, ids, {"keep": [0.5, 1.0]})
    assert [entry[0] for entry in Spy.log] == ["fit", "predict"] * 6
    for (_, seen, labels, owners, _), (_, asked, _, askers, _) in zip(Spy.log[::2], Spy.log[1::2], strict=True):
        assert sorted(seen + asked) == list(range(13))
        assert labels == y[seen].tolist()
        assert (owners, askers) == (ids[seen].tolist(), ids[asked].tolist())
    tested = np.concatenate([entry[1] for entry in Spy.log[1:6:2]])
    assert sorted(tested.tolist()) == np.flatnonzero(ids != "ann").tolist()
    for point in (Spy.log[:6], Spy.log[6:]):  # all points have the same folds
        assert [entry[1] for entry in point] == [entry[1] for entry in Spy.log[:6]]


def test_agents_may_be_a_column():
    X, y, ids = two_agents()
    Spy.log.clear()
    frame = pd.DataFrame({"row": X[:, 0], "who": ids})
    by_name = tune(Spy(), frame, y, "who", {"keep": [0.5, 0.9]})
    pd.testing.assert_frame_equal(by_name.table, tune(Shrunk(), X, y, ids, {"keep": [0.5, 0.9]}).table)
    with pytest.raises(DataError, match="no column 'whom'; did you mean 'who'"):
        tune(Spy(), frame, y, "whom", {"keep": [0.5]})


def test_members_are_all_agents_unless_given():
    X, y, ids = two_agents()
    Spy.log.clear()
    tune(Spy(), X, y, ids, {"keep": [1.0]})
    tune(Spy(members=("bob", "ann", "cyd")), X, y, ids, {"keep": [1.0]})
    assert [entry[4] for entry in Spy.log] == [("ann", "bob")] * 6 + [("bob", "ann", "cyd")] * 6


def test_convergence_warnings_are_counted_and_others_passed_on():
    X, y, ids = two_agents()
    result = tune(Shrunk(), X, y, ids, {"note": ["slow", "none"]})
    assert result.table.set_index("note")["unconverged"].to_dict() == {"slow": 3, "none": 0}
    assert "3 of the fits had not converged" in repr(result)
    with pytest.warns(UserWarning, match="something else"):
        tune(Shrunk(), X, y, ids, {"note": ["odd"]})


def test_progress_counts_fits():
    X, y, ids = two_agents()
    calls = []
    tune(Shrunk(), X, y, ids, {"keep": [1.0, 2.0]}, progress=lambda *call: calls.append(call))
    assert calls == [(k, 6) for k in range(1, 7)]
    calls.clear()
    tune(Shrunk(), X, y, ids, {"keep": [-1.0, 2.0]}, progress=lambda *call: calls.append(call))
    assert calls == [(3, 6), (4, 6), (5, 6), (6, 6)]  # no more folds of a point that was refused


def test_a_refused_point_is_recorded():
    X, y, ids = two_agents()
    result = tune(Shrunk(), X, y, ids, {"keep": [-1.0, 0.9]})
    assert result.parameters == {"keep": 0.9}
    assert result.table["failed"].tolist() == ["keep=-1.0 must not be negative", ""]
    assert np.isnan(result.table["score"][0])
    assert "1 of the points failed" in repr(result)
    assert tune(Shrunk(), X, y, ids, {"note": ["nan", "none"]}).parameters == {"note": "none"}


def test_if_all_are_refused_the_first_says_why():
    X, y, ids = two_agents()
    with pytest.raises(ParameterError, match=r"keep=-1.0 must not be negative"):
        tune(Shrunk(), X, y, ids, {"keep": [-1.0, -2.0]})
    with pytest.raises(DataError, match="not finite"):
        tune(Shrunk(), X, y, ids, {"note": ["nan"]})
    with pytest.raises(DataError, match=r"predict returned shape \(4, 1\) for 4 rows"):
        tune(Shrunk(), X, y, ids, {"note": ["column"]})


def test_an_interrupt_passes_through():
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(Shrunk(), *two_agents(), {"keep": [1.0]}, progress=interrupt)


def test_more_folds_than_rows_leave_no_fold_without_a_score():
    result = tune(Shrunk(), np.zeros((2, 1)), [2.0, 2.0], ["ann", "ann"], {"keep": [0.5]}, count=7)
    assert result.score == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({}, "at least one parameter"),
        ([0.1], "must map the name"),
        ({"keep": []}, "no values to try for 'keep'"),
        ({"keep": 0.5}, "the values of 'keep' must be a list, got 0.5"),
        ({"note": "slow"}, "the values of 'note' must be a list, got 'slow'"),
        ({"keep": np.eye(2)}, "the values of 'keep' must be a list"),
        ({"mu": [1.0]}, "Shrunk has no parameter 'mu'; it has keep, members, note"),
        (None, "none of the parameters that are tuned by default .*give grid=.*it has keep, members, note"),
    ],
)
def test_a_bad_grid_is_refused(grid, message):
    with pytest.raises(ParameterError, match=message):
        tune(Shrunk(), *two_agents(), grid)


def test_bad_input_is_refused():
    X, y, ids = two_agents()
    grid = {"keep": [1.0]}
    with pytest.raises(ParameterError, match="count=1 must be an integer, at least 2"):
        tune(Shrunk(), X, y, ids, grid, count=1)
    with pytest.raises(DataError, match="no agent has two rows"):
        tune(Shrunk(), X, y, np.arange(12), grid)
    with pytest.raises(DataError, match="agents has 3 ids for 12 rows"):
        tune(Shrunk(), X, y, ids[:3], grid)
    with pytest.raises(DataError, match=r"y has shape \(3,\) for 12 rows"):
        tune(Shrunk(), X, y[:3], ids, grid)
    with pytest.raises(DataError, match="y must hold numbers"):
        tune(Shrunk(), X, ids, ids, grid)
    with pytest.raises(ParameterError, match="has no get_params"):
        tune(object(), X, y, ids, grid)


# --------------------------------------------------------------------------------------------- the real thing


@pytest.fixture
def neighbours():
    """Four agents that want the same model, with too few rows to find it alone."""
    random = np.random.default_rng(3)
    X, ids = random.normal(size=(24, 4)), np.tile(["ann", "bob", "cyd", "dan"], 6)
    return X, X @ [1.0, -1.0, 2.0, 0.5] + 0.5 * random.normal(size=24), ids


def test_agents_that_want_the_same_model_collaborate(neighbours):
    estimator = ct.CollaborativeRegressor("cd", graph=ct.graphs.complete(4))
    result = tune(estimator, *neighbours, {"mu": [0.01, 100.0]})
    assert result.parameters == {"mu": 0.01}
    X, y, ids = neighbours
    fold, scores = folds(ids), []
    for k in range(3):
        test = fold == k
        model = ct.CollaborativeRegressor("cd", graph=ct.graphs.complete(4), mu=0.01)
        error = model.fit(X[~test], y[~test], agents=ids[~test]).predict(X[test], agents=ids[test]) - y[test]
        scores.append(-np.mean([np.sqrt(np.mean(error[ids[test] == agent] ** 2)) for agent in np.unique(ids)]))
    assert result.score == pytest.approx(np.mean(scores))
    assert result.estimator.fit(X, y, agents=ids).coef_.shape == (4, 4)


def test_the_default_grid_is_of_what_the_estimator_has(neighbours):
    X, y, ids = neighbours
    result = tune(ct.CollaborativeClassifier("cd", graph=ct.graphs.complete(4)), X, y > 0, ids)
    assert sorted(set(result.table["mu"])) == [0.1, 1, 10]
    assert set(result.parameters) == {"mu"}  # there is no graph to learn
    learns = tune(ct.CollaborativeClassifier("cd"), X, y > 0, ids, {"lam": [0.1, 1.0]})
    assert set(learns.parameters) == {"lam"}
