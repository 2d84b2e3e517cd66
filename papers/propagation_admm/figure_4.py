"""Target models of collaborative linear classification, and who is connected to whom."""

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
    unconnected = np.triu(task.graph.W.toarray() == 0.0, 1)
    found: Row = {
        "any": angle[np.triu_indices(n, 1)].mean(),
        "connected": np.average(angle[i, j], weights=weight),
        "unconnected": angle[unconnected].mean(),
        "nearest": np.where(np.eye(n) > 0.0, np.inf, angle).min(axis=1).mean(),
    }
    if seed == 0:
        found |= {"targets": task.targets[:, :2], "i": i, "j": j, "weight": weight}
    return found


def numbers(rows: list[Row]) -> Mapping[str, Any]:
    names = ("any", "connected", "unconnected", "nearest")
    _, connected, unconnected, nearest = found = [values(rows, name) for name in names]
    return dict(zip(names, found, strict=True)) | {
        "unconnected - connected": unconnected - connected,
        "connected - nearest": connected - nearest,
    }


# fmt: off
CLAIMS = (
    Alike("mean angle of two agents, in degrees", "targets can be very different", "any", 90.0, 10.0, form=".1f",
          reason="With few agents, directions are not evenly spread.", note="Directions without any order have 90."),
    Ordered("mean angle of agents without an edge - of connected agents by weight, in degrees",
            "connected when the angle is small", "unconnected - connected", form=".1f", reason=NOT_CLEARLY,
            note="{unconnected:.0f} and {connected:.0f}."),
    Ordered("mean angle of connected agents by weight - of an agent and the nearest other, in degrees",
            "yet the angle is not negligible", "connected - nearest", form=".1f", reason=NOT_CLEARLY,
            note="{connected:.0f} and {nearest:.0f}."),
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
