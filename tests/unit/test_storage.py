"""Models on disk: whole or not at all, and never trusted blindly."""

from __future__ import annotations

import datetime
import json

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.errors import DataError, MismatchError


def frame(rng, ids, classes):
    X = pd.DataFrame(rng.normal(size=(len(ids), 3)), columns=["a", "b", "c"]).assign(who=ids)
    return X, np.array(classes)[np.digitize(X["a"] + X["b"], np.linspace(-1, 1, len(classes) - 1))]


@pytest.mark.parametrize(
    "method", [ct.CollaborativeADMM(), ct.CollaborativeADMM(2.0, steps=3), ct.RidgeToMean(2.0)], ids=repr
)
def test_methods_and_baselines_come_back(tmp_path, method):
    X, y = frame(np.random.default_rng(0), ["abc"[k % 3] for k in range(30)], ["no", "yes"])
    model = ct.CollaborativeClassifier(method, n_neighbors=1).fit(X, y, agents="who")
    again = ct.load(ct.save(model, tmp_path / "model"))
    assert repr(again.method) == repr(method)
    assert np.array_equal(again.coef_, model.coef_)


@pytest.mark.parametrize("classes", [["no", "yes"], [0, 1, 2], [False, True]])
@pytest.mark.parametrize("ids", [["ann", "bob", "cyd"], [3, 1, 2], [("a", 1), ("a", 2), ("b", 1)]])
def test_a_classifier_comes_back_the_same(tmp_path, classes, ids):
    X, y = frame(np.random.default_rng(0), [ids[k % 3] for k in range(60)], classes)
    model = ct.CollaborativeClassifier(n_neighbors=1, coupling=2.0).fit(X, y, agents="who")
    again = ct.load(ct.save(model, tmp_path / "model"))
    assert np.array_equal(again.predict(X), model.predict(X))
    # Not to the last bit: products of arrays depend on how they lie in memory.
    np.testing.assert_allclose(again.predict_proba(X), model.predict_proba(X), rtol=1e-13)
    assert again.agents_ == model.agents_
    assert again.graph_ == model.graph_
    assert again.coupling == 2.0


def test_a_regressor_on_arrays_comes_back_the_same(tmp_path):
    rng = np.random.default_rng(1)
    X, y, ids = rng.normal(size=(40, 2)), rng.normal(size=40), np.arange(40) % 4
    model = ct.CollaborativeRegressor(design="additive").fit(X, y, agents=ids)
    again = ct.load(ct.save(model, tmp_path))
    np.testing.assert_allclose(again.predict(X, agents=ids + 1), model.predict(X, agents=ids + 1), rtol=1e-13)


def test_parameters_come_back(tmp_path):
    rng = np.random.default_rng(4)
    X, y, ids = rng.normal(size=(12, 2)), rng.normal(size=12), [0, 1, 2] * 4
    settings = {"loss": ct.Huber(0.3), "graph": ct.graphs.ring(4), "ridge": [0.1, 0.2, 0.3, 0.4], "members": range(4)}
    model = ct.CollaborativeRegressor(**settings, method=ct.CoordinateDescent()).fit(X, y, agents=ids)
    again = ct.load(ct.save(model, tmp_path))
    assert (again.loss, again.method, again.graph) == (ct.Huber(0.3), ct.CoordinateDescent(), ct.graphs.ring(4))
    assert np.array_equal(again.fit(X, y, agents=ids).coef_, model.coef_)


@pytest.fixture
def saved(tmp_path):
    rng = np.random.default_rng(2)
    model = ct.CollaborativeRegressor(n_neighbors=1).fit(
        rng.normal(size=(8, 1)), rng.normal(size=8), agents=list("aabbccdd")
    )
    return ct.save(model, tmp_path / "model")


def test_one_flipped_bit_is_refused(saved):
    [arrays] = saved.glob("arrays-*.npz")
    content = bytearray(arrays.read_bytes())
    content[len(content) // 2] ^= 1
    arrays.write_bytes(content)
    with pytest.raises(DataError, match="does not have its checksum"):
        ct.load(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "format 99"),
        ({"kind": "os.system"}, "holds a 'os.system'"),
        ({"arrays": "../../etc/passwd"}, "damaged model"),
        ({"sha256": "0"}, "checksum"),
        ({"agents": ["only one"]}, "damaged model.*4 agents, and not 1"),
        ({"models": {"form": "pooled"}}, "damaged"),
        ({"models": {}}, "damaged"),
        ({"parameters": {"color": "red"}}, "damaged"),
        ({"kind": [1]}, "damaged"),
    ],
)
def test_a_description_that_was_tampered_with_is_refused(saved, change, message):
    description = json.loads((saved / "model.json").read_text())
    (saved / "model.json").write_text(json.dumps(description | change))
    with pytest.raises(DataError, match=message):
        ct.load(saved)


