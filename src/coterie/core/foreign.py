"""Code from outside this folder that a kernel calls, such as a user's loss: how to find it, and a cache key for it.

The key is computed from what runs, not from a file, which may have been edited since it was imported: byte code and
constants of the methods that compiled code may call, and of everything that these refer to. If they refer to something
that cannot be inspected, there is no key, and the kernel is not cached on disk.
"""

from __future__ import annotations

import builtins
import dis
import hashlib
import itertools
import sys
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

#: Methods of rules that compiled code may call.
EXPOSED: set[str] = set()
#: Functions that are marked for compilation.
MARKED: WeakSet[FunctionType] = WeakSet()
#: Modules whose functions are known by their names: Numba compiles its own versions of these functions.
KNOWN = {"builtins", "math", "cmath", "operator", "numpy", "numba"}

_count = itertools.count(2)
_classes: dict[str, type] = {}
_ours: set[type] = {tuple}
_labels: WeakKeyDictionary[type, str] = WeakKeyDictionary()


class Opaque(Exception):  # noqa: N818 - the reason why there is no key, not an error
    """Something that cannot be inspected, and so has no key."""


def is_ours(thing):
    """Return whether the digest of this folder covers a class or a function."""
    return (thing.__module__ or "").startswith(f"{__package__}.")


def classes_in(arguments):
    """Return the classes of tuples from outside, and of models in Python, in the arguments of a kernel."""
    found: set[type] = set()
    _look_through(arguments, found)
    return frozenset(found)


def _look_through(values, found):
    for value in values:  # runs at every call of every kernel
        if isinstance(value, tuple):
            kind = type(value)
            if kind not in _ours:
                if is_ours(kind):
                    _ours.add(kind)
                else:
                    found.add(kind)
            _look_through(value, found)
        elif type(value) not in _ours:
            if is_opaque(type(value)):
                found.add(type(value))
            else:
                _ours.add(type(value))


def is_opaque(cls):
    """Return whether compiled code cannot call this: a model in Python."""
    return getattr(cls, "opaque", False) is True


def tell_apart(cls):
    """Give a class with the name of an earlier class a ``__name__`` of its own.

    Numba identifies the type of a tuple by the class's name and the types of its fields: a class defined anew, as by a
    notebook cell that runs twice, would be taken for the old one.
    """
    if _classes.setdefault(cls.__name__, cls) is not cls:
        cls.__name__ = f"{cls.__name__}#{next(_count)}"
        _classes[cls.__name__] = cls


def label(cls):
    """Return a name for the type of a rule, unique to its class and body; it becomes part of names in machine code."""
    if cls not in _labels:
        if is_ours(cls):
            _labels[cls] = f"{cls.__module__}.{cls.__qualname__}"
        else:
            try:
                version = key(cls)
            except Opaque:
                version = f"{next(_count)}"
            _labels[cls] = f"{cls.__module__}.{cls.__qualname__}#{version}"
    return _labels[cls]


def key(thing):
    """Return the key of a class of tuples, or of the function of a kernel; raise :class:`Opaque` if there is none."""
    seen: dict[object, int] = {}
    text = _function(thing, seen) if isinstance(thing, FunctionType) else _class(thing, seen)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _text(value, seen):
    """Return a text of all that compiled code can see of a value."""
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str, bytes):
        return f"{kind.__name__}:{value!r}"
    if isinstance(value, np.generic | np.ndarray) and not value.dtype.hasobject:
        return f"{value.dtype.str}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, ModuleType):
        if value.__name__.partition(".")[0] in KNOWN or value.__name__.startswith(f"{__package__}."):
            return f"module:{value.__name__}"
        raise Opaque(f"it looks into the module {value.__name__}: import the names themselves")
    if isinstance(value, CodeType):
        return _code(value, seen)
    if kind in (tuple, frozenset):
        parts = [_text(part, seen) for part in value]
        return f"{kind.__name__}({', '.join(sorted(parts) if kind is frozenset else parts)})"
    if isinstance(value, type) and issubclass(value, tuple):
        return _class(value, seen)
    if isinstance(value, tuple):
        return f"{_class(kind, seen)}({', '.join(_text(part, seen) for part in value)})"
    name = f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', repr(value))}"
    if isinstance(value, type) and issubclass(value, BaseException):
        return f"name:{name}"
    if isinstance(value, type | FunctionType | BuiltinFunctionType) and (is_ours(value) or _known(value)):
        return f"name:{name}"
    if isinstance(value, np.ufunc):
        return f"ufunc:{value.__name__}"
    if isinstance(value, FunctionType) and value in MARKED:
        return _function(value, seen)
    if isinstance(getattr(value, "py_func", None), FunctionType):  # compiled by Numba already
        body = value.py_func
        return f"name:{name}" if is_ours(body) else f"{sorted(value.targetoptions.items())}{_function(body, seen)}"
    raise Opaque(f"it refers to {name}, which is neither a number nor a function marked as inline")


