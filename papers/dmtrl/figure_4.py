"""Duality gap against time and rounds, and prediction error, on Synthetic 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from .._claims import Compared, Ordered
from .._experiment import Plan, Row
from .._figures import sheet
from .rounds import STEPS, draw_error, draw_gap, last, speed_claims, speeds, straight
from .rounds import w_step as work

__all__ = ["CLAIMS", "MINUTES", "draw", "numbers", "plan", "work"]

MINUTES = 1.2
NAME, LAMS = "Synthetic 1", (1e-6, 1e-5)
MOST = STEPS[NAME][-1]


def plan(quick: bool) -> Plan:
    yield [
        {"data": NAME, "size": 100 if quick else None, "seed": seed, "lam": lam}
        | {"rounds": 20 if quick else 200, "part": part}
        for seed in range(1 if quick else 2)
        for lam in LAMS
        for part in ("gap", "error")
    ]


def numbers(rows: list[Row]) -> Mapping[str, Any]:
    found: Row = {}
    for lam in LAMS:
        dmtrl = last(rows, NAME, lam, "DMTRL", MOST)
        found |= speeds(rows, NAME, lam)
        found[f"error {lam:g}"] = 100 * dmtrl.mean()
        found[f"central {lam:g}"] = 100.0 * (dmtrl - straight(rows, NAME, lam, "Centralized MTRL"))
        found[f"alone {lam:g}"] = 100.0 * (straight(rows, NAME, lam, "STL") - dmtrl)
    return found


# fmt: off
CLAIMS = tuple(
    row for lam in LAMS for row in (
        *speed_claims(NAME, lam),
        Compared(f"{NAME}, λ = {lam:g}: error of DMTRL after the last round, less that of Centralized MTRL, %", 0.0,
                 f"central {lam:g}", 0.1, "lower", "the same solution", form=".2f",
                 note=f"H = {MOST}; DMTRL has {{error {lam:g}:.2f}} %."),
        Ordered(f"{NAME}, λ = {lam:g}: prediction error of STL less that of DMTRL, %", "DMTRL is better than STL",
                f"alone {lam:g}", form=".2f"),
    )
)
# fmt: on


def draw(rows: list[Row]) -> Figure:
    figure, panels = sheet(13.0, 7.4, 2, 3)
    for k, lam in enumerate(LAMS):
        for axes, along in zip(panels[k], ("seconds", "rounds"), strict=False):
            draw_gap(axes, rows, NAME, lam, along)
        draw_error(panels[k, 2], rows, NAME, lam)
        titles = ("Duality Gap v. Time", "Duality Gap v. Communication", "Prediction Error v. Communication")
        for axes, letter, title in zip(panels[k], "abcdef"[3 * k :], titles, strict=False):
            axes.set_title(f"({letter}) {title}, λ = {lam:g}", fontsize=10)
            axes.legend(fontsize=8)
    return figure
