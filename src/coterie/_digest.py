"""A digest of what values hold, the same in every process: whether two problems, methods or settings are the same."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any


def digest_of(*values: Any) -> str:
    """A digest of values: numbers, text, arrays, containers, rules, and objects that say what they are made of.

    A class says so by ``digest_parts``, names of attributes. Of any other object only the class counts: where in memory
    it is, or what it has worked out by now, is not what it is.
    """
    state = hashlib.sha256()
    for value in values:
        for piece in _pieces(value):
            state.update(len(piece).to_bytes(8, "little"))
            state.update(piece)
    return state.hexdigest()


def _pieces(value: Any) -> Iterator[Any]:
    """What is hashed of a value, as bytes."""
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
    elif hasattr(value, "dtype") and hasattr(value, "tobytes"):  # an array of NumPy, or one of its numbers
        if value.dtype.hasobject:
            yield from _pieces(value.tolist())
            return
        yield f"{value.dtype.str}{value.shape}".encode()
        yield memoryview(value).cast("B") if _plain(value) else value.tobytes()
    elif hasattr(value, "columns") and hasattr(value, "to_dict"):  # a data frame
        yield from _pieces(value.to_dict("list"))


def _plain(array: Any) -> bool:
    """Whether the bytes of an array can be read where they are."""
    return bool(array.ndim and array.size and array.flags.c_contiguous)
