"""Raw tables: a matrix of numbers, a sparse matrix, or columns of numbers and of levels.

Arrays, SciPy sparse matrices, and pandas and polars frames are read here; values that are neither numbers nor text are
refused with their row and column. Arrays need only NumPy, so that a first fit does not wait for the import of pandas.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Complex, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .frames import is_frame, is_polars
from .levels import ADVICE, Levels, date_error, declared_levels, is_time, text_levels

Names = tuple[str, ...] | None

FIRST_BLOCK = 1024
_BLOCK = 1 << 18  # numbers in one block of rows: two megabytes, which fit into a cache
_NUMBERS = (Real, Decimal, np.bool_)
_RESHAPE = (
    "Reshape your data either using array.reshape(-1, 1) if your data has a single feature"
    " or array.reshape(1, -1) if it contains a single sample."
)


class ValueKindError(DataError, TypeError):
    """A value is neither a number nor text; also a TypeError, as scikit-learn's conventions require."""


@dataclass
class RawTable:
    """A table that was read: a sparse matrix, a matrix of numbers, or columns of numbers and levels."""

    rows: int
    width: int
    names: Names
    matrix: Any = None
    sparse: Any = None
    columns: list[Any] | None = None

    def column(self, j: int) -> Any:
        """Return one column: numbers with NaN for missing values, or Levels."""
        return self.matrix[:, j] if self.columns is None else self.columns[j]

    def gaps(self, j: int) -> NDArray[np.bool_]:
        """Return whether each value of a column is missing."""
        column = self.column(j)
        gaps: NDArray[np.bool_] = column.codes < 0 if isinstance(column, Levels) else np.isnan(column)
        return gaps

    def numbers(self, wanted: Sequence[int], rows: slice) -> NDArray[Any]:
        """Return some columns of numbers for some rows, with NaN for missing values."""
        if self.columns is None:
            block = self.matrix[rows]
            everything = len(wanted) == self.width
            return block if everything and list(wanted) == list(range(self.width)) else block[:, wanted]
        if not wanted:
            return np.empty((rows.stop - rows.start, 0), self.dtype)
        return np.column_stack([self.columns[j][rows] for j in wanted])

    @property
    def dtype(self) -> Any:
        """Type of the matrix; float64 for columns of several types."""
        return np.dtype(np.float64) if self.matrix is None else self.matrix.dtype


