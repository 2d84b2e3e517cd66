"""Graphs, their generators and their builders, against dense formulas written here from the definitions."""

from __future__ import annotations

import itertools
import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse, stats

from coterie.errors import GraphError, MissingExtra, ParameterError
from coterie.graphs import (
    Graph,
    angles,
    clusters,
    complete,
    empty,
    erdos_renyi,
    from_networkx,
    grid,
    kernel,
    knn,
    path,
    random_regular,
    ring,
    star,
)
from coterie.graphs import builders as nearest_module

quick = settings(deadline=None, derandomize=True, max_examples=40)

# A triangle 0-1-2 with a tail 2-3, and agent 4 on its own.
W = np.array(
    [
        [0.0, 1.0, 2.0, 0.0, 0.0],
        [1.0, 0.0, 0.5, 0.0, 0.0],
        [2.0, 0.5, 0.0, 4.0, 0.0],
        [0.0, 0.0, 4.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0],
    ]
)


@st.composite
def weights(draw):
    """Dense valid weights; edges are few, and span the whole range of floats that can be added up."""
    n = draw(st.integers(1, 8))
    dense = np.zeros((n, n))
    for i, j in itertools.combinations(range(n), 2):
        edge = st.one_of(st.just(0.0), st.just(0.0), st.floats(1e-300, 1e300), st.floats(0.1, 10.0))
        dense[i, j] = dense[j, i] = draw(edge)
    return dense


def changed(i, j, value):
    """The weights above with one entry changed."""
    dense = W.copy()
    dense[i, j] = value
    return dense


# ---------------------------------------------------------------------------------------------- Graph


@quick
@given(weights(), st.sampled_from(["csr", "csc", "coo", "lil", "dok", "bsr", "dia", "matrix", "list", "dense"]))
def test_weights_go_in_and_come_out(dense, form):
    given = {
        "matrix": lambda: sparse.csr_matrix(dense),
        "list": dense.tolist,
        "dense": lambda: dense,
    }.get(form, lambda: sparse.coo_array(dense).asformat(form))()
    graph = Graph(given)
    assert np.array_equal(graph.W.toarray(), dense)
    assert graph.n == len(dense)
    assert graph.n_edges == np.count_nonzero(np.triu(dense))
    np.testing.assert_allclose(graph.degrees, dense.sum(axis=1), rtol=1e-14)
    assert np.array_equal(graph.n_neighbours, (dense > 0).sum(axis=1))
    assert np.array_equal(graph.isolated, ~dense.any(axis=1))
    for i in range(graph.n):
        assert np.array_equal(graph.neighbours(i), np.flatnonzero(dense[i]))


@quick
@given(weights())
def test_every_road_leads_to_the_same_graph(dense):
    graph = Graph(dense)
    i, j, weight = graph.edges()
    assert (i < j).all()
    assert Graph(graph.W) == graph
    assert Graph.from_edges(graph.n, j, i, weight) == graph
    assert from_networkx(graph.to_networkx()) == graph
    assert hash(Graph(graph.W)) == hash(graph)


@quick
@given(weights(), st.randoms(use_true_random=False))
def test_relabel_renames_agents(dense, random):
    order = list(range(len(dense)))
    random.shuffle(order)
    graph = Graph(dense).relabel(order)
    for k, l in itertools.product(range(len(dense)), repeat=2):  # noqa: E741  agents k and l, as in the paper
        assert graph.W[k, l] == dense[order[k], order[l]]
    assert graph.relabel(np.argsort(order)) == Graph(dense)


@quick
@given(weights())
def test_components_are_those_of_networkx(dense):
    graph = Graph(dense)
    expected = list(nx.connected_components(nx.from_numpy_array((dense > 0).astype(int))))
    found = [set(np.flatnonzero(graph.components == label)) for label in range(graph.n_components)]
    assert sorted(found, key=min) == found  # numbered by their first agents
    assert found == sorted(expected, key=min)


def test_laplacian_is_the_quadratic_form_of_the_edges():
    graph = Graph(W)
    x = np.array([1.0, -2.0, 3.0, 0.5, 7.0])
    edges = sum(W[i, j] * (x[i] - x[j]) ** 2 for i, j in itertools.combinations(range(5), 2))
    assert x @ (graph.laplacian() @ x) == pytest.approx(edges)
    assert not (graph.laplacian() @ np.ones(5)).any()


