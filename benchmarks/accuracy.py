"""Test accuracy on collaborative linear classification: alone, by model propagation, and by collaborative learning.

python benchmarks/accuracy.py [--quick]

All models are exact minimisers, so that the table compares objectives and not solvers. Two settings:

CL, Section 5.2  1 to 20 points, hinge loss; together: CL (7)
CD, Section 5    10 to 100 points, logistic loss; together: CD (3)

Alone is ``argmin f_i``; propagation, MP (3), starts from it, with confidences m_i / max_j m_j. alpha and mu are chosen
on instances that are not among those reported.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import coterie as ct

DIMENSIONS = (2, 20, 50, 100)
ALPHAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
#: Seeds of the instances that alpha and mu are chosen on start here; those of the reported ones start at 0.
HELD_OUT = 10_000


class Setting(NamedTuple):
    """Who has how many points, and what is minimised together."""

    name: str
    rows: tuple[int, int]
    together: Callable[[ct.datasets.LinearTask, float], ct.Problem]
    mus: tuple[float, ...]


SETTINGS = (
    Setting(
        "CL: 1..20 points, hinge",
        (1, 20),
        lambda task, mu: ct.Problem.collaborative(task.train, task.graph, loss="hinge", mu=mu),
        (0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0),
    ),
    Setting(
        "CD: 10..100 points, logistic",
        (10, 100),
        lambda task, mu: ct.Problem.personalized(task.train, task.graph, loss="logistic", mu=mu),
        (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0),
    ),
)


def accuracies(setting, p, seed, alphas, mus):
    """Mean test accuracy over the agents of one instance: alone, for each alpha, for each mu."""
    task = ct.datasets.linear_classification(n=100, p=p, seed=seed, rows=setting.rows)
    alone = setting.together(task, mus[0]).local()
    confidence = task.train.sizes / task.train.sizes.max()
    propagated = [ct.Problem.propagation(alone, task.graph, alpha, confidence).solve() for alpha in alphas]
    together = [setting.together(task, mu).solve() for mu in mus]
    return tuple([task.accuracy(theta).mean() for theta in models] for models in ([alone], propagated, together))


def tuned(setting, p, instances):
    """The alpha and the mu that are best on held-out instances."""
    found = [accuracies(setting, p, HELD_OUT + k, ALPHAS, setting.mus) for k in range(instances)]
    propagated, together = (np.mean([part[which] for part in found], axis=0) for which in (1, 2))
    return ALPHAS[int(propagated.argmax())], setting.mus[int(together.argmax())]


def percent(values):
    """Mean and standard error, in percent."""
    return f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1) / np.sqrt(len(values)):.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 instances instead of 10, and 1 to tune on instead of 3")
    quick = parser.parse_args().quick
    instances, held_out = (2, 1) if quick else (10, 3)

    table = Table(title=f"Test accuracy in percent: mean and standard error over {instances} instances")
    table.add_column("setting")
    for column in ("p", "alone", "propagation", "together", "together - propagation", "alpha", "mu"):
        table.add_column(column, justify="right")
    for setting in SETTINGS:
        for p in DIMENSIONS:
            alpha, mu = tuned(setting, p, held_out)
            found = [accuracies(setting, p, seed, [alpha], [mu]) for seed in range(instances)]
            alone, propagated, together = np.array(found)[:, :, 0].T
            numbers = (percent(values) for values in (alone, propagated, together, together - propagated))
            table.add_row(setting.name, str(p), *numbers, f"{alpha:g}", f"{mu:g}")
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
