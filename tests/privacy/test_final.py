"""The final step: it stays at home, learns from good neighbours, and ignores the others.

The reference for squared loss is the closed form of every candidate, in NumPy. Data are seeded; the margins of the
comparisons are several standard errors wide.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from scipy import sparse

import coterie as ct
from coterie.core.arrays import VACANT
from coterie.core.linear import SparseRows, matrix_of
from coterie.core.private.base import public_curvature
from coterie.core.private.final import CANDIDATES, DEFAULT_CANDIDATE, MAX_FOLDS, anchors, folds, own_models
from coterie.engines.arrays import arrays_of, part_of
from coterie.testing import hard_problem

BOUND = 1.0


def finals(problem, anchor, arrays=None):
    arrays = arrays_of(problem) if arrays is None else arrays
    return own_models(arrays, np.asarray(anchor, dtype=float), public_curvature(arrays, BOUND))


@functools.cache
def classification(sizes, p=5, seed=0, ridge=0.0):
    """Agents of these sizes that all have one true model, and examples to test them on."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=p)
    truth /= np.linalg.norm(truth)

    def drawn(m):
        X = rng.normal(size=(m, p)) / np.sqrt(p)
        return X, np.where(X @ truth + 0.05 * rng.normal(size=m) >= 0, 1.0, -1.0)

    X, y = drawn(sum(sizes))
    data = ct.AgentData(X, y, agents=np.repeat(np.arange(len(sizes)), sizes), members=range(len(sizes)))
    problem = ct.Problem.personalized(data, ct.graphs.ring(len(sizes)), ridge=ridge)
    return problem, 4.0 * truth, drawn(2000)


def accuracy(theta, test):
    X, y = test
    return np.mean(np.sign(theta @ X.T) == y, axis=1)


# ---------------------------------------------------------------- nothing of it is sent


def test_it_follows_what_was_heard_last():
    """Its anchors are the copies that agents hold of their neighbours' models, not anything that was not sent."""
    problem = hard_problem()
    method = ct.Private("cd", epsilon=5.0)
    run = ct.simulate(problem, method, seed=2)
    W, tied = problem.graph.W.toarray(), ~problem.graph.isolated
    heard = np.zeros_like(run.published)
    heard[tied] = (W @ run.published)[tied] / W.sum(axis=1)[tied, None]  # messages have all arrived
    np.testing.assert_allclose(run.theta, finals(problem, heard), rtol=1e-8, atol=1e-8)


def test_anchors():
    problem = hard_problem()
    arrays = arrays_of(problem)
    rng = np.random.default_rng(3)
    copies = rng.normal(size=(len(arrays.peer), 3))
    for i, anchor in enumerate(anchors(arrays, copies)):
        a, b = arrays.edge_start[i : i + 2]
        expected = np.average(copies[a:b], axis=0, weights=arrays.weight[a:b]) if b > a else np.zeros(3)
        np.testing.assert_allclose(anchor, expected, rtol=1e-12)
    # A slot without a neighbour says nothing, whatever is left in it.
    wide = arrays_of(problem, spare=2)
    stale = np.full((len(wide.peer), 3), 1e50)
    stale[wide.peer != VACANT] = copies
    wide.weight[wide.peer == VACANT] = 1.0
    np.testing.assert_allclose(anchors(wide, stale), anchors(arrays, copies), rtol=1e-12)


# ---------------------------------------------------------------- what it makes of an anchor


@pytest.mark.slow
def test_few_examples_and_a_good_anchor():
    """40 agents with three examples each: far better than alone, and nearly as good as the anchor itself."""
    problem, truth, test = classification((3,) * 40)
    alone = accuracy(finals(problem, np.zeros((40, 5))), test).mean()
    with_anchor = accuracy(finals(problem, np.tile(truth, (40, 1))), test).mean()
    assert alone < 0.8
    assert with_anchor > alone + 0.12
    assert with_anchor > 0.9


