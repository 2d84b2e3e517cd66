"""Peer sampling: who is met, how often, and what an agent knows of others.

Statistical tests are seeded; their error rates are those of a run with another seed.
"""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

import coterie as ct
from coterie.core.arrays import VACANT
from coterie.core.loop import NO_LIMIT
from coterie.core.methods.fixed import FixedModels, KnownLoss
from coterie.core.wrap.learned import PEER, ROUND
from coterie.core.wrap.sampling import (
    SHUFFLE,
    SHUFFLED,
    CandidateList,
    Everyone,
    FriendsOfFriends,
    List,
    PeerShuffling,
    Tips,
    Uniform,
    resolve_sampler,
)
from coterie.engines.drivers import Immediate, Timed
from coterie.errors import MismatchError, ParameterError
from coterie.graphs.exact import graph_objective

N, KAPPA, SIZE, SWAP = 60, 3, 8, 4
#: A test fails by chance with this probability.
ERROR_RATE = 1e-4


def draws(sampler, view, address, kappa, count, seed=0):
    """Samples of one agent, as a (count, kappa) array."""
    rng = np.random.default_rng(seed)
    drawn, data = np.full((count, kappa), -1.0), SimpleNamespace(address=address)
    for k in range(count):
        assert sampler.sample(data, view, rng.random(sampler.dice(kappa)), drawn[k]) == kappa
    return drawn.astype(int)


@pytest.mark.parametrize("address", [0, 2, 5])
def test_ideal_samples_are_all_sets_of_others_alike(address):
    """Chi-square over all sets of two out of five others; error rate 1e-4 each."""
    drawn = np.sort(draws(Uniform(), Everyone(np.array([6])), address, 2, 4000, seed=address), axis=1)
    others = [a for a in range(6) if a != address]
    counts = {pair: 0 for pair in combinations(others, 2)}
    for pair in map(tuple, drawn.tolist()):
        counts[pair] += 1  # a KeyError for itself, or for the same one twice
    assert stats.chisquare(list(counts.values())).pvalue > ERROR_RATE


def test_ideal_samples_meet_everybody_equally_often():
    """Chi-square of how often each is among 7 out of 30; error rate 1e-4.

    Counts of draws without replacement vary less: by 1 - 7/30, and by 30/29 for their sum being fixed.
    """
    drawn = draws(Uniform(), Everyone(np.array([31])), 11, 7, 3000)
    assert np.all(np.diff(np.sort(drawn, axis=1), axis=1) > 0)
    counts = np.delete(np.bincount(drawn.ravel(), minlength=31), 11)
    assert counts.sum() == drawn.size
    expected = 3000 * 7 / 30
    statistic = np.square(counts - expected).sum() / (expected * (1 - 7 / 30) * 30 / 29)
    assert stats.chi2(29).sf(statistic) > ERROR_RATE


def test_ideal_samples_are_everybody_where_all_are_asked():
    drawn = draws(Uniform(), Everyone(np.array([5])), 2, 4, 50)
    assert np.array_equal(np.sort(drawn, axis=1), np.tile([0, 1, 3, 4], (50, 1)))


def test_a_view_is_sampled_without_its_holes():
    """Chi-square over all pairs of known addresses; error rate 1e-4."""
    view = SimpleNamespace(address=np.array([VACANT, 9, 4, VACANT, 7, 1, VACANT]))
    drawn = np.sort(draws(PeerShuffling(7, 2), view, 0, 2, 4000), axis=1)
    pairs, counts = np.unique(drawn, axis=0, return_counts=True)
    assert list(map(tuple, pairs.tolist())) == list(combinations([1, 4, 7, 9], 2))
    assert stats.chisquare(counts).pvalue > ERROR_RATE


# -- a network that does nothing but meet -----------------------------------------------------------------------------


