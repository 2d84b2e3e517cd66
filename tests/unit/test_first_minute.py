"""The first minute: what ``coterie`` alone says, the demo, and bars that tell how long things take."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

import coterie as ct
from coterie.cli import console
from coterie.cli.demo import command_from_here
from coterie.cli.main import COMMANDS, FIRST, app, loaded
from coterie.errors import DataError

HEAVY = ("numpy", "numba", "pandas", "matplotlib", "sklearn", "scipy")


def process(code, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, env=os.environ | environment,
    )  # fmt: skip


def screen(width=100):
    """A terminal that remembers."""
    return Console(file=io.StringIO(), force_terminal=True, width=width, no_color=True)


def shown(recording):
    """All that was on it, without what moves the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", recording.file.getvalue())


def test_coterie_alone_names_three_things_to_try_and_loads_nothing_heavy():
    done = process(
        f"import sys\nsys.argv = ['coterie']\nfrom coterie.__main__ import main\n"
        f"try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        f"assert not set({HEAVY!r}) & set(sys.modules), sorted(sys.modules)"
    )
    assert (done.returncode, done.stderr) == (0, "")
    tried = [line for line in done.stdout.splitlines() if line.startswith("  coterie ")]
    assert len(tried) == 3
    assert "coterie --help" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


@pytest.mark.parametrize("line", [line for line in FIRST.splitlines() if line.startswith("  coterie ")])
def test_what_it_says_to_try_exists(line):
    name, *words = shlex.split(re.split(r"\s{3,}", line.strip())[0])[1:]
    assert name in COMMANDS
    known = {option for parameter in loaded(name).params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= known


def test_help_is_still_the_full_help():
    told = CliRunner().invoke(app, ["--help"])
    assert told.exit_code == 0
    assert all(name in told.output for name in COMMANDS)
    assert CliRunner().invoke(app, ["nonsense"]).exit_code == 2


def test_the_demo_compiles_nothing_and_says_what_to_look_at(tmp_path):
    """On a new machine: an empty cache, which stays empty, and none of Numba's compilers at work."""
    code = (
        "import sys\nfrom numba.core import event\nfrom coterie.cli.main import app\n"
        "with event.install_recorder('numba:compile') as compiled:\n    app(sys.argv[1:], standalone_mode=False)\n"
        "assert not compiled.buffer, compiled.buffer"
    )
    cache, output = tmp_path / "cache", tmp_path / "out"
    done = process(code, "demo", "-o", output, COTERIE_CACHE=str(cache), COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert not cache.exists()
    assert len(done.stdout.splitlines()) <= 25
    assert re.search(r"Learned together, models err \d+% less than alone", done.stdout)
    said = done.stdout[done.stdout.index("Look at next:") :]
    files = [word for word in said.split() if word.startswith(str(output))]
    assert len(files) == 5
    assert all(os.path.exists(file) for file in files)
    assert sorted(os.listdir(output)) == sorted(os.path.basename(file) for file in files)
    told = CliRunner().invoke(app, ["inspect", str(output / "model")], catch_exceptions=False)
    assert "Cambodia" in told.output


def test_the_demo_names_the_command_as_the_shell_finds_it(tmp_path, monkeypatch):
    """``make demo`` runs it from a virtual environment that is not on the path."""
    (tmp_path / "bin").mkdir()
    for name in ("python", "coterie"):
        (tmp_path / "bin" / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", "")
    assert command_from_here() == str(tmp_path / "bin" / "coterie")
    monkeypatch.chdir(tmp_path)
    assert command_from_here() == os.path.join("bin", "coterie")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert command_from_here() == "coterie"


def test_a_bar_tells_how_much_there_is_and_how_long_it_takes():
    recording = screen()
    with ct.observers.progress_bar("counting sheep", console=recording) as progress:
        assert shown(recording) == ""
        progress(1, 4)
        progress(4, 4)
    last = shown(recording).splitlines()[-1]
    assert "counting sheep" in last
    assert "4/4" in last
    assert re.search(r"0:00:00 left: 0:00:00", last)


def test_where_the_end_is_not_known_a_bar_tells_what_is_done():
    recording = screen()
    with ct.observers.progress_bar("counting sheep", known=False, unit="sheep", console=recording) as progress:
        progress(1234, 0.5)
    last = shown(recording).splitlines()[-1]
    assert "1,234 sheep" in last
    assert re.search(r"\d:\d\d:\d\d", last)
    assert "left" not in last


@pytest.mark.slow
def test_without_a_terminal_a_command_that_refuses_says_one_line(tmp_path):
    """Neither bars that never began nor what waits leave anything there."""
    (tmp_path / "ragged.csv").write_text("a,b,y\n1,2,3\n4,5\n")
    words = ["--agent", "a", "--target", "y", "--task", "regression", "-o", str(tmp_path / "model")]
    for line in (["data", "convert", "nonsense", "nowhere"], ["fit", str(tmp_path / "ragged.csv"), *words]):
        done = process("import sys\nfrom coterie.__main__ import main\nmain()", *line, COLUMNS="80")
        assert done.returncode == console.BAD_INPUT
        assert done.stdout == ""
        assert re.fullmatch(r"error: [^\n]+\n", done.stderr), done.stderr


def test_a_quiet_bar_says_nothing_and_one_that_was_never_called_neither():
    recording = screen()
    with ct.observers.progress_bar("work", console=recording, quiet=True) as progress:
        progress(1, 2)
    with ct.observers.progress_bar("work", console=recording):
        pass
    assert shown(recording) == ""


@pytest.mark.compiled
def test_every_long_function_of_the_library_fills_a_bar():
    """Each of them ends its bar at the end."""
    data = ct.datasets.linear_classification(n=6, p=2, seed=0, rows=(10, 12))
    problem = ct.Problem.personalized(data.train, data.graph)
    X, y, ids = data.train.X, data.train.y, data.train.owner
    local = problem.local()
    models = ct.CollaborativeClassifier(method="cd")
    for work in (
        lambda progress: ct.simulate(problem, "cd", wakes=60, seed=0, progress=progress),
        lambda progress: ct.learn_graph(
            local, problem.losses(local), problem.loss_weight, wakes=60, kappa=2, seed=0, progress=progress
        ),
        lambda progress: ct.compare(["cd"], problem, wakes=60, seeds=[0], progress=progress),
        lambda progress: ct.tune(models, X, y, ids, grid={"coupling": [0.1, 1.0]}, n_splits=2, progress=progress),
        lambda progress: ct.studies.study(lambda seed: {"a": seed}, {}, seeds=range(3), progress=progress),
    ):
        recording = screen()
        with ct.observers.progress_bar("work", console=recording) as progress:
            work(progress)
        done, total = re.findall(r"(\d+)/(\d+)", shown(recording).splitlines()[-1])[-1]
        assert done == total != "1"
    for fit in (models.fit, ct.CollaborativeClassifier().fit, ct.RelationshipClassifier().fit):
        recording = screen()
        with ct.observers.progress_bar("work", known=False, console=recording) as progress:
            fit(X, y, agents=ids, progress=progress)
        assert re.search(r"\d+ rounds 0:\d\d:\d\d", shown(recording).splitlines()[-1])


def test_commands_show_bars(monkeypatch, tmp_path):
    """Those with an end tell the time left, those without one the time so far."""
    recording = screen(200)
    monkeypatch.setattr(console, "talk", recording)
    with console.bar("fitting", quiet=False) as progress:
        progress(2, 2)
    assert re.search(r"2/2 0:00:00 left: 0:00:00", shown(recording))
    with pytest.raises(KeyboardInterrupt), console.bar("fitting", quiet=False):
        raise KeyboardInterrupt
    assert "interrupted: nothing was written" in shown(recording)
    with console.waiting("waiting for Godot", quiet=False):
        pass
    assert re.search(r"waiting for Godot 0:00:00", shown(recording))
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    with pytest.raises(DataError):
        CliRunner().invoke(app, ["data", "convert", "school", str(tmp_path)], catch_exceptions=False)
    assert "reading and verifying school" in shown(recording)
    (tmp_path / "school.npz").write_bytes(b"")
    assert CliRunner().invoke(app, ["data", "check"]).exit_code == console.BAD_INPUT
    assert re.search(r"reading datasets .* 1/1 0:00:00 left", shown(recording))
