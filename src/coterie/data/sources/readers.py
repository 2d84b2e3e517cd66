"""Readers of tables (csv, parquet, feather), arrays (npz) and objects in memory. Nothing is unpickled."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd
from scipy import sparse

from ...errors import DataError, MissingExtra
from ..frames import hint, is_frame, is_polars
from ..ids import WRITTEN_NUMBER
from ..raw import as_array
from . import is_ref
from .files import NO_FILE, UNKNOWN_KIND, find_files, has_wildcard, is_url, open_file, suffix_of
from .pieces import LARGE_FILE_BYTES, Piece, Reading

#: Number of rows in a chunk of a csv file larger than ``LARGE_FILE_BYTES``.
CSV_CHUNK_ROWS = 100_000
CSR = ("X_data", "X_indices", "X_indptr", "X_shape")


def read_table(path: str | PathLike[str], ids: Sequence[str] = (), as_text: bool = False) -> pd.DataFrame:
    """Read a data frame from a .csv, .csv.gz, .parquet or .feather file.

    A csv file does not say which values are numbers and which are missing. Columns named in `ids` are read as text, so
    that agents "007" and "NA" keep their names; a column becomes numbers if all its ids are written as numbers, unless
    ``as_text`` is set (see :func:`ids_like`).
    """
    path = Path(path)
    readers: dict[str | None, Callable[[Path], pd.DataFrame]] = {
        ".csv": lambda file: _as_written(_read_csv(file, ids), ids, as_text),
        ".csv.gz": lambda file: _as_written(_read_csv(file, ids), ids, as_text),
        ".parquet": pd.read_parquet,
        ".feather": pd.read_feather,
    }
    suffix = suffix_of(str(path))
    if suffix not in readers:
        raise DataError(f"{path}: unknown kind of file; known are {', '.join(map(str, readers))}")
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty")
    with _telling(str(path), f"{path}: "):
        frame = readers[suffix](path)
    if frame.empty:
        raise DataError(f"{path}: the table is empty (shape {frame.shape})")
    return frame


def read_tables(path: str | PathLike[str], ids: Sequence[str] = (), as_text: bool = False) -> pd.DataFrame:
    """Read one file, or all files of a directory or a glob, with hive partitions as columns of text."""
    path = Path(path)
    if path.is_file() or not (path.is_dir() or has_wildcard(str(path))):
        return read_table(path, ids, as_text)
    files = find_files([str(path)])
    tables = [read_table(file.path, ids, as_text).assign(**dict(file.keys)) for file in files]
    return pd.concat(tables, ignore_index=True)


def ids_like(ids: pd.Series, members: Sequence[Any]) -> pd.Series:
    """Convert ids of one file to the types in another: if its members are not all text, numbers become numbers."""
    if all(isinstance(member, str) for member in members):
        return pd.Series([None if pd.isna(one) else str(one) for one in ids], index=ids.index, dtype=object)
    if pd.api.types.is_numeric_dtype(ids):
        return ids
    return pd.Series([_number(one) for one in ids], index=ids.index, dtype=object).infer_objects()


def _number(one: Any) -> Any:
    """Return an id as a number if it is written as one; "007" is not 7."""
    if not isinstance(one, str) or not WRITTEN_NUMBER.fullmatch(one.strip()):
        return one
    return float(one) if "." in one else int(one)


def _read_csv(source: Any, ids: Sequence[str], **options: Any) -> Any:
    """Read a csv file, or chunks of it; "=" is prepended to ids: pandas must not read them as missing."""
    return pd.read_csv(source, converters=dict.fromkeys(ids, "={}".format), **options)


def _as_written(frame: pd.DataFrame, ids: Sequence[str], as_text: bool) -> pd.DataFrame:
    """Convert ids read as text: to numbers if all are written as numbers and `as_text` is False; "" is missing."""
    for name in frame.columns.intersection(ids):
        texts = frame[name].str[1:]
        if not as_text and all(WRITTEN_NUMBER.fullmatch(text.strip()) for text in texts):
            frame[name] = pd.to_numeric(texts)
        else:
            frame[name] = pd.Series([text or None for text in texts], index=frame.index, dtype=object)
    return frame


@contextmanager
def _telling(path: str, where: str = "") -> Iterator[None]:
    """Convert the errors of file readers to a DataError or MissingExtra."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{where}{'no file matches' if has_wildcard(path) else 'no such file'}") from error
    except ImportError as error:
        if isinstance(error, MissingExtra):
            raise
        raise MissingExtra(f"reading {path} needs pyarrow: pip install 'coterie[pyarrow]'") from error
    except Exception as error:
        known = (ValueError, OSError, EOFError, RuntimeError, BadZipFile, zlib.error)
        ours = isinstance(error, DataError) or not isinstance(error, known)
        if ours and not type(error).__module__.startswith("pyarrow"):
            raise
        message = str(error).strip().split("\n")[0]
        raise DataError(f"{where}cannot be read as {suffix_of(path)}: {message}") from error


