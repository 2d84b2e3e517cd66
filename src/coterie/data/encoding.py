"""Tables as people have them, as a matrix of numbers: learned once at fit, applied again at predict.

A table may be an array, a SciPy sparse matrix, or a pandas or polars frame with text, categories, booleans and gaps.
What cannot become a number in one obvious way (dates, free text, infinities) is refused by its row and column.

========================  ===================================================================
:class:`Columns`          how the columns of a table become numbers
:func:`agent_codes`       agent ids -> numbers 0..n-1, and the agents
:func:`agent_numbers`     agent ids -> numbers of agents that are known, -1 for others
========================  ===================================================================

Nothing but NumPy is imported for arrays: the first fit of a process should not wait for pandas or SciPy.
"""

from __future__ import annotations

import datetime as dt
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Complex, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, ParameterError

__all__ = ["MAX_LEVELS", "Columns", "agent_codes", "agent_numbers"]

#: The most levels of one text column that get a column of their own.
MAX_LEVELS = 50

Names = tuple[str, ...] | None
#: What an encoded column holds: ("value", None), ("level", its text) or ("missing", None).
Part = tuple[str, str | None]

_FIRST_BLOCK = 1024
_BLOCK = 1 << 18  # numbers in one block of rows: two megabytes, which a cache holds
_DATES = "take the days since a start, or the month or the weekday, as a number"
_DATE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}(?:[T ]|$)")
_RESHAPE = (
    "Reshape your data either using array.reshape(-1, 1) if your data has a single feature"
    " or array.reshape(1, -1) if it contains a single sample."
)


class _ValueKindError(DataError, TypeError):
    """A value that is neither a number nor text: scikit-learn's conventions ask for a TypeError."""


