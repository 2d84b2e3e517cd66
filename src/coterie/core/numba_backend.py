"""Compiled loops: how a kernel is compiled, and what Numba must know of rules.

Kernels are kept on disk (:mod:`.kernel_cache`). One that meets a rule from outside this folder is compiled apart from
the others, and kept under a key of that rule; without such a key (:mod:`.foreign`), it is compiled in every process.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
import threading
from types import FunctionType
from typing import Any

import numba
from numba import extending, types
from numba.core import cgutils, datamodel, event
from numba.core.boxing import box_namedtuple, unbox_tuple
from numba.core.errors import NumbaError
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic, register_jitable, typeof_impl

from ..errors import CompileError
from . import foreign
from .fingerprint import DEBUG
from .kernel_cache import KernelCache, reading

log = logging.getLogger("coterie")

_making = threading.Lock()

#: For every function that is compiled, since none inherits it from its caller: bounds are checked, or nothing said.
CHECKS: dict[str, Any] = {"boundscheck": True} if DEBUG else {}


class _Announce(event.Listener):
    """Tells the log when a kernel is really compiled: this is time that a user waits for."""

    def __init__(self, kernel):
        self.kernel = kernel

    def on_start(self, event):
        if event.data["dispatcher"] is self.kernel:
            log.info("compiling %s for this machine (%s)", self.kernel.__name__, self.kernel.kept)

    def on_end(self, event):
        pass


@intrinsic
def borrowed(_context, value):
    """The same value without a claim on the memory of its arrays, which the caller of the kernel holds already.

    Numba counts references, atomically, at every view of an array: half the time of a kernel, and more. A kernel must
    therefore never return an array.
    """

    def strip(context, builder, kind, value):
        if isinstance(kind, types.Array):
            array = context.make_array(kind)(context, builder, value)
            array.meminfo = cgutils.get_null_value(array.meminfo.type)
            array.parent = cgutils.get_null_value(array.parent.type)
            return array._getvalue()
        if isinstance(kind, types.BaseTuple):
            for k, member in enumerate(kind.types):
                part = strip(context, builder, member, builder.extract_value(value, k))
                value = builder.insert_value(value, part, k)
            return value
        context.nrt.incref(builder, kind, value)
        return value

    def codegen(context, builder, signature, arguments):
        return strip(context, builder, signature.args[0], arguments[0])

    return value(value), codegen


def _borrowing(function):
    """The same function on borrowed arguments."""
    names = list(inspect.signature(function).parameters)
    scope = {"__name__": function.__module__, "body": inline(function), "borrowed": borrowed}
    lent = ", ".join(f"borrowed({name})" for name in names)
    exec(f"def {function.__name__}({', '.join(names)}): return body({lent})", scope)
    return scope[function.__name__]


@intrinsic
def _stay_apart(_context):
    def codegen(context, builder, signature, arguments):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen


def noinline(function):
    """For larger helpers that are rarely called: one copy in the machine code, not one at every call.

    Left to itself, LLVM inlines them all, and takes most of a minute over the result.
    """
    foreign.MARKED.add(function)
    names = ", ".join(inspect.signature(function).parameters)
    body = FunctionType(function.__code__, function.__globals__, function.__name__)  # a copy: it is registered, too
    scope = {"__name__": function.__module__, "body": inline(body), "stay_apart": _stay_apart}
    exec(f"def {function.__name__}({names}):\n    stay_apart()\n    return body({names})", scope)

    # forceinline is said, or it would inherit its caller's.
    @extending.overload(function, strict=False, jit_options={"forceinline": False, **CHECKS})
    def _compiled(*arguments):
        return scope[function.__name__]

    return function


class Kernel:
    """A compiled loop: ``kernel(...)`` runs compiled, ``kernel.python(...)`` the same source in plain Python."""

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.python = function
        self._compiled = {}  # by the classes from outside that the arguments hold

    def __call__(self, *arguments):
        """Run compiled."""
        outside = frozenset(foreign.classes_in(arguments, set()))
        compiled = self._compiled.get(outside) or self._prepare(outside)
        try:
            with event.install_listener("numba:compile", _Announce(compiled)):
                return compiled(*arguments)
        except NumbaError as error:
            raise CompileError(_what_failed(self, arguments, str(error))) from error

    def _prepare(self, outside):
        """What compiles this loop for rules of these classes from outside, and keeps it."""
        with _making:
            if outside not in self._compiled:
                for cls in outside:
                    if not is_rule(cls):
                        foreign.tell_apart(cls)
                compiled = numba.njit(nogil=True, **CHECKS)(_borrowing(self.python))
                mine = () if foreign.is_ours(self.python) else (self.python,)
                compiled.kept = "once; kept on disk"
                try:
                    compiled._cache = KernelCache(self.python, (*mine, *outside))
                except foreign.Opaque as why:
                    compiled.kept = f"in every process, for code from outside the package has no key: {why}"
                except RuntimeError:
                    compiled.kept = "in every process: the folder for compiled kernels cannot be written to"
                self._compiled[outside] = compiled
        return self._compiled[outside]


#: Where Numba says that it was.
PLACE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)|at (?P<at>\S+) \((?P<row>\d+)\)')


def _what_failed(kernel, arguments, words):
    """Which method of which rule did not compile, and where: the innermost one that Numba's error names."""
    methods = []
    for cls in _classes_in(arguments, {}):
        for name in foreign.EXPOSED:
            code = getattr(getattr(cls, name, None), "__code__", None)
            if code is not None:
                methods.append((code.co_filename, code.co_firstlineno, _last_line(code), cls, name))
    for place in PLACE.finditer(words):
        file, line = place["file"] or place["at"], int(place["line"] or place["row"])
        for path, first, last, cls, name in methods:
            if path.endswith(file.lstrip("./")) and first <= line <= last:
                reason = _said(words[: place.start()])
                return f"{cls.__qualname__}.{name} cannot be compiled: {path}, line {line}: {reason}"
    return f"{kernel.__name__} cannot be compiled for these arguments: {_said(words)}"


