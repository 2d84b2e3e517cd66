"""Linear models on a graph that the agents learn: which one it is, what models are on it, and what it costs."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import coterie as ct
from coterie.estimators.over_graph import MAX_LEARNING_WAKES, PEERS_PER_WAKE
from coterie.graphs.exact import exact_edge_weights

MODELS = {"classifier": ct.CollaborativeClassifier, "regressor": ct.CollaborativeRegressor}
LOSSES = {"classifier": "logistic", "regressor": "squared"}


@pytest.fixture(scope="module")
def task():
    return ct.datasets.linear_classification(n=8, p=3, seed=0, rows=(5, 30))


def arguments(task, kind):
    y = task.train.y if kind == "classifier" else task.train.X @ [1.0, -2.0, 0.5] + task.train.owner / 6
    return task.train.X, y, task.train.owner


def fitted(task, kind="classifier", **settings):
    X, y, ids = arguments(task, kind)
    return MODELS[kind](**{"method": "cd"} | settings).fit(X, y, agents=ids)


def standard(values):
    return (values - values.mean(axis=0)) / values.std(axis=0)


def separate(task, kind="classifier", **settings):
    """The problem of agents without edges: of rows and numbers in standard units, models with an intercept."""
    X, y, ids = arguments(task, kind)
    data = ct.AgentData(standard(X), y if kind == "classifier" else standard(y), agents=ids).append_column()
    return ct.Problem.personalized(data, ct.graphs.empty(data.n), LOSSES[kind], **settings)


def same(graph, other):
    return abs(graph.W - other.W).max() < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("mu", [0.3, 3.0])
@pytest.mark.parametrize("lam", [0.2, 2.0])
def test_the_graph_is_the_best_one_for_models_trained_alone(task, kind, mu, lam):
    model, problem = fitted(task, kind, coupling=1 / mu, lam=lam), separate(task, kind, mu=mu)
    alone = problem.local()
    best = ct.exact_graph(alone, problem.losses(alone), problem.loss_weight, mu=1.0, lam=lam)
    assert best.n_edges > 0
    assert same(model.graph_, best)


def test_confidences_count_in_the_graph(task):
    model, problem = fitted(task, confidence=None), separate(task, confidence=None)
    alone = problem.local()
    assert same(model.graph_, ct.exact_graph(alone, problem.losses(alone)))
    assert not same(model.graph_, fitted(task).graph_)


@pytest.mark.slow
def test_three_classes_share_one_graph(task):
    X, ids = task.train.X, task.train.owner
    y = np.digitize(X[:, 0] + 0.3 * X[:, 1], [-0.4, 0.4])
    model = MODELS["classifier"]("cd", coupling=2.0).fit(X, y, agents=ids)
    models, losses = [], 0.0
    for k in range(3):
        data = ct.AgentData(standard(X), np.where(y == k, 1.0, -1.0), agents=ids).append_column()
        problem = ct.Problem.personalized(data, ct.graphs.empty(8), mu=0.5)
        models.append(problem.local())
        losses = losses + problem.losses(models[-1])
    assert same(model.graph_, ct.exact_graph(np.hstack(models), losses, problem.loss_weight))


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("tol", [1e-4, 1e-9])
def test_models_are_the_optimum_on_the_graph_that_was_learned(task, kind, tol):
    model = fitted(task, kind, coupling=1 / 0.7, tol=tol)
    problem = model.run_.problem
    assert problem.graph == model.graph_
    best = problem.value(problem.solve())
    assert abs(problem.value(model.run_.theta) - best) <= 1.01 * tol * best
    given = separate(task, kind, mu=0.7).on(graph=model.graph_)
    assert given.value(given.solve()) == pytest.approx(best)
    X, y, _ = arguments(task, kind)
    middle, unit = (0.0, 1.0) if kind == "classifier" else (y.mean(), y.std())
    margins = X @ model.coef_.T + model.intercept_
    np.testing.assert_allclose(
        margins, unit * (standard(X) @ model.run_.theta[:, :3].T + model.run_.theta[:, 3]) + middle
    )


def test_learning_is_what_happens_by_default(task):
    model = fitted(task)
    assert model.graph is None
    assert model.graph_ == fitted(task, graph="learn").graph_
    assert model.graph_ == fitted(task, graph=ct.GraphRule(lam=1.0, kappa=PEERS_PER_WAKE)).graph_


@pytest.mark.parametrize("lam", [0.1, 10.0])
def test_lam_says_what_a_rule_would(task, lam):
    assert fitted(task, lam=lam).graph_ == fitted(task, graph=ct.GraphRule(lam=lam)).graph_


@pytest.mark.slow
def test_a_rule_is_honoured(task):
    problem = separate(task)
    alone = problem.local()
    given = alone, problem.losses(alone), problem.loss_weight
    assert same(fitted(task, graph=ct.GraphRule(lam=0.3, kappa=2)).graph_, ct.exact_graph(*given, lam=0.3))
    assert same(fitted(task, graph=ct.GraphRule(delta=0.05)).graph_, ct.exact_graph(*given, delta=0.05))
    few = fitted(task, graph=ct.GraphRule(lam=10.0, max_edges=2)).graph_
    assert 0 < np.diff(few.start).max() <= 2
    # lam= is for "learn": a rule has its own.
    rule = ct.GraphRule(lam=0.3)
    assert fitted(task, graph=rule, lam=10.0).graph_ == fitted(task, graph=rule).graph_


@pytest.mark.compiled
@pytest.mark.parametrize("method", ["cd", "admm", "djam"])
def test_every_method_learns_on_the_same_graph(task, method):
    model, reference = fitted(task, method=method, tol=1e-10), fitted(task, tol=1e-10)
    assert model.graph_ == reference.graph_
    np.testing.assert_allclose(model.coef_, reference.coef_, atol=1e-4)


def test_propagation_smooths_models_that_fit_perfectly(task):
    """To it a model trained alone is all there is to fit, so that no agent has a loss to begin with."""
    model = fitted(task, method="propagation", coupling=4.0, tol=1e-10)
    problem = separate(task)
    alone = problem.local()
    assert same(model.graph_, ct.exact_graph(alone, np.zeros(8)))
    c = task.train.sizes / task.train.sizes.max()
    best = ct.Problem.propagation(alone, model.graph_, alpha=0.8, confidence=c).solve()
    np.testing.assert_allclose(model.run_.theta, best, atol=1e-4)


@pytest.mark.parametrize("baseline", ["local", "global", "ridge-to-mean"])
def test_baselines_without_a_graph_send_nothing(task, baseline):
    model = fitted(task, method=baseline)
    assert model.graph_ == ct.graphs.empty(8)
    assert model.run_.before is None
    assert (model.run_.messages, model.run_.vectors, model.run_.bytes, model.run_.bits()) == (0, 0, 0, 0.0)


def test_a_model_for_each_component_of_the_graph_that_was_learned(task):
    model = fitted(task, method="component", lam=0.01)
    assert model.graph_ == fitted(task, lam=0.01).graph_
    assert len(np.unique(model.coef_.round(9), axis=0)) == model.graph_.n_components > 1


#: A limit to the number of edges is kept by agents that learn on their own.
LIMITED = ct.GraphRule(max_edges=3)


def test_the_best_graph_is_found_in_one_place_and_nothing_is_sent_for_it(task):
    run = fitted(task).run_
    assert run.before is None
    start = separate(task).local()
    alone = ct.simulate(run.problem, "cd", run.wakes, seed=0, start=start)
    np.testing.assert_allclose(alone.theta, run.theta, atol=1e-9)
    assert alone.messages == run.messages


def test_weights_of_the_two_terms_of_a_rule_differ(task):
    """mu_2 = 3 of the rule and mu_1 = 1 of the problem: distances count with one and the regulariser with the other."""
    problem = separate(task)
    alone = problem.local()
    own = problem.loss_weight * problem.losses(alone)
    z = own[:, None] + own + 0.5 * np.square(alone[:, None] - alone).sum(axis=2)
    best = exact_edge_weights(z, 3.0, 1.0, 0.01)
    assert same(fitted(task, graph=ct.GraphRule(mu=3.0)).graph_, ct.graphs.Graph(best))


@pytest.mark.parametrize("kind", MODELS)
def test_one_agent_has_nobody_to_learn_from(task, kind):
    X, y, _ = arguments(task, kind)
    model = MODELS[kind]("cd").fit(X, y)
    assert model.graph_ == ct.graphs.empty(1)
    assert model.run_.before is None
    np.testing.assert_array_equal(model.coef_, MODELS[kind]("local").fit(X, y).coef_)
    assert model.predict(X).shape == y.shape


@pytest.mark.parametrize("kind", MODELS)
def test_two_agents_find_each_other(task, kind):
    X, y, ids = arguments(task, kind)
    model = MODELS[kind]("cd").fit(X, y, agents=ids % 2)
    assert model.graph_.n_edges == 1


def test_an_agent_without_rows_finds_peers(task):
    X, y, ids = arguments(task, "regressor")
    keep = ids != 3
    model = MODELS["regressor"]("cd", members=range(8), tol=1e-12).fit(X[keep], y[keep], agents=ids[keep])
    assert model.graph_.degrees[3] > 0
    theta = model.run_.theta
    np.testing.assert_allclose(theta[3], (model.graph_.W @ theta)[3] / model.graph_.degrees[3], atol=1e-5)


@pytest.mark.parametrize("most", [4, 30])
def test_all_wakes_count_against_the_most(most):
    """Those in which the graph is learned, too; it takes half of them, if that is not too much."""
    rng = np.random.default_rng(0)
    X, ids = rng.normal(size=(60, 3)), np.arange(60) % 6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        run = (
            MODELS["regressor"]("cd", graph=LIMITED, max_iter=most, tol=1e-30)
            .fit(X, X @ [1.0, 2.0, 3.0], agents=ids)
            .run_
        )
    assert run.before.wakes == 6 * min(MAX_LEARNING_WAKES, most // 2)
    assert run.wakes == 6 * most