def test_layout_is_sorted_rows_of_eight_byte_numbers():
    unsorted = sparse.csr_array((np.array([2.0, 1.0, 2.0, 1.0]), [2, 1, 0, 0], [0, 2, 3, 4]), shape=(3, 3))
    unsorted.data[:] = [2.0, 1.0, 1.0, 2.0]
    before = unsorted.indices.copy()
    graph = Graph(unsorted)
    assert graph.start.tolist() == [0, 2, 3, 4]
    assert graph.peer.tolist() == [1, 2, 0, 0]
    assert graph.weight.tolist() == [1.0, 2.0, 1.0, 2.0]
    assert (graph.start.dtype, graph.peer.dtype, graph.weight.dtype) == (np.int64, np.int64, np.float64)
    assert np.array_equal(unsorted.indices, before), "the caller's matrix was sorted in place"


def test_repr_counts():
    assert repr(Graph(W)) == "Graph(n=5, edges=4, components=2, isolated=1)"


def test_a_graph_is_frozen():
    dense = W.copy()
    graph = Graph(dense)
    dense[0, 1] = 99.0
    assert graph.W[0, 1] == 1.0, "the caller's array is not copied"
    for name in ("start", "peer", "weight", "degrees", "components", "n", "W"):
        with pytest.raises(AttributeError):
            setattr(graph, name, None)
    for array in (
        graph.start,
        graph.peer,
        graph.weight,
        graph.degrees,
        graph.components,
        graph.neighbours(0),
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    view = graph.W
    for write in (lambda: view.data.__setitem__(0, 9.0), view.eliminate_zeros, lambda: view.__imul__(2.0)):
        with pytest.raises(ValueError, match="read-only"):
            write()
    assert graph == Graph(W)


def test_equality_is_of_exact_weights():
    scaled = changed(0, 1, 1.0 + 1e-15)
    scaled[1, 0] = scaled[0, 1]
    assert Graph(W) == Graph(W.copy())
    assert Graph(W) != Graph(scaled)
    assert Graph(W) != Graph(W[:4, :4])
    assert Graph(W) != "a graph"
    assert len({Graph(W), Graph(W.copy()), Graph(scaled)}) == 2


def test_stored_zeros_are_no_edges_and_duplicates_add_up():
    stored = sparse.coo_array(([0.0, 0.0, -0.0], ([0, 1, 2], [1, 0, 2])), shape=(3, 3))
    assert Graph(stored) == empty(3)
    twice = sparse.coo_array(([1.0, 1.0, 2.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    assert Graph(twice) == Graph([[0, 2], [2, 0]])
    small = sparse.coo_array((np.array([100] * 4, dtype=np.int8), ([0, 0, 1, 1], [1, 1, 0, 0])), shape=(2, 2))
    assert Graph(small).degrees.tolist() == [200.0, 200.0], "bytes overflowed before they were added up"


def test_booleans_and_integers_are_weights():
    assert Graph(W > 0) == Graph((W > 0).astype(np.uint8)) == Graph((W > 0).astype(float))


def test_rounding_is_evened_out_exactly():
    rounded = changed(0, 1, 1.0 + 1e-14)
    graph = Graph(rounded)
    assert graph.W[0, 1] == graph.W[1, 0]
    assert graph.W[0, 1] == pytest.approx(1.0, rel=1e-13)
    tiny = np.array([[0, 1e-300 * (1 + 1e-14)], [1e-300, 0]])
    assert Graph(tiny).n_edges == 1
    with pytest.raises(GraphError, match=r"W\[0, 1\]"):  # the tolerance is relative
        Graph(np.array([[0, 1.001e-300], [1e-300, 0]]))


def test_weights_of_all_magnitudes():
    exponents = np.arange(-300, 301, 50)
    values = 10.0**exponents
    n = len(values) + 1
    jitter = 1 + np.where(np.arange(n - 1) % 2, 1e-14, 0.0)
    spread = sparse.coo_array(
        (np.concatenate((values, values * jitter)), (np.r_[: n - 1, 1:n], np.r_[1:n, : n - 1])), shape=(n, n)
    )
    graph = Graph(spread)
    assert graph.n_edges == n - 1
    assert graph.n_components == 1
    _, _, weight = graph.edges()
    np.testing.assert_allclose(weight, values, rtol=1e-13)
    assert np.isfinite(graph.degrees).all()
    smallest = np.nextafter(0, 1)
    assert Graph([[0, smallest], [smallest, 0]]).weight.tolist() == [smallest, smallest]
    largest = np.finfo(float).max
    assert Graph([[0, largest], [largest, 0]]).weight.tolist() == [largest, largest]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((2, 3)), r"shape \(2, 3\): expected \(n, n\)"),
        (sparse.csr_array((3, 2)), r"shape \(3, 2\)"),
        (np.zeros(4), r"shape \(4,\)"),
        (np.zeros((0, 0)), r"shape \(0, 0\)"),
        ([[0, 1], [1]], "W is not an array"),
        ([["0", "1"], ["1", "0"]], "type <U1: weights must be real numbers"),
        (W.astype(complex), "type complex128"),
        (np.array([[0, None], [None, 0]]), "type object"),
        (changed(1, 3, np.nan), r"W\[1, 3\] = nan: weights must be finite"),
        (changed(3, 0, np.inf), r"W\[3, 0\] = inf: weights must be finite"),
        (changed([0, 3], [2, 1], [-1.0, -5.0]), r"W\[0, 2\] = -1.0"),
        (changed(3, 2, -0.2), r"W\[3, 2\] = -0.2: weights must be nonnegative"),
        (sparse.csc_array(changed(3, 2, -0.2)), r"W\[3, 2\] = -0.2: weights must be nonnegative"),
        (changed(4, 4, 0.5), r"agent 4 has an edge to itself, W\[4, 4\] = 0.5"),
        (changed(1, 2, 0.3), r"W\[1, 2\] = 0.3 but W\[2, 1\] = 0.5: .* pass \(W \+ W.T\) / 2 to symmetrise"),
        (changed(1, 3, 0.3), r"W\[1, 3\] = 0.3 but W\[3, 1\] = 0.0"),
        (changed(4, 0, 1e-300), r"W\[0, 4\] = 0.0 but W\[4, 0\] = 1e-300"),
        ([[0, 1e308, 1e308], [1e308, 0, 0], [1e308, 0, 0]], "agent 0 add up to more than a float can hold"),
    ],
)
def test_no_graph_and_why(bad, message):
    with pytest.raises(GraphError, match=message):
        Graph(bad)


def test_an_edge_may_be_given_twice_with_one_weight():
    once = Graph.from_edges(3, [0, 1], [1, 2], [0.5, 2.0])
    assert Graph.from_edges(3, [0, 1, 1, 0], [1, 0, 2, 1], [0.5, 0.5, 2.0, 0.5]) == once
    assert once.W[0, 1] == once.W[1, 0] == 0.5
    assert Graph.from_edges(2, [0], [1], 0.0) == empty(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, [0, 1], [1, 3]), "edge 1 has j = 3: the agents are 0 to 2"),
        ((3, [0, -1], [1, 2]), "edge 1 has i = -1: the agents are 0 to 2"),
        ((3, [0, 2], [1, 2]), "edge 1 joins agent 2 to itself"),
        ((3, [0, 1], [1]), "i names 2 ends and j 1"),
        ((3, [0.0], [1]), r"i has shape \(1,\) and type float64"),
        ((3, [0], [[1]]), r"j has shape \(1, 1\)"),
        ((3, [0, 1], [1, 2], [1.0, 1.0, 1.0]), "each of the 2 edges"),
        ((3, [0, 1], [1, 2], ["a", "b"]), "each of the 2 edges"),
        ((3, [0, 1], [1, 2], [1.0, -2.0]), r"W\[1, 2\] = -2.0: weights must be nonnegative"),
        ((3, [0, 0], [1, 1], np.nan), r"W\[0, 1\] = nan: weights must be finite"),
        (
            (3, [2, 1, 0], [1, 0, 1], [1.0, 2.0, 3.0]),
            "edge 2 joins agents 0 and 1 with weight 3.0, but edge 1 gave them 2.0",
        ),
    ],
)
def test_no_edges_and_why(arguments, message):
    with pytest.raises(GraphError, match=message):
        Graph.from_edges(*arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda graph: graph.neighbours(5), "agent = 5: the agents are 0 to 4"),
        (lambda graph: graph.neighbours(-1), "agent = -1"),
        (lambda graph: graph.neighbours("ann"), "agent = 'ann'"),
        (lambda graph: graph.relabel([0, 1, 2, 2, 4]), "it misses agent 3"),
        (lambda graph: graph.relabel([1, 2, 3, 4, 5]), "it misses agent 0"),
        (lambda graph: graph.relabel([0, 1]), r"shape \(2,\)"),
        (lambda graph: graph.relabel(np.arange(5.0)), "type float64"),
        (lambda graph: Graph.from_edges(0, [], []), "n = 0: expected an integer >= 1"),
    ],
)
def test_no_such_agent_or_order(call, message):
    with pytest.raises(ParameterError, match=message):
        call(Graph(W))


