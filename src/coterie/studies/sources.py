"""Fingerprint of a computation: the source of a function and of what it uses, compiled code, and versions."""

from __future__ import annotations

import ast
import hashlib
import inspect
import platform
import sysconfig
import textwrap
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from .._digest import digest_of
from .._version import __version__
from ..core.compile import digest

#: Packages whose versions are recorded.
PACKAGES = ("numpy", "scipy", "numba", "scikit-learn", "pandas", "matplotlib")


@cache
def versions() -> dict[str, str]:
    """Return the versions of everything that results may depend on."""
    return {"coterie": __version__, "python": platform.python_version(), "machine": platform.machine()} | {
        name: version(name) for name in PACKAGES
    }


def fingerprint(job: Callable[..., Any]) -> str:
    """Return a digest of everything that the results of a function depend on.

    These are compiled code, versions, the function's source, and the source of functions, classes and constants that it
    uses, directly or indirectly, in modules that are not installed: a script, a notebook, a folder beside it.
    """
    seen: dict[Any, str] = {}
    while isinstance(job, partial):
        seen["partial", len(seen)] = digest_of(job.args, job.keywords)
        job = job.func
    _use(job if inspect.isroutine(job) or inspect.isclass(job) else type(job), seen)
    state = hashlib.sha256(digest().encode())
    for text in [*sorted(seen.values()), repr(versions())]:
        state.update(text.encode())
    return state.hexdigest()[:16]


def _use(thing: Any, seen: dict[Any, str]) -> None:
    """Add the source of a function or class, and of the objects that it uses, to `seen`."""
    thing = inspect.unwrap(thing)
    source, names = _source(thing)
    seen[thing.__module__, thing.__qualname__] = source
    scope = dict(vars(inspect.getmodule(thing) or object)) | dict(_closure(thing))
    for name in sorted(names & scope.keys()):
        found = inspect.unwrap(scope[name]) if callable(scope[name]) else scope[name]
        if inspect.isfunction(found) or inspect.isclass(found):
            if (found.__module__, found.__qualname__) not in seen and _own(inspect.getmodule(found)):
                _use(found, seen)
        elif inspect.ismodule(found):
            if _own(found) and getattr(found, "__file__", None):
                seen[found.__name__, ""] = Path(str(found.__file__)).read_text()
        else:
            seen[thing.__module__, name] = f"{name} = {digest_of(found)}"


def _source(thing: Any) -> tuple[str, set[str]]:
    """Return the source of a function or class, and all names in it, including defaults and nested functions."""
    try:
        text = textwrap.dedent(inspect.getsource(thing))
        return text, {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    except (OSError, TypeError, SyntaxError):  # without source: use the compiled code
        code = getattr(thing, "__code__", None)
        parts = list(_compiled(code)) if code is not None else []
        return repr(parts), {name for names, *_ in parts for name in names}


def _compiled(code: CodeType) -> Iterator[tuple[Any, ...]]:
    yield code.co_names, code.co_code, [each for each in code.co_consts if not isinstance(each, CodeType)]
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _compiled(each)


def _closure(thing: Any) -> Iterator[tuple[str, Any]]:
    """Generate the names and values of a function's closure."""
    cells = getattr(thing, "__closure__", None) or ()
    for name, cell in zip(getattr(getattr(thing, "__code__", None), "co_freevars", ()), cells, strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue


@cache
def _installed() -> tuple[Path, ...]:
    return tuple(Path(path).resolve() for path in set(sysconfig.get_paths().values()))


def _own(module: ModuleType | None) -> bool:
    """Return whether a module is the user's: neither coterie's, nor Python's, nor installed."""
    if module is None or module.__name__.partition(".")[0] == "coterie":
        return False
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ == "__main__"
    path = Path(file).resolve()
    return not any(path.is_relative_to(home) for home in _installed()) and "site-packages" not in path.parts
