"""Columns: exact matrices on small tables, every kind of input alike, every refusal by name; numbers of agents."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from coterie.data.columns import Columns
from coterie.data.levels import MAX_LEVELS
from coterie.errors import DataError, ParameterError

NAN = float("nan")


def people():
    return {
        "age": [31.0, None, 27.0, 38.0],
        "colour": ["red", "blue", None, "blue"],
        "ill": [True, False, False, True],
        "city": ["Lyon"] * 4,
        "years": [31.0, None, 27.0, 38.0],
        "empty": [None] * 4,
    }


PEOPLE = np.array([[31, 0, 1, 0, 1], [32, 1, 0, 0, 0], [27, 0, 0, 1, 0], [38, 0, 0, 0, 1]], float)
PEOPLE_NAMES = ("age", "age missing", "colour=red", "colour missing", "ill")
PEOPLE_NOTES = [
    "age: 1 of 4 values missing, filled with the mean 32, and an indicator",
    "colour: text, 2 levels, reference 'blue'; 1 of 4 values missing, a level of their own",
    "city: constant, left out",
    "years: a copy of column age, left out",
    "empty: all values missing, left out",
]

KINDS = {
    "pandas": lambda d: pd.DataFrame(d),
    "pandas of objects": lambda d: pd.DataFrame(d).astype(object),
    "pandas of nullable types": lambda d: pd.DataFrame(d).convert_dtypes(),
    "pandas of arrow types": lambda d: pd.DataFrame(d).convert_dtypes(dtype_backend="pyarrow"),
    "polars": lambda d: pl.DataFrame(d),
}


def learned(X, **options):
    columns, matrix = Columns.learn(X, **options)
    assert matrix.flags.c_contiguous
    assert matrix.shape[1] == len(columns.names) == len(columns.source) == len(columns.parts)
    again = Columns.from_dict(json.loads(json.dumps(columns.to_dict(), allow_nan=False)))
    assert again == columns
    np.testing.assert_array_equal(again.apply(X), matrix, strict=True)
    return columns, matrix


# ------------------------------------------------------------------------------------------------ frames


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_as_people_have_it(kind):
    columns, matrix = learned(KINDS[kind](people()))
    np.testing.assert_array_equal(matrix, PEOPLE, strict=True)
    assert columns.names == PEOPLE_NAMES
    assert columns.source == (0, 0, 1, 1, 2)
    assert columns.input_names == tuple(people())
    assert columns.n_features_in == 6
    assert columns.notes == PEOPLE_NOTES


@pytest.mark.parametrize("kind", KINDS)
def test_new_rows_are_encoded_as_those_at_fit(kind):
    columns, _ = Columns.learn(KINDS[kind](people()))
    new = people() | {"age": [1.0, None, 3.0, 4.0], "colour": ["green", "red", "blue", None], "city": ["Rome"] * 4}
    expected = [[1, 0, 0, 0, 1], [32, 1, 1, 0, 0], [3, 0, 0, 0, 0], [4, 0, 0, 1, 1]]
    for other in KINDS.values():
        np.testing.assert_array_equal(columns.apply(other(new)), expected)


def test_an_object_array_is_a_table_of_columns():
    table = np.empty((4, 6), object)
    for j, values in enumerate(people().values()):
        table[:, j] = values
    for X in (table, table.tolist()):
        columns, matrix = learned(X)
        np.testing.assert_array_equal(matrix, PEOPLE)
        assert columns.names == ("x0", "x0 missing", "x1=red", "x1 missing", "x2")
        assert columns.input_names is None


def test_a_list_of_numbers_and_text_keeps_its_numbers():
    columns, matrix = learned([["a", 1], ["b", 2], ["a", 3]])
    assert columns.names == ("x0=b", "x1")
    np.testing.assert_array_equal(matrix, [[0, 1], [1, 2], [0, 3]])


@pytest.mark.parametrize(
    "series",
    [
        pd.Series(["red", "blue", None, "blue"], dtype="category"),
        pd.Series(["red", "blue", None, "blue"], dtype=pd.CategoricalDtype(["unused", "red", "blue"])),
        pl.Series(["red", "blue", None, "blue"], dtype=pl.Categorical),
        pl.Series(["red", "blue", None, "blue"], dtype=pl.Enum(["unused", "red", "blue"])),
    ],
)
def test_categories(series):
    frame = (pl if isinstance(series, pl.Series) else pd).DataFrame({"c": series})
    columns, matrix = learned(frame)
    assert columns.names == ("c=red", "c missing")
    assert columns.notes == ["c: category, 2 levels, reference 'blue'; 1 of 4 values missing, a level of their own"]
    np.testing.assert_array_equal(matrix, [[1, 0], [0, 0], [0, 1], [0, 0]])
    np.testing.assert_array_equal(columns.apply(pd.DataFrame({"c": ["red", "new"]})), [[1, 0], [0, 0]])


@pytest.mark.parametrize("dtype", ["string[pyarrow]", "string[python]", "str", object])
def test_text_of_any_pandas_type(dtype):
    columns, matrix = learned(pd.DataFrame({"c": pd.Series(["b", "a", "b"], dtype=dtype)}))
    assert columns.names == ("c=a",)
    np.testing.assert_array_equal(matrix, [[0], [1], [0]])


def test_categories_of_numbers_match_numbers_at_predict():
    columns, _ = learned(pd.DataFrame({"c": pd.Categorical([1, 2, 2, 3])}))
    assert columns.names == ("c=1", "c=3")
    np.testing.assert_array_equal(columns.apply(pd.DataFrame({"c": [3.0, NAN, 1.0]})), [[0, 1], [0, 0], [1, 0]])
    np.testing.assert_array_equal(columns.apply(pd.DataFrame({"c": ["3", "2"]})), [[0, 1], [0, 0]])
    intervals, _ = learned(pd.DataFrame({"c": pd.cut([1.0, 2.0, 9.0], [0, 5, 10])}))
    assert intervals.names == ("c=(5, 10]",)
    with pytest.raises(DataError, match=r"column 'c': the levels 1 and '1' are equal as text"):
        Columns.learn(pd.DataFrame({"c": pd.Categorical([1, "1"])}))


@pytest.mark.parametrize(
    "values",
    [
        pl.Series([1, None, 3], dtype=pl.Int8),
        pl.Series([1, None, 3], dtype=pl.Float32),
        pl.Series([1, None, 3]).cast(pl.Decimal(10, 2)),
        pl.Series([1.0, NAN, 3.0]),
        pl.Series([1, None, 3], dtype=pl.Object),
        pd.array([1, None, 3], dtype="Int64"),
        pd.array([1, None, 3], dtype="Float64"),
        pd.array([1, None, 3], dtype="int8[pyarrow]"),
        pd.arrays.SparseArray([1, NAN, 3]),
        np.array([1, None, 3], object),
        np.array([1, pd.NA, 3], object),
        np.array([Decimal(1), pd.NaT, Fraction(3)], object),
        np.array([np.float32(1), NAN, 3], object),
        np.array([1, NAN, 3], np.float16),
    ],
    ids=str,
)
def test_numbers_with_gaps_of_any_type(values):
    library = pl if isinstance(values, pl.Series) else pd
    _, matrix = learned(library.DataFrame({"a": values, "t": ["u", "u", "v"]}))
    np.testing.assert_array_equal(matrix, [[1, 0, 0], [2, 1, 0], [3, 0, 1]])


def test_booleans_with_gaps():
    for frame in (
        pd.DataFrame({"b": pd.array([True, None, False], "boolean")}),
        pl.DataFrame({"b": [True, None, False]}),
    ):
        np.testing.assert_array_equal(learned(frame)[1], [[1, 0], [0.5, 1], [0, 0]])


# ------------------------------------------------------------------------------------------------ levels


def test_the_most_frequent_level_is_the_reference_and_equally_frequent_ones_are_sorted():
    assert learned([["b"], ["a"], ["c"], ["c"]])[0].names == ("x0=a", "x0=b")
    assert learned([["b"], ["a"]])[0].names == learned([["a"], ["b"]])[0].names == ("x0=b",)


def test_of_many_levels_the_most_frequent_are_kept():
    texts = [f"t{k:03d}" for k in range(80) for _ in range(4 if k % 2 else 3)]
    columns, matrix = learned(pd.DataFrame({"c": texts}))
    kept = sorted([f"t{k:03d}" for k in range(1, 80, 2)] + [f"t{k:03d}" for k in range(0, 20, 2)])
    assert columns.names == tuple(f"c={text}" for text in kept)
    assert len(kept) == MAX_LEVELS
    assert columns.notes == ["c: text, 80 levels, the 50 most frequent kept, reference: the others"]
    assert matrix.sum() == 40 * 4 + 10 * 3


def test_ids_and_free_text_are_refused():
    with pytest.raises(DataError, match=r"column 'who': 60 different texts in 60 values, such as 'p00'.*agents="):
        Columns.learn(pd.DataFrame({"who": [f"p{k:02d}" for k in range(60)]}))
    with pytest.raises(DataError, match=r"column 0: 60 different .*numbers, convert them"):
        Columns.learn(np.array([[str(k)] for k in range(60)]))
    learned(pd.DataFrame({"who": [f"p{k:02d}" for k in range(50)]}))


def test_a_name_that_is_taken_gets_another():
    columns, _ = learned(pd.DataFrame({"a": [1.0, None, 3.0], "a missing": [5.0, 6.0, 8.0]}))
    assert columns.names == ("a", "a missing'", "a missing")


def test_notes_on_copies():
    frame = pd.DataFrame(
        {
            "male": [True, False, True, False, True],
            "sex": ["m", "f", "m", "f", None],
            "age": [1.0, 2.0, 3.0, 4.0, None],
            "size": [7.0, 2.0, 3.0, 4.0, None],
            "place": ["a", "a", "b", "c", "b"],
            "where": ["A", "A", "B", "C", "B"],
            "half": [0, 0, 1, 0, 1],
        }
    )
    columns, _ = learned(frame)
    assert columns.names == ("male", "sex=m", "sex missing", "age", "size", "place=b", "place=c")
    assert columns.notes == [
        "sex: text, 2 levels, reference 'f'; 1 of 5 values missing, a level of their own",
        "age: 1 of 5 values missing, filled with the mean 2.5, and an indicator",
        "age: missing in the same rows as sex, one indicator for both",
        "size: 1 of 5 values missing, filled with the mean 4, and an indicator",
        "size: missing in the same rows as sex, one indicator for both",
        "place: text, 3 levels, reference 'a'",
        "where: a copy of column place, left out",
        "half: a copy of column place=b, left out",
    ]


# -------------------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_an_array_of_floats_is_not_copied(dtype):
    X = np.random.default_rng(0).normal(size=(5000, 7)).astype(dtype)
    columns, matrix = learned(X)
    assert matrix is X
    assert columns.apply(X) is X
    assert columns.names == tuple(f"x{j}" for j in range(7))
    assert columns.notes == []
    X.flags.writeable = False
    assert np.shares_memory(Columns.learn(X)[1], X)


def test_arrays_of_other_numbers():
    for dtype in (np.int8, np.uint64, np.float16, np.longdouble, ">f8", ">f4"):
        matrix = learned(np.array([[1, 2], [3, 5]], dtype))[1]
        assert matrix.dtype == (np.float32 if dtype == ">f4" else np.float64)
        assert matrix.dtype.isnative
        np.testing.assert_array_equal(matrix, [[1, 2], [3, 5]])
    np.testing.assert_array_equal(learned([[True, False], [False, False]])[1], [[1], [0]])
    fortran = np.asfortranarray(np.arange(6.0).reshape(3, 2) ** 2)
    np.testing.assert_array_equal(learned(fortran)[1], fortran)
    masked = np.ma.array([[1, 2], [3, 4], [5, 6]], mask=[[0, 0], [1, 0], [0, 0]])
    np.testing.assert_array_equal(learned(masked)[1], [[1, 0, 2], [3, 1, 4], [5, 0, 6]])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_constant_and_duplicate_columns_of_arrays(dtype):
    rng = np.random.default_rng(0)
    X = np.zeros((30_000, 6), dtype)
    X[:, 0] = rng.normal(size=len(X))
    X[-1, 2] = 1.0  # found to vary by its last row only
    X[:, 3] = X[:, 2]
    X[-1, 4] = 2.0
    X[:, 5] = X[:, 0]
    X[0, 3] = -0.0
    columns, matrix = learned(X)
    assert columns.source == (0, 2, 4)
    assert columns.notes == [
        "x1: constant, left out",
        "x3: a copy of column x2, left out",
        "x5: a copy of column x0, left out",
    ]
    np.testing.assert_array_equal(matrix, X[:, [0, 2, 4]], strict=True)
    wild = X[:3].copy()
    wild[:, [1, 3]] = np.inf  # columns that are left out play no role
    np.testing.assert_array_equal(columns.apply(wild), X[:3, [0, 2, 4]])


def test_nothing_may_be_left():
    columns, matrix = learned([[1.0, 2.0]])
    assert matrix.shape == (1, 0)
    assert columns.apply([[5.0, 6.0], [7.0, 8.0]]).shape == (2, 0)


def test_gaps_of_arrays():
    X = np.array([[1.0, NAN, 7.0, NAN], [NAN, 0.1, 7.5, NAN], [3.0, 0.1, NAN, NAN], [5.0, 0.1, 8.0, NAN]])
    columns, matrix = learned(X)
    assert columns.names == ("x0", "x0 missing", "x1 missing", "x2", "x2 missing")
    np.testing.assert_array_equal(matrix, [[1, 0, 1, 7, 0], [3, 1, 0, 7.5, 0], [3, 0, 0, 7.5, 1], [5, 0, 0, 8, 0]])
    assert columns.notes[1] == "x1: 1 of 4 values missing, the others constant: only an indicator"
    assert columns.notes[3] == "x3: all values missing, left out"


def test_gaps_at_predict_only():
    columns, _ = Columns.learn([[1.0, "a"], [2.0, "b"], [6.0, "a"]])
    np.testing.assert_array_equal(columns.apply([[None, None], [4.0, "b"]]), [[3, 0], [4, 1]])
    numbers, _ = Columns.learn(np.array([[1.0], [3.0]], np.float32))
    np.testing.assert_array_equal(numbers.apply(np.array([[NAN]], np.float32)), np.float32([[2]]), strict=True)


def test_the_mean_of_large_numbers_is_finite():
    columns, matrix = learned(np.array([[1.7e308], [1.6e308], [NAN], [1.7e308]]))
    assert np.isfinite(matrix).all()
    assert 1.6e308 < columns.means[0] < 1.7e308
    assert np.isfinite(learned(np.array([[1.7e308], [1.6e308]]))[0].means[0])


# -------------------------------------------------------------------------------------------------- sparse


def test_sparse_stays_sparse():
    X = sparse.random_array((50, 6), density=0.2, rng=0, format="csr")
    for given_X in (X, X.tocsc(), sparse.csr_matrix(X), X.tocoo(), X.astype(np.float32)):
        columns, matrix = Columns.learn(given_X)
        assert isinstance(matrix, sparse.csr_array)
        assert matrix.has_canonical_format
        np.testing.assert_allclose(matrix.toarray(), X.toarray(), rtol=1e-6)
        np.testing.assert_allclose(columns.means, X.toarray().mean(axis=0), rtol=1e-6)
        assert columns.names == tuple(f"x{j}" for j in range(6))
        assert columns == Columns.from_dict(json.loads(json.dumps(columns.to_dict())))
    np.testing.assert_array_equal(columns.apply(X.toarray()), X.toarray())
    doubled = sparse.csr_array(([1.0, 2.0], [0, 0], [0, 2]), shape=(1, 2))
    np.testing.assert_array_equal(Columns.learn(doubled)[1].toarray(), [[3, 0]])
    assert doubled.nnz == 2  # what the caller holds is not changed


def test_sparse_after_dense():
    X = np.array([[1.0, 5.0, 0.0], [0.0, 5.0, 2.0], [NAN, 5.0, 0.0]])
    columns, _ = Columns.learn(X)
    given_X = sparse.csr_array(np.nan_to_num(X))
    np.testing.assert_array_equal(columns.apply(given_X).toarray(), [[1, 0, 0], [0, 0, 2], [0, 0, 0]])
    text, _ = Columns.learn([["a"], ["b"]])
    with pytest.raises(DataError, match="column 0 held text at fit, and a sparse matrix"):
        text.apply(sparse.csr_array([[1.0]]))


def test_gaps_and_infinities_of_sparse_are_refused_by_place():
    X = sparse.lil_array((5, 4))
    X[0, 0] = 1.0
    X[3, 2] = np.nan
    with pytest.raises(DataError, match=r"row 3: column 2 is missing \(NaN\); a sparse matrix"):
        Columns.learn(X)
    X[3, 2] = np.inf
    with pytest.raises(DataError, match="row 3: column 2 is inf"):
        Columns.learn(X)
    with pytest.raises(DataError, match="Complex data not supported"):
        Columns.learn(X.astype(complex))
    with pytest.raises(DataError, match="X has 4 features, but Me is expecting 2 features as input"):
        Columns.learn(sparse.eye_array(2))[0].apply(sparse.eye_array(4), owner="Me")


# ---------------------------------------------------------------------------------------------- refusals

T = dt.datetime(2020, 1, 1)
REFUSED = {
    "datetime": (pd.DataFrame({"a": [1.0, 2.0], "d": pd.to_datetime(["2020", "2021"])}), "column 'd' holds dates"),
    "zoned": (pd.DataFrame({"d": pd.to_datetime(["2020"], utc=True)}), "column 'd' holds dates.*as a number"),
    "timedelta": (pd.DataFrame({"d": pd.to_timedelta([1], unit="D")}), "column 'd' holds dates or times"),
    "period": (pd.DataFrame({"d": pd.period_range("2020", periods=2)}), "column 'd' holds dates or times"),
    "periods": (np.array([[pd.Period("2020")]], object), "column 0 holds dates or times"),
    "date objects": (pd.DataFrame({"d": [None, T.date()]}), r"column 'd' holds dates or times \(row 1"),
    "arrow dates": (pd.DataFrame({"d": pd.array([T.date()], "date32[pyarrow]")}), "column 'd' holds dates"),
    "times": (np.array([[1.0, T.time()]], object), "column 1 holds dates or times"),
    "datetime64": (np.array([["2020"]], "M8[D]"), "X holds dates or times"),
    "mixed datetime64": ([[np.datetime64("2020"), 1.5]], "column 0 holds dates or times"),
    **{
        f"polars {kind}": (pl.DataFrame({"d": pl.Series([1]).cast(kind)}), "column 'd' holds dates or times")
        for kind in (pl.Date, pl.Datetime, pl.Duration, pl.Time)
    },
    "complex": (np.array([[1j]]), "Complex data not supported"),
    "complex objects": (np.array([[1], [1j]], object), "Complex data not supported: row 1: column 0"),
    "complex column": (pd.DataFrame({"a": [1j]}), "Complex data not supported: column 'a'"),
    "dict": (np.array([[1.0], [{"a": 1}]], object), r"row 1: column 0 is \{'a': 1\}, a dict; the argument must be"),
    "bytes": (np.array([[b"a"]]), "row 0: column 0 is b'a', a bytes"),
    "lists": (pl.DataFrame({"l": [None, [1, 2]]}), r"row 1: column 'l' is \[1, 2\], a list"),
    "structs": (pl.DataFrame({"s": [{"a": 1}]}), r"row 0: column 's' is \{'a': 1\}, a dict"),
    "binary": (pl.DataFrame({"b": [b"x"]}), "row 0: column 'b' is b'x', a bytes"),
    "intervals": (pd.DataFrame({"i": pd.interval_range(0, 2)}), "row 0: column 'i' is Interval"),
    "mixed": (pd.DataFrame({"m": [None, 1.5, "a"]}, dtype=object), "'m' holds numbers and text: 1.5 at row 1 and 'a'"),
    "signalling": (np.array([["a"], [Decimal("sNaN")], [1]], object), "column 0 holds numbers and text"),
    "huge": (np.array([[1], [10**400]], object), "row 1: column 0 is 1000.*does not fit a float"),
    "inf": (np.array([[0.0, 1.0], [1.0, 2.0], [2.0, np.inf]]), "row 2: column 1 is inf; numbers must be finite"),
    "-inf": (pd.DataFrame({"t": ["a", "b"], "v": [NAN, -np.inf]}), "row 1: column 'v' is -inf"),
    "huge decimal": (np.array([[Decimal("1e400")]], object), "row 0: column 0 is inf"),
    "1-D": (np.arange(3.0), r"shape \(3,\).*Reshape your data"),
    "scalar": (3.0, "scalar.*Reshape your data"),
    "Series": (pd.Series([1.0]), "Reshape your data"),
    "3-D": (np.zeros((2, 2, 2)), r"X must be 2-D, \(rows, features\); got shape \(2, 2, 2\)"),
    "no rows": (np.empty((0, 3)), r"0 sample\(s\) \(shape=\(0, 3\)\) while a minimum of 1 is required by Columns"),
    "no columns": (np.empty((12, 0)), r"0 feature\(s\) \(shape=\(12, 0\)\) while a minimum of 1 is required."),
    "empty frame": (pd.DataFrame(index=[0, 1]), r"0 feature\(s\) \(shape=\(2, 0\)\) while a minimum of 1"),
    "ragged": ([[1.0], [2.0, 3.0]], "X is not a regular array"),
    "lazy": (pl.LazyFrame({"a": [1]}), "call .collect"),
    "twice": (pd.DataFrame([[1, 2]], columns=["a", "a"]), "column 'a' occurs 2 times"),
    "some names": (pd.DataFrame([[1, 2]], columns=["a", 0]), "Feature names are only supported if all input features"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_by_name(case):
    X, words = REFUSED[case]
    with pytest.raises(DataError, match=words):
        Columns.learn(X)


def test_missing_error():
    with pytest.raises(ParameterError, match='missing must be "fill" or "error", got \'mean\''):
        Columns.learn([[1.0]], missing="mean")
    frame = pd.DataFrame({"c": ["a", "b", "a", None], "age": [1.0, 2.0, NAN, NAN]})
    for other in (frame, pl.from_pandas(frame)):
        with pytest.raises(DataError, match=r"row 2: column 'age' is missing \(NaN\);.*missing=\"fill\""):
            Columns.learn(other, missing="error")
    columns, _ = learned(frame[:2], missing="error")
    with pytest.raises(DataError, match="row 3: column 'c' is missing"):
        columns.apply(frame.assign(age=1.0))
    arrays, _ = learned(np.array([[1.0], [2.0]]), missing="error")
    with pytest.raises(DataError, match="row 1: column 0 is missing"):
        arrays.apply(np.array([[1.0], [NAN]]))


def test_other_kinds_at_predict_are_refused_by_row_and_column():
    columns, _ = Columns.learn(pd.DataFrame({"age": [1.0, 2.0], "c": ["a", "b"]}))
    with pytest.raises(DataError, match="row 1: column 'age' is 'x', but held numbers at fit"):
        columns.apply(pd.DataFrame({"age": [None, "x"], "c": ["a", "b"]}))
    with pytest.raises(DataError, match="row 0: column 'c' is 7, but held text at fit"):
        columns.apply(pd.DataFrame({"age": [1.0, 2.0], "c": [7, 8]}))
    with pytest.warns(UserWarning, match="valid feature names"), pytest.raises(DataError, match="held text at fit"):
        columns.apply(np.ones((2, 2)))
    empty = pd.DataFrame({"age": pd.Series([None], dtype="string"), "c": [None]})
    np.testing.assert_array_equal(columns.apply(empty), [[1.5, 0]])


def test_names_at_predict_as_scikit_learn_wants_them():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [2.0, 5.0], "c": [3.0, 9.0]})
    columns, matrix = Columns.learn(frame, owner="Me")
    cases = {
        "Feature names must be in the same order as they were in fit.": frame[["c", "b", "a"]],
        "Feature names unseen at fit time:\n- x\n- y\n": frame.rename(columns={"a": "x", "b": "y"}),
        "Feature names seen at fit time, yet now missing:\n- c\n": frame[["a", "b"]],
    }
    for words, other in cases.items():
        with pytest.raises(ValueError, match=re.escape(words)):
            columns.apply(other)
    with pytest.warns(UserWarning, match="X does not have valid feature names, but Me was fitted with feature names"):
        np.testing.assert_array_equal(columns.apply(frame.to_numpy(), owner="Me"), matrix)
    unnamed, _ = Columns.learn(frame.to_numpy())
    with pytest.warns(UserWarning, match="X has feature names, but Me was fitted without feature names"):
        unnamed.apply(frame, owner="Me")
    with pytest.raises(ValueError, match=r"X has 1 features, but \w+ is expecting 3 features as input"):
        unnamed.apply(frame.to_numpy()[:, :1], owner="Me")
    numbered, _ = Columns.learn(pd.DataFrame([["a", 2], ["b", 4]]))
    assert numbered.input_names is None
    assert numbered.names == ("x0=b", "x1")


@pytest.mark.parametrize(
    "change",
    [
        {"source": [5]},
        {"means": [None]},
        {"means": [NAN]},
        {"kinds": ["other"]},
        {"parts": [["level", None]]},
        {"names": []},
        {"missing": "x"},
        {"source": None},
    ],
    ids=str,
)
def test_a_damaged_description_is_refused(change):
    columns, _ = Columns.learn([[1.0], [2.0]])
    with pytest.raises(DataError, match="the saved description of columns is damaged"):
        Columns.from_dict(columns.to_dict() | change)
    with pytest.raises(DataError, match="the saved description of columns is damaged: KeyError"):
        Columns.from_dict({})
    assert repr(columns) == "Columns(1 -> 1, missing='fill')"


# --------------------------------------------------------------------------------------------- properties

VALUES = {
    "numbers": st.one_of(st.none(), st.integers(-3, 3), st.floats(-5, 5), st.just(NAN)),
    "texts": st.one_of(st.none(), st.sampled_from(["a", "b", "Zoë", ""]), st.just(NAN)),
    "booleans": st.one_of(st.none(), st.booleans()),
    "few": st.sampled_from([0.0, 1.0]),
}


@st.composite
def tables(draw):
    rows = draw(st.integers(1, 8))
    kinds = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=5))
    X = np.empty((rows, len(kinds)), object)
    for j, kind in enumerate(kinds):
        X[:, j] = draw(st.lists(VALUES[kind], min_size=rows, max_size=rows))
    return X


@settings(max_examples=60, deadline=None)
@given(tables(), st.randoms(use_true_random=False))
def test_rows_in_another_order_are_encoded_alike(X, random):
    columns, matrix = learned(X)
    order = list(range(len(X)))
    random.shuffle(order)
    other, permuted = learned(X[order])
    assert other.names == columns.names
    # But for means, which are sums in another order, rounded; the matrices hold them, too.
    said, again = ([note.partition(", filled with the mean")[0] for note in each.notes] for each in (columns, other))
    assert said == again
    np.testing.assert_allclose(permuted, matrix[order], rtol=1e-12, atol=1e-12)
    assert np.isfinite(matrix).all()
    # What is left has no constants and no copies.
    assert (np.ptp(matrix, axis=0) > 0).all()
    assert len({column.tobytes() for column in matrix.T + 0.0}) == matrix.shape[1]
    # One row alone, and as a frame, is encoded like that row among others.
    np.testing.assert_array_equal(columns.apply(X[:1]), matrix[:1])
    names = [f"c{j}" for j in range(X.shape[1])]
    framed, same = learned(pd.DataFrame(X, columns=names, dtype=object))
    np.testing.assert_array_equal(same, matrix)
    assert framed.kinds == columns.kinds


ANYTHING = st.one_of(
    *VALUES.values(),
    st.sampled_from([pd.NA, pd.NaT, np.float32(2), np.int8(3), np.True_, np.str_("u"), 2**70, 10**400, 1j, np.inf]),
    st.sampled_from([Decimal("1.5"), Decimal("NaN"), Decimal("sNaN"), Fraction(1, 3), T, T.date(), b"x", object]),
    st.sampled_from([np.datetime64("2020"), np.datetime64("NaT"), dt.timedelta(1), frozenset({1}), range(2)]),
)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.data())
def test_arbitrary_objects_are_encoded_or_refused(rows, width, data):
    X = np.empty((rows, width), object)
    for cell in np.ndindex(rows, width):
        X[cell] = data.draw(ANYTHING)
    kinds = [lambda: X, lambda: X.tolist(), lambda: pd.DataFrame(X)]
    try:
        pd.DataFrame(X)
    except OverflowError:  # pandas before 3 holds no whole numbers beyond the range of floats
        kinds.pop()
    for kind in kinds:
        try:
            columns, matrix = Columns.learn(kind())
        except DataError:
            continue
        assert np.isfinite(matrix).all()
        np.testing.assert_array_equal(columns.apply(kind()), matrix)
