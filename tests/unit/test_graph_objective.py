"""The objective of learned graphs, the two steps on a block, and the exact solution: docs/math.md, section 3."""

import numpy as np
import pytest

from coterie.core.compile import kernel
from coterie.core.wrap.graph_objective import (
    block,
    check_parameters,
    edge_cost,
    local_lipschitz,
    paper_lipschitz,
    proximal_step,
    regularizer,
)
from coterie.errors import ConvergenceError, DataError, GraphError, ParameterError
from coterie.graphs import Graph, exact
from coterie.graphs.exact import exact_edge_weights, exact_graph, graph_objective


@kernel
def _block(cost, others, own, mu, lam, delta, out):
    block(cost, others, own, mu, lam, delta, out)


@kernel
def _proximal(weight, cost, others, own, mu, lam, delta, local, out):
    kappa = len(cost)
    constant = local_lipschitz(others, own, mu, lam, delta, kappa) if local else paper_lipschitz(kappa, mu, lam, delta)
    proximal_step(weight, cost, others, own, mu, lam, delta, constant, out)
    return constant


def tame(rng):
    """A block with numbers of ordinary sizes: cost, others, own, mu, lam, delta."""
    kappa = rng.integers(1, 9)
    others = rng.exponential(size=kappa) * (rng.random(kappa) < 0.7)
    mu, lam, delta = 10 ** rng.uniform(-1, 1), 10 ** rng.uniform(-2, 1), 10 ** rng.uniform(-2, 0)
    return rng.normal(size=kappa) * 3, others, rng.exponential() * (rng.random() < 0.7), mu, lam, delta


def wild(rng):
    """A block with numbers that are many orders of magnitude apart; costs may be almost the same."""
    kappa = rng.integers(1, 9)
    cost = rng.choice([-1, 1, 1], kappa) * 10 ** rng.uniform(-6, 6, kappa)
    if rng.random() < 0.4:
        cost = cost[0] * (1 + 10 ** rng.uniform(-16, 0) * rng.normal(size=kappa))
    others = 10 ** rng.uniform(-8, 6, kappa) * (rng.random(kappa) < 0.7)
    own = 10 ** rng.uniform(-8, 6) * (rng.random() < 0.7)
    return cost, others, own, 10 ** rng.uniform(-3, 3), 10 ** rng.uniform(-6, 6), 10 ** rng.uniform(-8, 0)


def block_value(w, cost, others, own, mu, lam, delta):
    """The part of h that a block decides."""
    logs = np.log(own + delta + w.sum()) + np.log(others + delta + w).sum()
    return cost @ w + mu * (lam * w @ w - logs)


def violation(w, *terms):
    """How far the optimality conditions fail, relative to the terms of the gradient."""
    gradient, size = sum(terms), sum(np.abs(term) for term in terms)
    return np.max(np.where(w > 0, np.abs(gradient), np.maximum(0.0, -gradient)) / size, initial=0.0)


def graph_violation(w, z, mu, lam, delta):
    pairs = np.triu_indices(len(z), 1)
    pull = -mu / (w.sum(axis=1) + delta)
    return violation(w[pairs], z[pairs], 2 * mu * lam * w[pairs], pull[pairs[0]], pull[pairs[1]])


def h(w, z, mu, lam, delta):
    pairs = np.triu_indices(len(z), 1)
    return z[pairs] @ w[pairs] + regularizer(w[pairs], w.sum(axis=1), mu, lam, delta)


def costs(rng, k, scale=1.0, shift=0.0):
    z = np.triu(rng.normal(size=(k, k)) * scale + shift, 1)
    return z + z.T


# ---------------------------------------------------------------------------------------------------------- one block


