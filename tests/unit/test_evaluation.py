"""Evaluations of personal models, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie.errors import DataError, MismatchError, ParameterError
from coterie.evaluation import jain, worst_tenth


@pytest.fixture(scope="module")
def rows():
    """Twelve agents with as many rows as their number; agent 0 has none."""
    owner = np.repeat(np.arange(12), np.arange(12))
    rng = np.random.default_rng(5)
    X = rng.normal(size=(len(owner), 3))
    return ct.AgentData(X, np.sign(rng.normal(size=len(owner))), agents=owner, members=range(12))


def by_hand(theta, data, score):
    found = []
    for k in range(data.n):
        mine = data.owner == k
        found.append(score(data.X[mine] @ theta[k], data.y[mine]) if mine.any() else np.nan)
    return np.array(found)


def accuracy(said, y):
    return np.mean(np.where(said >= 0, 1, -1) == y)


def rmse(said, y):
    return np.sqrt(np.mean((said - y) ** 2))


@pytest.mark.parametrize(("name", "score", "sign"), [("accuracy", accuracy, 1.0), ("rmse", rmse, -1.0)])
def test_every_number_is_the_one_worked_out_by_hand(rows, name, score, sign):
    rng = np.random.default_rng(1)
    theta, alone = rng.normal(size=(2, 12, 3))
    found = ct.evaluate(theta, rows, rows, score=name, alone=alone)
    each, before = by_hand(theta, rows, score), by_hand(alone, rows, score)
    np.testing.assert_allclose(found.each, each)
    known = each[1:]  # eleven agents have rows
    worst = np.sort(sign * known)[:2] * sign  # a tenth of eleven, rounded up
    gains = sign * (each - before)[1:]
    expected = {
        name: known.mean(),
        "std": known.std(),
        "worst_tenth": worst.mean(),
        "fairness": known.sum() ** 2 / (11 * (known**2).sum()),
        "gain": gains.mean(),
        "share_gaining": np.mean(gains > 0),
        "largest_loss": max(0.0, -gains.min()),
    }
    assert found.summary == pytest.approx(expected)
    assert list(found.summary) == list(expected)
    frame = found.frame
    assert frame["agent"].tolist() == list(range(12))
    assert frame["rows"].tolist() == list(range(12))
    np.testing.assert_allclose(frame["gain"][1:], gains)
    assert "11 agents" in repr(found)


def test_small_cases_of_the_two_indices():
    assert jain(np.array([1.0, 0.0, 0.0, 0.0])) == 0.25  # one has everything
    assert jain(np.array([3.0, 3.0])) == 1.0
    assert jain(np.zeros(2)) == 1.0
    scores = np.arange(20.0)
    assert worst_tenth(scores, higher=True) == 0.5
    assert worst_tenth(scores, higher=False) == 18.5
    assert worst_tenth(scores[:1], higher=False) == 0.0


def test_gains_are_over_what_agents_learn_alone(rows):
    problem = ct.Problem.personalized(rows, ct.graphs.complete(12))
    run = ct.simulate(problem, "global")
    found = ct.evaluate(run, problem, rows)
    np.testing.assert_array_equal(found.each, ct.evaluate(run.theta, rows, rows).each)
    np.testing.assert_array_equal(found.alone[1:], by_hand(problem.local(), rows, accuracy)[1:])
    assert ct.evaluate(problem.local(), problem, rows).summary["gain"] == 0.0
    assert ct.evaluate(run, problem, rows, alone=False).gains is None


def test_a_score_of_ones_own(rows):
    theta = np.ones((12, 3))

    def hits(said, y):
        return float(np.sum(np.sign(said) == y))

    found = ct.evaluate(theta, rows, rows, score=hits, higher=True)
    assert found.score == "hits"
    np.testing.assert_array_equal(found.each, by_hand(theta, rows, hits))
    worse = ct.evaluate(theta, rows, rows, score=hits, higher=False)
    assert worse.worst_tenth == np.sort(found.each[1:])[-2:].mean()


def test_traces_and_comparisons_tell_the_same(rows):
    problem = ct.Problem.personalized(rows, ct.graphs.complete(12))
    observers = ct.studies.Evaluator(problem, rows).observers()
    assert list(observers) == ["accuracy", "worst_tenth", "gain"]
    result = ct.compare(["local", "global"], problem, wakes=1, test=rows)
    for label in ("local", "global"):
        theta = result.runs[label, 0].theta
        known = ct.evaluate(theta, problem, rows).summary
        for name, observer in observers.items():
            assert observer(theta) == known[name] == result.summary[name][label]
    assert result.optimum["worst_tenth"] == ct.evaluate(problem.solve(), problem, rows).worst_tenth
    assert "worst_tenth" in repr(result)


def test_what_does_not_go_together_is_refused(rows):
    problem = ct.Problem.personalized(rows, ct.graphs.complete(12))
    theta = np.zeros((12, 3))
    with pytest.raises(ParameterError, match=r"shape \(12, 3\).*found \(11, 3\)"):
        ct.evaluate(theta[1:], problem, rows)
    with pytest.raises(DataError, match="features of the problem, and of agents"):
        ct.evaluate(theta, problem, ct.AgentData(rows.X[:, :2], rows.y, agents=rows.owner, members=range(12)))
    with pytest.raises(ParameterError, match="score='f1' must be"):
        ct.evaluate(theta, problem, rows, score="f1")
    with pytest.raises(ParameterError, match="higher=False is only for a function as score"):
        ct.evaluate(theta, problem, rows, higher=False)
    with pytest.raises(ParameterError, match="needs a Problem, or an AgentData; found str"):
        ct.evaluate(theta, "problem", rows)
    with pytest.raises(MismatchError, match="need labels"):
        ct.evaluate(theta, problem, ct.AgentData(rows.X, agents=rows.owner, members=range(12)))


def test_models_that_are_not_linear_are_asked_what_they_predict(rows):
    """Several outputs are classes, by the largest; one is a number. Alone there is nothing to gain against."""
    rng = np.random.default_rng(2)
    for outputs, y, name in ((3, rng.integers(0, 3, rows.n_rows), "accuracy"), (1, rows.y, "rmse")):
        data = ct.AgentData(rows.X, y.astype(float), agents=rows.owner, members=range(12))
        model = ct.models.TwoLayer(3, 4, outputs)
        problem = ct.Problem.differentiable(data, ct.graphs.complete(12), model)
        theta = rng.normal(size=(12, model.size))
        found = ct.evaluate(theta, problem, data, score=None if outputs == 3 else "rmse")
        assert found.score == name
        assert found.alone is None
        for k in range(1, 12):
            said = model.predict(theta[k], data.X[data.owner == k])
            truth = data.y[data.owner == k]
            expected = np.mean(said.argmax(axis=1) == truth) if outputs == 3 else rmse(said, truth)
            assert found.each[k] == pytest.approx(expected)
        assert ct.evaluate(theta, problem, data, alone=theta).summary["gain"] == 0.0


@pytest.mark.torch
@pytest.mark.parametrize(("loss", "low"), [("BCEWithLogitsLoss", 0.0), ("SoftMarginLoss", -1.0)])
def test_logits_of_one_output_are_classes(loss, low):
    """A perfect classifier, its opposite, and one that is right for half of the rows."""
    nn = pytest.importorskip("torch").nn
    data = ct.AgentData([[-2.0], [-0.5], [0.0], [3.0]] * 3, [low, low, 1.0, 1.0] * 3, agents=np.repeat(range(3), 4))
    problem = ct.Problem.differentiable(data, ct.graphs.ring(3), ct.models.Torch(nn.Linear(1, 1), getattr(nn, loss)()))
    theta = [[1.0, 0.0], [-1.0, -1e-9], [0.0, 5.0]]  # weight, bias
    for score in (None, "accuracy"):
        found = ct.evaluate(theta, problem, data, score=score)
        assert (found.score, found.higher) == ("accuracy", True)
        # the opposite is wrong everywhere: at 0, its bias decides
        np.testing.assert_array_equal(found.each, [1.0, 0.0, 0.5])
    shares = data.with_labels(0.3 * np.abs(data.y))
    assert ct.evaluate(theta, problem, shares).score == "rmse"  # these are no classes


def column(theta, X):
    return X @ theta[:, None]


def test_one_output_for_labels_0_and_1_is_a_number_unless_it_is_known_to_be_a_logit():
    data = ct.AgentData([[0.0], [1.0]] * 2, [0.0, 1.0] * 2, agents=[0, 0, 1, 1])
    model = ct.models.Function(
        1,
        lambda theta, X, y: np.mean((X @ theta - y) ** 2) / 2,
        lambda theta, X, y: X.T @ (X @ theta - y) / len(y),
        predict=column,
    )
    problem, theta = ct.Problem.differentiable(data, ct.graphs.complete(2), model), [[1.0], [0.0]]
    found = ct.evaluate(theta, problem, data)
    assert found.score == "rmse"
    np.testing.assert_allclose(found.each, [0.0, np.sqrt(0.5)])  # of (m, 1), which is (m,)
    for what in (problem, data):
        with pytest.raises(MismatchError, match=r"score\(predicted, labels\)"):
            ct.evaluate(theta, what, data, score="accuracy")
    own = ct.evaluate(theta, problem, data, score=lambda said, y: np.mean((said > 0.5) == y))
    np.testing.assert_array_equal(own.each, [1.0, 0.5])


def test_a_run_knows_its_problem_and_a_server_needs_no_test_rows():
    rng = np.random.default_rng(0)
    data = ct.AgentData(rng.normal(size=(12, 2)), rng.choice([-1.0, 1.0], 12), agents=np.arange(12) % 3)
    problem = ct.Problem.federated(data, "logistic")
    run = ct.simulate(problem, ct.federated.FedAvg(), rounds=2)
    found = ct.evaluate(run, data, alone=False)
    whole = ct.evaluate(run.theta[1:], data, data)
    assert np.array_equal(found.each[1:], whole.each)
    assert np.isnan(found.each[0])
    assert found.mean == whole.mean
    alone = ct.evaluate(run, data, alone=run.theta[1:] * 0.0 + [1.0, -1.0])  # of the clients: the server has no rows
    full = ct.evaluate(run, data, alone=np.vstack([[7.0, 7.0], run.theta[1:] * 0.0 + [1.0, -1.0]]))
    assert alone.summary == full.summary
    assert alone.summary["gain"] != 0.0
    with pytest.raises(ct.errors.ParameterError, match=r"shape \(4, 2\).*found \(2, 2\)"):
        ct.evaluate(run, data, alone=run.theta[2:])
    with pytest.raises(ct.errors.ParameterError, match=r"shape \(3, 2\).*found \(2, 2\)"):
        ct.evaluate(run.theta[2:], ct.Problem.differentiable(data, ct.graphs.ring(3), "logistic"), data)
    with pytest.raises(ct.errors.ParameterError, match=r"evaluate\(run, test\)"):
        ct.evaluate(run.theta, data)
    with pytest.raises(ct.errors.DataError, match="agents that it has"):
        ct.evaluate(run, ct.AgentData(np.eye(2), [1.0, -1.0], agents=["x", "y"]))
