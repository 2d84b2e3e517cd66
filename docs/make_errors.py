"""Write ``errors.md``: every error of coterie, with its cause and what to do about it.

``make errors``, or ``python docs/make_errors.py``, reads the sources of coterie, takes every error that they make, puts
each of them to the situation of ``errors.toml`` that it belongs to, and writes the page. It refuses an error that
belongs to none: add it to a situation, or write a new one.
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import re
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parent
SOURCES = DOCS.parent / "src" / "coterie"
SITUATIONS, PAGE = DOCS / "errors.toml", DOCS / "errors.md"


class Message(NamedTuple):
    """An error as the sources make it: of which class, where, and with what text."""

    kind: str
    path: str
    line: int
    text: str


class Raise(NamedTuple):
    """A ``raise`` in the sources: the messages that it can show, or what it raises if it makes none itself."""

    path: str
    line: int
    what: str
    messages: tuple[Message, ...]


class Page(NamedTuple):
    """What ``errors.toml`` says, and what was found for it."""

    situations: list[dict[str, Any]]
    hidden: list[dict[str, Any]]
    chapters: dict[str, str]


# -- sources ----------------------------------------------------------------------------------------------------------


class Sources:
    """All modules of the package: their classes of errors, their functions and the texts that they name."""

    def __init__(self, root: Path = SOURCES):
        self.trees = {
            path.relative_to(root).as_posix(): ast.parse(path.read_text(), str(path))
            for path in sorted(root.rglob("*.py"))
        }
        self.inside: dict[ast.AST, ast.AST] = {}  # what a node is a part of
        self.interesting: dict[str, list[ast.Call | ast.Raise]] = {path: [] for path in self.trees}
        self.functions: dict[str, list[tuple[str, ast.FunctionDef]]] = {}
        self.texts: dict[tuple[str, str], ast.expr] = {}
        self.kinds = {"NotImplementedError", "AssertionError", "KeyboardInterrupt", "typer.Exit"}
        self.kinds |= {"ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "RuntimeError", "OSError"}
        classes: list[ast.ClassDef] = []
        for path, tree in self.trees.items():
            waiting: list[ast.AST] = [tree]
            while waiting:
                node = waiting.pop()
                if isinstance(node, ast.FunctionDef):
                    self.functions.setdefault(node.name, []).append((path, node))
                elif isinstance(node, ast.ClassDef):
                    classes.append(node)
                elif isinstance(node, ast.Call | ast.Raise):
                    self.interesting[path].append(node)
                for child in ast.iter_child_nodes(node):
                    self.inside[child] = node
                    waiting.append(child)
            for node in tree.body:
                if (
                    isinstance(node, ast.Assign)
                    and _is_text(node.value)
                    and not _name(node.targets[0]).startswith("__")
                ):
                    self.texts[path, _name(node.targets[0])] = node.value
        for path, tree in self.trees.items():  # those of other modules, by their names here
            for node in tree.body:
                if isinstance(node, ast.ImportFrom) and node.module:
                    for name in node.names:
                        for home in [other for other, known in list(self.texts) if known == name.name]:
                            if home.removesuffix(".py").endswith(node.module.replace(".", "/")):
                                self.texts[path, name.name] = self.texts[home, name.name]
        self.kinds.add("CoterieError")
        size = 0
        while size != len(self.kinds):  # subclasses of subclasses
            size = len(self.kinds)
            self.kinds |= {
                node.name
                for node in classes
                if {_name(base) for base in node.bases} & (self.kinds | {"Exception"})
                and (node.name.endswith("Error") or node.name in UNUSUAL)
            }

    @functools.cached_property
    def raises(self) -> list[Raise]:
        """Every ``raise`` there is, and every error that is made elsewhere, in the order of files and lines."""
        found = []
        for path, nodes in self.interesting.items():
            seen: set[ast.AST] = set()
            for node in sorted(nodes, key=lambda node: (node.lineno, isinstance(node, ast.Call))):
                if isinstance(node, ast.Raise):
                    made = [call for call in ast.walk(node.exc) if self.makes(call)] if node.exc else []
                    seen.update(made)
                    found.append(self._raise(path, node, made))
                elif node not in seen and self.makes(node):
                    found.append(self._raise(path, node, [node]))
        return found

    def makes(self, node: ast.AST) -> bool:
        """Whether this expression makes an error; ``type(error)(...)`` repeats one."""
        return isinstance(node, ast.Call) and (
            _name(node.func) in self.kinds or (_name(node.func) in CALLED and bool(node.args))
        )

    def _raise(self, path: str, node: Any, made: list[Any]) -> Raise:
        messages = []
        for call in made:
            function = call
            while function in self.inside and not isinstance(function, ast.FunctionDef):
                function = self.inside[function]
            kind = _name(call.func)
            for text in self.written(kind, call, function, path):
                messages.append(Message(CALLED.get(kind, kind), path, call.lineno, " ".join(text.split())))
        exc = getattr(node, "exc", node)
        return Raise(path, node.lineno, "" if exc is None else ast.unparse(exc), tuple(messages))

    def written(self, kind: str, call: ast.Call, function: ast.AST, path: str) -> list[str]:
        """The texts of an error: of the last argument for those that begin with a number or a reason."""
        if not call.args:
            return [""]
        if kind in ("Refused", "NotTaken"):
            return [f"{_shown(call.args[0])}: {text}" for text in self.texts_of(call.args[1], function, path)]
        last = 1 if kind in ("FileError", "OSError") and len(call.args) > 1 else 0
        return self.texts_of(call.args[last], function, path)

    def texts_of(self, node: ast.expr, function: ast.AST, path: str, deep: int = 0) -> list[str]:
        """What an expression can say: of a name, what it was set to; of a call, what the function returns."""
        if deep < 3:
            if isinstance(node, ast.Name):
                found = [
                    each.value
                    for each in ast.walk(function)
                    if isinstance(each, ast.Assign) and _name(each.targets[0]) == node.id and _is_text(each.value)
                ]
                if found:
                    return [text for each in found for text in self.texts_of(each, function, path, deep + 1)]
            if isinstance(node, ast.IfExp):
                return self.texts_of(node.body, function, path, deep) + self.texts_of(node.orelse, function, path, deep)
            if isinstance(node, ast.Call):
                known = self.functions.get(_name(node.func), [])
                known = [each for each in known if each[0] == path] or known
                if len(known) == 1:
                    home, called = known[0]
                    said = [each.value for each in ast.walk(called) if isinstance(each, ast.Return) and each.value]
                    if said and all(_is_text(each) or isinstance(each, ast.IfExp) for each in said):
                        return [text for each in said for text in self.texts_of(each, called, home, deep + 1)]
        return [self.text(node, path)]

    def text(self, node: ast.expr, path: str) -> str:
        """A text with <names> where its parts differ."""
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.JoinedStr):
            return "".join(self.text(part, path) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            inner = node.value
            if isinstance(inner, ast.Name) and (path, inner.id) in self.texts:
                return self.text(self.texts[path, inner.id], path)
            if isinstance(inner, ast.IfExp):  # a part that is not always there
                parts = [self.text(each, path) for each in (inner.body, inner.orelse) if ast.unparse(each) != "''"]
                if len(parts) == 1:
                    return f"[{parts[0]}]"
            return f"<{_shown(inner)}>"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.text(node.left, path) + self.text(node.right, path)
        if isinstance(node, ast.Name) and (path, node.id) in self.texts:
            return self.text(self.texts[path, node.id], path)
        return f"<{_shown(node)}>"


#: Errors whose names do not end so.
UNUSUAL = ("MissingExtra", "NotTaken", "Opaque", "Refused")
#: Errors that a function is given the class of, or a helper of such a name makes; and the class that readers see.
CALLED = {"refusal": "DataError", "ValueKindError": "DataError"}


#: How sums are shown; what is divided is a path.
SIGNS: dict[type, str] = {ast.Add: " + ", ast.Sub: " - ", ast.Mult: " * ", ast.Div: "/"}
#: Methods of a value that show it in another way, and what functions give.
OF_VALUES = ("tolist", "hex", "decode", "min", "max", "sum", "strip", "lower", "upper", "item", "splitlines")
CALLS = {
    "label_of": "name",
    "title_of": "name",
    "loads": "value",
    "described": "what differs",
    "hint": "names that there are",
    "getattr": "value",
    "getpid": "process",
    "short": "value",
    "where": "row and agent",
    "describe": "base predictor",
}


def _is_text(node: ast.expr) -> bool:
    return (
        (isinstance(node, ast.Constant) and isinstance(node.value, str))
        or isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and _is_text(node.left))
    )


def _name(node: ast.AST) -> str:
    """The last name of an expression such as ``a.b.c``; with ``typer.`` before it."""
    if isinstance(node, ast.Attribute):
        return f"typer.{node.attr}" if _name(node.value) == "typer" else node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _shown(node: ast.AST) -> str:
    """A short name for a part of a message."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return node.id.strip("_").replace("_", " ").lower() or "value"
    if isinstance(node, ast.Attribute):
        return "name" if node.attr in ("__name__", "__qualname__") else node.attr.strip("_").replace("_", " ").lower()
    if isinstance(node, ast.Subscript):
        return _shown(node.value)
    if isinstance(node, ast.IfExp):
        first, second = _shown(node.body), _shown(node.orelse)
        return first if first == second or second in ("", "...") else second if not first else f"{first}|{second}"
    if isinstance(node, ast.Call):
        name = _name(node.func)
        if name == "len" and node.args:
            return f"number of {_shown(node.args[0])}"
        if name in (
            "join",
            "map",
            "sorted",
            "list",
            "tuple",
            "dict",
            "set",
            "str",
            "repr",
            "type",
            "int",
            "float",
            "fspath",
        ):
            return _shown(node.args[-1]) if node.args else "..."
        if name in ("argmin", "argmax", "searchsorted", "flatnonzero"):
            return "number"
        if name in ("next", "iter", "get", "bytes") and node.args:
            return _shown(node.args[0])
        if isinstance(node.func, ast.Attribute) and (name in OF_VALUES or not node.args) and name not in CALLS:
            return _shown(node.func.value)
        return CALLS.get(name, name.strip("_").replace("_", " ")) or "..."
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        return _shown(node.generators[0].iter)
    if isinstance(node, ast.JoinedStr):
        return "...".join(str(part.value) for part in node.values if isinstance(part, ast.Constant)) or "..."
    if isinstance(node, ast.BoolOp):
        return _shown(node.values[0])
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        left, right = _shown(node.left), _shown(node.right)
        if "..." not in (left, right) and len(left + right) < 24:
            return f"{left}{SIGNS[type(node.op)]}{right}"
    return "..."