def network(sampling, conditions=None, seed=0, n=N):
    """Agents whose edges cost too much to have any."""
    data = ct.AgentData(np.zeros((n, 2)), np.full(n, 1e3), agents=np.arange(n), members=range(n))
    problem = ct.Problem(
        data, ct.graphs.empty(n), KnownLoss(), smooth=0.5, loss_weight=1.0, scaled=True, mean=True, name="graph"
    )
    method, theta = ct.Learned(FixedModels(), ct.GraphRule(kappa=KAPPA), every=1, sampling=sampling), np.zeros((n, 2))
    if conditions is None:
        return Immediate.of(problem, method, theta, seed)
    return Timed.of(problem, method, theta, seed, conditions=conditions)


def met(driver, looks, wakes):
    """How often each agent met each other: the last sample of each, looked at every so many wakes of an agent."""
    counts = np.zeros((N, N))
    for _ in range(looks):
        before = driver.own.note[:, ROUND].copy()
        driver.advance(wakes * N, NO_LIMIT)
        awake = np.flatnonzero(driver.own.note[:, ROUND] > before)
        np.add.at(counts, (awake[:, None], driver.own.block[awake, :, PEER].astype(int)), 1)
    return counts


def distances(counts):
    """Total variation distances to uniform: of each agent's own samples, and of all samples together."""
    each = counts / counts.sum(axis=1, keepdims=True) - (1 - np.eye(N)) / (N - 1)
    together = counts.sum(axis=0) / counts.sum() - 1 / N
    return 0.5 * np.abs(each).sum(axis=1), 0.5 * np.abs(together).sum()


def views_of(driver):
    """The views, as a list of lists of addresses."""
    return [view[view != VACANT].tolist() for view in driver.own.known.address]


def check_views(driver):
    """Nobody is in its own view, or twice in one; addresses are real."""
    for agent, view in enumerate(views_of(driver)):
        assert agent not in view
        assert len(set(view)) == len(view)
        assert all(0 <= peer < N for peer in view)


def overlay(driver, present):
    """Components of the agents present, each linked with those in its view."""
    links = np.zeros((N, N))
    for agent, view in enumerate(views_of(driver)):
        links[agent, view] = 1
    return connected_components(csr_array(links[np.ix_(present, present)]), directed=False)[0]


@pytest.mark.slow
@pytest.mark.compiled
def test_shuffled_samples_are_nearly_uniform():
    """Ideal samples of the same size set the bounds: distances may be 1.15 times as large, 2.5 times for all together.

    Looks are four wakes of an agent apart; samples of one view are still correlated, so no chi-square. The mean
    distance of 60 agents varies by about 1 %: its ratio was 0.98 to 1.03 for ten seeds, that for all together 1.0 to
    1.6, counts were 0.89 to 1.12 times their mean, and no pair met less than 3 times. Error rate: below 1e-3.
    """
    ideal = met(network("uniform"), 300, 4)
    driver = network(PeerShuffling(SIZE, SWAP))
    driver.advance(50 * N, NO_LIMIT)  # views begin as a circle
    counts = met(driver, 300, 4)
    assert np.all(np.diag(counts) == 0)
    (one, together), (bound, bound_together) = distances(counts), distances(ideal)
    assert one.mean() <= 1.15 * bound.mean()
    assert together <= 2.5 * bound_together
    mean = counts.sum() / N
    assert 0.8 * mean <= counts.sum(axis=0).min() <= counts.sum(axis=0).max() <= 1.2 * mean
    assert np.all(counts[~np.eye(N, dtype=bool)] > 0)  # 15 times on average


@pytest.mark.compiled
def test_views_are_sound_full_and_balanced():
    driver = network(PeerShuffling(SIZE, SWAP), seed=1)
    for _ in range(200):
        driver.advance(7, NO_LIMIT)
        check_views(driver)
        assert overlay(driver, np.arange(N)) == 1
    known = np.zeros((60, N))
    for row in known:
        driver.advance(10 * N, NO_LIMIT)
        views = views_of(driver)
        assert sum(map(len, views)) >= 0.98 * N * SIZE
        row[:] = np.bincount(np.concatenate(views).astype(int), minlength=N)
    # Random views would give a binomial count, with this standard deviation; it was 1.07 to 1.10 times that for four
    # seeds, with at most 20 who know one agent.
    assert known.std(axis=1).mean() <= 1.2 * np.sqrt(SIZE * (1 - SIZE / (N - 1)))
    assert known.max() <= 4 * SIZE
    assert 0.75 * SIZE <= known.mean(axis=0).min() <= known.mean(axis=0).max() <= 1.25 * SIZE


