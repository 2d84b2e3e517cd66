"""Rounds of DMTRL that are timed, and curves of gap and error (Figures 3 to 6)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from coterie.core.losses import resolve_loss
from coterie.data.sources.survey import deal
from coterie.datasets import RealTask
from coterie.multitask import exact_weights, relationship
from coterie.multitask.covariance import separability
from coterie.multitask.training import Options, Training
from coterie.multitask.worker import Update, Worker, WorkerState
from coterie.multitask.workers import LocalWorkers
from coterie.plots import GREY

from .._claims import Ordered
from .._experiment import Row, column, where
from .._figures import COLOURS, line
from .common import centralised, error_of, loss_of, tasks_of

#: Cores of the paper's cluster: 4 machines of 16.
CORES = 64
#: Rounds of a W-step between two Omega-steps, where the covariance is learned by the paper's rounds.
W_STEP = 10
#: Local steps of a round, H, for each dataset: about a quarter of a task's rows, all, and four times as many.
STEPS = {
    "Synthetic 1": (500, 2000, 8000),
    "School": (20, 80, 320),
    "MNIST": (500, 2000, 8000),
    "MDS": (350, 1400, 5600),
}
TIME = "CPU seconds: of the slowest of 64 simulated cores and of the server, in each round; all of SSDCA's."


class Clocked(LocalWorkers):
    """Workers of this process that measure CPU seconds, of the slowest worker and of all, since :meth:`start`."""

    slowest = together = 0.0

    def start(self) -> None:
        """Begin a round."""
        self.slowest = self.together = 0.0

    def receive(self) -> tuple[int, Update | WorkerState]:
        """Return the next answer and its part."""
        began = time.thread_time()
        found = super().receive()
        took = time.thread_time() - began
        self.slowest, self.together = max(self.slowest, took), self.together + took
        return found


def _training(
    task: RealTask, lam: float, steps: int, rounds: int, alone: bool, covariance: np.ndarray | None
) -> Training:
    """The paper's rounds on a cluster, or all rows on one machine, task after task."""
    loss, m = resolve_loss(loss_of(task)), task.train.n
    shards = [np.array([i]) for i in range(m)] if alone else deal(task.train.sizes, min(m, CORES))
    workers = [Worker(task.train.only(own), loss, own, passes=1.0, local_steps=steps, seed=0) for own in shards]
    settings = {"kind": "sequential"} if alone else {"kind": "synchronous", "rho": "lemma10", "momentum": False}
    times, each = (1, rounds) if covariance is not None else (-(-rounds // W_STEP), W_STEP)
    options = Options(m, lam, covariance, times, each, covariance is None, 1e-6, False, settings)
    return Training(Clocked(workers, shards), options)


def _curve(
    task: RealTask, lam: float, steps: int, rounds: int, *, alone: bool = False, covariance: np.ndarray | None = None
) -> Row:
    """Gap, error and seconds after some of the rounds: of a W-step, or until weights and covariance are learned."""
    _training(task, lam, 1, 1, alone, covariance).advance(0.0)  # all is compiled and loaded before the clock runs
    training = _training(task, lam, steps, rounds, alone, covariance)
    server = training.server
    timed: Any = server.workers
    wanted = set(np.unique(np.geomspace(1, rounds, 60).astype(int)).tolist())
    points = [(0, 0.0, server.evaluate(), error_of(task, server.weights))]
    seconds, done = 0.0, False
    while not done and server.rounds < rounds:
        timed.start()
        began = time.thread_time()
        if covariance is None:
            _, _, done = training.advance(0.0)  # one round
        else:
            done = server.round() == 0.0 or server.stalled
        took = time.thread_time() - began
        # The slowest worker, and what is not the workers': the server.
        seconds += took if alone else took - timed.together + timed.slowest
        if server.rounds > points[-1][0] and (done or server.rounds in wanted):
            points.append((server.rounds, seconds, server.evaluate(), error_of(task, server.weights)))
    names = ("rounds", "seconds", "gap", "error")
    found: Row = {name: list(values) for name, values in zip(names, zip(*points, strict=True), strict=True)}
    return {"who": "SSDCA" if alone else "DMTRL", "H": steps} | found


def w_step(data: str, size: int | None, seed: int, lam: float, rounds: int, part: str) -> Row:
    """Figures 3 to 6: the gap of a W-step, or the error where the covariance is learned, of DMTRL and its rivals."""
    task = tasks_of(data, size, seed)
    steps = STEPS["Synthetic 1" if data == "Synthetic 2" else data]
    m = task.train.n
    if part == "relations":  # of Figure 3
        covariance = task.auxiliary["correlation"] / m
        curve = _curve(task, lam, steps[1], rounds, covariance=covariance)
        return {"curves": [curve], "rho": separability(covariance, "lemma10")}
    if part == "gap":
        if "correlation" in task.auxiliary:
            covariance = task.auxiliary["correlation"] / m
        else:
            covariance = relationship(task.train, loss_of(task), lam, 300, tol=5e-2, passes=3.0).covariance
        curves = [_curve(task, lam, H, rounds, covariance=covariance) for H in steps]
        return {"curves": [*curves, _curve(task, lam, steps[1], rounds, alone=True, covariance=covariance)]}
    # STL is problem (1) with the covariance that Algorithm 1 begins with: unrelated tasks.
    curves = [_curve(task, lam, H, rounds) for H in steps]
    start = np.eye(m) / m
    if task.kind == "regression":
        stl = exact_weights(task.train, "squared", lam, start)
        lines = {"STL": error_of(task, stl)}
        lines["Centralized MTRL"] = error_of(task, centralised(task, lam, 20))
    else:
        given: dict[str, Any] = {"covariance": start, "rounds": 300, "tol": 1e-2, "passes": 3.0}
        stl = relationship(task.train, "hinge", lam, **given).weights
        lines = {"STL": error_of(task, stl)}
        if data == "Synthetic 1":
            lines["Centralized MTRL"] = error_of(task, centralised(task, lam, 400))
    if data != "Synthetic 1":
        curves.append(_curve(task, lam, steps[1], rounds, alone=True))
    return {"curves": curves, "lines": lines}


def curves(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The curves of all rows, each with the settings of its row."""
    return where([row | curve for row in rows for curve in row["curves"]], **wanted)


def rounds_to(curve: Row, goal: float, along: str = "rounds") -> float:
    """Rounds, or seconds, until the gap was no more than a goal, between points by its logarithm; inf if never."""
    gap, at = np.maximum(curve["gap"], 1e-300), np.asarray(curve[along], dtype=float)
    there = np.flatnonzero(gap <= goal)
    if not there.size:
        return float("inf")
    k = int(there[0])
    if k == 0 or gap[k] == goal:
        return float(at[k])
    part = (np.log(gap[k - 1]) - np.log(goal)) / (np.log(gap[k - 1]) - np.log(gap[k]))
    return float(at[k - 1] + part * (at[k] - at[k - 1]))


def sooner(slow: Row, fast: Row, along: str) -> float:
    """Return the logarithm of the ratio of the costs of two curves, at the smallest gap that both reach."""
    goal = max(min(slow["gap"]), min(fast["gap"]))
    return float(np.log10(rounds_to(slow, goal, along) / max(rounds_to(fast, goal, along), 1e-9)))


def speeds(rows: Sequence[Row], data: str, lam: float) -> Row:
    """Gap against time and rounds, for :func:`speed_claims`."""
    low, middle, high = STEPS[data]
    found = [
        {(curve["who"], curve["H"]): curve for curve in curves(rows, data=data, lam=lam, part="gap", seed=seed)}
        for seed in sorted(set(column(rows, "seed", data=data, lam=lam, part="gap")))
    ]
    key = f"{data} {lam:g}"
    return {
        f"{key} timed": [sooner(each["SSDCA", middle], each["DMTRL", middle], "seconds") for each in found],
        f"{key} longest": [sooner(each["SSDCA", middle], each["DMTRL", high], "seconds") for each in found],
        f"{key} fewer": [sooner(each["DMTRL", low], each["DMTRL", high], "rounds") for each in found],
    }


def speed_claims(data: str, lam: float) -> tuple[Ordered, Ordered]:
    """Return the paper's claims about Figures 4 (a) and (b), 5 (b) and (c)."""
    low, middle, high = STEPS[data]
    where_, key = f"{data}, λ = {lam:g}", f"{data} {lam:g}"
    # fmt: off
    return (
        Ordered(f"{where_}: log10 of SSDCA's time over DMTRL's to the same gap (H = {middle})",
                "DMTRL is faster than SSDCA", f"{key} timed", form=".2f",
                reason="Steps that are safe side by side are shorter by ρ, which eats up what cores bring.",
                note=f"{{{key} longest:.2f}} with H = {high} for DMTRL. {TIME}"),
        Ordered(f"{where_}: log10 of the rounds with H = {low} over those with H = {high}, to the same gap",
                "more local steps, fewer rounds", f"{key} fewer", form=".2f"),
    )
    # fmt: on


def _names(steps: Sequence[int]) -> dict[tuple[str, int], tuple[str, str, str]]:
    """Label, colour and style of every curve."""
    styles = {("DMTRL", H): (f"DMTRL, H = {H}", COLOURS[k], "-") for k, H in enumerate(steps)}
    return styles | {("SSDCA", steps[1]): (f"SSDCA, H = {steps[1]}", "black", "--")}


def draw_gap(axes: Axes, rows: Sequence[Row], data: str, lam: float, along: str) -> None:
    chosen = [row for row in rows if row["seed"] == min(column(rows, "seed", data=data))]
    for curve in curves(chosen, data=data, lam=lam, part="gap"):
        if along == "rounds" and curve["who"] == "SSDCA":
            continue
        label, colour, style = _names(STEPS[data])[curve["who"], curve["H"]]
        axes.plot(curve[along][1:], curve["gap"][1:], style, label=label, color=colour)
    axes.set_yscale("log")
    if along == "seconds":
        axes.set_xscale("log")
    axes.set_xlabel("CPU seconds (simulated 64 cores)" if along == "seconds" else "rounds of communication")
    axes.set_ylabel("duality gap")


def draw_error(axes: Axes, rows: Sequence[Row], data: str, lam: float) -> None:
    mine = where(rows, data=data, lam=lam, part="error")
    scale = 1.0 if data == "School" else 100.0
    for (who, H), (label, colour, style) in _names(STEPS[data]).items():
        # Rounds at which all seeds have a point: a run may end early.
        mine_of = curves(mine, who=who, H=H)
        if not mine_of:
            continue
        shared = sorted(set.intersection(*(set(curve["rounds"][1:]) for curve in mine_of)))
        short = [
            {"x": shared, "y": [scale * curve["error"][curve["rounds"].index(at)] for at in shared]}
            for curve in mine_of
        ]
        line(axes, short, "x", "y", label, colour, linestyle=style)
    for name, colour, style in (("STL", GREY, ":"), ("Centralized MTRL", "black", "-.")):
        values = [scale * row["lines"][name] for row in mine if name in row["lines"]]
        if values:
            axes.axhline(float(np.mean(values)), color=colour, linestyle=style, label=name)
    axes.set_xscale("log")
    axes.set_xlabel("rounds of communication")
    axes.set_ylabel("RMSE" if data == "School" else "prediction error, %")


def last(rows: Sequence[Row], data: str, lam: float, who: str, H: int) -> np.ndarray:
    return np.array([curve["error"][-1] for curve in curves(rows, data=data, lam=lam, part="error", who=who, H=H)])


def straight(rows: Sequence[Row], data: str, lam: float, name: str) -> np.ndarray:
    return np.array([row["lines"][name] for row in where(rows, data=data, lam=lam, part="error")])
