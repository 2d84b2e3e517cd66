"""How often a compiled loop of ADMM asks for memory: the same few times, however many agents wake.

python benchmarks/allocations.py

Numba counts what its runtime allocates. A call of a kernel allocates one small record for each array that is handed
to it; the primal steps, exact or not, must not add to that.
"""

import numba
import numpy as np
from numba.core.runtime import rtsys
from rich.console import Console
from rich.table import Table

import coterie as ct
from coterie.core import loop
from coterie.engines.drivers import Immediate

numba.config.NRT_STATS = 1  # before anything is compiled
WAKES = (1_000, 100_000)
METHODS = {
    "exact": ct.CollaborativeADMM(1.0),
    "exact, rho=auto": ct.CollaborativeADMM(),
    "10 gradient steps": ct.CollaborativeADMM(1.0, steps=10),
}


@numba.njit
def wasteful(wakes):
    """Return the count of a loop in which every wake allocates."""
    total = 0.0
    for k in range(wakes):
        total += np.full(3, k)[0]
    return total


def allocations(run):
    before = rtsys.get_allocation_stats().alloc
    run()
    return rtsys.get_allocation_stats().alloc - before


def main():
    table = Table(title="Allocations in one call of the kernel")
    for column in ("loss", "primal step"):
        table.add_column(column)
    for wakes in WAKES:
        table.add_column(f"{wakes:,} wakes", justify="right")
    wasteful(1)
    table.add_row("(a loop that allocates)", "", *[f"{allocations(lambda w=w: wasteful(w)):,}" for w in WAKES])
    task = ct.datasets.linear_classification(n=100, p=20, seed=0)
    for loss in ("squared", "logistic", "hinge"):
        problem = ct.Problem.personalized(task.train, task.graph, loss=loss)
        for name, method in METHODS.items():
            if method.steps and loss == "hinge":  # has a kink
                continue
            driver = Immediate.of(problem, method)
            driver.advance(10, loop.NO_LIMIT)  # compiled and warm
            counts = [allocations(lambda w=w, d=driver: d.advance(w, loop.NO_LIMIT)) for w in WAKES]
            table.add_row(loss, name, *[f"{count:,}" for count in counts])
    Console(width=90).print(table)


if __name__ == "__main__":
    main()