# ----------------------------------------------------------------------------------------- generators

X12 = np.random.default_rng(0).normal(size=(12, 3))
GENERATED = {
    "empty(1)": (lambda: empty(1), 1, 0, 1),
    "empty(5)": (lambda: empty(5), 5, 0, 5),
    "complete(1)": (lambda: complete(1), 1, 0, 1),
    "complete(7)": (lambda: complete(7), 7, 21, 1),
    "ring(5, 100)": (lambda: ring(5, 100), 5, 10, 1),
    "path(1)": (lambda: path(1), 1, 0, 1),
    "path(6)": (lambda: path(6), 6, 5, 1),
    "star(1)": (lambda: star(1), 1, 0, 1),
    "star(6)": (lambda: star(6), 6, 5, 1),
    "erdos_renyi(1)": (lambda: erdos_renyi(1, 0.5, 0), 1, 0, 1),
    "erdos_renyi(20, 0)": (lambda: erdos_renyi(20, 0, 0), 20, 0, 20),
    "erdos_renyi(20, 1)": (lambda: erdos_renyi(20, 1, 0), 20, 190, 1),
    "erdos_renyi(20, tiny)": (lambda: erdos_renyi(20, 1e-300, 0), 20, 0, 20),
    "random_regular(12, 0)": (lambda: random_regular(12, 0, 0), 12, 0, 12),
    "random_regular(12, 5)": (lambda: random_regular(12, 5, 0), 12, 30, 1),
    "random_regular(6, 5)": (lambda: random_regular(6, 5, 0), 6, 15, 1),
    "clusters(1)": (lambda: clusters([1]), 1, 0, 1),
    "clusters(3, 1, 4)": (lambda: clusters([3, 1, 4]), 8, 9, 3),
    "clusters(3, 1, 4; 0.1)": (lambda: clusters([3, 1, 4], between=0.1), 8, 28, 1),
    "clusters(2, 2; 0, 1)": (lambda: clusters([2, 2], inside=0, between=1), 4, 4, 1),
}


