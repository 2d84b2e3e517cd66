"""Comparisons: everything in the table is recomputed here in another way."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.core.losses import LOSSES
from coterie.core.methods import METHODS
from coterie.errors import DataError, MismatchError, ParameterError


@pytest.fixture(scope="module")
def task():
    return ct.datasets.linear_classification(n=12, p=3, seed=3, rows=(3, 9), test_rows=11)


@pytest.fixture(scope="module")
def problem(task):
    return ct.Problem.personalized(task.train, task.graph)


@pytest.fixture(scope="module")
def result(problem, task):
    return ct.compare(**settings(problem, task), n_jobs=1)


def settings(problem, task):
    entrants = {"alone": "local", "one": ct.baselines.GlobalModel(), "cd": "cd", "jacobi": ct.DJAM()}
    given = {"vectors": 1500, "points": 5, "seeds": (0, 7), "test": task.test, "observe": {"size": np.linalg.norm}}
    return {"methods": entrants, "problem": problem} | given


@pytest.mark.plain
def test_runs_are_those_of_simulate(result, problem, task):
    run = ct.simulate(problem, ct.DJAM(), vectors=1500, seed=7)
    assert np.array_equal(result.runs["jacobi", 7].theta, run.theta)
    last = result.table.query("method == 'jacobi' and seed == 7").iloc[-1]
    assert last["vectors"] == run.vectors
    assert last["bytes"] == run.bytes
    assert last["accuracy"] == pytest.approx(task.accuracy(run.theta).mean())
    assert last["size"] == pytest.approx(np.linalg.norm(run.theta))


def test_everybody_gets_the_same_budget(result):
    ends = result.table.groupby(["method", "seed"]).last()
    runners = ends.loc[["cd", "jacobi"], "vectors"]
    assert runners.min() >= 1500
    assert runners.max() < 1500 + 12  # less than one broadcast more
    assert (ends.loc[["alone", "one"], "vectors"] == 0).all()


@pytest.mark.slow
def test_the_optimum_is_exact_and_below_all(result, problem, task):
    best = problem.solve()
    assert result.optimum["value"] == problem.value(best)
    assert result.optimum["accuracy"] == pytest.approx(task.accuracy(best).mean())
    assert (result.table["gap"] >= -1e-12).all()
    gap = (result.table["value"] - problem.value(best)) / problem.value(best)
    np.testing.assert_allclose(result.table["gap"], gap)


def test_one_row_for_each_method_and_seed_and_point(result):
    assert not result.table.duplicated(["method", "seed", "point"]).any()
    counts = result.table.groupby(["method", "seed"]).size()
    assert counts["alone", 0] == counts["one", 0] == 1  # a baseline has no seed and no course
    assert (counts.loc[["cd", "jacobi"]] >= 5).all()
    assert result.summary.index.tolist() == ["alone", "one", "cd", "jacobi"]
    assert "jacobi" in repr(result)


@pytest.mark.plain
def test_an_entrant_with_a_problem_of_its_own_is_judged_by_the_common_one(problem, task):
    smoothed = ct.Problem.propagation(problem.local(), task.graph, alpha=0.6)
    result = ct.compare({"smoothed": ("propagation", smoothed)}, problem, wakes=3000)
    theta = result.runs["smoothed", 0].theta
    np.testing.assert_allclose(theta, smoothed.solve(), atol=1e-8)
    assert result.table["value"].iloc[-1] == pytest.approx(problem.value(theta))


@pytest.mark.plain
def test_methods_with_a_server_are_judged_by_the_models_of_its_clients(problem, task):
    served = ct.Problem.federated(task.train, "logistic")
    local = ct.optim.SGD(0.5, steps=5)
    pairs = {
        "FedAvg": (ct.federated.FedAvg(local), served),
        "Ditto": (ct.federated.Ditto(local, pull=0.1), served),
        "cd": "cd",
    }
    result = ct.compare(pairs, problem, vectors=1000, points=5, test=task.test)
    for label, (method, _) in list(pairs.items())[:2]:
        run = ct.simulate(served, method, vectors=1000, seed=0)
        assert np.array_equal(result.runs[label, 0].theta, run.theta)
        end = result.summary.loc[label]
        assert end["accuracy"] == ct.evaluate(run.theta[1:], problem, task.test).mean
        assert end["value"] == problem.value(run.theta[1:])
        assert end["vectors"] >= 1000
    others = ct.Problem.federated(ct.AgentData(np.eye(3), [1.0, -1.0, 1.0], agents=["x", "y", "z"]), "logistic")
    with pytest.raises(ct.errors.MismatchError, match=r"except for the server that Problem\.federated adds"):
        ct.compare({"FedAvg": (ct.federated.FedAvg(local), others)}, problem, vectors=100)


def test_figures_show_every_method_and_the_optimum(result):
    for gap in (False, True):
        value, accuracy = result.figure(gap=gap).axes
        labels = [text.get_text() for text in value.get_legend().get_texts()]
        assert labels == ["alone", "one", "cd", "jacobi"] + ([] if gap else ["exact optimum"])
        drawn = {line.get_label(): line for line in accuracy.get_lines()}
        mean = result.table.query("method == 'cd'").groupby("point")["accuracy"].mean()
        np.testing.assert_allclose(drawn["cd"].get_ydata(), mean)
        assert set(drawn["exact optimum"].get_ydata()) == {result.optimum["accuracy"]}


def test_progress_ends_at_the_whole(problem):
    told = []
    ct.compare(["cd", "djam"], problem, wakes=100, seeds=(0, 1), progress=lambda now, whole: told.append((now, whole)))
    assert told[-1] == (400, 400)
    assert [now for now, _ in told] == sorted(now for now, _ in told)


@pytest.mark.compiled
@pytest.mark.parametrize("n_jobs", [2, 3, 7, None])
def test_runs_side_by_side_are_the_same(result, problem, task, n_jobs):
    """Also where several threads come upon kernels that are not compiled yet."""
    again = ct.compare(**settings(problem, task), n_jobs=n_jobs)
    pd.testing.assert_frame_equal(again.table, result.table, check_exact=True)
    assert list(again.runs) == list(result.runs)
    for key, run in again.runs.items():
        np.testing.assert_array_equal(run.theta, result.runs[key].theta)
    assert repr(again) == repr(result)


@pytest.mark.compiled
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_an_interruption_ends_all_runs(problem, n_jobs):
    told = []

    def interrupted(now, whole):
        told.append(now)
        if len(told) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ct.compare(["cd", "djam"], problem, wakes=10**9, points=10**6, progress=interrupted, n_jobs=n_jobs)


def test_an_error_of_one_run_is_that_of_the_comparison(problem):
    def odd(theta):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ct.compare(["cd", "djam"], problem, wakes=100, observe={"odd": odd}, n_jobs=2)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"n_jobs": 0}, ParameterError, "n_jobs=0"),
        ({"methods": "cd"}, ParameterError, "must be a list"),
        ({"methods": []}, ParameterError, "no method"),
        ({"methods": ["cd", "cd"]}, ParameterError, "two methods are called 'cd'"),
        ({"methods": ["sgd"]}, ParameterError, "unknown method 'sgd'"),
        ({"methods": ["propagation"]}, MismatchError, "locally trained models"),
        ({"vectors": None}, ParameterError, "give exactly one of wakes"),
        ({"bytes": 10}, ParameterError, "give exactly one of wakes"),
        ({"vectors": 0}, ParameterError, "vectors = 0"),
        ({"points": 0}, ParameterError, "points = 0"),
        ({"observe": {"gap": np.max}}, ParameterError, "'gap'"),
        ({"observe": {"bytes": np.max}}, ParameterError, "'bytes'"),
        ({"test": ct.AgentData([[1.0, 2.0]], [1.0])}, DataError, "test must be"),
        ({"problem": "p"}, ParameterError, "needs a Problem"),
    ],
)
def test_bad_comparisons_are_refused_before_any_run(problem, change, error, message):
    with pytest.raises(error, match=message):
        ct.compare(**{"methods": ["cd"], "problem": problem, "vectors": 100} | change)


def test_what_fits_is_what_runs():
    """Every "yes" starts, every "no" is refused with the name of the loss; "with a ridge" is refused without one."""
    table = ct.comparison.fitting()
    assert isinstance(table, pd.DataFrame)
    assert set(table.stack().unique()) == {"yes", "no", "with a ridge"}
    for (objective, name), row in table.iterrows():
        loss = LOSSES[name]
        data = ct.AgentData([[0.5], [2.0]], None if "location" in name else [1.0, -1.0], agents=["a", "b"])
        graph = ct.graphs.complete(2)
        for method, word in row.items():
            if objective == "propagation":
                problem = ct.Problem.propagation([[0.5], [2.0]], graph)
            else:
                problem = getattr(ct.Problem, objective)(data, graph, loss=loss, ridge=0.0)
            rule = METHODS[method]
            if word == "yes":
                rule.fit_for(problem)
            else:
                with pytest.raises(MismatchError, match=type(loss).__name__):
                    rule.fit_for(problem)
            if word == "with a ridge":
                rule.fit_for(getattr(ct.Problem, objective)(data, graph, loss=loss, ridge=0.1))


@pytest.mark.compiled
def test_boosting_is_compared_on_what_its_base_predictors_say_of_test_rows():
    task = ct.datasets.clustered_moons(n=20, p=2, seed=0)
    problem = ct.Problem.boosting(task.train, task.graph, base=ct.Stumps(40), beta=3.0)
    result = ct.compare(["local", "boosting"], problem, wakes=2000, test=task.test, start="zeros", points=4)
    rows = result.table[result.table["method"] == "boosting"]
    votes = problem.base.transform(task.test.X)
    theta = result.runs["boosting", 0].theta
    right = np.where(np.einsum("rk,rk->r", votes, theta[task.test.owner]) >= 0, 1.0, -1.0) == task.test.y
    assert rows["accuracy"].iloc[-1] == pytest.approx(right.mean())
    level = abs(result.optimum["value"])
    assert np.all(rows["gap"] * level <= rows["certificate"] + 1e-9)
    assert rows["gap"].iloc[-1] * level >= -1e-6 * level
