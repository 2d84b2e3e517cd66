"""Labels of rows that are read in parts: parsed, counted and encoded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...errors import DataError
from ..raw import short

#: Maximum number of classes.
MAX_CLASSES = 10_000


@dataclass
class Labels:
    """Labels as they were read."""

    values: NDArray[Any]  # bool, numbers, or text as objects
    missing: NDArray[np.bool_]
    kind: str  # "bool", "number" or "text"; "empty" if all are missing

    @classmethod
    def read(cls, y: Any) -> Labels:
        """Read labels of any type."""
        if isinstance(getattr(y, "dtype", None), pd.api.extensions.ExtensionDtype):
            y = np.asarray(y.astype(object), dtype=object)
        values = np.asarray(y)
        if values.dtype.kind in "biuf":
            missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.size, np.bool_)
            kind = "bool" if values.dtype.kind == "b" else "number"
            return cls(values, missing, "empty" if missing.all() else kind)
        values = values.astype(object)
        missing = np.asarray(pd.isna(values), np.bool_)
        there = values[~missing].tolist()
        if not there:
            return cls(np.full(values.size, np.nan), missing, "empty")
        if all(isinstance(value, str) for value in there):
            return cls(values, missing, "text")
        odd = next((value for value in there if not isinstance(value, Real | Decimal | np.bool_)), None)
        if odd is not None:
            if isinstance(odd, str):
                other = next(value for value in there if not isinstance(value, str))
                raise DataError(
                    f"labels are numbers and text, such as {short(other)} and {odd!r}; make all numbers or all text"
                )
            raise DataError(f"the label {short(odd)} is a {type(odd).__name__}; labels are numbers, text or booleans")
        known = np.asarray(there)
        if known.dtype.kind == "O":
            known = known.astype(np.float64)
        kind = "bool" if known.dtype.kind == "b" else "number"
        if missing.any():
            filled = np.full(values.size, np.nan)
            filled[~missing] = known
            return cls(filled, missing, kind)
        return cls(known, missing, kind)

    def unusable(self, what: str, written: bool) -> dict[int, str]:
        """Return rows whose label cannot be used, with reasons; convert text labels of a csv file if needed."""
        found = dict.fromkeys(
            np.flatnonzero(self.missing).tolist(), "the label is missing: fill it in, or drop the row"
        )
        if what == "number" and self.kind == "text":
            numbers = np.full(self.values.size, np.nan)
            if written:
                numbers = pd.to_numeric(pd.Series(self.values), errors="coerce").to_numpy(np.float64)
            for row in np.flatnonzero(np.isnan(numbers) & ~self.missing).tolist():
                found[row] = f"the label is {self.values[row]!r}, which is no number"
            self.values, self.kind = numbers, "number"
        if self.kind == "number" and self.values.dtype.kind == "f":
            for row in np.flatnonzero(np.isinf(self.values)).tolist():
                found[row] = f"the label is {self.values[row]}; numbers must be finite: correct it, or drop the row"
        return found

    def take(self, rows: NDArray[Any]) -> Labels:
        """Return the labels of some rows."""
        return Labels(self.values[rows], self.missing[rows], self.kind)


@dataclass
class LabelSummary:
    """Summary of labels: moments, and the distinct labels of classes."""

    rows: int = 0
    mean: float = 0.0
    square: float = 0.0  # sum of squared deviations from the mean
    distinct: dict[Any, None] | None = field(default_factory=dict)  # None if there are too many
    dtype: Any = None  # a type that holds all numbers
    kinds: dict[str, str] = field(default_factory=dict)  # kinds of labels, each with the name of a piece with it

    @classmethod
    def of(cls, labels: Labels, what: str, kind: str, piece: str) -> LabelSummary:
        """Summarise labels without missing values."""
        values = labels.values
        found = cls(len(values), kinds={kind: piece} if len(values) else {})
        if what == "number":
            numbers = values.astype(np.float64)
            found.mean = float(np.mean(numbers)) if len(numbers) else 0.0
            found.square = float(np.sum((numbers - found.mean) ** 2))
        elif what == "class":
            distinct = pd.unique(values).tolist() if values.dtype.kind == "O" else np.unique(values).tolist()
            found.distinct = dict.fromkeys(distinct) if len(distinct) <= MAX_CLASSES else None
            found.dtype = None if values.dtype.kind == "O" else values.dtype
        return found

    def __add__(self, other: LabelSummary) -> LabelSummary:
        """Return the summary of both parts (Chan, Golub and LeVeque 1979)."""
        rows = self.rows + other.rows
        if not rows:
            return self
        apart, part = other.mean - self.mean, other.rows / rows
        both = None if self.distinct is None or other.distinct is None else self.distinct | other.distinct
        dtypes = [dtype for dtype in (self.dtype, other.dtype) if dtype is not None]
        return LabelSummary(
            rows,
            self.mean * (1.0 - part) + other.mean * part,
            self.square + other.square + apart * apart * self.rows * part,
            None if both is None or len(both) > MAX_CLASSES else both,
            np.result_type(*dtypes) if dtypes else None,
            other.kinds | self.kinds,
        )

    @property
    def scale(self) -> float:
        """Standard deviation of the labels."""
        return math.sqrt(self.square / self.rows) if self.rows else 0.0

    def check(self, target: str) -> None:
        """Refuse labels that are numbers in some pieces and text in others."""
        text = next((kind for kind in self.kinds if kind.endswith("text")), None)
        number = next((kind for kind in self.kinds if not kind.endswith("text")), None)
        if text and number:
            raise DataError(
                f"the labels {target} are numbers in {self.kinds[number]} and text in {self.kinds[text]};"
                " make them all numbers or all text"
            )

    def classes(self, target: str) -> NDArray[Any]:
        """Return the distinct labels, sorted."""
        if self.distinct is None:
            raise DataError(f"{target} has more than {MAX_CLASSES} different values: these are numbers, not classes")
        values = sorted(self.distinct)
        return np.array(values) if self.dtype is None else np.array(values, dtype=self.dtype)
