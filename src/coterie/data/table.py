"""A table on its way into a fit: read, encoded and grouped by agent, once.

:meth:`Table.learn` is the only door of ``fit``; ``predict`` applies the same columns again (:meth:`Table.more`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .columns import Columns
from .frames import is_frame, split_frame, split_ids
from .ids import Integers, agent_codes, agent_numbers, as_agent_ids
from .sources import is_source


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
    ids: Any = None  # of the agent of each row, as they were given

    def where(self, row: int) -> str:
        """A row, and whose it is, for an error."""
        return named_row(self.ids, row)

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
        drop: bool = True,
    ) -> Self:
        """Read, encode and group the rows of a fit; `owner` is the estimator's name, for messages.

        Without `drop`, columns that say nothing stay, and arrays, whose columns have no names, must not have gaps;
        ``missing="refuse"`` takes nothing but whole columns of numbers.

        Rows may be in files, or anywhere else that a source names: `y` is then a column, and so is `agents`. Of a frame
        both may be columns, too.
        """
        if is_source(X):
            from .sources.survey import collected  # pandas, which arrays do without

            if sample_weight is not None:
                raise DataError("sample_weight goes with rows, row by row: leave it out where X is a source of rows")
            X, y, agents, known = collected(X, y, agents, owner)
            members = known if members is None else members
        X, y, _ = split_target(X, y)
        features, ids, name = split_ids(X, agents)
        missing = missing if drop or is_frame(features) else "refuse"
        columns, matrix = Columns.learn(features, missing, owner, drop, partial(named_row, ids))
        if missing == "refuse" and not columns.is_identity:
            from .matrix import as_features

            as_features(features)  # refuses a column of text by its name
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
        target: str | None = None,
    ) -> Self:
        """New rows, encoded as the columns say; agents that are not in `number` have the code -1.

        Without ids, rows are those of the only agent. A frame may still hold `target`, the labels of the fit.
        """
        features, ids, _ = split_ids(without_target(X, target, batches=True), agents, agent_column)
        matrix = columns.apply(features, owner, partial(named_row, ids))
        rows, members = matrix.shape[0], tuple(number)
        if ids is not None:
            return cls(matrix, agent_numbers(ids, number, rows), members, columns, agent_column, ids=ids)
        if len(members) > 1:
            raise DataError(f"this model was fitted for {len(members)} agents: pass agents=..., one id for each row")
        return cls(matrix, np.zeros(rows, np.int64), members, columns, agent_column)


def named_row(ids: Any, row: int) -> str:
    """A row, and whose it is, for an error."""
    return f"row {row}" if ids is None else f"row {row} (agent {as_agent_ids(ids).tolist()[row]!r})"


def split_target(X: Any, y: Any) -> tuple[Any, Any, str | None]:
    """Features, labels, and the name of the column that holds them if `y` is one: of a frame, it is taken out.

    A source is left as it is: whoever reads it takes the column out.
    """
    if not isinstance(y, str):
        return X, y, None
    if is_source(X):
        return X, y, y
    if not is_frame(X):
        raise DataError(
            f"y={y!r} is the name of a column, which needs a DataFrame, or a place where rows are; X is "
            f"{type(X).__name__}: pass the labels themselves"
        )
    features, [labels] = split_frame(X, y)
    return features, labels, y


def without_target(X: Any, target: str | None, batches: bool = False) -> Any:
    """Rows to predict: a frame without the column that held the labels at fit, if it is still there.

    A place where rows are is refused; `batches` says whether a Ray Dataset would do.
    """
    if is_source(X):
        place = repr(fspath(X)) if isinstance(X, str | PathLike) else "..."
        more = f", or predict them in batches: predict(ray.data.read_parquet({place}))" if batches else ""
        raise DataError(
            "X says where rows are, and rows themselves are needed here: read them first, as by "
            f"pandas.read_parquet({place}){more}"
        )
    if target is None or not is_frame(X) or target not in list(X.columns):
        return X
    return split_frame(X, target)[0]


def more_labelled(
    X: Any, y: Any, agents: Any, agent_column: str | None, target: str | None, owner: str
) -> tuple[Any, Any, Any]:
    """More rows with labels, in memory, as they are after a fit: features, labels and agents.

    Rows and names may be given as for a fit. A frame may hold the labels of the fit, `target`, also where others are
    given.
    """
    if is_source(X):
        from .sources.survey import collected  # pandas, which arrays do without

        named = agents is None and not isinstance(getattr(X, "data", X), Mapping)
        X, y, agents, _ = collected(X, y, agent_column if named else agents, owner)
    X, y, _ = split_target(X, y)
    return without_target(X, target), y, agents


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
        row, count = int(np.argmax(missing)), int(missing.sum())
        more = f" and {count - 1:,} more" if count > 1 else ""
        raise DataError(
            f"row {row} (agent {members[codes[row]]!r}){more}: the label is missing (NaN): fill it in, or drop the row"
        )
    if values.dtype.kind == "O":  # numbers in an object array, as frames have them
        plain = np.asarray(values.tolist())
        alike = plain.dtype.kind in "biuf" or all(isinstance(value, str) for value in values.tolist())
        values = plain if alike and plain.ndim == 1 else values
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise DataError(f"row {row}: the label is {values[row]}: labels must be finite, not NaN or infinity")
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
