"""Readers of sets of federated benchmarks, LEAF and PFLlib, from local files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, MissingDataError
from .leaf import leaf
from .originals import Originals
from .pfllib import pfllib
from .real import RealTask, task_of
from .sources import Arrays, features, folders, read_arrays

__all__ = ["read_converted", "read_leaf", "read_pfllib"]

#: Arrays that a converted file must have in addition to its features.
NEEDED = ("y", "agent", "split", "agent_names")


def read_leaf(*paths: str | os.PathLike[str]) -> RealTask:
    """Read a set in the format of LEAF (Caldas et al. 2018): FEMNIST, synthetic, Shakespeare, Sentiment140 etc.

    Parameters
    ----------
    *paths : path
        The folder that contains ``train`` and ``test`` with json files, such as ``leaf/data/femnist/data``; or a zip
        or tar archive of this folder.

    Returns
    -------
    RealTask
        The agents are the users, sorted; a user who is in only one of the two folders has no rows in the other. Numbers
        are features, in single precision, and nested lists are flattened to rows: ``auxiliary["row_shape"]`` is their
        shape. Shakespeare's 80 characters become indices in ``auxiliary["alphabet"]``, one column each, and the label
        is the next character; a character that is in no training row has the index after the last. Texts of
        Sentiment140 become sparse counts of the words that occur in at least ten texts.

    Raises
    ------
    DataError
        If a file has another format, or holds data that must be loaded and encoded first: CelebA, whose rows are names
        of image files, and Reddit.

    References
    ----------
    S. Caldas et al. (2018), LEAF: a benchmark for federated settings.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for part, rows in (("train", [[0.5, 1.0], [0.25, 2.0]]), ("test", [[0.75, 3.0]])):
    ...     (folder / part).mkdir()
    ...     users = {"anna": {"x": rows, "y": [1] * len(rows)}}
    ...     content = {"users": ["anna"], "num_samples": [len(rows)], "user_data": users}
    ...     _ = (folder / part / "all_data.json").write_text(json.dumps(content))
    >>> task = read_leaf(folder)
    >>> task.train.members, task.train.X.tolist(), task.test.X.tolist()
    (('anna',), [[0.5, 1.0], [0.25, 2.0]], [[0.75, 3.0]])
    """
    return _task("leaf", leaf(Originals(paths)))


def read_pfllib(*paths: str | os.PathLike[str]) -> RealTask:
    """Read a set in the format of PFLlib (Zhang et al. 2023), as written by its ``generate_*.py``: images and series.

    Parameters
    ----------
    *paths : path
        The folder that contains ``train`` and ``test`` with ``0.npz``, ``1.npz``, ..., such as
        ``PFLlib/dataset/MNIST``; or a zip or tar archive of this folder.

    Returns
    -------
    RealTask
        The agents are the numbers of the clients. Images and series become rows of numbers in single precision:
        ``auxiliary["row_shape"]`` is their original shape.

    Raises
    ------
    DataError
        If a file has another format, or holds other objects than arrays: nothing in the file is executed. The message
        says how to write plain arrays.

    References
    ----------
    J. Zhang et al. (2023), PFLlib: personalized federated learning algorithm library.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for part in ("train", "test"):
    ...     (folder / part).mkdir()
    ...     for client in range(3):
    ...         np.savez(folder / part / f"{client}.npz", data={"x": np.ones((5, 1, 2, 2)), "y": np.arange(5)})
    >>> read_pfllib(folder)
    RealTask(pfllib: classification, 3 agents, 4 features, 15 + 15 rows)
    """
    return _task("pfllib", pfllib(Originals(paths)))


def read_converted(name: str | os.PathLike[str]) -> RealTask:
    """Read a set that ``coterie data convert leaf`` or ``pfllib`` has written, faster than from its originals.

    Parameters
    ----------
    name : str or path
        Its name, or its file.

    Returns
    -------
    RealTask

    Examples
    --------
    >>> read_converted("my-femnist")
    Traceback (most recent call last):
    coterie.errors.MissingDataError: there is no my-femnist.npz in ...; coterie data convert leaf FOLDER ...
    """
    path = Path(name)
    if path.suffix != ".npz":
        looked = [folder / f"{name}.npz" for folder in folders()]
        path = next((file for file in looked if file.is_file()), path)
        if path.suffix != ".npz":
            raise MissingDataError(
                f"there is no {name}.npz in {', '.join(str(file.parent) for file in looked)}; "
                f"coterie data convert leaf FOLDER --name {name} makes one (or pfllib in place of leaf)"
            )
    arrays = read_arrays(path)
    missing = [key for key in NEEDED if key not in arrays]
    if missing or not ("X" in arrays or "X_data" in arrays):
        raise DataError(f"{path} has no array {(missing or ['X'])[0]!r}: it is not a set converted from LEAF or PFLlib")
    return _task(path.stem, arrays)


def _task(name: str, arrays: Arrays) -> RealTask:
    y = arrays["y"]
    names: Any = arrays.get("feature_names")
    return task_of(
        name,
        features(arrays),
        y,
        arrays["agent"],
        arrays["split"] == 0,
        kind="classification" if (y == np.rint(y)).all() else "regression",
        names=names,
        members=arrays["agent_names"].tolist(),
        auxiliary={key: arrays[key] for key in ("row_shape", "alphabet") if key in arrays},
    )
