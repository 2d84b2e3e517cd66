"""One look at pieces of a table finds what is found with all of it in one place.

References: ``Columns.learn`` and plain pandas on the whole table.
"""

from __future__ import annotations

import pickle
import sys
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import coterie as ct
from coterie.data.columns import Columns
from coterie.data.sources import is_source
from coterie.data.sources.survey import deal, survey
from coterie.errors import DataError, MissingExtra, ParameterError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
properties = settings(max_examples=60, deadline=None, derandomize=True)


def same_columns(found, wanted, scale=1.0):
    """Everything but the means is equal; these to 1e-12 of the size of the numbers."""
    one, two = found.to_dict(), wanted.to_dict()
    means = [one.pop("means"), two.pop("means")]
    assert one == two
    assert [mean is None for mean in means[0]] == [mean is None for mean in means[1]]
    for mine, theirs in zip(*means, strict=True):
        assert mine is None or mine == pytest.approx(theirs, rel=1e-12, abs=1e-12 * scale)


# -- the same as in one place ----------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.sampled_from([0.0, 1.0, -0.0, 2.0, np.nan, 0.5]), st.floats(-1e6, 1e6, allow_subnormal=False), st.just(np.nan)
)
CELLS = {
    "number": NUMBERS,
    "whole": st.integers(-3, 3),
    "text": st.sampled_from(["red", "blue", "green", "NA", None]),
    "category": st.sampled_from(["a", "b", None]),
    "bool": st.booleans(),
    "empty": st.just(np.nan),
}


@st.composite
def tables(draw):
    """A frame with columns of all kinds, some of them copies of others; and whose each row is."""
    rows = draw(st.integers(2, 14))
    frame = pd.DataFrame(index=range(rows))
    for j in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from([*CELLS, "copy", "flag"]))
        if kind in ("copy", "flag") and j == 0:
            kind = "number"
        if kind == "copy":
            frame[f"c{j}"] = frame[draw(st.sampled_from(list(frame.columns)))]
        elif kind == "flag":  # equal to an encoded column of a column of text, or an indicator of gaps
            other = frame[draw(st.sampled_from(list(frame.columns)))]
            frame[f"c{j}"] = (other.astype(object) == draw(st.sampled_from(["red", "a", 1.0]))).astype(float)
        else:
            values = [draw(CELLS[kind]) for _ in range(rows)]
            dtype = {"category": "category", "text": object}.get(kind)
            frame[f"c{j}"] = pd.Series(values, dtype=dtype)
    who = [draw(st.integers(0, 3)) for _ in range(rows)]
    y = [draw(st.integers(0, 2)) for _ in range(rows)]
    cuts = draw(st.lists(st.integers(0, rows), max_size=4))
    return frame, who, y, sorted(cuts)


def apart(monkeypatch, cells=1):
    """Look at every piece, or chunk, by itself: what is known of them has to be added up."""
    monkeypatch.setattr("coterie.data.sources.look.MAX_BUNDLE_PIECES", 1)
    monkeypatch.setattr("coterie.data.sources.rows.MAX_BATCH_CELLS", cells)


def pieces_of(frame, cuts):
    edges = [0, *cuts, len(frame)]
    return [frame.iloc[a:b] for a, b in pairwise(edges) if a < b]


@properties
@given(tables(), st.booleans())
def test_pieces_of_any_table_add_up_to_it(table, together):
    with pytest.MonkeyPatch.context() as monkeypatch:
        if not together:
            apart(monkeypatch)
        add_up(table)


def add_up(table):
    frame, who, y, cuts = table
    try:
        wanted, matrix = Columns.learn(frame)
    except DataError as error:
        with pytest.raises(DataError, match=str(error)[:20].replace("(", r"\(")):
            survey({0: (frame, y)}, target=None)
        return
    parts = pieces_of(frame.assign(who=who, y=y), cuts)
    found = survey(dict(enumerate((part.drop(columns=["who", "y"]), part["y"]) for part in parts)), target=None)
    same_columns(found.columns, wanted, 1e6)
    assert found.label_mean == pytest.approx(np.mean(y), rel=1e-12)
    assert found.label_scale == pytest.approx(np.std(y), rel=1e-12, abs=1e-12)
    loaded = found.load(np.arange(found.n))
    np.testing.assert_allclose(loaded.X, matrix, rtol=0, atol=1e-6)
    assert loaded.y.tolist() == list(map(float, y))


@pytest.mark.slow
@properties
@given(tables(), st.randoms(use_true_random=False), st.booleans())
def test_a_column_of_agents_over_many_files_in_any_order(tmp_path_factory, table, shuffle, together):
    with pytest.MonkeyPatch.context() as monkeypatch:
        if not together:
            apart(monkeypatch)
        over_files(tmp_path_factory, table, shuffle)


