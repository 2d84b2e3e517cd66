"""Agents that lie: exactly what they say, who is harmed, and who is not."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import coterie as ct
from coterie.core import loop
from coterie.core.arrays import EVERYONE, VACANT, new_outbox
from coterie.core.wrap.attacked import ATTACKS, GRID
from coterie.engines.arrays import arrays_of
from coterie.errors import DataError, MismatchError, ParameterError
from coterie.testing import hard_problem
from coterie.testing.methods import METHOD_CHECKS, Replay


def messages_of(method, problem, wakes=60, seed=0):
    """Who sent which model in which wake, in plain Python; and what everybody's neighbours had sent before."""
    arrays, rng = arrays_of(problem), np.random.default_rng(seed)
    own, edge = method.start(arrays, problem.local())
    outbox, egress = new_outbox(method, arrays, problem.p, method.max_messages), loop.new_egress(0, 1)
    account, sent = loop.new_account(method), []
    state = method, arrays, own, edge
    loop.meet(*state, outbox, egress, account, loop.run.python)
    order, dice = rng.integers(0, problem.n, wakes), rng.random((wakes, method.dice))
    for k, die in zip(order, dice, strict=True):
        outbox.cursor[:] = 0
        said = heard(edge)[arrays.edge_start[k] : arrays.edge_start[k + 1]].copy()
        one = np.array([k]), np.array([VACANT]), die[None], np.zeros(1)
        loop.run.python(*state, *one, outbox, egress, account, loop.NO_LIMIT)
        sent.append((k, outbox.text[0].copy(), own.theta[k].copy(), said))
        assert outbox.to[0] == EVERYONE
    return arrays, sent


def heard(edge):
    return edge.said if "said" in edge._fields else edge.copy


@pytest.mark.parametrize("defended", [False, True])
@pytest.mark.parametrize("lie", ["sign-flip", "scaled", "constant", "little", "inner-product"])
def test_liars_say_what_their_lie_is_and_others_the_truth(lie, defended):
    problem, liars, what = hard_problem(), [2, 5], ATTACKS[lie]
    method = ct.robust.Attacked(ct.Robust("cd", ct.robust.Median()) if defended else "cd", liars, lie)
    arrays, sent = messages_of(method, problem)
    assert {k for k, *_ in sent} >= set(liars)
    for k, text, theta, said in sent:
        if k not in liars:
            np.testing.assert_array_equal(text, theta)
            continue
        honest = said[~np.isin(arrays.peer[arrays.edge_start[k] : arrays.edge_start[k + 1]], liars)]
        mean, spread = honest.mean(axis=0), honest.std(axis=0)
        expected = what.own * theta + what.mean * mean + what.spread * spread + what.shift
        np.testing.assert_allclose(text, expected, rtol=1e-12, atol=1e-12)
        assert not np.array_equal(text, theta)


@pytest.mark.slow
def test_noise_is_gaussian_and_comes_from_the_dice():
    """4,000 draws: mean within 5 of its standard errors, and squares, too; an error in 10^6 runs, of fixed seeds."""
    problem = ct.Problem.propagation(np.zeros((2, 200)), ct.graphs.complete(2), alpha=0.5)
    method = ct.robust.Attacked("cd", [1], ct.robust.Attack(own=1.0, noise=3.0))
    one, other, again = (messages_of(method, problem, 40, seed)[1] for seed in (0, 1, 0))
    noise = np.array([text - theta for k, text, theta, _ in one if k == 1]).ravel() / 3.0
    assert noise.size >= 2000
    assert abs(noise.mean()) <= 5 / np.sqrt(noise.size)
    assert abs(np.mean(noise**2) - 1.0) <= 5 * np.sqrt(2 / noise.size)
    assert len(np.unique(noise)) > 0.99 * noise.size
    assert np.all(noise * GRID * 3.0 != 0.0)
    np.testing.assert_array_equal([text for _, text, *_ in one], [text for _, text, *_ in again])
    assert not np.array_equal([text for _, text, *_ in one], [text for _, text, *_ in other])


LIAR = ct.robust.Attacked("cd", [7])
COMPILED = pytest.param("compiled equals python", marks=pytest.mark.compiled)
PROMISES = ("keeps to what it declares", COMPILED, "announces its messages", "runs on peers")