def test_views_are_larger_than_a_small_network():
    driver = network("shuffle", n=6)
    driver.advance(300, NO_LIMIT)
    for agent, view in enumerate(views_of(driver)):
        assert set(view) <= set(range(6)) - {agent}
        assert len(view) == len(set(view)) >= 3


def test_every_offer_is_answered_and_once_a_wake():
    driver = network(PeerShuffling(SIZE, SWAP), seed=2)
    driver.advance(500, NO_LIMIT)
    tally = driver.account[4:].reshape(-1, 2)
    assert tally[SHUFFLE, 0] == tally[SHUFFLED, 0] == 500
    assert 500 * 2 <= tally[SHUFFLE, 1] <= 500 * 2 * SWAP  # pairs of address and age
    assert tally[SHUFFLED, 1] <= 500 * 2 * SWAP


BAD = ct.Conditions(latency=0.5, loss=0.2, duplication=0.1, outages=[(7, 30.0, np.inf)])


@pytest.mark.slow
def test_the_departed_are_forgotten_and_the_rest_stay_together():
    driver = network(PeerShuffling(SIZE, SWAP), BAD, seed=3)
    driver.advance(25 * N, NO_LIMIT)
    assert any(7 in view for view in views_of(driver))
    present = np.delete(np.arange(N), 7)
    for _ in range(10):
        driver.advance(40 * N, NO_LIMIT)
        views = views_of(driver)
        check_views(driver)
        if driver.time > 60.0:
            assert not any(7 in views[agent] for agent in present)
        assert overlay(driver, present) == 1
        assert np.mean([len(views[agent]) for agent in present]) >= 0.75 * SIZE
        known = np.bincount(np.concatenate([views[agent] for agent in present]).astype(int), minlength=N)
        assert known[present].max() <= 4 * SIZE


@pytest.mark.slow
@pytest.mark.compiled
def test_a_newcomer_with_one_address_becomes_known():
    """An agent that nobody knows and that knows one other is in several views soon after."""
    driver = network(PeerShuffling(SIZE, SWAP), seed=4)
    driver.advance(20 * N, NO_LIMIT)
    known = driver.own.known
    known.address[known.address == 9] = VACANT
    known.address[9] = VACANT
    known.address[9, 0], known.age[9, 0] = 30, 0
    driver.advance(30 * N, NO_LIMIT)
    views = views_of(driver)
    assert sum(9 in view for view in views) >= 3
    assert len(views[9]) >= SIZE // 2


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        *((resolve_sampler, [bad], "uniform, shuffle") for bad in ("gossip", 3, Uniform, None)),
        *((PeerShuffling, bad, "expected an integer >= 1") for bad in ((0, 0), (4, 0), (4.0, 2), ("4", 2))),
        (PeerShuffling, (4, 5), "expected swap <= size"),
        (FriendsOfFriends, [2, 3], r"Friends\(size=2, swap=3\)"),
    ],
)
def test_what_is_no_sampler_is_refused(make, given, message):
    with pytest.raises(ParameterError, match=message):
        make(*given)


# -- friends ----------------------------------------------------------------------------------------------------------


def test_friends_are_neighbours_tips_and_random_peers():
    """A third of each; tips are asked once. Binomial counts within 5 standard deviations."""
    peers, rng, count = np.array([VACANT, 7, VACANT, 9]), np.random.default_rng(0), 6_000
    data, sources = SimpleNamespace(address=3, peer=peers), np.zeros(4)
    for _ in range(count):
        view, out = Tips(np.array([1_000]), np.full(4, VACANT), np.zeros(1, int)), np.full(1, -1.0)
        view.tip[2] = 11
        assert FriendsOfFriends(4, 2).sample(data, view, rng.random(2), out) == 1
        peer = int(out[0])
        assert 0 <= peer < 1_000
        assert peer != 3
        sources[0 if peer in (7, 9) else 1 if peer == 11 else 2] += 1
        assert view.tip[2] == (VACANT if peer == 11 else 11) or peer == 11
    assert np.all(np.abs(sources[:3] - count / 3) < 5 * np.sqrt(count * 2 / 9) + count * 3 / 1_000)


