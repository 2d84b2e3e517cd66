"""Sets of LEAF and PFLlib: small ones, written here in their formats, give the right rows; others are refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from typer.testing import CliRunner

import coterie as ct
from coterie.cli import data as commands
from coterie.datasets.convert import convert
from coterie.datasets.object_arrays import read_npz
from coterie.datasets.sources import content_digest, read_arrays
from coterie.errors import DataError, MismatchError, MissingDataError, ParameterError
from references import dense

# -- LEAF -------------------------------------------------------------------------------------------------------------


def write_leaf(folder, part, users, file="all_data_0.json", sizes=None):
    (folder / part).mkdir(exist_ok=True, parents=True)
    sizes = [len(user["y"]) for user in users.values()] if sizes is None else sizes
    content = {"users": list(users), "num_samples": sizes, "user_data": users}
    (folder / part / file).write_text(json.dumps(content))


def numbers(rows, seed, shape=(3,)):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, *shape)).astype(np.float32)
    return {"x": X.tolist(), "y": rng.integers(0, 5, rows).tolist()}


def check_rows(data, name, user):
    X, y = data.rows_of(name)
    np.testing.assert_array_equal(X, np.asarray(user["x"], np.float32).reshape(len(user["y"]), -1))
    np.testing.assert_array_equal(y, np.ravel(user["y"]))


@pytest.mark.parametrize("shape", [(3,), (2, 2, 3)])
def test_numbers_of_users_in_several_files(tmp_path, shape):
    train = {name: numbers(k + 2, k, shape) for k, name in enumerate(["f1", "a9", "c3"])}
    test = {name: numbers(1, 9 + k, shape) for k, name in enumerate(["c3", "new"])}
    write_leaf(tmp_path, "train", {"f1": train["f1"], "a9": train["a9"]})
    write_leaf(tmp_path, "train", {"c3": train["c3"]}, "all_data_1.json")
    write_leaf(tmp_path, "test", test)
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "seed.json").write_text("not of interest")
    task = ct.datasets.read_leaf(tmp_path)
    assert task.train.members == task.test.members == ("a9", "c3", "f1", "new")
    assert task.train.sizes.tolist() == [3, 4, 2, 0]
    assert task.test.sizes.tolist() == [0, 1, 0, 1]
    assert task.auxiliary["row_shape"].tolist() == list(shape)
    assert (task.kind, task.train.p, task.train.X.dtype) == ("classification", np.prod(shape), np.float32)
    for name, user in train.items():
        check_rows(task.train, name, user)
    for name, user in test.items():
        check_rows(task.test, name, user)


def test_labels_in_lists_and_labels_that_are_numbers(tmp_path):
    write_leaf(tmp_path, "train", {"a": {"x": [[1], [2]], "y": [[0.5], [1]]}, "none": {"x": [], "y": []}})
    write_leaf(tmp_path, "test", {"a": {"x": [[3]], "y": [[2]]}})
    task = ct.datasets.read_leaf(tmp_path)
    assert task.kind == "regression"
    assert task.train.y.tolist() == [0.5, 1.0]
    assert task.train.members == ("a", "none")


def test_an_archive(tmp_path):
    user = numbers(4, 0)
    for part in ("train", "test"):
        write_leaf(tmp_path, part, {"a": user})
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for part in ("train", "test"):
            archive.write(tmp_path / part / "all_data_0.json", f"data/{part}/all_data_0.json")
    check_rows(ct.datasets.read_leaf(tmp_path / "set.zip").train, "a", user)


def test_characters_are_places_in_the_alphabet_of_training_rows(tmp_path):
    text = "to be, or not to be"
    rows = {"x": [text[k : k + 5] for k in range(8)], "y": [text[k + 5] for k in range(8)]}
    write_leaf(tmp_path, "train", {"hamlet": rows})
    write_leaf(tmp_path, "test", {"hamlet": {"x": ["bé or"], "y": ["n"]}, "lear": {"x": ["never"], "y": ["!"]}})
    task = ct.datasets.read_leaf(tmp_path)
    alphabet = task.auxiliary["alphabet"].tolist()
    assert alphabet == sorted(set(text[:13]))
    for x, found in zip(rows["x"], task.train.X, strict=True):
        assert "".join(alphabet[int(place)] for place in found) == x
    assert "".join(alphabet[int(place)] for place in task.train.y) == "".join(rows["y"])
    unknown = len(alphabet)
    assert task.test.X[0].tolist() == [alphabet.index("b"), unknown, *(alphabet.index(c) for c in " or")]
    assert task.test.y.tolist() == [alphabet.index("n"), unknown]


def test_words_are_counted_as_scikit_learn_counts_them(tmp_path):
    rng = np.random.default_rng(0)
    vocabulary = np.array(["good", "Bad", "don't", "ugly,", "so-so", "été"])
    texts = [" ".join(rng.choice(vocabulary, 4)) for _ in range(40)]
    rows = [["467810369", "Mon Apr 06", "NO_QUERY", "anna", text] for text in texts]
    write_leaf(tmp_path, "train", {"anna": {"x": rows[:25], "y": [0, 1] * 12 + [1]}})
    write_leaf(tmp_path, "test", {"anna": {"x": rows[25:], "y": [1] * 15}})
    task = ct.datasets.read_leaf(tmp_path)
    words = CountVectorizer(token_pattern=r"[\w']+", min_df=10)
    expected = words.fit_transform(texts).toarray()
    assert task.feature_names == tuple(words.get_feature_names_out())
    np.testing.assert_array_equal(task.train.X.toarray(), expected[:25])
    np.testing.assert_array_equal(task.test.X.toarray(), expected[25:])


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (["000001.jpg"], [1], r"user 'a' has rows such as '000001.jpg' with label '1.0', expected numbers"),
        ([[["a", "b"]]], [["c"]], "expected numbers, .* names of image files and lists of tokens"),
        ([[1.0], [1.0, 2.0]], [0, 1], "expected numbers"),
        ([[1.0]], [[0, 1]], r"labels such as \[0\.0, 1\.0\], expected one number"),
        (["two", "four"], ["a", "b"], "found 'four', expected texts of 3 characters, and one character"),
        (["two", "six"], ["a", "bc"], "found 'bc', expected texts of 3 characters, and one character"),
        ([["id", "rare words"]], [1], "no word occurs in ten texts"),
        ([["id", "text"]], ["good"], "labels such as 'good', expected numbers"),
        ([], [], "have no rows"),
    ],
)
def test_rows_that_have_to_be_encoded_first(tmp_path, x, y, message):
    for part in ("train", "test"):
        write_leaf(tmp_path, part, {"a": {"x": x, "y": y}})
    with pytest.raises(DataError, match=message):
        ct.datasets.read_leaf(tmp_path)


def test_files_that_are_not_of_leaf(tmp_path):
    def refused(message):
        with pytest.raises(DataError, match=message):
            ct.datasets.read_leaf(tmp_path)

    refused(r"there is no train/\*\.json in")
    write_leaf(tmp_path, "train", {"a": numbers(2, 0)}, sizes=[3])
    refused(r"all_data_0\.json is not a file of LEAF: user 'a' has 2 rows, 2 labels, and")
    write_leaf(tmp_path, "train", {"a": numbers(2, 0), "b": numbers(2, 0, (4,))})
    write_leaf(tmp_path, "test", {"a": numbers(1, 0)})
    refused(r"user 'b' has rows of shape \(4,\), and others of shape \(3,\)")
    write_leaf(tmp_path, "train", {"a": numbers(2, 0)})
    write_leaf(tmp_path, "train", {"a": numbers(2, 0)}, "more.json")
    refused(r"more\.json is not a file of LEAF: user 'a' is there twice")
    for content, message in (("{}", "no 'users'"), ("[", "Expecting value"), ("[]", "list indices")):
        (tmp_path / "train" / "more.json").write_text(content)
        refused(rf"more\.json is not a file of LEAF: {message}")
    write_leaf(tmp_path / "other", "train", {"a": numbers(2, 0)})
    refused(r"there is more than one folder train: .*other/train, .*/train in")


# -- PFLlib -----------------------------------------------------------------------------------------------------------


def with_protocol(value, protocol):
    """What ``np.savez(file, data=value)`` writes, with a protocol of our choice."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": ()})
    box = np.empty((), dtype=object)
    box[()] = value
    file.write(pickle.dumps(box, protocol=protocol))
    return zipped(file.getvalue())


