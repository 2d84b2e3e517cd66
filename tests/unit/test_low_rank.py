"""Covariances in factors, against the same in matrices: formulas, rounds, and whole runs."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg, optimize

import coterie as ct
from coterie.errors import DataError, MissingDataError, ParameterError
from coterie.multitask import Factors, exact_weights
from coterie.multitask.alternation import (
    FIRST_RIDGE,
    FULL_RIDGE_TASKS,
    INEXACT,
    LAST_RIDGE,
    NEGLIGIBLE_RIDGE,
    SOLVED,
    Alternation,
)
from coterie.multitask.certificate import MEAN_RATES, Certificate
from coterie.multitask.covariance import (
    MAX_DENSE_TASKS,
    Dense,
    LowRank,
    best_covariance,
    checked_covariance,
    penalty,
    penalty_of_weights,
    separability,
    unrelated,
)
from coterie.multitask.spectrum import spectral_norm

pytestmark = pytest.mark.compiled

#: Tasks and features: many tasks; twice the features more than tasks; as many; more features.
SHAPES = [(40, 3), (7, 5), (6, 6), (5, 9), (2, 1)]


def matrix_of(Q, s, c):
    return (Q * s) @ Q.T + c * np.eye(len(Q))


def some_factors(seed, m, r, *, dead=False, rest=True):
    """Orthonormal directions, eigenvalues above and below the rest, trace one."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(m, r)) * np.exp(rng.normal(size=(m, 1))))[0]
    values = np.exp(2 * rng.normal(size=r))
    c = float(np.exp(rng.normal())) if rest and r < m else 0.0
    total = values.sum() + (m - r) * c
    s, c = (values - c) / total, c / total
    if dead and c == 0.0:
        Q = Q.copy()
        Q[0] = 0.0
    return Q, s, c


# -- formulas --------------------------------------------------------------------------------------------------------

CASES = [(12, 3, True), (12, 3, False), (5, 5, False), (9, 8, True), (4, 0, True)]


