"""AgentData: grouping against a dictionary of lists, every kind of input, every refusal."""

from __future__ import annotations

import copy
import datetime as dt
import gzip
import pickle
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import coterie as ct
from coterie.data import AgentData
from coterie.data.frames import split_frame
from coterie.data.ids import agent_codes, is_sorted
from coterie.data.sources.readers import read_table
from coterie.errors import DataError, ParameterError
from references import assert_same_rows, dense

ID_KINDS = {
    "integers": st.integers(-3, 3),
    "distant integers": st.sampled_from([-(2**62), 0, 7, 2**62]),
    "booleans": st.booleans(),
    "floats": st.sampled_from([0.5, 1.0, -2.0]),
    "huge integers": st.sampled_from([2**63, -1, 2**70, 0]),
    "strings": st.sampled_from(["bo", "anna", "", "Zoë", "1", "a\0", "a"]),
    "tuples": st.tuples(st.integers(0, 1), st.sampled_from("ab")),
    "dates": st.dates(dt.date(2020, 1, 1), dt.date(2020, 1, 4)),
    "sets": st.frozensets(st.integers(0, 2)),
    "mixed": st.one_of(st.integers(0, 2), st.sampled_from(["0", "1", "bo"]), st.just((0, 1))),
}
CONTAINERS = {
    "list": list,
    "tuple": tuple,
    "objects": lambda ids: np.fromiter(ids, dtype=object, count=len(ids)),
    "int8": lambda ids: np.array(ids, np.int8),
    "uint64": lambda ids: np.array(ids, np.uint64),
    "pandas": pd.Series,
    "polars": pl.Series,
}


def small(**overrides):
    """Five rows of three agents, given out of order."""
    given = {
        "X": np.arange(10.0).reshape(5, 2),
        "y": [0.0, 1.0, 2.0, 3.0, 4.0],
        "agents": ["bo", "anna", "bo", "cy", "anna"],
    }
    return AgentData(**(given | overrides))


def frame():
    return pd.DataFrame(
        {
            "age": [31, 27, 44],
            "who": ["bo", "anna", "bo"],
            "ill": [True, False, True],
            "score": [0.5, 1.5, 2.5],
        }
    )


# ------------------------------------------------------------------------------------------------ grouping


@pytest.mark.parametrize("kind", ID_KINDS)
@pytest.mark.parametrize("as_sparse", [False, True])
def test_grouping_is_that_of_a_dictionary_of_lists(kind, as_sparse):
    @settings(derandomize=True, deadline=None, max_examples=60)
    @given(st.lists(ID_KINDS[kind], min_size=1, max_size=15), st.sampled_from(sorted(CONTAINERS)))
    def check(ids, container):
        try:
            held = CONTAINERS[container](ids)
            if getattr(held.to_numpy() if container == "polars" else held, "ndim", 1) != 1:
                return  # tuples of one length make a matrix
        except (ValueError, TypeError, OverflowError, pl.exceptions.PolarsError):
            return  # this container cannot hold such ids
        ids = held if container in ("list", "tuple") else held.to_list() if container == "polars" else held.tolist()
        groups = {}
        for row, agent in enumerate(ids):
            groups.setdefault(agent, []).append(row)
        X = np.arange(1.0, 2 * len(ids) + 1).reshape(-1, 2)
        y = -np.arange(len(ids))
        data = AgentData(sparse.csr_array(X) if as_sparse else X, y, held)
        assert set(data.members) == set(groups)
        assert (data.n, data.p, data.n_rows) == (len(groups), 2, len(ids))
        assert data.start[0] == 0
        assert data.start[-1] == len(ids)
        for k, agent in enumerate(data.members):
            rows = slice(data.start[k], data.start[k + 1])
            assert data.origin[rows].tolist() == groups[agent]
            assert data.sizes[k] == len(groups[agent])
            assert (data.owner[rows] == k).all()
            X_k, y_k = data.rows_of(agent)
            np.testing.assert_array_equal(X_k.toarray() if as_sparse else X_k, X[groups[agent]])
            np.testing.assert_array_equal(y_k, y[groups[agent]])
        assert data.numbers(held).tolist() == [data.index(agent) for agent in ids]

    check()


def test_rows_of_an_agent_keep_their_order_in_large_data():
    # Short arrays are sorted by insertion, which is stable whatever kind of sort is asked for.
    ids = np.random.default_rng(0).integers(0, 7, 2000)
    data = AgentData(np.zeros((2000, 1)), agents=ids)
    assert data.origin.tolist() == [row for agent in range(7) for row in np.flatnonzero(ids == agent)]
    moved = data.relabel(range(6, -1, -1))
    assert moved.origin.tolist() == [row for agent in range(6, -1, -1) for row in np.flatnonzero(ids == agent)]


def test_stored_values_have_the_promised_types():
    data = small(X=np.asfortranarray(np.arange(10.0).reshape(5, 2)))
    assert_same_rows(data, small())
    assert data.X.dtype == data.y.dtype == np.float64
    assert data.X.flags.c_contiguous
    for name in ("start", "sizes", "owner", "origin"):
        assert getattr(data, name).dtype == np.int64, name
    assert data.feature_names is None
    assert not data.is_sparse


def test_sparse_is_canonical_csr():
    # Row 0 holds column 1 before column 0, and column 1 twice.
    X = sparse.csr_matrix((np.array([1, 2, 3, 4]), [1, 0, 1, 0], [0, 3, 4]), shape=(2, 2))
    data = AgentData(X, agents=["b", "a"])
    assert isinstance(data.X, sparse.csr_array)
    assert data.X.dtype == np.float64
    assert data.X.has_canonical_format
    assert data.X.data.tolist() == [4, 2, 4]
    assert X.data.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("ids", "members"),
    [
        ([3, 1, 2, 1], (1, 2, 3)),
        (["b", "a"], ("a", "b")),
        ([10, 9], (9, 10)),
        (["b", 1, "a"], ("b", 1, "a")),
        ([(1,), 0], ((1,), 0)),
        # Sets are ordered by inclusion only, so these cannot be sorted.
        ([frozenset({2}), frozenset({1})], (frozenset({2}), frozenset({1}))),
        (list(map(frozenset, ["ab", "a", "c"])), tuple(map(frozenset, ["ab", "a", "c"]))),
        ([frozenset({1, 2}), frozenset({1})], (frozenset({1}), frozenset({1, 2}))),
        ([1, True, 1.0], (1,)),
    ],
)
def test_default_order_of_members(ids, members):
    assert AgentData(np.zeros((len(ids), 1)), agents=ids).members == members


def test_no_agents_means_one_agent():
    data = AgentData([[1], [2]])
    assert data.members == (0,)
    assert data.owner.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        (np.array([3, 4]), int),
        ([np.int64(3), np.int8(4)], int),
        (np.array([3, 4], dtype=np.float16), float),
        (np.array([True, False]), bool),
        (np.array(["a", "b"]), str),
        ([np.str_("a"), "b"], str),
        (np.array(["2020-01-01", "2020-01-02"], dtype="M8[ns]"), pd.Timestamp),
        ([np.datetime64("2020-01-01", "ns"), np.datetime64("2020-01-02", "ns")], pd.Timestamp),
        ([dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 2)], dt.datetime),
        (pd.Series([3, 4], dtype="Int64"), int),
        (pd.Series(["a", "b"], dtype="category"), str),
    ],
)
def test_ids_are_python_scalars(ids, kind):
    assert [type(member) for member in AgentData([[1], [2]], agents=ids).members] == [kind, kind]


def test_members_fix_the_order_and_may_have_no_rows():
    data = small(members=["dee", "cy", "bo", "anna"])
    assert data.members == ("dee", "cy", "bo", "anna")
    assert data.sizes.tolist() == [0, 1, 2, 2]
    assert data.start.tolist() == [0, 0, 1, 3, 5]
    assert data.origin.tolist() == [3, 0, 2, 1, 4]
    X, y = data.rows_of("dee")
    assert X.shape == (0, 2)
    assert y.shape == (0,)


