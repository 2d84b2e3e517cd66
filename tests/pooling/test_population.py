"""Newton's method, evidence, limits and recovery of the population, against dense algebra and integrals."""

from __future__ import annotations

import numpy as np
import pytest
from populations import batched, covariance, drawn, gaussian, joint, learner, matrix, newton, prior, split
from scipy import integrate, stats

from coterie.pooling import fit
from coterie.pooling import sample as module
from coterie.pooling.families import FAMILIES
from coterie.pooling.population import INTERCEPT_PRECISION, Population, geometric_mean
from coterie.pooling.posterior import posterior
from coterie.pooling.sample import laplace_correction, left_out

EVERYTHING = ("squared", "student", "logistic", "poisson")
SIZES = np.array([1, 7, 3, 12, 2])  # some with fewer rows than columns, some with more


def settled(batches, q, n, V, r, s2, family, steps=60):
    """The mode of (w, D) for given strengths."""
    w, D = np.zeros(q), np.zeros((n, q))
    for _ in range(steps):
        mode = newton(batches, w, D, V, r, s2, FAMILIES[family], evidence=True)
        w, D = mode.w, mode.D
    return mode


# -- Newton's method ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", EVERYTHING)
@pytest.mark.parametrize("kind", ["diagonal", "full", "zeros", "full with zeros"])
def test_a_step_is_newtons_on_the_whole_system(family, kind):
    rng = np.random.default_rng(0)
    n, q, r, s2 = len(SIZES), 4, 0.7, 0.6
    X, y, codes, _ = drawn(rng, n, 0, q, family, w=0.3 * rng.normal(size=q), sizes=SIZES)
    weight = rng.integers(1, 4, size=len(y)).astype(float)
    V, rule = covariance(rng, q, kind), FAMILIES[family]
    free = np.diag(matrix(V)) > 0.0
    parts = batched(X, y, codes, n, weight)
    mode = settled(parts, q, n, V, r, s2, family)
    w = mode.w + 0.1 * rng.normal(size=q)  # so near that a full step is taken
    D = mode.D + np.where(free, 0.1 * rng.normal(size=(n, q)), 0.0)
    mode = newton(parts, w, D, V, r, s2, rule)
    Z, P = joint(X, codes, n, free), prior(n, V, r, free)
    t = np.concatenate([w, D[:, free].ravel()])
    z = Z @ t
    gradient = Z.T @ (weight * rule.slope(z, y, s2)) + P @ t
    for batch in parts:  # the correction goes to w
        T = w + D[batch.agents]
        gradient[:q] += laplace_correction(batch, T, batch.block(T, rule, s2, V), rule, V).sum(axis=0)
    H = (Z * (weight * rule.curvature(z, s2))[:, None]).T @ Z + P
    new_w, new_d = split(t - np.linalg.solve(H, gradient), n, q, free)
    np.testing.assert_allclose(mode.w, new_w, atol=1e-8)
    np.testing.assert_allclose(mode.D, new_d, atol=1e-8)
    inverse = np.linalg.inv(H)
    np.testing.assert_allclose(mode.cov, inverse[:q, :q], atol=1e-7)


@pytest.mark.parametrize("family", EVERYTHING)
def test_the_end_is_stationary(family):
    rng = np.random.default_rng(1)
    n, q, r, s2 = len(SIZES), 4, 0.7, 0.6
    X, y, codes, _ = drawn(rng, n, 0, q, family, w=0.3 * rng.normal(size=q), sizes=SIZES)
    V, rule, parts = covariance(rng, q, "full"), FAMILIES[family], batched(X, y, codes, n)
    mode = settled(parts, q, n, V, r, s2, family, steps=200)
    total = np.append(np.full(q - 1, r), INTERCEPT_PRECISION) * mode.w + mode.b.sum(axis=0)
    for batch in parts:
        own = batch.gradient(mode.w + mode.D[batch.agents], rule, s2)
        np.testing.assert_allclose(own + np.linalg.solve(V, mode.D[batch.agents].T).T, 0.0, atol=1e-5)
        total += own.sum(axis=0)
    np.testing.assert_allclose(total, 0.0, atol=1e-5)


