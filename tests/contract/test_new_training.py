"""A model and a method that trains, of one's own: what docs/how-to/bring-a-method.md says is all that it takes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

import coterie as ct
from coterie.dev import EVERYONE, Job, Vector, axpy, copy_to, gather, new_job, scatter, send
from coterie.errors import ContractError
from coterie.testing import check_method
from coterie.testing.methods import METHOD_CHECKS

LOCAL = ct.optim.SGD(0.1, batch=2, steps=2)


class Own(NamedTuple):
    theta: np.ndarray  # (n, p) my model
    heard: np.ndarray  # (n, q) the last one that came, without personal parameters
    job: Job


class Edges(NamedTuple):
    nothing: np.ndarray  # (edges, 0)


@ct.method
class GossipLearning(NamedTuple):
    """Train the mean of my model and of the last one that came (Ormandi et al. 2013)."""

    local: Any = ct.optim.SGD(0.1)

    messages = {0: Vector()}
    minimises = None

    def scratch_size(self, arrays, p):
        return p  # training takes p numbers

    def start(self, arrays, theta):
        heard = np.ascontiguousarray(theta[:, arrays.sent])
        own = Own(theta.copy(), heard, new_job(self.local, theta))
        return own, Edges(np.zeros((arrays.peer.shape[0], 0)))

    def prepare(self, data, me, edges, randomness, outbox, phase):
        if phase > 0:  # called again after each job: this is all
            return False
        copy_to(me.theta, me.job.theta)
        scatter(me.heard, data.sent, me.job.theta)
        axpy(1.0, me.theta, me.job.theta)
        axpy(-0.5, me.job.theta, me.job.theta)
        return True

    def publish(self, data, me, edges, randomness, outbox):
        copy_to(me.job.theta, me.theta)
        gather(me.theta, data.sent, me.heard)
        send(outbox, EVERYONE, 0, me.heard)

    def receive(self, data, me, edges, message, outbox):
        if message.kind == 0 and message.text.shape[0] == me.heard.shape[0]:
            copy_to(message.text, me.heard)


def test_it_keeps_every_promise():
    check_method(GossipLearning(LOCAL))


@ct.method
class Trusting(GossipLearning):
    """Takes a message for what it should be."""

    def receive(self, data, me, edges, message, outbox):
        for k in range(min(message.text.shape[0], me.heard.shape[0])):
            me.heard[k] = message.text[k]


@ct.method
class Told(GossipLearning):
    """Sends all of its model, personal parameters, too."""

    def publish(self, data, me, edges, randomness, outbox):
        copy_to(me.job.theta, me.theta)
        send(outbox, EVERYONE, 0, me.theta)


@ct.method
class Curious(GossipLearning):
    """Asks the model something between two jobs, where a model in Python is not there."""

    def publish(self, data, me, edges, randomness, outbox):
        data.model.gradient(data, me.job.theta, -0.1, me.job.theta)
        GossipLearning.publish(self, data, me, edges, randomness, outbox)


@ct.method
class Counting(GossipLearning):
    """Moves by its number."""

    def publish(self, data, me, edges, randomness, outbox):
        me.job.theta[0] += 0.01 * data.address
        GossipLearning.publish(self, data, me, edges, randomness, outbox)


@ct.method
class Exploding(GossipLearning):
    """Goes away from what it hears, twice as far each time."""

    def receive(self, data, me, edges, message, outbox):
        if message.kind == 0 and message.text.shape[0] == me.heard.shape[0]:
            for k in range(me.heard.shape[0]):
                me.heard[k] = -1e200 * message.text[k] * abs(message.text[k])


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        (Trusting, "ignores bad messages"),
        (Told, "keeps to what it declares"),
        pytest.param(Curious, "trains all at once", marks=[pytest.mark.compiled, pytest.mark.slow]),
        (Counting, "ignores names"),
        (Counting, "trains alone without edges"),
        (Exploding, "repeats itself"),
        (Exploding, "bears with the network"),
        (Exploding, "goes on after changes"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
@pytest.mark.every_case
@pytest.mark.plain
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_planted_faults_are_found(fault, promise):
    METHOD_CHECKS[promise](GossipLearning(LOCAL))
    with pytest.raises(ContractError):
        METHOD_CHECKS[promise](fault(LOCAL))


@ct.rule
class Counts(NamedTuple):
    """Poisson regression."""

    inputs: int

    size = property(lambda self: self.inputs)
    scratch = property(lambda self: 0)
    parts = property(lambda self: {"theta": slice(0, self.inputs)})

    def initial(self, seed=0):
        return np.zeros(self.inputs)

    def predict(self, theta, X):
        return np.exp(X @ theta)

    def value(self, data, theta):
        total = 0.0
        for r in range(data.labels.shape[0]):
            margin = data.rows.dot(r, theta)
            total += math.exp(margin) - data.labels[r] * margin
        return data.row_weight * total

    def gradient(self, data, theta, scale, out):
        for r in range(data.labels.shape[0]):
            slope = math.exp(data.rows.dot(r, theta)) - data.labels[r]
            data.rows.add(r, scale * data.row_weight * slope, out)


def counts(graph):
    rng = np.random.default_rng(0)
    X, owner = rng.normal(size=(80, 2)), np.arange(80) % 4
    y = rng.poisson(np.exp(X @ [0.5, -0.3]))
    return X, y, ct.Problem.differentiable(ct.AgentData(X, y, agents=owner), graph, Counts(2), curvature=8.0)


@pytest.mark.plain
def test_a_model_of_ones_own_is_fitted_as_by_scikit_learn():
    from sklearn.linear_model import PoissonRegressor

    X, y, problem = counts(ct.graphs.complete(4))
    best = PoissonRegressor(alpha=0.0, fit_intercept=False, tol=1e-12).fit(X, y).coef_
    run = ct.simulate(problem, ct.gossip.GradientTracking(ct.optim.SGD(0.12)), rounds=400)
    np.testing.assert_allclose(run.theta, np.tile(best, (4, 1)), rtol=0, atol=1e-6)


@pytest.mark.plain
def test_what_runs_with_it_and_what_does_not():
    """Nobody knows its optimum: what needs one says so, and what takes gradients runs."""
    _, _, problem = counts(ct.graphs.ring(4))
    descended = ct.simulate(problem, "cd", wakes=400, seed=0)
    assert np.abs(problem.gradient(descended.theta)).max() < 1e-3
    steps = ct.simulate(problem, ct.CollaborativeADMM(rho=1.0, steps=5), wakes=300, seed=0)
    assert problem.value(steps.theta) - problem.value(descended.theta) < 1e-2
    for method in (
        ct.CollaborativeADMM(),
        "djam",
        "propagation",
        "gossip-pooling",
        ct.Private("cd", wakes_per_agent=3),
    ):
        with pytest.raises(ct.errors.MismatchError, match="is for linear models, not for Counts"):
            ct.simulate(problem, method, wakes=10)
    for baseline in ("local", "global", "component", "ridge-to-mean"):
        with pytest.raises(ct.errors.MismatchError, match="computed exactly, which only works for linear models"):
            ct.simulate(problem, baseline, wakes=10)
    bare = ct.Problem.differentiable(problem.data, problem.graph, Counts(2))
    with pytest.raises(ct.errors.MismatchError, match="curvature="):
        ct.simulate(bare, "cd", wakes=10)
    half = ct.Problem.differentiable(problem.data, problem.graph, ct.Huber(1.0), personal="theta")
    with pytest.raises(ct.errors.MismatchError, match="personal or shared"):
        ct.simulate(half, "cd", wakes=10)
    result = ct.compare(["cd", "tied-sgd"], problem, wakes=400, points=2)
    assert result.optimum == {}
    assert "exact optimum: not known" in repr(result)
    assert result.summary["value"].notna().all()
    assert result.summary["gap"].isna().all()
    assert "rmse" in ct.compare(["cd"], problem, wakes=10, test=problem.data).table
