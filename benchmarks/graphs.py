"""Which graph helps linear models: none, nearest neighbours, learned from models trained alone, or learned with them.

python benchmarks/graphs.py [--seeds 5] [--json graphs.json]
python benchmarks/graphs.py --many 1e3 1e4 1e5
python benchmarks/graphs.py --moons --seeds 20

Collaborative linear classification (CD, Section 5), 100 agents, logistic loss, mu = 1. On every graph the models are
the exact optimum, so that the table compares graphs and not solvers. "alone first" learns the graph from the models
that agents train alone, and then keeps it: what ``CollaborativeClassifier(graph="learn")`` does. "together" goes on
learning it while the models move (``ct.Learned``, 200 wakes of each agent).

With ``--many``: does a learned graph get worse with the number of agents? Circles of about a hundred agents that are
alike (p = 20); CPU seconds of ``exact_graph(candidates=30)`` and of ``learn_graph`` as it comes, each with its search
for the nearest; the part of the weight inside circles; and how far the second is above the optimum, for each agent.

With ``--moons``: decision stumps on clustered moons (DADA, Figure 1), learned with the graph, on the true one, alone,
and as one model for all. ``examples/plot_07_learned_graph.py`` draws one seed of it.
"""

import argparse
import json
import time

import numpy as np
from rich.console import Console
from rich.table import Table

import coterie as ct
from coterie.graphs.exact import graph_objective

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


def circles(n, p=20, size=100):
    """Models and losses, and the circle that each agent is of."""
    rng = np.random.default_rng(1)
    centres = rng.standard_normal(p) + rng.standard_normal((max(1, n // size), p))
    circle = rng.integers(0, len(centres), n)
    return centres[circle] + 0.3 * rng.standard_normal((n, p)), rng.uniform(0.1, 0.6, n), circle


def many(sizes):
    """One row for each number of agents."""
    table = Table(title="Learned graphs of many agents")
    for name in ("agents", "exact, CPU s", "inside", "learn_graph, CPU s", "inside", "edges each", "above the optimum"):
        table.add_column(name, justify="right")
    for n in [300, *sizes]:  # the first compiles, and is not shown
        models, losses, circle = circles(n)
        graphs, seconds, inside = {}, {}, {}
        for name, learn in (
            ("exact", lambda models, losses: ct.exact_graph(models, losses, candidates=30)),
            ("learn", lambda models, losses: ct.learn_graph(models, losses).graph),
        ):
            begin = time.process_time()
            graphs[name] = graph = learn(models, losses)
            seconds[name] = time.process_time() - begin
            i, j, weight = graph.edges()
            inside[name] = weight[circle[i] == circle[j]].sum() / weight.sum()
        above = graph_objective(graphs["learn"], models, losses) - graph_objective(graphs["exact"], models, losses)
        if n in sizes:
            table.add_row(
                f"{n:,}",
                f"{seconds['exact']:.1f}",
                f"{inside['exact']:.4f}",
                f"{seconds['learn']:.1f}",
                f"{inside['learn']:.4f}",
                f"{2.0 * graphs['learn'].n_edges / n:.1f}",
                f"{above / n:.1e}",
            )
    Console(width=120).print(table)


def moons(seeds):
    """Means over seeds: test accuracy, neighbours of an agent, part of the weight inside the true clusters."""
    rows = {"one model for all": [], "alone": [], "learned graph": [], "oracle graph": []}
    for seed in range(seeds):
        task = ct.datasets.clustered_moons(seed=seed)
        n = task.train.n
        alone = ct.Problem.boosting(task.train, ct.graphs.empty(n), base=ct.Stumps(200), mu=1.0, beta=3.0)
        method = ct.FrankWolfeBoosting()
        settings = {"wakes": 200 * n, "seed": seed, "start": "zeros"}
        learned = ct.simulate(alone, ct.Learned(method, ct.GraphRule(lam=1.0), every=100), **settings)
        oracle = ct.simulate(alone.on(graph=task.graph), method, **settings)
        for name, models, graph in (
            ("one model for all", ct.baselines.GlobalModel().models(alone), None),
            ("alone", alone.local(), None),
            ("learned graph", learned.theta, learned.graph),
            ("oracle graph", oracle.theta, task.graph),
        ):
            i, j, weight = (graph or ct.graphs.complete(n)).edges()
            inside = weight[task.cluster[i] == task.cluster[j]].sum() / weight.sum()
            accuracy = ct.evaluate(models, alone, task.test, alone=False).mean
            rows[name].append([accuracy, 2.0 * len(weight) / n if graph else np.nan, inside if graph else np.nan])
    table = Table("models", "accuracy", "neighbours", "inside", title=f"Clustered moons, {seeds} seeds")
    for name, found in rows.items():
        accuracy, neighbours, inside = np.mean(found, axis=0)
        more = ("", "") if np.isnan(inside) else (f"{neighbours:.0f}", f"{inside:.0%}")
        table.add_row(name, f"{accuracy:.1%}", *more)
    Console(width=110).print(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--many", type=float, nargs="+", metavar="AGENTS")
    parser.add_argument("--moons", action="store_true")
    arguments = parser.parse_args()
    if arguments.moons:
        moons(arguments.seeds)
        return
    if arguments.many:
        many([int(n) for n in arguments.many])
        return
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
