"""The exact W-step of multi-task relationship learning: certified by duality, and against other solvers."""

import numpy as np
import pytest
from scipy import sparse

import coterie as ct
from coterie.errors import DataError, ParameterError
from coterie.multitask import exact
from coterie.multitask.exact import exact_weights
from references import dense, loads

SIZES = (5, 9, 1, 14, 7)
LAM = 0.05

SMOOTH = {
    "squared": ct.Squared(),
    "logistic": ct.Logistic(),
    "smooth-hinge": ct.SmoothHinge(0.3),
    "huber": ct.Huber(0.4),
}
PIECES = {"hinge": ct.Hinge(), "smooth-hinge": ct.SmoothHinge(0.3), "huber": ct.Huber(0.4)}


def _covariances():
    rng = np.random.default_rng(7)
    m = len(SIZES)
    full = rng.normal(size=(m, m))
    signs = np.array([[1.0, -1.0, 0.5, -2.0, 1.0]])  # rank 1, and negative correlations
    low = rng.normal(size=(m, 2))
    zero = np.vstack([full[:2], np.zeros((1, m)), full[3:]])
    groups = np.zeros((m, m))
    groups[:2, :2], groups[3:, 3:], groups[2, 2] = full[:2, :2], full[3:, 3:], 1.0
    found = {"full": full, "rank-1": signs.T, "rank-2": low, "zero-task": zero, "groups": groups}
    return {name: root @ root.T / np.sum(root**2) for name, root in found.items()}


COVARIANCES = _covariances()


def make(loss, kind="dense", sizes=SIZES, d=4, seed=0):
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    X = rng.normal(size=(owner.size, d)) * (rng.random((owner.size, d)) < 0.7)
    y = np.einsum("rk,rk->r", X, rng.normal(size=(len(sizes), d))[owner]) + rng.normal(size=owner.size)
    y = np.where(y > 0, 1.0, -1.0) if loss.labels == "-1 or +1" else y
    return ct.AgentData(sparse.csr_array(X) if kind == "sparse" else X, y, owner, members=range(len(sizes)))


def primal(data, loss, lam, sigma, weights):
    values = np.array([loss.value(z, y) for z, y in zip(margins(data, weights), data.y, strict=True)])
    return (values / data.sizes[data.owner]).sum() + lam / 2 * np.sum(weights * (np.linalg.pinv(sigma) @ weights))


def margins(data, weights):
    return np.asarray(data.X @ weights.T)[np.arange(data.n_rows), data.owner]


def dual(data, loss, lam, sigma, a):
    conjugates = np.array([loss.conjugate(-u, y) for u, y in zip(a, data.y, strict=True)])
    b = loads(data, a)
    return -np.sum(b * (sigma @ b)) / (2 * lam) - (conjugates / data.sizes[data.owner]).sum()


def assert_optimal(data, loss, lam, sigma, weights):
    """Optimality of a loss with a gradient: W = Sigma B / lam, and no duality gap."""
    a = np.array([-loss.derivative(z, y) for z, y in zip(margins(data, weights), data.y, strict=True)])
    np.testing.assert_allclose(weights, sigma @ loads(data, a) / lam, rtol=0, atol=1e-8 * np.abs(weights).max())
    # W is in the range of Sigma, so the penalty is that of Sigma B / lam: no inverse (erratum 29).
    values = np.array([loss.value(z, y) for z, y in zip(margins(data, weights), data.y, strict=True)])
    b = loads(data, a)
    p = (values / data.sizes[data.owner]).sum() + np.sum(b * (sigma @ b)) / (2 * lam)
    assert abs(p - dual(data, loss, lam, sigma, a)) <= 1e-10 * p


def coordinate_ascent(data, loss, lam, sigma, sweeps=4000):
    """Maximise D one coordinate at a time, for a conjugate ``u y + kappa u^2 / 2`` on an interval."""
    X = dense(data)
    share = 1 / data.sizes[data.owner]
    kernel = sigma[np.ix_(data.owner, data.owner)] * (X @ X.T) * np.outer(share, share) / lam
    low, high = np.array([loss.domain(y) for y in data.y]).T
    ridge = share * loss.dual_curvature
    bend = np.diagonal(kernel) + ridge + 1e-30  # a row whose dual is linear goes to its bound
    a, target = np.zeros(data.n_rows), share * data.y
    for _ in range(sweeps):
        before = a.copy()
        for r in range(data.n_rows):
            ahead = a[r] + (target[r] - kernel[r] @ a - ridge[r] * a[r]) / bend[r]
            a[r] = min(max(ahead, -high[r]), -low[r])
        if np.abs(a - before).max() <= 1e-14:
            break
    return a


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("name", COVARIANCES)
@pytest.mark.parametrize("loss", SMOOTH.values(), ids=SMOOTH)
def test_no_duality_gap(loss, name, kind):
    data, sigma = make(loss, kind), COVARIANCES[name]
    weights = exact_weights(data, loss, LAM, sigma)
    assert weights.shape == (data.n, data.p)
    assert_optimal(data, loss, LAM, sigma, weights)


