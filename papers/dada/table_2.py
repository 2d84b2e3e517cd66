"""Test accuracy within a budget of communication, on four real datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from .._claims import Compared, Ordered
from .._experiment import Plan, Row, where
from .._figures import COLOURS, sheet
from .real import DADA, DEARER, FEATURES, FILES, LEARNED, NUMBER_BITS, PERSO_LIN, SUBSET, course, pieces, seen

MINUTES = 0.6
DATA = FILES
#: Budgets, in vectors of D numbers; and the cells that the paper's table has for certain.
BUDGETS = (160, 500, 1000)
TABLE_2 = {
    ("HARWS", DADA): (95.70, 95.70, 95.70),
    ("HARWS", PERSO_LIN): (None, 81.06, 87.55),
    ("VEHICLE", DADA): (None, 89.57, 90.81),
    ("VEHICLE", PERSO_LIN): (None, 89.82, 90.52),
    ("COMPUTER", DADA): (None, 62.22, 68.83),
    ("COMPUTER", PERSO_LIN): (None, None, 68.95),
    ("SCHOOL", DADA): (None, 71.90, 72.22),
    ("SCHOOL", PERSO_LIN): (None, None, 71.90),
}


def plan(quick: bool) -> Plan:
    steps = 2 if quick else 5  # lengths from one power of two to the next
    lengths = sorted({round(2.0 ** (k / steps)) for k in range((4 if quick else 9) * steps + 1)})
    yield pieces(("VEHICLE", "COMPUTER") if quick else tuple(FEATURES), lambda name: lengths)


def work(dataset: str, method: str, mu: float, beta: float, lam: float, wakes: Sequence[int]) -> Row:
    unit = FEATURES[dataset] * NUMBER_BITS
    bits, accuracies = course(dataset, method, mu, beta, lam, wakes, max(BUDGETS) * unit)
    held = [np.searchsorted(bits, budget * unit, side="right") - 1 for budget in BUDGETS]
    # Before the first graph there is nothing to begin with; with it, models are zeros.
    return {
        "first": bits[0] / unit,
        "reached": [bits[k] / unit if k >= 0 else None for k in held],
        "accuracies": [accuracies[k].round(3) if k >= 1 else None for k in held],
    }


def numbers(rows: list[Row]) -> Mapping[Any, Any]:
    found: dict[Any, Any] = {}
    for name in seen(rows):
        ours = {method: where(rows, dataset=name, method=method)[0]["accuracies"] for method in LEARNED}
        for k, budget in enumerate(BUDGETS):
            at = {method: np.array(ours[method][k]) for method in LEARNED if ours[method][k] is not None}
            found |= {(name, method, budget): at[method] for method in at if name != SUBSET}
            if len(at) == 2:
                found[name, budget] = at[DADA] - at[PERSO_LIN]
    return found


HINGE = "Our steps are of the logistic loss, the authors' of the hinge loss."

# fmt: off
CLAIMS = tuple(
    row for name in FEATURES for k, budget in enumerate(BUDGETS) for row in (
        *(Compared(f"{name}, {method}, DZ x {budget} bits for each user: test accuracy, %", number,
                   (name, method, budget), 0.5, "higher", form=".2f", reason=HINGE if method == PERSO_LIN else "")
          for method in LEARNED for number in [TABLE_2[name, method][k]] if number is not None),
        Ordered(f"{name}, DZ x {budget} bits: {DADA} - {PERSO_LIN}, points", "higher accuracy under limited budgets",
                (name, budget), form=".2f", reason=DEARER.get(name, "")),
    )
)
# fmt: on


def tables(rows: list[Row]) -> Mapping[str, pd.DataFrame]:
    lines = []
    for row in rows:
        line: Row = {"dataset": row["dataset"], "method": row["method"], "first graph": round(row["first"])}
        for budget, values in zip(BUDGETS, row["accuracies"], strict=True):
            line[f"DZ x {budget}"] = "-" if values is None else f"{np.mean(values):.2f}"
        lines.append(line)
    return {"Test accuracy by budget; what the first graph costs, in DZ": pd.DataFrame(lines).set_index("dataset")}


def draw(rows: list[Row]) -> Figure:
    names = seen(rows)
    figure, panels = sheet(3.4 * len(names), 3.6, 1, len(names))
    for axes, name in zip(panels, names, strict=True):
        for shift, method, colour in zip((-0.2, 0.2), LEARNED, COLOURS, strict=False):
            row = where(rows, dataset=name, method=method)[0]
            for k, values in enumerate(row["accuracies"]):
                at, published = k + shift, TABLE_2[name, method][k]
                if values is not None:
                    error = 2.0 * np.std(values, ddof=1) / np.sqrt(len(values))
                    axes.errorbar(at, np.mean(values), error, color=colour, marker="o", capsize=3)
                if published is not None and name != SUBSET:
                    axes.plot([at - 0.15, at + 0.15], [published] * 2, color=colour, linestyle="--")
            axes.plot([], [], color=colour, marker="o", label=method)
        axes.plot([], [], color="black", linestyle="--", label="the paper")
        axes.set_xticks(range(len(BUDGETS)), [f"DZ x {budget}" for budget in BUDGETS])
        axes.set_xlim(-0.5, len(BUDGETS) - 0.5)
        axes.set_title(f"{name} (D = {FEATURES[name]})")
        axes.grid(axis="y", alpha=0.3)
    panels[0].set_ylabel("test accuracy, %")
    panels[-1].legend(loc="lower right")
    return figure
