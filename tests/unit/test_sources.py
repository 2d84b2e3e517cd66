"""Rows from anywhere, in relationship learning, estimators and the command line: the same as with rows in hand.

References: the same call with an AgentData, or a DataFrame. What a survey finds is in test_survey.py.
"""

from __future__ import annotations

import zipfile

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from typer.testing import CliRunner

import coterie as ct
from coterie.cli.main import app
from coterie.data.sources.survey import survey
from coterie.errors import DataError, MismatchError
from coterie.multitask.sources import tasks_of

pytest.importorskip("pyarrow")


def visits(rows=240, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"clinic": rng.integers(0, 6, rows), "age": rng.normal(size=rows), "dose": rng.normal(size=rows)}
    )
    score = frame["age"] + frame["dose"] * np.where(frame["clinic"] % 2, 1.0, -1.0) + 0.3 * rng.normal(size=rows)
    return frame.assign(score=score, ill=np.where(score > 0, "yes", "no"))


def spread(frame, folder):
    """By day, not by clinic."""
    folder.mkdir()
    for k in range(8):
        frame.iloc[k::8].to_parquet(folder / f"day-{k}.parquet")
    return folder


def in_order(frame):
    return pd.concat([frame.iloc[k::8] for k in range(8)])


# -- relationship learning -------------------------------------------------------------------------------------------


@pytest.mark.compiled
@pytest.mark.parametrize("method", ["dmtrl", "exact"])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_files_give_what_rows_give(tmp_path, loss, method):
    frame = in_order(visits())
    target = "ill" if loss == "logistic" else "score"
    other = "score" if loss == "logistic" else "ill"
    y = np.where(frame["ill"] == "yes", 1.0, -1.0) if loss == "logistic" else frame["score"]
    data = ct.AgentData(frame[["age", "dose"]], y, agents=frame["clinic"])
    wanted = ct.relationship(data, loss, method=method)
    files = spread(visits(), tmp_path / "visits")
    sources = [ct.data.Source(files, columns=["age", "dose"])]
    sources.append({k: rows.drop(columns=["clinic", other]) for k, rows in frame.groupby("clinic")})
    for source in sources:
        agents = "clinic" if isinstance(source, ct.data.Source) else None
        found = ct.relationship(source, loss, method=method, target=target, agents=agents)
        assert found.members == wanted.members
        np.testing.assert_array_equal(found.weights, wanted.weights)
        assert found.value == wanted.value


def test_two_classes_of_any_kind_are_signs_in_their_order():
    rows = np.array([[1.0], [2.0], [3.0]])
    for labels in (["no", "yes", "no"], [False, True, False], [0, 1, 0], [-1, 1, -1], [2.0, 7.5, 2.0]):
        tasks = tasks_of({"a": (rows, labels), "b": (rows, labels[::-1])}, ct.Logistic())
        assert tasks.load([0]).y.tolist() == [-1.0, 1.0, -1.0]
    with pytest.raises(DataError, match=r"3 classes, 1, 2, 3; Logistic\(\) needs two: use ct\.RelationshipClassifier"):
        tasks_of({"a": (rows, [1, 2, 3])}, ct.Logistic())
    with pytest.raises(MismatchError, match="LogSumExp"):
        tasks_of({"a": (rows, [1, 2, 3])}, ct.LogSumExp())


def test_numbers_stay_as_they_are_and_text_becomes_columns():
    frame = pd.DataFrame({"one": 1.0, "x": [5.0, 7.0, np.nan, 9.0], "colour": ["red", "blue", "red", "red"]})
    tasks = tasks_of({"a": frame.assign(y=range(4)), "b": frame.assign(y=range(4))}, ct.Squared())
    data = tasks.load([0, 1])
    assert data.feature_names == ("one", "x", "x missing", "colour=blue")
    np.testing.assert_array_equal(data.X[:4], [[1, 5, 0, 0], [1, 7, 0, 1], [1, 7, 1, 0], [1, 9, 0, 0]])


