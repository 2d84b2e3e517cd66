"""The rows of one agent in an ``.npz`` file: arrays X and y, or the parts of a sparse X. Nothing is unpickled."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from ..errors import DataError

CSR = ("X_data", "X_indices", "X_indptr", "X_shape")


def read_arrays(stream: Any) -> tuple[Any, np.ndarray]:
    """Features and labels of an open file: ``X`` and ``y``; or ``X_data``, ``X_indices``, ``X_indptr``, ``X_shape``."""
    arrays = _arrays(np.load(stream, allow_pickle=False))
    y = arrays.pop("y")
    return (arrays["X"] if "X" in arrays else _csr(**arrays)), y


def _arrays(file: Any) -> dict[str, np.ndarray]:
    """Those that make up a task."""
    if isinstance(file, np.ndarray):
        raise DataError("a single array, and no npz file; write it with np.savez(path, X=X, y=y)")
    names = set(file.files)
    parts = names & set(CSR)
    if parts and "X" in names:
        raise DataError(f"holds both X and {min(parts)}; keep either X or its CSR arrays")
    wanted = (*CSR, "y") if parts else ("X", "y")
    if missing := [name for name in wanted if name not in names]:
        there = ", ".join(map(repr, file.files)) or "none"
        raise DataError(f"no array {missing[0]!r}; there are {there}")
    return {name: _array(file, name) for name in wanted}


def _array(file: Any, name: str) -> np.ndarray:
    try:
        return file[name]
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise DataError(f"array {name!r} holds pickled objects, which are never loaded; save numbers") from error
        raise


def _csr(X_data: np.ndarray, X_indices: np.ndarray, X_indptr: np.ndarray, X_shape: np.ndarray) -> Any:
    for name, array in (("X_indices", X_indices), ("X_indptr", X_indptr), ("X_shape", X_shape)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(f"{name} must be 1-D and of integers, got {array.dtype} of shape {array.shape}")
    if X_shape.size != 2:
        raise DataError(f"X_shape must be two numbers, (rows, features), got {X_shape.tolist()}")
    # Compiled code trusts these arrays, and SciPy leaves this one out if the last entry is 0.
    if (np.diff(X_indptr.astype(np.int64)) < 0).any():
        raise DataError("X_indptr must not decrease")
    try:
        X = sparse.csr_array(
            (X_data, X_indices.astype(np.int64), X_indptr.astype(np.int64)), shape=tuple(X_shape.tolist())
        )
        X.check_format(full_check=True)
    except ValueError as error:
        raise DataError(f"the arrays of X are not CSR: {error}") from error
    return X
