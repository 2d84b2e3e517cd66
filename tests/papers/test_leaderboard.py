"""The leaderboard: its graphs, what it compares with, who wins, and a small one from end to end."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie.datasets import RealTask
from coterie.engines.wire import messages_size
from papers import find, reproduce
from papers.leaderboard import contenders, leaderboard, table_models, winners
from papers.leaderboard.contenders import CONTENDERS, Race, everybody, raced, trained, tuned
from papers.leaderboard.leaderboard import entrants, given
from papers.leaderboard.private import hidden
from papers.leaderboard.rivals import Gossip, Mixed, OneHot, Trees

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture
def files(monkeypatch):
    """A folder of the real datasets, or no test."""
    folder = Path(os.environ.get("COTERIE_DATA", BESIDE))
    if not (folder / "vehicle_ditto_train.npz").exists():
        pytest.skip("the real datasets are not here: COTERIE_DATA names no folder of them")
    monkeypatch.setenv("COTERIE_DATA", str(folder))


def test_a_given_graph_connects_agents_with_similar_covariates():
    rows = ct.AgentData(np.arange(12.0)[:, None], np.ones(12), agents=np.arange(12))
    covariates = np.repeat([[0.0, 7.0], [1.0, 7.0]], 6, axis=0)  # two groups; the second column says nothing
    graph = given(RealTask("two groups", rows, rows, "classification", auxiliary={"covariates": covariates}))
    i, j, _ = graph.edges()
    assert ((i < 6) == (j < 6)).all()
    assert graph.n_edges == 30  # as near as each other: all of a group are connected, not the first five
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


@pytest.mark.plain
def test_gossip_is_counted_and_learns_what_differs_between_agents():
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
    # Far above chance for everybody who collaborates, and costs are counted for all who send messages and not rows. The
    # split is fixed, so this cannot fail by chance.
    assert vehicle["accuracy"].min() > 0.6
    assert (vehicle["worst tenth"] <= vehicle["accuracy"]).all()
    assert (parkinsons["worst tenth"] >= parkinsons["rmse"]).all()
    messages = vehicle["method"].str.endswith("learned") | (vehicle["method"] == "pooling by gossip")
    assert (vehicle["MB sent"] > 0).tolist() == messages.tolist()
    error = parkinsons.set_index("method")["rmse"]
    assert error["pooling"] < 0.25 < 0.5 * error["pooling, linear"]
    assert error["pooling, linear"] < error["pooling by gossip"] < 0.9 * error["local"]
    assert error["boosting, learned"] < 0.6 * error["local"] < 0.4 * error["global"]
    assert abs(error["descent, learned"] - error["ADMM, learned"]) < 0.03  # one optimum, two ways to it


def opposed(classes=True, n=8, rows=24):
    """Two groups of agents whose lines are opposed, as training and test rows of a task."""
    rng = np.random.default_rng(0)
    lines = np.where(np.arange(n) % 2, 1.0, -1.0)[:, None] * [2.0, -1.0, 0.5]

    def draw(count):
        agents = rng.permutation(np.repeat(np.arange(n), count))  # in any order
        X = rng.normal(size=(n * count, 3))
        y = np.sum(X * lines[agents], axis=1) + 0.5 * rng.normal(size=n * count)
        return ct.AgentData(X, np.where(y > 0, 1.0, -1.0) if classes else 7.0 + 3.0 * y, agents=agents)

    return RealTask("opposed", draw(rows), draw(50), "classification" if classes else "regression")


@pytest.fixture
def small(monkeypatch):
    """Few rates, short runs."""
    monkeypatch.setattr(contenders, "RATES", (0.03, 0.3))
    monkeypatch.setattr(contenders, "LOOK", 5)


def raced_by(race, name, rounds=10):
    chosen = tuned(race, name, rounds)
    return chosen, raced(race, name, chosen, seeds=1)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["linear", pytest.param("network", marks=pytest.mark.slow)])
def test_two_groups_that_are_opposed_need_two_models_or_edges_among_those_who_are_alike(small, model):
    task = opposed()
    race = Race.of(task, given(task), model)
    names = ("one for all", "FedAvg", "IFCA", "tied SGD, k-NN", *(["FedPer"] if model == "network" else []))
    found = {name: raced_by(race, name)[1] for name in names}
    score = {name: found[name]["scores"].mean() for name in names}
    # One model for both is right for one half at best; data and dice are fixed, so this cannot fail by chance.
    common = max(score.pop("one for all"), score.pop("FedAvg"))
    assert common < 0.65 < 0.8 < min(score.values())
    assert found["one for all"]["bytes"] is None  # rows are in one place
    assert found["FedAvg"]["bytes"] > 0


@pytest.mark.parametrize("model", ["linear", "network"])
@pytest.mark.parametrize("classes", [True, False])
def test_a_contender_is_tuned_on_training_rows_alone_and_repeats_itself(small, model, classes):
    task = opposed(classes, n=3, rows=12)
    wrong = ct.AgentData(task.test.X, -task.test.y, agents=task.test.owner)
    lied = RealTask("opposed", task.train, wrong, task.kind)
    race, other = (Race.of(each, given(each), model) for each in (task, lied))
    chosen, found = raced_by(race, "alone", 5)
    assert tuned(other, "alone", 5) == chosen
    again = raced(race, "alone", chosen, seeds=1)
    np.testing.assert_array_equal(again["scores"], found["scores"])
    assert found["bytes"] == 0
    # Better than a constant: 0.5 of classes, 7 for numbers, whose deviation is 3 |(2, -1, 0.5)| = 6.9.
    assert found["scores"].mean() > 0.6 if classes else found["scores"].mean() < 6.5


def test_what_is_held_out_are_rows_of_everybody_and_none_that_are_trained_on():
    task = opposed(classes=False)
    race = Race.of(task, given(task), "linear")
    part = race.held_out()
    assert (part.test.sizes == 8).all()
    assert (part.train.sizes == 16).all()
    rows = {tuple(row) for row in race.train.X}
    assert {tuple(row) for row in part.train.X} | {tuple(row) for row in part.test.X} == rows
    assert not {tuple(row) for row in part.train.X} & {tuple(row) for row in part.test.X}
    np.testing.assert_allclose(
        np.sort(part.test.y), np.sort(task.train.y[np.isin(race.train.X[:, 0], part.test.X[:, 0])])
    )


def test_bytes_are_those_of_the_messages_that_are_sent(small):
    task = opposed(n=4)
    race = Race.of(task, given(task), "linear")
    shorter, longer = (trained(race, "D-PSGD", 0.1, 0.0, rounds=rounds, seed=0) for rounds in (2, 3))
    assert longer.theta.shape == (4, 4)
    assert longer.bytes - shorter.bytes == messages_size(12, 12 * 4)  # four models to three neighbours each
    server = trained(race, "FedAvg", 0.1, 0.0, rounds=3, seed=0)
    assert server.messages == 4 + 2 * 3 * 4  # the server asks four clients, who answer and are asked anew, three times
    assert len(server.theta) == 5
    chosen = {"rate": 0.1, "value": 0.1, "rounds": 3}
    plain, nearest = (raced(race, name, chosen, 1)["bytes"] for name in ("tied SGD, given", "tied SGD, k-NN"))
    assert nearest - plain == messages_size(12, 12 * 4)  # the same graph, once it is found: four models to three others


def test_models_of_a_run_are_those_of_the_agents_without_a_server():
    theta = np.arange(8.0).reshape(4, 2)
    np.testing.assert_array_equal(everybody(theta, 3), theta[1:])
    np.testing.assert_array_equal(everybody(theta, 4), theta)
    np.testing.assert_array_equal(everybody(theta[:1], 3), np.repeat(theta[:1], 3, axis=0))


def test_names_of_pieces_do_not_change_from_one_process_to_the_next():
    assert " at 0x" not in repr(CONTENDERS)  # or nothing would be found again


def piece(method, scores, model="linear", metric="accuracy", **more):
    scores = np.asarray(scores)
    found = {"metric": metric, "score": scores.mean(), "error": 0.1, "worst tenth": scores.min(), "scores": scores}
    chosen = {} if "epsilon" in more or model == "additive" else {"rate": 0.1, "value": 0.5, "rounds": 20}
    costs = {"bytes": 2_000_000, "cpu seconds": 0.5, "chosen": chosen}
    return {"dataset": "toy", "model": model, "method": method, **found, **costs, **more}


@pytest.mark.parametrize(("metric", "sign"), [("accuracy", 1.0), ("rmse", -1.0)])
def test_gains_are_over_the_same_model_alone_and_columns_are_what_they_say(metric, sign):
    rows = [
        piece("alone", [0.5, 0.6, 0.7], metric=metric, bytes=0),
        piece("alone", [0.1, 0.1, 0.1], "network", metric, bytes=0),
        piece("tied SGD, k-NN", [0.6, 0.6, 0.9], metric=metric),
        piece("D-PSGD", [0.2, 0.0, 0.2], "network", metric),
        piece("one for all", [0.5, 0.5, 0.5], metric=metric, bytes=None),
        piece("exact alone", [0.7, 0.7, 0.7], metric=metric, epsilon=None, delta=1e-5, bytes=0),
        piece("descent", [0.8, 0.7, 0.6], metric=metric, epsilon=1.0, delta=1e-5),
        piece("pooling", [0.8, 0.8, 0.8], "additive", metric, bytes=None),
        {"dataset": "toy", "model": "linear", "method": "push-sum", "refused": "it diverges"},
    ]
    table = table_models.tables(rows)["toy, models"].set_index("method")
    gain, share = table["gain over alone"] * sign, table["share that gains"]
    assert gain["linear, tied SGD, k-NN"] == pytest.approx(0.1)
    assert gain["network, D-PSGD"] == pytest.approx(1 / 30)
    assert gain["descent, epsilon=1"] == pytest.approx(0.0)
    assert gain["additive, pooling"] == pytest.approx(0.1)
    assert gain["linear, one for all"] == pytest.approx(-0.1)
    assert share["linear, tied SGD, k-NN"] == pytest.approx(2 / 3 if sign > 0 else 0.0)
    assert share["network, D-PSGD"] == pytest.approx(2 / 3 if sign > 0 else 1 / 3)
    assert sign * table[metric].iloc[0] == (sign * table[metric]).max()  # the best comes first
    assert table["MB sent"]["network, alone"] == 0.0
    assert table["MB sent"]["linear, tied SGD, k-NN"] == 2.0
    assert np.isnan(table["MB sent"]["linear, one for all"])
    assert table["chosen"]["linear, tied SGD, k-NN"] == "rate=0.1, coupling=0.5, rounds=20"
    assert table["chosen"]["linear, push-sum"] == "left out: it diverges"
    assert table["privacy"]["descent, epsilon=1"] == "(1, 1e-05) each"
    assert table["privacy"]["network, D-PSGD"] == "no design"
    assert table["privacy"]["linear, one for all"] == "none: rows in one place"


@pytest.mark.slow
@pytest.mark.plain
def test_private_methods_pay_for_privacy():
    task = opposed(n=6, rows=30)
    graph = ct.Graph(np.equal.outer(np.arange(6) % 2, np.arange(6) % 2) * (1.0 - np.eye(6)))
    race = Race.of(task, graph, "linear")
    score = {e: hidden(race, "propagation", e, seeds=1)["scores"].mean() for e in (None, 1.0, 0.001)}
    assert score[None] > 0.85  # noise of a budget near nothing leaves what everybody knows alone
    alone = hidden(race, "exact alone", None, seeds=1)
    assert alone["bytes"] == 0
    assert score[0.001] == pytest.approx(alone["scores"].mean(), abs=0.05)


PAGE = """
<!-- winners -->
<!-- /winners -->
<!-- tables leaderboard -->