def over_files(tmp_path_factory, table, shuffle):
    frame, who, y, cuts = table
    folder = tmp_path_factory.mktemp("files")
    try:
        wanted, matrix = Columns.learn(frame)
    except DataError:
        return
    for k, part in enumerate(pieces_of(frame.assign(who=who, y=y), cuts)):
        columns = list(part.columns)
        if k:
            shuffle.shuffle(columns)
        part[columns].to_parquet(folder / f"{k}.parquet")
    found = survey(folder, target="y", agents="who", labels="class")
    same_columns(found.columns, wanted, 1e6)
    assert found.members == tuple(sorted(set(who)))
    assert found.sizes.tolist() == [who.count(member) for member in found.members]
    assert found.classes.tolist() == sorted(set(y))
    # Whoever loads which members, rows are the same, in the same order.
    for hands in ([np.arange(found.n)], deal(found.sizes, 2), [np.array([k]) for k in range(found.n)][::-1]):
        for which in hands:
            loaded = found.load(which)
            for place, k in enumerate(which.tolist()):
                rows = [row for row, owner in enumerate(who) if owner == found.members[k]]
                np.testing.assert_allclose(loaded.X[loaded.codes == place], matrix[rows], rtol=0, atol=1e-6)
                assert found.classes[loaded.y[loaded.codes == place]].tolist() == [y[row] for row in rows]
            assert (np.diff(loaded.codes) >= 0).all()
            assert loaded.members == tuple(found.members[k] for k in which.tolist())


def test_single_precision_stays_and_is_compared_as_it_is_encoded():
    # The mean of the first column, in single precision, is what the second one holds there: they are copies.
    rows = np.array([[0.1, 0.1], [np.nan, np.float32(0.15)], [0.2, 0.2]], np.float32)
    wanted, matrix = Columns.learn(rows)
    found = survey({k: (rows[k : k + 1], [k]) for k in range(3)}, target=None)
    same_columns(found.columns, wanted)
    assert wanted.names == ("x0", "x0 missing")
    loaded = found.load([0, 1, 2])
    assert loaded.X.dtype == matrix.dtype == np.float32
    np.testing.assert_array_equal(loaded.X, matrix)


def test_large_numbers_have_a_finite_mean():
    rows = np.array([[1e308], [1.2e308], [-1e308], [1.1e308]])
    found = survey({k: (rows[2 * k : 2 * k + 2], [0, 1]) for k in range(2)}, target=None)
    assert found.columns.means[0] == pytest.approx(Columns.learn(rows)[0].means[0], rel=1e-12)


def test_columns_that_differ_in_one_row_of_many_are_no_copies():
    rng = np.random.default_rng(0)
    for _ in range(50):
        one = rng.integers(0, 4, 64).astype(float)
        two = one.copy()
        two[rng.integers(64)] += 1.0  # few bits differ, and all of them high ones
        X = np.column_stack([one, two, one])
        found = survey({0: (X[:20], one[:20]), 1: (X[20:], one[20:])}, target=None)
        assert found.columns.names == ("x0", "x1")


@pytest.mark.parametrize("bundle", [1, 128])
def test_the_same_rows_in_another_piece_are_other_rows(monkeypatch, bundle):
    apart(monkeypatch)
    monkeypatch.setattr("coterie.data.sources.look.MAX_BUNDLE_PIECES", bundle)
    one, two = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.0, 1.0], [1.0, 0.0]])
    assert survey({0: (one, [0, 1]), 1: (two, [0, 1])}, target=None).columns.names == ("x0", "x1")


