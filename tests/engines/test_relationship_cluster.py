"""Relationship learning on a real Ray: the bits of one process, workers that are killed, rows that stay where they are.

References: the same call in this process. Workers die by SIGKILL, in the middle of a run. One test has actors as users
have them. In the others they are used again from test to test, since most of the time here is that of processes that
import; those that are killed are begun again by Ray, too.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import tempfile
import threading
import time
import types
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.errors import DataError

M, P, LAM = 6, 8, 0.01
NAMES = tuple("abcdef")
#: Many small rounds, so that there is a middle to be killed in.
SLOW = {"momentum": False, "passes": 0.05}


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


def function(task, folder):
    """A source that leaves a note of the process in which it ran."""
    X, y = example()[0].rows_of(task)
    note = folder / f"{task}.pid"

    def load():
        with note.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return X, y

    return load


def functions(folder):
    return {task: function(task, folder) for task in NAMES}


def pids(folder, task):
    """Of the processes in which a source ran, the last one last."""
    return [int(line) for line in (folder / f"{task}.pid").read_text().split()]


@pytest.fixture(scope="module")
def ray():
    """A Ray of this machine for all tests here; 2 CPUs whatever there are."""
    ray = pytest.importorskip("ray")
    # Ray's workers give way to all others, by default: where cores are busy, they would take minutes to begin.
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("RAY_worker_niceness", "0")
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init(address="local", num_cpus=2, object_store_memory=80_000_000, **quiet)
    yield ray
    ray.shutdown()
    monkeypatch.undo()


def _kinds():
    """Classes of the pool, here so that they travel by value: workers cannot import this file."""

    class Room:
        """An actor that can be given another role. It keeps the role on disk: that is Ray's part of a restart."""

        def __init__(self, note):
            self.note, self.made = Path(note), None
            if self.note.exists():
                self.take(self.note.read_bytes())

        def take(self, role):
            from ray import cloudpickle

            self.note.write_bytes(role)
            kind, arguments = cloudpickle.loads(role)
            self.made = kind(*arguments)

        def call(self, name, *arguments):
            return getattr(self.made, name)(*arguments)

        def pid(self):
            return os.getpid()

    class Handle:
        """What stands for a Room in the place of an actor."""

        def __init__(self, room, kind):
            self.room, self.kind = room, kind

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(name)
            room = self.room
            return types.SimpleNamespace(remote=lambda *arguments: room.call.remote(name, *arguments))

    return Room, Handle


class Pool:
    """Ray whose actors are used again by the next test."""

    def __init__(self, ray, folder):
        self.ray, self.folder, self.made, self.free = ray, folder, 0, {}
        self.Room, self.Handle = _kinds()

    def __getattr__(self, name):
        return getattr(self.ray, name)

    def remote(self, **options):
        return lambda kind: types.SimpleNamespace(remote=functools.partial(self._hire, options, kind))

    def _hire(self, options, kind, *arguments):
        free = self.free.setdefault(kind.__name__, [])
        if free:
            room = free.pop()
        else:
            self.made += 1
            room = self.ray.remote(**options)(self.Room).remote(str(self.folder / f"{self.made}.role"))
        room.take.remote(self.ray.cloudpickle.dumps((kind, arguments)))
        return self.Handle(room, kind.__name__)

    def kill(self, handle):
        self.free[handle.kind].append(handle.room)

    def pids(self, kind):
        return {self.ray.get(room.pid.remote()) for room in self.free[kind]}


@pytest.fixture(scope="module")
def pool(ray, tmp_path_factory):
    return Pool(ray, tmp_path_factory.mktemp("roles"))


@pytest.fixture
def cluster(pool):
    """Two shards, of actors that are used again."""

    class Pooled(ct.Cluster):
        @contextmanager
        def connect(self):
            yield pool

    return functools.partial(Pooled, shards=2, cpus=0.5)


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The folder of temporary files, for this test only."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


class Killer:
    """A ``progress`` that kills the worker of task "a" once: at once, or in a moment, when it is at work."""

    def __init__(self, notes, after=20, delay=0.0, before=lambda: None):
        self.notes, self.after, self.delay, self.before = notes, after, delay, before
        self.killed_at = self.timer = None

    def __call__(self, rounds, apart):
        if self.killed_at is None and rounds >= self.after:
            self.killed_at = rounds
            self.timer = threading.Timer(self.delay, self.kill)
            self.timer.start()
            if not self.delay:
                self.timer.join()

    def kill(self):
        pid = pids(self.notes, "a")[-1]
        self.before()
        os.kill(pid, signal.SIGKILL)

    def check(self, run):
        """It was killed in the middle, and came back."""
        self.timer.join()
        assert self.after <= self.killed_at < run.rounds
        first, second = pids(self.notes, "a")
        assert first != second
        others = [task for task in NAMES if pids(self.notes, task)[0] != first]
        assert others
        assert all(len(pids(self.notes, task)) == 1 for task in others)


