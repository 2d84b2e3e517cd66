"""How near a wake of each method comes to what one core of this machine can do: bytes, operations, and the bound.

python benchmarks/roofline.py [--quick] [--only WORD] [--json FILE]
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from rich.console import Console
from rich.table import Table

import coterie as ct
from coterie.core.compile import fetch, kernel
from coterie.core.exponential import exp_minus

P, DEGREE, FEWEST, MOST = 20, 10, 10, 100
#: Agents whose state stays in the second-level cache, and agents whose state does not fit in any.
IN_CACHE, OUT_OF_CACHE = 50, 100_000


def best(work: Callable[[], Any], repetitions: int) -> float:
    """CPU seconds of this thread, of the best of several times; the first one is not counted."""
    work()
    took = math.inf
    for _ in range(repetitions):
        began = time.thread_time()
        work()
        took = min(took, time.thread_time() - began)
    return took


# -- what the machine can do -------------------------------------------------------------------------------------------


@njit(fastmath=True)
def read(x, times):
    total = 0.0
    for _ in range(times):
        for k in range(x.shape[0]):
            total += x[k]
        x[0] = total * 0.0  # or the compiler would read once
    return total


@njit(fastmath=True)
def triad(a, b, c):
    for k in range(a.shape[0]):
        a[k] = b[k] + 3.0 * c[k]


@njit(fastmath=True)
def read_blocks(x, starts, size):
    total = 0.0
    for start in starts:
        for k in range(start, start + size):
            total += x[k]
    return total


@njit(fastmath=True)
def read_blocks_ahead(x, starts, size):
    """The same, while the next block is on its way, a few cache lines at a time: as fast as anybody can."""
    total = 0.0
    for t in range(starts.shape[0] - 1):
        step = starts[t + 1] - starts[t]
        for a in range(starts[t], starts[t] + size, 32):
            fetch(x, a + step, a + step + 32)
            for k in range(a, min(a + 32, starts[t] + size)):
                total += x[k]
    return total


@njit(fastmath=True)
def multiply_add(x, times):
    """Four chains for each number, so that none waits for another: 2 * 4 operations a turn."""
    total = 0.0
    for k in range(x.shape[0]):
        a, b, c, d = x[k], x[k] + 1.0, x[k] + 2.0, x[k] + 3.0
        for _ in range(times):
            a = a * 0.999 + 0.001
            b = b * 0.998 + 0.002
            c = c * 0.997 + 0.003
            d = d * 0.996 + 0.004
        total += a + b + c + d
    return total


@kernel
def exponentials(x, out, times):
    for _ in range(times):
        for k in range(x.shape[0]):
            out[k] = exp_minus(x[k])


class Machine(NamedTuple):
    """Rates of one core, per second."""

    stream: float  # bytes read in order, out of cache
    triad: float  # bytes of a = b + 3 c, out of cache
    near: float  # bytes read in order, in the second-level cache
    scattered: float  # bytes read in blocks as large as an agent's rows, in random order, out of cache
    ahead: float  # the same, while the next block is on its way
    operations: float  # additions and multiplications, fused
    exponentials: float


def measure(repetitions):
    far, close, line = np.ones(50_000_000), np.ones(50_000), np.linspace(0.0, 1.0, 1024)
    third = far.shape[0] // 3
    block = (FEWEST + MOST) // 2 * P
    starts = np.random.default_rng(0).integers(0, far.shape[0] - 2 * block, 50_000)
    out = np.zeros_like(line)
    times = 200
    return Machine(
        far.nbytes / best(lambda: read(far, 1), repetitions),
        24 * third / best(lambda: triad(far[:third], far[third : 2 * third], far[2 * third : 3 * third]), repetitions),
        times * close.nbytes / best(lambda: read(close, times), repetitions),
        8 * block * starts.shape[0] / best(lambda: read_blocks(far, starts, block), repetitions),
        8 * block * starts.shape[0] / best(lambda: read_blocks_ahead(far, starts, block), repetitions),
        8 * 1000 * line.shape[0] / best(lambda: multiply_add(line, 1000), repetitions),
        times * line.shape[0] / best(lambda: exponentials(line, out, times), repetitions),
    )


# -- what a wake needs -------------------------------------------------------------------------------------------------


class Needs(NamedTuple):
    """Bytes that a wake must read or write at least once, floating-point operations, exponentials; and how counted."""

    bytes: float
    operations: float
    exponentials: float
    formula: str


def rows(m, number):
    return m * (P * number + 8)  # features and labels


def descent_needs(m, number, logistic):
    """Rows; message, address and weight of each neighbour; my model and message."""
    words = f"m({number}p+8) + d(8p+16) + 32p; m(4p) + 2dp + 6p"
    return Needs(
        float(np.mean(rows(m, number))) + DEGREE * (8 * P + 16) + 32 * P,
        float(np.mean(m)) * 4 * P + 2 * DEGREE * P + 6 * P,
        float(np.mean(m)) if logistic else 0.0,
        words + ("; m exp" if logistic else ""),
    )


def exchange_needs(m, number, logistic):
    """Two updates: copy, address, weight and choice of each neighbour; moment, model and copy."""
    bytes_ = 2 * (DEGREE * (8 * P + 24) + 5 * 8 * P)
    return Needs(bytes_, 2 * (2 * DEGREE * P + 4 * P), 0.0, "2 (d(8p+24) + 40p); 2 (2dp + 4p)")


def solve_needs(m, number, logistic):
    """The same with the inverse of the smaller Gram matrix; the rows, where that is the one of the rows."""
    small = 2 * m * P + m * m < P * P
    more = np.where(small, 8 * m * m + rows(m, number), 8 * P * P)
    work = np.where(small, 2 * m * m + 4 * m * P, 2 * P * P)
    first = exchange_needs(m, number, logistic)
    return Needs(
        first.bytes + 2 * float(np.mean(more)),
        first.operations + 2 * float(np.mean(work)),
        0.0,
        first.formula.replace("40p)", "40p + 8q^2)").replace("4p)", "4p + 2q^2)"),
    )


def admm_needs(m, number, logistic):
    """Two proximal steps; of each neighbour two vectors, weight and rho; messages of two vectors each way."""
    first = solve_needs(m, number, logistic)
    return Needs(
        first.bytes + 2 * (DEGREE * (8 * P + 8) + 3 * 8 * P),
        first.operations + 2 * (2 * DEGREE * P + 10 * P),
        0.0,
        "2 (d(16p+32) + 64p + 8q^2); 2 (4dp + 14p + 2q^2)",
    )


class Task(NamedTuple):
    name: str
    method: Any
    problem: Callable[[Any, Any], ct.Problem]
    needs: Callable[..., Needs]
    number: int = 8


def people(n, number=8):
    rng = np.random.default_rng(0)
    sizes = rng.integers(FEWEST, MOST + 1, n)
    X = rng.standard_normal((sizes.sum(), P), np.float32).astype(f"f{number}")
    y = np.where(rng.random(sizes.sum()) < 0.5, -1.0, 1.0)
    return ct.AgentData(X, y, agents=np.repeat(np.arange(n), sizes))


def logistic(data, graph):
    return ct.Problem.personalized(data, graph, loss="logistic")


def squared(data, graph):
    return ct.Problem.personalized(data, graph, loss="squared")


def models(data, graph):
    return ct.Problem.propagation(np.random.default_rng(0).standard_normal((graph.n, P)), graph, alpha=0.9)


def means(data, graph):
    points = ct.AgentData(
        np.random.default_rng(0).standard_normal((2 * graph.n, P)), agents=np.arange(2 * graph.n) // 2
    )
    return ct.Problem.separate(points, graph, loss=ct.Location(ct.Squared()))


def least_squares(data, graph):
    return ct.Problem.separate(data, graph, loss="squared")


TASKS = (
    Task("CD (5), logistic", ct.CoordinateDescent(), logistic, descent_needs),
    Task("CD (5), logistic, float32", ct.CoordinateDescent(), logistic, descent_needs, 4),
    Task("CD (5), squared", ct.CoordinateDescent(), squared, descent_needs),
    Task("MP (6)", ct.ModelPropagation(), models, exchange_needs),
    Task("DJAM (4), means", ct.DJAM(), means, exchange_needs),
    Task("DJAM (4), least squares", ct.DJAM(), least_squares, solve_needs),
    Task("ADMM, least squares", ct.CollaborativeADMM(), least_squares, admm_needs),
)


# -- both together -----------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A wake: what it needs, the times in nanoseconds that these take by themselves, and what it took."""

    task: str
    n: int
    formula: str
    bytes: float
    operations: float
    exponentials: float
    memory_ns: float
    operations_ns: float
    exponentials_ns: float
    bound_ns: float
    scattered_ns: float  # of the bytes alone, if they are read in random blocks, each on its way before it is read
    took_ns: float
    reached: float
    reached_scattered: float


