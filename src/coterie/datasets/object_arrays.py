"""Reader of arrays in Python objects in npz files, which never executes their content.

``np.savez(file, data={"x": x, "y": y})`` stores a pickle: a program for a stack machine that may call any function.
This reader interprets only those instructions that NumPy's own arrays need, and neither calls nor looks up functions:
the three names that such a program may contain are compared as text. All other content is refused.
"""

from __future__ import annotations

import io
import pickletools
import re
import zipfile
import zlib
from dataclasses import dataclass
from tokenize import TokenError
from typing import Any

import numpy as np

from ..errors import DataError

__all__ = ["read_npz"]

#: Names of functions in pickled arrays, before NumPy 2 and since.
MAKE_ARRAY = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
MAKE_NUMBER = ("numpy.core.multiarray scalar", "numpy._core.multiarray scalar")
ARRAY, DTYPE = "numpy ndarray", "numpy dtype"
#: Types of numbers: float, integer, unsigned, bool.
NUMBER = re.compile(r"[fiub][1248]")

CONSTANTS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
BYTES = ("SHORT_BINBYTES", "BINBYTES", "BINBYTES8")
SINGLE = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
MARK = object()
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True)
class _Name:
    text: str


class _Dtype:
    def __init__(self, code: str) -> None:
        self.code, self.order = code, "="

    def of_numbers(self) -> np.dtype:
        if not NUMBER.fullmatch(self.code):
            raise DataError(f"an array has type {self.code!r}, expected numbers")
        return np.dtype(self.code).newbyteorder({"<": "<", ">": ">"}.get(self.order, "="))  # type: ignore[arg-type]


class _Array:
    """An array that the program has created, whose shape, type and content follow later."""

    content: Any = None


def read_npz(content: bytes) -> dict[str, Any]:
    """Return the entries of an npz file: arrays of numbers, or dictionaries of arrays and of lists of arrays."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        return {name.removesuffix(".npy"): _read_npy(archive.read(name)) for name in archive.namelist()}
    except (OSError, ValueError, TypeError, EOFError, SyntaxError, TokenError, zipfile.BadZipFile, zlib.error) as error:
        raise error if isinstance(error, DataError) else DataError(f"it cannot be read: {error}") from error


def _read_npy(content: bytes) -> Any:
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    if version not in HEADERS:
        raise DataError(f"it is in version {version} of NumPy's format, expected one of {', '.join(map(str, HEADERS))}")
    shape, _, dtype = HEADERS[version](file)
    if not dtype.hasobject:
        file.seek(0)
        return np.load(file, allow_pickle=False)
    if shape != ():
        raise DataError(f"it holds {shape} Python objects, expected one dictionary")
    found = _run(file.read())
    if not isinstance(found, list) or len(found) != 1:
        raise DataError("it is cut off, or was not written by NumPy")
    return _plain(found[0])


def _plain(value: Any) -> Any:
    """Return a dictionary of arrays and lists of arrays, with the content of each array."""

    def array(each: Any) -> Any:
        return each.content if isinstance(each, _Array) else each

    if not isinstance(value, dict):
        raise DataError(f"it holds a {type(value).__name__}, expected a dictionary of arrays")
    return {key: [array(row) for row in each] if isinstance(each, list) else array(each) for key, each in value.items()}


def _run(program: bytes) -> Any:
    """Interpret a program of allowed instructions; return the content of the single array that is left on the stack."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for operation, argument, _ in pickletools.genops(program):
            name = operation.name
            if name == "STOP":
                break
            _step(name, argument, stack, memo)
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"it is damaged, or was not written by NumPy ({type(error).__name__})") from error
    if len(stack) != 1 or not isinstance(stack[0], _Array):
        raise DataError("it does not hold one array, as files of NumPy do")
    return stack[0].content


def _step(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    if name in CONSTANTS or name in BYTES:
        stack.append(argument)
    elif name in SINGLE:
        stack.append(SINGLE[name])
    elif name in ("PROTO", "FRAME"):
        pass
    elif name == "MARK":
        stack.append(MARK)
    elif name in TUPLES:
        count = TUPLES[name]
        stack.append(tuple(stack.pop() for _ in range(count))[::-1])
    elif name == "TUPLE":
        stack.append(tuple(_since_mark(stack)))
    elif name == "EMPTY_LIST":
        stack.append([])
    elif name == "EMPTY_DICT":
        stack.append({})
    elif name in ("APPEND", "APPENDS"):
        items = [stack.pop()] if name == "APPEND" else _since_mark(stack)
        _expect(stack[-1], list).extend(items)
    elif name in ("SETITEM", "SETITEMS"):
        items = [stack.pop(), stack.pop()][::-1] if name == "SETITEM" else _since_mark(stack)
        _expect(stack[-1], dict).update(zip(items[::2], items[1::2], strict=True))
    elif name in ("BINPUT", "LONG_BINPUT"):
        memo[argument] = stack[-1]
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in ("BINGET", "LONG_BINGET"):
        stack.append(memo[argument])
    elif name == "GLOBAL":
        stack.append(_Name(argument))
    elif name == "STACK_GLOBAL":
        attribute, module = stack.pop(), stack.pop()
        stack.append(_Name(f"{module} {attribute}"))
    elif name == "REDUCE":
        arguments, made_by = stack.pop(), stack.pop()
        stack.append(_announced(_expect(made_by, _Name).text, arguments))
    elif name == "BUILD":
        state = stack.pop()
        _build(stack[-1], state)
    else:
        raise DataError(f"it holds more than arrays (instruction {name})")


def _since_mark(stack: list[Any]) -> list[Any]:
    place = len(stack) - 1
    while place >= 0 and stack[place] is not MARK:
        place -= 1
    if place < 0:
        raise DataError("it is damaged, or was not written by NumPy (no mark)")
    items = stack[place + 1 :]
    del stack[place:]
    return items


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise DataError(f"it is damaged, or was not written by NumPy ({type(value).__name__} for {kind.__name__})")
    return value


def _announced(name: str, arguments: Any) -> Any:
    """Return the result of calling one of three known names, without calling it; refuse all other names."""
    if name in MAKE_ARRAY and arguments[0] == _Name(ARRAY):
        return _Array()
    if name == DTYPE:
        return _Dtype(_expect(arguments[0], str))
    if name in MAKE_NUMBER:
        dtype, content = arguments
        return np.frombuffer(_expect(content, bytes), _expect(dtype, _Dtype).of_numbers(), count=1)[0]
    raise DataError(f"it holds more than arrays: it would call {name}")


def _build(value: Any, state: Any) -> None:
    """Set type and byte order of a dtype, or shape, type and content of an array, as NumPy writes them."""
    if isinstance(value, _Dtype):
        value.order = _expect(state[1], str)
        return
    _, shape, dtype, fortran, content = state
    if _expect(dtype, _Dtype).code in ("O8", "O4"):
        content = _expect(content, list)
        if len(shape) == 0:
            _expect(value, _Array).content = content
        else:
            raise DataError(f"it holds an array of Python objects, of shape {shape}")
    else:
        array = np.frombuffer(_expect(content, bytes), dtype.of_numbers())
        _expect(value, _Array).content = array.reshape(shape, order="F" if fortran else "C")