@pytest.mark.parametrize(("m", "r", "rest"), CASES)
@pytest.mark.parametrize("seed", range(3))
def test_factors_do_what_the_matrix_does(m, r, rest, seed):
    factors = some_factors(seed, m, r, rest=rest)
    low, full = LowRank(*factors), Dense(matrix_of(*factors))
    rng = np.random.default_rng(seed)
    V, close = rng.normal(size=(m, 4)), {"rtol": 0, "atol": 1e-13}
    np.testing.assert_allclose(low.dense(), full.matrix, **close)
    np.testing.assert_allclose(low @ V, full @ V, **close)
    np.testing.assert_allclose(low.diagonal(), full.diagonal(), **close)
    tasks = rng.permutation(m)[: max(2, m // 2)]
    np.testing.assert_allclose(low.rows(tasks), full.rows(tasks), **close)
    np.testing.assert_allclose(low.take(tasks).dense(), full.take(tasks).dense(), **close)
    np.testing.assert_allclose(low.take(tasks) @ V[tasks], full.take(tasks) @ V[tasks], **close)
    np.testing.assert_allclose(low.correlation(tasks), full.correlation(tasks), rtol=0, atol=1e-11)
    np.testing.assert_allclose(low.scaled(0.3).dense(), 0.3 * full.matrix, **close)
    assert penalty(V, low, 0.3) == pytest.approx(penalty(V, full, 0.3), rel=1e-12)
    W = full @ V
    assert penalty_of_weights(W, low, 0.3) == pytest.approx(penalty_of_weights(W, full, 0.3), rel=1e-9)
    for some in (low, low.take(tasks), full):
        Q, s, c = some.factors
        np.testing.assert_allclose(Q.T @ Q, np.eye(Q.shape[1]), **close)
        np.testing.assert_allclose(matrix_of(Q, s, c), some.dense(), **close)


@pytest.mark.parametrize(("m", "r", "rest"), CASES)
def test_weights_of_some_tasks_follow_every_change(m, r, rest):
    factors = some_factors(1, m, r, rest=rest)
    rng = np.random.default_rng(0)
    for covariance in (LowRank(*factors), Dense(matrix_of(*factors))):
        V = rng.normal(size=(m, 3))
        summary = covariance.summary(V)
        for _ in range(20):
            tasks = rng.permutation(m)[: rng.integers(1, m + 1)]
            change = rng.normal(size=(len(tasks), 3))
            V[tasks] += change
            covariance.update(summary, tasks, change)
            asked = rng.permutation(m)[: rng.integers(1, m + 1)]
            np.testing.assert_allclose(
                covariance.product(summary, V, asked), (matrix_of(*factors) @ V)[asked], rtol=0, atol=1e-12
            )


def test_the_spectral_norm():
    rng = np.random.default_rng(0)
    for shape in ((7, 3), (3, 7), (4, 4), (1, 5), (5, 1)):
        W = rng.normal(size=shape)
        assert spectral_norm(W) == pytest.approx(np.linalg.norm(W, 2), rel=1e-14)
    assert spectral_norm(np.zeros((3, 2))) == 0.0


# -- rho -------------------------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 10_000),
    m=st.integers(2, 30),
    r=st.integers(0, 12),
    rest=st.booleans(),
    dead=st.booleans(),
    part=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_rho_is_never_too_small(seed, m, r, rest, dead, part):
    factors = some_factors(seed, m, min(r, m), rest=rest or r == 0, dead=dead)
    low = LowRank(*factors)
    if part:
        low = low.take(np.random.default_rng(seed).permutation(m)[: max(1, m // 2)])
    C = low.correlation()
    exact, found = np.linalg.eigvalsh(C)[-1], separability(low)
    assert found >= exact * (1 - 1e-13)
    unit = np.where(low.diagonal() > 0, low.diagonal(), np.inf)
    pole = np.max(low.rest / unit)  # of tasks with less variance than the rest: their bound, if nothing else is larger
    assert found <= max(exact, pole) * (1 + 1e-8)
    assert separability(low, "lemma10") == pytest.approx(separability(low.dense(), "lemma10"), rel=1e-9)


@pytest.mark.parametrize("rest", [0.0, 1e-9, 1e-3, 1.0])
def test_rho_of_opposed_tasks(rest):
    # Half of the tasks are the opposite of the other half: the vector of the largest eigenvalue is orthogonal to ones.
    m = 200
    q = np.where(np.arange(m) < m // 2, 1.0, -1.0)[:, None] / math.sqrt(m)
    found = separability(LowRank(q, np.array([1.0]), rest / m))
    variance = 1 / m + rest / m
    assert found == pytest.approx((1.0 + rest / m) / variance, rel=1e-9)


def test_rho_of_lemma_10_by_blocks_of_rows():
    low = LowRank(*some_factors(0, 2_500, 2))
    assert separability(low, "lemma10") == pytest.approx(separability(low.dense(), "lemma10"), rel=1e-11)


# -- Omega-steps -----------------------------------------------------------------------------------------------------


def dense_best(W, ridge):
    """``(W W' + ridge^2 I)^(1/2)`` over its trace."""
    U, sizes, _ = np.linalg.svd(W)
    root = np.full(len(W), float(ridge))
    root[: len(sizes)] = np.hypot(sizes, ridge)
    return (U * (root / root.sum())) @ U.T


def dense_log(matrix):
    sizes, directions = np.linalg.eigh(matrix)
    least = LAST_RIDGE * min(1.0, FULL_RIDGE_TASKS / len(matrix)) * sizes[-1]
    return (directions * np.log(np.maximum(sizes, least))) @ directions.T


def dense_exp(matrix):
    matrix = linalg.expm(matrix - np.linalg.eigvalsh(matrix)[-1] * np.eye(len(matrix)))
    return 0.5 * (matrix + matrix.T) / np.trace(matrix)


def smoothed_bound(B, conjugate, ridge, lam):
    """A lower bound on ``losses + lam/2 tr((W W' + r^2 I)^(1/2))^2``, by a search for the best tau."""
    b = np.zeros(len(B))
    sizes = np.linalg.svd(B, compute_uv=False)
    b[: len(sizes)] = sizes
    scale = max(b[0], lam * ridge * len(b))

    def lower(up):
        tau = b[0] + scale * up**2
        return -(ridge * np.sum(np.sqrt(np.maximum(tau**2 - b**2, 0.0))) - tau**2 / (2 * lam))

    return (
        -optimize.minimize_scalar(lower, bounds=(0.0, 2.0), options={"xatol": 1e-10}, method="bounded").fun - conjugate
    )


class DenseAlternation:
    """Omega-steps as they are in matrices."""

    def __init__(self, budget, momentum=True):
        self.budget, self.momentum, self.steps, self.part, self.largest = budget, momentum, 0, FIRST_RIDGE, 0.0
        self.last, self.pace, self.value = None, 1.0, math.inf

    def smoothed(self, sizes, loss, lam, m):
        b = np.zeros(m)
        b[: len(sizes)] = sizes
        return loss + 0.5 * lam * np.hypot(b, self.ridge).sum() ** 2

    def step(self, weights, sizes, loss, bound, *, lam, gap, rounds):
        m, total = len(weights), sizes.sum() or np.linalg.norm(weights, "nuc")
        if self.steps:
            left = gap * (loss + 0.5 * lam * sizes.sum() ** 2)
            unsolved = (self.smoothed(sizes, loss, lam, m) - bound(self.ridge)) / left if left < math.inf else 1.0
            fastest, slowest = (factor**rounds for factor in INEXACT)
            if 2 * self.steps > self.budget and self.part > NEGLIGIBLE_RIDGE:
                slowest = min(slowest, (NEGLIGIBLE_RIDGE / self.part) ** (1.0 / max(1, self.budget - self.steps - 1)))
            self.part = max(self.part * min(slowest, max(fastest, 0.5, unsolved / SOLVED)), LAST_RIDGE)
        self.steps, self.largest = self.steps + 1, max(self.largest, total)
        self.ridge = self.part * min(1.0, FULL_RIDGE_TASKS / m) * self.largest
        value, goal = self.smoothed(sizes, loss, lam, m), dense_log(dense_best(weights, self.ridge))
        if value > self.value or not self.momentum:
            self.last, self.pace = None, 1.0
        pace = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * self.pace**2))
        ahead = goal if self.last is None else goal + (self.pace - 1.0) / pace * (goal - self.last)
        self.last, self.pace, self.value = goal, pace, value
        return dense_exp(ahead)


@pytest.mark.parametrize(("m", "d"), SHAPES)
def test_omega_steps_are_those_in_matrices(m, d):
    rng = np.random.default_rng(0)
    ours, theirs = Alternation(60), DenseAlternation(60)
    start, goal = rng.normal(size=(2, m, d))
    goal[:, 0] *= 1e-6  # a direction that is all but lost
    for k in range(60):
        W = goal + 0.8**k * start + 1e-3 * rng.normal(size=(m, d)) * (k % 7 == 0)
        sizes = np.linalg.svd(W, compute_uv=False)
        loss = 1.0 / (k + 1) + (0.5 if k == 40 else 0.0)  # once the momentum has to restart
        given = {"bound": lambda ridge: -1.0 - ridge, "lam": 0.1, "gap": 0.5**k, "rounds": 1}
        one, two = ours.step(W, sizes, loss, **given), theirs.step(W, sizes, loss, **given)
        assert one.directions.shape[1] <= min(m, 2 * d)
        np.testing.assert_allclose(one.dense(), two, rtol=0, atol=1e-11)
        eigenvalues = np.linalg.eigvalsh(two)
        np.testing.assert_allclose(
            np.linalg.eigvalsh(one.dense()), eigenvalues, rtol=1e-6, atol=1e-14
        )  # small ones keep their digits, too
        assert one.diagonal().sum() == pytest.approx(1.0, abs=1e-12)
    assert ours.ridge(m) == pytest.approx(theirs.ridge, rel=1e-12)


# -- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "d"), SHAPES)
@pytest.mark.parametrize("ridge", [1e-6, 1e-2, 1.0])
def test_the_smoothed_bound(m, d, ridge):
    rng = np.random.default_rng(0)
    B, C, lam = rng.normal(size=(m, d)), 0.3, 0.2
    certificate = Certificate(lam)
    certificate.add(B, C)
    found = certificate.smoothed(ridge)
    assert found == pytest.approx(smoothed_bound(B, C, ridge, lam), rel=1e-9)
    s = np.linalg.svd(B, compute_uv=False)

    def objective(sizes):  # the least that losses can be, and the penalty, along the singular vectors of B
        b = np.zeros(m)
        b[: len(sizes)] = sizes
        return -C - sizes @ s + 0.5 * lam * np.hypot(b, ridge).sum() ** 2

    best = optimize.minimize(objective, s / lam, bounds=[(0, None)] * len(s), options={"ftol": 1e-15, "gtol": 1e-10})
    assert found == pytest.approx(best.fun, rel=1e-5)  # it is tight
    assert found <= best.fun + 1e-9 * abs(best.fun)
    for _ in range(50):
        W = rng.normal(size=(m, d)) * np.exp(3 * rng.normal())
        eigenvalues = np.maximum(np.linalg.eigvalsh(W @ W.T), 0.0)
        value = -C - np.sum(B * W) + 0.5 * lam * np.sqrt(eigenvalues + ridge**2).sum() ** 2
        assert value >= found - 1e-9 * abs(found)


@pytest.mark.compiled
def test_means_over_rounds_are_bounds_too():
    data, lam = tasks_of(9, 3, classes=False), 0.1
    best = ct.relationship(data, "squared", lam, method="exact", tol=1e-7).value
    rng, certificate, X, y = np.random.default_rng(0), Certificate(lam), np.asarray(data.X), data.y
    a, bounds, rounds = np.zeros(len(y)), [], []
    for _ in range(40):
        a += 0.3 * rng.normal(size=len(y)) * np.abs(y)
        B = np.stack([X[data.owner == i].T @ a[data.owner == i] / data.sizes[i] for i in range(data.n)])
        rounds.append((B, float(np.sum((a**2 / 2 - a * y) / data.sizes[data.owner]))))
        certificate.add(*rounds[-1])
        bounds.append(certificate.joint)
        assert certificate.joint <= best
    assert len(set(bounds)) == 40
    last, *means = (
        tuple(
            sum((part if k else 1.0) * (1 - part) ** (39 - k) * value[which] for k, value in enumerate(rounds))
            for which in (0, 1)
        )
        for part in (1.0, *MEAN_RATES)
    )
    wanted = [-C - np.linalg.norm(B, 2) ** 2 / (2 * lam) for B, C in (last, *means)]
    assert certificate.joint == pytest.approx(max(wanted), rel=1e-10)
    assert wanted[0] < min(wanted[1:])  # here, means are better


# -- whole runs ------------------------------------------------------------------------------------------------------


def tasks_of(m, d, rows=8, seed=0, classes=True):
    """Two families, and their opposites."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(2, d))[rng.integers(2, size=m)] * rng.choice([-1.0, 1.0], m)[:, None]
    W += 0.4 * rng.normal(size=(m, d))
    ids = np.repeat(np.arange(m), rows)
    X = rng.normal(size=(len(ids), d))
    y = np.einsum("rk,rk->r", X, W[ids]) + rng.normal(size=len(ids))
    return ct.AgentData(X, np.where(y > 0, 1.0, -1.0) if classes else y, ids)


CONVERGED = {
    "waiting": {},
    "stale": {"staleness": 2},
    "one after the other": {"method": "sdca"},
    "without momentum": {"momentum": False, "tol": 1e-4},
}


@pytest.mark.compiled
@pytest.mark.parametrize("way", CONVERGED)
@pytest.mark.parametrize(("m", "d"), [(40, 3), (4, 9)])
def test_many_tasks_reach_the_joint_optimum(way, m, d):
    data, lam = tasks_of(m, d, classes=False), 0.02
    exact = ct.relationship(data, "squared", lam, method="exact", tol=1e-5)
    found = ct.relationship(data, "squared", lam, **CONVERGED[way])
    assert exact.converged
    assert found.converged
    assert exact.bound <= found.value <= exact.value * (1 + CONVERGED[way].get("tol", 5e-5))
    assert found.bound <= exact.value
    np.testing.assert_allclose(found.correlation, exact.correlation, rtol=0, atol=0.05)


@pytest.mark.parametrize("name", ["squared", "hinge"])
@pytest.mark.parametrize(
    "variant", [{}, {"staleness": 3}, {"method": "sdca"}, {"eta": 0.5}, {"rho": "lemma10"}], ids=str
)
@pytest.mark.parametrize("rest", [0.0, 0.01])
def test_a_covariance_given_in_factors_has_the_optimum_of_the_matrix(name, variant, rest):
    data = tasks_of(12, 4, classes=name == "hinge")
    rng = np.random.default_rng(1)
    Q, s = rng.normal(size=(12, 3)), np.array([0.5, 0.3, 0.2])  # not orthonormal
    total = np.trace(matrix_of(Q, s, rest))
    factors = Q, s / total, rest / total
    matrix = matrix_of(*factors)
    best = exact_weights(data, name, 0.1, matrix)
    np.testing.assert_allclose(exact_weights(data, name, 0.1, factors), best, rtol=0, atol=1e-6)
    found = ct.relationship(data, name, 0.1, covariance=factors, **variant)
    dense = ct.relationship(data, name, 0.1, covariance=matrix, **variant)
    assert found.converged
    assert found.value == pytest.approx(dense.value, rel=2e-7)
    np.testing.assert_allclose(found.weights, best, rtol=0, atol=3e-3)
    np.testing.assert_allclose(found.covariance, matrix, rtol=0, atol=1e-14)
    again = ct.relationship(data, name, 0.1, covariance=found.factors, **variant)
    # What comes out may go in: the same factors are brought to the same form, up to the rounding of the linear algebra.
    np.testing.assert_allclose(again.weights, found.weights, rtol=0, atol=1e-7)


def landmines():
    """Standardised."""
    try:
        data = ct.datasets.landmine(seed=0).train
    except MissingDataError as error:
        pytest.skip(str(error))
    return data._like(X=(data.X - data.X.mean(axis=0)) / np.maximum(data.X.std(axis=0), 1e-9))


@pytest.mark.parametrize("staleness", [None, 2])
def test_landmines_reach_the_joint_optimum(staleness):
    data = landmines()
    exact = ct.relationship(data, "logistic", 0.3, method="exact", tol=1e-5)
    found = ct.relationship(data, "logistic", 0.3, staleness=staleness)
    assert found.converged
    assert exact.bound <= found.value <= exact.value * (1 + 5e-5)
    assert found.bound <= exact.value


# -- size ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [{}, {"covariance": True}, {"method": "single-task"}], ids=["learned", "given", "alone"]
)
def test_no_matrix_of_all_pairs_is_made(given):
    m, d = 6_000, 3
    data = tasks_of(m, d, rows=2)
    if given.get("covariance"):
        given = {"covariance": Factors(*some_factors(0, m, 3))}
    ct.relationship(data.only(range(20)), "logistic", 0.1, alternations=2, rounds=2)  # compiled
    tracemalloc.start()
    found = ct.relationship(data, "logistic", 0.1, alternations=4, rounds=2, **given)
    some = found.correlation_of([3, 5_999])
    found.factors, found.model(5_999)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6  # a matrix would take 288 MB
    assert some.shape == (2, 2)


@pytest.mark.slow
def test_an_estimator_makes_no_matrix_of_all_pairs(tmp_path):
    m = 4_000
    data = tasks_of(m, 2, rows=3, classes=False)
    ct.RelationshipRegressor(tol=0.5).fit(data.X[:60], data.y[:60], agents=data.owner[:60])  # compiled
    tracemalloc.start()
    with pytest.warns(UserWarning, match="stopped before"):
        model = ct.RelationshipRegressor(max_iter=3).fit(data.X, data.y, agents=data.owner)
    again = ct.load(ct.save(model, tmp_path))
    again.correlation([1, 2])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6  # a matrix would take 128 MB
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1e6
    np.testing.assert_array_equal(again.factors_.directions, model.factors_.directions)


def test_a_matrix_that_is_too_large_is_refused():
    m = MAX_DENSE_TASKS + 1
    data = ct.AgentData(np.ones((m, 1)), np.where(np.arange(m) % 2, 1.0, -1.0), [f"t{k}" for k in range(m)])
    found = ct.relationship(data, "squared", 0.1, alternations=3, tol=0.5)
    for name in ("covariance", "correlation"):
        with pytest.raises(ParameterError, match=r"covariance of 16,001 tasks as a matrix would take 2 GB.*factors"):
            getattr(found, name)
    np.testing.assert_allclose(found.correlation_of(["t1", "t2", "t3"]), [[1, -1, 1], [-1, 1, -1], [1, -1, 1]])
    assert found.model("t2") == pytest.approx(-found.model("t1"))
    Q, s, c = found.factors
    assert (Q.shape, s.shape, c) == ((m, 1), (1,), 0.0)
    with pytest.raises(DataError, match="no task 't0x'; there are 16001"):
        found.correlation_of(["t1", "t0x"])


# -- what is refused -------------------------------------------------------------------------------------------------

ONES = np.ones((3, 1)) / math.sqrt(3)


@pytest.mark.parametrize(
    ("factors", "says"),
    [
        (
            (np.ones((4, 1)), [1.0], 0.0),
            r"Q of the covariance's factors must have 3 rows, one for each task; found \(4, 1\)",
        ),
        ((np.ones(3), [1.0], 0.0), r"Q of the covariance's factors must have 3 rows"),
        ((ONES, [1.0, 2.0], 0.0), r"s of the covariance's factors must have a number for each of the 1 columns"),
        ((np.where(np.arange(3)[:, None] == 1, np.nan, ONES), [1.0], 0.0), "has nan for task 'b', column 0"),
        ((ONES, [np.inf], 0.0), "s and c of the covariance's factors must be finite"),
        ((ONES, [1.0], np.nan), "s and c of the covariance's factors must be finite"),
        ((ONES, ["one"], 0.0), "must be numbers"),
        ((ONES, [1.0], "none"), "must be numbers"),
        ((ONES, [-0.5], 0.4), "not positive semidefinite: its smallest eigenvalue is -0.1"),
        ((ONES, [1.3], -0.1), "not positive semidefinite: its smallest eigenvalue is -0.1"),
        ((ONES, [1.0], 0.5), "trace 2.5: it must be 1"),
        ((ONES, [1.0]), r"must be a matrix of numbers, or factors \(Q, s, c\)"),
    ],
)
def test_factors_that_are_wrong_are_refused(factors, says):
    data = ct.AgentData(np.ones((3, 2)), [1.0, 2.0, 3.0], ["a", "b", "c"])
    with pytest.raises(ParameterError, match=says):
        ct.relationship(data, "squared", covariance=factors)


def test_three_rows_are_a_matrix_and_not_factors():
    rows = ((0.5, 0.1, 0.0), (0.1, 0.25, 0.0), (0.0, 0.0, 0.25))
    np.testing.assert_array_equal(checked_covariance(rows, "abc").dense(), rows)


def test_more_columns_than_tasks_are_too_many_but_right():
    Q, s = np.random.default_rng(0).normal(size=(3, 5)), np.array([1.0, 0.5, 0.2, -0.01, 0.0])
    wanted = matrix_of(Q, s, 0.3)
    low = checked_covariance((Q, s, 0.3), "abc", unit=False)
    assert low.factors.directions.shape == (3, 3)
    np.testing.assert_allclose(low.dense(), wanted, rtol=0, atol=1e-13)
    assert separability(low) == pytest.approx(separability(wanted), rel=1e-9)


def test_tasks_without_relations_are_factors_without_columns():
    low = unrelated(4)
    assert low.factors.directions.shape == (4, 0)
    np.testing.assert_array_equal(low.dense(), np.eye(4) / 4)
    assert separability(low) == pytest.approx(1.0, rel=1e-9)
    assert isinstance(best_covariance(np.zeros((4, 2))), LowRank)


@pytest.mark.parametrize("seed", range(6))
def test_rho_of_factors_with_negative_sizes_is_a_bound_and_near(seed):
    rng = np.random.default_rng(seed)
    m, r = 30, 4
    Q = np.linalg.qr(rng.normal(size=(m, r)))[0]
    covariance = LowRank(Q, -rng.uniform(0.2, 0.999, size=r) * (np.arange(r) > 0), 1.0)
    expected = float(np.linalg.eigvalsh(covariance.correlation())[-1])
    found = covariance.largest_correlation()
    assert expected * (1.0 - 1e-12) <= found <= expected * (1.0 + 1e-3)