def _said(words):
    """The innermost reason that Numba gives, in a line."""
    lines = [line.strip() for line in words.rpartition("nopython mode pipeline")[2].splitlines()[1:]]
    lines = [line for line in lines if line] or [words.strip()]
    return " ".join(lines[:2] if lines[0].endswith(":") else lines[:1])


def _classes_in(values, found):
    for value in values:
        if isinstance(value, tuple):
            found[type(value)] = None
            _classes_in(value, found)
    return found


def _last_line(code):
    return max(line for _, _, line in code.co_lines() if line is not None)


def kernel(function):
    """Compile a loop over rules; see :class:`Kernel`."""
    return Kernel(function)


def inline(function):
    """For small helpers of kernels: plain Python when called from Python, and in compiled code always inlined by LLVM.

    So the order of compilation cannot change speed.
    """
    foreign.MARKED.add(function)
    return register_jitable(forceinline=True, **CHECKS)(function)


#: For sums: compiled also when called from Python, with additions reordered and multiply-adds fused for vectorisation,
#: so that both worlds add in the same order. NaN and infinity still behave.
inline_sum = numba.njit(forceinline=True, fastmath={"reassoc", "contract"}, **CHECKS)


def or_numpy(twin):
    """For loops over one vector: compiled they are as fast as can be, and in plain mode `twin` does the same."""
    return lambda function: function


class RuleType(types.NamedTuple):
    """The Numba type of a rule. Its own class, so that our methods never meet another library's tuples."""

    def __init__(self, members, cls):
        super().__init__(members, cls)
        self.name = f"Rule[{foreign.label(cls)}]({', '.join(map(str, members))})"

    def __bool__(self):
        # Numba tests a receiver for truth, and the type of a rule without fields would otherwise be false.
        return True

    def __reduce__(self):
        # A class from outside may be that of a script or a notebook, which a pickle would copy: here, as it is named.
        if foreign.is_ours(self.instance_class):
            return super().__reduce__()
        return _found_again, (foreign.label(self.instance_class), self.types)


def _found_again(label, members):
    return RuleType(members, reading.get()[label])


def is_rule(cls):
    """Whether kernels know a class of tuples as a rule."""
    return "is_rule" in vars(cls)


extending.register_model(RuleType)(datamodel.models.TupleModel)
extending.unbox(RuleType)(unbox_tuple)
extending.box(RuleType)(box_namedtuple)


def register(cls):
    """Let kernels take values of a class of rules."""
    foreign.tell_apart(cls)

    @typeof_impl.register(cls)
    def _typeof(value, context):
        return RuleType([typeof_impl(field, context) for field in value], type(value))


def expose(name, arguments):
    """Let compiled code call a method of rules by this name."""
    foreign.EXPOSED.add(name)
    scope = {}
    exec(f"def {name}(self, {arguments}): return getattr(self.instance_class, {name!r}, None)", scope)
    # forceinline is LLVM's inlining. Numba's own inline="always" silently drops array writes (0.61 to 0.68).
    extending.overload_method(RuleType, name, jit_options={"forceinline": True, **CHECKS})(scope[name])


def overload(function):
    """Let compiled code choose by types what a function is: the decorated one gets types, and returns a function."""
    return extending.overload(function, jit_options={"forceinline": True, **CHECKS})


def class_of(kind):
    """The class of a NamedTuple, from its type; None for the type of anything else."""
    return kind.instance_class if isinstance(kind, types.BaseNamedTuple) else None


@intrinsic
def _pack(_context, rule, fields):
    def codegen(context, builder, signature, arguments):
        parts = [builder.extract_value(arguments[1], k) for k in range(len(signature.args[1].types))]
        packed = context.make_tuple(builder, signature.return_type, parts)
        return impl_ret_borrowed(context, builder, signature.return_type, packed)

    return RuleType(fields.types, rule.instance_class)(rule, fields), codegen


def packed(rule, fields):
    """For :func:`overload`: a rule of the same class with other fields, of the same types."""
    if isinstance(rule, RuleType) and isinstance(fields, types.BaseTuple):
        return lambda rule, fields: _pack(rule, fields)
    return None


def each_field(group, arguments, leaf, nest, **scope):
    """For :func:`overload`: the same NamedTuple with fields made by the expression `leaf`, or `nest` of a tuple."""
    if class_of(group) is None:
        return None
    parts = [
        (leaf if class_of(kind) is None else nest).format(field=field)
        for field, kind in zip(group.fields, group.types, strict=True)
    ]
    scope |= {"make": class_of(group), "pack": _pack}
    made = "pack(group, ({},))" if isinstance(group, RuleType) else "make({})"
    exec(f"def part({arguments}): return {made.format(', '.join(parts))}", scope)
    return scope["part"]
