"""Real datasets: their descriptions, sources, and digests.

These sets are not bundled. ``coterie data convert`` converts the original public files to one npz file for each set,
and every file is checked against the digest below whenever it is read.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from .._files import cache_root
from ..errors import DataError, MissingDataError, ParameterError

__all__ = ["SOURCES", "Source", "content_digest", "convert_folder", "find", "folders", "raw"]

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Source:
    """One real dataset.

    Attributes
    ----------
    name : str
        Short name in the commands and in :func:`raw`.
    title : str
        Description in one line.
    agents, features, rows : int
        Size of the set. MNIST has no agents of its own.
    sha256 : str
        Digest of the npz file that coterie was tested with. Other zip libraries write other bytes for the same arrays:
        only `digest` is checked.
    digest : str
        ``content_digest`` of the arrays.
    licence : str
        What is known about the licence.
    citation : str
    originals : tuple of str
        Places of the original files.
    paths : str
        Arguments of ``coterie data convert``, in words.
    """

    name: str
    title: str
    agents: int
    features: int
    rows: int
    sha256: str
    digest: str
    licence: str
    citation: str
    originals: tuple[str, ...]
    paths: str

    @property
    def file(self) -> str:
        """Name of the npz file."""
        return f"{self.name}.npz"

    @property
    def command(self) -> str:
        """The command that converts the originals."""
        return f"coterie data convert {self.name} {self.paths}"


_GITHUB = "https://github.com/"

#: Every dataset with a loader.
SOURCES: Mapping[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="school",
            title="Exam scores of pupils of 139 London schools, ten official splits",
            agents=139,
            features=28,
            rows=15362,
            sha256="e7ae2701637a686a3cb88952093177ffcddb96b78bc7d3055afe175d0bbc8480",
            digest="3e0f24f95d1674f5a4d21d82c70d03c072d809672337d2cbe5a40546ef209ef8",
            licence="none stated; Inner London Education Authority data, Centre for Multilevel Modelling (Bristol)",
            citation="H. Goldstein (1991), Multilevel modelling of survey data, The Statistician 40, 235-244; "
            "splits: A. Argyriou, T. Evgeniou, M. Pontil (2008), Convex multi-task feature learning",
            originals=(_GITHUB + "tjanez/PyMTL: data/school/school_b.mat and school_1..10_indexes.mat",),
            paths="FOLDER (with school_b.mat and school_1_indexes.mat to school_10_indexes.mat)",
        ),
        Source(
            name="computers",
            title="How likely 190 buyers are to buy each of 20 computers, 0 to 10",
            agents=190,
            features=14,
            rows=3800,
            sha256="5c484acbaf177cef6014cd385fa05b1704bbd338adb189f4a6af04fcc66ad1ce",
            digest="08065d6f5a308162668c57eacd1989e98274fa904defe003ca1eceadbdf67e60",
            licence="none stated",
            citation="P. Lenk, W. DeSarbo, P. Green, M. Young (1996), Hierarchical Bayes conjoint analysis, "
            "Marketing Science 15, 173-191",
            originals=(
                _GITHUB + "probml/pmtkdata: conjointAnalysisComputerBuyers/conjointAnalysisComputerBuyers.mat",
                _GITHUB + "vzantedeschi/Dada: datasets/conjointAnalysisComputerBuyers.mat, the same file",
            ),
            paths="conjointAnalysisComputerBuyers.mat",
        ),
        Source(
            name="harws",
            title="Human activity recognition with smartphones, 30 subjects, six activities",
            agents=30,
            features=561,
            rows=10299,
            sha256="b0c328ce6b38f918792dda9192893bd6bc031dc9cfe3527d32bb0762fc81a476",
            digest="768a92e5c904d4d25799ed53f7e441cbca3cab3223834637d035e4ea0be9e84f",
            licence="its README: cite the paper, no commercial use; UCI's page is said to list CC BY 4.0 (not checked)",
            citation="D. Anguita, A. Ghio, L. Oneto, X. Parra, J. Reyes-Ortiz (2012), Human activity recognition on "
            "smartphones using a multiclass hardware-friendly support vector machine, IWAAL",
            originals=("https://archive.ics.uci.edu/dataset/240: UCI HAR Dataset.zip",),
            paths='"UCI HAR Dataset.zip" (or the folder in it)',
        ),
        Source(
            name="vehicle_ditto_train",
            title="Acoustic and seismic vehicle sensors: a random subset, 1,860 of about 43,700 rows",
            agents=23,
            features=100,
            rows=1860,
            sha256="d67a1106e3828dbe0716ab90313fad5d9eef51adcf6bfa56a01fadb96dfb3b1d",
            digest="d8171d045a7bfc42da3ae67c61764b712411f9965c8cb1088248c3fca9239e25",
            licence="data: none stated; the repository's code is MIT",
            citation="M. Duarte, Y. H. Hu (2004), Vehicle classification in distributed sensor networks, JPDC 64, "
            "826-838; subset: T. Li, S. Hu, A. Beirami, V. Smith (2021), Ditto, ICML",
            originals=(
                _GITHUB + "litian96/ditto: data/vehicle/data/train/mytrain.json at commit "
                "602f571de561f7796104860108dfa91182bfbcd8 (it is only in the history)",
            ),
            paths="mytrain.json",
        ),
        Source(
            name="mnist",
            title="Handwritten digits, official training and test sets",
            agents=0,
            features=784,
            rows=70000,
            sha256="1f2a6ab3ad0a0a28b37cb6ea10829d036de2c1623b4e264940a9b03b03f456bb",
            digest="8a86a8d77354ff192163bc43f643a79ebd72571fbe77d5aa5b393cd2cbcde9c0",
            licence="usually quoted as CC BY-SA 3.0 (not checked)",
            citation="Y. LeCun, L. Bottou, Y. Bengio, P. Haffner (1998), Gradient-based learning applied to document "
            "recognition, Proceedings of the IEEE 86, 2278-2324",
            originals=("the four idx files of http://yann.lecun.com/exdb/mnist/ and its many mirrors, gzipped or not",),
            paths="FOLDER (with train-images-idx3-ubyte, train-labels-idx1-ubyte and the two t10k files, or their .gz)",
        ),
        Source(
            name="mds4",
            title="Multi-domain sentiment: reviews of books, DVDs, electronics and kitchen ware",
            agents=4,
            features=17323,
            rows=8000,
            sha256="0888629760be9c841eafbc043bbda8139aa7c2ffefb14568fe78d97814789723",
            digest="0a810b1357f5e138a2d4a565599775c3ebbcf3bf8e339b420751230840a283a3",
            licence="none stated; for research, a citation is requested",
            citation="J. Blitzer, M. Dredze, F. Pereira (2007), Biographies, Bollywood, boom-boxes and blenders, ACL",
            originals=(
                "https://www.cs.jhu.edu/~mdredze/datasets/sentiment/: processed_acl.tar.gz",
                _GITHUB + "RyosukeOzaki/Logistic-Regression: processed_acl/ at commit "
                "9ec5348a0cd608863ef3bf9ee5d1c4c57baf81c8",
            ),
            paths="processed_acl.tar.gz (or the folder in it)",
        ),
        Source(
            name="mds14",
            title="FDU-MTL: reviews of 14 kinds of products, and of films (IMDB, MR), published split",
            agents=16,
            features=13298,
            rows=31780,
            sha256="e5821185612f4116fa5c24cea907291c626d567dba9c0e8fb1340bae760052b4",
            digest="84340c348af34893e6bbabc55ea25351086948bf2feb246293846dd24ab171d6",
            licence="data: none stated; the repository has a licence for its code",
            citation="P. Liu, X. Qiu, X. Huang (2017), Adversarial multi-task learning for text classification, ACL; "
            "reviews from J. Blitzer, M. Dredze, F. Pereira (2007), ACL",
            originals=(_GITHUB + "ccsasuke/man: data/fdu-mtl/*.task.train and *.task.test",),
            paths="FOLDER (fdu-mtl, with the .task.train and .task.test files)",
        ),
        Source(
            name="landmine",
            title="Land mines or clutter in 29 fields, from radar features",
            agents=29,
            features=9,
            rows=14820,
            sha256="cda848df9a7e257a8356db4fc37dc58d995e328d0f5b45075f609e5b9fe6535f",
            digest="9f02118ce43994848128d2128722ec486aaca5b98edfbbc17032550a3bc608bd",
            licence="none stated; a public research set",
            citation="Y. Xue, X. Liao, L. Carin, B. Krishnapuram (2007), Multi-task learning for classification with "
            "Dirichlet process priors, JMLR 8, 35-63",
            originals=(_GITHUB + "daizhongxiang/Federated_Bayesian_Optimization: LandmineData.mat",),
            paths="LandmineData.mat",
        ),
        Source(
            name="parkinsons",
            title="Parkinson's telemonitoring: symptom scores of 42 patients from voice recordings",
            agents=42,
            features=19,
            rows=5875,
            sha256="a40e51531332715e1213ae2078c5cc56e972bebcd1ef244046be935b86a8cce2",
            digest="1538639e57a383f11167086ac37e1d8ec384e17fa47e0d8ba92a46bdc0343f36",
            licence="a citation is requested; UCI's page is said to list CC BY 4.0 (not checked)",
            citation="A. Tsanas, M. Little, P. McSharry, L. Ramig (2010), Accurate telemonitoring of Parkinson's "
            "disease progression by non-invasive speech tests, IEEE Trans. Biomedical Engineering 57, 884-893",
            originals=(
                "https://archive.ics.uci.edu/dataset/189: parkinsons_updrs.data",
                _GITHUB + "shikashyam/ParkinsonsTelemonitoring: parkinsons_updrs.data",
            ),
            paths="parkinsons_updrs.data",
        ),
    )
}


def content_digest(arrays: Mapping[str, Any]) -> str:
    """Return the SHA-256 of names, types, shapes and values of arrays, independent of memory order and file format."""
    state = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)  # equal on every machine
        state.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        state.update(array.tobytes())
    return state.hexdigest()


def convert_folder() -> Path:
    """Return the folder of converted files: ``data`` in ``$COTERIE_CACHE``, or in coterie's part of the user cache."""
    return cache_root() / "data"


