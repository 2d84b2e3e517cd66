"""Data to try things on: generators of the papers' synthetic tasks."""

from .synthetic import LinearTask, linear_classification

__all__ = ["LinearTask", "linear_classification"]
