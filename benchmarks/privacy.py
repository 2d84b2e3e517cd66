"""Test accuracy against epsilon on collaborative linear classification (CD, Section 5): what privacy costs.

python -m benchmarks.privacy [--quick] [--delta DELTA] [--figure FILE]

100 agents with 10 to 100 points each, delta = e^-5 unless told otherwise, and four schemes:

alone         models trained alone: nothing is sent
not private   the optimum of CD (3)
paper         CD (6) with Laplace noise and the bound of Theorem 1, the sums inside its roots, and gradients that are
              clipped in L1 norm, not said to be short; models as published
ours          one Gaussian release, free propagation, and a final step that is never sent

mu, and the wakes and the clip of the paper's scheme, are the best at each epsilon and dimension on an instance that is
not among those reported: choosing them so spends no budget. An audit beneath tells whether the messages of our scheme
keep their promise.
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console
from rich.table import Table

import coterie as ct
from papers.private_descent.common import CLIPS, WAKES, ours, problem_of, task_of

DIMENSIONS = (2, 20, 50, 100)
EPSILONS = (0.15, 0.5, 1.0, 2.0, 5.0)
HELD_OUT = 10_000
MUS = (0.3, 1.0, 3.0)


def paper(task, epsilon, delta, mu, wakes, clip, seed):
    method = ct.Private(ct.CoordinateDescent(), epsilon, delta, "laplace", clip, wakes, final=None)
    return ct.simulate(problem_of(task, mu), method, seed=seed).theta


def best(task, scheme, *choices):
    """The choices with which a scheme is the most accurate on a task."""
    grid = np.array(np.meshgrid(*choices)).reshape(len(choices), -1).T
    scores = [task.accuracy(scheme(*choice)).mean() for choice in grid]
    return grid[int(np.argmax(scores))]


def row(p, epsilons, delta, seeds):
    """Return mean accuracies in one dimension: (alone, not private), and (paper, ours) for each epsilon."""
    held = task_of(100, p, HELD_OUT)
    [free] = best(held, lambda mu: problem_of(held, mu).solve(), MUS)
    chosen = {}
    for epsilon in epsilons:
        [mu] = best(held, lambda mu, e=epsilon: ours(held, e, HELD_OUT, delta, mu), MUS)
        theirs = best(held, lambda m, t, c, e=epsilon: paper(held, e, delta, m, int(t), c, HELD_OUT), MUS, WAKES, CLIPS)
        chosen[epsilon] = mu, theirs
    plain, private = [], {epsilon: [] for epsilon in epsilons}
    for seed in seeds:
        task = task_of(100, p, seed)
        problem = problem_of(task, free)
        plain.append([task.accuracy(models).mean() for models in (problem.local(), problem.solve())])
        for epsilon, (mu, (m, t, c)) in chosen.items():
            models = paper(task, epsilon, delta, m, int(t), c, seed), ours(task, epsilon, seed, delta, mu)
            private[epsilon].append([task.accuracy(theta).mean() for theta in models])
    return np.mean(plain, axis=0), {epsilon: np.mean(pairs, axis=0) for epsilon, pairs in private.items()}


def draw(rows, path):
    """One panel for each dimension."""
    figure, panels = plt.subplots(1, len(rows), figsize=(3.2 * len(rows), 3.2), sharey=True, layout="constrained")
    for axes, (p, (plain, private)) in zip(np.atleast_1d(panels), rows.items(), strict=True):
        epsilons = list(private)
        for level, name, style in zip(plain, ("alone", "not private"), (":", "--"), strict=True):
            axes.axhline(level, color="0.4", linestyle=style, label=name)
        for k, (name, color) in enumerate((("paper, clipped honestly", "tab:red"), ("ours", "tab:blue"))):
            axes.plot(epsilons, [private[e][k] for e in epsilons], "o-", color=color, label=name)
        axes.set(title=f"p = {p}", xlabel="epsilon", xscale="log", xticks=epsilons)
        axes.set_xticklabels([f"{e:g}" for e in epsilons])
        axes.minorticks_off()
    np.atleast_1d(panels)[0].set_ylabel("test accuracy")
    np.atleast_1d(panels)[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="p = 20, epsilon 0.5 and 1, two instances")
    parser.add_argument("--figure", help="where to draw the table")
    parser.add_argument("--delta", type=float, default=float(np.exp(-5)))
    given = parser.parse_args()
    dimensions, epsilons, seeds = ((20,), (0.5, 1.0), range(2)) if given.quick else (DIMENSIONS, EPSILONS, range(5))
    console = Console()
    table = Table("p", "epsilon", "alone", "not private", "paper, clipped", "ours", title="test accuracy")
    rows = {}
    for p in dimensions:
        rows[p] = plain, private = row(p, epsilons, given.delta, seeds)
        for epsilon, pair in private.items():
            table.add_row(str(p), f"{epsilon:g}", *(f"{x:.3f}" for x in (*plain, *pair)))
        console.print(f"p = {p} done")
    console.print(table)
    for epsilon in epsilons:
        method = ct.Private(ct.ModelPropagation(), epsilon, given.delta)
        console.print(ct.privacy.audit(method, features=20))
    if given.figure:
        draw(rows, given.figure)


if __name__ == "__main__":
    main()
