"""Moons: accuracy of all methods, and neighbours, against iterations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .._claims import Compared, Ordered
from .._experiment import Plan, Row, column, where
from .._figures import line, sheet
from .course import COURSE_CLAIMS, course_numbers, course_plan, draw_accuracies, legend_below, measured, of_each, tables
from .course import course as work
from .moons import COLOUR_OF, GLOBAL, GLOBAL_LINEAR, LEARNED, LINEAR, ORACLE

__all__ = ["CLAIMS", "MINUTES", "draw", "numbers", "plan", "tables", "work"]

MINUTES = 9.0


def plan(quick: bool) -> Plan:
    yield from course_plan("Moons", quick)


def numbers(rows: list[Row]) -> Mapping[Any, Any]:
    found = course_numbers(rows)
    found["oracle"] = found["test", ORACLE] - found["test", LEARNED]
    found["linear"] = found["test", LEARNED] - np.max([found["test", method] for method in LINEAR], axis=0)
    widest = [max(row["neighbours trace"]) for row in where(measured(rows), method=LEARNED)]
    found["sparser"] = of_each(rows, "oracle", LEARNED) - np.array(widest)
    noisy = where(rows, empty="random")
    found["noisy"] = [
        100.0 * max(column(noisy, "test", seed=seed, method=LEARNED))
        - 100.0 * max(column(noisy, "test", seed=seed, method=GLOBAL))
        for seed in sorted({row["seed"] for row in noisy})
    ]
    return found


# fmt: off
CLAIMS = (
    *COURSE_CLAIMS,
    Ordered(f"test accuracy, {ORACLE} - {LEARNED}, points", "higher", "oracle", form=".1f"),
    Ordered(f"test accuracy, {LEARNED} - the best linear one, points", "poor", "linear", form=".1f"),
    Compared(f"test accuracy of {GLOBAL_LINEAR}, %", 50.0, ("test", GLOBAL_LINEAR), 5.0, paper="about 50", form=".1f",
             reason="Clusters differ in size: a line that suits the larger ones is right more than half of the time."),
    Ordered("neighbours, oracle - most that were ever learned", "always sparser", "sparser", form=".1f",
            reason="For a while, early on, it has a few more; in the end it has fewer."),
    Ordered(f"test accuracy, {LEARNED} - {GLOBAL}, points, with random values on the empty axes", "higher", "noisy",
            form=".1f",
            reason="Erratum 19: this is the task of the text, not that of the figures, which have zeros there.",
            note="Both with the settings that are best on the test rows."),
)
# fmt: on


def draw(rows: list[Row]) -> Figure:
    figure, [train, test, edges] = sheet(12.5, 4.6, 1, 3)
    draw_accuracies(rows, "train", train)
    draw_accuracies(rows, "test", test)
    shown = [
        {"wakes": row["wakes trace"], "y": row["neighbours trace"]} for row in where(measured(rows), method=LEARNED)
    ]
    line(edges, shown, "wakes", "y", LEARNED, COLOUR_OF[LEARNED])
    edges.axhline(np.mean(of_each(rows, "oracle", ORACLE)), color=COLOUR_OF[ORACLE], label=ORACLE)
    edges.set_ylim(bottom=0.0)
    edges.set_xlabel("iterations")
    edges.set_ylabel("neighbours, on average")
    edges.xaxis.set_major_formatter("{x:,.0f}")
    edges.grid(alpha=0.3)
    legend_below(figure, train)
    return figure
