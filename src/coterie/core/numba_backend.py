"""Compilation of kernels, and the Numba type of rules.

Kernels are cached on disk (:mod:`.kernel_cache`). A kernel that uses a rule from outside this folder is compiled
separately, and cached under a key of that rule; without such a key (:mod:`.foreign`), it is compiled in every process.
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
import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils, datamodel, event
from numba.core.boxing import box_namedtuple, unbox_tuple
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError
from numba.core.imputils import impl_ret_borrowed
from numba.core.registry import CPUDispatcher
from numba.extending import intrinsic, register_jitable, typeof_impl
from numba.np.arrayobj import populate_array

from ..errors import CompileError
from . import foreign
from .fingerprint import DEBUG
from .kernel_cache import KernelCache, reading
from .plain_backend import kernel as plain_kernel

try:
    from . import pipelines
except (ImportError, AttributeError):  # a newer Numba, which compiles by its default pipeline, and more slowly
    pipelines = None  # type: ignore[assignment]

log = logging.getLogger("coterie")

#: Whether loops are compiled; true in this module.
PLAIN = False

_making = threading.Lock()

#: For every compiled function, as none inherits this from its caller: whether bounds are checked.
CHECKS: dict[str, Any] = {"boundscheck": True} if DEBUG else {}
#: A division by zero gives infinity or NaN: a loop with a test before every division is not vectorised.
DIVISION: dict[str, Any] = {"error_model": "numpy"}
#: Options of every kernel.
KERNEL: dict[str, Any] = {"nopython": True, "nogil": True, "no_cfunc_wrapper": True, **DIVISION, **CHECKS}
#: Options of every helper.
HELPER: dict[str, Any] = {**DIVISION, **CHECKS}
if pipelines is not None:
    HELPER["pipeline_class"] = pipelines.HelperPipeline
#: Options of helpers that are always inlined.
INLINED: Any = {"forceinline": True, **HELPER}


class _Announce(event.Listener):
    """Log when a kernel is compiled, since the user waits for it."""

    def __init__(self, kernel):
        self.kernel = kernel

    def on_start(self, event):
        if event.data["dispatcher"] is self.kernel:
            log.info("compiling %s for this machine (%s)", self.kernel.__name__, self.kernel.kept)

    def on_end(self, event):
        pass


@intrinsic
def borrowed(_context, value):
    """Return the value without a reference to the memory of its arrays, which the caller of the kernel holds.

    Numba counts references atomically at every view of an array, which takes half the time of a kernel or more. A
    kernel must therefore never return an array.
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
    """Return the function on borrowed arguments."""
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
    """Decorator of larger helpers that are rarely called: one copy in the machine code, not one per call.

    By default, LLVM inlines all of them, and takes most of a minute.
    """
    foreign.MARKED.add(function)
    names = ", ".join(inspect.signature(function).parameters)
    body = FunctionType(function.__code__, function.__globals__, function.__name__)  # a copy to be registered
    scope = {"__name__": function.__module__, "body": inline(body), "stay_apart": _stay_apart}
    exec(f"def {function.__name__}({names}):\n    stay_apart()\n    return body({names})", scope)

    # forceinline is stated, since it would be inherited from the caller
    @extending.overload(function, strict=False, jit_options={"forceinline": False, **HELPER})
    def _compiled(*arguments):
        return scope[function.__name__]

    return function


class _Compiler(CPUDispatcher):
    """Compiles a loop for the types of its arguments, unless it is cached on disk or another process compiles it."""

    def compile(self, sig):
        with global_compiler_lock, event.install_listener("numba:compile", _Announce(self)):
            try:
                return super().compile(sig)
            finally:
                if isinstance(self._cache, KernelCache):
                    self._cache.let_go()

    def add_overload(self, cres):
        if pipelines is not None:
            pipelines.furnish(cres)
        super().add_overload(cres)