@pytest.mark.parametrize("name", COVARIANCES)
@pytest.mark.parametrize("loss", PIECES.values(), ids=PIECES)
def test_pieces_against_dual_coordinate_ascent(loss, name):
    data, sigma = make(loss, "sparse" if name == "full" else "dense"), COVARIANCES[name]
    a = coordinate_ascent(data, loss, 0.5, sigma)
    other = sigma @ loads(data, a) / 0.5
    lower = dual(data, loss, 0.5, sigma, a)
    assert primal(data, loss, 0.5, sigma, other) - lower <= 1e-9 * lower  # the reference itself is good
    weights = exact_weights(data, loss, 0.5, sigma)
    assert -1e-12 <= primal(data, loss, 0.5, sigma, weights) / lower - 1 <= 1e-9
    np.testing.assert_allclose(weights, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize("loss", [SMOOTH["smooth-hinge"], SMOOTH["huber"]], ids=["smooth-hinge", "huber"])
def test_newton_in_pieces_is_the_interior_point(loss, monkeypatch):
    data, sigma = make(loss), COVARIANCES["full"]
    expected = exact_weights(data, loss, LAM, sigma)
    monkeypatch.setattr(exact, "MAX_SYSTEM_WORK", 0)
    weights = exact_weights(data, loss, LAM, sigma)
    np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-8)
    assert_optimal(data, loss, LAM, sigma, weights)


@pytest.mark.parametrize("loss", [*SMOOTH.values(), ct.Hinge()], ids=[*SMOOTH, "hinge"])
def test_independent_tasks_are_separate_ridge_problems(loss):
    data, m = make(loss), len(SIZES)
    weights = exact_weights(data, loss, LAM, np.eye(m) / m)
    for i in range(m):
        X, y = data.rows_of(i)
        one = ct.AgentData(np.vstack([X, X]), np.concatenate([y, y]), np.repeat([0, 1], len(y)))
        # The same task twice, and fully correlated: Newton with a singular Sigma has to find the same weights.
        twice = exact_weights(one, loss, 2 * LAM, np.full((2, 2), 1 / m))
        np.testing.assert_allclose(twice, np.vstack([weights[i], weights[i]]), rtol=0, atol=1e-6)
        if isinstance(loss, ct.Squared):
            ridge = np.linalg.solve(X.T @ X / len(y) + LAM * m * np.eye(data.p), X.T @ y / len(y))
            np.testing.assert_allclose(weights[i], ridge, rtol=0, atol=1e-12)


