"""Rows that stay where they are, on a real Ray: the bits of one process.

References: the same survey, and the same call, in this process.
"""

from __future__ import annotations

import functools
import logging
import pickle
import threading

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.data.sources import placed
from coterie.data.sources.survey import survey
from coterie.errors import DataError

pytestmark = pytest.mark.slow  # processes of Ray take long to begin


@pytest.fixture(scope="module")
def ray(ray):
    pytest.importorskip("ray.data")
    return ray


def visits(rows=240):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"clinic": rng.integers(0, 6, rows), "age": rng.normal(size=rows), "dose": rng.normal(size=rows)}
    )
    frame["colour"] = rng.choice(["red", "blue"], rows)
    score = frame["age"] + frame["dose"] * np.where(frame["clinic"] % 2, 1.0, -1.0) + 0.3 * rng.normal(size=rows)
    return frame.assign(ill=np.where(score > 0, "yes", "no"))


def everything(found):
    loaded = found.load(np.arange(found.n))
    return found.members, found.sizes.tolist(), found.columns, loaded.X.tolist(), loaded.y.tolist()


def test_workers_look_at_files(ray, tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.data.sources.look.MAX_BUNDLE_PIECES", 2)
    frame = visits()
    for k in range(8):
        frame.iloc[k::8].to_csv(tmp_path / f"{k}.csv", index=False)
    engine = ct.Cluster(cpus=0.5)
    asked = {"target": "ill", "agents": "clinic", "labels": "class"}
    found = survey(tmp_path, map=functools.partial(engine.map, ray), **asked)
    assert everything(found) == everything(survey(tmp_path, **asked))
    (tmp_path / "9.csv").write_text("clinic,age\n1,2\n")
    (tmp_path / "8.csv").write_text("")
    with pytest.raises(DataError, match=r"(?s)2 agents or files.*8\.csv: the file is empty.*9\.csv: no column 'ill'"):
        survey(tmp_path, map=functools.partial(engine.map, ray), **asked)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray", "ignore::FutureWarning:ray")
def test_a_dataset_of_ray(ray):
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    frame = visits()
    parts = [frame.iloc[:100], frame.iloc[100:]]
    wanted = ct.relationship(ct.data.Source(frame), "logistic", target="ill", agents="clinic")
    for dataset in (ray.data.from_pandas(parts), ray.data.from_pandas(parts).map_batches(lambda batch: batch)):
        for engine in (None, ct.Cluster(shards=2, cpus=0.5)):
            found = ct.relationship(dataset, "logistic", target="ill", agents="clinic", engine=engine)
            assert found.members == wanted.members
            np.testing.assert_array_equal(found.weights, wanted.weights)
    with pytest.raises(DataError, match="agents= is missing: name the column of the Dataset"):
        ct.relationship(dataset, "logistic", target="ill")


def test_rows_of_a_mapping_are_sent_to_whoever_asks_for_them(ray):
    frame = visits()
    tasks = {k: rows.drop(columns="clinic") for k, rows in frame.groupby("clinic")}
    tasks[3] = functools.partial(tasks[3].copy)  # a function
    found = survey(placed(ct.data.Source(tasks), ray.put), target="ill", labels="class")
    assert everything(found) == everything(survey(tasks, target="ill", labels="class"))
    assert len(ray.cloudpickle.dumps(found)) < 10_000 < len(pickle.dumps(tasks))
    one = ct.relationship(tasks, "logistic", target="ill", engine=ct.Cluster(shards=2, cpus=0.5))
    np.testing.assert_array_equal(one.weights, ct.relationship(tasks, "logistic", target="ill").weights)
    lock = threading.Lock()
    with pytest.raises(DataError, match="the source of agent 7 cannot be sent to a worker"):
        ct.relationship(tasks | {7: lambda: lock}, "logistic", target="ill", engine=ct.Cluster(shards=2, cpus=0.5))
