"""How many updates a CPU second: coterie against the alternatives, side by side, in one run.

python benchmarks/rates.py [--quick] [--only WORD] [--json FILE]
"""

import argparse
import contextlib
import importlib.util
import io
import json
import math
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from rich.console import Console
from rich.table import Table

import coterie as ct

TOLERANCE = 1e-9


class Size(NamedTuple):
    """Agents, dimensions, degree, and the fewest and most points of an agent."""

    n: int
    p: int
    degree: int
    fewest: int
    most: int

    def __str__(self):
        points = f"{self.fewest}" if self.fewest == self.most else f"{self.fewest}..{self.most}"
        return f"n={self.n}, p={self.p}, degree {self.degree}, points {points}"


#: The small network of the comparison with NumPy and gossipy.
SMALL = Size(100, 20, 10, 20, 20)
LARGE = Size(1000, 50, 10, 10, 100)


# -- the tasks: a problem, the method of ours that solves it, and what happens -----------------------------------------


def network(size):
    return ct.graphs.random_regular(size.n, size.degree, seed=0)


def examples(size):
    """Random points with random signs for labels, some for each agent."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(size.fewest, size.most + 1, size.n)
    X = rng.standard_normal((sizes.sum(), size.p))
    y = np.where(rng.random(sizes.sum()) < 0.5, -1.0, 1.0)
    return X, y, np.repeat(np.arange(size.n), sizes)


def classification(size):
    """Logistic regression, CD (3)."""
    X, y, owner = examples(size)
    return ct.Problem.personalized(ct.AgentData(X, y, agents=owner), network(size), loss="logistic")


def regression(size):
    """Least squares, DJAM (1)."""
    X, y, owner = examples(size)
    return ct.Problem.separate(ct.AgentData(X, y, agents=owner), network(size), loss="squared")


def means(size):
    """Squared distances to points, DJAM (1)."""
    X, _, owner = examples(size)
    return ct.Problem.separate(ct.AgentData(X, agents=owner), network(size), loss=ct.Location(ct.Squared()))


def propagation(size):
    """Return models that agents have trained alone, for MP (3)."""
    rng = np.random.default_rng(0)
    models, confidence = rng.standard_normal((size.n, size.p)), rng.uniform(0.1, 1.0, size.n)
    return ct.Problem.propagation(models, network(size), alpha=0.9, confidence=confidence)


def wakes(problem, count):
    """Draw the agents that wake; each makes one update."""
    return np.random.default_rng(1).integers(0, problem.n, count)


def exchanges(problem, count):
    """Draw the agents that wake and their partners; both agents of an exchange make one update."""
    graph = problem.graph
    edge = np.random.default_rng(1).integers(0, graph.peer.shape[0], count)
    return np.stack([owners(graph)[edge], graph.peer[edge]], axis=1)


class Task(NamedTuple):
    """A task of coterie, and the unit of its count."""

    name: str
    problem: Callable[[Size], ct.Problem]
    method: Any
    events: Callable[[ct.Problem, int], np.ndarray]

    @property
    def unit(self):
        return self.events.__name__.replace("wakes", "updates")


DESCENT = Task("CD (5), logistic", classification, ct.CoordinateDescent(), wakes)
GOSSIP = Task("MP (6)", propagation, ct.ModelPropagation(), exchanges)
MEANS = Task("DJAM (4), means", means, ct.DJAM(), exchanges)
REGRESSION = Task("DJAM (4), least squares", regression, ct.DJAM(), exchanges)


# -- the contestants: each takes a problem and what happens, prepares itself, and returns a function that does it ------


def coterie(method):
    return lambda problem, events: lambda: ct.simulate(problem, method, events=events, start="zeros").theta


def owners(graph):
    return np.repeat(np.arange(graph.n), np.diff(graph.start))


def mirrors(graph):
    """The edge j to i of the edge i to j: where j keeps its copy of theta_i."""
    inverse = np.empty_like(graph.peer)
    inverse[np.lexsort((graph.peer, owners(graph)))] = np.lexsort((owners(graph), graph.peer))
    return inverse


def blank(problem):
    """Models, and the copies held by neighbours."""
    return np.zeros((problem.n, problem.p)), np.zeros((problem.graph.peer.shape[0], problem.p))


fast = njit(forceinline=True, fastmath={"reassoc", "contract"})


@fast
def dot(a, b):
    total = 0.0
    for k in range(a.shape[0]):
        total += a[k] * b[k]
    return total


@fast
def axpy(scale, x, out):
    for k in range(out.shape[0]):
        out[k] += scale * x[k]


@fast
def put(x, out):
    for k in range(out.shape[0]):
        out[k] = x[k]


class Descent(NamedTuple):
    """A problem as one would lay it out by hand for CD (5), with all that does not change worked out before."""

    start: np.ndarray  # rows of agent i: start[i] to start[i + 1] - 1
    X: np.ndarray
    y: np.ndarray
    edge: np.ndarray  # edges of agent i: edge[i] to edge[i + 1] - 1
    weight: np.ndarray
    inverse: np.ndarray
    pull: np.ndarray  # (n,) D_ii + 2 a_i r_i, what theta_i is multiplied with in the gradient
    fit: np.ndarray  # (n,) a_i / m_i
    step: np.ndarray  # (n,) 1 / L_i


def descent_of(problem):
    data, graph = problem.data, problem.graph
    pull = graph.degrees + 2.0 * problem.a * problem.ridge
    fit, step = problem.a * problem.row_weight, 1.0 / problem.block_lipschitz
    return Descent(data.start, data.X, data.y, graph.start, graph.weight, mirrors(graph), pull, fit, step)


@njit
def descend(order, flat, theta, copy, gradient):
    for i in order:
        mine = theta[i]
        for k in range(mine.shape[0]):
            gradient[k] = flat.pull[i] * mine[k]
        for e in range(flat.edge[i], flat.edge[i + 1]):
            axpy(-flat.weight[e], copy[e], gradient)
        for r in range(flat.start[i], flat.start[i + 1]):
            slope = -flat.y[r] / (1.0 + math.exp(flat.y[r] * dot(flat.X[r], mine)))
            axpy(flat.fit[i] * slope, flat.X[r], gradient)
        axpy(-flat.step[i], gradient, mine)
        for e in range(flat.edge[i], flat.edge[i + 1]):
            put(mine, copy[flat.inverse[e]])


def descent_by_hand(problem, order):
    flat = descent_of(problem)

    def run():
        theta, copy = blank(problem)
        descend(order, flat, theta, copy, np.zeros(problem.p))
        return theta

    return run


class Block(NamedTuple):
    """The minimiser over one block of a quadratic problem is ``inverse_i (constant_i + sum_e weight_e copy_e)``."""

    constant: np.ndarray  # (n, p)
    weight: np.ndarray  # (edges,)
    inverse: np.ndarray  # (n, p, p), or (0, 0, 0) where it is in constant and weight already


@fast
def weighted_mean(block, i, first, last, theta, copy, draft):
    mine = theta[i]
    put(block.constant[i], mine)
    for e in range(first, last):
        axpy(block.weight[e], copy[e], mine)


@fast
def linear_system(block, i, first, last, theta, copy, draft):
    put(block.constant[i], draft)
    for e in range(first, last):
        axpy(block.weight[e], copy[e], draft)
    for k in range(draft.shape[0]):
        theta[i, k] = dot(block.inverse[i, k], draft)


def loop_with(update):
    @njit
    def loop(edges, owner, peer, inverse, edge, block, theta, copy, draft):
        for e in edges:
            i, j = owner[e], peer[e]
            put(theta[j], copy[e])
            put(theta[i], copy[inverse[e]])
            update(block, i, edge[i], edge[i + 1], theta, copy, draft)
            update(block, j, edge[j], edge[j + 1], theta, copy, draft)

    return loop


mean_loop, system_loop = loop_with(weighted_mean), loop_with(linear_system)


def exchange_by_hand(problem, events):
    """DJAM (4), of which MP (6) is a case, for a quadratic problem."""
    data, graph = problem.data, problem.graph
    owner, degree = owners(graph), 2.0 * problem.smooth * graph.degrees
    plain = degree + 2.0 * problem.a * problem.ridge
    weight = 2.0 * problem.smooth * graph.weight
    X = [data.X[data.start[i] : data.start[i + 1]] for i in range(problem.n)]
    fit = problem.a * problem.row_weight
    if isinstance(problem.loss, ct.Location):
        whole = plain + fit * data.sizes
        constant = np.stack([fit[i] / whole[i] * X[i].sum(axis=0) for i in range(problem.n)])
        loop, block = mean_loop, Block(constant, weight / whole[owner], np.zeros((0, 0, 0)))
    else:
        constant = np.stack([fit[i] * data.y[data.owner == i] @ X[i] for i in range(problem.n)])
        hessian = [fit[i] * X[i].T @ X[i] + plain[i] * np.eye(problem.p) for i in range(problem.n)]
        loop, block = system_loop, Block(constant, weight, np.linalg.inv(hessian))
    number = {pair: edge for edge, pair in enumerate(zip(owner.tolist(), graph.peer.tolist(), strict=True))}
    edges = np.array([number[pair] for pair in map(tuple, events.tolist())])
    inverse = mirrors(graph)

    def run():
        theta, copy = blank(problem)
        loop(edges, owner, graph.peer, inverse, graph.start, block, theta, copy, np.zeros(problem.p))
        return theta

    return run


def descent_in_numpy(problem, order):
    flat = descent_of(problem)

    def run():
        theta, copy = blank(problem)
        agents = []  # what each needs when it wakes: views, and numbers of Python rather than of NumPy
        for i in range(problem.n):
            rows, edges = slice(*flat.start[i : i + 2]), slice(*flat.edge[i : i + 2])
            views = theta[i], flat.X[rows], flat.y[rows], flat.weight[edges], copy[edges], flat.inverse[edges]
            agents.append((*views, float(flat.pull[i]), float(flat.fit[i]), float(flat.step[i])))
        for i in order.tolist():
            mine, X, y, weight, heard, inverse, pull, fit, step = agents[i]
            slope = -y / (1.0 + np.exp(y * (X @ mine)))
            mine -= step * (pull * mine - weight @ heard + fit * (slope @ X))
            copy[inverse] = mine
        return theta

    return run


def gossipy(problem, order):
    """Gossip learning in its fastest form: push to one neighbour, merge, one gradient step on all 20 points."""
    # gossipy imports torchvision, without asking for it, for data sets that are not used here.
    if "torchvision" not in sys.modules and importlib.util.find_spec("torchvision") is None:
        sys.modules["torchvision"] = types.ModuleType("torchvision")
    import torch
    from gossipy.core import AntiEntropyProtocol, CreateModelMode, StaticP2PNetwork
    from gossipy.data import DataDispatcher
    from gossipy.data.handler import ClassificationDataHandler
    from gossipy.model.handler import TorchModelHandler
    from gossipy.model.nn import LogisticRegression
    from gossipy.node import GossipNode
    from gossipy.simul import GossipSimulator

    torch.set_num_threads(1)
    data, n = problem.data, problem.n
    X, y = torch.tensor(data.X, dtype=torch.float32), torch.tensor(data.y > 0, dtype=torch.long)
    dispatcher = DataDispatcher(ClassificationDataHandler(X, y, test_size=0), n, eval_on_user=False, auto_assign=False)
    dispatcher.set_assignments([list(range(*data.start[i : i + 2])) for i in range(n)], None)
    handler = TorchModelHandler(
        net=LogisticRegression(problem.p, 2),
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": 0.1},
        criterion=torch.nn.CrossEntropyLoss(),
        batch_size=0,
        create_model_mode=CreateModelMode.MERGE_UPDATE,
    )
    adjacency = np.zeros((n, n))
    adjacency[owners(problem.graph), problem.graph.peer] = 1.0
    nodes = GossipNode.generate(dispatcher, StaticP2PNetwork(n, adjacency), handler, round_len=1, sync=True)
    simulator = GossipSimulator(nodes, dispatcher, delta=1, protocol=AntiEntropyProtocol.PUSH)

    def run():
        """In a round every node sends one model, and so one model is updated."""
        with contextlib.redirect_stdout(io.StringIO()):  # a progress bar
            simulator.start(len(order) // n)

    with contextlib.redirect_stdout(io.StringIO()):
        simulator.init_nodes()
    return run


# -- the races ---------------------------------------------------------------------------------------------------------


class Race(NamedTuple):
    """Coterie against one opponent. ``least`` is the speed-up to reach."""

    task: Task
    size: Size
    what: str
    opponent: Callable
    least: float = 1 / 1.3
    count: int = 200_000  # updates or exchanges of ours
    their_count: int = 200_000
    same: bool = True  # whether both must end with the same models


class Row(NamedTuple):
    """Result of a race: updates or exchanges per CPU second, and the largest difference between the models."""

    task: str
    counts: str
    size: str
    what: str
    ours: float
    theirs: float
    speedup: float
    least: float
    reached: bool
    difference: float | None


def races():
    degrees = [LARGE._replace(degree=degree) for degree in (10, 4, 50)]
    for size in (*degrees, LARGE._replace(most=10), SMALL):
        yield Race(DESCENT, size, "hand-written kernel", descent_by_hand)
    for task, size, count in (
        (GOSSIP, Size(1000, 50, 10, 1, 1), 1_000_000),
        (GOSSIP, Size(1000, 20, 50, 1, 1), 1_000_000),
        (MEANS, LARGE._replace(most=10), 1_000_000),
        (REGRESSION, LARGE, 1_000_000),
    ):
        yield Race(task, size, "hand-written kernel", exchange_by_hand, count=count, their_count=count)
    yield Race(DESCENT, SMALL, "NumPy event loop", descent_in_numpy, 15.0, 500_000, 20_000)
    if importlib.util.find_spec("gossipy") is None:
        print("gossipy: not installed (pip install 'coterie[bench]')", file=sys.stderr)
    else:
        yield Race(DESCENT, SMALL, "gossipy", gossipy, 1000.0, 500_000, 1_000, same=False)


def settle(race, repetitions):
    """Both sides by turns, the best of each, in CPU time of this thread; compiled and warm before."""
    problem = race.task.problem(race.size)
    counts = race.count, race.their_count
    makers = coterie(race.task.method), race.opponent
    events = [race.task.events(problem, count) for count in counts]
    warm = [make(problem, events[1])() for make in makers]
    difference = float(np.abs(warm[0] - warm[1]).max()) if race.same else None
    if race.same and not difference < TOLERANCE:
        raise AssertionError(f"{race.task.name}, {race.what}: the models differ by {difference:.1e}")
    sides = [make(problem, these) for make, these in zip(makers, events, strict=True)]
    best = [math.inf, math.inf]
    for _ in range(repetitions):
        for side, run in enumerate(sides):
            began = time.thread_time()
            run()
            best[side] = min(best[side], time.thread_time() - began)
    ours, theirs = (count / took for count, took in zip(counts, best, strict=True))
    reached = ours / theirs >= race.least
    rates = ours, theirs, ours / theirs, race.least, reached, difference
    return Row(race.task.name, race.task.unit, str(race.size), race.what, *rates)


def in_words(speedup):
    return f"x{speedup:,.1f} faster" if speedup >= 1.0 else f"x{1.0 / speedup:.2f} slower"


def show(rows):
    table = Table(title="Updates, or exchanges (two updates each), per CPU second")
    for name in ("method", "size", "coterie against", "counts"):
        table.add_column(name)
    for name in ("ours", "theirs", "ours is", "target", "reached", "models differ by"):
        table.add_column(name, justify="right")
    for row in rows:
        difference = "other method" if row.difference is None else f"{row.difference:.0e}"
        reached = "[green]yes" if row.reached else "[red]no"
        rates = f"{row.ours:,.0f}", f"{row.theirs:,.0f}", in_words(row.speedup), in_words(row.least)
        table.add_row(row.task, row.size, row.what, row.counts, *rates, reached, difference)
    Console(width=190).print(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: less exact")
    parser.add_argument(
        "--only", default="", metavar="WORD", help="only the rows whose method or opponent has this word"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to a file too")
    arguments = parser.parse_args()
    rows = []
    for race in races():
        if arguments.only in f"{race.task.name} {race.what}":
            rows.append(settle(race, repetitions=3 if arguments.quick else 9))
            name = f"{race.task.name}, {race.size}, against {race.what}"
            print(f"{name}: {in_words(rows[-1].speedup)}", file=sys.stderr, flush=True)
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