def test_constants_that_differ_between_pieces_are_no_constant(monkeypatch):
    apart(monkeypatch)
    rows = {k: (np.full((2, 1), float(k // 2)), [0, 1]) for k in range(4)}
    assert survey(rows, target=None).columns.names == ("x0",)


def test_minus_zero_is_zero():
    X = np.array([[0.0, -0.0], [1.0, 1.0], [-0.0, 0.0]])
    assert survey({0: (X, [0, 1, 2])}, target=None).columns.names == ("x0",)


def test_many_texts_are_refused_or_cut_as_in_one_place():
    many = pd.DataFrame({"t": [f"level {k % 80}" for k in range(400)], "y": 0.0})
    parts = {k: many.iloc[k::4] for k in range(4)}
    same_columns(survey(parts, target="y").columns, Columns.learn(many[["t"]])[0])
    with pytest.raises(DataError, match="column 't': 400 different texts in 400 values"):
        survey({k: part.assign(t=[f"{k} {i}" for i in range(100)]) for k, part in parts.items()}, target="y")


def test_constant_columns_stay_if_they_are_asked_to():
    rows = {k: (np.array([[1.0, k, k], [1.0, 2.0, 2.0]]), [0, 1]) for k in range(3)}
    assert survey(rows, target=None).columns.names == ("x1",)
    found = survey(rows, target=None, drop=False)
    assert found.columns.names == ("x0", "x1", "x2")
    np.testing.assert_array_equal(found.load([2]).X, rows[2][0])


# -- files -----------------------------------------------------------------------------------------------------------


def shops(rows=60, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"shop": rng.choice(["007", "12", "NA"], rows), "price": rng.normal(size=rows).round(3)})
    frame["region"] = rng.choice(["north", "south"], rows)
    frame["size"] = rng.integers(1, 5, rows)
    frame["sales"] = (10 * frame["price"]).round(2)
    return frame


def whole(frame, agents="shop", target="sales"):
    return Columns.learn(frame.drop(columns=[agents, target]))[0]


def check(found, frame, agents="shop", target="sales"):
    """All rows are there, each with its agent's others, in their order."""
    same_columns(found.columns, whole(frame, agents, target))
    names = [str(member) for member in found.members]
    assert sorted(names) == sorted(set(frame[agents].astype(str)))
    loaded = found.load(np.arange(found.n))
    X = found.columns.apply(frame.drop(columns=[agents, target]))
    for k, name in enumerate(names):
        mine = (frame[agents].astype(str) == name).to_numpy()
        np.testing.assert_allclose(loaded.X[loaded.codes == k], X[mine], rtol=0, atol=1e-12)
        np.testing.assert_allclose(loaded.y[loaded.codes == k], frame[target][mine], rtol=0, atol=0)


WRITERS = {
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "csv.gz": lambda frame, path: frame.to_csv(path, index=False),
    "parquet": lambda frame, path: frame.to_parquet(path),
    "feather": lambda frame, path: frame.reset_index(drop=True).to_feather(path),
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("form", ["directory", "glob", "list", "file URL", "path"])
def test_a_column_of_agents(tmp_path, kind, form):
    frame = shops()
    folder = tmp_path / "visits"
    folder.mkdir()
    paths = []
    for k in range(3):
        paths.append(folder / f"part-{k}.{kind}")
        WRITERS[kind](frame.iloc[20 * k : 20 * k + 20], paths[-1])
    (folder / "_SUCCESS").write_text("")
    (folder / "README.txt").write_text("not a table")
    data = {
        "directory": str(folder),
        "glob": f"{folder}/*.{kind}",
        "list": paths,
        "file URL": folder.as_uri(),
        "path": folder,
    }[form]
    check(survey(data, target="sales", agents="shop"), frame)


@pytest.mark.parametrize("kind", WRITERS)
def test_the_name_of_the_file_is_the_agent(tmp_path, kind):
    frame = shops()
    for shop, rows in frame.groupby("shop"):
        WRITERS[kind](rows.drop(columns="shop"), tmp_path / f"{shop}.{kind}")
    found = survey(tmp_path, target="sales")
    assert found.members == ("007", "12", "NA")
    assert found.agent_column is None
    check(found, frame)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("agents", [None, "shop"])
def test_hive_partitions(tmp_path, kind, agents):
    frame = shops()
    for (shop, size), rows in frame.groupby(["shop", frame.index % 2]):
        folder = tmp_path / "run=3" / "visits" / f"shop={shop}"
        folder.mkdir(parents=True, exist_ok=True)
        twice = agents is not None and size == 1  # some programs write what the path says into the file, too
        WRITERS[kind](rows if twice else rows.drop(columns="shop"), folder / f"part-{size}.{kind}")
    found = survey(tmp_path / "run=3" / "visits", target="sales", agents=agents)
    assert found.members == ("007", "12", "NA")
    assert found.agent_column == "shop"
    order = frame.sort_values("shop", kind="stable", key=lambda column: [["007", "12", "NA"].index(c) for c in column])
    parts = pd.concat([order[order.index % 2 == half] for half in range(2)])
    check(found, parts.sort_values("shop", kind="stable"))


def test_other_partitions_are_columns(tmp_path):
    frame = shops()
    for (shop, region, size), rows in frame.groupby(["shop", "region", "size"]):
        folder = tmp_path / f"region={region}" / f"size={size}" / f"shop={shop}"
        folder.mkdir(parents=True)
        rows[["price", "sales"]].to_parquet(folder / "part-0.parquet")
    found = survey(tmp_path, target="sales", agents="shop")
    one = whole(frame)
    assert sorted(found.columns.names) == sorted(one.names)
    assert dict(zip(found.columns.input_names, found.columns.kinds, strict=True)) == {
        "price": "number",
        "region": "text",
        "size": "number",
    }
    by_file = survey(f"{tmp_path}/*/*/*/*.parquet", target="sales")  # several partitions, none named: by file
    assert by_file.members == ("part-0",)


def test_ids_are_numbers_if_all_are_written_as_numbers(tmp_path):
    for name, ids in {
        "whole": ["10", "9", "-3"],
        "real": ["1", "1.5"],
        "text": ["1", "007"],
        "big": ["1" * 20],
    }.items():
        (tmp_path / name).mkdir()
        for k, each in enumerate(ids):
            (tmp_path / name / f"{k}.csv").write_text(f"who,x,y\n{each},1,2\n{each},2,3\n")
    kinds = {
        name: survey(tmp_path / name, target="y", agents="who").members for name in ("whole", "real", "text", "big")
    }
    assert kinds == {"whole": (-3, 9, 10), "real": (1.0, 1.5), "text": ("007", "1"), "big": ("1" * 20,)}
    assert all(type(member) is int for member in kinds["whole"])
    assert survey(tmp_path / "whole", target="y", agents=None).members == (0, 1, 2)


def test_typed_ids_and_written_ones_are_the_same_agents(tmp_path):
    (tmp_path / "a.csv").write_text("who,x,y\n1,1,1\n2,2,2\n")
    pd.DataFrame({"who": [2, 3], "x": [3.0, 4.0], "y": [3.0, 4.0]}).to_parquet(tmp_path / "b.parquet")
    found = survey(tmp_path, target="y", agents="who")
    assert found.members == (1, 2, 3)
    assert found.sizes.tolist() == [1, 2, 1]
    pd.DataFrame({"who": ["2", "3"], "x": [3.0, 4.0], "y": [3.0, 4.0]}).to_parquet(tmp_path / "b.parquet")
    assert survey(tmp_path, target="y", agents="who").members == ("1", "2", "3")


# -- columns of csv files that look different ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("1\n2\n2\n", "x\n1\n2\n"),  # numbers and text
        ("1\n2\n3\n", "0.5\n1\n2.50\n"),  # whole and other numbers
        ("True\nFalse\nTrue\n", "1\n0\n1\n"),  # booleans and numbers: text, in one file
        ("True\nFalse\nTrue\n", "True\nFalse\nFalse\n"),
        ("True\n\nTrue\n", "False\nFalse\nTrue\n"),  # booleans and gaps
        ("007\n12\n007\n", "A7\n12\nA7\n"),  # codes that look like numbers
        ("\n\n\n", "a\nb\na\n"),  # nothing and text
        ("\n\n\n", "1\n2\n\n"),
        ("NA\nnull\n\n", "\n\nNaN\n"),
        ("1\n\n2\n", "x\ny\nx\n"),
        (f"{2**53}\n1\n2\n", f"{10**21}\n1\n2\n"),  # larger than any integer
    ],
)
def test_csv_files_are_read_as_one_file_with_all_rows(tmp_path, one, two):
    header, ends = "who,x,z,y\n", [f",{k},{k % 2}\n" for k in range(6)]
    lines = [f"{k % 2},{cell}{end}" for k, (cell, end) in enumerate(zip((one + two).splitlines(), ends, strict=True))]
    (tmp_path / "a.csv").write_text(header + "".join(lines[:3]))
    (tmp_path / "b.csv").write_text(header + "".join(lines[3:]))
    (tmp_path / "all.csv").write_text(header + "".join(lines))
    table = pd.read_csv(tmp_path / "all.csv")
    wanted, matrix = Columns.learn(table[["x", "z"]])
    for paths in (["a.csv", "b.csv"], ["b.csv", "a.csv"]):
        found = survey([tmp_path / path for path in paths], target="y", agents="who")
        same_columns(found.columns, wanted, 1e22)
        loaded = found.load([0, 1])
        expected = np.concatenate([matrix[table["who"] == k] for k in range(2)])
        for one_row, other in zip(np.sort(loaded.X, axis=0), np.sort(expected, axis=0), strict=True):
            np.testing.assert_allclose(one_row, other, rtol=1e-12, atol=1e-12)


def test_a_csv_file_in_chunks_is_read_as_one(tmp_path, monkeypatch):
    frame = shops(90)
    frame["code"] = ["12"] * 70 + ["A7"] * 10 + ["13"] * 10  # text, which shows in one of the last chunks
    frame["late"] = [np.nan] * 80 + [1.0] * 5 + [2.0] * 5
    frame.to_csv(tmp_path / "a.csv", index=False)
    monkeypatch.setattr("coterie.data.sources.readers.LARGE_FILE_BYTES", 100)
    monkeypatch.setattr("coterie.data.sources.readers.CSV_CHUNK_ROWS", 7)
    found = survey(tmp_path / "a.csv", target="sales", agents="shop")
    table = pd.read_csv(tmp_path / "a.csv", dtype={"shop": str}, keep_default_na=False, na_values={"late": [""]})
    check(found, table)
    assert found.columns.kinds == ("number", "text", "number", "text", "number")


def test_a_large_parquet_file_is_read_by_row_groups(tmp_path, monkeypatch):
    frame = shops(200).sort_values("shop", kind="stable").reset_index(drop=True)
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=10)
    monkeypatch.setattr("coterie.data.sources.pieces.LARGE_FILE_BYTES", 100)
    found = survey(tmp_path, target="sales", agents="shop")
    check(found, frame)
    assert len(found._pieces) == 20
    asked = []
    real = pq.ParquetFile.read_row_group
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda file, i, **k: asked.append(i) or real(file, i, **k))
    found.load([2])
    first = int((frame["shop"] != "NA").sum()) // 10
    assert asked == list(range(first, 20))  # only those with rows of this shop


