"""Who takes part: partial participation, stragglers, traces of availability."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie.core.methods.dpsgd import DPSGD
from coterie.errors import FileError, ParameterError
from coterie.testing import hard_problem

MODELS = np.random.default_rng(0).normal(size=(8, 3))


def problem():
    return ct.Problem.propagation(MODELS, ct.graphs.ring(8), alpha=0.6)


def who(conditions, n=8, rounds=400, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([conditions.present(n, t, rng) for t in range(rounds)])


def test_a_share_takes_part():
    """3,200 coins of probability 0.3: within 5 standard deviations, an error in 10^6 runs."""
    there = who(ct.Conditions(participation=0.3, always=[5]))
    assert there[:, 5].all()
    others = np.delete(there, 5, axis=1)
    assert abs(others.mean() - 0.3) <= 5 * np.sqrt(0.3 * 0.7 / others.size)
    assert others.any(axis=0).all()


def test_a_number_takes_part_beside_those_who_always_do():
    there = who(ct.Conditions(participation=3, always=[0, 5]))
    assert np.all(there.sum(axis=1) == 5)
    assert there[:, [0, 5]].all()
    assert np.all(np.delete(there, [0, 5], axis=1).mean(axis=0) > 0.3)  # 1/2 in the mean, and nobody is left out


def test_stragglers_take_part_in_one_of_so_many_rounds():
    there = who(ct.Conditions(slow={1: 4, 2: 2.5}), rounds=100)
    assert there.sum(axis=0).tolist() == [100, 25, 40, 100, 100, 100, 100, 100]
    assert np.diff(np.flatnonzero(there[:, 1])).tolist() == [4] * 24


def test_a_trace_says_who_is_there(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("agent,begin,end\n1,2,5\n1,7,9\n3,0,4\n")
    for available in (path, str(path), [(1, 2.0, 5.0), (1, 7.0, 9.0), (3, 0.0, 4.0)]):
        there = who(ct.Conditions(available=available, outages=[(0, 1.0, 3.0)]), n=5, rounds=10)
        assert np.flatnonzero(there[:, 1]).tolist() == [2, 3, 4, 7, 8]
        assert np.flatnonzero(there[:, 3]).tolist() == [0, 1, 2, 3]
        assert np.flatnonzero(~there[:, 0]).tolist() == [1, 2]
        assert there[:, [2, 4]].all()


def test_in_rounds_those_who_are_there_act_and_send():
    """Against the same rounds in NumPy: who is absent keeps its model, and hears of others."""
    given, conditions = problem(), ct.Conditions(participation=0.4)
    run = ct.simulate(given, "propagation", rounds=25, seed=7, conditions=conditions)
    rng = np.random.default_rng(np.random.SeedSequence(7).spawn(2)[1])
    theta, W, c = given.local(), given.graph.W.toarray(), given.importance
    weight, acted = 2 * given.smooth * W.sum(axis=1), 0
    for t in range(25):
        there = conditions.present(8, t, rng)
        new = (2 * given.smooth * (W @ theta) + c[:, None] * given.local()) / (weight + c)[:, None]
        theta[there] = new[there]
        acted += there.sum()
    np.testing.assert_allclose(run.theta, theta, rtol=1e-12)
    assert run.wakes == acted
    assert run.vectors == 16 + 2 * acted  # the initial swap, and two neighbours each
    same = ct.simulate(given, "propagation", rounds=25, seed=7, conditions=conditions, every=3)
    assert np.array_equal(run.theta, same.theta)


@pytest.mark.slow  # to compile
def test_methods_that_train_leave_out_the_absent():
    given = hard_problem()
    conditions = ct.Conditions(participation=2, always=[4])
    run = ct.simulate(given, DPSGD(ct.optim.SGD(0.01)), rounds=3, start="zeros", conditions=conditions)
    assert run.wakes == 9
    once = ct.simulate(given, DPSGD(ct.optim.SGD(0.01)), rounds=1, start="zeros", conditions=conditions)
    moved = np.flatnonzero(np.any(once.theta != 0.0, axis=1))
    assert len(moved) <= 3  # who has no data does not move either
    assert set(moved) <= set(np.flatnonzero(conditions.present(9, 0, np.random.default_rng(
        np.random.SeedSequence(0).spawn(2)[1]))))  # fmt: skip


@pytest.mark.slow
def test_by_clocks_it_reaches_the_same_optimum_later():
    given = problem()
    some = ct.Conditions(participation=0.25, always=[0], slow={3: 5.0})
    run = ct.simulate(given, "cd", wakes=6000, seed=0, conditions=some)
    assert given.suboptimality(run.theta) <= 1e-10
    # Rates: 1 for agent 0, a quarter for six, and a twentieth: 2.55 wakes in a unit of time, within 5 deviations.
    assert abs(run.wakes / run.time - 2.55) <= 5 * 2.55 / np.sqrt(6000)
    alone = ct.simulate(given, "cd", wakes=2000, seed=0, conditions=ct.Conditions(participation=1.0))
    plain = ct.simulate(given, "cd", wakes=2000, seed=0, conditions=ct.Conditions())
    assert np.array_equal(alone.theta, plain.theta)


@pytest.mark.parametrize(
    ("word", "options", "unit"),
    [
        ("participation=0.0", {"participation": 0.0}, None),
        ("participation=1.5", {"participation": 1.5}, None),
        ("participation=0 ", {"participation": 0}, None),
        ("number per round", {"participation": 3}, "wakes"),
        ("there are 8 agents", {"participation": 8, "always": [1]}, "rounds"),
        ("always: there is no agent number 8", {"participation": 0.5, "always": [8]}, "rounds"),
        ("slow: there is no agent number 'a'", {"slow": {"a": 2.0}}, "rounds"),
        ("expected a positive finite number", {"slow": {1: 0.0}}, None),
        ("more than once", {"slow": {1: 0.5}}, "rounds"),
        ("must be a mapping", {"slow": [1]}, None),
        (r"must be \(agent number, begin, end\)", {"available": [(1, 2)]}, None),
        ("it must begin", {"available": [(1, 5.0, 2.0)]}, "wakes"),
        ("at least one must return", {"available": [(k, 0.0, 5.0) for k in range(8)]}, "wakes"),
        ("rounds are synchronous", {"participation": 0.5, "loss": 0.1}, "rounds"),
    ],
)
def test_what_makes_no_sense_is_refused(word, options, unit):
    with pytest.raises(ParameterError, match=word):  # noqa: PT012 - the first line or the second
        conditions = ct.Conditions(**options)
        ct.simulate(problem(), "propagation", conditions=conditions, **{unit: 5})


def test_files_that_are_no_traces_are_refused(tmp_path):
    with pytest.raises(FileError, match="cannot be read"):
        ct.Conditions(available=tmp_path / "nothing.csv")
    for text, word in (("a,b\n1,2\n", "2 columns"), ("agent,begin,end\n1,x,2\n", "must hold")):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(ParameterError, match=word):
            ct.Conditions(available=tmp_path / "bad.csv")
