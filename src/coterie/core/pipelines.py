"""Compiler pipelines for kernels and their helpers; helpers are compiled only as far as a kernel needs to inline them.

By default Numba optimises every function, and writes machine code for it, before another function may call it. For
helpers that are always inlined this work is thrown away; and since each helper contains those that it calls, the
innermost would be optimised once for every function around it, which took half the time of a first run.

This depends on Numba's internals: the import fails with a Numba newer than the newest one tested.
"""

from __future__ import annotations

from numba import version_info
from numba.core.codegen import JITCodeLibrary, ll  # type: ignore[attr-defined]
from numba.core.compiler import CompilerBase, DefaultPassBuilder, _LowerResult
from numba.core.compiler_machinery import register_pass
from numba.core.cpu import _dynfunc  # type: ignore[attr-defined]
from numba.core.typed_passes import NativeLowering, NopythonTypeInference, type_inference_stage

from .fingerprint import NEWEST_NUMBA

if version_info.short > NEWEST_NUMBA:
    raise ImportError(f"Numba {version_info.string} is newer than {NEWEST_NUMBA}")


class _HelperCode(JITCodeLibrary):
    """Code of a helper: neither optimised nor made executable, and without the code of helpers that it calls."""

    def add_linking_library(self, library):
        """Record a library whose code is needed, too."""
        self._linking_libraries.append(library)

    def add_llvm_module(self, ll_module):
        ll_module.data_layout = self._codegen._data_layout
        self._final_module.link_in(ll_module)
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == ll.Linkage.external:
                function.linkage = "linkonce_odr"  # as in Numba: a kernel keeps a helper that it has not inlined

    # For a function other than our kernels that calls the helper: all code together, still not optimised.

    def _optimize_final_module(self):
        pass

    def _finalize_final_module(self):
        self._finalized = True


def _needed(libraries, found):
    """Add libraries, and the libraries that helpers among these need, to `found`, each once."""
    for library in libraries:
        if library not in found:
            found[library] = None
            if isinstance(library, _HelperCode):
                _needed(library._linking_libraries, found)
    return found


class _KernelCode(JITCodeLibrary):
    """Code of a kernel, including that of its helpers."""

    def add_linking_library(self, library):
        """Record a library whose code is needed, too."""
        self._linking_libraries.append(library)

    def finalize(self):
        """Link every needed library once, and generate machine code."""
        needed, self._linking_libraries = _needed(self._linking_libraries, {}), []
        for library in needed:
            if isinstance(library, _HelperCode):
                self._take_in(library)
            else:
                super().add_linking_library(library)
        # LLVM links only functions that are called so far, and a helper may be called by a later one only.
        missing = self._missing()
        for library in needed:
            if isinstance(library, _HelperCode) and missing & _defined(library._final_module):
                self._take_in(library)
                missing = self._missing()
        super().finalize()

    def _take_in(self, library):
        self._final_module.link_in(library._final_module, preserve=True)

    def _missing(self):
        """Return functions of coterie and Numba that are called but not linked; others belong to the runtime."""
        return {f.name for f in self._final_module.functions if f.is_declaration and f.name.startswith("_ZN")}

    def _verify_declare_only_symbols(self):
        missing = self._missing()
        if missing:  # to call one would end the process
            raise AssertionError(f"{self.name} was linked without {missing}")


def _defined(module):
    return {f.name for f in module.functions if not f.is_declaration}


@register_pass(mutates_CFG=True, analysis_only=False)
class _InferTypes(NopythonTypeInference):
    """Numba's type inference, except that functions may return a part of an array without counted references.

    This is safe for kernels: every array belongs to the kernel's caller, which holds a reference.
    """

    _name = "coterie_infer_types"

    def run_pass(self, state):
        given = state.func_ir, state.args, state.return_type, state.locals
        typed = type_inference_stage(state.typingctx, state.targetctx, *given, raise_errors=True)
        state.typemap, state.return_type, state.calltypes, state.typing_errors = typed
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerHelper(NativeLowering):
    _name = "coterie_lower_helper"

    def run_pass(self, state):
        state.library = _HelperCode(state.targetctx.codegen(), state.func_id.func_qualname)
        super().run_pass(state)
        made = state["cr"]
        # Numba identifies a function by its Python wrapper; a helper has no wrapper, and so no address.
        name = made.fndesc.qualname.rpartition(".")[2]
        entry = _dynfunc.make_function(made.fndesc.lookup_module(), name, "", 0, made.env, (state.library,))
        state.targetctx.insert_user_function(entry, made.fndesc, [state.library])
        state["cr"] = _LowerResult(made.fndesc, made.call_helper, cfunc=entry, env=made.env)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerKernel(NativeLowering):
    _name = "coterie_lower_kernel"

    def run_pass(self, state):
        state.library = _KernelCode(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().run_pass(state)


def _steps(state, **others):
    """Return Numba's compiler steps, some of them replaced by `others`."""
    steps = DefaultPassBuilder.define_nopython_pipeline(state)
    steps.passes = [(others.get(step.__name__, step), why) for step, why in steps.passes]
    steps.finalize()
    return [steps]


class HelperPipeline(CompilerBase):
    """The compiler pipeline of helpers."""

    def define_pipelines(self):
        """Return the compiler steps, in order."""
        flags = self.state.flags
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        return _steps(self.state, NopythonTypeInference=_InferTypes, NativeLowering=_LowerHelper)


class KernelPipeline(CompilerBase):
    """The compiler pipeline of kernels."""

    def define_pipelines(self):
        """Return the compiler steps, in order."""
        return _steps(self.state, NativeLowering=_LowerKernel)


def furnish(kernel):
    """Give the helpers in a kernel their environments, which are needed to raise errors."""
    for environment in kernel._find_referenced_environments():
        kernel.library.codegen.set_env(environment.env_name, environment)
