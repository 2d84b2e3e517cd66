"""Runs every code block of a Markdown page, from top to bottom: ``python tests/docs/pages.py docs/math.md``.

A page has one Python namespace and one temporary working folder. Pages that start peers run one after the other, so
that all may use the same ports. Blocks::

    ```python         with >>> prompts: a doctest. Without: executed. Warnings are errors
    ```sh             run by bash -eu -o pipefail; what is left in the background (&) is killed at the end of the page
    ```text, json ..  not run

and marks, each a comment on the line before a block::

    <!-- output -->             a text block: what the block that ran before it printed (... stands for anything)
    <!-- file: NAME -->         the block is written to NAME in the page's folder, and not run
    <!-- not run: REASON -->    a python or sh block that needs other machines, root or hours. It is checked, not run
    <!-- needs: MODULE -->      run where MODULE can be imported; elsewhere checked as one that is not run
    <!-- setup: python          run, and not shown: code lines follow, then --> on a line of its own. Also setup: sh
    <!-- slow: REASON -->       the first line of a page: only `make test-docs` runs it

Every block has one of these languages. One that is not run must still be right: Python compiles and every ``ct.NAME``
exists; every ``coterie`` command, its options and its arguments exist; every ``make`` target, script, module and extra
exists.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import doctest
import fcntl
import functools
import importlib
import importlib.metadata
import importlib.util
import io
import linecache
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
import tomllib
import traceback
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
#: Seconds that one block may take, and one of a page that is marked as slow: far more than any needs, since the
#: first run compiles, and the machine may be busy.
LIMIT, SLOW_LIMIT = 900, 1800

#: Of a traceback, so many steps are shown; of a wrong output, so many messages.
DEPTH, MOST = 8, 4000

CODE = ("python", "sh")
TEXT = ("bibtex", "cff", "css", "csv", "diff", "dockerfile", "html", "ini", "json", "latex", "markdown", "math", "r")
TEXT += ("rst", "svg", "text", "toml", "xml", "yaml")
#: Directives of MyST that would show code and hide it from here.
CODE_DIRECTIVES = ("code", "code-block", "code-cell", "doctest", "python", "sourcecode", "testcode")

FENCE = re.compile(r"(?:[ \t]*(?:[-*+]|\d+[.)])[ \t])?[ \t]*(?P<fence>`{3,}(?=[^`]*$)|~{3,})[ \t]*(?P<info>.*?)[ \t]*$")
MARK = re.compile(
    r"[ \t]*<!--[ \t]*(?P<mark>output(?=[ \t]*-->)|(?:file|not run|needs|setup|slow)(?=:)):?(?P<value>.*)$"
)


class PageError(AssertionError):
    """A block is wrong: names the page, the line and the block."""


@dataclass(frozen=True)
class Block:
    """One fenced block, or one hidden setup block, of a page."""

    page: Path
    line: int  # of the fence, counted from 1
    language: str
    text: str
    mark: str = ""  # output, file, not run, needs, setup
    value: str = ""  # of the mark

    @property
    def kind(self) -> str:
        """Its class: doctest, python, sh, output, file, not run, directive or text."""
        if self.mark in ("output", "file", "not run"):
            return self.mark
        if self.language == "python":
            return "doctest" if _has_prompt(self.text) else "python"
        if self.language.startswith("{"):
            return "directive"
        return self.language if self.language == "sh" else "text"

    def wrong(self, what: str, line: int | None = None) -> PageError:
        """The error that says where it is."""
        where = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page
        name = f"setup: {self.language}" if self.mark == "setup" else f"```{self.language}"
        block = f" in the {name} block of line {self.line}:" if self.text else ""
        return PageError(f"{where}:{line or self.line}:{block} {what}")


# -- reading ---------------------------------------------------------------------------------------------------------


def pages(root: Path = ROOT) -> list[Path]:
    """All pages of the documentation."""
    alone = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "benchmarks/README.md")
    made = root / "docs" / "gallery", root / "docs" / "_build"  # by the build of the site
    found = sorted((root / "docs").rglob("*.md"))
    return [root / name for name in alone if (root / name).exists()] + [
        path for path in found if not any(path.is_relative_to(folder) for folder in made)
    ]


def slow_reason(page: Path) -> str | None:
    """Why a page is slow, if it says so."""
    first = page.read_text(encoding="utf-8").partition("\n")[0]
    found = MARK.match(first)
    return _value(found) if found and found["mark"] == "slow" else None


def starts_peers(blocks: list[Block]) -> bool:
    """Whether a page runs real peers, in real time."""
    return any(block.kind == "sh" and re.search(r"coterie (peer run|relay|lab)\b", block.text) for block in blocks)


def read(page: Path) -> list[Block]:
    """All blocks of a page, in order. A block that would escape is a `PageError`."""
    page = page.resolve()
    lines = page.read_text(encoding="utf-8").splitlines()
    blocks = list(_blocks(page, lines, 0))
    for block in blocks:
        _check_class(block)
    _check_needs(blocks)
    return blocks


def _blocks(page: Path, lines: list[str], before: int) -> Iterator[Block]:
    """The blocks of some lines of a page; `before` lines come before these."""
    at, mark, value, marked = 0, "", "", -1
    while at < len(lines):
        line, number = lines[at], before + at + 1
        here = Block(page, number, "", "")
        if found := MARK.match(line):
            if mark:
                raise Block(page, before + marked + 1, "", "").wrong(f"no block follows the mark '{mark}' at once")
            end = at
            while "-->" not in lines[end]:
                end += 1
                if end == len(lines):
                    raise here.wrong("this comment has no end: write -->")
            mark, value = found["mark"], _value(found)
            if mark == "setup":
                if end == at or lines[end].strip() != "-->":
                    raise here.wrong("write the code of a setup on lines of its own, and --> on the last")
                yield Block(page, number, value, _dedent(lines[at + 1 : end]), mark)
                mark = ""
            elif end != at:
                raise here.wrong(f"the mark '{mark}' is a comment of one line")
            elif mark == "slow":
                if number != 1 or not value:
                    raise here.wrong("the mark 'slow' is the first line of a page, and says why")
                mark = ""
            at, marked = end + 1, end
            continue
        if line.lstrip().startswith("<!--"):  # some other comment: nothing in it is shown
            end = next((k for k in range(at, len(lines)) if "-->" in lines[k]), len(lines) - 1)
            if any(text.lstrip().startswith(">>>") for text in lines[at : end + 1]):
                raise here.wrong("code in a comment is not run: write <!-- setup: python")
            if end + 1 < len(lines) and FENCE.match(lines[end + 1]):
                raise here.wrong(f"unknown mark above a block: {line.strip()}")
            at = end + 1
            continue
        if (found := re.match(r"\s*:{3,}\{([\w-]+)\}", line)) and found[1] in CODE_DIRECTIVES:
            raise here.wrong(f"code in a directive is not run: write ```python or ```sh instead of {{{found[1]}}}")
        if re.match(r"\s*>\s*(```|~~~)", line):
            raise here.wrong("a block in a quotation is not found: take it out of the quotation")
        found = FENCE.match(line)
        if not found:
            if mark:
                raise here.wrong(f"no block follows the mark '{mark}' at once")
            if line.lstrip().startswith(">>> "):
                raise here.wrong("a prompt outside of a block is not run: put it between ```python and ```")
            at += 1
            continue
        close = re.compile(r"\s*" + re.escape(found["fence"][0]) + "{" + str(len(found["fence"])) + r",}\s*$")
        end = next((k for k in range(at + 1, len(lines)) if close.match(lines[k])), None)
        if end is None:
            raise here.wrong("this block has no end")
        info = found["info"]
        if info.startswith("{"):
            name = info[1:].partition("}")[0]
            yield Block(page, number, "{" + name + "}", "", mark, value)
            yield from _blocks(page, lines[at + 1 : end], before + at + 1)  # a note may hold blocks
        else:
            yield Block(page, number, info.partition(" ")[0], _dedent(lines[at + 1 : end]), mark, value)
        mark, at = "", end + 1
    if mark:
        raise Block(page, before + marked + 1, "", "").wrong(f"no block follows the mark '{mark}' at once")


def _value(found: re.Match[str]) -> str:
    return found["value"].strip().removesuffix("-->").strip()


def _dedent(lines: list[str]) -> str:
    return textwrap.dedent("\n".join(lines) + "\n")


def _has_prompt(text: str) -> bool:
    return any(line.lstrip().startswith(">>>") for line in text.splitlines())


def _check_class(block: Block) -> None:
    """Every block is of a known language and class."""
    language = block.language
    if language.startswith("{"):
        if language[1:-1] in CODE_DIRECTIVES:
            raise block.wrong(f"code in a directive is not run: write ```python or ```sh instead of {language}")
        if block.mark:
            raise block.wrong(f"the mark '{block.mark}' says nothing of a directive")
        return
    if language not in CODE + TEXT:
        raise block.wrong(
            f"unknown language {language!r}: expected {', '.join(CODE)} (run) or {', '.join(TEXT)} (not run)"
        )
    if block.mark in ("not run", "file", "needs") and not block.value:
        raise block.wrong(f"the mark '{block.mark}' needs a value: <!-- {block.mark}: ... -->")
    if block.mark in ("not run", "needs", "setup") and language not in CODE:
        raise block.wrong(f"the mark '{block.mark}' is for python and sh blocks")
    if block.mark == "output" and language in CODE:
        raise block.wrong("the mark 'output' is for text blocks")
    if language not in CODE and block.mark != "file":
        shown = [line for line in block.text.splitlines() if re.match(r"\s*(>>>|\$) ", line)]
        if shown:
            raise block.wrong(f"code in a block that is not run: {shown[0].strip()}")
    if language == "python" and "doctest: +SKIP" in block.text:
        raise block.wrong("an example with +SKIP is not run: use the mark 'not run', and say why")


def _check_needs(blocks: list[Block]) -> None:
    """What `make test` does not install is used only in blocks that say so.

    This is found by reading: a run finds it only on a machine that lacks the package.
    """
    files = {Path(block.value).stem for block in blocks if block.kind == "file"}
    always: set[str] = set()  # names that blocks without the mark define
    marked: dict[str, Block] = {}  # names that only blocks with the mark define
    for block in blocks:
        if block.kind not in ("python", "doctest"):
            continue
        tree, needs = _parsed(block), block.value if block.mark == "needs" else ""
        here = _defined(tree)
        for node in ast.walk(tree):
            for module in _imported(node):
                if module != needs and module not in _installed() | files:
                    told = f"imports {module}, which `make test` does not install: write <!-- needs: {module} -->"
                    raise block.wrong(told, node.lineno)
            if isinstance(node, ast.Name) and node.id in marked and node.id not in here:
                first = marked[node.id]
                if first.value != needs:
                    told = f"uses '{node.id}' of the block of line {first.line}, which needs {first.value}: "
                    raise block.wrong(f"{told}write <!-- needs: {first.value} -->", node.lineno)
        if needs:
            marked |= dict.fromkeys(here - always - set(marked), block)
        else:
            always |= here
            marked = {name: first for name, first in marked.items() if name not in here}


def _defined(tree: ast.Module) -> set[str]:
    """Names that the statements of a block give a value to."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


