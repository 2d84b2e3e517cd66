"""Partial pooling on a real Ray: the numbers of one process, from rows here and elsewhere; workers that are killed.

References: the same call in this process. Workers die by SIGKILL, in the middle of a fit.
"""

from __future__ import annotations

import functools
import logging
import os
import signal

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.errors import DataError, MismatchError, ParameterError

TWO = ct.Cluster(shards=2, cpus=0.5)
SHOPS = tuple(f"shop {k:02d}" for k in range(30))


@functools.cache
def visits():
    """A table with text, gaps, and shops of one to twenty rows; three kinds of labels."""
    rng = np.random.default_rng(0)
    shop = np.repeat(np.arange(len(SHOPS)), rng.integers(1, 21, len(SHOPS)))
    rows = len(shop)
    price, size = rng.normal(5.0, 2.0, rows), rng.exponential(3.0, rows)
    region = rng.choice(["north", "south", "west"], rows)
    own = rng.normal(size=(len(SHOPS), 3))
    z = (0.5 + 0.4 * own[shop, 0]) * (price - 5.0) + own[shop, 1] + 0.8 * (region == "south") - 0.1 * size
    size[rng.uniform(size=rows) < 0.1] = np.nan
    frame = pd.DataFrame({"shop": np.array(SHOPS)[shop], "price": price, "size": size, "region": region})
    frame["sales"] = z + 0.5 * rng.normal(size=rows)
    frame["visits"] = rng.poisson(np.exp(np.clip(0.4 * z, -3.0, 2.0)))
    frame["mood"] = np.array(["bad", "fair", "good"])[np.digitize(z + rng.logistic(size=rows), [-0.7, 0.7])]
    frame["open"] = frame["mood"] != "bad"
    return frame.sample(frac=1.0, random_state=0).reset_index(drop=True)


LABELS = ["sales", "visits", "mood", "open"]


def parts(target):
    frame = visits()
    return frame.drop(columns=LABELS), frame[target].to_numpy()


def model_of(target, **settings):
    if target in ("mood", "open"):
        return ct.CollaborativeClassifier(**settings)
    return ct.CollaborativeRegressor(**settings | ({"loss": "poisson"} if target == "visits" else {}))


@functools.cache
def here(target, **settings):
    return model_of(target, **settings).fit(*parts(target), agents="shop")


def same(found, expected, tol=1e-10):
    """What was learned, and what is said of rows of agents met and of others."""
    X = parts("sales")[0]
    assert found.agents_ == expected.agents_
    assert found.design_ == expected.design_
    assert list(found.coef_names_) == list(expected.coef_names_)
    names = ["coef_", "intercept_", "common_coef_", "common_intercept_", "personal_variance_", "log_evidence_"]
    names += ["noise_"] if getattr(expected, "noise_", None) is not None else []
    names += ["sharpness_"] if hasattr(expected, "sharpness_") else []
    pairs = [(getattr(found, name), getattr(expected, name)) for name in names]
    X, shops = X.drop(columns="shop"), X["shop"]
    for ids in (shops, ["a new one"] * len(X)):
        rows = X, ids
        if hasattr(expected, "classes_"):
            assert found.classes_.tolist() == expected.classes_.tolist()
            pairs.append((found.predict_proba(*rows), expected.predict_proba(*rows)))
        else:
            pairs += zip(found.predict(*rows, return_std=True), expected.predict(*rows, return_std=True), strict=True)
            pairs.append((found.predict_interval(*rows), expected.predict_interval(*rows)))
    for value, reference in pairs:
        np.testing.assert_allclose(value, reference, rtol=tol, atol=tol)


# -- rows that are here -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def there(ray):
    """A regression on two workers, from a frame; two members have no rows."""
    members = ("closed", *SHOPS, "to be opened")
    told = []
    model = model_of("sales", engine=TWO, members=members)
    model.fit(*parts("sales"), agents="shop", progress=told.append)
    assert told == list(range(1, len(told) + 1))
    return model, here("sales", members=members)


@pytest.mark.slow
def test_two_workers_learn_what_one_process_does(there):
    same(*there)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["visits", "mood", "open"])
@pytest.mark.usefixtures("ray")
def test_two_workers_learn_other_labels_as_one_process_does(target):
    same(model_of(target, engine=TWO).fit(*parts(target), agents="shop"), here(target))


