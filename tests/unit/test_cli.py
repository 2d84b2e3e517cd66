"""The command line, as a user types it."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from shell import bought, fit, fitting, invoke, refused, run


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "table.csv"
    frame = bought(ct.datasets.linear_classification(n=10, p=3, seed=0, rows=(8, 20)), path)
    frame.assign(paid=frame["a"] * 2).to_csv(path, index=False)
    return path


@pytest.mark.slow
def test_demo_reports_gains_and_writes_figures(tmp_path):
    result = invoke("demo", "-o", tmp_path / "figures")
    alone, one, together = result["models"]
    assert together["error"] < alone["error"] < one["error"]
    assert 0.85 < together["coverage"] < 0.95  # of 90 % intervals, 456 rows: three standard errors are 0.04
    assert together["error_new"] < 1.1 * one["error_new"]
    assert {"Cambodia", "Rwanda"} < set(result["outliers"])
    assert len(result["figures"]) == 3


@pytest.mark.compiled
def test_demo_of_peers_reports_gains_and_writes_figures(tmp_path):
    result = invoke("demo", "--peers", "--agents", 60, "--features", 20, "-o", tmp_path / "figures")
    accuracy = {row["models"]: row["accuracy"] for row in result["models"]}
    assert accuracy["with truly similar peers"] > accuracy["alone"] > accuracy["one model for all"]
    assert all(row["suboptimality"] < 1e-4 for row in result["models"] if "vectors" in row)
    for figure in result["figures"]:
        assert os.path.getsize(figure) > 5000


def test_fit_and_predict(table, tmp_path):
    fitted = fit(table, tmp_path / "model", "--holdout", 0.25)
    assert (fitted["task"], fitted["agents"]) == ("classification", 10)
    assert 0.5 < fitted["holdout"]["accuracy together"] <= 1.0
    predicted = invoke("predict", tmp_path / "model", table)
    frame = pd.read_csv(table)
    model = ct.load(tmp_path / "model")
    assert predicted["predictions"] == model.predict(frame[["a", "b", "c", "paid"]], agents=frame["user"]).tolist()
    assert predicted["never_met"] == []


def test_regression_from_end_to_end(table, tmp_path):
    numbers = pd.read_csv(table).drop(columns="bought")
    numbers.to_csv(tmp_path / "numbers.csv", index=False)
    fitted = invoke(
        "fit", tmp_path / "numbers.csv", "--agent", "user", "--target", "paid", "-o", tmp_path / "m", "--ridge", "1e-4"
    )
    assert fitted["task"] == "regression"
    shuffled = numbers.drop(columns="paid")[["c", "user", "b", "a"]]
    shuffled.loc[0, "user"] = "a stranger"
    shuffled.to_csv(tmp_path / "new.csv", index=False)
    out, err = run("predict", tmp_path / "m", tmp_path / "new.csv", "-o", tmp_path / "out.csv")
    assert out == ""
    assert "1 new agent(s) ('a stranger')" in err
    predictions = pd.read_csv(tmp_path / "out.csv")["prediction"]
    np.testing.assert_allclose(predictions[1:], numbers["paid"][1:], atol=0.1)


def test_ids_are_read_as_the_model_has_them(table, tmp_path):
    numbered = pd.read_csv(table).assign(user=lambda frame: frame["user"].str[5:].astype(int))
    numbered.to_csv(tmp_path / "numbered.csv", index=False)
    fit(tmp_path / "numbered.csv", tmp_path / "m")
    odd = numbered.astype({"user": object})
    odd.loc[0, "user"] = "new shop"
    odd.to_csv(tmp_path / "odd.csv", index=False)
    result = invoke("predict", tmp_path / "m", tmp_path / "odd.csv", "-o", tmp_path / "out.csv")
    assert result["never_met"] == ["new shop"]
    assert pd.read_csv(tmp_path / "out.csv")["prediction"].tolist() == result["predictions"]


@pytest.mark.parametrize("output", ["table.csv", "table.csv/model"])
def test_an_output_that_cannot_be_written_is_refused_before_any_work(table, output):
    target = table.parent / output
    assert "cannot write to" in refused(*fitting(table, target))


def test_a_given_graph(table, tmp_path):
    pd.DataFrame({"agent": ["user 0", "user 1"], "peer": ["user 1", "user 2"], "weight": [1.0, 0.5]}).to_csv(
        tmp_path / "edges.csv", index=False
    )
    options = ["--graph", tmp_path / "edges.csv"]
    assert fit(table, tmp_path / "m", *options, "--method", "cd")["edges"] == 2
    pd.DataFrame({"agent": ["user 0"], "peer": ["user 77"]}).to_csv(tmp_path / "edges.csv", index=False)
    assert "'user 77' is not an agent" in refused(*fitting(table, tmp_path / "m", *options))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--agent": "usr"}, "no column 'usr'; did you mean 'user'?"),
        ({"--agent": "nobody"}, "no column 'nobody'; there are 6: "),
        ({"--target": "price"}, "no column 'price'"),
        ({"--target": "user"}, "--agent and --target are both 'user'"),
        ({"--method": "sgd"}, "unknown method 'sgd'"),
        ({"--loss": "hinge"}, "loss='hinge'"),
        ({"--method": "cd", "--loss": "hinge"}, "has a kink"),
        ({"--design": "cubic"}, "design = 'cubic'"),
        ({"--deviations": "some"}, "deviations = 'some'"),
        ({"--method": "cd", "--coupling": "-1"}, "coupling = -1.0: expected a positive finite number"),
        ({"--ridge": "lots"}, "--ridge lots"),
        ({"--graph": "nowhere.csv"}, "nowhere.csv"),
        ({"--target": "c", "--task": "classification"}, "continuous"),
    ],
)
def test_bad_input_is_refused_by_name_and_writes_nothing(table, tmp_path, changes, message):
    numbers = tmp_path / "numbers.csv"
    pd.read_csv(table).assign(bought=lambda frame: (frame["bought"] == "yes") * 1).to_csv(numbers, index=False)
    options = {"--agent": "user", "--target": "bought", "-o": str(tmp_path / "m")} | changes
    assert message in refused("fit", numbers, *[word for pair in options.items() for word in pair])
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_errors_are_json_when_asked():
    out, _ = run("predict", "no/model", "no.csv", "--json", code=3)
    assert json.loads(out) == {"error": "no/model holds no model: there is no model.json in it", "kind": "DataError"}


def test_ids_are_written_as_they_were(tmp_path):
    """An agent 007 is not 7, and one called NA is not missing: in fit, in edges, in predict and in what it writes."""
    rng = np.random.default_rng(0)
    names = np.array(["006", "007", "NA", "7"])
    frame = pd.DataFrame({"shop": names[np.arange(80) % 4], "x": rng.normal(size=80)})
    frame["sales"] = 2.0 * frame["x"] + 10.0 * (np.arange(80) % 4) + rng.normal(size=80)
    frame.to_csv(tmp_path / "table.csv", index=False)
    (tmp_path / "edges.csv").write_text("agent,peer\n006,007\n7,NA\n")
    where = ["--agent", "shop", "--target", "sales", "-o", tmp_path / "m"]
    assert invoke("fit", tmp_path / "table.csv", *where)["agents"] == 4
    assert ct.load(tmp_path / "m").agents_ == tuple(sorted(names))
    told = invoke("predict", tmp_path / "m", tmp_path / "table.csv", "-o", tmp_path / "out.csv")
    assert told["never_met"] == []
    written = pd.read_csv(tmp_path / "out.csv", dtype=str, keep_default_na=False)
    assert written["shop"].tolist() == frame["shop"].tolist()
    expected = ct.load(tmp_path / "m").predict(frame[["x"]], agents=frame["shop"])
    np.testing.assert_allclose(told["predictions"], expected, rtol=1e-12)
    (tmp_path / "one.csv").write_text("shop,x\n7,0.5\n")  # numbers alone, but the model's ids are text
    assert invoke("predict", tmp_path / "m", tmp_path / "one.csv")["never_met"] == []
    tied = invoke("fit", tmp_path / "table.csv", *where, "--graph", tmp_path / "edges.csv", "--method", "local")
    assert tied["edges"] == 2
    (tmp_path / "gap.csv").write_text("shop,x\n,0.5\n")
    assert "the id at row 0 is missing" in refused("predict", tmp_path / "m", tmp_path / "gap.csv")


@pytest.mark.parametrize(
    ("agents", "asked", "never_met"),
    [
        (["1", "7"], ["7", "007"], ["007"]),  # 007 is not 7, though the model's ids are numbers
        (["1.50", "b"], ["1.50", "1.50"], []),  # numbers in this file, and text in that of the model
    ],
)
def test_ids_to_predict_are_those_of_the_model_as_written(tmp_path, agents, asked, never_met):
    rows = "".join(f"{agents[k % 2]},{k},{k * (1 + k % 2)}.5\n" for k in range(20))
    (tmp_path / "table.csv").write_text("shop,x,sales\n" + rows)
    invoke("fit", tmp_path / "table.csv", "--agent", "shop", "--target", "sales", "-o", tmp_path / "m")
    (tmp_path / "new.csv").write_text("shop,x\n" + "".join(f"{agent},3\n" for agent in asked))
    told = invoke("predict", tmp_path / "m", tmp_path / "new.csv", "-o", tmp_path / "out.csv")
    assert told["never_met"] == never_met
    assert pd.read_csv(tmp_path / "out.csv", dtype=str)["shop"].tolist() == asked


@pytest.mark.parametrize(("name", "options"), [("prediction", []), ("low", ["--interval", 0.9])])
def test_columns_of_the_table_are_not_overwritten_by_predictions(tmp_path, name, options):
    table, model, output = tmp_path / "table.csv", tmp_path / "m", tmp_path / "out.csv"
    table.write_text(f"shop,{name},sales\n" + "".join(f"{k % 2},{k},{k * (1 + k % 2)}.5\n" for k in range(20)))
    invoke("fit", table, "--agent", "shop", "--target", "sales", "-o", model)
    assert f"has a column {name!r}" in refused("predict", model, table, "-o", output, *options)
    assert not output.exists()
    assert len(invoke("predict", model, table, *options)["predictions"]) == 20  # alone, they overwrite nothing


@pytest.mark.slow
def test_defaults_are_those_of_the_estimators(tmp_path, table):
    """Nothing that was not asked for is changed: the same model as from Python."""
    for method in ("pooling", "local"):
        fit(table, tmp_path / "m", "--method", method)
        assert ct.load(tmp_path / "m").get_params() == ct.CollaborativeClassifier(method=method).get_params()
    named = {option.replace("-", "_") for option in re.findall(r"--([a-z-]+)", run("fit", "--help")[0])}
    assert {"coupling", "n_neighbors", "max_iter", "lam", "ridge", "design", "deviations", "missing"} <= named


@pytest.mark.slow
def test_a_missing_feature_is_named(table, tmp_path):
    fit(table, tmp_path / "m")
    pd.read_csv(table).drop(columns="b").to_csv(tmp_path / "new.csv", index=False)
    _, err = run("predict", tmp_path / "m", tmp_path / "new.csv", code=3)
    assert "no column 'b', which the model was fitted with" in err


def test_version_and_usage():
    assert run("--version")[0] == f"coterie {ct.__version__}\n"
    assert "No such command" in run("fly", code=2)[1]
