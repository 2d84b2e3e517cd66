"""Private methods: bounded sums, noise of the size that was planned, the same on peers, and what is refused.

The references are CD (6) and MP (6) of docs/math.md, written in NumPy. Where they need the noise itself, they draw it
from the dice with ``sample``, which test_noise.py checks. Statistical tests are seeded; with another seed, each of them
fails by chance with probability ``ERROR_RATE``.
"""

from __future__ import annotations

import functools
import math

import numba
import numpy as np
import pytest
from scipy import sparse, stats

import coterie as ct
from coterie.core import loop
from coterie.core.arrays import NO_DIE, TIED, VACANT, Data, Message, data_of, new_outbox, row, rows
from coterie.core.compile import PLAIN
from coterie.core.linear import rows_of
from coterie.core.models import Linear
from coterie.core.private.account import RELEASES, SPENT
from coterie.core.private.mechanism import clipped_loss, clipped_sum, width_of
from coterie.core.private.noise import KEY, LAPLACE, SIZE, discrete_gaussian, open_stream, sample
from coterie.core.private.terms import GRID
from coterie.core.wrap.learned import ANSWER, ANSWER_LENGTH, ASK, ASK_LENGTH
from coterie.engines.arrays import arrays_of, part_of
from coterie.engines.drivers import Immediate, Timed
from coterie.engines.peer import Peer
from coterie.engines.wire import decode, encode
from coterie.errors import DataError, MismatchError, ParameterError
from coterie.privacy import Ledger
from coterie.testing import hard_problem
from coterie.testing.methods import METHOD_CHECKS
from coterie.testing.shared import Crowd, arrays

ERROR_RATE = 1e-6
MECHANISMS = ("gaussian", "laplace")
mechanisms = pytest.mark.parametrize("mechanism", MECHANISMS)
N, P, MU = 9, 3, 0.8  # of hard_problem: agent 3 has no data, agent 8 no edges


def cd(**options):
    return ct.Private("cd", **{"final": None, **options})


def mp(**options):
    return ct.Private("propagation", **{"final": None, "max_rows": 7, **options})


# ---------------------------------------------------------------- one example's part of a sum


def compiled_sum(data, theta, clip, laplace, total):
    clipped_sum(data, theta, clip, laplace, total)


if not PLAIN:
    compiled_sum = numba.njit(compiled_sum)


def examples(X, y, loss, storage="dense"):
    """What an agent with these examples knows."""
    X, none = np.asarray(X, dtype=float), np.zeros(0)
    features = sparse.csr_array(X) if storage == "sparse" else X
    edges, numbers = (np.zeros(0, np.int64), none, none), (1.0, 0.0, 1.0, 1.0, 0, 0.5, True, np.inf, 1)
    shape = Linear(), np.full(X.shape[1], TIED, np.int8), np.arange(X.shape[1]), none, none, NO_DIE
    return Data(loss, rows_of(features), np.asarray(y, float), *edges, *numbers, *shape)


def summed(data, theta, clip, mechanism, run=clipped_sum):
    total = np.zeros(len(theta), np.int64)
    with np.errstate(all="ignore"):  # plain Python would warn of overflows
        run(data, np.asarray(theta, dtype=float), clip, mechanism == "laplace", total)
    return total


def norm_of(total, mechanism):
    """In whole numbers; of the square for L2."""
    parts = [abs(int(part)) for part in total]
    return sum(parts) if mechanism == "laplace" else sum(part * part for part in parts)


def largest_norm(steps, mechanism):
    return steps if mechanism == "laplace" else steps * steps


TOP = np.finfo(float).max
ROWS = [
    [0.0, 0.0, 0.0, 0.0],
    [1.0, 1.0, 1.0, 1.0],
    [1.2, 1.6, 0.0, 0.0],  # times a slope of 1/2, of norm 1 but for rounding
    [0.1, -0.2, 0.3, -0.7],
    [1e-9, 1e9, -1e-9, 3.0],
    [1e300, 1e300, -1e300, 1e300],
    [1e300, 1e-300, 0.0, -1.0],
    [1e-300, -1e-300, 1e-300, 1e-300],
    [5e-324, 0.0, 0.0, -5e-324],
    [TOP, 0.0, 0.0, 0.0],
    [TOP, TOP, -TOP, TOP],  # its norm is not a number that there is
    [7.0, 0.0, 0.0, 1e154],  # its square is hardly one
    [np.inf, 0.0, 1.0, 1.0],
    [np.nan, 0.0, 1.0, 1.0],
]
THETAS = [np.zeros(4), np.ones(4), np.full(4, -30.0), np.array([1e100, -1e100, 0.0, 1e-3]), np.full(4, 1e-200)]
THETAS += [np.array([np.inf, 0.0, 0.0, 1.0]), np.array([0.0, -np.inf, np.nan, 1.0])]
RUNS = pytest.mark.parametrize(
    "run",
    [clipped_sum, pytest.param(compiled_sum, marks=pytest.mark.compiled)],
    ids=["plain", "compiled"],
)
LABELS = {ct.Logistic(): [1.0, -1.0], ct.Squared(): [0.0, 1.0, -3e5, 1e150, -TOP]}


@mechanisms
@pytest.mark.parametrize(
    ("loss", "storage", "run"),
    [
        (ct.Logistic(), "dense", clipped_sum),
        pytest.param(ct.Logistic(), "dense", compiled_sum, marks=pytest.mark.compiled),
        (ct.Squared(), "sparse", clipped_sum),
        pytest.param(ct.Squared(), "sparse", compiled_sum, marks=pytest.mark.compiled),
    ],
    ids=["logistic", "logistic compiled", "squared sparse", "squared sparse compiled"],
)
def test_no_example_counts_for_more_than_one_clip(loss, storage, run, mechanism):
    """So replacing one moves the sum by two clips at most: exactly, as all of it is in whole numbers."""
    # Where 1e150 meets a row of 1e-300, a step of the grid is out of reach, and nothing is to be seen; the test below
    # has rows and labels whose product matters and whose slope, counted in grid steps, is no number.
    X, longest = ROWS if storage == "dense" else ROWS[:9] + ROWS[10:], 0
    for theta in THETAS:
        for clip in (0.01, 1.0, 300.0):
            parts = []
            for x in X:
                for y in LABELS[loss]:
                    if abs(y) > 1e300 and np.nanmax(np.abs(x)) < 1e-200:
                        continue
                    part = summed(examples([x], [y], loss, storage), theta, clip, mechanism, run)
                    assert norm_of(part, mechanism) <= largest_norm(GRID, mechanism), (x, y, theta)
                    parts.append((x, y, part))
            longest = max(longest, *(norm_of(part, mechanism) for _, _, part in parts))
            sums = np.array([part for _, _, part in parts])
            for worst in range(4):  # one extreme against the other, among two more examples
                low, high = (parts[pick(sums[:, worst])] for pick in (np.argmin, np.argmax))
                both = []
                for x, y, _ in (low, high):
                    three = examples([[1.0, -1.0, 0.5, 0.0], x, [0.0, 3.0, 0.0, 1.0]], [1.0, y, -1.0], loss, storage)
                    both.append(summed(three, theta, clip, mechanism, run))
                np.testing.assert_array_equal(both[1] - both[0], high[2] - low[2])  # a sum, and nothing else
                assert norm_of(both[1] - both[0], mechanism) <= largest_norm(2 * GRID, mechanism)
    assert longest >= largest_norm(GRID - 4, mechanism)  # the budget of an example is used


