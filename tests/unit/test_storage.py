"""Models on disk: they come back as they were, whole or not at all, and are never trusted blindly."""

from __future__ import annotations

import datetime
import hashlib
import io
import json
from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.ensemble import RandomForestClassifier
from sklearn.kernel_approximation import RBFSampler
from sklearn.tree import DecisionTreeClassifier

import coterie as ct
from coterie.errors import DataError, MismatchError

CLASSES = {2: ["no", "yes"], 3: ["high", "low", "mid"]}
COVARIANCE = np.full((8, 8), 0.05) + 0.075 * np.eye(8)


def frame(ids=range(8), rows=80):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(size=(rows, 2)), columns=["a", "b"])
    return X.assign(who=[list(ids)[k % len(ids)] for k in range(rows)])


def labels(X, classes=0):
    z = X["a"] + 0.2 * X["b"]
    return np.array(CLASSES[classes])[np.digitize(z, [0.4, 0.8][: classes - 1])] if classes else 3.0 + z.to_numpy()


def fitted(kind, classes=0, ids=range(8), **settings):
    """A model, and the rows that it was fitted to."""
    X = frame(ids)
    return kind(**settings).fit(X, labels(X, classes), agents="who"), X


def arrays_of(folder):
    with np.load(folder / json.loads((folder / "model.json").read_text())["arrays"]) as stored:
        return dict(stored)


def tampered(folder, parts=None, **description):
    """Other fields of a stored model, and other arrays with a checksum of their own; None for one taken away."""
    now = json.loads((folder / "model.json").read_text())
    if parts is not None:
        buffer = io.BytesIO()
        np.savez(buffer, **{name: part for name, part in (arrays_of(folder) | parts).items() if part is not None})
        (folder / now["arrays"]).write_bytes(buffer.getvalue())
        now["sha256"] = hashlib.sha256(buffer.getvalue()).hexdigest()
    (folder / "model.json").write_text(json.dumps(now | description))
    return folder