def zipped(npy):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.npy", npy)
    return out.getvalue()


def client(rows, seed, shape=(1, 4, 4)):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(rows, *shape)).astype(np.float32), "y": rng.integers(0, 10, rows)}


def write_pfllib(folder, clients, write=np.savez_compressed):
    for part, found in clients.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number, data in found.items():
            write(folder / part / f"{number}.npz", data=data)
    (folder / "config.json").write_text("{}")


def test_clients_are_agents(tmp_path):
    clients = {"train": {k: client(k + 3, k) for k in (0, 2, 10)}, "test": {k: client(2, 20 + k) for k in (0, 1, 10)}}
    write_pfllib(tmp_path, clients)
    task = ct.datasets.read_pfllib(tmp_path)
    assert task.train.members == task.test.members == (0, 1, 2, 10)
    assert task.train.sizes.tolist() == [3, 0, 5, 13]
    assert task.auxiliary["row_shape"].tolist() == [1, 4, 4]
    for part, found in clients.items():
        for number, data in found.items():
            check_rows(getattr(task, part), number, data)


@pytest.mark.parametrize("protocol", [3, 4])
def test_arrays_are_what_numpy_reads(protocol):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 2, 3))
    value = {
        "f8": x,
        "f4": x.astype(np.float32),
        "f2": x.astype(np.float16),
        "big": x.astype(">f4"),
        "u1": (10 * abs(x)).astype(np.uint8),
        "bool": x > 0,
        "fortran": np.asfortranarray(x),
        "none": x[:0],
        "scalar": np.int64(-7),
        "numbers": [np.float32(0.5), np.float32(1.5)],
        "list": [x[0], x[1]],
        "large": np.arange(100_000),
        "same": x,
    }
    content = with_protocol(value, protocol)
    expected = np.load(io.BytesIO(content), allow_pickle=True)["data"].item()
    found = read_npz(content)["data"]
    assert list(found) == list(expected)
    for key in expected:
        np.testing.assert_array_equal(found[key], expected[key], err_msg=key)
        assert np.asarray(found[key]).dtype.newbyteorder("=") == np.asarray(expected[key]).dtype


