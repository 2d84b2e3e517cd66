"""Tables in files: csv, parquet and feather, as pandas frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import DataError, MissingExtra
from .files import find_files, has_wildcard
from .ids import WRITTEN_NUMBER


def read_table(path: str | PathLike[str], ids: Sequence[str] = ()) -> pd.DataFrame:
    """Read a data frame from a .csv, .csv.gz, .parquet or .feather file.

    In a csv file nothing says what is a number and what is missing. Columns named in `ids` stay as they are written,
    so that agents "007" and "NA" keep their names; they are numbers if all of them are written as numbers.
    """
    path = Path(path)
    readers: dict[str, Callable[[Path], pd.DataFrame]] = {
        ".csv": lambda file: _read_csv(file, ids),
        ".csv.gz": lambda file: _read_csv(file, ids),
        ".parquet": pd.read_parquet,
        ".feather": pd.read_feather,
    }
    suffix = next((suffix for suffix in readers if path.name.lower().endswith(suffix)), None)
    if suffix is None:
        raise DataError(f"{path}: unknown kind of file; known are {', '.join(readers)}")
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty")
    try:
        frame = readers[suffix](path)
    except ImportError as error:
        raise MissingExtra(f"reading {path} needs pyarrow: pip install 'coterie[pyarrow]'") from error
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read as {suffix}: {error}") from error
    if frame.empty:
        raise DataError(f"{path}: the table is empty (shape {frame.shape})")
    return frame


def read_tables(path: str | PathLike[str], ids: Sequence[str] = ()) -> pd.DataFrame:
    """Read one file, or all files of a directory or a glob, with the keys of hive partitions as columns of text."""
    path = Path(path)
    if path.is_file() or not (path.is_dir() or has_wildcard(str(path))):
        return read_table(path, ids)
    files = find_files([str(path)])
    return pd.concat([read_table(file.path, ids).assign(**dict(file.keys)) for file in files], ignore_index=True)


def _read_csv(path: Path, ids: Sequence[str]) -> pd.DataFrame:
    # pandas looks for gaps also in what a converter returns: the sign keeps it from finding "NA".
    frame = pd.read_csv(path, converters=dict.fromkeys(ids, "={}".format))
    return frame.assign(**{name: _as_written(frame[name]) for name in ids if name in frame.columns})


def _as_written(column: pd.Series) -> pd.Series:
    """Ids from text: numbers if all are written as numbers, else text; nothing at all is a gap."""
    texts = [text[1:] for text in column.tolist()]
    if all(WRITTEN_NUMBER.fullmatch(text.strip()) for text in texts):
        return pd.to_numeric(pd.Series(texts, index=column.index))
    return pd.Series([text or None for text in texts], index=column.index, dtype=object)


def ids_like(ids: pd.Series, members: Sequence[Any]) -> pd.Series:
    """Ids of one file as those of another one: a single odd value makes a whole column text."""
    if all(isinstance(member, str) for member in members):
        return pd.Series([None if pd.isna(one) else str(one) for one in ids], index=ids.index, dtype=object)
    if pd.api.types.is_numeric_dtype(ids):
        return ids
    numbers = pd.to_numeric(ids, errors="coerce")
    return ids.astype(object).where(numbers.isna(), numbers.astype(object))