@dataclass(frozen=True, repr=False)
class Columns:
    """How the columns of a table become numbers: learned at fit, applied again at predict.

    Made by :meth:`learn`, not by hand.

    * Numbers and booleans stay as they are, as floats.
    * Text and categories become one column of 0 and 1 for each level but the most frequent one, which is the
      reference. A level that was not there at fit counts as the reference. Of more than ``MAX_LEVELS`` levels, the
      most frequent ones are kept and all others are the reference.
    * A gap (NaN, None, ``pd.NA``, ``NaT``, null) among numbers is filled with the mean, and a column "... missing" says
      where. Among text it is a level of its own. A gap in a column that had none at fit is filled with the mean, or is
      the reference, without a word.
    * Columns that are constant, all missing, or a copy of an earlier one are left out; those of a sparse matrix stay.

    Attributes
    ----------
    names : tuple of str
        Of the encoded columns: ``"age"``, ``"colour=red"``, ``"age missing"``; ``"x0"``, ``"x1"``, ... for arrays.
    source : tuple of int
        Input column of each encoded one.
    input_names : tuple of str or None
        Of the input; None for arrays and for frames whose names are not strings.
    n_features_in : int
        How many columns the input has.
    notes : list of str
        What was done, in plain words.
    missing : {"fill", "error"}
        What happens to gaps.
    kinds : tuple of str
        Of each input column: ``"number"``, ``"text"``, ``"category"``, or ``"empty"`` if all of it is missing.
    means : tuple of (float or None)
        Of each input column of numbers.
    parts : tuple of (str, str or None)
        What each encoded column holds: ``("value", None)``, ``("level", "red")`` or ``("missing", None)``.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"age": [31, None, 27], "colour": ["red", "blue", "blue"]})
    >>> columns, matrix = Columns.learn(frame)
    >>> columns.names
    ('age', 'age missing', 'colour=red')
    >>> matrix
    array([[31.,  0.,  1.],
           [29.,  1.,  0.],
           [27.,  0.,  0.]])
    >>> for note in columns.notes:
    ...     print(note)
    age: 1 of 3 values missing, filled with the mean 29, and an indicator
    colour: text, 2 levels, reference 'blue'
    >>> columns.apply(pd.DataFrame({"age": [40], "colour": ["green"]}))
    array([[40.,  0.,  0.]])
    """

    names: tuple[str, ...]
    source: tuple[int, ...]
    input_names: Names
    n_features_in: int
    notes: list[str] = field(hash=False)
    missing: str
    kinds: tuple[str, ...]
    means: tuple[float | None, ...]
    parts: tuple[Part, ...]

    @classmethod
    def learn(cls, X: Any, missing: str = "fill", owner: str = "Columns") -> tuple[Columns, Any]:
        """Learn how to encode a table, and encode it.

        Parameters
        ----------
        X : array-like, sparse matrix or DataFrame of shape (rows, features)
            The table.
        missing : {"fill", "error"}
            Whether gaps are filled, or refused by their row and column.
        owner : str
            Name of the estimator, for messages.

        Returns
        -------
        columns : Columns
        matrix : ndarray of shape (rows, p) or csr_array
            C-contiguous, float64, or float32 if all of `X` is. `X` itself if it is such an array already and no column
            of it is left out or has gaps.

        Raises
        ------
        DataError
            If something in the table cannot become a number; it says where.

        Examples
        --------
        >>> columns, matrix = Columns.learn([[1.0, 5.0], [2.0, 5.0]])
        >>> matrix, columns.names, columns.notes
        (array([[1.],
               [2.]]), ('x0',), ['x1: constant, left out'])
        """
        if missing not in ("fill", "error"):
            raise ParameterError(f'missing must be "fill" or "error", got {missing!r}')
        table = _read(X, owner)
        if table.sparse is not None:
            everything = range(table.width)
            plain = cls(
                names=tuple(f"x{j}" for j in everything),
                source=tuple(everything),
                input_names=None,
                n_features_in=table.width,
                notes=[],
                missing=missing,
                kinds=("number",) * table.width,
                means=tuple(_sparse_means(table.sparse)),
                parts=(("value", None),) * table.width,
            )
            return plain, table.sparse
        return _learn(cls, table, missing)

    def apply(self, X: Any, owner: str = "Columns") -> Any:
        """Encode new rows in the same way.

        Parameters
        ----------
        X : array-like, sparse matrix or DataFrame of shape (rows, features)
            A table with the columns that were there at fit, in the same order.
        owner : str
            Name of the estimator, for messages.

        Returns
        -------
        ndarray of shape (rows, p) or csr_array
            Sparse if `X` is; `X` itself if nothing is to be done.

        Raises
        ------
        DataError
            If the columns differ from those at fit, or something cannot become a number.

        Warns
        -----
        UserWarning
            If only one of `X` and the table at fit has names of columns, as scikit-learn does.

        Examples
        --------
        >>> columns, _ = Columns.learn([["red", 1.0], ["blue", 2.0], ["blue", 4.0]])
        >>> columns.names
        ('x0=red', 'x1')
        >>> columns.apply([["red", None], ["unseen", 7.0]])
        array([[1.        , 2.33333333],
               [0.        , 7.        ]])
        """
        used = frozenset(self.source)
        table = _read(X, owner, used, self._check_names)
        if table.width != self.n_features_in:
            raise DataError(
                f"X has {table.width} features, but {owner} is expecting {self.n_features_in} features as input"
            )
        if table.sparse is not None:
            return self._apply_sparse(table.sparse)
        names = self.input_names or table.names
        if table.matrix is not None and any(self.kinds[j] in ("text", "category") for j in used):
            table = _Table(table.rows, table.width, names, columns=list(table.matrix.T))
        if table.columns is not None:
            for j in used:
                table.columns[j] = self._as_at_fit(j, table.columns[j], names)
        numbers = sorted(j for j in used if self.kinds[j] == "number")
        gaps = _statistics(table, numbers, names, only_gaps=True).gaps
        if self.missing == "error":
            whole = {j for j, count in zip(numbers, gaps.tolist(), strict=True) if not count}
            _refuse_gaps(table, sorted(used - whole), names)
        if gaps.any() or not self._is_identity or table.matrix is None:
            return _encode(table, self.source, self.parts, self.means)
        return table.matrix

    @property
    def _is_identity(self) -> bool:
        return self.source == tuple(range(self.n_features_in)) and all(what == "value" for what, _ in self.parts)

    def _check_names(self, names: Names, owner: str) -> None:
        """Refuse other names than at fit, in scikit-learn's own words."""
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
            if unseen:
                message += "Feature names unseen at fit time:\n" + _bullets(unseen)
            if absent:
                message += "Feature names seen at fit time, yet now missing:\n" + _bullets(absent)
            if not unseen and not absent:
                message += "Feature names must be in the same order as they were in fit.\n"
            raise DataError(message)

    def _as_at_fit(self, j: int, column: Any, names: Names) -> Any:
        """One column of new rows, as numbers if it held numbers at fit and as levels if it held levels."""
        label = _label(j, names)
        if self.kinds[j] == "number":
            if not isinstance(column, _Levels):
                return column
            row = int(np.argmax(column.codes >= 0))
            if column.codes[row] < 0:
                return np.full(column.codes.size, np.nan)
            value = column.texts[column.codes[row]]
            raise DataError(f"row {row}: column {label} is {value!r}, but held numbers at fit; make it a number")
        if isinstance(column, _Levels):
            return column
        there = ~np.isnan(column)
        codes = np.full(column.size, -1, np.int64)
        if not there.any():
            return _Levels(codes, [], declared=False)
        if self.kinds[j] == "text":
            row = int(np.argmax(there))
            raise DataError(f"row {row}: column {label} is {column[row]:g}, but held text at fit; make it text")
        values, codes[there] = np.unique(column[there], return_inverse=True)
        return _Levels(codes, [_text(value) for value in values.tolist()], declared=True)

    def _apply_sparse(self, matrix: Any) -> Any:
        for j, (what, _) in zip(self.source, self.parts, strict=True):
            if what == "level":
                raise DataError(
                    f"column {_label(j, self.input_names)} held text at fit, and a sparse matrix holds numbers only;"
                    " give a table like the one at fit"
                )
        if self._is_identity:
            return matrix
        # Stored numbers are never missing: each "missing" column is zero.
        values = [k for k, (what, _) in enumerate(self.parts) if what == "value"]
        sources = [self.source[k] for k in values]
        chosen = type(matrix)(
            (np.ones(len(values), matrix.dtype), (sources, values)), shape=(self.n_features_in, len(self.parts))
        )
        return _canonical(matrix @ chosen)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain types that JSON can write.

        Examples
        --------
        >>> columns, _ = Columns.learn([["red"], ["blue"], ["blue"]])
        >>> columns.to_dict()["parts"]
        [['level', 'red']]
        """
        return {
            "names": list(self.names),
            "source": list(self.source),
            "input_names": None if self.input_names is None else list(self.input_names),
            "n_features_in": self.n_features_in,
            "notes": list(self.notes),
            "missing": self.missing,
            "kinds": list(self.kinds),
            "means": list(self.means),
            "parts": [list(part) for part in self.parts],
        }

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Columns:
        """The way back from :meth:`to_dict`.

        Examples
        --------
        >>> columns, _ = Columns.learn([["red"], ["blue"], ["blue"]])
        >>> Columns.from_dict(columns.to_dict()) == columns
        True
        """
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
            raise DataError(f"this does not describe the columns of a table: {error!r}") from error
        columns._check()
        return columns

    def _check(self) -> None:
        """Refuse a description that was changed by hand, before it reads out of bounds."""
        width = self.n_features_in
        sound = (
            len(self.names) == len(self.source) == len(self.parts)
            and len(self.kinds) == len(self.means) == width
            and (self.input_names is None or len(self.input_names) == width)
            and self.missing in ("fill", "error")
            and set(self.kinds) <= {"number", "text", "category", "empty"}
            and all((kind == "number") == (mean is not None) for kind, mean in zip(self.kinds, self.means, strict=True))
            and all(mean is None or np.isfinite(mean) for mean in self.means)
            and all(0 <= j < width for j in self.source)
            and all(
                (what == "value" and self.kinds[j] == "number")
                or (what == "level" and self.kinds[j] in ("text", "category") and text is not None)
                or (what == "missing" and self.kinds[j] != "empty")
                for j, (what, text) in zip(self.source, self.parts, strict=True)
            )
        )
        if not sound:
            raise DataError("this does not describe the columns of a table: its parts do not fit together")

    def __repr__(self) -> str:
        return f"Columns({self.n_features_in} -> {len(self.names)}, missing={self.missing!r})"


# ---------------------------------------------------------------------------------------------- what is learned


def _learn(cls: type[Columns], table: _Table, missing: str) -> tuple[Columns, Any]:
    names, rows = table.names, table.rows
    numbers = [j for j in range(table.width) if not isinstance(table.column(j), _Levels)]
    statistics = _statistics(table, numbers, names)
    position = {j: k for k, j in enumerate(numbers)}
    if missing == "error":
        _refuse_gaps(table, (j for j in range(table.width) if j not in position or statistics.gaps[position[j]]), names)
    kinds: list[str] = []
    means: list[float | None] = []
    notes: list[tuple[int, str]] = []
    encoded: list[tuple[int, Part]] = []
    for j in range(table.width):
        name = _plain_name(j, names)
        if j in position:
            k = position[j]
            gaps, constant = int(statistics.gaps[k]), bool(statistics.constant[k])
            mean = None if gaps == rows else float(statistics.mean[k])
            kinds.append("empty" if mean is None else "number")
            means.append(mean)
            if mean is not None and not constant:
                encoded.append((j, ("value", None)))
            note = _number_note(gaps, rows, constant, mean)
        else:
            column = table.column(j)
            kept, reference = _choose_levels(column, _label(j, names))
            gaps = int((column.codes < 0).sum())
            kinds.append("empty" if gaps == rows else "category" if column.declared else "text")
            means.append(None)
            encoded.extend((j, ("level", text)) for text in kept)
            note = _level_note(kinds[-1], gaps, rows, column, kept, reference)
        if 0 < gaps < rows:
            encoded.append((j, ("missing", None)))
        if note:
            notes.append((j, f"{name}: {note}"))

    source = [j for j, _ in encoded]
    parts = [part for _, part in encoded]
    titles = _titles(source, parts, names)
    copies = _copies(table, source, parts, means)
    notes = _copy_notes(notes, copies, source, parts, titles, names)
    keep = [k for k in range(len(source)) if k not in copies]
    columns = cls(
        names=tuple(titles[k] for k in keep),
        source=tuple(source[k] for k in keep),
        input_names=names,
        n_features_in=table.width,
        notes=[text for _, text in sorted(notes, key=lambda note: note[0])],
        missing=missing,
        kinds=tuple(kinds),
        means=tuple(means),
        parts=tuple(parts[k] for k in keep),
    )
    if table.matrix is not None and columns._is_identity and not statistics.gaps.any():
        return columns, table.matrix
    return columns, _encode(table, columns.source, columns.parts, columns.means)


def _number_note(gaps: int, rows: int, constant: bool, mean: float | None) -> str:
    if mean is None:
        return "all values missing, left out"
    if not gaps:
        return "constant, left out" if constant else ""
    if constant:
        return f"{gaps} of {rows} values missing, the others constant: only an indicator"
    return f"{gaps} of {rows} values missing, filled with the mean {mean:.6g}, and an indicator"


def _level_note(kind: str, gaps: int, rows: int, column: _Levels, kept: Sequence[str], reference: str | None) -> str:
    if kind == "empty":
        return "all values missing, left out"
    if not kept:
        return _number_note(gaps, rows, constant=True, mean=0.0)
    if reference is None:
        note = f"{kind}, {len(column.texts)} levels, the {len(kept)} most frequent kept, reference: the others"
    else:
        note = f"{kind}, {len(column.texts)} levels, reference {reference!r}"
    return f"{note}; {gaps} of {rows} values missing, a level of their own" if gaps else note


def _copy_notes(
    notes: list[tuple[int, str]],
    copies: Mapping[int, int],
    source: Sequence[int],
    parts: Sequence[Part],
    titles: Sequence[str],
    names: Names,
) -> list[tuple[int, str]]:
    """The notes, by input column, with those on copies: one for a column of which nothing is left."""
    size = Counter(source)
    by_column: dict[int, list[int]] = {}
    for k in copies:
        by_column.setdefault(source[k], []).append(k)
    for j, copied in by_column.items():
        name = _plain_name(j, names)
        originals = {source[copies[k]] for k in copied}
        gaps = [k for k in copied if parts[k][0] == parts[copies[k]][0] == "missing"]
        if len(copied) == size[j] and len(originals) == 1 and len(gaps) < size[j]:
            # What was done to it before plays no role any more.
            other = titles[copies[copied[0]]] if size[j] == 1 else _plain_name(originals.pop(), names)
            notes = [note for note in notes if note[0] != j]
            notes.append((j, f"{name}: a copy of column {other}, left out"))
            continue
        for k in copied:
            if k in gaps:
                other = _plain_name(source[copies[k]], names)
                notes.append((j, f"{name}: missing in the same rows as {other}, one indicator for both"))
            else:
                notes.append((j, f"{titles[k]}: a copy of column {titles[copies[k]]}, left out"))
    return notes


def _choose_levels(column: _Levels, label: str) -> tuple[list[str], str | None]:
    """Levels that get a column, sorted, and the reference; None if that is many levels."""
    counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.texts))
    there = int(counts.sum())
    # Most frequent first and ties by text, so that the order of the rows plays no role.
    order = sorted(range(len(column.texts)), key=lambda code: (-int(counts[code]), column.texts[code]))
    ranked = [column.texts[code] for code in order]
    if len(ranked) > 2 and all(_DATE.match(text) for text in ranked):
        raise _date_error(label, f"text such as {ranked[0]!r}")
    if len(ranked) <= MAX_LEVELS:
        return sorted(ranked[1:]), ranked[0] if ranked else None
    if 2 * len(ranked) > there:
        example = min(ranked)
        if _is_number_text(example):
            advice = "if these are numbers, convert them first (astype(float))"
        else:
            advice = "an id or free text says nothing about new rows: drop the column, or give it as agents="
        raise DataError(
            f"column {label}: {len(ranked)} different texts in {there} values, such as {example!r}; {advice}"
        )
    return sorted(ranked[:MAX_LEVELS]), None


def _is_number_text(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _titles(source: Sequence[int], parts: Sequence[Part], names: Names) -> list[str]:
    """Names of encoded columns, each once."""
    # A column of the input may be called "age missing" itself: its name goes first.
    taken = set(names or ())
    titles = []
    for j, (what, text) in zip(source, parts, strict=True):
        title = _plain_name(j, names)
        if what != "value":
            title += " missing" if what == "missing" else f"={text}"
            while title in taken:
                title += "'"
            taken.add(title)
        titles.append(title)
    return titles


# --------------------------------------------------------------------------------- columns, by blocks of rows


@dataclass
class _Levels:
    """Text of one column: which of `texts` each row holds, -1 for a gap. All texts occur."""

    codes: NDArray[Any]
    texts: list[str]
    declared: bool


@dataclass
class _Table:
    """A table that was read: a sparse matrix, a matrix of numbers, or columns of numbers and levels."""

    rows: int
    width: int
    names: Names
    matrix: Any = None
    sparse: Any = None
    columns: list[Any] | None = None

    def column(self, j: int) -> Any:
        return self.matrix[:, j] if self.columns is None else self.columns[j]

    def numbers(self, wanted: Sequence[int], rows: slice) -> NDArray[Any]:
        """Some columns of numbers, of some rows, with their gaps."""
        if self.columns is None:
            block = self.matrix[rows]
            everything = len(wanted) == self.width
            return block if everything and list(wanted) == list(range(self.width)) else block[:, wanted]
        if not wanted:
            return np.empty((rows.stop - rows.start, 0), self.dtype)
        return np.column_stack([self.columns[j][rows] for j in wanted])

    @property
    def dtype(self) -> Any:
        """That of the matrix; columns of several kinds become float64."""
        return np.dtype(np.float64) if self.matrix is None else self.matrix.dtype


def _blocks(rows: int, width: int, first: int | None = None) -> Iterator[slice]:
    """Slices of rows; with `first`, a small one and then larger ones, for those who expect to stop early."""
    most = max(_BLOCK // max(width, 1), 64)
    size = most if first is None else min(first, most)
    start = 0
    while start < rows:
        yield slice(start, min(start + size, rows))
        start += size
        size = min(4 * size, most)


@dataclass
class _Statistics:
    gaps: NDArray[np.int64]
    mean: NDArray[np.float64]
    constant: NDArray[np.bool_]


def _statistics(table: _Table, wanted: Sequence[int], names: Names, only_gaps: bool = False) -> _Statistics:
    """Gaps, means and constancy of columns of numbers; infinities are refused."""
    if table.columns is None or len(wanted) == 0:
        return _matrix_statistics(table, wanted, names, only_gaps)
    each = [_matrix_statistics(table, [j], names, only_gaps) for j in wanted]
    return _Statistics(
        np.concatenate([s.gaps for s in each]),
        np.concatenate([s.mean for s in each]),
        np.concatenate([s.constant for s in each]),
    )


def _matrix_statistics(table: _Table, wanted: Sequence[int], names: Names, only_gaps: bool) -> _Statistics:
    p, rows = len(wanted), table.rows
    total = np.zeros(p)
    # Large finite numbers may overflow here; their columns are looked at again below.
    with np.errstate(all="ignore"):
        for block in _blocks(rows, p):
            total += table.numbers(wanted, block).sum(axis=0, dtype=np.float64)
    gaps = np.zeros(p, np.int64)
    mean = total / rows
    constant = np.zeros(p, np.bool_)
    # The sum of a column tells whether all of it is finite: most tables need no second look.
    dirty = np.flatnonzero(~np.isfinite(total))
    if dirty.size:
        again = [wanted[k] for k in dirty.tolist()]
        gaps[dirty], mean[dirty], constant[dirty] = _with_gaps(table, again, names)
    if not only_gaps:
        clean = np.flatnonzero(np.isfinite(total))
        constant[clean] = _constant(table, [wanted[k] for k in clean.tolist()])
        # A mean is rounded, and that of equal numbers may differ from them.
        for k in clean[constant[clean]].tolist():
            mean[k] = table.column(wanted[k])[0]
    return _Statistics(gaps, mean, constant)


def _with_gaps(table: _Table, wanted: Sequence[int], names: Names) -> tuple[Any, Any, Any]:
    """Gaps, means and constancy of columns that may hold NaN."""
    p = len(wanted)
    gaps = np.zeros(p, np.int64)
    total, low, high = np.zeros(p), np.full(p, np.inf), np.full(p, -np.inf)
    for rows in _blocks(table.rows, p):
        block = table.numbers(wanted, rows)
        infinite = np.isinf(block)
        if infinite.any():
            row, k = np.argwhere(infinite)[0]
            raise DataError(
                f"row {rows.start + row}: column {_label(wanted[k], names)} is {block[row, k]};"
                " numbers must be finite: correct it, drop the row, or make it a gap (NaN)"
            )
        gap = np.isnan(block)
        gaps += gap.sum(axis=0)
        with np.errstate(over="ignore"):
            total += np.where(gap, 0.0, block).sum(axis=0, dtype=np.float64)
        low = np.minimum(low, np.where(gap, np.inf, block).min(axis=0))
        high = np.maximum(high, np.where(gap, -np.inf, block).max(axis=0))
    there = table.rows - gaps
    mean = total / np.maximum(there, 1)
    for k in np.flatnonzero(~np.isfinite(mean)).tolist():
        column = np.asarray(table.column(wanted[k]), np.float64)
        mean[k] = np.sum(column[~np.isnan(column)] / there[k])
    some = there > 0
    mean[some] = np.clip(mean[some], low[some], high[some])
    return gaps, mean, low == high


def _constant(table: _Table, wanted: Sequence[int]) -> NDArray[np.bool_]:
    """Which columns without gaps hold one number only: most are cleared by the first few rows."""
    result = np.ones(len(wanted), np.bool_)
    candidates = np.arange(len(wanted))
    if not candidates.size:
        return result
    head = table.numbers(wanted, slice(0, 1))[0]
    for rows in _blocks(table.rows, len(wanted), _FIRST_BLOCK):
        block = table.numbers([wanted[k] for k in candidates.tolist()], rows)
        varies = (block != head[candidates]).any(axis=0)
        result[candidates[varies]] = False
        candidates = candidates[~varies]
        if not candidates.size:
            break
    return result


def _copies(
    table: _Table, source: Sequence[int], parts: Sequence[Part], means: Sequence[float | None]
) -> dict[int, int]:
    """Encoded columns that equal an earlier one, and which."""
    # Columns are parted block by block, by their bytes; those that equal no other are done with, so that in most
    # tables a few rows are enough, and the answer is exact.
    group = [0] * len(source)
    for rows in _blocks(table.rows, len(source), _FIRST_BLOCK):
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
    table: _Table,
    source: Sequence[int],
    parts: Sequence[Part],
    means: Sequence[float | None],
    only: slice | None = None,
) -> NDArray[Any]:
    """The encoded columns of a table, or of some of its rows."""
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
        if not isinstance(column, _Levels):
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
    for rows in _blocks(stop - start, max(len(parts), 1)):
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


def _refuse_gaps(table: _Table, wanted: Iterable[int], names: Names) -> None:
    """Name the first gap of these columns."""
    first: tuple[int, int] | None = None
    for j in wanted:
        column = table.column(j)
        gap = column.codes < 0 if isinstance(column, _Levels) else np.isnan(column)
        row = int(np.argmax(gap))
        if gap[row] and (first is None or row < first[0]):
            first = (row, j)
    if first:
        row, j = first
        raise DataError(
            f"row {row}: column {_label(j, names)} is missing (NaN);"
            ' fill it in, drop the row, or let the mean stand in for it: missing="fill"'
        )


# -------------------------------------------------------------------------------------------------- reading


def _read(
    X: Any,
    owner: str,
    used: frozenset[int] | None = None,
    check_names: Callable[[Names, str], None] | None = None,
) -> _Table:
    """Any table; of its columns only those in `used`, after its names have passed."""
    names: Names = None
    if is_frame := _is_frame(X):
        names = _frame_names(X)
    if check_names is not None:
        check_names(names, owner)
    sparse = sys.modules.get("scipy.sparse")
    is_sparse = sparse is not None and sparse.issparse(X)
    if not is_frame and not is_sparse:
        X = _array(X)
    shape = tuple(X.shape)
    _check_shape(shape, owner)
    table = _Table(rows=shape[0], width=shape[1], names=names)
    if is_frame:
        _read_frame(X, table, used)
    elif is_sparse:
        table.sparse = _read_sparse(sparse, X)
    elif X.dtype.kind in "biuf":
        table.matrix = _floats(X)
    elif X.dtype.kind == "c":
        raise DataError("Complex data not supported: X holds complex numbers; give their parts as two columns")
    else:
        if X.dtype.kind in "Mm":
            raise DataError(f"X holds dates or times ({X.dtype}); {_DATES}")
        table.columns = [
            _array_column(X[:, j], _label(j, names)) if used is None or j in used else None for j in range(shape[1])
        ]
    return table


def _array(X: Any) -> NDArray[Any]:
    if np.ma.isMaskedArray(X):
        gap: Any = np.nan if X.dtype.kind in "biuf" else None
        X = np.where(np.ma.getmaskarray(X), gap, X.data)
    try:
        array = np.asarray(X)
    except ValueError as error:
        raise DataError(f"X is not a regular array: {error}") from error
    except (TypeError, OverflowError):  # kinds that have no type in common
        return np.asarray(X, dtype=object)
    if array.dtype.kind in "US" and not isinstance(X, np.ndarray):
        # NumPy has turned the numbers of a mixed list into text.
        return np.asarray(X, dtype=object)
    return array


def _floats(array: NDArray[Any]) -> NDArray[Any]:
    """float32 and float64 as they are, other numbers as float64; C-contiguous."""
    single = array.dtype.kind == "f" and array.dtype.itemsize == 4
    with np.errstate(over="ignore"):  # an infinity is refused later, by its place
        return np.ascontiguousarray(array, dtype=np.float32 if single else np.float64)


def _check_shape(shape: tuple[int, ...], owner: str) -> None:
    if len(shape) < 2:
        kind = "a scalar" if not shape else f"shape {shape}"
        raise DataError(f"Expected 2D array, (rows, features), got {kind} instead. {_RESHAPE}")
    if len(shape) > 2:
        raise DataError(f"X must be 2-D, (rows, features); got shape {shape}")
    for count, what in zip(shape, ("sample(s)", "feature(s)"), strict=True):
        if count == 0:
            raise DataError(f"Found array with 0 {what} (shape={shape}) while a minimum of 1 is required by {owner}.")


def _is_frame(X: Any) -> bool:
    """Whoever hands us a frame has loaded its library already."""
    kind = type(X)
    if kind.__module__.partition(".")[0] == "polars":
        if kind.__name__ == "LazyFrame":
            raise DataError("X is a polars LazyFrame; call .collect() first")
        return kind.__name__ == "DataFrame"
    frame = getattr(sys.modules.get("pandas"), "DataFrame", None)
    return frame is not None and isinstance(X, frame)


def _frame_names(X: Any) -> Names:
    columns = list(X.columns)
    strings = [isinstance(name, str) for name in columns]
    if not all(strings):
        if any(strings):
            kinds = sorted({type(name).__qualname__ for name in columns})
            raise _ValueKindError(
                "Feature names are only supported if all input features have string names, but your input has"
                f" {kinds} as feature name / column name types; use X.columns = X.columns.astype(str)"
            )
        return None
    seen: set[str] = set()
    for name in columns:
        if name in seen:
            raise DataError(f"column {name!r} occurs {columns.count(name)} times; give each column its own name")
        seen.add(name)
    return tuple(map(str, columns)) or None


def _read_frame(X: Any, table: _Table, used: frozenset[int] | None) -> None:
    names = table.names
    if type(X).__module__.partition(".")[0] == "polars":
        read: Callable[[Any, str], Any] = _polars_column
        series = X.get_columns()
        if all(str(column.dtype) == "Float32" for column in series):
            table.matrix = _floats(X.to_numpy())
            return
    else:
        dtypes = list(X.dtypes)
        if all(isinstance(dtype, np.dtype) and dtype.kind in "biuf" for dtype in dtypes):
            single = all(dtype == np.float32 for dtype in dtypes)
            table.matrix = _floats(X.to_numpy(dtype=np.float32 if single else np.float64))
            return
        read = _pandas_column
        series = [X.iloc[:, j] for j in range(table.width)]  # by position: names may repeat if they are not strings
    table.columns = [
        read(column, _label(j, names)) if used is None or j in used else None for j, column in enumerate(series)
    ]


def _read_sparse(sparse: Any, X: Any) -> Any:
    if X.dtype.kind == "c":
        raise DataError("Complex data not supported: X holds complex numbers; give their parts as two columns")
    if X.dtype.kind not in "biuf":
        raise DataError(f"a sparse X must hold numbers, got {X.dtype}")
    dtype = np.float32 if X.dtype == np.float32 else np.float64
    matrix = sparse.csr_array(X, dtype=dtype)
    if not matrix.has_canonical_format:
        # Sorting in place would change what the caller holds.
        matrix = matrix.copy()
    matrix = _canonical(matrix)
    bad = np.flatnonzero(~np.isfinite(matrix.data))
    if bad.size:
        at = int(bad[0])
        row = int(np.searchsorted(matrix.indptr, at, side="right")) - 1
        value = matrix.data[at]
        found = "missing (NaN); a sparse matrix can have no gaps" if np.isnan(value) else f"{value}"
        raise DataError(
            f"row {row}: column {int(matrix.indices[at])} is {found}; numbers must be finite: correct it,"
            " or drop the row"
        )
    return matrix


def _canonical(matrix: Any) -> Any:
    matrix.sum_duplicates()
    return matrix


def _sparse_means(matrix: Any) -> list[float]:
    # Divided first, so that the sum of large numbers stays finite.
    weights = matrix.data.astype(np.float64) / matrix.shape[0]
    return np.bincount(matrix.indices, weights=weights, minlength=matrix.shape[1]).tolist()


# ---------------------------------------------------------------------------------------------- one column


def _pandas_column(series: Any, label: str) -> Any:
    pd = sys.modules["pandas"]
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return _declared(np.asarray(series.cat.codes), series.cat.categories.tolist(), label)
    if isinstance(dtype, pd.SparseDtype):
        return _array_column(np.asarray(series), label)
    if isinstance(dtype, pd.PeriodDtype):
        raise _date_error(label, str(dtype))
    if isinstance(dtype, pd.StringDtype):
        codes, texts = series.factorize()
        return _Levels(codes, texts.tolist(), declared=False)
    if isinstance(dtype, np.dtype):
        return _array_column(series.to_numpy(), label)
    kind = getattr(dtype, "kind", "O")
    if kind in "Mm":
        raise _date_error(label, str(dtype))
    if kind in "biuf":
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    return _array_column(series.to_numpy(dtype=object), label)


def _polars_column(series: Any, label: str) -> Any:
    pl = sys.modules["polars"]
    dtype = series.dtype
    name = str(dtype).partition("(")[0]
    if dtype.is_temporal():
        raise _date_error(label, str(dtype))
    if dtype.is_numeric() or name in ("Boolean", "Null"):
        return series.cast(pl.Float64).to_numpy()
    if name in ("String", "Utf8", "Categorical", "Enum"):
        text = series.cast(pl.String)
        texts = text.drop_nulls().unique().to_list()
        if not texts:
            return np.full(len(series), np.nan)
        codes = text.replace_strict(texts, list(range(len(texts))), default=-1, return_dtype=pl.Int64)
        return _Levels(codes.fill_null(-1).to_numpy(), texts, declared=name in ("Categorical", "Enum"))
    return _array_column(np.fromiter(series.to_list(), dtype=object, count=len(series)), label)


def _declared(codes: NDArray[Any], categories: list[Any], label: str) -> _Levels:
    """Levels of a column that was declared to be a category: those that occur, whatever they are, as text."""
    counts = np.bincount(codes[codes >= 0], minlength=len(categories))
    occurring = np.flatnonzero(counts)
    texts: dict[str, Any] = {}
    for code in occurring:
        value = categories[code]
        text = _text(value)
        if text in texts:
            raise DataError(f"column {label}: the levels {texts[text]!r} and {value!r} read alike; rename one of them")
        texts[text] = value
    renumbered = np.full(len(categories) + 1, -1, np.int64)
    renumbered[occurring] = np.arange(occurring.size)
    return _Levels(renumbered[codes], list(texts), declared=True)


def _text(value: Any) -> str:
    """A level in words: 1 and 1.0 are one level, since a gap turns whole numbers into floats."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


