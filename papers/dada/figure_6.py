"""Moons100: accuracy of all methods against iterations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .._claims import Ordered
from .._experiment import Plan, Row
from .._figures import sheet
from .course import COURSE_CLAIMS, course_numbers, course_plan, draw_accuracies, legend_below, tables
from .course import course as work
from .moons import LEARNED, LINEAR_LEARNED, LINEAR_ORACLE, ORACLE

__all__ = ["CLAIMS", "MINUTES", "draw", "numbers", "plan", "tables", "work"]

MINUTES = 5.0


def plan(quick: bool) -> Plan:
    yield from course_plan("Moons100", quick)


def numbers(rows: list[Row]) -> Mapping[Any, Any]:
    found = course_numbers(rows)
    linear = np.maximum(found["test", LINEAR_ORACLE], found["test", LINEAR_LEARNED])
    return found | {method: found["test", method] - linear for method in (ORACLE, LEARNED)}


CLAIMS = (
    *COURSE_CLAIMS,
    *(
        Ordered(f"test accuracy, {method} - the better Perso-lin, points", "higher", method, form=".1f")
        for method in (ORACLE, LEARNED)
    ),
)


def draw(rows: list[Row]) -> Figure:
    figure, [train, test] = sheet(9.5, 4.8, 1, 2)
    draw_accuracies(rows, "train", train)
    draw_accuracies(rows, "test", test)
    legend_below(figure, train)
    return figure
