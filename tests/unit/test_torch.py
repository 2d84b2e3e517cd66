"""Modules of PyTorch as models: against the same network compiled, finite differences and torch; refusals."""

from __future__ import annotations

import copy
import functools
import logging
import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import coterie as ct
from coterie.engines.arrays import arrays_of
from coterie.errors import DataError, MismatchError, ParameterError

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.torch

SIZES = [7, 1, 12, 0, 5, 30]
N, P, HIDDEN, CLASSES = len(SIZES), 5, 4, 3


def examples(seed=0, sizes=SIZES):
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    X, y = rng.normal(size=(owner.size, P)), rng.integers(0, CLASSES, owner.size)
    return ct.AgentData(X, y, agents=owner, members=range(len(sizes)))


def network(*between, outputs=CLASSES, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(P, HIDDEN), nn.Tanh(), *between, nn.Linear(HIDDEN, outputs)).double()


@pytest.fixture(scope="module")
def graph():
    return ct.Graph.from_edges(N, np.arange(N), (np.arange(N) + 1) % N, np.full(N, 0.3))


@pytest.fixture(scope="module")
def pair(graph):
    """The same problem with PyTorch and compiled."""
    model, two = ct.models.Torch(network(), F.cross_entropy), ct.models.TwoLayer(P, HIDDEN, CLASSES)
    return [
        ct.Problem.differentiable(examples(), graph, m, ridge=0.01, shared="0.")
        if m is model
        else ct.Problem.differentiable(examples(), graph, m, ridge=0.01, shared="body")
        for m in (model, two)
    ]


@pytest.fixture(scope="module")
def theta():
    return np.random.default_rng(1).normal(size=(N, ct.models.TwoLayer(P, HIDDEN, CLASSES).size))


