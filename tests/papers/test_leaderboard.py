"""The leaderboard: its scores by an independent formula, its graphs, and a small one from end to end."""

import os
from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie.datasets import RealTask
from coterie.reproduce import find, reproduce
from coterie.reproduce.leaderboard import _scores, entrants, given

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture
def files(monkeypatch):
    """A folder of the real datasets, or no test."""
    folder = Path(os.environ.get("COTERIE_DATA", BESIDE))
    if not (folder / "vehicle_ditto_train.npz").exists():
        pytest.skip("the real datasets are not here: COTERIE_DATA names no folder of them")
    monkeypatch.setenv("COTERIE_DATA", str(folder))


def task_of(kind, y, said):
    rows = ct.AgentData(np.arange(5.0)[:, None], y, agents=["a", "a", "b", "b", "b"], members=["a", "b", "c"])
    return RealTask("tiny", rows, rows, kind), np.array(said)


def test_scores_are_of_each_agent_that_has_test_rows():
    accuracy = _scores(*task_of("classification", [1, -1, 1, 1, 1], [1.0, 1.0, 1.0, -1.0, 1.0]))
    assert accuracy.tolist() == [0.5, pytest.approx(2 / 3)]
    rmse = _scores(*task_of("regression", [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 4.0, 3.0, 4.0, 8.0]))
    assert rmse.tolist() == [pytest.approx(np.sqrt(2.0)), pytest.approx(np.sqrt(3.0))]


def test_a_given_graph_ties_agents_with_similar_covariates():
    rows = ct.AgentData(np.arange(12.0)[:, None], np.ones(12), agents=np.arange(12))
    covariates = np.repeat([[0.0, 7.0], [1.0, 7.0]], 6, axis=0)  # two groups; the second column says nothing
    graph = given(RealTask("two groups", rows, rows, "classification", auxiliary={"covariates": covariates}))
    i, j, _ = graph.edges()
    assert ((i < 6) == (j < 6)).all()
    assert graph.n_edges == 30  # as near as each other: all of a group are tied, not the first five
    assert given(RealTask("nothing known", rows, rows, "classification")).n_edges == 66


@pytest.mark.slow  # it compiles every method
def test_a_small_leaderboard_from_end_to_end(files, tmp_path):
    outcome = reproduce(find("leaderboard")[0], tmp_path, quick=True)
    vehicle, parkinsons = outcome.tables["vehicle"], outcome.tables["parkinsons"]
    methods = {name for name, kind in entrants() if kind in ("", "learn")}
    assert len(vehicle) == len(methods)
    vehicle = vehicle[~vehicle["tuned"].str.startswith("refused")]
    # Far above chance for everybody who collaborates, and costs are counted for all but those who send nothing. The
    # split is fixed, so this cannot fail by chance.
    assert vehicle["accuracy"].min() > 0.6
    assert (vehicle["worst tenth"] <= vehicle["accuracy"]).all()
    assert (parkinsons["worst tenth"] >= parkinsons["rmse"]).all()
    silent = vehicle["method"].isin(["local", "global"])
    assert (vehicle["MB sent"] > 0).tolist() == (~silent).tolist()
    error = parkinsons.set_index("method")["rmse"]
    assert error["boosting, learned"] < 0.6 * error["local"] < 0.4 * error["global"]
    assert abs(error["descent, learned"] - error["ADMM, learned"]) < 0.03  # one optimum, two ways to it
