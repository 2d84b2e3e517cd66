"""Frames of pandas and polars: told by their types, so that neither library is imported for people who use neither."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any

from ..errors import DataError


def is_polars(value: Any) -> bool:
    """Whether it is one of polars' objects; whoever hands us one has loaded polars already."""
    return type(value).__module__.partition(".")[0] == "polars"


def is_frame(value: Any) -> bool:
    """Whether it is a DataFrame of pandas or polars; a LazyFrame is refused."""
    if is_polars(value):
        if type(value).__name__ == "LazyFrame":
            raise DataError("X is a polars LazyFrame; call .collect() first")
        return type(value).__name__ == "DataFrame"
    frame = getattr(sys.modules.get("pandas"), "DataFrame", None)
    return frame is not None and isinstance(value, frame)


def split_frame(X: Any, *names: Hashable) -> tuple[Any, list[Any]]:
    """A frame without the named columns, and these, in the order asked for; `X` itself if none is named."""
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
    # By position: a pandas frame may repeat the names of its other columns.
    rest = X[:, others] if is_polars(X) else X.iloc[:, others]
    return rest, [X[name] for name in names]


def split_ids(X: Any, agents: Any, column: str | None = None) -> tuple[Any, Any, str | None]:
    """Features, agent ids, and the name of the column that held them, if it was one.

    `agents` are ids, or the name of a column. Without it, `column` holds them, if it is given and X is a frame.
    """
    if agents is None and column is not None and hasattr(X, "columns"):
        agents = column
    if isinstance(agents, str):
        features, [ids] = split_frame(X, agents)
        return features, ids, agents
    return X, agents, None


def hint(name: Any, known: Sequence[Any]) -> str:
    """What may have been meant instead of an unknown name, or a few examples."""
    # Only the first ones are compared: the search is slow, and an error should not be.
    texts = {str(value): value for value in islice(known, 10_000)}
    close = get_close_matches(str(name), texts)
    if close:
        return "did you mean " + " or ".join(repr(texts[text]) for text in close) + "?"
    few = ", ".join(map(repr, known[:5]))
    return f"there are {len(known)}: {few}" + (", ..." if len(known) > 5 else "")
