from .cluster import Cluster
from .conditions import Conditions
from .run import Run
from .shards import ShardedProblem
from .simulator import simulate

__all__ = ["Cluster", "Conditions", "Run", "ShardedProblem", "simulate"]