def folders() -> list[Path]:
    """Return the folders in which files are searched: ``$COTERIE_DATA`` if it is set, then :func:`convert_folder`."""
    given = os.environ.get("COTERIE_DATA")
    return [*([Path(given)] if given else []), convert_folder()]


def source_of(name: str) -> Source:
    """Return the source of this name; refuse an unknown name and list the known ones."""
    if name not in SOURCES:
        raise ParameterError(f"no dataset {name!r}; known are {', '.join(SOURCES)}")
    return SOURCES[name]


def find(name: str) -> Path | None:
    """Return the file of a dataset, without reading it; None if there is none."""
    source = source_of(name)
    return next((folder / source.file for folder in folders() if (folder / source.file).is_file()), None)


def read_arrays(path: Path) -> Arrays:
    """Return the arrays of an npz file. Python objects are refused, never unpickled."""
    try:
        with path.open("rb") as opened:
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read as an npz file: {error}") from error


def features(arrays: Arrays) -> Any:
    """Return the features of a file, dense or sparse."""
    if "X" in arrays:
        return arrays["X"]
    parts = arrays["X_data"].astype(np.float64), arrays["X_indices"], arrays["X_indptr"]
    return sparse.csr_array(parts, shape=tuple(arrays["X_shape"]))


def raw(name: str) -> Arrays:
    """Return the arrays of one dataset's file, verified.

    Parameters
    ----------
    name : str
        One of :data:`SOURCES`.

    Returns
    -------
    dict of str to ndarray

    Raises
    ------
    MissingDataError
        If there is no file; the message names the command that makes it.
    DataError
        If the file has the wrong content.

    Examples
    --------
    >>> raw("school")["X"].shape  # doctest: +SKIP
    (15362, 28)
    """
    source = source_of(name)
    path = find(name)
    if path is None:
        raise MissingDataError(missing(source))
    try:
        arrays = read_arrays(path)
    except DataError as error:
        raise DataError(f"{error}; remove it, and make it again: {source.command}") from error
    found = content_digest(arrays)
    if found != source.digest:
        raise DataError(
            f"{path} is not the dataset {name!r}: its content digest is {found}, expected {source.digest}; "
            f"remove it, and make it again: {source.command}"
        )
    return arrays


def missing(source: Source) -> str:
    """Return the message for a missing file: folders searched, places of the originals, and the command to run."""
    looked = ", ".join(str(folder) for folder in folders())
    return (
        f"there is no {source.file} in {looked} (the environment variable COTERIE_DATA names another folder). "
        f"Get the original: {'; or '.join(source.originals)}. Then run: {source.command}. "
        f"The result must have the content digest {source.digest}"
    )
