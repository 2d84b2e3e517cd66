"""Digests of the content of values, equal in every process: equal problems, methods and settings have equal digests."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any


def digest_of(*values: Any) -> str:
    """Return a digest of values: numbers, text, arrays, containers, rules, and objects with ``digest_parts``.

    ``digest_parts`` of a class are the names of the attributes to digest. Of an object without them only the class is
    digested: its address in memory and its cached results are ignored.
    """
    state = hashlib.sha256()
    for value in values:
        for piece in _pieces(value):
            state.update(len(piece).to_bytes(8, "little"))
            state.update(piece)
    return state.hexdigest()


def _pieces(value: Any) -> Iterator[Any]:
    """Yield the bytes of a value that are hashed."""
    kind = type(value)
    yield f"{kind.__module__}.{kind.__qualname__}".encode()
    if value is None or isinstance(value, bool | int | float | complex | str | range):
        yield repr(value).encode()
    elif isinstance(value, bytes):
        yield value
    elif hasattr(kind, "digest_parts"):
        for name in kind.digest_parts:
            yield from _pieces(getattr(value, name))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _pieces(key)
            yield from _pieces(each)
    elif isinstance(value, set | frozenset):
        yield "".join(sorted(map(digest_of, value))).encode()
    elif isinstance(value, tuple | list):
        yield str(len(value)).encode()
        for each in value:
            yield from _pieces(each)
    elif inspect.isroutine(value) or inspect.isclass(value):
        yield f"{value.__module__}.{value.__qualname__}".encode()
    elif dataclasses.is_dataclass(value):
        for each in dataclasses.fields(value):
            if each.compare:
                yield from _pieces(getattr(value, each.name))
    elif hasattr(value, "indptr"):  # a sparse matrix
        yield str(value.shape).encode()
        for part in (value.indptr, value.indices, value.data):
            yield from _pieces(part)
    elif hasattr(value, "dtype") and hasattr(value, "tobytes"):  # a NumPy array or scalar
        if value.dtype.hasobject:
            yield from _pieces(value.tolist())
            return
        yield f"{value.dtype.str}{value.shape}".encode()
        yield memoryview(value).cast("B") if _plain(value) else value.tobytes()
    elif hasattr(value, "columns") and hasattr(value, "to_dict"):  # a data frame
        yield from _pieces(value.to_dict("list"))


def _plain(array: Any) -> bool:
    """Whether the bytes of an array can be read without a copy."""
    return bool(array.ndim and array.size and array.flags.c_contiguous)
