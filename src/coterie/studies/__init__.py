"""Studies: a function run for every combination of settings and seeds, with tables, figures and evaluations."""

from ..comparison import Comparison
from ..evaluation import Evaluation, Evaluator
from .grid import study
from .results import Study

__all__ = ["Comparison", "Evaluation", "Evaluator", "Study", "study"]


def __dir__() -> list[str]:
    return sorted(__all__)
