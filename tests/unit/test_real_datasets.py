"""Loaders of real datasets: sizes, splits, labels, scaling and scores; and files that are missing or are not what they
must be. The files do not belong to the library: what needs one is skipped where there is none."""

import json
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from typer.testing import CliRunner

import coterie as ct
from coterie import datasets
from coterie.cli import data as commands
from coterie.datasets import SOURCES, RealTask, sources
from coterie.errors import DataError, ParameterError
from real_files import real


@pytest.fixture
def load(monkeypatch):
    """Call a loader where its file is."""

    def call(name, loader, **given):
        monkeypatch.setenv("COTERIE_DATA", str(real(name)))
        return loader(**given)

    return call


#: Each loader with small requests: file, loader, arguments, agents, features, rows for training, all rows.
LOADERS = {
    "school": ("school", datasets.school, {}, 139, 28, 11472, 15362),
    "school, split 9": ("school", datasets.school, {"split": 9}, 139, 28, None, 15362),
    "school pass": ("school", datasets.school_pass, {}, 139, 17, 11472, 15362),
    "computers": ("computers", datasets.computer_buyers, {}, 190, 14, 1407, 3800),
    "computers, seed 1": ("computers", datasets.computer_buyers, {"seed": 1}, 190, 14, None, 3800),
    "activity": ("harws", datasets.human_activity, {}, 30, 561, 2059, 10299),
    "vehicle": ("vehicle_ditto_train", datasets.vehicle_sensor, {}, 23, 100, 373, 1860),
    "mnist": ("mnist", datasets.mnist_one_vs_all, {"rows": 40}, 10, 784, 400, 20400),
    "sentiment 14": ("mds14", datasets.sentiment, {}, 14, 13298, 19446, 27780),
    "sentiment 14, published": ("mds14", datasets.sentiment, {"train_size": None}, 14, 13298, 22180, 27780),
    "sentiment 4": ("mds4", datasets.sentiment, {"domains": 4}, 4, 17323, 5600, 8000),
    "landmine": ("landmine", datasets.landmine, {}, 29, 9, 7406, 14820),
    "parkinsons": ("parkinsons", datasets.parkinsons, {}, 42, 19, 2934, 5875),
    "parkinsons, all": ("parkinsons", datasets.parkinsons, {"train_size": 1.0, "target": "motor"}, 42, 19, 5875, 5875),
}
#: What has been loaded: tasks cannot be changed, so tests share them.
LOADED = {}
REGRESSIONS = {"school", "parkinsons"}


@pytest.fixture(params=LOADERS)
def case(request, load):
    name, loader, given, *sizes = LOADERS[request.param]
    if request.param not in LOADED:
        LOADED[request.param] = load(name, loader, **given)
    return LOADED[request.param], sizes, name, partial(load, name, loader, **given)


def rows_as_bytes(*parts):
    """The rows of some AgentData with their owners and labels, sorted: the same for the same rows in any order."""
    return sorted(row.tobytes() for data in parts for row in np.column_stack([data.owner, data.y, data.X]))


def values(data):
    """What the features of AgentData are made of."""
    return data.X.data if data.is_sparse else data.X


def test_every_loader(case):
    task, (agents, features, training, rows), name, loader = case
    assert isinstance(task, RealTask)
    assert task.train.n == task.test.n == agents
    assert task.train.p == task.test.p == features
    assert task.train.members == task.test.members
    assert task.train.n_rows + task.test.n_rows == rows
    assert training is None or task.train.n_rows == training
    assert task.train.sizes.min() >= 1
    assert task.kind == ("regression" if name in REGRESSIONS and "pass" not in task.name else "classification")
    if task.kind == "classification":
        assert set(np.unique(np.concatenate([task.train.y, task.test.y]))) == {-1.0, 1.0}
    assert task.feature_names is None or len(task.feature_names) == features
    covariates = task.auxiliary.get("covariates")
    assert covariates is None or (len(covariates) == agents and np.isfinite(covariates).all())
    assert str(agents) in repr(task)
    again = loader()
    np.testing.assert_array_equal(values(again.train), values(task.train))
    np.testing.assert_array_equal(again.test.y, task.test.y)