def of_a_wake(problem, method, wakes, repetitions):
    """Return CPU seconds of a wake, from the difference of two runs, without the fixed costs of a run."""

    def run(count):
        return lambda: ct.simulate(problem, method, wakes=count, seed=0, start="zeros", n_jobs=1)

    return (best(run(2 * wakes), repetitions) - best(run(wakes), repetitions)) / wakes


def row(task, n, data, graph, machine, repetitions):
    needs = task.needs(data.sizes, task.number, task.name.startswith("CD (5), logistic"))
    wakes = 200_000 if n <= 1000 else 2 * n
    took = of_a_wake(task.problem(data, graph), task.method, wakes, repetitions)
    memory = needs.bytes / (machine.near if n == IN_CACHE else machine.stream)
    times = memory, needs.operations / machine.operations, needs.exponentials / machine.exponentials
    bound, scattered = max(times), needs.bytes / max(machine.ahead, machine.scattered)
    slowest = max(bound, scattered) if n > IN_CACHE else bound
    nanoseconds = [1e9 * t for t in (*times, bound, scattered, took)]
    return Row(task.name, n, needs.formula, *needs[:3], *nanoseconds, bound / took, slowest / took)


def show(machine, table_rows):
    console = Console(width=170)
    console.print(
        f"One core: {machine.stream / 1e9:.1f} GB/s read in order ({machine.triad / 1e9:.1f} by a triad); in random "
        f"blocks of an agent's rows {machine.scattered / 1e9:.1f} GB/s, and {machine.ahead / 1e9:.1f} GB/s if the next "
        f"one is on its way meanwhile; {machine.near / 1e9:.0f} GB/s in cache; {machine.operations / 1e9:.1f} Gflop/s; "
        f"{machine.exponentials / 1e9:.2f} G exponentials a second."
    )
    console.print(f"p = {P}, degree d = {DEGREE}, m = {FEWEST} to {MOST} rows; q = min(p, m). Bytes; operations.")
    table = Table(title="Nanoseconds of a wake")
    for name in ("method", "agents", "what a wake needs"):
        table.add_column(name)
    names = (
        "bytes",
        "operations",
        "by memory",
        "by operations",
        "by exp",
        "bound",
        "took",
        "reached",
        "of random reads",
    )
    for name in names:
        table.add_column(name, justify="right")
    for r in table_rows:
        times = r.memory_ns, r.operations_ns, r.exponentials_ns, r.bound_ns, r.took_ns
        parts = f"{r.reached:.0%}", "" if r.n == IN_CACHE else f"{r.reached_scattered:.0%}"
        numbers = f"{r.bytes:,.0f}", f"{r.operations:,.0f}", *(f"{t:,.0f}" for t in times), *parts
        table.add_row(r.task, f"{r.n:,}", r.formula, *numbers)
    console.print(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer agents and repetitions: less exact")
    parser.add_argument("--only", default="", metavar="WORD", help="only methods with this word")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to a file too")
    arguments = parser.parse_args()
    repetitions = 3 if arguments.quick else 5
    machine, table_rows = measure(repetitions), []
    for n in (IN_CACHE, OUT_OF_CACHE // 4 if arguments.quick else OUT_OF_CACHE):
        graph = ct.graphs.random_regular(n, DEGREE, seed=0)
        for task in TASKS:
            if arguments.only in task.name:
                table_rows.append(row(task, n, people(n, task.number), graph, machine, repetitions))
                print(f"{task.name}, {n:,} agents: {table_rows[-1].took_ns:,.0f} ns", file=sys.stderr, flush=True)
    show(machine, table_rows)
    if arguments.json:
        found = {"machine": machine._asdict(), "rows": [r._asdict() for r in table_rows]}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
