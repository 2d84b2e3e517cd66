"""Coterie beside gossipy, Flower's simulation, scikit-learn, statsmodels and a NumPy event loop, in one run.

    python benchmarks/side_by_side.py                                  # minutes
    python benchmarks/side_by_side.py --quick                          # fewer agents and rounds
    python benchmarks/side_by_side.py --docs docs/explanation/speed-and-scale.md      # and writes the page's tables
    python benchmarks/side_by_side.py --flower-python other/bin/python # Flower from an environment of its own

Two tasks, on one machine, everybody on the same rows: classes of agents of whom some are alike, and numbers of agents
around a common model. What is not installed is said, and left out: pip install 'coterie[bench]', and 'coterie[flower]'.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import inspect
import io
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

import coterie as ct
import rates
import scale

FOLDER = Path(__file__).resolve().parent
#: What takes less is run again, at most so often, and the best counts.
SHORT, TIMES = 2.0, 5


# -- the tasks ---------------------------------------------------------------------------------------------------------


class Task(NamedTuple):
    """Rows to learn from and rows to score with, both grouped by agent, of agents 0, 1, 2, ..."""

    title: str
    train: tuple[np.ndarray, np.ndarray, np.ndarray]  # X, y, agents
    test: tuple[np.ndarray, np.ndarray, np.ndarray]
    n: int
    score: str
    more_is_better: bool

    def rate(self, predicted: np.ndarray) -> float:
        """The score of predictions of the test rows: margins of classes, or numbers."""
        _, y, agents = self.test
        each = (predicted > 0) == (y > 0) if self.more_is_better else (predicted - y) ** 2
        mean = np.bincount(agents, weights=each) / np.bincount(agents)
        return float(mean.mean() if self.more_is_better else math.sqrt(mean.mean()))

    def rate_models(self, theta: np.ndarray, intercept: Any = 0.0) -> float:
        X, _, agents = self.test
        return self.rate(np.einsum("rk,rk->r", X, theta[agents]) + np.broadcast_to(intercept, self.n)[agents])


def drawn(rng: np.random.Generator, theta: np.ndarray, level: np.ndarray, sizes: np.ndarray, label: Callable) -> tuple:
    agents = np.repeat(np.arange(len(theta)), sizes)
    X = rng.standard_normal((len(agents), theta.shape[1]))
    return X, label(np.einsum("rk,rk->r", X, theta[agents]) + level[agents]), agents


def classes(n: int, p: int = 20) -> Task:
    """A common model, five circles that differ from it, and members that differ from their circle."""
    rng = np.random.default_rng(0)
    circles = rng.standard_normal(p) + rng.standard_normal((5, p))
    theta = circles[rng.integers(0, 5, n)] + 0.3 * rng.standard_normal((n, p))

    def label(margin: np.ndarray) -> np.ndarray:
        return np.where(rng.random(len(margin)) < 1.0 / (1.0 + np.exp(-margin)), 1.0, -1.0)

    level = np.zeros(n)  # models without an intercept, as gossip and federated averaging have here
    train = drawn(rng, theta, level, rng.integers(10, 101, n), label)
    return Task("Classes", train, drawn(rng, theta, level, np.full(n, 100), label), n, "accuracy", True)


def numbers(n: int, p: int = 5) -> Task:
    """A common model and normal deviations: what mixed models are made for."""
    rng = np.random.default_rng(1)
    theta = rng.standard_normal(p) + 0.5 * rng.standard_normal((n, p))
    level = 0.5 * rng.standard_normal(n)

    def label(mean: np.ndarray) -> np.ndarray:
        return mean + 0.5 * rng.standard_normal(len(mean))

    train = drawn(rng, theta, level, rng.integers(10, 101, n), label)
    return Task("Numbers", train, drawn(rng, theta, level, np.full(n, 100), label), n, "RMSE", False)


# -- the contestants: each returns a function that does the work, which returns one that gives the score ---------------


class Took(NamedTuple):
    """Costs of a contestant. ``updates`` are changes of one agent's model, or fits."""

    cpu: float
    wall: float
    updates: int
    score: float


Work = Callable[[], Callable[[], float]]