@pytest.mark.parametrize("promise", [*PROMISES, "may be stored once", "touches what its footprint says"])
@pytest.mark.parametrize("lie", ["little", pytest.param("noise", marks=pytest.mark.slow)])
def test_it_keeps_the_promises_of_a_method_but_for_the_optimum(lie, promise):
    METHOD_CHECKS[promise](ct.robust.Attacked("cd", [2, 5], lie))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["djam", "propagation"])
def test_answers_lie_too(name):
    METHOD_CHECKS["compiled equals python"](ct.robust.Attacked(name, [2, 5], "noise"))
    METHOD_CHECKS["runs on peers"](ct.robust.Attacked(name, [2, 5], "sign-flip"))


def test_nobody_lies_and_it_is_the_method_bit_for_bit():
    problem = hard_problem()
    plain, ours = (ct.simulate(problem, m, wakes=300, seed=0) for m in ("cd", ct.robust.Attacked("cd", [], "scaled")))
    assert np.array_equal(plain.theta, ours.theta)
    assert (ours.honest.all(), ours.notes, "honest_loss" in ours.trace) == (True, plain.notes, False)


def crowd(n=12, p=3):
    """Agents with models around 1, who agree nearly completely."""
    models = 1.0 + 0.1 * np.random.default_rng(0).normal(size=(n, p))
    return ct.Problem.propagation(models, ct.graphs.complete(n), alpha=0.98)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("lie", [ct.robust.Attack(own=-5.0), ct.robust.Attack(shift=8.0)], ids=["flip", "constant"])
def test_an_attack_that_ruins_the_method_does_not_ruin_a_defended_one(lie):
    """Without liars everybody is within 0.25 of 1. With three of twelve, the others leave it by 0.5 at least, and with
    a defence by no more than 0.3."""
    problem, liars = crowd(), [0, 4, 9]
    calm = ct.simulate(problem, "cd", wakes=4000, seed=0)
    assert np.abs(calm.theta - 1.0).max() <= 0.25
    ruined = ct.simulate(problem, ct.robust.Attacked("cd", liars, lie), wakes=4000, seed=0)
    assert np.abs(ruined.theta - 1.0)[ruined.honest].mean() >= 0.5
    run = ct.simulate(problem, ct.robust.Attacked(ct.robust.Trimmed("cd", 0.3), liars, lie), wakes=4000, seed=0)
    assert np.abs(run.theta - 1.0)[run.honest].max() <= 0.3
    assert run.trace["honest_loss"].iloc[-1] <= 0.2 * ruined.trace["honest_loss"].iloc[-1]


@pytest.mark.slow  # to compile
@pytest.mark.parametrize("rule", [ct.robust.Median(), ct.robust.Krum(3, keep=3), ct.robust.GeometricMedian()], ids=repr)
def test_other_defences_hold_as_well(rule):
    problem, liars = crowd(), [0, 4, 9]
    run = ct.simulate(
        problem, ct.robust.Attacked(ct.Robust("cd", rule), liars, ct.robust.Attack(shift=8.0)), wakes=4000, seed=0
    )
    assert np.abs(run.theta - 1.0)[run.honest].max() <= 0.3


@pytest.mark.slow
def test_a_little_is_enough_where_everybody_is_trusted_by_a_trimmed_mean():
    """What Baruch et al. say: within the spread of honest models, a lie passes a trimmed mean, and shifts it."""
    problem, liars = crowd(), [0, 4, 9]
    calm = ct.simulate(problem, ct.robust.Trimmed("cd", 0.25), wakes=4000, seed=0).theta
    run = ct.simulate(problem, ct.robust.Attacked(ct.robust.Trimmed("cd", 0.25), liars, "little"), wakes=4000, seed=0)
    shift = (calm - run.theta)[run.honest].mean()
    assert shift > 0.001
    assert np.abs(run.theta - 1.0)[run.honest].max() <= 0.4


def test_who_lied_is_known_afterwards():
    problem = crowd()
    run = ct.simulate(problem, ct.robust.Attacked("cd", [9, 4, 4], "scaled"), wakes=50, every=10, seed=0)
    assert run.method.liars == (4, 9)
    assert np.flatnonzero(~run.honest).tolist() == [4, 9]
    assert run.notes == ("agents 4, 9 lied: run.honest leaves them out",)
    assert run.trace["honest_loss"].iloc[-1] == pytest.approx(problem.losses(run.theta)[run.honest].mean())
    assert ct.CoordinateDescent().liars == ()
    wrapped = ct.compression.Compressed(ct.robust.Attacked("cd", [1]), ct.compression.TopK(1))
    assert (wrapped.liars, ct.robust.Trimmed(wrapped).liars) == ((1,), (1,))


