"""Records that are signed, sent and kept: their types are their checks, made here or read from others."""

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

#: Whole numbers that every reader of json and msgpack takes for the same.
EXACT = 2**53
_LARGEST = 1.7976931348623157e308

Finite = Annotated[float, Meta(gt=-_LARGEST, lt=_LARGEST)]
Positive = Annotated[float, Meta(gt=0, lt=_LARGEST)]
Count = Annotated[int, Meta(ge=1, le=EXACT)]
PublicKey = Annotated[bytes, Meta(min_length=32, max_length=32)]

Record = TypeVar("Record", bound=msgspec.Struct)

#: What msgspec calls things, in plain English.
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
    """A record, if its fields are what its types say; a ParameterError names the first one that is not."""
    given = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
    return _checked(partial(msgspec.convert, given, kind), kind, ParameterError)


def encoded(record: msgspec.Struct) -> bytes:
    """A record in msgpack, always in the same bytes."""
    return msgspec.msgpack.encode(record, order="deterministic")


def to_json(record: msgspec.Struct) -> bytes:
    """A record as a file that people can read."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def from_json(content: bytes, kind: type[Record], what: str) -> Record:
    """A record that others have written as json, if it is one; `what` is what to call it in an error."""
    check_length(content, what)
    _refuse_other_format(content, kind, what)
    return _checked(partial(msgspec.json.decode, content, type=kind), kind, DataError, f"{what} is damaged: ")


def _refuse_other_format(content: bytes, kind: type[Any], what: str) -> None:
    """Refuse a record of another version of coterie, before its fields are called damaged."""
    known = next((field.default for field in msgspec.structs.fields(kind) if field.name == "format"), None)
    with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
        found = msgspec.json.decode(content, type=dict[str, Any]).get("format", known)
        if type(found) is int and found != known:
            raise DataError(
                f"{what} is of format {found}, and this version of coterie reads format {known}: go on with the version "
                "that wrote it, or found the group anew (coterie group create)"
            )


def read_json(path: Path, kind: type[Record], limit: int = MAX_BYTES) -> Record:
    """The record in a file."""
    return from_json(read_bounded(path, limit=limit), kind, str(path))


def from_msgpack(content: bytes, kind: type[Record], what: str, refusal: type[InputError] = DataError) -> Record:
    """The same of msgpack."""
    return _checked(partial(msgspec.msgpack.decode, content, type=kind), kind, refusal, f"{what} is damaged: ")


def check_length(content: bytes, what: str) -> None:
    """Refuse what is too long to be looked at."""
    if len(content) > MAX_BYTES:
        raise DataError(f"{what} takes {len(content)} bytes, more than {MAX_BYTES}")


def _checked(make: Callable[[], Record], kind: type[Any], refusal: type[InputError], before: str = "") -> Record:
    """The record, or, whatever goes wrong, one kind of error, which says where and why."""
    try:
        return make()
    except msgspec.ValidationError as error:
        raise refusal(f"{before}{_explained(str(error), kind)}") from None
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise refusal(f"{before}{error!s:.300}") from None


def _choices(annotation: Any) -> list[str]:
    """What a field may be, as far as that is a list of words."""
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    if get_origin(annotation) is Annotated:
        return [_WORDS.get(getattr(get_args(annotation)[0], "__name__", ""), "something else")]
    return [word for part in get_args(annotation) for word in _choices(part)]


def _explained(text: str, kind: type[Any]) -> str:
    """What msgspec says of a bad record, with the field first, and the names that a field may have."""
    reason, _, place = text.rpartition(" - at ") if " - at " in text else (text, "", "")
    place = re.sub(r"[`$]", "", place).replace("in .", "in ").lstrip(".")
    if reason.startswith("Invalid enum value "):
        known = next((_choices(field.type) for field in msgspec.structs.fields(kind) if field.name == place), [])
        found = reason.removeprefix("Invalid enum value ")
        return f"{place}={found} is not known: choose one of {', '.join(known)}"
    found = re.sub(r"`([\w |]+)`", lambda words: " or ".join(_WORDS.get(w, w) for w in words[1].split(" | ")), reason)
    return f"{place}: {found[:1].lower()}{found[1:]:.300}" if place else found[:300]
