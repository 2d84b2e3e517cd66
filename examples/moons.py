"""Clustered moons: users find those with a similar task while they learn to classify (DADA, Figures 1 and 2).

python examples/moons.py [--seed 0] [-o moons]

Writes five figures: accuracy against iterations and against bytes, neighbours against iterations, the weights of the
oracle's and of the learned graph, and the learned graph itself.
"""

import argparse
from pathlib import Path

import numpy as np

import coterie as ct
from coterie import plots


def accuracy(problem, test):
    """Mean accuracy of models on test rows, as a function of the models."""
    votes = problem.base.transform(test.X)

    def of(theta):
        right = np.where(np.einsum("rk,rk->r", votes, theta[test.owner]) > 0, 1.0, -1.0) == test.y
        return float(np.mean(np.bincount(test.owner, weights=right) / test.sizes))

    return of


def main():
    """Learn, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("moons"))
    arguments = parser.parse_args()
    task = ct.datasets.clustered_moons(seed=arguments.seed)
    n = task.train.n
    alone = ct.Problem.boosting(task.train, ct.graphs.empty(n), base=ct.Stumps(200), mu=1.0, beta=3.0)
    scores = {"test": accuracy(alone, task.test), "train": accuracy(alone, task.train)}
    method = ct.FrankWolfeBoosting()
    runs = {
        label: ct.simulate(problem, rule, wakes=200 * n, every=n, seed=arguments.seed, start="zeros", observe=scores)
        for label, problem, rule in (
            ("oracle graph", alone.on(graph=task.graph), method),
            ("learned graph", alone, ct.Learned(method, ct.GraphRule(lam=1.0), every=100)),
        )
    }
    levels = {
        "alone": scores["test"](alone.local()),
        "one model for all": scores["test"](ct.GlobalModel().models(alone)),
    }
    learned = runs["learned graph"]
    order = np.argsort(task.cluster, kind="stable")
    oracle = {"oracle graph": 2.0 * task.graph.n_edges / n}
    figures = {
        "accuracy-wakes": plots.traces(runs, "test", levels=levels, label="test accuracy"),
        "accuracy-bytes": plots.traces(runs, "test", unit="bytes", levels=levels, label="test accuracy"),
        "neighbours": plots.traces(
            {"learned graph": learned}, "neighbours", levels=oracle, label="neighbours of an agent, on average"
        ),
        "weights": plots.weights(task.graph, learned.graph, order=order, titles=["Oracle", "Learned"]),
        "ties": plots.ties(
            learned.graph,
            learned.problem.loss_weight,
            learned.problem.losses(learned.theta),
            labels=np.rint(task.angles).astype(int),
        ),
    }
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(arguments.output / f"{name}.png", dpi=120)
    i, j, weight = learned.graph.edges()
    inside = weight[task.cluster[i] == task.cluster[j]].sum() / weight.sum()
    for label, score in {**levels, **{label: run.trace["test"].iloc[-1] for label, run in runs.items()}}.items():
        print(f"{label:18s}{100 * score:6.1f} %")
    print(
        f"neighbours {2 * learned.graph.n_edges / n:.1f}, {100 * inside:.0f} % of the weight inside the true clusters"
    )
    print(f"figures in {arguments.output}")


if __name__ == "__main__":
    main()
