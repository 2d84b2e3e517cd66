"""Numbering of agents: any hashable ids become codes 0..n-1. All ids are numbered by this module.

Lists of text or of integers, and arrays of integers, are numbered with NumPy; other ids need pandas.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .frames import is_frame, is_polars

Integers = NDArray[np.int64]

_PART = 1 << 20


def agent_codes(ids: Any, members: Any = None, rows: int | None = None) -> tuple[Integers, tuple[Hashable, ...]]:
    """Return the number of the agent of each row, and the agents in the order of their numbers.

    Without ids every row belongs to agent 0. By default, members are the distinct ids, sorted if they can be and
    otherwise in order of appearance. If members are given, ids that are not among them are refused.
    """
    codes, found = (np.zeros(rows or 0, np.int64), [0] if rows else []) if ids is None else distinct(ids, rows)
    if members is None:
        if not codes.size:
            raise DataError("X has no rows; give members=[...] to describe agents that have no data")
        ordered = in_order(found)
    else:
        ordered = _members(members)
    if ordered == tuple(found):
        return codes, ordered
    numbers = _numbers(codes, found, {member: k for k, member in enumerate(ordered)})
    if numbers.size and numbers.min() < 0:
        row = int(np.argmax(numbers < 0))
        raise DataError(f"row {row} (agent {found[codes[row]]!r}): this agent is not among members=")
    return numbers, ordered


def is_sorted(codes: NDArray[Any]) -> bool:
    """Return whether numbers never decrease: the rows of each agent are then side by side, and agents in order."""
    parts = (codes[first : first + 1 + _PART] for first in range(0, codes.size, _PART))
    return all(bool(np.all(part[1:] >= part[:-1])) for part in parts)


def grouping(codes: Integers, n: int) -> NDArray[Any]:
    """Return ``np.argsort(codes, kind="stable")`` for numbers below n, in time proportional to the rows."""
    from scipy import sparse

    rows = codes.size
    # Row r of this matrix has one entry, in the column of its agent. Converted to columns, the rows of an agent are
    # side by side, in the given order; SciPy converts by counting, with int32 where sufficient.
    alike = sparse.csr_array((np.ones(rows, np.bool_), codes, np.arange(rows + 1)), shape=(rows, n))
    return alike.tocsc().indices


def agent_numbers(ids: Any, number: Mapping[Hashable, int], rows: int | None = None) -> Integers:
    """Return the numbers of known agents, and -1 for others; a missing id is an error."""
    return _numbers(*distinct(ids, rows), number)


def _numbers(codes: Integers, found: Sequence[Hashable], number: Mapping[Hashable, int]) -> Integers:
    """Translate codes of distinct ids to numbers of agents."""
    return np.array([number.get(value, -1) for value in found], np.int64)[codes]


def distinct(ids: Any, rows: int | None = None, what: str = "agents") -> tuple[Integers, list[Any]]:
    """Return the code of each id, and the distinct ids as Python scalars: sorted, or in order of appearance."""
    light = _light(ids)
    if light is None:
        return distinct_of_any_kind(as_agent_ids(ids, rows, what), what)
    _check_length(light, rows, what)
    return distinct_of_one_kind(light)


def _light(ids: Any) -> NDArray[Any] | list[Any] | None:
    """Return ids that NumPy can number (integers, or a list of strings); None for other ids."""
    if type(ids) is np.ndarray and ids.ndim == 1:
        if ids.dtype.kind in "iu":
            return ids
        if ids.dtype.kind not in "UO":
            return None
        ids = ids.tolist()
    elif type(ids) not in (list, tuple, range):
        return None
    kinds = set(map(type, ids))
    return list(ids) if kinds in ({int}, {str}, set()) else None


def distinct_of_one_kind(ids: NDArray[Any] | list[Any]) -> tuple[Integers, list[Any]]:
    """Return the code of each id, and the distinct ids, sorted."""
    if isinstance(ids, list):
        found = sorted(set(ids))
        number = {value: k for k, value in enumerate(found)}
        return np.fromiter(map(number.__getitem__, ids), np.int64, len(ids)), found
    if not ids.size:
        return np.zeros(0, np.int64), []
    if is_sorted(ids):  # as in a table that is grouped by agent: no sorting, and little memory
        begin = np.concatenate([[0], np.flatnonzero(ids[1:] != ids[:-1]) + 1])
        values = ids[begin]
        if ids.dtype == np.int64 and np.array_equal(values, np.arange(begin.size)):
            return ids, values.tolist()
        return np.repeat(np.arange(begin.size), np.diff(begin, append=ids.size)), values.tolist()
    low, span = ids.min(), int(ids.max()) - int(ids.min())
    if span > 4 * ids.size + 1000:
        values, codes = np.unique(ids, return_inverse=True)
        return codes.astype(np.int64, copy=False), values.tolist()
    # A small range of ids needs no sorting. uint64 is subtracted in its own type, since int64 may not hold it.
    shifted = (ids - low).astype(np.int64) if ids.dtype == np.uint64 else ids.astype(np.int64) - np.int64(low)
    present = np.zeros(span + 1, np.bool_)
    present[shifted] = True
    first = int(low)
    return (np.cumsum(present) - 1)[shifted], [first + k for k in np.flatnonzero(present).tolist()]


def as_agent_ids(values: Any, rows: int | None = None, what: str = "agents") -> NDArray[Any]:
    """Return agent ids as a 1-D array; a list is never coerced, so that ``[1, "a"]`` does not become ``["1", "a"]``."""
    if values is None:
        return np.zeros(rows or 0, dtype=np.int64)
    if np.ma.isMaskedArray(values):
        values = values.tolist()  # None where masked
    elif is_polars(values) and not is_frame(values) and not values.dtype.is_numeric():
        values = values.to_list()  # to_numpy would turn dates into datetime64
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        ids = np.fromiter(values, dtype=object, count=len(values))
    elif hasattr(values, "__array__"):
        ids = np.asarray(values)
    else:
        raise DataError(f"{what} must be a list, an array or a Series of ids, got {type(values).__name__}")
    if ids.ndim != 1:
        raise DataError(f"{what} must be 1-D, one id per row; got shape {ids.shape}")
    _check_length(ids, rows, what)
    return ids


def _check_length(ids: NDArray[Any] | list[Any], rows: int | None, what: str) -> None:
    if rows is not None and len(ids) != rows:
        raise DataError(f"{what} has {len(ids)} ids for {rows} rows; one per row is needed")


def distinct_of_any_kind(ids: NDArray[Any], what: str) -> tuple[Integers, list[Any]]:
    """Return the code of each id, and the distinct ids in order of appearance."""
    import pandas as pd

    if ids.dtype.kind == "f":
        ids = ids.astype(np.float64)  # pandas has no hash table for half precision
    elif ids.dtype.kind not in "biuM":
        ids = ids.astype(object)
    try:
        codes, uniques = pd.factorize(ids)
    except TypeError:
        row = next(row for row, value in enumerate(ids) if not _is_hashable(value))
        raise DataError(
            f"{what}: the id at row {row} is {ids[row]!r}, which is not hashable;"
            " use a number, a string or a tuple of such"
        ) from None
    if (codes < 0).any():
        raise DataError(f"{what}: the id at row {np.argmax(codes < 0)} is missing; fill it in, or drop the row")
    # A pandas index converts datetime64 to Timestamps; with its dtype given, it keeps objects unchanged.
    values = pd.Index(uniques, dtype=uniques.dtype).tolist()
    return codes.astype(np.int64), [_plain(value) for value in values]


def _is_hashable(value: Any) -> bool:
    # A tuple that contains a list passes isinstance(value, Hashable), but hash() fails.
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _plain(value: Any) -> Any:
    import pandas as pd

    if isinstance(value, np.datetime64):
        return pd.Timestamp(value)  # .item() is an integer for nanoseconds
    return value.item() if isinstance(value, np.generic) else value


def in_order(ids: list[Any]) -> tuple[Hashable, ...]:
    """Return ids sorted if they have a total order, otherwise unchanged."""
    try:
        ordered = sorted(ids)
        # Sets are compared by inclusion, without an error: their sorted order is meaningless.
        total = all(map(operator.lt, ordered, ordered[1:]))
    except TypeError:
        total = False
    return tuple(ordered if total else ids)


def _members(values: Any) -> tuple[Hashable, ...]:
    """Return every agent in the given order; refuse repeated agents."""
    codes, found = distinct(values, what="members")
    if not found:
        raise DataError("members is empty; at least one agent is needed")
    if len(found) < len(codes):
        _, first = np.unique(codes, return_index=True)
        again = int(np.setdiff1d(np.arange(len(codes)), first)[0])
        raise DataError(f"members holds {found[codes[again]]!r} twice")
    return tuple(found[code] for code in codes.tolist())


class Written(str):
    """An id read as text from a csv file or a path; whether it is a number is decided once all ids are known."""

    __slots__ = ()


#: Ids that are converted to numbers. "007", "1e5" and numbers of twenty digits stay text.
WRITTEN_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,14})(?:\.\d{1,9})?")


def reading_of(ids: Iterable[Hashable]) -> type:
    """Return the type of ids read as text: int or float if all are written as numbers and no other id is text."""
    kind: type = int
    for value in ids:
        if isinstance(value, Written):
            if not WRITTEN_NUMBER.fullmatch(value.strip()):
                return str
            kind = float if "." in value else kind
        elif isinstance(value, str):
            return str
    return kind


def as_read(value: Hashable, kind: type) -> Hashable:
    """Convert an id read as text to the type that :func:`reading_of` returned; return other ids unchanged."""
    return kind(value) if isinstance(value, Written) else value


def packed_id(agent: Any) -> Any:
    """Return an agent id as JSON."""
    if isinstance(agent, (str, int, float, bool)):
        return agent
    if isinstance(agent, tuple):
        return [packed_id(part) for part in agent]
    raise DataError(f"agent id {agent!r} is a {type(agent).__name__}: only text, numbers and tuples can be saved")


def unpacked_id(agent: Any) -> Any:
    """Return an agent id from JSON."""
    return tuple(unpacked_id(part) for part in agent) if isinstance(agent, list) else agent
