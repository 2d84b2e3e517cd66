"""Private coordinate descent: accuracy by the size of the local dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .._claims import Ordered
from .._experiment import Plan, Row, where
from .._figures import sheet
from .common import (
    ANOTHER,
    EPSILONS,
    HELD_OUT,
    OTHER_SCHEME,
    by_regime,
    chosen_by,
    everybody,
    mu_of,
    task_of,
    tune_mu,
    tune_schemes,
)

MINUTES = 0.8
#: What is compared with models trained alone, and how it is called.
NAMES = {
    "free": "non-private CD",
    **{f"paper {epsilon}": f"paper's scheme at epsilon {epsilon}" for epsilon in EPSILONS},
    **{f"ours {epsilon}": f"ours at epsilon {epsilon}" for epsilon in EPSILONS},
}


def plan(quick: bool) -> Plan:
    n, p, bins, held, runs = (24, 10, 3, 1, 2) if quick else (100, 100, 9, 2, 5)
    seeds = HELD_OUT[:held]
    rows = yield [{"step": "mu", "n": n, "p": p, "seed": seed} for seed in seeds]
    mu = mu_of(rows)
    rows = yield [{"step": "schemes", "n": n, "p": p, "seed": seed, "mu": mu} for seed in seeds[:1]]
    given = {"step": "score", "n": n, "p": p, "mu": mu, "chosen": chosen_by(rows, p), "bins": bins}
    yield [{**given, "seed": seed} for seed in range(runs)]


def work(step: str, **given: Any) -> Row:
    if step == "mu":
        return tune_mu(**given)
    return tune_schemes(**given) if step == "schemes" else _by_size(**given)


def _by_size(n: int, p: int, seed: int, mu: float, chosen: dict[str, list[float]], bins: int) -> Row:
    """Return the mean accuracy of the agents in each class of sizes; classes without agents are skipped."""
    task = task_of(n, p, seed)
    edges = np.linspace(10, 101, bins + 1)
    kind = np.digitize(task.train.sizes, edges[1:-1])
    count = np.bincount(kind, minlength=bins)
    there = count > 0
    found: Row = {"size": (0.5 * (edges[:-1] + edges[1:]))[there].round(1)}
    for name, theta in everybody(task, mu, chosen, seed):
        found[name] = (np.bincount(kind, task.accuracy(theta), bins)[there] / count[there]).round(6)
    return found


def _gains(rows: Sequence[Row], name: str) -> dict[float, list[float]]:
    """Return the gain of each class of sizes over models trained alone, for each run."""
    gains: dict[float, list[float]] = {}
    for row in rows:
        for size, together, alone in zip(row["size"], row[name], row["local"], strict=True):
            gains.setdefault(size, []).append(together - alone)
    return gains


def numbers(rows: list[Row]) -> Mapping[Any, Any]:
    scores = where(rows, step="score")
    found: dict[Any, Any] = {"p": scores[0]["p"]}
    for k, name in enumerate(NAMES):
        gains = _gains(scores, name)
        worst = min(gains, key=lambda size: float(np.mean(gains[size])))
        found |= {("least", name): gains[worst], f"worst {k}": worst, "classes": len(gains)}
        found["halves", name] = [_halves(row, name) for row in scores]
    return found


def _halves(row: Row, name: str) -> float:
    """Gain of the lower half of the classes of sizes, less that of the upper half."""
    gain = np.array(row[name]) - np.array(row["local"])
    half = gain.size // 2
    return float(gain[:half].mean() - gain[gain.size - half :].mean())


WHY = {
    "free": "Agents of this size know enough by themselves.",
    "paper": "Errata 2 and 7: with clipped gradients, what is published is noise at p = {p}.",
    "ours": "At this budget, noise on {p} coordinates leaves next to nothing to gain.",
}
FEW = {
    "free": "Agents with many examples gain as much.",
    "ours": "The final step leaves to an agent with few examples little to tell good advice from bad.",
}
#: What is put before the paper's words, and behind our note, in a line about our scheme.
SAID, NOTE = {"ours": f"{OTHER_SCHEME} "}, {"ours": f" {ANOTHER}"}

# fmt: off
CLAIMS = (
    *(Ordered(f"{words} - local, the class of sizes that gains least (about {{worst {k}:g}} examples)",
              f"{SAID.get(kind, '')}all agents benefit, whatever their size", ("least", name), form=".3f",
              reason=WHY[kind], note=f"The lowest of {{classes}} means is taken.{NOTE.get(kind, '')}")
      for k, (name, words) in enumerate(NAMES.items()) for kind in name.split()[:1]),
    *(Ordered(f"{words}: gain of the lower half of the classes of sizes - of the upper half",
              f"{SAID.get(kind, '')}agents with less data get a larger boost", ("halves", name), form=".3f",
              reason=FEW[kind], note=f"Classes count alike, however many agents they have.{NOTE.get(kind, '')}")
      for name, words in NAMES.items() for kind in name.split()[:1] if kind != "paper"),
)
# fmt: on


def draw(rows: list[Row]) -> Figure:
    scores = where(rows, step="score")
    figure, [left, right] = sheet(10.0, 4.4, 1, 2, sharey=True)
    by_regime(left, scores, "size", (("paper", "-", "o", ""),))
    left.set(title=f"paper's scheme, p = {scores[0]['p']}", xlabel="size of the local dataset", ylabel="test accuracy")
    by_regime(right, scores, "size", (("ours", "-", "o", ", ours"),))
    right.set(title="ours, at the same budgets", xlabel="size of the local dataset")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, ncols=2, loc="upper left", bbox_to_anchor=(0.0, 0.88))
    return figure