@pytest.mark.parametrize("X", [np.empty((0, 3)), sparse.csr_array((0, 3))])
def test_no_rows_at_all(X):
    data = AgentData(X, y=[], agents=[], members=["a", "b"])
    assert (data.n, data.n_rows, data.p) == (2, 0, 3)
    assert data.start.tolist() == [0, 0, 0]
    assert repr(data).startswith("AgentData(agents=2 (2 without rows), rows=0 (0 per agent), features=3")


# ------------------------------------------------------------------------------------------- kinds of input

EXPECTED = AgentData([[31, 0.5], [27, 1.5], [44, 2.5]], y=[1, 0, 1], agents=["bo", "anna", "bo"])


@pytest.mark.parametrize(
    "wrap",
    [
        np.array,
        sparse.csr_array,
        sparse.csc_matrix,
        sparse.coo_array,
        lambda X: np.array(X, dtype=object),
        lambda X: np.array(X, dtype=np.float32),
        lambda X: [[Decimal(str(value)) for value in row] for row in X],
        np.ma.array,
    ],
)
def test_matrices_give_the_same_data(wrap):
    X = wrap([[31, 0.5], [27, 1.5], [44, 2.5]])
    assert_same_rows(AgentData(X, [True, False, True], ("bo", "anna", "bo")), EXPECTED)


def convert_dtypes(table):
    return table.convert_dtypes()


def to_polars(table):
    return pl.DataFrame({name: table[name].to_list() for name in table.columns})


@pytest.mark.parametrize("convert", [lambda table: table, convert_dtypes, to_polars])
@pytest.mark.parametrize("labels_named", [False, True])
@pytest.mark.parametrize("agents_named", [False, True])
def test_frames_give_the_same_data(convert, labels_named, agents_named):
    table = convert(frame())
    y, agents = table["ill"], table["who"]
    rest, _ = split_frame(table, *(["ill"] * (not labels_named) + ["who"] * (not agents_named)))
    data = AgentData(rest, "ill" if labels_named else y, "who" if agents_named else agents)
    assert data.feature_names == ("age", "score")
    np.testing.assert_array_equal(data.X, EXPECTED.X)
    np.testing.assert_array_equal(data.y, EXPECTED.y)
    np.testing.assert_array_equal(data.origin, EXPECTED.origin)
    assert data.members == EXPECTED.members


def test_series_are_matched_by_position():
    table = frame().set_axis([2, 0, 1])
    y = pd.Series([1, 0, 1], index=[7, 8, 9])
    data = AgentData(table[["age", "score"]], y, pd.Series(["bo", "anna", "bo"]))
    np.testing.assert_array_equal(data.X, EXPECTED.X)
    np.testing.assert_array_equal(data.y, EXPECTED.y)


def test_columns_may_be_numbered():
    data = AgentData(pd.DataFrame([[1.0, 7], [2.0, 6]]), agents=1)
    assert data.members == (6, 7)
    assert data.feature_names == ("0",)


def test_polars_is_imported_by_nobody_but_its_users():
    code = (
        "import sys, pandas, coterie.data as d\n"
        "d.AgentData(pandas.DataFrame({'x': [1.0], 'a': ['bo']}), agents='a')\n"
        "sys.exit('polars' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --------------------------------------------------------------------------------------------- immutability


@pytest.mark.parametrize("roundtrip", [lambda d: d, copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))])
@pytest.mark.parametrize("wrap", [np.array, sparse.csr_array])
def test_data_are_read_only(wrap, roundtrip):
    original = small(X=wrap(np.arange(10.0).reshape(5, 2)))
    data = roundtrip(original)
    assert_same_rows(data, original)
    features = (data.X.data, data.X.indices, data.X.indptr) if data.is_sparse else (data.X,)
    for array in (*features, data.y, data.start, data.sizes, data.owner, data.origin):
        assert not array.flags.writeable
    with pytest.raises(AttributeError):
        data.y = None


@pytest.mark.parametrize("wrap", [np.array, sparse.csr_array])
def test_a_copy_is_neither_kept_nor_frozen(wrap):
    X, y, ids = wrap(np.ones((2, 2))), np.zeros(2), np.array([0, 1])
    data = AgentData(X, y, ids, copy=True)
    X[0, 0] = y[0] = ids[0] = 7
    assert dense(data)[0, 0] == 1
    assert data.y[0] == 0
    assert data.owner.tolist() == [0, 1]