@pytest.mark.parametrize("part", ["agents", "parameters", "sha256", "models", "classes", "agent_column"])
def test_an_incomplete_description_is_refused(saved, part):
    description = json.loads((saved / "model.json").read_text())
    del description[part]
    (saved / "model.json").write_text(json.dumps(description))
    with pytest.raises(DataError, match="damaged"):
        ct.load(saved)


def test_half_a_description_is_refused(saved):
    (saved / "model.json").write_text((saved / "model.json").read_text()[:40])
    with pytest.raises(DataError, match="damaged"):
        ct.load(saved)


def test_saving_again_leaves_one_set_of_arrays(saved):
    rng = np.random.default_rng(3)
    ct.save(
        ct.CollaborativeRegressor(n_neighbors=1).fit(rng.normal(size=(4, 2)), rng.normal(size=4), agents=[1, 1, 2, 2]),
        saved,
    )
    assert len(list(saved.iterdir())) == 2
    assert ct.load(saved).agents_ == (1, 2)


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path):
    days = [datetime.date(2020, 1, 1 + k % 2) for k in range(6)]
    model = ct.CollaborativeRegressor(n_neighbors=1).fit(np.eye(6), np.arange(6.0), agents=days)
    with pytest.raises(DataError, match="only text, numbers and tuples"):
        ct.save(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()

    @ct.rule
    class Mine(ct.Squared):
        pass

    model = ct.CollaborativeRegressor("cd", loss=Mine()).fit(np.eye(3), np.arange(3.0))
    with pytest.raises(DataError, match=r"loss=Mine\(\) cannot be saved"):
        ct.save(model, tmp_path / "model")
    with pytest.raises(MismatchError, match="only a fitted"):
        ct.save(ct.CollaborativeRegressor(), tmp_path / "model")


@pytest.mark.parametrize(("kind", "mu"), [(ct.CollaborativeRegressor, 0.25), (ct.BoostedRegressor, 4.0)])
def test_models_of_the_format_before_are_read(tmp_path, kind, mu):
    """Their parameters had other names, and mu weighed an agent's own rows where it did not weigh agreement."""
    X, y, ids = np.arange(24.0).reshape(12, 2) % 7, np.arange(12.0) % 5, [0, 1, 2] * 4
    more = {"base": 4, "method": "local", "graph": ct.graphs.ring(3)} if kind is ct.BoostedRegressor else {}
    model = kind(coupling=4.0, n_neighbors=2, max_iter=40, random_state=1, **more).fit(X, y, agents=ids)
    path = ct.save(model, tmp_path) / "model.json"
    described = json.loads(path.read_text())
    parameters = described["parameters"]
    for now, then in (("n_neighbors", "neighbours"), ("max_iter", "max_wakes"), ("random_state", "seed")):
        parameters[then] = parameters.pop(now)
    del parameters["coupling"]
    path.write_text(json.dumps(described | {"format": 2, "parameters": parameters | {"mu": mu}}))
    again = ct.load(tmp_path)
    assert (again.coupling, again.n_neighbors, again.max_iter, again.random_state) == (4.0, 2, 40, 1)
    assert np.array_equal(again.predict(X, agents=ids), model.predict(X, agents=ids))


def test_losses_of_the_format_before_are_read(tmp_path):
    """They were named by their class, among the other rules."""
    X, y, ids = np.arange(24.0).reshape(12, 2) % 7, np.arange(12.0) % 5, [0, 1, 2] * 4
    loss = ct.Huber(0.7)
    model = ct.CollaborativeRegressor("local", loss=loss).fit(X, y, agents=ids)
    path = ct.save(model, tmp_path) / "model.json"
    described = json.loads(path.read_text())
    parameters = described["parameters"] | {"loss": {"rule": "Huber", "fields": [0.7]}, "mu": 1.0}
    for now, then in (("n_neighbors", "neighbours"), ("max_iter", "max_wakes"), ("random_state", "seed")):
        parameters[then] = parameters.pop(now)
    del parameters["coupling"]
    path.write_text(json.dumps(described | {"format": 2, "parameters": parameters}))
    assert ct.load(tmp_path).loss == loss