def test_every_score(case):
    task, (agents, features, *_), *_ = case
    theta = np.random.default_rng(0).normal(size=(agents, features))
    scores = task.score(theta)
    assert scores.shape == (agents,)
    np.testing.assert_array_equal(np.isnan(scores), task.test.sizes == 0)
    agent = int(np.argmax(task.test.sizes))
    X, y = task.test.rows_of(task.test.members[agent])
    if not len(y):
        return
    said = X @ theta[agent]
    wanted = np.mean((said >= 0) == (y > 0)) if task.kind == "classification" else np.sqrt(np.mean((said - y) ** 2))
    assert scores[agent] == pytest.approx(wanted)


@pytest.mark.parametrize("how", ["standard", "minmax"])
def test_every_scaling_is_that_of_the_training_rows(case, how):
    task = case[0]
    scaled = task.scaled(how)
    X, new = task.train.X, scaled.train.X
    free = dense(X.min(axis=0)) < dense(X.max(axis=0))
    assert scaled.train.is_sparse == scaled.test.is_sparse == task.train.is_sparse
    if task.train.is_sparse:
        assert new.nnz == X.nnz
        some = np.flatnonzero(free)[::100]
        found = new[:, some].toarray()
        np.testing.assert_allclose(found.max(axis=0) if how == "minmax" else found.std(axis=0), 1)
    else:
        np.testing.assert_array_equal(new[:, ~free], X[:, ~free])
        np.testing.assert_array_equal(scaled.test.X[:, ~free], task.test.X[:, ~free])
        if how == "minmax":
            np.testing.assert_allclose(new[:, free].min(axis=0), 0, atol=1e-12)
            np.testing.assert_allclose(new[:, free].max(axis=0), 1)
        else:
            np.testing.assert_allclose(new[:, free].mean(axis=0), 0, atol=1e-8)
            np.testing.assert_allclose(new[:, free].std(axis=0), 1)
    # Other test rows change nothing about the training rows.
    other = task.test.with_features(task.test.X * 5.0)
    changed = RealTask(task.name, task.train, other, task.kind).scaled(how)
    np.testing.assert_array_equal(values(changed.train), values(scaled.train))
    np.testing.assert_array_equal(scaled.train.y, task.train.y)
    np.testing.assert_array_equal(scaled.test.owner, task.test.owner)


def dense(line):
    return line.toarray().ravel() if sparse.issparse(line) else line


# -- each dataset -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "loader", "given"),
    [
        ("school", datasets.school, [{"split": k} for k in range(10)]),
        ("computers", datasets.computer_buyers, [{"seed": 2018}, {"seed": 0}]),
        ("vehicle_ditto_train", datasets.vehicle_sensor, [{"seed": 0}, {"seed": 1}, {"train_size": 0.01}]),
        ("landmine", datasets.landmine, [{"seed": 0}, {"seed": 1}]),
        ("parkinsons", datasets.parkinsons, [{"seed": 0}, {"seed": 1}, {"train_size": 0.9}]),
    ],
)
def test_splits_are_disjoint_complete_and_all_different(load, name, loader, given):
    tasks = [load(name, loader, **each) for each in given]
    # Together training and test rows are always the same rows, each as often as in the file.
    everything = {tuple(rows_as_bytes(task.train, task.test)) for task in tasks}
    assert len(everything) == 1
    assert len({tuple(rows_as_bytes(task.train)) for task in tasks}) == len(tasks)
    np.testing.assert_array_equal(tasks[0].train.sizes + tasks[0].test.sizes, np.bincount(datasets.raw(name)["agent"]))


def test_school(load):
    task = load("school", datasets.school)
    assert task.feature_names[-1] == "bias"
    assert (task.train.X[:, -1] == 1).all()
    assert (task.train.sizes.min(), task.train.sizes.max()) == (16, 188)  # DADA, Section E.1
    assert task.train.y.min() >= 1
    assert task.train.y.max() <= 70
    passing = datasets.school_pass()
    np.testing.assert_array_equal(passing.train.y, np.where(task.train.y > 20, 1, -1))
    columns = [task.feature_names.index(name) for name in passing.feature_names]
    np.testing.assert_array_equal(passing.test.X, task.test.X[:, columns])
    # What is known of a school is constant but for the year, and single-sex schools have no other pupils.
    names = passing.auxiliary["covariate_names"].tolist()
    boys = np.flatnonzero(passing.auxiliary["covariates"][:, names.index("school_boys")] == 1)
    assert boys.size
    for school in boys:
        X, _ = passing.train.rows_of(school)
        assert (X[:, passing.feature_names.index("gender_male")] == 1).all()


