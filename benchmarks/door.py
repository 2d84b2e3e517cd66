"""The front door: CPU seconds of a first fit, of many agents, and how they grow.

python benchmarks/door.py [--million] [--json FILE]

Every number is of a fresh process, on one thread: ``time.process_time`` after one fit, with Python's start and all
imports, without the making of the rows. ``COTERIE_CACHE`` is an empty folder, so that nothing compiled is found.
Packages that are not installed are left out.
"""

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile

from rich.console import Console
from rich.table import Table

SAMPLE = 500

ROWS = """
import json, resource, sys, time
import numpy as np
start = time.process_time()
rng = np.random.default_rng(0)
n, m, p = {n}, {m}, {p}
g = np.repeat(np.arange(n), m)
X = rng.normal(size=(n * m, p))
w, D = rng.normal(size=p), 0.5 * rng.normal(size=(n, p))
z = np.empty(n * m)
for a in range(0, n * m, 1_000_000):
    s = slice(a, a + 1_000_000)
    z[s] = X[s] @ w + np.einsum("ij,ij->i", X[s], D[g[s]])
c = (rng.random(n * m) < 1 / (1 + np.exp(-z))).astype(int)
y = z + rng.normal(size=n * m)
del z, D
before = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
"""
REPORT = """
after = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = {"cpu": after[0] - before[0], "mb": after[1] / 1024, "data": before[1] / 1024, "numba": "numba" in sys.modules}
print(json.dumps(found))
"""
ONES = "A = np.column_stack([np.ones(len(X)), X])\n"
GPBOOST = f"""
import gpboost
{ONES}
model = gpboost.GPModel(group_data=g, likelihood={{likelihood!r}}, num_parallel_threads=1{{slopes}})
model.fit(y={{y}}, X=A)
"""
SLOPES = ", group_rand_coef_data=X, ind_effect_group_rand_coef=[1] * p"
MIXED = f"""
from statsmodels.regression.mixed_linear_model import MixedLM
{ONES}
MixedLM(y, A, groups=g{{slopes}}).fit()
"""
LIGHTGBM = """
import lightgbm
A = np.column_stack([X, g])
lightgbm.{which}(n_jobs=1, verbose=-1).fit(A, {y}, categorical_feature=[p])
"""
LOGISTIC = "from sklearn.linear_model import LogisticRegression\nLogisticRegression().fit(X, c)"
#: What is fitted: package, name, code.
CLASSES = [
    ("coterie", "CollaborativeClassifier", "import coterie as ct\nct.CollaborativeClassifier().fit(X, c, agents=g)"),
    ("sklearn", "one LogisticRegression", LOGISTIC),
    ("gpboost", "GPBoost, random intercepts", GPBOOST.format(likelihood="bernoulli_logit", slopes="", y="c")),
    ("gpboost", "GPBoost, random slopes", GPBOOST.format(likelihood="bernoulli_logit", slopes=SLOPES, y="c")),
    ("lightgbm", "LightGBM, group as category", LIGHTGBM.format(which="LGBMClassifier", y="c")),
]
NUMBERS = [
    ("coterie", "CollaborativeRegressor", "import coterie as ct\nct.CollaborativeRegressor().fit(X, y, agents=g)"),
    ("sklearn", "one Ridge", "from sklearn.linear_model import Ridge\nRidge().fit(X, y)"),
    ("statsmodels", "MixedLM, random intercepts", MIXED.format(slopes="")),
    ("statsmodels", "MixedLM, random slopes", MIXED.format(slopes=", exog_re=A")),
    ("gpboost", "GPBoost, random intercepts", GPBOOST.format(likelihood="gaussian", slopes="", y="y")),
    ("gpboost", "GPBoost, random slopes", GPBOOST.format(likelihood="gaussian", slopes=SLOPES, y="y")),
    ("lightgbm", "LightGBM, group as category", LIGHTGBM.format(which="LGBMRegressor", y="y")),
]
EACH = """
from sklearn.linear_model import LogisticRegression
before = time.process_time(), before[1]
for k in range(n):
    s = slice(k * m, (k + 1) * m)
    if c[s].min() < c[s].max():
        LogisticRegression().fit(X[s], c[s])
"""


