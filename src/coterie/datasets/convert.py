"""From the original public files of a dataset to its npz file.

A converter takes :class:`Originals`, the files that it was given, and returns arrays. :func:`convert` keeps them
only if they have the digest that :mod:`coterie.datasets.sources` has for them. Nothing is downloaded or unpickled.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

from .._files import write_atomic
from ..errors import DataError
from .sources import Arrays, content_digest, convert_folder, source_of

__all__ = ["CONVERTERS", "Originals", "convert"]

#: A word is a feature if it is in so many reviews.
LEAST_REVIEWS = 10

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


class Originals:
    """Files by the ends of their names, wherever they are: given as such, in folders, in zip or tar archives."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self.paths = [Path(path) for path in paths]
        #: How to read each file, by its full name with "/" in it.
        self._files: dict[str, Callable[[], bytes]] = {}
        if not self.paths:
            raise DataError("no files are given: name the original files, or the folder that they are in")
        for path in self.paths:
            if path.is_dir():
                for file in sorted(path.rglob("*")):
                    if file.is_file():
                        self._files[file.as_posix()] = file.read_bytes
            elif path.is_file():
                self._add(path)
            else:
                raise DataError(f"{path}: no such file or folder")

    def _add(self, path: Path) -> None:
        name = path.as_posix()
        try:
            if name.endswith(".zip"):
                self._add_zip(name, path.read_bytes())
            elif name.endswith((".tar", ".tar.gz", ".tgz")):
                with tarfile.open(path) as archive:
                    for member in archive:
                        file = archive.extractfile(member) if member.isfile() else None
                        if file is not None:
                            content = file.read()
                            self._files[f"{name}/{member.name}"] = lambda content=content: content  # type: ignore[misc]
            else:
                self._files[name] = path.read_bytes
        except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{path} cannot be read: {error}") from error

    def _add_zip(self, name: str, content: bytes) -> None:
        archive = zipfile.ZipFile(io.BytesIO(content))
        for member in archive.namelist():
            if member.endswith(".zip"):  # UCI wraps its archives in another one
                self._add_zip(f"{name}/{member}", archive.read(member))
            elif not member.endswith("/"):
                self._files[f"{name}/{member}"] = lambda member=member: archive.read(member)  # type: ignore[misc]

    def read(self, *names: str) -> bytes:
        """The content of the one file whose name ends like one of these, without or with ``.gz``."""
        ends = [f"/{name}{suffix}" for name in names for suffix in ("", ".gz")]
        found = [file for file in self._files if f"/{file}".endswith(tuple(ends))]
        if len(found) != 1:
            given = ", ".join(map(str, self.paths))
            what = f"more than one {names[0]}: {', '.join(found[:3])}" if found else f"no {names[0]}"
            raise DataError(f"there is {what} in {given}")
        try:
            content = self._files[found[0]]()
            return gzip.decompress(content) if found[0].endswith(".gz") else content
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{found[0]} cannot be read: {error}") from error


def convert(name: str, paths: Sequence[str | os.PathLike[str]], folder: str | os.PathLike[str] | None = None) -> Path:
    """Make the file of a dataset from its originals.

    Parameters
    ----------
    name : str
        One of :data:`~coterie.datasets.SOURCES`.
    paths : sequence of path
        The original files, or folders or archives with them; ``SOURCES[name].originals`` says where they are.
    folder : path, optional
        Where to write it. Default: the folder in the user's cache where loaders look for it.

    Returns
    -------
    Path
        Of the new file.

    Raises
    ------
    DataError
        If a file is missing or cannot be read, or if the result is not what it must be: then nothing is kept.

    Examples
    --------
    >>> convert("school", ["Downloads/school"])
    Traceback (most recent call last):
    coterie.errors.DataError: Downloads/school: no such file or folder
    """
    source = source_of(name)
    originals = Originals(paths)
    try:
        arrays = CONVERTERS[name](originals)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, NotImplementedError) as error:
        if isinstance(error, DataError):
            raise
        given = ", ".join(map(str, originals.paths))
        raise DataError(f"{given} cannot be read as originals of {name!r}: {error}") from error
    found = content_digest(arrays)
    if found != source.digest:
        shapes = ", ".join(f"{key} {array.shape}" for key, array in arrays.items())
        raise DataError(
            f"the result is not the dataset {name!r}: its content digest is {found}, expected {source.digest}. "
            f"Nothing is kept. It has {shapes}. Expected are {source.rows} rows and {source.features} features, from: "
            f"{'; or '.join(source.originals)}"
        )
    path = Path(convert_folder() if folder is None else folder) / source.file
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_atomic(path, content.getvalue())
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}") from error


# -- one for each dataset ---------------------------------------------------------------------------------------------