def test_numbers_here_and_text_there_are_refused_by_file_and_column(tmp_path):
    rows = pd.DataFrame({"x": [1.0, 2.0], "y": [0.0, 1.0]})
    rows.to_parquet(tmp_path / "a.parquet")
    rows.assign(x=["u", "v"]).to_parquet(tmp_path / "b.parquet")
    message = r"column 'x' holds numbers in .*a\.parquet and text in .*b\.parquet; make it one of them"
    with pytest.raises(DataError, match=message):
        survey(tmp_path, target="y")
    rows.assign(x=pd.Categorical(["u", "v"])).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"numbers in .*a\.parquet and a category in .*b\.parquet"):
        survey(tmp_path, target="y")
    rows.assign(x=["u", "v"]).to_parquet(tmp_path / "a.parquet")
    assert survey(tmp_path, target="y").columns.kinds == ("text",)  # a category and text are text


def test_columns_are_matched_by_name(tmp_path):
    frame = shops()
    frame.iloc[:30].to_csv(tmp_path / "a.csv", index=False)
    frame.iloc[30:][["sales", "size", "region", "shop", "price"]].to_csv(tmp_path / "b.csv", index=False)
    check(survey(tmp_path, target="sales", agents="shop"), frame)
    for k in range(3):
        frame.iloc[:10].to_csv(tmp_path / f"c{k}.csv", index=False)
    frame.iloc[30:].drop(columns="size").to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(DataError, match=r"b\.csv: no column 'size', which .*a\.csv has"):
        survey(tmp_path, target="sales", agents="shop")
    frame.iloc[30:].assign(extra=1).to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(DataError, match=r"b\.csv: a column 'extra' that .*a\.csv does not have; name the features"):
        survey(tmp_path, target="sales", agents="shop")
    source = ct.data.Source(tmp_path, columns=["size", "price"])
    assert survey(source, target="sales", agents="shop").columns.input_names == ("size", "price")