@mechanisms
@RUNS
@pytest.mark.parametrize(("size", "label"), [(1e-305, 1e304), (1e-305, -1e306), (3e-308, TOP)])
def test_a_slope_that_no_number_of_grid_steps_can_tell(size, label, run, mechanism):
    """A tiny row with a huge label: the gradient is moderate, and its slope in grid steps is infinite."""
    data = examples([[size, size / 3, 0.0, -size]], [label], ct.Squared(), "sparse")
    part = summed(data, np.zeros(4), 1.0, mechanism, run)
    assert norm_of(part, mechanism) <= largest_norm(GRID, mechanism)


@mechanisms
def test_random_magnitudes(mechanism):
    rng = np.random.default_rng(0)
    for _ in range(300):
        x = rng.choice([-1, 1], 4) * 10.0 ** rng.uniform(-320, 308, 4) * (rng.random(4) < 0.8)
        theta = rng.choice([-1, 1], 4) * 10.0 ** rng.uniform(-100, 100, 4) * (rng.random(4) < 0.8)
        clip = 10.0 ** rng.uniform(-8, 8)
        part = summed(examples([x], [rng.choice([-1.0, 1.0])], ct.Logistic()), theta, clip, mechanism, compiled_sum)
        assert norm_of(part, mechanism) <= largest_norm(GRID, mechanism), (x, theta, clip)


def slopes(theta, X, y, loss):
    """Gradients of the examples' losses, one a row."""
    z = X @ theta
    return (z - y if isinstance(loss, ct.Squared) else -y / (1 + np.exp(y * z)))[:, None] * X


@mechanisms
@pytest.mark.parametrize(("loss", "storage"), [(ct.Logistic(), "dense"), (ct.Squared(), "sparse")])
def test_sums_are_those_of_the_clipped_gradients(loss, storage, mechanism):
    """Up to a grid step for each example and coordinate, towards zero."""
    rng = np.random.default_rng(1)
    X, theta = rng.normal(size=(40, 4)) * (rng.random((40, 4)) < 0.8), rng.normal(size=4)
    y = np.sign(rng.normal(size=40))
    order = 1 if mechanism == "laplace" else 2
    for clip, active in ((60.0, False), (0.4, True)):
        gradients = slopes(theta, X, y, loss)
        norms = np.linalg.norm(gradients, ord=order, axis=1)
        assert (norms > clip).any() == active
        gradients *= np.minimum(1.0, clip / np.maximum(norms, 1e-300))[:, None]
        total = summed(examples(X, y, loss, storage), theta, clip, mechanism)
        np.testing.assert_allclose(total * clip / GRID, gradients.sum(axis=0), rtol=0, atol=40.001 * clip / GRID)
        one = summed(examples(X[:1], y[:1], loss, storage), theta, clip, mechanism)
        assert (np.abs(one) <= np.abs(gradients[0]) * GRID / clip * (1 + 1e-12)).all()


def test_what_is_not_finite_counts_as_zero():
    good, y = [[1.0, 2.0, 0.0, 0.0], [0.0, -1.0, 1.0, 0.0]], [1.0, -1.0]
    bad = [[np.inf, 0.0, 0.0, 0.0], [np.nan, 1.0, 0.0, 0.0], [TOP, TOP, 0.0, 0.0], [0.0, 0.0, -np.inf, 1.0]]
    theta = np.array([0.1, 0.2, 0.3, 0.0])
    for run in (clipped_sum, compiled_sum):
        alone = summed(examples(good, y, ct.Logistic()), theta, 1.0, "gaussian", run)
        with_bad = summed(examples(good + bad, y + [1.0] * 4, ct.Logistic()), theta, 1.0, "gaussian", run)
        np.testing.assert_array_equal(alone, with_bad)
        assert alone.any()
        far = np.array([np.inf, np.nan, 0.0, 0.0])  # a neighbour's work: no margin is finite
        np.testing.assert_array_equal(summed(examples(good, y, ct.Logistic()), far, 1.0, "gaussian", run), 0)


def test_losses_lie_between_zero_and_the_clip():
    with np.errstate(all="ignore"):
        for loss, labels in LABELS.items():
            for x in ROWS[:12]:
                for y in labels:
                    for theta in THETAS:
                        assert 0 <= clipped_loss(examples([x], [y], loss), theta, 2.0) <= GRID
    z = np.array([0.3, -2.0, 50.0])
    total = clipped_loss(examples(z[:, None], [1.0, 1.0, -1.0], ct.Logistic()), np.ones(1), 3.0)
    expected = np.minimum(np.log1p(np.exp(-z * [1, 1, -1])), 3.0).sum()
    assert total * 3.0 / GRID == pytest.approx(expected, abs=3 * 3.0 / GRID)


# ---------------------------------------------------------------- references


def clipped_mean(theta, X, y, clip, mechanism, loss=None, grid=False):
    """The mean of an agent's clipped gradients; to the whole steps of the grid, if asked."""
    gradients = slopes(theta, X, y, ct.Logistic() if loss is None else loss)
    norms = np.linalg.norm(gradients, ord=1 if mechanism == "laplace" else 2, axis=1)
    gradients = gradients * np.minimum(1.0, clip / np.maximum(norms, 1e-300))[:, None]
    if grid:
        gradients = np.trunc(gradients * GRID / clip) * clip / GRID
    return gradients.mean(axis=0)


