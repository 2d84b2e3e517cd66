"""The command line: learned graphs, boosting and tuning."""

from __future__ import annotations

import os

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.cli.models import held_out
from coterie.estimators import tuning
from shell import bought, fit, fitting, invoke, refused, run

pytestmark = pytest.mark.compiled


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "table.csv"
    bought(ct.datasets.clustered_moons(n=8, p=2, seed=0, rows=(8, 20)), path)
    return path


def parts(table):
    frame = pd.read_csv(table)
    return frame[["a", "b"]], frame["bought"], frame["user"]


def test_boosting_from_end_to_end(table, tmp_path):
    fitted = fit(table, tmp_path / "m", "--method", "boosting", "--stumps", 20, "--beta", 2, "--lam", 0.5)
    assert (fitted["task"], fitted["agents"]) == ("classification", 8)
    assert fitted["edges"] > 0
    assert fitted["bytes"] > 0
    X, y, ids = parts(table)
    model = ct.load(tmp_path / "m")
    assert isinstance(model, ct.BoostedClassifier)
    assert (model.base, model.beta, model.lam, model.graph) == (20, 2.0, 0.5, "learn")
    assert fitted["edges"] == model.graph_.n_edges
    same = ct.BoostedClassifier(base=20, beta=2.0, lam=0.5).fit(X, y, agents=ids)
    assert np.array_equal(model.coef_, same.coef_)
    predicted = invoke("predict", tmp_path / "m", table)
    assert predicted["predictions"] == same.predict(X, agents=ids).tolist()
    assert np.mean(np.array(predicted["predictions"]) == y) > 0.8


@pytest.mark.parametrize("method", ["cd", "boosting"])
def test_the_graph_is_learned_by_default(table, tmp_path, method):
    options = ["--method", method, *(["--stumps", 20] if method == "boosting" else [])]
    plain, asked = (fit(table, tmp_path / "m", *options, *more) for more in ([], ["--graph", "learn"]))
    assert plain == asked
    assert ct.load(tmp_path / "m").graph in (None, "learn")
    fewer = fit(table, tmp_path / "m", *options, "--lam", 0.01)
    assert 0 < fewer["edges"] < plain["edges"]
    knn = fit(table, tmp_path / "m", *options, "--graph", "knn", "--n-neighbors", 2)
    assert 8 <= knn["edges"] <= 16
    assert ct.load(tmp_path / "m").graph == "knn"


def by_hand(table, method, holdout, seed=0):
    """What tuning the same estimator on the rows that are not held out gives."""
    X, y, ids = parts(table)
    rest = ~held_out(ids, holdout, seed)
    settings = {"random_state": seed, "members": sorted(set(ids))}
    if method == "boosting":
        model = ct.BoostedClassifier(base=8, **settings)
    else:
        model = ct.CollaborativeClassifier(method, **settings)
    return tuning.tune(model, X[rest], y[rest], ids[rest], random_state=seed, refit=False)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cd", "boosting"])
@pytest.mark.parametrize("holdout", [0.0, 0.3])
def test_parameters_are_tuned_on_rows_that_are_not_held_out(table, tmp_path, monkeypatch, method, holdout):
    grid = {"coupling": (0.1, 1), "lam": (0.1, 1), "beta": (1, 3)}  # a part of the real one, for the sake of time
    assert all(set(values) < set(tuning.GRID[name]) for name, values in grid.items())
    monkeypatch.setattr(tuning, "GRID", grid)
    options = ["--method", method, *(["--stumps", 8] if method == "boosting" else []), "--tune", "--holdout", holdout]
    fitted = fit(table, tmp_path / "m", *options)
    expected = by_hand(table, method, holdout)
    assert fitted["tuned"] == expected.best_params_ | {"cross-validated score": expected.best_score_}
    assert set(expected.best_params_) == {"coupling", "lam"} | ({"beta"} if method == "boosting" else set())
    assert all(value in grid[name] for name, value in expected.best_params_.items())
    model = ct.load(tmp_path / "m")
    assert {name: getattr(model, name) for name in expected.best_params_} == expected.best_params_
    assert ("holdout" in fitted) == (holdout > 0)