@pytest.mark.parametrize("wrap", [np.array, sparse.csr_array])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_are_grouped_are_viewed_and_not_frozen(wrap, dtype):
    X, y, ids = wrap(np.arange(1, 9, dtype=dtype).reshape(4, 2)), np.zeros(4), np.array([3, 3, 5, 9])
    data = AgentData(X, y, ids)
    parts = [(data.y, y)] + ([(data.X.data, X.data), (data.X.indices, X.indices)] if data.is_sparse else [(data.X, X)])
    for stored, source in parts:
        assert np.shares_memory(stored, source)
        assert not stored.flags.writeable
        assert source.flags.writeable
    assert data.X.dtype == dtype
    assert data.members == (3, 5, 9)
    assert data.owner.tolist() == [0, 0, 1, 2]
    assert data.origin.tolist() == [0, 1, 2, 3]
    for other in (data.with_labels(y + 1.0), data.relabel([0, 1, 2]), AgentData(X, y, ids[::-1]), data.only([1, 2])):
        assert other.X.dtype == dtype
    assert not np.shares_memory(AgentData(X, y, ids[::-1]).y, y)


@pytest.mark.parametrize("wrap", [np.array, sparse.csr_array])
def test_single_precision_is_kept_and_can_be_asked_for(wrap):
    exact = np.array([[1.5, 0.0], [0.1, 2.0], [0.25, 3.0]])
    rounded = AgentData(wrap(exact), agents=[1, 0, 1], dtype="float32")
    assert rounded.X.dtype == np.float32
    np.testing.assert_array_equal(dense(rounded), exact.astype(np.float32)[[1, 0, 2]])
    assert AgentData(wrap(exact.astype(np.float32)), dtype="float64").X.dtype == np.float64
    assert rounded.append_column().X.dtype == np.float32
    assert rounded.append_column(0.1).X.dtype == np.float64
    assert AgentData(exact.astype(np.float16)).X.dtype == np.float64
    with pytest.raises(DataError, match=r"row 1 \(agent 0\): column 1 of X is inf"):
        AgentData(wrap([[1.0, 2.0], [1.0, 1e300]]), dtype="float32")
    with pytest.raises(ParameterError, match="int8"):
        AgentData(wrap(exact), dtype="int8")


def test_columns_of_a_frame_have_one_precision():
    single = pd.DataFrame({"a": np.float32([1, 2]), "b": np.float32([3, 4])})
    assert AgentData(single).X.dtype == np.float32
    assert AgentData(single.assign(b=[0.1, 0.2])).X.dtype == np.float64
    assert AgentData(single.assign(b=[1, 2])).X.dtype == np.float64


def test_a_fall_between_two_parts_is_seen(monkeypatch):
    monkeypatch.setattr("coterie.data.ids._PART", 3)
    for fall in range(1, 9):
        codes = np.arange(9)
        codes[fall:] -= 2
        assert not is_sorted(codes)
    assert is_sorted(np.arange(9))


# -------------------------------------------------------------------------------------------------- methods


def test_numbers():
    data = small()
    found = data.numbers(["cy", "nobody", "anna", 3, "cy"])
    assert found.dtype == np.int64
    assert found.tolist() == [2, -1, 0, -1, 2]
    assert data.numbers([]).tolist() == []
    assert AgentData([[1], [2]], agents=[5, 3]).numbers(np.array([5.0, 3.0, 4.5])).tolist() == [1, 0, -1]


def test_where_names_the_row_of_the_input():
    data = small()
    assert [data.where(row) for row in range(3)] == [
        "row 1 (agent 'anna')",
        "row 4 (agent 'anna')",
        "row 0 (agent 'bo')",
    ]


def test_with_labels():
    data = small(y=None)
    assert data.y is None
    assert data.rows_of("bo")[1] is None
    assert_same_rows(data.with_labels(range(5)), small())
    assert data.y is None
    assert_same_rows(small().with_labels(None), data)


