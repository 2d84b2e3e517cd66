"""Figures. Each drawing function returns a new matplotlib Figure, and does not change the state of pyplot.

:func:`show` opens a figure in a window, :func:`save` writes it to a file.

Parameters of several of these functions:

model : CollaborativeRegressor or CollaborativeClassifier
    An estimator fitted by pooling.
column : str
    Name of a coefficient, as in ``model.coef_names_``, or "intercept" (its value where all columns have their means).
coverage : float
    Probability of intervals and bands, in (0, 1).
output : class, optional
    For more than two classes: the class to show. Default: the first.
unit : str
    The axis of cost: "wakes", "vectors" or "bytes"; bytes that span powers of ten are on a logarithmic scale.
title : str
    Title of the figure.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.optimize import isotonic_regression
from scipy.stats import norm

from ._checks import choice, fraction, per_agent
from ._files import write_atomic
from ._laplace import expit
from .engines.run import Run
from .errors import MismatchError, ParameterError
from .graphs import Graph
from .graphs.layout import layout

BLUE, RED, GREY = "#2f6db5", "#c8442e", "#8a8a8a"
#: Colours of agents, distinguishable by the colour-blind (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

#: Units of cost, with the labels of their axes.
UNITS = {"wakes": "wakes", "vectors": "vectors sent", "bytes": "bytes sent"}

#: Distances to an optimum, on logarithmic axes; and costs, on logarithmic axes where they span powers of ten.
GAPS, COSTS = ("gap", "certificate"), ("vectors", "bytes")

#: Labels of columns of traces whose names are not self-explanatory.
COLUMNS = {"value": "objective", "gap": "relative distance to the optimum", "accuracy": "mean test accuracy"}


def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure to a png, pdf or svg file, by its suffix. Equal figures give equal files.

    Parameters
    ----------
    figure : Figure
    path : path

    Returns
    -------
    Path

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2))
    >>> figure = convergence(ct.simulate(problem, "cd", wakes=20, every=5))
    >>> save(figure, getfixture("tmp_path") / "figure.svg").read_text()[:5]
    '<?xml'
    """
    goal = Path(path)
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
    if goal.suffix not in undated:
        raise ParameterError(f'path="{goal}" must end with {", ".join(undated)}')
    buffer = io.BytesIO()
    # Without a salt, ids in an svg are random; text is drawn as paths, independent of the reader's fonts.
    with rc_context({"svg.hashsalt": "coterie"}):
        figure.savefig(buffer, format=goal.suffix[1:], dpi=120, metadata=undated[goal.suffix])
    write_atomic(goal, buffer.getvalue(), durable=False)
    return goal


def show(figure: Figure) -> None:
    """Show a figure in a window, in a notebook, or in a gallery of sphinx-gallery.

    The figure is then managed by pyplot: ``plt.close(figure)`` frees its memory. Without a display, nothing is shown
    and no error is raised; use :func:`save` to write the figure to a file.

    Parameters
    ----------
    figure : Figure
        A figure of this module, or any other.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> figure = Figure()
    >>> plt.switch_backend("agg")
    >>> show(figure)
    >>> plt.gcf() is figure
    True
    >>> plt.close(figure)
    """
    import matplotlib.pyplot as plt

    if figure not in [plt.figure(number) for number in plt.get_fignums()]:
        plt.figure(FigureClass=lambda *_, **__: figure)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*non-interactive")  # without a display
        plt.show()


