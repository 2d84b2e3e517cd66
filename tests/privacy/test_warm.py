"""The private warm start: how far one row moves a model, the noise that hides it, and what is made of the releases."""

import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from scipy import sparse, stats
from scipy.optimize import brentq

import coterie as ct
from coterie.core.private.terms import GRID
from coterie.errors import MismatchError, ParameterError
from coterie.privacy.warm import Claim, _more_ridge, warm_start

LOSSES = [ct.Logistic(), ct.SmoothHinge(0.5), ct.Hinge(), ct.Huber(0.7)]


def labels_for(loss, y):
    return y if loss.labels == "-1 or +1" else 3.0 * y


def problem_of(X, y, loss, kind="personalized", **named):
    """One agent for each X[k], y[k], all of one size."""
    n, m, p = X.shape
    data = ct.AgentData(X.reshape(n * m, p), y.ravel(), agents=np.repeat(np.arange(n), m))
    make = getattr(ct.Problem, kind)
    return make(data, ct.graphs.ring(n) if n > 2 else ct.graphs.complete(n), loss=loss, **named)


def moves(before, after, loss, bound, ridge, kind="personalized"):
    """How far the released models of two problems lie apart that differ in one row of each agent.

    With the same seed the noise is the same, and cancels: what is left is the models on their grid. In units of what a
    row may move a model by, worked out anew: 2 lipschitz bound share / (2 r).
    """
    share = 1.0 / before[0].shape[1] if kind == "personalized" else 1.0
    most = share * loss.lipschitz * bound / ridge
    one, other = (
        warm_start(problem_of(X, y, loss, kind, ridge=ridge), 1.0, row_norm=bound, seed=3).released
        for X, y in (before, after)
    )
    steps = (one - other) / (most / GRID)
    assert np.abs(steps - np.rint(steps)).max() < 1e-3  # on the grid
    return np.linalg.norm(np.rint(steps), axis=1) / GRID


@pytest.mark.compiled
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("kind", ["personalized", "collaborative"])
def test_no_row_moves_a_model_farther_than_the_noise_is_made_for(loss, kind):
    rng = np.random.default_rng(0)
    n, p, bound = 150, 4, 0.8
    for m, ridge in [(1, 0.3), (6, 0.02), (6, 2.0)]:
        # Rows of all lengths, some of them beyond the bound, some far beyond it.
        X, Z = (rng.normal(size=(n, m, p)) * rng.lognormal(0, 1.5, size=(n, m, 1)) for _ in range(2))
        y, v = (labels_for(loss, rng.choice([-1.0, 1.0], size=(n, m))) for _ in range(2))
        other, w = X.copy(), y.copy()
        other[:, 0], w[:, 0] = Z[:, 0], v[:, 0]
        moved = moves((X, y), (other, w), loss, bound, ridge, kind)
        assert moved.max() <= 1.0 + (math.sqrt(p) + 1.0) / GRID
        assert moved.max() > 0.05


def test_the_worst_row_moves_it_almost_that_far():
    # All slopes of a smoothed hinge are 1 where margins are small: x and -x pull in opposite directions.
    bound, m, p = 2.0, 5, 3
    X = np.zeros((3, m, p))
    X[:, :, 0] = 10.0  # cut to the bound
    other = X.copy()
    other[:, 0, 0] = -10.0
    y = np.ones((3, m))
    moved = moves((X, y), (other, y), ct.SmoothHinge(0.5), bound, 10.0)
    assert 1.0 - 3.0 / GRID <= moved.min() <= moved.max() <= 1.0 + 3.0 / GRID
    # The slope of the logistic loss is near 1 on the wrong side of a long model, which many rows have made long.
    m = 3000
    X = np.zeros((3, m, p))
    X[:, :, 0] = 1.0
    X[:, 0, :2] = [-0.4, math.sqrt(1.0 - 0.4**2)]
    other = X.copy()
    other[:, 0, 1] *= -1.0
    y = np.ones((3, m))
    moved = moves((X, y), (other, y), ct.Logistic(), 1.0, 1e-3)
    assert 0.75 <= moved.min() <= moved.max() <= 1.0 + 3.0 / GRID


