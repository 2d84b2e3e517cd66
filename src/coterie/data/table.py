"""Tables of a fit: read, encoded and grouped by agent.

:meth:`Table.learn` prepares the rows of ``fit``; :meth:`Table.more` encodes the rows of ``predict`` in the same way.
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
    """Encoded rows, their agents, and the encoding of the columns."""

    X: Any  # (rows, p) encoded columns; csr_array if the input was sparse
    codes: Integers  # number of the agent of each row; -1 for an agent that was not in the fit
    members: tuple[Hashable, ...]  # id of each agent
    columns: Columns  # encoding of the columns
    agent_column: str | None  # name of the column of ids, if ids were a column
    y: NDArray[Any] | None = None  # labels as given, none missing
    weight: NDArray[np.float64] | None = None
    ids: Any = None  # id of the agent of each row, as given

    def where(self, row: int) -> str:
        """Name a row and its agent in an error."""
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

        If `drop` is False, uninformative columns are kept, and missing values are refused in arrays; with
        ``missing="refuse"``, only columns of numbers without missing values are accepted.

        X may be a source of rows: `y` and `agents` are then names of columns. In a frame, they may be names of columns,
        too.
        """
        if is_source(X):
            from .sources.survey import collected  # pandas, which arrays do without

            if sample_weight is not None:
                raise DataError("sample_weight needs rows in memory: leave it out where X is a source of rows")
            X, y, agents, known = collected(X, y, agents, owner)
            members = known if members is None else members
        X, y, _ = split_target(X, y)
        features, ids, name = split_ids(X, agents)
        missing = missing if drop or is_frame(features) else "refuse"
        columns, matrix = Columns.learn(features, missing, owner, drop, partial(named_row, ids))
        if missing == "refuse" and not columns.is_identity:
            from .matrix import as_features

            as_features(features)  # refuses a column of text, with its name
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
        """Encode new rows with the given columns; agents that are not in `number` get the code -1.

        Without ids, rows belong to the only agent. A frame may still contain `target`, the labels of the fit.
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
    """Name a row and its agent in an error."""
    return f"row {row}" if ids is None else f"row {row} (agent {as_agent_ids(ids).tolist()[row]!r})"


def split_target(X: Any, y: Any) -> tuple[Any, Any, str | None]:
    """Return features, labels, and the name of the column of labels if `y` is one; this column is removed from a frame.

    A source is returned unchanged: the column is removed when the source is read.
    """
    if not isinstance(y, str):
        return X, y, None
    if is_source(X):
        return X, y, y
    if not is_frame(X):
        raise DataError(
            f"y={y!r} is the name of a column, which needs a DataFrame or a source of rows, but X is "
            f"{type(X).__name__}: pass the labels themselves"
        )
    features, [labels] = split_frame(X, y)
    return features, labels, y


def without_target(X: Any, target: str | None, batches: bool = False) -> Any:
    """Return rows to predict: a frame without the column that held the labels at fit.

    Refuses a source of rows; `batches` says whether the message suggests a Ray Dataset.
    """
    if is_source(X):
        place = repr(fspath(X)) if isinstance(X, str | PathLike) else "..."
        more = f", or predict them in batches: predict(ray.data.read_parquet({place}))" if batches else ""
        raise DataError(
            "X is a source of rows, but rows in memory are needed here: read them first, with "
            f"pandas.read_parquet({place}){more}"
        )
    if target is None or not is_frame(X) or target not in list(X.columns):
        return X
    return split_frame(X, target)[0]


def more_labelled(
    X: Any, y: Any, agents: Any, agent_column: str | None, target: str | None, owner: str
) -> tuple[Any, Any, Any]:
    """Return features, labels and agents of more rows in memory.

    Rows and names may be given as for a fit. A frame may contain the labels of the fit, `target`, even if other labels
    are given.
    """
    if is_source(X):
        from .sources.survey import collected  # pandas, which arrays do without

        named = agents is None and not isinstance(getattr(X, "data", X), Mapping)
        X, y, agents, _ = collected(X, y, agent_column if named else agents, owner)
    X, y, _ = split_target(X, y)
    return without_target(X, target), y, agents


def labels_of(y: Any, rows: int, codes: Integers, members: tuple[Hashable, ...]) -> NDArray[Any]:
    """Return the labels, checked: one for each row, none missing."""
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
    """Return the weights, checked: one for each row, finite and not negative; None if none are given."""
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
