"""Rows of pieces (files, row groups, blocks of a Dataset, entries of a mapping), several pieces at a time.

Small pieces with equal signatures are concatenated before processing, since ten thousand files of ten rows would
otherwise need ten thousand calls; large ones are read in chunks. Memory does not grow with the number or size of
pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from ...errors import DataError
from ..agent_data import spans
from ..frames import hint, is_frame, is_polars, split_frame
from ..ids import WRITTEN_NUMBER, Integers, Written, distinct
from .pieces import NULL_PARTITION, Piece, Reading
from .readers import Chunk, contents

#: Number of values (numbers and texts) that are processed at a time.
MAX_BATCH_CELLS = 1_000_000


@dataclass
class PieceRows:
    """Rows of one or several pieces with equal signatures."""

    X: Any  # features: a frame, an array or a sparse matrix
    y: Any  # labels as read
    ids: list[Hashable]  # distinct ids
    codes: Integers  # index in `ids` of each row
    pieces: Integers  # number of the piece of each row
    places: Integers  # number of each row in its piece
    order: Integers  # of each row among all rows read
    written: frozenset[str] | None  # columns read as text, whose type is only known by their text; None: all (csv)
    orphans: list[tuple[int, int, int]]  # (piece, row, count) of rows without an id, which are left out

    def take(self, rows: NDArray[Any]) -> PieceRows:
        """Return some of the rows, in the same order."""
        used, codes = np.unique(self.codes[rows], return_inverse=True)
        return replace(
            self,
            X=_taken(self.X, rows),
            y=_taken(self.y, rows),
            ids=[self.ids[k] for k in used.tolist()],
            codes=codes.astype(np.int64),
            pieces=self.pieces[rows],
            places=self.places[rows],
            order=self.order[rows],
            orphans=[],
        )


class _PlacedChunk(NamedTuple):
    """A chunk of a numbered piece, with the first row's number in the piece and among all rows read."""

    number: int
    piece: Piece
    chunk: Chunk
    place: int
    order: int


def for_rows(
    pieces: Iterable[tuple[int, Piece]],
    reading: Reading,
    use: Callable[[PieceRows], None],
    failed: Callable[[int, str], None],
) -> None:
    """Call `use` with the rows of numbered pieces, several pieces at a time, and `failed` with pieces that cannot be
    used.

    If `use` raises a DataError for several pieces, it is called again for each of them, so that only faulty pieces
    fail.
    """
    batches: dict[Hashable, list[_PlacedChunk]] = {}
    cells: Counter[Hashable] = Counter()
    order = 0

    def flush(parts: list[_PlacedChunk]) -> None:
        try:
            use(_rows(parts, reading))
        except DataError as error:
            if len(parts) == 1:
                failed(parts[0].number, str(error))
                return
            for part in parts:
                flush([part])

    def chunks(number: int, piece: Piece) -> Iterator[Chunk]:
        try:
            yield from contents(piece, reading)
        except DataError as error:
            failed(number, str(error))

    for number, piece in pieces:
        place = 0
        for chunk in chunks(number, piece):
            if not chunk.rows:
                continue
            key = (chunk.signature, piece.agent is None, tuple(dict(piece.keys)))
            batches.setdefault(key, []).append(_PlacedChunk(number, piece, chunk, place, order))
            place, order = place + chunk.rows, order + chunk.rows
            cells[key] += chunk.rows * chunk.table.shape[1]
            if cells[key] >= MAX_BATCH_CELLS:
                del cells[key]
                flush(batches.pop(key))
    for parts in batches.values():
        flush(parts)


def _rows(parts: list[_PlacedChunk], reading: Reading) -> PieceRows:
    """Return the rows of all chunks, with their labels and ids."""
    numbers, owned, read, place, order = (list(each) for each in zip(*parts, strict=True))
    kind, keys = read[0].kind, tuple(dict(owned[0].keys))
    sizes = np.array([chunk.rows for chunk in read])
    X: Any = _joined(kind, [chunk.table for chunk in read])
    y: Any = None if read[0].y is None else np.concatenate([chunk.y for chunk in read])
    if is_frame(X):
        X = _with_keys(X, [piece.keys for piece in owned], sizes, reading)
    elif reading.columns is not None:
        raise DataError("columns= names the features, but the columns of an array have no names")
    if owned[0].agent is None:
        X, ids, codes = _split_off_ids(X, str(reading.agents), kind == "csv")
    else:
        number = {owner: k for k, owner in enumerate(dict.fromkeys(piece.agent for piece in owned))}
        ids, codes = list(number), np.repeat([number[piece.agent] for piece in owned], sizes)
        if is_frame(X) and reading.agents in X.columns:  # repeats the agent in the path
            X, _ = split_frame(X, reading.agents)
    if y is None:
        if reading.target is None:
            raise DataError("the column of the labels is missing: name it, as y= or target=")
        X, [y] = split_frame(X, reading.target)
    if reading.columns is not None:
        known = list(X.columns)
        for name in reading.columns:
            if name not in known:
                raise DataError(f"no column {name!r}; {hint(name, known)}")
        X = X[list(reading.columns)]
    pieces, places = np.repeat(numbers, sizes), spans(np.array(place), sizes)
    written = None if kind == "csv" else frozenset(keys)
    rows = PieceRows(X, y, ids, codes, pieces, places, spans(np.array(order), sizes), written, [])
    lost = np.flatnonzero(codes < 0)
    if not lost.size:
        return rows
    without, first, count = np.unique(pieces[lost], return_index=True, return_counts=True)
    orphans = list(zip(without.tolist(), places[lost[first]].tolist(), count.tolist(), strict=True))
    return replace(rows.take(np.flatnonzero(codes >= 0)), orphans=orphans)


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
        return pd.concat(tables, ignore_index=True)
    return sparse.vstack(tables, format="csr") if kind == "sparse" else np.concatenate(tables)


def _with_keys(frame: Any, keys: list[tuple[tuple[str, str], ...]], sizes: Integers, reading: Reading) -> Any:
    """Return a frame with a column for each hive partition; a column of the same name in the file has priority."""
    wanted = reading.named
    for k, name in enumerate(dict(keys[0])):
        if name in frame.columns or (wanted is not None and name not in wanted):
            continue
        values: list[Any] = [None if each[k][1] == NULL_PARTITION else each[k][1] for each in keys]
        if name not in reading.text and all(t is None or WRITTEN_NUMBER.fullmatch(t) for t in values):
            values = [np.nan if text is None else float(text) for text in values]
        frame = frame.assign(**{name: [value for value, n in zip(values, sizes, strict=True) for _ in range(n)]})
    return frame


def _split_off_ids(frame: Any, name: str, written: bool) -> tuple[Any, list[Hashable], Integers]:
    """Return a table without the column of ids, the distinct ids, and the index of each row's id, -1 for none."""
    rest, [column] = split_frame(frame, name)
    if is_polars(column):
        codes, found = distinct(column)
        return rest, found, codes
    if written:
        codes, texts = column.factorize()  # "=" followed by the id, see _read_csv
        ids: list[Hashable] = [Written(text[1:]) for text in texts.tolist()]
        gaps = [k for k, text in enumerate(ids) if not text]
        return rest, ids, np.where(np.isin(codes, gaps), -1, codes).astype(np.int64)
    there = np.flatnonzero(column.notna().to_numpy())
    codes = np.full(len(column), -1, np.int64)
    found = []
    if there.size:
        codes[there], found = distinct(column.iloc[there].to_numpy())
    return rest, found, codes
