"""The experiments of DMTRL, small; and what they are computed with, against formulas written down once more.

Seeds are fixed, so nothing here is left to chance but CPU times, of which only the order is tested.
"""

import numpy as np
import pytest

import coterie as ct
from coterie.datasets import RealTask
from coterie.multitask.worker import Request, Worker
from papers.dmtrl import common, rounds


def by_name(outcome, part):
    """The claims whose description has these words."""
    return [claim for claim in outcome.claims if part in claim.what]


@pytest.mark.slow
@pytest.mark.compiled
def test_relations_are_learned(quick):
    outcome = quick("dmtrl-figure-2")
    [likeness], [signs] = by_name(outcome, "likeness"), by_name(outcome, "right sign")
    assert likeness.ours > 0.9
    assert signs.ours > 0.97


@pytest.mark.slow
@pytest.mark.compiled
def test_more_relations_make_it_slower(quick):
    outcome = quick("dmtrl-figure-3")
    one, two = by_name(outcome, "ρ of")
    assert 5.5 < one.ours < 8.5 < 12.5 < two.ours < 13.6
    [slower] = by_name(outcome, "log10")
    assert slower.ours > 0.05


@pytest.mark.slow
@pytest.mark.compiled
def test_every_curve_of_synthetic_1_goes_down(quick):
    outcome = quick("dmtrl-figure-4")
    assert {row["part"] for row in outcome.rows} == {"gap", "error"}
    for row in outcome.rows:
        for curve in row["curves"]:
            assert curve["rounds"][0] == 0
            assert np.all(np.diff(curve["rounds"]) > 0)
            if row["part"] == "gap":
                assert np.all(np.diff(curve["seconds"]) > 0)
                # Without steps, the weights are zero: the gap is the loss of all sixteen tasks.
                assert curve["gap"][0] == pytest.approx(16.0)
                assert curve["gap"][-1] < 0.7 * curve["gap"][0]
    # STL, and all rows in one place, from the same rows: to know the relations helps.
    for row in outcome.rows:
        if row["part"] == "error":
            assert row["lines"]["Centralized MTRL"] < row["lines"]["STL"]


@pytest.mark.slow  # real data, which are not there in most places
@pytest.mark.parametrize("name", ["dmtrl-figure-5", "dmtrl-figure-6"])
def test_real_data_converge(quick, name):
    outcome = quick(name)
    gaps = [curve["gap"] for row in outcome.rows if row["part"] == "gap" for curve in row["curves"]]
    assert len(gaps) == 8
    assert all(gap[-1] < gap[0] for gap in gaps)
    # Four times the local steps never need more rounds, by more than chance.
    assert all(claim.ours > -0.1 for claim in by_name(outcome, "log10 of the rounds"))


@pytest.mark.slow  # real data, which are not there in most places
def test_all_methods_beat_the_mean_on_school(quick):
    outcome = quick("dmtrl-table-2")
    assert all(10 < claim.ours < 45 for claim in by_name(outcome, "explained variance"))
    [same] = by_name(outcome, "less that of Centralized")
    assert abs(same.ours) < 0.05
    assert next(iter(outcome.tables.values()))["method"].tolist() == ["DMTRL", "Centralized MTRL", "STL"]


@pytest.mark.slow  # real data, which are not there in most places
def test_reviews_and_digits_are_told_apart(quick):
    outcome = quick("dmtrl-table-3")
    assert all(5 < claim.ours < 30 for claim in by_name(outcome, "error rate of") if "less" not in claim.what)


@pytest.mark.compiled
def test_a_curve_has_the_gap_and_the_error_of_its_weights():
    task = common.tasks_of("Synthetic 1", 60, 0)
    covariance = task.auxiliary["correlation"] / 16
    found = rounds._curve(task, 1e-2, 500, 400, covariance=covariance)
    optimum = ct.relationship(task.train, "hinge", 1e-2, covariance=covariance, tol=1e-5)
    assert found["gap"][-1] < 0.02 * optimum.value
    wrong = [
        np.mean(np.where(task.test.X[own] @ optimum.weights[i] >= 0, 1, -1) != task.test.y[own])
        for i in range(16)
        for own in [task.test.owner == i]
    ]
    assert found["error"][-1] == pytest.approx(np.mean(wrong), abs=0.01)
    # One machine comes to the same.
    alone = rounds._curve(task, 1e-2, 500, 100, alone=True, covariance=covariance)
    assert alone["who"] == "SSDCA"
    assert alone["gap"][-1] < 0.02 * optimum.value


def test_the_clock_keeps_the_slowest_worker(monkeypatch):
    data = ct.AgentData(np.ones((3, 1)), [1.0, -1.0, 1.0], agents=[0, 1, 2])
    now = [0.0]
    monkeypatch.setattr(rounds.time, "thread_time", lambda: now[0])

    class Slow(Worker):
        def improve(self, request):
            now[0] += 2.0 * (1 + int(self.data.members[0]))
            return super().improve(request)

    shards = [np.array([i]) for i in range(3)]
    workers = [Slow(data.only(own), ct.Squared(), own, passes=1.0, local_steps=None, seed=0) for own in shards]
    timed = rounds.Clocked(workers, shards)
    for _ in range(2):  # every round begins at zero
        timed.start()
        for shard in range(3):
            timed.send(shard, Request(0, np.zeros((1, 1)), np.ones(1), 1.0, 0.0))
        for _ in range(3):
            timed.receive()
        assert (timed.slowest, timed.together) == (6.0, 12.0)


def test_explained_variance_is_around_the_means_of_the_tasks():
    rows = ct.AgentData([[0.0], [1.0], [0.0], [2.0]], [0.0, 1.0, 0.0, 2.0], [0, 0, 1, 1])
    task = RealTask("four rows", rows, rows, "regression")
    assert common.explained_variance(task, np.array([[1.0], [1.0]])) == 1.0
    assert common.explained_variance(task, np.zeros((2, 1))) == pytest.approx(1.0 - 5.0 / 2.5)


def test_rounds_to_a_gap_are_read_off_a_curve():
    at = np.arange(50)
    curve = {"rounds": at.tolist(), "gap": (3.0 * 0.9**at).tolist()}
    assert rounds.rounds_to(curve, 3.0 * 0.9**12.5) == pytest.approx(12.5)
    assert rounds.rounds_to(curve, 1e-9) == np.inf
    twice = {"rounds": (2 * at).tolist(), "gap": curve["gap"]}
    assert rounds.sooner(twice, curve, "rounds") == pytest.approx(np.log10(2.0))


def test_rows_have_norm_about_one():
    task = common.tasks_of("Synthetic 2", 50, 0)
    assert np.mean(np.sum(task.train.X**2, axis=1)) == pytest.approx(1.0, abs=0.05)
    assert np.array_equal(task.train.X, common.tasks_of("Synthetic 1", 50, 0).train.X)
