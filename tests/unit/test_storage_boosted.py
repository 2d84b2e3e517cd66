"""Boosted models, and models on a learned graph, on disk."""

from __future__ import annotations

import hashlib
import io
import json

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

import coterie as ct
from coterie.errors import DataError

pytestmark = pytest.mark.compiled

CLASSES = {2: ["no", "yes"], 3: ["high", "low", "mid"]}


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(rng.uniform(size=(80, 2)), columns=["a", "b"]).assign(who=np.arange(80) % 8)


def labels(frame, classes=2):
    return np.array(CLASSES[classes])[np.digitize(frame["a"] + 0.2 * frame["b"], [0.4, 0.8][: classes - 1])]


def there_and_back(model, tmp_path):
    return ct.load(ct.save(model, tmp_path / "model"))


@pytest.mark.parametrize("classes", CLASSES)
def test_a_boosted_classifier_comes_back_the_same(frame, tmp_path, classes):
    model = ct.BoostedClassifier(base=16, beta=2.0, lam=0.5).fit(frame, labels(frame, classes), agents="who")
    again = there_and_back(model, tmp_path)
    for ask in ("predict", "predict_proba", "decision_function"):
        assert np.array_equal(getattr(again, ask)(frame), getattr(model, ask)(frame))
    strange = frame.assign(who=[99, *frame["who"][1:]])
    np.testing.assert_allclose(again.predict_proba(strange), model.predict_proba(strange), rtol=1e-13)
    assert again.classes_.tolist() == model.classes_.tolist()
    assert again.base_ == model.base_
    assert again.graph_ == model.graph_
    assert again.agents_ == model.agents_
    assert again.get_params() == model.get_params()
    assert again.coef_.shape == model.coef_.shape


def test_a_boosted_regressor_comes_back_the_same(frame, tmp_path):
    X, ids = frame[["a", "b"]].to_numpy(), frame["who"].to_numpy()
    model = ct.BoostedRegressor(base=16, members=range(10)).fit(X, 3.0 + X[:, 0], agents=ids)
    again = there_and_back(model, tmp_path)
    assert np.array_equal(again.predict(X, agents=ids + 2), model.predict(X, agents=ids + 2))
    assert np.array_equal(again.intercept_, model.intercept_)
    assert again.base_ == model.base_
    assert again.members == tuple(range(10))


def test_what_came_back_can_be_fitted_again(frame, tmp_path):
    y = labels(frame)
    model = ct.BoostedClassifier(base=16).fit(frame, y, agents="who")
    assert np.array_equal(there_and_back(model, tmp_path).fit(frame, y, agents="who").coef_, model.coef_)


@pytest.mark.parametrize(
    "base",
    [
        16,
        np.int64(16),
        ct.Stumps(16),
        ct.Stumps(16, spread="quantile"),
        ct.Stumps(16, low=0.0, high=1.0),
        ct.Stumps(16, low=[0.0, -1.0], high=[1.0, 2.0]),
    ],
    ids=repr,
)
def test_stumps_come_back(frame, tmp_path, base):
    model = ct.BoostedClassifier(base=base, graph="knn").fit(frame, labels(frame), agents="who")
    again = there_and_back(model, tmp_path)
    assert again.base == base
    assert again.base_ == model.base_


@pytest.mark.parametrize("kind", [ct.CollaborativeClassifier, ct.BoostedClassifier])
@pytest.mark.parametrize(
    "graph",
    [
        "learn",
        ct.GraphRule(lam=2.0),
        pytest.param(
            ct.GraphRule(mu=0.5, lam=0.3, delta=0.02, kappa=3, step="local", max_edges=4), marks=pytest.mark.slow
        ),
        ct.graphs.ring(8),
    ],
    ids=repr,
)
def test_how_the_graph_was_learned_comes_back(frame, tmp_path, kind, graph):
    method = "boosting" if kind is ct.BoostedClassifier else "cd"
    model = kind(graph=graph, method=method).fit(frame, labels(frame), agents="who")
    again = there_and_back(model, tmp_path)
    assert type(again.graph) is type(graph)
    assert again.graph == graph
    assert again.graph_ == model.graph_
    np.testing.assert_allclose(again.predict_proba(frame), model.predict_proba(frame), rtol=1e-13)


def test_a_method_and_a_confidence_come_back(frame, tmp_path):
    settings = {
        "method": ct.FrankWolfeBoosting(),
        "confidence": [0.5] * 8,
        "tol": 0.2,
        "random_state": 3,
        "max_iter": 900,
    }
    model = ct.BoostedClassifier(base=16, **settings).fit(frame, labels(frame), agents="who")
    again = there_and_back(model, tmp_path)
    assert {name: again.get_params()[name] for name in settings} == settings


# -- what is refused --------------------------------------------------------------------------------------------------