def test_all_bad_tasks_are_named():
    X, y = np.ones((6, 1)), [-1.0, 1.0, 1.0, 1.0, -1.0, -1.0]
    with pytest.raises(DataError, match=r"task 'b' has no rows.*; 2 more tasks have no rows: 'c', 'd'$"):
        ct.relationship(ct.AgentData(X, y, agents=list("aaaaaa"), members=list("abcd")), "logistic")


@pytest.mark.compiled
def test_bad_tasks_are_left_out_if_asked(tmp_path):
    frame = visits()
    tasks = {k: rows[["age", "dose", "ill"]] for k, rows in frame.groupby("clinic")}
    bad = tasks | {"gone": tmp_path / "gone.csv", "nobody": tasks[0].iloc[:0]}
    with pytest.raises(DataError, match=r"(?s)2 agents.*'gone'.*no such file.*'nobody'.*no rows"):
        ct.relationship(bad, "logistic", target="ill")
    found = ct.relationship(ct.data.Source(bad, bad_agents="skip"), "logistic", target="ill")
    np.testing.assert_array_equal(found.weights, ct.relationship(tasks, "logistic", target="ill").weights)


@pytest.mark.parametrize("value", [3, None, [1, 2], {"a": 1}, object(), "x", (1, 2), np.ones(3)])
def test_no_mapping_gives_a_raw_error(value):
    with pytest.raises(DataError, match="agent 'a'"):
        ct.relationship({"a": value, "b": (np.eye(2), [1, -1])}, "logistic")


# -- estimators ------------------------------------------------------------------------------------------------------


def test_collaborative_estimators_take_files(tmp_path):
    frame = in_order(visits())
    files = spread(visits(), tmp_path / "visits")
    for estimator, target in ((ct.CollaborativeRegressor, "score"), (ct.CollaborativeClassifier, "ill")):
        features = frame[["age", "dose", "clinic"]]
        wanted = estimator().fit(features, frame[target], agents="clinic")
        found = estimator().fit(ct.data.Source(files, columns=["age", "dose"]), target, agents="clinic")
        assert found.agents_ == wanted.agents_
        np.testing.assert_allclose(found.coef_, wanted.coef_, rtol=1e-10)
        np.testing.assert_array_equal(found.predict(features), wanted.predict(features))  # knows the column of ids


def test_a_mapping_keeps_its_order():
    frame = visits()
    tasks = {f"{k} clinic": rows[["age", "dose", "score"]] for k, rows in frame.groupby("clinic", sort=False)}
    found = ct.CollaborativeRegressor().fit(tasks, "score")
    assert found.agents_ == tuple(tasks)
    with pytest.raises(DataError, match="y must be the name of a column where X is a source of rows, not Series"):
        ct.CollaborativeRegressor().fit(tasks, frame["score"])
    with pytest.raises(DataError, match="sample_weight needs rows in"):
        ct.CollaborativeRegressor().fit(tasks, "score", sample_weight=np.ones(240))


def test_some_partitions_are_agents_as_all_of_them_are(tmp_path):
    """Parts have the same names in every partition: without its key, a file would be another agent's."""
    frame = visits().drop(columns="ill")
    frame.iloc[::2].to_parquet(tmp_path / "hive", partition_cols=["clinic"], basename_template="a-{i}.parquet")
    frame.iloc[1::2].to_parquet(tmp_path / "hive", partition_cols=["clinic"], basename_template="b-{i}.parquet")
    some = frame[frame["clinic"].isin([1, 3, 4])]
    wanted = ct.CollaborativeRegressor().fit(some, "score", agents="clinic")
    places = [tmp_path / "hive" / f"clinic={k}" for k in (1, 3, 4)]
    sources = [places, [f"{place}/" for place in places], [f"{place}/*.parquet" for place in places]]
    sources.append([f"{places[0]}/", f"{places[1]}/*.parquet", str(places[2])])
    sources += [{k: place for k, place in zip((1, 3, 4), places, strict=True)}]
    sources += [{k: f"{place}/[ab]-*.parquet" for k, place in zip((1, 3, 4), places, strict=True)}]
    for source in sources:
        found = ct.CollaborativeRegressor().fit(source, "score")
        assert found.agents_ == (1, 3, 4)
        assert found.coef_names_ == ("age", "dose")
        np.testing.assert_allclose(found.coef_, wanted.coef_, rtol=1e-6)