def test_friends_without_edges_meet_everybody_once_each():
    data, rng = SimpleNamespace(address=2, peer=np.empty(0, int)), np.random.default_rng(1)
    met = np.zeros(6)
    for _ in range(500):
        view, out = Tips(np.array([6]), np.full(4, VACANT), np.zeros(1, int)), np.full(3, -1.0)
        asked = FriendsOfFriends(4, 2).sample(data, view, rng.random(4), out)
        assert len(set(out[:asked])) == asked
        met[out[:asked].astype(int)] += 1
    assert met[2] == 0
    assert stats.chisquare(np.delete(met, 2)).pvalue > ERROR_RATE


@pytest.mark.slow
def test_friends_find_a_better_graph_than_random_peers_do():
    """Three hundred agents, forty wakes each: half the way from strangers to the best graph, at least."""
    rng = np.random.default_rng(2)
    models, losses = rng.normal(size=(300, 4)), np.zeros(300)
    best = graph_objective(ct.exact_graph(models, losses), models, losses)
    above = {
        sampling: ct.learn_graph(models, losses, wakes=12_000, sampling=sampling, seed=0).value - best
        for sampling in ("friends", "uniform")
    }
    assert 0 < above["friends"] < 0.5 * above["uniform"]


# -- candidates -------------------------------------------------------------------------------------------------------


def asked_of(row, peers, kappa, rng, address=0):
    """Whom an agent with these candidates and neighbours asks at a wake."""
    data, out = SimpleNamespace(address=address, peer=np.array(peers, dtype=int)), np.full(kappa, -1.0)
    sampler = CandidateList([row])
    count = sampler.sample(data, List(sampler.among[0]), rng.random(sampler.dice(kappa)), out)
    return out[:count].astype(int).tolist()


def test_candidates_and_one_neighbour_are_all_sets_alike():
    """Chi-square over all sets of two out of four candidates and a place for neighbours; error rate 1e-4."""
    rng = np.random.default_rng(0)
    counts = {frozenset(pair): 0 for pair in combinations([3, 5, 7, 9, 11], 2)}
    for _ in range(4000):
        counts[frozenset(asked_of([3, 5, 7, 9], [VACANT, 11], 2, rng))] += 1
    assert stats.chisquare(list(counts.values())).pvalue > ERROR_RATE


def test_nobody_asks_itself_or_anybody_twice():
    rng = np.random.default_rng(1)
    for _ in range(200):
        assert sorted(asked_of([3, 0, 5, 3], [VACANT, 5], 5, rng)) == [3, 5]
        assert asked_of([0, 0], [], 3, rng) == []
        assert sorted(asked_of([3, 5], [5, VACANT, 3, 8], 3, rng)) == [3, 5, 8]
        assert set(asked_of([3], [4, VACANT, 6], 2, rng)) in ({3, 4}, {3, 6})


@pytest.mark.parametrize(
    ("among", "error", "message"),
    [
        ([1, 2], ParameterError, r"shape \(2,\)"),
        ([[0.5], [1.0]], ParameterError, "type float64"),
        (np.zeros((3, 1), int), MismatchError, f"1 of each of 3 agents., and there are {N} agents"),
        (np.full((N, 1), N), MismatchError, f"candidates are {N} to {N}: the agents are 0 to {N - 1}"),
        (np.full((N, 1), -1), MismatchError, "candidates are -1"),
    ],
)
def test_bad_candidates_are_refused(among, error, message):
    with pytest.raises(error, match=message):
        network(CandidateList(among))
