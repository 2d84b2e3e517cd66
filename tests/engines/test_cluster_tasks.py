"""Tuning, comparisons and papers as tasks of a real Ray: the bits of this process, and what is said there is said here.

References: the same call in this process. Tasks that wait for each other do so by files, with a limit, so that nothing
here depends on how fast a machine is.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import sparse
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning

import coterie as ct
from coterie.engines.cluster import _recorded
from coterie.errors import ClusterError, DataError, ParameterError, StudyError
from papers import Experiment, experiments, reproduce

LIMIT = 60.0  # seconds after which a task that waits gives up
TWO = ct.Cluster(shards=2)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ray(ray):
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
    yield ray
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def mapped(ray, function, items, **more):
    with closing(TWO.map(ray, function, items, **more)) as found:
        return list(found)


def wait_for(path):
    deadline = time.monotonic() + LIMIT
    while not Path(path).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.01)


# ------------------------------------------------------------------------------------------------------ tasks


def test_results_are_in_order_and_counted(ray, tmp_path):
    def work(k):
        if k == 0:
            wait_for(tmp_path / "last")  # the first is done last
        if k == 4:
            (tmp_path / "last").touch()
        return k * k

    calls = []
    assert mapped(ray, work, range(5), progress=lambda *call: calls.append(call)) == [0, 1, 4, 9, 16]
    assert calls == [(k, 5) for k in range(1, 6)]
    assert mapped(ray, work, []) == []


def test_results_as_they_are_done(ray, tmp_path):
    def work(k):
        if k == 0:
            wait_for(tmp_path / "go")
        return -k

    seen = []
    with closing(TWO.as_completed(ray, work, range(4))) as finished:
        for place, result in finished:
            seen.append((place, result))
            if len(seen) == 3:
                (tmp_path / "go").touch()
    assert sorted(seen[:3]) == [(1, -1), (2, -2), (3, -3)]
    assert seen[3] == (0, 0)


@pytest.mark.slow
def test_what_all_tasks_share_is_sent_once(ray):
    packed = []

    class Shared:
        rows = np.arange(10)

        def __getstate__(self):
            packed.append(1)
            return {}

        def __call__(self, k):
            return int(self.rows[k])

    assert mapped(ray, Shared(), range(8)) == list(range(8))
    assert len(packed) == 1


def test_errors_say_which_item_they_are_about(ray):
    def work(k):
        if k == 1:
            raise DataError("no rows")
        if k == 2:
            raise ZeroDivisionError("by nothing")
        return k

    for items, kind, message in [
        ((0, 1, 2), DataError, "^item 1: no rows$"),  # in the order of the items, whichever fails first
        ((0, 2, 1), ClusterError, "^item 2: a worker failed: ZeroDivisionError: by nothing$"),
    ]:
        with pytest.raises(kind, match=message):
            mapped(ray, work, items, name=lambda k: f"item {k}")
    with pytest.raises(ParameterError, match=r"cannot be sent to the cluster: .*lock"):
        mapped(ray, threading.Lock().acquire, [0])


def test_a_module_that_workers_do_not_have(ray, tmp_path, monkeypatch):
    (tmp_path / "module_of_mine.py").write_text("def work(k): return k")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ClusterError, match=r"^workers cannot import module_of_mine: install"):
        mapped(ray, importlib.import_module("module_of_mine").work, [0], name=str)


def test_a_task_cannot_ask_for_a_cluster(ray):
    def work(k):
        with ct.Cluster().connect():
            return k

    with pytest.raises(ParameterError, match=r"inside a task of engine=ct.Cluster"):
        mapped(ray, work, [0])


def test_another_version_of_coterie_is_refused():
    with pytest.raises(ClusterError, match=r"has coterie .*, and this process 0\.0\.0: install the same"):
        _recorded(abs, -1, logging.WARNING, "0.0.0")


def said(k):
    log = logging.getLogger("coterie")
    for level in (logging.DEBUG, logging.INFO, logging.WARNING):
        log.log(level, "%s of %d", logging.getLevelName(level), k)
    if k == 9:
        raise DataError("refused")


@pytest.mark.parametrize(
    ("level", "heard"),
    [(None, ["WARNING"]), (logging.INFO, ["INFO", "WARNING"]), (logging.DEBUG, ["DEBUG", "INFO", "WARNING"])],
)
def test_logs_reach_the_user_from_the_level_they_ask_for(ray, caplog, level, heard):
    if level is not None:
        caplog.set_level(level, "coterie")
    mapped(ray, said, [0, 1])
    assert [record.getMessage() for record in caplog.records] == [f"{name} of {k}" for k in (0, 1) for name in heard]
    assert [record.levelname for record in caplog.records] == heard * 2
    caplog.clear()
    with pytest.raises(DataError, match="refused"):
        mapped(ray, said, [9])
    assert [record.levelname for record in caplog.records] == heard  # also of a task that failed


def warned(k):
    for _ in range(3):
        warnings.warn("not converged", ConvergenceWarning, stacklevel=1)
    warnings.warn(f"only of {k % 2}", stacklevel=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("not meant to be heard", stacklevel=1)
    if k == 9:
        raise DataError("refused")
    return k


@pytest.mark.slow
def test_warnings_of_workers_are_warnings_here_once_each(ray):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert mapped(ray, warned, range(6)) == list(range(6))
    assert sorted((each.category.__name__, str(each.message)) for each in caught) == [
        ("ConvergenceWarning", "not converged"),
        ("UserWarning", "only of 0"),
        ("UserWarning", "only of 1"),
    ]
    assert {Path(each.filename).name for each in caught} == {Path(__file__).name}
    with warnings.catch_warnings(record=True) as caught:  # the user's filters are the ones that count
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ConvergenceWarning)
        with pytest.raises(DataError, match="refused"):
            mapped(ray, warned, [9])
    assert [str(each.message) for each in caught] == ["only of 1"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        with pytest.raises(ConvergenceWarning, match="not converged"):
            mapped(ray, warned, [0])


def gone(pid):
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat")
            if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("kind", [KeyboardInterrupt, DataError])
def test_an_interruption_or_an_error_ends_what_is_running(ray, tmp_path, kind):
    def work(k):
        if k == 0:
            wait_for(tmp_path / "pid")
            if kind is DataError:
                raise kind
            return k
        draft = tmp_path / "draft"
        draft.write_text(str(os.getpid()))
        draft.rename(tmp_path / "pid")
        wait_for(tmp_path / "never")
        return k

    def interrupt(done, total):
        if kind is KeyboardInterrupt:
            raise kind

    with pytest.raises(kind) as caught:
        mapped(ray, work, range(2), progress=interrupt)
    assert gone(int((tmp_path / "pid").read_text()))
    assert caught.tb is not None  # its frames are alive: nothing was left to the garbage collector


@pytest.mark.slow
def test_a_worker_that_crashes_says_which_item_and_where_to_look(ray):
    def work(k):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(
        ClusterError, match=r"^item 0: the cluster failed: .*Ray keeps what workers print in "
    ) as caught:
        mapped(ray, work, [0], name=lambda k: f"item {k}")
    folder = Path(str(caught.value).partition("what workers print in ")[2].partition(" of the machine")[0])
    assert list(folder.glob("worker-*.err"))


# ------------------------------------------------------------------------------------------------------- tune


class Shrunk(RegressorMixin, BaseEstimator):
    """Every agent predicts the mean of its own rows, times ``keep``."""

    def __init__(self, keep=1.0, engine=None):
        self.keep, self.engine = keep, engine

    def fit(self, X, y, agents):
        if self.keep < 0:
            raise ParameterError(f"keep={self.keep} must not be negative")
        if self.keep > 2:
            warnings.warn(f"keep={self.keep} is much", ConvergenceWarning, stacklevel=1)
        X[0] = 0.0  # rows that were sent are the fit's own
        self.means_ = {agent: self.keep * np.mean(y[agents == agent]) for agent in set(agents.tolist())}
        return self

    def predict(self, X, agents):
        return np.array([self.means_[agent] for agent in agents.tolist()])


def grouped():
    random = np.random.default_rng(3)
    X, ids = random.normal(size=(60, 4)), np.tile(["ann", "bob", "cyd", "dan"], 15)
    return X, X @ [1.0, -1.0, 2.0, 0.5] + 0.5 * random.normal(size=60), ids


def alike(one, other):
    pd.testing.assert_frame_equal(one.table, other.table, check_exact=True)
    assert (one.best_params_, one.best_score_) == (other.best_params_, other.best_score_)


@pytest.mark.slow
def test_tune_finds_what_one_process_finds(ray):
    X, y, ids = grouped()
    numbers = ct.CollaborativeRegressor("cd", graph=ct.graphs.complete(4))
    classes = ct.CollaborativeClassifier("local")
    frame, calls = pd.DataFrame(X, columns=list("abcd")).assign(who=ids), []
    for estimator, rows, labels, agents, more in [
        (numbers, X, y, ids, {"grid": {"coupling": [0.01, 1.0, 100.0], "ridge": [0.1, 1.0]}}),
        (classes, frame, np.where(y > 0, "yes", "no"), "who", {"grid": {"ridge": [0.1, 1.0]}, "n_splits": 2}),
        (numbers, sparse.csr_array(X), y, ids, {"grid": {"coupling": [1.0]}, "random_state": 4}),
        (Shrunk(), X, y, ids, {"grid": {"keep": [0.5, 1.0]}, "scoring": lambda m, X, y, agents: -abs(y).sum()}),
    ]:
        calls.clear()
        there = ct.tune(estimator, rows, labels, agents, **more, engine=TWO, progress=lambda *call: calls.append(call))
        here = ct.tune(estimator, rows, labels, agents, **more)
        alike(here, there)
        total = len(here.table) * more.get("n_splits", 3)
        assert calls == [(k, total) for k in range(1, total + 1)]
        predicted = [result.best_estimator_.predict(rows, agents=agents) for result in (here, there)]
        np.testing.assert_array_equal(*predicted)


@pytest.mark.slow
def test_tune_says_which_point_failed_and_passes_warnings_on(ray):
    X, y, ids = grouped()
    for more in ({}, {"engine": TWO}):
        with pytest.raises(ParameterError, match=r"^keep=-1.0, fold 1 of 3: keep=-1.0 must not be negative$"):
            ct.tune(Shrunk(), X, y, ids, {"keep": [0.9, -1.0]}, **more)
    with pytest.raises(ClusterError, match=r"^keep='much', fold 1 of 3: a worker failed: TypeError: "):
        ct.tune(Shrunk(), X, y, ids, {"keep": ["much"]}, engine=TWO)
    with pytest.warns(ConvergenceWarning, match=r"keep=3.0 is much") as caught:
        ct.tune(Shrunk(), X, y, ids, {"keep": [3.0]}, engine=TWO, refit=False)
    assert len(caught) == 1


def test_what_does_not_go_with_a_cluster(monkeypatch):
    X, y, ids = grouped()
    other = ct.Cluster()
    for estimator, more, message in [
        (Shrunk(), {"engine": "ray"}, "engine='ray' must be a ct.Cluster"),
        (Shrunk(), {"engine": other, "n_jobs": 2}, r"n_jobs=2 does not go with engine=ct.Cluster"),
        (Shrunk(engine=other), {"engine": other}, r"Shrunk\(engine=...\) in tune\(engine=...\)"),
        (Shrunk(), {"engine": other, "grid": {"engine": [None, other]}}, r"set engine=None"),
        (ct.RelationshipRegressor(engine=other), {"engine": other, "grid": {"lam": [1.0]}}, "RelationshipRegressor"),
    ]:
        with pytest.raises(ParameterError, match=message):
            ct.tune(estimator, X, y, ids, **({"grid": {"keep": [1.0]}} | more))
    problem = ct.Problem.propagation(np.eye(8), ct.graphs.complete(8))
    with pytest.raises(ParameterError, match=r"n_jobs=1 does not go with engine"):
        ct.compare(["cd"], problem, wakes=5, engine=other, n_jobs=1)
    with pytest.raises(ParameterError, match=r"engine=4 must be a ct.Cluster"):
        ct.compare(["cd"], problem, wakes=5, engine=4)
    monkeypatch.setattr(ct.CoordinateDescent, "__module__", "__main__")
    for method in ("cd", ct.Learned(ct.CoordinateDescent(), ct.GraphRule())):
        with pytest.raises(ParameterError, match="cannot import CoordinateDescent from a script"):
            ct.compare([method], problem, wakes=5, engine=other)


# ---------------------------------------------------------------------------------------------------- compare


def contest():
    task = ct.datasets.linear_classification(n=12, p=3, seed=3, rows=(3, 9), test_rows=11)
    problem = ct.Problem.personalized(task.train, task.graph)
    closer = ct.Problem.personalized(task.train, task.graph, mu=0.3)
    methods = {"one": ct.baselines.GlobalModel(), "cd": "cd", "closer": ("cd", closer)}
    return {"methods": methods, "problem": problem, "vectors": 1500, "points": 5, "seeds": (0, 7), "test": task.test}


def test_compare_finds_what_one_process_finds(ray):
    given, calls = contest(), []
    here = ct.compare(**given)
    there = ct.compare(**given, engine=TWO, progress=lambda *call: calls.append(call))
    pd.testing.assert_frame_equal(here.table, there.table, check_exact=True)
    assert (here.optimum, repr(here)) == (there.optimum, repr(there))
    assert list(here.runs) == list(there.runs)
    for key, run in here.runs.items():
        assert there.runs[key].problem is run.problem  # it did not come back
        np.testing.assert_array_equal(run.theta, there.runs[key].theta)
        np.testing.assert_array_equal(run.tally, there.runs[key].tally)
        assert run.notes == there.runs[key].notes
    assert calls == [(1500 * k, 7500) for k in range(1, 6)]


@pytest.mark.slow
def test_compare_brings_learned_graphs_back(ray):
    given = contest() | {"methods": [ct.Learned(ct.CoordinateDescent(), ct.GraphRule(), every=3)]}
    here, there = ct.compare(**given), ct.compare(**given, engine=TWO)
    pd.testing.assert_frame_equal(here.table, there.table, check_exact=True)
    for key, run in here.runs.items():
        assert run.graph != given["problem"].graph
        assert there.runs[key].graph == run.graph
        assert there.runs[key].problem.data is given["problem"].data


def test_compare_says_which_run_failed(ray):
    def odd(theta):
        if abs(theta).max() > 1e9:
            raise DataError("too large")
        return 0.0

    given = contest() | {"observe": odd, "start": np.full((12, 3), 1e10)}
    with pytest.raises(DataError, match=r"^cd, seed 0: too large$"):
        ct.compare(**given, engine=TWO)


# ----------------------------------------------------------------------------------------------------- papers


def plan(quick):
    first = yield [{"step": 1, "seed": seed, "diary": DIARY["path"]} for seed in range(4)]
    yield [{"step": 2, "seed": int(sum(row["error"] for row in first)), "diary": DIARY["path"]}]


DIARY = {}  # where the pieces leave notes: workers do not see what a test does to the environment


def work(step, seed, diary):
    with Path(diary).open("a") as notes:
        notes.write(f"{step} {seed}\n")
    if seed == 3 and Path(diary).with_name("fail").exists():
        raise DataError("no luck")
    return {"error": np.float64(seed), "pid": os.getpid()}


def draw(rows):
    return Figure()


TOY = Experiment("toy-figure-1", "a toy", plan, work, lambda rows: [], draw, minutes=0.0)


def test_an_interrupted_paper_goes_on_where_it_was(ray, tmp_path, monkeypatch):
    diary = tmp_path / "diary"
    monkeypatch.setitem(DIARY, "path", str(diary))

    def interrupt(done, known):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(TOY, tmp_path, engine=ct.Cluster(shards=1), progress=interrupt)
    assert len(list((tmp_path / "pieces" / TOY.name).glob("full-*.json"))) == 2
    diary.write_text("")
    (tmp_path / "fail").touch()
    with pytest.raises(DataError, match=r"^step=1, seed=3, diary='.*': no luck$"):
        reproduce(TOY, tmp_path, engine=ct.Cluster(shards=1))
    (tmp_path / "fail").unlink()
    outcome = reproduce(TOY, tmp_path, engine=ct.Cluster(shards=1))
    assert diary.read_text().split("\n")[:-1] == ["1 2", "1 3", "1 3", "2 6"]
    assert [row["error"] for row in outcome.rows] == [0.0, 1.0, 2.0, 3.0, 6.0]
    assert os.getpid() not in {row["pid"] for row in outcome.rows}


@pytest.mark.slow
def test_the_command_of_papers_works_on_a_cluster(ray, tmp_path):
    command = [sys.executable, "-m", "papers", "propagation-admm-figure-4", "--quick", "--json", "-o", str(tmp_path)]
    address = ray.get_runtime_context().gcs_address
    alone, there = (
        json.loads(
            subprocess.run([*command, "--fresh", *more], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        )
        for more in ((), ("--engine", address))
    )
    assert there["rows"] == alone["rows"]
    wrong = subprocess.run([*command, "--engine", "127.0.0.1:1"], cwd=ROOT, capture_output=True, text=True)
    assert wrong.returncode != 0
    assert "cannot reach a cluster at '127.0.0.1:1'" in json.loads(wrong.stdout)["error"]


@pytest.mark.slow
def test_the_work_of_every_paper_travels(tmp_path):
    """Workers have coterie, but not papers/: its code goes with the work, and nothing of it is looked up there."""
    cloudpickle = pytest.importorskip("ray").cloudpickle
    import papers

    works = {name: experiment.work for name, experiment in experiments().items()}
    cloudpickle.register_pickle_by_value(papers)
    try:
        (tmp_path / "works").write_bytes(cloudpickle.dumps(works))
    finally:
        cloudpickle.unregister_pickle_by_value(papers)
    code = "import pickle, sys; sys.modules['papers'] = None; print(len(pickle.load(open('works', 'rb'))))"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(found.stdout) == len(works)


# ------------------------------------------------------------------------------------------ a cluster that is wrong


def in_a_process(code):
    """What a program prints that has a cluster of its own, with one machine of one CPU at first."""
    pytest.importorskip("ray")
    start = """
