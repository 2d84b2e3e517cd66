"""A lab of real processes: peers come to the exact optimum while some of them are killed, paused and cut off."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from processes import status, until
from typer.testing import CliRunner

from coterie.cli.lab import app
from coterie.errors import CoterieError, DataError, IdentityError, ParameterError
from coterie.peers.lab import Lab, charter_fields, from_table, synthetic, watch
from coterie.peers.lab.processes import peers_of
from coterie.peers.node.process import running
from coterie.peers.node.state import FileStore, read_record


def command(*arguments):
    """The command in this process: its json."""
    result = CliRunner().invoke(app, ["lab", *map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "killed", "hung", "cut"),
    [(5, [3], 4, [0]), pytest.param(20, [3, 8, 15], 5, [0, 1, 2], marks=pytest.mark.slow)],
)
def test_processes_come_to_the_optimum_whatever_happens_to_them(tmp_path, n, killed, hung, cut):
    with Lab(tmp_path / "lab", synthetic(n, features=4, seed=1, neighbours=4), **charter_fields(rate=5.0)) as lab:
        lab.start_all()
        starts = [status(folder)["starts"] for folder in lab.folders]
        pids = [process.pid for process in lab.processes]
        for i in killed:
            lab.kill(i)
        lab.pause(hung)
        lab.partition(cut)
        assert [lab.state(killed[0]), lab.state(hung)] == ["killed", "paused"]
        assert lab.state(0) == "cut off"
        before = [status(folder)["wakes"] for folder in lab.folders]

        def advanced():
            others = set(range(n)) - {*killed, hung}
            return all(status(lab.folders[i])["wakes"] > before[i] + 3 for i in others)

        until(advanced, "the others do not go on")
        assert status(lab.folders[hung])["wakes"] <= before[hung] + 1
        for i in killed:
            assert running(lab.folders[i]) is None
            lab.start(i)
        lab.resume(hung)
        lab.heal()
        until(lambda: all(lab.is_up(i) for i in killed), "the killed ones do not come back")
        pids += [lab.processes[i].pid for i in killed]
        report = watch(lab, seconds=120, tolerance=1e-6)

    assert report["reached"], report["gap"]
    assert 0.0 <= report["gap"] <= 1e-6
    assert all(row["state"] == "up" and row["distance"] < 0.1 for row in report["peers"])
    records = [read_record(FileStore(folder / "state").load()) for folder in lab.folders]
    for i, folder in enumerate(lab.folders):
        end = status(folder)
        assert end["starts"] > starts[i] if i in killed else end["starts"] == starts[i]
        assert end["starts"] == records[i].starts
        assert end["refused"].keys() <= {"unproven"}, "a number of a message was used twice, or something worse"
    for folder in lab.folders:
        assert running(folder) is None
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
def test_what_is_done_from_another_terminal(tmp_path):
    folder = tmp_path / "lab"
    arguments = [
        "lab",
        "3",
        "--folder",
        str(folder),
        "--features",
        "3",
        "--tolerance",
        "0",
        "--seconds",
        "300",
        "--json",
    ]
    with subprocess.Popen([sys.executable, "-m", "coterie", *arguments], stdout=subprocess.PIPE, text=True) as process:
        until(lambda: (folder / "report.json").exists(), "the lab does not start")
        where = ("--folder", folder)

        def seen(*states):
            return lambda: [row["state"] for row in command("status", *where)["peers"]] == [*states]

        with pytest.raises(IdentityError, match=f"a lab is running in .*, as process {process.pid}"):
            command(2, *where)
        assert command("kill", "p1", *where) == {"killed": [1]}
        assert command("pause", 2, *where) == {"paused": [2]}
        until(seen("up", "killed", "paused"), "the lab does not see it")
        with pytest.raises(IdentityError, match="p1 is not running"):
            command("kill", 1, *where)
        with pytest.raises(IdentityError, match="p0 is running already"):
            command("start", 0, *where)
        with pytest.raises(ParameterError, match="there is no peer 3: peers are numbered 0 to 2"):
            command("pause", "1-3", *where)
        assert command("start", 1, *where) == {"started": [1]}
        assert command("resume", "2", *where) == {"resumed": [2]}
        assert command("partition", "0", *where) == {"cut off": [0]}
        until(seen("cut off", "up", "up"), "the lab does not see it")
        command("heal", *where)
        until(seen("up", "up", "up"), "the lab does not see it")
        assert command("stop", *where) == {"stopped": process.pid, "left": []}
        report = json.loads(process.communicate()[0])
    assert process.returncode == 0
    assert [row["state"] for row in report["peers"]] == ["up"] * 3
    assert report["gap"] < 1.0
    assert all(running(peer) is None for peer in peers_of(folder))
    assert not command("status", *where)["running"]
    with pytest.raises(IdentityError, match="no lab is running"):
        command("stop", *where)


@pytest.mark.slow
def test_peers_do_not_outlive_a_lab_that_was_killed(tmp_path):
    folder = tmp_path / "lab"
    arguments = ["lab", "2", "--folder", str(folder), "--features", "2", "--epsilon", "1", "--rate", "0.5", "--json"]
    with subprocess.Popen([sys.executable, "-m", "coterie", *arguments], stdout=subprocess.DEVNULL) as process:
        until(lambda: (folder / "report.json").exists(), "the lab does not start")
        seen = command("status", "--folder", folder)
        assert (seen["epsilon"], seen["gap"]) == (1.0, None)  # private peers are not compared with the optimum
        command("pause", 1, "--folder", folder)  # it cannot notice
        process.send_signal(signal.SIGKILL)
    with pytest.raises(IdentityError, match="peers of an earlier lab still run"):
        command(2, "--folder", folder)
    until(lambda: running(folder / "p0") is None, "p0 goes on")
    assert command("stop", "--folder", folder) == {"stopped": None, "left": ["p1"]}
    assert running(folder / "p1") is None


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ([], ParameterError, "give a number of peers to start, or one of kill, start"),
        (["many"], ParameterError, "many: give a number"),
        (["1"], ParameterError, "1 peers: a lab has 2 to 500"),
        (["3", "4"], ParameterError, "only kill, start, pause, resume, partition are done to some"),
        (["3", "--agent", "who"], ParameterError, "go with --data"),
        (["3", "--data", "table.csv"], ParameterError, "--data needs --agent and --target"),
        (["3", "--method", "magic"], ParameterError, "magic"),
        (["kill", "1"], IdentityError, "there is no lab in .*: coterie lab 20 .*starts one"),
        (["status"], IdentityError, "there is no lab in"),
        (["stop"], IdentityError, "there is no lab in"),
    ],
)
def test_what_is_refused(tmp_path, arguments, kind, message):
    with pytest.raises(kind, match=message):
        CliRunner().invoke(app, ["lab", *arguments, "--folder", str(tmp_path / "lab")], catch_exceptions=False)


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(IdentityError, match="is not the folder of a lab"):
        CliRunner().invoke(app, ["lab", "3", "--folder", str(tmp_path)], catch_exceptions=False)
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"who": np.repeat(["ann", "bob", "cy"], [4, 5, 6]), "x": rng.normal(3, 2, 15)})
    frame["y"] = np.where(frame["x"] > 3, "yes", "no")
    frame.to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


def test_a_table_gives_one_peer_for_each_agent(table, tmp_path):
    task = from_table(table, "who", "y")
    assert task.agents == ["ann", "bob", "cy"]
    assert [len(frame) for frame in task.frames] == [4, 5, 6]
    assert (task.fields["labels"], task.fields["max_rows"], task.graph) == (["no", "yes"], 6, None)
    (tmp_path / "edges.csv").write_text("agent,peer,weight\nann,bob,0.5\nbob,cy,1\n")
    assert from_table(table, "who", "y", 2, tmp_path / "edges.csv").graph.W.toarray().tolist() == [[0, 0.5], [0.5, 0]]
    numbers = pd.read_csv(table).assign(y=lambda frame: 2 * frame["x"])
    numbers.to_csv(table, index=False)
    assert from_table(table, "who", "y").fields["labels"] is None


def test_tables_that_do_not_fit(table):
    frame = pd.read_csv(table)
    for changed, message in (
        (frame.assign(x="red"), "column 'x' does not hold numbers"),
        (frame.assign(y=["a", "b", "c"] * 5), "has 3 classes: peers know two"),
        (frame.drop(columns="y"), "no column 'y'"),
    ):
        changed.to_csv(table, index=False)
        with pytest.raises(DataError, match=message):
            from_table(table, "who", "y")
    frame.to_csv(table, index=False)
    with pytest.raises(CoterieError, match=r"5 peers: .* has rows of 3 agents only"):
        from_table(table, "who", "y", 5)


def test_peers_keep_their_heaviest_edges():
    graph = synthetic(30, features=3, seed=0, neighbours=3).graph
    W = graph.W.toarray()
    assert np.array_equal(W, W.T)
    assert np.count_nonzero(W, axis=1).min() >= 1
    full = synthetic(30, features=3, seed=0, neighbours=29).graph.W.toarray()
    assert np.count_nonzero(W) < np.count_nonzero(full)
    assert np.array_equal(W.max(axis=1), full.max(axis=1))
