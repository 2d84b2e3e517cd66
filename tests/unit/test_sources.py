"""Sources of tasks: every kind gives the same rows, and every refusal names the task."""

from __future__ import annotations

import gzip
import zipfile

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from coterie.data import AgentData
from coterie.errors import DataError
from coterie.multitask.sources import gather, load_task

X = np.array([[1.0, 0.0], [0.0, 2.5], [3.0, -4.0]])
Y = np.array([1.0, -1.0, 1.0])


def frame(target="y"):
    return pd.DataFrame({"a": X[:, 0], target: Y.astype(int), "b": X[:, 1]})


def csr(**changes):
    matrix = sparse.csr_array(X)
    arrays = {"X_data": matrix.data, "X_indices": matrix.indices, "X_indptr": matrix.indptr, "X_shape": [3, 2], "y": Y}
    return {name: np.asarray(array) for name, array in (arrays | changes).items()}


def write(path, target="y"):
    """The three rows, as the kind of file that the path names."""
    name = path.name
    if ".csv" in name.lower():
        frame(target).to_csv(path, index=False)
    elif name.endswith(".parquet"):
        frame(target).to_parquet(path)
    elif name.endswith(".feather"):
        frame(target).to_feather(path)
    elif name == "sparse.npz":
        np.savez_compressed(path, **csr())
    else:
        np.savez(path, X=X, y=Y)
    return path


FILES = ["t.csv", "t.csv.gz", "T.CSV", "t.parquet", "t.feather", "t.npz", "sparse.npz"]


@pytest.mark.parametrize("kind", [str, lambda path: path])
@pytest.mark.parametrize("name", FILES)
def test_files(tmp_path, name, kind):
    found, labels = load_task(kind(write(tmp_path / name)))
    assert sparse.issparse(found) == (name == "sparse.npz")
    if sparse.issparse(found):
        assert isinstance(found, sparse.csr_array)
        found = found.toarray()
    np.testing.assert_array_equal(found, X)
    np.testing.assert_array_equal(labels, Y)
    assert found.dtype == labels.dtype == np.float64


@pytest.mark.parametrize("make", [list, np.asarray, sparse.coo_array, pd.DataFrame])
def test_callables(make):
    found, labels = load_task(lambda: (make(X), Y.astype(int).tolist()))
    np.testing.assert_array_equal(found.toarray() if sparse.issparse(found) else found, X)
    np.testing.assert_array_equal(labels, Y)


def test_what_comes_back_is_what_agent_data_stores():
    given = sparse.csr_array((np.ones(3), [1, 0, 1], [0, 3]), shape=(1, 2))  # unsorted, with a duplicate
    found, labels = load_task(lambda: [given, [True]])
    expected = AgentData(given, [True])
    np.testing.assert_array_equal(found.indices, expected.X.indices)
    np.testing.assert_array_equal(found.data, expected.X.data)
    assert labels.tolist() == [1.0]
    assert not labels.flags.writeable


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet", "t.feather"])
def test_the_target_of_a_table_may_have_another_name(tmp_path, name):
    found, labels = load_task(write(tmp_path / name, target="ill"), target="ill")
    np.testing.assert_array_equal(found, X)
    np.testing.assert_array_equal(labels, Y)
    with pytest.raises(DataError, match=r"task 'north' \(.*\): no column 'y'; there are 3: 'a', 'ill', 'b'"):
        load_task(tmp_path / name, name="north")