# -- situations -------------------------------------------------------------------------------------------------------


def read(path: Path = SITUATIONS) -> Page:
    """What ``errors.toml`` says."""
    found = tomllib.loads(path.read_text())
    return Page(found["situation"], found["hidden"], found["chapters"])


def fits(rule: str, message: Message) -> bool:
    """Whether a rule is of a message: ``files :: text``, ``files ::`` or ``:: text``; text is a regular expression."""
    files, text = (part.strip() for part in rule.split("::", 1))
    return (not files or any(fnmatch.fnmatch(message.path, each) for each in files.split())) and (
        re.search(text, message.text) is not None
    )


def place(message: Message, page: Page) -> dict[str, Any] | None:
    """The first situation that a message belongs to, or the first reason not to show it."""
    for each in page.hidden:
        if message.kind in each["class"] and any(fits(rule, message) for rule in each["match"]):
            return each
    for each in page.situations:
        if message.kind == each["class"] and any(fits(rule, message) for rule in each["match"]):
            return each
    return None


def sorted_out(page: Page, sources: Sources) -> tuple[dict[str, list[str]], list[str]]:
    """The messages of each situation, by its title; and what belongs to none, as lines that say where it is."""
    found: dict[str, list[str]] = {each["title"]: [] for each in page.situations}
    lost = []
    for each in sources.raises:
        if not each.messages and not passes_on(each, page, sources):
            lost.append(f"src/coterie/{each.path}:{each.line}: raise {each.what}")
        for message in each.messages:
            home = place(message, page)
            if home is None:
                lost.append(f"src/coterie/{message.path}:{message.line}: {message.kind}: {message.text}")
            elif "title" in home and message.text not in found[home["title"]]:
                found[home["title"]].append(message.text)
    return found, lost


