"""Aggregation rules: what they make of what was said, against NumPy and SciPy, and wherever a method runs with them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.optimize import minimize

import coterie as ct
from coterie.core.method import NamedTuple
from coterie.core.world import VACANT
from coterie.core.wrap.robust import combine_all
from coterie.errors import MismatchError, ParameterError
from coterie.testing import hard_problem
from coterie.testing.methods import METHOD_CHECKS

RULES = [ct.TrimmedMean(0.3), ct.Median(), ct.Krum(1), ct.Krum(1, keep=3), ct.Clipping(1.3), ct.GeometricMedian(100)]


def heard(seed, d, p=4):
    """What d neighbours have said, with their weights, and what the agent itself thinks, and has shown."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(d, p)), np.exp(rng.normal(size=d)), rng.normal(size=p), rng.normal(size=p)


def copies(rule, said, weight, theta, shown, peer=None):
    """What a rule makes of it."""
    peer = np.arange(len(said)) if peer is None else peer
    copy = np.full_like(said, 7.0)
    rule.combine(theta, shown, peer, weight, said, copy, np.full(rule.room(len(said), said.shape[1]), np.nan))
    return copy


def krum_scores(said, liars):
    """Blanchard et al., Section 4, literally."""
    far = ((said[:, None] - said[None]) ** 2).sum(axis=2)
    nearest = max(1, len(said) - liars - 2)
    return np.array([np.sort(np.delete(row, k))[:nearest].sum() for k, row in enumerate(far)])


@pytest.mark.parametrize("d", [1, 2, 3, 6, 9])
def test_the_median_is_that_of_numpy_where_all_weigh_alike(d):
    said, _, theta, shown = heard(d, d)
    copy = copies(ct.Median(), said, np.ones(d), theta, shown)
    np.testing.assert_allclose(copy.mean(axis=0), np.median(said, axis=0), rtol=1e-13)


@pytest.mark.parametrize("d", [3, 5, 9])
@pytest.mark.parametrize(("liars", "keep"), [(0, 1), (1, 1), (2, 3), (1, 100)])
def test_krum_keeps_the_models_with_the_smallest_scores(d, liars, keep):
    said, weight, theta, shown = heard(d, d)
    copy = copies(ct.Krum(liars, keep), said, weight, theta, shown)
    kept = np.lexsort((-weight, krum_scores(said, liars)))[:keep]  # of equal ones, the heaviest
    mean = np.average(said[kept], axis=0, weights=weight[kept])
    np.testing.assert_array_equal(copy[kept], said[kept])
    others = np.setdiff1d(np.arange(d), kept)
    np.testing.assert_allclose(copy[others], np.broadcast_to(mean, (len(others), 4)), rtol=1e-13)
    np.testing.assert_allclose(weight @ copy, weight.sum() * mean, rtol=1e-12)  # all pull as strongly as ever


def test_krum_leaves_out_what_is_not_a_number():
    said, weight, theta, shown = heard(0, 6)
    said[2, 1], said[4] = np.nan, np.inf
    assert np.all(np.isfinite(copies(ct.Krum(2), said, weight, theta, shown)))


def test_clipping_moves_what_is_far_on_a_straight_line():
    said, weight, theta, shown = heard(3, 8)
    said[5] = theta
    copy = copies(ct.Clipping(1.3), said, weight, theta, shown)
    far = np.linalg.norm(said - theta, axis=1)
    expected = theta + np.minimum(1.0, 1.3 / np.maximum(far, 1e-300))[:, None] * (said - theta)
    np.testing.assert_allclose(copy, expected, rtol=1e-12)
    np.testing.assert_array_equal(copy[far <= 1.3], said[far <= 1.3])
    assert 0 < np.count_nonzero(far <= 1.3) < 8
    said[2, 0] = np.inf
    np.testing.assert_array_equal(copies(ct.Clipping(1.3), said, weight, theta, shown)[2], theta)


@pytest.mark.parametrize("d", [1, 2, 5, 8])
def test_the_geometric_median_has_the_smallest_sum_of_distances(d):
    said, weight, theta, shown = heard(d, d)
    copy = copies(ct.GeometricMedian(500), said, weight, theta, shown)
    assert np.all(copy == copy[0])

    def far(z):
        return weight @ np.linalg.norm(said - z, axis=1)

    best = min(minimize(far, z, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).fun for z in said)
    assert far(copy[0]) <= best * (1 + 1e-6)


