"""What a simulation on the shards of a cluster costs, beside one process: CPU of all processes, time, memory, bytes.

    python benchmarks/shards.py                                   # 1e4 and 1e5 agents, two shards: some minutes
    python benchmarks/shards.py --sizes 1e6 --only shards         # more than fit twice: without one process beside it
    python benchmarks/shards.py --edges near                       # neighbours by number: few messages between shards
    python benchmarks/shards.py --parts --sizes 1e5 --shards 8    # the parts of a superstep, without Ray
    python benchmarks/shards.py --docs docs/explanation/speed-and-scale.md              # into a page

The task is that of benchmarks/scale.py: p = 20, 10 to 100 rows of each agent, 10 neighbours, logistic regression, CD
(3); but every block of agents is drawn where it is needed, and neighbours follow from numbers: i has edges to i + s
and i - s, for five steps s. With edges "far", s is anything, and nearly everybody has neighbours on all shards; with
"near", s is 1 to 5.

CPU is user and system time of this process and of all that it has started: Ray's own (raylet, gcs, ...) and the
workers. From a long run that of 2 wakes of each agent is taken away: what both have in common, starting, building,
greeting, and the value at both ends, is left out. All runs are by turns, and the best of each counts.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from scale import DEGREE, FEWEST, MOST, P, into, machine, number, short

os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

#: Wakes of each agent in a short run, and how many more there are in a long one: in all, and of each.
SHORT, MORE, FEWEST_MORE = 2, 4_000_000, 20
#: Agents that are drawn by one generator.
BLOCK = 1000
TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


# -- the task, in blocks -----------------------------------------------------------------------------------------------


def rows_of(block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sizes, points and labels of a block of agents that are much alike; one label in twenty is wrong."""
    rng = np.random.default_rng([2, block])
    sizes = rng.integers(FEWEST, MOST + 1, BLOCK)
    centre = np.random.default_rng(1).standard_normal(P) + rng.standard_normal(P)
    models = centre + 0.3 * rng.standard_normal((BLOCK, P))
    X = rng.standard_normal((sizes.sum(), P), dtype=np.float32)
    margin = np.einsum("rk,rk->r", X, np.repeat(models.astype(np.float32), sizes, axis=0))
    return sizes, X, np.where((margin > 0) != (rng.random(len(margin)) < 0.05), 1.0, -1.0)