@pytest.mark.parametrize("instance", [tame, wild])
def test_block_meets_the_optimality_conditions_to_rounding(instance):
    rng = np.random.default_rng(1)
    for _ in range(5_000):
        cost, others, own, mu, lam, delta = instance(rng)
        w = np.full(cost.size, np.nan)
        _block(cost, others, own, mu, lam, delta, w)
        assert np.all(np.isfinite(w) & (w >= 0))
        mine = np.full(cost.size, -mu / (own + delta + w.sum()))
        assert violation(w, cost, 2 * lam * mu * w, mine, -mu / (others + delta + w)) < 4e-15


@pytest.mark.compiled
@pytest.mark.parametrize("instance", [tame, wild])
def test_compiled_steps_are_the_python_steps_bit_for_bit(instance):
    rng = np.random.default_rng(3)
    for _ in range(200):
        args = instance(rng)
        compiled, plain = np.zeros((2, args[0].size))
        _block(*args, compiled)
        _block.python(*args, plain)
        assert compiled.tobytes() == plain.tobytes()
        for local in (True, False):
            one, two = np.zeros((2, plain.size))
            assert _proximal(plain, *args, local, one) == _proximal.python(plain, *args, local, two)
            assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize("local", [True, False])
def test_proximal_steps_never_increase_the_objective_and_end_at_the_block_solution(local):
    rng = np.random.default_rng(4)
    for _ in range(100):
        args = tame(rng)
        w, best = rng.exponential(size=args[0].size), np.zeros(args[0].size)
        block(*args, best)
        value = block_value(w, *args)
        for _ in range(50):
            _proximal(w, *args, local, w)  # out may be the block itself
            before, value = value, block_value(w, *args)
            assert value <= before + 1e-13 * (1 + abs(before))
        assert value >= block_value(best, *args) - 1e-12 * (1 + abs(value))
        fixed = np.zeros(w.size)
        constant = _proximal(best, *args, local, fixed)
        np.testing.assert_allclose(fixed, best, atol=1e-12 * (1 + np.abs(args[0]).max() / constant))


def test_local_constant_bounds_the_curvature_and_is_below_the_papers():
    rng = np.random.default_rng(5)
    for _ in range(100):
        _, others, own, mu, lam, delta = tame(rng)
        kappa = others.size
        local, paper = local_lipschitz(others, own, mu, lam, delta, kappa), paper_lipschitz(kappa, mu, lam, delta)
        w = rng.exponential(size=kappa) * rng.integers(0, 2)
        hessian = np.diag(1 / (others + delta + w) ** 2 + 2 * lam) + 1 / (own + delta + w.sum()) ** 2
        assert np.linalg.eigvalsh(mu * hessian)[-1] <= local * (1 + 1e-12)
        assert local <= paper * (1 + 1e-12)


# ---------------------------------------------------------------------------------------------------- the whole graph


def test_exact_edge_weights_meet_the_optimality_conditions():
    rng = np.random.default_rng(6)
    for _ in range(300):
        z = costs(rng, rng.integers(1, 15), 10 ** rng.uniform(-3, 3), rng.choice([-1, 0, 1]) * 10 ** rng.uniform(-3, 3))
        mu, lam, delta = 10 ** rng.uniform(-2, 2), 10 ** rng.uniform(-4, 4), 10 ** rng.uniform(-6, 0)
        w = exact_edge_weights(z, mu, lam, delta)
        assert np.array_equal(w, w.T)
        assert not w.diagonal().any()
        assert graph_violation(w, z, mu, lam, delta) < 1e-12


def test_sweeps_over_blocks_go_down_to_the_exact_graph():
    rng = np.random.default_rng(9)
    for kappa in (1, 4):
        k, mu, lam, delta = 8, 0.8, 0.5, 0.01
        z = costs(rng, k, 2.0)
        w, value = np.zeros((k, k)), h(np.zeros((k, k)), z, mu, lam, delta)
        for _ in range(3_000):
            agent = rng.integers(k)
            peers = rng.choice(np.delete(np.arange(k), agent), kappa, replace=False)
            now, out = w[agent, peers], np.zeros(kappa)
            degrees = w.sum(axis=1)
            _block(z[agent, peers], degrees[peers] - now, degrees[agent] - now.sum(), mu, lam, delta, out)
            w[agent, peers] = w[peers, agent] = out
            before, value = value, h(w, z, mu, lam, delta)
            assert value <= before + 1e-13 * (1 + abs(before))
        np.testing.assert_allclose(w, exact_edge_weights(z, mu, lam, delta), atol=1e-8)