def test_the_consensus_step_is_part_of_the_way_from_what_others_take_one_for():
    said, weight, theta, shown = heard(1, 5)
    copy = copies(ct.Consensus(0.3), said, weight, theta, shown)
    np.testing.assert_allclose(copy, theta + 0.3 * (said - shown), rtol=1e-13)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_order_of_neighbours_does_not_matter_and_vacant_slots_are_nobody(rule):
    said, weight, theta, shown = heard(7, 7)
    copy = copies(rule, said, weight, theta, shown)
    order = np.array([3, 1, 6, 0, 5, 2, 4])
    np.testing.assert_allclose(copies(rule, said[order], weight[order], theta, shown), copy[order], rtol=1e-9)
    wide, at = np.full((10, 4), 1e300), np.array([0, 2, 3, 4, 6, 7, 9])
    peer, heavy = np.full(10, VACANT), np.zeros(10)
    wide[at], peer[at], heavy[at] = said, np.arange(7), weight
    again = copies(rule, wide, heavy, theta, shown, peer)
    np.testing.assert_array_equal(again[at], copy)
    assert np.all(again[peer == VACANT] == 7.0)


class Own(NamedTuple):
    theta: np.ndarray


@pytest.mark.compiled
@pytest.mark.parametrize("rule", [*RULES, ct.Consensus(0.3)], ids=repr)
def test_compiled_rules_are_the_plain_ones_bit_for_bit(rule):
    said, weight, *_ = heard(11, 30)
    start, peer = np.array([0, 1, 3, 10, 10, 30]), np.arange(30)
    own = Own(np.random.default_rng(0).normal(size=(5, 4)))
    ours, theirs, room = np.zeros_like(said), np.zeros_like(said), np.zeros(rule.room(20, 4))
    combine_all(rule, own, start, peer, weight, said, ours, room)
    combine_all.python(rule, own, start, peer, weight, said, theirs, room)
    np.testing.assert_array_equal(ours, theirs)
    assert not np.array_equal(ours, said)


ISOLATED = pytest.param("leaves the isolated alone", marks=pytest.mark.slow)
COMPILED = pytest.param("compiled equals python", marks=pytest.mark.compiled)
PROMISES = (
    "keeps to what it declares",
    COMPILED,
    "announces its letters",
    "ignores names",
)


@pytest.mark.parametrize("promise", [*PROMISES, ISOLATED, "runs on peers"])
@pytest.mark.parametrize("rule", [RULES[3], *(pytest.param(rule, marks=pytest.mark.slow) for rule in RULES)], ids=repr)
def test_methods_with_a_rule_keep_their_promises_but_for_the_optimum(rule, promise):
    METHOD_CHECKS[promise](ct.Robust("cd", rule))


def test_a_rule_that_leaves_nothing_out_is_the_method_bit_for_bit():
    problem = hard_problem()
    plain = ct.simulate(problem, "cd", wakes=300, seed=1)
    assert np.array_equal(plain.theta, ct.simulate(problem, ct.Robust("cd", ct.Krum(0, 100)), wakes=300, seed=1).theta)
    assert np.array_equal(plain.theta, ct.simulate(problem, ct.Robust("cd", ct.Clipping(1e9)), wakes=300, seed=1).theta)


def test_trimmed_is_robust_with_a_trimmed_mean():
    method = ct.Trimmed("cd", 0.3)
    assert isinstance(method, ct.Robust)
    assert method.rule == ct.TrimmedMean(0.3)
    assert (method.fraction, repr(method)) == (0.3, "Trimmed(CoordinateDescent(), fraction=0.3)")
    assert pickle.loads(pickle.dumps(method)) == method
    assert ct.Robust("cd", ct.TrimmedMean(0.3)) != method  # another class, by name
    private = ct.Private(ct.Robust("cd", ct.Median()), wakes_per_agent=3)
    assert (type(private), private.rule) == (ct.Robust, ct.Median())


def test_what_cannot_be_defended_is_refused():
    with pytest.raises(ParameterError, match="does not keep copies"):
        ct.Robust("admm", ct.Median())
    with pytest.raises(MismatchError, match="averages over all agents"):
        ct.Robust("gossip-pooling", ct.Median())
    with pytest.raises(ParameterError, match="already"):
        ct.Robust(ct.Trimmed("cd"), ct.Median())
    with pytest.raises(ParameterError, match="must be an aggregation rule"):
        ct.Robust("cd", "median")
    with pytest.raises(ParameterError, match=r"learns its graph.*ct\.Learned\(ct\.Robust"):
        ct.Robust(ct.Learned("cd"), ct.Median())
    with pytest.raises(MismatchError, match="room for every neighbour"):
        ct.Learned(ct.Robust("cd", ct.Krum(1)))
    for make in (
        lambda: ct.TrimmedMean(0.5),
        lambda: ct.Krum(-1),
        lambda: ct.Krum(1, keep=0),
        lambda: ct.Clipping(0.0),
        lambda: ct.GeometricMedian(0),
        lambda: ct.Consensus(1.5),
    ):
        with pytest.raises(ParameterError, match=r"expected an? "):
            make()