def _imported(node: ast.AST) -> list[str]:
    """Top-level modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [str(node.module).partition(".")[0]] if isinstance(node, ast.ImportFrom) and not node.level else []


@functools.cache
def _installed() -> frozenset[str]:
    """Modules that are there once `make test` has set up, whatever else is on this machine."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    open_, asked = [*project["dependencies"], "coterie[dev]"], set()
    while open_:
        requirement = Requirement(open_.pop())
        asked.add(canonicalize_name(requirement.name))
        if requirement.name == "coterie":
            open_ += [each for extra in requirement.extras for each in project["optional-dependencies"][extra]]
    modules = importlib.metadata.packages_distributions().items()
    found = {module for module, owners in modules if not asked.isdisjoint(map(canonicalize_name, owners))}
    return frozenset(found | set(sys.stdlib_module_names) | {"coterie", "papers"})


# -- running ---------------------------------------------------------------------------------------------------------


def run(page: Path, limit: float | None = None) -> list[Block]:
    """Run a page; its blocks, if nothing was wrong."""
    page = page.resolve()
    blocks = read(page)
    limit = limit or (LIMIT if slow_reason(page) is None else SLOW_LIMIT)
    before = _repository()
    with (
        tempfile.TemporaryDirectory(prefix=f"{page.stem}-", ignore_cleanup_errors=True) as folder,
        _turn(blocks),
        _kept_state(Path(folder)),
        _Shells(Path(folder), limit) as shells,
    ):
        names: dict = {"__name__": "__main__"}
        printed: str | None = None
        for block in blocks:
            printed = _run_block(block, names, shells, limit, printed)
    if changed := _repository() ^ before:
        raise PageError(f"{page}: a page must not write into the repository: {sorted({name for name, _ in changed})}")
    return blocks


