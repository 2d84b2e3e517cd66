"""Error rates on MNIST and MDS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from .._claims import Compared, Ordered
from .._experiment import Plan, Row, column, values, where
from .._figures import bars
from .errors import table as work
from .errors import table_plan

__all__ = ["CLAIMS", "DATA", "MINUTES", "draw", "numbers", "plan", "work"]

MINUTES = 3.0
DATA = ("mnist", "mds14")
#: Error rates in %, each with what the paper gives after ±.
TABLE = {"MNIST": {"DMTRL": (5.2, 0.12), "STL": (5.2, 0.11)}, "MDS": {"DMTRL": (12.6, 0.09), "STL": (16.0, 0.1)}}


def plan(quick: bool) -> Plan:
    sizes: dict[str, int | None] = {"MNIST": 60 if quick else None, "MDS": 3 if quick else None}
    yield from table_plan(quick, sizes, sizes | {"MNIST": 60 if quick else 2000}, 1 if quick else 3)


def numbers(rows: list[Row]) -> Mapping[str, Any]:
    rows = where(rows, part="test")
    found: Row = {}
    for data, methods in TABLE.items():
        for method in methods:
            found[f"{data} {method}"] = 100.0 * values(rows, "error", data=data, method=method)
            found[f"lam {data} {method}"] = column(rows, "lam", data=data, method=method)[0]
        found[f"{data} gain"] = found[f"{data} STL"] - found[f"{data} DMTRL"]
    return found


OTHER_DATA = "Other data: 14 of its 22 domains, 2,000 reviews of each, and not up to 20,751."
BY_FOLDS = "by 3-fold cross-validation on training rows of the first split."


def _cells(data: str, better: str | None, reason: str) -> list[Compared]:
    # The tolerance: the paper's spread, and its rounding.
    # fmt: off
    return [
        Compared(f"{data}: error rate of {method}, %", number, f"{data} {method}", spread + 0.05, better,
                 f"{number:.1f} ± {spread:g}", form=".2f", reason=reason,
                 note=f"λ = {{lam {data} {method}:g}} {BY_FOLDS}")
        for method, (number, spread) in TABLE[data].items()
    ]
    # fmt: on


CLAIMS = (
    *_cells("MNIST", "lower", ""),
    Compared("MNIST: error rate of STL less that of DMTRL, %", 0.0, "MNIST gain", 0.12, "higher", form=".2f"),
    *_cells("MDS", None, OTHER_DATA),
    Ordered("MDS: error rate of STL less that of DMTRL, %", "DMTRL is better", "MDS gain"),
)


def draw(rows: list[Row]) -> Figure:
    found = numbers(rows)
    ours = {data: {name: found[f"{data} {name}"].tolist() for name in methods} for data, methods in TABLE.items()}
    paper = {data: {name: cell[0] for name, cell in methods.items()} for data, methods in TABLE.items()}
    return bars(ours, paper, "error rate, %")
