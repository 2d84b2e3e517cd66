"""The graph learned on Moons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coterie import plots

from .._claims import Ordered
from .._experiment import Plan, Row, values, where
from .graph import beside, edges_of, graph_plan, stored
from .graph import graph_of as work

__all__ = ["CLAIMS", "MINUTES", "draw", "numbers", "plan", "work"]

MINUTES = 0.5


def plan(quick: bool) -> Plan:
    yield graph_plan("Moons", quick)


def numbers(rows: list[Row]) -> Mapping[str, Any]:
    inside, chance = values(rows, "inside"), values(rows, "chance")
    return {
        "inside": 100.0 * inside,
        "above chance": 100.0 * (inside - chance),
        "degree": -values(rows, "rank correlation"),
        "neighbours": -values(rows, "rank correlation, neighbours"),
    }


WHY = "It depends on the parameters, which the paper does not give."

# fmt: off
CLAIMS = (
    Ordered("weight inside the true clusters - share of such pairs, points", "clusters are approximately recovered",
            "above chance", form=".1f", note="{inside:.0f} % of the weight; the oracle's has 100 %."),
    Ordered("minus the rank correlation of confidence times loss with the degree",
            "high confidence and high loss: a small degree", "degree", form=".2f", reason=WHY),
    Ordered("minus the rank correlation of confidence times loss with the number of neighbours",
            "low confidence or low loss: more densely connected", "neighbours", form=".2f", reason=WHY),
)
# fmt: on


def draw(rows: list[Row]) -> Figure:
    row = where(rows, seed=0)[0]
    order = np.argsort(row["cluster"], kind="stable")
    matrices = plots.weights(stored(row, "oracle "), stored(row), order=order, titles=["oracle graph", "learned graph"])
    return beside(matrices, edges_of(row), 16.0)