def test_columns_chosen_by_name_are_the_only_ones_that_are_read(tmp_path):
    frame = shops().assign(bad=[[1]] * 60)
    frame.to_parquet(tmp_path / "a.parquet")
    found = survey(ct.data.Source(tmp_path, columns=["size"]), target="sales", agents="shop")
    assert found.columns.names == ("size",)
    with pytest.raises(DataError, match="column 'bad'"):
        survey(tmp_path, target="sales", agents="shop")
    with pytest.raises(DataError, match=r"no column 'sise'; did you mean 'size'"):
        survey(ct.data.Source(tmp_path, columns=["sise"]), target="sales", agents="shop")
    with pytest.raises(ParameterError, match="'sales' is the column of the labels or the agents"):
        survey(ct.data.Source(tmp_path, columns=["sales"]), target="sales", agents="shop")


# -- labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [
        ["no", "yes", "no", "yes"],
        [True, False, False, True],
        [0, 1, 1, 0],
        [-1.0, 1.0, 1.0, -1.0],
        [3, 1, 2, 3],
        pd.Categorical(["b", "a", "b", "a"]),
        pd.array([1, 2, 2, 1], dtype="Int64"),
    ],
    ids=lambda labels: str(list(labels)),
)
@pytest.mark.parametrize("kind", ["parquet", "csv", "frames"])
def test_classes_of_any_kind(tmp_path, labels, kind):
    frame = pd.DataFrame({"who": [1, 1, 2, 2], "x": [1.0, 2.0, 3.0, 4.0], "y": labels})
    data = {"a": frame.iloc[:2].drop(columns="who"), "b": frame.iloc[2:].drop(columns="who")}
    if kind != "frames":
        for k in range(2):
            WRITERS[kind](frame.iloc[2 * k : 2 * k + 2], tmp_path / f"{k}.{kind}")
        data = tmp_path
    found = survey(data, target="y", agents=None if kind == "frames" else "who", labels="class")
    assert found.classes.tolist() == sorted(set(list(labels)))
    assert found.classes[found.load([0, 1]).y].tolist() == list(labels)