def school(files: Originals) -> Arrays:
    """``school_b.mat`` (x, y, task_indexes) and ``school_1..10_indexes.mat`` (tr, tst), all counted from 1."""
    data = _mat(files, "school_b.mat")
    X = _float32(data["x"]).T
    starts = data["task_indexes"].ravel().astype(int) - 1
    splits = np.full((10, len(X)), -1, dtype=np.int8)
    for k in range(10):
        indexes = _mat(files, f"school_{k + 1}_indexes.mat")
        for part, key in enumerate(("tr", "tst")):
            splits[k, indexes[key].ravel().astype(int) - 1] = part
    return {
        "X": X,
        "y": _float32(data["y"]).ravel(),
        "agent": np.repeat(np.arange(starts.size), np.diff([*starts, len(X)])).astype(np.int16),
        "split": splits[0],
        "splits": splits,
        "feature_names": np.array(SCHOOL_COLUMNS),
    }


def computers(files: Originals) -> Arrays:
    """``conjointAnalysisComputerBuyers.mat``: likeBuy, designMarix (so it is spelt), computerDataZ."""
    data = {key.lower(): value for key, value in _mat(files, "conjointAnalysisComputerBuyers.mat").items()}
    scores, design = data["likebuy"], data["designmarix"]
    buyers, profiles = scores.shape
    item = np.tile(np.arange(profiles), buyers)
    return {
        "X": _float32(design)[item],
        "y": _float32(scores).ravel(),
        "agent": np.repeat(np.arange(buyers), profiles).astype(np.int16),
        "split": (item >= 16).astype(np.int8),  # the last four were made for validation
        "item": item.astype(np.int8),
        "agent_covariates": _float32(data["computerdataz"]),
        "feature_names": np.array(COMPUTER_COLUMNS),
    }


def harws(files: Originals) -> Arrays:
    """The UCI HAR folder: ``{train,test}/{X,y,subject}_{train,test}.txt`` and ``features.txt``."""
    parts = ("train", "test")
    X, y, subject = (
        [_table(files.read(f"{part}/{what}_{part}.txt")) for part in parts] for what in ("X", "y", "subject")
    )
    names = [line.split()[1] for line in files.read("features.txt").decode().splitlines() if line.strip()]
    return {
        "X": _float32(np.vstack(X)),
        "y": np.vstack(y).ravel().astype(np.int8),
        "agent": (np.vstack(subject).ravel() - 1).astype(np.int16),
        "split": np.repeat([0, 1], [len(part) for part in X]).astype(np.int8),
        "feature_names": np.array(names),
    }


def vehicle(files: Originals) -> Arrays:
    """``mytrain.json`` of Ditto: users, and for each its x and y."""
    data = json.loads(files.read("mytrain.json"))
    users = [data["user_data"][name] for name in data["users"]]
    agent = np.repeat(np.arange(len(users)), [len(user["y"]) for user in users])
    return {
        "X": _float32(np.vstack([user["x"] for user in users])),
        "y": np.concatenate([np.ravel(user["y"]) for user in users]).astype(np.int8),
        "agent": agent.astype(np.int16),
        "split": _no_split(agent.size),
    }


def mnist(files: Originals) -> Arrays:
    """The four idx files, gzipped or not, named with ``-idx`` or with ``.idx``."""

    def read(name: str) -> np.ndarray:
        return _idx(files.read(name, name.replace("-idx", ".idx")), name)

    parts = ("train", "t10k")
    X = [read(f"{part}-images-idx3-ubyte") for part in parts]
    y = [read(f"{part}-labels-idx1-ubyte") for part in parts]
    sizes = [len(part) for part in X]
    return {
        "X": np.concatenate([images.reshape(len(images), -1) for images in X]),
        "y": np.concatenate(y),
        "agent": np.full(sum(sizes), -1, dtype=np.int16),
        "split": np.repeat([0, 1], sizes).astype(np.int8),
    }


def mds4(files: Originals) -> Arrays:
    """``processed_acl``: a review is a line of ``word:count`` with ``#label#:`` and its label at the end."""
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
    return {
        **_bag_of_words(words for _, words in reviews),
        "y": np.array(labels, dtype=np.int8),
        "agent": np.array([FOUR_DOMAINS.index(domain) for domain, _ in reviews], dtype=np.int16),
        "split": _no_split(len(labels)),
        "agent_names": np.array(FOUR_DOMAINS),
    }


