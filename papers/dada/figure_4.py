"""Test accuracy by the number of training points of a user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coterie import datasets, graphs
from coterie.datasets.sources import find
from coterie.evaluation import evaluate

from .._claims import Compared, Ordered
from .._experiment import Plan, Row, best, values, where
from .._figures import line, sheet
from .moons import (
    CHOSEN,
    COLOUR_OF,
    LEARNED,
    LOCAL,
    ORACLE,
    PACE,
    WAKES,
    Rows,
    cross_validated,
    fit,
    instance_of,
)

MINUTES = 1.5
SHOWN = (ORACLE, LEARNED, LOCAL)
#: Few and many training rows of a user.
FEW, MANY = 6, 12
#: Human activity: stumps (DADA, Section E.1), wakes, and what cross-validation chooses from.
HARWS_STUMPS, HARWS_WAKES = 1122, 6_000
HARWS_GRID: dict[str, dict[str, Sequence[float]]] = {
    LEARNED: {"beta": (10.0, 100.0), "mu": (0.1, 1.0, 10.0), "lam": (0.1, 1.0)},
    LOCAL: {"beta": (10.0, 100.0)},
}


def plan(quick: bool) -> Plan:
    n, wakes, seeds = (40, WAKES // 5, range(4)) if quick else (100, WAKES, range(20))
    common = {"folds": 0, "beta": 10.0, "mu": 1.0, "lam": 1.0}
    pieces = [
        common | {"task": "Moons", "method": method, "n": n, "wakes": wakes, "seed": seed} | CHOSEN["Moons"][method]
        for method in SHOWN
        for seed in seeds
    ]
    if quick or find("harws") is None:
        yield pieces
        return
    harws = common | {"task": "HARWS", "n": 30, "wakes": HARWS_WAKES, "seed": 0}
    found = yield [
        harws | {"method": method, "folds": 3} | dict(zip(lists, values, strict=True))
        for method, lists in HARWS_GRID.items()
        for values in product(*lists.values())
    ]
    for method, lists in HARWS_GRID.items():
        chosen = dict(zip(lists, best(where(found, method=method), "score", *lists), strict=True))
        pieces += [harws | {"method": method, "seed": seed} | chosen for seed in range(1, 6)]
    yield pieces


def work(task: str, method: str, n: int, seed: int, wakes: int, beta: float, mu: float, lam: float, folds: int) -> Row:
    """Test accuracy of each user, and how many training rows it has."""
    settings: dict[str, Any] = {"beta": beta, "mu": mu, "lam": lam, "wakes": wakes, "pace": PACE["Moons"], "seed": seed}
    if task == "HARWS":
        real = datasets.human_activity(seed=seed)
        rows: Any = Rows(real.train, real.test, graphs.empty(n))
        settings["stumps"] = HARWS_STUMPS
    else:
        rows = instance_of(task, seed, n)
    if folds:
        return {"score": cross_validated(method, rows, folds, **settings)}
    found = fit(method, rows, **settings)
    each = evaluate(found.theta, found.problem, rows.test, score="accuracy", alone=False).each
    return {"sizes": rows.train.sizes, "accuracy": each}


def _by_size(rows: list[Row], method: str, low: int, high: int) -> np.ndarray:
    """Mean accuracy in % of the users with low to high training rows, one of each instance."""
    found = []
    for row in where(rows, method=method, task="Moons", folds=0):
        sizes = np.array(row["sizes"])
        found.append(100.0 * np.mean(np.array(row["accuracy"])[(sizes >= low) & (sizes <= high)]))
    return np.array(found)


def numbers(rows: list[Row]) -> Mapping[Any, Any]:
    few = {method: _by_size(rows, method, 0, FEW) for method in SHOWN}
    many = {method: _by_size(rows, method, MANY, 99) for method in SHOWN}
    found: dict[Any, Any] = {
        "alone": many[LOCAL] - few[LOCAL],
        "closed": many[ORACLE] - few[ORACLE],
        "matched": many[ORACLE] - many[LEARNED],
        "not matched": few[ORACLE] - few[LEARNED] - many[ORACLE] + many[LEARNED],
    }
    for method in (ORACLE, LEARNED):
        found[method, "few"] = few[method] - few[LOCAL]
        found[method, "many"] = many[method] - many[LOCAL]
        found[method, "few - many"] = few[method] - few[LOCAL] - many[method] + many[LOCAL]
    real = where(rows, task="HARWS", folds=0)
    if real:
        together, alone = (values(real, "accuracy", method=method) for method in (LEARNED, LOCAL))
        found["HARWS"] = 100.0 * np.mean(together - alone, axis=1)
    return found


SMALL, LARGE = f"at most {FEW} rows", f"at least {MANY} rows"

# fmt: off
CLAIMS = (
    Ordered(f"{LOCAL}: {LARGE} - {SMALL}, points", "good with larger sets, poor with limited ones", "alone",
            form=".1f"),
    *(row for method in (ORACLE, LEARNED) for row in (
        Ordered(f"{method} - {LOCAL}, {SMALL}, points", "higher", (method, "few"), form=".1f"),
        Ordered(f"{method} - {LOCAL}, {LARGE}, points", "higher", (method, "many"), form=".1f",
                reason="With the oracle's graph it holds; the learned one has edges across the clusters (Figure 2)."),
        Ordered(f"{method} - {LOCAL}, {SMALL} minus {LARGE}, points", "especially on users with small datasets",
                (method, "few - many"), form=".1f"),
    )),
    Compared(f"{ORACLE}: {LARGE} - {SMALL}, points", 0.0, "closed", 1.0, paper="the gap is fully closed", form=".1f"),
    Compared(f"{ORACLE} - {LEARNED}, {LARGE}, points", 0.0, "matched", 1.0, paper="matched, but on small datasets",
             form=".1f",
             reason="The learned graph has edges across the clusters (Figure 2), the oracle's has none."),
    Ordered(f"{ORACLE} - {LEARNED}, {SMALL} minus {LARGE}, points", "not matched on small datasets", "not matched",
            form=".1f"),
    Ordered(f"HARWS: {LEARNED} - {LOCAL}, points", "generally improves", "HARWS", form=".1f"),
)
# fmt: on


def draw(rows: list[Row]) -> Figure:
    tasks = [task for task in ("Moons", "HARWS") if where(rows, task=task, folds=0)]
    figure, panels = sheet(5.4 * len(tasks), 4.2, 1, len(tasks))
    for axes, task in zip(panels, tasks, strict=True):
        width = 1 if task == "Moons" else 5
        for method in SHOWN:
            of = where(rows, task=task, method=method, folds=0)
            if not of:
                continue
            users = [
                {"size": width * (size // width) + (width - 1) / 2.0, "accuracy": 100.0 * accuracy}
                for row in of
                for size, accuracy in zip(row["sizes"], row["accuracy"], strict=True)
            ]
            line(axes, users, "size", "accuracy", method, COLOUR_OF[method], marker="o", markersize=3.5)
        axes.set_title(task)
        axes.set_xlabel("training points of the user" + ("" if width == 1 else f", in groups of {width}"))
        axes.set_ylabel("test accuracy (%)")
        axes.grid(alpha=0.3)
        axes.legend()
    return figure