def test_two_agents_have_a_closed_form():
    # 2 lam w + z = 2 / (w + delta), in units of mu
    z, mu, lam, delta = 3.0, 2.0, 0.5, 0.1
    w = exact_edge_weights([[0, z], [z, 0]], mu, lam, delta)[0, 1]
    assert (2 * lam * w + z / mu) * (w + delta) == pytest.approx(2.0, rel=1e-14)
    assert exact_edge_weights([[0, 50.0], [50.0, 0]], 1.0, lam, delta)[0, 1] == 0.0  # a unit costs more than 2 / delta


def test_scaling_and_order_of_agents():
    rng = np.random.default_rng(10)
    z, lam, delta = costs(rng, 12, 2.0), 0.3, 0.02
    w = exact_edge_weights(z, 1.0, lam, delta)
    # Costs and mu scale together; and with w = s w', h(w; z, lam, delta) is h(w'; s z, s^2 lam, delta / s) + constant.
    np.testing.assert_allclose(exact_edge_weights(7 * z, 7.0, lam, delta), w, atol=1e-13)
    np.testing.assert_allclose(5 * exact_edge_weights(5 * z, 1.0, 25 * lam, delta / 5), w, atol=1e-13)
    order = rng.permutation(12)
    np.testing.assert_allclose(exact_edge_weights(z[order][:, order], 1.0, lam, delta), w[order][:, order], atol=1e-13)


def test_equal_models_edge_everybody_to_everybody():
    for losses in (np.zeros(6), np.ones(6), -np.ones(6)):  # with the sign of Appendix C, the first two would be empty
        graph = exact_graph(np.ones((6, 3)), losses)
        assert graph.n_edges == 15
        np.testing.assert_allclose(graph.weight, graph.weight[0], rtol=1e-12)


def test_weights_go_to_like_minded_agents():
    rng = np.random.default_rng(11)
    models = np.repeat([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]], 5, axis=0) + 0.05 * rng.normal(size=(15, 2))
    graph = exact_graph(models, np.zeros(15))
    i, j, weight = graph.edges()
    same = i // 5 == j // 5
    assert weight[same].sum() > 100 * weight[~same].sum()
    # An agent that does badly has weaker edges, the more so the surer it is of its loss.
    one = exact_graph(models, np.eye(15)[0], np.ones(15)).degrees[0]
    two = exact_graph(models, np.eye(15)[0], np.full(15, 2.0)).degrees[0]
    assert graph.degrees[0] > one > two


def test_larger_lam_makes_more_and_lighter_edges():
    rng = np.random.default_rng(12)
    models, losses = rng.normal(size=(30, 4)), rng.normal(size=30)
    graphs = [exact_graph(models, losses, None, 1.0, lam, 0.01) for lam in 10.0 ** np.arange(-2, 4)]
    edges, max_weight = [graph.n_edges for graph in graphs], [graph.weight.max() for graph in graphs]
    assert edges == sorted(edges)
    assert edges[0] < 0.5 * edges[-1]
    assert max_weight == sorted(max_weight, reverse=True)