@pytest.mark.parametrize("name", ["gone.csv", "gone.parquet", "gone.npz"])
def test_a_missing_file(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(DataError) as error:
        load_task(path, name=("Lyon", 3))
    assert str(error.value) == f"task ('Lyon', 3) ({path}): no such file"


def test_tasks_without_a_name_are_called_after_their_source(tmp_path):
    def broken():
        return None

    with pytest.raises(DataError, match=r"^task 'gone' \(.*gone\.csv\.gz\): no such file"):
        load_task(tmp_path / "gone.csv.gz")
    with pytest.raises(DataError, match=r"^task 'broken': "):
        load_task(broken)


def test_unknown_kinds_of_source(tmp_path):
    with pytest.raises(DataError, match=r"unknown kind of file; known are \.csv, .*, \.npz"):
        load_task(tmp_path / "t.xlsx")
    with pytest.raises(DataError, match=r"^task 'a': a source is a path or a callable that returns \(X, y\), not int"):
        load_task(3, name="a")


def empty(folder):
    (folder / "t.csv").write_text("a,y,b\n")
    (folder / "t.csv.gz").write_bytes(gzip.compress(b"a,y,b\n"))
    frame().iloc[:0].to_parquet(folder / "t.parquet")
    np.savez(folder / "t.npz", X=np.empty((0, 2)), y=[])
    np.savez(folder / "sparse.npz", **csr(X_data=[], X_indices=np.array([], int), X_indptr=[0], X_shape=[0, 2], y=[]))


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet", "t.npz", "sparse.npz"])
def test_no_rows_in_a_file(tmp_path, name):
    empty(tmp_path)
    with pytest.raises(DataError) as error:
        load_task(tmp_path / name, name="x")
    assert str(error.value) == f"task 'x' has no rows ({tmp_path / name})"


def test_no_rows_from_a_callable():
    with pytest.raises(DataError, match=r"^task 'x' has no rows$"):
        load_task(lambda: (np.empty((0, 3)), []), name="x")


def test_a_callable_that_raises():
    def source():
        raise KeyError("no table 'visits'")

    with pytest.raises(DataError, match=r"^task 'a': its callable raised KeyError: .*no table 'visits'") as error:
        load_task(source, name="a")
    assert isinstance(error.value.__cause__, KeyError)


def test_an_interrupt_is_no_error_of_the_data():
    def source():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_task(source)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, r"must return \(X, y\), and returned NoneType"),
        (X, r"must return \(X, y\), and returned ndarray"),
        ((X,), r"must return \(X, y\), and returned 1 things"),
        ((X, Y, Y), "returned 3 things"),
        ((X, None), "one label per row, and y is None"),
        ((X, "y"), "one label per row, and y is 'y'"),
        ((X, 1), "one label per row, and y is 1"),
        ((X, Y[:2]), "y has 2 labels for 3 rows"),
        ((X[:, 0], Y), r"X must be 2-D, \(rows, features\); got shape \(3,\)"),
        ((X[:, :0], Y), "X has no columns left to learn from"),
        ((X.astype(str), Y), "X holds text"),
        ((X, list("abc")), "y holds text, such as 'a'"),
        ((np.where(X == 2.5, np.inf, X), Y), "row 1: column 1 of X is inf;"),
        ((X, [1.0, 1.0, np.nan]), "row 2: the label is nan;"),
    ],
)
def test_a_callable_that_returns_the_wrong_thing(found, message):
    with pytest.raises(DataError, match=f"^task 'a': .*{message}"):
        load_task(lambda: found, name="a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("a,y\n1,1\n,1\n", "row 1: column 'a' of X is nan;"),
        ("a,y\n1,1\n2,\n", "row 1: the label is nan;"),
        ("a,y\nLyon,1\n", "column 'a' holds text, such as 'Lyon'"),
        ("a,y\n1,yes\n", "y holds text, such as 'yes'"),
        ("y\n1\n", "X has no columns left to learn from"),
        ("a,label\n1,1\n", "no column 'y'; there are 2: 'a', 'label'"),
        ("a,y\n1,2\n1,2,3,4\n", "cannot be read as .csv: "),
    ],
)
def test_a_table_that_does_not_do(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "north.csv").write_text(text)
    with pytest.raises(DataError) as error:
        load_task("north.csv", name="north")
    assert str(error.value).startswith(f"task 'north' (north.csv): {message}")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": X}, "no array 'y'; there are 'X'"),
        ({"Z": X, "y": Y}, "no array 'X'; there are 'Z', 'y'"),
        ({}, "no array 'X'; there are none"),
        ({k: v for k, v in csr().items() if k != "X_indptr"}, "no array 'X_indptr'; there are 'X_data', 'X_indices'"),
        (csr() | {"X": X}, "holds both X and X_data"),
        ({"X": X, "y": Y[:1]}, "y has 1 labels for 3 rows"),
        ({"X": X * [1.0, np.nan], "y": Y}, "row 0: column 1 of X is nan"),
        ({"X": X.astype(complex), "y": Y}, "X holds complex"),
        (csr(X_indices=[0, 1, 0, 2]), "the arrays of X are not CSR: "),
        (csr(X_indices=[0, 1, 0, -1]), "the arrays of X are not CSR: "),
        (csr(X_indices=[0, 1, 0]), "the arrays of X are not CSR: "),
        (csr(X_indices=[0.0, 1.0, 0.0, 1.0]), "X_indices must be 1-D and of integers, got float64"),
        (csr(X_indptr=[0, 3, 2, 4]), "X_indptr must not decrease"),
        (csr(X_indptr=[0, 900, 900, 0]), "X_indptr must not decrease"),
        (csr(X_indptr=[0, 1, 2, 900]), "the arrays of X are not CSR: "),
        (csr(X_indptr=[1, 2, 3, 4]), "the arrays of X are not CSR: "),
        (csr(X_indptr=[0, 4]), "the arrays of X are not CSR: "),
        (csr(X_shape=[3]), r"X_shape must be two numbers, (rows, features), got [3]"),
        (csr(X_shape=[-3, 2]), "the arrays of X are not CSR: "),
        (csr(X_data=[1.0, np.inf, 1.0, 1.0]), "row 1: column 1 of X is inf"),
    ],
)
def test_arrays_that_do_not_do(tmp_path, arrays, message):
    path = tmp_path / "t.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError) as error:
        load_task(path, name="a")
    assert str(error.value).startswith(f"task 'a' ({path}): {message}")


