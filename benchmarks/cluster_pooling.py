"""Partial pooling in one process, and on two workers: seconds, CPU, and what the fitting process needs of memory.

    python benchmarks/cluster_pooling.py                    # 1e4 and 1e5 agents, 20 rows and 20 features each
    python benchmarks/cluster_pooling.py --agents 1e4 --json cluster_pooling.json

Rows are in 16 parquet files with a column of agents. Each number is of a process of its own. "one process" reads them
and fits; "2 workers" are of a Ray on this machine, started before the clock is: they read their own rows. CPU is that
of the fitting process and of all that Ray runs for it, memory the peak of the fitting process and of the larger worker.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

ROWS, FEATURES, FILES = 20, 20, 16
WAYS = ("one process", "2 workers")


def write(folder: Path, agents: int) -> None:
    """Numbers by lines of each agent's own."""
    import pandas as pd

    for k, some in enumerate(np.array_split(np.arange(agents), FILES)):
        rng = np.random.default_rng([agents, k])
        who = np.repeat(some, ROWS)
        X = rng.normal(size=(len(who), FEATURES))
        own = rng.normal(0.5, 0.3, size=(len(some), FEATURES + 1))
        y = np.einsum("ij,ij->i", X, np.repeat(own[:, 1:], ROWS, axis=0)) + np.repeat(own[:, 0], ROWS)
        frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(FEATURES)]).assign(agent=who)
        frame.assign(y=y + rng.normal(size=len(who))).to_parquet(folder / f"{k:02d}.parquet", index=False)


class Watch(threading.Thread):
    """CPU and peak memory of the processes that this one has started, and of theirs; some are gone at the end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.cpu: dict[int, float] = {}
        self.peak: dict[int, float] = {}
        self.ready = threading.Event()

    def run(self) -> None:
        while not self.ready.wait(0.2):
            self.look()

    def look(self) -> None:
        parents, seconds = {}, {}
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                try:
                    after = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                    name = Path(entry.path, "cmdline").read_bytes()
                    status = Path(entry.path, "status").read_text()
                except OSError:
                    continue
                pid = int(entry.name)
                parents[pid] = int(after[1])
                seconds[pid] = (int(after[11]) + int(after[12])) / os.sysconf("SC_CLK_TCK")
                if b"PoolingWorker" in name and "VmHWM" in status:
                    self.peak[pid] = int(status.partition("VmHWM:")[2].split()[0]) / 1e3
        mine = {os.getpid()}
        while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
            mine |= more
        self.cpu |= {pid: seconds[pid] for pid in mine if pid in seconds and pid != os.getpid()}


def measure(folder: str, way: str) -> dict[str, float]:
    """One fit, in this process."""
    import coterie as ct

    engine, watch = None, Watch()
    if way != WAYS[0]:
        import ray

        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        engine = ct.Cluster(shards=2)
        watch.start()
        time.sleep(0.5)
    watch.look()
    before, cpu, start = sum(watch.cpu.values()), time.process_time(), time.perf_counter()
    model = ct.CollaborativeRegressor(design="linear", engine=engine).fit(folder, "y", agents="agent")
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    watch.ready.set()
    watch.look()
    return {
        "seconds": seconds,
        "cpu": cpu + sum(watch.cpu.values()) - before,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "worker": max(watch.peak.values(), default=0.0),
        "noise": model.noise_,
        "evidence": model.log_evidence_,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=float, nargs="+", default=[1e4, 1e5])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if given.measure:
        print(json.dumps(measure(*given.measure)))
        return
    found = []
    print("| agents | where | seconds | CPU seconds | peak memory of the fitting process, MB | of a worker, MB |")
    print("|---|---|---|---|---|---|")
    for agents in map(int, given.agents):
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), agents)
            for way in WAYS:
                command = [sys.executable, __file__, "--measure", folder, way]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                result = json.loads(done.stdout.splitlines()[-1]) | {"agents": agents, "way": way}
                found.append(result)
                worker = f"{result['worker']:.0f}" if result["worker"] else ""
                numbers = f"{result['seconds']:.1f} | {result['cpu']:.1f} | {result['memory']:.0f} | {worker}"
                print(f"| {agents:,} | {way} | {numbers} |", flush=True)
            one, two = found[-2:]
            off = abs(one["evidence"] / two["evidence"] - 1.0)
            if off > 1e-10:
                raise SystemExit(f"the two do not agree: {one['evidence']} and {two['evidence']}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