def test_lies_are_compressed_as_the_truth_is():
    """What neighbours have of a liar comes to its lie, sum by sum."""
    problem = crowd(6)
    method = ct.compression.Compressed(
        ct.robust.Attacked("cd", [2], ct.robust.Attack(own=-1.0)), ct.compression.TopK(1)
    )
    own = Replay(method, problem, 3000, seed=5).hosted().own
    np.testing.assert_allclose(own.sent[2], -own.theta[2], atol=1e-6)
    np.testing.assert_allclose(own.sent[1], own.theta[1], atol=1e-6)


@pytest.mark.slow  # to compile
def test_rounds_with_liars():
    problem = crowd(5)
    run = ct.simulate(problem, ct.robust.Attacked("propagation", [2], ct.robust.Attack(shift=3.0)), rounds=60)
    W, n = problem.graph.W.toarray(), 5
    theta, local, mu = problem.local(), problem.local(), problem.importance
    for _ in range(60):
        said = theta.copy()
        said[2] = 3.0
        theta = (2 * problem.smooth * (W @ said) + mu[:, None] * local) / (2 * problem.smooth * 4 + mu)[:, None]
    np.testing.assert_allclose(run.theta, theta, rtol=1e-10)
    assert run.wakes == 60 * n
    with pytest.raises(MismatchError, match="no synchronous form"):
        ct.simulate(problem, ct.robust.Attacked("propagation", [2], "noise"), rounds=3)


@pytest.mark.parametrize(
    ("error", "message", "make"),
    [
        (MismatchError, "agent 7 is to lie: the agents are 0 to 4", lambda: ct.simulate(crowd(5), LIAR, wakes=10)),
        (ParameterError, "unknown attack 'fib': choose one of sign-flip", lambda: ct.robust.Attacked("cd", [1], "fib")),
        (ParameterError, "list of agents' numbers", lambda: ct.robust.Attacked("cd", "ann")),
        (ParameterError, "has liars already", lambda: ct.robust.Attacked(LIAR, [2])),
        (
            MismatchError,
            r"ct\.compression\.Compressed\(ct\.robust\.Attacked",
            lambda: ct.robust.Attacked(ct.compression.Compressed("cd", ct.compression.TopK(1)), [2]),
        ),
        (MismatchError, "private", lambda: ct.robust.Attacked(ct.Private("cd", wakes_per_agent=3), [1])),
        (ParameterError, r"own = '1': expected a number in \(-inf, inf\)", lambda: ct.robust.Attack(own="1")),
        (ParameterError, "handler 'open'", lambda: ct.Learned(LIAR)),
    ],
)
def test_what_makes_no_sense_is_refused(error, message, make):
    with pytest.raises(error, match=message):
        make()


def test_it_is_a_value():
    method = ct.robust.Attacked("cd", [3, 1], "noise")
    assert pickle.loads(pickle.dumps(method)) == method
    assert (method.dice, ct.robust.Attacked("cd", [1]).dice) == (8, 0)


def test_labels_are_flipped_for_some():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 30).astype(float)
    data = ct.AgentData(rng.normal(size=(30, 2)), y, agents=rng.choice(["ann", "bob", "cyd"], 30))
    flipped = ct.robust.flip_labels(data, ["bob", "cyd"])
    for name in data.members:
        X, before = data.rows_of(name)
        again, after = flipped.rows_of(name)
        np.testing.assert_array_equal(X, again)
        np.testing.assert_array_equal(after, before if name == "ann" else 3.0 - before)
    np.testing.assert_array_equal(ct.robust.flip_labels(flipped, ["bob", "cyd"]).y, data.y)
    assert ct.robust.flip_labels(data, ["ann"], among=range(11)).rows_of("ann")[1].min() >= 7
    with pytest.raises(DataError, match="'dan' is not a member"):
        ct.robust.flip_labels(data, ["ann", "dan"])
    with pytest.raises(DataError, match="not among"):
        ct.robust.flip_labels(data, ["ann"], among=[0, 1])
    with pytest.raises(DataError, match="no labels"):
        ct.robust.flip_labels(ct.AgentData([[1.0]], agents=["ann"]), ["ann"])
