"""Methods over a graph by way of the front door, and scikit-learn's contract; pooling is in test_collaborative.py."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import coterie as ct
from coterie.errors import DataError, GraphError, MismatchError, ParameterError
from coterie.problem.baselines import BASELINES

MODELS = {"classifier": ct.CollaborativeClassifier, "regressor": ct.CollaborativeRegressor}


@pytest.fixture(scope="module")
def task():
    return ct.datasets.linear_classification(n=12, p=3, seed=0, rows=(5, 30))


def arguments(task, kind):
    y = task.train.y if kind == "classifier" else task.train.X @ [1.0, -2.0, 0.5] + task.train.owner / 6
    return task.train.X, y, task.train.owner


def posed(task, kind, y=None, **weights):
    """The problem that an estimator solves, of features and numbers in standard units; and the way back."""
    X, labels, ids = arguments(task, kind)
    labels = labels if y is None else y
    mean, sd = X.mean(axis=0), X.std(axis=0)
    middle, unit = (0.0, 1.0) if kind == "classifier" else (labels.mean(), labels.std())
    data = ct.AgentData((X - mean) / sd, (labels - middle) / unit, agents=ids).append_column()
    weights = {"loss": "logistic" if kind == "classifier" else "squared"} | weights

    def back(theta):
        slopes = theta[:, :3] * unit / sd
        return np.column_stack([slopes, theta[:, 3] * unit + middle - slopes @ mean])

    return ct.Problem.personalized(data, task.graph, **weights), back


def models(model):
    return np.column_stack([model.coef_, model.intercept_])


@pytest.mark.parametrize("kind", MODELS)
def test_models_are_the_exact_optimum(task, kind):
    X, y, ids = arguments(task, kind)
    model = MODELS[kind]("cd", graph=task.graph, coupling=1 / 0.7, tol=1e-13).fit(X, y, agents=ids)
    problem, back = posed(task, kind, mu=0.7)
    np.testing.assert_allclose(models(model), back(problem.solve()), atol=1e-5)


@pytest.mark.slow
def test_classes_against_the_rest_are_separate_problems(task):
    X, ids = task.train.X, task.train.owner
    y = np.array(["low", "mid", "top"])[np.digitize(X[:, 0] + 0.3 * X[:, 1], [-0.4, 0.4])]
    model = ct.CollaborativeClassifier("cd", graph=task.graph, tol=1e-13, ridge=0.05).fit(X, y, agents=ids)
    for k, name in enumerate(model.classes_):
        problem, back = posed(task, "classifier", np.where(y == name, 1.0, -1.0), ridge=0.05)
        found = np.column_stack([model.coef_[:, k], model.intercept_[:, k]])
        np.testing.assert_allclose(found, back(problem.solve()), atol=1e-5)
    margins = model.decision_function(X, agents=ids)
    assert np.array_equal(model.predict(X, agents=ids), model.classes_[margins.argmax(axis=1)])
    np.testing.assert_allclose(model.predict_proba(X, agents=ids).sum(axis=1), 1.0)


def test_graphs_of_every_kind(task):
    X, y, ids = arguments(task, "classifier")
    names = np.array([f"agent {k:02d}" for k in range(12)])[ids]
    network = nx.relabel_nodes(task.graph.to_networkx(), {k: f"agent {k:02d}" for k in range(12)})
    reference = ct.CollaborativeClassifier("cd", graph=task.graph).fit(X, y, agents=names)
    for graph in (task.graph.W, task.graph.W.toarray(), network):
        assert ct.CollaborativeClassifier("cd", graph=graph).fit(X, y, agents=names).graph_ == reference.graph_


def test_the_run_tells_what_was_sent(task):
    X, y, ids = arguments(task, "classifier")
    model = ct.CollaborativeClassifier("cd", graph=ct.graphs.ring(12)).fit(X, y, agents=ids)
    assert model.run_.vectors == 24 + 2 * model.run_.wakes
    assert model.n_iter_ == model.run_.wakes // 12


def test_probabilities_only_where_there_are_any(task):
    X, y, ids = arguments(task, "classifier")
    model = ct.CollaborativeClassifier("cd", loss="smooth-hinge", graph=task.graph).fit(X, y, agents=ids)
    with pytest.raises(MismatchError, match="gives no probabilities"):
        model.predict_proba(X, agents=ids)
    assert model.score(X, y, agents=ids) > 0.8


def test_slow_convergence_is_said(task):
    X, y, ids = arguments(task, "regressor")
    with pytest.warns(ConvergenceWarning, match="raise max_iter") as caught:
        ct.CollaborativeRegressor("cd", graph=task.graph, max_iter=1, tol=1e-12).fit(X * 100, y, agents=ids)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"method": "sgd"}, ParameterError, "unknown method 'sgd': choose one of pooling, cd"),
        ({"loss": "zero-one"}, ParameterError, "unknown loss 'zero-one'"),
        ({"loss": "hinge", "graph": "knn"}, MismatchError, "Hinge.* has a kink"),
        ({"loss": "squared"}, MismatchError, "a classifier needs"),
        ({"graph": "friends"}, ParameterError, "graph='friends' must be"),
        ({"graph": ct.graphs.ring(5)}, GraphError, "5 agents and the data 12"),
        ({"graph": -np.ones((12, 12))}, GraphError, r"W\[0, 0\]|nonnegative"),
        ({"coupling": -1.0}, ParameterError, "coupling = -1.0: expected a positive"),
        ({"ridge": "m"}, ParameterError, "ridge='m'"),
        ({"graph": "knn", "n_neighbors": 0}, ParameterError, "n_neighbors = 0"),
        ({"max_iter": 0}, ParameterError, "max_iter = 0"),
        ({"lam": -1.0}, ParameterError, "lam = -1.0: expected"),
        ({"graph": ct.GraphRule(kappa=20)}, ParameterError, "kappa=20"),
        ({"members": range(11)}, DataError, "11"),
        ({"random_state": -1}, ParameterError, "random_state = -1"),
    ],
)
def test_bad_settings_are_refused_by_name(task, settings, error, message):
    X, y, ids = arguments(task, "classifier")
    with pytest.raises(error, match=message):
        ct.CollaborativeClassifier(**({"method": "cd"} | settings)).fit(X, y, agents=ids)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_convergence_does_not_depend_on_units(task, unit):
    X, y, ids = arguments(task, "regressor")
    model = ct.CollaborativeRegressor("cd", graph=task.graph).fit(X, unit * y, agents=ids)
    problem = model.run_.problem
    best = problem.value(problem.solve())
    assert model.run_.value - best <= 1e-6 * best


def test_features_of_very_different_sizes_do_not_hide_each_other(task):
    X, y, ids = arguments(task, "regressor")
    stamped = np.column_stack([X, 1.7e9 + 1e5 * np.random.default_rng(0).normal(size=len(X))])
    model = ct.CollaborativeRegressor("cd", graph=task.graph, ridge=0.0, max_iter=200).fit(stamped, y, agents=ids)
    assert model.score(stamped, y, agents=ids) > 0.9


@pytest.mark.slow
@pytest.mark.compiled
def test_a_loss_with_a_kink_is_learned_by_admm(task):
    X, y, owner = task.train.X, task.train.y, task.train.owner
    model = ct.CollaborativeClassifier("admm", graph=task.graph, loss="hinge", tol=1e-9).fit(X, y, agents=owner)
    problem, _ = posed(task, "classifier", loss="hinge")
    best = problem.value(problem.solve())
    assert (model.run_.value - best) / best < 1e-6


@pytest.mark.parametrize("baseline", ["local", "global", "component", "ridge-to-mean"])
def test_baselines_are_exact(task, baseline):
    X, y, owner = task.train.X, task.train.y, task.train.owner
    model = ct.CollaborativeClassifier(baseline, graph=task.graph).fit(X, y, agents=owner)
    problem, back = posed(task, "classifier")
    np.testing.assert_allclose(models(model), back(BASELINES[baseline].models(problem)), atol=1e-9)
    assert model.run_.vectors == 0


def test_pooling_alone_takes_weights(task):
    X, y, owner = task.train.X, task.train.y, task.train.owner
    with pytest.raises(MismatchError, match="'cd' takes no sample_weight"):
        ct.CollaborativeClassifier("cd", graph=task.graph).fit(X, y, agents=owner, sample_weight=np.ones(len(y)))
