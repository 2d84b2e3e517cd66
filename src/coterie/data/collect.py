"""All rows of a source in one place, as ``fit`` takes them, where there is no cluster to work on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from .frames import is_frame
from .ids import Integers
from .labels import Labels
from .pieces import Rows
from .survey import Survey, survey


def collected(source: Any, target: Any, agents: Any, owner: str = "collected") -> tuple[Any, Any, Any, tuple[Any, ...]]:
    """Features, labels, agents and members of a source: rows as they are, none of them encoded.

    The agents are the name of a column of the features where a column or a partition holds them, else an id for each
    row. Bad agents are refused or left out as the source says.
    """
    found = survey(source, target=target, agents=agents, labels="any", owner=owner)
    tables: list[Any] = []
    y: list[Any] = []
    codes: list[Any] = []
    order: list[Any] = []

    def use(rows: Rows, numbers: Integers) -> None:
        tables.append(_named(rows.X, found))
        y.append(Labels.read(rows.y).values)
        codes.append(numbers)
        order.append(rows.order)

    found.each(np.arange(found.n), use)
    place = np.argsort(np.concatenate(order), kind="stable")
    X, labels, number = _joined(tables, found), np.concatenate(y)[place], np.concatenate(codes)[place]
    X = X.iloc[place].reset_index(drop=True) if is_frame(X) else X[place]
    ids = [found.members[k] for k in number.tolist()]
    if found.agent_column is None:
        return X, labels, ids, found.members
    return X.assign(**{found.agent_column: ids}), labels, found.agent_column, found.members


def _named(X: Any, found: Survey) -> Any:
    """A frame of pandas if columns have names, else the array."""
    if is_frame(X):
        X = X[list(found.names or ())]
        return X if isinstance(X, pd.DataFrame) else X.to_pandas()
    if found.names is None or found.is_sparse:
        return X
    return pd.DataFrame(X, columns=list(found.names))


def _joined(tables: list[Any], found: Survey) -> Any:
    if found.is_sparse:
        return sparse.vstack([sparse.csr_array(each) for each in tables], format="csr")
    if found.names is None:
        return np.concatenate(tables)
    # Frames of different categories would lose them.
    for name, kind in zip(found.names, found.columns.kinds, strict=True):
        if kind == "category":
            tables = [table.assign(**{name: table[name].astype(object)}) for table in tables]
    joined = pd.concat(tables, ignore_index=True)
    declared = [name for name, kind in zip(found.names, found.columns.kinds, strict=True) if kind == "category"]
    return joined.assign(**{name: joined[name].astype("category") for name in declared})
