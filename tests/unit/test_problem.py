"""Problem: objective, gradient, exact minimiser and constants, against formulas written out again.

Nothing is shared with the implementation: the objective is a loop over agents, linear systems are assembled by hand,
smooth minimisers come from SciPy and dense Newton steps, and a dual certifies the hinge (tests/references.py).
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg, sparse
from scipy.sparse import linalg as sparse_linalg

import coterie as ct
from coterie.errors import CoterieError, DataError, GraphError, MismatchError, ParameterError
from references import Naive, as_data, hinge_bound, random_blocks, random_weights

LOSSES = {
    "squared": ct.Squared(),
    "logistic": ct.Logistic(),
    "hinge": ct.Hinge(),
    "smooth hinge": ct.SmoothHinge(0.7),
    "huber": ct.Huber(0.6),
    "location": ct.Location(ct.Squared()),
    "location huber": ct.Location(ct.Huber(0.5)),
}
SMOOTH = [name for name in LOSSES if name != "hinge"]
OBJECTIVES = ["collaborative", "personalized", "separate"]


def squared_solution(naive):
    """The (n p) x (n p) normal equations of the squared loss, solved densely, least norm if singular."""
    H, b = naive.quadratic(), np.zeros(naive.n * naive.p)
    for i in range(naive.n):
        here, (X, y) = slice(i * naive.p, (i + 1) * naive.p), naive.rows[i]
        H[here, here] += naive.a[i] * naive.each[i] * X.T @ X
        b[here] += naive.a[i] * naive.each[i] * X.T @ y
    return np.linalg.lstsq(H, b, rcond=1e-13)[0].reshape(naive.n, naive.p)


def hinge_bound_of(naive):
    A = linalg.block_diag(*[y[:, None] * X for X, y in naive.rows])
    return hinge_bound(naive.quadratic(), A, np.repeat(naive.a * naive.each, naive.m))


# ---------------------------------------------------------------- making problems


def build(objective, blocks, W, loss, kind="dense", mu=1.0, ridge=0.0, confidence=None):
    """The same objective twice: coterie's and the naive one. ``confidence`` as numbers."""
    data, graph = as_data(blocks, loss, kind), ct.Graph(W)
    options = {"mu": mu} if objective != "separate" else {}
    if objective == "personalized":
        options["confidence"] = confidence
    problem = getattr(ct.Problem, objective)(data, graph, loss=loss, ridge=ridge, **options)
    return problem, Naive(objective, blocks, W, loss, mu, ridge, confidence)


def make(objective, loss_name, kind="dense", seed=0, sizes=(4, 7, 1, 9, 3, 6), p=3, ridge=0.05, mu=0.8):
    rng = np.random.default_rng([seed, *loss_name.encode()])
    loss = LOSSES[loss_name]
    blocks = random_blocks(rng, sizes, p, loss)
    confidence = rng.uniform(0.2, 1.0, len(sizes)) if objective == "personalized" else None
    return build(objective, blocks, random_weights(rng, len(sizes)), loss, kind, mu, ridge, confidence)


def make_propagation(seed=0, n=7, p=3, alpha=0.8, weights=None):
    rng = np.random.default_rng(seed)
    models, c = rng.normal(size=(n, p)), rng.uniform(0.05, 1.0, n)
    W = random_weights(rng, n) if weights is None else weights(rng)
    naive = Naive("personalized", [(x[None], None) for x in models], W, LOSSES["location"], (1 - alpha) / alpha, 0.0, c)
    return ct.Problem.propagation(models, ct.Graph(W), alpha=alpha, confidence=c), naive, models, c


def assert_optimal(problem, naive, theta, reference):
    """Objective within 1e-10, relative, of a reference; models within 1e-6 where they are determined."""
    best = naive.value(reference)
    assert naive.value(theta) - best <= 1e-10 * abs(best)
    size = max(1.0, np.abs(reference).max())
    assert np.abs(theta - reference)[problem.determined].max() <= 1e-6 * size


everywhere = pytest.mark.parametrize(
    ("objective", "loss_name", "kind"),
    [(o, name, k) for o in OBJECTIVES for name in LOSSES for k in ("dense", "sparse")],
)


# ---------------------------------------------------------------- value and gradient


@everywhere
def test_value_and_gradient_are_the_formulas(objective, loss_name, kind):
    problem, naive = make(objective, loss_name, kind)
    rng = np.random.default_rng(1)
    for size in (0.0, 0.3, 3.0):
        theta = size * rng.normal(size=(naive.n, naive.p))
        assert problem.value(theta) == pytest.approx(naive.value(theta), rel=1e-12)
        gradient = naive.gradient(theta)
        np.testing.assert_allclose(problem.gradient(theta), gradient, rtol=0, atol=1e-12 * np.abs(gradient).max())
    h = 1e-6
    for i in range(problem.n):  # and the formulas are right: by central differences
        for k in range(problem.p):
            step = np.zeros_like(theta)
            step[i, k] = h
            slope = (problem.value(theta + step) - problem.value(theta - step)) / (2 * h)
            assert slope == pytest.approx(gradient[i, k], abs=1e-7 * np.abs(gradient).max())