_NUMBERS = (Real, Decimal, np.bool_)
_TIMES = (dt.date, dt.time, dt.timedelta, np.datetime64, np.timedelta64)


def _array_column(column: NDArray[Any], label: str) -> Any:
    """One column of an array of any kind."""
    kind = column.dtype.kind
    if kind in "biuf":
        return _floats(column)
    if kind in "Mm":
        raise _date_error(label, str(column.dtype))
    if kind == "c":
        raise DataError(f"Complex data not supported: column {label} holds complex numbers")
    column = column.astype(object)
    kinds = set(map(type, column))
    gaps = {kind for kind in kinds if _is_gap_type(kind)}
    times = {kind for kind in kinds - gaps if issubclass(kind, _TIMES) or kind.__name__ == "Period"}
    texts = {kind for kind in kinds - gaps if issubclass(kind, str)}
    numbers = {kind for kind in kinds - gaps - times if issubclass(kind, _NUMBERS)}
    others = kinds - gaps - times - texts - numbers
    if others:
        row = _first(column, others)
        value = column[row]
        if isinstance(value, Complex):
            raise DataError(f"Complex data not supported: row {row}: column {label} is {value!r}")
        raise _ValueKindError(
            f"row {row}: column {label} is {_short(value)}, a {type(value).__name__};"
            " the argument must be a table of string or number columns"
        )
    if times:
        row = _first(column, times)
        raise _date_error(label, f"row {row}: {_short(column[row])}")
    missing = _of_types(column, gaps)
    if not texts:
        return _object_numbers(column, missing, label)
    if numbers:
        # A gap of a text column is often a float NaN.
        at = np.flatnonzero(_of_types(column, numbers))
        empty = np.array([_is_nan(value) for value in column[at]], np.bool_)
        missing[at[empty]] = True
        if not empty.all():
            row, other = int(at[np.argmin(empty)]), _first(column, texts)
            raise DataError(
                f"column {label} holds numbers and text: {_short(column[row])} at row {row}"
                f" and {_short(column[other])} at row {other}; make it one of them"
            )
    return _text_levels(column, missing)


