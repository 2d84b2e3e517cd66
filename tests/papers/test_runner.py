"""The runner of experiments: pieces are kept, runs go on, verdicts follow from numbers."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import coterie as ct
from coterie.errors import MissingDataError, ParameterError
from papers import Alike, Compared, Experiment, Ordered, experiments, find, judged, reproduce
from papers._claims import Unseen
from papers._experiment import best, best_along, column, held_out, where
from papers._figures import bars, grouped, line
from papers._runner import fingerprint

ROOT = Path(__file__).parents[2]


def plan(quick):
    tuned = yield [{"step": "tune", "alpha": alpha, "seed": seed} for alpha in (1, 2, 3) for seed in (7, 8)]
    (alpha,) = best(tuned, "error", "alpha", highest=False)
    yield [{"step": "measure", "alpha": alpha, "seed": seed} for seed in range(2 if quick else 4)]


def work(step, alpha, seed):
    with Path(os.environ["DIARY"]).open("a") as diary:
        diary.write(f"{step} {alpha} {seed}\n")
    if os.environ.get("STOP_AT") == f"{step} {alpha} {seed}":
        raise KeyboardInterrupt
    return {"error": np.float64((alpha - 2) ** 2 + 0.01 * seed), "trace": np.arange(3)}


def claims(rows):
    return judged([Compared("error", 0.0, "error", 0.1)], {"error": column(rows, "error", step="measure")})


def draw(rows):
    figure = Figure()
    figure.add_subplot().plot(column(rows, "error"))
    return figure


TOY = Experiment("toy-figure-1", "a toy", plan, work, claims, draw, minutes=0.0)


@pytest.fixture
def diary(tmp_path, monkeypatch):
    """Which pieces were worked out, in order."""
    path = tmp_path / "diary"
    path.touch()
    monkeypatch.setenv("DIARY", str(path))
    return lambda: path.read_text().splitlines()


def test_tuned_settings_are_what_is_measured(tmp_path, diary):
    outcome = reproduce(TOY, tmp_path)
    assert column(outcome.rows, "alpha", step="measure") == [2, 2, 2, 2]
    assert len(where(outcome.rows, step="tune")) == 6
    record = json.loads(outcome.record.read_text())
    assert record["rows"] == outcome.rows  # every number, as json has it
    assert record["seeds"] == [0, 1, 2, 3, 7, 8]
    assert record["claims"][0]["verdict"] == "reproduced"
    assert record["versions"]["numpy"] == np.__version__


def test_an_interrupted_run_goes_on_where_it_was(tmp_path, diary, monkeypatch):
    monkeypatch.setenv("STOP_AT", "measure 2 1")
    with pytest.raises(KeyboardInterrupt):
        reproduce(TOY, tmp_path)
    assert not list(tmp_path.glob("*.json"))  # no half a result
    monkeypatch.delenv("STOP_AT")
    before = len(diary())
    told = []
    outcome = reproduce(TOY, tmp_path, progress=lambda done, known: told.append((done, known)))
    assert diary()[before:] == ["measure 2 1", "measure 2 2", "measure 2 3"]
    assert told[-1] == (10, 10)
    again = reproduce(TOY, tmp_path)
    assert len(diary()) == before + 3
    assert again.rows == outcome.rows


def test_fresh_and_quick_do_not_use_what_is_kept(tmp_path, diary):
    reproduce(TOY, tmp_path)
    reproduce(TOY, tmp_path, quick=True)
    assert len(diary()) == 10 + 8
    reproduce(TOY, tmp_path, fresh=True)
    assert len(diary()) == 10 + 8 + 10
    reproduce(TOY, tmp_path, quick=True)
    assert len(diary()) == 10 + 8 + 10


def loaded(path, text):
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return Experiment("other-figure-1", "", plan, module.work, claims, draw, minutes=0.0)


def test_pieces_are_forgotten_when_what_they_use_changes(tmp_path):
    text = """
from functools import cache
RHO, LONG = 1, 2
@cache
def helper(steps=LONG):
    return RHO
