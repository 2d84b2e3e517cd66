"""Accuracy of all methods against iterations, on both tasks (DADA, Figures 1 and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .._claims import Ordered
from .._experiment import Plan, Row, best, column, where
from .._figures import line
from .moons import (
    COLLABORATIVE,
    COLOUR_OF,
    GLOBAL,
    LEARNED,
    LINEAR,
    LINEAR_LEARNED,
    LINEAR_ORACLE,
    LOCAL,
    METHODS,
    ORACLE,
    PACE,
    WAKES,
    cross_validated,
    fit,
    instance_of,
    neighbours,
    score_on,
)

#: What parameters are chosen from: powers of ten, as in DADA, Section E.1, and a beta between, without those far off.
BETAS, MUS, LAMS = (1.0, 3.0, 10.0, 100.0), (0.1, 1.0, 10.0), (0.1, 1.0, 10.0)
GRID: dict[str, dict[str, Sequence[float]]] = {
    ORACLE: {"beta": BETAS, "mu": (0.1, 1.0, 10.0, 100.0)},
    LEARNED: {"beta": BETAS, "mu": MUS, "lam": LAMS},
    GLOBAL: {"beta": (1.0, 3.0, 10.0, 100.0, 1000.0)},
    LOCAL: {"beta": (1.0, 3.0, 10.0, 100.0, 1000.0)},
    LINEAR_ORACLE: {"mu": (0.01, 0.1, 1.0, 10.0)},
    LINEAR_LEARNED: {"mu": MUS, "lam": LAMS},
}
QUICK_GRID: dict[str, dict[str, Sequence[float]]] = {LEARNED: {"beta": (10.0,), "mu": (1.0, 10.0), "lam": (1.0,)}}
PARAMETERS = ("beta", "mu", "lam")
#: The instances that parameters are chosen by, and how many others are reported.
TUNED_ON = (1000, 1001, 1002)
SEEDS = {"Moons": 20, "Moons100": 10}
#: Instances for cross-validation as in the paper, and its wakes.
CROSSED_ON = {"Moons": (1000, 1001), "Moons100": (1000,)}
FOLD_WAKES = 10_000


def course(
    task: str, method: str, n: int, seed: int, wakes: int, beta: float, mu: float, lam: float, folds: int, empty: str
) -> Row:
    """One method on one instance: its score in cross-validation; or accuracies, on the way if it has one."""
    rows = instance_of(task, seed, n, empty)
    settings: dict[str, Any] = {"beta": beta, "mu": mu, "lam": lam, "wakes": wakes, "pace": PACE[task], "seed": seed}
    if folds:
        return {"score": cross_validated(method, rows, folds, **settings)}
    found = fit(method, rows, **settings, points=50)
    row: Row = {
        name: score_on(found.problem, data)(found.theta) for name, data in (("train", rows.train), ("test", rows.test))
    }
    row["oracle"] = neighbours(rows.graph)
    if found.trace is not None:
        row |= {f"{name} trace": found.trace[name].tolist() for name in ("wakes", "train", "test")}
        edges = found.trace.get("neighbours")
        row["neighbours trace"] = [neighbours(rows.graph)] * len(found.trace) if edges is None else edges.tolist()
    return row


def course_plan(task: str, quick: bool) -> Plan:
    # The paper cross-validates inside the training rows of users. But scikit-learn spaces the points of a moon evenly:
    # rows that are held out lie in the gaps of the others, and are not like fresh ones. So parameters are chosen on
    # fresh rows of instances that are not reported, and, for Dada-Learned, also as the paper does: both are reported.
    grid = QUICK_GRID if quick else GRID
    common: Row = {"task": task, "n": 40 if quick else 100, "empty": "zeros", "beta": 10.0, "mu": 1.0, "lam": 1.0}
    full = common | {"wakes": WAKES // (5 if quick else 1), "folds": 0}
    folded = common | {"wakes": FOLD_WAKES // (5 if quick else 1), "folds": 3}
    tuning = [
        full | {"method": method, "seed": seed} | dict(zip(lists, values, strict=True))
        for seed in TUNED_ON[: 1 if quick else None]
        for method, lists in grid.items()
        for values in product(*lists.values())
    ]
    tuning += [
        folded | {"method": LEARNED, "seed": seed} | dict(zip(grid[LEARNED], values, strict=True))
        for seed in (CROSSED_ON[task][:1] if quick else CROSSED_ON[task])
        for values in product(*grid[LEARNED].values())
    ]
    tuning += [folded | {"method": method, "seed": TUNED_ON[0]} for method in (LOCAL, GLOBAL)]
    found = yield tuning
    seeds = range(3 if quick else SEEDS[task])
    chosen = [full | {"method": method} | _tuned(found, method) for method in METHODS]
    crossed = full | {"method": LEARNED} | _crossed(found)
    if crossed not in chosen:
        chosen.append(crossed)
    pieces = [settings | {"seed": seed} for settings in chosen for seed in seeds]
    if task == "Moons":
        others = product((10.0,), (1.0,), (1.0,)) if quick else product((1.0, 10.0), MUS, LAMS)
        noisy = [{"method": LEARNED, "beta": beta, "mu": mu, "lam": lam} for beta, mu, lam in others]
        noisy += [{"method": GLOBAL, "beta": beta} for beta in ((10.0,) if quick else (1.0, 10.0))]
        pieces += [full | each | {"empty": "random", "seed": seed} for each in noisy for seed in range(3)]
    yield pieces


def _tuned(rows: list[Row], method: str) -> dict[str, float]:
    """Return the parameters that are best on fresh rows of the tuning instances."""
    found = [row for row in where(rows, method=method, folds=0, empty="zeros") if row["seed"] in TUNED_ON]
    return dict(zip(PARAMETERS, best(found, "test", *PARAMETERS), strict=True)) if found else {}


def _crossed(rows: list[Row]) -> dict[str, float]:
    """Return the parameters of Dada-Learned chosen by cross-validation inside the users' rows."""
    return dict(zip(PARAMETERS, best(where(rows, method=LEARNED, folds=3), "score", *PARAMETERS), strict=True))


