"""Converters of real datasets: small originals in the original formats give the right arrays; others are refused.

Where the converted files are at hand, the originals are written back from them and converted again: what comes out must
have the published digest.
"""

import gzip
import json
import struct
import tarfile
import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from coterie.datasets.convert import COMPUTER_COLUMNS, CONVERTERS, SCHOOL_COLUMNS, SIXTEEN_DOMAINS, Originals, convert
from coterie.datasets.sources import SOURCES, content_digest, read_arrays
from coterie.errors import DataError, ParameterError
from real_files import real

#: They take longer than all others together.
SLOW = ("harws", "mds14", "mds4", "mnist")


def arrays_of(name, *paths):
    return CONVERTERS[name](Originals(paths))


# -- writing originals ------------------------------------------------------------------------------------------------


def cells(parts):
    box = np.empty((1, len(parts)), dtype=object)
    for k, part in enumerate(parts):
        box[0, k] = part
    return box


def by_agent(arrays, key):
    return [arrays[key][arrays["agent"] == k] for k in range(arrays["agent"].max() + 1)]


def write_school(folder, arrays):
    agent, n = arrays["agent"], len(arrays["y"])
    starts = np.searchsorted(agent, np.arange(agent.max() + 1)) + 1
    savemat(folder / "school_b.mat", {"x": arrays["X"].T, "y": arrays["y"][:, None], "task_indexes": starts[:, None]})
    for k, split in enumerate(arrays["splits"]):
        tr, tst = (np.flatnonzero(split == part)[:, None] + 1 for part in (0, 1))
        savemat(folder / f"school_{k + 1}_indexes.mat", {"tr": tr, "tst": tst, "tr_indexes": starts, "n": n})


def write_computers(folder, arrays):
    buyers = arrays["agent"].max() + 1
    parts = {
        "likeBuy": arrays["y"].reshape(buyers, -1),
        "designMarix": arrays["X"][arrays["agent"] == 0],
        "computerDataZ": arrays["agent_covariates"],
    }
    savemat(folder / "conjointAnalysisComputerBuyers.mat", parts)


def write_harws(folder, arrays):
    for part, name in enumerate(("train", "test")):
        (folder / name).mkdir()
        rows = arrays["split"] == part
        np.savetxt(folder / name / f"X_{name}.txt", arrays["X"][rows], fmt=" %.8e")
        np.savetxt(folder / name / f"y_{name}.txt", arrays["y"][rows], fmt="%d")
        np.savetxt(folder / name / f"subject_{name}.txt", arrays["agent"][rows] + 1, fmt="%d")
    names = [f"{k + 1} {name}" for k, name in enumerate(arrays["feature_names"])]
    (folder / "features.txt").write_text("\n".join(names) + "\n")
    (folder / "README.txt").write_text("not of interest")


def write_vehicle(folder, arrays):
    users = [f"f_{k:05d}" for k in range(arrays["agent"].max() + 1)]
    X, y = by_agent(arrays, "X"), by_agent(arrays, "y")
    data = {name: {"x": X[k].tolist(), "y": y[k][:, None].tolist()} for k, name in enumerate(users)}
    # The users of a real file are not in order there, either.
    data = dict(reversed(data.items()))
    sizes = [len(part) for part in y]
    (folder / "mytrain.json").write_text(json.dumps({"num_samples": sizes, "users": users, "user_data": data}))