class Kernel:
    """A compiled loop: ``kernel(...)`` runs compiled, ``kernel.python(...)`` runs as plain Python.

    Plain Python also runs if an argument holds a model that only Python can call.
    """

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.python = function
        self._compiled = {}  # by the classes from outside in the arguments

    def __call__(self, *arguments):
        """Run compiled."""
        outside = foreign.classes_in(arguments)
        compiled = self._compiled.get(outside) or self._prepare(outside)
        try:
            return compiled(*arguments)
        except NumbaError as error:
            raise CompileError(_what_failed(self, arguments, str(error))) from error

    def _prepare(self, outside):
        """Return the compiler of this loop for rules of these classes from outside, with its cache."""
        with _making:
            if outside not in self._compiled and any(map(foreign.is_opaque, outside)):
                self._compiled[outside] = plain_kernel(self.python)
            elif outside not in self._compiled:
                for cls in outside:
                    if not is_rule(cls):
                        foreign.tell_apart(cls)
                mine = () if foreign.is_ours(self.python) else (self.python,)
                # Code from outside may create arrays, whose references are counted; coterie's kernels never do. Numba's
                # default pipeline needs the counts to return views, so they are kept out of kernels there, too.
                counted = bool(mine or outside or pipelines is None)
                function = _borrowing(self.python) if counted else self.python
                own_way = {} if pipelines is None else {"pipeline_class": pipelines.KernelPipeline}
                compiled = _Compiler(function, targetoptions={**KERNEL, "_nrt": counted}, **own_way)
                compiled.kept = "once; kept on disk"
                try:
                    compiled._cache = KernelCache(self.python, (*mine, *outside))
                except foreign.Opaque as why:
                    compiled.kept = f"in every process, for code from outside the package has no key: {why}"
                except RuntimeError:
                    compiled.kept = "in every process: the folder for compiled kernels cannot be written to"
                self._compiled[outside] = compiled
        return self._compiled[outside]


#: Location in Numba's error messages.
PLACE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)|at (?P<at>\S+) \((?P<row>\d+)\)')


def _what_failed(kernel, arguments, words):
    """Return which method of which rule did not compile, and where: the innermost location in Numba's error."""
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
    """Return the innermost reason in Numba's error, in one line."""
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
    """Decorator of small helpers of kernels: plain Python when called from Python, inlined in compiled code.

    The order of compilation therefore cannot change speed.
    """
    foreign.MARKED.add(function)
    return register_jitable(forceinline=True, **HELPER)(function)


#: Options for sums: also compiled when called from Python, with reordered additions and fused multiply-adds, so that
#: both modes add in one order. NaN and infinity still behave.
inline_sum = numba.njit(forceinline=True, fastmath={"reassoc", "contract"}, **DIVISION, **CHECKS)


def room(size):
    """Return a stack array of a constant number of floats, valid until the calling function returns."""
    return np.empty(size)


@intrinsic(prefer_literal=True)
def _on_the_stack(_context, size):
    kind, count = types.Array(types.float64, 1, "C"), size.literal_value

    def codegen(context, builder, signature, arguments):
        number = context.get_data_type(types.float64)
        place = builder.bitcast(cgutils.alloca_once(builder, number, size=count), number.as_pointer())
        array = context.make_array(kind)(context, builder)
        item, length = context.get_constant(types.intp, 8), context.get_constant(types.intp, count)
        populate_array(array, data=place, shape=[length], strides=[item], itemsize=item, meminfo=None)
        return array._getvalue()

    return kind(size), codegen


@extending.overload(room, prefer_literal=True, jit_options=INLINED)
def _room(size):
    return lambda size: _on_the_stack(size)


@intrinsic
def _fetch(_context, group, first, last):
    """Prefetch cache lines. Written in LLVM, since Numba takes longer over a loop of array views."""

    def ask(context, builder, kind, value, a, b):
        ours = class_of(kind) is not None and foreign.is_ours(kind.instance_class)
        fields = kind.fields if ours else ()
        parts = [(member, builder.extract_value(value, k)) for k, member in enumerate(getattr(kind, "types", ()))]
        if fields == ("start", "values"):  # Ragged
            start = context.make_array(parts[0][0])(context, builder, parts[0][1])
            a, b = (builder.load(builder.gep(start.data, [k])) for k in (a, b))
            ask(context, builder, *parts[1], a, b)
        elif fields == ("message", "peer"):  # Heard
            peer = context.make_array(parts[1][0])(context, builder, parts[1][1])
            with cgutils.for_range_slice(builder, a, b, a.type(1), a.type) as (k, _):
                j = builder.load(builder.gep(peer.data, [k]))
                ask(context, builder, *parts[0], j, builder.add(j, a.type(1)))
        elif isinstance(kind, types.Array) and kind.ndim > 0:
            array = context.make_array(kind)(context, builder, value)
            begin, stride = builder.ptrtoint(array.data, a.type), builder.extract_value(array.strides, 0)
            begin, end = (builder.add(begin, builder.mul(stride, k)) for k in (a, b))
            begin = builder.and_(begin, a.type(-64))  # need not start at a cache line
            flag = cgutils.int32_t
            signature = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, flag, flag, flag])
            prefetch = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0i8")
            with cgutils.for_range_slice(builder, begin, end, a.type(64), a.type) as (place, _):
                line = builder.inttoptr(place, cgutils.voidptr_t)
                builder.call(prefetch, [line, flag(0), flag(2), flag(1)])  # to read, into the second level, data
        else:
            for part in parts:
                ask(context, builder, *part, a, b)

    def codegen(context, builder, signature, arguments):
        ask(context, builder, signature.args[0], *arguments)
        return context.get_dummy_value()

    return types.void(group, types.intp, types.intp), codegen


