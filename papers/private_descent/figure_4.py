"""Local models learned from data that are private by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from coterie.privacy import perturbed
from coterie.problem import Problem

from .._claims import Alike, Ordered
from .._experiment import Plan, Row, column, values, where
from .._figures import COLOURS, line, sheet
from .common import DIMENSIONS, EPSILONS, HELD_OUT, accuracy, against_local, mu_of, problem_of, task_of, tune_mu

MINUTES = 2.0
REGIMES = (0.15, 0.55, 1.05, 5.0, 20.0)


def plan(quick: bool) -> Plan:
    n, dimensions, held, runs = (24, (2, 20), 1, 2) if quick else (100, DIMENSIONS, 2, 5)
    rows = yield [{"step": "mu", "n": n, "p": p, "seed": seed} for p in dimensions for seed in HELD_OUT[:held]]
    yield [
        {"step": "score", "n": n, "p": p, "mu": mu_of(where(rows, p=p)), "seed": seed}
        for p in dimensions
        for seed in range(runs)
    ]


def work(step: str, **given: Any) -> Row:
    return tune_mu(**given) if step == "mu" else _locally_private(**given)


def _locally_private(n: int, p: int, mu: float, seed: int) -> Row:
    """Return models learned from data with local differential privacy: alone, and with collaboration."""
    task = task_of(n, p, seed)
    found: Row = {"local": accuracy(task, problem_of(task, mu).local())}
    for epsilon in REGIMES:
        # Rows in the cube have L1 norms of p / 2 in the mean. About half of them are shortened a little, and noise is
        # half of what a bound that shortens none would need.
        noisy = Problem.personalized(perturbed(task.train, epsilon, row_norm=p / 2.0, seed=seed), task.graph, mu=mu)
        found[f"alone {epsilon}"] = accuracy(task, noisy.local())
        found[f"together {epsilon}"] = accuracy(task, noisy.solve())
    return found


def numbers(rows: list[Row]) -> Mapping[Any, Any]:
    scores = where(rows, step="score")
    each = [where(scores, seed=seed) for seed in sorted(set(column(scores, "seed")))]
    found: dict[Any, Any] = {}
    for e in EPSILONS:
        found["lost", e] = [float(-against_local(rows, f"alone {e}").mean()) for rows in each]
        found["gain", e] = [float((values(rows, f"together {e}") - values(rows, f"alone {e}")).mean()) for rows in each]
    return found


# fmt: off
CLAIMS = (
    *(Ordered(f"local - local DP at epsilon {epsilon}, mean over p", "the loss in accuracy is huge", ("lost", epsilon),
              form=".3f", reason="Models learned from noise are no worse here.")
      for epsilon in EPSILONS),
    *(Alike(f"collaborative learning - local, both on the perturbed data at epsilon {epsilon}, mean over p",
            "no significant improvement", ("gain", epsilon), 0.0, 0.02, form=".3f",
            reason="Together, agents do find something in the noise where there are few features.",
            note="Two points are allowed for, by our choice.")
      for epsilon in EPSILONS),
)
# fmt: on


def draw(rows: list[Row]) -> Figure:
    scores = where(rows, step="score")
    figure, [axes] = sheet(6.0, 4.4)
    line(axes, scores, "p", "local", "purely local models, data as it is", "black", linestyle="--")
    for epsilon, colour in zip(REGIMES, COLOURS, strict=False):
        label = f"local DP, $\\epsilon$ = {epsilon:g}"
        line(axes, scores, "p", f"alone {epsilon}", label, colour, marker="o", markersize=4)
    axes.set(xlabel="dimension p", ylabel="test accuracy", title="Purely local models learned from perturbed data")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure
