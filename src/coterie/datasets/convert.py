"""Conversion of the original public files of a dataset to an npz file.

A converter takes :class:`Originals`, the given files, and returns arrays. :func:`convert` keeps the arrays only if
their digest equals the one in :mod:`coterie.datasets.sources`. Sets in the formats of other benchmarks, which users
generate themselves, have no digest. Nothing is downloaded or unpickled.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

from .._files import write_atomic
from ..errors import DataError, ParameterError
from .leaf import leaf
from .originals import Originals, bag_of_words
from .pfllib import pfllib
from .sources import SOURCES, Arrays, content_digest, convert_folder, source_of

__all__ = ["CONVERTERS", "FORMATS", "Originals", "convert"]

SCHOOL_COLUMNS = (
    *("year_1985", "year_1986", "year_1987", "pct_free_school_meals", "pct_VR1_band", "gender_female", "gender_male"),
    *("VR_band_3", "VR_band_1", "VR_band_2", "eth_ESWI", "eth_African", "eth_Arab", "eth_Bangladeshi"),
    *("eth_Caribbean", "eth_Greek", "eth_Indian", "eth_Pakistani", "eth_SE_Asian", "eth_Turkish", "eth_Other"),
    *("school_mixed", "school_boys", "school_girls", "denom_maintained", "denom_CofE", "denom_RC", "bias"),
)
COMPUTER_COLUMNS = (
    *("const", "hot_line", "RAM", "screen_size", "CPU_speed", "hard_disk", "CD_ROM", "cache", "color_of_unit"),
    *("availability", "warranty", "software", "guarantee", "price"),
)
FOUR_DOMAINS = ("books", "dvd", "electronics", "kitchen")
SIXTEEN_DOMAINS = (
    *("apparel", "baby", "books", "camera_photo", "dvd", "electronics", "health_personal_care", "kitchen_housewares"),
    *("magazines", "music", "software", "sports_outdoors", "toys_games", "video", "imdb", "MR"),
)


def convert(
    name: str,
    paths: Sequence[str | os.PathLike[str]],
    folder: str | os.PathLike[str] | None = None,
    called: str | None = None,
) -> Path:
    """Convert the original files of a dataset.

    Parameters
    ----------
    name : str
        One of :data:`~coterie.datasets.SOURCES`; or "leaf" or "pfllib", the formats of these benchmarks.
    paths : sequence of path
        The original files, or folders or archives that contain them; ``SOURCES[name].originals`` says where to get
        them.
    folder : path, optional
        Folder of the new file. Default: the folder in the user's cache in which loaders look.
    called : str, optional
        Name of a set in one of the formats, for :func:`~coterie.datasets.read_converted`. Default: the format's name.

    Returns
    -------
    Path
        The new file.

    Raises
    ------
    DataError
        If a file is missing or cannot be read, or the result has the wrong digest: no file is then written.

    Examples
    --------
    >>> convert("school", ["Downloads/school"])
    Traceback (most recent call last):
    coterie.errors.DataError: Downloads/school: no such file or folder
    """
    file = _file_of(name, called)
    originals = Originals(paths)
    try:
        arrays = (FORMATS[name] if name in FORMATS else CONVERTERS[name])(originals)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, NotImplementedError) as error:
        if isinstance(error, DataError):
            raise
        given = ", ".join(map(str, originals.paths))
        raise DataError(f"{given} cannot be read as originals of {name!r}: {error}") from error
    if name in SOURCES:
        _verify(name, arrays)
    path = Path(convert_folder() if folder is None else folder) / file
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_atomic(path, content.getvalue())
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}") from error


def _verify(name: str, arrays: Arrays) -> None:
    source, found = SOURCES[name], content_digest(arrays)
    if found != source.digest:
        shapes = ", ".join(f"{key} {array.shape}" for key, array in arrays.items())
        raise DataError(
            f"the result is not the dataset {name!r}: its content digest is {found}, expected {source.digest}. "
            f"Nothing is kept. It has {shapes}. Expected are {source.rows} rows and {source.features} features, from: "
            f"{'; or '.join(source.originals)}"
        )


def _file_of(name: str, called: str | None) -> str:
    """Return the name of the file, which for a set in a format must differ from all verified datasets' names."""
    if name not in FORMATS:
        source = source_of(name)
        if called is not None:
            raise ParameterError(f"called = {called!r}: the file of {name!r} is always {source.file}; leave it out")
        return source.file
    called = name if called is None else called
    if called in SOURCES:
        raise ParameterError(f"called = {called!r}: another dataset has this name; take one such as 'my-{called}'")
    if not re.fullmatch(r"[\w-]+", called):
        raise ParameterError(f"called = {called!r}: expected letters, digits, - and _, such as 'femnist'")
    return f"{called}.npz"


