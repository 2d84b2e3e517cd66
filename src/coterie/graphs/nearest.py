"""The nearest other agents of each agent: exactly, or by an index made for many agents.

Seconds of CPU for 10 neighbours among 20,000 points (p = 20, ``benchmarks/nearest.py``): exactly 1.2, and four times
that for twice the agents; by the index 1.3, nearly in proportion, after 30 to compile it in each process. So the index
pays from some 110,000 agents on the first time, and then from 20,000: the default lies between. In few dimensions a
tree is exact and fast, 0.4 s (p = 2) to 4 s (p = 5) among 100,000. Single precision would not help the exact way:
scikit-learn takes products of float32 in double precision.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from ..errors import MissingExtra
from .graph import Floats, Ints

#: Up to so many agents, or in so few dimensions, the exact way is the default.
EXACT_AGENTS, EXACT_DIMENSIONS = 50_000, 5
#: Neighbours that the index keeps of each point at least: fewer make it miss more (.95 against .99 found, p = 20).
BREADTH = 30


def nearest(x: Floats, neighbours: int, exact: bool | None = None, seed: Any = 0) -> Ints:
    """The nearest others of each point, (n, neighbours), nearest first; `neighbours` is below n.

    Points that are equal are neighbours at distance zero. `exact` is None for the faster way.
    """
    if exact is None:
        exact = len(x) <= EXACT_AGENTS or x.shape[1] <= EXACT_DIMENSIONS
    # Around their mean: |x - y|^2 may be expanded, which loses digits far from zero.
    x = x - x.mean(axis=0)
    if exact or len(x) <= BREADTH + 1:
        from sklearn.neighbors import NearestNeighbors  # not above: it takes a second

        # Asked about no points in particular, scikit-learn leaves each point out of its own neighbours by
        # its index, so duplicates are safe.
        found: Ints = NearestNeighbors(n_neighbors=neighbours).fit(x).kneighbors(return_distance=False)
        return found
    return _by_index(x, neighbours, seed)


def _by_index(x: Floats, neighbours: int, seed: Any) -> Ints:
    """By nearest-neighbour descent; what it finds is put in order by exact distances."""
    if find_spec("pynndescent") is None:
        raise MissingExtra(
            f"the nearest of {len(x)} agents with {x.shape[1]} coefficients are found by an index, which needs "
            'pynndescent: pip install "coterie[index]"; or pass exact=True to knn, which takes some '
            f"{33 * (len(x) / 1e5) ** 2:.0f} seconds and needs nothing"
        )
    from pynndescent import NNDescent

    breadth = min(max(BREADTH, 2 * neighbours), len(x) - 1)
    state = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))
    # In one thread: with more of them, what it finds depends on how many they are.
    rough = NNDescent(x.astype(np.float32), n_neighbors=breadth, random_state=state, n_jobs=1, compressed=False)
    return _closest(x, rough.neighbor_graph[0].astype(np.int64), neighbours)


def _closest(x: Floats, candidates: Ints, neighbours: int, block: int = 1 << 12) -> Ints:
    """The nearest of each point's candidates, itself left out; where they do not suffice, of all points."""
    found = np.empty((len(x), neighbours), dtype=np.int64)
    for begin in range(0, len(x), block):
        rows = np.arange(begin, min(begin + block, len(x)))
        among = candidates[rows]
        square = np.square(x[among] - x[rows, None]).sum(axis=2)
        square[(among == rows[:, None]) | (among < 0)] = np.inf
        order = np.argsort(square, axis=1, kind="stable")[:, :neighbours]
        found[rows] = np.take_along_axis(among, order, axis=1)
        for k in np.flatnonzero(np.isinf(np.take_along_axis(square, order, axis=1)).any(axis=1)):
            all_squares = np.square(x - x[rows[k]]).sum(axis=1)
            all_squares[rows[k]] = np.inf
            found[rows[k]] = np.argsort(all_squares, kind="stable")[:neighbours]
    return found