def test_computer_buyers_have_the_split_of_the_paper(load):
    task = load("computers", datasets.computer_buyers)
    # DADA, Section E.1: 1407 + 2393, and 5 to 10 of each buyer for training.
    assert (task.train.n_rows, task.test.n_rows) == (1407, 2393)
    assert (task.train.sizes.min(), task.train.sizes.max()) == (5, 10)
    # Everybody learns from the same computers, in the same order.
    raw = datasets.raw("computers")
    first = np.array([5, 3, 8, 4, 13, 0, 1, 18, 10, 16])
    design = raw["X"][:20]
    for buyer in range(190):
        X, y = task.train.rows_of(buyer)
        expected = np.sort(first[: len(y)])
        np.testing.assert_array_equal(X, design[expected])
        np.testing.assert_array_equal(y > 0, raw["y"].reshape(190, 20)[buyer, expected] > 5)
    assert task.auxiliary["covariates"].shape == (190, 7)
    assert np.mean(np.concatenate([task.train.y, task.test.y]) > 0) == pytest.approx(0.425, abs=5e-4)


def test_human_activity(load):
    sitting, laying = (load("harws", datasets.human_activity, positive=name) for name in ("sitting", "laying"))
    # The same split for both, and a row has one activity.
    np.testing.assert_array_equal(sitting.train.X, laying.train.X)
    assert not ((sitting.train.y > 0) & (laying.train.y > 0)).any()
    assert [int((t.train.y > 0).sum() + (t.test.y > 0).sum()) for t in (sitting, laying)] == [1777, 1944]
    assert np.abs(sitting.train.X).max() <= 1


def test_vehicle_sensors_with_few_rows_have_one_to_learn_from(load):
    task = load("vehicle_ditto_train", datasets.vehicle_sensor, train_size=0.01)
    assert task.train.sizes.min() == 1
    np.testing.assert_array_equal(
        task.train.sizes, np.maximum(1, np.round(0.01 * (task.train.sizes + task.test.sizes)))
    )


def test_digits_are_balanced_and_the_official_sets_are_kept_apart(load):
    task = load("mnist", datasets.mnist_one_vs_all, rows=101)
    assert task.train.sizes.tolist() == [100] * 10
    assert task.test.n_rows == 20000
    for data in (task.train, task.test):
        assert data.is_sparse
        assert data.X.max() == 1.0
        np.testing.assert_array_equal(np.bincount(data.owner, weights=data.y), 0)
    raw = datasets.raw("mnist")
    for split, data in enumerate((task.train, task.test)):
        X, y = data.rows_of(7)
        pixels = np.rint(X.toarray() * 255).astype(np.uint8)
        sevens = {row.tobytes() for row in raw["X"][(raw["split"] == split) & (raw["y"] == 7)]}
        np.testing.assert_array_equal([row.tobytes() in sevens for row in pixels], y > 0)


@pytest.mark.slow
def test_all_digits(load):
    task = load("mnist", datasets.mnist_one_vs_all)
    assert (task.train.n_rows, task.test.n_rows) == (120_000, 20_000)  # DMTRL, Section 7
    np.testing.assert_array_equal(task.train.sizes // 2, np.bincount(datasets.raw("mnist")["y"][:60_000]))


def test_sentiment(load):
    task = load("mds14", datasets.sentiment, train_size=None)
    assert task.train.members[:3] == ("apparel", "baby", "books")
    assert "imdb" not in task.train.members
    assert "MR" not in task.train.members
    assert task.test.sizes.tolist() == [400] * 14
    assert task.train.is_sparse
    books = load("mds4", datasets.sentiment, domains=4, train_size=0.25).train
    assert books.sizes.tolist() == [500] * 4
    assert books.members == ("books", "dvd", "electronics", "kitchen")


def test_landmine_and_parkinsons(load):
    mines = load("landmine", datasets.landmine)
    assert np.mean(mines.train.y > 0) == pytest.approx(0.06, abs=0.01)
    assert mines.auxiliary["covariates"].ravel().tolist() == [1.0] * 15 + [0.0] * 14
    total, motor = (load("parkinsons", datasets.parkinsons, target=target) for target in ("total", "motor"))
    np.testing.assert_array_equal(total.train.X, motor.train.X)
    assert (total.train.y > motor.train.y).mean() > 0.99
    assert total.feature_names[:3] == ("age", "sex", "test_time")


def test_a_real_task_can_be_learned(load):
    task = load("computers", datasets.computer_buyers)
    problem = ct.Problem.separate(task.train, ct.graphs.empty(task.train.n), "squared", ridge=1.0)
    assert 0.55 < task.score(problem.solve()).mean() < 0.9


# -- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: datasets.human_activity("flying"), "positive = 'flying': expected 'walking', 'walking upstairs'"),
        (lambda: datasets.human_activity(train_size=0.0), r"train_size = 0.0: expected a number in \(0, 1\]"),
        (lambda: datasets.vehicle_sensor(train_size=1.5), r"train_size = 1.5: expected a number in \(0, 1\]"),
        (lambda: datasets.landmine(train_size=float("nan")), "train_size = nan: expected"),
        (lambda: datasets.landmine(seed=-1), "seed must be a whole number"),
        (lambda: datasets.computer_buyers(seed=0.5), "seed must be a whole number"),
        (lambda: datasets.parkinsons(target="both"), "target = 'both': expected 'total' or 'motor'"),
        (lambda: datasets.sentiment(domains=25), "domains must be 14 or 4, got 25"),
        (lambda: datasets.sentiment(domains=4, train_size=None), "the 4 domains have none"),
        (lambda: datasets.mnist_one_vs_all(rows=1), "rows must be a whole number >= 2, got 1"),
        (lambda: datasets.school(split=10), r"split must be in 0..9, got 10"),
        (lambda: datasets.school_pass(split=-1), r"split must be in 0..9, got -1"),
        (lambda: datasets.raw("iris"), "no dataset 'iris'; known are school"),
    ],
)
def test_arguments_out_of_range(call, words):
    # Before any file is looked for.
    with pytest.raises(ParameterError, match=words):
        call()


