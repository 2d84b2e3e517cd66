from .builders import angles, from_networkx, kernel, knn
from .directed import DirectedGraph, directed_exponential, directed_random, directed_ring, one_peer_exponential
from .exact import exact_graph
from .generators import (
    clusters,
    complete,
    empty,
    erdos_renyi,
    grid,
    matchings,
    path,
    random_regular,
    ring,
    sequence,
    star,
)
from .graph import Graph

__all__ = [
    "DirectedGraph",
    "Graph",
    "angles",
    "clusters",
    "complete",
    "directed_exponential",
    "directed_random",
    "directed_ring",
    "empty",
    "erdos_renyi",
    "exact_graph",
    "from_networkx",
    "grid",
    "kernel",
    "knn",
    "matchings",
    "one_peer_exponential",
    "path",
    "random_regular",
    "ring",
    "sequence",
    "star",
]