def test_squared_loss_is_one_linear_system():
    loss = ct.Squared()
    data, sigma = make(loss), COVARIANCES["full"]
    X = np.zeros((data.n_rows, data.n, data.p))
    X[np.arange(data.n_rows), data.owner] = data.X
    X = X.reshape(data.n_rows, -1)
    share = 1 / data.sizes[data.owner]
    hessian = X.T @ (share[:, None] * X) + LAM * np.kron(np.linalg.inv(sigma), np.eye(data.p))
    expected = np.linalg.solve(hessian, X.T @ (share * data.y)).reshape(data.n, data.p)
    np.testing.assert_allclose(exact_weights(data, loss, LAM, sigma), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("loss", [ct.Squared(), ct.Hinge()], ids=["squared", "hinge"])
def test_a_task_without_variance_is_zero(loss):
    data, sigma = make(loss), COVARIANCES["zero-task"]
    rounded = sigma.copy()
    rounded[2, 0] = rounded[0, 2] = 1e-18  # what a square root by eigenvectors may leave
    for given in (sigma, rounded):
        weights = exact_weights(data, loss, LAM, given)
        assert not weights[2].any()
        assert weights[[0, 1, 3, 4]].all(axis=1).all()


def test_rank_one_weights_are_proportional():
    sigma = COVARIANCES["rank-1"]
    weights = exact_weights(make(ct.Logistic()), "logistic", LAM, sigma)
    np.testing.assert_allclose(weights / np.array([1.0, -1.0, 0.5, -2.0, 1.0])[:, None], weights[:1] + 0 * weights)


@pytest.mark.parametrize("name", ["full", "rank-2"])
def test_a_task_without_rows_follows_its_covariances(name):
    loss, sigma = ct.Logistic(), COVARIANCES[name]
    data = make(loss, sizes=(6, 0, 8, 5, 9))
    weights = exact_weights(data, loss, LAM, sigma)
    assert weights[1].any()
    assert_optimal(data, loss, LAM, sigma, weights)


def test_no_rows_at_all():
    data = ct.AgentData(np.zeros((0, 3)), np.zeros(0), [], members=range(2))
    assert not exact_weights(data, "squared", 1.0, np.full((2, 2), 0.5)).any()
    data = ct.AgentData(np.ones((2, 3)), np.ones(2), [2, 2], members=range(3))  # none in the pair of tasks 0 and 1
    weights = exact_weights(data, "squared", 1.0, [[0.3, 0.1, 0.0], [0.1, 0.3, 0.0], [0.0, 0.0, 0.4]])
    assert not weights[:2].any()
    assert weights[2].all()


def test_unlabelled_points_have_means():
    points = ct.AgentData([[1.0, 0.0], [3.0, 0.0], [0.0, 4.0]], agents=[0, 0, 1])
    sigma, lam = np.array([[0.5, 0.2], [0.2, 0.5]]), 0.7
    expected = np.linalg.solve(np.eye(2) + lam * np.linalg.inv(sigma), np.array([[2.0, 0.0], [0.0, 4.0]]))
    np.testing.assert_allclose(exact_weights(points, ct.Location(ct.Squared()), lam, sigma), expected, atol=1e-12)


def test_gram_matrices_in_chunks(monkeypatch):
    loss, sigma = ct.Squared(), COVARIANCES["full"]
    for kind in ("dense", "sparse"):
        data = make(loss, kind)
        expected = exact_weights(data, loss, LAM, sigma)
        with monkeypatch.context() as patch:
            patch.setattr(exact, "MAX_WORK_ENTRIES", 2 * data.p**2)
            np.testing.assert_allclose(exact_weights(data, loss, LAM, sigma), expected, rtol=0, atol=1e-12)


def test_what_is_too_large_is_refused(monkeypatch):
    wide = ct.AgentData(sparse.csr_array((2, 4000)), [1.0, -1.0], [0, 1])
    with pytest.raises(ParameterError, match=r"8000 unknowns .*sdca"):
        exact_weights(wide, "squared", 1.0, [[0.5, 0.1], [0.1, 0.5]])
    assert not exact_weights(wide, "squared", 1.0, np.eye(2)).any()  # independent tasks may be wide
    monkeypatch.setattr(exact, "MAX_SYSTEM_WORK", 10)
    with pytest.raises(ParameterError, match=r"too many for the exact solver with Hinge.*sdca"):
        exact_weights(make(ct.Hinge()), "hinge", 1.0, COVARIANCES["full"])


@pytest.mark.parametrize(
    ("covariance", "message"),
    [
        (np.eye(3), "shape"),
        ([[1.0, np.nan], [np.nan, 1.0]], "finite"),
        ([[1.0, 0.5], [0.0, 1.0]], "symmetric"),
        ([[1.0, 2.0], [2.0, 1.0]], "positive semidefinite"),
    ],
)
def test_bad_covariances(covariance, message):
    data = ct.AgentData([[1.0], [2.0]], [1.0, 2.0], [0, 1])
    with pytest.raises(ParameterError, match=message):
        exact_weights(data, "squared", 1.0, covariance)


def test_bad_parameters():
    data = ct.AgentData([[1.0], [2.0]], [1.0, 2.0], [0, 1])
    with pytest.raises(ParameterError, match="lam"):
        exact_weights(data, "squared", 0.0, np.eye(2))
    with pytest.raises(ParameterError, match="unknown loss"):
        exact_weights(data, "cubed", 1.0, np.eye(2))
    with pytest.raises(DataError, match="row 1"):
        exact_weights(data, "hinge", 1.0, np.eye(2))
    with pytest.raises(ParameterError, match="AgentData"):
        exact_weights([[1.0]], "squared", 1.0, np.eye(1))