def _text_levels(column: NDArray[Any], missing: NDArray[np.bool_]) -> _Levels:
    there = [str.__str__(value) for value in column[~missing].tolist()]
    number = {text: code for code, text in enumerate(dict.fromkeys(there))}
    codes = np.full(column.size, -1, np.int64)
    codes[~missing] = np.fromiter(map(number.__getitem__, there), np.int64, len(there))
    return _Levels(codes, list(number), declared=False)


def _object_numbers(column: NDArray[Any], missing: NDArray[np.bool_], label: str) -> NDArray[Any]:
    result = np.full(column.size, np.nan)
    try:
        with np.errstate(over="ignore"):  # an infinity is refused later, by its place
            result[~missing] = column[~missing].astype(np.float64)
    except (OverflowError, ValueError, TypeError):
        for row in np.flatnonzero(~missing).tolist():
            try:
                result[row] = float(column[row])
            except (OverflowError, ValueError, TypeError) as error:
                raise DataError(
                    f"row {row}: column {label} is {_short(column[row])}, which does not fit a float: {error}"
                ) from error
    return result


def _is_nan(value: Any) -> bool:
    return bool(value.is_nan() if isinstance(value, Decimal) else value != value)


def _is_gap_type(kind: type) -> bool:
    return kind is type(None) or kind.__name__ in ("NAType", "NaTType")