def test_objective_of_a_graph():
    rng = np.random.default_rng(13)
    models, losses, loss_weight = rng.normal(size=(10, 3)), rng.normal(size=10), rng.random(10)
    mu, lam, delta = 0.6, 0.4, 0.02
    graph = exact_graph(models, losses, loss_weight, mu, lam, delta)
    best = graph_objective(graph, models, losses, loss_weight, mu, lam, delta)
    # docs/math.md, section 3, as it stands there
    w = graph.W.toarray()
    squares = ((models[:, None] - models) ** 2).sum(axis=2)
    logs = lam * (np.triu(w) ** 2).sum() - np.log(graph.degrees + delta).sum()
    direct = graph.degrees @ (loss_weight * losses) + mu / 2 * (np.triu(w) * squares).sum() + mu * logs
    assert best == pytest.approx(direct, rel=1e-12)
    i, j, weight = graph.edges()
    for _ in range(50):
        other = Graph.from_edges(10, i, j, weight * np.exp(0.1 * rng.normal(size=weight.size)))
        assert graph_objective(other, models, losses, loss_weight, mu, lam, delta) > best
    np.testing.assert_array_equal(edge_cost(1.0, np.array([2.0, 3.0]), 4.0, 0.5), [4.0, 5.0])


def test_one_agent_and_many_agents():
    assert exact_graph([[1.0]], [0.0]) == Graph([[0.0]])
    rng = np.random.default_rng(14)
    k = 300
    z = costs(rng, k, 1.0, 2.0)
    assert graph_violation(exact_edge_weights(z), z, 1.0, 1.0, 0.01) < 1e-13


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ((0, 1, 1), "mu = 0: expected a positive finite number: the weights"),
        ((np.inf, 1, 1), "mu = inf: expected a positive finite number"),
        (("much", 1, 1), "mu = 'much': expected a positive finite number"),
        ((1, -1.0, 1), r"lam = -1.0: expected a positive finite number$"),
        ((1, 0.0, 1), "lam = 0.0: expected a positive finite number: without it the optimal weights are not unique"),
        (
            (1, 1, 0),
            "delta = 0: expected a positive .*: it keeps the logarithm smooth at an agent without edges; 0.01 or less",
        ),
        ((1, 1, np.nan), r"delta = nan: expected a positive finite number$"),
    ],
)
def test_refused_parameters(parameters, message):
    for door in (check_parameters, lambda *p: exact_edge_weights(np.zeros((2, 2)), *p)):
        with pytest.raises(ParameterError, match=message):
            door(*parameters)


THREE, NONE = np.zeros((3, 2)), np.zeros(3)


@pytest.mark.parametrize(
    ("error", "message", "given"),
    [
        (ParameterError, r"models has shape \(0, 2\): expected \(agents, columns\), one row", (np.zeros((0, 2)), [])),
        (ParameterError, "models: agent 1 has nan in column 0: expected finite", ([[0.0], [np.nan]], [0.0, 0.0])),
        (DataError, "agents number 0 and 1 are too large", ([[0.0], [1e200]], [0.0, 0.0])),
        (ParameterError, "models must be an array of numbers", ([["a"]], [0.0])),
        (ParameterError, r"losses must hold one number for each of the 3 agents; .* \(2,\)", (THREE, NONE[:2])),
        (ParameterError, "losses of agent number 2 is inf", (THREE, [0, 0, np.inf])),
        (
            ParameterError,
            r"confidence of agent number 0 is -1.0: it must be a finite number >= 0",
            (THREE, NONE, [-1, 1, 1]),
        ),
        (ParameterError, r"cost has shape \(2, 3\): expected \(K, K\)", (np.zeros((2, 3)),)),
        (ParameterError, r"cost\[0, 1\] = nan: costs must be finite", ([[0, np.nan], [0, 0]],)),
        (ParameterError, r"cost\[0, 1\] = 1.0 but cost\[1, 0\] = 2.0: an edge has one cost", ([[0, 1], [2, 0]],)),
        (GraphError, "the graph has 2 agents, and models are given for 3", (Graph([[0, 1], [1, 0]]), THREE, NONE)),
    ],
)
def test_refused_numbers(error, message, given):
    call = exact_edge_weights if len(given) == 1 else graph_objective if isinstance(given[0], Graph) else exact_graph
    with pytest.raises(error, match=message):
        call(*given)


