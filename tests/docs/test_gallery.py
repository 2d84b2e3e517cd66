"""Every example of the gallery runs as it is, draws a figure that explains itself, and writes nothing."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("plot_*.py"))
#: More than about five seconds when everything is compiled, or half a minute before.
SLOW = {
    "plot_09_privacy.py",
    "plot_10_lying_peers.py",
    "plot_14_torch_heads.py",
    "plot_15_million_agents.py",
    "plot_16_real_peers.py",
}
#: Packages of extras, which an example needs.
NEEDS = {"plot_16_real_peers.py": ("msgspec", "cryptography", "nacl")}


def each_example():
    return [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.name in SLOW else []) for path in EXAMPLES
    ]


@pytest.fixture
def figures():
    """What pyplot shows, without a display."""
    before = plt.get_backend()
    plt.close("all")
    plt.switch_backend("agg")
    yield lambda: [plt.figure(number) for number in plt.get_fignums()]
    plt.close("all")
    plt.switch_backend(before)


def in_repository():
    """All files that are there, but for what Python and tools keep for themselves."""
    folders = [ROOT / name for name in ("docs", "examples", "papers", "src", "tests")]
    found = [path for folder in folders for path in folder.rglob("*")] + list(ROOT.iterdir())
    return {path for path in found if not re.search(r"__pycache__|/\.[^/]*$", str(path))}


def explains_itself(figure):
    """Whether there is a title, and labels along both axes."""
    panels = [axes for axes in figure.axes if axes.get_xlabel() and axes.get_ylabel()]
    labelled = panels or (figure.get_supxlabel() and figure.get_supylabel())
    return bool(labelled) and bool(figure.get_suptitle() or figure.axes[0].get_title())


def test_there_are_a_dozen_examples_and_their_slow_ones_exist():
    assert len(EXAMPLES) >= 12
    assert SLOW | set(NEEDS) <= {path.name for path in EXAMPLES}


@pytest.mark.every_case
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_written_for_the_gallery(path):
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    lines = ast.get_docstring(tree).splitlines()
    assert lines[1] == "=" * len(lines[0])
    assert len("\n".join(lines[2:])) > 150  # a paragraph on what one learns
    assert source.count("\n# %%\n") >= 3
    assert "ct.plots.show(" in source
    assert isinstance(tree.body[-1], ast.Assert)  # the claim is checked


@pytest.mark.docs
@pytest.mark.every_case
@pytest.mark.parametrize("path", each_example())
def test_an_example_runs_and_draws_a_figure_that_explains_itself(path, figures, tmp_path, monkeypatch):
    for package in NEEDS.get(path.name, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    before = in_repository()
    runpy.run_path(str(path), run_name="__main__")
    assert any(explains_itself(figure) for figure in figures())
    assert not list(tmp_path.iterdir())
    assert in_repository() == before


def test_a_figure_without_labels_or_title_is_noticed(figures):
    figure, axes = plt.subplots()
    assert not explains_itself(figure)
    axes.set(xlabel="rows", ylabel="error")
    assert not explains_itself(figure)
    axes.set_title("More rows, smaller errors")
    assert explains_itself(figure)
    axes.set_ylabel("")
    assert not explains_itself(figure)
