"""What a first use costs: ``python benchmarks/first_use.py [method ...]``. The target is 4 s for cd and 10 for learned.

CPU seconds of the first `simulate` of every method, in a process of its own with nothing kept on disk yet; and of a
second process, which finds everything there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

METHODS = "cd", "propagation", "admm", "djam", "boosting", "gossip-pooling", "resilient-pooling", "learned"


def problem_for(name):
    import numpy as np

    import coterie as ct

    rng = np.random.default_rng(0)
    n, m = 100, 20
    X, ids, graph = rng.normal(size=(n * m, 10)), np.repeat(np.arange(n), m), ct.graphs.ring(n, 3)
    if name == "propagation":
        return ct.Problem.propagation(rng.normal(size=(n, 10)), graph)
    if name.endswith("pooling"):
        return ct.Problem.personalized(ct.AgentData(X, rng.normal(size=n * m), agents=ids), graph, loss="squared")
    data = ct.AgentData(X, np.sign(rng.normal(size=n * m)), agents=ids)
    return ct.Problem.boosting(data, graph) if name == "boosting" else ct.Problem.personalized(data, graph)


def first(name):
    """CPU seconds of the imports and of a first run, in this process."""
    import coterie as ct

    problem = problem_for(name)
    began = time.process_time()
    ct.simulate(problem, ct.Learned(ct.CoordinateDescent(), ct.GraphRule()) if name == "learned" else name, wakes=1000)
    print(f"{began:.2f} {time.process_time() - began:.2f}")


def main():
    print(f"{'method':<20}{'imports':>9}{'first':>8}{'second':>8}   (CPU s)")
    for name in sys.argv[1:] or METHODS:
        with tempfile.TemporaryDirectory() as cache:
            runs = []
            for _ in range(2):
                command = [sys.executable, __file__, "--measure", name]
                done = subprocess.run(
                    command, env={**os.environ, "COTERIE_CACHE": cache}, check=True, capture_output=True, text=True
                )
                runs.append([float(number) for number in done.stdout.split()])
        print(f"{name:<20}{runs[0][0]:>9.1f}{runs[0][1]:>8.1f}{runs[1][1]:>8.1f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        first(sys.argv[2])
    else:
        main()