def _reported(rows: list[Row]) -> list[Row]:
    return [row for row in where(rows, folds=0, empty="zeros") if row["seed"] not in TUNED_ON]


def measured(rows: list[Row]) -> list[Row]:
    """The rows that are shown."""
    return [row for method in METHODS for row in where(_reported(rows), method=method, **_tuned(rows, method))]


def of_each(rows: list[Row], name: str, method: str) -> np.ndarray:
    """One number of each instance."""
    return np.array([row[name] for row in sorted(where(measured(rows), method=method), key=lambda row: row["seed"])])


def course_numbers(rows: list[Row]) -> dict[Any, Any]:
    """What is said of both tasks: test accuracies in %, differences of them, and what cross-validation leads to."""
    test = {method: 100.0 * of_each(rows, "test", method) for method in METHODS}
    gap = {
        method: of_each(rows, "train", method) - of_each(rows, "test", method) for method in (ORACLE, LEARNED, LOCAL)
    }
    found: dict[Any, Any] = {("test", method): test[method] for method in METHODS}
    for method in (ORACLE, LEARNED):
        found |= {(method, other): test[method] - test[other] for other in (LOCAL, GLOBAL)}
        found["overfitting", method] = 100.0 * (gap[LOCAL] - gap[method])
    crossed = sorted(where(_reported(rows), method=LEARNED, **_crossed(rows)), key=lambda row: row["seed"])
    as_paper = 100.0 * np.array([row["test"] for row in crossed])
    found |= {("crossed", other): as_paper - test[other] for other in (LOCAL, GLOBAL)}
    found["held out"] = 100.0 * where(rows, method=LOCAL, folds=3)[0]["score"]
    found["chosen"] = ", ".join(f"{name} = {value:g}" for name, value in _crossed(rows).items())
    return found


# fmt: off
COURSE_CLAIMS = (
    *(Ordered(f"test accuracy, {method} - {LOCAL}, points", "higher", (method, LOCAL), form=".1f")
      for method in (ORACLE, LEARNED)),
    *(Ordered(f"overfitting (training - test accuracy), {LOCAL} - {method}, points", "reduced",
              ("overfitting", method), form=".1f")
      for method in (ORACLE, LEARNED)),
    *(Ordered(f"test accuracy, {method} - {GLOBAL}, points", "higher", (method, GLOBAL), form=".1f",
              reason="Moons rotated around the origin lie in different places, by which one model tells them "
                     "apart; around their centre it cannot.")
      for method in (ORACLE, LEARNED)),
    *(Ordered(f"test accuracy, {LEARNED} with parameters from 3-fold cross-validation, as in the paper, - {other}, "
              "points", "higher", ("crossed", other), form=".1f",
              reason="A user's points are evenly spaced on its moons: held-out rows lie in the gaps, and are not like "
                     f"fresh ones. {LOCAL} is right on {{held out:.0f}} % of them.",
              note="It chooses {chosen}.")
      for other in (LOCAL, GLOBAL)),
)
# fmt: on


def draw_accuracies(rows: list[Row], which: str, axes: Axes) -> None:
    shown = measured(rows)
    for method in METHODS:
        of = where(shown, method=method)
        if method in COLLABORATIVE:
            scaled = [{"wakes": row["wakes trace"], "y": 100.0 * np.array(row[f"{which} trace"])} for row in of]
            line(axes, scaled, "wakes", "y", method, COLOUR_OF[method])
        else:
            style = ":" if method in LINEAR else "--"
            level = 100.0 * np.mean(column(of, which))
            axes.axhline(level, label=method, color=COLOUR_OF[method], linestyle=style, linewidth=1.3)
    axes.set_xlabel("iterations")
    axes.set_ylabel(f"{'training' if which == 'train' else which} accuracy (%)")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=5)
    axes.set_ylim(45.0, 101.0)
    axes.grid(alpha=0.3)


def legend_below(figure: Figure, axes: Axes) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncol=4, frameon=False)


def tables(rows: list[Row]) -> dict[str, pd.DataFrame]:
    """Accuracy of all methods, and the parameters that were chosen."""
    lines = []
    for method in METHODS:
        of = where(measured(rows), method=method)
        used = GRID.get(method, {})
        test = 100.0 * np.array(column(of, "test"))
        lines.append(
            {
                "method": method,
                **{name: f"{of[0][name]:g}" if name in used else "" for name in ("beta", "mu", "lam")},
                "training accuracy": round(100.0 * float(np.mean(column(of, "train"))), 1),
                "test accuracy": round(float(test.mean()), 1),
                "standard error": round(float(test.std(ddof=1) / np.sqrt(test.size)), 2),
            }
        )
    folded = [
        {
            "method": method,
            "cross-validated": round(100.0 * where(rows, method=method, folds=3)[0]["score"], 1),
            "on test rows": round(100.0 * float(of_each(rows, "test", method).mean()), 1),
        }
        for method in (LOCAL, GLOBAL)
    ]
    return {
        "Accuracy in %, and the parameters that were chosen": pd.DataFrame(lines).set_index("method"),
        "Accuracy in %: rows that are held out are not like test rows": pd.DataFrame(folded).set_index("method"),
    }