class Bomb:
    """Goes off when unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("an object was unpickled",))


@pytest.mark.parametrize("where", ["X", "y"])
def test_pickled_objects_are_refused(tmp_path, where):
    path = tmp_path / "t.npz"
    np.savez(path, **({"X": X, "y": Y} | {where: np.array([Bomb()], dtype=object)}))
    with pytest.raises(DataError, match=f"array '{where}' holds pickled objects, which are never loaded"):
        load_task(path)


def test_what_is_no_npz_is_refused(tmp_path):
    path = tmp_path / "t.npz"
    for content in (b"", b"not a zip file", b"\x80\x04N."):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"^task 't' \(.*\): cannot be read as \.npz: "):
            load_task(path)
    np.savez(path, X=X, y=Y)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="cannot be read as"):
        load_task(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("X.npy", b"\x93NUMPY nonsense")
        file.writestr("y.npy", b"")
    with pytest.raises(DataError, match="cannot be read as"):
        load_task(path)
    with path.open("wb") as file:
        np.save(file, X)
    with pytest.raises(DataError, match="a single array, and no npz file"):
        load_task(path)


def test_gather_keeps_the_order_of_the_mapping(tmp_path):
    sources = {"z": write(tmp_path / "t.csv"), ("a", 1): lambda: (X[:1], [5]), 3: str(write(tmp_path / "t.npz"))}
    data = gather(sources)
    assert data.members == ("z", ("a", 1), 3)
    assert (data.sizes.tolist(), data.is_sparse, data.feature_names) == ([3, 1, 3], False, None)
    np.testing.assert_array_equal(data.origin, np.arange(7))
    for task, source in sources.items():
        for one, other in zip(data.rows_of(task), load_task(source), strict=True):
            np.testing.assert_array_equal(one, other)


def test_gather_keeps_names_that_all_have(tmp_path):
    sources = {name: write(tmp_path / name) for name in ("t.csv", "t.parquet")}
    assert gather(sources).feature_names == ("a", "b")
    data = gather(sources | {"more": lambda: (X, Y)})
    assert (data.feature_names, data.n_rows) == (None, 9)


@pytest.mark.parametrize("first", ["sparse.npz", "t.csv"])
def test_gather_is_sparse_if_any_task_is(tmp_path, first):
    names = sorted(["sparse.npz", "t.csv"], key=lambda name: name != first)
    data = gather({name: write(tmp_path / name) for name in names})
    assert data.is_sparse
    assert data.members == tuple(names)
    np.testing.assert_array_equal(data.X.toarray(), np.vstack([X, X]))


def test_gather_refuses_features_that_differ(tmp_path):
    path = write(tmp_path / "t.csv")
    with pytest.raises(DataError) as error:
        gather({"a": path, "b": lambda: (X, Y), "c": lambda: (X[:, :1], Y)})
    assert str(error.value) == f"task 'c' has 1 features, but task 'a' ({path}) has 2; all need the same"
    swapped = tmp_path / "s.csv"
    frame()[["b", "y", "a"]].to_csv(swapped, index=False)
    with pytest.raises(DataError) as error:
        gather({"x": lambda: (X, Y), "a": path, "b": swapped})
    assert str(error.value) == (
        f"column 0 of the features is 'b' in task 'b' ({swapped}), but 'a' in task 'a' ({path});"
        " all tasks need the same columns, in the same order"
    )


def test_gather_names_the_task_that_fails(tmp_path):
    with pytest.raises(DataError, match=r"^task 'b' \(.*gone.csv\): no such file"):
        gather({"a": write(tmp_path / "t.csv"), "b": tmp_path / "gone.csv"})
    with pytest.raises(DataError, match=r"^task 'b' has no rows$"):
        gather({"a": lambda: (X, Y), "b": lambda: (X[:0], [])})


def test_gather_refuses_what_is_no_mapping():
    with pytest.raises(DataError, match=r"sources must be a mapping \{task: source\}, got list"):
        gather(["a.csv"])
    with pytest.raises(DataError, match="sources is empty: at least one task is needed"):
        gather({})
