"""Packages whose names are imported when they are first used: a process pays only for what it needs.

A real peer is a few modules on top of NumPy. Importing all of coterie would bring pandas, scikit-learn, Matplotlib and
more, for most of its memory and of the time it takes to start.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, table: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package (PEP 562), whose submodules are found by their names, too.

    Parameters
    ----------
    package : str
        ``__name__`` of the package.
    table : dict of str to str
        Names, with spaces between them, by the submodule that has them; one that begins with a point is beside the
        package. No submodule may have such a name itself.

    Returns
    -------
    (callable, callable)

    Examples
    --------
    >>> find, names = lazy("coterie", {"errors": "DataError GraphError"})
    >>> find("DataError").__module__, "DataError" in names()
    ('coterie.errors', True)
    >>> find("mistake")
    Traceback (most recent call last):
    AttributeError: module 'coterie' has no attribute 'mistake'
    """
    home = {name: module for module, names in table.items() for name in names.split()}
    scope = vars(sys.modules[package])

    def __getattr__(name: str) -> Any:  # noqa: N807 - what Python calls it
        if name in home:
            scope[name] = getattr(importlib.import_module(f".{home[name]}", package), name)
            return scope[name]
        if not name.startswith("__") and importlib.util.find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__() -> list[str]:  # noqa: N807
        return sorted({*scope, *scope.get("__all__", ()), *home})

    return __getattr__, __dir__