def test_a_subgradient_at_the_kink_of_the_hinge():
    """At margin 1 any slope in [-1, 0] supports the hinge."""
    data = ct.AgentData([[2.0], [2.0]], [1.0, -1.0], agents=[0, 1])
    problem = ct.Problem.separate(data, ct.graphs.empty(2), loss="hinge")
    slope = problem.gradient([[0.5], [-0.5]]).ravel()
    assert -2 <= slope[0] <= 0 <= slope[1] <= 2


def test_logistic_value_does_not_overflow():
    data = ct.AgentData([[1.0], [1.0]], [1.0, -1.0], agents=[0, 1])
    problem = ct.Problem.separate(data, ct.graphs.empty(2), loss="logistic")
    assert problem.value([[-5e3], [-5e3]]) == pytest.approx(5e3, rel=1e-14)
    np.testing.assert_allclose(problem.gradient([[-5e3], [-5e3]]).ravel(), [-1.0, 0.0], atol=1e-300)


# ---------------------------------------------------------------- the exact minimiser


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("loss_name", SMOOTH)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_solve_smooth_against_scipy(objective, loss_name, kind):
    problem, naive = make(objective, loss_name, kind, seed=4)
    theta = problem.solve()
    assert problem.determined.all()
    assert np.abs(naive.gradient(theta)).max() <= 1e-9 * naive.scale()
    assert_optimal(problem, naive, theta, naive.minimise())


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    loss_name=st.sampled_from(SMOOTH),
    objective=st.sampled_from(OBJECTIVES),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    p=st.integers(1, 4),
    ridge=st.sampled_from([1e-4, 1e-2, 1.0]),
    mu=st.sampled_from([0.01, 1.0, 30.0]),
)
def test_solve_has_no_gradient_left(seed, loss_name, objective, sizes, p, ridge, mu):
    """With a ridge the Newton decrement g' H^-1 g / 2 of the naive formulas estimates what is left to gain."""
    problem, naive = make(objective, loss_name, "dense", seed, sizes, p, ridge, mu)
    theta = problem.solve()
    if naive.n == 1 and objective != "separate":  # no edges: Q is zero, the local model is kept
        assert np.abs(naive.f_gradient(0, theta[0])).max() <= 1e-8 * np.abs(naive.f_gradient(0, 0 * theta[0])).max()
        return
    gradient = naive.gradient(theta).ravel()
    gain = 0.5 * float(gradient @ linalg.solve(naive.hessian(theta), gradient, assume_a="pos"))
    assert gain <= 1e-11 * naive.value(theta)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.99])
def test_propagation_in_closed_form(alpha):
    """MP (4): Theta* = abar (I - abar (I - C) - alpha P)^-1 C Theta_sol."""
    problem, naive, models, c = make_propagation(6, alpha=alpha)
    theta = np.random.default_rng(3).normal(size=(7, 3))
    assert problem.value(theta) == pytest.approx(naive.value(theta), rel=1e-12)
    np.testing.assert_allclose(problem.gradient(theta), naive.gradient(theta), rtol=0, atol=1e-12)
    P, C, eye = naive.W / naive.D[:, None], np.diag(c), np.eye(7)
    expected = (1 - alpha) * np.linalg.solve(eye - (1 - alpha) * (eye - C) - alpha * P, C @ models)
    assert problem.determined.all()
    np.testing.assert_allclose(problem.solve(), expected, rtol=0, atol=1e-10)


def test_propagation_ignores_models_without_confidence():
    """c_i = 0: the agent gets the mean of its neighbours, whatever its row holds."""
    W = np.array([[0, 1.0, 0], [1.0, 0, 3.0], [0, 3.0, 0]])
    for row in (0.0, 1e6, np.nan):
        problem = ct.Problem.propagation([[1.0], [row], [5.0]], ct.Graph(W), 0.5, confidence=[1.0, 0.0, 1.0])
        theta = problem.solve().ravel()
        assert theta[1] == pytest.approx((theta[0] + 3 * theta[2]) / 4, rel=1e-12)
        # agents 0 and 2: D (theta - sol) + W (theta - theta_1) = 0, so both stop halfway to agent 1
        assert theta[0] == pytest.approx((1 + theta[1]) / 2, rel=1e-12)
        assert theta[2] == pytest.approx((5 + theta[1]) / 2, rel=1e-12)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("ridge", [1e-3, 0.05, 1.0])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_solve_hinge_against_its_dual(objective, ridge, kind):
    problem, naive = make(objective, "hinge", kind, seed=7, sizes=(4, 7, 1, 9, 0, 6), ridge=ridge)
    value, bound = naive.value(problem.solve()), hinge_bound_of(naive)
    assert bound > 0
    assert value - bound <= 1e-8 * bound


