"""The papers' objectives: problems, their exact solutions, and baselines."""

from .problem import Problem

__all__ = ["Problem"]
