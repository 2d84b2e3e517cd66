"""The graph that minimises the objective h over the weights; h is in :mod:`coterie.core.wrap.graph_objective`.

In units of mu, and with v_k = 1/(d_k + delta), the dual of the problem has one unknown for each agent:

    g(v) = sum_k (1 + log v_k - delta v_k) - lam sum_{k,l} w_kl(v)^2,    w_kl(v) = max(0, v_k + v_l - z_kl) / (2 lam)

and the duality gap is sum_k (x_k - 1 - log x_k) with x_k = v_k (d_k + delta): it is zero at the solution only, and near
the solution it is half the sum of squares of the residuals x_k - 1. Sums over k, l are over the candidate pairs, each
counted once: all pairs, or the pairs of a few candidates of each agent, for which time and memory are linear in n.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator, cg

from .._checks import floats, integer, integers, per_agent, points
from .._threads import one_thread
from ..core.wrap.graph_objective import Floats, check_parameters, edge_cost, regularizer
from ..errors import ConvergenceError, DataError, GraphError, ParameterError
from .builders import nearest, squares
from .graph import Graph, Ints

#: Largest number of Newton steps.
MAX_STEPS = 500
#: Largest residual |v_k (d_k + delta) - 1| of a solution; the iteration continues while the residual still decreases.
TOLERANCE = 1e-11
#: Weights below this fraction of the largest weight are rounding errors.
ROUNDING = 1e-12
#: A step reduces no v_k below this fraction of its value.
MIN_REMAINING_FRACTION = 0.05
#: Largest number of agents for which steps are computed by a factorisation; otherwise by conjugate gradients.
MAX_DENSE_AGENTS = 500


def exact_graph(
    models: Any,
    losses: Any,
    confidence: Any = None,
    mu: float = 1.0,
    lam: float = 1.0,
    delta: float = 1e-2,
    candidates: Any = None,
    seed: int = 0,
) -> Graph:
    """Return the best graph for given models: the minimiser of h over the weights of all pairs (DADA, Section 4).

    The function needs the models of all agents; it is the reference for rules by which agents learn their edges
    without a server.

    Parameters
    ----------
    models : (K, p) array
        theta_k.
    losses : (K,) array
        L_k, positive or negative.
    confidence : (K,) array, optional
        c_k >= 0. Default: all 1.
    mu : float
        Weight of the graph relative to the losses: both mu_1 and mu_2.
    lam : float
        The larger, the more edges, with smaller weights.
    delta : float
        Smooths the logarithm of the degree at degree zero.
    candidates : int or (K, any) array of int, optional
        Pairs that may have an edge: a number of agents with the nearest models of each agent, or an array whose row k
        holds the candidates of agent k; a pair is allowed if either agent is a candidate of the other. Time and memory
        grow with the number of pairs. Default: all pairs, for up to a few thousand agents.
    seed : int
        Seed of the index of nearest neighbours; see :func:`coterie.graphs.knn`.

    Returns
    -------
    Graph
        No agent is isolated, unless its edges cost too much.

    Raises
    ------
    ParameterError, DataError
        If an argument is invalid; the message names the argument and the agent's number.

    Examples
    --------
    Two pairs of agents with similar models:

    >>> graph = exact_graph([[0.0], [0.1], [5.0], [5.1]], losses=[0.0, 0.0, 0.0, 0.0])
    >>> graph
    Graph(n=4, edges=2, components=2, isolated=0)
    >>> graph.weight.round(3)
    array([0.994, 0.994, 0.994, 0.994])
    """
    mu, lam, delta = check_parameters(mu, lam, delta)
    theta, own = _agents(models, losses, confidence)
    i, j = _pairs(theta, candidates, seed)
    with np.errstate(over="ignore"):
        cost = edge_cost(own[i], own[j], squares(theta, i, j), mu)
    if not np.isfinite(cost).all():
        bad = np.isfinite(cost).argmin()
        raise DataError(f"the models or losses of agents number {i[bad]} and {j[bad]} are too large for a float")
    weights = _minimise(_Pairs(len(theta), i, j, cost / mu), lam, delta)
    kept = weights > ROUNDING * weights.max(initial=0.0)
    return Graph.from_edges(len(theta), i[kept], j[kept], weights[kept])


def exact_edge_weights(cost: Any, mu: float = 1.0, lam: float = 1.0, delta: float = 1e-2) -> Floats:
    """Return the symmetric weights (K, K) that minimise h at given costs of edges, z_kl, positive or negative."""
    mu, lam, delta = check_parameters(mu, lam, delta)
    z = _costs(cost) / mu
    i, j = np.triu_indices(len(z), k=1)
    weights = np.zeros_like(z)
    weights[i, j] = weights[j, i] = _minimise(_Pairs(len(z), i, j, z[i, j]), lam, delta)
    return weights


@dataclass(frozen=True)
class _Pairs:
    """The candidate pairs, each once, and the cost of a unit of their weight, in units of mu."""

    n: int
    i: Ints
    j: Ints
    z: Floats

    def degrees(self, weights: Floats) -> Floats:
        """Return the sum of each agent's weights."""
        both = np.bincount(self.i, weights, self.n) + np.bincount(self.j, weights, self.n)
        return both.astype(np.float64, copy=False)  # without pairs, bincount returns integers

    def weights(self, v: Floats, low: Floats, lam: float) -> Floats:
        """Return w(v + low) to full relative accuracy, with sums v_k + v_l stored as sums of two floats."""
        one, other = v[self.i], v[self.j]
        both = one + other
        rest = _rest(one, other, both) + (low[self.i] + low[self.j])
        return np.maximum(0.0, (both - self.z) + rest) / (2.0 * lam)