def _run_block(block: Block, names: dict, shells: _Shells, limit: float, printed: str | None) -> str | None:
    """Run one block; what it printed, or else what was printed before."""
    if block.kind == "output":
        if printed is None:
            raise block.wrong("no block ran before this output")
        want = block.text
        if not doctest.OutputChecker().check_output(want, printed, FLAGS):
            example = doctest.Example("", want)
            raise block.wrong("other output\n" + doctest.OutputChecker().output_difference(example, printed, FLAGS))
    elif block.kind == "file":
        target = shells.folder / block.value
        if not target.resolve().is_relative_to(shells.folder.resolve()):
            raise block.wrong(f"a file outside of the page's folder: {block.value}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.text, encoding="utf-8")
    elif block.kind == "not run" or (block.mark == "needs" and importlib.util.find_spec(block.value) is None):
        check(block)
    elif block.kind == "sh":
        return shells.run(block)
    elif block.kind in ("python", "doctest"):
        with _alert(block, limit):
            return _execute(block, names) if block.kind == "python" else _doctest(block, names)
    return printed


class _TooLongError(BaseException):
    """Of no kind that a block would catch."""


@contextlib.contextmanager
def _alert(block: Block, limit: float) -> Iterator[None]:
    """A block that takes longer than `limit` seconds is wrong."""

    def ring(_number: int, frame: types.FrameType | None) -> None:
        line = block.line
        while frame is not None:  # the line of the page that is being run
            if frame.f_code.co_filename == str(block.page):
                line = frame.f_lineno
                break
            frame = frame.f_back
        raise _TooLongError(line)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    except _TooLongError as error:
        raise block.wrong(f"not done after {limit:g} seconds", error.args[0]) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _execute(block: Block, names: dict) -> str:
    """Run Python without prompts. Lines have the numbers that they have in the page."""
    printed = io.StringIO()
    try:
        code = compile("\n" * block.line + block.text, str(block.page), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            exec(code, names)
    except SyntaxError as error:
        raise block.wrong(f"{type(error).__name__}: {error.msg}", error.lineno) from None
    except Exception as error:
        steps = traceback.extract_tb(error.__traceback__)
        line = next((step.lineno for step in reversed(steps) if step.filename == str(block.page)), None)
        told = "".join(traceback.format_exception(error, limit=-DEPTH))
        raise block.wrong(f"{type(error).__name__}: {error}\n{told}\n{printed.getvalue()}", line) from None
    return printed.getvalue()


def _doctest(block: Block, names: dict) -> str:
    """Run examples with prompts."""
    name = f"{block.page.name}:{block.line}"
    examples = doctest.DocTestParser().get_examples(block.text, name)
    for number, example in enumerate(examples):  # Numba and tracebacks read the source of what other blocks define
        file, lines = f"<doctest {name}[{number}]>", example.source.splitlines(keepends=True)
        linecache.cache[file] = (len(example.source), None, lines, file)
    test = doctest.DocTest(examples, names, name, str(block.page), block.line, block.text)
    test.globs = names  # DocTest copies them, and what is defined here is for the blocks that follow
    got: list[str] = []

    class Checker(doctest.OutputChecker):
        def check_output(self, want: str, found: str, flags: int) -> bool:
            got.append(found)
            return super().check_output(want, found, flags)

    try:
        doctest.DebugRunner(Checker(), verbose=False, optionflags=FLAGS).run(test, clear_globs=False)
    except doctest.DocTestFailure as error:
        line = block.line + error.example.lineno + 1
        told = doctest.OutputChecker().output_difference(error.example, error.got[-MOST:], FLAGS)
        raise block.wrong(f"other output\n{error.example.source}{told}", line) from None
    except doctest.UnexpectedException as error:
        if isinstance(error.exc_info[1], _TooLongError):
            raise _TooLongError(block.line + error.example.lineno + 1) from None
        line = block.line + error.example.lineno + 1
        told = "".join(traceback.format_exception(error.exc_info[1], limit=-DEPTH))
        what = f"{error.exc_info[0].__name__}: {error.exc_info[1]}"
        raise block.wrong(f"{what}\n{error.example.source}{told}", line) from None
    return "".join(got)


class _Shells:
    """Runs sh blocks, each in a process group of its own, and ends all groups when it is left."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder, self.limit = folder, limit
        self.groups: list[int] = []
        self.aside = tempfile.TemporaryDirectory(prefix="pages-")  # what was printed: not in the page's folder

    def __enter__(self) -> _Shells:
        return self

    def __exit__(self, *_: object) -> None:
        for group in self.groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        self.aside.cleanup()

    def run(self, block: Block) -> str:
        """What the commands print. Lines have the numbers that they have in the page."""
        failed, printed = Path(self.aside.name, "failed"), Path(self.aside.name, f"printed-{len(self.groups)}")
        failed.unlink(missing_ok=True)
        trap = f"trap 'echo $LINENO >{shlex.quote(str(failed))}' ERR"
        script = trap + "\n" * block.line + block.text
        with printed.open("wb") as file:  # a file, since a pipe would wait for what is left in the background
            shell = subprocess.Popen(
                ["bash", "-eu", "-o", "pipefail", "-c", script, "bash"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.groups.append(shell.pid)
        try:
            code = shell.wait(self.limit)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
            raise block.wrong(f"not done after {self.limit:g} seconds\n{_text(printed)}") from None
        if code:
            line = int(failed.read_text()) if failed.exists() and failed.read_text().strip() else None
            raise block.wrong(f"exit code {code}\n{_text(printed)}", line)
        return _text(printed)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


@contextlib.contextmanager
def _turn(blocks: list[Block]) -> Iterator[None]:
    """One after the other, where pages start peers: they may name the same ports."""
    if not starts_peers(blocks):
        yield
        return
    with open(Path(tempfile.gettempdir(), f"coterie-pages-{os.getuid()}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _kept_state(folder: Path) -> Iterator[None]:
    """In `folder`, as on a machine without a screen; afterwards everything is as it was."""
    where, environment, path, modules = os.getcwd(), dict(os.environ), list(sys.path), set(sys.modules)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ.update(MPLBACKEND="Agg", COLUMNS="80", LINES="25", NO_COLOR="1", TERM="dumb")
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        with warnings.catch_warnings():
            warnings.resetwarnings()
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")  # plt.show()
            yield
    finally:
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()
        os.chdir(where)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path
        for name in set(sys.modules) - modules:  # the page's own files
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
                del sys.modules[name]


def _repository() -> set[tuple[str, int]]:
    """Files that a page could have written by mistake."""
    at_root = [path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")]
    below = (path for name in ("docs", "examples") for path in (ROOT / name).rglob("*") if path.is_file())
    found = [path for path in (*at_root, *below) if path.parent.name != "__pycache__"]  # others may import meanwhile
    return {(str(path.relative_to(ROOT)), path.stat().st_mtime_ns) for path in found}


# -- checking what is not run -----------------------------------------------------------------------------------------


def check(block: Block) -> None:
    """Whether a block that is not run could be right."""
    if block.language == "sh":
        for line, words in _commands(block):
            _check_command(block, line, words)
        return
    for node in ast.walk(_parsed(block)):
        if isinstance(node, ast.Attribute) and _dotted(node).startswith("ct."):
            _check_name(block, node.lineno, "coterie" + _dotted(node)[2:])
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "coterie":
            for name in node.names:
                _check_name(block, node.lineno, f"{node.module}.{name.name}")
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.partition(".")[0] == "coterie":
                    _check_name(block, node.lineno, name.name)


def _parsed(block: Block) -> ast.Module:
    """The code of a Python block, without prompts. Lines have the numbers that they have in the page."""
    source = block.text
    if _has_prompt(source):
        examples = doctest.DocTestParser().get_examples(source, block.page.name)
        text = [""] * len(source.splitlines())
        for example in examples:
            for k, part in enumerate(example.source.splitlines()):
                text[example.lineno + k] = part
        source = "\n".join(text)
    try:
        return ast.parse("\n" * block.line + source, str(block.page))
    except SyntaxError as error:
        raise block.wrong(f"{type(error).__name__}: {error.msg}", error.lineno) from None


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def _check_name(block: Block, line: int, dotted: str) -> None:
    """Whether coterie has a name; below a module or a class, too."""
    found: object = importlib.import_module("coterie")
    for part in dotted.split(".")[1:]:
        if not isinstance(found, types.ModuleType | type):
            return
        if not hasattr(found, part):
            try:
                importlib.import_module(f"{getattr(found, '__name__', '')}.{part}")
            except ImportError:
                raise block.wrong(f"there is no {dotted.replace('coterie', 'ct', 1)}", line) from None
        found = getattr(found, part)


def _commands(block: Block) -> Iterator[tuple[int, list[str]]]:
    """The commands of a sh block, as words, and their lines."""
    line, text = block.line, ""
    for number, part in enumerate(block.text.splitlines(), block.line + 1):
        line = line if text else number
        text += part.removesuffix("\\")
        if part.endswith("\\"):
            continue
        text = re.sub(r"\d>&\d|\d(?=>)", "", text)  # where one stream goes into another
        lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()<>")
        lexer.commenters, lexer.whitespace_split, text = "#", True, ""
        try:
            words = list(lexer)
        except ValueError as error:
            raise block.wrong(f"not understood: {error}", line) from None
        command: list[str] = []
        for word in [*words, ";"]:
            if word and set(word) <= set(";&|()"):
                if command:
                    yield line, command
                command = []
            else:
                command.append(word)


def _check_command(block: Block, line: int, words: list[str]) -> None:
    """Whether a command could be run: of coterie, make, python and pip."""
    if any(set(word) <= set("<>") for word in words):  # file names of redirections
        words = [w for k, w in enumerate(words) if not (set(w) <= set("<>") or (k and set(words[k - 1]) <= set("<>")))]
    while words and (words[0] in ("sudo", "time", "nohup", "exec", "!") or re.match(r"\w+=", words[0])):
        words = words[1:]
    if not words:
        return
    name, words = Path(words[0]).name, words[1:]
    if name == "coterie":
        error = command_error(words)
    elif name == "make":
        error = next((f"the Makefile has no target '{w}'" for w in words if _is_word(w) and w not in _targets()), "")
    elif re.fullmatch(r"python[\d.]*", name):
        error = _python_error(words)
    elif name == "pip" or words[:1] == ["pip"]:
        error = _pip_error(words)
    else:
        error = ""
    if error:
        raise block.wrong(error, line)


def _is_word(word: str) -> bool:
    return not word.startswith("-") and "=" not in word


@functools.cache
def _targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([\w-]+)\s*:(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _python_error(words: list[str]) -> str:
    """`python -m MODULE` and `python FILE` must exist in this repository, if they are its own."""
    if words[:1] == ["-m"] and len(words) > 1:
        top, *inner = words[1].split(".")
        if top == "pip":
            return _pip_error(words[1:])
        if top in ("coterie", "papers", "benchmarks"):
            place = (ROOT / "src" / top if top == "coterie" else ROOT / top).joinpath(*inner)
            if not (place.with_suffix(".py").exists() or (place / "__main__.py").exists()):
                return f"there is no module {words[1]}"
        if words[1] == "papers":
            return _papers_error(words[2:])
    elif (
        words
        and words[0].endswith(".py")
        and words[0].partition("/")[0] in ("benchmarks", "examples", "papers", "tests")
    ):
        script = ROOT / words[0]
        if not script.exists():
            return f"there is no file {words[0]}"
        text = script.read_text(encoding="utf-8")
        return next(
            (f"{words[0]} has no option {w}" for w in words[1:] if w.startswith("--") and f'"{w}"' not in text), ""
        )
    return ""


def _papers_error(words: list[str]) -> str:
    import typer

    from coterie.errors import ParameterError
    from papers.__main__ import main as papers
    from papers._catalogue import find

    app = typer.Typer(add_completion=False)
    app.command("papers")(papers)
    error = _options_error(typer.main.get_command(app), "python -m papers", words)
    try:
        if not error and words and _is_word(words[0]):
            find(words[0])
    except ParameterError as unknown:
        return str(unknown)
    return error


def _pip_error(words: list[str]) -> str:
    """Extras that are to be installed must exist."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    for word in words:
        if found := re.fullmatch(r"(?:coterie|\.)\[([\w,]+)\].*", word):
            for extra in found[1].split(","):
                if extra not in extras:
                    return f"coterie has no extra '{extra}'"
    return ""


def command_error(words: list[str]) -> str:
    """What is wrong with the words after ``coterie``: command, options and number of arguments. Nothing is executed."""
    from coterie.cli.main import COMMANDS, loaded

    if not words or words[0] in ("--help", "--version"):
        return ""
    if words[0] not in COMMANDS:
        return f"there is no command 'coterie {words[0]}'"
    command, told, words = loaded(words[0]), f"coterie {words[0]}", words[1:]
    while hasattr(command, "commands"):
        if not words or words[0] == "--help":
            return "" if words else f"'{told}' needs one of the commands {', '.join(command.commands)}"
        if words[0] not in command.commands:
            return f"there is no command '{told} {words[0]}': expected one of {', '.join(command.commands)}"
        command, told, words = command.commands[words[0]], f"{told} {words[0]}", words[1:]
    return _options_error(command, told, words)


def _options_error(command: Any, told: str, words: list[str]) -> str:
    """What is wrong with the options and arguments of a command."""
    context = command.context_class(command, info_name=told)
    try:
        given, rest, _ = command.make_parser(context).parse_args(args=list(words))
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return f"{told}: {error.format_message()}"
    if "help" in given:
        return ""
    if rest:
        return f"{told}: unexpected {' '.join(rest)}"
    for param in command.params:
        value = given.get(param.name)
        if param.required and (value is None or value == () or type(value).__name__ == "Sentinel"):
            return f"{told}: {param.param_type_name} {'/'.join(param.opts)} is missing"
    return ""


def main() -> int:
    """Run pages by hand."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, help="Markdown files; default: all that are not slow")
    parser.add_argument("--limit", type=float, help=f"seconds that a block may take; default: {LIMIT}")
    parser.add_argument("--count", action="store_true", help="run nothing: print how many blocks are of which class")
    options = parser.parse_args()
    chosen = options.pages or [page for page in pages() if options.count or slow_reason(page) is None]
    wrong = 0
    for page in chosen:
        try:
            blocks = read(page) if options.count else run(page, options.limit)
        except PageError as error:
            wrong += 1
            print(f"WRONG {error}", flush=True)
            continue
        kinds = [block.kind for block in blocks]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
        print(f"{'slow  ' if slow_reason(page) else 'right '}{page}: {counts or 'no blocks'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
