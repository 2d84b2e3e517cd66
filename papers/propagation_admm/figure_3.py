"""Linear classification: propagation and collaborative learning by dimension, training size, communications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coterie import datasets
from coterie.core.methods import CollaborativeADMM
from coterie.engines.simulator import simulate
from coterie.plots import BLUE, GREY, RED
from coterie.problem import Problem
from coterie.problem.baselines import GlobalModel

from .._claims import Alike, Ordered
from .._experiment import Plan, Row, best, best_along, values, where
from .._figures import COLOURS, line, sheet
from .common import (
    ALPHAS,
    FEW_AGENTS,
    HELD_OUT,
    MUS,
    NOT_CLEARLY,
    RHOS,
    P,
    classification,
    ended,
    learnt,
    reached,
    scored,
    spread_out,
    tuning_of_separators,
)

MINUTES = 4.5
DIMENSIONS = (2, 10, 20, 50, 100)
METHODS = {
    "consensus": ("consensus model", GREY),
    "solitary": ("solitary models", COLOURS[2]),
    "mp": ("model propagation", RED),
    "cl": ("collaborative learning", BLUE),
}
#: Part of the way from the solitary to the optimal accuracy at which costs are compared.
SHARE = 0.95
#: Courses: how long, and how long between two observations, in communications beside those of a round.
LONG, LONG_STEP = 20.0, 0.125
SHORT, SHORT_STEP = 2.0, 0.0125


def plan(quick: bool) -> Plan:
    n, often = (20, 1) if quick else (100, 2)
    dimensions = (2, 10) if quick else DIMENSIONS
    held_out = range(HELD_OUT, HELD_OUT + often)
    tuning = yield [{"part": "tune", "n": n, "p": p, "seed": seed} for p in dimensions for seed in held_out]
    alpha = {p: best_along(where(tuning, p=p), "mp", ALPHAS) for p in dimensions}
    mu = {p: best_along(where(tuning, p=p), "cl", MUS) for p in dimensions}
    yield [
        {"part": "measure", "n": n, "p": p, "seed": seed, "alpha": alpha[p], "mu": mu[p]}
        for p in dimensions
        for seed in range(3 if quick else 10)
    ]
    p = dimensions[-1] if quick else P
    course = {"n": n, "p": p, "alpha": alpha[p], "mu": mu[p]}
    paces = yield [
        {"part": "pace", **course, "seed": seed, "rho": rho}
        for rho in (RHOS[1::3] if quick else RHOS)
        for seed in held_out
    ]
    ((gossiped,), (synchronous,)) = (best(paces, name, "rho") for name in ("asynchronous", "synchronous"))
    yield [
        {"part": "trace", **course, "seed": seed, "rho": gossiped, "rho_synchronous": synchronous}
        for seed in range(2 if quick else 10)
    ]


def work(part: str, **settings: Any) -> Row:
    if part == "tune":
        return tuning_of_separators(**settings)
    if part == "measure":
        return _accuracies(**settings)
    return _paces(**settings) if part == "pace" else _traces(**settings)


def _accuracies(n: int, p: int, seed: int, alpha: float, mu: float) -> Row:
    task = classification(n, p, seed)
    problem = learnt(task, mu)
    alone = problem.local()
    models = (GlobalModel().models(problem), alone, spread_out(task, alone, alpha).solve(), problem.solve())
    found = {name: task.accuracy(theta) for name, theta in zip(METHODS, models, strict=True)}
    sizes = np.unique(task.train.sizes)
    by_size = {name: [acc[task.train.sizes == m].mean() for m in sizes] for name, acc in found.items()}
    return {"sizes": sizes, "by_size": by_size, **{name: acc.mean() for name, acc in found.items()}}


def _course(
    problem: Problem,
    task: datasets.LinearTask,
    method: Any,
    start: np.ndarray,
    seed: int | None,
    rounds: float = LONG,
    step: float = LONG_STEP,
) -> tuple[list[int], list[float]]:
    """Communications, without the initial swap, and accuracies. Without a seed: synchronous rounds."""
    edges, observe = task.graph.n_edges, {"accuracy": scored(task)}
    if seed is None:
        trace = simulate(problem, method, rounds=int(rounds), start=start, observe=observe, every=1).trace
        costs = 2 * edges * np.arange(len(trace))
    else:
        wakes, every = int(rounds * edges), max(1, int(step * edges))
        trace = simulate(problem, method, wakes=wakes, start=start, seed=seed, observe=observe, every=every).trace
        costs = 2 * trace["wakes"].to_numpy()
    return costs.tolist(), trace["accuracy"].round(5).tolist()


def _paces(n: int, p: int, seed: int, alpha: float, mu: float, rho: float) -> Row:
    """Mean accuracy along the way, with one rho."""
    task = classification(n, p, seed)
    problem, admm = learnt(task, mu), CollaborativeADMM(rho)
    alone = problem.local()
    return {
        "asynchronous": np.mean(_course(problem, task, admm, alone, seed)[1]),
        "synchronous": np.mean(_course(problem, task, admm, alone, None)[1]),
    }


def _traces(n: int, p: int, seed: int, alpha: float, mu: float, rho: float, rho_synchronous: float) -> Row:
    task = classification(n, p, seed)
    problem, score = learnt(task, mu), scored(task)
    alone = problem.local()
    smooth = spread_out(task, alone, alpha)
    propagated, admm = smooth.solve(), CollaborativeADMM(rho)
    courses = {
        "asynchronous CL": _course(problem, task, admm, alone, seed),
        "synchronous CL": _course(problem, task, CollaborativeADMM(rho_synchronous), alone, None),
        "asynchronous MP": _course(smooth, task, "propagation", alone, seed, SHORT, SHORT_STEP),
        "asynchronous CL from MP": _course(problem, task, admm, propagated, seed),
    }
    return {
        "edges": task.graph.n_edges,
        "solitary": score(alone),
        "optimum": {"CL": score(problem.solve()), "MP": score(propagated)},
        "courses": courses,
    }


def _cost(row: Row, name: str, share: float = SHARE) -> float:
    """Communications until a course has gone most of the way from solitary accuracy to that of its own optimum."""
    final = row["optimum"]["MP" if name == "asynchronous MP" else "CL"]
    level = row["solitary"] + share * (final - row["solitary"])
    costs, values = row["courses"][name]
    return ended(reached(costs, values, level), f"{name} on instance {row['seed']}")


def _of_size(rows: Sequence[Row], name: str, least: int, most: int) -> np.ndarray:
    """Return the accuracy of each instance's agents with sizes in a range, averaged over the sizes."""
    return np.array(
        [
            np.mean([a for m, a in zip(row["sizes"], row["by_size"][name], strict=True) if least <= m <= most])
            for row in rows
        ]
    )


