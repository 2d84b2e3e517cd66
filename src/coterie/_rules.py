"""Rules: immutable values whose methods run in plain Python and in compiled code alike.

A rule is a :class:`typing.NamedTuple` of numbers, arrays and other rules, with methods. ``@rule`` gives the
class a Numba type, so that a compiled loop can call ``method.wake(...)`` or ``loss.derivative(...)``. The call
is resolved at compile time from the class: it costs nothing at run time, changing a parameter never
recompiles, and kernels can be cached on disk.

This module and :mod:`coterie._compile` are the only places that know how Numba works inside.
"""

from __future__ import annotations

import inspect

from numba import types
from numba.core import datamodel
from numba.core.boxing import box_namedtuple, unbox_tuple
from numba.core.imputils import impl_ret_borrowed
from numba.extending import box, intrinsic, overload, overload_method, register_model, typeof_impl, unbox

#: The vocabulary: what compiled code may ask of a rule, with the argument names that every rule must use.
METHODS = {
    # losses (losses.py)
    "value": "margin, label",
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
    "entries": "row",
    "entry": "row, k",
    "at": "row, column",
    "take": "first, last",
    # methods (methods/)
    "open": "data, me, ties, slot",
    "greet": "data, me, ties, mail",
    "wake": "data, me, ties, chance, mail",
    "receive": "data, me, ties, letter, mail",
    "round": "data, me, ties, mail",
    # solvers of an agent's own problem (proximal.py)
    "minimise": "data, scale, weight, center, theta, draft",
    # peer sampling (ties/sampling.py)
    "sample": "data, view, dice, out",
    "stir": "data, view, dice, mail",
    "mix": "data, view, letter, mail",
    # what an agent tells of its loss (ties/learned.py, privacy/tolls.py)
    "told": "data, me, draft",
}


class RuleType(types.NamedTuple):
    """The Numba type of a rule. Its own class, so that our methods never meet another library's tuples."""

    def __init__(self, members, cls):
        super().__init__(members, cls)
        self.name = f"Rule[{cls.__module__}.{cls.__qualname__}]({', '.join(map(str, members))})"

    def __bool__(self):
        # Numba tests a receiver for truth, and the type of a rule without fields would otherwise be false.
        return True


register_model(RuleType)(datamodel.models.TupleModel)
unbox(RuleType)(unbox_tuple)
box(RuleType)(box_namedtuple)


def rule(cls):
    """Let compiled code call the methods of a NamedTuple class.

    Parameters
    ----------
    cls : type
        A ``typing.NamedTuple``. Every method named in :data:`METHODS` must take exactly the arguments listed there.

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
        if found != expected:
            raise TypeError(f"{cls.__qualname__}.{name}({found}): the arguments must be named ({expected})")

    @typeof_impl.register(cls)
    def _typeof(value, context):
        return RuleType([typeof_impl(field, context) for field in value], cls)

    return cls


def _expose(name, arguments):
    scope = {}
    exec(f"def {name}(self, {arguments}): return getattr(self.instance_class, {name!r}, None)", scope)
    # forceinline is LLVM's inlining. Numba's own inline="always" silently drops array writes (0.61 to 0.68).
    overload_method(RuleType, name, jit_options={"forceinline": True})(scope[name])


for _name, _arguments in METHODS.items():
    _expose(_name, _arguments)


def remake(rule, fields):
    """A rule of the same class with other fields; in compiled code the fields must keep their types."""
    return type(rule)(*fields)


@intrinsic
def _pack(_context, rule, fields):
    def codegen(context, builder, signature, arguments):
        parts = [builder.extract_value(arguments[1], k) for k in range(len(signature.args[1].types))]
        packed = context.make_tuple(builder, signature.return_type, parts)
        return impl_ret_borrowed(context, builder, signature.return_type, packed)

    return RuleType(fields.types, rule.instance_class)(rule, fields), codegen


@overload(remake, jit_options={"forceinline": True})
def _remake(rule, fields):
    if isinstance(rule, RuleType) and isinstance(fields, types.BaseTuple):
        return lambda rule, fields: _pack(rule, fields)
    return None
