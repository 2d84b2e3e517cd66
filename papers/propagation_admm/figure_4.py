"""Target models of collaborative linear classification, and who is tied to whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from coterie.plots import GREY

from .._claims import Alike, Ordered
from .._experiment import Plan, Row, values, where
from .._figures import sheet
from .common import NOT_CLEARLY, classification

MINUTES = 0.1


def plan(quick: bool) -> Plan:
    yield [{"n": 30 if quick else 100, "seed": seed} for seed in range(3 if quick else 10)]


def work(n: int, seed: int) -> Row:
    task = classification(n, 2, seed)
    i, j, weight = task.graph.edges()
    unit = task.targets / np.linalg.norm(task.targets, axis=1, keepdims=True)
    angle = np.degrees(np.arccos(np.clip(unit @ unit.T, -1.0, 1.0)))
    untied = np.triu(task.graph.W.toarray() == 0.0, 1)
    found: Row = {
        "any": angle[np.triu_indices(n, 1)].mean(),
        "tied": np.average(angle[i, j], weights=weight),
        "untied": angle[untied].mean(),
        "nearest": np.where(np.eye(n) > 0.0, np.inf, angle).min(axis=1).mean(),
    }
    if seed == 0:
        found |= {"targets": task.targets[:, :2], "i": i, "j": j, "weight": weight}
    return found


def numbers(rows: list[Row]) -> Mapping[str, Any]:
    names = ("any", "tied", "untied", "nearest")
    _, tied, untied, nearest = found = [values(rows, name) for name in names]
    return dict(zip(names, found, strict=True)) | {"untied - tied": untied - tied, "tied - nearest": tied - nearest}


# fmt: off
CLAIMS = (
    Alike("mean angle of two agents, in degrees", "targets can be very different", "any", 90.0, 10.0, form=".1f",
          reason="With few agents, directions are not evenly spread.", note="Directions without any order have 90."),
    Ordered("mean angle of agents without an edge - of tied agents by weight, in degrees",
            "tied when the angle is small", "untied - tied", form=".1f", reason=NOT_CLEARLY,
            note="{untied:.0f} and {tied:.0f}."),
    Ordered("mean angle of tied agents by weight - of an agent and the nearest other, in degrees",
            "yet the angle is not negligible", "tied - nearest", form=".1f", reason=NOT_CLEARLY,
            note="{tied:.0f} and {nearest:.0f}."),
)
# fmt: on


def draw(rows: list[Row]) -> Figure:
    (row,) = where(rows, seed=0)
    targets, weight = np.array(row["targets"]), np.array(row["weight"])
    figure, [axes] = sheet(5.0, 5.0)
    edges = np.stack([targets[row["i"]], targets[row["j"]]], axis=1)
    axes.add_collection(
        LineCollection(list(edges), colors=[(0.5, 0.5, 0.5, 0.5 * float(w)) for w in weight], linewidths=0.7)
    )
    axes.scatter(targets[:, 0], targets[:, 1], s=18, c=np.arctan2(targets[:, 1], targets[:, 0]), cmap="hsv", zorder=2)
    axes.axhline(0.0, color=GREY, linewidth=0.5)
    axes.axvline(0.0, color=GREY, linewidth=0.5)
    axes.set_title("Target models of the agents, and their edges")
    axes.set_aspect("equal")
    return figure
