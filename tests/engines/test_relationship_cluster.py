"""Relationship learning on a Ray cluster: the same bits as in one process, whoever dies on the way.

Every drill ends at the optimum of the undisturbed run, and leaves nothing behind.
"""

from __future__ import annotations

import functools
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ray_here import MARK, processes

import coterie as ct
from coterie.errors import ClusterError, DataError, ParameterError
from coterie.multitask import checkpoints

pytestmark = pytest.mark.compiled

M, P, LAM = 6, 5, 1e-2
NAMES = tuple("abcdef")
#: Rounds that do little, so that a run takes many: something can happen in the middle.
SLOW = {"momentum": False, "passes": 0.05}
ON_LINUX = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")


@functools.cache
def example():
    """Six tasks of two families, by name; and their covariance."""
    task = ct.datasets.related_tasks(n=M, p=P, rows=80, seed=0, parents=2)
    data = ct.AgentData(task.train.X, task.train.y, agents=[NAMES[i] for i in task.train.owner], members=NAMES)
    return data, task.correlation / M


@functools.cache
def here(**settings):
    """The reference: in this process, with the covariance learned or given."""
    return learn(example()[0], **settings)


def learn(data, given=False, **settings):
    covariance = example()[1] if given else None
    return ct.relationship(data, "logistic", LAM, covariance=covariance, **settings)


def function(task, folder, before=None):
    """A source that leaves a note of the process in which it ran."""
    X, y = example()[0].rows_of(task)
    note = folder / f"{task}.pid"

    def load():
        with note.open("a") as file:
            file.write(f"{os.getpid()}\n")
        if before is not None:
            before()
        return X, y

    return load


def functions(folder, before=None):
    return {task: function(task, folder, before) for task in NAMES}


def pids(folder, task):
    """Of the workers in which a source ran, the last one last; the first run was that of the survey."""
    return [int(line) for line in (folder / f"{task}.pid").read_text().split()][1:]


@pytest.fixture
def cluster(ray):
    return functools.partial(ct.Cluster, shards=2, cpus=0.5)


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The folder of temporary files, for this test only."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def often(monkeypatch):
    """Checkpoints after every look at the run."""
    monkeypatch.setattr(checkpoints, "MIN_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(checkpoints, "MIN_INTERVAL_FACTOR", 0.0)


class Once:
    """A ``progress`` that does something once, in the middle: at once, or in a moment, when workers are at work."""

    def __init__(self, action, after=20, delay=0.0):
        self.action, self.after, self.delay = action, after, delay
        self.at = self.timer = None

    def __call__(self, rounds, gap):
        if self.at is None and rounds >= self.after:
            self.at = rounds
            self.timer = threading.Timer(self.delay, self.action)
            self.timer.start()
            if not self.delay:
                self.timer.join()

    def check(self, run):
        """It happened in the middle."""
        self.timer.join()
        assert self.after <= self.at < run.rounds


def kill_worker_of(task, notes):
    os.kill(pids(notes, task)[-1], signal.SIGKILL)


def falls(run):
    """How much the dual fell in any round, at most."""
    return max(0.0, -np.diff(run.trace["dual"]).min())


def gain(run, rounds):
    """The largest gain of the dual in any round from this one on."""
    return np.diff(run.trace["dual"])[rounds:].max()


def assert_same(run, expected):
    assert run.members == expected.members
    assert np.array_equal(run.weights, expected.weights)
    assert np.array_equal(run.covariance, expected.covariance)
    pd.testing.assert_frame_equal(run.trace, expected.trace, check_exact=True)
    assert (run.value, run.bound, run.rounds) == (expected.value, expected.bound, expected.rounds)


def assert_optimal(run, expected, tol):
    assert run.converged
    assert abs(run.value - expected.value) <= tol * expected.value
    assert run.bound <= expected.value
    assert expected.bound <= run.value


# -- undisturbed ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_same_bits_as_one_process_wherever_the_rows_are(cluster, tmp_path, often):
    sources = {}
    for k, task in enumerate(NAMES):
        X, y = example()[0].rows_of(task)
        if k % 3 == 0:
            sources[task] = tmp_path / f"{task}.npz"
            np.savez(sources[task], X=X, y=y)
        elif k % 3 == 1:
            frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(P)]).assign(ill=y)
            sources[task] = str(tmp_path / f"{task}.csv")
            frame.to_csv(sources[task], index=False)
        else:
            sources[task] = function(task, tmp_path)
    keep, seen = tmp_path / "keep", set()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("not coterie's")

    def look(rounds, apart):
        seen.update(path.name for path in keep.glob("*/*.npz"))

    for data, resume in ((sources, None), (example()[0], mine)):
        run = learn(data, target="ill", engine=cluster(folder=keep), resume=resume, progress=look)
        assert_same(run, here())
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]
    assert {f"part-{part}.npz" for part in range(M)} <= seen  # in the folder that was named
    assert list(keep.iterdir()) == []
    ran = {pid for task in "cf" for pid in pids(tmp_path, task)}
    assert os.getpid() not in ran