# -- one for each dataset ---------------------------------------------------------------------------------------------


def school(files: Originals) -> Arrays:
    """Convert ``school_b.mat`` (x, y, task_indexes) and ``school_1..10_indexes.mat`` (tr, tst), with indices from 1."""
    data = _mat(files, "school_b.mat")
    X = data["x"].T
    starts = data["task_indexes"].ravel().astype(int) - 1
    splits = np.full((10, len(X)), -1, dtype=np.int8)
    for k in range(10):
        indexes = _mat(files, f"school_{k + 1}_indexes.mat")
        for part, key in enumerate(("tr", "tst")):
            splits[k, indexes[key].ravel().astype(int) - 1] = part
    agent = np.repeat(np.arange(starts.size), np.diff([*starts, len(X)]))
    y = _float32(data["y"]).ravel()
    return _arrays(X, y, agent, splits[0], splits=splits, feature_names=np.array(SCHOOL_COLUMNS))


def computers(files: Originals) -> Arrays:
    """Convert ``conjointAnalysisComputerBuyers.mat``: likeBuy, designMarix (the file's spelling), computerDataZ."""
    data = {key.lower(): value for key, value in _mat(files, "conjointAnalysisComputerBuyers.mat").items()}
    scores, design = data["likebuy"], data["designmarix"]
    buyers, profiles = scores.shape
    item = np.tile(np.arange(profiles), buyers)
    return _arrays(
        design[item],
        _float32(scores).ravel(),
        np.repeat(np.arange(buyers), profiles),
        item >= 16,  # the last four items were designed for validation
        item=item.astype(np.int8),
        agent_covariates=_float32(data["computerdataz"]),
        feature_names=np.array(COMPUTER_COLUMNS),
    )


def harws(files: Originals) -> Arrays:
    """Convert the UCI HAR folder: ``{train,test}/{X,y,subject}_{train,test}.txt`` and ``features.txt``."""
    parts = ("train", "test")
    X, y, subject = (
        [_table(files.read(f"{part}/{what}_{part}.txt")) for part in parts] for what in ("X", "y", "subject")
    )
    names = [line.split()[1] for line in files.read("features.txt").decode().splitlines() if line.strip()]
    split = np.repeat([0, 1], [len(part) for part in X])
    labels, agent = np.vstack(y).ravel().astype(np.int8), np.vstack(subject).ravel() - 1
    return _arrays(np.vstack(X), labels, agent, split, feature_names=np.array(names))


def vehicle(files: Originals) -> Arrays:
    """Convert ``mytrain.json`` of Ditto: users, each with x and y."""
    data = json.loads(files.read("mytrain.json"))
    users = [data["user_data"][name] for name in data["users"]]
    agent = np.repeat(np.arange(len(users)), [len(user["y"]) for user in users])
    y = np.concatenate([np.ravel(user["y"]) for user in users]).astype(np.int8)
    return _arrays(np.vstack([user["x"] for user in users]), y, agent)


def mnist(files: Originals) -> Arrays:
    """Convert the four idx files, gzipped or not, named with ``-idx`` or with ``.idx``."""

    def read(name: str) -> np.ndarray:
        return _idx(files.read(name, name.replace("-idx", ".idx")), name)

    parts = ("train", "t10k")
    X = [read(f"{part}-images-idx3-ubyte") for part in parts]
    y = [read(f"{part}-labels-idx1-ubyte") for part in parts]
    sizes = [len(part) for part in X]
    images = {"X": np.concatenate([part.reshape(len(part), -1) for part in X])}
    return _arrays(images, np.concatenate(y), np.full(sum(sizes), -1), np.repeat([0, 1], sizes))


def mds4(files: Originals) -> Arrays:
    """Convert ``processed_acl``: each review is a line of ``word:count``, with ``#label#:`` and the label last."""
    reviews, labels = [], []
    for domain in FOUR_DOMAINS:
        for label, name in ((1, "positive"), (-1, "negative")):
            for line in _lines(files.read(f"{domain}/{name}.review")):
                words: Counter[str] = Counter()
                for entry in line.split():
                    word, _, count = entry.rpartition(":")
                    if word != "#label#":
                        words[word] += int(count)
                reviews.append((domain, words))
                labels.append(label)
    features = bag_of_words(words for _, words in reviews)
    agent = np.array([FOUR_DOMAINS.index(domain) for domain, _ in reviews])
    return _arrays(features, np.array(labels, dtype=np.int8), agent, agent_names=np.array(FOUR_DOMAINS))


