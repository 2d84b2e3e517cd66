"""Store arrays and json values as the bytes of one npz file, and nested states as arrays by path.

Content of such a file is never executed. Files are written whole or not at all (:mod:`coterie._files`), and every
defect of a file that is read raises one error with a clear message (:func:`reading`).
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ._files import plain
from .errors import CoterieError, DataError

#: Exceptions that reading and parsing a damaged file may raise.
DAMAGE = (ValueError, KeyError, IndexError, TypeError, OSError, EOFError, BadZipFile)


@contextlib.contextmanager
def reading(what: str, refusal: type[CoterieError] = DataError) -> Iterator[None]:
    """Raise `refusal` with the words `what` for any exception of a damaged file; a DataError passes unchanged."""
    try:
        yield
    except (DataError, refusal):
        raise
    except DAMAGE as error:
        raise refusal(f"{what}: {error!r}") from None


def check_format(what: str, found: Any, known: int, *older: int) -> None:
    """Refuse a file whose format this version does not know."""
    if found not in (known, *older):
        raise DataError(
            f"{what} of format {found!r}; this version of coterie reads format {known}: read it with the version that "
            "wrote it, or make it anew"
        )


def packed(arrays: Mapping[str, Any], text: Any = None, name: str = "json") -> bytes:
    """Return the content of a file with the arrays and, under `name`, a json value."""
    for each, array in arrays.items():
        if np.asarray(array).dtype.hasobject:
            raise DataError(f"{each} holds {np.asarray(array).dtype} values: only numbers can be saved")
    buffer = io.BytesIO()
    strict = partial(plain, text=False)  # otherwise other values would be read back as text
    described: dict[str, Any] = {} if text is None else {name: np.array(json.dumps(text, default=strict))}
    np.savez(buffer, **described, **arrays)
    return buffer.getvalue()


def unpacked(content: bytes, name: str = "json") -> tuple[dict[str, Any], Any]:
    """Return the arrays, and the json value under `name` (None if there is none)."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = {each: file[each] for each in file.files}
    text = arrays.pop(name, None)
    return arrays, None if text is None else json.loads(text.item() if text.ndim == 0 else text.tobytes())


# -- states as arrays by path -----------------------------------------------------------------------------------------


def flat(path: str, value: Any, joint: str = "/", leave: Collection[str] = ()) -> Iterator[tuple[str, np.ndarray]]:
    """Yield path and array for each array in nested tuples, lists and dictionaries; names in `leave` are skipped."""
    if not isinstance(value, tuple | list | dict):
        yield path, np.asarray(value)
        return
    for name, part in _parts(value):
        if name not in leave:
            yield from flat(f"{path}{joint}{name}", part, joint, leave)


def filled(
    path: str, like: Any, restored: Callable[[str, Any], Any], joint: str = "/", leave: Collection[str] = ()
) -> Any:
    """Return a state of the form of ``like``, with each array replaced by ``restored(path, array)``."""
    if not isinstance(like, tuple | list):
        return restored(path, like)
    parts = [
        part if name in leave else filled(f"{path}{joint}{name}", part, restored, joint, leave)
        for name, part in _parts(like)
    ]
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        return iter(value.items())
    return zip(getattr(value, "_fields", range(len(value))), value, strict=True)
