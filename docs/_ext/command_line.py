"""The reference of the command line, as Markdown, read from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from coterie.cli.console import EXIT_CODES
from coterie.cli.main import COMMANDS, app, loaded

#: What the page has where the commands come in.
MARK = "<!-- commands -->"


def commands() -> Iterator[tuple[str, Any]]:
    """Every command and subcommand with its whole name, in the order of help."""
    for name in COMMANDS:
        yield from _below(f"coterie {name}", loaded(name))


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for child, below in getattr(command, "commands", {}).items():
        yield from _below(f"{name} {child}", below)


def markdown() -> str:
    """The whole reference: what there is, exit codes, then a section for each command."""
    root = get_command(app)
    helps = {f"coterie {name}": later.help for name, later in COMMANDS.items()}
    head = [_text(root.help), "", _contents(helps), _parameters(root, "coterie"), "## Exit codes\n", exit_codes()]
    return "\n".join(head + [_section(name, command) for name, command in commands()])


def exit_codes() -> str:
    """The exit codes as tables, from the one sentence that says what they are."""
    tables = []
    for sentence in re.findall(r"[^:]+: [^.]+\.", EXIT_CODES):
        of, _, codes = sentence.strip().rstrip(".").partition(": ")
        first = re.sub(r"^Exit codes$", "exit code", re.sub(r"^Of (.+)$", r"exit code of `coterie \1`", of))
        tables.append(_table(first, "meaning", re.findall(r"(\d+) ((?:[^,(]|\([^)]*\))+)", codes)))
    return "\n".join(tables)


def _section(name: str, command: Any) -> str:
    lines = [f"{'#' * len(name.split())} {name}\n", _text(command.help), ""]
    if children := getattr(command, "commands", {}):
        lines += [_contents({f"{name} {child}": below.help for child, below in children.items()})]
    else:
        usage = " ".join([name, *command.collect_usage_pieces(_context(command, name))])
        lines += [f"```text\n{usage}\n```\n", _parameters(command, name)]
    return "\n".join(lines)


def _contents(helps: dict[str, str]) -> str:
    """A table of commands, each with the first paragraph of its help."""
    rows = []
    for name, text in helps.items():
        anchor, (first, *_) = name.lower().replace(" ", "-"), text.split("\n\n")
        rows.append((f"[`{name}`](#{anchor})", _cell(first)))
    return _table("command", "what it does", rows)


def _parameters(command: Any, name: str) -> str:
    """A table of arguments and options, with the words that ``--help`` has for them."""
    context = _context(command, name)
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    records = [record for parameter in shown if (record := parameter.get_help_record(context)) is not None]
    rows = [("`" + names.replace("|", "\\|") + "`", _cell(text)) for names, text in records]
    return _table("option", "meaning", rows) if rows else ""


def _context(command: Any, name: str) -> Any:
    return command.context_class(command, info_name=name)


def _table(left: str, right: str, rows: list[tuple[str, str]]) -> str:
    return "\n".join([f"| {left} | {right} |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows), ""])


def _cell(text: str) -> str:
    """Words of help in a cell of a table."""
    return _text(" ".join(text.split()))


def _text(text: str | None) -> str:
    """Words of help as they are, since nothing in them is Markdown; options as code."""
    return re.sub(r"(?<![\w-])(--[a-z][\w-]*)", r"`\1`", re.sub(r"([\\*_<>\[\]|])", r"\\\1", text or ""))
