"""docs/errors.md: its tree is that of the classes, its cures name what exists, its exit codes are those of commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import coterie as ct
from coterie.cli import console
from coterie.cli.main import COMMANDS, loaded

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def text():
    return (DOCS / "errors.md").read_text()


def test_the_tree_shows_every_class_below_its_own(text):
    tree = re.search(r"```text\n(.*?)```", text, re.S)[1]
    shown, above = {}, []
    for line in tree.splitlines():
        name = re.search(r"[A-Z]\w+", line)
        depth = name.start()
        above = [(d, cls) for d, cls in above if d < depth]
        shown[name[0]] = above[-1][1] if above else None
        above.append((depth, name[0]))
    errors = {
        name: kind
        for name, kind in vars(ct.errors).items()
        if isinstance(kind, type) and issubclass(kind, ct.errors.CoterieError)
    }
    assert set(shown) == set(errors)
    for name, parent in shown.items():
        assert parent is None or errors[parent] in errors[name].__bases__, name


def test_cures_name_commands_and_names_that_exist(text):
    for line in re.findall(r"`coterie ([a-z][^`]*)`", text):
        name, *words = line.split()
        assert name in COMMANDS, line
        command = loaded(name)
        if hasattr(command, "commands"):
            assert words[0] in command.commands, line
            command = command.commands[words[0]]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known, line
    for name in re.findall(r"\bct((?:\.\w+)+)", text):
        found = ct
        for part in name.strip(".").split("."):
            found = getattr(found, part)
    for name in re.findall(r"`(docs/[\w.-]+)`", text):
        assert (DOCS.parent / name).exists(), name
    for extra in re.findall(r"coterie\[(\w+)\]", text):
        assert f"\n{extra} = [" in (DOCS.parent / "pyproject.toml").read_text()


def test_exit_codes_are_those_of_the_commands(text):
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.M)}
    codes = {console.BAD_INPUT, console.AUDIT_FAILED, console.REMOVED, console.NOT_NOW}
    assert table == {0, 1, 2, 130} | codes
    assert {int(code) for code in re.findall(r"\d+", console.EXIT_CODES.split(". Of")[0])} == table