def test_partitions_are_predicted_as_other_programs_read_them(tmp_path):
    """Keys of folders are numbers here; pandas has categories of text, and Ray text."""
    frame = visits().drop(columns="ill").assign(month=np.arange(240) % 12 + 1)
    frame.to_parquet(tmp_path / "months", partition_cols=["month"])
    model = ct.CollaborativeRegressor().fit(tmp_path / "months", "score", agents="clinic")
    read = pd.read_parquet(tmp_path / "months")
    wanted = model.predict(read.assign(month=read["month"].astype(int)))
    np.testing.assert_array_equal(model.predict(read), wanted)
    np.testing.assert_array_equal(model.predict(read.assign(month=read["month"].astype(str))), wanted)
    with pytest.raises(DataError, match="row 2: column 'month' is 'May', but held numbers at fit; make it a number"):
        model.predict(read.head(3).assign(month=["1", "2", "May"]))


@pytest.mark.slow
@pytest.mark.parametrize("key", ["month", "clinic"])
def test_a_directory_is_fitted_and_predicted_by_commands(tmp_path, key):
    frame = visits().drop(columns="ill").assign(month=np.arange(240) % 12 + 1)
    frame.to_parquet(tmp_path / "visits", partition_cols=[key])
    folder, model, out = (str(tmp_path / name) for name in ("visits", "model", "out.csv"))
    fitted = CliRunner().invoke(app, ["fit", folder, "--agent", "clinic", "--target", "score", "-o", model])
    assert fitted.exit_code == 0, fitted.output
    wanted = ct.load(model).predict(pd.read_parquet(folder).astype({key: int}))
    for place in (folder, f"{folder}/{key}=*/*.parquet"):
        done = CliRunner().invoke(app, ["predict", model, place, "-o", out])
        assert done.exit_code == 0, done.output
        found = pd.read_csv(out)
        assert found.shape == (240, 6)
        np.testing.assert_allclose(np.sort(found["prediction"]), np.sort(wanted))
        order = ["clinic", "month", "age"]
        truth = pd.read_parquet(folder).astype({key: int}).assign(wanted=wanted).sort_values(order)["wanted"]
        np.testing.assert_allclose(found.sort_values(order)["prediction"], truth)