def test_value_and_gradient_are_those_of_the_compiled_network(pair, theta):
    ours, compiled = pair
    assert_allclose(ours.losses(theta), compiled.losses(theta), rtol=1e-12, atol=1e-13)
    assert ours.value(theta) == pytest.approx(compiled.value(theta), rel=1e-12)
    assert_allclose(ours.gradient(theta), compiled.gradient(theta), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_many_agents_at_once_are_one_after_the_other(graph, theta, dtype):
    model = ct.models.Torch(network(), F.cross_entropy, dtype=dtype, chunk=2)
    arrays = arrays_of(ct.Problem.differentiable(examples(), graph, model))
    who, exact = np.array([5, 0, 3, 1, 4]), 1e-12 if dtype == "float64" else 1e-6
    pick = np.random.default_rng(2).integers(0, 5, (5, 8)) + arrays.row_start[who, None]
    pick[2:4] = [arrays.row_start[3]], [arrays.row_start[1]]  # nobody, and the only row
    for picks in (None, pick):
        loop = super(ct.models.Torch, model).gradients(arrays, theta[who], who, picks)
        assert_allclose(model.gradients(arrays, theta[who], who, picks), loop, rtol=0, atol=exact)
    assert_allclose(
        model.values(arrays, theta[who], who), super(ct.models.Torch, model).values(arrays, theta[who], who), rtol=exact
    )


def test_one_large_agent_goes_in_pieces(monkeypatch, pair, theta):
    X, y = examples().X, examples().y
    model = ct.models.Torch(network(), F.cross_entropy)
    whole = model.total(theta[0], X, y), model.slope(theta[0], X, y)
    monkeypatch.setattr("coterie.models.torch_module.NUMBERS_PER_CALL", 100)
    assert len(list(model._pieces(X, y))) > 5
    assert_allclose(model.total(theta[0], X, y), whole[0], rtol=1e-13)
    assert_allclose(model.slope(theta[0], X, y), whole[1], rtol=0, atol=1e-12)
    arrays = arrays_of(pair[0])
    assert_allclose(
        model.values(arrays, theta, np.arange(N)), pair[0].model.values(arrays, theta, np.arange(N)), rtol=1e-12
    )


@pytest.mark.parametrize("unit", ["rounds", "wakes"])
def test_runs_are_those_of_the_compiled_network(pair, unit):
    method = ct.gossip.DPSGD(ct.optim.SGD(0.05, steps=3, batch=4, momentum=0.5))
    start = np.tile(pair[0].model.initial(), (N, 1))
    runs = [ct.simulate(problem, method, start=start, seed=3, **{unit: 12}) for problem in pair]
    assert_allclose(runs[0].theta, runs[1].theta, rtol=0, atol=1e-12)
    assert (runs[0].vectors, runs[0].bytes) == (runs[1].vectors, runs[1].bytes)
    assert not np.allclose(runs[0].theta, start, atol=1e-3)


def test_parts_go_by_name(graph):
    model = ct.models.Torch(network(), F.cross_entropy)
    problem = ct.Problem.differentiable(examples(), graph, model, shared="0.", tied="2.")
    assert list(model.parts) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert problem.roles.tolist() == [1] * (P * HIDDEN + HIDDEN) + [2] * (HIDDEN * CLASSES + CLASSES)
    with pytest.raises(ParameterError, match=r"'head'.*0\.weight"):
        ct.Problem.differentiable(examples(), graph, model, tied="head")


def test_predictions_are_those_of_the_module_that_comes_out(theta):
    X = examples().X
    model = ct.models.Torch(network(), F.cross_entropy)
    made = model.module(theta[0])
    assert_allclose(model.predict(theta[0], X), made(torch.tensor(X)).detach().numpy(), rtol=1e-13)
    one = ct.models.Torch(network(outputs=1), F.mse_loss)
    assert one.predict(one.initial(), X).shape == (len(X),)
    with pytest.raises(ParameterError, match=r"39 parameters.*\(3,\)"):
        model.predict(np.zeros(3), X)


def test_the_module_given_is_never_changed(graph):
    net = network()
    before = copy.deepcopy(net.state_dict())
    problem = ct.Problem.differentiable(examples(), graph, ct.models.Torch(net, F.cross_entropy))
    run = ct.simulate(problem, ct.gossip.DPSGD(ct.optim.SGD(0.1, batch=4)), rounds=2)
    problem.model.module(run.theta[0])
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.parametrize("unit", ["rounds", "wakes"])
def test_dropout_replays_and_is_random(graph, unit):
    problem = ct.Problem.differentiable(examples(), graph, ct.models.Torch(network(nn.Dropout(0.5)), F.cross_entropy))
    plain = ct.Problem.differentiable(examples(), graph, ct.models.Torch(network(nn.Identity()), F.cross_entropy))
    method, outside = ct.gossip.DPSGD(ct.optim.SGD(0.1, steps=2, batch=4)), torch.get_rng_state()
    one, two, other = (ct.simulate(p, method, seed=1, **{unit: 6}).theta for p in (problem, problem, plain))
    assert_array_equal(one, two)
    assert np.abs(one - other).max() > 1e-3
    assert torch.equal(outside, torch.get_rng_state())  # nobody else's random numbers are touched
    theta = np.tile(problem.model.initial(), (N, 1))
    assert problem.value(theta) == plain.value(theta)  # in eval() mode


def test_the_gradient_of_dropout_is_right_in_the_mean(graph):
    """A linear module with dropout on its inputs: the mean gradient is known. Of 1,000 draws, to 5 standard errors."""
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 1, bias=False)).double()
    X, y, w = np.array([[1.0, 2.0]]), np.array([3.0]), np.array([0.5, -1.0])
    model = ct.models.Torch(net, lambda z, t: 0.5 * (z[:, 0] - t) ** 2)
    draws = np.array([model.slope(w, X, y, die) for die in np.random.default_rng(0).random(1000)])
    # E (x~ w - y) x~ with x~ = 2 x or 0, each with probability 1/2: E x~ = x, E x~^2 = 2 x^2
    expected = X[0] * (X[0] @ w - y[0]) + X[0] ** 2 * w
    assert np.all(np.abs(draws.mean(axis=0) - expected) < 5 * draws.std(axis=0) / np.sqrt(len(draws)))