@pytest.mark.compiled
def test_a_short_anchor():
    """A direction that is right and too short, as clipped gradients give it: better than it, and than nothing."""
    problem, truth, test = classification((8,) * 40)
    X, y = test
    short, alone = (finals(problem, np.tile(size * truth, (40, 1))) for size in (0.25, 0.0))
    losses = [np.log1p(np.exp(-y * (theta @ X.T))).mean() for theta in (short, alone, truth[None, :] / 4)]
    assert losses[0] < 0.9 * losses[1]
    assert losses[0] < 0.85 * losses[2]
    assert accuracy(short, test).mean() > accuracy(alone, test).mean() + 0.04


@pytest.mark.compiled
@pytest.mark.parametrize("size", [1.0, 1e3, 1e99])
def test_nonsense_is_not_followed(size):
    """The opposite of the truth, of any length: with 40 examples an agent sees through it, and does as well alone."""
    problem, truth, test = classification((40,) * 20)
    alone = finals(problem, np.zeros((20, 5)))
    misled = finals(problem, np.tile(-size * truth, (20, 1)))
    assert np.isfinite(misled).all()
    ours, theirs = accuracy(misled, test), accuracy(alone, test)
    assert ours.mean() > theirs.mean() - 0.02
    assert ours.min() > 0.7
    if size > 1.0:  # nothing in between would be tolerable: it is left out altogether
        np.testing.assert_allclose(misled, alone, rtol=1e-6, atol=1e-6)


def test_agents_with_no_example_or_one():
    problem, truth, _ = classification((0, 1, 1, 8), ridge=0.0)
    anchor = np.tile(0.5 * truth, (4, 1))
    theta = finals(problem, anchor)
    np.testing.assert_array_equal(theta[0], anchor[0])
    length, part = DEFAULT_CANDIDATE
    for i in (1, 2):
        X, y = problem.data.rows_of(i)
        x, label = X[0], y[0]
        moved = theta[i] - length * anchor[i]
        # argmin l(x . theta, y) + weight/2 |theta - anchor|^2: along x, and as far as its slope goes.
        slope = -label / (1 + np.exp(label * (x @ theta[i])))
        np.testing.assert_allclose(moved, -slope * x / (part * 0.25 * BOUND**2), rtol=1e-6, atol=1e-9)
        assert label * (x @ theta[i]) > label * (x @ anchor[i])


def test_nobody_has_data():
    data = ct.AgentData(np.zeros((0, 2)), np.zeros(0), agents=[], members=["a", "b"])
    problem = ct.Problem.personalized(data, ct.graphs.complete(2))
    np.testing.assert_array_equal(finals(problem, [[1.0, 2.0], [3.0, 4.0]]), [[1.0, 2.0], [3.0, 4.0]])


# ---------------------------------------------------------------- whose business it is


@pytest.mark.compiled
def test_it_is_each_agents_own_business():
    """Other agents, and their order, change nothing but what was heard: as if each were a process of its own."""
    problem, truth, _ = classification((12, 2, 7, 0, 1, 9, 30, 5, 16, 25))
    rng = np.random.default_rng(4)
    anchor = truth + 2.0 * rng.normal(size=(10, 5))
    together = finals(problem, anchor)
    order = rng.permutation(10)
    permuted = finals(problem.relabel(order), anchor[order])
    np.testing.assert_allclose(permuted, together[order], rtol=1e-8, atol=1e-8)
    arrays = arrays_of(problem)
    for i in range(10):
        one = finals(problem, anchor[i : i + 1], part_of(arrays, i, i + 1))
        np.testing.assert_allclose(one[0], together[i], rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_labels_that_are_sorted():
    """Folds are not cut by position: otherwise whole classes would be missing from what is seen."""
    rng = np.random.default_rng(5)
    X = np.abs(rng.normal(size=(40, 1))) + 0.5
    y = np.repeat([1.0, -1.0], 20)
    data = ct.AgentData(np.column_stack([X * y[:, None], np.ones(40)]), y, agents=np.zeros(40, int), members=[0, 1])
    problem = ct.Problem.personalized(data, ct.graphs.complete(2), ridge=0.0)
    theta = finals(problem, np.array([[-1.0, 3.0], [0.0, 0.0]]))[0]
    assert (np.sign(data.X @ theta) == y).mean() > 0.95


# ---------------------------------------------------------------- squared loss and sparse rows


@functools.cache
def regression(storage, sizes=(12, 3, 0, 1, 2, 25), p=4, seed=6):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=p)
    X = rng.normal(size=(sum(sizes), p)) * (rng.random((sum(sizes), p)) < 0.6)
    y = X @ truth + 0.1 * rng.normal(size=sum(sizes))
    features = sparse.csr_array(X) if storage == "sparse" else X
    data = ct.AgentData(features, y, agents=np.repeat(np.arange(len(sizes)), sizes), members=range(len(sizes)))
    return ct.Problem.personalized(data, ct.graphs.ring(len(sizes)), loss="squared", ridge=0.05), truth