class Reference:
    """CD (6) on ``hard_problem``: noisy steps of public length, until the budget is spent."""

    def __init__(self, problem, clip, mechanism, bound=1.0):
        self.W, self.clip, self.mechanism = problem.graph.W.toarray(), clip, mechanism
        self.X, self.y = zip(*(problem.data.rows_of(i) for i in range(problem.n)), strict=True)
        m = problem.data.sizes
        self.m, self.ridge = m, 1.0 / np.maximum(m, 1) * (m > 0)
        self.loss_weight = MU * np.where(m > 0, m / m.max(), 1e-9)  # mu c_i
        self.L = np.where(m > 0, 0.25 * bound**2, 0.0) + 2 * self.ridge  # not of the data: a bound on their norms

    def step(self, i, theta, copies, noise, grid=False):
        """The next model of agent i, for a sum of gradients with so much noise."""
        gradient = 2 * self.ridge[i] * theta
        if self.m[i]:
            loss = clipped_mean(theta, self.X[i], self.y[i], self.clip, self.mechanism, grid=grid)
            gradient = gradient + loss + noise / self.m[i]
        D = self.W[i].sum()
        if D == 0:
            return theta - gradient / self.L[i]
        alpha = 1 / (1 + self.loss_weight[i] * self.L[i])
        mix = sum(self.W[i, j] / D * copies[j] for j in np.flatnonzero(self.W[i]))
        return (1 - alpha) * theta + alpha * (mix - self.loss_weight[i] * gradient)

    def run(self, events, noise, most, grid=False):
        """All models after the events; ``noise(t, k)`` is that of event t, which is release k of its agent."""
        theta, releases = np.zeros((len(self.W), self.X[0].shape[1])), np.zeros(len(self.W), int)
        for t, i in enumerate(events):
            if releases[i] < most:
                theta[i] = self.step(i, theta[i], theta, noise(t, releases[i]), grid)  # messages arrive at once
                releases[i] += 1
        return theta


class Schedule:
    """Who wakes, and with which dice."""

    def __init__(self, method, problem, wakes, seed, order=None):
        rng = np.random.default_rng(seed)
        self.order = rng.integers(0, problem.n, wakes) if order is None else np.asarray(order)
        self.peers = np.full(len(self.order), VACANT)
        self.dice = rng.random((len(self.order), method.dice))


class Hosted:
    """A replay on one host, compiled or in plain Python."""

    def __init__(self, method, problem, compiled=True, start=None):
        self.method, self.arrays = method, arrays_of(problem, spare=getattr(method, "spare", 0))
        theta = np.zeros((problem.n, problem.p)) if start is None else start
        self.own, self.edge = method.start(self.arrays, theta)
        self.outbox, self.egress = (
            new_outbox(method, self.arrays, problem.p, method.max_messages),
            loop.new_egress(0, 1),
        )
        self.account = loop.new_account(method)
        self.kernel = loop.run if compiled else loop.run.python
        state = (method, self.arrays, self.own, self.edge, self.outbox, self.egress, self.account)
        loop.meet(*state, self.kernel)

    def run(self, schedule):
        state, after = (self.method, self.arrays, self.own, self.edge), (self.outbox, self.egress, self.account)
        moments = np.zeros(len(schedule.order))
        self.kernel(*state, schedule.order, schedule.peers, schedule.dice, moments, *after, loop.NO_LIMIT)
        return self

    def kept(self):
        return arrays((self.own, self.edge, self.account))


def width(terms, release, share, sensitivity):
    """Of the noise of a query with a share of the budget: whole grid steps, and hardly more than is needed."""
    least = terms.noise[release] / (share if terms.mechanism == LAPLACE else math.sqrt(share)) * sensitivity
    steps = width_of(terms, release, share, sensitivity)
    assert least <= steps <= least + 3
    return steps


def noise_of(method, release, dice, clip=1.0, size=P):
    """The noise of a sum of gradients, from the dice."""
    return sample(method.plan.mechanism, width(method.terms, release, 1.0, 2 * GRID), size, dice) * clip / GRID


# ---------------------------------------------------------------- what is published


@mechanisms
@pytest.mark.parametrize(("clip", "bound"), [(0.3, 1.0), (2.0, 1.7)])
def test_descent_is_the_noisy_step_of_the_paper(mechanism, clip, bound):
    """Model for model, with the noise drawn from the same dice; and silent when the budget is spent."""
    problem = hard_problem()
    method = cd(mechanism=mechanism, clip=clip, row_norm=bound, wakes_per_agent=3, allocation="decreasing", rate=0.5)
    schedule = Schedule(method, problem, 60, seed=2)
    hosted = Hosted(method, problem).run(schedule)
    noise = lambda t, k: noise_of(method, k, schedule.dice[t], clip=clip)  # noqa: E731
    reference = Reference(problem, clip, mechanism, bound)
    expected = reference.run(schedule.order, noise, most=3, grid=True)
    # A gradient on the edge of a grid step may be cut to either side.
    np.testing.assert_allclose(hosted.own.theta, expected, rtol=0, atol=10 * clip / GRID)
    counts = np.minimum(np.bincount(schedule.order, minlength=N), 3)
    np.testing.assert_array_equal(hosted.own.account[:, RELEASES], counts)
    spent = np.concatenate([[0.0], np.cumsum(method.plan.cost)])[counts]
    np.testing.assert_allclose(hosted.own.account[:, SPENT], spent)
    degrees = np.diff(problem.graph.start)
    assert hosted.account[loop.MESSAGES] == degrees @ (1 + counts)


