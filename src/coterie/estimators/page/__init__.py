"""A report as an HTML page: one file that needs no other file.

:mod:`.contents` turns a report into one JSON document of plain values; ``report.js`` draws it. The page has no other
data, and makes no requests.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import html
import json
import os
import re
from importlib import resources
from pathlib import Path
from typing import Any

from ..._files import write_atomic
from ...errors import FileError, ParameterError
from .contents import document


def check_path(path: str | os.PathLike[str]) -> None:
    """Refuse a path to which the page cannot be written, before the report is computed."""
    if not isinstance(path, str | os.PathLike):
        raise ParameterError(f"path={path!r} must be a path; pass other arguments by name, such as report(folds=5)")
    goal = Path(path)
    if goal.is_dir():
        raise FileError(
            errno.EISDIR, f"{goal} cannot be written: it is a folder; name a file in it, such as report.html"
        )
    if goal.suffix.lower() not in ("", ".html", ".htm"):
        raise ParameterError(f"{goal}: a report is written as a page for a browser; name it {goal.stem}.html")
    if not goal.parent.is_dir():
        raise FileError(errno.ENOENT, f"{goal} cannot be written: there is no folder {goal.parent}; make it first")
    if not os.access(goal.parent, os.W_OK):
        raise FileError(errno.EACCES, f"{goal} cannot be written: {goal.parent} is a folder that you may not write to")


def write(report: Any, path: str | os.PathLike[str]) -> Path:
    """Write the page."""
    check_path(path)
    return write_atomic(path, assembled(document(report), repr(report)).encode(), durable=False)


def assembled(content: dict[str, Any], text: str) -> str:
    """Return the page for a document; `text` is shown by browsers without JavaScript."""
    css, script = (_file(name).replace("\r\n", "\n") for name in ("report.css", "report.js"))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(css)}; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": html.escape(policy, quote=False),
        "title": html.escape(_encodable(str(content["title"]))),
        "css": css,
        "script": script,
        "data": _json(content),
        "text": html.escape(_encodable(text)),
    }
    # All parts are replaced in one pass: placeholders in names of agents are not replaced.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _file("report.html"))


def _json(content: Any) -> str:
    """Return JSON without characters that a browser could read as a tag."""
    plain = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return plain.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _encodable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


__all__ = ["assembled", "check_path", "document", "write"]