**toy**

| method | rmse | ± | worst tenth | MB sent | CPU s | tuned or learned | converged |
| --- | --- | --- | --- | --- | --- | --- | --- |
| pooling | 3 | 0.1 | 4 |  | 0.5 | linear | yes |
| pooling, all columns | 1 | 0.1 | 4 |  | 0.5 | linear | yes |
| local | 5 | 0.1 | 6 | 0 | 0.5 |  | yes |
| descent, given | 3.5 | 0.1 | 6 | 2 | 0.5 |  | yes |
| ADMM, given | 3.6 | 0.1 | 6 | 2 | 0.5 |  | yes |
| mixed model, GPBoost |  |  |  |  |  | left out: not here |  |

<!-- /tables -->
<!-- tables leaderboard-table-models -->

**toy, models**

| method | rmse | ± | worst tenth | MB sent | CPU s | privacy |
| --- | --- | --- | --- | --- | --- | --- |
| network, FedAvg | 2 | 0.1 | 6 | 7 | 0.5 | no design |
| linear, FedAvg | 2.5 | 0.1 | 6 | 4 | 0.5 | no design |
| descent, epsilon=10 | 4.5 | 0.1 | 6 | 4 | 0.5 | (10, 1e-05) each |
| propagation, epsilon=1 | 4.75 | 0.1 | 6 | 4 | 0.5 | (1, 1e-05) each |