CL, MP, FEW, MANY = "asynchronous CL", "asynchronous MP", (1, 5), (16, 20)


def numbers(rows: list[Row]) -> Mapping[Any, Any]:
    measured = where(rows, part="measure")
    of = {p: where(measured, p=p) for p in sorted({row["p"] for row in measured})}
    low, high = min(of), max(of)
    scores = {(name, p): 100.0 * values(of[p], name) for p in of for name in METHODS}
    found: dict[Any, Any] = {"low": low, "high": high}
    for name in METHODS:
        found[f"{name} decreases"] = 100.0 * (values(of[low], name) - values(of[high], name))
    for p, end in ((low, "low"), (high, "high")):
        found |= {f"{name} {end}": scores[name, p] for name in METHODS}
        found |= {f"{name} gains {end}": _gain(of[p], name, "solitary") for name in ("mp", "cl")}
    found |= {("cl", p): _gain(of[p], "cl", "mp") for p in of}
    middle = of[P] if P in of else of[high]
    size = {name: [100.0 * _of_size(middle, name, *which) for which in (FEW, MANY)] for name in METHODS}
    gaps = [cl - mp for cl, mp in zip(size["cl"], size["mp"], strict=True)]
    found |= {f"{name} by size": size[name][1] - size[name][0] for name in METHODS}
    found |= {FEW: gaps[0], MANY: gaps[1], "gap grows": gaps[1] - gaps[0]}
    return found | _costs(where(rows, part="trace"))


