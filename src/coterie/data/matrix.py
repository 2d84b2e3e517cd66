"""Numbers and nothing else: the features and labels of :class:`coterie.AgentData`. Text is refused, never parsed."""

from __future__ import annotations

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
_CLASSES = "labels must be numbers here (the estimators encode classes for you)"


def as_features(X: Any) -> tuple[Any, tuple[str, ...] | None]:
    """Features as a float64 matrix with NaN for gaps, and the names of a frame's columns.

    A csr_array is canonical and a copy; an ndarray may be `X` itself.
    """
    names = None
    if is_frame(X):
        names = tuple(map(str, X.columns))
        columns = X.iter_columns() if is_polars(X) else (column for _, column in X.items())
        arrays = [_column(c, f"column {name!r}", _ENCODE) for name, c in zip(names, columns, strict=True)]
        matrix: Any = np.column_stack(arrays) if arrays else np.empty((len(X), 0))
    elif sparse.issparse(X):
        _check_kind(X.dtype.kind, X.data, "X", _ENCODE)
        _check_2d(X.shape)
        matrix = sparse.csr_array(X, dtype=np.float64, copy=True)
        matrix.sum_duplicates()
    else:
        matrix = _floats(X, "X", _ENCODE)
    _check_2d(matrix.shape)
    if matrix.shape[1] == 0:
        raise DataError("X has no columns left to learn from; at least one feature is needed")
    return matrix, names


def as_labels(y: Any, rows: int) -> Floats:
    """Labels as float64, one for each row."""
    labels = _column(y, "y", _CLASSES)
    if len(labels) != rows:
        raise DataError(f"y has {len(labels)} labels for {rows} rows; one per row is needed")
    return labels


def nonfinite(X: Any) -> tuple[Integers, Integers]:
    """Rows and columns of NaN and infinities."""
    if sparse.issparse(X):
        X = X.tocoo()
        bad = ~np.isfinite(X.data)
        return X.row[bad], X.col[bad]
    rows, columns = np.nonzero(~np.isfinite(X))
    return rows, columns


def _floats(values: Any, what: str, advice: str) -> Floats:
    """Numbers and booleans as float64, what is missing as NaN; anything else is refused, not parsed."""
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
        return array.astype(np.float64, copy=False)
    except OverflowError as error:
        raise DataError(f"{what} holds an integer too large for a float") from error


def _column(values: Any, what: str, advice: str) -> Floats:
    column = _floats(values, what, advice)
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