def tampered(folder, **changes):
    """Other arrays, with a checksum of their own; None for one that is taken away."""
    description = json.loads((folder / "model.json").read_text())
    with np.load(folder / description["arrays"]) as stored:
        arrays = {name: changes.get(name, stored[name]) for name in stored.files}
    buffer = io.BytesIO()
    np.savez(buffer, **{name: array for name, array in arrays.items() if array is not None})
    (folder / description["arrays"]).write_bytes(buffer.getvalue())
    description["sha256"] = hashlib.sha256(buffer.getvalue()).hexdigest()
    (folder / "model.json").write_text(json.dumps(description))
    return folder


@pytest.fixture
def saved(frame, tmp_path):
    model = ct.BoostedClassifier(base=8).fit(frame, labels(frame), agents="who")
    return ct.save(model, tmp_path / "model")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feature": np.full(8, -1)}, "damaged.*whole numbers >= 0"),
        ({"feature": np.full(8, 0.5)}, "damaged.*whole numbers >= 0"),
        ({"feature": np.zeros(7, int)}, "damaged.*one of each per stump"),
        ({"feature": None}, "no array 'feature'"),
        ({"threshold": np.full(8, np.nan)}, "damaged.*finite number per stump"),
        ({"threshold": np.full(8, "x")}, "damaged.*finite number per stump"),
        ({"threshold": np.array([None] * 8)}, "damaged.*allow_pickle"),
        ({"threshold": None}, "damaged"),
        ({"threshold": np.zeros(5), "feature": np.zeros(5, int)}, r"damaged.*shape \(9, 1, 8\), and not \(9, 1, 5\)"),
        ({"coefficients": np.zeros((9, 1, 7))}, "damaged.*shape"),
        ({"coefficients": np.zeros((8, 1, 8))}, "damaged.*shape"),
        ({"intercepts": np.zeros((8, 1))}, "damaged.*shape"),
        ({"tie_weight": np.array([np.nan])}, "damaged"),
        ({"tie_start": None}, "damaged"),
    ],
)
def test_arrays_that_were_tampered_with_are_refused(saved, changes, message):
    with pytest.raises(DataError, match=message):
        ct.load(tampered(saved, **changes))


def test_stumps_of_a_column_that_there_is_not_are_refused(frame, saved):
    with pytest.raises(DataError, match="column 7"):
        ct.load(tampered(saved, feature=np.full(8, 7))).predict(frame)


def test_stumps_that_were_taken_away_are_missed(frame, tmp_path):
    """As many of them as features: the shapes of the models do not tell."""
    model = ct.BoostedClassifier(base=2).fit(frame, labels(frame), agents="who")
    folder = ct.save(model, tmp_path / "model")
    with pytest.raises(DataError):
        ct.load(tampered(folder, threshold=None, feature=None))


def test_one_flipped_bit_is_refused(saved):
    [arrays] = saved.glob("arrays-*.npz")
    content = bytearray(arrays.read_bytes())
    content[len(content) // 2] ^= 1
    arrays.write_bytes(content)
    with pytest.raises(DataError, match="does not have its checksum"):
        ct.load(saved)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("base", {"rule": "Stumps", "fields": [0, "uniform", None, None]}),
        ("base", {"rule": "system", "fields": ["ls"]}),
        ("graph", {"rule": "GraphRule", "fields": [None, -1.0, 0.01, 5, "exact", None]}),
        ("graph", {"rule": "GraphRule", "fields": [None] * 9}),
    ],
)
def test_parameters_that_were_tampered_with_are_refused(saved, name, value):
    description = json.loads((saved / "model.json").read_text())
    description["parameters"][name] = value
    (saved / "model.json").write_text(json.dumps(description))
    with pytest.raises(DataError, match="damaged"):
        ct.load(saved)


def test_another_kind_is_refused(saved):
    description = json.loads((saved / "model.json").read_text())
    (saved / "model.json").write_text(json.dumps(description | {"kind": "CollaborativeClassifier"}))
    with pytest.raises(DataError, match="damaged"):
        ct.load(saved)


def trees(frame):
    X, y = frame[["a", "b"]].to_numpy(), labels(frame)
    return [DecisionTreeClassifier(max_depth=depth).fit(X, y) for depth in (1, 2)]


def forests(frame):
    """Which have a length, each its own."""
    X, y = frame[["a", "b"]].to_numpy(), labels(frame)
    return [RandomForestClassifier(n_estimators=count, random_state=0).fit(X, y) for count in (2, 3)]


@pytest.mark.parametrize(
    "base", [trees, forests, lambda frame: lambda X: np.sign(X - 0.5)], ids=["trees", "forests", "function"]
)
def test_base_predictors_that_are_code_are_refused_before_anything_is_written(frame, tmp_path, base):
    model = ct.BoostedClassifier(base=base(frame), graph="knn").fit(frame, labels(frame), agents="who")
    with pytest.raises(DataError, match=r"base=.*cannot be saved: only"):
        ct.save(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_refused_save_leaves_the_old_model(frame, saved):
    before = ct.load(saved).predict(frame)
    model = ct.BoostedClassifier(base=trees(frame), graph="knn").fit(frame, labels(frame), agents="who")
    with pytest.raises(DataError):
        ct.save(model, saved)
    assert np.array_equal(ct.load(saved).predict(frame), before)