def plain(value):
    """Parameters, whatever they are made of."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if type(value) in (tuple, list, range):
        return [plain(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


# -- what comes back --------------------------------------------------------------------------------------------------

BOOSTED, RELATED = (ct.BoostedClassifier, ct.BoostedRegressor), (ct.RelationshipClassifier, ct.RelationshipRegressor)
COMES_BACK = {
    "words": (ct.CollaborativeClassifier, 2, {"ids": ["ann", "bob", "cyd"], "n_neighbors": 1, "coupling": 2.0}),
    "numbers": (ct.CollaborativeClassifier, 3, {"ids": [3, 1, 2]}),
    "pairs": (ct.CollaborativeClassifier, 2, {"ids": [("a", 1), ("a", 2), ("b", 1)], "design": "additive"}),
    "a method": (ct.CollaborativeClassifier, 2, {"method": ct.CollaborativeADMM(2.0, steps=3), "n_neighbors": 1}),
    "a baseline": (ct.CollaborativeClassifier, 2, {"method": ct.baselines.RidgeToMean(2.0)}),
    "local": (ct.CollaborativeRegressor, 0, {"method": "local"}),
    "global": (ct.CollaborativeRegressor, 0, {"method": "global", "graph": "knn", "n_neighbors": 2}),
    "given": (ct.CollaborativeRegressor, 0, {
        "method": ct.CoordinateDescent(), "loss": ct.Huber(0.3), "graph": ct.graphs.ring(8), "ridge": [0.1] * 8,
        "members": range(8)}),
    "a rule": (ct.CollaborativeClassifier, 2, {"method": "cd", "graph": ct.GraphRule(lam=2.0)}),
    "learned": (ct.CollaborativeClassifier, 2, {"method": "cd", "graph": "learn"}),
    "boosted": (ct.BoostedClassifier, 2, {"base": 16, "beta": 2.0, "lam": 0.5}),
    "boosted, three": (ct.BoostedClassifier, 3, {"base": np.int64(16), "graph": ct.GraphRule(lam=2.0)}),
    "boosted, members": (ct.BoostedRegressor, 0, {"base": 16, "members": range(10)}),
    "boosted, given": (ct.BoostedClassifier, 2, {
        "base": ct.Stumps(16, low=[0.0, -1.0], high=[1.0, 2.0]), "graph": ct.graphs.ring(8), "confidence": [0.5] * 8,
        "method": ct.FrankWolfeBoosting(), "tol": 0.2, "random_state": 3, "max_iter": 900}),
    "boosted, quantiles": (ct.BoostedClassifier, 2, {"base": ct.Stumps(16, spread="quantile"), "graph": "knn"}),
    "boosted, bounds": (ct.BoostedClassifier, 2, {"base": ct.Stumps(16, low=0.0, high=1.0), "graph": "knn"}),
    "boosted, limited": (ct.BoostedClassifier, 2, {
        "graph": ct.GraphRule(mu=0.5, lam=0.3, delta=0.02, kappa=3, step="local", max_edges=4)}),
    "related": (ct.RelationshipClassifier, 2, {"lam": 0.03, "random_state": 5}),
    "related, three": (ct.RelationshipClassifier, 3, {"lam": 0.03}),
    "related, given": (ct.RelationshipRegressor, 0, {"loss": ct.Huber(0.7), "covariance": COVARIANCE, "tol": 1e-4}),
    "related, factors": (ct.RelationshipRegressor, 0, {"covariance": (np.ones((8, 1)), np.array([0.05]), 0.075)}),
}  # fmt: skip


#: Boosted and relationship estimators, and graphs that are learned, take long in plain Python.
LONG = ("boosted", "related", "given", "a rule", "learned", "a method")


def marked(name, *more):
    marks = [pytest.mark.compiled] if name.startswith(LONG) else []
    marks += [pytest.mark.slow] if name in ("boosted, limited", "related, three") else []
    return pytest.param(name, *more, marks=marks)


@pytest.mark.parametrize("name", [marked(name) for name in COMES_BACK])
def test_it_comes_back_the_same(tmp_path, name):
    """What is predicted of agents met and never met, what is shown, parameters, and what is fitted with them again."""
    kind, classes, settings = COMES_BACK[name]
    model, X = fitted(kind, classes, **settings)
    again = ct.load(ct.save(model, tmp_path / "model"))
    assert type(again) is kind
    assert plain(again.get_params()) == plain(model.get_params())
    assert (again.agents_, again.n_features_in_) == (model.agents_, model.n_features_in_)
    shown = ["coef_", "intercept_", *(["classes_"] if classes else [])]
    shown += ["covariance_", "correlation_", "duality_gap_"] if kind in RELATED else []
    for each in shown:
        np.testing.assert_array_equal(getattr(again, each), getattr(model, each))
    assert getattr(again, "graph_", None) == getattr(model, "graph_", None)
    if kind in BOOSTED:
        assert again.base_ == model.base_
    strange = X.assign(who=[X["who"][1], *([99] * 3 if isinstance(X["who"][0], int) else []), *X["who"]][: len(X)])
    for asked in (X, strange):
        assert np.array_equal(again.predict(asked), model.predict(asked))
        if classes:  # not to the last bit: products of arrays depend on how they lie in memory
            np.testing.assert_allclose(again.predict_proba(asked), model.predict_proba(asked), rtol=1e-12)
    refitted = again.fit(X, labels(X, classes), agents="who")
    assert np.array_equal(refitted.coef_, model.coef_)


@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("classes", [0, 3])
def test_many_columns_come_back_and_take_more_rows(tmp_path, classes, storage):
    rng = np.random.default_rng(4)
    X, ids = rng.normal(size=(60, 160)), np.repeat(np.arange(6), 10)
    y = np.digitize(X[:, 0], [-0.5, 0.5][: classes - 1]) if classes else X[:, 0] + ids
    kind = ct.CollaborativeClassifier if classes else ct.CollaborativeRegressor
    model = kind().fit(storage(X), y, agents=ids)
    again = ct.load(ct.save(model, tmp_path / "model"))
    asked = np.where(np.arange(60) % 7 == 0, 99, ids)
    says = (lambda found: found.predict_proba) if classes else (lambda found: found.predict)
    np.testing.assert_allclose(says(again)(storage(X), asked), says(model)(storage(X), asked), atol=1e-9)
    both = [found.partial_fit(storage(X[:5]), y[:5], agents=["new"] * 5) for found in (model, again)]
    np.testing.assert_allclose(both[1].coef_, both[0].coef_, atol=1e-9)


@pytest.mark.compiled
def test_a_cluster_does_not_come_back(tmp_path):
    model, _ = fitted(ct.RelationshipRegressor)
    assert ct.load(ct.save(model.set_params(engine=ct.Cluster()), tmp_path)).engine is None


# -- older formats ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "mu", "settings"),
    [
        (ct.CollaborativeRegressor, 0.25, {}),
        (ct.CollaborativeRegressor, 0.25, {"method": "local", "loss": ct.Huber(0.7)}),
        (ct.BoostedRegressor, 4.0, {"base": 4, "method": "local", "graph": ct.graphs.ring(8)}),
    ],
)
def test_models_of_format_2_are_read(tmp_path, kind, mu, settings):
    """Their parameters had other names, mu weighed an agent's own rows where it did not weigh agreement, and losses
    were named by their class, among the other rules.
    """
    model, X = fitted(kind, coupling=4.0, n_neighbors=2, max_iter=40, random_state=1, **settings)
    folder = ct.save(model, tmp_path)
    parameters = json.loads((folder / "model.json").read_text())["parameters"]
    for now, then in (("n_neighbors", "neighbours"), ("max_iter", "max_wakes"), ("random_state", "seed")):
        parameters[then] = parameters.pop(now)
    del parameters["coupling"]
    loss = {"loss": {"rule": "Huber", "fields": [0.7]}} if "loss" in settings else {}
    again = ct.load(tampered(folder, format=2, parameters=parameters | {"mu": mu} | loss))
    assert (again.coupling, again.n_neighbors, again.max_iter, again.random_state) == (4.0, 2, 40, 1)
    assert getattr(again, "loss", None) == settings.get("loss")
    assert np.array_equal(again.predict(X), model.predict(X))


@pytest.mark.compiled
def test_a_model_of_format_3_has_its_covariance_as_a_matrix(tmp_path):
    model, X = fitted(ct.RelationshipRegressor)
    folder = ct.save(model, tmp_path)
    gone = dict.fromkeys(["directions_0", "sizes_0", "rest_0"])
    again = ct.load(tampered(folder, gone | {"covariance": model.covariance_[None]}, format=3))
    assert np.array_equal(again.covariance_, model.covariance_)
    assert np.array_equal(again.predict(X), model.predict(X))
    Q, s, c = again.factors_
    np.testing.assert_allclose((Q * s) @ Q.T + c * np.eye(8), model.covariance_, rtol=0, atol=1e-14)


def test_edges_of_a_model_of_format_4_were_called_ties(tmp_path):
    model, X = fitted(ct.CollaborativeRegressor, method="local", graph=ct.graphs.ring(8), members=range(8))
    folder = ct.save(model, tmp_path)
    edges = {name: array for name, array in arrays_of(folder).items() if name.startswith("edge_")}
    before = {name.replace("edge", "tie"): array for name, array in edges.items()} | dict.fromkeys(edges)
    again = ct.load(tampered(folder, before, format=4))
    assert len(edges) == 3
    assert again.graph_ == model.graph_
    assert np.array_equal(again.predict(X), model.predict(X))


# -- what is refused --------------------------------------------------------------------------------------------------

STORED = {
    "pooled": (ct.CollaborativeRegressor, {}),
    "boosted": (ct.BoostedClassifier, {"classes": 2, "base": 8}),
    "related": (ct.RelationshipRegressor, {}),
    "given": (ct.RelationshipRegressor, {"covariance": COVARIANCE}),
}


@cache
def stored(name):
    kind, settings = STORED[name]
    return fitted(kind, **settings)[0]


DESCRIPTIONS = [
    ("pooled", {"format": 99}, "format 99"),
    ("pooled", {"kind": "os.system"}, "holds a 'os.system'"),
    ("pooled", {"arrays": "../../etc/passwd"}, "damaged model"),
    ("pooled", {"sha256": "0"}, "checksum"),
    ("pooled", {"agents": ["only one"]}, "damaged model.*8 agents, expected 1"),
    ("pooled", {"models": {"form": "pooled"}}, "damaged"),
    ("pooled", {"models": {}}, "damaged"),
    ("pooled", {"parameters": {"color": "red"}}, "damaged"),
    ("pooled", {"kind": [1]}, "damaged"),
    ("boosted", {"kind": "CollaborativeClassifier"}, "damaged"),
    *(
        ("boosted", {"parameters": {name: {"rule": rule, "fields": fields}}}, "damaged")
        for name, rule, fields in (
            ("base", "Stumps", [0, "uniform", None, None]),
            ("base", "system", ["ls"]),
            ("graph", "GraphRule", [None, -1.0, 0.01, 5, "exact", None]),
            ("graph", "GraphRule", [None] * 9),
        )
    ),
]


@pytest.mark.parametrize(("name", "change", "message"), [marked(*case) for case in DESCRIPTIONS])
def test_a_description_that_was_tampered_with_is_refused(tmp_path, name, change, message):
    folder = ct.save(stored(name), tmp_path / "model")
    if name == "boosted" and "parameters" in change:
        change = {"parameters": json.loads((folder / "model.json").read_text())["parameters"] | change["parameters"]}
    with pytest.raises(DataError, match=message):
        ct.load(tampered(folder, **change))


ARRAYS = [
    ("boosted", {"feature": np.full(8, -1)}, "damaged.*whole numbers >= 0"),
    ("boosted", {"feature": np.full(8, 0.5)}, "damaged.*whole numbers >= 0"),
    ("boosted", {"feature": np.zeros(7, int)}, "damaged.*one of each per stump"),
    ("boosted", {"feature": None}, "no array 'feature'"),
    ("boosted", {"feature": None, "threshold": None}, "damaged"),
    ("boosted", {"threshold": np.full(8, np.nan)}, "damaged.*finite number per stump"),
    ("boosted", {"threshold": np.full(8, "x")}, "damaged.*finite number per stump"),
    ("boosted", {"threshold": np.array([None] * 8)}, "damaged.*allow_pickle"),
    ("boosted", {"threshold": None}, "damaged"),
    ("boosted", {"threshold": np.zeros(5), "feature": np.zeros(5, int)}, r"damaged.*\(9, 1, 8\), expected \(9, 1, 5\)"),
    ("boosted", {"coefficients": np.zeros((9, 1, 7))}, "damaged.*shape"),
    ("boosted", {"coefficients": np.zeros((8, 1, 8))}, "damaged.*shape"),
    ("boosted", {"intercepts": np.zeros((8, 1))}, "damaged.*shape"),
    ("boosted", {"edge_weight": np.array([np.nan])}, "damaged"),
    ("boosted", {"edge_start": None}, "damaged"),
    *(
        ("given", {"covariance": covariance}, "damaged")
        for covariance in (None, np.eye(8), np.zeros((1, 3, 3)), np.full((1, 8, 8), np.nan))
    ),
    *(
        ("related", {name: change}, "damaged")
        for name in ("directions_0", "sizes_0", "rest_0")
        for change in (None, np.zeros((2, 2, 8)), np.full((8, 1) if name == "directions_0" else (), np.nan))
    ),
]


@pytest.mark.parametrize(("name", "change", "message"), [marked(*case) for case in ARRAYS], ids=str)
def test_arrays_that_were_tampered_with_are_refused(tmp_path, name, change, message):
    with pytest.raises(DataError, match=message):
        ct.load(tampered(ct.save(stored(name), tmp_path), change))


def test_half_a_file_is_refused(tmp_path):
    """One bit that flipped, a description that is cut off, and one without a part."""
    folder = ct.save(stored("pooled"), tmp_path / "model")
    whole = (folder / "model.json").read_text()
    halves = [json.dumps({key: value for key, value in json.loads(whole).items() if key != part})
              for part in ("agents", "parameters", "sha256", "models", "classes", "agent_column")]  # fmt: skip
    for half in (whole[:40], *halves):
        (folder / "model.json").write_text(half)
        with pytest.raises(DataError, match="damaged"):
            ct.load(folder)
    (folder / "model.json").write_text(whole)
    [arrays] = folder.glob("arrays-*.npz")
    content = bytearray(arrays.read_bytes())
    content[len(content) // 2] ^= 1
    arrays.write_bytes(content)
    with pytest.raises(DataError, match="does not have its checksum"):
        ct.load(folder)


@pytest.mark.compiled
def test_stumps_of_a_column_that_there_is_not_are_refused(tmp_path):
    with pytest.raises(DataError, match="column 7"):
        ct.load(tampered(ct.save(stored("boosted"), tmp_path), {"feature": np.full(8, 7)})).predict(frame())


def test_saving_again_leaves_one_set_of_arrays(tmp_path):
    ct.save(stored("pooled"), tmp_path)
    X = frame(ids=[1, 2], rows=6)
    ct.save(ct.CollaborativeRegressor().fit(X, labels(X), agents="who"), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert ct.load(tmp_path).agents_ == (1, 2)


@ct.rule
class Mine(ct.Squared):
    pass


def learners(kind, *settings):
    """Two fitted estimators of scikit-learn; forests have a length, each its own."""
    X = frame()
    return [kind(**each).fit(X[["a", "b"]].to_numpy(), labels(X, 2)) for each in settings]


TREES = [{"max_depth": 1}, {"max_depth": 2}]
DAYS = [datetime.date(2020, 1, 1 + k) for k in range(8)]
BASES = {
    "trees": lambda: learners(DecisionTreeClassifier, *TREES),
    "forests": lambda: learners(RandomForestClassifier, {"n_estimators": 2}, {"n_estimators": 3}),
    "a function": lambda: lambda X: np.sign(X - 0.5),
}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fitted(ct.CollaborativeRegressor, ids=DAYS), "only text, numbers and tuples"),
        (lambda: fitted(ct.CollaborativeRegressor, method="cd", loss=Mine()), r"loss=Mine\(\) cannot be saved"),
        pytest.param(lambda: fitted(ct.RelationshipRegressor, features=RBFSampler(n_components=5, random_state=0)),
                     r"features=RBFSampler.* cannot be saved: a feature map is code", marks=pytest.mark.compiled),
        *(pytest.param(lambda base=base: fitted(ct.BoostedClassifier, 2, base=BASES[base](), graph="knn"),
                       r"base=.*cannot be saved: only", marks=pytest.mark.compiled) for base in BASES),
    ],
)  # fmt: skip
def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path, make, message):
    model, _ = make()
    with pytest.raises(DataError, match=message):
        ct.save(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    old = ct.save(stored("pooled"), tmp_path / "old")
    with pytest.raises(DataError, match=message):
        ct.save(model, old)
    assert np.array_equal(ct.load(old).coef_, stored("pooled").coef_)  # the old model stays


def test_only_fitted_estimators_are_saved(tmp_path):
    for kind in (ct.CollaborativeRegressor, *RELATED, *BOOSTED):
        with pytest.raises(MismatchError, match="only a fitted"):
            ct.save(kind(), tmp_path / "model")
