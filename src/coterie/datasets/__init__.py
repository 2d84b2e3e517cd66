"""Datasets: generators of the papers' synthetic tasks, splits and shifts of given rows, and real datasets, three of
which are bundled.
"""

from . import splits
from .bundled import gapminder, grunfeld, radon
from .federated import read_converted, read_leaf, read_pfllib
from .real import (
    ACTIVITIES,
    RealTask,
    computer_buyers,
    human_activity,
    landmine,
    mnist_one_vs_all,
    parkinsons,
    school,
    school_pass,
    sentiment,
    vehicle_sensor,
)
from .sources import SOURCES, Source, raw
from .synthetic import (
    FieldTask,
    LinearTask,
    MeanTask,
    MoonsTask,
    RelatedTasks,
    clustered_moons,
    field_estimation,
    linear_classification,
    mean_estimation,
    related_tasks,
    rotated_moons,
    synthetic1,
    synthetic2,
)

__all__ = [
    "ACTIVITIES",
    "SOURCES",
    "FieldTask",
    "LinearTask",
    "MeanTask",
    "MoonsTask",
    "RealTask",
    "RelatedTasks",
    "Source",
    "clustered_moons",
    "computer_buyers",
    "field_estimation",
    "gapminder",
    "grunfeld",
    "human_activity",
    "landmine",
    "linear_classification",
    "mean_estimation",
    "mnist_one_vs_all",
    "parkinsons",
    "radon",
    "raw",
    "read_converted",
    "read_leaf",
    "read_pfllib",
    "related_tasks",
    "rotated_moons",
    "school",
    "school_pass",
    "sentiment",
    "splits",
    "synthetic1",
    "synthetic2",
    "vehicle_sensor",
]


def __dir__() -> list[str]:
    return sorted(__all__)