def test_dropout_without_dice_is_refused(graph):
    problem = ct.Problem.differentiable(examples(), graph, ct.models.Torch(network(nn.Dropout(0.5)), F.cross_entropy))
    with pytest.raises(MismatchError, match="batch"):
        ct.simulate(problem, ct.gossip.DPSGD(ct.optim.SGD(0.1)), rounds=1)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(P, P), nn.Linear(P, P)
        self.two.weight = self.one.weight
        self.scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)

    def forward(self, x):
        return self.scale * self.two(torch.tanh(self.one(x)))


def test_tied_weights_come_once_and_frozen_ones_stay(graph):
    torch.manual_seed(0)
    data, net = examples(), Tied().double()
    model = ct.models.Torch(net, F.cross_entropy)
    assert list(model.parts) == ["one.weight", "one.bias", "two.bias"]
    problem = ct.Problem.differentiable(data, graph, model, coupling=0.0, confidence=None)
    net.zero_grad()
    rows = slice(*data.start[:2])
    F.cross_entropy(net(torch.tensor(data.X[rows])), torch.tensor(data.y[rows]).long()).backward()
    theirs = np.concatenate([p.grad.numpy().ravel() for p in net.parameters() if p.requires_grad])
    start = np.tile(model.initial(), (N, 1))
    assert_allclose(problem.gradient(start)[0], theirs, rtol=0, atol=1e-13)
    assert_allclose(model.slope(start[0], data.X[rows], data.y[rows]) / SIZES[0], theirs, rtol=0, atol=1e-13)
    assert model.module(start[0] + 1.0).scale == 2.0


def test_normalisation_by_the_batch_keeps_agents_apart(graph, theta):
    net = network(nn.BatchNorm1d(HIDDEN, track_running_stats=False))
    model, data = ct.models.Torch(net, F.cross_entropy), examples(sizes=[7, 6, 12, 5, 5, 30])
    arrays = arrays_of(ct.Problem.differentiable(data, graph, model))
    theta, who = np.tile(model.initial(), (N, 1)), np.arange(N)
    loop = super(ct.models.Torch, model).gradients(arrays, theta, who, None)
    assert_allclose(model.gradients(arrays, theta, who, None), loop, rtol=0, atol=1e-12)


def by_the_batch():
    return ct.models.Torch(network(nn.BatchNorm1d(HIDDEN, track_running_stats=False)), F.cross_entropy)


def test_normalisation_by_a_batch_of_one_row_is_refused(graph):
    problem = ct.Problem.differentiable(examples(), graph, by_the_batch())  # agent 1 has one row
    theta, arrays = np.tile(problem.model.initial(), (N, 1)), arrays_of(problem)
    for ask in (
        lambda: problem.value(theta),
        lambda: problem.gradient(theta),
        lambda: problem.model.total(theta[0], problem.data.X[:1], problem.data.y[:1]),
        lambda: problem.model.slope(theta[0], problem.data.X[:1], problem.data.y[:1]),
        lambda: problem.model.predict(theta[0], problem.data.X[:1]),
        lambda: problem.model.gradients(arrays, theta[:1], np.arange(1), np.zeros((1, 1), int)),  # a minibatch of one
        lambda: ct.simulate(problem, ct.gossip.DPSGD(ct.optim.SGD(0.1)), rounds=1),
        lambda: ct.simulate(problem, ct.gossip.DPSGD(ct.optim.SGD(0.1)), wakes=N),
    ):
        with pytest.raises(MismatchError, match=r"BatchNorm.*one row.*GroupNorm.*two rows"):
            ask()