def test_whole_numbers_in_one_file_and_others_in_the_next(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,1\n2,2\n")
    (tmp_path / "b.csv").write_text("x,y\n1,1.0\n2,2.0\n")
    assert survey(tmp_path, target="y", labels="class").classes.tolist() == [1.0, 2.0]
    (tmp_path / "b.csv").write_text("x,y\n1,1\n2,two\n")  # as in one file: text
    found = survey(tmp_path, target="y", labels="class")
    assert found.classes.tolist() == ["1", "2", "two"]
    assert found.load([0]).y.tolist() == [0, 1]
    pd.DataFrame({"x": [1, 2], "y": [1, 2]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"labels 'y' are numbers in .*a\.parquet and text in .*\.csv"):
        survey(tmp_path, target="y", labels="class")


def test_numbers_are_no_classes():
    y = np.random.default_rng(0).normal(size=10_001)
    with pytest.raises(DataError, match="'y' has more than 10000 different values: these are numbers, not classes"):
        survey({0: (np.ones((y.size, 1)), y)}, target=None, labels="class")


# -- agents that do not do -------------------------------------------------------------------------------------------


def good(k=0):
    return np.array([[1.0 + k, 2.0], [3.0, 4.0]]), np.array([0.0, 1.0])


def broken():
    raise OSError("no such disk")


BAD = {
    "unreadable": ("damaged.parquet", "cannot be read as .parquet: "),
    "gone": ("gone.csv", "no such file"),
    "no such folder": ("none", "no such file or directory"),
    "a glob": ("none/*.csv", "no file matches"),
    "an empty folder": ("nothing", "no file there ends in"),
    "empty": ("empty.csv", "the file is empty"),
    "only a header": ("header.csv", "no rows"),
    "a ragged file": ("ragged.csv", "cannot be read as .csv: "),
    "no label": ("unlabelled.csv", "row 1: the label is missing"),
    "another label": ("text.csv", "row 1: the label is 'much', which is no number"),
    "no column": ("column.csv", "no column 'y'; there are 2: 'a', 'b'"),
    "fails": (broken, "its function raised OSError: no such disk"),
    "one thing": (lambda: [1], r"its function must return a DataFrame or (X, y), and returned 1 things"),
    "nothing": (lambda: None, "its function must return a DataFrame or (X, y), and returned NoneType"),
    "a number": (3, "it must be a DataFrame or (X, y), and found int"),
    "unlabelled": ((np.ones((2, 2)), None), "it must be (X, y) with one label for each row, and y is None"),
    "too few labels": ((np.ones((2, 2)), [1.0]), "y has 1 labels for 2 rows"),
    "one dimension": ((np.ones(2), [1.0, 2.0]), "X must be 2-D"),
    "no rows": ((np.empty((0, 2)), []), "no rows"),
    "infinite": ((np.array([[1.0, 2.0], [np.inf, 1.0]]), [0.0, 1.0]), "row 1: column 0 is inf"),
    "infinite label": ((np.ones((2, 2)), [0.0, np.inf]), "row 1: the label is inf"),
    "complex": ((np.ones((2, 2)) * 1j, [0.0, 1.0]), "Complex data not supported"),
    "dates": ((np.full((2, 2), np.datetime64("2020-01-01")), [0.0, 1.0]), "X holds dates or times"),
    "too wide": ((np.ones((2, 3)), [0.0, 1.0]), "3 features, but agent 'good 0' has 2"),
    "pickled": ("pickled.npz", "array 'X' holds pickled objects, which are never loaded"),
}


@pytest.fixture
def bad(tmp_path):
    """Agents that cannot be used, and some that can."""
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "damaged.parquet")
    (tmp_path / "damaged.parquet").write_bytes((tmp_path / "damaged.parquet").read_bytes()[:-9])
    texts = {
        "empty": "",
        "header": "a,b,y\n",
        "ragged": "a,b,y\n1,2,3\n1,2,3,4,5\n",
        "unlabelled": "a,b,y\n1,2,3\n1,2,\n",
    }
    texts |= {"text": "a,b,y\n1,2,3\n1,2,much\n", "column": "a,b\n1,2\n"}
    for name, text in texts.items():
        (tmp_path / f"{name}.csv").write_text(text)
    (tmp_path / "nothing").mkdir()
    np.savez(tmp_path / "pickled.npz", X=np.array([[{}]], object), y=[1.0])
    agents = {f"good {k}": good(k) for k in range(3)}
    for name, (data, _) in BAD.items():
        agents[name] = tmp_path / data if isinstance(data, str) else data
    return agents | {"good 3": good(3)}


def test_all_bad_agents_are_listed(bad):
    with pytest.raises(DataError) as caught:
        survey(bad, target="y")
    first, *lines = str(caught.value).split("\n")
    assert first.startswith(
        f"{len(BAD)} agents or files cannot be used; correct what is wrong, or leave such agents out"
    )
    assert len(lines) == 21
    assert lines[-1] == f"  and {len(BAD) - 20} more"
    for line in lines[:-1]:
        name = line.partition("'")[2].partition("'")[0]
        assert BAD[name][1] in line, line


def test_bad_agents_are_left_out_if_asked(bad, caplog):
    found = survey(ct.data.Source(bad, bad_agents="skip"), target="y")
    wanted = survey({name: rows for name, rows in bad.items() if name.startswith("good")}, target="y")
    assert found.members == wanted.members
    same_columns(found.columns, wanted.columns)
    np.testing.assert_array_equal(found.load([0, 1, 2, 3]).X, wanted.load([0, 1, 2, 3]).X)
    assert {name: BAD[name][1] in reason for name, reason in found.left_out.items()} == dict.fromkeys(BAD, True)
    [record] = caplog.records
    assert record.getMessage().startswith(f"left out {len(BAD)}: ")
    assert f"and {len(BAD) - 20} more" in record.getMessage()


def test_nobody_is_left(bad):
    for data in ({"a": bad["gone"]}, ct.data.Source({"a": bad["gone"], "b": broken}, bad_agents="skip")):
        with pytest.raises(DataError, match=r"agent 'a' .*no such file") as caught:
            survey(data, target="y")
        assert "skip" not in str(caught.value)


def test_one_mistake_is_told_once(tmp_path):
    for k in range(30):
        (tmp_path / f"{k}.csv").write_text("a,Y\n1,2\n")
    with pytest.raises(DataError) as caught:
        survey(tmp_path, target="y")
    assert str(caught.value).startswith("30 times the same problem, first in agent '0' (")
    assert str(caught.value).endswith("no column 'y'; there are 2: 'a', 'Y'")


@pytest.mark.parametrize("shuffled", [False, True])
def test_an_agent_that_turns_out_bad_leaves_no_trace(tmp_path, shuffled):
    """Its rows in other files, which could be read, are not counted."""
    frame = shops(90)
    frame.loc[[40, 77], "sales"] = [np.nan, np.inf]
    gone = set(frame.loc[[40, 77], "shop"])
    order = np.random.default_rng(1).permutation(9) if shuffled else range(9)
    for k, part in enumerate(order):
        frame.iloc[10 * part : 10 * part + 10].to_parquet(tmp_path / f"{k}.parquet")
    found = survey(ct.data.Source(tmp_path, bad_agents="skip"), target="sales", agents="shop")
    assert set(found.left_out) == gone
    left = pd.concat([frame.iloc[10 * part : 10 * part + 10] for part in order])
    check(found, left[~left["shop"].isin(gone)])


def test_rows_that_are_nobodys(tmp_path):
    frame = shops()
    frame["shop"] = frame["shop"].astype(object)
    frame.loc[[3, 4], "shop"] = None
    for kind in ("csv", "parquet"):
        path = tmp_path / f"a.{kind}"
        WRITERS[kind](frame, path)
        with pytest.raises(DataError, match=rf"a\.{kind}: row 3: the agent is missing, as in 1 more"):
            survey(path, target="sales", agents="shop")
        found = survey(ct.data.Source(path, bad_agents="skip"), target="sales", agents="shop")
        check(found, frame.drop(index=[3, 4]))
        assert list(found.left_out) == [str(path)]


def test_a_file_of_many_agents_that_cannot_be_read(tmp_path):
    frame = shops()
    frame.iloc[:30].to_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"b\.parquet: cannot be read as \.parquet"):
        survey(tmp_path, target="sales", agents="shop")
    found = survey(ct.data.Source(tmp_path, bad_agents="skip"), target="sales", agents="shop")
    check(found, frame.iloc[:30])