def multiplier(epsilon, delta):
    """Standard deviation of Gaussian noise for a sensitivity of 1, from the profile of the Gaussian mechanism."""

    def excess(mu):
        return (
            stats.norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2) - delta
        )

    return 1.0 / brentq(excess, 1e-3, 50.0, xtol=1e-12)


@pytest.mark.compiled
@pytest.mark.parametrize("loss", [ct.Logistic(), ct.Hinge(), ct.Huber(0.5)], ids=repr)
@pytest.mark.parametrize(("m", "ridge"), [(3, 0.2), (30, 0.2), (30, "1/m")])
def test_noise_is_as_wide_as_the_budget_asks(loss, m, ridge):
    rng = np.random.default_rng(1)
    n, p, bound, epsilon, delta = 1500, 4, 0.5, 0.7, 1e-4
    X = np.broadcast_to(rng.normal(size=(1, m, p)), (n, m, p))
    y = np.broadcast_to(labels_for(loss, rng.choice([-1.0, 1.0], size=(1, m))), (n, m))
    problem = problem_of(X, y, loss, ridge=ridge)
    warm = warm_start(problem, epsilon, delta, row_norm=bound, seed=5)
    # The exact model of the rows as they are cut, by another way than the code's.
    short = X / np.maximum(1.0, np.linalg.norm(X, axis=2, keepdims=True) / bound)
    exact = problem_of(short[:3], y[:3], loss, ridge=ridge).local()[0]
    r = 1.0 / m if ridge == "1/m" else ridge
    std = multiplier(epsilon, delta) * loss.lipschitz * bound / (m * r)
    noise = ((warm.released - exact) / std).ravel()
    # 6000 draws. Each test fails by chance once in 10^5 times: one for shape and scale, one for the scale alone,
    # which sees an error of 5 %.
    assert stats.kstest(noise, "norm").pvalue > 1e-5
    low, high = stats.chi2.ppf([5e-6, 1.0 - 5e-6], noise.size) / noise.size
    assert low < np.mean(noise**2) < high * 1.01  # a kink's solver is less exact: its noise may be a little wider
    assert np.unique(noise).size == noise.size  # no two agents share a key


# Objective perturbation, in one dimension: theta determines the noise b in J'(theta) = 0, so the density of theta is
# that of b(theta) times |b'(theta)|, and a proof of privacy can be checked by looking.


def log_density(theta, x, y, loss, bound, ridge, epsilon):
    """Log density of a released model, up to a constant that no row changes."""
    m, L = len(x), loss.lipschitz
    z = np.outer(theta, x)
    slope = np.vectorize(loss.derivative)(z, y)
    bend = np.vectorize(loss.curvature)(z, y)
    # In the units of the algorithm: rows x / bound, models bound theta, losses l / L.
    lam = 2.0 * ridge / (L * bound**2)
    more, left = _more_ridge(epsilon, np.array(loss.smoothness / L / (m * lam)))
    b = -((slope / L) @ (x / bound) + m * lam * (1.0 + more) * bound * theta)
    jacobian = (bend / L) @ (x / bound) ** 2 + m * lam * (1.0 + more)
    return -0.5 * left * np.abs(b) + np.log(jacobian)


