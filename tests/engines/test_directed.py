"""One-way edges, and graphs that change with time."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from scipy import sparse

import coterie as ct
from coterie.errors import GraphError, MismatchError, ParameterError
from coterie.graphs import directed_exponential, directed_random, directed_ring, matchings, one_peer_exponential


def test_methods_for_mutual_edges_refuse_others():
    problem = ct.Problem.propagation(np.eye(4), directed_ring(4), alpha=0.5)
    for method in (
        "cd",
        "propagation",
        "djam",
        ct.robust.Trimmed("cd"),
        ct.compression.Compressed("cd", ct.compression.TopK(1)),
    ):
        with pytest.raises(MismatchError, match="are one-way"):
            ct.simulate(problem, method, wakes=5)
    mutual = problem.on(graph=problem.graph.mutual)
    assert ct.simulate(mutual, "cd", wakes=5).wakes == 5


def test_the_objective_goes_by_the_mutual_part():
    W = np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 1.0], [3.0, 0.0, 0.0]])
    models = np.random.default_rng(0).normal(size=(3, 2))
    one, other = (ct.Problem.propagation(models, g, alpha=0.5) for g in (ct.DirectedGraph(W), ct.Graph((W + W.T) / 2)))
    theta = models + 1.0
    assert one.value(theta) == other.value(theta)
    np.testing.assert_array_equal(one.solve(), other.solve())
    np.testing.assert_array_equal(one.block_lipschitz, other.block_lipschitz)


# -- the graphs themselves --------------------------------------------------------------------------------------------


def test_it_is_the_graph_that_networkx_sees():
    rng = np.random.default_rng(0)
    W = np.where(rng.random((9, 9)) < 0.2, rng.random((9, 9)), 0.0)
    np.fill_diagonal(W, 0.0)
    for given in (W, sparse.csr_array(W), sparse.coo_matrix(W)):
        graph = ct.DirectedGraph(given)
        np.testing.assert_array_equal(graph.W.toarray(), W)
        there = nx.from_numpy_array(W, create_using=nx.DiGraph)
        assert nx.utils.graphs_equal(graph.to_networkx(), there)
        assert graph.in_degrees.tolist() == [d for _, d in there.in_degree()]
        assert graph.n_neighbours.tolist() == [d for _, d in there.out_degree()]
        assert graph.strongly_connected == nx.is_strongly_connected(there)
        assert graph.n_components == nx.number_weakly_connected_components(there)
    assert graph == ct.DirectedGraph.from_edges(9, *graph.edges())
    assert graph.directed
    assert not graph.mutual.directed
    order = rng.permutation(9)
    np.testing.assert_array_equal(graph.relabel(order).W.toarray(), W[order][:, order])
    alone = graph.without([2])
    assert isinstance(alone, ct.DirectedGraph)
    assert not alone.W.toarray()[2].any()
    assert not alone.W.toarray()[:, 2].any()
    assert ct.DirectedGraph((W + W.T) / 2) != ct.Graph((W + W.T) / 2)


@pytest.mark.parametrize("n", [2, 3, 8, 13])
def test_generated_graphs_reach_everybody(n):
    for graph in (directed_ring(n), directed_exponential(n), directed_random(n, 1, seed=0)):
        assert graph.strongly_connected
        assert np.all(graph.weight == 1.0)
    for degree in range(1, n):
        graph = directed_random(n, degree, seed=degree)
        assert np.all(graph.n_neighbours == degree)
        assert graph.strongly_connected
        assert graph == directed_random(n, degree, seed=degree)


@pytest.mark.parametrize("n", [2, 8, 16])
def test_one_peer_graphs_take_the_exact_mean_by_turns(n):
    mix = np.eye(n)
    for graph in one_peer_exponential(n):
        assert np.all(graph.n_neighbours == 1)
        mix = (np.eye(n) + graph.W.toarray().T) / 2 @ mix
    np.testing.assert_allclose(mix, np.full((n, n), 1 / n), atol=1e-15)


@pytest.mark.parametrize("n", [2, 7, 10])
def test_matchings_match(n):
    listed = matchings(n, 30, seed=0)
    for graph in listed:
        assert graph.n_neighbours.max() == 1
        assert graph.isolated.sum() == n % 2
    assert n == 2 or len(set(listed)) > 1
    assert listed == matchings(n, 30, seed=0)


def test_bad_graphs_are_refused():
    for W, word in (
        ([[0, -1], [0, 0]], "nonnegative"),
        ([[1, 0], [0, 0]], "edge to itself"),
        ([[0, np.nan], [0, 0]], "finite"),
        ([[0, 1]], "shape"),
    ):
        with pytest.raises(GraphError, match=word):
            ct.DirectedGraph(W)
    for i, j, weight, word in (
        ([0, 0], [1, 1], 1.0, "twice"),
        ([0], [1, 2], 1.0, "one of each"),
        ([0], [1], "a", "wei"),
    ):
        with pytest.raises(GraphError, match=word):
            ct.DirectedGraph.from_edges(3, i, j, weight)
    with pytest.raises(ParameterError, match="at most 3"):
        directed_random(4, 4, seed=0)


def test_a_graph_that_changes_with_time():
    models = np.random.default_rng(0).normal(size=(8, 2))
    problem = ct.Problem.propagation(models, ct.graphs.ring(8), alpha=0.5)
    listed = matchings(8, 3, seed=0)
    changes = ct.graphs.sequence(problem, listed, until=10, every=2)
    assert [moment for moment, _ in changes] == [2, 4, 6, 8]
    assert [now.graph for _, now in changes] == [*listed, listed[0]]
    assert changes[0][1] is changes[3][1]  # each made once
    called = ct.graphs.sequence(problem, lambda k: listed[k % 3], until=4)
    assert [now.graph for _, now in called] == [listed[1], listed[2], listed[0]]
    run = ct.simulate(problem, "propagation", rounds=10, changes=changes)
    theta = problem.local()
    for t in range(10):
        now = problem if t < 2 else changes[t // 2 - 1][1]
        W, own = now.graph.W.toarray(), now.importance
        theta = (W @ theta + own[:, None] * models) / (W.sum(axis=1) + own)[:, None]  # neighbours swap when they meet
    np.testing.assert_allclose(run.theta, theta, rtol=1e-12)
    for graphs, word in (([], "is empty"), ([1], "expected a ct.Graph")):
        with pytest.raises(ParameterError, match=word):
            ct.graphs.sequence(problem, graphs, until=4)
