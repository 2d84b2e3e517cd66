"""The pieces of a source in the order of rows, found before anything is read."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import Any

from ...errors import DataError
from ..frames import is_frame
from ..ids import Written
from . import Source, is_dataset
from .files import File, find_files, has_wildcard, is_url, open_file, plain_path, suffix_of

#: Value of a hive partition for rows whose value is missing.
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
#: File size, in bytes, above which a parquet file is read by row groups, and a csv file in chunks.
LARGE_FILE_BYTES = 64_000_000


@dataclass(frozen=True)
class Piece:
    """A part of a source that is read at once; small enough to be sent to a worker."""

    name: str  # in messages; "" for an entry of a mapping that is no file
    data: Any  # a path, a reference of Ray, a frame, arrays (X, y), or a function that returns a frame or arrays
    agent: Hashable = None  # of all rows; None if a column names the agents
    keys: tuple[tuple[str, str], ...] = ()  # hive partitions that are columns
    group: int | None = None  # row group of a parquet file
    size: int = 0  # in bytes; 0 if not known


@dataclass(frozen=True)
class Reading:
    """The columns that are read, and how."""

    target: str | None = None  # column of labels, for tables
    agents: str | None = None  # column of ids
    columns: tuple[str, ...] | None = None  # names of the features; None for all others
    text: frozenset[str] = frozenset()  # columns of csv files and of paths that are read as text, even if numbers

    @property
    def named(self) -> list[str] | None:
        """All columns that are read; None for all columns of the file."""
        if self.columns is None:
            return None
        return [*self.columns, *(name for name in (self.target, self.agents) if name is not None)]


def pieces_of(source: Source, agents: str | None) -> tuple[list[Piece], str | None]:
    """Return the pieces of a source in the order of rows, and the name of the column of agents, if there is one."""
    data = source.data
    if not (agents is None or isinstance(agents, str)):
        raise DataError(
            f"agents must be the name of a column where rows come from a source, not {type(agents).__name__}"
        )
    if isinstance(data, Mapping):
        if agents is not None:
            raise DataError(f"agents={agents!r}: the agents of a mapping are its keys; leave it out")
        if not data:
            raise DataError("data is an empty mapping: at least one agent is needed")
        if None in data:
            raise DataError("None is an agent of the mapping: give every agent an id")
        return [piece for agent, value in data.items() for piece in _entry(agent, value)], None
    if is_dataset(data) or is_frame(data):
        if agents is None:
            what = "table" if is_frame(data) else "Dataset"
            raise DataError(f"agents= is missing: name the column of the {what} that holds each row's agent")
        if is_frame(data):
            return [Piece("the table", data)], agents
        return [Piece(f"block {k}", ref) for k, ref in enumerate(data.to_arrow_refs())], agents
    files = find_files([fspath(path) for path in ([data] if isinstance(data, str | PathLike) else data)])
    partitions = {tuple(dict(file.keys)) for file in files}
    if agents is None and len(partitions) == 1:
        agents = next(iter(partitions))[0] if len(next(iter(partitions))) == 1 else None
    pieces = []
    for file in files:
        here = dict(file.keys)
        agent = here.pop(agents, None) if agents is not None else file.stem
        if agent == NULL_PARTITION:
            raise DataError(f"{file.path}: the agent is missing: the partition {agents!r} has no value")
        pieces += _parts(file, None if agent is None else Written(agent), here)
    return pieces, agents


def _parts(file: File, agent: Any, keys: Mapping[str, str]) -> list[Piece]:
    """Return the pieces of a file: a large parquet file has one piece for each row group."""
    piece = Piece(file.path, _full(file.path), agent, tuple(keys.items()), size=file.size)
    if suffix_of(file.path) != ".parquet" or file.size <= LARGE_FILE_BYTES:
        return [piece]
    try:
        from pyarrow import parquet

        with open_file(file.path) as stream, parquet.ParquetFile(stream) as opened:
            meta = opened.metadata
            sizes = [meta.row_group(g).total_byte_size for g in range(meta.num_row_groups)]
    except (ImportError, OSError, ValueError):
        return [piece]  # its reader reports why the file cannot be read
    return [replace(piece, name=f"{piece.name}, row group {g}", group=g, size=size) for g, size in enumerate(sizes)]


def _entry(agent: Hashable, value: Any) -> list[Piece]:
    """Return the pieces of one agent of a mapping."""
    if not isinstance(value, str | PathLike):
        return [Piece("", value, agent)]
    path = fspath(value)
    if has_wildcard(path) or suffix_of(path) is None:  # a glob or a directory
        try:
            return [part for file in find_files([path]) for part in _parts(file, agent, dict(file.keys))]
        except DataError:
            pass  # reported when the piece is read, so that all bad agents are listed together
    full = _full(path)
    return [Piece(path, full, agent, size=os.path.getsize(full) if os.path.isfile(full) else 0)]


def _full(path: str) -> str:
    """Return an absolute path or a URL, for workers in other folders."""
    path = plain_path(path)
    return path if is_url(path) else os.path.abspath(path)