def mds14(files: Originals) -> Arrays:
    """``fdu-mtl``: a review is a line, 0 or 1, a tab and the text, with spaces between the words."""
    reviews, labels, agent, split = [], [], [], []
    for k, domain in enumerate(SIXTEEN_DOMAINS):
        for part, name in enumerate(("train", "test")):
            for line in _lines(files.read(f"{domain}.task.{name}")):
                label, _, text = line.partition("\t")
                reviews.append(Counter(text.lower().split()))
                labels.append(2 * int(label) - 1)
                agent.append(k)
                split.append(part)
    return {
        **_bag_of_words(reviews),
        "y": np.array(labels, dtype=np.int8),
        "agent": np.array(agent, dtype=np.int16),
        "split": np.array(split, dtype=np.int8),
        "agent_names": np.array(SIXTEEN_DOMAINS),
    }


def landmine(files: Originals) -> Arrays:
    """``LandmineData.mat``: cells feature and label, one for each field."""
    data = _mat(files, "LandmineData.mat")
    features, labels = (list(data[key].ravel()) for key in ("feature", "label"))
    agent = np.repeat(np.arange(len(features)), [len(field) for field in features])
    return {
        "X": _float32(np.vstack(features)),
        "y": np.concatenate([np.ravel(field) for field in labels]).astype(np.int8),
        "agent": agent.astype(np.int16),
        "split": _no_split(agent.size),
    }


def parkinsons(files: Originals) -> Arrays:
    """``parkinsons_updrs.data``: a table with a header, and commas (UCI) or tabs (a copy) between the columns."""
    content = files.read("parkinsons_updrs.data")
    first, _, rest = content.partition(b"\n")
    tab = b"\t" in first
    names = [name.strip() for name in first.decode("utf-8-sig").split("\t" if tab else ",")]
    columns = dict(zip(names, _table(rest, "\t" if tab else ",").T, strict=True))
    agent = columns.pop("subject#") - 1
    targets = {key: _float32(columns.pop(name)) for key, name in (("y", "total_UPDRS"), ("y_motor", "motor_UPDRS"))}
    return {
        "X": _float32(np.column_stack(list(columns.values()))),
        **targets,
        "agent": agent.astype(np.int16),
        "split": _no_split(agent.size),
        "feature_names": np.array(list(columns)),
    }


#: What turns originals into arrays, by the name of the dataset.
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


# -- what they share --------------------------------------------------------------------------------------------------


def _mat(files: Originals, name: str) -> dict[str, Any]:
    content = files.read(name)
    try:
        return loadmat(io.BytesIO(content))
    except Exception as error:  # SciPy has no one error for what is not a MATLAB file
        raise DataError(f"{name} cannot be read as a MATLAB file: {error}") from error


def _table(content: bytes, separator: str | None = None) -> np.ndarray:
    """Numbers in lines. Not by pandas, whose fast parser may be off by a bit."""
    if not content.strip():
        raise DataError("a table of the originals has no rows")
    return np.loadtxt(io.BytesIO(content), delimiter=separator, ndmin=2)


def _lines(content: bytes) -> list[str]:
    """Lines of a text. Not splitlines, which also breaks lines at characters that reviews may hold."""
    lines = content.decode("utf-8", errors="replace").split("\n")
    return [line.rstrip("\r") for line in lines if line.strip()]


def _idx(content: bytes, name: str) -> np.ndarray:
    """The array of an idx file of bytes: 0, 0, 8, the number of axes, their lengths, the values."""
    axes = content[3] if content[:3] == b"\0\0\x08" else 0
    shape = tuple(int(length) for length in np.frombuffer(content[4 : 4 + 4 * axes], dtype=">u4"))
    values = np.frombuffer(content[4 + 4 * axes :], dtype=np.uint8)
    if axes == 0 or values.size != np.prod(shape):
        raise DataError(f"{name} is not an idx file of bytes, or it is cut off")
    return values.reshape(shape)


def _bag_of_words(reviews: Iterable[Counter[str]]) -> Arrays:
    """Counts, 255 at most, of the words of enough reviews, as a CSR matrix with columns in the order of the words."""
    reviews = list(reviews)
    met = Counter(word for words in reviews for word in words)
    kept = sorted(word for word, times in met.items() if times >= LEAST_REVIEWS)
    column = {word: k for k, word in enumerate(kept)}
    rows = [sorted((column[word], count) for word, count in words.items() if word in column) for words in reviews]
    entries = np.array([entry for row in rows for entry in row], dtype=np.int64).reshape(-1, 2)
    return {
        "X_data": np.minimum(entries[:, 1], 255).astype(np.uint8),
        "X_indices": entries[:, 0].astype(np.int32),
        "X_indptr": np.cumsum([0, *map(len, rows)]).astype(np.int32),
        "X_shape": np.array([len(reviews), len(kept)], dtype=np.int64),
        "feature_names": np.array(kept, dtype=str),
    }


def _float32(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64).astype(np.float32)


def _no_split(rows: int) -> np.ndarray:
    return np.full(rows, -1, dtype=np.int8)
