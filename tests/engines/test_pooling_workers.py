"""Workers of partial pooling that die at any moment: at this question or that, one after the other, all of them.

Actors are objects of this process here, and only what Ray does about them is made up: a call that is answered when its
answer is asked for, or an ActorDiedError. Real workers are in test_pooling_cluster.py.
"""

from __future__ import annotations

import functools
import logging
import types

import numpy as np
import pytest

from coterie.data.sources.survey import deal
from coterie.errors import ClusterError
from coterie.estimators.pooling_workers import ClusterAgents, PoolingWorker
from coterie.pooling import Counter, fit, fit_agents
from coterie.pooling.rows import Grouped

exceptions = pytest.importorskip("ray.exceptions")

N, P = 24, 3


class Actor:
    """A worker that dies when it is asked for the so-manieth time, before it answers."""

    def __init__(self, arrays, loader, classes=0):
        self.arrays, self.dead = arrays, False
        log = logging.getLogger("coterie")
        before = log.level, log.propagate
        self.inner = PoolingWorker(loader, classes, 1, logging.WARNING)
        # A worker takes its process for itself; this one is everybody's.
        self.inner._alone.__exit__(None, None, None)
        log.removeHandler(self.inner._log)
        log.setLevel(before[0])
        log.propagate = before[1]

    def __getattr__(self, name):
        return types.SimpleNamespace(remote=lambda *given: functools.partial(self.answer, name, given))

    def answer(self, name, given):
        self.arrays.calls += 1
        if self.arrays.calls in self.arrays.deaths:
            self.dead = True
        if self.dead:
            raise exceptions.ActorDiedError
        return getattr(self.inner, name)(*given)


class AgentArrays:
    """What is used of Ray."""

    exceptions = exceptions

    def __init__(self, deaths=()):
        self.calls, self.deaths = 0, frozenset(deaths)

    def get(self, call):
        return call()

    def wait(self, calls, num_returns=1, timeout=None):
        return calls[:num_returns], calls[num_returns:]

    def kill(self, actor):
        actor.dead = True


class Table:
    """Rows by agent, and how often each agent's were loaded."""

    def __init__(self, X, y, codes):
        self.X, self.y, self.codes, self.loads = X, y, codes, np.zeros(N, int)

    def load(self, which):
        self.loads[which] += 1
        mine = np.isin(self.codes, which)
        return Grouped.of(self.X[mine], self.y[mine], np.searchsorted(which, self.codes[mine]), len(which), None)


def rows(family="squared"):
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(N), rng.integers(1, 9, N))
    X, own = rng.normal(size=(len(codes), P)), rng.normal(0.5, 0.5, size=(N, P + 1))
    z = np.einsum("ij,ij->i", X, own[codes, 1:]) + own[codes, 0]
    if family == "logistic":
        return X, (z + rng.logistic(size=len(z)) > 0).astype(float), codes
    return X, z + rng.normal(size=len(z)), codes


def learned(arrays, family="squared", count=3, design="linear"):
    X, y, codes = rows(family)
    table, sizes = Table(X, y, codes), np.bincount(codes, minlength=N)
    agents = ClusterAgents(arrays, [Actor(arrays, table) for _ in range(count)], deal(sizes, 2 * count), sizes, P)
    [model] = fit_agents(agents, 1, family, design, "full", Counter(None))
    return model, table


@functools.cache
def undisturbed(family="squared", design="linear"):
    X, y, codes = rows(family)
    return fit(X, [y], codes, N, family, design, "full")[0]


@functools.cache
def questions(design="linear"):
    """How many calls a fit takes."""
    arrays = AgentArrays()
    learned(arrays, design=design)
    return arrays.calls


def same(found, expected, tol):
    codes, X = rows()[2], rows()[0]
    pairs = [(found.D, expected.D), (found.population.w, expected.population.w)]
    pairs += [(found.population.V, expected.population.V), (found.log_evidence, expected.log_evidence)]
    pairs += [*zip(found.latent(X, codes), expected.latent(X, codes), strict=True)]
    for value, reference in pairs:
        np.testing.assert_allclose(value, reference, rtol=tol, atol=tol)


@pytest.mark.parametrize("share", np.linspace(0.0, 0.999, 13))
def test_a_worker_may_die_at_any_question(share):
    """While rows are loaded, standards are learned, before a step, in the middle of it, or at the end."""
    death = 1 + int(share * questions())
    found, table = learned(AgentArrays({death}))
    same(found, undisturbed(), 1e-9)
    assert set(table.loads) == ({1, 2} if share > 0.05 else {1})  # the first dies before it has loaded anything


@pytest.mark.parametrize("seed", range(3))
def test_all_but_one_may_die(seed):
    """Also while they take over, and with what they have taken over."""
    rng = np.random.default_rng(seed)
    first = int(rng.integers(1, questions()))
    found, _ = learned(AgentArrays({first, first + int(rng.integers(1, 12))}))
    same(found, undisturbed(), 1e-9)


def test_curves_survive_too():
    for death in np.linspace(4, questions("additive") - 4, 3).astype(int):
        same(learned(AgentArrays({int(death)}), design="additive")[0], undisturbed(design="additive"), 1e-8)


def test_classes_end_near_to_where_they_would_have():
    """Deviations are found again by steps of their own: the population is learned to a tolerance, from both sides."""
    for death in (20, 31, 60, 95):
        same(learned(AgentArrays({death}), "logistic")[0], undisturbed("logistic"), 2e-2)


def test_when_nobody_is_left_the_fit_ends():
    with pytest.raises(ClusterError, match=r"all workers died; the last of them held 24 agents"):
        learned(AgentArrays({40}), count=1)