def test_labels_of_a_part_are_those_of_its_rows_as_they_are_stored():
    """Also where its rows happen to be the first of the input: nobody should have to look."""
    y = np.arange(12.0)
    whole = AgentData(y[:, None], y, agents=["bo", "anna", "cy"] * 4)
    train, test = ct.splits.train_test(whole, test=0.5, seed=1)
    first = AgentData(y[:2, None], y[:2], agents=["bo", "anna"], members=["anna", "bo", "cy"])
    stored = pickle.loads(pickle.dumps(train))
    for part in (train, test, whole.only([2, 0]), train.only([1]), train.relabel([2, 0, 1]), stored):
        np.testing.assert_array_equal(part.with_labels(100 + part.y).y, 100 + part.y)
        np.testing.assert_array_equal(part.with_labels((100 + y)[part.origin]).y, 100 + part.X.ravel())
        kept = part.restrict(part.y > 4)
        np.testing.assert_array_equal(kept.y, part.y[part.y > 4])
        np.testing.assert_array_equal(kept.origin, kept.y)
        with pytest.raises(DataError, match=f"12 labels for {part.n_rows} rows"):
            part.with_labels(y)
    prefix = AgentData(y[:3, None], y[:3], agents=["bo", "anna", "cy"]).only([0, 1])  # rows 1 and 0 of three
    np.testing.assert_array_equal(prefix.with_labels([10, 20]).y, [10, 20])
    np.testing.assert_array_equal(first.with_labels([10, 20]).y, [20, 10])  # all of its input, in that order
    np.testing.assert_array_equal(whole.relabel([2, 0, 1]).with_labels(y).y, whole.relabel([2, 0, 1]).X.ravel())
    np.testing.assert_array_equal(whole.restrict(y < 6).with_labels(y[:6]).y, whole.restrict(y < 6).X.ravel())


@pytest.mark.parametrize("wrap", [np.array, sparse.csr_array])
def test_relabel(wrap):
    X = wrap(np.arange(10.0).reshape(5, 2))
    data = small(X=X, members=["anna", "bo", "cy", "dee"])
    moved = data.relabel([3, 1, 2, 0])
    assert_same_rows(moved, small(X=X, members=["dee", "bo", "cy", "anna"]))
    # A cycle, which unlike a swap differs from its inverse.
    assert data.relabel([1, 2, 3, 0]).members == ("bo", "cy", "dee", "anna")
    assert_same_rows(data.relabel([1, 2, 3, 0]), small(X=X, members=["bo", "cy", "dee", "anna"]))


@pytest.mark.parametrize("wrap", [np.array, sparse.csr_array])
def test_append_column(wrap):
    data = small(X=wrap(np.arange(10.0).reshape(5, 2)))
    wider = data.append_column(2.5)
    assert wider.is_sparse == data.is_sparse
    assert wider.p == 3
    np.testing.assert_array_equal(dense(wider), np.column_stack([dense(data), np.full(5, 2.5)]))
    np.testing.assert_array_equal(wider.origin, data.origin)
    assert wider.feature_names is None
    if data.is_sparse:
        assert wider.X.has_canonical_format
    else:
        assert wider.X.flags.c_contiguous


def test_append_column_extends_the_names():
    data = AgentData(frame(), "ill", "who").append_column(name="bias")
    assert data.feature_names == ("age", "score", "bias")
    assert data.X[:, 2].tolist() == [1, 1, 1]


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12), st.booleans())
def test_restrict_is_selecting_before(rows, as_sparse):
    ids, mask = np.array([agent for agent, _ in rows]), np.array([keep for _, keep in rows])
    X, y = np.arange(1.0, len(rows) + 1)[:, None], np.arange(len(rows))
    wrap = sparse.csr_array if as_sparse else np.array
    whole = AgentData(wrap(X), y, ids, members=range(4))
    assert_same_rows(whole.restrict(mask), AgentData(wrap(X[mask]), y[mask], ids[mask], members=range(4)))


def test_repr():
    assert repr(small()) == "AgentData(agents=3, rows=5 (1..2 per agent), features=2, dense, labelled)"
    assert repr(AgentData(sparse.eye_array(2), agents=[0, 1], members=[0, 1])) == (
        "AgentData(agents=2, rows=2 (1 per agent), features=2, sparse, unlabelled)"
    )
    assert "agents=4 (1 without rows), rows=5 (0..2 per agent)" in repr(small(members=["anna", "bo", "cy", "dee"]))


