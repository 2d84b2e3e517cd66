"""Clustered moons as DADA reports them (Section 6, Figure 1): who beats whom, and what the learned graph looks like.

With zeros on the empty axes, as in the authors' figures. The margins below are far from what 20
instances show, and farther from none; 29 % of the pairs are inside clusters.
"""

import itertools
from typing import NamedTuple

import numpy as np
import pytest

import coterie as ct

pytestmark = [pytest.mark.compiled, pytest.mark.slow]  # what a paper claims

N, WAKES = 100, 20_000
FW = ct.FrankWolfeBoosting()


class Outcome(NamedTuple):
    """In percent, but for the neighbours."""

    local: float
    everybody: float
    learned: float
    oracle: float
    neighbours: float
    inside: float


def problem_of(task):
    return ct.Problem.boosting(task.train, task.graph, base=ct.Stumps(200), beta=3.0, mu=1.0)


def accuracy(problem, test, theta):
    said = np.einsum("rj,rj->r", problem.base.transform(test.X), theta[test.owner])
    return 100 * np.mean((said > 0) == (test.y > 0))


def learned(problem, lam, seed):
    method = ct.Learned(FW, ct.GraphRule(lam=lam), every=100)
    return ct.simulate(problem.on(graph=ct.graphs.empty(N)), method, wakes=WAKES, seed=seed, start="zeros")


def outcome(seed):
    task = ct.datasets.clustered_moons(n=N, p=20, seed=seed)
    problem = problem_of(task)
    run = learned(problem, 1.0, seed)
    oracle = ct.simulate(problem, FW, wakes=WAKES, seed=seed, start="zeros")
    i, j, w = run.graph.edges()
    models = (problem.local(), ct.GlobalModel().models(problem), run.theta, oracle.theta)
    return Outcome(
        *(accuracy(problem, task.test, theta) for theta in models),
        neighbours=2 * run.graph.n_edges / N,
        inside=100 * w[task.cluster[i] == task.cluster[j]].sum() / w.sum(),
    )


def test_who_beats_whom():
    found = Outcome(*np.mean([outcome(seed) for seed in range(20)], axis=0))
    assert found.learned - found.local >= 1.5
    assert found.learned - found.everybody >= 6.0
    assert found.inside >= 55.0
    assert found.oracle - found.learned >= 4.0
    assert 18 <= found.neighbours <= 29


def test_neighbours_grow_with_lam():
    problem = problem_of(ct.datasets.clustered_moons(n=N, p=20, seed=0))
    graphs = [learned(problem, lam, 0).graph for lam in (0.01, 0.1, 1.0, 10.0)]
    counts = [graph.n_edges for graph in graphs]
    assert all(few < more for few, more in itertools.pairwise(counts))
    assert not any(graph.isolated.any() for graph in graphs)  # which the logarithm of the degrees is for