def test_a_step_too_far_is_taken_back():
    """From far away, a full Newton step on counts explodes; the objective must not rise."""
    rng = np.random.default_rng(2)
    X, y, codes, _ = drawn(rng, 6, 8, 3, "poisson", w=[0.5, 0.0, 1.0])
    parts, w, D = batched(X, y, codes, 6), np.array([3.0, -3.0, -4.0]), np.zeros((6, 3))
    V = np.ones(3)

    def value(w, D):
        losses = sum(batch.loss(w + D[batch.agents], FAMILIES["poisson"], 1.0).sum() for batch in parts)
        return losses + 0.5 * np.sum(D**2) + 0.5 * float(w[:2] @ w[:2])

    values = [value(w, D)]
    for _ in range(40):
        mode = newton(parts, w, D, V, 1.0, 1.0, FAMILIES["poisson"])
        w, D = mode.w, mode.D
        values.append(value(w, D))
    assert values[1] < values[0]
    assert mode.moved < 1e-6
    assert values[-1] < 0.1 * values[0]


def test_the_correction_is_the_gradient_of_half_the_log_determinants(monkeypatch):
    """b_i = (I - J_i)' c_i: what log |A_i| / 2 gains when w moves and d_i follows; as long as it is not saturated."""
    monkeypatch.setattr(module, "SATURATION_VARIANCE", 1e300)
    rng = np.random.default_rng(3)
    q = 3
    for family in ("logistic", "poisson"):
        rule = FAMILIES[family]
        X, y, codes, _ = drawn(rng, 1, 6, q, family, w=[0.3, -0.2, 0.1])
        [batch], V = batched(X, y, codes, 1), covariance(rng, q, "full")

        def half_log_det(w, batch=batch, V=V, rule=rule, family=family):
            D = posterior(batch, _population(family, w, V))
            return 0.5 * batch.block(w + D, rule, 1.0, V).log_det()

        w, h = np.array([0.2, 0.1, -0.3]), 1e-5
        D = posterior(batch, _population(family, w, V))
        [b] = laplace_correction(batch, w + D, batch.block(w + D, rule, 1.0, V), rule, V)
        slope = [(half_log_det(w + h * e) - half_log_det(w - h * e)) / (2.0 * h) for e in np.eye(q)]
        np.testing.assert_allclose(b, slope, rtol=1e-5, atol=1e-7)


def _population(family, w, V, s2=1.0):
    q = len(w)
    return Population(FAMILIES[family], w, V, 1.0, s2, np.zeros((q, q)), 0.0, np.ones(q), 0)


def test_the_geometric_mean_solves_its_equation():
    rng = np.random.default_rng(4)
    A, B = covariance(rng, 4, "full"), covariance(rng, 4, "full")
    M = geometric_mean(A, B)
    np.testing.assert_allclose(M @ np.linalg.inv(A) @ M, B, atol=1e-9)
    np.testing.assert_allclose(M, M.T, atol=1e-12)


# -- evidence and posterior --------------------------------------------------------------------------------------


