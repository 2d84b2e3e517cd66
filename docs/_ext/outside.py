"""Links from pages to files outside docs/: they work on a code host as they are, and here by pages that show them.

A Markdown file becomes a page of the site, any other one a page with its text; examples of the gallery have theirs
already. The pages are written to docs/files before the build, with a suffix of their own, since they are copies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
FILES = DOCS / "files"
#: Of the pages that are written here: other programs look for ``*.md``.
SUFFIX = ".markdown"
#: Files that have a page even if no other links to them.
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_LANGUAGES = {".py": "python", ".json": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".sh": "sh"}


def targets(text: str, of: Path) -> Iterator[Path]:
    """Files of this repository, outside docs/, that the Markdown of a file links to."""
    for match in _LINK.finditer(text):
        found = _outside(match[1], of)
        if found is not None:
            yield found


def relinked(text: str, of: Path, at: Path) -> str:
    """The Markdown of a file, with links as they must be where its page is: at the path ``at``."""

    def moved(match: re.Match[str]) -> str:
        outside = _outside(match[1], of)
        found = page(outside) if outside is not None else of.parent / match[1]
        if outside is None and at == of:
            return match[0]
        return Path(os.path.relpath(found, at.parent)).as_posix() + (match[2] or "")

    return _LINK.sub(moved, text)


def page(path: Path) -> Path:
    """The page that shows a file."""
    if path.parent == ROOT / "examples" and re.fullmatch(r"plot_.*\.py|GALLERY_HEADER\.rst", path.name):
        return DOCS / "gallery" / ("index.rst" if path.suffix == ".rst" else f"{path.stem}.rst")
    inside = path.relative_to(ROOT)
    return FILES / (inside.with_suffix(SUFFIX) if path.suffix == ".md" else inside.with_name(inside.name + SUFFIX))


def write_pages() -> None:
    """Write the pages of all files that pages of the site link to, and of those that these link to."""
    ours = [path for path in DOCS.rglob("*.md") if FILES not in path.parents]
    todo = [ROOT / name for name in ALWAYS if (ROOT / name).is_file()]
    todo += [target for path in ours for target in targets(path.read_text(encoding="utf-8"), path)]
    written = set()
    while todo:
        path = todo.pop()
        at = page(path)
        if at in written or FILES not in at.parents:
            continue
        written.add(at)
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            todo += targets(text, path)
        _write(at, _shown(path, text, at))
    for old in FILES.rglob("*" + SUFFIX):
        if old not in written:
            old.unlink()


def _outside(link: str, of: Path) -> Path | None:
    """The file that a link leads to, if it is in this repository and outside docs/."""
    found = Path(os.path.normpath(of.parent / link))
    return found if found.is_file() and ROOT in found.parents and DOCS not in found.parents else None


def _shown(path: Path, text: str, at: Path) -> str:
    orphan = "---\norphan: true\n---\n\n"
    if path.suffix == ".md":
        return orphan + relinked(text, path, at)
    source = Path(os.path.relpath(path, at.parent)).as_posix()
    language = _LANGUAGES.get(path.suffix, "text")
    title = path.relative_to(ROOT).as_posix()
    return f"{orphan}# `{title}`\n\n```{{literalinclude}} {source}\n:language: {language}\n```\n"


def _write(path: Path, text: str) -> None:
    """Only what has changed is written, so that only that is built again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