@dataclass
class Chunk:
    """Rows as read from one piece; chunks with equal signatures can be concatenated."""

    kind: str  # "csv", "pandas", "polars", "arrow", "array", "sparse"
    table: Any
    y: Any = None  # labels, if labels are not a column

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.table.shape[0])

    @property
    def signature(self) -> Hashable:
        """Key that is equal for chunks that can be concatenated."""
        table = self.table
        labels = None if self.y is None else str(self.y.dtype)
        if self.kind == "arrow":
            return self.kind, tuple(table.schema.names), tuple(map(str, table.schema.types)), labels
        if self.kind in ("csv", "pandas"):
            return self.kind, tuple(table.columns), tuple(map(str, table.dtypes)), labels
        if self.kind in ("array", "sparse"):
            return self.kind, table.shape[1], str(table.dtype), labels
        return self.kind, id(table)


def contents(piece: Piece, reading: Reading) -> Iterator[Chunk]:
    """Generate the rows of a piece, in one or several chunks."""
    data = piece.data
    if is_ref(data):
        import ray

        data = ray.get(data)
    if isinstance(data, str | PathLike):
        yield from _file(fspath(data), piece, reading)
        return
    what = "it"
    if callable(data) and not is_frame(data):
        try:
            data, what = data(), "its function"
        except Exception as error:  # a user's function may raise any error, which must name the agent
            raise DataError(f"its function raised {type(error).__name__}: {error}") from error
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is not None and isinstance(data, pyarrow.Table):
        yield Chunk("arrow", data)
        return
    if is_frame(data):
        yield Chunk("polars" if is_polars(data) else "pandas", data)
        return
    verb = "must be" if what == "it" else "must return"
    found = "found" if what == "it" else "returned"
    if not isinstance(data, tuple | list) or len(data) != 2:
        of = f"{len(data)} things" if isinstance(data, tuple | list) else type(data).__name__
        raise DataError(f"{what} {verb} a DataFrame or (X, y), and {found} {of}")
    X, y = data
    if y is None or isinstance(y, str | int | float):
        raise DataError(f"{what} {verb} (X, y) with one label for each row, and y is {y!r}")
    yield _arrays(X, y)


def _arrays(X: Any, y: Any) -> Chunk:
    if is_frame(X) and all(isinstance(name, str) for name in X.columns):
        kind = "polars" if is_polars(X) else "pandas"
    elif sparse.issparse(X):
        kind = "sparse"
    else:
        X, kind = X.to_numpy() if is_frame(X) else as_array(X), "array"
        if X.ndim != 2:
            raise DataError(f"X must be 2-D, (rows, features); got shape {X.shape}")
    labels = np.asarray(y)
    if labels.dtype.kind in "US" and not isinstance(y, np.ndarray):
        labels = np.asarray(y, dtype=object)  # NumPy has converted the numbers of a mixed list to text
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise DataError(f"y must be 1-D, one label for each row; got shape {labels.shape}")
    if len(labels) != X.shape[0]:
        raise DataError(f"y has {len(labels)} labels for {X.shape[0]} rows; one each is needed")
    return Chunk(kind, X, labels)