def _code(code, seen):
    """Return a text of what a code object does, independent of its position in a file."""
    shape = code.co_argcount, code.co_kwonlyargcount, code.co_flags, code.co_varnames, code.co_freevars
    steps = code.co_code.hex(), getattr(code, "co_exceptiontable", b"").hex(), code.co_names
    return f"code{shape}{steps}[{', '.join(_text(part, seen) for part in code.co_consts)}]"


def _globals(code):
    """Return the names of globals that a code object and its nested code load."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return found.union(*(_globals(part) for part in code.co_consts if isinstance(part, CodeType)))


def _function(function, seen):
    """Return a text of a function and everything that it refers to."""
    if function in seen:
        return f"again:{seen[function]}"
    seen[function] = len(seen)
    if function.__module__ not in sys.modules:
        raise Opaque(f"there is no module {function.__module__}, where it says that it is")
    parts = [function.__module__, _code(function.__code__, seen)]
    parts += [_text(value, seen) for value in function.__defaults__ or ()]
    parts += [f"{name}={_text(value, seen)}" for name, value in sorted((function.__kwdefaults__ or {}).items())]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            parts.append(f"{name}={_text(cell.cell_contents, seen)}")
        except ValueError:  # an empty cell
            raise Opaque(f"the variable {name} of an enclosing function has no value yet") from None
    for name in sorted(_globals(function.__code__)):
        if name in function.__globals__:
            parts.append(f"{name}={_text(function.__globals__[name], seen)}")
        elif not hasattr(builtins, name):
            raise Opaque(f"there is no {name}")
    return "; ".join(parts)


def _class(cls, seen):
    """Return a text of a class of tuples: its fields, the methods that compiled code may call, and its declarations."""
    if is_ours(cls):
        return f"name:{cls.__module__}.{cls.__qualname__}"
    if cls in seen:
        return f"again:{seen[cls]}"
    seen[cls] = len(seen)
    if not getattr(cls, "is_rule", False) and not _importable(cls):
        raise Opaque(f"{cls.__qualname__} is neither a rule nor to be found in a module: decorate it with @rule")
    parts = [f"{cls.__module__}.{cls.__qualname__}{getattr(cls, '_fields', ())}"]
    for base in cls.__mro__:
        if base in (object, tuple) or is_ours(base):
            parts.append(f"base:{base.__module__}.{base.__qualname__}")
            continue
        for name, value in sorted(vars(base).items()):
            if name in EXPOSED and value is not None:  # None: a handler that a method does without
                if not isinstance(value, FunctionType):
                    raise Opaque(f"{name} is not a plain method")
                parts.append(f"{name}={_function(value, seen)}")
            elif not name.startswith("_") and name not in cls._fields:
                parts.append(f"{name}={_declared(value, seen)}")
    return "; ".join(parts)


def _declared(value, seen):
    """Return a text of a declaration of a class, on which the choice of compiled code may depend."""
    value = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
    try:
        return _code(value.__code__, seen) if isinstance(value, FunctionType) else _text(value, seen)
    except Opaque:
        return type(value).__qualname__


def _known(value):
    """Return whether a value is found by its name in a module that Numba knows."""
    return (value.__module__ or "builtins").partition(".")[0] in KNOWN and _importable(value)


def _importable(thing):
    """Return whether another process can import a class or a function by its name."""
    found = sys.modules.get(thing.__module__ or "builtins")
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is thing and thing.__module__ != "__main__"
