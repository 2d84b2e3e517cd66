"""A table on its way into a fit: read, encoded and grouped by agent, once.

:meth:`Table.learn` is the only door of ``fit``; ``predict`` applies the same columns again (:meth:`Table.more`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .columns import Columns
from .frames import split_ids
from .ids import Integers, agent_codes, agent_numbers
from .source import is_source


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of numbers, whose they are, and how the columns became numbers."""

    X: Any  # (rows, p) encoded columns; csr_array if the input was sparse
    codes: Integers  # number of the agent of each row; -1 for one that was not there at fit
    members: tuple[Hashable, ...]  # id of each agent
    columns: Columns  # to encode more rows in the same way
    agent_column: str | None  # the column that held the ids, if it was one
    y: NDArray[Any] | None = None  # labels as they were given, none missing
    weight: NDArray[np.float64] | None = None

    @classmethod
    def learn(
        cls,
        X: Any,
        y: Any,
        agents: Any = None,
        members: Any = None,
        missing: str = "fill",
        sample_weight: Any = None,
        owner: str = "Table",
    ) -> Self:
        """Read, encode and group the rows of a fit; `owner` is the estimator's name, for messages.

        Rows may be in files, or anywhere else that a source names: `y` is then a column, and so is `agents`.
        """
        if is_source(X):
            from .collect import collected  # pandas, which arrays do without

            if sample_weight is not None:
                raise DataError("sample_weight goes with rows, row by row: leave it out where X is a source of rows")
            X, y, agents, known = collected(X, y, agents, owner)
            members = known if members is None else members
        features, ids, name = split_ids(X, agents)
        columns, matrix = Columns.learn(features, missing, owner)
        rows = matrix.shape[0]
        codes, ordered = agent_codes(ids, members, rows)
        labels = labels_of(y, rows, codes, ordered)
        return cls(matrix, codes, ordered, columns, name, labels, weights_of(sample_weight, rows))

    @classmethod
    def more(
        cls,
        X: Any,
        agents: Any,
        columns: Columns,
        number: Mapping[Hashable, int],
        agent_column: str | None,
        owner: str = "Table",
    ) -> Self:
        """New rows, encoded as the columns say; agents that are not in `number` have the code -1.

        Without ids, rows are those of the only agent.
        """
        features, ids, _ = split_ids(X, agents, agent_column)
        matrix = columns.apply(features, owner)
        rows, members = matrix.shape[0], tuple(number)
        if ids is not None:
            return cls(matrix, agent_numbers(ids, number, rows), members, columns, agent_column)
        if len(members) > 1:
            raise DataError(f"this model was fitted for {len(members)} agents: pass agents=..., one id for each row")
        return cls(matrix, np.zeros(rows, np.int64), members, columns, agent_column)


def labels_of(y: Any, rows: int, codes: Integers, members: tuple[Hashable, ...]) -> NDArray[Any]:
    """One label for each row, none of them missing."""
    if y is None:
        raise DataError("y is missing: requires y to be passed, but the target y is None")
    values = np.asarray(y)
    if values.ndim == 2 and values.shape[1] == 1:
        from sklearn.utils import column_or_1d

        values = column_or_1d(values, warn=True)
    if values.ndim != 1:
        raise DataError(f"y should be a 1d array, got an array of shape {values.shape} instead.")
    if len(values) != rows:
        raise DataError(
            f"y has {len(values)} labels for {rows} rows (inconsistent numbers of samples); one each is needed"
        )
    if values.dtype.kind == "c":
        raise DataError("Complex data not supported: y holds complex numbers")
    if values.dtype.kind == "f":
        missing = np.isnan(values)
    elif values.dtype.kind == "O":
        missing = np.array(
            [value is None or str(value) in ("<NA>", "nan", "NaT") for value in values.tolist()], dtype=bool
        )
    else:
        return values
    if missing.any():
        row = int(np.argmax(missing))
        raise DataError(
            f"row {row} (agent {members[codes[row]]!r}): the label is missing (NaN): fill it in, or drop the row"
        )
    if values.dtype.kind == "O":  # numbers in an object array, as frames have them
        plain = np.asarray(values.tolist())
        alike = plain.dtype.kind in "biuf" or all(isinstance(value, str) for value in values.tolist())
        values = plain if alike and plain.ndim == 1 else values
    return values


def weights_of(sample_weight: Any, rows: int) -> NDArray[np.float64] | None:
    """One weight for each row, finite and not negative; None if there are none."""
    if sample_weight is None:
        return None
    weight = np.asarray(sample_weight, dtype=np.float64)
    if weight.shape == ():
        weight = np.full(rows, float(weight))
    if weight.shape != (rows,):
        raise DataError(f"sample_weight.shape == {weight.shape}, expected {(rows,)}!")
    if not np.all(np.isfinite(weight)) or weight.min(initial=0.0) < 0.0:
        raise DataError("sample_weight must be finite and not negative")
    if rows and weight.max() == 0.0:
        raise DataError("sample_weight is zero for all rows: there is nothing to learn from")
    return weight
