"""Many runs: a function for every combination of settings and seeds, tables and figures, and scores of every agent."""

from ..comparison import Comparison
from ..evaluation import Evaluation, Evaluator
from .grid import study
from .results import Study

__all__ = ["Comparison", "Evaluation", "Evaluator", "Study", "study"]
