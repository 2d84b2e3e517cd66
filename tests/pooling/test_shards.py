"""Rows of agents in several shards: sums of sums are those of all rows in one place, and so is what is learned."""

from __future__ import annotations

import numpy as np
import pytest
from populations import drawn

from coterie.core import batches
from coterie.pooling import fit, fit_agents, fitted, sharpness, targets_of
from coterie.pooling.fitted import Counter, models_of
from coterie.pooling.rows import Ranked, Shard

N = 130


class Several:
    """Shards of one process, asked in turn: what a cluster does, without one."""

    def __init__(self, shards, n, columns):
        self.shards, self.n, self.columns, self.asked = shards, n, columns, 0

    def each(self, work, *given, again=True):
        self.asked += 1
        return [work(shard, *given) for shard in self.shards]

    def remember(self, name, work, *given):
        pass

    def forget(self, name):
        self.each(Shard.drop, name)

    def models(self, name, task, agents, design, population, tell):
        return models_of(self, self.columns, task, design, population, tell)


def shared_out(X, y, codes, weight, count, classes=0, seed=0):
    """Agents dealt out by chance to so many shards; the last of them has only agents without rows."""
    rng = np.random.default_rng(seed)
    owner = rng.integers(0, count - 1, N)
    owner[np.bincount(codes, minlength=N) == 0] = count - 1
    shards = []
    for k in range(count):
        numbers = np.flatnonzero(owner == k)
        mine = owner[codes] == k
        given = None if weight is None else weight[mine]
        local = np.searchsorted(numbers, codes[mine])
        shards.append(Shard(X[mine], targets_of(y[mine], classes), local, len(numbers), given, 1, numbers))
    return Several(shards, N, X.shape[1])


