"""Generators of the papers' synthetic tasks; the same seed gives the same task."""

from .fields import FieldTask, field_estimation
from .linear import LinearTask, linear_classification
from .means import MeanTask, mean_estimation
from .moons import MoonsTask, clustered_moons, rotated_moons
from .related import RelatedTasks, related_tasks, synthetic1, synthetic2

__all__ = [
    "FieldTask",
    "LinearTask",
    "MeanTask",
    "MoonsTask",
    "RelatedTasks",
    "clustered_moons",
    "field_estimation",
    "linear_classification",
    "mean_estimation",
    "related_tasks",
    "rotated_moons",
    "synthetic1",
    "synthetic2",
]