def _of_types(column: NDArray[Any], kinds: set[type]) -> NDArray[np.bool_]:
    if not kinds:
        return np.zeros(column.size, np.bool_)
    return np.fromiter((kind in kinds for kind in map(type, column)), np.bool_, column.size)


def _first(column: NDArray[Any], kinds: set[type]) -> int:
    return int(np.argmax(_of_types(column, kinds)))


# ---------------------------------------------------------------------------------------------------- words


def _label(j: int, names: Names) -> str:
    return str(j) if names is None else repr(names[j])


def _plain_name(j: int, names: Names) -> str:
    return f"x{j}" if names is None else names[j]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _date_error(label: str, found: str) -> DataError:
    return DataError(f"column {label} holds dates or times ({found}); {_DATES}")


def _bullets(names: list[str]) -> str:
    few = "".join(f"- {name}\n" for name in names[:5])
    return few + ("- ...\n" if len(names) > 5 else "")


# --------------------------------------------------------------------------------------------------- agents


def agent_codes(
    ids: Any, members: Any = None, rows: int | None = None
) -> tuple[NDArray[np.int64], tuple[Hashable, ...]]:
    """Agent ids as numbers, and the agents: as :class:`~coterie.AgentData` numbers them.

    Parameters
    ----------
    ids : sequence or None
        The agent each row belongs to. None gives every row to agent 0.
    members : sequence, optional
        Every agent, in the order in which they are numbered. By default the distinct ids, sorted if they can be and
        otherwise in order of appearance.
    rows : int, optional
        How many ids there must be.

    Returns
    -------
    codes : ndarray of shape (rows,)
        Number of the agent of each row.
    members : tuple
        Id of each agent.

    Raises
    ------
    DataError
        If an id is missing, cannot be hashed or is not among `members`, or if there are too many or too few.

    Examples
    --------
    >>> agent_codes(["bo", "anna", "bo"])
    (array([1, 0, 1]), ('anna', 'bo'))
    """
    light = None if ids is None else _light_ids(ids)
    light_members = None if members is None else _light_ids(members)
    if (ids is not None and light is None) or (members is not None and light_members is None):
        return _agents_of_any_kind(ids, members, rows)
    count = (rows or 0) if light is None else len(light)
    if rows is not None and count != rows:
        raise DataError(f"agents has {count} ids for {rows} rows; one per row is needed")
    if light_members is None and not count:
        raise DataError("X has no rows; give members=[...] to describe agents that have no data")
    codes, found = (np.zeros(count, np.int64), [0] if count else []) if light is None else _light_distinct(light)
    if light_members is None:
        return codes, tuple(found)
    ordered = light_members.tolist() if isinstance(light_members, np.ndarray) else list(light_members)
    number: dict[Hashable, int] = {}
    for k, member in enumerate(ordered):
        if number.setdefault(member, k) != k:
            raise DataError(f"members holds {member!r} twice")
    if not ordered:
        raise DataError("members is empty; at least one agent is needed")
    numbers = np.array([number.get(value, -1) for value in found], np.int64)[codes]
    _refuse_strangers(numbers, codes, found)
    return numbers, tuple(ordered)