# ------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("wrap", [np.array, sparse.csr_array])
def test_nonfinite_features_are_named(bad, wrap):
    X = np.arange(10.0).reshape(5, 2)
    X[2, 1] = X[3, 0] = X[4, 0] = bad  # row 4 is stored before row 2, which comes first in the input
    with pytest.raises(DataError, match=rf"row 2 \(agent 'bo'\): column 1 of X is {bad}"):
        small(X=wrap(X))


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
@pytest.mark.parametrize("convert", [lambda table: table, convert_dtypes, to_polars])
def test_missing_values_of_a_frame_are_named(missing, convert):
    if convert is to_polars:
        missing = None  # its booleans know no other
    table = frame()
    table["ill"] = pd.Series([True, missing, False], dtype=object)
    with pytest.raises(DataError, match=r"row 1 \(agent 'anna'\): column 'ill' of X is nan"):
        AgentData(convert(table), agents="who")
    with pytest.raises(DataError, match=r"row 1 \(agent 'anna'\): the label is nan"):
        AgentData(convert(table), y="ill", agents="who")


def test_masked_entries_are_missing():
    X = np.ma.array(np.ones((2, 2)), mask=[[False, False], [False, True]])
    with pytest.raises(DataError, match=r"row 1 \(agent 0\): column 1 of X is nan"):
        AgentData(X)
    with pytest.raises(DataError, match="row 1 is missing"):
        AgentData(np.ones((2, 1)), agents=np.ma.array([3, 4], mask=[False, True]))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nonfinite_labels_are_named(bad):
    with pytest.raises(DataError, match=rf"row 2 \(agent 'bo'\): the label is {bad}"):
        small(y=[0, 1, bad, 3, bad])


@pytest.mark.parametrize("convert", [lambda table: table, convert_dtypes, to_polars])
def test_text_columns_are_named(convert):
    with pytest.raises(DataError, match="column 'who' holds text, such as 'bo'; encode it"):
        AgentData(convert(frame()))


ODD = {
    "holds text, such as '1'; encode it": pd.Series(["1", "2"]),
    "holds numbers and text: 1 at row 0 and '2' at row 1": pd.Series([1, "2"], dtype=object),
    "holds categories; encode it": pd.Series([1, 2], dtype="category"),
    "holds dates or times": pd.to_datetime(pd.Series(["2020-01-01", "2020-01-02"])),
    "holds complex numbers": pd.Series([1j, 2j]),
    r"is \[1\], a list": pd.Series([[1], [2]]),
}
REFUSED = [
    *((pd.DataFrame({"fine": [1, 2], "odd": column}), f"column 'odd' {what}") for what, column in ODD.items()),
    ([[1, "a"]], "X holds text"),
    ([[1j]], "X holds complex numbers"),
    (sparse.csr_array([[1j]]), "X holds complex128"),
    ([[1, 2], [3]], "X is not a regular array"),
    ([1, 2], r"X must be 2-D.* got shape \(2,\)"),
    (np.zeros((2, 2, 2)), r"X must be 2-D.* got shape \(2, 2, 2\)"),
    (sparse.coo_array(np.ones(3)), r"X must be 2-D.* got shape \(3,\)"),
    (np.zeros((2, 0)), "X has no columns"),
    (pd.DataFrame(index=[0, 1]), "X has no columns"),
    (np.empty((0, 2)), r"X has no rows; give members="),
    (np.array([[10**400]], dtype=object), "does not fit a float"),
    (pl.LazyFrame({"a": [1]}), r"LazyFrame; call \.collect"),
    (pl.DataFrame({"a": pl.Series([[1, 2]], dtype=pl.Array(pl.Int64, 2))}), r"row 0: column 'a' is .*, a list"),
]