def write_mnist(folder, arrays, compress=False):
    for part, name in enumerate(("train", "t10k")):
        rows = arrays["split"] == part
        side = round(arrays["X"].shape[1] ** 0.5)
        files = {
            f"{name}-images-idx3-ubyte": (arrays["X"][rows], (rows.sum(), side, side)),
            f"{name}-labels-idx1-ubyte": (arrays["y"][rows], (rows.sum(),)),
        }
        for file, (values, shape) in files.items():
            content = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values.tobytes()
            if compress:
                (folder / f"{file}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / file.replace("-idx", ".idx")).write_bytes(content)


def words_of(arrays):
    """Each review as a list of (word, count)."""
    names, start = arrays["feature_names"], arrays["X_indptr"]
    for first, last in pairwise(start):
        yield list(zip(names[arrays["X_indices"][first:last]], arrays["X_data"][first:last], strict=True))


def write_mds4(folder, arrays):
    lines = {}
    for words, label, agent in zip(words_of(arrays), arrays["y"], arrays["agent"], strict=True):
        kind = "positive" if label > 0 else "negative"
        text = " ".join(f"{word}:{count}" for word, count in reversed(words))
        file = folder / arrays["agent_names"][agent] / f"{kind}.review"
        lines.setdefault(file, []).append(f"{text} #label#:{kind}\n")
    for file, reviews in lines.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(reviews))


def write_mds14(folder, arrays):
    lines = {}
    for words, label, agent, split in zip(words_of(arrays), arrays["y"], arrays["agent"], arrays["split"], strict=True):
        text = " ".join(" ".join([word] * int(count)) for word, count in reversed(words))
        name = f"{arrays['agent_names'][agent]}.task.{('train', 'test')[split]}"
        lines.setdefault(name, []).append(f"{int(label > 0)}\t{text}\n")
    for name, reviews in lines.items():
        (folder / name).write_text("".join(reviews), encoding="utf-8")


def write_landmine(folder, arrays):
    labels = [part[:, None] for part in by_agent(arrays, "y")]
    savemat(folder / "LandmineData.mat", {"feature": cells(by_agent(arrays, "X")), "label": cells(labels)})


def write_parkinsons(folder, arrays, separator=","):
    names = ["subject#", *arrays["feature_names"][:3], "motor_UPDRS", "total_UPDRS", *arrays["feature_names"][3:]]
    lines = [separator.join(names)]
    for agent, x, motor, total in zip(arrays["agent"], arrays["X"], arrays["y_motor"], arrays["y"], strict=True):
        lines.append(separator.join(map(str, [agent + 1, *x[:3], motor, total, *x[3:]])))
    (folder / "parkinsons_updrs.data").write_text("\n".join(lines) + "\n")


# -- small originals --------------------------------------------------------------------------------------------------


