"""What it costs to group rows by agent: CPU seconds and memory beyond the rows themselves.

python benchmarks/rows.py [--million]

Each line is a fresh process, on one thread: agents with 10 to 100 rows of 20 float32 features, of a table that is
sorted by agent, or shuffled. The million agents have 4.2 GB of features.
"""

import argparse
import os
import subprocess
import sys

MEASURE = """
import sys, time
import numpy as np
import coterie as ct

n, shuffled = int(sys.argv[1]), sys.argv[2] == "shuffled"
ct.AgentData([[1.0]])  # everything is imported
rng = np.random.default_rng(0)
sizes = rng.integers(10, 101, n)
ids, rows = np.repeat(np.arange(n), sizes), int(sizes.sum())
if shuffled:
    rng.shuffle(ids)
X, y = np.empty((rows, 20), np.float32), np.ones(rows)
for first in range(0, rows, 1 << 20):
    X[first : first + (1 << 20)] = rng.standard_normal((min(1 << 20, rows - first), 20), dtype=np.float32)

def memory(what):
    return int(open("/proc/self/status").read().split(what + ":")[1].split()[0]) / 1024

open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
before, start = memory("VmRSS"), time.process_time()
data = ct.AgentData(X, y, ids)
seconds = time.process_time() - start
beyond = memory("VmHWM") - before
print(f"{n:>9,} {sys.argv[2]:>9} {rows:>12,} {X.nbytes / 2**20:>10,.0f} {seconds:>9.2f} {beyond:>10,.0f}")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--million", action="store_true", help="also a million agents, sorted")
    cases = [(n, how) for n in (10_000, 100_000) for how in ("sorted", "shuffled")]
    if parser.parse_args().million:
        cases.append((1_000_000, "sorted"))
    print(f"{'agents':>9} {'':>9} {'rows':>12} {'X, MB':>10} {'CPU s':>9} {'beyond, MB':>10}")
    for n, how in cases:
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-c", MEASURE, str(n), how], env=env, check=True)


if __name__ == "__main__":
    main()