@functools.cache
def crowd(n=800, m=4, p=4, seed=4):
    """A ring of many agents."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n * m, p))
    y = np.where(X[:, 0] + rng.normal(size=n * m) > 0, 1.0, -1.0)
    data = ct.AgentData(X, y, agents=np.repeat(np.arange(n), m))
    return ct.Problem.personalized(data, ct.graphs.ring(n), mu=MU)


def fits(noise, scale, mechanism):
    """Is it noise of this standard deviation, or scale? Of exactly this size, and of this shape."""
    z, level = np.ravel(noise) / scale, ERROR_RATE / 4
    if mechanism == "gaussian":
        size, shape = stats.chi2(z.size).cdf(np.square(z).sum()), "norm"
    else:
        size, shape = stats.gamma(z.size).cdf(np.abs(z).sum()), "laplace"
    return level < size < 1 - level and stats.kstest(z, shape).pvalue > level


@pytest.mark.compiled
@mechanisms
@pytest.mark.parametrize("loss_fraction", [0.0, 0.3])
def test_noise_of_every_release(mechanism, loss_fraction):
    """Published step - CD (6) without noise = alpha mu c_i eta_i, and eta_i as large as the plan says.

    A share of the budget for the loss: of mu_t^2 for Gaussian noise, of eps_t for Laplace, and the rest is left for the
    gradient; one loss lies between 0 and the clip, so that the sensitivity of their mean is clip / m_i.
    """
    problem, clip, T, m = crowd(), 0.7, 3, 4
    split = {"wakes_per_agent": T, "allocation": "decreasing", "rate": 0.5}
    method = cd(mechanism=mechanism, clip=clip, loss_fraction=loss_fraction, **split)
    plan, order = method.plan, np.arange(problem.n)
    hosted, reference = Hosted(method, problem), Reference(problem, clip, mechanism)
    assert np.all(np.diff(plan.noise) < -0.1 * plan.noise[1:])
    part = (lambda share: share) if mechanism == "laplace" else math.sqrt
    trust, L = MU, 0.25 + 2 / m
    factor = trust / (1 + trust * L)
    released = []
    for t in range(T):
        before = hosted.own.theta.copy()
        hosted.run(Schedule(method, problem, 0, seed=(5, t), order=order))
        after, theta = hosted.own.theta, before.copy()
        quiet = np.empty_like(theta)
        for i in order:  # its neighbour before it in the ring has spoken already
            quiet[i] = reference.step(i, theta[i], theta, 0.0)
            theta[i] = after[i]
        eta = (after - quiet) / -factor
        released.append(eta)
        scale = plan.noise[t] / part(1 - loss_fraction) * 2 * clip / m
        assert fits(eta, scale, mechanism)
        assert not fits(eta, 1.15 * scale, mechanism)
        assert not fits(eta, 0.85 * scale, mechanism)
        if loss_fraction:
            z = np.array([x @ b for x, b in zip(problem.data.X, np.repeat(before, m, axis=0), strict=True)])
            losses = np.minimum(np.log1p(np.exp(-problem.data.y * z)), clip).reshape(-1, m).mean(axis=1)
            noise, scale = hosted.own.loss[:, 0] - losses, plan.noise[t] / part(loss_fraction) * clip / m
            assert fits(noise, scale, mechanism)
            assert not fits(noise, 1.3 * scale, mechanism)
            assert not fits(noise, 0.7 * scale, mechanism)
            # What both cost is what the release costs.
            scales = [np.std(eta) * m / (2 * clip), np.std(noise) * m / clip]
            if mechanism == "gaussian":
                assert sum(1 / s**2 for s in scales) == pytest.approx(plan.cost[t], rel=0.15)  # five deviations
        else:
            np.testing.assert_array_equal(hosted.own.loss, 0.0)
    # One release knows nothing of the noise of another, nor one coordinate of that of the next.
    level = stats.norm.isf(ERROR_RATE / 20) / math.sqrt(released[0].size)
    for one, other in ((released[0], released[1]), (released[1], released[2]), (released[0], released[2])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < level
    assert abs(np.corrcoef(released[0][:, 0], released[0][:, 1])[0, 1]) < 2 * level
    assert abs(np.corrcoef(released[0][:-1, 0], released[0][1:, 0])[0, 1]) < 2 * level


@pytest.mark.slow
@pytest.mark.compiled
@mechanisms
def test_a_release_of_propagation(mechanism):
    """A step of public length along the noisy gradient where everybody starts; then only smoothing."""
    problem, clip, bound = hard_problem(), 0.5, 1.3
    method = mp(mechanism=mechanism, clip=clip, row_norm=bound)
    schedule = Schedule(method, problem, 0, seed=6, order=np.tile(np.arange(N), 3000))
    hosted, reference = Hosted(method, problem).run(schedule), Reference(problem, clip, mechanism)
    released = np.zeros((N, P))
    for i in np.flatnonzero(reference.m):
        gradient = clipped_mean(np.zeros(P), reference.X[i], reference.y[i], clip, mechanism, grid=True)
        noise = noise_of(method, 0, schedule.dice[i], clip=clip)
        released[i] = -(gradient + noise / reference.m[i]) / (0.25 * bound**2)
    np.testing.assert_allclose(hosted.own.released, released, rtol=1e-9, atol=1e-9)
    # The larger agent's is heard as much as its noise and its sample allow, compared to that of 7 examples.
    z, m = method.plan.noise[0], np.maximum(reference.m, 1)
    error = clip**2 / m + P * (2 * clip * z / m) ** 2 * (2 if mechanism == "laplace" else 1)
    best = clip**2 / 7 + P * (2 * clip * z / 7) ** 2 * (2 if mechanism == "laplace" else 1)
    D = reference.W.sum(axis=1)
    own = np.where(reference.m > 0, MU * np.where(D > 0, D, 1 / MU * 7 / m) * best / error, 0.0)
    best_models = np.linalg.solve(np.diag(D + own) - reference.W, own[:, None] * released)
    # The noise is a grid step wider than the plan says, and so is what reliability is worked out from.
    np.testing.assert_allclose(hosted.own.theta, best_models, rtol=0, atol=1e-6 * np.abs(released).max())
    np.testing.assert_array_equal(hosted.own.account[:, RELEASES], 1.0)


#: Of the contract of methods, all that holds of one whose steps are noisy.
PROMISES = (
    "keeps to what it declares", pytest.param("compiled equals python", marks=pytest.mark.compiled),
    "touches what its footprint says", "may be stored once", "announces its messages", "ignores names",
)  # fmt: skip


@pytest.mark.parametrize("promise", [*PROMISES, "runs on peers"])
@pytest.mark.parametrize("name", ["cd", "propagation", "gossip-pooling"])
def test_private_methods_keep_the_promises_of_methods(name, promise):
    if (name, promise) == ("propagation", "runs on peers"):
        pytest.skip("peers begin at zero: below")
    options = {"wakes_per_agent": 50} if name == "cd" else {}
    METHOD_CHECKS[promise](ct.Private(name, **options))


def test_sparse_rows():
    """In plain Python, to the last bit but one: sums of margins may be taken in another order."""
    method = cd(clip=0.3)
    schedule = Schedule(method, hard_problem(), 30, seed=9)
    dense, csr = (
        Hosted(method, hard_problem(storage=kind), False).run(schedule).own.theta for kind in ("dense", "sparse")
    )
    np.testing.assert_allclose(dense, csr, rtol=1e-6)  # a grid step of the noise is about that


# ---------------------------------------------------------------- only what is public, but for the clipped sum


def relabelled(problem, agent, X=None, y=None):
    """The same problem with other examples of one agent."""
    data = problem.data
    rows_, labels = data.X.copy(), data.y.copy()
    mine = data.owner == agent
    rows_[mine] = rows_[mine] if X is None else X(rows_[mine])
    labels[mine] = labels[mine] if y is None else y(labels[mine])
    return problem.on(data=ct.AgentData(rows_, labels, agents=data.owner, members=range(N)))


@pytest.mark.parametrize("make", [cd, mp])
def test_nobody_knows_of_an_agent_before_its_first_release(make):
    problem = hard_problem()
    other = relabelled(problem, 2, X=lambda X: 3.0 * X[:, ::-1] + 1.0, y=np.negative)
    method = make()
    before = Schedule(method, problem, 40, seed=10)
    before.order[before.order == 2] = 4
    before.peers[:] = VACANT
    one, two = (Hosted(method, p).run(before) for p in (problem, other))
    for a, b in zip(one.kept(), two.kept(), strict=True):  # all state: steps and reliabilities, too
        np.testing.assert_array_equal(a, b)
    release = Schedule(method, problem, 1, seed=11, order=[2])
    assert not np.array_equal(*(hosted.run(release).own.theta for hosted in (one, two)))


@mechanisms
@pytest.mark.parametrize("make", [cd, mp])
def test_data_count_only_through_their_clipped_gradients(make, mechanism):
    """At zero, a row 16 times as long has the same clipped gradient: not a bit of what is sent may differ."""
    problem, method = hard_problem(), make(clip=1e-3, mechanism=mechanism)
    assert all(np.linalg.norm(x) > 0.01 for x in problem.data.rows_of(2)[0])
    other = relabelled(problem, 2, X=lambda X: 16.0 * X)
    schedule = Schedule(method, problem, 0, seed=12, order=[2, 0, 1, 4])
    one, two = (Hosted(method, p).run(schedule) for p in (problem, other))
    for a, b in zip(one.kept(), two.kept(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert one.own.theta[2].any()
    assert arrays_of(problem).curvature[2] != arrays_of(other).curvature[2]  # what other methods take their steps by


# ---------------------------------------------------------------- peers


def network(method, problem):
    """Peers that have greeted each other."""
    return Crowd(method, arrays_of(problem), np.zeros((problem.n, problem.p))).greet()


@pytest.mark.parametrize("make", [cd, mp])
def test_simulator_and_peers_agree(make):
    problem, method = hard_problem(), make(final="local")
    schedule = Schedule(method, problem, 70, seed=13)
    hosted, crowd = Hosted(method, problem).run(schedule), network(method, problem)
    made = np.zeros(N, int)
    for i, dice, peer in zip(schedule.order, schedule.dice, schedule.peers, strict=True):
        ledger = crowd.ledgers[i]
        before, kept = ledger.releases, ledger.kept
        posts = crowd.wake(i, dice, peer)
        new = ledger.releases - before
        made[i] += 1
        assert new == (made[i] <= method.plan.steps)
        frames = [post.data for post in posts]
        if new:  # a release: the same to all neighbours, and kept
            assert ledger.kept == frames
            said = crowd.peers[i].theta if crowd.peers[i].arrays.row_start[-1] or make is cd else None
            for frame in frames if said is not None else ():
                np.testing.assert_array_equal(decode(frame)[2], said)
        else:
            assert ledger.kept == kept
            assert make is mp or not frames
    np.testing.assert_array_equal(hosted.own.theta, [peer.theta for peer in crowd.peers])
    np.testing.assert_array_equal(hosted.own.account, [ledger.account for ledger in crowd.ledgers])
    assert hosted.account[loop.MESSAGES] == crowd.messages
    assert hosted.account[loop.NUMBERS] == P * crowd.messages
    assert [ledger.releases for ledger in crowd.ledgers] == np.minimum(made, method.plan.steps).tolist()


def test_a_peer_has_for_itself_what_it_has_in_the_simulator():
    problem, method = hard_problem(), cd(final="local", wakes_per_agent=2)
    schedule = Schedule(method, problem, 0, seed=14, order=np.tile(np.arange(N), 2))
    hosted, crowd = Hosted(method, problem).run(schedule), network(method, problem)
    for i, dice in zip(schedule.order, schedule.dice, strict=True):
        crowd.wake(i, dice)
    expected = method.finish(hosted.arrays, hosted.own, hosted.edge)
    for i, peer in enumerate(crowd.peers):
        published = peer.theta
        np.testing.assert_allclose(peer.final, expected[i], rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(peer.theta, published)  # it stays at home


def test_a_peer_needs_its_ledger():
    problem, method = hard_problem(), cd()
    mine, start = part_of(arrays_of(problem), 0, 1), np.zeros(P)
    with pytest.raises(ParameterError, match="needs a ledger"):
        Peer(method, mine, start)
    with pytest.raises(ParameterError, match=r"epsilon=1\.0; epsilon cannot change"):
        Peer(cd(epsilon=2.0), mine, start, Ledger(method.plan))
    with pytest.raises(ParameterError, match="the mechanism cannot change"):
        Peer(cd(mechanism="laplace"), mine, start, Ledger(method.plan))
    with pytest.raises(ParameterError, match="not private"):
        Peer(ct.CoordinateDescent(), mine, start, Ledger(method.plan))


def test_a_peer_made_anew_has_what_is_left():
    problem, method = hard_problem(), cd(wakes_per_agent=3)
    mine, ledger = part_of(arrays_of(problem), 0, 1), Ledger(method.plan)
    said = []
    for life in range(5):
        peer = Peer(method, mine, np.zeros(P), ledger)
        assert len(peer.greet()) == 3  # zeros, which everybody knows
        np.testing.assert_array_equal(peer.theta, 0.0)
        posts = peer.wake()
        assert len(posts) == (3 if life < 3 else 0)
        said += [decode(post.data)[2] for post in posts[:1]]
        assert ledger.releases == min(life + 1, 3)
        assert peer.theta.any() == (life < 3)
    kept = ledger.kept
    assert [decode(frame)[2].tolist() for frame in kept] == [said[-1].tolist()] * 3
    for _ in range(3):
        assert peer.wake() == []
    assert ledger.exhausted
    assert ledger.kept == kept
    np.testing.assert_array_equal(peer.theta, 0.0)
    assert len({tuple(model) for model in said}) == 3  # with new noise each, from the operating system


def test_a_propagation_peer_made_anew_says_nothing_new_of_its_data():
    problem, method = hard_problem(), mp()
    mine, ledger = part_of(arrays_of(problem), 0, 1), Ledger(method.plan)
    peer = Peer(method, mine, np.zeros(P), ledger)
    assert len(peer.wake()) == 3
    again = Peer(method, mine, np.zeros(P), ledger)
    for _ in range(3):
        posts = again.wake()  # the mean of what it has heard
        assert len(posts) == 3
        for post in posts:
            np.testing.assert_array_equal(decode(post.data)[2], 0.0)
    for neighbour in (post.to for post in posts):
        assert again.receive(encode(neighbour, 0, np.ones(P))) == []
    for post in again.wake():
        np.testing.assert_allclose(decode(post.data)[2], 1.0)
    assert ledger.releases == 1


# ---------------------------------------------------------------- hostile neighbours


NONSENSE = [1e308, -1e308, np.inf, -np.inf, np.nan, 1.1e100]


@pytest.mark.parametrize("number", NONSENSE, ids=str)
@pytest.mark.parametrize("make", [cd, mp])
def test_nonsense_is_not_a_model(make, number):
    """It changes nothing, whether it comes as bytes or straight to the handler."""
    problem, method = hard_problem(), make()
    dice = np.random.default_rng(15).random((2, method.dice))
    text = np.array([0.0, number, 1.0])
    honest, failing = (
        Peer(method, part_of(arrays_of(problem), 2, 3), np.zeros(P), Ledger(method.plan)) for _ in range(2)
    )
    for kind in range(len(method.messages)):
        for sender in (0, 1, 3, 7):  # three neighbours, and a stranger
            if np.isfinite(number):
                failing.receive(encode(sender, kind, text))
            else:
                with pytest.raises(DataError, match="not finite"):
                    failing.receive(encode(sender, kind, text))
            state = failing._own, failing._edge
            edges = rows(state[1], 0, failing.arrays.peer.shape[0])
            message = Message(sender, int(np.argmax(failing.arrays.peer == sender)), kind, text)
            method.receive(
                data_of(failing.arrays, 0), row(state[0], 0), edges, message, new_outbox(method, failing.arrays, P, 2)
            )
    np.testing.assert_array_equal(failing._edge.copy, 0.0)
    said = [[post.data for post in peer.wake(dice[0], 0)] for peer in (honest, failing)]
    assert said[0] == said[1]
    assert len(said[0]) == 4
    assert failing._ledger.account.tolist() == honest._ledger.account.tolist()


def test_what_neighbours_say_moves_the_model_and_not_the_noise():
    """And costs nothing: the first release is the same, but for the mean of what they said."""
    problem, method = hard_problem(), cd(clip=0.5)
    dice = np.random.default_rng(16).random(method.dice)
    reference, said = Reference(problem, 0.5, "gaussian"), []
    for size in (0.0, 1e3, 1e99, 1e100):
        peer = Peer(method, part_of(arrays_of(problem), 2, 3), np.zeros(P), Ledger(method.plan))
        for j in problem.graph.neighbours(2):
            peer.receive(encode(j, 0, np.full(P, size)))
        posts = peer.wake(dice)
        assert peer._ledger.account.tolist() == [1.0, method.plan.cost[0]]
        said.append(decode(posts[0].data)[2])
        for _ in range(10):
            peer.wake()
        assert np.isfinite(peer.theta).all()
        assert peer._ledger.exhausted
    alpha = 1 / (1 + reference.loss_weight[2] * reference.L[2])
    np.testing.assert_allclose(said[1] - said[0], alpha * 1e3, rtol=1e-12)
    np.testing.assert_allclose(said[2], alpha * 1e99, rtol=1e-12)
    noise = noise_of(method, 0, dice, clip=0.5)
    for k, size in ((0, 0.0), (1, 1e3)):
        expected = reference.step(2, np.zeros(P), np.full((N, P), size), noise, grid=True)
        np.testing.assert_allclose(said[k], expected, rtol=1e-9)


# ---------------------------------------------------------------- claims


def test_a_run_says_what_it_claims():
    problem = hard_problem()
    for method, wakes in ((cd(epsilon=0.5, delta=1e-6), None), (mp(epsilon=0.5, delta=1e-6), 30)):
        run = ct.simulate(problem, method, wakes=wakes)
        assert run.plan == method.plan
        assert (run.epsilon, run.delta) == (0.5, 1e-6)
        assert (run.plan.epsilon, run.plan.delta) == (0.5, 1e-6)
        assert any("simulated noise" in note for note in run.notes)
        assert any("(0.5, 1e-06)-differentially private" in note for note in run.notes)
        assert not any("given" in note for note in run.notes)
    public = ct.simulate(problem, "local")
    assert (public.plan, public.epsilon, public.delta) == (None, None, None)
    assert not any("noise" in note for note in public.notes)


def test_where_a_run_starts():
    problem = hard_problem()
    np.testing.assert_array_equal(ct.simulate(problem, cd(), wakes=0).theta, 0.0)
    for method in (cd(), mp()):
        with pytest.raises(ParameterError, match='start="local"'):
            ct.simulate(problem, method, wakes=3, start="local")
        with pytest.raises(MismatchError, match="no synchronous form"):
            ct.simulate(problem, method, rounds=3)
    given = np.full((N, P), 2.0)
    run = ct.simulate(problem, cd(), wakes=0, start=given)
    np.testing.assert_array_equal(run.theta, given)
    assert any("but for the given initial models" in note for note in run.notes)
    same = [ct.simulate(problem, cd(), start=start).theta for start in (None, "zeros", np.zeros((N, P)))]
    np.testing.assert_array_equal(same[0], same[1])
    np.testing.assert_array_equal(same[0], same[2])


def test_every_agent_wakes_as_often_as_it_has_something_to_say():
    problem, degrees = hard_problem(), np.diff(hard_problem().graph.start)
    for T in (1, 4):
        run = ct.simulate(problem, cd(wakes_per_agent=T), seed=3)
        assert run.wakes == T * N
        assert run.messages == (1 + T) * degrees.sum()  # everybody, exactly: one more wake would be silent
    assert ct.simulate(problem, cd(), wakes=7).wakes == 7
    with pytest.raises(ParameterError, match="pass the length"):  # propagation goes on as long as one likes
        ct.simulate(problem, mp())


def test_more_wakes_than_the_budget_is_split_for():
    problem, method = hard_problem(), cd(wakes_per_agent=4)
    with pytest.raises(ParameterError, match=r"wakes=37.*4 wakes of each of 9 agents.*wakes_per_agent=5"):
        ct.simulate(problem, method, wakes=37)
    assert ct.simulate(problem, method, wakes=36).wakes == 36
    with pytest.raises(ParameterError, match=r"agent 6 5 times.* 4"):
        ct.simulate(problem, method, events=[0, 6, 6, 1, 6, 6, 6, 2])
    assert ct.simulate(problem, method, events=[0, 6, 6, 1, 6, 6, 6, 2], wakes=6).wakes == 6  # four of them
    data = ct.AgentData([[1.0], [2.0]], [1.0, -1.0], agents=["ann", "bob"])
    two = ct.Problem.personalized(data, ct.graphs.complete(2))
    with pytest.raises(ParameterError, match="agent 'bob' 2 times"):
        ct.simulate(two, cd(wakes_per_agent=1), events=[1, 1])


NAN, INF = math.nan, math.inf
#: Values of terms that are refused by their names; what 1 / clip, or the square of a bound, cannot be is like zero.
REFUSED = {
    "epsilon": [0.0, -1.0, NAN, INF, "much", 1e12],  # the last: noise too fine for the grid
    "delta": [0.0, 1.0, -0.1, NAN],
    "clip": [0.0, -1.0, NAN, INF, True, "1", 1e-305],
    "row_norm": [0.0, False, INF, 1e-170, 1e200],
    "max_rows": [0, 2.5, True],
    "wakes_per_agent": [0, 1.5, True],
    "mechanism": ["uniform", "exponential"],
    "allocation": ["increasing"],
    "final": ["global", True],
    "accountant": ["guess", "bound"],  # the last: for Laplace noise
    "loss_fraction": [1.0, -0.1, NAN, 1e-30],  # the last: more than the sampler can serve
}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({name: value}, f"{name}={value!r}") for name, values in REFUSED.items() for value in values),
        ({"allocation": [1.0, 2.0]}, "allocation has shape"),
        ({"rate": 0.0, "allocation": "decreasing"}, "rate=0.0"),
        ({"mechanism": "laplace", "loss_fraction": 1e-10}, "loss_fraction=1e-10"),
        ({"mechanism": "laplace", "loss_fraction": 1 - 2**-53}, f"loss_fraction={1 - 2**-53!r}"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_refused_terms(options, message):
    with pytest.raises(ParameterError) as refused:
        ct.Private("cd", **options)
    assert message in str(refused.value).replace(" = ", "=")


def test_propagation_makes_one_release():
    assert mp(wakes_per_agent=1).plan.steps == mp().plan.steps == 1
    with pytest.raises(ParameterError, match="wakes_per_agent=2"):
        mp(wakes_per_agent=2)


def test_methods_without_a_private_form():
    for method in (ct.DJAM(), "admm", ct.baselines.GlobalModel(), "local", cd(), mp(), ct.Learned(cd())):
        with pytest.raises(MismatchError, match="no private form"):
            ct.Private(method)
    with pytest.raises(ParameterError, match="unknown method"):
        ct.Private("descent")


def test_problems_that_cannot_be_private():
    rng = np.random.default_rng(17)
    graph = ct.graphs.ring(4)
    points = ct.AgentData(rng.normal(size=(8, 2)), agents=np.arange(8) % 4)
    signs = ct.AgentData(rng.normal(size=(8, 2)), np.tile([1.0, 1, 1, 1, -1, -1, -1, -1], 1), agents=np.arange(8) % 4)
    kink = ct.Problem.personalized(signs, graph, loss=ct.Hinge())
    pooled = ct.Problem(signs, graph, ct.LogSumExp(), smooth=0.5, loss_weight=1.0, scaled=True, mean=True)
    ball = ct.Problem.boosting(signs, graph, base=lambda X: X)
    for method in (cd(), mp(), ct.Learned(cd(), ct.GraphRule(kappa=2))):
        for problem, message in (
            (ct.Problem.separate(points, graph, loss="location"), "no.* gradient of their own"),
            (kink, "kink"),
            (pooled, "one example can take all the weight"),
            (ball, "ball"),
        ):
            with pytest.raises(MismatchError, match=message):
                ct.simulate(problem, method, wakes=1)
    with pytest.raises(MismatchError, match=r"pass the problem with the data, such as ct\.Problem\.personalized"):
        ct.simulate(ct.Problem.propagation(rng.normal(size=(4, 2)), graph), mp(), wakes=1)


# ---------------------------------------------------------------- learned graphs


RULE = ct.GraphRule(kappa=2)


def test_private_and_learned_in_either_order():
    options = {"epsilon": 2.0, "loss_fraction": 0.1, "clip": 0.5, "wakes_per_agent": 3}
    one = ct.Learned(ct.Private("cd", **options), RULE, every=7, sampling="shuffle")
    two = ct.Private(ct.Learned("cd", RULE, every=7, sampling="shuffle"), **options)
    assert one == two
    assert repr(one) == repr(two)
    assert one.plan == two.plan == ct.Private("cd", **options).plan
    assert (one.finish is None, cd().finish is None) == (False, True)
    for other in ({"clip": 0.6}, {"epsilon": 1.0}):
        assert one != ct.Private(ct.Learned("cd", RULE, every=7, sampling="shuffle"), **options | other)


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_what_is_told_of_a_loss(share):
    """The handlers in plain Python: an answer holds what was released, or nothing; as often as one asks."""
    problem = hard_problem()
    method = ct.Learned(cd(loss_fraction=share, epsilon=50.0, wakes_per_agent=2), RULE, every=10**6)
    schedule = Schedule(method, problem, 0, seed=18, order=[2])
    hosted = Hosted(method, problem, compiled=False).run(schedule)
    answers = []
    for _ in range(2):
        outbox = new_outbox(method, hosted.arrays, P, method.max_messages)
        a, b = hosted.arrays.edge_start[2:4]
        edges, me = rows(hosted.edge, a, b), row(hosted.own, 2)
        message = Message(5, VACANT, ASK, np.array([0.0, 0.0, 0.0, 1.0])[:ASK_LENGTH])
        method.receive(data_of(hosted.arrays, 2), me, edges, message, outbox)
        assert outbox.kind[0] == ANSWER
        answers.append(outbox.text[0, : outbox.length[0]].copy())
    np.testing.assert_array_equal(answers[0], answers[1])
    told, model = answers[0][5], answers[0][ANSWER_LENGTH:]
    np.testing.assert_array_equal(model, hosted.own.theta[2])
    assert model.any()
    if share == 0.0:
        assert told == 0.0
        return
    # The loss at zero is log 2 for all of 7 examples; after p draws for the gradient comes one for the loss.
    terms, m = method.method.terms, 7
    noise = last_draw(schedule.dice[0, :KEY], width(terms, 0, 1 - share, 2 * GRID), P, width(terms, 0, share, 1 * GRID))
    released = (m * math.floor(math.log(2) * GRID) + noise) / GRID / m
    assert released > 0
    ridge = np.square(model).sum() / m  # no data in it
    assert told == pytest.approx(MU * 1.0 * (released + ridge), rel=1e-12)  # c_k = 7 / 7
    assert abs(released - math.log(2)) > 1e-4  # it is a noisy one


def last_draw(dice, first, count, second):
    """What a stream gives after ``count`` draws of one width: one draw of another."""
    stream = np.zeros(SIZE, np.int64)
    open_stream(dice, stream)
    for _ in range(count):
        discrete_gaussian(stream, first)
    return discrete_gaussian(stream, second)


# ---------------------------------------------------------------- bad outbox, and problems that change

BAD = ct.Conditions(latency=0.5, loss=0.1, duplication=0.2)


def test_a_private_graph_finds_the_groups():
    """Two groups with opposite models, and bad outbox: at a large epsilon, most of the weight lies within them."""
    rng = np.random.default_rng(19)
    n, m, p = 16, 60, 2
    group = np.arange(n) % 2
    X = rng.normal(size=(n * m, p)) / 2
    y = np.where(X[:, 0] * np.where(np.repeat(group, m), 1.0, -1.0) > 0, 1.0, -1.0)
    data = ct.AgentData(X, y, agents=np.repeat(np.arange(n), m))
    problem = ct.Problem.personalized(data, ct.graphs.empty(n), mu=2.0)
    method = ct.Private(ct.Learned("cd", ct.GraphRule(lam=0.1, kappa=4), every=n), epsilon=20.0, final=None)
    run = ct.simulate(problem, method, wakes=20 * n, seed=20, conditions=BAD)
    W = run.graph.W.toarray()
    assert W[group[:, None] == group].sum() > 0.8 * W.sum()  # 7/15 by chance
    assert run.epsilon == 20.0
    assert run.tally[ASK, 0] == 20 * n * 4  # models are published five times; edges can be talked about for ever
    assert run.lost > 0
    assert (np.sign(run.theta[:, 0]) == np.where(group, 1.0, -1.0)).mean() > 0.8


def test_bad_mail_does_not_overspend():
    """On Poisson clocks most agents wake far more often than they may speak; under a learned graph, to see to edges."""
    problem, T = hard_problem(), 3
    method = ct.Learned(cd(wakes_per_agent=T), RULE)
    driver = Timed.of(problem, method, np.zeros((N, P)), 21, conditions=BAD)
    driver.advance(20, loop.NO_LIMIT)
    assert 0 < driver.own.account[:, RELEASES].sum() <= 20
    driver.advance(200, loop.NO_LIMIT)
    np.testing.assert_array_equal(driver.own.account[:, RELEASES], T)
    np.testing.assert_allclose(driver.own.account[:, SPENT], method.plan.cost.sum())
    assert (driver.own.account[:, SPENT] <= method.plan.limit * (1 + 1e-12)).all()
    theta, account, sent = driver.own.theta.copy(), driver.own.account.copy(), driver.account[loop.MESSAGES]
    driver.advance(100, loop.NO_LIMIT)
    np.testing.assert_array_equal(driver.own.theta, theta)  # all that depends on data has been said
    np.testing.assert_array_equal(driver.own.account, account)
    assert driver.account[loop.MESSAGES] > sent
    with pytest.raises(ParameterError, match="wakes=28"):
        ct.simulate(problem, cd(wakes_per_agent=T), wakes=28, conditions=BAD)


@pytest.mark.parametrize("make", [cd, mp])
def test_a_changed_problem_has_no_new_budget(make):
    """Data and edges change on the way; what was spent stays spent."""
    problem, method = hard_problem(), make(epsilon=0.5)
    T = method.plan.steps
    rng = np.random.default_rng(23)
    more = problem.on(data=problem.data.with_rows(rng.normal(size=(4, P)), [1.0, -1.0, 1.0, -1.0], agents=[2, 2, 5, 6]))
    fewer = problem.on(graph=problem.graph.without([2]))
    driver = Immediate.of(problem, method, np.zeros((N, P)), 24, changing=True)
    for changed in (more, fewer, problem):
        before = driver.own.account.copy()
        driver.change(changed)
        np.testing.assert_array_equal(driver.own.account, before)
        driver.advance(40, loop.NO_LIMIT)
        assert (driver.own.account[:, RELEASES] <= T).all()
    np.testing.assert_array_equal(driver.own.account[:, RELEASES], T)
    run = ct.simulate(problem, method, wakes=N * min(T, 5), changes=[(N // 2, more), (N, fewer)], seed=25)
    assert np.isfinite(run.theta).all()


@pytest.mark.parametrize("make", [cd, mp])
def test_an_agent_whose_first_examples_come_later(make):
    """Its step, and how reliable it is, are those of the examples that it has when it speaks."""
    problem, method = hard_problem(), make(wakes_per_agent=1)
    rng = np.random.default_rng(26)
    more = problem.on(data=problem.data.with_rows(rng.normal(size=(4, P)), [1.0, -1.0, 1.0, -1.0], agents=[3] * 4))
    order = [3, 0, 1, 2]
    late = ct.simulate(problem, method, events=order, changes=[(0, more)], seed=27)
    known = ct.simulate(more, method, events=order, seed=27)
    np.testing.assert_array_equal(late.theta, known.theta)


def test_dice_of_a_peer(tmp_path):
    method = cd(wakes_per_agent=3)
    arrays, theta = part_of(arrays_of(hard_problem(0)), 0, 1), np.zeros(hard_problem(0).p)
    peer = Peer(method, arrays, theta, Ledger(method.plan))
    for wrong in (np.zeros(KEY - 1), np.full(KEY, 1.0), np.full(KEY, np.nan)):
        with pytest.raises(ParameterError, match="dice must be 8 numbers"):
            peer.wake(wrong)
    with Ledger(method.plan, tmp_path / "ledger") as ledger:
        real = Peer(method, arrays, theta, ledger)
        with pytest.raises(ParameterError, match="noise must be fresh"):
            real.wake(np.zeros(KEY))
        assert ledger.releases == 0  # refused before anything was spent
        first = real.wake()[0].data
        assert first != Peer(method, arrays, theta, Ledger(method.plan)).wake()[0].data


def test_a_peer_refuses_a_arrays_that_cannot_be_private():
    location = ct.Problem.propagation(np.eye(3), ct.graphs.ring(3))
    with pytest.raises(MismatchError, match="protects single examples"):
        Peer(cd(), part_of(arrays_of(location), 0, 1), np.zeros(3), Ledger(cd().plan))


def test_the_claim_of_a_run_that_goes_on():
    problem = hard_problem(0)
    first = ct.simulate(problem, cd(wakes_per_agent=2), seed=0)
    second = ct.simulate(problem, cd(wakes_per_agent=2), seed=1, start=first.published)
    both = second.after(first)
    assert (both.epsilon, both.delta) == (2 * first.epsilon, 2 * first.delta)
    clear = ct.simulate(problem, "cd", wakes=5)
    for run in (second.after(clear), clear.after(second), second.after(first.after(clear))):
        assert run.epsilon is run.delta is None
        assert not any(note.startswith("everything an agent sent") for note in run.notes)
