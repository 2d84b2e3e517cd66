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

from coterie.errors import MissingDataError, ParameterError
from papers import Experiment, compared, experiments, find, ordered, reproduce
from papers.experiment import best, column, where
from papers.figures import grouped, line
from papers.runner import fingerprint


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
    return [compared("error", 0.0, column(rows, "error", step="measure"), tolerance=0.1)]


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


def test_a_torn_piece_is_worked_out_again(tmp_path, diary):
    whole = reproduce(TOY, tmp_path)
    victim = sorted((tmp_path / "pieces" / TOY.name).iterdir())[0]
    victim.write_text(victim.read_text()[:10])
    before = len(diary())
    assert reproduce(TOY, tmp_path).rows == whole.rows
    assert len(diary()) == before + 1


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


def test_a_name_given_and_found_is_refused(tmp_path):
    def echo(a):
        return {"a": 2}

    bad = Experiment("bad-figure-1", "", lambda quick: iter_once([{"a": 1}]), echo, claims, draw, minutes=0.0)
    with pytest.raises(ParameterError, match="finds what it was given: a"):
        reproduce(bad, tmp_path)


def iter_once(batch):
    yield batch


def test_processes_find_what_one_process_finds(tmp_path):
    (experiment,) = find("djam-figure-1")
    alone = reproduce(experiment, tmp_path / "one", quick=True)
    together = reproduce(experiment, tmp_path / "two", quick=True, workers=2)
    assert together.rows == alone.rows


def test_verdicts():
    values = [0.80, 0.82, 0.84]  # mean 0.82, standard error 0.0115
    assert compared("x", 0.82, values, tolerance=0.0).verdict == "reproduced"
    assert compared("x", 0.8, values, tolerance=0.0).verdict == "reproduced"  # within two standard errors
    assert compared("x", 0.7, values, tolerance=0.0).verdict == "not reproduced"
    assert compared("x", 0.7, values, tolerance=0.0, better="higher", reason="why").verdict == "better"
    assert compared("x", 0.7, values, tolerance=0.0, better="lower").verdict == "not reproduced"
    assert compared("x", 0.9, values, tolerance=0.0, better="lower").verdict == "better"
    assert compared("x", 0.82, values, tolerance=0.0, reason="why").reason == ""
    assert compared("x", 0.7, values, tolerance=0.0, reason="why", note="and").reason == "why and"
    assert ordered("x", "more", [0.1, 0.2, 0.3]).verdict == "reproduced"
    assert ordered("x", "more", [0.3, -0.1, 0.1]).verdict == "not reproduced"
    assert ordered("x", "more", 0.1).seen == "0.1"
    for wrong in ([], [np.nan]):
        with pytest.raises(ParameterError, match="finite"):
            ordered("x", "more", wrong)
    with pytest.raises(ParameterError, match="better='more'"):
        compared("x", 1.0, 1.0, tolerance=0.0, better="more")


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


@pytest.mark.skipif(not hasattr(signal, "SIGINT") or sys.platform == "win32", reason="needs signals of POSIX")
def test_the_command_keeps_pieces_when_it_is_interrupted(tmp_path):
    command = [sys.executable, "-m", "coterie", "reproduce", "propagation-admm-figure-2", "-o", str(tmp_path)]
    process = subprocess.Popen(
        [*command, "--workers", "1"], stderr=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "200"}
    )
    pieces = tmp_path / "pieces" / "propagation-admm-figure-2"
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
    assert not (tmp_path / "propagation-admm-figure-2.json").exists()


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


def test_without_any_data_the_command_says_how_to_get_some(tmp_path):
    environment = {"COTERIE_DATA": str(tmp_path), "COLUMNS": "200", "COTERIE_PLAIN": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "reproduce", "leaderboard", "--quick", "-o", str(tmp_path / "out")],
        env=os.environ | environment | {"COTERIE_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 3
    assert "coterie data convert vehicle_ditto_train mytrain.json" in done.stderr
    assert "Traceback" not in done.stderr
