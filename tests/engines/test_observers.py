"""Runs that others watch: what they were told is the trace. Each library is asked in its offline mode."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

import coterie as ct
from coterie.errors import ParameterError


@pytest.fixture(scope="module")
def problem():
    return ct.Problem.propagation([[0.0], [2.0], [5.0]], ct.graphs.ring(3), alpha=0.5)


class Diary:
    def __init__(self):
        self.rows, self.ends = [], []

    def record(self, step, measures):
        self.rows.append({"wakes": step, **measures})

    def finish(self, run):
        self.ends.append(run)


def test_whoever_watches_is_told_the_trace_and_the_end(problem):
    one, other = Diary(), Diary()
    run = ct.simulate(problem, "cd", wakes=10, every=4, observe={"most": np.max}, watch=[one, other])
    assert one.rows == other.rows == run.trace.to_dict("records")
    assert one.ends == [run]
    again = ct.simulate(problem, "cd", wakes=4, start=run, watch=one)  # what went before was told before
    assert one.rows[len(run.trace) :] == again.trace.drop(columns="most").to_dict("records")[len(run.trace) :]
    base = Diary()
    assert base.rows == [] != ct.simulate(problem, "global", watch=base).trace.to_dict("records") == base.rows


def test_whoever_watches_is_told_of_an_error(problem):
    diary = Diary()
    with pytest.raises(ZeroDivisionError):
        ct.simulate(problem, "cd", wakes=10, observe={"odd": lambda theta: 1 / 0}, watch=diary)
    assert diary.ends == [None]
    with pytest.raises(ParameterError, match="must have record"):
        ct.simulate(problem, "cd", wakes=10, watch=print)
    with pytest.raises(ParameterError, match="must have record"):
        ct.simulate(problem, "cd", wakes=10, watch=Diary)


def test_a_library_that_is_missing_is_asked_for():
    code = """
import sys, coterie as ct
for name in ("mlflow", "wandb", "tensorboard", "tensorboard.summary"):
    sys.modules[name] = None
for name in ("MLflow", "WandB", "TensorBoard"):
    try:
        getattr(ct.observers, name)("first")
    except ct.errors.MissingExtra as error:
        print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert [line.split("pip install ")[1] for line in said.splitlines()] == [
        f"'coterie[{extra}]'" for extra in ("mlflow", "wandb", "tensorboard")
    ]


def watched(problem, observer):
    return ct.simulate(problem, "cd", wakes=10, every=4, seed=3, observe={"most": np.max}, watch=observer)


def test_tensorboard(problem, tmp_path):
    pytest.importorskip("tensorboard.summary")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    run = watched(problem, ct.observers.TensorBoard(tmp_path / "first"))
    events = EventAccumulator(str(tmp_path / "first")).Reload()
    assert set(events.Tags()["tensors"]) == set(run.trace) - {"wakes"}
    for name in set(run.trace) - {"wakes"}:
        found = events.Tensors(name)
        assert [each.step for each in found] == run.trace["wakes"].tolist()
        values = [float(make_ndarray(each.tensor_proto)) for each in found]
        np.testing.assert_allclose(values, run.trace[name], rtol=1e-6)  # of single precision


@pytest.mark.filterwarnings("ignore")  # of their own code
def test_mlflow(problem, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    observer = ct.observers.MLflow("first", name="a", uri=uri, params={"mu": 0.5})
    run = watched(problem, observer)
    with pytest.raises(ZeroDivisionError):
        ct.simulate(problem, "cd", wakes=4, every=2, watch=observer, until=lambda theta: 1 / 0)
    client = mlflow.MlflowClient(tracking_uri=uri)
    where = client.get_experiment_by_name("first").experiment_id
    found = {each.info.status: each for each in client.search_runs([where])}
    assert set(found) == {"FINISHED", "FAILED"}
    mine = found["FINISHED"]
    assert mine.info.run_name == "a"
    assert mine.data.params == {
        "mu": "0.5", "method": "CoordinateDescent()", "problem": repr(problem), "agents": "3", "seed": "3"
    }  # fmt: skip
    for name in set(run.trace) - {"wakes"}:
        history = client.get_metric_history(mine.info.run_id, name)
        assert [(each.step, each.value) for each in history] == list(
            zip(run.trace["wakes"], run.trace[name], strict=True)
        )


def wandb_records(content):
    """Records of an offline run: a head of 7 bytes, then the log format of LevelDB, in blocks of 32 kB."""
    at, part = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # no room for another head in this block
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        part += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield part
            part = b""


def written(path, kind):
    """The records of a file, once its writer, a process of its own, has written the last one."""
    records = []
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline and not any(each.WhichOneof("record_type") == "exit" for each in records):
        records = [kind.FromString(data) for data in wandb_records(path.read_bytes())]
        time.sleep(0.05)
    return records


@pytest.mark.filterwarnings("ignore")  # of their own code
def test_wandb(problem, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_SILENT", "true")
    run = watched(problem, ct.observers.WandB("first", name="a", mode="offline", folder=tmp_path, params={"mu": 0.5}))
    [path] = tmp_path.rglob("*.wandb")
    rows, config, code = [], {}, None
    for record in written(path, wandb_internal_pb2.Record):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            rows.append({each.key or each.nested_key[0]: json.loads(each.value_json) for each in record.history.item})
        elif kind == "exit":
            code = record.exit.exit_code
        updates = record.run.config.update if kind == "run" else record.config.update if kind == "config" else ()
        config |= {each.key or each.nested_key[0]: json.loads(each.value_json) for each in updates}
    assert code == 0
    assert config["mu"] == 0.5
    assert config["method"] == "CoordinateDescent()"
    assert [row["_step"] for row in rows] == run.trace["wakes"].tolist()
    for name in set(run.trace) - {"wakes"}:
        assert [row[name] for row in rows] == pytest.approx(run.trace[name].tolist(), abs=0.0, rel=1e-15)
        assert all(math.isfinite(row[name]) for row in rows)