def _gain(rows: Sequence[Row], name: str, other: str) -> np.ndarray:
    return 100.0 * (values(rows, name) - values(rows, other))


def _costs(rows: list[Row]) -> Row:
    """Communications of courses, as ratios, and as their powers of ten."""
    cost = {name: np.array([_cost(row, name) for row in rows]) for name in rows[0]["courses"]}
    half = {name: np.array([_cost(row, name, 0.5) for row in rows]) for name in rows[0]["courses"]}
    swap = np.array([2 * row["edges"] for row in rows])
    ratios = {
        "swap counted": (cost[CL] + swap) / (cost[MP] + swap),
        "halfway": (half[CL] + swap) / (half[MP] + swap),
        "swap not counted": cost[CL] / cost[MP],
        "vectors": (4 * cost[CL] + swap) / (cost[MP] + swap),
    }
    found: Row = {"synchronous": cost[CL] / cost["synchronous CL"], "warm": cost[CL] - cost["asynchronous CL from MP"]}
    return found | ratios | {f"log {name}": np.log10(ratio) for name, ratio in ratios.items()}


#: Why ADMM does not keep the lead of a warm start.
COLD = (
    "The lead is lost in the first exchanges, perhaps because multipliers start from zero all the same. The paper "
    "suggests a warm start, and does not show one."
)
TO = f"communications to {SHARE:.0%} of the way"
#: What an order of magnitude is said of: its name among the numbers, what to add to the note, and why it is another.
MAGNITUDES = {
    f"{TO}, asynchronous CL / MP, initial swap counted": (
        "swap counted", " Each on its way to its own optimum.", "Erratum 12: the swap is nearly all that MP sends."),
    "communications to half of the way, asynchronous CL / MP, initial swap counted": (
        "halfway", "", "Erratum 12: less than that. Both begin with the swap, which is nearly all that MP sends."),
    f"{TO}, asynchronous CL / MP, initial swap not counted": (
        "swap not counted", "", "Erratum 12: more than that. MP lives on the swap, which is not counted here."),
    "vectors instead of communications, to 95% of the way, asynchronous CL / MP, initial swap counted": (
        "vectors", "", "A little more than that: a message of ADMM holds four vectors, one of MP a single one."),
}  # fmt: skip

