"""Test accuracy against communication, on four real datasets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from .._claims import Ordered
from .._experiment import Plan, Row, where
from .._figures import COLOURS, sheet
from .real import DADA, DEARER, FEATURES, FILES, LEARNED, PERSO_LIN, course, pieces, seen

MINUTES = 0.3
DATA = FILES


def plan(quick: bool) -> Plan:
    last = {"HARWS": 9, "VEHICLE": 9, "COMPUTER": 7, "SCHOOL": 7}
    names = ("VEHICLE", "COMPUTER") if quick else tuple(last)
    yield pieces(names, lambda name: [2**k for k in range((last[name] if not quick else 4) + 1)])


def work(dataset: str, method: str, mu: float, beta: float, lam: float, wakes: Sequence[int]) -> Row:
    bits, accuracies = course(dataset, method, mu, beta, lam, wakes, np.inf)
    return {"bits": bits, "accuracy": [accuracy.mean() for accuracy in accuracies]}


def _cost(row: Row, accuracy: float) -> float:
    """Bits after which a course has this accuracy, at the first of its points that does."""
    return float(next(bits for bits, reached in zip(row["bits"], row["accuracy"], strict=True) if reached >= accuracy))


def _saved(rows: list[Row], dataset: str) -> tuple[float, float]:
    """An accuracy that both methods reach, and by how many powers of ten Dada-Learned is cheaper there."""
    perso, dada = (where(rows, dataset=dataset, method=method)[0] for method in LEARNED)
    accuracy = min(max(perso["accuracy"]), max(dada["accuracy"])) - 1.0
    return accuracy, math.log10(_cost(perso, accuracy) / _cost(dada, accuracy))


def numbers(rows: list[Row]) -> Mapping[str, Any]:
    found: Row = {}
    for name in seen(rows):
        found[f"{name} accuracy"], saved = _saved(rows, name)
        found[name] = saved - 0.1  # of one run: less than a quarter is no saving
    if "HARWS" in found:
        by_name = {name: _saved(rows, name)[1] for name in seen(rows)}
        found["more"] = by_name.pop("HARWS") - max(by_name.values())
    return found


# fmt: off
CLAIMS = (
    *(Ordered(f"{name}: log10 of bits of {PERSO_LIN} / bits of {DADA}, for {{{name} accuracy:.1f}} %, minus 0.1",
              "generally higher accuracies with less communication", name, form=".2f", reason=DEARER.get(name, ""))
      for name in FEATURES),
    Ordered("what is saved on HARWS - the most that is saved elsewhere, log10",
            "especially on datasets of high dimension, such as HARWS", "more", form=".2f"),
)
# fmt: on


def draw(rows: list[Row]) -> Figure:
    names = seen(rows)
    figure, panels = sheet(3.8 * len(names), 3.6, 1, len(names))
    for axes, name in zip(panels, names, strict=True):
        for method, colour in zip(LEARNED, COLOURS, strict=False):
            row = where(rows, dataset=name, method=method)[0]
            axes.plot(row["bits"][1:], row["accuracy"][1:], label=method, color=colour, marker="o", markersize=3)
            axes.axvline(row["bits"][0], color=colour, linestyle=":", linewidth=1.0)
        axes.plot([], [], color="black", linestyle=":", linewidth=1.0, label="first graph")
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("communication, bits for each user")
        axes.set_title(f"{name} (D = {FEATURES[name]})")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy, %")
    panels[0].legend(loc="lower right")
    return figure