def _panels(
    width: float, height: float, across: int = 1, down: int = 1, grid: Any = "both", **more: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels, row by row, with grid lines on the given axis, if any."""
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = list(figure.subplots(down, across, squeeze=False, **more).flat)
    for axes in panels if grid else []:
        axes.grid(axis=grid, alpha=0.3)
    return figure, panels


def label_lines(axes: Axes, fontsize: float = 9.0) -> None:
    """Write the labels of lines at their right ends, in their colours, instead of a legend.

    Overlapping labels are moved apart. Call this function last, when limits and scales are final.

    Parameters
    ----------
    axes : Axes
        A panel with labelled lines, such as that of :func:`traces`.
    fontsize : float

    Examples
    --------
    >>> axes = Figure().add_subplot()
    >>> lines = axes.plot([0, 1], [0, 1], label="rising"), axes.plot([0, 1], [1, 0], label="falling")
    >>> label_lines(axes)
    >>> [text.get_text() for text in axes.texts]
    ['falling', 'rising']
    """
    found = []
    axes.get_xlim(), axes.get_ylim()  # computes limits that are pending
    for line in axes.get_lines():
        ends = line.get_transform().transform(np.column_stack(line.get_data(orig=False)))
        ends = axes.transAxes.inverted().transform(ends[np.isfinite(ends).all(axis=1)])
        if len(ends) and not str(line.get_label()).startswith("_"):
            found.append((float(np.clip(ends[-1, 1], 0.0, 1.0)), float(ends[-1, 0]), line))
    found.sort(key=lambda end: end[0])
    step = 1.25 * fontsize / (72.0 * axes.bbox.height / axes.figure.dpi)  # height of a line, relative to the panel
    # Labels are moved as little as possible, so that two of them are at least a step apart.
    steps = step * np.arange(len(found))
    places = isotonic_regression([end[0] for end in found] - steps).x + steps if found else steps
    for (_, right, line), y in zip(found, places, strict=True):
        x = 1.0 if right > 0.9 else right
        axes.text(x + 0.015, y, str(line.get_label()), color=line.get_color(), fontsize=fontsize, va="center",
                  transform=axes.transAxes)  # fmt: skip
    for legend in (axes.get_legend(), *axes.figure.legends):
        if legend is not None:
            legend.remove()


def convergence(run: Run, optimum: float | None = None) -> Figure:
    """Plot the objective against the vectors sent.

    Parameters
    ----------
    run : Run
        A run made with ``every``, so that its trace has several rows.
    optimum : float, optional
        The exact optimum. If given, the distance to it is plotted, on a logarithmic scale.

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2))
    >>> figure = convergence(ct.simulate(problem, "cd", wakes=20, every=5), problem.value(problem.solve()))
    >>> figure.axes[0].get_xlabel()
    'vectors sent'
    """
    figure, [axes] = _panels(6.0, 4.0)
    column, shown = "value", run.trace["value"]
    if optimum is not None:
        column, shown = "gap", np.maximum((shown - optimum) / abs(optimum), 1e-16)
        axes.set_yscale("log")
    axes.plot(run.trace["vectors"], shown, color=BLUE)
    axes.set(ylabel=COLUMNS[column], title=f"{type(run.method).__name__}, {run.problem.n} agents")
    _cost(axes, "vectors", run.trace["vectors"])
    return figure


def gains(
    rows: Any,
    before: ArrayLike | None = None,
    after: ArrayLike | None = None,
    score: str = "test accuracy",
    title: str = "",
) -> Figure:
    """Plot the gain of each agent against its number of rows.

    Parameters
    ----------
    rows : (n,) array_like, or Report
        Training rows of each agent; or the report returned by ``model.report()``, which needs no other arguments:
        errors are then compared with those of models alone and of one model for all, and if all agents have similar
        numbers of rows, agents are sorted by these errors.
    before, after : (n,) array_like
        Scores of the models trained alone, and together.
    score : str
        Name of the scores.
    title : str

    Examples
    --------
    >>> import numpy as np
    >>> figure = gains(np.array([3, 50]), np.array([0.6, 0.9]), np.array([0.8, 0.92]))
    >>> figure.axes[0].get_ylabel()
    'test accuracy'
    """
    if before is None or after is None:
        return _reported_gains(rows, title)
    before, after = np.asarray(before), np.asarray(after)
    figure, [axes] = _panels(6.0, 4.0)
    axes.vlines(rows, before, after, color=np.where(after >= before, BLUE, RED), alpha=0.35)
    axes.scatter(rows, before, s=14, color=GREY, label="alone")
    axes.scatter(rows, after, s=14, color=BLUE, label="together")
    axes.set(xlabel="training rows of the agent", ylabel=score, title=title)
    axes.legend()
    return figure


def _reported_gains(report: Any, title: str) -> Figure:
    """Plot errors of all agents together, compared with alone and with one model for all."""
    from .estimators.report import MEASURES, Report

    if not isinstance(report, Report):
        raise ParameterError("gains needs a report, or numbers of rows with the scores before and after")
    if report.gains is None:
        raise ParameterError(f"this report has no gains to show: {'; '.join(report.notes)}")
    table = report.gains.dropna(subset=["gain_alone"])
    alike = table["rows"].max() < 2 * table["rows"].min()  # positions by rows would then overlap
    figure, panels = _panels(9.6, 4.2, 2, sharey=True)
    for axes, base, name in zip(panels, ("alone", "one_model"), ("alone", "one model for all"), strict=True):
        gain = report.summary["gains"][base]
        better = (table[base] >= table["together"]).to_numpy()
        at = table[base].rank(method="first") if alike else table["rows"]
        axes.vlines(at, table[base], table["together"], color=np.where(better, BLUE, RED), alpha=0.45)
        axes.scatter(at, table[base], s=16, marker="x", linewidths=1.0, color=GREY, label=name, zorder=2)
        axes.scatter(at, table["together"], s=16, color=BLUE, label="together", zorder=3)
        ends = f", 95 % {gain['low']:.3g} to {gain['high']:.3g}" if np.isfinite(gain["low"]) else ""
        axes.set_title(
            f"Against {name}\nerror lower by {gain['mean']:.3g}{ends}\n"
            f"{round(gain['share'] * gain['agents'])} of {gain['agents']} agents gain (blue lines)",
            fontsize=10.0,
        )
        axes.set_xlabel(f"agents, by their error {name if name == 'alone' else f'with {name}'}" if alike
                        else "rows of the agent")  # fmt: skip
        if table["rows"].max() > 20 * table["rows"].min():
            axes.set_xscale("log")
        axes.legend()
    panels[0].set_ylabel(f"{MEASURES[report.summary['measure']]} on held-out rows")
    errors = table[["alone", "one_model", "together"]].to_numpy()
    if errors.min() > 0.0 and errors.max() > 8.0 * np.median(errors):  # a few large errors would hide the others
        panels[0].set_yscale("log")
    if title:
        figure.suptitle(title)
    return figure


def shrinkage(model: Any, columns: Sequence[Any] | None = None, agents: Sequence[Any] | None = None,
              output: Any = None) -> Figure:  # fmt: skip
    """Plot how coefficients move from the models of agents alone to those learned together, in a panel for each column.

    Coefficients of agents with few rows (dark) move to the common value, those of agents with many rows (bright)
    hardly.

    Parameters
    ----------
    model : CollaborativeRegressor or CollaborativeClassifier
        An estimator fitted by pooling, with its rows; not one loaded from a file.
    columns : sequence of str, optional
        Names as `column` in :mod:`coterie.plots`. Default: the columns that differ most between agents, at most four.
    agents : sequence, optional
        Agents to show. Default: all.
    output : class, optional
        As in :mod:`coterie.plots`.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> rng = np.random.default_rng(0)
    >>> X, ids = rng.normal(size=(60, 2)), np.repeat(np.arange(6), 10)
    >>> model = ct.CollaborativeRegressor().fit(X, X[:, 0] * ids + rng.normal(size=60), agents=ids)
    >>> [axes.get_title() for axes in shrinkage(model, ["x0", "intercept"]).axes[:2]]
    ['x0', 'intercept']
    """
    from .estimators.gains import alone_models

    part, k = _part(model, output)
    rows = model._models.rows()
    if rows is None:
        raise ParameterError(
            "a model from a file has no rows, which this figure needs: draw it before saving, or fit the model again"
        )
    if len(model._models.parts) > 1:
        rows = rows._replace(y=(rows.y == k).astype(float))
    chosen = _differing(model, k) if columns is None else list(columns)
    places = [_place(model, part, column) for column in chosen]
    who = model._numbers(model.agents_ if agents is None else agents)
    _, common, own = part.at_means()
    alone = alone_models(part, rows, part.n) / np.append(part.design.scale, 1.0)
    sizes = np.bincount(rows.codes, minlength=part.n)
    who = who[sizes[who] > 0]

    wide = min(len(chosen), 4)
    deep = -(-len(chosen) // wide)
    figure, panels = _panels(2.9 * wide + 1.2, 3.7 * deep, wide, deep, "y")
    for axes in panels[len(chosen) :]:
        axes.set_visible(False)
    logs = np.log10(np.maximum(sizes[who], 1))
    for axes, column, at in zip(panels, chosen, places, strict=False):
        ends = np.stack([alone[who, at], own[who, at]], axis=1)
        segments = np.stack([np.broadcast_to([0.0, 1.0], ends.shape), ends], axis=2)
        lines = LineCollection(
            list(segments), array=logs, cmap="viridis", linewidths=float(np.clip(75.0 / len(who), 0.6, 1.2)),
            alpha=float(np.clip(45.0 / len(who), 0.25, 0.8)),
        )  # fmt: skip
        axes.add_collection(lines)
        axes.scatter(np.ones(len(who)), ends[:, 1], c=logs, cmap="viridis", s=12, zorder=3)
        axes.axhline(common[at], color="black", linestyle="--", linewidth=1.2, zorder=4, label="common value")
        low, high = _view(ends)
        axes.set_ylim(low, high)
        beyond = int(np.sum((ends[:, 0] < low) | (ends[:, 0] > high)))
        if beyond:
            axes.set_xlabel(f"{beyond} begin beyond the panel", fontsize=8.0, color=GREY)
        axes.set_xlim(-0.15, 1.15)
        axes.set_xticks([0.0, 1.0], ["alone", "together"])
        axes.set_title(str(column))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", frameon=False, fontsize=9.0)
    panels[0].set_ylabel("coefficient" if model._kind == "regressor" else "coefficient (log-odds)")
    if len(who) and logs.max() > logs.min():
        bar = figure.colorbar(lines, ax=panels[: len(chosen)], shrink=0.8, pad=0.02, label="rows of the agent")
        if bar.solids is not None:
            bar.solids.set_alpha(1.0)
        marks = np.unique(np.quantile(sizes[who], [0.0, 0.25, 0.5, 0.75, 1.0]).astype(int))
        bar.set_ticks(list(np.log10(marks)), labels=[str(mark) for mark in marks])
        bar.ax.minorticks_off()
    return figure


def caterpillar(model: Any, column: Any, coverage: float = 0.9, output: Any = None) -> Figure:
    """Plot one coefficient of every agent, sorted, with posterior intervals and the common value.

    Agents whose interval does not contain the common value are blue. The band is the range of the population's
    coefficients, with the same probability.

    Parameters
    ----------
    model : CollaborativeRegressor or CollaborativeClassifier
    column : str
    coverage : float
    output : class, optional
        All four as in :mod:`coterie.plots`.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> rng = np.random.default_rng(0)
    >>> X, ids = rng.normal(size=(60, 2)), np.repeat(np.arange(6), 10)
    >>> model = ct.CollaborativeRegressor().fit(X, X[:, 0] * ids + rng.normal(size=60), agents=ids)
    >>> figure = caterpillar(model, "x0")
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['0', '1', '2', '3', '4', '5']
    """
    part, _ = _part(model, output)
    at, z = _place(model, part, column), norm.ppf(0.5 + 0.5 * fraction("coverage", coverage))
    unit, common, own = part.at_means()
    order = np.argsort(own[:, at], kind="stable")
    chunks = np.array_split(order, 1 + len(order) * part.design.size**2 // 4_000_000)  # to bound memory
    variance = np.concatenate([part.covariances(some)[:, at, at] for some in chunks])
    middle, half = own[order, at], z * unit[at] * np.sqrt(np.maximum(variance, 0.0))
    apart = np.abs(middle - common[at]) > half
    n = part.n
    named = n <= 60
    figure, [axes] = _panels(6.4, max(2.6, 1.2 + 0.17 * n) if named else 6.4, grid="x")
    spread = z * float(np.sqrt(part.variances()[0][at]))
    axes.axvspan(common[at] - spread, common[at] + spread, color=GREY, alpha=0.15, lw=0, label="population")
    axes.axvline(common[at], color="black", linestyle="--", linewidth=1.2, label="common value")
    for color, which, label in ((GREY, ~apart, "holds it"), (BLUE, apart, "does not")):
        if which.any():
            place = np.flatnonzero(which)
            ends = (middle - half)[which], (middle + half)[which]
            axes.hlines(place, *ends, color=color, label=f"interval {label}", lw=1.4 if named else 0.4)
            axes.scatter(middle[which], place, s=16 if named else 3, color=color if named else "black", zorder=3)
    if named:
        axes.set_yticks(np.arange(n), [str(model.agents_[k]) for k in order], fontsize=9.0 if n <= 40 else 7.0)
    else:
        axes.set_yticks([])
        axes.set_ylabel(f"{n:,} agents, sorted")
    axes.set_ylim(-0.8, n - 0.2)
    what = "intercept" if at == part.design.size - 1 else "coefficient"
    axes.set(xlabel=f"{what} with {100 * coverage:g} % intervals", title=str(column))
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9.0)
    return figure


def curves(
    model: Any, column: Any, agents: Sequence[Any] | None = None, coverage: float = 0.9, output: Any = None
) -> Figure:
    """Plot predictions along one column, with the others at their means, by some agents' models and the common one.

    Curves are solid within the range of an agent's rows, and dotted beyond. Bands are posterior intervals of the
    curves.

    Parameters
    ----------
    model : CollaborativeRegressor or CollaborativeClassifier
        An estimator fitted by pooling; for a linear design, curves are lines.
    column : str
        An encoded column: the name of an input column of numbers.
    agents : sequence, optional
        Agents to show. Default: five, spread over the range of curves.
    coverage : float
    output : class, optional
        Both as in :mod:`coterie.plots`.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> rng = np.random.default_rng(0)
    >>> X, ids = rng.uniform(0, 3, size=(400, 1)), np.repeat(np.arange(8), 50)
    >>> y = np.sin(2 * X[:, 0]) * (1 + ids / 8) + 0.1 * rng.normal(size=400)
    >>> figure = curves(ct.CollaborativeRegressor().fit(X, y, agents=ids), "x0", agents=[0, 7])
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['common', '0', '7']
    """
    part, k = _part(model, output)
    feature = _feature(model, column)
    z = norm.ppf(0.5 + 0.5 * fraction("coverage", coverage))
    low, high = (ends[:, feature] for ends in part.ranges(np.arange(part.n)))
    x = np.linspace(float(low[np.isfinite(low)].min()), float(high[np.isfinite(high)].max()), 201)
    A, family = part.design.along(feature, x), part.family.name
    links: dict[str, Any] = {"logistic": expit, "poisson": lambda z: np.exp(np.minimum(z, 30.0))}
    link = links.get(family, lambda z: z * part.scale + part.center)
    predicted = "expected count" if family == "poisson" else "prediction"
    if model._kind == "classifier":
        predicted = f"probability of {model.classes_.tolist()[1 if len(model._models.parts) == 1 else k]!r}"
    who = _ends(part, A) if agents is None else model._numbers(agents)

    figure, [axes] = _panels(6.6, 4.6)
    shared = np.einsum("ij,jk,ik->i", A, part.population.cov, A)
    shown = [("common", "black", part.population.w, shared, x[0], x[-1])]
    covariance = part.covariances(who)
    for i, agent in enumerate(who):
        spread = np.einsum("ij,jk,ik->i", A, covariance[i], A)
        model_of = part.population.w + part.D[agent]
        shown.append((str(model.agents_[agent]), COLOURS[i % len(COLOURS)], model_of, spread, low[agent], high[agent]))
    for name, color, theta, variance, first, last in shown:
        middle, half = A @ theta, z * np.sqrt(np.maximum(variance, 0.0))
        ends = [link(value) for value in (middle - half, middle, middle + half)]
        inside = (x >= first) & (x <= last)
        common = color == "black"
        axes.fill_between(x, ends[0], ends[2], color=color, alpha=0.12, lw=0)
        axes.plot(x, ends[1], color=color, linestyle="--" if common else ":", linewidth=2.0 if common else 1.0,
                  label=name if common else None, zorder=3)  # fmt: skip
        if not common:
            axes.plot(x[inside], ends[1][inside], color=color, linewidth=1.8, label=name, zorder=2)
    axes.set(xlim=(x[0], x[-1]), xlabel=str(column), ylabel=predicted)
    figure.legend(loc="outside right upper", frameon=False, title="agent")
    return figure


def comparison(
    table: pd.DataFrame, unit: str, optimum: Mapping[str, float], score: str | None = None, gap: bool = False
) -> Figure:
    """Plot the objective, and a score on test rows, of several methods against cost.

    Parameters
    ----------
    table : DataFrame
        A table as in :class:`coterie.studies.Comparison`; several seeds are drawn as in :func:`traces`.
    unit : str
        As in :mod:`coterie.plots`.
    optimum : mapping
        Values at the exact optimum, drawn as dashed lines.
    score : str, optional
        A column for a second panel.
    gap : bool
        Whether to plot the relative distance to the optimum, on a logarithmic scale, instead of the objective.

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
    >>> result = ct.compare(["cd", "propagation"], problem, vectors=60)
    >>> len(comparison(result.table, "vectors", result.optimum).axes)
    1
    """
    columns = ["gap" if gap else "value"] + ([score] if score else [])
    figure, panels = _panels(6.4 * len(columns), 4.2, len(columns))
    for axes, column in zip(panels, columns, strict=True):
        _courses(axes, {str(label): rows for label, rows in table.groupby("method", sort=False)}, unit, column)
        if column in optimum:
            axes.axhline(optimum[column], color="black", linestyle="--", linewidth=1.0, label="exact optimum")
        axes.set_ylabel(COLUMNS.get(column, f"mean test {column}"))
    panels[0].legend()
    return figure


def settings(mean: pd.DataFrame, error: pd.DataFrame, value: str, x: str, by: str | None = None) -> Figure:
    """Plot means along one setting, with bands of one standard error and a line for each column.

    Parameters
    ----------
    mean, error : DataFrame
        Rows are values of ``x``; columns are values of ``by``, or one. As in ``coterie.studies.tables.StudyTable``.
    value, x : str
        The quantity that was measured, and the setting on the x-axis.
    by : str, optional
        The setting with a line for each value.

    Examples
    --------
    >>> import pandas as pd
    >>> mean = pd.DataFrame({"cd": [0.8, 0.9], "djam": [0.7, 0.9]}, index=pd.Index([0.1, 1.0], name="mu"))
    >>> [text.get_text() for text in settings(mean, mean / 50, "accuracy", "mu", "method").axes[0].get_legend().texts]
    ['cd', 'djam']
    """
    figure, [axes] = _panels(6.0, 4.0)
    numeric = pd.api.types.is_numeric_dtype(mean.index)
    order = np.argsort(mean.index.to_numpy(), kind="stable") if numeric else np.arange(len(mean))
    along = mean.index.to_numpy()[order] if numeric else order
    for number, name in enumerate(mean.columns):
        middle, half = mean[name].to_numpy(float)[order], np.nan_to_num(error[name].to_numpy(float)[order])
        if numeric:
            _band(axes, along, (middle - half, middle, middle + half), number, str(name), marker="o", markersize=4.0)
        else:
            place = along + 0.6 * ((number + 0.5) / len(mean.columns) - 0.5)
            axes.errorbar(place, middle, half, fmt="o", capsize=3.0, label=str(name), color=_colour(number))
    if not numeric:
        axes.set_xticks(along, [str(name) for name in mean.index])
    elif _decades(along) >= 1.5:
        axes.set_xscale("log")
    if value in GAPS or (value in COSTS and _decades(mean.to_numpy(float)) >= 1.0):
        axes.set_yscale("log")
    axes.set(xlabel=x, ylabel=COLUMNS.get(value, value))
    if by is not None:
        axes.legend(title=by)
    return figure


def plot(what: Any) -> Figure:
    """Plot a result: the trace of a run, or the figure of a study or a comparison.

    Parameters
    ----------
    what : Run, Study or Comparison

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2))
    >>> plot(ct.simulate(problem, "cd", wakes=20, every=5)).axes[0].get_ylabel()
    'objective'
    """
    if isinstance(what, Run):
        return convergence(what)
    for name in ("plot", "figure"):
        if callable(draw := getattr(what, name, None)):
            figure: Figure = draw()
            return figure
    raise ParameterError(f"{type(what).__name__} has no figure: pass a run, a study or a comparison")


def _cost(axes: Axes, unit: str, spent: pd.Series) -> None:
    """Set up the axis of cost. Bytes are on a logarithmic scale if they span powers of ten."""
    axes.set_xlabel(UNITS[unit])
    if unit != "bytes":
        axes.xaxis.set_major_formatter("{x:,.0f}")
        return
    if (span := _decades(spent[spent > 0].to_numpy(float))) >= 1.0:
        axes.set_xscale("log", nonpositive="mask")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if span > 2.0 else (1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(EngFormatter(unit="B"))


def _decades(values: np.ndarray) -> float:
    """Return the number of powers of ten between positive numbers; 0 if some are not positive."""
    known = values[np.isfinite(values)]
    return float(np.log10(known.max() / known.min())) if known.size and known.min() > 0.0 else 0.0


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _look(number: int) -> dict[str, Any]:
    """Return colour and line style: lines beyond the number of colours are dashed, so that no two look alike."""
    return {"color": _colour(number), "linestyle": ("-", "--", "-.", ":")[number // len(COLOURS) % 4]}


def traces(
    runs: Mapping[str, Run | Sequence[Run]],
    column: str,
    unit: str = "wakes",
    levels: Mapping[str, float] | None = None,
    label: str | None = None,
    xlabel: str | None = None,
    title: str = "",
) -> Figure:
    """Plot one column of the traces of several runs against cost.

    Examples are the panels of DADA, figure 1: accuracy, or the number of neighbours, against iterations or bytes.

    Parameters
    ----------
    runs : mapping
        For each label, a :class:`coterie.Run` made with ``every``, or a list of runs with different seeds. For a list,
        the mean over runs is plotted for the first observation, the second, and so on, with a band from the minimum to
        the maximum. A run with one observation is a horizontal dotted line.
    column : str
        A column of the traces: "value", or the name of an observer.
    unit : str
        As in :mod:`coterie.plots`.
    levels : mapping, optional
        Values that do not depend on cost, such as baselines, by label: dashed lines.
    label : str, optional
        Label of the y-axis. Default: the name of the column.
    xlabel : str, optional
    title : str

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2))
    >>> runs = [ct.simulate(problem, "cd", wakes=20, every=5, seed=seed) for seed in range(3)]
    >>> figure = traces({"descent": runs}, "value", unit="bytes", levels={"alone": 2.0})
    >>> figure.axes[0].get_xlabel(), figure.axes[0].get_xscale()
    ('bytes sent', 'log')
    """
    choice("unit", unit, UNITS)
    if not runs:
        raise ParameterError("runs is empty: there is nothing to draw")
    figure, [axes] = _panels(6.0, 4.0)
    courses: dict[str, pd.DataFrame] = {}
    for name, given in runs.items():
        several = list(given) if isinstance(given, Sequence) else [given]
        if not several:
            raise ParameterError(f"runs[{name!r}] holds no runs")
        for run in several:
            if column not in run.trace:
                raise ParameterError(
                    f"runs[{name!r}]: its trace has no column {column!r}; there are {', '.join(run.trace)}"
                )
        courses[name] = pd.concat([run.trace.assign(point=np.arange(len(run.trace))) for run in several])
    _courses(axes, courses, unit, column)
    for number, (name, level) in enumerate((levels or {}).items(), start=len(runs)):
        axes.axhline(level, color=_colour(number), linestyle="--", linewidth=1.2, label=name)
    if xlabel is not None:
        axes.set_xlabel(xlabel)
    axes.set(ylabel=COLUMNS.get(column, column) if label is None else label, title=title)
    axes.legend()
    return figure


def edges(
    graph: Graph,
    confidence: ArrayLike | None = None,
    losses: ArrayLike | None = None,
    labels: Sequence[Any] | None = None,
    cluster: ArrayLike | None = None,
    seed: int = 0,
    title: str = "",
) -> Figure:
    """Draw a graph with neighbours of large weight close to each other, as in DADA, figure 2.

    Parameters
    ----------
    graph : Graph
        Edges of larger weight are darker. Agents in different components are drawn apart.
    confidence : (n,) array_like, optional
        Nonnegative: the discs of agents with larger values are larger.
    losses : (n,) array_like, optional
        Loss of each agent's model on its own rows: green is small, red is large.
    labels : sequence of n, optional
        Texts inside the discs.
    cluster : (n,) array_like, optional
        The group of each agent: colours the rim of its disc, and the disc itself if no losses are given.
    seed : int
        Seed of the layout.
    title : str

    Examples
    --------
    >>> import coterie as ct
    >>> figure = edges(ct.graphs.complete(4), confidence=[1, 2, 3, 4], losses=[0.1, 0.4, 0.2, 0.9], labels="abcd")
    >>> len(figure.axes[0].texts)
    4
    """
    n = graph.n
    trust = np.full(n, 0.4)
    if confidence is not None:
        trust = per_agent("confidence", confidence, n, least=0.0)
        trust = trust / (trust.max() or 1.0)
    groups = None if cluster is None else np.asarray(cluster)
    names = None if labels is None else list(labels)
    shapes = {"cluster": (n,) if groups is None else groups.shape, "labels": (n if names is None else len(names),)}
    for name, shape in shapes.items():
        if shape != (n,):
            raise ParameterError(f"{name} has shape {shape}: one for each of the {n} agents is needed")

    figure, [axes] = _panels(7.0, 6.0, grid=None)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_axis_off()
    axes.set_title(title)
    sizes = (60.0 + 540.0 * trust) * min(1.0, 60.0 / n)
    places = layout(graph, sizes, seed)
    axes.add_collection(_edges(graph, places))

    rims: Any = "black"
    fills: dict[str, Any] = {"c": [BLUE]}
    if groups is not None:
        found, number = np.unique(groups, return_inverse=True)
        several = COLOURS if len(found) <= len(COLOURS) else colormaps["tab10"](np.arange(10))
        palette = to_rgba_array([several[k % len(several)] for k in range(len(found))])
        rims, fills = palette[number], {"c": palette[number]}
        handles = [
            Line2D([], [], linestyle="", marker="o", markerfacecolor="none" if losses is not None else color,
                   markeredgecolor=color, markeredgewidth=2.0, label=str(name))
            for name, color in zip(found, palette, strict=True)
        ]  # fmt: skip
        if len(found) <= 12:
            axes.legend(handles=handles, title="cluster", loc="upper left", frameon=False)
    if losses is not None:
        fills = {"c": per_agent("losses", losses, n), "cmap": "RdYlGn_r"}
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
    """Plot weight matrices side by side, as in DADA, figure 2: black is the largest weight of each.

    Parameters
    ----------
    *graphs : Graph
    order : (n,) int array_like, optional
        Order in which agents are shown, such as ``np.argsort(cluster)``. Default: by their numbers.
    titles : sequence of str, optional
        One for each graph.

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
    figure, panels = _panels(3.9 * len(graphs) + 0.9, 4.1, len(graphs), grid=None)
    for axes, graph, title in zip(panels, graphs, titles or [""] * len(graphs), strict=True):
        W = (graph if order is None else graph.relabel(order)).W.toarray()
        image = _matrix(axes, W / (W.max() or 1.0), "agent", title, cmap="Greys", vmin=0.0)
    figure.colorbar(image, ax=panels, label="weight, relative to the largest", shrink=0.8, pad=0.02)
    return figure


