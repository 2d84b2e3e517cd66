"""Baselines against scikit-learn, SciPy, closed forms and a dense matrix, all on data pooled by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import optimize
from sklearn.linear_model import LogisticRegression, Ridge

import coterie as ct
from coterie.errors import ParameterError
from coterie.problem.baselines import BASELINES, ComponentModels, GlobalModel, LocalModels, RidgeToMean
from references import Naive, as_data, hinge_bound, random_blocks

SIZES = (5, 1, 7, 0, 4, 3, 0, 6)
# Components whose agents are not side by side; agent 3 has neither edges nor rows.
EDGES = ct.Graph.from_edges(8, [0, 2, 4, 1], [2, 4, 6, 5], [1.0, 0.5, 2.0, 3.0])
COMPONENTS = ([0, 2, 4, 6], [1, 5], [3], [7])
LOSSES = [
    ct.Squared(),
    ct.Logistic(),
    ct.Hinge(),
    ct.SmoothHinge(0.7),
    ct.Huber(0.6),
    ct.Location(ct.Squared()),
    ct.Location(ct.Huber(0.5)),
]


def blocks_of(loss, seed=0, sizes=SIZES, p=3):
    return random_blocks(np.random.default_rng(seed), sizes, p, loss, noise=0.3)


def pool(blocks, agents=range(8)):
    return tuple(np.concatenate(parts) for parts in zip(*(blocks[i] for i in agents), strict=True))


def kinds(problem_name, blocks, loss, graph=EDGES, kind="dense", ridge=0.2, **options):
    return getattr(ct.Problem, problem_name)(as_data(blocks, loss, kind), graph, loss=loss, ridge=ridge, **options)


def naive_of(problem_name, blocks, loss, mu=1.0):
    """The f_i of a problem, and the weights that losses have without edges."""
    return Naive(problem_name, blocks, np.zeros((8, 8)), loss, mu, 0.2), trust_of(problem_name, SIZES, mu)


def trust_of(problem_name, sizes, mu=1.0):
    """t_i as the docstring has it."""
    sizes = np.asarray(sizes)
    return {
        "collaborative": np.full(len(sizes), mu),
        "personalized": mu * np.where(sizes > 0, sizes / sizes.max(), 1e-9),
        "separate": np.ones(len(sizes)),
    }[problem_name]


# ------------------------------------------------------------------------------------------------ local


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_local_models_are_ridge_regressions(kind):
    blocks = blocks_of(ct.Squared())
    models = LocalModels().models(kinds("separate", blocks, ct.Squared(), kind=kind))
    for (X, y), model in zip(blocks, models, strict=True):
        expected = Ridge(alpha=2 * 0.2 * len(y), fit_intercept=False).fit(X, y).coef_ if len(y) else np.zeros(3)
        np.testing.assert_allclose(model, expected, atol=1e-9)


# ----------------------------------------------------------------------------------------------- global


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("graph", [EDGES, ct.graphs.empty(8), ct.graphs.complete(8)], ids=["some", "none", "all"])
def test_global_squared_is_ridge_on_pooled_data(kind, graph):
    blocks = blocks_of(ct.Squared())
    X, y = pool(blocks)
    # mu sum_i (sum of losses + r |theta|^2): every agent brings its ridge, also one without rows
    problem = kinds("collaborative", blocks, ct.Squared(), graph, kind, mu=1.7)
    expected = Ridge(alpha=2 * 0.2 * 8, fit_intercept=False).fit(X, y).coef_
    np.testing.assert_allclose(GlobalModel().models(problem), np.tile(expected, (8, 1)), atol=1e-9)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_global_logistic_is_logistic_regression_on_pooled_data(kind):
    blocks = blocks_of(ct.Logistic())
    X, y = pool(blocks)
    # c_i (mean loss + |theta|^2 / m_i) is the sum of losses + |theta|^2, but for a factor, for every agent with rows
    problem = kinds("personalized", blocks, ct.Logistic(), kind=kind, ridge="1/m", mu=0.6)
    speakers = sum(m > 0 for m in SIZES)
    fit = LogisticRegression(C=1 / (2 * speakers), fit_intercept=False, tol=1e-10, solver="newton-cholesky").fit(X, y)
    np.testing.assert_allclose(GlobalModel().models(problem), np.tile(fit.coef_[0], (8, 1)), atol=1e-7)


def test_global_model_of_propagation_is_the_mean_weighted_by_confidence():
    rng = np.random.default_rng(3)
    models, c = rng.normal(size=(8, 2)), rng.uniform(0.1, 1.0, 8)
    c[2], models[2] = 0.0, np.nan  # no model, and nobody looks at it
    problem = ct.Problem.propagation(models, EDGES, alpha=0.7, confidence=c)
    expected = np.average(np.delete(models, 2, axis=0), axis=0, weights=np.delete(c, 2))
    np.testing.assert_allclose(GlobalModel().models(problem), np.tile(expected, (8, 1)), atol=1e-12)


# ------------------------------------------------------------------- every loss, globally and by component


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("problem_name", ["collaborative", "personalized", "separate"])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_pooled_models_minimise_their_sums(loss, problem_name, kind):
    blocks = blocks_of(loss, seed=5)
    problem, (naive, trust) = kinds(problem_name, blocks, loss, kind=kind), naive_of(problem_name, blocks, loss)
    both = ((GlobalModel(), [list(range(8))]), (ComponentModels(), COMPONENTS))
    for baseline, groups in both:
        models = baseline.models(problem)
        assert models.shape == (8, 3)
        for agents in groups:
            model = models[agents[0]]
            assert np.all(models[agents] == model)
            ours = sum(trust[i] * naive.f(i, model) for i in agents)
            assert ours <= pooled_minimum(naive, trust, agents) + 1e-7 * (1 + ours)


def pooled_minimum(naive, trust, agents):
    """Independent of coterie: the dual for the hinge, BFGS for the others."""
    if not naive.m[agents].any():
        return 0.0
    if isinstance(naive.loss, ct.Hinge):
        X, y = pool(naive.rows, agents)
        weights = np.repeat(trust[agents] * naive.each[agents], naive.m[agents])
        return hinge_bound(2 * 0.2 * trust[agents].sum() * np.eye(3), y[:, None] * X, weights)
    found = optimize.minimize(
        lambda t: sum(trust[i] * naive.f(i, t) for i in agents),
        np.zeros(3),
        jac=lambda t: sum(trust[i] * naive.f_gradient(i, t) for i in agents),
        options={"gtol": 1e-7},
    )
    return found.fun


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_without_edges_a_component_is_an_agent(loss):
    problem = kinds("personalized", blocks_of(loss), loss, ct.graphs.empty(8))
    assert np.array_equal(ComponentModels().models(problem), problem.local())


def test_an_agent_alone_keeps_its_local_model_whatever_its_confidence():
    blocks = blocks_of(ct.Squared())
    problem = kinds("personalized", blocks, ct.Squared(), confidence=np.zeros(8))
    models = ComponentModels().models(problem)
    np.testing.assert_array_equal(models[7], problem.local()[7])
    assert np.abs(models[7]).max() > 0.1
    assert not models[:7].any()  # where no loss counts, the smallest model does


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("name", BASELINES)
def test_no_data_at_all_gives_zeros(loss, name):
    data = ct.AgentData(
        np.empty((0, 2)), None if isinstance(loss, ct.Location) else [], agents=[], members=["a", "b", "c"]
    )
    problem = ct.Problem.collaborative(data, ct.Graph.from_edges(3, [0], [1]), loss=loss)
    assert np.array_equal(BASELINES[name].models(problem), np.zeros((3, 2)))


# ---------------------------------------------------------------------------------------- ridge to the mean


@pytest.mark.parametrize("strength", [0.03, 1.0, 40.0])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_ridge_to_mean_of_squares_is_a_dense_system(strength, kind):
    blocks = blocks_of(ct.Squared())
    models = RidgeToMean(strength).models(kinds("personalized", blocks, ct.Squared(), kind=kind, ridge=0.0, mu=2.0))
    loss_weight = trust_of("personalized", SIZES, 2.0)
    # |theta_i - mean|^2 summed is theta' (I - 11'/n) theta
    matrix = 2 * strength * np.kron(np.eye(8) - 1 / 8, np.eye(3))
    target = np.zeros(24)
    for i, (X, y) in enumerate(blocks):
        own = slice(3 * i, 3 * i + 3)
        matrix[own, own] += loss_weight[i] * X.T @ X / max(1, len(y))
        target[own] = loss_weight[i] * X.T @ y / max(1, len(y))
    np.testing.assert_allclose(models.ravel(), np.linalg.solve(matrix, target), atol=1e-8)
    for i in (3, 6):  # who has no data follows the mean
        np.testing.assert_allclose(models[i], models.mean(axis=0), atol=1e-8)


def test_ridge_to_mean_of_logistic_losses_against_scipy():
    blocks = blocks_of(ct.Logistic(), seed=2)
    models = RidgeToMean(0.3).models(kinds("collaborative", blocks, ct.Logistic(), mu=0.8))
    naive, trust = naive_of("collaborative", blocks, ct.Logistic(), 0.8)

    def value(flat):
        theta = flat.reshape(8, 3)
        away = theta - theta.mean(axis=0)
        total, gradient = 0.3 * (away**2).sum(), 2 * 0.3 * away
        for i in range(8):
            total += trust[i] * naive.f(i, theta[i])
            gradient[i] += trust[i] * naive.f_gradient(i, theta[i])
        return total, gradient.ravel()

    best = optimize.minimize(value, np.zeros(24), jac=True, method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(models.ravel(), best.x, atol=1e-7)
    assert np.abs(value(models.ravel())[1]).max() < 1e-9


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_ridge_to_mean_is_a_complete_graph(loss, kind):
    """n sum_i |theta_i - mean|^2 = sum_{i<j} |theta_i - theta_j|^2, with its n (n - 1) / 2 edges."""
    blocks = blocks_of(loss, seed=9)
    problem = kinds("personalized", blocks, loss, kind=kind)
    settings = {"loss_weight": trust_of("personalized", SIZES), "scaled": False, "mean": True, "ridge": 0.2}
    brute = ct.Problem(problem.data, ct.graphs.complete(8), loss, smooth=0.7 / 8, **settings)
    models = RidgeToMean(0.7).models(problem)
    assert brute.value(models) <= brute.value(brute.solve()) * (1 + 1e-9)
    np.testing.assert_allclose(models, brute.solve(), atol=1e-5)


@pytest.mark.parametrize("loss", [ct.Squared(), ct.Logistic(), ct.Huber(0.6)], ids=repr)
def test_ridge_to_mean_lies_between_local_and_global(loss):
    blocks = blocks_of(loss, sizes=(5, 6, 7, 8, 4, 5, 6, 7))
    problem = kinds("separate", blocks, loss)
    np.testing.assert_allclose(RidgeToMean(1e-9).models(problem), problem.local(), atol=1e-6)
    np.testing.assert_allclose(RidgeToMean(1e7).models(problem), GlobalModel().models(problem), atol=1e-6)


def test_ridge_to_mean_of_one_agent_is_its_local_model():
    loss = ct.Squared()
    problem = kinds("separate", blocks_of(loss, sizes=(6,)), loss, ct.graphs.empty(1))
    np.testing.assert_allclose(RidgeToMean(3.0).models(problem), problem.local(), atol=1e-10)


@pytest.mark.slow
def test_ridge_to_mean_of_many_agents():
    """A dense matrix of agents would have 10^8 entries, and n p is beyond what is factorised."""
    n, loss = 10_000, ct.Squared()
    blocks = blocks_of(loss, sizes=(3,) * n, p=2)
    problem = kinds("separate", blocks, loss, ct.graphs.empty(n))
    models = RidgeToMean(0.5).models(problem)
    X, y = (np.stack(parts) for parts in zip(*blocks, strict=True))
    residual = np.einsum("imk,ik->im", X, models) - y
    gradient = np.einsum("imk,im->ik", X, residual) / 3 + 2 * 0.2 * models + (models - models.mean(axis=0))
    assert np.abs(gradient).max() < 1e-8


# ------------------------------------------------------------------------------------------ all of them


@pytest.mark.parametrize("name", BASELINES)
def test_names_of_agents_do_not_matter(name):
    problem = kinds("personalized", blocks_of(ct.Logistic()), ct.Logistic(), confidence=np.linspace(0.2, 1.0, 8))
    order = np.random.default_rng(1).permutation(8)
    baseline = BASELINES[name]
    np.testing.assert_allclose(baseline.models(problem.relabel(order)), baseline.models(problem)[order], atol=1e-9)


@pytest.mark.parametrize("name", BASELINES)
def test_models_belong_to_the_caller(name):
    problem = kinds("personalized", blocks_of(ct.Squared()), ct.Squared())
    first = BASELINES[name].models(problem)
    first[:] = np.nan
    assert np.isfinite(BASELINES[name].models(problem)).all()
    assert np.isfinite(problem.local()).all()


def test_the_list_of_baselines():
    assert list(BASELINES) == ["local", "global", "component", "ridge-to-mean"]
    assert BASELINES["ridge-to-mean"] == RidgeToMean(1.0) == RidgeToMean(1)
    assert repr(RidgeToMean(2)) == "RidgeToMean(strength=2.0)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        RidgeToMean().strength = 2.0


@pytest.mark.parametrize("strength", [0.0, -1.0, math.nan, math.inf, "much", None])
def test_strength_must_be_a_positive_number(strength):
    with pytest.raises(ParameterError, match=r"strength = .*: expected a positive finite number"):
        RidgeToMean(strength)