def steps_of(n: int, edges: str) -> np.ndarray:
    """Return the distances of neighbours, by number."""
    half = DEGREE // 2
    if edges == "near":
        return np.arange(1, half + 1)
    return np.random.default_rng(3).choice(np.arange(1, n // 2), half, replace=False)


class Build:
    """Draws the agents of a block: what ct.engines.ShardedProblem asks for."""

    def __init__(self, n: int, edges: str):
        self.n, self.steps = n, steps_of(n, edges)

    def __call__(self, first: int, last: int) -> Any:
        import coterie as ct

        blocks = range(first // BLOCK, -(-last // BLOCK))
        drawn = [rows_of(block) for block in blocks]
        sizes = np.concatenate([part[0] for part in drawn])
        start = np.concatenate([[0], np.cumsum(sizes)])
        a, b = first - blocks[0] * BLOCK, last - blocks[0] * BLOCK
        X, y = (np.concatenate([part[k] for part in drawn])[start[a] : start[b]] for k in (1, 2))
        agents = np.arange(first, last)
        data = ct.AgentData(X, y, agents=np.repeat(agents, sizes[a:b]), members=range(first, last))
        there = (agents[:, None] + np.concatenate([self.steps, -self.steps])) % self.n
        W = sparse.csr_array(
            (np.ones(there.size), there.ravel(), np.arange(0, there.size + 1, DEGREE)), shape=(last - first, self.n)
        )
        return data, W


def posed(n: int, edges: str) -> Any:
    import coterie as ct

    return ct.engines.ShardedProblem(Build(n, edges), n, ct.Problem.personalized, loss="logistic")


# -- what all processes take -------------------------------------------------------------------------------------------


def processes() -> dict[int, float]:
    """CPU seconds of this process and of all that descend from it, by number; as far as they live."""
    parents, used = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            process = int(folder.name)
            parents[process], used[process] = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICK
    mine = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return {process: used[process] for process in mine if process in used}


def peak() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def on_shard(first: int, theta: np.ndarray) -> tuple[float, float]:
    """On a shard, at the end of a run: CPU seconds that its process has taken, and the most memory that it has had."""
    return time.process_time(), peak()


def more_of(n: int) -> int:
    """Return the number of wakes of each agent by which a long run exceeds a short one."""
    return max(FEWEST_MORE, MORE // n)


def one(wakes: int, shards: int, problem: Any) -> dict[str, Any]:
    """Run `wakes` wakes of each agent, in this process if there are no shards."""
    import coterie as ct

    n = problem.n
    options: dict[str, Any] = {"wakes": wakes * n, "start": "zeros", "seed": 0}
    workers: set[int] = set()
    began = time.perf_counter(), time.process_time(), processes()
    if shards:

        def look(done: int, total: int) -> None:
            workers.update(processes().keys() - began[2].keys())  # those that have come since are the shards

        run = ct.simulate(problem, "cd", engine=ct.Cluster(shards=shards), fetch=on_shard, progress=look, **options)
    else:
        run = ct.simulate(problem, "cd", n_jobs=1, **options)
    wall, cpu, ended = time.perf_counter() - began[0], time.process_time() - began[1], processes()
    others = [p for p in ended if p in began[2] and p != os.getpid() and p not in workers]
    around = sum(ended[p] - began[2][p] for p in others)
    return {
        "cpu": cpu + around + sum(seconds for seconds, _ in run.fetched),
        "wall": wall,
        "value": run.value,
        "shard MB": max((mb for _, mb in run.fetched), default=0.0),
        "around": around,
    }


def compared(
    n: int, edges: str, shards: int, repeats: int, only: str | None, ship: bool
) -> dict[str, dict[str, float]]:
    """Measure the cost of the additional wakes of a long run, in one process and on shards."""
    problem = posed(n, edges)
    whole = None if only else problem.whole()
    ways: dict[str, Any] = {}
    if whole is not None:
        whole.local_lipschitz  # noqa: B018 - worked out once
        ways["one process"] = (0, whole)
        if ship:
            ways["shards, shipped"] = (shards, whole)
    ways["shards"] = (shards, problem)
    best: dict[Any, dict[str, Any]] = {}
    for _ in range(repeats):
        for way, (count, given) in ways.items():
            for wakes in (SHORT, SHORT + more_of(n)):
                found = one(wakes, count, given)
                before = best.get((way, wakes), found)
                best[way, wakes] = found | {name: min(before[name], found[name]) for name in ("cpu", "wall")}
    told = {}
    for way in ways:
        short_run, long_run = best[way, SHORT], best[way, SHORT + more_of(n)]
        told[way] = long_run | {name: long_run[name] - short_run[name] for name in ("cpu", "wall")}
        told[way] |= {"driver MB": peak(), "start CPU s": short_run["cpu"], "start s": short_run["wall"]}
    return told


# -- the parts of a superstep ------------------------------------------------------------------------------------------


class Parts:
    """Two shards in this process: what each part of a superstep takes."""

    def __init__(self, n: int, edges: str, count: int):
        import coterie as ct
        from coterie.engines.shard import Shard

        problem, method = posed(n, edges), ct.CoordinateDescent()
        cuts = np.linspace(0, n, count + 1).astype(np.int64)
        self.n, self.shards = n, [Shard(30) for _ in range(count)]
        before = [shard.load(problem, problem.pose, cuts, k, method) for k, shard in enumerate(self.shards)]
        connected = np.stack([facts.edges for facts in before])
        for k, shard in enumerate(self.shards):
            goals = np.flatnonzero(connected[k])
            shard.begin(n, max(facts.largest for facts in before), "zeros", "uniform", goals, 0, 1)
            shard.greet()
        self.exchange()

    def exchange(self) -> tuple[float, float, int]:
        """Seconds to hand out, and to take in, and how many rows there were."""
        began = time.process_time()
        parts = [dict(zip(shard.goals.tolist(), shard._published(), strict=True)) for shard in self.shards]
        handed = time.process_time()
        for k, shard in enumerate(self.shards):
            for goal, other in enumerate(shard.goals.tolist()):
                shard._read(goal, parts[other][k])
        rows = sum(len(part.place) for mine in parts for part in mine.values())
        return handed - began, time.process_time() - handed, rows

    def superstep(self) -> dict[str, float]:
        """Nanoseconds: of a wake; of drawing one, whoever wakes; of a row from shard to shard; and rows of an agent."""
        draw = wake = 0.0
        for shard in self.shards:
            began = time.process_time()
            events = list(shard._draws(self.n))
            drawn = time.process_time()
            for part in events:
                shard._wake(*part)
            draw, wake = draw + drawn - began, wake + time.process_time() - drawn
        handing, taking, rows = self.exchange()
        return {
            "wake": 1e9 * wake / self.n,
            "draw": 1e9 * draw / self.n / len(self.shards),
            "row": 1e9 * (handing + taking) / max(rows, 1),
            "rows": rows / self.n,
        }


def parts_table(sizes: list[int], shards: int) -> list[list[str]]:
    rows = []
    for n in sizes:
        for edges in ("far", "near"):
            parts = Parts(n, edges, shards)
            parts.superstep()
            found = [parts.superstep() for _ in range(5)]
            best = {name: min(one[name] for one in found) for name in found[0]}
            bytes_each = best["rows"] * (8 * P + 4)
            rows.append(
                [
                    *(short(n), edges, str(shards), *(number(best[name]) for name in ("wake", "draw", "row"))),
                    *(number(best["rows"]), number(bytes_each)),
                ]
            )
    return rows


PARTS = [
    "agents",
    "edges",
    "shards",
    "ns a wake",
    "ns to draw one",
    "ns a row",
    "rows of an agent",
    "bytes of an agent",
]


# -- what is told ------------------------------------------------------------------------------------------------------


def table(n: int, edges: str, found: dict[str, dict[str, float]], shards: int) -> list[list[str]]:
    one_process = found.get("one process")
    rows = []
    for way, told in found.items():
        ratio = [f"x{told[name] / one_process[name]:.2f}" if one_process else "" for name in ("cpu", "wall")]
        steps = more_of(n)
        rows.append(
            [
                *(
                    short(n),
                    edges,
                    way.replace("shards", f"{shards} shards"),
                    str(steps),
                    number(told["cpu"]),
                    ratio[0],
                ),
                *(number(told["wall"]), ratio[1], number(1e3 * told["wall"] / steps)),
                *(number(told["shard MB"]) if told["shard MB"] else "", number(told["driver MB"])),
            ]
        )
    return rows


COLUMNS = ["agents", "edges", "where", "supersteps", "CPU s", "ratio", "wall s", "ratio", "ms a superstep"]
COLUMNS += ["MB of a shard", "MB of the driver"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=lambda s: [round(float(x)) for x in s.split(",")], default=[10_000, 100_000])
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--edges", choices=("far", "near"), default="far")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("shards",), help="not in one process beside")
    parser.add_argument("--ship", action="store_true", help="also a problem that the driver holds, cut up and sent")
    parser.add_argument("--parts", action="store_true", help="only the parts of a superstep, without Ray")
    parser.add_argument("--memory", type=float, default=2.0, metavar="GB", help="of Ray's object store")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="a page to put the table in")
    given = parser.parse_args()
    if given.parts:
        Parts(2000, given.edges, given.shards).superstep()
        tell(given.docs, "shard-parts", "", PARTS, parts_table(given.sizes, given.shards))
        return
    import ray

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init(address="local", object_store_memory=int(given.memory * 1e9), **quiet)
    compared(
        2000, given.edges, given.shards, 1, given.only, given.ship
    )  # what is compiled now is on disk for the others
    rows = []
    for n in given.sizes:
        found = compared(n, given.edges, given.shards, given.repeats, given.only, given.ship)
        rows += table(n, given.edges, found, given.shards)
        print(f"{short(n)}: {found}", file=sys.stderr, flush=True)
    ray.shutdown()
    tell(given.docs, "shards", "", COLUMNS, rows)


def tell(page: Path | None, name: str, more: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table, and put it into a page if there is one."""
    lines = ["| " + " | ".join(row) + " |" for row in [columns, ["---"] * len(columns), *rows]]
    told = machine()
    text = f"{told['processor']}, {told['cores']} cores{more}.\n\n" + "\n".join(lines)
    print(text)
    if page:
        into(page, name, text)


if __name__ == "__main__":
    main()
