"""Collaboration graphs: the frozen :class:`Graph`, and the ways to come by one.

From a shape: :func:`empty`, :func:`complete`, :func:`ring`, :func:`path`, :func:`star`, :func:`grid`,
:func:`erdos_renyi`, :func:`random_regular`, :func:`clusters`.

From the agents' models or positions: :func:`knn`, :func:`kernel`, :func:`angles`.

From elsewhere: ``Graph(W)``, ``Graph.from_edges`` and :func:`from_networkx`.
"""

from coterie.graphs.builders import angles, from_networkx, kernel, knn
from coterie.graphs.generators import (
    clusters,
    complete,
    empty,
    erdos_renyi,
    grid,
    path,
    random_regular,
    ring,
    star,
)
from coterie.graphs.graph import Graph

__all__ = [
    "Graph",
    "angles",
    "clusters",
    "complete",
    "empty",
    "erdos_renyi",
    "from_networkx",
    "grid",
    "kernel",
    "knn",
    "path",
    "random_regular",
    "ring",
    "star",
]
