"""Data to try things on: generators of the papers' synthetic tasks."""

from .synthetic import LinearTask, MeanTask, MoonsTask, clustered_moons, linear_classification, mean_estimation

__all__ = ["LinearTask", "MeanTask", "MoonsTask", "clustered_moons", "linear_classification", "mean_estimation"]
