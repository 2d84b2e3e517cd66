"""Rows stored as float32: what is computed of them is, to the last bit, what the same numbers give as float64."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import coterie as ct
from coterie.core.linear import DenseRows, gram_norms, margins_kernel, row_norms_kernel, rows_of, scatter_kernel
from coterie.pooling.designs.values import Values, quantiles_of
from coterie.pooling.sums import Here

pytestmark = pytest.mark.compiled

N, P = 12, 7
KINDS = {"dense": np.ascontiguousarray, "sparse": sparse.csr_array}


@pytest.fixture(scope="module")
def numbers():
    """Features that are float32 numbers, labels, and whose rows they are."""
    rng = np.random.default_rng(0)
    ids = np.sort(rng.integers(N, size=150))
    X = rng.normal(size=(150, P)).astype(np.float32)
    X[rng.random(X.shape) < 0.3] = 0.0
    y = np.where(X @ rng.normal(size=P) + rng.normal(size=150) > 0, 1.0, -1.0)
    return X, y, ids


def both(numbers, kind="dense", y=True):
    """The same rows, stored as float64 and as float32."""
    X, labels, ids = numbers
    return [
        ct.AgentData(KINDS[kind](X.astype(dtype)), labels if y else None, ids, members=range(N))
        for dtype in (np.float64, np.float32)
    ]


def same(one, other):
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("p", [*range(1, 70), 127, 128, 129, 255, 1000])
def test_products_of_any_length_are_added_in_the_same_order(p):
    rng = np.random.default_rng(p)
    X, theta, scale, start = (
        rng.normal(size=(5, p)).astype(np.float32),
        rng.normal(size=(2, p)),
        rng.normal(size=5),
        [0, 2, 5],
    )
    for wrap in KINDS.values():
        found = []
        for dtype in (np.float64, np.float32):
            rows, out, sums, norms = rows_of(wrap(X.astype(dtype))), np.zeros(5), np.zeros((2, p)), np.zeros(5)
            margins_kernel(rows, np.array(start), theta, out)
            scatter_kernel(rows, np.array(start), scale, sums)
            row_norms_kernel(rows, norms)
            found.append((out, sums, norms))
        for one, other in zip(*found, strict=True):
            same(one, other)


def test_rows_reach_the_kernels_without_a_copy(numbers):
    for data in both(numbers):
        assert np.shares_memory(rows_of(data.X).values, data.X)
        assert isinstance(rows_of(data.X), DenseRows)
    for data in both(numbers, "sparse"):
        rows = rows_of(data.X)
        assert np.shares_memory(rows.values, data.X.data)
        assert np.shares_memory(rows.column, data.X.indices)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_exact_solutions(numbers, kind):
    graph = ct.graphs.ring(N)
    for loss in (ct.Logistic(), ct.Squared(), ct.Hinge()):
        one, other = (ct.Problem.personalized(data, graph, loss=loss) for data in both(numbers, kind))
        same(one.local(), other.local())
        same(one.solve(), other.solve())
        same(one.block_lipschitz, other.block_lipschitz)
        same(gram_norms(one.rows, one.data.start, P), gram_norms(other.rows, other.data.start, P))
        assert one.value(one.local()) == other.value(other.local())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_any_length(kind):
    """Sums are added in an order that depends on how many columns and rows there are, and on nothing else."""
    for p in (1, 2, 3, 4, 5, 8, 13, 16, 20, 33, 64, 100):
        rng = np.random.default_rng(p)
        X, ids = rng.normal(size=(75, p)).astype(np.float32), np.repeat(np.arange(12), [*range(1, 12), 9])
        found = [
            ct.simulate(
                ct.Problem.personalized(
                    ct.AgentData(KINDS[kind](X.astype(dtype)), np.sign(X[:, 0]), ids), ct.graphs.ring(12)
                ),
                ct.CoordinateDescent(),
                wakes=60,
                seed=p,
            ).theta
            for dtype in (np.float64, np.float32)
        ]
        same(*found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_points(numbers, kind):
    loss = ct.Location(ct.Huber(1.0))
    one, other = (
        ct.Problem.separate(data, ct.graphs.ring(N), loss=loss, ridge=0.1) for data in both(numbers, kind, y=False)
    )
    same(one.solve(), other.solve())
    same(*(ct.simulate(problem, ct.DJAM(), wakes=200, seed=3).theta for problem in (one, other)))


def test_propagation(numbers):
    models = numbers[0][:N]
    one, other = (ct.Problem.propagation(models.astype(dtype), ct.graphs.ring(N)) for dtype in (np.float64, np.float32))
    same(*(ct.simulate(problem, ct.ModelPropagation(), wakes=200, seed=3).theta for problem in (one, other)))


@pytest.mark.parametrize("kind", KINDS)
def test_private_rows(numbers, kind):
    from coterie.privacy.local import perturbed

    one, other = (perturbed(data, epsilon=1.0, seed=0) for data in both(numbers, kind))
    same(one.X, other.X)


MODELS = {
    "pooling": (ct.CollaborativeClassifier, {}),
    "pooling, additive": (ct.CollaborativeClassifier, {"design": "additive"}),
    "cd": (ct.CollaborativeClassifier, {"method": "cd"}),
    "admm": (ct.CollaborativeClassifier, {"method": "admm"}),
    "local": (ct.CollaborativeClassifier, {"method": "local"}),
    "numbers": (ct.CollaborativeRegressor, {}),
    "boosted": (ct.BoostedClassifier, {"base": 20}),
    "related": (ct.RelationshipClassifier, {}),
}


@pytest.mark.parametrize("wrap", KINDS.values(), ids=KINDS)
def test_many_columns(wrap):
    rng = np.random.default_rng(1)
    X, ids = rng.normal(size=(60, 160)).astype(np.float32), np.arange(60) % 5
    found = [
        ct.CollaborativeRegressor().fit(wrap(X.astype(dtype)), X[:, 0], agents=ids).predict(wrap(X), agents=ids)
        for dtype in (np.float64, np.float32)
    ]
    same(*found)


@pytest.mark.parametrize("weight", [None, np.array([1.0, 2.0, 1.5, 1.0])], ids=["alike", "weighted"])
def test_quantiles(weight):
    """Of numbers so far apart that their differences have no place in float32."""
    x, shares = np.array([0.1, 1e3 + 0.7, -3.3, 7e5], np.float32), np.linspace(0.0, 1.0, 12)
    one, other = (quantiles_of(Here(Values(each[:, None], weight)), [0], shares) for each in (x.astype(np.float64), x))
    same(one, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_estimators(numbers, kind, name):
    X, y, ids = numbers
    make, settings = MODELS[name]
    found = []
    for dtype in (np.float64, np.float32):
        rows = KINDS[kind](X.astype(dtype))
        model = make(**settings).fit(rows, y, agents=ids)
        found.append((model.predict_proba if hasattr(model, "predict_proba") else model.predict)(rows, agents=ids))
    same(*found)
