"""Estimators that boost: scikit-learn's contract, the objective of DADA, and the graph that is learned with it."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import coterie as ct
from coterie.errors import DataError, MismatchError, ParameterError
from coterie.estimators.over_graph import MAX_LEARNING_WAKES

pytestmark = pytest.mark.compiled

MODELS = {"classifier": ct.BoostedClassifier, "regressor": ct.BoostedRegressor}


@pytest.fixture(scope="module")
def task():
    return ct.datasets.clustered_moons(n=12, p=2, seed=0, rows=(5, 20), test_rows=30)


@pytest.fixture(scope="module")
def moons():
    return ct.datasets.clustered_moons(n=40, p=2, seed=0)


def arguments(task, kind):
    X, owner = task.train.X, task.train.owner
    y = task.train.y if kind == "classifier" else np.where(X[:, 0] > 0.2, 3.0, 5.0) + owner / 6
    return X, y, owner


def three_classes(X):
    return np.array(["low", "mid", "top"])[np.digitize(X[:, 0] + 0.3 * X[:, 1], [-0.4, 0.4])]


def fitted(task, kind="classifier", **settings):
    X, y, ids = arguments(task, kind)
    return MODELS[kind](**{"base": 16, "graph": task.graph} | settings).fit(X, y, agents=ids)


def weights(model):
    """The models as they were learned, in the order of ``agents_``: the run has an order of its own."""
    place = [model.run_.problem.members.index(agent) for agent in model.agents_]
    return model.run_.theta[place]


def said(model, X):
    """What the base predictors say."""
    return model.base_.transform(X)


# -- the objective ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tol", [0.1, 0.01])
@pytest.mark.parametrize("confidence", ["size", None])
def test_a_classifier_is_as_near_the_optimum_as_tol_says(task, tol, confidence):
    model = fitted(task, coupling=0.7, beta=2.0, tol=tol, confidence=confidence)
    settings = {"base": model.base_, "mu": 0.7, "beta": 2.0, "confidence": confidence}
    problem, alpha = ct.Problem.boosting(task.train, task.graph, **settings), weights(model)
    allowed = tol * problem.importance.sum()
    assert -1e-9 <= problem.value(alpha) - problem.value(problem.solve()) <= problem.gap(alpha) <= allowed
    assert problem.value(alpha) == pytest.approx(model.run_.value)
    assert np.abs(alpha).sum(axis=1).max() <= 2.0 + 1e-9
    slope = model.coef_[alpha != 0.0] / alpha[alpha != 0.0]
    np.testing.assert_allclose(slope, slope[0])  # one for all


@pytest.mark.parametrize("tol", [0.1, 0.01])
def test_a_regressor_is_as_near_the_optimum_as_tol_says(task, tol):
    model = fitted(task, "regressor", coupling=0.7, tol=tol)
    problem, theta = model.run_.problem, model.run_.theta
    unit = model.coef_[weights(model) != 0.0] / weights(model)[weights(model) != 0.0]
    np.testing.assert_allclose(unit, unit[0])
    allowed = tol * problem.importance.sum()
    assert -1e-9 <= problem.value(theta) - problem.value(problem.solve()) <= problem.gap(theta) <= allowed


def test_agents_without_edges_learn_alone_as_near_as_tol_says(task):
    model = fitted(task, graph=ct.graphs.empty(12), tol=0.01)
    problem, theta = model.run_.problem, model.run_.theta
    assert problem.gap(theta) <= 0.01 * 12
    # Their sum is what the gap bounds; each is near its own optimum.
    assert (problem.losses(theta) - problem.losses(problem.local())).max() <= 0.01 * 12


@pytest.mark.slow
def test_classes_against_the_rest_are_separate_problems(task):
    X, ids = task.train.X, task.train.owner
    y = three_classes(X)
    model = ct.BoostedClassifier(base=16, graph=task.graph, coupling=0.7, tol=0.01).fit(X, y, agents=ids)
    assert model.coef_.shape == (12, 3, 16)
    assert model.intercept_.shape == (12, 3)
    worth, best, alpha = 0.0, 0.0, weights(model).reshape(12, 3, 16)
    for k, name in enumerate(model.classes_):
        data = ct.AgentData(X, np.where(y == name, 1.0, -1.0), agents=ids)
        problem = ct.Problem.boosting(data, task.graph, base=model.base_, mu=0.7, beta=3.0)
        worth, best = worth + problem.value(alpha[:, k]), best + problem.value(problem.solve())
        assert np.abs(alpha[:, k]).sum(axis=1).max() <= 3.0 + 1e-9
    assert worth == pytest.approx(model.run_.value)
    assert -1e-9 <= worth - best <= 0.01 * problem.importance.sum()


@pytest.mark.slow
def test_predictions_of_three_classes_agree(task):
    X, ids = task.train.X, task.train.owner
    y = three_classes(X)
    model = ct.BoostedClassifier(base=16).fit(X, y, agents=ids)
    margins, shares = model.decision_function(X, agents=ids), model.predict_proba(X, agents=ids)
    votes = np.einsum("rj,rkj->rk", said(model, X), model.coef_[ids])
    np.testing.assert_allclose(margins, votes + model.intercept_[ids], atol=1e-12)
    assert np.array_equal(model.predict(X, agents=ids), model.classes_[margins.argmax(axis=1)])
    assert np.array_equal(margins.argmax(axis=1), shares.argmax(axis=1))
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert model.score(X, y, agents=ids) == np.mean(model.predict(X, agents=ids) == y) > 0.8


def test_predictions_of_two_classes_agree(task):
    X, y, ids = arguments(task, "classifier")
    model = fitted(task)
    margins, shares = model.decision_function(X, agents=ids), model.predict_proba(X, agents=ids)
    votes = (said(model, X) * model.coef_[ids]).sum(axis=1)
    np.testing.assert_allclose(margins, votes + model.intercept_[ids], atol=1e-12)
    np.testing.assert_allclose(np.log(shares[:, 1] / shares[:, 0]), margins, atol=1e-9)
    assert np.array_equal(model.predict(X, agents=ids), np.where(margins > 0, 1.0, -1.0))
    assert model.score(X, y, agents=ids) > 0.8


@pytest.mark.slow
def test_regression_recovers_the_step_of_each_agent():
    rng = np.random.default_rng(0)
    X, ids = rng.uniform(size=(400, 1)), np.repeat(np.arange(10), 40)
    y = np.where(X[:, 0] > np.where(ids < 5, 0.25, 0.75), 2.0, -1.0)
    stumps = ct.Stumps(10, low=0.0, high=1.0)
    model = ct.BoostedRegressor(base=stumps, lam=0.1, tol=0.01).fit(X, y, agents=ids)
    i, j, _ = model.graph_.edges()
    assert np.array_equal(i < 5, j < 5)  # all edges are between agents with the same step
    x = np.array([[0.1], [0.2], [0.3], [0.7], [0.8], [0.9]])
    for agent in range(10):
        expected = np.where(x[:, 0] > (0.25 if agent < 5 else 0.75), 2.0, -1.0)
        np.testing.assert_allclose(model.predict(x, agents=[agent] * 6), expected, atol=0.25)
    assert model.score(X, y, agents=ids) > 0.99


def test_targets_that_never_change_are_predicted_as_they_are(task):
    X, ids = task.train.X, task.train.owner
    model = ct.BoostedRegressor(base=8).fit(X, np.full(len(X), 1e-6), agents=ids)
    np.testing.assert_allclose(model.predict(X, agents=ids), 1e-6, rtol=1e-6)


# -- agents -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_an_agent_without_rows_learns_from_its_neighbours(task, kind):
    X, y, ids = arguments(task, kind)
    keep = ids != 3
    model = MODELS[kind](base=16, graph=task.graph, members=range(12), tol=0.01)
    model.fit(X[keep], y[keep], agents=ids[keep])
    problem = model.run_.problem
    assert model.agents_ == tuple(range(12))
    assert problem.data.sizes[problem.members.index(3)] == 0
    assert problem.gap(model.run_.theta) <= 0.01 * problem.importance.sum()
    mean = (task.graph.W @ model.coef_)[3] / task.graph.degrees[3]
    assert np.abs(model.coef_[3]).sum() > 0
    assert np.abs(model.coef_[3] - mean).sum() < 0.2 * np.abs(mean).sum()


# -- base predictors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_trees_of_scikit_learn(task, kind):
    X, y, ids = arguments(task, kind)
    tree = DecisionTreeClassifier if kind == "classifier" else DecisionTreeRegressor
    trees = [tree(max_depth=2).fit(X[ids == agent], y[ids == agent]) for agent in range(4)]
    model = fitted(task, kind, base=trees)
    assert model.coef_.shape == (12, 4)
    columns = np.column_stack([tree.predict(X) for tree in trees])
    expected = (columns * model.coef_[ids]).sum(axis=1) + model.intercept_[ids]
    predict = model.decision_function if kind == "classifier" else model.predict
    np.testing.assert_allclose(predict(X, agents=ids), expected)


def test_trees_survive_cloning(task):
    """Tuning and the searches of scikit-learn clone an estimator for each fit."""
    X, y, ids = arguments(task, "classifier")
    trees = [DecisionTreeClassifier(max_depth=depth).fit(X, y) for depth in (1, 2, 3)]
    model = clone(ct.BoostedClassifier(base=trees, graph=task.graph))
    np.testing.assert_array_equal(model.fit(X, y, agents=ids).coef_, fitted(task, base=trees).coef_)
    with sklearn.config_context(enable_metadata_routing=True):
        asks = clone(model.set_fit_request(agents=True))
        assert asks.get_metadata_routing().fit.requests["agents"] is True


def test_a_predictor_that_gives_no_number_is_named_with_the_agent(task):
    X, y, ids = arguments(task, "classifier")
    names = np.array([f"agent {k}" for k in ids])
    order = np.random.default_rng(0).permutation(len(X))
    X, y, names = X[order], y[order], names[order]
    odd = X[17, 1]
    model = ct.BoostedClassifier(base=lambda X: np.where(odd == X, np.nan, np.sign(X)), graph=task.graph)
    place = rf"row 17 \(agent '{names[17]}'\): base predictor 1 says nan"
    with pytest.raises(DataError, match=place):
        model.fit(X, y, agents=names)
    model.fit(np.where(odd == X, 0.0, X), y, agents=names)
    with pytest.raises(DataError, match=place):
        model.predict(X, agents=names)


# -- methods and graphs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("baseline", ["local", "global", "component"])
def test_baselines_are_exact(task, kind, baseline):
    model = fitted(task, kind, method=baseline)
    expected = {
        "local": ct.baselines.LocalModels(),
        "global": ct.baselines.GlobalModel(),
        "component": ct.baselines.ComponentModels(),
    }[baseline]
    np.testing.assert_array_equal(model.run_.theta, expected.models(model.run_.problem))
    assert (model.run_.vectors, model.run_.bytes) == (0, 0)
    if kind == "classifier":
        problem = ct.Problem.boosting(task.train, task.graph, base=model.base_, beta=3.0)
        found, best = (problem.value(theta) for theta in (weights(model), expected.models(problem)))
        assert found == pytest.approx(best, rel=1e-6)


def test_components_are_those_of_a_graph_learned_from_models_that_learn(moons):
    """And not from models that are all zero, with which any two agents look alike."""
    train = moons.train
    one, other = (
        ct.BoostedClassifier(base=40, method=method, lam=0.1).fit(train.X, train.y, agents=train.owner)
        for method in ("boosting", "component")
    )
    for model in (one, other):
        assert within(moons, model.graph_) > 2 * by_chance(moons)


def test_other_methods_are_refused(task):
    for method in ("cd", "admm", "propagation", "djam"):
        with pytest.raises(ParameterError, match=f"method='{method}' does not boost"):
            fitted(task, method=method)
    with pytest.raises(MismatchError, match="RidgeToMean is not for boosting"):
        fitted(task, method="ridge-to-mean")


def within(task, graph):
    """What part of the weight of a graph is inside clusters."""
    i, j, weight = graph.edges()
    return weight[task.cluster[i] == task.cluster[j]].sum() / weight.sum()


def by_chance(task):
    i, j = np.triu_indices(len(task.cluster), 1)
    return np.mean(task.cluster[i] == task.cluster[j])


def accuracy(task, **settings):
    model = ct.BoostedClassifier(base=40, **settings).fit(task.train.X, task.train.y, agents=task.train.owner)
    return model.score(task.test.X, task.test.y, agents=task.test.owner)


@pytest.mark.slow
def test_those_who_know_their_peers_beat_those_who_learn_alone(moons):
    alone, found, known = accuracy(moons, method="local"), accuracy(moons), accuracy(moons, graph=moons.graph)
    assert alone + 0.02 < found < known
    assert accuracy(moons, method="global") + 0.02 < found


def test_agents_find_peers_of_their_own_cluster(moons):
    X, y, ids = moons.train.X, moons.train.y, moons.train.owner
    few, many = (ct.BoostedClassifier(base=40, lam=lam).fit(X, y, agents=ids) for lam in (0.1, 1.0))
    assert within(moons, many.graph_) > 2 * by_chance(moons)
    assert within(moons, few.graph_) > 2 * by_chance(moons)
    assert 0 < few.graph_.n_edges < many.graph_.n_edges
    assert not many.graph_.isolated.any()


def test_a_rule_says_how_the_graph_is_learned(task):
    rule = ct.GraphRule(lam=10.0, kappa=4, max_edges=2)
    model = fitted(task, graph=rule)
    assert model.run_.before.method.rule == rule
    assert 0 < np.diff(model.graph_.start).max() <= 2
    np.testing.assert_array_equal(
        fitted(task, graph="learn", lam=0.3).coef_, fitted(task, graph=ct.GraphRule(lam=0.3)).coef_
    )


@pytest.mark.parametrize("kind", MODELS)
def test_the_account_has_both_stages(task, kind):
    run = fitted(task, kind, graph="learn").run_
    before = run.before
    assert isinstance(before.method, ct.Learned)
    assert before.wakes == MAX_LEARNING_WAKES * 12
    assert before.graph == run.graph
    second = ct.simulate(run.problem, run.method, run.wakes - before.wakes, seed=0, start=before.theta)
    np.testing.assert_array_equal(second.theta, run.theta)
    for unit in ("messages", "vectors", "bytes"):
        assert getattr(run, unit) == getattr(before, unit) + getattr(second, unit) > getattr(before, unit) > 0
    assert run.bits(32) == pytest.approx(before.bits(32) + second.bits(32))
    assert 0 < before.bits(32) < run.bits(32) < run.bits(64)
    assert run.trace["bytes"].is_monotonic_increasing
    assert run.trace["bytes"].iloc[-1] == run.bytes
    assert run.trace["wakes"].iloc[-1] == run.wakes
    assert run.trace["gap"].iloc[-1] == pytest.approx(run.problem.gap(run.theta))


def test_a_given_graph_has_one_stage(task):
    model = fitted(task)
    assert model.run_.before is None
    assert model.run_.bytes > 0
    assert model.graph_ == task.graph
    assert model.n_iter_ == model.run_.wakes // 12


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"base": []}, ParameterError, "the list of estimators is empty"),
        ({"base": 0}, ParameterError, "count = 0: expected an integer >= 1"),
        ({"base": "stumps"}, ParameterError, "base='stumps' is str: expected Stumps, a whole number"),
        ({"base": [DecisionTreeClassifier()]}, ParameterError, "DecisionTreeClassifier.* is not fitted"),
        ({"base": ct.Stumps(4, low=[0.0] * 3, high=1.0)}, ParameterError, "low has 3 values for 2 features"),
        ({"beta": 0}, ParameterError, "beta = 0: expected a positive"),
        ({"graph": "learn", "lam": -1}, ParameterError, "lam = -1: expected a positive"),
        ({"members": range(11)}, DataError, "agent 11"),
        ({"confidence": [1.0]}, ParameterError, "confidence must hold one number for each of the 12"),
        ({"tol": -1.0}, ParameterError, "tol = -1.0"),
        ({"method": "sgd"}, ParameterError, "unknown method 'sgd'"),
    ],
)
def test_bad_settings_are_refused_by_name(task, kind, settings, error, message):
    with pytest.raises(error, match=message):
        fitted(task, kind, **settings)


def test_slow_convergence_is_said(task):
    with pytest.warns(ConvergenceWarning, match="raise max_iter") as caught:
        fitted(task, max_iter=1, tol=1e-6)
    assert [warning.filename for warning in caught] == [__file__]