@pytest.mark.slow
@pytest.mark.usefixtures("ray")
def test_more_workers_weights_and_curves(monkeypatch):
    X, y = parts("sales")
    weight = np.random.default_rng(1).uniform(0.2, 1.0, len(y))
    weight[::7] = 0.0
    settings = {"design": "additive", "loss": "auto"}
    one = model_of("sales", **settings).fit(X, y, agents="shop", sample_weight=weight)
    four = model_of("sales", engine=ct.Cluster(shards=4, cpus=0.5), **settings)
    same(four.fit(X, y, agents="shop", sample_weight=weight), one)


@pytest.mark.slow
def test_a_model_of_a_cluster_is_like_one_from_a_file(there, tmp_path):
    """It has no rows: it can be saved, take more rows, and report what it knows; for gains it asks for the rows."""
    model, one = there
    X, y = parts("sales")
    assert len(model._models.parts[0].grouped.y) == 0
    again = ct.load(ct.save(model, tmp_path / "model"))
    assert again.engine is None
    same(again, one)
    more = [(X[:6].assign(shop=["shop 03"] * 3 + ["shop 99"] * 3), y[:6] + 2.0)]
    for rows, labels in more:
        again.partial_fit(rows, labels, agents="shop")
    whole = model_of("sales", members=one.members).fit(X, y, agents="shop").partial_fit(*more[0], agents="shop")
    np.testing.assert_allclose(again.coef_, whole.coef_, rtol=1e-9, atol=1e-9)
    report = model.report()
    assert report.gains is None
    assert "fitted on a cluster, has no rows; to measure gains, give the rows of the fit" in " ".join(
        str(report).split()
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own
def test_predictions_of_a_dataset(there, ray):
    import ray.data

    model, _ = there
    frame = visits().sort_values("price")
    X = frame.drop(columns=LABELS)
    ray.data.DataContext.get_current().enable_progress_bars = False
    dataset = ray.data.from_pandas([frame[:50], frame[50:60], frame[60:]])

    def said(predicted, *names):
        """In an order of our own: blocks come as they are done."""
        found = predicted.to_pandas().sort_values("price")
        assert list(found.columns) == [*frame.columns, *names]
        assert found["shop"].tolist() == frame["shop"].tolist()
        return [found[name].tolist() for name in names]

    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(said(model.predict(dataset), "prediction"), [mean], rtol=1e-12)
    found = said(model.predict(dataset, return_std=True), "prediction", "std")
    np.testing.assert_allclose(found, [mean, std], rtol=1e-12)
    found = said(model.predict_interval(dataset, coverage=0.5), "low", "high")
    np.testing.assert_allclose(found, model.predict_interval(X, coverage=0.5).T, rtol=1e-12)
    with pytest.raises(DataError, match="no column 'price'"):
        model.predict(dataset.drop_columns(["price"]))
    with pytest.raises(DataError, match="has a column 'prediction' already"):
        model.predict(model.predict(dataset))
    classes = here("mood")
    probabilities = said(classes.predict_proba(dataset), "probability_bad", "probability_fair", "probability_good")
    np.testing.assert_allclose(probabilities, classes.predict_proba(X).T, rtol=1e-12)
    assert said(classes.predict(dataset), "prediction") == [classes.predict(X).tolist()]
    odds = said(classes.decision_function(dataset), "decision_bad", "decision_fair", "decision_good")
    np.testing.assert_allclose(odds, classes.decision_function(X).T, rtol=1e-12)
    nameless = ct.CollaborativeRegressor().fit([[1.0], [2.0], [3.0]], [1.0, 2.0, 4.0], agents=[0, 1, 1])
    with pytest.raises(DataError, match=r"fitted for 2 agents: pass agents=\.\.\."):
        nameless.predict(dataset)


# -- rows that are elsewhere ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("ray")
def test_workers_read_a_folder(tmp_path):
    """One class is in one file only; a shop's rows are in two."""
    frame = visits()[["shop", "price", "size", "region", "mood"]]
    for k, part in enumerate(np.array_split(np.arange(len(frame)), 3)):
        frame.iloc[part].to_csv(tmp_path / f"{k}.csv", index=False)
    found = ct.CollaborativeClassifier(engine=TWO, members=SHOPS).fit(tmp_path, "mood", agents="shop")
    same(found, here("mood"))
    assert found.feature_names_in_.tolist() == here("mood").feature_names_in_.tolist()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own
@pytest.mark.usefixtures("ray")
def test_workers_read_a_dataset():
    import ray.data

    columns = ["shop", "price", "size", "region", "sales"]
    dataset = ray.data.from_pandas([visits()[columns][:70], visits()[columns][70:]])
    same(ct.CollaborativeRegressor(engine=TWO).fit(dataset, "sales", agents="shop"), here("sales"))


@pytest.mark.slow
@pytest.mark.usefixtures("ray")
def test_labels_that_a_worker_cannot_use_name_their_agent(tmp_path):
    frame = visits()[["shop", "price", "visits"]].copy()
    frame.loc[frame["shop"] == "shop 07", "visits"] = -2
    frame.to_csv(tmp_path / "all.csv", index=False)
    model = ct.CollaborativeRegressor(loss="poisson", engine=TWO)
    with pytest.raises(DataError, match=r"agent 'shop 07': a label is -2: loss=\"poisson\" needs counts"):
        model.fit(tmp_path, "visits", agents="shop")
    assert not hasattr(model, "agents_")


# -- workers that die -------------------------------------------------------------------------------------------------


def noted(folder, target):
    """Sources that leave a note of the process in which they ran, whose rows nobody else has."""

    def source(shop):
        rows = visits()[visits()["shop"] == shop][["price", "size", "region", target]]
        note = str(folder / f"{shop}.pid")

        def load():
            with open(note, "a") as file:
                file.write(f"{os.getpid()}\n")
            return rows

        return load

    return {shop: source(shop) for shop in SHOPS}


def kill_at(rounds, folder, told):
    """For ``progress``: kills the workers that hold the first of the shops, after so many rounds."""

    def progress(done):
        told.append(done)
        if done in rounds:
            os.kill(int((folder / f"{SHOPS[0]}.pid").read_text().split()[-1]), signal.SIGKILL)

    return progress


def pids(folder, shop):
    """Of the workers that loaded a source; before them, all sources are looked at once."""
    return (folder / f"{shop}.pid").read_text().split()[1:]


@pytest.mark.usefixtures("ray")
def test_a_dead_workers_agents_go_to_those_left(tmp_path, caplog):
    """And the fit ends where it would have: of squared losses, deviations are found again exactly."""
    told = []
    model = ct.CollaborativeRegressor(engine=TWO)
    with caplog.at_level(logging.WARNING, "coterie"):
        model.fit(noted(tmp_path, "sales"), "sales", progress=kill_at({7}, tmp_path, told))
    same(model, here("sales"))
    assert "a worker died: " in caplog.text
    assert "agents go to the 1 left" in caplog.text
    loads = [len(pids(tmp_path, shop)) for shop in SHOPS]
    assert set(loads) == {1, 2}  # only those of the dead worker were loaded again
    assert len({pid for shop in SHOPS for pid in pids(tmp_path, shop)}) == 2


# -- what is refused, before any cluster is looked for ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"engine": "ray"}, ParameterError, "engine='ray': expected a ct.Cluster"),
        ({"engine": TWO, "method": "cd"}, MismatchError, 'engine= needs method="pooling"'),
        ({"engine": TWO, "graph": "knn"}, MismatchError, "graph= needs all rows in this process"),
    ],
)
def test_what_does_not_go_together(settings, error, message):
    with pytest.raises(error, match=message):
        ct.CollaborativeRegressor(**settings).fit([[0.0], [1.0]], [0.0, 1.0], agents=[0, 1])


@pytest.mark.usefixtures("ray")
def test_many_columns_and_weights_of_sources_are_refused(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 200))
    with pytest.raises(MismatchError, match="there are 200 columns, and engine= takes at most 150"):
        ct.CollaborativeRegressor(engine=TWO).fit(X, X[:, 0], agents=np.arange(20) % 4)
    with pytest.raises(DataError, match="sample_weight needs rows in"):
        ct.CollaborativeRegressor(engine=TWO).fit({"a": (X, X[:, 0])}, None, sample_weight=np.ones(20))