def _matrix(axes: Axes, values: np.ndarray, what: str, title: str, **look: Any) -> Any:
    """Draw a square matrix, with a row and a column for each agent or task."""
    image = axes.imshow(values, vmax=1.0, interpolation="nearest", **look)
    axes.set(xlabel=what, ylabel=what, title=title)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    return image


def correlations(
    matrix: ArrayLike,
    names: Sequence[Any] | None = None,
    ax: Axes | None = None,
    order: str | ArrayLike | None = None,
    title: str = "",
) -> Figure:
    """Plot correlations of tasks, as in DMTRL, figure 2: red is positive, blue is negative, white is none.

    Parameters
    ----------
    matrix : (n, n) array_like
        Symmetric, from -1 to 1.
    names : sequence of n, optional
        Names of the tasks, written along the axes if there are at most 40. Default: their numbers.
    ax : Axes, optional
        Axes to draw in, such as a panel of another figure. Default: those of a new figure.
    order : "similar" or (n,) int array_like, optional
        Order in which tasks are shown. "similar" puts strongly correlated tasks side by side, by hierarchical
        clustering of the absolute correlations. Default: by their numbers.
    title : str

    Returns
    -------
    Figure
        The figure of `ax`, if given, or a new one.

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
    axes = _panels(5.6, 4.8, grid=None)[1][0] if ax is None else ax
    image = _matrix(axes, C[shown][:, shown], "task", title, cmap="RdBu_r", vmin=-1.0)
    if n <= 40:
        texts, size = [str(labels[k]) for k in shown], 9.0 if n <= 20 else 6.0
        upright = max(map(len, texts)) * n > 40  # side by side, they would run into each other
        axes.set_xticks(np.arange(n), texts, fontsize=size, rotation=90.0 if upright else 0.0)
        axes.set_yticks(np.arange(n), texts, fontsize=size)
    elif order is not None:  # positions are not the numbers of tasks
        axes.set_xticks([])
        axes.set_yticks([])
    figure = axes.figure
    figure.colorbar(image, ax=axes, label="correlation", shrink=0.8, pad=0.02)
    return figure if isinstance(figure, Figure) else figure.figure


def _part(model: Any, output: Any) -> tuple[Any, int]:
    """Return the fitted model of one output, and its number; refuse models without a posterior."""
    model._check_fitted()
    parts = model._models.parts
    if not (parts and parts[0].has_intervals):
        raise MismatchError(
            'this figure needs the posterior of method="pooling" with at most 150 columns; this model has none'
        )
    if output is None or len(parts) == 1:
        return parts[0], 0
    found = np.flatnonzero(model.classes_ == output)
    if not len(found):
        raise ParameterError(f"output={output!r} must be one of {', '.join(map(repr, model.classes_.tolist()))}")
    return parts[int(found[0])], int(found[0])


def _feature(model: Any, column: Any) -> int:
    """Return the number of an encoded column."""
    names = model._columns.names
    if column not in names:
        raise ParameterError(f"there is no column {column!r}: the model has {', '.join(map(repr, names))}")
    return int(names.index(column))


def _place(model: Any, part: Any, column: Any) -> int:
    """Return the index of a coefficient in the model."""
    if isinstance(column, str) and column == "intercept":
        return int(part.design.size - 1)
    feature = _feature(model, column)
    if feature in part.design.curves:
        raise ParameterError(f"{column!r} is a curve, not one coefficient: plots.curves(model, {column!r}) shows it")
    return int(np.flatnonzero(part.design.source == feature)[0])


def _differing(model: Any, k: int) -> list[str]:
    """Return the four columns that differ most between agents, without curves."""
    from .estimators.report import features

    table = features(model)
    table = table[table["kind"].isin(["line", "intercept"])]
    if "class" in table:
        table = table[[name == model.classes_[k] for name in table["class"]]]
    return list(table["feature"][:4])


def _view(ends: np.ndarray) -> tuple[float, float]:
    """Return the range to show of values alone and together: all values together, and most values alone."""
    low, high = np.quantile(ends[:, 0], [0.25, 0.75])
    reach = 2.5 * (high - low)
    least = min(float(ends[:, 1].min()), max(float(ends[:, 0].min()), float(low - reach)))
    most = max(float(ends[:, 1].max()), min(float(ends[:, 0].max()), float(high + reach)))
    margin = 0.05 * (most - least) or 1.0
    return least - margin, most + margin


def _ends(part: Any, A: np.ndarray, count: int = 5) -> np.ndarray:
    """Return a few agents, evenly spaced along the main direction in which their curves differ."""
    F = part.D @ A.T
    F = F - F.mean(axis=0)
    main = F @ np.linalg.svd(F, full_matrices=False)[2][0]
    order = np.argsort(main, kind="stable")
    return np.asarray(order[np.unique(np.linspace(0, len(order) - 1, count).round().astype(int))])


def _correlations(matrix: ArrayLike) -> np.ndarray:
    """Return a correlation matrix, checked."""
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
    """Return an order of the tasks that puts strongly correlated ones side by side."""
    if len(C) < 3:
        return np.arange(len(C))
    # The sign of a correlation does not matter for the similarity of tasks.
    distance = np.clip(1.0 - np.abs(C), 0.0, None)
    condensed = distance[np.triu_indices(len(C), 1)]
    # Optimising which end of a cluster comes first takes seconds for more tasks, and makes no visible difference.
    return leaves_list(linkage(condensed, method="average", optimal_ordering=len(C) <= 500))


def _edges(graph: Graph, places: np.ndarray) -> LineCollection:
    """Return a line for each edge, darker and wider for larger weights; the largest are drawn last, on top."""
    i, j, weight = graph.edges()
    order = np.argsort(weight, kind="stable")
    share = weight[order] / (weight.max() if weight.size else 1.0)
    segments = np.stack([places[i[order]], places[j[order]]], axis=1)
    if share.size and share[0] == 1.0:
        share = np.full_like(share, 0.6)  # equal weights are all drawn in grey
    shades = np.repeat((0.88 - 0.78 * share)[:, None], 3, axis=1)
    width = np.clip(np.sqrt(600.0 / max(graph.n_edges, 1)), 0.3, 1.0)
    return LineCollection(list(segments), colors=shades, linewidths=width * (0.4 + 1.6 * share), zorder=1)


def _courses(axes: Axes, runs: Mapping[str, pd.DataFrame], unit: str, column: str) -> None:
    """Draw a curve for each label, or a dotted line for a baseline, which has a single observation without cost."""
    for number, (label, rows) in enumerate(runs.items()):
        shown = rows[column].clip(lower=1e-16) if column in GAPS else rows[column]
        points = rows.assign(shown=shown).groupby("point")[[unit, "shown"]].agg(["mean", "min", "max"])
        if len(points) == 1:
            axes.axhline(points["shown", "mean"].iloc[0], color=_colour(number), linestyle=":", label=label)
            continue
        ends = [points["shown", name].to_numpy() for name in ("min", "mean", "max")]
        _band(axes, points[unit, "mean"].to_numpy(), ends, number, label)
    if column in GAPS:
        axes.set_yscale("log")
    _cost(axes, unit, pd.concat([rows[unit] for rows in runs.values()]))


def _band(axes: Axes, x: np.ndarray, ends: Sequence[np.ndarray], number: int, label: str, **more: Any) -> None:
    """Draw the middle one of three lines, with a band from the first to the last."""
    low, middle, high = ends
    axes.plot(x, middle, label=label, **_look(number), **more)
    axes.fill_between(x, low, high, color=_colour(number), alpha=0.15, lw=0)