def agent_numbers(ids: Any, members_index: Mapping[Hashable, int]) -> NDArray[np.int64]:
    """Numbers of agents that are known, -1 for others.

    Parameters
    ----------
    ids : sequence
        Agent ids.
    members_index : dict
        Number of each agent, by its id.

    Returns
    -------
    ndarray of shape (len(ids),)

    Raises
    ------
    DataError
        If an id is missing or cannot be hashed.

    Examples
    --------
    >>> agent_numbers(["anna", "zoe", "bo"], {"anna": 0, "bo": 1})
    array([ 0, -1,  1])
    """
    light = _light_ids(ids)
    if light is None:
        from .agent_data import _distinct, _numbers, as_agent_ids

        return _numbers(*_distinct(as_agent_ids(ids)), dict(members_index))
    codes, found = _light_distinct(light)
    return np.array([members_index.get(value, -1) for value in found], np.int64)[codes]


def _light_ids(ids: Any) -> NDArray[Any] | list[Any] | None:
    """Ids that NumPy can number: an array of integers, or a list of Python integers or of strings. None for others."""
    if type(ids) is np.ndarray and ids.ndim == 1:
        if ids.dtype.kind in "iu":
            return ids
        if ids.dtype.kind not in "UO":
            return None
        ids = ids.tolist()
    elif type(ids) not in (list, tuple, range):
        return None
    kinds = set(map(type, ids))
    return list(ids) if kinds in ({int}, {str}, set()) else None


