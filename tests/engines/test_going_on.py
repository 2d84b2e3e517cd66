"""A run in two halves is the whole run, to the last bit; also when the first half comes from a file."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.core.methods import METHODS as PUBLISHED
from coterie.core.methods import check_fit
from coterie.errors import DataError, MismatchError, ParameterError

COUNTS = ("wakes", "time", "messages", "vectors", "bytes", "lost", "duplicated", "seed", "notes", "epsilon", "delta")
BAD = ct.Conditions(latency=1.0, jitter=0.5, loss=0.2, duplication=0.1, outages=[(2, 1.0, 4.0)])


@pytest.fixture(scope="module")
def task():
    return ct.datasets.linear_classification(n=12, p=3, seed=3, rows=(3, 9), test_rows=11)


@pytest.fixture(scope="module")
def problem(task):
    return ct.Problem.personalized(task.train, task.graph)


@pytest.fixture(scope="module")
def smoothed(problem):
    return ct.Problem.propagation(problem.local(), problem.graph, alpha=0.5)


def assert_same(one, other):
    np.testing.assert_array_equal(one.theta, other.theta)
    np.testing.assert_array_equal(one.published, other.published)
    np.testing.assert_array_equal(one.tally, other.tally)
    assert one.graph == other.graph
    for name in COUNTS:
        assert getattr(one, name) == getattr(other, name), name
    pd.testing.assert_frame_equal(one.trace, other.trace, check_exact=True)


def in_halves(problem, method, first, second, tmp_path, **how):
    """The whole run; in two halves; and in two halves with a file in between."""
    [(unit, a)], [(_, b)] = first.items(), second.items()
    whole = ct.simulate(problem, method, **{unit: a + b}, seed=5, **how)
    half = ct.simulate(problem, method, **first, seed=5, **how)
    both = ct.simulate(problem, method, **second, start=half, **how)
    assert_same(both, whole)
    again = ct.load(ct.save(half, tmp_path / "half.npz"))
    assert_same(ct.simulate(problem, method, **second, start=again, **how), whole)
    assert_same(ct.simulate(problem, method, **second, start=half, **how), whole)  # the first half is as it was
    return whole


SLOW = pytest.mark.slow
PRIVATE = ct.Private(ct.CoordinateDescent(), epsilon=1.0, delta=1e-5, wakes_per_agent=4, row_norm=2.0)
TRAINS = ct.gossip.DPSGD(local=ct.optim.SGD(0.1, steps=2, batch=2, momentum=0.9))
LEARNED = ct.Learned(ct.CoordinateDescent(), ct.GraphRule(lam=0.5), every=3)
SOME = ct.Conditions(participation=0.4, slow={1: 2.0})
RUNS = {  # a method, and how much of what in either half
    "cd": ("cd", "wakes", 90, 110, {"every": 30}),
    "djam": ("djam", "wakes", 90, 110, {"every": 30}),
    "learned": (LEARNED, "wakes", 90, 110, {"every": 30}),
    "trimmed": (ct.robust.Trimmed("cd", 0.2), "wakes", 90, 110, {"every": 30}),
    "bad mail": ("cd", "wakes", 90, 110, {"every": 30, "conditions": BAD}),
    "learned in bad mail": (LEARNED, "wakes", 90, 110, {"every": 30, "conditions": BAD}),
    "rounds": ("propagation", "rounds", 4, 6, {"every": 2}),
    "some in a round": ("propagation", "rounds", 4, 6, {"every": 2, "conditions": SOME}),
    "private": (PRIVATE, "wakes", 20, 28, {"every": 10}),
    "momentum in wakes": (TRAINS, "wakes", 6, 8, {"every": 2}),
    "momentum in rounds": (TRAINS, "rounds", 6, 8, {"every": 2}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=SLOW if n in ("trimmed", "learned in bad mail", "private") else ()) for n in RUNS]
)
def test_two_halves_are_the_whole(task, problem, smoothed, name, tmp_path):
    method, unit, first, second, how = RUNS[name]
    if method is TRAINS:
        data = task.train.with_labels((task.train.y + 1.0) / 2.0)
        posed = [ct.Problem.differentiable(data, task.graph, ct.models.TwoLayer(3, 2, 2))]
    else:
        posed = [smoothed if method == "propagation" else problem]
    for each in posed:
        whole = in_halves(each, method, {unit: first}, {unit: second}, tmp_path, **how)
    if how.get("conditions") is BAD:
        assert whole.lost > 0 < whole.duplicated
    if name == "some in a round":
        assert 0 < whole.wakes < 120
    if method is PRIVATE:
        assert whole.epsilon == pytest.approx(1.0)


def test_one_way_edges_come_back(tmp_path):
    graph = ct.graphs.directed_ring(4)
    problem = ct.Problem.propagation(np.eye(4), graph, alpha=0.5)
    run = ct.simulate(problem, "local")
    assert ct.load(ct.save(run, tmp_path / "run.npz")).graph == graph


@pytest.mark.parametrize("unit", ["vectors", "bytes"])
def test_what_was_drawn_and_not_used_is_used_later(problem, unit, tmp_path):
    per = 1 if unit == "vectors" else 40
    half = ct.simulate(problem, "cd", **{unit: 301 * per}, seed=5)
    assert len(half.state.arrays["drawn/0"])
    whole = ct.simulate(problem, "cd", **{unit: 700 * per}, seed=5)
    rest = {unit: 700 * per - getattr(half, unit)}  # the wake that reaches so much is the last
    both = ct.simulate(problem, "cd", **rest, start=half)
    np.testing.assert_array_equal(both.theta, whole.theta)
    assert (both.bytes, both.time) == (whole.bytes, whole.time)
    assert_same(ct.simulate(problem, "cd", **rest, start=ct.load(ct.save(half, tmp_path / "half.npz"))), both)


def test_a_private_run_makes_no_more_wakes_than_its_plan_says(problem):
    method = PRIVATE
    half = ct.simulate(problem, method, wakes=20, seed=5)
    with pytest.raises(ParameterError, match="wakes=49: the budget was split over 4 wakes of each of 12 agents"):
        ct.simulate(problem, method, wakes=29, start=half)
    with pytest.raises(ParameterError, match=r"cannot count earlier wakes.*say wakes="):
        ct.simulate(problem, method, start=half)


def test_events_go_on(problem):
    order = np.random.default_rng(0).integers(0, 12, 80)
    whole = ct.simulate(problem, "cd", events=order, every=20)
    half = ct.simulate(problem, "cd", events=order[:40], every=20)
    assert_same(ct.simulate(problem, "cd", events=order[40:], every=20, start=half), whole)


def test_a_changed_problem_goes_on(problem, task):
    fewer = problem.on(graph=task.graph.without([0]))
    changes = [(50, fewer)]
    whole = ct.simulate(problem, "cd", wakes=120, seed=5, changes=changes)
    half = ct.simulate(problem, "cd", wakes=70, seed=5, changes=changes)
    both = ct.simulate(fewer, "cd", wakes=50, start=half)
    np.testing.assert_array_equal(both.theta, whole.theta)
    assert both.bytes == whole.bytes
    # What comes after 20 more wakes is a change at 90 of the whole.
    twice = ct.simulate(problem, "cd", wakes=120, seed=5, changes=[*changes, (90, problem)])
    both = ct.simulate(fewer, "cd", wakes=50, start=half, changes=[(20, problem)])
    np.testing.assert_array_equal(both.theta, twice.theta)
    with pytest.raises(ParameterError, match=r"changes=\.\.\..*start=run.theta"):
        ct.simulate(problem, "cd", wakes=9, start=ct.simulate(problem, "cd", wakes=9), changes=[(3, fewer)])


def test_progress_and_until_count_from_where_it_goes_on(problem):
    half, told = ct.simulate(problem, "cd", wakes=90), []
    run = ct.simulate(problem, "cd", wakes=30, start=half, progress=lambda done, whole: told.append((done, whole)))
    assert told[-1] == (30, 30)
    assert run.wakes == 120
    assert ct.simulate(problem, "cd", wakes=30, start=half, until=lambda theta: True).wakes == 90


def test_a_run_that_cannot_go_on_gives_its_models_and_says_so(problem, smoothed, task):
    spread = ct.simulate(smoothed, ct.ModelPropagation(), wakes=9)
    half = ct.simulate(problem, "cd", wakes=90)
    anew = ct.simulate(problem, "cd", wakes=40, start=half.theta)
    assert not anew.notes
    without = ct.simulate(problem, "cd", wakes=90, keep_state=False)
    assert without.state is None
    other = problem.on(graph=task.graph.without([0]))
    stronger = ct.Problem.personalized(task.train, task.graph, mu=2.0)
    for posed, method, start, how, why in (
        (problem, "cd", without, {"wakes": 40}, "kept no state"),
        (problem, "djam", half, {"wakes": 40}, r"a run of CoordinateDescent\(\)"),
        (smoothed, ct.ModelPropagation(), spread, {"rounds": 4}, "in wakes, and this one is in rounds"),
        (problem, "cd", half, {"wakes": 40, "conditions": BAD}, "in wakes, and this one is under conditions"),
        (problem, "cd", half, {"wakes": 40, "choice": "weight"}, "how neighbours are chosen"),
        (other, "cd", half, {"wakes": 40}, "another problem"),
        (stronger, "cd", half, {"wakes": 40}, "another problem"),
    ):
        run = ct.simulate(posed, method, start=start, **how)
        [note] = run.notes
        assert re.search(f"begins with the models.*{why}", note), note
        assert_same(replace(run, notes=()), ct.simulate(posed, method, start=start.theta, **how))


def test_an_equal_problem_is_the_same_problem_and_another_seed_is_refused(problem, task):
    half = ct.simulate(problem, "cd", wakes=90, seed=4)
    again = ct.Problem.personalized(task.train, task.graph)
    assert again is not problem
    runs = [ct.simulate(posed, "cd", wakes=9, seed=4, start=half) for posed in (again, problem)]
    assert_same(*runs)
    assert runs[0].seed == 4
    with pytest.raises(ParameterError, match=r"seed=7: .* of its own seed, 4.*start=run.theta"):
        ct.simulate(problem, "cd", wakes=9, seed=7, start=half)


def test_a_run_from_a_file_is_what_was_saved(problem, tmp_path):
    run = ct.simulate(problem, "cd", wakes=90, every=30, seed=2, observe={"size": np.linalg.norm})
    path = ct.save(run, tmp_path / "run.npz")
    again = ct.load(path)
    assert_same(again, run)
    assert repr(again) == repr(run)
    assert repr(again.problem) == repr(problem)
    assert again.problem.members == problem.members
    np.testing.assert_array_equal(again.model(3), run.model(3))
    assert path.read_bytes() == ct.save(run, tmp_path / "other.npz").read_bytes()
    with pytest.raises(MismatchError, match="only the name of its method"):
        again.bits()
    assert ct.load(ct.save(again, tmp_path / "again.npz")).bytes == run.bytes


def test_runs_without_state_are_saved_too(problem, tmp_path):
    for run in (ct.simulate(problem, "global"), ct.simulate(problem, "cd", wakes=9, keep_state=False)):
        again = ct.load(ct.save(run, tmp_path / "run.npz"))
        assert_same(replace(again, published=run.theta), replace(run, published=run.theta))
        assert again.state is None


def test_files_that_are_no_runs_are_refused(problem, tmp_path):
    run = ct.simulate(problem, "cd", wakes=9)
    with pytest.raises(ParameterError, match=r"must end with \.npz"):
        ct.save(run, tmp_path / "run")
    path = ct.save(run, tmp_path / "run.npz")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="damaged"):
        ct.load(path)
    np.savez(path, theta=run.theta)
    with pytest.raises(DataError, match="holds no run"):
        ct.load(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run.npz"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["wakes", "rounds", "conditions"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_method_goes_on(task, problem, smoothed, name, how, tmp_path):
    """Adding a method to the public list adds this test."""
    method = PUBLISHED[name]
    if how == "rounds" and not method.synchronous:
        pytest.skip("has no rounds")
    if how == "conditions" and method.sums:
        pytest.skip("needs every message")
    boosted = ct.Problem.boosting(task.train, task.graph, base=ct.Stumps(10), beta=3.0)
    network = ct.Problem.differentiable(task.train, task.graph, "logistic")
    served = ct.Problem.federated(task.train, "logistic")
    body = ct.Problem.federated(
        task.train.with_labels((task.train.y + 1) / 2), ct.models.TwoLayer(3, 2, 2), personal="head"
    )
    for posed in (problem, smoothed, boosted, network, served, body):
        try:
            check_fit(method, posed)
        except MismatchError:
            continue
        unit, more = (
            ("rounds", {}) if how == "rounds" else ("wakes", {"conditions": BAD} if how == "conditions" else {})
        )
        start = {"start": "zeros"} if posed is boosted else {}
        whole = ct.simulate(posed, method, **{unit: 40}, every=20, seed=5, **start, **more)
        half = ct.simulate(posed, method, **{unit: 20}, every=20, seed=5, **start, **more)
        again = ct.load(ct.save(half, tmp_path / "half.npz"))
        assert_same(ct.simulate(posed, method, **{unit: 20}, every=20, start=again, **more), whole)
        if half.population is not None:
            np.testing.assert_array_equal(again.population.mean, half.population.mean)
        return
    pytest.fail(f"no problem here fits {method!r}")
