"""Figures. Each function returns a matplotlib Figure of its own, and leaves pyplot's state alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .results import Run

BLUE, RED, GREY = "#2f6db5", "#c8442e", "#8a8a8a"


def convergence(run: Run, optimum: float | None = None) -> Figure:
    """The objective against what it cost to send.

    Parameters
    ----------
    run : Run
        Made with ``every``, so that its trace has several rows.
    optimum : float, optional
        The exact optimum: what is drawn is then the distance to it, on a logarithmic scale.

    Returns
    -------
    Figure

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2))
    >>> figure = convergence(ct.simulate(problem, "cd", wakes=20, every=5), problem.value(problem.solve()))
    >>> figure.axes[0].get_xlabel()
    'vectors sent'
    """
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.add_subplot()
    if optimum is None:
        axes.plot(run.trace["vectors"], run.trace["value"], color=BLUE)
        axes.set_ylabel("objective")
    else:
        gap = (run.trace["value"] - optimum) / abs(optimum)
        axes.semilogy(run.trace["vectors"], np.maximum(gap, 1e-16), color=BLUE)
        axes.set_ylabel("relative distance to the optimum")
    axes.set_xlabel("vectors sent")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(f"{type(run.method).__name__}, {run.problem.n} agents")
    axes.grid(alpha=0.3)
    return figure


def gains(
    rows: np.ndarray, before: np.ndarray, after: np.ndarray, score: str = "test accuracy", title: str = ""
) -> Figure:
    """What each agent gained, against how much data it has.

    Parameters
    ----------
    rows : (n,) ndarray
        Training rows of each agent.
    before, after : (n,) ndarray
        Scores of the models trained alone, and together.
    score : str
        What they measure.
    title : str

    Returns
    -------
    Figure

    Examples
    --------
    >>> import numpy as np
    >>> figure = gains(np.array([3, 50]), np.array([0.6, 0.9]), np.array([0.8, 0.92]))
    >>> figure.axes[0].get_ylabel()
    'test accuracy'
    """
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.vlines(rows, before, after, color=np.where(np.asarray(after) >= before, BLUE, RED), alpha=0.35)
    axes.scatter(rows, before, s=14, color=GREY, label="alone")
    axes.scatter(rows, after, s=14, color=BLUE, label="together")
    axes.set_xlabel("training rows of the agent")
    axes.set_ylabel(score)
    axes.set_title(title)
    axes.legend()
    axes.grid(alpha=0.3)
    return figure


def comparison(
    table: pd.DataFrame, unit: str, optimum: Mapping[str, float], score: str | None = None, gap: bool = False
) -> Figure:
    """Objective, and a score on test rows, of several methods against cost.

    Parameters
    ----------
    table : DataFrame
        As in :class:`coterie.Comparison`; several seeds are drawn as their mean, with a band from the least to the
        most.
    unit : str
        The axis of cost: "wakes", "vectors" or "bytes".
    optimum : mapping
        Numbers of the exact optimum, drawn as dashed lines.
    score : str, optional
        A column for a second panel.
    gap : bool
        The relative distance to the optimum, on a logarithmic scale, in place of the objective.

    Returns
    -------
    Figure

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
    >>> result = ct.compare(["cd", "propagation"], problem, vectors=60)
    >>> len(comparison(result.table, "vectors", result.optimum).axes)
    1
    """
    panels = ["gap" if gap else "value"] + ([score] if score else [])
    figure = Figure(figsize=(6.4 * len(panels), 4.2), layout="constrained")
    for axes, column in zip(np.ravel(figure.subplots(1, len(panels))), panels, strict=True):
        for number, (label, rows) in enumerate(table.groupby("method", sort=False)):
            _course(axes, rows, unit, column, f"C{number}", str(label))
        if column in optimum:
            axes.axhline(optimum[column], color="black", linestyle="--", linewidth=1.0, label="exact optimum")
        if column == "gap":
            axes.set_yscale("log")
        axes.set_xlabel({"wakes": "wakes", "vectors": "vectors sent", "bytes": "bytes sent"}[unit])
        named = {"value": "objective", "gap": "relative distance to the optimum", "accuracy": "mean test accuracy"}
        axes.set_ylabel(named.get(column, f"mean test {column}"))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(alpha=0.3)
    figure.axes[0].legend()
    return figure


def _course(axes: Axes, rows: pd.DataFrame, unit: str, column: str, color: str, label: str) -> None:
    """One method: a curve, or a dotted line for a baseline, which costs nothing and does not move."""
    values = rows[column].clip(lower=1e-16) if column == "gap" else rows[column]
    points = rows.assign(shown=values).groupby("point")[[unit, "shown"]].agg(["mean", "min", "max"])
    if len(points) == 1:
        axes.axhline(points["shown", "mean"].iloc[0], color=color, linestyle=":", label=label)
        return
    axes.plot(points[unit, "mean"], points["shown", "mean"], color=color, label=label)
    axes.fill_between(
        points[unit, "mean"], points["shown", "min"], points["shown", "max"], color=color, alpha=0.15, lw=0
    )
