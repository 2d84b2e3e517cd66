"""What liars do to partial pooling by gossip on real data, in raw units: scores of the honest, alone and together.

COTERIE_DATA=FOLDER python benchmarks/liars.py [--quick] [NAME ...]

Columns and targets are as they come: nothing is scaled. A fifth of the agents lie in every message, as LIES says, in
units of the spreads of columns and targets. Graphs: random regular ones of degree 6, and groups of five, each of which
is complete, and has one liar.

alone       every agent by its own rows: what `ct.gossip.ResilientPooling` falls back to
honest      nobody lies
LIE         scores of those who do not lie; "worse" is the part of them that are worse than alone beyond chance: by more
            than two standard errors of the difference on their own test rows
after       the liars have left, and the others have woken 100 times more

Accuracy, where larger is better, or root mean squared error, where smaller is; means over agents.
"""

import argparse
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import coterie as ct
from coterie.core.arrays import TAIL
from coterie.engines.arrays import arrays_of

TASKS = {
    "Computer Buyers": ct.datasets.computer_buyers,
    "School": ct.datasets.school,
    "Parkinson's": ct.datasets.parkinsons,
    "School, pass": ct.datasets.school_pass,
    "Landmine": ct.datasets.landmine,
}
#: By name: what models are multiplied with, by how many spreads they are shifted, what variances are multiplied with.
LIES = {
    "times -10": (-10.0, 0.0, 1.0),
    "shift 10": (1.0, 10.0, 1.0),
    "shift 1000": (1.0, 1000.0, 1.0),
    "huge": (1e12, 1e12, 1e12),
    "shift 10, sure": (1.0, 10.0, 1e-9),
    "shift 1, sure": (1.0, 1.0, 1e-2),
    "shift 2, sure": (1.0, 2.0, 1e-2),
    "shift 3, sure": (1.0, 3.0, 1e-2),
}


@ct.method
class Lying(NamedTuple):
    """A method in which some agents send false values."""

    method: Any
    liars: np.ndarray  # (n,) whether it lies
    shift: np.ndarray  # (p,) what is added to w
    times: float
    spread: float

    def greet(self, data, me, edges, outbox):
        """Lie from the first message on."""
        first = outbox.cursor[TAIL]
        self.method.greet(data, me, edges, outbox)
        p = me.theta.shape[0]
        if self.liars[data.address] > 0.0:
            for h in range(first, outbox.cursor[TAIL]):
                for k in range(p):
                    outbox.text[h, k] = self.times * outbox.text[h, k] + self.shift[k]
                    outbox.text[h, p + k] *= self.spread

    def wake(self, data, me, edges, randomness, outbox):
        """And ever after."""
        first = outbox.cursor[TAIL]
        self.method.wake(data, me, edges, randomness, outbox)
        p = me.theta.shape[0]
        if self.liars[data.address] > 0.0:
            for h in range(first, outbox.cursor[TAIL]):
                for k in range(p):
                    outbox.text[h, k] = self.times * outbox.text[h, k] + self.shift[k]
                    outbox.text[h, p + k] *= self.spread