def closed_forms(problem, anchor, i):
    """What agent i would get with every candidate: argmin |X t - y|^2 / 2m + r |t|^2 + w/2 |t - c|^2."""
    X, y = problem.data.rows_of(i)
    X, m, p = (X.toarray() if sparse.issparse(X) else X), len(y), problem.p
    weights = CANDIDATES if m > 1 else [DEFAULT_CANDIDATE]
    return [
        np.linalg.solve(
            X.T @ X / m + (2 * problem.ridge[i] + part) * np.eye(p), X.T @ y / m + part * length * anchor[i]
        )
        for length, part in weights
    ]


def test_regression_on_sparse_rows():
    problem, truth = regression("sparse")
    assert isinstance(arrays_of(problem).rows, SparseRows)
    good, bad = np.tile(truth, (problem.n, 1)), np.tile(-50.0 * truth, (problem.n, 1))
    for anchor in (good, bad):
        theta = finals(problem, anchor)
        for i in (0, 1, 3, 4, 5):
            assert min(np.abs(theta[i] - other).max() for other in closed_forms(problem, anchor, i)) < 1e-8
        np.testing.assert_array_equal(theta[2], anchor[2])
    misses = [np.linalg.norm(finals(problem, anchor) - truth, axis=1) for anchor in (good, 0.0 * good)]
    assert misses[0][1] < 0.5 * misses[1][1]  # three examples, four unknowns
    for i in (0, 5):  # the first candidate is the one without an anchor
        np.testing.assert_allclose(finals(problem, bad)[i], closed_forms(problem, bad, i)[0], rtol=0, atol=1e-8)


# ---------------------------------------------------------------- folds


@pytest.mark.parametrize("storage", ["dense", "sparse"])
@pytest.mark.parametrize("one", [False, True], ids=["all agents", "one agent"])
def test_folds_partition_the_rows(storage, one):
    """Every example is held back once; what is seen weighs as much as all of an agent's examples did."""
    problem, _ = regression(storage)
    arrays = arrays_of(problem)
    arrays = part_of(arrays, 5, 6) if one else arrays  # whose rows are a view in the middle of all
    n, sizes, X = len(arrays.address), np.diff(arrays.row_start), matrix_of(arrays.rows, problem.p)
    lines = np.column_stack([np.repeat(np.arange(n), sizes), X, arrays.labels])
    assert len(np.unique(lines, axis=0)) == len(lines)  # so that one can tell them apart
    parts = list(folds(arrays))
    assert len(parts) == MAX_FOLDS
    all_held = []
    for seen, held in parts:
        both = []
        for some in (seen, held):
            counts = np.diff(some.row_start)
            both.append(
                np.column_stack([np.repeat(np.arange(n), counts), matrix_of(some.rows, problem.p), some.labels])
            )
            assert some.row_start[0] == 0
            np.testing.assert_allclose(
                (some.row_weight * counts)[counts > 0], (arrays.row_weight * sizes)[counts > 0], rtol=1e-12
            )
            for name in ("peer", "weight", "ridge", "loss_weight", "address"):
                np.testing.assert_array_equal(getattr(some, name), getattr(arrays, name))
        np.testing.assert_array_equal(np.unique(np.vstack(both), axis=0), np.unique(lines, axis=0))
        assert len(both[0]) + len(both[1]) == len(lines)
        assert (np.diff(held.row_start) <= -(-sizes // MAX_FOLDS)).all()
        all_held.append(both[1])
    np.testing.assert_array_equal(np.unique(np.vstack(all_held), axis=0), np.unique(lines, axis=0))
    assert sum(map(len, all_held)) == len(lines)