@one_thread()
def _minimise(pairs: _Pairs, lam: float, delta: float) -> Floats:
    """Return the weights of pairs that minimise h / mu.

    The method takes damped Newton steps on the dual, with the active pairs of each step, until only rounding errors
    are left.
    """
    # v is stored as a sum of two floats, because one float has too few digits where v nearly cancels with z.
    v, low = _common_start(pairs, lam, delta), np.zeros(pairs.n)
    weights = pairs.weights(v, low, lam)
    residual = v * (pairs.degrees(weights) + delta) - 1.0
    best, answer, stale = np.inf, weights, 0
    for _ in range(MAX_STEPS):
        size = float(np.abs(residual).max())
        stale = 0 if size < 0.5 * best else stale + 1
        if size < best:
            best, answer = size, weights
        if size == 0.0 or (best <= TOLERANCE and stale > 2):
            break
        try:
            step = v * _relative_step(pairs, weights > 0, v, residual, lam)
        except LinAlgError:  # the identity is lost to rounding in the Hessian
            break
        v, low, weights = _line_search(pairs, v, low, step, weights, residual, lam, delta)
        residual = v * (pairs.degrees(weights) + delta) - 1.0
    if best > TOLERANCE:
        raise ConvergenceError(
            f"the graph did not converge: the largest residual is {best:.1e}, at agent number "
            f"{int(np.abs(residual).argmax())}; do costs, mu, lam={lam} and delta={delta} differ by very many "
            "orders of magnitude?"
        )
    return answer


def graph_objective(
    graph: Graph,
    models: Any,
    losses: Any,
    confidence: Any = None,
    mu: float = 1.0,
    lam: float = 1.0,
    delta: float = 1e-2,
) -> float:
    """Return the value h(w) of a graph (DADA, Section 4), which :func:`exact_graph` minimises."""
    mu, lam, delta = check_parameters(mu, lam, delta)
    theta, own = _agents(models, losses, confidence)
    if graph.n != len(theta):
        raise GraphError(f"the graph has {graph.n} agents, and models are given for {len(theta)}")
    i, j, weight = graph.edges()
    cost = edge_cost(own[i], own[j], squares(theta, i, j), mu)
    return float(cost @ weight) + regularizer(weight, graph.degrees, mu, lam, delta)


def _common_start(pairs: _Pairs, lam: float, delta: float) -> Floats:
    """Return roughly the best v with equal entries for all agents."""
    n = pairs.n
    above = 1.0 / delta  # the optimal v of an agent without edges
    below = above
    while n / below - n * delta < 2.0 * np.maximum(0.0, 2.0 * below - pairs.z).sum() / (2.0 * lam):
        above, below = below, 0.25 * below
    return np.full(n, np.sqrt(below * above))


