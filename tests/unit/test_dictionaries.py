"""Dictionaries of base predictors: stumps by hand, estimators against their own predict, and every refusal."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import coterie as ct
from coterie.data.dictionaries import Dictionary, Ensemble, Function, StumpDictionary, Stumps, outputs, resolve_base
from coterie.errors import DataError, ParameterError

X = np.array([[0.0, 10.0, -1.0], [4.0, 20.0, 0.0], [1.0, 12.0, 3.0], [2.0, 19.0, 0.0]])


# ------------------------------------------------------------------------------------------------- stumps


def test_stumps_by_hand():
    stumps = StumpDictionary(feature=[0, 2, 0], threshold=[1.0, -0.5, 3.0])
    expected = [[-1, -1, -1], [1, 1, 1], [-1, 1, -1], [1, 1, -1]]  # row 2 lies on the first threshold: not above it
    said = stumps.transform(X)
    np.testing.assert_array_equal(said, expected)
    assert said.dtype == np.float64
    assert said.flags.c_contiguous
    assert stumps.size == 3


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csc_array, sparse.csr_matrix, sparse.coo_array])
@pytest.mark.parametrize("spread", ["uniform", "quantile"])
def test_sparse_rows_are_like_dense_ones(kind, spread):
    recipe = Stumps(11, spread=spread)
    dense, thin = recipe.fitted(X), recipe.fitted(kind(X))
    assert dense == thin
    np.testing.assert_array_equal(dense.transform(X), thin.transform(kind(X)))
    assert thin.transform(kind(X)).flags.c_contiguous


def test_read_only_sparse_rows_of_agent_data():
    data = ct.AgentData(sparse.csr_array(X), agents=[1, 0, 1, 0])
    np.testing.assert_array_equal(
        outputs(Stumps(6).fitted(data.X), data.X), outputs(Stumps(6).fitted(X), X)[data.origin]
    )


def test_uniform_thresholds_are_in_the_middle_of_equal_parts():
    stumps = Stumps(12).fitted(X)
    np.testing.assert_array_equal(stumps.feature, np.repeat([0, 1, 2], 4))
    np.testing.assert_allclose(
        stumps.threshold.reshape(3, 4), [[0.5, 1.5, 2.5, 3.5], [11.25, 13.75, 16.25, 18.75], [-0.5, 0.5, 1.5, 2.5]]
    )


def test_a_public_range_replaces_the_one_of_the_data():
    stumps = Stumps(6, low=[0.0, 0.0, -2.0], high=4.0).fitted(X)
    np.testing.assert_allclose(stumps.threshold.reshape(3, 2), [[1.0, 3.0], [1.0, 3.0], [-0.5, 2.5]])
    assert Stumps(6, low=[0.0, 0.0, -2.0], high=4.0).fitted(np.zeros((0, 3))) == stumps  # not one row is looked at


def test_quantile_thresholds_split_the_data_evenly():
    skew = np.exp(np.random.default_rng(0).normal(size=(1000, 2)))
    above = (Stumps(20, spread="quantile").fitted(skew).transform(skew) > 0).sum(axis=0).reshape(2, 10)
    np.testing.assert_array_equal(above, np.tile(np.arange(950, 0, -100), (2, 1)))
    # Equal parts of the range do nothing of the kind for such data.
    uniform = (Stumps(20).fitted(skew).transform(skew) > 0).sum(axis=0)
    assert uniform.max() < 600


@pytest.mark.parametrize(
    ("count", "p", "expected"),
    [
        (200, 20, [10] * 20),
        (7, 3, [3, 2, 2]),
        (8, 3, [3, 3, 2]),
        (3, 3, [1, 1, 1]),
        (3, 9, [1, 0, 0, 0, 1, 0, 0, 0, 1]),
        (1, 4, [1, 0, 0, 0]),
    ],
)
@pytest.mark.parametrize("spread", ["uniform", "quantile"])
def test_counts_are_split_over_the_features(count, p, expected, spread):
    rows = np.random.default_rng(1).normal(size=(5, p))
    stumps = Stumps(count, spread=spread).fitted(rows)
    assert stumps.size == count
    np.testing.assert_array_equal(np.bincount(stumps.feature, minlength=p), expected)
    assert (stumps.threshold > rows.min(axis=0)[stumps.feature]).all()
    assert (stumps.threshold < rows.max(axis=0)[stumps.feature]).all()


@pytest.mark.parametrize("p", range(1, 40))
def test_fewer_stumps_than_features_never_share_one(p):
    for count in range(1, p + 1):
        assert np.unique(Stumps(count, low=0.0, high=1.0).fitted(np.zeros((1, p))).feature).size == count


def test_a_constant_feature_always_says_minus_one():
    for value in (0.0, 0.1, -1e10, 1 / 3):  # thresholds must not round to below the value
        rows = np.full((3, 1), value)
        for spread in ("uniform", "quantile"):
            np.testing.assert_array_equal(Stumps(7, spread=spread).fitted(rows).transform(rows), -np.ones((3, 7)))


def test_stumps_roundtrip_through_arrays():
    stumps = Stumps(7).fitted(X)
    back = StumpDictionary.from_arrays(stumps.to_arrays())
    assert back == stumps
    assert hash(back) == hash(stumps)
    np.testing.assert_array_equal(back.transform(X), stumps.transform(X))
    assert StumpDictionary(stumps.feature, stumps.threshold + 0.1) != stumps
    assert StumpDictionary(stumps.feature[::-1], stumps.threshold) != stumps
    assert stumps != "stumps"


def test_stumps_do_not_follow_the_arrays_they_were_made_of():
    feature, threshold = np.array([0]), np.array([0.5])
    stumps = StumpDictionary(feature, threshold)
    threshold[0] = 9.0
    assert stumps.threshold[0] == 0.5
    with pytest.raises(ValueError, match="read-only"):
        stumps.threshold[0] = 9.0


def test_recipes_compare_and_print():
    assert Stumps(5, low=np.zeros(2), high=np.ones(2)) == Stumps(5, low=[0, 0], high=(1, 1))
    assert len({Stumps(5, low=[0.0], high=1.0), Stumps(np.int64(5), low=[0.0], high=1.0), Stumps(5)}) == 2
    assert repr(Stumps(5)) == "Stumps(count=5, spread='uniform', low=None, high=None)"
    assert repr(Stumps(5).fitted(X)) == "StumpDictionary(size=5, features=3)"


HOLEY = X.copy()
HOLEY[2, 1] = np.nan
RECIPES = [
    ({"count": 0}, r"count = 0: expected an integer >= 1"),
    ({"count": -3}, r"count = -3: expected an integer >= 1"),
    ({"count": 2.5}, r"count = 2\.5: expected an integer >= 1"),
    ({"spread": "even"}, r"spread = 'even': expected 'uniform' or 'quantile'"),
    ({"low": 0.0}, r"low is given without high: expected both ends"),
    ({"high": [1.0]}, r"high is given without low: expected both ends"),
    ({"low": 0.0, "high": 1.0, "spread": "quantile"}, r"low and high: quantiles come from data"),
    ({"low": np.nan, "high": 1.0}, r"low=nan must be a finite number, or one per feature"),
    ({"low": 0.0, "high": "big"}, r"high='big' must be a finite number"),
    ({"low": 0.0, "high": [[1.0]]}, r"high=\[\[1\.0\]\] must be a finite number"),
    ({"low": 2.0, "high": 1.0}, r"low=2\.0 is above high=1\.0$"),
    ({"low": [0.0, 3.0], "high": 1.0}, r"low=3\.0 is above high=1\.0 for feature 1"),
    ({"low": [0.0, 0.0], "high": [1.0]}, r"low has 2 values and high 1"),
]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("call", "message"),
    [
        *((lambda given=given: Stumps(**given), message) for given, message in RECIPES),
        (
            lambda: Stumps(low=[0.0, 0.0], high=1.0).fitted(X),
            "low has 2 values for 3 features: expected one number, or 3",
        ),
        (lambda: Stumps(low=0.0, high=[1.0, 1.0]).fitted(X), "high has 2 values for 3 features"),
        (lambda: Stumps().fitted(np.zeros((0, 3))), "no rows to place stumps by"),
        *(
            (
                lambda kind=kind, spread=spread: Stumps(spread=spread).fitted(kind(HOLEY)),
                "row 2: column 1 of X is nan: expe",
            )
            for kind in (np.array, sparse.csr_array)
            for spread in ("uniform", "quantile")
        ),
        (lambda: Stumps().fitted([[0.0, -1.7e308], [1.0, 1.7e308]]), "feature 1: its range is too wide"),
        (lambda: Stumps().fitted(X).transform(X[:, :2]), "X has 2 columns, but there are stumps of column 2"),
        (lambda: StumpDictionary([], []), "no stumps: a dictionary needs at least one base predictor"),
        (lambda: StumpDictionary([0, 1], [0.5]), r"feature has shape \(2,\) and threshold \(1,\)"),
        (lambda: StumpDictionary([[0]], [[0.5]]), r"feature has shape \(1, 1\)"),
        (lambda: StumpDictionary([-1], [0.5]), "whole numbers >= 0"),
        (lambda: StumpDictionary([0.5], [0.5]), "whole numbers >= 0"),
        (lambda: StumpDictionary([0], [np.inf]), "a finite number per stump"),
        (lambda: StumpDictionary([0], ["a"]), "a finite number per stump"),
        (lambda: StumpDictionary.from_arrays({"feature": [0]}), r"no array 'threshold' among \['feature'\]: these are"),
    ],
)
def test_bad_stumps_and_recipes(call, message):
    with pytest.raises((DataError, ParameterError), match=message):
        call()


# ---------------------------------------------------------------------------------------------- estimators


def fitted_pair():
    signs = [0, 1, 0, 1]
    return [
        DecisionTreeClassifier(max_depth=1).fit(X, signs),
        DecisionTreeRegressor(max_depth=1).fit(X, [0.5, 2.5, 0.5, 2.5]),
        LogisticRegression().fit(X, ["no", "yes", "no", "yes"]),
    ]


def test_an_ensemble_says_what_its_estimators_predict():
    base = fitted_pair()
    said = resolve_base(base, X).transform(X)
    np.testing.assert_array_equal(said[:, 0], 2.0 * base[0].predict(X) - 1.0)
    np.testing.assert_array_equal(said[:, 1], base[1].predict(X))
    np.testing.assert_array_equal(said[:, 2], np.where(base[2].predict(X) == "yes", 1.0, -1.0))
    np.testing.assert_array_equal(said[:, :2], [[-1, 0.5], [1, 2.5], [-1, 0.5], [1, 2.5]])
    assert said.dtype == np.float64
    assert said.flags.c_contiguous


def test_classes_map_by_position_and_not_by_value():
    tree = DecisionTreeClassifier().fit(X, [7, -2, 7, -2])
    np.testing.assert_array_equal(Ensemble([tree]).transform(X)[:, 0], [1, -1, 1, -1])


def test_an_ensemble_takes_sparse_rows_and_none():
    ensemble = Ensemble(fitted_pair())
    np.testing.assert_array_equal(ensemble.transform(sparse.csr_array(X)), ensemble.transform(X))
    assert ensemble.transform(X[:0]).shape == (0, 3)


def test_objects_with_nothing_but_predict():
    class Sum:
        def predict(self, X):
            return X.sum(axis=1)

    np.testing.assert_array_equal(resolve_base([Sum()], X).transform(X)[:, 0], X.sum(axis=1))


def test_ensembles_compare_and_print():
    base = fitted_pair()
    assert Ensemble(base) == Ensemble(tuple(base))
    assert hash(Ensemble(base)) == hash(Ensemble(base))
    assert Ensemble(base) != Ensemble(base[:2])
    assert repr(Ensemble(base[:2] * 3)) == "Ensemble(size=6, DecisionTreeClassifier, DecisionTreeRegressor)"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: DecisionTreeClassifier(), r"base predictor 1 \(DecisionTreeClassifier\) is not fitted: call its fit"),
        (lambda: DecisionTreeClassifier, r"base predictor 1 is the class DecisionTreeClassifier"),
        (lambda: "tree", r"base predictor 1 \(str\) has no predict: expected a fitted estimator"),
        (
            lambda: DecisionTreeClassifier().fit(X, [0, 1, 2, 0]),
            r"base predictor 1 \(DecisionTreeClassifier\): its classes are 0, 1, 2: expected exactly two",
        ),
        (lambda: DecisionTreeClassifier().fit(X, [3, 3, 3, 3]), r"its classes are 3: expected exactly two"),
        (
            lambda: DecisionTreeClassifier().fit(X, [[0, 1], [1, 0], [1, 1], [0, 0]]),
            r"base predictor 1 \(DecisionTreeClassifier\) predicts 2 labels for each row: expected one",
        ),
    ],
)
def test_bad_estimators_are_named(made, message):
    good = DummyRegressor().fit(X, [0, 1, 2, 3])
    with pytest.raises(ParameterError, match=message):
        resolve_base([good, made()], X)


def test_estimators_that_predict_the_wrong_thing():
    wide = Ensemble([LinearRegression().fit(X, np.ones((4, 2)))])
    with pytest.raises(DataError, match=r"base predictor 0 \(LinearRegression\) predicts .* \(4, 2\): expected \(4,\)"):
        wide.transform(X)

    class Poet:
        def predict(self, X):
            return np.array(["moon"] * len(X))

    with pytest.raises(DataError, match=r"base predictor 0 \(Poet\) says .*'moon'.*: expected numbers"):
        Ensemble([Poet()]).transform(X)


# ----------------------------------------------------------------------------------------------- functions


def test_a_function_learns_its_size_once():
    function = Function(lambda X: np.asfortranarray(X[:, :2] > 1.0))
    with pytest.raises(ParameterError, match="not known before its first use"):
        _ = function.size
    said = function.transform(X)
    np.testing.assert_array_equal(said, [[0, 1], [1, 1], [0, 1], [1, 1]])
    assert said.dtype == np.float64
    assert said.flags.c_contiguous
    assert function.size == 2
    with pytest.raises(DataError, match=r"returned an array of shape \(4, 1\): expected \(4, 2\)"):
        function.transform(X[:, :1])


def test_functions_compare_and_print():
    assert Function(np.sin) == Function(np.sin)
    assert Function(np.sin) != Function(np.cos)
    assert repr(Function(np.sin)) == "Function(sin)"
    assert resolve_base(np.sin, X).size == 3
    with pytest.raises(ParameterError, match="call is int, which cannot be called"):
        Function(3)


def test_a_function_may_return_sparse_outputs():
    np.testing.assert_array_equal(Function(lambda X: sparse.csr_array(X)).transform(X), X)


# ------------------------------------------------------------------------------------- resolve and outputs


def test_what_a_dictionary_may_be_described_by():
    stumps = Stumps(9).fitted(X)
    assert resolve_base(9, X) == stumps
    assert resolve_base(np.int32(9), X) == stumps
    assert resolve_base(Stumps(9), X) == stumps
    assert resolve_base(stumps, None) is stumps


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (0, "count = 0: expected an integer >= 1"),
        ([], "the list of estimators is empty: a dictionary needs at least one base predictor"),
        ((), "the list of estimators is empty"),
        ("stumps", "base='stumps' is str: expected Stumps, a whole number of stumps, a Dictionary"),
        (2.0, r"base=2\.0 is float: expected"),
        (True, "base=True is bool: expected"),
        (None, "base=None is NoneType: expected"),
        (Stumps, "base is the class Stumps: expected an instance"),
        (DummyRegressor(), "base is a single DummyRegressor: expected a list of fitted estimators"),
        (lambda X: X.sum(axis=1), r"shape \(4,\): expected \(4, size\)"),
        (lambda X: X.T, r"shape \(3, 4\): expected \(4, size\)"),
        (lambda X: X[:, :0], r"shape \(4, 0\): a dictionary needs at least one base predictor"),
        (lambda X: np.full((4, 1), "moon"), r"the function says .*'moon'.*: expected numbers"),
    ],
)
def test_what_it_may_not(base, message):
    with pytest.raises((DataError, ParameterError), match=message):
        resolve_base(base, X)


def test_outputs_name_the_row_and_the_base_predictor():
    def holes(X):
        said = np.array(X)
        said[2, 1] = np.inf
        return said

    with pytest.raises(DataError, match=r"^row 2: base predictor 1 says inf: expected finite outputs$"):
        outputs(Function(holes), X)
    data = ct.AgentData(X, agents=["bo", "anna", "bo", "anna"])
    with pytest.raises(DataError, match=r"^row 0 \(agent 'bo'\): base predictor 1 says inf"):
        outputs(Function(holes), data.X, where=data.where)

    class Lost:
        def predict(self, X):
            return np.full(X.shape[0], np.nan)

    with pytest.raises(DataError, match=r"^row 0: base predictor 1 \(Lost\) says nan"):
        outputs(Ensemble([fitted_pair()[0], Lost()]), X)


def test_a_missing_feature_does_not_pass_for_a_small_one():
    rows = X.copy()
    rows[3, 2] = np.nan
    stumps = StumpDictionary([0, 2], [0.5, 0.5])
    with pytest.raises(DataError, match=r"^row 3: base predictor 1 \(x\[2\] > 0\.5\) says nan"):
        outputs(stumps, rows)


def test_outputs_check_the_shape_of_a_dictionary_of_ones_own():
    class Half(Dictionary):
        size = 4

        def transform(self, X):
            return np.asfortranarray(X)

        def __repr__(self):
            return "Half()"

    with pytest.raises(DataError, match=r"Half\(\) returned an array of shape \(4, 3\): expected \(4, 4\)"):
        outputs(Half(), X)
    Half.size = 3
    assert outputs(Half(), X).flags.c_contiguous
