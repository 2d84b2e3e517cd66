"""Communications to nine tenths of the optimal accuracy, by the number of agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coterie.core.methods import CollaborativeADMM
from coterie.engines.simulator import simulate
from coterie.plots import BLUE, RED

from .._claims import Compared
from .._experiment import Plan, Row, best, best_along, column, where
from .._figures import line, sheet
from .common import (
    ALPHAS,
    HELD_OUT,
    MUS,
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

MINUTES = 4.0
SIZES = (100, 200, 400, 700, 1000)
NEIGHBOURS = 10
#: Part of the accuracy of the optimal models that is to be reached.
GOOD = 0.9
#: Accuracies that all full-size runs pass on their way, to see what is due to a goal that rises with n.
FIXED = {"CL": 0.77, "MP": 0.73}


def plan(quick: bool) -> Plan:
    p, neighbours, sizes = (30, 4, (20, 40)) if quick else (P, NEIGHBOURS, SIZES)
    common = {"p": p, "neighbours": neighbours}
    held_out = range(HELD_OUT, HELD_OUT + (1 if quick else 2))
    tuning = yield [{"part": "tune", "n": sizes[0], **common, "seed": seed} for seed in held_out]
    chosen = {**common, "alpha": best_along(tuning, "mp", ALPHAS), "mu": best_along(tuning, "cl", MUS)}
    paces = yield [
        {"part": "scale", "n": sizes[0], **chosen, "seed": seed, "rho": rho}
        for rho in (RHOS[1::3] if quick else RHOS[:5])
        for seed in held_out
    ]
    (rho,) = best(paces, "CL", "rho", highest=False)
    yield [
        {"part": "scale", "n": n, **chosen, "seed": seed, "rho": rho}
        for n in sizes
        for seed in range(2 if quick else 3)
    ]


def work(part: str, **settings: Any) -> Row:
    return tuning_of_separators(**settings) if part == "tune" else _scaled(**settings)


def _scaled(n: int, p: int, neighbours: int, alpha: float, mu: float, seed: int, rho: float) -> Row:
    """Communications, without the initial swap, until the accuracy is 90 % of that of the optimal models."""
    task = classification(n, p, seed, neighbours)
    problem, score = learnt(task, mu), scored(task)
    alone = problem.local()
    smooth = spread_out(task, alone, alpha)
    found: Row = {"edges": task.graph.n_edges, "solitary": score(alone), "optimum": {}, "fixed": {}}
    contestants = (("CL", problem, CollaborativeADMM(rho), n // 5), ("MP", smooth, "propagation", n // 20))
    for name, posed, method, every in contestants:
        found["optimum"][name] = optimum = score(posed.solve())
        run = simulate(
            posed,
            method,
            wakes=200 * n,
            seed=seed,
            start=alone,
            observe={"accuracy": score},
            every=every,
            until=lambda theta, level=GOOD * optimum: score(theta) >= level,  # type: ignore[misc]
        )
        trace = run.trace
        costs, accuracy = 2 * trace["wakes"].to_numpy(), trace["accuracy"].to_numpy()
        found[name], found["fixed"][name] = (reached(costs, accuracy, a) for a in (GOOD * optimum, FIXED[name]))
    return found


def _exponents(rows: Sequence[Row], cost: Callable[[Row], float]) -> np.ndarray:
    """Return for each instance number the slope b of the line log cost = a + b log n."""
    each = [where(rows, seed=seed) for seed in sorted({row["seed"] for row in rows})]
    return np.array([np.polyfit(np.log(column(of, "n")), np.log([cost(row) for row in of]), 1)[0] for of in each])


def _reported(rows: list[Row]) -> list[Row]:
    return [row for row in where(rows, part="scale") if row["seed"] < HELD_OUT]


def numbers(rows: list[Row]) -> Mapping[str, Any]:
    shown = _reported(rows)
    sizes = np.array(column(shown, "n"))
    found: Row = {"swap": 2.0 * np.mean([row["edges"] / row["n"] for row in shown])}
    for name in FIXED:
        costs = np.array([ended(row[name], f"{name} on instance {row['seed']}, n = {row['n']},") for row in shown])
        found[name] = _exponents(shown, lambda row, name=name: row[name])  # type: ignore[misc]
        found[f"{name} line"] = np.corrcoef(sizes, costs)[0, 1] ** 2
        found[f"{name} each"] = costs / sizes
        for end, n in (("least", min(sizes)), ("most", max(sizes))):
            found[f"{name} {end}"] = 100 * np.mean([GOOD * row["optimum"][name] for row in where(shown, n=n)])
        found[f"{name} fixed"] = ""
        if np.isfinite([row["fixed"][name] for row in shown]).all():  # not so in small instances
            fixed = _exponents(shown, lambda row, name=name: row["fixed"][name])  # type: ignore[misc]
            found[f"{name} fixed"] = f" To {FIXED[name]:.0%} at all n, the exponent is {fixed.mean():.2f}."
    return found


# fmt: off
CLAIMS = tuple(
    Compared(f"exponent of n in the communications of asynchronous {label}", 1.0, name, 0.1, paper="linear", form=".2f",
             reason="The goal, 90% of the optimal accuracy, rises with n: "
                    f"{{{name} least:.1f}} to {{{name} most:.1f}} %.{{{name} fixed}}",
             note=f"R² of a straight line {{{name} line:.3f}}; for each agent {{{name} each:.1f}} communications, and "
                  "{swap:.1f} for the initial swap.")
    for name, label in (("CL", "collaborative learning"), ("MP", "model propagation"))
)
# fmt: on


def draw(rows: list[Row]) -> Figure:
    figure, [axes] = sheet(6.0, 4.2)
    shown = _reported(rows)
    for name, label, colour in (("CL", "asynchronous CL", BLUE), ("MP", "asynchronous MP", RED)):
        line(axes, shown, "n", name, label, colour, marker="o", markersize=4)
        slope = np.dot(column(shown, "n"), column(shown, name)) / np.square(column(shown, "n")).sum()
        along = np.array([0, max(column(shown, "n"))])
        axes.plot(along, slope * along, color=colour, linewidth=0.8, linestyle=":", label=f"{slope:.1f} n")
    axes.set_xlabel("number of agents")
    axes.set_ylabel(f"pairwise communications\nto {GOOD:.0%} of the optimal accuracy")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure
