"""docs/errors.md: every error of the sources is in it, with a cause and a cure that exist."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import coterie as ct
from coterie.cli import console
from coterie.cli.main import COMMANDS, loaded

DOCS = Path(__file__).resolve().parents[2] / "docs"
_spec = importlib.util.spec_from_file_location("make_errors", DOCS / "make_errors.py")
tool = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tool)


@pytest.fixture(scope="module")
def page():
    return tool.read()


@pytest.fixture(scope="module")
def sources():
    return tool.Sources()


@pytest.fixture(scope="module")
def sorted_out(page, sources):
    return tool.sorted_out(page, sources)


@pytest.fixture(scope="module")
def text():
    return tool.PAGE.read_text()


@pytest.mark.slow
def test_every_raise_is_on_the_page(page, sources, sorted_out, text):
    messages, lost = sorted_out
    assert not lost, "\n".join([tool.ADVICE.format(count=len(lost)), *lost])
    shown = set(re.findall(r"^\* (`.*)$", text, re.M))
    count = 0
    for each in sources.raises:
        count += 1
        for message in each.messages:
            home = tool.place(message, page)
            assert "reason" in home or tool._code(message.text) in shown
    assert count > 1400
    assert sum(map(len, messages.values())) > 1200


@pytest.mark.slow
def test_the_page_is_what_the_sources_say(page, sorted_out, text):
    assert text == tool.written(page, sorted_out[0], tool.tree_of_classes()), "the page is old: run make errors"


@pytest.mark.slow
def test_every_raise_in_the_sources_is_found(sources):
    """Counted in another way: by the word at the beginning of a line."""
    seen = {(each.path, each.line) for each in sources.raises}
    for path in sorted(tool.SOURCES.rglob("*.py")):
        name = path.relative_to(tool.SOURCES).as_posix()
        quoted = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not quoted and re.match(r"\s+raise\b(?! *[a-z ]*\.\s*$)", line):
                assert (name, number) in seen, f"{name}:{number}: {line}"
            quoted ^= line.count('"""') % 2 == 1


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('raise DataError(f"nobody has seen {this!r} before")', "DataError: nobody has seen <this> before"),
        ('raise ValueError("bare")', "ValueError: bare"),
        ("raise KeyError", "raise KeyError"),
        ('raise made_up("text")', "raise made_up('text')"),
    ],
)
def test_a_new_error_is_noticed(page, tmp_path, body, found):
    (tmp_path / "new.py").write_text(f"from .errors import DataError\n\n\ndef f(this):\n    {body}\n")
    (tmp_path / "errors.py").write_text((tool.SOURCES / "errors.py").read_text())
    lost = tool.sorted_out(page, tool.Sources(tmp_path))[1]
    assert lost == [f"src/coterie/new.py:5: {found}"]


@pytest.mark.slow
def test_every_situation_and_every_rule_has_messages(page, sources, sorted_out):
    assert [title for title, found in sorted_out[0].items() if not found] == []
    titles = [each["title"] for each in page.situations]
    assert len(set(titles)) == len(titles)
    made = [message for each in sources.raises for message in each.messages]
    made += [tool.Message(each.what, each.path, each.line, "") for each in sources.raises if not each.messages]
    homes, idle = [tool.place(message, page) for message in made], []
    for each in [*page.situations, *page.hidden]:
        own = [message for message, home in zip(made, homes, strict=True) if home is each]
        idle += [(each.get("title"), rule) for rule in each["match"] if not any(tool.fits(rule, one) for one in own)]
    assert idle == []


def test_every_class_has_a_chapter(page, text):
    tree = {
        name
        for name, kind in vars(ct.errors).items()
        if isinstance(kind, type) and issubclass(kind, ct.errors.CoterieError)
    }
    assert tree - {"CoterieError", "InputError"} <= set(page.chapters)
    assert {each["class"] for each in page.situations} == set(page.chapters)
    assert all(name in tool.tree_of_classes() for name in tree)


def test_anchors_are_unique_and_links_lead_somewhere(text):
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    anchors = [tool.anchor(heading) for heading in headings]
    assert len(set(anchors)) == len(anchors)
    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= set(anchors)


def test_cures_name_commands_and_names_that_exist():
    situations = tomllib.loads(tool.SITUATIONS.read_text())["situation"]
    told = " ".join(each[part] for each in situations for part in ("cause", "cure"))
    for line in re.findall(r"`coterie ([a-z][^`]*)`", told):
        name, *words = line.split()
        assert name in COMMANDS, line
        command = loaded(name)
        if hasattr(command, "commands"):
            assert words[0] in command.commands, line
            command = command.commands[words[0]]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known, line
    for name in re.findall(r"\bct((?:\.\w+)+)", told):
        found = ct
        for part in name.strip(".").split("."):
            found = getattr(found, part)
    for name in re.findall(r"`(docs/[\w.-]+)`", told):
        assert (DOCS.parent / name).exists(), name
    for extra in re.findall(r"coterie\[(\w+)\]", told):
        assert f"\n{extra} = [" in (DOCS.parent / "pyproject.toml").read_text()


def test_exit_codes_are_those_of_the_commands(text):
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.M)}
    codes = {console.BAD_INPUT, console.AUDIT_FAILED, console.REMOVED, console.NOT_NOW}
    assert table == {0, 1, 2, 130} | codes
    assert {int(code) for code in re.findall(r"\d+", console.EXIT_CODES.split(". Of")[0])} == table