@pytest.mark.parametrize("name", GENERATED)
def test_generated_graphs_have_their_edges(name):
    make, n, n_edges, n_components = GENERATED[name]
    graph = make()
    dense = graph.W.toarray()
    assert np.array_equal(dense, dense.T)
    assert not dense.diagonal().any()
    assert (graph.n, graph.n_edges, graph.n_components) == (n, n_edges, n_components)
    assert graph == make()


@quick
@given(st.integers(1, 12), st.integers(1, 8))
def test_ring_connects_those_within_reach_around_the_circle(n, neighbours):
    dense = ring(n, neighbours, weight=0.5).W.toarray()
    for i, j in itertools.product(range(n), repeat=2):
        around = min(abs(i - j), n - abs(i - j))
        assert dense[i, j] == (0.5 if 0 < around <= neighbours else 0.0)


@quick
@given(st.integers(1, 5), st.integers(1, 5))
def test_grid_connects_those_one_step_apart(rows, columns):
    dense = grid(rows, columns).W.toarray()
    for i, j in itertools.product(range(rows * columns), repeat=2):
        steps = abs(i // columns - j // columns) + abs(i % columns - j % columns)
        assert dense[i, j] == (steps == 1)


def test_path_and_star_and_complete_by_their_neighbours():
    assert all(abs(path(6).neighbours(i) - i).max() == 1 for i in range(6))
    assert star(5).n_neighbours.tolist() == [4, 1, 1, 1, 1]
    assert star(5).neighbours(3).tolist() == [0]
    assert complete(4, weight=0.5).degrees.tolist() == [1.5] * 4


def test_clusters_by_their_blocks():
    dense = clusters([2, 3], inside=2.0, between=0.25).W.toarray()
    assert set(dense[:2, 2:].ravel()) == {0.25}
    assert dense[0, 1] == dense[2, 3] == dense[3, 4] == 2.0
    sizes = [3, 1, 4, 3, 2, 1]
    label = np.repeat(np.arange(6), sizes)
    assert np.array_equal(clusters(sizes).W.toarray(), (label[:, None] == label) & ~np.eye(14, dtype=bool))


def test_erdos_renyi_draws_each_pair_with_its_probability():
    n, probability, draws = 12, 0.3, 1500
    random = np.random.default_rng(0)
    total = sum(erdos_renyi(n, probability, random).W.toarray() for _ in range(draws))
    frequency = total[np.triu_indices(n, 1)] / draws
    # 66 pairs, each within 4.5 standard deviations; and the overall mean within 4.
    deviation = math.sqrt(probability * (1 - probability) / draws)
    assert np.abs(frequency - probability).max() < 4.5 * deviation
    assert abs(frequency.mean() - probability) < 4 * deviation / math.sqrt(frequency.size)


def test_erdos_renyi_is_sparse_on_many_agents():
    graph = erdos_renyi(200_000, 1e-5, seed=1)
    expected = 200_000 * 199_999 / 2 * 1e-5
    assert abs(graph.n_edges - expected) < 5 * math.sqrt(expected)
    assert abs(graph.edges()[0].mean() - 200_000 / 3) < 1000  # the smaller end of a random pair


@pytest.mark.parametrize("make", [lambda seed: erdos_renyi(30, 0.2, seed), lambda seed: random_regular(30, 4, seed)])
def test_seeds_decide(make):
    assert make(5) == make(5) == make(np.random.default_rng(5))
    assert make(5) != make(6)
    generator = np.random.default_rng(5)
    assert make(generator) != make(generator)  # the generator moves on


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: empty(0), "n = 0: expected an integer >= 1"),
        (lambda: complete(-2), "n = -2"),
        (lambda: complete(2.0), r"n = 2\.0"),
        (lambda: complete(3, weight=0), "weight = 0: expected a positive"),
        (lambda: complete(3, weight="2"), "weight = '2'"),
        (lambda: ring(5, 0), "neighbours = 0"),
        (lambda: ring(5, weight=np.inf), "weight = inf"),
        (lambda: path(0), "n = 0"),
        (lambda: star("3"), "n = '3'"),
        (lambda: grid(0, 3), "rows = 0"),
        (lambda: grid(3, 0), "columns = 0"),
        (lambda: erdos_renyi(5, 1.5, 0), r"probability = 1\.5: expected a number in \[0, 1\]"),
        (lambda: erdos_renyi(5, np.nan, 0), "probability = nan"),
        (lambda: erdos_renyi(5, 0.5, None), "seed = None: .* numpy.random.Generator"),
        (lambda: erdos_renyi(5, 0.5, -1), "seed = -1"),
        (lambda: random_regular(5, 3, 0), "degree = 3 with n = 5: .* even"),
        (lambda: random_regular(4, 4, 0), "degree = 4 with n = 4: an agent has at most 3"),
        (lambda: random_regular(4, -1, 0), "degree = -1"),
        (lambda: clusters([]), "sizes is empty"),
        (lambda: clusters([2, 0]), r"sizes\[1\] = 0"),
        (lambda: clusters([2], inside=-1), "inside = -1"),
        (lambda: clusters([2, 2], between=np.nan), "between = nan"),
        (lambda x=X12: knn(x, neighbours=0), "neighbours = 0"),
        (lambda x=X12: knn(x, neighbours=12), "neighbours = 12 with 12 agents: an agent has at most 11"),
        (lambda x=X12: knn(x, kernel="cubic"), "kernel = 'cubic': expected 'uniform' or 'gaussian'"),
        (lambda x=X12: knn(x, kernel="gaussian", bandwidth=0), "bandwidth = 0"),
        (lambda x=X12: knn(x, bandwidth=2.0), r"bandwidth = 2\.0: only kernel='gaussian'"),
        (lambda x=X12: kernel(x, -1.0), r"bandwidth = -1\.0"),
        (lambda x=X12: kernel(x, 1.0, cut=0), "cut = 0: .* strictly between 0 and 1"),
        (lambda x=X12: kernel(x, 1.0, cut=1), "cut = 1"),
        (lambda x=X12: angles(x, gamma=0), "gamma = 0"),
        (lambda x=X12: angles(x, cut=2), "cut = 2"),
        (lambda x=X12: angles(x * (np.arange(12) != 4)[:, None]), "agent 4 has the zero model, which has no angle"),
    ],
)
def test_generators_and_builders_name_the_bad_parameter(call, message):
    with pytest.raises(ParameterError, match=message):
        call()


