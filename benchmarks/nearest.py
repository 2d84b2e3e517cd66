"""Nearest neighbours: what the exact way and the index cost, and which part of the ten nearest the index finds.

python benchmarks/nearest.py [--quick | --agents 20000 50000 100000]

CPU seconds in one thread. The first use of the index in a process is timed apart: it compiles. The exact way is
quadratic: all of this takes some minutes, and one with ``--quick``, which is for 20,000 agents.
"""

import argparse
import time

import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from coterie.graphs.builders import nearest

NEIGHBOURS, ASKED = 10, 500


def models(n, p, clustered):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, p))
    return x + 2.0 * rng.normal(size=(n // 100, p))[rng.integers(n // 100, size=n)] if clustered else x


def timed(x, exact):
    begin = time.process_time()
    return nearest(x, NEIGHBOURS, exact), time.process_time() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, nargs="+", default=[20_000, 50_000, 100_000])
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    sizes = [20_000] if arguments.quick else arguments.agents
    table = Table(title="Ten nearest neighbours, CPU s")
    for name in ("agents", "p", "models", "exact", "index", "found"):
        table.add_column(name, justify="right")
    with threadpool_limits(1):
        first = timed(models(2_000, 20, False), False)[1]
        for n in sizes:
            for p, clustered in ((20, False), (20, True)):
                x = models(n, p, clustered)
                (all_of_them, slow), (found, quick) = timed(x, True), timed(x, False)
                rows = np.linspace(0, n - 1, ASKED).astype(int)
                part = np.mean([np.isin(found[k], all_of_them[k]).mean() for k in rows])
                kind = "clustered" if clustered else "Gaussian"
                table.add_row(f"{n:,}", str(p), kind, f"{slow:.1f}", f"{quick:.1f}", f"{part:.3f}")
    Console(width=90).print(table)
    print(f"the first use of the index, with 2,000 agents: {first:.0f} s")


if __name__ == "__main__":
    main()
