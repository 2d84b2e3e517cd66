"""From a thousand agents to a million: CPU seconds, peak memory, and how both grow.

    python benchmarks/scale.py                                     # 1e3 to 1e6: some hours, 20 GB
    python benchmarks/scale.py --quick                             # 1e3 and 1e4: a few minutes
    python benchmarks/scale.py --json scale.json --resume          # goes on where it was interrupted
    python benchmarks/scale.py --sizes 1e5 --jobs 1,2 --steps local,wakes,solve --repeats 3       # speed-up
    python benchmarks/scale.py --sizes 1e6 --steps data,regular,converge --ulimit 24              # a million, in 24 GB
    python benchmarks/scale.py --json scale.json --resume --docs docs/explanation/speed-and-scale.md \\
        --figure docs/explanation/scale.png

Each number is of a process of its own, which warms the kernels on a small instance, prepares what the step needs, and
then is timed; its peak memory is that of the whole process, with the rows that the benchmark made. A step that is not
ready in the time limit is ended, and not tried with more agents.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import math
import os
import platform
import queue
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

P, DEGREE, FEWEST, MOST = 20, 10, 10, 100
SIZES, QUICK = (1e3, 1e4, 1e5, 1e6), (1e3, 1e4)
#: Agents of the instance that warms the kernels.
SMALL = 300
#: Agents whose rows are drawn at once, each block by a generator of its own.
BLOCK = 4096
#: Agents with like models, in the task.
CIRCLE = 100
#: Relative suboptimality to learn to, and wakes of an agent between two looks at it.
ENOUGH, LOOK = 1e-3, 5
#: Seconds to prepare a step.
PATIENCE = 3600.0
#: Steps that take less time are repeated, and the best time counts.
SHORT, TIMES = 1.0, 5


# -- the task ----------------------------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """Rows grouped by agent, in order of the agents."""

    X: np.ndarray  # (rows, P)
    y: np.ndarray  # (rows,) -1 or 1
    agents: np.ndarray  # (rows,)
    models: np.ndarray  # (n, P) that the labels come from


def make_models(n: int) -> np.ndarray:
    """Circles of agents that are much alike."""
    rng = np.random.default_rng(1)
    # All have something in common, or few circles, whose mean is not zero, would be a harder task than many.
    centres = rng.standard_normal(P) + rng.standard_normal((max(1, n // CIRCLE), P))
    return centres[rng.integers(0, len(centres), n)] + 0.3 * rng.standard_normal((n, P))


def make_rows(n: int, dtype: str = "float32") -> Rows:
    """Return points and labels, one label in twenty wrong; drawn in blocks, so that only the rows take memory."""
    models = make_models(n)
    sizes = np.random.default_rng(0).integers(FEWEST, MOST + 1, n)
    start = np.concatenate([[0], np.cumsum(sizes)])
    X, y = np.empty((start[-1], P), dtype), np.empty(start[-1], dtype)
    for first in range(0, n, BLOCK):
        rng, last = np.random.default_rng([2, first]), min(first + BLOCK, n)
        rows = slice(start[first], start[last])
        rng.standard_normal(dtype=X.dtype, out=X[rows])
        each = np.repeat(models[first:last].astype(dtype), sizes[first:last], axis=0)
        margin = np.einsum("rk,rk->r", X[rows], each)
        y[rows] = np.where((margin > 0) != (rng.random(len(margin)) < 0.05), 1.0, -1.0)
    return Rows(X, y, np.repeat(np.arange(n, dtype=np.int32), sizes), models)


# -- the steps: what is prepared, and then timed; each returns what else is worth telling ------------------------------


def takes(function: Callable, name: str) -> bool:
    return name in inspect.signature(function).parameters


def in_jobs(function: Callable, jobs: int, *args: Any, **options: Any) -> Any:
    """Called with n_jobs where it has it; where not, BLAS has been told how many threads there are."""
    return function(*args, **options | ({"n_jobs": jobs} if takes(function, "n_jobs") else {}))


class Prepared(NamedTuple):
    run: Callable[[], dict[str, Any]]
    rows: float = 0.0  # MB of X


def megabytes(*arrays: np.ndarray) -> float:
    return sum(a.nbytes for a in arrays) / 2**20


def agent_data(n: int, jobs: int, dtype: str) -> Prepared:
    import coterie as ct

    rows = make_rows(n, dtype)

    def run() -> dict[str, Any]:
        data = ct.AgentData(rows.X, rows.y, agents=rows.agents)
        return {"shares memory": bool(np.shares_memory(data.X, rows.X)), "dtype": str(data.X.dtype)}

    return Prepared(run, megabytes(rows.X))


def regular(n: int, jobs: int, dtype: str) -> Prepared:
    import coterie as ct

    return Prepared(lambda: {"edges": ct.graphs.random_regular(n, DEGREE, seed=0).n_edges})


def knn(n: int, jobs: int, dtype: str) -> Prepared:
    import coterie as ct

    models = make_models(n)

    def run() -> dict[str, Any]:
        if n == SMALL and takes(ct.graphs.knn, "exact"):  # the way that many agents take has kernels of its own
            with contextlib.suppress(ImportError, ct.errors.CoterieError):  # and may not be installed
                ct.graphs.knn(models, DEGREE, exact=False)
        return {"edges": in_jobs(ct.graphs.knn, jobs, models, DEGREE).n_edges}

    return Prepared(run)


def posed(n: int, dtype: str, graph: Any) -> tuple[Callable[[], Any], float]:
    """A function that poses CD (3) anew, so that nothing is known from the last time."""
    import coterie as ct

    X, y, agents, _ = make_rows(n, dtype)
    data = ct.AgentData(X, y, agents=agents)
    size = megabytes(X)
    return lambda: ct.Problem.personalized(data, graph, loss="logistic"), size


def certified(problem: Any, theta: np.ndarray) -> dict[str, float]:
    """Return the relative suboptimality of models: a proven bound if there is one, otherwise an estimate."""
    gap = problem.gap(theta)
    if not math.isfinite(gap):
        return {"suboptimality": problem.suboptimality(theta)}
    return {"proven bound": gap / max(problem.value(theta) - gap, 1e-300)}


def local(n: int, jobs: int, dtype: str) -> Prepared:
    import coterie as ct

    pose, size = posed(n, dtype, ct.graphs.ring(n, DEGREE // 2))

    def run() -> dict[str, Any]:
        in_jobs(pose().local, jobs)
        return {}

    return Prepared(run, size)


def wakes(n: int, jobs: int, dtype: str) -> Prepared:
    import coterie as ct

    pose, size = posed(n, dtype, ct.graphs.random_regular(n, DEGREE, seed=0))

    def run() -> dict[str, Any]:
        in_jobs(ct.simulate, jobs, pose(), ct.CoordinateDescent(), wakes=10 * n, start="zeros", seed=0)
        return {"updates": 10 * n}

    return Prepared(run, size)


def converge(n: int, jobs: int, dtype: str) -> Prepared:
    import coterie as ct

    pose, size = posed(n, dtype, ct.graphs.random_regular(n, DEGREE, seed=0))

    def run() -> dict[str, Any]:
        problem, looked = pose(), {"checks CPU s": 0.0, "suboptimality": math.inf}

        def near(theta: np.ndarray) -> bool:
            began = time.process_time()
            looked["suboptimality"] = problem.suboptimality(theta, ENOUGH)
            looked["checks CPU s"] += time.process_time() - began
            return looked["suboptimality"] <= ENOUGH

        ran = in_jobs(
            ct.simulate,
            jobs,
            problem,
            ct.CoordinateDescent(),
            wakes=1000 * n,
            start="zeros",
            seed=0,
            every=LOOK * n,
            until=near,
        )
        told = {"wakes each": int(ran.trace["wakes"].iloc[-1]) / n}
        return looked | told | {"certify": lambda: certified(problem, ran.theta)}

    return Prepared(run, size)


def solve(n: int, jobs: int, dtype: str) -> Prepared:
    import coterie as ct

    pose, size = posed(n, dtype, ct.graphs.random_regular(n, DEGREE, seed=0))

    def run() -> dict[str, Any]:
        problem = pose()
        theta = in_jobs(problem.solve, jobs)
        return {"certify": lambda: certified(problem, theta)}

    return Prepared(run, size)


def learn_graph(n: int, jobs: int, dtype: str) -> Prepared:
    import coterie as ct

    models, losses = make_models(n), np.random.default_rng(3).uniform(0.1, 0.6, n)
    return Prepared(lambda: {"edges": in_jobs(ct.learn_graph, jobs, models, losses).graph.n_edges})


def pooled(n: int, jobs: int, dtype: str) -> Prepared:
    import coterie as ct

    X, y, agents, _ = make_rows(n, dtype)

    def run() -> dict[str, Any]:
        model = ct.CollaborativeClassifier()
        if "n_jobs" in model.get_params():
            model.set_params(n_jobs=jobs)
        model.fit(X, y, agents=agents)
        return {}

    return Prepared(run, megabytes(X))


class Step(NamedTuple):
    title: str
    prepare: Callable[[int, int, str], Prepared]


STEPS = {
    "data": Step("`AgentData`", agent_data),
    "regular": Step("`random_regular`, degree 10", regular),
    "knn": Step("`knn(models, 10)`", knn),
    "local": Step("`local()`", local),
    "wakes": Step("`simulate`, 10 wakes each", wakes),
    "converge": Step("`simulate`, to 1e-3 of the optimum", converge),
    "solve": Step("`solve()`", solve),
    "learn_graph": Step("`learn_graph`, its default", learn_graph),
    "pooled": Step("pooled fit", pooled),
}


# -- one number: a process of its own ----------------------------------------------------------------------------------


def peak() -> float:
    """The most memory that this process has had, in MB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def child(step: str, n: int, jobs: int, dtype: str, ulimit: float | None) -> None:
    """Warm, prepare, say so, time; talks in lines of json."""
    if ulimit:
        most = int(ulimit * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    began = time.process_time()
    prepare = STEPS[step].prepare
    prepare(SMALL, jobs, dtype).run().get("certify", dict)()
    warm = time.process_time()
    prepared = prepare(n, jobs, dtype)
    tell(ready={"warming CPU s": warm - began, "preparing CPU s": time.process_time() - warm, "rows": prepared.rows})
    best, all_told = {"cpu": math.inf}, 0.0
    for _ in range(TIMES):
        cpu, wall = time.process_time(), time.perf_counter()
        more = prepared.run()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        if cpu < best["cpu"]:
            best = {"cpu": cpu, "wall": wall, "peak": peak()} | more
        all_told += wall
        if all_told > SHORT:
            break
    # What it took is safe before anything else is asked.
    certify = best.pop("certify", None)
    tell(done=best)
    if certify:
        cpu = time.process_time()
        found = certify()
        tell(more=found | {"certificate CPU s": time.process_time() - cpu})


def one(
    step: str, n: int, jobs: int, dtype: str, ulimit: float | None, limit: float, patience: float = PATIENCE
) -> dict[str, Any]:
    """Return the results of a child process; ``failed`` is the reason of a failure."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"))
    environment = os.environ | dict.fromkeys(threads, str(jobs))
    result: dict[str, Any] = {"step": step, "agents": n, "jobs": jobs, "dtype": dtype, "ulimit": ulimit}
    said: queue.Queue[str | None] = queue.Queue()
    with tempfile.TemporaryFile("w+") as errors:
        task = json.dumps([step, n, jobs, dtype, ulimit])
        process = subprocess.Popen(
            [sys.executable, __file__, "--child", task],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

        def listen() -> None:
            for line in process.stdout:
                said.put(line)
            said.put(None)

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        doing, seconds, seen = "preparing it was", patience, set()
        try:
            while (line := said.get(timeout=seconds)) is not None:
                found = json.loads(line)
                seen |= set(found)
                for part in found.values():
                    result |= part
                doing, seconds = "" if "ready" in found else "its certificate was", limit
        except queue.Empty:
            words = f"{doing} not finished in {seconds:g} s".strip()
            result["note" if "done" in seen else "failed"] = words
        finally:
            process.kill()
            code = process.wait()
            listener.join()
            process.stdout.close()
        errors.seek(0)
        last = (errors.read().strip().splitlines() or [""])[-1]
    if "done" not in seen and "failed" not in result:
        result["failed"] = "out of memory" if code == -9 or "Memory" in last or "allocate" in last else last[:90]
    return result


# -- what is told ------------------------------------------------------------------------------------------------------


def growth(sizes: list[float], costs: list[float | None]) -> list[float | None]:
    """Exponents: cost ~ size ** exponent, from each size to the next; None where either is missing."""
    return [
        math.log(costs[k + 1] / costs[k]) / math.log(sizes[k + 1] / sizes[k]) if costs[k] and costs[k + 1] else None
        for k in range(len(sizes) - 1)
    ]


def short(size: float) -> str:
    exponent = math.floor(math.log10(size))
    return f"{size / 10**exponent:g}e{exponent}"


def number(value: float) -> str:
    """Two or three digits, and thousands in full."""
    for least, form in ((100, ",.0f"), (10, ".1f"), (0.1, ".2f")):
        if value >= least:
            return format(value, form)
    return format(value, ".2g")


def exponents(values: list[float | None]) -> str:
    return ", ".join("-" if v is None else f"{v:.2f}" for v in values)


class Results:
    """All that has been measured; on disk after each number, if there is a file."""

    def __init__(self, path: Path | None = None, resume: bool = False):
        self.path, self.found = path, []
        if resume and path and path.exists():
            self.found = json.loads(path.read_text())["results"]

    def find(self, step: str, n: int, jobs: int) -> dict[str, Any] | None:
        return next((r for r in self.found if (r["step"], r["agents"], r["jobs"]) == (step, n, jobs)), None)

    def add(self, result: dict[str, Any]) -> None:
        self.found.append(result)
        if self.path:
            draft = self.path.with_suffix(".tmp")
            draft.write_text(json.dumps({"machine": machine(), "results": self.found}, indent=1) + "\n")
            draft.replace(self.path)

    @property
    def sizes(self) -> list[int]:
        return sorted({r["agents"] for r in self.found})

    @property
    def jobs(self) -> list[int]:
        return sorted({r["jobs"] for r in self.found})

    def steps(self) -> list[str]:
        return [step for step in STEPS if any(r["step"] == step for r in self.found)]


def machine() -> dict[str, Any]:
    name = platform.processor()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return {"processor": name, "cores": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__}


def cell(result: dict[str, Any] | None, what: str) -> str:
    if result is None:
        return ""
    return result["failed"] if "failed" in result else number(result[what])


def main_table(results: Results, what: str, jobs: int) -> list[list[str]]:
    """A row for each step: its cost at each size, and exponents of growth. ``what`` is cpu, wall or peak."""
    sizes = results.sizes
    table = []
    for step in results.steps():
        row = [results.find(step, n, jobs) for n in sizes]
        costs = [None if r is None or "failed" in r else r[what] for r in row]
        table.append([STEPS[step].title, *(cell(r, what) for r in row), exponents(growth(sizes, costs))])
    if what == "peak":
        rows = [max((r.get("rows", 0.0) for r in results.found if r["agents"] == n), default=0.0) for n in sizes]
        table.append(["(X alone)", *(number(r) if r else "" for r in rows), exponents(growth(sizes, rows))])
    return table


def speedup_table(results: Results) -> list[list[str]]:
    """A row for each step and size that was run with one thread and with more."""
    one, *more = results.jobs
    table = []
    for step in results.steps():
        for n in results.sizes:
            alone, others = results.find(step, n, one), [results.find(step, n, jobs) for jobs in more]
            if not alone or "failed" in alone or not any(others):
                continue
            told = [
                cell(r, "wall") + (f" (x{alone['wall'] / r['wall']:.2f})" if r and "failed" not in r else "")
                for r in others
            ]
            table.append([STEPS[step].title, short(n), number(alone["wall"]), *told])
    return table


def remarks(results: Results) -> list[str]:
    """Describe further results in words: rates, numbers of wakes, certificates."""
    told = []
    for step in results.steps():
        done = [r for r in results.found if r["step"] == step and "failed" not in r and r["jobs"] == results.jobs[0]]
        for key, words in (
            ("wakes each", "wakes of each agent"),
            ("suboptimality", "relative suboptimality, estimated,"),
            ("proven bound", "relative suboptimality, proven to be at most"),
            ("checks CPU s", "CPU s of looking at it, included"),
            ("certificate CPU s", "CPU s of the certificate, not included"),
        ):
            if any(key in r for r in done):
                told.append(
                    f"{STEPS[step].title}: {words} "
                    + ", ".join(f"{r[key]:.3g} ({short(r['agents'])})" for r in done if key in r)
                )
        if any("updates" in r for r in done):
            rates = ", ".join(f"{r['updates'] / r['cpu']:,.0f} ({short(r['agents'])})" for r in done if "updates" in r)
            told.append(f"{STEPS[step].title}: updates a CPU second {rates}")
        told += [f"{STEPS[step].title}, {short(r['agents'])}: {r['note']}" for r in done if "note" in r]
    return told


def tables(results: Results) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, names of columns, rows."""
    first = results.jobs[0]
    sizes = [short(n) for n in results.sizes]
    threads = f"{first} thread" + "s" * (first > 1)
    told = [
        (f"CPU seconds, {threads}", ["step", *sizes, "growth"], main_table(results, "cpu", first)),
        (f"Peak memory of the process, MB, {threads}", ["step", *sizes, "growth"], main_table(results, "peak", first)),
    ]
    if len(results.jobs) > 1:
        columns = ["step", "agents", *(f"{jobs} threads" if jobs > 1 else "1 thread" for jobs in results.jobs)]
        told.append(("Wall seconds, and speed-up", columns, speedup_table(results)))
    return told


def markdown(results: Results, figure: Path | None = None) -> str:
    """The tables, under the figure, which lies beside the page."""
    told = machine()
    parts = [
        f"{told['processor']}, {told['cores']} cores, Python {told['python']}, NumPy {told['numpy']}; rows are "
        f"{'/'.join(sorted({r['dtype'] for r in results.found}))}."
    ]
    for title, columns, rows in tables(results):
        lines = ["| " + " | ".join(row) + " |" for row in ([columns, ["---"] * len(columns), *rows])]
        parts.append(f"**{title}**\n\n" + "\n".join(lines))
    if figure:
        parts.insert(0, f"![Time and memory against agents]({figure.name})")
    parts.append("\n".join(f"* {remark}" for remark in remarks(results)))
    return "\n\n".join(parts)


def into(path: Path, name: str, text: str) -> None:
    """Put a text between the marks that a page has for it."""
    page, begin, end = path.read_text(), f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if begin not in page or end not in page:
        raise SystemExit(f"{path} has no marks {begin} and {end} to write between")
    before, after = page.split(begin)[0], page.split(end)[1]
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def show(results: Results) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=150)
    for title, columns, rows in tables(results):
        table = Table(title=title)
        for k, column in enumerate(columns):
            table.add_column(column, justify="left" if k == 0 else "right")
        for row in rows:
            table.add_row(row[0].replace("`", ""), *row[1:])
        console.print(table)
    for remark in remarks(results):
        console.print(remark.replace("`", ""))


