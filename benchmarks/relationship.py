"""Relationship learning, DMTRL: what steps by size, rounds without waiting, and a smaller rho are worth.

python benchmarks/relationship.py [balanced] [slow] [ray] [sparse] [bounds] [size] [fit] [tolerance] [pooling] [--quick]
                                  [--json FILE]

balanced   tasks of 300 to 20,000 rows: local steps in proportion to the rows, against as many for every task, with the
           same total in a round; rounds to a relative duality gap
slow       one of four workers takes ten times as long: time to a gap of 1e-4, on a simulated clock, for rounds that
           wait and rounds that do not; against the same without a slow worker
ray        the same with Ray actors that sleep, on the clock on the wall; needs the extra ray
sparse     22 tasks of 314 to 20,751 rows with 10,000 features, 0.9 % of them not zero, hinge loss, in one process
bounds     rounds to a gap of 1e-6 with rho of Lemma 10, with the largest eigenvalue, and with momentum
size       a round of 1,000, 5,000 and 50,000 tasks of 6 rows with 20 features: covariance in factors, and as a matrix
fit        such tasks until it stops by itself, by the function and by the estimators
tolerance  scores of the estimators, distance from the optimum and CPU time, for several tolerances
pooling    relationship learning against partial pooling, where tasks are opposed, clustered, or neither

Without a name: all but ray, fit, tolerance and pooling, which take long. Gaps are parts of the objective. Rounds do not
depend on the machine; seconds do.
"""

import argparse
import functools
import json
import logging
import multiprocessing
import os
import resource
import sys
import tempfile
import time
import warnings
from heapq import heappush
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from threadpoolctl import threadpool_limits

import coterie as ct
from coterie.multitask.actors import Crew, RayWorkers, Shipment, WorkerActor
from coterie.multitask.covariance import separability
from coterie.multitask.sources import TasksHere, tasks_of
from coterie.multitask.training import Options, Training
from coterie.multitask.worker import Worker
from coterie.multitask.workers import LocalWorkers

#: Rounds after which a run is given up.
PATIENCE = 20_000
#: Passes in a round, and whether with momentum, of steps by size.
PASSES = ((10.0, True), (3.0, True), (1.0, True), (0.3, True), (1.0, False))
#: How much longer a slow worker takes, how many there are, and rounds that they may be ahead, or else all wait.
SLOWER, WORKERS, STALENESS = 10, 4, (None, "no momentum", 1, 4, 16)
#: Seconds that an actor sleeps in a round.
NAP = 0.05


def rounds_to(run, goal):
    """Return the number of rounds until the relative gap was at most `goal`; None if it never was."""
    there = run.trace["gap"] <= goal * run.trace["primal"].abs()
    return int(run.trace["round"][there.idxmax()]) + 1 if there.any() else None


def ratio(one, other):
    """Return ``other / one`` as text; empty if one of them is missing."""
    return "" if one is None or other is None else f"x{other / one:.2f}"