def timed(work: Work, updates: int) -> Took:
    """The best of some runs, in CPU time; the score is not timed."""
    best, spent, score = (math.inf, math.inf), 0.0, math.nan
    for _ in range(TIMES):
        cpu, wall = time.process_time(), time.perf_counter()
        rate = work()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        score = rate()
        best, spent = min(best, (cpu, wall)), spent + wall
        if spent > SHORT:
            break
    return Took(*best, updates, score)


def pooled(task: Task, given: Any) -> Took:
    make = ct.CollaborativeClassifier if task.more_is_better else ct.CollaborativeRegressor
    X, y, agents = task.train

    def work() -> Callable[[], float]:
        model = make().fit(X, y, agents=agents)

        def score() -> float:
            if task.more_is_better:
                return task.rate(model.predict_proba(task.test[0], agents=task.test[2])[:, 1] - 0.5)
            return task.rate(model.predict(task.test[0], agents=task.test[2]))

        return score

    return timed(work, task.n)


def problem_of(task: Task) -> ct.Problem:
    """Return CD (3) on the graph of the ten nearest models that agents have trained alone."""
    X, y, agents = task.train
    data = ct.AgentData(X, y, agents=agents)
    alone = ct.Problem.personalized(data, ct.graphs.empty(task.n))
    return alone.on(graph=ct.graphs.knn(alone.local(), 10))


def graph_first(task: Task, given: Any) -> Took:
    def work() -> Callable[[], float]:
        run = ct.simulate(problem_of(task), ct.CoordinateDescent(), wakes=given.wakes * task.n, seed=0)
        return lambda: task.rate_models(run.theta)

    work()  # compiles
    return timed(work, given.wakes * task.n)


def over_graph(contestant: Callable) -> Callable[[Task, Any], Took]:
    """One of those of rates.py, on a graph that is there already, from zeros."""

    def run(task: Task, given: Any) -> Took:
        problem = problem_of(task)
        order = rates.wakes(problem, given.wakes * task.n)
        work = contestant(problem, order)
        work()  # compiles

        def again() -> Callable[[], float]:
            theta = work()
            return lambda: task.rate_models(theta)

        return timed(again, len(order))

    return run


def exact(task: Task, given: Any) -> Took:
    def work() -> Callable[[], float]:
        theta = problem_of(task).solve()
        return lambda: task.rate_models(theta)

    work()
    return timed(work, task.n)


def gossip(task: Task, given: Any) -> Took:
    import torch

    torch.manual_seed(0)
    problem = problem_of(task)
    order = np.zeros(given.wakes * task.n)  # only its length counts
    run = rates.gossipy(problem, order)
    nodes = inspect.getclosurevars(run).nonlocals["simulator"].nodes

    def score() -> float:
        margins = np.zeros((task.n, problem.p + 1))
        for i, node in nodes.items():
            weight, bias = (part.detach().numpy() for part in node.model_handler.model.parameters())
            margins[i] = [*(weight[1] - weight[0]), bias[1] - bias[0]]
        return task.rate_models(margins[:, :-1], margins[:, -1])

    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return Took(time.process_time() - cpu, time.perf_counter() - wall, len(order), score())


def flower(which: str) -> Callable[[Task, Any], Took]:
    def run(task: Task, given: Any) -> Took:
        found = flower_models(task, given.flower_python or sys.executable, given.rounds)
        models = np.broadcast_to(found["common"], (task.n, 20))
        # Of the numbers of tuning steps that were tried, the best on the test rows: noise is on their side.
        score = max(map(task.rate_models, found["tuned"])) if which == "tuned" else task.rate_models(models)
        return Took(float(found["cpu"]), float(found["wall"]), int(found["updates"]), score)

    return run


_flower: dict[str, Any] = {}  # both rows are of one run


