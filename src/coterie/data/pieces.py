"""Reading rows piece by piece: files, row groups, blocks of a Dataset, entries of a mapping.

Small pieces that look alike are put together before anything is done with them, since ten thousand files of ten rows
take the time of ten thousand calls otherwise; large ones are read in chunks. Memory grows with neither.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, MissingExtra
from .archives import read_arrays
from .files import SUFFIXES, has_wildcard, is_url, open_file, suffix_of
from .frames import hint, is_frame, is_polars, split_frame
from .ids import WRITTEN_NUMBER, Integers, Written, distinct
from .raw import as_array

#: A hive partition of rows that have no value there.
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
#: Bytes above which a parquet file is read row group by row group, and a csv file in chunks of so many rows.
LARGE = 64_000_000
CSV_ROWS = 100_000
#: Numbers and texts that are worked on at a time.
CELLS = 1_000_000


@dataclass(frozen=True)
class Piece:
    """A part of a source that is read at once: small, and fit to be sent to whoever reads it."""

    name: str  # in messages; "" for an entry of a mapping that is no file
    data: Any  # a path, a reference of Ray, a frame, arrays (X, y), or a function that returns such
    agent: Hashable = None  # of all its rows; None if a column says whose they are
    keys: tuple[tuple[str, str], ...] = ()  # hive partitions that are columns
    group: int | None = None  # row group of a parquet file
    size: int = 0  # in bytes, if it is known

    def groups(self, sizes: Sequence[int]) -> list[Piece]:
        """Its row groups as pieces of their own."""
        return [replace(self, name=f"{self.name}, row group {g}", group=g, size=size) for g, size in enumerate(sizes)]


@dataclass(frozen=True)
class Reading:
    """Which columns are read, and how."""

    target: str | None = None  # the column of labels, where rows are tables
    agents: str | None = None  # the column of ids
    columns: tuple[str, ...] | None = None  # names of the features; None for all others
    text: frozenset[str] = frozenset()  # columns of csv files and of paths that are text, whatever they look like

    @property
    def named(self) -> list[str] | None:
        """All columns that are read; None for all that there are."""
        if self.columns is None:
            return None
        return [*self.columns, *(name for name in (self.target, self.agents) if name is not None)]


@dataclass
class Rows:
    """Rows of one or several pieces that look alike."""

    X: Any  # features: a frame, an array or a sparse matrix
    y: Any  # labels, as they were found
    ids: list[Hashable]  # distinct ids, and which of them each row has
    codes: Integers
    parts: list[tuple[int, int]]  # number of the piece and how many rows of it there are, in this order
    places: Integers  # number of each row in its piece
    order: Integers  # of each row among all that were read
    written: frozenset[str] | None  # columns in which nothing but the text says what it is; None: all of a csv file
    orphans: list[tuple[int, int, int]]  # (piece, row, how many): rows without an id, which are left out

    def piece(self, row: int) -> int:
        """Number of the piece of a row."""
        ends = np.cumsum([rows for _, rows in self.parts])
        return self.parts[int(np.searchsorted(ends, row, side="right"))][0]

    def is_written(self, name: str) -> bool:
        """Whether nothing but the text of a column says what it holds."""
        return self.written is None or name in self.written

    def take(self, rows: NDArray[Any]) -> Rows:
        """Some of the rows, in the same order."""
        piece = np.repeat([number for number, _ in self.parts], [count for _, count in self.parts])[rows]
        edges = np.flatnonzero(np.diff(piece)) + 1
        parts = [(int(each[0]), len(each)) for each in np.split(piece, edges) if len(each)]
        used, codes = np.unique(self.codes[rows], return_inverse=True)
        return replace(
            self,
            X=_taken(self.X, rows),
            y=_taken(self.y, rows),
            ids=[self.ids[k] for k in used.tolist()],
            codes=codes.astype(np.int64),
            parts=parts,
            places=self.places[rows],
            order=self.order[rows],
            orphans=[],
        )


def for_rows(
    pieces: Iterable[tuple[int, Piece]],
    reading: Reading,
    use: Callable[[Rows], None],
    failed: Callable[[int, str], None],
) -> None:
    """Call `use` with the rows of numbered pieces, several at a time, and `failed` with why a piece is of no use.

    What `use` refuses with a DataError is given to it again piece by piece, so that only those at fault fail.
    """
    open_: dict[Any, _Batch] = {}
    order = 0

    def flush(batch: _Batch) -> None:
        try:
            use(batch.rows(reading))
        except DataError as error:
            if len(batch.parts) == 1:
                failed(batch.parts[0].number, str(error))
                return
            for part in batch.parts:
                flush(_Batch([part]))

    for number, piece in pieces:
        place, contents = 0, _contents(piece, reading)
        while True:
            try:
                content = next(contents, None)
            except DataError as error:
                failed(number, str(error))
                break
            if content is None:
                break
            if not content.rows:
                continue
            key = (content.signature, piece.agent is None, _names(piece.keys))
            batch = open_.setdefault(key, _Batch([]))
            batch.parts.append(_Part(number, piece, content, place, order))
            place, order = place + content.rows, order + content.rows
            batch.cells += content.rows * content.table.shape[1]
            if batch.cells >= CELLS:
                flush(open_.pop(key))
    for batch in open_.values():
        flush(batch)


@dataclass
class _Content:
    """Rows as they were read: of one kind, so that those of the same signature can be put together."""

    kind: str  # "csv", "pandas", "polars", "arrow", "array", "sparse"
    table: Any
    y: Any = None  # labels, if they are not a column

    @property
    def rows(self) -> int:
        return int(self.table.shape[0])

    @property
    def signature(self) -> Hashable:
        table = self.table
        if self.kind == "arrow":
            kinds: Any = tuple(map(str, table.schema.types))
            return self.kind, tuple(table.schema.names), kinds, self._labels
        if self.kind in ("csv", "pandas"):
            return self.kind, tuple(table.columns), tuple(map(str, table.dtypes)), self._labels
        if self.kind in ("array", "sparse"):
            return self.kind, table.shape[1], str(table.dtype), self._labels
        return self.kind, id(table)

    @property
    def _labels(self) -> Any:
        return None if self.y is None else str(getattr(self.y, "dtype", None))


@dataclass
class _Part:
    number: int
    piece: Piece
    content: _Content
    place: int
    order: int


@dataclass
class _Batch:
    parts: list[_Part]
    cells: int = 0

    def rows(self, reading: Reading) -> Rows:
        """The rows of all parts, with their labels and ids."""
        contents = [part.content for part in self.parts]
        kind = contents[0].kind
        X: Any = _joined(kind, [content.table for content in contents])
        y: Any = None
        if contents[0].y is not None:
            y = np.concatenate([np.asarray(content.y) for content in contents])
        sizes = [content.rows for content in contents]
        written = None if kind == "csv" else frozenset(_names(self.parts[0].piece.keys))
        if is_frame(X):
            X = _with_keys(X, [part.piece.keys for part in self.parts], sizes, reading)
        elif reading.columns is not None:
            raise DataError("columns= names the features, but the columns of an array have no names")
        keep = None
        orphans: list[tuple[int, int, int]] = []
        if self.parts[0].piece.agent is None:
            X, ids, codes = _split_off_ids(X, str(reading.agents), kind == "csv")
            keep = codes >= 0
        else:
            owners = [part.piece.agent for part in self.parts]
            number = {owner: k for k, owner in enumerate(dict.fromkeys(owners))}
            ids, codes = list(number), np.repeat([number[owner] for owner in owners], sizes)
            if is_frame(X) and reading.agents in X.columns:  # what the path says, again
                X, _ = split_frame(X, reading.agents)
        X, y = _split_off_labels(X, y, reading)
        places = np.concatenate(
            [np.arange(part.place, part.place + n) for part, n in zip(self.parts, sizes, strict=True)]
        )
        order = np.concatenate(
            [np.arange(part.order, part.order + n) for part, n in zip(self.parts, sizes, strict=True)]
        )
        parts = [(part.number, n) for part, n in zip(self.parts, sizes, strict=True)]
        rows = Rows(X, y, ids, codes, parts, places, order, written, orphans)
        if keep is None or keep.all():
            return rows
        lost = np.flatnonzero(~keep)
        pieces = np.array([rows.piece(int(row)) for row in lost])
        found = [(int(p), int(places[lost[pieces == p][0]]), int((pieces == p).sum())) for p in np.unique(pieces)]
        return replace(rows.take(np.flatnonzero(keep)), orphans=found)


def _names(keys: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(name for name, _ in keys)


def _taken(values: Any, rows: NDArray[Any]) -> Any:
    if is_polars(values):
        return values[rows.tolist()]
    return values.iloc[rows] if hasattr(values, "iloc") else values[rows]


def _joined(kind: str, tables: list[Any]) -> Any:
    if kind == "arrow":
        import pyarrow as pa

        return pa.concat_tables(tables).to_pandas()
    if len(tables) == 1:
        return tables[0]
    if kind in ("csv", "pandas"):
        import pandas as pd

        return pd.concat(tables, ignore_index=True)
    if kind == "sparse":
        from scipy import sparse

        return sparse.vstack(tables, format="csr")
    return np.concatenate(tables)


def _with_keys(frame: Any, keys: list[tuple[tuple[str, str], ...]], sizes: list[int], reading: Reading) -> Any:
    """A frame with a column for each hive partition that is one; a column of the same name in the file wins."""
    wanted = reading.named
    for k, name in enumerate(_names(keys[0])):
        if name in frame.columns or (wanted is not None and name not in wanted):
            continue
        texts = [each[k][1] for each in keys]
        values: Any = [None if text == NULL_PARTITION else text for text in texts]
        if name not in reading.text and all(t is None or WRITTEN_NUMBER.fullmatch(t) for t in values):
            values = [np.nan if text is None else float(text) for text in values]
        frame = frame.assign(**{name: [value for value, n in zip(values, sizes, strict=True) for _ in range(n)]})
    return frame


def _split_off_ids(frame: Any, name: str, written: bool) -> tuple[Any, list[Hashable], Integers]:
    """A table without the column of ids; these, and which of them each row has, -1 for none."""
    rest, [column] = split_frame(frame, name)
    if is_polars(column):
        codes, found = distinct(column)
        return rest, found, codes
    if written:
        codes, texts = column.factorize()  # "=" and then the id, see _csv
        ids: list[Hashable] = [Written(text[1:]) for text in texts.tolist()]
        gaps = [k for k, text in enumerate(ids) if not text]
        return rest, ids, np.where(np.isin(codes, gaps), -1, codes).astype(np.int64)
    there = np.flatnonzero(column.notna().to_numpy())
    codes = np.full(len(column), -1, np.int64)
    found = []
    if there.size:
        codes[there], found = distinct(column.iloc[there].to_numpy())
    return rest, found, codes


def _split_off_labels(X: Any, y: Any, reading: Reading) -> tuple[Any, Any]:
    """Features and labels."""
    if y is not None:
        if len(y) != X.shape[0]:
            raise DataError(f"y has {len(y)} labels for {X.shape[0]} rows; one each is needed")
    elif not is_frame(X):
        raise DataError("there are features and no labels; give both, as (X, y)")
    elif reading.target is None:
        raise DataError("which column holds the labels is not said: name it")
    else:
        X, [y] = split_frame(X, reading.target)
    if reading.columns is not None:
        known = list(X.columns)
        for name in reading.columns:
            if name not in known:
                raise DataError(f"no column {name!r}; {hint(name, known)}")
        X = X[list(reading.columns)]
    return X, y


def is_ref(value: Any) -> bool:
    """Whether it is a reference to something that Ray keeps."""
    return type(value).__name__ == "ObjectRef" and type(value).__module__.startswith("ray")


def _contents(piece: Piece, reading: Reading) -> Iterator[_Content]:
    """The rows of a piece, in one or several chunks."""
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
        except Exception as error:  # whatever it is, the agent that it comes from has to be named
            raise DataError(f"its function raised {type(error).__name__}: {error}") from error
    yield _in_memory(data, what)


def _in_memory(data: Any, what: str) -> _Content:
    """Rows that are here already."""
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is not None and isinstance(data, pyarrow.Table):
        return _Content("arrow", data)
    if is_frame(data):
        return _Content("polars" if is_polars(data) else "pandas", data)
    verb = "must be" if what == "it" else "must return"
    found = "found" if what == "it" else "returned"
    if not isinstance(data, tuple | list) or len(data) != 2:
        of = f"{len(data)} things" if isinstance(data, tuple | list) else type(data).__name__
        raise DataError(f"{what} {verb} a DataFrame or (X, y), and {found} {of}")
    X, y = data
    if y is None or isinstance(y, str | int | float):
        raise DataError(f"{what} {verb} (X, y) with one label for each row, and y is {y!r}")
    return _arrays(X, y)


def _arrays(X: Any, y: Any) -> _Content:
    from scipy import sparse

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
        labels = np.asarray(y, dtype=object)  # numbers in a mixed list would be text
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise DataError(f"y must be 1-D, one label for each row; got shape {labels.shape}")
    if len(labels) != X.shape[0]:
        raise DataError(f"y has {len(labels)} labels for {X.shape[0]} rows; one each is needed")
    return _Content(kind, X, labels)


def _file(path: str, piece: Piece, reading: Reading) -> Iterator[_Content]:
    """The rows of a file."""
    suffix = suffix_of(path)
    if suffix is None:
        if not is_url(path) and not os.path.exists(path):
            raise DataError("no file matches" if has_wildcard(path) else "no such file or directory")
        if os.path.isdir(path):
            raise DataError(f"no file there ends in {', '.join(SUFFIXES)}")
        raise DataError(f"unknown kind of file; known are {', '.join(SUFFIXES)}")
    readers = {".csv": _csv, ".csv.gz": _csv, ".parquet": _parquet, ".feather": _feather, ".npz": _npz}
    try:
        with open_file(path) as stream:
            yield from readers[suffix](stream, piece, reading)
    except (DataError, MissingExtra):
        raise
    except FileNotFoundError as error:
        raise DataError("no file matches" if has_wildcard(path) else "no such file") from error
    except ImportError as error:
        raise MissingExtra(f"reading {path} needs pyarrow: pip install 'coterie[pyarrow]'") from error
    except (ValueError, OSError, EOFError, RuntimeError, BadZipFile, zlib.error) as error:
        message = str(error).strip().split("\n")[0]
        raise DataError(f"cannot be read as {suffix}: {message}") from error
    except Exception as error:
        if type(error).__module__.startswith("pyarrow"):
            raise DataError(f"cannot be read as {suffix}: {error}") from error
        raise


def _csv(stream: Any, piece: Piece, reading: Reading) -> Iterator[_Content]:
    import pandas as pd

    wanted = reading.named
    ids = [] if reading.agents is None or piece.agent is not None else [reading.agents]
    whole = 0 < piece.size <= LARGE
    names: list[str] = []

    def use(name: str) -> bool:
        names.append(name)
        return wanted is None or name in wanted

    try:
        found = pd.read_csv(
            stream,
            compression="gzip" if piece.name.lower().endswith(".gz") else None,
            # pandas looks for gaps also in what a converter returns: the sign keeps it from finding "NA".
            converters=dict.fromkeys(ids, "={}".format),
            dtype=dict.fromkeys(reading.text - set(ids), str),
            usecols=None if wanted is None else use,
            low_memory=False,
            chunksize=None if whole else CSV_ROWS,
        )
    except pd.errors.EmptyDataError as error:
        raise DataError("the file is empty") from error
    if wanted is not None:
        _present(names, piece, reading)
    for frame in [found] if whole else found:
        yield _Content("csv", frame)


def _parquet(stream: Any, piece: Piece, reading: Reading) -> Iterator[_Content]:
    from pyarrow import parquet

    with parquet.ParquetFile(stream) as file:
        columns = None if reading.columns is None else _present(file.schema_arrow.names, piece, reading)
        if piece.group is not None:
            yield _Content("arrow", file.read_row_group(piece.group, columns=columns, use_threads=False))
        elif file.metadata.num_rows:
            yield _Content("arrow", file.read(columns=columns, use_threads=False))


def _feather(stream: Any, piece: Piece, reading: Reading) -> Iterator[_Content]:
    import pyarrow as pa
    from pyarrow import ipc

    with ipc.open_file(stream) as file:
        names = set(_present(file.schema.names, piece, reading))
        for number in range(file.num_record_batches):
            table = pa.Table.from_batches([file.get_batch(number)])
            yield _Content("arrow", table.select([name for name in table.schema.names if name in names]))


def _npz(stream: Any, piece: Piece, reading: Reading) -> Iterator[_Content]:
    yield _arrays(*read_arrays(stream))


def _present(names: Sequence[str], piece: Piece, reading: Reading) -> list[str]:
    """Of the columns that are read those that a file has: all but what its path says."""
    named = names if reading.named is None else reading.named
    told = {*_names(piece.keys), *([] if piece.agent is None else [reading.agents])}
    for name in named:
        if name not in names and name not in told:
            raise DataError(f"no column {name!r}; {hint(name, names)}")
    return [name for name in named if name in names]


def row_groups(path: str) -> list[int] | None:
    """Bytes of the row groups of a parquet file; None if it cannot be read, which its reader will say."""
    try:
        from pyarrow import parquet

        with open_file(path) as stream, parquet.ParquetFile(stream) as file:
            meta = file.metadata
            return [meta.row_group(g).total_byte_size for g in range(meta.num_row_groups)]
    except (ImportError, OSError, ValueError):
        return None