@pytest.mark.slow
def test_rounds_without_waiting(cluster):
    run = learn(example()[0], True, engine=cluster(), staleness=2)
    assert_optimal(run, here(given=True), 1e-6)
    assert falls(run) <= 1e-12


def test_a_source_that_fails(cluster, tmp_path, scratch):
    sources = functions(tmp_path)

    def broken():
        raise OSError("no such disk")

    for source, message in (
        (broken, r"agent 'c'.*OSError: no such disk"),
        (str(tmp_path / "gone.csv"), r"agent 'c'.*gone.csv.*no such file"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            learn(sources | {"c": source}, engine=cluster())
        assert type(caught.value) is DataError
    assert list(scratch.iterdir()) == []


# -- drills: workers --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [None, 1])
def test_a_worker_is_killed(staleness, cluster, tmp_path, scratch, caplog):
    once = Once(lambda: kill_worker_of("a", tmp_path), delay=0.05)
    run = learn(functions(tmp_path), True, engine=cluster(), staleness=staleness, progress=once, **SLOW)
    once.check(run)
    assert_optimal(run, here(given=True), 1e-6)
    assert falls(run) <= 1e-12  # nothing that was answered is lost: not even by the round in which it died
    # Its tasks went to the other worker, and nobody else loaded anything again.
    dead, left = pids(tmp_path, "a")
    own = [task for task in NAMES if pids(tmp_path, task)[0] == dead]
    assert {tuple(pids(tmp_path, task)) for task in own} == {(dead, left)}
    assert {tuple(pids(tmp_path, task)) for task in set(NAMES) - set(own)} == {(left,)}
    assert run.notes == ("workers died, 1 time(s), and their tasks went to others",)
    [record] = [each for each in caplog.records if each.name == "coterie"]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("a worker died: ")
    assert f"its {len(own)} task(s) go to the 1 left" in record.getMessage()
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_a_worker_is_killed_while_the_covariance_is_learned(cluster, tmp_path, scratch):
    once = Once(lambda: kill_worker_of("a", tmp_path), delay=0.05)
    run = learn(functions(tmp_path), engine=cluster(), progress=once)
    once.check(run)
    assert_optimal(run, here(), 1e-4)
    # What it had learned was not lost.
    assert run.trace["dual"][once.at :].min() > run.trace["dual"][once.at - 1] - gain(run, 1)
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_a_worker_and_what_it_has_written_are_lost(cluster, tmp_path, scratch):
    def lose():
        """Stop the workers, who would write again at once."""
        workers = {pids(tmp_path, task)[-1] for task in NAMES}
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(0.05)
        assert len(list(scratch.glob("*/part-*.npz"))) >= M
        shutil.rmtree(scratch)
        scratch.mkdir()
        kill_worker_of("a", tmp_path)
        for pid in workers:
            os.kill(pid, signal.SIGCONT)

    once = Once(lose, after=200)
    run = learn(functions(tmp_path), True, engine=cluster(), progress=once, **SLOW)
    once.check(run)
    assert_optimal(run, here(given=True), 1e-6)
    # Its dual variables are those of the weights by then: less is lost than by beginning at zero.
    dual = run.trace["dual"].to_numpy()
    assert dual[once.at :].min() > dual[0] + 0.5 * (dual[once.at - 1] - dual[0])
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_all_workers_are_killed(cluster, tmp_path, scratch):
    def kill():
        for pid in {pids(tmp_path, task)[-1] for task in NAMES}:
            os.kill(pid, signal.SIGKILL)

    once = Once(kill)
    run = learn(functions(tmp_path), True, engine=cluster(), progress=once, **SLOW)
    once.check(run)
    assert_optimal(run, here(given=True), 1e-6)
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_workers_that_die_again_and_again_end_the_run(cluster, tmp_path, scratch):
    def die():
        """Once the survey has looked at every source."""
        if sum(len(note.read_text().split()) for note in tmp_path.glob("*.pid")) > M:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ClusterError, match=r"workers have died, which is too many; the last one: .*died"):
        learn(functions(tmp_path, die), engine=cluster())
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_a_disk_is_full(cluster, tmp_path, scratch, often, caplog):
    def fill():
        """From now on this process can write nothing of any size."""
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))

    run = learn(functions(tmp_path, fill), engine=cluster(), resume=tmp_path / "keep")
    assert_same(run, here())
    said = [each.getMessage() for each in caplog.records if each.name == "coterie"]
    assert 1 <= len(said) <= 2  # once by each worker
    assert all(each.startswith("checkpoints cannot be written, the run goes on without: ") for each in said)
    assert not (tmp_path / "keep").exists()


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [None, 2])
def test_a_slow_worker(staleness, cluster, tmp_path):
    """It is stopped for three seconds in the middle."""

    def stop():
        pid = pids(tmp_path, "a")[-1]
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(3.0, os.kill, (pid, signal.SIGCONT)).start()

    once = Once(stop)
    run = learn(functions(tmp_path), True, engine=cluster(), staleness=staleness, progress=once, **SLOW)
    once.check(run)
    assert_optimal(run, here(given=True), 1e-6)
    assert run.notes == ()


