"""One-way ties, and graphs that change with time."""

from __future__ import annotations

from typing import NamedTuple

import networkx as nx
import numpy as np
import pytest
from scipy import sparse

import coterie as ct
from coterie.core.letters import Numbers
from coterie.core.linear import axpy
from coterie.core.world import EVERYONE, send
from coterie.errors import GraphError, MismatchError, ParameterError
from coterie.graphs import directed_exponential, directed_random, directed_ring, matchings, one_peer_exponential


class Own(NamedTuple):
    theta: np.ndarray  # (n, p) the mean as I know it
    mass: np.ndarray  # (n, p + 1) sum and weight


class Tie(NamedTuple):
    nothing: np.ndarray


@ct.method
class Push(NamedTuple):
    """Kempe, Dobra, Gehrke (2003): halve what you have, and send the other half to one you may send to."""

    letters = {0: Numbers(1, 1)}
    directed = True
    sums = True
    minimises = False

    def scratch_size(self, world, p):
        return p + 1

    def start(self, world, theta):
        return Own(theta.copy(), np.hstack([theta, np.ones((len(theta), 1))])), Tie(np.zeros((len(world.peer), 0)))

    def wake(self, data, me, ties, chance, outbox):
        part = 1.0 / (1.0 + data.peer.shape[0])
        for c in range(me.mass.shape[0]):
            me.mass[c] *= part
            outbox.scratch[c] = me.mass[c]
        send(outbox, EVERYONE, 0, outbox.scratch[: me.mass.shape[0]])

    def receive(self, data, me, ties, letter, outbox):
        axpy(1.0, letter.text, me.mass)
        for c in range(me.theta.shape[0]):
            me.theta[c] = me.mass[c] / me.mass[me.theta.shape[0]]


GRAPHS = {
    "ring": directed_ring(7),
    "random": directed_random(12, 3, seed=1),
    "exponential": directed_exponential(10),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_letters_go_one_way_and_masses_come_to_the_mean(name):
    graph = GRAPHS[name]
    models = np.random.default_rng(0).normal(size=(graph.n, 2))
    problem = ct.Problem.propagation(models, graph, alpha=0.5)
    run = ct.simulate(problem, Push(), wakes=400 * graph.n, seed=0)
    np.testing.assert_allclose(run.theta, np.broadcast_to(models.mean(axis=0), models.shape), atol=1e-9)
    order = [0, 3, 3, 1]
    assert ct.simulate(problem, Push(), events=order).letters == graph.n_neighbours[order].sum()


def test_methods_for_mutual_ties_refuse_others():
    problem = ct.Problem.propagation(np.eye(4), directed_ring(4), alpha=0.5)
    for method in ("cd", "propagation", "djam", ct.Trimmed("cd"), ct.Compressed("cd", ct.TopK(1))):
        with pytest.raises(MismatchError, match="are one-way"):
            ct.simulate(problem, method, wakes=5)
    mutual = problem.on(graph=problem.graph.mutual)
    assert ct.simulate(mutual, "cd", wakes=5).wakes == 5
    with pytest.raises(MismatchError, match="letters that are lost"):
        ct.simulate(problem, Push(), wakes=5, conditions=ct.Conditions(loss=0.1))


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
        ([[1, 0], [0, 0]], "tie to itself"),
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


def test_push_sum_on_graphs_by_turns():
    n = 8
    models = np.random.default_rng(0).normal(size=(n, 2))
    first, *others = one_peer_exponential(n)
    problem = ct.Problem.propagation(models, first, alpha=0.5)
    changes = ct.graphs.sequence(problem, [*others, first], until=3 * n, every=n)
    run = ct.simulate(problem, Push(), events=np.tile(np.arange(n), 3), changes=changes)
    assert run.letters == 3 * n
    # Agents wake one after the other: half of what there is stays, half goes 1, 2, then 4 ahead.
    mass = np.hstack([models, np.ones((n, 1))])
    for step in (1, 2, 4):
        for k in range(n):
            mass[k] /= 2
            mass[(k + step) % n] += mass[k]
    heard = mass[:, :2] / mass[:, 2:]
    np.testing.assert_allclose(run.theta, heard, rtol=1e-12)