def test_solve_hinge_without_ridge():
    """One feature and edges of weight 1e6: the models agree to about 1e-6, and the sum of the hinges of equal models is
    least at one of its kinks, so the objective is at most that of the best kink, and not below it by more than 1e-5.
    """
    rng = np.random.default_rng(8)
    X, y = rng.uniform(0.2, 2.0, (12, 1)), np.where(rng.random(12) < 0.7, 1.0, -1.0)
    blocks = [(X[:6], y[:6]), (X[6:], y[6:])]
    W = np.array([[0, 1e6], [1e6, 0]])
    problem, naive = build("separate", blocks, W, ct.Hinge())
    together = min(naive.value(np.full((2, 1), kink)) for kink in (y / X.ravel()))
    value = naive.value(problem.solve())
    assert value <= together
    assert value >= together * (1 - 1e-5)


def test_solve_returns_a_copy():
    problem, _, _, _ = make_propagation(9)
    first = problem.solve()
    first[:] = np.nan
    assert np.isfinite(problem.solve()).all()
    models = problem.local()
    models[:] = np.nan
    assert np.isfinite(problem.local()).all()


@pytest.mark.parametrize("loss_name", ["squared", "logistic", "hinge"])
def test_relabelling_changes_nothing(loss_name):
    problem, _ = make("personalized", loss_name, seed=10)
    order = np.random.default_rng(0).permutation(problem.n)
    other = problem.relabel(order)
    theta = problem.solve()
    assert other.value(theta[order]) == pytest.approx(problem.value(theta), rel=1e-13)
    np.testing.assert_allclose(other.solve(), theta[order], rtol=0, atol=1e-6)


# ---------------------------------------------------------------- how the objectives relate


@pytest.mark.parametrize("loss_name", LOSSES)
def test_collaborative_is_personalized_without_ridge(loss_name):
    """Q_CL = 2 Q_CD for mu_CD = mu_CL max_j m_j / 2, lambda = 0 and c_i = m_i / max_j m_j."""
    rng = np.random.default_rng(11)
    sizes, loss, mu = (14, 9, 20, 11), LOSSES[loss_name], 0.3
    data = as_data(random_blocks(rng, sizes, 2, loss, noise=2.0), loss)
    graph = ct.Graph(random_weights(rng, 4))
    cl = ct.Problem.collaborative(data, graph, loss=loss, mu=mu)
    cd = ct.Problem.personalized(data, graph, loss=loss, mu=mu * max(sizes) / 2, ridge=0.0, confidence="size")
    theta = rng.normal(size=(4, 2))
    assert cl.value(theta) == pytest.approx(2 * cd.value(theta), rel=1e-12)
    assert cl.value(cd.solve()) == pytest.approx(cl.value(cl.solve()), rel=1e-10)
    sure = cl.determined & cd.determined
    np.testing.assert_array_equal(cl.determined, cd.determined)
    if loss_name != "hinge":
        assert sure.all()
    np.testing.assert_allclose(cl.solve()[sure], cd.solve()[sure], rtol=0, atol=1e-6)


def test_collaborative_on_points_is_propagation_of_their_means():
    """sum_k |theta - x_k|^2 / 2 = m/2 |theta - mean|^2 + constant, so Q_CL = 2 Q_MP + constant with c_i = m_i and
    mu_MP = mu_CL / 2, that is alpha = 1 / (1 + mu_CL / 2)."""
    rng = np.random.default_rng(12)
    sizes, mu, loss = np.array([3, 1, 8, 5]), 0.7, LOSSES["location"]
    blocks, W = random_blocks(rng, sizes, 3, loss), random_weights(rng, 4)
    cl = ct.Problem.collaborative(as_data(blocks, loss), ct.Graph(W), loss=loss, mu=mu)
    means = np.array([X.mean(axis=0) for X, _ in blocks])
    mp = ct.Problem.propagation(means, ct.Graph(W), alpha=1 / (1 + mu / 2), confidence=sizes)
    a, b = rng.normal(size=(2, 4, 3))
    assert cl.value(a) - cl.value(b) == pytest.approx(2 * (mp.value(a) - mp.value(b)), rel=1e-11)
    np.testing.assert_allclose(cl.solve(), mp.solve(), rtol=0, atol=1e-10)


# ---------------------------------------------------------------- agents on their own, and agents without data


def island_weights(n_extra=0):
    """0-1-2 a path, 3-4 a pair, 5 alone, and as many more agents alone as asked."""
    W = np.zeros((6 + n_extra, 6 + n_extra))
    for i, j, w in [(0, 1, 1.0), (1, 2, 0.5), (3, 4, 2.0)]:
        W[i, j] = W[j, i] = w
    return W


