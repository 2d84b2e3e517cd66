"""How many peers to ask at a time: rounds and communication of learning the graph."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coterie.engines.graph_learning import learn_graph
from coterie.graphs.exact import exact_graph, graph_objective
from coterie.plots import GREY

from .._claims import Compared, Ordered
from .._experiment import Plan, Row, column, values, where
from .._figures import COLOURS, sheet
from .moons import CHOSEN, LEARNED, LOCAL, PACE, fit, instance_of

MINUTES = 1.5
KAPPAS = (1, 5, 10, 30, 50, 99)
#: Bits of a number, Z.
BITS = 32
#: A solution of moderate precision: this part is left of the way from no edges to the best graph.
LEFT = 0.1
#: How a block of weights changes: to its best weights, or by a gradient step with the curvature where the degrees are.
BEST, GRADIENT = "exact", "local"
#: Blocks for which gradient steps are shown: with larger ones they are slow.
GRADIENT_KAPPAS = (1, 5, 10)


def plan(quick: bool) -> Plan:
    chosen = CHOSEN["Moons"][LEARNED]
    kappas = (1, 5, 24) if quick else KAPPAS
    yield [
        {"kappa": kappa, "step": step, "seed": seed, "n": 25 if quick else 100, **chosen}
        for step, of in ((BEST, kappas), (GRADIENT, [kappa for kappa in kappas if kappa in GRADIENT_KAPPAS]))
        for kappa in of
        for seed in range(2 if quick else 5)
    ]


def work(kappa: int, step: str, seed: int, n: int, beta: float, mu: float, lam: float) -> Row:
    """Learn a graph for the models of Local-boost, with a trace of the objective."""
    instance = instance_of("Moons", 0, n)
    problem, theta, _ = fit(LOCAL, instance, beta, mu, lam, 200 * n, PACE["Moons"], 0)
    known = (theta, problem.losses(theta), problem.loss_weight, mu, lam)
    optimum = graph_objective(exact_graph(*known), *known)
    total = 10 * n * (n - 1) // kappa  # every user asks every other ten times
    run = learn_graph(*known, kappa=kappa, wakes=total, seed=seed, step=step, every=max(1, total // 400))
    value, wakes = run.trace["value"].to_numpy(), run.trace["wakes"].to_numpy()
    # Answers carry whole models here. As pairs of an index and a number, which is how boosting sends them, they are:
    size = float(np.count_nonzero(theta, axis=1).mean())
    answers = kappa * run.wakes
    rest = run.bits(BITS) - answers * problem.p * BITS
    bits = (rest + answers * size * (BITS + np.log2(problem.p))) / run.wakes
    reached = np.flatnonzero(value - optimum <= LEFT * (value[0] - optimum))
    rounds = float(wakes[reached[0]] if reached.size else wakes[-1])
    kept = np.unique(np.geomspace(1, len(value), 120).astype(int) - 1)
    return {
        "wakes": wakes[kept],
        "value": value[kept],
        "bits": bits * wakes[kept],
        "optimum": optimum,
        "reached": bool(reached.size),
        "rounds": rounds,
        "communication": bits * rounds,
        "without models": rest / run.wakes * rounds,
        "size": size,
    }


def _by_kappa(rows: list[Row], name: str, step: str) -> dict[int, np.ndarray]:
    shown = where(rows, step=step)
    return {kappa: values(shown, name, kappa=kappa) for kappa in sorted({row["kappa"] for row in shown})}


def numbers(rows: list[Row]) -> Mapping[str, Any]:
    rounds, n = _by_kappa(rows, "rounds", BEST), rows[0]["n"]
    first, most = min(rounds), max(rounds)
    found: Row = {"first": first, "most": most, "rounds": rounds[first] / rounds[most] - 1.0}
    for step in NAMES:
        sent = _by_kappa(rows, "communication", step)
        other = min((kappa for kappa in sent if kappa != first), key=lambda kappa: sent[kappa].mean())
        found[step] = sent[other] / sent[first] - 1.0
        found[f"{step} other"] = other
        short = not all(column(rows, "reached", step=step, kappa=other))
        found[f"{step} end"] = ", and was not there at the end of the run: at least so much more." if short else "."
    bits = found["bits"] = _by_kappa(rows, "communication", BEST)[first]
    found["size"] = np.mean(column(rows, "size"))
    found["without models"] = _by_kappa(rows, "without models", BEST)[first]
    return found | {"all to all": np.log10(BITS * n * n * (n - 1) / 2.0 / bits)}


NAMES = {BEST: "steps to the best weights of a block", GRADIENT: "gradient steps"}

# fmt: off
CLAIMS = (
    Ordered(f"rounds until {LEFT:.0%} of the way to the best graph is left, kappa = {{first}} / kappa = {{most}}, "
            "minus 1", "a larger kappa needs fewer rounds", "rounds", form=".0f"),
    *(Ordered(f"bits until then, kappa = {{{step} other}} / kappa = {{first}}, minus 1; {name}",
              "kappa = 1 communicates least", step, form=".2f",
              reason="The steps of the paper become shorter with the block (Section C); these do not.",
              note=f"kappa = {{{step} other}} is the cheapest of the others{{{step} end}}")
      for step, name in NAMES.items()),
    Compared("bits until then, kappa = {first}", 5e5, "bits", 2.5e5, paper="about 5e5", form=".2g",
             reason="An answer carries a model, here {size:.1f} pairs of index and number, at every meeting; without "
                    "the models it is {without models:.1g}."),
    Ordered("log10 of bits to send all weights to all once, Z K^2 (K - 1) / 2, / bits until then, kappa = {first}",
            "1.6e7 bits, against 5e5", "all to all", form=".2f"),
)
# fmt: on


def draw(rows: list[Row]) -> Figure:
    figure, panels = sheet(11.0, 4.4, 1, 2, sharey=True)
    colours = dict(zip(sorted({row["kappa"] for row in rows}), COLOURS, strict=False))
    for axes, x, label in zip(panels, ("wakes", "bits"), ("iterations", "communication (bits)"), strict=True):
        for (kappa, colour), step in product(colours.items(), (BEST, GRADIENT)):
            of = where(rows, kappa=kappa, step=step)
            if of:
                along = np.array(of[0][x])
                values = np.mean([np.interp(along, row[x], row["value"]) for row in of], axis=0)
                style: dict[str, Any] = {"label": f"κ = {kappa}"} if step == BEST else {"linestyle": ":"}
                axes.plot(along[1:], values[1:], color=colour, **style)
        axes.axhline(rows[0]["optimum"], color="black", linestyle="--", linewidth=1.0, label="best graph")
        axes.set_xscale("log")
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    panels[0].plot([], [], color=GREY, linestyle=":", label="gradient steps")
    panels[0].set_ylabel("objective of the graph")
    n = rows[0]["n"]
    panels[1].axvline(BITS * n * n * (n - 1) / 2.0, color=GREY, linestyle="-.", label="all weights to all, once")
    panels[0].legend(fontsize="small")
    panels[1].legend(handles=panels[1].get_legend_handles_labels()[0][-1:], fontsize="small")
    return figure