def test_gaps_are_refused_by_agent_if_asked():
    rows = {"a": (np.array([[1.0], [np.nan]]), [0, 1]), "b": good(), "c": (np.array([[np.nan], [2.0]]), [0, 1])}
    rows["b"] = (rows["b"][0][:, :1], rows["b"][1])
    assert survey(rows, target=None).columns.names == ("x0", "x0 missing")
    with pytest.raises(
        DataError, match=r"(?s)2 agents.*'a': row 1: column 0 is missing.*'c': row 0: column 0 is missing"
    ):
        survey(rows, target=None, missing="error")


# -- other things that rows come from --------------------------------------------------------------------------------


def test_kinds_of_a_mapping_may_be_mixed(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0], "y": [0.0, 1.0]})
    np.savez(tmp_path / "t.npz", X=frame[["a", "b"]], y=frame["y"])
    data = {"z": frame, ("f", 1): lambda: frame[["y", "b", "a"]], 3: good(), "npz": str(tmp_path / "t.npz")}
    data["pair"] = lambda: (frame[["a", "b"]], frame["y"].tolist())
    data["arrow"] = pa.table(frame)
    for kind, write in WRITERS.items():
        write(frame, tmp_path / f"t.{kind}")
        data[kind] = tmp_path / f"t.{kind}"
    if polars := pytest.importorskip("polars"):
        data["polars"] = polars.DataFrame(frame.to_dict("list"))
    found = survey(data, target="y")
    assert found.members == tuple(data)
    assert found.columns.names == ("a", "b")
    for k, name in enumerate(data):
        loaded = found.load([k])
        np.testing.assert_array_equal(loaded.X, good()[0] if name == 3 else frame[["a", "b"]])
        assert loaded.y.tolist() == [0.0, 1.0]


def test_sparse_rows_stay_sparse():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9, 4)) * (rng.random((9, 4)) < 0.5)
    parts = {k: (sparse.csr_array(X[3 * k : 3 * k + 3]), [0.0, 1.0, 2.0]) for k in range(3)}
    for data in (
        parts,
        parts | {1: (X[3:6], [0.0, 1.0, 2.0])},
        parts | {1: (pd.DataFrame(X[3:6], columns=list("abcd")), [0, 1, 2])},
    ):
        found = survey(data, target=None)
        same_columns(found.columns, Columns.learn(sparse.csr_array(X))[0])
        loaded = found.load([2, 0, 1])
        assert isinstance(loaded.X, sparse.csr_array)
        np.testing.assert_array_equal(loaded.X.toarray(), X[[6, 7, 8, 0, 1, 2, 3, 4, 5]])
    with pytest.raises(DataError, match="column 'a' holds text, and the rows of other agents are sparse"):
        survey(parts | {1: (pd.DataFrame({"a": ["u", "v", "u"], "b": 1, "c": 2, "d": 3}), [0, 1, 2])}, target=None)


def test_a_frame_is_a_source_and_rows_are_not(tmp_path):
    frame = shops()
    check(survey(ct.data.Source(frame), target="sales", agents="shop"), frame)
    assert all(map(is_source, ["a", tmp_path, ["a.csv"], {}, ct.data.Source("a"), {1: frame}]))
    assert not any(
        map(is_source, [frame, np.ones((2, 2)), [[1.0]], [], sparse.eye_array(2), sparse.dok_array((2, 2)), None])
    )