# fmt: off
CLAIMS = (
    *(Ordered(f"accuracy of {label}, p = {{low}} - p = {{high}}, in %", "decreases with the dimension",
              f"{name} decreases", form=".1f", reason=NOT_CLEARLY)
      for name, (label, _) in METHODS.items()),
    Alike("accuracy of the consensus model, p = {low}, in %", "very poor", "consensus low", 50.0, 5.0, form=".1f",
          reason=FEW_AGENTS, note="A guess has 50 %."),
    Alike("accuracy of solitary models, p = {high}, in %", "barely above a guess", "solitary high", 50.0, 10.0,
          form=".1f", reason="In fewer dimensions, solitary models are better.", note="A guess has 50 %."),
    *(Ordered(f"{METHODS[name][0]} - solitary, p = {{{end}}}, in %", "very significant", f"{name} gains {end}",
              form=".1f", reason=NOT_CLEARLY)
      for name in ("mp", "cl") for end in ("low", "high")),
    *(Ordered(f"collaborative learning - model propagation, p = {p}, in %", "always better", ("cl", p), form=".1f",
              reason="Erratum 11: they may tie." if p == min(DIMENSIONS) else NOT_CLEARLY)
      for p in DIMENSIONS),
    Ordered("solitary, agents with 16..20 points - 1..5 points, in %", "higher for larger training sets",
            "solitary by size", form=".1f", reason=NOT_CLEARLY),
    Alike("collaborative learning, agents with 16..20 points - 1..5 points, in %", "similar accuracy", "cl by size",
          0.0, 3.0, form=".1f", reason=FEW_AGENTS, note="Solitary models: {solitary by size:.1f}."),
    *(Ordered(f"CL - MP, agents with {least}..{most} points, in %", "better on all sizes", (least, most), form=".1f",
              reason=NOT_CLEARLY)
      for least, most in (FEW, MANY)),
    Ordered("(CL - MP) at 16..20 points - at 1..5 points, in %", "the gap grows", "gap grows", form=".1f",
            reason=NOT_CLEARLY),
    Alike(f"{TO}, asynchronous / synchronous CL", "as good as", "synchronous", 1.0, 0.25, form=".2f",
          reason=FEW_AGENTS, note="Each with the rho that is best for it on held-out instances."),
    *(Alike(f"log10 of {what}", "an order of magnitude", f"log {name}", 1.0, 0.5, form=".2f", reason=reason,
            note=f"A factor of {{{name}:.3g}}, where 3.2 to 32 is an order of magnitude.{more}")
      for what, (name, more, reason) in MAGNITUDES.items()),
    Ordered(f"{TO} of CL, from solitary models - from propagated ones", "propagation is a valuable warm start", "warm",
            form=".0f", reason=COLD, note="The messages of propagation itself are not counted."),
)
# fmt: on


def draw(rows: list[Row]) -> Figure:
    figure, [left, middle, right] = sheet(13.0, 4.0, 1, 3)
    measured, traces = where(rows, part="measure"), where(rows, part="trace")
    for name, (label, colour) in METHODS.items():
        line(left, measured, "p", name, label, colour, marker="o", markersize=4)
        if name != "consensus":
            of_size = [
                {"size": row["sizes"], "accuracy": row["by_size"][name]} for row in where(measured, p=traces[0]["p"])
            ]
            line(middle, of_size, "size", "accuracy", label, colour)
    left.set_xlabel("dimension p")
    middle.set_xlabel("number of training points")
    middle.set_xticks([1, 5, 10, 15, 20])
    styles = {"synchronous CL": (BLUE, "--"), "asynchronous CL": (BLUE, "-"), "asynchronous MP": (RED, "-")}
    for name, (colour, style) in styles.items():
        # Instances have different numbers of edges: their costs are put on one grid.
        ends = [row["courses"][name][0][-1] for row in traces]
        grid = np.linspace(0.0, min(ends), 100).round().tolist()
        shown = [{"cost": grid, "accuracy": np.interp(grid, *row["courses"][name])} for row in traces]
        line(right, shown, "cost", "accuracy", name, colour, linestyle=style)
    for name, colour in (("CL", BLUE), ("MP", RED)):
        right.axhline(np.mean([row["optimum"][name] for row in traces]), color=colour, linewidth=0.8, linestyle=":")
    swap = 2 * np.mean([row["edges"] for row in traces])
    right.axvline(swap, color=GREY, linewidth=0.8)
    right.annotate(
        "initial swap\n(not counted)", (swap, 0.02), xycoords=("data", "axes fraction"), fontsize=8, color=GREY,
        xytext=(3, 0), textcoords="offset points",
    )  # fmt: skip
    right.set_xlabel("pairwise communications")
    right.ticklabel_format(axis="x", style="sci", scilimits=(0, 4))
    for axes, title in ((left, ""), (middle, f"p = {traces[0]['p']}"), (right, f"p = {traces[0]['p']}")):
        axes.set_ylabel("test accuracy")
        axes.set_title(title, fontsize=10)
        axes.legend(fontsize=8)
    return figure