@pytest.mark.every_case
@pytest.mark.parametrize(("X", "message"), REFUSED)
def test_features_that_are_refused(X, message):
    with pytest.raises(DataError, match=message):
        AgentData(X)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (lambda order=order: small().relabel(order), r"order must hold each of 0\.\.2 once")
            for order in ([0, 1], [0, 1, 1], [0, 1, 3], [[0, 1, 2, 3]], [0.5, 1, 2])
        ),
        *(
            (lambda mask=mask: small().restrict(mask), "mask must be 5 booleans")
            for mask in ([True, False], [1, 0, 1, 0, 1], [[True] * 5])
        ),
        (lambda: small().append_column(np.nan), "column 'intercept' must be finite, got nan"),
        (lambda: small().index("ana"), "no agent 'ana'; did you mean 'anna'"),
        (lambda: small().index("xxx"), r"no agent 'xxx'; there are 3: 'anna', 'bo', 'cy'$"),
        (lambda: small().index(["bo"]), r"no agent \['bo'\]"),
        (lambda: AgentData(np.zeros((9, 1)), agents=range(9)).index("who"), r"there are 9: 0, 1, 2, 3, 4, \.\.\."),
        (lambda: small().numbers(["cy", None]), "row 1 is missing"),
        (lambda: small().with_labels([0, 1, 2, None, 4]), r"row 3 \(agent 'cy'\): the label is nan"),
        (lambda: small().with_labels([0, 1]), "2 labels for 5 rows"),
    ],
)
def test_methods_refuse(call, message):
    with pytest.raises(DataError, match=message):
        call()


def test_a_frame_needs_a_feature_beside_labels_and_agents():
    with pytest.raises(DataError, match="X has no columns left"):
        AgentData(frame()[["ill", "who"]], y="ill", agents="who")


@pytest.mark.parametrize(
    "ids",
    [
        *(["bo", "anna", missing] for missing in (None, np.nan, pd.NA, pd.NaT, np.datetime64("NaT"))),
        np.array([0, 1, np.nan]),
        pd.Series([0, 1, None], dtype="Int64"),
        pd.Series(["a", "b", None]),
        pd.Series(["a", "b", None], dtype="category"),
        pd.to_datetime(pd.Series(["2020-01-01", "2020-01-02", None])),
    ],
)
def test_missing_ids_are_named(ids):
    with pytest.raises(DataError, match="agents: the id at row 2 is missing"):
        AgentData(np.zeros((3, 1)), agents=ids)


@pytest.mark.parametrize("convert", [lambda table: table, to_polars])
def test_unknown_columns_get_a_hint(convert):
    with pytest.raises(DataError, match="no column 'whom'; did you mean 'who'"):
        AgentData(convert(frame()), agents="whom")
    with pytest.raises(DataError, match="no column 'zzz'; there are 4: 'age', 'who', 'ill', 'score'"):
        AgentData(convert(frame()), y="zzz", agents="who")


def test_a_repeated_column_cannot_be_named():
    table = pd.DataFrame([[1, 2, 3]], columns=["a", "b", "a"])
    with pytest.raises(DataError, match="column 'a' occurs 2 times"):
        AgentData(table, agents="a")
    assert AgentData(table, agents="b").feature_names == ("a", "a")


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"y": ["sick", "well", "sick", "sick", "well"]}, "y holds text, such as 'sick'; labels must be numbers"),
        ({"y": pd.Series(list("ababa"), dtype="category")}, "y holds categories; labels must be numbers"),
        ({"y": [1, 2]}, "y has 2 labels for 5 rows"),
        ({"y": np.ones((5, 1))}, r"y must be 1-D.*\(5, 1\)"),
        ({"y": "ill"}, "column name 'ill' needs a DataFrame, but X is ndarray"),
        ({"agents": ["bo", ["x"], "bo", "cy", "cy"]}, r"agents: the id at row 1 is \['x'\], which is not hashable"),
        ({"agents": ["bo", "bo", (1, ["x"]), "cy", "cy"]}, r"the id at row 2 is \(1, \['x'\]\), which is not hashable"),
        ({"agents": ["bo", "anna"]}, "agents has 2 ids for 5 rows; one per row is needed"),
        ({"agents": np.array(["a"])}, "agents has 1 ids for 5 rows"),
        ({"agents": np.zeros((5, 2))}, r"agents must be 1-D.*\(5, 2\)"),
        ({"agents": {"bo": 1}}, "agents must be a list.* got dict"),
        ({"agents": {1, 2, 3, 4, 5}}, "agents must be a list.* got set"),
        ({"agents": 2.5}, "agents must be a list.* got float"),
        ({"agents": "who"}, "column name 'who' needs a DataFrame, but X is ndarray"),
        ({"members": ["anna", "bo", "cy", "bo", "anna"]}, "members holds 'bo' twice"),
        ({"members": ["anna", "cy"]}, r"row 0 \(agent 'bo'\): this agent is not among members"),
        ({"members": ["bo", "anna"]}, r"row 3 \(agent 'cy'\): this agent is not among members"),
        ({"agents": [1, 5, 1, 1, 1], "members": [1, 2]}, r"row 1 \(agent 5\): this agent is not among members="),
        ({"members": []}, "members is empty"),
        ({"members": ["anna", None]}, "members: the id at row 1 is missing"),
        ({"members": ["anna", ["bo"]]}, r"members: the id at row 1 is \['bo'\], which is not hashable"),
        ({"members": "abc"}, "members must be a list.* got str"),
    ],
)
def test_labels_agents_and_members_that_are_refused(given, message):
    with pytest.raises(DataError, match=message):
        small(**given)