def passes_on(each: Raise, page: Page, sources: Sources) -> bool:
    """Whether a ``raise`` without a message raises what was made elsewhere, or a class that is not for users."""
    if re.fullmatch(r"([a-z_]\w*(\[\d+\])?)?", each.what):  # what was caught or kept
        return True
    if re.fullmatch(r"[\w.]+", each.what):
        return place(Message(each.what, each.path, each.line, ""), page) is not None
    helper = re.match(r"[\w.]+", each.what)
    name = helper[0].rpartition(".")[2] if helper else ""
    return name == "about" or any(
        sources.makes(node) for _, function in sources.functions.get(name, []) for node in ast.walk(function)
    )


def anchor(title: str) -> str:
    """The part of an address after #, as code hosts and the documentation make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


ADVICE = "{count} errors belong to no situation: add rules for them to docs/errors.toml, then run make errors"
INTRODUCTION = """\
<!-- Written by docs/make_errors.py from the sources and docs/errors.toml: change these, then run it again. -->

# Errors

Every error of coterie says what was found, what was expected and what to do. This page lists all of them by class and
by situation, with the cause and the cure. Search it for the words of your message: parts in `<angle brackets>` are
filled in, and parts in `[square brackets]` are not always there. `coterie` commands print the same messages in one
line; see [exit codes](#exit-codes).

All classes derive from `ct.errors.CoterieError`, and from the class of Python that fits:

```text
{tree}
```

Is a message not clear, or its cure wrong? That is a bug: please report it.
"""

EXIT_CODES = """\
## Exit codes

A command that refuses prints `error:` and one line to standard error, or, with `--json`, an object with `error` and
`kind`, the class.

| code | what it means |
|---|---|
| 0 | done |
| 1 | a bug: please report it, with what was printed |
| 2 | the command or one of its options was not understood |
| 3 | bad input: one of the errors on this page |
| 4 | an audit failed |
| 5 | the steward has removed this peer from the group: `RemovedError` |
| 6 | not now, perhaps later: a full disk, a port that is taken |
| 130 | interrupted by Ctrl-C |

`coterie peer check` has the codes of monitoring: 0 is ok, 1 a warning, 2 critical, 3 cannot tell.
"""


def written(page: Page, messages: dict[str, list[str]], tree: str) -> str:
    """The page."""
    parts = [INTRODUCTION.format(tree=tree)]
    listed = []
    for kind in page.chapters:
        listed.append(f"* [{kind}](#{anchor(kind)})")
        listed += [
            f"  * [{each['title']}](#{anchor(each['title'])})" for each in page.situations if each["class"] == kind
        ]
    parts.append("\n".join([*listed, f"* [Exit codes](#{anchor('Exit codes')})", ""]))
    for kind, about in page.chapters.items():
        parts.append(f"## {kind}\n\n{_wrapped(about)}\n")
        for each in page.situations:
            if each["class"] != kind:
                continue
            lines = [
                f"### {each['title']}",
                "",
                _wrapped(each["cause"]),
                "",
                _wrapped(f"**What to do:** {each['cure']}"),
                "",
            ]
            lines += [f"* {_code(text)}" for text in messages[each["title"]]]
            parts.append("\n".join([*lines, ""]))
    parts.append(EXIT_CODES)
    return "\n".join(parts)


def _wrapped(text: str) -> str:
    return textwrap.fill(text.strip(), 125, break_long_words=False, break_on_hyphens=False)


def _code(text: str) -> str:
    """A message as code, whatever is in it."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def tree_of_classes() -> str:
    """The tree in the docstring of errors.py."""
    text = ast.get_docstring(ast.parse((SOURCES / "errors.py").read_text())) or ""
    lines = text.split("::\n", 1)[1].split("\n\nAn error", 1)[0].strip("\n").splitlines()
    return "\n".join(line[4:] for line in lines)


def main() -> None:
    """Write the page, or say what belongs nowhere."""
    page, sources = read(), Sources()
    messages, lost = sorted_out(page, sources)
    for line in lost:
        print(line, file=sys.stderr)
    for title in (title for title, found in messages.items() if not found):
        print(f"errors.toml: no message belongs to {title!r}", file=sys.stderr)
    if lost:
        sys.exit(ADVICE.format(count=len(lost)))
    PAGE.write_text(written(page, messages, tree_of_classes()))
    print(f"{PAGE}: {sum(map(len, messages.values()))} messages in {len(messages)} situations")


if __name__ == "__main__":
    main()
