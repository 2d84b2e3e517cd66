"""Boosted personal models and learned graphs on clustered moons (DADA, Section 6): accuracy, graph, communication.

python benchmarks/moons.py [--seeds 20] [--json FILE]

100 agents with 3 to 15 points each, 20 features of which 18 are zeros, 200 stumps, beta=3, mu=1, lam=1.

global     one model of all points, exact
local      argmin of L_k of each agent, exact; and the same by Frank-Wolfe from zeros, which ends elsewhere where
           several models are best
learned    models and graph together, from zeros and from no ties at all, 20,000 wakes, a graph step every 100
oracle     models on the graph of the true angles, 20,000 wakes
perso-lin  linear models by coordinate descent, CD (3) with the logistic loss and a learned graph; mu=10, the best of
           0.1, 1 and 10

Bits are those of DADA, Section D, with numbers of 32 bits; bytes are what is sent in full, as 64-bit numbers with
headers, stamps and questions. The paper shows its numbers in figures only.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import coterie as ct

N, WAKES, BETA, STUMPS, EVERY = 100, 20_000, 3.0, 200, 100
LAMS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
NUMBER_BITS = 32
LINEAR_MU = 10.0


def accuracy(features, test, theta):
    """Mean over the agents, in percent; all have as many test points."""
    said = np.einsum("rk,rk->r", features, theta[test.owner])
    return 100.0 * np.mean((said > 0) == (test.y > 0))


def inside(graph, cluster):
    """How much of the weight of a graph ties agents of one cluster, in percent."""
    i, j, w = graph.edges()
    return 100.0 * w[cluster[i] == cluster[j]].sum() / w.sum()


def sent(run, cluster):
    """What a run says of its graph, and of what it cost an agent."""
    return {
        "neighbours": 2.0 * run.graph.n_edges / N,
        "inside": inside(run.graph, cluster),
        "bits": run.bits(NUMBER_BITS) / N,
        "bytes": run.bytes / N,
    }


def learned(problem, method, lam, seed):
    """A run that begins with zeros and without ties."""
    alone = problem.on(graph=ct.graphs.empty(N))
    together = ct.Learned(method, ct.GraphRule(lam=lam), every=EVERY)
    return ct.simulate(alone, together, wakes=WAKES, seed=seed, start="zeros")


def instance(seed):
    """All numbers of one instance: by method, and of the learned graph by lam."""
    task = ct.datasets.clustered_moons(n=N, p=20, seed=seed)
    problem = ct.Problem.boosting(task.train, task.graph, base=ct.Stumps(STUMPS), beta=BETA, mu=1.0)
    votes, fw = problem.base.transform(task.test.X), ct.FrankWolfeBoosting()
    found = {
        "global": {"accuracy": accuracy(votes, task.test, ct.GlobalModel().models(problem))},
        "local": {"accuracy": accuracy(votes, task.test, problem.local())},
    }
    alone = ct.simulate(problem.on(graph=ct.graphs.empty(N)), fw, wakes=WAKES, seed=seed, start="zeros")
    found["local, Frank-Wolfe"] = {"accuracy": accuracy(votes, task.test, alone.theta)}
    by_lam = {}
    for lam in LAMS:
        run = learned(problem, fw, lam, seed)
        by_lam[lam] = {"accuracy": accuracy(votes, task.test, run.theta)} | sent(run, task.cluster)
    found["learned"] = by_lam[1.0]
    oracle = ct.simulate(problem, fw, wakes=WAKES, seed=seed, start="zeros")
    found["oracle"] = {"accuracy": accuracy(votes, task.test, oracle.theta)} | sent(oracle, task.cluster)
    linear = ct.Problem.personalized(task.train, task.graph, loss="logistic", mu=LINEAR_MU)
    run = learned(linear, ct.CoordinateDescent(), 1.0, seed)
    found["perso-lin"] = {"accuracy": accuracy(task.test.X, task.test, run.theta)} | sent(run, task.cluster)
    return found, by_lam


def gathered(found):
    """Lists of the numbers of all instances, from one mapping for each."""
    return {name: {what: [each[name][what] for each in found] for what in found[0][name]} for name in found[0]}


def mean(values, digits=1):
    """Mean and standard error."""
    error = f" ± {np.std(values, ddof=1) / np.sqrt(len(values)):,.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):,.{digits}f}{error}"


def cells(numbers):
    """The numbers of one row; what a method does not have is left out."""
    places = {"accuracy": 1, "neighbours": 1, "inside": 1, "bits": 0, "bytes": 0}
    return [mean(numbers[name], digits) if name in numbers else "" for name, digits in places.items()]


COLUMNS = ("accuracy", "neighbours", "inside %", "bits / user", "bytes / user")


def show(methods, lams, seeds):
    """Both tables."""
    console = Console(width=150)
    table = Table(title=f"Clustered moons: mean and standard error over {seeds} instances, lam=1")
    table.add_column("method")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for name, numbers in methods.items():
        table.add_row(name, *cells(numbers))
    console.print(table)
    table = Table(title="Learned boosting, by lam")
    table.add_column("lam")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for lam, numbers in lams.items():
        table.add_row(f"{lam:g}", *cells(numbers))
    console.print(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="how many instances (20)")
    where = Path(__file__).with_suffix(".json")
    parser.add_argument("--json", type=Path, default=where, metavar="FILE", help="write all numbers here (moons.json)")
    arguments = parser.parse_args()
    if arguments.seeds < 1:
        parser.error("--seeds must be at least 1")
    found = []
    for seed in range(arguments.seeds):
        found.append(instance(seed))
        print(f"instance {seed}: learned {found[-1][0]['learned']['accuracy']:.1f} %", file=sys.stderr, flush=True)
    methods, lams = gathered([one for one, _ in found]), gathered([one for _, one in found])
    show(methods, lams, arguments.seeds)
    arguments.json.write_text(json.dumps({"methods": methods, "lam": lams}, indent=1) + "\n")


if __name__ == "__main__":
    main()
