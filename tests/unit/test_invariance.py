"""Estimators that boost, and of related tasks: what must not matter does not, and few rows are enough."""

from __future__ import annotations

import os

import numpy as np
import pytest
from scipy.special import expit

import coterie as ct
from coterie.estimators.intercepts import random_intercepts

pytestmark = pytest.mark.compiled

BOOSTED = {
    "boosted classifier": lambda **settings: ct.BoostedClassifier(base=16, **settings),
    "boosted regressor": lambda **settings: ct.BoostedRegressor(base=16, **settings),
}
RELATED = {
    "related classifier": ct.RelationshipClassifier,
    "related regressor": ct.RelationshipRegressor,
}
MODELS = BOOSTED | RELATED
REGRESSORS = [name for name in MODELS if "regressor" in name]
CLASSIFIERS = [name for name in MODELS if "classifier" in name]
NAMES = np.array(["ann", "bob", "cyd", "dan", "eve", "fay"])


@pytest.fixture(scope="module")
def rows():
    """Six agents of a population: levels and slopes of their own, around common ones; integers in one column."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(6), [12, 9, 15, 7, 10, 8])
    X = rng.normal(size=(61, 3))
    X[:, 1] = np.round(3.0 * X[:, 1])
    theta = [1.0, 0.4, -0.5] + 0.5 * rng.normal(size=(6, 3))
    numbers = np.einsum("rk,rk->r", X, theta[owner]) + rng.normal(size=6)[owner] + 0.5 * rng.normal(size=61)
    return X, numbers, NAMES[owner]


def labels(numbers, name):
    return np.where(numbers > 0.0, "yes", "no") if "classifier" in name else numbers


def answers(model, X, ids):
    ask = model.predict_proba if hasattr(model, "predict_proba") else model.predict
    return ask(X, agents=ids)


# -- the order of rows, the names of agents, units --------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_neither_the_order_of_rows_nor_the_names_of_agents_matter(rows, name):
    X, numbers, ids = rows
    y = labels(numbers, name)
    expected = answers(MODELS[name]().fit(X, y, agents=ids), X, ids)
    order = np.random.default_rng(1).permutation(len(X))
    shuffled = MODELS[name]().fit(X[order], y[order], agents=ids[order])
    np.testing.assert_allclose(answers(shuffled, X, ids), expected, rtol=0.0, atol=1e-10)
    others = dict(zip(NAMES, ["zoe", "yan", "al", "wim", "cy", "uma"], strict=True))
    renamed = np.array([others[agent] for agent in ids])
    model = MODELS[name]().fit(X[order], y[order], agents=renamed[order])
    np.testing.assert_allclose(answers(model, X, renamed), expected, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("name", REGRESSORS)
@pytest.mark.parametrize(("unit", "shift"), [(1e3, 5.0), (-0.01, 1e3), (1.0, -40.0)])
def test_units_of_labels_do_not_matter(rows, name, unit, shift):
    X, numbers, ids = rows
    expected = MODELS[name]().fit(X, numbers, agents=ids).predict(X, agents=ids)
    other = MODELS[name]().fit(X, unit * numbers + shift, agents=ids).predict(X, agents=ids)
    np.testing.assert_allclose((other - shift) / unit, expected, atol=1e-6)


def test_what_is_given_for_each_agent_is_in_the_order_of_agents(rows):
    X, numbers, ids = rows
    graph, confidence = ct.graphs.ring(6), np.array([0.1, 0.9, 0.5, 0.2, 0.8, 0.4])
    model = ct.BoostedClassifier(base=16, graph=graph, confidence=confidence).fit(X, numbers > 0, agents=ids)
    assert model.agents_ == tuple(NAMES)
    assert model.graph_ == graph
    problem = model.run_.problem
    assert dict(zip(problem.members, problem.loss_weight, strict=True)) == dict(zip(NAMES, confidence, strict=True))
    others = np.array(["f", "b", "e", "a", "d", "c"])  # for ann, bob, ...
    order = np.argsort(others)
    renamed = ct.BoostedClassifier(base=16, graph=graph.relabel(order), confidence=confidence[order])
    renamed.fit(X, numbers > 0, agents=others[np.searchsorted(NAMES, ids)])
    np.testing.assert_allclose(renamed.coef_, model.coef_[order], rtol=0.0, atol=1e-10)


# -- few rows, one class ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_one_row_and_one_class_are_enough(rows, name):
    X, numbers, ids = rows
    keep = (ids != "bob") | (np.cumsum(ids == "bob") == 1)  # one row of bob's
    y = labels(np.where(ids == "cyd", np.abs(numbers), numbers), name)
    model = MODELS[name]().fit(X[keep], y[keep], agents=ids[keep])
    assert np.isfinite(model.intercept_).all()
    assert np.isfinite(answers(model, X, ids)).all()
    assert np.abs(model.intercept_ - np.median(model.intercept_)).max() < 5.0


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_three_classes_of_which_agents_lack_some(rows, name):
    X, numbers, ids = rows
    y = np.where(ids == "cyd", "mid", np.array(["low", "mid", "top"])[np.digitize(numbers, [-0.7, 0.9])])
    y = np.where((ids == "dan") & (y == "low"), "top", y)
    model = MODELS[name]().fit(X, y, agents=ids)
    shares = model.predict_proba(X, agents=ids)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert (shares[ids == "cyd"].argmax(axis=1) == 1).mean() > 0.5


@pytest.mark.parametrize("name", MODELS)
def test_everybody_has_one_row(rows, name):
    X, numbers, ids = rows[0][:20], rows[1][:20], np.arange(20)
    model = MODELS[name]().fit(X, labels(numbers, name), agents=ids)
    level = model.intercept_ + (model.coef_ @ X.mean(axis=0) if name in RELATED else 0.0)
    assert np.ptp(level) < 1e-9  # nothing tells a level of one's own from noise
    assert np.isfinite(answers(model, X, ids)).all()


# -- intercepts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REGRESSORS)
def test_levels_of_agents_cost_nothing(rows, name):
    """Agents that differ by constants alone are alike: nobody shrinks an intercept, or ties it to others."""
    X, _, ids = rows
    level = 1e3 * np.random.default_rng(3).normal(size=6)[np.searchsorted(NAMES, ids)]
    f = np.where(X[:, 0] > 0.0, 1.0, -1.0)
    near, far = (MODELS[name]().fit(X, f + shift, agents=ids) for shift in (0.0, level))
    assert np.sqrt(np.mean((far.predict(X, agents=ids) - f - level) ** 2)) < 1.1
    assert np.sqrt(np.mean((near.predict(X, agents=ids) - f) ** 2)) < 0.7


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classes_that_are_rare_with_some_agents_have_their_share(name):
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(10), 60)
    X = rng.normal(size=(600, 2))
    level = np.where(ids % 2, 2.0, -2.0)
    y = rng.uniform(size=600) < expit(X[:, 0] + level)
    shares = MODELS[name]().fit(X, y, agents=ids).predict_proba(X, agents=ids)[:, 1]
    for agent in range(10):
        assert abs(shares[ids == agent].mean() - y[ids == agent].mean()) < 0.08


@pytest.mark.parametrize("classes", [True, False])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_intercepts_vary_as_much_as_agents_do(classes, spread):
    rng = np.random.default_rng(0)
    owner, b = np.repeat(np.arange(300), 20), spread * rng.normal(size=300)
    z = rng.normal(size=6000)
    eta = z + 0.5 + b[owner]
    y = np.where(rng.uniform(size=6000) < expit(eta), 1.0, -1.0) if classes else eta + rng.normal(size=6000)
    found = random_intercepts(y, owner, 300, z, classes)
    assert found.common == pytest.approx(0.5, abs=0.15)
    error = np.sqrt(np.mean((found.own - 0.5 - b) ** 2))
    assert error < (0.12 if spread == 0.0 else 0.55)
    assert np.std(found.own) < spread + 0.1


# -- probabilities ----------------------------------------------------------------------------------------------------


def population(n, m, seed, p=4, test=60):
    """theta_i ~ N(w, V), logistic."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=p + 1) + 0.7 * rng.normal(size=(n, p + 1))

    def draw(m):
        owner = np.repeat(np.arange(n), m)
        X = rng.normal(size=(n * m, p))
        odds = np.einsum("rk,rk->r", X, theta[owner, :p]) + theta[owner, p]
        return ct.AgentData(X, np.where(rng.uniform(size=n * m) < expit(odds), 1.0, -1.0), agents=owner)

    return draw(m), draw(test)


