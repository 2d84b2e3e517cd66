"""Records that are signed, sent and kept. Their types state their bounds, which are checked when a record is made or
read.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from ..._files import MAX_BYTES, read_bounded
from ...errors import DataError, InputError, ParameterError

#: Largest magnitude of a whole number that every reader of JSON and msgpack represents exactly.
MAX_EXACT_INTEGER = 2**53
_MAX_FLOAT = 1.7976931348623157e308

Finite = Annotated[float, Meta(gt=-_MAX_FLOAT, lt=_MAX_FLOAT)]
Positive = Annotated[float, Meta(gt=0, lt=_MAX_FLOAT)]
Count = Annotated[int, Meta(ge=1, le=MAX_EXACT_INTEGER)]
PublicKey = Annotated[bytes, Meta(min_length=32, max_length=32)]

Record = TypeVar("Record", bound=msgspec.Struct)

#: Plain English for the type names in msgspec's error messages.
_WORDS = {
    "float": "a number",
    "int": "a whole number",
    "str": "text",
    "bool": "true or false",
    "bytes": "bytes",
    "array": "a list",
    "object": "names with values",
    "null": "nothing",
}


def made(kind: type[Record], fields: dict[str, Any]) -> Record:
    """Make a record from its fields. Raise a ParameterError that names the first field with a bad value."""
    given = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
    return _checked(partial(msgspec.convert, given, kind), kind, ParameterError)


def encoded(record: msgspec.Struct) -> bytes:
    """Return a record in msgpack. Equal records give equal bytes."""
    return msgspec.msgpack.encode(record, order="deterministic")


def to_json(record: msgspec.Struct) -> bytes:
    """Return a record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def from_json(content: bytes, kind: type[Record], what: str) -> Record:
    """Read a record from JSON that others have written. `what` names the content in an error."""
    check_length(content, what)
    _refuse_other_format(content, kind, what)
    return _checked(partial(msgspec.json.decode, content, type=kind), kind, DataError, f"{what} is damaged: ")


def _refuse_other_format(content: bytes, kind: type[Any], what: str) -> None:
    """Refuse a record of another format version, before its fields are reported as damaged."""
    known = next((field.default for field in msgspec.structs.fields(kind) if field.name == "format"), None)
    found = known
    with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
        found = msgspec.json.decode(content, type=dict[str, Any]).get("format", known)
    if type(found) is int and found != known:
        raise DataError(
            f"{what} is of format {found}, and this version of coterie reads format {known}: go on with the version "
            "that wrote it, or found the group anew (coterie group create)"
        )


def read_json(path: Path, kind: type[Record], limit: int = MAX_BYTES) -> Record:
    """Read the record in a file."""
    return from_json(read_bounded(path, limit=limit), kind, str(path))


def from_msgpack(content: bytes, kind: type[Record], what: str, refusal: type[InputError] = DataError) -> Record:
    """Read a record from msgpack: see :func:`from_json`."""
    return _checked(partial(msgspec.msgpack.decode, content, type=kind), kind, refusal, f"{what} is damaged: ")


def check_length(content: bytes, what: str) -> None:
    """Refuse content that is longer than MAX_BYTES."""
    if len(content) > MAX_BYTES:
        raise DataError(f"{what} takes {len(content)} bytes, more than {MAX_BYTES}")


def _checked(make: Callable[[], Record], kind: type[Any], refusal: type[InputError], before: str = "") -> Record:
    """Call `make`, and turn every failure into one kind of error that names the field and the reason."""
    try:
        return make()
    except msgspec.ValidationError as error:
        raise refusal(f"{before}{_explained(str(error), kind)}") from None
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise refusal(f"{before}{error!s:.300}") from None


def _choices(annotation: Any) -> list[str]:
    """Return the values or the type that a field accepts, in words."""
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    if get_origin(annotation) is Annotated:
        return [_WORDS.get(getattr(get_args(annotation)[0], "__name__", ""), "something else")]
    return [word for part in get_args(annotation) for word in _choices(part)]


def _explained(text: str, kind: type[Any]) -> str:
    """Rewrite msgspec's message about a bad record: the field first, then the accepted values."""
    reason, _, place = text.rpartition(" - at ") if " - at " in text else (text, "", "")
    place = re.sub(r"[`$]", "", place).replace("in .", "in ").lstrip(".")
    if reason.startswith("Invalid enum value "):
        known = next((_choices(field.type) for field in msgspec.structs.fields(kind) if field.name == place), [])
        found = reason.removeprefix("Invalid enum value ")
        return f"{place}={found} is not known: choose one of {', '.join(known)}"
    found = re.sub(r"`([\w |]+)`", lambda words: " or ".join(_WORDS.get(w, w) for w in words[1].split(" | ")), reason)
    return f"{place}: {found[:1].lower()}{found[1:]:.300}" if place else found[:300]