@pytest.mark.parametrize("loss", [ct.Logistic(), ct.SmoothHinge(0.2), ct.Huber(0.7)], ids=repr)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_density_of_objective_perturbation_never_changes_by_more_than_epsilon(loss, epsilon):
    rng = np.random.default_rng(2)
    bound, extra, plain, worst = 1.7, 0, 0, 0.0
    for m in (1, 2, 8):
        for ridge in (1e-3, 0.05, 1.0, 20.0):
            lam = 2.0 * ridge / (loss.lipschitz * bound**2)
            more, _ = _more_ridge(epsilon, np.array(loss.smoothness / loss.lipschitz / (m * lam)))
            extra, plain = extra + (more > 0), plain + (more == 0)
            # Wide enough for all there is, and fine where margins are near zero.
            theta = np.sinh(np.linspace(-12.0, 12.0, 401)) / 50.0
            for trial in range(8):
                x = bound * (rng.choice([-1.0, 1.0], size=m) if trial % 2 else rng.uniform(-1.0, 1.0, size=m))
                y = labels_for(loss, rng.choice([-1.0, 1.0], size=m))
                u, v = x.copy(), y.copy()
                u[0] = -x[0] if trial % 2 else bound * rng.uniform(-1.0, 1.0)
                v[0] = y[0] if trial % 4 < 3 else -y[0]
                ratio = log_density(theta, x, y, loss, bound, ridge, epsilon)
                ratio = ratio - log_density(theta, u, v, loss, bound, ridge, epsilon)
                worst = max(worst, np.abs(ratio).max())
    assert worst <= epsilon * (1.0 + 1e-9)
    # Nor is that for too much noise. In one dimension, slopes of the logistic loss at x and at -x add up to 1, not 2.
    assert worst >= (0.45 if isinstance(loss, ct.Logistic) else 0.7) * epsilon
    assert extra > 0  # with more ridge,
    assert plain > 0  # and without


@pytest.mark.compiled
@pytest.mark.parametrize("loss", [ct.Logistic(), ct.Huber(0.7)], ids=repr)
@pytest.mark.parametrize(("kind", "ridge", "p"), [("personalized", 0.5, 1), ("collaborative", 0.01, 3)])
def test_objective_perturbation_draws_the_noise_of_that_density(loss, kind, ridge, p):
    rng = np.random.default_rng(3)
    n, m, bound, epsilon = 2000, 7, 1.3, 0.9
    X = rng.normal(size=(1, m, p))
    X *= bound * rng.uniform(0.2, 1.0, size=(1, m, 1)) / np.linalg.norm(X, axis=2, keepdims=True)
    X = np.broadcast_to(X, (n, m, p))
    y = np.broadcast_to(labels_for(loss, rng.choice([-1.0, 1.0], size=(1, m))), (n, m))
    warm = warm_start(problem_of(X, y, loss, kind, ridge=ridge), epsilon, kind="objective", row_norm=bound, seed=7)
    assert warm.plans == (Claim(epsilon, 0.0),)
    # b from J'(theta) = 0: with the mean of the losses, a ridge of r / m for a sum of them.
    mean_ridge = ridge if kind == "personalized" else ridge / m
    lam = 2.0 * mean_ridge / (loss.lipschitz * bound**2)
    more, left = _more_ridge(epsilon, np.array(loss.smoothness / loss.lipschitz / (m * lam)))
    assert (more > 0) == (kind == "collaborative")
    theta = warm.released
    slope = np.vectorize(loss.derivative)(theta @ X[0].T, y[0]) / loss.lipschitz
    b = -(slope @ (X[0] / bound) + m * lam * (1.0 + more) * bound * theta)
    size = np.linalg.norm(b, axis=1)
    # Each of these fails by chance once in 10^5 times.
    assert stats.kstest(size, stats.gamma(p, scale=2.0 / left).cdf).pvalue > 1e-5
    along = b[:, 0] / size
    if p == 1:
        assert stats.binomtest(int((along > 0).sum()), n).pvalue > 1e-5
    else:  # a coordinate of a point on the sphere is uniform
        assert stats.kstest(along, stats.uniform(-1.0, 2.0).cdf).pvalue > 1e-5


def test_more_ridge_is_that_of_the_paper():
    # By its own formulas, with m, Lambda and c: rows of norm 1, and a slope of at most 1.
    for m, lam, c, epsilon in [(10, 0.1, 0.25, 1.0), (2, 0.1, 1.0, 1.0), (50, 0.01, 5.0, 0.2), (3, 2.0, 0.25, 0.5)]:
        left = epsilon - math.log(1.0 + 2.0 * c / (m * lam) + c**2 / (m * lam) ** 2)
        more = 0.0
        if left <= 0:
            more, left = c / (m * (math.exp(epsilon / 4) - 1.0)) - lam, epsilon / 2
        found = _more_ridge(epsilon, np.array([c / (m * lam)]))
        assert found[0][0] * lam == pytest.approx(more, rel=1e-12)
        assert found[1][0] == pytest.approx(left, rel=1e-12)


