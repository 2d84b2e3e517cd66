"""Local training: optimisers against PyTorch and a closed form, minibatches, roles of parameters, gradients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose

import coterie as ct
from coterie.core.arrays import PERSONAL, SHARED, TIED, data_of, pick_rows, row
from coterie.core.training import ALL, COMMON, DRAWN, OWN, PART, PULL, STEPS, new_job, train
from coterie.engines.arrays import arrays_of
from coterie.problem.modelled import roles_of


def blobs(n=4, rows=12, p=5, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n * rows)
    return ct.AgentData(rng.normal(size=(n * rows, p)) + y[:, None], y, agents=np.repeat(np.arange(n), rows))


def network(model=None, **roles):
    return ct.Problem.differentiable(
        blobs(), ct.graphs.ring(4), model or ct.models.TwoLayer(5, 4, 3), ridge=0.02, **roles
    )


class Regression(NamedTuple):
    """What an agent sees: least squares by hand."""

    problem: ct.Problem
    X: np.ndarray
    y: np.ndarray


def regression(seed=0):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(8, 3)), rng.normal(size=8)
    data = ct.AgentData(X, y, agents=np.zeros(8, int))
    return Regression(ct.Problem.differentiable(data, ct.graphs.empty(1), "squared"), X, y)


def trained(problem, local, change=lambda job: None, dice=None, theta=None):
    arrays = arrays_of(problem, batch=local.batch)
    theta = np.zeros((problem.n, problem.p)) if theta is None else theta
    job = new_job(local, theta, center=True, correction=True)
    change(job)
    train(local, data_of(arrays, 0), row(job, 0), np.zeros(local.steps) if dice is None else dice, np.zeros(problem.p))
    return job.theta[0]


def test_steps_of_gradient_descent_are_those_of_numpy():
    problem, X, y = regression()
    theta = np.zeros(3)
    for _ in range(7):
        theta = theta - 0.2 * X.T @ (X @ theta - y) / 8
    assert_allclose(trained(problem, ct.optim.SGD(0.2, steps=7)), theta, rtol=0, atol=1e-14)


@pytest.mark.torch
@pytest.mark.parametrize("local", [ct.optim.SGD(0.1, steps=9, momentum=0.8), ct.optim.Adam(0.05, steps=9)])
def test_optimisers_are_those_of_pytorch(local):
    torch = pytest.importorskip("torch")
    problem, X, y = regression()
    theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    if isinstance(local, ct.optim.Adam):
        optimiser = torch.optim.Adam([theta], lr=0.05)
    else:
        optimiser = torch.optim.SGD([theta], lr=0.1, momentum=0.8)
    for _ in range(9):
        optimiser.zero_grad()
        (0.5 * (torch.tensor(X) @ theta - torch.tensor(y)).square().mean()).backward()
        optimiser.step()
    assert_allclose(trained(problem, local), theta.detach().numpy(), rtol=0, atol=1e-12)


def test_a_pull_is_a_proximal_step_and_stable_however_strong():
    problem, X, y = regression()
    center = np.array([1.0, -2.0, 3.0])

    def drawn(pull):
        def change(job):
            job.plan[:, PULL], job.center[:] = pull, center

        return trained(problem, ct.optim.SGD(0.2, steps=400), change)

    pull = 0.7
    exact = np.linalg.solve(X.T @ X / 8 + pull * np.eye(3), X.T @ y / 8 + pull * center)
    assert_allclose(drawn(pull), exact, rtol=0, atol=1e-9)
    assert_allclose(drawn(1e9), center, rtol=0, atol=1e-7)


def test_a_correction_is_added_to_every_gradient():
    problem, X, y = regression()
    shift = np.array([0.3, 0.0, -0.1])

    def change(job):
        job.correction[:] = shift

    exact = np.linalg.solve(X.T @ X / 8, X.T @ y / 8 - shift)
    assert_allclose(trained(problem, ct.optim.SGD(0.3, steps=3000), change), exact, rtol=0, atol=1e-9)


@pytest.mark.parametrize("local", [ct.optim.SGD(0.1, steps=3, momentum=0.5), ct.optim.Adam(0.1, steps=3)])
def test_a_job_trains_the_parameters_that_it_says(local):
    problem = network(personal="head")
    start = np.tile(problem.model.initial(), (4, 1))
    own = problem.roles == PERSONAL
    for part, moved in ((OWN, own), (COMMON, ~own), (ALL, own | True)):

        def change(job, part=part):
            job.plan[:, PART] = part

        assert np.array_equal(trained(problem, local, change, theta=start) != start[0], moved)


def test_only_parameters_of_the_role_are_drawn():
    problem = network(shared="body", tied="head")
    roles, start = problem.roles, np.tile(problem.model.initial(), (4, 1))
    for least in (SHARED, TIED):

        def change(job, least=least):
            job.plan[:, PULL], job.plan[:, DRAWN], job.center[:] = 1e12, least, 7.0

        found = trained(problem, ct.optim.SGD(1e-3), change, theta=start)
        assert np.array_equal(np.abs(found - 7.0) < 1e-6, roles >= least)


def test_a_job_without_steps_says_the_loss():
    problem = network()
    arrays, theta = arrays_of(problem), np.tile(problem.model.initial(), (4, 1))
    job = new_job(ct.optim.SGD(), theta)
    job.plan[:, STEPS] = 0
    train(ct.optim.SGD(), data_of(arrays, 2), row(job, 2), np.zeros(0), np.zeros(problem.p))
    assert job.plan[2, -1] == pytest.approx(problem.losses(theta)[2], rel=1e-14)
    assert np.array_equal(job.theta, theta)


@pytest.mark.parametrize(("m", "count"), [(1, 4), (5, 5), (7, 3), (10, 32)])
def test_each_row_is_picked_as_likely_as_any(m, count):
    """Of 20,000 dice spread evenly, each place takes each row as often as chance: beyond 5 sd, one test in 10,000."""
    grid = (np.arange(20_000) + 0.5) / 20_000
    picks = np.zeros((grid.size, count), np.int64)
    for k, die in enumerate(grid):
        pick_rows(die, m, picks[k])
    for place in range(count):
        often = np.bincount(picks[:, place], minlength=m)
        assert often.shape == (m,)
        assert np.all(np.abs(often - 20_000 / m) <= 5.0 * np.sqrt(20_000 / m))


def test_a_minibatch_varies_as_much_as_rows_that_are_drawn_one_by_one():
    """Rows sorted by class: the number of a class among ten rows is binomial. Its variance, of 20,000, to 5 %."""
    picks = np.zeros((20_000, 10), np.int64)
    for k, die in enumerate(np.random.default_rng(0).random(20_000)):
        pick_rows(die, 100, picks[k])
    for first, last in ((0, 25), (25, 75), (90, 100)):
        part = (last - first) / 100
        count = ((picks >= first) & (picks < last)).sum(axis=1)
        assert count.var() == pytest.approx(10 * part * (1 - part), rel=0.05)  # the sd of the estimate is 1 %


def test_the_first_die_and_the_last_pick_rows_that_exist():
    rows = np.zeros(1000, np.int64)
    for die in (0.0, np.nextafter(1.0, 0.0)):
        pick_rows(die, 3, rows)
        assert set(rows.tolist()) == {0, 1, 2}


@pytest.mark.slow
def test_minibatches_have_the_gradient_of_all_rows_in_the_mean():
    problem = regression().problem
    step = 1e-3
    grid = (np.arange(8000) + 0.5) / 8000
    mean = np.mean([trained(problem, ct.optim.SGD(step, batch=3), dice=np.array([die])) for die in grid], axis=0)
    assert_allclose(mean / step, trained(problem, ct.optim.SGD(step)) / step, rtol=0, atol=0.05)  # 5 sd


@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_a_network_has_the_gradient_of_its_losses(outputs):
    rng = np.random.default_rng(outputs)
    y = rng.normal(size=20) if outputs == 1 else rng.integers(0, outputs, 20)
    data = ct.AgentData(rng.normal(size=(20, 3)), y, agents=np.arange(20) % 2)
    model = ct.models.TwoLayer(3, 4, outputs)
    problem = ct.Problem.differentiable(data, ct.graphs.ring(2), model, shared="body", tied="head", ridge=0.1)
    theta = rng.normal(size=(2, model.size))
    found, step = problem.gradient(theta), 1e-6
    for k in range(model.size):
        for i in range(2):
            up, down = theta.copy(), theta.copy()
            up[i, k] += step
            down[i, k] -= step
            assert found[i, k] == pytest.approx((problem.value(up) - problem.value(down)) / (2 * step), abs=2e-7)


def test_roles_go_by_the_beginnings_of_names():
    model = ct.models.TwoLayer(2, 1, 1)  # body: 0 to 2, head: 3 and 4

    def roles(personal=(), shared=(), tied=()):
        return roles_of(model, model.size, personal, shared, tied).tolist()

    assert roles() == [TIED] * 5
    assert roles(personal="head") == [TIED] * 3 + [PERSONAL] * 2
    assert roles(shared="body") == [SHARED] * 3 + [PERSONAL] * 2
    assert roles(tied=["head.bias"]) == [PERSONAL] * 4 + [TIED]
    assert roles(personal="head.bias", tied="head.weight") == [SHARED] * 3 + [TIED, PERSONAL]
    with pytest.raises(ct.errors.ParameterError, match=r"no parameter begins with 'tail': they are body\.weight"):
        roles(tied="tail")
    with pytest.raises(ct.errors.ParameterError, match=r"'head\.bias' is named twice, by 'head' and 'head\.bias'"):
        roles(personal="head", tied="head.bias")
    with pytest.raises(ct.errors.ParameterError, match="must be the beginning of a parameter's name"):
        roles(personal=3)


def test_a_linear_model_with_all_parameters_tied_is_the_problem_it_was():
    data = ct.AgentData(np.eye(3), [1.0, 2.0, 4.0], agents=["a", "b", "c"])
    graph = ct.graphs.ring(3)
    new = ct.Problem.differentiable(data, graph, "squared", coupling=1.0, ridge=0.1, confidence=None)
    old = ct.Problem.separate(data, graph, "squared", ridge=0.1)
    theta = np.arange(9.0).reshape(3, 3)
    assert new.value(theta) == old.value(theta)
    assert np.array_equal(new.gradient(theta), old.gradient(theta))
    assert np.array_equal(new.solve(), old.solve())


def test_exact_questions_are_refused_where_nobody_knows():
    personal = ct.Problem.differentiable(blobs(), ct.graphs.ring(4), "squared", personal="theta")
    for problem, why in ((network(), "the optimum of TwoLayer"), (personal, "all tied")):
        theta = np.zeros((4, problem.p))
        for ask in (problem.solve, lambda p=problem, t=theta: p.gap(t), lambda p=problem, t=theta: p.suboptimality(t)):
            with pytest.raises(ct.errors.MismatchError, match=why):
                ask()
        with pytest.raises(ct.errors.MismatchError, match=why):
            _ = problem.determined


def test_a_trace_tells_how_far_agents_are_from_sharing():
    problem = network(shared="body")
    run = ct.simulate(problem, ct.gossip.DPSGD(ct.optim.SGD(0.1)), rounds=3, every=1)
    body = run.theta[:, problem.roles == SHARED]
    assert run.trace.disagreement.iloc[0] == 0.0
    assert run.trace.disagreement.iloc[-1] == pytest.approx(body.var(axis=0).sum(), rel=1e-12)
    assert "disagreement" not in ct.simulate(network(), ct.gossip.DPSGD(), rounds=1).trace


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: ct.optim.SGD(0.0), "rate = 0.0: expected a positive finite number"),
        (lambda: ct.optim.SGD(0.1, steps=0), "steps = 0: expected an integer >= 1"),
        (lambda: ct.optim.SGD(0.1, batch=2.5), "batch = 2.5: expected an integer >= 0"),
        (lambda: ct.optim.SGD(0.1, momentum=1.0), r"momentum = 1.0: expected a number in \[0, 1\)"),
        (lambda: ct.optim.Adam(float("nan")), "rate = nan: expected a positive finite number"),
        (lambda: ct.models.TwoLayer(4, 3.0, 2), "hidden = 3.0: expected an integer >= 1"),
        (lambda: ct.models.TwoLayer(0, 3, 2), "inputs = 0: expected an integer >= 1"),
        (lambda: ct.models.TwoLayer(4, True, 2), "hidden = True: expected an integer >= 1"),
        (lambda: network(model=object()), "is not a model: it has no size"),
        (lambda: network(model=ct.models.TwoLayer(9, 2, 3)), "takes 9 features, and the data has 5"),
        (lambda: network(model=ct.models.TwoLayer(5, 2, 2)), "label 2"),
    ],
)
def test_what_makes_no_sense_is_refused(make, what):
    with pytest.raises((ct.errors.ParameterError, ct.errors.DataError), match=what):
        make()


def half(theta, X, y):
    return 0.5 * np.mean((X @ theta - y) ** 2)


def slope(theta, X, y):
    return X.T @ (X @ theta - y) / len(y)


def test_a_run_does_not_go_on_with_another_model():
    rng = np.random.default_rng(0)
    data = ct.AgentData(rng.normal(size=(12, 3)), rng.normal(size=12), agents=np.arange(12) % 3)

    def problem(value):
        return ct.Problem.differentiable(data, ct.graphs.ring(3), ct.models.Function(3, value, slope))

    run = ct.simulate(problem(half), ct.gossip.DPSGD(), rounds=2)
    more = ct.simulate(problem(half), ct.gossip.DPSGD(), rounds=2, start=run)
    other = ct.simulate(problem(lambda theta, X, y: 2.0 * half(theta, X, y)), ct.gossip.DPSGD(), rounds=2, start=run)
    assert more.wakes == 12
    assert not more.notes
    assert other.wakes == 6
    assert other.notes
