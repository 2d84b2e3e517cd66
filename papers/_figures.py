"""Common parts of figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coterie.plots import BLUE, GREY, RED

from ._experiment import Row

#: Colours of lines, in order of use.
COLOURS = (BLUE, RED, "#3a9a5b", "#8b5fb0", "#d99a2b", "#2ba5b5", GREY)


def sheet(width: float, height: float, down: int = 1, across: int = 1, **options: Any) -> tuple[Figure, Any]:
    """Return a figure, and an array of its panels, of one dimension for a single row of panels."""
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False, **options)
    return figure, panels[0] if down == 1 else panels


def line(axes: Axes, rows: Sequence[Row], x: str, y: str, label: str, colour: str, **style: Any) -> None:
    """Draw the mean of a number over the rows with equal x, with a band of two standard errors."""
    along, values = grouped(rows, x, y)
    mean = np.array([found.mean() for found in values])
    error = np.array([found.std(ddof=1) / np.sqrt(found.size) if found.size > 1 else 0.0 for found in values])
    axes.plot(along, mean, label=label, color=colour, **style)
    if error.any():
        axes.fill_between(along, mean - 2.0 * error, mean + 2.0 * error, color=colour, alpha=0.2, linewidth=0.0)


def grouped(rows: Sequence[Row], x: str, y: str) -> tuple[list[Any], list[np.ndarray]]:
    """Return all y for each x, by increasing x; x and y name numbers, or lists of equal length, such as traces."""
    found: dict[Any, list[float]] = {}
    for row in rows:
        for at, value in zip(np.atleast_1d(row[x]).tolist(), np.atleast_1d(row[y]).tolist(), strict=True):
            found.setdefault(at, []).append(value)
    along = sorted(found)
    return along, [np.array(found[at]) for at in along]


def bars(
    ours: Mapping[str, Mapping[str, Sequence[float]]], paper: Mapping[str, Mapping[str, float]], label: str
) -> Figure:
    """Draw a table as bars by group: our means with two standard errors, and the paper's numbers as dashes."""
    figure, panels = sheet(max(5.0, 2.4 * len(ours)), 4.0, 1, len(ours))
    for axes, (group, values) in zip(panels, ours.items(), strict=True):
        shown = [*paper.get(group, {}).values()]
        for place, (name, found) in enumerate(values.items()):
            error = 2.0 * np.std(found, ddof=1) / np.sqrt(len(found)) if len(found) > 1 else 0.0
            shown += [float(np.mean(found)) - error, float(np.mean(found)) + error]
            axes.bar(place, np.mean(found), yerr=error, color=COLOURS[place % len(COLOURS)], width=0.7, capsize=3)
            if name in paper.get(group, {}):
                published = paper[group][name]
                axes.plot([place - 0.42, place + 0.42], [published] * 2, color="black", linestyle="--", linewidth=1.5)
        room = max(max(shown) - min(shown), 1e-9)
        axes.set_ylim(min(shown) - 0.5 * room, max(shown) + 0.1 * room)
        axes.set_xticks(range(len(values)), list(values), rotation=40, ha="right")
        axes.set_title(group)
        axes.grid(axis="y", alpha=0.3)
    panels[0].set_ylabel(f"{label}; ± two standard errors; dashes: the paper")
    return figure
