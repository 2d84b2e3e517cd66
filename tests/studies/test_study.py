"""Studies: pieces are kept, an interrupted study goes on with the same bits, and tables say what was found."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest
import study_jobs as jobs

import coterie as ct
from coterie import plots
from coterie.errors import DataError, ParameterError, StudyError
from coterie.studies.sources import fingerprint
from coterie.studies.tables import cell, escape

GRID = {"method": ["cd", "djam"], "mu": [0.1, 1.0]}


@pytest.fixture
def diary(tmp_path, monkeypatch):
    """Which pieces were worked out, in order."""
    path = tmp_path / "diary"
    path.touch()
    monkeypatch.setenv("DIARY", str(path))
    return lambda: path.read_text().splitlines()


def test_the_frame_has_what_the_job_returned_in_the_order_of_the_grid():
    found = ct.studies.study(jobs.small, GRID, seeds=[3, 1])
    expected = [
        {"method": method, "mu": mu, "seed": seed, **jobs.small(method, mu, seed)}
        for method in GRID["method"]
        for mu in GRID["mu"]
        for seed in (3, 1)
    ]
    pd.testing.assert_frame_equal(found.frame, pd.DataFrame(expected), check_exact=True)
    assert (found.settings, found.values) == (("method", "mu"), ("accuracy", "bytes"))
    assert "Study of 8 pieces, 2 seeds" in repr(found)


def test_means_and_errors_are_over_seeds():
    found = ct.studies.study(jobs.small, GRID, seeds=range(4))
    table = found.table("accuracy", rows="mu", columns="method")
    for mu in GRID["mu"]:
        for method in GRID["method"]:
            values = [jobs.small(method, mu, seed)["accuracy"] for seed in range(4)]
            assert table.mean.loc[mu, method] == pytest.approx(np.mean(values))
            assert table.error.loc[mu, method] == pytest.approx(np.std(values, ddof=1) / 2.0)
    assert table.best.to_numpy().tolist() == [[False, True], [False, True]]
    assert found.best("accuracy") == {"method": "djam", "mu": 1.0}
    assert found.best("accuracy", higher=False) == {"method": "cd", "mu": 0.1}
    assert found.best("bytes") == {"method": "cd", "mu": 0.1}  # of equal ones the first
    one = found.table("accuracy", rows="mu", where={"method": "cd"})
    assert one.best["accuracy"].tolist() == [False, True]
    with pytest.raises(ParameterError, match=r"method has several values.*where=\{'method': \.\.\.\}"):
        found.table("accuracy", rows="mu")
    with pytest.raises(ParameterError, match="value='speed' must be one of accuracy, bytes"):
        found.table("speed")


@pytest.mark.parametrize(("score", "best"), [("rmse", 1), ("accuracy", 3)])
def test_the_worst_tenth_of_an_error_is_an_error(score, best):
    found = ct.studies.study(
        lambda score, mu, seed: {score: mu, "worst_tenth": 2 * mu}, {"score": [score], "mu": [1, 2, 3]}
    )
    assert found.best("worst_tenth") == found.best(score) == {"score": score, "mu": best}
    assert found.best("worst_tenth", higher=True) == {"score": score, "mu": 3}


def test_a_second_call_works_out_what_is_missing_alone(tmp_path, diary):
    first = ct.studies.study(jobs.small, GRID, seeds=range(2), folder=tmp_path / "study")
    assert len(diary()) == 8
    again = ct.studies.study(jobs.small, GRID, seeds=range(2), folder=tmp_path / "study")
    assert len(diary()) == 8
    pd.testing.assert_frame_equal(again.frame, first.frame, check_exact=True)
    wider = {"method": ["cd", "admm", "djam"], "mu": [0.1, 1.0]}
    more = ct.studies.study(jobs.small, wider, seeds=range(3), folder=tmp_path / "study")
    assert len(diary()) == 18
    pd.testing.assert_frame_equal(
        more.frame, ct.studies.study(jobs.small, wider, seeds=range(3)).frame, check_exact=True
    )
    victim = sorted((tmp_path / "study" / "pieces").iterdir())[0]
    victim.write_text(victim.read_text()[:10])  # torn
    before = len(diary())
    ct.studies.study(jobs.small, wider, seeds=range(3), folder=tmp_path / "study")
    assert len(diary()) == before + 1
    ct.studies.study(jobs.small, GRID, seeds=[0], folder=tmp_path / "study", fresh=True)
    assert len(diary()) == before + 1 + 4


SCRIPT = """
import sys, time
import coterie as ct

def job(mu, seed):
    problem = ct.Problem.propagation([[0.0], [mu], [2.0]], ct.graphs.ring(3), alpha=0.5)
    run = ct.simulate(problem, "cd", wakes=20 + seed, seed=seed)
    if len(sys.argv) > 2 and (mu, seed) == (1.0, 1):
        print("there", flush=True)
        time.sleep(60.0)
    return run

