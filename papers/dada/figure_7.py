"""The graph learned on Moons100, and its sparsity against accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coterie.plots import GREY

from .._claims import Alike, Compared, Ordered
from .._experiment import Plan, Row, column, values, where
from .._figures import line, sheet
from .graph import beside, edges_of, graph_of, graph_plan
from .moons import CHOSEN, COLOUR_OF, LEARNED, LOCAL, PACE, fit, instance_of, neighbours, score_on

MINUTES = 1.0
SPARSITIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)


def plan(quick: bool) -> Plan:
    graphs_of = graph_plan("Moons100", quick)
    lams = (0.1, 10.0) if quick else SPARSITIES
    pieces = [piece | {"method": LEARNED, "drawn": True} for piece in graphs_of]
    varied = graphs_of[:2] if quick else graphs_of[:5]
    pieces += [piece | {"method": LEARNED, "drawn": False, "lam": lam} for piece in varied for lam in lams]
    local = CHOSEN["Moons100"][LOCAL]
    pieces += [piece | {"method": LOCAL, "drawn": False} | local for piece in varied]
    yield pieces


def work(task: str, method: str, drawn: bool, n: int, seed: int, wakes: int, beta: float, mu: float, lam: float) -> Row:
    """The graph, for its picture; or the accuracy and the neighbours at one lam."""
    if drawn:
        return graph_of(task, n, seed, wakes, beta, mu, lam)
    instance = instance_of(task, seed, n)
    found = fit(method, instance, beta, mu, lam, wakes, PACE[task], seed)
    return {
        "accuracy": score_on(found.problem, instance.test)(found.theta),
        "neighbours": neighbours(found.problem.graph),
    }


def numbers(rows: list[Row]) -> Mapping[str, Any]:
    drawn, varied = where(rows, drawn=True), where(rows, drawn=False, method=LEARNED)
    lams = sorted({row["lam"] for row in varied})
    near = [values(varied, "neighbours", lam=lam) for lam in lams]
    accuracy = [100.0 * values(varied, "accuracy", lam=lam) for lam in lams]
    top = max(range(len(lams)), key=lambda k: accuracy[k].mean())
    learned, oracle = values(drawn, "neighbours"), values(drawn, "oracle")
    return {
        "learned": learned, "oracle": oracle, "oracle - learned": oracle - learned,
        "low": lams[0], "high": lams[-1], "top": lams[top],
        "growth": near[-1] - near[0], "least growth": np.min([more - less for less, more in pairwise(near)], axis=0),
        "near": near[0], "above alone": accuracy[0] - 100.0 * values(rows, "accuracy", method=LOCAL),
        "denser": accuracy[top] - accuracy[0],
    }  # fmt: skip


# fmt: off
CLAIMS = (
    Compared("neighbours, learned graph", 42.64, "learned", 5.0, paper="42.64", form=".1f",
             reason="It depends on lam, mu and beta, which the paper does not give."),
    Compared("neighbours, oracle graph", 60.86, "oracle", 2.0, paper="60.86", form=".1f"),
    Ordered("neighbours, oracle - learned", "the learned graph is sparser", "oracle - learned", form=".1f"),
    Ordered("neighbours, lam = {high:g} - lam = {low:g}", "denser with lam", "growth", form=".1f"),
    Ordered("least growth of the neighbours from one lam to the next, of each instance", "denser with lam",
            "least growth", form=".2g",
            reason="Flat at both ends: hardly less than two or three edges of a user, and not more than all."),
    Alike(f"test accuracy, lam = {{low:g}} - {LOCAL}, points", "tends to that of Local-boost", "above alone", 0.0, 1.0,
          form=".1f", reason="The log of the degrees keeps edges at any lam, here {near:.1f}, which help."),
    Ordered("test accuracy, lam = {top:g} - lam = {low:g}, points", "denser graphs are sometimes better", "denser",
            form=".1f"),
)
# fmt: on


def draw(rows: list[Row]) -> Figure:
    figure, [axes] = sheet(6.4, 5.2)
    varied = where(rows, drawn=False, method=LEARNED)
    shown = [{"lam": row["lam"], "y": 100.0 * row["accuracy"], "k": row["neighbours"]} for row in varied]
    line(axes, shown, "lam", "y", f"{LEARNED}, test accuracy", COLOUR_OF[LEARNED], marker="o")
    level = 100.0 * np.mean(column(rows, "accuracy", method=LOCAL))
    axes.axhline(level, color=COLOUR_OF[LOCAL], linestyle="--", label=f"{LOCAL}, test accuracy")
    axes.set_xscale("log")
    axes.set_xlabel("λ")
    axes.set_ylabel("test accuracy (%)")
    axes.grid(alpha=0.3)
    other = axes.twinx()
    line(other, shown, "lam", "k", "neighbours", GREY, marker="s")
    other.set_ylabel("neighbours, on average")
    other.set_ylim(bottom=0.0)
    handles = [part for each in (axes, other) for part in each.get_legend_handles_labels()[0]]
    axes.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncol=3, fontsize="small", frameon=False
    )
    axes.set_title("(b) sparsity against accuracy")
    edges = edges_of(where(rows, drawn=True, seed=0)[0])
    edges.axes[0].set_title("(a) learned graph of Moons100")
    return beside(edges, figure, 13.5)
