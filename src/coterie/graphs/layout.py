"""Positions of agents in a drawing of the graph."""

from __future__ import annotations

import networkx as nx
import numpy as np

from .graph import Graph

#: Largest number of agents for which all pairs repel each other; for more agents, random pairs are sampled.
MAX_ALL_PAIRS_AGENTS = 600


def layout(graph: Graph, sizes: np.ndarray, seed: int, start: np.ndarray | None = None) -> np.ndarray:
    """Return positions of the agents, (n, 2), from springs as strong as the edges.

    Components are placed side by side, and discs of the given `sizes` do not overlap. For many agents, springs begin at
    the positions `start`, if given, and discs may overlap.
    """
    if graph.n > MAX_ALL_PAIRS_AGENTS and start is not None:
        return _sampled_springs(graph, seed, start)
    places = np.zeros((graph.n, 2))
    # Springs have no natural scale: weights are divided by their mean.
    springs = Graph(graph.W / graph.weight.mean()).to_networkx() if graph.n_edges else nx.empty_graph(graph.n)
    groups = [np.flatnonzero(graph.components == k) for k in range(graph.n_components)]
    for agents in groups:
        if len(agents) > 1:
            found = nx.spring_layout(springs.subgraph(agents.tolist()), weight="weight", seed=seed)
            spots = np.array([found[k] for k in agents.tolist()])
            spots -= (spots.max(axis=0) + spots.min(axis=0)) / 2.0
            places[agents] = spots * np.sqrt(len(agents) / np.square(spots).sum(axis=1).max())
    centers = _packed(np.array([np.sqrt(len(agents)) + 0.5 * (len(agents) > 1) for agents in groups]))
    for agents, center in zip(groups, centers, strict=True):
        places[agents] += center
    if graph.n <= 1000:  # all pairs are compared
        for _ in range(60):
            # Sizes of discs are in points, on a page of about 380 points; positions have units of their own.
            radii = np.sqrt(sizes) / 2.0 * max(np.ptp(places, axis=0).max(), 1.0) / 380.0
            apart = places[:, None] - places
            distance = np.sqrt(np.square(apart).sum(axis=2)) + np.eye(graph.n)
            push = np.clip(1.1 * (radii[:, None] + radii) - distance, 0.0, None) * (1.0 - np.eye(graph.n))
            if push.max() <= 0.05 * radii.min():
                break
            places += 0.4 * (apart * (push / np.maximum(distance, 1e-9))[:, :, None]).sum(axis=1)
    return places


def _packed(radii: np.ndarray) -> np.ndarray:
    """Return centres of circles that do not overlap: the largest in the middle, the others close around it."""
    reach = 3.0 * np.sqrt(np.square(radii).sum())
    step = radii.min() / 2.0
    k = np.arange(int((reach / step) ** 2))
    spiral = (step * np.sqrt(k) * np.exp(2.4j * k)).astype(np.complex128)  # about the golden angle, to cover evenly
    clear = np.full(len(k), np.inf)
    centers = np.zeros((len(radii), 2))
    for circle in np.argsort(-radii, kind="stable"):
        free = clear >= radii[circle]
        at = spiral[free.argmax() if free.any() else clear.argmax()]
        centers[circle] = at.real, at.imag
        clear = np.minimum(clear, np.abs(spiral - at) - radii[circle])
    return centers


def _sampled_springs(graph: Graph, seed: int, start: np.ndarray, steps: int = 120, others: int = 8) -> np.ndarray:
    """Return positions from attraction along edges and repulsion from random agents, in time linear in the edges."""
    random, n = np.random.default_rng(seed), graph.n
    i, j, weight = graph.edges()
    strength = np.sqrt(weight / weight.max())
    degree = np.maximum(np.bincount(i, strength, n) + np.bincount(j, strength, n), 1e-9)
    spread = np.maximum(start.std(axis=0), 1e-9)
    # In units of about the distance between neighbouring agents.
    places = (start - start.mean(axis=0)) / spread * np.sqrt(n) / 4.0 + 0.01 * random.normal(size=(n, 2))
    for step in range(steps):
        reach = 0.1 * np.sqrt(n) * (1.0 - step / steps) + 0.1
        apart = places[j] - places[i]
        pull = np.zeros((n, 2))
        for axis in range(2):
            along = strength * apart[:, axis]
            pull[:, axis] = np.bincount(i, along, n) - np.bincount(j, along, n)
        push = np.zeros((n, 2))
        for _ in range(others):
            away = places - places[random.integers(n, size=n)]
            square = np.sum(away**2, axis=1, keepdims=True)
            push += away / (square + 0.3)
        move = pull / degree[:, None] + push * (n / others) ** 0.5 / 6.0
        length = np.maximum(np.sqrt(np.sum(move**2, axis=1, keepdims=True)), 1e-9)
        places = places + move * np.minimum(1.0, reach / length) * 0.6
    return places