found = ct.studies.study(job, {"mu": [0.5, 1.0, 1.5]}, seeds=range(2), folder=sys.argv[1])
print(found.frame.to_json(double_precision=15))
print(found.table().to_latex())
"""


@pytest.mark.slow
def test_a_study_that_was_killed_goes_on_with_the_same_bits(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command, killed, whole = [sys.executable, str(script)], tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen([*command, str(killed), "wait"], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "there\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = sorted((killed / "pieces").iterdir())
    assert len(kept) == 3
    before = [path.stat().st_mtime_ns for path in kept]
    outputs = [
        subprocess.run([*command, str(folder)], stdout=subprocess.PIPE, text=True, check=True).stdout
        for folder in (killed, whole)
    ]
    assert outputs[0] == outputs[1]
    assert [path.stat().st_mtime_ns for path in kept] == before
    for path in (whole / "pieces").iterdir():
        assert json.loads(path.read_text())["found"] == json.loads((killed / "pieces" / path.name).read_text())["found"]
    assert {path.name for path in (killed / "pieces").iterdir()} == {path.name for path in (whole / "pieces").iterdir()}


@pytest.mark.slow
def test_processes_find_the_same(tmp_path):
    alone = ct.studies.study(jobs.small, GRID, seeds=range(2))
    together = ct.studies.study(jobs.small, GRID, seeds=range(2), n_jobs=2, folder=tmp_path)
    pd.testing.assert_frame_equal(together.frame, alone.frame, check_exact=True)


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_piece_that_fails_is_named_and_the_others_are_kept(tmp_path, monkeypatch, diary, n_jobs):
    monkeypatch.setenv("FAIL_AT", "cd 1.0 0")
    with pytest.raises(
        StudyError, match=r"1 of 8 pieces failed; method='cd', mu=1.0, seed=0: .*ZeroDivisionError: as asked"
    ) as caught:
        ct.studies.study(jobs.small, GRID, seeds=range(2), folder=tmp_path, n_jobs=n_jobs)
    part = caught.value.study
    assert len(part.frame) == 7
    assert part.failures[0][0] == {"method": "cd", "mu": 1.0, "seed": 0}
    assert "failed: " in repr(part)
    monkeypatch.delenv("FAIL_AT")
    before = len(diary())
    assert len(ct.studies.study(jobs.small, GRID, seeds=range(2), folder=tmp_path).frame) == 8
    assert diary()[before:] == ["cd 1.0 0"]


def test_a_folder_of_another_study_is_refused(tmp_path, monkeypatch):
    def other(method, mu, seed):
        return {"accuracy": 1.0}

    ct.studies.study(jobs.small, GRID, seeds=range(2), folder=tmp_path)
    content = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    for job, grid, seeds, message in (
        (other, GRID, range(2), r"is a study of .*jobs.small, not of .*other"),
        (partial(jobs.small, mu=2.0), {"method": ["cd"]}, range(2), "source of .*has changed"),
        (jobs.small, GRID, range(1), r"with seeds=\[0, 1\], of which \[1\] is not asked for"),
        (jobs.small, GRID | {"mu": [0.1, 2.0]}, range(2), r"with mu=\[0.1, 1.0\], of which \[1.0\] is not asked for"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            ct.studies.study(job, grid, seeds, folder=tmp_path)
        assert "choose another folder" in str(caught.value)
    monkeypatch.setattr(jobs, "SCALE", 3.0)  # what the job uses counts, too
    with pytest.raises(DataError, match="has changed since"):
        ct.studies.study(jobs.small, GRID, range(2), folder=tmp_path)
    monkeypatch.undo()
    record = json.loads((tmp_path / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps(record | {"versions": record["versions"] | {"numpy": "0.1"}}))
    with pytest.raises(DataError, match=r"worked out with numpy 0.1, and here is"):
        ct.studies.study(jobs.small, GRID, range(2), folder=tmp_path)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        ct.studies.study(jobs.small, GRID, range(2), folder=tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("piece*.json")} == {
        path: text for path, text in content.items() if path.name != "study.json"
    }


def test_fingerprints_see_what_a_function_has_around_it():
    def made(strength, data):
        def job(seed):
            return {"a": strength * data.n}

        return job

    data = ct.AgentData([[1.0], [2.0]], agents=[0, 1])
    same = ct.AgentData([[1.0], [2.0]], agents=[0, 1])
    prints = [fingerprint(made(1.0, each)) for each in (data, same, ct.AgentData([[1.0], [3.0]], agents=[0, 1]))]
    assert prints[0] == prints[1] != prints[2]
    assert fingerprint(made(2.0, data)) != prints[0]
    typed: dict = {}
    exec("def one(seed): return {'a': 1}\ndef two(seed): return {'a': 2}", typed)  # without a source
    assert fingerprint(typed["one"]) != fingerprint(typed["two"])


def test_runs_and_evaluations_are_results(tmp_path):
    task = ct.datasets.linear_classification(n=12, p=3, seed=3, rows=(3, 9), test_rows=11)
    problem = ct.Problem.personalized(task.train, task.graph)

    def run(method, seed):
        return ct.simulate(problem, method, wakes=50, seed=seed)

    found = ct.studies.study(run, {"method": [ct.CoordinateDescent(), "djam"]}, seeds=[4])
    assert found.frame["method"].tolist() == ["CoordinateDescent()", "djam"]
    last = ct.simulate(problem, "cd", wakes=50, seed=4).trace.iloc[-1]
    assert found.frame.loc[0, list(last.index)].tolist() == last.tolist()
    named = ct.studies.study(run, {"method": {"descent": ct.CoordinateDescent()}}, seeds=[4], folder=tmp_path)
    assert named.frame["method"].tolist() == ["descent"]

    def judged(seed):
        return ct.evaluate(problem.solve(), problem, task.test)

    assert ct.studies.study(judged, {}).frame["worst_tenth"].tolist() == [judged(0).worst_tenth]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": {"mu": [1.0]}}, r"job\(method, mu, seed\) cannot be called with mu, seed"),
        ({"grid": [1]}, "must be a mapping"),
        ({"grid": {"mu": "abc"}}, "must be a list of values"),
        ({"grid": {"mu": [1, 1]}}, "none of them twice"),
        ({"grid": {"mu": []}}, "must hold some values"),
        ({"grid": {"seed": [1]}}, r"say seeds=\.\.\."),
        ({"grid": {"method": [object()]}}, "pass a mapping of labels"),
        ({"seeds": [1, 1]}, "different whole numbers"),
        ({"seeds": 3}, "different whole numbers"),
        ({"n_jobs": 0}, "n_jobs=0"),
        ({"engine": "ray"}, "must be a ct.Cluster"),
        ({"job": 3}, "must be a function"),
        ({"job": lambda method, mu, seed: {}, "n_jobs": 2}, "defined inside a function"),
        ({"progress": 3}, "progress=3"),
    ],
)
def test_bad_studies_are_refused_before_any_work(diary, change, message):
    with pytest.raises(ParameterError, match=message):
        ct.studies.study(**{"job": jobs.small, "grid": GRID} | change)
    assert not diary()


@pytest.mark.parametrize("found", [3.0, {"a": "b"}, {1: 2.0}, {"mu": 1.0}])
def test_bad_results_are_failures(found):
    with pytest.raises(StudyError, match="the job returned"):
        ct.studies.study(lambda mu, seed: found, {"mu": [1]})


def test_progress_ends_at_the_whole():
    told = []
    ct.studies.study(jobs.small, GRID, range(2), progress=lambda *now: told.append(now))
    assert told == [(k, 8) for k in range(1, 9)]


# -- tables -----------------------------------------------------------------------------------------------------------


def rows_of(latex):
    """The cells of a tabular, line by line; refuses braces and dollars that do not match."""
    assert latex.startswith(r"\begin{tabular}{")
    assert latex.endswith(r"\end{tabular}")
    body = latex.split("\n")
    assert body[1] == r"\toprule"
    assert body[-2] == r"\bottomrule"
    lines = [line for line in body[2:-2] if not line.startswith((r"\midrule", r"\cmidrule"))]
    for line in lines:
        assert line.endswith(r" \\")
        bare = re.sub(r"\\[&%$#_{}]", "", line)
        assert bare.count("{") == bare.count("}")
        assert bare.count("$") % 2 == 0
    return [re.split(r"(?<!\\)&", line[:-3]) for line in lines]


def test_columns_may_be_for_several_settings():
    grid = {"task": ["a", "b"], "method": ["cd", "djam"], "lost": [0.0, 0.2]}
    found = ct.studies.study(jobs.lossy, grid, seeds=range(2))
    table = found.table("accuracy", rows="method", columns=["task", "lost"], best_of="column")
    assert table.mean.columns.tolist() == [("a", 0.0), ("a", 0.2), ("b", 0.0), ("b", 0.2)]
    for (task, lost), numbers in table.mean.items():
        for method, number in numbers.items():
            assert number == pytest.approx(jobs.lossy(task, method, lost, 0)["accuracy"] + 0.005)
    assert table.best.loc["djam"].tolist() == [False, True, False, True]
    tasks, head, *_ = rows_of(table.to_latex())
    assert [each.strip() for each in tasks] == ["", r"\multicolumn{2}{c}{a}", r"\multicolumn{2}{c}{b}"]
    assert [each.strip() for each in head] == ["method", *["lost = 0.0", "lost = 0.2"] * 2]
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}" in table.to_latex()
    lines = found.table("accuracy", rows="method", columns="task", where={"lost": 0.2})
    assert lines.best["b"].all()  # of a line
    with pytest.raises(ct.errors.ParameterError, match="best_of='row' must be"):
        found.table("accuracy", rows="method", best_of="row")


def test_latex_has_the_numbers_in_their_places_and_the_best_in_bold():
    found = ct.studies.study(jobs.small, {"method": ["cd", "d_j&m"], "mu": [0.1, 1.0]}, seeds=range(4))
    table = found.table("accuracy", rows="mu", columns="method")
    spanning, head, *lines = rows_of(table.to_latex())
    assert r"\multicolumn{2}{c}{method}" in spanning[1]
    assert [each.strip() for each in head] == ["mu", "cd", r"d\_j\&m"]
    for line, mu in zip(lines, GRID["mu"], strict=True):
        assert line[0].strip() == str(mu)
        for text, method in zip(line[1:], ("cd", "d_j&m"), strict=True):
            bold = r"\mathbf" in text
            numbers = [float(each) for each in re.findall(r"-?\d+\.?\d*", text)]
            assert numbers == pytest.approx([table.mean.loc[mu, method], table.error.loc[mu, method]], abs=0.01)
            assert bold == (method == "d_j&m")
    floating = table.to_latex(caption="50 % of it", label="tab:a_b")
    assert r"\caption{50 \% of it}" in floating
    assert r"\label{tab:a_b}" in floating
    several = rows_of(found.table().to_latex())
    assert [len(line) for line in several] == [4] * 5
    assert sum(r"\mathbf" in line[2] for line in several) == 1


@pytest.mark.parametrize(
    ("mean", "error", "expected"),
    [
        (0.91234, 0.0123, "0.912 ± 0.012"),
        (123.4, 12.0, "123 ± 12"),
        (3.0, np.nan, "3"),
        (3.0, 0.0, "3 ± 0"),
        (1.234e-9, 5e-11, "(1.234 ± 0.050)e-09"),
        (2.5e7, np.nan, "2.5e+07"),
        (0.0, 0.0, "0 ± 0"),
        (-0.5, 0.25, "-0.50 ± 0.25"),
        (np.nan, np.nan, "-"),
        (np.inf, np.nan, "inf"),
    ],
)
def test_numbers_have_the_digits_that_are_known(mean, error, expected):
    assert cell(mean, error) == expected


def test_what_tex_would_run_is_text():
    assert escape(r"\a_b^{c}~$5 & #1 % <x>") == (
        r"\textbackslash{}a\_b\textasciicircum{}\{c\}\textasciitilde{}\$5 \& \#1 \% \textless{}x\textgreater{}"
    )


# -- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_figures_are_files_of_three_kinds_and_the_same_bytes_every_time(tmp_path):
    found = ct.studies.study(jobs.small, {"method": ["cd", "djam"], "mu": [0.1, 1.0, 10.0]}, seeds=range(3))
    begins = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}
    for suffix, first in begins.items():
        one, other = (plots.save(found.plot(), tmp_path / f"{k}.{suffix}").read_bytes() for k in "ab")
        assert one.startswith(first)
        assert one == other
    assert b"<dc:date>" not in (tmp_path / "a.svg").read_bytes()
    with pytest.raises(ParameterError, match=r"must end with \.svg, \.pdf, \.png"):
        plots.save(found.plot(), tmp_path / "a.bmp")


def test_a_figure_of_a_study_shows_its_means():
    found = ct.studies.study(jobs.small, {"method": ["cd", "djam"], "mu": [0.1, 1.0, 10.0]}, seeds=range(3))
    axes = plots.plot(found).axes[0]
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_xlabel()) == ("log", "linear", "mu")
    table = found.table("accuracy", rows="mu", columns="method")
    for line, method in zip(axes.get_lines(), ("cd", "djam"), strict=True):
        np.testing.assert_allclose(line.get_ydata(), table.mean[method])
        assert line.get_color() in plots.COLOURS
    named = found.plot("accuracy", x="method", by="mu").axes[0]
    assert [text.get_text() for text in named.get_xticklabels()] == ["cd", "djam"]


def test_costs_are_logarithmic_where_they_span_powers_of_ten():
    problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
    for wakes, scale in ((8, "linear"), (80, "log")):
        run = ct.simulate(problem, "cd", wakes=wakes, every=2)
        assert plots.traces({"cd": run}, "value", unit="bytes").axes[0].get_xscale() == scale
        assert ct.compare(["cd"], problem, bytes=run.bytes).figure().axes[0].get_xscale() == scale
    lines = [str(plots._look(k)) for k in range(28)]
    assert len(set(lines)) == 28
