"""Prediction error, and duality gap against time and rounds, on real data (DMTRL, Figures 5 and 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from .._claims import Compared, Ordered
from .._experiment import Plan, Row, column
from .._figures import sheet
from .rounds import STEPS, draw_error, draw_gap, last, speed_claims, speeds, straight

#: Rows for each task of MNIST, and rounds.
ROWS, ROUNDS = 2000, {"School": 200, "MNIST": 60, "MDS": 60}


def real_plan(quick: bool, lam: float) -> Plan:
    sizes: dict[str, int | None] = {"School": None, "MNIST": ROWS, "MDS": None}
    if quick:
        sizes = {"School": 12, "MDS": 3}
    yield [
        {"data": data, "size": size, "seed": seed, "lam": lam, "rounds": 10 if quick else ROUNDS[data], "part": part}
        for data, size in sizes.items()
        for seed in range(1 if quick else 2)
        for part in ("gap", "error")
    ]


def _seen(rows: Sequence[Row]) -> list[str]:
    """The datasets there are rows of."""
    return list(dict.fromkeys(column(rows, "data")))


def numbers(rows: list[Row]) -> Mapping[str, Any]:
    found: Row = {}
    lam = rows[0]["lam"]
    for data in _seen(rows):
        scale = 1.0 if data == "School" else 100.0
        dmtrl, stl = scale * last(rows, data, lam, "DMTRL", STEPS[data][-1]), scale * straight(rows, data, lam, "STL")
        found |= speeds(rows, data, lam)
        found |= {f"{data} DMTRL": dmtrl, f"{data} STL": stl, f"{data} gain": stl - dmtrl}
        if data == "School":
            central = found["central"] = straight(rows, data, lam, "Centralized MTRL")
            found["same"] = dmtrl - central
    return found


def real_claims(lam: float) -> tuple[Any, ...]:
    """Return the paper's claims about both figures, at one strength."""
    shown = "DMTRL {{{0} DMTRL:.2f}}, STL {{{0} STL:.2f}}.".format
    # fmt: off
    return (
        *speed_claims("School", lam),
        Compared(f"School, λ = {lam:g}: RMSE of DMTRL less that of Centralized MTRL", 0.0, "same", 0.02, "lower",
                 "the same prediction error", form=".2f",
                 reason=f"{ROUNDS['School']} rounds with the ρ of Lemma 10 do not reach the optimum; Table 2 does.",
                 note=f"H = {STEPS['School'][-1]}; Centralized {{central:.2f}}."),
        Ordered(f"School, λ = {lam:g}: error of STL less that of DMTRL, RMSE", "DMTRL outperforms STL", "School gain",
                form=".2f", note=shown("School"),
                reason="With so small a λ the optimum itself, Centralized, is hardly better than STL; see Table 2."),
        *speed_claims("MNIST", lam),
        Compared(f"MNIST, λ = {lam:g}: error of STL less that of DMTRL, %", 0.0, "MNIST gain", 0.2, "higher",
                 "no difference", form=".2f", note=f"{ROWS} rows for each task, not 12,000. {shown('MNIST')}"),
        *speed_claims("MDS", lam),
        Ordered(f"MDS, λ = {lam:g}: error of STL less that of DMTRL, %", "DMTRL outperforms STL", "MDS gain",
                form=".2f", note=f"14 of the paper's 22 domains. {shown('MDS')}"),
    )
    # fmt: on


def draw(rows: list[Row]) -> Figure:
    lam = rows[0]["lam"]
    seen = _seen(rows)
    figure, panels = sheet(4.4 * len(seen), 10.6, 3, len(seen))
    for k, data in enumerate(seen):
        draw_error(panels[0, k], rows, data, lam)
        draw_gap(panels[1, k], rows, data, lam, "seconds")
        draw_gap(panels[2, k], rows, data, lam, "rounds")
        for axes, what in zip(
            panels[:, k], ("(a) Prediction Error", "(b) Gap v. Time", "(c) Gap v. Rounds"), strict=True
        ):
            axes.set_title(f"{what}, {data}, λ = {lam:g}", fontsize=10)
            axes.legend(fontsize=7)
    return figure
