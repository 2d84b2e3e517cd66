"""Compiled loops: how a kernel is compiled, kept on disk, and when it is not; and what Numba must know of rules.

Numba's own disk cache watches one source file, and so runs old code after an edit in a file that the loop calls.
Here the cache directory is keyed by a digest of all our sources. A rule defined outside this package is
not covered by that digest, so a loop that meets one is compiled afresh in every process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import logging
import os
import shutil
import time
from pathlib import Path
from types import FunctionType

import numba
from numba import extending, types
from numba.core import cgutils, datamodel, event
from numba.core.boxing import box_namedtuple, unbox_tuple
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic, register_jitable, typeof_impl

from .._files import cache_root

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("coterie")

HERE = Path(__file__).parent


@functools.cache
def digest():
    """Fingerprint of this folder: everything that may end up in a kernel of ours, and nothing else."""
    state = hashlib.sha256()
    for path in sorted(HERE.rglob("*.py")):
        state.update(str(path.relative_to(HERE)).encode() + path.read_bytes())
    return state.hexdigest()[:16]


def cache_directory():
    """Where compiled kernels are kept: ``$COTERIE_CACHE``, or the user's cache directory.

    Examples
    --------
    >>> cache_directory().parent.name
    'kernels'
    """
    return cache_root() / "kernels" / digest()


class _Locator(_CacheLocator):
    def __init__(self, py_func, py_file):
        self._file = Path(py_file).stem

    def get_cache_path(self):
        return str(cache_directory())

    def get_source_stamp(self):
        return digest()

    def get_disambiguator(self):
        return self._file

    @classmethod
    def from_function(cls, py_func, py_file):
        try:
            cache_directory().mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        if not os.access(cache_directory(), os.W_OK):
            return None
        _forget_old(cache_directory())
        return cls(py_func, py_file)


@functools.cache
def _forget_old(directory):
    """Remove kernels of other versions of the package that nobody has used for a month."""
    with contextlib.suppress(OSError):
        os.utime(directory)  # this one is in use
    for other in directory.parent.iterdir():
        with contextlib.suppress(OSError):
            if other != directory and time.time() - other.stat().st_mtime > 30 * 86400:
                shutil.rmtree(other, ignore_errors=True)


@contextlib.contextmanager
def _alone():
    """One process at a time: two that save at once could mix up their entries in Numba's index."""
    with contextlib.ExitStack() as stack:
        if fcntl is not None:
            lock = stack.enter_context((cache_directory() / ".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _CacheImpl(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 - as the base class has it


class _Cache(FunctionCache):
    _impl_class = _CacheImpl

    def save_overload(self, sig, data):
        with _alone():
            super().save_overload(sig, data)


class _Announce(event.Listener):
    """Tells the log when a kernel is really compiled: this is time that a user waits for."""

    def __init__(self, kernel, kept):
        self.kernel, self.kept = kernel, kept

    def on_start(self, event):
        if event.data["dispatcher"] is self.kernel:
            log.info("compiling %s for this machine (%s)", self.kernel.__name__, self.kept)

    def on_end(self, event):
        pass


def _ours(value):
    """Does this argument hold only rules that our digest covers?"""
    if not isinstance(value, tuple):
        return True
    module = type(value).__module__
    return module.startswith(f"{__package__}.") and all(map(_ours, value))


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
    names = ", ".join(inspect.signature(function).parameters)
    body = FunctionType(function.__code__, function.__globals__, function.__name__)  # a copy: it is registered, too
    scope = {"__name__": function.__module__, "body": inline(body), "stay_apart": _stay_apart}
    exec(f"def {function.__name__}({names}):\n    stay_apart()\n    return body({names})", scope)

    @extending.overload(function, strict=False, jit_options={"forceinline": False})  # or it inherits its caller's
    def _compiled(*arguments):
        return scope[function.__name__]

    return function


class Kernel:
    """A compiled loop with two twins: one cached on disk, one fresh for rules defined outside the package.

    ``kernel(...)`` runs compiled; ``kernel.python(...)`` runs the same source in plain Python.
    """

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.python = function
        self._cached = numba.njit(nogil=True)(_borrowing(function))
        self._fresh = numba.njit(nogil=True)(_borrowing(function))
        try:
            self._cached._cache = _Cache(function)
        except RuntimeError:  # no writable cache directory
            log.info("kernels are not kept on disk: cannot write to %s", cache_directory())

    def __call__(self, *arguments):
        """Run compiled."""
        ours = all(map(_ours, arguments))
        twin = self._cached if ours else self._fresh
        kept = "once; kept on disk" if ours else "in every process: a rule is from outside the package"
        with event.install_listener("numba:compile", _Announce(twin, kept)):
            return twin(*arguments)


def kernel(function):
    """Compile a loop over rules; see :class:`Kernel`."""
    return Kernel(function)


#: For small helpers of kernels: plain Python when called from Python, and in compiled code always inlined by LLVM, so
#: that the order of compilation cannot change speed.
inline = register_jitable(forceinline=True)
#: For sums: compiled also when called from Python, with additions reordered and multiply-adds fused for vectorisation,
#: so that both worlds add in the same order. NaN and infinity still behave.
inline_sum = numba.njit(forceinline=True, fastmath={"reassoc", "contract"})


def or_numpy(twin):
    """For loops over one vector: compiled they are as fast as can be, and in plain mode `twin` does the same."""
    return lambda function: function


class RuleType(types.NamedTuple):
    """The Numba type of a rule. Its own class, so that our methods never meet another library's tuples."""

    def __init__(self, members, cls):
        super().__init__(members, cls)
        self.name = f"Rule[{cls.__module__}.{cls.__qualname__}]({', '.join(map(str, members))})"

    def __bool__(self):
        # Numba tests a receiver for truth, and the type of a rule without fields would otherwise be false.
        return True


extending.register_model(RuleType)(datamodel.models.TupleModel)
extending.unbox(RuleType)(unbox_tuple)
extending.box(RuleType)(box_namedtuple)


def register(cls):
    """Let kernels take values of a class of rules."""

    @typeof_impl.register(cls)
    def _typeof(value, context):
        return RuleType([typeof_impl(field, context) for field in value], cls)


def expose(name, arguments):
    """Let compiled code call a method of rules by this name."""
    scope = {}
    exec(f"def {name}(self, {arguments}): return getattr(self.instance_class, {name!r}, None)", scope)
    # forceinline is LLVM's inlining. Numba's own inline="always" silently drops array writes (0.61 to 0.68).
    extending.overload_method(RuleType, name, jit_options={"forceinline": True})(scope[name])


def overload(function):
    """Let compiled code choose by types what a function is: the decorated one gets types, and returns a function."""
    return extending.overload(function, jit_options={"forceinline": True})


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