# -- drills: server and driver ----------------------------------------------------------------------------------------


@pytest.mark.slow
@ON_LINUX
@pytest.mark.parametrize("given", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_server_is_killed(given, cluster, tmp_path, scratch, often, caplog):
    settings = SLOW if given else {}
    once = Once(lambda: os.kill(processes("ServerActor")[-1], signal.SIGKILL), after=50, delay=0.05)
    run = learn(functions(tmp_path), given, engine=cluster(), progress=once, **settings)
    once.check(run)
    assert_same(run, here(given=given, **settings))
    assert all(len(pids(tmp_path, task)) == 1 for task in NAMES)  # rows stayed where they were
    [said] = [each.getMessage() for each in caplog.records if each.name == "coterie"]
    assert said.startswith("the server died: ")
    assert "another one goes on from round " in said
    assert list(scratch.iterdir()) == []


@ON_LINUX
@pytest.mark.slow
def test_the_server_is_killed_before_the_first_checkpoint(cluster, tmp_path, scratch):
    once = Once(lambda: os.kill(processes("ServerActor")[-1], signal.SIGKILL))
    run = learn(functions(tmp_path), engine=cluster(), progress=once)
    once.check(run)
    assert_same(run, here())


DRIVER = """
    import os, signal, sys
    import numpy as np
    import coterie as ct
    from coterie.multitask import checkpoints

    checkpoints.MIN_INTERVAL_SECONDS = 0.0
    folder, out, stop = sys.argv[1], sys.argv[2], int(sys.argv[3])
    task = ct.datasets.related_tasks(n=6, p=5, rows=80, seed=0, parents=2)

    def progress(rounds, gap):
        if stop and rounds > stop and os.path.exists(os.path.join(folder, "server.npz")):
            os.kill(os.getpid(), signal.SIGKILL)

    run = ct.relationship(task.train, "logistic", 1e-2, engine=ct.Cluster(shards=int(sys.argv[4])), resume=folder,
                          progress=progress)
    np.savez(out, weights=run.weights, trace=run.trace.to_numpy())
"""


@pytest.mark.slow
@pytest.mark.parametrize("shards", [2, 1], ids=["as many workers", "fewer workers"])
def test_the_driver_is_killed(shards, tmp_path):
    program, folder, out = tmp_path / "driver.py", tmp_path / "keep", tmp_path / "out.npz"
    program.write_text(textwrap.dedent(DRIVER))

    def drive(stop, workers):
        command = [sys.executable, str(program), str(folder), str(out), str(stop), str(workers)]
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        return subprocess.run(command, timeout=300, env=environment | {"RAY_worker_niceness": "0"}).returncode

    assert drive(60, 2) == -signal.SIGKILL
    assert (folder / "server.npz").exists()
    assert drive(0, shards) == 0
    found = np.load(out)
    expected = here()
    assert np.array_equal(found["weights"], expected.weights)
    assert np.array_equal(found["trace"], expected.trace.to_numpy())
    assert not folder.exists()


# -- going on, in one process -----------------------------------------------------------------------------------------


class PulledPlugError(Exception):
    """Somebody pulls the plug."""


def stop_after(rounds):
    def progress(done, gap):
        if done >= rounds:
            raise PulledPlugError

    return progress


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"given": True},
        {"rounds": 3},
        {"method": "sdca"},
        {"momentum": False},
        {"given": True, "eta": 0.5},
    ],
    ids=["learned", "given", "W-steps", "one after the other", "no momentum", "a part of each step"],
)
@pytest.mark.every_case
def test_a_run_goes_on_where_it_was_cut_short_bit_by_bit(settings, tmp_path, often, monkeypatch):
    monkeypatch.setattr("coterie.multitask.learn.PROGRESS_SECONDS", 0.0)  # a look after every round
    folder, settings = tmp_path / "keep", settings | {"tol": 1e-3}
    expected = learn(example()[0], **settings)
    for rounds in (expected.rounds // 3, 2 * expected.rounds // 3):
        with pytest.raises(PulledPlugError):
            learn(example()[0], **settings, resume=folder, progress=stop_after(rounds))
        assert (folder / "server.npz").exists()
    later = []
    run = learn(example()[0], **settings, resume=folder, progress=lambda rounds, gap: later.append(rounds))
    assert later[0] >= 2 * expected.rounds // 3 - 1  # it did not begin anew
    assert_same(run, expected)
    assert not folder.exists()


def cut_short(folder, data=None, rounds=9, **settings):
    with pytest.raises(PulledPlugError):
        learn(example()[0] if data is None else data, resume=folder, progress=stop_after(rounds), **settings)


def test_other_rows_or_other_checkpoints_are_not_gone_on_with(tmp_path, often, monkeypatch):
    monkeypatch.setattr("coterie.multitask.learn.PROGRESS_SECONDS", 0.0)
    data = example()[0]
    for other in (data.with_features(2.0 * data.X), data._like(y=-np.asarray(data.y))):
        cut_short(tmp_path / "rows")
        with pytest.raises(DataError, match=r"rows of task 'a' and others are not those of the checkpoint"):
            learn(other, resume=tmp_path / "rows")
        shutil.rmtree(tmp_path / "rows")
    cut_short(tmp_path / "one")
    cut_short(tmp_path / "two", seed=1)
    for path in (tmp_path / "two").glob("part-*"):
        shutil.copy(path, tmp_path / "one")
    with pytest.raises(OSError, match="is not whole"):
        learn(data, resume=tmp_path / "one")


def test_a_checkpoint_stays_whole_where_the_next_one_cannot_be_written(tmp_path, often, monkeypatch):
    monkeypatch.setattr("coterie.multitask.learn.PROGRESS_SECONDS", 0.0)
    file, good = tmp_path / "server.npz", []

    def spoil(done, gap):
        if done == 12:  # from now on it cannot be written
            good.append(file.read_bytes())
            file.unlink()
            file.mkdir()
        if done == 20:
            raise PulledPlugError

    with pytest.raises(PulledPlugError):
        learn(example()[0], resume=tmp_path, progress=spoil)
    file.rmdir()
    file.write_bytes(good[0])
    written = {path.name for path in tmp_path.glob("part-0.*")}
    assert len(written) <= 3  # the one on disk, the one before and the last
    assert_same(learn(example()[0], resume=tmp_path, tol=5e-5), here())


def test_a_checkpoint_of_another_run_is_refused(tmp_path, often, monkeypatch):
    monkeypatch.setattr("coterie.multitask.learn.PROGRESS_SECONDS", 0.0)
    with pytest.raises(PulledPlugError):
        learn(example()[0], resume=tmp_path, progress=stop_after(9))
    with pytest.raises(ParameterError, match=r"holds a checkpoint of another run: seed is 0 there and 1 here"):
        learn(example()[0], resume=tmp_path, seed=1)
    with pytest.raises(ParameterError, match=r"another run: .*covariance is \[\] there and \['"):
        learn(example()[0], True, resume=tmp_path)
    with pytest.raises(ParameterError, match=r"another run: method is 'dmtrl' there and 'single-task' here"):
        learn(example()[0], resume=tmp_path, method="single-task")
    with pytest.raises(ParameterError, match=r"another run: .*number of tasks is 6 there and 5 here"):
        learn(example()[0].only(range(5)), resume=tmp_path)
    (tmp_path / "server.npz").write_bytes(b"rubbish")
    with pytest.raises(OSError, match=r"server.npz: not a checkpoint of coterie"):
        learn(example()[0], resume=tmp_path)
    (tmp_path / "mine.txt").write_text("not coterie's")
    (tmp_path / "server.npz").unlink()
    assert_same(learn(example()[0], resume=tmp_path, tol=1e-2), here(tol=1e-2))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
