from .builders import angles, from_networkx, kernel, knn
from .exact import exact_graph
from .generators import clusters, complete, empty, erdos_renyi, grid, path, random_regular, ring, star
from .graph import Graph

__all__ = [
    "Graph",
    "angles",
    "clusters",
    "complete",
    "empty",
    "erdos_renyi",
    "exact_graph",
    "from_networkx",
    "grid",
    "kernel",
    "knn",
    "path",
    "random_regular",
    "ring",
    "star",
]