def blocks(rows: int, width: int, first: int | None = None) -> Iterator[slice]:
    """Generate slices of rows; with `first`, a small one and then larger ones, for loops that usually stop early."""
    most = max(_BLOCK // max(width, 1), 64)
    size = most if first is None else min(first, most)
    start = 0
    while start < rows:
        yield slice(start, min(start + size, rows))
        start += size
        size = min(4 * size, most)


def read(
    X: Any,
    owner: str,
    used: frozenset[int] | None = None,
    check_names: Callable[[Names, str], None] | None = None,
) -> RawTable:
    """Read any table; only the columns in `used`, after `check_names` has accepted the names."""
    names: Names = None
    framed = is_frame(X)
    if framed:
        names = _frame_names(X)
    if check_names is not None:
        check_names(names, owner)
    sparse = sys.modules.get("scipy.sparse")
    is_sparse = sparse is not None and sparse.issparse(X)
    if not framed and not is_sparse:
        X = as_array(X)
    shape = tuple(X.shape)
    _check_shape(shape, owner)
    table = RawTable(rows=shape[0], width=shape[1], names=names)
    if is_sparse:
        table.sparse = _read_sparse(sparse, X)
    else:
        fill(table, X, used)
    return table


def fill(table: RawTable, X: Any, used: frozenset[int] | None = None) -> None:
    """Read a frame or a 2-D array: as a matrix if all columns are numbers, otherwise column by column."""
    if is_frame(X):
        _read_frame(X, table, used)
    elif X.dtype.kind in "biuf":
        table.matrix = _floats(X)
    elif X.dtype.kind == "c":
        raise DataError("Complex data not supported: X holds complex numbers; give their parts as two columns")
    elif X.dtype.kind in "Mm":
        raise DataError(f"X holds dates or times ({X.dtype}); {ADVICE}")
    else:
        table.columns = [
            array_column(X[:, j], label_of(j, table.names)) if used is None or j in used else None
            for j in range(table.width)
        ]


def as_array(X: Any) -> NDArray[Any]:
    """Return anything that is no frame as an array; numbers in a list of numbers and text stay numbers."""
    if np.ma.isMaskedArray(X):
        gap: Any = np.nan if X.dtype.kind in "biuf" else None
        X = np.where(np.ma.getmaskarray(X), gap, X.data)
    try:
        array = np.asarray(X)
    except ValueError as error:
        raise DataError(f"X is not a regular array: {error}") from error
    except (TypeError, OverflowError):  # types without a common type
        return np.asarray(X, dtype=object)
    if array.dtype.kind in "US" and not isinstance(X, np.ndarray):
        # NumPy has turned the numbers of a mixed list into text.
        return np.asarray(X, dtype=object)
    return array


def _floats(array: NDArray[Any]) -> NDArray[Any]:
    """Return float32 and float64 unchanged, other numbers as float64; C-contiguous."""
    single = array.dtype.kind == "f" and array.dtype.itemsize == 4
    with np.errstate(over="ignore"):  # infinities are refused later, with their row and column
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


def _frame_names(X: Any) -> Names:
    columns = list(X.columns)
    strings = [isinstance(name, str) for name in columns]
    if not all(strings):
        if any(strings):
            kinds = sorted({type(name).__qualname__ for name in columns})
            raise ValueKindError(
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


def _read_frame(X: Any, table: RawTable, used: frozenset[int] | None) -> None:
    names = table.names
    if is_polars(X):
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
        read(column, label_of(j, names)) if used is None or j in used else None for j, column in enumerate(series)
    ]


def canonical(sparse: Any, X: Any, dtype: Any = None) -> Any:
    """Return a sparse matrix as CSR with sorted entries without duplicates; the caller's matrix is not changed."""
    with np.errstate(over="ignore"):  # infinities are refused later, with their row and column
        matrix = sparse.csr_array(X, dtype=dtype or (np.float32 if X.dtype == np.float32 else np.float64))
    if not matrix.has_canonical_format:
        matrix = matrix.copy() if np.may_share_memory(matrix.data, X.data) else matrix
        matrix.sum_duplicates()
    return matrix


def _read_sparse(sparse: Any, X: Any) -> Any:
    if X.dtype.kind == "c":
        raise DataError("Complex data not supported: X holds complex numbers; give their parts as two columns")
    if X.dtype.kind not in "biuf":
        raise DataError(f"a sparse X must hold numbers, got {X.dtype}")
    matrix = canonical(sparse, X)
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


def sparse_means(matrix: Any) -> list[float]:
    """Return the mean of each column of a sparse matrix."""
    # Divided before summing, so that sums of large numbers stay finite.
    weights = matrix.data.astype(np.float64) / matrix.shape[0]
    return np.bincount(matrix.indices, weights=weights, minlength=matrix.shape[1]).tolist()


def _pandas_column(series: Any, label: str) -> Any:
    pd = sys.modules["pandas"]
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return declared_levels(np.asarray(series.cat.codes), series.cat.categories.tolist(), label)
    if isinstance(dtype, pd.PeriodDtype) or dtype.kind in "Mm":
        raise date_error(label, str(dtype))
    if isinstance(dtype, pd.StringDtype):
        codes, texts = series.factorize()
        return Levels(codes, texts.tolist(), declared=False) if len(texts) else np.full(len(series), np.nan)
    if isinstance(dtype, np.dtype | pd.SparseDtype):
        return array_column(np.asarray(series), label)
    if dtype.kind in "biuf":
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    return array_column(series.to_numpy(dtype=object), label)


def _polars_column(series: Any, label: str) -> Any:
    pl = sys.modules["polars"]
    dtype = series.dtype
    name = str(dtype).partition("(")[0]
    if dtype.is_temporal():
        raise date_error(label, str(dtype))
    if dtype.is_numeric() or name in ("Boolean", "Null"):
        return series.cast(pl.Float64).to_numpy()
    if name in ("String", "Utf8", "Categorical", "Enum"):
        text = series.cast(pl.String)
        texts = text.drop_nulls().unique().to_list()
        if not texts:
            return np.full(len(series), np.nan)
        codes = text.replace_strict(texts, list(range(len(texts))), default=-1, return_dtype=pl.Int64)
        return Levels(codes.fill_null(-1).to_numpy(), texts, declared=name in ("Categorical", "Enum"))
    return array_column(np.fromiter(series.to_list(), dtype=object, count=len(series)), label)


def array_column(column: NDArray[Any], label: str) -> Any:
    """Read one column of an array of any type."""
    kind = column.dtype.kind
    if kind in "biuf":
        return _floats(column)
    if kind in "Mm":
        raise date_error(label, str(column.dtype))
    if kind == "c":
        raise DataError(f"Complex data not supported: column {label} holds complex numbers")
    column = column.astype(object)
    kinds = set(map(type, column))
    gaps = {kind for kind in kinds if kind is type(None) or kind.__name__ in ("NAType", "NaTType")}
    times = {kind for kind in kinds - gaps if is_time(kind)}
    texts = {kind for kind in kinds - gaps if issubclass(kind, str)}
    numbers = {kind for kind in kinds - gaps - times if issubclass(kind, _NUMBERS)}
    others = kinds - gaps - times - texts - numbers
    if others:
        row = _first(column, others)
        value = column[row]
        if isinstance(value, Complex):
            raise DataError(f"Complex data not supported: row {row}: column {label} is {value!r}")
        raise ValueKindError(
            f"row {row}: column {label} is {short(value)}, a {type(value).__name__};"
            " the argument must be a table of string or number columns"
        )
    if times:
        row = _first(column, times)
        raise date_error(label, f"row {row}: {short(column[row])}")
    missing = _of_types(column, gaps)
    if not texts:
        return _object_numbers(column, missing, label)
    if numbers:
        # Missing values in a text column are often float NaN.
        at = np.flatnonzero(_of_types(column, numbers))
        empty = np.array([v.is_nan() if isinstance(v, Decimal) else v != v for v in column[at]], np.bool_)
        missing[at[empty]] = True
        if not empty.all():
            row, other = int(at[np.argmin(empty)]), _first(column, texts)
            raise DataError(
                f"column {label} holds numbers and text: {short(column[row])} at row {row}"
                f" and {short(column[other])} at row {other}; make it one of them"
            )
    return text_levels(column, missing)


def _object_numbers(column: NDArray[Any], missing: NDArray[np.bool_], label: str) -> NDArray[Any]:
    result = np.full(column.size, np.nan)
    try:
        with np.errstate(over="ignore"):  # infinities are refused later, with their row and column
            result[~missing] = column[~missing].astype(np.float64)
    except (OverflowError, ValueError, TypeError):
        for row in np.flatnonzero(~missing).tolist():
            try:
                result[row] = float(column[row])
            except (OverflowError, ValueError, TypeError) as error:
                raise DataError(
                    f"row {row}: column {label} is {short(column[row])}, which does not fit a float: {error}"
                ) from error
    return result


def _of_types(column: NDArray[Any], kinds: set[type]) -> NDArray[np.bool_]:
    if not kinds:
        return np.zeros(column.size, np.bool_)
    return np.fromiter((kind in kinds for kind in map(type, column)), np.bool_, column.size)


def _first(column: NDArray[Any], kinds: set[type]) -> int:
    return int(np.argmax(_of_types(column, kinds)))


def label_of(j: int, names: Names) -> str:
    """Name a column in an error: its name in quotes, or its number."""
    return str(j) if names is None else repr(names[j])


def plain_name(j: int, names: Names) -> str:
    """Name a column in a list of names: its name, or "x0", "x1", ..."""
    return f"x{j}" if names is None else names[j]


def short(value: Any) -> str:
    """Return a value as text for an error, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