def some(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def small(X, y, agent, split=None, **more):
    """Arrays of a small set."""
    features = X if isinstance(X, dict) else {"X": X}
    split = [-1] * len(agent) if split is None else split
    return {**features, "y": y, "agent": np.int16(agent), "split": np.int8(split), **more}


def counts(rows):
    """Ten reviews or more, with two words that are in all of them."""
    return {
        "X_data": np.tile(np.uint8([2, 1]), rows),
        "X_indices": np.tile(np.int32([0, 1]), rows),
        "X_indptr": np.arange(0, 2 * rows + 1, 2, dtype=np.int32),
        "X_shape": np.int64([rows, 2]),
        "feature_names": np.array(["good", "very_bad"]),
    }


SPLITS = np.random.default_rng(1).integers(0, 2, size=(10, 5)).astype(np.int8)
ITEM = np.tile(np.arange(20), 3)
DESIGN = np.where(some(20, 14) > 0, 1, -1).astype(np.float32)
FEATURES = np.array(["a-mean()-X", "a-mean()-Y", "angle(b,c)", "a-mean()-X"])
VOICES = np.array(["age", "sex", "test_time", "Jitter(%)", "PPE"])
SMALL = {
    "school": small(
        some(5, 28),
        np.float32([3, 20, 21, 5, 6]),
        [0, 0, 1, 1, 1],
        SPLITS[0],
        splits=SPLITS,
        feature_names=np.array(SCHOOL_COLUMNS),
    ),
    "computers": small(
        DESIGN[ITEM],
        np.float32(np.arange(60) % 11),
        np.repeat(np.arange(3), 20),
        ITEM >= 16,
        item=np.int8(ITEM),
        agent_covariates=some(3, 7, seed=1),
        feature_names=np.array(COMPUTER_COLUMNS),
    ),
    "harws": small(some(5, 4), np.int8([5, 1, 6, 2, 4]), [0, 2, 2, 1, 1], [0, 0, 0, 1, 1], feature_names=FEATURES),
    "vehicle_ditto_train": small(some(4, 3), np.int8([1, -1, -1, 1]), [0, 1, 1, 2]),
    "mnist": small(np.arange(20, dtype=np.uint8).reshape(5, 4), np.uint8([5, 0, 4, 1, 9]), [-1] * 5, [0, 0, 0, 1, 1]),
    "mds4": small(
        counts(16),
        np.tile(np.int8([1, 1, -1, -1]), 4),
        np.repeat(np.arange(4), 4),
        agent_names=np.array(["books", "dvd", "electronics", "kitchen"]),
    ),
    "mds14": small(
        counts(32),
        np.where(np.arange(32) % 3, 1, -1).astype(np.int8),
        np.repeat(np.arange(16), 2),
        [0, 1] * 16,
        agent_names=np.array(SIXTEEN_DOMAINS),
    ),
    "landmine": small(some(5, 9), np.int8([0, 1, 0, 0, 1]), [0, 0, 0, 1, 1]),
    "parkinsons": small(some(4, 5), some(4, seed=1), [0, 0, 1, 2], y_motor=some(4, seed=2), feature_names=VOICES),
}
WRITERS = {
    "school": write_school,
    "computers": write_computers,
    "harws": write_harws,
    "vehicle_ditto_train": write_vehicle,
    "mnist": write_mnist,
    "mds4": write_mds4,
    "mds14": write_mds14,
    "landmine": write_landmine,
    "parkinsons": write_parkinsons,
}


def test_every_dataset_has_a_converter_and_a_test():
    assert set(CONVERTERS) == set(SOURCES) == set(WRITERS)


@pytest.mark.parametrize("name", WRITERS)
def test_a_small_original_gives_its_arrays(tmp_path, name):
    expected = SMALL[name]
    WRITERS[name](tmp_path, expected)
    found = arrays_of(name, tmp_path)
    assert set(found) == set(expected)
    for key, array in expected.items():
        assert found[key].dtype == array.dtype, key
        np.testing.assert_array_equal(found[key], array, err_msg=key)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in WRITERS],
)
def test_originals_written_back_from_the_real_file_give_its_digest(tmp_path, name):
    path = real(name) / f"{name}.npz"
    (tmp_path / "originals").mkdir()
    WRITERS[name](tmp_path / "originals", read_arrays(path))
    made = convert(name, [tmp_path / "originals"], tmp_path / "made")
    assert made == tmp_path / "made" / f"{name}.npz"
    assert content_digest(read_arrays(made)) == SOURCES[name].digest
    assert [file.name for file in made.parent.iterdir()] == [made.name]


# -- other ways to hold the same files --------------------------------------------------------------------------------


def test_the_har_zip_and_a_zip_around_it(tmp_path):
    folder = tmp_path / "UCI HAR Dataset"
    folder.mkdir()
    expected = SMALL["harws"]
    write_harws(folder, expected)
    with zipfile.ZipFile(tmp_path / "UCI HAR Dataset.zip", "w") as archive:
        for file in folder.rglob("*"):
            archive.write(file, file.relative_to(tmp_path))
    with zipfile.ZipFile(tmp_path / "download.zip", "w") as archive:
        archive.write(tmp_path / "UCI HAR Dataset.zip", "UCI HAR Dataset.zip")
    for name in ("UCI HAR Dataset.zip", "download.zip"):
        found = arrays_of("harws", tmp_path / name)
        np.testing.assert_array_equal(found["X"], expected["X"])
        np.testing.assert_array_equal(found["feature_names"], expected["feature_names"])


def test_a_tar_of_the_reviews(tmp_path):
    folder = tmp_path / "processed_acl"
    folder.mkdir()
    write_mds4(folder, SMALL["mds4"])
    with tarfile.open(tmp_path / "processed_acl.tar.gz", "w:gz") as archive:
        archive.add(folder, "processed_acl")
    found = arrays_of("mds4", tmp_path / "processed_acl.tar.gz")
    assert content_digest(found) == content_digest(arrays_of("mds4", folder))


