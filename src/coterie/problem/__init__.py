"""The papers' objectives: problems, their exact solutions, and baselines."""

from .problem import Problem, resolve_loss

__all__ = ["Problem", "resolve_loss"]