def mds14(files: Originals) -> Arrays:
    """Convert ``fdu-mtl``: each review is a line of 0 or 1, a tab, and the text with spaces between the words."""
    reviews, labels, agent, split = [], [], [], []
    for k, domain in enumerate(SIXTEEN_DOMAINS):
        for part, name in enumerate(("train", "test")):
            for line in _lines(files.read(f"{domain}.task.{name}")):
                label, _, text = line.partition("\t")
                reviews.append(Counter(text.lower().split()))
                labels.append(2 * int(label) - 1)
                agent.append(k)
                split.append(part)
    y, names = np.array(labels, dtype=np.int8), np.array(SIXTEEN_DOMAINS)
    return _arrays(bag_of_words(reviews), y, np.array(agent), np.array(split), agent_names=names)


def landmine(files: Originals) -> Arrays:
    """Convert ``LandmineData.mat``: cell arrays feature and label, with one cell for each field."""
    data = _mat(files, "LandmineData.mat")
    features, labels = (list(data[key].ravel()) for key in ("feature", "label"))
    agent = np.repeat(np.arange(len(features)), [len(field) for field in features])
    y = np.concatenate([np.ravel(field) for field in labels]).astype(np.int8)
    return _arrays(np.vstack(features), y, agent)


def parkinsons(files: Originals) -> Arrays:
    """Convert ``parkinsons_updrs.data``: a table with a header, separated by commas (UCI) or tabs (a copy)."""
    content = files.read("parkinsons_updrs.data")
    first, _, rest = content.partition(b"\n")
    tab = b"\t" in first
    names = [name.strip() for name in first.decode("utf-8-sig").split("\t" if tab else ",")]
    columns = dict(zip(names, _table(rest, "\t" if tab else ",").T, strict=True))
    agent = columns.pop("subject#") - 1
    total, motor = (_float32(columns.pop(name)) for name in ("total_UPDRS", "motor_UPDRS"))
    X = np.column_stack(list(columns.values()))
    return _arrays(X, total, agent, y_motor=motor, feature_names=np.array(list(columns)))


#: Converters by the name of the dataset.
CONVERTERS: dict[str, Callable[[Originals], Arrays]] = {
    "school": school,
    "computers": computers,
    "harws": harws,
    "vehicle_ditto_train": vehicle,
    "mnist": mnist,
    "mds4": mds4,
    "mds14": mds14,
    "landmine": landmine,
    "parkinsons": parkinsons,
}

#: Readers of the sets of other benchmarks, by the name of the format.
FORMATS: dict[str, Callable[[Originals], Arrays]] = {"leaf": leaf, "pfllib": pfllib}


# -- shared helpers ---------------------------------------------------------------------------------------------------


def _mat(files: Originals, name: str) -> dict[str, Any]:
    content = files.read(name)
    try:
        return loadmat(io.BytesIO(content))
    except Exception as error:  # SciPy raises various errors for files that are no MATLAB files
        raise DataError(f"{name} cannot be read as a MATLAB file: {error}") from error


def _table(content: bytes, separator: str | None = None) -> np.ndarray:
    """Return lines of numbers as an array. pandas is not used, since its fast parser may be wrong in the last bit."""
    if not content.strip():
        raise DataError("a table of the originals has no rows")
    return np.loadtxt(io.BytesIO(content), delimiter=separator, ndmin=2)


def _lines(content: bytes) -> list[str]:
    """Return the lines of a text. splitlines would also break lines at characters that reviews may contain."""
    lines = content.decode("utf-8", errors="replace").split("\n")
    return [line.rstrip("\r") for line in lines if line.strip()]


def _idx(content: bytes, name: str) -> np.ndarray:
    """Return the array of an idx file of bytes: 0, 0, 8, the number of axes, their lengths, the values."""
    axes = content[3] if content[:3] == b"\0\0\x08" else 0
    shape = tuple(int(length) for length in np.frombuffer(content[4 : 4 + 4 * axes], dtype=">u4"))
    values = np.frombuffer(content[4 + 4 * axes :], dtype=np.uint8)
    if axes == 0 or values.size != np.prod(shape):
        raise DataError(f"{name} is not an idx file of bytes, or it is cut off")
    return values.reshape(shape)


def _float32(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64).astype(np.float32)


def _arrays(X: Any, y: np.ndarray, agent: np.ndarray, split: np.ndarray | None = None, **more: np.ndarray) -> Arrays:
    """Return the arrays of a file: features in single precision, unless given as arrays; split -1 means no split."""
    features = X if isinstance(X, dict) else {"X": _float32(X)}
    split = np.full(len(agent), -1) if split is None else split
    return {**features, "y": y, "agent": agent.astype(np.int16), "split": split.astype(np.int8), **more}
