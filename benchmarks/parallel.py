"""What threads gain in a simulation, and what limits it: where the time of a wake goes, and the model that follows.

python benchmarks/parallel.py [--agents 100000] [--threads 2]

CPU time of one thread, best of three, for each part of a run: drawing who wakes (D), arranging wakes in levels (A), and
running them (R). Drawing is serial; one thread arranges while the others run; the rest is shared. So c threads take
T(c) = max(D + (A + R) / c, D + A), and never gain more than (D + R) / (D + A).
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

import coterie as ct
from coterie.core import loop
from coterie.engines import parallel
from coterie.engines.drivers import Immediate

SIZE, DEGREE, FEWEST, MOST = 20, 10, 10, 100


def problem_of(name: str, n: int) -> ct.Problem:
    """Agents with 10 to 100 rows of 20 numbers, and about ten random neighbours each."""
    rng = np.random.default_rng(0)
    i = np.repeat(np.arange(n), DEGREE // 2)
    j = (i + rng.integers(1, n, i.size)) % n
    graph = ct.Graph.from_edges(n, i, j, np.ones(i.size))
    if name == "propagation":
        return ct.Problem.propagation(rng.normal(size=(n, SIZE)), graph, alpha=0.9)
    owner = np.repeat(np.arange(n), rng.integers(FEWEST, MOST + 1, n))
    X = rng.normal(size=(owner.size, SIZE))
    data = ct.AgentData(X, np.where(rng.random(owner.size) < 0.5, 1.0, -1.0), agents=owner)
    return ct.Problem.personalized(data, graph, loss="logistic")


def best(work: Callable[[], object], clock: Callable[[], float] = time.thread_time) -> float:
    """Seconds, the least of three."""
    times = []
    for _ in range(3):
        began = clock()
        work()
        times.append(clock() - began)
    return min(times)


def report(name: str, n: int, count: int) -> None:
    """Print the parts of a wake, and what threads gain: by the model, and by the clock."""
    problem, wakes = problem_of(name, n), 2 * n
    method = ct.simulate(problem, name, wakes=1, start="zeros", n_jobs=count).method  # compiled from here on
    driver = Immediate.of(problem, method, "zeros")
    events = driver._draw(wakes)
    moments = np.arange(wakes) / n
    last = np.zeros(n, np.int32)

    def arrange() -> None:
        last[:] = 0
        for a in range(0, wakes, parallel.MAX_ARRANGED_WAKES):
            span = [part[a : a + parallel.MAX_ARRANGED_WAKES] for part in (*events[:3], moments)]
            place, _ = parallel.in_levels(method, driver.arrays, *span[:3], last)
            [part[place] for part in span]

    def run() -> None:
        state = method, driver.arrays, driver.own, driver.edge
        loop.run(*state, *events[:3], moments, driver.outbox, driver.egress, driver.account, loop.NO_LIMIT)

    def clocked(jobs: int) -> float:
        with Immediate.of(problem, method, "zeros", n_jobs=jobs) as used:
            return best(lambda: used.advance(wakes, loop.NO_LIMIT), time.perf_counter)

    drawn, arranged, ran = (best(work) / wakes * 1e6 for work in (lambda: driver._draw(wakes), arrange, run))
    place, first = parallel.in_levels(
        method, driver.arrays, *(part[: parallel.MAX_ARRANGED_WAKES] for part in events[:3]), np.zeros(n, np.int32)
    )
    model = (drawn + ran) / max(drawn + (arranged + ran) / count, drawn + arranged)
    most = (drawn + ran) / (drawn + arranged)
    print(f"{name}, n={n}: microseconds a wake: D {drawn:.3f}, A {arranged:.3f}, R {ran:.3f}; ", end="")
    print(f"{place.size // (first.size - 1)} wakes a level; {count} threads gain x{model:.2f}, any number x{most:.1f}")
    one, several = clocked(1), clocked(count)
    print(f"  by the clock: {one:.2f} s with 1 thread, {several:.2f} s with {count}: x{one / several:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--agents", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    for method in ("cd", "propagation"):
        report(method, options.agents, options.threads)