@pytest.mark.parametrize("loss_name", ["squared", "logistic", "hinge", "location huber"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_components_are_solved_separately_and_isolated_agents_keep_their_models(objective, loss_name):
    rng, loss = np.random.default_rng(13), LOSSES[loss_name]
    blocks = random_blocks(rng, (5, 6, 7, 4, 8, 5), 2, loss)
    W = island_weights()
    problem, naive = build(objective, blocks, W, loss, ridge=0.1)
    theta, local = problem.solve(), problem.local()
    for part in ([0, 1, 2], [3, 4]):
        alone, _ = build(objective, [blocks[i] for i in part], W[np.ix_(part, part)], loss, ridge=0.1)
        np.testing.assert_allclose(theta[part], alone.solve(), rtol=0, atol=1e-7)
    np.testing.assert_allclose(theta[5], local[5], rtol=0, atol=1e-7)
    assert np.abs(theta[5]).max() > 0
    np.testing.assert_array_equal(problem.determined, [True] * 5 + [objective == "separate"])
    if loss_name != "hinge":
        assert np.abs(naive.f_gradient(5, theta[5])).max() <= 1e-8 * np.abs(naive.f_gradient(5, 0 * theta[5])).max()


def test_isolated_agents_keep_their_models_in_propagation():
    models = np.random.default_rng(14).normal(size=(6, 2))
    problem = ct.Problem.propagation(models, ct.Graph(island_weights()), alpha=0.9)
    theta = problem.solve()
    np.testing.assert_allclose(theta[5], models[5], rtol=0, atol=1e-12)
    assert np.abs(theta[:5] - models[:5]).max(axis=1).min() > 1e-3
    np.testing.assert_array_equal(problem.determined, [True] * 5 + [False])
    np.testing.assert_allclose(problem.local(), models, rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss_name", LOSSES)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_agents_without_data_take_the_mean_of_their_neighbours(objective, loss_name):
    """Agent 2 has no rows and no ridge: its block of the gradient is 2 s (D theta_2 - sum_j W_2j theta_j)."""
    rng, loss = np.random.default_rng(15), LOSSES[loss_name]
    blocks = random_blocks(rng, (6, 9, 0, 7), 2, loss)
    W = random_weights(rng, 4, chords=1.0)
    ridge = np.array([0.1, 0.2, 0.0, 0.1])
    problem, _ = build(objective, blocks, W, loss, ridge=ridge)
    theta = problem.solve()
    np.testing.assert_allclose(theta[2], W[2] @ theta / W[2].sum(), rtol=0, atol=1e-6)
    assert problem.determined.all()
    np.testing.assert_array_equal(problem.local()[2], 0.0)


@pytest.mark.parametrize("loss_name", LOSSES)
@pytest.mark.parametrize("ridge", [0.0, 0.1, "1/m"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_components_without_data_are_zero_and_undetermined(objective, ridge, loss_name):
    rng, loss = np.random.default_rng(16), LOSSES[loss_name]
    blocks = random_blocks(rng, (25, 30, 28, 0, 0, 0), 2, loss, noise=2.0)
    data = as_data(blocks, loss)
    problem = getattr(ct.Problem, objective)(data, ct.Graph(island_weights()), loss=loss, ridge=ridge)
    theta = problem.solve()
    np.testing.assert_array_equal(theta[3:], 0.0)
    assert not problem.determined[3:].any()
    if loss_name != "hinge" or ridge != 0.0:
        assert problem.determined[:3].all()
    assert np.abs(theta[:3]).max() > 0
    local = problem.local()
    np.testing.assert_array_equal(local[3:], 0.0)
    assert np.isfinite(local).all()


# ---------------------------------------------------------------- scales


@pytest.mark.parametrize("loss_name", ["squared", "logistic", "huber", "location huber"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_weights_over_six_orders_of_magnitude(objective, loss_name):
    rng, loss = np.random.default_rng(18), LOSSES[loss_name]
    blocks = random_blocks(rng, (6, 9, 5, 7, 8, 4), 2, loss)
    W = np.triu(10.0 ** rng.uniform(-3, 3, (6, 6)), 1)
    W = W + W.T
    problem, naive = build(objective, blocks, W, loss, ridge=0.01)
    theta = problem.solve()
    gradient = naive.gradient(theta).ravel()
    gain = 0.5 * float(gradient @ linalg.solve(naive.hessian(theta), gradient, assume_a="pos"))
    assert gain <= 1e-10 * naive.value(theta)
    if loss_name == "squared":
        np.testing.assert_allclose(theta, squared_solution(naive), rtol=0, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
@pytest.mark.parametrize("loss_name", ["squared", "logistic", "smooth hinge", "huber", "hinge"])
def test_scaled_features_give_scaled_models(loss_name, scale):
    """x -> k x and ridge -> k^2 ridge and W -> k^2 W turn theta into theta / k and leave ``separate`` as it is."""
    rng, loss = np.random.default_rng(19), LOSSES[loss_name]
    blocks, W = random_blocks(rng, (6, 9, 5, 1), 2, loss), random_weights(rng, 4)
    plain, naive = build("separate", blocks, W, loss, ridge=0.02)
    big, _ = build("separate", [(scale * X, y) for X, y in blocks], scale**2 * W, loss, ridge=0.02 * scale**2)
    theta = plain.solve()
    assert big.value(theta / scale) == pytest.approx(naive.value(theta), rel=1e-12)
    assert big.value(big.solve()) == pytest.approx(naive.value(theta), rel=1e-9)
    np.testing.assert_allclose(scale * big.solve(), theta, rtol=0, atol=1e-6)


@pytest.mark.parametrize("loss_name", ["squared", "logistic", "smooth hinge", "hinge"])
def test_duplicated_rows_are_like_heavier_rows(loss_name):
    """The mean over twice the same rows is the mean over them once."""
    rng, loss = np.random.default_rng(20), LOSSES[loss_name]
    blocks, W = random_blocks(rng, (6, 9, 5, 1), 2, loss), random_weights(rng, 4)
    once, naive = build("separate", blocks, W, loss, ridge=0.02)
    twice, _ = build("separate", [(np.vstack([X, X]), np.append(y, y)) for X, y in blocks], W, loss, ridge=0.02)
    assert naive.value(twice.solve()) == pytest.approx(naive.value(once.solve()), rel=1e-10)
    np.testing.assert_allclose(twice.solve(), once.solve(), rtol=0, atol=1e-6)


# ---------------------------------------------------------------- ridge and confidence


FORMS = [
    *((objective, "ridge", 0.3, [0.3, 0.3, 0.3, 0.3]) for objective in OBJECTIVES),
    *((objective, "ridge", [0.1, 0.0, 2.0, 0.4], [0.1, 0.0, 2.0, 0.4]) for objective in OBJECTIVES),
    *((objective, "ridge", "1/m", [1 / 6, 1 / 9, 0.0, 1.0]) for objective in OBJECTIVES),
    ("personalized", "confidence", "size", [6 / 9, 1.0, 1e-9, 1 / 9]),
    ("personalized", "confidence", None, [1.0, 1.0, 1.0, 1.0]),
    ("personalized", "confidence", [0.2, 0.0, 0.5, 1.0], [0.2, 0.0, 0.5, 1.0]),
]


@pytest.mark.parametrize(("objective", "name", "given", "numbers"), FORMS)
def test_forms_of_ridge_and_of_confidence(objective, name, given, numbers):
    rng, loss = np.random.default_rng(21), ct.Squared()
    blocks, W = random_blocks(rng, (6, 9, 0, 1), 2, loss), random_weights(rng, 4)
    options = ({"confidence": None} if objective == "personalized" else {}) | {"ridge": 0.1}
    naive = Naive(objective, blocks, W, loss, 1.0, **options | {name: np.array(numbers)})
    problem = getattr(ct.Problem, objective)(as_data(blocks, loss), ct.Graph(W), loss=loss, **options | {name: given})
    theta = rng.normal(size=(4, 2))
    np.testing.assert_allclose(problem.a, naive.a, rtol=1e-12)
    assert problem.value(theta) == pytest.approx(naive.value(theta), rel=1e-12)
    np.testing.assert_allclose(problem.solve(), squared_solution(naive), rtol=0, atol=1e-9)


def test_defaults_are_those_of_the_papers():
    rng = np.random.default_rng(23)
    blocks, W = random_blocks(rng, (6, 9, 2, 1), 2, ct.Logistic()), random_weights(rng, 4)
    data, graph, theta = as_data(blocks, ct.Logistic()), ct.Graph(W), rng.normal(size=(4, 2))
    m = np.array([6, 9, 2, 1])
    for problem, naive in [
        (ct.Problem.collaborative(data, graph), Naive("collaborative", blocks, W, ct.Logistic())),
        (ct.Problem.personalized(data, graph), Naive("personalized", blocks, W, ct.Logistic(), 1.0, 1 / m, m / 9)),
        (ct.Problem.separate(data, graph), Naive("separate", blocks, W, ct.Squared())),
    ]:
        assert problem.value(theta) == pytest.approx(naive.value(theta), rel=1e-12)
    models = rng.normal(size=(4, 2))
    naive = Naive("personalized", [(x[None], None) for x in models], W, LOSSES["location"], 0.01 / 0.99)
    assert ct.Problem.propagation(models, graph).value(theta) == pytest.approx(naive.value(theta), rel=1e-12)


# ---------------------------------------------------------------- free directions


@pytest.mark.parametrize("loss_name", ["squared", "huber", "logistic"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_rank_deficient_data_without_ridge(objective, loss_name):
    """A feature that is zero everywhere leaves a direction free: not determined, but as good as without it."""
    rng, loss = np.random.default_rng(25), LOSSES[loss_name]
    blocks, W = random_blocks(rng, (30, 40, 25), 2, loss, noise=2.0), random_weights(rng, 3)
    wide = [(np.column_stack([X, np.zeros(len(X))]), y) for X, y in blocks]
    narrow, naive = build(objective, blocks, W, loss)
    problem, _ = build(objective, wide, W, loss)
    theta = problem.solve()
    assert narrow.determined.all()
    assert not problem.determined.any()
    assert np.isfinite(theta).all()
    best = naive.value(naive.minimise())
    assert problem.value(theta) == pytest.approx(best, rel=1e-10)
    assert narrow.value(narrow.solve()) == pytest.approx(best, rel=1e-10)


@pytest.mark.parametrize("loss_name", ["squared", "huber"])
def test_fewer_rows_than_features_interpolate(loss_name):
    """Three rows in all and five features: the optimum is zero."""
    rng, loss = np.random.default_rng(26), LOSSES[loss_name]
    problem, naive = build("collaborative", random_blocks(rng, (1, 1, 1), 5, loss), random_weights(rng, 3), loss)
    assert not problem.determined.any()
    assert naive.value(problem.solve()) <= 1e-16 * naive.value(np.zeros((3, 5)))


def test_one_rank_deficient_agent_is_helped_by_its_neighbours():
    """Agent 1 has one row and three features, but its neighbour fixes the rest."""
    rng, loss = np.random.default_rng(27), ct.Squared()
    problem, naive = build("collaborative", random_blocks(rng, (9, 1), 3, loss), random_weights(rng, 2), loss)
    assert problem.determined.all()
    np.testing.assert_allclose(problem.solve(), squared_solution(naive), rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("loss_name", ["squared", "huber"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_exact_fit_is_found(objective, loss_name, seed):
    """Noiseless labels of one model that all share: the optimum is zero, unique, and everybody's local model."""
    rng, loss = np.random.default_rng(seed), LOSSES[loss_name]
    model = rng.normal(size=3)
    blocks = [(X, X @ model) for X in (rng.normal(size=(m, 3)) for m in (7, 50, 12))]
    problem, naive = build(objective, blocks, random_weights(rng, 3), loss)
    assert problem.determined.all()
    assert naive.value(problem.solve()) <= 1e-16 * naive.value(np.zeros((3, 3)))
    np.testing.assert_allclose(problem.solve(), np.tile(model, (3, 1)), rtol=0, atol=1e-7)
    np.testing.assert_allclose(problem.local(), np.tile(model, (3, 1)), rtol=0, atol=1e-7)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("sizes", [(1,), (1, 1), (3, 2, 1), (20, 30, 25)])
def test_separable_logistic_without_ridge(objective, sizes):
    """The infimum, zero, is not attained: a finite model, near it."""
    rng = np.random.default_rng(28)
    direction = np.array([1.0, -2.0])
    blocks = [(X, np.where(X @ direction > 0, 1.0, -1.0)) for X in (rng.normal(size=(m, 2)) for m in sizes)]
    problem, naive = build(objective, blocks, random_weights(rng, len(sizes)), ct.Logistic())
    for theta in (problem.solve(), problem.local()):
        assert np.isfinite(theta).all()
    zero = np.zeros((naive.n, 2))
    assert naive.value(problem.solve()) <= 1e-8 * naive.value(zero)
    for i, t in enumerate(problem.local()):
        assert naive.f(i, t) <= 1e-8 * naive.f(i, 0 * t)


@pytest.mark.parametrize("loss", [ct.Hinge(), ct.SmoothHinge(0.5), ct.SmoothHinge(1e-3)], ids=str)
def test_separable_hinges_without_ridge_reach_zero(loss):
    rng = np.random.default_rng(29)
    direction = np.array([1.0, -2.0])
    blocks = [(X, np.where(X @ direction > 0, 1.0, -1.0)) for X in rng.normal(size=(3, 8, 2))]
    problem, naive = build("collaborative", blocks, random_weights(rng, 3), loss)
    assert naive.value(problem.solve()) <= 1e-10 * naive.value(np.zeros((3, 2)))


# ---------------------------------------------------------------- large enough for matrix-free steps


LARGE = [(300, 8), (60, 40)]


def large(n, p, loss, seed=30, rows=4):
    rng = np.random.default_rng(seed)
    W = sparse.random_array((n, n), density=6 / n, rng=rng, data_sampler=lambda size: rng.uniform(0.1, 1.0, size))
    W = sparse.triu(W, 1).toarray()
    W[np.arange(n - 1), np.arange(1, n)] = 0.5
    blocks = random_blocks(rng, rng.integers(1, 2 * rows, n), p, loss)
    return build("personalized", blocks, W + W.T, loss, "dense", 0.7, 0.05, rng.uniform(0.2, 1.0, n))


@pytest.mark.compiled
@pytest.mark.parametrize(("n", "p"), LARGE)
def test_large_squared_against_a_sparse_factorisation(n, p):
    problem, naive = large(n, p, ct.Squared())
    laplacian = sparse.csr_array(np.diag(naive.D) - naive.W)
    own, b = [], np.zeros((n, p))
    for i in range(n):
        X, y = naive.rows[i]
        own.append(naive.a[i] * (X.T @ X / len(X) + 2 * naive.r[i] * np.eye(p)))
        b[i] = naive.a[i] * X.T @ y / len(X)
    H = sparse.csc_array(sparse.kron(2 * naive.s * laplacian, sparse.eye_array(p)) + sparse.block_diag(own))
    expected = sparse_linalg.spsolve(H, b.ravel()).reshape(n, p)
    assert problem.determined.all()
    assert_optimal(problem, naive, problem.solve(), expected)


@pytest.mark.compiled
@pytest.mark.parametrize("loss_name", ["logistic", "huber", "smooth hinge"])
@pytest.mark.parametrize(("n", "p"), LARGE)
def test_large_smooth_has_no_gradient_left(n, p, loss_name):
    """Q is strongly convex with modulus 2 min a_i r_i, so |g|^2 / (2 modulus) bounds what is left to gain."""
    problem, naive = large(n, p, LOSSES[loss_name])
    theta = problem.solve()
    gradient = naive.gradient(theta)
    left = float((gradient**2).sum()) / (4 * (naive.a * naive.r).min())
    assert left <= 1e-10 * naive.value(theta)
    assert problem.determined.all()


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize(("n", "p"), LARGE)
def test_large_hinge_against_its_dual(n, p):
    problem, naive = large(n, p, ct.Hinge(), rows=2)
    bound = hinge_bound_of(naive)
    assert naive.value(problem.solve()) - bound <= 1e-8 * bound


# ---------------------------------------------------------------- models trained alone


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_local_hinge_against_its_dual(objective):
    problem, naive = make(objective, "hinge", seed=33, sizes=(9, 1, 0, 2, 30), ridge=0.03)
    for i, t in enumerate(problem.local()):
        if not naive.m[i]:
            np.testing.assert_array_equal(t, 0.0)
            continue
        X, y = naive.rows[i]
        bound = hinge_bound(2 * naive.r[i] * np.eye(naive.p), y[:, None] * X, np.full(len(X), naive.each[i]))
        assert naive.f(i, t) - bound <= 1e-8 * bound


@pytest.mark.parametrize("loss_name", ["logistic", "huber", "smooth hinge"])
def test_local_models_without_ridge(loss_name):
    """Enough noisy rows: the optimum is unique, without any ridge."""
    problem, naive = make("separate", loss_name, seed=34, sizes=(60, 80), p=2, ridge=0.0)
    for i, t in enumerate(problem.local()):
        assert np.abs(naive.f_gradient(i, t)).max() <= 1e-9 * np.abs(naive.f_gradient(i, 0 * t)).max()


@pytest.mark.parametrize(
    ("X", "y", "loss", "expected"),
    [
        ([[1.0, 1.0]], [2.0], ct.Squared(), [1.0, 1.0]),
        ([[3.0, 4.0]], [50.0], ct.Huber(0.1), [6.0, 8.0]),
        ([[0.6, 0.8]], [1.0], ct.Hinge(), [0.6, 0.8]),
        ([[0.6, 0.8]], [-1.0], ct.SmoothHinge(0.5), [-0.6, -0.8]),
        ([[1.0], [2.0]], [1.0, 1.0], ct.Hinge(), [1.0]),
        ([[0.0], [10.0]], None, ct.Location(ct.Huber(1.0)), [1.0]),
        ([[-4.0], [6.0]], None, ct.Location(ct.Huber(1.0)), [0.0]),
        ([[2.0, 5.0]], None, ct.Location(ct.Squared()), [2.0, 5.0]),
    ],
)
def test_local_of_several_minimisers_the_least_norm(X, y, loss, expected):
    problem = ct.Problem.separate(ct.AgentData(X, y), ct.graphs.empty(1), loss=loss)
    atol = 1e-6 if loss.lipschitz == np.inf else 0.1  # flat parts leave it to a barely visible ridge to choose
    np.testing.assert_allclose(problem.local()[0], expected, rtol=0, atol=atol)


# ---------------------------------------------------------------- constants of smoothness


SMOOTHNESS = dict.fromkeys(SMOOTH, 1.0) | {"logistic": 1 / 4, "smooth hinge": 1 / 0.7}


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("loss_name", SMOOTH)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_block_lipschitz(objective, loss_name, kind):
    problem, naive = make(objective, loss_name, kind, seed=36, sizes=(4, 7, 1, 0, 3))
    rng = np.random.default_rng(37)
    for i in range(naive.n):
        X, _ = naive.rows[i]
        top = np.linalg.eigvalsh(X.T @ X)[-1] * naive.each[i] * SMOOTHNESS[loss_name]
        expected = 2 * naive.s * naive.D[i] + naive.a[i] * (top + 2 * naive.r[i])
        assert problem.block_lipschitz[i] == pytest.approx(expected, rel=1e-9)
        for size in (1e-3, 1.0, 10.0):
            theta = rng.normal(size=(naive.n, naive.p))
            other = theta.copy()
            other[i] += size * rng.normal(size=naive.p)
            change = np.linalg.norm(naive.gradient(other)[i] - naive.gradient(theta)[i])
            assert change <= problem.block_lipschitz[i] * np.linalg.norm(other[i] - theta[i]) * (1 + 1e-9)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_block_lipschitz_of_the_hinge_is_infinite(objective):
    rng = np.random.default_rng(39)
    blocks = random_blocks(rng, (4, 5, 3, 4, 2, 6), 2, ct.Hinge())
    problem, _ = build(objective, blocks, island_weights(), ct.Hinge(), ridge=0.1)
    assert (problem.block_lipschitz[:5] == np.inf).all()
    assert problem.block_lipschitz[5] == (np.inf if objective == "separate" else 0.0)


# ---------------------------------------------------------------- what is refused


DATA = ct.AgentData(np.eye(3), [1.0, -1.0, 1.0], agents=["a", "b", "b"])
POINTS = ct.AgentData(np.eye(3), agents=["a", "b", "b"])
PAIR = ct.graphs.complete(2)


@pytest.mark.parametrize("loss", ["logistic", "hinge", "smooth-hinge"])
@pytest.mark.parametrize("label", [0.0, 2.0, 1.0 + 1e-9])
def test_labels_out_of_the_domain_are_named(loss, label):
    data = ct.AgentData(np.eye(4), [1.0, -1.0, 1.0, label], agents=["zoe", "anna", "zoe", "anna"])
    with pytest.raises(DataError, match=r"row 3 \(agent 'anna'\)"):
        ct.Problem.personalized(data, PAIR, loss=loss)


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (DataError, "labels", lambda: ct.Problem.personalized(POINTS, PAIR)),
        (MismatchError, "unlabelled", lambda: ct.Problem.separate(DATA, PAIR, loss=ct.Location(ct.Squared()))),
        (MismatchError, "Location", lambda: ct.Problem.separate(POINTS, PAIR, loss=ct.Location(ct.Logistic()))),
        (GraphError, "3 agents", lambda: ct.Problem.collaborative(DATA, ct.graphs.complete(3))),
        (GraphError, "3 agents", lambda: ct.Problem.personalized(DATA, ct.graphs.complete(3))),
        (GraphError, "3 agents", lambda: ct.Problem.separate(DATA, ct.graphs.complete(3))),
        (CoterieError, "3", lambda: ct.Problem.propagation(np.eye(3), PAIR)),
        (DataError, r"\(2,\)", lambda: ct.Problem.propagation([1.0, 2.0], PAIR)),
        (DataError, "nan", lambda: ct.Problem.propagation([[np.nan], [1.0]], PAIR)),
        (ParameterError, "unknown loss 'logit'", lambda: ct.Problem.personalized(DATA, PAIR, loss="logit")),
        (ParameterError, "3 is not a loss", lambda: ct.Problem.personalized(DATA, PAIR, loss=3)),
        (ParameterError, "not a loss", lambda: ct.Problem.personalized(DATA, PAIR, loss=ct.Logistic)),
        (ParameterError, "size", lambda: ct.Problem.propagation(np.eye(2), PAIR, confidence="size")),
        (ParameterError, "confidence='x'", lambda: ct.Problem.personalized(DATA, PAIR, confidence="x")),
        (ParameterError, "ridge='2/m'", lambda: ct.Problem.personalized(DATA, PAIR, ridge="2/m")),
        (ParameterError, "needs an AgentData; found ndarray", lambda: ct.Problem.personalized(np.eye(3), PAIR)),
        (ParameterError, "needs a Graph", lambda: ct.Problem.separate(DATA, np.eye(2))),
    ],
)
def test_refusals(error, match, call):
    with pytest.raises(error, match=match):
        call()


BAD = [0.1, -1.0], [0.1, np.nan], [0.1], np.ones((2, 1))
WRONG = {
    "mu": (r"mu = .*expected a positive finite number", [0.0, -1.0, np.nan, np.inf, "a", [1.0, 2.0], None]),
    "ridge": ("ridge", [-1e-9, np.nan, np.inf, None, *BAD]),
    "confidence": ("confidence", [[np.inf, 1.0], 0.5, *BAD]),
    "alpha": (r"alpha = .*strictly between 0 and 1", [0.0, 1.0, -0.1, 1.5, np.nan, np.inf, "a", None]),
}
TAKEN = {"collaborative": ("mu", "ridge"), "separate": ("ridge",), "personalized": ("mu", "ridge", "confidence")}
TAKEN["propagation"] = ("confidence", "alpha")


@pytest.mark.parametrize(("objective", "name"), [(each, name) for each, names in TAKEN.items() for name in names])
def test_numbers_have_their_bounds(objective, name):
    message, values = WRONG[name]
    for value in values:
        with pytest.raises(ParameterError, match=message):
            getattr(ct.Problem, objective)(np.eye(2) if objective == "propagation" else DATA, PAIR, **{name: value})


@pytest.mark.parametrize(
    "theta",
    [np.zeros(3), np.zeros((3, 2)), np.zeros((2, 3, 1)), np.full((2, 3), np.nan), [[0, 0, 0], [0, np.inf, 0]], "x"],
)
@pytest.mark.parametrize("what", ["value", "gradient"])
def test_models_must_be_finite_and_of_the_right_shape(what, theta):
    problem = ct.Problem.personalized(DATA, PAIR)
    with pytest.raises(ParameterError, match="model"):
        getattr(problem, what)(theta)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_cheap_bound_of_the_suboptimality_is_below_it(loss):
    task = ct.datasets.linear_classification(n=8, p=4, seed=3)
    graph = ct.Graph.from_edges(8, [0, 1, 4], [1, 2, 5], [1.0, 2.0, 0.5])  # two components, and agents alone
    problem = ct.Problem.personalized(task.train, graph, loss=loss)
    rng = np.random.default_rng(0)
    best = problem.solve()
    for distance in (1e-3, 0.1, 1.0):
        theta = best + distance * rng.normal(size=best.shape)
        exact = problem.suboptimality(theta)
        assert 0.0 < problem.suboptimality(theta, enough=0.0) <= exact * (1 + 1e-6)
        assert problem.suboptimality(theta, enough=2.0 * exact) == exact  # asked whether it is small: not by a bound
