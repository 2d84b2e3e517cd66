"""The leaderboard: its graphs, what it compares with, and a small one from end to end."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie.datasets import RealTask
from papers.leaderboard import leaderboard
from papers.leaderboard.leaderboard import entrants, given
from papers.leaderboard.rivals import Gossip, Mixed, OneHot, Trees

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture
def files(monkeypatch):
    """A folder of the real datasets, or no test."""
    folder = Path(os.environ.get("COTERIE_DATA", BESIDE))
    if not (folder / "vehicle_ditto_train.npz").exists():
        pytest.skip("the real datasets are not here: COTERIE_DATA names no folder of them")
    monkeypatch.setenv("COTERIE_DATA", str(folder))


def test_a_given_graph_ties_agents_with_similar_covariates():
    rows = ct.AgentData(np.arange(12.0)[:, None], np.ones(12), agents=np.arange(12))
    covariates = np.repeat([[0.0, 7.0], [1.0, 7.0]], 6, axis=0)  # two groups; the second column says nothing
    graph = given(RealTask("two groups", rows, rows, "classification", auxiliary={"covariates": covariates}))
    i, j, _ = graph.edges()
    assert ((i < 6) == (j < 6)).all()
    assert graph.n_edges == 30  # as near as each other: all of a group are tied, not the first five
    assert given(RealTask("nothing known", rows, rows, "classification")).n_edges == 66


def test_a_method_whose_package_is_not_installed_is_left_out_with_a_word(monkeypatch):
    monkeypatch.setattr(leaderboard, "installed", lambda package: f"{package} is not installed: get it")
    monkeypatch.setattr(leaderboard, "find", lambda name: name)  # all files, as far as the plan knows
    plan = leaderboard.plan(quick=False)
    asked = [piece for piece in next(plan) if "package" in piece]
    assert {piece["method"] for piece in asked} == {"trees"}
    rows = [{**piece, **leaderboard.work(**piece)} for piece in asked]
    assert all(row["parameters"] is None for row in rows)
    more = [piece for piece in plan.send([*rows]) if "package" in piece]
    assert {piece["package"].split()[0] for piece in more} == {"statsmodels", "gpboost"}
    rows += [{**piece, **leaderboard.work(**piece)} for piece in more]
    for name, table in leaderboard.tables(rows).items():
        mixed = ["mixed model, GPBoost", *["mixed model, statsmodels"] * (name in ("school", "parkinsons"))]
        assert table["method"].tolist() == ["LightGBM, agent as category", "LightGBM, per agent", *mixed]
        assert table["tuned or learned"].str.startswith("left out: ").all()


def grouped(classes):
    """Rows of 12 agents with lines of their own."""
    rng = np.random.default_rng(0)
    X, agents = rng.normal(size=(720, 2)), np.repeat(np.arange(12), 60)
    slopes, levels = rng.normal([3.0, -2.0], size=(12, 2)), 5.0 * rng.normal(size=12)
    y = np.sum(X * slopes[agents], axis=1) + levels[agents] + 0.1 * rng.normal(size=720)
    y = np.where(y > 0, 1.0, -1.0) if classes else y
    train = np.arange(720) % 3 > 0
    return (X[train], y[train], agents[train]), (X[~train], y[~train], agents[~train])


@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.parametrize(
    ("make", "error", "wrong"),
    [
        (OneHot, 2.0, 0.13),
        (Mixed, 0.15, 0.08),
        (partial(Mixed, package="statsmodels"), 0.15, None),
        (Trees, 3.0, 0.15),
        (partial(Trees, each=True, leaf=5), 3.0, 0.15),
    ],
)
def test_rivals_learn_what_differs_between_agents(make, error, wrong, classes):
    model = make(classes)
    if not isinstance(model, OneHot):
        pytest.importorskip("lightgbm" if isinstance(model, Trees) else model.package, exc_type=ImportError)
    if classes and wrong is None:
        pytest.skip("for numbers only")
    train, (X, y, agents) = grouped(classes)
    found = model.fit(*train).predict(X, agents)
    missed = np.mean(found != y) if classes else np.sqrt(np.mean(np.square(found - y)))
    assert missed < (wrong if classes else error)  # the best constants have 6.6, and 0.43


def test_gossip_is_counted_and_learns_what_differs_between_agents(uncompiled):
    train, (X, y, agents) = grouped(False)
    model = Gossip(classes=False, wakes=20).fit(*train)
    assert model.run_.bytes > 0
    assert np.sqrt(np.mean(np.square(model.predict(X, agents) - y))) < 0.5


@pytest.mark.slow  # it compiles every method
def test_a_small_leaderboard_from_end_to_end(files, quick):
    outcome = quick("leaderboard")
    vehicle, parkinsons = outcome.tables["vehicle"], outcome.tables["parkinsons"]
    methods = [each for each in entrants() if each[1] not in ("given", "knn", "all")]
    assert len(vehicle) + 2 == len(parkinsons) == len(methods)  # two are not for vehicle
    left_out = vehicle["tuned or learned"].str.startswith("left out")
    assert vehicle[left_out]["tuned or learned"].str.endswith("pip install 'coterie[bench]'").all()
    vehicle, parkinsons = vehicle[~left_out], parkinsons.dropna(subset="rmse")
    # Far above chance for everybody who collaborates, and costs are counted for all who send letters and not rows. The
    # split is fixed, so this cannot fail by chance.
    assert vehicle["accuracy"].min() > 0.6
    assert (vehicle["worst tenth"] <= vehicle["accuracy"]).all()
    assert (parkinsons["worst tenth"] >= parkinsons["rmse"]).all()
    letters = vehicle["method"].str.endswith("learned") | (vehicle["method"] == "pooling by gossip")
    assert (vehicle["MB sent"] > 0).tolist() == letters.tolist()
    error = parkinsons.set_index("method")["rmse"]
    assert error["pooling"] < 0.25 < 0.5 * error["pooling, linear"]
    assert error["pooling, linear"] < error["pooling by gossip"] < 0.9 * error["local"]
    assert error["boosting, learned"] < 0.6 * error["local"] < 0.4 * error["global"]
    assert abs(error["descent, learned"] - error["ADMM, learned"]) < 0.03  # one optimum, two ways to it