@pytest.fixture(scope="module")
def uneven():
    """Agents of 1 to 9 rows, one without any, and one without edges."""
    rng = np.random.default_rng(4)
    agents = np.repeat(np.arange(6), [9, 0, 3, 1, 5, 2])
    X, y = rng.normal(size=(20, 3)), rng.choice([-1.0, 1.0], size=20)
    data = ct.AgentData(X, y, agents=agents, members=range(6))
    graph = ct.Graph.from_edges(6, [0, 1, 2, 0, 3], [1, 2, 3, 3, 4], [1.0, 0.5, 2.0, 1.0, 0.3])
    return data, graph


@pytest.mark.parametrize("kind", ["output", "objective"])
@pytest.mark.parametrize(
    ("make", "options", "confidence"),
    [
        (ct.Problem.personalized, {"mu": 0.3}, np.array([9, 0, 3, 1, 5, 2]) / 9),
        (ct.Problem.personalized, {"confidence": np.full(6, 0.5)}, np.array([0.5, 0.0, 0.5, 0.5, 0.5, 0.5])),
        (ct.Problem.collaborative, {"mu": 2.0, "ridge": 0.1}, np.array([9, 0, 3, 1, 5, 2]) / 9),
        (ct.Problem.separate, {"loss": "logistic", "ridge": 0.1}, np.array([1, 0, 1, 1, 1, 1])),
    ],
    ids=["size", "given", "sums", "separate"],
)
def test_released_models_are_smoothed_by_model_propagation(uneven, kind, make, options, confidence):
    data, graph = uneven
    alpha = 0.8
    warm = warm_start(make(data, graph, **options), 5.0, kind=kind, alpha=alpha)
    assert np.all(warm.released[1] == 0.0)
    assert np.all(warm.released[[0, 2, 3, 4, 5]] != 0.0)
    # The minimiser of CD (14): (D - W + mu D C) Theta = mu D C Theta_sol; the last agent is alone.
    W, mu = graph.W.toarray()[:5, :5], (1.0 - alpha) / alpha
    D, C = np.diag(W.sum(axis=1)), np.diag(confidence[:5])
    smooth = np.linalg.solve(D - W + mu * D @ C, mu * D @ C @ warm.released[:5])
    np.testing.assert_allclose(warm.theta[:5], smooth, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(warm.theta[5], warm.released[5])


@pytest.mark.parametrize(("kind", "delta"), [("output", "1e-05"), ("objective", "0")])
def test_same_seed_same_release(uneven, kind, delta):
    problem = ct.Problem.personalized(*uneven)
    one, again, other = (warm_start(problem, 1.0, kind=kind, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.released, again.released)
    assert np.all(one.released[0] != other.released[0])
    assert repr(one) == f"WarmStart({kind}, epsilon=1, delta={delta}, agents=6, features=3)"
    with pytest.raises(ValueError, match="read-only"):
        one.theta[0] = 0.0
    with pytest.raises(FrozenInstanceError):
        one.kind = "other"


def test_sparse_is_like_dense(uneven):
    data, graph = uneven
    thin = ct.AgentData(sparse.csr_array(data.X), data.y, agents=data.owner, members=range(6))
    one, other = (warm_start(ct.Problem.personalized(rows, graph), 1.0, row_norm=0.9).released for rows in (data, thin))
    np.testing.assert_allclose(one, other, atol=1e-5)  # a step of the grid apart, at most


def test_nobody_has_rows(uneven):
    data, graph = uneven
    nothing = data.restrict(np.zeros(20, bool))
    for kind in ("output", "objective"):
        warm = warm_start(ct.Problem.personalized(nothing, graph), 1.0, kind=kind)
        assert not warm.theta.any()
        assert not warm.released.any()


def test_rows_of_any_length_are_cut_without_overflow(uneven):
    data, graph = uneven
    for scale in (1e300, 1e-300):
        long = data.with_features(data.X * scale)
        warm = warm_start(ct.Problem.personalized(long, graph), 1.0, row_norm=1e-3 if scale > 1 else 1.0)
        assert np.isfinite(warm.theta).all()
    # Only the direction of a long row counts.
    one, other = (
        warm_start(ct.Problem.personalized(data.with_features(data.X * scale), graph), 1.0, row_norm=1e-3).released
        for scale in (1.0, 1e200)
    )
    np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("kind", ["output", "objective"])
def test_the_budget_of_a_warm_start_is_part_of_the_claim(uneven, kind):
    data, graph = uneven
    problem = ct.Problem.personalized(data, graph)
    warm = warm_start(problem, 0.25, 1e-6, kind=kind)
    method = ct.Private(ct.CoordinateDescent(), epsilon=1.0, delta=1e-5, final=None)
    run = ct.simulate(problem, method, wakes=0, start=warm)
    assert run.epsilon == pytest.approx(1.25)
    assert run.delta == pytest.approx(1.1e-5 if kind == "output" else 1e-5)
    np.testing.assert_array_equal(run.theta, warm.theta)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"epsilon": 0.0}, r"epsilon = 0\.0: expected"),
        ({"epsilon": math.nan}, "epsilon = nan: expected"),
        ({"epsilon": "1"}, "epsilon = '1': expected"),
        ({"epsilon": -1.0, "kind": "objective"}, r"epsilon = -1\.0: expected"),
        ({"delta": 0.0}, r"delta = 0\.0: expected"),
        ({"delta": 1.0}, r"delta = 1\.0: expected"),
        ({"delta": 1.0, "kind": "objective"}, r"delta = 1\.0: expected"),
        ({"kind": "input"}, "kind = 'input': expected"),
        ({"row_norm": 0.0}, r"row_norm = 0\.0: expected"),
        ({"row_norm": math.inf}, "row_norm = inf: expected"),
        ({"alpha": 1.0}, r"alpha = 1\.0: expected"),
        ({"seed": -1}, "seed = -1: expected"),
        ({"seed": "a"}, "seed = 'a': expected"),
        ({"epsilon": 1e-12, "delta": 1e-14}, "times the sensitivity for agent 0"),
        ({"epsilon": 1e8}, "times the sensitivity for agent 0"),
    ],
)
def test_what_is_out_of_range_is_named(uneven, named, said):
    problem = ct.Problem.personalized(*uneven)
    with pytest.raises(ParameterError, match=said):
        warm_start(problem, **{"epsilon": 1.0, **named})


def test_delta_may_be_zero_where_it_is_not_used(uneven):
    problem = ct.Problem.personalized(*uneven)
    assert warm_start(problem, 1.0, delta=0.0, kind="objective").plans == (Claim(1.0, 0.0),)


def test_problems_that_do_not_fit_are_refused(uneven):
    data, graph = uneven
    with pytest.raises(ParameterError, match="needs a Problem; found AgentData"):
        warm_start(data, 1.0)
    with pytest.raises(MismatchError, match=r"Squared\(\) has no bounded slope"):
        warm_start(ct.Problem.personalized(data, graph, loss="squared"), 1.0)
    with pytest.raises(MismatchError, match="Location"):
        warm_start(ct.Problem.propagation(np.eye(6), graph), 1.0)
    with pytest.raises(MismatchError, match="stay in a ball"):
        warm_start(ct.Problem.boosting(data, graph, base=3), 1.0)
    with pytest.raises(MismatchError, match=r"Hinge\(\) has a kink"):
        warm_start(ct.Problem.personalized(data, graph, loss="hinge"), 1.0, kind="objective")
    with pytest.raises(ParameterError, match="ridge of agent 2 is 0"):
        warm_start(ct.Problem.personalized(data, graph, ridge=[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]), 1.0)
