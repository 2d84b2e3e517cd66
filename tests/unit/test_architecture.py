"""docs/architecture.md names files and functions: they are there, and a fit does pass through them, each once."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.cli.main import app

SOURCE = Path(coterie.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
STOP = re.compile(r"((?:\w+/)*\w+\.py)(?::([\w.]+))?")


def stops(text):
    return sorted(set(STOP.findall(text)) - {("file.py", "function")})


def names_in(path):
    """Functions and classes of a file, and what is in the classes."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            found |= {f"{node.name}.{part.name}" for part in ast.walk(node) if isinstance(part, ast.FunctionDef)}
    return found


def section(title):
    return PAGE.read_text().split(f"## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(("file", "name"), stops(PAGE.read_text()))
def test_every_stop_is_there(file, name):
    path = SOURCE / file
    assert path.is_file(), f"{file} is named in docs/architecture.md"
    assert not name or name in names_in(path), f"{file} has no {name}"


def test_the_page_names_what_it_should():
    assert len(stops(PAGE.read_text())) > 40
    rooms = re.findall(r"`(\w+)/`", section("The rooms"))
    packages = [path.parent.name for path in SOURCE.glob("*/__init__.py")]
    assert sorted(rooms) == sorted([*packages, "papers"])


def hops():
    return re.findall(r"^ +\d+ +((?:\w+/)*\w+\.py):([\w.]+)", section("The way of `coterie fit`"), re.MULTILINE)


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"who": rng.integers(0, 12, 120).astype(str), "x": rng.normal(size=120)})
    frame["kind"] = np.where(rng.random(120) < 0.5, "red", "blue")
    frame["y"] = frame["x"] * (1.0 + frame["who"].astype(int) / 10.0) + rng.normal(size=120)
    frame.to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


def walked(*arguments):
    """How often a command calls each function of coterie, in this process."""
    calls: Counter[tuple[str, str]] = Counter()
    places: dict[str, str | None] = {}

    def count(frame, event, _):
        code = frame.f_code
        if event == "call" and not code.co_name.startswith("<"):
            if code.co_filename not in places:
                path = Path(code.co_filename)
                places[code.co_filename] = str(path.relative_to(SOURCE)) if path.is_relative_to(SOURCE) else None
            if places[code.co_filename]:
                calls[places[code.co_filename], code.co_qualname] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        app([*map(str, arguments), "--json"], standalone_mode=False)
    finally:
        sys.setprofile(before)
    return calls


#: What a table goes through on its way into a fit.
ONCE = (
    ("data/sources/readers.py", "read_table"),
    ("data/table.py", "Table.learn"),
    ("data/columns.py", "Columns.learn"),
    ("data/raw.py", "read"),
    ("data/ids.py", "agent_codes"),
)


def test_a_fit_takes_ten_hops_and_reads_its_table_once(table, tmp_path):
    calls = walked("fit", table, "--agent", "who", "--target", "y", "-o", tmp_path / "model")
    assert len(hops()) == 10
    assert [hop for hop in hops() if not calls[hop]] == []
    assert {name: calls[name] for name in ONCE} == dict.fromkeys(ONCE, 1)
    assert calls["data/agent_data.py", "AgentData.__init__"] == 0
    assert calls["data/frames.py", "split_frame"] == 3  # to tell the task; the labels; and the ids


def test_a_fit_over_a_graph_reads_its_table_once_and_groups_it_once(table, tmp_path):
    graph = ("--method", "local", "--graph", "knn")
    calls = walked("fit", table, "--agent", "who", "--target", "y", "-o", tmp_path / "model", *graph)
    assert {name: calls[name] for name in ONCE} == dict.fromkeys(ONCE, 1)
    assert calls["estimators/over_graph.py", "learn_over_graph"] == 1
    assert calls["data/agent_data.py", "AgentData._fill"] == 2  # the rows, and the column of the intercept


def test_rows_to_predict_are_encoded_once(table, tmp_path):
    walked("fit", table, "--agent", "who", "--target", "y", "-o", tmp_path / "model")
    calls = walked("predict", tmp_path / "model", table, "-o", tmp_path / "out.csv")
    once = (
        ("data/sources/readers.py", "read_table"),
        ("data/table.py", "Table.more"),
        ("data/columns.py", "Columns.apply"),
    )
    assert {name: calls[name] for name in once} == dict.fromkeys(once, 1)
    assert calls["data/ids.py", "agent_numbers"] == 1
    assert calls["data/columns.py", "Columns.learn"] == 0