def generated(seed):
    linear = ct.datasets.linear_classification(n=20, p=5, seed=seed, test_rows=50)
    moons = ct.datasets.clustered_moons(n=30, p=2, seed=seed, test_rows=50)
    related = ct.datasets.related_tasks(n=8, p=6, rows=50, seed=seed)
    return {
        "linear": (linear.train, linear.test),
        "moons": (moons.train, moons.test),
        "related": (related.train, related.test),
        "population": population(20, 20, seed),
    }


def log_loss(model, test):
    """Mean over agents."""
    ids = np.asarray(test.members)[test.owner]
    right = np.searchsorted(model.classes_, test.y)
    probability = model.predict_proba(test.X, agents=ids)[np.arange(test.n_rows), right]
    losses = np.bincount(test.owner, weights=-np.log(probability), minlength=test.n)
    return np.mean(losses / test.sizes)


ALONE = {"boosted classifier": "local", "related classifier": "single-task"}
FULL = {
    "boosted classifier": ct.BoostedClassifier,
    "related classifier": lambda **settings: ct.RelationshipClassifier(tol=1e-3, **settings),
}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["linear", "moons", "related", "population"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_together_probabilities_are_no_worse_than_alone(name, task):
    losses = []
    for seed in range(2):
        train, test = generated(seed)[task]
        models = FULL[name](), FULL[name](method=ALONE[name])
        losses.append([log_loss(model.fit(train.X, train.y, agents=train.owner), test) for model in models])
    together, alone = np.mean(losses, axis=0)
    assert together <= alone + 0.005
    assert together < np.log(2.0)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_probabilities_are_calibrated(name):
    """Of 3,600 rows in ten bins, a bin's share has a standard error of 0.026 at most: if all were right, the mean of
    ten absolute errors would be 0.02, and above 0.04 less than once in a thousand times.
    """
    train, test = population(40, 20, seed=6, test=90)
    model = FULL[name]().fit(train.X, train.y, agents=train.owner)
    probability = model.predict_proba(test.X, agents=test.owner)[:, 1]
    error = [
        probability[part].mean() - (test.y[part] > 0).mean() for part in np.array_split(np.argsort(probability), 10)
    ]
    assert np.abs(error).mean() < 0.06
    assert abs(np.mean(error)) < 0.04
    # As confident as it may be: the slope of the log-odds is about 1, if it could be chosen afterwards.
    odds, slopes = np.log(probability / (1.0 - probability)), np.linspace(0.3, 3.0, 55)
    best = slopes[np.argmin([np.logaddexp(0.0, -test.y * slope * odds).sum() for slope in slopes])]
    assert 0.7 < best < 1.4


@pytest.mark.skipif(not os.environ.get("COTERIE_DATA"), reason="needs the real datasets")
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_together_is_no_worse_than_alone_on_real_rows(name):
    task = ct.datasets.landmine(train_size=0.2).scaled()
    train, test = task.train, task.test
    together, alone = (
        log_loss(model.fit(train.X, train.y, agents=np.asarray(train.members)[train.owner]), test)
        for model in (FULL[name](), FULL[name](method=ALONE[name]))
    )
    assert together <= alone + 0.002
