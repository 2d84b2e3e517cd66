"""The graph of Dada-Learned, and its pictures (DADA, Figures 2 and 7)."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from coterie import plots
from coterie.graphs import Graph

from .._experiment import Row
from .._figures import sheet
from .moons import CHOSEN, LEARNED, PACE, WAKES, fit, instance_of, neighbours


def graph_plan(task: str, quick: bool) -> list[dict[str, Any]]:
    settings = {"task": task, "n": 40 if quick else 100, "wakes": WAKES // (5 if quick else 1), **CHOSEN[task][LEARNED]}
    return [settings | {"seed": seed} for seed in range(3 if quick else 20)]


def graph_of(task: str, n: int, seed: int, wakes: int, beta: float, mu: float, lam: float) -> Row:
    """The graph of Dada-Learned, and what it says of the users. The graph itself, of the first instance only."""
    instance = instance_of(task, seed, n)
    found = fit(LEARNED, instance, beta, mu, lam, wakes, PACE[task], seed)
    graph, losses = found.problem.graph, found.problem.losses(found.theta)
    i, j, weight = graph.edges()
    same = instance.cluster[:, None] == instance.cluster
    cost = found.problem.loss_weight * losses
    row: Row = {
        "inside": weight[same[i, j]].sum() / weight.sum(),
        "chance": same[np.triu_indices(n, 1)].mean(),
        "neighbours": neighbours(graph),
        "oracle": neighbours(instance.graph),
        "rank correlation": spearmanr(cost, graph.degrees).statistic,
        "rank correlation, neighbours": spearmanr(cost, graph.n_neighbours).statistic,
    }
    if seed == 0:
        a, b, oracle = instance.graph.edges()
        row |= {"i": i, "j": j, "weight": weight, "oracle i": a, "oracle j": b, "oracle weight": oracle}
        row |= {"losses": losses, "confidence": found.problem.loss_weight, "angles": instance.angles}
        row["cluster"] = instance.cluster
    return row


def stored(row: Row, prefix: str = "") -> Graph:
    return Graph.from_edges(row["n"], row[f"{prefix}i"], row[f"{prefix}j"], row[f"{prefix}weight"])


def edges_of(row: Row) -> Figure:
    return plots.edges(
        stored(row), row["confidence"], row["losses"], labels=[f"{a:.0f}" for a in np.mod(row["angles"], 360.0)]
    )


def beside(matrices: Figure, edges: Figure, width: float) -> Figure:
    """Two figures of the library side by side, as pictures."""
    pictures = [_picture(matrices), _picture(edges)]
    ratios = [picture.shape[1] / picture.shape[0] for picture in pictures]
    figure, panels = sheet(width, 6.0, 1, 2, width_ratios=ratios)
    for axes, picture in zip(panels, pictures, strict=True):
        axes.imshow(picture, interpolation="lanczos")
        axes.set_axis_off()
    return figure


def _picture(figure: Figure) -> np.ndarray:
    figure.set_dpi(200)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())