@pytest.mark.slow
def test_labels_of_held_out_rows_do_not_change_what_is_chosen(table, tmp_path):
    frame = pd.read_csv(table)
    test = held_out(frame["user"], 0.4, 0)
    assert 0 < test.sum() < len(frame)
    frame.loc[test, "bought"] = frame.loc[test, "bought"].map({"yes": "no", "no": "yes"})
    frame.loc[test, ["a", "b"]] *= -1.0
    frame.to_csv(tmp_path / "changed.csv", index=False)
    options = ["--method", "cd", "--tune", "--holdout", 0.4]
    one, other = (fit(path, tmp_path / "m", *options) for path in (table, tmp_path / "changed.csv"))
    assert one["tuned"] == other["tuned"]
    assert one["objective"] != other["objective"]  # the final model learns from all rows


@pytest.mark.slow
def test_what_was_chosen_is_shown(table, tmp_path):
    out, err = run(*fitting(table, tmp_path / "m", "--method", "cd", "--tune"))
    chosen = by_hand(table, "cd", 0.0)
    shown = [line.strip("│ ").split() for line in out.splitlines() if "│" in line]
    rows = {" ".join(words[: words.index("│")]): words[-1] for words in shown}
    assert {name: rows[name] for name in ("coupling", "lam")} == {k: format(v) for k, v in chosen.best_params_.items()}
    assert float(rows["cross-validated score"]) == pytest.approx(chosen.best_score_, abs=1e-3)
    assert "cross-validation" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "boosting", "--loss", "logistic"], "--loss logistic: boosting has a loss of its own"),
        (["--method", "cd", "--lam", "-1"], "lam = -1.0: expected a positive"),
        (["--method", "boosting", "--lam", "-1"], "lam = -1.0: expected a positive"),
        (["--method", "boosting", "--beta", "0"], "beta = 0.0: expected a positive finite number"),
        (["--graph", "friends"], "friends"),
        (["--beta", "2"], "--beta: CollaborativeClassifier has no such setting"),
        (["--method", "cd", "--stumps", "5"], "--stumps: CollaborativeClassifier has no such setting"),
        (["--tune"], "pooling learns its strengths by itself"),
    ],
)
def test_bad_input_is_refused_by_name_and_writes_nothing(table, tmp_path, options, message):
    assert message in refused(*fitting(table, tmp_path / "m", *options))
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_a_bad_number_of_stumps_is_not_understood(table, tmp_path):
    _, err = run(*fitting(table, tmp_path / "m", "--method", "boosting", "--stumps", 0), code=2)
    assert "--stumps" in err


@pytest.mark.slow
def test_demo_shows_what_agents_find_on_their_own(tmp_path):
    result = invoke("demo", "--peers", "--agents", 60, "-o", tmp_path / "figures")
    names = [os.path.basename(figure) for figure in result["figures"]]
    assert sorted(names) == ["convergence.png", "gains.png", "edges.png", "weights.png"]
    assert all(os.path.getsize(figure) > 5000 for figure in result["figures"])
    rows = {row["models"]: row for row in result["models"]}
    assert list(rows) == [
        "alone",
        "one model for all",
        "with 10 nearest peers",
        "with peers they find",
        "with truly similar peers",
    ]
    found, known = rows["with peers they find"], rows["with truly similar peers"]
    assert rows["alone"]["accuracy"] < found["accuracy"] < known["accuracy"]
    assert found["bytes"] > known["bytes"]  # to find them is not free


def test_a_demo_of_two_agents(tmp_path):
    result = invoke("demo", "--peers", "--agents", 2, "--features", 2, "-o", tmp_path / "figures")
    assert len(result["models"]) == 5
    assert len(result["figures"]) == 4
