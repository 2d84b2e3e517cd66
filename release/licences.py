"""Write a page with the licences of all dependencies: ``python release/licences.py docs/licences.md``.

The script reads the installed packages, so run it in an environment with all extras: ``make licences`` does.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
#: Extras for the development of coterie, and for Flower, which users of coterie do not install.
NOT_FOR_USERS = {"dev", "docs", "bench", "flower", "release"}
#: Words in the names of permissive licences.
PERMISSIVE = ("apache", "bsd", "mit", "isc", "psf", "python software foundation", "mpl", "mozilla", "unlicense", "0bsd")
PERMISSIVE += ("zlib", "hpnd", "cc0", "zpl", "public domain", "blueoak", "bsl-1.0")
#: Licences of packages without licence metadata, read from the files of the packages.
STATED = {"huey": "MIT", "skops": "MIT"}

HEAD = """\
# Licences of dependencies

coterie itself is under the Apache License 2.0. These packages are installed with it, or with one of its extras; their
licences are as their own metadata states them. `make licences` writes this page anew; `make sbom` lists versions, too,
in the format of CycloneDX. PyTorch was its build for CPUs; builds for accelerators bring packages of their vendors,
under licences of their own.

"""


def direct(extras: set[str] | None = None) -> dict[str, list[Requirement]]:
    """Return the requirements in pyproject.toml: key "" for those always installed, other keys for extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {"": project["dependencies"], **project["optional-dependencies"]}
    chosen = {name for name in asked if name not in NOT_FOR_USERS} if extras is None else extras
    return {
        name: [made for text in lines if (made := Requirement(text)).name != "coterie"]
        for name, lines in asked.items()
        if name in chosen
    }


def closure(requirements: list[Requirement]) -> set[str]:
    """Return the names of the installed packages that the requirements need, directly or indirectly."""
    found: set[str] = set()
    waiting = [(one, extra) for one in requirements for extra in ("", *one.extras)]
    seen: set[tuple[str, str]] = set()
    while waiting:
        one, extra = waiting.pop()
        name = canonicalize_name(one.name)
        if (name, extra) in seen or (one.marker is not None and not one.marker.evaluate({"extra": extra})):
            continue
        seen.add((name, extra))
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        for text in needs:
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                need.marker = None
                waiting += [(need, more) for more in ("", *need.extras)]
    return found


def licence(name: str) -> str:
    """What a package says of its licence, on one line."""
    about = metadata.metadata(name)
    if (stated := about.get("License-Expression")) is not None:
        return str(stated)
    prefix = "License :: "
    named = [line.rsplit(" :: ", 1)[1] for line in about.get_all("Classifier") or [] if line.startswith(prefix)]
    named = [line for line in named if line != "OSI Approved"]
    text = (about.get("License") or "").strip()
    if named:
        return ", ".join(named)
    if name in STATED:
        return STATED[name]
    return re.sub(r"\s+", " ", text.splitlines()[0])[:60] if text else "not stated"


def is_permissive(text: str) -> bool:
    """Whether one may use coterie with it freely: all of its parts, in one of the ways to choose from."""
    choices = [re.split(r" and |, ", choice) for choice in text.lower().split(" or ")]
    words = re.compile(rf"(?<![a-z])({'|'.join(map(re.escape, PERMISSIVE))})(?![a-z])")  # not the "mit" of "limited"
    return any(all(words.search(part) for part in choice) for choice in choices)


def page() -> str:
    """The page, as Markdown."""
    asked = direct()
    lines = HEAD.splitlines()
    missing = sorted(one.name for needs in asked.values() for one in needs if not closure([one]) and one.marker is None)
    if missing:
        raise SystemExit(f"not installed: {', '.join(missing)}; install every extra first, as `make licences` does")
    told: set[str] = set()
    for extra, needs in asked.items():
        names = closure(needs) - told
        if not names:
            continue
        told |= names
        own = {canonicalize_name(one.name) for one in needs}
        title = "Always installed" if not extra else f"With the extra `{extra}`"
        lines += [f"## {title}", "", "| package | licence | asked for by |", "|---|---|---|"]
        lines += [f"| {name} | {licence(name)} | {'coterie' if name in own else 'others'} |" for name in sorted(names)]
        lines += [""]
    return "\n".join(lines)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
