"""Rules that learn who collaborates with whom."""

from typing import TYPE_CHECKING

from .._lazy import lazy
from .learned import Learned
from .rule import GraphRule
from .sampling import SAMPLERS, Ideal, Shuffle, resolve_sampler

if TYPE_CHECKING:
    from .exact import exact_graph, exact_weights, graph_objective
else:  # what a peer has no use for
    __getattr__, __dir__ = lazy(__name__, {"exact": "exact_graph exact_weights graph_objective"})

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