def test_remote_files(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    frame = shops()
    try:
        for k, (shop, rows) in enumerate(frame.groupby("shop")):
            for kind in ("csv", "parquet"):
                with memory.open(f"/{kind}s/shop={shop}/part-{k}.{kind}", "wb") as file:
                    rows.drop(columns="shop").to_csv(file, index=False) if kind == "csv" else file.write(parquet(rows))
        for kind in ("csv", "parquet"):
            wanted = frame.sort_values("shop", kind="stable")
            for url in (
                f"memory://{kind}s",
                f"memory://{kind}s/",
                f"memory://{kind}s/*/*.{kind}",
                f"memory://{kind}s/**",
            ):
                found = survey(url, target="sales", agents="shop")
                assert found.members == ("007", "12", "NA")
                check(found, wanted)
        one = survey({"a": "memory://csvs/shop=007/part-0.csv"}, target="sales")
        assert one.sizes.tolist() == [int((frame["shop"] == "007").sum())]
        with pytest.raises(DataError, match="memory://nowhere: no file there ends in"):
            survey("memory://nowhere", target="sales")
        with pytest.raises(DataError, match=r"agent 'a' \(memory://gone\.csv\): no such file"):
            survey({"a": "memory://gone.csv"}, target="sales")
    finally:
        memory.rm("/csvs", recursive=True)
        memory.rm("/parquets", recursive=True)


def parquet(rows):
    stream = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pandas(rows.drop(columns="shop"), preserve_index=False), stream)
    return stream.getvalue().to_pybytes()


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="unknown kind of URL"):
        survey("nosuch://bucket/visits", target="y")
    with pytest.raises(MissingExtra, match=r"hf:// needs another package: .*huggingface_hub"):
        survey("hf://bucket/visits", target="y")
    (tmp_path / "a.parquet").write_bytes(b"x")
    for name in ("pyarrow", "pyarrow.parquet", "pyarrow.fs"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"a\.parquet needs pyarrow: pip install 'coterie\[pyarrow\]'"):
        survey(tmp_path, target="y")
    with pytest.raises(MissingExtra, match=r"s3://bucket needs pyarrow: pip install 'coterie\[pyarrow\]'"):
        survey("s3://bucket/visits", target="y")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": {}}, "data is an empty mapping"),
        ({"data": {None: good()}}, "None is an agent of the mapping"),
        ({"data": {"a": good()}, "agents": "who"}, "the agents of a mapping are its keys"),
        ({"data": 3}, "a source is a path, .* found int"),
        ({"data": "nowhere"}, "nowhere: no such file or directory"),
        ({"data": "nowhere/*.csv"}, r"nowhere/\*\.csv: no file matches"),
        ({"data": pd.DataFrame({"a": [1]})}, "agents= is missing: name the column"),
        ({"data": "a.csv", "agents": [1, 2]}, "agents must be the name of a column"),
        ({"data": "a.csv", "columns": "price"}, "columns='price' must be a list of names"),
        ({"data": "a.csv", "columns": []}, "must name some columns"),
        ({"data": "a.csv", "bad_agents": "ignore"}, "bad_agents = 'ignore': expected 'raise' or 'skip'"),
    ],
)
def test_what_is_no_source_is_refused(arguments, message):
    options = {name: arguments[name] for name in ("columns", "bad_agents") if name in arguments}
    with pytest.raises((DataError, ParameterError), match=message):
        survey(ct.data.Source(arguments["data"], **options), target="y", agents=arguments.get("agents"))


# -- who loads what --------------------------------------------------------------------------------------------------


def test_what_is_sent_to_workers_is_small(tmp_path):
    frame = pd.concat([shops(400, seed) for seed in range(20)])
    for k in range(20):
        frame.iloc[400 * k : 400 * k + 400].to_parquet(tmp_path / f"{k}.parquet")
    found = survey(tmp_path, target="sales", agents="shop")
    assert len(pickle.dumps(found)) < 20_000
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.load([1]).X, found.load([1]).X)


def test_the_order_of_work_changes_nothing(tmp_path, monkeypatch):
    """Whoever looks at the pieces, in whatever order they are done, and however they are bundled."""
    frame = shops(300)
    for k in range(30):
        frame.iloc[10 * k : 10 * k + 10].to_csv(tmp_path / f"{k}.csv", index=False)

    def elsewhere(function, items):
        items = list(items)
        done = {k: pickle.loads(pickle.dumps(function(items[k]))) for k in reversed(range(len(items)))}
        return (done[k] for k in range(len(items)))

    monkeypatch.setattr("coterie.data.sources.look.MAX_BUNDLE_PIECES", 4)
    one = survey(tmp_path, target="sales", agents="shop")
    two = survey(tmp_path, target="sales", agents="shop", map=elsewhere)
    assert one.columns == two.columns
    assert (one.label_mean, one.label_scale) == (two.label_mean, two.label_scale)
    check(one, frame)
