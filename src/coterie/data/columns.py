"""Encoding of the columns of a table as numbers: learned at fit, and applied at predict."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, ParameterError
from .gaps import refuse_gaps, statistics
from .levels import Levels, choose_levels, level_text, number_of
from .raw import FIRST_BLOCK, Names, RawTable, blocks, label_of, plain_name, read, sparse_means
from .summaries import EncodedPart, Numbers, Texts, summarise

__all__ = ["Columns"]

#: A function that names a row in an error.
Where = Callable[[int], str]


def row_only(row: int) -> str:
    """Name a row by its number."""
    return f"row {row}"


@dataclass(frozen=True, repr=False)
class Columns:
    """Encoding of the columns of a table: made by :meth:`learn`, and applied to new rows by :meth:`apply`.

    * Numbers and booleans become floats.
    * Text and categories become one column of 0 and 1 for each level except the most frequent one, which is the
      reference. A level that was not in the fit counts as the reference. With more than ``MAX_LEVELS`` levels, the
      most frequent ones get columns and all others are the reference.
    * A missing value (NaN, None, ``pd.NA``, ``NaT``, null) among numbers is replaced by the mean, and marked in a
    column
      "... missing". Among text, missing values are a level. Missing values in a column that had none at fit are
      replaced by the mean or the reference, without a warning.
    * Columns that are constant, all missing, or a copy of an earlier one are dropped, except in a sparse matrix.
    """

    names: tuple[str, ...]  # of the encoded columns: "age", "colour=red", "age missing"; "x0", "x1", ... for arrays
    source: tuple[int, ...]  # input column of each encoded column
    input_names: Names  # None for arrays, and for frames whose names are not strings
    n_features_in: int
    notes: list[str] = field(hash=False)  # how columns were encoded, in plain words
    missing: str  # handling of missing values: "fill", or "error"; "refuse" for estimators that cannot fill them
    kinds: tuple[str, ...]  # of each input column: "number", "text", "category"; "empty" if all values are missing
    means: tuple[float | None, ...]  # of each input column of numbers
    parts: tuple[EncodedPart, ...]

    @classmethod
    def learn(
        cls, X: Any, missing: str = "fill", owner: str = "Columns", drop: bool = True, where: Where = row_only
    ) -> tuple[Columns, Any]:
        """Learn how to encode a table, and encode it; `owner` is the estimator's name, for messages.

        If `drop` is False, columns of numbers that are constant or copies are kept. `where` names a row in errors.

        The matrix is C-contiguous float64, or float32 if all of `X` is; it is `X` itself if nothing has to be encoded.
        """
        if missing not in ("fill", "error", "refuse"):
            raise ParameterError(f'missing must be "fill" or "error", got {missing!r}')
        table = read(X, owner)
        if table.sparse is not None:
            return plain(sparse_means(table.sparse), missing), table.sparse
        found = summarise(table)
        if missing != "fill":
            with_gaps = (j for j, column in enumerate(found) if column.gaps)
            refuse_gaps(table, with_gaps, table.names, missing, where)
        columns = decide(table.names, found, missing, partial(_copies, table), drop)
        if table.matrix is not None and columns.is_identity and not any(column.gaps for column in found):
            return columns, table.matrix
        return columns, _encode(table, columns.source, columns.parts, columns.means)

    def apply(self, X: Any, owner: str = "Columns", where: Where = row_only) -> Any:
        """Encode new rows; the result is sparse if `X` is, and `X` itself if nothing has to be encoded.

        Warns like scikit-learn if only one of `X` and the table at fit has names of columns.
        """
        used = frozenset(self.source)
        table = read(X, owner, used, self._check_names)
        if table.width != self.n_features_in:
            raise DataError(
                f"X has {table.width} features, but {owner} is expecting {self.n_features_in} features as input"
            )
        if table.sparse is not None:
            return self._apply_sparse(table.sparse)
        names = self.input_names or table.names
        if table.matrix is not None and any(self.kinds[j] in ("text", "category") for j in used):
            table = RawTable(table.rows, table.width, names, columns=list(table.matrix.T))
        if table.columns is not None:
            for j in used:
                table.columns[j] = self._as_at_fit(j, table.columns[j], names)
        numbers = sorted(j for j in used if self.kinds[j] == "number")
        gaps = statistics(table, numbers, names, only_gaps=True).gaps
        if self.missing != "fill":
            whole = {j for j, count in zip(numbers, gaps.tolist(), strict=True) if not count}
            refuse_gaps(table, sorted(used - whole), names, self.missing, where)
        if gaps.any() or not self.is_identity or table.matrix is None:
            return _encode(table, self.source, self.parts, self.means)
        return table.matrix

    @property
    def is_identity(self) -> bool:
        """Whether features are not changed."""
        return self.source == tuple(range(self.n_features_in)) and all(what == "value" for what, _ in self.parts)

    def _check_names(self, names: Names, owner: str) -> None:
        """Refuse names that differ from those at fit, with scikit-learn's messages."""
        if names is None and self.input_names is None:
            return
        if self.input_names is None:
            warnings.warn(f"X has feature names, but {owner} was fitted without feature names", stacklevel=5)
        elif names is None:
            warnings.warn(
                f"X does not have valid feature names, but {owner} was fitted with feature names", stacklevel=5
            )
        elif names != self.input_names:
            message = "The feature names should match those that were passed during fit.\n"
            unseen = sorted(set(names) - set(self.input_names))
            absent = sorted(set(self.input_names) - set(names))
            for what, some in (("unseen at fit time", unseen), ("seen at fit time, yet now missing", absent)):
                if some:
                    lines = [f"- {name}\n" for name in some[:5]] + ["- ...\n"] * (len(some) > 5)
                    message += f"Feature names {what}:\n" + "".join(lines)
            if not unseen and not absent:
                message += "Feature names must be in the same order as they were in fit.\n"
            raise DataError(message)

    def _as_at_fit(self, j: int, column: Any, names: Names) -> Any:
        """Return a column of new rows as numbers or as levels, whichever the column held at fit."""
        label = label_of(j, names)
        if self.kinds[j] == "number":
            if not isinstance(column, Levels):
                return column
            # Numbers may be written as text, such as values of partitions, which pandas and Ray read as text.
            numbers = np.array([*map(number_of, column.texts), np.nan])[column.codes]  # a gap has the code -1
            odd = np.flatnonzero(np.isnan(numbers) & (column.codes >= 0))
            if not odd.size:
                return numbers
            value = column.texts[column.codes[odd[0]]]
            raise DataError(f"row {odd[0]}: column {label} is {value!r}, but held numbers at fit; make it a number")
        if isinstance(column, Levels):
            return column
        there = ~np.isnan(column)
        codes = np.full(column.size, -1, np.int64)
        if not there.any():
            return Levels(codes, [], declared=False)
        if self.kinds[j] == "text":
            row = int(np.argmax(there))
            raise DataError(f"row {row}: column {label} is {column[row]:g}, but held text at fit; make it text")
        values, codes[there] = np.unique(column[there], return_inverse=True)
        return Levels(codes, [level_text(value) for value in values.tolist()], declared=True)

    def _apply_sparse(self, matrix: Any) -> Any:
        for j, (what, _) in zip(self.source, self.parts, strict=True):
            if what == "level":
                raise DataError(
                    f"column {label_of(j, self.input_names)} held text at fit, and a sparse matrix holds numbers only;"
                    " give a table like the one at fit"
                )
        if self.is_identity:
            return matrix
        # Stored numbers are never missing: each "missing" column is zero.
        values = [k for k, (what, _) in enumerate(self.parts) if what == "value"]
        sources = [self.source[k] for k in values]
        chosen = type(matrix)(
            (np.ones(len(values), matrix.dtype), (sources, values)), shape=(self.n_features_in, len(self.parts))
        )
        found = matrix @ chosen
        found.sum_duplicates()
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes as plain types that JSON can write."""
        lists = {name: list(value) for name, value in vars(self).items() if isinstance(value, tuple | list)}
        return vars(self) | lists | {"parts": [list(part) for part in self.parts]}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Columns:
        """Return the columns that :meth:`to_dict` described."""
        try:
            columns = cls(
                names=tuple(map(str, d["names"])),
                source=tuple(map(int, d["source"])),
                input_names=None if d["input_names"] is None else tuple(map(str, d["input_names"])),
                n_features_in=int(d["n_features_in"]),
                notes=list(map(str, d["notes"])),
                missing=str(d["missing"]),
                kinds=tuple(map(str, d["kinds"])),
                means=tuple(None if mean is None else float(mean) for mean in d["means"]),
                parts=tuple((str(what), None if text is None else str(text)) for what, text in d["parts"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the saved description of columns is damaged: {error!r}") from error
        # Columns that were changed by hand are refused here, before they read out of bounds.
        width, kinds = columns.n_features_in, columns.kinds
        sound = (
            len(columns.names) == len(columns.source) == len(columns.parts)
            and len(kinds) == len(columns.means) == width
            and (columns.input_names is None or len(columns.input_names) == width)
            and columns.missing in ("fill", "error")
            and set(kinds) <= {"number", "text", "category", "empty"}
            and all((kind == "number") == (mean is not None) for kind, mean in zip(kinds, columns.means, strict=True))
            and all(mean is None or np.isfinite(mean) for mean in columns.means)
            and all(0 <= j < width for j in columns.source)
            and all(
                (what == "value" and kinds[j] == "number")
                or (what == "level" and kinds[j] in ("text", "category") and text is not None)
                or (what == "missing" and kinds[j] != "empty")
                for j, (what, text) in zip(columns.source, columns.parts, strict=True)
            )
        )
        if not sound:
            raise DataError("the saved description of columns is damaged: its parts are inconsistent")
        return columns

    def __repr__(self) -> str:
        return f"Columns({self.n_features_in} -> {len(self.names)}, missing={self.missing!r})"


def decide(
    names: Names,
    found: Sequence[Numbers | Texts],
    missing: str,
    copies_of: Callable[[Sequence[int], Sequence[EncodedPart], Sequence[float | None]], dict[int, int]],
    drop: bool = True,
) -> Columns:
    """Decide how to encode the columns of a table, from a summary of each.

    `copies_of` returns the encoded columns that equal an earlier one. If `drop` is False, columns of numbers that are
    constant or copies are kept.
    """
    kinds: list[str] = []
    means: list[float | None] = []
    notes: list[tuple[int, str]] = []
    encoded: list[tuple[int, EncodedPart]] = []
    for j, column in enumerate(found):
        rows, gaps = column.rows, column.gaps
        if isinstance(column, Numbers):
            mean = None if gaps == rows else column.mean
            constant = column.constant and drop
            kinds.append("empty" if mean is None else "number")
            means.append(mean)
            if mean is not None and not constant:
                encoded.append((j, ("value", None)))
            note = number_note(gaps, rows, constant, mean)
        else:
            kept, reference = choose_levels(column.counts, label_of(j, names))
            kinds.append("empty" if gaps == rows else "category" if column.declared else "text")
            means.append(None)
            encoded.extend((j, ("level", text)) for text in kept)
            note = level_note(kinds[-1], gaps, rows, len(column.counts), kept, reference)
        if 0 < gaps < rows:
            encoded.append((j, ("missing", None)))
        if note:
            notes.append((j, f"{plain_name(j, names)}: {note}"))

    source = [j for j, _ in encoded]
    parts = [part for _, part in encoded]
    titles = titles_of(source, parts, names)
    copies = copies_of(source, parts, means) if drop else {}
    notes = copy_notes(notes, copies, source, parts, titles, names)
    keep = [k for k in range(len(source)) if k not in copies]
    return Columns(
        names=tuple(titles[k] for k in keep),
        source=tuple(source[k] for k in keep),
        input_names=names,
        n_features_in=len(found),
        notes=[text for _, text in sorted(notes, key=lambda note: note[0])],
        missing=missing,
        kinds=tuple(kinds),
        means=tuple(means),
        parts=tuple(parts[k] for k in keep),
    )


def titles_of(source: Sequence[int], parts: Sequence[EncodedPart], names: Names) -> list[str]:
    """Return the names of encoded columns, all of them distinct."""
    # An input column may itself be called "age missing": names of the input have priority.
    taken = set(names or ())
    titles = []
    for j, (what, text) in zip(source, parts, strict=True):
        title = plain_name(j, names)
        if what != "value":
            title += " missing" if what == "missing" else f"={text}"
            while title in taken:
                title += "'"
            taken.add(title)
        titles.append(title)
    return titles


def number_note(gaps: int, rows: int, constant: bool, mean: float | None) -> str:
    """Describe how a column of numbers was encoded; empty if the column is unchanged."""
    if mean is None:
        return "all values missing, left out"
    if not gaps:
        return "constant, left out" if constant else ""
    if constant:
        return f"{gaps} of {rows} values missing, the others constant: only an indicator"
    return f"{gaps} of {rows} values missing, filled with the mean {mean:.6g}, and an indicator"


def level_note(kind: str, gaps: int, rows: int, levels: int, kept: Sequence[str], reference: str | None) -> str:
    """Describe how a column of text or categories was encoded."""
    if kind == "empty":
        return "all values missing, left out"
    if not kept:
        return number_note(gaps, rows, constant=True, mean=0.0)
    if reference is None:
        note = f"{kind}, {levels} levels, the {len(kept)} most frequent kept, reference: the others"
    else:
        note = f"{kind}, {levels} levels, reference {reference!r}"
    return f"{note}; {gaps} of {rows} values missing, a level of their own" if gaps else note


def copy_notes(
    notes: list[tuple[int, str]],
    copies: Mapping[int, int],
    source: Sequence[int],
    parts: Sequence[EncodedPart],
    titles: Sequence[str],
    names: Names,
) -> list[tuple[int, str]]:
    """Return the notes by input column, with notes on copies; a column of copies only has just one note."""
    size = Counter(source)
    by_column: dict[int, list[int]] = {}
    for k in copies:
        by_column.setdefault(source[k], []).append(k)
    for j, copied in by_column.items():
        name = plain_name(j, names)
        originals = {source[copies[k]] for k in copied}
        gaps = [k for k in copied if parts[k][0] == parts[copies[k]][0] == "missing"]
        if len(copied) == size[j] and len(originals) == 1 and len(gaps) < size[j]:
            # Earlier notes on a dropped column are removed.
            other = titles[copies[copied[0]]] if size[j] == 1 else plain_name(originals.pop(), names)
            notes = [note for note in notes if note[0] != j]
            notes.append((j, f"{name}: a copy of column {other}, left out"))
            continue
        for k in copied:
            if k in gaps:
                other = plain_name(source[copies[k]], names)
                notes.append((j, f"{name}: missing in the same rows as {other}, one indicator for both"))
            else:
                notes.append((j, f"{titles[k]}: a copy of column {titles[copies[k]]}, left out"))
    return notes


def plain(means: Sequence[float], missing: str, names: Names = None) -> Columns:
    """Return an encoding that keeps all columns unchanged: numbers without gaps, such as those of a sparse matrix."""
    return decide(names, [Numbers(1, 0, mean, False) for mean in means], missing, lambda *_: {}, drop=False)


def _copies(
    table: RawTable, source: Sequence[int], parts: Sequence[EncodedPart], means: Sequence[float | None]
) -> dict[int, int]:
    """Return, for each encoded column that equals an earlier one, this earlier column."""
    # Columns are grouped by the bytes of one block of rows after the other; columns that differ from all others are
    # finished, so that in most tables a few rows suffice. The result is exact.
    group = [0] * len(source)
    for rows in blocks(table.rows, len(source), FIRST_BLOCK):
        size = Counter(group)
        together = [k for k, g in enumerate(group) if size[g] > 1]
        if not together:
            break
        block = _encode(table, [source[k] for k in together], [parts[k] for k in together], means, rows)
        block += 0.0  # -0.0 equals 0.0, but not in its bytes
        number: dict[tuple[int, bytes], int] = {}
        fresh = max(group) + 1
        for k, content in zip(together, np.ascontiguousarray(block.T), strict=True):
            group[k] = number.setdefault((group[k], content.tobytes()), fresh + len(number))
    first: dict[int, int] = {}
    copies = {}
    for k, g in enumerate(group):
        if first.setdefault(g, k) != k:
            copies[k] = first[g]
    return copies


def _encode(
    table: RawTable,
    source: Sequence[int],
    parts: Sequence[EncodedPart],
    means: Sequence[float | None],
    only: slice | None = None,
) -> NDArray[Any]:
    """Return the encoded columns of a table, or of the rows `only`."""
    dtype = table.dtype
    values = [k for k, (what, _) in enumerate(parts) if what == "value"]
    value_source = [source[k] for k in values]
    fill = np.array([means[j] for j in value_source], dtype)
    flags = []  # gaps among numbers
    lookups: dict[int, NDArray[np.int64]] = {}  # code -> encoded column, -1 for none; the last is for gaps
    position: dict[int, dict[str, int]] = {}
    for k, (j, (what, text)) in enumerate(zip(source, parts, strict=True)):
        if what == "value":
            continue
        column = table.column(j)
        if not isinstance(column, Levels):
            flags.append(k)
            continue
        if j not in lookups:
            lookups[j] = np.full(len(column.texts) + 1, -1, np.int64)
            position[j] = {value: code for code, value in enumerate(column.texts)}
        code = -1 if what == "missing" else position[j].get(str(text))
        if code is not None:
            lookups[j][code] = k
    flag_source = [source[k] for k in flags]

    start, stop = (0, table.rows) if only is None else (only.start, only.stop)
    out = np.zeros((stop - start, len(parts)), dtype)
    for rows in blocks(stop - start, max(len(parts), 1)):
        taken, target = slice(start + rows.start, start + rows.stop), out[rows]
        if values:
            block = table.numbers(value_source, taken)
            target[:, values] = np.where(np.isnan(block), fill, block)
        if flags:
            target[:, flags] = np.isnan(table.numbers(flag_source, taken))
        for j, lookup in lookups.items():
            column = lookup[table.column(j).codes[taken]]
            hit = np.flatnonzero(column >= 0)
            target[hit, column[hit]] = 1.0
    return out