def _relative_step(pairs: _Pairs, active: np.ndarray, v: Floats, residual: Floats, lam: float) -> Floats:
    """Return Newton's step divided by v; the Hessian is then the identity plus a scaled signless Laplacian."""
    i, j = pairs.i[active], pairs.j[active]
    count = np.bincount(i, minlength=pairs.n) + np.bincount(j, minlength=pairs.n)
    diagonal, across = 1.0 + count * v * v / (2.0 * lam), v[i] * v[j] / (2.0 * lam)
    if pairs.n <= MAX_DENSE_AGENTS:
        hessian = np.diag(diagonal)
        hessian[j, i] = across
        hessian[i, j] = across
        return -cho_solve(cho_factor(hessian, lower=True, overwrite_a=True), residual)
    edges = sparse.coo_array((across, (i, j)), shape=(pairs.n, pairs.n)).tocsr()
    product = LinearOperator((pairs.n, pairs.n), lambda x: diagonal * x + edges @ x + edges.T @ x, dtype=np.float64)
    scale = LinearOperator((pairs.n, pairs.n), lambda x: x / diagonal, dtype=np.float64)
    # Newton's method squares the residual, so a step never needs a higher accuracy than the residual itself.
    accuracy = min(0.1, float(np.abs(residual).max()))
    return -cg(product, residual, rtol=max(accuracy, 1e-12), atol=0.0, maxiter=1000, M=scale)[0]


def _line_search(
    pairs: _Pairs, v: Floats, low: Floats, step: Floats, weights: Floats, residual: Floats, lam: float, delta: float
) -> tuple[Floats, Floats, Floats]:
    """Search along a Newton step for sufficient increase of g with v positive; return v, low and the weights."""
    rise = -float(residual @ (step / v))  # the slope of g along the step
    length = min(1.0, (1.0 - MIN_REMAINING_FRACTION) / max(float((-step / v).max()), 1e-300))
    for _ in range(60):
        add = length * step + low
        moved = v + add
        rest = _rest(v, add, moved)
        new = pairs.weights(moved, rest, lam)
        # The difference of two values of g, computed term by term to avoid cancellation.
        logs, linear = np.log1p(length * step / v), delta * length * step
        gain = float((logs - linear).sum() - lam * ((new - weights) * (new + weights)).sum())
        # If the difference is below rounding, the slope of g at the new point decides.
        squares = float(weights @ weights + new @ new)
        size = float((np.abs(logs) + np.abs(linear)).sum() + 2.0 * lam * squares)
        slope = float(((1.0 / moved - delta - pairs.degrees(new)) * step).sum())
        if gain >= 1e-4 * length * rise or (gain >= -1e-14 * size and slope >= -0.5 * rise):
            break
        length *= 0.5
    return moved, rest, new


def _pairs(theta: Floats, candidates: Any, seed: Any) -> tuple[Ints, Ints]:
    """Return the candidate pairs i < j."""
    n = len(theta)
    if candidates is None:
        return np.triu_indices(n, k=1)
    if isinstance(candidates, Integral):
        count = integer("candidates", candidates)
        if count >= n - 1:
            return np.triu_indices(n, k=1)
        among = nearest(theta, count, seed=seed)
    else:
        rows = f"a number of agents, or a row of agents' integers for each of the {n} agents"
        among = integers("candidates", candidates, (n, None), rows)
        if among.size and not (among.min() >= 0 and among.max() < n):
            raise ParameterError(f"candidates holds {among.min()} to {among.max()}: the agents are 0 to {n - 1}")
    i, j = np.repeat(np.arange(n), among.shape[1]), among.ravel()
    pair = np.unique(np.minimum(i, j)[i != j] * n + np.maximum(i, j)[i != j])
    return pair // n, pair % n


def _rest(a: Floats, b: Floats, total: Floats) -> Floats:
    """Return the exact rounding error of total = a + b."""
    part = total - a
    return (a - (total - part)) + (b - part)


def _agents(models: Any, losses: Any, confidence: Any) -> tuple[Floats, Floats]:
    """Return the models, and c_k L_k of each agent."""
    theta = points("models", models)
    loss = per_agent("losses", losses, len(theta))
    c = np.ones(len(theta)) if confidence is None else per_agent("confidence", confidence, len(theta), least=0)
    return theta, c * loss


def _costs(cost: Any) -> Floats:
    z = floats("cost", cost)
    if z.ndim != 2 or z.shape[0] != z.shape[1] or len(z) == 0:
        raise ParameterError(f"cost has shape {z.shape}: expected (K, K), with K at least 1")
    np.fill_diagonal(z, 0.0)
    bad = np.argwhere(~np.isfinite(z))
    if bad.size:
        raise ParameterError(f"cost[{bad[0][0]}, {bad[0][1]}] = {z[tuple(bad[0])]}: costs must be finite")
    bad = np.argwhere(np.abs(z - z.T) > 1e-12 * np.maximum(np.abs(z), np.abs(z.T)))
    if bad.size:
        i, j = bad[0]
        raise ParameterError(f"cost[{i}, {j}] = {z[i, j]} but cost[{j}, {i}] = {z[j, i]}: an edge has one cost")
    return np.maximum(z, z.T)
