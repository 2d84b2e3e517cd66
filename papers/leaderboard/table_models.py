"""Methods that train linear models and small networks, and private ones, on all real datasets: scores, bytes, CPU.

One budget for all that train: see :mod:`.contenders`. Private methods have nothing tuned, for that would cost privacy,
too. Additive models are those of partial pooling.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from coterie.datasets import RealTask
from coterie.datasets.real import agent_scores
from coterie.datasets.sources import find, missing, source_of
from coterie.errors import ConvergenceError, ExtrapolationWarning, MissingDataError
from coterie.plots import BLUE, GREY, RED

from .._experiment import Plan, Row, where
from .._figures import sheet
from .contenders import BATCH, CONTENDERS, STEPS, Race, raced, tuned
from .leaderboard import TASKS, estimator, given, load, parts
from .private import ALONE, CLIP, DELTA, METHODS, hidden

MINUTES = 25.0
QUICK = ("vehicle", "parkinsons")
QUICK_METHODS = ("alone", "D-PSGD", "tied SGD, k-NN", "FedAvg", "FedPer")
#: Rounds, at most, and seeds of the runs that are tested.
ROUNDS, SEEDS = 100, 3
#: Of the private methods, for each agent; None: without noise, to compare with.
BUDGETS = (None, 10.0, 1.0)
POOLING = "pooling"
#: Names in the other table of the leaderboard.
SAME = {"gossip pooling": "pooling by gossip"}
COLOURS = {"linear": BLUE, "network": RED, "additive": "#3a9a5b", "private": GREY}


def plan(quick: bool) -> Plan:
    names = [name for name in (QUICK if quick else TASKS) if find(TASKS[name][0]) is not None]
    if not names:
        raise MissingDataError(f"no dataset of the leaderboard is there: {missing(source_of(TASKS[QUICK[0]][0]))}")
    budget = {"rounds": 40 if quick else ROUNDS, "steps": STEPS, "batch": BATCH, "seeds": 1 if quick else SEEDS}
    pieces: list[Row] = [{"dataset": dataset, "model": "additive", "method": POOLING, "seeds": 1} for dataset in names]
    # One method after the other: each is compiled once.
    pieces += [
        {"dataset": dataset, "model": "linear", "method": method, "epsilon": epsilon, "delta": DELTA, "clip": CLIP}
        | {"seeds": budget["seeds"]}
        for method in METHODS
        for epsilon in BUDGETS
        for dataset in names
        if not (quick and epsilon == 10.0) and not (method == ALONE and epsilon is not None)
    ]
    pieces += [
        {"dataset": dataset, "model": model, "method": method, **budget}
        for method, who in CONTENDERS.items()
        for model in who.models
        for dataset in names
        if not quick or method in QUICK_METHODS
    ]
    yield pieces


def work(dataset: str, model: str, method: str, seeds: int, rounds: int = 0, **settings: Any) -> Row:
    task = load(dataset)
    race = Race.of(task, given(task), model)
    chosen: Row = {}
    if method == POOLING:
        found = _pooled(task, model)
    elif method in METHODS:
        found = hidden(race, method, settings["epsilon"], seeds)
    else:
        chosen = tuned(race, method, rounds)
        try:
            found = raced(race, method, chosen, seeds)
        except (KeyError, ConvergenceError):
            return {"refused": "its models are not finite, whatever the learning rate"}
    scores = found.pop("scores")[task.test.sizes > 0]
    worst = np.sort(scores)[:: 1 if task.kind == "classification" else -1][: int(np.ceil(scores.size / 10))]
    return {
        "metric": "accuracy" if task.kind == "classification" else "rmse",
        "score": scores.mean(),
        "error": scores.std(ddof=1) / np.sqrt(scores.size),
        "worst tenth": worst.mean(),
        "scores": scores.tolist(),
        "chosen": chosen,
        **found,
    }


def _pooled(task: RealTask, design: str) -> Row:
    """Partial pooling of models of one design."""
    model = estimator(task, "pooling", "").set_params(design=design)
    start = time.process_time()
    model.fit(*parts(task.train))
    seconds = time.process_time() - start
    X, _, agents = parts(task.test)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExtrapolationWarning)  # all methods are asked for the same rows
        said = model.predict(X, agents=agents)
    return {"scores": agent_scores(task.test, said, task.kind), "bytes": None, "cpu seconds": seconds}


CLAIMS = ()  # no paper has made any


def label(row: Row) -> str:
    """The name of a method in a table."""
    if "epsilon" not in row:
        return f"{row['model']}, {row['method']}"
    if row["method"] == ALONE:
        return f"linear, {ALONE}"
    named = SAME.get(row["method"], row["method"])
    return f"{named}, " + ("no noise" if row["epsilon"] is None else f"epsilon={row['epsilon']:g}")


def privacy(row: Row) -> str:
    """Return the privacy of a method."""
    if row["method"] == ALONE:
        return "nothing sent"
    if "epsilon" in row:
        return "with `ct.Private`" if row["epsilon"] is None else f"({row['epsilon']:g}, {row['delta']:g}) each"
    place = "one" if row["method"] == POOLING else CONTENDERS[row["method"]].place
    return {"nobody": "nothing sent", "one": "none: rows in one place"}.get(place, "no design")


def _chosen(row: Row) -> str:
    chosen = row["chosen"]
    if not chosen:
        return ""
    strength = CONTENDERS[row["method"]].tuned
    words = [f"rate={chosen['rate']:g}", *([f"{strength}={chosen['value']:g}"] if strength else [])]
    return ", ".join([*words, f"rounds={chosen['rounds']}"])


def _baseline(rows: list[Row], row: Row) -> list[Row]:
    """Return the baseline of a method: the same model trained alone in the same way, or exact linear models."""
    if row["method"] in CONTENDERS:
        return where(rows, dataset=row["dataset"], model=row["model"], method="alone")
    return where(rows, dataset=row["dataset"], method=ALONE)


def gain(row: Row, alone: Sequence[Row]) -> tuple[float, float]:
    """Return the mean gain of agents over the same model trained alone, and the share of agents that gain."""
    if not alone or "scores" not in alone[0]:
        return np.nan, np.nan
    sign = 1.0 if row["metric"] == "accuracy" else -1.0
    more = sign * (np.asarray(row["scores"]) - np.asarray(alone[0]["scores"]))
    return float(more.mean()), float(np.mean(more > 0))


def _rank(row: Row) -> float:
    """The less, the better; what was left out comes last."""
    if "refused" in row:
        return float("inf")
    return float(row["score"] if row["metric"] == "rmse" else -row["score"])


def tables(rows: list[Row]) -> dict[str, pd.DataFrame]:
    """For each dataset, a line for each method, the best first."""
    found = {}
    for name in dict.fromkeys(row["dataset"] for row in rows):
        lines: list[Row] = []
        for row in sorted(where(rows, dataset=name), key=_rank):
            if "refused" in row:
                lines.append({"method": label(row), "chosen": f"left out: {row['refused']}"})
                continue
            more, share = gain(row, _baseline(rows, row))
            lines.append(
                {
                    "method": label(row),
                    row["metric"]: row["score"],
                    "±": row["error"],
                    "worst tenth": row["worst tenth"],
                    "gain over alone": more,
                    "share that gains": share,
                    "MB sent": np.nan if row["bytes"] is None else row["bytes"] / 1e6,
                    "CPU s": row["cpu seconds"],
                    "privacy": privacy(row),
                    "chosen": _chosen(row),
                }
            )
        found[f"{name}, models"] = pd.DataFrame(lines)
    return found


def draw(rows: list[Row]) -> Figure:
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    across = min(5, len(names))
    down = int(np.ceil(len(names) / across))
    order = list(dict.fromkeys(_line(row) for row in rows))
    figure, panels = sheet(3.0 * across + 1.5, (1.2 + 0.22 * len(order)) * down, down, across, sharey=True)
    panels = panels.ravel()
    for axes, name in zip(panels, names, strict=False):
        shown = [row for row in where(rows, dataset=name) if "score" in row]
        for row in shown:
            kind = "private" if "epsilon" in row else row["model"]
            at = -order.index(_line(row)) + {"linear": 0.15, "network": -0.15}.get(kind, 0.0)
            axes.plot([row["score"], row["worst tenth"]], [at, at], color=COLOURS[kind], linewidth=0.8, alpha=0.6)
            axes.plot(row["score"], at, "o", color=COLOURS[kind], markersize=5)
            axes.plot(row["worst tenth"], at, "o", color=COLOURS[kind], markersize=4, markerfacecolor="white")
        rmse = shown[0]["metric"] == "rmse"
        axes.set_title(f"{name} ({'RMSE' if rmse else 'accuracy'})")
        if rmse:
            axes.invert_xaxis()  # the better, the further to the right, in all panels
        axes.set_yticks([-k for k in range(len(order))], order)
        axes.grid(alpha=0.3)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    handles = [Line2D([], [], color=colour, marker="o", linestyle="", label=kind) for kind, colour in COLOURS.items()]
    handles.append(
        Line2D([], [], color=GREY, marker="o", markerfacecolor="white", linestyle="", label="worst tenth of the agents")
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=5)
    return figure


def _line(row: Row) -> str:
    return label(row) if "epsilon" in row else row["method"]