def test_seed_is_required():
    with pytest.raises(TypeError, match="seed"):
        erdos_renyi(5, 0.5)
    with pytest.raises(TypeError, match="seed"):
        random_regular(6, 2)


# ------------------------------------------------------------------------------------------- builders


def cloud(n=40, p=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, p))


def dense_distances(x):
    return np.array([[math.dist(a, b) for b in x] for a in x])


def dense_knn(x, k):
    """Whether i ~ j, and the distances of all agents to their k nearest."""
    distance = dense_distances(x)
    np.fill_diagonal(distance, np.inf)
    nearest = np.argsort(distance, axis=1)[:, :k]
    chosen = np.zeros(distance.shape, dtype=bool)
    for i, row in enumerate(nearest):
        chosen[i, row] = True
    return chosen | chosen.T, np.sort(distance, axis=1)[:, :k]


@pytest.mark.parametrize("p", [2, 30])  # scikit-learn's trees, and its matrix products
@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_knn_against_all_distances(p, offset):
    x = cloud(p=p) + offset
    tied, _ = dense_knn(x, 4)
    assert np.array_equal(knn(x, neighbours=4).W.toarray(), tied)
    assert knn(x, neighbours=39) == complete(40)


def test_gaussian_knn_against_all_distances():
    x = cloud(p=5)
    tied, nearest = dense_knn(x, 6)
    for bandwidth, expected in ((None, np.median(nearest)), (0.7, 0.7)):
        weights = tied * np.exp(-(dense_distances(x) ** 2) / (2 * expected**2))
        found = knn(x, neighbours=6, kernel="gaussian", bandwidth=bandwidth).W.toarray()
        np.testing.assert_allclose(found, weights, rtol=1e-10)