def _file(path: str, piece: Piece, reading: Reading) -> Iterator[Chunk]:
    """Generate the rows of a file."""
    suffix = suffix_of(path)
    if suffix is None:
        if not is_url(path) and not os.path.exists(path):
            raise DataError("no file matches" if has_wildcard(path) else "no such file or directory")
        if os.path.isdir(path):
            raise DataError(NO_FILE)
        raise DataError(UNKNOWN_KIND)
    readers = {".csv": _csv, ".csv.gz": _csv, ".parquet": _parquet, ".feather": _feather}
    with _telling(path), open_file(path) as stream:
        if suffix == ".npz":
            yield _arrays(*_read_arrays(stream))
        else:
            yield from readers[suffix](stream, piece, reading)


def _csv(stream: Any, piece: Piece, reading: Reading) -> Iterator[Chunk]:
    wanted = reading.named
    ids = [] if reading.agents is None or piece.agent is not None else [reading.agents]
    whole = 0 < piece.size <= LARGE_FILE_BYTES
    names: list[str] = []

    def use(name: str) -> bool:
        names.append(name)
        return wanted is None or name in wanted

    try:
        found = _read_csv(
            stream,
            ids,
            compression="gzip" if piece.name.lower().endswith(".gz") else None,
            dtype=dict.fromkeys(reading.text - set(ids), str),
            usecols=None if wanted is None else use,
            low_memory=False,
            chunksize=None if whole else CSV_CHUNK_ROWS,
        )
    except pd.errors.EmptyDataError as error:
        raise DataError("the file is empty") from error
    if wanted is not None:
        _present(names, piece, reading)
    for frame in [found] if whole else found:
        yield Chunk("csv", frame)


def _parquet(stream: Any, piece: Piece, reading: Reading) -> Iterator[Chunk]:
    from pyarrow import parquet

    with parquet.ParquetFile(stream) as file:
        columns = None if reading.columns is None else _present(file.schema_arrow.names, piece, reading)
        if piece.group is not None:
            yield Chunk("arrow", file.read_row_group(piece.group, columns=columns, use_threads=False))
        elif file.metadata.num_rows:
            yield Chunk("arrow", file.read(columns=columns, use_threads=False))


def _feather(stream: Any, piece: Piece, reading: Reading) -> Iterator[Chunk]:
    import pyarrow as pa
    from pyarrow import ipc

    with ipc.open_file(stream) as file:
        names = set(_present(file.schema.names, piece, reading))
        for number in range(file.num_record_batches):
            table = pa.Table.from_batches([file.get_batch(number)])
            yield Chunk("arrow", table.select([name for name in table.schema.names if name in names]))


def _present(names: Sequence[str], piece: Piece, reading: Reading) -> list[str]:
    """Return the names of the columns to read from a file, without those given by its path; refuse missing columns."""
    named = names if reading.named is None else reading.named
    told = {*dict(piece.keys), *([] if piece.agent is None else [reading.agents])}
    for name in named:
        if name not in names and name not in told:
            raise DataError(f"no column {name!r}; {hint(name, names)}")
    return [name for name in named if name in names]


def _read_arrays(stream: Any) -> tuple[Any, np.ndarray]:
    """Read features and labels of an open file: ``X`` and ``y``, or the arrays in ``CSR`` and ``y``."""
    arrays = _task_arrays(np.load(stream, allow_pickle=False))
    y = arrays.pop("y")
    return (arrays["X"] if "X" in arrays else _csr(**arrays)), y


def _task_arrays(file: Any) -> dict[str, np.ndarray]:
    """Return the arrays of a task from an npz file."""
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
    # Compiled code relies on this property, and SciPy does not check it if the last entry is 0.
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
