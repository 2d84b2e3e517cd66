"""What the reference shows of each public name, and where."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from functools import cached_property, reduce
from pathlib import Path
from types import FunctionType
from typing import Any

import coterie

#: Members that are private, or scikit-learn's, and the same in all estimators.
_UNSHOWN = re.compile(r"_|[gs]et_params$|get_metadata_routing$|set_\w+_request$")
_KINDS = (FunctionType, property, cached_property, classmethod, staticmethod)
FOLDER = Path(__file__).resolve().parents[1] / "reference"


def listed() -> list[str]:
    """The names that the pages of the reference list, such as ``coterie.graphs.ring``."""
    names = []
    for path in sorted(FOLDER.glob("*.md")):
        module = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if found := re.match(r"\.\. (?:current|auto)?module:: (\S+)$", line):
                module = found[1]
            elif found := re.match(r"   ([A-Za-z_][\w.]*)$", line):
                names.append(f"{module}.{found[1]}")
            elif line == "   :members:":
                names += [f"{module}.{name}" for name in public(value(module))]
    return names


def public(module: Any) -> list[str]:
    """The names of a module that are for everybody."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = [name for name, what in vars(module).items() if getattr(what, "__module__", "") == module.__name__]
    return [name for name in own if not name.startswith("_")]


def value(name: str) -> Any:
    """What a listed name stands for."""
    return reduce(getattr, name.split(".")[1:], coterie)


def titles() -> dict[str, str]:
    """Of the pages of all names: as people write them after ``ct.``."""
    return {name: name.removeprefix("coterie.").replace("datasets.splits.", "splits.") for name in listed()}


def members_of() -> dict[str, list[str]]:
    """Of all classes, what their pages show."""
    return {name: members(name) for name in listed() if inspect.isclass(value(name))}


def members(name: str) -> list[str]:
    """Methods and properties of a class that its page shows: ours, with a docstring.

    Losses and methods are called by the engines, and by nobody else: their parts are described in docs/how-to.
    """
    cls = value(name)
    if issubclass(cls, tuple):
        return []
    shown = []
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("coterie"):
            for member, what in vars(base).items():
                told = isinstance(what, _KINDS) and inspect.getdoc(getattr(cls, member))
                if told and member not in shown and not _UNSHOWN.match(member):
                    shown.append(member)
    return shown


def filenames() -> dict[str, str]:
    """Other file names for names that differ from another by the case of their letters alone."""
    alike = defaultdict(list)
    for name in listed():
        alike[name.lower()].append(name)
    several = [name for names in alike.values() if len(names) > 1 for name in names]
    return {name: f"{name}-class" for name in several if inspect.isclass(value(name))}