class Posed:
    """A task in raw units, and what its models score."""

    def __init__(self, make, graph):
        task = make()
        self.train, self.test = task.train.append_column(), task.test.append_column()
        self.number, self.n = task.kind == "regression", self.train.n
        X, y, owner = self.train.X, self.train.y, np.asarray(self.train.owner)
        if graph == "fives":
            block = np.arange(self.n) // 5
            self.n -= self.n % 5
            i, j = np.nonzero(np.triu(block[: self.n, None] == block[: self.n], 1))
            self.graph = ct.Graph.from_edges(self.n, i, j, np.ones(i.size))
            self.liars = (np.arange(self.n) % 5 == 2).astype(float)
        else:
            self.graph = ct.graphs.random_regular(self.n, 6, seed=0)
            self.liars = np.zeros(self.n)
            self.liars[np.random.default_rng(0).permutation(self.n)[: self.n // 5]] = 1.0
        mine = owner < self.n
        self.data = ct.AgentData(X[mine], y[mine], agents=owner[mine], members=range(self.n))
        self.problem = ct.Problem.separate(self.data, self.graph, loss="squared" if self.number else "logistic")
        sd = np.append(np.maximum(X[:, :-1].std(axis=0), 1e-9), 1.0)
        unit = (y.std() if self.number else 1.0) / sd
        unit[:-1] *= np.random.default_rng(1).choice([-1.0, 1.0], unit.size - 1)
        unit[-1] -= X[:, :-1].mean(axis=0) @ unit[:-1]
        self.unit = unit

    def each(self, theta):
        """Squared errors, or what is wrong, of each test row."""
        test = self.test
        mine = test.owner < self.n
        said = np.sum(test.X[mine] * theta[test.owner[mine]], axis=1)
        y = test.y[mine]
        return (said - y) ** 2 if self.number else (np.where(said >= 0, 1.0, -1.0) != y).astype(float), test.owner[mine]

    def score(self, theta, among=None):
        error, owner = self.each(theta)
        means = [error[owner == i].mean() for i in np.unique(owner) if among is None or among[i]]
        return float(np.mean(np.sqrt(means))) if self.number else 1.0 - float(np.mean(means))

    def worse(self, theta, alone, among):
        """Return the fraction of agents that are significantly worse than alone."""
        (error, owner), (other, _) = self.each(theta), self.each(alone)
        result = []
        for i in np.unique(owner):
            if among[i] and (owner == i).sum() > 1:
                apart = (error - other)[owner == i]
                result.append(apart.mean() > 2.0 * apart.std(ddof=1) / np.sqrt(apart.size) + 1e-9 * other.mean())
        return float(np.mean(result))

    def alone(self):
        method, arrays = ct.gossip.ResilientPooling(), arrays_of(self.problem)
        return method.posterior(arrays, *method.start(arrays, np.zeros((self.n, self.problem.p)))).mean

    def lying(self, method, lie=None):
        """Return the method without liars, of the same class, so that it is compiled once."""
        times, shift, spread = LIES.get(lie, (1.0, 0.0, 1.0))
        return Lying(method, self.liars, shift * self.unit, times, spread)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"which sets, of {', '.join(TASKS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="two sets, three lies")
    options = parser.parse_args()
    console = Console(width=150)
    names = options.names or (["Computer Buyers", "School"] if options.quick else TASKS)
    lies = ["times -10", "shift 10, sure", "shift 2, sure"] if options.quick else list(LIES)
    method = ct.gossip.ResilientPooling()
    for graph in ("degree 6", "fives"):
        table = Table(
            "set", "alone", "honest 40", "100", "200", *[f"{lie} (worse)" for lie in lies], "after", title=graph
        )
        for name in names:
            try:
                posed = Posed(TASKS[name], graph)
            except ct.errors.MissingDataError as missing:
                console.print(f"{name}: {missing}")
                continue
            digits, n, honest = 2 if posed.number else 3, posed.n, posed.liars == 0
            alone = posed.alone()
            cells = [f"{posed.score(alone):.{digits}f}"]
            zero = np.zeros((n, posed.problem.p))
            for wakes in (40, 100, 200):
                run = ct.simulate(posed.problem, posed.lying(method), wakes=wakes * n, seed=0, start=zero)
                cells.append(f"{posed.score(run.theta):.{digits}f}")
            for lie in lies:
                run = ct.simulate(posed.problem, posed.lying(method, lie), wakes=100 * n, seed=0, start=zero)
                bad = posed.worse(run.theta, alone, honest)
                cells.append(f"{posed.score(run.theta, honest):.{digits}f} ({100 * bad:.0f} %)")
            gone = posed.problem.on(graph=posed.graph.without(np.flatnonzero(posed.liars)))
            run = ct.simulate(
                posed.problem,
                posed.lying(method, lies[0]),
                wakes=200 * n,
                seed=0,
                start=zero,
                changes=[(100 * n, gone)],
            )
            cells.append(f"{posed.score(run.theta, honest):.{digits}f}")
            table.add_row(name, *cells)
        console.print(table)


if __name__ == "__main__":
    main()
