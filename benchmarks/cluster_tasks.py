"""Tuning as tasks of a Ray cluster on this machine, beside one process: seconds by the clock, and of CPU.

python benchmarks/cluster_tasks.py [--workers 2] [--agents 200 1000 4000] [--repeats 3]

The same grid, folds and rows; the tables of scores must be equal to the last bit. A fit has one thread. Times are the
least of some repeats, one process and the cluster in turn, since other work on the machine only adds to them. CPU
seconds are of this process and all that it has started, Ray's own servers included. The start of Ray, and of workers
that import coterie for the first time, is counted apart: a cluster that is up has paid for it.
"""

import argparse
import os
import time
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("RAY_worker_niceness", "0")

import numpy as np  # noqa: E402

import coterie as ct  # noqa: E402

GRID = {"coupling": [0.1, 1.0, 10.0, 100.0]}
ROWS, SIZE, FOLDS = 30, 10, 3


def cpu() -> float:
    """CPU seconds of this process and everything below it, so far (Linux)."""
    parent, used = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parent[int(path.parent.name)] = int(fields[1])
        used[int(path.parent.name)] = sum(map(int, fields[11:15]))  # with those of children that have ended
    ours, found = set(), {os.getpid()}
    while found:
        ours |= found
        found = {pid for pid, above in parent.items() if above in ours} - ours
    return sum(used[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


def task_of(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Agents with 30 rows of ten numbers and two classes each; neighbours on a ring want similar models."""
    rng = np.random.default_rng(0)
    angle = np.linspace(0.0, 2.0 * np.pi, n, endpoint=False)
    theta = np.cos(angle[:, None] + np.arange(SIZE))
    ids = np.repeat(np.arange(n), ROWS)
    X = rng.normal(size=(ids.size, SIZE))
    return X, (X * theta[ids]).sum(axis=1) + rng.normal(size=ids.size) > 0.0, ids


def tuned(n: int, workers: int | None):
    """Seconds by the clock, seconds of CPU, and the table of scores."""
    model = ct.CollaborativeClassifier("cd", graph=ct.graphs.ring(n), n_jobs=1)
    engine = None if workers is None else ct.Cluster(shards=workers)
    rows = task_of(n)
    clock, used = time.perf_counter(), cpu()
    table = ct.tune(model, *rows, GRID, n_splits=FOLDS, refit=False, engine=engine).table
    return time.perf_counter() - clock, cpu() - used, table


def report(n: int, workers: int, repeats: int) -> None:
    alone, there = [], []
    for _ in range(repeats):
        alone.append(tuned(n, None))
        there.append(tuned(n, workers))
        assert there[-1][2].equals(alone[-1][2]), "a cluster must find what one process finds"
    clock, used, clock_there, used_there = (min(run[k] for run in runs) for runs in (alone, there) for k in (0, 1))
    fits = FOLDS * len(alone[0][2])
    print(
        f"| {n:,} | {n * ROWS:,} | {fits} | {clock:.2f} | {clock_there:.2f} | {clock / clock_there:.2f} "
        f"| {used:.2f} | {used_there:.2f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--agents", type=int, nargs="+", default=[200, 1000, 4000])
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    import ray

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    clock, used = time.perf_counter(), cpu()
    ray.init(address="local", num_cpus=given.workers, object_store_memory=200_000_000, **quiet)
    up, up_used = time.perf_counter() - clock, cpu() - used
    first, first_used, _ = tuned(50, given.workers)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}. Start of Ray: {up:.1f} s by the clock, ", end="")
    print(f"{up_used:.1f} s of CPU; first use of its workers: {first:.1f} s, {first_used:.1f} s of CPU.\n")
    print("| agents | rows | fits | one process, s | cluster, s | gain | one process, CPU s | cluster, CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    for n in given.agents:
        report(n, given.workers, given.repeats)
    ray.shutdown()


if __name__ == "__main__":
    main()
