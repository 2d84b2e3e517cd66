"""Conversion of the features and labels of :class:`coterie.AgentData` to matrices. Text is refused, never parsed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ..errors import DataError
from .frames import is_frame
from .levels import Levels
from .raw import Names, RawTable, as_array, canonical, fill

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_ENCODE = "encode it as numbers first"
_CLASSES = (
    "labels must be numbers here: np.unique(y, return_inverse=True)[1] numbers classes (the estimators do it for you)"
)


#: Numbers in one part of the rows that are copied, converted or checked at a time, which bounds additional memory.
NUMBERS_PER_PART = 1 << 20


def as_features(X: Any, dtype: Any = None) -> tuple[Any, tuple[str, ...] | None]:
    """Return features as a matrix of `dtype` with NaN for missing values, and the names of a frame's columns.

    By default float32 is kept, and everything else becomes float64. The result may be `X` itself if it is an ndarray,
    and may share the memory of a canonical csr_array.
    """
    names = tuple(map(str, X.columns)) if is_frame(X) else None
    if sparse.issparse(X):
        if X.dtype.kind not in "biuf":
            raise DataError(f"X holds {X.dtype}; {_ENCODE}")
    elif names is None:
        X = as_array(X)
    if len(X.shape) != 2:
        raise DataError(f"X must be 2-D, (rows, features); got shape {X.shape}")
    if X.shape[1] == 0:
        raise DataError("X has no columns left to learn from; at least one feature is needed")
    if not sparse.issparse(X):
        return _numbers(X, names, dtype), names
    return canonical(sparse, X, dtype), names


def as_labels(y: Any, rows: int) -> Floats:
    """Return labels as float64, one for each row."""
    if hasattr(y, "to_frame"):
        y = y.to_frame()
    else:
        y = as_array(y)
        if y.ndim != 1:
            raise DataError(f"y must be 1-D, one number per row; got shape {y.shape}")
        y = y[:, None]
    labels: Floats = _numbers(y, ("y",), np.float64, labels=True)[:, 0]
    if len(labels) != rows:
        raise DataError(f"y has {len(labels)} labels for {rows} rows; one per row is needed")
    return labels


def _numbers(X: Any, names: Names, dtype: Any, labels: bool = False) -> NDArray[Any]:
    """Return a frame or an array as a matrix; refuse text."""
    table = RawTable(X.shape[0], X.shape[1], names)
    fill(table, X)
    if table.columns is None:
        matrix = table.matrix
    else:
        for j, column in enumerate(table.columns):
            if isinstance(column, Levels):
                where = f"column {j} of X" if names is None else f"column {names[j]!r}"
                first = np.argmax(column.codes >= 0)
                what = "categories" if column.declared else f"text, such as {column.texts[column.codes[first]]!r}"
                raise DataError(f"{'y' if labels else where} holds {what}; {_CLASSES if labels else _ENCODE}")
        matrix = np.column_stack(table.columns)
    with np.errstate(over="ignore"):
        return matrix.astype(dtype or matrix.dtype, copy=False)


def nonfinite(X: Any) -> tuple[Integers, Integers]:
    """Return the rows and columns of NaN and infinities."""
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
    """Generate slices of rows of p numbers each, in order."""
    step = max(1, NUMBERS_PER_PART // max(1, p))
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))


def take_rows(X: Any, rows: NDArray[Any]) -> Any:
    """Return ``X[rows]``, C-contiguous for any X, without a temporary copy."""
    if sparse.issparse(X):
        return X[rows]
    out = np.empty((len(rows), X.shape[1]), X.dtype)
    for part in parts_of(*out.shape):
        out[part] = X[rows[part]]
    return out
