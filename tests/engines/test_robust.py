"""Robust methods: what rules make of what was said, against NumPy and SciPy, wherever they run, and its worth."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize

import coterie as ct
from coterie.core.arrays import VACANT, Message, data_of, new_outbox, row, rows, widened
from coterie.core.method import NamedTuple
from coterie.core.methods import resolve_method
from coterie.core.methods.descent import MODEL, Edge
from coterie.core.methods.djam import ASK
from coterie.core.wrap.aggregation import trim, trimmed_count
from coterie.core.wrap.learned import WEIGHT
from coterie.core.wrap.robust import combine_all
from coterie.engines.arrays import arrays_of, part_of
from coterie.engines.peer import Peer
from coterie.engines.wire import encode
from coterie.errors import MismatchError, ParameterError
from coterie.privacy import Ledger
from coterie.testing import hard_problem
from coterie.testing.graph_rules import held
from coterie.testing.methods import METHOD_CHECKS
from coterie.testing.shared import hosted, same

SHARES, NO_SHARES = [0.0, 0.1, 0.25, 0.34, 0.45], [-0.1, 0.5, 1, np.nan, "0.2", None, True]
RULES = [
    ct.robust.TrimmedMean(0.3),
    ct.robust.Median(),
    ct.robust.Krum(1),
    ct.robust.Krum(1, keep=3),
    ct.robust.Clipping(1.3),
    ct.robust.GeometricMedian(100),
]


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


def trimmed_mean(values, weight, fraction):
    """The reference: for each column, the weighted mean of what is left when both ends are cut off."""
    means, d = np.zeros(values.shape[1]), len(weight)
    k = int(np.floor(fraction * d + 1e-9))
    for c, column in enumerate(values.T):
        kept = np.lexsort((weight, column))[k : d - k]
        means[c] = np.average(column[kept], weights=weight[kept])
    return means


@pytest.mark.parametrize("fraction", SHARES)
@pytest.mark.parametrize("d", [1, 2, 3, 4, 7, 20])
def test_copies_are_what_was_said_or_the_trimmed_mean_of_it(fraction, d):
    said, weight, *_ = heard(d, d)
    copy, mean, k = np.full_like(said, np.nan), trimmed_mean(said, weight, fraction), int(fraction * d + 1e-9)
    trim(fraction, np.arange(d), weight, said, copy)
    left_out = copy != said
    assert np.all(left_out.sum(axis=0) == 2 * k)
    ranks = said.argsort(axis=0).argsort(axis=0)
    np.testing.assert_array_equal(left_out, (ranks < k) | (ranks >= d - k))
    np.testing.assert_allclose(copy[left_out], np.broadcast_to(mean, copy.shape)[left_out], rtol=1e-13)
    # What all of them pull towards is the trimmed mean, as strongly as ever.
    np.testing.assert_allclose(weight @ copy, weight.sum() * mean, rtol=1e-12)


def test_equal_values_are_told_apart_by_weight_and_never_by_name():
    said = np.array([[0.0], [0.0], [0.0], [5.0], [9.0]])
    weight = np.array([1.0, 100.0, 10.0, 2.0, 3.0])
    for order in (np.arange(5), np.arange(5)[::-1], np.array([2, 0, 4, 1, 3])):
        copy = np.zeros_like(said)
        trim(0.2, np.arange(5), weight[order], said[order], copy)
        assert weight[order] @ copy[:, 0] == pytest.approx(116.0 * (2.0 * 5.0) / 112.0)  # the lightest zero went


def test_what_is_not_a_finite_number_is_left_out_as_any_extreme():
    said, weight, *_ = heard(1, 7, 2)
    said[2], said[4] = [np.nan, np.inf], [-np.inf, 1.7e308]
    copy = np.zeros_like(said)
    trim(0.3, np.arange(7), weight, said, copy)
    assert np.all(np.isfinite(copy))


def test_one_value_is_always_kept():
    assert [trimmed_count(0.4999999999999, d) for d in (0, 1, 2, 3, 4)] == [0, 0, 0, 1, 1]
    assert trimmed_count(0.29, 100) == 29  # and not 28, as 0.29 * 100 is a little less
    assert trimmed_count(0.2, 5) == 1


@pytest.mark.parametrize("d", [1, 2, 3, 6, 9])
def test_the_median_is_that_of_numpy_where_all_weigh_alike(d):
    said, _, theta, shown = heard(d, d)
    copy = copies(ct.robust.Median(), said, np.ones(d), theta, shown)
    np.testing.assert_allclose(copy.mean(axis=0), np.median(said, axis=0), rtol=1e-13)


@pytest.mark.parametrize("d", [3, 5, 9])
@pytest.mark.parametrize(("liars", "keep"), [(0, 1), (1, 1), (2, 3), (1, 100)])
def test_krum_keeps_the_models_with_the_smallest_scores(d, liars, keep):
    said, weight, theta, shown = heard(d, d)
    copy = copies(ct.robust.Krum(liars, keep), said, weight, theta, shown)
    kept = np.lexsort((-weight, krum_scores(said, liars)))[:keep]  # of equal ones, the heaviest
    mean = np.average(said[kept], axis=0, weights=weight[kept])
    np.testing.assert_array_equal(copy[kept], said[kept])
    others = np.setdiff1d(np.arange(d), kept)
    np.testing.assert_allclose(copy[others], np.broadcast_to(mean, (len(others), 4)), rtol=1e-13)
    np.testing.assert_allclose(weight @ copy, weight.sum() * mean, rtol=1e-12)  # all pull as strongly as ever


def test_krum_leaves_out_what_is_not_a_number():
    said, weight, theta, shown = heard(0, 6)
    said[2, 1], said[4] = np.nan, np.inf
    assert np.all(np.isfinite(copies(ct.robust.Krum(2), said, weight, theta, shown)))


def test_clipping_moves_what_is_far_on_a_straight_line():
    said, weight, theta, shown = heard(3, 8)
    said[5] = theta
    copy = copies(ct.robust.Clipping(1.3), said, weight, theta, shown)
    far = np.linalg.norm(said - theta, axis=1)
    expected = theta + np.minimum(1.0, 1.3 / np.maximum(far, 1e-300))[:, None] * (said - theta)
    np.testing.assert_allclose(copy, expected, rtol=1e-12)
    np.testing.assert_array_equal(copy[far <= 1.3], said[far <= 1.3])
    assert 0 < np.count_nonzero(far <= 1.3) < 8
    said[2, 0] = np.inf
    np.testing.assert_array_equal(copies(ct.robust.Clipping(1.3), said, weight, theta, shown)[2], theta)


@pytest.mark.parametrize("d", [1, 2, 5, 8])
def test_the_geometric_median_has_the_smallest_sum_of_distances(d):
    said, weight, theta, shown = heard(d, d)
    copy = copies(ct.robust.GeometricMedian(500), said, weight, theta, shown)
    assert np.all(copy == copy[0])

    def far(z):
        return weight @ np.linalg.norm(said - z, axis=1)

    best = min(minimize(far, z, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).fun for z in said)
    assert far(copy[0]) <= best * (1 + 1e-6)


def test_the_consensus_step_is_part_of_the_way_from_what_others_take_one_for():
    said, weight, theta, shown = heard(1, 5)
    copy = copies(ct.robust.Consensus(0.3), said, weight, theta, shown)
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
@pytest.mark.parametrize("rule", [*RULES, ct.robust.Consensus(0.3)], ids=repr)
def test_compiled_rules_are_the_plain_ones_bit_for_bit(rule):
    said, weight, *_ = heard(11, 30)
    start, peer = np.array([0, 1, 3, 10, 10, 30]), np.arange(30)
    own = Own(np.random.default_rng(0).normal(size=(5, 4)))
    ours, theirs, room = np.zeros_like(said), np.zeros_like(said), np.zeros(rule.room(20, 4))
    combine_all(rule, own, start, peer, weight, said, ours, room)
    combine_all.python(rule, own, start, peer, weight, said, theirs, room)
    np.testing.assert_array_equal(ours, theirs)
    assert not np.array_equal(ours, said)


COMPILED = pytest.param("compiled equals python", marks=pytest.mark.compiled)
ISOLATED = pytest.param("leaves the isolated alone", marks=pytest.mark.slow)
PROMISES = ("keeps to what it declares", COMPILED, "announces its messages", "ignores names", ISOLATED, "runs on peers")
KINDS = [
    ct.Robust("cd", RULES[3]),
    ct.robust.Trimmed("cd", 0.4),
    ct.robust.Trimmed("djam", 0.4),
    ct.robust.Trimmed("propagation", 0.4),
]
KINDS += [ct.Robust("cd", rule) for rule in RULES]


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize(
    "method", [*KINDS[:2], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[2:])], ids=repr
)
def test_methods_with_a_rule_keep_their_promises_but_for_the_optimum(method, promise):
    METHOD_CHECKS[promise](method)


def test_a_rule_that_leaves_nothing_out_is_the_method_bit_for_bit():
    problem = hard_problem()
    plain = ct.simulate(problem, "cd", wakes=300, seed=1)
    assert np.array_equal(
        plain.theta, ct.simulate(problem, ct.Robust("cd", ct.robust.Krum(0, 100)), wakes=300, seed=1).theta
    )
    assert np.array_equal(
        plain.theta, ct.simulate(problem, ct.Robust("cd", ct.robust.Clipping(1e9)), wakes=300, seed=1).theta
    )


def test_trimmed_is_robust_with_a_trimmed_mean():
    method = ct.robust.Trimmed("cd", 0.3)
    assert isinstance(method, ct.Robust)
    assert method.rule == ct.robust.TrimmedMean(0.3)
    assert (method.fraction, repr(method)) == (0.3, "Trimmed(CoordinateDescent(), fraction=0.3)")
    for one in (
        method,
        ct.robust.Trimmed("propagation"),
        ct.robust.Trimmed(ct.Private("cd")),
        ct.Robust("cd", ct.robust.Krum(2)),
    ):
        assert pickle.loads(pickle.dumps(one)) == one
    assert not method.exchanges
    assert not method.synchronous
    assert ct.Robust("cd", ct.robust.TrimmedMean(0.3)) != method  # another class, by name
    private = ct.Private(ct.Robust("cd", ct.robust.Median()), wakes_per_agent=3)
    assert (type(private), private.rule) == (ct.Robust, ct.robust.Median())


PRIVATE_BOOSTING = ct.Private("boosting")
NOT_TRIMMED = {
    r"CollaborativeADMM\(.*\) does not keep copies": "admm",
    "unknown method 'global': choose one of cd": "global",
    "not a method that agents can run": ct.baselines.GlobalModel(),
    "trimmed already": ct.robust.Trimmed("cd"),
    r"ct\.Learned\(ct\.robust\.Trimmed\(CoordinateDescent\(\)\)\)": ct.Learned("cd"),
}


@pytest.mark.parametrize(
    ("error", "complaint", "make"),
    [
        (ParameterError, "does not keep copies", lambda: ct.Robust("admm", ct.robust.Median())),
        (MismatchError, "averages over all agents", lambda: ct.Robust("gossip-pooling", ct.robust.Median())),
        (ParameterError, "already", lambda: ct.Robust(ct.robust.Trimmed("cd"), ct.robust.Median())),
        (ParameterError, "must be an aggregation rule", lambda: ct.Robust("cd", "median")),
        (ParameterError, r"graph.*ct\.Learned\(ct\.Robust", lambda: ct.Robust(ct.Learned("cd"), ct.robust.Median())),
        (MismatchError, "room for every neighbour", lambda: ct.Learned(ct.Robust("cd", ct.robust.Krum(1)))),
        (MismatchError, "kink", lambda: ct.simulate(hard_problem(loss=ct.Hinge()), ct.robust.Trimmed("cd"), wakes=1)),
        (ParameterError, "liars = -1", lambda: ct.robust.Krum(-1)),
        (ParameterError, "keep = 0", lambda: ct.robust.Krum(1, keep=0)),
        (ParameterError, "radius = 0", lambda: ct.robust.Clipping(0.0)),
        (ParameterError, "steps = 0", lambda: ct.robust.GeometricMedian(0)),
        (ParameterError, "gamma = 1.5", lambda: ct.robust.Consensus(1.5)),
        (TypeError, r"Krum\(liars=1, keep=1\): .*'lies'", lambda: ct.robust.Krum(lies=2)),
        *((ParameterError, why, lambda m=m: ct.robust.Trimmed(m)) for why, m in NOT_TRIMMED.items()),
        *(
            (ParameterError, "does not keep copies", lambda m=m: ct.robust.Trimmed(m))
            for m in ("boosting", PRIVATE_BOOSTING)
        ),
        *((ParameterError, "fraction = ", lambda f=f: ct.robust.Trimmed("cd", f)) for f in NO_SHARES),
    ],
)
def test_what_cannot_be_defended_is_refused(error, complaint, make):
    with pytest.raises(error, match=complaint):
        make()


# -- methods on what a rule makes of what they heard --


def played(method, problem, wakes=150, start=None):
    """Arrays, state and account after a run in plain Python."""
    rng = np.random.default_rng(0)
    start = problem.local() + rng.normal(size=(problem.n, problem.p)) if start is None else start
    order, dice = rng.integers(0, problem.n, wakes), rng.random((wakes, method.dice))
    return hosted(method, problem, start, (order, np.full(wakes, VACANT), dice, np.zeros(wakes)), compiled=False)


def small(name):
    """A problem for a method, on a graph of degrees 2 to 4."""
    problem = hard_problem()
    return ct.Problem.propagation(problem.local(), problem.graph, alpha=0.6) if name == "propagation" else problem


@pytest.mark.parametrize("fraction", [0.0, 0.24])
@pytest.mark.parametrize(
    "method", ["cd", "djam", "propagation", ct.Private("cd", wakes_per_agent=30), ct.Private("propagation")], ids=str
)
def test_where_nothing_is_left_out_it_is_the_method_bit_for_bit(method, fraction):
    problem = small(method)
    start = None if isinstance(method, str) else np.zeros((problem.n, problem.p))
    alone = resolve_method(method)
    plain, trimmed = (played(m, problem, start=start) for m in (alone, ct.robust.Trimmed(alone, fraction)))
    assert same(plain[1:], (trimmed.own, trimmed.edge.model, trimmed.account))
    np.testing.assert_array_equal(trimmed.edge.said, plain.edge.copy)


def woken(method, problem, i, act):
    """What agent i has heard and thinks, when ``act`` has happened to it after a while."""
    arrays, own, edge, _ = played(method, problem)
    a, b = arrays.edge_start[i], arrays.edge_start[i + 1]
    data, me, edges = data_of(arrays, i), row(own, i), rows(edge, a, b)
    outbox = new_outbox(method, arrays, problem.p, method.max_messages)
    before = me.theta.copy()
    act(data, me, edges, outbox)
    return data, before, me.theta, edges


@pytest.mark.parametrize("fraction", [0.25, 0.34, 0.45])
def test_a_wake_of_descent_is_a_step_towards_the_trimmed_mean(fraction):
    problem, i, method = (
        hard_problem(),
        2,
        ct.robust.Trimmed("cd", fraction),
    )  # four neighbours, weights from 1e-3 to 30
    data, before, after, edges = woken(
        method, problem, i, lambda data, me, edges, outbox: method.wake(data, me, edges, None, outbox)
    )
    assert len(np.unique(edges.said[:, 0])) == 4
    X, y = problem.data.rows_of(i)
    degree, a = data.weight.sum(), problem.importance[i]
    gradient = -(X * (y / (1 + np.exp(y * (X @ before))))[:, None]).mean(axis=0) + 2 * problem.ridge[i] * before
    pull = degree * (before - trimmed_mean(edges.said, data.weight, fraction))
    step = (2 * problem.smooth * pull + a * gradient) / (2 * problem.smooth * degree + a * problem.local_lipschitz[i])
    np.testing.assert_allclose(after, before - step, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["djam", "propagation"])
def test_exchanges_update_from_what_has_just_been_said_and_trimmed(name):
    problem, i, method = small("propagation"), 2, ct.robust.Trimmed(name, 0.25)
    lie = np.array([1e9, -1e9, 0.0])
    data, _, after, edges = woken(
        method,
        problem,
        i,
        lambda data, me, edges, outbox: method.receive(data, me, edges, Message(1, 1, ASK, lie), outbox),
    )
    np.testing.assert_array_equal(edges.said[1], lie)
    assert np.abs(edges.model.copy).max() < 1e3
    mean = trimmed_mean(edges.said, data.weight, 0.25)
    [[mine]] = problem.local()[i : i + 1, None]
    weight = 2 * problem.smooth * data.weight.sum()
    expected = (weight * mean + problem.importance[i] * mine) / (weight + problem.importance[i])
    np.testing.assert_allclose(after, expected, rtol=1e-12)


def test_rounds_are_those_of_the_method():
    problem = small("propagation")
    unchanged = ct.simulate(problem, ct.robust.Trimmed("propagation", 0.2), rounds=3).theta
    np.testing.assert_array_equal(unchanged, ct.simulate(problem, "propagation", rounds=3).theta)
    before, after = (
        ct.simulate(problem, ct.robust.Trimmed("propagation", 0.4), rounds=count).theta for count in (30, 31)
    )
    W = problem.graph.W.toarray()
    for i in np.flatnonzero(~problem.graph.isolated):
        tied = W[i] > 0
        weight, own = 2 * problem.smooth * W[i].sum(), problem.importance[i]
        mean = trimmed_mean(before[tied], W[i][tied], 0.4)
        np.testing.assert_allclose(after[i], (weight * mean + own * problem.local()[i]) / (weight + own), rtol=1e-12)
    with pytest.raises(MismatchError, match="no synchronous form"):
        ct.simulate(hard_problem(), ct.robust.Trimmed("cd"), rounds=3)


# -- together with others ---------------------------------------------------------------------------------------------


def learned(method, compiled, problem=None, **limits):
    """Arrays, state and account after agents have learned a graph; wakes are spread evenly."""
    problem, wakes = hard_problem() if problem is None else problem, 135
    method = ct.Learned(method, ct.GraphRule(kappa=3, **limits), every=1)
    rng = np.random.default_rng(0)
    order, dice = rng.permutation(np.resize(np.arange(9), wakes)), rng.random((wakes, method.dice))
    start = np.zeros((problem.n, problem.p)) if method.plan else problem.local()
    return hosted(method, problem, start, (order, np.full(wakes, VACANT), dice, np.zeros(wakes)), compiled)


@pytest.mark.slow  # to compile; in plain Python below
@pytest.mark.parametrize("method", ["cd", ct.Private("cd", epsilon=2.0, wakes_per_agent=20)], ids=["cd", "private"])
def test_on_a_learned_graph_compiled_or_not(method):
    one, other = (learned(ct.robust.Trimmed(method, 0.4), fast) for fast in (True, False))
    assert np.array_equal(one.arrays.peer, other.arrays.peer)
    assert np.array_equal(one.arrays.weight, other.arrays.weight)
    assert same(one[1:], other[1:])


def test_on_a_learned_graph_in_private():
    inner = ct.Private("cd", epsilon=2.0, wakes_per_agent=20)
    (arrays, own, edge, _), (_, plain, *_), (_, same, *_) = (
        learned(method, False) for method in (ct.robust.Trimmed(inner, 0.4), inner, ct.robust.Trimmed(inner, 0.0))
    )
    assert VACANT in arrays.peer  # there are slots to spare,
    assert np.any(arrays.peer[arrays.edge_start[8] :] != VACANT)  # and agent 8, which had no edges, has some
    assert np.all(np.isfinite(own.theta))
    assert np.array_equal(same.theta, plain.theta)
    assert not np.array_equal(own.theta, plain.theta)
    assert np.array_equal(own.account, plain.account)
    assert ct.Learned(ct.robust.Trimmed(inner, 0.4)).plan is inner.plan
    assert np.all(np.isfinite(ct.Learned(ct.robust.Trimmed(inner, 0.4)).finish(arrays, own, edge)))


def test_privacy_costs_what_it_costs_without():
    inner = ct.Private("cd", epsilon=1.0, wakes_per_agent=3)
    method = ct.robust.Trimmed(inner, 0.3)
    assert method.plan is inner.plan
    assert method.privacy._replace(finish=None) == inner.privacy._replace(finish=None)
    assert method.privacy.finish is not None
    problem = hard_problem()
    zeros = np.zeros((problem.n, problem.p))
    arrays, own, edge, account = played(method, problem, start=zeros)
    _, plain, _, counted = played(inner, problem, start=zeros)
    np.testing.assert_array_equal(own.account, plain.account)
    np.testing.assert_array_equal(account, counted)
    # The models that agents keep to themselves are anchored at trimmed means.
    copy, start = np.zeros_like(edge.said), arrays.edge_start
    combine_all(method.rule, own, start, arrays.peer, arrays.weight, edge.said, copy, np.zeros(0))
    untouched = edge.model.copy.copy()
    final = method.finish(arrays, own, edge)
    np.testing.assert_array_equal(final, inner.finish(arrays, own, Edge(copy)))
    np.testing.assert_array_equal(edge.model.copy, untouched)
    assert ct.Private(ct.robust.Trimmed("propagation", 0.3)).method.terms == ct.Private("propagation").terms


def test_what_a_private_method_refuses_was_not_said():
    method = ct.robust.Trimmed(ct.Private("cd", wakes_per_agent=3), 0.25)
    problem = hard_problem()
    arrays = part_of(arrays_of(problem), 2, 3)
    own, edge = method.start(arrays, np.zeros((1, 3)))
    outbox = new_outbox(method, arrays, 3, 1)
    for text, taken in ((np.full(3, 2.0), 2.0), (np.full(3, 1e200), 2.0), (np.full(3, -1.0), -1.0)):
        method.receive(data_of(arrays, 0), row(own, 0), edge, Message(1, 1, MODEL, text), outbox)
        assert edge.said[1].tolist() == [taken] * 3
        method.wake(data_of(arrays, 0), row(own, 0), edge, SimpleNamespace(dice=np.full(method.dice, 0.5)), outbox)
        outbox.cursor[:] = 0
    assert Ledger(method.plan).exhausted is False


def test_a_new_edge_is_taken_to_agree():
    method, problem = ct.robust.Trimmed("cd", 0.3), hard_problem()
    arrays, _ = widened(arrays_of(problem), np.diff(arrays_of(problem).edge_start) + 1)
    own, edge = method.start(arrays, problem.local())
    a, b = arrays.edge_start[2], arrays.edge_start[3]
    edges = rows(edge, a, b)
    edges.said[-1] = edges.model.copy[-1] = 7.0
    method.open(data_of(arrays, 2), row(own, 2), edges, b - a - 1)
    for kept in (edges.said, edges.model.copy):
        np.testing.assert_array_equal(kept[-1], own.theta[2])


# -- hostile peers ----------------------------------------------------------------------------------------------------


def accuracy_under_attack(method, task, problem, attackers, lie, wakes):
    """Mean test accuracy of honest peers, where at every wake an attacker sends a lie to all its neighbours."""
    arrays, models, rng = arrays_of(problem), problem.local(), np.random.default_rng(0)
    honest = np.setdiff1d(np.arange(problem.n), attackers)
    peers = {i: Peer(method, part_of(arrays, i, i + 1), models[i]) for i in honest.tolist()}

    def sent(messages):
        return ((message.to, message.data) for message in messages)

    def deliver(posts):
        for to, data in posts:
            if to in peers:
                assert peers[to].receive(data) == []

    for peer in peers.values():
        deliver(sent(peer.greet()))
    for i in rng.integers(0, problem.n, wakes).tolist():
        if i in peers:
            deliver(sent(peers[i].wake()))
        else:
            deliver((j, encode(i, MODEL, lie(models[i]))) for j in problem.graph.neighbours(i).tolist())
    theta = models.copy()
    theta[honest] = [peers[i].theta for i in honest]
    return task.accuracy(theta)[honest].mean()


@pytest.mark.slow
def test_a_fifth_of_hostile_peers_spoils_the_method_and_not_the_trimmed_one():
    task = ct.datasets.linear_classification(n=100, seed=0)
    problem = ct.Problem.personalized(task.train, task.graph, mu=4.0)
    attackers = np.random.default_rng(1).choice(100, 20, replace=False)
    honest = np.setdiff1d(np.arange(100), attackers)
    peace = task.accuracy(ct.simulate(problem, "cd", wakes=2000, seed=0).theta)[honest].mean()
    liars = [np.isin(problem.graph.neighbours(i), attackers).mean() for i in honest]
    assert 0.2 < max(liars) < 0.4
    # Those whose neighbours lie too often for a share of 0.3 follow lies that are as long as other models, for a while;
    # those that follow huge ones become a part of the attack.
    lies = {
        "turned round, ten times as long": (lambda model: -10.0 * model, 0.3, 0.07),
        "turned round, huge": (lambda model: -1e6 * np.sign(model), 0.4, 0.1),
    }
    for name, (lie, fraction, room) in lies.items():
        plain, trimmed = (
            accuracy_under_attack(method, task, problem, attackers, lie, 1500)
            for method in (ct.CoordinateDescent(), ct.robust.Trimmed("cd", fraction))
        )
        numbers = f"models {name}: {peace:.3f} without an attack, {plain:.3f} with it, {trimmed:.3f} if trimmed"
        print(numbers)  # docs/how-to/compress-and-defend.md quotes them
        assert plain < 0.5, numbers
        assert trimmed > peace - room, numbers


def test_a_weight_beyond_the_cap_is_not_taken_over():
    problem = hard_problem().on(graph=ct.graphs.ring(9))
    taken = {}
    for max_weight in (2.0, 1e100):
        method = ct.Learned("cd", ct.GraphRule(kappa=2, max_weight=max_weight))
        arrays = part_of(arrays_of(problem, spare=method.spare), 0, 1)
        own, edge = method.start(arrays, problem.local()[:1])
        outbox = new_outbox(method, arrays, problem.p, method.max_messages)

        def hear(sender, slot, *about):
            message = Message(sender, slot, WEIGHT, np.array(about))
            method.receive(data_of(arrays, 0), row(own, 0), edge, message, outbox)  # noqa: B023 - called at once

        for weight, stamp in ((2.0, 4.0), (2.0000001, 6.0), (1e99, 8.0), (-1.0, 10.0), (np.inf, 12.0)):
            hear(1, 0, weight, stamp, 0.0)
        hear(5, VACANT, 50.0, 4.0, 0.0)  # an edge to begin with
        taken[max_weight] = {j: w for j, w in zip(arrays.peer, arrays.weight, strict=True) if j != VACANT}
    assert taken[2.0] == {1: 2.0, 8: 1.0}
    assert taken[1e100] == {1: 1e99, 8: 1.0, 5: 50.0}


def test_agents_give_no_weight_that_others_refuse():
    untied = hard_problem().on(graph=ct.graphs.empty(9))
    with pytest.raises(MismatchError, match=r"weight 30, and no edge may weigh more than max_weight=0\.4"):
        learned("cd", False, max_weight=0.4)
    with pytest.raises(MismatchError, match="max_weight"):
        ct.simulate(hard_problem(), ct.Learned("cd", ct.GraphRule(kappa=2, max_weight=0.4)), wakes=1)
    free, capped = (learned("cd", False, problem=untied, **given)[0] for given in ({}, {"max_weight": 0.2}))
    assert free.weight.max() > 0.3
    assert capped.weight.max() == 0.2
    weights = held(capped, capped.weight)
    np.testing.assert_array_equal(weights, weights.T)  # nobody was refused


def test_a_cap_is_a_weight():
    rule = ct.GraphRule(max_weight=0.4)
    assert rule == pickle.loads(pickle.dumps(rule))
    assert repr(rule) == "GraphRule(lam=1, delta=0.01, kappa=5, max_weight=0.4)"
    assert ct.GraphRule(max_edges=3, max_weight=2) == ct.GraphRule(None, 1.0, 0.01, 5, "exact", 3, 2.0)
    for bad in (0.0, -1.0, np.inf, np.nan, "much", True):
        with pytest.raises(ParameterError, match="max_weight = "):
            ct.GraphRule(max_weight=bad)