@pytest.mark.parametrize("deviations", ["diagonal", "full", "scalar"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_evidence_of_squared_losses_is_the_marginal_likelihood(deviations, weighted):
    """By the dense normal density of all labels. A flat intercept has the precision INTERCEPT_PRECISION, whose
    logarithm is left out: it is the same for every model. What pools logarithms of variances is taken off.
    """
    rng = np.random.default_rng(6)
    n, q = len(SIZES) * 2, 5
    X, y, codes, _ = drawn(rng, n, 0, q, sizes=np.tile(SIZES, 2))
    weight = rng.integers(1, 3, size=len(y)) if weighted else np.ones(len(y), int)
    learned = learner(X, y, codes, n, deviations=deviations, weight=weight.astype(float)).run()
    found = learned.result()
    again = np.repeat(np.arange(len(y)), weight)
    X, y, codes = X[again], y[again], codes[again]
    K = X @ np.diag(1.0 / np.append(np.full(q - 1, found.r), INTERCEPT_PRECISION)) @ X.T + found.s2 * np.eye(len(y))
    K += (codes[:, None] == codes) * (X @ matrix(found.V) @ X.T)
    exact = stats.multivariate_normal(np.zeros(len(y)), K).logpdf(y) - 0.5 * np.log(INTERCEPT_PRECISION)
    batches, D = learned.sums.batches, learned.sums.D
    mode = newton(batches, found.w, D, found.V, found.r, found.s2, found.family, evidence=True)
    constant = sum((batch.weight * found.family.constant(batch.y, found.s2)).sum() for batch in batches)
    assert mode.log_evidence + constant == pytest.approx(exact, abs=1e-5)
    pooled = found.log_evidence - mode.log_evidence - constant
    if deviations == "scalar":
        assert pooled == pytest.approx(0.0, abs=1e-8)
    else:
        # Laplace's integral over log v_k ~ N(mu, tau2), with the information gamma_k^2 / (2 n) = 1 / log_sd^2 - 1/tau2.
        logs, slopes = learned.logs, slice(0, q - 1)
        information = 1.0 / found.log_sd[slopes] ** 2 - 1.0 / logs.tau2
        v = np.diag(matrix(found.V if deviations == "diagonal" else learned.psi))[slopes]
        off = (np.log(v) - logs.mu) ** 2 / logs.tau2
        assert pooled == pytest.approx(-0.5 * np.sum(np.log(1.0 + logs.tau2 * information) + off), abs=1e-6)


def test_fixed_points_of_the_strengths_are_where_the_evidence_is_largest():
    """Of squared losses and two slopes, which are not pooled: dense evidence is flat in log v_k, log r and log s2."""
    rng = np.random.default_rng(21)
    n, q = 12, 3
    X, y, codes, _ = drawn(rng, n, 0, q, sizes=rng.integers(2, 9, size=n))
    found = learner(X, y, codes, n).run(tol=1e-12, rounds=1000).result()

    def evidence(logs):
        *v, r, s2 = np.exp(logs)
        K = X @ np.diag(1.0 / np.append(np.full(q - 1, r), INTERCEPT_PRECISION)) @ X.T + s2 * np.eye(len(y))
        K += (codes[:, None] == codes) * (X @ np.diag(v) @ X.T)
        return stats.multivariate_normal(np.zeros(len(y)), K).logpdf(y)

    at, h = np.log([*found.V, found.r, found.s2]), 1e-3
    slopes = [(evidence(at + h * e) - evidence(at - h * e)) / (2.0 * h) for e in np.eye(q + 2)]
    np.testing.assert_allclose(slopes, 0.0, atol=2e-3)
    bends = [evidence(at + 0.5 * e) + evidence(at - 0.5 * e) - 2.0 * evidence(at) for e in np.eye(q + 2)]
    assert max(bends) < -0.05


@pytest.mark.parametrize(
    ("family", "m", "tolerance"), [("logistic", 40, 0.02), ("logistic", 6, 0.08), ("poisson", 8, 0.05)]
)
def test_laplaces_evidence_is_near_the_integral(family, m, tolerance):
    """One coefficient, the intercept, by quadrature over w and every d_i; `tolerance` is in nats an agent."""
    rng = np.random.default_rng(7)
    n, v, rule = 4, 0.5, FAMILIES[family]
    X, y, codes, _ = drawn(rng, n, m, 1, family, w=[0.4], V=[v])
    mode = settled(batched(X, y, codes, n), 1, n, np.array([v]), 1.0, 1.0, family)
    found = mode.log_evidence + rule.constant(y, 1.0).sum()
    d, step = np.linspace(-8.0 * np.sqrt(v), 8.0 * np.sqrt(v), 2001, retstep=True)
    density = stats.norm(0.0, np.sqrt(v)).pdf(d) * step
    ones = np.ones(len(d))

    def given(w):
        out = -0.5 * INTERCEPT_PRECISION * w * w - 0.5 * np.log(2.0 * np.pi)
        for i in range(n):
            logs = sum(
                rule.constant(ones * label, 1.0) - rule.loss(w + d, ones * label, 1.0) for label in y[codes == i]
            )
            out += np.log(density @ np.exp(logs))
        return out

    top = given(float(mode.w[0]))
    mass = integrate.quad(lambda w: np.exp(given(w) - top), mode.w[0] - 3.0, mode.w[0] + 3.0, epsabs=1e-10)[0]
    assert found == pytest.approx(top + np.log(mass), abs=tolerance * n)


@pytest.mark.parametrize("deviations", ["diagonal", "full"])
@pytest.mark.parametrize("q", [3, 9])
def test_latent_moments_are_those_of_the_joint_posterior(deviations, q):
    """Of rows of agents met, with more columns than rows and with fewer, and of strangers; exact for squared losses."""
    rng = np.random.default_rng(8)
    n = len(SIZES)
    X, y, codes, _ = drawn(rng, n, 0, q, sizes=SIZES)
    [model] = fit(X[:, :-1], [y], codes, n, "squared", "linear", deviations)
    found, A = model.population, model.design.columns(X[:, :-1])
    mean, cov = gaussian(A, (y - model.center) / model.scale, codes, n, found.V, found.r, found.s2)
    new = rng.normal(size=(12, q - 1))
    whose = np.array([0, 1, 2, 3, 4, 3, 3, 0, 1, 2, 4, 4])
    Z = joint(model.design.columns(new), whose, n, np.diag(matrix(found.V)) > 0.0)
    z, variance = model.latent(new, whose)
    np.testing.assert_allclose(z, Z @ mean, atol=1e-8)
    np.testing.assert_allclose(variance, np.einsum("ij,jk,ik->i", Z, cov, Z), atol=1e-8)
    z, variance = model.latent(new, np.full(12, -1))
    B = model.design.columns(new)
    np.testing.assert_allclose(z, B @ model.new_agent.w, atol=1e-10)
    spread = np.einsum("ij,jk,ik->i", B, matrix(found.V) + cov[:q, :q], B)
    expected = model.new_agent.inflation * (spread + found.s2) - found.s2
    np.testing.assert_allclose(variance, np.maximum(expected, 0.0), atol=1e-8)


@pytest.mark.parametrize("kind", ["diagonal", "full", "zeros"])
def test_a_row_left_out_is_really_left_out(kind):
    rng = np.random.default_rng(9)
    n, q, r, s2 = len(SIZES), 4, 0.7, 0.6
    X, y, codes, _ = drawn(rng, n, 0, q, sizes=SIZES)
    V, parts = covariance(rng, q, kind), batched(X, y, codes, n)
    free = np.diag(matrix(V)) > 0.0
    mode = settled(parts, q, n, V, r, s2, "squared", steps=2)
    found = _population("squared", mode.w, V, s2)._replace(cov=mode.cov)
    start = np.concatenate([[0], np.cumsum(SIZES)])
    Z = joint(X, codes, n, free)
    for batch in parts:
        z, s = left_out(batch, found, mode.D[batch.agents])
        for k, i in enumerate(batch.agents):
            for j in range(SIZES[i]):
                row = start[i] + j
                rest = np.arange(len(y)) != row
                mean, cov = gaussian(X[rest], y[rest], codes[rest], n, V, r, s2)
                assert z[k, j] == pytest.approx(Z[row] @ mean, abs=1e-8)
                assert s[k, j] == pytest.approx(Z[row] @ cov @ Z[row], abs=1e-8)


def test_a_row_of_weight_two_left_out_once_is_a_row_said_twice_left_out_once():
    rng = np.random.default_rng(10)
    X, y, codes, _ = drawn(rng, 3, 6, 3)
    twice = np.arange(18) % 5 == 0
    weight, again = 1.0 + twice, np.repeat(np.arange(18), 1 + twice)
    V, found = np.array([0.5, 1.0, 0.3]), []
    for rows, given in ((np.arange(18), weight), (again, None)):
        parts = batched(X[rows], y[rows], codes[rows], 3, given)
        mode = settled(parts, 3, 3, V, 1.0, 0.5, "squared", steps=2)
        population = _population("squared", mode.w, V, 0.5)._replace(cov=mode.cov)
        moments = {}
        for batch in parts:
            z, s = left_out(batch, population, mode.D[batch.agents])
            real = batch.weight > 0.0
            moments |= {label: pair for label, *pair in zip(batch.y[real], z[real], s[real], strict=True)}
        found.append([moments[label] for label in y])
    np.testing.assert_allclose(found[0], found[1], atol=1e-8)


def test_a_row_of_a_class_left_out_is_nearly_left_out():
    rng = np.random.default_rng(11)
    n, m, q, V, r = 6, 12, 3, np.array([0.5, 0.3, 0.5]), 1.0
    X, y, codes, _ = drawn(rng, n, m, q, "logistic")
    parts = batched(X, y, codes, n)
    mode = settled(parts, q, n, V, r, 1.0, "logistic")
    [batch] = parts
    z, _ = left_out(batch, _population("logistic", mode.w, V)._replace(cov=mode.cov), mode.D)
    before, moved, off = batch.latent(mode.w + mode.D), [], []
    for row in range(0, n * m, 5):
        rest = np.arange(n * m) != row
        without = settled(batched(X[rest], y[rest], codes[rest], n), q, n, V, r, 1.0, "logistic")
        exact = X[row] @ (without.w + without.D[codes[row]])
        moved.append(exact - before[codes[row], row % m])
        off.append(exact - z[codes[row], row % m])
    assert np.abs(off).max() < 0.1
    assert np.std(off) < 0.15 * np.std(moved)


# -- limits -------------------------------------------------------------------------------------------------------


def ridge(X, y, r, s2):
    R = np.diag(np.append(np.full(X.shape[1] - 1, r), INTERCEPT_PRECISION))
    return np.linalg.solve(X.T @ X / s2 + R, X.T @ y / s2)


def test_no_variance_is_one_model():
    rng = np.random.default_rng(12)
    X, y, codes, _ = drawn(rng, 5, 8, 3)
    mode = settled(batched(X, y, codes, 5), 3, 5, np.zeros(3), 0.8, 0.5, "squared", steps=2)
    np.testing.assert_allclose(mode.w, ridge(X, y, 0.8, 0.5), atol=1e-8)
    assert np.all(mode.D == 0.0)
    mode = settled(batched(X, y, codes, 5), 3, 5, np.full(3, 1e-9), 0.8, 0.5, "squared", steps=2)
    np.testing.assert_allclose(mode.w, ridge(X, y, 0.8, 0.5), atol=1e-5)
    np.testing.assert_allclose(mode.D, 0.0, atol=1e-5)


@pytest.mark.parametrize("family", ["squared", "logistic"])
def test_no_variance_of_slopes_is_one_model_with_own_intercepts(family):
    """A broad variance of intercepts: those of dummy variables."""
    rng = np.random.default_rng(13)
    n, m = 5, 60 if family == "squared" else 1000
    X, y, codes, _ = drawn(rng, n, m, 3, family, w=[1.0, -1.0, 0.0], V=[0.0, 0.0, 1.0])
    V = np.array([0.0, 0.0, 1e6 if family == "squared" else 1e3])
    mode = settled(batched(X, y, codes, n), 3, n, V, 1e-8, 0.5, family)
    assert np.all(mode.D[:, :2] == 0.0)
    dummies = np.column_stack([X[:, :2], np.eye(n)[codes]])
    if family == "squared":
        slopes = np.linalg.lstsq(dummies, y, rcond=None)[0]
        np.testing.assert_allclose(np.append(mode.w[:2], mode.w[2] + mode.D[:, 2]), slopes, atol=1e-4)
        return
    t = np.zeros(n + 2)
    for _ in range(30):
        p = 1.0 / (1.0 + np.exp(-dummies @ t))
        t += np.linalg.solve((dummies * (p * (1 - p))[:, None]).T @ dummies, dummies.T @ (y - p))
    # The correction of w is of the order of one row of all.
    np.testing.assert_allclose(np.append(mode.w[:2], mode.w[2] + mode.D[:, 2]), t, atol=5e-3)


def test_all_variance_is_models_alone():
    rng = np.random.default_rng(14)
    X, y, codes, _ = drawn(rng, 5, 9, 3)
    for V in (np.full(3, 1e5), 1e5 * covariance(rng, 3, "full")):
        mode = settled(batched(X, y, codes, 5), 3, 5, V, 1e-8, 0.5, "squared", steps=4)
        for i in range(5):
            alone = np.linalg.lstsq(X[codes == i], y[codes == i], rcond=None)[0]
            np.testing.assert_allclose(mode.w + mode.D[i], alone, atol=1e-3)


def test_agents_without_rows_are_like_the_common_model():
    rng = np.random.default_rng(15)
    X, y, codes, _ = drawn(rng, 4, 9, 3)
    V = covariance(rng, 3, "full")
    without = settled(batched(X, y, codes, 4), 3, 4, V, 1.0, 0.5, "squared", steps=2)
    with_one = settled(batched(X, y, codes + (codes > 1), 5), 3, 5, V, 1.0, 0.5, "squared", steps=2)
    np.testing.assert_allclose(with_one.w, without.w, atol=1e-10)
    np.testing.assert_allclose(with_one.D[2], 0.0, atol=1e-10)
    assert with_one.log_evidence == pytest.approx(without.log_evidence)


# -- recovery -----------------------------------------------------------------------------------------------------


def recovered(family, seeds, n, m, w, V, deviations="diagonal", s2=0.3):
    """Mean over sets of what was learned: w, standard deviations of deviations, s2; and their standard errors."""
    found = []
    for seed in seeds:
        X, y, codes, _ = drawn(np.random.default_rng(seed), n, m, len(w), family, w, V, s2)
        learned = learner(X, y, codes, n, family, deviations).run().result()
        found.append([*learned.w, *np.sqrt(learned.variances), learned.s2])
    return np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(len(found))


@pytest.mark.parametrize("deviations", ["diagonal", "full"])
def test_numbers_give_their_population_back(deviations):
    """Eight sets of 150 agents. Within four standard errors of the mean and a bias of 2 %; errors are learned from
    eight sets only: with other seeds, 2 of 120 such tests were refused.
    """
    w, V = [1.0, -0.5, 0.3], [0.5, 0.1, 1.0]
    mean, error = recovered("squared", range(8), 150, 10, w, V, deviations)
    truth = np.array([*w, *np.sqrt(V), 0.3])
    assert np.all(np.abs(mean - truth) < 4.0 * error + 0.02 * np.abs(truth))


def test_correlations_of_deviations_are_found():
    """Of 300 agents a correlation has a standard error of about .05; four of them."""
    V = np.array([[1.0, 0.6, 0.0], [0.6, 1.0, -0.4], [0.0, -0.4, 0.5]])
    X, y, codes, _ = drawn(np.random.default_rng(16), 300, 15, 3, "squared", [1.0, 0.0, -1.0], V)
    found = learner(X, y, codes, 300, "squared", "full").run().result()
    sd = np.sqrt(np.diag(found.V))
    expected = V / np.sqrt(np.outer(np.diag(V), np.diag(V)))
    np.testing.assert_allclose(found.V / np.outer(sd, sd), expected, atol=0.2)
    np.testing.assert_allclose(sd, np.sqrt(np.diag(V)), rtol=0.15)


@pytest.mark.parametrize(("family", "m"), [("logistic", 20), ("poisson", 5)])
def test_classes_and_counts_give_their_population_back(family, m):
    """Eight sets of 200 agents: within four standard errors of the mean and 5 % (Laplace's own bias).

    With other seeds, 1 of 30 such tests was refused for classes, and none of 30 for counts.
    """
    w, V = ([1.0, -0.5, 0.3], [0.5, 0.2, 0.8]) if family == "logistic" else ([0.4, -0.3, 0.5], [0.1, 0.05, 0.3])
    mean, error = recovered(family, range(8), 200, m, w, V)
    truth = np.array([*w, *np.sqrt(V)])
    assert np.all(np.abs(mean[:-1] - truth) < 4.0 * error[:-1] + 0.05 * np.abs(truth))


def test_without_the_correction_classes_are_shrunk(monkeypatch):
    """Penalised quasi-likelihood is biased low with few rows; the correction takes most of that away.

    Against models as they were drawn, twelve sets of 200 agents with 20 rows: standard errors of the means over
    coefficients are about .01, and without the correction both are more than a tenth too low.
    """
    w, V = np.array([1.5, -1.0, 0.7]), np.full(3, 0.5)

    def found():
        sizes, spreads = [], []
        for seed in range(12):
            X, y, codes, theta = drawn(np.random.default_rng(seed), 200, 20, 3, "logistic", w, V)
            learned = learner(X, y, codes, 200, "logistic").run().result()
            sizes.append(learned.w / theta.mean(axis=0))
            spreads.append(np.sqrt(learned.variances) / theta.std(axis=0))
        return np.mean(sizes), np.mean(spreads)

    corrected = found()
    monkeypatch.setattr(module, "laplace_correction", lambda batch, T, *rest: np.zeros_like(T))
    plain = found()
    assert max(plain) < 0.9
    assert corrected[0] > 0.94  # Laplace's own bias remains
    assert corrected[1] > 0.9
    assert max(corrected) < 1.04
    assert np.subtract(corrected, plain).min() > 0.06


def test_noise_and_a_population_that_does_not_differ():
    """Where agents do not differ, standard deviations of deviations go to (nearly) zero."""
    X, y, codes, _ = drawn(np.random.default_rng(17), 80, 12, 4, "squared", [1.0, 0.5, 0.0, 1.0], np.zeros(4), 1.0)
    found = learner(X, y, codes, 80, "squared", "full").run().result()
    assert np.sqrt(found.variances).max() < 0.12
    assert found.s2 == pytest.approx(1.0, abs=0.2)  # four standard errors of 960 rows


def test_a_column_constant_inside_agents_has_no_deviations():
    rng = np.random.default_rng(18)
    X, y, codes, _ = drawn(rng, 40, 10, 3)
    age = rng.normal(size=40)[codes]
    [model] = fit(np.column_stack([X[:, :2], age]), [y + 0.5 * age], codes, 40, "squared", "linear")
    v = model.population.variances
    assert v[2] == 0.0
    assert np.all(v[[0, 1, 3]] > 0.0)
    assert np.all(model.D[:, 2] == 0.0)
    assert model.population.w[2] * model.scale / model.design.scale[2] == pytest.approx(0.5, abs=0.5)


def test_students_noise_is_its_scale():
    """120 agents of 15 rows, noise of t_4 and scale .5; four standard errors of the scale of 1800 rows are 12 %."""
    rng = np.random.default_rng(19)
    X, _, codes, theta = drawn(rng, 120, 15, 3)
    y = np.einsum("ij,ij->i", X, theta[codes]) + 0.5 * rng.standard_t(4, size=len(codes))
    found = learner(X, y, codes, 120, "student").run().result()
    assert np.sqrt(found.s2) == pytest.approx(0.5, rel=0.12)
    assert np.sqrt(found.variances) == pytest.approx(np.sqrt(0.5), rel=0.25)
