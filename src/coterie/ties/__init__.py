"""Rules that learn who collaborates with whom."""

from .exact import exact_graph, exact_weights, graph_objective
from .learned import Learned
from .rule import GraphRule
from .sampling import SAMPLERS, Ideal, Shuffle, resolve_sampler

__all__ = [
    "SAMPLERS",
    "GraphRule",
    "Ideal",
    "Learned",
    "Shuffle",
    "exact_graph",
    "exact_weights",
    "graph_objective",
    "resolve_sampler",
]