def _light_distinct(ids: NDArray[Any] | list[Any]) -> tuple[NDArray[np.int64], list[Any]]:
    """Which of the distinct ids each entry is, and these, sorted."""
    if isinstance(ids, list):
        found = sorted(set(ids))
        number = {value: k for k, value in enumerate(found)}
        return np.fromiter(map(number.__getitem__, ids), np.int64, len(ids)), found
    if not ids.size:
        return np.zeros(0, np.int64), []
    low, span = ids.min(), int(ids.max()) - int(ids.min())
    if span > 4 * ids.size + 1000:
        values, codes = np.unique(ids, return_inverse=True)
        return codes.astype(np.int64, copy=False), values.tolist()
    # Ids that lie close together need no sorting. Subtracted in their own type only where int64 cannot hold them.
    shifted = (ids - low).astype(np.int64) if ids.dtype == np.uint64 else ids.astype(np.int64) - np.int64(low)
    present = np.zeros(span + 1, np.bool_)
    present[shifted] = True
    first = int(low)
    return (np.cumsum(present) - 1)[shifted], [first + k for k in np.flatnonzero(present).tolist()]


def _agents_of_any_kind(ids: Any, members: Any, rows: int | None) -> tuple[NDArray[np.int64], tuple[Hashable, ...]]:
    # Imported here: it brings pandas.
    from .agent_data import _distinct, _in_order, _members, _numbers, as_agent_ids

    codes, found = _distinct(as_agent_ids(ids, rows))
    if members is not None:
        ordered = _members(members)
    elif codes.size:
        ordered = _in_order(found)
    else:
        raise DataError("X has no rows; give members=[...] to describe agents that have no data")
    numbers = _numbers(codes, found, {member: k for k, member in enumerate(ordered)})
    _refuse_strangers(numbers, codes, found)
    return numbers, ordered


def _refuse_strangers(numbers: NDArray[np.int64], codes: NDArray[np.int64], found: Sequence[Any]) -> None:
    if numbers.size and numbers.min() < 0:
        row = int(np.argmax(numbers < 0))
        raise DataError(f"row {row} (agent {found[codes[row]]!r}): this agent is not among members=")