<!-- /tables -->
"""


def test_the_winner_is_the_best_of_all_tables_and_the_next_one_is_another_method():
    lines = [line for line in winners.winners(PAGE).splitlines() if line.startswith("| toy")]
    every, apart, hidden_ = ([cell.strip() for cell in line.split("|")[2:-1]] for line in lines)
    assert every == ["network, FedAvg", "2 ± 0.1", "pooling", "3", "7", "0.5", "no design"]
    assert apart[2:4] == ["descent, given", "3.5"]
    assert apart[-1] == "local: 5"
    assert hidden_ == ["descent, epsilon=10", "4.5", "propagation, epsilon=1", "4.75", "local: 5"]
    assert winners.filled(winners.filled(PAGE)) == winners.filled(PAGE)


def test_winners_on_the_page_are_those_of_its_tables():
    page = winners.PAGE.read_text()
    assert "**Who wins**" in page
    assert winners.filled(page) == page


@pytest.mark.slow  # it compiles a few methods
def test_a_small_table_of_models_goes_on_where_it_was(files, tmp_path):
    (experiment,) = find("leaderboard-table-models")
    whole = reproduce(experiment, tmp_path, quick=True)
    kept = sorted((tmp_path / "pieces" / experiment.name).glob("quick-*.json"))
    assert len(kept) == len(whole.rows)
    for path in kept[::4]:
        path.unlink()
    again = reproduce(experiment, tmp_path, quick=True)
    for one, other in zip(whole.rows, again.rows, strict=True):
        assert {**one, "cpu seconds": 0.0} == {**other, "cpu seconds": 0.0}
    vehicle = whole.tables["vehicle, models"].set_index("method")
    assert vehicle.loc["linear, alone", "accuracy"] + 0.03 < vehicle.loc["linear, D-PSGD", "accuracy"]
    assert (vehicle["worst tenth"] <= vehicle["accuracy"]).all()