def rows(family, seed=1):
    """Agents with 0 to 11 rows, in a random order; two of five columns have few values."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 12, N)
    X, y, codes, _ = drawn(rng, N, 0, 6, family, w=0.3 * np.ones(6), V=0.2 * np.ones(6), sizes=sizes)
    X[:, 1], X[:, 2] = np.round(X[:, 1]), codes % 7
    if family == "squared":
        y = y + np.sin(3.0 * X[:, 0]) + rng.normal(size=len(y))
    shuffle = rng.permutation(len(y))
    return X[shuffle, :-1], y[shuffle], codes[shuffle]


def same(one, other, X, codes):
    """All that models know, and predictions of met and new agents; to ten digits."""
    assert one.design.name == other.design.name
    assert one.family == other.family
    pairs = [(one.D, other.D), (one.center, other.center), (one.scale, other.scale)]
    pairs += zip(one.design.to_arrays().values(), other.design.to_arrays().values(), strict=True)
    pairs += zip(one.population[1:], other.population[1:], strict=True)
    pairs += zip(one.new_agent, other.new_agent, strict=True)
    pairs += [([d[k] for k in sorted(d)], [e[k] for k in sorted(e)])
              for d, e in ((one.evidence, other.evidence), (one.held_out, other.held_out))]  # fmt: skip
    for asked in (codes, np.full(len(codes), -1)):
        pairs += zip(one.latent(X, asked), other.latent(X, asked), strict=True)
    for expected, found in pairs:
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("weighted", [False, True], ids=["rows", "weights"])
@pytest.mark.parametrize(
    ("loss", "design", "deviations"),
    [
        ("squared", "auto", "full"),
        ("squared", "linear", "scalar"),
        ("auto", "linear", "diagonal"),
        ("student", "linear", "full"),
        ("logistic", "additive", "diagonal"),
        ("logistic", "auto", "full"),
        ("poisson", "linear", "full"),
    ],
)
def test_shards_learn_what_one_does(loss, design, deviations, weighted, monkeypatch):
    monkeypatch.setattr(fitted, "MAX_SAMPLE_AGENTS", 80)  # so that not everybody is in the sample
    monkeypatch.setattr(batches, "MAX_BATCH_ENTRIES", 2000)
    X, y, codes = rows("squared" if loss in ("auto", "student") else loss)
    weight = np.random.default_rng(5).uniform(0.2, 1.0, len(y)) if weighted else None
    [one] = fit(X, [y], codes, N, loss, design, deviations, weight)
    for count in (2, 5):
        [found] = fit_agents(shared_out(X, y, codes, weight, count), 1, loss, design, deviations, Counter(None))
        assert found.kept is not None
        assert len(found.grouped.y) == 0
        same(one, found, X, codes)


@pytest.mark.slow
def test_shards_tell_several_classes_apart_as_one_does():
    X, y, codes = rows("squared")
    classes = np.digitize(y, [-1.0, 1.0])
    one = fit(X, targets_of(classes, 3), codes, N, "logistic", "linear", "diagonal")
    agents = shared_out(X, classes, codes, None, 3, classes=3)
    several = fit_agents(agents, 3, "logistic", "linear", "diagonal", Counter(None))
    for expected, found in zip(one, several, strict=True):
        same(expected, found, X, codes)
    assert sharpness(one) != 1.0
    assert sharpness(several, agents) == sharpness(one)


def test_a_newton_step_asks_twice():
    """And a round is one step: so a fit of r rounds asks little more than 2 r times."""
    X, y, codes = rows("squared")
    agents = shared_out(X, y, codes, None, 3)
    [model] = fit_agents(agents, 1, "squared", "linear", "full", Counter(None))
    assert agents.asked < 2 * model.rounds + 40


def test_answers_about_agents_come_in_their_order():
    X, y, codes = rows("squared")
    agents = shared_out(X, y, codes, None, 4)
    agents.each(Shard.standardise, [(0.0, 1.0)])
    [whole] = fit(X, [y], codes, N, "squared", "linear", "scalar")
    ranked = fitted.rank(agents)
    assert np.array_equal(ranked.sizes, np.bincount(codes, minlength=N))
    # In other units of the labels, the order is that of the same numbers.
    standard = shared_out(X, (y - whole.center) / whole.scale, codes, None, 4)
    standard.each(Shard.standardise, [(0.0, 1.0)])
    assert np.array_equal(fitted.rank(standard).order, whole.grouped.ranked())


def test_agents_alike_in_sizes_and_labels_are_ranked_by_their_features():
    rng = np.random.default_rng(3)
    codes, y = np.repeat(np.arange(N), 3), np.tile([1.0, 2.0, 3.0], N)
    X = rng.normal(size=(len(y), 2))
    one = fitted.AllHere(Shard(X, [y], codes, N))
    several = shared_out(X, y, codes, None, 3)
    orders = []
    for agents in (one, several):
        agents.each(Shard.standardise, [(2.0, 1.0)])
        orders.append(fitted.rank(agents).order)
    assert np.array_equal(*orders)
    lengths = np.sum(((X - X.mean(axis=0)) / X.std(axis=0)) ** 2, axis=1).reshape(N, 3).sum(axis=1)
    assert np.array_equal(orders[0], np.argsort(lengths))


def test_a_sample_is_even_over_the_order_and_leaves_out_agents_without_rows():
    sizes = np.array([0, 3, 0, 1, 2, 5])
    ranked = Ranked(np.array([0, 2, 3, 4, 1, 5]), sizes)
    assert ranked.sample(10).tolist() == [1, 3, 4, 5]
    assert ranked.sample(2).tolist() == [3, 5]


@pytest.mark.parametrize("noise", [1e-1, 1e-3, 1e-6])
def test_the_posterior_keeps_its_digits_where_there_is_little_noise(noise):
    """Against least squares of rows and prior stacked, which has no inverses."""
    from coterie.pooling.blocks import AgentBatch
    from coterie.pooling.families import FAMILIES
    from coterie.pooling.population import Population
    from coterie.pooling.posterior import posterior

    rng = np.random.default_rng(0)
    k, m, q = 5, 40, 4
    X, w, root = rng.normal(size=(k, m, q)), rng.normal(size=q), rng.normal(size=(q, q))
    y = np.einsum("kmq,kq->km", X, w + rng.normal(size=(k, q)) @ root.T) + noise * rng.normal(size=(k, m))
    batch = AgentBatch(np.arange(k), X, y, np.ones((k, m)))
    population = Population(FAMILIES["squared"], w, root @ root.T, 1.0, noise**2, np.eye(q), 0.0, np.zeros(q), 0)
    for found, rows, labels in zip(posterior(batch, population), X, y, strict=True):
        stacked = np.vstack([rows @ root / noise, np.eye(q)])
        target = np.append((labels - rows @ w) / noise, np.zeros(q))
        expected = root @ np.linalg.lstsq(stacked, target, rcond=None)[0]
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)