def two_rows():
    train = ct.AgentData([[1.0, 10.0], [1.0, 30.0]], [-1, 1], ["anna", "bo"])
    return RealTask("two rows", train, ct.AgentData([[1.0, 50.0]], [1], ["bo"], ["anna", "bo"]), "classification")


def test_scores_of_predictions_are_of_each_agent_that_has_test_rows():
    def scores(kind, y, said):
        rows = ct.AgentData(np.arange(5.0)[:, None], y, agents=["a", "a", "b", "b", "b"], members=["a", "b", "c"])
        return datasets.real.agent_scores(rows, np.array(said), kind)

    accuracy = scores("classification", [1, -1, 1, 1, 1], [1.0, 1.0, 1.0, -1.0, 1.0])
    np.testing.assert_allclose(accuracy, [0.5, 2 / 3, np.nan])
    rmse = scores("regression", [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 4.0, 3.0, 4.0, 8.0])
    np.testing.assert_allclose(rmse, [np.sqrt(2.0), np.sqrt(3.0), np.nan])


def test_scores_and_scalings_refuse_what_they_cannot_use():
    task = two_rows()
    assert np.isnan(task.score(np.ones((2, 2)))[0])
    assert task.score(np.ones((2, 2)))[1] == 1.0
    with pytest.raises(ParameterError, match=r"theta has shape \(2,\), expected \(2, 2\)"):
        task.score([1.0, 2.0])
    with pytest.raises(ParameterError, match="how = 'robust': expected 'standard' or 'minmax'"):
        task.scaled("robust")
    with pytest.raises(AttributeError):
        task.name = "another"


