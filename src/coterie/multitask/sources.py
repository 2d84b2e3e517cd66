"""Where the rows of a task come from, when its own worker loads them.

A source is a callable without arguments, or a path. It is small and can be sent to a worker; the rows that it stands
for need not leave the machine on which they are.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Hashable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd
from scipy import sparse

from ..data import AgentData
from ..data.frames import split_frame
from ..data.readers import read_table
from ..errors import DataError

__all__ = ["Source", "gather", "load_task"]

Source = Callable[[], tuple[Any, Any]] | str | PathLike[str]

TABLES = (".csv", ".csv.gz", ".parquet", ".feather")
CSR = ("X_data", "X_indices", "X_indptr", "X_shape")


def load_task(source: Source, target: str = "y", name: Hashable = None) -> tuple[Any, np.ndarray]:
    r"""Features and labels of one task, checked as :class:`coterie.AgentData` does.

    Parameters
    ----------
    source : callable or path
        One of

        * a callable without arguments that returns ``(X, y)``, all that AgentData takes;
        * a path to a ``.csv``, ``.csv.gz``, ``.parquet`` or ``.feather`` table, of which one column is the label;
        * a path to an ``.npz`` file with the arrays ``X`` and ``y``, or, if X is sparse, ``X_data``, ``X_indices``,
          ``X_indptr``, ``X_shape`` (CSR) and ``y``. Pickled objects are never loaded.
    target : str
        The column of a table that is the label.
    name : hashable, optional
        What to call the task in an error. Default: the name of the file, without its ending, or of the callable.

    Returns
    -------
    X : ndarray of shape (rows, p) or csr_array
    y : ndarray of shape (rows,)

    Raises
    ------
    DataError
        If the source cannot be loaded, or its rows are not what they must be. The message starts with the task.
    MissingExtra
        If reading the file needs pyarrow, which is not installed.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "north.csv")
    ...     _ = path.write_text("age,ill\n31,1\n27,-1\n")
    ...     load_task(path, target="ill")
    (array([[31.],
           [27.]]), array([ 1., -1.]))
    >>> load_task(lambda: ([[1.0], [np.nan]], [1, -1]), name="south")
    Traceback (most recent call last):
        ...
    coterie.errors.DataError: task 'south': row 1: column 0 of X is nan; features must be finite, ...
    """
    data = _load(source, target, name)
    return data.X, np.asarray(data.y)


def gather(sources: Mapping[Hashable, Source], target: str = "y") -> AgentData:
    """Load the tasks of a mapping into one place.

    Parameters
    ----------
    sources : mapping
        The source of each task, as in :func:`load_task`, by the id of the task.
    target : str
        The column of a table that is the label.

    Returns
    -------
    AgentData
        Its members are the tasks, in the order of the mapping. Features are dense if those of all tasks are, else
        sparse; they have names if those of all tasks do.

    Raises
    ------
    DataError
        As :func:`load_task` does; and if the features of two tasks differ in number, in name or in order.

    Examples
    --------
    >>> data = gather({"north": lambda: ([[1.0], [2.0]], [1, -1]), "east": lambda: ([[3.0]], [1])})
    >>> data.members, data.sizes, data.y
    (('north', 'east'), array([2, 1]), array([ 1., -1.,  1.]))
    """
    if not isinstance(sources, Mapping):
        raise DataError(f"sources must be a mapping {{task: source}}, got {type(sources).__name__}")
    if not sources:
        raise DataError("sources is empty: at least one task is needed")
    loaded: list[AgentData] = []
    titles = [_title(task, source) for task, source in sources.items()]
    names: tuple[str, ...] | None = None  # of the features, and the first task that has any
    named = ""
    for title, (task, source) in zip(titles, sources.items(), strict=True):
        data = _load(source, target, task)
        loaded.append(data)
        if data.p != loaded[0].p:
            raise DataError(f"{title} has {data.p} features, but {titles[0]} has {loaded[0].p}; all need the same")
        if names is None:
            names, named = data.feature_names, title
        for j, (one, other) in enumerate(zip(data.feature_names or (), names or (), strict=False)):
            if one != other:
                raise DataError(
                    f"column {j} of the features is {one!r} in {title}, but {other!r} in {named};"
                    " all tasks need the same columns, in the same order"
                )
    if any(data.is_sparse for data in loaded):
        X: Any = sparse.vstack([sparse.csr_array(data.X) for data in loaded], format="csr")
    else:
        X = np.vstack([data.X for data in loaded])
        if all(data.feature_names is not None for data in loaded):
            X = pd.DataFrame(X, columns=names, copy=False)
    y = np.concatenate([np.asarray(data.y) for data in loaded])
    tasks = list(sources)
    owners = [task for task, data in zip(tasks, loaded, strict=True) for _ in range(data.n_rows)]
    return AgentData(X, y, agents=owners, members=tasks)


def _is_path(source: Any) -> bool:
    return isinstance(source, str | PathLike)


def _title(name: Hashable, source: Any) -> str:
    """A task in an error."""
    return f"task {name!r} ({fspath(source)})" if _is_path(source) else f"task {name!r}"


def _load(source: Any, target: str, name: Hashable) -> AgentData:
    """The rows of one task, as those of a single agent."""
    if name is None:
        # Without all of its endings: north for north.csv.gz.
        name = Path(source).name.split(".")[0] if _is_path(source) else getattr(source, "__name__", "task")
    try:
        X, y = _read(Path(source), target) if _is_path(source) else _call(source)
        data = AgentData(X, y, members=[0])
    except DataError as error:
        raise DataError(f"{_title(name, source)}: {_within(str(error), source)}") from (error.__cause__ or error)
    if data.n_rows == 0:
        raise DataError(f"task {name!r} has no rows" + (f" ({fspath(source)})" if _is_path(source) else ""))
    return data


def _within(message: str, source: Any) -> str:
    """What an error says, without what its title says already: the file, and that all rows are of one agent."""
    if _is_path(source):
        message = message.removeprefix(f"{Path(source)}: ")
    return re.sub(r"^(row \d+) \(agent 0\)", r"\1", message)


def _call(source: Any) -> tuple[Any, Any]:
    if not callable(source):
        raise DataError(f"a source is a path or a callable that returns (X, y), not {type(source).__name__}")
    try:
        found = source()
    except Exception as error:  # whatever it is, the task that it comes from has to be named
        raise DataError(f"its callable raised {type(error).__name__}: {error}") from error
    if not isinstance(found, tuple | list) or len(found) != 2:
        what = f"{len(found)} things" if isinstance(found, tuple | list) else type(found).__name__
        raise DataError(f"its callable must return (X, y), and returned {what}")
    X, y = found
    if y is None or isinstance(y, str | int):  # an AgentData takes None, and names of columns
        raise DataError(f"its callable must return (X, y) with one label per row, and y is {y!r}")
    return X, y


def _read(path: Path, target: str) -> tuple[Any, Any]:
    if path.name.lower().endswith(".npz"):
        return _read_arrays(path)
    if not path.name.lower().endswith(TABLES):
        raise DataError(f"unknown kind of file; known are {', '.join(TABLES)}, .npz")
    try:
        frame = read_table(path)
    except DataError as error:
        if "the table is empty (shape (0, " in str(error):
            return np.empty((0, 1)), []  # whatever its columns are: that there are no rows is said in one place
        raise
    X, [y] = split_frame(frame, target)
    return X, y


def _read_arrays(path: Path) -> tuple[Any, Any]:
    if not path.is_file():
        raise DataError("no such file")
    try:
        # Opened here, because NumPy leaves a damaged file open.
        with path.open("rb") as stream:
            arrays = _arrays(np.load(stream, allow_pickle=False))
    except DataError:
        raise
    except (ValueError, OSError, EOFError, RuntimeError, BadZipFile, zlib.error) as error:
        raise DataError(f"cannot be read as .npz: {error}") from error
    y = arrays.pop("y")
    return (arrays["X"] if "X" in arrays else _csr(**arrays)), y


def _arrays(file: Any) -> dict[str, np.ndarray]:
    """Those that make up a task."""
    if isinstance(file, np.ndarray):
        raise DataError("a single array, and no npz file; write it with np.savez(path, X=X, y=y)")
    names = set(file.files)
    parts = names & set(CSR)
    if parts and "X" in names:
        raise DataError(f"holds both X and {min(parts)}; keep either X or its CSR arrays")
    wanted = (*CSR, "y") if parts else ("X", "y")
    if missing := [name for name in wanted if name not in names]:
        there = ", ".join(map(repr, file.files)) or "none"
        raise DataError(f"no array {missing[0]!r}; there are {there}")
    return {name: _array(file, name) for name in wanted}


def _array(file: Any, name: str) -> np.ndarray:
    try:
        return file[name]
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise DataError(f"array {name!r} holds pickled objects, which are never loaded; save numbers") from error
        raise


def _csr(X_data: np.ndarray, X_indices: np.ndarray, X_indptr: np.ndarray, X_shape: np.ndarray) -> Any:
    for name, array in (("X_indices", X_indices), ("X_indptr", X_indptr), ("X_shape", X_shape)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(f"{name} must be 1-D and of integers, got {array.dtype} of shape {array.shape}")
    if X_shape.size != 2:
        raise DataError(f"X_shape must be two numbers, (rows, features), got {X_shape.tolist()}")
    # Compiled code trusts these arrays, and SciPy leaves this one out if the last entry is 0.
    if (np.diff(X_indptr.astype(np.int64)) < 0).any():
        raise DataError("X_indptr must not decrease")
    try:
        X = sparse.csr_array(
            (X_data, X_indices.astype(np.int64), X_indptr.astype(np.int64)), shape=tuple(X_shape.tolist())
        )
        X.check_format(full_check=True)
    except ValueError as error:
        raise DataError(f"the arrays of X are not CSR: {error}") from error
    return X
