"""Predict the rows of a Ray Dataset in batches, on the machines that hold its blocks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import DataError


def by_batches(model: Any, dataset: Any, agents: Any, method: str, names: list[str], **options: Any) -> Any:
    """Return the Dataset with the predictions of a method of the model, as new columns with the given names.

    The predictions are computed when the Dataset is read. The model is sent once to every machine.
    """
    import ray

    model._check_fitted()
    column = model._agent_column if agents is None else agents
    if column is None and len(model.agents_) > 1:
        raise DataError(
            f"this model was fitted for {len(model.agents_)} agents: pass agents=..., the column of the Dataset that "
            "names each row's agent"
        )
    if not (column is None or isinstance(column, str)):
        raise DataError(f"agents={column!r}: for a Ray Dataset, pass the name of a column")
    there = list(dataset.columns() or ())
    features = list(model.feature_names_in_) if hasattr(model, "feature_names_in_") else None
    wanted = [*(features or ()), *([] if column is None else [column])]
    missing = [name for name in wanted if name not in there]
    if missing:
        raise DataError(f"the Dataset has no column {missing[0]!r}; it has {', '.join(map(repr, there))}")
    if taken := [name for name in names if name in there]:
        raise DataError(f"the Dataset has a column {taken[0]!r} already: rename it, or drop it")
    given = (ray.put(model), method, names, features, column, options)
    return dataset.map_batches(_predicted, fn_args=given, batch_format="pandas")


@lru_cache(maxsize=1)
def _fetched(reference: Any) -> Any:
    """Return the model; a process that predicts many batches reads it once."""
    import ray

    return ray.get(reference)


def _predicted(
    frame: Any, model: Any, method: str, names: list[str], features: list[str] | None, column: str | None, options: Any
) -> Any:
    """Return one batch with the columns of predictions."""
    ids = None if column is None else frame[column]
    if features is None:  # fitted without column names: all columns except the agents' are features
        X: Any = (frame if column is None else frame.drop(columns=column)).to_numpy()
    else:
        X = frame[[name for name in features if name != column]]
    found = getattr(_fetched(model), method)(X, ids, **options)
    columns = found if isinstance(found, tuple) else np.asarray(found).reshape(len(frame), -1).T
    return frame.assign(**dict(zip(names, columns, strict=True)))