def test_sparse_rows_are_scaled_like_dense_ones_that_are_not_shifted():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 4, size=(30, 6)) * rng.integers(0, 2, size=(30, 6)) * 1.0
    X[:, 2], X[:, 3] = 0.0, 1.0
    y, owner = rng.normal(size=30), np.arange(30) % 3
    dense, thin = (
        RealTask("", ct.AgentData(kind(X), y, owner), ct.AgentData(kind(X), y, owner), "regression")
        for kind in (np.asarray, sparse.csr_array)
    )
    for how, scale in (("standard", dense.train.X.std(axis=0)), ("minmax", dense.train.X.max(axis=0))):
        scale[2:4] = 1.0
        np.testing.assert_allclose(thin.scaled(how).train.X.toarray(), dense.train.X / scale)
    theta = rng.normal(size=(3, 6))
    np.testing.assert_allclose(thin.score(theta), dense.score(theta))


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A data folder and a cache with nothing in them."""
    for name in ("data", "cache"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("name", SOURCES)
def test_a_missing_file_says_where_to_get_it(empty, name):
    source = SOURCES[name]
    with pytest.raises(DataError) as error:
        datasets.raw(name)
    said = str(error.value)
    for part in (source.file, empty / "data", empty / "cache" / "data", source.originals[0], source.digest):
        assert str(part) in said
    assert f"coterie data convert {name} " in said


@pytest.mark.parametrize("case_name", LOADERS)
def test_every_loader_refuses_a_file_of_another_content(empty, case_name):
    name, loader, given, *_ = LOADERS[case_name]
    path = empty / "data" / f"{name}.npz"
    np.savez(path, X=np.zeros((3, 2)))
    found = sources.content_digest({"X": np.zeros((3, 2))})
    with pytest.raises(DataError) as error:
        loader(**given)
    for part in (path, found, SOURCES[name].digest):
        assert str(part) in str(error.value)


def test_one_changed_number_is_found(empty):
    arrays = sources.read_arrays(real("computers") / "computers.npz")
    np.savez(empty / "data" / "computers.npz", **arrays)  # other bytes, the same content
    assert datasets.computer_buyers().train.n_rows == 1407
    arrays["y"][1234] += 1
    np.savez(empty / "data" / "computers.npz", **arrays)
    with pytest.raises(DataError, match=f"expected {SOURCES['computers'].digest}"):
        datasets.computer_buyers()
    # A bad file hides a good one that is further down the list: it is refused, not passed over.
    (empty / "cache" / "data").mkdir()
    shutil.copy(real("computers") / "computers.npz", empty / "cache" / "data")
    with pytest.raises(DataError, match=re.escape(str(empty / "data"))):
        datasets.computer_buyers()
    (empty / "data" / "computers.npz").unlink()
    assert datasets.computer_buyers().test.n_rows == 2393


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 and then nothing", "objects", "one array"])
def test_a_damaged_file_or_one_of_python_objects(empty, content):
    path, message = empty / "data" / "school.npz", "cannot be read as an npz file"
    if content == "objects":
        np.savez(path, X=np.array([{"a": 1}], dtype=object))
        message += ": Object arrays cannot be loaded"
    elif content == "one array":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(f"{path} {message}")):
        datasets.school()


def test_the_digest_is_of_names_types_shapes_and_values():
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(["x", "yz"])}
    same = sources.content_digest({"b": arrays["b"], "a": np.asfortranarray(arrays["a"])})
    assert sources.content_digest(arrays) == same
    assert sources.content_digest(arrays | {"a": arrays["a"].astype(">f8")}) == same
    others = [
        {"a": arrays["a"]},
        {"a": arrays["a"], "c": arrays["b"]},
        arrays | {"a": arrays["a"].astype(np.float32)},
        arrays | {"a": arrays["a"].reshape(3, 2)},
        arrays | {"a": arrays["a"] + np.eye(2, 3)},
        arrays | {"b": np.array(["x", "yy"])},
    ]
    assert len({same, *map(sources.content_digest, others)}) == 1 + len(others)


def test_sources_are_complete():
    for name, source in SOURCES.items():
        assert source.name == name
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in (source.sha256, source.digest))
        assert all((source.title, source.licence, source.citation, source.originals))


def test_the_page_about_datasets_has_every_licence_and_every_command():
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "get-real-datasets.md").read_text()
    for name, source in SOURCES.items():
        assert f"| `{name}` | {source.licence} |" in page
        assert f"`coterie data convert {name} " in page


# -- commands ---------------------------------------------------------------------------------------------------------


def test_list_without_any_file(empty):
    done = CliRunner().invoke(commands.app, ["list", "--json"])
    assert done.exit_code == 0
    listed = json.loads(done.stdout)
    assert listed["folders"] == [str(empty / "data"), str(empty / "cache" / "data")]
    assert [line["name"] for line in listed["datasets"]] == list(SOURCES)
    assert {line["file"] for line in listed["datasets"]} == {None}
    shown = CliRunner().invoke(commands.app, ["list"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "missing" in shown.output


def test_check_tells_good_files_from_bad_ones(empty):
    shutil.copy(real("computers") / "computers.npz", empty / "data")
    done = CliRunner().invoke(commands.app, ["check", "--json"])
    assert done.exit_code == 0
    [line] = json.loads(done.stdout)["files"]
    assert line["good"]
    assert line["same_bytes"]
    np.savez(empty / "data" / "school.npz", X=np.zeros(3))
    done = CliRunner().invoke(commands.app, ["check", "--json"])
    assert done.exit_code == 3
    lines = {line["name"]: line for line in json.loads(done.stdout)["files"]}
    assert lines["computers"]["good"]
    assert not lines["school"]["good"]
    assert SOURCES["school"].digest in lines["school"]["problem"]
