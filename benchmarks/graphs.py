"""Which graph helps linear models: none, nearest neighbours, learned from models trained alone, or learned with them.

python benchmarks/graphs.py [--seeds 5] [--json graphs.json]

Collaborative linear classification (CD, Section 5), 100 agents, logistic loss, mu = 1. On every graph the models are
the exact optimum, so that the table compares graphs and not solvers. "alone first" learns the graph from the models
that agents train alone, and then keeps it: what ``CollaborativeClassifier(graph="learn")`` does. "together" goes on
learning it while the models move (``ct.Learned``, 200 wakes of each agent).
"""

import argparse
import json

import numpy as np
from rich.console import Console
from rich.table import Table

import coterie as ct

SETTINGS = {
    "p=20, 10..100 points": {"p": 20, "rows": (10, 100)},
    "p=50, 10..100 points": {"p": 50, "rows": (10, 100)},
    "p=20, 1..20 points": {"p": 20, "rows": (1, 20)},
}
LAMS = (0.1, 1.0, 10.0)


def scores(seed, p, rows):
    """Mean test accuracy, and neighbours of an agent, for each graph."""
    task = ct.datasets.linear_classification(n=100, p=p, rows=rows, seed=seed)
    separate = ct.Problem.personalized(task.train, ct.graphs.empty(100))
    alone = separate.local()
    graphs = {"local": separate.graph, "5 nearest": ct.graphs.knn(alone, 5), "oracle": task.graph}
    for lam in LAMS:
        rule = ct.GraphRule(lam=lam)
        graphs[f"alone first, lam={lam:g}"] = ct.exact_graph(
            alone, separate.losses(alone), separate.loss_weight, lam=lam
        )
        graphs[f"together, lam={lam:g}"] = ct.simulate(separate, ct.Learned("cd", rule), wakes=20_000, seed=seed).graph
    return {
        name: (
            float(task.accuracy(separate.on(graph=graph).solve()).mean()),
            2.0 * graph.n_edges / 100,
        )
        for name, graph in graphs.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    result = {}
    for setting, options in SETTINGS.items():
        runs = [scores(seed, **options) for seed in range(arguments.seeds)]
        result[setting] = {name: np.mean([run[name] for run in runs], axis=0).round(4).tolist() for name in runs[0]}
    table = Table(title=f"Mean test accuracy (neighbours of an agent), {arguments.seeds} seeds")
    table.add_column("graph", no_wrap=True)
    for setting in SETTINGS:
        table.add_column(setting, justify="right")
    for name in next(iter(result.values())):
        table.add_row(name, *(f"{result[s][name][0]:.3f} ({result[s][name][1]:.0f})" for s in SETTINGS))
    Console(width=110).print(table)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
