"""Rules: immutable values whose methods run both in plain Python and in compiled code.

A rule is a :class:`typing.NamedTuple` of numbers, arrays and other rules, with methods. ``@rule`` gives the
class a Numba type, so that a compiled loop can call ``method.wake(...)`` or ``loss.derivative(...)``. The call
is resolved at compile time from the class: it costs nothing at run time, changing a parameter never
recompiles, and kernels can be cached on disk.

:mod:`coterie.core.numba_backend` is the only module that depends on how Numba works inside.
"""

from __future__ import annotations

import functools
import inspect
import typing
from typing import Any

import numpy as np

from .._checks import choice
from ..errors import DeclarationError, ParameterError
from .compile import expose, overload, packed, register

#: ``typing.NamedTuple``, under a name that type checkers do not follow: they refuse class attributes, Python does not.
NamedTuple: Any = typing.NamedTuple

#: The default ``__repr__`` of a NamedTuple.
_PLAIN_REPR = NamedTuple("Any", []).__repr__.__code__

#: Methods of rules that compiled code may call, with the argument names that every rule must use. Two kinds of rules
#: may use one method name with equally many arguments.
METHODS = {
    # losses (losses.py)
    "value": "margin, label | data, theta",  # of a loss | of a model (models.py)
    "derivative": "margin, label",
    "curvature": "margin, label",
    "prox": "center, step, label",
    "conjugate": "dual, label",
    "domain": "label",
    "pool": "margins, labels",
    "slopes": "margins, labels, out",
    # rows of features (linear.py)
    "dot": "row, vector",
    "add": "row, scale, out",
    "dots": "first, last, vector, out",
    "add_all": "first, last, factor, scale, out",
    "entries": "row",
    "entry": "row, k",
    "at": "row, column",
    "take": "first, last",
    "fetch": "part, parts",
    # methods (methods/)
    "open": "data, me, edges, slot",
    "greet": "data, me, edges, outbox",
    "wake": "data, me, edges, randomness, outbox",
    "receive": "data, me, edges, message, outbox",
    "round": "data, me, edges, outbox",
    # models (models.py)
    "gradient": "data, theta, scale, out",
    # methods that train a model (training.py)
    "prepare": "data, me, edges, randomness, outbox, phase",
    "publish": "data, me, edges, randomness, outbox",
    "update": "gradient, theta, memory, time",
    # methods with a server (methods/server.py)
    "tell": "data, me, edges, out",
    "hear": "data, me, text",
    "answer": "data, me, out",
    "collect": "data, me, edges, message",
    "average": "data, me, edges",
    # solvers of an agent's own problem (proximal.py)
    "minimise": "data, scale, weight, center, theta, draft",
    # peer sampling (wrap/sampling.py)
    "sample": "data, view, dice, out",
    "refresh": "data, view, dice, outbox",
    "merge": "data, view, message, outbox",
    # messages that are modified when sent (wrap/parts.py)
    "edit": "data, me, edges, dice, outbox, first",
    # aggregation of received models (wrap/aggregation.py)
    "combine": "theta, shown, peer, weight, said, copy, room",
    # noise of attackers (wrap/attacked.py)
    "draw": "stream",
    # compressed vectors (wrap/compression.py)
    "compress": "vector, dice, room, out",
    "fits": "text, size",
    "restore": "text, out",
    # the loss that an agent reports (wrap/learned.py, private/loss_report.py)
    "reported_loss": "data, me",
}


def rule(cls):
    """Let compiled code call the methods of a NamedTuple class, and compare its values by class and fields.

    Parameters
    ----------
    cls : type
        A ``typing.NamedTuple``. Every method named in ``METHODS`` must take exactly the arguments listed there.

    Returns
    -------
    type
        The same class.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> from numba import njit
    >>> @rule
    ... class Double(NamedTuple):
    ...     scale: float = 2.0
    ...     def value(self, margin, label):
    ...         return self.scale * margin + label
    >>> @njit
    ... def use(loss):
    ...     return loss.value(3.0, 1.0)
    >>> use(Double()) == Double().value(3.0, 1.0) == 7.0
    True
    """
    for name, expected in METHODS.items():
        method = getattr(cls, name, None)
        if method is None:
            continue
        found = ", ".join(list(inspect.signature(method).parameters)[1:])
        if found not in expected.split(" | "):
            wanted = ") or (".join(expected.split(" | "))
            raise DeclarationError(f"{cls.__qualname__}.{name}({found}): the arguments must be named ({wanted})")

    cls.is_rule = True
    cls.__eq__, cls.__ne__, cls.__hash__, cls.__bool__ = _equal, _unequal, _hash, _true
    if cls.__repr__.__code__ is _PLAIN_REPR:
        cls.__repr__ = _shown
    register(cls)
    return cls