def test_rows_of_agents_that_are_numbered_already():
    X, y, ids = np.arange(10.0).reshape(5, 2), np.arange(5.0), ["b", "a", "c", "a", "b"]
    codes, members = agent_codes(ids)
    assert_same_rows(AgentData.of_codes(X, y, codes, members), AgentData(X, y, agents=ids))
    with pytest.raises(DataError, match=r"row 3 \(agent 'a'\): column 1 of X is nan"):
        AgentData.of_codes(np.where(X == 7.0, np.nan, X), y, codes, members)
    with pytest.raises(DataError, match="y has 4 labels for 5 rows"):
        AgentData.of_codes(X, y[:4], codes, members)


# -------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".CSV", ".parquet", ".feather"])
def test_read_table(tmp_path, suffix):
    path = tmp_path / f"table{suffix}"
    if ".csv" in suffix.lower():
        frame().to_csv(path, index=False)
    else:
        pytest.importorskip("pyarrow")
        getattr(frame(), f"to_{suffix[1:]}")(path)
    pd.testing.assert_frame_equal(read_table(path), frame())
    pd.testing.assert_frame_equal(read_table(str(path)), frame())


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (["3", "-1", "20"], [3, -1, 20]),
        (["3", " 1"], [3, 1]),
        (["1.5", "2"], [1.5, 2.0]),
        (["007", "12"], ["007", "12"]),
        (["NA", "nan", "None"], ["NA", "nan", "None"]),
        (["1e5", "100000"], ["1e5", "100000"]),
        (["12345678901234567890123", "1"], ["12345678901234567890123", "1"]),
        (["ann", ""], ["ann", None]),
        (["1", ""], ["1", None]),
    ],
)
def test_ids_of_a_csv_file_stay_as_they_are_written(tmp_path, written, read):
    path = tmp_path / "table.csv"
    path.write_text("x,who\n" + "".join(f"007,{text}\n" for text in written))
    found = read_table(path, ids=["who", "nobody"])
    assert found["who"].tolist() == read
    assert found["x"].tolist() == [7] * len(read)  # other columns are numbers where they can be


def test_read_table_refuses(tmp_path):
    def refused(name, content, message):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(DataError, match=message) as caught:
            read_table(path)
        assert str(path) in str(caught.value)

    refused("missing.csv", None, "no such file")
    refused("table.xlsx", b"x", r"unknown kind of file; known are \.csv, ")
    refused("empty.csv", b"", "the file is empty")
    refused("blank.csv", b"\n\n", "cannot be read as .csv")
    refused("header.csv", b"a,b\n", "the table is empty")
    refused("empty.csv.gz", gzip.compress(b""), "cannot be read as .csv.gz")
    refused("plain.csv.gz", b"a,b\n1,2\n", "cannot be read as .csv.gz")
    refused("ragged.csv", b"a,b\n1,2\n1,2,3\n", "cannot be read as .csv")
    pytest.importorskip("pyarrow")
    refused("damaged.parquet", b"not parquet at all", "cannot be read as .parquet")
