"""How many rounds the strengths take, and where they end: also with little noise, and where steps are slow."""

import numpy as np
import pytest

import coterie as ct
from coterie.pooling.blocks import InColumns
from coterie.pooling.leaps import Leaps


def rows(n, m, p, slopes, levels, noise, seed=0):
    """Rows of agents with slopes and levels of their own, of these standard deviations; the noise's is relative."""
    rng = np.random.default_rng(seed)
    ids, X = np.repeat(np.arange(n), m), rng.normal(1000.0, 50.0, size=(n * m, p))
    Z = (X - 1000.0) / 50.0
    z = Z @ rng.normal(size=p) + (Z * (slopes * rng.normal(size=(n, p)))[ids]).sum(axis=1)
    z = z + levels * z.std() * rng.normal(size=n)[ids]
    return X, z + noise * z.std() * rng.normal(size=n * m), ids


@pytest.mark.parametrize(
    ("shape", "slopes", "levels", "noise", "deviations", "evidence"),
    [  # the evidence is what plain steps find in 150 rounds and more
        ((30, 20, 2), 0.0, 10.0, 3e-4, "full", 3690.5),
        ((30, 20, 2), 0.0, 10.0, 3e-4, "diagonal", 3689.1),
        ((100, 20, 1), 0.0, 1.0, 3e-4, "diagonal", 12441.4),
        ((100, 5, 5), 0.5, 1.0, 3e-4, "diagonal", -45.6),
        ((100, 5, 5), 0.5, 1.0, 3e-4, "full", -37.1),
    ],
)
def test_little_noise_takes_no_more_rounds(shape, slopes, levels, noise, deviations, evidence):
    """Rounding once made the noise go up and down until rounds ran out; and where noise fell slowly, so did all."""
    X, y, ids = rows(*shape, slopes, levels, noise)
    model = ct.CollaborativeRegressor(design="linear", deviations=deviations).fit(X, y, agents=ids)
    assert model.n_iter_ <= 60
    assert model.log_evidence_ > evidence


def test_blocks_keep_their_digits():
    """Rows that say a billion times more than V does: C_i = (V + H_i^-1)^-1 is nearly V^-1."""
    H = 1e8 * np.array([[[1.0, 0.3, 0.1], [0.3, 1.0, 0.2], [0.1, 0.2, 1.0]]])
    for V in (np.array([1.0, 2e-9, 5.0]), np.array([[1.0, 0.2, 0.0], [0.2, 2.0, 0.1], [0.0, 0.1, 5.0]])):
        full = np.diag(V) if V.ndim == 1 else V
        C = InColumns.of(H, V).C[0]
        exact = np.linalg.inv(full + np.linalg.inv(H[0]))
        scale = np.sqrt(np.diag(exact))
        assert np.abs((C - exact) / np.outer(scale, scale)).max() < 1e-12
        # What is left of a gradient is a difference from it, times what is lost here.
        assert np.abs(full @ C @ full + np.linalg.inv(H[0] + np.linalg.inv(full)) - full).max() < 1e-14 * full.max()


def test_leaps_find_a_slow_fixed_point_and_leave_one_that_repels():
    """x -> A x with rates near one: plain steps take thousands of rounds. And none goes back to where steps grow."""
    A, x, leaps = np.diag([0.99, 0.9, 0.3]), np.array([1.0, -2.0, 3.0]), Leaps()
    for _k in range(25):
        x = leaps.after(x, A @ x, np.ones(3), -float(x @ x))
    assert np.abs(x).max() < 1e-3
    assert leaps.left < 1e-3
    A, x, leaps = np.diag([1.05, 0.5]), np.array([1e-3, 1e-3]), Leaps()
    for _k in range(25):
        x = leaps.after(x, A @ x, np.ones(2), float(x[0] ** 2 - x[1] ** 2))
    assert abs(x[0]) > 0.1  # plain steps: 0.0034
    assert leaps.left == np.inf