def test_what_does_not_converge_says_so(monkeypatch):
    monkeypatch.setattr(exact, "MAX_STEPS", 1)
    with pytest.raises(ConvergenceError, match=r"the largest residual is .* at agent number \d"):
        exact_edge_weights(costs(np.random.default_rng(15), 6, 3.0))


# -- candidates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [40, 600])  # steps by factorisation, and by conjugate gradients
def test_all_pairs_as_candidates_give_the_graph_of_all_pairs(n):
    rng = np.random.default_rng(n)
    models, losses = rng.normal(size=(n, 4)), 0.3 * rng.normal(size=n)
    everybody = np.array([np.delete(np.arange(n), k) for k in range(n)])
    best = exact_graph(models, losses)
    for candidates in (n - 1, everybody):
        assert abs(exact_graph(models, losses, candidates=candidates).W - best.W).max() < 1e-9


@pytest.mark.parametrize("n", [100, 2_000])
def test_the_graph_over_candidates_is_optimal_among_them(n):
    """dh/dw = 0 where w > 0 and >= 0 elsewhere, over the pairs in which one is among the other's candidates."""
    rng = np.random.default_rng(n)
    models, losses, c = rng.normal(size=(n, 3)), 0.2 * rng.normal(size=n), rng.random(n)
    among = np.argsort(np.square(models[:, None] - models).sum(axis=2), axis=1)[:, 1:9]
    mu, lam, delta = 0.7, 2.0, 0.02
    graph = exact_graph(models, losses, c, mu, lam, delta, candidates=8)
    assert graph == exact_graph(models, losses, c, mu, lam, delta, candidates=among)
    may = np.zeros((n, n), dtype=bool)
    may[np.arange(n)[:, None], among] = True
    i, j = np.nonzero(np.triu(may | may.T))
    W, u = graph.W.toarray(), 1.0 / (graph.degrees + delta)
    assert W[i, j].sum() == pytest.approx(W.sum() / 2)  # no edge to anybody else
    cost = c[i] * losses[i] + c[j] * losses[j] + mu / 2 * np.square(models[i] - models[j]).sum(axis=1)
    slope = cost + mu * (2 * lam * W[i, j] - u[i] - u[j])
    assert np.abs(slope[W[i, j] > 0]).max() < 1e-9
    assert slope.min() > -1e-9
    assert 0 < (W[i, j] > 0).sum() < i.size


@pytest.mark.slow
def test_the_weight_inside_clusters_does_not_fall_with_their_number_of_agents():
    """Twenty overlapping clusters, whatever n is: more agents are more that are near."""
    shares = []
    for n in (300, 1_000, 10_000, 40_000):
        rng = np.random.default_rng(0)
        centres = rng.normal(size=(20, 5))
        label = rng.integers(20, size=n)
        graph = exact_graph(centres[label] + 0.5 * rng.normal(size=(n, 5)), np.zeros(n), candidates=30)
        i, j, weight = graph.edges()
        shares.append(weight[label[i] == label[j]].sum() / weight.sum())
    assert np.all(np.diff(shares) > -0.01)
    assert shares[-1] >= shares[0]


def test_candidates_that_are_no_agents_are_refused():
    models, losses = np.zeros((3, 1)), np.zeros(3)
    with pytest.raises(ParameterError, match="candidates holds 0 to 3: the agents are 0 to 2"):
        exact_graph(models, losses, candidates=[[1], [0], [3]])
    with pytest.raises(ParameterError, match=r"candidates has shape \(2, 1\)"):
        exact_graph(models, losses, candidates=[[1], [0]])
    with pytest.raises(ParameterError, match="candidates = 0"):
        exact_graph(models, losses, candidates=0)
