"""Data to try things on: generators of the papers' synthetic tasks."""

from .synthetic import (
    LinearTask,
    MeanTask,
    MoonsTask,
    RelatedTasks,
    clustered_moons,
    linear_classification,
    mean_estimation,
    related_tasks,
)

__all__ = [
    "LinearTask",
    "MeanTask",
    "MoonsTask",
    "RelatedTasks",
    "clustered_moons",
    "linear_classification",
    "mean_estimation",
    "related_tasks",
]