def fetch(group, first, last):
    """Prefetch items ``first`` to ``last - 1`` of all arrays of a (nested) NamedTuple."""


@extending.overload(fetch, jit_options=INLINED)
def _fetch_group(group, first, last):
    return lambda group, first, last: _fetch(group, first, last)


def or_numpy(twin):
    """Decorator of loops over one vector: compiled as they are; in plain mode replaced by the NumPy version `twin`."""
    return lambda function: function


class RuleType(types.NamedTuple):
    """The Numba type of a rule. A class of its own, so that coterie's methods apply to no other library's tuples."""

    def __init__(self, members, cls):
        super().__init__(members, cls)
        self.name = f"Rule[{foreign.label(cls)}]({', '.join(map(str, members))})"

    def __bool__(self):
        # Numba tests a receiver for truth, and the type of a rule without fields would otherwise be false.
        return True

    def __reduce__(self):
        # A class from outside may belong to a script or a notebook, which a pickle would copy: refer to it by name.
        if foreign.is_ours(self.instance_class):
            return super().__reduce__()
        return _found_again, (foreign.label(self.instance_class), self.types)


def _found_again(label, members):
    return RuleType(members, reading.get()[label])


def is_rule(cls):
    """Return whether kernels know a class of tuples as a rule."""
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
    scope = {"found": functools.partial(_as_named, name, arguments)}
    exec(f"def {name}(self, {arguments}): return found(self.instance_class)", scope)
    # forceinline is LLVM's inlining. Numba's own inline="always" silently drops array writes (0.61 to 0.68).
    extending.overload_method(RuleType, name, jit_options=INLINED)(scope[name])


def _as_named(name, arguments, cls):
    """Return the method of a class, with its arguments named as in the vocabulary."""
    function = getattr(cls, name, None)
    if function is None or ", ".join(list(inspect.signature(function).parameters)[1:]) == arguments:
        return function
    scope = {"body": inline(FunctionType(function.__code__, function.__globals__, function.__name__))}
    exec(f"def {name}(self, {arguments}): return body(self, {arguments})", scope)
    return scope[name]


def overload(function):
    """Let compiled code choose a function by types: the decorated function gets types, and returns a function."""
    return extending.overload(function, jit_options=INLINED)


def class_of(kind):
    """Return the class of a NamedTuple, from its type; None for any other type."""
    return kind.instance_class if isinstance(kind, types.BaseNamedTuple) else None


@intrinsic
def _pack(_context, rule, fields):
    def codegen(context, builder, signature, arguments):
        parts = [builder.extract_value(arguments[1], k) for k in range(len(signature.args[1].types))]
        packed = context.make_tuple(builder, signature.return_type, parts)
        return impl_ret_borrowed(context, builder, signature.return_type, packed)

    return RuleType(fields.types, rule.instance_class)(rule, fields), codegen


def packed(rule, fields):
    """For :func:`overload`: return a rule of the same class with other fields of equal types."""
    if isinstance(rule, RuleType) and isinstance(fields, types.BaseTuple):
        return lambda rule, fields: _pack(rule, fields)
    return None


def each_field(group, arguments, leaf, nest, **scope):
    """For :func:`overload`: map each field of a NamedTuple by the expression `leaf`, or by `nest` for tuples."""
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