def draw(results: Results, path: Path) -> None:
    """Time and memory against agents, each beside a line of slope one."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    first, sizes = results.jobs[0], results.sizes
    for axes, what, label in zip(panels, ("cpu", "peak"), ("CPU seconds", "peak memory, MB"), strict=True):
        for step in results.steps():
            found = [r for n in sizes if (r := results.find(step, n, first)) and "failed" not in r]
            if found:
                name = STEPS[step].title.replace("`", "")
                axes.plot([r["agents"] for r in found], [r[what] for r in found], "o-", markersize=4, label=name)
        low = min((r[what] for r in results.found if what in r), default=1.0)
        axes.plot(sizes, [low * n / sizes[0] for n in sizes], "--", color="0.5", label="in proportion to agents")
        axes.set(xscale="log", yscale="log", xlabel="agents", ylabel=label)
        axes.grid(alpha=0.3)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


# -- the command -------------------------------------------------------------------------------------------------------


def best_of(repeats: int, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    runs = [measure()]
    while "failed" not in runs[-1] and len(runs) < repeats:
        runs.append(measure())
    return min(runs, key=lambda r: r.get("wall", math.inf))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes", type=lambda s: [round(float(x)) for x in s.split(",")], help="numbers of agents, such as 1e3,1e4"
    )
    parser.add_argument("--steps", type=lambda s: s.split(","), default=list(STEPS), help=f"of {','.join(STEPS)}")
    parser.add_argument(
        "--jobs",
        type=lambda s: [int(x) for x in s.split(",")],
        default=[1],
        help="threads, such as 1,2: with several, the speed-up",
    )
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="of the rows")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for a step")
    parser.add_argument("--repeats", type=int, default=1, help="processes for each number; the best counts")
    parser.add_argument("--ulimit", type=float, metavar="GB", help="address space of each process, as of ulimit -v")
    parser.add_argument("--quick", action="store_true", help="1e3 and 1e4 agents")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write each result here, as soon as it is there")
    parser.add_argument("--resume", action="store_true", help="keep what --json has, and measure what it has not")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="a page to put the tables in")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the tables")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    unknown = [step for step in given.steps if step not in STEPS]
    if unknown:
        parser.error(f"no such step: {', '.join(unknown)}; there are {', '.join(STEPS)}")
    if given.resume and not given.json:
        parser.error("--resume needs --json FILE, which has what was measured before")
    given.sizes = sorted(given.sizes or (map(int, QUICK if given.quick else SIZES)))
    return given


def main() -> None:
    given = options()
    if given.child:
        child(*given.child)
        return
    results = Results(given.json, given.resume)
    for step in (name for name in STEPS if name in given.steps):
        wanted = [(n, jobs) for n in given.sizes for jobs in given.jobs]
        if any(not results.find(step, n, jobs) for n, jobs in wanted):
            # What is compiled now is on disk for the others, whose memory is then not the compiler's.
            one(step, SMALL, given.jobs[0], given.dtype, None, given.limit)
        for n in given.sizes:
            # Numbers of threads by turns, so that what else the machine does meets all of them.
            for jobs in given.jobs:
                if results.find(step, n, jobs):
                    continue
                smaller = [r for r in results.found if (r["step"], r["jobs"]) == (step, jobs) and "failed" in r]
                if any(r["agents"] < n for r in smaller):
                    result = {"step": step, "agents": n, "jobs": jobs, "dtype": given.dtype, "failed": "not tried"}
                else:
                    result = best_of(
                        given.repeats,
                        lambda: one(step, n, jobs, given.dtype, given.ulimit, given.limit),  # noqa: B023
                    )
                results.add(result)
                words = cell(result, "cpu") + (" CPU s" if "cpu" in result else "")
                print(f"{step}, {short(n)} agents, n_jobs={jobs}: {words}", file=sys.stderr, flush=True)
    show(results)
    if given.docs:
        into(given.docs, "scale", markdown(results, given.figure))
    if given.figure:
        draw(results, given.figure)


if __name__ == "__main__":
    main()