def test_plain_arrays_are_read_too(tmp_path):
    data = client(5, 0)
    write_pfllib(tmp_path, {"train": {0: data}, "test": {0: data}}, lambda file, data: np.savez(file, **data))
    check_rows(ct.datasets.read_pfllib(tmp_path).test, 0, data)


class Touch:
    """What would make a file, if it were unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("place", [lambda bad: bad, lambda bad: {"x": bad}, lambda bad: {"x": np.array([bad, bad])}])
def test_nothing_in_a_file_is_run(tmp_path, protocol, place):
    content = with_protocol(place(Touch(tmp_path / "touched")), protocol)
    with pytest.raises(DataError, match=r"it holds more than arrays|it holds an array of Python objects"):
        read_npz(content)
    assert not (tmp_path / "touched").exists()
    np.load(io.BytesIO(content), allow_pickle=True)["data"]
    assert (tmp_path / "touched").exists()  # so it would have been


def test_damaged_files_are_refused_or_harmless():
    """300 programs with a byte changed, and all that are cut off: arrays, or our own error, and nothing else."""
    rng = np.random.default_rng(0)
    whole = with_protocol({"x": np.ones((3, 2)), "y": np.arange(3)}, 4)
    program = zipfile.ZipFile(io.BytesIO(whole)).read("data.npy")
    refused = 0
    for _ in range(300):
        damaged = bytearray(program)
        damaged[rng.integers(len(program))] = rng.integers(256)
        try:
            assert isinstance(read_npz(zipped(bytes(damaged))), dict)
        except DataError:
            refused += 1
    assert 100 < refused < 300
    for length in range(0, len(program), 7):
        with pytest.raises(DataError):
            read_npz(zipped(program[:length]))
    with pytest.raises(DataError, match="it cannot be read: File is not a zip file"):
        read_npz(b"nonsense")


TOKENS = np.empty((2, 2), dtype=object)  # AG News has an object array of (tokens, length)
TOKENS[:] = [[[1, 2, 3], 3], [[4, 5, 0], 2]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": np.ones((2, 2))}, r"0\.npz is not a file of PFLlib: no 'y'; write plain arrays"),
        ({"x": np.ones((2, 2)), "y": np.ones(3)}, r"x is float64 of shape \(2, 2\), and y float64 of shape \(3,\)"),
        ({"x": np.ones(2), "y": np.ones(2)}, r"x is float64 of shape \(2,\)"),
        ({"x": np.ones((2, 5)), "y": np.ones(2)}, r"has rows of shape \(5,\), and others of shape \(1, 4, 4\)"),
        ([1, 2], r"0\.npz is not a file of PFLlib: .*; write plain arrays"),
        (
            {"x": TOKENS, "y": np.arange(2)},
            r"test/0\.npz is not a file of PFLlib: it holds an array of",
        ),
    ],
)
def test_clients_that_are_not_as_they_must_be(tmp_path, data, message):
    write_pfllib(tmp_path, {"train": {0: client(3, 0)}, "test": {0: data}})
    with pytest.raises(DataError, match=message):
        ct.datasets.read_pfllib(tmp_path)


def test_a_client_without_a_number_and_a_score_of_many_classes(tmp_path):
    write_pfllib(tmp_path, {"train": {0: client(9, 0)}, "test": {0: client(9, 0)}})
    with pytest.raises(MismatchError, match="score is for linear models of two classes"):
        ct.datasets.read_pfllib(tmp_path).score(np.zeros((1, 16)))
    write_pfllib(tmp_path, {"train": {"all": client(3, 0)}})
    with pytest.raises(DataError, match=r"all\.npz: expected the number of a client"):
        ct.datasets.read_pfllib(tmp_path)


# -- conversion -------------------------------------------------------------------------------------------------------


def same(one, other):
    for a, b in ((one.train, other.train), (one.test, other.test)):
        assert a.members == b.members
        assert a.is_sparse == b.is_sparse
        np.testing.assert_array_equal(dense(a), dense(b))
        np.testing.assert_array_equal(a.y, b.y)
        np.testing.assert_array_equal(a.sizes, b.sizes)
    assert one.feature_names == other.feature_names
    assert one.auxiliary.keys() == other.auxiliary.keys()
    return True


def test_the_command_converts_what_readers_read(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    folder = tmp_path / "data"
    write_leaf(folder, "train", {"b": numbers(3, 0, (2, 2)), "a": numbers(2, 1, (2, 2))})
    write_leaf(folder, "test", {"a": numbers(2, 2, (2, 2))})
    done = CliRunner().invoke(commands.app, ["convert", "leaf", str(folder), "--name", "femnist", "--json"])
    made = tmp_path / "cache" / "data" / "femnist.npz"
    assert json.loads(done.stdout) == {"name": "leaf", "file": str(made), "digest": content_digest(read_arrays(made))}
    read = ct.datasets.read_converted("femnist")
    assert read.name == "femnist"
    assert same(read, ct.datasets.read_leaf(folder))
    assert same(ct.datasets.read_converted(made), read)


def test_sets_of_pfllib_and_of_words_are_converted(tmp_path):
    write_pfllib(tmp_path / "p", {"train": {0: client(3, 0), 1: client(2, 1)}, "test": {0: client(1, 2)}})
    made = convert("pfllib", [tmp_path / "p"], tmp_path)
    assert made == tmp_path / "pfllib.npz"
    assert same(ct.datasets.read_converted(made), ct.datasets.read_pfllib(tmp_path / "p"))
    rows = [["1", "some words"]] * 12
    for part in ("train", "test"):
        write_leaf(tmp_path / "l", part, {"a": {"x": rows, "y": [0, 1] * 6}})
    assert same(
        ct.datasets.read_converted(convert("leaf", [tmp_path / "l"], tmp_path)), ct.datasets.read_leaf(tmp_path / "l")
    )


def test_names_of_converted_sets(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    with pytest.raises(ParameterError, match="called = 'mnist': another dataset has this name; take one such as"):
        convert("pfllib", [tmp_path], called="mnist")
    with pytest.raises(ParameterError, match=r"called = '\.\./x': expected letters"):
        convert("leaf", [tmp_path], called="../x")
    with pytest.raises(ParameterError, match=r"the file of 'school' is always school\.npz"):
        convert("school", [tmp_path], called="mine")
    with pytest.raises(MissingDataError, match=r"no femnist\.npz in .* convert leaf FOLDER --name femnist"):
        ct.datasets.read_converted("femnist")
    np.savez(tmp_path / "other.npz", X=np.ones(3))
    with pytest.raises(DataError, match=r"other\.npz has no array 'y'"):
        ct.datasets.read_converted(tmp_path / "other.npz")
