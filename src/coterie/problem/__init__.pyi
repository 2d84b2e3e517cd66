from .problem import Problem
from .sharded import ShardedProblem

__all__ = ["Problem", "ShardedProblem"]
