"""Figures. Each function returns a matplotlib Figure of its own, and leaves pyplot's state alone."""

from __future__ import annotations

import numpy as np
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
