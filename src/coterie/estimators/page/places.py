"""The map of agents: their positions, their edges, and the nearest agents of each."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...graphs.builders import nearest
from ...graphs.layout import layout
from ...pooling.rows import Grouped, dense

#: Maximum number of edges that are drawn: the heaviest, in addition to the heaviest of each agent.
MAX_DRAWN_EDGES = 60_000
#: Number of nearest agents that are named.
MAX_NEAREST = 6
#: Maximum number of principal components in which nearest agents are searched.
MAX_DIRECTIONS = 12


class Places(NamedTuple):
    """A map of agents."""

    kind: str  # "graph", "correlations" or "models"
    xy: np.ndarray  # (n, 2)
    shares: list[float]  # of the variance, along each axis; empty for a graph
    edges: tuple[np.ndarray, np.ndarray, np.ndarray]
    near: np.ndarray  # (n, k) numbers of the nearest agents; -1 for none
    near_by: np.ndarray  # (n, k) weights of edges, correlations, or distances
    far: np.ndarray  # (n,) distance from the common model, in standard deviations of the population


def places(model: Any, rows: Grouped | None) -> Places:
    """Place agents by the graph if there are edges, by correlations of tasks if known, or else by their models."""
    n = len(model.agents_)
    Z = deviations(model, rows)
    far = np.sqrt(np.mean(Z**2, axis=1)) if Z.shape[1] else np.zeros(n)
    xy, shares, directions = _components(Z)
    none = (np.zeros(0, int), np.zeros(0, int), np.zeros(0))
    graph = model._models.graph
    if graph is not None and graph.n_edges:
        discs = np.full(n, 40.0) if n > 200 else np.full(n, 120.0)
        where = layout(graph, discs, 0, xy)
        return Places("graph", where, [], _heaviest(graph), *_by_edges(graph), far)
    if model._models.covariances:
        where, shares, related = _by_correlations(model._models.covariances)
        return Places("correlations", where, shares, none, *related, far)
    k = min(MAX_NEAREST, n - 1)
    if k < 1 or not directions.shape[1]:
        return Places("models", xy, shares, none, np.zeros((n, 0), int), np.zeros((n, 0)), far)
    near = nearest(np.ascontiguousarray(directions), k)
    apart = np.stack([np.sqrt(np.mean((Z[near[:, j]] - Z) ** 2, axis=1)) for j in range(k)], axis=1)
    order = np.argsort(apart, axis=1, kind="stable")
    near, apart = np.take_along_axis(near, order, 1), np.take_along_axis(apart, order, 1)
    return Places("models", xy, shares, none, near, apart, far)


def deviations(model: Any, rows: Grouped | None) -> np.ndarray:
    """Return deviations of agents' models, (n, any), in standard deviations of the population or of the models."""
    if model._models.parts:
        return np.hstack([part.deviations() for part in model._models.parts])
    inputs, (own, levels) = model._models.inputs, model._models.weights()
    if rows is not None and inputs.groups(model._columns.names) is not None:
        some = np.random.default_rng(0).permutation(len(rows.y))[:2000]
        X = dense(inputs.of(rows.X[some]))
        levels, own = levels + own @ X.mean(axis=0), own * X.std(axis=0)
    Z = np.concatenate([own[:-1], levels[:-1, :, None]], axis=2).reshape(len(own) - 1, -1)
    Z = Z - Z.mean(axis=0)
    return Z / (np.sqrt(np.mean(Z**2)) or 1.0)


def _components(Z: np.ndarray) -> tuple[np.ndarray, list[float], np.ndarray]:
    """Return positions by the first two principal components, their shares of the variance, and the components."""
    n, q = Z.shape
    middle = Z - Z.mean(axis=0) if n else Z
    gram = middle.T @ middle if q <= n else middle @ middle.T
    value, U = np.linalg.eigh(gram)
    order = np.argsort(value)[::-1][:MAX_DIRECTIONS]
    value, U = np.maximum(value[order], 0.0), U[:, order]
    scores = middle @ U if q <= n else U * np.sqrt(value)
    scores = scores[:, value > 1e-12 * max(value.max(initial=0.0), 1e-300)]
    if scores.size:  # the sign of a component is arbitrary: its largest score is made positive
        scores = scores * np.sign(np.take_along_axis(scores, np.abs(scores).argmax(axis=0)[None], axis=0))
    total = float(np.sum(middle**2)) or 1.0
    xy = np.zeros((n, 2))
    xy[:, : min(2, scores.shape[1])] = scores[:, :2]
    return xy, [float(v) / total for v in value[: min(2, scores.shape[1])]], scores


def _heaviest(graph: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    i, j, weight = graph.edges()
    if len(weight) <= MAX_DRAWN_EDGES:
        return i, j, weight
    keep = np.zeros(len(weight), bool)
    keep[np.argsort(-weight, kind="stable")[:MAX_DRAWN_EDGES]] = True
    for end in (i, j):  # and the heaviest edge of each agent
        order = np.lexsort((-weight, end))
        keep[order[np.unique(end[order], return_index=True)[1]]] = True
    return i[keep], j[keep], weight[keep]


def _by_edges(graph: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return for each agent the neighbours with the heaviest edges."""
    k = min(MAX_NEAREST, int(graph.n_neighbours.max(initial=0)))
    near, weight = np.full((graph.n, k), -1), np.zeros((graph.n, k))
    owner = np.repeat(np.arange(graph.n), np.diff(graph.start))
    order = np.lexsort((-graph.weight, owner))
    rank = np.arange(len(order)) - graph.start[owner]
    use = rank < k
    near[owner[use], rank[use]] = graph.peer[order][use]
    weight[owner[use], rank[use]] = graph.weight[order][use]
    return near, weight


def _by_correlations(covariances: list[Any]) -> tuple[np.ndarray, list[float], tuple[np.ndarray, np.ndarray]]:
    """Return positions whose inner products are the correlations, and for each agent the most correlated ones."""
    parts = []
    for covariance in covariances:
        Q, s, _ = covariance.factors
        scale = np.sqrt(np.maximum(covariance.diagonal(), 1e-300))
        parts.append(Q * np.sqrt(np.maximum(s, 0.0)) / scale[:, None])
    U = np.hstack(parts) / np.sqrt(len(parts))  # the mean of the classes' correlations
    n, k = len(U), min(MAX_NEAREST, len(U) - 1)
    near, by = np.zeros((n, k), int), np.zeros((n, k))
    for first in range(0, n, 1000):
        C = U[first : first + 1000] @ U.T
        own = np.arange(len(C))
        C[own, first + own] = 0.0
        near[first : first + 1000] = np.argsort(-np.abs(C), axis=1, kind="stable")[:, :k]
        by[first : first + 1000] = np.take_along_axis(C, near[first : first + 1000], axis=1)
    value, V = np.linalg.eigh(U.T @ U)
    order = np.argsort(value)[::-1][:2]
    xy = np.zeros((n, 2))
    xy[:, : len(order)] = U @ V[:, order]
    return xy, [float(v) for v in np.maximum(value[order], 0.0) / max(float(value.sum()), 1e-300)], (near, by)