@pytest.mark.parametrize("p", [2, 30])
def test_duplicates_are_neighbours_of_each_other_and_not_of_themselves(p):
    here, there = np.full(p, 0.1), np.full(p, 50.3)
    x = np.array([here] * 5 + [there] * 5)
    for neighbours in (1, 2, 4):
        graph = knn(x, neighbours=neighbours)
        assert (graph.n_neighbours >= neighbours).all()
        assert not graph.W.diagonal().any()
        assert not graph.W.toarray()[:5, 5:].any()
    assert knn(x, neighbours=4) == clusters([5, 5])
    # All distances are zero: the bandwidth falls back to 1, and the weights to 1 exactly.
    assert knn(x, neighbours=4, kernel="gaussian") == clusters([5, 5])
    assert kernel(x, bandwidth=1.0) == clusters([5, 5])


def test_bandwidth_falls_back_to_one_among_duplicates():
    graph = knn([[0.0], [0.0], [0.0], [0.0], [0.5]], neighbours=1, kernel="gaussian")
    assert graph.degrees[4] == pytest.approx(math.exp(-0.125))


def test_too_far_for_a_float_is_no_edge():
    graph = knn([[0.0], [1.0], [2.0], [1e6]], neighbours=1, kernel="gaussian", bandwidth=1.0)
    assert graph.isolated.tolist() == [False, False, False, True]


def test_one_agent_has_no_neighbours():
    assert knn([[1.0, 2.0]]) == empty(1)
    assert kernel([[1.0, 2.0]], bandwidth=1.0) == empty(1)
    assert angles([[1.0, 2.0]]) == empty(1)


@pytest.mark.parametrize("p", [2, 30])
@pytest.mark.parametrize("cut", [0.3, 1e-3, 1e-200])
def test_kernel_against_all_distances(p, cut):
    x = cloud(p=p) / math.sqrt(p)
    weights = np.exp(-(dense_distances(x) ** 2) / (2 * 0.4**2))
    np.fill_diagonal(weights, 0.0)
    weights[weights < cut] = 0.0
    found = kernel(x, bandwidth=0.4, cut=cut).W.toarray()
    assert np.array_equal(found > 0, weights > 0)
    np.testing.assert_allclose(found, weights, rtol=1e-10)


