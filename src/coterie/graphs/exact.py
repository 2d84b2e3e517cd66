"""The graph that minimises h over the weights of given pairs; see :mod:`coterie.core.wrap.graph_objective`.

In units of mu, and with v_k = 1/(d_k + delta), the dual of the problem has one unknown for each agent:

    g(v) = sum_k (1 + log v_k - delta v_k) - lam sum_{k,l} w_kl(v)^2,    w_kl(v) = max(0, v_k + v_l - z_kl) / (2 lam)

and the duality gap is sum_k (x_k - 1 - log x_k) with x_k = v_k (d_k + delta): zero at the solution
only, and near it half the sum of squares of the residuals x_k - 1. Sums over k, l are over the pairs that may be tied,
each counted once: all of them, or those of a few candidates of each agent, and then all of this is linear in n.
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

#: Newton steps before giving up.
STEPS = 500
#: Largest residual |v_k (d_k + delta) - 1| of a solution; the iteration goes on below it while it gains anything.
TOLERANCE = 1e-11
#: Weights below this part of the largest are rounding.
ROUNDING = 1e-12
#: A step leaves each v_k at least this part of itself.
KEEP = 0.05
#: Steps of up to so many agents come from a factorisation, those of more from conjugate gradients.
DENSE = 500


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
    """The best graph for given models: the minimiser of h over the weights of all pairs (DADA, Section 4).

    It needs all models in one place. It is a reference for the rules by which agents learn their edges on their own.

    Parameters
    ----------
    models : (K, p) array
        theta_k.
    losses : (K,) array
        L_k, of any sign.
    confidence : (K,) array, optional
        c_k >= 0; all 1 by default.
    mu : float
        Weight of the graph against the losses: both mu_1 and mu_2.
    lam : float
        The larger, the more edges, and the lighter.
    delta : float
        Smooths the logarithm at agents without edges.
    candidates : int or (K, any) array of int, optional
        Who may be tied to whom: the so many agents with the nearest models, or those in an agent's row, and whoever
        has the agent among its own. Time and memory then grow with the number of pairs. Default: all pairs, which is
        for a few thousand agents.
    seed : int
        Of the index that finds the nearest of many; see :func:`coterie.graphs.knn`.

    Returns
    -------
    Graph
        With no agent isolated, unless its edges cost too much.

    Raises
    ------
    ParameterError, DataError
        Naming what cannot be used, and the agent's number.

    Examples
    --------
    Two pairs of like-minded agents find each other:

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
    """The symmetric weights (K, K) that minimise h at given costs of edges, z_kl, of any sign."""
    mu, lam, delta = check_parameters(mu, lam, delta)
    z = _costs(cost) / mu
    i, j = np.triu_indices(len(z), k=1)
    weights = np.zeros_like(z)
    weights[i, j] = weights[j, i] = _minimise(_Pairs(len(z), i, j, z[i, j]), lam, delta)
    return weights


@dataclass(frozen=True)
class _Pairs:
    """The pairs that may be tied, each once, and what a unit of their weights costs, in units of mu."""

    n: int
    i: Ints
    j: Ints
    z: Floats

    def degrees(self, weights: Floats) -> Floats:
        """The sum of each agent's weights."""
        both = np.bincount(self.i, weights, self.n) + np.bincount(self.j, weights, self.n)
        return both.astype(np.float64, copy=False)  # of no pairs, they are integers

    def weights(self, v: Floats, low: Floats, lam: float) -> Floats:
        """w(v + low), to full relative accuracy: the sum of two agents' v is kept as a sum of two floats."""
        one, other = v[self.i], v[self.j]
        both = one + other
        rest = _rest(one, other, both) + (low[self.i] + low[self.j])
        return np.maximum(0.0, (both - self.z) + rest) / (2.0 * lam)