def fresh(code, n, m, p, limit):
    """Return the report of a fresh process, or the reason of its failure."""
    with tempfile.TemporaryDirectory() as cache:
        threads = dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
        )
        environment = os.environ | threads | {"COTERIE_CACHE": cache, "PYTHONWARNINGS": "ignore"}
        program = ROWS.format(n=n, m=m, p=p) + code + REPORT
        try:
            done = subprocess.run(
                [sys.executable, "-c", program],
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"more than {limit:g} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:60]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def side_by_side(console, title, what, n, m, p, limit, repeats):
    """Return one table: all contestants on equal rows, in turn; the best of several repetitions."""
    table = Table(title=f"{title}: {n:,} agents x {m} rows x {p} columns")
    for column in ("", "CPU s", "over ours", "peak MB", "Numba imported"):
        table.add_column(column, justify="left" if not column else "right")
    results = {}
    for package, name, code in what:
        if importlib.util.find_spec(package) is None:
            console.print(f"{name} is left out: {package} is not installed")
            continue
        runs = [fresh(code, n, m, p, limit)]
        while "cpu" in runs[-1] and len(runs) < repeats:
            runs.append(fresh(code, n, m, p, limit))
        results[name] = min(runs, key=lambda r: r.get("cpu", math.inf))
    mine = next((r["cpu"] for r in results.values() if "cpu" in r), math.nan)
    for name, r in results.items():
        if "failed" in r:
            table.add_row(name, r["failed"])
        else:
            words = "yes" if r["numba"] else "no"
            table.add_row(name, f"{r['cpu']:.2f}", f"{r['cpu'] / mine:.2f}", f"{r['mb']:,.0f}", words)
    console.print(table)
    return {"title": title, "agents": n, "rows": m, "columns": p, "results": results}


def growth(console, most, m, p, limit):
    """Time and memory as agents grow tenfold."""
    table = Table(title=f"Growth: agents x {m} rows x {p} columns, CollaborativeClassifier")
    for column in ("agents", "CPU s", "us an agent", "exponent", "peak MB", "of these the rows"):
        table.add_column(column, justify="right")
    found = []
    n = 10_000
    while n <= most:
        r = fresh(CLASSES[0][2], n, m, p, limit)
        if "failed" in r:
            table.add_row(f"{n:,}", r["failed"])
            break
        exponent = math.log10(r["cpu"] / found[-1]["cpu"]) if found else math.nan
        found.append(r | {"agents": n, "exponent": exponent})
        words = f"{exponent:.2f}" if len(found) > 1 else ""
        table.add_row(
            f"{n:,}", f"{r['cpu']:.2f}", f"{1e6 * r['cpu'] / n:.1f}", words, f"{r['mb']:,.0f}", f"{r['data']:,.0f}"
        )
        n *= 10
    console.print(table)
    return {"title": "growth", "rows": m, "columns": p, "results": found}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--million", action="store_true", help="up to a million agents: some minutes, some GB")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one fit")
    parser.add_argument(
        "--repeats", type=int, default=3, help="processes for each number of the small tables; the best counts"
    )
    parser.add_argument("--json", help="write everything here")
    arguments = parser.parse_args()
    console, limit, repeats = Console(width=130), arguments.limit, arguments.repeats
    found = [
        side_by_side(console, title, what, n, m, p, limit, repeats)
        for n, m, p in ((100, 50, 10), (1_000, 20, 20))
        for title, what in (("First fit, classes", CLASSES), ("First fit, numbers", NUMBERS))
    ]

    ours = fresh(CLASSES[0][2], 100_000, 20, 20, limit)
    theirs = fresh(EACH, SAMPLE, 20, 20, limit)
    if "cpu" in ours and "cpu" in theirs:
        scaled = theirs["cpu"] * 100_000 / SAMPLE
        console.print(
            f"100,000 agents x 20 rows x 20 columns: CollaborativeClassifier {ours['cpu']:.1f} CPU s, "
            f"{ours['mb']:,.0f} MB; as many LogisticRegression fits {scaled:.0f} CPU s "
            f"({SAMPLE} of them timed, times {100_000 // SAMPLE}): x{scaled / ours['cpu']:.0f}"
        )
    else:
        console.print("100,000 agents:", ours.get("failed"), theirs.get("failed"))
    found.append({"title": "100,000 agents", "ours": ours, "theirs": theirs, "sample": SAMPLE})
    found.append(growth(console, 1_000_000 if arguments.million else 100_000, 10, 10, 10 * limit))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