def checked(*whole, **fields):
    """Check fields whenever a value is created: ``check(name, value)`` returns the value to store, or raises.

    `whole` are checks of the complete value. A check whose stored value differs from the user's value has a method
    ``told``, which returns the user's value, for copies and for files.
    """

    def decorate(cls):
        make = cls.__new__

        @functools.wraps(make)  # so that inspect.signature() shows the fields
        def new(cls, *given, **named):
            made, name = make(cls, *given, **named), cls.__qualname__
            made = made._replace(
                **{field: check(f"{name}: {field}", getattr(made, field)) for field, check in fields.items()}
            )
            for check in whole:
                check(made)
            return made

        def getnewargs(self):
            parts = zip(self._fields, self, strict=True)
            return tuple(told[field](value) if field in told else value for field, value in parts)

        told = {field: check.told for field, check in fields.items() if hasattr(check, "told")}
        cls.__new__ = new
        if told:
            cls.__getnewargs__ = getnewargs
        return cls

    return decorate


class Word:
    """Check for :func:`checked`: one of some words, stored as a number."""

    def __init__(self, *words):
        self.words = words

    def __call__(self, name, value):
        """Return the number of a word."""
        return self.words.index(choice(name, value, self.words))

    def told(self, number):
        """Return the word of a number."""
        return self.words[number]


class Or:
    """Check for :func:`checked`: a value that passes another check, or a word such as None, stored as a number."""

    def __init__(self, word, check, inside):
        self.word, self.check, self.inside = word, check, inside

    def __call__(self, name, value):
        """Return the checked value, or the number of the word."""
        if (value is None or isinstance(value, str)) and value == self.word:
            return self.inside
        try:
            return self.check(name, value)
        except ParameterError as error:
            raise ParameterError(f"{error}, or {self.word!r}") from None

    def told(self, number):
        """Return the user's value."""
        return self.word if number == self.inside else number


def _content(value):
    """Return a key of a field's value for comparison and hashing: arrays by content, tuples by class, too."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, tuple):
        return (type(value), *map(_content, value))
    return value


def _equal(self, other):
    return self is other or (type(self) is type(other) and _content(self) == _content(other))


def _unequal(self, other):
    return not _equal(self, other)


def _hash(self):
    return hash(_content(self))


def _true(self):
    return True  # an empty tuple is false; a rule is always true


def _shown(self):
    """Return the NamedTuple representation under the class's original name."""
    fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
    return f"{type(self).__qualname__.rpartition('.')[2]}({fields})"


def made_by(check, parts=None):
    """Let ``check`` validate the parameters of a rule when it is created, and return its fields.

    Copies and files store the parameters of ``check``: those fields of the rule that have the same names, or the result
    of ``parts(rule)``.
    """
    taken = inspect.signature(check)

    def decorate(cls):
        make = cls.__new__

        def new(cls, *given, **named):
            try:
                said = taken.bind(*given, **named)
            except TypeError as error:
                raise TypeError(f"{cls.__qualname__}{taken}: {error}") from None
            return make(cls, *check(*said.args, **said.kwargs))

        first = inspect.Parameter("cls", inspect.Parameter.POSITIONAL_ONLY)
        new.__signature__ = taken.replace(parameters=[first, *taken.parameters.values()])
        cls.__new__ = new
        cls.__getnewargs__ = parts or (lambda self: tuple(getattr(self, name) for name in taken.parameters))
        return cls

    return decorate


for _name, _arguments in METHODS.items():
    expose(_name, _arguments.partition(" | ")[0])


def remake(rule, fields):
    """Return a rule of the same class with other fields; in compiled code the fields must keep their types."""
    return type(rule)(*fields)


overload(remake)(packed)
