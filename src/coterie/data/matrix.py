"""Numbers and nothing else: the features and labels of :class:`coterie.AgentData`. Text is refused, never parsed."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from ..errors import DataError
from .frames import is_frame, is_polars

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_ENCODE = "encode it as numbers first"
_CLASSES = (
    "labels must be numbers here: np.unique(y, return_inverse=True)[1] numbers classes (the estimators do it for you)"
)


#: Rows are copied, converted and checked in parts of so many numbers: what is needed beside them stays small.
PART = 1 << 20


def as_features(X: Any, dtype: Any = None) -> tuple[Any, tuple[str, ...] | None]:
    """Features as a matrix of `dtype` with NaN for gaps, and the names of a frame's columns.

    Without `dtype`, float32 stays what it is, and everything else is float64. An ndarray may be `X` itself, and a
    csr_array, which is canonical, may share its memory.
    """
    names = None
    if is_frame(X):
        names = tuple(map(str, X.columns))
        columns = X.iter_columns() if is_polars(X) else (column for _, column in X.items())
        arrays = [_column(c, f"column {name!r}", _ENCODE) for name, c in zip(names, columns, strict=True)]
        if dtype is None:
            dtype = np.result_type(*arrays) if arrays else np.float64
        matrix: Any = np.empty((len(X), len(arrays)), dtype)
        for j in range(len(arrays)):
            with np.errstate(over="ignore"):  # an infinity is refused later, by its place
                matrix[:, j] = arrays[j]
    elif sparse.issparse(X):
        _check_kind(X.dtype.kind, X.data, "X", _ENCODE)
        _check_2d(X.shape)
        with np.errstate(over="ignore"):
            matrix = sparse.csr_array(X, dtype=_stored(X.dtype) if dtype is None else dtype)
        if not matrix.has_canonical_format:
            matrix = matrix.copy() if np.may_share_memory(matrix.data, X.data) else matrix
            matrix.sum_duplicates()
    else:
        matrix = _floats(X, "X", _ENCODE, dtype)
    _check_2d(matrix.shape)
    if matrix.shape[1] == 0:
        raise DataError("X has no columns left to learn from; at least one feature is needed")
    return matrix, names


def as_labels(y: Any, rows: int) -> Floats:
    """Labels as float64, one for each row."""
    labels = _column(y, "y", _CLASSES, np.float64)
    if len(labels) != rows:
        raise DataError(f"y has {len(labels)} labels for {rows} rows; one per row is needed")
    return labels


def nonfinite(X: Any) -> tuple[Integers, Integers]:
    """Rows and columns of NaN and infinities."""
    if sparse.issparse(X):
        bad = np.flatnonzero(~np.isfinite(X.data))
        return np.searchsorted(X.indptr, bad, side="right") - 1, X.indices[bad]
    found = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for part in parts_of(*X.shape):
        wrong = ~np.isfinite(X[part])
        if wrong.any():
            rows, columns = np.nonzero(wrong)
            found.append((rows + part.start, columns))
    rows, columns = (np.concatenate(each) for each in zip(*found, strict=True))
    return rows, columns


def parts_of(rows: int, p: int = 1) -> Iterator[slice]:
    """Rows of p numbers in parts, from the first to the last."""
    step = max(1, PART // max(1, p))
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))


def take_rows(X: Any, rows: NDArray[Any]) -> Any:
    """``X[rows]``; C-contiguous whatever X is, without a copy in between."""
    if sparse.issparse(X):
        return X[rows]
    out = np.empty((len(rows), X.shape[1]), X.dtype)
    for part in parts_of(*out.shape):
        out[part] = X[rows[part]]
    return out


def _stored(dtype: Any) -> Any:
    return np.float32 if dtype == np.float32 else np.float64


def _floats(values: Any, what: str, advice: str, dtype: Any = None) -> NDArray[Any]:
    """Numbers and booleans as floats, what is missing as NaN; anything else is refused, not parsed."""
    if isinstance(getattr(values, "dtype", None), pd.CategoricalDtype):
        raise DataError(f"{what} holds categories; {advice}")
    if np.ma.isMaskedArray(values):
        values = np.where(np.ma.getmaskarray(values), np.nan, values.data)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{what} is not a regular array: {error}") from error
    if array.dtype.kind == "O":
        array = np.where(pd.isna(array), np.nan, array)
    _check_kind(array.dtype.kind, array, what, advice)
    try:
        with np.errstate(over="ignore"):
            return array.astype(_stored(array.dtype) if dtype is None else dtype, copy=False)
    except OverflowError as error:
        raise DataError(f"{what} holds an integer too large for a float") from error


def _column(values: Any, what: str, advice: str, dtype: Any = None) -> NDArray[Any]:
    column = _floats(values, what, advice, dtype)
    if column.ndim != 1:
        raise DataError(f"{what} must be 1-D, one number per row; got shape {column.shape}")
    return column


def _check_kind(kind: str, array: NDArray[Any], what: str, advice: str) -> None:
    if kind in "biuf":
        return
    # An object array may hold numbers, and only its elements can tell; of other kinds no element is one.
    allowed = (Real, Decimal, np.bool_) if kind == "O" else ()
    for value in array.flat:
        if not isinstance(value, allowed):
            noun = "text" if isinstance(value, str) else type(value).__name__
            raise DataError(f"{what} holds {noun}, such as {str(value)!r}; {advice}")


def _check_2d(shape: tuple[int, ...]) -> None:
    if len(shape) != 2:
        raise DataError(f"X must be 2-D, (rows, features); got shape {shape}")