def flower_models(task: Task, python: str, rounds: int) -> dict[str, np.ndarray]:
    if not _flower:
        X, y, agents = task.train
        with tempfile.TemporaryDirectory() as folder:
            rows, found = Path(folder, "rows.npz"), Path(folder, "found.npz")
            np.savez(rows, X=X, y=y, start=np.concatenate([[0], np.cumsum(np.bincount(agents))]))
            command = [python, str(FOLDER / "flower_app.py"), str(rows), str(found), str(rounds)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if not found.exists():
                raise RuntimeError((done.stderr.strip().splitlines() or ["it ended without a result"])[-1])
            with np.load(found) as file:
                _flower.update(file)
    return _flower


def each_alone(task: Task, given: Any) -> Took:
    from sklearn.linear_model import LogisticRegression, Ridge

    X, y, agents = task.train
    start = np.concatenate([[0], np.cumsum(np.bincount(agents))])

    def work() -> Callable[[], float]:
        theta, intercept = np.zeros((task.n, X.shape[1])), np.zeros(task.n)
        for i in range(task.n):
            A, t = X[start[i] : start[i + 1]], y[start[i] : start[i + 1]]
            if task.more_is_better and t.min() == t.max():
                intercept[i] = t[0]  # it has seen one class only, and scikit-learn refuses
            else:
                model = (LogisticRegression() if task.more_is_better else Ridge()).fit(A, t)
                theta[i], intercept[i] = model.coef_, np.squeeze(model.intercept_)
        return lambda: task.rate_models(theta, intercept)

    return timed(work, task.n)


def one_for_all(task: Task, given: Any) -> Took:
    from sklearn.linear_model import LogisticRegression, Ridge

    X, y, _ = task.train

    def work() -> Callable[[], float]:
        model = (LogisticRegression() if task.more_is_better else Ridge()).fit(X, y)
        theta = np.broadcast_to(model.coef_, (task.n, X.shape[1]))
        return lambda: task.rate_models(theta, np.squeeze(model.intercept_))

    return timed(work, 1)


def mixed(slopes: bool) -> Callable[[Task, Any], Took]:
    """statsmodels' linear mixed model by REML: random intercepts, or random slopes of all columns, too."""

    def run(task: Task, given: Any) -> Took:
        from statsmodels.regression.mixed_linear_model import MixedLM

        X, y, agents = task.train
        A = np.column_stack([np.ones(len(X)), X])

        def work() -> Callable[[], float]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of its optimisers
                found = MixedLM(y, A, groups=agents, exog_re=A if slopes else None).fit()
            own = np.zeros((task.n, A.shape[1]))
            for i, effects in found.random_effects.items():
                own[i, : len(effects)] = effects
            theta = found.fe_params + own
            return lambda: task.rate_models(theta[:, 1:], theta[:, 0])

        return timed(work, 1)

    return run


def mixed_classes(slopes: bool) -> Callable[[Task, Any], Took]:
    """statsmodels' logistic mixed model by variational Bayes: random intercepts, or random slopes, too."""

    def run(task: Task, given: Any) -> Took:
        from scipy import sparse
        from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM

        X, y, agents = task.train
        A = np.column_stack([np.ones(len(X)), X])
        random = A if slopes else A[:, :1]
        places = np.arange(len(X)), agents
        effects = sparse.hstack([sparse.csr_array((column, places), shape=(len(X), task.n)) for column in random.T])
        which = np.repeat(np.arange(random.shape[1]), task.n)  # one variance for each column

        def work() -> Callable[[], float]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                np.random.seed(0)  # noqa: NPY002 -- its start is random, and it takes no generator
                model = BinomialBayesMixedGLM((y > 0).astype(float), A, sparse.csr_matrix(effects), which)
                found = model.fit_vb()
            theta = np.tile(found.fe_mean, (task.n, 1))
            theta[:, : random.shape[1]] += found.vc_mean.reshape(random.shape[1], task.n).T
            return lambda: task.rate_models(theta[:, 1:], theta[:, 0])

        return timed(work, 1)

    return run


class Entry(NamedTuple):
    name: str
    run: Callable[[Task, Any], Took]
    unit: str  # what is counted
    needs: str = "numpy"
    differs: str = ""

    @property
    def ours(self) -> bool:
        return self.name.startswith("**coterie**")

    @property
    def graph_given(self) -> bool:
        return self.differs.endswith(GIVEN)


OURS, GIVEN, VB = "**coterie**, ", "graph given", "`BinomialBayesMixedGLM`"
CLASSES = [
    Entry(f"{OURS}`CollaborativeClassifier()`", pooled, "model", differs="partial pooling; no graph"),
    Entry(f"{OURS}CD from rows to models", graph_first, "update", differs="also trains alone and finds neighbours"),
    Entry(f"{OURS}exact optimum over the graph", exact, "model", differs="`solve()`; the graph as above, included"),
    Entry(f"{OURS}CD, the loop", over_graph(rates.coterie(ct.CoordinateDescent())), "update", differs=GIVEN),
    Entry("NumPy event loop", over_graph(rates.descent_in_numpy), "update", differs=f"the same updates; {GIVEN}"),
    Entry("gossipy", gossip, "update", "gossipy", f"merges with one neighbour, then one step; {GIVEN}"),
    Entry("Flower, FedAvg", flower("common"), "update", "flwr", "one model; an update is five steps; no graph"),
    Entry(
        "Flower, FedAvg + fine-tuning", flower("tuned"), "update", "flwr", "the same run; steps picked by test score"
    ),
    Entry("scikit-learn, each agent alone", each_alone, "model", "sklearn", "`LogisticRegression()`"),
    Entry("scikit-learn, one for all", one_for_all, "model", "sklearn", "`LogisticRegression()`, not personal"),
    Entry("statsmodels, logistic, intercepts", mixed_classes(False), "fit", "statsmodels", f"random intercepts, {VB}"),
    Entry("statsmodels, logistic, slopes", mixed_classes(True), "fit", "statsmodels", f"and random slopes, {VB}"),
]
NUMBERS = [
    Entry(f"{OURS}`CollaborativeRegressor()`", pooled, "model", differs="partial pooling; tries curves, too"),
    Entry("statsmodels, MixedLM, slopes", mixed(True), "fit", "statsmodels", "random intercepts and slopes, REML"),
    Entry("statsmodels, MixedLM, intercepts", mixed(False), "fit", "statsmodels", "random intercepts, REML"),
    Entry("scikit-learn, each agent alone", each_alone, "model", "sklearn", "`Ridge()`"),
    Entry("scikit-learn, one for all", one_for_all, "model", "sklearn", "`Ridge()`, not personal"),
]


# -- what is told ------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    entry: Entry
    took: Took | None
    why: str = ""


def missing(entry: Entry, given: Any) -> str:
    """Why this one cannot run, or nothing."""
    if entry.needs == "flwr":
        python, how = given.flower_python or sys.executable, "pip install 'coterie[flower]'"
        there = not subprocess.run([python, "-c", "import flwr, ray"], capture_output=True, check=False).returncode
    else:
        how, there = "pip install 'coterie[bench]'", importlib.util.find_spec(entry.needs) is not None
    return "" if there else f"not installed: {how}"


@contextlib.contextmanager
def at_most(seconds: float):
    """Interrupts what takes longer."""

    def stop(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def play(task: Task, entries: list[Entry], given: Any) -> list[Row]:
    rows = []
    for entry in entries:
        why, took = missing(entry, given), None
        if not why:
            try:
                with contextlib.redirect_stdout(io.StringIO()), at_most(given.limit):  # progress bars
                    took = entry.run(task, given)
            except TimeoutError:
                why = f"not finished in {given.limit:g} s"
            except Exception as error:  # one that fails should not take the others with it
                why = f"failed: {str(error).strip().splitlines()[-1][:80] if str(error) else type(error).__name__}"
        rows.append(Row(entry, took, why))
        print(f"{task.title}: {entry.name}: {why or took}", file=sys.stderr, flush=True)
    return rows


def lines(task: Task, rows: list[Row]) -> list[list[str]]:
    told = []
    for entry, took, why in rows:
        if took is None:
            told.append([entry.name, why, "", "", "", ""])
            continue
        each = scale.number(1e6 * took.cpu / took.updates)
        unit = f"{each} ({took.updates:,} {entry.unit}{'s' * (took.updates > 1)})"
        told.append(
            [entry.name, scale.number(took.cpu), scale.number(took.wall), unit, f"{took.score:.3f}", entry.differs]
        )
    return told


COLUMNS = ["", "CPU s", "wall s", "CPU µs each (how many)", "score", "what differs"]


def losses(task: Task, rows: list[Row]) -> list[str]:
    """Where others do better, in time or in score, than the first of ours that begins with as much: a graph, or not."""
    told = []
    for entry, took, _ in rows:
        alike = [r.took for r in rows if r.entry.ours and r.took and r.entry.graph_given == entry.graph_given]
        if entry.ours or took is None or not alike:
            continue
        mine = alike[0]
        better = took.score - mine.score if task.more_is_better else mine.score - took.score
        words = []
        if took.cpu < mine.cpu:
            words.append(f"takes {mine.cpu / took.cpu:.1f} times less CPU time")
        if better > 0.0005:
            words.append(f"has {'more' if task.more_is_better else 'less'} {task.score}, by {better:.3f}")
        if words:
            trade = "" if better > -0.0005 else f" (and its {task.score} is worse by {-better:.3f})"
            told.append(f"{task.title}: {entry.name} {' and '.join(words)}{trade}")
    return told


def versions() -> str:
    told = []
    for name in ("coterie", "gossipy-dfl", "torch", "flwr", "ray", "scikit-learn", "statsmodels", "numpy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            told.append(f"{name} {ct.__version__ if name == 'coterie' else importlib.metadata.version(name)}")
    return ", ".join(told)


def markdown(played: list[tuple[Task, list[Row]]]) -> str:
    where = scale.machine()
    parts = [f"{where['processor']}, {where['cores']} cores, Python {where['python']}; {versions()}."]
    for task, rows in played:
        told = [COLUMNS, ["---"] * len(COLUMNS), *lines(task, rows)]
        title = f"**{task.title}**: {task.n} agents, {len(task.train[1]):,} rows, {task.train[0].shape[1]} columns"
        direction = "more is better" if task.more_is_better else "less is better"
        parts.append(f"{title}; the score is {task.score} on 100 new rows of each agent, {direction}.")
        parts.append("\n".join("| " + " | ".join(line) + " |" for line in told))
    lost = [line for task, rows in played for line in losses(task, rows)]
    if lost:
        parts.append(
            "Where we lose, against the first of our rows that begins with as much, a graph or rows alone:\n\n"
            + "\n".join(f"* {line}" for line in lost)
        )
    return "\n\n".join(parts)


def show(played: list[tuple[Task, list[Row]]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=170)
    for task, rows in played:
        table = Table(title=f"{task.title}: {task.n} agents, {len(task.train[1]):,} rows; score is {task.score}")
        for column in COLUMNS:
            table.add_column(column, justify="left" if column in ("", "what differs") else "right")
        for line in lines(task, rows):
            table.add_row(*(text.replace("`", "").replace("**", "") for text in line))
        console.print(table)
        for line in losses(task, rows):
            console.print(f"we lose: {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer agents, fewer rounds")
    parser.add_argument("--agents", type=int, help="default: 200, with --quick 50")
    parser.add_argument("--wakes", type=int, help="of each agent, and rounds of gossipy; default: 50, with --quick 20")
    parser.add_argument("--rounds", type=int, help="of Flower; default: 20, with --quick 5")
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds for each contestant, the best of its runs and all"
    )
    parser.add_argument("--flower-python", metavar="PYTHON", help="that has flwr[simulation], where this one has not")
    parser.add_argument("--only", default="", metavar="WORD", help="only contestants with this word in their name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables to a file, too")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="a page to put the tables in")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # one thread for every contestant; the CPU time of Flower's processes is summed
    given.wakes = given.wakes or (20 if given.quick else 50)
    given.rounds = given.rounds or (5 if given.quick else 20)
    n = given.agents or (50 if given.quick else 200)
    with threadpool_limits(1):
        played = [
            (task, play(task, [entry for entry in entries if given.only in entry.name], given))
            for task, entries in ((classes(n), CLASSES), (numbers(n), NUMBERS))
        ]
    show(played)
    if given.docs:
        scale.into(given.docs, "side by side", markdown(played))
    if given.json:
        found = {t.title: {r.entry.name: r.took._asdict() if r.took else r.why for r in rows} for t, rows in played}
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