def work(seed):
    return {'a': helper()}
def draw():
    pass
"""
    prints = [
        fingerprint(loaded(tmp_path / f"work{number}.py", changed))
        for number, changed in enumerate(
            (
                text,
                text.replace("pass", "return 1"),
                text.replace("RHO, LONG = 1, 2", "RHO, LONG = 2, 2"),
                text.replace("RHO, LONG = 1, 2", "RHO, LONG = 1, 3"),  # used as a default only
                text.replace("return RHO", "return 2 * RHO"),
            )
        )
    ]
    assert prints[0] == prints[1]
    assert len(set(prints[1:])) == 4


def test_pieces_are_forgotten_when_compiled_code_changes(monkeypatch):
    (experiment,) = find("djam")
    before = fingerprint(experiment)
    monkeypatch.setattr("coterie.studies.sources.digest", lambda: "another core")
    assert fingerprint.__wrapped__(experiment) != before


def claim(kind, *given, values, **more):
    """One row, judged beside some values."""
    [found] = judged([kind("x", *given[:1], "ours", *given[1:], **more)], {"ours": values})
    return found


def test_verdicts():
    values = [0.80, 0.82, 0.84]  # mean 0.82, standard error 0.0115

    def verdict(number, **more):
        return claim(Compared, number, 0.0, values=values, **more).verdict

    assert verdict(0.82) == verdict(0.8) == "reproduced"  # within two standard errors
    assert verdict(0.7) == verdict(0.7, better="lower") == "not reproduced"
    assert verdict(0.7, better="higher") == verdict(0.9, better="lower") == "better"
    assert claim(Compared, 0.82, 0.0, values=values, reason="why").reason == ""
    assert claim(Compared, 0.7, 0.0, values=values, reason="why", note="and").reason == "why and"
    assert claim(Compared, 0.85, 0.02, values=[0.84, 0.86], form=".2f").seen == "0.85 ± 0.01"
    assert claim(Ordered, "more", values=[0.1, 0.2, 0.3]).verdict == "reproduced"
    assert claim(Ordered, "more", values=[0.3, -0.1, 0.1]).verdict == "not reproduced"
    assert claim(Ordered, "more", values=0.1).seen == "0.1"
    assert claim(Alike, "as fast", 1.0, 0.2, values=[1.1, 1.2]).verdict == "reproduced"
    assert claim(Alike, "as fast", 1.0, 0.1, values=[1.1, 1.2]).verdict == "not reproduced"
    for wrong in ([], [np.nan]):
        with pytest.raises(ParameterError, match="finite"):
            claim(Ordered, "more", values=wrong)
    with pytest.raises(ParameterError, match="better='more'"):
        claim(Compared, 1.0, 0.0, values=1.0, better="more")


def test_texts_of_a_table_are_filled_in_and_rows_without_numbers_left_out():
    table = [
        Ordered("a - b, of {n} runs", "more than {least:.1f}", "gap", note="{gap:.2f}, {who}."),
        Compared("not measured", 1.0, "other", 0.1),
        Compared("wide", 1.0, "gap", "width"),
    ]
    first, second = judged(table, {"gap": [1.0, 2.0], "n": 2, "least": 0.0, "who": "both", "width": 0.6})
    assert (first.what, first.paper, first.reason) == ("a - b, of 2 runs", "more than 0.0", "1.50, both.")
    assert (second.what, second.verdict, second.paper) == ("wide", "reproduced", "1")
    [short] = judged(table[:1], {"gap": Unseen(np.nan, "too short"), "n": 2, "least": 0.0, "who": "both"})
    assert (short.verdict, short.reason, short.seen) == ("not reproduced", "too short", "nan")


def test_the_best_settings_are_those_of_the_best_mean():
    rows = [{"mu": 1, "error": 0.2}, {"mu": 1, "error": 0.4}, {"mu": 9, "error": 0.1}]
    assert best(rows, "error", "mu", highest=False) == (9,)
    assert best_along([{"mp": [1.0, 0.0, 0.8]}, {"mp": [0.0, 1.0, 0.8]}], "mp", (0.1, 0.2, 0.3)) == 0.3


def test_folds_are_of_everybodys_own_rows():
    data = ct.AgentData(np.arange(12.0)[:, None], np.tile([1.0, -1.0], 6), agents=["b", "a", "a"] * 4)
    parts = [held_out(data, fold) for fold in range(3)]
    tested = np.sort(np.concatenate([test.X.ravel() for _, test in parts]))
    assert np.array_equal(tested, np.arange(12.0))
    for train, test in parts:
        assert np.array_equal(np.sort(np.concatenate([train.X, test.X]).ravel()), np.arange(12.0))
        assert (train.sizes > 0).all()
        assert test.members == data.members


def test_bars_are_drawn_beside_the_papers_numbers():
    figure = bars({"School": {"alone": [0.7], "together": [0.72, 0.73]}}, {"School": {"alone": 0.71}}, "accuracy")
    assert len(figure.axes[0].patches) == 2
    [dashes] = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert list(dashes.get_ydata()) == [0.71, 0.71]


def test_a_band_is_two_standard_errors():
    rows = [{"x": [0, 1], "y": [1.0, 5.0]}, {"x": [0, 1], "y": [3.0, 5.0]}]
    assert [found.tolist() for found in grouped(rows, "x", "y")[1]] == [[1.0, 3.0], [5.0, 5.0]]
    axes = Figure().add_subplot()
    line(axes, rows, "x", "y", "label", "black")
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == pytest.approx(0.0)  # mean 2, standard error 1
    assert band.max() == pytest.approx(5.0)


def test_every_figure_and_table_that_was_promised_is_there():
    promised = {
        "propagation-admm": (5, ()),
        "private-descent": (4, ()),
        "djam": (1, ()),
        "dmtrl": (6, (2, 3)),
        "dada": (7, (1, 2)),
    }
    names = {
        *(f"{paper}-figure-{k}" for paper, (figures, _) in promised.items() for k in range(1, figures + 1)),
        *(f"{paper}-table-{k}" for paper, (_, tables) in promised.items() for k in tables),
    } - {"dmtrl-figure-1"}  # a drawing of the parts of the system
    assert names <= set(experiments())
    assert [each.name for each in find("dmtrl")] == sorted(name for name in names if name.startswith("dmtrl"))
    with pytest.raises(ParameterError, match="there is no 'dada-figure-8'; of dada there are: dada-figure-1, "):
        find("dada-figure-8")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGINT") or sys.platform == "win32", reason="needs signals of POSIX")
def test_the_command_keeps_pieces_when_it_is_interrupted(tmp_path):
    command = [sys.executable, "-m", "papers", "propagation-admm-figure-1", "-o", str(tmp_path)]
    process = subprocess.Popen(
        [*command, "--workers", "1"], stderr=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"COLUMNS": "200"}
    )
    pieces = tmp_path / "pieces" / "propagation-admm-figure-1"
    deadline = time.monotonic() + 120.0
    while process.poll() is None and not list(pieces.glob("full-*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on" in said
    kept = list(pieces.glob("full-*.json"))
    assert kept
    assert all(json.loads(path.read_text())["found"] for path in kept)
    assert not (tmp_path / "propagation-admm-figure-1.json").exists()


def test_missing_data_are_asked_for_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    needy = Experiment("needy-table-1", "", plan, work, claims, draw, minutes=0.0, data=("school",))
    with pytest.raises(
        MissingDataError,
        match=r"needy-table-1 needs real data, of which school is missing: there is no school.npz in .*convert school",
    ):
        reproduce(needy, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_any_data_the_leaderboard_says_how_to_get_some(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    (experiment,) = find("leaderboard")
    with pytest.raises(MissingDataError, match=r"coterie data convert vehicle_ditto_train mytrain.json"):
        reproduce(experiment, tmp_path / "out", quick=True)