def test_a_weight_equal_to_the_cut_is_kept():
    border = math.exp(-0.5)
    assert kernel([[0.0], [1.0]], bandwidth=1.0, cut=border).n_edges == 1
    assert kernel([[0.0], [1.0]], bandwidth=1.0, cut=border * (1 + 1e-9)).n_edges == 0


@pytest.mark.parametrize("p", [2, 30])
@pytest.mark.parametrize(("gamma", "cut"), [(0.1, 1e-3), (0.5, 0.2), (2.0, 1e-6)])
def test_angles_against_the_arc_cosine(p, gamma, cut):
    x = cloud(p=p) * np.geomspace(1e-3, 1e3, 40)[:, None]
    weights = np.zeros((40, 40))
    for i, j in itertools.permutations(range(40), 2):
        cosine = x[i] @ x[j] / math.sqrt((x[i] @ x[i]) * (x[j] @ x[j]))
        weights[i, j] = math.exp((math.cos(math.acos(cosine)) - 1) / gamma)
    weights[weights < cut] = 0.0
    found = angles(x, gamma=gamma, cut=cut).W.toarray()
    assert found.any()
    assert np.array_equal(found > 0, weights > 0)
    np.testing.assert_allclose(found, weights, rtol=1e-9)


def test_angles_do_not_depend_on_lengths():
    x = cloud(n=10)
    lengths = 2.0 ** np.linspace(-900, 900, 10).round()[:, None]  # powers of two keep every digit
    assert angles(x * lengths, gamma=1.0) == angles(x, gamma=1.0)


@pytest.mark.parametrize("build", [knn, lambda x: kernel(x, 1.0), angles])
def test_builders_name_the_bad_input(build):
    x = cloud(n=12)
    x[7, 2] = np.nan
    with pytest.raises(ParameterError, match=r"(models|points): agent 7 has nan in column 2"):
        build(x)
    with pytest.raises(ParameterError, match=r"has shape \(12,\): expected \(agents, columns\)"):
        build(np.ones(12))
    with pytest.raises(ParameterError, match=r"has shape \(0, 3\)"):
        build(np.ones((0, 3)))
    with pytest.raises(ParameterError, match="must be an array of numbers"):
        build([["a", "b"]])


def test_from_networkx_follows_members_and_weights():
    friends = nx.Graph()
    friends.add_nodes_from(["dan", "cem", "bob", "ann"])
    friends.add_edge("ann", "bob", weight=2.5, loss_weight=0.5)
    friends.add_edge("bob", "cem")
    members = ["ann", "bob", "cem", "dan"]
    expected = np.zeros((4, 4))
    expected[0, 1] = expected[1, 0] = 2.5
    expected[1, 2] = expected[2, 1] = 1.0
    assert np.array_equal(from_networkx(friends, members).W.toarray(), expected)
    assert np.array_equal(from_networkx(friends).W.toarray(), expected[::-1, ::-1])
    assert from_networkx(friends, iter(members), weight="loss_weight").degrees.tolist() == [0.5, 1.5, 1.0, 0.0]


@pytest.mark.parametrize(
    ("graph", "members", "message"),
    [
        (nx.DiGraph([("a", "b")]), None, "directed"),
        (nx.MultiGraph([("a", "b"), ("a", "b")]), None, "multigraph"),
        (nx.Graph(), None, "no nodes"),
        (nx.Graph([("a", "b"), ("b", "b")]), None, "node 'b' has an edge to itself"),
        (nx.Graph([("a", "b")]), ["a"], "members misses node 'b'"),
        (nx.Graph([("a", "b")]), ["a", "b", "c"], "members names 'c', which is not a node"),
        (nx.Graph([("a", "b")]), ["a", "b", "a"], "members names 'a' more than once"),
        (nx.Graph([("a", "b", {"weight": -1.0})]), None, r"edge \('a', 'b'\) has weight = -1.0"),
        (nx.Graph([("a", "b", {"weight": "heavy"})]), None, r"edge \('a', 'b'\) has weight = 'heavy'"),
        (nx.Graph([("a", "b", {"weight": math.nan})]), None, r"edge \('a', 'b'\) has weight = nan"),
    ],
)
def test_no_networkx_graph_and_why(graph, members, message):
    with pytest.raises(GraphError, match=message):
        from_networkx(graph, members)