def falls(run):
    """How much the dual fell in any round, at most."""
    return max(0.0, -np.diff(run.trace["dual"]).min())


def gain(run, rounds):
    """The largest gain of the dual in any round from this one on."""
    return np.diff(run.trace["dual"])[rounds:].max()


def test_same_bits_as_one_process_wherever_the_rows_are(cluster, pool, tmp_path):
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

    def look(rounds, apart):
        seen.update(path.name for path in keep.glob("*/*.npy"))

    expected = here()
    for data in (sources, example()[0]):
        run = learn(data, target="ill", engine=cluster(folder=keep), progress=look)
        assert run.members == expected.members == NAMES
        assert np.array_equal(run.weights, expected.weights)
        assert np.array_equal(run.covariance, expected.covariance)
        pd.testing.assert_frame_equal(run.trace, expected.trace, check_exact=True)
        assert (run.value, run.bound, run.rounds) == (expected.value, expected.bound, expected.rounds)
    assert seen == {"shard-0.npy", "shard-1.npy"}  # in the folder that was named
    assert list(keep.iterdir()) == []
    ran = {pid for task in "cf" for pid in pids(tmp_path, task)}
    assert ran <= pool.pids("WorkerActor")
    assert ran.isdisjoint(pool.pids("ServerActor") | {os.getpid()})


@pytest.mark.slow  # processes as users have them take long to begin
def test_a_worker_is_killed(ray, tmp_path, scratch):
    killer = Killer(tmp_path, delay=0.1)  # at work; and on actors as users have them
    run = learn(functions(tmp_path), engine=ct.Cluster(shards=2, cpus=0.5), progress=killer)
    killer.check(run)
    assert run.converged
    expected = here()
    assert abs(run.value - expected.value) <= 1e-4 * expected.value
    assert run.bound <= expected.value
    assert expected.bound <= run.value
    # What it had learned was not lost.
    assert run.trace["dual"][killer.killed_at :].min() > run.trace["dual"][killer.killed_at - 1] - gain(run, 1)
    assert run.notes == ("workers died and began again, 1 time(s)",)
    assert list(scratch.iterdir()) == []
    assert ray.is_initialized()


@pytest.mark.slow
def test_a_worker_that_does_not_wait_is_killed(cluster, tmp_path, scratch):
    killer = Killer(tmp_path)
    run = learn(functions(tmp_path), engine=cluster(), staleness=1, progress=killer)
    killer.check(run)
    assert run.converged
    assert abs(run.value - here().value) <= 1e-4 * run.value
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("staleness", [None, pytest.param(1, marks=pytest.mark.slow)])
def test_a_worker_is_killed_with_a_given_covariance(staleness, cluster, tmp_path):
    killer = Killer(tmp_path, delay=0.05)
    run = learn(functions(tmp_path), True, engine=cluster(), staleness=staleness, progress=killer, **SLOW)
    killer.check(run)
    assert run.converged
    assert abs(run.value - here(given=True).value) <= 1e-6 * run.value
    assert falls(run) <= 1e-12  # not even by the round that was lost


@pytest.mark.slow
def test_a_worker_and_its_checkpoint_are_lost(cluster, tmp_path, scratch):
    def lose():
        """Stop the workers, who would write the next ones at once."""
        workers = {pids(tmp_path, task)[-1] for task in NAMES}
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(0.05)
        assert len(list(scratch.glob("*/*.npy"))) == 2
        shutil.rmtree(scratch)
        scratch.mkdir()
        for pid in workers:
            os.kill(pid, signal.SIGCONT)

    killer = Killer(tmp_path, before=lose, after=50)
    run = learn(functions(tmp_path), True, engine=cluster(), progress=killer, **SLOW)
    killer.check(run)
    assert falls(run) > gain(run, killer.killed_at)
    assert run.converged
    assert abs(run.value - here(given=True).value) <= 1e-6 * run.value
    assert list(scratch.iterdir()) == []


def test_rounds_without_waiting(cluster):
    run = learn(example()[0], True, engine=cluster(), staleness=2)
    assert run.converged
    assert abs(run.value - here(given=True).value) <= 1e-6 * run.value
    assert falls(run) <= 1e-12


def test_a_source_that_fails(cluster, tmp_path, scratch):
    sources = functions(tmp_path)

    def broken():
        raise OSError("no such disk")

    def single():
        return np.eye(P), np.ones(P)

    for source, message in (
        (broken, r"^task 'c': its callable raised OSError: no such disk$"),
        (single, r"^task 'c' has rows of one class only, 1"),
        (str(tmp_path / "gone.csv"), r"^task 'c' \(.*gone.csv\): no such file"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            learn(sources | {"c": source}, engine=cluster())
        assert type(caught.value) is DataError
    assert list(scratch.iterdir()) == []
