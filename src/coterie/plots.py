"""Figures. Each function returns a matplotlib Figure of its own, and leaves pyplot's state alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike
from scipy.cluster.hierarchy import leaves_list, linkage

from .errors import ParameterError
from .graphs import Graph
from .results import Run

BLUE, RED, GREY = "#2f6db5", "#c8442e", "#8a8a8a"

#: Axes of cost, and what is written along them.
UNITS = {"wakes": "wakes", "vectors": "vectors sent", "bytes": "bytes sent"}

#: Columns of traces whose names do not say it all.
COLUMNS = {"value": "objective", "gap": "relative distance to the optimum", "accuracy": "mean test accuracy"}


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
        axes.set_xlabel(UNITS[unit])
        axes.set_ylabel(COLUMNS.get(column, f"mean test {column}"))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(alpha=0.3)
    figure.axes[0].legend()
    return figure


def course(
    runs: Mapping[str, Run | Sequence[Run]],
    column: str,
    unit: str = "wakes",
    levels: Mapping[str, float] | None = None,
    label: str | None = None,
    xlabel: str | None = None,
    title: str = "",
) -> Figure:
    """One column of the traces of several runs, as it changes with what was spent.

    As in DADA, figure 1: accuracy, or the number of neighbours, against iterations; accuracy against bytes.

    Parameters
    ----------
    runs : mapping
        A :class:`coterie.Run` made with ``every``, or a list of such with different seeds, for each label. Of a list,
        the mean of the first observations, of the second ones, and so on is drawn, with a band from the least to the
        most. A run of one observation is a dotted line across.
    column : str
        Of the traces: "value", or the name of what was observed.
    unit : str
        The axis of cost: "wakes", "vectors" or "bytes"; bytes are on a logarithmic scale.
    levels : mapping, optional
        Numbers that do not depend on cost, such as baselines, by label: dashed lines.
    label : str, optional
        What the column measures. Default: its name.
    xlabel : str, optional
    title : str

    Returns
    -------
    Figure

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2))
    >>> runs = [ct.simulate(problem, "cd", wakes=20, every=5, seed=seed) for seed in range(3)]
    >>> figure = course({"descent": runs}, "value", unit="bytes", levels={"alone": 2.0})
    >>> figure.axes[0].get_xlabel(), figure.axes[0].get_xscale()
    ('bytes sent', 'log')
    """
    if unit not in UNITS:
        raise ParameterError(f"unit={unit!r} must be one of {', '.join(map(repr, UNITS))}")
    if not runs:
        raise ParameterError("runs is empty: there is nothing to draw")
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.add_subplot()
    if unit == "bytes":
        axes.set_xscale("log", nonpositive="mask")
    for number, (name, given) in enumerate(runs.items()):
        several = list(given) if isinstance(given, Sequence) else [given]
        if not several:
            raise ParameterError(f"runs[{name!r}] holds no runs")
        for run in several:
            if column not in run.trace:
                raise ParameterError(
                    f"runs[{name!r}]: its trace has no column {column!r}; there are {', '.join(run.trace)}"
                )
        rows = pd.concat([run.trace.assign(point=np.arange(len(run.trace))) for run in several])
        _course(axes, rows, unit, column, f"C{number}", name)
    for number, (name, level) in enumerate((levels or {}).items(), start=len(runs)):
        axes.axhline(level, color=f"C{number}", linestyle="--", linewidth=1.2, label=name)
    if unit == "bytes":
        low, high = axes.get_xlim()
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 100.0 * low else (1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(UNITS[unit] if xlabel is None else xlabel)
    axes.set_ylabel(COLUMNS.get(column, column) if label is None else label)
    axes.set_title(title)
    axes.legend()
    axes.grid(alpha=0.3)
    return figure


def ties(
    graph: Graph,
    confidence: ArrayLike | None = None,
    losses: ArrayLike | None = None,
    labels: Sequence[Any] | None = None,
    cluster: ArrayLike | None = None,
    seed: int = 0,
    title: str = "",
) -> Figure:
    """A graph, drawn so that strongly tied agents are close to each other, as in DADA, figure 2.

    Parameters
    ----------
    graph : Graph
        The darker an edge, the larger its weight. Agents that are not tied, even through others, are drawn apart.
    confidence : (n,) array_like, optional
        Nonnegative: the larger, the larger the agent's disc.
    losses : (n,) array_like, optional
        Of each agent's model on its own rows: green is small, red is large.
    labels : sequence of n, optional
        Written inside the discs.
    cluster : (n,) array_like, optional
        The group of each agent: the colour of its disc's rim, and of the disc itself if there are no losses.
    seed : int
        Of the layout.
    title : str

    Returns
    -------
    Figure

    Examples
    --------
    >>> import coterie as ct
    >>> figure = ties(ct.graphs.complete(4), confidence=[1, 2, 3, 4], losses=[0.1, 0.4, 0.2, 0.9], labels="abcd")
    >>> len(figure.axes[0].texts)
    4
    """
    n = graph.n
    trust = np.full(n, 0.4) if confidence is None else _per_agent("confidence", confidence, n, float)
    if (trust < 0).any():
        raise ParameterError(f"confidence[{np.argmax(trust < 0)}] = {trust[np.argmax(trust < 0)]} must not be negative")
    if confidence is not None:
        trust = trust / (trust.max() or 1.0)
    groups = None if cluster is None else _per_agent("cluster", cluster, n)
    names = None if labels is None else _per_agent("labels", list(labels), n, object)

    figure = Figure(figsize=(7.0, 6.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_axis_off()
    axes.set_title(title)
    sizes = (60.0 + 540.0 * trust) * min(1.0, 60.0 / n)
    places = _layout(graph, sizes, seed)
    axes.add_collection(_edges(graph, places))

    rims: Any = "black"
    fills: dict[str, Any] = {"c": [BLUE]}
    if groups is not None:
        found, number = np.unique(groups, return_inverse=True)
        palette = np.array([colormaps["tab10"](k % 10) for k in range(len(found))])
        rims, fills = palette[number], {"c": palette[number]}
        handles = [
            Line2D([], [], linestyle="", marker="o", markerfacecolor="none" if losses is not None else color,
                   markeredgecolor=color, markeredgewidth=2.0, label=str(name))
            for name, color in zip(found, palette, strict=True)
        ]  # fmt: skip
        if len(found) <= 12:
            axes.legend(handles=handles, title="cluster", loc="upper left", frameon=False)
    if losses is not None:
        fills = {"c": _per_agent("losses", losses, n, float), "cmap": "RdYlGn_r"}
    rim = 0.6 if groups is None or losses is None else 1.8
    discs = axes.scatter(
        places[:, 0], places[:, 1], s=sizes, edgecolors=rims, linewidths=rim, zorder=2, clip_on=False, **fills
    )
    if losses is not None:
        figure.colorbar(discs, ax=axes, label="local loss", shrink=0.7, pad=0.02)
    if names is not None:
        discs.update_scalarmappable()
        colors = np.broadcast_to(discs.get_facecolor(), (n, 4))
        for k in range(n):
            dark = colors[k, :3] @ (0.299, 0.587, 0.114) < 0.5
            font = float(np.clip(1.1 * np.sqrt(sizes[k]) / (1.0 + len(str(names[k]))), 3.5, 11.0))
            style: dict[str, Any] = {"ha": "center", "va": "center", "color": "white" if dark else "black"}
            axes.text(places[k, 0], places[k, 1], str(names[k]), fontsize=font, **style)
    axes.margins(0.06)
    return figure


def weights(*graphs: Graph, order: ArrayLike | None = None, titles: Sequence[str] | None = None) -> Figure:
    """Weight matrices side by side, as in DADA, figure 2: black is the largest weight of each.

    Parameters
    ----------
    *graphs : Graph
    order : (n,) int array_like, optional
        The agents in the order in which to show them, such as ``np.argsort(cluster)``. Default: as numbered.
    titles : sequence of str, optional
        One for each graph.

    Returns
    -------
    Figure

    Examples
    --------
    >>> import coterie as ct
    >>> figure = weights(ct.graphs.complete(4), ct.graphs.empty(4), titles=["start", "learned"])
    >>> [axes.get_title() for axes in figure.axes[:2]]
    ['start', 'learned']
    """
    if not graphs:
        raise ParameterError("weights needs at least one graph")
    if titles is not None and len(titles) != len(graphs):
        raise ParameterError(f"titles has {len(titles)} entries for {len(graphs)} graphs")
    figure = Figure(figsize=(3.9 * len(graphs) + 0.9, 4.1), layout="constrained")
    panels = np.ravel(figure.subplots(1, len(graphs)))
    for axes, graph in zip(panels, graphs, strict=True):
        W = (graph if order is None else graph.relabel(order)).W.toarray()
        image = axes.imshow(W / (W.max() or 1.0), cmap="Greys", vmin=0.0, vmax=1.0, interpolation="nearest")
        axes.set_xlabel("agent")
        axes.set_ylabel("agent")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.yaxis.get_major_locator().set_params(integer=True)
    for axes, title in zip(panels, titles or [], strict=False):
        axes.set_title(title)
    figure.colorbar(image, ax=list(panels), label="weight, relative to the largest", shrink=0.8, pad=0.02)
    return figure


def correlations(
    matrix: ArrayLike,
    names: Sequence[Any] | None = None,
    ax: Axes | None = None,
    order: str | ArrayLike | None = None,
    title: str = "",
) -> Figure:
    """Correlations of tasks, as in DMTRL, figure 2: red is positive, blue is negative, white is none.

    Parameters
    ----------
    matrix : (n, n) array_like
        Symmetric, from -1 to 1.
    names : sequence of n, optional
        Of the tasks, written along the axes if there are at most 40. Default: their numbers.
    ax : Axes, optional
        Where to draw, such as beside other figures. Default: a figure of its own.
    order : "similar" or (n,) int array_like, optional
        The tasks in the order in which to show them. "similar" puts tasks side by side that know much of each other,
        by hierarchical clustering, whether their correlation is positive or negative. Default: as numbered.
    title : str

    Returns
    -------
    Figure
        That of `ax`, if given.

    Examples
    --------
    >>> matrix = [[1.0, 0.1, -0.9], [0.1, 1.0, 0.0], [-0.9, 0.0, 1.0]]
    >>> figure = correlations(matrix, names=["north", "east", "south"], order=[1, 0, 2])
    >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
    ['east', 'north', 'south']
    """
    C = _correlations(matrix)
    n = len(C)
    labels = list(range(n) if names is None else names)
    if len(labels) != n:
        raise ParameterError(f"names has {len(labels)} entries for {n} tasks")
    shown = np.arange(n)
    if isinstance(order, str):
        if order != "similar":
            raise ParameterError(f"order={order!r} must be 'similar', the tasks in their order, or None")
        shown = _similar(C)
    elif order is not None:
        shown = np.asarray(order)
        if shown.shape != (n,) or shown.dtype.kind not in "iu" or not np.array_equal(np.sort(shown), np.arange(n)):
            raise ParameterError(f"order={order!r} must hold each of 0..{n - 1} once")
    axes = Figure(figsize=(5.6, 4.8), layout="constrained").add_subplot() if ax is None else ax
    image = axes.imshow(C[shown][:, shown], cmap="RdBu_r", vmin=-1.0, vmax=1.0, interpolation="nearest")
    axes.set_xlabel("task")
    axes.set_ylabel("task")
    axes.set_title(title)
    if n <= 40:
        texts, size = [str(labels[k]) for k in shown], 9.0 if n <= 20 else 6.0
        upright = max(map(len, texts)) * n > 40  # side by side, they would run into each other
        axes.set_xticks(np.arange(n), texts, fontsize=size, rotation=90.0 if upright else 0.0)
        axes.set_yticks(np.arange(n), texts, fontsize=size)
    elif order is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    else:  # the place of a task is not its number
        axes.set_xticks([])
        axes.set_yticks([])
    figure = axes.figure
    figure.colorbar(image, ax=axes, label="correlation", shrink=0.8, pad=0.02)
    return figure if isinstance(figure, Figure) else figure.figure


def _per_agent(name: str, values: Any, n: int, kind: Any = None) -> np.ndarray:
    """One value for each agent, as an array."""
    if kind is object:
        array = np.empty(len(values), dtype=object)
        array[:] = values
    else:
        array = np.asarray(values, dtype=kind)
    if array.shape != (n,):
        raise ParameterError(f"{name} has shape {array.shape}: one for each of the {n} agents is needed")
    if kind is float and not np.isfinite(array).all():
        k = int(np.argmin(np.isfinite(array)))
        raise ParameterError(f"{name}[{k}] = {array[k]} is not finite")
    return array


def _correlations(matrix: ArrayLike) -> np.ndarray:
    """A checked correlation matrix."""
    try:
        C = np.asarray(matrix, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"matrix is not a regular array of numbers: {error}") from error
    if C.ndim != 2 or C.shape[0] != C.shape[1] or not C.size:
        raise ParameterError(f"matrix has shape {C.shape}: it must be square, (n, n)")
    for bad, must in (
        (~np.isfinite(C), "must be finite"),
        (np.abs(C) > 1.0 + 1e-8, "must lie between -1 and 1; of covariances, divide by the standard deviations"),
    ):
        if bad.any():
            i, j = np.argwhere(bad)[0]
            raise ParameterError(f"matrix[{i}, {j}] = {C[i, j]} {must}")
    if (apart := np.abs(C - C.T)).max() > 1e-8:
        i, j = np.unravel_index(np.argmax(apart), C.shape)
        raise ParameterError(f"matrix[{i}, {j}] = {C[i, j]} and matrix[{j}, {i}] = {C[j, i]}: it must be symmetric")
    return C


def _similar(C: np.ndarray) -> np.ndarray:
    """An order of the tasks that puts strongly correlated ones side by side."""
    if len(C) < 3:
        return np.arange(len(C))
    # A task of the opposite sign says as much about another as one of the same sign.
    distance = np.clip(1.0 - np.abs(C), 0.0, None)
    condensed = distance[np.triu_indices(len(C), 1)]
    # Which end of a cluster comes first takes seconds to optimise from here on, and is no longer seen.
    return leaves_list(linkage(condensed, method="average", optimal_ordering=len(C) <= 500))


def _layout(graph: Graph, sizes: np.ndarray, seed: int) -> np.ndarray:
    """Places of the agents, (n, 2): by springs as strong as the ties, components side by side, no disc on another."""
    places = np.zeros((graph.n, 2))
    # Springs know no scale of their own: the mean weight is their unit.
    springs = Graph(graph.W / graph.weight.mean()).to_networkx() if graph.n_edges else nx.empty_graph(graph.n)
    groups = [np.flatnonzero(graph.components == k) for k in range(graph.n_components)]
    for agents in groups:
        if len(agents) > 1:
            found = nx.spring_layout(springs.subgraph(agents.tolist()), weight="weight", seed=seed)
            spots = np.array([found[k] for k in agents.tolist()])
            spots -= (spots.max(axis=0) + spots.min(axis=0)) / 2.0
            places[agents] = spots * np.sqrt(len(agents) / np.square(spots).sum(axis=1).max())
    centers = _packed(np.array([np.sqrt(len(agents)) + 0.5 * (len(agents) > 1) for agents in groups]))
    for agents, center in zip(groups, centers, strict=True):
        places[agents] += center
    if graph.n <= 1000:  # all pairs are looked at
        for _ in range(60):
            # Discs are in points, on a page of about 380; places are in units of their own.
            radii = np.sqrt(sizes) / 2.0 * max(np.ptp(places, axis=0).max(), 1.0) / 380.0
            apart = places[:, None] - places
            distance = np.sqrt(np.square(apart).sum(axis=2)) + np.eye(graph.n)
            push = np.clip(1.1 * (radii[:, None] + radii) - distance, 0.0, None) * (1.0 - np.eye(graph.n))
            if push.max() <= 0.05 * radii.min():
                break
            places += 0.4 * (apart * (push / np.maximum(distance, 1e-9))[:, :, None]).sum(axis=1)
    return places


def _packed(radii: np.ndarray) -> np.ndarray:
    """Centres of circles that do not overlap: the largest in the middle, the others around it as close as they can."""
    reach = 3.0 * np.sqrt(np.square(radii).sum())
    step = radii.min() / 2.0
    k = np.arange(int((reach / step) ** 2))
    spiral = (step * np.sqrt(k) * np.exp(2.4j * k)).astype(np.complex128)  # about the golden angle, to cover evenly
    clear = np.full(len(k), np.inf)
    centers = np.zeros((len(radii), 2))
    for circle in np.argsort(-radii, kind="stable"):
        free = clear >= radii[circle]
        at = spiral[free.argmax() if free.any() else clear.argmax()]
        centers[circle] = at.real, at.imag
        clear = np.minimum(clear, np.abs(spiral - at) - radii[circle])
    return centers


def _edges(graph: Graph, places: np.ndarray) -> LineCollection:
    """A line for each edge, darker and wider with its weight; the strongest last, and so on top."""
    i, j, weight = graph.edges()
    order = np.argsort(weight, kind="stable")
    share = weight[order] / (weight.max() if weight.size else 1.0)
    segments = np.stack([places[i[order]], places[j[order]]], axis=1)
    if share.size and share[0] == 1.0:
        share = np.full_like(share, 0.6)  # all alike: none of them stands out
    shades = np.repeat((0.88 - 0.78 * share)[:, None], 3, axis=1)
    width = np.clip(np.sqrt(600.0 / max(graph.n_edges, 1)), 0.3, 1.0)
    return LineCollection(list(segments), colors=shades, linewidths=width * (0.4 + 1.6 * share), zorder=1)


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
