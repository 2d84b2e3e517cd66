"""The tables of claims, and parameters that one figure takes from another, are what the pages of the papers show."""

import re
from pathlib import Path

import pytest

from papers import PAPERS, experiments
from papers.dada import moons, real

PAGES = {path.stem: path.read_text() for path in Path(__file__).parents[2].joinpath("docs", "papers").glob("*.md")}


def shown(kind, name):
    """Cells of the tables of an experiment on its page, line by line."""
    [text] = re.findall(rf"<!-- {kind} {name} -->\n(.*?)<!-- /{kind} -->", PAGES[experiments()[name].paper], re.DOTALL)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def alike(template, text):
    """Whether a text is a template with its numbers filled in."""
    return re.fullmatch(".*".join(map(re.escape, re.split(r"\{[^{}]*\}", template))), text)


@pytest.mark.parametrize("name", [name for name in experiments() if not name.startswith("leaderboard")])
def test_a_page_has_the_claims_of_its_table_in_order(name):
    table = iter(experiments()[name].claims.args[0].CLAIMS)
    for what, paper, ours, verdict, why in shown("claims", name)[2:]:
        # Rows whose numbers were not measured are not on the page: the next one is.
        row = next((row for row in table if alike(row.what, what)), None)
        assert row is not None, what
        assert alike(format(row.number, row.form) if row.paper is None else row.paper, paper)
        parts = [row.note] if verdict == "reproduced" else [row.reason, row.note]
        assert alike(" ".join(part for part in parts if part), why), what
        number = ours.split(" ± ")[0]
        assert number == format(float(number), row.form)
        if getattr(row, "published", None) is not None and row.paper is None:
            assert float(paper) == pytest.approx(row.published, rel=0.01)


def test_every_paper_has_a_page_and_every_experiment_a_command_on_it():
    assert set(PAPERS) == set(PAGES) - {"README"}
    for name, experiment in experiments().items():
        page = PAGES[experiment.paper]
        assert f"python -m papers {name}" in page, name
        assert f"({name}.png)" in page


@pytest.mark.parametrize(("task", "figure"), [("Moons", "dada-figure-1"), ("Moons100", "dada-figure-6")])
def test_parameters_of_the_other_figures_on_moons_are_those_chosen(task, figure):
    names = ("beta", "mu", "lam")
    chosen = {line[0]: line[1:4] for line in shown("tables", figure) if line[0] in moons.METHODS and len(line) > 4}
    for method, used in moons.CHOSEN[task].items():
        # What a method does not use is not on the page.
        for name, value in zip(names, chosen[method], strict=True):
            assert value == "" or float(value) == used[name], (method, name)
        assert any(chosen[method])


def test_parameters_of_figure_5_and_table_2_are_those_of_table_1():
    lines = [line for line in shown("tables", "dada-table-1") if line[0] in real.STUMPS and line[1] in real.LEARNED]
    found = {(line[0], line[1]): tuple(map(float, line[2:5])) for line in lines}
    assert found == {(name, method): used for name, of in real.CHOSEN.items() for method, used in of.items()}
