"""The reference of the command line has every command, every option and every exit code."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from coterie.cli import console

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS / "_ext"))

import command_line  # noqa: E402

TEXT = command_line.markdown()
COMMANDS = dict(command_line.commands())


def section(name):
    return re.split(r"^#+ ", TEXT.partition(f"# {name}\n")[2], flags=re.MULTILINE)[0]


def test_subcommands_of_subcommands_are_there():
    assert {"coterie fit", "coterie peer run", "coterie group admin hand-over"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_section_with_all_its_options(name):
    assert TEXT.count(f"# {name}\n") == 1
    if not hasattr(COMMANDS[name], "commands"):
        cells = " ".join(re.findall(r"^\| `(.+?)` \|", section(name), flags=re.MULTILINE)).replace("\\|", "|").lower()
        for parameter in (each for each in COMMANDS[name].params if not each.hidden):
            words = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar or parameter.name]
            assert [word for word in words if word.lower() not in re.split(r"[\s,.]+", cells)] == []


def test_links_lead_to_sections():
    anchors = {heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", TEXT, flags=re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= anchors


def test_every_exit_code_is_in_a_table():
    codes = re.findall(r"^\| (\d+) \| (.+) \|$", command_line.exit_codes(), flags=re.MULTILINE)
    assert [f"{code} {meaning}" for code, meaning in codes] == re.findall(
        r"\d+ [a-z ]+(?:\([^)]*\))?", console.EXIT_CODES
    )
    for code in (console.BAD_INPUT, console.AUDIT_FAILED, console.REMOVED, console.NOT_NOW):
        assert str(code) in dict(codes)


def test_the_page_has_the_place_where_it_comes_in():
    assert (DOCS / "reference" / "command-line.md").read_text(encoding="utf-8").count(command_line.MARK) == 1