# -- many agents ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "degree", "graphs"), [(6, 2, 70), (5, 2, 12), (6, 4, 15)])
def test_random_regular_graphs_are_all_alike(n, degree, graphs):
    """Chi-square over all labelled graphs; error rate 1e-4 each. Without the walk, n = 6 and degree 2 fail."""
    random, counts = np.random.default_rng(n + degree), {}
    for _ in range(20 * graphs):
        graph = random_regular(n, degree, random)
        assert set(graph.n_neighbours) == {degree}
        counts[graph] = counts.get(graph, 0) + 1
    assert len(counts) <= graphs
    seen = np.concatenate((list(counts.values()), np.zeros(graphs - len(counts))))
    assert stats.chisquare(seen).pvalue > 1e-4


@pytest.mark.parametrize(("n", "degree"), [(2, 1), (50, 24), (51, 24), (50, 25), (101, 50), (101, 98), (20_000, 10)])
def test_random_regular_graphs_are_simple_at_every_density(n, degree):
    graph = random_regular(n, degree, seed=1)  # a graph that is not simple would have lost an edge
    assert set(graph.n_neighbours) == {degree}
    assert graph == Graph(graph.W)


def test_triangles_of_a_large_regular_graph():
    """(degree - 1)^3 / 6 of them on average, nearly Poisson: within 5 standard deviations, whatever n is."""
    expected = sum(np.trace((W @ W @ W).toarray()) / 6 for W in (random_regular(2_000, 6, k).W for k in range(10)))
    assert abs(expected - 10 * 125 / 6) < 5 * np.sqrt(10 * 125 / 6)


def test_graphs_made_without_a_second_look_are_the_same():
    random = np.random.default_rng(0)
    i, j = random.integers(300, size=(2, 2_000))
    i, j = i[i != j], j[i != j]
    weight = np.round(1.0 + np.abs(i - j) % 7 / 3, 3) * ((i + j) % 11 > 0)
    W = np.zeros((300, 300))
    W[i, j] = W[j, i] = weight
    graph, order = Graph.from_edges(300, i, j, weight), random.permutation(300)
    assert graph == Graph(W)
    assert np.array_equal(graph.degrees, Graph(W).degrees)
    assert graph.relabel(order) == Graph(W[np.ix_(order, order)])
    W[:50], W[:, :50] = 0.0, 0.0
    assert graph.without(np.arange(50)) == Graph(W)


def test_an_index_that_is_not_installed_says_what_to_do(monkeypatch):
    monkeypatch.setattr(nearest_module, "find_spec", lambda name: None)
    x = np.random.default_rng(0).normal(size=(100, 6))
    with pytest.raises(MissingExtra, match=r"pip install \"coterie\[index\]\"; or pass exact=True to knn"):
        knn(x, exact=False)
    assert knn(x, exact=True) == knn(x)
    monkeypatch.setattr(nearest_module, "EXACT_AGENTS", 99)
    with pytest.raises(MissingExtra, match="nearest of 100 agents with 6"):
        knn(x)
    assert knn(x[:, :5]).n == 100  # few dimensions have a tree


def test_candidates_are_put_in_order_and_completed():
    x = np.random.default_rng(1).normal(size=(60, 3))
    exact = nearest_module.nearest(x, 5, exact=True)
    everybody = np.tile(np.arange(60), (60, 1))
    assert np.array_equal(nearest_module._closest(x, everybody, 5, block=7), exact)
    everybody[3, 4:] = -1  # what an index says that has not found enough
    assert np.array_equal(nearest_module._closest(x, everybody, 5), exact)


@pytest.mark.slow
def test_the_index_finds_nearly_all():
    pytest.importorskip("pynndescent")
    x = np.random.default_rng(2).normal(size=(3_000, 10))
    x[:100] = x[0]  # more duplicates than it keeps neighbours
    found, exact = (nearest_module.nearest(x, 10, way, seed=0) for way in (False, True))
    assert np.mean([np.isin(a, b).mean() for a, b in zip(found[100:], exact[100:], strict=True)]) > 0.98
    assert not (found == np.arange(3_000)[:, None]).any()
    assert (x[found[:100]] == x[0]).all()
    assert np.array_equal(found, nearest_module.nearest(x, 10, False, seed=0))
