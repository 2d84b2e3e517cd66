"""Mean estimation on two moons: ground truth, solitary models, propagation without and with confidences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coterie import datasets
from coterie.plots import GREY

from .._claims import Ordered
from .._experiment import Plan, Row, values, where
from .._figures import sheet
from .common import NOT_CLEARLY, averages, smoothed

MINUTES = 0.1
#: The panels, in the paper's order.
PANELS = ("ground truth", "solitary", "without confidences", "with confidences")


def plan(quick: bool) -> Plan:
    yield [{"n": 60 if quick else 300, "seed": seed} for seed in range(5 if quick else 100)]


def work(n: int, seed: int) -> Row:
    task = datasets.mean_estimation(n=n, spread=1.0, seed=seed)
    alone = averages(task)
    models = [task.targets, alone, *(smoothed(task, alone, 0.99, confident).solve() for confident in (False, True))]
    found: Row = {
        "error": [task.error(theta) for theta in models],
        "right": [np.mean(m * task.targets > 0) for m in models],
    }
    if seed == 0:
        found |= {"place": task.auxiliary.round(3), "models": np.round([theta[:, 0] for theta in models], 3)}
    return found


def numbers(rows: list[Row]) -> Mapping[str, Any]:
    error, right = values(rows, "error").T, values(rows, "right").T
    found = {"right colour": 100.0 * (right[3] - right[2]), "gain": error[2] - error[3]}
    return found | dict(zip(PANELS, error, strict=True))


# fmt: off
CLAIMS = (
    Ordered("agents of the right colour, with confidences - without, in %",
            "confidences improve accuracy significantly", "right colour", form=".1f", reason=NOT_CLEARLY),
    Ordered("L2 error, without confidences - with", "confidences improve accuracy significantly", "gain", form=".2f",
            reason=NOT_CLEARLY,
            note="Solitary {solitary:.2f}, without {without confidences:.2f}, with {with confidences:.2f}."),
)
# fmt: on


def draw(rows: list[Row]) -> Figure:
    (row,) = where(rows, seed=0)
    place = np.array(row["place"])
    figure, panels = sheet(12.0, 3.4, 1, 4, sharex=True, sharey=True)
    for axes, letter, name, value, error in zip(panels, "abcd", PANELS, row["models"], row["error"], strict=True):
        dots = axes.scatter(place[:, 0], place[:, 1], c=value, cmap="RdBu", vmin=-2.0, vmax=2.0, s=16, edgecolors=GREY)
        dots.set_linewidth(0.3)
        axes.set_title(f"({letter}) {name}" + (f"\nL2 error {error:.2f}" if name != PANELS[0] else "\n"), fontsize=10)
        axes.set_aspect("equal")
        axes.set_xticks([])
        axes.set_yticks([])
    figure.colorbar(dots, ax=panels, shrink=0.7, label="model", extend="both")
    return figure