def test_evaluations_ask_several_rows_of_a_module_that_normalises_by_the_batch(graph):
    data = examples(sizes=[7, 6, 12, 5, 5, 30])
    one = ct.models.Torch(network(nn.BatchNorm1d(HIDDEN, track_running_stats=False), outputs=1), nn.MSELoss())
    for model, name in ((by_the_batch(), "accuracy"), (one, "rmse")):
        problem = ct.Problem.differentiable(data, graph, model)
        theta, expected = model.initial(), []
        for X, y in zip(np.split(data.X, data.start[1:-1]), np.split(data.y, data.start[1:-1]), strict=True):
            said = model.predict(theta, X)
            right = np.mean(said.argmax(axis=1) == y) if name == "accuracy" else np.sqrt(np.mean((said - y) ** 2))
            expected.append(right)
        found = ct.evaluate(np.tile(theta, (N, 1)), problem, data)
        assert found.score == name
        assert_allclose(found.each, expected)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.drop, self.head = nn.LSTM(1, HIDDEN, batch_first=True), nn.Dropout(0.5), nn.Linear(HIDDEN, 3)

    def forward(self, x):
        return self.head(self.drop(self.body(x[:, :, None])[0][:, -1]))


class Branching(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.mean() > 0 else torch.tanh(super().forward(x))


@pytest.mark.parametrize("make", [Recurrent, lambda: Branching(P, CLASSES)])
def test_what_vmap_cannot_take_runs_in_a_loop(graph, caplog, make):
    torch.manual_seed(0)
    data, net = examples(), make().double()
    with caplog.at_level(logging.INFO, "coterie"):
        problem = ct.Problem.differentiable(
            data, graph, ct.models.Torch(net, F.cross_entropy), coupling=0.0, confidence=None
        )
        theta = np.tile(problem.model.initial(), (N, 1))
        values, gradient = problem.losses(theta), problem.gradient(theta)
        runs = [
            ct.simulate(problem, ct.gossip.DPSGD(ct.optim.SGD(0.1, steps=2, batch=4)), seed=1, **unit).theta
            for unit in ({"rounds": 3}, {"rounds": 3}, {"wakes": 12}, {"wakes": 12})
        ]
    net.eval()
    for k in np.flatnonzero(SIZES):  # against torch itself
        mine = slice(data.start[k], data.start[k + 1])
        net.zero_grad()
        loss = F.cross_entropy(net(torch.tensor(data.X[mine])), torch.tensor(data.y[mine]).long())
        loss.backward()
        assert values[k] == pytest.approx(loss.item(), rel=1e-12)
        assert_allclose(gradient[k], np.concatenate([p.grad.numpy().ravel() for p in net.parameters()]), atol=1e-13)
    assert_array_equal(runs[0], runs[1])
    assert_array_equal(runs[2], runs[3])
    assert min(np.abs(run - theta).max() for run in runs) > 1e-3
    assert [record.levelname for record in caplog.records if "vmap cannot take" in record.message] == ["INFO"]


def test_what_vmap_can_take_runs_in_no_loop(graph):
    images = nn.Sequential(nn.Unflatten(1, (1, P)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(2 * (P - 2), CLASSES))
    for net in (network(), network(nn.Dropout(0.5)), images):
        problem = ct.Problem.differentiable(examples(), graph, ct.models.Torch(net, F.cross_entropy))
        assert not problem.model._loops


@pytest.mark.parametrize(
    ("loss", "known"),
    [
        (nn.BCEWithLogitsLoss(), True),
        (F.binary_cross_entropy_with_logits, True),
        (functools.partial(F.binary_cross_entropy_with_logits, pos_weight=torch.tensor(2.0)), True),
        (nn.SoftMarginLoss(), True),
        (F.soft_margin_loss, True),
        (nn.MSELoss(), False),
        (F.cross_entropy, False),
        (lambda z, t: F.binary_cross_entropy_with_logits(z, t, reduction="none"), False),
    ],
)
def test_losses_of_logits_are_known(loss, known):
    assert ct.models.Torch(network(outputs=1), loss).logit is known


@pytest.mark.parametrize(
    ("loss", "outputs"),
    [
        (F.mse_loss, 1),
        (nn.MSELoss(), 1),
        (lambda z, t: (z[:, 0] - t) ** 2, 1),
        (F.cross_entropy, CLASSES),
        (nn.CrossEntropyLoss(weight=torch.ones(CLASSES)), CLASSES),
        (lambda z, t: F.cross_entropy(z, t, reduction="none"), CLASSES),
        (lambda z, t: -F.log_softmax(z, 1)[torch.arange(len(t)), t], CLASSES),
    ],
)
def test_losses_are_asked_for_rows(loss, outputs):
    data, model = examples(), ct.models.Torch(network(outputs=outputs), loss)
    z, y = network(outputs=outputs)(torch.tensor(data.X)), torch.tensor(data.y)
    expected = (
        F.mse_loss(z[:, 0], y.double(), reduction="sum")
        if outputs == 1
        else F.cross_entropy(z, y.long(), reduction="sum")
    )
    assert model.total(model.initial(), data.X, data.y) == pytest.approx(expected.item(), rel=1e-12)


def refused(net, loss=F.cross_entropy, data=None, **given):
    return ct.Problem.differentiable(data or examples(), ct.graphs.ring(N), ct.models.Torch(net, loss, **given))


class Noisy(nn.Linear):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.5)


class Counting(nn.Linear):
    def __init__(self):
        super().__init__(P, CLASSES)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.calls += 1
        return super().forward(x)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: refused(3), ParameterError, r"torch\.nn\.Module.*int"),
        (lambda: refused(nn.Tanh()), ParameterError, "Tanh has no parameters"),
        (lambda: refused(network(nn.BatchNorm1d(HIDDEN))), ParameterError, r"2\.running_mean.*GroupNorm"),
        (lambda: refused(Counting()), ParameterError, "calls.*GroupNorm"),
        (lambda: refused(nn.LazyLinear(3)), ParameterError, "weight.*no shape yet"),
        (lambda: refused(nn.Linear(P, 3, dtype=torch.complex64)), ParameterError, "weight.*complex64"),
        (lambda: refused(network(), lambda z, y: F.cross_entropy(z, y)), ParameterError, r"\(3,\).*shape \(\)"),
        (lambda: refused(network(), "cross_entropy"), ParameterError, "loss='cross_entropy'"),
        (lambda: refused(network(), nn.PReLU()), ParameterError, "parameters"),
        (lambda: refused(network(), dtype="float16"), ParameterError, "float16"),
        (lambda: refused(network(), device="nowhere"), ParameterError, "nowhere"),
        (lambda: refused(network(), labels="words"), ParameterError, "words"),
        (lambda: refused(nn.Linear(P + 1, 3)), DataError, f"rows of {P} features"),
        (lambda: refused(Noisy(P, CLASSES)), ParameterError, r"after module\.eval\(\)"),
        (
            lambda: refused(nn.Sequential(nn.Linear(P, 1), nn.Flatten(0), nn.Unflatten(0, (1, -1)))),
            ParameterError,
            "row",
        ),
        (lambda: refused(network(outputs=2)), DataError, "label 2.*classes 0 to 1"),
    ],
)
def test_refusals_name_what_is_wrong(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_exact_questions_are_refused(pair):
    for ask in (pair[0].solve, lambda: pair[0].suboptimality(np.zeros((N, 39))), lambda: pair[0].determined):
        with pytest.raises(MismatchError, match="Torch"):
            ask()


def test_sparse_rows_and_copies(graph, theta):
    data, model = examples(), ct.models.Torch(network(), F.cross_entropy)
    thin = ct.AgentData(sparse.csr_array(data.X), data.y, agents=data.owner, members=range(N))
    whole = ct.Problem.differentiable(data, graph, model).gradient(theta)
    assert_array_equal(ct.Problem.differentiable(thin, graph, copy.deepcopy(model)).gradient(theta), whole)


def test_nothing_else_imports_torch():
    code = "import sys, coterie as ct; ct.models.Torch; ct.Problem; ct.simulate; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
