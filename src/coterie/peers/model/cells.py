"""Tables as columns of cells, and cells as numbers, texts and labels, without pandas for CSV files.

Real tables are untidy: spaces around labels, numbers written as text, additional columns, gaps. All of these are read;
an unreadable cell is refused with its row and column.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..._files import Where
from ...errors import DataError

#: Columns of a table by name; a gap is None.
Cells = Mapping[str, Sequence[Any]]
#: Words for a gap: those of pandas, so that a table means the same to a peer and to ``coterie fit``.
GAPS = frozenset(
    "-1.#IND 1.#QNAN 1.#IND -1.#QNAN #N/A N/A n/a NA <NA> #NA NULL null NaN -NaN nan -nan None".split()  # noqa: SIM905
) | {"", "#N/A N/A"}
#: Numbers for the words in a column of true and false.
TRUTH = {"true": 1.0, "false": 0.0}


def read_cells(table: Where | Any) -> Cells:
    """Read the cells of a CSV file or of a pandas frame. Parquet and Feather files are read with pandas."""
    if hasattr(table, "columns"):
        return _of_frame(table)
    path = Path(table)
    name = path.name.lower()
    if not name.endswith((".csv", ".csv.gz")):
        from ...data.sources.readers import read_table

        return _of_frame(read_table(path))
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        opened = gzip.open if name.endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:  # type: ignore[operator]
            return _of_lines(csv.reader(file, strict=True), path)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as .csv: {error}") from error


def _of_lines(lines: Iterable[list[str]], path: Path) -> Cells:
    """Return the cells of the lines of a CSV file, whose first line has the names."""
    head: list[str] | None = None
    columns: list[list[str | None]] = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        if head is None:
            head = [name.strip() for name in line]
            columns = [[] for _ in head]
            continue
        if len(line) != len(head):
            raise DataError(
                f"{path}: line {number} has {len(line)} cells, and the first line names {len(head)} columns"
            )
        for column, cell in zip(columns, line, strict=True):
            column.append(None if cell.strip() in GAPS else cell)
    if head is None:
        raise DataError(f"{path}: the file is empty")
    twice = {name for name, count in Counter(head).items() if count > 1}
    return {name: column for name, column in zip(head, columns, strict=True) if name not in twice}


def _of_frame(frame: Any) -> Cells:
    gap = frame.isna()
    return {
        str(name): [None if missing else cell for cell, missing in zip(frame[name].tolist(), gap[name], strict=True)]
        for name in frame.columns
        if (frame.columns == name).sum() == 1
    }


def column_of(cells: Cells, name: str, where: str, what: str = "which the charter asks for") -> Sequence[Any]:
    """Return one column, or raise a DataError that names the existing columns."""
    if name not in cells:
        only = next(iter(cells), "")
        hint = ": are cells divided by commas?" if len(cells) == 1 and (";" in only or "\t" in only) else ""
        raise DataError(f"{where} has no column {name!r}, {what}; it has {list(cells)}{hint}")
    return cells[name]


def numbers(column: Sequence[Any], name: str, where: str) -> np.ndarray:
    """Return a column of numbers, with NaN for a gap."""
    out = np.full(len(column), np.nan)
    for row, cell in enumerate(column):
        if cell is None:
            continue
        value = _number(cell)
        if not math.isfinite(value):
            raise DataError(f"{where}: {str(cell)!r} in column {name!r}, row {row + 1}, is not a finite number")
        out[row] = value
    return out


def _number(cell: Any) -> float:
    """Return a cell as a number; infinity if it is none."""
    if isinstance(cell, str):
        text = cell.strip()
        if text.lower() in TRUTH:
            return TRUTH[text.lower()]
        if "_" in text:
            return math.inf
        cell = text
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return math.inf


def texts(column: Sequence[Any], known: Collection[str], any_case: bool = False) -> list[str | None]:
    """Return a column of text. Spaces around it are stripped unless a known level has them, and 1.0 becomes "1".

    With ``any_case``, case does not matter either, except between levels that differ only in case.
    """
    folded = Counter(level.casefold() for level in known) if any_case else {}
    loose = {level.casefold(): level for level in known if folded.get(level.casefold()) == 1}
    return [None if cell is None else _level(spelt(cell), known, loose) for cell in column]


def _level(text: str, known: Collection[str], loose: Mapping[str, str]) -> str:
    plain = text.strip()
    number = _number(plain)
    exact = next((form for form in (text, plain, spelt(number)) if form in known), None)
    return loose.get(plain.casefold(), plain) if exact is None else exact


def spelt(value: Any) -> str:
    """Return a label as text. A whole number as a float, such as 1.0, becomes "1"."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def label_of(cell: Any, labels: Sequence[str]) -> int | None:
    """Return the index of the label in a cell, or None. Spaces, case, and "1.0" for "1" do not matter."""
    text = spelt(cell)
    if text in labels:
        return list(labels).index(text)
    plain = text.strip().lower()
    value = _number(plain)
    for k, label in enumerate(labels):
        if plain == label.strip().lower() or (math.isfinite(value) and value == _number(label)):
            return k
    return None