def shown(value):
    """A cell."""
    return "never" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def table_of(title, columns, rows):
    """A table with names on the left, and numbers on the right."""
    table = Table(title=title)
    for k, column in enumerate(columns):
        table.add_column(column, justify="left" if k == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def balanced(quick):
    """Steps by size against equal steps."""
    goals, found, rows = (1e-3, 1e-5), [], []
    for seed in range(1 if quick else 2):
        rng = np.random.default_rng(seed)
        sizes = np.exp(rng.uniform(np.log(300), np.log(20_000), 12)).astype(int)
        sizes[:2] = 300, 20_000
        task = ct.datasets.related_tasks(n=12, p=20, rows=sizes, test_rows=1, seed=seed)
        for loss in ("hinge", "logistic"):
            for passes, momentum in PASSES[: 2 if quick else None]:
                given = {"covariance": task.correlation / 12, "rounds": PATIENCE, "tol": min(goals), "seed": seed}
                given |= {"momentum": momentum}
                by_size = ct.relationship(task.train, loss, 1e-3, passes=passes, **given)
                same = ct.relationship(task.train, loss, 1e-3, local_steps=round(passes * sizes.mean()), **given)
                for goal in goals:
                    one, other = rounds_to(by_size, goal), rounds_to(same, goal)
                    found.append({"seed": seed, "loss": loss, "passes": passes, "momentum": momentum, "gap": goal})
                    found[-1] |= {"by size": one, "equal": other}
                    name = f"{loss}, {passes:g} passes in a round{'' if momentum else ', no momentum'}, instance {seed}"
                    rows.append((name, f"{goal:.0e}", shown(one), shown(other), ratio(one, other)))
    columns = ("loss", "gap", "steps by size", "equal steps", "equal takes")
    return [table_of("Rounds, 12 tasks of 300 to 20,000 rows", columns, rows)], found


class Timed(LocalWorkers):
    """Workers of this process that each take their own time, on a simulated clock."""

    def __init__(self, workers, tasks, takes):
        super().__init__(workers, tasks)
        self.takes = takes  # a function of the shard

    @property
    def clock(self):
        """The simulated time."""
        return self._clock

    def send(self, shard, request):
        """Send a request, and do not wait."""
        self._requests += 1
        heappush(self._waiting, (self._clock + self.takes(shard), self._requests, shard, request))


def options_of(covariance, staleness, tol):
    """Rounds with this covariance."""
    settings = {"kind": "synchronous", "momentum": staleness is None}
    if isinstance(staleness, int):
        settings = {"kind": "asynchronous", "staleness": staleness}
    return Options(len(covariance), 1e-2, covariance, 1, PATIENCE, True, tol, True, settings)


def how(staleness):
    """Return the name of a kind of rounds."""
    if isinstance(staleness, int):
        return f"staleness {staleness}"
    return "all wait" + ("" if staleness is None else f", {staleness}")


def delays(title, time_of):
    """Measure times without and with a slow worker, for synchronous and asynchronous rounds."""
    found, rows = [], []
    for staleness in STALENESS:
        even, uneven = time_of(staleness, 1), time_of(staleness, SLOWER)
        found.append({"staleness": staleness, "even": even, "slow": uneven})
        first = found[0]
        rows.append(
            (
                how(staleness),
                shown(even),
                shown(uneven),
                f"x{uneven / even:.2f}",
                f"x{uneven / first['even']:.2f}",
                f"x{first['slow'] / uneven:.2f}",
            )
        )
    columns = ("rounds", "none slow", "one slow", "slow / none", "slow / none, all wait", "gain over all wait")
    return table_of(title, columns, rows), found


def four_workers():
    """The tasks of the two benchmarks of slow workers, and which worker has which."""
    task = ct.datasets.related_tasks(n=12, p=20, rows=600, test_rows=1, seed=0)
    tasks = [np.arange(k, 12, WORKERS) for k in range(WORKERS)]
    return task.train, task.correlation / 12, tasks


def slow(quick):
    """A slow worker, on a simulated clock."""
    data, covariance, tasks = four_workers()
    tables, found = [], {}

    def time_of(passes, often, staleness, slower):
        rng = np.random.default_rng(0)

        def takes(shard):
            late = shard == WORKERS - 1 if often is None else rng.random() < often
            return float(slower) if late else 1.0

        settings = {"passes": passes, "local_steps": None, "seed": 0}
        workers = [Worker(data.only(numbers), ct.Logistic(), numbers, **settings) for numbers in tasks]
        timed = Timed(workers, tasks, takes)
        training = Training(timed, options_of(covariance, staleness, 1e-4))
        training.advance(np.inf)
        assert training.result().converged
        return timed.clock

    for passes in (3.0,) if quick else (3.0, 0.1):
        for often, who in ((None, "the same one of four workers"), (0.1, "now and then any of four workers")):
            title = f"Simulated time to a gap of 1e-4, {passes:g} passes in a round: {who} takes {SLOWER}, not 1"
            table, found[f"{who}, {passes:g} passes"] = delays(title, functools.partial(time_of, passes, often))
            tables.append(table)
    return tables, found


class Sleepy(WorkerActor):
    """A worker that sleeps in every round, and can begin anew."""

    def rest(self, nap):
        """Forget everything."""
        self.nap = nap
        self._parts.clear()

    def improve(self, part, request):
        """One round, after a nap."""
        time.sleep(self.nap)
        return super().improve(part, request)


def on_ray(_):
    """A slow worker, on actors that sleep."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # or else they wait for all other work on this machine
    data, covariance, tasks = four_workers()
    with ct.Cluster().connect() as ray, tempfile.TemporaryDirectory() as folder:
        work = {"passes": 3.0, "local_steps": None, "seed": 0}
        shipment = Shipment([ray.put(TasksHere(data))], ct.Logistic(), work, folder, "naps")
        kind = ray.remote(num_cpus=0)(Sleepy)
        crew = Crew([kind.remote(logging.WARNING) for _ in tasks], tasks, data.sizes, shipment)

        def time_of(staleness, slower):
            naps = [NAP] * (WORKERS - 1) + [slower * NAP]
            ray.get([actor.rest.remote(nap) for actor, nap in zip(crew.actors, naps, strict=True)])
            training = Training(RayWorkers(crew, None), options_of(covariance, staleness, 1e-4))
            before = time.perf_counter()
            training.advance(np.inf)
            assert training.result().converged
            return time.perf_counter() - before

        time_of(None, 1)  # warm up
        title = f"Seconds to a gap of 1e-4 on Ray, logistic, actors sleep {NAP:g} s, one of four {SLOWER * NAP:g} s"
        table, found = delays(title, time_of)
        for actor in crew.actors:
            ray.kill(actor)
    return [table], found


def sparse_tasks(folder, count=22, p=10_000, dense=0.009, seed=0):
    """Files of tasks with sparse rows of norm one, in three families; one label in ten is wrong."""
    rng = np.random.default_rng(seed)
    sizes = np.geomspace(314, 20_751, count).astype(int)
    owner = np.repeat(np.arange(count), sizes)
    each = round(dense * p)
    # The more common a feature, the lower its number: as words are.
    columns = np.minimum((p * rng.random((owner.size, each)) ** 2).astype(np.int64), p - 1)
    X = sparse.csr_array((rng.exponential(size=columns.size), columns.ravel(), np.arange(owner.size + 1) * each))
    X.resize((owner.size, p))
    X.sum_duplicates()
    X = sparse.csr_array(sparse.diags_array(1.0 / np.sqrt(X.multiply(X).sum(axis=1))) @ X)
    family = rng.normal(size=(3, p))
    weights = family[np.arange(count) % 3] + 0.3 * rng.normal(size=(count, p))
    margins = np.concatenate([X[owner == i] @ weights[i] for i in range(count)])
    y = np.where(margins > 0, 1.0, -1.0) * np.where(rng.random(owner.size) < 0.1, -1.0, 1.0)
    for i in range(count):
        mine = X[owner == i]
        parts = {"X_data": mine.data, "X_indices": mine.indices, "X_indptr": mine.indptr, "X_shape": mine.shape}
        np.savez(Path(folder, f"{i}.npz"), y=y[owner == i], **parts)


def peak():
    """Most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def sparse_runs(folder, quick):
    """Measure time and memory of learning, in a process of its own."""
    nothing = peak()
    tasks = tasks_of(Path(folder), ct.Hinge())
    data = tasks.load(np.arange(len(tasks.members)))
    held = data.X.data.nbytes + data.X.indices.nbytes + data.X.indptr.nbytes
    found = {"rows": data.n_rows, "dense": data.X.nnz / (data.n_rows * data.p), "MB of rows": held / 1e6, "runs": {}}
    found |= {"MB without": nothing, "MB loaded": peak()}
    ct.relationship(data.only([0, 1]), "hinge", 1e-3, rounds=1, alternations=1)  # compiled before the clock starts
    for name, covariance in (("learned", None), ("given", np.eye(data.n) / data.n)):
        for lam in (1e-3,) if quick else (1e-3, 1e-4):
            started = time.process_time()
            run = ct.relationship(data, "hinge", lam, covariance=covariance, alternations=400, tol=1e-2, passes=3.0)
            took = time.process_time() - started
            found["runs"][f"covariance {name}, lam={lam:g}"] = {
                "rounds": run.rounds if run.converged else None,
                "seconds": took,
                "per round": took / run.rounds,
                "MB sent": run.bytes / 1e6,
            }
    found["MB at most"] = peak()
    return found


def sparse_rows(quick):
    """Many sparse features."""
    with tempfile.TemporaryDirectory() as folder:
        apart(sparse_tasks, folder)
        found = apart(sparse_runs, folder, quick)
    title = (
        f"Hinge, gap of 1e-2: 22 tasks, {found['rows']:,} rows ({found['MB of rows']:,.0f} MB), 10,000 features,"
        f" {100 * found['dense']:.2f} % not zero; peak memory {found['MB without']:,.0f} MB before,"
        f" {found['MB loaded']:,.0f} MB when loaded, {found['MB at most']:,.0f} MB in the end"
    )
    rows = [
        (name, shown(run["rounds"]), f"{run['per round']:.3f}", f"{run['seconds']:.1f}", f"{run['MB sent']:,.0f}")
        for name, run in found["runs"].items()
    ]
    return [table_of(title, ("", "rounds", "CPU seconds per round", "CPU seconds", "MB sent"), rows)], found


def bounds(quick):
    """Bounds on rho, and momentum."""
    found, rows = [], []
    ways = {
        "lemma10": {"rho": "lemma10", "momentum": False},
        "eigenvalue": {"rho": "eigenvalue", "momentum": False},
        "momentum": {"rho": "eigenvalue", "momentum": True},
    }
    for parents in (3,) if quick else (8, 3, 1):
        task = ct.datasets.related_tasks(n=16, p=20, rows=300, test_rows=1, seed=0, parents=parents)
        learned = ct.relationship(task.train, "logistic", 1e-2, tol=1e-3).covariance
        spread = np.geomspace(1.0, 4.0, 16)
        unequal = task.correlation * np.outer(spread, spread)
        covariances = {
            "true correlation": task.correlation / 16,
            "unequal variances": unequal / np.trace(unequal),
            "learned": learned,
        }
        for name, covariance in covariances.items():
            given = {"covariance": covariance, "rounds": PATIENCE, "tol": 1e-6, "passes": 3.0}
            took = {
                way: rounds_to(ct.relationship(task.train, "logistic", 1e-2, **given, **settings), 1e-6)
                for way, settings in ways.items()
            }
            rho = {bound: separability(covariance, bound) for bound in ("lemma10", "eigenvalue")}
            found.append({"families": parents, "covariance": name, "rho": rho, "rounds": took})
            rows.append(
                (
                    f"{parents} {'families' if parents > 1 else 'family'}, {name}",
                    *(f"{value:.1f}" for value in rho.values()),
                    *(shown(value) for value in took.values()),
                    ratio(took["eigenvalue"], took["lemma10"]),
                    ratio(took["momentum"], took["eigenvalue"]),
                    ratio(took["momentum"], took["lemma10"]),
                )
            )
    columns = ("16 tasks of", "rho, Lemma 10", "rho, eigenvalue", "Lemma 10", "eigenvalue", "and momentum")
    columns = (*columns, "L / e", "e / m", "L / m")
    return [table_of("Rounds to a gap of 1e-6, logistic", columns, rows)], found


def families(m, p=20, rows=6, test_rows=0, seed=0, count=5, opposed=True, own=0.3, noise=1.0):
    """Tasks of some families, half of them the opposite of their family if ``opposed``: X, labels, ids, test or not."""
    rng = np.random.default_rng(seed)
    parents = rng.normal(size=(count, p))
    weights = parents[rng.integers(count, size=m)] + own * rng.normal(size=(m, p))
    if opposed:
        weights *= rng.choice([-1.0, 1.0], m)[:, None]
    ids = np.repeat(np.arange(m), rows + test_rows)
    X = rng.normal(size=(len(ids), p))
    y = np.einsum("rk,rk->r", X, weights[ids]) / np.sqrt(p) + noise * rng.normal(size=len(ids))
    return X, y, ids, np.tile(np.arange(rows + test_rows) >= rows, m)


class Clocked(LocalWorkers):
    """Workers whose CPU seconds are measured separately from the server's."""

    seconds = 0.0

    def receive(self):
        """Return the next answer and its part."""
        began = time.process_time()
        found = super().receive()
        self.seconds += time.process_time() - began
        return found


def matrix_step(weights, ridge, last, momentum):
    """An Omega-step as it is without factors: eigenvectors of matrices m x m."""
    directions, sizes, _ = np.linalg.svd(weights, full_matrices=False)
    values = np.hypot(sizes, ridge) - ridge
    goal = (directions * values) @ directions.T + ridge * np.eye(len(weights))
    sizes, directions = np.linalg.eigh(goal)
    goal = (directions * np.log(np.maximum(sizes, 1e-9 * sizes[-1]))) @ directions.T
    sizes, directions = np.linalg.eigh(goal if last is None else goal + momentum * (goal - last))
    sizes = np.exp(sizes - sizes[-1])
    return (directions * (sizes / sizes.sum())) @ directions.T, goal


def rounds_of(m, dense, rounds):
    """CPU seconds of a round: of workers and of the server; and peak memory. In a process of its own."""
    with threadpool_limits(1):
        X, y, ids, _ = families(m)
        data = ct.AgentData(X, np.where(y > 0, 1.0, -1.0), ids)
        ct.relationship(data.only(range(10)), "logistic", alternations=2)  # compiled before the clock starts
        before, every = peak(), np.arange(m)
        worker = Worker(data, ct.Logistic(), every, passes=10.0, local_steps=None, seed=0)
        workers = Clocked([worker], [every])
        training = Training(workers, Options(m, 1e-2, None, 10**6, 1, False, 1e-9, True))
        training.advance(0.0)
        training.advance(0.0)
        started, workers.seconds, last = time.process_time(), 0.0, None
        for _ in range(rounds):
            if dense:
                server = training.server
                server.round()
                training._keep_best_joint()
                matrix, last = matrix_step(server.weights, 0.01 * np.linalg.norm(server.weights, "nuc"), last, 0.5)
                server.set_covariance(matrix)
            else:
                training.advance(0.0)
        took = time.process_time() - started
    return {"server": (took - workers.seconds) / rounds, "workers": workers.seconds / rounds, "MB": peak() - before}


def apart(function, *arguments):
    """Return the result of a function that runs in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def size(quick):
    """Many tasks: factors against matrices."""
    found, rows = [], []
    for m in (1_000, 5_000) if quick else (1_000, 5_000, 50_000):
        for dense in (False, True):
            if dense and m > (1_000 if quick else 5_000):
                continue  # minutes for a round, and then more memory than there is
            took = apart(rounds_of, m, dense, 20 if not dense else 3 if m <= 1_000 else 1)
            found.append({"tasks": m, "dense": dense} | took)
            numbers = (f"{1e3 * took['server']:,.0f}", f"{1e3 * took['workers']:,.0f}", f"{took['MB']:,.0f}")
            rows.append((f"{m:,}", "matrix" if dense else "factors", *numbers))
    columns = ("tasks of 6 rows, 20 features", "covariance", "server, CPU ms a round", "workers, CPU ms", "more MB")
    return [table_of("A round with a covariance that is learned, logistic, one thread", columns, rows)], found


def fit_of(m, kind):
    """CPU seconds of a whole fit at the default tolerance, in a process of its own."""
    with threadpool_limits(1):
        X, y, ids, _ = families(m)
        before, labels = peak(), np.where(y > 0, 1.0, -1.0)
        started, began = time.process_time(), time.perf_counter()
        if kind == "function":
            run = ct.relationship(ct.AgentData(X, labels, ids), "logistic", 0.1)
        else:
            kind = {"regressor": ct.RelationshipRegressor, "classifier": ct.RelationshipClassifier}[kind]
            run = kind(lam=0.1).fit(X, y if kind is ct.RelationshipRegressor else labels, agents=ids).run_
        took = {"CPU": time.process_time() - started, "wall": time.perf_counter() - began, "MB": peak() - before}
    return took | {"rounds": run.rounds, "gap": run.gap / run.value, "converged": run.converged}


def fit(quick):
    """Whole fits of many tasks."""
    found, rows = [], []
    for m in (1_000,) if quick else (1_000, 5_000, 50_000):
        for kind in ("function", "regressor", "classifier"):
            took = apart(fit_of, m, kind)
            found.append({"tasks": m, "by": kind} | took)
            gap = f"{took['gap']:.1e}" + ("" if took["converged"] else ", stopped")
            rows.append((f"{m:,}, {kind}", f"{took['rounds']:,}", gap, f"{took['CPU']:,.0f}", f"{took['MB']:,.0f}"))
    columns = ("tasks", "rounds", "gap", "CPU seconds", "more MB")
    return [table_of("Whole fits, lam = 0.1, default tolerance, one thread", columns, rows)], found


def real(task):
    """Rows of a task that is read: to learn from, and to test."""
    parts = [(part.X, part.y, part.owner) for part in (task.train, task.test)]
    return parts, task.kind == "regression"


def generated(classes, **given):
    """Rows of families of tasks: to learn from, and to test."""
    X, y, ids, test = families(**given)
    y = np.where(y > 0, 1.0, -1.0) if classes else y
    return [(X[rows], y[rows], ids[rows]) for rows in (~test, test)], not classes


#: Families of the sets that are generated: m tasks, rows to learn from, their number and if half are opposites.
FEW_ROWS = {"rows": 10, "test_rows": 100, "noise": 0.3}
MORE_ROWS = FEW_ROWS | {"rows": 30}
#: Sets of the next two tables by name, each a function of a split, and lam of the best score in powers of ten.
SETS = {
    "School": (lambda k: real(ct.datasets.school(k)), 0.1),
    "Parkinson's": (lambda k: real(ct.datasets.parkinsons(seed=k)), 0.01),
    "Landmine": (lambda k: real(ct.datasets.landmine(seed=k)), 0.01),
    "Computer Buyers": (lambda k: real(ct.datasets.computer_buyers(seed=2018 + k)), 1.0),
    "opposed, 40 tasks of 30 rows": (lambda k: generated(True, m=40, count=1, seed=k, **MORE_ROWS), 0.1),
    "opposed, 200 tasks of 10 rows": (lambda k: generated(False, m=200, count=1, seed=k, **FEW_ROWS), 0.1),
    "4 clusters, 40 tasks of 30 rows": (
        lambda k: generated(True, m=40, count=4, opposed=False, seed=k, **MORE_ROWS),
        0.01,
    ),
    "opposed, 40 tasks of 10 rows": (lambda k: generated(True, m=40, count=1, seed=k, **FEW_ROWS), 1.0),
    "opposed, 40 tasks of 10 rows, numbers": (lambda k: generated(False, m=40, count=1, seed=k, **FEW_ROWS), 0.1),
    "4 clusters, 40 tasks of 30 rows, numbers": (
        lambda k: generated(False, m=40, count=4, opposed=False, seed=k, **MORE_ROWS),
        0.01,
    ),
    "4 clusters, 200 tasks of 10 rows": (
        lambda k: generated(True, m=200, count=4, opposed=False, seed=k, **FEW_ROWS),
        0.1,
    ),
    "one family, 40 tasks of 30 rows": (
        lambda k: generated(True, m=40, count=1, opposed=False, seed=k, **MORE_ROWS),
        0.1,
    ),
}
#: The first of them are those of the table of tolerances.
FIRST_SETS = 7
TOLERANCES = (1e-5, 5e-5, 2e-4, 1e-3, 5e-3, 2e-2)


def score_of(model, rows, numbers):
    """Root mean squared error, or log-loss."""
    X, y, ids = rows
    if numbers:
        return float(np.sqrt(np.mean((model.predict(X, agents=ids) - y) ** 2)))
    return float(log_loss(y, model.predict_proba(X, agents=ids)))


def fitted(kind, rows, **given):
    """A fitted model, and CPU seconds."""
    X, y, ids = rows
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        started = time.process_time()
        model = kind(**given).fit(X, y, agents=ids)
        return model, time.process_time() - started


def tolerance(quick):
    """Measure the cost of a tolerance, and its effect on scores."""
    found, rows = [], []
    for name, (split, lam) in list(SETS.items())[: 1 if quick else FIRST_SETS]:
        splits = [split(k) for k in range(1 if quick else 2)]
        kind = ct.RelationshipRegressor if splits[0][1] else ct.RelationshipClassifier
        fitted(kind, splits[0][0][0], lam=lam, tol=0.5)  # compiled before the clock starts
        scores, best = {}, []
        for tol in TOLERANCES:
            runs = [fitted(kind, train, lam=lam, tol=tol) for (train, _), _ in splits]
            scores[tol] = [
                score_of(run, test, numbers) for (run, _), ((_, test), numbers) in zip(runs, splits, strict=True)
            ]
            best = best or [model.run_.bound for model, _ in runs]
            above = [model.run_.value / bound - 1 for (model, _), bound in zip(runs, best, strict=True)]
            change = np.mean(np.array(scores[tol]) / scores[TOLERANCES[0]]) - 1
            found.append({"set": name, "tol": tol, "scores": scores[tol], "above": above, "CPU": [t for _, t in runs]})
            rows.append(
                (
                    name if tol == TOLERANCES[0] else "",
                    f"{tol:.0e}",
                    f"{np.mean(scores[tol]):.4f}",
                    f"{100 * change:+.2f} %",
                    f"{np.mean(above):.1e}",
                    f"{np.mean([model.run_.rounds for model, _ in runs]):,.0f}",
                    f"{np.mean([t for _, t in runs]):.2f}",
                )
            )
            print(*rows[-1], file=sys.stderr, flush=True)
    columns = ("set", "tol", "score", "change", "above the optimum", "rounds", "CPU seconds")
    return [
        table_of("Estimators by tolerance, means over 2 splits (error or log-loss: lower is better)", columns, rows)
    ], found


def pooling(quick):
    """Relationship learning against partial pooling."""
    found, rows = [], []
    for name, (split, lam) in list(SETS.items())[-2 if quick else 0 :]:
        scores, seconds = {}, {}
        for k in range(1 if quick else 3):
            (train, test), numbers = split(k)
            related = ct.RelationshipRegressor if numbers else ct.RelationshipClassifier
            pooled = ct.CollaborativeRegressor if numbers else ct.CollaborativeClassifier
            for who, kind, given in (("pooling", pooled, {}), ("relationship", related, {"lam": lam})):
                if k == 0:
                    fitted(kind, train, **given | ({"tol": 0.5} if given else {}))  # compiled before the clock starts
                model, took = fitted(kind, train, **given)
                scores.setdefault(who, []).append(score_of(model, test, numbers))
                seconds.setdefault(who, []).append(took)
        found.append({"set": name, "lam": lam, "scores": scores, "seconds": seconds})
        one, two = (np.mean(scores[who]) for who in ("pooling", "relationship"))
        rows.append(
            (
                f"{name} ({'error' if numbers else 'log-loss'})",
                f"{one:.4f}",
                f"{two:.4f}",
                f"{100 * (two / one - 1):+.1f} %",
                *(f"{np.mean(seconds[who]):.2f}" for who in ("pooling", "relationship")),
            )
        )
    columns = ("set", "pooling", "relationship", "relationship has", "pooling, CPU s", "relationship, CPU s")
    return [table_of("Partial pooling at its defaults, relationship learning with lam by hand", columns, rows)], found


PARTS = {"balanced": balanced, "slow": slow, "ray": on_ray, "sparse": sparse_rows, "bounds": bounds, "size": size}
PARTS |= {"fit": fit, "tolerance": tolerance, "pooling": pooling}
LONG = ("ray", "fit", "tolerance", "pooling")


def main():
    """Run the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (all but {', '.join(LONG)})")
    parser.add_argument("--quick", action="store_true", help="fewer instances and settings")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to a file too")
    arguments = parser.parse_args()
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    console, numbers = Console(width=150), {}
    for part in arguments.parts or [name for name in PARTS if name not in LONG]:
        tables, numbers[part] = PARTS[part](arguments.quick)
        for table in tables:
            console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