import coterie as ct
from ray.cluster_utils import Cluster
small = {"num_cpus": 1, "object_store_memory": 80_000_000}
cluster = Cluster()
"""
    settings = os.environ | {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-c", start + textwrap.dedent(code) + "cluster.shutdown()"]
    return subprocess.run(command, capture_output=True, text=True, env=settings, timeout=200, check=True).stdout


@pytest.mark.slow
def test_workers_without_coterie(tmp_path):
    """Workers find another coterie first, which is none."""
    (tmp_path / "coterie").mkdir()
    (tmp_path / "coterie" / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'coterie'\")")
    said = in_a_process(f"""
        cluster.add_node(**small, env_vars={{"PYTHONPATH": {str(tmp_path)!r}}})
        try:
            with ct.Cluster(cluster.address).connect() as ray:
                list(ct.Cluster().map(ray, abs, [-1]))
        except ct.errors.ClusterError as error:
            print(error)
        """)
    assert "workers cannot import coterie: install the same packages on all machines" in said


@pytest.mark.slow
def test_another_version_of_ray():
    said = in_a_process("""
        import ray
        cluster.add_node(**small)
        ray.__version__ = "1.0"
        try:
            with ct.Cluster(cluster.address).connect():
                pass
        except ct.errors.ClusterError as error:
            print(error)
        """)
    assert "cannot reach a cluster at " in said
    assert "(install the versions of Ray and Python that the cluster has)" in said


@pytest.mark.slow
def test_a_machine_that_dies(tmp_path):
    """Its tasks run again on the other one, with the same result."""
    said = in_a_process(f"""
        import pathlib, threading, time
        cluster.add_node(**small)
        other = cluster.add_node(**small)
        folder = pathlib.Path({str(tmp_path)!r})

        def work(k):  # the first two wait for each other, so that both machines are at work; then one of them dies
            if k < 2 and not (folder / "died").exists():
                (folder / str(k)).touch()
                while not (folder / str(1 - k)).exists() or not (folder / "died").exists():
                    time.sleep(0.05)
            return k * k

        def kill():
            while not ((folder / "0").exists() and (folder / "1").exists()):
                time.sleep(0.05)
            cluster.remove_node(other, allow_graceful=False)
            (folder / "died").touch()

        with ct.Cluster(cluster.address).connect() as ray:
            while len([node for node in ray.nodes() if node["Alive"]]) < 2:
                time.sleep(0.1)
            killer = threading.Thread(target=kill)
            killer.start()
            print(list(ct.Cluster().map(ray, work, range(6))))
            killer.join()
            print("left:", len([node for node in ray.nodes() if node["Alive"]]))
        """)
    assert {"[0, 1, 4, 9, 16, 25]", "left: 1"} <= set(said.splitlines())  # Ray tells of the death in between


def studied(mu, seed):
    if (mu, seed) == (3.0, 1):
        raise ValueError("as asked")
    problem = ct.Problem.propagation([[0.0], [mu]], ct.graphs.complete(2), alpha=0.5)
    return ct.simulate(problem, "local", seed=seed)


@pytest.mark.slow
def test_a_study_finds_the_same_on_a_cluster(ray, tmp_path):
    grid = {"mu": [1.0, 2.0]}
    here = ct.studies.study(studied, grid, seeds=range(2))
    there = ct.studies.study(studied, grid, seeds=range(2), engine=TWO, folder=tmp_path)
    pd.testing.assert_frame_equal(there.frame, here.frame, check_exact=True)
    with pytest.raises(StudyError, match=r"1 of 6 pieces failed; mu=3\.0, seed=1: .*ValueError: as asked") as caught:
        ct.studies.study(studied, {"mu": [1.0, 2.0, 3.0]}, seeds=range(2), engine=TWO, folder=tmp_path)
    assert len(caught.value.study.frame) == 5