@one_thread()
def _minimise(pairs: _Pairs, lam: float, delta: float) -> Floats:
    """The weights of pairs that minimise h / mu.

    Damped Newton steps on the dual, on the active pairs of each step, until rounding is all that is left.
    """
    # v is the sum of two floats: where it nearly cancels with z, one alone cannot hold enough digits of the weights.
    v, low = _common_start(pairs, lam, delta), np.zeros(pairs.n)
    weights = pairs.weights(v, low, lam)
    residual = v * (pairs.degrees(weights) + delta) - 1.0
    best, answer, stale = np.inf, weights, 0
    for _ in range(STEPS):
        size = float(np.abs(residual).max())
        stale = 0 if size < 0.5 * best else stale + 1
        if size < best:
            best, answer = size, weights
        if size == 0.0 or (best <= TOLERANCE and stale > 2):
            break
        try:
            step = v * _relative_step(pairs, weights > 0, v, residual, lam)
        except LinAlgError:  # the identity drowns in the rest of the Hessian
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
    """The value h(w) of a graph (DADA, Section 4); :func:`exact_graph` minimises it."""
    mu, lam, delta = check_parameters(mu, lam, delta)
    theta, own = _agents(models, losses, confidence)
    if graph.n != len(theta):
        raise GraphError(f"the graph has {graph.n} agents, and models are given for {len(theta)}")
    i, j, weight = graph.edges()
    cost = edge_cost(own[i], own[j], squares(theta, i, j), mu)
    return float(cost @ weight) + regularizer(weight, graph.degrees, mu, lam, delta)


def _common_start(pairs: _Pairs, lam: float, delta: float) -> Floats:
    """The best v that is the same for all agents, roughly."""
    n = pairs.n
    above = 1.0 / delta  # there, no agent has a degree
    below = above
    while n / below - n * delta < 2.0 * np.maximum(0.0, 2.0 * below - pairs.z).sum() / (2.0 * lam):
        above, below = below, 0.25 * below
    return np.full(n, np.sqrt(below * above))


def _relative_step(pairs: _Pairs, active: np.ndarray, v: Floats, residual: Floats, lam: float) -> Floats:
    """Newton's step, divided by v: the Hessian is then the identity and a scaled signless Laplacian."""
    i, j = pairs.i[active], pairs.j[active]
    count = np.bincount(i, minlength=pairs.n) + np.bincount(j, minlength=pairs.n)
    diagonal, across = 1.0 + count * v * v / (2.0 * lam), v[i] * v[j] / (2.0 * lam)
    if pairs.n <= DENSE:
        hessian = np.diag(diagonal)
        hessian[j, i] = across
        hessian[i, j] = across
        return -cho_solve(cho_factor(hessian, lower=True, overwrite_a=True), residual)
    edges = sparse.coo_array((across, (i, j)), shape=(pairs.n, pairs.n)).tocsr()
    product = LinearOperator((pairs.n, pairs.n), lambda x: diagonal * x + edges @ x + edges.T @ x, dtype=np.float64)
    scale = LinearOperator((pairs.n, pairs.n), lambda x: x / diagonal, dtype=np.float64)
    # As exact as it pays: Newton's method squares the residual, and so its last steps are small ones.
    accuracy = min(0.1, float(np.abs(residual).max()))
    return -cg(product, residual, rtol=max(accuracy, 1e-12), atol=0.0, maxiter=1000, M=scale)[0]


def _line_search(
    pairs: _Pairs, v: Floats, low: Floats, step: Floats, weights: Floats, residual: Floats, lam: float, delta: float
) -> tuple[Floats, Floats, Floats]:
    """Go along a Newton step as far as v stays positive and g rises as it should; returns v, low and the weights."""
    rise = -float(residual @ (step / v))  # the slope of g along the step
    length = min(1.0, (1.0 - KEEP) / max(float((-step / v).max()), 1e-300))
    for _ in range(60):
        add = length * step + low
        moved = v + add
        rest = _rest(v, add, moved)
        new = pairs.weights(moved, rest, lam)
        # The difference of two values of g, term by term: the values themselves would cancel.
        logs, linear = np.log1p(length * step / v), delta * length * step
        gain = float((logs - linear).sum() - lam * ((new - weights) * (new + weights)).sum())
        # Where rounding hides the difference, the slope of g at the new point still tells.
        squares = float(weights @ weights + new @ new)
        size = float((np.abs(logs) + np.abs(linear)).sum() + 2.0 * lam * squares)
        slope = float(((1.0 / moved - delta - pairs.degrees(new)) * step).sum())
        if gain >= 1e-4 * length * rise or (gain >= -1e-14 * size and slope >= -0.5 * rise):
            break
        length *= 0.5
    return moved, rest, new


def _pairs(theta: Floats, candidates: Any, seed: Any) -> tuple[Ints, Ints]:
    """The pairs i < j that may be tied."""
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
    """What rounding took from total = a + b, exactly."""
    part = total - a
    return (a - (total - part)) + (b - part)


def _agents(models: Any, losses: Any, confidence: Any) -> tuple[Floats, Floats]:
    """The models, and c_k L_k of each agent."""
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
