"""Frames of pandas and polars, recognised by their types without importing either library."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any

from ..errors import DataError


def is_polars(value: Any) -> bool:
    """Return whether a value is an object of polars, without importing polars."""
    return type(value).__module__.partition(".")[0] == "polars"


def is_frame(value: Any) -> bool:
    """Return whether a value is a DataFrame of pandas or polars; a LazyFrame is refused."""
    if is_polars(value):
        if type(value).__name__ == "LazyFrame":
            raise DataError("X is a polars LazyFrame; call .collect() first")
        return type(value).__name__ == "DataFrame"
    frame = getattr(sys.modules.get("pandas"), "DataFrame", None)
    return frame is not None and isinstance(value, frame)


def split_frame(X: Any, *names: Hashable) -> tuple[Any, list[Any]]:
    """Return a frame without the named columns, and these columns in the given order; `X` itself without names."""
    if not names:
        return X, []
    if not is_frame(X):
        raise DataError(f"the column name {names[0]!r} needs a DataFrame, but X is {type(X).__name__}")
    columns = list(X.columns)
    for name in names:
        if (count := columns.count(name)) != 1:
            found = f"column {name!r} occurs {count} times" if count else f"no column {name!r}"
            raise DataError(f"{found}; {hint(name, columns)}")
    others = [j for j, name in enumerate(columns) if name not in names]
    # Columns are taken by position: a pandas frame may repeat the names of its other columns.
    rest = X[:, others] if is_polars(X) else X.iloc[:, others]
    return rest, [X[name] for name in names]


def split_ids(X: Any, agents: Any, column: str | None = None) -> tuple[Any, Any, str | None]:
    """Return features, agent ids, and the name of the column of ids (None if ids are not a column).

    `agents` are ids, or the name of a column. If `agents` is None and X is a frame, `column` names the column of ids.
    """
    if agents is None and column is not None and hasattr(X, "columns"):
        agents = column
    if isinstance(agents, str):
        features, [ids] = split_frame(X, agents)
        return features, ids, agents
    return X, agents, None


def hint(name: Any, known: Sequence[Any]) -> str:
    """Return a hint for an unknown name: similar known names, or a few examples."""
    # Only the first names are compared, since the search is slow.
    texts = {str(value): value for value in islice(known, 10_000)}
    close = get_close_matches(str(name), texts)
    if close:
        return "did you mean " + " or ".join(repr(texts[text]) for text in close) + "?"
    few = ", ".join(map(repr, known[:5]))
    return f"there are {len(known)}: {few}" + (", ..." if len(known) > 5 else "")