@pytest.mark.parametrize("kind", ["arrays", "sparse"])
def test_arrays_of_a_mapping_need_no_names(kind):
    frame = visits()
    X = frame[["age", "dose"]].to_numpy()
    make = sparse.csr_array if kind == "sparse" else np.asarray
    rows = {k: (make(X[frame["clinic"] == k]), frame["score"][frame["clinic"] == k]) for k in range(6)}
    found = ct.CollaborativeRegressor().fit(rows, None)
    wanted = ct.CollaborativeRegressor().fit(make(X), frame["score"], agents=frame["clinic"])
    np.testing.assert_allclose(found.coef_, wanted.coef_, rtol=1e-9, atol=1e-12)


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["RelationshipClassifier", "BoostedClassifier", "RelationshipRegressor"])
def test_other_estimators_take_files(tmp_path, name):
    frame = in_order(visits(120))
    files = ct.data.Source(spread(visits(120), tmp_path / "visits"), columns=["dose", "age"])
    target = "score" if name.endswith("Regressor") else "ill"
    settings = {"tol": 1e-3} if name.startswith("Rel") else {"base": 5, "tol": 1.0}
    features = frame[["dose", "age", "clinic"]]
    wanted = getattr(ct, name)(**settings).fit(features, frame[target], agents="clinic")
    found = getattr(ct, name)(**settings).fit(files, target, agents="clinic")
    assert found.agents_ == wanted.agents_
    np.testing.assert_allclose(found.coef_, wanted.coef_, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(found.predict(features), wanted.predict(features))


# -- the command line ------------------------------------------------------------------------------------------------


def test_fit_takes_a_directory_and_a_glob(tmp_path):
    files = spread(visits(), tmp_path / "visits")
    for k, data in enumerate((files, f"{files}/day-?.parquet")):
        out = tmp_path / f"model {k}"
        arguments = ["fit", str(data), "--agent", "clinic", "--target", "ill", "-o", str(out), "--json"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        model = ct.load(out)
        assert model.agents_ == tuple(range(6))
        assert model.classes_.tolist() == ["no", "yes"]
    nowhere = CliRunner().invoke(app, ["fit", str(tmp_path / "gone"), "--agent", "a", "--target", "b", "-o", "m"])
    assert nowhere.exit_code != 0


# -- files of arrays -------------------------------------------------------------------------------------------------

X = np.array([[1.0, 0.0], [0.0, 2.5], [3.0, -4.0]])
Y = np.array([1.0, -1.0, 1.0])


def csr(**changes):
    matrix = sparse.csr_array(X)
    arrays = {"X_data": matrix.data, "X_indices": matrix.indices, "X_indptr": matrix.indptr, "X_shape": [3, 2], "y": Y}
    return {name: np.asarray(array) for name, array in (arrays | changes).items()}


def loaded(path):
    return survey({"a": path}, target=None).load([0])


def test_arrays_in_files(tmp_path):
    np.savez(tmp_path / "dense.npz", X=X, y=Y)
    np.savez_compressed(tmp_path / "sparse.npz", **csr())
    (tmp_path / "sparse.npz").rename(tmp_path / "SPARSE.NPZ")
    found = loaded(tmp_path / "SPARSE.NPZ")
    assert isinstance(found.X, sparse.csr_array)
    for rows in (loaded(tmp_path / "dense.npz").X, found.X.toarray()):
        np.testing.assert_array_equal(rows, X)
    assert found.y.tolist() == Y.tolist()


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": X}, "no array 'y'; there are 'X'"),
        ({"Z": X, "y": Y}, "no array 'X'; there are 'Z', 'y'"),
        ({}, "no array 'X'; there are none"),
        ({k: v for k, v in csr().items() if k != "X_indptr"}, "no array 'X_indptr'; there are 'X_data', 'X_indices'"),
        (csr() | {"X": X}, "holds both X and X_data"),
        ({"X": X, "y": Y[:1]}, "y has 1 labels for 3 rows"),
        ({"X": X.astype(complex), "y": Y}, "Complex data not supported"),
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
        (csr(X_data=[1.0, np.inf, 1.0, 1.0]), "row 1: column 1 is inf"),
    ],
)
def test_arrays_that_do_not_do(tmp_path, arrays, message):
    path = tmp_path / "t.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError) as error:
        loaded(path)
    assert str(error.value).startswith(f"agent 'a' ({path}): {message}")


class Bomb:
    """Goes off when unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("an object was unpickled",))


@pytest.mark.parametrize("where", ["X", "y"])
def test_pickled_objects_are_refused(tmp_path, where):
    path = tmp_path / "t.npz"
    np.savez(path, **({"X": X, "y": Y} | {where: np.array([Bomb()], dtype=object)}))
    with pytest.raises(DataError, match=f"array '{where}' holds pickled objects, which are never loaded"):
        loaded(path)


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"\x80\x04N.", "cut off", "nonsense", "one array"])
def test_what_is_no_npz_is_refused(tmp_path, content):
    path = tmp_path / "t.npz"
    np.savez(path, X=X, y=Y)
    if content == "cut off":
        path.write_bytes(path.read_bytes()[:-40])
    elif content == "nonsense":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("X.npy", b"\x93NUMPY nonsense")
            file.writestr("y.npy", b"")
    elif content == "one array":
        with path.open("wb") as file:
            np.save(file, X)
    else:
        path.write_bytes(content)
    with pytest.raises(
        DataError, match="a single array, and" if content == "one array" else r"cannot be read as \.npz: "
    ):
        loaded(path)


def test_an_interrupt_is_no_error_of_the_data():
    def source():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loaded(source)