def test_gzipped_digits_given_one_by_one(tmp_path):
    expected = SMALL["mnist"]
    write_mnist(tmp_path, expected, compress=True)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 4
    np.testing.assert_array_equal(arrays_of("mnist", *files)["X"], expected["X"])


def test_a_table_with_tabs(tmp_path):
    expected = SMALL["parkinsons"]
    write_parkinsons(tmp_path, expected, separator="\t")
    assert content_digest(arrays_of("parkinsons", tmp_path)) == content_digest(expected)


def test_rare_words_are_left_out_and_counts_end_at_255(tmp_path):
    (tmp_path / "empty").mkdir()
    for k, domain in enumerate(SIXTEEN_DOMAINS):
        # "often" is in ten reviews, "rare" in nine; a line end of another system, a broken letter, a capital.
        text = ("OFTEN" if k < 10 else "") + (" rare" if k < 9 else "") + (" many" * 300 if k == 0 else " many")
        (tmp_path / f"{domain}.task.train").write_bytes(b"1\t" + text.encode() + b" \xff\r\n\n")
        (tmp_path / f"{domain}.task.test").write_bytes(b"0\t\n")
    found = arrays_of("mds14", tmp_path)
    assert found["feature_names"].tolist() == ["many", "often", "\ufffd"]
    assert found["X_data"].max() == 255
    assert found["X_shape"].tolist() == [32, 3]
    assert found["y"].tolist() == [1, -1] * 16
    assert np.diff(found["X_indptr"])[1::2].tolist() == [0] * 16


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_a_result_with_another_digest_is_not_kept(tmp_path):
    (tmp_path / "originals").mkdir()
    write_landmine(tmp_path / "originals", SMALL["landmine"])
    with pytest.raises(
        DataError, match=r"not the dataset 'landmine': its content digest is [0-9a-f]{64}, expected 9f02"
    ):
        convert("landmine", [tmp_path / "originals"], tmp_path / "made")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", WRITERS)
def test_a_missing_original_is_named(tmp_path, name):
    with pytest.raises(DataError, match=rf"there is no .* in {tmp_path}"):
        convert(name, [tmp_path], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("school", "school_b.mat"),
        ("vehicle_ditto_train", "mytrain.json"),
        ("landmine", "LandmineData.mat"),
        ("parkinsons", "parkinsons_updrs.data"),
    ],
)
@pytest.mark.parametrize("content", [b"", b"nonsense", b"{}", b"a,b\n1,x\n", b"\0" * 200])
def test_a_damaged_original_is_refused(tmp_path, name, file, content):
    (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=r"cannot be read as|has no rows"):
        convert(name, [tmp_path], tmp_path / "made")


def test_digits_that_are_cut_off(tmp_path):
    write_mnist(tmp_path, SMALL["mnist"])
    file = tmp_path / "train-images.idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match="train-images-idx3-ubyte is not an idx file of bytes, or it is cut off"):
        convert("mnist", [tmp_path])


def test_files_that_are_not_there_or_there_twice(tmp_path):
    with pytest.raises(DataError, match="gone: no such file or folder"):
        convert("school", [tmp_path / "gone"])
    with pytest.raises(DataError, match="no files are given"):
        convert("school", [])
    with pytest.raises(ParameterError, match="no dataset 'shool'; known are school"):
        convert("shool", [tmp_path])
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mytrain.json").write_text("{}")
    with pytest.raises(DataError, match=r"more than one mytrain.json: .*a/mytrain.json, .*b/mytrain.json"):
        convert("vehicle_ditto_train", [tmp_path])
    (tmp_path / "broken.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"broken.zip cannot be read"):
        convert("harws", [tmp_path / "broken.zip"])


def test_originals_read_a_name_that_ends_alike_only_at_a_slash():
    files = Originals([__file__])
    with pytest.raises(DataError, match=r"there is no convert\.py in"):
        files.read("convert.py")
    assert files.read("test_convert.py") == Path(__file__).read_bytes()
